"""What a passive party forecasts of its columns, against direct computation; and the command that prints it."""

from __future__ import annotations

import io
import json
import socket
from collections.abc import Sequence
from contextlib import redirect_stdout
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
import pytest
import torch

from splitvfl.app import forecasting
from splitvfl.app.assembly import Assembly
from splitvfl.app.forecast_result import Forecast, ModelForecast, ViewForecast
from splitvfl.app.forecasting import forecast
from splitvfl.app.records import load_data, own_data
from splitvfl.app.saved_model import Origin, load_half, save_half
from splitvfl.attacks import discrete_search
from splitvfl.cli import main
from splitvfl.config.sections import load_config
from splitvfl.data.load import load
from splitvfl.errors import CheckpointError, ConfigError, DataError
from splitvfl.exchange.handshake import TaskSpec
from splitvfl.leakage.alphabets import one_hot
from splitvfl.party.party import PassiveParty

Floats = npt.NDArray[np.float64]

EXPERIMENT = """
data: {{name: table, path: all.csv, id_column: customer, scale: standard, task: {task}, drop: [{drop}]}}
parties:
  bank: {{role: active, columns: [age], label: {label}}}
  telecom: {{role: passive, columns: [{columns}]{more}}}
model: logistic-regression
train: {{epochs: 2, batch_size: 32, device: cpu, seed: 0}}
audit: false
attacks: []
"""
COUNT = 150
COLUMNS = "calls, hours, loud, plan, same"
# By name: task, label, the passive party's columns, and further settings of it.
CASES = {
    "binary": ("binary", "default", COLUMNS, ""),
    "four": ("multiclass", "class", COLUMNS, ""),
    "exact": ("multiclass", "class", "calls, hours, loud", ""),
    "one-short": ("multiclass", "class", "calls, hours, loud, late", ""),
    "flipped": ("binary", "default", "calls, hours, plan", ", transform: flip"),
    "turned": ("multiclass", "class", "calls, hours, loud", ", transform: orthonormal"),
    "regression": ("regression", "age2", "calls, hours", ""),
}


ALL = ("age", "calls", "hours", "loud", "late", "same", "age2", "plan", "default", "class")


def unused(name: str) -> list[str]:
    _, label, columns, _ = CASES[name]
    return [column for column in ALL if column not in ("age", label, *columns.split(", "))]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A table, and a finished run of each case."""
    place = tmp_path_factory.mktemp("forecasts")
    draw = np.random.default_rng(0)
    numbers = {name: draw.random(COUNT).round(6) for name in ("age", "calls", "hours", "loud")}
    numbers |= {"late": draw.integers(0, 2, COUNT), "same": np.ones(COUNT), "age2": numbers["age"] + numbers["calls"]}
    plan = draw.choice(["a", "b", "c"], COUNT)
    score = numbers["calls"] + numbers["hours"] - numbers["loud"] + (plan == "a") + draw.normal(0, 0.2, COUNT)
    labels = {"default": (score > 0.8).astype(int), "class": np.digitize(score, [0.3, 0.8, 1.3])}
    names = [f"c{number:03d}" for number in range(COUNT)]
    pd.DataFrame({"customer": names, **numbers, "plan": plan, **labels}).to_csv(place / "all.csv", index=False)
    for name, (task, label, columns, more) in CASES.items():
        text = EXPERIMENT.format(task=task, label=label, columns=columns, more=more, drop=", ".join(unused(name)))
        if name == "flipped":
            text = text.replace("standard", "minmax")
        (place / f"{name}.yaml").write_text(text.replace("all.csv", str(place / "all.csv")))
        assert main(["train", str(place / f"{name}.yaml"), "--out", str(place / name)]) == 0
    return place


@cache
def found(folder: Path, name: str, **settings: Any) -> Forecast:
    return forecast(load_config(folder / f"{name}.yaml"), "telecom", model=folder / name, **settings)


def with_model(folder: Path, name: str, **settings: Any) -> ModelForecast:
    model = found(folder, name, **settings).model
    assert model is not None
    return model


def view_of(model: ModelForecast, sees: str) -> ViewForecast:
    return next(view for view in model.views if view.sees == sees)


def own(folder: Path, name: str, run: str = "") -> tuple[Floats, Floats]:
    """Return the varying columns in the unit box and the weights there, of another run if one is named, by hand."""
    columns = CASES[name][2].split(", ")
    task, label = CASES[name][:2]
    data = load(
        "table",
        path=folder / "all.csv",
        label=label,
        task=task,
        id_column="customer",
        scale="standard",
        drop=unused(name),
        passive={"telecom": columns},
        active=["age"],
        active_name="bank",
    )["telecom"]
    numeric = data.train.columns.numeric.double().numpy()
    low, high = numeric.min(axis=0), numeric.max(axis=0)
    varies = high > low
    weight = load_half(folder / (run or name) / "model/telecom").weights["weight"].double().numpy()
    return ((numeric - low) / np.where(varies, high - low, 1))[:, varies], (weight * (high - low))[:, varies]


def equations(weight: Floats, sees: str) -> Floats:
    return np.diff(weight, axis=0) if sees == "scores" and len(weight) > 1 else weight


# --- figures


@pytest.mark.parametrize("sees", ["scores", "activation"])
@pytest.mark.parametrize(
    "name", ["four", *(pytest.param(name, marks=pytest.mark.slow(reason="a fit")) for name in ("binary", "one-short"))]
)
def test_closed_forms_are_the_errors_of_the_estimates(folder: Path, name: str, sees: str) -> None:
    x, weight = own(folder, name)
    view = view_of(with_model(folder, name), sees)
    A = equations(weight, sees)
    P, d = np.linalg.pinv(A) @ A, x.shape[1]

    def missed(middle: Any) -> float:
        estimate = x @ P + (np.eye(d) - P) @ (middle * np.ones(d))
        return float(((x - estimate) ** 2).mean())

    # Sums over rows in float64; own columns are float32 in both.
    assert view.least_squares == pytest.approx(missed(0.0), rel=1e-9, abs=1e-12)
    assert view.half_star == pytest.approx(missed(0.5), rel=1e-9, abs=1e-12)
    assert view.means_known == pytest.approx(missed(x.mean(axis=0)), rel=1e-9, abs=1e-12)
    assert view.equations == np.linalg.matrix_rank(A)
    unknown = (x - x.mean(axis=0)) @ (np.eye(d) - P)
    assert list(view.untold.values()) == pytest.approx(np.minimum((unknown**2).mean(axis=0) / x.var(axis=0), 1))


def test_attacks_on_all_records_are_as_wrong_as_the_closed_forms_say(folder: Path) -> None:
    for view in with_model(folder, "four").views:
        mse = {one.attack: one.mse for one in view.attacks}

        assert mse["least-squares"] == pytest.approx(view.least_squares, rel=1e-9)
        assert mse["half-star"] == pytest.approx(view.half_star, rel=1e-9)
        assert mse["known-means"] <= view.means_known
        # Facts of the estimates: section 2 of the specification.
        assert mse["rcc2"] <= mse["half-star"] <= mse["half"]
        assert mse["clamped-least-squares"] <= mse["least-squares"]
        assert view.best.mse == min(mse.values())


def test_every_attack_that_needs_equations_alone_was_run(folder: Path) -> None:
    (view, _) = with_model(folder, "four").views

    run = {one.attack for one in view.attacks}
    assert run >= {"least-squares", "constrained-least-squares", "half-star", "rcc1", "rcc2", "gradient-inversion"}
    assert run >= {"zero", "random-guess", "half", "chebyshev-centre"}
    assert "noise-subtraction" in view.skipped
    assert not run & view.skipped.keys()


def test_what_the_trained_model_gives_lies_between_the_bounds_from_before(folder: Path) -> None:
    for name, classes in (("binary", 2), ("four", 4)):
        result = found(folder, name)
        for view in with_model(folder, name).views:
            (before,) = [row for row in result.before_training if (row.classes, row.sees) == (classes, view.sees)]
            for error, bounds in (
                (view.least_squares, before.errors.least_squares),
                (view.half_star, before.errors.half_star),
                (view.means_known, before.errors.best),
            ):
                assert bounds.low - 1e-12 <= error <= bounds.high + 1e-12


def test_bounds_before_training_are_sums_of_eigenvalues(folder: Path) -> None:
    x, _ = own(folder, "four")
    d = x.shape[1]
    result = found(folder, "four", classes=2)
    values = np.linalg.eigvalsh((x - 0.5).T @ (x - 0.5) / len(x))

    assert (result.exact_from, result.sums) == ({"scores": d, "activation": d - 1}, 1)  # plan's columns add up to one
    for row in result.before_training:
        rank = min(d, 1 if row.classes == 2 else row.classes - (row.sees == "scores"))
        low, high = values[: d - rank].sum() / d, values[rank:].sum() / d
        assert row.errors.half_star == pytest.approx((low, high), abs=1e-9)
    assert [row.classes for row in result.before_training[::2]] == [2, 3, 4, 5, 6, 7]  # d = 6


def test_a_categorys_sum_is_an_equation_more(folder: Path) -> None:
    """With as many classes as are said, any weights in general position and the sum give every value."""
    x, _ = own(folder, "four")
    result = found(folder, "four")
    for count in (result.exact_from["activation"], result.exact_from["scores"] - 1):
        weight = np.random.default_rng(0).normal(size=(count, x.shape[1]))
        with_sum = np.vstack([weight, [0, 0, 0, 1, 1, 1]])
        told = np.hstack([x @ weight.T, np.ones((len(x), 1))])
        assert np.allclose(told @ np.linalg.pinv(with_sum).T, x, rtol=0, atol=1e-8)
        fewer = np.delete(with_sum, 0, axis=0)
        assert np.linalg.matrix_rank(fewer) < x.shape[1]
    before = partial(forecast, load_config(folder / "four.yaml"), "telecom")
    assert "columns of a category add up to one; discrete-search may find categories sooner" in before().sentence
    enough = before(classes=result.exact_from["activation"])
    assert enough.sentence.startswith(f"Of a linear model of {x.shape[1] - 1} classes every value of your 6 columns is")


@pytest.fixture(scope="module")
def again(folder: Path) -> list[Path]:
    """The run of four classes, and two more of the same columns from other first weights."""
    runs = [folder / "four"]
    for seed in (1, 2):
        runs.append(folder / f"four-{seed}")
        with redirect_stdout(io.StringIO()):
            assert main(["train", str(folder / "four.yaml"), f"train.seed={seed}", "--out", str(runs[-1])]) == 0
    return runs


def ranks_by_hand(folder: Path, runs: Sequence[Path], sees: str) -> list[int]:
    """Return ranks after each model, with the equation that everybody knows, in units of the columns' ranges."""
    rows = [np.array([[0, 0, 0, 1, 1, 1]])]
    rows += [equations(own(folder, "four", run.name)[1], sees) for run in runs]
    return [int(np.linalg.matrix_rank(np.concatenate(rows[: end + 1]))) for end in range(1, len(rows))]


@pytest.fixture
def one_attack(monkeypatch: pytest.MonkeyPatch) -> None:
    """Run known-means alone: what models add up to is told by their weights."""
    monkeypatch.setattr(forecasting, "equation_attacks", lambda *_: iter(()))


@pytest.mark.usefixtures("one_attack")
@pytest.mark.parametrize("count", [1, 2, 3])
def test_models_that_are_trained_again_add_up_by_rank(folder: Path, again: list[Path], count: int) -> None:
    x, _ = own(folder, "four")
    d = x.shape[1]
    config = load_config(folder / "four.yaml")
    found = forecast(config, "telecom", model=again[0], also=again[1:count], judged=5)
    for sees in ("scores", "activation"):
        ranks = ranks_by_hand(folder, again[:count], sees)
        assert found.again.at_hand == count
        assert found.again.together[sees] == ranks[-1] - 1
        missing = d - ranks[-1]
        expected = count + -(-missing // found.again.each[sees]) if missing else ranks.index(d) + 1
        assert found.again.exact_after[sees] == expected == 2
    assert found.again.each["scores"] == 3
    assert "all is exact after 2 models" in found.sentence
    assert ("The models at hand give 5 independent equations together" in found.sentence) == (count > 1)
    one = replace(found, again=replace(found.again, together={"scores": 1, "activation": 1}))
    assert ("The models at hand give 1 independent equation together" in one.sentence) == (count > 1)


@pytest.mark.usefixtures("one_attack")
def test_one_model_again_tells_nothing_more(folder: Path) -> None:
    config = load_config(folder / "four.yaml")
    found = forecast(config, "telecom", model=folder / "four", also=[folder / "four"] * 3, judged=5)
    assert found.again.together["scores"] == 3
    assert found.again.exact_after["scores"] == 4 + 1


def test_before_training_it_is_a_number_of_models_in_general_position(folder: Path) -> None:
    draw = np.random.default_rng(0)
    x, _ = own(folder, "four")
    for classes in (2, 3, 4, 6, 9):
        found = forecast(load_config(folder / "four.yaml"), "telecom", classes=classes).again
        for sees in ("scores", "activation"):
            rows, count = [[0, 0, 0, 1, 1, 1]], 0
            while np.linalg.matrix_rank(np.array(rows)) < x.shape[1]:
                each = 1 if classes == 2 else classes - (sees == "scores")
                rows += draw.normal(size=(each, x.shape[1])).tolist()
                count += 1
            assert found.exact_after[sees] == count
        assert (found.at_hand, dict(found.together)) == (0, {"scores": 0, "activation": 0})


def test_models_of_other_encodings_are_not_put_together(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    changed = (folder / "four.yaml").read_text().replace("scale: standard", "scale: minmax")
    (tmp_path / "other.yaml").write_text(changed)
    assert main(["train", str(tmp_path / "other.yaml"), "--out", str(tmp_path / "other")]) == 0
    capsys.readouterr()
    both = ["--model", str(folder / "four"), "--model", str(tmp_path / "other")]
    assert main(["forecast", str(folder / "four.yaml"), "--as", "telecom", *both]) == 2
    assert f"the columns of {tmp_path / 'other'} are encoded otherwise" in capsys.readouterr().err
    with pytest.raises(ConfigError, match="beside a first one"):
        forecast(load_config(folder / "four.yaml"), "telecom", also=[folder / "four"])


def test_as_many_equations_as_columns_give_all_away(folder: Path) -> None:
    result, model = found(folder, "exact"), with_model(folder, "exact")

    for view in model.views:
        assert view.exact
        assert view.best.mse == pytest.approx(0.0, abs=1e-18)  # digits that A's condition leaves of float64
        assert view.best.near == 1.0
        assert view.best.bits_left == pytest.approx(0.0, abs=0.05)
    assert "Every value of your 3 columns is found exactly" in result.sentence
    assert "third party" not in result.sentence


def test_one_equation_fewer_is_worth_a_third_party(folder: Path) -> None:
    result, model = found(folder, "one-short"), with_model(folder, "one-short")

    assert [view.exact for view in model.views] == [False, True]
    assert "a third party compute the scores" in result.sentence
    assert view_of(model, "activation").best.categories == {"late": 1.0}


def test_of_one_logit_both_views_are_the_same(folder: Path) -> None:
    scores, activation = with_model(folder, "binary").views

    assert scores.attacks == activation.attacks
    assert scores.equations == activation.equations == 1


def test_categories_and_baselines_are_those_of_the_records(folder: Path) -> None:
    model = with_model(folder, "four")
    x, weight = own(folder, "four")

    plan = x[:, 3:6]
    assert model.commonest == {"plan": pytest.approx(plan.mean(axis=0).max())}
    assert [one.mean_mse for one in model.baselines] == pytest.approx(x.var(axis=0).tolist())
    assert [one.half_mse for one in model.baselines] == pytest.approx(((x - 0.5) ** 2).mean(axis=0).tolist())
    estimate = x @ weight.T @ np.linalg.pinv(weight).T
    found_ls = next(one for one in view_of(model, "activation").attacks if one.attack == "least-squares")
    right = (estimate[:, 3:6].argmax(axis=1) == plan.argmax(axis=1)).mean()
    assert found_ls.categories["plan"] == pytest.approx(right)
    assert [one.near for one in found_ls.columns] == pytest.approx((abs(estimate - x) <= 0.05).mean(axis=0).tolist())


def test_a_flip_and_noise_change_what_the_closed_forms_say(folder: Path) -> None:
    x, weight = own(folder, "four")
    view = view_of(with_model(folder, "four"), "scores")
    A, d = np.diff(weight, axis=0), x.shape[1]
    inverse = np.linalg.pinv(A)
    by_name = {one.defense: one for one in view.defenses}

    # Trained on 1 − x the weights are −A: the attacker solves −A z = A (x − 1) … for z = 1 − x, and takes z for x.
    flipped = (1 - x) @ A.T @ inverse.T
    assert by_name["flip"].least_squares == pytest.approx(((flipped - x) ** 2).mean(), rel=1e-9)
    assert by_name["best-rotation"].least_squares >= by_name["flip"].least_squares - 1e-9 or d == 1
    # Noise of either sign, in the direction that moves the estimate most.
    J = np.diff(np.eye(len(weight)), axis=0)
    v = np.linalg.svd(inverse @ J)[2][0]
    errors = [(((x @ A.T + sign * J @ v) @ inverse.T - x) ** 2).mean() for sign in (1, -1)]
    assert by_name["noise"].least_squares == pytest.approx(np.mean(errors), rel=1e-9)
    assert "noise" not in {one.defense for one in view_of(with_model(folder, "four"), "activation").defenses}


DEFENDED = """
defenses:
  - {name: rounding, decimals: 1}
  - {name: score-noise, scheme: 3, power: 4.0}
  - {name: class-label, epsilon: 0.01}
"""


def test_the_files_defenses_of_scores_are_tried_and_who_knows_them_beside(folder: Path) -> None:
    place = folder / "defended.yaml"
    place.write_text((folder / "four.yaml").read_text() + DEFENDED)
    found = forecast(load_config(place, []), "telecom", model=folder / "four")
    assert found.model is not None
    view = view_of(found.model, "scores")
    x, weight = own(folder, "four")
    A = np.diff(weight, axis=0)
    by_name = {one.defense: one for one in view.defenses}

    # By hand: others leave the classes level.
    logits = x @ weight.T - (x @ weight.T).mean(axis=0)
    scores = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    noise = 2.0 * (scores == scores.max(axis=1, keepdims=True))
    misled = (x @ A.T + np.diff(noise, axis=1)) @ np.linalg.pinv(A).T
    scheme = by_name["score-noise(scheme=3, power=4.0)"]
    assert scheme.least_squares == pytest.approx(((misled - x) ** 2).mean(), rel=1e-6)
    none = by_name["none"]
    assert none.known is not None
    assert scheme.known == pytest.approx(none.known, abs=1e-6)
    assert none.least_squares == view.least_squares
    assert none.known == pytest.approx(next(one.mse for one in view.attacks if one.attack == "rcc2"), abs=1e-9)
    for name in ("rounding(decimals=1)", "class-label(epsilon=0.01)"):
        known = by_name[name].known
        assert known is not None
        assert none.known < known < found.model.half_mse
    assert by_name["all of them"].known is None
    assert {"rounding(decimals=1)", "all of them"}.isdisjoint(
        one.defense for one in view_of(found.model, "activation").defenses
    )
    assert any("left the classes level" in note for note in found.notes)


def test_who_is_misled_by_the_models_transform_stands_beside_who_knows_it(folder: Path) -> None:
    view = with_model(folder, "flipped").views[0]
    by_name = {one.defense: one for one in view.defenses}
    x, _ = own(folder, "flipped")
    # Trained on z = 1 − x, columns that reach from 0 to 1.
    weight = load_half(folder / "flipped/model/telecom").weights["weight"].double().numpy()
    misled = (1 - x) @ weight.T @ np.linalg.pinv(weight).T
    turned = by_name["your transform"]
    assert turned.least_squares == pytest.approx(((misled - x) ** 2).mean(), rel=1e-5)
    assert turned.known == by_name["none"].known
    assert turned.known is not None
    assert turned.least_squares > turned.known
    assert "your transform" not in {one.defense for one in with_model(folder, "binary").views[0].defenses}


# --- what is looked at


def test_no_more_records_are_attacked_than_were_asked_for(folder: Path) -> None:
    few, all_of_them = with_model(folder, "binary", judged=50), with_model(folder, "binary")

    assert (few.judged, all_of_them.judged) == (50, 125)
    assert few.views[0].least_squares == all_of_them.views[0].least_squares
    # Baselines are of the records on which attacks were run, so that one may be divided by the other.
    half = next(one for one in few.views[0].attacks if one.attack == "half")
    assert [one.half_mse for one in few.baselines] == pytest.approx([one.mse for one in half.columns])


def test_columns_that_do_not_vary_are_left_out_and_said(folder: Path) -> None:
    result = found(folder, "binary")

    assert (result.constant, result.columns) == (1, ("calls", "hours", "loud", "plan=a", "plan=b", "plan=c"))
    assert any("do not vary" in note for note in result.notes)


def test_who_knows_a_transform_finds_the_columns_before_it(folder: Path) -> None:
    flipped, turned = found(folder, "flipped"), found(folder, "turned")

    assert flipped.columns == ("calls", "hours", "plan=a", "plan=b", "plan=c")
    assert turned.columns == ("calls", "hours", "loud")
    assert any("taken to know your transform" in note for note in flipped.notes)
    assert turned.model is not None
    assert turned.model.views[0].exact


def untrained(folder: Path, *overrides: str) -> tuple[Forecast, PassiveParty]:
    """Return the forecast of a flipped party with the weights that it was made with, and the party."""
    config = load_config(folder / "flipped.yaml", list(overrides))
    data = own_data(config, "telecom")
    assembly = Assembly(config, data.data)
    party = assembly.passive(data.data, assembly.task("binary", 1), seed=0)
    learned = TaskSpec("binary", 1)
    origin = Origin(learned=learned, model=config.model, run="0" * 32, step=1, epoch=1, encoding=data.encoding)
    with TemporaryDirectory() as place:
        save_half(Path(place) / "half", party, origin)
        return forecast(config, "telecom", model=Path(place) / "half"), party


def test_weights_of_some_flipped_columns_have_another_sign(folder: Path) -> None:
    result, party = untrained(folder, "parties.telecom.transform={name: flip, columns: [hours]}")
    x = party.data.with_transform(None).train.columns.numeric.double().numpy()
    row = next(iter(party.bottom.parameters())).detach().double().numpy()[0] * np.array([1, -1, 1, 1, 1])
    left = ((x - np.outer(x @ row, row) / (row @ row)) ** 2).mean()
    assert result.model is not None
    assert result.model.views[0].least_squares == pytest.approx(left, rel=1e-6)  # scaled columns are float32


def test_a_flip_before_rows_are_scaled_down_is_not_undone(folder: Path) -> None:
    result, _ = untrained(folder, "model={name: logistic-regression, row_norm: 0.5}")

    assert any("columns are those that your model takes, after your transform" in note for note in result.notes)
    assert result.model is not None
    assert "your transform" in {one.defense for one in result.model.views[0].defenses}


def test_one_hot_columns_that_were_flipped_are_one_category(folder: Path) -> None:
    model = with_model(folder, "flipped")
    x = torch.as_tensor(own(folder, "flipped")[0])
    # Of z = 1 − x the weights are W, and so those of x are −W.
    A = -load_half(folder / "flipped/model/telecom").weights["weight"].double()
    points = discrete_search(A, x @ A.T, [one_hot((2, 3, 4))]).points

    found = next(one for one in model.views[0].attacks if one.attack == "discrete-search")
    assert list(model.commonest) == ["plan"]
    assert model.commonest["plan"] == pytest.approx(x[:, 2:].mean(dim=0).max().item())
    # Scaled columns are float32, each off by 6e-8 of its range.
    assert found.mse == pytest.approx((points - x).square().mean().item(), abs=1e-6)


def test_known_classes_are_where_bounds_begin(folder: Path) -> None:
    result = forecast(load_config(folder / "binary.yaml"), "telecom", classes=5)

    assert result.model is None
    assert [row.classes for row in result.before_training[::2]] == [5, 6, 7]


def test_of_a_file_of_all_parties_the_columns_of_one_are_forecast(folder: Path) -> None:
    """``rest`` is what the others and the label leave, and not all that stands in the file."""
    config = load_config(folder / "binary.yaml", ["parties.telecom.columns=rest", "data.drop=[late, age2, class]"])
    names = load_data(config)["telecom"].numeric_names

    # One column is the same for all, and is none to be found.
    assert list(forecast(config, "telecom").columns) == [name for name in names if name != "same"]
    assert not {"age", "default"} & set(names)


def test_a_regression_has_one_equation(folder: Path) -> None:
    assert [view.equations for view in with_model(folder, "regression").views] == [1, 1]


def test_weights_of_zero_tell_nothing(folder: Path) -> None:
    config = load_config(folder / "four.yaml", ["model={name: logistic-regression, init: zero}"])
    own = own_data(config, "telecom")
    assembly = Assembly(config, own.data)
    party = assembly.passive(own.data, assembly.task("multiclass", 4), seed=0)
    origin = Origin(
        learned=TaskSpec("multiclass", 4), model=config.model, run="0" * 32, step=1, epoch=1, encoding=own.encoding
    )
    save_half(folder / "zero", party, origin)

    result = forecast(config, "telecom", model=folder / "zero")

    assert result.model is not None
    for view in result.model.views:
        assert view.equations == 0
        assert view.means_known == pytest.approx(result.mean_mse)
        assert view.half_star == pytest.approx(result.half_mse)
        assert set(view.untold.values()) == {1.0}
        assert "noise" not in {one.defense for one in view.defenses}
    assert "nothing here speaks against" in result.sentence


def test_parts_of_other_passive_parties_are_taken_as_known(folder: Path) -> None:
    config = load_config(folder / "four.yaml", ["parties.shop={role: passive, columns: [late]}"])

    notes = forecast(config, "telecom").notes

    assert any("the parts of shop are taken to be known" in note for note in notes)


def test_records_that_are_not_those_of_the_training_are_said(folder: Path, tmp_path: Path) -> None:
    pd.read_csv(folder / "all.csv").iloc[:80].to_csv(tmp_path / "fewer.csv", index=False)
    config = load_config(folder / "binary.yaml", [f"data.path={tmp_path / 'fewer.csv'}"])

    notes = forecast(config, "telecom", model=folder / "binary", judged=20).notes

    assert any("encoded otherwise" in note for note in notes)
    assert not any("encoded otherwise" in note for note in found(folder, "binary").notes)


# --- the command


FEW = ("--judged", "5")  # records that attacks are tried on


def run(folder: Path, *words: str) -> int:
    return main(["forecast", *words, "--as", "telecom"])


@pytest.fixture
def here(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(folder)
    monkeypatch.setenv("COLUMNS", "80")
    return folder


@pytest.mark.parametrize(
    "words", [["four.yaml"], ["four.yaml", "--model", "four"], ["binary.yaml", "--model", "binary"]]
)
def test_it_fits_eighty_columns_and_begins_with_its_conclusion(
    here: Path, words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(here, *words, *FEW) == 0

    lines = capsys.readouterr().out.rstrip().splitlines()
    assert max(map(len, lines)) <= 80
    conclusion = " ".join(line.strip() for line in lines[: lines.index("")])
    settings = {"model": here / words[2]} if len(words) > 1 else {}
    assert conclusion == forecast(load_config(words[0]), "telecom", judged=5, **settings).sentence
    assert conclusion.endswith(".")


def test_nothing_is_sent(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("a socket was asked for")

    monkeypatch.setattr(socket, "socket", refuse)
    monkeypatch.setattr(socket, "create_connection", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)

    assert run(here, "four.yaml", "--model", "four", *FEW) == 0


def test_json_holds_all_of_it_and_is_the_owners_alone(here: Path) -> None:
    assert run(here, "four.yaml", "--model", "four", "--json", "f.json", *FEW) == 0

    def no_constants(text: str) -> None:
        raise AssertionError(f"{text} is no JSON")

    said = json.loads(Path("f.json").read_text(), parse_constant=no_constants)
    assert Path("f.json").stat().st_mode & 0o077 == 0
    assert (said["format"], said["version"], said["party"]) == ("splitvfl forecast", 1, "telecom")
    assert said.keys() == {
        *("format", "version", "party", "records", "columns", "constant_columns", "half_mse", "mean_mse"),
        *("before_training", "exact_from_classes", "trained_again", "model", "notes", "sentence"),
    }
    for row in said["before_training"]:
        assert row.keys() == {
            *("classes", "sees", "equations", "rank", "exact", "least_squares", "half_star", "means_known")
        }
        assert row["half_star"].keys() == {"low", "high"}
    model = said["model"]
    assert model.keys() == {"outputs", "judged", "half_mse", "mean_mse", "baselines", "commonest", "views"}
    for view in model["views"]:
        assert view.keys() == {
            *("sees", "equations", "exact", "least_squares", "half_star", "means_known"),
            *("attacks", "defenses", "skipped", "untold"),
        }
        for attack in view["attacks"]:
            assert attack.keys() == {"attack", "mse", "near", "bits_left", "categories", "columns", "note"}
            assert [column["column"] for column in attack["columns"]] == said["columns"]
            assert attack["columns"][0].keys() == {"column", "mse", "near", "bits_left"}
    assert said == json.loads(json.dumps(found(here, "four", judged=5).as_json()))


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["nowhere.yaml"], "no such file"),
        (["four.yaml", "model=mlp", "--classes", "2"], "is not linear"),
        (["four.yaml", "parties.telecom.columns=[plan]", "data.categorical=index"], "no columns of numbers"),
        (["four.yaml", "parties.telecom.columns=[same]"], "passive party 'telecom' has no input left"),
        (["four.yaml", "--classes", "1"], "at least 2 classes"),
        (["four.yaml", "--judged", "0"], "at least 1 record"),
        (["four.yaml", "--model", "nowhere"], "expected a trained half"),
        (["four.yaml", "--model", "four/model/bank"], "is the half of bank"),
        (["four.yaml", "--model", "exact"], "expected 3 numeric names as in training"),
        (["four.yaml", "data.path=gone.csv"], "gone.csv"),
        (["four.yaml", "--json", "no/folder/f.json"], "cannot read or write"),
    ],
)
def test_mistakes_are_told_in_a_line(
    here: Path, words: list[str], expected: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(here, *words) == 2

    said = capsys.readouterr().err
    assert "Traceback" not in said
    assert expected in said


def test_it_is_for_passive_parties(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["forecast", "four.yaml", "--as", "bank"]) == 2
    assert "there are telecom" in capsys.readouterr().err


def test_a_bottom_of_several_layers_is_refused(here: Path) -> None:
    text = Path("four.yaml").read_text().replace("logistic-regression", "mlp")
    Path("mlp.yaml").write_text(text)
    assert main(["train", "mlp.yaml", "--out", "mlp"]) == 0

    with pytest.raises((ConfigError, CheckpointError, DataError), match="linear"):
        forecast(load_config("four.yaml"), "telecom", model=Path("mlp"))

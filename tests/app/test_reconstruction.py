"""What a run's real scores tell of columns, against attacks called by hand; and the command that prints it."""

from __future__ import annotations

import io
import json
import re
import shutil
from contextlib import redirect_stdout
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
import pandas as pd
import pytest
import torch

from splitvfl.app.reconstruction import reconstruct
from splitvfl.app.saved_model import load_half
from splitvfl.app.saved_run import SavedRun, load_run
from splitvfl.app.shown_weights import SHIFT
from splitvfl.attacks import HalfAttack, LeastSquaresAttack, constrained_least_squares, rcc2
from splitvfl.attacks.error_bounds import row_space, transformed_error
from splitvfl.cli import main
from splitvfl.data.load import load
from splitvfl.data.transform import best_rotation, flip
from splitvfl.errors import CheckpointError, ConfigError, DataError
from splitvfl.leakage.column_moments import ColumnMoments
from splitvfl.leakage.estimates import JudgedAttack
from splitvfl.leakage.reconstruction import (
    RECONSTRUCTION_FILE,
    ReconstructedView,
    Reconstruction,
    read_reconstruction,
    shown_views,
)
from splitvfl.learning.revealed_weights import least_singular_value, shifted_error, weight_shift
from splitvfl.report.column_leaks import attack_rows
from splitvfl.report.estimate_plots import drawn_estimates
from splitvfl.report.report import write_report
from splitvfl.report.summary import read_summary
from tests.builders import linear_trainer

Floats = npt.NDArray[np.float64]

EXPERIMENT = """
data: {{name: table, path: all.csv, id_column: customer, scale: {scale}, task: {task}, drop: [{drop}]}}
parties:
  bank: {{role: active, columns: [age], label: {label}}}
  {passives}
model: {model}
train: {{epochs: 2, batch_size: 32, device: cpu, seed: 0, optimizer: {{name: adam, lr: 0.05}}}}
audit: false
attacks: [{attacks}]
defenses: [{defenses}]
"""
ALL = ("age", "calls", "hours", "loud", "visits", "same", "plan", "default", "class")
ONE = {"telecom": ["calls", "hours", "loud", "visits", "same", "plan"]}
TWO = {"telecom": ["calls", "hours"], "shop": ["loud", "visits"]}
# By name: task, label, scale, passive parties' columns, and what else differs.
CASES: dict[str, tuple[str, str, str, dict[str, list[str]], dict[str, str]]] = {
    "four": ("multiclass", "class", "minmax", ONE, {}),
    "two": ("binary", "default", "standard", TWO, {"attacks": "least-squares, rcc2, chebyshev-centre"}),
    "rounded": (
        "multiclass",
        "class",
        "minmax",
        ONE,
        {"defenses": "{name: rounding, decimals: 1}", "attacks": "least-squares, rcc1"},
    ),
    "deep": ("binary", "default", "minmax", TWO, {"model": "mlp", "attacks": "least-squares"}),
}


def tables(name: str) -> dict[str, Any]:
    task, label, scale, passives, _ = CASES[name]
    used = {"age", label, *(column for columns in passives.values() for column in columns)}
    unused = [column for column in ALL if column not in used]
    return {"task": task, "label": label, "scale": scale, "passive": passives, "drop": unused}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A table, and a finished run of each case. Every thirty-third record is far from the others in one column."""
    place = tmp_path_factory.mktemp("reconstructions")
    draw = np.random.default_rng(1)
    count = 100
    numbers = {name: draw.random(count).round(6) for name in ("age", "calls", "hours", "loud")}
    numbers |= {"visits": draw.integers(0, 2, count), "same": np.ones(count)}
    numbers["hours"][::33] = 3.0 + numbers["hours"][::33]
    plan = draw.choice(["a", "b", "c"], count)
    score = numbers["calls"] + numbers["hours"] - numbers["loud"] + (plan == "a") + draw.normal(0, 0.2, count)
    labels = {"default": (score > 0.8).astype(int), "class": np.digitize(score, [0.3, 0.8, 1.3])}
    names = [f"c{number:03d}" for number in range(count)]
    pd.DataFrame({"customer": names, **numbers, "plan": plan, **labels}).to_csv(place / "all.csv", index=False)
    for name, (*_, more) in CASES.items():
        own = tables(name)
        passives = "\n  ".join(
            f"{party}: {{role: passive, columns: {own['passive'][party]}}}" for party in own["passive"]
        )
        settings = {"model": "logistic-regression", "attacks": "", "defenses": ""} | more
        text = EXPERIMENT.format(
            scale=own["scale"],
            task=own["task"],
            label=own["label"],
            drop=", ".join(own["drop"]),
            passives=passives,
            **settings,
        )
        (place / f"{name}.yaml").write_text(text.replace("all.csv", str(place / "all.csv")))
        with redirect_stdout(io.StringIO()) as said:
            assert main(["train", str(place / f"{name}.yaml"), "--out", str(place / name)]) == 0
        (place / f"{name}.txt").write_text(said.getvalue())
    return place


@cache
def everything(folder: Path) -> Reconstruction:
    return reconstruct(folder / "four")


def view_of(found: Reconstruction, sees: str, part: str, party: str = "telecom", weights: str = "true") -> Any:
    views = found.parties[party]
    return next(view for view in views if (view.sees, view.part, view.weights) == (sees, part, weights))


def attack_of(view: ReconstructedView, name: str) -> JudgedAttack:
    return next(one for one in view.attacks if one.attack == name)


class ByHand:
    """A run's columns in the unit box, its weights there and its logits, without the code that is tested."""

    def __init__(self, folder: Path, name: str) -> None:
        own = tables(name)
        data = load("table", path=folder / "all.csv", id_column="customer", active=["age"], active_name="bank", **own)
        weights, bounds, self.x, logits = {}, {}, {"train": [], "test": []}, {}
        for party in own["passive"]:
            weights[party] = load_half(folder / name / "model" / party).weights["weight"].double().numpy()
            train = data[party].train.columns.numeric.double().numpy()
            low, high = train.min(axis=0), train.max(axis=0)
            bounds[party] = (low, high, high > low)
            for part in ("train", "test"):
                columns = getattr(data[party], part).columns.numeric.double().numpy()
                logits[part] = logits.get(part, 0.0) + columns @ weights[party].T
                self.x[part].append(((columns - low) / np.where(high > low, high - low, 1))[:, high > low])
        self.parts = {part: np.concatenate(found, axis=1) for part, found in self.x.items()}
        scaled = [(weights[party] * (high - low))[:, varies] for party, (low, high, varies) in bounds.items()]
        self.weight = np.concatenate(scaled, axis=1)
        self.names = {
            party: [n for n, kept in zip(data[party].numeric_names, bounds[party][2], strict=True) if kept]
            for party in own["passive"]
        }

    def equations(self, sees: str, part: str) -> tuple[Floats, Floats]:
        A = np.diff(self.weight, axis=0) if sees == "scores" and len(self.weight) > 1 else self.weight
        return A, self.parts[part] @ A.T


# --- figures

# Scores are float32: logits are off by about 1e-6, and estimates by that over the least singular value, about .1.
CLOSE = {"abs": 2e-4}


@pytest.mark.parametrize("part", ["train", "test"])
@pytest.mark.parametrize("sees", ["scores", "activation"])
def test_the_table_is_that_of_attacks_called_by_hand(folder: Path, sees: str, part: str) -> None:
    hand = ByHand(folder, "four")
    view = view_of(everything(folder), sees, part)
    (A, b), x = hand.equations(sees, part), hand.parts[part]
    inside = np.clip(x, 0, 1)
    P = np.linalg.pinv(A) @ A
    half = 0.5 * np.ones(x.shape[1])
    mean = hand.parts["train"].mean(axis=0)
    left, right = torch.tensor(A), torch.tensor(b)
    estimates = {
        "least-squares": x @ P,
        "clamped-least-squares": np.clip(x @ P, 0, 1),
        "half-star": x @ P + half @ (np.eye(len(P)) - P),
        "rcc2": rcc2(left, right).numpy(),
        "constrained-least-squares": constrained_least_squares(left, right).numpy(),
        "half": np.broadcast_to(half, x.shape),
        "known-means": np.clip(x @ P + mean @ (np.eye(len(P)) - P), 0, 1),
    }
    assert (inside == x).all() == (not view.beyond)
    assert (view.equations, view.joint, view.records) == (np.linalg.matrix_rank(A), x.shape[1], len(x))
    for name, estimate in estimates.items():
        found = attack_of(view, name)
        assert found.mse == pytest.approx(((x - estimate) ** 2).mean(), **CLOSE), name
        assert [one.column for one in found.columns] == hand.names["telecom"]
        assert [one.mse for one in found.columns] == pytest.approx(((x - estimate) ** 2).mean(axis=0), **CLOSE), name
        # One record more or less on the border of .05.
        assert found.near == pytest.approx((np.abs(x - estimate) <= 0.05).mean(), abs=1.5 / len(x))
    assert [one.mean_mse for one in view.baselines] == pytest.approx(x.var(axis=0), rel=1e-5)
    assert [one.half_mse for one in view.baselines] == pytest.approx(((x - 0.5) ** 2).mean(axis=0), rel=1e-5)
    assert [one.mse for one in view.attacks] == sorted(one.mse for one in view.attacks)


def test_categories_are_judged_by_their_largest_estimate(folder: Path) -> None:
    hand = ByHand(folder, "four")
    view = view_of(everything(folder), "activation", "test")
    A, _ = hand.equations("activation", "test")
    x = hand.parts["test"]
    places = [number for number, name in enumerate(hand.names["telecom"]) if name.startswith("plan=")]
    estimate = (x @ np.linalg.pinv(A) @ A)[:, places]

    right = (estimate.argmax(axis=1) == x[:, places].argmax(axis=1)).mean()
    assert attack_of(view, "least-squares").categories["plan"] == pytest.approx(right, abs=1.5 / len(x))
    assert set(view.commonest) == {"plan", "visits"}
    assert view.commonest["plan"] == pytest.approx(x[:, places].mean(axis=0).max())


def test_of_several_parties_scores_are_one_system_and_activations_one_each(folder: Path) -> None:
    hand = ByHand(folder, "two")
    found = reconstruct(folder / "two", attacks="least-squares", plots=False)
    x = hand.parts["test"]
    A, _ = hand.equations("scores", "test")
    joint = x - x @ np.linalg.pinv(A) @ A
    first = 0
    for party, own in (("telecom", 2), ("shop", 2)):
        span = slice(first, first + own)
        first += own
        alone = x[:, span] @ np.linalg.pinv(hand.weight[:, span]) @ hand.weight[:, span]
        scores, activation = (view_of(found, sees, "test", party) for sees in ("scores", "activation"))

        assert (scores.equations, scores.joint, activation.joint) == (1, 4, 2)
        assert scores.best.mse == pytest.approx((joint[:, span] ** 2).mean(), **CLOSE)
        assert activation.best.mse == pytest.approx(((x[:, span] - alone) ** 2).mean(), **CLOSE)
        assert any("one system of equations" in note for note in scores.notes)
    assert set(found.sentences) == {"telecom", "shop"}


def test_where_only_the_sum_of_parts_is_learned_the_activation_is_that_sum(folder: Path, tmp_path: Path) -> None:
    run = tmp_path / "summed"
    shutil.copytree(folder / "two", run)
    config = (run / "experiment.yaml").read_text()
    # The weights are what they are; how parts are sent is the exchange's matter.
    summed, changed = re.subn(r"exchange: \{name: split[^}]*\}", "exchange: {name: taylor}", config)
    assert changed == 1
    (run / "experiment.yaml").write_text(summed)
    found = reconstruct(run, attacks="least-squares", plots=False)
    hand = ByHand(folder, "two")
    x = hand.parts["test"]
    missed = ((x - x @ np.linalg.pinv(hand.weight) @ hand.weight) ** 2).mean(axis=0)
    for party, span in (("telecom", slice(0, 2)), ("shop", slice(2, 4))):
        view = view_of(found, "activation", "test", party)
        assert (view.equations, view.joint) == (1, 4)
        assert "the label party learns only the sum of all parts" in view.notes
        assert view.best.mse == pytest.approx(missed[span].mean(), **CLOSE)


def test_records_beyond_the_range_are_named_by_their_place(folder: Path) -> None:
    hand = ByHand(folder, "four")
    outside = ((hand.parts["test"] < -1e-9) | (hand.parts["test"] > 1 + 1e-9)).any(axis=1)
    view = view_of(everything(folder), "activation", "test")

    assert list(view.beyond) == outside.nonzero()[0].tolist()
    assert view_of(everything(folder), "activation", "train").beyond == ()
    # Whoever is inside explains its own equations.
    assert set(view.unsolvable) <= set(view.beyond)
    assert len(view_of(everything(folder), "activation", "train").unsolvable) == 0


def test_records_are_spread_evenly_over_a_part(folder: Path) -> None:
    hand = ByHand(folder, "four")
    view = view_of(reconstruct(folder / "four", attacks="half", records=5), "scores", "train")
    rows = np.linspace(0, len(hand.parts["train"]) - 1, 5).round().astype(int)

    assert view.records == 5
    assert view.best.mse == pytest.approx(((hand.parts["train"][rows] - 0.5) ** 2).mean(), rel=1e-5)


def test_an_attacker_who_is_told_records_is_judged_on_the_others(folder: Path) -> None:
    hand = ByHand(folder, "two")
    found = reconstruct(folder / "two", attacks="weight-estimation(known_rows=40, then=least-squares),half")
    train, test = (view_of(found, "activation", part) for part in ("train", "test"))
    W, x = hand.weight[:, :2], hand.parts["test"][:, :2]

    # Enough records tell the weights: it finds what who knows them does.
    missed = ((x - x @ np.linalg.pinv(W) @ W) ** 2).mean()
    assert attack_of(test, "weight-estimation").mse == pytest.approx(missed, abs=2e-3)
    assert attack_of(train, "weight-estimation").note.startswith("is told the columns of 40 training records")
    assert train.records == len(hand.parts["train"])
    half = ((hand.parts["train"][:, :2] - 0.5) ** 2).mean()
    assert attack_of(train, "half").mse == pytest.approx(half, rel=1e-5)
    assert attack_of(train, "half").note == ""


def test_the_certificate_holds_for_every_record_that_solves_its_equations(folder: Path) -> None:
    for part in ("train", "test"):
        view = view_of(everything(folder), "activation", part)
        certificate = view.certificate
        assert certificate is not None
        assert certificate.outside <= len(view.beyond)
        # Records beyond the box may be farther off: of the others, the bound is one of every solution.
        if part == "train":
            assert attack_of(view, "rcc1").mse <= certificate.mean_mse
        assert 0 < certificate.mean_radius <= certificate.largest_radius <= view.joint**0.5
        # The mean of squares is no less than the square of the mean.
        assert certificate.mean_mse * view.joint >= certificate.mean_radius**2
        assert certificate.optimal <= view.records


def test_scores_that_were_rounded_put_records_outside_of_the_certificate(folder: Path) -> None:
    found = read_reconstruction(folder / "rounded")
    assert found is not None
    scores, activation = (view_of(found, sees, "train") for sees in ("scores", "activation"))

    assert activation.certificate.outside == 0
    assert scores.certificate.outside > 0
    assert f"{scores.certificate.outside} of {scores.records} records lie outside RCC1's radius" in " ".join(
        scores.counts
    )
    assert attack_of(scores, "least-squares").mse > attack_of(activation, "least-squares").mse


def test_saturated_scores_are_counted() -> None:
    trainer = linear_trainer(features=2, attacks=[])
    with torch.no_grad():
        next(trainer.passives["telecom"].bottom.parameters()).mul_(500.0)
    view = view_of(reconstruct(trainer, attacks=[LeastSquaresAttack()]), "scores", "train")
    rows = torch.arange(trainer.active.data.train.count)
    with torch.no_grad():
        own, active = (party.data.train.rows(rows) for party in (trainer.passives["telecom"], trainer.active))
        part = trainer.passives["telecom"].bottom(own.columns.numeric)
        logits = part + trainer.active.top.active_logits(active.columns.numeric)  # type: ignore[operator]
    scores = torch.sigmoid(logits).squeeze(1)

    assert view.saturated == int(((scores == 0) | (scores == 1)).sum()) > 0
    said = " ".join(view.said)
    assert f"{view.saturated} of {view.records} records hold a score of exactly 0 or 1" in said
    assert "predictions hold scores of exactly 0 or 1" not in said, "it is said once"


# --- a party's own transform


def test_who_knows_a_transform_is_judged_beside_who_does_not() -> None:
    trainer = linear_trainer(features=2)
    plain = reconstruct(trainer, attacks="least-squares", plots=False)
    assert plain.transformed == ()
    assert "transform" not in plain.sentences["telecom"]
    lab = trainer.passives["telecom"]
    lab.data = lab.data.with_transform(flip(2))
    found = reconstruct(trainer, attacks="least-squares", plots=False)
    aware = {(one.sees, one.part): one for one in found.parties["telecom"] if one.knows_transform}
    unaware = {(one.sees, one.part): one for one in found.parties["telecom"] if not one.knows_transform}
    # 1 − x has the weights −w: least squares projects the columns, in their box, on these.
    train, test = (part.columns.numeric.double().numpy() for part in (lab.data.train, lab.data.test))
    low, width = train.min(axis=0), np.ptp(train, axis=0)
    row = next(iter(lab.bottom.parameters())).detach().double().numpy()[0] * width
    t = (test - low) / width
    left = ((t - np.outer(t @ row, row) / (row @ row)) ** 2).mean()
    for sees in ("scores", "activation"):
        # Logits of float32 are off by 1e-7 of their size, and shown weights divide it.
        assert aware[sees, "test"].best.mse == pytest.approx(left, abs=1e-5)
        assert unaware[sees, "test"].best.mse > left + 0.01
        assert not aware[sees, "test"].tells_as(unaware[sees, "test"])
    seen = "scores or activation"
    assert {row.seen for row in attack_rows(found)} == {seen, f"{seen}, transform known"}
    assert found.transformed == ("telecom",)
    sentence = found.sentences["telecom"]
    assert sentence.startswith("Whoever knows the weights of telecom, but not its transform of columns, and sees")
    assert f"; who knows the transform misses them by {100 * left**0.5:.1f} % (least-squares)" in sentence
    assert any("stand under: transform known" in note for note in found.said)
    assert not any("telecom transforms its columns" in note for note in plain.said)


# --- transformed weights


def test_turned_weights_mislead_as_theorem_3_says(folder: Path) -> None:
    hand = ByHand(folder, "four")
    found = reconstruct(folder / "four", attacks="least-squares,half-star", weights="rotated", plots=False)
    moments = ColumnMoments.of(torch.tensor(hand.parts["train"]))
    W = torch.tensor(hand.weight)
    # Weights are shown once: H is that of the scores' equations, for either view.
    H = best_rotation(row_space(torch.diff(W, dim=0)), moments.around(0.0)).matrix
    for sees in ("scores", "activation"):
        A = torch.tensor(hand.equations(sees, "train")[0])
        view = view_of(found, sees, "train", weights="rotated")
        zero = torch.zeros(len(H), dtype=torch.float64)
        if sees == "scores":  # beyond the scores' equations any H does, and linear algebra libraries differ
            expected = transformed_error(A, moments, H, zero, fill=0.0)
            assert attack_of(view, "least-squares").mse == pytest.approx(expected, **CLOSE)
        plain = attack_of(view_of(found, sees, "train"), "least-squares").mse
        assert attack_of(view, "least-squares").mse > plain
        assert view.certificate is None
        assert not view.plots


def test_shifted_weights_mislead_as_calculated(folder: Path) -> None:
    hand = ByHand(folder, "four")
    found = reconstruct(folder / "four", attacks="least-squares", weights="shifted", plots=False, views=["scores"])
    W, moments = torch.tensor(hand.weight), ColumnMoments.of(torch.tensor(hand.parts["train"]))
    statistics = moments.around(0.0), moments.mean
    shift = weight_shift(W, *statistics, norm=SHIFT * least_singular_value(W))
    expected = shifted_error(W, shift, *statistics, misled="least-squares")

    assert {view.sees for view in found.parties["telecom"]} == {"scores"}
    view = view_of(found, "scores", "train", weights="shifted")
    assert attack_of(view, "least-squares").mse == pytest.approx(expected, rel=1e-3)


# --- what is written, and what of it is shown


def test_an_attack_that_lacks_a_field_says_so_in_words(folder: Path) -> None:
    notes = everything(folder).said
    assert any("black-box-feature: needs the partner's part of the logits" in note for note in notes)
    assert not any("logit_parts" in note for note in notes)


def test_training_reconstructs_with_the_attacks_that_it_lists(folder: Path) -> None:
    found = read_reconstruction(folder / "two")
    assert found is not None
    leaks = read_summary(folder / "two").parties
    for party, views in found.parties.items():
        told = {(leak.sees, leak.part, leak.attack): leak for leak in leaks[party].features}
        seen = {(view.sees, view.part, one.attack): (view, one) for view in views for one in view.attacks}
        assert told.keys() == seen.keys()
        assert {attack for *_, attack in seen} == {"least-squares", "rcc2", "chebyshev-centre"}
        for key, leak in told.items():
            view, one = seen[key]
            assert (leak.mse, leak.near, leak.blind_mse) == pytest.approx((one.mse, one.near, view.mean_mse))
            assert view.plots == ()
    assert not (folder / "four" / RECONSTRUCTION_FILE).exists(), "no feature attack was listed"
    assert not (folder / "deep" / RECONSTRUCTION_FILE).exists()
    named = {
        case for case in CASES if f"splitvfl reconstruct {folder / case}\n" in (folder / f"{case}.txt").read_text()
    }
    assert named == {"two", "rounded"}


def test_attacks_that_the_run_lists_keep_its_settings(folder: Path, tmp_path: Path) -> None:
    run = tmp_path / "four"
    shutil.copytree(folder / "four", run)
    text = (run / "experiment.yaml").read_text()
    listed = "attacks: [norm, {name: gradient-inversion, steps: 3}, 'gone:Away']"
    (run / "experiment.yaml").write_text(re.sub(r"^attacks: .*$", listed, text, flags=re.MULTILINE))
    found = reconstruct(run, records=4, plots=False)
    by_hand = reconstruct(run, attacks="gradient-inversion(steps=3)", records=4, plots=False)
    for sees in ("scores", "activation"):
        one, other = (attack_of(view_of(each, sees, "test"), "gradient-inversion") for each in (found, by_hand))
        assert one.mse == other.mse
    assert "with the settings that the run lists: gradient-inversion" in found.notes
    assert by_hand.notes == ()


def test_training_anew_leaves_no_reconstruction_of_an_earlier_model(folder: Path, tmp_path: Path) -> None:
    run = tmp_path / "two"
    shutil.copytree(folder / "two", run)
    assert (run / RECONSTRUCTION_FILE).exists()
    assert main(["train", str(folder / "two.yaml"), "--out", str(run), "--overwrite", "attacks=[]"]) == 0
    assert not (run / RECONSTRUCTION_FILE).exists()


def test_training_on_leaves_no_reconstruction_of_the_model_as_it_was(folder: Path, tmp_path: Path) -> None:
    run = tmp_path / "four"
    shutil.copytree(folder / "four", run)
    assert main(["reconstruct", str(run), "--attacks", "half", "--no-plots"]) == 0
    assert (run / RECONSTRUCTION_FILE).exists()
    assert main(["train", str(folder / "four.yaml"), "train.epochs=3", "--out", str(run), "--resume"]) == 0
    assert not (run / RECONSTRUCTION_FILE).exists()


def test_a_file_is_read_as_it_was_written(folder: Path, tmp_path: Path) -> None:
    found = everything(folder)
    found.keep(tmp_path)

    assert read_reconstruction(tmp_path) == found
    assert (tmp_path / RECONSTRUCTION_FILE).stat().st_mode & 0o077 == 0, "it holds values of records"
    assert read_reconstruction(tmp_path / "nowhere") is None
    written = json.loads((tmp_path / RECONSTRUCTION_FILE).read_text(encoding="utf-8"))
    assert (written["format"], written["version"]) == ("splitvfl reconstruct", 1)
    assert written["sentences"] == found.sentences
    (tmp_path / RECONSTRUCTION_FILE).write_text("{}")
    with pytest.raises(CheckpointError, match=r"reconstruct\.json does not begin with"):
        read_reconstruction(tmp_path)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"attacks": []}, "no attack or no column"),
        ({"baselines": []}, "no attack or no column"),
        ({"plots": [{"column": "away", "true": [0.5], "estimated": [0.5]}]}, "a column that its view has not"),
        ({"plots": [{"column": "NAME", "true": [0.5] * 201, "estimated": [0.5] * 201}]}, "1 to 200 records"),
        ({"plots": [{"column": "NAME", "true": [0.5, 0.6], "estimated": [0.5]}]}, "as many estimates"),
        ({"plots": [{"column": "NAME", "true": [], "estimated": []}]}, "1 to 200 records"),
        ({"plots": [{"column": "NAME", "true": [1e308], "estimated": [0.5]}]}, "far outside of the unit box"),
        ({"plots": [{"column": "NAME", "true": [0.5], "estimated": [0.5]}] * 10}, "more than 9 columns"),
    ],
    ids=str,
)
def test_a_file_that_was_not_written_so_is_damaged(
    folder: Path, tmp_path: Path, change: dict[str, Any], said: str
) -> None:
    """A page draws a point for each value, and words of a view name its best attack and its columns."""
    found = reconstruct(folder / "four", attacks="half", records=20, plots=False)
    found.keep(tmp_path)
    assert read_reconstruction(tmp_path) == found
    written = json.loads((tmp_path / RECONSTRUCTION_FILE).read_text(encoding="utf-8"))
    views = next(iter(written["parties"].values()))
    name = views[0]["baselines"][0]["column"]
    views[0] |= json.loads(json.dumps(change).replace("NAME", name))
    (tmp_path / RECONSTRUCTION_FILE).write_text(json.dumps(written))
    with pytest.raises(CheckpointError, match=rf"reconstruct\.json is damaged: .*{said}"):
        read_reconstruction(tmp_path)


def test_plots_show_true_values_and_the_best_estimates(folder: Path) -> None:
    hand = ByHand(folder, "four")
    view = view_of(reconstruct(folder / "four", attacks="constrained-least-squares"), "activation", "test")
    A, b = hand.equations("activation", "test")
    x = hand.parts["test"]
    estimate = constrained_least_squares(torch.tensor(A), torch.tensor(b)).numpy()
    assert view.best.attack == "constrained-least-squares"
    figure = drawn_estimates(view.plots)
    shown = [axes for axes in figure.axes if axes.get_visible()]

    assert [axes.get_title(loc="left") for axes in shown] == [plot.column for plot in view.plots]
    left = view.left
    told = [left.get(plot.column, np.inf) for plot in view.plots]
    assert told == sorted(told), "what is told most comes first"
    for axes, plot in zip(shown, view.plots, strict=True):
        place = hand.names["telecom"].index(plot.column)
        points = np.asarray(axes.collections[0].get_offsets())
        assert points[:, 0] == pytest.approx(x[:, place], abs=1e-6)
        assert points[:, 1] == pytest.approx(estimate[:, place], abs=1e-3)
        low, high = axes.get_xlim()
        assert low <= points.min()
        assert points.max() <= high
        assert axes.lines[1].get_ydata()[0] == pytest.approx(x[:, place].mean(), abs=1e-6)


def test_views_that_tell_the_same_are_shown_once(folder: Path) -> None:
    (view,) = [one for one in everything(folder).parties["telecom"] if (one.sees, one.part) == ("scores", "test")]
    same = replace(view, sees="activation")
    moved = replace(same, attacks=(replace(same.best, mse=same.best.mse + 0.001), *same.attacks[1:]))

    assert [name for name, _ in shown_views([view, same])] == ["scores or activation"]
    assert [name for name, _ in shown_views([view, moved])] == ["scores", "activation"]
    assert [name for name, _ in shown_views([view, replace(same, equations=9)])] == ["scores", "activation"]


# --- the command, and the page


def test_the_command_and_the_page_show_what_the_file_says(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    run, beside = tmp_path / "four", tmp_path / "told.json"
    shutil.copytree(folder / "four", run)
    options = ["--attacks", "least-squares,half-star,rcc1", "--transformed-weights", "rotated", "--json", str(beside)]
    options += ["--records", "12"]
    assert main(["reconstruct", str(run), *options]) == 0
    printed = capsys.readouterr().out
    page = write_report([run], run / "report.html", title="told").read_text(encoding="utf-8")
    assert (run / "report.html").stat().st_mode & 0o077 == 0, "values of records are in it"
    found = read_reconstruction(run)

    assert found is not None
    assert msgspec.json.decode(beside.read_bytes()) == msgspec.json.decode((run / RECONSTRUCTION_FILE).read_bytes())
    assert not [line for line in printed.splitlines() if len(line) > 80 and str(tmp_path) not in line]
    assert found.sentences["telecom"] in " ".join(printed.split())
    assert found.sentences["telecom"] in page.replace("&#39;", "'")
    for view in found.parties["telecom"]:
        if view.part != "test":
            continue
        trained = view_of(found, view.sees, "train", weights=view.weights)
        for one in view.attacks:
            other = attack_of(trained, one.attack)
            shown = f"{view.sees}{', rotated weights' if view.weights == 'rotated' else ''}"
            assert f"{one.attack} {one.mse:.4f} {other.mse:.4f} {one.near:.0%}" in " ".join(printed.split())
            assert (
                f"<tr><td>{one.attack}</td><td>telecom</td><td>{shown}</td><td>{len(view.baselines)}</td>"
                f"<td>{view.equations}</td><td>{one.mse:.3g}</td><td>{other.mse:.3g}</td><td>{one.near:.0%}</td>"
            ) in page
        if view.weights == "true":
            assert view.certificate.mean_mse > 0
            assert f"{view.certificate.mean_radius:.2f} on average" in page
            assert all(f"{plot.column}: mean squared error" in page for plot in view.plots)
    assert page.count("do not share this page") == 2, "of both views"


def test_without_plots_no_record_is_in_file_or_page(folder: Path, tmp_path: Path) -> None:
    run = tmp_path / "two"
    shutil.copytree(folder / "two", run)
    assert (
        main(["reconstruct", str(run), "--attacks", "half", "--no-plots", "--views", "scores", "--records", "9"]) == 0
    )
    found = read_reconstruction(run)

    assert found is not None
    assert {(view.sees, view.records, view.plots) for views in found.parties.values() for view in views} == {
        ("scores", 9, ())
    }
    page = write_report([run], run / "report.html", title="told").read_text(encoding="utf-8")
    assert "What scores reveal of features" in page
    assert "do not share this page" not in page


@pytest.mark.parametrize(
    ("case", "options", "message"),
    [
        ("deep", [], "telecom: MLP is not one linear layer"),
        ("four", ["--records", "0"], "--records: expected at least 1 record, got 0"),
        ("four", ["--views", "gradients"], "--views: expected scores, activation or both, got gradients"),
        ("four", ["--transformed-weights", "hidden"], "expected rotated or shifted, got hidden"),
        ("four", ["--attacks", "norm"], "--attacks: norm reads labels"),
        ("four", ["--attacks", "esa"], "no such attack 'esa'"),
        ("four", ["--attacks", "noise-subtraction"], "--attacks"),
        ("four/model/telecom", [], "holds one party's half"),
        ("nowhere", [], "expected the folder of a finished run"),
    ],
)
def test_what_cannot_be_is_refused_with_the_reason(
    folder: Path, case: str, options: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["reconstruct", str(folder / case), *options]) == 2
    assert message in " ".join(capsys.readouterr().err.split())


def test_a_run_without_its_records_or_with_others_is_refused(folder: Path, tmp_path: Path) -> None:
    run = tmp_path / "four"
    shutil.copytree(folder / "four", run)
    lines = (folder / "all.csv").read_text().splitlines(keepends=True)
    tested = 1 + int(load_run(run).own_data["telecom"].test.ids[0])  # below the header
    given = next(f",{plan}," for plan in "abc" if f",{plan}," in lines[tested])
    lines[tested] = lines[tested].replace(given, ",b," if given != ",b," else ",c,")
    (tmp_path / "all.csv").write_text("".join(lines))
    config = (run / "experiment.yaml").read_text()
    (run / "experiment.yaml").write_text(config.replace(str(folder / "all.csv"), str(tmp_path / "all.csv")))
    with pytest.raises(DataError, match="have changed since; train again"):
        reconstruct(run, attacks="half")
    (run / "experiment.yaml").unlink()
    with pytest.raises(DataError, match=r"has no experiment\.yaml"):
        reconstruct(run, attacks="half")
    shutil.rmtree(run / "model" / "telecom")
    with pytest.raises(CheckpointError, match="halves of nobody"):
        reconstruct(run, attacks="half")


def networked(audit: Path, **changes: Any) -> SavedRun:
    """Return a run of halves as a party over a network saves them: they do not say which records they saw."""
    run = load_run(audit)
    run.halves = {
        name: replace(half, schema=msgspec.structs.replace(half.schema, test=msgspec.UNSET, **changes))
        for name, half in run.halves.items()
    }
    return run


def test_an_auditor_puts_halves_of_a_networked_run_together(folder: Path, tmp_path: Path) -> None:
    """Each party's records are read as that party reads them: divided and encoded as in one process."""
    audit = tmp_path / "audit"
    shutil.copytree(folder / "two" / "model", audit)
    config = (folder / "two" / "experiment.yaml").read_text()
    (audit / "experiment.yaml").write_text(config)
    whole = reconstruct(folder / "two", attacks="half")
    assert whole.notes == ()
    found = reconstruct(networked(audit), attacks="half")
    assert found.parties == whole.parties
    assert any("of those that experiment.yaml names" in note for note in found.notes)

    (audit / "experiment.yaml").write_text(config.replace("split_seed: 0", "split_seed: 1"))
    with pytest.raises(DataError, match="are encoded otherwise than those that its half was trained on"):
        reconstruct(networked(audit), attacks="half")
    found = reconstruct(networked(audit, encoding=None), attacks="half")
    assert any("of those that experiment.yaml names" in note for note in found.notes)
    assert found.parties.keys() == whole.parties.keys()


def test_a_run_that_was_read_and_a_trainer_are_taken_too(folder: Path) -> None:
    by_path = reconstruct(folder / "two", attacks=[HalfAttack()])
    assert reconstruct(load_run(folder / "two"), attacks="half") == by_path
    trained = reconstruct(linear_trainer(features=2), attacks="half", plots=False)
    assert list(trained.parties) == ["telecom"]


def test_columns_without_a_finite_range_are_refused_with_the_reason() -> None:
    trainer = linear_trainer(features=2)
    train = trainer.passives["telecom"].data.train.columns.numeric
    train[0, 1] = torch.inf
    with pytest.raises(ConfigError, match="column 1 has no finite range"):
        reconstruct(trainer, attacks="half")

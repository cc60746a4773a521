"""Models that are trained again: what several runs' scores tell together, by hand with pandas and numpy."""

from __future__ import annotations

import io
import shutil
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
import pytest

from splitvfl.app.reconstruction import reconstruct
from splitvfl.app.saved_model import load_half
from splitvfl.app.saved_run import load_run
from splitvfl.cli import main
from splitvfl.errors import ConfigError, DataError
from splitvfl.leakage.reconstruction import RECONSTRUCTION_FILE, ReconstructedView, Reconstruction, read_reconstruction
from tests.builders import linear_trainer

Floats = npt.NDArray[np.float64]

EXPERIMENT = """
data: {{name: table, path: {path}, id_column: customer, scale: {scale}, task: multiclass, drop: [{drop}]}}
parties:
  bank: {{role: active, columns: [age], label: class}}
  telecom: {{role: passive, columns: [calls, hours, loud, visits, late]}}
{more}
model: {model}
train: {{epochs: 3, batch_size: 32, device: cpu, seed: {seed}, optimizer: {{name: adam, lr: 0.05}}}}
audit: false
attacks: []
defenses: [{defenses}]
"""
COLUMNS = ["calls", "hours", "loud", "visits", "late"]
# By name: which file, how columns are scaled, the seed, and what else differs.
RUNS: dict[str, dict[str, Any]] = {
    "may": {"file": "first", "scale": "none", "seed": 0},
    "june": {"file": "second", "scale": "standard", "seed": 1},
    "july": {"file": "first", "scale": "standard", "seed": 2},
    "rounded-may": {"file": "first", "scale": "minmax", "seed": 0, "defenses": "{name: rounding, decimals: 2}"},
    "rounded-july": {"file": "first", "scale": "minmax", "seed": 2, "defenses": "{name: rounding, decimals: 2}"},
    "changed": {"file": "changed", "scale": "standard", "seed": 3},
    "mixed": {"file": "mixed", "scale": "minmax", "seed": 3},
    "strangers": {"file": "strangers", "scale": "minmax", "seed": 3},
    "shop": {
        "file": "first",
        "scale": "minmax",
        "seed": 3,
        "drop": "",
        "more": "  shop: {role: passive, columns: [own]}",
    },
    "fewer": {"file": "fewer", "scale": "minmax", "seed": 3},
    "deep": {"file": "first", "scale": "minmax", "seed": 3, "model": "mlp"},
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Tables, and a finished run of each name."""
    place = tmp_path_factory.mktemp("stacked")
    draw = np.random.default_rng(2)
    count = 200
    table = pd.DataFrame({name: draw.random(count).round(6) for name in ("age", "own", *COLUMNS)})
    table["late"] = draw.integers(0, 4, count)
    logits = np.stack([draw.normal(0, 2, 6) @ table[["age", *COLUMNS]].T.to_numpy() for _ in range(4)])
    table["class"] = (logits + draw.gumbel(size=logits.shape)).argmax(axis=0)
    table.insert(0, "customer", [f"c{number:03d}" for number in range(count)])
    table[:160].to_csv(place / "first.csv", index=False)
    # Other records beside most of the same, in another order.
    table[40:].sample(frac=1, random_state=0).to_csv(place / "second.csv", index=False)
    changed = table[:160].copy()
    changed.loc[30:60, "loud"] = 1 - changed.loc[30:60, "loud"]
    changed.to_csv(place / "changed.csv", index=False)
    mixed = table[:160].assign(loud=draw.permutation(table["loud"][:160]))
    mixed.to_csv(place / "mixed.csv", index=False)
    table[:160].assign(customer=lambda frame: "x" + frame["customer"]).to_csv(place / "strangers.csv", index=False)
    table[:160].rename(columns={"visits": "calls to us"}).to_csv(place / "fewer.csv", index=False)
    for name, changes in RUNS.items():
        usual = {"drop": "own", "model": "logistic-regression", "defenses": "", "more": ""}
        text = EXPERIMENT.format(path=place / f"{changes['file']}.csv", **{**usual, **changes})
        if name == "fewer":
            text = text.replace("visits", "calls to us")
        (place / f"{name}.yaml").write_text(text)
        with redirect_stdout(io.StringIO()):
            assert main(["train", str(place / f"{name}.yaml"), "--out", str(place / name)]) == 0
    return place


def view_of(found: Reconstruction, sees: str, part: str, weights: str = "true") -> ReconstructedView:
    views = found.parties["telecom"]
    return next(view for view in views if (view.sees, view.part, view.weights) == (sees, part, weights))


class ByHand:
    """What the runs' records are in the unit box of those that all of them hold, and each model's weights there."""

    def __init__(self, folder: Path, names: list[str]) -> None:
        tables = [pd.read_csv(folder / f"{RUNS[name]['file']}.csv").set_index("customer") for name in names]
        encodings = [_encoding(folder / name) for name in names]
        trained = _records(folder / names[0], "train")
        tested = _records(folder / names[0], "test")
        shared = [name for name in trained if all(name in table.index for table in tables)]
        tested = [name for name in tested if all(name in table.index for table in tables)]
        plain, plain_test = (tables[0].loc[names, COLUMNS].to_numpy(float) for names in (shared, tested))
        self.low, self.width = plain.min(axis=0), np.ptp(plain, axis=0)
        self.train = (plain - self.low) / self.width
        self.test = (plain_test - self.low) / self.width
        self.weights = [
            load_half(folder / name / "model/telecom").weights["weight"].double().numpy() * slope * self.width
            for name, slope in zip(names, encodings, strict=True)
        ]

    def missed(self, x: Floats, *, scores: bool) -> float:
        A = np.concatenate([np.diff(weight, axis=0) if scores else weight for weight in self.weights])
        estimate = np.linalg.lstsq(A, A @ x.T, rcond=1e-10)[0].T
        return float(((estimate - x) ** 2).mean())

    def ranks(self, *, scores: bool) -> list[int]:
        rows = [np.diff(weight, axis=0) if scores else weight for weight in self.weights]
        return [int(np.linalg.matrix_rank(np.concatenate(rows[: t + 1]))) for t in range(len(rows))]


def _records(run: Path, part: str) -> list[str]:
    found = load_run(run).beside_own_records()
    table = pd.read_csv(found.config.data.path)  # type: ignore[union-attr, arg-type]
    return list(table["customer"].iloc[getattr(found.active.data, part).ids.numpy()])


def _encoding(run: Path) -> Floats:
    """Return by which factor each column is multiplied: from two records of the run as its model takes them."""
    found = load_run(run).beside_own_records()
    table = pd.read_csv(found.config.data.path)  # type: ignore[union-attr, arg-type]
    records = found.passives["telecom"].data.train
    plain = table[COLUMNS].to_numpy(float)[records.ids.numpy()]
    taken = records.columns.numeric.double().numpy()
    slope: Floats = np.ptp(taken, axis=0) / np.ptp(plain, axis=0)
    return slope


def test_equations_of_runs_on_other_records_and_scales_are_solved_together(folder: Path) -> None:
    names = ["may", "june"]
    found = reconstruct([folder / "may", folder / "june"], attacks="least-squares,half", plots=False)
    hand = ByHand(folder, names)
    for part, x in (("train", hand.train), ("test", hand.test)):
        for sees in ("scores", "activation"):
            view = view_of(found, sees, part)
            ranks = hand.ranks(scores=sees == "scores")
            assert (view.equations, view.joint, view.records) == (5, 5, len(x))
            assert ranks == ([3, 5] if sees == "scores" else [4, 5])
            assert f"independent equations after 1 to 2 models: {ranks[0]}, {ranks[1]}" in view.notes
            assert hand.missed(x, scores=sees == "scores") < 1e-20
            # Scores of float32, over the least singular value of two models that were trained for three epochs.
            assert view.best.mse < 1e-5
            assert view.half_mse == pytest.approx(((x - 0.5) ** 2).mean(), rel=1e-4)
    alone = reconstruct(folder / "may", attacks="least-squares", plots=False)
    assert view_of(alone, "scores", "test").best.mse > 0.01
    assert any("equations of 2 models are solved together" in note for note in found.notes)
    assert "finds every value of its 5 columns" in found.sentences["telecom"]


def test_records_whose_columns_changed_are_left_out_and_counted(folder: Path) -> None:
    found = reconstruct([folder / "july", folder / "changed"], attacks="least-squares", plots=False)
    views = [view_of(found, "activation", part) for part in ("train", "test")]
    assert sum(view.records for view in views) == 160 - 31
    assert all(view.best.mse < 1e-5 for view in views)
    assert "31 shared records are left out, whose columns are not the same in all runs" in found.notes


def test_one_model_twice_is_one_model(folder: Path) -> None:
    alone = reconstruct(folder / "may", attacks="least-squares", plots=False)
    twice = reconstruct([folder / "may"] * 3, attacks="least-squares", plots=False)
    for sees in ("scores", "activation"):
        one, other = (view_of(found, sees, "test") for found in (alone, twice))
        assert one.equations == other.equations
        assert one.best.mse == pytest.approx(other.best.mse, rel=1e-4)
    assert any("1 to 3 models: 3, 3, 3" in note for note in view_of(twice, "scores", "test").notes)


def test_of_several_parties_scores_stay_one_system_and_activations_one_each(folder: Path) -> None:
    found = reconstruct([folder / "shop", folder / "shop"], attacks="least-squares", plots=False)
    alone = reconstruct(folder / "shop", attacks="least-squares", plots=False)
    for party, columns in (("telecom", 5), ("shop", 1)):
        for sees, joint in (("scores", 6), ("activation", columns)):
            one, other = (
                next(view for view in each.parties[party] if (view.sees, view.part) == (sees, "test"))
                for each in (found, alone)
            )
            assert (one.joint, one.equations) == (other.joint, other.equations) == (joint, other.equations)
            assert one.best.mse == pytest.approx(other.best.mse, rel=1e-3, abs=1e-9)


@pytest.mark.slow(reason="linear programs of each record")
def test_rounded_scores_of_two_models_leave_more_than_exact_ones(folder: Path) -> None:
    rounded = reconstruct(
        [folder / "rounded-may", folder / "rounded-july"], attacks="least-squares,rcc2,half", plots=False
    )
    scores, activation = (view_of(rounded, sees, "train") for sees in ("scores", "activation"))
    assert scores.equations == activation.equations == 5
    assert activation.best.mse < 1e-5, "who gets the parts of logits is not stopped by rounding"
    assert scores.best.mse > 100 * activation.best.mse
    assert scores.best.attack == "rcc2", "the box, and intervals, are worth more than least squares"
    assert not scores.unsolvable, "the truth is in every interval"


@pytest.mark.slow(reason="weights are fitted three times")
def test_without_weights_known_records_of_all_months_take_their_place(folder: Path) -> None:
    """Black box over months: the same known records tell each model's weights."""
    attack = "weight-estimation(known_rows=12, then=least-squares)"
    together = reconstruct([folder / "may", folder / "july"], attacks=attack, plots=False)
    alone = reconstruct(folder / "may", attacks=attack, plots=False)
    assert view_of(together, "activation", "test").best.mse < 1e-4
    assert view_of(alone, "activation", "test").best.mse > 0.005
    few = reconstruct([folder / "may", folder / "july"], attacks="weight-estimation(known_rows=5),half", plots=False)
    assert "determine" in str(few.skipped["telecom"])


def test_revealed_files_go_to_the_run_that_they_are_of(folder: Path, tmp_path: Path) -> None:
    files = []
    for name in ("may", "july"):
        files.append(tmp_path / f"{name}.safetensors")
        changed = ["--transformed-weights", "rotated", "--experiment", str(folder / f"{name}.yaml")]
        with redirect_stdout(io.StringIO()):
            assert main(["reveal", str(folder / name), "--out", str(files[-1]), *changed]) == 0
    runs = [folder / "may", folder / "july"]
    both = reconstruct(runs, revealed=files, attacks="least-squares", plots=False)
    one = reconstruct(runs, revealed=files[1:], attacks="least-squares", plots=False)
    true, misled, partly = (
        view_of(found, "activation", "train", weights).best.mse
        for found, weights in ((both, "true"), (both, "revealed"), (one, "revealed"))
    )
    assert true < 1e-5
    assert misled > 0.01
    assert partly > 1e-4
    assert partly != misled


def test_the_command_takes_several_runs_and_writes_into_none(folder: Path, tmp_path: Path) -> None:
    runs = []
    for name in ("may", "july"):
        runs.append(str(tmp_path / name))
        shutil.copytree(folder / name, runs[-1])
    with redirect_stdout(io.StringIO()) as printed:
        arguments = ["--attacks", "least-squares", "--no-plots", "--json", str(tmp_path / RECONSTRUCTION_FILE)]
        assert main(["reconstruct", *runs, *arguments]) == 0
    assert "independent equations after 1 to 2 models: 3, 5" in " ".join(printed.getvalue().split())
    assert not any((Path(run) / RECONSTRUCTION_FILE).exists() for run in runs)
    found = read_reconstruction(tmp_path)
    assert found is not None
    assert found.run == "may and 1 more"


@pytest.mark.parametrize(
    ("other", "error", "message"),
    [
        ("mixed", DataError, "telecom: 'loud' is not the same column"),
        ("strangers", DataError, "none of the training records of RUN/may is in RUN/strangers"),
        ("shop", DataError, "other passive parties: telecom, and telecom, shop"),
        ("fewer", DataError, "other columns of telecom: 'calls to us' is not in both"),
        ("deep", ConfigError, "MLP is not one linear layer"),
    ],
)
def test_runs_that_do_not_go_together_are_refused_by_name(
    folder: Path, other: str, error: type[Exception], message: str
) -> None:
    with pytest.raises(error) as refused:
        reconstruct([folder / "may", folder / other], attacks="half", plots=False)
    assert message.replace("RUN", str(folder)) in str(refused.value)


def test_a_trainer_is_no_finished_run(folder: Path) -> None:
    with pytest.raises(ConfigError, match="give a folder in place of the trainer"):
        reconstruct([linear_trainer(features=2), folder / "may"], attacks="half")

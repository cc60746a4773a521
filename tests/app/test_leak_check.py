"""``--fail-above``: a leak check for one's CI, whose exit code is the state of the verdict on labels with that goal."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from splitvfl.cli import main
from splitvfl.leakage.canaries import CanaryLeak
from splitvfl.report.summary import RunSummary, read_summary
from tests.app.test_beginning import EXPERIMENT, table

ATTACKED = EXPERIMENT.replace("audit: false", "audit: false\nattacks: [norm]")
RUN = Path("runs/credit")


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a finished run that was watched."""
    folder = tmp_path_factory.mktemp("check")
    (folder / "clients.csv").write_text(table())
    (folder / "credit.yaml").write_text(ATTACKED)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        assert main(["train", "credit.yaml"]) == 0
    return folder


@pytest.fixture
def here(trained: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(trained)
    return trained


def check(goal: float | str, *more: str) -> int:
    return main(["train", "credit.yaml", "--resume", "--fail-above", str(goal), *more])


@pytest.fixture
def measured(here: Path) -> Any:
    """Return what gives the finished run an excess at each partner; it is taken back afterwards."""
    before = RUN.with_name("before")
    shutil.copytree(RUN, before)

    def measured(*found: CanaryLeak | None) -> RunSummary:
        run = read_summary(RUN)
        (name, party), *_ = run.parties.items()
        several = {f"{name}{number or ''}": replace(party, excess=one) for number, one in enumerate(found)}
        replace(run, parties=several).save(RUN)
        return run

    yield measured
    shutil.rmtree(RUN)
    before.rename(RUN)


LOUD = CanaryLeak(0.8, 0.75, 0.85, 150, 150)
QUIET = CanaryLeak(0.5, 0.45, 0.55, 150, 150)


@pytest.mark.parametrize(
    ("found", "goal", "code", "said"),
    [
        ((LOUD,), 0.74, 3, "failed: lab → bank's labels: above goal (goal 0.74): excess 0.80 (95 % CI 0.75–0.85,"),
        ((LOUD,), 0.8, 4, "undecided: lab → bank's labels: inconclusive (goal 0.80): excess 0.80 (95 % CI 0.75–0.85,"),
        ((LOUD,), 0.85, 0, "passed: lab → bank's labels: below goal (goal 0.85): excess 0.80 (95 % CI 0.75–0.85,"),
        ((QUIET, LOUD), 0.7, 3, "failed: lab1 → bank's labels: above goal"),  # the worst of several counts
        ((None, LOUD), 0.7, 3, "failed: lab1 → bank's labels: above goal"),
        ((LOUD, QUIET), 0.8, 4, "undecided: lab → bank's labels: inconclusive"),
        ((QUIET, None), 0.7, 4, "undecided: lab1 → bank's labels: inconclusive (goal 0.70): not measured; decided by"),
        ((QUIET, QUIET), 0.6, 0, "passed: lab → bank's labels: below goal"),
    ],
)
def test_the_exit_code_is_the_worst_state_of_labels_with_that_goal(
    measured: Callable[..., RunSummary],
    found: tuple[CanaryLeak | None, ...],
    goal: float,
    code: int,
    said: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    measured(*found)
    assert check(goal) == code
    errors = " ".join(capsys.readouterr().err.split())
    assert f"leak check {said}" in errors
    assert check(goal, "--allow-inconclusive") == (0 if code == 4 else code)


@pytest.mark.parametrize("goal", ["0.4", "1", "nan", "x"])
def test_a_goal_that_every_auc_or_none_exceeds_is_refused(here: Path, goal: str) -> None:
    assert check(goal) == 2


def test_inconclusive_can_be_allowed_only_where_something_is_checked(here: Path) -> None:
    assert main(["train", "credit.yaml", "--resume", "--allow-inconclusive"]) == 2


def test_what_nothing_measures_is_no_pass_unless_it_is_guaranteed(
    here: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    def trained(name: str, *settings: str) -> int:
        run = ["--out", str(tmp_path / name), "attacks=[]", "train.epochs=1", *settings]
        return main(["train", "credit.yaml", *run, "--fail-above", "0.6"])

    assert trained("unwatched") == 4
    assert (tmp_path / "unwatched" / "summary.json").exists(), "the run itself is kept"
    assert trained("one-way", "exchange=one-way") == 0
    assert "no label-dependent message (goal 0.60): by protocol" in " ".join(capsys.readouterr().err.split())
    assert trained("answers", "defenses=[{name: asymmetric-response, detection_error: 0.4}]") == 0
    assert "guaranteed for the whole run: AUC at most 0.60" in " ".join(capsys.readouterr().err.split())


def test_explain_prints_all_figures_of_a_finished_run(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "credit.yaml", "--resume"]) == 0
    short = capsys.readouterr().out
    assert main(["train", "credit.yaml", "--resume", "--explain"]) == 0
    long = capsys.readouterr().out
    assert "What it costs" not in short
    assert "What it costs" in long
    assert "how well an attack separates positives from negatives" in long
    assert short.startswith("lab → bank’s labels")


def test_the_goal_is_a_setting_that_a_resumed_run_may_change(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "credit.yaml", "goal=0.99", "train.epochs=2", "--out", "goal"]) == 0
    assert read_summary(Path("goal")).goal == 0.99
    assert main(["train", "credit.yaml", "goal=0.51", "train.epochs=3", "--out", "goal", "--resume"]) == 0
    assert read_summary(Path("goal")).goal == 0.51
    assert main(["train", "credit.yaml", "goal=0.5", "--out", "other"]) == 2

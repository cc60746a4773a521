"""``train --fail-above``: a leak check for one's CI, which cannot pass unmeasured."""

from __future__ import annotations

from pathlib import Path

import pytest

from splitvfl.cli import main
from splitvfl.report.summary import read_summary
from tests.app.test_beginning import EXPERIMENT, table

ATTACKED = EXPERIMENT.replace("audit: false", "audit: false\nattacks: [norm]")


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a finished run that was watched."""
    folder = tmp_path_factory.mktemp("check")
    (folder / "clients.csv").write_text(table())
    (folder / "credit.yaml").write_text(ATTACKED)
    (folder / "blind.yaml").write_text(EXPERIMENT)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        assert main(["train", "credit.yaml"]) == 0
    return folder


@pytest.fixture
def here(trained: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(trained)
    return trained


def check(highest: float, *more: str) -> int:
    return main(["train", "credit.yaml", "--resume", "--fail-above", repr(highest), *more])


def test_above_is_three_with_one_line_and_not_above_is_none(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    worst = read_summary(Path("runs/credit")).worst[0]
    assert worst is not None
    assert 0.5 < worst < 1.0

    assert check(worst - 1e-6) == 3
    told = capsys.readouterr().err
    assert f"leak check failed: worst leak AUC {worst:.4f} (norm at lab) is above" in told
    assert check(worst) == 0
    assert "leak check passed" in capsys.readouterr().err


@pytest.mark.parametrize("highest", ["0.4", "1", "nan", "x"])
def test_a_figure_that_no_leak_could_exceed_or_any_would_is_refused(here: Path, highest: str) -> None:
    assert main(["train", "credit.yaml", "--resume", "--fail-above", highest]) == 2


def test_what_nothing_would_measure_is_refused_before_training(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "blind.yaml", "--fail-above", "0.7"]) == 2
    assert "nothing would be measured" in capsys.readouterr().err
    assert not Path("runs/blind").exists()
    assert main(["train", "credit.yaml", "exchange=one-way", "attacks=[]", "audit=true", "--fail-above", "0.7"]) == 2
    assert "there is nothing to check" in capsys.readouterr().err


def test_what_could_not_be_judged_does_not_pass(here: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    one = tmp_path / "run"
    settings = ["data.task=regression", "attacks=[sign]", "audit=false", "--out", str(one)]  # sign reads no numbers
    assert main(["train", "credit.yaml", *settings, "--fail-above", "0.7"]) == 2
    assert "nothing was measured" in capsys.readouterr().err
    assert (one / "summary.json").exists(), "the run itself is kept"


def test_explain_prints_all_figures_of_a_finished_run(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "credit.yaml", "--resume"]) == 0
    short = capsys.readouterr().out
    assert main(["train", "credit.yaml", "--resume", "--explain"]) == 0
    long = capsys.readouterr().out
    assert "What it costs" not in short
    assert "What it costs" in long
    assert "how well an attack tells positives from negatives" in long
    assert short.startswith("Labels: worst leak ")


def test_the_goal_is_a_setting_that_a_resumed_run_may_change(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "credit.yaml", "goal=0.99", "train.epochs=2", "--out", "goal"]) == 0
    assert "goal met." in capsys.readouterr().out
    assert read_summary(Path("goal")).goal == 0.99
    assert main(["train", "credit.yaml", "goal=0.51", "train.epochs=3", "--out", "goal", "--resume"]) == 0
    assert main(["train", "credit.yaml", "goal=0.5", "--out", "other"]) == 2

from __future__ import annotations

import io
import json
import random
import re
import shutil
import signal
import time
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path

import pytest
from safetensors.torch import load_file
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from splitvfl.cli import main
from splitvfl.config.sections import load_config
from splitvfl.models.mlp import MLPRecipe
from splitvfl.report.summary import read_summary
from splitvfl.system.signals import Interrupted
from tests.commands import Command

# What own columns predict is never asked here, only whether it was judged.
pytestmark = pytest.mark.usefixtures("quick_own_models")

EXPERIMENT = """
data: {name: breast-cancer}
parties:
  clinic: {role: active, columns: ["mean *"]}
  lab: {role: passive, columns: rest}
model: {name: mlp, bottom: [16, 8], dropout: 0.1}
train:
  epochs: 6
  batch_size: 32
  optimizer: {name: adam, lr: 1e-3}
  checkpoint_every_steps: 3
  noise_seed_for_experiments: 5
defenses: [isotropic]
attacks: [norm, direction]
audit: false
"""


@pytest.fixture
def experiment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "credit.yaml"
    path.write_text(EXPERIMENT)
    return path


@pytest.fixture(scope="module")
def one_epoch(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run of one epoch."""
    folder = tmp_path_factory.mktemp("one-epoch")
    (folder / "credit.yaml").write_text(EXPERIMENT)
    assert main(["train", str(folder / "credit.yaml"), "train.epochs=1", "--out", str(folder / "run")]) == 0
    return folder / "run"


@pytest.fixture(scope="module")
def audited(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str, str]:
    """The folder of a run of two epochs with forty canaries, and what it wrote to a terminal of eighty columns."""
    folder, out, errors = tmp_path_factory.mktemp("audited"), io.StringIO(), io.StringIO()
    (folder / "credit.yaml").write_text(EXPERIMENT)
    arguments = ["train", str(folder / "credit.yaml"), "train.epochs=2", "audit={canaries: 40}"]
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(out), redirect_stderr(errors):
        patch.setenv("COLUMNS", "80")
        patch.chdir(folder)
        assert main(arguments) == 0
    return folder / "runs/credit", out.getvalue(), errors.getvalue()


COMPARED = [
    "audit=true",
    "train.epochs=1",
    "train.checkpoint_every_steps=14",
    "--defenses",
    "none,max-norm",
    "--seeds",
    "2",
]


@pytest.fixture(scope="module")
def compared(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """A folder in which two defenses were compared under two seeds, and what was written to the terminal."""
    folder, out = tmp_path_factory.mktemp("compared"), io.StringIO()
    (folder / "credit.yaml").write_text(EXPERIMENT)
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(out):
        patch.chdir(folder)
        assert main(["compare", "credit.yaml", *COMPARED]) == 0
    return folder, out.getvalue()


@pytest.fixture
def finished(experiment: Path, one_epoch: Path) -> Path:
    """A copy of it where ``train`` writes the experiment's run."""
    folder = Path("runs") / experiment.stem
    shutil.copytree(one_epoch, folder)
    return folder


def run(*arguments: str) -> Command:
    return Command(arguments, Path.cwd())


def wait_for_checkpoint(process: Command, folder: Path, step: int) -> None:
    for _ in range(3000):
        if process.poll() is not None:
            return
        if any(int(path.name.split("-")[1]) >= step for path in folder.glob("step-*")):
            return
        time.sleep(0.02)
    pytest.fail("no checkpoint within a minute")


@pytest.mark.slow(reason="a process that is killed, and two runs")
def test_a_run_killed_at_a_random_step_and_resumed_ends_with_the_weights_of_an_uninterrupted_one(
    experiment: Path,
) -> None:
    experiment.write_text(EXPERIMENT.replace("epochs: 6", "epochs: 4"))
    assert main(["train", str(experiment), "--out", "whole"]) == 0
    steps = read_summary(Path("whole")).steps
    step = random.Random(0).randrange(3, steps - 30)

    process = Command(["train", str(experiment), "--out", "killed"], Path.cwd())
    wait_for_checkpoint(process, Path("killed/checkpoints"), step)
    process.kill()
    process.communicate()
    assert not Path("killed/summary.json").exists(), "it finished before it was killed: the test shows nothing"
    assert main(["train", str(experiment), "--out", "killed", "--resume"]) == 0

    for party in ("clinic", "lab"):
        whole, killed = (load_file(Path(run) / "weights" / f"{party}.safetensors") for run in ("whole", "killed"))
        assert whole.keys() == killed.keys()
        assert all(whole[name].equal(killed[name]) for name in whole)
    assert Path("whole/metrics.jsonl").read_text() == Path("killed/metrics.jsonl").read_text()
    ours, theirs = (read_summary(Path(run)).parties["lab"].attacks for run in ("whole", "killed"))
    assert ours == theirs


def test_ctrl_c_keeps_a_checkpoint_and_says_how_to_resume(experiment: Path) -> None:
    process = run("train", str(experiment), "train.epochs=200", "--out", "stopped")
    wait_for_checkpoint(process, Path("stopped/checkpoints"), 3)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=60)

    assert process.returncode == 130
    assert "--resume" in errors
    assert "Traceback" not in errors
    assert list(Path("stopped/checkpoints").glob("step-*"))


def test_an_existing_run_is_refused_unless_told_otherwise(
    experiment: Path, finished: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = (finished / "summary.json").read_text()

    assert main(["train", str(experiment), "train.epochs=1"]) == 2

    assert "--resume" in capsys.readouterr().err
    assert (finished / "summary.json").read_text() == before
    assert main(["train", str(experiment), "train.epochs=2", "--overwrite"]) == 0
    assert read_summary(finished).epochs == 2


def test_a_run_that_ended_before_its_first_checkpoint_is_begun_again(
    experiment: Path, finished: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("checkpoints", "weights", "model"):  # what a crash in the first step does not leave
        shutil.rmtree(finished / name, ignore_errors=True)
    (finished / "summary.json").unlink()

    assert main(["train", str(experiment), "train.epochs=1", "--resume"]) == 2
    assert "start it without --resume" in capsys.readouterr().err
    assert main(["train", str(experiment), "train.epochs=1"]) == 0
    assert read_summary(finished).epochs == 1


def test_a_run_is_not_resumed_with_other_settings_but_may_be_prolonged_and_then_says_so(
    experiment: Path, finished: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["train", str(experiment), "train.epochs=2", "train.lr=0.5", "--resume"]) == 2
    assert "train.optimizer.lr" in capsys.readouterr().err
    assert main(["train", str(experiment), "train.epochs=2", "--resume"]) == 0
    assert read_summary(finished).epochs == 2
    assert "epochs: 2" in (finished / "experiment.yaml").read_text()


def test_each_run_of_a_comparison_has_a_twin(compared: tuple[Path, str]) -> None:
    found = [read_summary(path.parent) for path in compared[0].glob("runs/credit-compare/*/*/summary.json")]
    assert len(found) == 4
    assert all(one.has_twin for one in found)


def test_a_twin_is_refused_beside_canaries_and_without_an_auditor(
    experiment: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for setting, expected in (("audit={canaries: 40}", "40 canaries of its own"), ("audit=false", "nobody would look")):
        for command in ("train", "compare"):
            assert main([command, str(experiment), setting, "--audit-twin"]) == 2
            assert expected in capsys.readouterr().err
    assert not Path("runs").exists()


def test_who_stops_a_twin_is_told_how_to_resume_it(
    experiment: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def stopped(*_: object, **__: object) -> None:
        raise Interrupted

    monkeypatch.setattr("splitvfl.app.experiment.run_experiment", stopped)
    assert main(["train", str(experiment), "audit=true", "--audit-twin"]) == 130
    assert "--out runs/credit --resume --audit-twin;" in capsys.readouterr().err


def test_a_comparison_replaces_no_report_of_a_run(
    experiment: Path, compared: tuple[Path, str], capsys: pytest.CaptureFixture[str]
) -> None:
    run = compared[0] / "runs/credit-compare/none/seed-0"
    assert main(["compare", str(experiment), *COMPARED, "--out", str(run)]) == 2
    assert "holds a run of its own" in " ".join(capsys.readouterr().err.split())
    assert not (run / "report.html").exists()


def test_a_comparison_goes_on_where_it_was_stopped(experiment: Path, compared: tuple[Path, str]) -> None:
    shutil.copytree(compared[0] / "runs", "runs")
    arguments = ["compare", str(experiment), *COMPARED]
    finished = Path("runs/credit-compare/none/seed-0/summary.json").read_text()
    unfinished = Path("runs/credit-compare/max-norm/seed-0")
    (unfinished / "summary.json").unlink()
    for file in (unfinished / "checkpoints").glob("*/*"):
        file.unlink()
        if not any(file.parent.iterdir()):
            file.parent.rmdir()

    assert main([*arguments, "--resume"]) == 0

    assert read_summary(unfinished).epochs == 1
    assert Path("runs/credit-compare/none/seed-0/summary.json").read_text() == finished


def test_a_folder_that_is_no_run_is_never_overwritten(experiment: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Path("thesis").mkdir()
    Path("thesis/chapter.txt").write_text("years of work")

    assert main(["train", str(experiment), "--out", "thesis", "--overwrite"]) == 2

    assert Path("thesis/chapter.txt").read_text() == "years of work"
    assert "not a run" in capsys.readouterr().err


def test_overwriting_spares_what_a_run_did_not_write(experiment: Path, finished: Path) -> None:
    (finished / "notes.txt").write_text("keep me")

    assert main(["train", str(experiment), "train.epochs=1", "--overwrite"]) == 0

    assert (finished / "notes.txt").read_text() == "keep me"


def test_a_folder_with_an_experiment_of_the_users_is_no_run(
    experiment: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("project").mkdir()
    Path("project/experiment.yaml").write_text(EXPERIMENT)

    assert main(["train", "project/experiment.yaml", "--out", "project", "--overwrite"]) == 2

    assert Path("project/experiment.yaml").read_text() == EXPERIMENT
    assert "not a run" in capsys.readouterr().err


def test_a_run_is_kept_when_the_one_that_was_to_replace_it_cannot_start(experiment: Path, finished: Path) -> None:
    before = (finished / "summary.json").read_text()

    assert main(["train", str(experiment), "--overwrite", "parties.lab.columns=[nonsense]"]) == 2

    assert (finished / "summary.json").read_text() == before


@pytest.mark.parametrize("command", ["train", "compare"])
def test_a_file_in_place_of_a_folder_is_a_clear_error(
    experiment: Path, command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("occupied").write_text("")

    assert main([command, str(experiment), "train.epochs=1", "--out", "occupied"]) == 2

    assert "occupied" in capsys.readouterr().err


def test_mistakes_are_told_all_at_once_and_without_a_traceback(
    experiment: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    experiment.write_text(EXPERIMENT.replace("batch_size", "batchsize").replace("[norm,", "[norn,"))

    assert main(["train", str(experiment)]) == 2

    errors = capsys.readouterr().err
    assert "did you mean batch_size" in errors
    assert "norn" in errors
    assert "credit.yaml:9" in errors


def test_overrides_reach_the_run(experiment: Path) -> None:
    assert main(["train", str(experiment), "train.epochs=1", "train.seed=7", "defenses=[]"]) == 0

    summary = read_summary(Path("runs/credit"))
    assert (summary.seed, summary.epochs, summary.defenses) == (7, 1, [])


def test_a_users_own_hooks_are_found_beside_the_experiment(experiment: Path) -> None:
    Path("own_hooks_for_cli.py").write_text(
        "class Shrink:\n"
        "    def __init__(self, *, factor: float) -> None:\n"
        "        self.factor = factor\n"
        "    def __call__(self, gradient, secrets, /):\n"
        "        return gradient * self.factor\n"
        "class First:\n"
        "    def __call__(self, view, /):\n"
        "        return view.gradient[:, 0]\n"
    )
    hooks = ['defenses=[{name: "own_hooks_for_cli:Shrink", factor: 0.5}]', 'attacks=["own_hooks_for_cli:First"]']

    assert main(["train", str(experiment), "train.epochs=1", *hooks]) == 0

    assert "First" in read_summary(Path("runs/credit")).parties["lab"].attacks


def test_a_broken_hook_stops_the_run_with_its_name(experiment: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Path("broken_hooks_for_cli.py").write_text(
        "class Nothing:\n    def __call__(self, gradient, secrets, /):\n        return gradient * float('nan')\n"
    )

    assert main(["train", str(experiment), 'defenses=["broken_hooks_for_cli:Nothing"]']) == 2

    assert "Nothing" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ("train.batch_size=100000", "batch"),
        ("parties.lab.columns=[nonsense]", "nonsense"),
        ("attacks=[least-squares, norm]", ""),
        ("data.name=breast-cancr", "breast-cancer"),
        ("train.device=cuda", "cuda"),
    ],
)
def test_bad_input_gets_a_clear_error(
    experiment: Path, override: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    import torch

    if "cuda" in override and torch.cuda.is_available():
        pytest.skip("there is a CUDA device")
    code = main(["train", str(experiment), "train.epochs=1", override])

    errors = capsys.readouterr().err
    if said:
        assert code == 2
        assert said in errors
    else:  # an attack that cannot be run here is listed, and the others go on
        assert code == 0
        assert "least-squares" in read_summary(Path("runs/credit")).parties["lab"].unavailable


def test_compare_writes_a_report_with_every_defense_and_seed(compared: tuple[Path, str]) -> None:
    folder, shown = compared[0] / "runs/credit-compare", compared[1]

    assert {path.parent.name for path in folder.glob("*/*/summary.json")} == {"seed-0", "seed-1"}
    assert {path.parent.parent.name for path in folder.glob("*/*/summary.json")} == {"none", "max-norm"}
    assert "max-norm" in (folder / "report.html").read_text()
    assert "max-norm" in shown


def test_compare_cuts_a_model_elsewhere_and_makes_the_cut_wider_and_narrower(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("c.yaml").write_text(
        "data: {name: breast-cancer}\n"
        'parties: {clinic: {role: active, columns: ["mean *"]}, lab: {role: passive, columns: rest}}\n'
        "model: {name: mlp, bottom: [12, 6], top: [5, 1]}\n"
        "train: {epochs: 1, batch_size: 128}\n"
        "attacks: [{name: ridge, known_share: 0.2}]\naudit: false\n"
    )
    words = ["compare", "c.yaml", "--defenses", "none", "--seeds", "1", "--no-audit-twin"]
    assert main([*words, "--cuts", "1,3", "--widths", "4, 2"]) == 0
    widths = {}
    for path in Path("runs/c-compare").glob("*/*/experiment.yaml"):
        model = load_config(path).model.recipe
        assert isinstance(model, MLPRecipe)
        widths[path.parent.parent.name] = (model.bottom, model.top_hidden, model.top)
    assert widths == {
        "cut-1--width-4--none": ((4,), (6, 5), (6, 5, 1)),
        "cut-1--width-2--none": ((2,), (6, 5), (6, 5, 1)),
        "cut-3--width-4--none": ((12, 6, 4), (), (1,)),
        "cut-3--width-2--none": ((12, 6, 2), (), (1,)),
    }
    said = " ".join(capsys.readouterr().out.split())
    assert said.count("ridge recovers 0.") == 4
    assert "Features of lab, none (bottom=[4]" in said
    for option, value, expected in (
        ("--cuts", "4", "3 layers before its outputs, got a cut after 4"),
        ("--widths", "8,x", "--widths: expected whole numbers above 0 by comma"),
        ("--cuts", "0", "--cuts: expected whole numbers above 0 by comma"),
    ):
        assert main([*words, option, value]) == 2
        assert expected in capsys.readouterr().err
    assert main([*words, "model=logistic-regression", "--cuts", "1"]) == 2
    assert "does not say how it is cut elsewhere" in capsys.readouterr().err
    assert main([*words, "model=logistic-regression", "--widths", "4"]) == 2
    assert "the width of the cut follows from the task" in capsys.readouterr().err


def test_report_of_an_unfinished_run_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", str(tmp_path)]) == 2
    assert "no finished run" in capsys.readouterr().err


def test_the_first_thing_on_the_screen_is_the_verdict_with_its_figures(audited: tuple[Path, str, str]) -> None:
    folder, shown, told = audited
    found = read_summary(folder).verdict["lab"].labels
    assert found is not None
    assert found.excess is not None
    lines = shown.splitlines()
    assert lines[0] == "lab → clinic’s labels"
    assert lines[1].split()[:3] == ["verdict", *found.state.upper().split("-")]
    (excess,) = [line for line in lines if line.startswith("  excess")]
    assert f"{found.excess.value:.2f}" in excess
    assert f"{found.excess.low:.2f}–{found.excess.high:.2f}, 40 canaries" in excess
    assert "excess " in told
    assert max(map(len, told.splitlines())) <= 80
    assert max(map(len, shown.split("next:")[0].splitlines())) <= 80


def test_tensorboard_and_metrics_have_the_three_figures_of_every_epoch(audited: tuple[Path, str, str]) -> None:
    beyond = "beyond_prediction"
    assert_figures(audited[0], beyond, ends={f"{beyond}_low", f"{beyond}_high"})


def test_without_canaries_tensorboard_and_metrics_have_the_matched_figure(experiment: Path) -> None:
    assert main(["train", str(experiment), "train.epochs=2", "audit=true"]) == 0

    assert_figures(Path("runs/credit"), "beyond_prediction_matched", ends=set())


def assert_figures(folder: Path, beyond: str, *, ends: set[str]) -> None:
    events = EventAccumulator(str(folder))
    events.Reload()
    found = {
        tag.removeprefix("labels/lab/"): [event.value for event in events.Scalars(tag)]
        for tag in events.Tags()["scalars"]
        if tag.startswith("labels/lab/")
    }
    assert found.keys() == {"total", beyond, "known_without_messages", *ends}
    leak = read_summary(folder).parties["lab"].label_leak
    last = {name: values[-1] for name, values in found.items()}
    # Events hold single precision.
    assert (last["total"], last[beyond], last["known_without_messages"]) == pytest.approx(
        (leak.total, leak.beyond, leak.known), abs=1e-6
    )
    assert all(len(values) == 2 for values in found.values())
    logged = json.loads((folder / "metrics.jsonl").read_text().splitlines()[-1])
    assert logged["labels/lab/total"] == leak.total


@pytest.mark.slow(reason="five runs with their twins, and a report of them")
def test_demo_ends_with_its_lesson_and_its_report_stands_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setattr("splitvfl.app.demo.QUICK_EPOCHS", 1)
    assert main(["demo", "--quick", "--out", str(tmp_path / "demo")]) == 0

    page = (tmp_path / "demo" / "report.html").read_text()
    assert "<svg" in page
    assert "http" not in re.sub(r"https?://www\.w3\.org|http-equiv", "", page)
    output = capsys.readouterr().out
    for word in ("axis-sumkl", "digits", "tensorboard", "one-way", "private top", "known to be broken"):
        assert word in output
    (plain,) = (read_summary(path.parent) for path in tmp_path.glob("demo/none/*/summary.json"))
    excess = plain.verdict["partner"].labels.excess
    lesson = re.findall(r"^\d\. .*$", output, re.MULTILINE)
    assert [line[0] for line in lesson] == ["1", "2", "3", "4", "5"]
    assert f"(excess {excess.value:.2f}; guessing 0.50)" in lesson[0]
    assert "AUC at most 0.60" in lesson[2]
    assert max(map(len, lesson)) <= 80
    assert len(list((tmp_path / "demo").glob("*/*/events.out.tfevents.*"))) == 5


def test_help_fits_a_terminal_of_eighty_columns(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")

    assert main(["--help"]) == 0

    assert max(len(line) for line in capsys.readouterr().out.splitlines()) <= 80


def test_too_few_positives_for_the_baseline_do_not_stop_training(experiment: Path) -> None:
    rows = "".join(f"{number % 7},{number % 5},{int(number in (3, 20, 40, 60))}\n" for number in range(80))
    Path("rare.csv").write_text(f"a,b,y\n{rows}")
    experiment.write_text(
        "data: {name: table, path: rare.csv, label: y, split_seed: 3}\n"  # one of the four is tested
        "parties:\n  clinic: {role: active, columns: [a]}\n  lab: {role: passive, columns: [b]}\n"
        "train: {epochs: 1, batch_size: 16}\nattacks: [norm]\n"
    )

    assert main(["train", str(experiment)]) == 0

    assert read_summary(Path("runs/credit")).parties["lab"].own_columns_auc is None


@pytest.mark.parametrize(
    "meaningful",
    [True, pytest.param(False, marks=pytest.mark.slow(reason="1,500 records of noise"))],
    ids=["labels", "labels that mean nothing"],
)
def test_completion_after_training_reaches_summary_table_and_page(
    experiment: Path, capsys: pytest.CaptureFixture[str], *, meaningful: bool
) -> None:
    settings = (
        "parties:\n  clinic: {role: active, columns: []}\n  lab: {role: passive, columns: rest}\n"
        "train: {epochs: 8, batch_size: 64, seed: 1}\naudit: false\nmodel: {name: mlp, bottom: [32, 16]}\n"
        "attacks: [gradient-classifier, {name: model-completion, steps: 40}]\nknown_positives: 5\nknown_negatives: 6\n"
    )
    if meaningful:
        experiment.write_text("data: {name: digits, digit: 8, scale: standard}\n" + settings)
    else:
        draw = random.Random(0)
        rows = (",".join(f"{draw.gauss(0, 1):.3f}" for _ in range(6)) + f",{draw.randint(0, 1)}" for _ in range(1500))
        Path("noise.csv").write_text("a,b,c,d,e,f,y\n" + "\n".join(rows) + "\n")
        experiment.write_text("data: {name: table, path: noise.csv, label: y}\n" + settings)

    assert main(["train", str(experiment), "--explain"]) == 0
    assert main(["report", "runs/credit", "--out", "page.html"]) == 0

    summary = read_summary(Path("runs/credit"))
    found = summary.parties["lab"].after_training["model-completion"]
    assert (summary.known_positives, summary.known_negatives) == (5, 6)
    assert (found.known_positives, found.known_negatives) == (5, 6)
    assert summary.parties["lab"].attacks.keys() == {"gradient-classifier"}
    if meaningful:
        assert found.test.auc > found.before_test.auc + 0.1
    else:  # four standard errors of an AUC of 300 records by chance
        assert found.test.auc == pytest.approx(0.5, abs=0.14)
    shown, page = capsys.readouterr().out, Path("page.html").read_text()
    assert "After training" in shown
    assert f"{found.test.auc:.2f}" in shown
    assert "5 positive and 6 negative records" in page
    assert f"{found.test.auc:.2f}" in page


def test_a_fit_that_fails_is_said_and_a_baseline_is_not_the_worst_leak(
    experiment: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    attacks = "attacks: [readout, mixture, combined, component, {name: component, of: activation}]"
    text = EXPERIMENT.replace("[isotropic]", "[{name: isotropic, ratio: 40}]").replace("epochs: 6", "epochs: 3")
    experiment.write_text(text.replace("attacks: [norm, direction]", attacks))

    assert main(["train", str(experiment)]) == 0

    summary = read_summary(Path("runs/credit"))
    lab = summary.parties["lab"]
    assert {"mixture", "combined", "component", "component-of-activation"} <= lab.attacks.keys()
    assert (lab.attacks["component"].worst or 0.0) > 0.9
    assert not lab.worst[1].startswith("component")
    # Noise of forty times the signal hides the mixture too, and a person is told that it was not fitted.
    assert [note for note in summary.notes if note.startswith("mixture at lab: the mixture was not fitted")]
    assert "mixture at lab" in capsys.readouterr().out

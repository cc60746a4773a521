"""Predicting after a training whose noise was calculated: said when it happens, counted, and told ever after."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from splitvfl.app.deployment import run_party
from splitvfl.app.experiment import run_experiment
from splitvfl.app.hdp_plan import HdpPlan
from splitvfl.app.noise_plans import plan_of
from splitvfl.app.online import ServeSettings, prepare_service
from splitvfl.app.promised_predictions import AfterTraining, folder_of, was_promised
from splitvfl.app.records import load_data
from splitvfl.app.saved_run import load_run
from splitvfl.app.serving import PredictionFiles, Service, prepare_prediction
from splitvfl.app.teacher import teacher_of
from splitvfl.cli import main
from splitvfl.config.sections import ExperimentConfig, parse_config
from splitvfl.defenses import GaussianIR
from splitvfl.errors import CheckpointError, ConfigError, PrivacyError
from splitvfl.privacy import gaussian_mu
from splitvfl.report.promises import promise
from splitvfl.report.releases import (
    RELEASES_FILE,
    RESERVE_FILE,
    Release,
    Reserve,
    keep_reserve,
    note_release,
    releases,
    reserve_of,
    use_reserve,
)
from splitvfl.report.summary import read_summary
from tests.run.parties import free_ports, side_by_side

TEXT = """
data: {name: breast-cancer}
parties:
  clinic: {role: active, columns: ["mean *"], address: "127.0.0.1:PORT"}
  lab: {role: passive, columns: ["* error"]}
  far: {role: passive, columns: ["worst *"]}
model: {name: logistic-regression, init: zero, row_norm: 1.0, intercept: false}
exchange: {name: split, noise: {epsilon: 1.0, delta: 0.001}}
train: {epochs: 2, batch_size: all, optimizer: {name: sgd, lr: 0.1}}
audit: false
network: {listen: "127.0.0.1:PORT", plaintext_on_loopback: true, meeting_s: 60, message_s: 60}
"""
TESTS = 129  # test records of the set
TRAINED = 440
PARTIES = ("clinic", "lab", "far")


def config_of(folder: Path, *changes: str, text: str = TEXT) -> ExperimentConfig:
    return parse_config(text.replace("PORT", str(free_ports(1)[0])), source=folder / "run.yaml", overrides=changes)


def together(act: Callable[[str], object]) -> None:
    """Let every party act in a thread of its own."""
    for error in side_by_side({name: partial(act, name) for name in PARTIES}).values():
        raise error


def service_of(config: ExperimentConfig, name: str, folder: Path, told: list[str]) -> Service:
    files = PredictionFiles(
        model=folder / name / "model", out=folder / "scores.csv" if name == "clinic" else None, overwrite=True
    )
    return prepare_prediction(config, name, files, notify=told.append)


def predicted(config: ExperimentConfig, folder: Path) -> dict[str, list[str]]:
    """Predict with all parties over a network, and return what each was told."""
    told: dict[str, list[str]] = {name: [] for name in PARTIES}
    services = {name: service_of(config, name, folder, told[name]) for name in PARTIES}
    together(lambda name: services[name].run())
    return told


def test_over_a_network_it_is_said_and_counted_at_every_party(tmp_path: Path) -> None:
    config = config_of(tmp_path)
    together(lambda name: run_party(config, name, tmp_path / name))
    assert not any((tmp_path / name / RELEASES_FILE).exists() for name in PARTIES)
    assert not read_summary(tmp_path / "clinic").released
    told = predicted(config, tmp_path)
    for name in ("lab", "far"):
        (line,) = [one for one in told[name] if "Not covered" in one]
        assert (
            f"Not covered: {name}'s parts of the logits of {TESTS} records crossed to clinic after the training" in line
        )
        assert "What is promised of the training towards clinic ended there." in line
        (kept,) = releases(tmp_path / name)
        assert (kept.senders, kept.receivers, kept.records) == ((name,), ("clinic",), TESTS)
    assert any(f"lab and far's parts of the logits of {TESTS} records" in one for one in told["clinic"])
    # Another one, with settings from which somebody took the noise: the run's own say what was promised.
    bare = config.model_copy(update={"exchange": parse_config(TEXT.replace(
        ", noise: {epsilon: 1.0, delta: 0.001}", ""), source="x").exchange})  # fmt: skip
    published = bare.model_copy(update={"network": replace_network(bare, publish_scores=True)})
    predicted(published, tmp_path)
    assert [one.records for one in releases(tmp_path / "lab")] == [2 * TESTS]
    shown = {one.what: one for one in releases(tmp_path / "clinic")}
    assert shown["parts of logits"].records == 2 * TESTS
    assert shown["published scores"].records == TESTS
    assert (shown["published scores"].senders, shown["published scores"].receivers) == (("clinic",), ("lab", "far"))
    # And the run's figures say so, where they are read from now on.
    summary = read_summary(tmp_path / "clinic")
    assert len(summary.released) == 2
    assert set(summary.released) <= set(summary.notes)
    assert "That is of the training alone: predictions were sent since" in promise(summary)


def replace_network(config: ExperimentConfig, **changes: Any) -> Any:
    assert config.network is not None
    return config.network.model_copy(update=changes)


def test_in_one_process_it_is_said_and_counted_too(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run, out = tmp_path / "run", str(tmp_path / "scores.csv")
    run_experiment(config_of(tmp_path), run)
    summary = (run / "summary.json").read_bytes()
    assert main(["predict", str(run), "--out", out]) == 0
    said = " ".join(capsys.readouterr().err.split())
    said_of = f"lab and far's parts of the logits of {TESTS} records"
    assert f"Not covered: {said_of} crossed to clinic after the training" in said
    load_run(run).predict()
    (kept,) = releases(run)
    assert kept.records == 2 * TESTS
    assert (run / "summary.json").read_bytes() == summary
    assert main(["report", str(run), "--out", str(tmp_path / "report.html")]) == 0
    page = (tmp_path / "report.html").read_text()
    assert f"parts of the logits of {2 * TESTS} records" in page
    assert "That is of the training alone" in page
    capsys.readouterr()
    # The audit says it of the claim itself.
    assert main(["audit", str(run), "--draws", "400", "--seeds", "0"]) == 0
    assert f"parts of the logits of {2 * TESTS} records" in " ".join(capsys.readouterr().out.split())
    claims = json.loads((run / "audit.json").read_text())["defenses"][-1]["claims"]
    assert all(any(f"{2 * TESTS} records" in why for why in claim["why"]) for claim in claims)
    assert {claim["verdict"] for claim in claims} == {"not covered"}
    # A run in its place has predicted nothing.
    run_experiment(config_of(tmp_path), run, overwrite=True)
    assert releases(run) == []


def test_a_student_that_learns_from_joint_scores_is_a_release_too(tmp_path: Path) -> None:
    run_experiment(config_of(tmp_path), tmp_path / "run")
    told: list[str] = []
    teacher = teacher_of(tmp_path / "run", None, None, told.append)
    assert releases(tmp_path / "run") == []
    assert len(teacher.train_scores()) == TRAINED
    (kept,) = releases(tmp_path / "run")
    assert kept.records == TRAINED
    assert any(f"of {TRAINED} records" in line for line in told)


def test_where_nothing_was_promised_nothing_is_said(tmp_path: Path) -> None:
    plain = config_of(tmp_path, text=TEXT.replace(", noise: {epsilon: 1.0, delta: 0.001}", ""))
    run_experiment(plain, tmp_path / "run")
    told: list[str] = []
    load_run(tmp_path / "run").score(notify=told.append)
    assert told == []
    assert not (tmp_path / "run" / RELEASES_FILE).exists()


def test_answers_on_request_are_counted_when_the_service_starts(tmp_path: Path) -> None:
    config = config_of(tmp_path)
    together(lambda name: run_party(config, name, tmp_path / name))
    told: list[str] = []
    service = prepare_service(tmp_path / "lab", "lab", ServeSettings(), notify=told.append)
    assert releases(tmp_path / "lab") == []
    service.after.begin()
    (kept,) = releases(tmp_path / "lab")
    assert (kept.what, kept.records, kept.senders) == ("answers on request", None, ("lab",))
    assert any(
        "lab answered clinic with its parts of the logits of the records that were asked for" in one for one in told
    )


def test_a_broken_link_counts_once_and_a_count_that_fails_stops_it(tmp_path: Path) -> None:
    release = Release("parts of logits", ("lab",), ("clinic",), 5)
    after = AfterTraining(tmp_path, [release])
    for _ in range(3):  # as often as the parties meet
        after.begin()
    assert [one.records for one in releases(tmp_path)] == [5]
    with pytest.raises(CheckpointError, match=r"cannot write .* nothing was sent"):
        AfterTraining(tmp_path / "gone", [release]).begin()
    (tmp_path / RELEASES_FILE).write_text("[{]")
    with pytest.raises(CheckpointError, match="does not hold what was predicted after the training"):
        AfterTraining(tmp_path, [release]).begin()


def test_releases_add_up_by_what_crosses_from_whom_to_whom(tmp_path: Path) -> None:
    one = Release("parts of logits", ("lab",), ("clinic",), 5)
    for release in (one, replace(one, records=3), replace(one, senders=("far",)), replace(one, records=None)):
        note_release(tmp_path, release)
    assert [(found.senders, found.records) for found in releases(tmp_path)] == [
        (("lab",), 8), (("far",), 5), (("lab",), None),
    ]  # fmt: skip
    assert (tmp_path / RELEASES_FILE).stat().st_mode & 0o077 == 0


def test_a_half_that_was_taken_elsewhere_is_counted_beside_itself(tmp_path: Path) -> None:
    (tmp_path / "half").mkdir()
    assert folder_of(tmp_path / "half") == tmp_path / "half"
    assert not was_promised(tmp_path / "half", None)
    assert was_promised(tmp_path / "half", config_of(tmp_path).exchange)


# --- noise that was put by


PUT_BY = ("exchange.noise.prediction_share=0.2", "exchange.noise.predictions=300")
LEFT = 300 - 2 * TESTS


def plan_for(*changes: str) -> HdpPlan:
    config = parse_config(TEXT, source="run.yaml", overrides=changes)
    found = plan_of(config, load_data(config).active)
    assert isinstance(found, HdpPlan)
    return found


def test_the_noise_of_predictions_takes_its_share_and_the_whole_is_what_was_asked_for() -> None:
    plan, evaluated = plan_for(*PUT_BY), plan_for(*PUT_BY, "exchange.noise.evaluation_share=0.3")
    for one, shares in ((plan, (0.2, 0.0)), (evaluated, (0.2, 0.3))):
        sent, shown = one.passive.predictions, one.passive.evaluations
        assert sent is not None
        # By hand: two steps of rate .1 on 440 rows of norm 1, |h| at most 1; 300 numbers, each moved by all of it.
        moved = 2 * 2 * 0.1 / TRAINED
        mu = gaussian_mu(epsilon=1.0, delta=0.001)
        assert sent.sensitivity == pytest.approx(math.sqrt(300) * moved, rel=1e-9)
        # Rounding before the noise, to 2^-20 of it, is in μ besides.
        assert (sent.sensitivity / sent.sigma / mu) ** 2 == pytest.approx(shares[0], rel=1e-3)
        assert ((0 if shown is None else shown.sensitivity / shown.sigma) / mu) ** 2 == pytest.approx(
            shares[1], rel=1e-3
        )
        assert one.passive.mu <= mu
        assert one.budget().planned("lab").epsilon == pytest.approx(1.0, rel=1e-3)
        assert one.budget().planned("lab").epsilon <= 1.0
    assert plan_for().passive.sigma < plan.passive.sigma < evaluated.passive.sigma
    assert plan.active.sigma == plan_for().active.sigma
    (said,) = [line for line in plan.notes({}) if "scored after training" in line]
    assert "Of up to 300 of them, counted each time" in said
    assert "0.2 of μ², used or not" in said
    assert {"noise: predictions", "noise: prediction_share", "noise of a prediction"} <= plan.terms().keys()


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (PUT_BY[:1], "prediction_share and predictions go together"),
        (PUT_BY[1:], "prediction_share and predictions go together"),
        ((*PUT_BY, "exchange.noise.evaluation_share=0.8"), "leave nothing for training"),
        ((*PUT_BY, "exchange.noise.calibration=analytic"), "prediction_share is of noise that is calculated"),
        ((*PUT_BY, "exchange.noise.active_sigma=1", "exchange.noise.passive_sigma=1"), "prediction_share is of noise"),
        ((*PUT_BY, "exchange.noise.predictions=0"), "predictions: expected at least 1"),
        ((*PUT_BY, "exchange.noise.prediction_share=1"), "prediction_share: expected a number below 1"),
        ((*PUT_BY, "defenses=[{name: gaussian-ir, clip: 1.0, sigma: 1.0, at: prediction}]"), "defenses.0: gaussian-ir"),
    ],
)
def test_what_cannot_be_put_by_is_refused(changes: tuple[str, ...], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        plan_for(*changes)


def test_in_one_process_predictions_have_noise_until_none_is_left(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run, out = tmp_path / "run", ["--out", str(tmp_path / "scores.csv"), "--overwrite"]
    config = config_of(tmp_path, *PUT_BY)
    run_experiment(config, run)
    assert reserve_of(run).left == 300
    found = plan_of(config, load_data(config).active)
    assert isinstance(found, HdpPlan)
    assert found.reserve == reserve_of(run)
    noise = load_run(run).passives["lab"].activation["prediction"]
    assert [(type(one), getattr(one, "sigma", None)) for one in noise] == [(GaussianIR, reserve_of(run).sigma)]
    scores = [load_run(run).predict() for _ in range(2)]
    assert not torch.equal(*scores)  # drawn anew
    assert reserve_of(run).left == LEFT
    assert releases(run) == []
    assert not read_summary(run).released
    capsys.readouterr()
    assert main(["predict", str(run), *out]) == 2
    told = " ".join(capsys.readouterr().err.split())
    assert (
        f"put by for predictions of 300 records (exchange.noise.predictions), {LEFT} are left, and {TESTS} are to be"
        in told
    )
    assert "--not-covered" in told
    assert not (tmp_path / "scores.csv").exists()
    assert reserve_of(run).left == LEFT
    assert main(["predict", str(run), *out, "--not-covered"]) == 0
    assert "ended there" in " ".join(capsys.readouterr().err.split())
    assert reserve_of(run).left == LEFT
    (kept,) = releases(run)
    assert kept.records == TESTS
    # A run that has finished is resumed by leaving it as it is; nothing comes back.
    run_experiment(config, run, resume=True)
    assert reserve_of(run).left == LEFT


def test_over_a_network_every_party_counts_and_refuses_before_it_meets_anybody(tmp_path: Path) -> None:
    config = config_of(tmp_path, *PUT_BY)
    together(lambda name: run_party(config, name, tmp_path / name))
    told = predicted(config, tmp_path)
    predicted(config, tmp_path)
    assert any(f"{TESTS} records with noise of σ" in line and "171 of 300 are left" in line for line in told["lab"])
    for name in PARTIES:
        assert reserve_of(tmp_path / name).left == LEFT
        assert releases(tmp_path / name) == []
        with pytest.raises(PrivacyError, match=f"{LEFT} are left, and {TESTS} are to be scored; nothing was sent"):
            service_of(config, name, tmp_path, [])
    # Answers on request have none of that noise.
    with pytest.raises(PrivacyError, match=r"answers on request have none of it.*--not-covered"):
        prepare_service(tmp_path / "lab", "lab", ServeSettings())
    # Whoever lost the count does not begin anew.
    (tmp_path / "lab" / RESERVE_FILE).unlink()
    with pytest.raises(CheckpointError, match="how many predictions the run's noise still covers"):
        service_of(config, "lab", tmp_path, [])
    # A party that is started again once it has a model puts nothing by anew.
    run_party(config, "lab", tmp_path / "lab")
    assert not (tmp_path / "lab" / RESERVE_FILE).exists()


def test_what_was_used_is_used_whoever_is_killed_when(tmp_path: Path) -> None:
    keep_reserve(tmp_path, Reserve(records=10, sigma=1.0, clip=1.0))
    after = AfterTraining(tmp_path, [Release("parts of logits", ("lab",), ("bank",), 4)], reserve_of(tmp_path))
    for _ in range(3):  # links that break: the noise is repeated to the bit
        after.begin()
    assert reserve_of(tmp_path).left == 6
    keep_reserve(tmp_path, Reserve(records=10, sigma=1.0, clip=1.0))  # a run that is ended once more
    assert reserve_of(tmp_path).left == 6
    assert use_reserve(tmp_path, 7) is None
    assert reserve_of(tmp_path).left == 6
    left = use_reserve(tmp_path, 6)
    assert left is not None
    assert left.left == 0
    # Between the check and the first message another prediction took it.
    late = AfterTraining(tmp_path, after.released, Reserve(records=10, sigma=1.0, clip=1.0))
    late.check()
    with pytest.raises(PrivacyError, match="0 are left, and 4 are to be scored"):
        late.begin()


def test_the_last_of_what_was_put_by_may_be_used(tmp_path: Path) -> None:
    keep_reserve(tmp_path, Reserve(records=4, sigma=1.0, clip=1.0))
    after = AfterTraining(tmp_path, [Release("parts of logits", ("lab",), ("bank",), 4)], reserve_of(tmp_path))
    after.check()
    after.begin()
    assert reserve_of(tmp_path).left == 0


def test_what_was_put_by_covers_parts_of_logits_and_not_what_else_crosses(tmp_path: Path) -> None:
    keep_reserve(tmp_path, Reserve(records=10, sigma=1.0, clip=1.0))
    parts, scores = (
        Release("parts of logits", ("lab",), ("bank",), 4),
        Release("published scores", ("bank",), ("lab",), 4),
    )
    AfterTraining(tmp_path, [parts, scores], reserve_of(tmp_path)).begin()
    assert reserve_of(tmp_path).left == 6
    assert [one.what for one in releases(tmp_path)] == ["published scores"]


@pytest.mark.parametrize("damage", [{"used": 11}, {"used": -1}, {"records": 0}, {"sigma": 0.0}, {"clip": 0.0}])
def test_a_count_that_nobody_can_have_written_covers_nothing(tmp_path: Path, damage: dict[str, float]) -> None:
    kept = {"records": 10, "sigma": 1.0, "clip": 1.0, "used": 10}
    (tmp_path / RESERVE_FILE).write_text(json.dumps(kept))
    assert reserve_of(tmp_path).left == 0
    (tmp_path / RESERVE_FILE).write_text(json.dumps({**kept, **damage}))
    with pytest.raises(CheckpointError, match="restore its latest version"):
        reserve_of(tmp_path)

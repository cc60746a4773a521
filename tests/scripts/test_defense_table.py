"""The table of defenses: a quick run writes all of it, and the page that is committed misses no hook."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy import stats
from sklearn.linear_model import LogisticRegression

from scripts.reproduce.defense_table import other_labels, study
from scripts.reproduce.defense_table.__main__ import main
from scripts.reproduce.defense_table.page import MADE_WITHOUT, made_without
from scripts.reproduce.defense_table.study import (
    ALONE,
    CONVERGED_DEFENSES,
    LINEAR_ONLY,
    ONE_WAY,
    SILENT,
    Canaried,
    Promise,
    Row,
    Study,
    label_attacks,
    promise_of,
    train_alone,
)
from scripts.reproduce.defense_table.verdicts import SLACK, all_claims, gain_interval, holds_late, kept_share
from scripts.reproduce.shared.claims import mean
from splitvfl.app.records import load_data
from splitvfl.config.registry import built_in
from splitvfl.config.sections import parse_config, parse_defenses
from splitvfl.leakage.canaries import CanaryLeak
from splitvfl.leakage.message_audit import AUDITORS
from splitvfl.metrics import leak_auc
from splitvfl.report.summary import AttackResult, PartyResult, RunSummary

LABEL_ATTACKS = sorted(
    name
    for name, attack in built_in("attacks").items()
    if name not in LINEAR_ONLY and getattr(attack, "target", "labels") == "labels"
)
# Whether own columns were judged is asked here, not how well they predict.
pytestmark = pytest.mark.usefixtures("few_rounds")

PRICES = "| choice | test AUC"
LEAKS = "| defense |"


def table_under(page: str, start: str) -> list[list[str]]:
    """Return the cells of the page's table that starts so, without the line of dashes."""
    lines = page[page.index(start) :].split("\n\n")[0].splitlines()
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in [lines[0], *lines[2:]]]


@pytest.fixture
def committed(checkout: Path) -> str:
    return (checkout / "docs" / "results" / "defenses.md").read_text(encoding="utf-8")


def test_the_page_says_which_hooks_it_was_made_without(committed: str, monkeypatch: pytest.MonkeyPatch) -> None:
    headings, *rows = table_under(committed, LEAKS)
    made_with = {*headings, *(row[0].strip("`").partition("(")[0] for row in rows)}

    assert set(AUDITORS) <= made_with
    assert [row[0].strip("`") for row in rows] == list(study.DEFENSES)
    assert MADE_WITHOUT in committed.splitlines()
    missing = re.findall(r"`(.+?)`", made_without(committed))
    assert missing == sorted((built_in("attacks").keys() | built_in("defenses").keys()) - made_with)
    # As it was when the runs were made.
    assert made_with >= {"norm", "mixture", "model-completion", "sumkl", "gaussian-targets", "top-k"}
    assert LINEAR_ONLY | {"gaussian-ir", "rounding", "least-squares", "gradient-inversion"} <= set(missing)

    monkeypatch.setattr(
        "scripts.reproduce.defense_table.page.built_in", lambda kind: {"norm": None, f"new-{kind}": None}
    )
    assert made_without(committed).startswith("- Made without `new-attacks`, `new-defenses`:")


def test_what_costs_nothing_comes_first_and_has_the_same_columns(committed: str) -> None:
    headings, *rows = table_under(committed, PRICES)

    names = [row[0].strip("`") for row in rows]
    assert names == [ALONE, *SILENT, *study.DEFENSES]
    assert all(len(row) == len(headings) for row in rows)


def test_the_box_names_every_defense_whose_detection_error_does_not_hold_and_no_other(committed: str) -> None:
    """By the table alone: the box is written from the same figures, and nobody may edit one of them only."""
    headings, *rows = table_under(committed, PRICES)
    told = [row[headings.index("detection error late (promised)")] for row in rows]
    box = " ".join(line.removeprefix(">").strip() for line in committed.splitlines() if line.startswith(">"))
    sentence = " ".join(re.findall(r"late in these runs (.*?)(?:;|, where)", box))

    for row, cell in zip(rows, told, strict=True):
        if "per message" in cell:
            late, promised = float(cell.split()[0]), float(cell.split("(")[1].split()[0])
            name = row[0].strip("`").partition("(")[0]
            assert (f"`{name}` {cell.split()[0]}" in sentence) is (late < promised - SLACK)


def test_the_page_tells_of_every_attack_that_is_ahead_of_the_auditor(committed: str) -> None:
    headings, *rows = table_under(committed, PRICES)
    totals = {row[0]: float(row[headings.index("total")].split()[0]) for row in rows if "±" in row[4]}
    headings, *rows = table_under(committed, LEAKS)
    readers = [name for name in headings[1:] if not name.startswith("component") and name != "model-completion"]
    best = {row[0]: max(float(part) for name in readers for part in _cell(row, headings, name)) for row in rows}

    # The tables are rounded to three digits, each.
    assert (
        all(best[label] <= totals[label] + 0.011 for label in totals) or "The auditor's total is too low" in committed
    )


def _cell(row: list[str], headings: list[str], name: str) -> list[str]:
    return row[headings.index(name)].split(" / ")


def test_every_label_attack_of_the_registry_is_run() -> None:
    assert built_in("attacks").keys() | built_in("defenses").keys() >= LINEAR_ONLY
    assert sorted(label_attacks("every-step") + label_attacks("after-training")) == LABEL_ATTACKS


def test_quick_run_writes_results_and_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    chosen = ("none", "randomised-response(epsilon=1.5)")
    monkeypatch.setattr(study, "DEFENSES", chosen)

    assert main(["--quick", "--out", str(tmp_path / "out"), "--write", str(tmp_path / "page.md")]) == 0

    written = json.loads((tmp_path / "out" / "results.json").read_text())["claims"]
    # Of the auditor, four; a promised AUC; two detection errors to convergence; what hides; two gains.
    assert len(written) == 4 + 1 + 2 + 1 + 2
    for claim in written:
        assert set(claim) == {"claim", "published", "ours", "interval", "seeds", "verdict", "why"}
        assert -1.0 <= claim["ours"] <= 1.0
    page = (tmp_path / "page.md").read_text(encoding="utf-8")
    cells = json.loads((tmp_path / "out" / "results.json").read_text())["cells"]
    assert len(cells) == len(list((tmp_path / "out" / "runs").iterdir()))
    assert f"- {len(cells)} cells, runs that are kept with settings, seed and code: " in page
    headings, *rows = table_under(page, LEAKS)
    assert [row[0] for row in rows] == [f"`{label}`" for label in chosen]
    assert all(len(row) == len(headings) for row in rows)
    blank = {heading for row in rows for heading, cell in zip(headings, row, strict=True) if "–" in cell}
    # What is fitted when an epoch is over is not after one.
    assert blank <= {"auditor-ratio"}, "every attack has figures"
    assert [row[0].strip("`") for row in table_under(page, PRICES)[1:]] == [ALONE, *SILENT, *chosen]
    assert not set("{}") & set(page), "every name in the template is filled in"


def test_other_labels_are_a_section_of_their_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(other_labels, "DEFENSES", ("none", "sumkl(detection_error=0.4)"))
    page = tmp_path / "page.md"
    page.write_text(f"# Before\n\n{other_labels.HEADING}\n\nearlier section\n", encoding="utf-8")

    assert main(["--quick", "--other-labels", "--out", str(tmp_path / "out"), "--write", str(page)]) == 0

    text = page.read_text(encoding="utf-8")
    assert text.count("as the larger of two such figures, which every cell is") == len(other_labels.SETS)
    assert text.startswith(f"# Before\n\n{other_labels.HEADING}\n")
    assert "earlier section" not in text
    for labels in other_labels.SETS:
        own = text[text.index(f"### {labels.title}") :]
        headings, *rows = table_under(own, LEAKS)
        assert [row[0] for row in rows] == ["`none`"]
        assert {"norm", "direction", "auditor", "model-completion"} <= set(headings)
        assert "- `sumkl(detection_error=0.4)`: defense sumkl needs binary labels" in own
    assert "- mixture: " in text
    claims = json.loads((tmp_path / "out" / "results.json").read_text())["claims"]
    assert [claim["claim"].partition(":")[0] for claim in claims] == [labels.title for labels in other_labels.SETS]
    assert all(-0.5 <= claim["ours"] <= 0.5 for claim in claims)


def test_a_bad_setting_ends_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(study, "DEFENSES", ("top-k(keep=2)",))

    assert main(["--quick", "--out", str(tmp_path / "out")]) == 2

    assert "keep must lie in (0, 1]" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def attack(per_step: float | None, accumulated: float | None, *, by_messages: bool = True) -> AttackResult:
    return AttackResult(per_step, per_step, per_step, accumulated, accumulated, 1, 0, by_messages=by_messages)


def row(
    label: str, test: float, *runs: dict[str, AttackResult], promise: Promise | None = None, late: float = 0.4
) -> Row:
    return Row(label, [summary(test, attacks, late) for attacks in runs], promise=promise)


def summary(
    test: float, attacks: dict[str, AttackResult], late: float = 0.4, canaries: dict[str, CanaryLeak] | None = None
) -> RunSummary:
    party = PartyResult(
        attacks=attacks,
        total=0.9,
        own_columns_auc=0.7,
        late_detection_error=late,
        detection_error=late,
        canaries=canaries or {},
    )
    return RunSummary(
        name="digits-8",
        data="digits",
        task="binary",
        model="mlp",
        defenses=[],
        seed=0,
        epochs=1,
        steps=1,
        batch_size=1,
        metric="auc",
        test_metric=test,
        test_loss=0.1,
        step_ms=1.0,
        known_positives=1,
        parties={"telecom": party},
    )


def test_the_worst_figure_is_the_largest_mean_over_seeds_but_for_the_prediction() -> None:
    # Norm has the largest single figure, direction the largest mean.
    columns = attack(0.95, 0.95, by_messages=False)
    found = row(
        "x",
        0.9,
        {
            "norm": attack(0.99, 0.5),
            "direction": attack(0.6, 0.8),
            "sign": attack(None, None),
            "readout": attack(1, 1),
            "component": columns,
        },
        {"norm": attack(0.51, 0.5), "direction": attack(0.6, 0.9), "sign": attack(None, None), "component": columns},
    )

    assert found.worst == ("direction, accumulated", [0.8, 0.9])
    assert found.per_step("norm") == [0.99, 0.51]
    assert all(math.isnan(value) for value in found.per_step("sign"))
    assert found.per_step("residue-solving") == []
    assert found.known == [0.95, 0.95]


@pytest.mark.parametrize(("figure", "verdict"), [(0.905, "reproduces"), (0.92, "does not")])
def test_the_lead_over_the_auditor_is_of_means_and_of_other_attacks(figure: float, verdict: str) -> None:
    own = {"auditor-ratio": attack(0.99, 0.99), "component": attack(0.99, 0.99, by_messages=False)}
    found = row("none", 0.9, own | {"readout": attack(figure, 0.6)}, own | {"readout": attack(figure, 0.99)})

    by, leads = found.ahead

    assert by == "readout, per step"
    assert leads == pytest.approx([figure - 0.9] * 2)
    claim = next(claim for claim in all_claims(Study([found])) if "ahead of the auditor" in claim.claim)
    assert claim.verdict == verdict


@pytest.mark.parametrize(("late", "holds"), [(0.395, True), (0.38, False)])
def test_a_detection_error_that_is_set_is_judged_late_in_the_run(late: float, holds: bool) -> None:
    found = row("x", 0.9, {"norm": attack(0.6, 0.6)}, promise=Promise(0.4, "message"), late=late)

    assert holds_late(found) is holds
    claim = next(claim for claim in all_claims(Study([found])) if "detection error" in claim.claim)
    assert claim.verdict == ("reproduces" if holds else "does not")
    assert claim.ours == late
    over_the_run = row("x", 0.9, {"norm": attack(0.6, 0.6)}, promise=Promise(0.4, "run"), late=late)
    assert holds_late(over_the_run), "it is judged by canaries"


def test_the_interval_over_canaries_is_that_of_a_mean_of_the_best_of_three_attacks() -> None:
    """The best by mean, not the best of each run; the error of a mean of n is √n smaller; 95 % for three at once."""
    runs = []
    for number, auc in enumerate((0.55, 0.6, 0.65, 0.6)):
        leaks = {
            "auditor-linear": CanaryLeak(auc, auc - 0.06, auc + 0.06, 100, 100),
            "auditor-ratio": CanaryLeak(0.9 - 0.2 * number, 0.3, 0.9, 100, 100),  # the best of two of the runs
            "norm": CanaryLeak(0.9, 0.8, 1.0, 100, 100),  # none of the auditor's
        }
        runs.append(summary(0.9, {}, canaries=leaks))
    found = Canaried.of(runs)

    assert found is not None
    assert found.auc == pytest.approx(0.6)
    assert found.error == pytest.approx(0.06 / float(stats.norm.ppf(0.975)) / 2.0)
    half = float(stats.norm.ppf(1.0 - 0.025 / 3.0)) * found.error
    assert found.interval() == pytest.approx((0.6 - half, 0.6 + half))
    assert found.interval(5)[0] < 0.6 - half
    assert Canaried.of([summary(0.9, {})]) is None


@pytest.mark.parametrize(
    ("settings", "auc"),
    [
        ("asymmetric-response(detection_error=0.4)", 0.6),
        ("memoised-response(epsilon=1.5)", 0.8176),
        # Two normal distributions that are told apart with error .4: of means .5067 apart.
        ("gaussian-targets(detection_error=0.4)", float(stats.norm.cdf(0.5067 / math.sqrt(2.0)))),
        ("abstaining-response(detection_error=0.4)", 0.678),
        ("record-gaussian(detection_error=0.4)", None),
    ],
)
def test_promised_aucs_are_those_of_the_channels(settings: str, auc: float | None) -> None:
    ((hook,),) = parse_defenses(settings, folder=Path())
    promise = promise_of(hook)

    assert promise is not None
    assert promise.auc == (None if auc is None else pytest.approx(auc, abs=5e-4))
    assert promise.proven
    assert promise.per == ("message" if auc is None else "run")


def test_noise_along_the_gap_promises_nothing_to_who_knows_the_prediction() -> None:
    for settings in (*CONVERGED_DEFENSES, "sumkl(detection_error=0.4)"):
        ((hook,),) = parse_defenses(settings, folder=Path())
        assert promise_of(hook) == Promise(0.4, "message", proven=False)
    ((isotropic,),) = parse_defenses("isotropic(ratio=1)", folder=Path())
    assert promise_of(isotropic) is None


def test_gains_are_corrected_for_their_number() -> None:
    gains = [0.01, 0.03, 0.02, 0.04]
    low, high = gain_interval(gains, 10)
    half = stats.t.ppf(1.0 - 0.0025, 3) * np.std(gains, ddof=1) / 2.0

    assert (low, high) == pytest.approx((0.025 - half, 0.025 + half))
    study = Study([row("none", 0.9, *[{"norm": attack(0.6, 0.6)}] * 3)], {ALONE: [0.7] * 3, ONE_WAY: [0.8, 0.8, 0.81]})
    claim = next(claim for claim in all_claims(study) if "nothing is sent back" in claim.claim)
    assert claim.ours == pytest.approx(mean([0.1, 0.1, 0.09]))
    assert claim.verdict == "reproduces"


def test_the_share_that_is_kept() -> None:
    assert kept_share([0.8, 0.9], [0.95], [0.75]) == pytest.approx(0.5)
    assert kept_share([0.7], [0.95], [0.75]) < 0.0
    assert math.isnan(kept_share([0.7], [0.7], [0.75]))


def test_the_label_party_alone_is_a_logistic_regression_on_its_own_columns() -> None:
    active = load_data(parse_config(study.EXPERIMENT, source="x")).active
    train, test = active.train, active.test
    assert train.labels is not None
    assert test.labels is not None
    reference = LogisticRegression(max_iter=2000).fit(train.columns.numeric.numpy(), train.labels.numpy())
    scores = torch.from_numpy(reference.decision_function(test.columns.numeric.numpy()))

    found = train_alone(epochs=20, seed=0)["test_auc"]

    # Not regularised, and stopped before it has settled.
    assert found == pytest.approx(leak_auc(scores, test.labels), abs=0.02)

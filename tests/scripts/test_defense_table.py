"""The table of defenses: a quick run writes all of it, and the page that is committed misses no hook."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import torch
from scipy import stats
from sklearn.linear_model import LogisticRegression

from scripts.reproduce.defense_table import other_labels, plans, runs
from scripts.reproduce.defense_table.__main__ import PARTS, at_hand, main, settings_table
from scripts.reproduce.defense_table.arrangements import ARRANGEMENTS, CREDIT, DIGITS, shortened
from scripts.reproduce.defense_table.page import (
    MADE_WITHOUT,
    _about_auditor,
    _about_promises,
    _told_apart,
    _too_much,
    _unread,
    cost_table,
    made_without,
)
from scripts.reproduce.defense_table.plans import (
    ALONE,
    CONVERGED_DEFENSES,
    EPSILON,
    LINEAR_ONLY,
    SILENT,
    Choice,
    label_attacks,
    tried_of,
)
from scripts.reproduce.defense_table.runs import Sample, bytes_of_step, recorded
from scripts.reproduce.defense_table.study import Canaried, Promise, Row, Study, promise_of
from scripts.reproduce.defense_table.verdicts import (
    SLACK,
    against_bound,
    all_claims,
    bounds,
    gain_interval,
    gains_of,
    holds_auditor,
    holds_late,
    late_doubt,
)
from scripts.reproduce.shared.claims import Claim, mean
from scripts.reproduce.shared.settings import Settings
from splitvfl.app.records import load_data
from splitvfl.config.registry import built_in
from splitvfl.config.sections import parse_config, parse_defenses
from splitvfl.data.columns import Columns, PartyData, Records, VerticalData
from splitvfl.data.sets import DATA_FOLDER
from splitvfl.leakage.canaries import CanaryLeak
from splitvfl.leakage.leak_summary import LeakSummary
from splitvfl.leakage.message_audit import AUDITORS
from splitvfl.metrics import leak_auc
from splitvfl.report.party_result import PartyResult
from splitvfl.report.summary import RunSummary
from splitvfl.report.summary_file import written

LABEL_ATTACKS = sorted(
    name
    for name, attack in built_in("attacks").items()
    if name not in LINEAR_ONLY and getattr(attack, "target", "labels") == "labels"
)
# Whether own columns were judged is asked here, not how well they predict.
pytestmark = pytest.mark.usefixtures("few_rounds")

PRICES = "| choice | test AUC"
CHOICES = "| choice | "
LEAKS = "| defense | combined |"
COSTS = "| defense | ms without |"


def table_under(page: str, start: str) -> list[list[str]]:
    """Return the cells of the page's first table that starts so, without the line of dashes."""
    lines = page[page.index(start) :].split("\n\n")[0].splitlines()
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in [lines[0], *lines[2:]]]


def section(page: str, title: str) -> str:
    """Return the text of a page's section, or nothing."""
    return page.partition(f"\n## {title}\n")[2].partition("\n## ")[0]


@pytest.fixture
def committed(checkout: Path) -> str:
    return (checkout / "docs" / "results" / "defenses.md").read_text(encoding="utf-8")


@pytest.fixture(params=ARRANGEMENTS, ids=lambda arrangement: arrangement.key)
def of_set(request: pytest.FixtureRequest, committed: str) -> str:
    """The committed page's section on a data set."""
    return section(committed, request.param.title)


def test_the_page_says_which_hooks_it_was_made_without(committed: str, monkeypatch: pytest.MonkeyPatch) -> None:
    headings, *rows = table_under(committed, LEAKS)
    made_with = {*headings, *(row[0].strip("`").partition("(")[0] for row in rows)}

    assert set(AUDITORS) <= made_with
    assert [row[0].strip("`") for row in rows] == list(plans.DEFENSES)
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


def test_what_the_text_says_of_attacks_is_so(committed: str) -> None:
    told = " ".join(committed.split())

    assert f"*{', '.join(sorted(LINEAR_ONLY))}* are for linear models" in told
    answers = np.exp(EPSILON) / (1.0 + np.exp(EPSILON))
    assert f"ε = {EPSILON} has an AUC of e^ε / (1 + e^ε) = {answers:.3f}".replace("0.818", ".818") in told
    for arrangement in ARRANGEMENTS:
        headings, *_ = table_under(section(committed, arrangement.title), LEAKS)
        assert not set(headings) & set(arrangement.left_out)
        assert set(label_attacks("every-step")) - set(arrangement.left_out) <= set(headings)
        assert all(f"Not run: *{name}*: " in section(committed, arrangement.title) for name in arrangement.left_out)


def test_what_costs_nothing_comes_first_and_has_the_same_columns(of_set: str) -> None:
    headings, *rows = table_under(of_set, PRICES)

    names = [row[0].strip("`") for row in rows]
    assert names == [ALONE, *SILENT, *plans.DEFENSES]
    assert all(len(row) == len(headings) for row in rows)


def test_shares_kept_are_those_of_the_figures_beside_them(of_set: str) -> None:
    """(defended − no message) / (undefended − no message), or the plain difference, by the rounded figures."""
    headings, *rows = table_under(of_set, PRICES)
    sending, private, kept = (headings.index(name) for name in ("test AUC, sending top", "private top", "share kept"))
    (nothing,) = (float(row[private].split()[0]) for row in rows if row[kept].endswith("no message"))
    undefended = {
        top: float(next(row for row in rows if row[0] == "`none`")[top].split()[0]) for top in (sending, private)
    }

    told = [
        (row[top], part, undefended[top])
        for row in rows
        for top, part in zip((sending, private), row[kept].split(" / "), strict=True)
    ]
    judged = [
        (float(figure.split()[0]) - nothing, re.split(r" [±(]|\\", part.replace("−", "-"))[0], most - nothing)
        for figure, part, most in told
        if part[0] in "+−.0123456789"
    ]
    assert len(judged) == 2 * len(plans.DEFENSES) + len(SILENT)
    for difference, part, most in judged:
        if "%" in part:
            # Three figures of three digits each: half a thousandth of each, and half a per cent of the share.
            share = float(part.removesuffix(" %").replace(" ", "")) / 100.0
            assert abs(share * most - difference) <= 0.001 + abs(share) * 0.001 + 0.005 * most + 1e-9
        else:
            assert float(part) == pytest.approx(difference, abs=0.0016)


def test_what_was_chosen_is_the_best_of_its_row(of_set: str) -> None:
    text = of_set.partition("### Chosen settings")[2]
    defended = table_under(text, CHOICES)
    silent = table_under(text[text.index("\n\n", text.index(CHOICES)) :], CHOICES)

    assert [row[0].strip("`") for row in (*silent[1:], *defended[1:])] == [ALONE, *SILENT, *plans.DEFENSES]
    for row in (*silent[1:], *defended[1:]):
        (bold,) = [cell for cell in row[1:] if cell.startswith("**")]
        assert bold.strip("*") == max(cell.strip("*") for cell in row[1:])
        assert len(row) == 1 + 3 * 2


def test_the_box_names_every_defense_whose_detection_error_does_not_hold_and_no_other(committed: str) -> None:
    """By the table and by how far it is in doubt: nobody may edit one of them only."""
    for arrangement in ARRANGEMENTS:
        headings, *rows = table_under(section(committed, arrangement.title), PRICES)
        told = {row[0].strip("`"): row[headings.index("detection error late (promised)")] for row in rows}
        opening = " ".join(committed.partition(f"**{arrangement.title}.**")[2].partition("\n**")[0].split())
        box = " ".join(re.findall(r"late in the run (.*?), where", opening.replace("> ", "")))
        judged = {label: cell for label, cell in told.items() if "per message" in cell}

        assert len(judged) == 4
        for label, cell in judged.items():
            late, promised = float(cell.split()[0]), float(cell.split("(")[1].split()[0])
            name = label.partition("(")[0]
            said = re.search(rf"`{name}` {re.escape(cell.split()[0])} ± (\.\d+)( \(does not hold\))?", opening)
            assert said is not None
            fails = late < promised - SLACK - float(said[1])
            found = re.search(
                rf"Detection error of one late message.*?`{name}` [.\d]+ ± [.\d]+( \(does not hold\))?", opening
            )
            assert found is not None
            assert (found[1] is not None) is fails
            assert (f"`{name}` {cell.split()[0]}" in box) is fails


def test_the_page_tells_of_every_attack_that_is_ahead_of_the_auditor(of_set: str, committed: str) -> None:
    headings, *rows = table_under(of_set, PRICES)
    totals = {row[0]: float(row[headings.index("total")].split()[0]) for row in rows if row[4] != "nothing is sent"}
    headings, *rows = table_under(of_set, LEAKS)
    readers = [name for name in headings[1:] if not name.startswith("component") and name != "model-completion"]
    best = {row[0]: max(float(part) for name in readers for part in _cell(row, headings, name)) for row in rows}

    # The tables are rounded to three digits, each.
    assert (
        all(best[label] <= totals[label] + 0.011 for label in totals) or "The auditor's total is too low" in committed
    )


def _cell(row: list[str], headings: list[str], name: str) -> list[str]:
    # "(4 of 5 seeds)" behind a mean: the others have no figure.
    return [part.partition(" (")[0] for part in row[headings.index(name)].split(" / ") if part != "–"]


def test_what_is_said_of_bytes_is_what_the_table_has(committed: str) -> None:
    costs = section(committed, "Milliseconds and bytes")
    for arrangement in ARRANGEMENTS:
        part = costs.partition(f"**{arrangement.title}**")[2]
        headings, *rows = table_under(part, COSTS)
        crossing = {tuple(row[headings.index("bytes down") :]) for row in rows}
        assert [row[0].strip("`") for row in rows] == [*plans.DEFENSES, plans.PRIVATE]
        assert part.partition("In a one-way")[0].count("No defense changes what crosses by a byte") == (
            len(crossing) == 1
        )
        for row in rows:
            less, more = float(row[1]), float(row[2])
            # Of medians over rounds and over all steps: they need not agree, but in the order of size.
            assert 0.1 < less < more + 1.0 < 100.0


def test_every_label_attack_of_the_registry_is_run() -> None:
    assert built_in("attacks").keys() | built_in("defenses").keys() >= LINEAR_ONLY
    assert sorted(label_attacks("every-step") + label_attacks("after-training")) == LABEL_ATTACKS


@pytest.mark.slow(reason="the quick run of every part of the page")
def test_quick_run_writes_results_and_page(one_code: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    chosen = ("none", "randomised-response(epsilon=1.5)")
    monkeypatch.setattr(plans, "DEFENSES", chosen)
    monkeypatch.setattr(other_labels, "DEFENSES", ("none", "sumkl(detection_error=0.4)"))
    monkeypatch.setenv(DATA_FOLDER, str(tmp_path))  # no file is needed

    assert main(["--quick", "--out", str(tmp_path / "out")]) == 0

    results = json.loads((tmp_path / "out" / "results.json").read_text())
    # On each set of the auditor, two; a promised AUC; what hides; four gains. To convergence four. Of other labels two.
    assert len(results["claims"]) == 2 * (2 + 1 + 1 + 4) + 4 + 2
    for claim in results["claims"]:
        assert set(claim) == {"claim", "published", "ours", "interval", "seeds", "verdict", "why"}
        assert -1.0 <= claim["ours"] <= 1.0
    page = (tmp_path / "out" / "defenses.md").read_text(encoding="utf-8")
    assert {cell["part"] for cell in results["cells"]} == set(PARTS)
    assert len(results["cells"]) == len(list((tmp_path / "out" / "jobs").iterdir()))
    assert f"- {len(results['cells'])} cells, runs that are kept with settings, seed and code: " in page
    assert "- **A quick run on little data**" in page
    for arrangement in map(shortened, ARRANGEMENTS):
        own = section(page, arrangement.title)
        headings, *rows = table_under(own, LEAKS)
        assert [row[0] for row in rows] == [f"`{label}`" for label in chosen]
        assert all(len(row) == len(headings) for row in rows)
        blank = {heading for row in rows for heading, cell in zip(headings, row, strict=True) if "–" in cell}
        # What is fitted when an epoch is over is not after one.
        assert blank <= {"auditor-ratio"}, "every attack has figures"
        assert [row[0].strip("`") for row in table_under(own, PRICES)[1:]] == [ALONE, *SILENT, *chosen]
    assert not set("{}") & set(page), "every name in the template is filled in"
    other = section(page, other_labels.TITLE)
    assert other.count("as the larger of two such figures, which every cell is") == len(other_labels.SETS)
    for labels in other_labels.SETS:
        own = other[other.index(f"### {labels.title}") :]
        headings, *rows = table_under(own, "| defense |")
        assert [row[0] for row in rows] == ["`none`"]
        assert {"norm", "direction", "auditor", "model-completion"} <= set(headings)
        assert "- `sumkl(detection_error=0.4)`: defense sumkl needs binary labels" in own
    assert "- mixture: " in other


def test_a_set_whose_file_is_not_there_is_missing_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(DATA_FOLDER, str(tmp_path))
    settings = Settings(out=tmp_path, say=lambda line: None)

    assert at_hand(settings) == [DIGITS]
    assert settings.missing == {CREDIT.title: "give_me_some_credit.parquet"}
    assert PARTS[CREDIT.key](settings) == []
    assert CREDIT.key not in settings_table(settings)


def test_a_bad_setting_ends_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(plans, "DEFENSES", ("top-k(keep=2)",))

    assert main(["--quick", "--out", str(tmp_path / "out")]) == 2

    assert "keep must lie in (0, 1]" in capsys.readouterr().err
    assert not (tmp_path / "out" / "results.json").exists()


@pytest.mark.parametrize(
    ("tried", "chosen"),
    [
        ({(5, 0.1): 0.6, (10, 0.1): 0.8, (5, 0.2): 0.7, (10, 0.2): 0.79}, (10, 0.1)),
        # What is level is settled by the shorter run, and then by the smaller rate.
        ({(10, 0.1): 0.8, (5, 0.2): 0.8, (5, 0.1): 0.7}, (5, 0.2)),
        ({(5, 0.2): 0.8, (5, 0.1): 0.8}, (5, 0.1)),
    ],
)
def test_the_best_validation_auc_is_chosen(tried: dict[tuple[int, float], float], chosen: tuple[int, float]) -> None:
    found = Choice.of(tried)

    assert (found.epochs, found.rate) == chosen
    assert found.auc == max(tried.values())


def test_results_by_rate_are_a_table_by_epochs_and_rate() -> None:
    found = tried_of({0.1: {"sending": {"5": 0.6, "10": 0.7}}, 0.2: {"aucs": {"5": 0.8}}})

    assert found == {(5, 0.1): 0.6, (10, 0.1): 0.7, (5, 0.2): 0.8}


def numbered(train: int, test: int) -> VerticalData:
    """Two parties whose columns and labels say which record it is: training ones from 0, test ones from 1000."""

    def party(name: str, *, labels: bool) -> PartyData:
        parts = [torch.arange(start, start + count) for start, count in ((0, train), (1000, test))]
        first, second = (
            Records(ids, Columns.of(ids[:, None].float()), ids.float() if labels else None) for ids in parts
        )
        return PartyData(name, ("x",), ("x",), (), first, second)

    return VerticalData("x", "binary", 2, party("bank", labels=True), {"shop": party("shop", labels=False)}, "x")


@pytest.mark.parametrize("trained", [None, 25])
def test_validation_records_are_neither_trained_nor_tested_on_while_settings_are_chosen(trained: int | None) -> None:
    sample = Sample(validation=10, train=trained, test=15)
    choosing, measuring = (sample.of(numbered(40, 20), validating=one) for one in (True, False))

    held_out = set(choosing.active.test.ids.tolist())
    assert len(held_out) == 10
    assert held_out < set(range(40))
    assert not held_out & set(choosing.active.train.ids.tolist())
    assert choosing.active.train.count == (30 if trained is None else 25)
    # Then all are trained on; or, where there are others enough, the same again.
    expected = set(range(40)) if trained is None else set(choosing.active.train.ids.tolist())
    assert set(measuring.active.train.ids.tolist()) == expected
    assert len(set(measuring.active.test.ids.tolist()) & set(range(1000, 1020))) == 15
    for data in (choosing, measuring):
        for part in ("train", "test"):
            active, passive = (getattr(party, part) for party in (data.active, data["shop"]))
            for values in (active.labels, active.columns.numeric[:, 0], passive.ids, passive.columns.numeric[:, 0]):
                assert torch.equal(values.long(), active.ids)


def test_the_bytes_of_a_step_are_those_of_its_messages(tmp_path: Path) -> None:
    """Counted from the file in which the conversation is kept, message by message, and by the tensors' own sizes."""
    config = parse_config(DIGITS.experiment(epochs=1, rate=0.001, more="audit: false"), source="x")
    transcript = recorded(config, Sample(validation=0, test=20).of(load_data(config), validating=False))
    transcript.save(tmp_path / "t")
    kept, places = (tmp_path / "t").read_bytes(), [0]
    while places[-1] < len(kept):
        places.append(places[-1] + 8 + int.from_bytes(kept[places[-1] : places[-1] + 8], "little"))
    messages = [msgspec.msgpack.decode(kept[start + 8 : end]) for start, end in pairwise(places)]
    sizes = [end - start - 8 for start, end in pairwise(places)]

    found = bytes_of_step(transcript, "bank")

    first = [(message[0], size) for message, size in zip(messages, sizes, strict=True) if message[3] == messages[0][3]]
    assert found == {
        "down": sum(size for sender, size in first if sender == "bank"),
        "up": sum(size for sender, size in first if sender == "telecom"),
    }
    # An activation of 128 records and 32 floats, and its gradient, each in an envelope.
    for way in found.values():
        assert 128 * 32 * 4 < way < 128 * 32 * 4 + 100


def test_a_cost_of_nothing_has_no_sign() -> None:
    found = dict.fromkeys(("without_ms", "with_ms"), 2.0) | {"more_ms": -0.001, "more_from": -0.2, "more_to": 0.004}

    assert (
        table_under(cost_table({"x": found | {"bytes": {"down": 1, "up": 5}}}), COSTS)[1][3] == "0.00 (−0.20 to 0.00)"
    )


def test_costs_are_told_with_their_signs() -> None:
    found = {
        "without_ms": 2.0,
        "with_ms": 1.96,
        "more_ms": -0.036,
        "more_from": -0.1,
        "more_to": 0.25,
        "bytes": {"down": 16423, "up": 5},
    }

    assert table_under(cost_table({"max-norm": found}), COSTS)[1] == [
        "`max-norm`", "2.00", "1.96", "−0.04 (−0.10 to +0.25)", "16 423", "5",
    ]  # fmt: skip


def attack(per_step: float | None, accumulated: float | None, *, by_messages: bool = True) -> LeakSummary:
    step, run = (math.nan if value is None else value for value in (per_step, accumulated))
    return LeakSummary(step, step, step, run, run, 1, 0, by_messages=by_messages)


def row(
    label: str, test: float, *runs: dict[str, LeakSummary], promise: Promise | None = None, late: float = 0.4
) -> Row:
    return Row(label, [summary(test, attacks, late) for attacks in runs], promise=promise)


# One record in ten is positive.
rare = replace(attack(0.6, 0.6), positives=1, negatives=9)


def study_of(*rows: Row, silent: dict[str, list[float]] | None = None) -> Study:
    """A study of rows as they are given; without others of one row that sends nothing, as good as a coin."""
    tests = silent or {"wide": [0.5 for _ in rows[0].test_aucs]}
    return Study(DIGITS, rows, tests, {name: Choice(1, 0.1, {(1, 0.1): 0.5}) for name in tests})


def summary(
    test: float, attacks: dict[str, LeakSummary], late: float = 0.4, canaries: dict[str, CanaryLeak] | None = None
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
    found = row("none", 0.9, own | {"readout": attack(figure, 0.6)}, own | {"readout": attack(figure, 0.6)})

    by, leads = found.ahead

    assert by == "readout, per step"
    assert leads == pytest.approx([figure - 0.9] * 2)
    claim = lead_claim(found)
    assert claim.verdict == verdict
    assert ("The auditor's total is too low* where" in " ".join(_unread([found]))) is (verdict == "does not")


def lead_claim(found: Row) -> Claim:
    return next(claim for claim in all_claims(study_of(found)) if "ahead of the auditor" in claim.claim)


def test_that_no_attack_is_ahead_needs_the_whole_interval_of_each() -> None:
    """One attack's mean is far behind, and its interval reaches across; so does every interval that is not there."""
    level, doubtful = attack(0.9, 0.9), [attack(0.7, 0.7), attack(0.95, 0.95), attack(0.8, 0.8)]
    sure = row("x", 0.9, *[{"norm": level}] * 3)
    unsure = row("x", 0.9, *({"norm": level, "sign": one} for one in doubtful))

    assert lead_claim(sure).verdict == "reproduces"
    assert lead_claim(unsure).verdict == "does not"
    assert "not surely below: sign, per step, sign, accumulated" in lead_claim(unsure).why
    assert not _unread([unsure]), "nothing is ahead"
    alone = row("x", 0.9, {"norm": level})
    assert lead_claim(alone).verdict == "does not"
    assert lead_claim(alone).interval is None
    assert not holds_auditor(row("x", 0.9, {}, {}))


def test_an_attack_that_is_ahead_in_the_mean_alone_is_told_with_its_interval() -> None:
    found = row("x", 0.9, *({"norm": attack(figure, 0.5)} for figure in (0.90, 0.99, 0.90)))

    assert lead_claim(found).verdict == "does not"
    (told,) = _unread([found])
    assert "in the mean over seeds, with intervals that do not say it for sure: norm, per step by .030 ± .129" in told


@pytest.mark.parametrize(
    ("auc", "width", "side", "verdict"),
    [(0.5, 0.02, "below", "reproduces"), (0.6, 0.02, "", "does not"), (0.7, 0.02, "above", "does not")],
)
def test_a_bound_over_the_run_is_judged_by_the_whole_interval(
    auc: float, width: float, side: str, verdict: str
) -> None:
    """What is read is exactly the bound where an answer meets it: that shows nothing, and is not called shown."""
    found = canaried("x", [auc] * 4, width, promise=Promise(0.4, "run", 0.6))
    study = study_of(row("none", 0.9, {}, {}), found)

    assert against_bound(found) == side
    claim = next(claim for claim in all_claims(study) if "alike in all else" in claim.claim)
    assert claim.verdict == verdict
    # Three attacks and all bounds of the page.
    half = stats.norm.ppf(1 - 0.025 / 3 / bounds()) * width / stats.norm.ppf(0.975) / 2.0
    assert f"{auc - half:.3f} to {auc + half:.3f} for the {bounds()} bounds".replace("0.", ".") in claim.why
    (said,) = [line for line in _about_promises(study) if line.startswith("Of 1 proven bounds")]
    assert (
        f"exceed {'1 (`x`)' if side == 'above' else 'none'}, lie below {'1 (`x`)' if side == 'below' else 'none'}"
        in said
    )
    assert bool(_too_much(study)) is (side == "above")


def canaried(
    label: str, aucs: Sequence[float], width: float, *, promise: Promise | None = None, test: float = 0.9
) -> Row:
    leaks = [{"auditor-linear": CanaryLeak(auc, auc - width, auc + width, 100, 100)} for auc in aucs]
    attacked = row(label, test, {}, {}, promise=promise)
    return replace(attacked, canary_runs=[summary(test, {}, canaries=leak) for leak in leaks])


def test_the_bounds_of_the_page_are_those_of_its_defenses() -> None:
    # Gaussian targets, three responses that are remembered, and one that is not: on two data sets.
    assert bounds() == 5 * len(ARRANGEMENTS) == 10


@pytest.mark.parametrize(
    ("auc", "losses", "verdict"),
    [
        (0.5, [0.0, 0.001, -0.001], "reproduces"),
        (0.59, [0.0, 0.001, -0.001], "does not"),  # the mean is below .6, and the interval is not
        (0.5, [0.0, 0.0, -0.02], "does not"),  # a mean loss of .007, whose interval reaches beyond .01
    ],
)
def test_what_hides_labels_at_little_cost_does_so_by_whole_intervals(
    auc: float, losses: list[float], verdict: str
) -> None:
    first = replace(row("none", 0.9, *[{}] * 3), canary_runs=())
    found = canaried("x", [auc] * 4, 0.04)
    found = replace(found, runs=[summary(0.9 + loss, {}) for loss in losses])

    claim = next(claim for claim in all_claims(study_of(first, found)) if "keeps the leak beyond" in claim.claim)

    assert claim.verdict == verdict
    assert "both whole intervals" in claim.why


@pytest.mark.parametrize(
    ("figures", "verdict"), [([0.9, 0.901, 0.9], "reproduces"), ([0.88, 0.92, 0.9], "does not"), ([0.9], "does not")]
)
def test_of_other_labels_too_the_whole_interval_has_to_be_below(figures: list[float], verdict: str) -> None:
    runs = [summary(0.9, {"norm": attack(0.5, 0.6), "sign": attack(0.5, figure)}) for figure in figures]
    results = [{"summary": msgspec.json.encode(written(run, {})).decode()} for run in runs]

    (claim,) = other_labels.claims([(other_labels.SETS[0], [(other_labels.Planned("none"), results)])])

    assert claim.verdict == verdict
    assert claim.ours == pytest.approx(np.mean(figures) - 0.9)
    assert claim.seeds == len(figures)
    assert (
        f"of 2 attacks and rows the whole interval of {2 if verdict == 'reproduces' else len(figures) // 3}"
        in claim.why
    )


def test_nothing_is_counted_with_fewer_than_three_seeds() -> None:
    level = {"norm": attack(0.9, 0.9)}

    (one,), (three,) = (_about_auditor(study_of(row("none", 0.9, *[level] * seeds))) for seeds in (1, 3))

    assert one.startswith("With fewer than 3 seeds that were attacked it is not told")
    assert three.startswith("In 1 of 1 rows no attack on messages is ahead")
    gains = gains_of(study_of(row("none", 0.9, level, level), silent={"wide": [0.8, 0.8]}))
    assert _told_apart(gains) == "nothing is told with fewer than 3 seeds."


def test_every_defense_is_attacked_with_seeds_enough_for_an_interval() -> None:
    for arrangement in ARRANGEMENTS:
        assert arrangement.attacked >= 3
        assert arrangement.canary_runs >= 3


def test_a_late_detection_error_is_in_doubt_by_two_standard_errors() -> None:
    """By simulation, of labels that are coin tosses to the attacker: half of two shares of all late records."""
    runs = [replace(run, steps=200, batch_size=50) for run in row("x", 0.9, {"norm": rare}, {"norm": rare}).runs]
    draw = np.random.default_rng(0)
    positives, negatives = 2 * 20 * 50 // 10, 2 * 20 * 50 * 9 // 10
    errors = 0.5 * (draw.binomial(positives, 0.5, 4000) / positives + draw.binomial(negatives, 0.5, 4000) / negatives)

    # A standard deviation of 4000 draws is known within 1.1 %.
    assert late_doubt(Row("x", runs)) == pytest.approx(2.0 * errors.std(), rel=0.05)


def test_a_late_detection_error_is_in_doubt_by_its_seeds_too() -> None:
    """Three seeds that deviate by .04 are in doubt by .1, however many records each of them has."""
    runs = [summary(0.9, {"norm": rare}, late) for late in (0.33, 0.37, 0.41)]
    found = Row("x", [replace(run, steps=10_000, batch_size=1000) for run in runs], promise=Promise(0.4, "message"))

    assert late_doubt(found) == pytest.approx(stats.t.ppf(0.975, 2) * 0.04 / math.sqrt(3))
    assert holds_late(found), "a mean of .37 is not below .39 for sure"
    claim = next(claim for claim in all_claims(study_of(found)) if "detection error" in claim.claim)
    assert (claim.verdict, "cannot be told" in claim.why) == ("does not", True)


@pytest.mark.parametrize(("late", "holds"), [(0.395, True), (0.37, False)])
def test_a_detection_error_that_is_set_is_judged_late_in_the_run(late: float, holds: bool) -> None:
    found = row("x", 0.9, {"norm": rare}, promise=Promise(0.4, "message"), late=late)
    found = replace(found, runs=[replace(run, steps=1000, batch_size=1000) for run in found.runs])

    assert late_doubt(found) == pytest.approx(0.00527, abs=1e-5)
    assert holds_late(found) is holds
    claim = next(claim for claim in all_claims(study_of(found)) if "detection error" in claim.claim)
    # .005 are in doubt: that .395 is not below .390 is not for sure, either.
    assert claim.verdict == "does not"
    assert ("cannot be told" in claim.why) is holds
    assert claim.ours == late
    sure = replace(found, runs=[summary(0.9, {"norm": rare}, 0.41)])
    sure = replace(sure, runs=[replace(run, steps=1000, batch_size=1000) for run in sure.runs])
    claim = next(claim for claim in all_claims(study_of(sure)) if "detection error" in claim.claim)
    assert claim.verdict == "reproduces"
    over_the_run = row("x", 0.9, {"norm": rare}, promise=Promise(0.4, "run"), late=late)
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
    found = study_of(row("none", 0.9, *[{"norm": attack(0.6, 0.6)}] * 3), silent={"wide": [0.8, 0.8, 0.81]})
    claims = [
        claim for claim in all_claims(replace(found, comparisons=10)) if "better test AUC than wide" in claim.claim
    ]
    assert ["private" in claim.claim for claim in claims] == [False, True]
    for claim in claims:
        assert claim.ours == pytest.approx(mean([0.1, 0.1, 0.09]))
        assert claim.verdict == "reproduces"
        half = stats.t.ppf(1.0 - 0.0025, 2) * np.std([0.1, 0.1, 0.09], ddof=1) / math.sqrt(3)
        assert claim.interval == pytest.approx((claim.ours - half, claim.ours + half))


def test_the_share_kept_is_of_what_messages_add_to_the_same_top() -> None:
    """By hand: no message .90, undefended .94, so that .92 keeps a half."""
    found = study_of(row("none", 0.94, {}, {}), silent={"wide": [0.90, 0.90]})

    for private in (False, True):
        half = found.kept([0.92, 0.92], private=private)
        assert half.share == pytest.approx(0.5)
        assert half.difference == pytest.approx(0.02)
        assert half.shown == "50 %"


def test_no_message_is_the_one_way_row_of_the_best_validation_auc() -> None:
    """Neither the label party alone, nor the row that happens to test best."""
    names = {ALONE: 0.9, "narrow": 0.6, "wide": 0.8, "components": 0.7}
    silent = {name: [0.9 if name == "narrow" else 0.5] * 2 for name in names}
    choices = {name: Choice(1, 0.1, {(1, 0.1): auc}) for name, auc in names.items()}
    found = replace(study_of(row("none", 0.7, {}, {}), silent=silent), choices=choices)

    assert found.no_message == "wide"
    assert found.kept([0.6, 0.6], private=True).difference == pytest.approx(0.1)


def test_the_label_party_alone_is_a_logistic_regression_on_its_own_columns() -> None:
    text = DIGITS.experiment(epochs=1, rate=0.01)
    active = load_data(parse_config(text, source="x")).active
    train, test = active.train, active.test
    assert train.labels is not None
    assert test.labels is not None
    reference = LogisticRegression(max_iter=2000).fit(train.columns.numeric.numpy(), train.labels.numpy())
    scores = torch.from_numpy(reference.decision_function(test.columns.numeric.numpy()))

    settings: dict[str, Any] = {"about": {"label": "x"}, "experiment": {"yaml": text}, "sample": DIGITS.records}
    found = runs.alone(**settings, seed=0, epochs=[5, 20], rate=0.01, validating=False)["aucs"]

    assert list(found) == ["5", "20"]
    # Not regularised, and stopped before it has settled.
    assert found["20"] == pytest.approx(leak_auc(scores, test.labels), abs=0.02)

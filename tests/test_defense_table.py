"""The table of defenses: a quick run writes all of it, and the page that is committed misses no hook."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from scripts.reproduce import defense_table
from scripts.reproduce.defense_table import AUDITORS, Row, claims, label_attacks, main
from splitvfl.hooks import crossing_of
from splitvfl.leakage.summary import AttackResult, PartyResult, RunSummary
from splitvfl.registry import ATTACKS, DEFENSES, resolve_attack, resolve_defense

LABEL_DEFENSES = sorted(
    name
    for name in set(DEFENSES) - defense_table.LINEAR_ONLY
    if crossing_of(resolve_defense(name, folder=Path())) in ("gradient", "labels")
)
LABEL_ATTACKS = sorted(
    name
    for name in set(ATTACKS) - defense_table.LINEAR_ONLY
    if getattr(resolve_attack(name, folder=Path()), "target", "labels") == "labels"
)


def first_table(page: str) -> list[list[str]]:
    """Return the cells of the page's first table, without the line of dashes."""
    lines = page[page.index("| defense | test AUC") :].split("\n\n")[0].splitlines()
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in [lines[0], *lines[2:]]]


def test_the_page_has_a_row_for_every_defense_and_a_column_for_every_attack(checkout: Path) -> None:
    headings, *rows = first_table((checkout / "docs" / "results" / "defenses.md").read_text(encoding="utf-8"))

    shown = {row[0].strip("`").partition("(")[0] for row in rows}
    assert shown == {"none", *LABEL_DEFENSES}, "a new defense needs a row in DEFENSES, and the page a new run"
    assert set(LABEL_ATTACKS) | set(AUDITORS) <= set(headings), "a new attack needs a new run of the page"
    assert [row[0].strip("`") for row in rows] == list(defense_table.DEFENSES)


def test_the_committed_page_says_what_its_figures_leave_out(checkout: Path) -> None:
    page = (checkout / "docs" / "results" / "defenses.md").read_text(encoding="utf-8")

    text = defense_table.PAGE.replace("{prediction}", defense_table.PREDICTION)
    box = [line for line in text.splitlines() if line.startswith(">")]
    assert box
    assert "\n".join(box) in page


def test_every_label_attack_of_the_registry_is_run() -> None:
    assert set(ATTACKS) | set(DEFENSES) >= defense_table.LINEAR_ONLY
    assert sorted(label_attacks("every-step") + label_attacks("after-training")) == LABEL_ATTACKS


def test_quick_run_writes_results_and_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(defense_table, "DEFENSES", ("none", "top-k(keep=0.1)", "randomised-response(epsilon=1.5)"))

    assert main(["--quick", "--out", str(tmp_path / "out"), "--write", str(tmp_path / "page.md")]) == 0

    written = json.loads((tmp_path / "out" / "results.json").read_text())["claims"]
    assert len(written) == 2
    for claim in written:
        assert set(claim) == {"claim", "published", "ours", "interval", "seeds", "verdict", "why"}
        assert 0.5 <= claim["ours"] <= 1.0
        assert claim["seeds"] == 1
    headings, *rows = first_table((tmp_path / "page.md").read_text(encoding="utf-8"))
    assert [row[0] for row in rows] == ["`none`", "`top-k(keep=0.1)`", "`randomised-response(epsilon=1.5)`"]
    assert all(len(row) == len(headings) for row in rows)
    blank = {heading for row in rows for heading, cell in zip(headings, row, strict=True) if "–" in cell}
    assert not blank, "every attack has figures"


def test_a_bad_setting_ends_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(defense_table, "DEFENSES", ("none", "top-k(keep=2)"))

    assert main(["--quick", "--out", str(tmp_path / "out")]) == 2

    assert "keep must lie in (0, 1]" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def attack(per_step: float | None, accumulated: float | None) -> AttackResult:
    return AttackResult(per_step, per_step, per_step, accumulated, accumulated, 1, 0)


def row(label: str, test: float, *runs: dict[str, AttackResult]) -> Row:
    return Row(label, [summary(test, attacks) for attacks in runs])


def summary(test: float, attacks: dict[str, AttackResult]) -> RunSummary:
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
        parties={"telecom": PartyResult(attacks=attacks)},
    )


def test_the_worst_figure_is_the_largest_mean_over_seeds_but_for_the_prediction() -> None:
    # Norm has the largest single figure, direction the largest mean.
    found = row(
        "x",
        0.9,
        {"norm": attack(0.99, 0.5), "direction": attack(0.6, 0.8), "sign": attack(None, None), "readout": attack(1, 1)},
        {"norm": attack(0.51, 0.5), "direction": attack(0.6, 0.9), "sign": attack(None, None)},
    )

    assert found.worst == ("direction, accumulated", [0.8, 0.9])
    assert found.per_step("norm") == [0.99, 0.51]
    assert all(math.isnan(value) for value in found.per_step("sign"))
    assert found.per_step("residue-solving") == []


@pytest.mark.parametrize(
    ("leak", "test", "verdict"),
    [(0.59, 0.98, "reproduces"), (0.61, 0.98, "does not"), (0.59, 0.96, "does not")],
)
def test_a_claim_holds_where_labels_are_hidden_and_the_model_is_not_hurt(
    leak: float, test: float, verdict: str
) -> None:
    rows = [row("none", 0.98, {"norm": attack(1.0, 1.0)}), row("x", test, {"norm": attack(leak, 0.5)})]

    (claim,) = claims(rows)

    assert claim.verdict == verdict
    assert claim.ours == leak
    assert "norm, per step" in claim.why

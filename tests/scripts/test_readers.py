"""What each reader finds: the runs, what is made of them, the committed page and the pages that quote it."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from sklearn.linear_model import LinearRegression
from sklearn.metrics import r2_score

from scripts.reproduce.readers import __main__ as command
from scripts.reproduce.readers import arrangements, fields, members, penalties, runs, scores, side_by_side
from scripts.reproduce.readers.arrangements import OF_MESSAGES, OF_SCORES, shortened
from scripts.reproduce.shared.pages import MADE
from scripts.reproduce.shared.settings import Settings
from splitvfl.attacks import GenerativeRegressionAttack
from splitvfl.data.sets import DATA_FOLDER
from splitvfl.hooks import KnownColumns, View

TINY = shortened(OF_MESSAGES[0])
RIDGE = {"name": "ridge", "known_share": 0.2}


# Runs


def test_who_reads_beside_changes_nothing_of_what_is_read() -> None:
    """So that one reader's figure can stand beside those of other runs with its seed."""
    beside = [{"name": "pseudo-client", "known_share": 0.2, "steps": steps} for steps in (1, 2)]
    alone, among = (runs.read(**TINY.settings(attacks, 0)) for attacks in ([RIDGE], [*beside, RIDGE]))

    assert alone["readings"][0] == among["readings"][2]
    assert alone["metric"] == among["metric"]
    assert [one["attack"] for one in among["readings"]] == ["pseudo-client", "pseudo-client-2", "ridge"]
    assert alone["readings"][0]["share"] > 0.05
    assert among["members"] == []


def test_what_readers_of_one_name_are_called_is_what_a_run_calls_them() -> None:
    assert side_by_side.labels(side_by_side.GUESSING) == [
        "pseudo-client",
        "pseudo-client-2",
        "pseudo-client-3",
        "unsplit",
    ]


def test_membership_is_kept_with_its_intervals() -> None:
    (found,) = runs.read(**TINY.settings([{"name": "loss-threshold"}], 0))["members"]

    assert found["low"] < found["auc"] < found["high"]
    assert found["hits"] is None, "a hundred others are too few"


def test_ridge_on_scores_finds_what_is_linear_in_them() -> None:
    """Beside least squares by scikit-learn, of columns that scores and own columns tell but for noise."""
    random = torch.Generator().manual_seed(0)
    own, told = torch.randn(400, 2, generator=random), torch.randn(400, generator=random)
    columns = torch.stack([told + own[:, 0], 0.1 * torch.randn(400, generator=random) - told], dim=1)
    known = torch.tensor([5, 3, *range(100, 150)])
    view = View(
        party="active",
        step=0,
        ids=torch.arange(1000, 1400),
        scores=told,
        columns=own,
        known_columns=KnownColumns(1000 + known, columns[known]),
    )

    found = scores.RidgeOnScores()(view)

    seen = torch.column_stack([own, told]).numpy()
    exact = LinearRegression().fit(seen[known], columns[known].numpy()).predict(seen)
    assert r2_score(exact, found.numpy()) > 0.99
    assert float((found - columns).square().mean()) < 0.05


def test_readers_of_scores_stand_beside_own_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    few = {"ridge": scores.RidgeOnScores(), "network": GenerativeRegressionAttack(known_share=0.05, steps=20)}
    monkeypatch.setattr(scores, "READERS", few)

    found = scores.measure(**shortened(OF_SCORES[0]).settings([], 0))

    assert list(found["shares"]) == ["ridge", "network"]
    assert found["own"] >= 0.0
    assert all(0.0 <= share <= 1.0 for share in found["shares"].values())


# Penalties


def test_a_cell_of_a_penalty_has_what_readers_find_of_draws_and_of_their_means(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(penalties, "EPOCHS", 2)

    plain, drawn = (penalties.measure(**penalties._told(penalties.TRIED[place], 0)) for place in (0, 5))

    assert set(plain["share"]) == set(penalties.READERS)
    assert "nats" not in plain
    assert drawn["averaged"] > drawn["share"]["ridge"]
    assert drawn["nats"] > 0.0


def test_the_bound_follows_from_the_nats_that_are_printed() -> None:
    """Of 8.564 and 8.556 nats, 8.56 on the page, 1 − exp(−2 · 8.56 / 6) is .94235."""
    shares = dict.fromkeys(penalties.READERS, 0.2)
    two = [{"share": shares, "auc": 0.9, "averaged": 0.4, "nats": nats} for nats in (8.564, 8.556)]

    row = penalties.drawn_row(penalties.TRIED[5], two)

    assert row[0] == "`mutual-information-bottleneck`, weight 0.003"
    assert row[-2:] == ("8.56", ".94")
    assert math.isclose(1 - math.exp(-2 * 8.56 / 6), 0.94235, abs_tol=1e-5)
    assert penalties.drawn_row(penalties.TRIED[0], [{"share": shares, "auc": 0.9}])[-3:] == (".900", "–", "–")


# Tables


def test_the_largest_of_a_row_is_bold_and_who_was_not_judged_has_a_dash() -> None:
    reading = [{"attack": "ridge", "share": 0.3}, {"attack": "stacked-ridge", "share": 0.2}]
    row = side_by_side._row(TINY, [{"readings": reading}], side_by_side.KNOWING)

    assert row == (TINY.title, "**.30**", "–", ".20", "–")


def test_runs_in_which_one_who_assumes_less_found_more_are_counted() -> None:
    def run(ridge: float, guess: float) -> dict[str, Any]:
        return {"readings": [{"attack": "ridge", "share": ridge}, {"attack": "pseudo-client-2", "share": guess}]}

    assert side_by_side._counted([[run(0.2, 0.1), run(0.2, 0.3)], [run(0.5, 0.4)]]).startswith("In 1 of the 3 runs ")


def test_a_row_of_membership_has_an_interval_over_records() -> None:
    def found(auc: float, hits: float) -> dict[str, Any]:
        ends = {"hits": hits, "hits_low": hits - 0.01, "hits_high": hits + 0.02, "members": 9, "others": 7}
        return {"auc": auc, "low": auc - 0.05, "high": auc + 0.05, **ends}

    nothing = math.nan  # as null is read from a cell
    both = [{"members": [found(auc, hits), found(0.5, nothing)]} for auc, hits in ((0.52, 0.011), (0.54, 0.013))]
    few = [{"members": [found(0.52, nothing), found(0.5, nothing)]}]

    assert members.row(TINY, both)[1:] == (
        "9 / 7",
        ".53 (.48 to .58; .52 to .54)",
        ".50 (.45 to .55; .50 to .50)",
        ".012 (.002 to .032; .011 to .013)",
    )
    assert members.row(TINY, few)[2:] == (".52 (.47 to .57)", ".50 (.45 to .55)", "–")


def test_numbers_and_categories_have_means_of_their_own() -> None:
    columns = [{"share": share, "categories": kind} for share, kind in ((0.2, False), (0.4, False), (0.1, True))]

    assert fields._cells([{"columns": columns, "evaluated": columns[:1]}]) == [".30", ".10", ".20", "–"]


# The command


def test_the_command_writes_cells_and_a_page(one_code: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(DATA_FOLDER, str(tmp_path))  # which has no data
    monkeypatch.setattr(penalties, "EPOCHS", 1)
    for module, name in ((side_by_side, "OF_MESSAGES"), (scores, "OF_SCORES"), (members, "OF_MEMBERS")):
        monkeypatch.setattr(module, name, getattr(module, name)[:1])
    knowing, guessing, of_scores = (
        dict([*readers.items()][:1]) for readers in (side_by_side.KNOWING, side_by_side.GUESSING, scores.READERS)
    )
    monkeypatch.setattr(side_by_side, "KNOWING", knowing)
    monkeypatch.setattr(side_by_side, "KNOWING_HEADINGS", (side_by_side.DATA, *knowing))
    monkeypatch.setattr(side_by_side, "GUESSING", guessing)
    monkeypatch.setattr(side_by_side, "GUESSING_HEADINGS", (side_by_side.DATA, "`ridge`", *guessing))
    monkeypatch.setattr(scores, "READERS", of_scores)
    monkeypatch.setattr(scores, "READ", ("data", "own columns", *of_scores))

    assert command.main(["--quick", "--out", str(tmp_path)]) == 0

    page = (tmp_path / "readers.md").read_text(encoding="utf-8")
    titles = re.findall(r"^## (.*)$", page, re.MULTILINE)
    assert titles[-1] == MADE
    assert len(titles) == len(command.PARTS) + 1
    assert "A quick run on little data" in page
    assert (tmp_path / "cells" / "readers.jsonl.gz").is_file()
    assert json.loads((tmp_path / "results.json").read_text("utf-8"))["claims"] == []


def test_data_that_are_not_there_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(DATA_FOLDER, str(tmp_path))
    settings = Settings(out=tmp_path, say=lambda line: None)

    chosen = arrangements.at_hand(OF_MESSAGES, settings)

    assert [one.title for one in chosen] == [one.title for one in OF_MESSAGES if not one.sample.file]
    assert "bank marketing, 10-32-8" in settings.missing


# The committed page, and those that quote it


@pytest.fixture(scope="module")
def remade(one_code: None, checkout: Path, tmp_path_factory: pytest.TempPathFactory) -> str:
    """What the command makes of the published cells, without any run."""
    out = tmp_path_factory.mktemp("remade")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Settings, "has", lambda self, title, path: True)
        cells = checkout / "docs" / "results" / "cells" / "readers.jsonl.gz"
        assert command.main(["--out", str(out), "--keep-stale", "--begin-with", str(cells)]) == 0
    return (out / "readers.md").read_text("utf-8")


def test_the_page_is_that_of_the_published_cells_whole(checkout: Path, remade: str) -> None:
    page = (checkout / "docs" / "results" / "readers.md").read_text("utf-8")

    assert remade.partition(f"\n## {MADE}\n")[0] == page.partition(f"\n## {MADE}\n")[0]
    assert "quick run" not in page
    assert "Without these parts" not in page
    assert "**Without rows of" not in page


@pytest.mark.parametrize(
    ("page", "headings"),
    [
        ("reference/penalties.md", [penalties.HEADINGS, penalties.DRAWN_HEADINGS]),
        (
            "what-activations-tell.md",
            [side_by_side.KNOWING_HEADINGS, side_by_side.GUESSING_HEADINGS, fields.READ, members.READ],
        ),
        ("what-scores-tell.md", [scores.READ]),
    ],
)
def test_tables_that_are_quoted_are_those_of_the_page(
    checkout: Path, remade: str, page: str, headings: list[tuple[str, ...]]
) -> None:
    quoting = (checkout / "docs" / page).read_text("utf-8")
    for heading in headings:
        line = f"| {' | '.join(heading)} |\n"
        (table,) = re.findall(rf"{re.escape(line)}(?:\|.*\n)+", remade)
        assert table in quoting, heading

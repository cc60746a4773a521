from __future__ import annotations

from scripts.bench.total import COLUMNS, figures, row


def test_a_run_in_one_process_knows_the_partners_features() -> None:
    """The figures of one epoch on bundled data: the total is the largest of its parts."""
    found = dict(zip(COLUMNS, figures({"name": "breast-cancer"}, 0, epochs=1), strict=True))

    assert found["total"] >= max(found["baseline"], found["joint reader"], found["without features"])
    assert found["baseline"] > 0.98
    assert 0.5 < found["where nothing leaks"] < 0.65
    # Labels in random order: an AUC of 440 records has a standard error of .03.
    assert abs(found["shuffled labels"] - 0.5) < 0.12


def test_a_row_holds_means_over_runs() -> None:
    assert row("a", [(0.5, 0.7), (0.7, 0.7)]) == "| a | 0.600 | 0.700 |"
    assert row("a", [(float("nan"), 0.7)]) == "| a | – | 0.700 |"

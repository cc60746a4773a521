"""One division everywhere: ids, seed and fraction decide which records are tested, and labels do not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
import pytest
from scipy.special import logsumexp
from sklearn.datasets import load_breast_cancer
from sklearn.metrics import roc_auc_score
from sklearn.model_selection import train_test_split

from splitvfl.data.joined_tables import from_tables
from splitvfl.data.load import load
from splitvfl.data.split import split_by_ids
from splitvfl.data.store import open_tables
from tests.tables import ingest, load_party

ROWS = 80
IDS = {
    "numbers": [str(number * 7 - 200) for number in range(ROWS)],
    "texts": [f"k{number}" for number in range(ROWS)],
    "padded and mixed": [f"{number:03d}" if number % 2 else str(number) for number in range(ROWS)],
}


def _frame(ids: list[str]) -> pd.DataFrame:
    random = np.random.default_rng(0)
    return pd.DataFrame({"id": ids, "a": random.normal(size=ROWS), "b": np.arange(ROWS) / 2, "y": np.arange(ROWS) % 2})


def _tested(party: Any) -> set[float]:
    """Return which rows a party tests, by a column that holds their number and is not scaled."""
    return {2 * value for value in party.test.columns.numeric[:, 0].tolist()}


@pytest.mark.parametrize("seed", [0, 5])
@pytest.mark.parametrize("kind", [*IDS, "none"])
def test_one_process_a_party_and_ingest_divide_alike(kind: str, seed: int, tmp_path: Path) -> None:
    frame = _frame(IDS.get(kind, IDS["numbers"]))
    if kind == "none":
        frame = frame.drop(columns="id")
    path = tmp_path / "t.csv"
    frame.to_csv(path, index=False)
    named = {} if kind == "none" else {"id_column": "id"}
    how: dict[str, Any] = {"split_seed": seed, "test_fraction": 0.3, "scale": "none"}
    sides = {"active": "a", "passive": {"lab": "b"}}

    whole = load("table", path=path, label="y", **sides, **how, **named)
    own = load_party(path, name="lab", role="passive", columns=["b"], drop=["a", "y"], **how, **named).data
    ingest(path, out=tmp_path / "tables", label="y", **sides, **how, **named)
    columns = [name for name in ("id",) if name in frame]
    apart = from_tables(
        active=frame[[*columns, "a", "y"]],
        passive={"lab": frame[[*columns, "b"]]},
        label="y",
        id=columns[0] if columns else None,
        **how,
    )

    expected = _tested(own)
    assert 0 < len(expected) < ROWS
    for data in (whole, open_tables(tmp_path / "tables"), apart):
        assert _tested(data["lab"]) == expected


def test_labels_do_not_enter_the_division(tmp_path: Path) -> None:
    frame = _frame(IDS["texts"])
    found = []
    for labels in (frame.y, 1 - frame.y, (frame.b > 12).astype(int)):
        frame.assign(y=labels).to_csv(tmp_path / "t.csv", index=False)
        data = load(
            "table", path=tmp_path / "t.csv", label="y", id_column="id", passive={"lab": "b"}, active="a", scale="none"
        )
        found.append(_tested(data["lab"]))

    assert found[0] == found[1] == found[2]


# --- the attack on a division that is made from labels


def _posterior(tested: npt.NDArray[np.bool_], within: list[npt.NDArray[np.bool_]]) -> npt.NDArray[np.float64]:
    """Return each record's probability to be positive, if its class's own sequence of train and test is known.

    Forward and backward sums over the lattice of how many negatives came before: the sequence that is seen is the two
    known ones, shuffled into each other, and every shuffle is as likely.

    Args:
        tested: Which records are tested, in the table's order.
        within: The same among the negatives and among the positives alone.
    """
    negatives, positives = within
    n, width = len(tested), len(negatives) + 1

    def fits(place: int) -> tuple[npt.NDArray[np.bool_], npt.NDArray[np.bool_]]:
        """Return by number of negatives before whether the next record may be a negative, and a positive."""
        before = np.arange(width)
        after = place - before
        negative = before < len(negatives)
        negative[negative] = negatives[before[negative]] == tested[place]
        positive = (after >= 0) & (after < len(positives))
        positive[positive] = positives[after[positive]] == tested[place]
        return negative & (after >= 0), positive

    forward = np.full((n + 1, width), -np.inf)
    backward = np.full((n + 1, width), -np.inf)
    forward[0, 0] = backward[n, len(negatives)] = 0.0
    for place in range(n):
        negative, positive = fits(place)
        forward[place + 1] = np.where(positive, forward[place], -np.inf)
        moved = np.where(negative, forward[place], -np.inf)[:-1]
        forward[place + 1, 1:] = np.logaddexp(forward[place + 1, 1:], moved)
    found = np.zeros(n)
    for place in reversed(range(n)):
        negative, positive = fits(place)
        stays = np.where(positive, backward[place + 1], -np.inf)
        moves = np.where(negative, np.append(backward[place + 1, 1:], -np.inf), -np.inf)
        backward[place] = np.logaddexp(stays, moves)
        found[place] = np.exp(logsumexp(forward[place] + stays) - logsumexp(forward[place] + backward[place]))
    return found


def _stratified(labels: npt.NDArray[np.int64], seed: int) -> npt.NDArray[np.bool_]:
    test = train_test_split(np.arange(len(labels)), test_size=0.2, random_state=seed, stratify=labels)[1]
    return np.isin(np.arange(len(labels)), test)


def test_a_stratified_division_gives_labels_away_and_that_by_ids_does_not() -> None:
    labels = load_breast_cancer().target.astype(np.int64)
    # All that the attacker has: seed, counts of the classes, and which records are tested.
    sorted_labels = np.sort(labels)
    guessed = _stratified(sorted_labels, 0)
    within = [guessed[sorted_labels == one] for one in (0, 1)]

    leaked = roc_auc_score(labels, _posterior(_stratified(labels, 0), within))

    assert leaked > 0.8
    aucs = []
    for seed in range(20):
        test = split_by_ids(np.arange(len(labels)), test_fraction=0.2, seed=seed)[1]
        tested = np.isin(np.arange(len(labels)), test)
        aucs.append(roc_auc_score(labels, tested))
    assert abs(np.mean(aucs) - 0.5) < 4 * np.std(aucs) / np.sqrt(len(aucs)) + 1e-9

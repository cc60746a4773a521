from __future__ import annotations

import itertools
import re
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pytest
from scipy.special import logsumexp
from sklearn.datasets import load_breast_cancer
from sklearn.metrics import roc_auc_score
from sklearn.model_selection import train_test_split

from splitvfl.data.old_ids import record_ids
from splitvfl.data.split import random_split, split_by_column
from splitvfl.errors import ArgumentError, DataError


def _split(labels: Any, fraction: float = 0.2, seed: int = 0, stratified: bool = True) -> tuple[Any, Any]:
    return random_split(np.asarray(labels), test_fraction=fraction, seed=seed, stratified=stratified)


def test_a_split_is_a_partition_in_order_with_the_classes_in_proportion() -> None:
    labels = (np.arange(1000) % 10 == 0).astype(np.float32)

    train, test = _split(labels)

    assert sorted([*train, *test]) == list(range(1000))
    assert (np.diff(train) > 0).all()
    assert (np.diff(test) > 0).all()
    assert (labels[train].sum(), labels[test].sum()) == (80, 20)


def test_the_seed_decides() -> None:
    labels = np.arange(100) % 2

    assert np.array_equal(_split(labels)[1], _split(labels)[1])
    assert not np.array_equal(_split(labels)[1], _split(labels, seed=1)[1])


def test_real_labels_are_not_stratified() -> None:
    train, test = _split(np.linspace(0, 1, 10), stratified=False)

    assert (len(train), len(test)) == (8, 2)


@pytest.mark.parametrize("fraction", [0.0, 1.0, -0.5, 3])
def test_a_fraction_outside_zero_and_one(fraction: float) -> None:
    with pytest.raises(ArgumentError, match=re.escape(f"test_fraction in (0, 1), got {fraction}")):
        _split([0, 1] * 10, fraction)


def test_too_few_rows_to_split() -> None:
    with pytest.raises(DataError, match=r"one record of class 1 .*, in row 5 .*; it needs 2 at least"):
        _split([0, 0, 0, 0, 0, 1], 0.5)
    with pytest.raises(DataError, match="one record of the positive class, in row 5"):
        _split(np.array([0, 0, 0, 0, 0, 1], np.float32), 0.5)
    with pytest.raises(DataError, match=r"1 records with test_fraction=0.2 make 0 training records; expected one"):
        _split([0.5], stratified=False)
    with pytest.raises(DataError, match=r"make 1 test records; expected 2 at least, one of each class"):
        _split([0, 0, 1, 1], 0.2)


def test_what_cannot_be_split_is_what_the_library_refuses() -> None:
    random = np.random.default_rng(0)
    for rows, fraction, classes in itertools.product(range(1, 12), (0.01, 0.2, 0.5, 0.9), range(1, 5)):
        labels = random.integers(0, classes, rows)
        for stratify in (labels, None):
            try:
                train_test_split(labels, test_size=fraction, random_state=0, stratify=stratify)
            except ValueError:
                with pytest.raises(DataError, match=r"expected|needs 2"):
                    _split(labels, fraction, stratified=stratify is not None)
            else:
                _split(labels, fraction, stratified=stratify is not None)


def test_a_column_may_decide() -> None:
    train, test = split_by_column(pa.array(["train", "test", None, "test"]), test_value="test", source="s")

    assert (train.tolist(), test.tolist()) == ([0, 2], [1, 3])


@pytest.mark.parametrize(("values", "test_value"), [(["a", "b"], "test"), ([1, 1], 1)])
def test_a_split_column_needs_both_kinds(values: list[Any], test_value: object) -> None:
    with pytest.raises(DataError, match=re.escape(f"s holds {sorted(set(values))}; expected {test_value!r} in some")):
        split_by_column(pa.array(values), test_value=test_value, source="s")


def test_whole_numbers_are_ids_and_text_stands_for_row_numbers() -> None:
    assert record_ids(pa.array([2**62, -5]), source="id").tolist() == [2**62, -5]
    assert record_ids(pa.array(["b", "a"]), source="id").tolist() == [0, 1]
    assert record_ids(pa.array([7], pa.uint8()), source="id").dtype == np.int64


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (pa.array([5, 9, 8, 9, 5]), "id holds 9 in rows 1 and 3 (from 0); ids must differ"),
        (pa.array(["x", "x"]), "id holds 'x' in rows 0 and 1 (from 0); ids must differ"),
        (pa.array([1, None]), "id has no id in 1 rows"),
        (pa.array([0.5]), "id must hold whole numbers or text, got double"),
        (pa.array([2**63], pa.uint64()), "id holds numbers beyond 64 bits"),
    ],
)
def test_ids_that_name_no_record(values: pa.Array, message: str) -> None:
    with pytest.raises(DataError, match=re.escape(message)):
        record_ids(values, source="id")


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


def _tested(labels: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
    test = random_split(labels, test_fraction=0.2, seed=0, stratified=True)[1]
    return np.isin(np.arange(len(labels)), test)


def test_a_stratified_division_gives_labels_away() -> None:
    """The partner has the seed, the counts of the classes and the records that are evaluated, and nothing else."""
    labels = load_breast_cancer().target.astype(np.int64)
    sorted_labels = np.sort(labels)
    guessed = _tested(sorted_labels)
    within = [guessed[sorted_labels == one] for one in (0, 1)]

    found = _posterior(_tested(labels), within)

    assert roc_auc_score(labels, found) > 0.8

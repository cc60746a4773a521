from __future__ import annotations

from itertools import pairwise

import pytest

from splitvfl.errors import ArgumentError
from splitvfl.learning.defaults import suggested_batch_size, suggested_epochs

SIZES = (1, 2, 7, 8, 20, 100, 364, 400, 455, 1_000, 24_000, 10**6, 10**9)


def test_a_table_of_four_hundred_rows() -> None:
    assert (suggested_batch_size(400), suggested_epochs(400)) == (32, 30)


@pytest.mark.parametrize("records", SIZES)
def test_a_batch_is_no_larger_than_the_records(records: int) -> None:
    assert 1 <= suggested_batch_size(records) <= min(records, 1024)


@pytest.mark.parametrize(("fewer", "more"), list(pairwise(SIZES)))
def test_more_records_make_larger_batches_fewer_epochs_and_no_fewer_steps(fewer: int, more: int) -> None:
    assert suggested_batch_size(fewer) <= suggested_batch_size(more)
    assert suggested_epochs(fewer) >= suggested_epochs(more) >= 10
    steps = [suggested_epochs(records) * -(-records // suggested_batch_size(records)) for records in (fewer, more)]
    # Rounded to powers of two and whole epochs: no data set gets much less than a smaller one.
    assert steps[1] >= 0.7 * steps[0]


@pytest.mark.parametrize("suggested", [suggested_batch_size, suggested_epochs])
def test_no_records_are_refused(suggested: object) -> None:
    with pytest.raises(ArgumentError, match="expected at least 1 training record, got 0"):
        suggested(0)  # type: ignore[operator]

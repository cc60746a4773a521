"""Records are found by what is asked for, in whatever form of the id that ``align`` takes for the same."""

from __future__ import annotations

import hashlib

import numpy as np
import pyarrow as pa
import pytest

from splitvfl.data.hashing import text_ids
from splitvfl.data.record_index import ID_BYTES, RecordIndex, asked_digests
from splitvfl.errors import DataError

RUN = "a" * 32


def index(names: list[str | int], *, case: str = "kept") -> RecordIndex:
    return RecordIndex.of(pa.array(names), run=RUN, case=case, source="clients.csv")  # type: ignore[arg-type]


def places(found: RecordIndex, *names: str, run: str = RUN) -> list[int]:
    places: list[int] = found.find(asked_digests(names, run=run)).tolist()
    return places


def test_records_are_found_by_their_ids_and_others_are_not() -> None:
    names = [f"c{number * 7919 % 1000}" for number in range(500)]

    found = places(index(names), *(f"c{number}" for number in range(1000)))

    assert found == [names.index(f"c{number}") if f"c{number}" in names else -1 for number in range(1000)]


def test_an_id_is_written_as_align_writes_it() -> None:
    assert places(index(["Zo\u00eb ", "b"]), "Zo\u00eb") == [0]
    assert places(index(["AB"], case="folded"), "ab") == [0]
    assert places(index(["AB"]), "ab") == [-1]
    assert places(index([7, 12]), "12", "7", "007", "7.0", "+7", "\u0667") == [1, 0, -1, -1, -1, -1]


def test_what_crosses_is_a_digest_of_one_run() -> None:
    number = hashlib.sha256(b"splitvfl.serve.1\0" + RUN.encode() + b"\0i42").digest()
    text = hashlib.sha256(b"splitvfl.serve.1\0" + RUN.encode() + b"\0t" + str(text_ids(["c1"])[0]).encode()).digest()

    assert asked_digests(["42", "c1"], run=RUN).tobytes() == number + text
    assert places(index(["c1"]), "c1", run="b" * 32) == [-1]


def test_numbers_of_tables_are_found_whether_they_stand_for_numbers_or_text() -> None:
    ids = np.array([42, int(text_ids(["c1"])[0]), -3])

    found = RecordIndex.of_numbers(ids, run=RUN)

    assert places(found, "c1", "42", "-3", "3") == [1, 0, 2, -1]
    # One and the same, whatever a record is asked for by: noise follows from it.
    assert len(found.own) == 3


def test_digests_that_begin_alike_are_told_apart() -> None:
    digests = np.random.default_rng(0).integers(0, 256, (64, ID_BYTES), np.uint8)
    digests[:40, :8] = digests[0, :8]
    digests[40:50, :8] = 255

    found = RecordIndex(digests[:45])

    np.testing.assert_array_equal(found.find(digests), [*range(45), *[-1] * 19])


def test_nothing_is_found_among_nothing() -> None:
    assert places(RecordIndex(np.zeros((0, ID_BYTES), np.uint8)), "a") == [-1]
    assert places(index(["a"])) == []


@pytest.mark.parametrize(("names", "told"), [(["a", " a"], "rows 0 and 1"), (["a", " "], "row 1 .* there is no id")])
def test_ids_that_are_the_same_or_empty_are_refused(names: list[str | int], told: str) -> None:
    with pytest.raises(DataError, match=rf"clients\.csv.* {told}"):
        index(names)

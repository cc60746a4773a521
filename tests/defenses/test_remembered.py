from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from splitvfl.defenses.remembered import Answers, Positions, RememberedAnswers


@given(batches=st.lists(st.lists(st.integers(-5, 40), min_size=1, max_size=12), max_size=8))
def test_a_record_is_asked_once_and_answers_the_same_for_ever(batches: list[list[int]]) -> None:
    memory = RememberedAnswers(most=1000)
    known: dict[int, int] = {}
    for ids in batches:
        asked: list[int] = []

        def draw(positions: Positions, ids: list[int] = ids, asked: list[int] = asked) -> Answers:
            asked.extend(ids[position] for position in positions)
            return np.arange(len(positions)) + len(known)

        answers = memory.of(torch.tensor(ids), draw)

        assert sorted(asked) == sorted(set(ids) - set(known))
        for number, answer in zip(ids, answers.tolist(), strict=True):
            assert known.setdefault(number, answer) == answer


@pytest.mark.parametrize(
    ("most", "dtype"), [(0, np.int8), (126, np.int8), (127, np.int16), (40_000, np.int32), (2**40, np.int64)]
)
def test_the_largest_answer_fits_into_the_fewest_bytes(most: int, dtype: Any) -> None:
    memory = RememberedAnswers(most=most)

    answers = memory.of(torch.arange(3), lambda positions: np.full(len(positions), most))

    assert answers.tolist() == [most] * 3
    assert memory.state_dict()["columns"]["answer"].numpy().dtype == dtype


def test_answers_survive_a_restart() -> None:
    memory, restarted = RememberedAnswers(most=9), RememberedAnswers(most=9)
    ids = torch.tensor([7, -3, 10**12, 7])
    before = memory.of(ids, lambda positions: 3 + positions)

    restarted.load_state_dict(memory.state_dict())

    def refuse(positions: Positions) -> Answers:
        raise AssertionError(f"asked again: {positions}")

    assert restarted.of(ids, refuse).tolist() == before.tolist() == [3, 4, 5, 3]

from __future__ import annotations

import math
import random
from dataclasses import asdict

import numpy as np
import pytest
import torch

from splitvfl.errors import HookError
from splitvfl.hooks import View, is_signed
from splitvfl.leakage.judging import Leak
from splitvfl.leakage.signs import SignKeeper


def test_counts_are_those_of_a_slow_loop() -> None:
    draw = random.Random(0)
    keeper = SignKeeper()
    truth = {record: draw.randint(0, 1) for record in range(5, 40)}
    truth[7] = math.nan
    votes: dict[int, int] = {}
    right, decided = [], []
    for _ in range(60):
        ids = draw.sample(sorted(truth), 10)
        scores = [draw.choice([-2.0, -0.1, 0.0, math.nan, 0.3, 5.0]) for _ in ids]
        keeper.add(torch.tensor(ids), torch.tensor(scores), torch.tensor([truth[record] for record in ids]))
        step_right = step_decided = 0
        for record, score in zip(ids, scores, strict=True):
            if score == 0 or math.isnan(score) or math.isnan(truth[record]):
                continue
            step_decided += 1
            step_right += (score > 0) == (truth[record] == 1)
            votes[record] = votes.get(record, 0) + (1 if score > 0 else -1)
        right.append(step_right)
        decided.append(step_decided)
    assert keeper.share() == sum(right) / sum(decided)
    assert keeper.share(3) == sum(right[:3]) / sum(decided[:3])
    assert keeper.share(10**9) == keeper.share(math.inf) == keeper.share()
    assert keeper.recent_share == sum(right[-10:]) / sum(decided[-10:])
    majority = sum(vote != 0 and (vote > 0) == (truth[record] == 1) for record, vote in votes.items())
    assert keeper.records == (majority, len(votes))

    positives = sum(truth[record] == 1 for record in votes)
    assert keeper.commoner == max(positives, len(votes) - positives) / len(votes)

    again = SignKeeper()
    again.load_state_dict(keeper.state_dict())
    assert (again.share(), again.share(3), again.records) == (keeper.share(), keeper.share(3), keeper.records)


def test_of_scores_of_the_whole_run_the_last_sign_is_the_vote() -> None:
    ids, labels = torch.tensor([7, -3]), torch.tensor([1.0, 1.0])
    by_votes, by_last = SignKeeper(), SignKeeper(last=True)
    for keeper in (by_votes, by_last):
        for scores in ([1.0, -1.0], [1.0, -1.0], [-1.0, 2.0]):
            keeper.add(ids, torch.tensor(scores), labels)

    assert by_votes.records == (1, 2)
    assert by_last.records == (1, 2)
    assert by_votes._votes["votes"][by_votes._votes.find(ids.numpy())].tolist() == [1, -1]
    assert by_last._votes["votes"][by_last._votes.find(ids.numpy())].tolist() == [-1, 1]


def test_nothing_decided_is_nan() -> None:
    keeper = SignKeeper()
    assert math.isnan(keeper.share())
    keeper.add(None, torch.tensor([0.0, math.nan]), torch.tensor([1.0, 0.0]))
    assert math.isnan(keeper.recent_share)
    assert math.isnan(keeper.commoner)
    assert keeper.records == (0, 0)


def test_steps_without_ids_count_and_have_no_records() -> None:
    keeper = SignKeeper()
    keeper.add(None, torch.tensor([1.0, 1.0]), torch.tensor([1.0, 0.0]))
    assert keeper.share() == 0.5
    assert keeper.records == (0, 0)


class Signed:
    name = "signed"
    signed = True

    def __call__(self, view: View, /) -> torch.Tensor:
        return view.gradient[:, 0]


def test_only_attacks_that_say_so_are_counted() -> None:
    gradient = torch.tensor([[1.0], [-1.0], [1.0]])
    view = View(party="lab", step=0, ids=torch.tensor([3, 1, 2]), gradient=gradient)
    leak = Leak(Signed())
    leak.see(view, torch.tensor([1.0, 0.0, 0.0]))
    assert (leak.summary.signs_right, leak.summary.records_right, leak.summary.records) == (2 / 3, 2, 3)
    state = leak.state_dict()
    again = Leak(Signed())
    again.load_state_dict(state)
    np.testing.assert_equal(asdict(again.summary), asdict(leak.summary))  # NaN is NaN, on every Python

    class Ranking(Signed):
        signed = False

    assert Leak(Ranking()).signs is None


def test_signed_is_a_truth_value() -> None:
    class Odd:
        signed = "yes"

    with pytest.raises(HookError, match="signed must be true or false, got 'yes'"):
        is_signed(Odd())

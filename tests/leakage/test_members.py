"""Figures of attacks where a step uses some of its records only: balanced accuracy, and zeros that were found."""

from __future__ import annotations

import math
import random
from dataclasses import asdict

import numpy as np
import pytest
import torch
from sklearn.metrics import balanced_accuracy_score
from torch import Tensor

from splitvfl.hooks import View
from splitvfl.leakage.judging import Leak
from splitvfl.leakage.members import MemberKeeper
from splitvfl.leakage.signs import SignKeeper

SCORES = (-2.0, -0.1, 1e-5, 0.0, math.nan, 0.3, 2.0)  # 1e-5 is as good as zero beside 2, and has a sign


def decided(score: float) -> int:
    return 0 if math.isnan(score) or score == 0 else int(math.copysign(1, score))


@pytest.mark.parametrize("last", [False, True])
def test_figures_are_those_of_a_slow_loop(last: bool) -> None:
    draw = random.Random(0)
    keeper = MemberKeeper(last=last)
    truth = {record: draw.choice([0.0, 0.0, 1.0]) for record in range(3, 40)}
    truth[7] = math.nan
    hits: dict[float, list[float]] = {0.0: [], 1.0: []}
    votes: dict[int, int] = {}
    members: set[int] = set()
    zeros_found = []
    for _ in range(60):
        ids = draw.sample(sorted(truth), 10)
        scores = [2.0, *(draw.choice(SCORES) for _ in ids[1:])]
        zero = [draw.random() < 0.4 for _ in ids]
        keeper.add(*map(torch.tensor, (ids, scores, [truth[record] for record in ids], zero)))
        for record, score, unused in zip(ids, scores, zero, strict=True):
            if unused:
                zeros_found.append(math.isnan(score) or abs(score) < 1e-3)
            if math.isnan(truth[record]):
                continue
            votes[record] = decided(score) + (0 if last else votes.get(record, 0))
            if not unused:
                members.add(record)
                hits[truth[record]].append((1 + decided(score) * (2 * truth[record] - 1)) / 2)

    assert keeper.balanced == pytest.approx(np.mean([np.mean(each) for each in hits.values()]), rel=1e-12)
    assert keeper.base_rate == max(map(len, hits.values())) / sum(map(len, hits.values()))
    assert math.isnan(keeper.zeros_found) if last else keeper.zeros_found == np.mean(zeros_found)
    by_label: dict[float, list[float]] = {0.0: [], 1.0: []}
    for record in members:
        by_label[truth[record]].append((1 + np.sign(votes[record]) * (2 * truth[record] - 1)) / 2)
    expected = np.mean([np.mean(each) for each in by_label.values()])
    assert keeper.accumulated_balanced == pytest.approx(expected, rel=1e-12)

    again = MemberKeeper(last=last)
    again.load_state_dict(keeper.state_dict())
    for name in ("balanced", "accumulated_balanced", "base_rate", "zeros_found", "recent_balanced"):
        np.testing.assert_equal(getattr(again, name), getattr(keeper, name))


def test_where_every_sign_is_decided_it_is_the_balanced_accuracy_of_scikit_learn() -> None:
    rng = np.random.default_rng(0)
    labels, scores = (rng.random(200) < 0.1).astype(float), rng.normal(size=200)
    scores += labels
    zeros = rng.random(200) < 0.3
    keeper = MemberKeeper()
    keeper.add(torch.arange(200), *map(torch.from_numpy, (scores, labels, zeros)))
    expected = balanced_accuracy_score(labels[~zeros], scores[~zeros] > 0)
    assert keeper.balanced == pytest.approx(expected, rel=1e-12)
    assert keeper.accumulated_balanced == pytest.approx(expected, rel=1e-12)
    assert keeper.recent_balanced == keeper.balanced


def test_recent_figures_are_of_ten_steps() -> None:
    keeper, labels, zeros = MemberKeeper(), torch.tensor([0.0, 1.0, 1.0]), torch.tensor([False, False, True])
    for _ in range(5):
        keeper.add(None, torch.tensor([1.0, -1.0, 1.0]), labels, zeros)
    for _ in range(10):
        keeper.add(None, torch.tensor([-1.0, 1.0, 0.0]), labels, zeros)
    assert (keeper.recent_balanced, keeper.recent_zeros_found) == (1.0, 1.0)
    assert (keeper.balanced, keeper.zeros_found) == pytest.approx((10 / 15, 10 / 15), rel=1e-12)
    assert math.isnan(keeper.accumulated_balanced)  # nobody knew the ids


def test_who_calls_everybody_by_the_commoner_label_gets_one_half() -> None:
    keeper = MemberKeeper()
    labels = torch.tensor([1.0] + 13 * [0.0])
    keeper.add(None, -torch.ones(14), labels, torch.zeros(14, dtype=torch.bool))
    assert keeper.balanced == 0.5
    assert keeper.base_rate == 13 / 14
    assert math.isnan(keeper.zeros_found)


def test_who_scores_nobody_finds_no_zeros() -> None:
    keeper, labels, zeros = MemberKeeper(), torch.tensor([0.0, 1.0, 1.0]), torch.tensor([False, False, True])
    keeper.add(None, torch.zeros(3), labels, zeros)
    assert (keeper.balanced, keeper.zeros_found) == (0.5, 0.0)
    keeper.add(None, torch.full((3,), math.nan), labels, zeros)
    assert (keeper.balanced, keeper.recent_zeros_found) == (0.5, 0.0)


def test_nothing_met_is_nan() -> None:
    keeper = MemberKeeper()
    assert not keeper.has_met
    figures = (keeper.balanced, keeper.accumulated_balanced, keeper.base_rate, keeper.zeros_found)
    assert all(map(math.isnan, (*figures, keeper.recent_balanced, keeper.recent_zeros_found)))


def test_signs_of_zeros_are_votes_and_no_right_or_wrong_ones() -> None:
    keeper = SignKeeper()
    ids, labels = torch.tensor([1, 2]), torch.tensor([1.0, 1.0])
    keeper.add(ids, torch.tensor([1.0, -1.0]), labels, zeros=torch.tensor([False, True]))
    assert keeper.share() == 1.0
    assert keeper.records == (1, 2)


class Signed:
    name = "signed"
    signed = True

    def __call__(self, view: View, /) -> Tensor:
        return view.gradient[:, 0]


def test_a_leak_counts_zeros_apart_only_where_it_is_told_of_them() -> None:
    view = View(party="lab", step=0, ids=torch.arange(4), gradient=torch.tensor([[1.0], [-1.0], [0.0], [1.0]]))
    labels = torch.tensor([1.0, 0.0, 1.0, 0.0])
    plain, told = Leak(Signed()), Leak(Signed())
    plain.see(view, labels)
    told.see(view, labels, zeros=torch.tensor([False, False, True, True]))
    assert (told.summary.balanced, told.summary.zeros_found, told.summary.base_rate) == (1.0, 0.5, 0.5)
    assert (told.summary.signs_right, plain.summary.signs_right) == (1.0, 2 / 3)
    assert all(math.isnan(getattr(plain.summary, name)) for name in ("balanced", "base_rate", "zeros_found"))
    assert told.auc == plain.auc  # who attacks does not know who is used

    again = Leak(Signed())
    again.load_state_dict(told.state_dict())
    np.testing.assert_equal(asdict(again.summary), asdict(told.summary))
    before = {name: part for name, part in plain.state_dict().items() if name != "members"}
    again.load_state_dict(before)  # of a checkpoint from before there were such figures
    assert again.summary.signs_right == 2 / 3

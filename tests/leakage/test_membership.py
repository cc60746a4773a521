"""Figures of attacks on membership, beside scikit-learn's."""

from __future__ import annotations

import pytest
import torch
from sklearn.metrics import roc_auc_score, roc_curve

from splitvfl.leakage.membership import MembershipLeak, hits_at


@pytest.mark.parametrize("others", [30, 100, 250])
@pytest.mark.parametrize("decimals", [1, 8])
def test_figures_are_those_of_scikit_learn(others: int, decimals: int) -> None:
    """One decimal: many scores are level."""
    random = torch.Generator().manual_seed(others)
    member = torch.arange(300) >= others
    scores = (torch.randn(300, generator=random) + member).round(decimals=decimals)
    found = MembershipLeak.of("any", scores, member)
    false, true, _ = roc_curve(member, scores, drop_intermediate=False)
    assert found.auc == pytest.approx(roc_auc_score(member, scores))
    assert found.hits == pytest.approx(true[false <= 0.01].max())
    assert found.low < found.auc < found.high
    assert found.hits_low <= found.hits <= found.hits_high
    assert (found.members, found.others) == (300 - others, others)


def test_of_few_others_none_may_be_taken_for_a_member() -> None:
    member = torch.tensor([True] * 3 + [False] * 99)
    scores = torch.cat([torch.tensor([5.0, 1.0, 7.0]), torch.zeros(98), torch.tensor([6.0])])
    assert hits_at(scores, member, 0.01) == (1, 3)
    assert hits_at(torch.zeros(102), member, 0.01) == (0, 3), "who says the same of all finds nobody"


def test_an_interval_that_holds_one_half_is_blind() -> None:
    member = torch.arange(400) % 2 == 0
    random = torch.Generator().manual_seed(0)
    noise = torch.randn(400, generator=random)
    assert MembershipLeak.of("any", noise, member).blind
    assert not MembershipLeak.of("any", noise + member, member).blind

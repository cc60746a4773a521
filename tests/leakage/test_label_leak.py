"""The three figures that stand beside each other."""

from __future__ import annotations

import math

import pytest
import torch

from splitvfl.leakage.auditing import Audit
from splitvfl.leakage.canaries import CanaryLeak
from splitvfl.leakage.label_leak import LabelLeak
from splitvfl.leakage.leak_summary import largest

CANARIES = CanaryLeak(0.58, 0.51, 0.64, 150, 148)


def test_canaries_are_taken_before_the_matched_figure() -> None:
    found = LabelLeak.of(total=0.9, worst=0.7, matched=0.8, canaries=CANARIES, own_columns=0.77, first_component=0.6)
    assert (found.beyond, found.low, found.high, found.canaries) == (0.58, 0.51, 0.64, 298)
    assert (found.total, found.known, found.labelled) == (0.9, 0.77, True)
    assert found.excess == pytest.approx(0.13)


def test_without_canaries_the_matched_figure_has_no_interval() -> None:
    found = LabelLeak.of(total=0.9, worst=0.7, matched=0.8, canaries=None)
    assert (found.beyond, found.low, found.high, found.canaries) == (0.8, None, None, 0)
    assert found.known is None
    assert found.excess is None


def test_an_attack_on_messages_that_reads_more_than_the_auditor_raises_the_total() -> None:
    assert LabelLeak.of(total=0.8, worst=0.95, matched=None, canaries=None).total == 0.95


def test_without_an_auditor_nothing_is_said_in_all() -> None:
    """The worst attack on messages knows nothing of what the model predicts: it is no total."""
    assert LabelLeak.of(total=None, worst=0.95, matched=None, canaries=None).total is None


@pytest.mark.parametrize(
    ("own", "component", "known", "labelled"),
    [(0.7, 0.8, 0.8, False), (0.8, 0.7, 0.8, True), (None, 0.7, 0.7, False), (0.7, None, 0.7, True)],
)
def test_known_is_the_larger_of_two_and_says_whether_it_needs_labels(
    own: float | None, component: float | None, known: float, *, labelled: bool
) -> None:
    found = LabelLeak.of(
        total=None, worst=None, matched=None, canaries=None, own_columns=own, first_component=component
    )
    assert (found.known, found.labelled) == (known, labelled)


def test_an_auditor_that_saw_nothing_has_no_figures() -> None:
    assert LabelLeak.so_far(Audit(), worst=math.nan, known=None) == LabelLeak()


def test_figures_of_a_run_that_goes_on_are_the_auditors() -> None:
    audit, draw = Audit(), torch.Generator().manual_seed(0)
    for _ in range(8):
        ids, labels = torch.arange(40), torch.arange(40) % 2
        clean = torch.randn(40, 3, generator=draw) + labels[:, None]
        audit.see(clean, clean, labels, ids)
    found = LabelLeak.so_far(audit, worst=audit.worst, known=0.6)
    assert found.total == audit.total > 0.8
    assert found.known == 0.6
    assert found.canaries == 0


def test_largest_of_nothing_is_nothing() -> None:
    assert largest([None, None]) is None

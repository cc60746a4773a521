"""Figures of drawn records, and paired differences, against scikit-learn and a closed form."""

from __future__ import annotations

import math

import pytest
import torch
from sklearn.metrics import roc_auc_score
from torch import Tensor

from splitvfl.learning.bootstrap import difference, measure_of, paired_bootstrap, units_of
from splitvfl.learning.tasks import Binary, Multiclass, Regression, Task


@pytest.mark.parametrize("ties", [False, True])
def test_an_auc_of_drawn_records_is_scikit_learns(ties: bool) -> None:
    generator = torch.Generator().manual_seed(0)
    labels = (torch.rand(80, generator=generator) < 0.3).float()
    outputs = torch.randn(80, 1, generator=generator) + labels[:, None]
    outputs = outputs.round() if ties else outputs
    measure = measure_of(Binary(), outputs, labels)
    for _ in range(20):
        rows = torch.randint(80, (80,), generator=generator)
        assert measure(rows) == pytest.approx(roc_auc_score(labels[rows], outputs[rows, 0]), abs=1e-12)
    assert math.isnan(measure(labels.nonzero()[:, 0])), "of one class there is none"


@pytest.mark.parametrize(
    ("task", "outputs", "labels"),
    [
        (Multiclass(3), torch.eye(3).repeat(4, 1), torch.arange(12) % 2),
        (Regression(), torch.arange(12.0)[:, None], torch.arange(12.0) ** 2),
    ],
)
def test_other_figures_are_the_tasks(task: Task, outputs: Tensor, labels: Tensor) -> None:
    rows = torch.tensor([0, 1, 1, 5, 11])
    assert measure_of(task, outputs, labels)(rows) == task.measure(outputs[rows], labels[rows])
    assert units_of(task, labels) == 12


def test_an_auc_is_a_mean_over_the_rarer_class() -> None:
    assert units_of(Binary(), torch.tensor([0.0, 1.0, 0.0, 0.0, 1.0])) == 2


def test_a_paired_difference_of_means_has_the_intervals_of_the_differences() -> None:
    # Two accuracies over the same records: of the difference, the t-interval of the records' own differences.
    generator = torch.Generator().manual_seed(1)
    first = (torch.rand(400, generator=generator) < 0.7).double()
    second = torch.where(torch.rand(400, generator=generator) < 0.9, first, 1.0 - first)
    apart = second - first
    half = 1.966 * apart.std().item() / math.sqrt(400)

    found = paired_bootstrap(
        {name: lambda rows, of=of: of[rows].mean().item() for name, of in (("first", first), ("second", second))}, 400
    )
    gain = difference(found["first"], found["second"], units=400)

    assert gain.value == pytest.approx(apart.mean().item(), abs=1e-12)
    assert gain.low == pytest.approx(gain.value - half, abs=0.15 * half)
    assert gain.high == pytest.approx(gain.value + half, abs=0.15 * half)
    alone = found["first"][0].high - found["first"][0].low
    assert gain.high - gain.low < 0.75 * alone, "unpaired, it would be as wide as that of either figure, or wider"

"""Figures of drawn records, and paired differences, against scikit-learn and a closed form."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from scipy import stats
from sklearn.metrics import roc_auc_score
from torch import Tensor

from splitvfl.learning.bootstrap import difference, interval, measure_of, paired_bootstrap, units_of
from splitvfl.learning.tasks import Binary, Multiclass, Regression, Task
from tests.builders import generator


@pytest.mark.parametrize("ties", [False, True])
def test_an_auc_of_drawn_records_is_scikit_learns(ties: bool) -> None:
    random = torch.Generator().manual_seed(0)
    labels = (torch.rand(80, generator=random) < 0.3).float()
    outputs = torch.randn(80, 1, generator=random) + labels[:, None]
    outputs = outputs.round() if ties else outputs
    measure = measure_of(Binary(), outputs, labels)
    for _ in range(20):
        rows = torch.randint(80, (80,), generator=random)
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


def test_the_interval_of_a_mean_is_that_of_the_normal_law() -> None:
    values = torch.randn(400, generator=generator("values"), dtype=torch.float64)

    found = paired_bootstrap({"mean": lambda rows: values[rows].mean().item()}, 400)

    figure, draws = found["mean"]
    half = 1.96 * values.std().item() / 20
    assert figure.value == pytest.approx(values.mean().item())
    # A quantile of 1000 draws has a standard error of about a twentieth of the interval's half.
    assert (figure.low, figure.high) == pytest.approx((figure.value - half, figure.value + half), abs=0.2 * half)
    assert len(draws) == 1000


def test_figures_share_their_draws_and_draws_without_a_value_do_not_count() -> None:
    values = torch.randn(50, generator=generator("values"))

    found = paired_bootstrap(
        {"one": lambda rows: values[rows].mean().item(), "two": lambda rows: values[rows].mean().item() + 1}, 50
    )

    differences = [after - before for before, after in zip(found["one"][1], found["two"][1], strict=True)]
    assert differences == pytest.approx([1.0] * 1000)
    assert math.isnan(interval(1.0, [math.nan], units=9).low)
    assert interval(1.0, [math.nan, 2.0, 2.0], units=9).high == 2.0


@pytest.mark.parametrize("count", [5, 15, 200])
def test_of_few_records_the_ends_are_those_of_the_t_interval(count: int) -> None:
    """Draws of a mean have the standard deviation s·√((n − 1) / n) / √n; Student's interval is t·s/√n wide."""
    spread = math.sqrt((count - 1) / count) / math.sqrt(count)
    draws = stats.norm.ppf((np.arange(20_000) + 0.5) / 20_000, loc=3.0, scale=spread).tolist()
    half = stats.t.ppf(0.975, count - 1) / math.sqrt(count)
    found = interval(3.0, draws, units=count)
    assert (found.low, found.high) == pytest.approx((3.0 - half, 3.0 + half), abs=0.02 * half)
    nobody = interval(3.0, draws, units=1)
    assert (nobody.low, nobody.high) == pytest.approx((draws[0], draws[-1]))

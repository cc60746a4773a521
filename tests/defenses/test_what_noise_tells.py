"""Two attacks on every defense that draws noise, by an observer who knows two rows that may have been sent.

*By angles.* Noise made by Box and Muller comes in pairs with an angle of a lattice: torch's float32 has 2^24 of them,
its float64 2^53. The observer takes each candidate away, and sees which one leaves such angles.

*By rounding.* Noise along a vector that the observer knows leaves what is off that vector: how the clean row was
rounded.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from torch import Tensor

from splitvfl.cut.chain import DefenseChain
from splitvfl.defenses import (
    AxisGaussian,
    AxisSumKL,
    CoefficientNoise,
    GaussianIR,
    Isotropic,
    LaplaceResidue,
    MaxNorm,
    MultiplicativeLaplaceResidue,
    RecordGaussian,
    SumKL,
)
from splitvfl.hooks import Secrets, call_defense, crossing_of, hook_name, needs_label_gradients
from splitvfl.learning.label_gradients import LabelGradients
from splitvfl.metrics import leak_auc
from tests.builders import random
from tests.test_contract import DEFENSES

Numbers = npt.NDArray[Any]
Wide = np.longdouble

# The strongest such tests of a float64 message need more digits than its own; some machines have none.
has_wide = pytest.mark.skipif(np.finfo(Wide).nmant < 63, reason="no floating-point numbers wider than float64 here")


# What is sent, and what an observer makes of it -----------------------------------------------------------------------


def entries(sent: Numbers, clean: Numbers, axis: Numbers) -> Numbers:
    """Return the noise of every entry: one draw each."""
    return (sent - clean).reshape(-1)


def along_axis(sent: Numbers, clean: Numbers, axis: Numbers) -> Numbers:
    """Return the noise along the line that all rows lie on: one draw for a row."""
    return (sent - clean) @ axis


def along_rows(sent: Numbers, clean: Numbers, axis: Numbers) -> Numbers:
    """Return the noise along each row, in units of its scale under MaxNorm."""
    norms = np.sqrt((clean * clean).sum(axis=1))
    scales = np.sqrt(np.maximum(norms.max() ** 2 - norms**2, 0))
    # The longest row is sent as it is.
    return ((sent - clean) * clean).sum(axis=1) / norms / np.where(scales > 0, scales, np.nan)


def of_residues(sent: Numbers, clean: Numbers, axis: Numbers) -> Numbers:
    """Return what residues were multiplied with."""
    return (sent / clean).reshape(-1)


def as_residues(rows: Tensor) -> Tensor:
    """Return rows of which each is a residue from ½ to 1 in size, over the size of the batch."""
    sizes = 0.5 + 0.5 * rows.abs().clamp(max=1.0)
    return torch.where(rows < 0, -sizes, sizes) / len(rows)


def clipped(rows: Tensor) -> Tensor:
    return rows * (1.0 / rows.norm(dim=1, keepdim=True).clamp(min=1.0))


@dataclass(frozen=True)
class Row:
    """One noisy defense, what it adds noise to, and the draws that an observer finds in the difference.

    ``make`` with noise far above the rows, under which angles are plainest; ``mild`` with less of it along an axis: its
    rounding, too, hides something. ``width``: the only one of cuts that it takes.
    """

    make: Callable[[], Any]
    draws: Callable[[Numbers, Numbers, Numbers], Numbers]
    prepared: Callable[[Tensor], Tensor] = lambda rows: rows
    mild: Callable[[], Any] | None = None
    width: int | None = None

    def mildly(self) -> Any:
        return (self.mild or self.make)()


OWN_ROWS = {
    "isotropic": Row(lambda: Isotropic(ratio=50.0), entries),
    "gaussian-ir": Row(lambda: GaussianIR(clip=1.0, sigma=50.0), entries, clipped),
    "coefficient-noise": Row(lambda: CoefficientNoise(sigma=50.0, clip=1e9, scale=0.05), entries),
    "laplace-residue": Row(lambda: LaplaceResidue(epsilon=0.02), entries, as_residues, width=1),
    "max-norm": Row(MaxNorm, along_rows),
    # Noise of scale 50, which next to never reaches the bound.
    "multiplicative-laplace-residue": Row(
        lambda: MultiplicativeLaplaceResidue(epsilon=800.0, b1=0.5, b2=1e4), of_residues, as_residues, width=1
    ),
    "sumkl": Row(lambda: SumKL(ratio=50.0), along_axis, mild=lambda: SumKL(ratio=0.2)),
    "axis-sumkl": Row(lambda: AxisSumKL(ratio=50.0), along_axis, mild=lambda: AxisSumKL(ratio=0.2)),
    "axis-gaussian": Row(lambda: AxisGaussian(ratio=7.0), along_axis, mild=lambda: AxisGaussian(ratio=0.4)),
    "record-gaussian": Row(lambda: RecordGaussian(mu=0.02), along_axis, mild=lambda: RecordGaussian(mu=1.0)),
}


# Other defenses that draw real numbers are tried as their contract has them: for noise in each entry.
NOISY = OWN_ROWS | {
    name: Row(row.make, entries)
    for name, row in DEFENSES.items()
    if row.noisy and crossing_of(row.make()) != "labels" and hook_name(row.make()) not in OWN_ROWS
}


def test_every_noisy_defense_of_real_numbers_is_tried() -> None:
    made = [row.make() for row in DEFENSES.values() if row.noisy]
    assert {type(defense) for defense in made if crossing_of(defense) != "labels"} == {
        type(row.make()) for row in NOISY.values()
    }


def labels_of(n: int) -> Tensor:
    return (torch.arange(n) % 2).double()  # rows 8 apart, and half a batch apart, are of one class: one scale


def messages(n: int, width: int, dtype: torch.dtype, seed: int) -> tuple[list[Tensor], Tensor]:
    """Return two messages that may have been sent, below a linear top, and the way from negatives to positives."""
    weight = torch.randn(width, generator=random(seed), dtype=torch.float64)
    residues = torch.rand(2, n, generator=random(seed + 1), dtype=torch.float64) - labels_of(n)
    return [(one[:, None] * weight).to(dtype) for one in residues], -weight / weight.norm()


def known_of(message: Tensor, axis: Tensor) -> LabelGradients:
    """Return what the label party knows where a label moves rows along the axis by a row's own length, about."""
    labels, length = labels_of(message.shape[0]), math.sqrt(message.shape[1])
    return LabelGradients(
        outputs=(message.double() @ axis.double() / length + labels)[:, None],
        targets=labels,
        values=(0.0, 1.0),
        classes=2,
        loss=lambda outputs, targets: 0.5 * (outputs[:, 0] - targets).square(),
        jacobian=len(message) * length * axis.double().expand(message.shape)[None],
    )


def sent_by(defense: Any, message: Tensor, axis: Tensor, *, seed: int) -> Tensor:
    known = known_of(message, axis) if needs_label_gradients(defense) else None
    labels = labels_of(message.shape[0])
    own = Secrets(party="bank", step=0, generator=random(seed), labels=labels, label_gradients=known)
    return call_defense(defense, message, own)


# By angles ------------------------------------------------------------------------------------------------------------


def misfit(first: Numbers, second: Numbers, *, bits: int) -> Numbers:
    """Return the distance of angles from the nearest one that torch can draw, in units of 2π / 2^bits."""
    kind, given = (np.float64, np.float32) if bits == 24 else (Wide, np.float64)
    tau = 2 * np.arctan2(kind(0), kind(-1))
    lattice = kind(2) ** bits
    angle = np.arctan2(second, first) % tau
    near = np.round(angle / tau * lattice)
    best = np.full(angle.shape, kind(9))
    for offset in (-1, 0, 1):
        drawn = (given(math.tau) * ((near + offset) % lattice / lattice).astype(given)).astype(kind)
        distance = ((angle - drawn + tau / 2) % tau - tau / 2) / tau * lattice
        best = np.where(abs(distance) < abs(best), distance, best)
    return np.where(np.isnan(angle), np.nan, np.abs(best)).astype(np.float64)


def pairs(draws: Numbers) -> Iterator[tuple[Numbers, Numbers]]:
    """Return draws that may have an angle in common: 8 apart in a run of 16 (torch), and half of all apart (ours)."""
    runs = draws[: len(draws) // 16 * 16].reshape(-1, 16)
    yield runs[:, :8].reshape(-1), runs[:, 8:].reshape(-1)
    half = len(draws) // 2
    yield draws[:half], draws[half : 2 * half]


def told_by_angles(row: Row, defense: Any, n: int, width: int, dtype: torch.dtype) -> tuple[float, float]:
    """Return how much better the message that was sent fits the lattice's angles, and that figure's standard error."""
    bits, kind = (24, np.float64) if dtype == torch.float32 else (53, Wide)
    width = row.width or width
    found: tuple[list[Numbers], list[Numbers]] = ([], [])
    count = 0
    # So many angles of each kind of pair that six standard errors are below .03, a seventh of what the lattice shows.
    while count < 2048:
        candidates, axis = messages(n, width, dtype, seed=1000 + count)
        sent = sent_by(defense, row.prepared(candidates[0]), axis, seed=count).numpy().astype(kind)
        for kept, message in zip(found, candidates, strict=True):
            clean = row.prepared(message).numpy().astype(kind)
            kept += [misfit(*pair, bits=bits) for pair in pairs(row.draws(sent, clean, axis.numpy().astype(kind)))]
        count += found[0][-1].size
    right, wrong = (np.concatenate(kept) for kept in found)
    drawn = np.isfinite(right) & np.isfinite(wrong)
    right, wrong = right[drawn], wrong[drawn]
    return float(wrong.mean() - right.mean()), float(np.hypot(right.std(), wrong.std()) / math.sqrt(right.size))


# Batches of one run of 16, with a remainder, and of several blocks; each width in one of them.
SIZES = [
    (16, 16),
    pytest.param(50, 2, marks=pytest.mark.slow(reason="a remainder")),
    pytest.param(512, 1, marks=pytest.mark.slow(reason="several blocks of one column")),
    (4096, 128),
]


@pytest.mark.parametrize(("n", "width"), SIZES)
@pytest.mark.parametrize("name", NOISY)
def test_no_angle_tells_which_message_was_sent(name: str, n: int, width: int) -> None:
    told, error = told_by_angles(NOISY[name], NOISY[name].make(), n, width, torch.float32)
    # Six standard errors: one false alarm in 5e8. The lattice shows as .2 (see the next test).
    assert abs(told) < 6 * error < 0.03


@has_wide
@pytest.mark.parametrize("n", [pytest.param(16, marks=pytest.mark.slow(reason="128 messages of each defense")), 512])
@pytest.mark.parametrize("name", NOISY)
def test_no_angle_tells_which_message_of_float64_was_sent(name: str, n: int) -> None:
    told, error = told_by_angles(NOISY[name], NOISY[name].make(), n, 1, torch.float64)
    assert abs(told) < 6 * error < 0.04


class TorchNoise:
    """What Isotropic was: drawn and added in the dtype of the message."""

    def __call__(self, gradient: Tensor, secrets: Secrets, /) -> Tensor:
        sigma = 50.0 * gradient.norm(dim=1).max().item()
        return torch.empty_like(gradient).normal_(generator=secrets.generator).mul_(sigma).add_(gradient)


@pytest.mark.parametrize("dtype", [torch.float32, pytest.param(torch.float64, marks=has_wide)])
def test_angles_tell_it_under_noise_that_torch_drew(dtype: torch.dtype) -> None:
    told, error = told_by_angles(NOISY["isotropic"], TorchNoise(), 512, 4, dtype)

    # Only pairs 8 apart have an angle of their own, half of all that were looked at: they fit to .05 instead of .25.
    assert told > 0.08 > 6 * error


@pytest.mark.cuda
@pytest.mark.parametrize("name", NOISY)
def test_noise_on_a_gpu_is_drawn_and_added_in_float64(name: str) -> None:
    candidates, axis = messages(512, 1, torch.float32, seed=0)
    cuda, row = torch.Generator("cuda").manual_seed(0), NOISY[name]
    if needs_label_gradients(row.make()):
        pytest.skip("what it knows is made on the CPU here; its rows on a GPU are in test_record_gaussian.py")
    own = Secrets(party="bank", step=0, generator=cuda, labels=labels_of(512).cuda())
    assert own.normal(3).dtype == torch.float64
    assert own.normal(3).device.type == "cuda"

    sent = call_defense(row.make(), row.prepared(candidates[0]).cuda(), own).cpu().double().numpy()
    fits = []
    for message in candidates:
        draws = row.draws(sent, row.prepared(message).double().numpy(), axis.numpy())
        fits.append(np.concatenate([misfit(*pair, bits=24) for pair in pairs(draws)]))
    # Not the longest row of max-norm, which has no noise.
    drawn = np.isfinite(fits[0]) & np.isfinite(fits[1])
    assert drawn.mean() > 0.99
    # 512 pairs of angles, in units in which one has a standard deviation of .144: six standard errors of a difference.
    assert abs(fits[0][drawn].mean() - fits[1][drawn].mean()) < 6 * 0.144 * math.sqrt(2 / 512)


# By rounding ----------------------------------------------------------------------------------------------------------


def told_by_rounding(
    row: Row, defense: Any, width: int, n: int, *, steps: int = 1, dtype: torch.dtype = torch.float32
) -> float:
    """Return the AUC with which a row's rounding, off the line that rows and noise lie on, tells which of two it is."""
    scores, secrets = [], []
    width = row.width or width
    for step in range(steps):
        candidates, axis = messages(n, width, dtype, seed=10 * step)
        drawn = torch.rand(n, generator=random(step)) < 0.5
        message = torch.where(drawn[:, None], candidates[1], candidates[0])
        chain = DefenseChain(crossing_of(defense), "bank")
        chain.attach(defense, noise_seed_for_experiments=step)
        known = known_of(message, axis) if needs_label_gradients(defense) else None
        prepared = row.prepared(message)
        sent = chain.apply(prepared, step=step, ids=None, labels=labels_of(n), label_gradients=known).double()
        # In units of how finely floating point holds what was sent, the rounding of the right row is alike everywhere.
        fineness = torch.ldexp(torch.ones_like(sent), -torch.frexp(sent).exponent)
        left = []
        for one in candidates:
            noise, line = (sent - row.prepared(one).double()) * fineness, axis * fineness
            along = (noise * line).sum(dim=1, keepdim=True) / line.square().sum(dim=1, keepdim=True)
            left.append((noise - along * line).square().sum(dim=1))
        # Whoever knows the scales divides by them; what is left is as large as the noise off the line, or the rounding.
        scores.append((left[0] - left[1]) / (left[0] + left[1]).clamp(min=1e-300).sqrt())
        secrets.append(drawn.double())
    return leak_auc(torch.cat(scores), torch.cat(secrets))


def allowed(rows: int) -> float:
    """Return what an AUC may be: .535, which noise of eight roundings allows, and six standard errors of one half."""
    return 0.535 + 6 * math.sqrt((rows + 1) / (3 * rows * rows))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(
    ("width", "n", "steps"),
    [
        (2, 4096, 1),
        pytest.param(16, 16, 128, marks=pytest.mark.slow(reason="128 messages of each defense")),
        (128, 4096, 1),
    ],
)
@pytest.mark.parametrize("name", NOISY)
def test_no_rounding_tells_which_row_was_sent(name: str, width: int, n: int, steps: int, dtype: torch.dtype) -> None:
    auc = told_by_rounding(NOISY[name], NOISY[name].mildly(), width, n, steps=steps, dtype=dtype)
    assert 1 - allowed(n * steps) < auc < allowed(n * steps)


@pytest.mark.parametrize("width", [2, 16, 128])
@pytest.mark.parametrize("name", ["axis-gaussian", "axis-sumkl", "record-gaussian"])
def test_no_rounding_of_half_precision_tells_which_row_was_sent_along_an_axis(name: str, width: int) -> None:
    auc = told_by_rounding(NOISY[name], NOISY[name].mildly(), width, 4096, dtype=torch.bfloat16)
    assert 1 - allowed(4096) < auc < allowed(4096)


class OnAxis:
    """What AxisGaussian would be without what is done about rounding: drawn and added in float64, and cast."""

    def __call__(self, gradient: Tensor, secrets: Secrets, /) -> Tensor:
        labels, rows = secrets.labels, gradient.double()
        gap = rows[labels == 1].mean(dim=0) - rows[labels == 0].mean(dim=0)
        noise = torch.outer(0.4 * secrets.normal(rows.shape[0]), gap)
        return secrets.rounded(rows + noise, scale=0.4 * gap.norm().item(), like=gradient)


def test_rounding_tells_it_under_noise_on_an_axis_though_it_was_added_in_float64() -> None:
    assert told_by_rounding(NOISY["axis-gaussian"], OnAxis(), 128, 4096) > 0.95

"""Noise that depends on the class: statistics of the two classes, the power of the noise, and the noise itself.

A subclass of :class:`ClassConditionalNoise` says which variances it measures and which noise follows from them. Batches
without one of the classes, the search for a power, logging and state are here.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Iterator
from typing import Any, ClassVar, NamedTuple, Protocol, TypeAlias

import torch
from torch import Tensor

from splitvfl.defenses.row_norms import REACH, rounding_cover, row_norms
from splitvfl.defenses.solve_sumkl import (
    SumKLSolution,
    detection_error_bound,
    least_power,
    solve_sumkl,
    sum_kl_for,
)
from splitvfl.errors import ArgumentError
from splitvfl.hooks import Crossing, Secrets

REMEMBERED = 32
"""Batches of each class whose statistics are kept for batches in which the class is missing."""

OFF_AXIS_RATIO = 5.0
"""Noise off the axis over the largest norm there, as in the isotropic baseline."""

_ON_AXIS = torch.finfo(torch.bfloat16).eps  # what the coarsest dtype of a gradient leaves off a line, with room

# On a CPU, blocks of 1 MiB of float32 stay in the cache between one operation and the next.
_BLOCK_ENTRIES = 2**18
# Within these, squares of entries and of their rounding errors are normal numbers in float32, and so are their sums.
_SAFE_MEAN_SQUARES = (1e-20, 1e24)

Pair: TypeAlias = tuple[float, float]
"""A value for negatives and one for positives."""


class ClassSpread(NamedTuple):
    """Spread of a batch, for negatives and positives; 0 for a class that is missing.

    Attributes:
        variance: u and v of the sumKL problem.
        energy: Mean squared norm of a row.
        off_axis_peak: Largest row norm off the gap's direction, where the defense measures it.
        on_axis: Whether every row lies on the gap's direction but for rounding, where the defense measures it.
    """

    variance: Pair
    energy: Pair
    off_axis_peak: float = 0.0
    on_axis: bool = False


class NoiseScale(NamedTuple):
    """Standard deviations of the noise, for negatives and positives.

    Attributes:
        along: Along the gap's direction.
        across: In each direction across it.
    """

    along: Pair
    across: Pair


class Problem(NamedTuple):
    """The sumKL problem of one batch.

    Attributes:
        u: Variance of negatives.
        v: Variance of positives.
        gap: Squared distance of the class means.
        width: Number of coordinates that the problem is about.
        positive_share: Share of positives, strictly between 0 and 1.
    """

    u: float
    v: float
    gap: float
    width: int
    positive_share: float


class Allocation(NamedTuple):
    """The noise of one batch.

    Attributes:
        power: Expected squared norm of a row's noise that its problem is given.
        solution: How it is divided.
        detection_error_bound: Lower bound on every attacker's ½(FPR + FNR), under the defense's own assumptions.
    """

    power: float
    solution: SumKLSolution[float]
    detection_error_bound: float


class PowerRule(Protocol):
    """Rule for the noise of each batch."""

    last_ratio: float
    """Power in units of the gap in the batch before, from which a search starts."""

    def allocate(self, problem: Problem) -> Allocation:
        """Return the noise of a batch."""
        ...


class SumKLPower:
    """Rule for the power of the noise: fixed, in proportion to the gap, or the least that reaches a bound.

    The arguments are those of :class:`~splitvfl.defenses.sumkl.SumKL`.

    Raises:
        ArgumentError: Unless exactly one is given, in its range.
    """

    def __init__(self, *, power: float | None, ratio: float | None, detection_error: float | None) -> None:
        given = {"power": power, "ratio": ratio, "detection_error": detection_error}
        names = [name for name, value in given.items() if value is not None]
        if len(names) != 1:
            raise ArgumentError(
                f"expected exactly one of power, ratio and detection_error, got {' and '.join(names) or 'none'}"
            )
        for name, value in (("power", power), ("ratio", ratio)):
            if value is not None and not 0.0 <= value < math.inf:
                raise ArgumentError(f"{name} must be finite and at least 0, got {value!r}")
        self._power, self._ratio = power, ratio
        self._target = None if detection_error is None else sum_kl_for(detection_error)
        self.last_ratio = 0.0

    def allocate(self, problem: Problem) -> Allocation:
        """Return the power that a batch gets, the solution of its problem, and the bound of the Gaussian model."""
        if self._target is None:
            power = self._power if self._power is not None else (self._ratio or 0.0) * problem.gap
            solution = solve_sumkl(*problem, power)
        else:
            # In units of the gap the power changes little from step to step, while gradients shrink.
            power, solution = least_power(*problem, self._target, start=self.last_ratio * problem.gap)
            self.last_ratio = power / problem.gap if problem.gap else 0.0
        return Allocation(power, solution, detection_error_bound(solution.sum_kl))


class LabelledGradient:
    """A batch of cut gradients with its labels. Statistics come back in float64 and in the gradient's unit.

    Args:
        gradient: ``(n, width)``, float32 or wider, all finite.
        labels: ``n`` labels in {0, 1}.

    Raises:
        ArgumentError: If shapes, dtype or labels are not so.
    """

    def __init__(self, gradient: Tensor, labels: Tensor) -> None:
        if gradient.dim() != 2 or gradient.shape[1] == 0 or gradient.dtype not in (torch.float32, torch.float64):
            raise ArgumentError(
                f"expected a gradient of shape (batch, width), float32 or float64, "
                f"got {tuple(gradient.shape)}, {gradient.dtype}"
            )
        if labels.numel() != gradient.shape[0]:
            raise ArgumentError(f"expected one label per row, got {labels.numel()} labels for {gradient.shape[0]} rows")
        self.gradient = gradient
        self.width = gradient.shape[1]
        self.positive = labels.reshape(-1).to(device=gradient.device, dtype=gradient.dtype)
        self.negative = 1.0 - self.positive
        if (self.positive * self.negative).any():
            raise ArgumentError(f"labels must be 0 or 1, got {labels.unique()[:5].tolist()}")
        self._members = torch.stack((self.negative, self.positive)).double()
        positives = round(self._members[1].sum().item())
        self.rows = (gradient.shape[0] - positives, positives)
        self._unit = _unit_of(gradient)
        self._scaled = gradient if self._unit == 1.0 else (gradient.double() / self._unit).to(gradient.dtype)
        self._buffer = gradient.new_empty((min(self._block_rows, gradient.shape[0]), self.width))

    @property
    def _block_rows(self) -> int:
        on_cpu = self.gradient.device.type == "cpu"
        return max(1, _BLOCK_ENTRIES // self.width) if on_cpu else max(1, self.gradient.shape[0])

    def _blocks(self) -> Iterator[slice]:
        rows = self.gradient.shape[0]
        return (slice(start, min(start + self._block_rows, rows)) for start in range(0, rows, self._block_rows))

    def means(self) -> Tensor:
        """Return the class means, ``(2, width)``; 0 for a class that is missing."""
        sums = [
            # Matrix times vector: a product of matrices may be rounded to ten bits on a GPU.
            torch.stack((self.negative[block] @ self._scaled[block], self.positive[block] @ self._scaled[block]))
            for block in self._blocks()
        ]
        total = sums[0].double() if len(sums) == 1 else torch.stack(sums).sum(dim=0, dtype=torch.float64)
        for mean, rows in zip(total, self.rows, strict=True):
            mean.mul_(self._unit / max(rows, 1))
        return total

    def class_averages(self, values: Tensor) -> Pair:
        """Return the averages of ``(n,)`` float64 values over each class; 0 for a class that is missing."""
        negative, positive = (self._members @ values).tolist()
        return negative / max(self.rows[0], 1), positive / max(self.rows[1], 1)

    def squared_deviations(self, means: Tensor) -> Tensor:
        """Return the squared distance of every row from its class mean, ``(n,)``.

        Rows are centred before they are squared: total squares less squared means would cancel where the classes are
        far apart and tight.
        """
        base = (means[0] / self._unit).to(self.gradient.dtype)
        shift = ((means[1] - means[0]) / self._unit).to(self.gradient.dtype)
        norms = []
        for block in self._blocks():
            rows = self._scaled[block]
            centred = torch.sub(rows, base, out=self._buffer[: rows.shape[0]])
            centred.addr_(self.positive[block], shift, alpha=-1.0)
            norms.append(torch.linalg.vector_norm(centred, dim=1))
        return _joined(norms).mul_(self._unit).square_()

    def along_and_off(self, axis: Tensor) -> tuple[Tensor, Tensor]:
        """Return every row's coordinate along a unit vector, and its norm off it, each ``(n,)``."""
        direction = axis.to(self.gradient.dtype)
        along, off = [], []
        for block in self._blocks():
            rows = self._scaled[block]
            along.append(rows @ direction)
            rest = torch.addr(rows, along[-1], direction, alpha=-1.0, out=self._buffer[: rows.shape[0]])
            off.append(torch.linalg.vector_norm(rest, dim=1))
        return _joined(along).mul_(self._unit), _joined(off).mul_(self._unit)

    def with_noise(self, scale: NoiseScale, axis: Tensor, secrets: Secrets, *, on_axis: bool) -> Tensor:
        """Return the gradient plus Gaussian noise of the given scales, as a new tensor.

        A row of class y gets ``along_y ξ axis + across_y (ζ - (ζ·axis) axis)`` with ξ ~ N(0, 1) and ζ ~ N(0, I):
        variance along_y² along the unit vector, across_y² in each direction across it, independent of each other. The
        sum is computed in float64 and rounded once.

        Noise that lies on the axis would be taken off again by the rounding of clean rows, which is known to whoever
        knows two rows that may have been sent. So rows that lie there but for rounding are sent exactly on the axis,
        and others get noise of the size of rounding at least, in every direction.

        Args:
            scale: Standard deviations.
            axis: Unit vector, float64.
            secrets: The sender's, from whom the noise comes.
            on_axis: Whether rows lie on the axis but for rounding; what is off it is then left out.
        """
        across = scale.across
        on_axis = on_axis or self.width == 1
        if not on_axis and any(scale.along):
            longest = row_norms(self.gradient).max().item() + REACH * max(scale.along)
            cover = rounding_cover(self.gradient.dtype, longest)
            across = (max(across[0], cover), max(across[1], cover))
        largest = max(*scale.along, *across)
        along, off = self._per_row(scale.along), self._per_row(across)
        sent = torch.empty_like(self.gradient, memory_format=torch.contiguous_format)
        for block in self._blocks():
            total = self.gradient[block].to(torch.float64, copy=True)
            coordinate = along[block] * secrets.normal(total.shape[0])
            if on_axis:
                coordinate.add_(total @ axis)
                total.zero_()
            if any(across):
                noise = secrets.normal(*total.shape)
                coordinate.addcmul_(off[block], noise @ axis, value=-1.0)
                total.addcmul_(noise, off[block, None])
            sent[block] = secrets.rounded(total.addr_(coordinate, axis), scale=largest, like=sent[block])
        return sent

    def _per_row(self, values: Pair) -> Tensor:
        return self._members[0] * values[0] + self._members[1] * values[1]


def _unit_of(gradient: Tensor) -> float:
    """Return a power of two, which rounds nothing, in which squares of the entries are normal numbers; usually 1."""
    entries = gradient.reshape(-1)
    mean_square = torch.dot(entries, entries).item() / max(entries.numel(), 1)
    if _SAFE_MEAN_SQUARES[0] < mean_square < _SAFE_MEAN_SQUARES[1] or not entries.numel():
        return 1.0
    low, high = (value.item() for value in torch.aminmax(entries))
    if not math.isfinite(high - low):
        raise ArgumentError("the gradient holds NaN or infinite values")
    peak = max(-low, high)
    return 2.0 ** math.frexp(peak)[1] if peak else 1.0


def _joined(parts: list[Tensor]) -> Tensor:
    return (parts[0] if len(parts) == 1 else torch.cat(parts)).double()


class ClassSample(NamedTuple):
    """Statistics of one class in one batch, in units of one record's gradient: the batch's gradients times its rows.

    Attributes:
        rows: Rows of the class in the batch.
        mean: Their mean, ``(width,)``, float64, on the CPU.
        variance: As in :class:`ClassSpread`, like the next two.
        energy: See there.
        off_axis_peak: See there.
    """

    rows: int
    mean: Tensor
    variance: float
    energy: float
    off_axis_peak: float


class ClassHistory:
    """Running statistics of each class, for batches in which it is missing.

    The last :data:`REMEMBERED` batches of each class are pooled, weighted by their rows. They are kept per record,
    that is times the batch's rows, because the gradient of a mean loss carries one over them: a short last batch would
    distort the rest.
    """

    def __init__(self) -> None:
        self._samples: tuple[deque[ClassSample], ...] = (deque(maxlen=REMEMBERED), deque(maxlen=REMEMBERED))
        self._rows_seen = [0, 0]

    def positive_share(self, rows: Pair) -> float:
        """Return the share of positives in all rows seen so far and these."""
        return (self._rows_seen[1] + rows[1]) / (sum(self._rows_seen) + sum(rows))

    @property
    def off_axis_peak(self) -> float:
        """Largest norm off the axis in the remembered batches, per record."""
        return max(sample.off_axis_peak for samples in self._samples for sample in samples)

    def knows(self, label: int) -> bool:
        """Return whether a class was ever seen."""
        return bool(self._samples[label])

    def remember(self, label: int, sample: ClassSample) -> None:
        """Add one class of one batch."""
        self._samples[label].append(sample)
        self._rows_seen[label] += sample.rows

    def mean(self, label: int) -> Tensor:
        """Return a class's pooled mean, ``(width,)``, per record."""
        return torch.stack([share * sample.mean for share, sample in self._weighted(label)]).sum(dim=0)

    def energy(self, label: int) -> float:
        """Return a class's pooled mean squared row norm, per record."""
        return sum(share * sample.energy for share, sample in self._weighted(label))

    def variance(self, label: int, axis: Tensor | None) -> float:
        """Return a class's pooled variance, per record, with that of its batch means around the pooled one.

        Args:
            label: The class.
            axis: Direction along which variances were measured; None if they are averages over coordinates.
        """
        centre = self.mean(label)
        total = 0.0
        for share, sample in self._weighted(label):
            shift = sample.mean - centre
            between = shift.square().mean() if axis is None else (shift @ axis).square()
            total += share * (sample.variance + between.item())
        return total

    def _weighted(self, label: int) -> list[tuple[float, ClassSample]]:
        samples = self._samples[label]
        rows = sum(sample.rows for sample in samples)
        return [(sample.rows / rows, sample) for sample in samples]

    def state_dict(self) -> dict[str, Any]:
        """Return the samples of both classes as plain numbers and tensors."""
        samples = [[sample._asdict() for sample in samples] for samples in self._samples]
        return {"rows_seen": list(self._rows_seen), "samples": samples}

    def load_state_dict(self, state: dict[str, Any], /) -> None:
        """Take back what :meth:`state_dict` returned."""
        self._rows_seen = [int(rows) for rows in state["rows_seen"]]
        for samples, saved in zip(self._samples, state["samples"], strict=True):
            samples.clear()
            samples.extend(ClassSample(**{**sample, "mean": sample["mean"].cpu()}) for sample in saved)


class ClassConditionalNoise(ABC):
    """Base of the defenses that add Gaussian noise whose scales follow from the gap of the class means.

    Args:
        rule: Decides over the power.
    """

    name: ClassVar[str]
    crossing: ClassVar[Crossing] = "gradient"
    needs_binary_labels: ClassVar[bool] = True
    running_totals: ClassVar[frozenset[str]] = frozenset({"batches_sent_as_zeros"})
    variance_is_along_axis: ClassVar[bool]
    """Whether the problem is about the gap's direction alone, so that its width is 1."""

    def __init__(self, rule: PowerRule) -> None:
        self._rule = rule
        self._history = ClassHistory()
        self._sent_as_zeros = 0

    def __call__(self, gradient: Tensor, secrets: Secrets, /) -> Tensor:
        """Return the noisy gradient.

        Args:
            gradient: ``(n, width)``, float32 or float64.
            secrets: The sender's; its labels in {0, 1}, generator and log are used.

        Returns:
            A new tensor like ``gradient``; zeros for a batch that lacks a class which was never seen before.

        Raises:
            ArgumentError: If labels lie outside {0, 1} or are not one per row, or the gradient is not of that kind or
                not finite.
            PrivacyError: If there are no labels.
        """
        batch = LabelledGradient(gradient, secrets.labels)
        if not gradient.shape[0]:
            return gradient.clone()
        means = batch.means()
        direction = self._direction(batch, means)
        if direction is None:
            return self._zeros(batch, means, secrets)
        gap, axis = _length_and_unit(direction)
        spread = self._spread(batch, means, axis)
        problem, off_axis_peak = self._problem(batch, axis, gap, spread)
        self._remember(batch, means, spread)
        allocation = self._rule.allocate(problem)
        scale = self._scale(batch, allocation.solution, off_axis_peak)
        self._log(batch, secrets, allocation, scale, spread)
        return batch.with_noise(scale, axis, secrets, on_axis=spread.on_axis)

    @abstractmethod
    def _spread(self, batch: LabelledGradient, means: Tensor, axis: Tensor) -> ClassSpread:
        """Measure the batch around its class means, along and off the unit vector ``axis``."""

    @abstractmethod
    def _scale(self, batch: LabelledGradient, solution: SumKLSolution[float], off_axis_peak: float) -> NoiseScale:
        """Return the scales of the noise that a solution asks for."""

    def _direction(self, batch: LabelledGradient, means: Tensor) -> Tensor | None:
        """Return the gap between the class means; None if a class is missing and was never seen."""
        if all(batch.rows):
            return means[1] - means[0]
        if not self._history.knows(0 if batch.rows[1] else 1):
            return None
        negative, positive = (
            self._history.mean(label).to(means.device) / sum(batch.rows) if self._history.knows(label) else means[label]
            for label in (0, 1)
        )
        return positive - negative

    def _problem(self, batch: LabelledGradient, axis: Tensor, gap: float, spread: ClassSpread) -> tuple[Problem, float]:
        """Return the problem of this batch, from past batches if a class is missing, and the largest norm off axis."""
        width = 1 if self.variance_is_along_axis else batch.width
        rows = sum(batch.rows)
        if all(batch.rows):
            return Problem(*spread.variance, gap, width, batch.rows[1] / rows), spread.off_axis_peak
        present = 1 if batch.rows[1] else 0
        past_energy = self._history.energy(present) / rows**2 if self._history.knows(present) else 0.0
        # Never scaled down: a batch of easy records says little about the missing class.
        growth = max(1.0, spread.energy[present] / past_energy) if past_energy else 1.0
        measured_along = axis.cpu() if self.variance_is_along_axis else None
        u, v = (
            growth * self._history.variance(label, measured_along) / rows**2
            if self._history.knows(label)
            else spread.variance[label]
            for label in (0, 1)
        )
        peak = max(spread.off_axis_peak, math.sqrt(growth) * self._history.off_axis_peak / rows)
        return Problem(u, v, growth * gap, width, self._history.positive_share(batch.rows)), peak

    def _remember(self, batch: LabelledGradient, means: Tensor, spread: ClassSpread) -> None:
        rows = float(sum(batch.rows))
        kept = (means * rows).cpu()
        for label in (0, 1):
            if batch.rows[label]:
                sample = ClassSample(
                    rows=batch.rows[label],
                    mean=kept[label],
                    variance=spread.variance[label] * rows**2,
                    energy=spread.energy[label] * rows**2,
                    off_axis_peak=spread.off_axis_peak * rows,
                )
                self._history.remember(label, sample)

    def _zeros(self, batch: LabelledGradient, means: Tensor, secrets: Secrets) -> Tensor:
        # Until there is a gap, the direction of the only mean stands in for that of the gap.
        _, axis = _length_and_unit(means.sum(dim=0))
        self._remember(batch, means, self._spread(batch, means, axis))
        self._sent_as_zeros += 1
        secrets.log("batches_sent_as_zeros", float(self._sent_as_zeros))
        return torch.zeros_like(batch.gradient)

    def _log(
        self,
        batch: LabelledGradient,
        secrets: Secrets,
        allocation: Allocation,
        scale: NoiseScale,
        spread: ClassSpread,
    ) -> None:
        secrets.log("power", allocation.power)
        secrets.log("sum_kl", allocation.solution.sum_kl)
        secrets.log("detection_error_bound", allocation.detection_error_bound)
        noise = sum(
            rows * (along**2 + (batch.width - 1) * across**2)
            for rows, along, across in zip(batch.rows, *scale, strict=True)
        )
        signal = sum(rows * energy for rows, energy in zip(batch.rows, spread.energy, strict=True))
        if signal > 0.0:
            secrets.log("noise_to_signal", noise / signal)
        if self._sent_as_zeros:
            secrets.log("batches_sent_as_zeros", float(self._sent_as_zeros))

    def state_dict(self) -> dict[str, Any]:
        """Return the running statistics, the start of the next search and the count of batches sent as zeros."""
        return {
            "history": self._history.state_dict(),
            "last_ratio": self._rule.last_ratio,
            "batches_sent_as_zeros": self._sent_as_zeros,
        }

    def load_state_dict(self, state: dict[str, Any], /) -> None:
        """Take back what :meth:`state_dict` returned."""
        self._history.load_state_dict(state["history"])
        self._rule.last_ratio = float(state["last_ratio"])
        self._sent_as_zeros = int(state["batches_sent_as_zeros"])


class AxisNoise(ClassConditionalNoise):
    """Class-conditional noise whose problem is about the gap's direction alone: variances are measured along it."""

    variance_is_along_axis: ClassVar[bool] = True

    def _spread(self, batch: LabelledGradient, means: Tensor, axis: Tensor) -> ClassSpread:
        along, off = batch.along_and_off(axis)
        energy = batch.class_averages(along.square() + off.square())
        negative, positive = along.new_tensor(batch.class_averages(along))
        centred = along - torch.where(batch.positive > 0.5, positive, negative)
        largest, largest_off = along.abs().max().item(), off.max().item()
        return ClassSpread(
            variance=batch.class_averages(centred.square_()),
            energy=energy,
            off_axis_peak=max(largest_off, torch.finfo(batch.gradient.dtype).eps * largest),
            on_axis=largest_off <= _ON_AXIS * largest,
        )


def _length_and_unit(direction: Tensor) -> tuple[float, Tensor]:
    """Return a vector's squared length and its unit vector: the first coordinate's where the vector is 0."""
    square = float(direction @ direction)
    if square == 0.0:
        return 0.0, torch.eye(1, direction.shape[0], dtype=direction.dtype, device=direction.device)[0]
    return square, direction / math.sqrt(square)

"""The log ratio of a record's two labels, given its row of a message, its prediction, and the top's weights.

A row of the cut gradient is ``(p − y) w / n`` below a linear top w, and in general ``u + y J``: the row under label 0,
and how it changes with the label. The label party knows u and J of every record, and so it can read a row in units of
the label: noise counts against J, whatever the distance between the classes' means is.
"""

from __future__ import annotations

import math
from functools import cache
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import scipy
import torch
from torch import Tensor

from splitvfl.leakage.state import Stateful
from splitvfl.learning.label_gradients import LabelGradients

Floats = npt.NDArray[np.float64]
Flags = npt.NDArray[np.bool_]

MOST = 30.0
"""Nats that one message can add: what is known with e⁻³⁰ need not be known better, and no step outweighs a run."""

# Memory of the means, in steps: they are in units of the label, and stay as they are while noise changes.
_MEANS_DECAY = 0.999
# Memory of the noise's scale: about the last ten steps count, as so many rows beside those of this batch; that of what
# marks a class is longer.
_SCALE_DECAY, _SCALE_ROWS, _MARK_DECAY = 0.9, 8.0, 0.95
# A class counts as if so many rows had shown what both classes show together.
_PRIOR_ROWS = 4.0
_LEAST_ROWS = 4.0
# A marking is relied on when it was worth something in so many standard errors more than half of the steps, of which
# about the last hundred count, and tells no more than so many nats of a record.
_WORTH, _CERTAIN, _RIGHT_DECAY, _NEAR = 1e-3, 2.5, 0.99, 8.0
# Least noise, in units of the label: rounding is not modelled.
_LEAST_NOISE = 1e-3
# Energy off J is floored at this share of the batch's mean energy, so that rounding noise has no shape.
_FLOOR = 1e-9
_TINY = torch.finfo(torch.float64).tiny
# Ways of a smaller square, in units of the longest, are none; probabilities have logits within ±27.6.
_LEAST_SQUARE, _LEAST_SHARE = 1e-18, 1e-12
# Exponents of generalised Gaussians, and their mean distance from 0 in standard deviations: Laplace 1, Gaussian 2.
_EXPONENTS = np.linspace(0.6, 8.0, 149)
_GAUSSIAN = 28
_LEAST_ENERGY = 1e-4


@cache
def _distances() -> Floats:
    gammaln = scipy.special.gammaln
    found: Floats = np.exp(gammaln(2.0 / _EXPONENTS) - 0.5 * (gammaln(1.0 / _EXPONENTS) + gammaln(3.0 / _EXPONENTS)))
    return found


class Messages(NamedTuple):
    """Rows of a message in the unit of the label, one entry for each record.

    Attributes:
        shift: Where the row is on the way from the row under label 0, at 0, to that under label 1, at 1.
        centre: Where on it a row of zeros is: the prediction, under cross entropy.
        length: Norm of that way; 0 where the row does not depend on the label.
        energy: Log energy off it, in units of the batch's mean energy.
        silent: Whether the row is zero.
        logit: Log odds of the prediction.
    """

    shift: Floats
    centre: Floats
    length: Floats
    energy: Floats
    silent: Flags
    logit: Floats


def read_message(sent: Tensor, label_gradients: LabelGradients, real: Flags | None = None) -> Messages:
    """Return what there is to read in a message, whoever's label it is.

    Args:
        sent: ``(n, width)``.
        label_gradients: What would be sent under every label, of the same rows.
        real: ``(n,)``: which rows to read. Default: all.
    """
    values = label_gradients.values or (0.0, 1.0)
    base = label_gradients.under(min(values))
    way = label_gradients.under(max(values)) - base
    rows = sent.flatten(1).to(way)
    probability = label_gradients.predictions[:, -1].to(way.device)
    if real is not None:
        chosen = torch.from_numpy(real).to(way.device)
        base, way, rows, probability = base[chosen], way[chosen], rows[chosen], probability[chosen]
    square = torch.linalg.vecdot(way, way)
    along, start = torch.linalg.vecdot(rows, way), torch.linalg.vecdot(base, way)
    energy = torch.linalg.vecdot(rows, rows)
    longest = square.max().clamp(min=_TINY)
    inverse = torch.where(square > _LEAST_SQUARE * longest, 1.0 / square.clamp(min=_TINY), 0.0)
    off = (energy - along.square() * inverse).clamp(min=0.0) / energy.mean().clamp(min=_TINY) + _FLOOR
    logit = torch.logit(probability.clamp(_LEAST_SHARE, 1.0 - _LEAST_SHARE))
    length = (square / longest).sqrt()
    numbers = torch.stack([(along - start) * inverse, -start * inverse, length, off.log(), logit]).cpu().numpy()
    shift, centre, lengths, energies, logits = numbers
    return Messages(shift, centre, lengths, energies, (energy == 0.0).cpu().numpy(), logits)


def expected_axis(label_gradients: LabelGradients, chosen: Tensor | None = None) -> Tensor | None:
    """Return the direction from the mean row of label 0 to that of label 1 that predictions lead one to expect.

    Each record counts in both means, as probable as the prediction has each label: no label of the batch enters, as one
    would that enters the axis on which its own record is scored.

    Args:
        label_gradients: What would be sent under every label.
        chosen: ``(n,)`` bool: the records that count. Default: all.

    Returns:
        Unit vector, ``(width,)`` float64; ``None`` where there is none.
    """
    values = label_gradients.values or (0.0, 1.0)
    probability = label_gradients.predictions[:, -1].clamp(_LEAST_SHARE, 1.0 - _LEAST_SHARE)
    counted = torch.ones_like(probability) if chosen is None else chosen.to(probability)
    if not bool(counted.any()):
        return None
    positive = label_gradients.mean_under(max(values), probability * counted)
    axis = positive - label_gradients.mean_under(min(values), (1.0 - probability) * counted)
    peak = axis.abs().max()
    if not bool(peak > 0) or not bool(torch.isfinite(peak)):
        return None
    axis = axis / peak
    unit: Tensor = axis / torch.linalg.vector_norm(axis)
    return unit


def answers_of(label_gradients: LabelGradients) -> Flags | None:
    """Return which targets are the larger of the values that a target can take; ``None`` if there is no telling.

    Behind a label defense these are its answers, and no message tells more of a label than they do.
    """
    values = label_gradients.values
    if values is None:
        return None
    targets = label_gradients.targets.detach().reshape(-1).double().cpu().numpy()
    found: Flags = targets > 0.5 * (min(values) + max(values))
    return found


def of_records(messages: Messages, chosen: Flags) -> Messages:
    """Return the same of some records."""
    return messages if chosen.all() else Messages._make(values[chosen] for values in messages)


class LabelRatios(Stateful):
    """Log ratios of the two labels, fitted on earlier steps only.

    With x the shift of a row less its centre, z the centre, and ``J`` its length, ``x J / s`` has a mean that is linear
    in ``J / s`` and ``z J / s`` for each label, with noise of scale s. In a message that is clean, or to which noise
    was added, x has the mean ``y − z``. Means are remembered for long, as they are in units
    of the label; the scale of the noise is that of about the last ten steps and of this batch, where labels are not
    used but marginalised. The noise's density is a
    generalised Gaussian whose exponent is fitted, with a variance for each label. The log energy off J is Gaussian for
    each label, its mean linear in z as well.

    A ratio knows nothing of the label of its own record, or of any other in the batch. Where messages tell nothing its
    expectation is 0 at every prediction: residuals are measured in units of what the fit's own uncertainty adds to
    them, and otherwise whoever is fitted on fewer rows would seem less likely where those are rare.
    """

    _kept = ("_shift", "_energy", "_scale", "_distance", "_silent")

    def __init__(self) -> None:
        self._shift = _ClassFits(_MEANS_DECAY)
        self._energy = _Marking()
        self._scale = np.zeros(2)  # sum of squares, and rows
        self._distance = np.array([_PRIOR_ROWS * _distances()[_GAUSSIAN], _PRIOR_ROWS, _PRIOR_ROWS])
        self._silent = np.zeros((2, 2))  # by label, of silent rows and of all

    @property
    def fitted(self) -> bool:
        """Whether enough was seen: a ratio is 0 before."""
        return self._shift.ready

    def __call__(self, messages: Messages, positive: Flags, *, known: Flags | None = None) -> Floats:
        """Return the log ratio of label 1 against 0 of each record, ``(n,)`` in nats, and learn from the labels then.

        Args:
            messages: What was read.
            positive: ``(n,)``: whether the label, or what a label defense answered, is the larger one.
            known: ``(n,)``: whose labels are learned from. Default: everybody's.
        """
        known = np.ones(positive.shape, np.bool_) if known is None else known
        speaks = ~messages.silent
        ratios = np.where(speaks, 0.0, self._of_silence())
        rows, labels = of_records(messages, speaks), positive[speaks]
        if rows.shift.size:
            ratios[speaks] = self._of_rows(rows, labels, known[speaks])
        for label, chosen in enumerate((known & ~positive, known & positive)):
            self._silent[label] += (np.count_nonzero(chosen & messages.silent), np.count_nonzero(chosen))
        return np.clip(ratios, -MOST, MOST)

    def _of_silence(self) -> float:
        """Return the log ratio of a row of zeros, 0 unless it is certain that one label brings more of them."""
        silent, rows = self._silent.T
        if rows.min() < 1 or silent.sum() == 0:
            return 0.0
        shares = (silent + 0.5) / (rows + 1.0)
        ratio = math.log(shares[1] / shares[0])
        error = math.sqrt(float((1.0 / (silent + 0.5)).sum()))
        return ratio if abs(ratio) > 4.0 * error else 0.0

    def _known_share(self, centre: Floats) -> float:
        """Return how far log odds have to be moved for predictions to have the share of positives of earlier steps."""
        rows = self._silent[:, 1] + 0.5
        return math.log(rows[1] / rows[0]) - float(_log_odds(centre.mean()))

    def _of_rows(self, rows: Messages, positive: Flags, known: Flags) -> Floats:
        along = (rows.shift - rows.centre) * rows.length
        plain = np.stack([np.ones(along.size), rows.centre], axis=1)
        scale = self._noise(along, rows, plain)
        floor = np.square(_LEAST_NOISE * rows.length / scale)
        design, values = plain * (rows.length / scale)[:, None], along / scale
        ratios = np.zeros(along.size)
        exponent = self._exponent()
        own = None
        if self._shift.ready:
            found = self._shift.residuals(design, values, floor)
            ratios += found.ratio(exponent)
            own = found.of(positive)
        odds = _log_odds(rows.centre) + ratios + self._known_share(rows.centre)
        ratios += self._energy(rows.energy, plain, odds.clip(-MOST, MOST), positive, known)
        own = None if own is None else own[known]
        self._learn(design[known], values[known], positive[known], scale, own)
        return ratios

    def _learn(self, design: Floats, values: Floats, positive: Flags, scale: float, own: Floats | None) -> None:
        self._scale *= _SCALE_DECAY
        if own is not None:
            kept = np.clip(own, -8.0, 8.0)
            self._distance = 0.999 * self._distance + (np.abs(kept).sum(), np.square(kept).sum(), kept.size)
            self._scale += (scale**2 * np.square(kept).sum(), kept.size)
        else:
            self._scale += (scale**2 * values.size, values.size)
        self._shift.learn(design, values, positive)

    def _noise(self, along: Floats, rows: Messages, plain: Floats) -> float:
        """Return the scale of the noise along J in this batch, without its labels."""
        least = max(_LEAST_NOISE * float(rows.length.max()), 1e-300)
        if not self._shift.ready:
            return max(math.sqrt(float(np.square(along).mean())), least)
        usual = self._scale[0] / self._scale[1]
        coefficients, variances, _ = self._shift.fit()
        means = plain @ coefficients.T * rows.length[:, None]
        squares = np.square(along[:, None] - means) / np.maximum(variances, 1e-12)
        prior = _log_odds(rows.centre)
        noise = usual
        for _ in range(2):
            odds = prior - 0.5 * (squares[:, 1] - squares[:, 0]) / max(noise, least**2)
            posterior = scipy.special.expit(odds)
            found = posterior * squares[:, 1] + (1.0 - posterior) * squares[:, 0]
            noise = (_SCALE_ROWS * usual + found.sum()) / (_SCALE_ROWS + found.size)
        return max(math.sqrt(noise), least)

    def _exponent(self) -> float:
        distance, square, rows = self._distance
        ratio = distance / math.sqrt(max(square * rows, 1e-300))
        return float(np.interp(ratio, _distances(), _EXPONENTS))


class _Residuals(NamedTuple):
    """Residuals under both labels, in standard deviations, ``(n, 2)``, and the variances of these two, ``(2,)``."""

    values: Floats
    variances: Floats

    def log_densities(self, exponent: float = 2.0) -> Floats:
        """Return those of generalised Gaussians of this exponent, ``(n, 2)``, up to what both labels have."""
        width = math.exp(0.5 * (scipy.special.gammaln(1.0 / exponent) - scipy.special.gammaln(3.0 / exponent)))
        found: Floats = -(np.abs(self.values / width) ** exponent) - 0.5 * np.log(self.variances)
        return found

    def ratio(self, exponent: float) -> Floats:
        """Return the log ratio of these densities, ``(n,)``."""
        densities = self.log_densities(exponent)
        found: Floats = densities[:, 1] - densities[:, 0]
        return found

    def of(self, positive: Flags) -> Floats:
        """Return the residuals under these labels."""
        return np.where(positive, self.values[:, 1], self.values[:, 0])


class _Marking(Stateful):
    """Log ratio of the labels from the log energy off J: a class that is marked by more noise, or by less.

    Which class is marked may change from step to step, as it does with sumKL. So what is fitted is the energy of the
    class with more of it in a step, and of that with less. Which is which in a new step the other records of it tell,
    by their predictions and shifts. What it says counts while it has been right in earlier steps: where no class is
    marked it would add noise.
    """

    _kept = ("_fits", "_steps", "_right")

    def __init__(self) -> None:
        self._fits = _ClassFits(_MARK_DECAY)
        self._steps = np.ones(2)  # in which label 0, or label 1, has more
        self._right = np.zeros(2)  # steps, and those in which the ratios were worth something

    def __call__(self, energy: Floats, design: Floats, odds: Floats, positive: Flags, known: Flags) -> Floats:
        """Return the ratios, ``(n,)``, 0 while they cannot be relied on, and learn from the labels then.

        Args:
            energy: ``(n,)``.
            design: ``(n, 2)``, of the fits.
            odds: ``(n,)``, log odds of label 1 before.
            positive: ``(n,)``.
            known: ``(n,)``: whose labels are learned from.
        """
        ratios = self._ratios(energy, design, odds)
        relied = ratios if self._reliable else np.zeros_like(ratios)
        ratios, energy, design, positive = ratios[known], energy[known], design[known], positive[known]
        if positive.any() and not positive.all():
            if self._fits.ready:
                self._score(ratios, positive)
            more = bool(energy[positive].mean() > energy[~positive].mean())
            self._steps *= _MARK_DECAY
            self._steps[int(more)] += 1.0
            self._fits.learn(design, energy, positive if more else ~positive)
        return relied

    def _ratios(self, energy: Floats, design: Floats, odds: Floats) -> Floats:
        if not self._fits.ready:
            return np.zeros_like(energy)
        densities = self._fits.residuals(design, energy, _LEAST_ENERGY).log_densities()
        turned = densities[:, ::-1]
        labels = np.stack([-np.logaddexp(0.0, odds), -np.logaddexp(0.0, -odds)], axis=1)
        first, second = (np.logaddexp.reduce(labels + each, axis=1) for each in (densities, turned))
        # Of each record only the others say which way round the step is, or it would speak for its own prediction.
        told = (first - second).clip(-_NEAR, _NEAR)
        others = (told.sum() - told + math.log(self._steps[1] / self._steps[0]))[:, None]
        both = np.logaddexp(densities - np.logaddexp(0.0, -others), turned - np.logaddexp(0.0, others))
        found: Floats = (both[:, 1] - both[:, 0]).clip(-_NEAR, _NEAR)
        return found

    @property
    def _reliable(self) -> bool:
        steps, right = self._right
        return bool(2.0 * right - steps > _CERTAIN * math.sqrt(steps))

    def _score(self, ratios: Floats, positive: Flags) -> None:
        """Note whether knowing the ratios was worth something in a step, both labels counting alike."""
        gains = math.log(2.0) - np.logaddexp(0.0, np.where(positive, -ratios, ratios))
        self._right = _RIGHT_DECAY * self._right + (
            1.0,
            float(gains[positive].mean() + gains[~positive].mean() > _WORTH),
        )


def _log_odds(shares: Floats | np.floating[Any]) -> Floats:
    clipped = np.clip(shares, 0.02, 0.98)
    found: Floats = np.log(clipped) - np.log1p(-clipped)
    return found


class _ClassFits(Stateful):
    """Linear fits, one for each label, of a number on a design of two columns, by earlier rows only."""

    _kept = ("_count", "_design", "_product", "_square")

    def __init__(self, decay: float) -> None:
        self._decay = decay
        self._count = np.zeros(2)
        self._design = np.zeros((2, 2, 2))
        self._product = np.zeros((2, 2))
        self._square = np.zeros(2)
        self._found: tuple[Floats, Floats, Floats] | None = None

    @property
    def ready(self) -> bool:
        """Whether there are a few rows of each label."""
        return bool(self._count.min() >= _LEAST_ROWS)

    def fit(self) -> tuple[Floats, Floats, Floats]:
        """Return coefficients ``(2, 2)``, variances ``(2,)``, and inverse designs ``(2, 2, 2)``, by label.

        A label has a few rows more that are like those of both together: with few of its own it seems no different.
        """
        if self._found is not None:
            return self._found
        design, product, count = self._design.sum(axis=0), self._product.sum(axis=0), self._count.sum()
        ridge = 1e-9 * np.trace(design) * np.eye(2) + 1e-300 * np.eye(2)
        pooled = np.linalg.solve(design + ridge, product)
        spread = max((self._square.sum() - product @ pooled) / count, 0.0)
        share = _PRIOR_ROWS / count
        inverses = np.linalg.inv(self._design + share * design + ridge)
        coefficients = np.einsum("cij,cj->ci", inverses, self._product + share * product)
        squares = (
            self._square
            - 2.0 * (coefficients * self._product).sum(axis=1)
            + np.einsum("ci,cij,cj->c", coefficients, self._design, coefficients)
        )
        variances = (squares.clip(min=0.0) + _PRIOR_ROWS * spread) / (self._count + _PRIOR_ROWS)
        self._found = coefficients, variances, inverses
        return self._found

    def residuals(self, design: Floats, values: Floats, floor: Floats | float) -> _Residuals:
        """Return the residuals under each label, in units of their deviation, what the fit's own adds included."""
        coefficients, variances, inverses = self.fit()
        leverage = np.einsum("ni,cij,nj->nc", design, inverses, design)
        floors = np.broadcast_to(floor, values.shape)[:, None]
        deviations = np.sqrt(variances * (1.0 + leverage) + floors)
        return _Residuals((values[:, None] - design @ coefficients.T) / deviations, variances + floors)

    def learn(self, design: Floats, values: Floats, positive: Flags) -> None:
        """Add rows, and let earlier ones fade."""
        self._found = None
        for label, chosen in enumerate((~positive, positive)):
            rows, own = design[chosen], values[chosen]
            self._count[label] = self._decay * self._count[label] + own.size
            self._design[label] = self._decay * self._design[label] + rows.T @ rows
            self._product[label] = self._decay * self._product[label] + rows.T @ own
            self._square[label] = self._decay * self._square[label] + own @ own

    def load_state_dict(self, state: dict[str, Any], /) -> None:
        """Take back what :meth:`state_dict` returned."""
        self._found = None
        super().load_state_dict(state)

"""How far one party's row moves all that it sends in a training of HDP-VFL: as published, and as the optimiser does it.

Parties train one linear model. A passive party sends its part of the logits, the active party the loss's derivative at
every record. Each clips what it receives, keeps its weights in a ball, and sends with Gaussian noise, whose scale
follows from the L2 sensitivity of the whole sequence of messages. Here is that sensitivity; the noise is elsewhere.

**Neighbours**: two runs that differ in one row of one party (with its label, at the active party), are given the same
messages of the others, and visit records in the same order, which everybody knows.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from decimal import ROUND_FLOOR, Context
from functools import lru_cache
from threading import Lock
from typing import Literal

import numpy as np
import numpy.typing as npt
import scipy

from splitvfl.errors import ArgumentError, count, from_zero, number, positive

Side = Literal["passive", "active"]
_ROUNDING = 1e-14
_SIX_DIGITS = Context(prec=6, rounding=ROUND_FLOOR)
_Floats = npt.NDArray[np.float64]
_EpochTerms = tuple[float, float, _Floats, _Floats, _Floats]


def hdp_sensitivity(
    party: Side,
    *,
    steps: int,
    epochs: int,
    batch_size: int,
    eta: float,
    k: float,
    lipschitz: float,
    beta_theta: float | None = None,
    beta_y: float | None = None,
    k_y: float | None = None,
) -> float:
    """Return the published L2 sensitivity of all messages of one party in a training of HDP-VFL.

    With e epochs, T steps, learning rate η, batches of b records and ``|h| ≤ L``:

    - passive party, lemma 3: ``Δ² = 4 L² e² T η² / b + 8 k L e² η / b + 4 k² e``
    - active party, lemma 4: ``Δ² = 4 β_θ² L² e² T η² / b + 8 q β_θ L e² η / b + 4 q² e`` with ``q = β_θ k + β_y k_y``

    It assumes, and cannot check: rows of norm at most 1; weights in a ball of radius k; every record at most once in an
    epoch; and that **the receiver clips** what it uses, derivatives to [−L, L] and parts of logits to [−k, k]. Without
    the last, large noise moves the receiver's weights farther than the lemma says. Batches are of one size: where
    the last batch of an epoch is smaller, :func:`tight_hdp_sensitivity` counts it.

    Source: *Hybrid Differentially Private Federated Learning on Vertically Partitioned Data*, lemmas 3 and 4.

    Args:
        party: ``"passive"`` or ``"active"``.
        steps: T, the number of all steps together, at least e.
        epochs: e, how often each record is used.
        batch_size: b, records in a batch; no more than there are records.
        eta: Learning rate η; at the active party at most 2 / β_θ.
        k: Radius of the ball that the party's weights stay in.
        lipschitz: L, the largest ``|h|``, where h is the loss's derivative by the logit.
        beta_theta: β_θ, the largest slope of h in the logit; of the active party only.
        beta_y: β_y, the largest slope of h in the label; of the active party only.
        k_y: Largest absolute label; of the active party only.

    Returns:
        Δ, in the unit of a message's entry.

    Raises:
        ArgumentError: If an argument is outside its range, or missing.

    >>> one_batch = dict(steps=10, epochs=10, batch_size=455, eta=0.1, k=1, lipschitz=1)
    >>> round(hdp_sensitivity("passive", **one_batch), 3)
    6.345
    >>> round(hdp_sensitivity("active", **one_batch, beta_theta=0.25, beta_y=0.5, k_y=1), 3)
    4.747
    """
    used = count("epochs", epochs)
    if count("steps", steps) < used:
        raise ArgumentError(f"steps counts those of all epochs together: expected at least {used}, got {steps}")
    slope, half = _slope_and_half_step(party, positive("k", k), beta_theta, beta_y, k_y)
    _check_rate(party, positive("eta", eta), slope)
    moved = positive("lipschitz", lipschitz) * slope * used
    drift = 4.0 * moved**2 * steps * eta**2 / count("batch_size", batch_size)
    return math.sqrt(drift + 8.0 * half * moved * used * eta / batch_size + 4.0 * half**2 * used)


def tight_hdp_sensitivity(
    party: Side,
    *,
    steps: int,
    epochs: int,
    batch_size: int,
    eta: float,
    k: float,
    lipschitz: float,
    beta_theta: float | None = None,
    beta_y: float | None = None,
    k_y: float | None = None,
    weight_decay: float = 0.0,
    step: float | None = None,
    proximal_l2: float = 0.0,
    row_norm: float = 1.0,
    last_batch: int | None = None,
    after: int | None = None,
) -> float:
    """Return the L2 sensitivity of all messages of one party, from what this optimiser does step by step.

    How far two neighbouring runs' weights can be apart, d, follows ``d ← a d`` in a step without the changed record and
    ``d ← a d + 2 η L R / b`` in one with it, with ``a = (1 − η λ) / (1 + η λ')``; soft thresholds and the projection
    never move them farther apart, and after the projection d is at most 2k. In each step, every record of the batch
    adds ``(β R d)²`` to Δ², the changed one ``(step + β R d)²``; β is 1 at the passive party and β_θ at the active
    one. It is the largest sum over all places of the changed record in the batches of each epoch, one in each.

    It is never above :func:`hdp_sensitivity`, assumes the same, and is exact but for rounding (of 12 digits) unless the
    ball bounds d, and weights decay or the last batch is smaller, where it may be larger.

    Source: derived from lemmas 2 to 4 of *Hybrid Differentially Private Federated Learning on Vertically Partitioned
    Data*, without the inequalities that they end with.

    Args:
        party: As :func:`hdp_sensitivity`, and so all arguments without a default.
        steps: T, the number of all steps together: a multiple of e.
        epochs: e, how often each record is used.
        batch_size: b, records in a batch.
        eta: Learning rate η; at the passive party η λ may be at most 1, at the active one η at most
            ``2 / (β_θ R² + 2 λ)``.
        k: Radius of the ball that the party's weights stay in.
        lipschitz: L, the largest ``|h|``.
        beta_theta: β_θ; of the active party only.
        beta_y: β_y; of the active party only.
        k_y: Largest absolute label; of the active party only.
        weight_decay: λ of ``w − η (g + λ w)``, from 0.
        step: Farthest that the changed record's own entry moves while the weights stay; default: 2 k R at the passive
            party, min(2 q, 2 L) with ``q = β_θ k R + β_y k_y`` at the active one. A larger value is not taken. For the
            logistic loss it is ``1 + tanh(k R / 2)`` at the active party.
        proximal_l2: λ' of a proximal step, which divides weights by ``1 + η λ'``, from 0.
        row_norm: R, the largest norm of a row of this party.
        last_batch: Records in the last batch of every epoch, if it is smaller; no more than ``batch_size``.
        after: Count the first so many steps only: what is spent by then. Default: all.

    Returns:
        Δ, in the unit of a message's entry; 0 after no step.

    Raises:
        ArgumentError: If an argument is outside its range, or missing.

    >>> one_batch = dict(steps=10, epochs=10, batch_size=455, eta=0.1, k=1, lipschitz=1)
    >>> round(tight_hdp_sensitivity("passive", **one_batch), 3)
    6.333
    >>> logistic = dict(beta_theta=0.25, beta_y=0.5, k_y=1, step=1.462117)
    >>> round(tight_hdp_sensitivity("active", **one_batch, **logistic), 3)
    4.625
    """
    each, rest = divmod(count("steps", steps), count("epochs", epochs))
    if rest or not each:
        raise ArgumentError(
            f"steps counts those of all epochs together: expected a multiple of the {epochs} epochs, got {steps}"
        )
    taken = steps if after is None else number("after", after)
    if not 0 <= taken <= steps or taken % 1:
        raise ArgumentError(f"after must be a whole number of steps from 0 to {steps}, got {after!r}")
    training = HdpTraining(
        party=party,
        steps_per_epoch=each,
        batch_size=batch_size,
        eta=eta,
        k=k,
        lipschitz=lipschitz,
        beta_theta=beta_theta,
        beta_y=beta_y,
        k_y=k_y,
        weight_decay=weight_decay,
        step=step,
        proximal_l2=proximal_l2,
        row_norm=row_norm,
        last_batch=last_batch,
    )
    return training.sensitivity(int(taken))


@dataclass(frozen=True, kw_only=True)
class HdpTraining:
    """How one party trains, as far as the sensitivity of what it sends depends on it; all but its length.

    Attributes are the arguments of :func:`tight_hdp_sensitivity`, checked in the same way, and:

    Attributes:
        steps_per_epoch: Batches in an epoch.
        changed: What neighbours differ in: the party's ``"row"`` of one record, at the active party with its label; or
            the ``"label"`` alone, which moves a derivative by at most ``min(2 β_y k_y, 2 L)``.

    >>> training = HdpTraining(party="passive", steps_per_epoch=1, batch_size=455, eta=0.1, k=1, lipschitz=1)
    >>> round(training.sensitivity(10), 3), round(training.sensitivity(5), 3)
    (6.333, 4.474)
    """

    party: Side
    steps_per_epoch: int
    batch_size: int
    eta: float
    k: float
    lipschitz: float
    beta_theta: float | None = None
    beta_y: float | None = None
    k_y: float | None = None
    weight_decay: float = 0.0
    step: float | None = None
    proximal_l2: float = 0.0
    row_norm: float = 1.0
    last_batch: int | None = None
    changed: Literal["row", "label"] = "row"

    def __post_init__(self) -> None:
        slope, _ = self._slope_and_half_step()
        decay = from_zero("weight_decay", self.weight_decay)
        _check_rate(self.party, positive("eta", self.eta), slope * positive("row_norm", self.row_norm) ** 2, decay)
        positive("lipschitz", self.lipschitz)
        from_zero("proximal_l2", self.proximal_l2)
        count("steps_per_epoch", self.steps_per_epoch)
        size = count("batch_size", self.batch_size)
        if self.step is not None:
            positive("step", self.step)
        if self.last_batch is not None and count("last_batch", self.last_batch) > size:
            raise ArgumentError(f"last_batch must be at most the batch size, {size}, got {self.last_batch}")

    def sensitivity(self, steps: int) -> float:
        """Return the L2 sensitivity of all messages of the first so many steps.

        Args:
            steps: From 0; every ``steps_per_epoch`` of them are an epoch.
        """
        epochs, rest = divmod(steps, self.steps_per_epoch)
        # An account asks for this after every epoch, and what is known of all epochs before is not found anew.
        return self._weighted(np.ones(steps)) if rest else math.sqrt(_whole_epochs(self).largest_sum(epochs))

    def numbers(self, steps: int) -> npt.NDArray[np.float64]:
        """Return how many numbers are sent in each of the first so many steps: one for each record of the batch."""
        return np.resize(_whole_epochs(self).epoch.sizes, steps)

    def moved(self, steps: int) -> float:
        """Return how far another row moves an entry of any other record, after so many steps: β R d.

        The largest, over all places of the changed record in the batches.
        """
        whole = _whole_epochs(self)
        epochs, rest = divmod(steps, self.steps_per_epoch)
        apart = whole.distance(epochs)
        return whole.epoch.slope * (_one_epoch_on(whole.epoch, apart, rest) if rest else apart)

    def weighted_sensitivity(self, factors: npt.ArrayLike) -> float:
        """Return the root of the largest ``Σ_t f_t ‖Δ_t‖²``, where Δ_t is by how much the message of step t moves.

        With ``f_t = 1 / σ_t²`` it is the μ of noise that changes in the course of a training; with 2 / σ_t² of a step
        that was sent twice, with new noise.

        Args:
            factors: f_t for every step that was taken, from 0.
        """
        weights = np.asarray(factors, dtype=np.float64)
        if weights.ndim != 1 or not bool((np.isfinite(weights) & (weights >= 0)).all()):
            raise ArgumentError("expected one finite factor, at least 0, for each step")
        if len(weights) and bool((weights == weights[0]).all()):
            return math.sqrt(weights[0]) * self.sensitivity(len(weights))
        return self._weighted(weights)

    def _weighted(self, weights: _Floats) -> float:
        epoch, each = _whole_epochs(self).epoch, self.steps_per_epoch
        epochs = [weights[start : start + each] for start in range(0, len(weights), each)]
        return math.sqrt(min(_largest_sum(epoch, epochs), _largest_sum_in_ball(epoch, epochs)))

    def _slope_and_half_step(self) -> tuple[float, float]:
        reach = positive("k", self.k) * positive("row_norm", self.row_norm)
        slope, half = _slope_and_half_step(self.party, reach, self.beta_theta, self.beta_y, self.k_y)
        if self.changed == "row":
            return slope, half
        if self.changed != "label" or self.party != "active" or self.beta_y is None or self.k_y is None:
            raise ArgumentError(
                f"changed must be 'row', or 'label' at the active party, got {self.changed!r} at the {self.party} party"
            )
        return slope, self.beta_y * self.k_y

    def _epoch(self) -> _Epoch:
        slope, half = self._slope_and_half_step()
        farthest = 2.0 * half if self.party == "passive" else min(2.0 * half, 2.0 * self.lipschitz)
        farthest = farthest if self.step is None else min(farthest, self.step)
        # A changed row may turn the gradient of its record around, a changed label moves its derivative only.
        turned = 2.0 * self.lipschitz if self.changed == "row" else farthest
        sizes = np.full(self.steps_per_epoch, float(self.batch_size))
        sizes[-1] = self.batch_size if self.last_batch is None else self.last_batch
        return _Epoch(
            sizes=sizes,
            shrinking=(1.0 - self.eta * self.weight_decay) / (1.0 + self.eta * self.proximal_l2),
            push=self.eta * turned * self.row_norm,
            slope=slope * self.row_norm,
            step=farthest,
            diameter=2.0 * self.k,
        )


@dataclass(frozen=True)
class _Epoch:
    """One epoch of the recursion.

    Attributes:
        sizes: Records in each batch.
        shrinking: a, by which a step multiplies the distance of the weights.
        push: What a batch of one record would add to it, if it is the changed one.
        slope: By how much a distance of the weights moves an entry of the message, at most.
        step: By how much the changed record's entry moves besides.
        diameter: The largest distance of weights in the ball.
    """

    sizes: _Floats
    shrinking: float
    push: float
    slope: float
    step: float
    diameter: float

    @property
    def pushes(self) -> _Floats:
        """What the changed record adds to the distance of the weights, by the batch that it is in."""
        return self.push / self.sizes

    @property
    def weights(self) -> _Floats:
        """By what the squared distance of the weights is multiplied in the sum, at every batch."""
        return self.sizes * self.slope**2


def _largest_sum(epoch: _Epoch, factors: list[_Floats]) -> float:
    """Return the largest sum over the places of the changed record, one in each epoch; the ball is not looked at.

    From the last epoch to the first, each time what is still to come after the start of an epoch.
    """
    still = _NOTHING_TO_COME
    for each in reversed(factors):
        still = still.before(_one_epoch(epoch, each))
    return still.largest


@dataclass(frozen=True, eq=False)
class _ToCome:
    """The largest sum of some epochs, as a function of the distance d at their start.

    It is the largest of some parabolas ``A d² + B d + C`` with one A, as d enters every term alike wherever the record
    is. So the lines that are largest somewhere are all that is to be kept.

    Attributes:
        shared: A.
        slopes: B of each line.
        constants: C of each line.
    """

    shared: float
    slopes: _Floats
    constants: _Floats

    @property
    def largest(self) -> float:
        """The sum from the distance 0."""
        return float(self.constants.max())

    def before(self, terms: _EpochTerms) -> _ToCome:
        """Return the same with an epoch before."""
        own, kept, slopes, constants, ends = terms
        # At the distance that the epoch ends with: kept · d + end.
        slopes = (slopes + 2.0 * self.shared * kept * ends)[:, None] + kept * self.slopes
        constants = (constants + self.shared * ends**2)[:, None] + ends[:, None] * self.slopes + self.constants
        return _ToCome(own + self.shared * kept**2, *_upper_lines(slopes.ravel(), constants.ravel()))


_NOTHING_TO_COME = _ToCome(0.0, np.zeros(1), np.zeros(1))


def _one_epoch(epoch: _Epoch, factors: _Floats) -> _EpochTerms:
    """Return A, what is left of d, and for every place of the record B, C and what it adds to the last distance."""
    length, a = len(factors), epoch.shrinking
    weights, pushes = factors * epoch.weights[:length], epoch.pushes[:length]
    powers = a ** np.arange(length + 1)
    # later[p] = Σ_{t>p} weights[t] a^(2 (t − 1 − p)), from the last place to the first.
    later = scipy.signal.lfilter([1.0], [1.0, -(a**2)], np.append(weights[1:], 0.0)[::-1])[::-1]
    slopes = 2.0 * pushes * powers[1:] * later + 2.0 * factors * epoch.step * epoch.slope * powers[:-1]
    constants = pushes**2 * later + factors * epoch.step**2
    return float(weights @ powers[:-1] ** 2), float(powers[-1]), slopes, constants, pushes * powers[:-1][::-1]


def _upper_lines(slopes: _Floats, constants: _Floats) -> tuple[_Floats, _Floats]:
    """Return the lines ``slope · d + constant`` that are the largest somewhere on d ≥ 0."""
    order = np.lexsort((-slopes, -constants))
    slopes, constants = slopes[order], constants[order]
    # Of lines with a smaller constant only steeper ones can ever be above.
    steepest = np.concatenate(([-np.inf], np.maximum.accumulate(slopes)[:-1]))
    rising = slopes > steepest
    kept: list[int] = []
    slopes, constants = slopes[rising], constants[rising]
    for new in range(len(slopes)):
        while len(kept) > 1 and _overtaken(slopes, constants, kept[-2], kept[-1], new):
            kept.pop()
        kept.append(new)
    return slopes[kept], constants[kept]


def _overtaken(slopes: _Floats, constants: _Floats, low: int, middle: int, high: int) -> bool:
    """Return whether the steepest of three lines passes the flattest before the middle one does."""
    by_high = (constants[low] - constants[high]) * (slopes[middle] - slopes[low])
    by_middle = (constants[low] - constants[middle]) * (slopes[high] - slopes[low])
    return bool(by_high <= by_middle)


def _largest_sum_in_ball(epoch: _Epoch, factors: list[_Floats]) -> float:
    """Return a bound on the sum from the largest distance that weights can have at every step, which is at most 2k."""
    bound = _InBall(epoch, max(map(len, factors), default=0))
    for each in factors:
        bound.go_on(each)
    return bound.total


class _InBall:
    """The bound of :func:`_largest_sum_in_ball`, epoch by epoch.

    Args:
        epoch: One epoch of the recursion.
        size: Steps of the longest one.

    Attributes:
        total: The bound up to here.
        start: The largest distance at the start of the next epoch.
    """

    def __init__(self, epoch: _Epoch, size: int) -> None:
        self.total, self.start = 0.0, 0.0
        self._epoch, self._weights = epoch, epoch.weights
        a, pushes = epoch.shrinking, epoch.pushes
        self._powers = a ** np.arange(size + 1)
        # used[t]: the most that a use of the record in this epoch, before step t, has left.
        self._used = np.zeros(size + 1)
        for place in range(size):
            self._used[place + 1] = max(a * self._used[place], pushes[place])

    def go_on(self, factors: _Floats) -> None:
        """Add an epoch, or a part of one that is the last."""
        epoch, length = self._epoch, len(factors)
        distances = np.minimum(self._powers[: length + 1] * self.start + self._used[: length + 1], epoch.diameter)
        self.total += float((factors * self._weights[:length]) @ distances[:-1] ** 2)
        # At the step with the changed record it has not been used before in this epoch.
        unused = np.minimum(self._powers[:length] * self.start, epoch.diameter)
        self.total += float((factors * (epoch.step**2 + 2.0 * epoch.step * epoch.slope * unused)).max())
        self.start = float(distances[-1])


class _WholeEpochs:
    """What 0, 1, 2 … whole epochs come to, where every step counts alike: each follows from the one before.

    Epochs are alike then, so that what is to come after the start of one depends on how many there are, and on nothing
    else: going back from the last of e epochs, one passes by the sums of fewer.

    Attributes:
        epoch: One epoch of the recursion.
    """

    def __init__(self, epoch: _Epoch) -> None:
        self.epoch = epoch
        every = np.ones(len(epoch.sizes))
        self._every, self._terms = every, _one_epoch(epoch, every)
        self._still, self._in_ball = _NOTHING_TO_COME, _InBall(epoch, len(every))
        self._sums, self._distances = [0.0], [0.0]
        self._growing = Lock()  # parties in threads of one process share it

    def largest_sum(self, epochs: int) -> float:
        """Return Δ² of so many."""
        self._grow(epochs)
        return self._sums[epochs]

    def distance(self, epochs: int) -> float:
        """Return how far weights can be apart after so many."""
        self._grow(epochs)
        return self._distances[epochs]

    def _grow(self, epochs: int) -> None:
        with self._growing:
            while len(self._distances) <= epochs:
                self._still = self._still.before(self._terms)
                self._in_ball.go_on(self._every)
                self._sums.append(min(self._still.largest, self._in_ball.total))
                self._distances.append(_one_epoch_on(self.epoch, self._distances[-1], len(self._every)))


@lru_cache(maxsize=64)
def _whole_epochs(training: HdpTraining) -> _WholeEpochs:
    return _WholeEpochs(training._epoch())


def _one_epoch_on(epoch: _Epoch, apart: float, steps: int) -> float:
    """Return the largest distance of the weights so many steps of an epoch after another."""
    later = epoch.shrinking ** np.arange(steps - 1, -1, -1)
    apart = apart * epoch.shrinking**steps + float((epoch.pushes[:steps] * later).max())
    return min(apart, epoch.diameter)


def _slope_and_half_step(
    party: Side, reach: float, beta_theta: float | None, beta_y: float | None, k_y: float | None
) -> tuple[float, float]:
    """Return the slope of a message's entry in the logit, and half of what a changed row moves it by."""
    if party == "passive":
        return 1.0, reach
    if party != "active":
        raise ArgumentError(f"party must be 'passive' or 'active', got {party!r}")
    if beta_theta is None or beta_y is None or k_y is None:
        raise ArgumentError(
            "the active party's sensitivity needs beta_theta, beta_y and k_y: "
            f"got {beta_theta!r}, {beta_y!r} and {k_y!r}"
        )
    slope = positive("beta_theta", beta_theta)
    return slope, slope * reach + positive("beta_y", beta_y) * positive("k_y", k_y)


def _check_rate(party: Side, eta: float, smoothness: float, weight_decay: float = 0.0) -> None:
    """Raise unless a step moves no two weights farther apart than the recursion says."""
    if party == "passive":
        largest, why = (1.0 / weight_decay if weight_decay else math.inf), "1 / weight_decay"
    else:
        largest = 2.0 / (smoothness + 2.0 * weight_decay)
        why = "2 / (beta_theta * row_norm² + 2 * weight_decay)"
    # Norms are rounded too: of sqrt(2) the square is not 2.
    if eta > largest * (1.0 + _ROUNDING):
        # Rounded down, so that what is named is taken.
        named = float(_SIX_DIGITS.create_decimal(repr(largest * (1.0 + _ROUNDING))))
        raise ArgumentError(
            f"expected a learning rate of at most {named:g}, got {eta!r}: a longer step of the {party} party may "
            f"move two weights apart, and the sensitivity does not hold ({why})"
        )

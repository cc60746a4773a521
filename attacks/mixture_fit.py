"""Fit of the mixture of noisy messages on a line: two labels, one shift, and a prediction."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt
import scipy

from splitvfl.errors import ArgumentError

Vector = npt.NDArray[np.float64]
Whole = npt.NDArray[np.int64]

# In units of the messages' root mean square and of the activations' deviation: shift, slope and intercept.
_STARTS: Final = tuple(
    (shift, slope, middle) for middle in (0.0, -2.0, 2.0) for shift in (1.0, 3.0) for slope in (1.0, 4.0)
)
# Where there is an earlier fit to start from, every third of them is tried beside it.
_FRESH = 3
# By how much the logarithms of shift and slope grow over the run: where starts begin, and the bounds.
_GROWTH, _GROWTH_RANGE = 0.5, (-1.0, 4.0)
_LOG_RANGE, _MIDDLE_RANGE = (-5.0, 5.0), (-30.0, 30.0)
_FIRST_ROUNDS, _MOST_ROUNDS, _ROUND_STEPS, _ENOUGH = 4, 100, 10, 1e-6
# A step's variance counts as if so many more rows had shown the usual one: a batch of one row would fit itself exactly.
_PRIOR_ROWS = 4.0
_LEAST_VARIANCE = 1e-6
# In forty fits to pure noise the gain over "labels shift nothing" was 7.8 nats at most.
_LEAST_GAIN = 9.0
# Starts are compared on about so many messages, of whole records, and the best is finished on so many.
_COMPARED_MESSAGES, _FITTED_MESSAGES = 10_000, 200_000
# Rounds in which the variances of all steps settle, the rest being known.
_VARIANCE_ROUNDS = 5
# What a message of the first half of the run says of the prediction; one of the second half says 1.
_EARLY = 1e-6


class LineMessages(NamedTuple):
    """Messages on a line, one entry each.

    Attributes:
        record: Whose it is, ≥ 0.
        step: Of which training step, ≥ 0.
        shift: Where it is on the line, in the unit of the summed loss.
        activation: Where the record's own activation is on it.
    """

    record: Whole
    step: Whole
    shift: Vector
    activation: Vector


@dataclass(frozen=True)
class MixtureFit:
    """The mixture as fitted: ``κ_t = κ e^(γ τ)``, ``α_t = α e^(γ τ)`` and ``p_t = sigmoid(α_t (s − m) + β)``.

    τ goes from −1 at the first step to 0 at the last, and stays.

    Attributes:
        kappa: Shift of a message from one label to the other at the last step, > 0, in the unit of the messages.
        alpha: Slope of the logit in the activation's projection at the last step, > 0.
        beta: Its intercept, where the projection is m.
        middle: m, the activations' mean projection.
        growth: γ, by how much the logarithms of both grew: below a linear top both are the length of its weights.
        variance: Usual variance of the noise.
        gain: Log likelihood above that of "labels shift nothing", in nats.
        messages: How many messages it was fitted to.
        last: The last step.
        span: Steps from the first to the last, ≥ 1.
        failure: Why it is not to be used; empty where it is.
    """

    kappa: float = 0.0
    alpha: float = 0.0
    beta: float = 0.0
    middle: float = 0.0
    growth: float = 0.0
    variance: float = 0.0
    gain: float = 0.0
    messages: int = 0
    last: int = 0
    span: int = 1
    failure: str = ""


def fit_mixture(messages: LineMessages, *, start: MixtureFit | None = None) -> tuple[MixtureFit, Vector]:
    """Return κ, α, β, γ of largest likelihood, and the noise's variance at each message.

    The likelihood is ``Π_i Σ_y P(y | i) Π_t N(x_it; κ_t (p_it − y), v_t)`` over records i and the messages t of each,
    with ``p_it = sigmoid(α_t (s_it − m) + β)``, and P(1 | i) the sigmoid of the record's mean logit in the second half
    of the steps. κ and α are positive. In turns, the variances v_t of the steps are set to what they are expected to be
    under the current mixture (a step of expectation and maximisation, with a weak prior that they are alike), and the
    other four are moved uphill by L-BFGS; from several starts, of which the best is finished. Where there are many
    messages the four are fitted to those of some records, evenly spaced: to about 200 000 of them.

    Args:
        messages: At least one.
        start: An earlier fit, to start from as well.

    Returns:
        The fit, and ``(n,)`` variances. Where it is not to be used its ``failure`` says why: the likelihood is not
        finite or still rises, labels shift nothing as far as can be told, or all records would be of one class.

    Raises:
        ArgumentError: If there is no message.
    """
    if messages.record.size == 0:
        raise ArgumentError("expected at least one message, got none")
    problem = _Likelihood(_of_some_records(messages, _FITTED_MESSAGES), _Units.of(messages))
    if problem.units.shift == 0.0:
        return problem.nothing("all messages are zero"), np.ones(messages.record.size)
    starts = [np.array([math.log(shift), math.log(slope), middle, _GROWTH]) for shift, slope, middle in _STARTS]
    if start is not None and not start.failure:
        starts = [problem.units.point(start), *starts[::_FRESH]]
    few = _Likelihood(_of_some_records(messages, _COMPARED_MESSAGES), problem.units)
    tried = [few.climb(point, few.unshifted(), rounds=_FIRST_ROUNDS).point for point in starts]
    # With the variances that go with the point: from those of "no shift" the next step may lead back to it.
    best = max((problem.at(point) for point in tried), key=lambda climb: climb.value)
    fit = problem.described(problem.climb(best.point, best.variances, rounds=_MOST_ROUNDS))
    return fit, np.ones(messages.record.size) if fit.failure else step_variances(messages, fit)


def log_ratios(messages: LineMessages, fit: MixtureFit, variances: Vector) -> Vector:
    """Return what each message adds to the log odds of its record's label: ``−κ_t (x − κ_t (p − ½)) / v``, ``(n,)``."""
    kappa = fit.kappa * _grown(messages.step, fit)
    ratios: Vector = -kappa * (messages.shift - kappa * (scipy.special.expit(logits(messages, fit)) - 0.5)) / variances
    return ratios


def logits(messages: LineMessages, fit: MixtureFit) -> Vector:
    """Return what the activations say of the label, ``α_t (s − m) + β``, ``(n,)``."""
    found: Vector = fit.alpha * _grown(messages.step, fit) * (messages.activation - fit.middle) + fit.beta
    return found


def weights(messages: LineMessages, fit: MixtureFit) -> Vector:
    """Return how much each message's logit counts in its record's mean, ``(n,)``: 1 in the second half of the run."""
    return _weights(_age(messages.step, fit.last, fit.span))


def step_variances(messages: LineMessages, fit: MixtureFit) -> Vector:
    """Return the noise's variance at each message as expected under a fit, ``(n,)``: that of its step."""
    problem = _Likelihood(messages, _Units.of(messages, like=fit))
    if problem.units.shift == 0.0:
        return np.ones(messages.record.size)
    square = problem.units.shift**2
    found: Vector = square * problem.settled_variances(problem.units.point(fit), usual=fit.variance / square)
    return found


def _of_some_records(messages: LineMessages, most: int) -> LineMessages:
    """Return the messages of evenly spaced records, about so many."""
    every = -(-messages.record.size // most)
    if every == 1:
        return messages
    chosen = np.unique(messages.record, return_inverse=True)[1] % every == 0
    return LineMessages(*(field[chosen] for field in messages))


def _age(step: Whole, last: int, span: int) -> Vector:
    """Return τ: −1 at the first step, 0 at the last and ever after."""
    return np.minimum(step - last, 0) / span


def _weights(age: Vector) -> Vector:
    return np.where(age >= -0.5, 1.0, _EARLY)


def _grown(step: Whole, fit: MixtureFit) -> Vector:
    grown: Vector = np.exp(fit.growth * _age(step, fit.last, fit.span))
    return grown


def _smoothed(step: Whole, squares: Vector, usual: float) -> Vector:
    """Return each message's mean square of its step, with some rows of the usual one added."""
    means = (np.bincount(step, squares) + _PRIOR_ROWS * usual) / (np.bincount(step) + _PRIOR_ROWS)
    found: Vector = np.maximum(means, _LEAST_VARIANCE)[step]
    return found


def _usual(variances: Vector) -> float:
    """Return the harmonic mean: the usual variance of largest likelihood, given those of the steps."""
    return float(1.0 / np.mean(1.0 / variances))


class _Units(NamedTuple):
    """Units in which a problem is solved: of messages, and of activations (where is 0, and what is 1), and of time."""

    shift: float
    middle: float
    spread: float
    last: int
    span: int

    @classmethod
    def of(cls, messages: LineMessages, *, like: MixtureFit | None = None) -> _Units:
        first, last = int(messages.step.min()), int(messages.step.max())
        return cls(
            shift=float(np.sqrt(np.mean(messages.shift**2))),
            middle=float(messages.activation.mean()) if like is None else like.middle,
            spread=float(messages.activation.std()) or 1.0,
            last=last if like is None else like.last,
            span=max(last - first, 1) if like is None else like.span,
        )

    def point(self, fit: MixtureFit) -> Vector:
        """Return a fit as a point, log κ, log α, β and γ in these units; where m differs, for the last step."""
        moved = fit.alpha * (self.middle - fit.middle)
        return np.array(
            [math.log(fit.kappa / self.shift), math.log(fit.alpha * self.spread), fit.beta + moved, fit.growth]
        )


class _Climb(NamedTuple):
    point: Vector  # log κ, log α, β, γ in the problem's units
    variances: Vector
    value: float  # log likelihood per message
    settled: bool


class _Likelihood:
    """The likelihood of some messages, in given units."""

    def __init__(self, messages: LineMessages, units: _Units) -> None:
        self.units = units
        self._shift = messages.shift / (units.shift or 1.0)
        self._activation = (messages.activation - units.middle) / units.spread
        self._age = _age(messages.step, units.last, units.span)
        _, self._step = np.unique(messages.step, return_inverse=True)
        _, self._record = np.unique(messages.record, return_inverse=True)
        self._count = messages.record.size
        weight = _weights(self._age)
        self._share = weight / np.bincount(self._record, weight)[self._record]

    def nothing(self, failure: str) -> MixtureFit:
        """Return what stands for a fit where there was nothing to fit."""
        units = self.units
        return MixtureFit(middle=units.middle, messages=self._count, last=units.last, span=units.span, failure=failure)

    def unshifted(self) -> Vector:
        """Return the variances if labels shift nothing."""
        squares = self._shift**2
        return _smoothed(self._step, squares, float(squares.mean()))

    def settled_variances(self, point: Vector, *, usual: float | None = None) -> Vector:
        """Return the variances that go with a point; ``usual``: that of other steps, where it is known."""
        variances = self.unshifted() if usual is None else np.full(self._count, usual)
        for _ in range(_VARIANCE_ROUNDS):
            variances = self._expected_variances(point, variances, _usual(variances) if usual is None else usual)
        return variances

    def at(self, point: Vector) -> _Climb:
        """Return a point with its variances and its value."""
        variances = self.settled_variances(point)
        return _Climb(point, variances, -self.objective(point, variances)[0], settled=False)

    def climb(self, point: Vector, variances: Vector, *, rounds: int) -> _Climb:
        """Go uphill from a point, at most so many rounds."""
        before, value = -math.inf, -math.inf
        for _ in range(rounds):
            point = scipy.optimize.minimize(
                self._objective,
                point,
                args=(1.0 / variances, 0.5 * float(np.log(variances).sum())),
                jac=True,
                method="L-BFGS-B",
                bounds=(_LOG_RANGE, _LOG_RANGE, _MIDDLE_RANGE, _GROWTH_RANGE),
                options={"maxiter": _ROUND_STEPS},
            ).x
            variances = self._expected_variances(point, variances, _usual(variances))
            before, value = value, -self.objective(point, variances)[0]
            if value - before < _ENOUGH:
                return _Climb(point, variances, value, settled=True)
        return _Climb(point, variances, value, settled=False)

    def described(self, climb: _Climb) -> MixtureFit:
        """Return a fit in the messages' own units, and what is wrong with it."""
        unshifted = self.unshifted()
        nothing = -0.5 * float(np.mean(np.log(unshifted) + self._shift**2 / unshifted))
        gain = (climb.value - nothing) * self._count
        fit = self.nothing(self._failure(climb, gain))
        if not np.isfinite(climb.point).all():
            return fit
        return replace(
            fit,
            kappa=math.exp(climb.point[0]) * self.units.shift,
            alpha=math.exp(climb.point[1]) / self.units.spread,
            beta=float(climb.point[2]),
            growth=float(climb.point[3]),
            variance=_usual(climb.variances) * self.units.shift**2,
            gain=gain,
        )

    def _failure(self, climb: _Climb, gain: float) -> str:
        if not (math.isfinite(climb.value) and np.isfinite(climb.point).all()):
            return "the likelihood is not finite"
        if not climb.settled:
            return f"the likelihood still rises after {_MOST_ROUNDS} rounds"
        if gain < _LEAST_GAIN:
            return (
                f"labels shift nothing that can be told from noise: {gain:.1f} nats of likelihood, "
                f"expected {_LEAST_GAIN:.0f}"
            )
        posterior = self._posterior(climb.point, 1.0 / climb.variances).positive
        if not 1.0 <= posterior.sum() <= posterior.size - 1.0:
            return "all records would be of one class"
        return ""

    def _posterior(self, point: Vector, inverse: Vector) -> _Posterior:
        """Return what is known of records and messages at a point; ``inverse``: of each message's variance."""
        grown = np.exp(point[3] * self._age)
        kappa = math.exp(point[0]) * grown
        moved = math.exp(point[1]) * grown * self._activation
        own = moved + point[2]
        prediction = _sigmoid(own)
        prior = self._summed(self._share * own)
        errors = self._shift - kappa * prediction
        # The log odds of the labels, as likelihoods need them only beside that of label 0.
        odds = prior - self._summed(kappa * (errors + 0.5 * kappa) * inverse)
        return _Posterior(_sigmoid(odds), odds, prior, kappa, moved, prediction, errors)

    def _summed(self, values: Vector) -> Vector:
        """Return each record's sum."""
        return np.bincount(self._record, values).astype(np.float64, copy=False)

    def objective(self, point: Vector, variances: Vector) -> tuple[float, Vector]:
        """Return minus the log likelihood per message, without its constant, and its gradient."""
        return self._objective(point, 1.0 / variances, 0.5 * float(np.log(variances).sum()))

    def _objective(self, point: Vector, inverse: Vector, half_logs: float) -> tuple[float, Vector]:
        found = self._posterior(point, inverse)
        positive, kappa, prediction = found.positive[self._record], found.kappa, found.prediction
        error = (found.errors + positive * kappa) * inverse
        by_log_kappa = kappa * (prediction * error - positive * (found.errors + kappa) * inverse)
        by_logit = error * kappa * prediction * (1.0 - prediction)
        by_logit += self._share * (found.positive - _sigmoid(found.prior))[self._record]
        by_log_alpha = by_logit * found.moved
        gradient = [
            by_log_kappa.sum(),
            by_log_alpha.sum(),
            by_logit.sum(),
            (by_log_kappa + by_log_alpha) @ self._age,
        ]
        total = (_softplus(found.odds) - _softplus(found.prior)).sum() - 0.5 * (found.errors**2 @ inverse) - half_logs
        return -float(total) / self._count, -np.array(gradient) / self._count

    def _expected_variances(self, point: Vector, variances: Vector, usual: float) -> Vector:
        found = self._posterior(point, 1.0 / variances)
        positive = found.positive[self._record]
        squares = positive * (found.errors + found.kappa) ** 2 + (1.0 - positive) * found.errors**2
        return _smoothed(self._step, squares, usual)


class _Posterior(NamedTuple):
    positive: Vector  # P(1 | all messages) of each record
    odds: Vector  # its logit
    prior: Vector  # logit of P(1 | activations) of each record
    kappa: Vector  # of each message, as what follows
    moved: Vector  # α_t (s − m)
    prediction: Vector
    errors: Vector  # x − κ p


def _sigmoid(logit: Vector) -> Vector:
    """Return ``scipy.special.expit`` to rounding, above e^−700: several times as fast, as NumPy's exp is vectorised."""
    found: Vector = 1.0 / (1.0 + np.exp(-np.maximum(logit, -700.0)))
    return found


def _softplus(logit: Vector) -> Vector:
    """Return ``log(1 + e^logit)``, which does not overflow."""
    found: Vector = np.maximum(logit, 0.0) + np.log1p(np.exp(-np.abs(logit)))
    return found

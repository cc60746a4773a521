"""Label attack on sums of which nobody says who is in them: the likelihood of each label over a whole run."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar, Final, NamedTuple

import numpy as np
import numpy.typing as npt
import scipy
import torch
from torch import Tensor

from splitvfl.attacks.grouped_rows import GroupedRows, Vector
from splitvfl.errors import ArgumentError, HookError
from splitvfl.hooks import View
from splitvfl.learning.losses import Approximation
from splitvfl.learning.records import RecordTable
from splitvfl.learning.sigmoid_coefficients import checked_approximation, gradient_scale, sigmoid_coefficients

Whole = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]

_ITERATIONS: Final = 12
# It ends where no belief has moved by more than this share of a residue's largest size.
_SETTLED: Final = 1e-3
_DAMPING: Final = 0.5
# Numbers of used records that are tried, within three deviations of the mean: all of them in batches as published.
_MOST_SIZES, _DEVIATIONS = 31, 3.0
# With fewer equations than this share of the records nothing is found exactly, and a few numbers will do.
_FEW_EQUATIONS, _FEW_SIZES = 0.25, 7
# A residue that is certain keeps this variance: without any, equations would be exact, and their rounding would count.
_LEAST_VARIANCE: Final = 1e-6
# What a Gaussian keeps at least of its precision: below it, the last one that had more stays.
_LEAST_PRECISION: Final = 1e-2
# Residues that give the sum so closely, all of them certain, are taken to be the ones.
_EXACT: Final = 1e-3
# More than this many deviations beside what is left uncertain, an answer contradicts the sum.
_FITS: Final = 3.0
# The largest log-likelihood ratio of one batch that is believed, and the largest exponent that is computed with.
_MOST_BELIEVED, _MOST_COMPUTED = 15.0, 50.0
# A model that is sure of itself is not believed beyond this: predictions of training are poor at first.
_SUREST: Final = 4.0
# Numbers that are kept of all batches: 128 MiB.
_MOST_NUMBERS: Final = 1 << 24


def secret_batch_llr(
    features: Tensor,
    gradient: Tensor,
    predictions: Tensor,
    *,
    used: float,
    log_odds: Tensor | None = None,
    flip: float = 0.0,
) -> Tensor:
    """Return each record's log-likelihood ratio of label 1 against label 0, of one sum over records nobody names.

    The sum is ``gradient = 1/k Σ_i u_i (f_i − y_i) x_i``, where each of the batch's records is used (``u_i = 1``) with
    probability ``used`` and k is the number of those. Of d exact equations in three possibilities for each record the
    likelihood cannot be summed out. It is approximated by expectation propagation: for each record the rest of the sum
    is taken to be Gaussian, with the means and variances of what is believed of the others at the moment, and what is
    believed of it follows; and so on until nothing moves. Every k within three deviations of its mean is tried, all of
    them if there are few. If for one of them all records are certain, k in number, and give the sum, these are they;
    otherwise those that do not contradict it are averaged by their likelihood.

    It does not promise that this is near the true likelihood: the fewer equations, the nearer the sum of the others is
    to Gaussian; where equations are about as many as records, it is mostly found who was used, exactly.

    Source: this project's, against the hybrid mechanism of *Residue-based Label Protection Mechanisms in Vertical
    Logistic Regression*. Expectation propagation for a sum of discrete unknowns is that of Céspedes, Olmos,
    Sánchez-Fernández and Pérez-Cruz, IEEE Transactions on Communications 62 (2014), a detector of symbols.

    Args:
        features: ``(s, d)``, the columns of the records that may be in the sum.
        gradient: ``(d,)``.
        predictions: f, ``(s,)``.
        used: The probability that a record is in the sum, in (0, 1).
        log_odds: What is known of the labels before: log odds of 1 against 0, ``(s,)``; ``None``: even. They help to
            tell the other records' part, and are not in what is returned.
        flip: Of labels that :class:`~splitvfl.defenses.MemoisedResponse` answers for: its π. Targets are its corrected
            ones then, and the ratio is of the answers.

    Returns:
        ``(s,)``, float64; 0 for a row of zeros.

    Raises:
        ArgumentError: If shapes do not fit, an entry is not finite, or a probability is outside its range.

    >>> x = torch.tensor([[1.0, 0.2], [0.3, 1.0], [-0.8, 0.5], [0.1, -0.9]])
    >>> f = torch.full((4,), 0.5)
    >>> secret_batch_llr(x, (0.5 * x[1] - 0.5 * x[2]) / 2, f, used=0.5).sign().tolist()[1:3]
    [-1.0, 1.0]
    """
    _check_probabilities(used, flip)
    problem = GroupedRows.of(features, gradient)
    known = _vector(predictions, problem, "predictions")
    odds = np.zeros_like(known) if log_odds is None else _vector(log_odds, problem, "log_odds")
    ratios = _Sum.of(problem, known, flip).ratios(used, odds)
    return torch.from_numpy(ratios).to(features.device)


def _vector(tensor: Tensor, problem: GroupedRows, name: str) -> Vector:
    values: Vector = tensor.detach().cpu().double().numpy()
    if values.shape != problem.group.shape or not np.isfinite(values).all():
        raise ArgumentError(f"expected finite {name} ({problem.group.size},), got shape {values.shape}")
    return values


def _check_probabilities(used: float, flip: float) -> None:
    if not 0.0 < used < 1.0:
        raise ArgumentError(f"expected the probability that a record is used strictly between 0 and 1, got {used!r}")
    if not 0.0 <= flip < 0.5:
        raise ArgumentError(f"expected flip, the probability that a label is flipped, in [0, ½), got {flip!r}")


class _Beliefs(NamedTuple):
    """What is believed of each record's residue, for each number of used records k that is tried; all ``(K, s)``."""

    positive: Vector  # probability that it is used and positive
    negative: Vector  # that it is used and negative
    mean: Vector
    variance: Vector


class _Likelihoods(NamedTuple):
    """What the rest of the sum says of each record: log-likelihood of the two residues against zero, ``(K, s)``."""

    positive: Vector
    negative: Vector


@dataclass(frozen=True)
class _Sum:
    """``rowsᵀ r = k total`` with an unknown k.

    Attributes:
        rows: ``(s, r)``; of distinct rows they would be orthonormal.
        total: ``(r,)``.
        rounding: How far each equation may be off, ``(r,)``, as a share of the residues' size.
        positive: Residue of a used record of label 1, ``(s,)``.
        negative: Of label 0.
    """

    rows: Vector
    total: Vector
    rounding: Vector
    positive: Vector
    negative: Vector

    @classmethod
    def of(cls, problem: GroupedRows, predictions: Vector, flip: float) -> _Sum:
        rows = np.vstack([problem.equations, np.zeros((1, problem.rank))])[problem.group]
        low, high = -flip / (1 - 2 * flip), (1 - flip) / (1 - 2 * flip)
        return cls(rows, problem.total, problem.rounding, predictions - high, predictions - low)

    def ratios(self, used: float, log_odds: Vector) -> Vector:
        """Return log-likelihood ratios of the labels, ``(s,)``."""
        sizes = _sizes(len(self.rows), used, self._most_sizes)
        first, last, beliefs, evidence = self._propagate(sizes, used, log_odds)
        exact, fits = self._exact(sizes, beliefs), self._fits(sizes, beliefs)
        if exact.any():
            likelihoods, weights = last, np.where(exact, 0.0, -np.inf)
        elif fits.any():
            likelihoods, weights = last, np.where(fits, evidence, -np.inf)
        else:  # it has run into a contradiction: what it thought at first is at least not overdone
            likelihoods, weights = first, evidence
        weights = (weights - scipy.special.logsumexp(weights))[:, None]
        unused, mixed = math.log1p(-used), []
        for one in likelihoods:
            bounded = np.clip(one, -_MOST_COMPUTED, _MOST_COMPUTED)
            mixed.append(scipy.special.logsumexp(weights + np.logaddexp(math.log(used) + bounded, unused), axis=0))
        return np.asarray(mixed[0] - mixed[1])

    def _propagate(
        self, sizes: Vector, used: float, log_odds: Vector
    ) -> tuple[_Likelihoods, _Likelihoods, _Beliefs, Vector]:
        """Return the first and the last likelihoods, the last beliefs, and the log evidence of each number, ``(K,)``.

        Each record's beliefs are the product of what the rest of the sum says, which is Gaussian, and of the three
        possibilities. The Gaussian of equal moments, less what the rest says, is the record's own part in the sum.
        """
        totals = sizes[:, None] * self.total
        noise = _LEAST_VARIANCE**2 + (sizes[:, None] * self.rounding) ** 2
        beliefs = self._believed(_Likelihoods(*np.zeros((2, len(sizes), len(self.rows)))), used, log_odds)
        own, variance = beliefs.mean, beliefs.variance
        precision, weighted = 1 / variance, own / variance
        first: _Likelihoods | None = None
        for _ in range(_ITERATIONS):
            weighed = np.matmul(self.rows.T * variance[:, None, :], self.rows)
            weighed[:, range(len(self.total)), range(len(self.total))] += noise
            inverse = np.linalg.inv(weighed)
            left = totals - own @ self.rows
            pulled = self.rows @ inverse
            gain = (pulled * self.rows).sum(axis=2)
            # Of the sum without the record's own part.
            without = np.maximum(1 - gain * variance, 1e-9)
            sharpness = gain / without
            pull = (np.matmul(pulled, left[:, :, None])[:, :, 0] + gain * own) / without
            last = self._likelihoods(sharpness, pull)
            if first is None:
                first, evidence = last, self._evidence(sizes, weighed, inverse, left, used)
            before, beliefs = beliefs, self._believed(last, used, log_odds)
            if self._exact(sizes, beliefs).any() or np.abs(beliefs.mean - before.mean).max() < _SETTLED:
                break
            better = 1 / beliefs.variance - sharpness
            usable = better > _LEAST_PRECISION
            step = np.where(usable, 1 - _DAMPING, 0.0)
            precision = precision + step * (better - precision)
            weighted = weighted + step * (beliefs.mean / beliefs.variance - pull - weighted)
            variance, own = 1 / precision, weighted / precision
        assert first is not None, "there is an iteration"
        return first, last, beliefs, evidence

    def _likelihoods(self, sharpness: Vector, pull: Vector) -> _Likelihoods:
        of = (pull * residue - sharpness * residue**2 / 2 for residue in (self.positive, self.negative))
        return _Likelihoods(*of)

    def _believed(self, likelihoods: _Likelihoods, used: float, log_odds: Vector) -> _Beliefs:
        prior = math.log(used) - math.log1p(-used)
        against_unused = [
            prior - np.logaddexp(0, sign * log_odds) + np.clip(one, -_MOST_COMPUTED, _MOST_COMPUTED)
            for sign, one in zip((-1, 1), likelihoods, strict=True)
        ]
        shares = np.exp([np.zeros_like(against_unused[0]), *against_unused])
        _, positive, negative = shares / shares.sum(axis=0)
        mean = positive * self.positive + negative * self.negative
        square = positive * self.positive**2 + negative * self.negative**2
        return _Beliefs(positive, negative, mean, np.maximum(square - mean**2, _LEAST_VARIANCE))

    def _evidence(self, sizes: Vector, weighed: Vector, inverse: Vector, left: Vector, used: float) -> Vector:
        """Return the log-likelihood of each k where the whole sum is Gaussian, with what is known of k beforehand."""
        apart = np.einsum("kr,krq,kq->k", left, inverse, left) + np.linalg.slogdet(weighed)[1]
        count = len(self.rows)
        before = (sizes - count * used) ** 2 / (count * used * (1 - used))
        # A density of the gradient, which is 1 / k times the sum.
        return np.asarray(-(apart + before) / 2 + len(self.total) * np.log(sizes))

    @property
    def _most_sizes(self) -> int:
        return _MOST_SIZES if len(self.total) >= _FEW_EQUATIONS * len(self.rows) else _FEW_SIZES

    def _exact(self, sizes: Vector, beliefs: _Beliefs) -> Flags:
        """Return for which k the likeliest residues are k in number and give the sum, ``(K,)``."""
        positive, negative = beliefs.positive > 0.5, beliefs.negative > 0.5
        likeliest = np.where(positive, self.positive, np.where(negative, self.negative, 0.0))
        counted = positive.sum(axis=1) + negative.sum(axis=1) == sizes
        return np.asarray(counted & (self._apart(sizes, likeliest) < self._rounding(sizes)))

    def _fits(self, sizes: Vector, beliefs: _Beliefs) -> Flags:
        """Return for which k the sum is within what is left uncertain, ``(K,)``."""
        uncertain = np.maximum(beliefs.variance - _LEAST_VARIANCE, 0) @ self.rows**2
        within = _FITS * np.sqrt(uncertain.sum(axis=1)) + self._rounding(sizes)
        return np.asarray(self._apart(sizes, beliefs.mean) <= within)

    def _apart(self, sizes: Vector, residues: Vector) -> Vector:
        return np.asarray(np.linalg.norm(sizes[:, None] * self.total - residues @ self.rows, axis=1))

    def _rounding(self, sizes: Vector) -> Vector:
        return np.asarray(_EXACT + np.linalg.norm(sizes[:, None] * self.rounding, axis=1))


def _sizes(count: int, used: float, most: int) -> Vector:
    """Return the numbers of used records that are tried, ascending: no more than so many, evenly spaced."""
    reach = _DEVIATIONS * math.sqrt(count * used * (1 - used))
    low, high = max(1, math.floor(count * used - reach)), min(count, math.ceil(count * used + reach))
    return np.unique(np.round(np.linspace(low, high, min(most, high - low + 1))))


@dataclass(frozen=True)
class _Batch:
    """One batch of the run, and what it says of its records' labels: log-likelihood ratios, ``(s,)``."""

    slots: Whole
    sum: _Sum
    prior: Vector
    message: Vector


class SecretBatchLikelihoodAttack:
    """Score every record by the log-likelihood ratio of its label, from all gradients of the run so far.

    Against the hybrid mechanism: each gradient is the sum over some secret records of a batch. Who knows the
    predictions knows every residue up to its label, and whether it is zero; labels stay the same over the run, and who
    is used is drawn anew. So each batch is solved with what all others say of the labels, by
    :func:`secret_batch_llr`, and says what it adds itself (belief propagation). As an epoch begins, the batches of
    epochs 2, 4, 8, … are gone through once more, with what is known by then. It is an attack of the whole run
    (``cumulative``).

    It needs the model's predictions. A party has them where nobody adds to its own part of the logits: where it is the
    only passive party, without noise on what it sends, and the label party has neither columns nor an intercept. An
    experiment in which it has not does not run it, and says why.

    Measured, balanced accuracy on the records that were used; ``scripts.reproduce.residue_protection`` has more:

    - one batch at the published settings, with weights of zero and trained: breast cancer 1.000 and 1.000, digits 1.000
      and 1.000, census income .958 and 1.000, give me some credit 1.000 and 1.000, where ``sparse-residues`` reads down
      to .846; in .01 to .2 s a batch on a busy core;
    - a run of batches of 217 records with ten Gaussian columns, of which 100 are sent and 40 used: .63, .65 and .86
      after 1, 10 and 100 epochs. Where each batch tells little, it is about ``Φ(√(E d k / (L |S|)))`` after E epochs,
      from d columns and batches of ``|S|`` records, of which L are sent and k used;
    - the cost is .01 to 6 s for each thousand records that are sent: most where equations are about as many as these.

    It does not read what the party predicts anyway: predictions help to tell the others' part in a sum, and are not in
    the score. A record's ratio is bounded by 15 for each batch.

    In a file: ``attacks: [{name: secret-batch-likelihood, epsilon: 1.0, share: 0.3}]``

    Source: this project's, against the hybrid mechanism of *Residue-based Label Protection Mechanisms in Vertical
    Logistic Regression*; see :func:`secret_batch_llr`.

    Args:
        epsilon: ε of the randomised response on who is used, as the parties agreed on it, > 0.
        share: q: what share of a batch is meant to be used, likewise, in (0, ½).
        approximation: Of the residues in the gradients.
        flip: π of a ``memoised-response`` with corrected targets at the label party; 0: there is none.

    Raises:
        ArgumentError: If a setting is outside its range.
    """

    name: ClassVar[str] = "secret-batch-likelihood"
    explanation: ClassVar[str] = (
        "Knows the model's predictions, and so every residue but for its label and for whether it was used. It adds up "
        "over the run how much likelier each label makes the gradients, with what is known of all other records."
    )
    needs: ClassVar[frozenset[str]] = frozenset({"columns", "aggregated_gradient", "logits"})
    cumulative: ClassVar[bool] = True
    signed: ClassVar[bool] = True

    def __init__(
        self, *, epsilon: float, share: float, approximation: Approximation = "exact", flip: float = 0.0
    ) -> None:
        if not 0.0 < epsilon < math.inf:
            raise ArgumentError(f"expected epsilon above 0 and finite, got {epsilon!r}")
        if not 0.0 < share < 0.5:
            raise ArgumentError(f"expected share, q, between 0 and ½, got {share!r}")
        turned = math.exp(-epsilon)
        self._used = share / (share + (1 - share) * turned)
        _check_probabilities(self._used, flip)
        self._approximation, self._flip = checked_approximation(approximation), flip
        self._records = RecordTable(ratio=np.float64, epoch=np.int64)
        self._batches: list[_Batch] = []
        self._epoch = 1

    def __call__(self, view: View, /) -> Tensor:
        """Return each record's ratio of all batches that it was in, this one included.

        Args:
            view: Its ``columns`` ``(n, d)``, ``aggregated_gradient`` ``(d, 1)``, ``logits`` ``(n, 1)`` and ``ids`` are
                read.

        Returns:
            ``(n,)``, float64; 0 is undecided.

        Raises:
            HookError: If the columns are not one tensor, or the cut is wider than 1.
        """
        columns, gradient, logits = view.columns, view.aggregated_gradient, view.logits
        if not isinstance(columns, Tensor):
            raise HookError(f"attack {self.name} needs numeric columns (n, d), got {type(columns).__name__}")
        if gradient.shape[1:] != (1,) or logits.shape != (len(columns), 1):
            raise HookError(
                f"attack {self.name} solves cuts of width 1, got shapes {tuple(gradient.shape)} and "
                f"{tuple(logits.shape)}"
            )
        slots = self._records.slots(view.ids.cpu().numpy())
        if columns.any() and gradient.any():
            self._end_epoch(slots)
            problem = GroupedRows.of(columns, gradient[:, 0])
            self._add(slots, _Sum.of(problem, self._predictions(logits[:, 0]), self._flip), logits[:, 0])
        return torch.from_numpy(self._records["ratio"][slots]).to(columns.device)

    def _predictions(self, logits: Tensor) -> Vector:
        """Return the approximated sigmoid: that of a residue plus its label."""
        negative = -torch.ones_like(logits)
        coefficients = sigmoid_coefficients(logits, negative, approximation=self._approximation)
        return np.asarray((coefficients / gradient_scale(self._approximation)).cpu().numpy())

    def _end_epoch(self, slots: Whole) -> None:
        """Note that an epoch begins where a record comes again, and go through the batches of 2, 4, … once more."""
        if (self._records["epoch"][slots] == self._epoch).any():
            # The batches of one epoch have no record in common, and nothing to tell each other.
            if self._epoch > 1 and not self._epoch & (self._epoch - 1):
                for number, batch in enumerate(self._batches):
                    self._batches[number] = self._heard(batch)
            self._epoch += 1
        self._records["epoch"][slots] = self._epoch

    def _add(self, slots: Whole, known: _Sum, logits: Tensor) -> None:
        prior = logits.double().cpu().clamp(-_SUREST, _SUREST).numpy()
        self._batches.append(self._heard(_Batch(slots, known, prior, np.zeros(len(slots)))))
        numbers = sum(batch.sum.rows.size for batch in self._batches)
        while numbers > _MOST_NUMBERS and len(self._batches) > 1:
            numbers -= self._batches.pop(0).sum.rows.size

    def _heard(self, batch: _Batch) -> _Batch:
        """Return a batch with what it says given what all others say, which is taken into the records' ratios."""
        ratios = self._records["ratio"]
        others = ratios[batch.slots] - batch.message
        said = batch.sum.ratios(self._used, np.clip(others + batch.prior, -_MOST_COMPUTED, _MOST_COMPUTED))
        message = np.clip(said, -_MOST_BELIEVED, _MOST_BELIEVED)
        ratios[batch.slots] = others + message
        return _Batch(batch.slots, batch.sum, batch.prior, message)

    def state_dict(self) -> dict[str, Any]:
        """Return the batches that are kept, and the ratios."""
        kept = ("rows", "total", "rounding", "positive", "negative")
        return {
            "records": self._records.state_dict(),
            "epoch": self._epoch,
            "batches": [
                {
                    **{name: torch.from_numpy(getattr(batch.sum, name)) for name in kept},
                    **{name: torch.from_numpy(getattr(batch, name)) for name in ("slots", "prior", "message")},
                }
                for batch in self._batches
            ],
        }

    def load_state_dict(self, state: dict[str, Any], /) -> None:
        """Take back what :meth:`state_dict` returned."""
        self._records.load_state_dict(state["records"])
        self._epoch, self._batches = state["epoch"], []
        for saved in state["batches"]:
            parts = {name: part.numpy() for name, part in saved.items()}
            own = {name: parts.pop(name) for name in ("slots", "prior", "message")}
            self._batches.append(_Batch(sum=_Sum(**parts), **own))

"""What a partner can compute of labels from the sums that logistic regression gives it: known before the first step.

A protocol that hides each record's gradient still gives every partner ``Xᵀ f``, the sum over a batch of residue times
row: one equation for each of its features. These equations are linear in the labels, and they add up over a run. How
many there are follows from the batch size, the number of features and the epochs alone.

Every function here assumes generic features: no feature of the partner repeats the others, within a batch either. With
fewer independent features give their rank. Orders are assumed to be drawn anew for each epoch, as
:class:`~splitvfl.learning.batches.Batches` draws them.

Source: *Is Vertical Logistic Regression Privacy-Preserving?*, the residue solving attack; the equations of several
epochs and the share of right signs are this project's.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, Literal, TypeAlias

import numpy as np
import numpy.typing as npt

from splitvfl.errors import ArgumentError, count
from splitvfl.learning.odds import unknowns_for_success
from splitvfl.privacy.laplace import laplace_label_success

Computation = Literal["batch equations", "first batch", "stacked epochs", "sparse residues", "packing"]
"""How a partner computes labels.

- ``batch equations``: as many equations as records in a batch, each residue follows (attack ``residue-solving``);
- ``first batch``: all residues of the first step have one size, and few equations give their signs (``label-sum``);
- ``stacked epochs``: batches are larger, and the equations of all epochs together are as many as labels
  (``stacked-epochs``);
- ``sparse residues``: most residues of a batch are zero by design, and there are more equations than others
  (``sparse-residues``);
- ``packing``: the partner deviates from the protocol, and asks for single residues in place of sums (``packing``).
"""

SolvedLabels = Literal["true", "randomised", "changed"]
"""What residues are made of: labels as they are; those that a defense of labels put in their place; or a defense, or
calculated noise, changed the residues or their sums."""

MOST_RIGHT: Final = 0.6
"""Share of signs that a change may leave right and still counts as preventing a computation; guessing gives 0.5.

Beside it stands what a model of labels from the partner's own features reads, which no batch size prevents.
"""

# The sizes that attack label-sum is tested at, by equations: from so many on it finds signs among so many records.
_LATTICES: Final = ((1, 40), (4, 60), (16, 128))
# Least squares within the box of signs finds them from this ratio of equations to records on, whatever the size.
_BOX: Final = 0.7
# Bits that a sum tells in single precision and in the fixed point of default encryption, at least.
_BITS: Final = 20
_BLOCK: Final = 1 << 18
_MOST_EPOCHS: Final = 1_000_000

Sizes: TypeAlias = npt.NDArray[Any]


@dataclass(frozen=True, slots=True)
class SummedTraining:
    """The batches of a run, as far as they matter here.

    Attributes:
        records: Training records, without those that early stopping holds out.
        batch_size: Records in a batch.
        epochs: Epochs that are planned.
        drop_last: Whether records that do not fill a batch are left out of their epoch.
    """

    records: int
    batch_size: int
    epochs: int
    drop_last: bool = False

    def __post_init__(self) -> None:
        for name in ("records", "batch_size", "epochs"):
            count(name, getattr(self, name))
        if self.batch_size > self.records:
            raise ArgumentError(f"expected batches of at most {self.records} records, got {self.batch_size}")

    @property
    def last(self) -> int:
        """Records of the shorter batch that ends an epoch; 0 where there is none."""
        return 0 if self.drop_last else self.records % self.batch_size

    @property
    def steps(self) -> int:
        """Batches of an epoch."""
        return self.records // self.batch_size + (self.last > 0)


def stacked_equations(training: SummedTraining, features: int, *, epochs: int | None = None) -> int:
    """Return the rank of all equations of a run about the labels of its records, at most their number.

    A batch of s > d records gives d. The batches of an epoch that leaves nobody out add up to the same d sums in every
    epoch, which count once: ``d + E (m − 1) d`` of m such batches. A last batch of at most d records gives its records
    themselves, which come again in later epochs; the expected number of different ones counts.

    Args:
        training: Its batches.
        features: d, features of the partner.
        epochs: E, in place of those that are planned.

    Raises:
        ArgumentError: If a number is below 1.

    >>> stacked_equations(SummedTraining(records=300, batch_size=100, epochs=4), 10)
    90
    """
    d = count("features", features)
    used = training.epochs if epochs is None else count("epochs", epochs)
    return min(training.records, round(float(_equations(training, d, used, training.batch_size))))


def _equations(training: SummedTraining, d: int, epochs: int, sizes: int | Sizes) -> Sizes:
    """Return the same before it is rounded, and without the limit, for one or several batch sizes."""
    n, sizes = training.records, np.asarray(sizes, dtype=np.int64)
    full, last = n // sizes, n % sizes
    again = n * (1 - (1 - last / n) ** epochs)  # different records of all last batches, expected
    short = np.where(last > d, float(epochs * d), again)
    whole = d + short
    if training.drop_last:
        whole = np.where(last > 0, np.minimum(epochs * d, whole), whole)
    wide = epochs * (full - 1.0) * d + whole
    left_out = n * (last / n) ** epochs if training.drop_last else 0.0
    found: Sizes = np.where(sizes > d, wide, n - left_out)
    return found


def largest_first_batch(features: int) -> int:
    """Return up to how many records attack ``label-sum`` finds all signs of a batch whose residues have one size.

    These are the sizes that the attack is tested at; a larger batch may be solvable too.

    Args:
        features: Features of the partner, which take many different values.

    Raises:
        ArgumentError: If it is below 1.

    >>> largest_first_batch(1), largest_first_batch(10), largest_first_batch(200)
    (20, 60, 285)
    """
    d = count("features", features)
    tested = max(most for least, most in _LATTICES if d >= least)
    return min(_BITS * d, max(tested, math.floor(d / _BOX)))


@dataclass(frozen=True, slots=True)
class Prevention:
    """The smallest changes that each prevent a computation, as far as a number prevents it.

    Attributes:
        batch_size: The smallest larger batch; ``None``: no batch size does.
        epochs: The largest number of epochs at the present batch size; ``None``: one epoch is too many.
    """

    batch_size: int | None
    epochs: int | None


def prevention(
    training: SummedTraining, features: int, *, zero_start: bool = False, most_right: float = MOST_RIGHT
) -> Prevention:
    """Return the smallest changes with which a partner's equations no longer determine labels.

    With the change, the equations of the whole run leave at most ``most_right`` of the signs right
    (:func:`~splitvfl.learning.odds.sign_success`, with features that predict nothing), no batch has as few records as
    the partner has features, and the first batch is too large for its lattice.

    Args:
        training: The batches that are planned.
        features: Features of the partner.
        zero_start: Whether all first weights are zero.
        most_right: Share of signs that may stay right, in (0.5, 1).

    Raises:
        ArgumentError: If an argument is outside its range.
    """
    d, n = count("features", features), training.records
    allowed = n * d / unknowns_for_success(most_right, d)
    batch_size = None
    for start in range(training.batch_size + 1, n + 1, _BLOCK):
        sizes = np.arange(start, min(start + _BLOCK, n + 1))
        fits = _prevents(training, d, training.epochs, sizes, allowed, zero_start=zero_start)
        if fits.any():
            batch_size = int(sizes[fits.argmax()])
            break
    size, epochs = training.batch_size, None
    if _prevents(training, d, 1, size, allowed, zero_start=zero_start):
        epochs = _first(lambda e: not _prevents(training, d, e, size, allowed, zero_start=zero_start), training.epochs)
        epochs = training.epochs if epochs is None else epochs - 1
    return Prevention(batch_size, epochs)


def _first(reached: Callable[[int], bool], most: int) -> int | None:
    """Return the first of 1 to ``most`` that reaches something, as every later one does; ``None``: none does."""
    if not reached(most):
        return None
    below, above = 0, most
    while above - below > 1:
        middle = (below + above) // 2
        below, above = (below, middle) if reached(middle) else (middle, above)
    return above


def _prevents(
    training: SummedTraining, d: int, epochs: int, sizes: int | Sizes, allowed: float, *, zero_start: bool
) -> Sizes:
    sizes = np.asarray(sizes)
    last = 0 * sizes if training.drop_last else training.records % sizes
    least = largest_first_batch(d) if zero_start else d
    fits: Sizes = (sizes > max(d, least)) & ((last == 0) | (last > d))
    return fits & (_equations(training, d, epochs, sizes) <= allowed)


@dataclass(frozen=True, slots=True)
class Solvable:
    """What one partner can compute of labels in a run, known before its first step.

    Attributes:
        partner: Its name.
        computation: How.
        solves: ``"labels"``, or ``"residues"`` where the sign of a residue is not proven to be its record's label.
        records: Of how many records; an expectation where only the last batch of an epoch is small enough.
        residues: Of how many records it solves for the residue, with a sign that is proven to be the label or not.
        of: Training records.
        epochs: After how many epochs.
        exact: Whether the computation is exact for generic features. Else it is right for most records, as the other
            parties' part of the logits disturbs it.
        labels: What is solved for.
        features: Features that the partner has, at most.
        batch_size: Records in the batch that is solved, or in each batch.
        planned_batch_size: Records in a batch, the last one of an epoch apart.
        planned_epochs: Epochs that are planned.
        equations: Equations about them.
        horizon: Steps in which a sign is provably a label, where the computation reads signs; ``None``: every step.
        batch_size_needed: As :attr:`Prevention.batch_size`.
        epochs_allowed: As :attr:`Prevention.epochs`.
        used: Where most residues are zero by design, how many of a batch are not, on average.
        claimed: Of packing, how many sums a partner may claim to need, which is more than its features, or as many.
        left: Of packing, how many residues of a step are returned where it may claim no more than its features.
    """

    partner: str
    computation: Computation
    solves: Literal["labels", "residues"]
    records: int
    residues: int
    of: int
    epochs: int
    exact: bool
    labels: SolvedLabels
    features: int
    batch_size: int
    planned_batch_size: int
    planned_epochs: int
    equations: int
    horizon: int | None = None
    batch_size_needed: int | None = None
    epochs_allowed: int | None = None
    used: float | None = None
    claimed: int | None = None
    left: int | None = None

    @property
    def deviates(self) -> bool:
        """Whether the partner deviates from the protocol for it."""
        return self.computation == "packing"

    @property
    def reveals_labels(self) -> bool:
        """Whether true labels follow exactly."""
        return self.exact and self.solves == "labels" and self.labels == "true" and self.records > 0

    @property
    def prevented_by(self) -> tuple[str, ...]:
        """The smallest changes of settings that each prevent it; none: no batch size does."""
        size, epochs = self.batch_size_needed, self.epochs_allowed
        found = []
        if size is not None:
            found.append(f"train.batch_size: {size}{' (all)' if size == self.of else ''}")
        if epochs is not None and epochs < self.planned_epochs:
            found.append(f"train.epochs: {epochs}")
        return tuple(found)

    @property
    def leak_auc(self) -> float:
        """Leak AUC that it gives at least, the other records guessed: ``1 − (1 − share)² / 2``; 0.5 unless exact.

        Of as large a share of both classes.
        """
        if not self.reveals_labels:
            return 0.5
        return 1 - (1 - self.records / self.of) ** 2 / 2

    def sentences(self, *, defended_by: str = "", guaranteed: bool = False) -> list[str]:
        """Return it in words, the conclusion first, and the smallest change that prevents it.

        Args:
            defended_by: What stands between true labels and what is solved for, where ``labels`` are not true.
            guaranteed: Whether that guarantees something of true labels.
        """
        said = [f"{self.partner} {self._can()}", *self._how()]
        if self.labels == "true":
            return [*said, self._remedy()]
        solved = "randomised labels" if self.labels == "randomised" else "residues that were changed before"
        left = (
            f"What follows of true labels is bounded by what {defended_by} guarantees"
            if guaranteed
            else f"{defended_by} guarantees nothing of true labels, and attacks on {solved} tell what is left"
        )
        return [*said, f"These are {solved}, and no true labels. {left}."]

    def _can(self) -> str:
        if self.deviates:
            what = {"true": "labels", "randomised": "randomised labels", "changed": "changed residues"}[self.labels]
            return (
                f"can read the {what} of {self.records:,} of {self.of:,} records in "
                f"{_counted(self.epochs, 'epoch')} if it deviates from the protocol (attack packing)."
            )
        what = {"true": "labels", "randomised": "randomised labels", "changed": "changed residues"}[self.labels]
        after = f"after {_counted(self.epochs, 'epoch')}"
        if self.labels == "changed" or self.solves == "residues":
            residues = "residues" if self.labels != "changed" else what
            return f"can solve for the {residues} of {self.residues:,} of {self.of:,} records {after}."
        about = "" if self.exact else "most of "
        return f"can solve for {about}{self.records:,} of {self.of:,} {what} {after}."

    def _how(self) -> list[str]:
        n, equations = self.batch_size, f"{self.equations:,} equations"
        if self.deviates:
            return [
                f"It may claim {_counted(self.claimed or 0, 'sum')} (up to exchange.encryption.most_columns), which "
                f"return {self.equations:,} of {n:,} residues of a batch"
                + ("." if self.used is None else f"; about {self.used:.0f} of a batch are not zero.")
            ]
        if self.computation == "sparse residues":
            return [
                f"Of a batch about {self.used:.0f} records are used, and {self.features:,} features give {equations}, "
                f"which determine up to {self.features - 1:,} residues that are not zero (attack sparse-residues)."
            ]
        if self.computation == "first batch":
            return [
                f"All residues of a batch have one known size, and {self.features:,} features give {equations}, from "
                f"which their {n:,} signs follow (attack label-sum)."
            ]
        if self.computation == "stacked epochs":
            disturbed = [] if self.exact else ["The other parties' part of the logits disturbs them."]
            return [
                f"A batch of {n:,} records gives {self.features:,} equations, one for each feature of {self.partner}, "
                f"and those of {_counted(self.epochs, 'epoch')} determine every label (attack stacked-epochs).",
                *disturbed,
            ]
        batch = "the last batch of an epoch" if self.records_in_last else "a batch"
        said = [
            f"{batch.capitalize()} has {_counted(n, 'record')}, no more than {self.partner} has features "
            f"({self.features:,}), so that each residue follows from the sums (attack residue-solving)."
        ]
        if self.horizon is not None and self.labels != "changed":
            where = {0: "in no step", 1: "in step 1"}.get(self.horizon, f"in steps 1 to {self.horizon:,}")
            said.append(
                f"The sign of a residue is proven to be its label {where}; residues follow for {self.residues:,} "
                "records. What is not proven may hold all the same."
            )
        return said

    @property
    def records_in_last(self) -> bool:
        """Whether only the shorter batch at the end of an epoch is small enough."""
        return self.computation == "batch equations" and self.batch_size < self.planned_batch_size

    def _remedy(self) -> str:
        n = self.batch_size
        if self.deviates:
            return (
                f"To limit it, set exchange.encryption.most_columns: {self.features}, which is what it has: then it "
                f"still reads {self.left:,} of {n:,}."
                if self.left is not None and self.left < self.equations
                else "A label defense limits what they tell."
            )
        if self.computation == "sparse residues":
            return "To prevent it, use more records than it has features: larger batches, or a larger exchange.share."
        found = " or ".join(self.prevented_by)
        changed = (
            f"To prevent it, set {found}. The sums still teach the partner a model of labels from its features."
            if found
            else "No batch size prevents it."
        )
        left = round(100 * laplace_label_success(1.0))
        return (
            f"{changed} Defenses do too: laplace-residue with epsilon 1.0 leaves {left} of 100 signs right in one "
            "epoch, and more over several; asymmetric-response randomises labels once for the whole run."
        )


def _counted(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'s' * (number != 1)}"


def solvable_labels(
    partner: str,
    features: int,
    training: SummedTraining,
    *,
    horizon: float,
    zero_start: bool,
    known_logits: bool = False,
    labels: SolvedLabels = "true",
) -> list[Solvable]:
    """Return everything that a partner can compute of labels from the sums of a run.

    Args:
        partner: Its name.
        features: How many features it has, or their rank.
        training: The batches that are planned.
        horizon: Steps in which the sign of a residue is its record's label
            (:func:`~splitvfl.privacy.sign_attack_horizon`); 0 where nothing is proven.
        zero_start: Whether all first weights are zero.
        known_logits: Whether the partner knows all logits: the label owner has neither features nor an intercept, and
            there is no third party.
        labels: What residues are made of.

    Returns:
        None to three, the exact ones first.

    Raises:
        ArgumentError: If an argument is outside its range.
    """
    d = count("features", features)
    if math.isnan(horizon) or horizon < 0:
        raise ArgumentError(f"expected a horizon from 0, got {horizon}")
    needed = prevention(training, d, zero_start=zero_start or known_logits)
    common: dict[str, Any] = {
        "partner": partner,
        "of": training.records,
        "labels": labels,
        "features": d,
        "planned_batch_size": training.batch_size,
        "planned_epochs": training.epochs,
        "batch_size_needed": needed.batch_size,
        "epochs_allowed": needed.epochs,
    }
    found = []
    equations = _by_equations(training, d, math.inf if known_logits else horizon)
    if equations is not None:
        found.append(Solvable(**common, **equations, computation="batch equations", exact=True))
    by_signs = 0 if equations is None or equations["solves"] != "labels" else equations["records"]
    size = training.batch_size
    if (zero_start or known_logits) and by_signs < size and d < size <= largest_first_batch(d):
        found.append(
            Solvable(
                **common,
                computation="first batch",
                solves="labels",
                records=training.records - training.last if known_logits else size,
                residues=training.records - training.last if known_logits else size,
                epochs=1,
                exact=True,
                batch_size=size,
                equations=d,
            )
        )
    if size > d:
        epochs = epochs_to_stack(training, d)
        if epochs is not None and epochs <= training.epochs:
            found.append(
                Solvable(
                    **common,
                    computation="stacked epochs",
                    solves="labels",
                    records=training.records,
                    residues=training.records,
                    epochs=epochs,
                    exact=known_logits,
                    batch_size=size,
                    equations=stacked_equations(training, d, epochs=epochs),
                )
            )
    return found


def records_met(training: SummedTraining, of_a_batch: float) -> int:
    """Return of how many records a run shows something, on average, of which each batch shows so many.

    ``n (1 − (1 − k / s)^E)``, of orders that are drawn anew for each epoch.

    Args:
        training: The batches that are planned.
        of_a_batch: k, at least 0.

    Raises:
        ArgumentError: If it is below 0.

    >>> records_met(SummedTraining(records=100, batch_size=10, epochs=2), 5)
    75
    """
    if not of_a_batch >= 0:
        raise ArgumentError(f"expected records of a batch from 0, got {of_a_batch}")
    share = min(1.0, of_a_batch / training.batch_size)
    return round(training.records * (1 - (1 - share) ** training.epochs))


def packed_labels(
    partner: str,
    features: int,
    training: SummedTraining,
    *,
    claimed: int,
    read: Callable[[int], int],
    labels: SolvedLabels = "true",
    used: float | None = None,
    sent: float | None = None,
) -> Solvable | None:
    """Return what a partner that deviates can read of labels; ``None``: nothing.

    Args:
        partner: Its name.
        features: How many features it has.
        training: The batches that are planned.
        claimed: How many sums it may claim to need.
        read: How many residues of a step are returned to who claims so many sums.
        labels: What residues are made of.
        used: How many residues of a batch are not zero, on average; ``None``: all.
        sent: How many of a batch are sent, these among them, on average; ``None``: all.

    Raises:
        ArgumentError: If an argument is outside its range.
    """
    d, c = count("features", features), max(count("claimed", claimed), features)
    each, left = (min(read(sums), training.batch_size) for sums in (c, d))
    if each < 1:
        return None

    def told(size: int) -> float:
        if used is None or sent is None:
            return min(each, size)
        part = size / training.batch_size
        return used * part * min(1.0, each / (sent * part))

    # A shorter batch at the end of an epoch returns as many as others.
    shown = training.records // training.batch_size * told(training.batch_size)
    shown += told(training.last) if training.last else 0.0
    met = round(training.records * (1 - (1 - shown / training.records) ** training.epochs))
    return Solvable(
        partner=partner,
        computation="packing",
        solves="labels",
        records=met,
        residues=met,
        of=training.records,
        epochs=training.epochs,
        exact=False,
        labels=labels,
        features=d,
        batch_size=training.batch_size,
        planned_batch_size=training.batch_size,
        planned_epochs=training.epochs,
        equations=each,
        used=used,
        claimed=c,
        left=left,
    )


def sparse_labels(
    partner: str, features: int, training: SummedTraining, *, used: float, labels: SolvedLabels = "true"
) -> Solvable | None:
    """Return what a partner can compute of labels where most residues of a batch are zero; ``None``: nothing.

    More equations than residues that are not zero have one such solution, for generic features. Finding it takes a
    search, which need not end in time.

    Args:
        partner: Its name.
        features: How many features it has.
        training: The batches that are planned.
        used: How many residues of a batch are not zero, on average.
        labels: What residues are made of.

    Raises:
        ArgumentError: If an argument is outside its range.
    """
    d = count("features", features)
    if not 0 < used <= d - 1:
        return None
    met = records_met(training, used)
    return Solvable(
        partner=partner,
        computation="sparse residues",
        solves="labels",
        records=met,
        residues=met,
        of=training.records,
        epochs=training.epochs,
        exact=False,
        labels=labels,
        features=d,
        batch_size=training.batch_size,
        planned_batch_size=training.batch_size,
        planned_epochs=training.epochs,
        equations=d,
        used=used,
    )


def epochs_to_stack(training: SummedTraining, features: int) -> int | None:
    """Return after how many epochs their equations are as many as labels; ``None``: never, or after a million.

    Raises:
        ArgumentError: If the number of features is below 1.
    """
    return _first(lambda epochs: stacked_equations(training, features, epochs=epochs) >= training.records, _MOST_EPOCHS)


def _by_equations(training: SummedTraining, d: int, horizon: float) -> dict[str, Any] | None:
    """Return what batches of as few records as features give; ``None``: there are none."""
    n, size, last = training.records, training.batch_size, training.last
    solved: dict[str, Any] = {"horizon": None if math.isinf(horizon) else int(horizon)}
    if size <= d:
        proven = min(float(training.steps), horizon)
        every = n - (n % size if training.drop_last else 0)
        reached = min(every, int(proven) * size)
        return {
            **solved,
            "solves": "labels" if reached else "residues",
            "records": reached,
            "residues": every,
            "epochs": 1,
            "batch_size": size,
            "equations": min(d, size),
        }
    if not 0 < last <= d:
        return None
    proven = min(float(training.epochs), horizon // training.steps)
    reached, every = (round(n * (1 - (1 - last / n) ** epochs)) for epochs in (proven, training.epochs))
    return {
        **solved,
        "solves": "labels" if reached else "residues",
        "records": reached,
        "residues": every,
        "epochs": training.epochs,
        "batch_size": last,
        "equations": last,
    }

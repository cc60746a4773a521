"""What a defense can claim, as types, and what each of them says."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, fields
from statistics import NormalDist
from typing import Literal, NamedTuple, get_args

from splitvfl.claims.label_releases import LabelRelease
from splitvfl.errors import ArgumentError

_NO_DELTA = 0.995
"""A δ from which on nothing is promised: it rounds to 1."""


class Condition(NamedTuple):
    """Something that a promise rests on.

    Attributes:
        needed: What has to be so, in a whole sentence.
        checked: What was checked of it, in a whole sentence.
    """

    needed: str
    checked: str


@dataclass(frozen=True, slots=True)
class RowNorm:
    """No row that the defense returns is longer than ``bound``, whatever it is given.

    Attributes:
        bound: Largest Euclidean norm of a row, > 0, in the unit of the message.
    """

    bound: float

    def __post_init__(self) -> None:
        _check_positive(self)

    def stated(self) -> str:
        """Return it as a sentence without its full stop."""
        return f"no row that it returns is longer than {self.bound:g}, which is checked in every message"


@dataclass(frozen=True, slots=True)
class Gaussian:
    """To every number of the message the defense adds independent noise ``N(0, sigma²)``, and that is all it does.

    With ``bound``, each row is first changed, by itself, into one that is not longer. The defense shows these rows
    before it adds the noise, ``rows = secrets.before_noise(rows)``, and guarantees something for each record then.
    Without, noise is added to the rows as they come.

    Attributes:
        sigma: Standard deviation of the noise, > 0, in the unit of the message.
        bound: Largest Euclidean norm of a row that the noise is added to, > 0; ``None``: none of its own.
    """

    sigma: float
    bound: float | None = None

    def __post_init__(self) -> None:
        _check_positive(self)

    @property
    def hides_rows(self) -> bool:
        """Whether one message promises anything of a record's row: a δ at ε = 1 that is not as good as 1."""
        return self.bound is not None and self.delta(1.0) < _NO_DELTA

    def delta(self, epsilon: float) -> float:
        """Return the δ with which one message is (ε, δ)-differentially private in a record's row, any two values of it.

        Raises:
            ArgumentError: If no ``bound`` is claimed, so that rows may be as far apart as they like.
        """
        from splitvfl.learning.gaussian_noise import gaussian_delta  # which brings SciPy along

        if self.bound is None:
            raise ArgumentError("Gaussian: without a bound on rows noise makes nothing differentially private")
        return gaussian_delta(self.sigma, epsilon, sensitivity=2.0 * self.bound)

    def stated(self) -> str:
        """Return it as a sentence without its full stop."""
        noise = f"Gaussian noise of standard deviation {self.sigma:g} is added to every number"
        if self.bound is None:
            return f"{noise}, and nothing else is done"
        of_rows = f"{noise} of rows that are no longer than {self.bound:g}"
        if not self.hides_rows:
            return f"{of_rows}, which is too little to hide any: two that are as far apart as can be are told apart"
        return (
            f"{of_rows}, so that one message is (1, δ)-differentially private in a record's row with "
            f"δ = {self.delta(1.0):.2g}"
        )


@dataclass(frozen=True, slots=True)
class PerRecord:
    """What the defense guarantees, it guarantees for each record, and a layer that mixes records would void it."""

    def stated(self) -> str:
        """Return it as a sentence without its full stop."""
        return "what it does to a record's row depends on no other record"


@dataclass(frozen=True, slots=True)
class NoPromise:
    """Of what anybody learns from what it returns the defense promises nothing, or no more than its other claims say.

    Attributes:
        why: Why not, in whole sentences.
    """

    why: str


Per = Literal["message", "run"]


@dataclass(frozen=True, slots=True)
class _Words:
    """What a promise is made of beside its number, in words: claims are equal whatever they are.

    Attributes:
        mechanism: What is done, in words that go on in a sentence.
        conditions: What it rests on, with what was checked of each: pairs of whole sentences.
        not_covered: What it does not cover, in whole sentences.
    """

    mechanism: str = field(default="", compare=False, repr=False, kw_only=True)
    conditions: tuple[Condition, ...] = field(default=(), compare=False, repr=False, kw_only=True)
    not_covered: tuple[str, ...] = field(default=(), compare=False, repr=False, kw_only=True)


@dataclass(frozen=True, slots=True)
class GaussianDP(_Words):
    """What is sent is μ-Gaussian differentially private in the label of each record.

    Neighbours differ in one record's label, and in nothing else: columns, weights and all other labels may be known.
    To tell two labels apart is as hard as N(0, 1) and N(μ, 1), and no one's ½(FPR + FNR) is below ``Φ(−μ/2)``. It
    rests on the layers behind it, which must keep records apart, and says nothing of what columns give away.

    Attributes:
        mu: μ, > 0.
        per: ``"message"``: of one message; so many of them, each given what came before, are ``√(number) · μ``, but
            only where a label moves later messages through earlier ones alone. ``"run"``: of all together.
        unit: Whose change it is about.
    """

    mu: float
    per: Per = "message"
    unit: Literal["label of a record"] = "label of a record"

    def __post_init__(self) -> None:
        _check_per(self)
        _check_number(self, "mu", self.mu)

    @property
    def detection_error(self) -> float:
        """The least ½(FPR + FNR) of anyone who tells two labels of a record apart, ``Φ(−μ/2)``."""
        return _least_error(self.mu)

    def delta(self, epsilon: float) -> float:
        """Return the δ with which it is (ε, δ)-differentially private: that of one Gaussian release."""
        from splitvfl.learning.gaussian_noise import gaussian_delta  # which brings SciPy along

        return gaussian_delta(1.0, epsilon, sensitivity=self.mu)

    def stated(self) -> str:
        """Return what is promised of a message, or of a run, as a sentence without its full stop."""
        bound, given = f"{self.detection_error:.3f}", "in the label of every record, given all else"
        if self.per == "run":
            return (
                f"all messages of the run together are {self.mu:.3g}-Gaussian differentially private {given}: nobody "
                f"tells two labels of a record apart with an error ½(FPR + FNR) below {bound}"
            )
        return (
            f"each message is {self.mu:.3g}-Gaussian differentially private {given}: from one, nobody tells two labels "
            f"of a record apart with an error ½(FPR + FNR) below {bound}"
        )

    def said(self, epochs: int) -> str:
        """Return what it means for a run of so many epochs, in a sentence."""
        if self.per == "run":
            return self.stated()
        added = _least_error(math.sqrt(epochs) * self.mu)
        return (
            f"{self.stated()}. Of the run it promises nothing; the noise alone of {_messages(epochs)} would allow "
            f"{added:.3f}"
        )


Unit = Literal["label of a record", "residue of a record"]


@dataclass(frozen=True, slots=True)
class PureDP(_Words):
    """What is sent of a record is ε-differentially private: probabilities change by a factor of e^ε at most.

    Attributes:
        epsilon: ε in nats, > 0; δ is 0.
        unit: What neighbours differ in: ``"label of a record"``, where the model's prediction of it and all else is
            given, or ``"residue of a record"``, any two values of it.
        per: ``"message"``: of one release; E of them cost E times as much, which is said of a run only where a label
            moves later messages through what was sent alone. ``"run"``: of all together.
        auc: Nobody's AUC is above this, between records that are alike in all else; ``None``: what ε alone allows.
    """

    epsilon: float
    unit: Unit = "label of a record"
    per: Per = "message"
    auc: float | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        _check_per(self)
        _check_number(self, "epsilon", self.epsilon)

    @property
    def success_bound(self) -> float:
        """How often anyone can at most tell a label of even odds apart, ``e^ε / (1 + e^ε)``."""
        return _success(self.epsilon)

    def delta(self, epsilon: float) -> float:
        """Return a δ with which it is (ε', δ)-differentially private: 0 from its own ε on, else that of its worst case.

        Which is randomised response: ``(e^ε − e^ε') / (1 + e^ε)``.
        """
        return max(0.0, -math.expm1(epsilon - self.epsilon)) * self.success_bound

    def stated(self) -> str:
        """Return what is promised of a message, or of a run, as a sentence without its full stop."""
        whose = "given all else" if self.unit == "label of a record" else "any two values of it"
        private = f"{self.epsilon:.3g}-differentially private in the {self.unit}, {whose}"
        if self.per == "run":
            return (
                f"all messages of the run together are {private}: nobody tells two labels of even odds apart more "
                f"often than {self.success_bound:.3f}"
            )
        return (
            f"each message is {private}: from one, nobody tells two of even odds apart more often than "
            f"{self.success_bound:.3f}"
        )

    def said(self, epochs: int) -> str:
        """Return what it means for a run of so many epochs, in a sentence."""
        if self.per == "run":
            return self.stated()
        return (
            f"{self.stated()}. The noise alone of {_messages(epochs)} would allow {_success(epochs * self.epsilon):.3f}"
        )


@dataclass(frozen=True, slots=True)
class DetectionError(_Words):
    """Nobody's detection error on a label, ½(FPR + FNR), is below a bound.

    Attributes:
        bound: L, from 0 to ½; ½ is a coin toss.
        per: Of one message, or of all of a run together.
        proven: Whether it holds by what the code keeps; if not, it holds under ``conditions`` that nobody checks.
        auc: Nobody's AUC is above this, between records that are alike in all else; ``None``: not said.
    """

    bound: float
    per: Per = "message"
    proven: bool = True
    auc: float | None = None

    def __post_init__(self) -> None:
        _check_per(self)
        if not 0.0 <= self.bound <= 0.5:  # whose ends are what rounds to them
            raise ArgumentError(f"DetectionError: bound must be from 0 to ½, got {self.bound!r}")

    def stated(self) -> str:
        """Return what is promised of a message, or of a run, as a sentence without its full stop."""
        where = "from all messages of the run together" if self.per == "run" else "from one message"
        given = "given all else" if self.proven else "if its model of gradients holds"
        said = f"{where} nobody tells two labels of a record apart with an error ½(FPR + FNR) below {self.bound:.3g}"
        ranked = (
            ""
            if self.auc is None
            else f", or ranks records that are alike in all else with an AUC above {self.auc:.3g}"
        )
        return f"{said}{ranked}, {given}"

    def said(self, epochs: int) -> str:
        """Return what it means for a run of so many epochs, in a sentence."""
        return self.stated() if self.per == "run" else f"{self.stated()}. Of the run it promises nothing"


def _messages(epochs: int) -> str:
    return "one message" if epochs == 1 else f"{epochs} messages"


def _success(epsilon: float) -> float:
    return 1.0 / (1.0 + math.exp(-epsilon))


Claim = RowNorm | Gaussian | PerRecord | GaussianDP | PureDP | DetectionError | NoPromise
ROW_CLAIMS = (RowNorm, Gaussian, PerRecord)
"""Those about a row by itself."""
LABEL_CLAIMS = (GaussianDP, PureDP)
"""Those about what labels are told that hold whatever is sent beside; they say what that means for a run."""


@dataclass(frozen=True, slots=True)
class RunPlan:
    """What a promise over a whole run rests on: told to defenses before the first step.

    Attributes:
        epochs: How often each record is used.
        releases: What partners see beside the messages that is made from labels: each voids a promise of the run.
        values: Values that a loss's target can take behind the label defenses; ``None``: not known, or any.
    """

    epochs: int
    releases: tuple[LabelRelease, ...] = ()
    values: tuple[float, ...] | None = None


def _least_error(mu: float) -> float:
    # As splitvfl.privacy.least_detection_error, which brings SciPy along.
    return NormalDist().cdf(-mu / 2.0)


def _check_per(claim: GaussianDP | PureDP | DetectionError) -> None:
    if claim.per not in get_args(Per):
        raise ArgumentError(f"{type(claim).__name__}: per must be 'message' or 'run', got {claim.per!r}")


def _check_number(claim: GaussianDP | PureDP, name: str, value: object) -> None:
    if not (isinstance(value, float) and value > 0 and math.isfinite(value)):
        raise ArgumentError(f"{type(claim).__name__}: {name} must be positive and finite, got {value!r}")


def _check_positive(claim: RowNorm | Gaussian) -> None:
    for one in fields(claim):
        value = getattr(claim, one.name)
        if value is None and one.default is None:
            continue
        if not isinstance(value, (int, float)) or isinstance(value, bool) or not (value > 0 and math.isfinite(value)):
            raise ArgumentError(f"{type(claim).__name__}: {one.name} must be positive and finite, got {value!r}")

"""What a defense claims, as types: what can be checked of it, before a run and while it runs.

A defense that bounds or noises what it is given says so with a method ``claims()``, which returns a tuple of the types
below. It is asked once, where it is attached, and held to its answer from then on:

- :func:`row_bound` walks the defenses of a message in their order and says what is known of its rows in the end. A
  defense that states nothing of rows voids what those before it stated, also behind noise: it may look at its party's
  data again.
- :func:`broken` compares what a defense returned with what it claims. A row above its bound is not sent.

Claims are there to notice mistakes: a bound in another unit, a defense in the wrong place, a formula that is wrong.
They are no protection from a party that means harm. Its own machine does the checking, and it can send what it likes.

>>> class Clip:
...     crossing = "activation"
...
...     def claims(self):
...         return (RowNorm(1.0),)
...
...     def __call__(self, message, secrets, /):
...         return message / message.norm(dim=1, keepdim=True).clamp(min=1.0)
>>> row_bound([("clip", claims_of(Clip()))]).norm
1.0
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from statistics import NormalDist
from typing import Literal, assert_never, get_args

import torch
from torch import Tensor

from splitvfl.errors import ArgumentError, HookError
from splitvfl.hooks import hook_name
from splitvfl.wording import shown as written

# A row of d normal numbers is longer than sqrt(d) + s with probability below exp(-s²/2): 2e-22 here, whatever d.
_FARTHEST = 10.0


@dataclass(frozen=True, slots=True)
class RowNorm:
    """No row that the defense returns is longer than ``bound``, whatever it is given.

    Attributes:
        bound: Largest Euclidean norm of a row, > 0, in the unit of the message.
    """

    bound: float

    def __post_init__(self) -> None:
        _check_positive(self)


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


@dataclass(frozen=True, slots=True)
class PerRecord:
    """What the defense guarantees, it guarantees for each record, and a layer that mixes records would void it."""


@dataclass(frozen=True, slots=True)
class GaussianDP:
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
    per: Literal["message", "run"] = "message"
    unit: Literal["label of a record"] = "label of a record"

    def __post_init__(self) -> None:
        if self.per not in ("message", "run"):
            raise ArgumentError(f"GaussianDP: per must be 'message' or 'run', got {self.per!r}")
        if not (isinstance(self.mu, float) and self.mu > 0 and math.isfinite(self.mu)):
            raise ArgumentError(f"GaussianDP: mu must be positive and finite, got {self.mu!r}")

    @property
    def detection_error(self) -> float:
        """The least ½(FPR + FNR) of anyone who tells two labels of a record apart, ``Φ(−μ/2)``."""
        return _least_error(self.mu)

    def said(self, epochs: int) -> str:
        """Return what it means for a run of so many epochs, in a sentence."""
        bound, whose = f"{self.detection_error:.3f}", "in the label of every record, given all else"
        if self.per == "run":
            return (
                f"all messages of the run together are {self.mu:.3g}-Gaussian differentially private {whose}: nobody "
                f"tells two labels of a record apart with an error ½(FPR + FNR) below {bound}"
            )
        added, sent = _least_error(math.sqrt(epochs) * self.mu), "one message" if epochs == 1 else f"{epochs} messages"
        return (
            f"each message is {self.mu:.3g}-Gaussian differentially private {whose}: from one, nobody tells two labels "
            f"of a record apart with an error ½(FPR + FNR) below {bound}. Of the run it promises nothing; the noise "
            f"alone of {sent} would allow {added:.3f}"
        )


@dataclass(frozen=True, slots=True)
class PureDP:
    """What is sent of a record in one message is ε-differentially private: probabilities change by e^ε at most.

    Releases of one record add up: E of them cost E times as much. That is said of a run only where a label moves later
    messages through what was sent alone.

    Attributes:
        epsilon: ε of one release, in nats, > 0.
        mechanism: What is done, in words.
        unit: What neighbours differ in: ``"label of a record"``, where the model's prediction of it and all else is
            given, or ``"residue of a record"``, any two values of it.
        conditions: What it rests on, with what was checked of each: pairs of sentences.
        not_covered: What it does not cover, in sentences.
    """

    epsilon: float
    mechanism: str
    unit: Literal["label of a record", "residue of a record"] = "label of a record"
    conditions: tuple[tuple[str, str], ...] = ()
    not_covered: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not (isinstance(self.epsilon, float) and self.epsilon > 0 and math.isfinite(self.epsilon)):
            raise ArgumentError(f"PureDP: epsilon must be positive and finite, got {self.epsilon!r}")

    @property
    def success_bound(self) -> float:
        """How often anyone can at most tell a label of even odds from one release, ``e^ε / (1 + e^ε)``."""
        return _success(self.epsilon)

    def said(self, epochs: int) -> str:
        """Return what it means for a run of so many epochs, in a sentence."""
        whose = f"in the {self.unit}"
        whose += ", given all else" if self.unit == "label of a record" else ", any two values of it"
        sent = "one message" if epochs == 1 else f"{epochs} messages"
        return (
            f"each message is {self.epsilon:.3g}-differentially private {whose}: from one, nobody tells two of even "
            f"odds apart more often than {self.success_bound:.3f}. The noise alone of {sent} would allow "
            f"{_success(epochs * self.epsilon):.3f}"
        )


def _success(epsilon: float) -> float:
    return 1.0 / (1.0 + math.exp(-epsilon))


Claim = RowNorm | Gaussian | PerRecord | GaussianDP | PureDP
LABEL_CLAIMS = (GaussianDP, PureDP)
"""Those about what labels are told, which say what that means for a run."""


@dataclass(frozen=True, slots=True)
class RunPlan:
    """What a promise over a whole run rests on: told to defenses before the first step.

    Attributes:
        epochs: How often each record is used.
        early_stopping: Whether what is judged on true labels decides when training ends, or which weights are kept.
        values: Values that a loss's target can take behind the label defenses; ``None``: not known, or any.
    """

    epochs: int
    early_stopping: bool
    values: tuple[float, ...] | None = None


def _least_error(mu: float) -> float:
    # As splitvfl.privacy.least_detection_error, which brings SciPy along.
    return NormalDist().cdf(-mu / 2.0)


def _check_positive(claim: RowNorm | Gaussian) -> None:
    for field in fields(claim):
        value = getattr(claim, field.name)
        if value is None and field.default is None:
            continue
        if not isinstance(value, (int, float)) or isinstance(value, bool) or not (value > 0 and math.isfinite(value)):
            raise ArgumentError(f"{type(claim).__name__}: {field.name} must be positive and finite, got {value!r}")


def claims_of(defense: object) -> tuple[Claim, ...]:
    """Return what a defense claims; nothing unless it says so.

    ``per_record_guarantee = True`` is short for ``claims()`` that return ``(PerRecord(),)``.

    Raises:
        HookError: If its ``claims`` are no method of its class, or return anything but a tuple of claims of which at
            most one is about the norm of rows; or if they come from a class whose ``__call__`` it has replaced.
    """
    name = hook_name(defense)
    per_record = (PerRecord(),) if getattr(defense, "per_record_guarantee", False) else ()
    if not hasattr(defense, "claims"):
        return per_record
    _check_author(defense, name)
    given = defense.claims()
    if not isinstance(given, tuple) or any(type(claim) not in get_args(Claim) for claim in given):
        known = ", ".join(kind.__name__ for kind in get_args(Claim))
        raise HookError(f"{name}: claims() must return a tuple of {known}, got {written(given)}")
    if sum(isinstance(claim, RowNorm | Gaussian) for claim in given) > 1:
        raise HookError(f"{name}: claims() must say one thing of the norm of rows, got {written(given)}")
    return tuple(dict.fromkeys((*given, *per_record)))


def _check_author(defense: object, name: str) -> None:
    """Refuse claims that were written for another ``__call__``: of a class above, or of a defense that is wrapped."""
    bases = type(defense).__mro__
    stating, calling = (
        next((number for number, base in enumerate(bases) if method in vars(base)), len(bases))
        for method in ("claims", "__call__")
    )
    if stating == len(bases) or "claims" in getattr(defense, "__dict__", {}):
        raise HookError(
            f"{name}: claims must be a method of its class; what it wraps or is given claims nothing for it"
        )
    if calling < stating:
        raise HookError(
            f"{name}: its __call__ replaces that of {bases[stating].__name__}, whose claims() are about the other one; "
            f"give {bases[calling].__name__} a claims() of its own: what holds of what it returns, or ()"
        )


def is_per_record(claims: Iterable[Claim]) -> bool:
    """Return whether something is guaranteed for each record, which a layer that mixes records would void."""
    return any(
        isinstance(claim, PerRecord) or (isinstance(claim, Gaussian) and claim.bound is not None) for claim in claims
    )


@dataclass(frozen=True, slots=True)
class RowBound:
    """What is known of the rows of a message after its defenses.

    Attributes:
        norm: No row was longer, before noise that comes after it; ``None``: nothing is known.
        why: Where that comes from, in words.
    """

    norm: float | None
    why: str


def row_bound(stated: Sequence[tuple[str, tuple[Claim, ...]]]) -> RowBound:
    """Return what is known of the rows of a message from what its defenses claim.

    Args:
        stated: Name and claims of each defense, in the order in which they act.

    >>> row_bound([("clip", (RowNorm(2.0),)), ("noise", (Gaussian(3.0),))]).norm
    2.0
    >>> print(row_bound([("clip", (RowNorm(2.0),)), ("loud", ())]).why)
    loud, which comes after clip, states no bound, and voids the one of 2
    """
    known, author = RowBound(None, "no defense bounds them"), ""
    for name, claims in stated:
        found = _bound_after(name, claims, known)
        if found.norm is None and known.norm is not None:
            text = f"{name}, which comes after {author}, states no bound, and voids the one of {known.norm:g}"
            found = RowBound(None, text)
        author = author if found is known else name
        known = found
    return known


def _bound_after(name: str, claims: tuple[Claim, ...], before: RowBound) -> RowBound:
    for claim in claims:
        match claim:
            case RowNorm(bound):
                return RowBound(bound, f"{name} bounds them to {bound:g}")
            case Gaussian(_, bound) if bound is not None:
                return RowBound(bound, f"{name} bounds them to {bound:g}")
            case Gaussian():
                return before
            case PerRecord() | GaussianDP() | PureDP():
                continue
            case _:
                assert_never(claim)
    return before if before.norm is None else RowBound(None, "")


def broken(claims: Iterable[Claim], *, message: Tensor, shown: Sequence[Tensor], sent: Tensor) -> str:
    """Return which claim a defense has broken, in words; nothing if it has kept them all.

    A bound is exceeded by more than the rounding of a row that is scaled down to it in the message's own precision: its
    norm is a root of d rounded squares, of relative error up to (d + 2) u / 2 with u half the machine epsilon, and the
    bound, the quotient and each product are rounded once more.

    Noise is not judged, but its size: a row of it longer than ``sigma · (sqrt(d) + 10)`` is drawn once in 10^21.

    Args:
        claims: What it claims.
        message: What it was given, ``(n, ...)``.
        shown: What it has shown as the rows that noise is added to.
        sent: What it returned.
    """
    return next(filter(None, (_broken(claim, message, shown, sent) for claim in claims)), "")


def _broken(claim: Claim, message: Tensor, shown: Sequence[Tensor], sent: Tensor) -> str:
    match claim:
        case RowNorm(bound):
            return _too_long(sent, bound, "returned a row")
        case Gaussian(sigma, bound) if bound is not None:
            return (
                _unshown(shown, sent)
                or _too_long(shown[0], bound, "would add noise to a row")
                or _too_far(shown[0], sent, sigma)
            )
        case Gaussian(sigma):
            return _too_far(message, sent, sigma)
        case PerRecord() | GaussianDP() | PureDP():
            return ""
        case _:
            assert_never(claim)


def _unshown(shown: Sequence[Tensor], sent: Tensor) -> str:
    if len(shown) != 1:
        return (
            "claims a bound on the rows that it adds noise to, and has to show them: "
            f"expected secrets.before_noise(rows) once in a call, got {len(shown)} times"
        )
    if shown[0].shape != sent.shape:
        return f"showed rows of shape {tuple(shown[0].shape)}, and returned {tuple(sent.shape)}"
    return ""


def _too_long(rows: Tensor, bound: float, what: str) -> str:
    norms = _norms(rows, bound)
    # Written so that NaN is above every bound.
    if not norms.numel() or bool((norms <= 1.0 + _rounding(rows)).all()):
        return ""
    worst = int(norms.nan_to_num(nan=math.inf).argmax())
    return f"{what} (number {worst}) of norm {norms[worst].item() * bound:.9g}, and claims at most {bound:g}"


def _too_far(rows: Tensor, sent: Tensor, sigma: float) -> str:
    if not sent.numel():
        return ""
    noise = _norms(sent - rows, sigma)
    most = math.sqrt(sent[0].numel()) + _FARTHEST
    if bool((noise <= most).all()):
        return ""
    # In units of sigma; what rounding to the message's precision may add is not the noise's.
    beyond = noise - 4 * _epsilon(sent) * (_norms(sent, sigma) + _norms(rows, sigma))
    if bool((beyond <= most).all()):  # NaN where either is infinite, and so above
        return ""
    worst = int(beyond.nan_to_num(nan=math.inf).argmax())
    return (
        f"changed a row (number {worst}) by {noise[worst].item() * sigma:.9g} where it claims to add noise of standard "
        f"deviation {sigma:g}, which is never longer than {most * sigma:.9g} there"
    )


def _norms(rows: Tensor, unit: float) -> Tensor:
    """Return the norm of every row in units of a number: what vanishes or overflows then is far from one."""
    if not rows.numel():
        return torch.zeros(0, dtype=torch.float64)
    flat = (rows.cpu() if rows.device.type == "mps" else rows).detach().reshape(len(rows), -1)  # which has no float64
    if flat.dtype == torch.float32:  # squares of these neither vanish nor overflow in float64
        return torch.linalg.vector_norm(flat, dim=1, dtype=torch.float64) / unit  # type: ignore[no-any-return]
    norms: Tensor = torch.linalg.vector_norm(flat.double() / unit, dim=1)
    return norms


def _rounding(rows: Tensor) -> float:
    """Return by what share a row that was scaled down to a bound may exceed it, of this width and precision."""
    width = rows[0].numel()
    return (width / 4 + 4) * _epsilon(rows)


def _epsilon(rows: Tensor) -> float:
    return torch.finfo(rows.dtype).eps if rows.is_floating_point() else 0.0

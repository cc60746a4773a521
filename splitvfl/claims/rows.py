"""What is known of the rows of a message from what its defenses claim, and whether they have kept it."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import assert_never

import torch
from torch import Tensor

from splitvfl.claims.kinds import Claim, DetectionError, Gaussian, GaussianDP, NoPromise, PerRecord, PureDP, RowNorm

# A row of d normal numbers is longer than sqrt(d) + s with probability below exp(-s²/2): 2e-22 here, whatever d.
_FARTHEST = 10.0


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
            case PerRecord() | GaussianDP() | PureDP() | DetectionError() | NoPromise():
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
        case PerRecord() | GaussianDP() | PureDP() | DetectionError() | NoPromise():
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
    if _single_numbers_within(rows, bound * (1.0 + _rounding(rows))):
        return ""
    norms = _norms(rows, bound)
    # Written so that NaN is above every bound.
    if not norms.numel() or bool((norms <= 1.0 + _rounding(rows)).all()):
        return ""
    worst = int(norms.nan_to_num(nan=math.inf).argmax())
    return f"{what} (number {worst}) of norm {norms[worst].item() * bound:.9g}, and claims at most {bound:g}"


def _too_far(rows: Tensor, sent: Tensor, sigma: float) -> str:
    if not sent.numel():
        return ""
    most = math.sqrt(_width(sent)) + _FARTHEST
    change = sent - rows
    if _single_numbers_within(change, most * sigma):
        return ""
    noise = _norms(change, sigma)
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


def _single_numbers_within(rows: Tensor, bound: float) -> bool:
    """Return whether rows of one number, as a linear model sends them, are within a bound: never where one is NaN.

    It is the check of every step, and takes a fifth of the operations that norms of any rows take.
    """
    return rows.numel() == len(rows) > 0 and rows.abs().amax().item() <= bound


def _norms(rows: Tensor, unit: float) -> Tensor:
    """Return the norm of every row in units of a number: what vanishes or overflows then is far from one."""
    if not rows.numel():
        return torch.zeros(0, dtype=torch.float64)
    flat = (rows.cpu() if rows.device.type == "mps" else rows).detach().reshape(len(rows), -1)  # which has no float64
    if flat.shape[1] == 1:  # of one number, as a linear model sends it
        return flat.double().abs().squeeze(1) / unit
    if flat.dtype == torch.float32:  # squares of these neither vanish nor overflow in float64
        return torch.linalg.vector_norm(flat, dim=1, dtype=torch.float64) / unit  # type: ignore[no-any-return]
    norms: Tensor = torch.linalg.vector_norm(flat.double() / unit, dim=1)
    return norms


def _rounding(rows: Tensor) -> float:
    """Return by what share a row that was scaled down to a bound may exceed it, of this width and precision."""
    return (_width(rows) / 4 + 4) * _epsilon(rows)


def _width(rows: Tensor) -> int:
    return rows.numel() // max(1, len(rows))


def _epsilon(rows: Tensor) -> float:
    return torch.finfo(rows.dtype).eps if rows.is_floating_point() else 0.0

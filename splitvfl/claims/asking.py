"""What a defense claims: asked once, and only of who can answer for it."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from typing import get_args

from splitvfl.claims.guarantees import UNCHECKED
from splitvfl.claims.kinds import Claim, DetectionError, Gaussian, GaussianDP, NoPromise, PerRecord, PureDP, RowNorm
from splitvfl.errors import HookError
from splitvfl.errors import shown as written
from splitvfl.hooks import hook_name


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
    misplaced = _other_author(defense, name)
    given = defense.claims() if callable(defense.claims) else defense.claims
    if misplaced:
        if _only_nothing(given):
            return per_record  # who replaces what promises nothing, promises no less
        raise HookError(misplaced)
    if not isinstance(given, tuple) or any(type(claim) not in get_args(Claim) for claim in given):
        known = ", ".join(kind.__name__ for kind in get_args(Claim))
        raise HookError(f"{name}: claims() must return a tuple of {known}, got {written(given)}")
    if sum(isinstance(claim, RowNorm | Gaussian) for claim in given) > 1:
        raise HookError(f"{name}: claims() must say one thing of the norm of rows, got {written(given)}")
    return tuple(dict.fromkeys((*given, *per_record)))


def _only_nothing(given: object) -> bool:
    return isinstance(given, tuple) and all(isinstance(claim, NoPromise) for claim in given)


def _other_author(defense: object, name: str) -> str:
    """Return what is wrong if claims were written for another ``__call__``: of a class above, or of what is wrapped."""
    bases = type(defense).__mro__
    stating, calling = (
        next((number for number, base in enumerate(bases) if method in vars(base)), len(bases))
        for method in ("claims", "__call__")
    )
    if stating == len(bases) or "claims" in getattr(defense, "__dict__", {}):
        return f"{name}: claims must be a method of its class; what it wraps or is given claims nothing for it"
    if calling < stating:
        return (
            f"{name}: its __call__ replaces that of {bases[stating].__name__}, whose claims() are about the other one; "
            f"give {bases[calling].__name__} a claims() of its own: what holds of what it returns, or ()"
        )
    return ""


def unchecked(defense: object) -> tuple[str, ...]:
    """Return that nobody has checked what a defense claims, as what voids it for a whole run; nothing of a built-in.

    What a class of one's own claims is no theorem whose conditions were looked at: only measuring decides.
    """
    made_by = type(defense)
    return () if is_built_in(defense) else (f"claimed by {made_by.__module__}:{made_by.__qualname__}{UNCHECKED}",)


def is_built_in(defense: object) -> bool:
    """Return whether all that a defense does is written in splitvfl: of a class made from it nobody knows.

    What such a class leaves as it is may call what it replaces, and read what it sets.
    """
    made_by = type(defense)
    own = {name for name, value in getattr(defense, "__dict__", {}).items() if callable(value)}
    return is_ours(made_by) and not any(hasattr(made_by, name) for name in own)


def is_ours(author: type) -> bool:
    """Return whether a class is one of splitvfl's defenses: found there, and not only said to be."""
    module = author.__module__
    ours = module.startswith("splitvfl.defenses.") and module in sys.modules
    return ours and getattr(sys.modules[module], author.__qualname__, None) is author


def promises_of_labels(claims: Iterable[Claim]) -> Iterator[GaussianDP | PureDP | DetectionError]:
    """Yield what is promised of labels, but for what hangs on a model of gradients that nobody checks."""
    for claim in claims:
        match claim:
            case GaussianDP():
                yield claim
            case PureDP() if claim.unit == "label of a record":
                yield claim
            case DetectionError() if claim.proven:
                yield claim
            case _:
                continue


def is_per_record(claims: Iterable[Claim]) -> bool:
    """Return whether something is guaranteed for each record, which a layer that mixes records would void."""
    return any(
        isinstance(claim, PerRecord) or (isinstance(claim, Gaussian) and claim.bound is not None) for claim in claims
    )

"""What stands in a model's way, as :mod:`splitvfl.cut.model_check` tells it."""

from __future__ import annotations

from dataclasses import dataclass
from html import escape

MIXES, IN_PLACE, SHAPE = "mixes records", "in place", "cut shape"
"""Kinds of findings that can be repaired."""


@dataclass(frozen=True)
class Finding:
    """One thing that stands in a model's way.

    Attributes:
        what: Its kind, in a word or two: ``"mixes records"``, ``"in place"``, ``"cut shape"`` and so on.
        where: Path of the module, and its class.
        why: What it breaks.
        do: What to do.
        repaired: Whether :func:`~splitvfl.cut.model_fix.fix_model` repairs it.
    """

    what: str
    where: str
    why: str
    do: str
    repaired: bool = False

    def __str__(self) -> str:
        """Return it as a sentence."""
        return f"{self.where}: {self.what}: {self.why}; {self.do}{' (fix_model does)' if self.repaired else ''}"


class Findings(tuple[Finding, ...]):
    """What :func:`~splitvfl.cut.model_check.check_model` found; empty, and so false, where there is nothing."""

    __slots__ = ()

    def __repr__(self) -> str:
        """Return a line for each."""
        return "\n".join(map(str, self)) or "nothing stands in this model's way, as far as was looked"

    def _repr_html_(self) -> str:
        return f"<pre>{escape(repr(self))}</pre>"


def place_of(path: str, module: object) -> str:
    """Return the path of a module with its class."""
    return f"{path} ({type(module).__name__})"


def in_place(path: str, layer: object) -> Finding:
    """Return what is said of a layer that writes into what crosses."""
    return Finding(
        IN_PLACE,
        place_of(path, layer),
        "it writes into what has just crossed the cut, which autograd refuses",
        "take the layer with inplace=False, or move it to the end of the bottom",
        repaired=hasattr(layer, "inplace"),
    )

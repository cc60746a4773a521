"""Other names by which something is looked for: those of the papers, and other spellings of its own.

What is a class or a function says its own in its docstring, under ``Also called:``. What is no plug-in of any kind, a
setting or a function of Python, stands in :data:`POINTERS`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from splitvfl.config.docstrings import docstring_of

_CALLED = "Also called"
_KINDS_OF_NAMES = ("attack", "attacks", "defense", "defenses", "defence", "loss", "exchange")


@dataclass(frozen=True, slots=True)
class Pointer:
    """Something that is no plug-in, and that somebody may look for among them.

    Attributes:
        names: What it is called.
        covered: What covers it here, in a clause.
    """

    names: tuple[str, ...]
    covered: str


POINTERS = (
    Pointer(
        ("HDP-VFL",),
        "it is a setting of exchange split, with a linear model: `exchange: {name: split, noise: {epsilon: 1.0, delta: "
        "0.001}}`  (docs/differential-privacy.md)",
    ),
    Pointer(
        ("DP-Paillier", "DP-Paillier-MGD"),
        "it is a setting of exchange taylor: `exchange: {name: taylor, noise: {epsilon: 0.2, delta: 0.1}}`  "
        "(docs/logistic-regression.md, Noise under encryption)",
    ),
    Pointer(
        ("PackingEngine", "malicious", "malicious party"),
        "name the party that deviates: `malicious: {a: packing}`, under an encrypted exchange; in Python it is an "
        "engine, splitvfl.attacks.PackingEngine  (docs/logistic-regression.md, Requests for other sums)",
    ),
    Pointer(
        ("FSHA", "feature-space hijacking", "hijacking"),
        "a label owner that deviates from the protocol is a part of docs/threat-model.md; in a checkout, `python -m "
        "scripts.bench.hijacking` measures it",
    ),
    Pointer(
        ("PSI", "private set intersection"),
        "it is a command: `splitvfl align`  (docs/alignment.md)",
    ),
    Pointer(
        ("private top",),
        "it is a setting of the model: `model: {name: mlp, private_top: true}`  (splitvfl list models mlp)",
    ),
    Pointer(
        ("known-means",),
        "splitvfl reconstruct and splitvfl forecast run it of themselves, with the columns' means, which no prediction "
        "tells; an experiment does not list it",
    ),
)


def simplified(name: str) -> str:
    """Return a name without what people spell differently: case, hyphens, and the word of its kind at its end.

    >>> simplified("DP-IR"), simplified("gradient_inversion"), simplified("Equation solving attack")
    ('dpir', 'gradientinversion', 'equationsolving')
    """
    words = "".join(letter if letter.isalnum() else " " for letter in name.lower()).split()
    if len(words) > 1 and words[-1] in _KINDS_OF_NAMES:
        words.pop()
    return "".join(words)


def other_names(found: Any) -> tuple[str, ...]:
    """Return what a class or a function is called besides its name: by its docstring, and in tables by its settings."""
    said = docstring_of(found).labelled.get(_CALLED, "").removesuffix(".") if callable(found) else ""
    return (*filter(None, map(str.strip, said.split(","))), *getattr(found, "other_names", ()))


def named_so(wanted: str, items: Mapping[str, Any]) -> list[str]:
    """Return which items a name means, in alphabetical order.

    Args:
        wanted: What somebody wrote.
        items: By name, what has it.
    """
    spelled = simplified(wanted)
    if not spelled:
        return []
    return sorted(
        name for name, found in items.items() if spelled in {simplified(name), *map(simplified, other_names(found))}
    )


def pointers_to(wanted: str) -> list[str]:
    """Return what covers something that is no plug-in, in clauses; none where nothing of that name is known."""
    return [one.covered for one in POINTERS if simplified(wanted) in map(simplified, one.names)]

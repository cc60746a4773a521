"""The defenses that are compared, each over its strength."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from scripts.reproduce.shared.drawing import Pen
from splitvfl.report.drawing import MUTED, PALETTE

_REMEMBERED = frozenset({"abstaining-response", "asymmetric-response", "gaussian-targets", "memoised-response"})


@dataclass(frozen=True)
class Defense:
    """A defense by its registered name and options, or none.

    Attributes:
        label: For figures and tables.
        name: ``""`` for no defense.
        options: As in an experiment file.
    """

    label: str
    name: str = ""
    options: Mapping[str, Any] = field(default_factory=dict)

    @property
    def remembered(self) -> bool:
        """Whether what stands for a record's label is drawn once and remembered."""
        return self.name in _REMEMBERED

    def as_settings(self) -> dict[str, Any]:
        """Return what a job needs to know of it: JSON values."""
        return {"label": self.label, "name": self.name, "options": dict(self.options)}


@dataclass(frozen=True)
class Family:
    """A defense over its strength.

    Attributes:
        label: For figures and tables.
        members: From the weakest to the strongest.
        pen: How it is drawn.
    """

    label: str
    members: tuple[Defense, ...]
    pen: Pen


def _family(name: str, option: str, values: Sequence[float], pen: Pen) -> Family:
    members = tuple(Defense(f"{name} {value:g}", name, {option: value}) for value in values)
    return Family(name, members, pen)


NONE = Defense("no defense")
MAX_NORM = Defense("max-norm", "max-norm")

ISOTROPIC = _family("isotropic", "ratio", (5.0, 10.0, 20.0, 40.0), Pen(PALETTE[4]))
SUMKL = _family("sumkl", "detection_error", (0.4,), Pen(PALETTE[0]))
AXIS_SUMKL = _family("axis-sumkl", "detection_error", (0.3, 0.4, 0.45, 0.48), Pen(PALETTE[0], dashed=True))
AXIS_GAUSSIAN = _family("axis-gaussian", "detection_error", (0.4,), Pen(PALETTE[5]))
MEMOISED = _family("memoised-response", "flip", (0.4,), Pen(PALETTE[2]))
ASYMMETRIC = _family("asymmetric-response", "detection_error", (0.2, 0.3, 0.4, 0.45), Pen(PALETTE[1]))
ABSTAINING = _family("abstaining-response", "detection_error", (0.3, 0.4), Pen(PALETTE[1], dashed=True))
RECORD = _family("record-gaussian", "detection_error", (0.3, 0.4, 0.45, 0.48), Pen(PALETTE[3]))
TARGETS = _family("gaussian-targets", "detection_error", (0.4,), Pen(MUTED))

FAMILIES = (
    ISOTROPIC,
    SUMKL,
    AXIS_SUMKL,
    AXIS_GAUSSIAN,
    RECORD,
    MEMOISED,
    ASYMMETRIC,
    ABSTAINING,
    TARGETS,
)
OLDER = (ISOTROPIC, AXIS_SUMKL)
"""Those with a curve: of one strength there is none."""
CONTENDERS = (RECORD, ASYMMETRIC, ABSTAINING)

EVERY = (NONE, MAX_NORM, *(member for family in FAMILIES for member in family.members))
"""All of them, as rows of a table."""

QUICK = (NONE, *ISOTROPIC.members[1:3], *AXIS_SUMKL.members[1:3], *ASYMMETRIC.members[1:3], RECORD.members[1])
"""Those of a quick run."""


def chosen(*, quick: bool) -> tuple[Defense, ...]:
    """Return the defenses that are run."""
    return QUICK if quick else EVERY

"""What is said of scores whose records differ from those of the training, wherever records are scored."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence

from torch import Tensor

from splitvfl.data.doubts import DoubtWarning
from splitvfl.data.drift import ColumnDrift, drift_said, saturated, saturation_said
from splitvfl.learning.losses import link_of
from splitvfl.learning.tasks import Binary, Multiclass
from splitvfl.party.party import ActiveParty


def saturation(active: ActiveParty, scores: Tensor) -> float | None:
    """Return the fraction of scores that are exactly 0 or 1; ``None`` of what is no probability, or is rounded.

    Args:
        active: The label party, with its defenses of scores.
        scores: ``(n,)`` or ``(n, k)``.
    """
    probable = isinstance(active.task, Binary | Multiclass) and link_of(active.task.loss) != "identity"
    return saturated(scores.numpy()) if probable and not len(active.scores) else None


def warn_of_drift(drift: Mapping[str, Sequence[ColumnDrift]], ends: float | None, records: int) -> None:
    """Warn of columns that have drifted, and of scores that are exactly 0 or 1, where nothing else would say so.

    Args:
        drift: By party.
        ends: Fraction of the scores that are exactly 0 or 1, as :func:`saturation` returns it.
        records: How many were scored.

    Warns:
        DoubtWarning: If there is one.
    """
    lines = drift_said(drift) if any(one.level == "drift" for own in drift.values() for one in own) else []
    said = saturation_said(ends, records)
    if lines or said:
        warnings.warn("\n".join([*lines, *([said] if said else [])]), DoubtWarning, stacklevel=3)

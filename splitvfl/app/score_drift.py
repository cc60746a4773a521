"""What is said of scores whose records differ from those of the training, wherever records are scored."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence

import msgspec
from torch import Tensor

from splitvfl.app.saved_model import SavedHalf
from splitvfl.config.sections import FoundDefense
from splitvfl.data.doubts import DoubtWarning
from splitvfl.data.drift import ColumnDrift, Saturation, drift_said
from splitvfl.hooks import shifts_scores_of
from splitvfl.learning.losses import link_of
from splitvfl.learning.tasks import Binary, Multiclass
from splitvfl.metrics import saturated
from splitvfl.party.party import ActiveParty

Drift = Mapping[str, Sequence[ColumnDrift]]


def saturation(active: ActiveParty, scores: Tensor, drift: Drift, *, in_training: float | None) -> Saturation | None:
    """Return how many scores are exactly 0 or 1; ``None`` of what is no probability, or is rounded.

    Args:
        active: The label party, with its defenses of scores.
        scores: ``(n,)`` or ``(n, k)``.
        drift: How their records differ from the training, by party.
        in_training: The fraction after the training, of the test records; ``None`` where nobody knows.
    """
    probable = isinstance(active.task, Binary | Multiclass) and link_of(active.task.loss) != "identity"
    if not probable or len(active.scores):
        return None
    return Saturation(
        fraction=saturated(scores.numpy()),
        records=len(scores),
        in_training=in_training,
        drifted=_has_drifted(drift),
    )


def warn_of_drift(drift: Drift, ends: Saturation | None, *, new_values_only: bool = False) -> None:
    """Warn of columns that have drifted, and of scores that are exactly 0 or 1, where nothing else would say so.

    Args:
        drift: By party.
        ends: How many scores are exactly 0 or 1, as :func:`saturation` returns it.
        new_values_only: Whether only values count that training did not see, and no stability index: where any part of
            the records may be predicted, and columns may be held fixed on purpose.

    Warns:
        DoubtWarning: If there is one.
    """
    new = any(one.has_new_values for own in drift.values() for one in own)
    beyond = new if new_values_only else _has_drifted(drift)
    lines = [*(drift_said(drift) if beyond else []), *([str(ends)] if ends and str(ends) else [])]
    if lines:
        warnings.warn("\n".join(lines), DoubtWarning, stacklevel=3)


def _has_drifted(drift: Drift) -> bool:
    return any(one.level == "drift" for own in drift.values() for one in own)


def score_shifts(
    active: ActiveParty, half: SavedHalf, defenses: Sequence[FoundDefense], *, private_top: bool
) -> tuple[str, ...]:
    """Return why scores are no probabilities of the labels, in sentences; none: they are estimates of these.

    Args:
        active: The label party, ready to predict, with its defenses of scores.
        half: Its trained half, which says what training has shifted.
        defenses: Those of the experiment, which are asked where an earlier version trained.
        private_top: Whether the model that predicts has learned from true labels, likewise.
    """
    learned = half.schema.score_shifts
    if learned is msgspec.UNSET:
        learned = () if private_top else _of_labels(defenses)
    return tuple(dict.fromkeys((*learned, *active.learned_shifts, *active.published_shifts)))


def _of_labels(defenses: Sequence[FoundDefense]) -> tuple[str, ...]:
    return tuple(filter(None, (shifts_scores_of(one.make()) for _, one in defenses if one.crossing == "labels")))


def shifts_said(shifts: Sequence[str]) -> list[str]:
    """Return lines that say why scores are no probabilities."""
    return [f"scores are no probabilities: {why}" for why in shifts]

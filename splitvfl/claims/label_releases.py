"""What a partner sees that is made from labels beside the messages: each voids a guarantee for the whole run.

Defenses guard messages. A guarantee for all messages of a run together says nothing of the rest: two label vectors that
differ in one label can then be told apart by it, whatever noise the messages have. A guarantee for one message stays.

>>> not_applying((EARLY_STOPPING,))
'The run-wide guarantee does not apply: early stopping is made from labels'
>>> not_applying(())
''
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class LabelRelease:
    """Something that a partner sees and that is made from labels.

    Attributes:
        name: What it is, as it is named everywhere.
        seen: What the partner sees of it, in a whole sentence.
        condition: When a run has it.
    """

    name: str
    seen: str
    condition: str


EARLY_STOPPING = LabelRelease(
    "early stopping",
    "The partner sees when training ends, and which weights are kept.",
    "train.early_stopping is set",
)
SELECTION = LabelRelease(
    "selection of records by label",
    "The partner sees which of its records have a label.",
    "data.unlabelled is drop, and a record is without a label",
)

LABEL_RELEASES = (EARLY_STOPPING, SELECTION)
"""All that a run is searched for."""


def releases_of(*, early_stopping: bool, selected_by_label: bool) -> tuple[LabelRelease, ...]:
    """Return what a run has of these.

    Args:
        early_stopping: Whether the label owner decides by labels when training ends.
        selected_by_label: Whether a record was left out because it has no label.

    >>> [release.name for release in releases_of(early_stopping=True, selected_by_label=False)]
    ['early stopping']
    """
    happens = {EARLY_STOPPING: early_stopping, SELECTION: selected_by_label}
    return tuple(release for release in LABEL_RELEASES if happens[release])


def named(releases: Sequence[LabelRelease], *, joined_by: str = "and") -> str:
    """Return the names of some in words, the last two joined by a word.

    >>> named(LABEL_RELEASES)
    'early stopping and selection of records by label'
    """
    *others, last = (release.name for release in releases)
    return f"{', '.join(others)} {joined_by} {last}" if others else last


def not_applying(releases: Sequence[LabelRelease]) -> str:
    """Return that a guarantee for the whole run does not apply, and by what, without a full stop; empty if it does."""
    if not releases:
        return ""
    verb = "is" if len(releases) == 1 else "are"
    return f"The run-wide guarantee does not apply: {named(releases)} {verb} made from labels"

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


def not_applying(releases: Sequence[LabelRelease]) -> str:
    """Return that a guarantee for the whole run does not apply, and by what, without a full stop; empty if it does."""
    if not releases:
        return ""
    names = " and ".join(release.name for release in releases)
    return f"The run-wide guarantee does not apply: {names} {'is' if len(releases) == 1 else 'are'} made from labels"

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

STRATIFIED = LabelRelease(
    "stratified division",
    "The partner sees which of its records are tested, and labels decide that, in proportion to classes or otherwise.",
    "ids do not divide the records, and each class has the same share of test records as in a stratified division, or "
    "class (the rank of a number) and part depend on one another: p < 0.001, and so by chance in one of 1,000",
)
CLASS_WEIGHTS = LabelRelease(
    "class weights",
    "The partner sees gradients that are weighed by class.",
    "the loss weighs classes differently",
)

LABEL_RELEASES = (EARLY_STOPPING, SELECTION, STRATIFIED, CLASS_WEIGHTS)
"""All that a run is searched for."""


def releases_of(
    *,
    early_stopping: bool = False,
    selected_by_label: bool = False,
    stratified: bool = False,
    class_weights: bool = False,
) -> tuple[LabelRelease, ...]:
    """Return what a run has of these.

    Args:
        early_stopping: Whether the label owner decides by labels when training ends.
        selected_by_label: Whether a record was left out because it has no label.
        stratified: Whether the division into training and test records may be stratified by labels.
        class_weights: Whether the loss weighs classes differently.

    >>> [release.name for release in releases_of(early_stopping=True)]
    ['early stopping']
    """
    happens = (early_stopping, selected_by_label, stratified, class_weights)
    return tuple(release for release, does in zip(LABEL_RELEASES, happens, strict=True) if does)


def named(releases: Sequence[LabelRelease], *, joined_by: str = "and") -> str:
    """Return the names of some in words, the last two joined by a word.

    >>> named((EARLY_STOPPING, SELECTION))
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

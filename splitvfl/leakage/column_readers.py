"""Which readers of columns in activations a passive party should run on what it sends, to know what it gives away."""

from __future__ import annotations

from typing import Final

from splitvfl.data.columns import PartyData

BY_KNOWN_RECORDS: Final = ("inverse-network", "ridge", "stacked-ridge")
"""Attacks that assume the columns of a few records, that which mostly finds most first."""

BY_LESS: Final = ("pseudo-client", "unsplit")
"""Attacks that assume less than any of these, and have found less wherever they were measured."""

BY_KNOWN_MODEL: Final = ("white-box-inversion",)
"""Attacks that assume the party's bottom model besides."""


def readers_to_run(data: PartyData) -> tuple[str, ...]:
    """Return the names of the attacks that a party should run on what it sends, that which mostly finds most first.

    What counts is the largest of their figures: none of them finds most everywhere. ``white-box-inversion`` does behind
    models that bend, of columns that are not far from normal; ``inverse-network`` does of columns with long tails;
    ``ridge`` may, by a little, where very few records are known, and ``stacked-ridge`` where the cut is narrow, the
    model moves much and many are known. Nor is the largest figure an upper bound.
    :data:`BY_LESS` are none of them: who may know records need not guess which row was sent as what.

    Args:
        data: The party's. Of categories no bottom model is turned round.

    Returns:
        Names as in a file; empty where there are no columns.
    """
    if data.train.columns.categorical.shape[1]:
        return BY_KNOWN_RECORDS
    if not data.width:
        return ()
    return (*BY_KNOWN_MODEL, *BY_KNOWN_RECORDS)

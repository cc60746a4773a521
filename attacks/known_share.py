"""Of which share of the records an attack is assumed to know columns, or whether they were trained on."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from splitvfl.errors import ArgumentError

# A limit that is told with its line where an experiment names an attack.
KnownShare = Annotated[float, Field(gt=0, lt=1)]


def checked_share(known_share: float) -> float:
    """Return the share.

    Raises:
        ArgumentError: If it is not above 0 and below 1.
    """
    if not 0.0 < known_share < 1.0:
        raise ArgumentError(f"known_share must be above 0 and below 1, got {known_share}")
    return known_share

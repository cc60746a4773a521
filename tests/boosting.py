"""Fewer rounds of boosting than users have, for tests that ask only whether own columns were judged."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

# What was fitted in few rounds, apart from what was fitted in as many as users have.
_of_few_rounds: tuple[dict[bytes, Any], dict[bytes, float]] = ({}, {})


@contextmanager
def few_rounds_of_boosting() -> Iterator[None]:
    """Judge what own columns predict by three rounds, in this process, for the length of a block."""
    # Large libraries are imported where they are needed: the process that only hands out tests needs none.
    from splitvfl.leakage import own_columns, own_columns_many

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(own_columns, "ROUNDS", 3)
        patch.setattr(own_columns_many, "ROUNDS", 3)
        patch.setattr(own_columns, "_measured", _of_few_rounds[0])
        patch.setattr(own_columns, "_measured_alone", _of_few_rounds[1])
        yield

"""Fewer rounds of boosting than users have, for tests that ask only whether own columns were judged."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import pytest

_FEW = 3

# What was fitted in few rounds, apart from what was fitted in as many as users have.
_of_few_rounds: tuple[dict[bytes, Any], dict[bytes, float]] = ({}, {})


@contextmanager
def few_rounds_of_boosting() -> Iterator[None]:
    """Judge what own columns predict by few rounds, in this process, for the length of a block."""
    # Large libraries are imported where they are needed: the process that only hands out tests needs none.
    from splitvfl.leakage import own_columns, own_columns_many

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(own_columns, "ROUNDS", _FEW)
        patch.setattr(own_columns_many, "ROUNDS", _FEW)
        patch.setattr(own_columns, "_measured", _of_few_rounds[0])
        patch.setattr(own_columns, "_measured_alone", _of_few_rounds[1])
        yield


def boosting_as_here() -> Callable[[], AbstractContextManager[None]]:
    """Return what lets another process judge own columns by as many rounds as this one does now."""
    module = sys.modules.get("splitvfl.leakage.own_columns")
    return few_rounds_of_boosting if module is not None and module.ROUNDS == _FEW else nullcontext

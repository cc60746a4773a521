"""What tests of scripts share."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest


@pytest.fixture(scope="session", autouse=True)
def _still_frozen() -> Iterator[None]:
    """Leave what this process has imported out of every search for garbage, also after something has been timed.

    Timings thaw everything, and then look through a million objects before each.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(gc, "unfreeze", lambda: None)
        yield


@pytest.fixture(scope="module")
def one_code() -> Iterator[None]:
    """Let all cells be of the same code: finding what a cell depends on takes seconds, and has tests of its own."""
    from scripts.reproduce.shared import jobs

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(jobs, "code_of", lambda work: "of today")
        yield

"""Keys are made once for many of these tests: none but those that make their own asks how."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.keys import few_short_keys


@pytest.fixture(scope="module", autouse=True)
def _few_short_keys() -> Iterator[None]:
    """Few keys, in runs that several tests share too."""
    with few_short_keys():
        yield

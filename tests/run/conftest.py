"""Runs: none of these tests asks how well own columns predict, only whether it was judged."""

from __future__ import annotations

import pytest


@pytest.fixture(scope="module", autouse=True)
def _quick_own_models(quick_own_models: None) -> None:
    """Quick models of own columns, in runs that several tests share too."""

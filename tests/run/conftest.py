"""Runs: none of these tests asks how well own columns predict, only whether it was judged."""

from __future__ import annotations

import pytest

from tests.summaries import summaries_keep_to_their_schema

__all__ = ["summaries_keep_to_their_schema"]


@pytest.fixture(scope="module", autouse=True)
def _quick_own_models(quick_own_models: None) -> None:
    """Quick models of own columns, in runs that several tests share too."""

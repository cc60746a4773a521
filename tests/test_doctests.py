"""The examples in docstrings run."""

from __future__ import annotations

import doctest
import importlib
import pkgutil

import pytest

import splitvfl

MODULES = sorted(module.name for module in pkgutil.walk_packages(splitvfl.__path__, "splitvfl."))


@pytest.mark.parametrize("name", MODULES)
def test_examples_print_what_they_say(name: str) -> None:
    result = doctest.testmod(importlib.import_module(name))

    assert result.failed == 0

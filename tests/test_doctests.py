"""The examples in docstrings run."""

from __future__ import annotations

import doctest
import importlib.util
import pkgutil
from pathlib import Path
from typing import Any

import pytest

import splitvfl

MODULES = sorted(module.name for module in pkgutil.walk_packages(splitvfl.__path__, "splitvfl."))
TRAINS = pytest.mark.slow(reason="its examples train or audit")
LONG = ("splitvfl.app.estimators", "splitvfl.audit")


def with_examples() -> list[Any]:
    """Every module in which something is typed at a prompt; the others are imported below, and not searched."""
    held = {name: importlib.util.find_spec(name) for name in MODULES}
    shown = [name for name, spec in held.items() if spec and spec.origin and ">>> " in Path(spec.origin).read_text()]
    return [pytest.param(name, marks=TRAINS if name in LONG else []) for name in shown]


def test_every_module_can_be_imported() -> None:
    for name in MODULES:
        importlib.import_module(name)


@pytest.mark.parametrize("name", with_examples())
def test_examples_print_what_they_say(name: str) -> None:
    result = doctest.testmod(importlib.import_module(name))

    assert result.failed == 0

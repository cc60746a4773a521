"""Public names of a package that are imported when they are first used: importing the package imports none of them."""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Mapping
from importlib import import_module
from typing import Any


def lazy_names(
    package: str, homes: Mapping[str, Collection[str]]
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Return ``__getattr__`` and ``__dir__`` of a package (PEP 562).

    Type checkers read the same names from imports under ``TYPE_CHECKING``; ``tests/test_exports.py`` compares both.

    Args:
        package: Its name.
        homes: By module: its names that are the package's too. Under the package's own name are its public modules. The
            modules are there by their own names too, as if the package had imported them.
    """
    home_of = {name: home for home, names in homes.items() for name in names}

    def getattribute(name: str) -> Any:
        home, module = home_of.get(name), f"{package}.{name}"
        if home is None and module not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        value = import_module(module) if home in (None, package) else getattr(import_module(home), name)
        setattr(sys.modules[package], name, value)
        return value

    def listing() -> list[str]:
        there = vars(sys.modules[package])
        return sorted({*there["__all__"], *home_of, *(name for name in there if name.startswith("__"))})

    return getattribute, listing

"""Settings of the documentation: `make docs`, or `sphinx-build -W docs docs/_build/html`.

With `-t sources` it has the source of every module too.
"""

from __future__ import annotations

import re
import sys
import tomllib
from collections.abc import Iterable, Iterator
from inspect import signature
from pathlib import Path
from typing import Any

CHECKOUT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(CHECKOUT))

project = "splitvfl"
author = "the splitvfl authors"
release = tomllib.loads((CHECKOUT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["version"]

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
exclude_patterns = ["_build"]
myst_enable_extensions = ["deflist"]
myst_heading_anchors = 3

# Docstrings are written once, Google style; signatures carry the types.
napoleon_google_docstring = True
napoleon_numpy_docstring = False
# Fields of a named tuple are then described once, not twice.
napoleon_use_ivar = True
autodoc_default_options = {"members": True, "show-inheritance": True}
autodoc_member_order = "bysource"
autodoc_typehints = "signature"
# There are none, and to look for them takes a fifth of the time.
autodoc_use_type_comments = False

html_theme = "furo"
html_title = "splitvfl"


def filled_in(text: str) -> str:
    """Return a page with what follows from the code in place of the marks for it."""
    from scripts.reproduce.defense_table.page import MADE_WITHOUT, made_without
    from splitvfl.config.registry import built_in

    exchanges = dict(sorted(built_in("exchanges").items()))
    filled = {
        MADE_WITHOUT: made_without(text),
        "<!-- every module of an exchange -->": _modules(one.__module__ for one in exchanges.values()),
        "<!-- names of exchanges -->": ", ".join(f'`"{name}"`' for name in exchanges),
        "<!-- classes of exchanges -->": ", ".join(
            f"{{class}}`~{one.__module__}.{one.__name__}`" for one in exchanges.values()
        ),
        "<!-- who sees what in exchanges of logistic regression -->": "\n".join(
            f"| `{name}` | {' | '.join(one.seen)} | {_sigmoid(one)} |" for name, one in exchanges.items() if one.seen
        ),
    }
    for mark, found in filled.items():
        text = text.replace(mark, found)
    return re.sub(r"<!-- every module of splitvfl\.(\w+) -->", lambda mark: _modules(_package(mark[1])), text)


def _sigmoid(exchange: Any) -> str:
    """Return whose sigmoid an exchange computes with: any, if its constructor asks for one."""
    return "any" if "approximation" in signature(exchange).parameters else exchange.approximation


def _package(name: str) -> Iterator[str]:
    """Return the names of the modules of a package of plug-ins."""
    return (f"splitvfl.{name}.{path.stem}" for path in (CHECKOUT / name).glob("*.py") if path.stem != "__init__")


def _modules(names: Iterable[str]) -> str:
    """Return a section for each module, in alphabetical order."""
    modules = sorted(names)
    return "\n\n".join(f"## `{module}`\n\n```{{eval-rst}}\n.. automodule:: {module}\n```" for module in modules)


def setup(app: Any) -> dict[str, bool]:
    """Fill in every page when it is read; pages are read and written side by side."""

    def fill(_app: Any, _name: str, source: list[str]) -> None:
        source[0] = filled_in(source[0])

    app.connect("source-read", fill)
    # A page of the source of every module takes two thirds of the time: for what is published, not for a check.
    if app.tags.has("sources"):
        app.setup_extension("sphinx.ext.viewcode")
    return {"parallel_read_safe": True, "parallel_write_safe": True}

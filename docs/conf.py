"""Settings of the documentation: `make docs`, or `sphinx-build -W docs docs/_build/html`."""

from __future__ import annotations

import re
import sys
import tomllib
from pathlib import Path
from typing import Any

CHECKOUT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(CHECKOUT))

project = "splitvfl"
author = "the splitvfl authors"
release = tomllib.loads((CHECKOUT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["version"]

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx.ext.viewcode"]
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

html_theme = "furo"
html_title = "splitvfl"


def filled_in(text: str) -> str:
    """Return a page with what follows from the code in place of the marks for it."""
    from scripts.reproduce.defense_table.page import MADE_WITHOUT, made_without

    text = re.sub(r"<!-- every module of splitvfl\.(\w+) -->", lambda mark: _modules(mark[1]), text)
    return text.replace(MADE_WITHOUT, made_without(text))


def _modules(package: str) -> str:
    """Return a section for each module of a package of plug-ins, in alphabetical order."""
    names = sorted(path.stem for path in (CHECKOUT / package).glob("*.py") if path.stem != "__init__")
    modules = [f"splitvfl.{package}.{name}" for name in names]
    return "\n\n".join(f"## `{module}`\n\n```{{eval-rst}}\n.. automodule:: {module}\n```" for module in modules)


def setup(app: Any) -> None:
    """Fill in every page when it is read."""

    def fill(_app: Any, _name: str, source: list[str]) -> None:
        source[0] = filled_in(source[0])

    app.connect("source-read", fill)

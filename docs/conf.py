"""Settings of the documentation: `make docs`, or `sphinx-build -W docs docs/_build/html`."""

from __future__ import annotations

import sys
import tomllib
from pathlib import Path

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

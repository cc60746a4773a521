"""What all HTML pages have in common: how they are made, what a browser may do with them, and where links lead.

Names of folders, parties, columns and attacks may be anybody's: a run is handed over with all of them.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from functools import cache
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote

from splitvfl.errors import CheckpointError
from splitvfl.system.untrusted_files import write_whole

if TYPE_CHECKING:
    from jinja2 import Template
    from markupsafe import Markup

_STYLE = "page.css"

POLICY: Final = (
    "default-src 'none'; style-src 'unsafe-inline'; img-src data:; base-uri 'none'; form-action 'none'"
)  # fmt: skip
"""What a browser may load for a page (Content-Security-Policy): nothing, and it may run no script.

Styles stand in the page, and figures have one at every line; with no source allowed, no style can load anything.
"""


def page_template(name: str, filters: Mapping[str, Callable[..., Any]]) -> Template:
    """Return a page's template, in which every text is escaped; to be kept, as compiling takes long.

    Args:
        name: Its file in this folder.
        filters: Filters by name.
    """
    import jinja2
    from markupsafe import Markup

    environment = jinja2.Environment(
        autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters.update(filters)
    environment.globals.update(policy=Markup(POLICY), style=_style())
    return environment.from_string(resources.files("splitvfl.report").joinpath(name).read_text("utf-8"))


@cache
def _style() -> Markup:
    from markupsafe import Markup

    return Markup(resources.files("splitvfl.report").joinpath(_STYLE).read_text("utf-8"))


def link_from(folder: Path, target: Path) -> str:
    """Return a link to a file for a page in a folder: a relative path, in which no name means anything but itself.

    Args:
        folder: Where the page lies.
        target: The file.

    >>> link_from(Path("runs"), Path("runs/javascript:alert(1)/100%/audit.html"))
    './javascript%3Aalert%281%29/100%25/audit.html'
    """
    names = Path(os.path.relpath(target, folder)).parts
    return "/".join([".", *(quote(os.fsencode(name), safe="") for name in names)])


def write_page(page: str, target: Path, *, private: bool = False) -> None:
    """Write a page, all of it at once or nothing; its folder is made if need be.

    Args:
        page: The page.
        target: Its file.
        private: Whether its owner alone may read it; else its mode follows the umask.

    Raises:
        CheckpointError: If it cannot be written.
    """
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        write_whole(target, page.encode(), mode=0o600 if private else 0o666, alone=False)
    except OSError as error:
        raise CheckpointError(f"cannot write {target}: {error}") from error

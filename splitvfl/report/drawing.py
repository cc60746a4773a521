"""How figures look, as SVG: inside a page, or as a file of its own.

Text stays text, so that it can be searched and takes on the page's font. The colours of ink, rules and background are
those of the page (CSS variables ``--ink``, ``--muted``, ``--rule`` and ``--paper``), so that figures can be read on a
light and on a dark page; a file brings its own. Series have the colours of Okabe and Ito, which colour-blind readers
can tell apart.
"""

from __future__ import annotations

import io
import re
from collections.abc import Iterator
from contextlib import contextmanager
from html import escape
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Colours that nothing else has: they are exchanged for the page's variables afterwards.
INK, MUTED, RULE, PAPER = "#010203", "#010204", "#010205", "#010206"
# States, from the best to the worst: of several, the largest is the worst.
STATE_COLOURS = {
    "no-label-dependent-message": "#010207",
    "below-goal": "#010208",
    "inconclusive": "#010209",
    "not-measured": "#010209",
    "above-goal": "#01020a",
}
_VARIABLES = {
    INK: "var(--ink)",
    MUTED: "var(--muted)",
    RULE: "var(--rule)",
    PAPER: "var(--paper)",
    "#010207": "var(--silent)",
    "#010208": "var(--low)",
    "#010209": "var(--middle)",
    "#01020a": "var(--high)",
}

# Okabe and Ito's palette without black and yellow, which vanish on one of the two backgrounds.
PALETTE = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9")

WIDTH = 9.6  # inches; figures fill the page's column
SMALL, TINY = 9.0, 8.0

# A file is shown as an image, which knows nothing of the page around it: only of the reader's own preference.
_OWN_COLOURS = (
    "<style>svg{--paper:#ffffff;--ink:#1b1f24;--muted:#5c6570;--rule:#e2e5e9}"
    "@media(prefers-color-scheme:dark){svg{--paper:#14171b;--ink:#e8eaed;--muted:#a0a8b2;--rule:#2d333a}}</style>"
    '<rect width="100%" height="100%" style="fill:var(--paper)"/>'
)


@contextmanager
def drawing_style() -> Iterator[None]:
    """Draw in the project's style within the block, whatever settings of matplotlib's own there are."""
    import matplotlib

    style: dict[Any, Any] = {
        "axes.axisbelow": True,
        "axes.edgecolor": RULE,
        "axes.facecolor": "none",
        "axes.grid": True,
        "axes.labelcolor": MUTED,
        "axes.labelsize": SMALL,
        "axes.spines.right": False,
        "axes.spines.top": False,
        "figure.facecolor": "none",
        "font.family": "sans-serif",
        "font.sans-serif": ["DejaVu Sans"],
        "grid.color": RULE,
        "grid.linewidth": 0.6,
        "svg.fonttype": "none",
        "svg.hashsalt": "splitvfl",
        "text.color": INK,
        "xtick.color": MUTED,
        "xtick.labelsize": TINY,
        "xtick.major.size": 0,
        "ytick.color": MUTED,
        "ytick.labelsize": TINY,
        "ytick.major.size": 0,
    }
    with matplotlib.rc_context():
        # Matplotlib reads a file matplotlibrc in the folder that it is started in. Whoever put that there could have
        # LaTeX run, and any file of ours read into the page.
        matplotlib.rcdefaults()
        matplotlib.rcParams.update(style)
        yield


def new_figure(height: float) -> Figure:
    """Return an empty figure of the page's width.

    Args:
        height: In inches.
    """
    # Not pyplot's: it would keep figures and choose a window system.
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from matplotlib.figure import Figure

    # Text is measured by what writes it, and at the resolution that it works in.
    drawn = Figure(figsize=(WIDTH, height), layout="constrained", dpi=72)
    FigureCanvasSVG(drawn)
    return drawn


def panel_title(axes: Axes, text: str) -> None:
    """Give a panel its title."""
    axes.set_title(text, loc="left", fontsize=SMALL, fontweight="bold", color=INK, parse_math=False)


def settle(drawn: Figure) -> None:
    """Lay out a figure of :func:`new_figure` as it will be written, so that places in it can be asked for."""
    engine = drawn.get_layout_engine()
    assert engine is not None, "a figure is laid out until it is written"
    engine.execute(drawn)


def inline_svg(drawn: Figure, name: str, *, alt: str = "") -> str:
    """Return a figure as an ``<svg>`` element whose ids start with a name, for pages that hold several.

    Args:
        drawn: The figure.
        name: Prefix of its ids, unique in its page.
        alt: What it shows, in words, for whoever cannot see it.
    """
    settle(drawn)
    # Else matplotlib would draw everything twice, the first time only to lay it out.
    drawn.set_layout_engine("none")
    target = io.StringIO()
    drawn.savefig(target, format="svg", transparent=True, metadata={"Date": None, "Creator": None})
    text = target.getvalue()
    text = text[text.index("<svg") :]
    text = re.sub(r"<metadata>.*?</metadata>", "", text, flags=re.DOTALL)
    # In tags alone: what stands between them is text, names of parties and columns among it.
    text = re.sub(r"<[^>]*>", lambda tag: _of_page(tag[0], name), text)
    return text.replace("<svg ", f'<svg role="img" aria-label="{escape(alt)}" ', 1) if alt else text


def _of_page(tag: str, name: str) -> str:
    """Return a tag with ids of its own and the page's colours."""
    tag = re.sub(r'\bid="', f'id="{name}-', tag)
    tag = re.sub(r'(href="#|url\(#)', rf"\g<1>{name}-", tag)
    for colour, variable in _VARIABLES.items():
        tag = tag.replace(colour, variable)
    return tag


def svg_file(drawn: Figure, name: str) -> str:
    """Return a figure as the text of an SVG file, with colours and a background of its own, light or dark."""
    text = inline_svg(drawn, name)
    opening = text.index(">") + 1
    return f'<?xml version="1.0" encoding="utf-8"?>\n{text[:opening]}{_OWN_COLOURS}{text[opening:]}'

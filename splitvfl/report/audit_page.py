"""An audit as one HTML page: what could the partner learn, in words, with all formulas one click away."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from splitvfl.errors import all_printable
from splitvfl.report.audit_words import (
    FINDINGS,
    answer,
    at_most,
    best,
    measured,
    not_covered,
    of_hundred,
    overall,
    promise,
    question,
    reason,
    scale,
    tone,
)
from splitvfl.report.pages import page_template, write_page
from splitvfl.report.rows import MISSING, counted

if TYPE_CHECKING:
    from jinja2 import Template

_TEMPLATE = "audit.html.j2"
_BADGES = {"violated": "high", "not covered": "none", "no claim": "none", "not refuted": "none", "proven": "low"}


def write_audit_page(audit: Mapping[str, Any], target: Path) -> Path:
    """Write the page of an audit, and return where it is. It needs no network, no script and no other file.

    Args:
        audit: What ``audit.json`` holds.
        target: The page's file; its folder is made if need be.

    Raises:
        CheckpointError: If it cannot be written.
    """
    write_page(audit_page(audit), target)
    return target


def audit_page(audit: Mapping[str, Any]) -> str:
    """Return the page of an audit.

    Args:
        audit: What ``audit.json`` holds.
    """
    audit = all_printable(audit)
    seats = audit["learned"]
    return _template().render(
        audit=audit,
        missing=MISSING,
        verdict=overall(audit),
        tone=tone(audit),
        gaps=list(not_covered(audit)),
        seats=[(seat, question(seat), list(answer(seat, audit["trainings"])), scale(seat)) for seat in seats],
        promises=[(each, [(claim, promise(claim), FINDINGS[claim["verdict"]]) for claim in each["claims"]])
                  for each in audit["defenses"]],
    )  # fmt: skip


@cache
def _template() -> Template:
    return page_template(
        _TEMPLATE,
        {
            "found": of_hundred,
            "allowed": at_most,
            "counted": counted,
            "badge": lambda verdict: _BADGES[verdict],
            "significant": lambda value: MISSING if value is None else f"{value:.3g}",
            "best": best,
            "measured": measured,
            "reason": reason,
        },
    )

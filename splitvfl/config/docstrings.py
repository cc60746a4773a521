"""What a docstring says, apart: its first line, what it says under a label, and what it says of each argument.

The docstrings of what can be named in an experiment are read by people in three places: the reference pages, ``splitvfl
list KIND NAME`` and the descriptions of keys, and nothing is written twice. Besides ``Args:`` and ``Attributes:``,
paragraphs that begin with one of :data:`LABELS` are told apart::

    Claim: nobody's ½(FPR + FNR) on two labels of a record is below ``detection_error``; proven.
    Cost: ...
    In a file: ``{name: sumkl, detection_error: 0.4}``
    Also called: Marvell
    Source: ...
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

LABELS = ("Claim", "Works with", "Cost", "In a file", "Also called", "Source")

_ARGUMENT_SECTIONS = ("Args", "Attributes")
_SECTION = re.compile(r"^(\w+):$")
_ENTRY = re.compile(r"^(\w+)(?: \([^)]*\))?: ?(.*)$")
_ROLE = re.compile(r":(\w+):`(?:[^`<]*<)?~?([^`>]*)>?`", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Docstring:
    """A docstring, apart; texts are of one line each, with code in single backticks.

    Attributes:
        summary: Its first line, without the full stop.
        text: Its paragraphs between that and the sections, but for labelled ones.
        labelled: What is said under one of :data:`LABELS`.
        arguments: What is said of each argument or attribute.
    """

    summary: str
    text: tuple[str, ...]
    labelled: Mapping[str, str]
    arguments: Mapping[str, str]


def docstring_of(found: Any) -> Docstring:
    """Return the docstring of a class or a function; of a class, arguments that its bases tell of are among its own."""
    arguments: dict[str, str] = {}
    for one in reversed(found.__mro__[:-1] if inspect.isclass(found) else [found]):
        for constructor in (vars(one).get("__init__") if inspect.isclass(one) else None, one):
            arguments |= _arguments(_sections(_own_text(constructor)))
    paragraphs = _sections(inspect.getdoc(found) or "")[""]
    told = [_on_one_line(paragraph) for paragraph in "\n".join(paragraphs).split("\n\n")]
    labelled = {label: text for label, text in map(_label_of, told) if label}
    return Docstring(
        summary=told[0].removesuffix("."),
        text=tuple(text for text in told[1:] if text and not _label_of(text)[0]),
        labelled=labelled,
        arguments=arguments,
    )


def plain(text: str) -> str:
    """Return a text without reStructuredText: code and the names of classes in single backticks.

    >>> plain("as :class:`~splitvfl.defenses.sumkl.SumKL` with ``ratio``; see :mod:`splitvfl.privacy`")
    'as `SumKL` with `ratio`; see `splitvfl.privacy`'
    """
    return _ROLE.sub(_named, text).replace("``", "`")


def _named(role: re.Match[str]) -> str:
    return f"`{role[2] if role[1] == 'mod' else role[2].rpartition('.')[2]}`"


def _own_text(found: Callable[..., Any] | None) -> str:
    """Return a docstring that is written at this very place: dataclasses and named tuples get one that is not."""
    text = inspect.cleandoc(getattr(found, "__doc__", None) or "")
    return "" if text.startswith(f"{getattr(found, '__name__', '')}(") else text


def _sections(text: str) -> dict[str, list[str]]:
    """Return the lines of each section by its heading; those before the first one have none."""
    sections: dict[str, list[str]] = {"": []}
    heading = ""
    for line in text.splitlines():
        begun = _SECTION.match(line)
        if begun is not None and begun[1] not in LABELS:
            heading = begun[1]
            sections[heading] = []
        elif heading and line and not line.startswith(" "):  # text again, behind the section
            heading = ""
            sections[heading] += ["", line]
        else:
            sections[heading].append(line)
    return sections


def _arguments(sections: Mapping[str, list[str]]) -> dict[str, str]:
    found: dict[str, list[str]] = {}
    for line in (line for name in _ARGUMENT_SECTIONS for line in sections.get(name, [])):
        entry = _ENTRY.match(line[4:]) if line.startswith("    ") and not line.startswith("     ") else None
        if entry is not None:
            found[entry[1]] = [entry[2]]
        elif found:
            next(reversed(found.values())).append(line)
    return {name: _on_one_line("\n".join(lines)) for name, lines in found.items()}


def _on_one_line(text: str) -> str:
    return " ".join(plain(text).split())


def _label_of(text: str) -> tuple[str, str]:
    label, colon, rest = text.partition(": ")
    return (label, rest) if colon and label in LABELS else ("", text)

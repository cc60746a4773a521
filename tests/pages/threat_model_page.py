"""The sentences of docs/threat-model.md, and what tests/pages/threat_model_claims.txt says of each.

The list has one block for every sentence, bullet and table row of the page, in the page's order::

    > The sentence as the page has it, on one line.
    tests/net/test_tls.py::test_that_would_fail_if_it_were_false
    limit: why no test could, or need

A sentence that no test holds says why: ``definition`` (it says what words mean, or leads into a list), ``advice``
(it asks the reader for something), ``elsewhere`` (a fact about the world or about arithmetic, not about this code),
``limit`` (it says that something is *not* promised, and nothing breaks if more is kept), ``measured`` (figures, and
what measures them). A sentence that is known to be wrong is mended, not listed.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from difflib import get_close_matches
from functools import cache
from pathlib import Path

REASONS = ("definition", "advice", "elsewhere", "limit", "measured")
TEST_ID = re.compile(r"(tests/[\w/]+\.py)::(test_\w+)")

# A bold or slanted name at the start of a paragraph is a heading, and a line that is a label is none of the text.
_NAMED = re.compile(r"^(\*\*?)[^*]+\.\1\s+")
_LABEL = re.compile(r"^\([\w-]+\)=$")
_END = re.compile(r"(?<=[.!?])(?<!St\.)\s+(?=[A-Z`*\[])")
_NUMBER = re.compile(r"^\d+\. ")
_RULE = re.compile(r"^[|\s:-]+$")


@dataclass(frozen=True)
class Claim:
    """What the list says of one sentence."""

    sentence: str
    tests: list[str] = field(default_factory=list)
    reasons: list[str] = field(default_factory=list)


def sentences(markdown: str) -> list[str]:
    """Return the sentences, bullets and table rows of a page, each on one line."""
    found: list[str] = []
    for block in _blocks(markdown.splitlines()):
        found += [block] if block.startswith("| ") else _END.split(_NAMED.sub("", block))
    return found


def _blocks(lines: Iterable[str]) -> Iterator[str]:
    """Yield paragraphs, bullets and table rows; headings, the heads of tables and rules are left out."""
    block: list[str] = []
    row_before = ""
    for line in [*lines, ""]:
        text = _LABEL.sub("", line.strip())
        if text.startswith("<!--"):
            continue
        text = _NUMBER.sub("- ", text)
        if text.startswith(("- ", "|", "#")) or not text:
            if block:
                yield " ".join(block)
            block = []
        if text.startswith("|"):
            if row_before and not _RULE.match(row_before) and not _RULE.match(text):
                yield row_before
            row_before = "" if _RULE.match(text) else text
            continue
        if row_before:
            yield row_before
            row_before = ""
        if text and not text.startswith("#"):
            block.append(text.removeprefix("- "))


def read_claims(text: str) -> list[Claim]:
    """Return the blocks of the list; lines that begin with ``#`` are headings.

    Raises:
        ValueError: If a line is neither a sentence, nor a test, nor a reason.
    """
    claims: list[Claim] = []
    for number, line in enumerate(text.splitlines(), start=1):
        if line.startswith("> "):
            claims.append(Claim(line.removeprefix("> ")))
        elif claims and TEST_ID.fullmatch(line):
            claims[-1].tests.append(line)
        elif claims and line.partition(": ")[0] in REASONS and line.partition(": ")[2]:
            claims[-1].reasons.append(line)
        elif line and not line.startswith("#"):
            raise ValueError(
                f"line {number}: expected '> SENTENCE', 'tests/FILE.py::test_NAME' or '{REASONS[0]}: WHY', got {line!r}"
            )
    return claims


def what_is_wrong(page: list[str], claims: list[Claim], checkout: Path) -> list[str]:
    """Return what does not fit together, one line for each mistake."""
    known = [claim.sentence for claim in claims]
    wrong = [
        f"stands twice in the list: {sentence}" for sentence in sorted({one for one in known if known.count(one) > 1})
    ]
    for sentence in page:
        if sentence not in known:
            near = get_close_matches(sentence, [one for one in known if one not in page], n=1)
            wrong.append(f"the list does not know this sentence of the page:\n  > {sentence}")
            wrong[-1] += (
                f"\n  was it this one? Then look whether its tests still hold it:\n  > {near[0]}" if near else ""
            )
    wrong += [f"the page has no such sentence any more:\n  > {one}" for one in known if one not in page]
    for claim in claims:
        if not claim.tests and not claim.reasons:
            wrong.append(f"neither a test nor a reason why there is none: {claim.sentence}")
        wrong += [f"there is no test {one}, for: {claim.sentence}" for one in claim.tests if not _exists(one, checkout)]
    return wrong


def _exists(test: str, checkout: Path) -> bool:
    path, _, name = test.partition("::")
    return (checkout / path).is_file() and name in _functions(checkout / path)


@cache
def _functions(path: Path) -> frozenset[str]:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return frozenset(node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef))

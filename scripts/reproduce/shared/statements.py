"""The numbered claims of a paper, each with what shows it: a run of this reproduction, or a test by its name."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from scripts.reproduce.shared.claims import Verdict, markdown_table
from splitvfl.errors import ArgumentError

NOT_JUDGED = "not judged"
STATEMENT_HEADINGS = ("number", "what it says", "shown by", "verdict", "variant, why")

STATEMENT_VERDICTS = f"""\
What the verdicts mean stands on the [overview](index.md#what-the-verdicts-mean). *{NOT_JUDGED.capitalize()}*: neither
its words nor what they come to were at hand, or it is out of scope here; what stands beside it is what is shown of its
subject. Figures in the last column are of the tables of the parts."""
"""What the verdicts of the table mean."""


@dataclass(frozen=True, kw_only=True)
class Statement:
    """A theorem, lemma, corollary, remark, figure, table, or claim in the text.

    Attributes:
        number: As the paper has it: ``theorem 3.5``.
        says: What it says, in one or two sentences.
        parts: The parts of the reproduction that show it, as ``--only`` takes them.
        tests: The tests that show it: ``tests/FOLDER/test_FILE.py::test_NAME``.
        verdict: Whether it reproduces; ``None`` where that is not judged.
        why: With which variant, and why.

    Raises:
        ArgumentError: If it is judged and nothing shows it.
    """

    number: str
    says: str
    parts: tuple[str, ...] = ()
    tests: tuple[str, ...] = ()
    verdict: Verdict | None
    why: str

    def __post_init__(self) -> None:
        """Check that a judged statement has something that shows it."""
        if self.verdict is not None and not (self.parts or self.tests):
            raise ArgumentError(f"expected a part or a test that shows {self.number}, got none")

    @property
    def shown_by(self) -> str:
        """The parts and the tests, for a table."""
        return ", ".join([*(f"part `{part}`" for part in self.parts), *(f"`{test}`" for test in self.tests)]) or "–"


def statements_table(statements: Sequence[Statement]) -> str:
    """Return the statements as a Markdown table, one row each, in their order."""
    rows = [
        (statement.number, statement.says, statement.shown_by, statement.verdict or NOT_JUDGED, statement.why)
        for statement in statements
    ]
    return markdown_table(STATEMENT_HEADINGS, rows, left=5)

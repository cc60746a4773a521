"""The data sets: their sizes beside table 1, and what a constant answer is worth."""

from __future__ import annotations

from scripts.reproduce.hdp_vfl.published import TABLE_1, Size
from scripts.reproduce.hdp_vfl.study import Problem, problems, sizes_of
from scripts.reproduce.shared.claims import Claim, grouped, markdown_table
from scripts.reproduce.shared.pages import Section
from scripts.reproduce.shared.settings import Settings

_BODY = """Columns are counted in the tables that the data come in. In the paper's table each data set has one column
more than there are features: the label, at the label party."""


def sections(settings: Settings) -> list[Section]:
    """Return the sizes of the data sets beside the published ones."""
    given = problems(settings)
    claims = [size_claim(problem, sizes_of(problem)) for problem in given]
    rows = [
        (
            problem.title,
            grouped(TABLE_1[problem.key].records),
            f"{TABLE_1[problem.key].active} + {TABLE_1[problem.key].passive}",
            grouped(sizes_of(problem)[0]),
            "{} and the label + {}".format(*sizes_of(problem)[1:]),
            claim.verdict,
        )
        for problem, claim in zip(given, claims, strict=True)
    ]
    headings = ("data", "published records", "published columns", "records", "columns", "verdict")
    body = f"{_BODY}\n\n{markdown_table(headings, rows, last_left=1)}"
    return [Section(title="Table 1: sizes", body=body, claims=claims, claims_shown=False)]


def size_claim(problem: Problem, found: tuple[int, int, int]) -> Claim:
    """Return whether records and columns are as many as table 1 says, the label counted at the label party.

    Args:
        problem: Which.
        found: Records, columns of the label party, columns of the passive party.
    """
    printed = TABLE_1[problem.key]
    records, active, passive = found
    same = Size(records, active + 1, passive) == printed
    return Claim(
        claim=f"{problem.title}: {grouped(printed.records)} records, {printed.active} + {printed.passive} columns",
        published=float(printed.records),
        ours=float(records),
        interval=None,
        seeds=1,
        verdict="reproduces" if same else "does not",
        why=f"here {grouped(records)} records, {active} columns and the label + {passive} columns",
    )

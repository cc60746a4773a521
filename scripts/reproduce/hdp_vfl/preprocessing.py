"""The data sets: their sizes beside table 1, and what a constant answer is worth."""

from __future__ import annotations

from scripts.reproduce.hdp_vfl.published import TABLE_1, Size
from scripts.reproduce.hdp_vfl.study import Problem, problems, sizes_of
from scripts.reproduce.shared.claims import Claim, grouped
from scripts.reproduce.shared.pages import Section
from scripts.reproduce.shared.settings import Settings

_BODY = """Each party's columns in the table below are those of the original table. In the paper's table each data set
has one column more than there are features: the label, at the label party."""


def sections(settings: Settings) -> list[Section]:
    """Return the sizes of the data sets beside the published ones."""
    claims = [size_claim(problem, sizes_of(problem)) for problem in problems(settings)]
    return [Section(title="Table 1: sizes", body=_BODY, claims=claims)]


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

"""What preprocessing, of which the paper says nothing, does to the figures without noise."""

from __future__ import annotations

from dataclasses import replace

from scripts.reproduce.residue_protection.mechanisms import NONE
from scripts.reproduce.residue_protection.published import TABLE_2
from scripts.reproduce.residue_protection.study import SCALINGS, Problem, problems, table_of
from scripts.reproduce.residue_protection.training import Course, courses_of
from scripts.reproduce.shared.claims import markdown_table, shown, with_error
from scripts.reproduce.shared.pages import Section
from scripts.reproduce.shared.settings import Settings

_BODY = """Training without noise, after the last epoch, means over seeds ± standard error. Without an intercept and
with centred columns a model cannot say that one class is rarer than the other, so that its accuracy falls short of the
larger class's share where that is large."""


def sections(settings: Settings) -> list[Section]:
    """Return accuracy and AUC without noise, for every scaling."""
    chosen = problems(settings)
    scaled = [replace(problem, scaling=scaling) for problem in chosen for scaling in SCALINGS]
    courses = courses_of(settings, scaled, [NONE])
    rows = [_row(problem, courses[problem][NONE]) for problem in scaled]
    headings = ("data", "columns", "larger class", "accuracy", "published", "AUC", "published")
    return [Section(title="Preprocessing", body=f"{_BODY}\n\n{markdown_table(headings, rows, left=2)}")]


def _row(problem: Problem, course: Course) -> tuple[str, ...]:
    published = TABLE_2[problem.key].baseline
    return (
        problem.title,
        problem.scaling,
        shown(table_of(problem, 0).majority),
        with_error(course.last("accuracy")),
        shown(published.accuracy),
        with_error(course.last("auc")),
        shown(published.auc),
    )

"""Why the multiplicative mechanism does not learn as it is printed: its noise has no sign of the residue's left."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from scripts.reproduce.residue_protection.mechanisms import Mechanism, multiplicative, sent_quantiles
from scripts.reproduce.residue_protection.published import EPSILONS, TABLE_2
from scripts.reproduce.residue_protection.study import Problem, problems
from scripts.reproduce.residue_protection.table_2 import PRINTED, Courses, printed
from scripts.reproduce.residue_protection.training import courses_of
from scripts.reproduce.shared.claims import Claim, markdown_table, mean, shown, surely_above, surely_below
from scripts.reproduce.shared.pages import Section
from scripts.reproduce.shared.settings import Settings

RESIDUES = (-0.9, -0.5, -0.1, 0.1, 0.5, 0.9)

_BODY = """The printed noise multiplies a residue by Lap(0, λ), which is as often negative as positive: inside (−b2, b2)
what is sent has no sign of the residue's. The printed clips then send +b1 for a small residue and +b2 for a large
product, of whichever sign, so that what is sent is positive on average, the more so the larger the residue is, and
alike for both labels. At b1 = .1, b2 = 10, the mean of what is sent:

{means}

What a model learns from that depends on the columns, and not on the labels as it should:

- **centred columns** (standardised, no intercept): as long as predictions are 1/2, all records are sent the same mean,
  and columns that add up to zero make no step of it. What follows is alike for weights w and −w, or nearly: the noise
  of the first batches decides, and the AUC is anything, on both sides of one half, from seed to seed;
- **columns in [0, 1]**: all weights grow. Every record is predicted to be positive, so that accuracy is the share of
  positives, and the AUC is that of a weighted sum of the columns, whatever that is worth;
- **centred columns and a constant one** (an intercept that learns from what is sent): the intercept grows, and every
  prediction goes to 1. Residues of positives are then small and those of negatives large, so that it is the negatives
  whose columns are added: the model learns the labels the wrong way round.

AUC on the test records after the last epoch, mean and least and largest over seeds, and accuracy:

{figures}"""


def sections(settings: Settings) -> list[Section]:
    """Return what is sent on average, and what comes of it with three kinds of columns."""
    given = problems(settings)
    kinds = {
        "centred": [replace(problem, scaling="standardised") for problem in given],
        "in [0, 1]": [replace(problem, scaling="to [0, 1]") for problem in given],
        "centred, and a constant": [replace(problem, scaling="standardised", constant=True) for problem in given],
    }
    mechanisms = [printed(epsilon) for epsilon in EPSILONS]
    courses = courses_of(settings, [problem for of in kinds.values() for problem in of], mechanisms)
    rows = [
        _row(problem, kind, courses[problem])
        for problems_ in zip(*kinds.values(), strict=True)
        for kind, problem in zip(kinds, problems_, strict=True)
    ]
    headings = ("data", "columns", *(f"AUC, ε = {epsilon:g}" for epsilon in EPSILONS), "accuracy, ε = 10")
    body = _BODY.replace("{means}", _means()).replace("{figures}", markdown_table(headings, rows, left=2))
    claims = [
        *(_learning_claim(problem, courses[problem]) for problem in kinds["centred"]),
        *(_reverse_claim(problem, courses[problem]) for problem in kinds["centred, and a constant"]),
    ]
    return [Section(title="Mult as printed does not learn", body=body, claims=claims)]


def _means() -> str:
    rows = []
    for said, mode in (("as printed", "as_printed"), ("Lap(1, λ), signs kept", "centred_at_one")):
        for epsilon in EPSILONS:
            mechanism = multiplicative(epsilon, *PRINTED, mode=mode)  # type: ignore[arg-type]
            rows.append((said, f"{epsilon:g}", *(f"{value:+.3g}" for value in mean_sent(mechanism, RESIDUES))))
    return markdown_table(("mechanism", "ε", *(f"r = {residue:g}" for residue in RESIDUES)), rows)


def mean_sent(mechanism: Mechanism, residues: Sequence[float]) -> list[float]:
    """Return the mean of what a mechanism sends of each residue."""
    return [float(sent_quantiles(mechanism, residue).mean()) for residue in residues]


def _row(problem: Problem, kind: str, courses: Courses) -> tuple[str, ...]:
    aucs = [courses[printed(epsilon)].last("auc") for epsilon in EPSILONS]
    cells = [f"{shown(mean(values))} ({shown(min(values))} to {shown(max(values))})" for values in aucs]
    return (problem.title, kind, *cells, shown(mean(courses[printed(EPSILONS[-1])].last("accuracy"))))


def _learning_claim(problem: Problem, courses: Courses) -> Claim:
    """The paper's mechanism learns: at ε = 10 its AUC is the published one."""
    values = courses[printed(10.0)].last("auc")
    return Claim.of_shares(
        values,
        claim=f"Mult as printed learns at ε = 10, centred columns: AUC on {problem.title}",
        published=TABLE_2[problem.key].mult[-1].auc,
        holds=surely_above(values, 0.5),
        why="to learn would be a mean AUC whose 95 % interval lies above one half",
    )


def _reverse_claim(problem: Problem, courses: Courses) -> Claim:
    found = [value for epsilon in EPSILONS for value in courses[printed(epsilon)].last("auc")]
    by_seed = [mean(values) for values in zip(*(courses[printed(e)].last("auc") for e in EPSILONS), strict=True)]
    return Claim.of_shares(
        by_seed,
        claim=f"Mult as printed learns the wrong way round with an intercept: AUC on {problem.title}, mean of four ε",
        holds=surely_below(by_seed, 0.5),
        why=f"{sum(value < 0.5 for value in found)} of {len(found)} runs are below .5, "
        f"{shown(min(found))} to {shown(max(found))}",
    )

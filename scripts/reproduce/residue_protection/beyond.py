"""Beyond the paper: every attack against every mechanism, at what accuracy, time and ε, and what one would deploy."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

from scripts.reproduce.residue_protection.beyond_claims import claims_of
from scripts.reproduce.residue_protection.beyond_outcomes import OWN, Outcome, Outcomes, above_ceilings
from scripts.reproduce.residue_protection.beyond_runs import COINS, DRAWS, contend, contenders, effort_for, step_seconds
from scripts.reproduce.residue_protection.beyond_summary import summary
from scripts.reproduce.residue_protection.descent import MOST_STEPS
from scripts.reproduce.residue_protection.guesses import ATTACKS
from scripts.reproduce.residue_protection.pareto import Choice, Family, Panel, draw_choices, front
from scripts.reproduce.residue_protection.study import Problem, problems, table_of
from scripts.reproduce.shared.claims import grouped, markdown_table, mean, shown, with_error
from scripts.reproduce.shared.jobs import Job, run_jobs
from scripts.reproduce.shared.pages import Section
from scripts.reproduce.shared.settings import Settings
from splitvfl.report.drawing import PALETTE

ROWS = 10_000
"""Training and test records of the two large problems: so many are attacked in an hour."""


def compared(settings: Settings) -> list[Problem]:
    """Return the problems that are at hand, the large ones cut."""
    return [replace(one, rows=one.rows or ROWS) for one in problems(settings)]


def outcomes(settings: Settings) -> Outcomes:
    """Train and attack all contenders on all problems with all seeds."""
    entered = [(problem, one) for problem in compared(settings) for one in contenders(problem, quick=settings.quick)]
    timed = [
        Job(
            step_seconds,
            {"problem": problem.as_settings(), "contender": one.as_settings(), "short_keys": settings.quick},
        )
        for problem, one in entered
    ]
    cells = [
        Job(
            contend,
            {
                "problem": problem.as_settings(),
                "contender": one.as_settings(),
                "seed": seed,
                "effort": effort_for(one, quick=settings.quick)._asdict(),
            },
        )
        for seed in range(settings.seeds)
        for problem, one in entered
    ]
    found = run_jobs([*timed, *cells], settings.jobs, workers=settings.workers, say=settings.say)
    seconds, results = found[: len(timed)], found[len(timed) :]
    by_problem: dict[Problem, list[Outcome]] = {}
    for place, (problem, one) in enumerate(entered):
        own = results[place :: len(entered)]
        by_problem.setdefault(problem, []).append(
            Outcome(problem=problem, contender=one, cells=own, step_seconds=float(seconds[place]["seconds"]))
        )
    return by_problem


def sections(settings: Settings) -> list[Section]:
    """Return the section beyond the paper."""
    settings.say("beyond the paper: every attack against every mechanism")
    found = outcomes(settings)
    levels = {problem: mean(table_of(problem, seed).majority for seed in range(settings.seeds)) for problem in found}
    tables = [_problem_tables(problem, own, levels[problem]) for problem, own in found.items()]
    return [
        Section(
            title="Beyond the paper: every attack against every mechanism",
            body="\n\n".join([_how(found), _short(found, levels), *tables]),
            figures={"residue-protection-front": _figure(found, levels)},
            captions={
                "residue-protection-front": "Accuracy on test records against the share of coins that the best attack "
                "reads over the run, means over seeds. Filled: no other mechanism is at least as good in accuracy, "
                "what is read and time, and clearly better in one. The line is the larger class."
            },
            claims=claims_of(found),
        )
    ]


# --- words


def _how(found: Outcomes) -> str:
    tried, above = above_ceilings(found)
    ends = [cell["at_end"] for own in found.values() for one in own for cell in one.cells]
    return f"""Every mechanism is trained at the learning rate of its best accuracy on a held-out tenth of the training
records (mean of {DRAWS} draws of noise), then on all of them, and tested: accuracy and AUC are means of {DRAWS} draws
for each seed. The rate was an end of the grid in {sum(ends)} of {len(ends)} choices. Of the large sets {grouped(ROWS)}
records are trained on, and as many tested on at most; no training has more than {grouped(MOST_STEPS)} steps.

For the attacks it is trained once more, at that rate, with fair coins for {COINS:.0%} of the training labels. No column
tells a coin: what is read of coins was told by messages, and may be held against the ceiling `e^x / (1 + e^x)` of the
whole run's ε, x, of a label. Of the other labels the columns tell much, and the attacker has all columns: its own
prediction stands beside what it reads. Shares are balanced, and an undecided label counts one half.

- **ε** is the true one of a label over the run: E ε / 2 of *Add*, E times the true ε of a release of *Mult*, and ε
  however long the run of `memoised-response`.
- **Memoised responses against *Add***. With "ε of Add" they have that of *Add* over the run. Everything that *Add*
  sends can be simulated from such answers (Kairouz et al., 2015), so that some learner on them is at least as good:
  whether the shipped one is, is measured. But answers are read as often as their ε allows, and *Add* is not: "read as
  often as Add" has the ε at which a coin is read as often as all releases of *Add* are (computed, not measured).
- **Hybrid** has k and L of the paper's table IV, p = .75, and batches to match; `residue` has batches of k. Both take
  as many steps as use each record once an epoch on average.
- **Attacks.** Where residues cross, `additive-llr` or `multiplicative-llr` with everything but the labels known, the
  best that there is for coins; where sums do, the best of `residue-solving`, `sparse-residues` (60 steps), its integer
  program (6 steps, 1 s each), `stacked-epochs` and `own-prediction`. All know the mechanism: of memoised answers they
  read answers. A choice among five flatters an attack by about a standard error.
- **Time** is seconds of processor time of a training: the median step of the package's own run, all parties together,
  keys of 2048 bits where there are any, times the steps. No network.
- **Front**: no other mechanism is at least as good in accuracy, coins and time, and clearly better in one: by .01, .01,
  or ten times as fast. Times nearer to one another are alike. It is of means, and means have errors: where 91 coins of
  each seed are read, as on breast cancer, a standard error is up to .02, and a place on the front may be chance.

{tried} attacks on mechanisms with a ceiling were held against it, at .05 for all together, by the binomial distribution
of the coins guessed right: {len(above)} got more than it allows."""


def _short(found: Outcomes, levels: Mapping[Problem, float]) -> str:
    on_front = {key for problem, own in found.items() for key in front(_choices(own, levels[problem]))}
    titles = {one.key: one.contender.title for own in found.values() for one in own}
    beaten = [title for key, title in titles.items() if key not in on_front]
    line = f"- On no problem's front: {', '.join(beaten)}.\n" if beaten else ""
    return f"### Beyond the paper, in short\n\n{line}{summary(found)}"


# --- tables and figure

_MAJORITY = "majority"
_NO_TIME = 1e-3  # of a guess that takes none


def _choices(own: Sequence[Outcome], level: float) -> dict[str, Choice]:
    guess = Choice(accuracy=level, read=0.5, seconds=_NO_TIME)
    return {_MAJORITY: guess, **{one.key: one.choice for one in own}}


def _problem_tables(problem: Problem, own: Sequence[Outcome], level: float) -> str:
    best = set(front(_choices(own, level)))
    heading = (
        "mechanism",
        "accuracy",
        "AUC",
        "seconds",
        "ε of a label",
        "ceiling",
        "coins read",
        "by",
        "labels, one step",
        "labels, run",
        "own prediction",
        "front",
    )
    larger = ("larger class, no message", shown(level), ".500", "0", "0", ".500", ".500", "–", ".500", ".500", "–")
    rows = [(*larger, "yes" if _MAJORITY in best else ""), *(_row(one, on_front=one.key in best) for one in own)]
    names = list(ATTACKS)
    matrix = [(one.contender.title, *(shown(mean(one.read(attack, "run_coins"))) for attack in names)) for one in own]
    return (
        f"### {problem.title}\n\n{markdown_table(heading, rows)}\n\nCoins read over the run, by attack:\n\n"
        f"{markdown_table(('mechanism', *names), matrix)}"
    )


def _row(one: Outcome, *, on_front: bool) -> tuple[str, ...]:
    return (
        one.contender.title,
        with_error(one.values("accuracy")),
        with_error(one.values("auc")),
        f"{one.seconds:.3g}",
        "–" if math.isinf(one.epsilon) else f"{one.epsilon:.3g}",
        shown(one.ceiling),
        with_error(one.read(one.best, "run_coins")),
        one.best,
        shown(one.most("single")),
        shown(one.most("run")),
        shown(mean(one.read(OWN, "run"))),
        "yes" if on_front else "",
    )


_FAMILIES = {
    "none": Family(label="none", colour=PALETTE[0], marker="o"),
    "residue": Family(label="none, encrypted", colour=PALETTE[0], marker="s"),
    "add": Family(label="Add", colour=PALETTE[1], marker="o"),
    "mult": Family(label="Mult, centred at one", colour=PALETTE[4], marker="o"),
    "same": Family(label="memoised, same ε as Add", colour=PALETTE[2], marker="o"),
    "as-read": Family(label="memoised, read as often as Add", colour=PALETTE[2], marker="^"),
    "likelihood": Family(label="memoised, likelihood", colour=PALETTE[2], marker="D"),
    "memoised": Family(label="memoised", colour=PALETTE[2], marker="v"),
    "hybrid": Family(label="hybrid", colour=PALETTE[3], marker="o"),
    "hybrid-memoised": Family(label="hybrid + memoised", colour=PALETTE[3], marker="v"),
    "other": Family(label="Mult, mean 0", colour=PALETTE[4], marker="x"),
}


def _family(key: str) -> Family:
    return _FAMILIES.get(key) or _FAMILIES.get(key.rpartition("-")[0], _FAMILIES["other"])


def _figure(found: Outcomes, levels: Mapping[Problem, float]) -> str:
    panels = [
        Panel(
            title=problem.title,
            choices={one.key: one.choice for one in own},
            families={one.key: _family(one.key) for one in own},
            level=levels[problem],
        )
        for problem, own in found.items()
    ]
    return draw_choices("residue-protection-front", panels)

"""Beyond the paper: five ways of protecting a label at the same ε of it for the whole run, and who wins where."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from scipy import stats

from scripts.reproduce.hdp_vfl.label_runs import (
    BATCHES,
    COINS,
    DELTA,
    DRAWS,
    EPOCHS,
    EPSILONS,
    KINDS,
    RATES,
    Kind,
    Protection,
    protect,
)
from scripts.reproduce.hdp_vfl.study import Problem, problems, table_of
from scripts.reproduce.residue_protection.beyond_outcomes import LEVEL, Compared, corrected
from scripts.reproduce.shared.claims import Claim, grouped, interval, markdown_table, mean, shown, with_interval
from scripts.reproduce.shared.drawing import Panel, Pen, draw_panels
from scripts.reproduce.shared.jobs import Job, Result, run_jobs
from scripts.reproduce.shared.pages import Section
from scripts.reproduce.shared.settings import Settings
from splitvfl.report.drawing import PALETTE

ROWS = 10_000
"""Training and test records of the two large problems, at most."""

SEEDS = 5
"""At most: a seed takes more than a minute here."""

TITLES: Mapping[Kind, str] = {
    "none": "none",
    "hdp": "HDP-VFL, derivatives",
    "add": "Add",
    "memoised": "`memoised-response`",
    "targets": "`gaussian-targets`",
    "fresh targets": "`gaussian-targets`, fresh",
    "sums": "noise on sums",
}


@dataclass(frozen=True)
class Outcome:
    """What came of one protection on one problem at one ε, a result for each seed."""

    protection: Protection
    cells: Sequence[Result]

    def values(self, name: str) -> list[float]:
        """Return a figure, one for each seed."""
        return [float(cell[name]) for cell in self.cells]

    def share(self, name: str = "right") -> list[float]:
        """Return the share of coins that were read, one for each seed; NaN where such an attack does not apply."""
        return [float(cell.get(name, math.nan)) / float(cell["coins"]) for cell in self.cells]

    @property
    def above_ceiling(self) -> float:
        """The probability of so many right coins, or more, of an attack that is as good as is allowed."""
        right, coins = (int(sum(self.values(name))) for name in ("right", "coins"))
        return float(stats.binom.sf(right - 1, coins, self.protection.ceiling))


Found = Mapping[Problem, Mapping[tuple[Kind, float], Outcome]]


def compared(settings: Settings) -> list[Problem]:
    """Return the problems that are at hand, the large ones cut."""
    return [replace(one, rows=one.rows or ROWS) for one in problems(settings)]


def outcomes(settings: Settings) -> Found:
    """Train and attack all protections on all problems with all seeds."""
    entered = [(problem, kind) for problem in compared(settings) for kind in KINDS]
    jobs = [
        Job(protect, {"problem": problem.as_settings(), "seed": seed, "kind": kind, "small": settings.quick})
        for seed in range(_seeds(settings))
        for problem, kind in entered
    ]
    results = run_jobs(jobs, settings.jobs, workers=settings.workers, say=settings.say)
    found: dict[Problem, dict[tuple[Kind, float], Outcome]] = {}
    for place, (problem, kind) in enumerate(entered):
        own = results[place :: len(entered)]
        for epsilon in EPSILONS if kind != "none" else (math.inf,):
            cells = [one[f"{epsilon:g}"] for one in own]
            found.setdefault(problem, {})[kind, epsilon] = Outcome(Protection(kind, epsilon), cells)
    return found


def _seeds(settings: Settings) -> int:
    return min(settings.seeds, SEEDS)


# --- who wins


class Duel(NamedTuple):
    """Noise on sums against another protection, at one ε on one problem.

    Attributes:
        problem: Which.
        epsilon: Which.
        other: The other protection.
        ahead: Test AUC of noise on sums less that of the other, with the same seeds; its interval is one of all duels.
    """

    problem: Problem
    epsilon: float
    other: Kind
    ahead: Compared

    @property
    def words(self) -> str:
        """Who won: one of three words."""
        if self.ahead.surely_above(0.0):
            return "wins"
        return "loses" if self.ahead.surely_below else "alike"


OTHERS: tuple[Kind, ...] = tuple(kind for kind in KINDS if kind not in ("none", "sums"))

READ_MORE: Mapping[float, float] = {2.0: 0.5, 4.0: 1.0, 8.0: 2.0}
"""By ε of noise on sums, an ε of memoised responses with which labels may be read more often, little more of those."""


def duels(found: Found) -> list[Duel]:
    """Return noise on sums against each other protection, at every ε on every problem."""
    return [
        Duel(problem, epsilon, other, corrected(_apart(own, epsilon, other), comparisons=_comparisons(found)))
        for problem, own in found.items()
        for epsilon in EPSILONS
        for other in OTHERS
    ]


def matched(found: Found) -> list[Duel]:
    """Return noise on sums against memoised responses that may be read more often, at :data:`READ_MORE`."""
    return [
        Duel(
            problem,
            epsilon,
            "memoised",
            corrected(_apart(own, epsilon, "memoised", at=other), comparisons=_comparisons(found)),
        )
        for problem, own in found.items()
        for epsilon, other in READ_MORE.items()
    ]


def _comparisons(found: Found) -> int:
    return len(found) * (len(EPSILONS) * len(OTHERS) + len(READ_MORE))


def _apart(
    own: Mapping[tuple[Kind, float], Outcome], epsilon: float, other: Kind, *, at: float | None = None
) -> list[float]:
    sums, others = own["sums", epsilon].values("auc"), own[other, epsilon if at is None else at].values("auc")
    return [one - two for one, two in zip(sums, others, strict=True)]


def above_ceilings(found: Found) -> tuple[int, list[Outcome]]:
    """Return how many attacks were held against a ceiling, and which got more than it allows, at .05 for all."""
    tried = [one for own in found.values() for (kind, _), one in own.items() if kind != "none"]
    return len(tried), [one for one in tried if one.above_ceiling < LEVEL / len(tried)]


# --- words


def sections(settings: Settings) -> list[Section]:
    """Return the section on protecting labels."""
    settings.say("beyond the paper: labels protected in five ways, at the same ε of a label over the run")
    found = outcomes(settings)
    fought = duels(found)
    tables = [_problem_tables(problem, own, settings) for problem, own in found.items()]
    return [
        Section(
            title="Beyond the paper: protecting labels at one ε of the whole run",
            body="\n\n".join([_how(found), _short(found, fought), *tables]),
            figures={"hdp-vfl-labels": _figure(found)},
            captions={
                "hdp-vfl-labels": "AUC on test records by ε of one label over the whole run, means over seeds with "
                "95 % intervals; the thin line is the level of no protection."
            },
            claims=_claims(found, fought),
        )
    ]


def _how(found: Found) -> str:
    tried, above = above_ceilings(found)
    most = max(len(table_of(problem, 0).labels) for problem in found)
    cells = [cell for own in found.values() for one in own.values() for cell in one.cells]
    most_epochs = sum(cell["plan"][0] == EPOCHS[-1] for cell in cells)
    return f"""What each protection promises is of one label over the whole run: its ε, and δ = {DELTA:g} where the
noise is Gaussian; *Add* and memoised responses have δ = 0. At the same ε the first allow an attacker who is not lucky
much less: the ceilings below say how much. Both parties have columns, and the label party an intercept; columns are
scaled by statistics, which a label does not enter. Up to {grouped(most)} records are trained on.

- **HDP-VFL, derivatives**: Gaussian noise on each derivative, by the recursion for one changed label, in a ball of
  radius 1 or 5; the passive party adds none, for its columns are not what is protected here.
- **Add** (`laplace-residue`): E epochs cost E times as much. **`memoised-response`** lies once about each label.
  **`gaussian-targets`** adds noise to each label, once or, *fresh*, in every step.
- **Noise on sums** (`exchange.sum_noise` of `residue`): the label party adds it to the masked sums that it opens, and
  learns from a noisy sum of its own. **It assumes that the passive party multiplies residues with its columns**,
  which nobody can check; the others assume nothing of it.

Each is trained at its own best of {len(EPOCHS)} numbers of epochs (up to {EPOCHS[-1]}), one or {BATCHES[-1]} batches an
epoch (with {EPOCHS[-1]} one) and {len(RATES)} learning rates, by accuracy plus AUC on a held-out tenth of the training
records ({DRAWS} draws of noise each). That choice looks at labels, which no ε here counts, alike for all; it was the
largest number of epochs in {most_epochs} of {len(cells)} choices. Then it is trained on all of them and tested, {DRAWS}
draws for each seed.

For the attack it is trained once more with fair coins for {COINS:.0%} of the labels, on breast cancer several times.
The attacker knows all weights and predictions: where something is sent of each record, it takes the likelihood ratio
over the run; of memoised answers it reads the answer; of noisy sums it knows **all other labels besides**, and the
sum of the label party's own, and takes the likelihood ratio. *Alone* is who does not know them, and takes the best
linear estimate. A coin without any message is read at .5, its base rate, which is what the attacker's own prediction
of it gets. *Own prediction* is how well the model itself predicts the other labels, balanced: no protection of
messages prevents that.

{tried} attacks were held against their ceilings, by the binomial distribution and at {LEVEL:g} for all together:
{len(above)} read more than is allowed{"" if not above else " (" + "; ".join(_named(one) for one in above) + ")"}."""


def _named(one: Outcome) -> str:
    return f"{TITLES[one.protection.kind]} at ε {one.protection.epsilon:g}"


def _short(found: Found, fought: Sequence[Duel]) -> str:
    lines = [
        f"- **{problem.title}**: " + "; ".join(_line(own, problem, epsilon, fought) for epsilon in EPSILONS) + "."
        for problem, own in found.items()
    ]
    seeds = len(next(iter(found.values()))["sums", EPSILONS[0]].cells)
    return f"""### Protecting labels, in short

By test AUC, paired over {seeds} seeds, with intervals that hold together with .95:

- **At the same ε** noise on sums {_counted(fought)}.
- **Where labels are read as often at most**: at the same ε an attacker may read more where δ is 0. Against memoised
  responses of ε {" and ".join(f"{other:g} (noise on sums: {own:g})" for own, other in READ_MORE.items())}, of which
  more labels may still be read, noise on sums {_counted(matched(found))}.

The best protection at each ε by mean AUC, and what noise on sums surely beats:

{chr(10).join(lines)}"""


def _counted(fought: Sequence[Duel]) -> str:
    count = {word: sum(duel.words == word for duel in fought) for word in ("wins", "alike", "loses")}
    return (
        f"wins {count['wins']} of {len(fought)} comparisons, loses {count['loses']}, and {count['alike']} are not told "
        "apart"
    )


def _line(own: Mapping[tuple[Kind, float], Outcome], problem: Problem, epsilon: float, fought: Sequence[Duel]) -> str:
    private = [kind for kind in KINDS if kind != "none"]
    best = max(private, key=lambda kind: mean(own[kind, epsilon].values("auc")))
    here = [duel for duel in fought if duel.problem == problem and duel.epsilon == epsilon]
    beaten = sum(duel.words == "wins" for duel in here)
    lost = [TITLES[duel.other] for duel in here if duel.words == "loses"]
    to = f", loses to {' and '.join(lost)}" if lost else ""
    auc = shown(mean(own[best, epsilon].values("auc")))
    return f"ε {epsilon:g}: {TITLES[best]} ({auc}), beats {beaten} of {len(here)}{to}"


def _problem_tables(problem: Problem, own: Mapping[tuple[Kind, float], Outcome], settings: Settings) -> str:
    headings = ("ε", "protection", "AUC", "accuracy", "coins read", "alone", "ceiling", "own prediction", "epochs")
    rows = [
        (
            "–" if math.isinf(epsilon) else f"{epsilon:g}",
            TITLES[kind],
            with_interval(one.values("auc")),
            with_interval(one.values("accuracy")),
            with_interval(one.share()),
            shown(mean(one.share("alone"))),
            shown(one.protection.ceiling),
            shown(mean(one.values("own"))),
            ", ".join(sorted({f"{cell['plan'][0]}" for cell in one.cells}, key=int)),
        )
        for (kind, epsilon), one in sorted(
            own.items(), key=lambda pair: -pair[0][1] if math.isinf(pair[0][1]) else pair[0][1]
        )
    ]
    majority = mean(table_of(problem, seed).majority for seed in range(_seeds(settings)))
    return (
        f"### Labels of {problem.title}\n\nThe larger class has {shown(majority)} of the test records.\n\n"
        f"{markdown_table(headings, rows, left=2)}"
    )


_COLOURS: Mapping[Kind, int] = {"hdp": 0, "add": 1, "memoised": 2, "targets": 3, "fresh targets": 3, "sums": 4}
# Shorter than in tables, for all stand in one line.
_LEGEND: Mapping[Kind, str] = {
    "hdp": "HDP-VFL",
    "add": "Add",
    "memoised": "memoised",
    "targets": "targets",
    "fresh targets": "targets, fresh",
    "sums": "noise on sums",
}
_PENS: Mapping[str, Pen] = {
    _LEGEND[kind]: Pen(colour=PALETTE[place], dashed=kind == "fresh targets") for kind, place in _COLOURS.items()
}


def _figure(found: Found) -> str:
    panels = []
    for problem, own in found.items():
        lines, bars = {}, {}
        for kind in (*OTHERS, "sums"):
            values = [own[kind, epsilon].values("auc") for epsilon in EPSILONS]
            lines[_LEGEND[kind]] = (list(EPSILONS), [mean(each) for each in values])
            ends = [interval(each) for each in values]
            halves = [0.0 if each is None else (each[1] - each[0]) / 2 for each in ends]
            bars[_LEGEND[kind]] = list(zip(halves, halves, strict=True))
        level = mean(own["none", math.inf].values("auc"))
        panels.append(
            Panel(
                title=problem.title,
                x_label="ε of a label, whole run",
                lines=lines,
                bars=bars,
                marked=True,
                baseline=level,
            )
        )
    return draw_panels("hdp-vfl-labels", panels, _PENS)


def _claims(found: Found, fought: Sequence[Duel]) -> list[Claim]:
    claims = []
    for problem, own in found.items():
        for epsilon in EPSILONS:
            here = [duel for duel in fought if duel.problem == problem and duel.epsilon == epsilon]
            best = max(OTHERS, key=lambda kind: mean(own[kind, epsilon].values("auc")))
            worst = [TITLES[duel.other] for duel in here if duel.words != "wins"]
            lost = [TITLES[duel.other] for duel in here if duel.words == "loses"]
            claims.append(
                Claim.of(
                    _apart(own, epsilon, best),
                    claim=f"{problem.title}, ε {epsilon:g} of a label over the run: noise on sums beats all other "
                    f"protections by test AUC; here less the best of them by mean, {TITLES[best]}",
                    holds=not worst,
                    why=f"{len(here) - len(worst)} of {len(here)} intervals lie above 0, corrected for "
                    f"{_comparisons(found)} comparisons"
                    + (f", and that against {' and '.join(lost)} below." if lost else "."),
                )
            )
    tried, above = above_ceilings(found)
    every = [own["sums", epsilon] for own in found.values() for epsilon in EPSILONS]
    gaps = [mean(one.share()) - one.protection.ceiling for one in every]
    claims.append(
        Claim(
            claim="nobody reads a label more often than its guarantee allows, over the whole run",
            published=None,
            ours=max(gaps),
            interval=None,
            seeds=len(every[0].cells),
            verdict="does not" if above else "reproduces",
            why=f"{len(above)} of {tried} attacks surely exceed their ceiling, at {LEVEL:g} for all together; the "
            "figure is the largest share of coins read of noise on sums, less its ceiling.",
        )
    )
    return claims

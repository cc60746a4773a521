"""What was measured on a data set: a row per choice of the label party, and what is left of what messages add."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import NormalDist
from typing import Any

from scripts.reproduce.defense_table.arrangements import Arrangement
from scripts.reproduce.defense_table.plans import (
    ALONE,
    CONVERGED_DEFENSES,
    SILENT,
    Choice,
    choosing,
    converged,
    measuring,
    planned_defenses,
    tried_of,
)
from scripts.reproduce.defense_table.runs import summary_of
from scripts.reproduce.shared.claims import Interval, mean, mean_of_all
from scripts.reproduce.shared.jobs import Job, Result, run_jobs
from scripts.reproduce.shared.settings import Settings
from scripts.reproduce.shared.shares import Kept, kept
from splitvfl.config.sections import HookConfig, parse_defenses
from splitvfl.leakage.message_audit import AUDITORS
from splitvfl.privacy import gaussian_mu
from splitvfl.report.party_result import PartyResult
from splitvfl.report.summary import RunSummary

# It scores records by the model's own prediction, so it tells how much was learned, whatever the defense.
PREDICTION = "readout"
# What stands for what is known without a message, beside what own columns predict.
COMPONENT = "component"
# No message is read for it either, but training has moved the layers.
TRAINED_COMPONENT = "component-of-activation"


@dataclass(frozen=True)
class Promise:
    """What a defense says of a record's label, to whoever knows all else.

    Attributes:
        detection_error: No attacker's ½(FPR + FNR) is below.
        per: Of one message, or of the whole run.
        auc: Of the whole run, the AUC between records that are alike in all else; ``None`` where nothing is said of it.
        proven: Whether it is proven for whoever knows what the model predicts.
    """

    detection_error: float
    per: str
    auc: float | None = None
    proven: bool = True


@dataclass(frozen=True)
class Row:
    """The runs of one defense.

    Attributes:
        label: The defense with its settings.
        runs: One per seed, attacked and audited.
        plain: Further runs, not attacked: test figures only.
        canary_runs: Runs in which some labels are coin tosses.
        promise: What it promises; ``None``: nothing.
    """

    label: str
    runs: Sequence[RunSummary]
    plain: Sequence[RunSummary] = ()
    canary_runs: Sequence[RunSummary] = ()
    promise: Promise | None = None

    @property
    def parties(self) -> list[PartyResult]:
        """The passive party of each run."""
        return [next(iter(run.parties.values())) for run in self.runs]

    @property
    def test_aucs(self) -> list[float]:
        """AUC on the test records, one per seed: of the private top, where there is one."""
        return [_number(run.test_metric) for run in (*self.runs, *self.plain)]

    @property
    def sending_aucs(self) -> list[float]:
        """The same of the top that sends."""
        return [sending_auc(run) for run in (*self.runs, *self.plain)]

    @property
    def totals(self) -> list[float]:
        """Messages and predictions together, by the auditor, one per seed."""
        return [_number(party.total) for party in self.parties]

    @property
    def late_errors(self) -> list[float]:
        """The auditor's detection error in one message late in the run, one per seed."""
        return [_number(party.late_detection_error) for party in self.parties]

    @property
    def known(self) -> list[float]:
        """What is known without a message, one per seed: the better of own columns and their first component."""
        return [max(_or_zero(_number(party.own_columns_auc)), _component(party)) for party in self.parties]

    @property
    def canaries(self) -> Canaried | None:
        """What was read of canaries' labels, over all their runs; ``None`` without any."""
        return Canaried.of(self.canary_runs)

    def per_step(self, attack: str) -> list[float]:
        """Mean leak AUC of a step, one per seed, in the orientation that is better over the run."""
        return [_number(party.attacks[attack].worst_auc) for party in self.parties if attack in party.attacks]

    def accumulated(self, attack: str) -> list[float]:
        """Leak AUC of the scores added up over the run, one per seed, in the better orientation."""
        found = [party.attacks[attack] for party in self.parties if attack in party.attacks]
        return [_number(result.worst_accumulated_auc) for result in found]

    def figures(self, *, but: frozenset[str] = frozenset()) -> dict[str, list[float]]:
        """Return the figures of every attack that reads messages, one per seed, by attack and kind."""
        names = {name for party in self.parties for name, found in party.attacks.items() if found.by_messages} - but
        found = {f"{name}, per step": self.per_step(name) for name in sorted(names)}
        return found | {f"{name}, accumulated": self.accumulated(name) for name in sorted(names)}

    @property
    def worst(self) -> tuple[str, list[float]]:
        """The figure with the largest mean over seeds, the prediction aside: whose it is, and its values."""
        return max(self.figures(but=frozenset({PREDICTION})).items(), key=lambda found: _or_zero(mean(found[1])))

    @property
    def leads(self) -> dict[str, list[float]]:
        """By attack that is none of the auditor's its lead over total, one per seed: its figure less that run's total.

        The prediction counts, as total has it too. What has no figure in some seed is left out.
        """
        found = {
            name: [value - total for value, total in zip(values, self.totals, strict=True)]
            for name, values in self.figures(but=frozenset(AUDITORS)).items()
            if len(values) == len(self.runs)
        }
        return {name: leads for name, leads in found.items() if not math.isnan(mean_of_all(leads))}

    @property
    def ahead(self) -> tuple[str, list[float]]:
        """The attack with the largest mean lead over total, and its leads by seed; NaN ones where no attack has any."""
        nothing = [math.nan] * len(self.runs)
        return max(self.leads.items(), key=lambda lead: mean(lead[1]), default=("–", nothing))


@dataclass(frozen=True)
class Canaried:
    """What the auditor read of canaries' labels, of several runs.

    The best of the auditor's attacks is chosen once, by its mean over the runs: chosen anew in each of them it would
    be read too high, by nearly the deviation of one run.

    Attributes:
        auc: Mean over runs of that attack's AUC.
        error: Standard error of that mean: of which records were canaries, and of their coins.
        test_auc: Mean test AUC of the top that sends in these runs.
    """

    auc: float
    error: float
    test_auc: float

    @classmethod
    def of(cls, runs: Sequence[RunSummary]) -> Canaried | None:
        """Return the figures of runs; ``None`` if none has canaries."""
        parties = [next(iter(run.parties.values())) for run in runs]
        found = {name: [party.canaries[name] for party in parties if name in party.canaries] for name in AUDITORS}
        leaks = max(found.values(), key=lambda leaks: _or_zero(mean(leak.auc for leak in leaks)))
        if not leaks:
            return None
        # Each attack's own interval is for it alone.
        errors = [(leak.high - leak.low) / (2.0 * _quantile(1)) for leak in leaks]
        return cls(
            auc=mean(leak.auc for leak in leaks),
            error=math.sqrt(math.fsum(error**2 for error in errors)) / len(errors),
            test_auc=mean(sending_auc(run) for run in runs),
        )

    def interval(self, comparisons: int = 1) -> Interval:
        """Return the 95 % interval, which holds for all of the auditor's attacks, and so many comparisons, at once."""
        half = _quantile(len(AUDITORS) * comparisons) * self.error
        return max(0.0, self.auc - half), min(1.0, self.auc + half)


@dataclass(frozen=True)
class Study:
    """All that was measured on a data set.

    Attributes:
        arrangement: The data set.
        rows: By defense, the first without one.
        silent: Test AUCs of what sends nothing back, by its name; the first is the label party alone.
        choices: The chosen settings by row.
        comparisons: How many are made on the page.
    """

    arrangement: Arrangement
    rows: Sequence[Row]
    silent: Mapping[str, list[float]]
    choices: Mapping[str, Choice]
    comparisons: int = 1

    @property
    def no_message(self) -> str:
        """The one-way row that defenses are compared with: that of the best validation AUC."""
        return max((name for name in self.silent if name != ALONE), key=lambda name: self.choices[name].auc)

    def kept(self, values: Sequence[float], *, private: bool) -> Kept:
        """Return what a model keeps of what messages add.

        Args:
            values: Its test AUCs, one per seed.
            private: Whether undefended the private top counts, or the one that sends.
        """
        undefended = self.rows[0].test_aucs if private else self.rows[0].sending_aucs
        return kept(values, undefended, self.silent[self.no_message])


def sending_auc(run: RunSummary) -> float:
    """Return the test AUC of the top that sends."""
    return _number(run.test_metric if run.sending_metric is None else run.sending_metric)


def _quantile(attacks: int) -> float:
    return NormalDist().inv_cdf(1.0 - 0.025 / attacks)


def _component(party: PartyResult) -> float:
    return _or_zero(_number(party.attacks[COMPONENT].worst)) if COMPONENT in party.attacks else 0.0


def _number(value: float | None) -> float:
    return math.nan if value is None else value


def _or_zero(value: float) -> float:
    return 0.0 if math.isnan(value) else value


def promise_of(hook: HookConfig) -> Promise | None:
    """Return what a defense promises with these settings; ``None`` if nothing."""
    error, epsilon = hook.options.get("detection_error"), hook.options.get("epsilon")
    if error is not None:
        return _by_error(hook, error)
    if epsilon is not None:
        # Answers that are drawn once: randomised response of two classes.
        return Promise(1.0 / (1.0 + math.exp(epsilon)), "run", 1.0 / (1.0 + math.exp(-epsilon)))
    return None


def _by_error(hook: HookConfig, error: float) -> Promise:
    if hook.name == "gaussian-targets":
        return Promise(error, "run", NormalDist().cdf(gaussian_mu(detection_error=error) / math.sqrt(2.0)))
    if hook.name == "asymmetric-response":
        return Promise(error, "run", 1.0 - error)
    if hook.name == "abstaining-response":
        built: Any = hook.found("defenses", Path()).make()
        return Promise(error, "run", built.answers_auc)
    return Promise(error, "message", proven=hook.name == "record-gaussian")


def measured(arrangement: Arrangement, settings: Settings, *, comparisons: int) -> Study:
    """Choose every row's setting, make its runs, and return what was measured.

    Args:
        arrangement: The data set.
        settings: Where cells are kept, and how many seeds are asked for.
        comparisons: How many are made on the page.
    """

    def results(jobs: Sequence[Job]) -> list[Result]:
        return run_jobs(jobs, settings.jobs, workers=settings.workers, say=settings.say)

    def by_row(planned: Mapping[str, Sequence[Job]]) -> dict[str, list[Result]]:
        found = iter(results([job for jobs in planned.values() for job in jobs]))
        return {name: [next(found) for _ in jobs] for name, jobs in planned.items()}

    asked = choosing(arrangement)
    told = by_row({name: list(jobs.values()) for name, jobs in asked.items()})
    choices = {name: Choice.of(tried_of(dict(zip(asked[name], found, strict=True)))) for name, found in told.items()}
    planned = measuring(arrangement, choices, seeds=settings.seeds)
    # One seed of everything first: a run that is broken off has seen all rows.
    results(sorted((job for runs in planned.values() for job in runs.jobs), key=lambda job: int(job.settings["seed"])))
    attacked, plain, canaries = (
        by_row({name: getattr(runs, kind) for name, runs in planned.items()})
        for kind in ("attacked", "plain", "canaries")
    )
    rows = [
        Row(
            label,
            list(map(summary_of, attacked[label])),
            list(map(summary_of, plain[label])),
            list(map(summary_of, canaries[label])),
            None if hook is None else promise_of(hook),
        )
        for label, hook in planned_defenses()
    ]
    silent = {name: [_test_auc(result) for result in plain[name]] for name in (ALONE, *SILENT)}
    return Study(arrangement, rows, silent, choices, comparisons)


def measured_late(settings: Settings) -> list[Row]:
    """Return the rows of the runs to convergence."""
    plans = converged(quick=settings.quick)
    jobs = [job for plan in plans for job in plan]
    found = iter(run_jobs(jobs, settings.jobs, workers=settings.workers, say=settings.say))
    hooks = [hooks[0] for hooks in parse_defenses(",".join(CONVERGED_DEFENSES), folder=Path())]
    return [
        Row(label, [summary_of(next(found)) for _ in plan], promise=promise_of(hook))
        for label, plan, hook in zip(CONVERGED_DEFENSES, plans, hooks, strict=True)
    ]


def _test_auc(result: Result) -> float:
    """Return the test AUC of a run in which nothing is sent back."""
    if "aucs" in result:
        (auc,) = result["aucs"].values()
        return float(auc)
    return _number(summary_of(result).test_metric)

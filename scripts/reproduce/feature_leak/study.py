"""What is run of each way, how its epochs and rate are chosen, and what was found."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from scipy import stats

from scripts.reproduce.feature_leak.arrangements import ARRANGEMENTS, Arrangement, shortened
from scripts.reproduce.feature_leak.runs import KNOWN, choose, describe, measure
from scripts.reproduce.feature_leak.ways import Way
from scripts.reproduce.shared.claims import Interval, interval, mean, mean_of_all
from scripts.reproduce.shared.jobs import Job, Result, run_jobs
from scripts.reproduce.shared.settings import Settings, data_folder

VALIDATION_SEED = 1000
"""Epochs and rates are chosen by this seed, and strengths by as many of those after it as are reported: of other seeds,
so that the best of several epochs and rates by one seed flatters none. Nothing that is compared is measured with these.
"""

USUAL = f"{KNOWN[1]:g}"
"""The share of known records where one figure stands for a run."""


@dataclass(frozen=True)
class Choice:
    """The epochs and the rate of the best AUC on validation records.

    Attributes:
        epochs: How many.
        rate: Of Adam.
        auc: On the validation records.
    """

    epochs: int
    rate: float
    auc: float

    @classmethod
    def of(cls, tried: Mapping[float, Mapping[str, float]]) -> Choice:
        """Return the best; of equals the one with fewer epochs, then the lower rate.

        Args:
            tried: By rate and number of epochs, AUCs.
        """
        every = [
            (-math.inf if math.isnan(auc) else auc, -int(epochs), -rate)
            for rate, aucs in tried.items()
            for epochs, auc in aucs.items()
        ]
        auc, epochs, rate = max(every)
        return cls(-epochs, -rate, auc)


@dataclass(frozen=True)
class Row:
    """What was measured of one way on one data set.

    A seed counts as collapsed where the model's AUC on test records is not above that of the label party's own columns
    alone: what it sent was of no use, so that it is no merit that little is read in it. Such a seed has no figure of
    what is read; its AUC counts.

    Attributes:
        way: Which.
        choice: Epochs and rate.
        validated: The runs by which strengths and ways are chosen: their AUCs are of validation records, what is read
            is of training records. Empty where nothing is chosen.
        runs: One per seed.
        about: What :func:`~scripts.reproduce.feature_leak.runs.describe` says of the data set.
    """

    way: Way
    choice: Choice
    validated: Sequence[Result]
    runs: Sequence[Result]
    about: Result

    @property
    def aucs(self) -> list[float]:
        """Test AUCs, one per seed."""
        return [run["auc"] for run in self.runs]

    @property
    def labels(self) -> list[float]:
        """The worst AUC of labels that the auditor's attacks read in messages, one per seed."""
        return [run["labels"] for run in self.runs]

    @property
    def collapsed(self) -> list[int]:
        """Seeds whose model is no better on test records than the label party's own columns alone."""
        return [seed for seed, run in enumerate(self.runs) if not _above(run["auc"], self.about["alone"])]

    @property
    def collapsed_in_validation(self) -> int:
        """How many of the runs by which is chosen collapsed, by their AUCs on validation records."""
        return sum(not _above(run["auc"], self.about["alone_validated"]) for run in self.validated)

    @property
    def collapses(self) -> bool:
        """Whether any seed collapsed, or any by which is chosen."""
        return bool(self.collapsed or self.collapsed_in_validation)

    @property
    def validated_auc(self) -> float:
        """The mean AUC of validation records; NaN where nothing is chosen."""
        return mean_of_all(run["auc"] for run in self.validated)

    @property
    def validated_read(self) -> float:
        """The mean of what is read in the runs by which is chosen; NaN where nothing is."""
        return mean_of_all(map(read_of, self.validated))

    def shares(self, known: str = USUAL, figure: str = "share") -> list[float]:
        """Return one figure of the reader that knows so many records, one per seed.

        NaN where it was never judged, and where the seed collapsed.
        """
        return self.of_trained([_figure(run, known, figure) for run in self.runs])

    def read(self, known: str = USUAL) -> list[float]:
        """Return what counts as read, one per seed: the larger of the last epoch's share and the accumulated one.

        NaN as in :meth:`shares`.
        """
        return self.of_trained([read_of(run, known) for run in self.runs])

    def of_trained(self, values: Sequence[float]) -> list[float]:
        """Return values, one per seed, with NaN in place of those of collapsed seeds."""
        lost = set(self.collapsed)
        return [math.nan if seed in lost else value for seed, value in enumerate(values)]


def _above(auc: float, alone: float | None) -> bool:
    """Return whether a model is better than the label party alone, which may have no columns: then it is."""
    return alone is None or auc > alone


def _figure(run: Result, known: str, figure: str) -> float:
    reading = run["readings"].get(known)
    value = math.nan if reading is None else reading[figure]
    return math.nan if value is None else float(value)


def read_of(run: Result, known: str = USUAL) -> float:
    """Return what counts as read in a run; NaN where the reader was never judged."""
    found = [value for figure in ("share", "accumulated") if not math.isnan(value := _figure(run, known, figure))]
    return max(found, default=math.nan)


@dataclass(frozen=True)
class Measured:
    """A data set and what was measured on it.

    Attributes:
        arrangement: The data set.
        about: What :func:`~scripts.reproduce.feature_leak.runs.describe` says of it.
        rows: By label of the way, in the order that was asked for.
    """

    arrangement: Arrangement
    about: Result
    rows: Mapping[str, Row]

    def of_family(self, family: str) -> list[Row]:
        """Return the strengths of a family, from weak to strong."""
        return [row for row in self.rows.values() if row.way.family == family]


def headed(found: Measured, text: str, beside: str = "") -> str:
    """Return a text of one data set below a heading with its name."""
    title = found.arrangement.title
    return f"### {title[0].upper()}{title[1:]}{beside}\n\n{text}"


def at_hand(settings: Settings) -> list[Arrangement]:
    """Return the data sets whose file is there, as they are used; what is missing is said, and left out."""
    if settings.quick:
        return [shortened(one) for one in ARRANGEMENTS[:2]]
    return [
        one for one in ARRANGEMENTS if not one.sample.file or settings.has(one.title, data_folder() / one.sample.file)
    ]


def measured(
    arrangement: Arrangement, ways: Sequence[Way], settings: Settings, *, between: Sequence[Way] = ()
) -> Measured:
    """Choose epochs and rate of every way, make its runs, and return what was found; what is kept is not made again.

    Args:
        arrangement: The data set.
        ways: What is compared.
        settings: Where cells are kept, and how many seeds are asked for.
        between: The ways between which is chosen, which need runs that are validated.
    """

    def results(jobs: Sequence[Job]) -> list[Result]:
        return run_jobs(jobs, settings.jobs, workers=settings.workers, say=settings.say)

    tried = results([_trial(arrangement, way, rate) for way in ways for rate in arrangement.rates])
    by_way = [tried[first : first + len(arrangement.rates)] for first in range(0, len(tried), len(arrangement.rates))]
    choices = [
        Choice.of({rate: one["aucs"] for rate, one in zip(arrangement.rates, found, strict=True)}) for found in by_way
    ]
    planned = {
        (way.label, seed): _run(arrangement, way, choice, seed)
        # One seed of everything first: a run that is broken off has seen all ways.
        for seed in (*validation_seeds(settings), *range(settings.seeds))
        for way, choice in zip(ways, choices, strict=True)
        if seed < VALIDATION_SEED or way in between
    }
    found = dict(zip(planned, results(list(planned.values())), strict=True))
    (about,) = results([Job(describe, {"arrangement": arrangement.as_settings()})])

    def row(way: Way, choice: Choice) -> Row:
        validated = [found[way.label, seed] for seed in validation_seeds(settings) if way in between]
        return Row(way, choice, validated, [found[way.label, seed] for seed in range(settings.seeds)], about)

    rows = {way.label: row(way, choice) for way, choice in zip(ways, choices, strict=True)}
    return Measured(arrangement, about, rows)


def validation_seeds(settings: Settings) -> range:
    """Return the seeds by which strengths are chosen: as many as are reported."""
    return range(VALIDATION_SEED + 1, VALIDATION_SEED + 1 + settings.seeds)


def _run(arrangement: Arrangement, way: Way, choice: Choice, seed: int) -> Job:
    return Job(
        measure,
        {
            "arrangement": arrangement.as_settings(),
            "way": way.as_settings(),
            "rate": choice.rate,
            "epochs": choice.epochs,
            "seed": seed,
            "validating": seed > VALIDATION_SEED,
        },
    )


def _trial(arrangement: Arrangement, way: Way, rate: float) -> Job:
    return Job(
        choose,
        {
            "arrangement": arrangement.as_settings(),
            "way": way.as_settings(),
            "rate": rate,
            "epochs": list(arrangement.epochs),
            "seed": VALIDATION_SEED,
        },
    )


def differences(ours: Sequence[float], theirs: Sequence[float]) -> list[float]:
    """Return ours less theirs, paired by seed."""
    return [own - other for own, other in zip(ours, theirs, strict=True)]


def corrected(values: Sequence[float], comparisons: int) -> Interval | None:
    """Return the interval of the mean over seeds that holds for so many comparisons at once with 95 %: Bonferroni's.

    Args:
        values: One per seed.
        comparisons: How many are made.

    Returns:
        ``(low, high)``; ``None`` with fewer than two seeds, or where one has no figure.

    >>> corrected([0.1, 0.2, 0.3], 1) == interval([0.1, 0.2, 0.3])
    True
    """
    plain = None if any(map(math.isnan, values)) else interval(values)
    if plain is None:
        return None
    middle, freedom = mean(values), len(values) - 1
    wider = stats.t.ppf(1.0 - 0.025 / comparisons, freedom) / stats.t.ppf(0.975, freedom)
    half = float(wider) * (plain[1] - middle)
    return (middle - half, middle + half) if comparisons > 1 else plain


def less(interval_of: Interval | None) -> str:
    """Return on which side of 0 an interval of a difference lies: ``"less"``, ``"more"``, or ``""`` for neither.

    >>> less((-0.2, -0.1)), less((0.1, 0.2)), less((-0.1, 0.1)), less(None)
    ('less', 'more', '', '')
    """
    if interval_of is None:
        return ""
    low, high = interval_of
    return "less" if high < 0.0 else "more" if low > 0.0 else ""

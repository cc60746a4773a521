"""The figures of the search: one row per channel, strength and data set, and what is kept at equal leak."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import NormalDist
from typing import Any

import numpy as np
from scipy import stats

from scripts.reproduce.better_defense.estimates import curve_at
from scripts.reproduce.better_defense.search_data import Problem
from scripts.reproduce.better_defense.search_plan import ASYMMETRIC, NO_MESSAGE, UNDEFENDED, Channel, Choice
from scripts.reproduce.shared.claims import Interval, mean
from scripts.reproduce.shared.shares import Kept, kept
from splitvfl.leakage.message_audit import AUDITORS

KNOWN_NOTHING = 0.5
_ANSWERS = ("asymmetric", "warm")


@dataclass(frozen=True)
class Reading:
    """What was read of the canaries, over all seeds.

    Attributes:
        auc: Mean over seeds, by the one of the auditor's attacks that is best in the mean.
        error: Its standard error: of which records were canaries, and of their coins.
    """

    auc: float
    error: float

    @classmethod
    def of(cls, results: Sequence[Mapping[str, Any]]) -> Reading:
        """Return what was read in these runs; an AUC of a half where nothing is sent that could be read."""
        found = {
            name: [result["canaries"][name] for result in results if name in result.get("canaries", {})]
            for name in AUDITORS
        }
        found = {name: leaks for name, leaks in found.items() if leaks}
        if not found:
            return cls(KNOWN_NOTHING, 0.0)
        leaks = max(found.values(), key=lambda leaks: mean(auc for auc, _, _ in leaks))
        errors = [(high - low) / (2.0 * NormalDist().inv_cdf(0.975)) for _, low, high in leaks]
        return cls(mean(auc for auc, _, _ in leaks), math.hypot(*errors) / len(errors))

    def interval(self, comparisons: int = 1) -> Interval:
        """Return the 95 % interval, for all of the auditor's attacks, and so many comparisons, at once."""
        half = NormalDist().inv_cdf(1.0 - 0.025 / len(AUDITORS) / comparisons) * self.error
        return max(0.0, self.auc - half), min(1.0, self.auc + half)


@dataclass(frozen=True)
class Row:
    """One channel at one strength on one data set.

    Attributes:
        channel: Which.
        strength: What is said of its setting.
        choice: Rate and epochs, by validation.
        results: One per seed.
    """

    channel: Channel
    strength: str
    choice: Choice
    results: Sequence[Mapping[str, Any]]

    @property
    def name(self) -> str:
        """Channel and strength."""
        return f"{self.channel.name}, {self.strength}" if self.strength else self.channel.name

    @property
    def private(self) -> list[float]:
        """Test AUC of the private top, or of the only one where nothing is sent back, by seed."""
        return [result["private"][0] for result in self.results]

    @property
    def sending(self) -> list[float] | None:
        """Test AUC of the top that sends; ``None`` where there is none."""
        return None if self.channel.group == "nothing sent" else [result["sending"][0] for result in self.results]

    @property
    def reading(self) -> Reading:
        """What the auditor read of the canaries."""
        return Reading.of(self.results)

    @property
    def informed(self) -> float:
        """What who knows the algorithm read of them, mean over seeds; NaN where nobody was asked."""
        return mean(result.get("informed", math.nan) for result in self.results)

    @property
    def promised(self) -> float:
        """The AUC that is promised of the run, 1 if none; of sides, that which coins on both sides may have."""
        settings = self.channel.strengths[self.strength]
        if settings.get("kind") in _ANSWERS:
            return 1.0 - float(settings["detection_error"])
        return float(settings["auc"]) if settings.get("kind") == "noisy" else 1.0

    @property
    def leak(self) -> float:
        """The leak beyond prediction by which rows are compared: the larger of the two.

        Who knows the algorithm is not asked of answers: he reads what is promised, as that promise is tight.
        """
        answers = self.channel.strengths[self.strength].get("kind") in _ANSWERS
        informed = self.promised if answers else self.informed
        return max(self.reading.auc, 0.0 if math.isnan(informed) else informed)


@dataclass(frozen=True)
class Found:
    """All rows on one data set, in the order of the channels.

    Attributes:
        problem: The data set.
        rows: The rows.
        few_coins: By channel, test AUC of the private top by seed where nearly all labels are true, at the strength
            that was tuned.
    """

    problem: Problem
    rows: Sequence[Row]
    few_coins: Mapping[str, Sequence[float]] = field(default_factory=dict)

    def of(self, channel: str) -> list[Row]:
        """Return the rows of a channel, the most private last."""
        return [row for row in self.rows if row.channel.name == channel]

    @property
    def at_the_edge(self) -> tuple[int, int]:
        """How many channels with messages have the largest number of epochs that was tried, and how many there are."""
        choices = {row.channel.name: row.choice for row in self.rows if row.channel.group != "nothing sent"}
        most = max(self.problem.points)
        return sum(choice.amount == most for choice in choices.values()), len(choices)

    def cost_of_coins(self, channel: str) -> float:
        """Return by how much a channel is better where nearly all labels are true."""
        (row,) = (row for row in self.of(channel) if row.strength == row.channel.tuned)
        return mean(self.few_coins[channel]) - mean(row.private)

    @property
    def best_silent(self) -> Row:
        """The row in which nothing is sent back with the best test figure: chosen in its own favour."""
        return max((row for row in self.rows if row.channel.group == "nothing sent"), key=lambda row: mean(row.private))

    def kept(self, row: Row) -> Kept:
        """Return the share of what messages add, by the private top, to random layers without any."""
        return kept(row.private, self.of(UNDEFENDED)[0].private, self.of(NO_MESSAGE)[0].private)

    def known_at(self, leak: float, seed: int) -> float:
        """Return what is known to be kept at a leak, with one seed.

        By straight lines from no message, at a half, over the asymmetric answers to no defense.

        Args:
            leak: The leak.
            seed: Position of the seed.
        """
        (nothing,), (all_told,) = self.of(NO_MESSAGE), self.of(UNDEFENDED)
        points = [(KNOWN_NOTHING, nothing), *((row.leak, row) for row in self.of(ASYMMETRIC)), (1.0, all_told)]
        at = min(max(leak, KNOWN_NOTHING), 1.0)
        return curve_at([leak for leak, _ in points], [row.private[seed] for _, row in points], at)


@dataclass(frozen=True)
class Gain:
    """By how much a channel is ahead on one data set.

    Attributes:
        channel: Its name.
        by_seed: Test AUC ahead, mean over its strengths.
        error: Standard error of the mean, from the deviations of all channels on this data set.
        degrees: Degrees of freedom of that error.
    """

    channel: str
    by_seed: Sequence[float]
    error: float = math.nan
    degrees: int = 0

    @property
    def value(self) -> float:
        """Mean over seeds."""
        return mean(self.by_seed)

    def interval(self, comparisons: int = 1) -> Interval:
        """Return the 95 % interval, for so many comparisons at once (Bonferroni)."""
        half = float(stats.t.ppf(1.0 - 0.025 / comparisons, self.degrees)) * self.error
        return self.value - half, self.value + half


def gains(found: Found, *, over: str) -> list[Gain]:
    """Return the gain of every channel that was tried.

    The error is pooled over them: with three seeds each one's own would have two degrees of freedom. It holds if runs
    of all channels deviate alike and independently; those of one seed do not, as they are compared with the same rows:
    where they correlate by .5 or .8, an interval that should be wrong in 5 % is so in about 7 or 11 %.

    Args:
        found: The rows of a data set.
        over: ``"known"``: what is known to be kept at the same leak; ``"silent"``: the best row without messages.
    """
    tried = dict.fromkeys(row.channel.name for row in found.rows if row.channel.group == "tried")
    plain = [Gain(name, _gain(found, found.of(name), over)) for name in tried]
    seeds = len(plain[0].by_seed)
    if seeds < 2:
        return plain
    variance = float(np.mean([np.var(gain.by_seed, ddof=1) for gain in plain]))
    degrees = len(plain) * (seeds - 1)
    return [replace(gain, error=math.sqrt(variance / seeds), degrees=degrees) for gain in plain]


def _gain(found: Found, rows: Sequence[Row], over: str) -> list[float]:
    silent = found.best_silent
    return [
        mean(
            row.private[seed] - (found.known_at(row.leak, seed) if over == "known" else silent.private[seed])
            for row in rows
        )
        for seed in range(len(rows[0].results))
    ]

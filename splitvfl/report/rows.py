"""Figures of runs in rows, as tables and pages show them: runs that may be compared, and averages over their seeds."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from splitvfl.config.registry import built_in
from splitvfl.leakage.after_training import AfterTraining
from splitvfl.leakage.auditing import AUDITORS, Audit
from splitvfl.leakage.features import FeatureLeak
from splitvfl.leakage.label_leak import largest
from splitvfl.metrics import turned_round
from splitvfl.report.summary import AttackResult, PartyResult, RunSummary

AUDITOR = Audit.name
"""One name for the auditor's attacks, of which the best one counts."""

MISSING = "–"
"""What stands for a figure that there is not."""

_UNPLACED = 100
_CONFIDENCE = 0.95


@dataclass(frozen=True)
class Estimate:
    """A mean over runs.

    Attributes:
        mean: Over the runs that have the figure.
        half_width: Of the 95 % t-interval of the mean; ``None`` for a single run.
        count: Number of runs that have it.
    """

    mean: float
    half_width: float | None
    count: int


def estimate(values: Iterable[float | None]) -> Estimate | None:
    """Return the mean with its 95 % interval, ``t(0.975, n − 1) · s / √n``; ``None`` if all values are ``None``.

    The interval takes the runs for independent draws of a normal distribution. Runs under several seeds on one split
    of the data say nothing about other data.

    >>> estimate([1.0, 2.0, 3.0, None]).mean
    2.0
    """
    known = [value for value in values if value is not None]
    if not known:
        return None
    mean = math.fsum(known) / len(known)
    if len(known) == 1:
        return Estimate(mean, None, 1)
    from scipy import stats  # slow to import, and not needed for single runs

    variance = math.fsum((value - mean) ** 2 for value in known) / (len(known) - 1)
    quantile = float(stats.t.ppf(0.5 + _CONFIDENCE / 2, len(known) - 1))
    return Estimate(mean, quantile * math.sqrt(variance / len(known)), len(known))


def written(value: Estimate | float | None, digits: int, *, sign: str = " ± ", large: str = ".3g") -> str:
    """Return a figure with its interval, if it has one, and a dash where there is none.

    Args:
        value: The figure.
        digits: Decimals.
        sign: What stands before half of the interval.
        large: The format of numbers from 1000 on: losses of a regression, say.
    """
    if value is None:
        return MISSING
    if isinstance(value, Estimate):
        interval = "" if value.half_width is None else f"{sign}{written(value.half_width, digits, large=large)}"
        return f"{written(value.mean, digits, large=large)}{interval}"
    return f"{value:.{digits}f}" if abs(value) < 1000 else f"{value:{large}}"


def averaged(figure: Callable[[Any], float | None]) -> cached_property[Estimate | None]:
    """Return a property of a row: the :func:`estimate` of a figure of its ``results``, one for each run."""
    return cached_property(lambda row: estimate(map(figure, row.results)))


@dataclass(frozen=True)
class RunGroup:
    """Runs that may be compared: one data set, one model, equally long.

    Attributes:
        title: Data set and model.
        subtitle: What else they share.
        runs: In the order given.
    """

    title: str
    subtitle: str
    runs: list[RunSummary]

    @property
    def judged(self) -> bool:
        """Whether any run has a leak AUC."""
        return any(run.worst[0] is not None for run in self.runs)

    @property
    def by_canaries(self) -> bool:
        """Whether the leak beyond the prediction, among canaries, decides in every run that was judged."""
        return self.judged and all(run.canaries is not None for run in self.runs if run.worst[0] is not None)

    @property
    def metric(self) -> str:
        """Name of the headline figure."""
        return self.runs[0].metric_name

    @property
    def defenses(self) -> list[str]:
        """The defenses in order of appearance."""
        return list(dict.fromkeys(run.label for run in self.runs))

    def of_defense(self, defense: str) -> list[RunSummary]:
        """Return this defense's runs, one per seed."""
        return [run for run in self.runs if run.label == defense]


def group_runs(runs: Sequence[RunSummary]) -> list[RunGroup]:
    """Return the runs grouped by data set, model, exchange, epochs and batch size, in order of appearance.

    Runs that may stop early belong together, wherever they stopped.
    """
    found: dict[tuple[str, str, str, int], list[RunSummary]] = {}
    for run in runs:
        found.setdefault((_title(run), run.metric, _length(run), run.batch_size), []).append(run)
    return [
        RunGroup(title, f"{length}, batches of {size}", members) for (title, _, length, size), members in found.items()
    ]


def _title(run: RunSummary) -> str:
    exchange = f", exchange {run.exchange}" if run.traits.in_headings else ""
    return f"{run.data}, {run.model}{exchange}"


def _length(run: RunSummary) -> str:
    if run.planned_epochs is None:
        return counted(run.epochs, "epoch")
    return f"at most {counted(run.planned_epochs, 'epoch')}, with early stopping"


def attack_names(runs: Iterable[RunSummary]) -> list[str]:
    """Return the attacks that any run has figures of: those with a place, others as they come, last the auditor's."""
    names = dict.fromkeys(shown_name(name) for run in runs for party in run.parties.values() for name in party.attacks)
    known = {**built_in("attacks"), AUDITOR: Audit}
    return sorted(names, key=lambda name: getattr(known.get(name), "place", _UNPLACED))


def shown_name(attack: str) -> str:
    """Return the name under which an attack is shown.

    >>> shown_name("auditor-linear"), shown_name("norm")
    ('auditor', 'norm')
    """
    return AUDITOR if attack in AUDITORS else attack


def attack_result(party: PartyResult, name: str) -> AttackResult | None:
    """Return the figures shown under a name: for the auditor, figure by figure the worst of its attacks."""
    results = [result for attack, result in party.attacks.items() if shown_name(attack) == name]
    if len(results) < 2:
        return results[0] if results else None
    step = largest(result.worst_auc for result in results)
    accumulated = largest(result.worst_accumulated_auc for result in results)
    return AttackResult(
        auc=step,
        worst_auc=step,
        quantile_95=largest(result.quantile_95 for result in results),
        accumulated_auc=accumulated,
        worst_accumulated_auc=accumulated,
        steps=max(result.steps for result in results),
        undefined=max(result.undefined for result in results),
        positives=results[0].positives,
        negatives=results[0].negatives,
    )


@dataclass(frozen=True)
class AttackRow:
    """One attack's figures, averaged over runs: every run is turned round, where that reads better, before the mean."""

    results: Sequence[AttackResult]

    # Of a step and of scores added up over the run; records that were left out tie, in the middle.
    step = averaged(lambda result: result.worst_auc)
    accumulated = averaged(lambda result: result.worst_accumulated_auc)
    quantile_95 = averaged(lambda result: result.quantile_95)
    # The larger of the first two in each run.
    worst = averaged(lambda result: result.worst)
    # In the attack's own orientation.
    raw_step = averaged(lambda result: result.deciding[0])
    raw_accumulated = averaged(lambda result: result.deciding[1])
    # Among the records that it scored only.
    scored_step = averaged(lambda result: turned_round(result.auc))
    scored_accumulated = averaged(lambda result: turned_round(result.accumulated_auc))

    @property
    def undefined(self) -> int:
        """Most batches without an AUC in any run."""
        return max(result.undefined for result in self.results)

    @property
    def scored(self) -> Estimate | None:
        """Share of the records that it scored; ``None`` where it left out none in any run."""
        return estimate(result.scored for result in self.results) if any(map(leaves_out, self.results)) else None

    @property
    def turned(self) -> bool:
        """Whether any figure is not the raw one: the attack reads better the other way round."""
        return (self.raw_step, self.raw_accumulated) != (self.step, self.accumulated)


def leaves_out(result: AttackResult) -> bool:
    """Return whether it left out so many records that the share is not 100 % as it is written."""
    return result.leaves_out and f"{result.scored:.0%}" != "100%"


@dataclass(frozen=True)
class AfterRow:
    """One attack with the party's trained model, averaged over runs: each is turned round, where that reads better."""

    results: Sequence[AfterTraining]

    # On training and on test records that it did not know.
    train = averaged(lambda result: result.train_leak)
    test = averaged(lambda result: result.test_leak)
    # The same attack's with the model as it was before training.
    before_train = averaged(lambda result: result.baseline_train_leak)
    before_test = averaged(lambda result: result.baseline_test_leak)
    # In the attack's own orientation.
    raw_train = averaged(lambda result: result.raw_train)
    raw_test = averaged(lambda result: result.raw_test)
    # What orientation alone gives on so many records.
    chance_train = averaged(lambda result: result.train_by_chance)
    chance_test = averaged(lambda result: result.test_by_chance)

    @property
    def known(self) -> str:
        """The records that it knew, in words, in the first run."""
        return known_records(self.results[0].known_positives, self.results[0].known_negatives)

    @property
    def scored(self) -> Estimate | None:
        """Share of these records that it scored; ``None`` where it left out none in any run."""
        shares = [result.scored for result in self.results]
        return estimate(shares) if min(shares) < 1.0 else None


@dataclass(frozen=True)
class PartyRow:
    """What one passive party could learn, averaged over runs.

    Attributes:
        name: The party.
        results: One for each run.
        silent: Whether no message of training to it depends on labels.
    """

    name: str
    results: Sequence[PartyResult]
    silent: bool

    own_columns = averaged(lambda party: party.own_columns_auc)
    first_component = averaged(lambda party: party.first_component_auc)
    # ½(FPR + FNR) of the best of the auditor's attacks, and what a defense promises under its model.
    detection_error = averaged(lambda party: party.detection_error)
    promised_error = averaged(lambda party: party.measurement("detection_error_bound"))
    total = averaged(lambda party: party.label_leak.total)
    known = averaged(lambda party: party.label_leak.known)
    worst = averaged(lambda party: party.worst[0])

    @cached_property
    def attacks(self) -> dict[str, AttackRow]:
        """Attacks on messages, by shown name."""
        names = dict.fromkeys(shown_name(attack) for party in self.results for attack in party.attacks)
        found = {name: [attack_result(party, name) for party in self.results] for name in names}
        return {name: AttackRow([result for result in results if result]) for name, results in found.items()}

    @property
    def after_training(self) -> dict[str, AfterRow]:
        """Attacks with its trained model, by name."""
        found: dict[str, list[AfterTraining]] = {}
        for party in self.results:
            for attack, result in party.after_training.items():
                found.setdefault(attack, []).append(result)
        return {attack: AfterRow(results) for attack, results in found.items()}

    @property
    def features(self) -> list[FeatureLeak]:
        """Feature attacks on its columns, in the first run."""
        return self.results[0].features

    @property
    def unavailable(self) -> dict[str, str]:
        """Attacks that could not be run, with the reason."""
        return {attack: reason for party in self.results for attack, reason in party.unavailable.items()}

    @cached_property
    def beyond(self) -> Estimate | None:
        """Beyond the prediction; where some runs have canaries and others none, of the former."""
        leaks = [party.label_leak for party in self.results]
        return estimate(leak.beyond for leak in [leak for leak in leaks if leak.canaries] or leaks)

    @property
    def interval(self) -> tuple[float, float] | None:
        """The ends of the canaries' 95 % interval, of a single run with canaries."""
        leak = self.results[0].label_leak
        if len(self.results) > 1 or not leak.canaries or leak.low is None or leak.high is None:
            return None
        return leak.low, leak.high

    @property
    def matched(self) -> bool:
        """Whether no run has canaries."""
        return not any(party.label_leak.canaries for party in self.results)

    @property
    def worst_attack(self) -> str:
        """The shown name of the attack on messages that leaked most, in the run that leaked most."""
        return shown_name(max(self.results, key=lambda party: party.worst[0] or 0.0).worst[1])

    @property
    def shows_labels(self) -> bool:
        """Whether there is any of the three figures, or nothing to measure by construction."""
        return self.worst is not None or self.known is not None or self.silent


@dataclass(frozen=True)
class DefenseRow:
    """One defense's figures, averaged over runs.

    Attributes:
        label: The defense, with the seed where runs are told apart by it.
        results: The runs.
    """

    label: str
    results: Sequence[RunSummary]

    # The headline figure, and the loss, on the test records.
    test = averaged(lambda run: run.test_metric)
    loss = averaged(lambda run: run.test_loss)
    # Power of the noise, over that of the clean message and in the unit of the squared message.
    noise = averaged(lambda run: run.measurement("noise_to_signal"))
    power = averaged(lambda run: run.measurement("power"))
    step_ms = averaged(lambda run: run.step_ms)
    # Each the largest at any party.
    total = averaged(lambda run: run.total)
    known = averaged(lambda run: run.known)
    worst = averaged(lambda run: run.worst[0])
    deciding = averaged(lambda run: run.deciding)

    @property
    def runs(self) -> int:
        """Number of runs."""
        return len(self.results)

    @property
    def worst_attack(self) -> str:
        """The shown name of the attack on messages that leaked most, in the run that leaked most."""
        return shown_name(max(self.results, key=lambda run: run.worst[0] or 0.0).worst[1])

    @cached_property
    def parties(self) -> list[PartyRow]:
        """One row per passive party."""
        silent = all(run.traits.one_way for run in self.results)
        names = dict.fromkeys(name for run in self.results for name in run.parties)
        return [
            PartyRow(name, [run.parties[name] for run in self.results if name in run.parties], silent) for name in names
        ]

    def label_at(self, party: PartyRow) -> str:
        """Return the label, with the name of the party if there are several."""
        return f"{self.label}, {party.name}" if len(self.parties) > 1 else self.label


def rows_by_run(group: RunGroup) -> list[DefenseRow]:
    """Return a row for every run; the seed is named where a defense has several runs."""
    several = {defense for defense in group.defenses if len(group.of_defense(defense)) > 1}
    return [
        DefenseRow(f"{run.label}, seed {run.seed}" if run.label in several else run.label, [run]) for run in group.runs
    ]


def rows_by_defense(group: RunGroup) -> list[DefenseRow]:
    """Return a row for every defense, averaged over its runs."""
    return [DefenseRow(defense, group.of_defense(defense)) for defense in group.defenses]


def with_parties(rows: Iterable[DefenseRow]) -> list[tuple[DefenseRow, PartyRow]]:
    """Return each row with each of its parties."""
    return [(row, party) for row in rows for party in row.parties]


def known_records(positives: int, negatives: int) -> str:
    """Return in words which records an attacker was assumed to know.

    >>> known_records(1, 0), known_records(10, 10)
    ('1 positive and 0 negative records', '10 positive and 10 negative records')
    """
    return f"{positives} positive and {counted(negatives, 'negative record')}"


def counted(number: int, noun: str) -> str:
    """Return a number with its noun.

    >>> counted(1, "epoch"), counted(2, "epoch")
    ('1 epoch', '2 epochs')
    """
    return f"{number} {noun}{'' if number == 1 else 's'}"

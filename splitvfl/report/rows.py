"""Figures of runs in rows, as tables and pages show them: runs that may be compared, and averages over their seeds."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any

import scipy

from splitvfl.config.registry import built_in
from splitvfl.errors import printable
from splitvfl.leakage.after_training import AfterTraining
from splitvfl.leakage.auditing import Audit
from splitvfl.leakage.canaries import CanaryLeak, pooled
from splitvfl.leakage.column_figures import ColumnReading
from splitvfl.leakage.features import FeatureLeak
from splitvfl.leakage.in_general import KnowledgeGain
from splitvfl.leakage.leak_summary import LeakSummary, nanmax
from splitvfl.leakage.message_audit import shown_name
from splitvfl.metrics import turned_round
from splitvfl.report.party_result import PartyResult
from splitvfl.report.summary import RunSummary
from splitvfl.report.verdict import PartyVerdict, Verdict
from splitvfl.system.untrusted_files import decoded

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
        half_width: Of the 95 % t-interval of the mean; of two runs, of what lies between them; ``None`` for one.
        count: Number of runs that have it.
    """

    mean: float
    half_width: float | None
    count: int

    @property
    def is_range(self) -> bool:
        """Whether it says where two runs lie, and nothing of others: a t-interval of two is wider than any AUC."""
        return self.count == 2

    @property
    def ends(self) -> tuple[float, float]:
        """Both ends of the interval or range; of a single run, twice its figure."""
        half = self.half_width or 0.0
        return self.mean - half, self.mean + half


def estimate(values: Iterable[float | None]) -> Estimate | None:
    """Return the mean with its 95 % interval, ``t(0.975, n − 1) · s / √n``; ``None`` if all values are ``None``.

    Of two values it is their range: ``t(0.975, 1)`` is 12.7, and such an interval would leave [0, 1]. The interval
    takes the runs for independent draws of a normal distribution. Runs under several seeds on one split of the data say
    nothing about other data.

    >>> estimate([1.0, 2.0, 3.0, None]).mean
    2.0
    """
    known = [value for value in values if value is not None and not math.isnan(value)]
    if not known:
        return None
    mean = math.fsum(known) / len(known)
    if len(known) == 1:
        return Estimate(mean, None, 1)
    if len(known) == 2:
        return Estimate(mean, abs(known[0] - known[1]) / 2, 2)
    variance = math.fsum((value - mean) ** 2 for value in known) / (len(known) - 1)
    quantile = float(scipy.stats.t.ppf(0.5 + _CONFIDENCE / 2, len(known) - 1))
    return Estimate(mean, quantile * math.sqrt(variance / len(known)), len(known))


def written(value: Estimate | float | None, digits: int, *, sign: str = " ± ", large: str = ".3g") -> str:
    """Return a figure with its interval, if it has one, the range of two runs, and a dash where there is none.

    >>> written(estimate([0.5, 0.75]), 2), written(estimate([0.5]), 2)
    ('0.50–0.75', '0.50')

    Args:
        value: The figure.
        digits: Decimals.
        sign: What stands before half of the interval.
        large: The format of numbers from 1000 on: losses of a regression, say.
    """
    if value is None:
        return MISSING
    if isinstance(value, Estimate) and value.is_range:
        return "–".join(written(end, digits, large=large) for end in value.ends)
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
    def seat(self) -> str:
        """The passive party that knows of nothing but its own columns, if the runs are as it has seen them."""
        return self.runs[0].seat

    @property
    def judged(self) -> bool:
        """Whether any run has a leak AUC."""
        return any(run.worst[0] is not None for run in self.runs)

    @property
    def metric(self) -> str:
        """Name of the headline figure."""
        return self.runs[0].metric_name

    @property
    def goal(self) -> float:
        """The lowest goal of any run."""
        return min(run.goal for run in self.runs)

    @cached_property
    def labels(self) -> list[str]:
        """What each run is called: its defense, and in brackets other settings, where runs of a defense differ in them.

        Runs with one label differ in nothing but their seeds, as far as is known.
        """
        return _told_apart(self.runs)

    @property
    def defenses(self) -> list[str]:
        """The labels in order of appearance."""
        return list(dict.fromkeys(self.labels))

    def of_defense(self, defense: str) -> list[RunSummary]:
        """Return the runs of this label, one per seed."""
        return [run for run, label in zip(self.runs, self.labels, strict=True) if label == defense]


_MOST_NAMED = 3


def _told_apart(runs: Sequence[RunSummary]) -> list[str]:
    """Return a label for each run that is equal for runs of equal settings, seeds aside, and for no others."""
    kinds: dict[str, list[Settings]] = {}
    for run in runs:
        known = kinds.setdefault(run.label, [])
        if _settings_of(run) not in known:
            known.append(_settings_of(run))
    return [_label_among(run, kinds[run.label]) for run in runs]


Settings = Mapping[str, str] | None


def _settings_of(run: RunSummary) -> Settings:
    return None if run.provenance is None else run.provenance.settings


def _label_among(run: RunSummary, kinds: Sequence[Settings]) -> str:
    if len(kinds) == 1:
        return run.label
    own = _settings_of(run)
    if own is None:
        return f"{run.label} (settings not noted)"
    noted = [kind for kind in kinds if kind is not None]
    differing = [key for key in sorted(set().union(*noted)) if len({kind.get(key) for kind in noted}) > 1]
    if not differing:
        return run.label
    named = ", ".join(f"{key.rpartition('.')[2]}={_short(own.get(key))}" for key in differing[:_MOST_NAMED])
    if len(differing) > _MOST_NAMED:
        named += f", … (settings {kinds.index(own) + 1})"
    return f"{run.label} ({named})"


def _short(value: str | None) -> str:
    """Return a setting as it is named in a label: of hooks, their names.

    >>> _short('[{"name": "norm"}, {"name": "sign"}]'), _short('0.01'), _short('"mlp"'), _short(None)
    ('[norm, sign]', '0.01', 'mlp', 'none')

    Args:
        value: As JSON, as :class:`~splitvfl.report.provenance.Provenance` checks; in which what steers a terminal may
            be written with letters that do not.
    """
    if value is None:
        return "none"
    read = decoded(value.encode(), nan=True)
    if isinstance(read, list):
        names = (str(item.get("name", item)) if isinstance(item, dict) else str(item) for item in read)
        return printable(f"[{', '.join(names)}]")
    return printable(read) if isinstance(read, str) else value


def group_runs(runs: Sequence[RunSummary]) -> list[RunGroup]:
    """Return the runs grouped by data, model, exchange, epochs and batch size, in order of appearance.

    Runs that may stop early belong together, wherever they stopped. Data are compared by content, where that is known.
    """
    found: dict[tuple[str, str, str, int, str], list[RunSummary]] = {}
    for run in runs:
        identity = "" if run.provenance is None else run.provenance.data_identity
        found.setdefault((_title(run), run.metric, _length(run), run.batch_size, identity), []).append(run)
    seen = Counter(key[:-1] for key in found)
    numbers: Counter[tuple[str, str, str, int]] = Counter()
    groups = []
    for key, members in found.items():
        title, _, length, size, _ = key
        numbers[key[:-1]] += 1
        other = f", data {numbers[key[:-1]]} of {seen[key[:-1]]}" if seen[key[:-1]] > 1 else ""
        groups.append(RunGroup(title, f"{length}, batches of {size}{other}", members))
    return groups


def _title(run: RunSummary) -> str:
    exchange = f", exchange {run.exchange}" if run.traits.in_headings else ""
    seat = f", as {run.seat} has seen it" if run.seat else ""
    what = f"data {run.data}, model {run.model}" if run.data == run.model else f"{run.data}, {run.model}"
    return f"{what}{exchange}{seat}"


def _length(run: RunSummary) -> str:
    if run.planned_epochs is None:
        return counted(run.epochs, "epoch")
    return f"at most {counted(run.planned_epochs, 'epoch')}, with early stopping"


def attack_names(runs: Iterable[RunSummary]) -> list[str]:
    """Return the attacks that any run has figures of: the auditor's first, those with a place, others as they come."""
    names = dict.fromkeys(shown_name(name) for run in runs for party in run.parties.values() for name in party.attacks)
    known = {**built_in("attacks"), AUDITOR: Audit}
    return sorted(names, key=lambda name: (name != AUDITOR, getattr(known.get(name), "place", _UNPLACED)))


def furthest(party: PartyResult) -> str:
    """Return the shown name of the attack on messages that read most at a party; "" without any.

    Where one that needs no secrets of the label party reads as much, to two decimals, it is that one: the worse news.
    """
    worst, attack = party.worst
    if worst is None or shown_name(attack) != AUDITOR:
        return shown_name(attack)
    others = [
        (result.worst, name)
        for name, result in party.attacks.items()
        if result.by_messages and not math.isnan(result.worst) and shown_name(name) != AUDITOR
    ]
    own, name = max(others, default=(0.0, ""))
    return name if f"{own:.2f}" == f"{worst:.2f}" else AUDITOR


def attack_result(party: PartyResult, name: str) -> LeakSummary | None:
    """Return the figures shown under a name: for the auditor, figure by figure the worst of its attacks."""
    results = [result for attack, result in party.attacks.items() if shown_name(attack) == name]
    if len(results) < 2:
        return results[0] if results else None
    most: dict[str, Any] = {name: nanmax(*(getattr(result, name) for result in results)) for name in _LARGEST}
    counts = {name: max(getattr(result, name) for result in results) for name in ("steps", "undefined")}
    return replace(
        results[0], **most, **counts, auc=most["worst_auc"], accumulated_auc=most["worst_accumulated_auc"], scored=1.0
    )


# What is shown of several attacks: of these, figure by figure, the largest.
_SUMS = ("worst_accumulated_auc", "accumulated_top1", "accumulated_correlation")
_LARGEST = ("worst_auc", "quantile_95", "top1", "correlation", "within", *_SUMS)


@dataclass(frozen=True)
class AttackRow:
    """One attack's figures, averaged over runs: every run is turned round, where that reads better, before the mean."""

    results: Sequence[LeakSummary]

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


def leaves_out(result: LeakSummary) -> bool:
    """Return whether it left out so many records that the share is not 100 % as it is written."""
    return result.leaves_out and f"{result.scored:.0%}" != "100%"


@dataclass(frozen=True)
class AfterRow:
    """One attack with the party's trained model, averaged over runs: each is turned round, where that reads better."""

    results: Sequence[AfterTraining]

    # On training and on test records that it did not know.
    train = averaged(lambda result: result.train.worst_auc)
    test = averaged(lambda result: result.test.worst_auc)
    # The same attack's with the model as it was before training.
    before_train = averaged(lambda result: result.before_train.worst_auc)
    before_test = averaged(lambda result: result.before_test.worst_auc)
    # In the attack's own orientation.
    raw_train = averaged(lambda result: result.train.deciding[0])
    raw_test = averaged(lambda result: result.test.deciding[0])
    # What orientation alone gives on so many records.
    chance_train = averaged(lambda result: result.train.by_chance)
    chance_test = averaged(lambda result: result.test.by_chance)

    @property
    def known(self) -> str:
        """The records that it knew, in words, in the first run."""
        first = self.results[0]
        if first.known_records:
            return counted(first.known_records, "record")
        return known_records(first.known_positives, first.known_negatives)

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
        promises: Of each run, the detection error that its defenses promise; ``None`` where they promise none.
    """

    name: str
    results: Sequence[PartyResult]
    silent: bool
    promises: Sequence[float | None]

    own_columns = averaged(lambda party: party.own_columns_auc)
    first_component = averaged(lambda party: party.first_component_auc)
    # ½(FPR + FNR) of the best of the auditor's attacks.
    detection_error = averaged(lambda party: party.detection_error)
    total = averaged(lambda party: party.label_leak.total)
    known = averaged(lambda party: party.label_leak.known)
    # The mean of each run's worst attack, whichever that was.
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
    def promised_error(self) -> Estimate | None:
        """What its defenses promise of the detection error, each under its own model."""
        return estimate(self.promises)

    @property
    def features(self) -> list[FeatureLeak]:
        """Feature attacks on its columns, in the first run."""
        return self.results[0].features

    @property
    def readings(self) -> list[ColumnReading]:
        """What attacks in the label party's seat read of its columns, in the first run."""
        return self.results[0].readings

    @cached_property
    def read_shares(self) -> dict[str, tuple[Estimate | None, ...]]:
        """What attacks read of its columns in training or from scores, averaged over runs, by their names.

        Share of variance at most from messages, from the label party's own columns, and from both; share of records of
        which every column is recovered by the best of them; and columns told at most.
        """
        found: dict[str, list[ColumnReading]] = {}
        for party in self.results:
            for reading in party.readings:
                if reading.of_scores or not reading.standing_still:
                    found.setdefault(reading.attack, []).append(reading)
        return {
            name: (
                estimate(one.most for one in readings),
                estimate(one.without_messages for one in readings),
                estimate(one.joint for one in readings),
                estimate(one.exact_total for one in readings),
                estimate(one.most_told for one in readings),
            )
            for name, readings in found.items()
        }

    @property
    def unavailable(self) -> dict[str, str]:
        """Attacks that could not be run, with the reason."""
        return {attack: reason for party in self.results for attack, reason in party.unavailable.items()}

    @cached_property
    def excess(self) -> CanaryLeak | None:
        """The excess leakage of all runs together; ``None`` where a run has no canaries."""
        if len(self.results) == 1:
            return self.results[0].excess or self.results[0].worst_canaries
        shared = [name for name in self.results[0].canaries if all(map(partial(_reads_canaries, name), self.results))]
        return pooled([[party.canaries[name] for party in self.results] for name in shared])

    @cached_property
    def beyond(self) -> Estimate | None:
        """The excess leakage of all runs together."""
        return None if self.excess is None else Estimate(self.excess.auc, None, 1)

    @property
    def interval(self) -> tuple[float, float] | None:
        """The ends of the 95 % interval of the excess leakage."""
        return None if self.excess is None else (self.excess.low, self.excess.high)

    def together(self, goal: float) -> PartyResult:
        """Return what the verdict on all runs together follows from: the pooled excess, and what every run has.

        A guarantee counts as far as it holds in all of them, and an attack without canaries if it decides in all.

        Args:
            goal: Of the verdict.
        """
        first = self.results[0]
        if len(self.results) == 1:
            return first
        bounds = [party.guarantee for party in self.results]
        attacks = [party.label_free for party in self.results]
        gains = [party.knowledge_gain for party in self.results if party.knowledge_gain is not None]
        return replace(
            first,
            excess=self.excess,
            randomised=None,
            worst_canaries=None,
            guarantee=min(bounds, key=lambda bound: (0, 0, 0.0) if bound is None else (1, bound.of_run, -bound.auc)),
            label_free=min(attacks, key=lambda attack: attack is not None and attack.decides(goal)),
            total=None if self.total is None else self.total.mean,
            knowledge_gain=KnowledgeGain.pooled(gains) if len(gains) == len(self.results) else None,
        )

    @property
    def worst_attack(self) -> str:
        """The shown name of the attack on messages that leaked most, in the run that leaked most."""
        return furthest(max(self.results, key=lambda party: party.worst[0] or 0.0))

    @property
    def shows_labels(self) -> bool:
        """Whether there is any of the three figures, or nothing to measure by construction."""
        return self.worst is not None or self.known is not None or self.silent


def _reads_canaries(attack: str, party: PartyResult) -> bool:
    """Return whether an attack on messages has figures of a party's canaries."""
    return attack in party.canaries and (attack not in party.attacks or party.attacks[attack].by_messages)


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
    # Means over runs of the largest at any party, whichever attack got it.
    total = averaged(lambda run: run.total)
    known = averaged(lambda run: run.known)
    worst = averaged(lambda run: run.worst[0])

    @cached_property
    def verdict(self) -> dict[str, PartyVerdict]:
        """What is concluded of all runs together, by passive party: excesses are pooled before they are judged."""
        # What one of them reveals beside messages, or can be solved, counts; the strictest goal does.
        first = next((run for run in self.results if not run.traits.one_way), self.results[0])
        goal = min(run.goal for run in self.results)
        found = replace(
            first,
            goal=goal,
            label_releases=list(dict.fromkeys(name for run in self.results for name in run.label_releases)),
            solvable=[one for run in self.results for one in run.solvable],
            columns_solvable=[one for run in self.results for one in run.columns_solvable],
            parties={row.name: row.together(goal) for row in self.parties},
        ).verdict
        for run in self.results:
            for name, one in run.verdict.items():
                both = found[name].labels
                if one.labels is None or both is None:
                    continue
                if one.labels.row == "contradicted":  # a bug in one run is a bug
                    found[name] = replace(found[name], labels=one.labels)
                # Few seeds hardly tell how much they differ, so that the interval of their mean is too narrow.
                elif both.row == "excess-below" and one.labels.excess is not None and one.labels.excess.value > goal:
                    seeds = replace(both, state="inconclusive", row="excess-undecided", decided_by="more seeds")
                    found[name] = replace(found[name], labels=seeds)
        return found

    @property
    def runs(self) -> int:
        """Number of runs."""
        return len(self.results)

    @property
    def undefended(self) -> bool:
        """Whether nothing was done about what flows back in training; with or without a private top."""
        return all(run.undefended for run in self.results)

    @property
    def private_top(self) -> bool:
        """Whether a second top, which sends nothing, predicts."""
        return all(run.private_top for run in self.results)

    @property
    def worst_attack(self) -> str:
        """The shown name of the attack on messages that leaked most, in the run that leaked most."""
        run = max(self.results, key=lambda run: run.worst[0] or 0.0)
        return furthest(run.parties[run.worst[2]]) if run.worst[2] else ""

    @cached_property
    def parties(self) -> list[PartyRow]:
        """One row per passive party."""
        silent = all(run.traits.one_way for run in self.results)
        names = dict.fromkeys(name for run in self.results for name in run.parties)
        return [self._party(name, silent=silent) for name in names]

    @cached_property
    def label_verdicts(self) -> dict[str, Verdict]:
        """What is concluded about labels from all runs together, by partner."""
        return {name: one.labels for name, one in self.verdict.items() if one.labels is not None}

    @property
    def excess(self) -> Estimate | None:
        """The pooled excess with its interval, at the partner to whom most leaks; ``None`` without canaries."""
        found = [one.excess for one in self.label_verdicts.values() if one.excess is not None]
        most = max(found, key=lambda one: one.value, default=None)
        return None if most is None else Estimate(most.value, (most.high - most.low) / 2, self.runs)

    def _party(self, name: str, *, silent: bool) -> PartyRow:
        runs = [run for run in self.results if name in run.parties]
        promises = [run.promised_error(name) for run in runs]
        return PartyRow(name, [run.parties[name] for run in runs], silent, promises)

    def label_at(self, party: PartyRow) -> str:
        """Return the label, with the name of the party if there are several."""
        return f"{self.label}, {party.name}" if len(self.parties) > 1 else self.label


def rows_by_run(group: RunGroup) -> list[DefenseRow]:
    """Return a row for every run; the seed is named where a defense has several runs."""
    several = Counter(group.labels)
    return [
        DefenseRow(f"{label}, seed {run.seed}" if several[label] > 1 else label, [run])
        for run, label in zip(group.runs, group.labels, strict=True)
    ]


def rows_by_defense(group: RunGroup) -> list[DefenseRow]:
    """Return a row for every defense, averaged over its runs."""
    return [DefenseRow(defense, group.of_defense(defense)) for defense in group.defenses]


@dataclass(frozen=True)
class Undefended:
    """What a defense is compared with: the same without any.

    Attributes:
        test: Headline figure on the test records.
        words: How it is called, after "without".
    """

    test: Estimate
    words: str

    @classmethod
    def beside(cls, row: DefenseRow, runs: Iterable[RunSummary]) -> Undefended | None:
        """Return the runs to compare a row with: with a private top if it has one, where there are any such."""
        plain = [run for run in runs if run.undefended]
        like = [run for run in plain if run.private_top == row.private_top]
        test = estimate(run.test_metric for run in like or plain)
        if test is None:
            return None
        unlike = ", but with a private top" if not row.private_top else " or private top"
        return cls(test, f"defense{'' if like else unlike}")


def with_parties(rows: Iterable[DefenseRow]) -> list[tuple[DefenseRow, PartyRow]]:
    """Return each row with each of its parties."""
    return [(row, party) for row in rows for party in row.parties]


def known_records(positives: int, negatives: int, task: str = "binary") -> str:
    """Return in words which records an attacker was assumed to know.

    >>> known_records(1, 0), known_records(10, 10)
    ('1 positive and 0 negative records', '10 positive and 10 negative records')
    >>> known_records(10, 10, "multiclass"), known_records(10, 10, "regression")
    ('10 records of every class', '20 records')
    """
    if task == "multiclass":
        return f"{counted(positives, 'record')} of every class"
    if task == "regression":
        return counted(positives + negatives, "record")
    return f"{positives} positive and {counted(negatives, 'negative record')}"


def counted(number: int, noun: str) -> str:
    """Return a number with its noun.

    >>> counted(1, "epoch"), counted(2, "epoch")
    ('1 epoch', '2 epochs')
    """
    return f"{number} {noun}{'' if number == 1 else 's'}"

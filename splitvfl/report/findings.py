"""What runs say, ready to be shown: grouped, averaged over seeds, and in plain words.

Three figures come first (:func:`headline`). Which one decides whether a run is below the goal: with canaries the leak
beyond the prediction, and then with the whole of its interval; else the worst attack on messages. Below the goal is
still not hidden, where much more is read in all than is known without messages (:func:`verdict` says so).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from splitvfl.config.registry import built_in, installed
from splitvfl.errors import ArgumentError
from splitvfl.hooks import weaknesses_of
from splitvfl.leakage.after_training import AfterTraining
from splitvfl.leakage.auditing import AUDITORS, Audit
from splitvfl.leakage.canaries import CanaryLeak
from splitvfl.leakage.features import FeatureLeak
from splitvfl.leakage.label_leak import LabelLeak, largest
from splitvfl.metrics import oriented
from splitvfl.report.summary import AttackResult, PartyResult, RunSummary

GOAL = 0.6
"""Below this leak AUC a run counts as protected, unless its user says otherwise."""

VISIBLE = 0.9
PARTLY_VISIBLE = 0.7

MATCHING = "up to 0.11 (135,000 records) and 0.36 (455 records, 4 epochs)"
"""By how much the matched figure exceeded what a theorem allows, ``asymmetric-response`` at .2 to .4."""

EXCESS = 0.05
"""By so much total may exceed what is known without messages, before labels are called not hidden."""

AUDITOR = Audit.name
"""One name for the auditor's attacks, of which the best one counts."""

METRIC_NAMES = {"auc": "AUC", "accuracy": "accuracy", "r2": "R²"}

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
        return METRIC_NAMES.get(self.runs[0].metric, self.runs[0].metric)

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


def stopping_note(run: RunSummary) -> str:
    """Return in a sentence where early stopping ended a run, and what it kept; nothing if the run was without it."""
    if run.planned_epochs is None:
        return ""
    where = f"{run.epochs} of {counted(run.planned_epochs, 'epoch')}"
    if run.kept_epoch is None:
        return f"Trained {where}; no evaluation gave a figure to judge by, so the last weights were kept."
    figure = f"{METRIC_NAMES.get(run.metric, run.metric)} of {run.validation_metric:.3f}"
    return f"Trained {where} and kept the weights of epoch {run.kept_epoch}, with a validation {figure}."


def sending_note(run: RunSummary) -> str:
    """Return in a sentence how good the top was whose gradients crossed, where another one predicts; else nothing."""
    if run.sending_metric is None:
        return ""
    return f"The top that sends has a test {METRIC_NAMES.get(run.metric, run.metric)} of {run.sending_metric:.3f}."


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

    def worse(figure: Callable[[AttackResult], float | None]) -> float | None:
        return max((value for value in map(figure, results) if value is not None), default=None)

    return AttackResult(
        auc=worse(lambda result: result.worst_auc),
        worst_auc=worse(lambda result: result.worst_auc),
        quantile_95=worse(lambda result: result.quantile_95),
        accumulated_auc=worse(lambda result: result.worst_accumulated_auc),
        worst_accumulated_auc=worse(lambda result: result.worst_accumulated_auc),
        steps=max(result.steps for result in results),
        undefined=max(result.undefined for result in results),
        positives=results[0].positives,
        negatives=results[0].negatives,
    )


@dataclass(frozen=True)
class AttackRow:
    """One attack's figures, averaged over runs: every run is turned round, where that reads better, before the mean.

    Attributes:
        step: Leak AUC of a step, each run in its better orientation; records that it left out tie, in the middle.
        accumulated: Leak AUC of scores added up over the run, likewise.
        quantile_95: 95 % quantile over steps.
        worst: The larger of the first two in each run.
        raw_step: Leak AUC of a step in the attack's own orientation.
        raw_accumulated: Likewise of the scores added up.
        undefined: Most batches without an AUC in any run.
        scored: Share of the records that it scored; ``None`` where it left out none in any run.
        scored_step: Leak AUC of a step among these records only, each run in its better orientation.
        scored_accumulated: Likewise of the scores added up.
    """

    step: Estimate | None
    accumulated: Estimate | None
    quantile_95: Estimate | None
    worst: Estimate | None
    raw_step: Estimate | None
    raw_accumulated: Estimate | None
    undefined: int
    scored: Estimate | None = None
    scored_step: Estimate | None = None
    scored_accumulated: Estimate | None = None

    @property
    def turned(self) -> bool:
        """Whether any figure is not the raw one: the attack reads better the other way round."""
        return (self.raw_step, self.raw_accumulated) != (self.step, self.accumulated)

    @classmethod
    def of(cls, results: Sequence[AttackResult]) -> AttackRow:
        """Return the averages over runs."""
        return cls(
            step=estimate(result.worst_auc for result in results),
            accumulated=estimate(result.worst_accumulated_auc for result in results),
            quantile_95=estimate(result.quantile_95 for result in results),
            worst=estimate(result.worst for result in results),
            raw_step=estimate(result.deciding[0] for result in results),
            raw_accumulated=estimate(result.deciding[1] for result in results),
            undefined=max(result.undefined for result in results),
            scored=estimate(result.scored for result in results) if any(map(_leaves_out, results)) else None,
            scored_step=estimate(_oriented(result.auc) for result in results),
            scored_accumulated=estimate(_oriented(result.accumulated_auc) for result in results),
        )


def _leaves_out(result: AttackResult) -> bool:
    """Return whether it left out so many records that the share is not 100 % as it is written."""
    return result.leaves_out and f"{result.scored:.0%}" != "100%"


def _oriented(auc: float | None) -> float | None:
    return None if auc is None else oriented(auc)


@dataclass(frozen=True)
class AfterRow:
    """One attack with the party's trained model, averaged over runs: each is turned round, where that reads better.

    Attributes:
        train: Leak AUC on training records that it did not know.
        test: Leak AUC on test records.
        before_train: The same attack's on training records, with the model as it was before training.
        before_test: Likewise on test records.
        known: The records that it knew, in words, in the first run.
        raw_train: On training records, in the attack's own orientation.
        raw_test: Likewise on test records.
        scored: Share of these records that it scored; ``None`` where it left out none in any run.
        chance_train: What orientation alone gives on so many training records.
        chance_test: Likewise on test records.
    """

    train: Estimate | None
    test: Estimate | None
    before_train: Estimate | None
    before_test: Estimate | None
    known: str
    raw_train: Estimate | None
    raw_test: Estimate | None
    scored: Estimate | None
    chance_train: Estimate | None
    chance_test: Estimate | None

    @property
    def turned(self) -> bool:
        """Whether any figure is not the raw one: the attack reads better the other way round."""
        return (self.raw_train, self.raw_test) != (self.train, self.test)

    @classmethod
    def of(cls, results: Sequence[AfterTraining]) -> AfterRow:
        """Return the averages over runs."""
        return cls(
            train=estimate(result.train_leak for result in results),
            test=estimate(result.test_leak for result in results),
            before_train=estimate(result.baseline_train_leak for result in results),
            before_test=estimate(result.baseline_test_leak for result in results),
            known=known_records(results[0].known_positives, results[0].known_negatives),
            raw_train=estimate(_of_all(result.train_auc, result.train_tied_auc) for result in results),
            raw_test=estimate(_of_all(result.test_auc, result.test_tied_auc) for result in results),
            scored=estimate(result.scored for result in results) if min(one.scored for one in results) < 1.0 else None,
            chance_train=estimate(result.train_by_chance for result in results),
            chance_test=estimate(result.test_by_chance for result in results),
        )


def _of_all(auc: float | None, tied: float | None) -> float | None:
    return auc if tied is None else tied


@dataclass(frozen=True)
class PartyRow:
    """What one passive party could learn, averaged over runs.

    Attributes:
        name: The party.
        attacks: By shown name.
        own_columns: AUC of the better model on its own columns.
        detection_error: Measured ½(FPR + FNR) of the better of the auditor's attacks.
        promised_error: Detection error that a defense promises under its model.
        features: Feature attacks on its columns, in the first run.
        unavailable: Attacks that could not be run, with the reason.
        after_training: Attacks with its trained model, by name.
        total: Messages and predictions together.
        beyond: Beyond the prediction; where some runs have canaries and others none, of the former.
        interval: The ends of the canaries' 95 % interval, of a single run with canaries.
        matched: Whether no run has canaries.
        known: Known without messages.
        first_component: The first principal component of its columns, of the two figures of which that is the larger.
        worst: The largest leak AUC of any attack on messages.
        worst_attack: The shown name of that attack in the run that leaked most.
        silent: Whether no message of training to it depends on labels.
    """

    name: str
    attacks: dict[str, AttackRow]
    own_columns: Estimate | None
    detection_error: Estimate | None
    promised_error: Estimate | None
    features: list[FeatureLeak]
    unavailable: dict[str, str]
    after_training: dict[str, AfterRow]
    total: Estimate | None
    beyond: Estimate | None
    interval: tuple[float, float] | None
    matched: bool
    known: Estimate | None
    first_component: Estimate | None
    worst: Estimate | None
    worst_attack: str
    silent: bool

    @classmethod
    def of(cls, name: str, parties: Sequence[PartyResult], attacks: Sequence[str], *, silent: bool = False) -> PartyRow:
        """Return the averages over runs."""
        leaks = [party.label_leak for party in parties]
        sure = [leak for leak in leaks if leak.canaries]
        alone = sure[0] if len(leaks) == len(sure) == 1 else None
        found = {attack: [attack_result(party, attack) for party in parties] for attack in attacks}
        known = {attack: [result for result in results if result is not None] for attack, results in found.items()}
        late = dict.fromkeys(attack for party in parties for attack in party.after_training)
        return cls(
            name=name,
            attacks={attack: AttackRow.of(results) for attack, results in known.items() if results},
            own_columns=estimate(party.own_columns_auc for party in parties),
            detection_error=estimate(party.detection_error for party in parties),
            promised_error=estimate(party.measurement("detection_error_bound") for party in parties),
            features=parties[0].features,
            unavailable={attack: reason for party in parties for attack, reason in party.unavailable.items()},
            after_training={
                attack: AfterRow.of(
                    [party.after_training[attack] for party in parties if attack in party.after_training]
                )
                for attack in late
            },
            total=estimate(leak.total for leak in leaks),
            beyond=estimate(leak.beyond for leak in sure or leaks),
            interval=None if alone is None or alone.low is None or alone.high is None else (alone.low, alone.high),
            matched=not sure,
            known=estimate(leak.known for leak in leaks),
            first_component=estimate(party.first_component_auc for party in parties),
            worst=estimate(party.worst[0] for party in parties),
            worst_attack=shown_name(max(parties, key=lambda party: party.worst[0] or 0.0).worst[1]),
            silent=silent,
        )


@dataclass(frozen=True)
class DefenseRow:
    """One defense's figures, averaged over runs.

    Attributes:
        label: The defense, with the seed where runs are told apart by it.
        runs: Number of runs.
        test: Headline figure on the test records.
        loss: Loss on the test records.
        noise: Noise power over the clean message's power; the largest of all parties.
        power: Noise power in the unit of the squared message; the largest of all parties.
        step_ms: Time of a step.
        worst: Largest leak AUC of any attack at any party.
        worst_attack: The shown name of that attack in the run that leaked most.
        parties: One row per passive party.
        total: Messages and predictions together, the largest at any party.
        beyond: Beyond the prediction, likewise.
        known: Known without messages, likewise.
        deciding: The figure that decides whether a run is below the goal (:func:`deciding`).
    """

    label: str
    runs: int
    test: Estimate | None
    loss: Estimate | None
    noise: Estimate | None
    power: Estimate | None
    step_ms: Estimate | None
    worst: Estimate | None
    worst_attack: str
    parties: list[PartyRow]
    total: Estimate | None
    beyond: Estimate | None
    known: Estimate | None
    deciding: Estimate | None

    @classmethod
    def of(cls, label: str, runs: Sequence[RunSummary]) -> DefenseRow:
        """Return the averages over runs."""
        attacks = attack_names(runs)
        names = dict.fromkeys(name for run in runs for name in run.parties)
        return cls(
            label=label,
            runs=len(runs),
            test=estimate(run.test_metric for run in runs),
            loss=estimate(run.test_loss for run in runs),
            noise=estimate(_largest(run, "noise_to_signal") for run in runs),
            power=estimate(_largest(run, "power") for run in runs),
            step_ms=estimate(run.step_ms for run in runs),
            worst=estimate(run.worst[0] for run in runs),
            worst_attack=shown_name(max(runs, key=lambda run: run.worst[0] or 0.0).worst[1]),
            parties=[
                PartyRow.of(
                    name,
                    [run.parties[name] for run in runs if name in run.parties],
                    attacks,
                    silent=all(run.traits.one_way for run in runs),
                )
                for name in names
            ],
            total=estimate(run.total for run in runs),
            beyond=estimate(run.beyond for run in runs),
            known=estimate(run.known for run in runs),
            deciding=estimate(deciding(run) for run in runs),
        )


def shows_labels(party: PartyRow) -> bool:
    """Return whether there is any of the three figures of a party, or nothing to measure by construction."""
    return party.worst is not None or party.known is not None or party.silent


def rows_by_run(group: RunGroup) -> list[DefenseRow]:
    """Return a row for every run; the seed is named where a defense has several runs."""
    several = {defense for defense in group.defenses if len(group.of_defense(defense)) > 1}
    return [
        DefenseRow.of(f"{run.label}, seed {run.seed}" if run.label in several else run.label, [run])
        for run in group.runs
    ]


def rows_by_defense(group: RunGroup) -> list[DefenseRow]:
    """Return a row for every defense, averaged over its runs."""
    return [DefenseRow.of(defense, group.of_defense(defense)) for defense in group.defenses]


def deciding(run: RunSummary) -> float | None:
    """Return the figure that decides whether a run is below the goal; ``None`` if it was not judged.

    With canaries that is the leak beyond the prediction; without, the largest leak AUC of any attack on messages.
    """
    return run.worst[0] if run.canaries is None else run.canaries.auc


def below(run: RunSummary, goal: float = GOAL) -> bool:
    """Return whether a run was judged and is below the goal: with canaries, the upper end of their interval."""
    decides = deciding(run) if run.canaries is None else run.canaries.high
    return decides is not None and decides < goal


def headline(run: RunSummary) -> str:
    """Return what is to be read first: leak beyond the prediction, total, and what is known without messages.

    A sentence for every passive party; nothing for a task in which labels are not judged, or without any figure.
    """
    if run.task != "binary":
        return ""
    return " ".join(filter(None, (_three(run, name, party) for name, party in run.parties.items())))


def _three(run: RunSummary, name: str, party: PartyResult) -> str:
    leak = party.label_leak
    where = f"Labels, {name}:" if len(run.parties) > 1 else "Labels:"
    if run.traits.one_way:
        return f"{where} no message of training depends on them; {_known(name, leak)}."
    if not party.attacks:
        return ""
    if leak.total is None:
        why = "" if any(shown_name(attack) == AUDITOR for attack in party.attacks) else ", as no auditor watched"
        return f"{where} beyond the prediction and in all not measured{why}; {_known(name, leak)}."
    return f"{where} {_beyond(leak)} beyond the prediction, {figure(leak.total)} in all; {_known(name, leak)}."


def _beyond(leak: LabelLeak) -> str:
    if leak.beyond is None:
        return "not measured"
    if leak.low is None or leak.high is None:
        return f"{figure(leak.beyond)} (matched)"
    return f"{figure(leak.beyond)} ({figure(leak.low)} to {figure(leak.high)})"


def _known(name: str, leak: LabelLeak) -> str:
    if leak.known is None:
        return f"what the columns of {name} tell without messages is not known"
    if leak.labelled:
        return f"{name}'s own columns alone read {figure(leak.known)}"
    return f"the first principal component of {name}'s columns reads {figure(leak.known)} without any label"


def label_notes(runs: Sequence[RunSummary]) -> list[str]:
    """Return in sentences how the three figures were come by, and what is wrong with the matched one; each once."""
    notes = []
    counts = sorted({run.canaries.positives + run.canaries.negatives for run in runs if run.canaries is not None})
    if counts:
        many = " or ".join(f"{count:,}" for count in counts)
        notes.append(
            f"Beyond the prediction is the auditor's AUC among {many} canaries, with a 95 % interval; the test figure "
            "is that of a model trained on their coin tosses too."
        )
    matched = [
        party.label_leak
        for run in runs
        if run.canaries is None
        for party in run.parties.values()
        if party.label_leak.beyond is not None
    ]
    if matched:
        notes.append(
            "Matched: without canaries, beyond the prediction is the AUC between records of equal final prediction, "
            f"which leaves prediction in: it read {MATCHING} too high. audit: {{canaries: 300}} needs no matching."
        )
    return notes


def run_notes(runs: Iterable[RunSummary]) -> list[str]:
    """Return what is to be known beside the figures of runs, each once."""
    return list(dict.fromkeys(note for run in runs for note in run.notes))


def chance_note(runs: Iterable[RunSummary]) -> str:
    """Return in a sentence what orientation alone gives on as few records as attacks were judged by; or nothing.

    Of several runs and attacks it speaks of those with the fewest records.
    """
    found = {
        (result.by_chance, result.positives + result.negatives, result.positives)
        for run in runs
        for party in run.parties.values()
        for result in party.attacks.values()
        if result.by_chance is not None
    }
    if not found:
        return ""
    chance, records, positives = max(found)
    return (
        f"By chance, an attack that knows nothing is expected to get {figure(chance)} on as many records "
        f"({records:,}, of them {positives:,} positive), as it is turned round where that reads better."
    )


def known_note(runs: Iterable[RunSummary]) -> str:
    """Return in a sentence which records attacks that need some were given; or nothing if no attack was run."""
    given = dict.fromkeys(
        known_records(run.known_positives, run.known_negatives)
        for run in runs
        if any(party.attacks or party.after_training for party in run.parties.values())
    )
    if not given:
        return ""
    return f"Attacks that need known records were told of {' or '.join(given)}, and are not judged by them."


def unavailable_notes(rows: Sequence[DefenseRow]) -> list[str]:
    """Return a sentence for every attack that could not be run at a party, once for all defenses."""
    missing = {
        f"{attack} could not be run at {party.name}: {reason}": None
        for row in rows
        for party in row.parties
        for attack, reason in party.unavailable.items()
    }
    return list(missing)


def leakiest(runs: Sequence[RunSummary]) -> RunSummary:
    """Return the run that leaked most, by the figure that decides; the first one if nothing was judged."""
    return max(runs, key=lambda run: deciding(run) or 0.0)


def _largest(run: RunSummary, measurement: str) -> float | None:
    values = [party.measurement(measurement) for party in run.parties.values()]
    return max((value for value in values if value is not None), default=None)


def verdict(run: RunSummary, goal: float = GOAL) -> str:
    """Return what a run showed, in sentences that anyone can act on; :func:`headline` is to be shown before them.

    It speaks of the attacks that were run, and claims nothing about others.

    Args:
        run: The run.
        goal: Leak AUC that every attack should stay below, in (0.5, 1].

    Raises:
        ArgumentError: If the goal is outside its range.
    """
    return " ".join(filter(None, [leak_verdict(run, goal), _own_columns(run)]))


def leak_verdict(run: RunSummary, goal: float = GOAL) -> str:
    """Return what the messages of a run gave away, as :func:`verdict` without the partner's own columns.

    Args:
        run: The run.
        goal: As for :func:`verdict`.

    Raises:
        ArgumentError: If the goal is outside its range.
    """
    if not 0.5 < goal <= 1.0:
        raise ArgumentError(f"goal must be in (0.5, 1], got {goal}")
    worst = run.worst[0]
    if worst is None:
        sentences = [_nothing_measured(run)]
    elif run.canaries is not None:
        sentences = [*_by_canaries(run, run.canaries, goal), *_weaknesses(run, goal), *_limits(run)]
    elif worst >= goal:
        sentences = [*_readable(run, goal), *_weaknesses(run, goal)]
    else:
        sentences = _unread(run, goal)
    others = [*_left_out(run, goal), *_columns_recovered(run), *_learned(run, goal)]
    return " ".join(sentence for sentence in [*sentences, *others] if sentence)


def _nothing_measured(run: RunSummary) -> str:
    if run.traits.one_way:  # of any task
        return (
            "Nothing that depends on labels was sent to a partner in training, so there was no message to read them "
            "from. Scores that are published later tell of labels, as any prediction does; what the activations tell "
            "of a partner's columns was not measured."
        )
    if run.task != "binary":
        return f"Label attacks are judged on binary labels and this task is {run.task}: what leaks was not measured."
    if any(party.attacks for party in run.parties.values()):
        return "No batch held both classes, so no attack could be judged: what leaks is not known."
    return "No label attack watched this run: what leaks is not known."


def _readable(run: RunSummary, goal: float) -> list[str]:
    worst, _, party = run.worst
    assert worst is not None
    own, attack, own_party = _partners_best(run)
    how, reads = ("visible", "reads") if worst >= VISIBLE else ("partly visible", "reads part of")
    aim = f"goal below {goal:.2f}"
    # An attack that needs no secrets of the label party is the worse news, also where it is worse in the third digit.
    if own is not None and figure(own) == figure(worst):
        return [
            f"The labels are {how} to {_partner(run, own_party)}: the {attack} attack {reads} them "
            f"(leak AUC {figure(own)}, {aim})."
        ]
    sentences = [
        f"The labels are {how} in what {_partner(run, party)} receives: the auditor's attack, which also knows the "
        f"clean gradients, {reads} them (leak AUC {figure(worst)}, {aim})."
    ]
    if own is not None:
        where = "" if own_party == party else f", in what {_partner(run, own_party)} receives"
        sentences.append(f"Of the attacks that need no such knowledge, {attack} got furthest ({figure(own)}){where}.")
    return sentences


def _unread(run: RunSummary, goal: float) -> list[str]:
    worst, attack, _ = run.worst
    assert worst is not None
    names = attack_names([run])
    strongest = attack_phrase(attack)
    digits = 2 if round(worst, 2) < goal else 4
    several = f"Every attack stayed below the goal: the strongest of {len(names)}"
    sentences = [
        f"{several if len(names) > 1 else 'The only attack that was run'}, {strongest}, got a leak AUC of "
        f"{worst:.{digits}f} (goal below {goal:.2f}).",
        _not_hidden(run, goal),
        "That is what was found in this run, and no proof that nothing else leaks.",
    ]
    return [*sentences, *_limits(run)]


def _limits(run: RunSummary) -> list[str]:
    sentences = [] if AUDITOR in attack_names([run]) else ["The auditor's attack was not run."]
    missing = sorted({name for party in run.parties.values() for name in party.unavailable})
    return [*sentences, f"Could not be run: {', '.join(missing)}."] if missing else sentences


def _by_canaries(run: RunSummary, found: CanaryLeak, goal: float) -> list[str]:
    """Return what canaries say against the goal, and what is read with the prediction."""
    auc, goal_is = found.auc, f"goal below {goal:.2f}"
    count = f"{found.positives + found.negatives:,} canaries"
    measured = f"an AUC of {figure(auc)} (95 %: {figure(found.low)} to {figure(found.high)}, {goal_is})"
    if auc >= goal:
        how = "visible" if auc >= VISIBLE else "partly visible"
        sentences = [
            f"The labels are {how} beyond what the model predicts: the auditor reads {count} with {measured}.",
            "As the interval begins below the goal, more canaries might say otherwise." if found.low < goal else "",
        ]
    elif not below(run, goal):
        sentences = [
            f"Beyond what the model predicts, the auditor reads {count} with {measured}: too few canaries to call it "
            "below the goal."
        ]
    else:
        sentences = [
            f"Beyond what the model predicts, the leak stayed below the goal: the auditor reads {count} with "
            f"{measured}.",
            _not_hidden(run, goal),
            "That is what was found in this run, and no proof that nothing else leaks.",
        ]
    worst, attack, party = run.worst
    assert worst is not None
    sentences.append(
        f"With what messages tell of the prediction, {attack_phrase(attack)} got furthest ({figure(worst)})"
        f"{f' at {party}' if len(run.parties) > 1 else ''}."
    )
    return [*sentences, *_better_than_the_auditor(run, found)]


def _better_than_the_auditor(run: RunSummary, found: CanaryLeak) -> list[str]:
    """Return a sentence on the attack that read the canaries better than the auditor, if chance does not explain it."""
    others = [
        (leak.low, leak.auc, name)
        for party in run.parties.values()
        for name, leak in party.canaries.items()
        if shown_name(name) != AUDITOR
    ]
    low, auc, name = max(others, default=(0.0, 0.0, ""))
    if low <= found.auc:
        return []
    return [f"Of the canaries {attack_phrase(name)} read more than the auditor ({figure(auc)}): take its figure."]


def _not_hidden(run: RunSummary, goal: float) -> str:
    """Return a sentence where a run is below the goal and yet much is read in all; or ""."""
    found = [
        (leak.total, leak.excess, name)
        for name, party in run.parties.items()
        for leak in [party.label_leak]
        if leak.total is not None and leak.total >= goal and (leak.excess is None or leak.excess > EXCESS)
    ]
    if not found:
        return ""
    total, excess, name = max(found, key=lambda entry: entry[0])
    more = (
        f"what {_partner(run, name)} knows without messages was not measured"
        if excess is None
        else f"{figure(excess)} more than {_partner(run, name)} knows without messages"
    )
    return f"The labels are not hidden by that: with the model's predictions {figure(total)} is read in all, {more}."


def _weaknesses(run: RunSummary, goal: float) -> list[str]:
    """Return what the run's defenses say of attacks that read labels behind them, each sentence once."""
    reading = {
        name.partition("@")[0]
        for party in run.parties.values()
        for name, result in party.attacks.items()
        if (result.worst or 0.0) >= goal
    }
    known = installed("defenses")
    used = [known[name] for name in (label.partition("(")[0] for label in run.defenses) if name in known]
    said = [text for defense in used for attack, text in weaknesses_of(defense).items() if attack in reading]
    return list(dict.fromkeys(said))


def _own_columns(run: RunSummary) -> str:
    """Return a sentence about what a partner predicts from its own columns, where that is more than leaks; or ""."""
    worst = run.worst[0]
    known = [(party.own_columns_auc, name) for name, party in run.parties.items() if party.own_columns_auc is not None]
    if worst is None or not known or max(known)[0] <= worst:
        return ""
    own, name = max(known)
    return (
        f"From its own columns alone {_partner(run, name)} could predict them better (AUC {figure(own)}, given labels "
        "of other records), which no defense of the messages prevents."
    )


def _left_out(run: RunSummary, goal: float) -> list[str]:
    """Return a sentence for every attack that reads well where it dares to, and leaves out the rest."""
    return [
        f"{_capital(attack_phrase(name))} scores {result.scored:.0%} of the records only, and among these its leak AUC "
        f"is {figure(own)}; counted as ties, those that it leaves out bring it to {figure(result.worst)}."
        for party in run.parties.values()
        for name, result in party.attacks.items()
        if _leaves_out(result) and result.worst is not None
        for own in [max(_oriented(result.auc) or 0.5, _oriented(result.accumulated_auc) or 0.5)]
        if own >= goal and figure(own) != figure(result.worst)
    ]


def _capital(words: str) -> str:
    return words[:1].upper() + words[1:]


def _columns_recovered(run: RunSummary) -> list[str]:
    return [
        f"The published scores give away columns of {name}: the {leak.attack} attack estimates them with a mean "
        f"squared error of {leak.mse:.3g}, against {leak.blind_mse:.3g} for guessing every column's mean."
        for name, party in run.parties.items()
        for leak in party.features
        if leak.mse < leak.blind_mse
    ]


def _learned(run: RunSummary, goal: float) -> list[str]:
    return [
        f"After training, {_partner(run, name)} {'can' if found.train_leak >= goal else 'could hardly'} read labels "
        f"with its own half of the model: given the labels of "
        f"{known_records(found.known_positives, found.known_negatives)}, {attack_phrase(attack)} gets an AUC of "
        f"{figure(found.train_leak)} on other training records{_aside(found)}, and "
        f"{figure(found.baseline_train_leak)} with that half as it was before training."
        for name, party in run.parties.items()
        for attack, found in party.after_training.items()
        if found.train_leak is not None and found.baseline_train_leak is not None
    ]


def _aside(found: AfterTraining) -> str:
    """Return what is to be known of the figure on training records, in brackets: how it came about, and chance."""
    raw = _of_all(found.train_auc, found.train_tied_auc)
    parts = []
    if raw is not None and raw < 0.5:
        parts.append(f"the other way round: {figure(raw)} as it scores them")
    if found.scored < 1.0 and found.train_auc is not None:
        own = figure(oriented(found.train_auc))
        parts.append(f"with {1.0 - found.scored:.0%} left out, as ties; {own} among the others")
    if found.train_by_chance is not None:
        parts.append(f"{figure(found.train_by_chance)} is what chance gives")
    return f" ({'; '.join(parts)})" if parts else ""


def _partners_best(run: RunSummary) -> tuple[float | None, str, str]:
    """Return the best of the attacks that a partner can run on messages: value, attack, party."""
    found = [
        (result.worst, attack, name)
        for name, party in run.parties.items()
        for attack, result in party.attacks.items()
        if result.worst is not None and result.by_messages and shown_name(attack) != AUDITOR
    ]
    return max(found, default=(None, "", ""))


def _partner(run: RunSummary, party: str) -> str:
    return f"your partner {party}" if len(run.parties) > 1 else "your partner"


def advice(group: RunGroup, goal: float = GOAL) -> str:
    """Return which defense of a group to take, if any, and at what cost; empty if there is nothing to choose from."""
    rows = [row for row in rows_by_defense(group) if row.deciding is not None]
    if len(rows) < 2:
        return _one_way(group)
    kept = [row for row in rows if below(_least_certain(group.of_defense(row.label)), goal)]
    if kept:
        said = f"{_kept(kept, goal, group)} {_cost(kept, rows, group.metric)}".strip()
        return " ".join(filter(None, [said, _in_all(kept), _one_way(group)]))
    least = min(rows, key=lambda row: row.deciding.mean if row.deciding else 1.0)
    assert least.deciding is not None
    name = "The run without a defense" if least.label == "none" else least.label
    mean = " on average" if least.runs > 1 else ""
    if group.by_canaries:
        said = (
            f"Nothing kept what messages tell beyond the prediction surely below {goal:.2f}. {name} leaked least: "
            f"{figure(least.deciding.mean)}{mean}."
        )
    else:
        said = (
            f"Nothing kept every attack below {goal:.2f}. {name} leaked least: {figure(least.deciding.mean)}{mean}, "
            f"to {attack_phrase(least.worst_attack)}."
        )
    return " ".join(filter(None, [said, _one_way(group)]))


def _least_certain(runs: Sequence[RunSummary]) -> RunSummary:
    """Return the run that is least surely below a goal."""
    return max(runs, key=lambda run: (deciding(run) or 0.0) if run.canaries is None else run.canaries.high)


def _in_all(kept: Sequence[DefenseRow]) -> str:
    """Return what is read in all behind defenses that hold, beside what is known without messages."""
    total = max((row.total.mean for row in kept if row.total is not None), default=None)
    known = max((row.known.mean for row in kept if row.known is not None), default=None)
    if total is None:
        return ""
    beside = "" if known is None else f"; {figure(known)} is known without any message"
    return f"With the model's predictions {figure(total)} is read in all{beside}."


def _one_way(group: RunGroup) -> str:
    """Return what training cost in which nothing flows back, if the group has it."""
    tested = estimate(run.test_metric for run in group.runs if run.traits.one_way)
    if tested is None:
        return ""
    return (
        f"One-way training, in which no message depends on labels, reached a test {group.metric} of {tested.mean:.3f}."
    )


def own_columns_floor(group: RunGroup) -> str:
    """Return what remains whatever is done to a group's messages; empty where it was not measured."""
    parties = [party for run in group.runs for party in run.parties.values()]
    own = largest(party.own_columns_auc for party in parties)
    component = largest(party.first_component_auc for party in parties)
    if own is None:
        return ""
    said = (
        "Whatever is done to the messages: given labels of other records, the partner's own columns alone predict the "
        f"labels with an AUC of {figure(own)}"
    )
    if component is None:
        return f"{said}."
    return f"{said}; without any label, their first principal component reads {figure(component)}."


def _kept(kept: Sequence[DefenseRow], goal: float, group: RunGroup) -> str:
    names = [row.label for row in kept]
    if "none" in names:
        what = "What messages tell beyond the prediction" if group.by_canaries else "Every attack"
        return f"{what} stayed below {goal:.2f} even without a defense."
    what = "what messages tell beyond the prediction" if group.by_canaries else "every attack"
    return f"{'Only ' if len(kept) == 1 else ''}{', '.join(names)} kept {what} below {goal:.2f}."


def _cost(kept: Sequence[DefenseRow], rows: Sequence[DefenseRow], metric: str) -> str:
    tested = [row for row in kept if row.test is not None]
    plain = next((row.test for row in rows if row.label == "none"), None)
    if not tested or plain is None or any(row.label == "none" for row in kept):
        return ""
    best = max(tested, key=lambda row: row.test.mean if row.test else -math.inf)
    assert best.test is not None
    name = f"{best.label} reached" if len(kept) > 1 else "It reached"
    return f"{name} a test {metric} of {best.test.mean:.3f}; without any defense it was {plain.mean:.3f}."


def attack_phrase(attack: str) -> str:
    """Return an attack as it is called in a sentence.

    >>> attack_phrase("norm"), attack_phrase("auditor-linear")
    ('the norm attack', "the auditor's attack")
    """
    return "the auditor's attack" if shown_name(attack) == AUDITOR else f"the {attack} attack"


def figure(value: float) -> str:
    """Return a leak AUC as it is written everywhere."""
    return f"{value:.2f}"


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

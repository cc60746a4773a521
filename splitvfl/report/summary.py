"""A finished run in numbers: what ``summary.json`` holds, and what tables and reports are made of."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from splitvfl.config.registry import built_in
from splitvfl.errors import ArgumentError, CheckpointError
from splitvfl.leakage.canaries import CanaryLeak
from splitvfl.leakage.features import feature_notes
from splitvfl.leakage.figure import Figure
from splitvfl.leakage.leak_summary import largest
from splitvfl.leakage.membership import MembershipLeak
from splitvfl.leakage.packed_values import PackedReading
from splitvfl.privacy.accounting import Spent
from splitvfl.privacy.single_column import SolvableColumn
from splitvfl.privacy.solvable import Solvable
from splitvfl.privacy.statement import Relation
from splitvfl.report.party_result import PartyResult
from splitvfl.report.provenance import BEGUN_FILE, Provenance
from splitvfl.report.releases import releases, said_of
from splitvfl.report.summary_file import figures_of, nested, schema_of, written
from splitvfl.report.verdict import PartyVerdict
from splitvfl.report.verdicts import RunFacts, party_verdict
from splitvfl.run.replacement import how_to_go_on
from splitvfl.system.untrusted_files import UntrustedFile, refuse_links, write_json

if TYPE_CHECKING:
    from splitvfl.leakage.watching import Watch

FILE_NAME = "summary.json"
GOAL = 0.6
"""Below this leak AUC a run counts as protected, unless its settings say otherwise."""

_METRIC_NAMES = {"auc": "AUC", "accuracy": "accuracy", "r2": "R²", "d2": "explained deviance"}


@dataclass(frozen=True)
class ExchangeTraits:
    """What a report has to know of an exchange: its own attributes, as they were when the run was made.

    Attributes:
        one_way: Whether no message of training depends on labels.
        in_headings: Whether headings name it.
        shows_gradients: Whether a passive party gets a message for each record, in which canaries can be looked for.
    """

    one_way: bool = False
    in_headings: bool = True
    shows_gradients: bool = True

    @classmethod
    def of(cls, exchange: Any) -> ExchangeTraits:
        """Return those of a class of exchanges; one-way stands beside the defenses: it is what they have to beat."""
        # One that is derived from another has a name of its own, and is named.
        in_headings = vars(exchange).get("in_headings", True)
        return cls(
            exchange.one_way,
            in_headings=in_headings and not exchange.one_way,
            shows_gradients=exchange.shows_gradients(),
        )


@dataclass(frozen=True)
class SpentPrivacy:
    """What a run has spent on one sender and relation, as :class:`~splitvfl.privacy.Spent` has it.

    Attributes:
        senders: Whose messages.
        coalition: To whom.
        relation: What neighbours differ in: ``"row"``, ``"label"`` or ``"record"``.
        epsilon: ε in nats; ``None`` where there is none.
        delta: δ.
        mu: μ of the Gaussian releases.
        zcdp: ρ.
        steps: Steps that were taken.
        planned_epsilon: ε of all that were planned; ``None`` likewise.
        planned_steps: How many these are.
    """

    senders: list[str]
    coalition: list[str]
    relation: Relation
    epsilon: float | None
    delta: float
    mu: float
    zcdp: float
    steps: int
    planned_epsilon: float | None
    planned_steps: int

    @classmethod
    def of(cls, spent: Spent, planned: Spent) -> SpentPrivacy:
        """Return what was spent beside what was planned."""
        return cls(
            senders=list(spent.senders),
            coalition=list(spent.coalition),
            relation=spent.relation,
            epsilon=spent.epsilon if math.isfinite(spent.epsilon) else None,
            delta=spent.delta,
            mu=spent.mu,
            zcdp=spent.zcdp,
            steps=spent.steps,
            planned_epsilon=planned.epsilon if math.isfinite(planned.epsilon) else None,
            planned_steps=planned.steps,
        )


def metric_name(metric: str) -> str:
    """Return a headline figure as it is written."""
    return _METRIC_NAMES.get(metric, metric)


@dataclass(frozen=True)
class OwnModelResult:
    """The joint model beside the label owner's own one, on the same test records.

    Attributes:
        party: The label owner.
        metric: Name of the figure: that of the run.
        model: Which model its own one is, ``"gradient boosting"`` say; chosen by training records.
        alone: Its figure.
        joint: The joint model's.
        difference: Joint less alone.
        low: Lower end of the paired 95 % bootstrap interval of the difference.
        high: Upper end.
        records: Test records that both are measured on.
        of: Test records that there are; where they are more, some were drawn.
    """

    party: str
    metric: str
    model: str
    alone: float
    joint: float
    difference: float
    low: float
    high: float
    records: int
    of: int

    @property
    def verdict(self) -> Literal["better", "worse", "no difference shown"]:
        """What is shown of the joint model, with 95 % confidence: that the difference is above 0, or below."""
        return "better" if self.low > 0 else "worse" if self.high < 0 else "no difference shown"


@dataclass(frozen=True)
class RunSummary:
    """One run.

    Attributes:
        name: The experiment's name.
        data: The data set's name.
        task: ``"binary"``, ``"multiclass"`` or ``"regression"``.
        model: The model's name.
        defenses: Each defense with its settings, in order; empty for none.
        seed: Seed of order, initialisation and dropout.
        epochs: Epochs done.
        steps: Steps done.
        batch_size: Records in a step.
        metric: Name of the headline figure: ``"auc"``, ``"accuracy"``, ``"r2"`` or ``"d2"``, the explained deviance.
        test_metric: Headline figure on the test records after the last epoch; with early stopping, of the weights kept.
        test_loss: Loss on the test records, likewise.
        step_ms: Mean time of a step, defenses included, attacks excluded.
        known_positives: Positive records that an attacker was assumed to know.
        parties: Results by passive party.
        measurements: Means of what the defenses of labels and scores logged.
        known_negatives: Negative records that an attacker was assumed to know.
        planned_epochs: With early stopping, the epochs that it could have cut short; else ``None``.
        kept_epoch: With early stopping, the epoch whose weights were kept, from 1; else ``None``.
        validation_metric: With early stopping, the headline figure of these weights on the records held out; with a
            private top that of the top that sends, which was judged by it.
        sending_metric: With a private top, whose figures the test figures then are, the headline figure of the top that
            sends on the test records; else ``None``.
        exchange: Name of the exchange.
        exchange_traits: What is to be known of it; ``None`` in summaries that were written before it was kept.
        notes: What is to be known beside the figures, in sentences.
        claims: What each defense claims, with what that rests on and does not cover; that it promises nothing, and why.
        promised: What each defense promises, in a clause each; ``None`` in summaries that were written before.
        private_top: Whether a second top, which sends nothing, predicts.
        canaries: The leak beyond prediction: the largest canary AUC of the auditor's attacks at any party, raw, with a
            95 % interval for all of them at once; ``None`` without canaries. With ``positives + negatives`` records on
            coin tosses, the test figure is that of a model that was trained on them too, unless they are an audit
            twin's.
        goal: AUC that the leak of an individual label is to stay below or at.
        provenance: Where the figures come from; ``None`` in summaries that were written before it was kept.
        privacy: What was spent of a privacy budget, of each sender and relation; none where nothing is counted.
        seat: The passive party that has written it of its own columns, in a networked run: it knows of nothing else.
            Empty at the label party, and where one process has all.
        released: What crossed since, and is not covered by what is promised of the training, in sentences; as the
            run's folder says when it is read.
        membership: How well attacks told training from test records by the finished model.
        solvable: What partners can compute of labels from sums, known before the first step; none where nothing is, and
            in summaries that were written before.
        own_model: The joint model beside the label owner's own one; ``None`` likewise, and in summaries that were
            written before.
        no_own_model: Why there is none, as a sentence; empty where there is one, or nobody asked.
        label_owner: The party with the labels; empty in summaries that were written before.
        label_releases: What partners see beside the messages that is made from labels, by name.
        columns_solvable: Which partners' only features the label owner can compute, known before the first step.
        packing: What parties read that deviated from an encrypted exchange, and what whole plaintexts would have told.
        planned_steps: Steps that the run was to take, where it ended before its end: a passive party whose partner is
            gone writes what was read so far. ``None``: it is finished.
    """

    name: str
    data: str
    task: Literal["binary", "multiclass", "regression"]
    model: str
    defenses: list[str]
    seed: int
    epochs: int
    steps: int
    batch_size: int
    metric: str
    known_positives: int
    parties: dict[str, PartyResult]
    test_metric: float | None = None
    test_loss: float | None = None
    step_ms: float | None = None
    measurements: dict[str, float] = field(default_factory=dict)
    known_negatives: int = 0
    planned_epochs: int | None = None
    kept_epoch: int | None = None
    validation_metric: float | None = None
    sending_metric: float | None = None
    exchange: str = "split"
    notes: list[str] = field(default_factory=list)
    claims: list[str] = field(default_factory=list)
    promised: list[str] | None = None
    canaries: CanaryLeak | None = None
    private_top: bool = False
    exchange_traits: ExchangeTraits | None = None
    provenance: Provenance | None = None
    goal: float = GOAL
    privacy: list[SpentPrivacy] = field(default_factory=list)
    seat: str = ""
    released: list[str] = field(default_factory=list)
    membership: list[MembershipLeak] = field(default_factory=list)
    solvable: list[Solvable] = field(default_factory=list)
    columns_solvable: list[SolvableColumn] = field(default_factory=list)
    packing: list[PackedReading] = field(default_factory=list)
    planned_steps: int | None = None
    own_model: OwnModelResult | None = None
    no_own_model: str = ""
    label_owner: str = ""
    label_releases: list[str] = field(default_factory=list)

    @property
    def traits(self) -> ExchangeTraits:
        """What is to be known of the exchange; where that was not kept, what the exchange of this name says today."""
        if self.exchange_traits is not None:
            return self.exchange_traits
        known = built_in("exchanges").get(self.exchange)
        return ExchangeTraits() if known is None else ExchangeTraits.of(known)

    @property
    def feature_notes(self) -> list[str]:
        """What was noted of attacks on features, of whichever party, each thing once."""
        return feature_notes(leak for party in self.parties.values() for leak in party.features)

    @property
    def defense(self) -> str:
        """The defenses in one phrase; ``"none"`` without any."""
        return " + ".join(self.defenses) or "none"

    @property
    def label(self) -> str:
        """What was done against leaks, in one phrase: the defenses and a private top, or a one-way exchange."""
        if self.traits.one_way:
            return self.exchange
        return f"{self.defense}, private top" if self.private_top else self.defense

    @property
    def undefended(self) -> bool:
        """Whether nothing was done about what flows back in training; with or without a private top."""
        return not self.defenses and not self.traits.one_way

    @property
    def worst(self) -> tuple[float | None, str, str]:
        """The worst leak AUC at any party: value, attack, party."""
        found = [(*party.worst, name) for name, party in self.parties.items()]
        return max(
            (entry for entry in found if entry[0] is not None),
            default=(None, "", ""),
            key=lambda entry: entry[0] or 0.0,
        )

    @property
    def metric_name(self) -> str:
        """The headline figure as it is written."""
        return metric_name(self.metric)

    @property
    def verdict(self) -> dict[str, PartyVerdict]:
        """What is concluded, by passive party."""
        return self.judged(self.goal)

    def judged(self, goal: float) -> dict[str, PartyVerdict]:
        """Return what is concluded with another goal, from 0.5 to 1, by passive party."""
        facts = RunFacts(
            goal=goal,
            one_way=self.traits.one_way,
            measurable=self.traits.shows_gradients,
            releases=self.label_releases,
            solvable=self.solvable,
            columns_solvable=self.columns_solvable,
            of_labels=not self.seat,
        )
        return {name: party_verdict(name, party, facts) for name, party in self.parties.items()}

    @property
    def has_twin(self) -> bool:
        """Whether its excess leakage was measured on an audit twin."""
        return self.canaries is not None and self.canaries.twin

    def with_twin(self, twin: Watch) -> RunSummary:
        """Return the same with what was measured on the canaries of its audit twin."""

        def own(party: str) -> dict[str, Any]:
            audit = twin.audits.get(party)
            return {
                "canaries": {name: _of_twin(leak) for name, leak in twin.canaries(party).items()},
                "worst_canaries": None if audit is None else _of_twin(audit.canaries),
                "excess": _of_twin(twin.excess(party)),
                "randomised": _of_twin(twin.excess(party, randomised=True)),
            }

        parties = {name: replace(party, **own(name)) for name, party in self.parties.items()}
        return replace(self, parties=parties, canaries=_of_twin(twin.worst_canaries))

    def measurement(self, name: str) -> float | None:
        """Return the largest measurement of this name at any party, or ``None``."""
        return largest(party.measurement(name) for party in self.parties.values())

    def promised_error(self, party: str) -> float | None:
        """Return the detection error promised at a party, or ``None``: by defenses of its messages, or of labels."""
        of_labels = [value for tag, value in self.measurements.items() if tag.endswith("/detection_error_bound")]
        return largest([self.parties[party].measurement("detection_error_bound"), *of_labels])

    @property
    def total(self) -> float | None:
        """The largest leak AUC of all that a party has, at any party; ``None`` without an auditor."""
        return largest(party.label_leak.total for party in self.parties.values())

    @property
    def includes_features(self) -> bool:
        """Whether the partners' own features are in every total that there is."""
        return all(party.includes_features for party in self.parties.values() if party.total is not None)

    @property
    def beyond(self) -> float | None:
        """The leak beyond prediction at any party: among the canaries, or matched where there are none."""
        if self.canaries is not None:
            return self.canaries.auc
        return largest(party.label_leak.beyond for party in self.parties.values())

    @property
    def known(self) -> float | None:
        """The largest AUC of what a party knows without messages; ``None`` where nobody measured it."""
        return largest(party.label_leak.known for party in self.parties.values())

    @property
    def figures(self) -> list[Figure]:
        """All that was measured, as one table: ``pandas.DataFrame(summary.figures)``."""
        return figures_of(self)

    @property
    def own_columns(self) -> bool:
        """Whether it is a passive party's, of its own columns alone."""
        return list(self.parties) == [self.seat]

    def as_json(self) -> dict[str, Any]:
        """Return what its file holds."""
        return written(self, self.verdict)

    def save(self, folder: Path) -> None:
        """Write ``summary.json``, all at once; of a passive party's seat for its owner only.

        There it holds the errors of answering means, and so the means of that party's own columns. The verdict stands
        in it for other programs; where the file is read here, its figures are judged anew.
        """
        own = [note for note in self.notes if note not in self.released]  # those are of other files in the folder
        shown = replace(self, notes=own, released=[])
        if self.provenance is not None:
            shown = replace(shown, provenance=replace(self.provenance, same_data=""))
        said = written(shown, shown.verdict)
        write_json(folder / FILE_NAME, said, end=b"", mode=0o600 if self.own_columns else 0o666)


def _of_twin(leak: CanaryLeak | None) -> CanaryLeak | None:
    return None if leak is None else replace(leak, twin=True)


def read_summary(folder: Path) -> RunSummary:
    """Read a run's ``summary.json``, which another may have handed on: no text in it steers a terminal.

    Raises:
        CheckpointError: If it is missing (the run has not finished) or damaged.
    """
    path = folder / FILE_NAME
    if not folder.is_dir():
        raise CheckpointError(f"{folder}: there is no such folder; name that of a finished run, or one that holds some")
    refuse_links(folder)
    anew = "leave this run out, get the file anew from whoever gave it to you, or run the experiment with --overwrite"
    found = UntrustedFile(path=path, remedy=anew).json(RunSummary, sanitise=True, nested=nested, wrong_in=_wrong_in)
    if found is None:
        raise CheckpointError(f"{folder} holds no finished run: there is no {FILE_NAME}; {how_to_go_on(folder)}")
    released = said_of(releases(folder))
    found = replace(found, notes=[*found.notes, *released], released=released)
    if found.provenance is None:
        return found
    return replace(found, provenance=replace(found.provenance, same_data=_same_data(folder)))


def summary_schema() -> dict[str, Any]:
    """Return what ``summary.json`` holds as JSON Schema 2020-12."""
    return schema_of(RunSummary)


def _wrong_in(found: RunSummary) -> str:
    """Return what no run writes, and sentences about it would stumble over; empty where all is well."""
    if found.seat and found.seat not in found.parties:
        return f"it is {found.seat}'s own, who is not among its parties"
    if beyond := next(_beyond(asdict(found)), ""):
        return beyond
    try:
        _ = found.verdict
    except ArgumentError as error:
        return str(error)
    bare = [reading for party in found.parties.values() for reading in party.readings if not reading.columns]
    return f"what {bare[0].attack} read is of no column" if bare else ""


def _beyond(value: Any, key: str = "") -> Iterator[str]:
    """Yield what is said of figures outside of what they can be: a verdict would follow from them all the same."""
    if isinstance(value, Mapping):
        for name, inner in value.items():
            yield from _beyond(inner, str(name))
    elif isinstance(value, list | tuple):
        for inner in value:
            yield from _beyond(inner, key)
    elif isinstance(value, int | float) and (key == "auc" or key.endswith("_auc") or key == "goal"):
        if not (0 <= value <= 1 or math.isnan(value)):
            yield f"{key} is {value:.6g}, expected a number from 0 to 1"
    elif isinstance(value, int | float) and key in _COUNTS and value < 0:
        yield f"{key} is {value:.6g}, expected no less than 0"


_COUNTS = frozenset({"steps", "epochs", "batch_size", "records", "epsilon", "delta", "planned_steps", "planned_epochs"})


def _same_data(folder: Path) -> str:
    """Return what says whether runs are on equal data; nothing where only the summary was handed on."""
    try:
        noted = UntrustedFile(path=folder / BEGUN_FILE).json(dict[str, str])
    except CheckpointError:  # another user's run, or a damaged note: it says nothing
        return ""
    return (noted or {}).get("data", "")

"""Feature attacks in the label party's seat: what a prediction shows it of every passive party's columns.

Two views, of which both are judged. ``"scores"``: somebody else adds up the parts, and the scores come back, after the
defenses of scores; one system of equations in the columns of all passive parties. ``"activation"``: what the label
party receives today, each party's part of the logits; where it learns only their sum, that. Of one passive party the
sum is its part.

The attacker is assumed to know the passive parties' weights, and the range of each column over the training records;
and where an attack says so, the columns of some training records, by which it is not judged.
Estimates are of points in the unit box; what leaves the box is a record beyond the range, whose equations need not have
a solution there.

Over a network nobody has all that. But a passive party knows its weights, its columns and what it sends: it takes its
partner's seat, and attacks itself (:func:`own_feature_leaks`). Nothing is sent for that.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from splitvfl.crypto.sum_masks import FRACTION_BITS, sum_of
from splitvfl.data.columns import Records
from splitvfl.errors import ArgumentError, AttackRefused
from splitvfl.exchange.prediction import predict_records
from splitvfl.hooks import (
    Alphabet,
    Attack,
    Equations,
    KnownRows,
    LogitParts,
    View,
    hook_name,
    known_rows_of,
    needs_of,
    resolution_of,
)
from splitvfl.leakage.alphabets import known_alphabets
from splitvfl.leakage.categories import CategoryGroup, category_groups, varying_groups
from splitvfl.leakage.features import FeatureLeak, Part, Sees, judge_estimate, run_feature_attack
from splitvfl.leakage.score_equations import (
    RANK_TOLERANCE,
    activation_equations,
    count_scores,
    product_error,
    score_equations,
    score_part,
)
from splitvfl.leakage.unit_box import Box, unsolvable
from splitvfl.messaging.messages import Message
from splitvfl.party.party import ActiveParty, Party, PassiveParty

# Records of a part that attacks are judged on: as many predictions as the paper draws. A mean over them is off by .01
# of a standard deviation.
MOST_RECORDS = 2_000
_PARTS: tuple[Part, ...] = ("train", "test")
_PIECE = 65_536  # records that are read at a time


def feature_leaks(
    attacks: Sequence[Attack],
    active: ActiveParty,
    passives: Mapping[str, PassiveParty],
    unavailable: Mapping[str, dict[str, str]],
) -> dict[str, list[FeatureLeak]]:
    """Run feature attacks on predictions of training and test records, both views; see this module.

    Args:
        attacks: The attacks.
        active: The party in whose seat they are.
        passives: The parties that are attacked, by name.
        unavailable: Gets the reason, by party and attack, where one cannot be run; where only one of the two views
            cannot be had, the attack's name is followed by that view's.
    """
    found: dict[str, list[FeatureLeak]] = {}
    if not attacks:
        return found
    targets = targets_of(passives)
    note_missing(attacks, active, targets, unavailable)
    for system in scored_systems(active, targets, known=most_told(attacks)):
        for attack in attacks:
            for one in judged(attack, system, active.name, unavailable):
                found.setdefault(one.party, []).append(one.leak)
    return found


@dataclass(frozen=True, kw_only=True)
class LabelParty:
    """What a passive party knows of who sees its part of predictions.

    Attributes:
        name: The label party.
        logits: Logits of a prediction, where scores are made of the sum of all parties' parts and nothing else; 0: they
            are not, or nobody here knows it.
        others: Other passive parties, as far as they are known.
        all_named: Whether there are no others than these.
        sums: Whether it learns only the sum of all passive parties' parts.
    """

    name: str
    logits: int
    others: Sequence[str] = ()
    all_named: bool = False
    sums: bool = False

    @property
    def worst_case(self) -> str:
        """What has to be assumed of the parts of others; empty if there are none."""
        if self.all_named and not self.others:
            return ""
        whose = " and ".join(self.others) or "other passive parties, if there are any,"
        return (
            f"the parts of {whose} are taken to be known to the attacker, the worst case: the equations in the columns "
            "of all no party can write alone"
        )


def own_feature_leaks(
    attacks: Sequence[Attack], party: PassiveParty, seen_by: LabelParty, unavailable: dict[str, str]
) -> list[FeatureLeak]:
    """Run feature attacks on a passive party's own training and test records, by that party alone.

    ``"activation"`` is what it sends of a prediction, after its defenses; ``"scores"`` what remains of that in scores,
    whatever the label party adds to it. What only the label party knows is left out: defenses of scores, scores that
    are saturated, and, where the parts of several parties meet in a sum, what is not known of the others'. All of that
    tells an attacker less, not more.

    Where the party transforms its columns, every attack is run twice: by who takes the weights shown for those of the
    columns, and by who knows the transform. Both seek the columns themselves.

    Args:
        attacks: The attacks.
        party: The party.
        seen_by: Who sees its part.
        unavailable: Gets the reason, by attack, where one cannot be run, as in :func:`feature_leaks`.
    """
    target = FeatureTarget(party)
    if target.refused:
        unavailable.update({hook_name(attack): target.refused for attack in attacks})
        return []
    aware = None if party.data.transform is None else target.with_transform_known()
    added_up = len(target.weight) == seen_by.logits
    for label in map(hook_name, attacks):
        if not added_up:
            unavailable[f"{label} (scores)"] = "needs scores that are made of the sum of all parts, and nothing else"
        if aware is not None and aware.refused:
            unavailable[f"{label}{_AWARE}"] = aware.refused
    found: list[FeatureLeak] = []
    drawn = _drawn(party.data.train.count, most_told(attacks))
    for part in _PARTS:
        for whose, suffix in ((target, ""), (aware, _AWARE)):
            if whose is None or whose.refused:
                continue
            told = list(_own_systems(whose, seen_by, "train", drawn, added_up=added_up))
            rows = _sampled(getattr(party.data, part).count)
            for system in _with_told(_own_systems(whose, seen_by, part, rows, added_up=added_up), told):
                for attack in attacks:
                    seen = judged(attack, system, seen_by.name, {party.name: unavailable})
                    found += [replace(one.leak, attack=f"{one.leak.attack}{suffix}") for one in seen]
    return found


# Behind the name of an attack whose attacker knows it.
_AWARE = " (knows the transform)"


def most_told(attacks: Iterable[Attack]) -> int:
    """Return of how many records some attacks are told the columns, at most."""
    return max(map(known_rows_of, attacks), default=0)


def targets_of(passives: Mapping[str, PassiveParty]) -> dict[str, FeatureTarget]:
    """Return the passive parties as those whose columns are sought, by name."""
    return {name: FeatureTarget(party) for name, party in passives.items()}


def scored_systems(
    active: ActiveParty, targets: Mapping[str, FeatureTarget], *, known: int, most: int | None = None
) -> Iterator[System]:
    """Yield what predictions of training and of test records show, as equations; none where all parties are refused.

    Args:
        active: The party that scores.
        targets: Of :func:`targets_of`.
        known: Of how many training records attackers may ask for the columns.
        most: How many records of each part are scored, spread evenly over it; default: 2,000.
    """
    total = active.data.train.count
    if not total or all(target.refused for target in targets.values()):
        return
    told = list(_systems(active, targets, "train", _drawn(total, known), piece=2))
    for part in _PARTS:
        rows = _sampled(getattr(active.data, part).count, most or MOST_RECORDS)
        systems = _systems(active, targets, part, rows, piece=0 if part == "test" else 1)
        yield from _with_told(systems, told)


def _drawn(total: int, count: int) -> Tensor:
    """Return positions of the training records whose columns are told: the same ones whoever asks for so many."""
    return torch.randperm(total, generator=torch.Generator().manual_seed(0))[:count]


def _with_told(systems: Iterator[System], told: Sequence[System]) -> Iterator[System]:
    """Return systems with those of the records that may be told, which come in the same order of views."""
    for place, system in enumerate(systems):
        yield replace(system, drawn=told[place]) if told else system


class FeatureTarget:
    """A passive party whose columns are sought: its weights, and the box of its columns.

    Args:
        party: The party.

    Attributes:
        party: As given.
        refused: Why its columns cannot be sought; empty: they can, and it has what follows.
        box: Range of each column over the training records.
        weight: Its weights, ``(k, d)``.
        bias: Its intercept, ``(k,)``.
    """

    def __init__(self, party: PassiveParty) -> None:
        self.party = party
        self.refused = "" if party.is_linear else "needs linear models (logistic regression)"
        if self.refused:
            return
        try:
            self.box = _box_of(party)
        except ArgumentError as error:
            self.refused = str(error)
            return
        if not bool(self.box.varying.any()):
            self.refused = "none of its columns varies over the training records: there is nothing to find"
        weight, *bias = (parameter.detach().cpu() for parameter in party.bottom.parameters())
        self.weight = weight
        self.bias = bias[0] if bias else weight.new_zeros(weight.shape[0])

    def with_transform_known(self) -> FeatureTarget:
        """Return the same for who knows the party's transform z = H x + s, and so the weights W H of x itself."""
        transform = self.party.data.transform
        assert transform is not None, "else there is nothing to know"
        known = copy.copy(self)
        known.weight = self.weight.double() @ transform.matrix
        known.bias = self.bias.double() + self.weight.double() @ transform.shift
        if self.party.data.train.row_norm is not None and bool(transform.shift.any()):
            known.refused = "rows are scaled down to a norm after the transform: there is no equation in the columns"
        return known

    @property
    def names(self) -> list[str]:
        """Names of the columns that vary."""
        kept = self.box.varying.tolist()
        return [name for name, varies in zip(self.party.data.numeric_names, kept, strict=True) if varies]

    def points(self, part: Part, rows: Tensor) -> Tensor:
        """Return records of a part as points of the unit box, ``(n, d)``, float64, without columns that do not vary."""
        columns = _as_known(getattr(self.party.data, part)).rows(rows).columns.numeric
        return _varying(self.box.unit(columns.double().cpu()), self.box)

    def beyond(self, part: Part, rows: Tensor) -> Tensor:
        """Return which records of a part lie beyond the known range of a column, ``(n,)``, bool."""
        return self.box.outside(_as_known(getattr(self.party.data, part)).rows(rows).columns.numeric.double().cpu())

    @cached_property
    def groups(self) -> list[CategoryGroup]:
        """Categories among the columns that vary."""
        return varying_groups(category_groups(self.party.data), self.box.varying)

    @cached_property
    def alphabets(self) -> tuple[Alphabet, ...]:
        """Which of the columns that vary have few values, and which."""
        data = self.party.data
        return known_alphabets(replace(data, train=_as_known(data.train)), self.box)


def _as_known(records: Records) -> Records:
    """Return records as an attacker knows their columns: as the model takes them, but for a transform, which is secret.

    Who takes transformed weights for true seeks the columns themselves, in the range that is known of these.
    """
    return replace(records, transform=None)


def _box_of(party: PassiveParty) -> Box:
    """Return the range of each column over the training records, before the party's transform of them."""
    train = _as_known(party.data.train)
    if not train.count:
        raise ArgumentError("it has no training record: nobody knows the range of its columns")
    boxes = [
        Box.of(train.rows(rows).columns.numeric.cpu().double()) for rows in torch.arange(train.count).split(_PIECE)
    ]
    return Box(
        torch.stack([box.lower for box in boxes]).amin(dim=0), torch.stack([box.upper for box in boxes]).amax(dim=0)
    )


@dataclass(frozen=True, kw_only=True)
class System:
    """One system of equations in the unit box, and whose columns it is in.

    Attributes:
        sees: Of what it was made.
        part: Whose records.
        ids: Their ids.
        targets: The parties, in the order of their columns.
        known: The equations, without columns that do not vary.
        fields: What else the view shows.
        rows: The records' places, in each party's tables.
        note: What there is to say of it.
        drawn: The same of training records whose columns an attacker may be told; ``None``: nobody asks for any.
    """

    sees: Sees
    part: Part
    ids: Tensor
    targets: Mapping[str, FeatureTarget]
    known: Equations
    fields: Mapping[str, Any]
    rows: Tensor
    note: str
    drawn: System | None = None

    @cached_property
    def unsolvable(self) -> Tensor:
        """Which predictions no point of the box explains, ``(n,)``, bool; what the truth explains needs no search."""
        left, right, error = self.known
        points = [target.points(self.part, self.rows) for target in self.targets.values()]
        truth = torch.cat(points, dim=1).to(left.device)
        explained = ((truth >= 0) & (truth <= 1)).all(dim=1) & ((truth @ left.T - right).abs() <= error).all(dim=1)
        found = ~explained
        found[~explained] = unsolvable(Equations(left, right[~explained], error[~explained]))
        return found

    def only(self, chosen: Tensor | slice) -> System:
        """Return the system of some of the records."""
        left, right, error = self.known
        here = chosen if isinstance(chosen, slice) else chosen.to(right.device)
        of_each = {name: self.fields[name][here] for name in ("scores", "active_logits") if name in self.fields}
        if "logit_parts" in self.fields:
            values, columns = self.fields["logit_parts"]
            of_each["logit_parts"] = LogitParts(values[here], columns)
        return replace(
            self,
            ids=self.ids[here],
            known=Equations(left, right[here], error[here]),
            fields={**self.fields, **of_each},
            rows=self.rows[chosen],
        )

    def telling(self, count: int) -> System:
        """Return the system without the first so many of the records drawn, for an attacker who is told their columns.

        Their place is in ``known_rows``: their columns, and what predictions of them tell in this view.
        """
        assert self.drawn is not None, "drawn where somebody asks for them"
        told = self.drawn.only(slice(count))
        columns = torch.cat([target.points("train", told.rows) for target in told.targets.values()], dim=1)
        known = KnownRows(columns.to(told.known.b.device), told.known.b, told.known.error)
        others = self if self.part == "test" else self.only(~torch.isin(self.rows, told.rows))
        note = f"the columns of {len(told.rows)} training records are assumed to be known"
        return replace(others, fields={**others.fields, "known_rows": known}, note=_joined([self.note, note]))

    @property
    def unsolved(self) -> str:
        """How many these are, in words."""
        count = int(self.unsolvable.sum())
        return f"{count} of {len(self.known.b)} systems have no solution in the box" if count else ""


class Judgement(NamedTuple):
    """What an attack found of one party's columns.

    Attributes:
        party: Its name.
        leak: The figures.
        estimate: ``(n, d)``, in the unit box, on the CPU.
        truth: The same of the columns themselves, float64.
        warned: What the attack itself warned of, which is in the figures' note among what is said of the system.
    """

    party: str
    leak: FeatureLeak
    estimate: Tensor
    truth: Tensor
    warned: str


def note_missing(
    attacks: Sequence[Attack],
    active: ActiveParty,
    targets: Mapping[str, FeatureTarget],
    unavailable: Mapping[str, dict[str, str]],
) -> None:
    """Write down why an attack cannot be run at a party, or in one of the two views."""
    of_scores = _no_scores(active, targets)
    sums = active.sums_parts and len(targets) > 1
    refused = [target.refused for target in targets.values() if target.refused]
    for name, target in targets.items():
        # Of a sum nothing is known unless all parts are linear.
        of_activation = target.refused or (refused[0] if sums and refused else "")
        for attack in attacks:
            label = hook_name(attack)
            if of_activation and of_scores:
                unavailable[name][label] = of_activation
            elif of_scores:
                unavailable[name][f"{label} (scores)"] = of_scores


def _no_scores(active: ActiveParty, targets: Mapping[str, FeatureTarget]) -> str:
    if active.private_top is not None:
        return "needs the scores of the top that sends, and the private one predicts"
    refused = [f"{name}: {target.refused}" for name, target in targets.items() if target.refused]
    if refused:
        return refused[0]
    if not hasattr(active.top, "active_logits"):
        return "needs linear models (logistic regression)"
    return ""


def _systems(
    active: ActiveParty, targets: Mapping[str, FeatureTarget], part: Part, rows: Tensor, *, piece: int
) -> Iterator[System]:
    """Score some records of a part, and return what that shows: of each view a system, always in the same order."""
    if not len(rows):
        return
    parties = (active, *(target.party for target in targets.values()))
    records: dict[str, Records] = {party.name: getattr(party.data, part).rows(rows) for party in parties}
    sent: dict[str, list[Tensor]] = {name: [] for name in targets}

    def keep(message: Message) -> None:
        if message.kind == "activation":
            sent[message.sender].append(message.payload)

    passives = {name: target.party for name, target in targets.items()}
    prediction = predict_records(active, passives, records, piece=piece, record=keep)
    common: dict[str, Any] = {"part": part, "ids": records[active.name].ids.to(active.device), "rows": rows}
    if not _no_scores(active, targets):
        yield _of_scores(active, targets, records[active.name], prediction.scores, **common)
    if active.sums_parts:
        if not any(target.refused for target in targets.values()):
            sums = [sum_of(parts) for parts in zip(*sent.values(), strict=True)]
            received = torch.cat(sums).float().to(active.device)
            summed = _summed(alone=len(targets) == 1)
            yield _of_activation(targets, received, _dtype_of(active, targets), summed=summed, **common)
        return
    for name, target in targets.items():
        if not target.refused:
            received = torch.cat([active.received(payload).float() for payload in sent[name]])
            yield _of_activation({name: target}, received, _dtype_of(active, {name: target}), **common)


def _own_systems(
    target: FeatureTarget, seen_by: LabelParty, part: Part, rows: Tensor, *, added_up: bool
) -> Iterator[System]:
    """Return what a party's part of some predictions shows; ``added_up``: scores are made of the sum of parts."""
    if not len(rows):
        return
    party = target.party
    records = getattr(party.data, part).rows(rows).to(party.device)
    with party.evaluating(), party.random, torch.no_grad():
        sent = party.defend_activation(party.activate(records), records, 0, "prediction")
    common: dict[str, Any] = {"part": part, "ids": records.ids, "rows": rows}
    targets = {party.name: target}
    summed = _summed(alone=not seen_by.worst_case) if seen_by.sums else ""
    shown = _of_activation(targets, sent.float(), _coarsest([party]), summed=summed, **common)
    if added_up:
        notes = [_defended(_activation_defenses(targets)), seen_by.worst_case]
        yield replace(shown, sees="scores", known=score_part(shown.known), note=_joined(notes))
    together = seen_by.worst_case if seen_by.sums else ""
    yield replace(shown, note=_joined([shown.note, together]))


def _sampled(total: int, most: int = MOST_RECORDS) -> Tensor:
    """Return positions of the records that attacks are judged on, spread evenly."""
    return torch.linspace(0, total - 1, min(total, most), dtype=torch.float64).round().long()


def _of_scores(
    active: ActiveParty, targets: Mapping[str, FeatureTarget], own: Records, scores: Tensor, **common: Any
) -> System:
    """Return what scores tell of the columns of all passive parties."""
    device = scores.device
    columns = own.columns.numeric.to(device)
    top = copy.deepcopy(active.top).to(device).double()
    weight = torch.cat([target.weight for target in targets.values()], dim=1).to(device).double()
    bias = torch.stack([target.bias for target in targets.values()]).sum(dim=0).to(device).double()
    box = Box.joined([target.box for target in targets.values()])
    with torch.no_grad():
        # Whoever knows the weights knows the intercept, which is the same for all records.
        own_logits: Tensor = top.active_logits(columns.double())  # type: ignore[operator]
    logits = own_logits + bias
    off = product_error(
        torch.cat([weight, *_own_weights(top)], dim=1),
        torch.cat([box.largest.to(device).expand(len(columns), -1), columns.double().abs()], dim=1),
        bias.abs() + _intercept(top, bias),
        dtype=_dtype_of(active, targets),
    )
    resolutions = [resolution_of(defense) for defense in active.scores]
    resolution = max((one for one in resolutions if one is not None), default=0.0)
    flat = active.task.outputs == 1
    known, alone, own_weight = logits, own_logits, weight
    if flat:
        known, alone, own_weight = logits.squeeze(1), own_logits.squeeze(1), weight.squeeze(0)
    raw = score_equations(scores, known, own_weight, resolution=resolution, logit_error=off)
    # Who does not know the weights has the same right sides, with whatever is constant in them.
    parts = score_equations(scores, alone, torch.zeros_like(own_weight), resolution=resolution).b
    shift = weight @ box.lower.to(device)
    fields: dict[str, Any] = {
        "scores": scores,
        "active_logits": (logits + shift).squeeze(1) if flat else logits + shift,
        "passive_weight": _varying((weight * box.width.to(device)), box)[0 if flat else slice(None)],
        "logit_parts": LogitParts(parts, _names(targets)),
    }
    notes = [
        _shared(targets),
        _defended([hook_name(hook) for hook, one in zip(active.scores, resolutions, strict=True) if one is None]),
        count_scores(scores).note,
    ]
    return System(sees="scores", targets=targets, known=_boxed(box, raw), fields=fields, note=_joined(notes), **common)


def _of_activation(
    targets: Mapping[str, FeatureTarget], received: Tensor, dtype: torch.dtype, *, summed: str = "", **common: Any
) -> System:
    """Return what an activation tells of its sender's columns, or a sum of all activations of all senders'.

    Args:
        targets: The senders.
        received: What arrived.
        dtype: The least precise type in which it was computed or sent.
        summed: What is said of a sum.
        common: The rest of the system.
    """
    device = received.device
    weight = torch.cat([target.weight for target in targets.values()], dim=1).to(device).double()
    bias = torch.stack([target.bias for target in targets.values()]).sum(dim=0).to(device).double()
    box = Box.joined([target.box for target in targets.values()])
    off = product_error(weight, box.largest.to(device), bias.abs(), dtype=dtype)
    if summed:
        off = off + len(targets) * 2.0**-FRACTION_BITS
    raw = activation_equations(received, weight, bias, error=off)
    notes = [summed, _shared(targets), _defended(_activation_defenses(targets))]
    fields = {"logit_parts": LogitParts(received.double(), _names(targets))}
    known = _boxed(box, raw)
    return System(sees="activation", targets=targets, known=known, fields=fields, note=_joined(notes), **common)


def _names(targets: Mapping[str, FeatureTarget]) -> tuple[str, ...]:
    return tuple(name for target in targets.values() for name in target.names)


def _summed(*, alone: bool) -> str:
    part = ", which of one passive party is its part" if alone else ""
    return f"the label party learns only the sum of all parts{part}"


def _activation_defenses(targets: Mapping[str, FeatureTarget]) -> list[str]:
    return [hook_name(hook) for target in targets.values() for hook in target.party.activation["prediction"]]


def _own_weights(top: nn.Module) -> list[Tensor]:
    own = getattr(top, "own", None)
    return [] if own is None else [own.weight.detach()]


def _intercept(top: nn.Module, like: Tensor) -> Tensor:
    found = getattr(top, "intercept", None)
    return torch.zeros_like(like) if found is None else found.detach().abs()


def _dtype_of(active: ActiveParty, targets: Mapping[str, FeatureTarget]) -> torch.dtype:
    return _coarsest([active, *(target.party for target in targets.values())])


def _coarsest(parties: Sequence[Party]) -> torch.dtype:
    """Return the least precise type in which anything of a prediction is computed or sent."""
    used = [dtype for party in parties for dtype in (party.autocast, party.wire) if dtype is not None]
    return max([torch.float32, *used], key=lambda dtype: torch.finfo(dtype).eps)


def _boxed(box: Box, raw: Equations) -> Equations:
    inside = box.equations(raw)
    return inside._replace(A=_varying(inside.A, box))


def _varying(matrix: Tensor, box: Box) -> Tensor:
    return matrix[:, box.varying.to(matrix.device)]


def _joined(notes: Sequence[str]) -> str:
    return "; ".join(note for note in notes if note)


def _shared(targets: Mapping[str, FeatureTarget]) -> str:
    if len(targets) == 1:
        return ""
    return f"one system of equations in the columns of {' and '.join(targets)}"


def _defended(hooks: Sequence[str]) -> str:
    return f"the stated error of the equations leaves out what {' and '.join(hooks)} changed" if hooks else ""


def judged(attack: Attack, system: System, seat: str, unavailable: Mapping[str, dict[str, str]]) -> Iterator[Judgement]:
    """Run an attack on a system and judge its estimate of each party's columns.

    Args:
        attack: The attack.
        system: What a prediction shows.
        seat: Name of the party in whose seat it is.
        unavailable: Gets the reason, by party and attack, where it cannot be run.
    """
    told = known_rows_of(attack)
    system = system.telling(told) if told else system
    shown: dict[str, Any] = {"equations": system.known, **system.fields}
    needs = needs_of(attack)
    if "alphabets" in needs:
        shown["alphabets"] = _side_by_side(system.targets.values())
    view = View(
        party=seat,
        step=0,
        ids=system.ids,
        **{field: value for field, value in shown.items() if field in needs},
    )
    width = system.known.A.shape[1]
    missing = sorted(needs - shown.keys())
    try:
        if missing:
            raise AttackRefused(f"needs {', '.join(missing)}")
        if not len(system.ids):
            raise AttackRefused(f"it is told of all {system.part} records that it would be judged on")
        estimate, warned = run_feature_attack(attack, view, width)
    except AttackRefused as refusal:
        for name in system.targets:
            unavailable[name][f"{hook_name(attack)} ({system.sees})"] = str(refusal)
        return
    rank = int(torch.linalg.matrix_rank(system.known.A, rtol=RANK_TOLERANCE))
    first = 0
    for name, target in system.targets.items():
        truth = target.points(system.part, system.rows)
        beyond = int(target.beyond(system.part, system.rows).sum())
        notes = [system.note, _beyond(beyond, len(truth)), system.unsolved, warned]
        own = estimate[:, first : first + len(target.names)].cpu()
        first += len(target.names)
        leak = judge_estimate(
            hook_name(attack),
            own,
            truth,
            names=target.names,
            note=_joined(notes),
            sees=system.sees,
            part=system.part,
            equations=rank,
            joint=width,
            groups=target.groups,
        )
        yield Judgement(name, leak, own, truth, warned)


def _side_by_side(targets: Iterable[FeatureTarget]) -> tuple[Alphabet, ...]:
    """Return the alphabets of all columns of a system."""
    found: list[Alphabet] = []
    first = 0
    for target in targets:
        found += [Alphabet(tuple(first + place for place in one.places), one.values) for one in target.alphabets]
        first += len(target.names)
    return tuple(found)


def _beyond(count: int, total: int) -> str:
    return f"{count} of {total} records lie beyond the known range of a column" if count else ""

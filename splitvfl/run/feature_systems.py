"""What predictions show of passive parties' columns, as systems of linear equations in the unit box.

Two views. ``"scores"``: somebody else adds up the parts, and the scores come back, after the defenses of scores; one
system of equations in the columns of all passive parties. ``"activation"``: what the label party receives today, each
party's part of the logits; where it learns only their sum, that. Of one passive party the sum is its part.

What leaves the box is a record beyond the range, whose equations need not have a solution there.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from splitvfl.crypto.sum_masks import FRACTION_BITS, sum_of
from splitvfl.data.columns import Records
from splitvfl.exchange.prediction import predict_records
from splitvfl.hooks import (
    Equations,
    KnownRows,
    LogitParts,
    hook_name,
    resolution_of,
)
from splitvfl.leakage.features import Part, Sees
from splitvfl.leakage.score_equations import (
    activation_equations,
    count_scores,
    product_error,
    score_equations,
    score_part,
)
from splitvfl.leakage.unit_box import Box, unsolvable
from splitvfl.learning.losses import link_of, loss_name
from splitvfl.messaging.messages import Message
from splitvfl.party.party import ActiveParty, Party
from splitvfl.run.feature_target import FeatureTarget, varying_columns, with_transforms_known

# Records of a part that attacks are judged on: as many predictions as the paper draws. A mean over them is off by .01
# of a standard deviation.
MOST_RECORDS = 2_000
PARTS: tuple[Part, ...] = ("train", "test")
SHOWN = frozenset({"equations", "alphabets", "known_rows", "scores", "active_logits", "passive_weight", "logit_parts"})
"""Fields of a view of predictions, in one of the two views or in both."""


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

    @property
    def knows_transform(self) -> bool:
        """Whether the attacker knows the transform of a party whose columns it is in."""
        return any(target.knows_transform for target in self.targets.values())

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
        return replace(others, fields={**others.fields, "known_rows": known}, note=joined([self.note, note]))

    @property
    def unsolved(self) -> str:
        """How many these are, in words."""
        count = int(self.unsolvable.sum())
        return f"{count} of {len(self.known.b)} systems have no solution in the box" if count else ""


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
    told = list(_systems(active, targets, "train", drawn_rows(total, known), piece=2))
    for part in PARTS:
        rows = sampled_rows(getattr(active.data, part).count, most or MOST_RECORDS)
        systems = _systems(active, targets, part, rows, piece=0 if part == "test" else 1)
        yield from with_told(systems, told)


def aware_systems(
    active: ActiveParty, targets: Mapping[str, FeatureTarget], *, known: int, most: int | None = None
) -> Iterator[System]:
    """Yield, as :func:`scored_systems` does, what the same predictions show to who knows the parties' transforms.

    What is in the columns of parties without one is not yielded again.
    """
    aware, _ = with_transforms_known(targets)
    systems = scored_systems(active, aware, known=known, most=most) if aware else ()
    yield from (system for system in systems if system.knows_transform)


def own_systems(
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
        yield replace(shown, sees="scores", known=score_part(shown.known), note=joined(notes))
    together = seen_by.worst_case if seen_by.sums else ""
    yield replace(shown, note=joined([shown.note, together]))


def drawn_rows(total: int, count: int) -> Tensor:
    """Return positions of the training records whose columns are told: the same ones whoever asks for so many."""
    return torch.randperm(total, generator=torch.Generator().manual_seed(0))[:count]


def with_told(systems: Iterator[System], told: Sequence[System]) -> Iterator[System]:
    """Return systems with those of the records that may be told, which come in the same order of views."""
    for place, system in enumerate(systems):
        yield replace(system, drawn=told[place]) if told else system


def sampled_rows(total: int, most: int = MOST_RECORDS) -> Tensor:
    """Return positions of the records that attacks are judged on, spread evenly."""
    return torch.linspace(0, total - 1, min(total, most), dtype=torch.float64).round().long()


def no_scores(active: ActiveParty, targets: Mapping[str, FeatureTarget]) -> str:
    """Return why scores are no equations in the parties' columns; empty if they are."""
    if active.private_top is not None:
        return "needs the scores of the top that sends, and the private one predicts"
    refused = [f"{name}: {target.refused}" for name, target in targets.items() if target.refused]
    if refused:
        return refused[0]
    if not hasattr(active.top, "active_logits"):
        return "needs linear models (logistic regression)"
    if link_of(active.task.loss) is None:
        return f"needs scores that logits are read from, and those of the {loss_name(active.task.loss)} loss are others"
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
    if not no_scores(active, targets):
        made = _of_numbers if link_of(active.task.loss) == "identity" else _of_scores
        yield made(active, targets, records[active.name], prediction.scores, **common)
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


class _Sum(NamedTuple):
    """The sum of all parties' parts of the logits, as who knows the weights has it.

    Attributes:
        weight: Of all passive parties, side by side, ``(k, d)``, float64.
        bias: Their intercepts, ``(k,)``: who knows the weights knows them, and they are the same for all records.
        box: Ranges of all columns.
        own: The label party's part, ``(n, k)``, float64.
        error: How far the sum may be off, ``(n, k)``, by how it was computed.
    """

    weight: Tensor
    bias: Tensor
    box: Box
    own: Tensor
    error: Tensor

    @classmethod
    def of(cls, active: ActiveParty, targets: Mapping[str, FeatureTarget], own: Records, device: torch.device) -> _Sum:
        """Return that of a few records of the label party."""
        columns = own.columns.numeric.to(device)
        top = copy.deepcopy(active.top).to(device).double()
        weight = torch.cat([target.weight for target in targets.values()], dim=1).to(device).double()
        bias = torch.stack([target.bias for target in targets.values()]).sum(dim=0).to(device).double()
        box = Box.joined([target.box for target in targets.values()])
        with torch.no_grad():
            logits: Tensor = top.active_logits(columns.double())  # type: ignore[operator]
        error = product_error(
            torch.cat([weight, *_own_weights(top)], dim=1),
            torch.cat([box.largest.to(device).expand(len(columns), -1), columns.double().abs()], dim=1),
            bias.abs() + _intercept(top, bias),
            dtype=_dtype_of(active, targets),
        )
        return cls(weight, bias, box, logits, error)


def _of_scores(
    active: ActiveParty, targets: Mapping[str, FeatureTarget], own: Records, scores: Tensor, **common: Any
) -> System:
    """Return what scores tell of the columns of all passive parties."""
    weight, bias, box, own_logits, off = _Sum.of(active, targets, own, scores.device)
    logits, flat, resolution = own_logits + bias, active.task.outputs == 1, _resolution(active)
    known, alone, own_weight = logits, own_logits, weight
    if flat:
        known, alone, own_weight = logits.squeeze(1), own_logits.squeeze(1), weight.squeeze(0)
    raw = score_equations(scores, known, own_weight, resolution=resolution, logit_error=off)
    # Who does not know the weights has the same right sides, with whatever is constant in them.
    parts = score_equations(scores, alone, torch.zeros_like(own_weight), resolution=resolution).b
    shift = weight @ box.lower.to(scores.device)
    fields: dict[str, Any] = {
        "scores": scores,
        "active_logits": (logits + shift).squeeze(1) if flat else logits + shift,
        "passive_weight": varying_columns((weight * box.width.to(scores.device)), box)[0 if flat else slice(None)],
        "logit_parts": LogitParts(parts, _names(targets)),
    }
    notes = [_shared(targets), _score_defenses(active), count_scores(scores).note]
    return System(sees="scores", targets=targets, known=_boxed(box, raw), fields=fields, note=joined(notes), **common)


def _of_numbers(
    active: ActiveParty, targets: Mapping[str, FeatureTarget], own: Records, scores: Tensor, **common: Any
) -> System:
    """Return what predictions tell that are the sum of all parts itself, as of a regression: one equation."""
    weight, bias, box, own_logits, off = _Sum.of(active, targets, own, scores.device)
    parts = scores.double().unsqueeze(1) - own_logits
    raw = activation_equations(parts, weight, bias, error=off + _resolution(active) / 2)
    fields = {"logit_parts": LogitParts(parts, _names(targets))}
    note = joined([_shared(targets), _score_defenses(active)])
    return System(sees="scores", targets=targets, known=_boxed(box, raw), fields=fields, note=note, **common)


def _resolution(active: ActiveParty) -> float:
    """Return to which multiple scores are rounded, 0 if to none."""
    return max((one for one in map(resolution_of, active.scores) if one is not None), default=0.0)


def _score_defenses(active: ActiveParty) -> str:
    return _defended([hook_name(hook) for hook in active.scores if resolution_of(hook) is None])


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
    return System(sees="activation", targets=targets, known=known, fields=fields, note=joined(notes), **common)


def _boxed(box: Box, raw: Equations) -> Equations:
    inside = box.equations(raw)
    return inside._replace(A=varying_columns(inside.A, box))


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


def joined(notes: Sequence[str]) -> str:
    """Return what there is to say, without what is empty."""
    return "; ".join(note for note in notes if note)


def _shared(targets: Mapping[str, FeatureTarget]) -> str:
    if len(targets) == 1:
        return ""
    return f"one system of equations in the columns of {' and '.join(targets)}"


def _defended(hooks: Sequence[str]) -> str:
    return f"the stated error of the equations leaves out what {' and '.join(hooks)} changed" if hooks else ""

"""Systems of several runs on the same records as one: of a model that was trained again, say.

Records are matched by their names, and each run's columns are put into the unit box of their range over the training
records that all runs hold. A column that another run encodes on another scale is the same one there. One that is not
the same, because it changed, or its gaps were filled otherwise, is refused by its name.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeVar

import torch
from torch import Tensor

from splitvfl.attacks.stacked_models import stack_models
from splitvfl.data.columns import Columns, PartyData, Records
from splitvfl.errors import DataError
from splitvfl.hooks import LogitParts
from splitvfl.leakage.features import Part
from splitvfl.party.party import ActiveParty, PassiveParty
from splitvfl.run.feature_systems import PARTS, System, joined
from splitvfl.run.feature_target import FeatureTarget

# What the unit box of a column of float32 may be off by, where it was scaled otherwise.
_SAME_WITHIN = 1e-4

_P = TypeVar("_P", ActiveParty, PassiveParty)


@dataclass(frozen=True, eq=False)
class NamedRun:
    """The parties of a run with their records, and what these are called.

    Attributes:
        source: What the run is called.
        active: The label party.
        passives: The others by name.
        names: By part, what its records are called, in the parties' order; needed of several runs.
    """

    source: str
    active: ActiveParty
    passives: Mapping[str, PassiveParty]
    names: Mapping[Part, Sequence[object]] = field(default_factory=dict)


def with_shared_records(runs: Sequence[NamedRun]) -> tuple[list[NamedRun], int]:
    """Return runs whose parties hold the records that all runs hold, in one order; the first one's parts are theirs.

    Records whose columns are not the same in all runs are left out: they changed, or lie beyond a range to which one
    run cut them off.

    Returns:
        The runs, and how many shared records were left out.

    Raises:
        DataError: If a run has other passive parties or columns than the first, names a record twice, or holds none of
            its training records; if a column is another one in half of the shared records.
    """
    first = runs[0]
    for other in runs[1:]:
        _check_columns(first, other)
    places = [_places(run) for run in runs]
    shared: dict[Part, list[object]] = {
        part: [name for name in first.names[part] if all(name in found for found in places)] for part in PARTS
    }
    if not shared["train"]:
        raise DataError(
            f"none of the training records of {first.source} is in {' and '.join(run.source for run in runs[1:])}: "
            "equations of several models add up where they are of the same records"
        )
    same = _same_records(runs, places, [name for part in PARTS for name in shared[part]])
    kept: dict[Part, list[object]] = {part: [name for name in shared[part] if name in same] for part in PARTS}
    if not kept["train"]:
        raise DataError(
            f"all training records that {' and '.join(run.source for run in runs)} hold have other values in one of "
            "them: equations of several models add up where they are of the same columns"
        )
    ids = {part: torch.arange(len(kept[part])) + (0 if part == "train" else len(kept["train"])) for part in PARTS}
    held = [
        _holding(run, kept, {part: torch.tensor([found[name] for name in kept[part]]).long() for part in PARTS}, ids)
        for run, found in zip(runs, places, strict=True)
    ]
    return held, sum(map(len, shared.values())) - len(same)


def _same_records(
    runs: Sequence[NamedRun], places: Sequence[Mapping[object, int]], names: Sequence[object]
) -> set[object]:
    """Return the records whose columns are the same in all runs, but for the scale of each column."""
    same = torch.ones(len(names), dtype=torch.bool)
    first = runs[0]
    for party, held in first.passives.items():
        own = _numbers(held.data, places[0], names)
        for run, found in zip(runs[1:], places[1:], strict=True):
            agree = _agree(own, _numbers(run.passives[party].data, found, names))
            most = agree.double().mean(dim=0)
            if bool((most <= 0.5).any()):
                column = held.data.numeric_names[int(most.argmin())]
                others = int((~agree)[:, int(most.argmin())].sum())
                raise DataError(
                    f"{first.source} and {run.source}: {party}: {column!r} is not the same column: in {others:,} of "
                    f"{len(names):,} shared records its values differ by more than a scale"
                )
            same &= agree.all(dim=1)
    return {name for name, kept in zip(names, same.tolist(), strict=True) if kept}


def _numbers(data: PartyData, places: Mapping[object, int], names: Sequence[object]) -> Tensor:
    where = torch.tensor([places[name] for name in names]).long()
    return _taken(data, where, torch.arange(len(names))).columns.numeric.double()


def _agree(own: Tensor, other: Tensor) -> Tensor:
    """Return where two encodings of the same columns are one but for each column's scale, ``(n, d)``, bool.

    The scale is the median of those between records of the lower and the upper half of a column's values, and the
    offset a median too: records that changed or were cut off do not move them, unless they are many.
    """
    order = own.argsort(dim=0, stable=True)
    half = len(own) // 2
    rises = [values.gather(0, order[-half:]) - values.gather(0, order[:half]) for values in (own, other)]
    # Of a column of few values many pairs are of the same one.
    slopes = torch.where(rises[0] != 0, rises[1] / rises[0], torch.nan)
    slope = slopes.nanmedian(dim=0).values.nan_to_num(nan=0.0) if half else torch.zeros(own.shape[1])
    rest = other - own * slope
    size = (other.amax(dim=0) - other.amin(dim=0)).clamp(min=1.0)
    return (rest - rest.median(dim=0).values).abs() <= _SAME_WITHIN * size


def _check_columns(first: NamedRun, other: NamedRun) -> None:
    if list(first.passives) != list(other.passives):
        raise DataError(
            f"{first.source} and {other.source} have other passive parties: {', '.join(first.passives)}, and "
            f"{', '.join(other.passives) or 'none'}"
        )
    for name, party in first.passives.items():
        own, others = party.data.numeric_names, other.passives[name].data.numeric_names
        if own != others:
            different = sorted(set(own) ^ set(others)) or list(own)
            raise DataError(
                f"{first.source} and {other.source} have other columns of {name}: {different[0]!r} is not in both, in "
                "one place"
            )


def _places(run: NamedRun) -> dict[object, int]:
    """Return where each record is among the training and test records of a run, one after the other."""
    names = [name for part in PARTS for name in run.names[part]]
    found = {name: place for place, name in enumerate(names)}
    if len(found) < len(names):
        raise DataError(f"{run.source}: {len(names) - len(found)} records have a name that another one has")
    return found


def _holding(
    run: NamedRun, names: Mapping[Part, Sequence[object]], places: Mapping[Part, Tensor], ids: Mapping[Part, Tensor]
) -> NamedRun:
    parts = {
        name: {part: _taken(party.data, places[part], ids[part]) for part in PARTS}
        for name, party in {run.active.name: run.active, **run.passives}.items()
    }
    return NamedRun(
        run.source,
        _with(run.active, parts[run.active.name]),
        {name: _with(party, parts[name]) for name, party in run.passives.items()},
        names,
    )


def _with(party: _P, parts: Mapping[Part, Records]) -> _P:
    found = copy.copy(party)
    found.data = replace(party.data, train=parts["train"], test=parts["test"])
    return found


def _taken(data: PartyData, places: Tensor, ids: Tensor) -> Records:
    """Return records of either part by their place among both, as they are held."""
    trained = places < data.train.count
    own = data.train.columns
    numeric = own.numeric.new_empty((len(places), own.numeric.shape[1]))
    categorical = own.categorical.new_empty((len(places), own.categorical.shape[1]))
    for where, records, start in ((trained, data.train, 0), (~trained, data.test, data.train.count)):
        rows = records.columns.rows(places[where] - start)
        numeric[where], categorical[where] = rows.numeric, rows.categorical.to(categorical.dtype)
    return replace(Records(ids, Columns(numeric, categorical)), row_norm=data.train.row_norm, transform=data.transform)


# --- systems


def stacked_system(systems: Sequence[System], sources: Sequence[str]) -> System:
    """Return the systems of several runs on shared records as one, in the columns of the first; of one, that.

    Args:
        systems: One of each run, of the same view.
        sources: What the runs are called.

    Raises:
        DataError: If they are of different views, or columns are not the same in all runs.
    """
    first = systems[0]
    if len(systems) == 1:
        return first
    for other, source in zip(systems[1:], sources[1:], strict=True):
        _check_same(first, other, sources[0], source)
    found = stack_models([one.known for one in systems])
    counts = ", ".join(map(str, found.ranks))
    notes = [f"independent equations after 1 to {len(systems)} models: {counts}"]
    notes += dict.fromkeys(note for one in systems for note in one.note.split("; "))
    parts = [one.fields["logit_parts"].values for one in systems if "logit_parts" in one.fields]
    fields = {"logit_parts": LogitParts(torch.cat(parts, dim=1), first.fields["logit_parts"].columns)} if parts else {}
    drawn = [one.drawn for one in systems if one.drawn is not None]
    return replace(
        first,
        known=found.known,
        fields=fields,
        note=joined(notes),
        drawn=stacked_system(drawn, sources) if drawn else None,
    )


def _check_same(first: System, other: System, source: str, other_source: str) -> None:
    views = [(one.sees, one.part, tuple(one.targets), one.knows_transform) for one in (first, other)]
    if views[0] != views[1] or not torch.equal(first.rows, other.rows):
        raise DataError(
            f"{source} and {other_source} show predictions in different ways, {first.sees} of "
            f"{' and '.join(first.targets)} and {other.sees} of {' and '.join(other.targets)}: their exchanges, or "
            "their parties' transforms, differ"
        )
    for name, target in first.targets.items():
        _check_points(target, other.targets[name], first, f"{source} and {other_source}", name)


def _check_points(target: FeatureTarget, other: FeatureTarget, system: System, sources: str, party: str) -> None:
    """Compare the columns of the judged records, of which both have the same range."""
    if target.names != other.names:
        different = sorted(set(target.names) ^ set(other.names))
        raise DataError(f"{sources}: {party}: {different[0]!r} varies over the shared records in one of them alone")
    own, others = (one.points(system.part, system.rows) for one in (target, other))
    apart = (own - others).abs().amax(dim=0)
    if bool((apart > _SAME_WITHIN).any()):
        column = target.names[int(apart.argmax())]
        raise DataError(
            f"{sources}: {party}: {column!r} is not the same in the shared records: its values have changed, gaps were "
            "filled otherwise, or the encodings differ by more than a scale"
        )

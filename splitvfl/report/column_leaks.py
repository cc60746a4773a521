"""What a page says of columns that scores told: rows of its tables, from a reconstruction or from a summary alone."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from splitvfl.leakage.estimates import JudgedAttack
from splitvfl.leakage.features import FeatureLeak, best_by_view
from splitvfl.leakage.reconstruction import ReconstructedView, Reconstruction


class AttackRow(NamedTuple):
    """An attack's figures in one view; what was not kept is ``None``.

    Attributes:
        party: Whose columns.
        seen: Of what a prediction was read; and with which weights, if not the true ones.
        attack: The attack, or what knowing nothing of a record is called.
        features: Number of columns that it estimates.
        equations: Number of independent equations.
        joint: Number of columns that they are in.
        test: Mean squared error on test records.
        train: On training records.
        near: Share of entries within .05, of test records where there are any.
        right: Mean share of categories right, likewise.
        bits: Bits left, likewise.
        blind: Whether it knows nothing of a record.
    """

    party: str
    seen: str
    attack: str
    features: int
    equations: int | None
    joint: int | None
    test: float | None
    train: float | None
    near: float | None
    right: float | None
    bits: float | None
    blind: bool = False


class ColumnRow(NamedTuple):
    """A column as the best attack of a view estimates it; what was not kept is ``None``."""

    party: str
    seen: str
    attack: str
    column: str
    mse: float
    mean_mse: float
    half_mse: float
    near: float
    bits: float | None
    bits_before: float | None


class ViewNote(NamedTuple):
    """What there is to say of a view beside its figures."""

    party: str
    seen: str
    lines: Sequence[str]


# --- of a reconstruction


def attack_rows(found: Reconstruction) -> Iterator[AttackRow]:
    """Yield the rows of every party and view that tells something of its own, the best attack first."""
    for party, seen, view, trained in found.shown():
        other = {} if trained is None else {one.attack: one.mse for one in trained.attacks}
        for one in view.attacks:
            figures = (one.near, _mean(one.categories), one.bits_left)
            yield _row(party, seen, view, one.attack, one.mse, other.get(one.attack), *figures)
        d, own = len(view.baselines), view.baselines
        near, bits = sum(one.near_mean for one in own) / d, sum(one.bits for one in own) / d
        blind = None if trained is None else trained.mean_mse
        means = _row(party, seen, view, "(means alone)", view.mean_mse, blind, near, _mean(view.commonest), bits)
        yield means._replace(blind=True)
        if any(one.attack == "half" for one in view.attacks):
            continue
        half = None if trained is None else trained.half_mse
        yield _row(party, seen, view, "(½ alone)", view.half_mse, half, None, None, None)._replace(blind=True)


def _row(
    party: str,
    seen: str,
    view: ReconstructedView,
    attack: str,
    mse: float,
    trained: float | None,
    near: float | None,
    right: float | None,
    bits: float | None,
) -> AttackRow:
    test, train = (mse, trained) if view.part == "test" else (None, mse)
    return AttackRow(
        party, seen, attack, len(view.baselines), view.equations, view.joint, test, train, near, right, bits
    )


def _mean(shares: Mapping[str, float]) -> float | None:
    return sum(shares.values()) / len(shares) if shares else None


def column_rows(found: Reconstruction) -> Iterator[ColumnRow]:
    """Yield the columns by the best attack of every view with true weights, those of which most is told first."""
    for party, seen, view, _ in found.shown():
        if view.weights != "true":
            continue
        for place in _most_told(view.best, view.left):
            one, own = view.best.columns[place], view.baselines[place]
            figures = (one.mse, own.mean_mse, own.half_mse, one.near, one.bits_left, own.bits)
            yield ColumnRow(party, seen, view.best.attack, one.column, *figures)


def _most_told(best: JudgedAttack, left: Mapping[str, float]) -> list[int]:
    return sorted(range(len(best.columns)), key=lambda place: left.get(best.columns[place].column, math.inf))


def view_notes(found: Reconstruction) -> list[ViewNote]:
    """Return what there is to say beside figures, by view; of attacks that were not run, last."""
    said = [ViewNote(party, seen, view.said) for party, seen, view, _ in found.shown()]
    return [*(one for one in said if one.lines), *(ViewNote("", "", [line]) for line in found.said)]


def plotted_views(found: Reconstruction) -> list[tuple[str, str, ReconstructedView]]:
    """Return the views of which values of records were kept, each with its party and name."""
    return [(party, seen, view) for party, seen, view, _ in found.shown() if view.plots]


# --- of a summary


def attack_rows_of(party: str, leaks: Sequence[FeatureLeak]) -> Iterator[AttackRow]:
    """Yield the rows of attacks of which only a summary's figures are there."""
    found: dict[tuple[str, str], dict[str, FeatureLeak]] = {}
    for leak in leaks:
        found.setdefault((leak.sees, leak.attack), {})[leak.part] = leak
    for (sees, attack), parts in found.items():
        told = parts.get("test") or parts["train"]
        test, train = (None if part not in parts else parts[part].mse for part in ("test", "train"))
        yield AttackRow(
            party, sees, attack, told.features, told.equations, told.joint, test, train, told.near, None, None
        )
    for sees in dict.fromkeys(leak.sees for leak in leaks):
        parts = {leak.part: leak for leak in leaks if leak.sees == sees}
        told = parts.get("test") or parts["train"]
        for name, of in (("(means alone)", "blind_mse"), ("(½ alone)", "half_mse")):
            test, train = (None if part not in parts else getattr(parts[part], of) for part in ("test", "train"))
            if test is not None or train is not None:
                figures = (told.features, told.equations, told.joint, test, train)
                yield AttackRow(party, sees, name, *figures, None, None, None, blind=True)


def column_rows_of(party: str, leaks: Sequence[FeatureLeak]) -> Iterator[ColumnRow]:
    """Yield the columns by the best attack of every view of which only a summary's figures are there."""
    for leak in best_by_view(leaks):
        for one in sorted(leak.columns, key=lambda one: one.mse / one.mean_mse if one.mean_mse else math.inf):
            figures = (one.mse, one.mean_mse, one.half_mse, one.near, None, None)
            yield ColumnRow(party, leak.sees, leak.attack, one.column, *figures)

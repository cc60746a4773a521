"""Judging a feature attack: how far its estimate lies from the columns that it never saw."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final, Literal

import torch
from torch import Tensor

from splitvfl.errors import ArgumentError
from splitvfl.hooks import Attack, View, call_attack, hook_name, note_of
from splitvfl.leakage.categories import CategoryGroup, CategoryLeak, flags, judge_category
from splitvfl.leakage.column_matching import matched_mse
from splitvfl.leakage.remaining_bits import bits_left, bits_of

# An entry counts as found when it is off by no more than this, in the unit box.
NEAR = 0.05

AWARE: Final = " (knows the transform)"
"""Stands behind the name of an attack whose attacker knows the transform of columns."""

Sees = Literal["scores", "activation"]
Part = Literal["train", "test"]


@dataclass(frozen=True, slots=True)
class ColumnLeak:
    """One column of an attack's estimate, in the unit box: 0 and 1 are the ends of the column's known range.

    Attributes:
        column: The column's name.
        mse: Mean squared error of the estimate.
        mean_mse: The same of answering the column's mean for every record: its variance.
        half_mse: The same of answering ½.
        near: Share of records whose estimate is off by at most .05.
        bits: Entropy of the column, in bits, as :func:`~splitvfl.leakage.remaining_bits.bits_of` counts them; ``None``
            in summaries from before it was kept.
        bits_left: What is left of it to who has the estimate, ``H(X | X̂)``; likewise.
    """

    column: str
    mse: float
    mean_mse: float
    half_mse: float
    near: float
    bits: float | None = None
    bits_left: float | None = None


@dataclass(frozen=True, slots=True)
class FeatureLeak:
    """One attack's leak of the other party's columns.

    Attributes:
        attack: The attack's name.
        mse: Mean squared error per feature of its estimate, in the unit box.
        blind_mse: The same for the estimate that answers every column's mean: what knowing nothing of a record costs.
        features: Number of columns that it estimates; those that do not vary are known.
        note: What the attack warned of, such as scores that hold no logit, and how many records lie beyond the range;
            empty if nothing.
        sees: Of what it reads a prediction: of its scores, which somebody else computed; or of the activation, which
            the label party receives today.
        part: Whose records: ``"train"`` or ``"test"``.
        half_mse: Mean squared error per feature of answering ½; ``None`` in summaries from before it was kept.
        near: Share of entries whose estimate is off by at most .05; likewise.
        equations: Number of independent equations that it had; likewise.
        joint: Number of columns that these equations are in, of all passive parties; likewise.
        records: Number of records that it was judged on; likewise.
        columns: The same figures column by column; empty in such summaries.
        bits: Entropy of a column, in bits, the mean of all; ``None`` in such summaries.
        bits_left: What is left of it to who has the estimate, ``H(X | X̂)``, likewise.
        matched_mse: Mean squared error per feature after the best permutation of the estimate's columns: what counts
            where the attacker does not know their order. See :mod:`splitvfl.leakage.column_matching`; likewise.
        right: Share of records whose category is the one with the largest estimate, the mean of all categories and
            flags; ``None`` if there is none.
        categories: The same category by category, flags behind.
    """

    attack: str
    mse: float
    blind_mse: float
    features: int
    note: str = ""
    sees: Sees = "scores"
    part: Part = "test"
    half_mse: float | None = None
    near: float | None = None
    equations: int | None = None
    joint: int | None = None
    records: int | None = None
    columns: list[ColumnLeak] = field(default_factory=list)
    bits: float | None = None
    bits_left: float | None = None
    matched_mse: float | None = None
    right: float | None = None
    categories: list[CategoryLeak] = field(default_factory=list)

    def scalars(self, party: str) -> dict[str, float]:
        """Return its figures for a log, by tag.

        Args:
            party: Whose columns they are.
        """
        tag = f"columns/{party}/{self.attack}/{self.sees}/{self.part}"
        return {f"{tag}/mse": self.mse, f"{tag}/mse_of_means": self.blind_mse}


def run_feature_attack(attack: Attack, view: View, width: int) -> tuple[Tensor, str]:
    """Run a feature attack on a view; return its estimate, and what it warned of and noted.

    Args:
        attack: Returns ``(n, d)``.
        view: What the attacking party sees.
        width: Number of columns that it has to estimate, d.

    Raises:
        HookError: If the attack breaks its contract.
        AttackRefused: If it cannot work on this view.
        ArgumentError: If its estimate has another shape than ``(n, width)``, or is not finite.
    """
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", RuntimeWarning)
        estimate = call_attack(attack, view)
    expected = (view.ids.shape[0], width)
    if estimate.shape != expected:
        raise ArgumentError(f"{hook_name(attack)}: expected an estimate of {expected}, got {tuple(estimate.shape)}")
    if not bool(torch.isfinite(estimate).all()):
        raise ArgumentError(f"{hook_name(attack)}: the estimate holds NaN or infinite values")
    said = [*(str(warning.message) for warning in caught), note_of(attack)]
    return estimate, "; ".join(dict.fromkeys(text for text in said if text))


def judge_features(
    attack: Attack,
    view: View,
    truth: Tensor,
    *,
    names: Sequence[str] = (),
    sees: Sees = "scores",
    part: Part = "test",
) -> FeatureLeak:
    """Run a feature attack on a view and compare it with the true columns.

    Args:
        attack: Returns ``(n, d)``.
        view: What the attacking party sees; the truth is not in it.
        truth: The other party's columns, ``(n, d)``, in the unit box.
        names: Of the columns; by default their numbers.
        sees: Of what the view tells.
        part: Whose records they are.

    Raises:
        HookError: If the attack breaks its contract.
        ArgumentError: If its estimate has another shape than the truth, or either is not finite.
    """
    estimate, note = run_feature_attack(attack, view, truth.shape[1])
    return judge_estimate(hook_name(attack), estimate, truth, names=names, note=note, sees=sees, part=part)


def judge_estimate(
    attack: str,
    estimate: Tensor,
    truth: Tensor,
    *,
    names: Sequence[str] = (),
    note: str = "",
    sees: Sees = "scores",
    part: Part = "test",
    groups: Sequence[CategoryGroup] = (),
) -> FeatureLeak:
    """Compare an estimate with the true columns.

    Args:
        attack: Name of the attack that made it.
        estimate: ``(n, d)``, in the unit box.
        truth: ``(n, d)``, in the unit box.
        names: Of the columns; by default their numbers.
        note: What there is to say of it.
        sees: Of what it was made.
        part: Whose records they are.
        groups: Categories among the columns; columns of 0 and 1 that are in none are judged like them.

    Raises:
        ArgumentError: If there is no record or no column, or an entry is not finite.
    """
    guessed, true = estimate.double(), truth.double().to(estimate.device)
    if guessed.shape != true.shape or not true.numel():
        raise ArgumentError(
            f"expected estimate and truth of one shape (n, d), got {tuple(guessed.shape)} and {tuple(true.shape)}"
        )
    off = guessed - true
    if not bool(torch.isfinite(off).all()):
        raise ArgumentError("estimate or truth holds NaN or infinite values")
    mse, near = off.square().mean(dim=0), (off.abs() <= NEAR).double().mean(dim=0)
    blind, middle = (true - true.mean(dim=0)).square().mean(dim=0), (true - 0.5).square().mean(dim=0)
    named = names or [str(number) for number in range(true.shape[1])]
    bits = [(bits_of(own), bits_left(own, answer)) for own, answer in zip(true.T, guessed.T, strict=True)]
    figures = zip(*(found.tolist() for found in (mse, blind, middle, near)), *zip(*bits, strict=True), strict=True)
    judged = [judge_category(one, guessed, true) for one in (*groups, *flags(true, named, groups))]
    return FeatureLeak(
        attack=attack,
        mse=mse.mean().item(),
        blind_mse=blind.mean().item(),
        features=true.shape[1],
        note=note,
        sees=sees,
        part=part,
        half_mse=middle.mean().item(),
        near=near.mean().item(),
        records=true.shape[0],
        columns=[ColumnLeak(name, *values) for name, values in zip(named, figures, strict=True)],
        bits=_mean([whole for whole, _ in bits]),
        bits_left=_mean([left for _, left in bits]),
        matched_mse=matched_mse(guessed, true),
        right=_mean([one.right for one in judged]) if judged else None,
        categories=judged,
    )


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def best_by_view(leaks: Sequence[FeatureLeak]) -> list[FeatureLeak]:
    """Return of each view of predictions the attack with the least error: on test records, where there were some.

    Args:
        leaks: Of one party.
    """
    best = []
    for sees in dict.fromkeys(leak.sees for leak in leaks):
        seen = [leak for leak in leaks if leak.sees == sees]
        best.append(min([leak for leak in seen if leak.part == "test"] or seen, key=lambda leak: leak.mse))
    return best


def best_by_knowledge(leaks: Sequence[FeatureLeak]) -> list[list[FeatureLeak]]:
    """Return :func:`best_by_view` of attackers who do not know a transform of columns, and of those who do.

    Args:
        leaks: Of one party.
    """
    aware = [leak for leak in leaks if leak.attack.endswith(AWARE)]
    others = [leak for leak in leaks if not leak.attack.endswith(AWARE)]
    return [best_by_view(found) for found in (others, aware) if found]


def feature_notes(leaks: Iterable[FeatureLeak]) -> list[str]:
    """Return each thing that was noted once, with the attacks, or the views of all attacks, of which it was."""
    leaks = list(leaks)
    noted: dict[str, list[FeatureLeak]] = {}
    for leak in leaks:
        for text in leak.note.split("; ") if leak.note else []:
            noted.setdefault(text, []).append(leak)
    return [f"{_of(found, leaks)}: {text}" for text, found in noted.items()]


def _of(found: Sequence[FeatureLeak], leaks: Sequence[FeatureLeak]) -> str:
    attacks = list(dict.fromkeys(leak.attack for leak in found))
    everybody = len(attacks) == len({leak.attack for leak in leaks})
    views = ", ".join(dict.fromkeys(f"{leak.sees} of {leak.part} records" for leak in found))
    return f"{'all feature attacks' if everybody and len(attacks) > 1 else ', '.join(attacks)} ({views})"

"""Judging label attacks, against a slow dictionary of scikit-learn's AUCs."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import roc_auc_score
from torch import Tensor

from splitvfl import checkpoint, records
from splitvfl.attacks import DirectionAttack, GradientClassifierAttack, ModelCompletionAttack
from splitvfl.errors import ArgumentError, HookError
from splitvfl.hooks import Attack, View, needs_of
from splitvfl.leakage import judging
from splitvfl.leakage.judging import Handle, Leak, LeakSummary, ScoreKeeper, nanmax

Step = tuple[Tensor, Tensor, Tensor]

IDS = {
    "rows": torch.arange(40),
    "sparse": torch.arange(40) * 977 + 5,
    "any": torch.where(torch.arange(40) % 2 == 0, -(3 ** torch.arange(40).remainder(30)) - torch.arange(40), 2**50)
    + torch.arange(40),
}


def run_of(ids: Tensor, steps: int, *, seed: int = 0, size: int = 12, nan: float = 0.0) -> list[Step]:
    """Batches of records with a label of their own, drawn with replacement: duplicates occur."""
    random = torch.Generator().manual_seed(seed)
    labels = (torch.rand(ids.numel(), generator=random) < 0.4).float()
    batches = []
    for number in range(steps):
        rows = torch.randint(0, ids.numel(), (size,), generator=random)
        scores = torch.randn(size, generator=random, dtype=torch.float64) + 0.5 * labels[rows]
        scores = (scores * 10.0 ** (number % 5 - 2)).round(decimals=3)
        scores[torch.rand(size, generator=random) < nan] = math.nan
        batches.append((ids[rows], scores, labels[rows]))
    return batches


def auc_of(scores: Any, labels: Any) -> float:
    return float(roc_auc_score(labels, scores)) if len(set(labels)) == 2 else math.nan


def slow(steps: list[Step]) -> LeakSummary:
    """The definition: one record after the other."""
    aucs, totals, truth = [], defaultdict(float), {}
    for ids, scores, labels in steps:
        rows = [row for row in zip(ids.tolist(), scores.tolist(), labels.tolist(), strict=True) if row[1] == row[1]]
        if not rows:
            aucs.append(math.nan)
            continue
        values = [score for _, score, _ in rows]
        aucs.append(auc_of(values, [label for _, _, label in rows]))
        mean, deviation = np.mean(values), np.std(values)
        for name, score, label in rows if len(rows) > 1 else []:
            totals[name] += (score - mean) / deviation if len(set(values)) > 1 else 0.0
            truth[name] = label
    known = [auc for auc in aucs if not math.isnan(auc)]
    auc = float(np.mean(known)) if known else math.nan
    oriented = [value if auc >= 0.5 else 1 - value for value in known]
    # Rounded: a record whose scores cancel must tie with one that had none.
    sums = [round(totals[name], 9) for name in truth]
    accumulated = auc_of(sums, list(truth.values())) if truth else math.nan
    return LeakSummary(
        auc=auc,
        worst_auc=max(auc, 1 - auc),
        quantile_95=float(np.quantile(oriented, 0.95)) if known else math.nan,
        accumulated_auc=accumulated,
        worst_accumulated_auc=max(accumulated, 1 - accumulated),
        steps=len(known),
        undefined=len(aucs) - len(known),
    )


def keeper_of(steps: list[Step]) -> ScoreKeeper:
    keeper = ScoreKeeper()
    for step in steps:
        keeper.add(*step)
    return keeper


def through_a_file(state: dict[str, Any], folder: Path) -> dict[str, Any]:
    return checkpoint.load(checkpoint.save(folder, 7, {"hook": state}))["hook"]


def figures(summary: LeakSummary) -> dict[str, Any]:
    return {name: getattr(summary, name) for name in LeakSummary.__dataclass_fields__}


def agree(left: LeakSummary, right: LeakSummary) -> None:
    # Means of a few dozen figures, each a ratio of small counts: a few roundings apart.
    assert figures(left) == pytest.approx(figures(right), abs=1e-12, nan_ok=True)


@pytest.mark.parametrize("ids", IDS.values(), ids=IDS.keys())
@pytest.mark.parametrize("nan", [0.0, 0.3, 0.95])
def test_every_figure_is_that_of_the_slow_definition(ids: Tensor, nan: float) -> None:
    steps = run_of(ids, 60, nan=nan)
    agree(keeper_of(steps).summary(), slow(steps))


def test_one_step_returns_its_own_auc() -> None:
    keeper = ScoreKeeper()
    for ids, scores, labels in run_of(IDS["any"], 10):
        assert keeper.add(ids, scores, labels) == pytest.approx(auc_of(scores.tolist(), labels.tolist()), abs=1e-12)


@pytest.mark.parametrize("limit", [1, 13, 50, 10**9])
def test_lazy_settling_makes_no_difference_wherever_it_falls(monkeypatch: pytest.MonkeyPatch, limit: int) -> None:
    steps = run_of(IDS["any"], 30, nan=0.1)
    expected = keeper_of(steps).summary()
    monkeypatch.setattr(judging, "_MOST_PENDING", limit)
    assert figures(keeper_of(steps).summary()) == figures(expected)


@settings(max_examples=30)
@given(st.lists(st.sampled_from(["read", "records", "state", "summary", "nothing"]), min_size=12, max_size=12))
def test_reading_and_saving_in_between_change_nothing(acts: list[str]) -> None:
    steps = run_of(IDS["any"], 12, nan=0.2, seed=3)
    keeper = ScoreKeeper()
    for number, (step, act) in enumerate(zip(steps, acts, strict=True), start=1):
        keeper.add(*step)
        if act == "read":
            assert keeper.accumulated_auc == pytest.approx(slow(steps[:number]).accumulated_auc, abs=1e-12, nan_ok=True)
        elif act == "records":
            assert keeper.records == len({name for ids, s, _ in steps[:number] for name in ids[~s.isnan()].tolist()})
        elif act == "summary":
            agree(keeper.summary(), slow(steps[:number]))
        elif act == "state":
            state = keeper.state_dict()
            keeper = ScoreKeeper()
            keeper.add(*steps[0])  # what it held before must go
            keeper.load_state_dict(state)
    assert figures(keeper.summary()) == figures(keeper_of(steps).summary())


def test_a_keeper_from_a_checkpoint_goes_on_alike(tmp_path: Path) -> None:
    steps = run_of(IDS["any"], 20)
    keeper = keeper_of(steps[:9])
    copy = ScoreKeeper()
    copy.load_state_dict(through_a_file(keeper.state_dict(), tmp_path))
    for step in steps[9:]:
        keeper.add(*step)
        copy.add(*step)
    assert figures(copy.summary()) == figures(keeper.summary()) == figures(keeper_of(steps).summary())
    assert copy.recent_auc == keeper.recent_auc


def test_ids_that_the_caller_overwrites_afterwards_were_copied() -> None:
    steps = run_of(IDS["rows"], 10)
    keeper = ScoreKeeper()
    for ids, scores, labels in steps:
        mine = [ids.clone(), scores.clone(), labels.clone()]
        keeper.add(*mine)
        for tensor in mine:
            tensor.zero_()
    assert figures(keeper.summary()) == figures(keeper_of(steps).summary())


def test_both_of_two_equal_ids_in_one_batch_count() -> None:
    keeper = ScoreKeeper()
    keeper.add(torch.tensor([1, 1, 2, 2]), torch.tensor([1.0, 1.0, -1.0, -1.0]), torch.tensor([1, 1, 0, 0]))
    keeper.add(torch.tensor([2, 1]), torch.tensor([9.0, 8.0]), torch.tensor([0, 1]))
    # Sums: record 1: 1 + 1 − 1 = 1; record 2: −1 − 1 + 1 = −1.
    assert keeper.accumulated_auc == 1.0
    assert keeper._records["total"].tolist() == [0.0, 1.0, -1.0]
    assert keeper._records["count"].tolist() == [0, 3, 3]


def test_large_gradients_of_one_step_do_not_drown_the_others() -> None:
    ids, labels = torch.tensor([10, 20]), torch.tensor([0, 1])
    keeper = ScoreKeeper()
    for _ in range(2):
        keeper.add(ids, torch.tensor([0.0, 1e-6]), labels)
    keeper.add(ids, torch.tensor([1e6, 0.0]), labels)
    assert keeper.accumulated_auc == 1.0


@pytest.mark.parametrize("value", [0.1, 1 / 3, 1e-200, 7e50])
@pytest.mark.parametrize("size", [3, 5, 7, 11])
def test_equal_scores_say_nothing_about_anybody(value: float, size: int) -> None:
    """The rounded mean of equal scores may differ from them; that difference must not be standardised."""
    keeper = ScoreKeeper()
    keeper.add(torch.arange(size), torch.full((size,), value, dtype=torch.float64), torch.arange(size) % 2)
    assert keeper.accumulated_auc == 0.5
    assert not keeper._records["total"].any()


def test_worst_auc_is_oriented_once_per_run_and_never_per_batch() -> None:
    """Steps of AUC 1 and 0 in turn are a blind attacker: the better orientation of each batch would give 1."""
    ids, labels = torch.tensor([4, 5]), torch.tensor([0.0, 1.0])
    keeper = ScoreKeeper()
    for number in range(20):
        keeper.add(ids, torch.tensor([0.0, (-1.0) ** number]), labels)
    summary = keeper.summary()
    assert (summary.auc, summary.worst_auc, summary.accumulated_auc) == (0.5, 0.5, 0.5)


def test_an_attack_with_the_sign_reversed_is_as_bad() -> None:
    steps = run_of(IDS["sparse"], 50)
    plain = keeper_of(steps).summary()
    turned = keeper_of([(ids, -scores, labels) for ids, scores, labels in steps]).summary()
    assert turned.auc == pytest.approx(1 - plain.auc, abs=1e-12)
    assert turned.accumulated_auc == pytest.approx(1 - plain.accumulated_auc, abs=1e-12)
    for name in ("worst_auc", "quantile_95", "worst_accumulated_auc", "worst", "steps"):
        assert getattr(turned, name) == pytest.approx(getattr(plain, name), abs=1e-12)
    assert plain.quantile_95 > plain.worst_auc > 0.5


def test_undefined_steps_are_counted_and_enter_no_average() -> None:
    keeper = ScoreKeeper()
    ids = torch.tensor([1, 2])
    good, bad = torch.tensor([0.0, 1.0]), torch.full((2,), math.nan)
    assert keeper.add(ids, good, torch.tensor([0, 1])) == 1.0
    assert math.isnan(keeper.add(ids, good, torch.tensor([1, 1])))
    assert math.isnan(keeper.add(ids, bad, torch.tensor([0, 1])))
    assert math.isnan(keeper.add(torch.zeros(0, dtype=torch.int64), torch.zeros(0), torch.zeros(0)))
    summary = keeper.summary()
    assert (summary.auc, summary.quantile_95, summary.steps, summary.undefined) == (1.0, 1.0, 1, 3)


def test_a_run_without_any_auc_has_nan_figures_and_no_error() -> None:
    for keeper in (ScoreKeeper(), keeper_of([(torch.tensor([3]), torch.tensor([0.5]), torch.tensor([1.0]))])):
        summary = keeper.summary()
        assert math.isnan(summary.auc)
        assert math.isnan(summary.worst_auc)
        assert math.isnan(summary.quantile_95)
        assert math.isnan(summary.worst_accumulated_auc)
        assert math.isnan(summary.worst)
        assert math.isnan(keeper.recent_auc)


def test_without_ids_nothing_is_added_up() -> None:
    keeper = ScoreKeeper()
    assert keeper.add(None, torch.tensor([0.0, 1.0]), torch.tensor([0, 1])) == 1.0
    assert math.isnan(keeper.accumulated_auc)
    assert keeper.records == 0
    assert keeper.summary().worst == 1.0


def test_recent_auc_is_the_mean_of_the_last_ten_defined_steps() -> None:
    steps = run_of(IDS["rows"], 25)
    aucs = [auc_of(scores.tolist(), labels.tolist()) for _, scores, labels in steps]
    defined = [auc for auc in aucs if not math.isnan(auc)]
    assert keeper_of(steps).recent_auc == pytest.approx(np.mean(defined[-10:]), abs=1e-12)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.int64])
def test_scores_of_every_dtype_are_judged_alike(dtype: torch.dtype) -> None:
    random = torch.Generator().manual_seed(2)
    labels = torch.tensor([0, 1] * 6)
    steps = [(IDS["any"][:12], torch.randint(-8, 9, (12,), generator=random), labels) for _ in range(8)]
    found = keeper_of([(ids, scores.to(dtype), labels) for ids, scores, labels in steps]).summary()
    agree(found, slow(steps))


def test_nanmax() -> None:
    assert nanmax(math.nan, 0.2, 0.7) == 0.7
    assert math.isnan(nanmax(math.nan, math.nan))
    assert math.isnan(nanmax())


class Scripted:
    """Scores from a function of its view."""

    name: ClassVar[str] = "scripted"

    def __init__(self, score: Callable[[View], Tensor], *, needs: frozenset[str] = frozenset({"gradient"})) -> None:
        self.needs = needs
        self._score = score

    def __call__(self, view: View, /) -> Tensor:
        return self._score(view)


KNOWING = frozenset({"gradient", "known_positives"})
KNOWING_BOTH = KNOWING | {"known_negatives"}


def view_of(ids: Tensor, gradient: Tensor, step: int = 0) -> View:
    return View(party="telecom", step=step, ids=ids, gradient=gradient)


def granted(wanted: int, batches: list[tuple[list[int], list[int]]]) -> list[list[int]]:
    """Return what an attack was told in each step."""
    told: list[list[int]] = []

    def score(view: View) -> Tensor:
        told.append(view.known_positives.tolist())
        return view.gradient[:, 0]

    leak = Leak(Scripted(score, needs=KNOWING), known_positives=wanted)
    for ids, labels in batches:
        leak.see(view_of(torch.tensor(ids), torch.randn(len(ids), 2)), torch.tensor(labels))
    return told


def test_known_positives_are_the_first_ones_met_and_stay_the_same() -> None:
    batches = [([5, -9, 4], [0, 0, 0]), ([5, -9, 4], [0, 1, 0]), ([8, 3, 2**40], [1, 1, 1]), ([1, 2, 3], [1, 1, 1])]
    assert granted(3, batches) == [[], [-9], [-9, 3, 8], [-9, 3, 8]]
    assert granted(0, batches) == [[]] * 4


def test_a_known_positive_that_comes_again_does_not_take_anothers_place() -> None:
    assert granted(2, [([7], [1]), ([7, 9], [1, 1])]) == [[7], [7, 9]]
    assert granted(2, [([7, 7, 9], [1, 1, 1])]) == [[7, 9]]


def test_known_negatives_are_counted_by_themselves_and_are_the_first_ones_met() -> None:
    told: list[tuple[list[int], list[int]]] = []

    def score(view: View) -> Tensor:
        told.append((view.known_positives.tolist(), view.known_negatives.tolist()))
        return view.gradient[:, 0]

    leak = Leak(Scripted(score, needs=KNOWING_BOTH), known_positives=1, known_negatives=3)
    for ids, labels in (([5, -9], [0, 1]), ([8, 3, 2**40], [1, 0, 0]), ([1, 2], [0, 0])):
        leak.see(view_of(torch.tensor(ids), torch.eye(len(ids), 2)), torch.tensor(labels))
    assert told == [([-9], [5]), ([-9], [3, 5, 2**40]), ([-9], [3, 5, 2**40])]
    assert leak.needs == {"gradient"}


def test_an_attack_that_asks_for_one_class_is_not_told_of_the_other() -> None:
    seen: list[tuple[str, ...]] = []

    def score(view: View) -> Tensor:
        seen.append(view.fields)
        return view.gradient[:, 0]

    leak = Leak(Scripted(score, needs=KNOWING), known_negatives=5)
    leak.see(view_of(torch.tensor([3, 4]), torch.eye(2)), torch.tensor([1, 0]))
    assert seen == [("gradient", "known_positives")]


def test_without_ids_nobody_is_known() -> None:
    seen: list[int] = []

    def score(view: View) -> Tensor:
        seen.append(view.known_positives.numel())
        return view.gradient[:, 0]

    leak = Leak(Scripted(score, needs=KNOWING))
    leak.see(view_of(torch.arange(2), torch.eye(2)), torch.tensor([1, 0]), ids_known=False)
    assert seen == [0]
    assert leak.auc == 1.0
    assert math.isnan(leak.accumulated_auc)


def test_an_attack_that_asks_for_no_positives_gets_none() -> None:
    leak = Leak(Scripted(lambda view: torch.zeros(2) if "known_positives" in view.fields else view.gradient[:, 0]))
    assert leak.see(view_of(torch.tensor([3, 4]), torch.eye(2)), torch.tensor([1, 0])) == 1.0
    assert "known_positives" not in Leak(DirectionAttack()).needs


@pytest.mark.parametrize("labels", [[-1, 1], [1, 2]])
def test_labels_that_are_not_binary_name_the_attack(labels: list[int]) -> None:
    leak = Leak(Scripted(lambda view: view.gradient[:, 0]))
    with pytest.raises(HookError, match=r"scripted cannot be judged at step 3"):
        leak.see(view_of(torch.tensor([3, 4]), torch.eye(2), step=3), torch.tensor(labels))


def test_wrong_settings_are_refused() -> None:
    feature_attack = Scripted(lambda view: view.gradient)
    feature_attack.target = "features"  # type: ignore[attr-defined]
    with pytest.raises(ArgumentError, match="scripted estimates features"):
        Leak(feature_attack)
    with pytest.raises(ArgumentError, match="known_positives must be at least 0, got -1"):
        Leak(DirectionAttack(), known_positives=-1)
    with pytest.raises(ArgumentError, match="known_negatives must be at least 0, got -2"):
        Leak(DirectionAttack(), known_negatives=-2)
    with pytest.raises(ArgumentError, match=r"model-completion acts after training.*view_after_training"):
        Leak(ModelCompletionAttack())


@pytest.mark.parametrize("kind", [DirectionAttack, GradientClassifierAttack])
@pytest.mark.parametrize("at", [0, 1, 7])
def test_a_leak_from_a_checkpoint_goes_on_alike_with_its_attack_and_its_grants(
    tmp_path: Path, at: int, kind: Callable[[], Attack]
) -> None:
    random = torch.Generator().manual_seed(8)
    steps = []
    for ids, _, labels in run_of(IDS["any"], 15, seed=4):
        steps.append((ids, (labels[:, None] - 0.4) + torch.randn(12, 3, generator=random), labels))

    def show(leak: Leak, some: list[Step]) -> None:
        for number, (ids, gradient, labels) in enumerate(some):
            leak.see(view_of(ids, gradient, number), labels)

    def knowing(attack: Attack) -> Leak:
        return Leak(attack, known_positives=3, known_negatives=2)

    straight = knowing(kind())
    show(straight, steps)
    first, second = (knowing(kind()) for _ in range(2))
    show(first, steps[:at])
    second.load_state_dict(through_a_file(first.state_dict(), tmp_path))
    show(second, steps[at:])
    assert figures(second.summary) == pytest.approx(figures(straight.summary), abs=0, nan_ok=True)
    assert straight.summary.auc > 0.6
    assert second.state_dict()["known"].keys() == needs_of(kind()) - {"gradient"}
    for field, ids in straight.state_dict()["known"].items():
        assert second.state_dict()["known"][field].tolist() == ids.tolist()


def test_a_handle_removes_once_and_also_after_an_error() -> None:
    removed: list[int] = []
    handle = Handle(lambda: removed.append(1))
    handle.remove()
    handle.remove()
    assert removed == [1]
    with pytest.raises(KeyError), Leak(DirectionAttack(), remove=lambda: removed.append(2)):
        raise KeyError
    assert removed == [1, 2]


@pytest.mark.parametrize("ids", IDS.values(), ids=IDS.keys())
def test_beyond_the_limit_the_sums_are_those_of_the_first_records(ids: Tensor, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(judging, "_MOST_RECORDS", 10)
    monkeypatch.setattr(judging, "_MOST_PENDING", 1)
    monkeypatch.setattr(records, "DENSE_LIMIT", 10)
    steps = run_of(ids, 60)
    first: set[int] = set()
    for batch, _, _ in steps:
        if len(first) < 10:
            first |= set(batch.tolist())
    keeper = keeper_of(steps)

    # The slow definition, of which every record but those is forgotten: by their names, sums do not depend on others.
    kept = [(batch, scores, labels, [name in first for name in batch.tolist()]) for batch, scores, labels in steps]
    totals: defaultdict[int, float] = defaultdict(float)
    truth: dict[int, float] = {}
    for batch, scores, labels, known in kept:
        standardised = (scores - scores.mean()) / scores.std(correction=0)
        for name, score, label, keep in zip(batch.tolist(), standardised.tolist(), labels.tolist(), known, strict=True):
            if keep:
                totals[name] += score
                truth[name] = label
    assert 10 <= keeper.records == len(first) < 22
    expected = auc_of([round(totals[name], 9) for name in truth], list(truth.values()))
    assert keeper.accumulated_auc == pytest.approx(expected, abs=1e-12)
    assert keeper.summary().auc == slow(steps).auc

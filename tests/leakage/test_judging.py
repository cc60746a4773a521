"""Judging label attacks, against a slow dictionary of scikit-learn's AUCs."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import roc_auc_score
from torch import Tensor

from splitvfl.attacks import DirectionAttack, GradientClassifierAttack, ModelCompletionAttack
from splitvfl.data.coin_labels import Canaries
from splitvfl.data.columns import Columns, Records
from splitvfl.errors import ArgumentError, HookError
from splitvfl.hooks import Attack, View, needs_of
from splitvfl.leakage import judging, record_sums
from splitvfl.leakage.judging import Handle, Leak, ScoreKeeper
from splitvfl.leakage.leak_summary import LeakSummary, nanmax
from splitvfl.leakage.watching import Watch
from splitvfl.learning import records
from splitvfl.metrics import leak_auc
from splitvfl.report.party_result import PartyResult
from splitvfl.run import checkpoint

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
    """The share of pairs that are won, ties counting half: scikit-learn's figure, as the next test says."""
    values, truth = np.asarray(scores, dtype=np.float64), np.asarray(labels)
    positives, negatives = values[truth == 1, None], values[truth == 0]
    if positives.size == 0 or negatives.size == 0:
        return math.nan
    return float(np.mean((positives > negatives) + 0.5 * (positives == negatives)))


def test_what_the_others_are_compared_to_is_scikit_learns() -> None:
    for _, scores, labels in run_of(IDS["rows"], 10, size=30):
        coarse = scores.round()  # ties
        assert auc_of(coarse, labels) == pytest.approx(roc_auc_score(labels, coarse), abs=1e-12)


def slow(steps: list[Step]) -> LeakSummary:
    """The definition: one record after the other."""
    aucs, tied, totals, truth, scored = [], [], defaultdict(float), {}, set()
    asked = answered = 0
    for ids, scores, labels in steps:
        everything = list(zip(ids.tolist(), scores.tolist(), labels.tolist(), strict=True))
        rows = [row for row in everything if row[1] == row[1]]
        asked, answered = asked + len(everything), answered + len(rows)
        truth |= {name: label for name, _, label in everything}
        values = [score for _, score, _ in rows]
        mean, deviation = (np.mean(values), np.std(values)) if rows else (0.0, 1.0)
        # Rounded: left-out records must tie with scores that are all equal, or at the very mean.
        filled = [round(score - mean, 9) if score == score else 0.0 for _, score, _ in everything]
        aucs.append(auc_of(values, [label for _, _, label in rows]) if rows else math.nan)
        tied.append(auc_of(filled, [label for _, _, label in everything]))
        for name, score, _ in rows if len(rows) > 1 else []:
            totals[name] += (score - mean) / deviation if len(set(values)) > 1 else 0.0
            scored.add(name)
    known = [auc for auc in aucs if not math.isnan(auc)]
    complete = [auc for auc in tied if not math.isnan(auc)]
    auc, tied_auc = (float(np.mean(found)) if found else math.nan for found in (known, complete))
    turned = [value if tied_auc >= 0.5 else 1 - value for value in complete]

    def of_sums(names: list[int]) -> float:
        # Rounded: a record whose scores cancel must tie with one that had none.
        return (
            auc_of([round(totals[name], 9) for name in names], [truth[name] for name in names]) if names else math.nan
        )

    accumulated, tied_accumulated = of_sums([name for name in truth if name in scored]), of_sums(list(truth))
    return LeakSummary(
        auc=auc,
        worst_auc=max(tied_auc, 1 - tied_auc),
        quantile_95=float(np.quantile(turned, 0.95)) if complete else math.nan,
        accumulated_auc=accumulated,
        worst_accumulated_auc=max(tied_accumulated, 1 - tied_accumulated),
        steps=len(known),
        undefined=len(aucs) - len(known),
        tied_auc=tied_auc,
        tied_accumulated_auc=tied_accumulated,
        scored=answered / asked if asked else math.nan,
        scored_accumulated=len(scored) / len(truth) if truth else math.nan,
        positives=sum(label == 1 for label in truth.values()),
        negatives=sum(label == 0 for label in truth.values()),
    )


def keeper_of(steps: list[Step]) -> ScoreKeeper:
    keeper = ScoreKeeper()
    for step in steps:
        keeper.add(*step)
    return keeper


def through_a_file(state: dict[str, Any], folder: Path) -> dict[str, Any]:
    return checkpoint.load(checkpoint.save(folder, 7, {"hook": state}))["hook"]


def figures(summary: LeakSummary) -> dict[str, Any]:
    """Return a summary's figures; those of k classes and of numbers, which a binary leak has none of, as text."""
    values = {name: getattr(summary, name) for name in LeakSummary.__dataclass_fields__}
    names = list(values)
    others = names[names.index("task") :]
    return {name: str(value) if name in others else value for name, value in values.items()}


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


@pytest.mark.parametrize("unit", [2.0**-1000, 2.0**-600, 2.0**600, 2.0**1000])
@pytest.mark.parametrize("nan", [0.0, 0.3])
def test_the_unit_of_scores_changes_no_sum(unit: float, nan: float) -> None:
    """Squares of such scores overflow or vanish: an attack that has them must not look blind in the sums."""
    steps = run_of(torch.arange(40), 12, nan=nan)
    expected = keeper_of(steps).summary()
    found = keeper_of([(ids, scores.double() * unit, labels) for ids, scores, labels in steps]).summary()
    assert abs(expected.accumulated_auc - 0.5) > 0.02
    agree(found, expected)


@pytest.mark.parametrize("limit", [1, 13, 50, 10**9])
def test_lazy_settling_makes_no_difference_wherever_it_falls(monkeypatch: pytest.MonkeyPatch, limit: int) -> None:
    steps = run_of(IDS["any"], 30, nan=0.1)
    expected = keeper_of(steps).summary()
    monkeypatch.setattr(record_sums, "_MOST_PENDING", limit)
    assert figures(keeper_of(steps).summary()) == figures(expected)


@cache
def at_every_step() -> tuple[list[Step], list[LeakSummary]]:
    """Steps, and what is known after the first 0, 1, … of them."""
    steps = run_of(IDS["any"], 12, nan=0.2, seed=3)
    return steps, [slow(steps[:number]) for number in range(len(steps) + 1)]


@settings(max_examples=12)
@given(st.lists(st.sampled_from(["read", "records", "state", "summary", "nothing"]), min_size=12, max_size=12))
def test_reading_and_saving_in_between_change_nothing(acts: list[str]) -> None:
    steps, expected = at_every_step()
    keeper = ScoreKeeper()
    for number, (step, act) in enumerate(zip(steps, acts, strict=True), start=1):
        keeper.add(*step)
        if act == "read":
            assert keeper.accumulated_auc == pytest.approx(expected[number].accumulated_auc, abs=1e-12, nan_ok=True)
        elif act == "records":
            assert keeper.records == len({name for ids, s, _ in steps[:number] for name in ids[~s.isnan()].tolist()})
        elif act == "summary":
            agree(keeper.summary(), expected[number])
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
    assert keeper._records._records["total"].tolist() == [0.0, 1.0, -1.0]
    assert keeper._records._records["count"].tolist() == [0, 3, 3]


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
    assert not keeper._records._records["total"].any()


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
    assert (summary.auc, summary.steps, summary.undefined) == (1.0, 1, 3)
    # A step in which both classes came and nothing was scored told nothing: .5 where it counts.
    assert (summary.tied_auc, summary.quantile_95) == (0.75, pytest.approx(0.975))


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
    monkeypatch.setattr(record_sums, "MOST_RECORDS", 10)
    monkeypatch.setattr(record_sums, "_MOST_PENDING", 1)
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


# --- what is judged, and by which figure


def watched(score: Callable[[View], Tensor], needs: frozenset[str] = frozenset({"gradient"}), **known: int) -> Leak:
    """Five epochs of 60 records in batches of 20, judged; the gradient is the label with noise."""
    leak = Leak(Scripted(score, needs=needs), **known)
    random = torch.Generator().manual_seed(5)
    labels = (torch.rand(60, generator=random) < 0.4).double()
    for step in range(15):
        rows = torch.arange(60)[step % 3 :: 3]
        gradient = labels[rows][:, None] + 1.5 * torch.randn(20, 1, generator=random, dtype=torch.float64)
        leak.see(view_of(7 * rows, gradient, step), labels[rows])
    return leak


def test_an_attack_that_scores_only_what_it_was_told_is_not_judged_at_all() -> None:
    def told(view: View) -> Tensor:
        positive, negative = torch.isin(view.ids, view.known_positives), torch.isin(view.ids, view.known_negatives)
        return torch.where(positive | negative, positive.double(), math.nan)

    def told_or_zero(view: View) -> Tensor:
        return told(view).nan_to_num(nan=0.0)

    found = watched(told, KNOWING_BOTH, known_positives=4, known_negatives=5).summary
    assert (found.scored, found.steps) == (0.0, 0)
    assert math.isnan(found.worst)  # not one half: it was not judged
    found = watched(told_or_zero, KNOWING_BOTH, known_positives=4, known_negatives=5).summary
    assert (found.auc, found.accumulated_auc) == (0.5, 0.5)
    assert found.positives + found.negatives == 60 - 9


def test_a_granted_record_is_judged_at_no_step_and_in_no_sum_though_the_attack_scores_it() -> None:
    """Against the same steps with the granted rows cut out by hand."""
    plain = watched(lambda view: view.gradient[:, 0], KNOWING_BOTH, known_positives=3, known_negatives=4)
    granted = {int(one) for name in plain.state_dict()["known"].values() for one in name.tolist()}
    assert len(granted) == 7
    keeper = ScoreKeeper()

    def score(view: View) -> Tensor:
        left = torch.tensor([one not in granted for one in view.ids.tolist()])
        seen.append((view.ids[left], view.gradient[left, 0]))
        return view.gradient[:, 0]

    seen: list[tuple[Tensor, Tensor]] = []
    everything = watched(score)
    random = torch.Generator().manual_seed(5)
    labels = (torch.rand(60, generator=random) < 0.4).double()
    for ids, scores in seen:
        keeper.add(ids, scores, labels[ids // 7])
    agree(plain.summary, keeper.summary())
    assert everything.summary.auc != plain.summary.auc


def test_signs_of_granted_records_are_not_counted() -> None:
    class Signs(Scripted):
        signed = True

    leak = Leak(Signs(lambda view: view.gradient[:, 0], needs=KNOWING), known_positives=1)
    leak.see(view_of(torch.tensor([3, 4]), torch.tensor([[1.0], [1.0]])), torch.tensor([1, 0]))
    assert (leak.summary.signs_right, leak.summary.records) == (0.0, 1)


def test_abstaining_raises_an_attacks_own_auc_and_not_what_decides() -> None:
    def abstains(view: View) -> Tensor:
        values = view.gradient[:, 0]
        return values.masked_fill((values - values.mean()).abs() < 1.2 * values.std(), math.nan)

    full, some = watched(lambda view: view.gradient[:, 0]).summary, watched(abstains).summary
    assert some.scored < 0.4
    assert some.auc > full.auc + 0.1
    # A handful of records a step: .1 is about two standard errors of the mean of 15 AUCs.
    assert some.worst_auc == pytest.approx(full.worst_auc, abs=0.1)
    assert some.worst == max(some.tied_auc, 1 - some.tied_auc, some.tied_accumulated_auc, 1 - some.tied_accumulated_auc)
    assert full.scored == full.scored_accumulated == 1.0
    assert (full.tied_auc, full.tied_accumulated_auc) == (full.auc, full.accumulated_auc)


def test_one_record_scored_by_luck_decides_nothing() -> None:
    """Two records of sixty: among them the AUC is 0 or 1, and turned round always 1."""
    found = watched(lambda view: view.gradient[:, 0].masked_fill(view.ids > 7, math.nan)).summary
    assert max(found.auc, 1 - found.auc, found.accumulated_auc, 1 - found.accumulated_auc) == 1.0 or found.steps == 0
    assert found.worst < 0.56


def test_by_default_every_other_record_is_granted_up_to_ten() -> None:
    told: list[list[int]] = []

    def score(view: View) -> Tensor:
        told.append(view.known_positives.tolist())
        return view.gradient[:, 0]

    leak = Leak(Scripted(score, needs=KNOWING))
    for ids in (range(3), range(3, 10), range(10, 100)):
        leak.see(view_of(torch.tensor(ids), torch.zeros(len(ids), 1)), torch.ones(len(ids)))
    assert told == [[0, 2], [0, 2, 4, 6, 8], list(range(0, 20, 2))]
    assert leak.known == {"known_positives": 10}
    assert watched(lambda view: view.gradient[:, 0]).known == {}


@pytest.mark.parametrize(("there", "expected"), [((40, 1000), (10, 10)), ((7, 3), (3, 1)), ((1, 1), (1, 1))])
def test_never_more_than_half_of_a_class_is_granted(there: tuple[int, int], expected: tuple[int, int]) -> None:
    labels = torch.tensor([1.0] * there[0] + [0.0] * there[1])
    records_of = Records(torch.arange(labels.numel()), Columns.of(torch.zeros(labels.numel(), 0)), labels)
    assert judging.known_allowed(records_of, 10, 10) == expected
    assert judging.known_allowed(records_of, 0, 0) == (0, 0)


# --- attacks whose score is of the whole run already -----------------------------------------------------------------


def cumulative(score: Callable[[View], Tensor]) -> Scripted:
    attack = Scripted(score)
    attack.cumulative = True  # type: ignore[attr-defined]
    return attack


@pytest.mark.parametrize("ids", IDS.values(), ids=IDS.keys())
@pytest.mark.parametrize("nan", [0.0, 0.3, 0.95])
def test_of_cumulative_scores_each_records_last_one_counts(ids: Tensor, nan: float) -> None:
    steps = run_of(ids, 60, nan=nan)
    keeper = ScoreKeeper(cumulative=True)
    last: dict[int, float] = {}
    truth: dict[int, float] = {}
    for own, scores, labels in steps:
        keeper.add(own, scores, labels)
        for record, score, label in zip(own.tolist(), scores.tolist(), labels.tolist(), strict=True):
            if not math.isnan(label):
                truth[record] = label
                if not math.isnan(score):
                    last[record] = score

    found = keeper.summary()

    scored = torch.tensor([[last[record], truth[record]] for record in last]).T
    assert found.accumulated_auc == pytest.approx(leak_auc(scored[0], scored[1]))
    middle = scored[0].double().mean().item()
    every = torch.tensor([[last.get(record, middle), truth[record]] for record in truth], dtype=torch.float64).T
    assert found.tied_accumulated_auc == pytest.approx(leak_auc(every[0], every[1]))
    # What is of single steps does not change.
    plain = keeper_of(steps).summary()
    assert (found.auc, found.tied_auc, found.scored) == pytest.approx((plain.auc, plain.tied_auc, plain.scored))


def test_cumulative_scores_are_not_taken_relative_to_their_batch() -> None:
    keeper = ScoreKeeper(cumulative=True)
    # The positives come in one batch, the negatives in another: standardised, both would have a mean of 0.
    for ids, scores, label in ((torch.arange(3), [5.0, 6.0, 7.0], 1.0), (torch.arange(3, 6), [1.0, 2.0, 3.0], 0.0)):
        keeper.add(ids, torch.tensor(scores), torch.full((3,), label))
    keeper.add(torch.tensor([6]), torch.tensor([4.5]), torch.tensor([1.0]))  # a batch of one counts as well
    assert keeper.accumulated_auc == 1.0
    assert keeper.records == 7


def test_of_a_record_twice_in_a_batch_the_last_score_counts() -> None:
    keeper = ScoreKeeper(cumulative=True)
    keeper.add(torch.tensor([0, 1, 0]), torch.tensor([9.0, 2.0, 1.0]), torch.tensor([0.0, 1.0, 0.0]))
    assert keeper.accumulated_auc == 1.0


def test_a_cumulative_leak_goes_on_from_its_state(tmp_path: Path) -> None:
    def score(view: View) -> Tensor:
        return view.gradient[:, 0]

    def see(leak: Leak, seed: int) -> None:
        random = torch.Generator().manual_seed(seed)
        ids = torch.randperm(40, generator=random)[:20]
        leak.see(view_of(ids, torch.randn(20, 1, generator=random)), (ids % 3 == 0).long())

    straight, resumed = Leak(cumulative(score)), Leak(cumulative(score))
    for seed in range(4):
        see(straight, seed)
    resumed.load_state_dict(through_a_file(straight.state_dict(), tmp_path))
    for leak in (straight, resumed):
        see(leak, 9)
    assert figures(straight.summary) == pytest.approx(figures(resumed.summary), nan_ok=True)


def test_a_cumulative_attack_needs_ids_and_says_yes_or_no() -> None:
    leak = Leak(cumulative(lambda view: view.gradient[:, 0]))
    with pytest.raises(HookError, match="has no record ids; pass them along"):
        leak.see(view_of(torch.tensor([0, 1]), torch.randn(2, 1)), torch.tensor([0, 1]), ids_known=False)
    odd = Scripted(lambda view: view.gradient[:, 0])
    odd.cumulative = "yes"  # type: ignore[attr-defined]
    with pytest.raises(HookError, match="cumulative must be true or false, got 'yes'"):
        Leak(odd)


class Revising:
    """Scores that are known when they are asked for, and not before."""

    name: ClassVar[str] = "revising"
    needs: ClassVar[frozenset[str]] = frozenset({"gradient"})
    cumulative: ClassVar[bool] = True
    tasks: ClassVar[frozenset[str]] = frozenset({"binary", "multiclass", "regression"})

    def __init__(self, scores: Callable[[Tensor], Tensor]) -> None:
        self.came = torch.zeros(0, dtype=torch.int64)
        self.asked = 0
        self._scores = scores

    def __call__(self, view: View, /) -> Tensor:
        self.came = torch.unique(torch.cat([self.came, view.ids]))
        return torch.zeros(len(view.ids))

    def revised(self) -> tuple[Tensor, Tensor]:
        self.asked += 1
        return self.came, self._scores(self.came)


@pytest.mark.parametrize("ids", IDS.values(), ids=IDS.keys())
def test_revised_scores_of_all_records_count_and_those_of_canaries_apart(ids: Tensor) -> None:
    """The AUCs are those of the scores of all judged records, whatever a record got when it came."""
    ids = torch.unique(torch.cat([ids, ids + 2**40]))  # in order
    count, random = len(ids), torch.Generator().manual_seed(1)
    labels = (torch.rand(count, generator=random) < 0.4).float()
    found = torch.randn(count, generator=random, dtype=torch.float64) + labels
    found[3] = math.nan
    left_out = torch.zeros(count, dtype=torch.bool)
    left_out[[5, 6]] = True
    canary = torch.zeros(count, dtype=torch.bool)
    canary[40:65] = True
    leak = Leak(Revising(lambda came: found[torch.searchsorted(ids, came)]), canaries=Canaries(ids[canary]))
    for rows in torch.randperm(count, generator=random).split(16):
        told = labels[rows].double().masked_fill(left_out[rows], math.nan)  # a dummy has no label to be judged by
        leak.see(view_of(ids[rows], torch.ones(len(rows), 1)), told)

    summary, canaries = leak.summary, leak.canaries
    plain = ~canary & ~left_out
    scored = plain & ~found.isnan()
    assert summary.accumulated_auc == pytest.approx(roc_auc_score(labels[scored], found[scored]))
    assert canaries is not None
    assert canaries.auc == pytest.approx(roc_auc_score(labels[canary], found[canary]))
    # One record of those judged was left out, and is in the middle.
    assert summary.scored_accumulated == pytest.approx(float(scored.sum() / plain.sum()))


def test_revised_scores_are_asked_for_once_for_all_that_has_come() -> None:
    attack = Revising(lambda came: came.double())
    watch = Watch(["lab"])
    watch.add("lab", Leak(attack))
    watch.leaks["lab"]["revising"].see(view_of(torch.arange(6), torch.ones(6, 1)), torch.tensor([0, 0, 0, 1, 1, 1]))
    watch.scalars(epoch_ends=False)
    assert attack.asked == 0  # a step waits for no fit
    values = watch.scalars(epoch_ends=True)
    assert values["leak_auc_accumulated/lab/revising"] == 1.0
    assert watch.worst == (1.0, "revising")
    assert watch.keepers("lab")["revising"].accumulated_auc == 1.0
    assert attack.asked == 1
    watch.leaks["lab"]["revising"].see(view_of(torch.tensor([9]), torch.ones(1, 1)), torch.tensor([0]))
    # The newest negative scores highest: six of nine, of three by four pairs nine are won.
    assert watch.keepers("lab")["revising"].accumulated_auc == pytest.approx(9 / 12)
    assert attack.asked == 2


def test_revised_scores_come_back_after_a_checkpoint(tmp_path: Path) -> None:
    straight, resumed = (Leak(Revising(lambda came: came.double())) for _ in range(2))
    straight.see(view_of(torch.arange(6), torch.ones(6, 1)), torch.tensor([0, 0, 0, 1, 1, 1]))
    resumed.load_state_dict(through_a_file(straight.state_dict(), tmp_path))
    resumed.attack.came = straight.attack.came  # type: ignore[attr-defined]
    assert straight.accumulated_auc == resumed.accumulated_auc == 1.0


@pytest.mark.parametrize(
    ("returned", "message"),
    [
        (torch.zeros(3), "expected a pair of tensors, ids and scores, got Tensor"),
        ((torch.arange(3), torch.zeros(2)), r"expected ids \(m,\), int64, and scores \(3,\), got torch.int64 \(3,\)"),
        ((torch.zeros(3), torch.zeros(3)), "got torch.float32"),
        ((torch.arange(3), torch.tensor([0.0, math.inf, 1.0])), "a score is infinite"),
        ((torch.arange(3), torch.zeros(3, dtype=torch.complex64)), "expected real numbers"),
    ],
)
def test_what_is_no_revised_scores_is_refused_by_the_attacks_name(returned: object, message: str) -> None:
    attack = Revising(lambda came: came.double())
    attack.revised = lambda: returned  # type: ignore[assignment, method-assign, return-value]
    leak = Leak(attack)
    leak.see(view_of(torch.arange(3), torch.ones(3, 1)), torch.tensor([0, 1, 1]))
    with pytest.raises(HookError, match=rf"revised\(\) of attack revising: .*{message}"):
        _ = leak.summary


def test_only_cumulative_attacks_revise_scores() -> None:
    attack = Revising(lambda came: came.double())
    attack.cumulative = False  # type: ignore[misc]
    with pytest.raises(HookError, match=r"revising: revised\(\) is for attacks with cumulative = True"):
        Leak(attack)


def test_what_an_attack_without_messages_finds_is_never_the_worst_leak() -> None:
    watch = Watch(["lab"])
    for name, needs in (("reads", {"gradient", "activation"}), ("has", {"columns"}), ("makes", {"activation"})):
        attack = Scripted(lambda view: view.ids.double(), needs=frozenset(needs))
        watch.add("lab", Leak(attack), name=name)
    views = {
        "reads": torch.tensor([0, 2, 1, 3]),  # ids as scores: an AUC of .75
        "has": torch.arange(4),
        "makes": torch.arange(4),
    }
    for name, ids in views.items():
        labels = torch.tensor([0, 0, 1, 1])
        watch.leaks["lab"][name].see(View(party="lab", step=0, ids=ids), labels)
    summaries = watch.summaries("lab")
    assert {name: summary.by_messages for name, summary in summaries.items()} == {
        "reads": True,
        "has": False,
        "makes": False,
    }
    assert summaries["has"].worst == 1.0
    assert watch.worst == (0.75, "reads")
    assert PartyResult(attacks=summaries).worst == (0.75, "reads")

"""Judging attacks on k classes: against scikit-learn, brute force over names, and what chance gives."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.metrics import roc_auc_score

from splitvfl.attacks import DirectionAttack, NormAttack, OwnPredictionAttack, ResidualAttack, SignAttack
from splitvfl.data.coin_labels import Canaries
from splitvfl.errors import ArgumentError, HookError
from splitvfl.hooks import View
from splitvfl.leakage.canaries import CanaryLeak
from splitvfl.leakage.class_judging import ClassKeeper
from splitvfl.leakage.judging import Leak

K = 4


def random_labels(rows: int, seed: int = 0) -> torch.Tensor:
    return torch.from_numpy(np.random.default_rng(seed).choice(K, rows, p=[0.4, 0.3, 0.2, 0.1]))


def noisy(labels: torch.Tensor, signal: float, seed: int = 0) -> torch.Tensor:
    noise = torch.randn(len(labels), K, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return noise + signal * torch.nn.functional.one_hot(labels, K)


def of_each_class(scores: np.ndarray[Any, Any], labels: np.ndarray[Any, Any]) -> list[float]:
    return [roc_auc_score(labels == label, scores[:, label]) for label in range(K)]


def test_named_scores_have_scikit_learns_macro_auc_and_their_top_1() -> None:
    labels = random_labels(300)
    keeper, per_step, tops = ClassKeeper(K), [], []
    sums = np.zeros((300, K))
    for step in range(3):
        scores = noisy(labels, 1.0, step) * 10.0**step
        keeper.add(torch.arange(300), scores, labels)
        per_step.append(np.mean(of_each_class(scores.numpy(), labels.numpy())))
        tops.append(float((scores.argmax(dim=1) == labels).double().mean()))
        centred = scores.numpy() - scores.numpy().mean(axis=0)
        sums += centred / centred.std()

    found = keeper.summary()

    assert found.auc == pytest.approx(np.mean(per_step), abs=1e-12)
    assert found.worst_auc == found.auc
    assert found.top1 == pytest.approx(np.mean(tops), abs=1e-12)
    assert found.accumulated_auc == pytest.approx(np.mean(of_each_class(sums, labels.numpy())), abs=1e-12)
    assert found.accumulated_top1 == pytest.approx((sums.argmax(axis=1) == labels.numpy()).mean(), abs=1e-12)
    assert found.commonest == pytest.approx(np.bincount(labels.numpy()).max() / 300)
    assert found.class_counts == tuple(np.bincount(labels.numpy()).tolist())


def test_a_class_that_a_batch_lacks_does_not_count_in_its_step() -> None:
    labels = torch.tensor([0, 0, 1, 1])
    scores = torch.tensor([[0.9, 0.1, 0.0, 0.0], [0.2, 0.3, 0.0, 0.0], [0.1, 0.9, 0.0, 0.0], [0.3, 0.7, 0.0, 0.0]])

    found = ClassKeeper(K).add(None, scores, labels)

    assert found == pytest.approx((0.75 + 1.0) / 2)
    assert math.isnan(ClassKeeper(K).add(None, scores, torch.zeros(4)))


def test_posteriors_are_judged_as_they_are_normalised() -> None:
    """Log likelihoods up to a number per record: only differences between classes may count."""
    labels = random_labels(200)
    scores = noisy(labels, 2.0)
    keepers = ClassKeeper(K, raw=True), ClassKeeper(K, raw=True)

    found = [
        keeper.add(torch.arange(200), scores + shift, labels)
        for keeper, shift in zip(keepers, (0.0, 50.0 * torch.rand(200, 1)), strict=True)
    ]

    assert found[0] == pytest.approx(found[1], abs=1e-12)
    assert keepers[0].accumulated_auc == pytest.approx(keepers[1].accumulated_auc, abs=1e-12)


def test_equal_scores_read_nothing_and_name_each_class_in_part() -> None:
    labels = random_labels(100)
    keeper = ClassKeeper(K)
    keeper.add(torch.arange(100), torch.full((100, K), 0.1), labels)
    found = keeper.summary()
    assert (found.auc, found.accumulated_auc) == (0.5, 0.5)
    assert found.top1 == found.accumulated_top1 == pytest.approx(1 / K)


@pytest.mark.parametrize(
    "form", ["named", "single", pytest.param("clusters", marks=pytest.mark.slow(reason="150 runs of clusters"))]
)
def test_what_nothing_reads_is_what_is_said_of_chance(form: str) -> None:
    """Random scores, 150 runs of 120 records: the mean is the stated figure within four standard errors."""
    generator, best, top, stated, stated_top = np.random.default_rng(1), [], [], [], []
    for seed in range(150):
        labels = random_labels(120, seed)
        keeper = ClassKeeper(K, clusters=form == "clusters", cumulative=True)
        scores = torch.from_numpy(generator.normal(size=(120, 1 if form == "single" else K)))
        keeper.add(torch.arange(120), scores, labels)
        found = keeper.summary()
        best.append(found.worst)
        top.append(found.accumulated_top1)
        stated.append(found.by_chance)
        stated_top.append(found.top1_by_matching)

    error = 4.0 * np.std(best) / math.sqrt(150)
    if form == "named":  # turned round together: an upper limit is stated
        assert 0.5 < np.mean(best) <= np.mean(stated) + error
        assert np.mean(top) == pytest.approx(1 / K, abs=4.0 * np.std(top) / math.sqrt(150))
    else:
        assert np.mean(best) == pytest.approx(np.mean(stated), abs=error)
    if form == "clusters":
        assert np.mean(top) == pytest.approx(np.mean(stated_top), abs=4.0 * np.std(top) / math.sqrt(150) + 0.003)
        assert np.mean(top) > 1 / K + 0.02  # which is why it has to be said


def test_revised_scores_of_classes_take_the_place_of_those_before() -> None:
    labels = random_labels(200)
    revised, direct = ClassKeeper(K, cumulative=True), ClassKeeper(K, cumulative=True)
    scores = noisy(labels, 1.5)
    revised.add(torch.arange(200), torch.zeros(200, K), labels)
    direct.add(torch.arange(200), scores, labels)
    order = np.random.default_rng(0).permutation(200)
    revised.revise(order, scores.double().numpy()[order])
    assert revised.summary().accumulated_auc == direct.summary().accumulated_auc > 0.6
    assert revised.summary().accumulated_top1 == direct.summary().accumulated_top1
    with pytest.raises(ArgumentError, match=f"expected scores with {K} columns as before, got 1"):
        revised.revise(order, np.zeros(200))


def test_clusters_get_the_names_that_read_best() -> None:
    labels = random_labels(200)
    scores = noisy(labels, 1.5)[:, [2, 0, 3, 1]]
    keeper = ClassKeeper(K, clusters=True)

    keeper.add(torch.arange(200), scores, labels)

    every = [
        np.mean(of_each_class(scores.numpy()[:, names], labels.numpy())) for names in itertools.permutations(range(K))
    ]
    found = keeper.summary()
    assert found.auc == pytest.approx(max(every), abs=1e-12)
    assert found.top1 == pytest.approx((scores[:, [1, 3, 0, 2]].argmax(dim=1) == labels).double().mean())


def test_one_score_is_turned_round_for_each_class_and_names_none() -> None:
    labels = random_labels(200)
    keeper = ClassKeeper(K)
    scores = labels.double() + 0.1 * torch.rand(200, dtype=torch.float64)

    keeper.add(torch.arange(200), scores, labels)

    aucs = [roc_auc_score(labels == label, scores) for label in range(K)]
    found = keeper.summary()
    assert found.worst_auc == pytest.approx(np.mean([max(auc, 1 - auc) for auc in aucs]))
    assert math.isnan(found.top1)


def test_records_that_were_left_out_tie_in_the_middle() -> None:
    labels = random_labels(100)
    scores = noisy(labels, 5.0)
    scores[::2] = math.nan
    keeper = ClassKeeper(K)
    keeper.add(torch.arange(100), scores, labels)

    found = keeper.summary()

    placed = scores.numpy().copy()
    placed[::2] = placed[1::2].mean(axis=0)
    assert found.scored == 0.5
    assert found.auc == pytest.approx(np.mean(of_each_class(scores[1::2].numpy(), labels[1::2].numpy())))
    assert found.tied_auc == pytest.approx(np.mean(of_each_class(placed, labels.numpy())))
    assert found.worst_auc == found.tied_auc < found.auc


def test_state_goes_on_alike() -> None:
    labels, whole, first = random_labels(90), ClassKeeper(K), ClassKeeper(K)
    for keeper in (whole, first):
        keeper.add(torch.arange(90), noisy(labels, 1.0), labels)
    second = ClassKeeper(K)
    second.load_state_dict(first.state_dict())
    for keeper in (whole, second):
        keeper.add(torch.arange(90), noisy(labels, 1.0, 7), labels)
    assert whole.summary() == second.summary() or repr(whole.summary()) == repr(second.summary())


def test_without_ids_only_steps_are_judged() -> None:
    labels, keeper = random_labels(60), ClassKeeper(K)
    keeper.add(None, noisy(labels, 3.0), labels)
    found = keeper.summary()
    assert found.worst == found.auc > 0.9
    assert math.isnan(found.accumulated_auc)
    assert math.isnan(ClassKeeper(K).summary().worst)


@pytest.mark.parametrize("labels", [[0.0, 4.0], [0.5, 1.0], [-1.0, 0.0]])
def test_labels_that_are_no_classes_are_refused(labels: list[float]) -> None:
    with pytest.raises(ArgumentError, match="classes from 0 to 3"):
        ClassKeeper(K).add(None, torch.zeros(2, K), torch.tensor(labels))


def test_canaries_are_judged_apart_against_one_other_class() -> None:
    labels = random_labels(200)
    keeper = ClassKeeper(K, canaries=Canaries(torch.arange(100)))
    scores = noisy(labels, 0.0)
    scores[:100] = torch.nn.functional.one_hot(labels[:100], K).double()
    keeper.add(torch.arange(200), scores, labels)

    found = keeper.canary_leak()

    assert found is not None
    assert (found.auc, found.top1, found.count) == (1.0, 1.0, 100)
    assert keeper.summary().accumulated_auc < 0.6  # the others were noise


def test_the_interval_of_canaries_holds_one_half_for_who_knows_nothing() -> None:
    """200 runs of 80 canaries, labels uniform: nominal 95 % intervals miss in 10 ± 12 (4 standard errors)."""
    generator, missed = np.random.default_rng(0), 0
    for _ in range(200):
        found = CanaryLeak.of_classes(generator.normal(size=(80, K)), generator.integers(0, K, 80), K)
        missed += not found.low <= 0.5 <= found.high
    assert missed <= 22


# --- attacks on classes, below a linear top


def softmax_view(rows: int = 300, width: int = 12, seed: int = 0, **more: Any) -> tuple[View, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    weight = torch.randn(K, width, generator=generator)
    labels = torch.randint(K, (rows,), generator=generator)
    predictions = torch.softmax(torch.randn(rows, K, generator=generator), dim=1)
    residues = predictions - torch.nn.functional.one_hot(labels, K)
    gradient = residues / rows if width == K and more.pop("raw", False) else residues @ weight / rows
    return View(party="p", step=0, ids=torch.arange(rows), gradient=gradient, **more), labels


def test_directions_tell_every_class_apart_given_a_few_of_each() -> None:
    view, labels = softmax_view()
    leak = Leak(DirectionAttack(), known_positives=5, classes=K)

    leak.see(view, labels)

    assert leak.known == {"known_records": 5 * K}
    assert leak.summary.auc > 0.95
    assert leak.summary.top1 > 0.9


def test_at_width_k_the_negative_entry_is_the_label() -> None:
    view, labels = softmax_view(width=K, raw=True)
    leak = Leak(SignAttack(), classes=K)
    leak.see(view, labels)
    assert (leak.summary.auc, leak.summary.top1) == (1.0, 1.0)


def test_the_residual_leaves_out_as_many_directions_as_classes_span() -> None:
    """Noise off the span marks one class, which is then read; without it everything ties."""
    view, labels = softmax_view()
    assert (ResidualAttack()(view.granting(classes=K)) == 0).all()
    marked = view.gradient + (labels == 2)[:, None] * 1e-4 * torch.randn(300, 12)
    leak = Leak(ResidualAttack(), classes=K)
    leak.see(view.granting(gradient=marked), labels)
    reads_one = (1.0 + 3 * 0.64) / 4  # of the others it knows that they are not that class
    assert leak.summary.worst_auc == pytest.approx(reads_one, abs=0.05)


def test_norms_name_no_class() -> None:
    view, labels = softmax_view()
    leak = Leak(NormAttack(), classes=K)
    leak.see(view, labels)
    assert math.isnan(leak.summary.top1)
    assert 0.5 <= leak.summary.worst_auc <= 1.0


def test_own_outputs_are_read_where_there_is_one_for_each_class() -> None:
    columns = torch.randn(50, 3)
    bottom = torch.nn.Linear(3, K)
    view = View(party="p", step=0, ids=torch.arange(50), bottom=bottom, columns=columns, classes=K)
    torch.testing.assert_close(OwnPredictionAttack()(view), bottom(columns).detach())
    with pytest.raises(HookError, match="reads outputs of width 4, got shape"):
        OwnPredictionAttack()(
            View(party="p", step=0, ids=torch.arange(50), bottom=torch.nn.Linear(3, 2), columns=columns, classes=K)
        )


def test_an_attack_that_is_for_other_labels_says_so() -> None:
    class Own:
        name = "own"

        def __call__(self, view: View, /) -> torch.Tensor:
            return view.gradient[:, 0]

    with pytest.raises(ArgumentError, match="attack own: reads binary labels, the task is multiclass"):
        Leak(Own(), classes=K)
    with pytest.raises(ArgumentError, match="attack sign: a sign tells two classes apart"):
        Leak(SignAttack(), classes=None)


@pytest.mark.parametrize("shape", [(3,), (3, 1), (3, K)])
def test_a_step_in_which_nobody_is_judged_counts_as_undefined(shape: tuple[int, ...]) -> None:
    """As of a small last batch in which the attacker was told every label."""
    keeper = ClassKeeper(K)

    found = keeper.add(torch.arange(3), torch.zeros(shape), torch.full((3,), torch.nan))

    assert math.isnan(found)
    assert math.isnan(keeper.add(torch.arange(0), torch.zeros(0, *shape[1:]), torch.zeros(0)))
    assert (keeper.summary().steps, keeper.summary().undefined, keeper.records) == (0, 2, 0)


def test_a_step_in_which_no_record_is_scored_leaves_nothing_behind() -> None:
    keeper = ClassKeeper(K)

    found = keeper.add(torch.arange(8), torch.full((8, K), torch.nan), torch.arange(8) % K)

    assert math.isnan(found)
    assert (keeper.summary().scored, keeper.records) == (0.0, 0)

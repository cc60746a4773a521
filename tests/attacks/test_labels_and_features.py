from __future__ import annotations

import copy
import math

import numpy as np
import pytest
import torch
from scipy.special import expit
from sklearn.metrics import roc_auc_score
from torch import Tensor, nn

from splitvfl import SplitModel
from splitvfl.attacks import LabelsAndFeaturesAttack, labels_and_features
from splitvfl.data.coin_labels import Canaries
from splitvfl.data.columns import Columns
from splitvfl.errors import ArgumentError, AttackRefused, HookError
from splitvfl.hooks import View, call_attack, call_revised, needs_of, reads_messages
from splitvfl.leakage.judging import Leak
from splitvfl.leakage.message_models import taught_by_messages
from splitvfl.leakage.side_knowledge import GRANTED
from splitvfl.metrics import oriented
from tests.builders import seeded, small_trainer

# What own columns predict is never asked here, only whether it was judged.
pytestmark = pytest.mark.usefixtures("few_rounds")

WIDTH = 4


def rows_of(residues: Tensor, weights: Tensor) -> Tensor:
    """Cut gradients below a linear top of one batch's mean loss."""
    return residues @ weights / len(residues)


def views(
    columns: Tensor | Columns, residues: Tensor, *, classes: int | None = 2, batch: int = 128, epochs: int = 1
) -> list[View]:
    """Views of whole epochs in which each record sends the same residue, ``(n, m)``, below a linear top."""
    random = torch.Generator().manual_seed(3)
    weights = torch.randn(residues.shape[1], WIDTH, generator=random)
    told = {} if classes == 2 else {"classes": classes}
    found = []
    for _ in range(epochs):
        for chosen in torch.randperm(len(residues), generator=random).split(batch):
            own = columns.rows(chosen) if isinstance(columns, Columns) else columns[chosen]
            gradient = rows_of(residues[chosen], weights)
            found.append(View(party="a", step=len(found), ids=chosen, gradient=gradient, columns=own, **told))
    return found


def answered(records: int = 1500, *, seed: int = 0, flipped: float = 0.3) -> tuple[Tensor, Tensor, Tensor]:
    """Features, labels that follow from them in part, and what a randomised answer's residue is at an untrained top."""
    generator = np.random.default_rng(seed)
    columns = generator.normal(size=(records, 5))
    labels = generator.random(records) < expit(2.5 * columns[:, 0] * np.sign(columns[:, 1]) + columns[:, 2] - 0.5)
    answers = labels ^ (generator.random(records) < flipped)
    return (
        torch.from_numpy(columns).float(),
        torch.from_numpy(labels).float(),
        torch.from_numpy(0.5 - answers[:, None]).float(),
    )


def revised(seen: list[View], classes: int | None = 2) -> tuple[Tensor, Tensor]:
    """Ids and scores after these messages."""
    attack = LabelsAndFeaturesAttack()
    for view in seen:
        call_attack(attack, view)
    return call_revised(attack, classes)


def auc(seen: list[View], labels: Tensor) -> float:
    ids, scores = revised(seen)
    return oriented(float(roc_auc_score(labels[ids], scores)))


# --- what it reads


def test_it_reads_labels_behind_answers_of_which_three_in_ten_are_wrong() -> None:
    columns, labels, residues = answered()
    of_answers = oriented(float(roc_auc_score(labels, residues[:, 0])))
    # .79 here; the standard error of an AUC of 1,500 records is .012.
    assert auc(views(columns, residues), labels) > of_answers + 0.05


def test_of_features_that_say_nothing_it_reads_no_less_than_chance_takes_off() -> None:
    _, labels, residues = answered()
    columns = torch.randn(len(labels), 5, generator=torch.Generator().manual_seed(1))
    found = auc(views(columns, residues), labels)
    assert 0.58 < found < oriented(float(roc_auc_score(labels, residues[:, 0])))


def test_of_messages_that_say_nothing_it_reads_nothing() -> None:
    columns, labels, _ = answered()
    residues = torch.randn(len(labels), 1, generator=torch.Generator().manual_seed(2))
    # Of 1,500 records an AUC that knows nothing is within .045 of one half in 998 of 1,000.
    assert auc(views(columns, residues), labels) < 0.545


def test_noise_that_is_drawn_anew_averages_out() -> None:
    columns, labels, _ = answered()
    random = torch.Generator().manual_seed(4)
    seen = []
    for _ in range(9):
        residues = (0.5 - labels)[:, None] + 1.5 * torch.randn(len(labels), 1, generator=random)
        seen += views(columns, residues)
    assert auc(seen, labels) > auc(seen[: len(seen) // 9], labels) + 0.05


def test_categories_count_as_the_mean_message_of_their_records() -> None:
    generator = np.random.default_rng(0)
    codes = generator.integers(0, 30, (2000, 2))
    rates = generator.random(30)
    labels = generator.random(2000) < rates[codes[:, 0]]
    answers = labels ^ (generator.random(2000) < 0.3)
    columns = Columns(torch.zeros(2000, 0), torch.from_numpy(codes))
    residues = torch.from_numpy(0.5 - answers[:, None]).float()
    truth = torch.from_numpy(labels).float()
    assert auc(views(columns, residues), truth) > oriented(float(roc_auc_score(labels, answers))) + 0.05


def test_classes_are_clusters_of_messages_and_of_what_features_predict() -> None:
    generator = np.random.default_rng(0)
    labels = generator.integers(0, 3, 1200)
    columns = torch.from_numpy(generator.normal(size=(1200, 4)) + np.eye(4)[labels] * 2.0).float()
    answers = np.where(generator.random(1200) < 0.5, labels, generator.integers(0, 3, 1200))
    residues = torch.full((1200, 3), 1 / 3) - torch.eye(3)[torch.from_numpy(answers)]
    leak = Leak(LabelsAndFeaturesAttack(), classes=3)
    truth = torch.from_numpy(labels)
    for view in views(columns, residues, classes=3):
        leak.see(view, truth[view.ids])
    found = leak.summary
    assert found.accumulated_top1 > 0.8 > np.mean(answers == labels) + 0.1
    assert found.accumulated_auc > 0.92
    # Before it is asked it names no class.
    assert found.top1 == pytest.approx(1 / 3)
    assert found.scored == found.scored_accumulated == 1.0


def test_numbers_are_ranked_by_the_sum() -> None:
    generator = np.random.default_rng(0)
    columns = generator.normal(size=(1200, 4))
    numbers = columns[:, 0] + 0.5 * columns[:, 1] ** 2 + 0.4 * generator.normal(size=1200)
    residues = torch.from_numpy(-numbers + 2.0 * generator.normal(size=1200))[:, None].float()
    leak = Leak(LabelsAndFeaturesAttack(), classes=None)
    truth = torch.from_numpy(numbers)
    for view in views(torch.from_numpy(columns).float(), residues, classes=None):
        leak.see(view, truth[view.ids])
    found = leak.summary
    # The concordance of the messages alone is that of their step.
    assert found.worst_accumulated_auc > oriented(found.auc) + 0.1


# --- without labels


def test_no_label_reaches_it() -> None:
    columns, labels, residues = answered(400)
    shuffled = labels[torch.randperm(400, generator=torch.Generator().manual_seed(5))]
    assert not needs_of(LabelsAndFeaturesAttack()) & GRANTED
    assert reads_messages(LabelsAndFeaturesAttack())
    leaks = [Leak(LabelsAndFeaturesAttack()) for _ in range(2)]
    for view in views(columns, residues):
        for leak, truth in zip(leaks, (labels, shuffled), strict=True):
            leak.see(view, truth[view.ids])
    first, second = (call_revised(leak.attack, 2) for leak in leaks)
    assert torch.equal(first[1], second[1])
    assert torch.equal(first[1], revised(views(columns, residues))[1])
    assert leaks[0].accumulated_auc != leaks[1].accumulated_auc


@pytest.mark.parametrize("categorical", [False, True])
def test_a_records_own_message_does_not_enter_what_is_predicted_of_it(categorical: bool) -> None:
    generator = np.random.default_rng(0)
    numeric = generator.normal(size=(200, 3)).astype(np.float32)
    codes = generator.integers(0, 4, (200, 1 if categorical else 0))
    messages, came = generator.normal(size=(200, 2)), np.ones(200, np.bool_)
    before = taught_by_messages(numeric, codes, messages, came)
    messages[17] += 100.0
    after = taught_by_messages(numeric, codes, messages, came)
    for one, other in zip(before, after, strict=True):
        np.testing.assert_array_equal(one[17], other[17])
        assert not np.array_equal(one, other)


def test_canaries_are_judged_by_scores_that_were_learned_from_others_too() -> None:
    columns, labels, residues = answered(600, flipped=0.0)
    ids = torch.arange(600)
    random = torch.Generator().manual_seed(6)
    canaries = torch.randperm(600, generator=random)[:100]
    coins = (torch.rand(100, generator=random) < 0.5).float()
    labels[canaries], residues[canaries] = coins, 0.5 - coins[:, None]
    leak = Leak(LabelsAndFeaturesAttack(), canaries=Canaries(ids[canaries]))
    for view in views(columns, residues):
        leak.see(view, labels[view.ids])
    found = leak.canaries
    assert found is not None
    own, scores = call_revised(leak.attack, 2)
    place = torch.searchsorted(own[torch.argsort(own)], canaries)
    expected = roc_auc_score(coins, scores[torch.argsort(own)][place])
    assert found.auc == pytest.approx(oriented(expected))  # as the other records say, which the attack has nothing of
    assert found.auc > 0.8  # nothing hides their answers; what their features predict is beside the point


# --- how it reads messages


def test_what_comes_of_a_batch_is_its_projection_in_units_of_the_batch_less_the_mean() -> None:
    columns, _, residues = answered(60)
    random = torch.Generator().manual_seed(7)
    gradient = residues @ torch.randn(1, WIDTH, generator=random) + 0.1 * torch.randn(60, WIDTH, generator=random)
    view = View(party="a", step=0, ids=torch.arange(60), gradient=gradient, columns=columns)

    scores = call_attack(LabelsAndFeaturesAttack(), view)

    rows = gradient.double().numpy()
    rows /= np.sqrt(np.mean(np.sum(rows**2, axis=1)))
    along = rows @ np.linalg.svd(rows)[2][0]
    expected = along - along.mean()
    sign = np.sign(expected @ scores.numpy())
    # Rounding of sums of 60.
    np.testing.assert_allclose(scores.numpy(), sign * expected, rtol=1e-9, atol=1e-12)


def test_the_score_is_the_sum_of_three_in_units_of_their_spread() -> None:
    columns, _, residues = answered(200)
    seen = views(columns, residues, batch=200)
    ids, scores = revised(seen)
    messages = call_attack(LabelsAndFeaturesAttack(), seen[0]).numpy()[:, None]
    assert torch.equal(ids, seen[0].ids)
    predicted = taught_by_messages(columns[ids].numpy(), np.zeros((200, 0), np.int64), messages, np.ones(200, np.bool_))
    expected = sum((each - each.mean()) / each.std() for each in (messages, *predicted))
    np.testing.assert_allclose(scores.numpy(), expected[:, 0], rtol=1e-9, atol=1e-9)


def test_the_sign_of_the_direction_is_carried_while_it_turns_all_the_way_round() -> None:
    generator = torch.Generator().manual_seed(8)
    labels = (torch.rand(4000, generator=generator) < 0.5).float()
    attack = LabelsAndFeaturesAttack()
    scores = torch.zeros(4000, dtype=torch.float64)
    # Every batch is of other records, and the top's weights have turned by 270 degrees when the last one comes.
    for step, ids in enumerate(torch.arange(4000).split(10)):
        angle = math.radians(270.0 * step / 400)
        direction = torch.tensor([math.cos(angle), math.sin(angle)])
        gradient = (0.5 - labels[ids])[:, None] * direction
        view = View(party="a", step=step, ids=ids, gradient=gradient, columns=torch.zeros(10, 1))
        scores[ids] = call_attack(attack, view)
    assert oriented(float(roc_auc_score(labels, scores))) > 0.99


def test_axes_are_turned_to_those_before_them() -> None:
    random = np.random.default_rng(0)
    axes = torch.from_numpy(np.linalg.qr(random.normal(size=(5, 2)))[0])
    mixed = axes @ torch.tensor([[0.0, 1.0], [-1.0, 0.0]], dtype=torch.float64)
    torch.testing.assert_close(labels_and_features._turned(mixed, axes), axes)
    torch.testing.assert_close(labels_and_features._turned(-axes[:, :1], axes[:, :1]), axes[:, :1])


def test_a_row_of_zeros_is_no_message_and_its_record_is_scored_by_its_features() -> None:
    columns, labels, residues = answered(800, flipped=0.0)
    residues[:200] = 0.0
    ids, scores = revised(views(columns, residues))
    silent = ids < 200
    assert oriented(float(roc_auc_score(labels[ids[silent]], scores[silent]))) > 0.75


def test_without_any_message_it_says_nothing() -> None:
    columns, _, residues = answered(40)
    ids, scores = revised(views(columns, torch.zeros_like(residues)))
    assert sorted(ids.tolist()) == list(range(40))
    assert not scores.any()


@pytest.mark.parametrize("classes", [2, 5, None])
def test_a_few_records_are_scored_by_their_messages(classes: int | None) -> None:
    columns, _, residues = answered(4)
    _, scores = revised(views(columns, residues.expand(4, 5), classes=classes), classes)
    assert scores.shape == ((4, 5) if classes == 5 else (4,))
    assert scores.isfinite().all()


# --- what it keeps


def test_it_goes_on_to_the_bit_from_its_state() -> None:
    columns, _, residues = answered(300)
    seen = views(columns, residues, epochs=2)
    straight, resumed = LabelsAndFeaturesAttack(), LabelsAndFeaturesAttack()
    for view in seen[:3]:
        call_attack(straight, view)
    resumed.load_state_dict(copy.deepcopy(straight.state_dict()))
    for view in seen[3:]:
        assert torch.equal(call_attack(resumed, view), call_attack(straight, view))
    for one, other in zip(call_revised(straight, 2), call_revised(resumed, 2), strict=True):
        assert torch.equal(one, other)


def test_ids_may_be_any_numbers() -> None:
    columns, _, residues = answered(300)
    seen = views(columns, residues, epochs=2)
    ids = torch.arange(300) * 7919 - 2**40
    moved = [
        View(party="a", step=view.step, ids=ids[view.ids], gradient=view.gradient, columns=view.columns)
        for view in seen
    ]
    plain, other = revised(seen), revised(moved)
    assert torch.equal(ids[plain[0]], other[0])
    assert torch.equal(plain[1], other[1])


def test_records_beyond_its_memory_are_not_scored_and_it_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    columns, labels, residues = answered(300)
    seen = views(columns, residues, batch=100)
    each = 4 * 5 + 8 * 3
    monkeypatch.setattr(labels_and_features, "_MOST_BYTES", 150 * each)
    leak = Leak(LabelsAndFeaturesAttack())
    assert leak.attack.note == ""  # type: ignore[attr-defined]
    for view in seen:
        leak.see(view, labels[view.ids])
    assert leak.summary.scored_accumulated == pytest.approx(0.5)
    assert "the first 150 records" in leak.attack.note  # type: ignore[attr-defined]
    kept = torch.cat([view.ids for view in seen])[:150]
    assert torch.equal(call_revised(leak.attack, 2)[0], kept)
    state = leak.attack.state_dict()  # type: ignore[attr-defined]
    assert sum(state[name].nbytes for name in ("ids", "seen", "numeric", "codes", "sums")) <= 150 * each


# --- what it refuses


def test_a_party_without_columns_has_nothing_to_learn_from() -> None:
    view = View(party="a", step=0, ids=torch.arange(3), gradient=torch.ones(3, 2), columns=torch.zeros(3, 0))
    with pytest.raises(AttackRefused, match="labels-and-features needs columns, and this party has none"):
        LabelsAndFeaturesAttack()(view)


@pytest.mark.parametrize(
    ("width", "columns", "message"),
    [
        (3, torch.zeros(5, 2), "expected gradients of width 2, got 3"),
        (2, torch.zeros(5, 3), "expected columns of 2 numbers and 0 categories, got 3 numbers and 0 categories"),
    ],
)
def test_another_width_is_refused(width: int, columns: Tensor, message: str) -> None:
    attack = LabelsAndFeaturesAttack()
    attack(View(party="a", step=0, ids=torch.arange(5), gradient=torch.ones(5, 2), columns=torch.zeros(5, 2)))
    with pytest.raises(ArgumentError, match=message):
        attack(View(party="a", step=1, ids=torch.arange(5), gradient=torch.ones(5, width), columns=columns))


def test_it_needs_record_ids() -> None:
    view = View(party="a", step=0, ids=torch.arange(3), gradient=torch.ones(3, 2), columns=torch.ones(3, 1))
    with pytest.raises(HookError, match="has no record ids"):
        Leak(LabelsAndFeaturesAttack()).see(view, torch.tensor([0, 1, 1]), ids_known=False)


# --- in a run


def test_a_loop_of_ones_own_has_it_with_the_columns_that_its_bottom_is_given() -> None:
    columns, labels, _ = answered(400)
    model = SplitModel(seeded("bottom", lambda: nn.Linear(5, 3)), seeded("top", lambda: nn.Linear(3, 1)))
    leak = model.cut.watch(LabelsAndFeaturesAttack())
    for ids in torch.arange(400).split(80):
        outputs = model(columns[ids], labels=labels[ids], ids=ids)
        nn.functional.binary_cross_entropy_with_logits(outputs[:, 0], labels[ids]).backward()
    assert leak.summary.scored_accumulated == 1.0
    # Nothing hides the messages: they tell all labels, and what features predict is added to them all the same.
    assert leak.summary.worst_auc == 1.0
    assert leak.summary.worst_accumulated_auc > 0.8


def test_a_run_judges_it_as_an_attack_on_messages_with_canaries() -> None:
    trainer = small_trainer(attacks=[LabelsAndFeaturesAttack()], audit=True, canaries=20)
    trainer.fit(1)
    party = next(iter(trainer.passives))
    found = trainer.summaries(party)["labels-and-features"]
    assert found.by_messages
    assert found.scored_accumulated == 1.0
    assert "labels-and-features" in trainer.watch.canaries(party)
    ids, scores = trainer.watch.leaks[party]["labels-and-features"].attack.revised()  # type: ignore[attr-defined]
    labels = trainer.labels_of(ids)
    plain = torch.from_numpy(~trainer.active.training_labels.canaries.among(ids.numpy()))  # type: ignore[union-attr]
    assert found.accumulated_auc == pytest.approx(roc_auc_score(labels[plain], scores[plain]))
    leak = trainer.watch.label_leak(party)
    assert leak is not None
    assert leak.total is not None
    assert leak.total >= found.worst

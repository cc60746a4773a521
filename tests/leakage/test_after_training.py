"""Attacks after training: what they are asked, what they are given, and how the answers are judged."""

from __future__ import annotations

import math
from collections import OrderedDict
from typing import Any

import pytest
import torch
from sklearn.metrics import roc_auc_score
from torch import Tensor, nn

from splitvfl.attacks import ModelCompletionAttack
from splitvfl.data.columns import Columns, PartyData, Records
from splitvfl.errors import ArgumentError
from splitvfl.hooks import View
from splitvfl.leakage import after_training
from splitvfl.leakage.after_training import AfterTraining, Quiz, judge_after_training, own_copy, view_after_training
from splitvfl.leakage.leak_summary import LeakSummary
from splitvfl.metrics import chance_auc
from tests.builders import generator, party_data, record_ids, seeded


def aucs(quiz: Quiz, scores: Tensor) -> tuple[float, float]:
    train, test, _ = quiz.judge(scores)
    return train.auc, test.auc


def active_data(**sizes: int) -> PartyData:
    return party_data("bank", width=2, task="binary", **sizes)


class Scripted:
    """Scores by a function of the view, and keeps the views."""

    name = "scripted"
    needs = frozenset({"bottom", "columns"})
    when = "after-training"

    def __init__(self, score: Any) -> None:
        self._score = score

    def __call__(self, view: View, /) -> Tensor:
        found: Tensor = self._score(view)
        return found


# --- the quiz


def test_known_records_are_of_their_class_and_among_those_asked() -> None:
    data = active_data(train=200, test=50)
    quiz = Quiz.draw(data, known_positives=4, known_negatives=7, seed=0)
    assert data.train.labels is not None
    label = dict(zip(data.train.ids.tolist(), data.train.labels.tolist(), strict=True))
    assert [label[number] for number in quiz.known_positives.tolist()] == [1.0] * 4
    assert [label[number] for number in quiz.known_negatives.tolist()] == [0.0] * 7
    assert quiz.ids.tolist() == [*data.train.ids.tolist(), *data.test.ids.tolist()]
    assert quiz.labels[: data.train.count].tolist() == data.train.labels.tolist()


def test_a_quiz_is_a_function_of_its_seed() -> None:
    data = active_data(train=200, test=50)

    def known(seed: int) -> list[int]:
        quiz = Quiz.draw(data, known_positives=4, known_negatives=4, seed=seed)
        return [*quiz.known_positives.tolist(), *quiz.known_negatives.tolist()]

    assert known(3) == known(3)
    assert known(3) != known(4)


def test_all_of_a_class_are_known_where_there_are_fewer() -> None:
    data = active_data(train=60, test=10)
    quiz = Quiz.draw(data, known_positives=1000, known_negatives=0, seed=0)
    assert data.train.labels is not None
    assert set(quiz.known_positives.tolist()) == set(data.train.ids[data.train.labels == 1].tolist())
    assert quiz.known_negatives.numel() == 0


def test_of_many_records_a_sample_is_asked_and_the_known_ones_are_in_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(after_training, "MOST_RECORDS", 30)
    quiz = Quiz.draw(active_data(train=500, test=100), known_positives=5, known_negatives=5, seed=0)
    assert 30 <= quiz.train.numel() <= 40
    assert quiz.test.numel() == 30
    assert quiz.train.tolist() == sorted(set(quiz.train.tolist()))
    assert torch.isin(torch.cat([quiz.known_positives, quiz.known_negatives]), quiz.ids[: quiz.train.numel()]).all()


def test_aucs_equal_scikit_learns_without_the_known_and_the_unscored() -> None:
    data = active_data(train=200, test=80)
    quiz = Quiz.draw(data, known_positives=20, known_negatives=20, seed=0)
    scores = torch.randn(280, generator=generator("scores"), dtype=torch.float64)
    told = torch.isin(quiz.ids, torch.cat([quiz.known_positives, quiz.known_negatives]))
    scores[told] = torch.where(quiz.labels[told] == 1, 1e6, -1e6).double()  # answers that it was told
    scores[::9] = torch.nan
    asked = (~told & ~scores.isnan()).numpy()
    expected = []
    for part in (slice(0, 200), slice(200, 280)):
        rows = asked[part]
        expected.append(roc_auc_score(quiz.labels.numpy()[part][rows], scores.numpy()[part][rows]))
    assert aucs(quiz, scores) == pytest.approx(tuple(expected), abs=1e-12)


def test_without_scores_or_with_one_class_there_is_no_auc() -> None:
    data = active_data(train=60, test=10)
    quiz = Quiz.draw(data, known_positives=1000, known_negatives=1, seed=0)  # no positive is left to ask about
    train, test = aucs(quiz, torch.arange(70.0))
    assert math.isnan(train)
    assert not math.isnan(test)
    assert all(map(math.isnan, aucs(quiz, torch.full((70,), torch.nan))))


# --- judging


def judged(attack: Any, **settings: Any) -> after_training.AfterTraining:
    data = active_data()
    trained, before = (seeded("any", lambda: nn.Linear(5, 1, bias=False)) for _ in range(2))
    for module, value in ((trained, 1.0), (before, 0.0)):
        nn.init.constant_(module.get_parameter("weight"), value)
    quiz = Quiz.draw(data, known_positives=3, known_negatives=2, seed=0)
    passive = party_data("telecom", width=5)
    return judge_after_training(attack, passive, trained=trained, before=before, quiz=quiz, **settings)


def test_the_same_attack_is_judged_with_the_model_of_both_moments() -> None:
    found = judged(Scripted(lambda view: view.bottom(view.columns)[:, 0]))
    passive, active = party_data("telecom", width=5), active_data()
    quiz = Quiz.draw(active, known_positives=3, known_negatives=2, seed=0)
    sums = torch.cat([part.columns.numeric.sum(dim=1) for part in (passive.train, passive.test)])
    # A float32 sum in another order may swap two records: one pair of at least 24 · 24 / 4 in each part.
    assert (found.train.auc, found.test.auc) == pytest.approx(aucs(quiz, sums), abs=0.01)
    assert (found.before_train.auc, found.before_test.auc) == (0.5, 0.5)
    assert (found.known_positives, found.known_negatives) == (3, 2)


def test_what_an_attack_draws_is_the_same_for_both_models_and_changes_nothing_outside() -> None:
    drawn: list[Tensor] = []

    def score(view: View) -> Tensor:
        drawn.append(torch.rand(view.ids.numel()))
        return drawn[-1]

    torch.manual_seed(5)
    state = torch.get_rng_state()
    judged(Scripted(score))
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.equal(*drawn)


def test_categorical_columns_arrive_as_columns() -> None:
    count = 30
    codes = torch.arange(count)[:, None] % 5
    records = [Records(record_ids(count, first=first), Columns(torch.zeros(count, 0), codes)) for first in (0, 1000)]
    passive = PartyData("telecom", ("c",), (), (5,), records[0], records[1])
    labels = (codes[:, 0] > 2).float()
    parts = [Records(part.ids, Columns.of(torch.zeros(count, 0)), labels) for part in records]
    quiz = Quiz.draw(PartyData("bank", (), (), (), parts[0], parts[1]), known_positives=2, known_negatives=2, seed=0)
    attack = Scripted(lambda view: view.columns.categorical[:, 0].double())
    found = judge_after_training(attack, passive, trained=nn.Identity(), before=nn.Identity(), quiz=quiz)
    assert (found.train.auc, found.test.auc) == (1.0, 1.0)


def test_scalars_leave_out_what_is_undefined() -> None:
    found = AfterTraining(*(LeakSummary(auc=auc) for auc in (0.75, math.nan, 0.5, math.nan)))
    assert found.scalars("telecom/x") == {
        "leak_auc_after_training/telecom/x": 0.75,
        "leak_auc_after_training_baseline/telecom/x": 0.5,
    }


# --- the view


def test_a_view_for_ones_own_loop_is_all_that_the_attack_needs() -> None:
    columns = torch.randn(40, 5, generator=generator("own loop"))
    ids = record_ids(40)
    view = view_after_training(
        nn.Linear(5, 3), columns, ids=ids, known_positives=ids[:2], known_negatives=ids[2:4], party="lab", step=9
    )
    assert (view.party, view.step) == ("lab", 9)
    assert set(view.fields) == {"bottom", "columns", "known_positives", "known_negatives"} < after_training.SHOWN
    assert torch.isfinite(ModelCompletionAttack()(view)[4:]).all()


def test_known_records_without_columns_are_refused() -> None:
    with pytest.raises(ArgumentError, match="none of 1 of 3, such as id 99"):
        view_after_training(
            nn.Linear(5, 3),
            torch.zeros(3, 5),
            ids=torch.arange(3),
            known_positives=torch.tensor([0, 99]),
            known_negatives=torch.tensor([1]),
        )


# --- the copy


def test_a_copy_shares_no_memory_and_has_no_gradient() -> None:
    model = nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2))
    model(torch.randn(4, 3)).sum().backward()
    copied = own_copy(model)
    assert all(
        torch.equal(*pair) for pair in zip(model.state_dict().values(), copied.state_dict().values(), strict=True)
    )
    owned = {value.data_ptr() for value in model.state_dict().values()}
    assert owned.isdisjoint(value.data_ptr() for value in copied.state_dict().values())
    assert all(parameter.grad is None for parameter in copied.parameters())
    assert all(parameter.grad is not None for parameter in model.parameters())


def test_hooks_are_left_out_of_a_copy_and_stay_where_they_were() -> None:
    calls: list[int] = []
    first = nn.Linear(3, 2)
    model = nn.Sequential(first, nn.ReLU())
    first.register_forward_hook(lambda *_: calls.append(1))
    model[1].register_forward_pre_hook(lambda *_: calls.append(2))
    model[1].register_full_backward_hook(lambda *_: calls.append(3))
    first.weight.register_hook(lambda _: calls.append(4))
    own_copy(model)(torch.randn(4, 3)).sum().backward()
    assert calls == []
    model(torch.randn(4, 3)).sum().backward()
    assert sorted(calls) == [1, 2, 3, 4]


@pytest.mark.filterwarnings("ignore::FutureWarning")
@pytest.mark.parametrize(
    "normed",
    [torch.nn.utils.spectral_norm, torch.nn.utils.parametrizations.weight_norm],
    ids=["hook of torch", "parametrization"],
)
def test_weights_that_torch_computes_are_computed_in_the_copy(normed: Any) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(normed(nn.Linear(3, 2))).eval()
    model(torch.randn(4, 3)).sum().backward()
    inputs = torch.randn(4, 3)
    copied = own_copy(model)
    torch.testing.assert_close(copied(inputs), model(inputs), atol=0, rtol=0)
    optimizer = torch.optim.SGD(copied.parameters(), lr=0.1)
    copied(inputs).sum().backward()
    optimizer.step()
    assert not torch.equal(copied(inputs), model(inputs))


def test_an_activation_that_a_layer_has_kept_comes_without_its_graph() -> None:
    class Keeping(nn.Linear):
        def forward(self, inputs: Tensor) -> Tensor:
            self.kept = super().forward(inputs)
            return self.kept

    model = Keeping(3, 2)
    model(torch.randn(4, 3))
    copied = own_copy(model)
    assert model.kept.grad_fn is not None
    assert copied.kept.grad_fn is None
    assert torch.equal(copied.kept, model.kept)


def test_empty_dictionaries_of_hooks_are_not_shared_either() -> None:
    model = nn.Linear(3, 2)
    copied = own_copy(model)
    assert type(copied._forward_hooks) is OrderedDict
    assert copied._forward_hooks is not model._forward_hooks
    copied.register_forward_hook(lambda *_: None)
    assert not model._forward_hooks


# --- what decides


def test_an_attack_that_is_right_the_wrong_way_round_leaks_as_much() -> None:
    right, wrong = (
        judged(Scripted(lambda view, sign=sign: sign * view.bottom(view.columns)[:, 0])) for sign in (1, -1)
    )
    assert right.train.auc == pytest.approx(1.0 - wrong.train.auc, abs=1e-12)
    assert right.train.worst_auc == pytest.approx(wrong.train.worst_auc, abs=1e-12)
    assert right.test.worst_auc == pytest.approx(wrong.test.worst_auc, abs=1e-12)
    assert wrong.before_train.worst_auc == 0.5


def test_records_left_out_count_as_ties() -> None:
    full = judged(Scripted(lambda view: view.bottom(view.columns)[:, 0]))
    assert math.isnan(full.train.tied_auc)
    assert full.scored == full.train.scored == 1.0

    def few(view: View) -> Tensor:
        sums = view.bottom(view.columns)[:, 0]
        return sums.masked_fill((sums - sums.mean()).abs() < 1.3 * sums.std(), torch.nan)

    some = judged(Scripted(few))
    assert some.scored < 0.3
    assert some.train.auc > full.train.auc
    assert some.train.worst_auc == some.train.tied_auc < some.train.auc
    nothing = judged(Scripted(lambda view: torch.full(view.ids.shape, torch.nan)))
    assert math.isnan(nothing.train.auc)
    assert math.isnan(nothing.train.worst_auc)
    assert nothing.scored == 0.0


def test_chance_is_that_of_the_records_asked_about() -> None:
    found = judged(Scripted(lambda view: view.bottom(view.columns)[:, 0]))
    labels = active_data().train.labels
    assert (found.train.positives, found.train.negatives) == (int(labels.sum()) - 3, int((1 - labels).sum()) - 2)
    assert found.train.by_chance == chance_auc(found.train.positives, found.train.negatives)
    assert math.isnan(LeakSummary(auc=0.7).by_chance)

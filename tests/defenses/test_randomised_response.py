from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from splitvfl.cut.split_model import SplitModel
from splitvfl.defenses import RandomisedResponse
from splitvfl.errors import ArgumentError, ConfigError, PrivacyError
from splitvfl.hooks import Secrets, call_defense, crossing_of
from tests.builders import small_trainer

SecretsFactory = Callable[..., Secrets]


@pytest.mark.parametrize(("epsilon", "classes"), [(0.5, 2), (2.0, 2), (1.0, 3), (3.0, 10)])
def test_answers_follow_the_published_probabilities(
    epsilon: float, classes: int, secrets_for_test: SecretsFactory
) -> None:
    n = 60_000
    for label in (0, classes - 1):
        labels = torch.full((n,), label)

        answers = call_defense(
            RandomisedResponse(epsilon=epsilon, classes=classes), labels, secrets_for_test(ids=torch.arange(n))
        )

        shares = torch.bincount(answers, minlength=classes).double() / n
        weights = torch.ones(classes, dtype=torch.float64)
        weights[label] = math.exp(epsilon)
        # Five standard errors of a binomial share.
        torch.testing.assert_close(shares, weights / weights.sum(), rtol=0, atol=5 * 0.5 / math.sqrt(n))


@given(epsilon=st.floats(1e-6, 30.0), classes=st.integers(2, 1000))
def test_epsilon_is_the_log_ratio_of_one_answer_under_two_labels(epsilon: float, classes: int) -> None:
    defense = RandomisedResponse(epsilon=epsilon, classes=classes)

    one_other = (1.0 - defense.truth) / (classes - 1)
    # 1 − truth keeps 2^-53 / lie of its digits.
    assert math.log(defense.truth / one_other) == pytest.approx(epsilon, rel=1e-9, abs=1e-2 if epsilon > 20 else 1e-6)


def test_a_record_answers_once_for_the_whole_run(secrets_for_test: SecretsFactory) -> None:
    defense = RandomisedResponse(epsilon=0.5, classes=4)
    generator = torch.Generator().manual_seed(0)
    labels = torch.randint(0, 4, (300,), generator=generator)
    seen: dict[int, int] = {}
    for step in range(20):
        rows = torch.randint(0, 300, (64,), generator=generator)  # rows occur twice in a batch
        answers = call_defense(defense, labels[rows], secrets_for_test(ids=rows - 100, seed=step))
        for row, answer in zip(rows.tolist(), answers.tolist(), strict=True):
            assert seen.setdefault(row, answer) == answer
    kept = sum(answer == labels[row].item() for row, answer in seen.items()) / len(seen)
    # e^.5 / (e^.5 + 3) = .355; five standard errors of 300.
    assert kept == pytest.approx(math.exp(0.5) / (math.exp(0.5) + 3), abs=0.14)


def test_new_records_of_a_mixed_batch_answer_with_their_own_labels(secrets_for_test: SecretsFactory) -> None:
    defense = RandomisedResponse(epsilon=30.0, classes=5)  # practically never lies
    labels = torch.randint(0, 5, (400,), generator=torch.Generator().manual_seed(0))
    for rows in (torch.arange(0, 400, 3), torch.randperm(400, generator=torch.Generator().manual_seed(1))):
        assert torch.equal(call_defense(defense, labels[rows], secrets_for_test(ids=rows)), labels[rows])


def test_the_answer_outlives_a_change_of_the_label_and_a_restart(
    secrets_for_test: SecretsFactory, tmp_path: Any
) -> None:
    defense, restarted = (RandomisedResponse(epsilon=1.0, classes=3) for _ in range(2))
    ids = torch.arange(100)
    first = call_defense(defense, torch.zeros(100, dtype=torch.int64), secrets_for_test(ids=ids, seed=1))

    torch.save(defense.state_dict(), tmp_path / "state")
    restarted.load_state_dict(torch.load(tmp_path / "state", weights_only=True))

    for again in (defense, restarted):
        labels = torch.full((100,), 2)
        assert torch.equal(call_defense(again, labels, secrets_for_test(ids=ids, seed=2)), first)


@pytest.mark.parametrize("other", [RandomisedResponse(epsilon=2.0, classes=3), RandomisedResponse(epsilon=1.0)])
def test_answers_of_other_settings_are_refused(other: RandomisedResponse) -> None:
    with pytest.raises(ArgumentError, match=r"drawn with epsilon 1.0 and 3 classes, got epsilon"):
        RandomisedResponse(epsilon=1.0, classes=3).load_state_dict(other.state_dict())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.int64, torch.int32, torch.bool])
def test_answers_have_the_dtype_of_the_labels(dtype: torch.dtype, secrets_for_test: SecretsFactory) -> None:
    labels = torch.tensor([0, 1, 1, 0]).to(dtype)

    answers = call_defense(RandomisedResponse(epsilon=0.1), labels, secrets_for_test(ids=torch.arange(4)))

    assert answers.dtype == dtype
    assert set(answers.double().tolist()) <= {0.0, 1.0}


def test_a_model_learns_the_distribution_of_the_answers(secrets_for_test: SecretsFactory) -> None:
    n, epsilon, share = 40_000, 1.0, 0.1
    labels = (torch.rand(n, generator=torch.Generator().manual_seed(0)) < share).double()
    answers = call_defense(RandomisedResponse(epsilon=epsilon), labels, secrets_for_test(ids=torch.arange(n)))
    logit = nn.Parameter(torch.zeros((), dtype=torch.float64))
    optimizer = torch.optim.LBFGS([logit], max_iter=50)

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss = nn.functional.binary_cross_entropy_with_logits(logit.expand(n), answers)
        loss.backward()
        return loss

    optimizer.step(closure)

    a = 1 / (math.exp(epsilon) + 1)
    # Five standard errors of a share of n answers.
    expected = a + (math.exp(epsilon) - 1) * a * share
    assert torch.sigmoid(logit).item() == pytest.approx(expected, abs=5 * 0.5 / math.sqrt(n))


def test_epsilon_is_logged(secrets_for_test: SecretsFactory) -> None:
    logged: dict[str, float] = {}

    call_defense(
        RandomisedResponse(epsilon=1.5), torch.ones(2), secrets_for_test(ids=torch.arange(2), log=logged.__setitem__)
    )

    assert logged == {"epsilon": 1.5}
    assert crossing_of(RandomisedResponse(epsilon=1.5)) == "labels"


def test_it_refuses_to_answer_without_ids(secrets_for_test: SecretsFactory) -> None:
    with pytest.raises(PrivacyError, match="record ids"):
        RandomisedResponse(epsilon=1.0)(torch.ones(2), secrets_for_test())


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        (torch.tensor([-1.0, 1.0]), r"from 0 to 2, got \[-1.0\]"),
        (torch.tensor([0.5, 1.0]), r"from 0 to 2, got \[0.5\]"),
        (torch.tensor([math.nan, 1.0]), r"from 0 to 2, got \[nan\]"),
        (torch.tensor([0, 3]), r"from 0 to 2, got \[3\]; `classes`"),
    ],
)
def test_other_labels_are_refused(labels: torch.Tensor, message: str, secrets_for_test: SecretsFactory) -> None:
    with pytest.raises(ArgumentError, match=message):
        RandomisedResponse(epsilon=1.0, classes=3)(labels, secrets_for_test(ids=torch.arange(2)))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"epsilon": 0.0}, "epsilon must be greater than 0, got 0.0"),
        ({"epsilon": -1.0}, "epsilon must be greater than 0"),
        ({"epsilon": math.nan}, "epsilon must be greater than 0"),
        ({"epsilon": math.inf}, "too large"),
        ({"epsilon": 40.0}, "too large"),
        ({"epsilon": 1.0, "classes": 1}, "whole number of at least 2, got 1"),
        ({"epsilon": 1.0, "classes": 2.0}, "whole number of at least 2, got 2.0"),
        ({"epsilon": 1.0, "classes": True}, "whole number of at least 2"),
    ],
)
def test_bad_settings_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        RandomisedResponse(**settings)


# --- in training -----------------------------------------------------------------------------------------------------


def test_a_task_of_several_classes_is_trained_on_the_answers() -> None:
    trainer = small_trainer(
        task="multiclass", defenses=[RandomisedResponse(epsilon=0.5, classes=3)], noise_seed_for_experiments=1
    )
    labels = trainer.active.data.train.labels
    assert labels is not None
    batch = trainer.active.data.train

    targets, responses = trainer.active.answer(batch, 0)

    assert targets.dtype == torch.int64
    assert responses is targets
    assert set(targets.unique().tolist()) == {0, 1, 2}
    assert (targets != labels).any()
    trainer.fit(1)
    assert torch.equal(trainer.active.answer(batch, 3)[0], targets)


def test_a_model_in_one_process_hands_the_answers_to_later_defenses() -> None:
    class Remember:
        seen: torch.Tensor

        def __call__(self, gradient: torch.Tensor, secrets: Secrets, /) -> torch.Tensor:
            self.seen = secrets.labels
            return gradient.clone()

    model = SplitModel(nn.Linear(4, 5), nn.Linear(5, 3))
    later = Remember()
    model.defend(RandomisedResponse(epsilon=0.1, classes=3), noise_seed_for_experiments=0)
    model.defend(later)
    ids = torch.arange(60)
    labels = ids % 3

    outputs = model(torch.randn(60, 4, generator=torch.Generator().manual_seed(0)), labels=labels, ids=ids)
    targets = model.targets(labels, ids=ids)
    nn.functional.cross_entropy(outputs, targets).backward()

    assert torch.equal(later.seen, targets)
    assert not torch.equal(targets, labels)


@pytest.mark.parametrize(
    ("task", "classes", "message"),
    [
        ("binary", 3, "made for 3 classes, and a binary task here has 2 classes"),
        ("multiclass", 2, "made for 2 classes, and a multiclass task here has 3 classes"),
        ("regression", 2, "made for 2 classes, and a regression task here has no classes"),
    ],
)
def test_another_number_of_classes_than_the_tasks_is_refused(task: str, classes: int, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        small_trainer(task=task, defenses=[RandomisedResponse(epsilon=1.0, classes=classes)])

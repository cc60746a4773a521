from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from splitvfl.defenses import MemoisedResponse
from splitvfl.errors import ArgumentError, PrivacyError
from splitvfl.hooks import Secrets, call_defense, crossing_of

SecretsFactory = Callable[..., Secrets]


def answers_of(targets: torch.Tensor) -> torch.Tensor:
    return (targets > 0.5).to(targets.dtype)


@pytest.mark.parametrize("flip", [0.05, 0.3])
@pytest.mark.parametrize("label", [0.0, 1.0])
def test_labels_are_flipped_with_the_given_probability(
    flip: float, label: float, secrets_for_test: SecretsFactory
) -> None:
    n = 40_000
    labels = torch.full((n,), label, dtype=torch.float64)

    targets = call_defense(MemoisedResponse(flip=flip), labels, secrets_for_test(labels, ids=torch.arange(n)))

    # Five standard errors of a binomial share.
    error = 5 * math.sqrt(flip * (1 - flip) / n)
    assert (answers_of(targets) != labels).double().mean().item() == pytest.approx(flip, abs=error)
    # Unbiased: the correction stretches the same error by 1 / (1 - 2 flip).
    assert targets.mean().item() == pytest.approx(label, abs=error / (1 - 2 * flip))


@given(flip=st.floats(1e-6, 0.499))
def test_targets_average_to_the_label_exactly(flip: float) -> None:
    defense = MemoisedResponse(flip=flip)
    labels = torch.tensor([0.0, 1.0], dtype=torch.float64).repeat(500)
    secrets = Secrets(party="bank", step=0, generator=torch.Generator().manual_seed(0), ids=torch.arange(1000))

    no, yes = -flip / (1 - 2 * flip), (1 - flip) / (1 - 2 * flip)

    targets = set(defense(labels, secrets).tolist())
    assert all(min(abs(target - no), abs(target - yes)) <= 1e-12 * yes for target in targets)
    assert (1 - flip) * yes + flip * no == pytest.approx(1.0, rel=1e-9)
    assert flip * yes + (1 - flip) * no == pytest.approx(0.0, abs=1e-9 * yes)


def test_the_loss_is_unbiased(secrets_for_test: SecretsFactory) -> None:
    n = 60_000
    generator = torch.Generator().manual_seed(0)
    labels = (torch.rand(n, generator=generator) < 0.3).double()
    logits = torch.randn(n, generator=generator, dtype=torch.float64)
    loss = torch.nn.functional.binary_cross_entropy_with_logits

    targets = call_defense(MemoisedResponse(flip=0.2), labels, secrets_for_test(labels, ids=torch.arange(n)))

    # The difference is the mean of (target - label) * logit: deviation .4 / .6 per record, five standard errors.
    assert loss(logits, targets).item() == pytest.approx(loss(logits, labels).item(), abs=5 * 0.667 / math.sqrt(n))


@given(epsilon=st.floats(0.001, 30.0))
def test_epsilon_and_flip_name_one_mechanism(epsilon: float) -> None:
    defense = MemoisedResponse(epsilon=epsilon)

    assert defense.epsilon == pytest.approx(epsilon, rel=1e-9)
    assert defense.flip == pytest.approx(1 / (1 + math.exp(epsilon)), rel=1e-9)
    assert MemoisedResponse(flip=defense.flip).epsilon == defense.epsilon
    # Definition: the log ratio of the probabilities of one answer under two labels.
    assert math.log((1 - defense.flip) / defense.flip) == pytest.approx(epsilon, rel=1e-9)


ID_SCALES = [1, 10**12, -7]


@pytest.mark.parametrize("scale", ID_SCALES)
def test_a_record_answers_once_for_the_whole_run(scale: int, secrets_for_test: SecretsFactory) -> None:
    defense = MemoisedResponse(flip=0.4)
    generator = torch.Generator().manual_seed(0)
    labels = (torch.rand(500, generator=generator) < 0.5).float()
    seen: dict[int, float] = {}
    flips = []
    for step in range(20):
        rows = torch.randint(0, 500, (64,), generator=generator)  # rows occur twice in a batch
        secrets = secrets_for_test(labels[rows], ids=rows * scale, seed=step)

        targets = call_defense(defense, labels[rows], secrets)

        for row, target in zip(rows.tolist(), targets.tolist(), strict=True):
            assert seen.setdefault(row, target) == target
        flips.append((answers_of(targets) != labels[rows]).float().mean().item())
    assert len(seen) > 400
    assert 0.3 < sum(flips) / len(flips) < 0.5


def test_new_records_of_a_mixed_batch_answer_with_their_own_labels(secrets_for_test: SecretsFactory) -> None:
    defense = MemoisedResponse(flip=1e-12)  # practically never flips
    labels = (torch.rand(400, generator=torch.Generator().manual_seed(0)) < 0.5).double()
    for rows in (torch.arange(0, 400, 3), torch.randperm(400, generator=torch.Generator().manual_seed(1))):
        targets = call_defense(defense, labels[rows], secrets_for_test(ids=rows))

        torch.testing.assert_close(targets, labels[rows], rtol=0, atol=1e-11)


def test_the_answer_outlives_a_change_of_the_label(secrets_for_test: SecretsFactory) -> None:
    defense = MemoisedResponse(flip=0.3)
    ids = torch.arange(100)

    first = call_defense(defense, torch.ones(100), secrets_for_test(ids=ids, seed=1))
    second = call_defense(defense, torch.zeros(100), secrets_for_test(ids=ids, seed=2))

    assert torch.equal(first, second)


@pytest.mark.parametrize("scale", ID_SCALES)
def test_answers_survive_a_restart(scale: int, secrets_for_test: SecretsFactory, tmp_path: Any) -> None:
    labels = torch.ones(200)
    ids = scale * torch.arange(200)
    defense, restarted = MemoisedResponse(flip=0.4), MemoisedResponse(flip=0.4)
    first = call_defense(defense, labels, secrets_for_test(ids=ids, seed=1))

    torch.save(defense.state_dict(), tmp_path / "state")
    restarted.load_state_dict(torch.load(tmp_path / "state", weights_only=True))

    more = scale * torch.arange(300)
    again = call_defense(restarted, torch.ones(300), secrets_for_test(ids=more, seed=2))
    assert torch.equal(again[:200], first)
    assert torch.equal(again, call_defense(defense, torch.ones(300), secrets_for_test(ids=more, seed=2)))


def test_answers_of_another_flip_are_refused() -> None:
    with pytest.raises(ArgumentError, match=r"drawn with Flips\(negative=0\.2, .*got Flips\(negative=0\.4"):
        MemoisedResponse(flip=0.2).load_state_dict(MemoisedResponse(flip=0.4).state_dict())


def test_epsilon_is_logged(secrets_for_test: SecretsFactory) -> None:
    logged: dict[str, float] = {}

    call_defense(
        MemoisedResponse(epsilon=1.5), torch.ones(2), secrets_for_test(ids=torch.arange(2), log=logged.__setitem__)
    )

    assert logged == pytest.approx({"epsilon": 1.5})
    assert crossing_of(MemoisedResponse(epsilon=1.5)) == "labels"
    assert MemoisedResponse.needs_binary_labels


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_targets_have_the_dtype_of_the_labels(dtype: torch.dtype, secrets_for_test: SecretsFactory) -> None:
    labels = torch.ones(5, dtype=dtype)

    assert call_defense(MemoisedResponse(flip=0.1), labels, secrets_for_test(ids=torch.arange(5))).dtype == dtype


def test_it_refuses_to_answer_without_ids(secrets_for_test: SecretsFactory) -> None:
    with pytest.raises(PrivacyError, match="record ids"):
        MemoisedResponse(flip=0.1)(torch.ones(2), secrets_for_test())


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        (torch.tensor([-1.0, 1.0]), "labels must be 0 or 1, got"),
        (torch.tensor([0.5, 1.0]), "labels must be 0 or 1, got"),
        (torch.tensor([math.nan, 1.0]), "labels must be 0 or 1, got"),
        (torch.tensor([0, 1]), "floating-point dtype, got torch.int64"),
    ],
)
def test_other_labels_are_refused(labels: torch.Tensor, message: str, secrets_for_test: SecretsFactory) -> None:
    with pytest.raises(ArgumentError, match=message):
        MemoisedResponse(flip=0.1)(labels, secrets_for_test(ids=torch.arange(2)))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({}, "exactly one of flip and epsilon"),
        ({"flip": 0.1, "epsilon": 1.0}, "exactly one of flip and epsilon"),
        ({"flip": 0.0}, "strictly between 0 and 0.5, got 0.0"),
        ({"flip": 0.5}, "strictly between 0 and 0.5, got 0.5"),
        ({"flip": math.nan}, "strictly between"),
        ({"epsilon": 0.0}, "epsilon must be greater than 0, got 0.0"),
        ({"epsilon": -1.0}, "epsilon must be greater than 0"),
        ({"epsilon": math.nan}, "epsilon must be greater than 0"),
        ({"epsilon": 1e-20}, "too close to 0 or too large"),
        ({"epsilon": math.inf}, "too close to 0 or too large"),
    ],
)
def test_bad_settings_are_refused(settings: dict[str, float], message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        MemoisedResponse(**settings)

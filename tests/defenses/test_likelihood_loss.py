"""The likelihood of an answer as a loss, and what asking for it leaves as it was."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from scipy.optimize import minimize_scalar
from torch import Tensor, nn

from splitvfl import SplitModel
from splitvfl.defenses import AbstainingResponse, AsymmetricResponse, MemoisedResponse, RandomisedResponse
from splitvfl.defenses.corrected_response import Flips, likelihood_loss
from splitvfl.errors import ArgumentError
from splitvfl.hooks import Secrets, call_defense
from tests.builders import same, small_trainer, weights

SecretsFactory = Callable[..., Secrets]

FLIPS = {
    "both lie": Flips(negative=0.0105, positive=0.79),
    "symmetric": Flips(0.3, 0.3),
    "positives lie": Flips(0.0, 0.8),
    "negatives lie": Flips(0.8, 0.0),
    "nobody lies": Flips(0.0, 0.0),
    "hardly": Flips(1e-15, 1e-15),
}
MAKERS: dict[str, Callable[..., Any]] = {
    "asymmetric": lambda **more: AsymmetricResponse(detection_error=0.3, **more),
    "asymmetric without a bound": lambda **more: AsymmetricResponse(detection_error=0.3, epsilon=None, **more),
    "memoised": lambda **more: MemoisedResponse(flip=0.2, **more),
    "abstaining": lambda **more: AbstainingResponse(detection_error=0.3, **more),
}


def loss_of(logits: Tensor, answer: bool, flips: Flips) -> Tensor:
    return likelihood_loss(logits, torch.full(logits.shape, answer), flips)


@pytest.mark.parametrize("answer", [False, True])
@pytest.mark.parametrize("flips", FLIPS.values(), ids=FLIPS)
def test_it_is_the_formula_where_that_can_be_computed(flips: Flips, answer: bool) -> None:
    logits = torch.linspace(-12, 12, 97, dtype=torch.float64, requires_grad=True)

    losses = loss_of(logits, answer, flips)
    (gradient,) = torch.autograd.grad(losses.sum(), logits)

    p = 1 / (1 + np.exp(-logits.detach().numpy()))
    negative, positive = flips
    delta = 1 - negative - positive
    yes, no = negative + delta * p, positive + delta * (1 - p)
    expected = -np.log(yes if answer else no)
    np.testing.assert_allclose(losses.detach().numpy(), expected, rtol=1e-9, atol=1e-14)
    # The gradient as the docstring writes it; 1 - p cancels at most eleven digits of sixteen in this range.
    slope = (yes - answer) * delta * p * (1 - p) / (yes * no)
    np.testing.assert_allclose(gradient.numpy(), slope, rtol=1e-4, atol=1e-14)


@pytest.mark.parametrize("answer", [False, True])
@pytest.mark.parametrize("flips", FLIPS.values(), ids=FLIPS)
def test_gradcheck(flips: Flips, answer: bool) -> None:
    logits = torch.linspace(-30, 30, 13, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda given: loss_of(given, answer, flips), logits)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("answer", [False, True])
@pytest.mark.parametrize("flips", FLIPS.values(), ids=FLIPS)
def test_it_is_finite_at_any_logit(flips: Flips, answer: bool, dtype: torch.dtype) -> None:
    sizes = torch.tensor([0.0, 1e-30, 1.0, 40.0, 104.0, 800.0, 1e8, 1e30], dtype=dtype)
    logits = torch.cat([-sizes, sizes]).requires_grad_()

    losses = loss_of(logits, answer, flips)
    losses.sum().backward()

    assert torch.isfinite(losses).all()
    assert (losses >= 0).all()
    assert logits.grad is not None
    assert torch.isfinite(logits.grad).all()
    assert (logits.grad.abs() <= 1).all()
    # Where the answer must be true, it is the logistic loss: linear for who is surely wrong.
    if (flips.negative if answer else flips.positive) == 0.0:
        assert losses[logits == (-1e8 if answer else 1e8)].item() == pytest.approx(1e8, rel=1e-6)


@pytest.mark.parametrize("share", [0.05, 0.4])
@pytest.mark.parametrize("flips", FLIPS.values(), ids=FLIPS)
def test_its_minimum_is_at_the_probability_of_the_label(flips: Flips, share: float) -> None:
    said = flips.negative + flips.total_variation * share

    def expected(logit: float) -> float:
        one = torch.tensor([logit], dtype=torch.float64)
        return float(said * loss_of(one, True, flips) + (1 - said) * loss_of(one, False, flips))

    found = minimize_scalar(expected, bounds=(-10, 10), method="bounded", options={"xatol": 1e-9})

    # A minimum is found to the root of the precision.
    assert found.x == pytest.approx(math.log(share / (1 - share)), abs=1e-4)


def test_without_lies_it_is_the_logistic_loss() -> None:
    logits = torch.linspace(-50, 50, 41, dtype=torch.float64)
    answers = torch.arange(41) % 2 == 0
    expected = nn.functional.binary_cross_entropy_with_logits(logits, answers.double(), reduction="none")
    torch.testing.assert_close(likelihood_loss(logits, answers, Flips(0.0, 0.0)), expected, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)
def test_what_is_drawn_remembered_and_promised_is_the_same(
    make: Callable[..., Any], secrets_for_test: SecretsFactory
) -> None:
    told, given, states = [], [], []
    labels = (torch.arange(200) % 2).float()
    for corrected in ("targets", "likelihood"):
        logged: dict[str, float] = {}
        defense = make(corrected=corrected)
        secrets = secrets_for_test(ids=torch.arange(200), seed=4, log=logged.__setitem__)
        given.append(call_defense(defense, labels, secrets))
        told.append(logged)
        states.append(defense.state_dict())
    assert torch.equal(*given)
    assert told[0] == told[1]
    first, second = (state["answers"]["columns"]["answer"] for state in states)
    assert torch.equal(torch.as_tensor(first), torch.as_tensor(second))
    make(corrected="likelihood").load_state_dict(states[0])


@pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)
def test_targets_are_the_values_that_are_declared(make: Callable[..., Any], secrets_for_test: SecretsFactory) -> None:
    defense = make()
    labels = (torch.arange(400) % 2).double()

    targets = call_defense(defense, labels, secrets_for_test(ids=torch.arange(400)))

    assert set(targets.tolist()) == set(defense.target_values)
    assert list(defense.target_values) == sorted(defense.target_values)


@pytest.mark.parametrize("make", list(MAKERS.values())[:3], ids=list(MAKERS)[:3])
def test_a_step_is_that_of_the_formula(make: Callable[..., Any]) -> None:
    torch.manual_seed(0)
    defense = make(corrected="likelihood")
    model = SplitModel(nn.Linear(4, 3), nn.Linear(3, 1)).double()
    model.defend(defense, noise_seed_for_experiments=1)
    labels, ids = (torch.arange(50) % 2).double(), torch.arange(50)
    columns = torch.randn(50, 4, dtype=torch.float64)
    sent: list[Tensor] = []
    model.cut.audit()  # compares what is sent with what the loss says, too
    model.cut.register_full_backward_hook(lambda _, given, __: sent.append(given[0]))

    output = model(columns, labels=labels, ids=ids)
    model.loss(output, labels, ids=ids).backward()

    # The same defense with its targets alone, under the same seed, tells what was drawn.
    plain = SplitModel(nn.Linear(4, 3), nn.Linear(3, 1))
    plain.defend(make(), noise_seed_for_experiments=1)
    said = (plain.targets(labels, ids=ids) > 0.5).double()
    p = torch.sigmoid(output.detach()[:, 0])
    b, delta = defense.flips.negative, defense.flips.total_variation
    q = b + delta * p
    slope = (q - said) * delta * p * (1 - p) / (q * (1 - q))
    torch.testing.assert_close(sent[0], slope[:, None] * model.top.weight.detach() / 50, rtol=1e-9, atol=1e-15)


@pytest.mark.parametrize("classes", [2, 3, 7])
def test_of_k_classes_it_is_the_formula(classes: int) -> None:
    defense = RandomisedResponse(epsilon=1.3, classes=classes, corrected="likelihood")
    random = torch.Generator().manual_seed(classes)
    outputs = (4 * torch.randn(30, classes, generator=random, dtype=torch.float64)).requires_grad_()
    answers = torch.randint(classes, (30,), generator=random)
    assert defense.record_loss is not None

    losses = defense.record_loss(outputs, answers)

    p = np.exp(outputs.detach().numpy())
    p /= p.sum(axis=1, keepdims=True)
    a = 1 / (math.exp(1.3) + classes - 1)
    expected = -np.log(a + math.expm1(1.3) * a * p[np.arange(30), answers.numpy()])
    np.testing.assert_allclose(losses.detach().numpy(), expected, rtol=1e-9)
    assert torch.autograd.gradcheck(lambda given: defense.record_loss(given, answers), outputs)  # type: ignore[misc]
    far = torch.full((2, classes), -1e30)
    far[:, 0] = 1e30
    assert torch.isfinite(defense.record_loss(far, torch.tensor([0, 1]))).all()


def test_one_logit_stands_for_two_classes() -> None:
    epsilon = 0.8
    ours = RandomisedResponse(epsilon=epsilon, corrected="likelihood").record_loss
    other = MemoisedResponse(epsilon=epsilon, corrected="likelihood").record_loss
    assert ours is not None
    assert other is not None
    logits, answers = torch.linspace(-9, 9, 20, dtype=torch.float64)[:, None], torch.arange(20) % 2
    torch.testing.assert_close(ours(logits, answers), other(logits, answers.double()), rtol=1e-12, atol=0)
    with pytest.raises(ArgumentError, match="expected 2 outputs for each record, one per class, got 3"):
        ours(torch.zeros(20, 3), answers)


def test_a_run_with_three_classes_learns_from_answers_alone() -> None:
    def run(corrected: Any) -> Any:
        defense = RandomisedResponse(epsilon=1.0, classes=3, corrected=corrected)
        trainer = small_trainer(task="multiclass", defenses=[defense], noise_seed_for_experiments=2)
        trainer.fit(2)
        return trainer

    trainers = {corrected: run(corrected) for corrected in ("nothing", "likelihood")}
    kept = [trainer.active.labels.state_dict()["randomised-response"]["defense"] for trainer in trainers.values()]
    assert repr(kept[0]) == repr(kept[1])
    assert not same(*map(weights, trainers.values()))


@pytest.mark.parametrize(
    "make", [*MAKERS.values(), lambda **more: RandomisedResponse(epsilon=1.0, **more)], ids=[*MAKERS, "randomised"]
)
@pytest.mark.parametrize("narrow", [torch.bfloat16, torch.float16])
def test_outputs_in_half_precision_have_a_loss_in_single(make: Callable[..., Any], narrow: torch.dtype) -> None:
    loss, (no, *_, yes) = make(corrected="likelihood").record_loss, make().target_values
    outputs = torch.linspace(-20, 20, 16).to(narrow)[:, None].requires_grad_()
    targets = torch.tensor([no, yes]).repeat(8)

    losses = loss(outputs, targets)
    losses.mean().backward()

    assert losses.dtype == torch.float32
    assert torch.equal(losses, loss(outputs.float(), targets))
    assert outputs.grad is not None
    assert torch.isfinite(outputs.grad).all()


def test_an_unknown_correction_is_refused() -> None:
    with pytest.raises(ArgumentError, match="corrected must be 'nothing' or 'likelihood', got 'targets'"):
        RandomisedResponse(epsilon=1.0, corrected="targets")  # type: ignore[arg-type]
    for make in MAKERS.values():
        with pytest.raises(ArgumentError, match="corrected must be 'targets' or 'likelihood', got 'likelyhood'"):
            make(corrected="likelyhood")

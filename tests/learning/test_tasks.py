"""Tasks: losses and figures against oracles, and labels that they refuse."""

from __future__ import annotations

import math

import pytest
import torch
from sklearn.metrics import accuracy_score, log_loss, mean_poisson_deviance, r2_score, roc_auc_score
from torch import Tensor
from torch.nn import functional

from splitvfl.defenses import SumKL
from splitvfl.errors import ArgumentError, ConfigError, DataError
from splitvfl.learning.losses import Loss
from splitvfl.learning.tasks import Binary, Multiclass, Regression, Task, task_for
from tests.builders import generator, small_trainer

# Sums of 40 float32 terms of size about 1, each within 2**-24 relative: 40 * 6e-8.
CLOSE = pytest.approx


def outputs(width: int, rows: int = 40) -> Tensor:
    return torch.randn(rows, width, generator=generator("outputs", width))


BINARY = (torch.rand(40, generator=generator("binary")) > 0.6).float()
CLASSES = torch.randint(0, 3, (40,), generator=generator("classes"))
REAL = torch.randn(40, generator=generator("real")) * 3 + 5


def test_scores_at_an_end_are_counted() -> None:
    assert Binary().saturation(torch.tensor([[200.0], [-200.0], [0.0], [1.0]])) == 0.5
    assert Multiclass(3).saturation(torch.tensor([[200.0, 0.0, 0.0], [0.0, 0.0, 0.0]])) == 0.5


def test_binary_against_scikit_learn() -> None:
    task, logits = Binary(), outputs(1)
    scores = task.loss.scores(logits)
    assert scores.shape == (40,)
    assert scores.tolist() == CLOSE([1 / (1 + math.exp(-value)) for value in logits[:, 0].tolist()], rel=1e-6)
    assert task.loss(logits, BINARY).item() == CLOSE(log_loss(BINARY.numpy(), scores.double().numpy()), rel=3e-6)
    assert task.measure(logits, BINARY) == CLOSE(roc_auc_score(BINARY.numpy(), logits.numpy()[:, 0]), abs=1e-12)


def test_multiclass_against_scikit_learn() -> None:
    task, logits = Multiclass(3), outputs(3)
    scores = task.loss.scores(logits)
    assert scores.shape == (40, 3)
    assert scores.sum(1).tolist() == CLOSE([1.0] * 40, abs=1e-6)
    assert torch.equal(scores.argmax(1), logits.argmax(1))
    probabilities = torch.softmax(logits.double(), 1).numpy()
    assert task.loss(logits, CLASSES).item() == CLOSE(log_loss(CLASSES.numpy(), probabilities), rel=3e-6)
    accuracy = accuracy_score(CLASSES.numpy(), logits.argmax(1).numpy())
    assert task.measure(logits, CLASSES) == CLOSE(accuracy, rel=1e-6)


def test_regression_against_scikit_learn() -> None:
    task, predicted = Regression(), outputs(1) + 4
    assert torch.equal(task.loss.scores(predicted), predicted[:, 0])
    expected = (predicted[:, 0].double() - REAL.double()).square().mean().item()
    assert task.loss(predicted, REAL).item() == CLOSE(expected, rel=3e-6)
    assert task.measure(predicted, REAL) == CLOSE(r2_score(REAL.numpy(), predicted.numpy()[:, 0]), abs=1e-6)
    assert math.isnan(task.measure(predicted, torch.full((40,), 2.0)))


class Poisson(Loss):
    """Counts, of which the output is the logarithm of the mean."""

    def __call__(self, outputs: Tensor, targets: Tensor, /) -> Tensor:
        return functional.poisson_nll_loss(outputs.squeeze(1), targets)

    def scores(self, outputs: Tensor) -> Tensor:
        return outputs.squeeze(1).exp()

    def check(self, labels: Tensor) -> None:
        if (labels < 0).any():
            raise DataError("expected counts")


def test_another_loss_is_no_other_task() -> None:
    """Poisson regression of one column against scikit-learn's, whose mean deviance the same outputs must have."""
    task = Regression(Poisson())
    assert (task.name, task.outputs, task.metric) == ("regression", 1, "r2")
    counts = REAL.abs().round()
    predicted = outputs(1)
    means = task.loss.scores(predicted)
    assert means.tolist() == CLOSE(predicted[:, 0].exp().tolist())
    # The deviance is twice the difference to the loss of the best means, the counts themselves.
    best = task.loss(counts.clamp(min=1e-30).log()[:, None], counts)
    deviance = mean_poisson_deviance(counts.numpy(), means.double().numpy())
    assert 2 * (task.loss(predicted, counts) - best).item() == CLOSE(deviance, rel=1e-5)
    assert task.measure(predicted, counts) == CLOSE(r2_score(counts.numpy(), means.numpy()), abs=1e-5)
    task.check(counts)
    with pytest.raises(DataError, match="expected counts"):
        task.check(counts - 5)
    with pytest.raises(DataError, match="finite"):
        task.check(counts * torch.nan)


def test_losses_take_one_column_of_labels_not_a_grid() -> None:
    """``(n, 1)`` against ``(n,)`` would broadcast to ``(n, n)``: the loss of one record must be that of its label."""
    for task, labels in ((Binary(), BINARY), (Regression(), REAL)):
        each = [task.loss(outputs(1)[[row]], labels[[row]]).item() for row in range(40)]
        assert task.loss(outputs(1), labels).item() == CLOSE(sum(each) / 40, rel=3e-6)


@pytest.mark.parametrize("dtype", [torch.float64, torch.int64, torch.bool])
def test_binary_targets_are_cast_to_the_outputs(dtype: torch.dtype) -> None:
    Binary().check(BINARY.to(dtype))
    assert Binary().loss(outputs(1), BINARY.to(dtype)).dtype == torch.float32


@pytest.mark.parametrize(
    ("labels", "complaint"),
    [
        (torch.tensor([-1.0, 1.0]), r"needs labels 0 and 1, got \[-1.0, 1.0\]; -1/\+1 labels: map -1 to 0"),
        (torch.tensor([1, 2]), r"needs labels 0 and 1, got \[1, 2\]$"),
        (torch.tensor([0.0, 0.5, 1.0]), "needs labels 0 and 1, got"),
        (torch.tensor([0.0, 1.0, torch.nan]), "needs labels 0 and 1, got"),
        (torch.zeros(3), "all 3 labels are .*both classes"),
        (torch.ones(3), "all 3 labels are .*both classes"),
        (torch.zeros(0), "all 0 labels"),
    ],
)
def test_binary_refuses_other_labels(labels: Tensor, complaint: str) -> None:
    with pytest.raises(DataError, match=complaint):
        Binary().check(labels)


@pytest.mark.parametrize(
    ("labels", "complaint"),
    [
        (torch.tensor([1, 2, 3]), "needs labels 0 to 2, got 1 to 3"),
        (torch.tensor([-1, 0, 1]), "needs labels 0 to 2, got -1 to 1"),
        (torch.tensor([0.0, 1.0, 2.0]), r"whole-number labels, got dtype torch.float32"),
        (torch.tensor([1, 1, 1]), "all 3 labels are 1"),
    ],
)
def test_multiclass_refuses_other_labels(labels: Tensor, complaint: str) -> None:
    with pytest.raises(DataError, match=complaint):
        Multiclass(3).check(labels)


@pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf])
def test_regression_refuses_labels_that_are_not_finite(value: float) -> None:
    with pytest.raises(DataError, match="finite"):
        Regression().check(torch.tensor([0.0, value]))


def test_regression_refuses_labels_that_do_not_vary() -> None:
    with pytest.raises(DataError, match=r"all 3 labels are 2\.5"):
        Regression().check(torch.full((3,), 2.5))


@pytest.mark.parametrize(
    ("task", "labels"),
    [(Binary(), BINARY), (Multiclass(3), CLASSES), (Multiclass(4), CLASSES), (Regression(), REAL)],
    ids=["binary", "three classes", "four classes", "numbers"],
)
def test_good_labels_pass_and_stay_as_they_are(task: Task, labels: Tensor) -> None:
    before = labels.clone()
    task.check(labels)  # raises where they do not pass
    assert torch.equal(labels, before)


def test_tasks_by_name() -> None:
    for name, width in (("binary", 1), ("multiclass", 5), ("regression", 1)):
        task = task_for(name, 5)
        assert (task.name, task.outputs) == (name, width)
    with pytest.raises(ArgumentError, match="'ranking'; expected binary, multiclass or regression"):
        task_for("ranking")
    with pytest.raises(ArgumentError, match="at least 2 classes, got 1"):
        Multiclass(1)


@pytest.mark.parametrize("shape", [(40, 2), (39, 1), (40,), (40, 1, 1)])
def test_outputs_of_another_shape_are_refused(shape: tuple[int, ...]) -> None:
    Binary().check_outputs(torch.zeros(40, 1), 40)
    with pytest.raises(ArgumentError, match=r"shape \(40, 1\) for a binary task, got \(") as caught:
        Binary().check_outputs(torch.zeros(shape), 40)
    assert str(shape) in str(caught.value)


# --- end to end

HEADLINES = {"binary": ("auc", 0.7), "multiclass": ("accuracy", 0.45), "regression": ("r2", 0.3)}


@pytest.mark.parametrize("name", HEADLINES)
def test_every_task_is_learned(name: str) -> None:
    """Labels share a factor with every party's columns; chance is 0.5, about 0.4 and 0."""
    metric, least = HEADLINES[name]
    sizes = {"train": 320, "test": 160}
    trainer = small_trainer(
        task=name, sizes=sizes, optimizer=lambda weights: torch.optim.Adam(weights, lr=0.02), audit=False, batch_size=32
    )
    first = trainer.fit(1)["loss"]
    figures = trainer.fit(10)
    assert figures.keys() == {metric, "loss"}
    assert figures[metric] > least
    assert figures["loss"] < first


@pytest.mark.parametrize("name", ["multiclass", "regression"])
def test_attacks_and_defenses_for_binary_labels_are_refused_elsewhere(name: str) -> None:
    class Peek:
        name = "peek"

        def __call__(self, view: object, /) -> Tensor:
            raise AssertionError

    (reason,) = {why["peek"] for why in small_trainer(task=name, attacks=[Peek()]).unavailable.values()}
    assert "binary" in reason
    with pytest.raises(ConfigError, match=f"defense {SumKL.name} needs binary labels, the task is {name}"):
        small_trainer(task=name, defenses=[SumKL(ratio=1.0)])

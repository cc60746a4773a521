"""Every setting of a defense or an optimizer changes what it does: two values, two results, or an error.

A setting that is accepted, announced and not used is worse than none. The arguments come from the constructors, so that
a new one without a row fails here.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import mse_loss

from splitvfl import SplitModel
from splitvfl.config.registry import SUPPLIED, PluginKind, arguments_of, built_in
from splitvfl.cut.chain import DefenseChain
from splitvfl.errors import SplitVFLError
from splitvfl.hooks import crossing_of, hook_name
from splitvfl.models import LinearTop

# Two sets of options that differ in the argument alone. What is not in the first has its default there.
Pair = tuple[dict[str, Any], dict[str, Any]]

DE: dict[str, Any] = {"detection_error": 0.4}
LIKE = {"corrected": "likelihood"}
MULTIPLICATIVE: dict[str, Any] = {"epsilon": 1.0, "b1": 0.5, "b2": 1.5}

DEFENSES: dict[tuple[str, str], Pair] = {
    ("abstaining-response", "detection_error"): (DE, {"detection_error": 0.3}),
    ("abstaining-response", "epsilon"): (DE, {**DE, "epsilon": 0.5}),
    ("abstaining-response", "corrected"): (DE, {**DE, **LIKE}),
    ("asymmetric-response", "detection_error"): (DE, {"detection_error": 0.1}),
    ("asymmetric-response", "epsilon"): (DE, {**DE, "epsilon": 0.5}),
    ("asymmetric-response", "rare"): (DE, {**DE, "rare": "negative"}),
    ("asymmetric-response", "corrected"): (DE, {**DE, **LIKE}),
    ("axis-gaussian", "ratio"): ({"ratio": 1.0}, {"ratio": 2.0}),
    ("axis-gaussian", "detection_error"): (DE, {"detection_error": 0.3}),
    ("axis-sumkl", "power"): ({"power": 1e-3}, {"power": 2e-3}),
    ("axis-sumkl", "ratio"): ({"ratio": 1.0}, {"ratio": 2.0}),
    ("axis-sumkl", "detection_error"): (DE, {"detection_error": 0.3}),
    ("class-label", "epsilon"): ({"epsilon": 0.3}, {"epsilon": 0.1}),
    ("clip-gradient", "bound"): ({"bound": 1e-3}, {"bound": 1e-4}),
    ("clip-gradient", "quantile"): ({"quantile": 0.5}, {"quantile": 0.2}),
    ("coefficient-noise", "sigma"): ({"sigma": 1.0, "clip": 1.0}, {"sigma": 2.0, "clip": 1.0}),
    ("coefficient-noise", "clip"): ({"sigma": 1.0, "clip": 1.0}, {"sigma": 1.0, "clip": 0.1}),
    ("coefficient-noise", "scale"): ({"sigma": 1.0, "clip": 1.0}, {"sigma": 1.0, "clip": 1.0, "scale": 2.0}),
    ("discretise", "bins"): ({"bins": 6}, {"bins": 3}),
    ("gaussian-ir", "clip"): ({"clip": 1.0, "sigma": 1.0}, {"clip": 0.1, "sigma": 1.0}),
    ("gaussian-ir", "sigma"): ({"clip": 1.0, "sigma": 1.0}, {"clip": 1.0, "sigma": 2.0}),
    ("gaussian-targets", "sigma"): ({"sigma": 1.0}, {"sigma": 2.0}),
    ("gaussian-targets", "mu"): ({"mu": 1.0}, {"mu": 2.0}),
    ("gaussian-targets", "epsilon"): ({"epsilon": 1.0, "delta": 1e-5}, {"epsilon": 2.0, "delta": 1e-5}),
    ("gaussian-targets", "delta"): ({"epsilon": 1.0, "delta": 1e-5}, {"epsilon": 1.0, "delta": 1e-3}),
    ("gaussian-targets", "detection_error"): (DE, {"detection_error": 0.3}),
    ("gaussian-targets", "remembered"): ({"mu": 1.0}, {"mu": 1.0, "remembered": False, "epochs": 9}),
    ("gaussian-targets", "classes"): ({"mu": 1.0}, {"mu": 1.0, "classes": 3}),
    ("gaussian-targets", "label_range"): (
        {"mu": 1.0, "label_range": (0.0, 1.0)},
        {"mu": 1.0, "label_range": (0.0, 2.0)},
    ),
    ("gaussian-targets", "epochs"): (
        {"mu": 1.0, "remembered": False, "epochs": 1},
        {"mu": 1.0, "remembered": False, "epochs": 4},
    ),
    ("isotropic", "ratio"): ({"ratio": 1.0}, {"ratio": 2.0}),
    ("isotropic", "sigma"): ({"sigma": 1.0}, {"sigma": 2.0}),
    ("laplace-residue", "epsilon"): ({"epsilon": 1.0}, {"epsilon": 2.0}),
    ("memoised-response", "flip"): ({"flip": 0.1}, {"flip": 0.4}),
    ("memoised-response", "epsilon"): ({"epsilon": 3.0}, {"epsilon": 0.1}),
    ("memoised-response", "corrected"): ({"flip": 0.1}, {"flip": 0.1, **LIKE}),
    ("multiplicative-laplace-residue", "epsilon"): (MULTIPLICATIVE, {**MULTIPLICATIVE, "epsilon": 2.0}),
    ("multiplicative-laplace-residue", "b1"): (MULTIPLICATIVE, {**MULTIPLICATIVE, "b1": 0.25}),
    ("multiplicative-laplace-residue", "b2"): (MULTIPLICATIVE, {**MULTIPLICATIVE, "b2": 3.0}),
    ("multiplicative-laplace-residue", "mode"): (MULTIPLICATIVE, {**MULTIPLICATIVE, "mode": "centred_at_zero"}),
    ("purification", "temperature"): ({"temperature": 2.0}, {"temperature": 5.0}),
    ("randomised-response", "epsilon"): ({"epsilon": 3.0}, {"epsilon": 0.1}),
    ("randomised-response", "classes"): ({"epsilon": 3.0}, {"epsilon": 3.0, "classes": 3}),
    ("randomised-response", "corrected"): ({"epsilon": 3.0}, {"epsilon": 3.0, **LIKE}),
    ("record-gaussian", "detection_error"): (DE, {"detection_error": 0.3}),
    ("record-gaussian", "mu"): ({"mu": 1.0}, {"mu": 2.0}),
    ("record-gaussian", "epsilon"): ({"epsilon": 1.0, "delta": 1e-5}, {"epsilon": 2.0, "delta": 1e-5}),
    ("record-gaussian", "delta"): ({"epsilon": 1.0, "delta": 1e-5}, {"epsilon": 1.0, "delta": 1e-3}),
    ("record-gaussian", "per"): ({"mu": 1.0}, {"mu": 1.0, "per": "run", "epochs": 4}),
    ("record-gaussian", "classes"): ({"mu": 1.0, "classes": 2}, {"mu": 1.0, "classes": 3}),
    ("record-gaussian", "label_range"): (
        {"mu": 1.0, "label_range": (0.0, 1.0)},
        {"mu": 1.0, "label_range": (0.0, 2.0)},
    ),
    ("record-gaussian", "epochs"): ({"mu": 1.0, "per": "run", "epochs": 1}, {"mu": 1.0, "per": "run", "epochs": 4}),
    ("rounding", "decimals"): ({"decimals": 1}, {"decimals": 2}),
    ("score-noise", "scheme"): ({"scheme": 1, "power": 1.0}, {"scheme": 2, "power": 1.0}),
    ("score-noise", "power"): ({"scheme": 1, "power": 1.0}, {"scheme": 1, "power": 2.0}),
    ("score-noise", "direction"): (
        {"scheme": "optimum", "power": 1.0, "direction": (1.0, 0.0, -1.0)},
        {"scheme": "optimum", "power": 1.0, "direction": (1.0, -1.0, 0.0)},
    ),
    ("sumkl", "power"): ({"power": 1e-3}, {"power": 2e-3}),
    ("sumkl", "ratio"): ({"ratio": 1.0}, {"ratio": 2.0}),
    ("sumkl", "detection_error"): (DE, {"detection_error": 0.3}),
    ("top-k", "keep"): ({"keep": 0.1}, {"keep": 0.5}),
}
OPTIMIZERS: dict[tuple[str, str], Pair] = {
    ("adagrad", "lr"): ({}, {"lr": 0.1}),
    ("adagrad", "weight_decay"): ({}, {"weight_decay": 0.1}),
    ("adam", "lr"): ({}, {"lr": 0.1}),
    ("adam", "weight_decay"): ({}, {"weight_decay": 0.1}),
    ("proximal-sgd", "lr"): ({}, {"lr": 0.1}),
    ("proximal-sgd", "l1"): ({}, {"l1": 0.1}),
    ("proximal-sgd", "l2"): ({}, {"l2": 0.1}),
    ("proximal-sgd", "radius"): ({}, {"radius": 0.1}),
    ("sgd", "lr"): ({}, {"lr": 0.1}),
    ("sgd", "momentum"): ({}, {"momentum": 0.9}),
    ("sgd", "weight_decay"): ({}, {"weight_decay": 0.1}),
    ("sgd", "radius"): ({}, {"radius": 0.1}),
}
EMBEDDING_OPTIMIZERS: dict[tuple[str, str], Pair] = {
    (name, "lr"): ({}, {"lr": 0.5}) for name in ("adagrad", "rowwise-adagrad", "sgd", "sparse-adam")
}
# Why two values cannot be told apart here.
NOT_HERE: dict[tuple[str, str], str] = {
    ("coefficient-noise", "one_draw"): "of several parties alone: tests/exchange/test_sum_noise.py",
}


def arguments(kind: PluginKind) -> set[tuple[str, str]]:
    supplied = SUPPLIED.get(kind, ())
    return {(name, one) for name, found in built_in(kind).items() for one in arguments_of(found) if one not in supplied}


def test_every_argument_has_a_row() -> None:
    assert {*DEFENSES, *NOT_HERE} == arguments("defenses")
    assert set(OPTIMIZERS) == arguments("optimizers")
    assert set(EMBEDDING_OPTIMIZERS) == arguments("embedding_optimizers")


def test_rows_differ_in_their_argument() -> None:
    for table in (DEFENSES, OPTIMIZERS, EMBEDDING_OPTIMIZERS):
        for (name, argument), (first, second) in table.items():
            assert first.get(argument, ...) != second.get(argument, ...), (name, argument)


def outcome_of_defense(name: str, options: dict[str, Any]) -> list[Tensor] | str:
    try:
        return _defended(built_in("defenses")[name](**options), numbers="label_range" in options)
    except SplitVFLError as error:
        return str(error)


def _defended(defense: Any, *, numbers: bool) -> list[Tensor]:
    """Return what two parties learn from one step, or what is sent of scores and activations."""
    torch.manual_seed(0)
    x, ids = torch.randn(64, 5), torch.arange(64)
    labels = torch.rand(64) if numbers else (torch.arange(64) % 3 == 0).float()
    crossing = crossing_of(defense)
    if crossing not in ("labels", "gradient"):
        chain = DefenseChain(crossing, "bank")
        chain.attach(defense, noise_seed_for_experiments=1)
        message = torch.randn(64, 3).softmax(dim=1) if crossing == "scores" else torch.randn(64, 3)
        return [chain.apply(message, step=0, ids=ids, labels=labels)]
    residues = hook_name(defense).endswith("residue")  # the gradient where logits are added up, and nowhere else
    bottom, top = (nn.Linear(5, 1), LinearTop(1, 1)) if residues else (nn.Linear(5, 3), nn.Linear(3, 1))
    model = SplitModel(bottom, top, loss=_squared if numbers else None)
    model.defend(defense, noise_seed_for_experiments=1)
    loss = model.loss(model(x, labels=labels, ids=ids), labels, ids=ids)
    loss.backward()
    return [loss.detach(), *(weight.grad for weight in model.parameters() if weight.grad is not None)]


def _squared(output: Tensor, labels: Tensor) -> Tensor:
    return mse_loss(output.squeeze(1), labels)


@pytest.mark.parametrize(("name", "argument"), DEFENSES)
def test_two_values_of_a_defense_send_two_messages(name: str, argument: str) -> None:
    first, second = (outcome_of_defense(name, options) for options in DEFENSES[name, argument])

    again = outcome_of_defense(name, DEFENSES[name, argument][0])
    assert not isinstance(first, str), first
    assert not isinstance(again, str)
    assert all(map(torch.equal, first, again))  # so that what differs below is due to the setting
    assert isinstance(second, str) or not all(map(torch.equal, first, second))


def outcome_of_optimizer(kind: PluginKind, name: str, options: dict[str, Any]) -> Tensor:
    weight = nn.Embedding(4, 2, sparse=kind == "embedding_optimizers")
    with torch.no_grad():
        weight.weight.copy_(torch.arange(8.0).reshape(4, 2))
    optimizer = built_in(kind)[name](weight.parameters(), **options)
    for _ in range(2):
        optimizer.zero_grad()
        (weight(torch.tensor([1, 3])) ** 2).sum().backward()
        optimizer.step()
    return weight.weight.detach().clone()


@pytest.mark.filterwarnings("ignore:Sparse invariant checks are implicitly disabled")
@pytest.mark.parametrize(
    ("kind", "name", "argument"),
    [("optimizers", *row) for row in OPTIMIZERS] + [("embedding_optimizers", *row) for row in EMBEDDING_OPTIMIZERS],
)
def test_two_values_of_an_optimizer_take_two_steps(kind: PluginKind, name: str, argument: str) -> None:
    table = OPTIMIZERS if kind == "optimizers" else EMBEDDING_OPTIMIZERS

    first, second = (outcome_of_optimizer(kind, name, options) for options in table[name, argument])

    assert not torch.equal(first, second)

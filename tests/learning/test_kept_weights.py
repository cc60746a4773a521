"""A backward pass after later steps of the optimiser is one at the weights of its forward pass."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from splitvfl.learning.kept_weights import keeping_weights

ROWS, INPUTS, WIDTH = 12, 6, 5


class Twice(nn.Module):
    """One weight in two places, one of them transposed, and a frozen one."""

    def __init__(self) -> None:
        super().__init__()
        self.inward = nn.Linear(INPUTS, INPUTS)
        self.outward = nn.Linear(INPUTS, WIDTH)
        self.fixed = nn.Parameter(torch.randn(WIDTH), requires_grad=False)

    def forward(self, rows: Tensor) -> Tensor:
        found: Tensor = self.inward(torch.tanh(self.inward(rows))) @ self.inward.weight.T
        return self.outward(found) * self.fixed


class Table(nn.Module):
    def __init__(self, *, sparse: bool) -> None:
        super().__init__()
        self.table = nn.Embedding(9, 4, sparse=sparse)
        self.layers = nn.Sequential(nn.Linear(4 * INPUTS, 7), nn.ReLU(), nn.Linear(7, WIDTH))

    def forward(self, rows: Tensor) -> Tensor:
        codes = (rows.abs() * 3).long() % 9
        found: Tensor = self.layers(self.table(codes).flatten(1))
        return found


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.cell = nn.GRU(1, WIDTH, batch_first=True)

    def forward(self, rows: Tensor) -> Tensor:
        found: Tensor = self.cell(rows[..., None])[0][:, -1]
        return found


BUILDS: dict[str, Callable[[], nn.Module]] = {
    "layers": lambda: nn.Sequential(nn.Linear(INPUTS, 8), nn.ReLU(), nn.Linear(8, WIDTH)),
    "one weight twice": Twice,
    "batch norm": lambda: nn.Sequential(nn.Linear(INPUTS, 8), nn.BatchNorm1d(8), nn.Linear(8, WIDTH), nn.LayerNorm(5)),
    "table": lambda: Table(sparse=False),
    "sparse table": lambda: Table(sparse=True),
    "recurrent": Recurrent,
    "parametrised": lambda: nn.utils.parametrizations.weight_norm(nn.Linear(INPUTS, WIDTH)),
}


def _dense(gradient: Tensor | None) -> Tensor | None:
    return gradient.to_dense() if gradient is not None and gradient.is_sparse else gradient


@pytest.mark.parametrize("build", BUILDS.values(), ids=BUILDS)
def test_gradients_are_those_of_the_weights_of_the_forward_pass(build: Callable[[], nn.Module]) -> None:
    """Against a copy of the whole module, which nobody changes."""
    torch.manual_seed(3)
    module = build()
    # Two steps of it: as many batches are under way as there are gradients to come.
    rows = [torch.randn(ROWS, INPUTS) for _ in range(2)]
    gradients = [torch.randn(ROWS, WIDTH) for _ in range(2)]
    optimizer = torch.optim.SGD([one for one in module.parameters() if one.requires_grad], lr=0.5)
    outputs, expected = [], []
    for one, gradient in zip(rows, gradients, strict=True):
        apart = copy.deepcopy(module)
        apart(one).backward(gradient)
        expected.append({name: _dense(weight.grad) for name, weight in apart.named_parameters()})
        with keeping_weights(module):
            outputs.append(module(one))
    for output, gradient, due in zip(outputs, gradients, expected, strict=True):
        optimizer.zero_grad()
        output.backward(gradient)
        for name, weight in module.named_parameters():
            found = _dense(weight.grad)
            assert (found is None) == (due[name] is None), name
            assert found is None or torch.equal(found, due[name]), name  # type: ignore[arg-type]
        optimizer.step()


def test_a_buffer_that_a_module_changes_between_two_uses_is_kept_as_it_was_at_each() -> None:
    class Shrinking(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(INPUTS, WIDTH)
            self.register_buffer("scale", torch.ones(WIDTH))

        def forward(self, rows: Tensor) -> Tensor:
            assert isinstance(self.scale, Tensor)
            found = self.layer(rows) * self.scale
            self.scale.mul_(0.5)
            return found * self.scale

    module, rows = Shrinking(), torch.randn(ROWS, INPUTS)
    with keeping_weights(module):
        output = module(rows)
    output.sum().backward()
    # Once with the scale of 1, and once with that of ½.
    assert torch.allclose(module.layer.bias.grad, torch.full((WIDTH,), 0.5 * ROWS))  # type: ignore[arg-type]


def test_without_it_autograd_refuses() -> None:
    """What is kept is needed: weights that changed in place are no longer those of the forward pass."""
    module = BUILDS["layers"]()
    output = module(torch.randn(ROWS, INPUTS))
    with torch.no_grad():
        module[2].weight.add_(1.0)  # type: ignore[index,union-attr]
    with pytest.raises(RuntimeError, match="inplace operation"):
        output.sum().backward()


def test_what_a_module_changes_in_place_itself_is_refused_as_ever() -> None:
    class Careless(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(INPUTS, WIDTH)

        def forward(self, rows: Tensor) -> Tensor:
            found = torch.exp(self.layer(rows))
            twice: Tensor = found * found
            found.add_(1.0)
            return twice

    module = Careless()
    with keeping_weights(module):
        output = module(torch.randn(ROWS, INPUTS))
    with pytest.raises(RuntimeError, match=r"Careless .* changed in place after its forward pass"):
        output.sum().backward()


def test_tables_are_not_copied_and_a_weight_that_is_used_often_once() -> None:
    made: list[int] = []
    clone = Tensor.clone

    def counted(tensor: Tensor, **options: object) -> Tensor:
        made.append(tensor.numel())
        return clone(tensor, **options)  # type: ignore[arg-type]

    # Of the sparse table its two layers alone; of the other its two layers, of which one is used three times, and the
    # weight that is not trained.
    expected = {
        "sparse table": [4 * INPUTS * 7, 7 * WIDTH],
        "one weight twice": [INPUTS * INPUTS, WIDTH * INPUTS, WIDTH],
    }
    for name, copied in expected.items():
        module, made[:] = BUILDS[name](), []
        with pytest.MonkeyPatch.context() as patch, keeping_weights(module):
            patch.setattr(Tensor, "clone", counted)
            module(torch.randn(ROWS, INPUTS))
        assert sorted(made) == sorted(copied), name

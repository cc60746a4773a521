"""Optimisers of tables equal slow loops over rows; two optimisers behind one behave like one."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from sklearn.linear_model import LogisticRegression
from torch import Tensor, nn
from torch.optim import Optimizer

from splitvfl.errors import ArgumentError
from splitvfl.learning.optimizers import (
    OPTIMIZERS,
    PerParameter,
    ProximalSGD,
    RowWiseAdagrad,
    fused_adam,
    project_on_ball,
    sparse_parameters,
)
from splitvfl.models import WideDeepBottom
from tests.saving import through_disk

ROWS, DIM = 7, 3


def table() -> nn.Parameter:
    return nn.Parameter(torch.randn(ROWS, DIM, generator=torch.Generator().manual_seed(0)))


def sparse_gradients(steps: int = 4) -> list[tuple[list[int], Tensor]]:
    """Rows with repetitions, rows that are never met, and one step with a gradient of zeros."""
    random = torch.Generator().manual_seed(1)
    met = [torch.randint(ROWS - 2, (9,), generator=random).tolist() for _ in range(steps)]
    values = [torch.randn(9, DIM, generator=random) for _ in range(steps)]
    values[-1].zero_()
    return list(zip(met, values, strict=True))


def sparse(rows: list[int], values: Tensor) -> Tensor:
    return torch.sparse_coo_tensor(torch.tensor([rows]), values, (ROWS, DIM), check_invariants=True)


def slow(weights: Tensor, steps: list[tuple[list[int], Tensor]], *, lr: float, eps: float) -> list[list[float]]:
    """The formula in Python's own numbers, one row after the other."""
    rows = [[float(entry) for entry in row] for row in weights]
    accumulators = [0.0] * ROWS
    for met, values in steps:
        sums = {row: [0.0] * DIM for row in met}
        for row, value in zip(met, values.tolist(), strict=True):
            sums[row] = [total + entry for total, entry in zip(sums[row], value, strict=True)]
        for row, total in sums.items():
            accumulators[row] += sum(entry**2 for entry in total) / DIM
            rate = lr / (math.sqrt(accumulators[row]) + eps)
            rows[row] = [weight - rate * entry for weight, entry in zip(rows[row], total, strict=True)]
    return rows


@pytest.mark.parametrize("eps", [1e-10, 0.5])
def test_row_wise_adagrad_is_the_slow_loop(eps: float) -> None:
    weights = table()
    start = weights.detach().clone()
    optimizer = RowWiseAdagrad([weights], lr=0.1, eps=eps)
    for met, values in sparse_gradients():
        weights.grad = sparse(met, values)
        optimizer.step()
    # Four steps of float32 sums against float64: some 1e-7 of numbers of order one.
    expected = torch.tensor(slow(start, sparse_gradients(), lr=0.1, eps=eps))
    torch.testing.assert_close(weights.detach(), expected, rtol=1e-5, atol=1e-6)
    assert torch.equal(weights[ROWS - 2 :], start[ROWS - 2 :])  # never met


def test_with_rows_of_one_number_it_is_adagrad() -> None:
    layers = [nn.Embedding(ROWS, 1, sparse=True) for _ in range(2)]
    layers[1].load_state_dict(layers[0].state_dict())
    ours, theirs = RowWiseAdagrad(layers[0].parameters(), lr=0.1), torch.optim.Adagrad(layers[1].parameters(), lr=0.1)
    for met, _ in sparse_gradients():
        for layer, optimizer in zip(layers, (ours, theirs), strict=True):
            optimizer.zero_grad()
            (layer(torch.tensor(met)) ** 2).sum().backward()
            with torch.sparse.check_sparse_tensor_invariants(enable=False):
                optimizer.step()
    torch.testing.assert_close(layers[0].weight, layers[1].weight)


def test_a_first_step_moves_a_row_by_the_learning_rate() -> None:
    weights = nn.Parameter(torch.zeros(ROWS, DIM))
    weights.grad = sparse([4], torch.full((1, DIM), -1e-6))
    RowWiseAdagrad([weights], lr=0.25).step()
    torch.testing.assert_close(weights[4].detach(), torch.full((DIM,), 0.25), rtol=1e-3, atol=0)  # eps is 1e-4 of it


def test_row_wise_state_survives_a_restart() -> None:
    straight, resumed = table(), table()
    steps = sparse_gradients()
    first = RowWiseAdagrad([straight], lr=0.1)
    for number, (met, values) in enumerate(steps):
        if number == 2:
            saved = through_disk(first.state_dict())
            resumed.data.copy_(straight.data)
        straight.grad = sparse(met, values)
        first.step()
    second = RowWiseAdagrad([resumed], lr=99.0)
    second.load_state_dict(saved)
    for met, values in steps[2:]:
        resumed.grad = sparse(met, values)
        second.step()
    assert torch.equal(straight, resumed)


def test_what_row_wise_adagrad_cannot_do_is_refused() -> None:
    for settings in ({"lr": 0.0}, {"lr": -1.0}, {"eps": 0.0}, {"lr": math.nan}):
        with pytest.raises(ArgumentError, match="expected lr and eps above 0"):
            RowWiseAdagrad([table()], **settings)
    weights = table()
    before = weights.detach().clone()
    weights.grad = torch.ones_like(weights)
    with pytest.raises(ArgumentError, match=r"sparse gradients .* got a torch.strided one of shape \(7, 3\)"):
        RowWiseAdagrad([weights]).step()
    assert torch.equal(weights, before)


def test_a_table_without_a_gradient_is_left_alone() -> None:
    weights = table()
    before = weights.detach().clone()
    optimizer = RowWiseAdagrad([weights])
    optimizer.step()
    assert torch.equal(weights, before)
    assert not optimizer.state


def test_fused_adam_is_adam_up_to_rounding() -> None:
    start = torch.randn(5, 4, generator=torch.Generator().manual_seed(0))
    ours, theirs = nn.Parameter(start.clone()), nn.Parameter(start.clone())
    pair = [
        (ours, fused_adam([ours], lr=0.01, weight_decay=0.1)),
        (theirs, torch.optim.Adam([theirs], lr=0.01, weight_decay=0.1)),
    ]
    assert pair[0][1].defaults["fused"]
    for step in range(5):
        for weights, optimizer in pair:
            weights.grad = torch.randn(5, 4, generator=torch.Generator().manual_seed(step))
            optimizer.step()
    torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-6)


def test_fused_adam_falls_back_where_there_is_no_kernel() -> None:
    assert not fused_adam([nn.Parameter(torch.zeros(2, device="meta"))]).defaults["fused"]


# --- one optimiser out of two


def model(*, sparse: bool = True) -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return nn.Sequential(nn.Embedding(ROWS, DIM, sparse=sparse), nn.Flatten(), nn.Linear(2 * DIM, 1))


def made(layers: nn.Module) -> Optimizer:
    return PerParameter(
        dense=lambda weights: torch.optim.SGD(weights, lr=0.5, momentum=0.9),
        embeddings=lambda tables: RowWiseAdagrad(tables, lr=0.1),
    )(layers)


def train(layers: nn.Module, optimizer: Optimizer, *, steps: range = range(3)) -> None:
    for step in steps:
        codes = torch.randint(ROWS, (6, 2), generator=torch.Generator().manual_seed(step))
        optimizer.zero_grad()
        layers(codes).square().sum().backward()
        optimizer.step()


def same(left: nn.Module, right: nn.Module) -> bool:
    return all(map(torch.equal, left.state_dict().values(), right.state_dict().values()))


def test_each_part_gets_its_own_optimiser() -> None:
    together, apart = model(), model()
    weights = dict(apart.named_parameters())
    tables = RowWiseAdagrad([weights.pop("0.weight")], lr=0.1)
    others = torch.optim.SGD(weights.values(), lr=0.5, momentum=0.9)

    class Both:
        def zero_grad(self) -> None:
            tables.zero_grad()
            others.zero_grad()

        def step(self) -> None:
            others.step()
            tables.step()

    train(together, made(together))
    train(apart, Both())  # type: ignore[arg-type]
    assert same(together, apart)


def test_both_survive_a_restart_and_stay_connected_to_their_groups() -> None:
    straight, first, resumed = model(), model(), model()
    train(straight, made(straight), steps=range(5))
    before = made(first)
    train(first, before, steps=range(2))
    resumed.load_state_dict(first.state_dict())
    after = made(resumed)
    after.load_state_dict(through_disk(before.state_dict()))
    train(resumed, after, steps=range(2, 5))
    assert same(straight, resumed)
    for group in after.param_groups:  # those that loading put in place, not those from before
        group["lr"] = 1e-30
    train(resumed, after, steps=range(2))
    assert all(map(torch.allclose, straight.state_dict().values(), resumed.state_dict().values()))


def test_a_scheduler_reaches_both() -> None:
    layers = model()
    optimizer = made(layers)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=1, gamma=0.0)
    train(layers, optimizer, steps=range(1))
    scheduler.step()
    before = {name: value.clone() for name, value in layers.state_dict().items()}
    for group in optimizer.param_groups:
        group["momentum"] = 0.0
    train(layers, optimizer, steps=range(2))
    assert all(torch.equal(value, before[name]) for name, value in layers.state_dict().items())


def test_a_model_without_sparse_tables_gets_the_dense_one() -> None:
    for layers in (model(sparse=False), nn.Linear(2, 1)):
        assert isinstance(made(layers), torch.optim.SGD)
    tables = made(nn.Embedding(ROWS, DIM, sparse=True))
    assert set(tables.state_dict()) == {"embeddings"}


def test_tables_are_found_by_their_layers_and_frozen_ones_left_out() -> None:
    bottom = WideDeepBottom(2, (4, 5), widths=(3,), sparse=True)
    assert bottom.embeddings is not None
    assert sparse_parameters(bottom) == [bottom.embeddings.table]
    twice = nn.ModuleList([bottom.embeddings, nn.EmbeddingBag.from_pretrained(bottom.embeddings.table, sparse=True)])
    assert len(sparse_parameters(twice)) == 1
    bottom.embeddings.table.requires_grad_(False)
    assert sparse_parameters(bottom) == []
    assert sparse_parameters(WideDeepBottom(2, (4, 5), widths=(3,))) == []


def test_a_closure_is_called_once_with_gradients_on() -> None:
    layers = model()
    optimizer = made(layers)
    calls: list[bool] = []

    def closure() -> float:
        calls.append(torch.is_grad_enabled())
        return 3.5

    assert optimizer.step(closure) == 3.5
    assert RowWiseAdagrad([table()]).step(closure) == 3.5
    assert calls == [True, True]


def test_what_would_never_be_stepped_is_refused() -> None:
    optimizer = made(model())
    with pytest.raises(ArgumentError, match="made of several"):
        optimizer.add_param_group({"params": [table()]})
    with pytest.raises(ArgumentError, match=r"state of \['dense', 'embeddings'\], got \['dense'\]"):
        optimizer.load_state_dict({"dense": {}})


@pytest.mark.cuda
def test_tables_on_a_gpu_are_updated_there() -> None:
    on_cpu, on_gpu = model(), model().cuda()
    train(on_cpu, made(on_cpu))
    optimizer = made(on_gpu)
    for step in range(3):
        codes = torch.randint(ROWS, (6, 2), generator=torch.Generator().manual_seed(step)).cuda()
        optimizer.zero_grad()
        on_gpu(codes).square().sum().backward()
        optimizer.step()
    for ours, theirs in zip(on_gpu.state_dict().values(), on_cpu.state_dict().values(), strict=True):
        torch.testing.assert_close(ours.cpu(), theirs, rtol=1e-4, atol=1e-5)


def descended(settings: dict[str, float], *, steps: int = 3000) -> tuple[nn.Linear, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    columns = torch.randn(80, 6, generator=generator, dtype=torch.float64)
    labels = (columns[:, 0] - columns[:, 1] + torch.randn(80, generator=generator) > 0.5).double()
    layer = nn.Linear(6, 1, dtype=torch.float64)
    optimizer = ProximalSGD(layer.parameters(), lr=0.5, **settings)
    for _ in range(steps):
        optimizer.zero_grad()
        nn.functional.binary_cross_entropy_with_logits(layer(columns)[:, 0], labels).backward()
        optimizer.step()
    return layer, columns, labels


@pytest.mark.parametrize(
    ("l1", "l2"),
    [
        pytest.param(0.05, 0.0, marks=pytest.mark.slow(reason="one penalty")),
        pytest.param(0.0, 0.1, marks=pytest.mark.slow(reason="one penalty")),
        (0.03, 0.02),
    ],
)
def test_proximal_descent_ends_where_scikit_learn_does(l1: float, l2: float) -> None:
    layer, columns, labels = descended({"l1": l1, "l2": l2})
    # scikit-learn weighs the sum of the losses with C, and leaves the intercept alone.
    model = LogisticRegression(
        C=1 / (len(labels) * (l1 + l2)), l1_ratio=l1 / (l1 + l2), solver="saga", max_iter=100_000, tol=1e-10
    ).fit(columns, labels)
    # saga stops at a relative change of 1e-10; descent contracts by more than 1 % a step.
    torch.testing.assert_close(layer.weight.detach()[0], torch.from_numpy(model.coef_[0]), rtol=0, atol=1e-6)
    torch.testing.assert_close(layer.bias.detach(), torch.from_numpy(model.intercept_), rtol=0, atol=1e-6)
    zeros = layer.weight == 0
    assert zeros.any() if l1 else not zeros.any()
    assert (layer.weight == 0).tolist()[0] == (model.coef_[0] == 0).tolist()


def test_proximal_descent_without_penalties_is_gradient_descent() -> None:
    torch.manual_seed(3)
    proximal, _, _ = descended({}, steps=5)
    torch.manual_seed(3)
    layer = nn.Linear(6, 1, dtype=torch.float64)
    _, columns, labels = descended({}, steps=0)
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.5)
    torch.manual_seed(3)
    layer.load_state_dict(nn.Linear(6, 1, dtype=torch.float64).state_dict())
    for _ in range(5):
        optimizer.zero_grad()
        nn.functional.binary_cross_entropy_with_logits(layer(columns)[:, 0], labels).backward()
        optimizer.step()
    assert torch.equal(proximal.weight, layer.weight)
    assert torch.equal(proximal.bias, layer.bias)


@pytest.mark.parametrize("settings", [{"lr": 0.0}, {"l1": -1.0}, {"l2": -0.1}, {"lr": math.nan}])
def test_proximal_descent_refuses_settings_out_of_range(settings: dict[str, float]) -> None:
    with pytest.raises(ArgumentError, match="expected lr above 0, l1 and l2 from 0"):
        ProximalSGD([nn.Parameter(torch.zeros(2, 2))], **settings)


def test_proximal_descent_refuses_sparse_gradients() -> None:
    weights = table()
    weights.grad = sparse(*sparse_gradients()[0])
    with pytest.raises(ArgumentError, match="moves every row"):
        ProximalSGD([weights]).step()


# --- the ball


def slow_projection(weights: list[Tensor], radius: float) -> list[list[float]]:
    """The nearest point of the ball in Python's own numbers."""
    everything = [entry for weight in weights for entry in weight.flatten().tolist()]
    norm = math.sqrt(math.fsum(entry * entry for entry in everything))
    share = min(1.0, radius / norm)
    return [[share * entry for entry in weight.flatten().tolist()] for weight in weights]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("radius", [0.1, 1.0, 1 / 3, 1e-30, 7.0])
def test_all_weights_end_in_the_ball_and_nearest_to_where_they_were(dtype: torch.dtype, radius: float) -> None:
    for seed in range(20):
        random = torch.Generator().manual_seed(seed)
        weights = [torch.randn(shape, generator=random).to(dtype) * 4 for shape in ((1, 5), (3, 2), (1,))]
        expected = slow_projection(weights, radius)

        project_on_ball(weights, radius)

        left = [weight.double().flatten().tolist() for weight in weights]
        # math.fsum and hypot are correctly rounded sums of what torch adds up in its own order: no tolerance above 1.
        norm = math.hypot(*(entry for weight in left for entry in weight))
        assert norm <= radius * (1 + 2**-52)
        # Rounding, and one step towards zero: two units in the last place of each number, and what is denormal.
        unit = torch.finfo(dtype).eps
        for found, wanted in zip(left, expected, strict=True):
            assert found == pytest.approx(wanted, rel=2 * unit + 1e-15, abs=torch.finfo(dtype).tiny)


def test_weights_within_the_ball_stay_as_they_are_and_so_does_what_is_no_number() -> None:
    inside = [torch.tensor([0.3, -0.4]), torch.zeros(1)]
    project_on_ball(inside, 0.5000001)
    assert inside[0].tolist() == torch.tensor([0.3, -0.4]).tolist()
    for odd in (math.nan, math.inf):
        weights = [torch.tensor([odd, 2.0])]
        project_on_ball(weights, 1.0)
        assert torch.equal(weights[0], torch.tensor([odd, 2.0])) or math.isnan(odd)
        assert weights[0][1] == 2.0
    huge = [torch.full((4,), 3e38)]
    project_on_ball(huge, 1.0)
    assert huge[0].tolist() == pytest.approx([0.5] * 4)


def _one_step(factory: Any, weights: list[Tensor], gradients: list[Tensor]) -> list[Tensor]:
    parameters = [nn.Parameter(weight.clone()) for weight in weights]
    for parameter, gradient in zip(parameters, gradients, strict=True):
        parameter.grad = gradient.clone()
    factory(parameters).step()
    return [parameter.detach() for parameter in parameters]


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("sgd", {"lr": 0.5, "weight_decay": 0.3}),
        ("proximal-sgd", {"lr": 0.5, "l1": 0.2, "l2": 0.3}),
    ],
)
def test_the_ball_is_last_in_a_step_and_holds_the_intercept(name: str, settings: dict[str, float]) -> None:
    random = torch.Generator().manual_seed(0)
    weights = [torch.randn(shape, generator=random) for shape in ((1, 4), (1,))]
    gradients = [torch.randn(weight.shape, generator=random) for weight in weights]
    make = OPTIMIZERS[name]

    free = _one_step(lambda params: make(params, **settings), weights, gradients)
    held = _one_step(lambda params: make(params, radius=0.5, **settings), weights, gradients)
    wide = _one_step(lambda params: make(params, radius=1e3, **settings), weights, gradients)

    expected = slow_projection(free, 0.5)
    for found, wanted in zip(held, expected, strict=True):
        assert found.flatten().tolist() == pytest.approx(wanted, rel=2.4e-7)  # two units in the last place
    assert held[1].abs() < free[1].abs()
    assert all(map(torch.equal, wide, free))


def test_a_weight_without_a_gradient_counts_in_the_norm() -> None:
    still, moved = nn.Parameter(torch.tensor([3.0])), nn.Parameter(torch.tensor([4.0]))
    moved.grad = torch.zeros(1)
    OPTIMIZERS["sgd"]([still, moved], lr=0.1, radius=2.5).step()
    assert [still.item(), moved.item()] == pytest.approx([1.5, 2.0], rel=1e-7)


def test_a_radius_is_above_0_and_bounds_no_tables() -> None:
    for name in ("sgd", "proximal-sgd"):
        for radius in (0.0, -1.0, math.nan, math.inf):
            with pytest.raises(ArgumentError, match="expected radius above 0 and finite"):
                OPTIMIZERS[name]([table()], radius=radius)
    tables = nn.Sequential(nn.Embedding(3, 2, sparse=True), nn.Linear(2, 1))
    with pytest.raises(ArgumentError, match="radius bounds all weights of a party together"):
        PerParameter(dense=lambda params: OPTIMIZERS["sgd"](params, radius=1.0))(tables)
    assert type(OPTIMIZERS["sgd"]([table()])) is torch.optim.SGD

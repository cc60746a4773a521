"""Dense weights that are divided among workers, beside the same model as a whole."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import safetensors.torch
import torch
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule

from splitvfl.data.columns import Columns
from splitvfl.errors import ArgumentError
from splitvfl.learning.optimizers import OPTIMIZERS, PerParameter, optimizer_of, sparse_parameters
from splitvfl.models import MLP
from splitvfl.models.wide_deep import WideDeepBottom
from splitvfl.run.weights_file import give_parts, pieces_of_weights
from splitvfl.team.divided import divided_weights, replicated_state, sharded_tables
from splitvfl.team.sharded_dense import _units, check_dividable
from splitvfl.team.team import Alone, Team
from tests.team.together import SIZE, together

STEPS, RECORDS = 7, 12
# Where each worker's part of a step begins: worker 1 has no record in every third one.
CUTS = ((0, 3, 7, RECORDS), (0, 4, 4, RECORDS), (0, 1, 2, RECORDS))


class Attending(nn.Module):
    """Layers within layers, torch's own among them, a weight of its own, and one that is not trained."""

    def __init__(self) -> None:
        super().__init__()
        self.shift = nn.Parameter(torch.zeros(4))
        self.fixed = nn.Linear(4, 4).requires_grad_(False)
        self.blocks = nn.ModuleList([nn.TransformerEncoderLayer(4, 2, 5, dropout=0.0, batch_first=True)])
        self.register_buffer("scale", torch.tensor([2.0]))

    def forward(self, columns: Tensor) -> Tensor:
        found = self.fixed(columns + self.shift)[:, None]
        for block in self.blocks:
            found = block(found)
        output: Tensor = found[:, 0] * self.scale
        return output


def inputs_of(step: int, dtype: torch.dtype, *, fields: bool) -> Any:
    random = torch.Generator().manual_seed(step)
    numbers = torch.randn(RECORDS, 4, generator=random).to(dtype)
    codes = torch.randint(6, (RECORDS, 2), generator=random)
    return (numbers, codes) if fields else numbers


def models(team: Team) -> dict[str, Callable[[], nn.Module]]:
    def bottom(team: Team | None = None) -> nn.Module:
        return WideDeepBottom(4, (6, 6), embedding_dim=3, widths=(5, 4), sparse=True, team=team)

    return {
        "layers": lambda: MLP(4, [7, 4]),
        "attention": Attending,
        "replicated table": bottom,
        "divided table": lambda: bottom(team),
    }


def trained(team: Team, make: Callable[[], nn.Module], dtype: torch.dtype, optimizer: str) -> Any:
    """The weights that all workers have after some steps, as one file; and what one of them holds."""
    torch.manual_seed(5)
    module = make().to(dtype)
    held = team.divide(module)
    own = optimizer_of(held, PerParameter(dense=lambda weights: OPTIMIZERS[optimizer](weights, lr=0.01)))
    assert own is not None
    parts = dict(held.named_parameters())
    for step in range(STEPS):
        for table in sharded_tables(module).values():
            table.forget_gradients()
        module.zero_grad()
        own.zero_grad()
        inputs = inputs_of(step, dtype, fields=isinstance(module, WideDeepBottom))
        first, last = (0, RECORDS) if team.size == 1 else CUTS[step % 3][team.rank : team.rank + 2]
        mine = tuple(one[first:last] for one in inputs) if isinstance(inputs, tuple) else inputs[first:last]
        called = Columns(*mine).module_input() if isinstance(mine, tuple) else mine
        output = team.jointly(lambda called=called: module(called))
        gradient = torch.randn(RECORDS, 4, generator=torch.Generator().manual_seed(-step)).to(dtype) / RECORDS
        team.jointly(lambda output=output, gradient=gradient[first:last]: output.backward(gradient))
        for table in sharded_tables(module).values():
            table.bring_home()
        for name, weight in divided_weights(module).items():
            parts[name].grad = None if weight.grad is None else weight.grad.to_local()
        alike = [
            weight
            for name, weight in module.named_parameters()
            if weight.requires_grad and name in replicated_state(module)
        ]
        for weight, total in zip(alike, team.add_up([weight.grad for weight in alike]), strict=True):
            weight.grad = total
        with torch.sparse.check_sparse_tensor_invariants(enable=False):
            own.step()
        if step % 3 == 0:
            with torch.no_grad():
                team.jointly(lambda called=called: module(called))
    dense = [part for name, part in parts.items() if team.size == 1 or name in divided_weights(module)]
    state = sum(value.numel() for part in dense for value in own.state.get(part, {}).values() if torch.is_tensor(value))
    if team.rank:
        give_parts(module, team)
        return None, sum(part.numel() for part in dense), state
    return b"".join(pieces_of_weights(module, team)), sum(part.numel() for part in dense), state


CASES = [
    ("layers", torch.float64, "adam"),
    ("layers", torch.float32, "adagrad"),
    ("layers", torch.float64, "proximal-sgd"),
    ("attention", torch.float64, "sgd"),
    ("attention", torch.float32, "adam"),
    ("replicated table", torch.float64, "adam"),
    ("divided table", torch.float64, "adam"),
]


def trained_apart(team: Team) -> Any:
    return [trained(team, models(team)[model], dtype, optimizer) for model, dtype, optimizer in CASES]


@pytest.fixture(scope="module")
def apart() -> list[list[Any]]:
    return together(trained_apart)


@pytest.mark.parametrize("case", range(len(CASES)), ids=[" ".join(map(str, case)) for case in CASES])
def test_workers_train_the_model_of_one_process(case: int, apart: list[list[Any]]) -> None:
    model, dtype, optimizer = CASES[case]
    file, _, _ = trained(Alone(), models(Alone())[model], dtype, optimizer)
    ours, whole = (safetensors.torch.load(one) for one in (apart[0][case][0], file))
    assert ours.keys() == whole.keys()
    # Sums of numbers in another order; of float32, and where Adagrad and Adam divide by roots of tiny ones, larger.
    tolerance = 1e-12 if dtype == torch.float64 else 1e-6
    for name, one in whole.items():
        assert ours[name].dtype == one.dtype
        assert torch.allclose(ours[name], one, rtol=0, atol=tolerance), name


def test_a_worker_holds_its_part_of_weights_and_of_the_optimisers_state(apart: list[list[Any]]) -> None:
    for case, (model, dtype, optimizer) in enumerate(CASES):
        if model in ("layers", "attention"):
            _, weights, state = trained(Alone(), models(Alone())[model], dtype, optimizer)
            held = [one[case][1] for one in apart]
            assert sum(held) == weights
            assert max(held) < weights / SIZE + 20, "a third, and at most a row of each weight more"
            # Adam and Adagrad count steps once for each weight, at each worker.
            assert state <= sum(one[case][2] for one in apart) <= state + 2 * 16


def test_layers_are_put_together_one_by_one() -> None:
    model = nn.Sequential(MLP(4, [7, 4]), Attending())
    units = list(_units(model))
    assert [type(one).__name__ for one in units] == [
        "Linear",
        "Linear",
        "Linear",
        "TransformerEncoderLayer",
        "Attending",
    ]


class Counting(nn.Linear):
    def get_extra_state(self) -> Any:
        return 7

    def set_extra_state(self, state: Any) -> None: ...


def tied() -> nn.Module:
    model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
    model[1].weight = model[0].weight
    return model


class Scaled(nn.Linear):
    def __init__(self) -> None:
        super().__init__(2, 2)
        self.temperature = nn.Parameter(torch.tensor(1.0))


def refused() -> list[str]:
    said = []
    in_place = nn.Sequential(nn.Linear(2, 2), nn.ReLU(inplace=True))
    narrow = nn.Linear(2, 2)
    narrow.bias = nn.Parameter(narrow.bias.detach().half())
    models = (tied(), Counting(2, 2), in_place, Scaled(), nn.Embedding(3, 2, max_norm=1.0), narrow)
    with pytest.warns(DeprecationWarning, match="torch.jit.script"):
        compiled = torch.jit.script(nn.Linear(2, 2))
    for model in (*models, compiled):
        with pytest.raises(ArgumentError) as error:
            check_dividable(model)
        said.append(str(error.value))
    return said


def test_what_cannot_be_divided_is_refused_by_name() -> None:
    said = refused()
    assert said[0] == "0.weight and 1.weight are one weight; layers that share one cannot be divided"
    assert said[1] == "the model keeps something besides weights and buffers (get_extra_state)"
    assert said[2] == "1 changes what it is given in place; take inplace=False"
    assert said[3] == "temperature is a single number, of which nobody can have a part; give it a dimension"
    assert said[4].startswith("the model changes its weights as it reads them (max_norm)")
    assert said[5] == "Linear has trained weights of torch.float16 and torch.float32; give them one dtype"
    assert said[6].startswith("the model is compiled by TorchScript")


def evaluated(team: Team) -> Any:
    """What a model puts out before and after other weights are loaded into it."""
    torch.manual_seed(5)
    module = Attending()
    held, columns, found = team.divide(module), inputs_of(0, torch.float32, fields=False), []
    with torch.no_grad():
        for factor in (1.0, 2.0):
            held.load_state_dict({name: factor * value for name, value in held.state_dict().items()})
            found.append(team.jointly(lambda: module(columns)).tolist())
    return found


def test_an_evaluation_has_the_weights_that_were_loaded_last() -> None:
    whole = evaluated(Alone())
    assert whole[0] != whole[1]
    for found in together(evaluated, size=2):
        assert torch.allclose(torch.tensor(found), torch.tensor(whole), rtol=0, atol=1e-6)


class Choosing(nn.Module):
    """Two layers of one shape, of which each worker calls another one."""

    def __init__(self, rank: int) -> None:
        super().__init__()
        self.experts, self.rank = nn.ModuleList([nn.Linear(2, 2), nn.Linear(2, 2)]), rank

    def forward(self, columns: Tensor) -> Tensor:
        output: Tensor = self.experts[self.rank](columns)
        return output


def choosing(team: Team) -> Any:
    model = Choosing(team.rank)
    team.divide(model)
    team.jointly(lambda: model(torch.zeros(1, 2)))


def test_workers_that_call_other_layers_are_told_so() -> None:
    for final, said in together(choosing, size=2):
        assert final
        assert "workers of shop did not call the same layers in the same order" in said


class Buffered(nn.Module):
    """Counts its calls in a buffer that it replaces, and in one that it changes."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(2, 2)
        self.register_buffer("replaced", torch.tensor(0.0))
        self.register_buffer("changed", torch.tensor(0.0))

    def forward(self, columns: Tensor) -> Tensor:
        self.replaced = self.replaced + 1
        self.changed += 1
        output: Tensor = self.layer(columns)
        return output


def counted(team: Team) -> Any:
    model = Buffered()
    held = team.divide(model)
    for _ in range(3):
        team.jointly(lambda: model(torch.zeros(1, 2)))
    saved = {name: value.clone() for name, value in held.state_dict().items()}
    team.jointly(lambda: model(torch.zeros(1, 2)))
    held.load_state_dict(saved)
    return [saved[name].item() for name in ("replaced", "changed")], model.replaced.item(), model.changed.item()


def test_buffers_are_the_models_own_whatever_it_does_with_them() -> None:
    for found in together(counted, size=2):
        assert found == ([3.0, 3.0], 3.0, 3.0)


class TableAndLayer(nn.Module):
    sparse = True

    def __init__(self) -> None:
        super().__init__()
        self.table, self.layer = nn.Parameter(torch.zeros(6, 2)), nn.Linear(2, 2)


def of_two_kinds(team: Team) -> Any:
    held = team.divide(TableAndLayer())
    bare = nn.Embedding(4, 2, sparse=True)
    same = team.divide(bare) is bare
    return [type(one).__name__ for one in sparse_parameters(held)], [tuple(w.shape) for w in held.parameters()], same


def test_tables_stay_tables_and_a_model_of_nothing_else_stays_as_it_is() -> None:
    for rank, found in enumerate(together(of_two_kinds, size=2)):
        assert found == (["Parameter"], [(6, 2), (1, 2), (1,)], True), rank


class Failing(nn.Module):
    def __init__(self, rank: int) -> None:
        super().__init__()
        self.layer, self.rank = nn.Linear(2, 2), rank

    def forward(self, columns: Tensor) -> Tensor:
        if self.rank == 1:
            raise ValueError("of columns like these I know nothing")
        output: Tensor = self.layer(columns)
        return output


def failing(team: Team) -> Any:
    model = Failing(team.rank)
    team.divide(model)
    team.jointly(lambda: model(torch.zeros(1, 2)))


def misshapen(team: Team) -> Any:
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(3, 2))
    team.divide(model)
    team.jointly(lambda: model(torch.zeros(1, 2)))


def test_what_fails_in_a_model_is_not_taken_for_a_worker_that_is_gone() -> None:
    for rank, (_, said) in enumerate(together(misshapen, size=2)):
        assert said.startswith(f"worker {rank} of shop failed: RuntimeError: mat1 and mat2 shapes cannot be multiplied")


def refusing(team: Team) -> Any:
    model = nn.Linear(2, 2)
    team.divide(model)
    if team.rank:
        team.refuse("its columns are spoiled")
        return None
    team.jointly(lambda: model(torch.zeros(1, 2)))
    return None


def test_nobody_waits_in_a_layer_for_a_worker_that_cannot_go_on() -> None:
    found = together(failing, size=2)
    assert found[1] == (True, "worker 1 of shop failed: ValueError: of columns like these I know nothing")
    assert found[0][0] is True
    assert "a worker of shop is gone" in found[0][1]
    assert together(refusing, size=2)[0] == (False, "worker 1 of shop: its columns are spoiled")


def test_one_process_divides_nothing() -> None:
    model = MLP(3, [2])
    before = copy.deepcopy(model.state_dict())
    assert Alone().divide(model) is model
    assert not any(isinstance(layer, FSDPModule) for layer in model.modules())
    assert not divided_weights(model)
    assert Alone().jointly(lambda: 3) == 3
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())


def unmatched(team: Team) -> Any:
    """One worker computes, and another adds up."""
    if team.rank:
        team.add_up([torch.zeros(1)])
    else:
        team.jointly(lambda: None)


def test_workers_that_are_not_in_step_say_so() -> None:
    for final, said in together(unmatched, size=2):
        assert final
        assert "not in step" in said


def test_failing_alone_raises_what_was_raised() -> None:
    with pytest.raises(ValueError, match="know nothing"):
        Alone().jointly(lambda: Failing(1)(torch.zeros(1, 2)))

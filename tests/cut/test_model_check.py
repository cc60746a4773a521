"""All that stands in a model's way is found at once, and repaired where nobody has to be asked."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from splitvfl import SplitModel, check_model, fix_model
from splitvfl.attacks import NormAttack
from splitvfl.cut.findings import Finding
from splitvfl.data.columns import Columns
from splitvfl.errors import ArgumentError

ROWS = torch.linspace(-1, 1, 48).reshape(6, 8).sin()


class Module(nn.Module):
    """A module of a user's: a linear layer, and something done to what it puts out."""

    def __init__(self, then: Callable[[Tensor], Any], *, outputs: int = 4) -> None:
        super().__init__()
        self.linear = nn.Linear(8, outputs)
        self.then = then

    def forward(self, columns: Tensor) -> Any:
        return self.then(self.linear(columns))


def kinds(found: tuple[Finding, ...]) -> list[tuple[str, str]]:
    return [(finding.what, finding.where) for finding in found]


@pytest.mark.parametrize("columns", [(), (ROWS,)])
def test_nothing_is_found_where_nothing_is(columns: tuple[Tensor, ...]) -> None:
    bottom = nn.Sequential(nn.Linear(8, 4), nn.ReLU(inplace=True), nn.Dropout(0.5), nn.LayerNorm(4))
    top = nn.Sequential(nn.Linear(4, 4), nn.ReLU(inplace=True), nn.Linear(4, 1))

    for model in ((bottom, top), SplitModel(bottom, top), ({"lab": bottom}, top)):
        found = check_model(model, *columns)
        assert not found
        assert "nothing stands in this model's way" in repr(found)


def test_everything_is_found_at_once_and_the_model_stays_as_it_is() -> None:
    bottom = nn.Sequential(
        nn.Unflatten(1, (2, 2, 2)), nn.Conv2d(2, 6, 1), nn.Sequential(nn.BatchNorm2d(6), nn.ReLU(inplace=True))
    )
    top = nn.Sequential(nn.ReLU(inplace=True), nn.Flatten(), nn.BatchNorm1d(24), nn.Linear(24, 1))
    model = SplitModel(bottom, top)
    before = copy.deepcopy(model.state_dict())

    found = check_model(model, ROWS)

    assert kinds(found) == [
        ("mixes records", "bottoms.passive.2.0 (BatchNorm2d)"),
        ("mixes records", "top.2 (BatchNorm1d)"),
        ("cut shape", "bottoms.passive (Sequential)"),
        ("in place", "top.0 (ReLU)"),
    ]
    assert all(finding.repaired for finding in found)
    assert all(line.endswith("(fix_model does)") for line in repr(found).splitlines())
    assert "BatchNorm2d" in found._repr_html_()
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_what_can_be_repaired_is() -> None:
    bottom = nn.Sequential(nn.Unflatten(1, (2, 2, 2)), nn.Conv2d(2, 6, 1), nn.BatchNorm2d(6))
    top = nn.Sequential(nn.ReLU(inplace=True), nn.Conv2d(6, 3, 1), nn.Flatten(), nn.BatchNorm1d(12), nn.Linear(12, 1))
    model = SplitModel(bottom, top, loss=nn.functional.mse_loss)

    fixed = fix_model(model, ROWS)

    assert isinstance(fixed, SplitModel)
    assert not check_model(fixed, ROWS)
    assert [type(layer).__name__ for layer in fixed.bottoms["passive"]] == [
        "Unflatten",
        "Conv2d",
        "GroupNorm",
        "Flatten",
    ]
    assert (fixed.bottoms["passive"][2].num_groups, fixed.top[4].num_groups) == (3, 1)
    assert check_model(model)  # the given one is as it was
    leak = fixed.cut.watch(NormAttack())
    labels = torch.tensor([0.0, 1, 0, 1, 1, 0])
    fixed.loss(fixed(ROWS, labels=labels).squeeze(1), labels).backward()
    assert 0 <= leak.auc <= 1
    assert bottom[1].weight.grad is None
    assert fixed.bottoms["passive"][1].weight.grad.abs().sum() > 0


def test_a_norm_of_each_record_has_the_scale_of_the_batch_norm_it_replaces() -> None:
    norm = nn.BatchNorm1d(5)
    torch.nn.init.uniform_(norm.weight)
    torch.nn.init.uniform_(norm.bias)
    rows = torch.randn(7, 5, generator=torch.Generator().manual_seed(0))

    fixed, _ = fix_model((nn.Sequential(norm), nn.Linear(5, 1)))

    expected = nn.functional.layer_norm(rows, (5,), norm.weight, norm.bias)
    torch.testing.assert_close(fixed(rows), expected)


def test_a_top_that_takes_flattened_rows_keeps_doing_so() -> None:
    fixed, top = fix_model((nn.Sequential(nn.Linear(8, 8), nn.Unflatten(1, (2, 4))), nn.Linear(8, 1)), ROWS)

    assert fixed(ROWS).shape == (6, 8)
    assert isinstance(top, nn.Linear)
    assert not check_model((fixed, top), ROWS)


def test_a_half_that_is_not_sequential_is_flattened_too() -> None:
    class Deep(nn.Module):
        def forward(self, columns: Tensor) -> Tensor:
            return columns.reshape(-1, 2, 4) * self.scale

        def __init__(self) -> None:
            super().__init__()
            self.scale = nn.Parameter(torch.ones(4))
            self.norm = nn.BatchNorm1d(2)

    bottoms, top = fix_model(({"a": Deep(), "b": nn.Linear(8, 3)}, nn.Linear(11, 1)), ROWS, ROWS)

    assert not check_model((bottoms, top), ROWS, ROWS)
    assert bottoms["a"](ROWS).shape == (6, 8)
    assert isinstance(bottoms["a"].model.norm, nn.GroupNorm)
    assert isinstance(bottoms["b"], nn.Linear)


HOPELESS: dict[str, tuple[Any, Any, str, str]] = {
    "mixing of one's own": (Module(lambda out: out - out.mean(0)), nn.Linear(4, 1), "mixes records", "bottom (Module)"),
    "one number": (nn.Sequential(nn.Linear(8, 1), nn.BatchNorm1d(1)), nn.Linear(1, 1), "mixes records", "bottom.1 ("),
    "random": (Module(lambda out: out + torch.randn_like(out)), nn.Linear(4, 1), "random", "bottom (Module)"),
    "in place of one's own": (nn.Linear(8, 8), Module(torch.Tensor.relu_), "", ""),
    "no gradient": (Module(torch.Tensor.detach), nn.Linear(4, 1), "no gradient", "bottom (Module)"),
    "top without": (nn.Linear(8, 8), Module(torch.Tensor.detach), "no gradient", "top (Module)"),
    "no tensor": (Module(lambda out: (out, out)), nn.Linear(4, 1), "cut shape", "bottom (Module)"),
    "one number each": (Module(lambda out: out[:, 0]), nn.Linear(4, 1), "cut shape", "bottom (Module)"),
    "fewer rows": (Module(lambda out: out[1:]), nn.Linear(4, 1), "cut shape", "bottom (Module)"),
    "squeezed": (nn.Linear(8, 8), Module(lambda out: out[:, 0]), "output", "top (Module)"),
    "widths": (nn.Linear(8, 8), nn.Sequential(nn.ReLU(), nn.Linear(4, 1)), "fails", "top.1 (Linear)"),
    "frozen": (nn.Linear(8, 8).requires_grad_(False), nn.Linear(8, 1), "frozen", "bottom (Linear)"),
    "lazy": (nn.LazyLinear(4), nn.Linear(4, 1), "no weights yet", "bottom (LazyLinear)"),
    "no module": (lambda columns: columns, nn.Linear(8, 1), "no module", "bottom (function)"),
}


@pytest.mark.parametrize("case", HOPELESS)
def test_what_only_its_owner_can_mend(case: str) -> None:
    bottom, top, what, where = HOPELESS[case]

    found = check_model((bottom, top), ROWS)

    if not what:
        assert not found  # it writes into what its own layer put out
        return
    assert [finding.what for finding in found] == [what]
    assert found[0].where.startswith(where)
    assert not found[0].repaired


def test_a_top_of_ones_own_that_writes_into_what_crosses_is_found_by_running_it() -> None:
    class InPlace(nn.Module):
        def forward(self, activation: Tensor) -> Tensor:
            return activation.add_(1).sum(1, keepdim=True)

    assert kinds(check_model((nn.Linear(8, 8), InPlace()), ROWS)) == [("in place", "top (InPlace)")]
    # Two activations are joined first, and the result is the top's own.
    assert not check_model(({"a": nn.Linear(8, 8), "b": nn.Linear(8, 8)}, InPlace()), ROWS, ROWS)


def test_a_layer_that_only_says_that_it_can_be_kept_from_writing_ends_no_repair() -> None:
    class Stubborn(nn.Module):
        inplace = True

        def forward(self, activation: Tensor) -> Tensor:
            return activation.add_(1).sum(1, keepdim=True)

    bottom, top = fix_model((nn.Linear(8, 8), Stubborn()), ROWS)

    assert kinds(check_model((bottom, top), ROWS)) == [("in place", "top (Stubborn)")]


def test_weights_of_two_parties_are_named_with_both_places() -> None:
    shared = nn.Linear(8, 8)

    found = check_model(SplitModel({"a": shared, "b": nn.Sequential(shared)}, nn.Linear(16, 1)))

    assert {(finding.what, finding.where) for finding in found} == {
        ("shared weights", "bottoms.b.0.weight"),
        ("shared weights", "bottoms.b.0.bias"),
    }
    assert "it is bottoms.a.weight too" in found[0].why


def test_weights_on_two_devices_are_found() -> None:
    bottom = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8, device="meta"))

    assert [finding.what for finding in check_model((bottom, nn.Linear(8, 1)))] == ["devices"]


def test_a_sequential_model_is_cut_where_it_is_said() -> None:
    model = nn.Sequential(nn.Linear(8, 4), nn.ReLU(inplace=True), nn.BatchNorm1d(4), nn.Linear(4, 1))

    assert kinds(check_model(model)) == [("mixes records", "model.2 (BatchNorm1d)")]
    assert kinds(check_model(model, at=1)) == [("mixes records", "top.2 (BatchNorm1d)"), ("in place", "top.1 (ReLU)")]
    assert isinstance(fix_model(model)[2], nn.GroupNorm)
    bottom, top = fix_model(model, ROWS, at=1)
    assert (len(bottom), len(top)) == (1, 3)
    assert not check_model((bottom, top), ROWS)


def test_columns_with_categories_are_an_example_too() -> None:
    class Coded(nn.Module):
        def __init__(self, *, mixes: bool) -> None:
            super().__init__()
            self.table, self.mixes = nn.Embedding(3, 2), mixes

        def forward(self, columns: Columns) -> Tensor:
            found = self.table(columns.categorical).flatten(1)
            return found - found.mean(0) if self.mixes else found

    example = Columns(torch.zeros(6, 0), torch.tensor([[0], [1], [2], [0], [1], [2]]))

    assert not check_model((Coded(mixes=False), nn.Linear(2, 1)), example)
    assert [one.what for one in check_model((Coded(mixes=True), nn.Linear(2, 1)), example)] == ["mixes records"]


@pytest.mark.parametrize(("columns", "said"), [((ROWS, ROWS), "one per bottom"), ((ROWS[:1],), "two or more")])
def test_an_example_that_is_none(columns: tuple[Tensor, ...], said: str) -> None:
    (finding,) = check_model((nn.Linear(8, 8), nn.Linear(8, 1)), *columns)

    assert said in finding.why


def test_what_is_no_model_is_refused() -> None:
    with pytest.raises(ArgumentError, match=r"expected a SplitModel, a pair .* got int"):
        check_model(3)
    with pytest.raises(ArgumentError, match="is cut at 1 to 1, got 2"):
        check_model(nn.Sequential(nn.Linear(1, 1), nn.Linear(1, 1)), at=2)
    with pytest.raises(ArgumentError, match="at=1 says where a sequential model is cut, got tuple"):
        check_model((nn.Linear(8, 8), nn.Linear(8, 1)), at=1)
    model = SplitModel(nn.Linear(8, 8), nn.Linear(8, 1))
    model.cut.watch(NormAttack())
    with pytest.raises(ArgumentError, match="attached to this model; repair it first"):
        fix_model(model)


def test_checking_draws_nothing_from_anybodys_generator() -> None:
    model = (nn.Sequential(nn.Linear(8, 8), nn.Dropout()), nn.Linear(8, 1))
    state = torch.get_rng_state()

    check_model(model, ROWS)

    assert torch.equal(torch.get_rng_state(), state)

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from splitvfl.data.columns import Columns
from splitvfl.errors import ArgumentError, DataError
from splitvfl.models import WideDeepBottom, WideDeepRecipe, WideDeepTop
from splitvfl.models.wide_deep import Crosses, _bucket

SIZES = (4, 7, 3)


def columns_of(n: int, numeric: int, *, seed: int = 0) -> Columns:
    generator = torch.Generator().manual_seed(seed)
    codes = [torch.randint(0, size, (n,), generator=generator) for size in SIZES]
    return Columns(torch.randn(n, numeric, generator=generator), torch.stack(codes, dim=1))


class SlowBottom(nn.Module):
    """One embedding per field, as the model is usually written; starts with the weights of a fast one."""

    def __init__(self, fast: WideDeepBottom) -> None:
        super().__init__()
        assert fast.embeddings is not None
        parts = fast.embeddings.table.detach().split(SIZES)
        self.fields = nn.ModuleList(nn.Embedding.from_pretrained(part.clone(), freeze=False) for part in parts)
        self.deep = fast.deep

    def forward(self, columns: Columns) -> Tensor:
        vectors = [field(columns.categorical[:, number]) for number, field in enumerate(self.fields)]
        output: Tensor = self.deep(torch.cat([columns.numeric, *vectors], dim=1))
        return output


@pytest.mark.parametrize("sparse", [False, True])
def test_one_shared_table_equals_a_table_per_field(sparse: bool) -> None:
    torch.manual_seed(0)
    fast = WideDeepBottom(2, SIZES, embedding_dim=5, widths=(8, 6), sparse=sparse)
    slow = SlowBottom(fast)
    columns, weights = columns_of(20, 2), torch.randn(20, 6)

    activation = fast(columns)
    expected = slow(columns)
    (activation * weights).sum().backward()
    deep_gradients = [parameter.grad.clone() for parameter in fast.deep.parameters() if parameter.grad is not None]
    fast.deep.zero_grad()
    (expected * weights).sum().backward()

    assert torch.equal(activation, expected)
    assert fast.embeddings is not None
    gradient = fast.embeddings.table.grad
    assert gradient is not None
    assert gradient.is_sparse == sparse
    dense = gradient.to_dense() if sparse else gradient
    # Summation order of repeated categories differs.
    torch.testing.assert_close(dense, torch.cat([field.weight.grad for field in slow.fields]), rtol=1e-5, atol=1e-7)
    for first, second in zip(deep_gradients, fast.deep.parameters(), strict=True):
        torch.testing.assert_close(first, second.grad)


def test_bottom_without_categories_takes_a_tensor() -> None:
    bottom = WideDeepBottom(3, widths=(4,))
    numeric = torch.randn(5, 3)

    assert torch.equal(bottom(numeric), bottom.deep(numeric))
    assert torch.equal(bottom(Columns.of(numeric)), bottom.deep(numeric))
    assert torch.equal(bottom(numeric), bottom(Columns.of(numeric)))


def test_bottom_without_numbers() -> None:
    assert WideDeepBottom(0, SIZES, widths=(4,))(columns_of(5, 0)).shape == (5, 4)


def test_embeddings_start_small() -> None:
    torch.manual_seed(0)
    bottom = WideDeepBottom(0, (10_000,))
    assert bottom.embeddings is not None
    # 120 000 draws: five standard errors of a standard deviation are 1 %.
    assert bottom.embeddings.table.std().item() == pytest.approx(0.01, rel=0.01)


def test_top_adds_the_wide_part_to_the_last_layer() -> None:
    torch.manual_seed(0)
    top = WideDeepTop(6, 2, SIZES, 3)
    for parameter in top.parameters():
        nn.init.normal_(parameter)
    activation, columns = torch.randn(9, 6), columns_of(9, 2)

    logits = top(activation, columns)

    assert top.wide_numeric is not None
    assert top.wide_fields is not None
    tables = top.wide_fields.table.split(SIZES)
    for row in range(9):
        expected = top.last(activation[row]) + top.wide_numeric.weight @ columns.numeric[row]
        for table, code in zip(tables, columns.categorical[row].tolist(), strict=True):
            expected = expected + table[code]
        torch.testing.assert_close(logits[row], expected)


def test_wide_weights_start_from_zero() -> None:
    top = WideDeepTop(6, 2, SIZES)
    activation = torch.randn(4, 6)

    assert torch.equal(top(activation, columns_of(4, 2)), top.last(activation))


def test_top_of_an_active_party_without_columns() -> None:
    top = WideDeepTop(6)
    activation = torch.randn(4, 6)

    assert WideDeepTop.separate_active
    assert torch.equal(top(activation), top.last(activation))
    assert torch.equal(top(activation, None), top.last(activation))


def test_top_with_numbers_only_takes_a_tensor() -> None:
    top = WideDeepTop(6, 2)
    assert top.wide_numeric is not None
    nn.init.ones_(top.wide_numeric.weight)
    activation, numeric = torch.randn(4, 6), torch.randn(4, 2)

    torch.testing.assert_close(top(activation, numeric), top.last(activation) + numeric.sum(dim=1, keepdim=True))


@pytest.mark.parametrize(("code", "message"), [(7, "got 7 in row 2"), (-1, "got -1 in row 2")])
def test_a_code_out_of_range_names_its_field(code: int, message: str) -> None:
    columns = columns_of(5, 2)
    columns.categorical[2, 1] = code

    with pytest.raises(DataError, match=f"categorical field 1 has codes 0 to 6, {message}"):
        WideDeepBottom(2, SIZES)(columns)
    with pytest.raises(DataError, match="categorical field 1"):
        WideDeepTop(6, 2, SIZES)(torch.zeros(5, 6), columns)


def test_state_does_not_depend_on_buffers() -> None:
    assert "embeddings.offsets" not in WideDeepBottom(2, SIZES).state_dict()


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: WideDeepBottom(0), "expected inputs and at least one width"),
        (lambda: WideDeepBottom(-1, SIZES), "at least 0 numeric inputs, got -1"),
        (lambda: WideDeepBottom(2, (3, 0)), r"dimension of at least 1, got \[3, 0\]"),
        (lambda: WideDeepBottom(2, SIZES, embedding_dim=0), "dimension of at least 1"),
        (lambda: WideDeepTop(0), "at least 1 activation and 1 output, got 0 and 1"),
        (lambda: WideDeepTop(2, -1), "at least 0 numeric inputs, got -1"),
        (
            lambda: WideDeepBottom(2, SIZES)(torch.zeros(3, 2)),
            "2 numeric columns and 3 categorical fields, got 2 and 0",
        ),
        (lambda: WideDeepBottom(2)(columns_of(3, 2)), "2 numeric columns and 0 categorical fields, got 2 and 3"),
        (lambda: WideDeepBottom(3, SIZES)(columns_of(3, 2)), "3 numeric columns .* got 2 and 3"),
        (lambda: WideDeepTop(6, 2)(torch.zeros(3, 6)), "2 numeric columns and 0 categorical fields, got 0 and 0"),
    ],
)
def test_what_does_not_fit_is_refused(build: object, message: str) -> None:
    assert callable(build)
    with pytest.raises(ArgumentError, match=message):
        build()


# --- where the model is cut


def test_any_cut_position_computes_the_same_model() -> None:
    """The layers of a model that is cut before the last one, dealt out between bottom and top."""
    torch.manual_seed(0)
    widths = (8, 7, 6, 5)
    bottom, top = WideDeepBottom(2, SIZES, embedding_dim=3, widths=widths), WideDeepTop(5, 1)
    columns, own = columns_of(20, 2), torch.randn(20, 1)
    expected = top(bottom(columns), own)
    for after in (1, 2, 3):
        first = WideDeepBottom(2, SIZES, embedding_dim=3, widths=widths[:after])
        rest = WideDeepTop(widths[after - 1], 1, hidden=widths[after:])
        state = bottom.state_dict()
        first.load_state_dict({name: state[name] for name in first.state_dict()})
        assert rest.hidden is not None
        for number, layer in enumerate(layer for layer in rest.hidden.layers if isinstance(layer, nn.Linear)):
            layer.load_state_dict(bottom.deep.layers[2 * (after + number)].state_dict())  # every other one is ReLU
        rest.last.load_state_dict(top.last.state_dict())
        assert first(columns).shape == (20, widths[after - 1])
        assert torch.equal(rest(first(columns), own), expected)


def test_hidden_layers_take_what_several_parties_send() -> None:
    top = WideDeepTop(2 * 6, hidden=(4,))
    assert top(torch.randn(5, 12)).shape == (5, 1)
    assert top.last.in_features == 4


# --- crosses


def slow_bucket(codes: list[int], buckets: int) -> int:
    """splitmix64 in Python's own numbers, as its authors wrote it in C."""
    state = 0
    for code in codes:
        state = (state ^ code) + 0x9E3779B97F4A7C15 & 2**64 - 1
        state = (state ^ state >> 30) * 0xBF58476D1CE4E5B9 & 2**64 - 1
        state = (state ^ state >> 27) * 0x94D049BB133111EB & 2**64 - 1
        state ^= state >> 31
    return (state >> 1) % buckets


def test_the_hash_is_splitmix64() -> None:
    # The generator's first outputs from seed 0: its state is a multiple of the golden ratio's constant.
    golden = 0x9E3779B97F4A7C15
    published = [0xE220A8397B1DCDAF, 0x6E789E6AA1B965F4, 0x06C45D188009454F, 0xF88BB8A8724C81EC]
    for number, output in enumerate(published):
        assert slow_bucket([number * golden & 2**64 - 1], 2**63) == output >> 1


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32])
def test_crosses_add_the_weight_of_each_combination(dtype: torch.dtype) -> None:
    fields, buckets = ((0, 1), (2, 0), (0, 1, 2)), 50
    crosses = Crosses(fields, 2, buckets=buckets, sparse=False)
    nn.init.normal_(crosses.weights.table, generator=torch.Generator().manual_seed(0))
    codes = columns_of(30, 0).categorical.to(dtype)
    tables = crosses.weights.table.split(buckets)
    logits = crosses(codes)
    for row, given in enumerate(codes.tolist()):
        expected = sum(
            table[slow_bucket([given[field] for field in cross], buckets)]
            for table, cross in zip(tables, fields, strict=True)
        )
        torch.testing.assert_close(logits[row], expected)


def test_combinations_spread_over_the_buckets() -> None:
    codes = torch.cartesian_prod(torch.arange(200), torch.arange(200))
    buckets = _bucket([codes[:, 0], codes[:, 1]], 1000)
    counts = buckets.bincount(minlength=1000).double()
    # χ² of 999 degrees of freedom: 999 ± five standard deviations of √(2 · 999).
    assert abs(((counts - 40).square() / 40).sum().item() - 999) < 5 * (2 * 999) ** 0.5
    swapped = _bucket([codes[:, 1], codes[:, 0]], 1000)
    assert (buckets == swapped)[codes[:, 0] != codes[:, 1]].double().mean() < 0.01


def test_buckets_without_crosses_are_refused() -> None:
    with pytest.raises(ArgumentError, match="cross_buckets is 64, and there are no crosses"):
        WideDeepRecipe(cross_buckets=64)
    assert WideDeepRecipe(cross_buckets=100_000) == WideDeepRecipe(), "a run writes every default down"


def test_crosses_start_from_zero_and_learn() -> None:
    top = WideDeepTop(6, 2, SIZES, 1, crosses=[(0, 2)], cross_buckets=64)
    activation, columns = torch.randn(4, 6), columns_of(4, 2)
    logits = top(activation, columns)
    assert torch.equal(logits, top.last(activation))
    logits.sum().backward()
    assert top.crosses is not None
    gradient = top.crosses.weights.table.grad
    assert gradient is not None
    assert gradient.sum() == 4


@pytest.mark.parametrize(
    ("crosses", "message"),
    [
        ([(0,)], r"at least two different fields by position, got \[0\]"),
        ([(0, 1), (2, 2)], r"at least two different fields by position, got \[2, 2\]"),
        ([(0, -1)], r"at least two different fields by position, got \[0, -1\]"),
        ([(0, 3)], "crosses of 3 categorical fields name positions 0 to 2, got 3"),
    ],
)
def test_crosses_that_do_not_fit_are_refused(crosses: list[tuple[int, ...]], message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        WideDeepTop(6, 2, SIZES, crosses=crosses)


@pytest.mark.cuda
def test_crosses_hash_alike_on_a_gpu() -> None:
    codes = torch.randint(10**7, (10_000, 2), generator=torch.Generator().manual_seed(0))
    on_gpu = _bucket(list(codes.cuda().unbind(1)), 10**5)
    assert torch.equal(on_gpu.cpu(), _bucket(list(codes.unbind(1)), 10**5))


# --- tables


def test_large_tables_are_sparse_where_nobody_says_otherwise() -> None:
    for rows, said, expected in (
        (99_999, None, False),
        (100_000, None, True),
        (100_000, False, False),
        (9, True, True),
    ):
        bottom = WideDeepBottom(0, (5, rows - 5), embedding_dim=1, widths=(2,), sparse=said)
        assert bottom.embeddings is not None
        assert bottom.embeddings.sparse is expected
    top = WideDeepTop(2, 0, (5, 5), crosses=[(0, 1)], sparse=None)
    assert top.wide_fields is not None
    assert top.crosses is not None
    assert not top.wide_fields.sparse
    assert top.crosses.weights.sparse


def test_codes_may_be_int32() -> None:
    bottom, columns = WideDeepBottom(2, SIZES, widths=(4,)), columns_of(5, 2)
    narrow = columns._replace(categorical=columns.categorical.int())
    assert torch.equal(bottom(narrow), bottom(columns))
    narrow.categorical[3, 2] = 3
    with pytest.raises(DataError, match="categorical field 2 has codes 0 to 2, got 3 in row 3"):
        bottom(narrow)

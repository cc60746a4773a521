"""The mask of a sum hides whatever was encrypted from the owner of the key, who opens it."""

from __future__ import annotations

import secrets
from collections.abc import Sequence

import flint
import pytest
import torch
from scipy.stats import kstest
from torch import Tensor

from splitvfl.crypto.ciphertexts import read_ciphertexts
from splitvfl.crypto.evaluator import Evaluator
from splitvfl.crypto.keys import PrivateKey
from splitvfl.crypto.obfuscators import Powers
from splitvfl.crypto.owner import Owner
from splitvfl.crypto.packing import centred
from splitvfl.crypto.product_layout import ProductLayout
from tests.crypto.conftest import short_key

# Masks are drawn from the operating system. A test with this many comparisons fails by chance once in so many runs.
CHANCE, COMPARISONS = 1e-7, 2000
SAMPLES = 64

longer = pytest.mark.slow(reason="another power of two under a long key")


def layout_of(bits: int, *, outputs: int = SAMPLES) -> ProductLayout:
    """As many replies as sums: each with a mask of its own."""
    return ProductLayout(
        key_bits=bits,
        rows=3,
        outputs=outputs,
        value_limit=2.0,
        weight_limit=4.0,
        value_bits=12,
        weight_bits=12,
        packed=False,
    )


def opened(owner: Owner, layout: ProductLayout, values: Sequence[int], weights: Tensor) -> list[int]:
    """What the owner of a key sees of the sums over what it encrypted."""
    evaluator = Evaluator(owner.public, layout, obfuscators=Powers(owner.public))
    sent = owner.encrypt([centred(value, owner.public.n) for value in values])
    reply = evaluator.masked_sums([(sent, weights)]).reply
    return [int(number) for number in owner._decrypted(read_ciphertexts(reply, owner.public))]


def assert_uniform(numbers: Sequence[int], n: int) -> None:
    assert len(numbers) >= 24
    # The p-value is exact for samples of this size; below n by 2^-41 of it the edges are left out, which none shows.
    assert kstest([number / n for number in numbers], "uniform").pvalue > CHANCE / COMPARISONS


def weights_of(layout: ProductLayout) -> Tensor:
    generator = torch.Generator().manual_seed(5)
    size = layout.weight_size
    return torch.randint(-size, size + 1, (layout.rows, layout.outputs), generator=generator)


def test_multiples_of_every_power_of_two_are_hidden() -> None:
    """An owner divides what it opens by what it encrypted modulo n: that is uniform too, where the mask is."""
    key = short_key(128, 77)
    owner, n, layout = Owner(key), key.public.n, layout_of(128)
    weights = weights_of(layout)
    for k in range(129):
        numbers = opened(owner, layout, [3 << k, -(1 << k), 5 << k], weights)
        assert_uniform(numbers, n)
        assert_uniform([number * pow(2, -k, n) % n for number in numbers], n)
        if 16 <= k < 112:
            assert_uniform([number % (1 << k) for number in numbers], 1 << k)


@pytest.mark.parametrize("k", [0, pytest.param(1000, marks=longer), pytest.param(2047, marks=longer)])
def test_they_are_under_a_key_of_real_length(k: int, real_key: PrivateKey) -> None:
    owner, n, layout = Owner(real_key), real_key.public.n, layout_of(2048, outputs=24)
    numbers = opened(owner, layout, [3 << k, -(1 << k), 5 << k], weights_of(layout))
    assert_uniform(numbers, n)
    assert_uniform([number * pow(2, -k, n) % n for number in numbers], n)


@pytest.mark.parametrize("place", ["0", "1", "n/3", "n/2", "n/2 + 1", "n - 1"])
def test_numbers_anywhere_below_n_are_hidden(place: str, key: PrivateKey) -> None:
    """Also where the sum wraps around n, and where centred it would be negative."""
    n = key.public.n
    value = {"0": 0, "1": 1, "n/3": n // 3, "n/2": n // 2, "n/2 + 1": n // 2 + 1, "n - 1": n - 1}[place]
    layout = layout_of(512)
    assert_uniform(opened(Owner(key), layout, [value] * 3, weights_of(layout)), n)


def test_replies_have_masks_of_their_own(key: PrivateKey) -> None:
    """Neither the replies of one message nor those of two to one question tell anything of each other."""
    owner, n, layout = Owner(key), key.public.n, layout_of(512)
    weights = weights_of(layout)[:, :1].repeat(1, SAMPLES)  # the same sum, many times
    first, second = (opened(owner, layout, [1, 2, 3], weights) for _ in range(2))
    for others in (second, first[1:] + first[:1]):
        assert_uniform([(one - other) % n for one, other in zip(first, others, strict=True)], n)


# --- the lattice


def row_read(number: int, known: int, n: int, layout: ProductLayout) -> list[int] | None:
    """A row from ``number = sum + mask + known · row mod n`` where the mask is short: the shortest vector."""
    columns, slot_bits = layout.outputs, layout.slot_bits
    top = columns * slot_bits + 39  # a mask of 40 bits more than the sums lies within 2^top of 2^top
    cut = top - 64
    scale = 1 << (top - layout.weight_bits - cut)
    rows = [
        [scale * (i == j) for i in range(columns)] + [((known << (j * slot_bits)) % n) >> cut, 0]
        for j in range(columns)
    ]
    rows.append([0] * columns + [n >> cut, 0])
    rows.append([0] * columns + [-(((number - (1 << top)) % n) >> cut), 1 << 64])
    for row in flint.fmpz_mat(rows).lll().tolist():
        if abs(int(row[-1])) == 1 << 64:
            return [int(value) // (scale if int(row[-1]) > 0 else -scale) for value in row[:columns]]
    return None


@pytest.mark.parametrize("columns", [8, 16])
def test_lattice_reduction_reads_no_row(columns: int, real_key: PrivateKey) -> None:
    """With a mask of W + 40 bits it read rows that wrap around n: their entries are short, and so was the mask.

    Of what was encrypted, one number is any below n; 8 entries of 30 bits are guessed with a probability below 2^-200.
    """
    n, owner = real_key.public.n, Owner(real_key)
    layout = ProductLayout(key_bits=2048, rows=32, outputs=columns, value_limit=16.0, weight_limit=64.0)
    generator = torch.Generator().manual_seed(columns)
    weights = layout.encode_weights(torch.randn(32, columns, generator=generator, dtype=torch.float64))
    values = layout.encode_values(torch.randn(32, generator=generator, dtype=torch.float64)).tolist()
    known = secrets.randbelow(n)
    (number,) = opened(owner, layout, [values[0] + known, *values[1:]], weights)
    assert row_read(number, known, n, layout) != weights[0].tolist()
    # The same with the mask that was: it is the lattice that is right.
    total = sum(int(value) * sum(int(w) << (j * layout.slot_bits) for j, w in enumerate(row))
                for value, row in zip([values[0] + known, *values[1:]], weights.tolist(), strict=True))  # fmt: skip
    short = (total + secrets.randbits(columns * layout.slot_bits + 40)) % n
    assert row_read(short, known, n, layout) == weights[0].tolist()

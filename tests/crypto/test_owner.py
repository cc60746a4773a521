from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from gmpy2 import mpz
from hypothesis import given
from hypothesis import strategies as st

from splitvfl.crypto.keys import PrivateKey
from splitvfl.crypto.obfuscators import Powers
from splitvfl.crypto.owner import Owner
from splitvfl.crypto.product_layout import ProductLayout
from splitvfl.errors import CryptoError


@given(st.lists(st.integers(-(2**509), 2**509), max_size=4))
def test_decrypting_undoes_encrypting(key: PrivateKey, values: list[int]) -> None:
    owner = Owner(key, obfuscators=Powers(key.public))
    made = owner.encrypt(values)

    assert made.shape == (len(values), 128)
    assert owner.decrypt(made) == values


def test_the_edges_of_the_plaintexts(key: PrivateKey) -> None:
    owner, half = Owner(key), (key.public.n - 1) // 2

    assert owner.decrypt(owner.encrypt([half, -half, 0])) == [half, -half, 0]
    with pytest.raises(CryptoError, match=r"\(n/2\), number 1 has 511 bits"):
        owner.encrypt([0, half + 1])


def test_decrypting_is_that_of_the_definition(key: PrivateKey) -> None:
    # With the private exponent modulo n² as in the paper, rather than prime by prime.
    n, exponent = key.public.n, int((key.p - 1) * (key.q - 1))
    made = Owner(key).encrypt([123456789])
    value = int.from_bytes(bytes(made[0].tolist()), "big")

    assert (pow(value, exponent, n * n) - 1) // n * pow(exponent, -1, n) % n == 123456789


def test_tensors_are_encrypted(key: PrivateKey) -> None:
    owner = Owner(key)

    assert owner.decrypt(owner.encrypt(torch.tensor([5, -6]))) == [5, -6]


def test_equal_plaintexts_do_not_show(key: PrivateKey) -> None:
    made = Owner(key).encrypt([0] * 50)

    assert len({bytes(row.tolist()) for row in made}) == 50


def test_values_over_the_budget_are_refused(key: PrivateKey, layout: Callable[..., ProductLayout]) -> None:
    owner, limit = Owner(key), layout().value_size

    owner.encrypt([limit, -limit], layout())
    with pytest.raises(CryptoError, match=r"values up to 2\^34 in size \(the agreed limit\), number 2 has 34 bits"):
        owner.encrypt([0, 0, limit + 1], layout())


def test_a_reply_of_another_length_is_refused_and_nothing_decrypted(
    key: PrivateKey, layout: Callable[..., ProductLayout], monkeypatch: pytest.MonkeyPatch
) -> None:
    owner, agreed = Owner(key), layout()
    made = owner.encrypt([0] * (agreed.replies + 1))

    def never(self: Owner, values: list[mpz]) -> list[mpz]:
        raise AssertionError("it decrypted")

    monkeypatch.setattr(Owner, "_decrypted", never)
    with pytest.raises(CryptoError, match=f"expected {agreed.replies} ciphertexts, got {agreed.replies + 1}"):
        owner.open_masked(made, agreed)
    with pytest.raises(CryptoError, match=f"expected {agreed.replies} ciphertexts, got 1"):
        owner.open_masked(made[:1], agreed)
    made[1] = 0
    with pytest.raises(CryptoError, match="number 1 is 0"):
        owner.open_masked(made[: agreed.replies], agreed)


@pytest.mark.parametrize("outputs", [4, 9, 10])
@pytest.mark.parametrize("value", [0, 1, -1, -(1 << 500) + 5, (1 << 509) - 1])
def test_the_low_bits_that_the_sums_take_are_returned(
    key: PrivateKey, layout: Callable[..., ProductLayout], outputs: int, value: int
) -> None:
    """Of the plaintext in [0, n): centred, another number modulo a power of two."""
    agreed = layout(outputs=outputs)
    opened = Owner(key).open_masked(Owner(key).encrypt([value] * agreed.replies), agreed)

    assert opened.shape == (agreed.replies, agreed.opened_bytes)
    found = [int.from_bytes(bytes(row.tolist()), "big") for row in opened]
    assert found == [value % key.public.n % 2 ** (count * agreed.slot_bits) for count in agreed.counts]

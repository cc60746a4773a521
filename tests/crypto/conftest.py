"""Short keys, which protect nothing and take no time, and agreed sizes that fit them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gmpy2
import pytest
from gmpy2 import mpz

from splitvfl.crypto.keys import PrivateKey
from splitvfl.crypto.paillier import generate_keys
from splitvfl.crypto.product_layout import ProductLayout


def short_key(bits: int, seed: int) -> PrivateKey:
    half = bits // 2
    # Both primes start with two ones, so that their product has all the bits.
    p = blum_prime((3 << (half - 2)) + (seed << (half // 2)))
    q = blum_prime((7 << (half - 3)) + (seed << (half // 2)))
    return PrivateKey(int(p), int(q), insecure_for_tests=True)


def blum_prime(start: int) -> mpz:
    """The next prime that is 3 modulo 4, as the primes of a key that is sent are."""
    found = gmpy2.next_prime(start)
    while found % 4 != 3:
        found = gmpy2.next_prime(found)
    return found


@pytest.fixture(scope="session")
def key() -> PrivateKey:
    """512 bits."""
    return short_key(512, 12345)


@pytest.fixture(scope="session")
def other_key() -> PrivateKey:
    """Another one of 512 bits."""
    return short_key(512, 54321)


@pytest.fixture(scope="session")
def real_key() -> PrivateKey:
    """2048 bits."""
    return generate_keys(2048)


@pytest.fixture
def layout() -> Callable[..., ProductLayout]:
    """``layout(**changes)``: 6 rows and 9 outputs of values up to 2 and weights up to 4, under 512 bits."""

    def make(**changes: Any) -> ProductLayout:
        settings: dict[str, Any] = {
            "key_bits": 512, "rows": 6, "outputs": 9, "value_limit": 2.0, "weight_limit": 4.0,
        }  # fmt: skip
        return ProductLayout(**{**settings, **changes})

    return make

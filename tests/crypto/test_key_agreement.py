"""Two parties' secret."""

from __future__ import annotations

import pytest

from splitvfl.crypto.key_agreement import KEY_BYTES, AgreementKey
from splitvfl.errors import CryptoError

P = 2**255 - 19


def ladder(scalar: bytes, point: bytes) -> bytes:
    """X25519 as RFC 7748 writes it, section 5."""
    k = (int.from_bytes(scalar, "little") & ~7 & ((1 << 255) - 1)) | (1 << 254)
    u = int.from_bytes(point, "little") & ((1 << 255) - 1)
    x1, x2, z2, x3, z3, swap = u, 1, 0, u, 1, 0
    for t in reversed(range(255)):
        bit = k >> t & 1
        if swap ^ bit:
            x2, x3, z2, z3 = x3, x2, z3, z2
        swap = bit
        a, b, c, d = x2 + z2, x2 - z2, x3 + z3, x3 - z3
        da, cb = d * a % P, c * b % P
        x3, z3 = (da + cb) ** 2 % P, x1 * (da - cb) ** 2 % P
        e = a * a - b * b
        x2, z2 = a * a * b * b % P, e * (a * a + 121665 * e) % P
    if swap:
        x2, z2 = x3, z3
    return (x2 * pow(z2, P - 2, P) % P).to_bytes(32, "little")


def test_both_have_the_secret_of_the_published_formula(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn = [bytes(range(32)), bytes(range(100, 132))]
    left = iter(drawn)
    monkeypatch.setattr("splitvfl.crypto.key_agreement.secrets.token_bytes", lambda count: next(left))
    one, other = AgreementKey(), AgreementKey()

    base = (9).to_bytes(32, "little")
    assert [one.own, other.own] == [ladder(scalar, base) for scalar in drawn]
    assert one.secret_with(other.own) == other.secret_with(one.own) == ladder(drawn[0], other.own)
    assert bytes(one.public.tolist()) == one.own


def test_every_key_is_new() -> None:
    assert len({AgreementKey().own for _ in range(20)}) == 20
    assert len(AgreementKey().own) == KEY_BYTES


@pytest.mark.parametrize("other", [bytes(32), (1).to_bytes(32, "little"), (P - 1).to_bytes(32, "little"), bytes(31)])
def test_a_key_that_leaves_no_secret_is_refused(other: bytes) -> None:
    """Points of small order, with which the secret is zero whatever the other key is."""
    with pytest.raises(CryptoError, match="public key is none"):
        AgreementKey().secret_with(other)

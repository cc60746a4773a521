"""Ids as points of the prime-order group of edwards25519, which secrets can be multiplied with.

Each id is hashed to a point, ``H(x) = E(h₁) + E(h₂)``, where ``h₁ ‖ h₂`` is SHA-512 of a *context* and the id's digest,
and ``E`` is Elligator 2 with the cofactor cleared (libsodium's ``from_uniform``). Under the decisional Diffie-Hellman
assumption, with SHA-512 as a random oracle, whoever lacks the secret sees random points.
"""

from __future__ import annotations

import hashlib
import secrets

import nacl
import nacl.exceptions
import numpy as np
import numpy.typing as npt
from nacl.bindings import (
    crypto_core_ed25519_add,
    crypto_core_ed25519_from_uniform,
    crypto_core_ed25519_scalar_reduce,
    crypto_scalarmult_ed25519_noclamp,
)

from splitvfl.errors import CryptoError, ProtocolError

Points = npt.NDArray[np.uint8]

POINT_BYTES = 32
_CONTEXT_PREFIX = b"splitvfl.align.2 pair\0"


def pair_context(active: str, passive: str, nonces: tuple[bytes, bytes]) -> bytes:
    """Return the 64 bytes under which one pair hashes its ids in one alignment.

    SHA-512 of a prefix, each name with the length of its UTF-8 before it (2 bytes, little-endian), and the 32 random
    bytes of the active party and of the passive one.
    """
    names = b"".join(len(name).to_bytes(2, "little") + name for name in (active.encode(), passive.encode()))
    return hashlib.sha512(_CONTEXT_PREFIX + names + b"".join(nonces)).digest()


def hashed(digests: Points, context: bytes) -> Points:
    """Return the points, uint8 ``(n, 32)``, of digests, ``(n, 64)``, in a pair's context (:func:`pair_context`)."""
    hashes = (hashlib.sha512(context + digest).digest() for digest in _cells(digests))
    points = (
        crypto_core_ed25519_add(
            crypto_core_ed25519_from_uniform(value[:POINT_BYTES]),
            crypto_core_ed25519_from_uniform(value[POINT_BYTES:]),
        )
        for value in hashes
    )
    return _stacked(b"".join(points))


# The base point plus the point of order 2, (0, -1): on the curve, and outside the prime-order group.
_OUTSIDE = bytes.fromhex("95" + 31 * "99")
_ONE = (1).to_bytes(32, "little")


def check_library() -> None:
    """Check that libsodium refuses a point outside the prime-order group, as :func:`multiplied` takes for granted.

    Whoever has such a point multiplied can mark answers with it. PyNaCl before 1.6.2 comes with a libsodium that takes
    some (CVE-2025-69277), and any PyNaCl can have been built with another libsodium than its own, so it is tried.

    Raises:
        CryptoError: If it does not.
    """
    try:
        crypto_scalarmult_ed25519_noclamp(_ONE, _OUTSIDE)
    except nacl.exceptions.RuntimeError:
        return
    raise CryptoError(
        f"PyNaCl {nacl.__version__} has a libsodium that takes points outside the prime-order group (CVE-2025-69277), "
        "with which a partner could mark records; expected PyNaCl 1.6.2 or later with its own libsodium: "
        'pip install "PyNaCl>=1.6.2"'
    )


def multiplied(points: Points, scalar: bytes) -> Points:
    """Return each point, uint8 ``(n, 32)``, times a scalar: 32 bytes, little-endian, not 0 modulo the group's order.

    Raises:
        ProtocolError: If one of them is no point of the prime-order group in its one encoding, or its zero.
    """
    results = []
    for point in _cells(points):
        try:
            # libsodium checks encoding, curve, order and subgroup before it multiplies.
            results.append(crypto_scalarmult_ed25519_noclamp(scalar, point))
        except nacl.exceptions.RuntimeError:
            raise ProtocolError(f"{point.hex()} is no point of the prime-order group") from None
    return _stacked(b"".join(results))


def _cells(rows: Points) -> list[bytes]:
    data, width = rows.tobytes(), rows.shape[1]
    return [data[start : start + width] for start in range(0, len(data), width)]


def _stacked(data: bytes) -> Points:
    return np.frombuffer(data, np.uint8).reshape(-1, POINT_BYTES)


def random_scalar() -> bytes:
    """Return a secret scalar, 32 bytes, drawn from the operating system."""
    # 64 bytes reduced: the bias is 2⁻²⁵⁹, and so is the chance of a zero.
    return crypto_core_ed25519_scalar_reduce(secrets.token_bytes(64))

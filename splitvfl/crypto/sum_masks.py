"""Masks that cancel in a sum: the receiver of several parties' numbers learns the sum, and no party's part.

Every two senders agree on a key (X25519), from which both draw the same numbers; one adds them, the other subtracts
them. Parts are integers modulo ``2^64``, so that a part with its masks is uniform, and the sum is exact.

It holds as far as the senders know whose keys they have: an adder that hands out keys of its own in the place of a
sender's reads what it likes (:mod:`splitvfl.exchange.roll_call` is there for that). It does not hold if all other
senders tell it what they sent; and every sender must send, or nothing is learned at all.

Source: Bonawitz et al., *Practical secure aggregation for privacy-preserving machine learning*, CCS 2017, without the
part for senders that drop out.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any, NoReturn

import numpy as np
import torch
from torch import Tensor

from splitvfl.crypto.key_agreement import AgreementKey
from splitvfl.errors import CryptoError
from splitvfl.system.forks import forks

# Fraction bits of a part: a sum of 2^10 parts of size 2^20 stays below 2^63.
FRACTION_BITS = 32
_LARGEST = 2.0**20


class SumMasks:
    """One sender's masks.

    :meth:`masked` may be asked once for what names a message: the same masks on two different parts would tell their
    difference. So they cannot be copied, and a forked child cannot use its parent's. A key is for one meeting; by
    default it is a new one.
    """

    def __init__(self, key: AgreementKey | None = None) -> None:
        self._key = key or AgreementKey()
        self._own = self._key.own
        self._shared: list[tuple[int, bytes]] = []
        self._forks = forks()

    def __reduce_ex__(self, protocol: Any) -> NoReturn:
        raise TypeError("masks are not copied: two parts under the same masks would tell their difference")

    @property
    def public(self) -> Tensor:
        """The public key, for the other senders: uint8 ``(32,)``."""
        return self._key.public

    def meet(self, others: Tensor, *, session: bytes) -> None:
        """Take the other senders' public keys, uint8 ``(k, 32)``.

        The session is the same at all senders, and never again: masks are drawn from it too, so that the same keys at
        another meeting give other masks.

        Raises:
            CryptoError: If one is no key, its own, or comes twice.
        """
        keys = [bytes(key.tolist()) for key in others]
        if len({*keys, self._own}) != len(keys) + 1:
            raise CryptoError("expected the public keys of other senders, each once; got one twice, or its own")
        self._shared = [(1 if self._own < key else -1, self._agreed(key, session)) for key in keys]

    def _agreed(self, key: bytes, session: bytes) -> bytes:
        secret = self._key.secret_with(key)
        known = hashlib.sha256(session).digest() + min(self._own, key) + max(self._own, key)
        return hashlib.sha256(b"splitvfl sum masks" + known + secret).digest()

    def masked(self, part: Tensor, *, kind: str, number: int, piece: int) -> Tensor:
        """Return a part with its masks.

        Args:
            part: Floating point, any shape, entries up to 2²⁰ in size; kept to 2⁻³².
            kind: What the message is; with ``number`` and ``piece`` the same at every sender.
            number: Number of the conversation.
            piece: Number of the message in it.

        Returns:
            int64, of the same shape.

        Raises:
            CryptoError: If an entry is NaN, infinite or too large; or this is a forked child, whose parent has the
                same masks.
        """
        if self._forks != forks():
            raise CryptoError(
                "these masks belong to the process that this one was forked from: used twice, they would reveal the "
                "difference of two parts; nothing was sent. Connect again in this process"
            )
        values = part.detach().cpu().double()
        largest = values.abs().max().item() if values.numel() else 0.0
        if not largest <= _LARGEST:
            raise CryptoError(f"expected entries up to {_LARGEST:.0f} in size, got {largest:g}")
        total = torch.round(values * 2.0**FRACTION_BITS).to(torch.int64).numpy().astype(np.uint64)
        for sign, key in self._shared:
            mask = _drawn(key, f"{kind} {number} {piece}", values.numel()).reshape(values.shape)
            total = total + mask if sign > 0 else total - mask
        return torch.from_numpy(total.astype(np.int64))


def _drawn(key: bytes, name: str, count: int) -> np.ndarray[tuple[int, ...], np.dtype[np.uint64]]:
    stream = hashlib.shake_256(key + name.encode()).digest(8 * count)
    return np.frombuffer(stream, dtype="<u8").astype(np.uint64)


def sum_of(parts: Sequence[Tensor]) -> Tensor:
    """Return the sum of all senders' parts, float64: exact but for the rounding of each part to 2⁻³².

    Parts are what senders sent, int64, all of one shape; there is at least one.
    """
    total = np.zeros(parts[0].shape, dtype=np.uint64)
    for part in parts:
        total = total + part.cpu().numpy().astype(np.uint64)
    return torch.from_numpy(total.astype(np.int64)).double() * 2.0**-FRACTION_BITS

"""Computation on ciphertexts by a party without the private key, and masks for what it asks to have decrypted."""

from __future__ import annotations

import math
import secrets
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from gmpy2 import mpz
from torch import Tensor

from splitvfl.crypto.ciphertexts import encrypted, read_ciphertexts, write_ciphertexts
from splitvfl.crypto.integers import plain_integers, tensor_to_integers
from splitvfl.crypto.kernels import Weights
from splitvfl.crypto.keys import PublicKey
from splitvfl.crypto.obfuscators import Blinding, Obfuscators, Products
from splitvfl.crypto.packing import centred, split_slots
from splitvfl.crypto.processes import Workers, shared_sums
from splitvfl.crypto.product_layout import ProductLayout
from splitvfl.errors import ArgumentError, CryptoError, SumError

Term = tuple[Tensor, Tensor]
"""Ciphertexts, uint8 ``(rows, ciphertext_bytes)``, and their weights, int64 ``(rows, outputs)``."""


@dataclass(frozen=True)
class MaskedSums:
    """Masked sums to send, and the masks, which stay.

    Attributes:
        reply: Ciphertexts to send, uint8 ``(layout.replies, ciphertext_bytes)``.
        masks: One per ciphertext. A secret, for one use.
    """

    reply: Tensor
    masks: tuple[int, ...] = field(repr=False)


class Evaluator:
    """Weighted sums of encrypted values: packed, masked and re-randomised.

    Args:
        public: The key that the values are under.
        layout: What was agreed.
        obfuscators: Where obfuscators come from; by default :class:`~splitvfl.crypto.obfuscators.Products` of its own.
            Evaluators under one key may have the same, which is then faster sooner.
        workers: Processes that share the work; by default this one does all of it.

    Raises:
        CryptoError: If the key has another length than agreed.
    """

    def __init__(
        self,
        public: PublicKey,
        layout: ProductLayout,
        *,
        obfuscators: Obfuscators | None = None,
        workers: Workers | None = None,
    ) -> None:
        if public.bits != layout.key_bits:
            raise CryptoError(f"expected a key of {layout.key_bits} bits, as agreed, got one of {public.bits} bits")
        self.public = public
        self.layout = layout
        self._workers = workers
        self._obfuscators = obfuscators if obfuscators is not None else Products(public)
        self._blinding = Blinding(public)

    def encrypt(self, values: Tensor | Sequence[int]) -> Tensor:
        """Return encoded values of its own under the other party's key, uint8 ``(count, ciphertext_bytes)``.

        They are int64 ``(count,)``, or integers
        (:meth:`~splitvfl.crypto.product_layout.ProductLayout.encode_values`).

        Raises:
            CryptoError: If a value exceeds the layout; it says which.
        """
        return encrypted(values, self.public, self._obfuscators, limit=self.layout.value_size)

    def masked_sums(self, terms: Sequence[Term], *, plain: Tensor | Sequence[int] | None = None) -> MaskedSums:
        """Return encrypted ``Σ terms Σᵢ wᵢⱼ mᵢ + plainⱼ`` under masks that nobody else knows.

        Masks hide them from the owner of the key whatever is in the ciphertexts, but if its key is not what it should
        be (:mod:`splitvfl.crypto.product_layout`).

        Args:
            terms: Ciphertexts and integer weights; all of one term have the same number of rows.
            plain: Integers that are added to the sums, ``(outputs,)``, with ``layout.sum_bits`` fraction bits.

        Raises:
            CryptoError: If ciphertexts are not such under this key, weights or addends exceed the layout, or there are
                more rows than agreed.
        """
        if not terms:
            raise CryptoError("expected at least one vector of ciphertexts with its weights, got none")
        given = [value for tensor, _ in terms for value in read_ciphertexts(tensor, self.public)]
        ciphertexts = self._blinding.blinded(given)  # or time tells the weights of a record that their owner picks
        weights = np.concatenate([self._weights(own, len(tensor)) for tensor, own in terms])
        if not 0 < len(weights) <= self.layout.rows:
            raise CryptoError(f"expected 1 to {self.layout.rows} rows, as agreed, got {len(weights)}")
        sums = shared_sums(
            ciphertexts,
            weights,
            counts=self.layout.counts,
            slot_bits=self.layout.slot_bits,
            n=self.public.modulus,
            workers=self._workers,
        )
        masks = tuple(self._mask(count) for count in self.layout.counts)
        return MaskedSums(self._hidden(sums, self._addends(plain), masks), masks)

    def unmask(self, opened: Tensor, masked: MaskedSums) -> list[int]:
        """Return the sums, ``(outputs,)``, of what the owner of the key has opened, uint8 ``layout.opened_shape``.

        :meth:`~splitvfl.crypto.product_layout.ProductLayout.decode_sums` makes real numbers of them.

        The limit of a sum is the agreed one, ``layout.largest_sum``, which everybody knows, and none that follows from
        this party's weights: whoever opens sums chooses what is compared with it, and learns from every refusal.

        Raises:
            SumError: If a sum is larger than agreed numbers can make it: then something else was decrypted. Of bits at
                random a sum passes with a probability of ``largest_sum / 2^(slot_bits - 1)``, one quarter to one half,
                and all must pass; a lie within the limits is not seen. Count these
                (:class:`~splitvfl.party.refusals.Refusals`).
            CryptoError: If these are not that many numbers, or one has more bits than agreed.
        """
        values = tensor_to_integers(opened, self.layout.opened_bytes)
        if len(values) != self.layout.replies:
            raise CryptoError(f"expected {self.layout.replies} masked plaintexts, got {len(values)}")
        for place, (value, bits) in enumerate(zip(values, self.layout.opened_bits, strict=True)):
            if value.bit_length() > bits:
                raise CryptoError(
                    f"expected masked plaintexts of up to {bits} bits, as agreed, number {place} has "
                    f"{value.bit_length()}"
                )
        sums: list[int] = []
        for place, (value, mask, count) in enumerate(zip(values, masked.masks, self.layout.counts, strict=True)):
            sums += self._unpacked(place, centred(value - mask, 1 << self._bits(count)), count)
        limit = self.layout.largest_sum
        for place, found in enumerate(sums):
            if abs(found) > limit:
                raise SumError(
                    f"expected sum {place} of {len(sums)} up to 2^{math.log2(limit):.1f} in size, as agreed, "
                    f"got one of 2^{math.log2(abs(found)):.1f}: something else was decrypted"
                )
        return sums

    def _unpacked(self, place: int, signed: int, count: int) -> list[int]:
        try:
            return split_slots(signed, slot_bits=self.layout.slot_bits, count=count)
        except ArgumentError as error:
            raise SumError(f"masked plaintext {place} is not what was sent: {error}") from error

    def _weights(self, weights: Tensor, rows: int) -> Weights:
        if weights.dtype != torch.int64 or weights.shape != (rows, self.layout.outputs):
            raise CryptoError(
                f"expected weights int64 ({rows}, {self.layout.outputs}), got "
                f"{str(weights.dtype).removeprefix('torch.')} {tuple(weights.shape)}"
            )
        size = self.layout.weight_size
        outside = (weights > size) | (weights < -size)
        if outside.any():
            row, column = outside.nonzero()[0].tolist()
            raise CryptoError(
                f"expected weights up to {size} in size, the agreed limit, got {weights[row, column].item()} "
                f"in row {row}, column {column}"
            )
        return weights.cpu().numpy()

    def _addends(self, plain: Tensor | Sequence[int] | None) -> list[int]:
        if plain is None:
            return [0] * self.layout.outputs
        addends = plain_integers(plain)
        if len(addends) != self.layout.outputs:
            raise CryptoError(f"expected {self.layout.outputs} plain addends, got {len(addends)}")
        for place, addend in enumerate(addends):
            if abs(addend) > self.layout.plain_size:
                raise CryptoError(
                    f"expected plain addends up to {self.layout.plain_size} in size, the agreed limit, got one of "
                    f"{addend.bit_length()} bits at place {place}"
                )
        return addends

    def _hidden(self, sums: Sequence[mpz], addends: Sequence[int], masks: Sequence[int]) -> Tensor:
        n, square = self.public.modulus, self.public.square
        hidden, first = [], 0
        fresh = self._obfuscators.take(len(sums))
        for value, mask, factor, count in zip(sums, masks, fresh, self.layout.counts, strict=True):
            added = mask + sum(
                addend << (place * self.layout.slot_bits) for place, addend in enumerate(addends[first : first + count])
            )
            hidden.append(value * (1 + added % n * n) % square * factor % square)
            first += count
        return write_ciphertexts(hidden, self.public)

    def _mask(self, count: int) -> int:
        edge = 1 << self._bits(count)
        return edge + secrets.randbelow(self.public.n - 2 * edge)

    def _bits(self, count: int) -> int:
        """Return the bits of so many packed sums."""
        return count * self.layout.slot_bits

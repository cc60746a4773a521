"""Active packing attack: a party under Paillier encryption that asks for single values in place of sums."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence
from typing import Any

import gmpy2
import torch
from gmpy2 import mpz
from torch import Tensor

from splitvfl.attacks.packed_equations import slots_available, unpack_equations
from splitvfl.crypto.ciphertexts import read_ciphertexts, write_ciphertexts
from splitvfl.crypto.engine import Engine
from splitvfl.crypto.evaluator import Evaluator, MaskedSums, Term
from splitvfl.crypto.integers import tensor_to_integers
from splitvfl.crypto.keys import PublicKey
from splitvfl.crypto.packing import centred
from splitvfl.crypto.product_layout import ProductLayout
from splitvfl.leakage.packed_values import PackedValues


class PackingEngine(Engine):
    """Engine of a malicious party, which reads the other party's encrypted values instead of summing them.

    Give it to the exchange of one party, ``Residue(rows=..., engine=PackingEngine)``: a passive party then reads the
    residues of single records (under ``taylor`` the active party's part less 2y), the active party under ``taylor`` a
    passive party's part of the logits. Where it reads all values of a batch it trains on as if it were honest, and the
    other party notices nothing; elsewhere its gradients are zero.

    Each ciphertext that the other party decrypts carries ``u = ⌊(κ − 1) / ι⌋`` values in slots of ι bits. A party that
    returns whole plaintexts, as in the paper's protocol, returns all of them. Here a party returns no more bits than
    the agreed sums take (``ProductLayout.opened_bits``): about two values a sum. Where values are known to be one of
    two, as residues after zero weights, one bit tells each: some forty a sum, which this attack does not try. It claims
    more columns than it has, which buys more ciphertexts: as many as a whole batch takes, up to ``most_columns``.

    Where ``open_whole`` is set, as a trainer does with ``malicious={"lab": PackingEngine()}``, it also packs full
    plaintexts, has them opened outside the protocol, and tells what they hold: what the published protocol gives away.

    Source: *Is Vertical Logistic Regression Privacy-Preserving?*, section 5.2, the active packing attack.

    Attributes:
        learned: The values read by each request, float64 ``(k,)``: those of the first k records of the batch.
        told: Called with what was read of each request.
        open_whole: Opens ciphertexts under the key of a modulus as a whole; ``None``: nobody does.
    """

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.learned: list[Tensor] = []
        self.told: Callable[[PackedValues], None] = _ignored
        self.open_whole: Callable[[int, Tensor], list[int]] | None = None

    def claimed(self, own: int, most: int, layout: Callable[[int], ProductLayout]) -> int:
        """Return the fewest sums that return a whole batch, or the most that it may ask for."""
        counts = range(own, max(own, most) + 1)
        enough = layout(own).rows
        place = bisect_left(counts, enough, key=lambda count: layout(count).single_values)
        return counts[min(place, len(counts) - 1)]

    def evaluator(self, public: PublicKey, layout: ProductLayout) -> Evaluator:
        """Return an evaluator that packs single records; see :class:`~splitvfl.crypto.engine.Engine`."""
        return _Packing(public, layout, self)


def _ignored(values: PackedValues) -> None: ...


class _Packing(Evaluator):
    def __init__(self, public: PublicKey, layout: ProductLayout, engine: PackingEngine) -> None:
        super().__init__(public, layout)
        self._engine = engine
        self._whole: list[int] = []
        self._slot_bits = layout.single_bits
        self._slots = slots_available(public.bits, self._slot_bits)
        self._agreed: list[list[int]] = []
        self._counts: list[int] = []

    def masked_sums(self, terms: Sequence[Term], *, plain: Tensor | Sequence[int] | None = None) -> MaskedSums:
        """Return ciphertexts of packed values; nothing is masked."""
        values = [value for given, _ in terms for value in read_ciphertexts(given, self.public)]
        self._agreed = [row for _, weights in terms for row in weights.tolist()]
        self._counts = self._shared_out(len(values))
        self._whole = self._opened_whole(values)
        fresh = iter(self._obfuscators.take(self.layout.replies))
        packed, first = [], 0
        for count in self._counts:
            packed.append(self._packed(values[first : first + count]) * next(fresh) % self.public.square)
            first += count
        return MaskedSums(write_ciphertexts(packed, self.public), (0,) * len(packed))

    def _opened_whole(self, values: Sequence[mpz]) -> list[int]:
        """Return what whole plaintexts would tell, as many as are decrypted; nothing where nobody opens them."""
        if self._engine.open_whole is None:
            return []
        read = values[: self._slots * self.layout.replies]
        parts = [read[first : first + self._slots] for first in range(0, len(read), self._slots)]
        packed = write_ciphertexts([self._packed(part) for part in parts], self.public)
        opened = self._engine.open_whole(self.public.n, packed)
        return [
            value
            for plaintext, part in zip(opened, parts, strict=True)
            for value in self._read(plaintext % self.public.n, len(part))
        ]

    def _shared_out(self, values: int) -> list[int]:
        """Return how many values go into each ciphertext: as many as come back of it."""
        counts: list[int] = []
        for back in self.layout.opened_bits:
            counts.append(min(values - sum(counts), self._slots, back // self._slot_bits))
        return counts

    def _packed(self, values: Sequence[mpz]) -> mpz:
        """Return the ciphertext with the values in its slots, the first one lowest."""
        square, shift = self.public.square, mpz(1) << self._slot_bits
        total = mpz(1)
        for value in reversed(values):
            total = gmpy2.powmod(total, shift, square) * value % square
        return total * (1 + self._lift(len(values)) * self.public.modulus) % square

    def unmask(self, opened: Tensor, masked: MaskedSums) -> list[int]:
        """Return the agreed sums if all values could be read, else zeros; what was read is noted."""
        plaintexts = tensor_to_integers(opened, self.layout.opened_bytes)
        found = [
            value
            for plaintext, count in zip(plaintexts, self._counts, strict=True)
            for value in self._read(plaintext, count)
        ]
        agreed, whole = (
            torch.tensor(one, dtype=torch.float64) * 2.0**-self.layout.value_bits for one in (found, self._whole)
        )
        self._engine.learned.append(agreed)
        received, bits = len(self._agreed), sum(self.layout.opened_bits)
        self._engine.told(PackedValues(self.public.n, received, agreed, whole, self._slots, self.layout.replies, bits))
        if len(found) < len(self._agreed):
            return [0] * len(self._agreed[0])
        columns = zip(*self._agreed, strict=True)
        return [sum(weight * value for weight, value in zip(column, found, strict=True)) for column in columns]

    def _read(self, plaintext: int, count: int) -> list[int]:
        """Return the lowest slots of a plaintext, of which the low bits came back."""
        whole = 1 << (count * self._slot_bits)
        signed = centred((plaintext - self._lift(count)) % whole, whole)
        return unpack_equations([signed], slot_bits=self._slot_bits, count=count, modulus=self.public.n)

    def _lift(self, count: int) -> int:
        """Return what keeps the plaintext above zero: what comes back are its low bits in [0, n)."""
        return 1 << (count * self._slot_bits)

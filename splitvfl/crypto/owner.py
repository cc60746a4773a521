"""The owner of a key: encrypts its own values, and decrypts as many sums as were agreed."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cached_property
from itertools import cycle

import gmpy2
from gmpy2 import mpz
from torch import Tensor

from splitvfl.crypto.ciphertexts import encrypted, read_ciphertexts
from splitvfl.crypto.integers import integers_to_tensor
from splitvfl.crypto.keys import PrivateKey, PublicKey
from splitvfl.crypto.modular import power
from splitvfl.crypto.obfuscators import Blinding, FixedBase, Obfuscators
from splitvfl.crypto.packing import centred
from splitvfl.crypto.processes import Workers, powers
from splitvfl.crypto.product_layout import ProductLayout


class Owner:
    """The party that has the private key.

    Args:
        key: Its key.
        obfuscators: Where obfuscators come from; by default :class:`~splitvfl.crypto.obfuscators.FixedBase`, which
            is prepared at the first encryption.
        workers: Processes that share the work of decrypting; by default this one does all of it.
    """

    def __init__(
        self, key: PrivateKey, *, obfuscators: Obfuscators | None = None, workers: Workers | None = None
    ) -> None:
        self._key = key
        self._given_obfuscators = obfuscators
        self._workers = workers
        self._blinding = Blinding(key.public)
        self._modulo_primes = tuple(_PrimeDecryption(prime, key.public.modulus) for prime in (key.p, key.q))
        self._q_inverse = gmpy2.invert(key.q, key.p)

    @property
    def public(self) -> PublicKey:
        """The public key."""
        return self._key.public

    def key_to_send(self) -> Tensor:
        """Return the public key with its proof (:meth:`~splitvfl.crypto.keys.PrivateKey.to_send`)."""
        return self._key.to_send()

    @cached_property
    def _obfuscators(self) -> Obfuscators:
        return FixedBase(self._key) if self._given_obfuscators is None else self._given_obfuscators

    def encrypt(self, values: Tensor | Iterable[int], layout: ProductLayout | None = None) -> Tensor:
        """Return ``(1 + m·n) · f mod n²`` for each integer ``m``, with a fresh obfuscator ``f`` each.

        Args:
            values: int64 ``(count,)``, or integers; see
                :meth:`~splitvfl.crypto.product_layout.ProductLayout.encode_values`.
            layout: What was agreed: larger values are refused. Without one, everything below ``n/2`` in size is taken.

        Returns:
            uint8 ``(count, ciphertext_bytes)``.

        Raises:
            CryptoError: If a value exceeds the layout; it says which.
        """
        return encrypted(values, self.public, self._obfuscators, limit=None if layout is None else layout.value_size)

    def decrypt(self, ciphertexts: Tensor, *, count: int | None = None) -> list[int]:
        """Return the plaintexts, centred in ``(-n/2, n/2]``, of ciphertexts, uint8 ``(count, ciphertext_bytes)``.

        Raises:
            CryptoError: If they cannot be ciphertexts under this key, or are not that many; nothing is decrypted then.
        """
        values = read_ciphertexts(ciphertexts, self.public, count=count)
        return [centred(value, self.public.n) for value in self._decrypted(values)]

    def open_masked(self, reply: Tensor, layout: ProductLayout) -> Tensor:
        """Return the masked plaintexts of a reply, for the party that masked them.

        Nothing but what was agreed is decrypted, another number of ciphertexts is refused, and of each plaintext,
        taken in ``[0, n)``, only the low bits that its sums take are returned: uint8 ``layout.opened_shape``, for a
        reply ``(layout.replies, ciphertext_bytes)``.

        Raises:
            CryptoError: If the reply is not that many ciphertexts under this key; nothing is decrypted then.
        """
        values = self._decrypted(read_ciphertexts(reply, self.public, count=layout.replies))
        # Not centred: a mask leaves the sums that it hides between 0 and n, and the asker takes them from there.
        low = [value & ((1 << bits) - 1) for value, bits in zip(values, layout.opened_bits, strict=True)]
        return integers_to_tensor(low, layout.opened_bytes)

    def _decrypted(self, values: Sequence[mpz]) -> list[mpz]:
        """Return the plaintexts, in ``[0, n)``."""
        # Modulo both primes even where the agreed sums would fit one: a party that sends a longer plaintext than agreed
        # would get it back modulo a prime, and with it the key.
        blinded = self._blinding.blinded(values)  # or time tells how chosen numbers relate to the primes
        raised = powers([one.task(value) for value in blinded for one in self._modulo_primes], self._workers)
        by_prime = [one.plaintext(found) for one, found in zip(cycle(self._modulo_primes), raised, strict=False)]
        p, q, inverse = self._key.p, self._key.q, self._q_inverse
        # One number modulo n from one modulo p and one modulo q.
        return [
            by_q + q * ((by_p - by_q) * inverse % p) for by_p, by_q in zip(by_prime[::2], by_prime[1::2], strict=True)
        ]


class _PrimeDecryption:
    """Decryption modulo one prime ``p``: ``L(c^(p-1) mod p²) · h mod p`` with ``L(u) = (u - 1) / p``."""

    def __init__(self, prime: mpz, n: mpz) -> None:
        self._prime = prime
        self._inverse = gmpy2.invert(self._logarithm(power(1 + n, prime - 1, prime)), prime)

    def task(self, ciphertext: mpz) -> tuple[mpz, mpz, mpz]:
        """Return base, exponent and root of the modulus of the power to compute."""
        return ciphertext % self._prime**2, self._prime - 1, self._prime

    def plaintext(self, raised: mpz) -> mpz:
        """Return the plaintext modulo the prime."""
        return self._logarithm(raised) * self._inverse % self._prime

    def _logarithm(self, raised: mpz) -> mpz:
        return (raised - 1) // self._prime

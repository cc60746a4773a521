"""A secret of two parties who have each other's public key: X25519 (RFC 7748).

What comes of it is as good as what each knows of whose key it has: :mod:`splitvfl.exchange.roll_call`.
"""

from __future__ import annotations

import secrets

import torch
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from torch import Tensor

from splitvfl.errors import CryptoError

KEY_BYTES = 32


class AgreementKey:
    """One party's key: drawn from the operating system, and never sent.

    Attributes:
        own: The public key, as bytes.
    """

    def __init__(self) -> None:
        self._key = X25519PrivateKey.from_private_bytes(secrets.token_bytes(KEY_BYTES))
        self.own = self._key.public_key().public_bytes(Encoding.Raw, PublicFormat.Raw)

    @property
    def public(self) -> Tensor:
        """The public key, for the others: uint8 ``(32,)``."""
        return torch.tensor([*self.own], dtype=torch.uint8)

    def secret_with(self, other: bytes) -> bytes:
        """Return what only the two parties know. It is no key: derive one from it, for one purpose each.

        Raises:
            CryptoError: If that is no public key, or one with which the secret would be the same whatever ours is.
        """
        try:
            return self._key.exchange(X25519PublicKey.from_public_bytes(other))
        except ValueError as error:
            raise CryptoError(f"a party's public key is none: {error}") from error

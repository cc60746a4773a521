"""How many residues that are known to be one of two numbers one answer holds: as many as it has bits."""

from __future__ import annotations

import secrets

from gmpy2 import mpz, powmod

from splitvfl.crypto.ciphertexts import read_ciphertexts, write_ciphertexts
from splitvfl.crypto.integers import tensor_to_integers
from splitvfl.crypto.keys import PrivateKey
from splitvfl.crypto.owner import Owner
from splitvfl.crypto.product_layout import ProductLayout


def test_one_answer_for_one_column_tells_a_label_for_each_of_its_bits(key: PrivateKey) -> None:
    """Who knows both numbers that a residue may be divides their difference out, modulo n; nothing is wasted then."""
    layout = ProductLayout(key_bits=key.public.bits, rows=32, outputs=1, value_limit=16.0, weight_limit=64.0)
    bits = layout.opened_bits[0]
    assert bits == 75
    labels = [secrets.randbelow(2) for _ in range(bits)]
    likely = [secrets.randbelow(1 << 32) for _ in labels]  # p of each record, which its other party may know
    residues = [p - (label << 32) for p, label in zip(likely, labels, strict=True)]
    n = key.public.modulus
    sent = read_ciphertexts(Owner(key).encrypt(residues, layout), key.public)

    asked = mpz(1)
    known = 0
    for place, (ciphertext, p) in enumerate(zip(sent, likely, strict=True)):
        weight = (mpz(1) << place) * powmod(-(1 << 32), -1, n) % n
        asked = asked * powmod(ciphertext, weight, n**2) % n**2
        known += p * weight
    asked = asked * (1 - known % n * n) % n**2
    (answer,) = tensor_to_integers(
        Owner(key).open_masked(write_ciphertexts([asked], key.public), layout), layout.opened_bytes
    )
    assert [answer >> place & 1 for place in range(bits)] == labels

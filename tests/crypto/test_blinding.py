"""What is computed with a partner's ciphertexts takes a time that the partner cannot choose by their form."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import gmpy2
import pytest
import torch
from gmpy2 import mpz
from torch import Tensor

from splitvfl.crypto import evaluator, owner, processes
from splitvfl.crypto.ciphertexts import write_ciphertexts
from splitvfl.crypto.evaluator import Evaluator
from splitvfl.crypto.keys import PrivateKey
from splitvfl.crypto.obfuscators import Blinding
from splitvfl.crypto.owner import Owner
from splitvfl.crypto.product_layout import ProductLayout

ROWS, OUTPUTS = 6, 3
# A number at random is so many bits shorter than n with a chance of 2^-40.
SHORTER = 40


def small_ciphertexts(key: PrivateKey, values: Sequence[int]) -> Tensor:
    """Right ciphertexts of some numbers that are 2, 3, 5, ... modulo n: the owner chooses both."""
    n, found, prime = key.public.modulus, [], mpz(2)
    for value in values:
        plain = Owner(key).decrypt(write_ciphertexts([prime], key.public))[0]
        found.append(prime * (1 + (value - plain) % n * n) % n**2)
        prime = gmpy2.next_prime(prime)
    return write_ciphertexts(found, key.public)


def test_sums_are_taken_of_ciphertexts_whose_size_nobody_chose(
    key: PrivateKey, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without, the time of one sum told a record with few bits from one with many: AUC .92 at 2048 bits, 64 rows."""
    layout = ProductLayout(key_bits=key.public.bits, rows=ROWS, outputs=OUTPUTS, value_limit=16.0, weight_limit=64.0)
    taken: list[list[int]] = []
    whole = processes.shared_sums

    def noted(ciphertexts: Sequence[mpz], *rest: Any, **named: Any) -> list[mpz]:
        taken.append([int(value % key.public.n) for value in ciphertexts])
        return whole(ciphertexts, *rest, **named)

    monkeypatch.setattr(evaluator, "shared_sums", noted)
    values = [7, -1, 2**35, 0, 5, -(2**30)]
    weights = torch.randint(-(2**26), 2**26, (ROWS, OUTPUTS), generator=torch.Generator().manual_seed(1))
    asker = Evaluator(key.public, layout)
    for _ in range(2):
        masked = asker.masked_sums([(small_ciphertexts(key, values), weights)])
        sums = asker.unmask(Owner(key).open_masked(masked.reply, layout), masked)
        assert sums == [sum(w * v for w, v in zip(column, values, strict=True)) for column in weights.t().tolist()]
    assert all(value.bit_length() > key.public.bits - SHORTER for message in taken for value in message)
    assert len({value for message in taken for value in message}) == 2 * ROWS


def test_what_is_decrypted_is_raised_to_no_power_that_a_partner_chose(
    key: PrivateKey, monkeypatch: pytest.MonkeyPatch
) -> None:
    raised: list[int] = []
    whole = processes.powers

    def noted(tasks: Sequence[tuple[mpz, mpz, mpz]], *rest: Any) -> list[mpz]:
        raised.extend(int(base) for base, _, _ in tasks)
        return whole(tasks, *rest)

    monkeypatch.setattr(owner, "powers", noted)
    ours = Owner(key)
    chosen = write_ciphertexts([mpz(2), mpz(2), key.p**2 - 1], key.public)
    assert ours.decrypt(chosen)[0] == ours.decrypt(chosen)[1]
    assert len(set(raised)) == len(raised) - 4  # the two that are alike within each message, modulo both primes
    assert all(base.bit_length() > key.public.bits - SHORTER for base in raised)


def test_blinding_changes_every_ciphertext_and_nothing_that_is_encrypted(key: PrivateKey) -> None:
    blinding, ours = Blinding(key.public), Owner(key)
    sent = [mpz(1), *map(mpz, range(2, 6))]
    first, second = blinding.blinded(sent), blinding.blinded(sent)
    assert len({*sent, *first, *second}) == 3 * len(sent)
    plain = [ours.decrypt(write_ciphertexts(each, key.public)) for each in (sent, first, second)]
    assert plain[0] == plain[1] == plain[2]

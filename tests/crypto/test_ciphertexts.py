from __future__ import annotations

import pytest
import torch

from splitvfl.crypto.ciphertexts import Seen, add_ciphertexts, check_ciphertexts, read_ciphertexts, write_ciphertexts
from splitvfl.crypto.keys import PrivateKey
from splitvfl.crypto.owner import Owner
from splitvfl.errors import ArgumentError, CryptoError


def test_ciphertexts_are_written_and_read(key: PrivateKey) -> None:
    made = Owner(key).encrypt([1, -2])

    check_ciphertexts(made, key.public, count=2)
    assert torch.equal(write_ciphertexts(read_ciphertexts(made, key.public), key.public), made)


@pytest.mark.parametrize(
    ("bad", "said"),
    [
        ("zero", "number 1 is 0"),
        ("square", "number 1 is n² or more: it is under another key"),
        ("most", "n² or more"),
        ("prime", "coprime to n, number 1 of 3 is not"),
        ("modulus", "coprime to n, number 1 of 3 is not"),
    ],
)
def test_what_cannot_be_a_ciphertext_is_refused_by_number(key: PrivateKey, bad: str, said: str) -> None:
    n = key.public.n
    value = {"zero": 0, "square": n * n, "most": 256**128 - 1, "prime": 3 * int(key.p), "modulus": 2 * n}[bad]
    made = Owner(key).encrypt([1, 2, 3])
    made[1] = torch.tensor(list(value.to_bytes(128, "big")), dtype=torch.uint8)

    with pytest.raises(CryptoError, match=said):
        check_ciphertexts(made, key.public)


def test_ciphertexts_of_another_key_size_are_refused(key: PrivateKey) -> None:
    with pytest.raises(CryptoError, match=r"uint8 \(count, 128\), got uint8 \(2, 512\)"):
        check_ciphertexts(torch.ones(2, 512, dtype=torch.uint8), key.public)


@pytest.mark.parametrize("count", [0, 2, 4])
def test_another_number_than_awaited_is_refused(key: PrivateKey, count: int) -> None:
    made = Owner(key).encrypt([1, 2, 3])

    with pytest.raises(CryptoError, match=f"expected {count} ciphertexts, got 3"):
        check_ciphertexts(made, key.public, count=count)


def test_encrypted_vectors_add_up(key: PrivateKey) -> None:
    owner = Owner(key)
    vectors = [[1, -2, 3], [10, 20, -30], [100, -200, 0]]

    total = add_ciphertexts(key.public, [owner.encrypt(vector) for vector in vectors])

    assert owner.decrypt(total) == [111, -182, -27]


def test_vectors_of_different_lengths_or_none_do_not_add_up(key: PrivateKey) -> None:
    owner = Owner(key)

    with pytest.raises(CryptoError, match="expected 2 ciphertexts, got 1"):
        add_ciphertexts(key.public, [owner.encrypt([1, 2]), owner.encrypt([1])])
    with pytest.raises(CryptoError, match="at least one vector"):
        add_ciphertexts(key.public, [])


def test_a_ciphertext_of_an_earlier_step_is_noticed(key: PrivateKey) -> None:
    seen, owner = Seen(key.public), Owner(key)
    first, second = owner.encrypt([1, 2, 3]), owner.encrypt([1, 2, 3])
    seen.check(first, step=4)
    seen.check(second, step=5)

    with pytest.raises(
        CryptoError, match="new ciphertexts in step 6, number 1, or its obfuscator, came in step 4 already"
    ):
        seen.check(torch.cat([owner.encrypt([7]), first[2:]]), step=6)
    # A step that is taken again after a link broke.
    seen.check(second, step=5)


def test_an_obfuscator_that_was_used_before_is_noticed_whatever_is_encrypted(key: PrivateKey) -> None:
    seen, sent = Seen(key.public), Owner(key).encrypt([1, 2])
    values, n = read_ciphertexts(sent, key.public), key.public.modulus
    seen.check(sent, step=0)
    same = write_ciphertexts([values[1] * (1 + 77 * n) % n**2], key.public)

    assert Owner(key).decrypt(same) == [79]
    with pytest.raises(CryptoError, match="number 0, or its obfuscator, came in step 0 already"):
        seen.check(same, step=1)
    with pytest.raises(CryptoError, match="step 1, number 1, or its obfuscator, came in this message already"):
        seen.check(write_ciphertexts([1 + 5 * n, 1 + 6 * n], key.public), step=1)


def test_nothing_of_a_refused_message_is_remembered_and_the_oldest_are_forgotten(key: PrivateKey) -> None:
    seen, sent = Seen(key.public, capacity=2), Owner(key).encrypt([1, 2, 3])

    with pytest.raises(CryptoError, match="number 1"):
        seen.check(torch.cat([sent[:1], sent[:1]]), step=0)
    seen.check(sent[:1], step=1)
    seen.check(sent[1:], step=2)
    seen.check(sent[:1], step=3)
    with pytest.raises(CryptoError, match="in step 2"):
        seen.check(sent[2:], step=4)
    with pytest.raises(ArgumentError, match="capacity from 1, got 0"):
        Seen(key.public, capacity=0)

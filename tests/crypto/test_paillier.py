from __future__ import annotations

import ast
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from phe import paillier as phe

from splitvfl.crypto import paillier
from splitvfl.crypto.evaluator import Evaluator
from splitvfl.crypto.keys import PrivateKey
from splitvfl.crypto.owner import Owner
from splitvfl.crypto.product_layout import ProductLayout
from splitvfl.errors import ArgumentError, CryptoError


def test_keys_are_those_of_phe_and_back() -> None:
    made = paillier.generate_keys(256, insecure_for_tests=True)

    assert made.public.bits == 256
    private = paillier.private_to_phe(made)
    assert isinstance(private, phe.PaillierPrivateKey)
    again = paillier.private_from_phe(private, insecure_for_tests=True)
    assert {again.p, again.q} == {made.p, made.q}
    assert paillier.from_phe(paillier.to_phe(made.public), insecure_for_tests=True) == made.public


def test_two_keys_differ() -> None:
    first, second = (paillier.generate_keys(128, insecure_for_tests=True) for _ in range(2))

    assert first.public != second.public


@pytest.mark.parametrize("bits", [1024, 2047, 2049])
def test_weak_or_odd_lengths_are_refused(bits: int) -> None:
    with pytest.raises(ArgumentError, match=f"even key length from 2048 bits, got {bits}"):
        paillier.generate_keys(bits)


def test_a_user_of_phe_decrypts_what_we_encrypt(key: PrivateKey) -> None:
    values = [0.0, 0.5, -1.25, 1e-9, 3.0]
    layout = ProductLayout(key_bits=512, rows=1, outputs=1, value_limit=4.0, weight_limit=1.0)
    sent = Owner(key).encrypt(layout.encode_values(torch.tensor(values, dtype=torch.float64)), layout)

    numbers = paillier.ciphertexts_to_phe(key.public, sent, bits=32)

    private = paillier.private_to_phe(key)
    # Half a unit of 2^-32.
    assert [private.decrypt(number) for number in numbers] == pytest.approx(values, abs=2**-33)


def test_a_user_of_phe_computes_on_what_we_encrypt(key: PrivateKey) -> None:
    sent = Owner(key).encrypt([3, -4])
    first, second = paillier.ciphertexts_to_phe(key.public, sent, bits=0)

    assert paillier.private_to_phe(key).decrypt(first * 5 + second) == 11


def test_we_decrypt_what_a_user_of_phe_encrypts(key: PrivateKey, layout: Callable[..., ProductLayout]) -> None:
    agreed = layout()
    values = torch.tensor([0.5, -1.25, 1e-9], dtype=torch.float64)
    public = paillier.to_phe(key.public)
    numbers = [public.encrypt(value, precision=2**-32) for value in values.tolist()]

    sent = paillier.ciphertexts_from_phe(key.public, numbers, bits=32)

    assert Owner(key).decrypt(sent) == agreed.encode_values(values).tolist()
    evaluator = Evaluator(key.public, agreed)
    masked = evaluator.masked_sums([(sent, torch.ones(3, 9, dtype=torch.int64))])
    opened = Owner(key).open_masked(masked.reply, agreed)
    assert evaluator.unmask(opened, masked) == [sum(agreed.encode_values(values).tolist())] * 9


def test_numbers_of_phe_with_other_exponents_or_keys_are_refused(key: PrivateKey, other_key: PrivateKey) -> None:
    public = paillier.to_phe(key.public)
    numbers = [public.encrypt(0.5, precision=2**-32), public.encrypt(0.5)]

    with pytest.raises(CryptoError, match="expected 32 fraction bits, number 1 has 56: encrypt all with one precision"):
        paillier.ciphertexts_from_phe(key.public, numbers, bits=32)
    with pytest.raises(CryptoError, match="number 0 is under another key"):
        paillier.ciphertexts_from_phe(other_key.public, numbers, bits=32)
    with pytest.raises(ArgumentError, match="multiple of 4"):
        paillier.ciphertexts_to_phe(key.public, Owner(key).encrypt([1]), bits=26)
    assert paillier.ciphertexts_from_phe(key.public, [], bits=32).shape == (0, 128)


def test_phe_is_imported_in_one_module(checkout: Path) -> None:
    texts = {path: path.read_text(encoding="utf-8") for path in (checkout / "splitvfl").rglob("*.py")}
    for path, text in texts.items():
        names = {
            name.split(".")[0]
            for node in (ast.walk(ast.parse(text)) if "phe" in text else ())
            for name in (
                [alias.name for alias in node.names] if isinstance(node, ast.Import)
                else [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            )
        }  # fmt: skip
        assert "phe" not in names or path.parts[-2:] == ("crypto", "paillier.py"), path

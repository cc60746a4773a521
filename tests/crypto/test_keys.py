from __future__ import annotations

import copy
import json
import os
import stat
from pathlib import Path

import gmpy2
import pytest
import torch

from splitvfl.crypto import keys
from splitvfl.crypto.keys import PrivateKey, PublicKey
from splitvfl.errors import ArgumentError, CryptoError


@pytest.fixture(autouse=True)
def quick_scrypt(monkeypatch: pytest.MonkeyPatch) -> None:
    """A cheap key derivation: its cost is no test's business."""
    monkeypatch.setattr(keys, "_SCRYPT_COST", 1 << 4)


def test_a_public_key_crosses_the_wire(key: PrivateKey) -> None:
    sent = key.public.to_tensor()

    assert sent.dtype == torch.uint8
    assert sent.shape == (64,)
    assert PublicKey.from_tensor(sent, bits=512, insecure_for_tests=True) == key.public
    assert key.public.ciphertext_bytes == 128
    assert key.public.plaintext_bytes == 64


def test_a_key_of_another_size_than_agreed_is_refused(key: PrivateKey) -> None:
    sent = key.public.to_tensor()

    with pytest.raises(CryptoError, match=r"expected bytes, uint8 \(count, 256\), got uint8 \(1, 64\)"):
        PublicKey.from_tensor(sent, bits=2048)
    with pytest.raises(CryptoError, match="expected a public key of 511 bits, as agreed, got one of 512 bits"):
        PublicKey.from_tensor(sent, bits=511, insecure_for_tests=True)


def test_short_keys_are_refused_outside_tests(key: PrivateKey) -> None:
    with pytest.raises(CryptoError, match="expected a key of 2048 to 16384 bits, got 512 bits"):
        PublicKey(key.public.n)
    with pytest.raises(CryptoError, match="got 512 bits"):
        PrivateKey(int(key.p), int(key.q))
    with pytest.raises(CryptoError, match="got 512 bits"):
        PublicKey.from_tensor(key.public.to_tensor(), bits=512)


PRIME = int(gmpy2.next_prime(1 << 255))
WRONG = {
    "zero": (0, "expected a key of 64 to 16384 bits"),
    "negative": (-PRIME * PRIME, "expected a key of"),
    "even": (2 * PRIME, "expected an odd modulus, got an even one of 257 bits"),
    "prime": (PRIME, "is a prime, a power"),
    "square": (PRIME**2, "is a prime, a power"),
    "small factor": (3 * PRIME, "has a small factor"),
    "too long": (1 << 20000 | 1, "16384 bits, got 20001 bits"),
}


@pytest.mark.parametrize("wrong", WRONG)
def test_what_is_no_modulus_is_refused(wrong: str) -> None:
    n, said = WRONG[wrong]

    with pytest.raises(CryptoError, match=said):
        PublicKey(n, insecure_for_tests=True)


def test_what_are_no_primes_is_refused_without_showing_them(key: PrivateKey) -> None:
    p, q = int(key.p), int(key.q)
    for first, second in ((p, p), (p, q + 2), (p, 65537), (p * q, q)):
        with pytest.raises(CryptoError, match="two different primes of the same length") as caught:
            PrivateKey(first, second, insecure_for_tests=True)
        assert str(p) not in str(caught.value)


def test_no_text_shows_a_private_key(key: PrivateKey) -> None:
    assert repr(key) == str(key) == "PrivateKey(512 bits)"
    assert repr(key.public) == "PublicKey(512 bits)"


def test_a_private_key_is_not_pickled_or_copied_by_pickling(key: PrivateKey) -> None:
    # What pickle asks an object for.
    with pytest.raises(TypeError, match="not pickled"):
        key.__reduce_ex__(2)
    with pytest.raises(TypeError, match="not pickled"):
        copy.copy(key)


@pytest.mark.parametrize("passphrase", [None, "correct horse"])
def test_a_key_is_written_for_its_owner_only_and_read_again(
    key: PrivateKey, tmp_path: Path, passphrase: str | None
) -> None:
    before = os.umask(0)
    try:
        key.save(tmp_path / "private.key", passphrase=passphrase)
    finally:
        os.umask(before)

    path = tmp_path / "private.key"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert list(tmp_path.iterdir()) == [path]
    found = PrivateKey.load(path, passphrase=passphrase, insecure_for_tests=True)
    assert (found.p, found.q) == (key.p, key.q)
    assert (hex(key.p) in path.read_text()) == (passphrase is None)


def test_a_sealed_key_needs_its_passphrase(key: PrivateKey, tmp_path: Path) -> None:
    path = tmp_path / "private.key"
    key.save(path, passphrase="correct horse")

    with pytest.raises(CryptoError, match="is sealed: a passphrase is needed"):
        PrivateKey.load(path, insecure_for_tests=True)
    with pytest.raises(CryptoError, match="the passphrase is another one, or the file was changed"):
        PrivateKey.load(path, passphrase="battery staple", insecure_for_tests=True)
    with pytest.raises(ArgumentError, match="passphrase of at least one character"):
        key.save(path, passphrase="")
    key.save(path)
    with pytest.raises(CryptoError, match="is not sealed, and a passphrase was given"):
        PrivateKey.load(path, passphrase="correct horse", insecure_for_tests=True)


def test_a_changed_file_is_noticed(key: PrivateKey, tmp_path: Path) -> None:
    path = tmp_path / "private.key"
    key.save(path, passphrase="correct horse")
    content = json.loads(path.read_text())
    content["box"] = ("A" if content["box"][0] != "A" else "B") + content["box"][1:]
    path.write_text(json.dumps(content))

    with pytest.raises(CryptoError, match="another one, or the file was changed"):
        PrivateKey.load(path, passphrase="correct horse", insecure_for_tests=True)


@pytest.mark.parametrize(
    "content",
    ["", "[]", "{}", '{"format": "splitvfl paillier private key 1", "key": 5}', "\xff",
     '{"format": "splitvfl paillier private key 1", "key": {"p": "0x11", "q": "no"}}',
     '{"format": "splitvfl paillier private key 1", "salt": "!", "nonce": "", "box": ""}'],
)  # fmt: skip
def test_a_file_without_a_key_is_refused(tmp_path: Path, content: str) -> None:
    path = tmp_path / "private.key"
    path.write_bytes(content.encode("latin-1"))
    path.chmod(0o600)
    passphrase = "x" if "salt" in content else None

    with pytest.raises(CryptoError, match=r"private\.key holds no private key") as caught:
        PrivateKey.load(path, passphrase=passphrase, insecure_for_tests=True)
    # A cause would show what was read.
    assert caught.value.__context__ is None or caught.value.__suppress_context__


def test_a_file_that_others_may_read_is_refused(key: PrivateKey, tmp_path: Path) -> None:
    path = tmp_path / "private.key"
    key.save(path)
    path.chmod(0o640)

    with pytest.raises(CryptoError, match=r"others may read .* \(mode 640\): chmod 600"):
        PrivateKey.load(path, insecure_for_tests=True)


def test_a_short_key_in_a_file_is_refused_outside_tests(key: PrivateKey, tmp_path: Path) -> None:
    key.save(tmp_path / "private.key")

    with pytest.raises(CryptoError, match="got 512 bits"):
        PrivateKey.load(tmp_path / "private.key")


def test_a_missing_file_or_folder_is_said(key: PrivateKey, tmp_path: Path) -> None:
    with pytest.raises(CryptoError, match=r"cannot read the private key in .*No such file"):
        PrivateKey.load(tmp_path / "none.key")
    with pytest.raises(CryptoError, match=r"cannot write the private key to .*No such file"):
        key.save(tmp_path / "nowhere" / "private.key")


def test_a_failed_save_leaves_the_old_file_and_nothing_else(
    key: PrivateKey, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "private.key"
    path.write_text("old")

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(CryptoError, match="No space left"):
        key.save(path)
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]

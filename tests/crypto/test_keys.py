from __future__ import annotations

import base64
import copy
import json
import os
import stat
from pathlib import Path

import gmpy2
import pytest
import torch

from splitvfl.crypto import key_proof, keys
from splitvfl.crypto.keys import PrivateKey, PublicKey, sent_shape
from splitvfl.errors import ArgumentError, CryptoError


@pytest.fixture(autouse=True)
def quick_scrypt(monkeypatch: pytest.MonkeyPatch) -> None:
    """A cheap key derivation: its cost is no test's business."""
    monkeypatch.setattr(keys, "_SCRYPT_COST", 1 << 4)


def test_a_public_key_crosses_the_wire(key: PrivateKey) -> None:
    sent = key.to_send()

    assert sent.dtype == torch.uint8
    assert tuple(sent.shape) == sent_shape(512) == (1 + 11 + 128, 64)
    assert PublicKey.from_tensor(sent, bits=512, insecure_for_tests=True) == key.public
    assert key.public.ciphertext_bytes == 128
    assert key.public.plaintext_bytes == 64


def test_a_key_of_another_size_than_agreed_is_refused(key: PrivateKey) -> None:
    sent = key.to_send()

    with pytest.raises(CryptoError, match=r"expected a key with its proof, 140 x 256 bytes, got \(140, 64\)"):
        PublicKey.from_tensor(sent, bits=2048)
    with pytest.raises(CryptoError, match="expected a public key of 511 bits, as agreed, got one of 512 bits"):
        PublicKey.from_tensor(sent, bits=511, insecure_for_tests=True)


def test_short_keys_are_refused_outside_tests(key: PrivateKey) -> None:
    with pytest.raises(CryptoError, match="expected a key of 2048 to 16384 bits, got 512 bits"):
        PublicKey(key.public.n)
    with pytest.raises(CryptoError, match="got 512 bits"):
        PrivateKey(int(key.p), int(key.q))
    with pytest.raises(CryptoError, match="got 512 bits"):
        PublicKey.from_tensor(key.to_send(), bits=512)


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


def test_a_proof_is_made_once_and_kept_with_the_key(
    key: PrivateKey, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "private.key"
    key.save(path)
    monkeypatch.setattr(key_proof, "prove", lambda p, q: pytest.fail("it is made again"))

    assert torch.equal(PrivateKey.load(path, insecure_for_tests=True).to_send(), key.to_send())


def test_a_file_from_before_proofs_is_read_and_its_key_proven_when_it_is_sent(key: PrivateKey, tmp_path: Path) -> None:
    path = tmp_path / "private.key"
    content = {"p": hex(key.p), "q": hex(key.q)}
    path.write_text(json.dumps({"format": "splitvfl paillier private key 1", "bits": 512, "key": content}))
    path.chmod(0o600)

    assert torch.equal(PrivateKey.load(path, insecure_for_tests=True).to_send(), key.to_send())


def test_a_proof_of_another_key_in_a_file_is_refused(key: PrivateKey, other_key: PrivateKey, tmp_path: Path) -> None:
    path = tmp_path / "private.key"
    key.save(path)
    other_key.save(tmp_path / "other.key")
    content, other = (json.loads((tmp_path / name).read_text()) for name in ("private.key", "other.key"))
    raw = bytearray(base64.b64decode(content["key"]["proof"]))
    raw[-1] ^= 2
    for wrong in (other["key"]["proof"], base64.b64encode(raw).decode(), ""):
        path.write_text(json.dumps(content | {"key": content["key"] | {"proof": wrong}}))
        with pytest.raises(CryptoError, match=r"the proof in it does not belong to its key|holds no private key"):
            PrivateKey.load(path, insecure_for_tests=True)


def test_a_key_that_cannot_be_proven_is_kept_and_not_sent(tmp_path: Path) -> None:
    p = q = int(gmpy2.next_prime(3 << 126))
    while p % 4 != 1 or q == p:
        p, q = int(gmpy2.next_prime(p)), p
    key = PrivateKey(p, q, insecure_for_tests=True)
    path = tmp_path / "private.key"
    key.save(path)

    found = PrivateKey.load(path, insecure_for_tests=True)
    assert (found.p, found.q) == (p, q)
    with pytest.raises(
        CryptoError, match="nobody can prove that there are two of them, so that this key cannot be sent"
    ):
        found.to_send()


def test_a_key_is_verified_once_in_a_process_and_a_wrong_one_each_time(
    other_key: PrivateKey, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked_at: list[int] = []
    verify = key_proof.verify
    monkeypatch.setattr(key_proof, "verify", lambda n, roots: (looked_at.append(int(n)), verify(n, roots)))
    keys._verify_once.cache_clear()
    sent = other_key.to_send()
    for _ in range(3):
        PublicKey.from_tensor(sent, bits=512, insecure_for_tests=True)
    assert looked_at == [other_key.public.n]
    sent[-1, -1] ^= 1
    for _ in range(2):
        with pytest.raises(CryptoError, match="wrong square root 127"):
            PublicKey.from_tensor(sent, bits=512, insecure_for_tests=True)
    assert len(looked_at) == 3


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
    ["", "[]", "{}", '{"format": "splitvfl paillier private key 2", "key": 5}', "\xff",
     '{"format": "splitvfl paillier private key 2", "key": {"p": "0x11", "q": "no"}}',
     '{"format": "splitvfl paillier private key 2", "salt": "!", "nonce": "", "box": ""}'],
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
    with pytest.raises(CryptoError, match=r"none\.key cannot be read: there is no such file"):
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

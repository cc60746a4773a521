"""Codes under a key of the pair, against the formulas written out."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

import pytest
import torch
from torch import Tensor

from splitvfl.crypto.key_agreement import AgreementKey
from splitvfl.crypto.tags import TAG_BYTES, Tags
from splitvfl.errors import ForgedError

CONTENT = torch.arange(48, dtype=torch.uint8).reshape(4, 12)
ABOUT = {"kind": "asked", "step": 7, "count": 3}


def met(session: bytes = b"today", keys: Mapping[str, AgreementKey] | None = None) -> dict[str, Tags]:
    keys = keys or {name: AgreementKey() for name in ("lab", "shop", "telecom")}
    return {
        name: Tags(name, "bank", key, {other: one.own for other, one in keys.items() if other != name}, session=session)
        for name, key in keys.items()
    }


def sha(*parts: bytes) -> bytes:
    return hashlib.sha256(b"".join(parts)).digest()


def mac(key: bytes, *parts: bytes) -> bytes:
    """RFC 2104 with SHA-256, for keys of up to 64 bytes."""
    padded = key.ljust(64, b"\0")
    inner = sha(bytes(one ^ 0x36 for one in padded), *parts)
    return sha(bytes(one ^ 0x5C for one in padded), inner)


def framed(part: bytes) -> bytes:
    return len(part).to_bytes(8, "big") + part


def test_a_code_is_that_of_the_published_formulas() -> None:
    lab, shop = AgreementKey(), AgreementKey()
    tags = Tags("lab", "bank", lab, {"shop": shop.own}, session=b"today")
    secret = shop.secret_with(lab.own)
    # RFC 5869: extract with the session as salt, and expand to one block.
    context = framed(b"splitvfl, what the active party passes on") + framed(b"lab") + framed(b"shop")
    key = mac(mac(b"today", secret), context, b"\x01")
    for number in range(3):
        head = framed(b"asked") + b"".join(one.to_bytes(8, "big") for one in (7, 3, number))
        assert bytes(tags.tag("shop", CONTENT, **ABOUT).tolist()) == mac(key, head, bytes(CONTENT.flatten().tolist()))


def test_what_was_sent_is_opened_in_its_order() -> None:
    parties = met()
    contents = [torch.randint(0, 256, (size,), dtype=torch.uint8) for size in (0, 1, 1000)]
    for step, content in enumerate(contents):
        for sender, receiver in (("lab", "shop"), ("shop", "lab"), ("lab", "telecom")):
            sealed = parties[sender].sealed(receiver, content, kind="asked", step=step, count=1)
            assert sealed.shape == (len(content) + TAG_BYTES,)
            assert torch.equal(parties[receiver].opened(sender, sealed, kind="asked", step=step, count=1), content)


def refused(party: Tags, sealed: Tensor, sender: str = "lab", **about: object) -> None:
    with pytest.raises(ForgedError, match=rf"bank passed on .* in the name of {sender}, and it is not what") as caught:
        party.opened(sender, sealed, **{**ABOUT, **about})  # type: ignore[arg-type]
    assert caught.value.final


def test_every_bit_counts() -> None:
    parties = met()
    sealed = parties["lab"].sealed("shop", CONTENT, **ABOUT)
    for place in range(8 * len(sealed)):
        changed = sealed.clone()
        changed[place // 8] ^= 1 << place % 8
        refused(parties["shop"], changed)
    for changed in (sealed[1:], sealed[:-1], sealed[:TAG_BYTES], sealed[:0], torch.cat([sealed, sealed[:1]])):
        refused(parties["shop"], changed)
    assert torch.equal(parties["shop"].opened("lab", sealed, **ABOUT), CONTENT.flatten())


@pytest.mark.parametrize("about", [{"kind": "answered"}, {"step": 8}, {"step": 0}, {"count": 4}, {"kind": "asked "}])
def test_it_is_for_one_kind_step_and_number(about: dict[str, object]) -> None:
    parties = met()
    refused(parties["shop"], parties["lab"].sealed("shop", CONTENT, **ABOUT), **about)


def test_it_is_for_one_pair_direction_and_meeting() -> None:
    keys = {name: AgreementKey() for name in ("lab", "shop", "telecom")}
    parties, later = met(keys=keys), met(session=b"tomorrow", keys=keys)
    sealed = parties["lab"].sealed("shop", CONTENT, **ABOUT)
    refused(parties["telecom"], sealed)
    refused(parties["shop"], sealed, sender="telecom")
    refused(parties["lab"], sealed, sender="shop")  # comes back to who made it
    refused(later["shop"], sealed)
    sessions = {bytes(met(keys=keys, session=bytes([one]))["lab"].tag("shop", CONTENT, **ABOUT)) for one in range(9)}
    assert len(sessions) == 9


def test_none_is_taken_twice_left_out_or_out_of_its_order() -> None:
    parties = met()
    first, second, third = (parties["lab"].sealed("shop", CONTENT, **ABOUT) for _ in range(3))
    refused(parties["shop"], second)
    for sealed in (first, second):
        parties["shop"].opened("lab", sealed, **ABOUT)
    for sealed in (first, second):
        refused(parties["shop"], sealed)
    parties["shop"].opened("lab", third, **ABOUT)


def test_names_do_not_run_into_each_other() -> None:
    one, other = AgreementKey(), AgreementKey()
    left = Tags("ab", "bank", one, {"c": other.own}, session=b"today")
    right = Tags("a", "bank", one, {"bc": other.own}, session=b"today")

    assert not torch.equal(left.tag("c", CONTENT, **ABOUT), right.tag("bc", CONTENT, **ABOUT))

"""What is sealed is read by the one it is for, in its place, and by nobody else."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from splitvfl.crypto.key_agreement import AgreementKey
from splitvfl.crypto.seals import SEAL_BYTES, Seals
from splitvfl.crypto.tags import Tags
from splitvfl.errors import CryptoError, ForgedError
from splitvfl.system import forks

PAYLOAD = torch.tensor([[1.5, -2.0], [0.25, 1e30]])


def pair(session: bytes = b"now") -> tuple[Seals, Seals]:
    near, far = AgreementKey(), AgreementKey()
    return (
        Seals("lab", "clinic", near, {"notary": far.own}, session=session),
        Seals("notary", "clinic", far, {"lab": near.own}, session=session),
    )


def opened(notary: Seals, sealed: Tensor, *, context: bytes = b"") -> bytes:
    return notary.opened("lab", sealed, context=context, what="a part")


def test_what_was_sealed_comes_out_and_is_as_long_as_it_was() -> None:
    lab, notary = pair()

    sealed = lab.sealed("notary", PAYLOAD, context=b"batch 3")

    assert sealed.dtype == torch.uint8
    assert sealed.shape == (PAYLOAD.numel() * 4 + SEAL_BYTES,)
    assert opened(notary, sealed, context=b"batch 3") == PAYLOAD.numpy().tobytes()


def test_equal_messages_are_never_sealed_alike_and_show_nothing_of_themselves() -> None:
    lab, _ = pair()

    first, second = (bytes(lab.sealed("notary", PAYLOAD, context=b"").tolist()) for _ in range(2))

    assert first != second
    assert PAYLOAD.numpy().tobytes()[:8] not in first


@pytest.mark.parametrize(
    "change",
    [
        lambda sealed: sealed ^ torch.tensor([1] + [0] * (len(sealed) - 1), dtype=torch.uint8),
        lambda sealed: sealed[:-1],
        lambda sealed: torch.cat([sealed, torch.zeros(1, dtype=torch.uint8)]),
        lambda sealed: torch.zeros_like(sealed),
    ],
    ids=["one bit", "shorter", "longer", "zeros"],
)
def test_what_was_changed_on_the_way_is_refused_and_both_are_named(change: Callable[[Tensor], Tensor]) -> None:
    lab, notary = pair()

    with pytest.raises(ForgedError, match="clinic passed on a part in the name of lab, and it is not what lab sent"):
        opened(notary, change(lab.sealed("notary", PAYLOAD, context=b"")))


def test_another_context_an_older_message_and_another_order_are_refused() -> None:
    lab, notary = pair()
    first, second = (lab.sealed("notary", PAYLOAD, context=b"same") for _ in range(2))
    for wrong, context in ((first, b"other"), (second, b"same")):
        with pytest.raises(ForgedError):
            opened(notary, wrong, context=context)
    opened(notary, first, context=b"same")
    with pytest.raises(ForgedError):
        opened(notary, first, context=b"same")
    opened(notary, second, context=b"same")


def test_a_message_to_one_is_none_to_its_sender_nor_to_a_third() -> None:
    keys = {name: AgreementKey() for name in ("lab", "shop", "notary")}
    ends = {
        name: Seals(name, "clinic", key, {o: k.own for o, k in keys.items() if o != name}, session=b"now")
        for name, key in keys.items()
    }
    sealed = ends["lab"].sealed("notary", PAYLOAD, context=b"")
    for reader, sender in (("lab", "notary"), ("shop", "lab"), ("notary", "shop")):
        with pytest.raises(ForgedError):
            ends[reader].opened(sender, sealed, context=b"", what="a part")


def test_the_same_keys_at_another_meeting_are_other_keys() -> None:
    near, far = AgreementKey(), AgreementKey()
    lab = Seals("lab", "clinic", near, {"notary": far.own}, session=b"yesterday")
    notary = Seals("notary", "clinic", far, {"lab": near.own}, session=b"today")

    with pytest.raises(ForgedError):
        opened(notary, lab.sealed("notary", PAYLOAD, context=b""))


def test_neither_a_copy_nor_a_forked_child_sends_under_the_numbers_of_another(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two messages under one key and number of AES-GCM give the key away."""
    near, far = AgreementKey(), AgreementKey()
    seals, _ = pair()
    tags = Tags("lab", "clinic", near, {"notary": far.own}, session=b"now")
    payload = torch.zeros(3, dtype=torch.uint8)
    for own in (seals, tags):
        with pytest.raises(TypeError, match="keys of a pair are not copied"):
            copy.deepcopy(own)
    with monkeypatch.context() as patched:
        patched.setattr(forks, "_forks", forks.forks() + 1)
        with pytest.raises(CryptoError, match=r"keys of lab for what clinic passes on .* forked from"):
            seals.sealed("notary", payload, context=b"")
        with pytest.raises(CryptoError, match="forked from"):
            tags.tag("notary", payload, kind="keys", step=0, count=3)
    assert seals.sealed("notary", payload, context=b"").numel() == 3 + SEAL_BYTES

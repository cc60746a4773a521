"""Joint scores under masks: the same scores, and the active party sees no passive party's part of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from splitvfl.errors import ConfigError, DataError
from splitvfl.exchange.prediction import Prediction
from splitvfl.exchange.roll_call import Vouching
from splitvfl.models import Linear, LinearTop
from splitvfl.net.certs import make_certificates
from splitvfl.net.signing import CertificateSigner
from splitvfl.net.tls import Identity
from splitvfl.party.party import ActiveParty, Party, PassiveParty
from splitvfl.run.prediction import PredictionSettings
from tests.builders import ACTIVE, party_data
from tests.run.test_prediction import World, alike, in_one_process, parties, score

NAMES = ("lab", "shop", "telecom")


def linear_parties() -> dict[str, Party]:
    torch.manual_seed(0)
    data = party_data(ACTIVE, width=2, task="binary")
    active = ActiveParty(data, LinearTop(len(NAMES), active_inputs=data.width))
    found: dict[str, Party] = {ACTIVE: active}
    for name in NAMES:
        active.connect(name)
        own = party_data(name, width=3)
        found[name] = PassiveParty(own, Linear(own.width))
    active.widths = dict.fromkeys(NAMES, 1)
    return found


@pytest.mark.parametrize("breaks", [[], [("shop", 5)]], ids=["whole", "broken"])
def test_masked_scores_are_those_of_one_process(breaks: list[Any]) -> None:
    expected = in_one_process(linear_parties())
    plain, masked = World(NAMES), World(NAMES, breaks=breaks)
    score(plain, linear_parties(), alike(NAMES))
    found = score(masked, linear_parties(), alike(NAMES, masked=True))
    # Parts are rounded to 2^-32 and their sum to float32.
    torch.testing.assert_close(found[ACTIVE].outputs, expected.outputs, rtol=0, atol=1e-6)
    for name in NAMES:
        clear = [message.payload for message in plain.sent[name] if message.kind == "activation"]
        sent = {message.step: message.payload for message in masked.sent[name] if message.kind == "activation"}
        for part, hidden in zip(clear, (sent[step] for step in sorted(sent)), strict=True):
            assert hidden.dtype == torch.int64
            off = (hidden.double() * 2.0**-32 - part.double()).abs()
            assert off.min() > 2.0**4  # masks are uniform on 2^32 of these units: 2^-27 of them are so small
    for name in NAMES:
        activations = [message for message in masked.sent[name] if message.kind == "activation"]
        numbers = torch.cat([message.payload.flatten() for message in activations])
        # What is sent again is under new masks: 64 bits that never come twice, with a chance of 2^-50 that they do.
        assert numbers.unique().numel() == numbers.numel()
        assert len({message.step for message in activations}) < len(activations) or not breaks


def test_one_party_that_would_not_mask_is_told() -> None:
    agreed = alike(NAMES, masked=True) | {"shop": alike(NAMES)["shop"]}
    found = score(World(NAMES), linear_parties(), agreed)
    assert isinstance(found["shop"], DataError)
    assert "parts are masked" in str(found["shop"])


def test_a_top_that_does_more_than_add_up_is_refused() -> None:
    found = score(World(("telecom",)), parties(("telecom",)), alike(("telecom",), masked=True))
    assert isinstance(found[ACTIVE], ConfigError)
    assert "adds up logits" in str(found[ACTIVE])


def signing(tmp_path: Path, names: Sequence[str] = NAMES, **files: Sequence[str]) -> dict[str, PredictionSettings]:
    """Every party's settings, with a certificate of its own; ``files`` say whom a party's file names."""
    make_certificates(tmp_path, [ACTIVE, *names])
    found = {}
    for name, plain in alike(names, masked=True).items():
        members = files.get(name, names)
        signer = CertificateSigner(
            Identity.load(name, folder=tmp_path), {one: one for one in members}, run="bank, prediction"
        )
        found[name] = replace(plain, vouching=Vouching(frozenset(members), signer))
    return found


def test_parties_that_sign_their_keys_score_as_others_do(tmp_path: Path) -> None:
    expected = in_one_process(linear_parties())
    found = score(World(NAMES), linear_parties(), signing(tmp_path))
    torch.testing.assert_close(found[ACTIVE].outputs, expected.outputs, rtol=0, atol=1e-6)


def test_a_party_whose_file_names_fewer_is_told_what_to_write(tmp_path: Path) -> None:
    found = score(World(NAMES), linear_parties(), signing(tmp_path, lab=["lab", "shop"]))
    assert isinstance(found["lab"], DataError)
    assert "'telecom' among them, not named there" in str(found["lab"])
    assert not any(isinstance(found[name], Prediction) for name in found)


def test_a_party_that_would_not_sign_is_told(tmp_path: Path) -> None:
    settings = signing(tmp_path)
    found = score(World(NAMES), linear_parties(), settings | {"shop": alike(NAMES, masked=True)["shop"]})
    assert isinstance(found["shop"], DataError)
    assert "keys that are passed on: shop has not signed, bank has signed" in str(found["shop"])

"""Parties that differ do not begin, and learn in what they differ."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pytest
import torch

from splitvfl.data.columns import Columns, PartyData, Records
from splitvfl.errors import DataError, ProtocolError
from splitvfl.exchange.agreement import agreement, terms_of
from splitvfl.messaging.conversation import Expected, Half, Outbox, converse
from splitvfl.messaging.messages import Message
from tests.builders import party_data, record_ids

TERMS = Expected("bank", "agreement", 0, (torch.uint8,), (range(1 << 16),))
SETTINGS = {"batch size": 16, "exchange": "split"}


def terms(data: PartyData | None = None, **changes: object) -> dict[str, object]:
    return terms_of(party_data("x", width=2) if data is None else data, {**SETTINGS, **changes})


def with_ids(train: torch.Tensor, test: torch.Tensor) -> PartyData:
    parts = (Records(ids, Columns.of(torch.zeros(len(ids), 1))) for ids in (train, test))
    return PartyData("x", ("a",), ("a",), (), *parts)


def talk(**parties: Mapping[str, object]) -> dict[str, Any]:
    """The active party is called bank; it talks to everybody, the others to it alone."""
    others = tuple(name for name in parties if name != "bank")
    halves = {name: agreement(name, ("bank",), parties[name]) for name in others}
    return converse({"bank": agreement("bank", others, parties["bank"]), **halves})


def test_equal_parties_agree() -> None:
    assert talk(bank=terms(), telecom=terms(), shop=terms()) == {"bank": None, "telecom": None, "shop": None}


def test_columns_and_labels_do_not_matter() -> None:
    active, passive = party_data("bank", width=2, task="binary"), party_data("telecom", width=5)
    assert terms(active) == terms(passive)


@pytest.mark.parametrize("part", ["training", "test"])
def test_a_different_number_of_records_is_named_with_both_values(part: str) -> None:
    sizes: dict[str, Any] = {"training": {"train": 47}, "test": {"test": 23}}[part]
    counts = {"training": "bank has 48, telecom has 47", "test": "bank has 24, telecom has 23"}[part]
    with pytest.raises(DataError, match=f"bank and telecom do not agree.*{part} records: {counts}") as caught:
        talk(telecom=terms(party_data("x", width=2, **sizes)), bank=terms())
    assert f"order of the {part} ids: bank has " in str(caught.value)
    assert f"order of the {({'training', 'test'} - {part}).pop()} ids" not in str(caught.value)


@pytest.mark.parametrize("part", ["training", "test"])
def test_another_order_of_the_same_ids_is_named_with_both_digests(part: str) -> None:
    ids = {"training": record_ids(6), "test": record_ids(4, first=50)}
    swapped = {**ids, part: ids[part].roll(1)}
    ours, theirs = terms(with_ids(**_names(ids))), terms(with_ids(**_names(swapped)))
    key = f"order of the {part} ids"
    with pytest.raises(DataError) as caught:
        talk(telecom=theirs, bank=ours)
    named, _, advice = str(caught.value).partition(". ")
    assert named == f"bank and telecom do not agree: {key}: bank has {ours[key]}, telecom has {theirs[key]}"
    assert "splitvfl align" in advice


def _names(ids: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {"train": ids["training"], "test": ids["test"]}


def test_one_other_id_is_noticed() -> None:
    ids = record_ids(6)
    other = ids.clone()
    other[3] += 1
    assert (
        terms(with_ids(ids, ids))["order of the training ids"]
        != terms(with_ids(other, ids))["order of the training ids"]
    )


def test_strides_of_the_ids_do_not_matter() -> None:
    ids = record_ids(6)
    assert terms(with_ids(torch.stack([ids, ids], 1)[:, 0], ids)) == terms(with_ids(ids, ids))


def test_different_settings_are_all_named_with_both_values() -> None:
    with pytest.raises(DataError) as caught:
        talk(telecom={**terms(), "batch size": 32, "exchange": "paillier"}, bank=terms())
    assert "batch size: bank has 16, telecom has 32" in str(caught.value)
    assert "exchange: bank has split, telecom has paillier" in str(caught.value)


def test_a_setting_that_one_party_lacks_is_named() -> None:
    with pytest.raises(DataError, match="bank has nothing, shop has 3"):
        talk(telecom=terms(), shop=terms(seed=3), bank=terms())


def test_what_json_writes_otherwise_still_agrees() -> None:
    """A tuple arrives as a list; equal settings must not be told apart for that."""
    talk(telecom=terms(layers=(8, 4)), bank=terms(layers=(8, 4)))


def test_no_id_crosses() -> None:
    ids = torch.arange(100_000, 100_050)
    crossed: list[Message] = []
    ours = terms(with_ids(ids, ids))
    halves = {"telecom": agreement("telecom", ("bank",), ours), "bank": agreement("bank", ("telecom",), ours)}
    converse(halves, record=crossed.append)
    text = " ".join(message.payload.numpy().tobytes().decode() for message in crossed)
    assert len(crossed) == 2
    assert not [number for number in ids.tolist() if str(number) in text]


@pytest.mark.parametrize(
    ("payload", "complaint"),
    [
        (torch.zeros(3), "expected agreement of step 0 from telecom to be 2 to 65536 in uint8, got 3 in float32"),
        (b"{}" + b" " * (1 << 16), "to be 2 to 65536 in uint8, got 65538 in uint8"),
        (
            torch.zeros(0, dtype=torch.uint8),
            "expected agreement of step 0 from telecom to be 2 to 65536 in uint8, got 0",
        ),
        (b"{{", "telecom sent no agreement"),
        (b"\xff\xfe\xfd", "telecom sent no agreement"),
        (b"[" * 60_000, "telecom sent no agreement"),
        (b"1" * 60_000, "telecom sent no agreement"),
        (b"[1, 2]", "telecom sent no agreement, but a list"),
        (b"null", "telecom sent no agreement, but a NoneType"),
    ],
)
def test_what_is_no_agreement_is_refused(payload: Any, complaint: str) -> None:
    if isinstance(payload, bytes):
        payload = torch.frombuffer(bytearray(payload), dtype=torch.uint8)

    def stranger() -> Half:
        yield Outbox(send=(Message("telecom", "bank", "agreement", 0, payload),), wait=(TERMS,))

    with pytest.raises(ProtocolError, match=complaint):
        converse({"telecom": stranger(), "bank": agreement("bank", ("telecom",), terms())})


def test_another_kind_of_message_is_refused() -> None:
    payload = torch.frombuffer(bytearray(json.dumps(terms()).encode()), dtype=torch.uint8)

    def stranger() -> Half:
        yield Outbox(send=(Message("telecom", "bank", "gradient", 0, payload),), wait=(TERMS,))

    with pytest.raises(ProtocolError, match=r"expected agreement of step 0 from telecom.*gradient"):
        converse({"telecom": stranger(), "bank": agreement("bank", ("telecom",), terms())})

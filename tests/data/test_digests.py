"""Digests of a party's data change with what they are of, and with nothing else."""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace

import pytest
import torch

from splitvfl.data import digests
from splitvfl.data.columns import NO_RECORDS, Columns, PartyData, Records
from splitvfl.data.digests import changed_data, data_digests, refuse_changed_data
from splitvfl.errors import DataError


def records(*, start: int = 0, labels: bool = True) -> Records:
    numeric = torch.arange(6, dtype=torch.float32).reshape(3, 2) + start
    codes = torch.tensor([[1], [2], [0]])
    return Records(
        torch.arange(start, start + 3), Columns(numeric, codes), torch.tensor([0.0, 1.0, 1.0]) if labels else None
    )


def data(*, labels: bool = True) -> PartyData:
    train, test = records(labels=labels), records(start=3, labels=labels)
    return PartyData("bank", ("age", "sex"), ("age", "age missing"), (3,), train, test, ("sex",))


def test_the_digest_of_labels_is_that_of_their_bytes_in_the_order_of_ids() -> None:
    values = torch.tensor([0, 1, 1, 0, 1, 1], dtype=torch.float32).numpy().tobytes()
    assert data_digests(data())["labels"] == hashlib.sha256(b"<f4 (6,);" + values).hexdigest()
    assert "labels" not in data_digests(data(labels=False))


def test_another_order_or_division_is_told_as_such_and_only_alone() -> None:
    own = data()
    turned = replace(own, train=own.train.rows(torch.tensor([2, 0, 1])), test=own.test)
    exchanged = replace(own, train=own.test, test=own.train)
    for other in (turned, exchanged):
        before, now = {"bank": data_digests(own)}, {"bank": data_digests(other)}
        assert changed_data(before, now) == ["the order of bank's records, or which of them are test records"]
        now["bank"]["labels"] = "another"
        assert changed_data(before, now) == ["the labels of bank"]


def test_more_records_than_are_sorted_are_digested_as_they_lie(monkeypatch: pytest.MonkeyPatch) -> None:
    own = data()
    monkeypatch.setattr(digests, "_SORTED_BELOW", 6)
    expected = hashlib.sha256()
    for part in (own.train, own.test):
        expected.update(b"<i8 (3,);" + part.ids.numpy().tobytes())
    assert data_digests(own)["records"] == expected.hexdigest()


def changed(what: str) -> PartyData:
    """Return the data with one thing changed."""
    own = data()
    train = own.train
    assert train.labels is not None
    flipped = train.labels.clone()
    flipped[1] = 0.0
    moved = train.columns.numeric.clone()
    moved[2, 1] += 1e-6
    recoded = train.columns.categorical.clone()
    recoded[0, 0] = 2
    return {
        "label": replace(own, train=replace(train, labels=flipped)),
        "number": replace(own, train=replace(train, columns=Columns(moved, train.columns.categorical))),
        "category": replace(own, train=replace(train, columns=Columns(train.columns.numeric, recoded))),
        "test record": replace(own, test=replace(own.test, ids=own.test.ids + 1)),
        "name": replace(own, numeric_names=("age", "age is missing")),
        "vocabulary": replace(own, field_sizes=(4,)),
        "nothing": replace(own, train=replace(train, labels=train.labels.clone())),
    }[what]


@pytest.mark.parametrize(
    ("what", "said"),
    [
        ("label", ["the labels of bank"]),
        ("number", ["values in bank's columns"]),
        ("category", ["values in bank's columns"]),
        ("test record", ["the records of bank (their ids)"]),
        ("name", ["the names, kinds or encoding of bank's columns"]),
        ("vocabulary", ["the names, kinds or encoding of bank's columns"]),
        ("nothing", []),
    ],
)
def test_what_changed_is_named_with_its_party(what: str, said: list[str]) -> None:
    before, now = {"bank": data_digests(data())}, {"bank": data_digests(changed(what))}
    assert changed_data(before, now) == said
    if said:
        with pytest.raises(DataError, match="the data have changed") as refused:
            refuse_changed_data(before, now, where="runs/x", notify=lambda line: None)
        assert said[0] in str(refused.value)


def test_records_that_share_nothing_are_not_called_changed_in_value_too() -> None:
    other = replace(data(), train=records(start=9), numeric_names=("income", "x"))
    assert len(changed_data({"bank": data_digests(data())}, {"bank": data_digests(other)})) == 2


def test_parties_are_compared_with_themselves() -> None:
    before = {"bank": data_digests(data()), "lab": data_digests(data(labels=False))}
    now = json.loads(json.dumps(before))
    now["lab"]["columns"] = "another"
    assert changed_data(before, now) == ["values in lab's columns"]


@pytest.mark.parametrize("what", ["labels", "records"])
def test_scaling_that_follows_other_labels_or_records_is_not_called_a_change_of_columns(what: str) -> None:
    before = {"bank": data_digests(data()), "lab": data_digests(data(labels=False))}
    now = json.loads(json.dumps(before))
    now["bank"][what] = "another"
    for party in now.values():  # as where other records are training records
        party["columns"] = party["order"] = "another"
    said = changed_data(before, now)
    assert len(said) == 1
    assert f"the {what} of bank" in said[0]


def test_labels_are_told_of_where_an_encoding_follows_them() -> None:
    before = {"bank": data_digests(data())}
    now = {"bank": {**before["bank"], "labels": "another", "schema": "another", "columns": "another"}}
    assert changed_data(before, now) == [
        "the names, kinds or encoding of bank's columns",
        "the labels of bank",
    ]


def test_a_run_that_noted_no_data_goes_on_with_a_note() -> None:
    told: list[str] = []
    refuse_changed_data(None, {}, where="runs/x", notify=told.append)
    assert "is not checked" in told[0]


def test_dummies_of_a_padded_alignment_count() -> None:
    own = data()
    padded = replace(own, train=replace(own.train, real=torch.tensor([True, True, False])))
    assert changed_data({"bank": data_digests(own)}, {"bank": data_digests(padded)}) == [
        "the order of bank's records, or which of them are test records"
    ]


def test_no_columns_at_all_have_a_digest() -> None:
    parts = [replace(records(start=start), columns=Columns.of(torch.zeros(3, 0))) for start in (0, 3)]
    none = replace(data(), train=parts[0], test=parts[1])
    assert data_digests(none)["columns"] != data_digests(data())["columns"]


def test_no_test_records_at_all_have_a_digest() -> None:
    alone = replace(data(), test=NO_RECORDS)
    assert data_digests(alone)["columns"] != data_digests(data())["columns"]

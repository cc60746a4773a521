"""Categories that a reader of activations is asked for, and what it gets right of them, beside counts by hand."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor

from splitvfl.attacks import InverseNetworkAttack, RidgeAttack, StackedRidgeAttack
from splitvfl.data.columns import Columns, PartyData, Provenance, Records
from splitvfl.data.encoding import FittedCategories, FittedEncoding
from splitvfl.hooks import View
from splitvfl.leakage import asked_categories as module
from splitvfl.leakage.asked_categories import asked_categories
from splitvfl.leakage.column_figures import ColumnReading
from splitvfl.leakage.column_reading import ColumnReader, SentColumns

RECORDS, BATCH = 400, 50


def party(codes: Tensor, *, numbers: Tensor | None = None, **more: Any) -> PartyData:
    """A party with fields of these codes, ``(n, f)``, and numeric columns."""
    numeric = torch.zeros(len(codes), 0) if numbers is None else numbers
    train = Records(torch.arange(len(codes)) + 1_000, Columns(numeric, codes))
    names = tuple(f"n{place}" for place in range(numeric.shape[1]))
    fields = tuple(f"f{place}" for place in range(codes.shape[1]))
    sizes = tuple(int(column.max()) + 1 for column in codes.T)
    return PartyData("lab", (*names, *fields), names, sizes, train, train, field_names=fields, **more)


def drawn(shares: list[float], *, seed: int = 0, records: int = RECORDS) -> Tensor:
    """Codes from 1 with these shares, to the record, in a random order."""
    counts = [round(share * records) for share in shares]
    codes = torch.repeat_interleave(torch.arange(len(shares)) + 1, torch.tensor(counts))
    return codes[torch.randperm(len(codes), generator=torch.Generator().manual_seed(seed))]


def test_every_category_of_a_field_with_few_has_an_indicator() -> None:
    codes = torch.stack([drawn([0.5, 0.3, 0.2]), drawn([0.9, 0.1], seed=1)], dim=1)
    numbers = torch.randn(RECORDS, 2, generator=torch.Generator().manual_seed(0))
    data = party(codes, numbers=numbers)
    asked = asked_categories(data)
    found = asked.beside(data.train.columns)
    assert torch.equal(found[:, :2], numbers)
    assert [(one.column, one.places) for one in asked.fields] == [("f0", (2, 3, 4)), ("f1", (5, 6))]
    assert asked.width == 5
    for group, own in zip(asked.fields, codes.T, strict=True):
        indicators = found[:, list(group.places)]
        assert bool((indicators.sum(dim=1) == 1).all())
        # Each column is the indicator of one code, and no two of the same.
        told = [{int(code) for code in own[column.bool()]} for column in indicators.T]
        assert sorted(code for codes_of in told for code in codes_of) == sorted(set(own.tolist()))


def test_rare_categories_are_others_and_fields_of_too_many_are_left_out() -> None:
    few, many = [0.019] * 50, [1 / 400] * 400
    rare = [0.5, 0.47, *([0.0025] * 12)]  # 3 % have one of twelve
    assert asked_categories(party(drawn(few)[:, None])).too_many == ("f0",)
    assert asked_categories(party(drawn(many)[:, None])).too_many == ("f0",)
    assert asked_categories(party(torch.ones(RECORDS, 1, dtype=torch.int64))).single == ("f0",)
    codes = drawn(rare)[:, None]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "MOST_CATEGORIES", 5)
        asked = asked_categories(party(codes))
        patch.setattr(module, "RARE_SHARE", 0.02)
        assert asked_categories(party(codes)).too_many == ("f0",)
    counts = Counter(codes[:, 0].tolist())
    own = [code for code, _ in counts.most_common(2)]
    found = asked.beside(Columns(torch.zeros(RECORDS, 0), codes))
    assert found.shape == (RECORDS, 5)
    assert found.sum(dim=0)[:2].tolist() == [counts[code] for code in own]
    assert found.sum(dim=0)[4].item() == sum(counts.values()) - sum(sorted(counts.values())[-4:])
    # What no training record has is one of the others; of a field without others it is none of them.
    new = Columns(torch.zeros(1, 0), torch.tensor([[99]]))
    assert asked.beside(new).tolist() == [[0, 0, 0, 0, 1]]
    assert asked_categories(party(drawn([0.5, 0.5])[:, None])).beside(new).tolist() == [[0, 0]]


def test_codes_are_counted_piece_by_piece(monkeypatch: pytest.MonkeyPatch) -> None:
    data = party(torch.stack([drawn([0.5, 0.3, 0.2]), drawn([0.9, 0.1], seed=1)], dim=1))
    whole = asked_categories(data).beside(data.train.columns)
    monkeypatch.setattr(module, "_PIECE", 7)
    assert torch.equal(asked_categories(data).beside(data.train.columns), whole)


class Answer:
    """Says a number of its own for every column, from what was sent."""

    name: ClassVar[str] = "answer"
    target: ClassVar[str] = "features"
    needs: ClassVar[frozenset[str]] = frozenset({"received_activation", "auxiliary"})
    known_share: ClassVar[float] = 0.2

    def __call__(self, view: View, /) -> Tensor:
        return view.received_activation


def read(data: PartyData, attack: Any, message: Tensor, *, epochs: int = 1) -> tuple[ColumnReader, list[Any]]:
    """Show an attack the same message of every record in epochs of batches; with what was logged at the last."""
    asked = asked_categories(data)
    one = ColumnReader(attack, SentColumns(names=data.numeric_names, train=data.train, categories=asked), seed=5)
    logged: list[Any] = []
    for epoch in range(epochs):
        order = torch.randperm(RECORDS, generator=torch.Generator().manual_seed(epoch))
        for step, rows in enumerate(order.split(BATCH)):
            columns, ids = data.train.columns.rows(rows), data.train.ids[rows]
            one.see(message[rows], columns, ids, party="clinic", step=epoch * 8 + step)
        logged.append(one.scalars("lab", epoch_ends=True))
    return one, logged


def reading(one: ColumnReader) -> ColumnReading:
    found = one.reading()
    assert found is not None
    return found


def test_what_is_right_and_most_frequent_are_counts_of_records_that_are_not_known() -> None:
    codes = drawn([0.5, 0.3, 0.2])
    data = party(codes[:, None], numbers=torch.randn(RECORDS, 1, generator=torch.Generator().manual_seed(3)))
    places = {code: place for place, (code, _) in enumerate(Counter(codes.tolist()).most_common())}
    said = torch.randn(RECORDS, 4, generator=torch.Generator().manual_seed(4))  # a number and three categories
    one, logged = read(data, Answer(), said, epochs=2)
    known = set(one.known.tolist())
    assert len(known) == 80
    judged = [row for row in range(RECORDS) if row not in known]
    hits = [max(range(3), key=lambda place: float(said[row, 1 + place])) == places[int(codes[row])] for row in judged]
    right = sum(hits) / len(judged)
    commonest = max(Counter(int(codes[row]) for row in judged).values()) / len(judged)
    found = reading(one)
    (field,) = (column for column in found.columns if column.column == "f0")
    assert (field.right, field.commonest) == pytest.approx((right, commonest))
    assert field.share == max(0.0, (right - commonest) / (1 - commonest)) == 0.0
    assert {column.column: column.right for column in found.columns}["n0"] is None
    assert logged[-1]["categories_right/lab/answer/f0"] == pytest.approx(right)
    assert logged[-1]["categories_commonest/lab/answer/f0"] == pytest.approx(commonest)
    assert not {tag for tag in one.scalars("lab", epoch_ends=False) if tag.startswith("categories")}
    # Of all of a record's messages the mean was the same.
    assert field.accumulated == pytest.approx(field.share)
    assert found.share == pytest.approx(sum(column.share for column in found.columns) / 2)


def test_who_answers_the_most_frequent_for_all_reads_nothing_and_who_is_always_right_everything() -> None:
    codes = drawn([0.7, 0.2, 0.1])
    data = party(codes[:, None])
    truth = asked_categories(data).beside(data.train.columns)
    always = torch.zeros(RECORDS, 3)
    always[:, 0] = 1.0  # the first indicator is that of the most frequent one
    for said, share in ((always, 0.0), (truth, 1.0), (0.5 * truth + 7.0, 1.0)):
        (field,) = reading(read(data, Answer(), said)[0]).columns
        assert field.share == pytest.approx(share, abs=1e-12)
    # Half of those of the others: right is p + (1 - p) / 2 if these are drawn evenly; here they are counted.
    half = torch.where((torch.arange(RECORDS) % 2 == 0)[:, None], truth, always)
    one, _ = read(data, Answer(), half)
    (field,) = reading(one).columns
    judged = [row for row in range(RECORDS) if row not in set(one.known.tolist())]
    others = [row for row in judged if not bool(truth[row, 0])]
    assert field.share == pytest.approx(sum(row % 2 == 0 for row in others) / len(others))


OF_STEPS = pytest.param(InverseNetworkAttack, marks=pytest.mark.slow(reason="hundreds of steps for each message"))
READERS = [RidgeAttack, OF_STEPS, StackedRidgeAttack]


@pytest.mark.parametrize("kind", READERS)
def test_readers_find_categories_that_are_sent_in_clear_and_none_where_nothing_is(kind: Any) -> None:
    codes = torch.stack([drawn([0.5, 0.3, 0.2]), drawn([0.6, 0.4], seed=1)], dim=1)
    data = party(codes)
    clear = asked_categories(data).beside(data.train.columns)
    mixing = torch.randn(5, 5, generator=torch.Generator().manual_seed(1))
    found = reading(read(data, kind(known_share=0.3), clear @ mixing, epochs=2)[0])
    assert {one.right for one in found.columns} == {1.0}
    assert (found.share, found.told, found.accumulated) == (1.0, 2, 1.0)
    noise = torch.randn(RECORDS, 5, generator=torch.Generator().manual_seed(2))
    found = reading(read(data, kind(known_share=0.3), noise, epochs=2)[0])
    for one in found.columns:
        # A standard error of what 280 records are right by chance is at most .03. Who chooses among many maps answers
        # less often right than the most frequent one is, and reads nothing all the same.
        assert one.right is not None
        assert one.commonest is not None
        assert one.right < one.commonest + 0.05
        assert one.right > one.commonest - 0.15 or kind is StackedRidgeAttack
        assert one.share < 0.1


def test_one_hot_columns_are_judged_as_categories_too_and_counted_as_columns() -> None:
    codes = drawn([0.5, 0.3, 0.2])
    onehot = torch.nn.functional.one_hot(codes - 1).float()
    encoding = FittedEncoding(
        columns=(FittedCategories(column="sex", kind="text", values=("a", "b", "c"), onehot=True),)
    )
    data = replace(
        party(torch.zeros(RECORDS, 0, dtype=torch.int64), numbers=onehot, provenance=Provenance(encoding=encoding)),
        numeric_names=("sex=a", "sex=b", "sex=c"),
    )
    message = onehot + torch.randn(RECORDS, 3, generator=torch.Generator().manual_seed(0))
    one, logged = read(data, Answer(), message)
    found = reading(one)
    assert [column.column for column in found.columns if column.right is not None] == []
    assert len(found.columns) == 3
    assert found.share == pytest.approx(sum(column.share for column in found.columns) / 3)
    (sex,) = found.one_hot
    judged = torch.tensor([row for row in range(RECORDS) if row not in set(one.known.tolist())])
    right = (message[judged].argmax(dim=1) == codes[judged] - 1).double().mean().item()
    commonest = max(Counter(codes[judged].tolist()).values()) / len(judged)
    assert found.in_one_hot == ["sex=a", "sex=b", "sex=c"]
    assert (sex.column, sex.right, sex.commonest) == ("sex", pytest.approx(right), pytest.approx(commonest))
    assert logged[0]["categories_right/lab/answer/sex"] == pytest.approx(right)


def test_it_goes_on_from_its_saved_state() -> None:
    data = party(drawn([0.5, 0.3, 0.2])[:, None])
    said = torch.randn(RECORDS, 3, generator=torch.Generator().manual_seed(4))
    one, _ = read(data, Answer(), said)
    sent = SentColumns(names=(), train=data.train, categories=asked_categories(data))
    other = ColumnReader(Answer(), sent, seed=5)
    other.load_state_dict(one.state_dict())
    assert other.reading() == one.reading()

"""What is read of columns in activations, beside sums that are written out."""

from __future__ import annotations

from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor

from splitvfl.attacks import RidgeAttack
from splitvfl.data.columns import Columns, Records
from splitvfl.errors import ArgumentError, AttackRefused, HookError
from splitvfl.hooks import View, known_share_of, reads_activations, seat_of
from splitvfl.leakage.column_reading import ColumnReader

RECORDS, KNOWN, BATCH = 60, 15, 20
NAMES = ("age", "income", "still")


class Guess:
    """Estimates every column by a number, one more at every step."""

    name: ClassVar[str] = "guess"
    seat: ClassVar[str] = "active"
    target: ClassVar[str] = "features"
    needs: ClassVar[frozenset[str]] = frozenset({"received_activation", "auxiliary"})
    known_share: ClassVar[float] = KNOWN / RECORDS

    def __init__(self) -> None:
        self.views: list[View] = []

    def __call__(self, view: View, /) -> Tensor:
        self.views.append(view)
        return view.received_activation[:, :1].double() * 0.5 + torch.zeros(3)


def records() -> Records:
    random = torch.Generator().manual_seed(0)
    numbers = torch.randn(RECORDS, 3, generator=random) * torch.tensor([1.0, 7.0, 0.0]) + torch.tensor([0.0, 5.0, 2.0])
    return Records(torch.randperm(RECORDS, generator=random) + 100, Columns.of(numbers))


TRAIN = records()


def reader(attack: Any, **options: Any) -> ColumnReader:
    return ColumnReader(attack, names=NAMES, train=TRAIN, seed=3, **options)


def message(rows: Tensor, step: int) -> Tensor:
    """The first column, and what says which step it is."""
    return torch.stack([TRAIN.columns.numeric[rows, 0], torch.full((len(rows),), float(step))], dim=1)


def shown(one: ColumnReader, rows: Tensor, step: int) -> None:
    columns = TRAIN.columns.numeric[rows]
    one.see(message(rows, step), columns, TRAIN.ids[rows], party="clinic", step=step)


def batches(epoch: int) -> list[Tensor]:
    order = torch.randperm(RECORDS, generator=torch.Generator().manual_seed(epoch))
    return list(order.split(BATCH))


def train(one: ColumnReader, epochs: int) -> list[dict[str, float]]:
    logged, step = [], 0
    for epoch in range(epochs):
        for place, rows in enumerate(batches(epoch)):
            shown(one, rows, step)
            step += 1
            logged.append(one.scalars("lab", epoch_ends=place == 2))
    return logged


def test_shares_are_those_of_a_sum_over_all_records_that_are_not_known() -> None:
    attack = Guess()
    one = reader(attack)
    logged = train(one, 2)
    known = set(one.known.tolist())
    assert len(known) == KNOWN
    columns, variance = TRAIN.columns.numeric.double(), TRAIN.columns.numeric.double().var(dim=0, correction=0)

    def share(rows: list[int], place: int) -> float:
        error = np_mean([(columns[row, 0] * 0.5 - columns[row, place]) ** 2 for row in rows])
        return max(0.0, 1 - error / variance[place].item())

    def np_mean(values: list[Any]) -> float:
        return float(sum(values)) / len(values)

    judged = [row for rows in batches(1) for row in rows.tolist() if row not in known]
    found = one.reading()
    assert found is not None
    assert found.records == len(judged) == RECORDS - KNOWN
    assert {column.column: column.share for column in found.columns} == pytest.approx(
        {"age": share(judged, 0), "income": share(judged, 1)}
    )
    assert [column.column for column in found.columns] == ["age", "income"], "what is told most comes first"
    assert found.share == pytest.approx((share(judged, 0) + share(judged, 1)) / 2)
    assert (found.told, found.left_out, found.known_share) == (1, ["still"], KNOWN / RECORDS)
    # The guess depends on the record only, so that its mean over the run is each of them.
    assert found.accumulated == pytest.approx(found.share)
    assert found.followed == RECORDS - KNOWN
    last = [row for row in batches(1)[2].tolist() if row not in known]
    assert logged[-1]["feature_leak/lab/guess"] == pytest.approx((share(last, 0) + share(last, 1)) / 2)
    assert logged[-1].keys() == {"feature_leak/lab/guess", "feature_leak_accumulated/lab/guess"}
    assert logged[-2].keys() == {"feature_leak/lab/guess"}


def test_what_is_known_is_shown_and_never_judged() -> None:
    attack = Guess()
    one = reader(attack)
    train(one, 1)
    known = set(TRAIN.ids[one.known].tolist())
    place = {int(number): row for row, number in enumerate(TRAIN.ids)}
    for step, view in enumerate(attack.views):
        assert (view.party, view.step) == ("clinic", step)
        assert not known & set(view.ids.tolist())
        told = view.auxiliary
        rows = torch.tensor([row for row in batches(0)[step].tolist() if int(TRAIN.ids[row]) in known])
        assert torch.equal(told.columns, TRAIN.columns.numeric[rows])
        assert torch.equal(told.activation, message(rows, step))
        assert torch.equal(told.ids, TRAIN.ids[rows])
        mine = torch.tensor([place[number] for number in view.ids.tolist()])
        assert torch.equal(view.received_activation, message(mine, step))


def test_a_message_with_fewer_than_two_known_records_is_left_out() -> None:
    attack = Guess()
    one = reader(attack)
    others = torch.tensor([row for row in range(RECORDS) if row not in set(one.known.tolist())])
    shown(one, torch.cat([one.known[:1], others[:5]]), 0)
    shown(one, one.known[:4], 1)
    assert not attack.views
    assert one.reading() is None
    assert one.scalars("lab", epoch_ends=True) == {}


def test_it_goes_on_from_its_saved_state() -> None:
    straight, first = reader(Guess()), reader(Guess())
    train(straight, 2)
    rows = batches(0)
    for step, some in enumerate(rows):
        shown(first, some, step)
        first.scalars("lab", epoch_ends=step == 2)
    second = reader(Guess())
    second.load_state_dict(first.state_dict())
    for step, some in enumerate(batches(1)):
        shown(second, some, step + 3)
        second.scalars("lab", epoch_ends=step == 2)
    assert second.reading() == straight.reading()


class Refusing(Guess):
    def __call__(self, view: View, /) -> Tensor:
        super().__call__(view)
        raise AttackRefused("of such columns it knows nothing")


def test_an_attack_that_refuses_is_asked_once() -> None:
    attack, said = Refusing(), []
    train(reader(attack, refused=said.append), 1)
    assert (len(attack.views), said) == (1, ["of such columns it knows nothing"])


class Wrong(Guess):
    def __call__(self, view: View, /) -> Tensor:
        return torch.zeros(len(view.ids), 2)


def test_an_estimate_of_another_shape_is_an_error() -> None:
    with pytest.raises(ArgumentError, match=r"guess: expected an estimate of \(.*, 3\)"):
        train(reader(Wrong()), 1)


def test_ridge_reads_a_column_that_is_sent_as_it_is_and_no_other() -> None:
    one = reader(RidgeAttack(known_share=0.5))
    train(one, 1)
    found = one.reading()
    assert found is not None
    shares = {column.column: column.share for column in found.columns}
    assert shares["age"] > 0.999
    assert shares["income"] < 0.3


class Nowhere(Guess):
    seat = "passive"


class Knowing(Guess):
    known_share = 1.5


def test_a_hook_says_where_it_sits_and_what_it_knows() -> None:
    assert seat_of(Guess()) == "active"
    assert reads_activations(Guess())
    with pytest.raises(HookError, match="guess: seat must be 'active' where target is 'features', got 'passive'"):
        seat_of(Nowhere())
    with pytest.raises(HookError, match=r"known_share must be above 0 and below 1, got 1\.5"):
        known_share_of(Knowing())

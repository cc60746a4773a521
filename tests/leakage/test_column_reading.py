"""What is read of columns in activations, beside sums that are written out."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor

from splitvfl.attacks import RidgeAttack
from splitvfl.data.columns import Columns, Records
from splitvfl.errors import ArgumentError, AttackRefused, HookError
from splitvfl.hooks import View, known_share_of, most_records_of, reads_activations, seat_of
from splitvfl.leakage import column_reading, read_messages
from splitvfl.leakage.column_errors import ColumnErrors
from splitvfl.leakage.column_reading import ColumnReader, SentColumns

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
    of_sent = {one.name for one in fields(SentColumns)} & options.keys()
    sent = SentColumns(names=NAMES, train=TRAIN, **{name: options.pop(name) for name in of_sent})
    return ColumnReader(attack, sent, seed=3, **options)


def message(rows: Tensor, step: int) -> Tensor:
    """The first column, and what says which step it is."""
    return torch.stack([TRAIN.columns.numeric[rows, 0], torch.full((len(rows),), float(step))], dim=1)


def shown(one: ColumnReader, rows: Tensor, step: int) -> None:
    columns = TRAIN.columns.numeric[rows]
    one.see(message(rows, step), Columns.of(columns), TRAIN.ids[rows], party="clinic", step=step)


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
    columns = TRAIN.columns.numeric.double()

    def share(rows: list[int], place: int) -> float:
        error = np_mean([(columns[row, 0] * 0.5 - columns[row, place]) ** 2 for row in rows])
        middle = np_mean([columns[row, place] for row in rows])
        return max(0.0, 1 - error / np_mean([(columns[row, place] - middle) ** 2 for row in rows]))

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


def test_estimating_means_recovers_nothing_whatever_is_known() -> None:
    """An outlier among the known records is in no variance that estimates are compared with."""
    random = torch.Generator().manual_seed(1)
    heavy = torch.randn(RECORDS, 3, generator=random) / torch.rand(RECORDS, 3, generator=random)
    train = Records(torch.arange(RECORDS), Columns.of(heavy))

    class Mean(Guess):
        def __call__(self, view: View, /) -> Tensor:
            return heavy.mean(dim=0).expand(len(view.ids), -1)

    for seed in range(20):
        one = ColumnReader(Mean(), SentColumns(names=NAMES, train=train), seed=seed)
        one.see(heavy, Columns.of(heavy), train.ids, party="clinic", step=0)
        found = one.reading()
        assert found is not None
        assert found.share == found.accumulated == 0.0
        assert one.share_of(heavy.mean(dim=0).expand(5, -1), heavy[:5]).share == 0.0


def test_a_column_that_is_the_same_in_every_judged_record_has_nothing_to_recover() -> None:
    """It may vary in others; what rounding leaves of a variance is not taken for one."""
    errors = ColumnErrors(1)
    truth = torch.full((7, 1), 0.1, dtype=torch.float64)
    errors.add(torch.zeros_like(truth), truth)
    assert errors.variance.item() == 0.0
    errors.add(torch.zeros_like(truth), truth + 1e-3)
    assert errors.variance.item() == pytest.approx(0.25e-6)


def test_records_that_are_nobodys_or_never_sent_are_neither_known_nor_judged() -> None:
    among = torch.arange(0, RECORDS, 2)
    attack = Guess()
    one = reader(attack, among=among)
    train(one, 1)
    real = set(TRAIN.ids[among].tolist())
    seen = {number for view in attack.views for part in (view.ids, view.auxiliary.ids) for number in part.tolist()}
    assert seen <= real
    assert set(TRAIN.ids[one.known].tolist()) | set(TRAIN.ids[one.followed].tolist()) == real
    found = one.reading()
    assert found is not None
    assert found.followed == found.records == sum(len(view.ids) for view in attack.views)


class Sampled(Guess):
    sampled: ClassVar[bool] = True


@pytest.mark.parametrize(
    ("steps", "every"),
    [(10, 1), (5, 1), (3, 2), (2, 1), (1, 1)],  # of 60 records in messages of 6, 12, 20, 30 and 60
)
def test_a_sampled_attack_is_called_the_less_often_the_larger_messages_are(
    steps: int, every: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in (("_CALLED", 12), ("_JUDGED", 4), ("FEWEST", 0)):
        for module in (column_reading, read_messages):
            monkeypatch.setattr(module, name, value, raising=False)
    size = RECORDS // steps
    for kind, apart in ((Sampled, every), (Guess, 1)):
        attack = kind()
        one = reader(attack, epoch_steps=steps)
        for epoch in range(3):
            order = torch.randperm(RECORDS, generator=torch.Generator().manual_seed(epoch))
            for place, rows in enumerate(order.split(size)):
                shown(one, rows, epoch * steps + place)
        called = [view.step for view in attack.views]
        assert called == [step for step in range(3 * steps) if step % steps % apart == apart - 1]
        assert {step // steps for step in called} == {0, 1, 2}, "in every epoch"


def test_records_that_judge_a_sampled_attack_are_from_all_of_a_message(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where records lie in shards, a message has those of the first shard first."""
    for name, value in (("_CALLED", 5), ("_JUDGED", 4), ("FEWEST", 0), ("_FOLLOWED", 0)):
        for module in (column_reading, read_messages):
            monkeypatch.setattr(module, name, value, raising=False)
    attack = Sampled()
    one = reader(attack, epoch_steps=3)
    order = torch.arange(RECORDS).split(BATCH)
    for step in range(60):
        shown(one, order[step % 3], step)
    place = {int(number): row % BATCH for row, number in enumerate(TRAIN.ids)}
    places = [place[number] for view in attack.views for number in view.ids.tolist()]
    assert all(len(view.ids) == 4 for view in attack.views)
    # Uniform on 20 places less those known: the mean of 80 is off by .65, and of the first four it would be below 3.
    assert abs(sum(places) / len(places) - 9.5) < 4


def test_a_sampled_attack_gets_known_records_of_the_messages_in_between(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its calls are 3 steps apart; 10 known records are held, which are those of two messages or three."""
    for name, value in (("_CALLED", 2), ("HELD", 10), ("_JUDGED", 1)):
        for module in (column_reading, read_messages):
            monkeypatch.setattr(module, name, value, raising=False)
    attack, whole = Sampled(), Sampled()
    one, undisturbed = (reader(each, epoch_steps=12) for each in (attack, whole))
    known = {int(number) for number in TRAIN.ids[one.known]}
    parts = [rows for epoch in range(2) for rows in batches_of(epoch, 5)]
    for step, rows in enumerate(parts):
        shown(undisturbed, rows, step)
        if step == 10:  # as a run that goes on
            state, one = one.state_dict(), reader(attack, epoch_steps=12)
            one.load_state_dict(state)
        shown(one, rows, step)
    assert one.state_dict()["sums"].equal(undisturbed.state_dict()["sums"])
    assert one.reading() == undisturbed.reading()
    last = -1
    for view in attack.views:
        between = [parts[step] for step in range(last + 1, view.step)][::-1]
        ids = [number for rows in between for number in TRAIN.ids[rows].tolist() if number in known]
        assert view.earlier_auxiliary.ids.tolist() == ids[:10]
        held = view.earlier_auxiliary
        rows = torch.tensor([int((TRAIN.ids == number).nonzero()) for number in ids[:10]], dtype=torch.int64)
        assert torch.equal(held.columns, TRAIN.columns.numeric[rows])
        assert torch.equal(held.activation[:, 0], held.columns[:, 0])  # as it was received
        followed = set(TRAIN.ids[one.followed].tolist())
        assert len(set(view.ids.tolist()) - followed) <= 1
        last = view.step


def batches_of(epoch: int, size: int) -> list[Tensor]:
    order = torch.randperm(RECORDS, generator=torch.Generator().manual_seed(epoch))
    return list(order.split(size))


TEST = Records(torch.arange(1_000, 1_050), Columns.of(torch.randn(50, 3, generator=torch.Generator().manual_seed(8))))


def evaluated(one: ColumnReader, piece: int, rows: Tensor, *, step: int = 6) -> None:
    columns = TEST.columns.rows(rows)
    sent = torch.stack([columns.numeric[:, 0], torch.full((len(rows),), -1.0)], dim=1)
    seen = (sent, columns, TEST.ids[rows])
    one.see_later(*seen, party="clinic", step=step, phase="evaluation", piece=piece)


def test_evaluated_records_are_read_with_the_known_ones_that_came_last() -> None:
    calls: list[View] = []

    class Shared(Guess):
        def __init__(self) -> None:
            self.views = calls

        def __deepcopy__(self, memo: Any) -> Shared:
            return self

    one, undisturbed = reader(Shared()), reader(Guess())
    train(one, 2)
    train(undisturbed, 2)
    del calls[:]
    assert "feature_leak_evaluation/lab/guess" not in one.scalars("lab", epoch_ends=False)
    pieces = torch.arange(50).split(10)
    for piece, rows in enumerate(pieces):
        evaluated(one, piece, rows)
    # Every known record, once, as it was received in the second epoch; of five messages four.
    assert [view.ids.tolist() for view in calls] == [TEST.ids[pieces[piece]].tolist() for piece in (0, 1, 2, 4)]
    steps = {int(TRAIN.ids[row]): 3 + place for place, rows in enumerate(batches(1)) for row in rows.tolist()}
    for view in calls:
        told = view.auxiliary
        assert sorted(told.ids.tolist()) == sorted(TRAIN.ids[one.known].tolist())
        assert told.activation[:, 1].tolist() == [steps[number] for number in told.ids.tolist()]
        places = [int((TRAIN.ids == number).nonzero()) for number in told.ids.tolist()]
        assert torch.equal(told.columns, TRAIN.columns.numeric[places])
        assert view.step == 6
    columns = torch.cat([TEST.columns.numeric[pieces[piece]] for piece in (0, 1, 2, 4)]).double()
    off = (columns - columns[:, :1] * 0.5).square().mean(dim=0)
    expected = (1 - off / columns.var(dim=0, correction=0)).clamp_min(0.0)
    found, before = one.reading(), undisturbed.reading()
    assert found is not None
    assert found.evaluation is not None
    assert found.evaluation.records == 40
    shares = {column.column: column.share for column in found.evaluation.columns}
    assert shares == pytest.approx({"age": expected[0].item(), "income": expected[1].item()})
    assert found.evaluation.share == pytest.approx(expected[:2].mean().item())
    assert found.evaluation.told == int((expected[:2] > 0.5).sum())
    assert replace(found, evaluation=None) == before, "training is read as without evaluations"
    assert one.scalars("lab", epoch_ends=False)["feature_leak_evaluation/lab/guess"] == found.evaluation.share
    assert "feature_leak_evaluation/lab/guess" not in one.scalars("lab", epoch_ends=False)
    # Another evaluation takes the place of the last, and a saved state goes on with it.
    evaluated(one, 0, pieces[3], step=9)
    other = reader(Guess())
    other.load_state_dict(one.state_dict())
    assert other.reading() == one.reading()
    assert one.reading().evaluation.records == 10  # type: ignore[union-attr]
    evaluated(other, 1, pieces[1], step=9)
    assert other.reading().evaluation.records == 20  # type: ignore[union-attr]


def test_nobody_who_is_known_or_nobodys_is_judged_in_a_prediction_and_few_are_no_reason_to_guess() -> None:
    one = reader(Guess(), nobodys=TRAIN.ids[:20])
    rows = torch.arange(RECORDS)
    seen = (message(rows, 0), TRAIN.columns, TRAIN.ids)
    one.see_later(*seen, party="clinic", step=0, phase="prediction", piece=0)
    shown(one, rows, 0)
    found = one.reading()
    assert found is not None
    assert found.prediction is not None
    assert found.prediction.records == len(set(range(20, RECORDS)) - set(one.known.tolist()))
    # Before it has met anybody whom it knows it is not asked.
    new = reader(Guess())
    evaluated(new, 0, torch.arange(10))
    shown(new, rows, 0)
    assert new.reading().evaluation is None  # type: ignore[union-attr]


class Telling:
    """Knows no record's columns."""

    name: ClassVar[str] = "telling"
    target: ClassVar[str] = "features"
    needs: ClassVar[frozenset[str]] = frozenset({"received_activation"})

    def __call__(self, view: View, /) -> Tensor:
        return view.received_activation[:, :1].double() + torch.zeros(3)


def test_an_attack_that_knows_nobody_is_judged_by_all() -> None:
    one = reader(Telling())
    train(one, 1)
    found = one.reading()
    assert found is not None
    assert (found.records, found.known_share) == (RECORDS, 0.0)
    assert found.columns[0].share == pytest.approx(1.0)


def test_a_message_with_fewer_than_three_known_records_is_left_out() -> None:
    attack = Guess()
    one = reader(attack)
    others = torch.tensor([row for row in range(RECORDS) if row not in set(one.known.tolist())])
    shown(one, torch.cat([one.known[:2], others[:5]]), 0)
    shown(one, one.known[:4], 1)
    assert not attack.views
    assert one.reading() is None
    assert one.unjudged.startswith("2 of 2 messages had fewer than 3 of the records whose columns it knows")
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


class Slow(Guess):
    most_records = 4


def test_an_attack_that_asks_for_few_records_gets_few_and_is_judged_by_these() -> None:
    attacks = [Slow(), Slow()]
    for attack in attacks:
        train(reader(attack), 2)
    asked = [[set(view.ids.tolist()) for view in attack.views] for attack in attacks]
    assert asked[0] == asked[1], "they are drawn by a seed"
    assert [len(ids) for ids in asked[0]] == [4] * 6
    assert len(set.union(*asked[0])) > 12, "at each message anew"
    one = reader(Slow())
    train(one, 2)
    found = one.reading()
    assert found is not None
    assert found.records == 12
    known = set(TRAIN.ids[one.known].tolist())
    for view, rows in zip(attacks[0].views, [*batches(0), *batches(1)], strict=True):
        sent = set(TRAIN.ids[rows].tolist())
        assert set(view.ids.tolist()) <= sent - known
        assert set(view.auxiliary.ids.tolist()) == sent & known


class Greedy(Guess):
    most_records = 0


def test_to_be_asked_for_nobody_is_a_mistake() -> None:
    with pytest.raises(HookError, match="guess: most_records must be a whole number of at least 1, got 0"):
        most_records_of(Greedy())


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

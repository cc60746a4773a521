"""What activations and the label party's own columns tell together, and of whom every column is known."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from splitvfl import Trainer
from splitvfl.attacks import InverseNetworkAttack, PseudoClientAttack, RidgeAttack, StackedRidgeAttack
from splitvfl.data.columns import Columns
from splitvfl.exchange.one_way import OneWay
from splitvfl.hooks import View, Weighed
from splitvfl.leakage.asked_categories import AskedCategories, asked_categories
from splitvfl.leakage.categories import CategoryGroup
from splitvfl.leakage.column_figures import ColumnReading
from splitvfl.leakage.column_reading import ColumnReader, SentColumns
from splitvfl.party import kept
from splitvfl.party.party import ActiveParty, PassiveParty
from splitvfl.penalties import DistanceCorrelation
from tests.builders import party_data, seeded

RECORDS = 400
RIDGE = RidgeAttack(known_share=0.3)


def trainer(*names: str, width: int = 2, own: int = 3, penalties: Any = (), **settings: Any) -> Trainer:
    """Five columns at each partner behind one layer of so many outputs, and a label party with some of its own."""
    passives = {
        name: PassiveParty(
            party_data(name, width=5, train=RECORDS),
            seeded(f"bottom of {name}", lambda: nn.Linear(5, width)),
            penalties=penalties,
        )
        for name in names or ("telecom",)
    }
    top = seeded("top", lambda: nn.Linear(width * len(passives) + own, 1))
    active = ActiveParty(party_data("bank", width=own, task="binary", train=RECORDS), top)
    return Trainer(active, passives, **{"attacks": [RIDGE], "batch_size": 50, "audit": False, **settings})


def reading(made: Trainer, party: str = "telecom", attack: str = "ridge") -> ColumnReading:
    (found,) = (one for one in made.column_readings(party) if one.attack == attack)
    return found


def numbers(made: Trainer, name: str) -> np.ndarray:
    party = made.active if name == "bank" else made.passives[name]
    return party.data.train.columns.numeric.double().numpy()


def sent(made: Trainer, name: str = "telecom") -> np.ndarray:
    with torch.no_grad():
        message: Tensor = made.passives[name].bottom(made.passives[name].data.train.columns.numeric)
    return message.double().numpy()


def least_squares(inputs: list[np.ndarray], truth: np.ndarray, known: np.ndarray) -> tuple[float, float]:
    """Return which share of variance ordinary least squares recovers of records that are not known, and of how many
    every column is within a tenth of its standard deviation."""
    rows = np.hstack([*inputs, np.ones((len(truth), 1))])
    weight = np.linalg.lstsq(rows[known], truth[known], rcond=None)[0]
    rest = [row for row in range(len(truth)) if row not in set(known.tolist())]
    off = rows[rest] @ weight - truth[rest]
    shares = 1 - (off**2).mean(axis=0) / truth[rest].var(axis=0)
    near = sum(
        all(abs(value) <= 0.1 * spread for value, spread in zip(row, truth.std(axis=0), strict=True)) for row in off
    )
    return float(np.maximum(shares, 0).mean()), near / len(rest)


@pytest.mark.parametrize("width", [2, 4, 5])
def test_own_columns_messages_and_both_are_what_least_squares_reads(
    width: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kept, "PIECE_ROWS", RECORDS)  # all is sent at once
    made = trainer(width=width, exchange=OneWay())
    made.fit(1)
    found = reading(made)
    known, truth = made.watch.readers["telecom"]["ridge"].known.numpy(), numbers(made, "telecom")
    own, message = numbers(made, "bank"), sent(made)
    expected = [least_squares(inputs, truth, known) for inputs in ([own], [message], [message, own])]
    expected[2] = tuple(map(max, *expected))  # who has both may leave one aside
    figures = [
        (found.without_messages, found.exact_without),
        (found.most, found.exact),
        (found.joint, found.exact_joint),
    ]
    for (share, exact), (expected_share, expected_exact) in zip(figures, expected, strict=True):
        assert share == pytest.approx(expected_share, abs=0.01)
        assert exact == pytest.approx(expected_exact, abs=0.02)
    assert found.exact_total == found.exact_joint
    assert (found.exact == 1.0) == (width == 5)


@pytest.mark.parametrize("own", [0, 3])
def test_what_other_partners_send_stands_beside_a_message(own: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kept, "PIECE_ROWS", RECORDS)
    made = trainer("telecom", "shop", "agency", own=own, exchange=OneWay())
    made.passives["agency"].data.train.columns.numeric.copy_(made.passives["telecom"].data.train.columns.numeric)
    made.fit(1)

    for name in ("telecom", "shop", "agency"):
        known, truth = made.watch.readers[name]["ridge"].known.numpy(), numbers(made, name)
        rows = [sent(made, party) for party in made.passives] + [numbers(made, "bank")] * (own > 0)
        share, exact = least_squares(rows, truth, known)
        found = reading(made, name)
        assert found.most is not None
        assert found.exact is not None
        # Of the same columns behind two layers of two outputs each, four directions of five are seen.
        assert found.joint == pytest.approx(max(share, found.most), abs=0.01)
        assert found.exact_joint == pytest.approx(max(exact, found.exact), abs=0.04)
    assert reading(made, "telecom").joint > reading(made, "telecom").most + 0.2  # type: ignore[operator]


def test_of_two_partners_both_are_read_jointly_in_every_step() -> None:
    made = trainer("telecom", "shop", own=0)
    made.passives["shop"].data.train.columns.numeric.copy_(made.passives["telecom"].data.train.columns.numeric)
    made.fit(2)
    for name in ("telecom", "shop"):
        found = reading(made, name)
        assert found.joint is not None
        assert found.joint > found.most + 0.2


def test_every_reader_that_regresses_reads_both_together_in_every_epoch() -> None:
    kinds = (RidgeAttack, InverseNetworkAttack, StackedRidgeAttack, PseudoClientAttack)
    made = trainer(attacks=[kind(known_share=0.3) for kind in kinds])
    made.fit(2)
    found = {one.attack: one for one in made.column_readings("telecom")}
    assert found["pseudo-client"].joint is None, "it has no use for columns beside what was sent"
    for name in ("ridge", "inverse-network", "stacked-ridge"):
        one = found[name]
        assert one.joint is not None
        assert one.joint > one.without_messages + 0.1  # type: ignore[operator]
        assert one.exact_joint is not None


def test_with_a_penalty_and_with_several_partners_the_same_figures_stand_there() -> None:
    made = trainer("shop", "telecom", penalties=[Weighed(DistanceCorrelation(), 0.3)])
    made.fit(1)
    for name in ("shop", "telecom"):
        found = reading(made, name)
        assert found.without_messages is not None
        assert found.joint is not None
        assert found.exact is not None
        assert found.joint > found.without_messages
    assert reading(made, "shop").joint != reading(made, "telecom").joint


def test_without_columns_of_its_own_there_is_nothing_to_add() -> None:
    made = trainer(own=0)
    made.fit(1)
    found = reading(made)
    assert (found.without_messages, found.joint, found.exact_without, found.exact_joint) == (0.0, None, 0.0, None)


class OfFields(nn.Module):
    """A top that looks the label party's categories up."""

    separate_active = True

    def __init__(self, width: int) -> None:
        super().__init__()
        self.line, self.table = nn.Linear(width, 1), nn.Embedding(4, 1)

    def forward(self, activation: Tensor, own: Columns) -> Tensor:
        scores: Tensor = self.line(activation) + self.table(own.categorical[:, 0])
        return scores


def test_categories_of_the_label_party_are_columns_of_its_own() -> None:
    """A field of three that says in which third the partner's first column is, at a label party without numbers."""
    lab = party_data("telecom", width=5, train=RECORDS)
    first = lab.train.columns.numeric[:, 0].contiguous()
    third = torch.bucketize(first, first.quantile(torch.tensor([1 / 3, 2 / 3])))[:, None] + 1
    plain = party_data("bank", width=0, task="binary", train=RECORDS)
    train, test = (
        replace(part, columns=Columns(part.columns.numeric, third[: part.count])) for part in (plain.train, plain.test)
    )
    data = replace(plain, field_sizes=(4,), field_names=("third",), train=train, test=test)
    passive = PassiveParty(lab, seeded("bottom", lambda: nn.Linear(5, 1)))
    made = Trainer(ActiveParty(data, OfFields(1)), {"telecom": passive}, attacks=[RIDGE], batch_size=50, audit=False)
    made.fit(1)
    found = reading(made)
    indicators = nn.functional.one_hot(third[:, 0] - 1, 3).double().numpy()
    known = made.watch.readers["telecom"]["ridge"].known.numpy()
    share, _ = least_squares([indicators], lab.train.columns.numeric.double().numpy(), known)
    assert found.without_messages == pytest.approx(share, abs=0.01)
    assert share > 0.2
    assert found.joint is not None
    assert found.joint > found.most + 0.1


class Off:
    """Estimates columns by what the message says, which is the truth and what it is off by."""

    name: ClassVar[str] = "off"
    seat: ClassVar[str] = "active"
    target: ClassVar[str] = "features"
    needs: ClassVar[frozenset[str]] = frozenset({"received_activation", "auxiliary"})
    known_share: ClassVar[float] = 0.1

    def __call__(self, view: View, /) -> Tensor:
        return view.received_activation


def test_a_record_is_exact_when_every_number_is_near_and_every_category_right() -> None:
    random = torch.Generator().manual_seed(0)
    data = party_data("lab", width=2, train=300)
    one_hot = nn.functional.one_hot(torch.randint(3, (300,), generator=random), 3).float()
    codes = torch.randint(1, 3, (300, 1), generator=random)
    numeric = torch.cat([data.train.columns.numeric, one_hot, torch.ones(300, 1)], dim=1)
    train = replace(data.train, columns=Columns(numeric, codes))
    names = ("a", "b", "x=0", "x=1", "x=2", "flat")
    whole = replace(data, numeric_names=names, field_sizes=(3,), field_names=("f",), train=train, test=train)
    asked = asked_categories(whole)
    categories = AskedCategories(
        asked.fields, (CategoryGroup("x", (2, 3, 4)),), asked.too_many, asked.single, asked._asked
    )
    truth = categories.beside(train.columns)
    spread = truth.double().std(dim=0, unbiased=False)
    off = 0.12 * torch.randn(truth.shape, generator=random) * spread.clamp_min(0.2)
    off[:, 2:5] *= 12  # a category is right although its zeros and ones are far off
    off[:, 5] = 7.0  # it does not vary, and nobody asks for it
    reader = ColumnReader(Off(), SentColumns(names=names, train=train, categories=categories), seed=1)
    reader.see(truth + off, train.columns, train.ids, party="clinic", step=0)
    expected = judged = wrong = 0
    for row in set(range(300)) - set(reader.known.tolist()):
        estimate = (truth + off)[row].double()
        right = all(abs(estimate[place] - truth[row, place]) <= 0.1 * spread[place] for place in (0, 1))
        category = all(int(estimate[some].argmax()) == int(truth[row, some].argmax()) for some in ([2, 3, 4], [6, 7]))
        expected, judged, wrong = expected + (right and category), judged + 1, wrong + (right and not category)
    found = reader.reading()
    assert found is not None
    assert found.exact == pytest.approx(expected / judged)
    assert expected > 20, "some are"
    assert wrong > 5, "and some fail by a category alone"


def test_a_checkpoint_goes_on_and_an_older_one_counts_nobody() -> None:
    made, other, older = trainer(), trainer(), trainer()
    made.fit(1)
    state = made.watch.readers["telecom"]["ridge"].state_dict()
    other.watch.readers["telecom"]["ridge"].load_state_dict(state)
    assert reading(other) == reading(made)
    cut = {name: value[:5] if name in ("epoch", "recent", "last", "worst") else value for name, value in state.items()}
    older.watch.readers["telecom"]["ridge"].load_state_dict({name: cut[name] for name in cut if name != "joint"})
    found = reading(older)
    assert (found.joint, found.share) == (None, reading(made).share)

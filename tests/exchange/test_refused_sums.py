"""An owner of a key that adds to what it opens, to see what is refused: how far it gets with one cell of a row."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial
from pathlib import Path

import pytest
import torch
from torch import Tensor

from splitvfl.crypto.engine import Engine
from splitvfl.crypto.integers import integers_to_tensor, tensor_to_integers
from splitvfl.crypto.keys import PrivateKey
from splitvfl.crypto.owner import Owner
from splitvfl.crypto.product_layout import ProductLayout
from splitvfl.errors import CryptoError, SumRefused
from splitvfl.exchange.coordinator import NAME, Coordinator
from splitvfl.exchange.paillier import EncryptedExchange
from splitvfl.exchange.residue import Residue
from splitvfl.exchange.taylor import Taylor
from splitvfl.messaging.conversation import converse
from splitvfl.party.refusals import MOST, Refusals, journal_of
from splitvfl.run.trainer import Trainer
from tests.builders import take_step
from tests.exchange.logistic import BATCH, RATE, SHORT, trainer_of, weights_of

WIDTHS = {"lab": 4, "shop": 2}


class Liar(Owner):
    """Encrypts the largest value for one record and zeros for all others, and adds to the first sum what it likes."""

    lie = 0
    answers = 0

    def encrypt(self, values: Tensor, layout: ProductLayout | None = None) -> Tensor:  # type: ignore[override]
        chosen = [SHORT.layout(BATCH, 1).value_size, *([0] * (len(values) - 1))]
        return super().encrypt(chosen, None)

    def open_masked(self, reply: Tensor, layout: ProductLayout) -> Tensor:
        type(self).answers += 1
        opened = tensor_to_integers(super().open_masked(reply, layout), layout.opened_bytes)
        opened[0] = (opened[0] + self.lie) % (1 << layout.opened_bits[0])
        return integers_to_tensor(opened, layout.opened_bytes)


class Lying(Engine):
    def owner(self, key: PrivateKey) -> Owner:
        return Liar(key)


@pytest.fixture(autouse=True)
def fresh() -> None:
    Liar.lie = Liar.answers = 0


def trained_by(folder: Path | None = None) -> Trainer:
    """A label party that lies, and a passive one that holds four columns."""
    by_party = {
        "bank": Residue(rows=BATCH, encryption=SHORT, engine=Lying),
        "lab": Residue(rows=BATCH, encryption=SHORT),
    }
    return trainer_of(by_party, {"lab": 4}, approximation="exact", log_dir=folder)  # type: ignore[arg-type]


def cell_and_limit(trainer: Trainer) -> tuple[float, int]:
    """What the first record of the first step holds in the first column, and the largest sum that is agreed."""
    rows = trainer.batches.epoch(0)[0]
    return trainer.passives["lab"].data.train.columns.numeric[rows][0, 0].item(), SHORT.layout(BATCH, 4).largest_sum


def lie_for(middle: float, limit: int) -> int:
    """What makes the sum one that is refused if the cell lies above a number."""
    layout = SHORT.layout(BATCH, 4)
    return limit - int(middle * 2**SHORT.feature_bits) * layout.value_size


def asked(trainer: Trainer) -> bool:
    """Take the first step once; return whether it was refused. The party's weights are then taken back."""
    before = {
        party.name: {k: v.clone() for k, v in party.module.state_dict().items()} for party in trainer.training.parties
    }
    converse({name: side.open() for name, side in trainer._sides.items()})
    try:
        take_step(trainer, trainer.batches.epoch(0)[0])
    except SumRefused as error:
        if error.final:
            raise
        return True
    finally:
        for party in trainer.training.parties:
            party.module.load_state_dict(before[party.name])
    return False


def test_a_cell_is_not_bisected() -> None:
    """With refusals without end 11 answers read two digits of any cell. Now the third refusal is the end."""
    trainer = trained_by()
    cell, limit = cell_and_limit(trainer)
    bounds, refused = [-8.0, 8.0], 0

    def bisect() -> None:
        nonlocal refused
        while bounds[1] - bounds[0] > 0.01:
            middle = sum(bounds) / 2
            Liar.lie = lie_for(middle, limit)
            above = asked(trainer)
            bounds[not above] = middle
            refused += above

    with pytest.raises(SumRefused, match="lab has refused 3 sums in this run") as caught:
        bisect()
    assert caught.value.final
    assert refused == MOST - 1
    assert bounds[0] <= cell <= bounds[1]
    for _ in range(5):
        with pytest.raises(SumRefused) as again:
            asked(trainer)
        assert again.value.final
    # What it is told from then on does not depend on any sum.
    for lie in (0, lie_for(-8.0, limit)):
        Liar.lie = lie
        with pytest.raises(SumRefused, match="takes no part in this run any more"):
            asked(trainer)


def test_a_party_that_is_careful_with_refusals_reads_a_cell_with_22_answers() -> None:
    """What three refusals leave, as it is documented: one of 1600 numbers is found as eggs find a floor."""
    trainer = trained_by()
    cell, limit = cell_and_limit(trainer)
    places = 1600  # of a hundredth, from -8 to 8

    @cache
    def reach(answers: int, refusals: int) -> int:
        """How many places can be told apart."""
        return 1 if not (answers and refusals) else reach(answers - 1, refusals - 1) + reach(answers - 1, refusals)

    answers, refusals, first, last = 22, MOST, 0, places - 1
    assert reach(answers, refusals) >= places > reach(answers - 1, refusals)
    while first < last and answers:
        # Above: a refusal is spent, and what is left must be found with fewer; so it asks high up.
        split = max(last - reach(answers - 1, refusals - 1) + 1, first + 1)
        Liar.lie = lie_for(split / 100 - 8, limit)
        try:
            above = asked(trainer)
        except SumRefused:
            above = True
        answers -= 1
        first, last, refusals = (split, last, refusals - 1) if above else (first, split - 1, refusals)
    assert first == last
    assert 0 <= cell - (first / 100 - 8) < 0.0101
    assert Liar.answers <= 22


@pytest.mark.parametrize("kind", [Residue, Taylor])
def test_a_lie_that_is_taken_moves_a_weight_by_the_rate_times_both_limits(kind: type[EncryptedExchange]) -> None:
    """What makes a sum one that tells something has to bring it near the limit; under Taylor that ends the run."""
    by_party = {"bank": kind(rows=BATCH, encryption=SHORT, engine=Lying), "lab": kind(rows=BATCH, encryption=SHORT)}
    trainer = trainer_of(by_party, {"lab": 4}, approximation="exact" if kind is Residue else "taylor")  # type: ignore[arg-type]
    Liar.lie = lie_for(8.0, cell_and_limit(trainer)[1])  # no cell is as large: it is taken
    before = weights_of(trainer)["lab"]
    converse({name: side.open() for name, side in trainer._sides.items()})
    take_step(trainer, trainer.batches.epoch(0)[0])

    moved = before - weights_of(trainer)["lab"]
    # Up to 8 + 8 of the 64 that a cell may be, in one record of the batch; Taylor's residues are four times as large.
    scale = 1 if kind is Residue else 4
    assert moved[0].item() * scale == pytest.approx(RATE * SHORT.feature_limit * SHORT.largest_value, rel=0.02)
    assert moved[1:].abs().max() < 10
    if kind is Taylor:
        with pytest.raises(CryptoError, match="value_limit is 16"):
            take_step(trainer, trainer.batches.epoch(0)[1])


EXCHANGES: dict[str, Callable[..., EncryptedExchange]] = {
    "residue": partial(Residue, rows=BATCH, encryption=SHORT),
    "taylor": partial(Taylor, rows=BATCH, encryption=SHORT),
    "coordinator": partial(Coordinator, rows=BATCH, encryption=SHORT),
}


class Garbled(Owner):
    """Opens something else: half of the largest number that fits a slot more."""

    def open_masked(self, reply: Tensor, layout: ProductLayout) -> Tensor:
        opened = tensor_to_integers(super().open_masked(reply, layout), layout.opened_bytes)
        lie = 3 << (layout.slot_bits - 3)  # three quarters of what a slot holds: above every agreed sum
        return integers_to_tensor([(opened[0] + lie) % (1 << layout.opened_bits[0]), *opened[1:]], layout.opened_bytes)


class Garbling(Engine):
    def owner(self, key: PrivateKey) -> Owner:
        return Garbled(key)


@pytest.mark.parametrize(
    ("name", "owner", "victims"),
    [
        ("residue", "bank", {"lab"}),
        ("taylor", "bank", {"lab"}),
        pytest.param("taylor", "lab", {"bank"}, marks=pytest.mark.slow(reason="another owner of a key")),
        ("coordinator", NAME, {"bank", "lab"}),
    ],
)
def test_every_asker_counts_what_it_refuses_over_restarts(
    name: str, owner: str, victims: set[str], tmp_path: Path
) -> None:
    """Each attempt is a process of its own: what is between them is the folder."""
    trainers: list[Trainer] = []

    def attempt() -> SumRefused:
        by_party = {
            party: EXCHANGES[name](engine=Garbling if party == owner else Engine) for party in ("bank", *WIDTHS)
        }
        trainer = trainer_of(by_party, WIDTHS, log_dir=tmp_path, checkpoint_every=1)  # type: ignore[arg-type]
        if owner == NAME:
            trainer._sides[NAME]._engine = Garbling()  # type: ignore[attr-defined]
        trainers.append(trainer)
        trainer.resume()
        with pytest.raises(SumRefused) as caught:
            trainer.fit(2)
        return caught.value

    honest = trainer_of(EXCHANGES[name](), WIDTHS, log_dir=tmp_path, checkpoint_every=1)
    honest.fit(1)  # five steps that succeed
    trainers.append(honest)
    before = weights_of(honest)
    errors = [attempt() for _ in range(4)]
    counts = [len(Refusals(party, journal_of(tmp_path, party))) for party in ("bank", *WIDTHS)]
    # One of them refuses first, in an order that is always the same, and at its third refusal the run is over for all.
    assert max(counts) == MOST
    assert [error.final for error in errors] == [False, False, True, True]
    assert "takes no part in this run any more" in str(errors[-1])
    assert {party for party, count in zip(("bank", *WIDTHS), counts, strict=True) if count} <= {*victims, "shop"}
    assert all(torch.equal(weight, before[party]) for party, weight in weights_of(trainers[-1]).items())


def test_a_new_run_in_the_same_folder_begins_with_none(tmp_path: Path) -> None:
    trainer = trained_by(tmp_path)
    Liar.lie = lie_for(-60.0, cell_and_limit(trainer)[1])
    for _ in range(MOST):
        with pytest.raises(SumRefused):
            trainer.fit(1)
    Liar.lie = 0
    by_party = {party: Residue(rows=BATCH, encryption=SHORT) for party in ("bank", "lab")}
    again = trainer_of(by_party, {"lab": 4}, approximation="exact", log_dir=tmp_path, overwrite=True)  # type: ignore[arg-type]
    again.fit(1)
    assert not journal_of(tmp_path, "lab").exists()

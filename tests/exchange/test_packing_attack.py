"""A party that asks for other sums than its own, in either role: what it reads, and what stops it.

Source: *Is Vertical Logistic Regression Privacy-Preserving?*, section 5.2.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields

import pytest
import torch
from torch import Tensor

from splitvfl.attacks import PackingEngine
from splitvfl.attacks.packed_equations import slots_available
from splitvfl.crypto.product_layout import ProductLayout
from splitvfl.errors import DataError
from splitvfl.exchange.paillier import EncryptedExchange, InsecureEncryption
from splitvfl.exchange.residue import Residue
from splitvfl.exchange.taylor import Taylor
from splitvfl.run.trainer import Trainer
from tests.exchange.logistic import BATCH, SHORT, taylor_coefficient, trainer_of, weights_of


class WholePlaintexts(ProductLayout):
    """What a party goes by that returns all of what it decrypts, as in the paper's protocol. No exchange does."""

    @property
    def opened_bits(self) -> tuple[int, ...]:
        return (self.key_bits,) * self.replies


class Plain(InsecureEncryption):
    """The agreement of parties that all do so: unsafe, and for these tests only."""

    def layout(self, rows: int, outputs: int) -> ProductLayout:
        agreed = super().layout(rows, outputs)
        return WholePlaintexts(**{each.name: getattr(agreed, each.name) for each in fields(agreed)})


PLAIN = Plain(key_bits=512, most_columns=4)
COLUMNS_HELD = 4
# Residues and logits are computed in float32: 2^-24 of a number of size 16 at most.
ROUNDED = 2.0**-19


AGREED = SHORT.model_copy(update={"most_columns": COLUMNS_HELD})


def exchanges(
    kind: str, encryption: InsecureEncryption, *, malicious: str
) -> tuple[dict[str, EncryptedExchange], PackingEngine]:
    engine = PackingEngine()

    def made(**options: object) -> EncryptedExchange:
        if kind == "residue":
            return Residue(rows=BATCH, encryption=encryption, **options)  # type: ignore[arg-type]
        return Taylor(rows=BATCH, encryption=encryption, loss=False, **options)  # type: ignore[arg-type]

    found = {name: made() for name in ("bank", "lab")}
    found[malicious] = made(engine=lambda: engine)
    return found, engine


def trained(
    kind: str, encryption: InsecureEncryption, *, malicious: str
) -> tuple[Trainer, PackingEngine, dict[str, list[Tensor]]]:
    """Train one epoch; return the trainer, what was read, and what there was to read at each step."""
    by_party, engine = exchanges(kind, encryption, malicious=malicious)
    approximation = "exact" if kind == "residue" else "taylor"
    trainer = trainer_of(by_party, {"lab": COLUMNS_HELD}, approximation=approximation)  # type: ignore[arg-type]
    truth = list(_values(trainer, kind))
    trainer.fit(1)
    return trainer, engine, {"residues": [one for one, _ in truth], "logits": [two for _, two in truth]}


def _values(trainer: Trainer, kind: str) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield at each step what crosses encrypted to the passive party, and to the active one: an honest run's."""
    by_party = {name: exchange(kind) for name, exchange in {"bank": _honest, "lab": _honest}.items()}
    honest = trainer_of(
        by_party,
        {"lab": COLUMNS_HELD},
        approximation="exact" if kind == "residue" else "taylor",  # type: ignore[arg-type]
    )
    bank, lab = honest.active, honest.passives["lab"]
    taken: list[tuple[Tensor, Tensor]] = []

    def note(number: int) -> None:
        if number < len(rows):
            mine, theirs = bank.train_batch(rows[number]), lab.train_batch(rows[number])
            with torch.no_grad():
                own = bank.top.active_logits(mine.columns.numeric)[:, 0].double()  # type: ignore[operator]
                part = lab.bottom(theirs.columns.numeric)[:, 0].double()
            assert mine.labels is not None
            labels = 2 * mine.labels.double() - 1
            residues = torch.sigmoid(own + part) - mine.labels.double() if kind == "residue" else own - 2 * labels
            taken.append((residues, part))

    rows = honest.batches.epoch(0)
    note(0)
    honest.fit(1, progress=lambda status: note(status.step))
    yield from taken


def _honest(kind: str) -> EncryptedExchange:
    if kind == "residue":
        return Residue(rows=BATCH, encryption=PLAIN)
    return Taylor(rows=BATCH, encryption=PLAIN, loss=False)


@pytest.mark.parametrize(
    ("kind", "malicious", "target"),
    [("residue", "lab", "residues"), ("taylor", "lab", "residues"), ("taylor", "bank", "logits")],
)
def test_a_whole_plaintext_tells_far_more_records_than_there_are_columns(
    kind: str, malicious: str, target: str
) -> None:
    trainer, engine, truth = trained(kind, PLAIN, malicious=malicious)
    exchange = _honest(kind)
    columns = COLUMNS_HELD if malicious == "lab" else 4  # three of its own, and the intercept's
    agreed = exchange.sums_layout(columns)
    slots = slots_available(512, agreed.value_size.bit_length() + 2)
    assert columns < slots < BATCH
    assert [len(read) for read in engine.learned] == [min(slots, len(values)) for values in truth[target]]
    # The first step is that of an honest run; later ones are not, for the attacker's own gradients are zero where it
    # cannot read a whole batch.
    torch.testing.assert_close(engine.learned[0], truth[target][0][:slots], rtol=0, atol=ROUNDED)
    if target == "residues":
        labels = trainer.active.train_batch(trainer.batches.epoch(0)[0]).labels
        assert labels is not None
        read = -engine.learned[0]
        assert torch.equal(read > 0, labels[:slots] == 1)


def test_who_reads_whole_batches_trains_on_as_if_it_were_honest() -> None:
    longer = PLAIN.model_copy(update={"key_bits": 1024})
    by_party, engine = exchanges("taylor", longer, malicious="lab")
    attacked = trainer_of(by_party, {"lab": COLUMNS_HELD})  # type: ignore[arg-type]
    attacked.fit(1)
    honest = trainer_of(Taylor(rows=BATCH, encryption=longer, loss=False), {"lab": COLUMNS_HELD})
    honest.fit(1)
    assert all(len(read) == BATCH for read in engine.learned[:4])
    for name, weight in weights_of(honest).items():
        assert torch.equal(weight, weights_of(attacked)[name]), name


@pytest.mark.parametrize(
    ("kind", "malicious", "target"),
    [("residue", "lab", "residues"), ("taylor", "lab", "residues"), ("taylor", "bank", "logits")],
)
def test_an_owner_returns_no_more_bits_than_the_agreed_sums_take(kind: str, malicious: str, target: str) -> None:
    _, engine, truth = trained(kind, AGREED, malicious=malicious)
    exchange = _honest(kind)
    columns = COLUMNS_HELD if malicious == "lab" else 4
    agreed = exchange.sums_layout(columns) if isinstance(exchange, Taylor) else SHORT.layout(BATCH, columns)
    room = columns * agreed.slot_bits // (agreed.value_size.bit_length() + 2)
    assert room <= 2 * columns
    assert room < slots_available(512, agreed.value_size.bit_length() + 2)
    assert [len(read) for read in engine.learned] == [min(room, len(values)) for values in truth[target]]
    torch.testing.assert_close(engine.learned[0], truth[target][0][:room], rtol=0, atol=ROUNDED)


def test_more_columns_than_there_are_buy_more_values_up_to_what_is_agreed() -> None:
    read = {}
    for most in (COLUMNS_HELD, COLUMNS_HELD + 2, 4096):
        by_party, engine = exchanges("residue", SHORT.model_copy(update={"most_columns": most}), malicious="lab")
        trainer = trainer_of(by_party, {"lab": COLUMNS_HELD}, approximation="exact")  # type: ignore[arg-type]
        trainer.fit(1)
        read[most] = len(engine.learned[0])
    assert read[COLUMNS_HELD] < read[COLUMNS_HELD + 2] < BATCH
    assert read[4096] == BATCH, "and no more sums than a batch takes"
    assert trainer._sides["lab"]._layout.outputs < BATCH  # type: ignore[attr-defined]


def test_a_claim_beyond_the_agreement_is_refused() -> None:
    capped = SHORT.model_copy(update={"most_columns": COLUMNS_HELD})
    by_party, engine = exchanges("residue", capped, malicious="lab")
    trainer = trainer_of(by_party, {"lab": COLUMNS_HELD}, approximation="exact")  # type: ignore[arg-type]
    trainer._sides["lab"]._layout = SHORT.layout(BATCH, COLUMNS_HELD + 1)  # type: ignore[attr-defined]
    with pytest.raises(DataError, match="lab asks for 5 sums at each step; agreed are 1 to 4"):
        trainer.fit(1)
    assert not engine.learned


def test_the_coefficient_of_the_taylor_exchange_is_what_is_read() -> None:
    trainer, engine, truth = trained("taylor", PLAIN, malicious="lab")
    labels = trainer.active.train_batch(trainer.batches.epoch(0)[0]).labels
    assert labels is not None
    # With its own part added, the residue's coefficient of the paper.
    part = truth["logits"][0][: len(engine.learned[0])]
    signs = (2 * labels - 1).tolist()
    with torch.no_grad():
        own = truth["residues"][0] + 2 * (2 * labels.double() - 1)
    for number, value in enumerate((engine.learned[0] + part).tolist()):
        logit = own[number].item() + part[number].item()
        assert value == pytest.approx(taylor_coefficient(logit, signs[number]), abs=2 * ROUNDED)

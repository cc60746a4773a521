"""What the owner of a key sees of masked sums, whatever was encrypted and by whom: numbers at random, nothing else.

The owner chooses what it encrypts, and opens what comes of it. A mask that is only a little longer than an honest sum
hides honest sums: an owner that encrypts one number too large reads the other party's row above it.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

import pytest
from scipy.stats import kstest
from torch import Tensor

from splitvfl.crypto.ciphertexts import encrypted, read_ciphertexts
from splitvfl.crypto.engine import Engine
from splitvfl.crypto.evaluator import Evaluator, MaskedSums
from splitvfl.crypto.integers import plain_integers
from splitvfl.crypto.keys import PrivateKey, PublicKey
from splitvfl.crypto.owner import Owner
from splitvfl.crypto.packing import centred
from splitvfl.crypto.product_layout import ProductLayout
from splitvfl.exchange.coordinator import NAME, Coordinator
from splitvfl.exchange.paillier import EncryptedExchange, Encryption, InsecureEncryption
from splitvfl.exchange.residue import Residue
from splitvfl.exchange.taylor import Taylor
from splitvfl.messaging.conversation import converse
from splitvfl.run.trainer import Trainer
from tests.builders import take_step
from tests.exchange.logistic import BATCH, trainer_of

# Long enough for a row of four columns twice over, and 42 bits.
KEYS = InsecureEncryption(key_bits=1024)
WIDTHS = {"lab": 3, "shop": 2}
# Masks are drawn from the operating system: each test of them fails by chance once in so many runs.
CHANCE = 1e-9


@dataclass(frozen=True)
class Opened:
    """A number in [0, n) that the owner of a key finds in a reply, and the width of the slots in it."""

    number: int
    slot_bits: int


class Spy(Owner):
    """An owner of a key that notes what it decrypts, and encrypts what it likes."""

    seen: list[Opened]
    chosen: Callable[[list[int]], list[int]]

    def encrypt(self, values: Tensor | Iterable[int], layout: ProductLayout | None = None) -> Tensor:
        public = self.public
        plain = [centred(value, public.n) for value in self.chosen(plain_integers(values))]
        return encrypted(plain, public, self._obfuscators, limit=None)

    def open_masked(self, reply: Tensor, layout: ProductLayout) -> Tensor:
        numbers = self._decrypted(read_ciphertexts(reply, self.public))
        self.seen += [Opened(int(number), layout.slot_bits) for number in numbers]
        return super().open_masked(reply, layout)


class Chooser(Evaluator):
    """A party that encrypts what it likes under another's key, and learns nothing from sums, so that all go on."""

    chosen: Callable[[list[int]], list[int]]

    def encrypt(self, values: Tensor | Sequence[int]) -> Tensor:
        plain = [centred(value, self.public.n) for value in self.chosen(plain_integers(values))]
        return encrypted(plain, self.public, self._obfuscators, limit=None)

    def unmask(self, opened: Tensor, masked: MaskedSums) -> list[int]:
        return [0] * self.layout.outputs


class Spying(Engine):
    def __init__(self, chosen: Callable[[list[int]], list[int]] = lambda values: values) -> None:
        super().__init__()
        self.seen: list[Opened] = []
        self.chosen = chosen
        self.key: PublicKey | None = None

    def owner(self, key: PrivateKey) -> Owner:
        made = Spy(key)
        made.seen, made.chosen = self.seen, self.chosen
        self.key = key.public
        return made

    def evaluator(self, public: PublicKey, layout: ProductLayout) -> Evaluator:
        made = Chooser(public, layout, obfuscators=self._of(public))
        made.chosen = self.chosen
        return made


EXCHANGES: dict[str, type[EncryptedExchange]] = {"residue": Residue, "taylor": Taylor, "coordinator": Coordinator}


def watched(name: str, encryption: Encryption, spies: dict[str, Spying], widths: dict[str, int]) -> Trainer:
    """Parties of which some have an engine that notes what it opens."""

    def made(party: str) -> EncryptedExchange:
        return EXCHANGES[name](rows=BATCH, encryption=encryption, engine=lambda: spies.setdefault(party, Spying()))

    approximation = "exact" if name == "residue" else "taylor"
    trainer = trainer_of({party: made(party) for party in ("bank", *widths)}, widths, approximation=approximation)  # type: ignore[arg-type]
    if NAME in spies:
        trainer._sides[NAME]._engine = spies[NAME]  # type: ignore[attr-defined]
    converse({party: side.open() for party, side in trainer._sides.items()})
    return trainer


def steps_of(trainer: Trainer, count: int) -> Iterator[Tensor]:
    """Take steps, and yield each one's records."""
    for number in range(count):
        rows = trainer.batches.epoch(number)[0]
        take_step(trainer, rows)
        yield rows


# --- one value that is too large


def cells(opened: Opened, above: int, n: int, count: int) -> list[float]:
    """What stands in the slots above so many bits, as entries of a column."""
    number = opened.number - n * (2 * opened.number > n)
    top = (number + (1 << (above - 1))) >> above  # rounded
    found = []
    for _ in range(count):
        slot = centred(top, 1 << opened.slot_bits)
        found.append(slot * 2.0**-KEYS.feature_bits)
        top = (top - slot) >> opened.slot_bits
    return found


@pytest.mark.parametrize(
    ("name", "liar", "owner"),
    [
        ("residue", "bank", "bank"),
        ("taylor", "bank", "bank"),
        ("taylor", "lab", "lab"),  # reads the active party's row, and a passive one's through the active party
        ("coordinator", "lab", NAME),  # together with the coordinator
        ("coordinator", "bank", NAME),
    ],
)
def test_one_value_too_large_shows_no_row(name: str, liar: str, owner: str) -> None:
    """Above a mask of W + 40 bits every row of the others stood in the clear, and the sums stayed right."""
    above = 4 * 80 + 42  # no sum is longer than four slots
    spies = {party: Spying(lambda values: [values[0] + (1 << above), *values[1:]]) for party in {liar}}
    spies.setdefault(owner, Spying())
    trainer = watched(name, KEYS, spies, WIDTHS)
    others = {party.name: party.data.train.columns.numeric for party in trainer.training.parties if party.name != liar}
    spy, guesses = spies[owner], 0
    assert spy.key is not None
    for rows in steps_of(trainer, 3):
        for opened in spy.seen:
            for columns in others.values():
                truth = columns[rows[0]].tolist()
                for read, true in zip(cells(opened, above, spy.key.n, len(truth)), truth, strict=True):
                    guesses += 1
                    # A number at random in a slot of 70 bits or more, 26 of them fractions, comes so near to an entry
                    # with a probability below 2^-50.
                    assert abs(read - true) > 1e-3
        spy.seen.clear()
    assert guesses >= 3 * 2


# --- everything that an owner opens

SHORT = InsecureEncryption(key_bits=512, packed=False)
PLAINTEXTS: dict[str, Callable[[list[int]], list[int]]] = {
    "honest": lambda values: values,
    "all huge": lambda values: [secrets.randbits(SHORT.key_bits) for _ in values],
    "near n/2": lambda values: [(1 << (SHORT.key_bits - 2)) + value for value in values],
    "multiples of 2^120": lambda values: [value << 120 for value in values],
    "multiples of 2^480": lambda values: [value << 480 for value in values],
}


def assert_uniform(numbers: Sequence[int], n: int) -> None:
    """Kolmogorov and Smirnov's test; edges of 2^-41 of all numbers are left out, which no sample this small shows."""
    assert len(numbers) >= 40
    assert all(0 <= number < n for number in numbers)
    # Below one half of a standard normal variable's tail, whatever the sample: exact for the size that it has.
    assert kstest([number / n for number in numbers], "uniform").pvalue > CHANCE


ENCRYPTED = [
    ("residue", "honest"),
    ("residue", "near n/2"),
    ("taylor", "honest"),
    ("taylor", "all huge"),
    ("taylor", "multiples of 2^480"),
    ("coordinator", "multiples of 2^120"),
]


@pytest.mark.parametrize(("name", "plaintexts"), ENCRYPTED)
def test_whoever_opens_sums_sees_numbers_at_random(name: str, plaintexts: str) -> None:
    """Every owner of a key, of sums that it is asked for directly or through another party, whoever encrypted what."""
    spies = {party: Spying(PLAINTEXTS[plaintexts]) for party in ("bank", *WIDTHS, NAME)}
    if name != "coordinator":
        del spies[NAME]
    trainer = watched(name, SHORT, spies, WIDTHS)
    for _ in steps_of(trainer, 12):
        pass
    owners = {party: spy for party, spy in spies.items() if spy.key is not None}
    assert set(owners) == {"residue": {"bank"}, "taylor": {"bank", *WIDTHS}, "coordinator": {NAME}}[name]
    for spy in owners.values():
        assert spy.key is not None
        assert_uniform([opened.number for opened in spy.seen], spy.key.n)

"""An active party that passes points on, from one passive party to another or from one alignment to the next.

Each attack is tried twice: against the protocol, where it counts nothing, and against the same protocol with one
context for all pairs, where it counts what is there. So a test that finds nothing has looked.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pytest
import torch

from splitvfl.crypto import hashed_points
from splitvfl.data.id_column import id_digest
from splitvfl.exchange import psi
from splitvfl.exchange.psi import Mode, Points, Terms, align
from splitvfl.messaging.conversation import Half, Outbox
from splitvfl.messaging.json_message import note
from splitvfl.messaging.messages import Message

NONCE = bytes(range(32))


def people(first: int, last: int) -> list[str]:
    return [f"p{number}" for number in range(first, last)]


def digests_of(names: Sequence[str]) -> npt.NDArray[np.uint8]:
    return np.frombuffer(b"".join(map(id_digest, names)), np.uint8).reshape(-1, 64)


def rows_of(points: Points) -> set[bytes]:
    return set(map(bytes, points))


@dataclass
class Prey:
    """A passive party's half, and what the attacker who talks to it has in its place in the protocol."""

    name: str
    half: Half
    terms: Terms
    size: int = 0
    nonce: bytes = b""

    @classmethod
    def of(cls, name: str, ids: Sequence[str], mode: Mode = "both") -> Prey:
        terms = Terms(active="clinic", mode=mode, padding=0.5 if mode == "padded" else 0.0)
        return cls(name, align(name, ["clinic"], digests_of(ids), terms, threads=1), terms)

    def begin(self) -> None:
        """Agree, and learn how many records it has."""
        next(self.half)
        outbox = self._send(note("clinic", self.name, "agreement", 0, self.terms.agreed()))
        self.size = int(outbox.send[0].payload)

    def points(self, announced: int, nonce: bytes = NONCE) -> Points:
        """Announce so many records, and return its points; it has not seen any yet."""
        outbox = self._send(self._message("records", torch.tensor([announced])))
        self.nonce = outbox.send[0].payload.numpy().tobytes()
        outbox = self._send(self._message("nonce", torch.frombuffer(bytearray(nonce), dtype=torch.uint8)))
        return np.array(outbox.send[0].payload.numpy())

    def answers(self, points: Points) -> Points:
        """Return its answers to points."""
        message = self._message("points", torch.from_numpy(points.copy()))
        return np.array(self._send(message).send[0].payload.numpy())

    def _message(self, kind: str, payload: torch.Tensor) -> Message:
        return Message("clinic", self.name, kind, 0, payload)

    def _send(self, message: Message) -> Outbox:
        return self.half.send({"clinic": message})


@pytest.fixture(params=["one context for all pairs", "as it is"])
def context_of(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Callable[[int], int]:
    """Give what an attack must count, given what it would count if ids had one hash."""
    as_it_is = request.param == "as it is"
    if not as_it_is:
        monkeypatch.setattr(psi, "pair_context", lambda *pair: bytes(64))
    return lambda count: 0 if as_it_is else count


Expected = Callable[[int], int]


def relayed(one: Prey, other: Prey) -> int:
    """Send each the other's points as the active party's own, and count answers that both give."""
    for prey in (one, other):
        prey.begin()
    points = {prey.name: prey.points(counted.size) for prey, counted in ((one, other), (other, one))}
    return len(rows_of(one.answers(points[other.name])) & rows_of(other.answers(points[one.name])))


@pytest.mark.parametrize("mode", ["both", "padded", "size-only"])
def test_points_that_are_passed_on_count_nothing(context_of: Expected, mode: Mode) -> None:
    one, other = Prey.of("lab", people(0, 60), mode), Prey.of("imaging", people(40, 120), mode)
    assert relayed(one, other) == context_of(20)


def test_two_passive_parties_of_one_name_are_two(context_of: Expected) -> None:
    """Each chooses its own name; the attacker talks to both with the same nonce."""
    one, other = Prey.of("lab", people(0, 60)), Prey.of("lab", people(40, 120))
    for prey in (one, other):
        prey.begin()
    points = one.points(other.size), other.points(one.size)
    assert len(rows_of(one.answers(points[1])) & rows_of(other.answers(points[0]))) == context_of(20)


def test_two_alignments_of_one_party_at_a_time_cannot_be_compared(context_of: Expected) -> None:
    """What was added to its file in between would show."""
    assert relayed(Prey.of("lab", people(0, 30)), Prey.of("lab ", people(0, 35))) == context_of(30)


def test_relayed_points_among_own_ones_count_nothing(context_of: Expected) -> None:
    """Own records are answered as ever: three of the attacker's four are the lab's."""
    lab, imaging = Prey.of("lab", people(0, 30)), Prey.of("imaging", people(20, 40))
    for prey in (lab, imaging):
        prey.begin()
    own = digests_of([*people(0, 3), "nobody"])
    scalar = psi.random_scalar()
    theirs = {"lab": lab.points(imaging.size + len(own)), "imaging": imaging.points(lab.size)}
    context = psi.pair_context("clinic", "lab", (NONCE, lab.nonce))
    answers = lab.answers(
        np.concatenate([theirs["imaging"], hashed_points.multiplied(hashed_points.hashed(own, context), scalar)])
    )
    found = rows_of(answers[: imaging.size]) & rows_of(imaging.answers(theirs["lab"]))
    assert len(found) == context_of(10)
    honest = rows_of(answers[imaging.size :]) & rows_of(hashed_points.multiplied(theirs["lab"], scalar))
    assert len(honest) == 3


def test_hashes_of_an_earlier_alignment_are_of_no_use(context_of: Expected) -> None:
    """The attacker repeats its nonce, and what it sent; the lab's people are still found by new hashes alone."""
    scalar = psi.random_scalar()
    contexts, counts = [], []
    for _ in range(2):
        lab = Prey.of("lab", people(0, 10))
        lab.begin()
        theirs = lab.points(10)
        contexts.append(psi.pair_context("clinic", "lab", (NONCE, lab.nonce)))
        sent = hashed_points.multiplied(hashed_points.hashed(digests_of(people(0, 10)), contexts[0]), scalar)
        counts.append(len(rows_of(lab.answers(sent)) & rows_of(hashed_points.multiplied(theirs, scalar))))
    assert counts == [10, context_of(10)]


def test_equal_ids_are_unrelated_points_even_under_one_secret(
    context_of: Expected, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So that not the secrets alone keep the pairs apart."""
    scalar = psi.random_scalar()
    monkeypatch.setattr(psi, "random_scalar", lambda: scalar)
    crossed = []
    for name in ("lab", "imaging"):
        prey = Prey.of(name, people(0, 20))
        prey.begin()
        crossed.append(rows_of(prey.points(20)))
    assert len(crossed[0] & crossed[1]) == context_of(20)


def test_every_pair_has_a_secret_a_nonce_and_an_order_of_its_own() -> None:
    work = psi._Work(["lab", "imaging"], digests_of(people(0, 25)), 1, None)
    one, other = work.pairs.values()
    assert one.secret != other.secret
    assert one.nonce != other.nonce
    # Two orders of 25 are equal in one case of 10^25.
    assert not np.array_equal(one.row_of, other.row_of)
    assert sorted(one.row_of) == sorted(other.row_of) == list(range(25))


# --- the context itself


def test_the_context_is_the_documented_hash() -> None:
    nonces = bytes(range(32)), bytes(range(32, 64))
    text = b"splitvfl.align.2 pair\0" + b"\x06\0clinic" + b"\x05\0Z\xc3\xbcri" + nonces[0] + nonces[1]
    assert psi.pair_context("clinic", "Züri", nonces) == hashlib.sha512(text).digest()


def test_everything_in_a_context_counts() -> None:
    nonces = bytes(range(32)), bytes(range(32, 64))
    same: Mapping[str, tuple[str, str, tuple[bytes, bytes]]] = {
        "as it is": ("ab", "c", nonces),
        "where a name ends": ("a", "bc", nonces),
        "who is active": ("c", "ab", nonces),
        "the active party's nonce": ("ab", "c", (nonces[1], nonces[1])),
        "the passive party's nonce": ("ab", "c", (nonces[0], nonces[0])),
        "whose nonce": ("ab", "c", nonces[::-1]),
    }
    assert len({psi.pair_context(*pair) for pair in same.values()}) == len(same)

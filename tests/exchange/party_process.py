"""One party alone in a process, joined to the others by plain sockets: a driver that owes nothing to the library.

It builds its own party and no other.
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch

from splitvfl.defenses import GaussianIR, Isotropic
from splitvfl.exchange.handshake import agreement, terms_of
from splitvfl.exchange.prediction import active_prediction, passive_prediction
from splitvfl.exchange.split_step import active_step, passive_step
from splitvfl.learning.batches import Batches
from splitvfl.learning.randomness import derive_seed
from splitvfl.messaging.conversation import Half, Outbox, admit
from splitvfl.messaging.messages import Message, decode, encode
from tests.builders import ACTIVE, active_party, passive_party

LENGTH = struct.Struct("<Q")
RATIO, CLIP, SIGMA = 0.5, 1.0, 0.1


def receive_exactly(link: socket.socket, count: int) -> bytes:
    parts = bytearray()
    while len(parts) < count:
        part = link.recv(count - len(parts))
        if not part:
            raise ConnectionError("the other party hung up")
        parts += part
    return bytes(parts)


def receive(link: socket.socket) -> Message:
    (length,) = LENGTH.unpack(receive_exactly(link, LENGTH.size))
    return decode(receive_exactly(link, length))


def drive(half: Half, party: Any, links: dict[str, socket.socket]) -> Any:
    inbox: dict[str, Message] | None = None
    while True:
        try:
            with party.random:
                outbox: Outbox = next(half) if inbox is None else half.send(inbox)
        except StopIteration as stop:
            return stop.value
        for message in outbox.send:
            data = encode(message)
            links[message.receiver].sendall(LENGTH.pack(len(data)) + data)
        inbox = {one.sender: admit(receive(links[one.sender]), one) for one in outbox.wait}


def build(name: str, settings: dict[str, Any]) -> tuple[Any, Callable[[Any, int], Half], Callable[[Any, int], Half]]:
    """Return the party, and its halves of a training step and of a prediction."""
    noise = settings["noise seed"]
    if name == ACTIVE:
        active = active_party(len(settings["passives"]), dropout=settings["dropout"])
        for other in settings["passives"]:
            seed = derive_seed(noise, "gradient", other, 0)
            active.connect(other).defend(Isotropic(ratio=RATIO), noise_seed_for_experiments=seed)
        return (
            active,
            lambda batch, step: active_step(active, batch, step),
            lambda b, n: active_prediction(active, b, n),
        )
    passive = passive_party(name, dropout=settings["dropout"])
    seed = derive_seed(noise, "activation", name, 1)
    passive.activation.attach(GaussianIR(clip=CLIP, sigma=SIGMA), noise_seed_for_experiments=seed)
    return (
        passive,
        lambda batch, step: passive_step(passive, batch, step, active=ACTIVE),
        lambda batch, number: passive_prediction(passive, batch, number, active=ACTIVE, outputs=1),
    )


def halves(party: Any, settings: dict[str, Any], step: Any) -> Iterator[Half]:
    batches = Batches(party.data.train.count, settings["batch size"], seed=settings["seed"])
    for number, rows in enumerate(batches.epoch(0)):
        yield step(party.train_batch(rows), number)


def main(name: str, settings: dict[str, Any], path: Path, links: dict[str, socket.socket]) -> None:
    torch.set_num_threads(1)
    party, step, prediction = build(name, settings)
    party.prepare(seed=derive_seed(settings["seed"], "party", name), device=torch.device("cpu"))
    terms = terms_of(party.data, {"batch size": settings["batch size"], "seed": settings["seed"]})
    drive(agreement(name, tuple(links), terms), party, links)
    losses = [drive(half, party, links) for half in halves(party, settings, step)]
    party.module.eval()
    published = drive(prediction(party.test_batch(torch.arange(party.data.test.count)), 0), party, links)
    scores = published.scores if name == ACTIVE else published
    torch.save({"weights": party.module.state_dict(), "scores": scores, "losses": losses}, path)

"""A party that can be told to go wrong: ``splitvfl`` as it is, with a seam in three places.

``python -m scripts.bench.faulty FOLDER party run.yaml --as lab ...`` runs that command. A file ``order`` in the folder
names one fault, which happens at the next opportunity; the file is gone then. ``steps`` tells how many steps are done,
and how many have been taken, those that were taken again included. A file ``key bits`` holds the length of all keys,
which then may be shorter than an experiment allows: faults do not depend on it, and steps are faster.

A file ``faults`` holds what is to happen at which message that the party sends, a line each, as in ``3 reorder``: one
of the faults of messages, ``die`` or ``hang up``. A file ``rows`` holds the number of records in a message of
predictions. With a file ``float64`` all is computed in that type, columns and weights. A file ``sent``, if there is
one, gets a line for each message that leaves: the process, the kind and the step.
"""

from __future__ import annotations

import functools
import os
import shutil
import signal
import struct
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any, Final
from unittest import mock

import torch

from splitvfl.app import deployment, experiment
from splitvfl.app.records import OwnData
from splitvfl.cli import main
from splitvfl.data.columns import PartyData, Records, VerticalData
from splitvfl.exchange.paillier import EncryptedExchange, Encryption, InsecureEncryption
from splitvfl.messaging.messages import Message
from splitvfl.net.frames import Packed, pack
from splitvfl.net.link import Link
from splitvfl.run import checkpoint, party_folder
from splitvfl.run.prediction import PredictionSettings
from splitvfl.run.training import Training

COUNTS: Final = struct.Struct("<QQ")
# Orders by the place where they are carried out.
MESSAGES: Final = ("delay", "duplicate", "leave out", "reorder", "truncate")
CHECKPOINTS: Final = ("die between files", "die before renaming", "die before deleting", "die while deleting")
LEAVES: Final = ("die before leaving", "die after leaving")

_LATE_S: Final = 0.3


class Orders:
    """The folder in which a party is told what to do, and tells how far it is."""

    def __init__(self, folder: Path) -> None:
        self._order = folder / "order"
        self._steps = os.open(folder / "steps", os.O_RDWR | os.O_CREAT)
        counts = os.pread(self._steps, COUNTS.size, 0)
        self._taken = COUNTS.unpack(counts)[1] if counts else 0
        self._faults, self._sent = folder / "faults", 0
        self._left = folder / "sent"

    def take(self, *wanted: str) -> str:
        """Return the order, if there is one of these, and carry it out once."""
        if not self._order.exists():
            return ""
        order = self._order.read_text()
        if order not in wanted:
            return ""
        self._order.unlink()
        return order

    def due(self) -> str:
        """Return what is to happen at the message that is about to be sent, if anything is, and carry it out once."""
        number, self._sent = self._sent, self._sent + 1
        if not self._faults.exists():
            return ""
        lines = self._faults.read_text().splitlines()
        found = [line for line in lines if line.startswith(f"{number} ")]
        if not found:
            return ""
        lines.remove(found[0])
        beside = self._faults.with_name(".faults")
        beside.write_text("".join(f"{line}\n" for line in lines))
        beside.replace(self._faults)
        return found[0].partition(" ")[2]

    def leaves(self, message: Message) -> None:
        """Note that a message is about to leave, where that is asked for."""
        if self._left.exists():
            with self._left.open("a") as file:
                file.write(f"{os.getpid()} {message.kind} {message.step}\n")

    def count(self, step: int) -> None:
        """Note that a step is done."""
        self._taken += 1
        os.pwrite(self._steps, COUNTS.pack(step, self._taken), 0)  # in place: a kill tears nothing


def die() -> None:
    """End as a process that is killed ends."""
    os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(60)


def spoil_messages(orders: Orders) -> None:
    """Let messages go wrong between the protocol and the wire, which is what a hostile partner could do too."""
    send = Link.send
    held: list[Packed] = []

    def spoiled(link: Link, message: Message, *, timeout: float) -> None:
        order = orders.due() or orders.take(*MESSAGES)
        if order == "die":
            die()
        if order == "hang up":
            link.close("hung up by order")
        if order != "leave out":
            orders.leaves(message)
        if held:  # before the one that came first
            link._stream.outgoing.put(pack(message, link._sent))
            link._stream.outgoing.put(held.pop())
            link._sent += 1
        elif order in ("", "delay", "duplicate", "hang up"):
            time.sleep(_LATE_S if order == "delay" else 0)
            send(link, message, timeout=timeout)
            if order == "duplicate":
                link._stream.outgoing.put(pack(message, link._sent - 1))
        else:
            packed = pack(message, link._sent)
            link._sent += 1
            if order == "reorder":
                held.append(packed)
            elif order == "truncate":
                link._stream.outgoing.put(Packed(packed.head, packed.body[:-1], packed.sequence))

    mock.patch.object(Link, "send", spoiled).start()


def die_in_checkpoints(orders: Orders) -> None:
    """Let the process be killed at the worst moments of saving."""

    def before(function: Callable[..., Any], order: str, when: Callable[[Path], bool]) -> Callable[..., Any]:
        def called(path: Path, *rest: Any) -> Any:
            if when(path) and orders.take(order):
                die()
            return function(path, *rest)

        return called

    rmtree = shutil.rmtree

    def half_deleted(path: Path, *rest: Any, **options: Any) -> None:
        if Path(path).name.startswith(".deleting-step") and Path(path).exists() and orders.take("die while deleting"):
            next(Path(path).iterdir()).unlink()
            die()
        rmtree(path, *rest, **options)

    seams = (
        ("new_file", "die between files", lambda path: path.stem == "party"),
        ("flush_folder", "die before renaming", lambda path: path.name.startswith(".writing")),
        ("remove", "die before deleting", lambda path: True),
    )
    for name, order, when in seams:
        mock.patch.object(checkpoint, name, before(getattr(checkpoint, name), order, when)).start()
    mock.patch.object(shutil, "rmtree", half_deleted).start()


def die_while_leaving(orders: Orders) -> None:
    """Let the process be killed before or after it notes that nobody needs it any more."""
    note = party_folder.PartyFolder.note_farewell

    def noted(kept: Any, *farewell: Any) -> None:
        if orders.take("die before leaving"):
            die()
        note(kept, *farewell)
        if orders.take("die after leaving"):
            die()

    mock.patch.object(party_folder.PartyFolder, "note_farewell", noted).start()


def count_steps(orders: Orders) -> None:
    """Note every step that is done."""
    step_done = Training.step_done

    def counted(training: Training) -> None:
        step_done(training)
        orders.count(training.step)

    mock.patch.object(Training, "step_done", counted).start()


def short_keys(bits: int) -> AbstractContextManager[object]:
    """Let all keys be so long while it is entered, however short: shorter than any that may hold real data."""
    prepare = EncryptedExchange.__init__

    @functools.wraps(prepare)
    def short(exchange: EncryptedExchange, *, encryption: Encryption, **others: Any) -> None:
        prepare(exchange, encryption=InsecureEncryption(**dict(encryption) | {"key_bits": bits}), **others)

    return mock.patch.object(EncryptedExchange, "__init__", short)


def small_messages(rows: int) -> AbstractContextManager[object]:
    """Let messages of predictions hold so many records while it is entered."""
    return mock.patch.dict(PredictionSettings.__init__.__kwdefaults__, rows=rows)


def in_float64() -> AbstractContextManager[object]:
    """Let columns and weights be of float64 while it is entered; and so all that is computed, and crosses."""
    stack = ExitStack()
    stack.callback(torch.set_default_dtype, torch.get_default_dtype())
    torch.set_default_dtype(torch.float64)
    own_data, load_data = deployment.own_data, experiment.load_data

    def own(*given: Any, **more: Any) -> OwnData:
        found = own_data(*given, **more)
        return replace(found, data=_wide(found.data))

    def load(*given: Any) -> VerticalData:
        found = load_data(*given)
        passives = {name: _wide(data) for name, data in found.passives.items()}
        return replace(found, active=_wide(found.active), passives=passives)

    stack.enter_context(mock.patch.object(deployment, "own_data", own))
    stack.enter_context(mock.patch.object(experiment, "load_data", load))
    return stack


def _wide(data: PartyData) -> PartyData:
    def widened(records: Records) -> Records:
        columns = records.columns
        return replace(records, columns=columns._replace(numeric=columns.numeric.double()))

    return replace(data, train=widened(data.train), test=widened(data.test))


def run_party(folder: Path, arguments: Sequence[str]) -> int:
    """Run a command of ``splitvfl`` as a party that takes orders, and return its exit code."""
    orders = Orders(folder)
    for seam in (spoil_messages, die_in_checkpoints, die_while_leaving, count_steps):
        seam(orders)
    length, rows = folder / "key bits", folder / "rows"
    with (
        short_keys(int(length.read_text())) if length.exists() else nullcontext(),
        small_messages(int(rows.read_text())) if rows.exists() else nullcontext(),
        in_float64() if (folder / "float64").exists() else nullcontext(),
    ):
        return main(arguments)


if __name__ == "__main__":
    sys.exit(run_party(Path(sys.argv[1]), sys.argv[2:]))

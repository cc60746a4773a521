"""What a peer can do with bytes: each half of each exchange is fed what it was sent once, mutated.

Three parties go through every exchange once. Then each half hears its peers' frames again, one of them mutated: bits
flipped, cut short, extended, spliced with another, heads forged, fields swapped, repeated, out of order, left out,
filled with other values. They pass through what a networked party has, from the link's hello to the half; only the
sockets are missing. A half may end as it should, or refuse with an error that names the sender; nothing else.
Run ``python -m scripts.bench.hostile [--quick] [--json OUT] [--messages 100000] [--exchange residue]``.
"""

from __future__ import annotations

import argparse
import random
import resource
import struct
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any
from unittest import mock

import msgspec
import torch
from torch import Tensor

from scripts.bench.measuring import Result, main
from scripts.bench.scenes import EXCHANGES, RUN, Heard, Scene, framed, scenes
from splitvfl.errors import SplitVFLError
from splitvfl.messaging.messages import Message
from splitvfl.net import frames

MESSAGES, QUICK_MESSAGES = 100_000, 2000
MOST_GROWTH_MIB = 16.0
# Small messages then have several frames.
CHUNK = 64
# What is heard before the memory is measured for the first time: libraries load, caches fill.
WARM_UP = 500

Frames = list[bytes]
Mutation = Callable[[random.Random, Heard], Frames | None]


# --- mutations: each returns other frames, or None where it does not apply


def flipped(rng: random.Random, heard: Heard) -> Frames:
    """Flip one to eight bits of a frame, often near its beginning."""

    def flip(frame: bytes) -> bytes:
        bits = bytearray(frame)
        for _ in range(rng.randint(1, 8)):
            bits[rng.randrange(min(len(bits), rng.choice((4, 32, len(bits)))))] ^= 1 << rng.randrange(8)
        return bytes(bits)

    return _with_one(rng, heard, flip)


def cut(rng: random.Random, heard: Heard) -> Frames:
    """Cut a frame short."""
    return _with_one(rng, heard, lambda frame: frame[: rng.randrange(len(frame))])


def extended(rng: random.Random, heard: Heard) -> Frames:
    """Lengthen a frame."""
    return _with_one(rng, heard, lambda frame: frame + rng.randbytes(rng.choice((1, 2, CHUNK, 4096))))


def spliced(rng: random.Random, heard: Heard) -> Frames:
    """Begin with one frame, and end with another, of any exchange."""

    def splice(frame: bytes) -> bytes:
        other = rng.choice(heard.pool)
        return frame[: rng.randrange(len(frame))] + other[rng.randrange(len(other)) :]

    return _with_one(rng, heard, splice)


def replaced(rng: random.Random, heard: Heard) -> Frames:
    """Send a frame of any exchange instead."""
    return _with_one(rng, heard, lambda frame: rng.choice(heard.pool))


def overwritten(rng: random.Random, heard: Heard) -> Frames:
    """Write an extreme number over two, four or eight bytes: where a length stood, perhaps."""

    def overwrite(frame: bytes) -> bytes:
        width = rng.choice((1, 2, 4, 8))
        number = rng.choice((b"\x00", b"\xff", b"\x7f", b"\x80")) * width
        start = rng.randrange(len(frame))
        return (frame[:start] + number + frame[start + width :])[: len(frame)]

    return _with_one(rng, heard, overwrite)


HOSTILE_FIELDS: tuple[Any, ...] = (
    *(0, 1, -1, 6, 255, 1 << 16, 1 << 20, 1 << 30, (1 << 30) + 1, 1 << 31, 1 << 32, 1 << 53, 1 << 63, (1 << 64) - 1),
    *(-(1 << 63), 0.0, 1e308, float("nan"), float("inf"), None, True, False, "", "x", "\x1b[2J", "a\nb", "z" * 300),
    *("activation", "gradient", "agreement", "verdict", "scores", "points", "order", "float32", "float64", "bfloat16"),
    *("int64", "uint8", "object", "complex64", b"", b"\xff" * 20, {}, {"a": 1}, [], [0], [1], [-1], [1 << 30] * 2),
    *([1 << 30] * 8, [1 << 63], [0, 1 << 30], [1 << 30, 0], [1] * 8, [1] * 9, [[1]], ["1"], [1.0], [None]),
)


def forged(rng: random.Random, heard: Heard) -> Frames | None:
    """Write something else into a field of a head."""

    def forge(fields: list[Any]) -> None:
        place = rng.randrange(len(fields))
        near = fields[place] + rng.choice((-1, 1)) if isinstance(fields[place], int) else None
        fields[place] = rng.choice((*HOSTILE_FIELDS, near))

    return _with_head(rng, heard, forge)


def resized(rng: random.Random, heard: Heard) -> Frames | None:
    """Write other sizes into a shape, with or without the announcement that goes with them."""

    def resize(fields: list[Any]) -> None:
        shape = fields[4] or [0]
        place = rng.randrange(len(shape))
        shape[place] = rng.choice((0, 1, shape[place] + 1, shape[place] * 2, 1 << 16, 1 << 30))
        fields[4] = shape
        if rng.random() < 0.5:
            fields[5] = fields[5] * rng.choice((0, 1, 2, 1 << 10))

    return _with_head(rng, heard, resize)


def swapped(rng: random.Random, heard: Heard) -> Frames | None:
    """Swap two fields of a head, or leave one out, or add one."""

    def swap(fields: list[Any]) -> None:
        one, other = rng.sample(range(len(fields)), 2)
        match rng.randrange(3):
            case 0:
                fields[one], fields[other] = fields[other], fields[one]
            case 1:
                del fields[one]
            case _:
                fields.insert(one, fields[other])

    return _with_head(rng, heard, swap)


def repeated(rng: random.Random, heard: Heard) -> Frames:
    """Send a frame once more, at once or later."""
    found = list(heard.frames)
    place = rng.randrange(len(found))
    found.insert(rng.randint(place, len(found)), found[place])
    return found


def reordered(rng: random.Random, heard: Heard) -> Frames:
    """Swap two frames."""
    found = list(heard.frames)
    one, other = rng.sample(range(len(found)), 2)
    found[one], found[other] = found[other], found[one]
    return found


def left_out(rng: random.Random, heard: Heard) -> Frames:
    """Leave a frame out, or end before it."""
    place = rng.randrange(len(heard.frames))
    rest = heard.frames[place + 1 :] if rng.random() < 0.5 else ()
    return [*heard.frames[:place], *rest]


def inserted(rng: random.Random, heard: Heard) -> Frames:
    """Send something in between: a frame of any exchange, a control frame, noise."""
    control = [bytes([kind]) + rng.randbytes(rng.choice((0, 1, 40))) for kind in range(8)]
    found = list(heard.frames)
    found.insert(rng.randrange(len(found) + 1), rng.choice((rng.choice(heard.pool), *control, b"", rng.randbytes(200))))
    return found


HOSTILE_FLOATS = (float("nan"), float("inf"), -float("inf"), 1e38, -1e38, 3e38, 1e19, 1e-45, -0.0, 0.0, 1.0, 255.0)
HOSTILE_WHOLES = (-1, 0, 1, 2, 3, 255, 1 << 31, 1 << 32, (1 << 63) - 1, -(1 << 63))
HOSTILE_NOTES = (
    *(
        b"{}",
        b"[]",
        b"null",
        b"NaN",
        b"{",
        b'{"steps": ' + b"9" * 5000 + b"}",
        b"[" * 5000,
        b'{"a":' * 900 + b"1" + b"}" * 900,
    ),
    *(
        b'{"width": 1e999}',
        b'{"width": true}',
        b'{"width": -1}',
        b'{"width": 4, "width": 5}',
        b'{"task": "\\u001b[2J"}',
    ),
    *(b'{"task": ["binary"], "outputs": 1}', b'{"task": "multiclass", "outputs": 1}', b'{"\\ud800": "\\ud800"}'),
    *(b'{"run": "", "steps": [0]}', b'{"run": "", "steps": []}', b'{"run": "' + RUN.encode() + b'", "steps": [[3]]}'),
    *(
        b'{"run": "' + RUN.encode() + b'", "steps": [3, 3]}',
        b'{"run": 7, "steps": {}}',
        b"\xff\xfe{\x00}\x00",
        b"\xfe\xff\xff",
    ),
    *(
        b"\x00" * 40,
        b'{"\x1b[2J": 1}',
        b'{"batch size": "\\r\\n\\u202e"}',
        b'{"batch size": [[[[[[[[[[1]]]]]]]]]]}',
        b" " * 65_536,
    ),
)


def refilled(rng: random.Random, heard: Heard) -> Frames | None:
    """Send other values of the same dtype: one entry, or all."""
    if not heard.messages:
        return None
    place = rng.randrange(len(heard.messages))
    messages = list(heard.messages)
    payload = _hostile_payload(rng, messages[place])
    messages[place] = Message(
        messages[place].sender, messages[place].receiver, messages[place].kind, messages[place].step, payload
    )
    return [heard.frames[0], *framed(messages[place].sender, messages)[1:]]


def _hostile_payload(rng: random.Random, message: Message) -> Tensor:
    payload = message.payload.clone()
    if payload.dtype == torch.uint8 and payload.dim() == 1 and rng.random() < 0.8:
        return torch.frombuffer(bytearray(rng.choice(HOSTILE_NOTES)), dtype=torch.uint8)
    if payload.dtype == torch.uint8 and rng.random() < 0.3:  # a ciphertext under another key, say
        drawn = bytearray(rng.randbytes(payload.numel()))
        return torch.frombuffer(drawn, dtype=torch.uint8).view(payload.shape) if drawn else payload
    if payload.dtype == torch.uint8:
        value: float = rng.choice((0, 1, 255))
    else:
        value = rng.choice(HOSTILE_FLOATS if payload.is_floating_point() else HOSTILE_WHOLES)
    if rng.random() < 0.5 and payload.numel():
        payload.view(-1)[rng.randrange(payload.numel())] = value
        return payload
    return payload.fill_(value)


MUTATIONS: tuple[Mutation, ...] = (
    *(flipped, cut, extended, spliced, replaced, overwritten, forged, resized, swapped, repeated, reordered, left_out),
    *(inserted, refilled),
)


def _with_one(rng: random.Random, heard: Heard, change: Callable[[bytes], bytes]) -> Frames:
    found = list(heard.frames)
    place = rng.randrange(len(found))
    found[place] = change(found[place])
    return found


def _with_head(rng: random.Random, heard: Heard, change: Callable[[list[Any]], None]) -> Frames | None:
    found = list(heard.frames)
    firsts = [place for place, frame in enumerate(found) if frame[0] == frames.MESSAGE]
    if not firsts:
        return None
    place = rng.choice(firsts)
    (length,) = struct.unpack_from("<H", found[place], 1)
    fields = msgspec.msgpack.decode(found[place][3 : 3 + length])
    change(fields)
    head = msgspec.msgpack.encode(fields)
    found[place] = struct.pack("<BH", frames.MESSAGE, len(head)) + head + found[place][3 + length :]
    return found


# --- the run


@dataclass(frozen=True)
class Fault:
    """Something that must not happen.

    Attributes:
        what: ``"crashed"``, ``"changed"``, ``"spoiled"`` or ``"unnamed"``.
        where: Exchange, party, sender and mutation.
        error: What was raised.
    """

    what: str
    where: str
    error: BaseException


def mutants(messages: int, seed: int = 0, exchanges: Sequence[str] = EXCHANGES) -> Iterator[tuple[str, Fault | None]]:
    """Yield what became of one mutated message after the other: ``"accepted"`` or ``"refused"``, and what is wrong."""
    rng = random.Random(seed)
    with mock.patch.object(frames, "CHUNK", CHUNK):
        stage = [scene for scene in scenes(exchanges) if any(heard.messages for heard in scene.heard.values())]
        done = 0
        while done < messages:
            scene = rng.choice(stage)
            sender = rng.choice(sorted(scene.heard))
            mutation = rng.choice(MUTATIONS)
            changed = mutation(rng, scene.heard[sender])
            if changed is None or changed == list(scene.heard[sender].frames):
                continue
            done += 1
            yield _outcome(scene, sender, changed, mutation.__name__)


def _outcome(scene: Scene, sender: str, changed: Frames, mutation: str) -> tuple[str, Fault | None]:
    heard = {name: list(one.frames) for name, one in scene.heard.items()} | {sender: changed}
    where = f"{scene.exchange} at {scene.name}, from {sender}: {mutation}"
    try:
        scene.attempt(heard)
        sound = scene.is_sound()
    except SplitVFLError as error:
        if not scene.is_unchanged():
            scene.reset()
            return "refused", Fault("changed", where, error)
        text = str(error)
        # Other peers say what they said once; where it no longer fits to what this one says, they may be named.
        named = any(peer in text for peer in scene.heard)
        return "refused", None if named and text.isprintable() else Fault("unnamed", where, error)
    except Exception as error:  # whatever else it is, it is what is looked for
        scene.reset()
        return "refused", Fault("crashed", where, error)
    scene.reset()
    return "accepted", None if sound else Fault("spoiled", where, ValueError("weights are NaN or infinite"))


def peak_mib() -> float:
    """Return the most memory that this process has ever had."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / (1 << 20 if sys.platform == "darwin" else 1 << 10)


def measure(quick: bool, *, messages: int | None = None, exchanges: Sequence[str] = EXCHANGES) -> list[Result]:
    """Return every row; ``quick`` sends fewer messages, if it is not said how many."""
    total = messages or (QUICK_MESSAGES if quick else MESSAGES)
    outcomes: Counter[str] = Counter()
    faults: list[Fault] = []
    before = 0.0
    for number, (outcome, fault) in enumerate(mutants(total, exchanges=exchanges)):
        outcomes[outcome] += 1
        if fault is not None:
            faults.append(fault)
        if number == min(WARM_UP, total // 2):
            before = peak_mib()
    growth = peak_mib() - before
    return _results(f"{total} mutated messages; both halves of {', '.join(exchanges)}", outcomes, faults, growth)


def _results(halves: str, outcomes: Mapping[str, int], faults: Sequence[Fault], growth: float) -> list[Result]:
    rows = [
        Result("accepted: the half ended as it should", outcomes.get("accepted", 0), "messages", None, note=halves),
        Result("refused", outcomes.get("refused", 0), "messages", None, note="an error of splitvfl's own"),
    ]
    for what, name in (
        ("crashed", "crashed, or let through what was not awaited"),
        ("changed", "refused after the party's state had changed"),
        ("spoiled", "accepted, and left weights that are NaN or infinite"),
        ("unnamed", "refused without naming the sender, or unprintably"),
    ):
        found = [fault for fault in faults if fault.what == what]
        note = "; ".join(f"{fault.where}: {fault.error!r}"[:200] for fault in found[:3]) or "none"
        rows.append(Result(name, len(found), "messages", 0.0, note=note))
    return [*rows, Result("growth of the peak of memory", growth, "MiB", MOST_GROWTH_MIB, note=f"after {WARM_UP}")]


def command(argv: Sequence[str] | None = None) -> int:
    """Parse what is this benchmark's own, and run it."""
    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument("--messages", type=int)
    parser.add_argument("--exchange", choices=EXCHANGES, action="append")
    own, rest = parser.parse_known_args(argv)
    chosen = partial(measure, messages=own.messages, exchanges=own.exchange or EXCHANGES)
    return main("Hostile messages: what becomes of them", chosen, rest)


if __name__ == "__main__":
    raise SystemExit(command())

"""From where does a run go on? From the newest checkpoint that every party has, of one and the same run.

A party that has no checkpoint yet stands before step 0 of any run. What crosses is a run's number and numbers of
steps.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeGuard

from splitvfl.errors import DataError, ProtocolError
from splitvfl.messaging.conversation import Half, Outbox
from splitvfl.messaging.json_message import awaited_note, note, read_note
from splitvfl.messaging.messages import Message

KIND = "resuming"
_MOST_STEPS = 64
_RUN = re.compile(r"[0-9a-f]{32}")


@dataclass(frozen=True, slots=True)
class HeldCheckpoints:
    """The checkpoints that a party holds, or the one that all of them go on from.

    Attributes:
        run: Number of the run, 32 hexadecimal digits; empty at a party that has no checkpoint, and only there.
        steps: Steps of which it has a checkpoint, in ascending order; of a decision, one.
    """

    run: str
    steps: tuple[int, ...]


def active_resuming(name: str, passives: Sequence[str], own: HeldCheckpoints) -> Half:
    """Return the active party's half; its result is where to go on from, a :class:`HeldCheckpoints` of one step.

    Raises:
        DataError: If the parties have checkpoints of different runs, or none in common.
        ProtocolError: If what came says nothing of checkpoints.
    """
    inbox = yield Outbox(wait=tuple(awaited_note(other, KIND, 0) for other in passives))
    held = {name: own, **{other: _held_checkpoints(inbox[other]) for other in passives}}
    chosen = common(held)
    facts = {"run": chosen.run, "steps": list(chosen.steps)}
    yield Outbox(send=tuple(note(name, other, KIND, 0, facts) for other in passives))
    return chosen


def passive_resuming(name: str, active: str, own: HeldCheckpoints) -> Half:
    """Return a passive party's half; its result is as that of :func:`active_resuming`.

    Raises:
        ProtocolError: If the active party chose a step of which there is no checkpoint here, or another run.
    """
    facts = {"run": own.run, "steps": list(own.steps)}
    inbox = yield Outbox(send=(note(name, active, KIND, 0, facts),), wait=(awaited_note(active, KIND, 0),))
    chosen = _held_checkpoints(inbox[active])
    here = own.steps or (0,)
    known = chosen.run == own.run or chosen.steps == (0,)
    if len(chosen.steps) != 1 or chosen.steps[0] not in here or not known:
        raise ProtocolError(
            f"{active} wants to go on from step {', '.join(map(str, chosen.steps)) or '(none)'} of run "
            f"{chosen.run[:8] or '(none)'}; "
            f"{name} has steps {', '.join(map(str, here))} of run {own.run[:8] or '(none)'}"
        )
    return chosen


def common(held: dict[str, HeldCheckpoints]) -> HeldCheckpoints:
    """Return the newest checkpoint that all parties have; a new run where nobody has trained.

    Raises:
        DataError: If there is none.
    """
    trained = {party: own for party, own in held.items() if own.steps not in ((), (0,))}
    runs = {own.run for own in trained.values()}
    steps = set.intersection(*(set(own.steps or (0,)) for own in held.values()))
    if len(runs) > 1 or not steps:
        have = "; ".join(
            f"{party} has steps {', '.join(map(str, own.steps)) or 'none'} of run {own.run[:8] or '(none)'}"
            for party, own in held.items()
        )
        raise DataError(
            f"the parties have no checkpoint in common: {have}. Start anew at every party with --overwrite, "
            "or bring back the run's folder where it is missing"
        )
    return HeldCheckpoints(runs.pop() if runs else secrets.token_hex(16), (max(steps),))


def _held_checkpoints(message: Message) -> HeldCheckpoints:
    facts = read_note(message)
    run, steps = facts.get("run"), facts.get("steps")
    if not isinstance(run, str) or not (run == "" or _RUN.fullmatch(run)) or not _are_steps(steps):
        raise ProtocolError(f"{message.sender} did not say which checkpoints it has")
    if (run == "") != (len(steps) == 0):
        raise ProtocolError(f"{message.sender} named a run without checkpoints, or checkpoints of no run")
    return HeldCheckpoints(run, tuple(sorted(steps)))


def _are_steps(steps: Any) -> TypeGuard[list[int]]:
    return (
        isinstance(steps, list)
        and len(steps) <= _MOST_STEPS
        and all(isinstance(step, int) and not isinstance(step, bool) and 0 <= step < 1 << 53 for step in steps)
    )

"""Messages around a run: introduction, agreement and choice of a checkpoint before it, and farewell after it.

In this order: the *introduction* (the active party says what is learned, each passive party how wide its activations
are), the *agreement* (whether all hold the same records in the same order, and the same settings), *resuming* (from
which checkpoint to go on), and, at the end, the *farewell*.

No column crosses, and no label. An introduction tells of columns and models nothing but the width. Of records a count
and a digest of their ids cross; the digest of ids that are easy to guess can be inverted by trying, and parties that
train together hold the same ids anyway. Of checkpoints the run's number crosses, and numbers of steps.
"""

from __future__ import annotations

import hashlib
import logging
import re
import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeGuard

from torch import Tensor

from splitvfl.data.columns import PartyData
from splitvfl.errors import DataError, ProtocolError, shown
from splitvfl.messaging.conversation import Expected, Half, Outbox
from splitvfl.messaging.json_message import Note, awaited_note, note, read_note
from splitvfl.messaging.messages import Message
from splitvfl.party.party import MAX_WIDTH

_log = logging.getLogger("splitvfl.exchange")

# Kinds of messages.
INTRODUCTION, AGREEMENT, RESUMING, FAREWELL = "introduction", "agreement", "resuming", "farewell"

MAX_CLASSES = 1 << 16
_TASKS = ("binary", "multiclass", "regression")
SHARD = "shard that is aligned"
"""A term of an alignment."""

# What to do about a term that differs, by what its name begins with.
_ADVICE = {
    "order of ": ". All parties need the same records in the same order, split alike: the same alignment (splitvfl "
    "align), or files of equal ids in equal order, and the same test_fraction and split_seed",
    "buckets": ". All parties divide their ids into as many (--buckets; 1 where it is not given)",
    SHARD: ". All parties align the same shard, of as many (splitvfl shard); of files that another tool has divided, "
    "say which it is (--shard 3/8)",
}
_MOST_STEPS = 64
_RUN = re.compile(r"[0-9a-f]{32}")


@dataclass(frozen=True, slots=True)
class TaskSpec:
    """The task to learn, as the active party states it.

    Attributes:
        task: ``"binary"``, ``"multiclass"`` or ``"regression"``.
        outputs: Outputs, and so scores, of a record: 1, or the number of classes.
    """

    task: str
    outputs: int


def active_introduction(name: str, passives: Sequence[str], learned: TaskSpec) -> Half:
    """Return the active party's half; its result is the width of each passive party's activation, by name.

    Raises:
        ProtocolError: If a party does not state a width from 1 to :data:`~splitvfl.party.party.MAX_WIDTH`.
    """
    facts = {"task": learned.task, "outputs": learned.outputs}
    inbox = yield Outbox(
        send=tuple(note(name, other, INTRODUCTION, 0, facts) for other in passives),
        wait=tuple(awaited_note(other, INTRODUCTION, 0) for other in passives),
    )
    return {other: _whole(read_note(inbox[other]), "width", MAX_WIDTH, other) for other in passives}


def passive_introduction(name: str, active: str, width_for: Callable[[TaskSpec], int]) -> Half:
    """Return a passive party's half; its result is what is learned.

    Args:
        name: The passive party's name.
        active: The active party's.
        width_for: Builds the bottom model, if need be, and returns the width of its outputs.

    Raises:
        ProtocolError: If the active party does not say what is learned.
    """
    inbox = yield Outbox(wait=(awaited_note(active, INTRODUCTION, 0),))
    facts = read_note(inbox[active])
    learned = stated_task(facts, active)
    yield Outbox(send=(note(name, active, INTRODUCTION, 0, {"width": width_for(learned)}),))
    return learned


def stated_task(facts: Note, active: str) -> TaskSpec:
    """Return what is learned, out of what the active party says.

    Raises:
        ProtocolError: If it does not say it.
    """
    if facts.get("task") not in _TASKS:
        raise ProtocolError(
            f"expected {active} to state one of the tasks {', '.join(_TASKS)}, got {_stated(facts, 'task')}"
        )
    learned = TaskSpec(facts["task"], _whole(facts, "outputs", MAX_CLASSES, active))
    if (learned.outputs > 1) != (learned.task == "multiclass"):
        raise ProtocolError(f"{active} states {learned.outputs} outputs of a {learned.task} task")
    return learned


def _whole(facts: Note, key: str, highest: int, party: str) -> int:
    value = facts.get(key)
    if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= highest:
        raise ProtocolError(f"expected {party} to state {key} from 1 to {highest}, got {_stated(facts, key)}")
    return value


def _stated(facts: Note, key: str) -> str:
    return shown(facts.get(key))


def terms_of(data: PartyData, settings: Mapping[str, object]) -> dict[str, object]:
    """Return what must be equal at every party: counts and digests of its ids, and the agreed settings."""
    return {
        "training records": data.train.count,
        "test records": data.test.count,
        "order of the training ids": _digest(data.train.ids),
        "order of the test ids": _digest(data.test.ids),
        **settings,
    }


def _digest(ids: Tensor) -> str:
    # Hashed where they lie: ids of a table on disk need not fit into memory.
    return hashlib.sha256(ids.cpu().contiguous().numpy().astype("<i8", copy=False).data).hexdigest()[:32]


class _Cause(NamedTuple):
    """A term on which others depend.

    Attributes:
        key: What says it in an experiment file.
        missing: What a party has that says nothing of it.
        follow: The terms that there are only where it says so.
    """

    key: str
    missing: str
    follow: frozenset[str] = frozenset()


_CAUSES: Mapping[str, _Cause] = {
    "scores are computed by": _Cause(
        "prediction.scores_by",
        "the party with the labels",
        frozenset({"keys that are passed on", "loss of the scores"}),
    ),
    "noise of scores": _Cause("prediction.score_noise", "fresh"),
    "direction of noise is sent by": _Cause("prediction.direction_by", "nobody"),
}


def _value(key: str, terms: Mapping[str, object]) -> str:
    return _CAUSES[key].missing if key in _CAUSES and key not in terms else _plain(terms.get(key))


def agreement(name: str, others: tuple[str, ...], terms: Mapping[str, object]) -> Half:
    """Return one party's half: it sends its terms to the others, and compares theirs with its own.

    Raises:
        DataError: If any term differs; every difference is named, with both values.
        ProtocolError: If what came are no terms.
    """
    send = tuple(note(name, other, AGREEMENT, 0, terms) for other in others)
    terms = read_note(send[0])  # as the others read them: a tuple arrives as a list
    inbox = yield Outbox(send=send, wait=tuple(awaited_note(other, AGREEMENT, 0) for other in others))
    for other in others:
        theirs = read_note(inbox[other])
        differing = [key for key in sorted({*terms, *theirs}) if terms.get(key) != theirs.get(key)]
        if differing:
            _log.warning("%s: does not agree with %s on %s", name, other, ", ".join(map(_plain, differing)))
            cause = next((key for key in _CAUSES if key in differing), None)
            # What follows from it is no difference of its own.
            shown = differing if cause is None else [cause, *sorted({*differing} - {cause} - _CAUSES[cause].follow)]
            lines = "; ".join(
                f"{_plain(key)}: {name} has {_value(key, terms)}, {other} has {_value(key, theirs)}" for key in shown
            )
            advice = "".join(
                words for begun, words in _ADVICE.items() if any(key.startswith(begun) for key in differing)
            )
            advice += "" if cause is None else f". Write the same {_CAUSES[cause].key} in all files"
            raise DataError(f"{name} and {other} do not agree: {lines}{advice}")
    _log.info("%s: agrees with %s on records and settings", name, ", ".join(others))


def _plain(value: object) -> str:
    """Return a name or a term as people write it; another party's text may hold anything, and is shown harmless."""
    return value if isinstance(value, str) and re.fullmatch(r"[\w .:-]{1,100}", value, re.ASCII) else shown(value)


@dataclass(frozen=True, slots=True)
class HeldCheckpoints:
    """The checkpoints that a party holds, or the one that all of them go on from.

    Attributes:
        run: Number of the run, 32 hexadecimal digits; empty at a party that has no checkpoint, and only there.
        steps: Steps of which it has a checkpoint, in ascending order; of a decision, one.
    """

    run: str
    steps: tuple[int, ...]


def active_resuming(name: str, passives: Sequence[str], own: HeldCheckpoints, *, number: str = "") -> Half:
    """Return the active party's half; its result is where to go on from, a :class:`HeldCheckpoints` of one step.

    Args:
        name: The active party.
        passives: The others.
        own: What it holds.
        number: Of a new run, if it is one. Default: drawn at random.

    Raises:
        DataError: If the parties have checkpoints of different runs, or none in common.
        ProtocolError: If what came says nothing of checkpoints.
    """
    inbox = yield Outbox(wait=tuple(awaited_note(other, RESUMING, 0) for other in passives))
    held = {name: own, **{other: _held_checkpoints(inbox[other]) for other in passives}}
    chosen = newest_in_common(held, number=number)
    facts = {"run": chosen.run, "steps": list(chosen.steps)}
    yield Outbox(send=tuple(note(name, other, RESUMING, 0, facts) for other in passives))
    _log.info("%s: all go on from step %d", name, *chosen.steps)
    return chosen


def passive_resuming(name: str, active: str, own: HeldCheckpoints) -> Half:
    """Return a passive party's half; its result is as that of :func:`active_resuming`.

    Raises:
        ProtocolError: If the active party chose a step of which there is no checkpoint here, or another run.
    """
    facts = {"run": own.run, "steps": list(own.steps)}
    inbox = yield Outbox(send=(note(name, active, RESUMING, 0, facts),), wait=(awaited_note(active, RESUMING, 0),))
    chosen = _held_checkpoints(inbox[active])
    here = own.steps or (0,)
    known = chosen.run == own.run or chosen.steps == (0,)
    if len(chosen.steps) != 1 or chosen.steps[0] not in here or not known:
        raise ProtocolError(
            f"{active} wants to go on from step {', '.join(map(str, chosen.steps)) or '(none)'} of run "
            f"{chosen.run[:8] or '(none)'}; "
            f"{name} has steps {', '.join(map(str, here))} of run {own.run[:8] or '(none)'}"
        )
    _log.info("%s: all go on from step %d", name, *chosen.steps)
    return chosen


def held_by_all(held: Mapping[str, HeldCheckpoints]) -> HeldCheckpoints:
    """Return the checkpoints that all of a party's workers hold.

    Args:
        held: By what a worker is called.

    Raises:
        DataError: If there is none, and one of them has trained.
    """
    trained = {worker: own for worker, own in held.items() if own.steps not in ((), (0,))}
    runs = {own.run for own in held.values() if own.run}
    common = set.intersection(*(set(own.steps or (0,)) for own in held.values()))
    if trained and (len(runs) > 1 or not common):
        have = "; ".join(
            f"{worker} has steps {', '.join(map(str, own.steps))} of run {own.run[:8]}"
            if own.steps
            else f"{worker} has no checkpoint"
            for worker, own in held.items()
        )
        raise DataError(
            f"the workers of this party have no checkpoint in common: {have}. Bring back the folder that is missing "
            "(worker-1 and so on within the run's), or start anew at every party with --overwrite"
        )
    if not trained and (len(runs) != 1 or not all(own.steps for own in held.values())):
        return HeldCheckpoints("", ())
    return HeldCheckpoints(runs.pop(), tuple(sorted(common)))


def newest_in_common(held: dict[str, HeldCheckpoints], *, number: str = "") -> HeldCheckpoints:
    """Return the newest checkpoint that all parties have; a new run where nobody has trained.

    Args:
        held: By party.
        number: Of a new run. Default: drawn at random.

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
    return HeldCheckpoints(runs.pop() if runs else number or secrets.token_hex(16), (max(steps),))


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


def farewell(name: str, others: Sequence[str], step: int) -> Half:
    """Return one party's half; it ends when all others have ended at the same step.

    Raises:
        ProtocolError: If another party ended at another step.
    """
    inbox = yield Outbox(send=_farewells(name, others, step), wait=_awaited_farewells(others, step))
    _check_ended(inbox, name, others, step)
    _log.info("%s: all have ended after %d steps", name, step)


def active_farewell(name: str, passives: Sequence[str], step: int, heard: Callable[[], None]) -> Half:
    """Return the active party's half, where the others take the half above: it has the last word.

    No passive party ends before all of them, and the active one, have said or noted that they are done: until then one
    of them may have to go back, and needs the others.

    Args:
        name: The active party.
        passives: The others.
        step: Number of steps done.
        heard: Called when all others have taken their leave, before this party does.

    Raises:
        ProtocolError: If another party ended at another step.
    """
    inbox = yield Outbox(wait=_awaited_farewells(passives, step))
    _check_ended(inbox, name, passives, step)
    heard()
    _log.info("%s: all have ended after %d steps", name, step)
    yield Outbox(send=_farewells(name, passives, step))


def _farewells(name: str, others: Sequence[str], step: int) -> tuple[Message, ...]:
    return tuple(note(name, other, FAREWELL, step, {"steps": step}) for other in others)


def _awaited_farewells(others: Sequence[str], step: int) -> tuple[Expected, ...]:
    return tuple(awaited_note(other, FAREWELL, step) for other in others)


def _check_ended(inbox: Mapping[str, Message], name: str, others: Sequence[str], step: int) -> None:
    for other in others:
        if read_note(inbox[other]) != {"steps": step}:
            raise ProtocolError(f"{name} ended after {step} steps, and {other} did not")

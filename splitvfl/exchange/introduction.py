"""Who meets here, and what each must know of the others to build its model: the first words of a meeting.

The active party says what is learned; each passive party answers with the width of its activations. Neither says
anything else about its columns or its model.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from splitvfl.errors import ProtocolError
from splitvfl.messaging.conversation import Half, Outbox
from splitvfl.messaging.json_message import Note, awaited_note, note, read_note
from splitvfl.party.party import MAX_WIDTH
from splitvfl.wording import shown

KIND = "introduction"
MAX_CLASSES = 1 << 16
_TASKS = ("binary", "multiclass", "regression")


@dataclass(frozen=True, slots=True)
class TaskSpec:
    """What the active party says of what is learned.

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
        send=tuple(note(name, other, KIND, 0, facts) for other in passives),
        wait=tuple(awaited_note(other, KIND, 0) for other in passives),
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
    inbox = yield Outbox(wait=(awaited_note(active, KIND, 0),))
    facts = read_note(inbox[active])
    if facts.get("task") not in _TASKS:
        raise ProtocolError(
            f"expected {active} to state one of the tasks {', '.join(_TASKS)}, got {_said(facts, 'task')}"
        )
    learned = TaskSpec(facts["task"], _whole(facts, "outputs", MAX_CLASSES, active))
    if (learned.outputs > 1) != (learned.task == "multiclass"):
        raise ProtocolError(f"{active} states {learned.outputs} outputs of a {learned.task} task")
    yield Outbox(send=(note(name, active, KIND, 0, {"width": width_for(learned)}),))
    return learned


def _whole(facts: Note, key: str, highest: int, party: str) -> int:
    value = facts.get(key)
    if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= highest:
        raise ProtocolError(f"expected {party} to state {key} from 1 to {highest}, got {_said(facts, key)}")
    return value


def _said(facts: Note, key: str) -> str:
    return shown(facts.get(key))

"""Types of errors, how values and another's text are shown in them, and checks of numbers that raise them.

::

    SplitVFLError
    ├── ArgumentError    a function or constructor was called with a value it cannot take
    ├── ConfigError      an experiment file or the command line is wrong
    ├── CryptoError      a key, ciphertext or plaintext is not what encryption needs
    │   ├── SumError     a sum that was opened is larger than agreed numbers can make it
    │   └── WorkerError  a process that helps to compute has ended, or its work cannot be had
    ├── DataError        columns, labels or records are not what the model needs
    │   └── DriftError   records to be scored differ too much from those of the training
    ├── HookError        an attack or a defense broke its contract
    │   └── AttackRefused an attack cannot work on what it sees, and says why
    ├── ProtocolError    a party sent, or waited for, something outside the conversation
    │   ├── RefusedError another party ended the link for good, and said why
    │   ├── ForgedError  what a party passed on in another's name is not what that one sent
    │   ├── SumRefused   another party opened a sum that is none of the agreed numbers; a run takes few of these
    │   └── ReplayError  after the run went back, a party sent another message for the same step than before
    ├── LinkError        a party could not be reached, went away or kept silent: worth trying again
    │   └── LeaveError   another party took its leave before everything had been said, and said why
    ├── PrivacyError     a guarantee that was asked for cannot be kept
    │   └── LimitError   a party scores no more of these records for another, and tells it which limit says so
    └── CheckpointError  a run's state could not be written or read

Every message says what was expected, what came, and where.
"""

from __future__ import annotations

import difflib
import math
import unicodedata
from collections.abc import Iterable, Mapping
from numbers import Real
from typing import Any

# Control, format and half characters, and what breaks lines: they move the cursor, or turn text round.
_STEERING = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp"})

_LONGEST_VALUE = 60

DEEPER = "expected (n, features), got {} dimensions: flatten it and begin the bottom with nn.Unflatten"
"""What is said of arrays of more than two dimensions."""


class SplitVFLError(Exception):
    """Base class of every error that splitvfl raises on purpose."""


class ArgumentError(SplitVFLError, ValueError):
    """A function or constructor was called with a value it cannot take."""


class ConfigError(SplitVFLError):
    """An experiment file or the command line is wrong."""


class CryptoError(SplitVFLError):
    """A key, ciphertext or plaintext is not what encryption needs."""


class SumError(CryptoError):
    """A sum that was opened is larger than agreed numbers can make it: something else was decrypted."""


class WorkerError(CryptoError):
    """A process that helps to compute has ended, or its work cannot be had; no other party has to do with it."""


class DataError(SplitVFLError):
    """Columns, labels or records are not what the model needs.

    Attributes:
        row: The first row that it is about, from 0, of the table that its message names; ``None``: of no row alone.
    """

    row: int | None = None


class DriftError(DataError):
    """Records to be scored differ more from those of the training than was allowed (``--fail-on-drift``)."""


class HookError(SplitVFLError):
    """An attack or a defense broke its contract; the message names it."""


class AttackRefused(HookError):
    """An attack cannot work on what it sees; the message says why. A run goes on without it."""


class ProtocolError(SplitVFLError):
    """A party sent, or waited for, something outside the conversation."""


class RefusedError(ProtocolError):
    """Another party ended the link for good, and said why; trying again makes no sense.

    The reason is that party's text, escaped so that it can be shown.
    """

    final = True


class ForgedError(ProtocolError):
    """What a party passed on in another party's name is not what that one sent; trying again makes no sense.

    The message names both: either may have caused it, and nobody else.
    """

    final = True


class SumRefused(ProtocolError):
    """Another party opened a sum that is none of the agreed numbers, or has done so too often in this run.

    That it was refused tells whoever opened it something of the sum, so refusals are counted.

    Attributes:
        final: Whether it was the last one that the run takes: trying again makes no sense.
    """

    def __init__(self, message: str, *, final: bool) -> None:
        super().__init__(message)
        self.final = final


class ReplayError(ProtocolError):
    """After the run went back to a checkpoint, a party sent another message for the same step than before.

    Answering it with the same noise would give the noise away; trying again makes no sense.
    """

    final = True


class LinkError(SplitVFLError):
    """A party could not be reached, went away or kept silent; trying again may help."""


class LeaveError(LinkError):
    """Another party took its leave before everything had been said, and may come back; the reason is its text, escaped.

    Attributes:
        done: Whether it says that it has done everything.
    """

    def __init__(self, message: str, *, done: bool = False) -> None:
        super().__init__(message)
        self.done = done


class TeamError(LinkError):
    """Another worker of this party could not go on, or is gone; the message says which, and why.

    Attributes:
        final: Whether trying again makes no sense: it would be the same another time, or the worker is gone.
    """

    def __init__(self, message: str, *, final: bool = False) -> None:
        super().__init__(message)
        self.final = final


class PrivacyError(SplitVFLError):
    """A guarantee that was asked for cannot be kept."""


class SolvableError(PrivacyError):
    """A partner can solve for more labels than a leak check allows; nothing was trained."""


class LimitError(PrivacyError):
    """A party scores no more of these records for another; trying again with the same ones makes no sense.

    The message names the limit, and nothing that the other party may not know: it is told the same.
    """

    final = True


class CheckpointError(SplitVFLError):
    """A run's state could not be written or read."""


def printable(text: str, *, longest: int | None = None) -> str:
    r"""Return another's text as a terminal may be given it: on one line, and what would steer the terminal escaped.

    Letters of every script stay, and spaces of every width; control and format characters and line breaks go.

    Args:
        text: Anybody's.
        longest: Characters at most, 1 or more; what is longer ends in "…". Default: any number.

    >>> printable("born\x1b[2J\n"), printable("gone for good", longest=5)
    ('born\\x1b[2J\\n', 'gone…')
    """
    safe = "".join(
        one.encode("unicode_escape").decode() if unicodedata.category(one) in _STEERING else one for one in text
    )
    return safe if longest is None or len(safe) <= longest else safe[: longest - 1] + "…"


def all_printable(value: Any) -> Any:
    """Return what was read from another's JSON with every text in it :func:`printable`, keys of objects too."""
    if isinstance(value, Mapping):
        return {all_printable(key): all_printable(inner) for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [all_printable(inner) for inner in value]
    return printable(value) if isinstance(value, str) else value


def suggestion(name: str, known: Iterable[str]) -> str:
    """Return ``"; did you mean batch_size?"``, or what there is when nothing comes near.

    >>> suggestion("batchsize", ["epochs", "batch_size"])
    '; did you mean batch_size?'
    >>> suggestion("rate", ["epochs", "batch_size"])
    '; there are batch_size, epochs'
    """
    # Compared in lower case: case is the commonest mistake, and would weigh as much as any other letter.
    by_lower = {other.lower(): other for other in sorted(known)}
    begun = [other for other in by_lower if len(name) > 2 and other.startswith(name.lower())]
    near = begun or difflib.get_close_matches(name.lower(), by_lower, n=1)
    if near:
        return f"; did you mean {by_lower[near[0]]}?"
    return f"; there are {', '.join(by_lower.values())}" if by_lower else ""


def shown(value: object) -> str:
    """Return a value as its writer would recognise it, on one line and not too long."""
    if value is None:
        return "nothing"
    if isinstance(value, bool):
        return str(value).lower()
    text = repr(value)
    return text if len(text) <= _LONGEST_VALUE else text[: _LONGEST_VALUE - 1] + "…"


def number(name: str, value: object) -> float:
    """Return a number as a float.

    Raises:
        ArgumentError: If it is text, nothing, or a truth value.
    """
    if type(value) is float:  # as nearly always, and asking for a Real takes ten times as long
        return value
    if isinstance(value, bool) or not isinstance(value, Real):
        raise ArgumentError(f"{name} must be a number, got {value!r}")
    return float(value)


def positive(name: str, value: float) -> float:
    """Return a finite value above 0 as a float.

    Raises:
        ArgumentError: If it is none.
    """
    value = number(name, value)
    if not (math.isfinite(value) and value > 0):
        raise ArgumentError(f"{name} must be finite and above 0, got {value!r}")
    return value


def probability(name: str, value: float) -> float:
    """Return a value strictly between 0 and 1 as a float.

    Raises:
        ArgumentError: If it is none.
    """
    value = number(name, value)
    if not 0 < value < 1:
        raise ArgumentError(f"{name} must lie strictly between 0 and 1, got {value!r}")
    return value


def count(name: str, value: int) -> int:
    """Return a whole number of at least 1.

    Raises:
        ArgumentError: If it is none.
    """
    if isinstance(value, bool) or not isinstance(value, Real) or not value >= 1 or value % 1:
        raise ArgumentError(f"{name} must be a whole number of at least 1, got {value!r}")
    return int(value)


def from_zero(name: str, value: float) -> float:
    """Return a finite value of at least 0 as a float.

    Raises:
        ArgumentError: If it is none.
    """
    value = number(name, value)
    if not (math.isfinite(value) and value >= 0):
        raise ArgumentError(f"{name} must be finite and at least 0, got {value!r}")
    return value

"""How a setting of data is written where the user is: as an argument, a key of a file, or a flag."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

# How a setting is written where the user is: its name as an argument, and its value, if one is meant.
Spelling = Callable[[str, object], str]


def as_argument(name: str, value: object = None) -> str:
    """Return a setting as an argument in Python.

    >>> as_argument("missing", "indicator"), as_argument("drop")
    ("missing='indicator'", 'drop')
    """
    return name if value is None else f"{name}={value!r}"


# Settings of data that are called otherwise in an experiment, or on the command line of ``splitvfl ingest``.
_KEYS = {"text_columns": "text"}
_FLAGS = {"text_columns": "text", "id_column": "id"}


def as_key(name: str, value: object = None) -> str:
    """Return a setting of data as a key of an experiment file.

    >>> as_key("missing", "indicator"), as_key("drop")
    ('data.missing: indicator', 'data.drop')
    """
    return f"data.{_KEYS.get(name, name)}" + ("" if value is None else f": {value}")


def as_flag(name: str, value: object = None) -> str:
    """Return a setting of data as a flag of ``splitvfl ingest``.

    >>> as_flag("missing", "indicator"), as_flag("id_column")
    ('--missing indicator', '--id')
    """
    return f"--{_FLAGS.get(name, name).replace('_', '-')}" + ("" if value is None else f" {value}")


_spelling: ContextVar[Spelling] = ContextVar("spelling", default=as_argument)


@contextmanager
def settings_written(spelling: Spelling) -> Iterator[None]:
    """For the length of a block, have messages write settings as they are written where the user is."""
    token = _spelling.set(spelling)
    try:
        yield
    finally:
        _spelling.reset(token)


def setting(name: str, value: object = None) -> str:
    """Return a setting, or one with a value, as it is written where the user is; in Python unless somebody said so.

    Args:
        name: Its name as an argument.
        value: What it would be set to, if that is meant.

    >>> with settings_written(lambda name, value: f"--{name} {value}"):
    ...     setting("missing", "indicator")
    '--missing indicator'
    """
    return _spelling.get()(name, value)

"""How a setting of data is written where the user is: as an argument, a key of a file, or a flag."""

from __future__ import annotations

import csv
import io
import json
import shlex
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

    >>> as_key("missing", "indicator"), as_key("drop"), as_key("missing_values", ["?"])
    ('data.missing: indicator', 'data.drop', 'data.missing_values: ["?"]')
    """
    return f"data.{_KEYS.get(name, name)}" + ("" if value is None else f": {_in_yaml(value)}")


def _in_yaml(value: object) -> str:
    """Return a value as a file has it; a text without letters in quotes, as it may be a sign of YAML."""
    if isinstance(value, list) or (isinstance(value, str) and not any(map(str.isalnum, value))):
        return json.dumps(value, ensure_ascii=False)
    return str(value)


def as_flag(name: str, value: object = None) -> str:
    """Return a setting of data as a flag of ``splitvfl ingest``.

    >>> as_flag("missing", "indicator"), as_flag("id_column"), as_flag("missing_values", ["?", "-"])
    ('--missing indicator', '--id', "--missing-values '?,-'")
    """
    return f"--{_FLAGS.get(name, name).replace('_', '-')}" + ("" if value is None else f" {_in_shell(value)}")


def _in_shell(value: object) -> str:
    """Return a value as it is typed: a list with commas."""
    if not isinstance(value, list):
        return str(value) if any(map(str.isalnum, str(value))) else shlex.quote(str(value))
    line = io.StringIO()
    csv.writer(line, lineterminator="").writerow(value)
    return shlex.quote(line.getvalue())


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

"""A log beside the console: what a deployed party leaves for those who look after it.

Each folder of the package has a logger (``splitvfl.net``, ``splitvfl.run``, ...), which says nothing unless somebody
asks for it. No record, id, label, key or figure goes into it: of an error that may quote data only its kind is told.
"""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from enum import StrEnum
from logging.handlers import WatchedFileHandler
from pathlib import Path

from splitvfl.errors import ConfigError

STANDARD_ERROR = Path("-")
_REFUSALS = ("splitvfl.net.links", "splitvfl.app.http_server")


class LogLevel(StrEnum):
    """The least severe entries that are kept."""

    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


@contextmanager
def logging_to(path: Path, level: LogLevel) -> Iterator[None]:
    """Append what the package logs to a file, as long as the block lasts.

    The file may be renamed meanwhile, as logrotate does: a new one is begun then.

    Args:
        path: The file, or :data:`STANDARD_ERROR`.
        level: Less severe entries are left out.

    Raises:
        ConfigError: If it cannot be written.
    """
    logger = logging.getLogger("splitvfl")
    before, handler = logger.level, _handler(path)
    handler.setFormatter(_OneLine())
    logger.addHandler(handler)
    logger.setLevel(level.upper())
    try:
        yield
    finally:
        logger.setLevel(before)
        logger.removeHandler(handler)
        handler.close()


@contextmanager
def refused_calls_told() -> Iterator[None]:
    """Tell on standard error of calls that were refused, and connections closed, as long as the block lasts."""
    loggers = [logging.getLogger(name) for name in _REFUSALS]
    handler = logging.StreamHandler(sys.stderr)
    handler.setLevel(logging.WARNING)
    for logger in loggers:
        logger.addHandler(handler)
    try:
        yield
    finally:
        for logger in loggers:
            logger.removeHandler(handler)


def _handler(path: Path) -> logging.Handler:
    if path == STANDARD_ERROR:
        return logging.StreamHandler(sys.stderr)
    try:
        return WatchedFileHandler(path, encoding="utf-8")
    except OSError as error:
        raise ConfigError(
            f"cannot write the log {path}: {error.strerror}; --log takes a file, or - for stderr"
        ) from error


class _OneLine(logging.Formatter):
    """An entry is one line, whatever a partner has put into it: nobody writes entries of his own."""

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)s %(name)s: %(message)s", datefmt="%Y-%m-%dT%H:%M:%SZ")
        self.converter = time.gmtime

    def format(self, record: logging.LogRecord) -> str:
        """Return the entry, with what is not printable escaped."""
        line = super().format(record)
        return "".join(one if one.isprintable() else one.encode("unicode_escape").decode() for one in line)

"""What parties of a run with calculated noise have sent since the training: joint predictions, each a release more.

Noise that was calculated for a training says nothing of them: a part of a logit shows the weights, which depend on the
rows that were trained on. What crossed is counted in a file of the run's folder, written before it crosses, so that the
run's figures, its report and its audit say it from then on. Where some of the noise was put by for predictions, these
are counted in another file, until it is used up.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Final, Literal

from splitvfl.errors import ArgumentError, CheckpointError, printable
from splitvfl.system.folder_lock import locked
from splitvfl.system.untrusted_files import UntrustedFile, write_json

RELEASES_FILE: Final = "releases.json"
"""What crossed since the training, and is not covered."""

RESERVE_FILE: Final = "reserved-predictions.json"
"""What noise was put by for, and how much of it is used up."""

What = Literal["parts of logits", "answers on request", "published scores"]
"""What crosses: of records that are scored together, of records that others ask for, and what they are told of it."""


@dataclass(frozen=True)
class Release:
    """What some parties have sent to others since the training, without noise that was counted.

    Attributes:
        what: What it is.
        senders: Who sends it.
        receivers: Who receives it.
        records: Of how many records, repeated ones counted again; ``None``: of as many as were asked for.
        first: Day on which it began, UTC, as in 2026-01-31.
        last: Day on which there was more of it.
    """

    what: What
    senders: tuple[str, ...]
    receivers: tuple[str, ...]
    records: int | None
    first: str = ""
    last: str = ""

    def __post_init__(self) -> None:
        if not self.senders or not self.receivers:
            raise ArgumentError("a release has a sender and a receiver at least")
        if self.records is not None and self.records < 1:
            raise ArgumentError(f"a release is of 1 record at least, got {self.records}")

    @property
    def in_words(self) -> str:
        """Return what it does to what is promised of the run, in a sentence."""
        senders, receivers = " and ".join(self.senders), " and ".join(self.receivers)
        of = "the records that were asked for" if self.records is None else f"{self.records:,} records"
        days = "" if not self.first else f" ({self.first}{'' if self.last == self.first else f' to {self.last}'})"
        told = {
            "parts of logits": f"{senders}'s parts of the logits of {of} crossed to {receivers}",
            "answers on request": f"{senders} answered {receivers} with its parts of the logits of {of}",
            "published scores": f"{senders} published the scores of {of} to {receivers}",
        }[self.what]
        return (
            f"Not covered: {told} after the training{days}, without noise that is counted; they can be solved for "
            f"weights, which depend on all training rows of {senders}. What is promised of the training towards "
            f"{receivers} ended there."
        )

    @property
    def is_scored_together(self) -> bool:
        """Whether it is what passive parties send of records that all score together."""
        return self.what == "parts of logits"

    @property
    def way(self) -> tuple[object, ...]:
        """What crosses, from whom to whom: releases that agree in it are counted together."""
        return self.what, self.senders, self.receivers, self.records is None

    def followed_by(self, other: Release) -> Release:
        """Return both as one."""
        records = None if self.records is None or other.records is None else self.records + other.records
        return replace(self, records=records, last=other.last)


@dataclass(frozen=True)
class Reserve:
    """Predictions that the noise of a training was calculated to cover too.

    Attributes:
        records: How many records may be scored, repeated ones counted again.
        sigma: Standard deviation of the noise on each part of a logit.
        clip: Largest size of such a part before noise.
        used: Records that were scored.
    """

    records: int
    sigma: float
    clip: float
    used: int = 0

    def __post_init__(self) -> None:
        if not (self.records >= 1 and 0 <= self.used <= self.records and self.sigma > 0 and self.clip > 0):
            raise ArgumentError(f"expected noise for some records, of which some are used, got {self}")

    @property
    def left(self) -> int:
        """How many records can still be scored."""
        return self.records - self.used


def keep_reserve(folder: Path, reserve: Reserve | None) -> None:
    """Put by what a finished training has left for predictions, unless that was done: none of it comes back.

    Raises:
        CheckpointError: If it cannot be written.
    """
    if reserve is not None and not (folder / RESERVE_FILE).exists():
        _write(folder / RESERVE_FILE, reserve)


def reserve_of(folder: Path) -> Reserve:
    """Return what is left for predictions.

    Raises:
        CheckpointError: If the file is missing or damaged: nobody knows how much was used.
    """
    return UntrustedFile(
        path=folder / RESERVE_FILE,
        says="does not say how many predictions the run's noise still covers",
        remedy="restore its latest version: predictions that were used cannot be used again",
    ).present_json(Reserve)


def use_reserve(folder: Path, records: int) -> Reserve | None:
    """Count predictions against what was put by, and have it on the disk: before anything crosses.

    Returns:
        What is left then; ``None``, and nothing is counted, if it is not enough.

    Raises:
        CheckpointError: As :func:`reserve_of`, or if it cannot be written.
        ConfigError: If another process is counting.
    """
    with _counting(folder / RESERVE_FILE):
        found = reserve_of(folder)
        if records > found.left:
            return None
        found = replace(found, used=found.used + records)
        _write(folder / RESERVE_FILE, found)
        return found


def releases(folder: Path) -> list[Release]:
    """Return what crossed after the training of a run, by its folder; none where nothing is noted.

    Raises:
        CheckpointError: If the file is damaged, or cannot be read.
    """
    file = UntrustedFile(
        path=folder / RELEASES_FILE,
        says="does not hold what was predicted after the training",
        remedy="restore it; without it, reports on this run leave predictions out",
    )
    return file.json(list[Release]) or []


def note_release(folder: Path, release: Release) -> None:
    """Count a release in a run's folder, and have it on the disk: before anything crosses.

    Raises:
        CheckpointError: If the file is damaged, or cannot be read or written.
        ConfigError: If another process is counting.
    """
    today = datetime.now(UTC).date().isoformat()
    added = replace(release, first=today, last=today)
    with _counting(folder / RELEASES_FILE):
        found = {one.way: one for one in releases(folder)}
        earlier = found.get(added.way)
        found[added.way] = added if earlier is None else earlier.followed_by(added)
        _write(folder / RELEASES_FILE, list(found.values()))


def said_of(found: Sequence[Release]) -> list[str]:
    """Return what releases do to what is promised, a sentence each."""
    return [printable(one.in_words) for one in found]


@contextmanager
def _counting(path: Path) -> Iterator[None]:
    """Keep two processes from counting at once: one count would be lost."""
    if not path.parent.is_dir():
        raise CheckpointError(f"cannot write {path}: there is no such folder; nothing was sent")
    with locked(path):
        yield


def _write(path: Path, found: list[Release] | Reserve) -> None:
    try:
        write_json(path, found, indent=1)
    except OSError as error:
        raise CheckpointError(
            f"cannot write {path}: {error.strerror or error}; nothing was sent: predictions of a run with noise that "
            "was calculated for its training are counted there"
        ) from error

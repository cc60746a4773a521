"""What a run writes into its folder, of one process or of one party over a network."""

from __future__ import annotations

from pathlib import Path

from splitvfl.exchange.base import KEPT_FOLDER
from splitvfl.party.refusals import PATTERN

FAREWELL_FILE = "farewell.json"
"""Of one party: written when nobody needs it any more."""
REPLAY_JOURNAL = "replay.journal"
"""Of one party: digests of what came, as far back as its oldest checkpoint reaches."""
FOLDERS = ("checkpoints", KEPT_FOLDER)
"""Folders, which are deleted as a whole."""


def refusal_journals(folder: Path) -> list[Path]:
    """Return the journals in a folder that count refused sums."""
    return list(folder.glob(PATTERN))


def paths(folder: Path) -> list[Path]:
    """Return the folders and files of a run that are in a folder, its checkpoints first."""
    return [*filter(Path.exists, (folder / name for name in FOLDERS)), *files(folder)]


def files(folder: Path) -> list[Path]:
    """Return the files of a run that are in a folder."""
    single = [folder / name for name in ("metrics.jsonl", FAREWELL_FILE, REPLAY_JOURNAL)]
    return [*folder.glob("events.out.tfevents.*"), *refusal_journals(folder), *filter(Path.exists, single)]

"""A run's beginning and end: when, and on which data, noted where its owner alone may read it."""

from __future__ import annotations

import platform
import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Final, Literal

import msgspec

from splitvfl.config.sections import ExperimentConfig
from splitvfl.data.columns import PartyData
from splitvfl.data.id_rules import FIRST_RULE, ID_RULE, RuleVersion, SplitBy
from splitvfl.data.schema import Role
from splitvfl.privacy import Solvable
from splitvfl.report.provenance import (
    BEGUN_FILE,
    PartyRecord,
    Provenance,
    data_identity,
    deciding_settings,
    keyed,
)
from splitvfl.system.untrusted_files import UntrustedFile, write_json

_COMPUTES_WITH = ("splitvfl", "torch", "numpy")
_UNKNOWN = "unknown"
_KEY_BYTES = 32


# As text: earlier versions read nothing else in this file.
_RULES: Mapping[str, RuleVersion] = {"1": 1, "2": 2}


class _Noted(msgspec.Struct):
    started: str
    key: str
    id_rule: Literal["1", "2"] = "1"
    split_by: SplitBy = "labels"


@dataclass(frozen=True, slots=True)
class Command:
    """The command that asked for a run.

    Attributes:
        words: As it may be shown; empty for a run that Python asked for.
        foreseen: Told what partners can compute of labels, before anything is trained; what it raises ends the run
            there.
    """

    words: str = ""
    foreseen: Callable[[Sequence[Solvable]], None] = lambda found: None


NO_COMMAND: Final = Command()


@dataclass(frozen=True)
class Beginning:
    """When a run began, and the key of its digests.

    Attributes:
        started: UTC, as in ``2026-05-04T16:05:06Z``; empty if an older version began it.
        key: 32 random bytes.
        id_rule: Version of the rule for ids (:mod:`splitvfl.data.id_column`).
        split_by: What divides its records where one process loads them.
    """

    started: str
    key: bytes
    id_rule: RuleVersion = ID_RULE
    split_by: SplitBy = "ids"

    @classmethod
    def noted(
        cls, folder: Path, *, going_on: bool, id_rule: RuleVersion = ID_RULE, split_by: SplitBy = "ids"
    ) -> Beginning:
        """Return when a run began: now, which is noted in its folder, or what was noted when it did.

        Args:
            folder: The run's.
            going_on: Whether it goes on.
            id_rule: Version of the rule that its ids are read by, where nothing was noted.
            split_by: What divides its records, likewise.

        Raises:
            CheckpointError: If the note is damaged.
            OSError: If it cannot be written.
        """
        path = folder / BEGUN_FILE
        if going_on and (found := cls.read(path)) is not None:
            return found
        begun = cls("" if going_on else now(), secrets.token_bytes(_KEY_BYTES), id_rule, split_by)
        begun._write(path)
        return begun

    @classmethod
    def read(cls, path: Path) -> Beginning | None:
        """Return what was noted; ``None``: nothing was, by an older version.

        Raises:
            CheckpointError: If the note is damaged.
        """
        anew = "delete it: the run goes on, and its digests get another key"
        file = UntrustedFile(path=path, most=1 << 20, remedy=anew)
        noted = file.json(_Noted)
        try:
            return (
                None if noted is None else cls(noted.started, _key_of(noted.key), _RULES[noted.id_rule], noted.split_by)
            )
        except ValueError as error:
            raise file.refused(error) from error

    def _write(self, path: Path, **more: str) -> None:
        noted = {"started": self.started, "key": self.key.hex(), "id_rule": str(self.id_rule)}
        noted |= {"split_by": self.split_by, **more}
        write_json(path, noted, indent=0, end=b"")

    def provenance(
        self,
        config: ExperimentConfig,
        parties: Mapping[str, PartyData],
        digests: Mapping[str, Mapping[str, str]],
        *,
        folder: Path,
        held_out: int,
        command: str,
    ) -> Provenance:
        """Return where the figures of a run that ends now come from, and note in its folder what data it is of.

        Args:
            config: The experiment.
            parties: The data of the parties in this process.
            digests: Theirs (:func:`splitvfl.data.digests.data_digests`).
            folder: The run's.
            held_out: Training records in no batch.
            command: The command as it may be shown.
        """
        identity = data_identity(digests)
        self._write(folder / BEGUN_FILE, data=identity)
        own = next(iter(parties.values()))
        return Provenance(
            started=self.started,
            finished=now(),
            command=command,
            versions={**{name: _version(name) for name in _COMPUTES_WITH}, "Python": platform.python_version()},
            settings=deciding_settings(config.model_dump(mode="json")),
            train=own.training_records,
            test=own.test_records,
            held_out=held_out,
            parties={
                name: self._record(config.parties[name].role, data, digests[name]) for name, data in parties.items()
            },
            same_data=identity,
        )

    def _record(self, role: Role, data: PartyData, digests: Mapping[str, str]) -> PartyRecord:
        shown = {what: keyed(digest, key=self.key, what=f"{data.name}/{what}") for what, digest in digests.items()}
        return PartyRecord(role, data.width, len(data.field_sizes), shown)


def with_ids_of(config: ExperimentConfig, folder: Path | None) -> ExperimentConfig:
    """Return the experiment of a run that a folder holds, whose ids are read as they were when it began.

    Args:
        config: The experiment.
        folder: The run's; ``None``: it has not begun.

    Raises:
        CheckpointError: If the note of its beginning is damaged.
    """
    if folder is None:
        return config
    begun = Beginning.read(folder / BEGUN_FILE)
    if begun is None:
        return config.keeping_ids(FIRST_RULE, "labels")
    return config.keeping_ids(begun.id_rule, begun.split_by)


def _key_of(noted: str) -> bytes:
    """Return a key as it was noted; under another's or none, whoever sees digests could try out what they are of."""
    key = bytes.fromhex(noted)
    if len(key) != _KEY_BYTES:
        raise ValueError(f"expected a key of {_KEY_BYTES} bytes, got {len(key)}")
    return key


def now() -> str:
    """Return the present second in UTC."""
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:  # run from a checkout that is not installed
        return _UNKNOWN

"""Activations that cross once, as the label party keeps them: in memory, or in files of the run's folder.

With a folder they lie in it, one file of rows for each passive party (training records, then test records) and
an ``index.json``, all readable by their owner only; a run that is started again finds them there and asks for what is
missing. What fits into ``memory_mib`` is read into memory once it is complete, anything larger is mapped and read row
by row. Without a folder they are in memory, or refused.

A digest goes along with each party's rows: a chain of SHA-256 over its pieces, of what crossed, byte by byte.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import msgspec
import torch
from torch import Tensor

from splitvfl.data.columns import PartyData
from splitvfl.errors import CheckpointError, ConfigError, ProtocolError
from splitvfl.hooks import Phase
from splitvfl.learning.batches import PIECE_ROWS
from splitvfl.messaging.messages import dtype_named, name_of
from splitvfl.party.party import PassiveParty
from splitvfl.system.gpu_copies import bytes_of
from splitvfl.system.private_folder import private_folder
from splitvfl.system.untrusted_files import UntrustedFile, open_own, write_json

MEMORY_MIB = 1024
DISK_MIB = 65_536
_INDEX = "index.json"
_FORMAT = "splitvfl kept 1"
_MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class Piece:
    """Neighbouring records that cross in one message.

    Attributes:
        number: Its number, from 0.
        part: ``"train"`` or ``"test"``.
        place: Its number among the pieces of this part, from 0.
        rows: Positions among the part's records.
        start: Position of the first one among all, training records first.
    """

    number: int
    part: str
    place: int
    rows: range
    start: int

    @property
    def positions(self) -> Tensor:
        """The positions, int64."""
        return torch.arange(self.rows.start, self.rows.stop)


@dataclass(frozen=True, slots=True)
class Pieces:
    """The pieces that cross, in order: a pure function of two agreed numbers."""

    train: int
    test: int

    @classmethod
    def of(cls, data: PartyData) -> Pieces:
        """Return the pieces of a party's records."""
        return cls(data.train.count, data.test.count)

    def __len__(self) -> int:
        """Number of pieces."""
        return -(-self.train // PIECE_ROWS) + -(-self.test // PIECE_ROWS)

    def __iter__(self) -> Iterator[Piece]:
        """Yield the pieces."""
        return self.after(0)

    def after(self, done: int) -> Iterator[Piece]:
        """Yield the pieces but for so many of the first."""
        return map(self._piece, range(done, len(self)))

    def _piece(self, number: int) -> Piece:
        of_train = -(-self.train // PIECE_ROWS)
        part, place, count, before = (
            ("train", number, self.train, 0)
            if number < of_train
            else ("test", number - of_train, self.test, self.train)
        )
        start = place * PIECE_ROWS
        return Piece(number, part, place, range(start, min(start + PIECE_ROWS, count)), before + start)

    @property
    def rows(self) -> int:
        """Number of records, of both parts."""
        return self.train + self.test


@dataclass(frozen=True, slots=True)
class Form:
    """Width and dtype of a party's rows.

    Attributes:
        width: Numbers in a row.
        dtype: Of what dtype.
    """

    width: int
    dtype: torch.dtype

    @property
    def row_bytes(self) -> int:
        """Bytes of a row."""
        return self.width * self.dtype.itemsize


class Chain:
    """A digest of what a party sent, piece by piece: it can be taken further, and it says where two runs part.

    Args:
        form: Of the rows.
        value: Where to go on, in hexadecimal; empty at the beginning.
    """

    def __init__(self, form: Form, value: str = "") -> None:
        self.value = value or hashlib.sha256(f"{form.width} {name_of(form.dtype)}".encode()).hexdigest()

    def add(self, payload: Tensor) -> None:
        """Take in a piece."""
        self._add(bytes_of(payload.detach().cpu()))

    def _add(self, data: memoryview | bytes) -> None:
        digest = hashlib.sha256(bytes.fromhex(self.value))
        digest.update(data)
        self.value = digest.hexdigest()


class _Party(msgspec.Struct, frozen=True):
    file: str
    width: int
    dtype: str
    digest: str


class _KeptIndex(msgspec.Struct, frozen=True):
    format: str
    records: str
    train: int
    test: int
    pieces: int
    parties: dict[str, _Party]


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits on what is kept, of all passive parties together.

    Attributes:
        memory_mib: MiB in memory.
        disk_mib: MiB in the run's folder.
    """

    memory_mib: int = MEMORY_MIB
    disk_mib: int = DISK_MIB


class Kept:
    """The rows of every passive party, as far as they have crossed.

    Args:
        pieces: What crosses.
        forms: By party, what its rows are.
        limits: How much may be kept.
        folder: Where they are kept; ``None`` keeps them in memory.
        records: What tells these records from others: a digest of their ids.

    Attributes:
        done: Number of pieces that are kept.

    Raises:
        ConfigError: If they are more than may be kept, before memory or disk is taken for them.
        CheckpointError: If a file cannot be written.
    """

    def __init__(
        self, pieces: Pieces, forms: Mapping[str, Form], *, limits: Limits, folder: Path | None, records: str
    ) -> None:
        self.pieces, self.forms = pieces, dict(forms)
        self.done = 0
        self._limits, self._records = limits, records
        self._folder = folder
        self._chains = {name: Chain(form) for name, form in self.forms.items()}
        self._rows: dict[str, Tensor] = {}
        self._check_limits()
        if self._folder is None:
            self._rows = {name: torch.empty(pieces.rows, form.width, dtype=form.dtype) for name, form in forms.items()}
        else:
            self._make_files()

    @property
    def size(self) -> int:
        """Bytes of all rows."""
        return self.pieces.rows * sum(form.row_bytes for form in self.forms.values())

    @property
    def complete(self) -> bool:
        """Whether everything has crossed."""
        return self.done == len(self.pieces)

    @property
    def digests(self) -> dict[str, str]:
        """Digests of the kept activations, by party."""
        return {name: chain.value for name, chain in self._chains.items()}

    def _check_limits(self) -> None:
        widths = ", ".join(f"{name} {form.width} wide" for name, form in self.forms.items())
        what = f"the activations of {self.pieces.rows} records ({widths}) are {_in_words(self.size)}"
        fewer = "or let the parties send narrower ones (exchange.width, or the last layer of model.bottom)"
        limits = self._limits
        if self._folder is None:
            if self.size > limits.memory_mib * _MIB:
                raise ConfigError(
                    f"{what}, and {limits.memory_mib} MiB may be kept in memory (exchange.memory_mib): give the run a "
                    f"folder (--out, log_dir), where up to exchange.disk_mib of them can lie, raise the limit, {fewer}"
                )
            return
        if self.size > limits.disk_mib * _MIB:
            raise ConfigError(
                f"{what}, and {limits.disk_mib} MiB may be kept in the run's folder (exchange.disk_mib): raise the "
                f"limit, {fewer}"
            )
        free = shutil.disk_usage(_existing(self._folder)).free
        if self.size > free:
            raise ConfigError(f"{what}, and there are {_in_words(free)} free for {self._folder}: make room, {fewer}")

    # --- files

    def _make_files(self) -> None:
        assert self._folder is not None
        try:
            shutil.rmtree(self._folder, ignore_errors=True)
            private_folder(self._folder)
            for name in self.forms:
                open_own(self._path(name), "xb").close()
            self._write_index()
        except OSError as error:
            raise self._unwritable(error) from error

    def _path(self, name: str) -> Path:
        assert self._folder is not None
        return self._folder / f"{list(self.forms).index(name)}.rows"

    def _write_index(self) -> None:
        assert self._folder is not None
        parties = {
            name: _Party(self._path(name).name, form.width, name_of(form.dtype), self._chains[name].value)
            for name, form in self.forms.items()
        }
        index = _KeptIndex(_FORMAT, self._records, self.pieces.train, self.pieces.test, self.done, parties)
        write_json(self._folder / _INDEX, index, end=b"")

    def _unwritable(self, error: OSError) -> CheckpointError:
        return CheckpointError(f"cannot keep activations in {self._folder}: {error}; make room, and start again")

    @classmethod
    def found(cls, folder: Path, names: Sequence[str], pieces: Pieces, *, limits: Limits, records: str) -> Kept | None:
        """Return what a folder holds, after a check of every byte; ``None`` if it holds nothing.

        Args:
            folder: Where they are kept.
            names: The passive parties.
            pieces: What crosses.
            limits: How much may be kept.
            records: As above.

        Raises:
            CheckpointError: If it is damaged, or of other parties or records.
        """
        path = folder / _INDEX
        file = UntrustedFile(path=path, remedy=_ANEW)
        index = file.json(_KeptIndex)
        if index is None:
            return None
        try:
            forms = {name: Form(one.width, dtype_named(one.dtype)) for name, one in index.parties.items()}
        except (ValueError, ProtocolError) as error:
            raise file.refused(error) from error
        expected = (_FORMAT, records, pieces.train, pieces.test, set(names))
        if (index.format, index.records, index.train, index.test, set(forms)) != expected:
            raise CheckpointError(
                f"{path} is of other parties or other records than this run's, or of another version of splitvfl: "
                f"bring back what was there, or {_ANEW}"
            )
        kept = cls.__new__(cls)
        kept.pieces, kept.forms, kept.done = pieces, forms, index.pieces
        kept._limits, kept._records, kept._folder = limits, records, folder
        kept._rows, kept._chains = {}, {name: Chain(form) for name, form in forms.items()}
        kept._check_files({name: one.digest for name, one in index.parties.items()})
        kept._open_rows()
        return kept

    def _check_files(self, digests: Mapping[str, str]) -> None:
        for name, form in self.forms.items():
            with UntrustedFile(path=self._path(name), remedy=_ANEW).opened() as file:
                for piece in islice(self.pieces, self.done):
                    self._chains[name]._add(file.read(len(piece.rows) * form.row_bytes))
            if self._chains[name].value != digests[name]:
                raise CheckpointError(
                    f"{self._path(name)} is damaged: it does not hold what {name} sent, as {_INDEX} beside it has it; "
                    f"bring back a copy, or {_ANEW}"
                )

    # --- rows

    def add(self, payloads: Mapping[str, Tensor]) -> None:
        """Keep the next piece of every party, as it crossed.

        Raises:
            CheckpointError: If it cannot be written.
        """
        piece = next(self.pieces.after(self.done))
        for name, payload in payloads.items():
            self._put(name, piece, payload.detach().cpu())
            self._chains[name].add(payload)
        self.done += 1
        if self._folder is None:
            return
        try:
            self._write_index()  # only now: whoever goes on finds nothing in it that is not in the files
        except OSError as error:
            raise self._unwritable(error) from error
        self._open_rows()

    def _put(self, name: str, piece: Piece, payload: Tensor) -> None:
        if self._folder is None:
            self._rows[name][piece.start : piece.start + len(piece.rows)] = payload
            return
        try:
            with open_own(self._path(name), "r+b", buffered=False) as file:
                file.seek(piece.start * self.forms[name].row_bytes)
                left = bytes_of(payload)
                while left:
                    left = left[file.write(left) :]
                os.fsync(file.fileno())
        except OSError as error:
            raise self._unwritable(error) from error

    def _open_rows(self) -> None:
        """Map the files once they are complete; read them, if they are small."""
        if not self.complete:
            return
        small = self.size <= self._limits.memory_mib * _MIB
        for name, form in self.forms.items():
            count = self.pieces.rows * form.width
            mapped = torch.from_file(str(self._path(name)), shared=False, size=count, dtype=form.dtype)
            self._rows[name] = (mapped.clone() if small else mapped).view(self.pieces.rows, form.width)

    def take(self, name: str, part: str, positions: Tensor) -> Tensor:
        """Return a party's rows of some records, ``(n, width)``, as they crossed.

        Args:
            name: The party.
            part: ``"train"`` or ``"test"``.
            positions: Among the part's records, int64 ``(n,)``.
        """
        assert self.complete, "everything crosses before the first step"
        return self._rows[name].index_select(0, positions.cpu() + (0 if part == "train" else self.pieces.train))


_ANEW = "start anew at every party (--overwrite)"


def ids_digest(data: PartyData) -> str:
    """Return what tells a party's records from others: a digest of their ids."""
    digest = hashlib.sha256(json.dumps([data.train.count, data.test.count]).encode())
    for part in (data.train, data.test):
        digest.update(part.ids.cpu().contiguous().numpy().astype("<i8", copy=False).data)
    return digest.hexdigest()


def source_digest(party: PassiveParty, phases: Iterable[Phase]) -> str:
    """Return a digest of all that a party's activations are made of: columns, bottom, and what its defenses claim."""
    digest = hashlib.sha256()
    for phase in phases:
        digest.update(party.activation[phase].claimed().encode())
    for name, value in party.bottom.state_dict().items():
        digest.update(name.encode())
        if isinstance(value, Tensor):  # a module may keep more than that
            digest.update(f"{value.dtype} {tuple(value.shape)}".encode())
            digest.update(bytes_of(value.detach().cpu()))
    for piece in Pieces.of(party.data):
        records = (party.data.train if piece.part == "train" else party.data.test).rows(piece.positions)
        for columns in records.columns:
            digest.update(bytes_of(columns.cpu()))
    return digest.hexdigest()


def _existing(folder: Path) -> Path:
    return next(path for path in (folder, *folder.absolute().parents) if path.exists())


def _in_words(size: int) -> str:
    return f"{size / _MIB:,.1f} MiB"

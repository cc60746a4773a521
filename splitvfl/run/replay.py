"""Noise is drawn once for each message: whoever makes a run go back must send again what it sent before.

A run that goes back to a checkpoint draws the same noise again for the same steps. That is as it should be: the same
message with other noise would be one more look at what the noise hides. But a partner that breaks a link on purpose,
and then sends *another* message for the same step, would get two answers with one and the same noise, and their
difference has none. So a party whose messages are defended remembers a digest of every message that its answers depend
on, as far back as its oldest checkpoint reaches, and refuses another one in its place.
"""

from __future__ import annotations

import hashlib
import os
import struct
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from splitvfl.errors import CheckpointError, ReplayError
from splitvfl.exchange.split_step import check_finite
from splitvfl.messaging.conversation import Expected
from splitvfl.messaging.messages import Message
from splitvfl.net.driver import Correspondent
from splitvfl.system.gpu_copies import bytes_of
from splitvfl.system.untrusted_files import UntrustedFile, open_own, write_whole

_MAGIC: Final = b"splitvfl replay1"
_KEY_BYTES: Final = 16
_HEADER: Final = len(_MAGIC) + _KEY_BYTES
_MOST_BYTES: Final = 1 << 30
_RECORD: Final = struct.Struct("<Q12s16s")  # step, place, digest


class ReplayGuard:
    """Remembers what came, and refuses anything else in its place, as long as it lives.

    The digest is GMAC-AES-128 under a key that nobody else has: 16 bytes that nobody can aim at.

    Args:
        kinds: The kinds of messages that are remembered.
    """

    def __init__(self, kinds: Iterable[str]) -> None:
        self.kinds = frozenset(kinds)
        self._cipher = AESGCM(os.urandom(_KEY_BYTES))
        self._digests: dict[bytes, tuple[int, bytes]] = {}
        self._counts: Counter[tuple[int, str, str]] = Counter()

    def go_back(self) -> None:
        """Expect messages from an earlier step on again."""
        self._counts.clear()

    def admit(self, message: Message) -> None:
        """Compare a message with the one that came in its place before, or remember it.

        One that holds no numbers is never answered. Remembered, it would be what an honest message in its place is
        compared with, and the run would be lost.

        Raises:
            ProtocolError: If it holds NaN or infinite values.
            ReplayError: If it differs.
        """
        check_finite(message)
        name = message.step, message.kind, message.sender
        number = self._counts[name]
        place = hashlib.blake2b("/".join(map(str, (number, *name))).encode(), digest_size=12).digest()
        digest = self._digest(message, place)
        step, before = self._digests.get(place, (message.step, digest))
        if before != digest:
            raise ReplayError(
                f"{message.sender} sent another {message.kind} for step {message.step} than before the run went back "
                "to a checkpoint. With the same noise on two answers the noise could be removed, so there is no "
                f"answer. Either {message.sender} means harm, or it computes otherwise than before (another machine, "
                "number of threads or GPU; a folder that was lost): it goes back to what it had, or all parties start "
                "anew with --overwrite"
            )
        if place not in self._digests:
            self._remember(step, place, digest)
        self._counts[name] += 1

    def _digest(self, message: Message, place: bytes) -> bytes:
        payload = message.payload
        form = f"{payload.dtype} {tuple(payload.shape)}".encode()
        return self._cipher.encrypt(place, form, bytes_of(payload.cpu()))[-16:]

    def _remember(self, step: int, place: bytes, digest: bytes) -> None:
        self._digests[place] = step, digest

    def watching(self, link: Correspondent) -> Correspondent:
        """Return a link whose messages are compared as they are received."""
        return _Watched(link, self)


class ReplayJournal(ReplayGuard):
    """A guard whose memory survives the process, in a file, which holds its key too.

    The file is written before the message is answered, and survives a process that is killed; a machine that loses
    power can lose the end of it.

    Args:
        path: The journal; made if it is missing.
        kinds: The kinds of messages that are remembered.

    Raises:
        CheckpointError: If the journal is damaged, or cannot be read or written, here or later.
    """

    def __init__(self, path: Path, kinds: Iterable[str]) -> None:
        super().__init__(kinds)
        self._path = path
        try:
            self._open()
        except OSError as error:
            raise self._failed(error) from error

    def _open(self) -> None:
        content = UntrustedFile(path=self._path, most=_MOST_BYTES).read() or b""
        if len(content) < _HEADER:  # new, or a process was killed while it made it: nothing was answered yet
            content = _MAGIC + os.urandom(_KEY_BYTES)
            self._replace(content)
        if not content.startswith(_MAGIC):
            raise CheckpointError(f"{self._path} is no journal of messages: start anew with --overwrite")
        self._header = content[:_HEADER]
        self._cipher = AESGCM(content[len(_MAGIC) : _HEADER])
        whole = (len(content) - _HEADER) // _RECORD.size * _RECORD.size  # the last one may have been torn
        for step, place, digest in _RECORD.iter_unpack(content[_HEADER : _HEADER + whole]):
            self._digests[place] = step, digest
        self._file = open_own(self._path, "r+b", buffered=False)
        self._file.truncate(_HEADER + whole)
        self._file.seek(_HEADER + whole)

    def _replace(self, content: bytes) -> None:
        write_whole(self._path, content, flush=False)

    def forget(self, before: int) -> None:
        """Drop what came in steps before this one: no checkpoint goes back so far."""
        self._counts = Counter({name: count for name, count in self._counts.items() if name[0] >= before})
        kept = {place: entry for place, entry in self._digests.items() if entry[0] >= before}
        if len(kept) == len(self._digests):
            return
        try:
            self._replace(self._header + b"".join(_RECORD.pack(step, *rest) for step, *rest in _rows(kept)))
            self._file.close()
            self._file = open_own(self._path, "r+b", buffered=False)
            self._file.seek(0, os.SEEK_END)
        except OSError as error:
            raise self._failed(error) from error
        self._digests = kept

    def _remember(self, step: int, place: bytes, digest: bytes) -> None:
        self._write(_RECORD.pack(step, place, digest))
        super()._remember(step, place, digest)

    def _write(self, record: bytes) -> None:
        try:
            if self._file.write(record) != len(record):
                raise OSError("no room for a record")
        except OSError as error:
            raise self._failed(error) from error

    def _failed(self, error: OSError) -> CheckpointError:
        return CheckpointError(f"cannot write {self._path}: {error}; make room, and start the party again")

    def close(self) -> None:
        """Close the journal."""
        self._file.close()


def _rows(entries: dict[bytes, tuple[int, bytes]]) -> Iterable[tuple[int, bytes, bytes]]:
    return ((step, place, digest) for place, (step, digest) in entries.items())


class _Watched:
    def __init__(self, link: Correspondent, guard: ReplayGuard) -> None:
        self._link, self._guard = link, guard

    def send(self, message: Message, *, timeout: float) -> None:
        self._link.send(message, timeout=timeout)

    def receive(self, expected: Expected, *, timeout: float) -> Message:
        message = self._link.receive(expected, timeout=timeout)
        if message.kind in self._guard.kinds:
            self._guard.admit(message)
        return message

    def announce(self, expected: Expected) -> None:
        self._link.announce(expected)

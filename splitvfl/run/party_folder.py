"""What a party keeps of a networked run: its checkpoints, and whether it has taken its leave."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from splitvfl.errors import CheckpointError
from splitvfl.exchange.handshake import HeldCheckpoints
from splitvfl.run import checkpoint
from splitvfl.run.written_files import FAREWELL_FILE
from splitvfl.system.untrusted_files import UntrustedFile, write_json

KEPT_CHECKPOINTS = 2
"""The one that all parties have may be the one before the newest: a party can be killed just before it saves."""


class _Farewell(msgspec.Struct):
    run: str
    step: int


class PartyFolder:
    """A party's folder of a networked run.

    Args:
        path: The folder.

    Attributes:
        checkpoints: Where its checkpoints lie.
    """

    def __init__(self, path: Path) -> None:
        self.checkpoints = path / "checkpoints"
        self._farewell = path / FAREWELL_FILE

    def newest(self) -> Mapping[str, Any]:
        """Return what the newest checkpoint says of the run; nothing if there is none.

        Raises:
            CheckpointError: If it is none of a networked run.
        """
        path = checkpoint.latest(self.checkpoints)
        if path is None:
            return {}
        run: Mapping[str, Any] = checkpoint.load(path, only="run").get("run", {})
        if not isinstance(run.get("run"), str):
            raise CheckpointError(f"{path} is no checkpoint of a networked run")
        return run

    def held(self) -> HeldCheckpoints:
        """Return of which run it has checkpoints, and of which steps."""
        return HeldCheckpoints(self.newest().get("run", ""), tuple(checkpoint.steps(self.checkpoints)))

    def note_farewell(self, run: str, step: int) -> None:
        """Note that nobody needs this party any more: started again, it waits for nobody.

        Raises:
            CheckpointError: If that cannot be written.
        """
        try:
            write_json(self._farewell, _Farewell(run, step), indent=0, mode=0o666)
        except OSError as error:
            raise CheckpointError(f"cannot write {self._farewell}: {error}") from error

    def noted_farewell(self) -> tuple[str, int] | None:
        """Return the run and the step that were noted, if any were.

        Raises:
            CheckpointError: If the note is damaged.
        """
        file = UntrustedFile(path=self._farewell, most=1 << 20, remedy="delete it, and start the party again")
        noted = file.json(_Farewell)
        return None if noted is None else (noted.run, noted.step)

"""What a party keeps of a networked run: its checkpoints, and whether it has taken its leave."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from splitvfl.errors import CheckpointError, DataError
from splitvfl.exchange.handshake import HeldCheckpoints, held_by_all
from splitvfl.run import checkpoint
from splitvfl.run.shared_state import collect_json
from splitvfl.run.written_files import FAREWELL_FILE
from splitvfl.system.untrusted_files import UntrustedFile, write_json
from splitvfl.team.team import Team

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
        path: The folder.
        checkpoints: Where its checkpoints lie.
    """

    def __init__(self, path: Path) -> None:
        self.path, self.checkpoints = path, path / "checkpoints"
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

    def held_by_all(self, team: Team, name: str) -> HeldCheckpoints:
        """Return the same of what all workers of the party of this name have."""
        own = self.held()
        if team.size == 1:
            return own
        held = {}
        for rank, (run, steps) in enumerate(collect_json(team, [own.run, own.steps])):
            held[f"worker {rank} of {name}"] = HeldCheckpoints(run, tuple(steps))
        return held_by_all(held)

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


class RunEnd:
    """When a party has done everything in a run, and when nobody needs it any more.

    Args:
        folder: What it keeps.
        steps: Of the whole run.
        crosses: Whether it takes no step, and all that it does is to send everything once.
        ends_alone: Whether the others are needed for nothing once everything has crossed.
    """

    def __init__(self, folder: PartyFolder, steps: int, *, crosses: bool = False, ends_alone: bool = False) -> None:
        self._folder, self._steps = folder, steps
        self._crosses, self._ends_alone = crosses, ends_alone

    def is_at(self, run: Mapping[str, Any]) -> bool:
        """Return whether the party has done everything at a checkpoint."""
        if self._crosses:
            return bool(run) and bool(run.get("crossed"))
        return bool(run) and (run["stopped"] or run["step"] == self._steps)

    def has_parted(self, run: Mapping[str, Any]) -> bool:
        """Return whether nobody needs the party any more, and it nobody."""
        noted = self._folder.noted_farewell() if run else None
        if self._ends_alone:  # it has all activations, whatever it has done with them
            return noted is not None and noted[0] == run["run"]
        return noted is not None and noted == (run["run"], run["step"]) and self.is_at(run)

    def team_has_parted(self, run: Mapping[str, Any], team: Team, name: str) -> bool:
        """Return the same of all workers of the party of this name: where one knows it, all have done everything.

        Raises:
            DataError: If others have finished, and this one has not.
        """
        own = self.has_parted(run)
        parted = b"parted" in team.collect(b"parted" if own else b"")
        if parted and not own and not self.is_at(run):
            raise DataError(
                f"other workers of {name} have finished this run, and {self._folder.path} does not hold its "
                "end; bring the folder back, or start all parties anew with --overwrite"
            )
        return parted

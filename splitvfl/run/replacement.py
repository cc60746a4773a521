"""An earlier run in a folder is kept until the run that replaces it has a checkpoint.

What the earlier run wrote is moved into ``.replaced.part``, which becomes ``.replaced`` when everything is in it. With
the first checkpoint of the new run ``.replaced`` is deleted. If the new run ends before, the earlier one is moved back.
A process can be killed at any point. The next start in the folder finds one of these states, and ends it:

- ``.replaced.part``: files were being moved, there or back, and nothing of the new run is in the folder. The rest is
  moved back.
- ``.replaced`` and no checkpoint: the new run ended early. What it wrote is deleted, and the earlier run moved back.
- ``.replaced`` and a checkpoint: the new run can be resumed. ``.replaced`` is deleted.

Everything of the earlier run comes back, also what protects others: journals of refused sums, ledgers of queries,
reserved noise and farewells.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Final

from splitvfl.run import checkpoint
from splitvfl.system.private_folder import PRIVATE

REPLACED: Final = ".replaced"
"""Where an earlier run lies until the new one has a checkpoint."""
PART: Final = ".replaced.part"
"""The same, while its files are moved."""
_DELETING: Final = ".deleting"

Written = Callable[[Path], list[Path]]
"""Returns what a run has written into a folder, checkpoints first."""


def earlier_stands(folder: Path) -> str:
    """Return what is said of a folder whose earlier run was brought back, in a sentence."""
    return (
        f"{folder} holds the earlier run again: the run that was to replace it ended before its first checkpoint. "
        "Replace it with --overwrite"
    )


def is_unsettled(folder: Path) -> bool:
    """Return whether an earlier run lies aside in a folder, and the run that replaces it has no checkpoint."""
    aside = _is_folder(folder / REPLACED) and checkpoint.latest(folder / "checkpoints") is None
    return aside or _is_folder(folder / PART)


def delete(folder: Path, paths: Iterable[Path]) -> None:
    """Delete what lies in a folder, in this order; what is half deleted does not pass for a whole."""
    doomed = folder / _DELETING
    shutil.rmtree(doomed, ignore_errors=True)
    for path in paths:
        if _is_folder(path):
            path.rename(doomed)
            shutil.rmtree(doomed, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)


class Replacement:
    """The earlier run in a folder that a new one replaces.

    Nothing happens before :meth:`begin`; of a folder that holds no run, nothing happens at all.

    Args:
        folder: The folder. Nobody else may start a run in it meanwhile.
        written: What a run writes there; it is asked for the earlier run, and for what the new one has written.
        notify: Told in one line that the earlier run was brought back.
    """

    def __init__(self, folder: Path, written: Written, *, notify: Callable[[str], None] = lambda line: None) -> None:
        self._folder, self._written, self._notify = folder, written, notify
        self.is_aside = False
        """Whether the earlier run lies aside."""

    def settle(self) -> None:
        """End what a process that was killed has left: the new run stands if it has a checkpoint, else the earlier one.

        Raises:
            OSError: If files cannot be moved; another try goes on from there.
        """
        if is_unsettled(self._folder):
            self._restore()
        elif _is_folder(self._folder / REPLACED):
            self._drop()
        elif _is_folder(self._folder / _DELETING):
            shutil.rmtree(self._folder / _DELETING, ignore_errors=True)

    def begin(self) -> None:
        """Move the earlier run aside, if there is one; the folder is settled, and nothing of the new run is in it.

        Raises:
            OSError: If files cannot be moved; the earlier run is as it was then.
        """
        paths = self._written(self._folder)
        if not paths:
            return
        part = self._folder / PART
        part.mkdir(mode=PRIVATE)
        self.is_aside = True
        try:
            for path in paths:
                path.rename(part / path.name)
            part.rename(self._folder / REPLACED)
        except BaseException:
            self.undo()
            raise

    def done(self) -> None:
        """Delete the earlier run: the new one has a checkpoint, or has ended well.

        Raises:
            OSError: If it cannot be moved; both runs are there then.
        """
        if self.is_aside:
            self._drop()
            self.is_aside = False

    def undo(self) -> bool:
        """Delete what the new run has written and bring the earlier one back; return whether there was one aside.

        Raises:
            OSError: If files cannot be moved; the next start in the folder goes on from there.
        """
        if not self.is_aside:
            return False
        self._restore()
        self.is_aside = False
        return True

    def _drop(self) -> None:
        # Renamed first: half deleted, it must not be brought back.
        delete(self._folder, [self._folder / REPLACED])

    def _restore(self) -> None:
        replaced, part = self._folder / REPLACED, self._folder / PART
        if _is_folder(replaced):
            delete(self._folder, self._written(self._folder))
            replaced.rename(part)
        for path in sorted(part.iterdir()):
            path.replace(self._folder / path.name)
        part.rmdir()
        self._notify(earlier_stands(self._folder))


def _is_folder(path: Path) -> bool:
    """Return whether a folder is there; a link would lead to what is not to be moved."""
    return path.is_dir() and not path.is_symlink()


def how_to_go_on(folder: Path) -> str:
    """Return how a run goes on: that of one party in a networked run has one party's checkpoints."""
    if is_unsettled(folder):
        return (
            "it is to replace an earlier run, and has no checkpoint yet; if it was killed, any start in this folder "
            "brings the earlier run back"
        )
    of_one_party = next(folder.glob("checkpoints/*/party.pt"), None) is not None
    return "go on by starting that party again, as it was started" if of_one_party else "go on with --resume"

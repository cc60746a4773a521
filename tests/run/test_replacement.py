"""A run that is replaced: whatever ends a process, at any rename or deletion, one whole run is there after the next."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from splitvfl.errors import ConfigError
from splitvfl.run import checkpoint, written_files
from splitvfl.run.replacement import REPLACED, Replacement, earlier_stands, is_unsettled
from splitvfl.run.training import Status
from splitvfl.system.signals import Interrupted
from tests.builders import small_trainer

# What a run of one process writes, and what protects its parties.
EARLIER = {
    "checkpoints/step-000000008/run.pt": "earlier",
    "checkpoints/step-000000008/party-bank.pt": "earlier",
    "metrics.jsonl": "earlier",
    "farewell.json": "earlier",
    "refused-sums-bank.journal": "earlier",
}
BEFORE_A_CHECKPOINT = {"metrics.jsonl": "new", "refused-sums-bank.journal": "new"}
NEW = {**BEFORE_A_CHECKPOINT, "checkpoints/step-000000001/run.pt": "new"}
OTHERS = {"notes.txt": "the user's"}


def write(folder: Path, files: Mapping[str, str]) -> None:
    for name, content in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(content)


def tree(folder: Path) -> dict[str, str]:
    return {str(path.relative_to(folder)): path.read_text() for path in folder.rglob("*") if path.is_file()}


class Killed(BaseException):
    pass


@contextmanager
def killed_at(patch: pytest.MonkeyPatch, call: int) -> Iterator[None]:
    """Let a process be killed in place of its n-th change to the disk: it changes nothing from then on."""
    count = 0

    def seam(owner: Any, name: str) -> None:
        whole = getattr(owner, name)

        def called(path: Path, *rest: Any, **options: Any) -> Any:
            nonlocal count
            count += 1
            if count >= call:
                if count == call and owner is shutil:
                    for file in [one for one in Path(path).rglob("*") if one.is_file()][:1]:
                        os.unlink(file)  # half deleted
                raise Killed
            return whole(path, *rest, **options)

        patch.setattr(owner, name, called)

    with patch.context() as patch:
        for name in ("rename", "replace", "unlink", "mkdir", "rmdir"):
            seam(Path, name)
        seam(shutil, "rmtree")
        yield


def replaced(folder: Path, *, fails: bool) -> None:
    """Replace a run as a process does, which may end before its first checkpoint."""
    replacement = Replacement(folder, written_files.paths)
    replacement.settle()
    replacement.begin()
    write(folder, BEFORE_A_CHECKPOINT)
    if fails:
        replacement.undo()
        return
    write(folder, {"checkpoints/.writing-000000001/run.pt": "new"})
    (folder / "checkpoints/.writing-000000001").rename(folder / "checkpoints/step-000000001")
    replacement.done()


def settled(folder: Path) -> list[str]:
    told: list[str] = []
    Replacement(folder, written_files.paths, notify=told.append).settle()
    return told


def calls_of(folder: Path, what: Callable[[Path], object], patch: pytest.MonkeyPatch) -> int:
    """Count the changes to the disk that something comes to."""
    for call in range(1, 200):
        copy = folder.with_name(f"{folder.name}-{call}")
        shutil.copytree(folder, copy)
        try:
            with killed_at(patch, call):
                what(copy)
        except Killed:
            continue
        return call - 1
    raise AssertionError("it never came to an end")


def begun(folder: Path) -> Path:
    write(folder, EARLIER | OTHERS)
    return folder


@pytest.mark.parametrize("fails", [True, False])
def test_killed_at_any_change_one_whole_run_is_there_after_the_next_start_killed_as_well(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fails: bool
) -> None:
    first = begun(tmp_path / "counted")
    count = calls_of(first, lambda copy: replaced(copy, fails=fails), monkeypatch)
    assert count > 2 * len(written_files.paths(first))
    ends = []
    for call in range(1, count + 1):
        for again in range(1, 30):
            folder = begun(tmp_path / f"{call}-{again}")
            with suppress(Killed), killed_at(monkeypatch, call):
                replaced(folder, fails=fails)
            unsettled = is_unsettled(folder)
            restarted = False
            with suppress(Killed), killed_at(monkeypatch, again):
                settled(folder)
                restarted = True
            told = settled(folder)
            found = tree(folder)
            new = found == NEW | OTHERS
            assert new or found == EARLIER | OTHERS, f"killed at {call}, and then at {again}"
            assert not is_unsettled(folder)
            assert new <= (not unsettled)
            assert not list(folder.glob(".*"))
            assert told in ([], [earlier_stands(folder)])
            shutil.rmtree(folder)
            if restarted:
                ends.append(new)
                break
    assert len(ends) == count, "each restart came to its end before it was killed"
    assert any(ends) is not fails


def test_what_is_deleted_in_part_is_never_brought_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = begun(tmp_path / "run")
    replacement = Replacement(folder, written_files.paths)
    replacement.begin()
    write(folder, BEFORE_A_CHECKPOINT)
    with monkeypatch.context() as patch:
        patch.setattr(shutil, "rmtree", lambda path, **options: None)
        replacement.done()
    (folder / ".deleting/metrics.jsonl").unlink()
    assert settled(folder) == []
    assert tree(folder) == BEFORE_A_CHECKPOINT | OTHERS


def test_a_link_in_its_place_is_no_earlier_run(tmp_path: Path) -> None:
    write(tmp_path / "elsewhere", {"precious.txt": "mine"})
    write(tmp_path / "run", NEW)
    for name in (".replaced", ".replaced.part", ".deleting"):
        (tmp_path / "run" / name).symlink_to(tmp_path / "elsewhere")
    assert settled(tmp_path / "run") == []
    assert tree(tmp_path / "elsewhere") == {"precious.txt": "mine"}


def test_what_cannot_be_moved_leaves_the_earlier_run_as_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, whole = begun(tmp_path / "run"), Path.rename

    def busy(path: Path, target: Path) -> Path:
        if path.name == "metrics.jsonl":
            raise OSError(16, "Device or resource busy")
        return whole(path, target)

    monkeypatch.setattr(Path, "rename", busy)
    with pytest.raises(OSError, match="busy"):
        Replacement(folder, written_files.paths).begin()
    assert tree(folder) == EARLIER | OTHERS


# --- a trainer in Python


def failing_at(step: int, error: BaseException) -> Callable[[Status], None]:
    def fail(status: Status) -> None:
        if status.step == step:
            raise error

    return fail


def content(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize("error", [RuntimeError("no"), KeyboardInterrupt()], ids=["error", "interrupt"])
def test_a_trainer_that_fails_in_its_first_epoch_leaves_the_earlier_run(tmp_path: Path, error: BaseException) -> None:
    small_trainer(log_dir=tmp_path).fit(1)
    before, told = content(tmp_path), list[str]()

    again = small_trainer(log_dir=tmp_path, overwrite=True)
    again.training.notify = told.append
    with pytest.raises(type(error)):
        again.fit(2, progress=failing_at(2, error))

    assert content(tmp_path) == before
    assert told == [earlier_stands(tmp_path)]
    assert small_trainer(log_dir=tmp_path).resume() == 3
    # The same trainer moves it aside once more when it is asked again.
    with pytest.raises(type(error)):
        again.fit(2, progress=failing_at(again.step + 1, error))
    assert content(tmp_path) == before
    again.fit(2)
    assert content(tmp_path).keys() != before.keys()
    assert not list(tmp_path.glob(".*"))
    assert small_trainer(log_dir=tmp_path).resume() == again.step


def test_a_trainer_that_fails_after_its_first_checkpoint_has_replaced_the_earlier_run(tmp_path: Path) -> None:
    small_trainer(log_dir=tmp_path).fit(2)
    with pytest.raises(RuntimeError):
        small_trainer(log_dir=tmp_path, overwrite=True).fit(2, progress=failing_at(4, RuntimeError("no")))
    assert not list(tmp_path.glob(".*"))
    assert small_trainer(log_dir=tmp_path).resume() == 3


def test_a_stop_in_the_first_epoch_keeps_a_checkpoint_and_replaces_the_earlier_run(tmp_path: Path) -> None:
    small_trainer(log_dir=tmp_path).fit(2)
    again = small_trainer(log_dir=tmp_path, overwrite=True)

    def stop(status: Status) -> None:
        again.training.signals.asked = True

    with pytest.raises(Interrupted):
        again.fit(2, progress=stop)
    assert not list(tmp_path.glob(".*"))
    assert small_trainer(log_dir=tmp_path).resume() == 1


def test_a_trainer_brings_back_what_a_killed_one_was_to_replace(tmp_path: Path) -> None:
    small_trainer(log_dir=tmp_path).fit(1)
    before = content(tmp_path)
    Replacement(tmp_path, written_files.paths).begin()
    write(tmp_path, {"metrics.jsonl": "new"})
    assert checkpoint.latest(tmp_path / "checkpoints") is None

    with pytest.raises(ConfigError, match="already holds a run"):
        small_trainer(log_dir=tmp_path).fit(1)

    assert content(tmp_path) == before
    Replacement(tmp_path, written_files.paths).begin()
    assert (tmp_path / REPLACED).is_dir()
    assert small_trainer(log_dir=tmp_path).resume() == 3

"""Checkpoints: complete or not there, for their owner only, and never code."""

from __future__ import annotations

import errno
import os
import resource
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NoReturn

import pytest
import torch

from splitvfl.defenses import Isotropic
from splitvfl.errors import CheckpointError
from splitvfl.run import checkpoint
from tests.builders import small_trainer

GOOD: dict[str, dict[str, Any]] = {
    "run": {"step": 3, "loss": 0.25, "pair": (1, "x"), "none": None, "deep": {"list": [1, 2.5, "z"]}},
    "party-bank": {"weight": torch.arange(6.0).reshape(2, 3), "half": torch.ones(2, dtype=torch.bfloat16)},
}


def big() -> dict[str, Any]:
    return {"party-bank": {"weight": torch.ones(1 << 18)}}


def plain(value: Any) -> Any:
    """The same without tensors, for ``==``."""
    if isinstance(value, torch.Tensor):
        return (str(value.dtype), value.tolist())
    return {key: plain(inner) for key, inner in value.items()} if isinstance(value, dict) else value


def test_what_was_saved_is_loaded(tmp_path: Path) -> None:
    where = checkpoint.save(tmp_path / "made" / "here", 3, GOOD)
    assert where.name == "step-000000003"
    assert checkpoint.latest(tmp_path / "made" / "here") == where
    assert plain(checkpoint.load(where)) == plain(GOOD)


def test_only_the_newest_stays(tmp_path: Path) -> None:
    for step in (3, 20, 100):
        checkpoint.save(tmp_path, step, GOOD)
    assert [path.name for path in tmp_path.iterdir()] == ["step-000000100"]


def test_the_same_step_can_be_saved_again_and_again(tmp_path: Path) -> None:
    for number in range(4):
        newest = checkpoint.save(tmp_path, 3, {"run": {"number": number}})
        assert list(tmp_path.iterdir()) == [newest]
        assert checkpoint.load(newest) == {"run": {"number": number}}


def test_files_are_readable_by_their_owner_only(tmp_path: Path) -> None:
    """Under the most permissive umask, for everything that a run writes into its checkpoints."""
    before = os.umask(0)
    try:
        trainer = small_trainer(defenses=[Isotropic()], log_dir=tmp_path)
        trainer.fit(1)
    finally:
        os.umask(before)
    newest = checkpoint.latest(tmp_path / "checkpoints")
    assert newest is not None
    assert stat.S_IMODE(newest.stat().st_mode) == 0o700
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in newest.iterdir()}
    assert modes == dict.fromkeys(
        ["run.pt", "party-bank.pt", "party-telecom.pt", "hooks-bank.pt", "hooks-telecom.pt"], 0o600
    )


def test_an_unfinished_draft_is_no_checkpoint(tmp_path: Path) -> None:
    """What a process that was killed leaves behind is passed over, and does not stand in the way."""
    draft = tmp_path / ".writing-000000009"
    draft.mkdir()
    (draft / "run.pt").write_bytes(b"half")
    assert checkpoint.latest(tmp_path) is None
    assert plain(checkpoint.load(checkpoint.save(tmp_path, 9, GOOD))) == plain(GOOD)
    assert not draft.exists()


def test_without_a_folder_there_is_none(tmp_path: Path) -> None:
    assert checkpoint.latest(tmp_path / "nowhere") is None
    assert checkpoint.latest(tmp_path) is None


# --- a full disk


def no_space(*_: Any, **__: Any) -> NoReturn:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def no_new_files(path: Any, flags: int, *rest: Any, **named: Any) -> int:
    return no_space() if flags & os.O_CREAT else OPEN(path, flags, *rest, **named)


OPEN = os.open
FAILING = {"fsync": (os, no_space), "open": (os, no_new_files), "rename": (Path, no_space), "mkdir": (Path, no_space)}


@contextmanager
def file_size_limit(size: int) -> Iterator[None]:
    """The kernel refuses every write beyond ``size`` bytes of a file."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def check_refused(folder: Path, error: pytest.ExceptionInfo[CheckpointError], *, older: Path | None) -> None:
    assert f"cannot write the checkpoint of step 4 in {folder}" in str(error.value)
    if older is None:
        assert "there is no older one" in str(error.value)
        assert list(folder.glob("*")) == []
        return
    assert f"the last good one, {older}, is untouched" in str(error.value)
    assert list(folder.iterdir()) == [older]
    assert plain(checkpoint.load(older)) == plain(GOOD)


@pytest.mark.parametrize("before", [False, True])
@pytest.mark.parametrize("call", FAILING)
def test_a_full_disk_leaves_the_last_good_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str, before: bool
) -> None:
    older = checkpoint.save(tmp_path, 3, GOOD) if before else None
    with monkeypatch.context() as patch:
        where, fail = FAILING[call]
        patch.setattr(where, call, fail)
        with pytest.raises(CheckpointError, match="No space left") as caught:
            checkpoint.save(tmp_path, 4, GOOD)
    check_refused(tmp_path, caught, older=older)
    assert checkpoint.save(tmp_path, 4, GOOD) == checkpoint.latest(tmp_path)


def test_a_disk_that_fills_up_between_two_files_leaves_the_last_good_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    older = checkpoint.save(tmp_path, 3, GOOD)
    write, files = torch.save, iter(range(9))

    def save(state: Any, file: Any) -> None:
        if next(files) == 1:
            file.write(b"PK\x03\x04")
            raise RuntimeError("PytorchStreamWriter failed writing file data/0: file write failed")
        write(state, file)

    with monkeypatch.context() as patch:
        patch.setattr(torch, "save", save)
        with pytest.raises(CheckpointError, match="file write failed") as caught:
            checkpoint.save(tmp_path, 4, GOOD)
    check_refused(tmp_path, caught, older=older)


@pytest.mark.parametrize("before", [False, True])
def test_the_kernels_own_refusal_leaves_the_last_good_one(tmp_path: Path, before: bool) -> None:
    older = checkpoint.save(tmp_path, 3, GOOD) if before else None
    with file_size_limit(1 << 16), pytest.raises(CheckpointError) as caught:
        checkpoint.save(tmp_path, 4, big())
    check_refused(tmp_path, caught, older=older)


def test_an_interrupt_while_writing_leaves_the_last_good_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    older = checkpoint.save(tmp_path, 3, GOOD)

    def interrupted(_: int) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", interrupted)
        with pytest.raises(KeyboardInterrupt):
            checkpoint.save(tmp_path, 4, GOOD)
    assert checkpoint.latest(tmp_path) == older
    assert plain(checkpoint.load(older)) == plain(GOOD)
    assert checkpoint.save(tmp_path, 4, GOOD).name == "step-000000004"


def test_a_run_goes_on_from_before_the_full_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trainer = small_trainer(log_dir=tmp_path)
    trainer.fit(1)
    done = trainer.step
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", no_space)
        with pytest.raises(CheckpointError, match="--resume"):
            trainer.fit(2)
    again = small_trainer(log_dir=tmp_path)
    assert again.resume() == done
    again.fit(2)
    assert again.step == 2 * done


# --- damage


class Code:
    """Would make a folder when unpickled."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __reduce__(self) -> Any:
        return (os.mkdir, (str(self.folder),))


def test_code_is_never_run(tmp_path: Path) -> None:
    where = checkpoint.save(tmp_path, 3, GOOD)
    torch.save({"evil": Code(tmp_path / "made by code")}, where / "hooks.pt")
    with pytest.raises(CheckpointError, match=r"hooks\.pt is damaged"):
        checkpoint.load(where)
    assert not (tmp_path / "made by code").exists()


def test_a_sparse_tensor_whose_indices_lie_outside_its_shape_is_refused(tmp_path: Path) -> None:
    where = checkpoint.save(tmp_path, 3, GOOD)
    outside = torch.sparse_coo_tensor(torch.tensor([[10**6]]), torch.ones(1), (4,), check_invariants=False)
    torch.save({"weight": outside}, where / "party-bank.pt")

    # PyTorch before 2.14 takes it, and reads memory of others where it is made dense.
    with pytest.raises(CheckpointError, match=r"party-bank\.pt is damaged"):
        checkpoint.load(where)


@pytest.mark.parametrize("left", [0.0, 0.3, 0.99])
def test_truncated_files_are_named(tmp_path: Path, left: float) -> None:
    where = checkpoint.save(tmp_path, 3, GOOD)
    file = where / "party-bank.pt"
    file.write_bytes(file.read_bytes()[: int(left * file.stat().st_size)])
    with pytest.raises(CheckpointError, match=r"party-bank\.pt is damaged"):
        checkpoint.load(where)


def test_what_is_not_named_like_a_checkpoint_is_none_and_no_link_is(tmp_path: Path) -> None:
    checkpoint.save(tmp_path / "run", 3, GOOD)
    for name in ("step-x", "step-", "step-1-2-3", f"step-{'9' * 5000}"[:200], "step-٣"):
        (tmp_path / "run" / name).mkdir()
    (tmp_path / "run" / "step-000000009").symlink_to(tmp_path)
    assert list(checkpoint.steps(tmp_path / "run")) == [3]


def test_a_folder_without_files_is_no_checkpoint(tmp_path: Path) -> None:
    for folder in (tmp_path, tmp_path / "nowhere"):
        with pytest.raises(CheckpointError, match="holds no checkpoint"):
            checkpoint.load(folder)


def test_what_a_killed_process_left_half_deleted_is_in_nobodys_way(tmp_path: Path) -> None:
    checkpoint.save(tmp_path, 3, {"party": {"step": 3}})
    left = tmp_path / ".deleting-step-000000003"
    left.mkdir()
    (left / "party.pt").write_bytes(b"")
    checkpoint.remove(tmp_path / "step-000000003")
    assert list(tmp_path.iterdir()) == []

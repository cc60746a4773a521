"""Folders that a run makes, under every umask, and those that are there already."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from splitvfl.app.experiment import run_experiment
from splitvfl.config.sections import parse_config
from splitvfl.errors import ConfigError
from splitvfl.net.certs import make_certificates
from splitvfl.system.folder_lock import locked
from splitvfl.system.private_folder import close_folder, private_folder
from tests.tables import align_rows

SMALL = """
data: {name: breast-cancer}
parties:
  clinic: {role: active, columns: ["mean *"]}
  lab: {role: passive, columns: rest}
model: {name: mlp, bottom: [4], top_hidden: [4]}
train: {epochs: 1, batch_size: 64}
attacks: [norm]
audit: false
"""


@contextmanager
def umask(mask: int) -> Iterator[None]:
    before = os.umask(mask)
    try:
        yield
    finally:
        os.umask(before)


def mode_of(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def folders_in(path: Path) -> dict[str, int]:
    """The mode of a folder and of all folders in it."""
    return {str(one.relative_to(path)): mode_of(one) for one in (path, *path.rglob("*")) if one.is_dir()}


@pytest.mark.parametrize("mask", [0, 0o022, 0o077, 0o777])
def test_a_new_folder_is_its_owners_whatever_the_umask(tmp_path: Path, mask: int) -> None:
    (tmp_path / "runs").mkdir()
    with umask(mask):
        private_folder(tmp_path / "runs" / "one")
        close_folder(tmp_path / "runs" / "two")
    assert folders_in(tmp_path / "runs") | {".": 0} == {".": 0, "one": 0o700, "two": 0o700}


@pytest.mark.parametrize(("mask", "figures"), [(0, 0o644), (0o027, 0o640)])
def test_folders_of_a_run_are_its_owners_and_no_file_is_for_others_to_write(
    tmp_path: Path, mask: int, figures: int
) -> None:
    """The owner may open the folder for others to read; with a umask of 002, they could write to what is in it."""
    with umask(mask):
        run_experiment(parse_config(SMALL, source="small"), tmp_path / "one")
        (tmp_path / "afterwards").touch()
    folders = folders_in(tmp_path / "one")
    assert {".", "checkpoints", "weights"} <= folders.keys()
    assert set(folders.values()) == {0o700}
    assert [path.name for path in (tmp_path / "one").rglob("*") if mode_of(path) & 0o022] == []
    assert mode_of(tmp_path / "one" / "summary.json") == figures
    assert mode_of(tmp_path / "afterwards") == 0o666 & ~mask


@pytest.mark.parametrize("mask", [0, 0o022])
def test_keys_and_alignments_are_their_owners(tmp_path: Path, mask: int) -> None:
    with umask(mask):
        make_certificates(tmp_path / "certs", ["bank", "telecom"])
        (tmp_path / "people.csv").write_text("customer\na\nb\nc\n")
        align_rows(tmp_path / "aligned", tmp_path / "people.csv", rows=range(3), ids=range(3))
    assert mode_of(tmp_path / "certs") == mode_of(tmp_path / "aligned") == 0o700


@pytest.mark.parametrize(("found", "left"), [(0o777, 0o755), (0o775, 0o755), (0o750, 0o750), (0o700, 0o700)])
def test_who_may_read_stays_and_who_may_write_does_not(tmp_path: Path, found: int, left: int) -> None:
    """To let a group look at figures is the owner's affair; to let it replace checkpoints is nobody's."""
    (tmp_path / "one").mkdir()
    (tmp_path / "one").chmod(found)
    private_folder(tmp_path / "one")
    assert mode_of(tmp_path / "one") == left
    close_folder(tmp_path / "one")
    assert mode_of(tmp_path / "one") == 0o700


def test_a_run_that_goes_on_leaves_the_door_as_it_was_and_a_new_one_closes_it(tmp_path: Path) -> None:
    config, folder = parse_config(SMALL, source="small"), tmp_path / "one"
    run_experiment(config, folder)
    folder.chmod(0o775)
    run_experiment(config, folder, resume=True)
    assert mode_of(folder) == 0o755
    run_experiment(config, folder, overwrite=True)
    assert mode_of(folder) == 0o700


def test_a_folder_of_another_user_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(path: Path, mode: int) -> None:
        raise PermissionError(1, "Operation not permitted")

    (tmp_path / "one").mkdir()
    (tmp_path / "one").chmod(0o777)
    monkeypatch.setattr(Path, "chmod", refused)
    with pytest.raises(ConfigError, match=r"one belongs to another user, .* \(mode 0777\).*name a folder of your own"):
        private_folder(tmp_path / "one")


def test_what_is_no_folder_is_an_error_of_the_system(tmp_path: Path) -> None:
    (tmp_path / "one").write_text("a file")
    with pytest.raises(FileExistsError):
        private_folder(tmp_path / "one")


def give_away(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a file, folder or link be another user's: really where we may, else by our changing into somebody else."""
    if os.geteuid() == 0:
        os.chown(path, 12345, -1, follow_symlinks=False)
    else:
        monkeypatch.setattr(os, "geteuid", lambda: 0)


@pytest.mark.parametrize("mode", [0o755, 0o700, 0o777])
def test_a_folder_that_another_user_can_open_later_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: int
) -> None:
    """Its mode says nothing: its owner can change it, and take away the journal that counts refusals."""
    (tmp_path / "one").mkdir()
    (tmp_path / "one").chmod(mode)
    give_away(tmp_path / "one", monkeypatch)
    with pytest.raises(ConfigError, match=r"one belongs to another user, who could replace .* folder of your own"):
        private_folder(tmp_path / "one")
    assert mode_of(tmp_path / "one") == mode


def test_a_link_of_another_user_is_refused_and_ones_own_is_followed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "precious").mkdir(mode=0o750)
    (tmp_path / "one").symlink_to(tmp_path / "precious")
    private_folder(tmp_path / "one")
    if os.geteuid() != 0:
        pytest.skip("a link is given away by root only")
    give_away(tmp_path / "one", monkeypatch)
    with pytest.raises(ConfigError, match="one belongs to another user"):
        close_folder(tmp_path / "one")
    assert mode_of(tmp_path / "precious") == 0o750


@pytest.mark.parametrize(("mask", "mode"), [(0, 0o755), (0o022, 0o755), (0o077, 0o700)])
def test_nobody_else_may_write_to_folders_that_are_made_above(tmp_path: Path, mask: int, mode: int) -> None:
    """Else others could put a folder of theirs in the place of the run's."""
    with umask(mask):
        private_folder(tmp_path / "all" / "runs" / "one")
        with locked(tmp_path / "other" / "runs" / "one"):
            found = [mode_of(tmp_path / top / rest) for top in ("all", "other") for rest in (".", "runs")]
    assert found == [mode] * 4

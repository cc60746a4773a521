"""The lock files, constraints.txt and pyproject.toml say the same, and every package in a lock file has its hashes."""

from __future__ import annotations

import doctest
import re
import subprocess
import tomllib
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement

import scripts.lock
from scripts.lock import (
    CUDA,
    CUDA_PARTS,
    DEVELOPMENT,
    NO_PHE,
    RUNNING,
    Locked,
    divide,
    normal,
    read_lock,
    read_pins,
    without_phe,
    write_lock,
)

LOCKS = (RUNNING, NO_PHE, DEVELOPMENT, CUDA)


def lock(checkout: Path, name: str) -> dict[str, Locked]:
    """Return a lock file's requirements by name, each of which stands there once."""
    locked = read_lock((checkout / name).read_text(encoding="utf-8"))
    assert len({name for name, *_ in locked}) == len(locked)
    return {one[0]: one for one in locked}


def pins(checkout: Path) -> dict[str, str]:
    return read_pins((checkout / "constraints.txt").read_text(encoding="utf-8"))


def pyproject(checkout: Path) -> dict[str, Any]:
    return tomllib.loads((checkout / "pyproject.toml").read_text(encoding="utf-8"))


def asked_for(checkout: Path, lock_file: str) -> list[Requirement]:
    """Return what pyproject.toml asks for: the build backend, dependencies, and the extras that the lock is for."""
    project = pyproject(checkout)
    asked = [*project["build-system"]["requires"], *project["project"]["dependencies"]]
    extras = ("serve", "test", "lint", "docs") if lock_file == DEVELOPMENT else ("serve",)
    asked += [line for extra in extras for line in project["project"]["optional-dependencies"][extra]]
    return [Requirement(line) for line in asked]


def needed(asked: list[Requirement]) -> set[str]:
    """Return the names that requirements lead to, as the metadata of what is installed here says."""
    found: set[tuple[str, str]] = set()
    todo = [(requirement.name, extra) for requirement in asked for extra in ("", *requirement.extras)]
    while todo:
        name, extra = todo.pop()
        if (normal(name), extra) in found:
            continue
        found.add((normal(name), extra))
        for requirement in map(Requirement, metadata.requires(name) or []):
            if requirement.marker is None or requirement.marker.evaluate({"extra": extra}):
                todo += [(requirement.name, more) for more in ("", *requirement.extras)]
    return {name for name, _ in found}


@pytest.mark.parametrize("name", LOCKS)
def test_every_line_has_a_version_and_hashes_and_no_address(checkout: Path, name: str) -> None:
    text = (checkout / name).read_text(encoding="utf-8")

    for package, version, marker, hashes in lock(checkout, name).values():
        Requirement(f"{package}=={version}; {marker}" if marker else f"{package}=={version}")  # raises if pip could not
        assert "+" not in version
        assert hashes, package
        assert all(re.fullmatch(r"sha256:[0-9a-f]{64}", digest) for digest in hashes), package
    # No index, no folder, no option but the hashes: who installs says where from.
    assert "://" not in text
    assert "file:" not in text
    assert " @ " not in text
    requirements = "".join(text.splitlines(keepends=True)[2:])
    assert set(re.findall(r"(?<!\S)-[a-z-]+", requirements)) == {"--hash"}


def test_locks_and_constraints_have_the_same_versions(checkout: Path) -> None:
    versions = pins(checkout)
    development = {name: version for name, version, *_ in lock(checkout, DEVELOPMENT).values()}
    running = {name: version for name, version, *_ in lock(checkout, RUNNING).values()}

    assert development == versions
    assert running.items() <= versions.items()
    assert not versions.keys() & lock(checkout, CUDA).keys()


def test_the_development_lock_holds_what_the_running_one_does(checkout: Path) -> None:
    running, development = lock(checkout, RUNNING), lock(checkout, DEVELOPMENT)

    # Markers widen where more packages need one; hashes do not depend on that.
    assert {name: one[3] for name, one in running.items()} == {name: development[name][3] for name in running}


@pytest.mark.parametrize("name", [RUNNING, DEVELOPMENT])
def test_what_pyproject_asks_for_is_locked(checkout: Path, name: str) -> None:
    locked = lock(checkout, name)

    for requirement in asked_for(checkout, name):
        assert normal(requirement.name) in locked, f"run `python -m scripts.lock`: {requirement} is not in {name}"
        assert requirement.specifier.contains(locked[normal(requirement.name)][1]), f"{requirement} in {name}"


@pytest.mark.parametrize("name", [RUNNING, DEVELOPMENT])
def test_a_lock_holds_all_that_its_packages_need_and_no_more(checkout: Path, name: str) -> None:
    wanted = {package for package in needed(asked_for(checkout, name)) if not package.startswith(CUDA_PARTS)}

    # With --no-deps nothing else is installed. Some packages are for another platform than this one.
    assert wanted <= lock(checkout, name).keys()
    assert {package for package, _, marker, _ in lock(checkout, name).values() if not marker} <= wanted


def test_the_lock_without_phe_is_the_running_one_without_its_lines(checkout: Path, tmp_path: Path) -> None:
    running = read_lock((checkout / RUNNING).read_text(encoding="utf-8"))
    write_lock(tmp_path / NO_PHE, without_phe(running))

    assert (tmp_path / NO_PHE).read_bytes() == (checkout / NO_PHE).read_bytes(), "run `python -m scripts.lock`"
    assert [one for one in running if one not in without_phe(running)] == [lock(checkout, RUNNING)["phe"]]


def test_without_phe_a_lock_holds_all_that_is_needed_and_no_more(checkout: Path) -> None:
    asked = [requirement for requirement in asked_for(checkout, RUNNING) if requirement.name != "phe"]
    wanted = {package for package in needed(asked) if not package.startswith(CUDA_PARTS)}

    assert wanted <= lock(checkout, NO_PHE).keys()
    assert {package for package, _, marker, _ in lock(checkout, NO_PHE).values() if not marker} <= wanted


def test_the_libraries_of_cuda_lie_apart_and_are_for_linux(checkout: Path) -> None:
    locked = lock(checkout, CUDA)

    assert all(name.startswith(CUDA_PARTS) for name in locked)
    assert all("sys_platform == 'linux'" in marker for _, _, marker, _ in locked.values())


def test_the_examples_of_the_script_print_what_they_say() -> None:
    assert doctest.testmod(scripts.lock).failed == 0


def test_a_package_without_a_version_in_the_constraints_is_refused() -> None:
    new: Locked = ("new-package", "1.0", "", frozenset({"sha256:00"}))
    with pytest.raises(SystemExit, match=r"constraints.txt has no version of new-package"):
        divide([new], {"torch": "2.0"}, frozenset())


def test_known_builds_of_torch_are_added_to_torch_alone() -> None:
    torch: Locked = ("torch", "2.0", "", frozenset({"sha256:00"}))
    other: Locked = ("numpy", "2.0", "", frozenset({"sha256:11"}))
    cuda: Locked = ("nvidia-nccl", "2.0", "", frozenset({"sha256:22"}))

    divided = divide([torch, other, cuda], {"torch": "2.0", "numpy": "2.0"}, frozenset({"sha256:33"}))

    assert divided == {True: [("torch", "2.0", "", frozenset({"sha256:00", "sha256:33"})), other], False: [cuda]}


def test_every_package_that_make_installs_is_checked_against_its_hash(checkout: Path) -> None:
    plan = subprocess.run(
        ["make", "--dry-run", "--always-make", "test", "demo"], cwd=checkout, capture_output=True, text=True, check=True
    ).stdout
    installs = [line for line in plan.splitlines() if "pip" in line and " install " in line]

    assert any(DEVELOPMENT in line for line in installs)
    # The project itself comes from here, without what it needs; its build backend is one of the packages before.
    project = [line for line in installs if " -e ." in line]
    assert project
    assert all("--no-deps --no-build-isolation" in line for line in project)
    others = [line for line in installs if line not in project]
    assert all("--require-hashes --no-deps" in line for line in others)

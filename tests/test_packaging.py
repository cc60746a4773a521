"""What is installed: the wheel holds the tree's files, once each, and works away from the checkout."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import venv
import zipfile
from pathlib import Path

import pytest

of_a_build = pytest.mark.slow(reason="builds the package, and installs it")

PARTS = ("attacks", "defenses", "models", "penalties")


def run(*command: str | Path, cwd: Path) -> str:
    """Run a command away from this test's environment variables and return what it printed."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "COV", "PYTEST"))}
    done = subprocess.run(command, cwd=cwd, env=inherited, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout.strip()


def files_under(folder: Path) -> set[str]:
    """Return the files of a folder by relative path, without following links and without caches."""
    return {
        (Path(base) / name).relative_to(folder).as_posix()
        for base, _, names in os.walk(folder)
        for name in names
        if "__pycache__" not in base and name != ".DS_Store"
    }


def names_in(wheel: Path) -> list[str]:
    """Return the names of a wheel's files."""
    with zipfile.ZipFile(wheel) as archive:
        return archive.namelist()


@pytest.fixture(scope="module")
def built(checkout: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder with the sdist, and the wheel that was built from it."""
    folder = tmp_path_factory.mktemp("dist")
    run(sys.executable, "-m", "build", "--no-isolation", "--outdir", folder, checkout, cwd=folder)
    return folder


@pytest.fixture(scope="module")
def wheel(built: Path) -> Path:
    (path,) = built.glob("*.whl")
    return path


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A fresh environment that holds the wheel alone, and borrows its dependencies from this one."""
    folder = tmp_path_factory.mktemp("fresh")
    venv.create(folder)
    site = Path(sysconfig.get_path("purelib", "venv", {"base": str(folder), "platbase": str(folder)}))
    # A path file puts the borrowed packages last and does not run their own path files: an editable install of the
    # checkout stays out of sight.
    (site / "borrowed.pth").write_text(sysconfig.get_path("purelib"), encoding="utf-8")
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--python", str(folder)]
    run(*pip, "install", "--quiet", "--no-deps", "--no-index", wheel, cwd=folder)
    return folder


@of_a_build
def test_the_wheel_holds_the_files_of_the_tree(checkout: Path, wheel: Path) -> None:
    names = names_in(wheel)
    expected = {f"splitvfl/{name}" for name in files_under(checkout / "splitvfl") if name not in PARTS}
    expected |= {f"splitvfl/{part}/{name}" for part in PARTS for name in files_under(checkout / part)}

    assert len(names) == len(set(names))
    assert {name for name in names if ".dist-info/" not in name} == expected


@of_a_build
def test_the_sdist_holds_each_part_once_and_the_tests(checkout: Path, built: Path) -> None:
    (path,) = built.glob("*.tar.gz")
    with tarfile.open(path) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}

    expected = {f"{part}/{name}" for part in PARTS for name in files_under(checkout / part)}
    assert expected <= names
    assert {"tests/test_packaging.py", "constraints.txt", "LICENSE", "README.md", "SECURITY.md"} <= names
    assert {"requirements.lock", "requirements-no-phe.lock", "requirements-dev.lock", "requirements-cuda.lock"} <= names
    assert not [name for name in names if name.startswith(tuple(f"splitvfl/{part}" for part in PARTS))]


@of_a_build
def test_an_installed_wheel_works_away_from_the_checkout(installed: Path) -> None:
    code = (
        "import splitvfl, splitvfl.attacks, splitvfl.cli, splitvfl.defenses, splitvfl.models; "
        "print(splitvfl.models.__file__, splitvfl.__version__); splitvfl.cli.main(['--help'])"
    )

    place, version, *rest = run(installed / "bin" / "python", "-I", "-c", code, cwd=installed).split()

    assert Path(place).is_relative_to(installed)
    assert version == "0.1.0"
    assert "Usage:" in rest  # the command explains itself


@of_a_build
def test_nothing_but_the_package_lands_in_site_packages(wheel: Path) -> None:
    roots = {name.split("/")[0] for name in names_in(wheel)}

    assert {root for root in roots if not root.endswith(".dist-info")} == {"splitvfl"}


@of_a_build
def test_the_installed_command_writes_examples(installed: Path, tmp_path: Path) -> None:
    run(installed / "bin" / "splitvfl", "examples", "digits", "companies", cwd=tmp_path)

    assert (tmp_path / "digits.yaml").is_file()
    assert (tmp_path / "companies" / "lab" / "samples.csv").is_file()


def test_a_tree_whose_links_were_lost_still_imports(checkout: Path, tmp_path: Path) -> None:
    for part in ("splitvfl", *PARTS):
        shutil.copytree(checkout / part, tmp_path / part, symlinks=True, ignore=shutil.ignore_patterns("__pycache__"))
    for part in PARTS:
        link = tmp_path / "splitvfl" / part
        link.unlink()
        # This is what a link becomes where a file system has none.
        link.write_text(f"../{part}", encoding="utf-8")

    code = f"from importlib.util import find_spec\nfor part in {PARTS}: print(find_spec(f'splitvfl.{{part}}').origin)"
    places = run(sys.executable, "-c", code, cwd=tmp_path).split()

    assert [Path(place) for place in places] == [tmp_path / part / "__init__.py" for part in PARTS]


def test_constraints_pin_every_package_once(checkout: Path) -> None:
    lines = (checkout / "constraints.txt").read_text(encoding="utf-8").splitlines()
    pins = [line for line in lines if not line.startswith("#")]
    names = [pin.partition("==")[0].lower() for pin in pins]

    # No hashes: pip refuses to install the project itself, which has none, under constraints that have some.
    assert all("==" in pin and "+" not in pin and "--hash" not in pin for pin in pins)
    assert names == sorted(set(names))

"""Make the lock files: every package that the project needs, by version and hash.

``uv`` resolves (``uv pip compile --universal``), for every platform that it knows at once, with the versions of
constraints.txt; this script divides the outcome among four files:

- ``requirements.lock``: what it takes to run the project, its service over HTTP too, and to install it from its source
  (the build backend);
- ``requirements-no-phe.lock``: the same without phe, which is under the GPL, for images and appliances that are passed
  on (``docs/licences.md``);
- ``requirements-dev.lock``: what the first has, and what tests, checks and documentation need;
- ``requirements-cuda.lock``: the libraries that PyTorch needs besides, where it was built for CUDA.

A package that constraints.txt does not know belongs to the last file, or is an error. Hashes of PyTorch that the files
have for the same version stay: builds for the CPU alone come from an index of its own, and so do not turn up here;
``--torch-wheel FILE`` adds the hash of such a build, which is then trusted as it lies there.

Run ``python -m scripts.lock [--torch-wheel FILE]`` with uv on the path, after a change of pyproject.toml or
constraints.txt. It asks the package index that uv is set to; no address is written.
tests/scripts/test_locks.py checks what it wrote.
"""

from __future__ import annotations

import argparse
import hashlib
import re
import subprocess
import sys
import tomllib
from collections.abc import Sequence
from pathlib import Path

CHECKOUT = Path(__file__).resolve().parent.parent
RUNNING, DEVELOPMENT, CUDA = "requirements.lock", "requirements-dev.lock", "requirements-cuda.lock"
NO_PHE = "requirements-no-phe.lock"
CUDA_PARTS = ("cuda-", "nvidia-", "triton")
HEADERS = {
    RUNNING: "What it takes to run splitvfl, and to install it from its source: by version and hash.",
    NO_PHE: "As requirements.lock, without phe, which is under the GPL: by version and hash.",
    DEVELOPMENT: "What it takes to run, test, check and document splitvfl: by version and hash.",
    CUDA: "What PyTorch needs besides, on Linux, where its build is one for CUDA: by version and hash.",
}
HOW = "# Made by `python -m scripts.lock`, not by hand. Install with pip's --require-hashes --no-deps."

# One requirement: its name, its version, perhaps a marker, and its hashes.
Locked = tuple[str, str, str, frozenset[str]]


def normal(name: str) -> str:
    """Return a package's name as indexes compare it.

    >>> normal("Jinja2"), normal("typing_extensions")
    ('jinja2', 'typing-extensions')
    """
    return re.sub(r"[-_.]+", "-", name).lower()


def read_pins(text: str) -> dict[str, str]:
    r"""Return the versions of a constraints file by normal name.

    >>> read_pins("# versions\nJinja2==3.1.6\n")
    {'jinja2': '3.1.6'}
    """
    lines = [line for line in text.splitlines() if line and not line.startswith("#")]
    return {normal(name): version for name, _, version in (line.partition("==") for line in lines)}


def read_lock(text: str) -> list[Locked]:
    r"""Return the requirements of a lock file, in its order.

    >>> read_lock("a==1 ; sys_platform == 'linux' \\\n    --hash=sha256:00\n")
    [('a', '1', "sys_platform == 'linux'", frozenset({'sha256:00'}))]
    """
    found = []
    for line in text.replace("\\\n", " ").splitlines():
        if line and not line.startswith("#"):
            requirement, *hashes = re.split(r"\s+--hash=", line.strip())
            pin, _, marker = (part.strip() for part in requirement.partition(";"))
            name, _, version = pin.partition("==")
            found.append((name, version, marker, frozenset(hashes)))
    return found


def write_lock(path: Path, locked: Sequence[Locked]) -> None:
    """Write requirements with their hashes, one to a line."""
    lines = [f"# {HEADERS[path.name]}", HOW]
    for name, version, marker, hashes in locked:
        pin = f"{name}=={version} ; {marker}" if marker else f"{name}=={version}"
        lines.append(" \\\n    ".join([pin, *(f"--hash={digest}" for digest in sorted(hashes))]))
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")


def resolve(checkout: Path, *extras: str) -> list[Locked]:
    """Return what pyproject.toml leads to, build backend included, as uv resolves it for every platform."""
    project = tomllib.loads((checkout / "pyproject.toml").read_text(encoding="utf-8"))
    command = ["uv", "pip", "compile", "--universal", "--python-version", "3.11", "--constraints", "constraints.txt"]
    command += ["--generate-hashes", "--no-annotate", "--no-header", "--quiet", "--no-sources"]
    command += [f"--extra={extra}" for extra in extras]
    done = subprocess.run(
        [*command, "pyproject.toml", "-"],
        cwd=checkout,
        input="\n".join(project["build-system"]["requires"]),
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    # Windows is no platform of this project.
    return [locked for locked in read_lock(done.stdout) if "sys_platform == 'win32'" not in locked[2]]


def known_builds(checkout: Path, version: str) -> frozenset[str]:
    """Return the hashes of PyTorch that the lock file has, if it has this version."""
    path = checkout / RUNNING
    before = read_lock(path.read_text(encoding="utf-8")) if path.exists() else []
    return frozenset().union(*(hashes for name, pinned, _, hashes in before if (name, pinned) == ("torch", version)))


def divide(locked: Sequence[Locked], pins: dict[str, str], torch_builds: frozenset[str]) -> dict[bool, list[Locked]]:
    """Return the pinned requirements under True, those of PyTorch for CUDA under False.

    Raises:
        SystemExit: If constraints.txt lacks a package that is no part of CUDA.
    """
    strays = [name for name, *_ in locked if name not in pins and not name.startswith(CUDA_PARTS)]
    if strays:
        sys.exit(f"lock: constraints.txt has no version of {', '.join(strays)}; add one, then run this again")
    divided: dict[bool, list[Locked]] = {True: [], False: []}
    for name, version, marker, hashes in locked:
        kept = hashes | torch_builds if name == "torch" else hashes
        divided[name in pins].append((name, version, marker, kept))
    return divided


def without_phe(locked: Sequence[Locked]) -> list[Locked]:
    """Return requirements without phe. It needs nothing that only it needs, as tests/scripts/test_locks.py checks.

    >>> without_phe([("phe", "1", "", frozenset()), ("numpy", "2", "", frozenset())])
    [('numpy', '2', '', frozenset())]
    """
    return [one for one in locked if one[0] != "phe"]


def main(argv: Sequence[str] | None = None) -> int:
    """Resolve, divide and write the four files."""
    parser = argparse.ArgumentParser(prog="python -m scripts.lock", description=main.__doc__)
    parser.add_argument(
        "--torch-wheel", type=Path, help="a build of PyTorch's pinned version to trust as it lies there"
    )
    arguments = parser.parse_args(argv)

    pins = read_pins((CHECKOUT / "constraints.txt").read_text(encoding="utf-8"))
    builds = known_builds(CHECKOUT, pins["torch"])
    if arguments.torch_wheel is not None:
        with arguments.torch_wheel.open("rb") as wheel:
            builds |= {f"sha256:{hashlib.file_digest(wheel, 'sha256').hexdigest()}"}

    running = divide(resolve(CHECKOUT, "serve"), pins, builds)
    development = divide(resolve(CHECKOUT, "dev"), pins, builds)
    write_lock(CHECKOUT / RUNNING, running[True])
    write_lock(CHECKOUT / NO_PHE, without_phe(running[True]))
    write_lock(CHECKOUT / DEVELOPMENT, development[True])
    write_lock(CHECKOUT / CUDA, running[False])
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""Experiments to begin with, as they are installed with the package."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path

from splitvfl.app import network_demo
from splitvfl.errors import ConfigError, suggestion
from splitvfl.system.untrusted_files import new_file

COMPANIES = "companies"
"""Name of the example that is no single file: a folder for each of three companies."""


@dataclass(frozen=True)
class Example:
    """One example.

    Attributes:
        name: Its name, which its file has too.
        text: The file.
    """

    name: str
    text: str

    @property
    def summary(self) -> str:
        """What it shows: the comment that the file begins with."""
        lines = self.text.splitlines()
        comment = lines[: next(number for number, line in enumerate(lines) if not line.startswith("#"))]
        return " ".join(line.removeprefix("#").strip() for line in comment)


def examples() -> dict[str, Example]:
    """Return the examples that are a file each, by name."""
    folder: Traversable = files("splitvfl") / "examples"
    found = sorted((path for path in folder.iterdir() if path.name.endswith(".yaml")), key=lambda path: path.name)
    return {
        name: Example(name, path.read_text(encoding="utf-8"))
        for path in found
        for name in [path.name.removesuffix(".yaml")]
    }


def described() -> Mapping[str, str]:
    """Return what each example shows, by name."""
    about = "Three companies, a folder for each with its own file and data, to be trained over a network."
    return {name: example.summary for name, example in examples().items()} | {COMPANIES: about}


def write_example(name: str, folder: Path) -> Path:
    """Write an example into a folder, which is made if need be, and return where it lies.

    Args:
        name: Its name; hyphens are as good as underscores.
        folder: Where to: a file ``NAME.yaml``, or the folder ``companies`` with a folder for each.

    Raises:
        ConfigError: If there is no such example, or something else lies in its place.
    """
    known = name.replace("-", "_").removesuffix(".yaml")
    if known == COMPANIES:
        network_demo.prepare(folder / COMPANIES)
        return folder / COMPANIES
    found = examples()
    if known not in found:
        raise ConfigError(f"no example {name!r}{suggestion(known, [*found, COMPANIES])}")
    path = folder / f"{known}.yaml"
    _write(path, found[known].text)
    return path


def _write(path: Path, text: str) -> None:
    """Write a file, unless there is another one: who has changed an example keeps it."""
    if path.exists():
        if path.is_file() and path.read_text(encoding="utf-8", errors="replace") == text:
            return
        raise ConfigError(f"{path} is there already, and is another file; name another folder with --out")
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        with new_file(path, mode=0o666) as file:
            file.write(text.encode())
    except FileExistsError as error:  # a link to nothing would be followed
        raise ConfigError(f"{path} is there already, and is a link; name another folder with --out") from error

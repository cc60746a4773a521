"""Compare what is locked, and what pyproject.toml allows at least, with a dated list of known weaknesses.

The list is ``scripts/known_weaknesses.toml``, which says how it is brought up to date. It is kept by hand, and no
scanner: what it does not name is not found. Nothing is fetched.

Run ``python -m scripts.weaknesses``. It ends with 1 where a release is affected that the list does not accept.
"""

from __future__ import annotations

import ast
import datetime
import sys
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

from scripts.lock import CHECKOUT, CUDA, DEVELOPMENT, NO_PHE, RUNNING, normal, read_lock, read_pins

LIST = Path(__file__).with_name("known_weaknesses.toml")
LOWER_BOUNDS = "pyproject.toml"
SHIPPED = ("splitvfl", "attacks", "defenses", "models", "penalties")

# By file, by package: a version.
Versions = Mapping[str, Mapping[str, str]]


@dataclass(frozen=True)
class Weakness:
    """An entry of the list; the list says what each field is."""

    package: str
    affected: Sequence[str]
    fixed: str
    id: str
    source: str
    concern: str
    accepted: str = ""
    unused: Sequence[str] = field(default=())
    held_by: str = ""

    def affects(self, version: str) -> bool:
        """Return whether a release is affected.

        >>> Weakness("a", [">=1,<1.2", "<0.5"], "1.2", "CVE-1", "", "").affects("1.1.9")
        True
        >>> Weakness("a", [">=1,<1.2", "<0.5"], "1.2", "CVE-1", "", "").affects("0.5")
        False
        """
        return any(SpecifierSet(one).contains(version, prereleases=True) for one in self.affected)


@dataclass(frozen=True)
class KnownWeaknesses:
    """The list.

    Attributes:
        date: When it was brought up to date.
        none_found: Direct dependencies for which nothing was found.
        weaknesses: Its entries.
    """

    date: datetime.date
    none_found: frozenset[str]
    weaknesses: tuple[Weakness, ...]

    @classmethod
    def read(cls, text: str) -> KnownWeaknesses:
        """Return the list that a file of TOML holds."""
        parsed = tomllib.loads(text)
        entries = tuple(Weakness(**entry) for entry in parsed["weakness"])
        return cls(parsed["date"], frozenset(parsed["none_found"]), entries)


def project_of(checkout: Path) -> dict[str, Any]:
    """Return what pyproject.toml says."""
    return tomllib.loads((checkout / LOWER_BOUNDS).read_text(encoding="utf-8"))


def requirements(checkout: Path) -> list[Requirement]:
    """Return the direct dependencies of pyproject.toml, those of every extra and of the build too."""
    project = project_of(checkout)
    lines = [*project["build-system"]["requires"], *project["project"]["dependencies"]]
    lines += [line for extra in project["project"]["optional-dependencies"].values() for line in extra]
    return [requirement for requirement in map(Requirement, lines) if requirement.name != "splitvfl"]


def lower_bounds(asked: Iterable[Requirement]) -> dict[str, str]:
    """Return the lowest release that each requirement allows, by normal name.

    >>> lower_bounds([Requirement("Jinja2>=3.1.6,<4")])
    {'jinja2': '3.1.6'}

    Raises:
        SystemExit: If one allows any release.
    """
    found = {}
    for requirement in asked:
        bounds = [one.version for one in requirement.specifier if one.operator == ">="]
        if len(bounds) != 1:
            sys.exit(f"weaknesses: {requirement} needs one lower bound, as in {requirement.name}>=1.0")
        found[normal(requirement.name)] = bounds[0]
    return found


def versions(checkout: Path) -> Versions:
    """Return what lock files and constraints.txt name, and what pyproject.toml allows at least."""
    locks = {
        name: {package: version for package, version, *_ in read_lock((checkout / name).read_text(encoding="utf-8"))}
        for name in (RUNNING, NO_PHE, DEVELOPMENT, CUDA)
    }
    pins = read_pins((checkout / "constraints.txt").read_text(encoding="utf-8"))
    return {**locks, "constraints.txt": pins, LOWER_BOUNDS: lower_bounds(requirements(checkout))}


def places(weakness: Weakness, found: Versions) -> list[str]:
    """Return where an affected release is named, in words."""
    return [
        f"{file}: {weakness.package}{'>=' if file == LOWER_BOUNDS else '=='}{named[weakness.package]}"
        for file, named in found.items()
        if weakness.package in named and weakness.affects(named[weakness.package])
    ]


def findings(known: KnownWeaknesses, found: Versions) -> list[str]:
    """Return a line for each place where a release is affected and not accepted."""
    return [
        f"{place} has {weakness.id}: {weakness.concern}; fixed in {weakness.fixed or 'no release that is known'}"
        for weakness in known.weaknesses
        if not weakness.accepted
        for place in places(weakness, found)
    ]


def used_names(texts: Iterable[str]) -> set[str]:
    """Return every dotted name that modules import or go through, and what these names lie in.

    >>> sorted(used_names(["from a.b import c", "import d.e", "x = f.g(1)"]))
    ['a', 'a.b', 'a.b.c', 'd', 'd.e', 'f', 'f.g', 'x']
    """
    names: set[str] = set()
    for text in texts:
        aliases: dict[str, str] = {}
        nodes = list(ast.walk(ast.parse(text)))
        for node in nodes:
            if isinstance(node, ast.Import):
                names.update(alias.name for alias in node.names)
                aliases.update({alias.asname: alias.name for alias in node.names if alias.asname})
            elif isinstance(node, ast.ImportFrom):
                names.update(f"{node.module}.{alias.name}" for alias in node.names)
                aliases.update({alias.asname or alias.name: f"{node.module}.{alias.name}" for alias in node.names})
        names.update(_dotted(node, aliases) for node in nodes if isinstance(node, ast.Attribute | ast.Name))
    return {
        ".".join(parts[:end]) for parts in (name.split(".") for name in names) for end in range(1, len(parts) + 1)
    } - {""}


def _dotted(node: ast.expr, aliases: Mapping[str, str]) -> str:
    if isinstance(node, ast.Name):
        return aliases.get(node.id, node.id)
    if isinstance(node, ast.Attribute) and (inner := _dotted(node.value, aliases)):
        return f"{inner}.{node.attr}"
    return ""


def shipped_names(checkout: Path) -> set[str]:
    """Return the names that splitvfl's own modules use."""
    files = (path for part in SHIPPED for path in sorted((checkout / part).rglob("*.py")))
    return used_names(path.read_text(encoding="utf-8") for path in files)


def main() -> int:
    """Print what is affected; return 1 where something is."""
    known = KnownWeaknesses.read(LIST.read_text(encoding="utf-8"))
    found = versions(CHECKOUT)
    lines = findings(known, found)
    for line in lines:
        print(line)
    print(f"{len(known.weaknesses)} known weaknesses, as of {known.date}: {len(lines) or 'none'} not accepted")
    return 1 if lines else 0


if __name__ == "__main__":
    sys.exit(main())

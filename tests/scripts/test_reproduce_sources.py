"""The digest of the code that a piece of work depends on: what changes it, and that what runs is in it."""

from __future__ import annotations

import ast
import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from scripts.reproduce.label_leakage import figure_2
from scripts.reproduce.label_leakage.study import Problem
from scripts.reproduce.shared.sources import BY_NAME, CHECKOUT, Sources, Symbol, _parsed, code_of
from splitvfl.errors import ArgumentError

JOB = """
'''A job.'''
import lib.tools as tools
import numpy as np
from lib import parts
from lib.shapes import area as of_square
from lib.shapes import perimeter

FACTOR: int = 3
UNUSED = 4
if FACTOR > 2:
    MODE = "fast"

def work(side):
    '''Do it.'''
    from lib.late import more
    return tools.scaled(of_square(side)) * FACTOR + parts.count(side) + more(side)

def draw():
    return perimeter(UNUSED)
"""
FILES = {
    "job.py": JOB,
    "lib/__init__.py": "",
    "lib/tools.py": (
        "from lib.deep import Scale\n\ndef scaled(x):\n    return Scale().of(x)\n\ndef other():\n    return 1\n"
    ),
    "lib/deep.py": "class Scale:\n    def of(self, x):\n        return 2 * x\n\nclass Unused:\n    pass\n",
    "lib/shapes.py": "def area(a):\n    return a * a\n\ndef perimeter(a):\n    return 4 * a\n",
    "lib/parts.py": "def count(x):\n    return len(TABLE)\n\nTABLE = {}\nTABLE[1] = 2\n",
    "lib/late.py": "def greeting():\n    return 'hello'\n\ndef more(x):\n    return x\n\nprint(greeting(), 1)\n",
    "lib/named.py": "def plugin():\n    return 1\n",
}


@pytest.fixture
def digest(tmp_path: Path) -> Callable[..., str]:
    """Write the files, one of them changed, and return the digest of ``job.work``."""

    def digest(path: str = "job.py", old: str = "", new: str = "", **options: Any) -> str:
        for name, text in FILES.items():
            (tmp_path / name).parent.mkdir(exist_ok=True)
            if name == path:
                assert old in text
                text = text.replace(old, new, 1) if old else text
            (tmp_path / name).write_text(text)
        _parsed.cache_clear()
        return Sources(tmp_path, **options).digest("job", "work")

    return digest


@pytest.mark.parametrize(
    ("path", "old", "new"),
    [
        ("job.py", "* FACTOR", "- FACTOR"),
        ("job.py", "FACTOR: int = 3", "FACTOR: int = 5"),
        ("job.py", "lib.shapes import area as", "lib.shapes import perimeter as"),
        ("job.py", "FACTOR > 2", "FACTOR > 1"),  # run whenever the module is imported
        ("lib/tools.py", "Scale().of(x)", "Scale().of(x + 1)"),
        ("lib/deep.py", "2 * x", "3 * x"),
        ("lib/deep.py", "def of(self, x)", "@cached\n    def of(self, x)"),
        ("lib/shapes.py", "a * a", "a ** 2"),
        ("lib/parts.py", "TABLE[1] = 2", "TABLE[1] = 3"),
        ("lib/late.py", "return x", "return -x"),
        ("lib/late.py", "greeting(), 1", "greeting(), 2"),  # run when the module is imported
        ("lib/late.py", "'hello'", "'bye'"),  # and so is what that names
    ],
)
def test_a_change_of_what_is_used_changes_the_digest(digest: Callable[..., str], path: str, old: str, new: str) -> None:
    assert digest(path, old, new) != digest()


@pytest.mark.parametrize(
    ("path", "old", "new"),
    [
        ("job.py", "'''Do it.'''", "'''Do it well.'''"),
        ("job.py", "'''A job.'''", "# A job."),
        ("job.py", "UNUSED = 4", "UNUSED = 5"),
        ("job.py", "return perimeter(UNUSED)", "return 0"),
        ("job.py", "FACTOR: int = 3", "FACTOR: int = (  # three\n    3\n)"),
        ("job.py", 'MODE = "fast"', 'MODE = "slow"'),
        ("lib/shapes.py", "4 * a", "5 * a"),
        ("lib/tools.py", "return 1", "return 2"),
        ("lib/deep.py", "pass", "x = 1"),
        ("lib/named.py", "return 1", "return 2"),
    ],
)
def test_a_change_of_anything_else_does_not(digest: Callable[..., str], path: str, old: str, new: str) -> None:
    assert digest(path, old, new) == digest()


def test_what_is_imported_by_a_made_up_name_counts(digest: Callable[..., str]) -> None:
    known = {"lib.tools.scaled": ("lib.named",)}

    assert digest("lib/named.py", "return 1", "return 2", by_name=known) != digest(by_name=known)


def test_a_whole_module_that_is_handed_on_counts_whole(digest: Callable[..., str], tmp_path: Path) -> None:
    digest()
    _parsed.cache_clear()
    (tmp_path / "job.py").write_text("from lib import deep\n\ndef work(x):\n    return getattr(deep, x)\n")

    assert Symbol("lib.deep", "Unused") in Sources(tmp_path).reached("job", "work")


def test_a_module_that_another_one_passes_on_counts(digest: Callable[..., str], tmp_path: Path) -> None:
    digest()
    _parsed.cache_clear()
    (tmp_path / "hub.py").write_text("from lib import parts\n")
    (tmp_path / "job.py").write_text("import hub\n\ndef work(x):\n    return hub.parts.count(x)\n")

    assert Symbol("lib.parts", "TABLE") in Sources(tmp_path).reached("job", "work")


def test_a_name_that_is_not_there_is_refused(digest: Callable[..., str], tmp_path: Path) -> None:
    digest()
    with pytest.raises(ArgumentError, match="expected a function at the top of job, got 'play'"):
        Sources(tmp_path).digest("job", "play")


def test_functions_of_other_libraries_have_a_digest() -> None:
    assert code_of(dict) == code_of(list)
    assert code_of(figure_2.follow) == code_of(figure_2.follow) != code_of(figure_2.find_ratio)


def test_everything_that_is_run_is_reached() -> None:
    """A run whose attacks are imported by made-up names, watched from outside: a real one, of some seconds."""
    known = {str(path.resolve()): path for folder in ("splitvfl", "scripts") for path in _modules(CHECKOUT / folder)}
    problem = Problem(key="small", arguments={"name": "breast-cancer"}, batch_size=256, epochs=1).as_settings()
    defense = figure_2.ISOTROPIC.as_settings()
    ran: dict[str, set[int]] = {}

    def watch(frame: FrameType, event: str, argument: object) -> None:
        if event == "call":
            ran.setdefault(frame.f_code.co_filename, set()).add(frame.f_code.co_firstlineno)

    sys.setprofile(watch)
    try:
        figure_2.follow(problem, 0, defense)
    finally:
        sys.setprofile(None)

    run = {
        Symbol(_name(known[str(place)]), name)
        for file, lines in ran.items()
        if str(place := Path(file).resolve()) in known
        for name in _definitions(place, lines)
    }
    assert len(run) > 100
    assert not run - Sources(CHECKOUT).reached(figure_2.follow.__module__, "follow")


def _name(path: Path) -> str:
    parts = path.relative_to(CHECKOUT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def _definitions(path: Path, lines: set[int]) -> list[str]:
    """Return the functions and classes at the top of a file in which there are such lines."""
    found = []
    for node in ast.parse(path.read_bytes()).body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            first = min(node.lineno, *(each.lineno for each in node.decorator_list), node.lineno)
            if lines & set(range(first, (node.end_lineno or 0) + 1)):
                found.append(node.name)
    return found


def _modules(folder: Path) -> list[Path]:
    linked = [folder / name for name in ("attacks", "defenses", "models", "penalties") if (folder / name).is_symlink()]
    return [*folder.rglob("*.py"), *(path for link in linked for path in link.glob("*.py"))]


def test_every_import_by_a_made_up_name_is_known() -> None:
    ways = {"import_module", "__import__", "load_module", "exec_module"}
    found = set()
    for path in {path.resolve() for folder in ("splitvfl", "scripts") for path in _modules(CHECKOUT / folder)}:
        text = path.read_text(encoding="utf-8")
        for node in ast.parse(text).body if any(way in text for way in ways) else ():
            calls = (inner.func for inner in ast.walk(node) if isinstance(inner, ast.Call))
            if {getattr(call, "attr", getattr(call, "id", "")) for call in calls} & ways:
                found.add(f"{_name(path)}.{getattr(node, 'name', '')}")
    # What packages export lazily is imported for type checkers, too; the next is of users' own files; the third
    # finds the function of a cell that is to be run, whose own digest is taken; and the last loads packages of others.
    besides = {
        "splitvfl.lazy_names.lazy_names",
        "splitvfl.config.module_sources.imported",
        "scripts.reproduce.shared.one_cell._function",
        "scripts.mutations.main",
    }
    assert found == {*BY_NAME, *besides}

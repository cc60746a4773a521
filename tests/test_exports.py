"""What ``import`` offers: sorted, complete, and there."""

from __future__ import annotations

import ast
import importlib
import subprocess
import sys
import types
from collections.abc import Iterator
from pathlib import Path

import pytest

from splitvfl.lazy_names import lazy_names

PACKAGES = [
    "splitvfl",
    "splitvfl.attacks",
    "splitvfl.defenses",
    "splitvfl.exchange",
    "splitvfl.learning.losses",
    "splitvfl.models",
    "splitvfl.penalties",
    "splitvfl.privacy",
]


@pytest.fixture(params=PACKAGES)
def package(request: pytest.FixtureRequest) -> types.ModuleType:
    return importlib.import_module(request.param)


def test_all_is_sorted_and_without_repeats(package: types.ModuleType) -> None:
    assert package.__all__ == sorted(set(package.__all__))


def test_every_exported_name_resolves(package: types.ModuleType) -> None:
    missing = [name for name in package.__all__ if not hasattr(package, name)]

    assert missing == []


def tree_of(package: types.ModuleType) -> ast.Module:
    assert package.__file__ is not None
    return ast.parse(Path(package.__file__).read_text(encoding="utf-8"))


def imported_names(tree: ast.Module) -> Iterator[tuple[str, str]]:
    """Yield what a package imports from its own modules to offer it, also for type checkers alone, and where from."""
    for node in ast.walk(tree):
        module = (isinstance(node, ast.ImportFrom) and node.module) or ""
        if isinstance(node, ast.ImportFrom) and module.startswith("splitvfl.") and module != "splitvfl.lazy_names":
            yield from ((alias.asname or alias.name, module) for alias in node.names)


def test_all_names_exactly_what_the_package_imports_from_its_own_modules(package: types.ModuleType) -> None:
    tree = tree_of(package)
    defined = {
        node.name
        for node in tree.body
        if isinstance(node, ast.FunctionDef | ast.ClassDef) and not node.name.startswith("_")
    }

    assert set(package.__all__) == {name for name, _ in imported_names(tree)} | defined


def test_public_names_are_the_objects_of_the_modules_named_for_type_checkers(package: types.ModuleType) -> None:
    for name, module in imported_names(tree_of(package)):
        assert getattr(package, name) is getattr(importlib.import_module(module), name), name


def test_a_name_that_does_not_exist_is_an_attribute_error_that_says_so(package: types.ModuleType) -> None:
    with pytest.raises(AttributeError, match=f"module {package.__name__!r} has no attribute 'SplitModle'"):
        _ = package.SplitModle


def test_dir_shows_public_names_and_no_others() -> None:
    package = importlib.import_module("splitvfl")
    importlib.import_module("splitvfl.run.trainer")  # whatever was imported: folders inside are nobody's to complete

    found = {name for name in dir(package) if not name.startswith("__")}

    modules = found - set(package.__all__)
    assert {*package.__all__, "__version__"} <= set(dir(package))
    assert modules == {
        *("attacks", "defenses", "errors", "exchange", "hooks", "metrics"),
        *("models", "penalties", "privacy", "sklearn"),
    }


@pytest.mark.parametrize("name", ["splitvfl.exchange", "splitvfl.privacy"])
def test_dir_shows_no_module_of_a_package_whose_names_are_lazy(name: str) -> None:
    package = importlib.import_module(name)
    importlib.import_module("splitvfl.run.trainer")

    assert [shown for shown in dir(package) if not shown.startswith("__")] == package.__all__


def test_a_module_whose_names_are_lazy_is_there_by_its_own_name() -> None:
    """Users write ``splitvfl.privacy.solvable.prevention`` without importing the module."""
    getattribute, _ = lazy_names("splitvfl.privacy", {"splitvfl.privacy.solvable": ("SummedTraining",)})

    assert getattribute("solvable") is importlib.import_module("splitvfl.privacy.solvable")
    with pytest.raises(AttributeError, match="has no attribute 'sensitivity'"):
        getattribute("sensitivity")


@pytest.mark.slow(reason="imports all libraries in a new process")
def test_every_name_that_is_shown_is_there_in_a_fresh_interpreter() -> None:
    code = "import sys, splitvfl; sys.exit(not all(hasattr(splitvfl, name) for name in dir(splitvfl)))"

    done = subprocess.run([sys.executable, "-c", code], cwd=Path(__file__).parent.parent, check=False)

    assert done.returncode == 0

"""What ``import`` offers: sorted, complete, and there."""

from __future__ import annotations

import ast
import importlib
import subprocess
import sys
import types
from pathlib import Path

import pytest

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


def test_all_names_exactly_what_the_package_imports_from_its_own_modules(package: types.ModuleType) -> None:
    assert package.__file__ is not None
    tree = ast.parse(Path(package.__file__).read_text(encoding="utf-8"))
    imported = {
        alias.asname or alias.name
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("splitvfl")
        for alias in node.names
    }
    defined = {
        node.name
        for node in tree.body
        if isinstance(node, ast.FunctionDef | ast.ClassDef) and not node.name.startswith("_")
    }

    assert set(package.__all__) == imported | defined


def test_lazy_names_are_the_objects_of_the_modules_named_for_type_checkers() -> None:
    package = importlib.import_module("splitvfl")
    assert package.__file__ is not None
    tree = ast.parse(Path(package.__file__).read_text(encoding="utf-8"))
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("splitvfl."):
            home = importlib.import_module(node.module)
            for alias in node.names:
                assert getattr(package, alias.name) is getattr(home, alias.name), alias.name


def test_a_name_that_does_not_exist_is_an_attribute_error_that_says_so() -> None:
    package = importlib.import_module("splitvfl")

    with pytest.raises(AttributeError, match="module 'splitvfl' has no attribute 'SplitModle'"):
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


@pytest.mark.slow(reason="imports all libraries in a new process")
def test_every_name_that_is_shown_is_there_in_a_fresh_interpreter() -> None:
    code = "import sys, splitvfl; sys.exit(not all(hasattr(splitvfl, name) for name in dir(splitvfl)))"

    done = subprocess.run([sys.executable, "-c", code], cwd=Path(__file__).parent.parent, check=False)

    assert done.returncode == 0

"""Imports run down the floors of the house only, and there are no circles.

A new module is given a floor below: the lowest one from which it can reach what it needs. Importing the package itself
(``from splitvfl import ...``) is for users; inside it, a module imports the module that it means.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

CHECKOUT = Path(__file__).resolve().parent.parent

# From the ground up, as the table in docs/architecture.md. A package's name stands for all its modules, unless a module
# is named itself. Modules of one floor may import each other, but not in a circle.
FLOORS: tuple[frozenset[str], ...] = (
    frozenset({"allocator", "errors", "wording"}),
    frozenset(
        {
            "best_weights",
            "claims",
            "conversation",
            "crypto",
            "folder_lock",
            "data",
            "hooks",
            "label_gradients",
            "messages",
            "metrics",
            "net",
            "optimizers",
            "precision",
            "privacy",
            "private_folder",
            "private_top",
            "randomness",
            "records",
            "sampling",
            "schedule",
            "signals",
            "tasks",
            "yaml_tree",
        }
    ),
    frozenset(
        {
            "attacks",
            "checkpoint",
            "defenses",
            "leakage.after_training",
            "leakage.auditing",
            "leakage.canaries",
            "leakage.event_file",
            "leakage.run_audit",
            "leakage.features",
            "leakage.judging",
            "leakage.label_leak",
            "leakage.label_ratios",
            "leakage.monitor",
            "leakage.own_columns",
            "leakage.series",
            "leakage.signs",
            "leakage.transcript",
            "leakage.watching",
            "models",
        }
    ),
    frozenset({"crossing", "cut"}),
    frozenset({"party"}),
    frozenset({"attaching", "crypto.psi", "exchange", "prediction"}),
    frozenset({"training"}),
    frozenset(
        {
            "config",
            "demo",
            "deployment",
            "exchanges",
            "label_horizon",
            "noise",
            "experiment",
            "leakage.drawing",
            "leakage.figures",
            "leakage.findings",
            "leakage.report",
            "leakage.summary",
            "leakage.tables",
            "net.aligning",
            "net.coordinator_run",
            "net.party_run",
            "net.predict_run",
            "registry",
            "saved_half",
            "serving",
        }
    ),
    frozenset({"cli", "console"}),
    frozenset({"scripts"}),
)

# The parts that a user may replace; in the core, only those that turn names into objects know them.
PLUGINS = ("attacks", "defenses", "models")
KNOW_PLUGINS = {"cli", "demo", "exchanges", "experiment", "label_horizon", "noise", "registry"}

# These hold no code of their own, and their names stand for what they contain.
DOORS = {"splitvfl", "leakage"}


def source_files() -> dict[str, Path]:
    """Return every module by its name without ``splitvfl.``; scripts keep theirs."""
    found = {}
    for folder in ("splitvfl", *PLUGINS, "scripts"):
        for path in sorted((CHECKOUT / folder).rglob("*.py")):
            parts = path.relative_to(CHECKOUT).with_suffix("").parts
            # The links lead to files that are found at the root.
            if folder == "splitvfl" and len(parts) > 2 and parts[1] in PLUGINS:
                continue
            if parts[-1] == "__init__":
                parts = parts[:-1]
            if parts[0] == "splitvfl" and len(parts) > 1:
                parts = parts[1:]
            found[".".join(parts)] = path
    return found


FILES = source_files()
CHECKED = sorted(set(FILES) - DOORS)
INSIDE = [module for module in CHECKED if module.split(".")[0] != "scripts"]
CORE = [module for module in INSIDE if module.split(".")[0] not in {*KNOW_PLUGINS, *PLUGINS}]


def imported_names(tree: ast.AST, *, names_of_modules: bool) -> Iterator[str]:
    """Yield the dotted names that a syntax tree imports, inside functions and ``TYPE_CHECKING`` blocks too."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"line {node.lineno}: a relative import"
            assert node.module is not None
            for alias in node.names:
                yield f"{node.module}.{alias.name}" if names_of_modules else node.module


def own_imports(path: Path) -> set[str]:
    """Return the project's modules that a file imports, named as in :func:`source_files`."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return {
        module
        for name in imported_names(tree, names_of_modules=True)
        if name.split(".")[0] in ("splitvfl", "scripts") and (module := module_of(name))
    }


def module_of(name: str) -> str | None:
    """Return the longest part of a dotted name that is one of our modules."""
    parts = name.removeprefix("splitvfl.").split(".")
    candidates = (".".join(parts[:length]) for length in range(len(parts), 0, -1))
    return next((candidate for candidate in candidates if candidate in FILES), "splitvfl")


def floor_of(module: str) -> int:
    """Return a module's floor: that of its own name, or of the package it lies in."""
    parts = module.split(".")
    for length in range(len(parts), 0, -1):
        for number, floor in enumerate(FLOORS):
            if ".".join(parts[:length]) in floor:
                return number
    raise AssertionError(
        f"{module} has no floor: add it to FLOORS in {Path(__file__).name}, as low as its imports let it"
    )


def test_floors_name_nothing_twice() -> None:
    names = [name for floor in FLOORS for name in floor]

    assert sorted(names) == sorted(set(names))


@pytest.mark.parametrize("module", CHECKED)
def test_imports_run_down(module: str) -> None:
    floor = floor_of(module)
    above = {other for other in own_imports(FILES[module]) - DOORS if floor_of(other) > floor}

    assert not above, f"{module} imports from a floor above its own: {', '.join(sorted(above))}"


@pytest.mark.parametrize("module", INSIDE)
def test_nothing_inside_imports_the_front_door(module: str) -> None:
    assert "splitvfl" not in own_imports(FILES[module]), (
        f"{module} imports a name from splitvfl itself, or from a module that is not there: name the module"
    )


def test_there_are_no_circles() -> None:
    graph = {module: own_imports(FILES[module]) - DOORS - {module} for module in CHECKED}

    # Raises CycleError, which names the circle.
    TopologicalSorter(graph).prepare()


@pytest.mark.parametrize("module", CORE)
def test_the_core_knows_no_plugin(module: str) -> None:
    plugins = {other for other in own_imports(FILES[module]) if other.split(".")[0] in PLUGINS}

    assert not plugins, f"{module} belongs to the core and imports {', '.join(sorted(plugins))}"


@pytest.mark.parametrize("module", sorted(FILES))
def test_nothing_is_unpickled(module: str) -> None:
    tree = ast.parse(FILES[module].read_text(encoding="utf-8"))
    roots = {name.split(".")[0] for name in imported_names(tree, names_of_modules=False)}
    assert not roots & {"cloudpickle", "dill", "joblib", "marshal", "pickle", "shelve"}

    for call in ast.walk(tree):
        if isinstance(call, ast.Call) and ast.unparse(call.func) in ("torch.load", "np.load", "numpy.load"):
            given = {word.arg: ast.unparse(word.value) for word in call.keywords}
            if ast.unparse(call.func) == "torch.load":
                assert given.get("weights_only") == "True", f"line {call.lineno}: torch.load without weights_only=True"
            else:
                assert given.get("allow_pickle", "False") == "False", f"line {call.lineno}: allow_pickle"


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("import splitvfl.cut", {"cut"}),
        ("from splitvfl import cut", {"cut"}),
        ("from splitvfl import SplitModel", {"splitvfl"}),
        ("from splitvfl.cut import CutLayer", {"cut"}),
        ("def f():\n    from splitvfl.data.load import load", {"data.load"}),
        ("import torch", set()),
    ],
)
def test_imports_are_found_wherever_they_stand(source: str, expected: set[str], tmp_path: Path) -> None:
    path = tmp_path / "module.py"
    path.write_text(source, encoding="utf-8")

    assert own_imports(path) == expected

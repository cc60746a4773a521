"""Imports run one way: from a folder to those before it, and never in a circle."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

CHECKOUT = Path(__file__).resolve().parent.parent

# From the ground up. A folder, or a module that lies in none, imports from those before it; what is in a folder is the
# list in docs/architecture.md. Plug-ins come late: nothing before them can know one.
ORDER = (
    "lazy_names",
    "errors",
    "metrics",
    "system",
    "messaging",
    "crypto",
    "net",
    "learning",
    "privacy",
    "team",
    "hooks",
    "claims",
    "data",
    "leakage",
    "cut",
    "party",
    "exchange",
    "config",
    "run",
    "report",
    "models",
    "defenses",
    "penalties",
    "attacks",
    "audit",
    "app",
    "sklearn",
    "cli",
    "__main__",
    "splitvfl",  # the package itself: what users import
    "scripts",
)


def source_files() -> dict[str, Path]:
    """Return every module by its name without ``splitvfl.``; scripts and the package itself keep theirs."""
    linked = ("attacks", "defenses", "models", "penalties")
    found = {}
    for folder in ("splitvfl", *linked, "scripts"):
        for path in sorted((CHECKOUT / folder).rglob("*.py")):
            parts = path.relative_to(CHECKOUT).with_suffix("").parts
            # The links lead to files that are found at the root.
            if folder == "splitvfl" and parts[1] in linked:
                continue
            if parts[-1] == "__init__":
                parts = parts[:-1]
            if parts[0] == "splitvfl" and len(parts) > 1:
                parts = parts[1:]
            found[".".join(parts)] = path
    return found


FILES = source_files()


def statements(node: ast.AST) -> Iterator[ast.stmt]:
    """Yield every statement below a node, and go into no expression: there are ten times as many."""
    for name in ("body", "orelse", "handlers", "finalbody", "cases"):
        for child in getattr(node, name, ()):
            if isinstance(child, ast.stmt):
                yield child
            yield from statements(child)


@cache
def own_imports(path: Path) -> frozenset[str]:
    """Return the project's modules that a file imports, inside functions and ``TYPE_CHECKING`` blocks too."""
    names: list[str] = []
    for node in statements(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"line {node.lineno}: a relative import"
            names += [f"{node.module}.{alias.name}" for alias in node.names]
    return frozenset(_module_of(name) for name in names if name.split(".")[0] in ("splitvfl", "scripts"))


def _module_of(name: str) -> str:
    """Return the longest part of a dotted name that is one of our modules."""
    parts = name.removeprefix("splitvfl.").split(".")
    candidates = (".".join(parts[:length]) for length in range(len(parts), 0, -1))
    return next((candidate for candidate in candidates if candidate in FILES), "splitvfl")


def _room_of(module: str) -> str:
    return module.split(".")[0]


def _floor_of(module: str) -> int:
    return ORDER.index(_room_of(module))


def test_the_order_names_every_folder_once() -> None:
    assert sorted(ORDER) == sorted({_room_of(module) for module in FILES})


def test_imports_run_down() -> None:
    above = {
        module: later
        for module, path in FILES.items()
        if (later := [other for other in sorted(own_imports(path)) if _floor_of(other) > _floor_of(module)])
    }

    assert not above, "\n".join(f"{module} imports what comes after it: {', '.join(above[module])}" for module in above)


def test_there_are_no_circles() -> None:
    graph = {module: own_imports(path) - {module} for module, path in FILES.items()}

    # Raises CycleError, which names the circle.
    TopologicalSorter(graph).prepare()


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("import splitvfl.cut.layer", {"cut.layer"}),
        ("from splitvfl.cut import layer", {"cut.layer"}),
        ("from splitvfl import SplitModel", {"splitvfl"}),
        ("from splitvfl.cut.layer import CutLayer", {"cut.layer"}),
        ("def f():\n    from splitvfl.data.load import load", {"data.load"}),
        ("try:\n    pass\nexcept E:\n    import splitvfl.net", {"net"}),
        ("try:\n    pass\nfinally:\n    import splitvfl.net", {"net"}),
        ("if a:\n    pass\nelse:\n    import splitvfl.net", {"net"}),
        ("match a:\n    case 1:\n        import splitvfl.net", {"net"}),
        ("import torch", set()),
    ],
)
def test_imports_are_found_wherever_they_stand(source: str, expected: set[str], tmp_path: Path) -> None:
    path = tmp_path / "module.py"
    path.write_text(source, encoding="utf-8")

    assert own_imports(path) == expected

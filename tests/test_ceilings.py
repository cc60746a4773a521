"""How large the package may be, and how much of it a part of it may need."""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache

import pytest

from tests.test_imports import FILES

# Code lines (without docstrings, comments and blank lines) and files of a folder. Folders of plug-ins have room for a
# few more: an attack, a defense, a model, a penalty or an exchange takes three edits, and none of them is here.
FOLDERS = {
    "__main__": (10, 1),
    "app": (12_560, 80),
    "attacks": (6_500, 75),
    "audit": (1_200, 10),
    "claims": (610, 7),
    "cli": (2_400, 17),
    "config": (2_740, 13),
    "crypto": (1_840, 25),
    "cut": (1_520, 11),
    "data": (10_640, 77),
    "defenses": (2_790, 39),
    "errors": (110, 1),
    "exchange": (4_640, 34),
    "hooks": (810, 1),
    "lazy_names": (30, 1),
    "leakage": (6_330, 57),
    "learning": (2_640, 28),
    "messaging": (400, 5),
    "metrics": (250, 1),
    "models": (900, 10),
    "net": (1_800, 10),
    "party": (1_760, 14),
    "penalties": (500, 6),
    "privacy": (2_400, 18),
    "report": (4_180, 28),
    "run": (6_110, 44),
    "sklearn": (10, 1),
    "splitvfl": (120, 1),
    "system": (700, 11),
    "team": (900, 8),
}

# Code lines of all modules that one imports, directly or not. Imports inside functions count.
REACH = {
    "cut.split_model": 7_730,  # SplitModel
    "run.trainer": 18_640,  # Trainer
    "cli.training": 39_650,
    "cli.prediction": 29_630,
    "cli.serving": 30_260,
}

# Arguments of public functions, methods and constructors outside the command line.
MANY_PARAMETERS = 8
CALLABLES_WITH_MANY_PARAMETERS = 8

METHODS = 40  # of one class, with those that it inherits from others of the package
HOLDERS_OF_THE_WHOLE_CONFIG = 60  # functions that take an ExperimentConfig, and types that have one
ARROWS = 139  # from one folder to another whose modules it imports

WHY = "Take something away, or explain in the commit what a higher ceiling buys the reader."


@dataclass
class Module:
    """What one walk through a module's syntax tells."""

    lines: int
    imports: dict[str, str] = field(default_factory=dict)  # by the name it has here
    imported: set[str] = field(default_factory=set)  # without those for type checkers only
    wide: dict[str, int] = field(default_factory=dict)
    with_config: list[str] = field(default_factory=list)
    classes: dict[str, tuple[list[str], set[str]]] = field(default_factory=dict)  # bases, and own methods


@cache
def house() -> dict[str, Module]:
    """Return every module of the package, by its name without ``splitvfl.``."""
    ours = {name: path for name, path in FILES.items() if name.split(".")[0] != "scripts"}
    return {name: module_of(path.read_text(encoding="utf-8"), set(ours)) for name, path in ours.items()}


def module_of(source: str, known: set[str]) -> Module:
    """Return what is to be known of a module, given the names of all modules."""
    tree = ast.parse(source)
    texts = _docstring_lines(tree)
    module = Module(lines=0)
    for node, inside, checked_only in _walk(tree, (), False):
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            _note_import(module, node, known, checked_only)
        elif isinstance(node, ast.ClassDef):
            texts |= _docstring_lines(node)
            methods = {item.name for item in node.body if isinstance(item, (ast.FunctionDef, ast.AsyncFunctionDef))}
            module.classes[node.name] = ([ast.unparse(base) for base in node.bases], methods)
            if any(_is_whole(item.annotation) for item in node.body if isinstance(item, ast.AnnAssign)) or _keeps(node):
                module.with_config.append(node.name)
        elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            texts |= _docstring_lines(node)
            arguments = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
            name = ".".join((*inside, node.name))
            if any(_is_whole(argument.annotation) for argument in arguments):
                module.with_config.append(name)
            count = len([argument for argument in arguments if argument.arg not in ("self", "cls")])
            if count > MANY_PARAMETERS and (not node.name.startswith("_") or node.name == "__init__"):
                module.wide[name] = count
    for number, line in enumerate(source.split("\n"), 1):
        module.lines += number not in texts and line.strip()[:1] not in ("", "#")
    return module


_IN_STATEMENTS = (ast.stmt, ast.excepthandler, ast.match_case)


def _walk(
    node: ast.AST, inside: tuple[str, ...], checked_only: bool
) -> Iterator[tuple[ast.stmt, tuple[str, ...], bool]]:
    """Yield every statement, the names of what is around it, and whether only type checkers run it."""
    for child in ast.iter_child_nodes(node):
        if not isinstance(child, _IN_STATEMENTS):
            continue
        if isinstance(child, ast.stmt):
            yield child, inside, checked_only
        named = isinstance(child, (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef))
        typed = isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test)
        yield from _walk(child, (*inside, child.name) if named else inside, checked_only or typed)


def _docstring_lines(node: ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) -> set[int]:
    first = node.body[0] if node.body else None
    if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant) and isinstance(first.value.value, str):
        return set(range(first.lineno, (first.end_lineno or first.lineno) + 1))
    return set()


def _note_import(module: Module, node: ast.Import | ast.ImportFrom, known: set[str], checked_only: bool) -> None:
    if isinstance(node, ast.Import):
        found = [(alias.asname or alias.name, alias.name) for alias in node.names]
    else:
        found = [(alias.asname or alias.name, f"{node.module}.{alias.name}") for alias in node.names]
    for name, dotted in found:
        first, *parts = dotted.split(".")
        if first != "splitvfl":
            continue
        module.imports[name] = ".".join(parts)
        # The folders around a module are imported with it.
        around = {".".join(parts[:length]) for length in range(1, len(parts) + 1)} & known
        if not checked_only:
            module.imported |= around


def _is_whole(annotation: ast.expr | None) -> bool:
    parts = ast.walk(annotation) if annotation is not None else ()
    return any(isinstance(part, ast.Name) and part.id == "ExperimentConfig" for part in parts)


def _keeps(node: ast.ClassDef) -> bool:
    """Return whether a method of a class puts an experiment's settings into an attribute."""
    for method in node.body:
        if not isinstance(method, (ast.FunctionDef, ast.AsyncFunctionDef)):
            continue
        arguments = (*method.args.posonlyargs, *method.args.args, *method.args.kwonlyargs)
        whole = {argument.arg for argument in arguments if _is_whole(argument.annotation)}
        for item in ast.walk(method) if whole else ():
            if not isinstance(item, (ast.Assign, ast.AnnAssign)):
                continue
            target = item.targets[0] if isinstance(item, ast.Assign) else item.target
            pairs = zip(_parts(target), _parts(item.value), strict=False)
            if any(isinstance(name, ast.Attribute) and getattr(value, "id", None) in whole for name, value in pairs):
                return True
    return False


def _parts(expression: ast.expr | None) -> list[ast.expr | None]:
    return [*expression.elts] if isinstance(expression, ast.Tuple) else [expression]


def room_of(name: str) -> str:
    """Return the folder of a module, or its name where it lies in none."""
    return name.split(".")[0]


def reach_of(start: str, modules: dict[str, Module]) -> dict[str, int]:
    """Return the code lines of each module that one needs. ``cli`` lists all commands, and none of them needs it."""
    found: dict[str, int] = {}
    waiting = [start]
    while waiting:
        name = waiting.pop()
        if name not in found and name != "cli":
            found[name] = modules[name].lines
            waiting += modules[name].imported
    return found


def methods_of(name: str, modules: dict[str, Module]) -> dict[str, set[str]]:
    """Return the methods of every class of a module, with those of the package's classes that it is derived from."""
    return {cls: _methods(name, cls, modules) for cls in modules[name].classes}


def _methods(name: str, cls: str, modules: dict[str, Module]) -> set[str]:
    module = modules[name]
    if cls in module.classes:
        bases, own = module.classes[cls]
        return own.union(*(_methods(name, base.split("[")[0], modules) for base in bases))
    first, *rest = cls.split(".")
    if first not in module.imports:
        return set()  # a class of another package
    *parts, last = [*module.imports[first].split("."), *rest]
    return _methods(".".join(parts), last, modules) if ".".join(parts) in modules else set()


def sizes() -> dict[str, tuple[int, int]]:
    """Return the code lines and files of every folder."""
    lines: Counter[str] = Counter()
    files: Counter[str] = Counter()
    for name, module in house().items():
        lines[room_of(name)] += module.lines
        files[room_of(name)] += 1
    return {room: (lines[room], files[room]) for room in sorted(files)}


@pytest.mark.parametrize("folder", FOLDERS)
def test_no_folder_outgrows_its_ceiling(folder: str) -> None:
    lines, files = sizes()[folder]
    most_lines, most_files = FOLDERS[folder]

    assert lines <= most_lines, f"{folder}: {lines} code lines, above {most_lines}. {WHY}"
    assert files <= most_files, f"{folder}: {files} files, above {most_files}. {WHY}"


def test_every_folder_has_a_ceiling() -> None:
    assert sorted(FOLDERS) == sorted(sizes())


@pytest.mark.parametrize("start", REACH)
def test_no_module_needs_more_of_the_package_than_its_ceiling(start: str) -> None:
    needed = reach_of(start, house())
    rooms: Counter[str] = Counter()
    for name, lines in needed.items():
        rooms[room_of(name)] += lines

    assert sum(needed.values()) <= REACH[start], (
        f"{start} needs {sum(needed.values())} code lines, above {REACH[start]}: {rooms}. {WHY}"
    )


def test_few_callables_have_many_parameters() -> None:
    wide = {
        f"{name}.{callable_}": count
        for name, module in house().items()
        if room_of(name) != "cli"
        for callable_, count in module.wide.items()
    }

    assert len(wide) <= CALLABLES_WITH_MANY_PARAMETERS, f"{len(wide)} have more than {MANY_PARAMETERS}: {wide}. {WHY}"


def test_no_class_has_many_methods() -> None:
    most = {f"{name}.{cls}": len(methods) for name in house() for cls, methods in methods_of(name, house()).items()}
    above = {cls: count for cls, count in most.items() if count > METHODS}

    assert not above, f"more than {METHODS} methods: {above}. {WHY}"


def test_few_functions_and_types_hold_the_whole_config() -> None:
    holders = {name: len(module.with_config) for name, module in house().items() if module.with_config}

    assert sum(holders.values()) <= HOLDERS_OF_THE_WHOLE_CONFIG, (
        f"{sum(holders.values())} take or hold an ExperimentConfig, above {HOLDERS_OF_THE_WHOLE_CONFIG}; most need a "
        f"section of it, or a value: {holders}. {WHY}"
    )


def test_few_folders_know_one_another() -> None:
    arrows = {
        (room_of(name), room_of(other))
        for name, module in house().items()
        for other in module.imported
        if room_of(name) not in (room_of(other), "splitvfl")
    }

    assert len(arrows) <= ARROWS, f"{len(arrows)} arrows between folders, above {ARROWS}: {sorted(arrows)}. {WHY}"


SOURCE = '''"""Words
of a module."""

import splitvfl.cut.layer
from typing import TYPE_CHECKING
from splitvfl.data import load as read  # not blank

if TYPE_CHECKING:
    from splitvfl.run.trainer import Trainer


class Run(read.Base):
    """Words."""

    config: ExperimentConfig | None = None

    def __init__(self, a, b, c, d, e, f, g, h, *, i): ...


class Kept:
    def __init__(self, config: ExperimentConfig) -> None:
        self.a, self._config = 1, config

    def told(self, value: int) -> None:
        """Words."""
        # Words.

        from splitvfl import errors


def narrow(config: TrainConfig, a, b, c, d, e, f, g): ...
'''


def test_what_counts() -> None:
    module = module_of(SOURCE, {"cut", "cut.layer", "data", "data.load", "errors", "run", "run.trainer"})

    assert module.lines == 14
    assert module.imported == {"cut", "cut.layer", "data", "data.load", "errors"}
    assert module.wide == {"Run.__init__": 9}
    assert module.with_config == ["Run", "Kept", "Kept.__init__"]


def test_inherited_methods_count_once() -> None:
    known = {"a", "a.base", "b"}
    base = module_of("class Base:\n    def one(self): ...\n    def two(self): ...\n", known)
    folder = module_of("from splitvfl.a.base import Base\n", known)
    here = module_of("from splitvfl.a import Base\nclass Own(Base, dict):\n    def two(self): ...\n", known)
    modules = {"a": folder, "a.base": base, "b": here}

    assert methods_of("b", modules) == {"Own": {"one", "two"}}

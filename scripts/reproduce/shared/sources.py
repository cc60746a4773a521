"""What code a piece of work depends on, and a digest of it, so that a change of that code is noticed."""

from __future__ import annotations

import ast
import hashlib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from splitvfl.errors import ArgumentError

CHECKOUT = Path(__file__).resolve().parents[3]

# What is imported by a name that is made up while the program runs: by the function that does it, all that may come.
BY_NAME: Mapping[str, tuple[str, ...]] = {
    "splitvfl.config.registry.built_in": (
        "splitvfl.attacks",
        "splitvfl.defenses",
        "splitvfl.models",
        "splitvfl.penalties",
        "splitvfl.exchange",
        "splitvfl.learning.losses",
    ),
}


@cache
def code_of(work: Callable[..., Any]) -> str:
    """Return a digest of the code that a function at the top of a module depends on.

    That is its own source and that of every function, class and constant of this project that it names, and what
    those name, and so on, found without running anything; what a module does when it is imported counts with whatever
    is used of it. Comments, docstrings and the layout of lines do not count, nor do other libraries and data files.
    It is a digest of what may be run, so that a change may leave every result as it was; a change that cannot be seen
    in the source of what is named (a method that is put in from elsewhere) is not noticed.

    Returns:
        16 hexadecimal digits; of a function of another library a digest of nothing.
    """
    return Sources(CHECKOUT).digest(work.__module__, work.__qualname__.partition(".")[0])


class Symbol(NamedTuple):
    """A name at the top of a module; an empty name is the whole module."""

    module: str
    name: str


@dataclass(frozen=True)
class Sources:
    """Modules below a folder, parsed when they are first asked for.

    Attributes:
        root: The folder.
        by_name: By a function's full name, the modules that it imports by names that no source has.
    """

    root: Path
    by_name: Mapping[str, Sequence[str]] = field(default_factory=lambda: BY_NAME)

    def digest(self, module: str, name: str) -> str:
        """Return a digest of everything that a name of a module depends on.

        Raises:
            ArgumentError: If the module is there, and does not have that name.
        """
        source = self._module(module)
        if source is not None and source.binds_nothing(name):
            raise ArgumentError(f"expected a function at the top of {module}, got {name!r}")
        found = hashlib.blake2b(digest_size=8)
        for line in sorted(self._lines(self.reached(module, name))):
            found.update(line.encode())
        return found.hexdigest()

    def reached(self, module: str, name: str) -> set[Symbol]:
        """Return every name at the top of a module that a name depends on, itself among them."""
        waiting, seen = [Symbol(module, name)], {Symbol(module, name)}
        while waiting:
            symbol = waiting.pop()
            source = self._module(symbol.module)
            if source is not None:
                new = {one for one in self._from(source, symbol.name) if one not in seen}
                seen |= new
                waiting += new
        return seen

    def _lines(self, symbols: Iterable[Symbol]) -> set[str]:
        """Return what the statements say that bind these names, or run when their modules are imported."""
        sources = [(source, name) for module, name in symbols if (source := self._module(module)) is not None]
        return {
            f"{source.name}: {statement.dumped}\n"
            for source, name in sources
            for statement in (*source.effects, *source.bound.get(name, ()))
        }

    def _from(self, source: _Module, name: str) -> Iterator[Symbol]:
        """Yield what a name of a module leads to; of a whole module, all its names."""
        if not name:
            yield from (Symbol(source.name, one) for one in (*source.bound, *source.imports))
        for statement in (*source.effects, *source.bound.get(name, ())):
            yield from self._named(source, statement)
        yield from source.imports.get(name, ())
        yield from (Symbol(one, "") for one in self.by_name.get(f"{source.name}.{name}", ()))
        if source.is_package and source.binds_nothing(name):
            yield Symbol(f"{source.name}.{name}", "")

    def _named(self, source: _Module, statement: _Statement) -> Iterator[Symbol]:
        """Yield what a statement names, of this module and of others."""
        for first, *rest in statement.names:
            known = statement.imports.get(first) or source.imports.get(first)
            if known is None:
                yield Symbol(source.name, first)
                continue
            for target in known:
                yield from self._reached(target, rest)

    def _reached(self, target: Symbol, rest: Sequence[str]) -> Iterator[Symbol]:
        """Yield what ``target.a.b`` is, where the target may be a module, a package, or something in a module."""
        if target.name:
            inside = f"{target.module}.{target.name}"
            if self._module(inside) is None:
                yield target
                return
            target = Symbol(inside, "")
        for step in rest:
            if self._module(f"{target.module}.{step}") is None:
                yield Symbol(target.module, step)
                return
            target = Symbol(f"{target.module}.{step}", "")
        yield target

    def _module(self, name: str) -> _Module | None:
        return _parsed(self.root, name)


class _Statement(NamedTuple):
    """A statement at the top of a module.

    Attributes:
        dumped: What it is, without comments, docstrings and layout.
        names: What it names, as ``("module", "function")``.
        imports: What it imports itself: functions may.
    """

    dumped: str
    names: Collection[tuple[str, ...]]
    imports: Mapping[str, Sequence[Symbol]]

    @classmethod
    def of(cls, node: ast.AST) -> _Statement:
        """Return what a tree says."""
        reader = _Reader()
        reader.read(node)
        # By first and further names once each, in any order: what is reached is a set.
        return cls("".join(reader.dumped), reader.names, _imports(reader.imports))


@dataclass(frozen=True)
class _Module:
    """A parsed module.

    Attributes:
        name: In full.
        is_package: Whether modules lie in it.
        bound: Statements by the names that they bind.
        effects: Statements that bind none; they are run whatever is used of the module.
        imports: What imported names stand for.
    """

    name: str
    is_package: bool
    bound: Mapping[str, Sequence[_Statement]]
    effects: Sequence[_Statement]
    imports: Mapping[str, Sequence[Symbol]]

    def binds_nothing(self, name: str) -> bool:
        """Return whether a name is none of the module's, so that it may be a module in it."""
        return bool(name) and name not in self.bound and name not in self.imports


@cache
def _parsed(root: Path, name: str) -> _Module | None:
    """Return a module, or ``None`` where there is none below the folder: it is another library's."""
    place = root.joinpath(*name.split("."))
    files = [path for path in (place.with_suffix(".py"), place / "__init__.py") if path.is_file()]
    if not files:
        return None
    bound: dict[str, list[_Statement]] = {}
    effects: list[_Statement] = []
    imports: list[ast.Import | ast.ImportFrom] = []
    for node in _flat(ast.parse(files[0].read_bytes()).body):
        if isinstance(node, ast.Import | ast.ImportFrom):
            imports.append(node)
        elif names := _bound_by(node):
            statement = _Statement.of(node)
            for one in names:
                bound.setdefault(one, []).append(statement)
        elif not _is_text(node):
            effects.append(_Statement.of(node))
    return _Module(name, files[0].name == "__init__.py", bound, effects, _imports(imports))


def _flat(nodes: Sequence[ast.stmt]) -> Iterator[ast.AST]:
    """Yield statements, those within ``if`` and ``try`` one by one, and what an ``if`` asks for."""
    for node in nodes:
        if isinstance(node, ast.If):
            yield node.test
            yield from _flat([*node.body, *node.orelse])
        elif isinstance(node, ast.Try):
            handlers = [each for handler in node.handlers for each in handler.body]
            yield from _flat([*node.body, *handlers, *node.orelse, *node.finalbody])
        else:
            yield node


def _bound_by(node: ast.AST) -> list[str]:
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        return [node.name]
    if isinstance(node, ast.Assign):
        targets: list[ast.expr] = node.targets
    elif isinstance(node, ast.AnnAssign | ast.AugAssign):
        targets = [node.target]
    else:
        return []
    # Of ``a.b = c`` and ``a[b] = c`` it is a that changes.
    return [name.id for target in targets for name in ast.walk(target) if isinstance(name, ast.Name)]


def _imports(nodes: Iterable[ast.Import | ast.ImportFrom]) -> dict[str, list[Symbol]]:
    """Return what imported names stand for: modules, or names of modules, which may be modules themselves."""
    found: dict[str, list[Symbol]] = {}
    for node in nodes:
        for alias in node.names:
            if isinstance(node, ast.ImportFrom):
                found.setdefault(alias.asname or alias.name, []).append(Symbol(node.module or "", alias.name))
            elif alias.asname:
                found.setdefault(alias.asname, []).append(Symbol(alias.name, ""))
            else:
                first = alias.name.partition(".")[0]
                found.setdefault(first, []).append(Symbol(first, ""))
    return found


class _Reader:
    """Goes through a tree once, as there are a hundred thousand nodes behind some functions."""

    def __init__(self) -> None:
        self.dumped: list[str] = []
        self.names: set[tuple[str, ...]] = set()
        self.imports: list[ast.Import | ast.ImportFrom] = []
        self._within: set[int] = set()

    def read(self, value: Any) -> None:
        """Take a tree apart: its text is the same with every version of Python, without what is empty in it."""
        if isinstance(value, list):
            for part in value:
                if not _is_text(part):
                    self.read(part)
                    self.dumped.append(",")
        elif isinstance(value, ast.AST):
            self._take(value)
            self.dumped.append(f"{type(value).__name__}(")
            for name in value._fields:
                part = getattr(value, name, None)
                if part is not None and part != [] and name not in _WITHOUT_MEANING:
                    self.dumped.append(f"{name}=")
                    self.read(part)
            self.dumped.append(")")
        else:
            self.dumped.append(repr(value))

    def _take(self, node: ast.AST) -> None:
        if isinstance(node, ast.Import | ast.ImportFrom):
            self.imports.append(node)
        elif chain := _chain(node):
            # Of a.b.c neither a.b nor a is named as well: a may be a module, of which then all would count.
            if id(node) not in self._within:
                self.names.add(chain)
            if isinstance(node, ast.Attribute):
                self._within.add(id(node.value))


_WITHOUT_MEANING = frozenset({"ctx", "kind", "type_comment"})


def _chain(node: ast.AST) -> tuple[str, ...]:
    """Return ``a.b.c`` as its parts, and nothing where it does not begin with a name."""
    if isinstance(node, ast.Name):
        return (node.id,)
    if isinstance(node, ast.Attribute) and (first := _chain(node.value)):
        return (*first, node.attr)
    return ()


def _is_text(node: Any) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)

"""YAML text as plain values that remember where they came from.

Read as YAML 1.2 does, whose scalars hold no surprises: ``1e-3`` is a number, ``no``, ``on`` and ``2024-01-31`` are
text. Anchors, aliases, merge keys and tags are refused: a file of settings needs none of them, and a few lines of
aliases can stand for a billion values.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import lru_cache
from typing import Any

import yaml

from splitvfl.errors import ConfigError, shown

Place = tuple[str | int, ...]

DEEPEST = 50

_NULL, _BOOL, _INT, _FLOAT, _TEXT = (f"tag:yaml.org,2002:{kind}" for kind in ("null", "bool", "int", "float", "str"))

# Tag, spelling, possible first characters. Longer numbers than these are text, and rejected where a number is wanted.
_SPELLINGS = (
    (_NULL, r"~|null|Null|NULL|", ["~", "n", "N", ""]),
    (_BOOL, r"true|True|TRUE|false|False|FALSE", list("tTfF")),
    (_INT, r"[-+]?[0-9]{1,400}", list("-+0123456789")),
    (
        _FLOAT,
        r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?|[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)",
        list("-+.0123456789"),
    ),
)

_VALUES: Mapping[str, Callable[[str], Any]] = {
    _NULL: lambda text: None,
    _BOOL: lambda text: text.lower() == "true",
    _INT: int,
    _FLOAT: lambda text: float(re.sub(r"\.(inf|nan)$", r"\1", text.lower())),
    _TEXT: lambda text: text.encode().decode(),
}


class _Loader(yaml.SafeLoader):
    """Reads nodes; the values are made here, not by the library."""

    yaml_implicit_resolvers: dict[str, Any] = {}  # noqa: RUF012  # the library's name and place for it
    _depth = 0

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        event = self.peek_event()  # type: ignore[no-untyped-call]
        if isinstance(event, yaml.AliasEvent) or getattr(event, "anchor", None) is not None:
            raise yaml.MarkedYAMLError(problem="anchors and aliases are not supported", problem_mark=event.start_mark)
        if self._depth == DEEPEST:
            raise yaml.MarkedYAMLError(problem=f"nested more than {DEEPEST} deep", problem_mark=event.start_mark)
        self._depth += 1
        node = super().compose_node(parent, index)
        self._depth -= 1
        return node


class _Dumper(yaml.SafeDumper):
    """Writes so that :class:`_Loader` reads the same: it quotes the text that would be taken for a number."""

    yaml_implicit_resolvers: dict[str, Any] = {}  # noqa: RUF012  # the library's name and place for it


for _tag, _spelling, _first in _SPELLINGS:
    for _class in (_Loader, _Dumper):
        _class.add_implicit_resolver(_tag, re.compile(f"^(?:{_spelling})$"), _first)


def _represent_text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    # In double quotes every character has an escape; in the others some kinds of line break are lost.
    return dumper.represent_scalar(_TEXT, text, style=None if text.isprintable() else '"')


_Dumper.add_representer(str, _represent_text)


class Document:
    """A mapping read from text, changed from the command line, with everything that was found wrong with it.

    Attributes:
        source: What to call the text in messages.
        tree: The values: dicts, lists, strings, numbers, truth values and ``None``.
    """

    def __init__(self, text: str, *, source: str) -> None:
        self.source = source
        self._lines: dict[Place, int] = {}
        self._assigned: set[Place] = set()
        self._problems: list[tuple[float, str]] = []
        root = _compose(text, source)
        if root is None:
            raise ConfigError(f"{source}: the file is empty")
        if not isinstance(root, yaml.MappingNode):
            kind = "a list" if isinstance(root, yaml.SequenceNode) else shown(root.value)
            raise ConfigError(f"{source}: expected keys with values, such as `data:`, got {kind}")
        self.tree: dict[str, Any] = self._mapping(root, ())

    def assign(self, keys: Sequence[str], value: Any) -> None:
        """Put a value from the command line at a place, making sections on the way; numbers are places in lists.

        Raises:
            ConfigError: If there is no such place, as in ``train.epochs.first``. The message starts with the place.
        """
        node: Any = self.tree
        path: Place = ()
        for key, following in itertools.pairwise(keys):
            step = _step(node, key, path)
            path = (*path, step)
            if isinstance(node, dict) and node.get(step) is None:
                if following.isdigit():
                    raise ConfigError(
                        f"{dotted(path)}: there is no list yet; give all of it, as in {dotted(path)}=[...]"
                    )
                node[step] = {}
            node = node[step]
        step = _step(node, keys[-1], path)
        node[step] = value
        path = (*path, step)
        self._lines = {known: line for known, line in self._lines.items() if known[: len(path)] != path}
        self._assigned.add(path)

    def moved(self, old: Place, new: Place) -> None:
        """Take note that a value of the file is now found at another place."""
        if old in self._lines:
            self._lines[new] = self._lines.pop(old)

    def is_assigned(self, path: Place) -> bool:
        """Return whether the value at a place comes from the command line."""
        return any(path[: len(assigned)] == assigned for assigned in self._assigned)

    def report(self, path: Place, text: str) -> None:
        """Take note of something wrong at a place."""
        order, where = self._place(path)
        self._problems.append((order, f"{where}: {dotted(path)}: {text}" if path else f"{where}: {text}"))

    def report_command_line(self, text: str) -> None:
        """Take note of something wrong on the command line."""
        self._problems.append((float("inf"), f"{self.source} + command line: {text}"))

    def raise_problems(self) -> None:
        """Raise :class:`ConfigError` with a line for every problem, in the order of the text; do nothing without."""
        if self._problems:
            ordered = sorted(self._problems, key=lambda problem: problem[0])
            raise ConfigError("\n".join(dict.fromkeys(text for _, text in ordered)))

    def _place(self, path: Place) -> tuple[float, str]:
        for length in range(len(path), 0, -1):
            near = path[:length]
            changed = any(near == assigned[:length] for assigned in self._assigned)
            if near in self._lines:
                return self._lines[near], f"{self.source}:{self._lines[near]}{' + command line' if changed else ''}"
            if changed:
                return float("inf"), f"{self.source} + command line"
        return 0.0, self.source

    def _plain(self, node: yaml.Node, path: Place) -> Any:
        if isinstance(node, yaml.MappingNode):
            return self._mapping(node, path)
        if isinstance(node, yaml.SequenceNode):
            return [self._item(item, (*path, index)) for index, item in enumerate(node.value)]
        if node.tag not in _VALUES:
            self.report(path, f"the tag {node.tag.replace('tag:yaml.org,2002:', '!!')} is not supported")
            return None
        try:
            return _VALUES[node.tag](node.value)
        except ValueError:
            # A tag that was written out may disagree with its text, as in !!int ten; or it is half a character.
            self.report(path, f"{shown(node.value)} cannot be read as {node.tag.removeprefix('tag:yaml.org,2002:')}")
            return None

    def _item(self, node: yaml.Node, path: Place) -> Any:
        self._lines[path] = node.start_mark.line + 1
        return self._plain(node, path)

    def _mapping(self, node: yaml.MappingNode, path: Place) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for key, value in node.value:
            name = key.value if isinstance(key, yaml.ScalarNode) else "a list or mapping"
            here = (*path, name)
            first = self._lines.get(here)
            self._lines[here] = key.start_mark.line + 1
            if key.tag != _TEXT:
                self.report(here, "expected text as a key; put it in quotes")
                continue
            if self._plain(key, here) is None:
                continue
            if name in found:
                self.report(here, f"given twice, first on line {first}")
            found[name] = self._plain(value, here)
        return found


def dotted(path: Sequence[str | int]) -> str:
    """Return a place as it is written on the command line: ``defenses.0.name``."""
    return ".".join(str(key) for key in path)


def parse_override(text: str) -> tuple[tuple[str, ...], Any]:
    """Return the place and the value of ``a.b.c=value``.

    A list, a mapping and text in quotes are YAML, closed on the command line. Everything else is one scalar, which is
    read as in a file where it spells a number, a truth value or null, and is text as it stands where not: an address
    (``[::1]:7341``), ``*``, ``a: b``, ``price #1``.

    Raises:
        ConfigError: If the text has another form, or a list, a mapping or text in quotes is not YAML.

    >>> parse_override("train.optimizer.lr=1e-2")
    (('train', 'optimizer', 'lr'), 0.01)
    >>> parse_override("network.listen=[::1]:7341")
    (('network', 'listen'), '[::1]:7341')
    """
    place, equals, written = text.partition("=")
    keys = tuple(key.strip() for key in place.split("."))
    if not equals or not all(keys):
        raise ConfigError(f"expected key=value, such as train.epochs=3, got {shown(text)}")
    # Read as the value of a key, so that what Document knows about values holds for these too.
    root = _override_node(written.strip(), place)
    holder = Document("{}", source=place)
    value = holder._plain(root, ())
    holder.raise_problems()
    return keys, value


_OPENING = tuple("[{'\"")
_ADDRESS = re.compile(r"\[[^\[\]\s,]*\]:[0-9]+")


def _override_node(text: str, place: str) -> yaml.Node:
    """Return the value of an override: there are no comments on a command line, and no blocks."""
    if not text.startswith(_OPENING) or _ADDRESS.fullmatch(text):
        with _in_our_words(text, place):
            tag = _Loader(text).resolve(yaml.ScalarNode, text, (True, False))  # type: ignore[no-untyped-call]
        return yaml.ScalarNode(tag, text)
    try:
        root = _compose(text, place)
    except ConfigError as error:
        raise ConfigError(f"{error}; {_QUOTES}") from None
    assert root is not None, "it begins with a bracket or a quotation mark"
    if text[root.end_mark.index :].strip():
        raise ConfigError(f"{place}: expected nothing after {shown(text[: root.end_mark.index])}; {_QUOTES}")
    return root


_QUOTES = "text that begins with a bracket or a quotation mark stands in quotes, as in key='\"[a\"'"


def to_yaml(tree: Mapping[str, Any]) -> str:
    """Return YAML text that reads back as the same values, in the same order."""
    return yaml.dump(
        dict(tree), Dumper=_Dumper, sort_keys=False, allow_unicode=True, default_flow_style=None, width=120
    )


def to_yaml_line(value: Any) -> str:
    """Return a value as YAML on one line.

    >>> to_yaml_line({"epochs": 1, "lr": [0.1]})
    '{epochs: 1, lr: [0.1]}'
    """
    written = yaml.dump(
        value, Dumper=_Dumper, sort_keys=False, allow_unicode=True, default_flow_style=True, width=2**31
    )
    return written.removesuffix("\n").removesuffix("\n...")  # a scalar ends so


def place_in(location: Place, tree: Any, *, may_be_absent: bool = False) -> Place:
    """Return where in a tree an error is: pydantic's location without the names of the types that it tried.

    Args:
        location: The error's location.
        tree: What was checked.
        may_be_absent: Whether the last step may lead to what is missing.
    """
    place: Place = ()
    node = tree
    for number, part in enumerate(location, start=1):
        inside = part in node if isinstance(node, dict) else isinstance(node, list) and part in range(len(node))
        if inside:
            place, node = (*place, part), node[part]
        elif may_be_absent and number == len(location):
            place = (*place, part)
    return place


def _step(node: Any, key: str, path: Place) -> str | int:
    if isinstance(node, dict):
        return key
    if not isinstance(node, list):
        raise ConfigError(f"{dotted((*path, key))}: no such key: {dotted(path)} is {shown(node)}")
    if not key.isdigit() or int(key) >= len(node):
        raise ConfigError(
            f"{dotted((*path, key))}: expected one of the {len(node)} items of {dotted(path)}, counted from 0"
        )
    return int(key)


@lru_cache(maxsize=8)  # a run's settings are read by several of its parts, and nodes are never changed
def _compose(text: str, source: str) -> yaml.Node | None:
    with _in_our_words(text, source):
        return yaml.compose(text, Loader=_Loader)


@contextmanager
def _in_our_words(text: str, source: str) -> Iterator[None]:
    """Turn what the library says of a text into a :class:`ConfigError` with the place in it."""
    try:
        yield
    except yaml.reader.ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        raise ConfigError(f"{source}:{line}: not YAML: {error.reason}, U+{int(error.character):04X}") from None
    except yaml.MarkedYAMLError as error:
        raise ConfigError(_syntax(error, source)) from None


def _syntax(error: yaml.MarkedYAMLError, source: str) -> str:
    mark = error.problem_mark or error.context_mark
    place = source if mark is None else f"{source}:{mark.line + 1}:{mark.column + 1}"
    hint = "; indent with spaces" if "\\t" in str(error.problem) else ""
    context = f" {error.context}" if error.context else ""
    return f"{place}: not YAML:{context}{',' if context else ''} {error.problem}{hint}"

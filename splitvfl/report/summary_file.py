"""How ``summary.json`` holds a run: its settings, one list of figures, and notes.

A figure has an address in place of a class of its own, so that a reader filters one table. Classes of a summary are
views: their fields are the names of figures, the path to them is the address.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import MISSING, Field, asdict, dataclass, field, fields, is_dataclass, make_dataclass
from typing import Any, Final, TypeGuard, get_type_hints

import msgspec

from splitvfl.leakage.figure import Figure, Note
from splitvfl.metrics import oriented
from splitvfl.report.verdict import PartyVerdict

VERSION: Final = 2

_MEASURED: Final = {"canaries", "membership", "packing", "own_model", "measurements", "parties"} | {
    *("test_metric", "test_loss", "step_ms", "validation_metric", "sending_metric")
}
_NOTED: Final = {"notes", "claims", "promised", "released", "no_own_model"}
# Tables by attack, and which attribute of an entry of a list is part of the address.
_BY_ATTACK: Final = {"attacks", "canaries", "after_training"}
_LISTS: Final = {
    **dict.fromkeys(("features", "readings", "membership"), ("attack", "by")),
    **dict.fromkeys(("columns", "categories", "one_hot"), ("column", "of")),
    "packing": ("party", "by"),
}
_MAIN: Final = {"auc", "difference"}  # whose interval and chance have no prefix
_OVER_RUN: Final = "accumulated_"


@dataclass(frozen=True, kw_only=True)
class SummaryFile:
    """What ``summary.json`` holds.

    Attributes:
        version: Of the format.
        settings: What was run, and where it comes from.
        figures: What was measured.
        notes: What is said beside it.
        verdict: What is concluded, by passive party; judged anew where the file is read.
    """

    version: int
    settings: dict[str, Any]
    figures: list[Figure]
    notes: list[Note] = field(default_factory=list)
    verdict: dict[str, PartyVerdict] = field(default_factory=dict)


def written(summary: Any, verdict: Mapping[str, PartyVerdict]) -> dict[str, Any]:
    """Return a run's summary as its file holds it."""
    found = [*_of(summary, {}, (), _MEASURED | _NOTED)]
    return {
        "version": VERSION,
        "settings": {name: value for name, value in asdict(summary).items() if name not in _MEASURED | _NOTED},
        "figures": [_short(one) for one in found if isinstance(one, Figure)],
        "notes": [_short(one) for one in found if isinstance(one, Note)],
        "verdict": {name: asdict(one) for name, one in verdict.items()},
    }


def figures_of(summary: Any) -> list[Figure]:
    """Return all figures of a run: one table."""
    return [one for one in _of(summary, {}, (), _MEASURED) if isinstance(one, Figure)]


def schema_of(summary: type[Any]) -> dict[str, Any]:
    """Return what a file holds as JSON Schema 2020-12, given the class of summaries."""
    settings = [(name, kind) for name, kind in get_type_hints(summary).items() if name not in _MEASURED | _NOTED]
    held = get_type_hints(SummaryFile) | {"settings": make_dataclass("Settings", settings)}
    schema = msgspec.json.schema(make_dataclass("Summary", held.items()))
    for one in schema["$defs"].values():
        one.setdefault("additionalProperties", False)
    return {"title": "summary.json of splitvfl", **schema}


def _short(one: Figure | Note) -> dict[str, Any]:
    return {name: value for name, value in asdict(one).items() if value is not None and value != ""}


def _of(holder: Any, where: dict[str, Any], part: tuple[str, ...], wanted: Collection[str]) -> Iterator[Figure | Note]:
    """Yield the figures and notes of an object and of what is in it, of the attributes that are wanted."""
    values = {
        one.name: getattr(holder, one.name) for one in fields(holder) if one.name in wanted and _says(holder, one)
    }
    ends = {name: _ends(name, values) for name, value in values.items() if _is_number(value)}
    beside = {end for own in ends.values() for end in own.values()} | {_key(part)[0]}
    address = {**where, "part": "/".join(part)}
    for name, value in values.items():
        if name in beside:
            continue
        if name in ends:
            what, found, last = name.partition(_OVER_RUN)
            when = "run" if found else "step" if _over_run(name) in values else ""
            yield Figure(
                what=what + last,
                when=when,
                value=value,
                records=_records(values) if name in _MAIN else None,
                **{end: values[own] for end, own in ends[name].items()},
                **address,
            )
        else:
            yield from _inside(name, value, where, (*part, name))


def _inside(name: str, value: Any, where: dict[str, Any], part: tuple[str, ...]) -> Iterator[Figure | Note]:
    if is_dataclass(value):
        yield from _of(value, where, part, _names(value))
    elif name == "parties" and value:
        for party, inner in value.items():
            yield from _of(inner, {**where, "at": party}, (), _names(inner))
    elif name in _BY_ATTACK and value:
        for attack, inner in value.items():
            yield from _of(inner, {**where, "by": attack}, part, _names(inner))
    elif isinstance(value, dict) and all(map(_is_number, value.values())) and value:
        for what, inner in value.items():
            yield Figure(what=what, value=inner, part="/".join(part), **where)
    elif isinstance(value, list) and value and is_dataclass(value[0]):
        key, axis = _LISTS[name]
        for number, inner in enumerate(value):
            yield from _of(inner, {**where, axis: getattr(inner, key)}, (*part, str(number)), _names(inner))
    else:
        yield Note(what=name, said=value, part="/".join(part[:-1]), **where)


def _key(part: tuple[str, ...]) -> tuple[str, str]:
    """Return which attribute of an entry of a list is in its address, and where; empty of what is no such entry."""
    return _LISTS.get(part[-2], ("", "")) if len(part) > 1 else ("", "")


def _says(holder: Any, field: Field[Any]) -> bool:
    """Return whether an attribute says more than its default, which NaN does not."""
    value = getattr(holder, field.name)
    default = field.default if field.default_factory is MISSING else field.default_factory()
    return default is MISSING or not (value == default or value != value)


def _ends(name: str, values: Mapping[str, Any]) -> dict[str, str]:
    """Return which attributes are the ends of a figure's interval, and its chance, by their names in a figure."""
    prefix = "" if name in _MAIN else f"{name}_"
    return {end: f"{prefix}{end}" for end in ("low", "high", "chance") if _is_number(values.get(f"{prefix}{end}"))}


def _records(values: Mapping[str, Any]) -> int | None:
    counted = sum(values.get("class_counts", ())) or values.get("positives", 0) + values.get("negatives", 0)
    return counted or values.get("members", 0) + values.get("others", 0) or values.get("records")


def _over_run(what: str) -> str:
    head, _, last = what.rpartition("_")
    return f"{head}_{_OVER_RUN}{last}" if head else f"{_OVER_RUN}{last}"


def _names(holder: Any) -> set[str]:
    return {one.name for one in fields(holder)}


def _is_number(value: Any) -> TypeGuard[float]:
    return isinstance(value, int | float) and not isinstance(value, bool)


# --- and back


def nested(document: Any) -> Any:
    """Return what a file holds as the attributes of a summary have it; one of the first format as it is, without gaps.

    Raises:
        ValueError: If two figures are one, entries are missing, or a newer program has written it.
        ValidationError: If it is no summary.
    """
    if not isinstance(document, dict) or "version" not in document:
        return _upgraded(document)
    if document["version"] != VERSION:
        raise ValueError(f"it has version {document['version']!r:.40}, expected {VERSION}; update splitvfl")
    read = msgspec.convert(document, SummaryFile)
    summary: dict[str, Any] = {**read.settings}
    for one in read.figures:
        node = _node(summary, one)
        what = _over_run(one.what) if one.when == "run" else one.what
        _put(node, what, one.value)
        prefix = "" if what in _MAIN else f"{what}_"
        for end in ("low", "high", "chance"):
            if getattr(one, end) is not None:
                _put(node, f"{prefix}{end}", getattr(one, end))
    for note in read.notes:
        _put(_node(summary, note), note.what, note.said)
    return summary


def _upgraded(document: Any) -> Any:
    """Return what the first format holds as it is held now: without figures of attacks that it says nothing of."""
    parties = document.get("parties") if isinstance(document, dict) else None
    for party in parties.values() if isinstance(parties, dict) else ():
        for name, change in (("attacks", _known), ("after_training", _in_parts)):
            if isinstance(party, dict) and isinstance(party.get(name), dict):
                party[name] = {key: change(one) if isinstance(one, dict) else one for key, one in party[name].items()}
    return document


def _known(found: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in found.items() if value is not None}


def _in_parts(found: dict[str, Any]) -> dict[str, Any]:
    """Return what an attack found after training by part of the records, which was side by side."""
    if "train" in found:
        return found
    parts: dict[str, Any] = {}
    for part in ("train", "test", "before_train", "before_test"):
        prefix = f"{part.replace('before', 'baseline')}_"
        named = ("auc", "tied_auc", "chance", "top1", "positives", "negatives")
        one = _known({name: found.get(f"{prefix}{name}") for name in named})
        leak = one.get("tied_auc", one.get("auc"))
        one |= {"worst_auc": oriented(leak)} if _is_number(leak) else {}
        one |= {"scored": found.get("scored", 1.0)} if "tied_auc" in one else {}
        parts[part] = one | ({"task": "multiclass"} if "chance" in one else {})
    whole = ("known_positives", "known_negatives", "known_records", "scored")
    return parts | {name: found[name] for name in whole if name in found}


def _node(root: dict[str, Any], one: Figure | Note) -> Any:
    """Return the object that a figure is of, and make it where it is the first."""
    node: Any = _child(_child(root, "parties"), one.at) if one.at else root
    tokens = tuple(one.part.split("/")) if one.part else ()
    for length, token in enumerate(tokens, 1):
        if isinstance(node, list):
            if not token.isdecimal() or int(token) > len(node):
                raise ValueError(f"there is no entry before {one.part}")
            if int(token) == len(node):
                key, axis = _key(tokens[:length])
                node.append({key: getattr(one, axis)})
            node = node[int(token)]
        else:
            node = _child(node, token, list if token in _LISTS else dict)
            node = _child(node, one.by) if one.at and token in _BY_ATTACK else node
    return node


def _child(node: Any, key: str, kind: type[Any] = dict) -> Any:
    if not isinstance(node, dict) or not isinstance(node.setdefault(key, kind()), kind):
        raise ValueError(f"{key} is one figure, and several")
    return node[key]


def _put(node: dict[str, Any], key: str, value: Any) -> None:
    if key in node:
        raise ValueError(f"{key} is there twice")
    node[key] = value

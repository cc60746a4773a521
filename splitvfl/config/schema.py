"""Experiment files as a JSON Schema, for editors: names and keys are completed, explained, and checked while one types.

It knows what each key may hold, and which options go with which name. What several keys contradict together, and what
depends on the data, ``splitvfl check`` and a run say.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from splitvfl.config.docstrings import docstring_of
from splitvfl.config.keys import REQUIRED, Key, experiment_keys, options_of
from splitvfl.config.registry import PluginKind, installed
from splitvfl.data.sets import DATA_SETS

DIALECT = "https://json-schema.org/draft/2020-12/schema"

Schema = dict[str, Any]

_OF_OWN = {"type": "string", "pattern": "^[^:]+:[^:]+$", "description": "module:Class, of a file of one's own."}
# What is written as JSON by other means than a key's own annotation.
_PARTY_NAMES = {"pattern": r"^\w[\w-]*$"}
_LR = {"type": "number", "exclusiveMinimum": 0, "description": "Short for train.optimizer.lr."}


def experiment_schema() -> Schema:
    """Return the schema of an experiment file, of JSON Schema 2020-12.

    Names are those that are installed here; a class of one's own (``module:Class``) takes any options.
    """
    keys = experiment_keys()
    return {
        "$schema": DIALECT,
        "title": "An experiment of splitvfl",
        "type": "object",
        "required": [key.name for key in keys if key.default is REQUIRED],
        # A section without a value is none at all.
        "properties": {key.name: _or_null(_schema_of(key)) for key in keys},
        "additionalProperties": False,
        "$defs": _definitions(keys),
    }


def _or_null(schema: Schema) -> Schema:
    described: Schema = {key: schema.pop(key) for key in ("description", "default") if key in schema}
    return {**described, "anyOf": [*schema.pop("anyOf", [schema] if schema else []), {"type": "null"}]}


def _schema_of(key: Key) -> Schema:
    schema: Schema = {"description": key.meaning} if key.meaning else {}
    if key.default is not REQUIRED:
        schema["default"] = key.default
    members = [_FORMS[key.form](key), *([dict(key.values)] if key.values and key.form != "value" else [])]
    return {**schema, **members[0]} if len(members) == 1 else {**schema, "anyOf": members}


def _section(key: Key) -> Schema:
    section = _object(key.keys, more={"lr": _LR} if key.name == "train" else {})
    if not key.short:
        return section
    names = {"type": "string", "enum": sorted(DATA_SETS)} if key.name == "data" else _names_of(key)
    section["properties"]["name"] |= names
    return {"anyOf": [names, section]}


def _names_of(key: Key) -> Schema:
    """Return what may stand for the name of a section that knows its names."""
    return dict(next(inner.values for inner in key.keys if inner.name == "name"))


def _parties(key: Key) -> Schema:
    return {
        "type": "object",
        "minProperties": 2,
        "propertyNames": _PARTY_NAMES,
        "additionalProperties": _object(key.keys),
    }


def _named(key: Key) -> Schema:
    return {"$ref": f"#/$defs/{_definition(key)}"}


def _hooks(key: Key) -> Schema:
    return {"type": "array", "items": _named(key)}


_FORMS = {
    "value": lambda key: dict(key.values),
    "section": _section,
    "parties": _parties,
    "named": _named,
    "hooks": _hooks,
}


def _definition(key: Key) -> str:
    return f"{key.kind}-{key.usual}" if key.usual else str(key.kind)


def _definitions(keys: Iterable[Key]) -> dict[str, Schema]:
    """Return a schema for each kind of thing that is named, and for each way of leaving out its name."""
    found: dict[str, Schema] = {}
    for key in keys:
        if key.kind is not None:
            found[_definition(key)] = _anything_of(key.kind, key)
        elif key.form in ("section", "parties"):
            found |= _definitions(key.keys)
    return dict(sorted(found.items()))


def _anything_of(kind: PluginKind, key: Key) -> Schema:
    factories = dict(sorted(installed(kind).items()))
    names = {"anyOf": [{"enum": list(factories)}, _OF_OWN]}
    section = {
        "type": "object",
        "properties": {"name": names},
        "allOf": [_if_named(name, key, _one_of(kind, factory, key)) for name, factory in factories.items()],
        **({} if key.usual else {"required": ["name"]}),
    }
    return {"anyOf": [names, section]}


def _one_of(kind: PluginKind, factory: Any, key: Key) -> Schema:
    gone = getattr(factory, "gone", {})
    common = [one for one in key.keys if one.name != "name" and one.name not in gone]
    return {
        "description": docstring_of(factory).summary,
        **_object([*common, *options_of(kind, factory)], more={"name": {}}),
    }


def _if_named(name: str, key: Key, then: Schema) -> Schema:
    condition: Schema = {"properties": {"name": {"const": name}}}
    if name != key.usual:  # which a section without a name stands for
        condition["required"] = ["name"]
    return {"if": condition, "then": then}


def _object(keys: Iterable[Key], *, more: Mapping[str, Schema] | None = None) -> Schema:
    keys = list(keys)
    required = [key.name for key in keys if key.default is REQUIRED]
    return {
        "type": "object",
        "properties": {**(more or {}), **{key.name: _schema_of(key) for key in keys}},
        "additionalProperties": False,
        **({"required": required} if required else {}),
    }


def schema_line(path: Path) -> str:
    """Return the line with which an experiment tells an editor where its schema is."""
    return f"# yaml-language-server: $schema={re.sub(' ', '%20', str(path))}"

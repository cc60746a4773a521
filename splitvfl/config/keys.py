"""Every key that an experiment can have: what may stand there, its default, what it means, and the keys within.

Read from what checks the files: the annotations and docstrings of sections, and of the constructors that the registry
knows. The page of all keys, the JSON Schema of ``splitvfl schema`` and ``splitvfl list KIND NAME`` all come from here.
"""

from __future__ import annotations

import dataclasses
import inspect
import json
import typing
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from types import NoneType
from typing import Any, Literal

from splitvfl.config.docstrings import docstring_of
from splitvfl.config.named import Named, section_in
from splitvfl.config.registry import SUPPLIED, PluginKind, arguments_of
from splitvfl.config.sections import (
    HOOK_LISTS,
    USUAL_NAMES,
    DataConfig,
    ExperimentConfig,
    HookConfig,
    PenaltyConfig,
    TransformConfig,
)
from splitvfl.config.value_types import in_words, json_schema
from splitvfl.learning.settings import Settings

REQUIRED: Any = ...
"""In the place of a default: the key has to be there."""

Form = Literal["value", "section", "parties", "named", "hooks"]


@dataclass(frozen=True, slots=True)
class Key:
    """A key of a section.

    Attributes:
        name: What it is called.
        form: What may stand there: a value; a section; a section for each party; a section that names something; or a
            list of those.
        values: JSON Schema of the values that may stand there; where a section may, of what else may.
        default: As a file would say it; :data:`REQUIRED` if it has none.
        meaning: In a sentence or more.
        keys: Of a section: its keys; of one that names something: those that it has whatever it names.
        kind: Of what is named: its kind.
        usual: Of what is named: what a section without a name stands for; ``None``: it needs one.
        short: Whether a name alone may stand there.
    """

    name: str
    form: Form
    values: Mapping[str, Any]
    default: Any
    meaning: str
    keys: tuple[Key, ...] = ()
    kind: PluginKind | None = None
    usual: str | None = None
    short: bool = False

    @property
    def _name(self) -> str:
        return "a name of a data set" if self.name == "data" else "a name"

    @property
    def takes(self) -> str:
        """What may stand there, in words."""
        if self.form == "value":
            return in_words(self.values)
        said = {
            "section": "a section",
            "parties": "a section for each party, by its name",
            "named": f"a name of {self.kind}, or a section",
            "hooks": f"a list of names of {self.kind}, or sections",
        }[self.form]
        said = f"{self._name}, or {said}" if self.form == "section" and self.short else said
        return f"{said}; or {in_words(self.values)}" if self.values else said


def in_file(default: Any) -> str:
    """Return what is said of a default, which is told as JSON, and so as YAML may."""
    return "required" if default is REQUIRED else f"default {json.dumps(default, ensure_ascii=False)}"


def flat(keys: Iterable[Key], *, before: str = "") -> Iterator[tuple[str, Key]]:
    """Yield keys with their places, those of sections behind these: ``data``, ``data.name``, ``parties.NAME.role``."""
    for key in keys:
        yield f"{before}{key.name}", key
        if key.form == "section":
            yield from flat(key.keys, before=f"{before}{key.name}.")
        elif key.form == "parties":
            yield from flat(key.keys, before=f"{before}{key.name}.NAME.")


def experiment_keys() -> tuple[Key, ...]:
    """Return the keys of an experiment file."""
    # The one key whose default is not in the section: the name of the file.
    return tuple(replace(key, default=None) if key.name == "name" else key for key in keys_of(ExperimentConfig))


def keys_of(section: type[Any]) -> tuple[Key, ...]:
    """Return the keys of a section: of settings, or of a dataclass."""
    hints = typing.get_type_hints(section, include_extras=True)
    meanings = _meanings(section)
    return tuple(
        _key(name, hints[name], default, meanings.get(name, "")) for name, default in _defaults_of(section).items()
    )


def options_of(kind: PluginKind, factory: Any) -> tuple[Key, ...]:
    """Return what a file can say of something that it names: the arguments of its constructor."""
    meanings = _meanings(factory)
    return tuple(
        _key(name, annotation, default, meanings.get(name, ""))
        for name, (annotation, default) in arguments_of(factory).items()
        if name not in SUPPLIED.get(kind, ())
    )


def _meanings(found: Any) -> dict[str, str]:
    """Return what is said of each argument, in the words of a file."""
    return {name: text.replace("`None`", "`null`") for name, text in docstring_of(found).arguments.items()}


def _defaults_of(section: type[Any]) -> dict[str, Any]:
    if issubclass(section, Settings | HookConfig):
        return {
            name: REQUIRED if field.is_required() else field.get_default(call_default_factory=True)
            for name, field in section.model_fields.items()
        }
    return {
        field.name: REQUIRED if field.default is dataclasses.MISSING else field.default
        for field in dataclasses.fields(section)
    }


def _key(name: str, annotation: Any, default: Any, meaning: str) -> Key:
    written = _as_written(default)
    if _has_member(annotation, PenaltyConfig):
        common = tuple(key for key in keys_of(PenaltyConfig) if key.name != "at")
        return Key(name, "hooks", {}, written, meaning, common, kind="penalties")
    if name in HOOK_LISTS:
        common = tuple(key for key in keys_of(HookConfig) if name == "defenses" or key.name != "at")
        return Key(name, "hooks", {}, written, meaning, common, kind=name)
    named = _named_in(annotation)
    nullable = {"type": "null"} if _may_be_none(annotation) else {}
    if named is not None:
        common, usual = keys_of(named.base), USUAL_NAMES.get(name)
        return Key(name, "named", nullable, written, meaning, common, kind=named.kind, usual=usual, short=True)
    section = section_in(annotation)
    if section is None:
        return Key(name, "value", json_schema(annotation), written, meaning)
    if _is_mapping(annotation):
        return Key(name, "parties", {}, written, meaning, keys_of(section))
    values = {"type": "boolean"} if _has_member(annotation, bool) else nullable
    short = section in (DataConfig, TransformConfig)
    return Key(name, "section", values, written, meaning, keys_of(section), short=short)


def _as_written(default: Any) -> Any:
    """Return a default as a file would say it: of a section that names something, the name."""
    if isinstance(default, Settings):
        return getattr(default, "name", {})
    return list(map(_as_written, default)) if isinstance(default, tuple) else default


def _named_in(annotation: Any) -> Named | None:
    if isinstance(annotation, Named):
        return annotation
    inside = (*typing.get_args(annotation), *getattr(annotation, "__metadata__", ()))
    return next(filter(None, map(_named_in, inside)), None)


def _has_member(annotation: Any, member: type) -> bool:
    return annotation is member or any(_has_member(inside, member) for inside in typing.get_args(annotation))


def _may_be_none(annotation: Any) -> bool:
    return _has_member(annotation, NoneType)


def _is_mapping(annotation: Any) -> bool:
    origins = [typing.get_origin(annotation), *map(typing.get_origin, typing.get_args(annotation)[:1])]
    return any(inspect.isclass(origin) and issubclass(origin, Mapping) for origin in origins)

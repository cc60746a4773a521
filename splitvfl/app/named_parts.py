"""Models, attacks, defenses and penalties as a Python user may give them: objects, or names as in a file."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any, TypeVar, cast

from pydantic import TypeAdapter, ValidationError

from splitvfl.config.sections import MODEL, HookConfig, ModelSection, PenaltyConfig, parse_defenses
from splitvfl.errors import ArgumentError
from splitvfl.hooks import At, Attack, Defense, Weighed, weighed
from splitvfl.party.recipe import Recipe

Section = TypeVar("Section", bound=HookConfig)
_MODEL: TypeAdapter[ModelSection] = TypeAdapter(Annotated[Any, MODEL])


def recipe_of(model: object) -> Recipe:
    """Return a recipe: itself, or of a name or a mapping with options as under ``model:`` in a file.

    Raises:
        ArgumentError: If it is none of these, or an option is not what the model takes.
    """
    if isinstance(model, Recipe):
        return model
    named = {"name": model} if isinstance(model, str) else model
    if not isinstance(named, Mapping):
        raise ArgumentError(
            f"expected model as a name, a mapping with a name and options, or a recipe, got {type(model).__name__}"
        )
    try:
        return _MODEL.validate_python(dict(named), context={"folder": Path()}).recipe
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(["model", *map(str, first["loc"])])
        raise ArgumentError(f"{place}: {first['msg']}") from error


def defense_of(given: Any) -> Defense | At:
    """Return a defense: itself, of a name with options, ``"sumkl(detection_error=0.4)"``, or of a mapping.

    Raises:
        ConfigError: If there is none of that name, or it does not take the options.
        ArgumentError: If the text names none or several, or a mapping is not as in a file.
    """
    if isinstance(given, Mapping):
        return cast("Defense | At", _section(HookConfig, given, "defenses").made("defenses", Path()))
    if not isinstance(given, str):
        return cast("Defense | At", given)
    choices = parse_defenses(given, folder=Path(), source="defenses")
    if len(choices) != 1 or len(choices[0]) != 1:
        raise ArgumentError(f"expected one defense in each text, got {given!r}; give several as a list")
    return cast("Defense | At", choices[0][0].made("defenses", Path()))


def attack_of(given: Any) -> Attack:
    """Return an attack: itself, of a name, or of a mapping with a name and options, as in a file.

    Raises:
        ConfigError: If there is none of that name, or it does not take the options.
        ArgumentError: If a mapping is not of that form.
    """
    if isinstance(given, str):
        given = {"name": given}
    if not isinstance(given, Mapping):
        return cast("Attack", given)
    return cast("Attack", _section(HookConfig, given, "attacks").made("attacks", Path()))


def penalty_of(given: Any) -> Weighed:
    """Return a penalty with its weight: itself, of a name, or of a mapping with weight and options, as in a file.

    Raises:
        ConfigError: If there is none of that name, or it does not take the options.
        ArgumentError: If a mapping is not of that form.
    """
    if isinstance(given, str):
        given = {"name": given}
    if not isinstance(given, Mapping):
        return weighed(given)
    return _section(PenaltyConfig, given, "penalties").made("penalties", Path())


def _section(kind: type[Section], given: Mapping[str, Any], argument: str) -> Section:
    try:
        return kind.model_validate(dict(given))
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join([argument, *map(str, first["loc"])])
        raise ArgumentError(f"{place}: {first['msg']}") from error


def listed(given: Any, argument: str) -> list[Any]:
    """Return what was given as a list of hooks.

    Raises:
        ArgumentError: If it is one hook, or a text.
    """
    if isinstance(given, str) or not isinstance(given, Iterable):
        raise ArgumentError(f"expected {argument} as a list, got {given!r}; write {argument}=[...]")
    return list(given)

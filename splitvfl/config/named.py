"""Sections that name something: what else may stand in them is what its constructor takes.

``optimizer: {name: sgd, lr: 0.1}`` is read with the annotations of what the registry knows as ``sgd``: each option
becomes a field of a section that is made from them, with its default, its limits and its line.
"""

from __future__ import annotations

import inspect
import json
import typing
from collections.abc import Callable, Set
from dataclasses import dataclass, fields, is_dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from pydantic import (
    ConfigDict,
    GetCoreSchemaHandler,
    SerializerFunctionWrapHandler,
    ValidationError,
    ValidationInfo,
    create_model,
    model_serializer,
)
from pydantic_core import (
    CoreSchema,
    ErrorDetails,
    InitErrorDetails,
    PydanticCustomError,
    PydanticSerializationError,
    core_schema,
)

from splitvfl.config.registry import SUPPLIED, PluginKind, arguments_of, construct, resolve
from splitvfl.config.value_types import TOLD
from splitvfl.config.yaml import Place
from splitvfl.errors import ConfigError, shown, suggestion
from splitvfl.learning.settings import Settings


class NamedSection(Settings):
    """A name, and the options of what is named, each an attribute.

    Attributes:
        factory: What is named: a class, or a function that makes one.
        name: Its name.
    """

    model_config = ConfigDict(arbitrary_types_allowed=True, protected_namespaces=())

    factory: ClassVar[Callable[..., Any]]
    name: str

    if TYPE_CHECKING:

        def __getattr__(self, option: str) -> Any: ...

    @model_serializer(mode="wrap")
    def _without_the_unset(self, serialise: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Leave out what is ``None`` by default, and write sets in one order: Python has another in every process."""
        written = super()._without_the_unset(serialise)
        return {
            name: sorted(value, key=json.dumps) if isinstance(getattr(self, name), Set) else value
            for name, value in written.items()
        }

    @classmethod
    def refusal(cls, key: str) -> str:
        """Return what is said of a key that what is named does not take, with its name: another may take it."""
        said, name = super().refusal(key), cls.model_fields["name"].default
        return said if key in cls.gone or not isinstance(name, str) else f"{said}  (keys of {name})"

    def make(self, *given: Any, **supplied: Any) -> Any:
        """Return a new one.

        Args:
            given: What its constructor takes before the options.
            supplied: What no file gives, or in the place of what one does; of it, whatever the constructor takes.

        Raises:
            ConfigError: If the constructor objects.
        """
        own = {name: getattr(self, name) for name in type(self).model_fields} | supplied
        return construct(self.factory, {name: own[name] for name in arguments_of(self.factory) if name in own}, *given)


@dataclass(frozen=True)
class Named:
    """The annotation of a field that names something of one kind.

    Attributes:
        kind: As in :mod:`splitvfl.config.registry`.
        base: What every section of this kind can say.
    """

    kind: PluginKind
    base: type[NamedSection] = NamedSection

    def section(self, name: str, folder: Path) -> type[NamedSection]:
        """Return the type of the section that has this name.

        Args:
            name: A name of the registry, or ``module:Class``.
            folder: Where modules are looked for first.

        Raises:
            ConfigError: If there is nothing of this name.
        """
        factory: Any = resolve(self.kind, name, folder=folder)
        return _section(self.kind, name, factory, self.base)

    def default(self, name: str, **options: Any) -> Any:
        """Return the section of a name about which nothing else is said than these options."""
        return self.section(name, Path())(name=name, **options)

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        """Return how such a field is read and written."""
        return core_schema.with_info_plain_validator_function(
            self._read,
            # As JSON: what a file can hold, and reads back the same.
            serialization=core_schema.plain_serializer_function_ser_schema(
                lambda section: section.model_dump(mode="json")
            ),
        )

    def _read(self, value: Any, info: ValidationInfo) -> NamedSection:
        if isinstance(value, NamedSection):
            return value
        section: type[NamedSection] = self.base
        name = value.get("name") if isinstance(value, dict) else None
        if isinstance(name, str):  # else it is told that it needs one
            try:
                section = self.section(name, (info.context or {}).get("folder", Path()))
            except ConfigError as error:
                unknown = _told(("name",), name, str(error))
                raise ValidationError.from_exception_data(self.kind, [unknown]) from None
        elif isinstance(value, dict):  # nobody knows what else may stand in it
            value = {key: given for key, given in value.items() if key in section.model_fields}
        try:
            # As JSON, in which a list may become a tuple but, strictly, a truth value or a text never a number.
            found = section.model_validate_json(json.dumps(value), context=info.context)
        except ValidationError as error:
            told = [_with_refusal(section, detail) for detail in error.errors()]
            raise ValidationError.from_exception_data(error.title, told) from None
        _check_writable(found)
        return found


def _check_writable(section: NamedSection) -> None:
    """Refuse an option that no file can hold: the settings of a run are kept in one.

    Raises:
        ValidationError: For each such option.
    """
    try:
        section.model_dump(mode="json")
    except PydanticSerializationError:
        told = [
            _told(
                (option,),
                None,
                f"the value of {option} cannot be written to a file: {shown(getattr(section, option))}; {_BY_NAME}",
            )
            for option in type(section).model_fields
            if not _is_writable(section, option)
        ]
        raise ValidationError.from_exception_data(section.name, told) from None


_BY_NAME = "let the constructor take a text or a number, and find the object by it"


def _is_writable(section: NamedSection, option: str) -> bool:
    try:
        section.model_dump(mode="json", include={option})
    except PydanticSerializationError:
        return False
    return True


@cache  # so that sections of one name can be compared
def _section(kind: PluginKind, name: str, factory: Callable[..., Any], base: type[NamedSection]) -> type[NamedSection]:
    options: dict[str, Any] = {
        option: found for option, found in arguments_of(factory).items() if option not in SUPPLIED.get(kind, ())
    }
    section = create_model(f"{kind}: {name}", __base__=base, name=(str, name), **options)
    section.factory = factory if inspect.isclass(factory) else staticmethod(factory)
    section.gone = getattr(factory, "gone", {})
    return section


def _with_refusal(section: type[Settings], error: ErrorDetails) -> InitErrorDetails:
    """Return an error of a section, whose type nobody outside knows, with its words about an unknown key."""
    if error["type"] == "extra_forbidden":
        return _told(error["loc"], error["input"], refusal(section, error["loc"]))
    return InitErrorDetails(type=error["type"], loc=error["loc"], input=error["input"], ctx=error.get("ctx", {}))


def _told(location: Place, value: Any, text: str) -> InitErrorDetails:
    error = PydanticCustomError(TOLD, "{text}", {"text": text})
    return InitErrorDetails(type=error, loc=location, input=value)


def refusal(section: type[Settings], location: Place) -> str:
    """Return what is said of an unknown key.

    Args:
        section: The outermost section.
        location: Where in it the key stands.
    """
    inner: Any = section
    for part in location[:-1]:
        # The key of a mapping is no field, and neither is what tells the members of a union apart.
        field = getattr(inner, "model_fields", {}).get(part)
        inner = (None if field is None else section_in(field.annotation)) or inner
    if is_dataclass(inner):
        return f"no such key{suggestion(str(location[-1]), [field.name for field in fields(inner)])}"
    said: str = inner.refusal(str(location[-1]))
    return said


def section_in(annotation: Any) -> Any:
    """Return the one type of settings that an annotation speaks of, or ``None``."""
    if inspect.isclass(annotation) and (issubclass(annotation, Settings) or is_dataclass(annotation)):
        return annotation
    return next(filter(None, map(section_in, typing.get_args(annotation))), None)

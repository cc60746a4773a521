"""What may stand at a key, as JSON Schema and in words, both from the annotation that checks it; and what is wrong."""

from __future__ import annotations

import math
import re
import unicodedata
from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import ConfigDict, PydanticUserError, TypeAdapter
from pydantic.errors import PydanticInvalidForJsonSchema
from pydantic_core import ErrorDetails

from splitvfl.errors import shown, suggestion

# Larger limits are there so that a slip of the finger is told; in words they are no news.
_NOTEWORTHY = 2**62
_IN_WORDS = {"string": "text", "boolean": "true or false", "null": "null", "object": "a section"}
_NUMBERS = {"integer": ("whole number", "whole numbers"), "number": ("number", "numbers")}

# The type of an error that is in words already.
TOLD = "told"

# By kind of error, the value that belongs there; the braces are filled in with the limits that were broken.
_EXPECTED: Mapping[str, str] = {
    "bool_parsing": "true or false",
    "bool_type": "true or false",
    "dataclass_type": "keys with values",
    "dict_type": "keys with values",
    "finite_number": "a finite number",
    "float_parsing": "a number",
    "float_type": "a number",
    "greater_than": "a number above {gt}",
    "greater_than_equal": "at least {ge}",
    "int_from_float": "a whole number",
    "int_parsing": "a whole number",
    "int_type": "a whole number",
    "less_than": "a number below {lt}",
    "less_than_equal": "at most {le}",
    "list_type": "a list",
    "literal_error": "{expected}",
    "mapping_type": "keys with values",
    "model_attributes_type": "keys with values",
    "model_type": "keys with values",
    "none_required": "nothing",
    "string_type": "text",
    "too_long": "a list of at most {max_length}",
    "too_short": "a list of at least {min_length}",
    "tuple_type": "a list",
}


def json_schema(annotation: Any) -> dict[str, Any]:
    """Return the JSON Schema of an annotation's values; of one that means nothing to pydantic, that of anything."""
    try:
        found = TypeAdapter[Any](annotation, config=ConfigDict(arbitrary_types_allowed=True)).json_schema()
    except (PydanticUserError, PydanticInvalidForJsonSchema):
        return {}
    return {key: value for key, value in found.items() if key not in ("title", "default")}


def in_words(schema: Mapping[str, Any]) -> str:
    """Return what a schema allows, in words.

    >>> in_words({"anyOf": [{"type": "integer", "minimum": 1, "maximum": 9}, {"type": "null"}]})
    'whole number, 1 to 9; or null'
    >>> in_words({"type": "array", "items": {"type": "number", "exclusiveMinimum": 0}})
    'list of numbers above 0'
    """
    return _said(schema, many=False)


def _said(schema: Mapping[str, Any], *, many: bool) -> str:
    if "anyOf" in schema:
        members = [_said(member, many=False) for member in schema["anyOf"]]
        told = [member for member in members if member != "whole number" or "number" not in members]
        return f"{'; or ' if any(',' in member for member in told) else ' or '}".join(dict.fromkeys(told))
    if "const" in schema or "enum" in schema:
        return _one_of([schema["const"]] if "const" in schema else schema["enum"])
    kind = schema.get("type")
    if kind in _NUMBERS:
        return f"{_NUMBERS[kind][many]}{_limits(schema)}"
    if kind == "array":
        return f"{'lists' if many else 'list'} of {_items(schema)}"
    return "texts" if many and kind == "string" else _IN_WORDS.get(str(kind), "anything")


def _one_of(values: Sequence[Any]) -> str:
    # Blanks cannot be told apart where they stand.
    *first, last = (unicodedata.name(v).lower() if isinstance(v, str) and v.isspace() else f"`{v}`" for v in values)
    return f"{', '.join(first)} or {last}" if first else last


def _items(schema: Mapping[str, Any]) -> str:
    if "prefixItems" in schema:
        return f"{len(schema['prefixItems'])} {_said(schema['prefixItems'][0], many=True)}"
    return _said(schema.get("items", {}), many=True)


def _limits(schema: Mapping[str, Any]) -> str:
    least, most = schema.get("minimum"), schema.get("maximum")
    above, below = schema.get("exclusiveMinimum"), schema.get("exclusiveMaximum")
    if most is not None and abs(most) >= _NOTEWORTHY:
        most = None
    if below is not None and abs(below) >= _NOTEWORTHY:
        below = None
    if least is not None and most is not None:
        return f", {_number(least)} to {_number(most)}"
    told = [
        f"{word} {_number(limit)}"
        for word, limit in (("above", above), ("at least", least), ("below", below), ("at most", most))
        if limit is not None
    ]
    return f"{' ' if above is not None else ', ' if told else ''}{' and '.join(told)}"


def _number(value: float) -> str:
    """Return a limit as people read it: 65,536 in digits, larger powers of two as such."""
    for exponent, rest, name in ((math.log2(value), 0, ""), (math.log2(value + 1), -1, " − 1")) if value > 0 else ():
        if exponent >= 20 and value == 2 ** round(exponent) + rest:
            return f"2^{round(exponent)}{name}"
    return f"{value:,}" if isinstance(value, int) else f"{value:g}"


def words(error: ErrorDetails) -> str:
    """Return one of pydantic's errors as "expected …, got …"; pydantic's own words for kinds not known here."""
    kind, value, context = error["type"], error["input"], error.get("ctx", {})
    if kind == "missing":
        return "required, and missing"
    if kind == "value_error":
        return str(context["error"])
    if kind == TOLD:
        return error["msg"]
    if kind not in _EXPECTED:
        return f"{error['msg']}, got {shown(value)}"
    return f"expected {_EXPECTED[kind].format(**context)}, got {shown(value)}{_hint(kind, value, context)}"


def _hint(kind: str, value: object, context: Mapping[str, object]) -> str:
    if kind == "string_type" and isinstance(value, (bool, int, float)):
        return "; put it in quotes if it is meant as text"
    if kind == "literal_error" and isinstance(value, str):
        hint = suggestion(value, re.findall(r"'([^']*)'", str(context["expected"])))
        return hint if "did you mean" in hint else ""
    return ""

"""Messages about wrong settings, in words that need no knowledge of the library that checked them."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pydantic_core import ErrorDetails

LONGEST_VALUE = 60

DEEPER = "expected (n, features), got {} dimensions: flatten it and begin the bottom with nn.Unflatten"
"""What is said of arrays of more than two dimensions."""

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


def suggestion(name: str, known: Iterable[str]) -> str:
    """Return ``"; did you mean batch_size?"``, or what there is when nothing comes near.

    >>> suggestion("batchsize", ["epochs", "batch_size"])
    '; did you mean batch_size?'
    >>> suggestion("rate", ["epochs", "batch_size"])
    '; there are batch_size, epochs'
    """
    # Compared in lower case: case is the commonest mistake, and would weigh as much as any other letter.
    by_lower = {other.lower(): other for other in sorted(known)}
    begun = [other for other in by_lower if len(name) > 2 and other.startswith(name.lower())]
    near = begun or difflib.get_close_matches(name.lower(), by_lower, n=1)
    if near:
        return f"; did you mean {by_lower[near[0]]}?"
    return f"; there are {', '.join(by_lower.values())}" if by_lower else ""


def shown(value: object) -> str:
    """Return a value as its writer would recognise it, on one line and not too long."""
    if value is None:
        return "nothing"
    if isinstance(value, bool):
        return str(value).lower()
    text = repr(value)
    return text if len(text) <= LONGEST_VALUE else text[: LONGEST_VALUE - 1] + "…"


# The type of an error that is in words already.
TOLD = "told"


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

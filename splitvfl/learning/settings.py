"""What every record of settings is: checked strictly when it is made, and never changed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from pydantic import BaseModel, ConfigDict, SerializerFunctionWrapHandler, model_serializer

from splitvfl.errors import suggestion


class Settings(BaseModel):
    """Settings that stand in a file: nothing but their own keys, no silent conversions, never changed.

    Attributes:
        gone: What became of keys that there were once, or that others have, by key.
    """

    # Written out, an infinite option of a hook stays what it is: as null it would be equal to none at all.
    model_config = ConfigDict(
        extra="forbid", frozen=True, strict=True, allow_inf_nan=False, ser_json_inf_nan="constants"
    )

    gone: ClassVar[Mapping[str, str]] = {}

    @classmethod
    def refusal(cls, key: str) -> str:
        """Return what is said of a key that these settings do not have."""
        return cls.gone.get(key) or f"no such key{suggestion(key, cls.model_fields)}"

    @model_serializer(mode="wrap")
    def _without_the_unset(self, serialise: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Leave out what is ``None`` by default: a page of nulls says nothing."""
        unset = {name for name, field in type(self).model_fields.items() if field.default is None}
        return {name: value for name, value in serialise(self).items() if value is not None or name not in unset}

"""The halves of a model that is to be checked or repaired, in whatever form they were given."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from torch import nn

from splitvfl.cut.split_model import SplitModel
from splitvfl.errors import ArgumentError


@dataclass(frozen=True)
class Halves:
    """Bottoms by party, and a top; each may be missing, or no module.

    Attributes:
        bottoms: By passive party.
        top: The active party's model; ``None`` of a model that is not cut yet.
        prefix: What comes before a bottom's party in the path of its layers.
        joined: Puts repaired halves together again, in the form that was given.
    """

    bottoms: Mapping[str, Any]
    top: Any
    prefix: str
    joined: Callable[[dict[str, nn.Module], Any], Any]

    @classmethod
    def of(cls, model: Any, *, at: int | None) -> Halves:
        """Return the halves of a model.

        Args:
            model: A :class:`SplitModel`; a pair ``(bottom, top)``, or ``({party: bottom}, top)``; or sequential.
            at: First layer of the top of a sequential model.

        Raises:
            ArgumentError: If it is none of these, or has no such layer.
        """
        if at is not None and not isinstance(model, nn.Sequential):
            raise ArgumentError(f"at={at!r} says where a sequential model is cut, got {type(model).__name__}")
        if isinstance(model, SplitModel):
            return cls(dict(model.bottoms), model.top, "bottoms.", model.rebuilt)
        if isinstance(model, tuple) and len(model) == 2:
            bottom, top = model
            if isinstance(bottom, Mapping):
                return cls(dict(bottom), top, "bottoms.", lambda bottoms, top: (bottoms, top))
            return cls({"bottom": bottom}, top, "", lambda bottoms, top: (bottoms["bottom"], top))
        if isinstance(model, nn.Sequential) and at is not None:
            if not 1 <= at < len(model):
                raise ArgumentError(f"a model of {len(model)} layers is cut at 1 to {len(model) - 1}, got {at}")
            return cls({"bottom": model[:at]}, model[at:], "", lambda bottoms, top: (bottoms["bottom"], top))
        if isinstance(model, nn.Module):
            return cls({"model": model}, None, "", lambda bottoms, top: bottoms["model"])
        raise ArgumentError(
            f"expected a SplitModel, a pair (bottom, top) or ({{party: bottom}}, top), or a module, got "
            f"{type(model).__name__}"
        )

    def modules(self) -> Iterator[tuple[str, nn.Module]]:
        """Yield each half that is a module, with its path."""
        for party, bottom in self.bottoms.items():
            if isinstance(bottom, nn.Module):
                yield f"{self.prefix}{party}", bottom
        if isinstance(self.top, nn.Module):
            yield "top", self.top

    def layers(self) -> Iterator[tuple[str, nn.Module]]:
        """Yield every layer with its path."""
        for path, half in self.modules():
            for name, layer in half.named_modules():
                yield f"{path}.{name}" if name else path, layer

    def copied(self) -> Halves:
        """Return copies of the halves, to be run and changed; what they share, the copies share."""
        bottoms, top = copy.deepcopy((dict(self.bottoms), self.top))
        return replace(self, bottoms=bottoms, top=top)

    def with_layers(self, changed: Callable[[nn.Module], nn.Module]) -> Halves:
        """Return the halves with every layer replaced by what a function makes of it, from the inside out.

        They are changed in place.
        """
        done: dict[int, nn.Module] = {}  # a layer that is used twice stays one

        def in_half(half: Any) -> Any:
            if not isinstance(half, nn.Module):
                return half
            if id(half) not in done:
                for name, child in half._modules.items():
                    half._modules[name] = in_half(child)
                done[id(half)] = changed(half)
            return done[id(half)]

        bottoms = {party: in_half(bottom) for party, bottom in self.bottoms.items()}
        return replace(self, bottoms=bottoms, top=in_half(self.top))

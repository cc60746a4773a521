"""What is compared: where a model is cut, how wide, and what is done to activations, gradients and what is learned."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

WIDE, HIDDEN = 64, 64
"""Width of the undefended cut, and of every layer before it."""

NONE = "none"
"""Family of the undefended model."""


@dataclass(frozen=True, kw_only=True)
class Way:
    """A model and what protects it.

    Attributes:
        label: For people.
        family: What it is a strength of.
        bottom: Widths of the partner's layers; the last one is that of the cut.
        defenses: Hooks of the experiment.
        penalties: Those of the partner.
        sampled: Whether the partner sends draws from what its layers put out.
    """

    label: str
    family: str
    bottom: tuple[int, ...] = (HIDDEN, WIDE)
    defenses: Sequence[Mapping[str, Any]] = ()
    penalties: Sequence[Mapping[str, Any]] = ()
    sampled: bool = False

    @property
    def key(self) -> str:
        """What tells a model and its protection from others, whatever they are called here."""
        hooks = [" ".join(str(value) for value in hook.values()) for hook in (*self.defenses, *self.penalties)]
        return ", ".join(["-".join(map(str, self.bottom)), *hooks])

    def as_settings(self) -> dict[str, Any]:
        """Return what a job is told of it: the same of ways that are alike under two names."""
        return {
            "key": self.key,
            "bottom": list(self.bottom),
            "defenses": [dict(hook) for hook in self.defenses],
            "penalties": [dict(hook) for hook in self.penalties],
            "sampled": self.sampled,
        }


def shaped(depth: int, width: int, *, family: str = "shape") -> Way:
    """Return a cut of some width after some layers."""
    return Way(label=f"after layer {depth}, width {width}", family=family, bottom=(*(HIDDEN,) * (depth - 1), width))


UNDEFENDED = Way(label="no defense", family=NONE)

WIDTHS, DEPTHS = (64, 16, 4), (1, 2)
SHAPES = tuple(shaped(depth, width) for depth in DEPTHS for width in WIDTHS)
"""Those of the first table."""


def _narrower(width: int) -> Way:
    return Way(label=f"cut of width {width}", family="narrower cut", bottom=(HIDDEN, width))


def _later(depth: int) -> Way:
    return Way(label=f"cut after layer {depth}", family="later cut", bottom=(*(HIDDEN,) * (depth - 1), WIDE))


def _noise(sigma: float) -> Way:
    hook = {"name": "gaussian-ir", "clip": 4.0, "sigma": sigma}
    return Way(label=f"gaussian-ir, sigma {sigma:g}", family="gaussian-ir", defenses=(hook,))


def _penalty(name: str, weight: float, *, sampled: bool = False) -> Way:
    hook = {"name": name, "weight": weight}
    return Way(label=f"{name}, weight {weight:g}", family=name, penalties=(hook,), sampled=sampled)


OF_ACTIVATIONS = (
    *map(_narrower, (16, 4, 2)),
    *map(_later, (3, 4, 5)),
    *map(_noise, (0.25, 1.0, 4.0)),
    *(_penalty("distance-correlation", weight) for weight in (0.1, 0.3, 1.0)),
    *(_penalty("adversarial-reconstruction", weight) for weight in (0.1, 1.0, 10.0)),
    *(_penalty("mutual-information-bottleneck", weight, sampled=True) for weight in (0.003, 0.01, 0.03)),
)
"""What protects columns: of each family three strengths, from weak to strong."""

OF_GRADIENTS = (
    Way(label="max-norm", family="of labels", defenses=({"name": "max-norm"},)),
    Way(label="sumkl, error .4", family="of labels", defenses=({"name": "sumkl", "detection_error": 0.4},)),
    Way(
        label="randomised-response, ε 1",
        family="of labels",
        defenses=({"name": "randomised-response", "epsilon": 1.0},),
    ),
)
"""What protects labels."""

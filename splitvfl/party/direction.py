"""The direction of noise on logits, from the passive party whose columns it hides to the one that computes the scores.

Theorem 4's direction v (:func:`splitvfl.defenses.noise_direction`) follows from a passive party's weights: a number for
each class, of length one, two where scores are sigmoids. That party sends it once, before anything of a record crosses,
and nothing else of its weights. The one that computes the scores gives it to the defenses that await it
(``score-noise`` with ``direction: sent``). Through a third party it is sealed, like parts of scores.

What is not promised. The receiver learns k numbers of the weights, and so does who sees two answers of one record that
differ. The sender may send any direction: one that is the same for all classes leaves scores as they are, and hides
nobody's columns. The power of the noise, by which scores suffer, is the receiver's to set.
"""

from __future__ import annotations

from typing import Final

import torch
from torch import Tensor

from splitvfl.cut.chain import DefenseChain
from splitvfl.cut.views import is_linear
from splitvfl.errors import ConfigError, ProtocolError
from splitvfl.hooks import all_finite, hook_name
from splitvfl.learning.noise_direction import noise_direction
from splitvfl.party.memoised import MemoisedNoise
from splitvfl.party.party import PassiveParty
from splitvfl.system.gpu_copies import bytes_of

DIRECTION: Final = "direction"
"""Kind of the message."""

_OFF_ONE: Final = 1e-9
"""How far the length of what is received may be from one: some roundings of float64."""


def direction_shape(outputs: int) -> tuple[int]:
    """Return the shape of a direction where a record has so many logits."""
    return (max(outputs, 2),)


def own_direction(party: PassiveParty) -> Tensor:
    """Return the direction of noise that follows from a party's weights, ``(k,)``, float64, of length one.

    It is the best one for columns as they are encoded, each of which counts alike.

    Raises:
        ConfigError: If its model is not linear.
        ArgumentError: If classes do not differ in its weights.
    """
    layer = next((one for one in party.bottom.modules() if isinstance(one, torch.nn.Linear)), None)
    if layer is None or not is_linear(party.bottom):
        raise ConfigError(
            f"{party.name} has no direction of noise to send: it follows from the weights of a linear model, got "
            f"{type(party.bottom).__name__}; leave prediction.direction_by out"
        )
    weight = layer.weight.detach()
    return noise_direction(weight if len(weight) > 1 else weight[0])[0]


def checked_direction(payload: Tensor, sender: str) -> Tensor:
    """Return a direction that was received, ``(k,)``, float64.

    Raises:
        ProtocolError: If it is none: not finite, or not of length one.
    """
    if not all_finite(payload):
        raise ProtocolError(f"the {DIRECTION} of noise from {sender} holds NaN or infinite values")
    # Of numbers up to 1e308 the squares overflow: the largest is looked at first.
    length = float(torch.linalg.vector_norm(payload)) if payload.abs().amax() <= 1.0 + _OFF_ONE else float("inf")
    if abs(length - 1.0) > _OFF_ONE:
        raise ProtocolError(f"expected {sender} to send a {DIRECTION} of noise of length 1, got one of length {length}")
    return payload


def give_direction(
    chain: DefenseChain, noise: MemoisedNoise | None, direction: Tensor, sender: str
) -> MemoisedNoise | None:
    """Give a direction to the defenses of scores that await one, and return the noise under it, if it is memoised.

    Raises:
        ConfigError: If none awaits one.
    """
    awaiting = [defense for defense in chain if awaits_direction(defense)]
    if not awaiting:
        raise ConfigError(
            f"{sender} sends a {DIRECTION} of noise (prediction.direction_by), and no defense of scores of "
            f"{chain.party} awaits one; add score-noise with direction: sent, or leave prediction.direction_by out"
        )
    for defense in awaiting:
        defense.take_direction(direction)  # type: ignore[attr-defined]
    return None if noise is None else noise.about(bytes(bytes_of(direction)))


def check_awaited(chain: DefenseChain, direction_by: str | None) -> None:
    """Check that a direction is sent if and only if a defense of scores awaits one.

    Raises:
        ConfigError: If not.
    """
    awaiting = [hook_name(defense) for defense in chain if awaits_direction(defense)]
    if awaiting and direction_by is None:
        raise ConfigError(
            f"{awaiting[0]} of {chain.party} awaits a direction (direction: sent), and nobody sends one; let all "
            "parties agree on prediction.direction_by: NAME, a passive party's"
        )
    if not awaiting and direction_by is not None:
        raise ConfigError(
            f"prediction.direction_by: {direction_by} would send a direction of noise, and no defense of scores of "
            f"{chain.party} awaits one; add score-noise with direction: sent, or leave it out"
        )


def awaits_direction(defense: object) -> bool:
    """Return whether a defense of scores takes its direction from a passive party."""
    return bool(getattr(defense, "awaits_direction", False))

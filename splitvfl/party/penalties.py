"""The penalties of a passive party: what it adds to a received gradient before its bottom model learns from it.

The gradient at the cut is that of the batch's mean loss. A penalty is a number in the same unit, and what the bottom
model learns from is ``gradient + sum of weight · d penalty / d activation``. All of it is the party's own: no message
changes, no partner is told, and the party's own attacks are shown the gradient as it was received. A penalty looks at
the activation of training steps as the bottom put it out, before defenses of the activation; with batches in flight,
at the one that the gradient belongs to, which older weights made. Evaluations and predictions have none.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from splitvfl.data.columns import PartyData, Records
from splitvfl.errors import ConfigError
from splitvfl.hooks import Held, Penalty, Weighed, held_by, hook_name, penalise, weighed
from splitvfl.leakage.watching import unused

NO_PENALTIES_OF_WORKERS = (
    "a penalty is of a batch as a whole, and each worker has a part of it: of a part it would be another penalty"
)

NO_STATE: Mapping[str, Any] = {"generator": None, "own": {}, "values": {}}
"""The state of a party without penalties."""


class Penalties:
    """The penalties of one passive party, each with its weight.

    Args:
        data: What the party holds.

    Attributes:
        values: What each was in the last training step, before the weight, by name.
    """

    def __init__(self, data: PartyData) -> None:
        self._data = data
        self._weighed: dict[str, Weighed] = {}
        self._generator: torch.Generator | None = None
        self.values: dict[str, float] = {}

    def __len__(self) -> int:
        return len(self._weighed)

    def __iter__(self) -> Iterator[Weighed]:
        return iter(self._weighed.values())

    def attach(self, penalty: Penalty | Weighed) -> None:
        """Add a penalty.

        Raises:
            HookError: If it needs what no passive party holds.
            ConfigError: If it needs what this party has none of.
        """
        given = weighed(penalty)
        self._check_held(given.penalty)
        self._weighed[unused(hook_name(given.penalty), self._weighed)] = given

    def _check_held(self, penalty: Penalty) -> None:
        held = {"columns": self._data.width, "categories": len(self._data.field_sizes)}
        missing = sorted(need for need in held_by(penalty) if not held[need])
        if missing:
            words = {"columns": "columns of numbers", "categories": "categorical fields"}
            raise ConfigError(
                f"penalty {hook_name(penalty)} needs {' and '.join(words[need] for need in missing)}, and "
                f"{self._data.name} has none; take it out there"
            )

    def add_to(self, gradient: Tensor, activation: Tensor, batch: Records, step: int) -> Tensor:
        """Return what the bottom learns from: a received gradient, and the penalties' on top.

        What penalties draw comes from a generator that the party's random state seeds at the first step.

        Args:
            gradient: What is used of the received gradient, ``(n, width)``.
            activation: What the bottom put out, likewise.
            batch: The records.
            step: Number of the step.

        Returns:
            Like the gradient; added up in float32 at least.

        Raises:
            HookError: If a penalty breaks its contract: no weight changes then.
        """
        if not self._weighed:
            return gradient
        generator = self._own_generator()
        total = gradient
        for name, given in self._weighed.items():
            held = Held(
                party=self._data.name,
                step=step,
                ids=batch.ids,
                columns=batch.columns.numeric,
                categories=batch.columns.categorical,
                generator=generator,
            )
            found = penalise(given.penalty, activation, held)
            self.values[name] = found.value
            total = found.added_to(total.to(found.gradient.dtype), given.at(step))
        return total.to(gradient.dtype)

    def _own_generator(self) -> torch.Generator:
        if self._generator is None:
            # Inside a step torch's global state is the party's own, from entropy in a deployed run.
            self._generator = torch.Generator().manual_seed(int(torch.randint(2**63 - 1, ()).item()))
        return self._generator

    @property
    def notes(self) -> list[str]:
        """What is to be said of them beside the figures of a run, in sentences."""
        return [
            f"{self._data.name} adds {given.weight:g} times the penalty {name} to what its bottom model learns"
            f"{f', rising over {given.warm_up_steps:,} steps' if given.warm_up_steps else ''}: it promises nothing of "
            "what its activations tell."
            for name, given in self._weighed.items()
        ]

    def state_dict(self) -> dict[str, Any]:
        """Return the state of each, by name, of what they draw from, and what they were."""
        return {
            "values": dict(self.values),  # with batches in flight the next step may log them once more
            "generator": None if self._generator is None else self._generator.get_state(),
            "own": {
                name: given.penalty.state_dict() if hasattr(given.penalty, "state_dict") else None
                for name, given in self._weighed.items()
            },
        }

    def load_state_dict(self, state: Mapping[str, Any], /) -> None:
        """Take back what :meth:`state_dict` returned.

        Raises:
            ValueError: If it is of other penalties.
        """
        own = state["own"]
        if list(own) != list(self._weighed):
            raise ValueError(
                f"{self._data.name} had {_named(own)} when it was made, and this run has {_named(self._weighed)}"
            )
        self.values = dict(state["values"])
        if state["generator"] is not None:
            self._generator = torch.Generator()
            self._generator.set_state(state["generator"])
        for name, given in self._weighed.items():
            if own[name] is not None:
                given.penalty.load_state_dict(own[name])  # type: ignore[attr-defined]


def _named(penalties: Mapping[str, Any]) -> str:
    return f"the penalties {', '.join(penalties)}" if penalties else "no penalties"

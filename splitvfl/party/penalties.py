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
from splitvfl.hooks import Held, Penalty, Weighed, held_by, hook_name, penalise, scope_of, unused, weighed
from splitvfl.learning.randomness import PartyRandom
from splitvfl.learning.sampled import distribution_of

NO_PENALTIES_OF_WORKERS = (
    "a penalty is of a batch as a whole, and each worker has a part of it: of a part it would be another penalty; one "
    "that is a mean over records says so with scope = 'row'"
)

NO_STATE: Mapping[str, Any] = {"generator": None, "random": None, "own": {}, "values": {}}
"""The state of a party without penalties."""


class Penalties:
    """The penalties of one passive party, each with its weight.

    Args:
        data: What the party holds.
        draws: Whether its bottom model draws what it puts out.

    Attributes:
        values: What each was in the last training step, before the weight, by name; of one worker's own records.
    """

    def __init__(self, data: PartyData, *, draws: bool = False) -> None:
        self._data, self._draws = data, draws
        self._weighed: dict[str, Weighed] = {}
        self._random: PartyRandom | None = None
        self._generator = torch.Generator()
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
        needs = held_by(penalty)
        if "distribution" in needs and not self._draws:
            raise ConfigError(
                f"penalty {hook_name(penalty)} is of a bottom model that draws what it puts out, and that of "
                f"{self._data.name} draws nothing: set model: {{name: mlp, sampled: true}} (of an estimator "
                "model={'name': 'mlp', 'sampled': True}; a bottom model of your own: wrap it in "
                "splitvfl.models.Sampled)"
            )
        held = {"columns": self._data.width, "categories": len(self._data.field_sizes), "distribution": 1}
        missing = sorted(need for need in needs if not held[need])
        if missing:
            words = {"columns": "columns of numbers", "categories": "categorical fields"}
            raise ConfigError(
                f"penalty {hook_name(penalty)} needs {' and '.join(words[need] for need in missing)}, and "
                f"{self._data.name} has none; take it out there"
            )

    @property
    def of_a_whole_batch(self) -> list[str]:
        """Names of those that cannot be computed by workers, each of its part of a batch."""
        return [name for name, given in self._weighed.items() if scope_of(given.penalty) == "batch"]

    def check_draws(self, where: str) -> None:
        """Refuse to send draws whose variance nothing holds up: training would make it vanish.

        Args:
            where: Where the model is described, for the message.

        Raises:
            ConfigError: If the bottom draws, and no penalty reads what it draws from.
        """
        if self._draws and not any("distribution" in held_by(given.penalty) for given in self):
            name = self._data.name
            raise ConfigError(
                f"{where}: sampled: what {name} sends is drawn, and no penalty keeps the draws from shrinking to their "
                f"means: give {name} penalties: [{{name: mutual-information-bottleneck, weight: 0.01}}], or leave "
                "sampled out"
            )

    def add_to(
        self, gradient: Tensor, activation: Tensor, batch: Records, step: int, share: float = 1.0
    ) -> dict[Tensor, Tensor]:
        """Return what the bottom learns from: a received gradient, and the penalties' on top.

        What penalties draw is none of what the party draws, and they can seed torch as they like: a state of torch's
        generator and a generator, both of their own, follow from the party's random state at the first step.

        Args:
            gradient: What is used of the received gradient, ``(n, width)``.
            activation: What the bottom put out, likewise.
            batch: The records.
            step: Number of the step.
            share: What share of the step's records these are, at one worker of several.

        Returns:
            Of the activation, and of what it was drawn from if it was drawn and there are penalties, each tensor with
            its gradient; added up in float32 at least.

        Raises:
            HookError: If a penalty breaks its contract, or needs a distribution and the activation is no draw: no
                weight changes then.
        """
        if not self._weighed or batch.count == 0:  # a mean over no records is no number
            return {activation: gradient}
        random = self._drawing(activation.device)
        held = self._held(activation, batch, step)
        roots = [activation, *held.leaves]
        totals = [gradient, *(torch.zeros_like(part) for part in held.leaves)]
        for name, given in self._weighed.items():
            with random:
                found = penalise(given.penalty, activation, held)
            weight = share * given.at(step)
            self.values[name] = found.value
            totals = [total.to(found.gradient.dtype) for total in totals]
            totals = [found.added_to(totals[0], weight), *found.added_to_distribution(totals[1:], weight)]
        return {root: total.to(root.dtype) for root, total in zip(roots, totals, strict=True)}

    def _held(self, activation: Tensor, batch: Records, step: int) -> Held:
        return Held(
            party=self._data.name,
            step=step,
            ids=batch.ids,
            columns=batch.columns.numeric,
            categories=batch.columns.categorical,
            generator=self._generator,
            distribution=distribution_of(activation),
        )

    def _drawing(self, device: torch.device) -> PartyRandom:
        """Return the state of torch's generators in which penalties run."""
        if self._random is None:
            # Inside a step torch's global state is the party's own, from entropy in a deployed run. To draw a seed from
            # it would change what the bottom model drops out next, without any weight of a penalty.
            self._random = PartyRandom.beside(b"penalties")
            with self._random:
                self._generator.manual_seed(int(torch.randint(2**63 - 1, ()).item()))
        if device.type == "cuda":
            self._random.use_cuda()
        return self._random

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
            "generator": None if self._random is None else self._generator.get_state(),
            "random": None if self._random is None else self._random.state_dict(),
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
        if (random := state.get("random")) is None:
            self._random = None  # it broke off before the first step
        else:
            self._random = PartyRandom(0)
            self._random.load_state_dict(random)
            self._generator.set_state(state["generator"])
        for name, given in self._weighed.items():
            if own[name] is not None:
                given.penalty.load_state_dict(own[name])  # type: ignore[attr-defined]


def _named(penalties: Mapping[str, Any]) -> str:
    return f"the penalties {', '.join(penalties)}" if penalties else "no penalties"

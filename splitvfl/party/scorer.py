"""Who computes the scores of a linear model, where that is not the party with the labels: it adds up and defends."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from splitvfl.cut.chain import DefenseChain
from splitvfl.errors import ArgumentError, ConfigError, ProtocolError
from splitvfl.hooks import all_finite
from splitvfl.learning.tasks import Task
from splitvfl.messaging.messages import Message
from splitvfl.party.direction import checked_direction, give_direction
from splitvfl.party.memoised import MemoisedNoise, defended_scores


def _ignored(message: Message) -> None: ...


class Scorer:
    """A party's place as the one that computes scores: a passive party's, or that of a third one without data.

    Args:
        name: The party's.
        task: What is predicted; of its loss the scores count.
        scores: Defenses of what it answers. Default: none yet.
        noise: Their noise, if it is memoised; ``None``: it is drawn anew.

    Attributes:
        name: As given.
        task: As given.
        scores: As given.
        noise: As given.
        remember: Told every part that it adds up, before it answers: who begins again must send the same.
    """

    def __init__(
        self, name: str, task: Task, *, scores: DefenseChain | None = None, noise: MemoisedNoise | None = None
    ) -> None:
        self.name, self.task, self.noise = name, task, noise
        self._drawn = noise
        self.scores = DefenseChain("scores", name) if scores is None else scores
        self.remember: Callable[[Message], None] = _ignored

    def take_direction(self, message: Message) -> None:
        """Give a direction of noise that a passive party sends to the defenses that await one, before any answer.

        Raises:
            ProtocolError: If it is none.
            ConfigError: If no defense awaits one.
        """
        self.remember(message)
        found = checked_direction(message.payload, message.sender)
        self._drawn = give_direction(self.scores, self.noise, found, message.sender)

    def answer(self, parts: Sequence[Tensor], own: Tensor, *, number: int, ids: Tensor | None) -> Tensor:
        """Return the scores that the label party is told, ``(n,)`` or ``(n, k)``, after their defenses.

        Args:
            parts: The passive parties' parts of the logits, ``(n, k)`` each, in the order in which the label party's
                model takes them; or their sum alone.
            own: The label party's part, ``(n, k)``.
            number: Number of the conversation.
            ids: Of the records; ``None``: the scorer does not know them.

        Raises:
            ProtocolError: If logits are NaN or infinite.
            ConfigError: If a defense was made for other scores.
            PrivacyError: If a defense needs ids that the scorer does not know, or its noise cannot be memoised.
        """
        with torch.no_grad():
            logits = added_up(parts, own)
            if not all_finite(logits):
                raise ProtocolError(
                    f"the logits that {self.name} adds up hold NaN or infinite values: a party sent too large a part, "
                    "or a model's weights are spoiled"
                )
            try:
                return defended_scores(self.scores, self._drawn, logits, self.task.loss.scores, step=number, ids=ids)
            except ArgumentError as error:
                raise ConfigError(
                    f"a defense of scores in the file of {self.name} does not fit what is predicted: {error}; change "
                    "it there (defenses), and begin again"
                ) from error


def added_up(parts: Sequence[Tensor], own: Tensor) -> Tensor:
    """Return the sum of parts of logits, ``(n, k)``, to the bit as the label party's model has it.

    Floating-point sums depend on the order. It is that of :class:`splitvfl.models.LinearTop`: first the passive
    parties' parts, in one sum over a dimension, then the label party's.
    """
    rows, outputs = own.shape
    return torch.cat([*parts], dim=1).reshape(rows, len(parts), outputs).sum(dim=1) + own

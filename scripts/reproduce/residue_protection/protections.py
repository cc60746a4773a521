"""The contenders of the comparison: what becomes of labels, residues and batches before anything is learned from them.

Many trainings at a time, in tensors of one column for each: the residues of a step have shape ``(s, R)``. A test
compares them with the package's own hooks and exchanges.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor

from scripts.reproduce.residue_protection.mechanisms import Bank, Mechanism
from splitvfl.defenses import MemoisedResponse
from splitvfl.defenses.corrected_response import Corrected
from splitvfl.exchange.selection import SecretBatch
from splitvfl.hooks import Defense


@dataclass(frozen=True, kw_only=True)
class Residues:
    """True labels, whose residues are sent as a mechanism of the paper has it, or as they are.

    Attributes:
        mechanism: Which.
    """

    mechanism: Mechanism

    @property
    def size(self) -> float:
        """Root mean square of what is sent before the first step."""
        return self.mechanism.size

    @property
    def draws_noise(self) -> bool:
        """Whether every release has noise of its own."""
        return self.mechanism.kind != "none"

    def defense(self) -> Defense | None:
        """Return the package's defense; ``None`` where residues are sent as they are."""
        return self.mechanism.defense()

    def targets(self, labels: Tensor, generator: torch.Generator, trainings: int) -> Tensor:
        """Return what each training learns in place of the labels 0 and 1 of ``(n,)`` records, ``(n, R)``."""
        return labels[:, None].expand(-1, trainings)

    def residues(self, targets: Tensor, logits: Tensor) -> Tensor:
        """Return minus the gradient of each record's loss at its logit."""
        return targets - torch.sigmoid(logits)

    def sent(self, residues: Tensor, noise: Tensor | None) -> Tensor:
        """Return what is sent of residues ``(s, R)``, given standard Laplace numbers of that shape."""
        if noise is None:
            return residues
        return Bank([self.mechanism]).sent(residues.unsqueeze(-1), noise.unsqueeze(-1)).squeeze(-1)

    def label_epsilon(self, releases: int) -> float:
        """Return the ε of a label that holds over so many releases of its record; infinite where there is none.

        Of additive noise it is half of that of a value. Of multiplicative noise no more is claimed than by value.
        """
        if self.mechanism.kind == "none":
            return math.inf
        return releases * self.mechanism.true_epsilon * (0.5 if self.mechanism.kind == "add" else 1.0)

    def read(self, sent: Tensor, logits: Tensor) -> tuple[Tensor, Tensor]:
        """Return residues and predictions as who knows the protection reads them: 1 − f and −f, but for noise."""
        return sent, torch.sigmoid(logits)

    def as_settings(self) -> dict[str, Any]:
        """Return it as JSON values."""
        return {"mechanism": self.mechanism.as_settings()}


@dataclass(frozen=True, kw_only=True)
class Memoised:
    """Labels that are flipped once for the whole run (:class:`~splitvfl.defenses.MemoisedResponse`).

    Attributes:
        epsilon: Of a label over the whole run.
        corrected: Where the loss allows for the lies.
    """

    epsilon: float
    corrected: Corrected = "targets"

    @property
    def flip(self) -> float:
        """Probability of a lie, π."""
        return 1.0 / (1.0 + math.exp(self.epsilon))

    @property
    def told(self) -> float:
        """How much likelier an answer is under the label that it names than under the other, ``δ = 1 − 2π``."""
        return math.tanh(self.epsilon / 2)

    @property
    def size(self) -> float:
        """Root mean square of what is sent before the first step."""
        return 0.5 / self.told if self.corrected == "targets" else 0.5 * self.told

    @property
    def draws_noise(self) -> bool:
        """No: what is sent is a function of the answers."""
        return False

    def defense(self) -> Defense | None:
        """Return the package's defense."""
        return MemoisedResponse(epsilon=self.epsilon, corrected=self.corrected)

    def targets(self, labels: Tensor, generator: torch.Generator, trainings: int) -> Tensor:
        """Return the corrected targets of answers, drawn once for each training."""
        tossed = torch.rand(len(labels), trainings, generator=generator, dtype=torch.float64)
        answers = torch.where(tossed < self.flip, 1.0 - labels[:, None], labels[:, None])
        return (answers - self.flip) / self.told

    def residues(self, targets: Tensor, logits: Tensor) -> Tensor:
        """Return minus the gradient of the task's loss at the targets, or of the likelihood of the answers."""
        label = torch.sigmoid(logits)
        if self.corrected == "targets":
            return targets - label
        answer = self.flip + self.told * label
        return self._slope(label, answer) * ((targets > 0.5).double() - answer)

    def _slope(self, label: Tensor, answer: Tensor) -> Tensor:
        return self.told * label * (1.0 - label) / (answer * (1.0 - answer))

    def sent(self, residues: Tensor, noise: Tensor | None) -> Tensor:
        """Return the residues: the labels are protected, and whatever follows from the answers may be sent."""
        return residues

    def label_epsilon(self, releases: int) -> float:
        """Return ε, however many releases there are."""
        return self.epsilon

    def read(self, sent: Tensor, logits: Tensor) -> tuple[Tensor, Tensor]:
        """Return answers less their probabilities: residues of the answers, of a model of the answers."""
        label = torch.sigmoid(logits)
        answer = self.flip + self.told * label
        if self.corrected == "targets":
            return self.told * sent, answer
        return sent / self._slope(label, answer).clamp(min=1e-300), answer

    def as_settings(self) -> dict[str, Any]:
        """Return it as JSON values."""
        return asdict(self)


Protection = Residues | Memoised


@dataclass(frozen=True, kw_only=True)
class Selection:
    """The batches of the hybrid exchange, from what the paper publishes of them.

    Attributes:
        used: k, on average.
        sent: L, on average.
        kept: p, the probability that a bit of the selection is kept: unpublished, and ours.
    """

    used: int
    sent: int
    kept: float = 0.75

    @property
    def batch_size(self) -> int:
        """Records of the agreed batch, ``|S| = k/p + (L − k)/(1 − p)``."""
        return round(self.used / self.kept + (self.sent - self.used) / (1.0 - self.kept))

    @property
    def share(self) -> float:
        """q: the share of the batch that is meant to be used."""
        return self.used / (self.kept * self.batch_size)

    @property
    def epsilon(self) -> float:
        """That of the selection, which is no ε of labels."""
        return math.log(self.kept / (1.0 - self.kept))

    @property
    def secret_batch(self) -> SecretBatch:
        """How records are drawn."""
        return SecretBatch(self.epsilon, self.share)


@dataclass(frozen=True, kw_only=True)
class Contender:
    """A protection of residues or of labels, with or without the hybrid exchange.

    Attributes:
        key: Short name, by which a table finds it.
        title: Name for people.
        protection: What becomes of labels and residues.
        selection: The hybrid exchange's batches; ``None``: every record of a batch is used.
        batch_size: Records in a step where it is not the problem's, nor the selection's; 0: it is.
        encrypted: Whether only sums cross. So they do in the hybrid exchange.
    """

    key: str
    title: str
    protection: Protection
    selection: Selection | None = None
    batch_size: int = 0
    encrypted: bool = False

    @property
    def sums_only(self) -> bool:
        """Whether residues cross under encryption, so that a passive party learns sums of them only."""
        return self.encrypted or self.selection is not None

    def rows(self, usual: int) -> int:
        """Return how many records a batch has, where a problem's usually has so many."""
        return self.batch_size or usual if self.selection is None else self.selection.batch_size

    def as_settings(self) -> dict[str, Any]:
        """Return it as JSON values, from which :meth:`of` makes it again."""
        selection = None if self.selection is None else asdict(self.selection)
        return {
            "key": self.key,
            "protection": self.protection.as_settings(),
            "selection": selection,
            "batch_size": self.batch_size,
            "encrypted": self.encrypted,
        }

    @classmethod
    def of(cls, settings: Mapping[str, Any]) -> Contender:
        """Return the contender of :meth:`as_settings`, whose title is its key."""
        options, selection = settings["protection"], settings["selection"]
        return cls(
            key=settings["key"],
            title=settings["key"],
            protection=Residues(mechanism=Mechanism(**options["mechanism"]))
            if "mechanism" in options
            else Memoised(**options),
            selection=None if selection is None else Selection(**selection),
            batch_size=settings["batch_size"],
            encrypted=settings["encrypted"],
        )

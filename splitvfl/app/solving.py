"""What partners can compute of labels in a run, before its first step."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Self

import torch

from splitvfl.app.label_horizon import LabelHorizon, observed_horizon
from splitvfl.claims import NoPromise, claims_of
from splitvfl.data.columns import TaskName
from splitvfl.errors import SolvableError
from splitvfl.exchange.base import Exchange
from splitvfl.exchange.paillier import EncryptedExchange
from splitvfl.hooks import hook_name, placed
from splitvfl.learning.batches import Batches
from splitvfl.learning.losses import ApproximateLogistic, Logistic
from splitvfl.learning.optimizers import plain_rate
from splitvfl.party.party import PassiveParty
from splitvfl.privacy.solvable import (
    Solvable,
    SolvedLabels,
    SummedTraining,
    packed_labels,
    solvable_labels,
    sparse_labels,
)
from splitvfl.run.trainer import Trainer

if TYPE_CHECKING:
    from splitvfl.app.assembly import Assembly

# Batches, and records, that ranks are taken of.
_SAMPLED: Final = 64
_MOST_RANKED: Final = 1 << 14


@dataclass(frozen=True, kw_only=True)
class SolvingBasis:
    """A training, as far as it decides what partners can solve for.

    Attributes:
        exchange: Its exchange.
        epochs: Epochs that are planned.
        usual_loss: Whether the loss is the usual one of the exchange, of which a residue's sign is its record's label.
        zero_start: Whether all first weights are zero.
        known_logits: Whether a partner knows all logits, as nobody else has features or an intercept.
        agreed_steps: In how many first steps any party knows that signs are labels; ``None``: nobody knows.
        changing: What changes residues or their sums: defenses of gradients, and calculated noise.
        randomising: Defenses of labels.
        guaranteed: Whether what stands in between guarantees something of true labels.
    """

    exchange: Exchange
    epochs: int
    usual_loss: bool
    zero_start: bool
    known_logits: bool
    agreed_steps: float | None
    changing: tuple[str, ...]
    randomising: tuple[str, ...]
    guaranteed: bool

    @classmethod
    def of_file(cls, assembly: Assembly, *, records: int, task: TaskName, own_columns: int) -> Self:
        """Return that of an experiment.

        Args:
            assembly: The parts of the experiment.
            records: Training records.
            task: Name of the label owner's task.
            own_columns: Features of the label owner.
        """
        recipe, noise = assembly.recipe, assembly.noise
        changing = (*assembly.named_defenses("gradient"), *([] if noise is None else [noise.name]))
        randomising = tuple(assembly.named_defenses("labels"))
        made = [placed(one)[0] for one in assembly.defenses()]
        claims = [claim for one in made if hook_name(one) in (changing or randomising) for claim in claims_of(one)]
        no_own_part = not own_columns and not getattr(recipe, "intercept", True)
        agreed = assembly.agreed_horizon(records, task)
        return cls(
            exchange=assembly.exchange,
            epochs=assembly.epochs,
            usual_loss=assembly.has_own_loss,
            zero_start=recipe.largest_deviation == 0,
            known_logits=no_own_part and assembly.partners == 1 and assembly.has_own_loss,
            agreed_steps=None if agreed is None else agreed.steps,
            changing=changing,
            randomising=randomising,
            guaranteed=noise is not None or any(not isinstance(claim, NoPromise) for claim in claims),
        )

    @classmethod
    def of_trainer(cls, trainer: Trainer, epochs: int) -> Self:
        """Return that of a trainer in Python that has not begun, with the weights that its models hold."""
        active, exchange = trainer.active, trainer.exchange
        parties = (active, *trainer.passives.values())
        gradients = [defense for cut in active.cuts.values() for defense in cut.gradient]
        noisy = exchange.noise is not None or exchange.sum_noise is not None
        usual = type(active.task.loss) in (Logistic, ApproximateLogistic)
        own_part = active.data.width > 0 or any(
            weight.requires_grad or weight.any() for weight in active.top.parameters()
        )
        claims = [claim for one in gradients or active.labels for claim in claims_of(one)]
        return cls(
            exchange=exchange,
            epochs=epochs,
            usual_loss=usual,
            zero_start=not any(weight.any() for party in parties for weight in party.module.parameters()),
            known_logits=usual and not own_part and len(trainer.passives) == 1,
            agreed_steps=None,
            changing=tuple(dict.fromkeys(map(hook_name, gradients))) + (("calculated noise",) if noisy else ()),
            randomising=tuple(map(hook_name, active.labels)),
            guaranteed=noisy or any(not isinstance(claim, NoPromise) for claim in claims),
        )


class Solving:
    """What a run's settings let partners solve for, by how many features each has.

    It is nothing where a gradient for each record is sent, which attacks judge in the run, or none at all, and where
    labels are no 0 and 1. Under encryption it says beside that what a partner reads which deviates from the protocol.

    Args:
        basis: The training.
        batches: Its batches.
        task: Name of the label owner's task.
        observed: Until which step signs are labels by the rows that there are, where one process has them.
    """

    def __init__(
        self, basis: SolvingBasis, batches: Batches, *, task: TaskName, observed: LabelHorizon | None = None
    ) -> None:
        self._basis = basis
        self.applies = basis.exchange.sums_only and task == "binary"
        self._training = SummedTraining(batches.count, batches.batch_size, basis.epochs, batches.drop_last)
        self._horizon = self._proven_steps(None if observed is None else observed.steps)

    def _proven_steps(self, observed: float | None) -> float:
        """Return in how many first steps the sign of a residue is its label."""
        basis = self._basis
        if not basis.usual_loss:
            return 0
        if basis.exchange.approximation == "exact":
            return math.inf
        if basis.exchange.approximation == "piecewise":  # a residue may be 0, unless all logits are
            return int(basis.zero_start)
        known = [steps for steps in (observed, basis.agreed_steps) if steps is not None]
        return max(known, default=int(basis.zero_start))

    @property
    def labels(self) -> SolvedLabels:
        """What residues are made of."""
        if self._basis.changing:
            return "changed"
        return "randomised" if self._basis.randomising else "true"

    def of(self, features: Mapping[str, int]) -> list[Solvable]:
        """Return what each partner can solve for, given how many features it has."""
        if not self.applies:
            return []
        honest = [one for name, width in features.items() for one in self._honest(name, width)]
        return [*honest, *self._deviating(features)]

    def _honest(self, name: str, width: int) -> list[Solvable]:
        drawn = self._basis.exchange.secret_batch
        if drawn is not None:
            used = drawn.expected_used(self._training.batch_size)
            found = sparse_labels(name, width, self._training, used=used, labels=self.labels)
            return [] if found is None else [found]
        return solvable_labels(
            name,
            width,
            self._training,
            horizon=self._horizon,
            zero_start=self._basis.zero_start and self._basis.usual_loss,
            known_logits=self._basis.known_logits,
            labels=self.labels,
        )

    def _deviating(self, features: Mapping[str, int]) -> list[Solvable]:
        """Return what each partner can read that packs single residues where sums were agreed on."""
        exchange = self._basis.exchange
        if not isinstance(exchange, EncryptedExchange) or not self._basis.usual_loss:
            return []

        def read(sums: int) -> int:
            return exchange.sums_layout(sums).single_values

        most, size = exchange.most_claimed, self._training.batch_size
        drawn = exchange.secret_batch
        used, sent = (None, None) if drawn is None else (drawn.expected_used(size), drawn.expected_sent(size))
        found = (
            packed_labels(
                name, width, self._training, claimed=most, read=read, labels=self.labels, used=used, sent=sent
            )
            for name, width in features.items()
        )
        return [one for one in found if one is not None]

    def said(self, found: Sequence[Solvable]) -> list[str]:
        """Return it in words, with what defenses of the label owner guarantee where they stand in between."""
        between = " and ".join(self._basis.changing or self._basis.randomising)
        return [" ".join(one.sentences(defended_by=between, guaranteed=self._basis.guaranteed)) for one in found]

    def said_before_connecting(self, columns: Mapping[str, int | None]) -> list[str]:
        """Return what follows from how many columns the file names of each partner; of others from how many on it does.

        Args:
            columns: By partner, ``None`` where the file does not say.
        """
        if not self.applies:
            return []
        named = {name: count for name, count in columns.items() if count is not None}
        unknown = [name for name, count in columns.items() if count is None]
        said = self.said(self.of(named))
        if not unknown or self._basis.exchange.draws_records:
            return said
        size, epochs = self._training.batch_size, self._training.epochs
        return [
            *said,
            f"How many features {' and '.join(unknown)} {'has' if len(unknown) == 1 else 'have'} is not known here. "
            f"With {size:,} or more a partner solves for the residue of every record, whatever is encrypted; with "
            f"fewer, its equations add up over {epochs:,} {'epoch' if epochs == 1 else 'epochs'}. The label owner's "
            "splitvfl party says before step 1 what follows."
            + {
                "true": "",
                "randomised": " Of labels these are randomised ones.",
                "changed": " These are residues that were changed before, and no true labels.",
            }[self.labels],
        ]


def refuse_solvable(found: Sequence[Solvable]) -> None:
    """Refuse a run in which a partner can solve for true labels, which is above any goal.

    Raises:
        SolvableError: If one can.
    """
    solved = [one for one in found if one.reveals_labels]
    if solved:
        raise SolvableError(" ".join(max(solved, key=lambda one: one.records).sentences()))


def solvable_in_python(trainer: Trainer, epochs: int) -> list[Solvable]:
    """Return what partners can compute of labels in a trainer's run, before its first step.

    Args:
        trainer: The trainer, with its first weights.
        epochs: Epochs that are planned.
    """
    active = trainer.active
    if not trainer.exchange.sums_only or active.task.name != "binary":
        return []
    basis = SolvingBasis.of_trainer(trainer, epochs)
    rates = {plain_rate(party.weights.dense_optimizer) for party in (active, *trainer.passives.values())}
    told = basis.usual_loss and not basis.changing and not basis.randomising and len(rates) == 1
    observed = observed_horizon(rates.pop() if told else None, trainer.exchange, trainer)
    return Solving(basis, trainer.batches, task="binary", observed=observed).of(independent_columns(trainer))


def independent_columns(trainer: Trainer) -> dict[str, int]:
    """Return how many features of each passive party are independent of one another, as far as batches tell.

    Of some batches of the first epoch too: columns of few values, one-hot ones say, are fewer within a small batch.
    """
    found = {}
    batches = [batch for batch in trainer.batches.epoch(0)[:_SAMPLED] if len(batch) == trainer.batches.batch_size]
    every = torch.arange(min(trainer.active.data.train.count, _MOST_RANKED))
    for name, party in trainer.passives.items():
        rank = _rank(party, every)
        in_batches = sorted(_rank(party, batch) for batch in batches if len(batch) <= rank)
        typical = in_batches[len(in_batches) // 2] if in_batches else rank
        found[name] = max(1, rank if typical >= trainer.batches.batch_size or not in_batches else typical)
    return found


def _rank(party: PassiveParty, rows: torch.Tensor) -> int:
    return int(torch.linalg.matrix_rank(party.train_batch(rows).columns.numeric.detach().cpu().double()))

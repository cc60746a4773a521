"""What partners can compute of labels in a run of an experiment, before its first step."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Final

import torch

from splitvfl.app.assembly import Assembly
from splitvfl.app.label_horizon import LabelHorizon
from splitvfl.claims import NoPromise, claims_of
from splitvfl.data.columns import TaskName
from splitvfl.errors import SolvableError
from splitvfl.exchange.paillier import EncryptedExchange
from splitvfl.hooks import hook_name, placed
from splitvfl.learning.batches import Batches
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

# Batches, and records, that ranks are taken of.
_SAMPLED: Final = 64
_MOST_RANKED: Final = 1 << 14


class Solving:
    """What a run's settings let partners solve for, by how many features each has.

    It is nothing where a gradient for each record is sent, which attacks judge in the run, or none at all, and where
    labels are no 0 and 1. Under encryption it says beside that what a partner reads which deviates from the protocol.

    Args:
        assembly: The parts of the experiment.
        batches: Its batches.
        task: Name of the label owner's task.
        own_columns: Features of the label owner.
        observed: Until which step signs are labels by the rows that there are, where one process has them.
    """

    def __init__(
        self,
        assembly: Assembly,
        batches: Batches,
        *,
        task: TaskName,
        own_columns: int,
        observed: LabelHorizon | None = None,
    ) -> None:
        self._assembly = assembly
        exchange, recipe = assembly.exchange, assembly.recipe
        self.applies = exchange.sums_only and task == "binary"
        self._training = SummedTraining(batches.count, batches.batch_size, assembly.epochs, batches.drop_last)
        self._zero_start = recipe.largest_deviation == 0
        no_own_part = not own_columns and not getattr(recipe, "intercept", True)
        self._known_logits = no_own_part and assembly.partners == 1 and assembly.has_own_loss
        self._horizon = self._proven_steps(batches.count, task, observed)
        self._changing = assembly.named_defenses("gradient") + ([] if assembly.noise is None else [assembly.noise.name])
        self._randomising = assembly.named_defenses("labels")

    def _proven_steps(self, records: int, task: TaskName, observed: LabelHorizon | None) -> float:
        """Return in how many first steps the sign of a residue is its label."""
        if not self._assembly.has_own_loss:
            return 0
        if self._assembly.exchange.approximation == "exact":
            return math.inf
        if self._assembly.exchange.approximation == "piecewise":  # a residue may be 0, unless all logits are
            return int(self._zero_start)
        agreed = self._assembly.agreed_horizon(records, task)
        return max([one.steps for one in (observed, agreed) if one is not None], default=int(self._zero_start))

    @property
    def labels(self) -> SolvedLabels:
        """What residues are made of."""
        if self._changing:
            return "changed"
        return "randomised" if self._randomising else "true"

    def of(self, features: Mapping[str, int]) -> list[Solvable]:
        """Return what each partner can solve for, given how many features it has."""
        if not self.applies:
            return []
        honest = [one for name, width in features.items() for one in self._honest(name, width)]
        return [*honest, *self._deviating(features)]

    def _honest(self, name: str, width: int) -> list[Solvable]:
        drawn = self._assembly.exchange.secret_batch
        if drawn is not None:
            used = drawn.expected_used(self._training.batch_size)
            found = sparse_labels(name, width, self._training, used=used, labels=self.labels)
            return [] if found is None else [found]
        return solvable_labels(
            name,
            width,
            self._training,
            horizon=self._horizon,
            zero_start=self._zero_start and self._assembly.has_own_loss,
            known_logits=self._known_logits,
            labels=self.labels,
        )

    def _deviating(self, features: Mapping[str, int]) -> list[Solvable]:
        """Return what each partner can read that packs single residues where sums were agreed on."""
        exchange = self._assembly.exchange
        if not isinstance(exchange, EncryptedExchange) or not self._assembly.has_own_loss:
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
        names = self._changing or self._randomising
        made = [placed(one)[0] for one in self._assembly.defenses()]
        claims = [claim for one in made if hook_name(one) in names for claim in claims_of(one)]
        guaranteed = self._assembly.noise is not None or any(not isinstance(claim, NoPromise) for claim in claims)
        return [" ".join(one.sentences(defended_by=" and ".join(names), guaranteed=guaranteed)) for one in found]

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
        if not unknown or self._assembly.exchange.draws_records:
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


def refuse_solvable(found: Sequence[Solvable], *, highest: float) -> None:
    """Refuse a run in which a partner can solve for more true labels than a leak AUC allows.

    Raises:
        SolvableError: If one can.
    """
    worst = max(found, key=lambda one: one.leak_auc, default=None)
    if worst is not None and worst.leak_auc > highest:
        raise SolvableError(
            f"leak AUC {worst.leak_auc:.4f} at least is above {highest:g}: {' '.join(worst.sentences())}"
        )


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

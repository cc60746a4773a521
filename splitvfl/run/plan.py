"""What a training is, before it has begun: made once, and used in one process and by one party over a network alike."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import torch

from splitvfl.data.columns import PartyData
from splitvfl.errors import ArgumentError
from splitvfl.exchange.base import Exchange
from splitvfl.exchange.evaluation import EvaluationPlan
from splitvfl.exchange.split import Split
from splitvfl.leakage.canaries import check_canaries
from splitvfl.leakage.judging import known_allowed
from splitvfl.leakage.side_knowledge import KNOWN
from splitvfl.learning.batches import Batches
from splitvfl.learning.schedule import EarlyStopping, Schedule, checked_count
from splitvfl.party.party import ActiveParty, Party
from splitvfl.team.team import Alone, Team, part_of


@dataclass(frozen=True, kw_only=True)
class TrainingPlan:
    """The settings of a training, and what follows from them alone.

    Attributes:
        exchange: How a step is talked through.
        epochs: Epochs of the whole run; ``None``: what :meth:`splitvfl.run.trainer.Trainer.fit` is told.
        noise_epochs: Epochs for which noise was calculated: a run has no more. ``None``: there is no such limit.
        batch_size: Records in a step.
        drop_last: Leave out, in every epoch, the records that do not fill a batch.
        block_rows: Neighbouring records that are shuffled as one.
        shards: Into how many runs of neighbours the records are divided.
        seed: Order of the records.
        noise_seed_for_experiments: Fixed seed of noise and of what an exchange draws in secret; ``None``: entropy.
        known_positives: How many positive records an attacker is assumed to know.
        known_negatives: How many negative ones, likewise.
        audit: Whether the auditor's attack is run.
        canaries: How many training records get a coin toss for a label; ``None``: none.
        log_every: Steps between two lines of the log.
        checkpoint_every: Steps between two checkpoints, besides one after each epoch; ``None`` for no more.
        evaluate_every: Epochs between two evaluations; the last epoch always ends in one.
        early_stopping: When to end before the last epoch; ``None``: never.
        device: Where models and batches live.
        autocast: The dtype of models under autocast, ``torch.bfloat16``; ``None``: models run as they are.
        wire: The dtype of activations and gradients as they cross, likewise.

    Raises:
        ArgumentError: If ``epochs`` or ``evaluate_every`` is no whole number of at least 1.

    >>> plan = TrainingPlan(batch_size=64, early_stopping=EarlyStopping(validation_every=5))
    >>> plan.terms()["batch size"], plan.terms()["early stopping: validation_every"]
    (64, 5)
    """

    exchange: Exchange = field(default_factory=Split)
    epochs: int | None = None
    noise_epochs: int | None = None
    batch_size: int = 256
    drop_last: bool = False
    block_rows: int = 1
    shards: int = 1
    seed: int = 0
    noise_seed_for_experiments: int | None = None
    known_positives: int = KNOWN
    known_negatives: int = KNOWN
    audit: bool = True
    canaries: int | None = None
    log_every: int = 10
    checkpoint_every: int | None = None
    evaluate_every: int = 1
    early_stopping: EarlyStopping | None = None
    device: torch.device | str = "cpu"
    autocast: torch.dtype | None = None
    wire: torch.dtype | None = None

    def __post_init__(self) -> None:
        """Check what nobody else checks before the first step."""
        if self.epochs is not None:
            checked_count("epochs", self.epochs)
        checked_count("evaluate_every", self.evaluate_every)

    def batches(self, data: PartyData, *, shard: int | None = None) -> Batches:
        """Return the order of the training records.

        Args:
            data: Any party's data: they have equally many records.
            shard: Whose part of each batch is wanted, of several workers; ``None``: all of them.

        Raises:
            ArgumentError: As :class:`splitvfl.learning.batches.Batches`.
            DataError: Likewise.
        """
        batches = Batches(
            data.training_records,
            self.batch_size,
            seed=self.seed,
            drop_last=self.drop_last,
            block_rows=self.block_rows,
            held_out_every=None if self.early_stopping is None else self.early_stopping.validation_every,
            shards=self.shards,
            sizes=None if data.shards is None else data.shards.sizes,
        )
        return batches if shard is None else batches.of_shard(shard)

    def schedule(self, batches: Batches, epochs: int, *, stop: Callable[[int], bool] | None = None) -> Schedule:
        """Return what follows each step.

        Args:
            batches: The order of the records.
            epochs: Epochs of the whole run.
            stop: Told how many steps are done, says whether the run ends there; ``None``: with its last epoch.
        """
        return Schedule(
            batches,
            epochs,
            log_every=self.log_every,
            checkpoint_every=self.checkpoint_every,
            evaluate_every=self.evaluate_every,
            stop=stop,
        )

    def evaluation(self, data: PartyData, batches: Batches, *, team: Team | None = None) -> EvaluationPlan:
        """Return what is evaluated.

        Args:
            data: Any party's data.
            batches: The order of its training records, which says what is held out.
            team: The workers of the party, of which this process is one; ``None``: it is the only one.
        """
        team = team or Alone()
        tested = part_of(data.test.count, team) if data.shards is None else range(data.test.count)
        return EvaluationPlan(
            batches.held_out,
            len(tested),
            first=tested.start,
            validates=bool(batches.all_held_out),
            most_validation=batches.most_held_out,
            most_test=-(-data.test.count // team.size) if data.shards is None else max(data.shards.tests),
        )

    def terms(self) -> dict[str, object]:
        """Return the settings that every party must have alike, by the names under which they are compared.

        Those of the exchange are its own (:meth:`splitvfl.exchange.base.Exchange.terms`).

        Raises:
            ArgumentError: If a dtype is neither bfloat16 nor ``None``.
        """
        stopping = self.early_stopping
        return {
            "batch size": self.batch_size,
            "last batch, if smaller": "left out" if self.drop_last else "taken",
            "rows in a block": self.block_rows,
            "seed of the order": self.seed,
            "epochs between evaluations": self.evaluate_every,
            "early stopping: patience": None if stopping is None else stopping.patience,
            "early stopping: min_delta": None if stopping is None else stopping.min_delta,
            "early stopping: validation_every": None if stopping is None else stopping.validation_every,
            **self.exchange.terms(),
            "autocast": _dtype_name("autocast", self.autocast, none="off"),
            "wire": _dtype_name("wire", self.wire, none="as computed"),
            **({} if self.shards == 1 else {"shards of the records": self.shards}),
        }

    def prepare(self, party: Party, *, seed: int) -> None:
        """Bring a party to its device, with a seed of its randomness in training (dropout)."""
        party.prepare(seed=seed, device=torch.device(self.device), autocast=self.autocast, wire=self.wire)

    def stop_early(self, party: ActiveParty, batches: Batches) -> None:
        """Have the label party decide when training ends, if anything does before its last epoch."""
        if self.early_stopping is not None:
            party.stop_early_by(self.early_stopping, batches.held_out)

    def check_canaries(self) -> None:
        """Refuse canaries that nobody could look for.

        Raises:
            ConfigError: If there are to be any.
        """
        if self.canaries is not None:
            check_canaries(audit=self.audit, exchange=self.exchange.name, read=self.exchange.shows_gradients())

    def place_canaries(self, party: ActiveParty, batches: Batches, *, team: Team | None = None) -> None:
        """Give the label party its canaries, if there are to be any.

        Raises:
            ArgumentError: As :meth:`splitvfl.party.training_labels.TrainingLabels.place_canaries`.
            DataError: Likewise.
        """
        if self.canaries is not None:
            party.training_labels.place_canaries(
                self.canaries, batches, team=team, noise_seed_for_experiments=self.noise_seed_for_experiments
            )

    def known_records(self, party: ActiveParty) -> dict[str, int]:
        """Return how many records of each class an attacker is told of, by the names under which attacks take it."""
        counts = known_allowed(
            party.training_labels.judged_records,
            self.known_positives,
            self.known_negatives,
            classes=party.task.classes,
        )
        return dict(zip(("known_positives", "known_negatives"), counts, strict=True))


def _dtype_name(setting: str, dtype: torch.dtype | None, *, none: str) -> str:
    # float16 would need a loss scaler: the gradient of a mean over 65 536 records lies below its smallest number.
    if dtype not in (None, torch.bfloat16):
        raise ArgumentError(f"{setting} must be torch.bfloat16 or None, got {dtype}")
    return none if dtype is None else "bf16"

"""The trainer as users import it: a plan from keyword arguments, and noise that is calculated for a privacy loss."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from splitvfl.data.joint_records import read_joint_records
from splitvfl.errors import ArgumentError, ConfigError, shown
from splitvfl.exchange.base import Exchange
from splitvfl.exchange.prediction import Part
from splitvfl.exchange.scoring import ACTIVE
from splitvfl.exchange.split import Split
from splitvfl.hooks import At, Attack, Defense
from splitvfl.leakage.side_knowledge import KNOWN
from splitvfl.learning.schedule import EarlyStopping, checked_count
from splitvfl.messaging.conversation import Recorder
from splitvfl.party.party import ActiveParty, PassiveParty
from splitvfl.privacy.accounting import PrivacyBudget
from splitvfl.run.plan import TrainingPlan
from splitvfl.run.saving_trainer import SavingTrainer
from splitvfl.run.trainer import check_names

if TYPE_CHECKING:
    from splitvfl.crypto.engine import Engine
    from splitvfl.report.verdict import PartyVerdict
    from splitvfl.run.results import Results
    from splitvfl.run.training import TrainingProgress


class Trainer(SavingTrainer):
    """A :class:`splitvfl.run.trainer.Trainer` whose plan is made from keyword arguments, and its noise calculated.

    Args:
        active: The party with the labels.
        passives: The other parties by name.
        defenses: Attached where each belongs. At several cuts, each cut gets its own copy. One of the activation acts
            in training, evaluations and predictions, unless :class:`~splitvfl.hooks.At` names some of them.
        attacks: Label attacks for every passive party, run at every step or, if that is what they are for, once after
            training; feature attacks run at every step or, if that is what they are for, once at the end, on
            predictions.
        batch_size: Records in a step.
        drop_last: Leave out, in every epoch, the records that do not fill a batch.
        block_rows: Neighbouring records that are shuffled as one, see :class:`splitvfl.learning.batches.Batches`; 1
            shuffles all.
        shards: Into how many runs of neighbours the records are divided, see
            :class:`splitvfl.learning.batches.Batches`: the order of that many workers, in one process.
        seed: Order of the records, and every party's randomness in training (dropout).
        noise_seed_for_experiments: Fixed seed of every defense's generator, and of what an exchange draws in secret
            (which records ``hybrid`` uses), for experiments only. Default: seeds from
            the operating system's entropy.
        known_positives: How many positive records an attacker is assumed to know, for attacks that need some, and is
            not judged by: at every step the first ones met, after training ones drawn with the seed. Never more than
            half of the training records of the class, so that there are others to be judged by.
        known_negatives: How many negative records it is assumed to know, likewise.
        audit: Whether to run the auditor's attack.
        canaries: How many training records get a coin toss for a label, at random, at least twenty: the AUC of an
            attack among them is the leak beyond the prediction (:mod:`splitvfl.leakage.canaries`). They are in no other
            figure of an attack, and never among the records that are held out or tested on. ``None``: there are none.
        log_dir: Folder for TensorBoard, ``metrics.jsonl`` and checkpoints; ``None`` keeps nothing. A folder that holds
            another run is refused, unless :meth:`resume` goes on with it or ``overwrite`` is asked for.
        overwrite: Replace the run that ``log_dir`` holds. It is deleted when the new run has its first checkpoint; if
            training ends before, it is as it was.
        log_every: Steps between two lines of the log.
        checkpoint_every: Steps between two checkpoints, besides one after each epoch; ``None`` for no more.
        evaluate_every: Epochs between two evaluations on the test records; the last epoch always ends in one.
        epochs: Epochs of the whole run, where the exchange has noise that is calculated for a privacy loss:
            :meth:`fit` trains no longer then. Default: what :meth:`fit` is told, and no noise is calculated.
        early_stopping: When to end before the last epoch. Every ``validation_every``-th training record is then held
            out and evaluated too, and at the end each party has the weights of its best evaluation.
        device: Where models and batches live.
        autocast: ``torch.bfloat16`` runs the models under autocast: activations and gradients then cross in bfloat16;
            losses, defenses and attacks compute in float32. ``None``: models run as they are.
        wire: ``torch.bfloat16`` rounds activations and gradients to bfloat16 as the last thing before they cross; the
            receiver goes on in float32. ``None``: they cross as they were computed.
        exchange: How a step is talked through; by party's name where one of them deviates, in an experiment with a
            malicious party. Default: activations and gradients in the clear. Noise that is agreed on
            (``Split(noise=...)``, ``Taylor(noise=...)``, ``Residue(sum_noise=...)``) is calculated from ``epochs`` and
            from what the parties are, as from an experiment's file, and added.
        malicious: By party's name, the engine of one that deviates from an encrypted exchange, such as
            ``{"lab": PackingEngine()}``: what it reads is judged (:attr:`packing`). Default: all are honest.
        record: Called with every message of the training steps, e.g. ``Transcript().record``; in exchange one-way,
            with everything that crosses before them.
        record_evaluations: Called with every message of evaluations, likewise
            (``Transcript(most_bytes=2**28).record``): a partner sees them too. Their rows are those of ``data.test``,
            in that order, and where early stopping holds records out these.
        scores_by: Who computes the scores of :meth:`predict`, as for
            :func:`splitvfl.exchange.prediction.predict_records`.
        direction_by: The passive party that sends a direction of noise on scores there, likewise.

    Attributes:
        noise_notes: What is to be said of noise that was calculated here, in sentences: what is protected, from whom,
            by what, and what is not covered.

    Raises:
        ArgumentError: If parties have no or clashing names, an attack needs what a party cannot show, ``epochs`` is no
            whole number of at least 1, ``exchange`` is no exchange, or ``autocast`` or ``wire`` is another dtype.
        ConfigError: If an attack, a defense or canaries are for binary labels and the task is another; if there are to
            be canaries without an auditor who looks for them, or where no message about one record comes back; if
            ``direction_by`` is to send a direction that no defense of scores awaits; or if noise is agreed on, and this
            is no training that it can be calculated for.
        DataError: If there are to be more canaries than other records.
        PrivacyError: If a guarantee per record is claimed for a model with batch-mixing layers.

    >>> from functools import partial
    >>> from splitvfl import ActiveParty, PassiveParty, load
    >>> from splitvfl.exchange.noise import HdpNoiseSettings
    >>> from splitvfl.exchange.split import Split
    >>> from splitvfl.learning.optimizers import sgd
    >>> from splitvfl.models import Linear, LinearTop
    >>> data = load("breast-cancer", active=0.5, passive={"lab": "rest"})
    >>> own, other = data.active.with_row_norm(1.0), data["lab"].with_row_norm(1.0)
    >>> steps = partial(sgd, lr=0.1)
    >>> bank = ActiveParty(own, LinearTop(1, active_inputs=own.width, init="zero"), optimizer=steps)
    >>> lab = PassiveParty(other, Linear(other.width, init="zero"), optimizer=steps)
    >>> noise = HdpNoiseSettings(epsilon=1.0, delta=1e-3)
    >>> trainer = Trainer(bank, {"lab": lab}, exchange=Split(noise=noise), epochs=5)
    >>> print(trainer.noise_notes[1].partition(": ")[2])
    all that the party sends in the training is (1, 0.001)-differentially private, towards active.
    """

    def __init__(
        self,
        active: ActiveParty,
        passives: Mapping[str, PassiveParty],
        *,
        defenses: Sequence[Defense | At] = (),
        attacks: Sequence[Attack] = (),
        batch_size: int = 256,
        drop_last: bool = False,
        block_rows: int = 1,
        shards: int = 1,
        seed: int = 0,
        noise_seed_for_experiments: int | None = None,
        known_positives: int = KNOWN,
        known_negatives: int = KNOWN,
        audit: bool = True,
        canaries: int | None = None,
        log_dir: str | Path | None = None,
        overwrite: bool = False,
        log_every: int = 10,
        checkpoint_every: int | None = None,
        evaluate_every: int = 1,
        epochs: int | None = None,
        early_stopping: EarlyStopping | None = None,
        device: torch.device | str = "cpu",
        autocast: torch.dtype | None = None,
        wire: torch.dtype | None = None,
        exchange: Exchange | Mapping[str, Exchange] | None = None,
        malicious: Mapping[str, Engine] | None = None,
        record: Recorder | None = None,
        record_evaluations: Recorder | None = None,
        scores_by: str = ACTIVE,
        direction_by: str | None = None,
    ) -> None:
        given = _checked_exchange(exchange)
        agreed = given if isinstance(given, Exchange) else given.get(active.name, Split())
        plan = TrainingPlan(
            exchange=agreed,
            epochs=epochs,
            noise_epochs=_epochs_of_noise(given, epochs),
            batch_size=batch_size,
            drop_last=drop_last,
            block_rows=block_rows,
            shards=shards,
            seed=seed,
            noise_seed_for_experiments=noise_seed_for_experiments,
            known_positives=known_positives,
            known_negatives=known_negatives,
            audit=audit,
            canaries=canaries,
            log_every=log_every,
            checkpoint_every=checkpoint_every,
            evaluate_every=evaluate_every,
            early_stopping=early_stopping,
            device=device,
            autocast=autocast,
            wire=wire,
        )
        account: PrivacyBudget | None = None
        self.noise_notes: tuple[str, ...] = ()
        if plan.noise_epochs is not None:
            # Knows models and defenses, and is imported where there is noise.
            from splitvfl.app.python_noise import calculated

            check_names(active, passives)  # before a party's weights are held in a ball
            noise = calculated(plan, active, passives, defenses)
            plan, defenses, account, self.noise_notes = noise.plan, noise.defenses, noise.account, noise.notes
        super().__init__(
            active,
            passives,
            plan,
            defenses=defenses,
            attacks=attacks,
            folder=None if log_dir is None else Path(log_dir),
            exchanges=None if isinstance(given, Exchange) else given,
            malicious=malicious,
        )
        self.training.account, self.overwrite, self._foreseen = account, overwrite, False
        self.record, self.record_evaluations = record, record_evaluations
        self.score_by(scores_by, direction_by=direction_by)

    def fit(self, epochs: int, *, progress: TrainingProgress | bool | None = None) -> Results:
        """Train up to a number of epochs in total, as a run of an experiment does, and return the last test figures.

        Before the first step it finds out what partners can solve for by the shapes of messages, for :meth:`judged`.

        Args:
            epochs: Epochs of the whole run, at least 1.
            progress: ``True`` shows a bar, on a terminal or in a notebook; or what is called after every step.
        """
        if not self.step and not self._foreseen and self.exchange.sums_only:
            from splitvfl.app.solving import solvable_in_python

            self._foreseen = True
            self.training.solvable = solvable_in_python(self, checked_count("epochs", epochs))
        return super().fit(epochs, progress=progress)

    @property
    def verdict(self) -> dict[str, PartyVerdict]:
        """What is concluded of the run so far, by passive party, with the usual goal: an AUC of 0.60."""
        from splitvfl.report.summary import GOAL

        return self.judged(GOAL)

    def judged(self, goal: float) -> dict[str, PartyVerdict]:
        """Return what is concluded of the run so far, by passive party: of labels, and of its features.

        Args:
            goal: The AUC that an individual label's leak is to stay below or at, from 0.5 to 1.

        Raises:
            ArgumentError: If the goal is out of its range.
        """
        # They are of finished runs, and need what writes these.
        from splitvfl.app.party_results import party_result
        from splitvfl.report.verdicts import RunFacts, party_verdict

        epochs = max(1, math.ceil(self.step / len(self.batches)))
        facts = RunFacts(
            goal=goal,
            one_way=self.exchange.one_way,
            measurable=self.exchange.shows_gradients(),
            releases=[release.name for release in self.active.label_releases],
            solvable=self.training.solvable,
        )
        figures = {
            name: party_result(
                self.training,
                self.active,
                self.exchange,
                name,
                epochs=epochs,
                more={"readings": self.column_readings(name)},
            )
            for name in self.passives
        }
        return {name: party_verdict(name, found, facts) for name, found in figures.items()}

    def predict(self, records: Any = None, *, part: Part = "test") -> Tensor:
        """Return the joint scores of records, with the weights that the models hold.

        Args:
            records: New ones: a file or a table in memory with the columns of all parties, or one for each party by
                name, as :func:`splitvfl.data.joint_records.read_joint_records` takes them. ``None``: the run's own.
            part: Of its own, ``"test"`` or ``"train"``.

        Returns:
            Scores as they are published, after defenses of activations and scores: probabilities ``(n,)`` of a binary
            task, ``(n, k)`` of ``k`` classes; values ``(n,)`` of a regression. In the records' order.

        Raises:
            ArgumentError: If the parties' columns came as numbers, so that nobody knows how to encode others.
            DataError: If records are not as the training records were.
        """
        if records is not None:
            records = read_joint_records(records, [party.data for party in self.training.parties]).records
        return super().predict(records, part=part)


def _checked_exchange(given: Exchange | Mapping[str, Exchange] | None) -> Exchange | Mapping[str, Exchange]:
    """Return an exchange, or one by party, as it was given; the usual one for none."""
    if given is None:
        return Split()
    several = given if isinstance(given, Mapping) else None
    for name, one in {"": given}.items() if several is None else several.items():
        if not isinstance(one, Exchange):
            what, also = ("", ", or a mapping with one for each party") if several is None else (f" of {name}", "")
            raise ArgumentError(
                f"expected exchange{what} as an object of splitvfl.exchange, Split(...) say{also}, got {shown(one)}"
            )
    return given


def _epochs_of_noise(exchange: Exchange | Mapping[str, Exchange], epochs: int | None) -> int | None:
    """Return for how many epochs noise that was agreed on is to be calculated; ``None``: none is.

    Raises:
        ConfigError: If it cannot be, as the number of epochs is not known.
    """
    if not isinstance(exchange, Exchange):
        return None
    agreed = exchange.noise is not None or exchange.sum_noise is not None
    if not agreed or exchange.noise_is_planned:
        return None
    if epochs is not None:
        return epochs
    if exchange.sum_noise is not None and exchange.sum_noise.sigma is not None:
        return None  # noise of that size is added, and nothing is counted
    key = "noise" if exchange.noise is not None else "sum_noise"
    raise ConfigError(
        f"exchange {exchange.name}: {key} is calculated for the epochs of the whole run: say how many they are, "
        "Trainer(..., epochs=10), and give fit the same"
    )

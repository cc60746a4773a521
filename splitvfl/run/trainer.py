"""Training: epochs of conversations between parties in this process, watched, checkpointed and resumable."""

from __future__ import annotations

import copy
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from splitvfl.claims import claims_of, is_per_record
from splitvfl.crypto.refusals import PATTERN, Refusals, journal_of
from splitvfl.cut.layer import refuse_batch_mixing
from splitvfl.cut.split_model import observe
from splitvfl.data.columns import NO_RECORDS, Records
from splitvfl.errors import ArgumentError, AttackRefused, CheckpointError, ConfigError, HookError
from splitvfl.exchange.base import Exchange, Side, evaluation_of
from splitvfl.exchange.evaluation import EvaluationPlan, passive_evaluation
from splitvfl.exchange.handshake import agreed_settings, agreement, terms_of
from splitvfl.exchange.kept import FOLDER as KEPT
from splitvfl.exchange.prediction import Prediction, predict
from splitvfl.exchange.split import Split
from splitvfl.hooks import (
    At,
    Attack,
    Defense,
    View,
    hook_name,
    moment_of,
    needs_of,
    placed,
    target_of,
)
from splitvfl.leakage.after_training import SHOWN, AfterTraining, Quiz, judge_after_training, own_copy
from splitvfl.leakage.auditing import Audit
from splitvfl.leakage.canaries import CoinLabels, check_canaries
from splitvfl.leakage.features import FeatureLeak, judge_features
from splitvfl.leakage.judging import KNOWN, Leak, LeakSummary, known_allowed
from splitvfl.leakage.monitor import Monitor
from splitvfl.leakage.watching import Watch, unused
from splitvfl.learning.batches import Batches
from splitvfl.learning.randomness import derive_seed
from splitvfl.learning.records import Ids, RecordTable
from splitvfl.learning.schedule import EarlyStopping, Schedule, Verdict
from splitvfl.messaging.conversation import Half, Recorder, converse
from splitvfl.party.attaching import attach_defense, check_labels
from splitvfl.party.party import ActiveParty, Party, PassiveParty
from splitvfl.run import checkpoint
from splitvfl.run.training import Training, TrainingProgress

NOTHING_COMES_BACK = "nothing comes back to a passive party in exchange one-way: there is nothing to see"


class _Judged:
    """A passive party's attack in an experiment: it sees the party's view, and the harness judges it.

    One that refuses, as it cannot work, is not called again.
    """

    def __init__(self, leak: Leak, labels_of: Callable[[Tensor], Tensor], refused: Callable[[str], None]) -> None:
        self.needs = leak.needs
        self._leak = leak
        self._labels_of = labels_of
        self._refused = refused
        self._asked = True

    def __call__(self, view: View, /) -> None:
        if not self._asked:
            return
        try:
            self._leak.see(view, self._labels_of(view.ids))
        except AttackRefused as error:
            self._asked = False
            self._refused(str(error))


class LabelBook:
    """The harness's labels by record id. No party but the active one, and no attack, holds them.

    Asked for the records of the step under way, it need not look them up; a table of all records, which takes 50 bytes
    for each, is made only when it is asked for others.

    Args:
        train: The active party's training records.
        canaries: Those of them that have a coin toss for a label; ``None``: none has.
    """

    def __init__(self, train: Records, *, canaries: CoinLabels | None = None) -> None:
        self._train = train
        self._canaries = canaries
        self._open: Records | None = None
        self._table: RecordTable | None = None

    def turn_to(self, batch: Records) -> None:
        """Take note of the records of the step that begins."""
        self._open = batch

    def __call__(self, ids: Tensor) -> Tensor:
        """Return the labels of these records, ``(n,)`` float64, on the ids' device.

        Raises:
            ArgumentError: If there is no training record with such an id.
        """
        batch = self._open
        if batch is not None and batch.labels is not None and _same(batch.ids, ids):
            assert batch.judged is not None
            return batch.judged.double()
        return self._looked_up(ids.cpu().numpy()).to(ids.device)

    def _looked_up(self, ids: Ids) -> Tensor:
        if self._table is None:
            self._table = RecordTable(label=np.float32)
            slots = self._table.slots(self._train.ids.cpu().numpy())
            known = self._train if self._canaries is None else self._canaries.label_all(self._train)
            assert known.judged is not None
            self._table["label"][slots] = known.judged.cpu().numpy()
        slots = self._table.find(ids)
        if (slots < 0).any():
            raise ArgumentError(f"no training record has the id {ids[slots < 0][0]}")
        return torch.from_numpy(self._table["label"][slots].astype(np.float64))


class Trainer(Training):
    """Trains one model over the columns of several parties, all in this process, and watches what leaks.

    Every label attack is run in the seat of each passive party, on what that party holds and received; the harness
    judges it. The auditor's attack is run on what the active party sends.

    Args:
        active: The party with the labels.
        passives: The other parties by name.
        defenses: Attached where each belongs. At several cuts, each cut gets its own copy. One of the activation acts
            in training, evaluations and predictions, unless :class:`~splitvfl.hooks.At` names some of them.
        attacks: Label attacks for every passive party, run at every step or, if that is what they are for, once after
            training; feature attacks run once, on the test records, at the end.
        batch_size: Records in a step.
        block_rows: Neighbouring records that are shuffled as one, see :class:`splitvfl.data.Batches`; 1 shuffles all.
        seed: Order of the records, and every party's randomness in training (dropout).
        noise_seed_for_experiments: Fixed seed of every defense's generator, for experiments only. Default: seeds from
            the operating system's entropy.
        known_positives: How many positive records an attacker is assumed to know, for attacks that need some, and is
            not judged by: at every step the first ones met, after training ones drawn with the seed. Never more than
            half of the training records of the class, so that there are others to be judged by.
        known_negatives: How many negative records it is assumed to know, likewise.
        audit: Whether to run the auditor's attack (binary tasks).
        canaries: How many training records get a coin toss for a label, at random, at least twenty: the AUC of an
            attack among them is the leak beyond the prediction (:mod:`splitvfl.leakage.canaries`). They are in no other
            figure of an attack, and never among the records that are held out or tested on. ``None``: there are none.
        log_dir: Folder for TensorBoard, ``metrics.jsonl`` and checkpoints; ``None`` keeps nothing. A folder that holds
            another run is refused, unless :meth:`resume` goes on with it or ``overwrite`` is asked for.
        overwrite: Replace the run that ``log_dir`` holds, when training starts.
        log_every: Steps between two lines of the log.
        checkpoint_every: Steps between two checkpoints, besides one after each epoch; ``None`` for no more.
        evaluate_every: Epochs between two evaluations on the test records; the last epoch always ends in one.
        early_stopping: When to end before the last epoch. Every ``validation_every``-th training record is then held
            out and evaluated too, and at the end each party has the weights of its best evaluation.
        device: Where models and batches live.
        autocast: ``torch.bfloat16`` runs the models under autocast: activations and gradients then cross in bfloat16;
            losses, defenses and attacks compute in float32. ``None``: models run as they are.
        wire: ``torch.bfloat16`` rounds activations and gradients to bfloat16 as the last thing before they cross; the
            receiver goes on in float32. ``None``: they cross as they were computed.
        exchange: How a step is talked through; by party's name where one of them deviates, in an experiment with a
            malicious party. Default: activations and gradients in the clear.
        record: Called with every message of the training steps, e.g. ``Transcript().record``; in exchange one-way,
            with everything that crosses before them.

    Raises:
        ArgumentError: If parties have no or clashing names, an attack needs what a party cannot show, or ``autocast``
            or ``wire`` is another dtype.
        ConfigError: If an attack, a defense or canaries are for binary labels and the task is another; if there are to
            be canaries without an auditor who looks for them, or where no message about one record comes back.
        DataError: If there are to be more canaries than other records.
        PrivacyError: If a guarantee per record is claimed for a model with batch-mixing layers.
    """

    def __init__(
        self,
        active: ActiveParty,
        passives: Mapping[str, PassiveParty],
        *,
        defenses: Sequence[Defense | At] = (),
        attacks: Sequence[Attack] = (),
        batch_size: int = 256,
        block_rows: int = 1,
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
        early_stopping: EarlyStopping | None = None,
        device: torch.device | str = "cpu",
        autocast: torch.dtype | None = None,
        wire: torch.dtype | None = None,
        exchange: Exchange | Mapping[str, Exchange] | None = None,
        record: Recorder | None = None,
    ) -> None:
        super().__init__(Watch(passives))
        self.active = active
        self.passives = dict(passives)
        self._check_names()
        exchanges = self._by_party(exchange or Split())
        own = exchanges[active.name]
        self.folder = None if log_dir is None else Path(log_dir)
        self._overwrite = overwrite
        self.batches = Batches(
            active.data.train.count,
            batch_size,
            seed=seed,
            block_rows=block_rows,
            held_out_every=None if early_stopping is None else early_stopping.validation_every,
        )
        self._settings = agreed_settings(
            batch_size=batch_size,
            block_rows=block_rows,
            seed=seed,
            evaluate_every=evaluate_every,
            early_stopping=early_stopping,
            exchange=own.terms(),
            autocast=autocast,
            wire=wire,
        )
        self._schedule = partial(
            Schedule,
            self.batches,
            log_every=log_every,
            checkpoint_every=checkpoint_every,
            evaluate_every=evaluate_every,
        )
        self._record = record
        self._prepare(seed, torch.device(device), autocast, wire)
        if early_stopping is not None:
            active.stop_early_by(early_stopping, self.batches.held_out)
        active.canaries = None  # of an earlier trainer
        if canaries is not None:
            read = not own.sums_only and not own.one_way
            check_canaries(active.task.name, audit=audit, exchange=own.name, read=read)
            active.place_canaries(canaries, self.batches, noise_seed_for_experiments=noise_seed_for_experiments)
        self._connect(defenses, noise_seed_for_experiments)
        self._sides = self._take_sides(exchanges)
        self.known_positives, self.known_negatives = known_allowed(
            active.judged_records, known_positives, known_negatives
        )
        self._feature_attacks = [attack for attack in attacks if target_of(attack) == "features"]
        self._watch(
            [attack for attack in attacks if target_of(attack) == "labels"],
            audit and not own.sums_only and not own.one_way,
        )
        self.after_training: dict[str, dict[str, AfterTraining]] = {name: {} for name in self.passives}
        self._quiz_seed = derive_seed(seed, "after training")
        self._begun = False

    def _check_names(self) -> None:
        if not self.passives:
            raise ArgumentError("expected at least one passive party")
        for name, party in self.passives.items():
            if party.name != name:
                raise ArgumentError(f"the party under {name!r} calls itself {party.name!r}; give both one name")
        if self.active.name in self.passives:
            raise ArgumentError(f"two parties are called {self.active.name!r}")

    def _prepare(self, seed: int, device: torch.device, autocast: torch.dtype | None, wire: torch.dtype | None) -> None:
        for party in self._parties:
            party.prepare(seed=derive_seed(seed, "party", party.name), device=device, autocast=autocast, wire=wire)

    @property
    def _parties(self) -> tuple[Party, ...]:
        return (self.active, *self.passives.values())

    def _connect(self, defenses: Sequence[Defense | At], noise_seed: int | None) -> None:
        for name in self.passives:
            self.active.connect(name)
        for number, given in enumerate(defenses):
            defense, phases = placed(given)
            if is_per_record(claims_of(defense)):
                for party in self._parties:
                    refuse_batch_mixing(party.module, defense)
            check_labels(self.active, defense)
            for party in self._parties:
                shared = party is not self.active and len(self.passives) > 1
                own = copy.deepcopy(defense) if shared else defense
                attach_defense(party, own, number=number, noise_seed=noise_seed, phases=phases)

    def _by_party(self, exchange: Exchange | Mapping[str, Exchange]) -> Mapping[str, Exchange]:
        names = (self.active.name, *self.passives)
        if isinstance(exchange, Exchange):
            return dict.fromkeys(names, exchange)
        if set(exchange) != set(names):
            raise ArgumentError(f"expected an exchange for each of {', '.join(names)}, got {', '.join(exchange)}")
        return exchange

    def _take_sides(self, exchanges: Mapping[str, Exchange]) -> dict[str, Side]:
        sides = {name: exchanges[name].passive(party, self.active.name) for name, party in self.passives.items()}
        for name, party in self.passives.items():
            party.sums_only, party.one_way = exchanges[name].sums_only, exchanges[name].one_way
        own = exchanges[self.active.name]
        own.check_private_top(self.active)
        return sides | {self.active.name: own.active(self.active)} | dict(own.third_parties(self.active.name))

    def _watch(self, attacks: Sequence[Attack], audit: bool) -> None:
        binary = self.active.task.name == "binary"
        if attacks:
            self._need_binary_labels(attacks)
        self._late_attacks = [attack for attack in attacks if moment_of(attack) == "after-training"]
        # What each bottom model was before training, to compare with; the largest tables are copied for this only.
        self._before = {name: own_copy(party.bottom) for name, party in self.passives.items() if self._late_attacks}
        if not binary:
            return
        self.labels_of = LabelBook(self.active.data.train, canaries=self.active.canaries)
        for name, party in self.passives.items():
            for attack in attacks:
                if moment_of(attack) == "every-step":
                    self._seat(party, copy.deepcopy(attack))
            if audit:
                self.watch.audits[name] = self.active.cuts[name].audit(canaries=self.active.canaries)

    def _seat(self, party: PassiveParty, attack: Attack) -> None:
        leak = Leak(
            attack, remove=lambda: party.observers.remove(observer), canaries=self.active.canaries, **self._known
        )
        observer = _Judged(leak, self.labels_of, partial(self.unavailable[party.name].__setitem__, leak.name))
        if party.one_way:
            self.unavailable[party.name][leak.name] = NOTHING_COMES_BACK
            return
        missing = sorted(leak.needs - party.shows)
        if missing:
            per_record = " per record, and the exchange shows only their sum" if missing == ["gradient"] else ""
            self.unavailable[party.name][leak.name] = f"needs {', '.join(missing)}{per_record}"
            return
        self.watch.add(party.name, leak)
        party.observers.append(observer)

    @property
    def _known(self) -> dict[str, int]:
        return {"known_positives": self.known_positives, "known_negatives": self.known_negatives}

    def _need_binary_labels(self, attacks: Sequence[Attack]) -> None:
        if self.active.task.name != "binary":
            names = ", ".join(hook_name(attack) for attack in attacks)
            raise ConfigError(f"label attacks ({names}) need binary labels, the task is {self.active.task.name}")

    def observe(self, party: str, layer: str, attack: Attack) -> Leak:
        """Let an attack watch the gradient of an earlier layer's output in a passive party's bottom model.

        Source: Li et al., ICLR 2022, arXiv:2102.08504, figure 2b.

        Args:
            party: Name of the passive party.
            layer: Name of the layer, as in ``bottom.named_modules()``.
            attack: A label attack that needs the gradient only.

        Raises:
            ArgumentError: If there is no such party or layer, or the attack needs more than the gradient.
            ConfigError: If the task is not binary.
        """
        self._need_binary_labels([attack])
        owner = self.passives.get(party)
        modules = {} if owner is None else dict(owner.bottom.named_modules())
        if owner is None or layer not in modules:
            known = sorted(self.passives) if owner is None else sorted(name for name in modules if name)
            missing = f"party {party!r}" if owner is None else f"layer {layer!r}"
            raise ArgumentError(f"no {missing}; expected one of {known}")

        if owner.one_way:
            raise ArgumentError(f"the gradient of {layer!r} cannot be watched: {NOTHING_COMES_BACK}")

        def passing() -> tuple[Tensor | None, Tensor | None]:
            ids = owner.batch_ids
            # Without gradients it is a prediction, of records whose labels the book does not hold.
            if ids is None or not torch.is_grad_enabled():
                return None, None
            return self.labels_of(ids), ids

        leak = observe(
            modules[layer], attack, party=party, passing=passing, canaries=self.active.canaries, **self._known
        )
        self.watch.add(party, leak, name=f"{leak.name}@{layer}")
        return leak

    def agree(self) -> None:
        """Let the parties compare counts, ids and settings.

        Raises:
            DataError: If they differ; every difference is named.
        """
        parties = {self.active.name: self.active.data, **{name: party.data for name, party in self.passives.items()}}
        terms = {name: terms_of(data, self._settings) for name, data in parties.items()}
        passives = tuple(self.passives)
        halves = {name: agreement(name, (self.active.name,), terms[name]) for name in passives}
        halves[self.active.name] = agreement(self.active.name, passives, terms[self.active.name])
        converse(halves)

    def fit(self, epochs: int, *, progress: TrainingProgress | None = None) -> dict[str, float]:
        """Train up to a number of epochs in total, evaluate after each, and return the last test figures.

        After :meth:`resume` it goes on where the checkpoint was taken; ``epochs`` counts from the run's beginning. With
        early stopping every party has its best weights afterwards, and the figures returned are theirs; checkpoints
        hold the weights as trained too, from which a later call with more epochs goes on. A run that was stopped early
        does not go on.

        Args:
            epochs: Epochs of the whole run, at least 1.
            progress: Called after every step.

        Returns:
            Headline figure and loss on the test records.

        Raises:
            Interrupted: At Ctrl-C, after the current step and a checkpoint.
            ConfigError: If the folder holds another run, or a defense cannot keep what it promises of a run.
            DataError: If the parties do not agree on records or settings.
            SumRefused: If a sum that was opened is none of the agreed numbers, or too many were refused in this run.
            CheckpointError: If a checkpoint cannot be written; the last good one stays.
        """
        schedule = self._schedule(epochs)
        self.active.plan_run(epochs=epochs, early_stopping=self.active.patience is not None)
        self.agree()
        if self.folder is not None and not self._begun:
            _claim(self.folder, overwrite=self._overwrite)
        for party in self._parties:
            if self.folder is not None:
                party.refusals = Refusals(party.name, journal_of(self.folder, party.name))
            party.refusals.check()
        self._monitor = Monitor(self.folder, resume_at=(self._offset, self.step) if self._begun else None)
        self._begun = True
        try:
            self._open()
            self._follow(schedule, progress or (lambda status: None))
            for party in self._parties:
                party.best.use()
            self._attack_after_training()
        finally:
            for side in self._sides.values():
                side.close()
            try:
                self._flush()
            finally:
                self._monitor.close()
        return self.test

    def _open(self) -> None:
        """Take the parties' sides of the exchange into use; of a one-way one, this is all that crosses."""
        for side in self._sides.values():
            side.keep_in(self.folder)
        one_way = any(party.one_way for party in self.passives.values())
        options: dict[str, Any] = {"turns": self._turns(), "record": self._record} if one_way else {}
        converse({name: side.open() for name, side in self._sides.items()}, **options)

    def _attack_after_training(self) -> None:
        """Run the attacks that wait for the end of training, in the seat of each passive party, and log them."""
        if not self._late_attacks:
            return
        quiz = Quiz.draw(
            replace(self.active.data, train=self.active.judged_records), seed=self._quiz_seed, **self._known
        )
        for name, party in self.passives.items():
            self.after_training[name] = {}
            for attack in self._late_attacks:
                self._attack_finished(attack, party, quiz)

    def _attack_finished(self, attack: Attack, party: PassiveParty, quiz: Quiz) -> None:
        missing = sorted(needs_of(attack) - SHOWN)
        if missing:
            self.unavailable[party.name][hook_name(attack)] = f"needs {', '.join(missing)}"
            return
        models = {"trained": party.bottom, "before": self._before[party.name]}
        try:
            found = judge_after_training(attack, party.data, quiz=quiz, step=self.step, device=party.device, **models)
        except (ArgumentError, HookError) as error:
            # It refuses this model, with the reason; a run that has just been trained is not lost for that.
            self.unavailable[party.name][hook_name(attack)] = str(error)
            return
        label = unused(hook_name(attack), self.after_training[party.name])
        self.after_training[party.name][label] = found
        self._monitor.write(self.step, found.scalars(f"{party.name}/{label}"))

    def _train_step(self, rows: Tensor) -> None:
        step = self.step
        batches = {party.name: party.train_batch(rows) for party in self._parties}
        if self.active.task.name == "binary":
            self.labels_of.turn_to(batches[self.active.name])
        halves = {name: side.step(batches.get(name, NO_RECORDS), step) for name, side in self._sides.items()}
        with self._timed():
            results = converse(halves, turns=self._turns(), record=self._record)
        self._step_taken(results[self.active.name])

    def _turns(self) -> dict[str, Any]:
        return {party.name: party.random for party in self._parties}

    def _evaluate(self, epoch: int) -> Verdict:
        plan = EvaluationPlan(validation=self.batches.held_out, test=self.active.data.test.count)
        when, side = {"step": self.step, "epoch": epoch}, self._sides[self.active.name]
        halves: dict[str, Half] = {
            name: passive_evaluation(party, plan, active=self.active.name, **when)
            for name, party in self.passives.items()
            if not party.one_way
        }
        halves[self.active.name] = evaluation_of(side, self.active, plan, **when)
        return self._evaluated(converse(halves, turns=self._turns())[self.active.name])

    @property
    def test(self) -> dict[str, float]:
        """Headline figure and loss on the test records, of the weights that the models hold; empty before any.

        With a private top these are its own, and ``"sending/auc"`` and so on those of the top that sends.
        """
        return self._of_part("test")

    @property
    def validation(self) -> dict[str, float]:
        """The same on the records that early stopping holds out; empty without it."""
        return self._of_part("validation")

    def _of_part(self, part: str) -> dict[str, float]:
        figures = self.kept if self.active.best.in_use else self.figures
        return {tag.removeprefix(f"{part}/"): value for tag, value in figures.items() if tag.startswith(f"{part}/")}

    @property
    def leaks(self) -> dict[str, dict[str, Leak]]:
        """The attacks in the seat of each passive party, by name."""
        return self.watch.leaks

    @property
    def audits(self) -> dict[str, Audit]:
        """The auditor's attack on what is sent to each passive party; none if the run has none."""
        return self.watch.audits

    @property
    def unavailable(self) -> dict[str, dict[str, str]]:
        """Attacks that could not be run, by passive party and name, with the reason."""
        return self.watch.unavailable

    def summaries(self, party: str) -> dict[str, LeakSummary]:
        """Return the figures of every attack in one passive party's seat, and of the auditor's, by name."""
        return self.watch.summaries(party)

    @property
    def worst_leak(self) -> tuple[float, str]:
        """The worst leak AUC of all attacks, per step or accumulated, and that attack's name; NaN and "" if none."""
        return self.watch.worst

    def feature_leaks(self) -> dict[str, list[FeatureLeak]]:
        """Run the feature attacks on the published scores of the test records, in the active party's seat.

        The attacker is assumed to know the passive party's weights. Only a passive party that is alone and whose
        bottom is one linear layer is attacked; others are listed in :attr:`unavailable`.
        """
        found: dict[str, list[FeatureLeak]] = {}
        reasons = {name: self._no_equations(party) for name, party in self.passives.items()}
        if not self._feature_attacks:
            return found
        prediction = None if all(reasons.values()) else predict(self.active, self.passives)
        for name, party in self.passives.items():
            for attack in self._feature_attacks:
                if prediction is None or reasons[name]:
                    self.unavailable[name][hook_name(attack)] = reasons[name]
                else:
                    view = self._prediction_view(attack, party, prediction)
                    truth = party.test_batch(torch.arange(party.data.test.count)).columns.numeric
                    found.setdefault(name, []).append(judge_features(attack, view, truth))
        return found

    def _no_equations(self, party: PassiveParty) -> str:
        if len(self.passives) > 1:
            return "needs a passive party that is alone"
        if self.active.private_top is not None:
            return "needs the scores of the top that sends, and the private one predicts"
        if not hasattr(self.active.top, "active_logits") or "aggregated_gradient" not in party.shows:
            return "needs linear models (logistic regression)"
        return ""

    def _prediction_view(self, attack: Attack, party: PassiveParty, prediction: Prediction) -> View:
        own = self.active.test_batch(torch.arange(self.active.data.test.count))
        with torch.no_grad():
            logits: Tensor = self.active.top.active_logits(own.columns.numeric)  # type: ignore[operator]
        weight, *bias = (parameter.detach() for parameter in party.bottom.parameters())
        # Whoever knows the weights knows the intercept, which is the same for all records.
        logits = logits + bias[0] if bias else logits
        flat = self.active.task.outputs == 1
        known = {
            "scores": prediction.scores,
            "active_logits": logits.squeeze(1) if flat else logits,
            "passive_weight": weight.squeeze(0) if flat else weight,
        }
        needs = needs_of(attack)
        seen = {field: value for field, value in known.items() if field in needs}
        return View(party=self.active.name, step=0, ids=own.ids, **seen)

    def save(self) -> None:
        """Write a checkpoint, if the run has a folder.

        Raises:
            CheckpointError: If it cannot be written; the last good one stays.
        """
        if self.folder is None:
            return
        self._flush()
        parts: dict[str, dict[str, Any]] = {"run": self._run_state()}
        for party in self._parties:
            parts[f"party-{party.name}"] = party.state_dict()
            parts[f"hooks-{party.name}"] = party.hook_state()
        checkpoint.save(self.folder / "checkpoints", self.step, parts)

    def _run_state(self) -> dict[str, Any]:
        return {
            **self._progress_state(),
            "settings": dict(self._settings),
            "figures": dict(self.figures),
            "best figures": dict(self.kept),
            "watch": self.watch.state_dict(),
            "sides": {name: side.state_dict() for name, side in self._sides.items()},
        }

    def resume(self) -> int:
        """Take back the newest checkpoint in the run's folder and return the number of steps done.

        Raises:
            CheckpointError: If there is none, or it belongs to another experiment.
        """
        newest = None if self.folder is None else checkpoint.latest(self.folder / "checkpoints")
        if newest is None:
            raise CheckpointError(f"there is no checkpoint in {self.folder} to resume from")
        parts = checkpoint.load(newest)
        with checkpoint.restoring(newest, what="experiment", anew="with --overwrite or another folder"):
            self._restore(parts)
        self._begun = True
        return self.step

    def _restore(self, parts: dict[str, dict[str, Any]]) -> None:
        run = parts["run"]
        if run["settings"] != self._settings:
            raise ValueError(f"it was made with {run['settings']}, this run has {self._settings}")
        for party in self._parties:
            party.load_state_dict(parts[f"party-{party.name}"])
            party.load_hook_state(parts[f"hooks-{party.name}"])
        self.watch.load_state_dict(run["watch"])
        for name, side in self._sides.items():
            side.load_state_dict(run.get("sides", {}).get(name, {}))
        self.figures, self.kept = run["figures"], run["best figures"]
        self._take_back_progress(run)


def _claim(folder: Path, *, overwrite: bool) -> None:
    """Make sure that a folder holds no run: what training would write over is refused, or removed if asked for."""
    many = [path for pattern in ("events.out.tfevents.*", PATTERN) for path in folder.glob(pattern)]
    written = [folder / "metrics.jsonl", folder / "checkpoints", folder / KEPT, *many]
    found = [path for path in written if path.exists()]
    if found and not overwrite:
        raise ConfigError(
            f"{folder} already holds a run: go on with it by trainer.resume(), replace it by overwrite=True, "
            "or name another log_dir"
        )
    for path in found:
        shutil.rmtree(path) if path.is_dir() else path.unlink()


def _same(left: Tensor, right: Tensor) -> bool:
    return left.device == right.device and torch.equal(left, right)

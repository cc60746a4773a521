"""Attacks in the seats of an experiment's passive parties: what each one sees, and who judges it."""

from __future__ import annotations

import copy
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial

import numpy as np
import torch
from torch import Tensor

from splitvfl.cut.split_model import observe
from splitvfl.data.coin_labels import CoinLabels
from splitvfl.data.columns import Records
from splitvfl.errors import ArgumentError, AttackRefused, ConfigError, HookError
from splitvfl.hooks import Attack, View, fields_in_words, hook_name, moment_of, needs_of, refusal_of, unused
from splitvfl.leakage.after_training import SHOWN, AfterTraining, Quiz, judge_after_training, own_copy
from splitvfl.leakage.judging import Leak
from splitvfl.leakage.monitor import Monitor
from splitvfl.leakage.watching import Watch
from splitvfl.learning.records import Ids, RecordTable
from splitvfl.party.party import ActiveParty, PassiveParty

SUMS_ARE_READ = "the attack residue-solving recovers labels from it"
NOTHING_COMES_BACK = "nothing comes back to a passive party in exchange one-way: there is nothing to see"


class _Judged:
    """A passive party's attack in an experiment: it sees the party's view, and the harness judges it.

    One that refuses, as it cannot work, is not called again.
    """

    def __init__(
        self,
        leak: Leak,
        labels_of: Callable[[Tensor], Tensor],
        zeros_of: Callable[[Tensor], Tensor | None],
        refused: Callable[[str], None],
    ) -> None:
        self.needs = leak.needs
        self._leak = leak
        self._labels_of, self._zeros_of = labels_of, zeros_of
        self._refused = refused
        self._asked = True

    def __call__(self, view: View, /) -> None:
        if not self._asked:
            return
        try:
            self._leak.see(view, self._labels_of(view.ids), zeros=self._zeros_of(view.ids))
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
        in_flight: How many steps back a message may belong that is looked at in the step under way.
    """

    def __init__(self, train: Records, *, canaries: CoinLabels | None = None, in_flight: int = 0) -> None:
        self._train = train
        self._canaries = canaries
        self._open: deque[Records] = deque(maxlen=1 + in_flight)
        self._table: RecordTable | None = None

    def turn_to(self, batch: Records) -> None:
        """Take note of the records of the step that begins."""
        self._open.append(batch)

    def __call__(self, ids: Tensor) -> Tensor:
        """Return the labels of these records, ``(n,)`` float64, on the ids' device.

        Raises:
            ArgumentError: If there is no training record with such an id.
        """
        for batch in self._open:
            if batch.labels is not None and _same(batch.ids, ids):
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


def _same(left: Tensor, right: Tensor) -> bool:
    return left.device == right.device and torch.equal(left, right)


class Seats:
    """Label attacks in the seat of each passive party, with everything that it holds.

    Args:
        active: The party with the labels.
        passives: The others by name: each gets a copy of every attack.
        attacks: The attacks.
        watch: Where those that watch messages are kept, and the reasons of those that could not be run.
        labels_of: The labels to judge by.
        known: How many records of each class an attacker is assumed to know, as :class:`Leak` takes it.
        seed: Draws the records that are known after training.

    Attributes:
        after_training: What attacks found that wait for the end of training, by passive party and name.
    """

    def __init__(
        self,
        active: ActiveParty,
        passives: Mapping[str, PassiveParty],
        attacks: Sequence[Attack],
        *,
        watch: Watch,
        labels_of: LabelBook,
        known: Mapping[str, int],
        seed: int,
    ) -> None:
        self._active, self._passives, self._watch, self._labels_of = active, passives, watch, labels_of
        self._known, self._seed = dict(known), seed
        self.after_training: dict[str, dict[str, AfterTraining]] = {name: {} for name in passives}
        attacks = [attack for attack in attacks if self._reads_these_labels(attack)]
        self._late = [attack for attack in attacks if moment_of(attack) == "after-training"]
        # What each bottom model was before training, to compare with; the largest tables are copied for this only.
        self._before = {name: own_copy(party.bottom) for name, party in passives.items() if self._late}
        for party in passives.values():
            for attack in attacks:
                if moment_of(attack) == "every-step":
                    self._seat(party, copy.deepcopy(attack))

    def _seat(self, party: PassiveParty, attack: Attack) -> None:
        leak = Leak(
            attack,
            remove=lambda: party.observers.remove(observer),
            canaries=self._active.training_labels.canaries,
            classes=self._active.task.classes,
            **self._known,
        )
        refused = partial(self._watch.unavailable[party.name].__setitem__, leak.name)
        observer = _Judged(leak, self._labels_of, self._active.zeros_among, refused)
        if party.one_way:
            self._watch.unavailable[party.name][leak.name] = NOTHING_COMES_BACK
            return
        missing = sorted(leak.needs - self._shown_to(party))
        if missing:
            summed = missing == ["gradient"] and "aggregated_gradient" in party.shows
            sum_alone = f", and the exchange shows only their sum; {SUMS_ARE_READ}" if summed else ""
            self._watch.unavailable[party.name][leak.name] = f"needs {', '.join(fields_in_words(missing))}{sum_alone}"
            return
        self._watch.add(party.name, leak)
        party.observers.append(observer)

    def _shown_to(self, party: PassiveParty) -> frozenset[str]:
        """Return the view fields that a party's attacks can have: the model's logits too where its own part is all."""
        adds_nothing = getattr(self._active.top, "adds_nothing", False)
        alone = len(self._passives) == 1 and adds_nothing and not len(party.activation["training"])
        return party.shows | ({"logits"} if alone else frozenset())

    def _reads_these_labels(self, attack: Attack) -> bool:
        """Return whether an attack reads labels of the task; note why where it does not."""
        refused = refusal_of(attack, self._active.task.name)
        if refused:
            for named in self._watch.unavailable.values():
                named[hook_name(attack)] = refused
        return not refused

    def observe(self, party: str, layer: str, attack: Attack) -> Leak:
        """Let an attack watch an earlier layer's gradient, as :meth:`~splitvfl.Trainer.observe` says."""
        refused = refusal_of(attack, self._active.task.name)
        if refused:
            raise ConfigError(f"attack {hook_name(attack)}: {refused}")
        owner = self._passives.get(party)
        modules = {} if owner is None else dict(owner.bottom.named_modules())
        if owner is None or layer not in modules:
            known = sorted(self._passives) if owner is None else sorted(name for name in modules if name)
            missing = f"party {party!r}" if owner is None else f"layer {layer!r}"
            raise ArgumentError(f"no {missing}; expected one of {known}")

        if owner.one_way:
            raise ArgumentError(f"the gradient of {layer!r} cannot be watched: {NOTHING_COMES_BACK}")

        def passing() -> tuple[Tensor | None, Tensor | None]:
            ids = owner.batch_ids
            # Without gradients it is a prediction, of records whose labels the book does not hold.
            if ids is None or not torch.is_grad_enabled():
                return None, None
            return self._labels_of(ids), ids

        leak = observe(
            modules[layer],
            attack,
            party=party,
            passing=passing,
            canaries=self._active.training_labels.canaries,
            classes=self._active.task.classes,
            **self._known,
        )
        self._watch.add(party, leak, name=f"{leak.name}@{layer}")
        return leak

    def attack_after_training(self, step: int, monitor: Monitor) -> None:
        """Run the attacks that wait for the end of training, and log what they find.

        Args:
            step: Number of steps done.
            monitor: The log.
        """
        if not self._late:
            return
        quiz = Quiz.draw(
            replace(self._active.data, train=self._active.training_labels.judged_records),
            seed=self._seed,
            classes=self._active.task.classes,
            **self._known,
        )
        for name, party in self._passives.items():
            self.after_training[name] = {}
            for attack in self._late:
                label = unused(hook_name(attack), self.after_training[name])
                found = self._found_after_training(attack, party, quiz, step)
                if found is not None:
                    self.after_training[name][label] = found
                    monitor.write(step, found.scalars(f"{name}/{label}"))

    def _found_after_training(self, attack: Attack, party: PassiveParty, quiz: Quiz, step: int) -> AfterTraining | None:
        missing = sorted(needs_of(attack) - SHOWN)
        if missing:
            self._watch.unavailable[party.name][hook_name(attack)] = f"needs {', '.join(fields_in_words(missing))}"
            return None
        models = {"trained": party.bottom, "before": self._before[party.name]}
        try:
            return judge_after_training(attack, party.data, quiz=quiz, step=step, device=party.device, **models)
        except (ArgumentError, HookError) as error:
            # It refuses this model, with the reason; a run that has just been trained is not lost for that.
            self._watch.unavailable[party.name][hook_name(attack)] = str(error)
            return None

"""A training whose models are saved, score records, and are known again where an older version trained them."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any

from torch import Tensor

from splitvfl.data.columns import Provenance, Records
from splitvfl.data.digests import encoded_digest
from splitvfl.exchange.handshake import TaskSpec
from splitvfl.exchange.prediction import Part, Prediction, predict, predict_records
from splitvfl.exchange.scoring import ACTIVE
from splitvfl.learning.settings import Settings
from splitvfl.party.direction import check_awaited
from splitvfl.party.party import ActiveParty, Party, PassiveParty
from splitvfl.run.half_folder import HALF_FILE, MODEL_FOLDER, Origin, read_half_schema, save_halves
from splitvfl.run.ledger_file import LEDGER_FOLDER, run_of
from splitvfl.run.trainer import Trainer


@dataclass(frozen=True, kw_only=True)
class MadeBy:
    """The sections of an experiment that a party's half was made by; ``None``: it was made in Python.

    Attributes:
        model: That on its model.
        loss: At the active party that on the loss, if there is one.
    """

    model: Settings | None = None
    loss: Settings | None = None


class SavingTrainer(Trainer):
    """A :class:`splitvfl.run.trainer.Trainer` that saves its models, and scores its records with them.

    Attributes:
        made_by: The sections of an experiment that the parties' halves were made by, for those who read them again.
    """

    made_by: Mapping[str, MadeBy] = MappingProxyType({})
    _scores_by = ACTIVE
    _direction_by: str | None = None

    def score_by(self, scores_by: str, *, direction_by: str | None) -> None:
        """Say who takes part in :meth:`predict`.

        Args:
            scores_by: Who computes scores, as for :func:`splitvfl.exchange.prediction.predict_records`.
            direction_by: The passive party that sends a direction of noise on scores, likewise; ``None``: nobody does.

        Raises:
            ConfigError: If a direction is to be sent that no defense of scores awaits.
        """
        if direction_by is not None:
            check_awaited(self.active.scores, direction_by)
        self._scores_by, self._direction_by = scores_by, direction_by

    def predict(self, records: Mapping[str, Records] | None = None, *, part: Part = "test") -> Tensor:
        """Return the joint scores of records, with the weights that the models hold.

        Args:
            records: Of each party by name, encoded as its training records were. ``None``: the run's own.
            part: Of its own, ``"test"`` or ``"train"``.

        Returns:
            Scores as they are published, after defenses of activations and scores: probabilities ``(n,)`` of a binary
            task, ``(n, k)`` of ``k`` classes; values ``(n,)`` of a regression. In the records' order.
        """
        scores: Callable[..., Prediction] = partial(predict, part=part)
        if records is not None:
            scores = partial(predict_records, records=records)
        found = scores(self.active, self.passives, scores_by=self._scores_by, direction_by=self._direction_by)
        return found.scores

    def save(self, folder: str | Path) -> None:
        """Write the trained half of each party, ready to predict: :func:`splitvfl.load_run` reads them.

        Each is in a folder of its party's name (:mod:`splitvfl.run.half_folder`). Weights are those that the models
        hold: after :meth:`fit` with early stopping the best; of a private top its own. Models that were made in Python
        are to be given again when they are read: no code is written. Defenses are not part of a half.

        Args:
            folder: The folder to be made; earlier halves in it are replaced, all together.

        Raises:
            CheckpointError: If they cannot be written; earlier ones stay.
            DataError: If something else is in the folder.
        """
        task, alone = self.active.task, self.exchange.one_way  # as over a network, where steps are told to nobody
        moment = {
            "learned": TaskSpec(task.name, task.outputs),
            "run": self.number,
            "step": 0 if alone else self.step,
            "epoch": 0 if alone else self.kept_epoch or math.ceil(self.step / len(self.batches)),
        }
        self.active.widths = {name: party.output_width() for name, party in self.passives.items()}
        parties: list[ActiveParty | PassiveParty] = [self.active, *self.passives.values()]
        made = {party.name: self.made_by.get(party.name, MadeBy()) for party in parties}
        save_halves(
            Path(folder), {party.name: (party, _origin(party, made[party.name], **moment)) for party in parties}
        )

    def _number_of_older(self, folder: Path) -> str:
        """Return the number of a run whose checkpoint does not say it.

        It is that of its ledgers, where passive parties count under it; else that of its model. Older versions gave
        every model another one.
        """
        counted = {run_of(ledger) for ledger in (folder / LEDGER_FOLDER).glob("*")} - {""}
        if len(counted) == 1:
            return counted.pop()
        saved = {read_half_schema(half.parent).run for half in (folder / MODEL_FOLDER).glob(f"*/{HALF_FILE}")}
        return saved.pop() if len(saved) == 1 else self.number


def _origin(party: Party, made: MadeBy, **moment: Any) -> Origin:
    own = party.data.provenance or Provenance()
    return Origin(
        model=made.model,
        loss=made.loss,
        encoding=own.encoding,
        id_column=own.id_column,
        id_rule=own.id_rule,
        tables=own.tables,
        test=encoded_digest(party.data.test),
        **moment,
    )

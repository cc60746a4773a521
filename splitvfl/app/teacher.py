"""Who teaches a student: the joint model of a finished run, or a file of what it said."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from splitvfl.app.records import own_data
from splitvfl.app.run_files import MODEL_FOLDER
from splitvfl.app.saved_model import SavedHalf, load_half
from splitvfl.app.saved_run import SavedRun, load_run, run_config
from splitvfl.config.module_sources import Modules
from splitvfl.config.sections import DataConfig
from splitvfl.data.alignment import read_alignment
from splitvfl.data.columns import PartyData, Provenance, Records
from splitvfl.data.id_rules import FIRST_RULE, RuleVersion
from splitvfl.data.new_records import ids_from
from splitvfl.data.old_ids import of_names
from splitvfl.data.sources import read_table
from splitvfl.data.tables import Rows, column_of, listed, numbers
from splitvfl.errors import ConfigError, DataError
from splitvfl.exchange.scoring import ACTIVE
from splitvfl.run.half_folder import is_half


class Teacher(ABC):
    """The label party's records, and what a joint model says of them.

    Attributes:
        half: Its half of that model.
        data: Its records, with true labels.
        device: Where a model may be trained, as an experiment says it.
    """

    half: SavedHalf
    data: PartyData
    device: str

    @abstractmethod
    def train_scores(self) -> Tensor:
        """Return the joint scores of the training records, ``(n,)`` or ``(n, k)``; anything for dummies."""

    @abstractmethod
    def test_scores(self) -> Tensor | None:
        """Return those of the test records; ``None``: nobody has them."""


def teacher_of(
    folder: Path, scores: Path | None, modules: Modules, notify: Callable[[str], None] = lambda line: None
) -> Teacher:
    """Return the joint model of a run's folder.

    Args:
        folder: The folder.
        scores: Over a network: the file of its scores.
        modules: Where classes of your own are defined, as :func:`splitvfl.load_run` takes them.
        notify: Told in one line what scoring does to what was promised of the training.

    Raises:
        ConfigError: If scores are missing, or given where none are needed; or this is not the label party.
        DataError: If the run's data have changed.
        CheckpointError: If there are no trained halves.
    """
    if is_half(folder / MODEL_FOLDER):
        return _Networked(folder, scores, modules)
    if scores is not None:
        raise ConfigError(f"--scores: {folder} is a run in one process, which scores its records itself; leave it out")
    return _InOneProcess(load_run(folder, modules=modules), notify)


class _InOneProcess(Teacher):
    """A run of all parties: the joint model is there."""

    def __init__(self, run: SavedRun, notify: Callable[[str], None]) -> None:
        if not run.passives:
            raise ConfigError(f"{run.folder} is a model of one party, and there is nothing to distil")
        tests = run.own_tests()  # which checks that the data are those of the training
        assert run.config is not None, "else there are no own tests"
        self.half, self.device = run.halves[run.active.name], run.config.train.device
        self.data = run.own_data.active
        self._run, self._tests, self._notify = run, tests, notify

    def train_scores(self) -> Tensor:
        own = self._run.own_data
        return self._scores({name: own[name].train for name in self._run.halves})

    def test_scores(self) -> Tensor:
        return self._scores(self._tests.records)

    def _scores(self, records: Mapping[str, Records]) -> Tensor:
        # A student takes all training records or none.
        self._run.count_release(records[self.data.name].count, notify=self._notify, not_covered=True)
        found = self._run.outputs(self._run.bounded(records))
        if self._run.scores_by != ACTIVE:  # the label party has nothing but what it is answered, defended
            return found.scores.float().cpu()
        # Before defenses of scores, which are for others.
        outputs = found.outputs
        return self._run.active.task.loss.scores(outputs).float().cpu()


class _Networked(Teacher):
    """The label party of a run over a network: of the joint model there are its half, and a file of scores."""

    def __init__(self, folder: Path, scores: Path | None, modules: Modules) -> None:
        self.half = load_half(folder / MODEL_FOLDER)
        schema = self.half.schema
        if schema.role != "active":
            raise ConfigError(f"{folder} is the run of {schema.party}, a passive party; the label party distils")
        if scores is None:
            raise ConfigError(
                f"--scores: {folder} is a run over a network; give the joint model's scores of the training records: "
                f"splitvfl predict EXPERIMENT --as {schema.party} --records FILE --out scores.csv, with the files that "
                "the parties trained on"
            )
        config = run_config(folder, modules)
        assert config is not None, "a run over a network writes it first"
        config = config.keeping_ids(schema.rule_of_ids, schema.divided_by)
        own = own_data(config, schema.party)
        self.data, self.device = own.data, config.train.device
        fitted = (own.data.provenance or Provenance()).encoding
        if schema.encoding is not None and not schema.encoding.encodes_like(fitted):
            raise DataError(f"the training records of {schema.party} have changed since the run in {folder}")
        self._scores = _ScoreFile(
            scores, schema.outputs, schema.party, config.data, config.id_column_of(schema.party), config.id_rule
        )

    def train_scores(self) -> Tensor:
        return self._of(self.data.train)

    def test_scores(self) -> Tensor | None:
        test = self.data.test
        return self._of(test) if self._scores.has(test.ids[_real(test)]) else None

    def _of(self, records: Records) -> Tensor:
        found = torch.zeros(records.count, self.half.schema.outputs)
        found[_real(records)] = self._scores.of(records.ids[_real(records)])
        return found.squeeze(1)


def _real(records: Records) -> Tensor:
    return torch.ones(records.count, dtype=torch.bool) if records.real is None else records.real


class _ScoreFile:
    """Scores by record id, as ``splitvfl predict`` writes them: first the names of records, then the scores."""

    def __init__(
        self, path: Path, outputs: int, party: str, data: DataConfig, id_column: str | None, rule: RuleVersion
    ) -> None:
        self._name = path.name
        head = read_table(path)
        column = head.column_names[0]
        table = read_table(path, text=set() if id_column is None else {column})
        names = ["score"] if outputs == 1 else [f"score_{number}" for number in range(outputs)]
        if table.column_names[1:] != names:
            raise DataError(
                f"{self._name}: expected a column that names the records and then {', '.join(names)}, as splitvfl "
                f"predict writes them, got {listed(table.column_names)}"
            )
        given = table.column(column).chunk(0)
        first = rule == FIRST_RULE and data.aligned is None
        source = f"id column {column!r} of {self._name}"
        ids = of_names(given, source=source) if first else ids_from(given, column, self._name)
        if data.aligned is not None:
            assert data.path is not None, "an alignment is of a file"
            ids = _aligned_ids(ids, data.aligned, data.path, party)
        self._order = np.argsort(ids, kind="stable")
        self._ids = ids[self._order]
        values = [numbers(column_of(table, name, source=self._name)) for name in names]
        self._values = torch.from_numpy(np.stack(values, axis=1)[self._order]).float()

    def has(self, ids: Tensor) -> bool:
        """Return whether there is a score for each of these records."""
        return bool(len(ids)) and not len(self._missing(ids))

    def of(self, ids: Tensor) -> Tensor:
        """Return the scores of these records, ``(n, k)``."""
        missing = self._missing(ids)
        if len(missing):
            raise DataError(
                f"{self._name} has no score for {len(missing)} of {len(ids)} training records; score the files that "
                "the parties trained on, all of their records"
            )
        return self._values[torch.from_numpy(np.searchsorted(self._ids, ids.numpy()))]

    def _missing(self, ids: Tensor) -> Rows:
        missing: Rows = np.setdiff1d(ids.numpy(), self._ids)
        return missing


def _aligned_ids(ids: Rows, aligned: str, path: str, party: str) -> Rows:
    """Return the numbers that an alignment gave to records, by the ids of the party's file; 0 and below: to none."""
    alignment = read_alignment(aligned)
    column = alignment.schema.id_column
    names = column_of(read_table(Path(path), text={column}), column, source=path)
    real = alignment.rows >= 0
    own = ids_from(names, column, path)[alignment.rows[real]]
    order = np.argsort(own, kind="stable")
    places = np.minimum(np.searchsorted(own, ids, sorter=order), len(order) - 1)
    rows = order[places]
    known = own[rows] == ids
    if not known.all():
        raise DataError(f"the scores are of {int((~known).sum())} records that {party} has not aligned")
    found: Rows = alignment.ids[real][rows]
    return found

"""A finished run, ready to predict: the trained halves of all its parties, in one process.

Such a folder holds what no single party of a networked run has: the halves of all of them. It belongs to an
experiment, and is nothing to hand to a partner; its half alone is.
"""

from __future__ import annotations

import copy
import os
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import pyarrow as pa
import torch
from torch import Tensor, nn

from splitvfl.app.counting import Counting
from splitvfl.app.promised_predictions import AfterTraining, add_noise, parts_of_logits, put_by, was_promised
from splitvfl.app.records import load_data, own_data
from splitvfl.app.run_files import CONFIG_FILE, MODEL_FOLDER
from splitvfl.app.saved_model import SavedHalf, load_half
from splitvfl.app.score_drift import saturation, score_shifts, warn_of_drift
from splitvfl.app.scoring import loss_of_half, memoised_noise
from splitvfl.app.serving import defend_predictions
from splitvfl.config.module_sources import Modules, own_folder, untrusted_run
from splitvfl.config.sections import ExperimentConfig, kept_text, parse_config
from splitvfl.data.columns import PartyData, Records, VerticalData
from splitvfl.data.digests import encoded_digest
from splitvfl.data.drift import ColumnDrift, Saturation, check_drift
from splitvfl.data.encoding import FittedEncoding, same_numbers
from splitvfl.data.formulas import check_no_formulas, formulas_said
from splitvfl.data.id_column import ids_in_table, names_kept, whole_number
from splitvfl.data.id_rules import FIRST_RULE, SplitBy
from splitvfl.data.joint_records import ID_COLUMN, JointRecords, own_tables, read_joint_records
from splitvfl.data.new_records import ROW_COLUMN, NamedBy, named_in_tables
from splitvfl.data.partition import meant_by, patterns
from splitvfl.data.sets import TABLES
from splitvfl.data.sources import open_one, read_whole
from splitvfl.data.tables import column_of, is_text
from splitvfl.errors import ArgumentError, CheckpointError, DataError
from splitvfl.exchange.prediction import Prediction, predict_records
from splitvfl.exchange.scoring import ACTIVE
from splitvfl.learning.devices import choose_device
from splitvfl.learning.losses import Loss
from splitvfl.party.memoised import check_memoised
from splitvfl.party.party import ActiveParty, PassiveParty
from splitvfl.run.half_folder import HALF_FILE, is_half
from splitvfl.run.ledger import ScoreLimits
from splitvfl.run.replacement import how_to_go_on

_P = TypeVar("_P", ActiveParty, PassiveParty)

_NAMED = 5  # runs in an error


@dataclass(frozen=True, eq=False)
class ScoredRecords:
    """Scores beside the names of their records.

    Attributes:
        scores: ``(n,)``, or ``(n, k)`` of ``k`` classes.
        name_column: What the column is called that names the records.
        names: What it holds, in the order of the scores.
        unknown: Records with a category that training did not know, by party and column.
        drift: How columns differ from the training, by party, those that differ most first. Empty of the run's own
            test records.
        saturation: How many scores are exactly 0 or 1; of several classes, how many records have a score of 1. ``None``
            where scores are no probabilities, or a defense changes them.
        shifts: Why the scores are no probabilities of the labels, in sentences, as after some defenses; none: they are
            estimates of these.
    """

    scores: Tensor
    name_column: str
    names: pa.Array
    unknown: Mapping[str, Mapping[str, int]]
    drift: Mapping[str, tuple[ColumnDrift, ...]] = field(default_factory=dict)
    saturation: Saturation | None = None
    shifts: tuple[str, ...] = ()

    @property
    def formulas(self) -> str:
        """Names that a spreadsheet takes for formulas, in a sentence for who writes them to a CSV file; or nothing."""
        return formulas_said(self.names, name_column=self.name_column)


class SavedRun:
    """The parties of a finished run, with their trained models: frozen, and without records of their own.

    Args:
        folder: Where it was found.
        active: The label party.
        passives: The others by name; none of a student, which predicts alone.
        halves: What they were made of, by party.
        config: The experiment, if its folder says so.
        given_loss: Name of the class of a loss that was given in Python; empty: the half's.

    Attributes:
        folder: As given.
        active: As given.
        passives: As given.
        halves: As given.
        config: As given.
        given_loss: As given.
    """

    def __init__(
        self,
        folder: Path,
        active: ActiveParty,
        passives: Mapping[str, PassiveParty],
        *,
        halves: Mapping[str, SavedHalf],
        config: ExperimentConfig | None,
        given_loss: str = "",
    ) -> None:
        self.folder, self.halves, self.config, self.given_loss = folder, dict(halves), config, given_loss
        self.active, self.passives = active, dict(passives)
        self._one_at_a_time = threading.Lock()

    def __repr__(self) -> str:
        """Return where it lies, and whose halves it holds."""
        return f"SavedRun({os.fspath(self.folder)!r}, {', '.join(self.halves)})"

    def predict(self, records: Any = None, *, id_column: str | None = None) -> Tensor:
        """Return the scores of records, in their order; arguments and errors as of :meth:`score`.

        Returns:
            Probabilities ``(n,)`` of a binary task, ``(n, k)`` of ``k`` classes; values ``(n,)`` of a regression. After
            the experiment's defenses of predictions, as the parties would compute them over a network.

        Warns:
            DoubtWarning: If a column has drifted since the training, or more than half of the scores are exactly 0 or
                1; :meth:`score` returns this beside the scores.
        """
        found = self.score(records, id_column=id_column)
        warn_of_drift(found.drift, found.saturation)
        return found.scores

    def score(
        self,
        records: Any = None,
        *,
        id_column: str | None = None,
        not_covered: bool = False,
        strict_ids: bool = False,
        fail_on_drift: float | None = None,
        notify: Callable[[str], None] = lambda line: None,
    ) -> ScoredRecords:
        """Return the scores of records beside their names.

        Where noise was calculated for the training, it is counted in the run's folder as what the parties would send
        each other.

        Args:
            records: A file or a table in memory with the columns of all parties, or a mapping from their names to one
                for each, as :func:`splitvfl.data.joint_records.read_joint_records` takes them. ``None``: the test
                records that the run was trained beside, if its data are there and unchanged.
            id_column: Column that names the records. Default: that of the training.
            not_covered: Whether to score more records than a training with calculated noise put some by for.
            strict_ids: Whether to refuse records whose names a spreadsheet takes for formulas, before any is counted.
            fail_on_drift: Refuse records, before any is counted, of which a column has a stability index beyond this
                and chance, or more than 5 % of new values (:mod:`splitvfl.data.drift`). ``None``: score them.
            notify: Told in one line what that does to what was promised of the training.

        Raises:
            ArgumentError: If the parties' columns came as numbers, so that nobody knows how to encode others; or the
                threshold of drift is not above 0.
            DriftError: If records have drifted, and may not; or more than half of their scores are exactly 0 or 1.
            DataError: If records are not as the training records were, or the run's own have changed, or names are
                refused.
            CheckpointError: If what crosses cannot be counted.
            PrivacyError: If the training put noise by for fewer records.
            LimitError: If a passive party lets no more of these be scored, as the experiment says.
        """
        found = self.own_tests() if records is None else self._read(records, id_column)
        if strict_ids:
            check_no_formulas(found.names, name_column=found.name_column)
        if fail_on_drift is not None:
            check_drift(found.drift, fail_on_drift)
        self.count_release(len(found.names), notify=notify, not_covered=not_covered)
        with self._counted(found, notify):
            scores = self.outputs(found.records).scores.float().cpu()
        before = self.halves[self.active.name].schema.saturated
        ends = saturation(self.active, scores, found.drift, in_training=None if before is msgspec.UNSET else before)
        if fail_on_drift is not None and ends is not None:
            ends.check()
        return ScoredRecords(
            scores, found.name_column, found.names, found.unknown, found.drift, ends, self.score_shifts
        )

    @property
    def score_shifts(self) -> tuple[str, ...]:
        """Why scores are no probabilities of the labels, in sentences; none: they are estimates of these."""
        defenses = [] if self.config is None else self.config.found_defenses
        private_top = self.config is not None and self.config.model.recipe.private_top
        return score_shifts(self.active, self.halves[self.active.name], defenses, private_top=private_top)

    @contextmanager
    def _counted(self, found: JointRecords, notify: Callable[[str], None]) -> Iterator[None]:
        """Let each passive party count records in a ledger of its own for a block, as it would over a network."""
        with self._one_at_a_time:
            for name, party in self.passives.items():
                counting = Counting(self.halves[name], self.folder, self.active.name, self.scorer, notify=notify)
                if self.config is not None:
                    limits = ScoreLimits(**self.config.prediction.limits)
                    counting = replace(counting, limits=limits, defenses=self.config.found_defenses)
                party.tally = counting.call(found.names, found.named_by, records=len(found.names))
            try:
                yield
            finally:
                for party in self.passives.values():
                    party.tally = None

    @property
    def scorer(self) -> str:
        """Name of who computes the scores."""
        return self.active.name if self.scores_by == ACTIVE else self.scores_by

    def count_release(
        self, records: int, *, notify: Callable[[str], None] = lambda line: None, not_covered: bool = False
    ) -> None:
        """Count records that are about to be scored, where noise was calculated for the training; as in :meth:`score`.

        Raises:
            CheckpointError: If it cannot be counted.
            PrivacyError: If the training put noise by for fewer records.
        """
        if not self.passives or self.config is None or not was_promised(self.folder, self.config.exchange):
            return
        crosses = [parts_of_logits(tuple(self.passives), self.active.name, records)]
        AfterTraining(self.folder, crosses, put_by(self.folder, self.config.exchange), not_covered, notify).begin()

    def outputs(self, records: Mapping[str, Records]) -> Prediction:
        """Return the label party's outputs and scores of records that are encoded, by party.

        It has no outputs where the experiment lets somebody else compute the scores.
        """
        if self.config is not None and self.config.prediction.memoised and self.active.score_noise is None:
            check_memoised(self.active.scores)
            loss = self.given_loss or loss_of_half(
                self.halves[self.active.name], model=self.config.model, own=self.config.train.loss
            )
            self.active.score_noise = memoised_noise(
                self.config.found_defenses, self.folder, loss=loss, source=self.config.source
            )
        return predict_records(
            self.active, self.passives, records, scores_by=self.scores_by, direction_by=self._direction_by
        )

    @property
    def scores_by(self) -> str:
        """Who computes the scores, as the experiment says; of a run without one the label party."""
        return ACTIVE if self.config is None or not self.passives else self.config.prediction.scores_by

    @property
    def _direction_by(self) -> str | None:
        return None if self.config is None or not self.passives else self.config.prediction.direction_by

    def _read(self, records: Any, id_column: str | None) -> JointRecords:
        parties = [self.active.data, *(party.data for party in self.passives.values())]
        return read_joint_records(records, parties, id_column=id_column)

    # --- the run's own records

    def own_tests(self) -> JointRecords:
        """Return the run's own test records.

        Raises:
            DataError: If nobody knows which they were, or they have changed.
        """
        data = self._same_data("give the records to score (--records, or predict(records))")
        records = {name: data[name].test for name in self.halves}
        column, names, named = self._names(data.active.test.ids)
        return JointRecords(self.bounded(records), column, names, {}, named)

    def _same_data(self, remedy: str) -> VerticalData:
        data = self.own_data
        for name, half in self.halves.items():
            _check_same(data[name], half, remedy)
        return data

    @property
    def over_a_network(self) -> bool:
        """Whether the halves were trained by parties of their own, so that they do not say which records they saw."""
        return any(half.schema.test is msgspec.UNSET for half in self.halves.values())

    def beside_own_records(self) -> SavedRun:
        """Return the same run, whose parties hold the training and test records of the run again.

        Of a run over a network they are those that the experiment beside the halves names, each party's read as that
        party reads them; nobody can tell whether they have changed.

        Raises:
            DataError: If nobody knows which they were, they have changed, or parties hold different ones.
        """
        if self.config is None:
            raise DataError(
                f"{self.folder} has no {CONFIG_FILE}, which would say where the records of all parties are; put the "
                "experiment there"
            )
        if self.over_a_network:
            data = {name: own_data(self.config, name).data for name in self.halves}
            self._check_audited(data, self.config.source)
        else:
            whole = self._same_data("train again, or bring back the data")
            data = {name: whole[name] for name in self.halves}
        active = _with_records(self.active, data[self.active.name])
        found = {name: _with_records(party, data[name]) for name, party in self.passives.items()}
        return SavedRun(self.folder, active, found, halves=self.halves, config=self.config, given_loss=self.given_loss)

    def _check_audited(self, data: Mapping[str, PartyData], source: str) -> None:
        """Refuse data that the halves were not trained on, or of which parties hold different records."""
        for name, half in self.halves.items():
            encoding = _encoding_of(data[name])
            if half.schema.encoding is not None and not half.schema.encoding.encodes_like(encoding):
                raise DataError(
                    f"the records of {name} in {source} are encoded otherwise than those that its half was "
                    "trained on: other records, or other settings of data"
                )
        first = data[self.active.name]
        for name, held in data.items():
            if not (torch.equal(held.train.ids, first.train.ids) and torch.equal(held.test.ids, first.test.ids)):
                raise DataError(f"{self.active.name} and {name} hold different records in {source}")

    def bounded(self, records: Mapping[str, Records]) -> dict[str, Records]:
        """Return records as the models take them: without labels, transformed by their party, and of a model's norm."""
        parts = {party.name: party.data.test for party in (self.active, *self.passives.values())}
        return {name: replace(own, labels=None).taken_like(parts[name]) for name, own in records.items()}

    @cached_property
    def own_data(self) -> VerticalData:
        """The data of the run's experiment, loaded anew.

        Raises:
            DataError: If nobody knows which they were, or they are not there any more.
        """
        if self.config is None:
            raise DataError(
                f"{self.folder} does not say which records it was tested on; give new ones (--records, or "
                "predict(records))"
            )
        return load_data(self.config)

    def names_of(self, ids: Tensor) -> list[object]:
        """Return what the run's own records of these ids are called: as its id column has it, or else by the ids."""
        names: list[object] = self._names(ids)[1].to_pylist()
        return names

    def _names(self, ids: Tensor) -> tuple[str, pa.Array, NamedBy]:
        """Return what names the run's own records: the column, what it holds of them, and what that is."""
        config = self.config
        assert config is not None, "its data were loaded"
        numbers = pa.array(ids.numpy())
        column, path = config.id_column_of(config.active), config.parties[config.active].path or config.data.path
        if path is None:
            return ID_COLUMN, numbers, "ids"  # of one set, which is always the same
        if config.data.name == TABLES:
            return ID_COLUMN, numbers, named_in_tables(own_tables(Path(path), config.active))
        if column is None:
            return ROW_COLUMN, numbers, "rows"
        source = open_one(Path(path))
        # As training read it: of text ids the numbers of records are those of rows.
        known, wanted = frozenset(source.names), patterns(config.data.text or ())
        text = {name for one in wanted for name in ([one] if one in known else meant_by(one, source.names))}
        first = config.id_rule == FIRST_RULE
        cells = column_of(read_whole(source, text=text if first else {column}), column, source=source.name)
        names = cells if first else names_kept(cells, column, source.name)
        # Ids that are all whole numbers are what records are known by.
        written = None if first else ids_in_table(cells, column, source.name)
        if (None not in map(whole_number, written)) if written is not None else not is_text(cells):
            return column, numbers, "ids"
        data = self.own_data.active
        if len(names) > data.train.count + data.test.count:  # records that another table lacks were left out first
            return ROW_COLUMN, numbers, "rows"
        return column, names.take(numbers), "ids"


def _with_records(party: _P, data: PartyData) -> _P:
    """Return a party with records, taken as its model takes them."""
    found = copy.copy(party)
    parts = (data.train.taken_like(party.data.train), data.test.taken_like(party.data.test))
    found.data = replace(data, train=parts[0], test=parts[1])
    return found


def _check_same(data: PartyData, half: SavedHalf, remedy: str) -> None:
    # Tables have one encoding, which cannot change without the records.
    if encoded_digest(data.test) != half.schema.test or not same_numbers(_encoding_of(data), half.schema.encoding):
        raise DataError(
            f"the records of {half.schema.party} are not those of the run in {half.folder.parent}: its data, or how "
            f"they are read, have changed since; {remedy}"
        )


def _encoding_of(data: PartyData) -> FittedEncoding | None:
    return None if data.provenance is None else data.provenance.encoding


# --- reading


def load_run(
    folder: str | os.PathLike[str],
    *,
    models: Mapping[str, nn.Module] | None = None,
    loss: Loss | None = None,
    modules: Modules = None,
    device: str = "auto",
) -> SavedRun:
    """Return the parties of a finished run, ready to predict.

    Args:
        folder: The folder of a run in one process, as ``splitvfl train`` writes it, or one that
            :meth:`splitvfl.Trainer.save` wrote.
        models: Modules that take the saved weights, by party: needed where they were made in Python. They are frozen.
        loss: The label party's loss, where it was made in Python and predicts otherwise than the usual one.
        modules: Folders of your own modules with models, losses and defenses that the run's ``experiment.yaml`` names
            as ``module:Class``, and installed packages as ``"package:NAME"``; default: the current folder. Only classes
            that are defined there count. No code is taken from the run folder, which may come from somebody else.
        device: ``"auto"``, ``"cpu"`` or ``"cuda"``.

    Raises:
        CheckpointError: If there are no trained halves, one is damaged, or they are of different runs.
        ConfigError: If a model of one's own is not found, would come from the run's folder, or has to be given.

    >>> load_run("runs/credit").predict("new.csv")  # doctest: +SKIP
    tensor([0.0312, 0.8791, 0.1034])
    """
    path = Path(folder)
    halves = _in_order({half.schema.party: half for half in map(load_half, _half_folders(path))}, path)
    unknown = set(models or {}) - set(halves)
    if unknown:
        raise ArgumentError(f"models: {path} has no party {', '.join(sorted(unknown))}; it has {', '.join(halves)}")
    config = run_config(path, modules)
    if config is not None:
        found = [half.schema for half in halves.values()]
        split_by: SplitBy = "labels" if any(half.divided_by == "labels" for half in found) else "ids"
        config = config.keeping_ids(min(half.rule_of_ids for half in found), split_by)
    with untrusted_run(path, modules):
        return _put_together(path, halves, config, models=models or {}, loss=loss, device=device)


def _put_together(
    path: Path,
    halves: Mapping[str, SavedHalf],
    config: ExperimentConfig | None,
    *,
    models: Mapping[str, nn.Module],
    loss: Loss | None,
    device: str,
) -> SavedRun:
    """Return the parties of halves, with the defenses of their predictions."""
    parties = {
        name: half.party(
            half.columns(),
            device=choose_device(device),
            own=None if config is None else config.model,
            own_loss=None if config is None else config.train.loss,
            module=models.get(name),
            loss=loss,
        )
        for name, half in halves.items()
    }
    for party in parties.values():
        if config is not None:
            clip = config.exchange.activation_clip
            defend_predictions(party, config.defenses, config.folder, activation_clip=clip)
            reserve = put_by(path, config.exchange)
            if reserve is not None and isinstance(party, PassiveParty):
                add_noise(party, reserve, number=len(config.defenses))
    (active,) = (party for party in parties.values() if isinstance(party, ActiveParty))
    passives = {name: party for name, party in parties.items() if isinstance(party, PassiveParty)}
    given = "" if loss is None else f"{type(loss).__module__}.{type(loss).__qualname__}"
    return SavedRun(path, active, passives, halves=halves, config=config, given_loss=given)


def _half_folders(folder: Path) -> list[Path]:
    """Return the folders of the halves of all parties.

    Raises:
        CheckpointError: If there are none, or this is a run over a network.
    """
    place = folder / MODEL_FOLDER if (folder / MODEL_FOLDER).is_dir() else folder
    if is_half(place):
        raise CheckpointError(
            f"{folder} is one party's run over a network, and holds its half alone; every party scores with its own: "
            "splitvfl predict EXPERIMENT --as NAME"
        )
    found = sorted(path.parent for path in place.glob(f"*/{HALF_FILE}"))
    if found:
        return found
    if (folder / CONFIG_FILE).is_file():
        raise CheckpointError(
            f"{folder} holds no trained halves: the run has not finished ({how_to_go_on(folder)}), or an older version "
            "of splitvfl made it, which kept none; then train again: splitvfl train "
            f"{folder / CONFIG_FILE} --out FOLDER"
        )
    below = (f"{depth}{MODEL_FOLDER}/*/{HALF_FILE}" for depth in ("*/", "*/*/"))  # as compare makes them, and no disk
    inside = sorted({path.parents[2] for pattern in below for path in folder.glob(pattern)})
    inside = [run for run in inside if not run.name.startswith(".")]  # replaced or deleted
    named = ", ".join(map(str, inside[:_NAMED])) + (f" and {len(inside) - _NAMED} more" if len(inside) > _NAMED else "")
    raise CheckpointError(
        f"expected the folder of a finished run, as `splitvfl train` writes it, at {folder}; there are no trained "
        f"halves in {place}" + (f"; name one of the runs in it: {named}" if inside else "")
    )


def _in_order(halves: Mapping[str, SavedHalf], folder: Path) -> dict[str, SavedHalf]:
    """Return halves with the label party's first, and the others as its model takes them.

    Raises:
        CheckpointError: If they are not those of one run.
    """
    active = [name for name, half in halves.items() if half.schema.role == "active"]
    if len(active) != 1:
        raise CheckpointError(f"expected the half of one label party in {folder}, got {', '.join(active) or 'none'}")
    label_party = halves[active[0]].schema
    others = set(halves) - set(active)
    if others != set(label_party.widths):
        raise CheckpointError(
            f"{label_party.party} was trained with {', '.join(label_party.widths) or 'nobody'}, and in {folder} there "
            f"are halves of {', '.join(sorted(others)) or 'nobody'} beside it"
        )
    for name in others:
        for what in ("run", "step", "epoch"):
            if getattr(halves[name].schema, what) != getattr(label_party, what):
                raise CheckpointError(
                    f"the halves of {label_party.party} and {name} in {folder} are of different runs, or of different "
                    f"steps of one ({what}: {getattr(label_party, what)} and {getattr(halves[name].schema, what)})"
                )
    return {name: halves[name] for name in (label_party.party, *label_party.widths)}


def run_config(folder: Path, modules: Modules) -> ExperimentConfig | None:
    """Return the experiment that a run's folder holds, without its attacks; ``None`` if it holds none.

    Args:
        folder: The run's.
        modules: As :func:`load_run` takes them.

    Raises:
        ConfigError: If it is damaged, or names a class that is not defined where it may be.
    """
    path = folder / CONFIG_FILE
    with untrusted_run(folder, modules):
        text = kept_text(path)
        if text is None:
            return None
        # Attacks are of no use here, and may be classes that are not there any more.
        return parse_config(text, source=path, overrides=["attacks=[]"], folder=own_folder(modules))

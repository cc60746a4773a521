"""From the section on data to records: of all parties in one process, or of one party from what it has."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from splitvfl.config.sections import CELL_SETTINGS, DataConfig, ExperimentConfig, PartyConfig
from splitvfl.data.columns import PartyData, TaskName, VerticalData
from splitvfl.data.doubts import DoubtWarning
from splitvfl.data.encoding import Categorical, FittedEncoding
from splitvfl.data.id_rules import RuleVersion, SplitBy
from splitvfl.data.joined_tables import from_tables
from splitvfl.data.load import load
from splitvfl.data.partition import REST
from splitvfl.data.party_file import load_party
from splitvfl.data.schema import SCHEMA_FILE, read_party_schema
from splitvfl.data.sets import TABLES
from splitvfl.data.shards import PLACEHOLDER, checked_sizes, facts_of, joined, joined_parties, lie_apart, shard_path
from splitvfl.data.spec import PartyClaim, TableSpec
from splitvfl.data.spelling import as_flag, as_key, setting, settings_written
from splitvfl.data.store import open_party, open_tables
from splitvfl.errors import ArgumentError, ConfigError

# Keys that are no settings of a table, or are called otherwise there.
_NO_OPTIONS = ("name", "aligned", "text")
# Settings that mean nothing where each party has a file.
_OF_ONE_FILE = ("label", "path", "digit", "id_column")
# Options of data sets that a party's own table has too.
_OF_A_TABLE = (
    *("task", "positive", "unlabelled", "drop", "id_column", "test_fraction", "split_seed"),
    *("scale", "ranges", "missing", "categorical_columns", "min_count"),
    *CELL_SETTINGS,
)


@dataclass(frozen=True)
class OwnData:
    """What a party brings.

    Attributes:
        data: Its records.
        task: What is learned; ``None`` at a passive party.
        classes: As in :class:`~splitvfl.data.columns.VerticalData`; 0 at a passive party.
        encoding: How the columns of its own file became numbers.
        tables: The folder of its tables, if they come from there.
    """

    data: PartyData
    task: TaskName | None
    classes: int
    encoding: FittedEncoding | None = None
    tables: Path | None = None


@dataclass(frozen=True)
class RecordSettings:
    """What decides which records there are, and how they are read.

    Attributes:
        name: That of the experiment.
        source: What the file is called in messages.
        data: The section on data.
        parties: Those on the parties.
        active: The label party.
        shards: Into how many shards the records are divided.
        takes_fields: Whether the model takes categories as codes.
        id_rule: Version of the rule for ids.
        split_by: What divides records.
    """

    name: str
    source: str
    data: DataConfig
    parties: Mapping[str, PartyConfig]
    active: str
    shards: int
    takes_fields: bool
    id_rule: RuleVersion
    split_by: SplitBy

    @classmethod
    def of(cls, config: ExperimentConfig) -> RecordSettings:
        """Return those of an experiment."""
        return cls(
            config.name,
            config.source,
            config.data,
            config.parties,
            config.active,
            config.shards,
            config.model.recipe.takes_fields,
            config.id_rule,
            config.split_by,
        )

    @property
    def encoding(self) -> Categorical | None:
        """How categories become numbers: as codes where the model takes them, unless the file says otherwise."""
        return "index" if self.data.categorical is None and self.takes_fields else self.data.categorical


def in_words_of(data: DataConfig, parties: Mapping[str, PartyConfig]) -> AbstractContextManager[None]:
    """For the length of a block, have messages speak of settings of data as they are made where these data come from.

    Those of an experiment are its keys; those of tables were flags of ``splitvfl ingest``.
    """
    at_party = next((name for name, party in parties.items() if party.label is not None), None)

    def key(name: str, value: object) -> str:
        return f"parties.{at_party}.label" if name == "label" and at_party is not None else as_key(name, value)

    return settings_written(as_flag if data.name == TABLES else key)


def load_data(config: ExperimentConfig) -> VerticalData:
    """Return the experiment's data, divided between its parties.

    Raises:
        DataError: If the data are not what the experiment says.
        ConfigError: If an option means nothing for this data set.
    """
    return _load(RecordSettings.of(config))


def _load(said: RecordSettings) -> VerticalData:
    with in_words_of(said.data, said.parties):
        _check_placeholders(said)
        return _ingested_by_all(said) if said.data.name == TABLES else _read(said)


def _ingested_by_all(said: RecordSettings) -> VerticalData:
    path, roles = _path_of(said.data, said.source), said.parties
    if not lie_apart(path):
        return _ingested(Path(path), roles, said.source)
    folders = [shard_path(path, shard) for shard in range(said.shards)]
    for name in roles:
        checked_sizes([facts_of(folder / name) for folder in folders])
    return joined_parties([_ingested(folder, roles, said.source) for folder in folders])


def _read(said: RecordSettings) -> VerticalData:
    data, active = said.data, said.parties[said.active]
    if data.aligned is not None:
        raise ConfigError(f"{said.source}: data.aligned: only a party's own table is aligned (splitvfl party)")
    options = {name: getattr(data, name) for name in DataConfig.model_fields if name not in _NO_OPTIONS}
    options |= {"label": active.label or data.label, "categorical": said.encoding}
    options |= {"text_columns": data.text, "id_rule": said.id_rule, "split_by": said.split_by}
    try:
        if active.path is not None:
            return _joined(said, options)
        _check_one_file(said.parties)
        return load(
            data.name,
            active_name=said.active,
            active=active.columns,
            passive={name: party.columns for name, party in said.parties.items() if name != said.active},
            **options,
        )
    except ArgumentError as error:
        raise ConfigError(f"{said.source}: data: {error}") from error


def _joined(said: RecordSettings, options: Mapping[str, Any]) -> VerticalData:
    """Return the data of parties that have a file each, as the experiment is called."""
    label = options["label"]
    if label is None:
        raise ArgumentError(f"expected the name of the label column ({setting('label')}), got none")
    files = {name: party.path for name, party in said.parties.items()}
    settings = {name: value for name, value in options.items() if name not in _OF_ONE_FILE}
    cells = {name: party.cells(said.data) for name, party in said.parties.items()}
    for key in CELL_SETTINGS:
        settings[key] = {name: found[key] for name, found in cells.items() if found[key] is not None}
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        warnings.simplefilter("ignore", DoubtWarning)  # the summary of the data says it
        data = from_tables(
            active=files.pop(said.active),
            passive=files,
            label=label,
            id=_id_columns(said.data, said.parties),
            active_name=said.active,
            **settings,
        )
    notes = "".join(f"; {warning.message}" for warning in caught)
    return replace(data, name=said.name, description=f"{data.description}{notes}")


def _id_columns(data: DataConfig, parties: Mapping[str, PartyConfig]) -> dict[str, str] | None:
    """Return the id column of each party's file; ``None`` if no file names its records.

    Raises:
        ArgumentError: If some do, and others do not.
    """
    columns = {name: party.id_column or data.id_column for name, party in parties.items()}
    found = {name: column for name, column in columns.items() if column is not None}
    nameless = [name for name in columns if name not in found]
    if not found:
        return None
    if nameless:
        raise ArgumentError(
            f"expected an id column of every party's file, got none of {' and '.join(nameless)}; set data.id_column, "
            f"or parties.{nameless[0]}.id_column"
        )
    return {name: column for name, column in found.items() if column is not None}


def _check_one_file(parties: Mapping[str, PartyConfig]) -> None:
    """Refuse settings of a party's own file where there is none."""
    for key in ("id_column", *CELL_SETTINGS):
        own = [name for name, party in parties.items() if getattr(party, key) is not None]
        if own:
            raise ArgumentError(
                f"parties.{own[0]}.{key} is of a party's own file (path), and there is one file for all: set data.{key}"
            )


def _check_placeholders(said: RecordSettings) -> None:
    """Refuse a path with the number of a worker in it where every worker must have the whole table.

    Raises:
        ConfigError: If there is one.
    """
    data, source = said.data, said.source
    paths = {"data.path": data.path, "data.aligned": data.aligned, "data.ranges": data.ranges}
    paths |= {f"parties.{name}.path": party.path for name, party in said.parties.items()}
    for key, path in paths.items():
        if not lie_apart(path):
            continue
        if data.name != TABLES or key != "data.path":
            raise ConfigError(
                f"{source}: {key}: {PLACEHOLDER} stands for the number of a worker in the path of {TABLES} only: "
                "scales and categories must be learned of all shards together. Ingest each shard with the statistics "
                f"of all (splitvfl ingest --statistics), and write data: {{name: {TABLES}, path: ...}}"
            )
        if said.shards == 1:
            raise ConfigError(
                f"{source}: {key}: {PLACEHOLDER} stands for the number of a worker, and each party is one process; "
                "write team: {workers: N}, or train.shards: N to train on all shards in one process"
            )


def _path_of(data: DataConfig, source: str) -> str:
    if data.path is None:
        tables = f"{TABLES} need the path of a folder that `splitvfl ingest` wrote"
        raise ConfigError(
            f"{source}: data: {tables if data.name == TABLES else 'expected the path of a CSV or Parquet file'}"
        )
    return data.path


def _ingested(folder: Path, parties: Mapping[str, PartyConfig], source: str) -> VerticalData:
    try:
        data = open_tables(folder, parties={name: party.role for name, party in parties.items()})
    except ArgumentError as error:
        raise ConfigError(f"{source}: parties: {error}") from error
    if data.active.train.count == 0:
        raise ConfigError(
            f"{source}: data: {folder} holds test records only, as files that were ingested --like others do; train "
            "on the others"
        )
    return data


def own_data(config: ExperimentConfig, name: str, *, worker: int | None = None) -> OwnData:
    """Return what a party holds: of its own file or table folder, or its part of a set that everybody has.

    Args:
        config: The file.
        name: The party.
        worker: Whose shard to take, where shards lie apart. ``None``: all of them, one behind the other.

    Raises:
        DataError: If the data are not what the file says.
        ConfigError: If settings contradict each other.
    """
    said = RecordSettings.of(config)
    with in_words_of(said.data, said.parties):
        _check_placeholders(said)
        return _load_own(said, name, worker)


def _load_own(said: RecordSettings, name: str, worker: int | None) -> OwnData:
    data, party, source = said.data, said.parties[name], said.source
    if data.name == TABLES:
        return _own_of_tables(said, name, worker)
    if data.name != "table":
        whole = _load(said)
        return _own(whole[name], party.role, whole.task, whole.classes)
    path = Path(_path_of(data, source) if party.path is None else party.path)
    label = (party.label or data.label) if party.role == "active" else None
    columns = party.columns or (() if party.path is None else REST)
    if not columns:
        raise ConfigError(
            f"{source}: parties.{name}.columns: expected names and patterns of {name}'s columns, or rest, got none; is "
            "this another party's file?"
        )
    given = {key: getattr(data, key) for key in _OF_A_TABLE} | {"text_columns": data.text}
    given |= {"categorical": said.encoding, "id_column": party.id_column or data.id_column}
    given |= {"id_rule": said.id_rule, **party.cells(data)}
    claim = PartyClaim(name, party.role, columns)
    try:
        spec = TableSpec(source=path, label=label, **{key: value for key, value in given.items() if value is not None})
        found = load_party(spec, claim, aligned=data.aligned)
    except ArgumentError as error:
        raise ConfigError(f"{source}: data: {error}") from error
    return OwnData(found.data, found.task, found.classes, encoding=found.encoding)


def _own(data: PartyData, role: str, task: TaskName, classes: int, *, tables: Path | None = None) -> OwnData:
    active = role == "active"
    return OwnData(data, task if active else None, classes if active else 0, tables=tables)


def _own_of_tables(said: RecordSettings, name: str, worker: int | None) -> OwnData:
    path, role, source = _path_of(said.data, said.source), said.parties[name].role, said.source
    if not lie_apart(path):
        return _own_tables(Path(path), name, role, source)
    if worker is not None:
        return _own_tables(shard_path(path, worker), name, role, source)
    shards = [_own_tables(shard_path(path, shard), name, role, source) for shard in range(said.shards)]
    checked_sizes([facts_of(shard.tables) for shard in shards if shard.tables is not None])
    return replace(shards[0], data=joined([shard.data for shard in shards]))


def shard_folder(path: str, name: str, worker: int) -> Path:
    """Return the table folder of a party's shard, where shards lie apart."""
    return _own_folder(shard_path(path, worker), name)


def _own_folder(folder: Path, name: str) -> Path:
    return folder / name if (folder / name / SCHEMA_FILE).exists() else folder


def _own_tables(folder: Path, name: str, role: str, source: str) -> OwnData:
    folder = _own_folder(folder, name)
    schema = read_party_schema(folder)
    if (schema.name, schema.role) != (name, role):
        raise ConfigError(
            f"{source}: {folder} was ingested for {schema.name} as the {schema.role} party, and is to be used by "
            f"{name} as the {role} one"
        )
    return _own(open_party(folder), role, schema.task, schema.classes, tables=folder)

"""One party's part in scoring new records, out of its own file and its trained half."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa
import torch
from torch import Tensor

from splitvfl.app.deployment import meeting_of, own_data, vouching_of
from splitvfl.app.experiment import choose_device
from splitvfl.app.saved_model import SavedHalf, file_digest, load_half
from splitvfl.config.sections import ExperimentConfig, NetworkConfig
from splitvfl.data.columns import PartyData
from splitvfl.data.new_records import read_new_records
from splitvfl.data.schema import SCHEMA_FILE, VOCABULARY_FILE, read_party_schema
from splitvfl.data.score_file import check_score_target, write_scores
from splitvfl.data.sets import TABLES
from splitvfl.data.store import open_party
from splitvfl.errors import ConfigError, DataError
from splitvfl.net.meeting import Meeting
from splitvfl.party.attaching import attach_defense, check_clips
from splitvfl.party.party import ActiveParty, PassiveParty
from splitvfl.run.prediction import ActivePrediction, PassivePrediction, PredictionSettings

# A link that breaks more often than this will break again.
_MOST_RETRIES = 3

# What records are called that came with numbers only.
_ID_COLUMN = "id"


@dataclass(frozen=True, eq=False)
class Scored:
    """The records to be scored, as one party holds them.

    Attributes:
        data: All of them as test records.
        name_column: What the party calls the column that names its records.
        names: What is in it, of the records that the party has.
        unknown: Records with a category that training did not know, by column.
    """

    data: PartyData
    name_column: str
    names: pa.Array
    unknown: Mapping[str, int] = field(default_factory=dict)


class Service:
    """One party's prediction, prepared: everything that can be wrong on its own side has been looked at.

    Args:
        party: The party, with its trained model and its defenses.
        scored: Its records.
        settings: What is common to all parties.
        meeting: Where it meets them.
        out: Where the scores go; ``None``: nowhere.
        notify: Told in one line what happens.

    Attributes:
        count: Number of records.
        out: As given.
    """

    def __init__(
        self,
        party: ActiveParty | PassiveParty,
        scored: Scored,
        settings: PredictionSettings,
        meeting: Meeting,
        partners: tuple[str, ...],
        *,
        out: Path | None,
        notify: Callable[[str], None],
    ) -> None:
        self.count = scored.data.test.count
        self.out = out
        self.unknown = scored.unknown
        self._party, self._scored, self._settings = party, scored, settings
        self._meeting, self._partners, self._notify = meeting, partners, notify

    def run(self, progress: Callable[[int], None] = lambda done: None) -> None:
        """Meet the partners, score the records with them, and write the scores if this party has any to write.

        Args:
            progress: Told how many records are scored.

        Raises:
            SplitVFLError: As :meth:`splitvfl.run.prediction.JointPrediction.run`; nothing is written then.
        """
        with self._meeting:
            scores = self._scores(progress)
        if self.out is None or scores is None:
            return
        real = self._scored.data.test.real
        kept = scores if real is None else scores[real]
        write_scores(self.out, kept, name_column=self._scored.name_column, names=self._scored.names)

    def _scores(self, progress: Callable[[int], None]) -> Tensor | None:
        common = (self._partners, self._settings, self._meeting)
        if isinstance(self._party, ActiveParty):
            joint = ActivePrediction(self._party, *common, notify=self._notify, progress=progress).run()
            scores: Tensor = joint.scores
            return scores.float().cpu()
        published: Tensor | None = PassivePrediction(self._party, *common, notify=self._notify, progress=progress).run()
        return None if published is None else published.float().cpu()


def prepare_prediction(
    config: ExperimentConfig,
    name: str,
    *,
    model: Path,
    records: Path | None = None,
    out: Path | None = None,
    aligned: Path | None = None,
    id_column: str | None = None,
    overwrite: bool = False,
    notify: Callable[[str], None] = lambda line: None,
) -> Service:
    """Return one party's prediction, ready to be run.

    Args:
        config: The party's file; of its training, the data and the number of epochs are not looked at, nor the model
            but for its name.
        name: The party's name.
        model: Folder of its trained half.
        records: The new records: a CSV or Parquet file with the columns that the half was trained on, or the folder of
            tables that ``splitvfl ingest --like`` wrote. ``None``: the test records of a data set that everybody has.
        out: Where the scores go, CSV or Parquet: needed at the active party; at a passive one, if they are published.
        aligned: The folder that ``splitvfl align`` wrote of the new records.
        id_column: Column that names the records; default: that of the alignment, of the file, or of the training.
        overwrite: Replace a file that is there already.
        notify: Told in one line what happens.

    Raises:
        ConfigError: If settings do not go together.
        DataError: If the records are not as the training records were.
        CheckpointError: If there is no trained half, or it is damaged.
    """
    network = config.network or NetworkConfig()
    _check_out(config, name, out, publish=network.publish_scores, overwrite=overwrite)
    _check_apart(records, out)
    if config.train.threads is not None:
        torch.set_num_threads(config.train.threads)
    half = load_half(model)
    partners = _partners(config, name, half)
    scored = _scored(config, half, records, aligned, id_column)
    party = half.party(scored.data, device=choose_device(config.train.device), own=config.model)
    defend_predictions(config, party)
    meeting = meeting_of(config, name, notify=notify, purpose="prediction")
    settings = PredictionSettings(
        learned=half.learned,
        run=half.schema.run,
        step=half.schema.step,
        epoch=half.schema.epoch,
        publish=network.publish_scores,
        masked=config.exchange.factory.hides_parts,
        vouching=vouching_of(config, meeting, purpose="prediction"),
        message_s=network.message_s,
        meeting_s=network.meeting_s,
        retries=min(network.retries, _MOST_RETRIES),
    )
    return Service(party, scored, settings, meeting, partners, out=out, notify=notify)


def _check_out(config: ExperimentConfig, name: str, out: Path | None, *, publish: bool, overwrite: bool) -> None:
    active = name == config.active
    if active and out is None:
        raise ConfigError(f"--out: {name} is the active party and gets the scores; say where they go, as in scores.csv")
    if not active and out is not None and not publish:
        raise ConfigError(
            f"--out: the scores stay at {config.active}; leave it out, or let all parties agree on "
            "network.publish_scores: true"
        )
    if out is not None:
        check_score_target(out, overwrite=overwrite)


def _check_apart(records: Path | None, out: Path | None) -> None:
    if records is not None and out is not None and out.exists() and records.exists() and out.samefile(records):
        raise ConfigError(f"--out: {out} holds the records, which the scores would replace; choose another name")


def _partners(config: ExperimentConfig, name: str, half: SavedHalf) -> tuple[str, ...]:
    schema, role = half.schema, config.parties[name].role
    if (schema.party, schema.role) != (name, role):
        raise ConfigError(
            f"{half.folder} is the half of {schema.party} as the {schema.role} party, and is to be used by {name} as "
            f"the {role} one"
        )
    if role == "passive":
        return (config.active,)
    others = {other for other in config.parties if other != name}
    if others != set(schema.widths):
        raise ConfigError(
            f"{half.folder} was trained with {', '.join(schema.widths)}, and {config.source} has "
            f"{', '.join(sorted(others))} beside {name}"
        )
    return tuple(schema.widths)


def _scored(
    config: ExperimentConfig, half: SavedHalf, records: Path | None, aligned: Path | None, id_column: str | None
) -> Scored:
    schema = half.schema
    if half.tables is not None:
        return _from_tables(half, records)
    if schema.encoding is None:
        return _from_data_set(config, half, records)
    if records is None or records.is_dir():
        raise ConfigError(
            f"--records: {schema.party} was trained on a file: expected a CSV or Parquet file of new records, got "
            f"{records or 'nothing'}"
        )
    id_column = id_column or (None if aligned is not None else config.data.id_column or schema.id_column)
    found = read_new_records(
        records, name=schema.party, role=schema.role, encoding=schema.encoding, id_column=id_column, aligned=aligned
    )
    return Scored(found.data, found.name_column, found.names, found.unknown)


def _from_data_set(config: ExperimentConfig, half: SavedHalf, records: Path | None) -> Scored:
    if records is not None or config.data.name in ("table", TABLES):
        raise ConfigError(
            f"--records: the half in {half.folder} was trained on a data set that has no records but its own, and no "
            "others can be encoded; leave it out to score the test records"
        )
    return _numbered(own_data(config, half.schema.party).data)


def _from_tables(half: SavedHalf, records: Path | None) -> Scored:
    name, trained = half.schema.party, half.tables
    if records is None or not records.is_dir():
        raise ConfigError(
            f"--records: {name} was trained on tables: expected a folder of the new ones, as `splitvfl ingest --like` "
            f"writes it, got {records or 'nothing'}"
        )
    folder = records / name if (records / name / SCHEMA_FILE).exists() else records
    given = read_party_schema(folder)
    assert trained is not None
    for what in ("name", "role", "encoders"):
        if getattr(given, what) != getattr(trained, what):
            raise DataError(f"{folder} has other {what} than the tables that {name} was trained on{_LIKE}")
    vocabulary = folder / VOCABULARY_FILE
    digest = file_digest(vocabulary) if vocabulary.exists() else None
    if digest != half.schema.files.get(VOCABULARY_FILE):
        raise DataError(f"{vocabulary} lists other categories than the tables that {name} was trained on{_LIKE}")
    return _numbered(open_party(folder))


_LIKE = "; encode the files anew: splitvfl ingest FILES --like TABLES, the tables of the training"


def _numbered(data: PartyData) -> Scored:
    ids = data.test.ids if data.test.real is None else data.test.ids[data.test.real]
    return Scored(data, _ID_COLUMN, pa.array(ids.numpy()))


def defend_predictions(config: ExperimentConfig, party: ActiveParty | PassiveParty) -> None:
    """Attach the file's defenses of what this party sends in a prediction, with noise from entropy.

    At a passive party these are the defenses of its activation that act on predictions, at the active one those of the
    scores. Seeds of experiments are not looked at: repeated, the noise of two predictions could be told.

    Raises:
        PrivacyError: If a norm is agreed on for activations, and they are not bounded in predictions.
    """
    crossing = "scores" if isinstance(party, ActiveParty) else "activation"
    for number, hook in enumerate(config.defenses):
        found = hook.found("defenses", config.folder)
        phases = [phase for phase in hook.phases if phase == "prediction"]
        if found.crossing == crossing and (phases or crossing == "scores"):
            attach_defense(party, found.make(), number=number, noise_seed=None, phases=phases or hook.phases)
    if isinstance(party, PassiveParty):
        check_clips(party, activation=config.exchange.activation_clip, gradient=None, phases=("prediction",))

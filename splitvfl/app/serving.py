"""One party's part in scoring new records, out of its own file and its trained half."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import torch
from torch import Tensor

from splitvfl.app.addresses import PREDICTION, AddressBook
from splitvfl.app.counting import Counting, check_own_limits
from splitvfl.app.promised_predictions import (
    AfterTraining,
    add_noise,
    folder_of,
    parts_of_logits,
    published,
    put_by,
    was_promised,
)
from splitvfl.app.records import own_data
from splitvfl.app.saved_model import SavedHalf, load_half
from splitvfl.app.score_drift import saturation, score_shifts, shifts_said
from splitvfl.app.scoring import check_own_defenses, loss_of_half, memoised_noise, scorer_of
from splitvfl.app.scoring_team import (
    TeamRecords,
    TeamTally,
    check_defended_by_workers,
    check_scored_by_workers,
    own_file,
    records_of_team,
    scored_terms,
    scores_of_all,
)
from splitvfl.app.workers import alike
from splitvfl.config.sections import ExperimentConfig, HookConfig, NetworkConfig, PartyConfig
from splitvfl.data.columns import PartyData
from splitvfl.data.drift import ColumnDrift, check_drift
from splitvfl.data.formulas import SPREADSHEETS, check_no_formulas, formulas_said
from splitvfl.data.joint_records import ID_COLUMN, check_like, own_tables
from splitvfl.data.new_records import NamedBy, NewRecords, named_in_tables, read_new_records
from splitvfl.data.schema import read_party_schema
from splitvfl.data.score_file import check_score_target, is_csv, write_scores
from splitvfl.data.sets import TABLES
from splitvfl.data.shards import lie_apart
from splitvfl.data.store import open_party
from splitvfl.errors import ConfigError, PrivacyError
from splitvfl.exchange.scoring import ACTIVE, COORDINATOR
from splitvfl.learning.devices import choose_device
from splitvfl.net.meeting import Meeting
from splitvfl.party.attaching import attach_defense, check_clips
from splitvfl.party.direction import check_awaited
from splitvfl.party.memoised import MemoisedNoise, check_memoised
from splitvfl.party.party import ActiveParty, PassiveParty
from splitvfl.party.scorer import Scorer
from splitvfl.report.releases import Release, Reserve
from splitvfl.run.prediction import MOST_RETRIES, ActivePrediction, PassivePrediction, PredictionSettings
from splitvfl.run.session import Session
from splitvfl.run.teamwork import check_workers_alike
from splitvfl.team.team import Alone, Team


@dataclass(frozen=True, kw_only=True)
class PredictionFiles:
    """The files of one party's prediction.

    Attributes:
        model: Folder of its trained half.
        records: The new records: a CSV or Parquet file with the columns that the half was trained on, or the folder of
            tables that ``splitvfl ingest --like`` wrote. ``None``: the test records of a data set that everybody has.
        out: Where the scores go, CSV or Parquet: needed at the active party; at a passive one, if they are published,
            or if it computes them.
        aligned: The folder that ``splitvfl align`` wrote of the new records.
        id_column: Column that names the records; default: that of the alignment, of the file, or of the training.
        overwrite: Whether to replace a file of scores that is there already.
        not_covered: Whether to score more records than a training with calculated noise put some by for.
        strict_ids: Whether to refuse records whose names a spreadsheet takes for formulas; where scores are written.
        fail_on_drift: Refuse records of which one of this party's columns has a stability index beyond this and chance,
            or more than 5 % of new values, before anything is sent. ``None``: score them.
    """

    model: Path
    records: Path | None = None
    out: Path | None = None
    aligned: Path | None = None
    id_column: str | None = None
    overwrite: bool = False
    not_covered: bool = False
    strict_ids: bool = False
    fail_on_drift: float | None = None


@dataclass(frozen=True, eq=False)
class Service:
    """One party's prediction, prepared: everything that can be wrong on its own side has been looked at.

    Attributes:
        party: The party, with its trained model and its defenses.
        scored: Its records.
        settings: What is common to all parties.
        session: Where it meets them.
        partners: Names of those that it talks to.
        out: Where the scores go; ``None``: nowhere.
        after: What it does to what was promised of the training.
        scorer: At a passive party that computes the scores: its defenses of them.
        names: What all records are called whose scores are written here.
        parts: How many records all workers score, at worker 0.
        team: The workers of the party, of which this process is one.
        fail_on_drift: Whether to write no scores of which more than half are exactly 0 or 1.
        saturated_in_training: Fraction of such scores after the training; ``None`` where nobody knows.
    """

    party: ActiveParty | PassiveParty
    scored: NewRecords
    settings: PredictionSettings
    session: Session[Meeting]
    partners: tuple[str, ...]
    out: Path | None
    after: AfterTraining
    names: pa.Array
    parts: int
    scorer: Scorer | None = None
    team: Team = field(default_factory=Alone)
    fail_on_drift: bool = False
    saturated_in_training: float | None = None

    def run(self, progress: Callable[[int], None] = lambda done: None) -> None:
        """Meet the partners, score the records with them, and write the scores if this party has any to write.

        Args:
            progress: Told how many records are scored.

        Raises:
            SplitVFLError: As :meth:`splitvfl.run.prediction.JointPrediction.run`; nothing is written then.
            TeamError: If another worker could not score its part.
        """
        with self.session.place:
            scores = self._scores(progress)
        real = self.scored.data.test.real
        kept = None if scores is None else scores.float().cpu()[slice(None) if real is None else real]
        every = scores_of_all(kept, self.team)
        if self.out is not None and every is not None:
            if isinstance(self.party, ActiveParty):
                self._look_at(self.party, every)
            write_scores(self.out, every, name_column=self.scored.name_column, names=self.names)

    def _look_at(self, party: ActiveParty, scores: Tensor) -> None:
        drift = {party.name: self.scored.drift}
        ends = saturation(party, scores, drift, in_training=self.saturated_in_training)
        if ends is None or not str(ends):
            return
        if self.fail_on_drift:
            ends.check()
        self.session.notify(str(ends))

    def _scores(self, progress: Callable[[int], None]) -> Tensor | None:
        common = (self.partners, self.settings, self.session)
        told: dict[str, Any] = {"progress": progress, "before": self.after.begin}
        scores: Tensor | None
        if isinstance(self.party, ActiveParty):
            scores = ActivePrediction(self.party, *common, **told).run().scores
        else:
            scores = PassivePrediction(self.party, *common, scorer=self.scorer, **told).run()
        return scores


def prepare_prediction(
    config: ExperimentConfig,
    name: str,
    files: PredictionFiles,
    *,
    notify: Callable[[str], None] = lambda line: None,
    team: Team | None = None,
) -> Service:
    """Return one party's prediction, ready to be run.

    Args:
        config: The party's file; of its training, the data and the number of epochs are not looked at, nor the model
            but for its name.
        name: The party's name.
        files: Where everything is.
        notify: Told in one line what happens.
        team: The workers of the party, of which this process is one.

    Raises:
        ConfigError: If settings do not go together.
        DataError: If the records are not as the training records were.
        CheckpointError: If there is no trained half, or it is damaged.
        CheckpointError: If a passive party's ledger is damaged, or cannot be read or written.
        PrivacyError: If the training put noise by for fewer records.
    """
    team, network = team or Alone(), config.network or NetworkConfig()
    if team.rank == 0:
        _check_out(files, name, config.active, publish=network.publish_scores or name == config.scorer)
    check_own_defenses(config, name)
    check_own_limits(config.prediction.limits, config.parties, name, source=config.source)
    if config.train.threads is not None:
        torch.set_num_threads(config.train.threads)
    run = folder_of(files.model)
    promised = was_promised(run, config.exchange)
    if team.size > 1:
        check_scored_by_workers(config, promised=promised)
    half = load_half(files.model)
    partners = partners_of(half, name, config.parties, config.source)
    if name == config.active and config.scorer == COORDINATOR:
        partners = (*partners, COORDINATOR)
    read = records_to_score(config, name, half, replace(files, records=own_file(files.records, team)))
    terms = alike(config, {}, overwrite=files.overwrite) if team.size > 1 else {}
    shared = _shared_records(read, name, half, files, team, terms)
    if (
        files.out is not None
        and is_csv(files.out)
        and (said := formulas_said(shared.names, name_column=shared.own.name_column))
    ):
        notify(f"{said}. {SPREADSHEETS}")
    reserve = put_by(run, config.exchange)
    party = _defended_party(config, half, shared.own, team, reserve)
    if isinstance(party, ActiveParty):
        private_top = config.model.recipe.private_top
        for line in shifts_said(score_shifts(party, half, config.found_defenses, private_top=private_top)):
            notify(line)
    if promised and config.scorer != config.active:
        raise PrivacyError(
            f"{run}: noise was calculated for this training, and covers no prediction whose scores "
            f"{config.scorer} computes; nothing was sent. Let the label party compute them (prediction.scores_by: "
            f"{ACTIVE})"
        )
    addresses = AddressBook(config, name, PREDICTION, worker=team.rank, workers=team.size)
    session = addresses.session(notify, most_retries=MOST_RETRIES)
    elsewhere, asked = config.scorer != config.active, config.prediction
    settings = PredictionSettings(
        learned=half.learned,
        run=half.schema.run,
        step=half.schema.step,
        epoch=half.schema.epoch,
        publish=network.publish_scores,
        masked=config.exchange.factory.hides_parts,
        vouching=addresses.vouching(session.place),
        scores_by=asked.scores_by,
        loss=loss_of_half(half, model=config.model, own=config.train.loss) if elsewhere else "",
        memoised=asked.memoised,
        direction_by=asked.direction_by,
        noise=None if reserve is None else reserve.sigma,
    )
    released = _released(party, half, config.active, settings) if promised else []
    after = AfterTraining(run, released, reserve, files.not_covered, notify)
    after.check()
    if isinstance(party, PassiveParty):
        counting = Counting.of(config, half, run, notify)
        counted = counting.call(shared.names, shared.own.named_by, records=shared.parts) if team.rank == 0 else None
        party.tally = counted if team.size == 1 else TeamTally(team, shared.own.data.test.count, counted)
    memoised: MemoisedNoise | None = None
    if name == config.scorer and asked.memoised:
        loss = loss_of_half(half, model=config.model, own=config.train.loss)
        memoised = memoised_noise(config.found_defenses, run, notify, loss=loss, source=config.source)
    return Service(
        party,
        shared.own,
        settings,
        session,
        partners,
        files.out if team.rank == 0 else None,
        after,
        names=shared.names,
        parts=shared.parts,
        scorer=_scorer(
            party,
            memoised,
            lambda: scorer_of(config, name, half.learned, recipe=half.recipe(config.model), noise=memoised),
            direction_by=asked.direction_by,
        )
        if name == config.scorer
        else None,
        team=team,
        fail_on_drift=files.fail_on_drift is not None,
        saturated_in_training=None if half.schema.saturated is msgspec.UNSET else half.schema.saturated,
    )


def _shared_records(
    read: NewRecords, name: str, half: SavedHalf, files: PredictionFiles, team: Team, terms: Mapping[str, str]
) -> TeamRecords:
    """Return the records that this worker scores, of which all workers say that they are parts of the same."""
    if files.strict_ids:
        check_no_formulas(read.names, name_column=read.name_column)
    if files.fail_on_drift is not None:
        check_drift({name: read.drift}, files.fail_on_drift)
    if team.size == 1:
        return records_of_team(read, team, apart=False)
    apart = lie_apart(str(files.records))
    check_workers_alike(team, name, {**terms, **scored_terms(read, half.schema.digest, apart=apart)})
    return records_of_team(read, team, apart=apart)


def _defended_party(
    config: ExperimentConfig, half: SavedHalf, scored: NewRecords, team: Team, reserve: Reserve | None
) -> ActiveParty | PassiveParty:
    """Return the party with its trained model, the records, and the defenses of what it sends in a prediction."""
    party = half.party(
        scored.data, device=choose_device(config.train.device), own=config.model, own_loss=config.train.loss
    )
    defend_predictions(
        party,
        config.defenses,
        config.folder,
        activation_clip=config.exchange.activation_clip,
        scores=config.scorer == config.active,
    )
    if team.size > 1:
        check_defended_by_workers(party, config.source)
    if reserve is not None and isinstance(party, PassiveParty):
        add_noise(party, reserve, number=len(config.defenses))
    return party


def _scorer(
    party: ActiveParty | PassiveParty,
    memoised: MemoisedNoise | None,
    made: Callable[[], Scorer],
    *,
    direction_by: str | None,
) -> Scorer | None:
    """Return what computes the scores at a passive party that does, with its defenses of them.

    At the label party it is the party itself, which gets its noise here.
    """
    if isinstance(party, PassiveParty):
        scorer = made()
        check_awaited(scorer.scores, direction_by)
        return scorer
    if memoised is not None:
        check_memoised(party.scores)
        party.score_noise = memoised
    check_awaited(party.scores, direction_by)
    return None


def _released(
    party: ActiveParty | PassiveParty, half: SavedHalf, active: str, settings: PredictionSettings
) -> list[Release]:
    """Return what crosses in a prediction beyond what was promised of the training, as far as this party knows it."""
    records = party.data.test.count
    if isinstance(party, PassiveParty):
        return [parts_of_logits([party.name], active, records)]
    partners = tuple(half.schema.widths)
    shown = [parts_of_logits(partners, party.name, records)]
    return [*shown, published(party.name, partners, records)] if settings.publish else shown


def _check_out(files: PredictionFiles, name: str, active: str, *, publish: bool) -> None:
    out = files.out
    if name == active and out is None:
        raise ConfigError(f"--out: {name} is the active party and gets the scores; say where they go, as in scores.csv")
    if name != active and out is not None and not publish:
        raise ConfigError(
            f"--out: the scores stay at {active}; leave it out, or let all parties agree on "
            "network.publish_scores: true"
        )
    if out is None:
        if files.strict_ids:
            raise ConfigError(f"--strict-ids: no scores are written at {name}; leave it out")
        return
    check_score_target(out, overwrite=files.overwrite)
    if files.records is not None and out.exists() and files.records.exists() and out.samefile(files.records):
        raise ConfigError(f"--out: {out} holds the records, which the scores would replace; choose another name")


def partners_of(half: SavedHalf, name: str, parties: Mapping[str, PartyConfig], source: str) -> tuple[str, ...]:
    """Return the parties with which one predicts, in the order in which the top takes their activations.

    Raises:
        ConfigError: If the half is another party's, or was trained with others.
    """
    schema, role = half.schema, parties[name].role
    if (schema.party, schema.role) != (name, role):
        raise ConfigError(
            f"{half.folder} is the half of {schema.party} as the {schema.role} party, and is to be used by {name} as "
            f"the {role} one"
        )
    if role == "passive":
        return tuple(other for other, party in parties.items() if party.role == "active")
    others = {other for other in parties if other != name}
    if others != set(schema.widths):
        raise ConfigError(
            f"{half.folder} was trained with {', '.join(schema.widths)}, and {source} has "
            f"{', '.join(sorted(others))} beside {name}"
        )
    return tuple(schema.widths)


def records_to_score(config: ExperimentConfig, name: str, half: SavedHalf, files: PredictionFiles) -> NewRecords:
    """Return a party's records as its half takes them: of a file, of tables, or of a set that everybody has.

    Raises:
        ConfigError: If there is no such file, or one where none is needed.
        DataError: If the records are not as the training records were.
    """
    if _is_of_a_data_set(half, files.records, config.data.name):
        return _numbered(own_data(config, name).data, "ids")  # of one set, which is always the same
    return _new_records(half, files, config.id_column_of(name))


def _is_of_a_data_set(half: SavedHalf, records: Path | None, data: str) -> bool:
    """Return whether the half was trained on a data set that has no records but its own: it is scored on its tests."""
    if half.tables is not None or half.schema.encoding is not None:
        return False
    if records is not None or data in ("table", TABLES):
        raise ConfigError(
            f"--records: the half in {half.folder} was trained on a data set that has no records but its own, and no "
            "others can be encoded; leave it out to score the test records"
        )
    return True


def _new_records(half: SavedHalf, files: PredictionFiles, id_column: str | None) -> NewRecords:
    schema, records, aligned = half.schema, files.records, files.aligned
    if schema.encoding is None:
        return _from_tables(half, records)
    if records is None or records.is_dir():
        raise ConfigError(
            f"--records: {schema.party} was trained on a file: expected a CSV or Parquet file of new records, got "
            f"{records or 'nothing'}"
        )
    return read_new_records(
        records,
        name=schema.party,
        role=schema.role,
        encoding=schema.encoding,
        id_column=files.id_column or (None if aligned is not None else id_column or schema.id_column),
        aligned=aligned,
    )


def _from_tables(half: SavedHalf, records: Path | None) -> NewRecords:
    name = half.schema.party
    if records is None or not records.is_dir():
        raise ConfigError(
            f"--records: {name} was trained on tables: expected a folder of the new ones, as `splitvfl ingest --like` "
            f"writes it, got {records or 'nothing'}"
        )
    folder = own_tables(records, name)
    check_like(half.folder, folder)
    return _numbered(open_party(folder), named_in_tables(folder), read_party_schema(folder).drift)


def _numbered(data: PartyData, named_by: NamedBy, drift: tuple[ColumnDrift, ...] = ()) -> NewRecords:
    ids = data.test.ids if data.test.real is None else data.test.ids[data.test.real]
    return NewRecords(data, ID_COLUMN, pa.array(ids.numpy()), unknown={}, named_by=named_by, drift=drift)


def defend_predictions(
    party: ActiveParty | PassiveParty,
    defenses: Sequence[HookConfig],
    folder: Path,
    *,
    activation_clip: float | None,
    scores: bool = True,
) -> None:
    """Attach the file's defenses of what this party sends in a prediction, with noise from entropy.

    At a passive party these are the defenses of its activation that act on predictions, at the active one those of the
    scores, if it computes ``scores``. Seeds of experiments are not looked at: repeated, the noise of two predictions
    could be told.

    Raises:
        PrivacyError: If a norm is agreed on for activations, and they are not bounded in predictions.
    """
    crossing = "scores" if isinstance(party, ActiveParty) else "activation"
    for number, hook in enumerate(defenses):
        found = hook.found("defenses", folder)
        phases = [phase for phase in hook.phases if phase == "prediction"]
        acts = scores if crossing == "scores" else bool(phases)
        if found.crossing == crossing and acts:
            attach_defense(party, found.make(), number=number, noise_seed=None, phases=phases or hook.phases)
    if isinstance(party, PassiveParty):
        check_clips(party, activation=activation_clip, gradient=None, phases=("prediction",))

"""What the real scores of a trained model tell of passive parties' columns: ``splitvfl reconstruct``.

Where one process has the columns of all parties, an experiment or an auditor's copy of all halves, attacks need not be
imagined: records are scored once more, every attack solves what the scores and the activations show, and its estimates
are compared with the columns. What :mod:`splitvfl.app.forecasting` computes for one party alone, in exact arithmetic,
is measured here with the rounding, the defenses and the saturation that real scores have.

Attackers are assumed to know the weights, the range of every column over the training records, and everything of the
label party's. With ``weights`` of another kind they are given transformed ones and take these for the model's own
(:mod:`splitvfl.app.shown_weights`). Of a party that transforms its columns, both are judged: who does not know the
transform, and who does.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest
from pathlib import Path
from typing import get_args

import torch

from splitvfl.app.forecasting import KnownMeans, equation_attacks
from splitvfl.app.reconstruction_figures import RECORDS, JudgedSystem, judge_system, reconstruction_of, systems_of
from splitvfl.app.run_files import CONFIG_FILE, kept_settings
from splitvfl.app.saved_run import SavedRun, load_run
from splitvfl.app.shown_weights import (
    Changed,
    WeightChange,
    changed_weights,
    revealed_change,
    shown_system,
)
from splitvfl.app.stacked_runs import NamedRun, stacked_system, with_shared_records
from splitvfl.app.target_columns import TargetColumns
from splitvfl.config.module_sources import Modules, own_folder
from splitvfl.config.registry import built_in, construct
from splitvfl.config.sections import parse_attacks
from splitvfl.errors import CheckpointError, ConfigError, DataError, printable
from splitvfl.exchange.masking import active_masking, passive_masking
from splitvfl.exchange.roll_call import UNSIGNED
from splitvfl.hooks import (
    Attack,
    hook_name,
    reads_activations,
    reads_steps,
    reads_whole_model,
    target_of,
)
from splitvfl.leakage.features import AWARE, Part, Sees
from splitvfl.leakage.reconstruction import (
    Reconstruction,
    Weights,
)
from splitvfl.messaging.conversation import converse
from splitvfl.party.party import ActiveParty
from splitvfl.run.feature_seats import most_told
from splitvfl.run.feature_systems import System
from splitvfl.run.feature_target import FeatureTarget, targets_of, with_transforms_known
from splitvfl.run.half_folder import is_half
from splitvfl.run.revealed_file import Revealed, read_revealed
from splitvfl.run.trainer import Trainer

VIEWS: tuple[Sees, ...] = ("scores", "activation")
TRUE_WEIGHTS: Mapping[Weights, Mapping[str, WeightChange]] = {"true": {}}
"""Who knows the weights, and nobody else."""

_MOMENT = ("run", "step", "epoch")  # of training, that weights are of

_AUDITED = (
    "halves of a run over a network do not say which records they were trained on: figures are of those that "
    "experiment.yaml names"
)

Chosen = Callable[[System, dict[str, dict[str, str]]], Iterable[Attack]]
"""Given a system and where to say what is left out, returns the attacks that are run on it."""


Run = str | os.PathLike[str] | SavedRun | Trainer


def reconstruct(
    run: Run | Sequence[Run],
    *,
    attacks: str | Sequence[Attack] | None = None,
    views: Sequence[Sees] = VIEWS,
    records: int = RECORDS,
    weights: Weights = "true",
    revealed: Sequence[str | os.PathLike[str]] = (),
    plots: bool = True,
    modules: Modules = None,
) -> Reconstruction:
    """Return what the scores of a run tell of every passive party's columns.

    Training and test records are scored, up to ``records`` of each. Nothing is written.

    Args:
        run: Folder of a finished run with the halves of all parties, as ``splitvfl train`` writes it, one that
            was read, or a trainer. Of several runs of the same columns, whose models score the same records,
            equations are solved together (:mod:`splitvfl.app.stacked_runs`).
        attacks: Feature attacks, or their names by comma, with options as in ``gradient-inversion(steps=500)``;
            ``known-means`` among them. Default: all that come with the library and need only what equations tell, and
            ``known-means``: who knows the columns' means over the training records.
        views: Of what predictions are read: ``"scores"``, ``"activation"``, or both.
        records: How many records of each part, at least 1.
        weights: ``"rotated"`` or ``"shifted"``: the attacker is given these (see
            :mod:`splitvfl.learning.revealed_weights`), beside one who is given the true ones.
        revealed: Files that passive parties of the run have revealed their weights in (``splitvfl reveal``), one of
            each at most. Where they hold changed weights, the attacker is given these, likewise; of a party without a
            file it knows the true ones.
        plots: Whether true and estimated values of up to 200 records are kept, for pictures.
        modules: Where classes of your own are defined that the run names, as :func:`splitvfl.load_run` takes them.

    Raises:
        ConfigError: If no party's model is linear with columns of a finite range, an option is unknown, or weights
            cannot be transformed.
        DataError: If the run's records are not there any more, or have changed; if a file holds no revealed weights of
            this run; if runs are not of the same columns of the same records.
        CheckpointError: If there is no finished run, or not the halves of all parties.
    """
    _check(views, records, weights)
    place, beside = own_folder(modules), [KnownMeans.name]
    named = parse_attacks(attacks, folder=place, beside=beside) if isinstance(attacks, str) else attacks
    given = [run] if isinstance(run, str | os.PathLike | SavedRun | Trainer) else run
    if not given:
        raise ConfigError("expected a run, or several, got none")
    runs = [one if isinstance(one, Trainer) else _with_records(one, modules) for one in given]
    found, models = runs[0], _models(runs, weights, [*map(Path, revealed)])
    active, targets = models[0].active, models[0].targets
    skipped: dict[str, dict[str, str]] = {party: {} for party in targets}
    listed = _own_attacks(found) if named is None else {}
    for party, target in targets.items():
        if target.refused:
            skipped[party]["all attacks"] = target.refused
    for party, why in with_transforms_known(targets)[1].items():
        skipped[party][f"all attacks{AWARE}"] = why
    judgements = judge_columns(
        models,
        _every(listed) if named is None else _listed(named),
        skipped,
        known=0 if named is None else most_told([one for one in named if not isinstance(one, str)]),
        records=records,
        views=views,
        plots=plots,
    )
    made = reconstruction_of(judgements, active, _name_of(models), skipped, targets)
    audited = isinstance(found, SavedRun) and found.over_a_network
    return replace(made, notes=(*((_AUDITED,) if audited else ()), *_settings_note(made, listed), *_notes(models)))


def _check(views: Sequence[str], records: int, weights: str) -> None:
    unknown = [view for view in views if view not in VIEWS]
    if unknown or not views:
        raise ConfigError(f"--views: expected scores, activation or both, got {', '.join(unknown) or 'none'}")
    if records < 1:
        raise ConfigError(f"--records: expected at least 1 record, got {records}")
    if weights not in ("true", "rotated", "shifted"):
        raise ConfigError(f"--transformed-weights: expected rotated or shifted, got {weights}")


def _check_targets(targets: Mapping[str, FeatureTarget], name: str) -> None:
    if not targets:
        raise ConfigError(f"{name}: there is no passive party, and so nobody's columns to reconstruct")
    if all(target.refused for target in targets.values()):
        why = "; ".join(f"{party}: {_why(target)}" for party, target in targets.items())
        raise ConfigError(f"{name}: there is no column that scores give equations of: {why}")


def _why(target: FeatureTarget) -> str:
    party = target.party
    if not party.data.width:
        return "it has no columns of numbers (data.categorical: onehot makes numbers of categories)"
    if not party.is_linear:
        return (
            f"{type(party.bottom).__name__} is not one linear layer on columns of numbers (model: logistic-regression)"
        )
    return target.refused


# --- models of one run, or of several


@dataclass(frozen=True, eq=False)
class AttackedModel:
    """A model whose predictions are attacked.

    Attributes:
        source: What its run is called.
        active: The party in whose seat the attacks are.
        targets: The passive parties.
        shown: Which weights the attacker is given, and what sets these apart from the model's own, by party.
        notes: What there is to say of them.
    """

    source: str
    active: ActiveParty
    targets: Mapping[str, FeatureTarget]
    shown: Mapping[Weights, Mapping[str, WeightChange]]
    notes: tuple[str, ...] = ()


def _models(runs: Sequence[SavedRun | Trainer], weights: Weights, files: Sequence[Path]) -> list[AttackedModel]:
    """Return the models of runs, of several on the records that they share; files go to the run that they are of."""
    finished = [one for one in runs if isinstance(one, SavedRun)]
    if len(runs) > 1 and len(finished) < len(runs):
        raise ConfigError("several models are those of finished runs: give a folder in place of the trainer")
    revealed = [read_revealed(file) for file in files]
    holding = [NamedRun(str(one.folder or "trainer"), one.active, one.passives) for one in runs]
    left_out = 0
    if len(runs) > 1:
        holding, left_out = with_shared_records([_named(one) for one in finished])
    found = []
    for one, held in zip(runs, holding, strict=True):
        targets = targets_of(held.passives)
        _check_targets(targets, held.source)
        own = [file for file in revealed if _run_of(file, runs) is one]
        changes, notes = _of_files(one, targets, own)
        found.append(
            AttackedModel(held.source, held.active, targets, {**_changes(targets, weights), **changes}, tuple(notes))
        )
    if left_out:
        found[0] = replace(found[0], notes=(_left_out(left_out), *found[0].notes))
    return found


def _left_out(records: int) -> str:
    return f"{records:,} shared records are left out, whose columns are not the same in all runs"


def _named(run: SavedRun) -> NamedRun:
    data = run.active.data
    names: dict[Part, Sequence[object]] = {"train": run.names_of(data.train.ids), "test": run.names_of(data.test.ids)}
    return NamedRun(str(run.folder), run.active, run.passives, names)


def _run_of(file: Revealed, runs: Sequence[SavedRun | Trainer]) -> SavedRun | Trainer:
    """Return the run that a file says it is of; of none of them: the first, which refuses it."""
    for one in runs:
        half = one.halves.get(file.schema.party) if isinstance(one, SavedRun) else None
        if half is not None and all(getattr(half.schema, what) == getattr(file.schema, what) for what in _MOMENT):
            return one
    return runs[0]


def _kinds(models: Sequence[AttackedModel]) -> Sequence[Weights]:
    """Return which weights attackers are given, of any of the models."""
    return list(dict.fromkeys(given for model in models for given in model.shown))


def _name_of(models: Sequence[AttackedModel]) -> str:
    more = f" and {len(models) - 1} more" if len(models) > 1 else ""
    return f"{Path(models[0].source).name}{more}"


def _notes(models: Sequence[AttackedModel]) -> list[str]:
    notes = [note for model in models for note in model.notes]
    if len(models) == 1:
        return notes
    train, test = models[0].active.data.train.count, models[0].active.data.test.count
    return [
        f"equations of {len(models)} models are solved together, of the {train:,} training and {test:,} test records "
        f"of {models[0].source} that {' and '.join(model.source for model in models[1:])} hold too",
        *notes,
    ]


# --- weights that are shown


def _changes(targets: Mapping[str, FeatureTarget], how: Weights) -> Mapping[Weights, Mapping[str, WeightChange]]:
    """Return the attackers who know the weights, and who are given others in their place."""
    if how not in get_args(Changed):
        return TRUE_WEIGHTS
    chosen: Changed = "rotated" if how == "rotated" else "shifted"
    seen = {name: target for name, target in targets.items() if not target.refused}
    return {
        **TRUE_WEIGHTS,
        how: {name: changed_weights(TargetColumns(target), chosen) for name, target in seen.items()},
    }


def _of_files(
    found: SavedRun | Trainer, targets: Mapping[str, FeatureTarget], files: Sequence[Revealed]
) -> tuple[Mapping[Weights, Mapping[str, WeightChange]], list[str]]:
    """Return who is given the weights of files, if these are not the model's own, and what there is to say of them."""
    changes: dict[str, WeightChange] = {}
    notes = []
    for one in files:
        party = one.schema.party
        _check_file(found, targets, one, again=any(other.schema.party == party for other in files if other is not one))
        if one.schema.weights == "true":
            notes.append(f"{one.path} holds the model's own weights: what its receiver finds is what is shown")
        else:
            changes[party] = revealed_change(targets[party], one)
            notes.append(
                f"{one.path} holds {one.schema.weights} weights of {party}: what is shown is found by who takes them "
                "for the model's own"
            )
    known = [name for name, target in targets.items() if name not in changes and not target.refused]
    if changes and known:
        notes.append(f"revealed weights: those of {' and '.join(known)} are taken to be known as they are")
    return ({"revealed": changes} if changes else {}), notes


def _check_file(
    found: SavedRun | Trainer, targets: Mapping[str, FeatureTarget], revealed: Revealed, *, again: bool
) -> None:
    """Refuse revealed weights that are not of this run's model.

    Raises:
        ConfigError: If there is no run to compare with, or one party has two files.
        DataError: If they are of another party, model, or number of columns, or say that they are the model's own.
    """
    path, schema = revealed.path, revealed.schema
    party = printable(schema.party, longest=60)
    if isinstance(found, Trainer):
        raise ConfigError("revealed weights are of a finished run: give its folder in place of the trainer")
    if party not in targets:
        raise DataError(f"{path}: expected weights of {' or '.join(targets)}, got those of {party}")
    if again:
        raise ConfigError(f"--revealed: expected one file of {party}, got two")
    half, target = found.halves[party].schema, targets[party]
    for what in _MOMENT:
        if getattr(schema, what) != getattr(half, what):
            raise DataError(
                f"{path}: expected weights of {party} in {found.folder}, got those of another model ({what}: "
                f"{getattr(half, what)} and {printable(str(getattr(schema, what)), longest=60)})"
            )
    if target.refused:
        raise ConfigError(f"{path}: {party}: {_why(target)}")
    if schema.columns != half.numeric_names or revealed.weight.shape != target.weight.shape:
        raise DataError(
            f"{path}: expected weights {tuple(target.weight.shape)} of the columns of {party}, got "
            f"{tuple(revealed.weight.shape)} of "
            + ("other columns" if len(schema.columns) == len(half.numeric_names) else f"{len(schema.columns)} columns")
        )
    same = torch.equal(revealed.weight, target.weight.double()) and torch.equal(revealed.bias, target.bias.double())
    if schema.weights == "true" and not same:
        raise DataError(f"{path}: it says that it holds the model's own weights of {party}, and these are others")


# --- the run


def _with_records(run: str | os.PathLike[str] | SavedRun, modules: Modules) -> SavedRun:
    """Return a run's parties with the records that they were trained and tested on, ready to send."""
    found = run if isinstance(run, SavedRun) else _loaded(Path(run), modules)
    if found.config is not None and found.config.exchange.factory.hides_parts:
        halves = {name: passive_masking(party, found.active.name, UNSIGNED) for name, party in found.passives.items()}
        converse({found.active.name: active_masking(found.active, UNSIGNED), **halves})
    return found.beside_own_records()


def _loaded(folder: Path, modules: Modules) -> SavedRun:
    if is_half(folder) or is_half(folder / "model"):
        raise CheckpointError(
            f"{folder} holds one party's half of a run over a network, and a reconstruction needs the halves and the "
            "columns of all: an auditor who has them puts every party's model folder, under the party's name, into one "
            "folder beside an experiment.yaml that says where all columns are; a passive party alone computes what its "
            "own columns tell: splitvfl forecast EXPERIMENT --as NAME --model FOLDER"
        )
    return load_run(folder, modules=modules)


# --- attacks

# Attacks on columns that a training runs itself.
_IN_TRAINING = (reads_activations, reads_whole_model, reads_steps)


def _own_attacks(run: SavedRun | Trainer) -> dict[str, Attack]:
    """Return the library's attacks on columns that a run lists, by name, with the settings that it lists.

    Raises:
        ConfigError: If its experiment is damaged, or an attack does not take its settings any more.
    """
    made = run.feature_attacks if isinstance(run, Trainer) else _kept_attacks(run.folder / CONFIG_FILE)
    return {
        hook_name(one): one
        for one in made
        if target_of(one) == "features" and not any(reads(one) for reads in _IN_TRAINING)
    }


def _kept_attacks(path: Path) -> Iterator[Attack]:
    """Yield the library's attacks that a run's experiment lists; those of one's own need not be there any more."""
    listed = kept_settings(path.parent).get("attacks")
    for one in listed if isinstance(listed, list) else []:
        section = one if isinstance(one, dict) else {"name": one}
        options = {key: value for key, value in section.items() if key != "name"}
        for name, factory in built_in("attacks").items():
            if name == section.get("name"):
                yield construct(factory, options)


def _settings_note(found: Reconstruction, listed: Mapping[str, Attack]) -> list[str]:
    run = {one.attack for views in found.parties.values() for view in views for one in view.attacks}
    names = sorted(run & listed.keys())
    return [f"with the settings that the run lists: {', '.join(names)}"] if names else []


def _every(listed: Mapping[str, Attack]) -> Chosen:
    """Return a choice of all attacks that need equations alone, and of who knows the columns' means.

    Args:
        listed: Attacks by name that are run instead of those with settings for many records.
    """

    def chosen(system: System, skipped: dict[str, dict[str, str]]) -> Iterator[Attack]:
        refused: dict[str, str] = {}
        for attack in equation_attacks(system.known.A, len(system.known.b), refused):
            yield listed.get(hook_name(attack), attack)
        for name in system.targets:
            skipped[name] |= {f"{attack} ({system.sees})": why for attack, why in refused.items()}
        yield _known_means(system)

    return chosen


def _known_means(system: System) -> KnownMeans:
    mean = torch.cat([TargetColumns(target).moments.mean for target in system.targets.values()])
    return KnownMeans(mean.to(system.known.A.device))


def _listed(attacks: Sequence[Attack | str]) -> Chosen:
    """Return a choice of these attacks; a name stands for who knows the means."""
    if not attacks:
        raise ConfigError("--attacks: expected at least one attack on columns, got none")
    for attack in attacks:
        if not isinstance(attack, str) and reads_activations(attack):
            raise ConfigError(
                f"--attacks: {hook_name(attack)} looks at activations during training, and a reconstruction is of "
                "predictions; list it under attacks in the file, and train"
            )
        if not isinstance(attack, str) and (reads_whole_model(attack) or reads_steps(attack)):
            raise ConfigError(
                f"--attacks: {hook_name(attack)} is run by the training itself, when it has ended, and a "
                "reconstruction is of equations; list it under attacks in the file, and train"
            )
        if not isinstance(attack, str) and target_of(attack) != "features":
            raise ConfigError(
                f"--attacks: {hook_name(attack)} reads {target_of(attack)}, and a reconstruction is of columns; the "
                "attacks on columns are in splitvfl list attacks"
            )
    return lambda system, skipped: [_known_means(system) if isinstance(one, str) else one for one in attacks]


# --- judging


def judge_columns(
    models: Sequence[AttackedModel],
    chosen: Chosen,
    skipped: dict[str, dict[str, str]],
    *,
    known: int = 0,
    records: int = RECORDS,
    views: Sequence[Sees] = VIEWS,
    plots: bool = True,
) -> Iterator[JudgedSystem]:
    """Score some training and test records, and yield what attacks find in what that shows, by party.

    Args:
        models: The models, which score the same records; whose kinds of weights the attacker is given one after the
            other.
        chosen: Returns the attacks that are run on a system.
        skipped: Gets the reason, by party and attack, where one cannot be run.
        known: Of how many training records they are told the columns, at most.
        records: How many records of each part are scored, at most.
        views: Of what predictions are read.
        plots: Whether some records' values are kept.

    Raises:
        DataError: If further models are not of the same columns.
    """
    columns = {name: TargetColumns(target) for name, target in models[0].targets.items()}
    seen_by_model = [systems_of(one.active, one.targets, known=known, most=records) for one in models]
    for systems in zip_longest(*seen_by_model):
        system = systems[0]
        if system.sees not in views:
            continue
        # Who knows a party's transform is not misled by weights that were changed for who does not.
        for given in TRUE_WEIGHTS if system.knows_transform else _kinds(models):
            seen = _stacked(systems, models, given)
            yield from judge_system(
                seen, models[0].active.name, columns, chosen(seen, skipped), skipped, weights=given, plots=plots
            )


def _stacked(systems: Sequence[System | None], models: Sequence[AttackedModel], given: Weights) -> System:
    """Return what all models show of the same records to who is given weights of this kind."""
    seen = []
    for system, model in zip(systems, models, strict=True):
        if system is None:
            raise DataError(
                f"{model.source} and {models[0].source} show predictions in different ways: their exchanges"
            )
        changes = model.shown.get(given, {})
        seen.append(shown_system(system, changes) if changes and not system.knows_transform else system)
    return stacked_system(seen, [model.source for model in models])

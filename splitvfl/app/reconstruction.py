"""What the real scores of a trained model tell of passive parties' columns: ``splitvfl reconstruct``.

Where one process has the columns of all parties, an experiment or an auditor's copy of all halves, attacks need not be
imagined: records are scored once more, every attack solves what the scores and the activations show, and its estimates
are compared with the columns. What :mod:`splitvfl.app.forecasting` computes for one party alone, in exact arithmetic,
is measured here with the rounding, the defenses and the saturation that real scores have.

Attackers are assumed to know the weights, the range of every column over the training records, and everything of the
label party's. With ``weights`` of another kind they are given transformed ones and take these for the model's own. Of a
party that transforms its columns, both are judged: who does not know the transform, and who does.

Source: *Privacy Against Inference Attacks in Vertical Federated Learning*, remark 6 for transformed weights.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import Final

import torch
from torch import Tensor

from splitvfl.app.forecasting import KnownMeans, equation_attacks, two_valued
from splitvfl.app.run_folder import CONFIG_FILE
from splitvfl.app.saved_run import SavedRun, load_run
from splitvfl.attacks.error_bounds import ColumnMoments, row_space
from splitvfl.attacks.rcc1 import rcc1_with_value
from splitvfl.config.registry import built_in, construct
from splitvfl.config.sections import parse_attacks
from splitvfl.config.yaml import Document
from splitvfl.data.transform import MOST_ROTATED, best_rotation
from splitvfl.defenses.revealed_weights import least_singular_value, rotated_weights, weight_shift
from splitvfl.errors import ArgumentError, CheckpointError, ConfigError
from splitvfl.exchange.masking import active_masking, passive_masking
from splitvfl.exchange.roll_call import UNSIGNED
from splitvfl.hooks import Attack, hook_name, known_rows_of, target_of
from splitvfl.leakage.categories import CategoryGroup, category_groups, commonest_share, flags_among, varying_groups
from splitvfl.leakage.estimates import JudgedAttack, best_first, judged_attack, own_columns
from splitvfl.leakage.features import AWARE, FeatureLeak, Sees
from splitvfl.leakage.reconstruction import (
    PLOTTED,
    Certificate,
    PlottedColumn,
    ReconstructedView,
    Reconstruction,
    Weights,
)
from splitvfl.leakage.score_equations import RANK_TOLERANCE, ScoreCounts, count_scores
from splitvfl.messaging.conversation import converse
from splitvfl.party.party import ActiveParty
from splitvfl.run.feature_seats import Judgement, judged, most_told, named_by_knowledge, note_missing
from splitvfl.run.feature_systems import System, aware_systems, scored_systems
from splitvfl.run.feature_target import FeatureTarget, targets_of, with_transforms_known
from splitvfl.run.half_folder import is_half
from splitvfl.run.trainer import Trainer

RECORDS: Final = 2_000
"""Records of each part that are scored, at most: as many predictions as the paper draws."""

SHIFT: Final = 0.6
"""Norm of a shift of weights, in units of the least singular value of the equations, from which on it has no largest
error."""

VIEWS: tuple[Sees, ...] = ("scores", "activation")
_MOST_PLOTTED = 9
_PIECE = 65_536  # records that are read at a time
# Scores of float32 hold logits to about 1e-6 of their size; estimates are off by that over the least singular value.
_CERTIFIED_WITHIN = 1e-3

_AUDITED = (
    "halves of a run over a network do not say which records they were trained on: figures are of those that "
    "experiment.yaml names"
)

Chosen = Callable[[System, dict[str, dict[str, str]]], Iterable[Attack]]
"""Given a system and where to say what is left out, returns the attacks that are run on it."""


def reconstruct(
    run: str | os.PathLike[str] | SavedRun | Trainer,
    *,
    attacks: str | Sequence[Attack] | None = None,
    views: Sequence[Sees] = VIEWS,
    records: int = RECORDS,
    weights: Weights = "true",
    plots: bool = True,
    modules: str | os.PathLike[str] | None = None,
) -> Reconstruction:
    """Return what the scores of a run tell of every passive party's columns.

    Training and test records are scored, up to ``records`` of each. Nothing is written.

    Args:
        run: Folder of a finished run with the halves of all parties, as ``splitvfl train`` writes it, one that
            was read, or a trainer.
        attacks: Feature attacks, or their names by comma, with options as in ``gradient-inversion(steps=500)``;
            ``known-means`` among them. Default: all that come with the library and need only what equations tell, and
            ``known-means``: who knows the columns' means over the training records.
        views: Of what predictions are read: ``"scores"``, ``"activation"``, or both.
        records: How many records of each part, at least 1.
        weights: ``"rotated"`` or ``"shifted"``: the attacker is given these (see
            :mod:`splitvfl.defenses.revealed_weights`), beside one who is given the true ones.
        plots: Whether true and estimated values of up to 200 records are kept, for pictures.
        modules: Where modules of one's own lie that the run's experiment names; default: the current folder.

    Raises:
        ConfigError: If no party's model is linear with columns of a finite range, an option is unknown, or weights
            cannot be transformed.
        DataError: If the run's records are not there any more, or have changed.
        CheckpointError: If there is no finished run, or not the halves of all parties.
    """
    _check(views, records, weights)
    given = Path(modules) if modules is not None else Path.cwd()
    named = parse_attacks(attacks, folder=given, beside=[KnownMeans.name]) if isinstance(attacks, str) else attacks
    found = run if isinstance(run, Trainer) else _with_records(run, modules)
    active, passives = found.active, found.passives
    name = str(found.folder or "trainer")
    skipped: dict[str, dict[str, str]] = {party: {} for party in passives}
    listed = _own_attacks(found) if named is None else {}
    targets = targets_of(passives)
    _check_targets(targets, name)
    for party, target in targets.items():
        if target.refused:
            skipped[party]["all attacks"] = target.refused
    for party, why in with_transforms_known(targets)[1].items():
        skipped[party][f"all attacks{AWARE}"] = why
    judgements = judge_columns(
        active,
        targets,
        _every(listed) if named is None else _listed(named),
        skipped,
        known=0 if named is None else most_told([one for one in named if not isinstance(one, str)]),
        records=records,
        weights=("true",) if weights == "true" else ("true", weights),
        views=views,
        plots=plots,
    )
    made = reconstruction_of(judgements, active, Path(name).name, skipped, targets)
    audited = isinstance(found, SavedRun) and found.over_a_network
    return replace(made, notes=(*((_AUDITED,) if audited else ()), *_settings_note(made, listed)))


def reconstruct_listed(trainer: Trainer, run: str) -> tuple[Reconstruction | None, dict[str, list[FeatureLeak]]]:
    """Return what the feature attacks that a trainer lists find, without values of records, and by party in brief.

    Args:
        trainer: The trainer, after training. Its ``unavailable`` gets the reason where an attack cannot be run.
        run: What the run is called.

    Returns:
        The reconstruction, ``None`` where there is no such attack or nothing to attack; and the figures of every
        attack, as :meth:`splitvfl.Trainer.feature_leaks` returns them.
    """
    attacks = trainer.feature_attacks
    if not attacks:
        return None, {}
    targets = targets_of(trainer.passives)
    note_missing(attacks, trainer.active, targets, trainer.unavailable)
    found = list(
        judge_columns(
            trainer.active, targets, _listed(attacks), trainer.unavailable, known=most_told(attacks), plots=False
        )
    )
    leaks: dict[str, list[FeatureLeak]] = {}
    for one in found:
        leaks.setdefault(one.party, []).extend(one.leaks)
    names = {hook_name(attack) for attack in attacks}
    skipped = {
        party: {attack: why for attack, why in reasons.items() if attack.partition(" (")[0] in names}
        for party, reasons in trainer.unavailable.items()
    }
    return (reconstruction_of(found, trainer.active, run, skipped, targets) if found else None), leaks


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


# --- the run


def _with_records(run: str | os.PathLike[str] | SavedRun, modules: str | os.PathLike[str] | None) -> SavedRun:
    """Return a run's parties with the records that they were trained and tested on, ready to send."""
    found = run if isinstance(run, SavedRun) else _loaded(Path(run), modules)
    if found.config is not None and found.config.exchange.factory.hides_parts:
        halves = {name: passive_masking(party, found.active.name, UNSIGNED) for name, party in found.passives.items()}
        converse({found.active.name: active_masking(found.active, UNSIGNED), **halves})
    return found.beside_own_records()


def _loaded(folder: Path, modules: str | os.PathLike[str] | None) -> SavedRun:
    if is_half(folder) or is_half(folder / "model"):
        raise CheckpointError(
            f"{folder} holds one party's half of a run over a network, and a reconstruction needs the halves and the "
            "columns of all: an auditor who has them puts every party's model folder, under the party's name, into one "
            "folder beside an experiment.yaml that says where all columns are; a passive party alone computes what its "
            "own columns tell: splitvfl forecast EXPERIMENT --as NAME --model FOLDER"
        )
    return load_run(folder, modules=modules)


# --- attacks


def _own_attacks(run: SavedRun | Trainer) -> dict[str, Attack]:
    """Return the library's attacks on columns that a run lists, by name, with the settings that it lists.

    Raises:
        ConfigError: If its experiment is damaged, or an attack does not take its settings any more.
    """
    made = run.feature_attacks if isinstance(run, Trainer) else _kept_attacks(run.folder / CONFIG_FILE)
    return {hook_name(one): one for one in made if target_of(one) == "features"}


def _kept_attacks(path: Path) -> Iterator[Attack]:
    """Yield the library's attacks that a run's experiment lists; those of one's own need not be there any more."""
    if not path.is_file():
        return
    listed = Document(path.read_text(encoding="utf-8"), source=str(path)).tree.get("attacks")
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
        left_out: dict[str, str] = {}
        for attack in equation_attacks(system.known.A, len(system.known.b), left_out):
            yield listed.get(hook_name(attack), attack)
        for name in system.targets:
            skipped[name] |= {f"{attack} ({system.sees})": why for attack, why in left_out.items()}
        yield _known_means(system)

    return chosen


def _known_means(system: System) -> KnownMeans:
    mean = torch.cat([_TargetColumns(target).moments.mean for target in system.targets.values()])
    return KnownMeans(mean.to(system.known.A.device))


def _listed(attacks: Sequence[Attack | str]) -> Chosen:
    """Return a choice of these attacks; a name stands for who knows the means."""
    if not attacks:
        raise ConfigError("--attacks: expected at least one attack on columns, got none")
    for attack in attacks:
        if not isinstance(attack, str) and target_of(attack) != "features":
            raise ConfigError(
                f"--attacks: {hook_name(attack)} reads {target_of(attack)}, and a reconstruction is of columns; the "
                "attacks on columns are in splitvfl list attacks"
            )
    return lambda system, skipped: [_known_means(system) if isinstance(one, str) else one for one in attacks]


# --- judging


class _TargetColumns:
    """What there is to know of a passive party's columns that vary, beside a single record.

    Args:
        target: The party.
    """

    def __init__(self, target: FeatureTarget) -> None:
        self.target = target

    @cached_property
    def moments(self) -> ColumnMoments:
        """First and second moments over the training records, in the unit box."""
        rows = torch.arange(self.target.party.data.train.count).split(_PIECE)
        return ColumnMoments.of(self.target.points("train", piece) for piece in rows)

    @cached_property
    def groups(self) -> list[CategoryGroup]:
        """Categories and flags among the columns."""
        groups = varying_groups(category_groups(self.target.party.data), self.target.box.varying)
        return [*groups, *flags_among(self.target.names, two_valued(self.moments), groups)]

    @property
    def weight(self) -> Tensor:
        """The model's weights in the unit box, ``(k, d)``, float64."""
        weight = self.target.weight.double() * self.target.box.width
        return weight[:, self.target.box.varying]


@dataclass(frozen=True)
class JudgedSystem:
    """What one system of equations told of one party's columns.

    Attributes:
        party: Its name.
        leaks: What every attack found, in the order in which they were given.
        view: The same with all that a table shows, the best attack first.
    """

    party: str
    leaks: Sequence[FeatureLeak]
    view: ReconstructedView


def judge_columns(
    active: ActiveParty,
    targets: Mapping[str, FeatureTarget],
    chosen: Chosen,
    skipped: dict[str, dict[str, str]],
    *,
    known: int = 0,
    records: int = RECORDS,
    weights: Sequence[Weights] = ("true",),
    views: Sequence[Sees] = VIEWS,
    plots: bool = True,
) -> Iterator[JudgedSystem]:
    """Score some training and test records, and yield what attacks find in what that shows, by party.

    Args:
        active: The party in whose seat the attacks are.
        targets: The passive parties.
        chosen: Returns the attacks that are run on a system.
        skipped: Gets the reason, by party and attack, where one cannot be run.
        known: Of how many training records they are told the columns, at most.
        records: How many records of each part are scored, at most.
        weights: Which weights the attacker is given, one after the other.
        views: Of what predictions are read.
        plots: Whether some records' values are kept.

    Raises:
        ConfigError: If weights cannot be transformed.
    """
    columns = {name: _TargetColumns(target) for name, target in targets.items()}
    systems = (find(active, targets, known=known, most=records) for find in (scored_systems, aware_systems))
    for system in chain.from_iterable(systems):
        if system.sees not in views:
            continue
        # Who knows a party's transform is not misled by weights that were changed for who does not.
        for given in ("true",) if system.knows_transform else weights:
            shown = system if given == "true" else _misled(system, columns, given)
            yield from _judge_system(shown, active.name, columns, chosen, skipped, weights=given, plots=plots)


def _judge_system(
    system: System,
    seat: str,
    columns: Mapping[str, _TargetColumns],
    chosen: Chosen,
    skipped: dict[str, dict[str, str]],
    *,
    weights: Weights,
    plots: bool,
) -> Iterator[JudgedSystem]:
    attacks = list(chosen(system, skipped))
    judgements: dict[str, list[tuple[Judgement, int]]] = {}
    for attack in attacks:
        for one in judged(attack, system, seat, skipped):
            judgements.setdefault(one.party, []).append((one, known_rows_of(attack)))
    certified = weights == "true" and any(hook_name(attack) == "rcc1" for attack in attacks)
    certificate = _certificate(system) if certified else None
    for name, found in judgements.items():
        view = _view(system, columns[name], found, weights=weights, certificate=certificate, plots=plots)
        yield JudgedSystem(name, [named_by_knowledge(one.leak, system) for one, _ in found], view)


def _view(
    system: System,
    columns: _TargetColumns,
    judgements: Sequence[tuple[Judgement, int]],
    *,
    weights: Weights,
    certificate: Certificate | None,
    plots: bool,
) -> ReconstructedView:
    target = columns.target
    truth = target.points(system.part, system.rows)
    counted = _counted(system)
    # The view counts these itself.
    repeated = set(counted.note.split("; ")) - {counted.unnormalised_note}
    best = best_first([_figures(one, columns.groups, told) for one, told in judgements])
    first = judgements[0][0].leak
    view = ReconstructedView(
        sees=system.sees,
        part=system.part,
        weights=weights,
        knows_transform=system.knows_transform,
        equations=first.equations or 0,
        joint=first.joint or 0,
        records=len(truth),
        attacks=best,
        baselines=tuple(own_columns(target.names, truth, truth.mean(dim=0), truth.var(dim=0, correction=0).tolist())),
        commonest={one.column: commonest_share(truth[:, list(one.places)]) for one in columns.groups},
        beyond=_places(system.rows, target.beyond(system.part, system.rows)),
        unsolvable=_places(system.rows, system.unsolvable.cpu()),
        saturated=counted.saturated,
        clipped=counted.bounded,
        tied=counted.tied,
        certificate=certificate,
        notes=tuple(note for note in system.note.split("; ") if note and note not in repeated),
    )
    if not plots or weights != "true":
        return view
    shown = next(one for one, _ in judgements if one.leak.attack == best[0].attack)
    return replace(view, plots=tuple(_plotted(view, shown.estimate, shown.truth)))


def _figures(one: Judgement, groups: Sequence[CategoryGroup], told: int) -> JudgedAttack:
    """Return an attack's figures, of the records that it was judged on: not of those whose columns it was told."""
    known = f"is told the columns of {told} training records, and judged on others" if told else ""
    note = "; ".join(filter(None, [known, one.warned]))
    return judged_attack(replace(one.leak, note=note), one.estimate, one.truth, groups)


def _places(rows: Tensor, which: Tensor) -> tuple[int, ...]:
    return tuple(rows[which].tolist())


def _counted(system: System) -> ScoreCounts:
    scores = system.fields.get("scores")
    return count_scores(scores) if scores is not None else ScoreCounts(0, 0, 0, 0, 0)


def _certificate(system: System) -> Certificate:
    """Return how far the truth can be from RCC1's estimates, and of how many records it is farther."""
    known = system.known
    found = rcc1_with_value(known.A, known.b)
    truth = torch.cat([target.points(system.part, system.rows) for target in system.targets.values()], dim=1)
    radii = found.bound.clamp(min=0.0).sqrt()
    away = torch.linalg.vector_norm(truth.to(found.points.device) - found.points, dim=1)
    return Certificate(
        mean_radius=radii.mean().item(),
        largest_radius=radii.max().item(),
        mean_mse=found.bound.mean().item() / known.A.shape[1],
        optimal=int(found.solved.sum()),
        outside=int((away > radii + _CERTIFIED_WITHIN).sum()),
    )


def _plotted(view: ReconstructedView, estimate: Tensor, truth: Tensor) -> Iterator[PlottedColumn]:
    """Yield the columns that are told most, with values of records that are spread evenly over those judged."""
    left = view.left
    names = [one.column for one in view.baselines]
    order = sorted(range(len(names)), key=lambda place: (left.get(names[place], float("inf")), place))
    rows = torch.linspace(0, len(truth) - 1, min(len(truth), PLOTTED), dtype=torch.float64).round().long()
    for place in order[:_MOST_PLOTTED]:
        true, estimated = (values[rows, place].double().tolist() for values in (truth, estimate))
        yield PlottedColumn(names[place], tuple(true), tuple(estimated))


def reconstruction_of(
    judged_systems: Iterable[JudgedSystem],
    active: ActiveParty,
    run: str,
    skipped: Mapping[str, Mapping[str, str]],
    targets: Mapping[str, FeatureTarget],
) -> Reconstruction:
    """Return what was judged, by party.

    Args:
        judged_systems: Of :func:`judge_columns`.
        active: The party in whose seat the attacks were.
        run: What the run is called.
        skipped: Why attacks were not run, by party and attack.
        targets: The passive parties.
    """
    views: dict[str, list[ReconstructedView]] = {}
    for one in judged_systems:
        views.setdefault(one.party, []).append(one.view)
    return Reconstruction(
        run=run,
        attacker=active.name,
        parties={name: tuple(found) for name, found in views.items()},
        skipped={name: dict(why) for name, why in skipped.items() if why},
        transformed=tuple(name for name in views if targets[name].party.data.transform is not None),
    )


# --- transformed weights


def _misled(system: System, columns: Mapping[str, _TargetColumns], given: Weights) -> System:
    """Return a system as it is for who is given transformed weights, and takes them for the model's own."""
    parts, weights, first = [], [], 0
    own = system.fields.get("passive_weight")
    for name in system.targets:
        one = columns[name]
        width = len(one.target.names)
        span = slice(first, first + width)
        change = _change(one, given, sees=system.sees)
        parts.append(change.of_equations(system.known.A[:, span]))
        if own is not None:
            weights.append(change.of_weights(own[..., span]))
        first += width
    fields = dict(system.fields) if own is None else {**system.fields, "passive_weight": torch.cat(weights, dim=-1)}
    return replace(system, known=system.known._replace(A=torch.cat(parts, dim=1)), fields=fields)


@dataclass(frozen=True)
class _Change:
    """What is done to the weights of one party's columns: turned by H, or shifted by Δ."""

    sees: Sees
    H: Tensor | None = None
    shift: Tensor | None = None

    def of_weights(self, weight: Tensor) -> Tensor:
        if self.H is not None:
            return rotated_weights(weight, self.H)
        assert self.shift is not None, "one of the two"
        return weight + self.shift.reshape(weight.shape).to(weight)

    def of_equations(self, A: Tensor) -> Tensor:
        if self.H is not None:
            return rotated_weights(A, self.H)
        assert self.shift is not None, "one of the two"
        differences = self.sees == "scores" and len(self.shift) > 1
        return A + (torch.diff(self.shift, dim=0) if differences else self.shift).to(A)


def _change(columns: _TargetColumns, given: Weights, *, sees: Sees) -> _Change:
    """Return what a party does to the weights that it shows; the same for both views, as they are shown once.

    Raises:
        ConfigError: If they have too many columns, or equations that depend on each other.
    """
    name, weight, moments = columns.target.party.name, columns.weight, columns.moments
    A = torch.diff(weight, dim=0) if len(weight) > 1 else weight
    if given == "rotated":
        if weight.shape[1] > MOST_ROTATED:
            raise ConfigError(
                f"--transformed-weights: rotated: {name} has {weight.shape[1]} columns, and at most {MOST_ROTATED} can "
                "be turned"
            )
        return _Change(sees, H=best_rotation(row_space(A), moments.around(0.0)).matrix)
    flat = weight if len(weight) > 1 else weight[0]
    least = least_singular_value(flat)
    if int(torch.linalg.matrix_rank(A, rtol=RANK_TOLERANCE)) < min(A.shape):
        raise ConfigError(
            f"--transformed-weights: shifted: the equations of {name} depend on each other, so that its weights can be "
            "shifted by next to nothing before their error has no bound; take rotated"
        )
    try:
        shift = weight_shift(flat, moments.around(0.0), moments.mean, norm=SHIFT * least)
    except ArgumentError as error:
        raise ConfigError(f"--transformed-weights: shifted: {name}: {error}") from error
    return _Change(sees, shift=shift.reshape(weight.shape))

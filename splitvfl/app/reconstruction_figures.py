"""What attacks on equations find of columns, in figures: of a trainer's own attacks, when it has trained, or of any.

A reconstruction that is asked for (:mod:`splitvfl.app.reconstruction`) has its figures from here too.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

import torch
from torch import Tensor

from splitvfl.app.target_columns import TargetColumns
from splitvfl.config.registry import built_in
from splitvfl.hooks import Attack, hook_name, known_rows_of
from splitvfl.leakage.categories import CategoryGroup, commonest_share
from splitvfl.leakage.estimates import JudgedAttack, best_first, judged_attack, own_columns
from splitvfl.leakage.features import FeatureLeak
from splitvfl.leakage.reconstruction import (
    MOST_PLOTTED,
    PLOTTED,
    Certificate,
    ReconstructedView,
    Reconstruction,
    Weights,
)
from splitvfl.leakage.score_equations import ScoreCounts, count_scores
from splitvfl.leakage.shown_records import PlottedColumn
from splitvfl.party.party import ActiveParty
from splitvfl.run.feature_seats import Judgement, judged, most_told, named_by_knowledge, note_missing
from splitvfl.run.feature_systems import System, aware_systems, scored_systems
from splitvfl.run.feature_target import FeatureTarget, targets_of
from splitvfl.run.trainer import Trainer

RECORDS: Final = 2_000
"""Records of each part that are scored, at most: as many predictions as the paper draws."""


# Scores of float32 hold logits to about 1e-6 of their size; estimates are off by that over the least singular value.
_CERTIFIED_WITHIN = 1e-3


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
    columns = {name: TargetColumns(target) for name, target in targets.items()}
    found = [
        one
        for system in systems_of(trainer.active, targets, known=most_told(attacks))
        for one in judge_system(system, trainer.active.name, columns, attacks, trainer.unavailable)
    ]
    leaks: dict[str, list[FeatureLeak]] = {}
    for one in found:
        leaks.setdefault(one.party, []).extend(one.leaks)
    names = {hook_name(attack) for attack in attacks}
    skipped = {
        party: {attack: why for attack, why in reasons.items() if attack.partition(" (")[0] in names}
        for party, reasons in trainer.unavailable.items()
    }
    return (reconstruction_of(found, trainer.active, run, skipped, targets) if found else None), leaks


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


def systems_of(
    active: ActiveParty, targets: Mapping[str, FeatureTarget], *, known: int, most: int = RECORDS
) -> Iterator[System]:
    """Yield what predictions show as equations: to who does not know a party's transform, and to who does.

    Args:
        active: The party that sees them.
        targets: The passive parties.
        known: Of how many training records attacks are told the columns, at most.
        most: How many records of each part are scored, at most.
    """
    for find in (scored_systems, aware_systems):
        yield from find(active, targets, known=known, most=most)


def judge_system(
    system: System,
    seat: str,
    columns: Mapping[str, TargetColumns],
    attacks: Iterable[Attack],
    skipped: dict[str, dict[str, str]],
    *,
    weights: Weights = "true",
    plots: bool = False,
) -> Iterator[JudgedSystem]:
    """Yield what attacks find in one system of equations, by party.

    Args:
        system: The equations.
        seat: The party in whose seat the attacks are.
        columns: The passive parties' columns.
        attacks: The attacks.
        skipped: Gets the reason, by party and attack, where one cannot be run.
        weights: Which weights the attacker is given.
        plots: Whether some records' values are kept.
    """
    attacks = list(attacks)
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
    columns: TargetColumns,
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
    found = built_in("attacks")["rcc1"].bounded(known.A, known.b)
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
    for place in order[:MOST_PLOTTED]:
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
        judged_systems: Of :func:`judge_system`.
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

"""Feature attacks in the label party's seat: what a prediction shows it of every passive party's columns.

Both views of :mod:`splitvfl.run.feature_systems` are judged. The attacker is assumed to know the passive parties'
weights, and the range of each column over the training records; and where an attack says so, the columns of some
training records, by which it is not judged. Where a party transforms its columns, every attack is run twice: by who
takes the weights for those of the columns, and by who knows the transform. Both seek the columns themselves.

Over a network nobody has all that. But a passive party knows its weights, its columns and what it sends: it takes its
partner's seat, and attacks itself (:func:`own_feature_leaks`). Nothing is sent for that.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from typing import Any, NamedTuple

import torch
from torch import Tensor

from splitvfl.errors import AttackRefused
from splitvfl.hooks import (
    Alphabet,
    Attack,
    View,
    fields_in_words,
    hook_name,
    known_rows_of,
    needs_of,
)
from splitvfl.leakage.features import AWARE, FeatureLeak, judge_estimate, run_feature_attack
from splitvfl.leakage.score_equations import (
    RANK_TOLERANCE,
)
from splitvfl.party.party import ActiveParty, PassiveParty
from splitvfl.run.feature_systems import (
    PARTS,
    SHOWN,
    LabelParty,
    System,
    aware_systems,
    drawn_rows,
    joined,
    no_scores,
    own_systems,
    sampled_rows,
    scored_systems,
    with_told,
)
from splitvfl.run.feature_target import FeatureTarget, targets_of, with_transforms_known


def feature_leaks(
    attacks: Sequence[Attack],
    active: ActiveParty,
    passives: Mapping[str, PassiveParty],
    unavailable: Mapping[str, dict[str, str]],
) -> dict[str, list[FeatureLeak]]:
    """Run feature attacks on predictions of training and test records, both views; see this module.

    Args:
        attacks: The attacks.
        active: The party in whose seat they are.
        passives: The parties that are attacked, by name.
        unavailable: Gets the reason, by party and attack, where one cannot be run; where only one of the two views
            cannot be had, the attack's name is followed by that view's.
    """
    found: dict[str, list[FeatureLeak]] = {}
    if not attacks:
        return found
    targets = targets_of(passives)
    note_missing(attacks, active, targets, unavailable)
    known = most_told(attacks)
    systems = scored_systems(active, targets, known=known), aware_systems(active, targets, known=known)
    for system in chain(*systems):
        for attack in attacks:
            for one in judged(attack, system, active.name, unavailable):
                found.setdefault(one.party, []).append(named_by_knowledge(one.leak, system))
    return found


def named_by_knowledge(leak: FeatureLeak, system: System) -> FeatureLeak:
    """Return an attack's figures under a name that says whether the attacker knows the transform."""
    return replace(leak, attack=f"{leak.attack}{AWARE}") if system.knows_transform else leak


def own_feature_leaks(
    attacks: Sequence[Attack], party: PassiveParty, seen_by: LabelParty, unavailable: dict[str, str]
) -> list[FeatureLeak]:
    """Run feature attacks on a passive party's own training and test records, by that party alone.

    ``"activation"`` is what it sends of a prediction, after its defenses; ``"scores"`` what remains of that in scores,
    whatever the label party adds to it. What only the label party knows is left out: defenses of scores, scores that
    are saturated, and, where the parts of several parties meet in a sum, what is not known of the others'. All of that
    tells an attacker less, not more.

    Args:
        attacks: The attacks.
        party: The party.
        seen_by: Who sees its part.
        unavailable: Gets the reason, by attack, where one cannot be run, as in :func:`feature_leaks`.
    """
    target = FeatureTarget(party)
    if target.refused:
        unavailable.update({hook_name(attack): target.refused for attack in attacks})
        return []
    aware = None if party.data.transform is None else target.with_transform_known()
    added_up = len(target.weight) == seen_by.logits
    for label in map(hook_name, attacks):
        if not added_up:
            unavailable[f"{label} (scores)"] = "needs scores that are made of the sum of all parts, and nothing else"
        if aware is not None and aware.refused:
            unavailable[f"{label}{AWARE}"] = aware.refused
    found: list[FeatureLeak] = []
    drawn = drawn_rows(party.data.train.count, most_told(attacks))
    for part in PARTS:
        for whose in (target, aware):
            if whose is None or whose.refused:
                continue
            told = list(own_systems(whose, seen_by, "train", drawn, added_up=added_up))
            rows = sampled_rows(getattr(party.data, part).count)
            for system in with_told(own_systems(whose, seen_by, part, rows, added_up=added_up), told):
                for attack in attacks:
                    seen = judged(attack, system, seen_by.name, {party.name: unavailable})
                    found += [named_by_knowledge(one.leak, system) for one in seen]
    return found


def most_told(attacks: Iterable[Attack]) -> int:
    """Return of how many records some attacks are told the columns, at most."""
    return max(map(known_rows_of, attacks), default=0)


def note_missing(
    attacks: Sequence[Attack],
    active: ActiveParty,
    targets: Mapping[str, FeatureTarget],
    unavailable: Mapping[str, dict[str, str]],
) -> None:
    """Write down why an attack cannot be run at a party, or in one of the two views."""
    of_scores = no_scores(active, targets)
    sums = active.sums_parts and len(targets) > 1
    refused = [target.refused for target in targets.values() if target.refused]
    for name, target in targets.items():
        # Of a sum nothing is known unless all parts are linear.
        of_activation = target.refused or (refused[0] if sums and refused else "")
        for attack in attacks:
            label = hook_name(attack)
            if of_activation and of_scores:
                unavailable[name][label] = _not_shown(attack) or of_activation
            elif of_scores:
                unavailable[name][f"{label} (scores)"] = _not_shown(attack) or of_scores
    for name, why in with_transforms_known(targets)[1].items():
        unavailable[name] |= {f"{hook_name(attack)}{AWARE}": why for attack in attacks}


def _not_shown(attack: Attack) -> str:
    """Return what an attack needs that no view of predictions has, whatever the model; empty if there is nothing."""
    needed = fields_in_words(needs_of(attack) - SHOWN)
    if not needed:
        return ""
    return (
        f"needs {', '.join(needed)}, which no view of predictions has; it has {', '.join(sorted(SHOWN))}, "
        "and that of who reads activations has received_activation"
    )


class Judgement(NamedTuple):
    """What an attack found of one party's columns.

    Attributes:
        party: Its name.
        leak: The figures.
        estimate: ``(n, d)``, in the unit box, on the CPU.
        truth: The same of the columns themselves, float64.
        warned: What the attack itself warned of, which is in the figures' note among what is said of the system.
    """

    party: str
    leak: FeatureLeak
    estimate: Tensor
    truth: Tensor
    warned: str


def judged(attack: Attack, system: System, seat: str, unavailable: Mapping[str, dict[str, str]]) -> Iterator[Judgement]:
    """Run an attack on a system and judge its estimate of each party's columns.

    Args:
        attack: The attack.
        system: What a prediction shows.
        seat: Name of the party in whose seat it is.
        unavailable: Gets the reason, by party and attack, where it cannot be run.
    """
    told = known_rows_of(attack)
    system = system.telling(told) if told else system
    shown: dict[str, Any] = {"equations": system.known, **system.fields}
    needs = needs_of(attack)
    if "alphabets" in needs:
        shown["alphabets"] = _side_by_side(system.targets.values())
    view = View(
        party=seat,
        step=0,
        ids=system.ids,
        **{field: value for field, value in shown.items() if field in needs},
    )
    width = system.known.A.shape[1]
    missing = fields_in_words(needs - shown.keys())
    try:
        if missing:
            raise AttackRefused(f"needs {', '.join(missing)}")
        if not len(system.ids):
            raise AttackRefused(f"it is told of all {system.part} records that it would be judged on")
        estimate, warned = run_feature_attack(attack, view, width)
    except AttackRefused as refusal:
        for name in system.targets:
            _refused(unavailable[name], f"{hook_name(attack)} ({system.sees})", str(refusal), system)
        return
    rank = int(torch.linalg.matrix_rank(system.known.A, rtol=RANK_TOLERANCE))
    first = 0
    for name, target in system.targets.items():
        truth = target.points(system.part, system.rows)
        beyond = int(target.beyond(system.part, system.rows).sum())
        notes = [system.note, _beyond(beyond, len(truth)), system.unsolved, warned]
        own = estimate[:, first : first + len(target.names)].cpu()
        first += len(target.names)
        leak = judge_estimate(
            hook_name(attack),
            own,
            truth,
            names=target.names,
            note=joined(notes),
            sees=system.sees,
            part=system.part,
            groups=target.groups,
        )
        yield Judgement(name, replace(leak, equations=rank, joint=width), own, truth, warned)


def _refused(reasons: dict[str, str], label: str, why: str, system: System) -> None:
    """Write down why an attack was not run; of who knows the transform only what holds of nobody else."""
    if not system.knows_transform:
        reasons[label] = why
    elif reasons.get(label) != why:
        reasons[f"{label}{AWARE}"] = why


def _side_by_side(targets: Iterable[FeatureTarget]) -> tuple[Alphabet, ...]:
    """Return the alphabets of all columns of a system."""
    found: list[Alphabet] = []
    first = 0
    for target in targets:
        found += [Alphabet(tuple(first + place for place in one.places), one.values) for one in target.alphabets]
        first += len(target.names)
    return tuple(found)


def _beyond(count: int, total: int) -> str:
    return f"{count} of {total} records lie beyond the known range of a column" if count else ""

"""What the scores of a trained model told of passive parties' columns, in numbers, and the file that keeps it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final, Literal

import msgspec

from splitvfl.leakage.estimates import TOLD, JudgedAttack, OwnColumn, off_by, quoted, shares_left
from splitvfl.leakage.features import Part, Sees
from splitvfl.leakage.shown_records import PlottedColumn
from splitvfl.system.untrusted_files import UntrustedFile, write_json

RECONSTRUCTION_FILE: Final = "reconstruct.json"
FORMAT: Final = "splitvfl reconstruct"
VERSION: Final = 1

Weights = Literal["true", "rotated", "shifted", "revealed"]
"""Which weights the attacker is given: the model's own, ``W Hᵀ`` with the H of theorem 3, ``W + Δ``, or those of a
file that a party has revealed."""

_SAME = 5e-4  # of a mean squared error: saturated scores of float32 are off by such

PLOTTED = 200
"""Records whose values are kept of a plotted column, at most."""

MOST_PLOTTED = 9
"""Columns of a view of which values are kept, at most."""

_MOST_PLOTS = 2_000  # of all parties and views: a page draws each
_FARTHEST = 1e6  # of what lies in the unit box or near it


@dataclass(frozen=True, slots=True)
class Certificate:
    """How far the truth can be from RCC1's estimate at most, if it solves the equations and lies in the box.

    Radii are distances in the unit box of all columns that the equations are in, of at most √d.

    Attributes:
        mean_radius: Mean over records of the root of the bound.
        largest_radius: The largest of them.
        mean_mse: Mean over records of the bound, by column: no reconstruction that solves the equations has more.
        optimal: Of how many records the bound is the value of the semidefinite program, and not merely above it.
        outside: How many records' true columns are farther from the estimate nevertheless: their equations do not hold
            for them, because scores were rounded, saturated or changed, or they lie beyond the known range.
    """

    mean_radius: float
    largest_radius: float
    mean_mse: float
    optimal: int
    outside: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ReconstructedView:
    """What predictions of one part of the records told of one party's columns, in one view.

    Attributes:
        sees: Of what the attacker read a prediction.
        part: Whose records they are.
        weights: Which weights it was given.
        knows_transform: Whether it knows how parties transformed their columns.
        equations: Number of independent equations.
        joint: Number of columns that they are in, of all passive parties.
        records: Number of predictions.
        attacks: What the attacks found, the best first.
        baselines: The columns, as nobody sees them.
        commonest: Share of the commonest category, by column.
        beyond: Records that lie beyond the known range of a column, by their place in the part, from 0.
        unsolvable: Records whose equations have no solution in the box, likewise.
        saturated: Predictions with a score of exactly 0 or 1.
        clipped: Those of them of which no logit is known, so that zeros were raised to solve for anything.
        tied: Predictions whose largest score is not one class's alone.
        certificate: Of RCC1, if it was run with the true weights.
        plots: Columns of which true and estimated values were kept, those that are told most first.
        notes: What else there is to say of it.
    """

    sees: Sees
    part: Part
    weights: Weights = "true"
    knows_transform: bool = False
    equations: int
    joint: int
    records: int
    attacks: tuple[JudgedAttack, ...]
    baselines: tuple[OwnColumn, ...]
    commonest: dict[str, float] = field(default_factory=dict)
    beyond: tuple[int, ...] = ()
    unsolvable: tuple[int, ...] = ()
    saturated: int = 0
    clipped: int = 0
    tied: int = 0
    certificate: Certificate | None = None
    plots: tuple[PlottedColumn, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def knowledge(self) -> str:
        """What stands behind the view's name: which weights the attacker has, if not the true ones, and what else."""
        given = "" if self.weights == "true" else f", {self.weights} weights"
        return f"{given}{', transform known' if self.knows_transform else ''}"

    def asks_as(self, other: ReconstructedView) -> bool:
        """Return whether another view is of an attacker who has the same, of whichever records."""
        return (self.sees, self.knowledge) == (other.sees, other.knowledge)

    @property
    def best(self) -> JudgedAttack:
        """The attack with the smallest error."""
        return self.attacks[0]

    @property
    def mean_mse(self) -> float:
        """Mean squared error per column of answering the columns' means."""
        return sum(one.mean_mse for one in self.baselines) / len(self.baselines)

    @property
    def half_mse(self) -> float:
        """Mean squared error per column of answering ½."""
        return sum(one.half_mse for one in self.baselines) / len(self.baselines)

    @property
    def left(self) -> dict[str, float]:
        """By column, which share of its variance the best attack leaves; without columns of next to no bits."""
        return shares_left(self.best, self.baselines)

    @property
    def counts(self) -> list[str]:
        """Return what is to be counted of its records, in words; nothing where all are as they should be."""
        certified = 0 if self.certificate is None else self.certificate.outside
        found = (
            (len(self.beyond), "lie beyond the known range of a column"),
            (len(self.unsolvable), "have equations without a solution in the box"),
            (self.saturated, "hold a score of exactly 0 or 1, whose logit is bounded or left out"),
            (self.clipped, "have no two positive scores, so that zeros were raised"),
            (self.tied, "have no largest score alone"),
            (certified, "lie outside RCC1's radius, as their equations do not hold for them"),
        )
        return [f"{count:,} of {self.records:,} records {what}" for count, what in found if count]

    @property
    def said(self) -> list[str]:
        """What there is to say of it beside its figures, in sentences: RCC1's certificate, counts, and notes."""
        found = [] if self.certificate is None else [_certified(self.certificate, self)]
        noted: dict[str, list[str]] = {}
        for one in self.attacks:
            if one.note:
                noted.setdefault(one.note, []).append(one.attack)
        return [*found, *self.counts, *self.notes, *(f"{', '.join(names)}: {note}" for note, names in noted.items())]

    def tells_as(self, other: ReconstructedView) -> bool:
        """Return whether another view tells the same, but for roundings: scores and activation of one logit do."""
        errors = [{one.attack: one.mse for one in view.attacks} for view in (self, other)]
        same = [(view.part, view.knowledge, view.equations, view.joint) for view in (self, other)]
        return (
            same[0] == same[1]
            and errors[0].keys() == errors[1].keys()
            and all(abs(error - errors[1][attack]) < _SAME for attack, error in errors[0].items())
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Reconstruction:
    """What the scores of a run told of every passive party's columns.

    Attributes:
        run: What the run is called.
        attacker: The party in whose seat the attacks were: that with the labels.
        parties: By passive party, by part, view and weights.
        skipped: Why an attack was not run, by passive party and attack.
        notes: What else there is to say of all of it.
        transformed: Passive parties whose columns went through a transform of theirs. The attacker knows it in views
            that say so, and in no other.
    """

    run: str
    attacker: str
    parties: Mapping[str, tuple[ReconstructedView, ...]]
    skipped: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    transformed: tuple[str, ...] = ()
    format: str = FORMAT
    version: int = VERSION

    @property
    def sentences(self) -> dict[str, str]:
        """What the scores told, by party, in one sentence each."""
        return {
            name: _sentence(name, views, transformed=name in self.transformed)
            for name, views in self.parties.items()
            if views
        }

    @property
    def said(self) -> list[str]:
        """What there is to say of all of it: its notes, and which attacks were not run, each reason once."""
        reasons: dict[str, dict[str, None]] = {}
        for party, attacks in self.skipped.items():
            for attack, why in attacks.items():
                # Of both views it is said once.
                name, _, view = attack.removesuffix(")").partition(" (")
                everywhere = not view or all(attacks.get(f"{name} ({other})") == why for other in _SEEN)
                shown = name if everywhere else attack
                reasons.setdefault(why, {})[f"{shown} of {party}" if len(self.parties) > 1 else shown] = None
        return [
            *self.notes,
            *(_transform_note(name, self.parties[name]) for name in self.transformed),
            *(f"not run: {', '.join(names)}: {why}" for why, names in reasons.items()),
        ]

    def shown(self) -> Iterator[tuple[str, str, ReconstructedView, ReconstructedView | None]]:
        """Yield party, name, view of test records where there are any, and the same of training records beside them."""
        for party, views in self.parties.items():
            part = "test" if any(view.part == "test" for view in views) else "train"
            for name, view in shown_views(one for one in views if one.part == part):
                trained = next((one for one in views if one.part == "train" and one.asks_as(view)), None)
                yield party, f"{name}{view.knowledge}", view, trained if part == "test" else None

    def without_plots(self) -> Reconstruction:
        """Return the same without any record's values."""
        bare = {name: tuple(replace(view, plots=()) for view in views) for name, views in self.parties.items()}
        return replace(self, parties=bare)

    def as_json(self) -> dict[str, Any]:
        """Return it as JSON takes it."""
        found: dict[str, Any] = msgspec.to_builtins(self)
        return found | {"sentences": self.sentences}

    def save(self, path: Path) -> None:
        """Write it as JSON, all at once, readable by its owner alone: statistics of the parties' columns are in it."""
        write_json(path, self.as_json())

    def keep(self, folder: Path) -> Path:
        """Write it into its run's folder, and return where it lies there."""
        self.save(folder / RECONSTRUCTION_FILE)
        return folder / RECONSTRUCTION_FILE


def read_reconstruction(folder: Path) -> Reconstruction | None:
    """Return what a run's ``reconstruct.json`` says, which may be somebody else's; ``None`` without one.

    Raises:
        CheckpointError: If it is damaged.
    """
    anew = f"make it anew (splitvfl reconstruct {folder}), or delete it"
    file = UntrustedFile(path=folder / RECONSTRUCTION_FILE, remedy=anew)
    return file.json(Reconstruction, wanted=FORMAT, version=VERSION, sanitise=True, wrong_in=_wrong_in)


def _wrong_in(found: Reconstruction) -> str:
    """Return what ``splitvfl reconstruct`` does not write, and a page would stumble over; empty where all is well."""
    views = [view for own in found.parties.values() for view in own]
    if not all(view.attacks and view.baselines for view in views):
        return "a view has no attack or no column"
    names = [{one.column for one in view.baselines} for view in views]
    if not all(
        {one.column for one in attack.columns} == own
        for view, own in zip(views, names, strict=True)
        for attack in view.attacks
    ):
        return "an attack has other columns than its view"
    if not all({plot.column for plot in view.plots} <= own for view, own in zip(views, names, strict=True)):
        return "it has values of a column that its view has not"
    return _wrong_in_plots(views)


def _wrong_in_plots(views: Sequence[ReconstructedView]) -> str:
    plots = [plot for view in views for plot in view.plots]
    if len(plots) > _MOST_PLOTS or not all(len(view.plots) <= MOST_PLOTTED for view in views):
        return f"it has values of more than {MOST_PLOTTED} columns of a view, or of {_MOST_PLOTS:,} in all"
    if not all(1 <= len(plot.true) == len(plot.estimated) <= PLOTTED for plot in plots):
        return f"expected values of 1 to {PLOTTED} records of a column, and as many estimates"
    if not all(abs(value) <= _FARTHEST for plot in plots for value in (*plot.true, *plot.estimated)):
        return "values lie far outside of the unit box"
    return ""


# --- in words

_SEEN = {
    "scores": "the scores alone",
    "activation": "its part of the logits, as the active party does in training, and in predictions whoever computes "
    "the scores,",
}


def shown_views(views: Iterable[ReconstructedView]) -> list[tuple[str, ReconstructedView]]:
    """Return the views that tell different things, each with its name; of two that tell the same, one."""
    found: list[tuple[str, ReconstructedView]] = []
    for view in views:
        same = next((place for place, (_, earlier) in enumerate(found) if earlier.tells_as(view)), None)
        if same is None:
            found.append((view.sees, view))
        else:
            found[same] = (f"{found[same][1].sees} or {view.sees}", found[same][1])
    return found


def _certified(certificate: Certificate, view: ReconstructedView) -> str:
    optimal = "" if certificate.optimal == view.records else f" (optimal for {certificate.optimal:,} of them)"
    return (
        f"RCC1's worst case: no columns that solve the equations lie farther from its estimate than "
        f"{certificate.mean_radius:.2f} on average, and {certificate.largest_radius:.2f} at most{optimal}; that is an "
        f"error of {certificate.mean_mse:.4f} per column"
    )


def _transform_note(name: str, views: Iterable[ReconstructedView]) -> str:
    said = (
        f"{name} transforms its columns, and attackers take its weights for those of the columns as they are, but for "
        "attacks that find out the transform: who knows or guesses it, a flip is one of two, undoes it"
    )
    if any(view.knows_transform for view in views):
        return f"{said}. Figures of that attacker stand under: transform known"
    return f"{said}. Of that attacker: splitvfl forecast EXPERIMENT --as {name} --model RUN"


def _sentence(name: str, views: Iterable[ReconstructedView], *, transformed: bool) -> str:
    """Return what the last view told, the activation's, of records that nobody trained on where there are any."""
    of_true = [view for view in views if view.weights == "true"]
    judged = [one for one in of_true if one.part == "test"] or of_true
    view = [one for one in judged if not one.knows_transform][-1]
    aware = next((one for one in judged if one.knows_transform and one.sees == view.sees), None)
    knows = "weights and the means" if view.best.attack == "known-means" else "weights"
    unaware = ", but not its transform of columns," if transformed else ""
    d, who = len(view.baselines), f"Whoever knows the {knows} of {name}{unaware} and sees {_SEEN[view.sees]}"
    if _finds_all(view):
        return f"{who.rstrip(',')} finds {_every_value(d)}."
    figures = (
        f"misses its columns by {off_by(view.best.mse)} of their range ({view.best.attack}), where their means alone "
        f"miss them by {off_by(view.mean_mse)}"
    )
    hidden = f"; {_who_knows(aware)}" if transformed else ""
    return f"{who} {figures}, and {_learns(view)}{hidden}."


def _finds_all(view: ReconstructedView) -> bool:
    return view.equations == view.joint and view.best.near == 1.0


def _every_value(columns: int) -> str:
    what = f"every value of its {columns} columns" if columns > 1 else "every value of its one column"
    return f"{what}, to within .05 of its range"


def _who_knows(aware: ReconstructedView | None) -> str:
    """Return what who knows the transform finds, as far as it was tried."""
    if aware is None:
        return "who knows the transform may learn more"
    if _finds_all(aware):
        return f"who knows the transform finds {_every_value(len(aware.baselines))}"
    known = "the transform and the means" if aware.best.attack == "known-means" else "the transform"
    return f"who knows {known} misses them by {off_by(aware.best.mse)} ({aware.best.attack}), and {_learns(aware)}"


def _learns(view: ReconstructedView) -> str:
    left = view.left
    told = sorted((column for column, share in left.items() if share < TOLD), key=lambda column: left[column])
    if not told:
        return "learns less than half of the variance of any column"
    return f"learns more than half of the variance of {quoted(told)}"

"""A forecast in numbers: what a passive party's scores will tell of its columns, by its own calculation."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, ClassVar

from splitvfl.attacks.error_bounds import ErrorForecast, Seen
from splitvfl.leakage.estimates import TOLD, JudgedAttack, OwnColumn, off_by, quoted, shares_left

VERSION = 1


@dataclass(frozen=True, slots=True)
class ClassesForecast:
    """What one prediction of a model of so many classes tells, whatever its weights will be.

    Attributes:
        classes: k.
        sees: Of what an attacker reads a prediction.
        equations: How many it gives.
        errors: Between what the estimates' MSE per feature lies.
    """

    classes: int
    sees: Seen
    equations: int
    errors: ErrorForecast

    def as_json(self) -> dict[str, Any]:
        """Return it as JSON takes it."""
        errors = self.errors
        return {
            "classes": self.classes,
            "sees": self.sees,
            "equations": self.equations,
            "rank": errors.rank,
            "exact": errors.exact,
            "least_squares": errors.least_squares._asdict(),
            "half_star": errors.half_star._asdict(),
            "means_known": errors.best._asdict(),
        }


@dataclass(frozen=True, slots=True)
class DefenseForecast:
    """What a defense changes at attackers who do not know that it is there, and at who does.

    Attributes:
        defense: ``flip``: the columns' flip x → 1 − x; ``best-rotation``: the H of theorem 3; ``noise``: of power 1 on
            the logits, in the direction that moves estimates most (theorem 4); ``your transform``, if the model was
            trained with one; ``none``; or a defense of scores that the file asks for, with its settings.
        least_squares: MSE per column of least squares with it: of transforms and noise in closed form over all training
            records, of others over the judged ones.
        half_star: Of Half*.
        known: MSE per column, over the judged records, of RCC2 by who knows it and undoes what can be undone; ``None``:
            not computed.
        gain: Of noise: what each unit of power adds to either, ``σ₁² / d``; ``None`` for transforms.
        power: Of noise: the power at which least squares is as wrong as answering ½; ``None``: it is so without, or it
            is no noise.
        helps_against: Whom, in words; nobody else.
    """

    defense: str
    least_squares: float
    half_star: float
    known: float | None
    gain: float | None
    power: float | None
    helps_against: str


@dataclass(frozen=True, slots=True)
class ViewForecast:
    """What a trained model's predictions tell in one view.

    Attributes:
        sees: Of what an attacker reads a prediction.
        equations: How many independent ones it gives.
        exact: Whether every column is found exactly, of every record.
        least_squares: MSE per column over all training records, in closed form.
        half_star: Likewise of Half*.
        means_known: Likewise of ``A⁺b + (I − P) mean``.
        untold: By column, the share of its variance that this estimate leaves, over all training records; rare values
            among them, which the judged records may not hold.
        attacks: What the attacks found of some records, the best first.
        defenses: What each would change.
        skipped: Why an attack was not run, by its name.
    """

    sees: Seen
    equations: int
    exact: bool
    least_squares: float
    half_star: float
    means_known: float
    untold: Mapping[str, float]
    attacks: tuple[JudgedAttack, ...]
    defenses: tuple[DefenseForecast, ...]
    skipped: Mapping[str, str]

    def left(self, model: ModelForecast) -> dict[str, float]:
        """Return, by column, which share of its variance is left: by the best attack, or by who knows the means.

        What a column of next to no bits loses is not looked for in the judged records: too few of them differ.
        """
        judged = shares_left(self.best, model.baselines)
        return {column: min(share, judged.get(column, share)) for column, share in self.untold.items()}

    @property
    def best(self) -> JudgedAttack:
        """The attack with the smallest error."""
        return self.attacks[0]


@dataclass(frozen=True, slots=True)
class ModelForecast:
    """What a trained model's predictions tell.

    Attributes:
        outputs: Logits of a prediction; 1 of two classes, and of regression.
        judged: Records on which attacks were run.
        half_mse: MSE per column of answering ½, over all training records.
        mean_mse: Of answering the columns' means.
        baselines: The columns, as nobody sees them.
        commonest: Share of the commonest category, by column.
        views: By view.
    """

    outputs: int
    judged: int
    half_mse: float
    mean_mse: float
    baselines: tuple[OwnColumn, ...]
    commonest: Mapping[str, float]
    views: tuple[ViewForecast, ...]


@dataclass(frozen=True, slots=True)
class AgainForecast:
    """After how many models of the same columns, which score the same records, every column is found exactly.

    Of models at hand by rank; of others as if they were in general position, as those are that were fitted to other
    records. With equations that everybody knows, of categories that add up to one. For exact scores: of rounded ones
    the error falls with every model, and does not become 0.

    Attributes:
        at_hand: Number of models at hand.
        each: Equations of the last one, or, without one, of any model of so many classes, by view.
        together: Independent equations of all at hand, by view.
        exact_after: Number of models, by view; ``None``: the models give no equation.
    """

    at_hand: int
    each: Mapping[Seen, int]
    together: Mapping[Seen, int]
    exact_after: Mapping[Seen, int | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Forecast:
    """What a passive party can know, alone, of what predictions will tell of its columns.

    Attributes:
        party: Its name.
        records: Training records, over which closed forms and bounds are taken.
        columns: Its columns that vary, by name; d is their number.
        constant: Number of columns that do not vary, which everybody knows who knows the ranges.
        half_mse: MSE per column of answering ½.
        mean_mse: MSE per column of answering the columns' means.
        before_training: Bounds by number of classes and view.
        exact_from: Number of classes from which on every column is found exactly, by view: with an equation more for
            each category whose columns add up to one.
        sums: How many of these categories there are.
        again: Of models that are trained again.
        model: Of a trained model; ``None``: none was given.
        notes: What there is to say of it.
    """

    party: str
    records: int
    columns: tuple[str, ...]
    constant: int
    half_mse: float
    mean_mse: float
    before_training: tuple[ClassesForecast, ...]
    exact_from: Mapping[Seen, int]
    sums: int
    again: AgainForecast
    model: ModelForecast | None = None
    notes: tuple[str, ...] = field(default=())

    FORMAT: ClassVar[str] = "splitvfl forecast"

    @property
    def sentence(self) -> str:
        """What to do about it, in one sentence; and in another, what models that are trained again tell."""
        first = _before(self) if self.model is None else _after(self, self.model)
        return " ".join(filter(None, [first, _again(self.again)]))

    def as_json(self) -> dict[str, Any]:
        """Return it as JSON takes it."""
        return {
            "format": self.FORMAT,
            "version": VERSION,
            "party": self.party,
            "records": self.records,
            "columns": list(self.columns),
            "constant_columns": self.constant,
            "half_mse": self.half_mse,
            "mean_mse": self.mean_mse,
            "before_training": [row.as_json() for row in self.before_training],
            "exact_from_classes": dict(self.exact_from),
            "trained_again": asdict(self.again),
            "model": None if self.model is None else asdict(self.model),
            "notes": list(self.notes),
            "sentence": self.sentence,
        }


_ENDS = ((min, "low"), (max, "high"))
_SEARCH = "discrete-search"
_SEEN = {
    "scores": "scores alone",
    "activation": "your part of the logits, as the active party does in training, and in predictions whoever computes "
    "the scores,",
}


def _before(found: Forecast) -> str:
    d, exact = len(found.columns), found.exact_from
    later = f"from {exact['scores']} classes on ({exact['activation']} where your part of the logits is seen)"
    told = f"every value of your {_counted(d, 'column')} is found exactly"
    # What the label party sees in training, which is no less than scores tell.
    first = next(row for row in found.before_training if row.sees == "activation")
    if first.classes >= exact["activation"]:
        return (
            f"Of a linear model of {first.classes} classes {told} by whoever knows your weights and sees your part of "
            "the logits: do not take part in its predictions with columns that must stay with you."
        )
    if found.sums:
        told += f" (as columns of a category add up to one; {_SEARCH} may find categories sooner)"
    errors = first.errors
    low, high = (end(getattr(errors.least_squares, name), getattr(errors.half_star, name)) for end, name in _ENDS)
    return (
        f"Of a linear model of {first.classes} classes, who knows your weights misses your columns by {off_by(low)} to "
        f"{off_by(high)} of their range with least squares or Half*, and who knows only their means by "
        f"{off_by(found.mean_mse)}; {later} {told}: agree on the number of classes before you train, and run this "
        "again with --model after it."
    )


def _after(found: Forecast, model: ModelForecast) -> str:
    view = model.views[-1]  # the activation, which tells no less than scores do
    # The search reads no means, and what columns can take is more to know than their range.
    known = "your weights and which values occur" if view.best.attack == _SEARCH else "your weights and means"
    d, who = len(found.columns), f"whoever knows {known} and sees {_SEEN[view.sees]}"
    if view.exact:
        scores = next((one for one in model.views if not one.exact), None)
        hope = "do not let it predict records whose values must stay with you"
        if scores is not None:
            hope += f", or have a third party compute the scores, which leave {off_by(scores.best.mse)}"
        return f"Every value of your {_counted(d, 'column')} is found exactly by {who.rstrip(',')}: {hope}."
    best = view.best
    left = view.left(model)
    told = sorted((name for name, share in left.items() if share < TOLD), key=lambda name: left[name])
    figures = (
        f"misses your columns by {off_by(best.mse)} of their range, where their means alone miss them by "
        f"{off_by(model.mean_mse)}"
    )
    if not told:
        return (
            f"{_capital(who)} {figures}, and learns less than half of the variance of any column: nothing here "
            "speaks against giving predictions of this one model; run this again after every training, as equations of "
            "several models add up."
        )
    return (
        f"{_capital(who)} {figures}, and learns more than half of the variance of {quoted(told)}: leave "
        f"{'it' if len(told) == 1 else 'them'} out or coarsen {'it' if len(told) == 1 else 'them'} before the next "
        "training if that must stay with you."
    )


def _again(found: AgainForecast) -> str:
    """Return after how many models everything is found, where it is not by the first one; empty if no number is."""
    scores, activation = (found.exact_after[sees] for sees in ("scores", "activation"))
    said = []
    if found.at_hand > 1:
        number = found.together["scores"]
        said.append(
            f"The models at hand give {number} independent equation{'' if number == 1 else 's'} together"
            + (f", and {found.together['activation']} where your part of the logits is seen" if _differ(found) else "")
        )
    if scores is not None and scores > 1:
        own = f" ({activation} where your part of the logits is seen)" if scores != activation else ""
        whose = "these score" if scores <= found.at_hand else "a new model a month scores"
        said.append(f"Where {whose} the same records, all is exact after {scores} models{own}")
    return " ".join(f"{one}." for one in said)


def _differ(found: AgainForecast) -> bool:
    return found.together["scores"] != found.together["activation"]


def _counted(count: int, what: str) -> str:
    return f"1 {what}" if count == 1 else f"{count} {what}s"


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]

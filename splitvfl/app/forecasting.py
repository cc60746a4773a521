"""What predictions will tell of a passive party's columns, computed by that party alone: ``splitvfl forecast``.

Nothing is sent and nobody is met. Before training, theorem 2's bounds need the party's columns alone. Of a trained
linear model the party knows ``A x`` for its own records, and so everything that white-box attacks are given: it runs
them on itself.

Attackers are assumed to know the weights and the range of every column over the training records, and the parts of all
other parties: the worst there is, as one prediction of several passive parties is one system in the columns of all.

Source: *Privacy Against Inference Attacks in Vertical Federated Learning*, theorems 2 to 4.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cached_property, lru_cache, partial
from pathlib import Path
from typing import Any, ClassVar, Final, NamedTuple

import torch
from torch import Tensor

from splitvfl.app.forecast_result import (
    AgainForecast,
    ClassesForecast,
    DefenseForecast,
    Forecast,
    ModelForecast,
    ViewForecast,
)
from splitvfl.app.records import load_data, own_data
from splitvfl.app.run_files import MODEL_FOLDER
from splitvfl.app.saved_model import HALF_FILE, SavedHalf, load_half
from splitvfl.attacks.error_bounds import (
    Seen,
    classes_for_exactness,
    column_errors,
    equation_count,
    errors_before_training,
    guess_error,
    half_star_error,
    least_error,
    least_squares_error,
    models_for_exactness,
    row_space,
    transformed_error,
)
from splitvfl.attacks.half import half_star as half_star_of
from splitvfl.attacks.known_defense import can_be_known, estimate_behind
from splitvfl.attacks.least_squares import least_squares
from splitvfl.attacks.rcc2 import rcc2
from splitvfl.config.registry import arguments_of, built_in
from splitvfl.config.sections import ExperimentConfig, HookConfig, ModelSection, PartyConfig
from splitvfl.data.columns import PartyData, Records
from splitvfl.data.encoding import same_numbers
from splitvfl.data.transform import MOST_ROTATED, Rearrangement, best_rotation
from splitvfl.errors import AttackRefused, ConfigError, DataError, SplitVFLError
from splitvfl.hooks import (
    Alphabet,
    Attack,
    Defense,
    Equations,
    Secrets,
    Target,
    View,
    call_defense,
    fields_in_words,
    hook_name,
    needs_of,
    target_of,
)
from splitvfl.leakage.alphabets import known_alphabets
from splitvfl.leakage.categories import CategoryGroup, category_groups, commonest_share, flags_among, varying_groups
from splitvfl.leakage.column_moments import ColumnMoments, two_valued
from splitvfl.leakage.estimates import JudgedAttack, OwnColumn, best_first, judged_attack, own_columns
from splitvfl.leakage.features import judge_estimate, run_feature_attack
from splitvfl.leakage.score_equations import RANK_TOLERANCE, score_equations, score_part
from splitvfl.leakage.unit_box import Box
from splitvfl.learning.losses import link_of, loss_name
from splitvfl.learning.noise_direction import noise_direction
from splitvfl.party.party import PassiveParty

JUDGED: Final = 2_000
"""Records on which attacks are run: as many predictions as the paper draws."""

ENCODED_OTHERWISE: Final = (
    "the records at hand are encoded otherwise than those of the training: figures are of these records"
)

_PIECE = 65_536  # records that are read at a time
# Of a category's sum: float64 rounds moments to less, and one record of 10^8 that is of no category makes more.
_NO_VARIANCE = 1e-9
_FIRST_CLASSES = (2, 3, 4, 5, 6, 7, 8, 9, 10, 20, 50, 100, 200, 500, 1_000)
# Corners of boxes over all records that the exact centre may take: a few seconds.
_MOST_CORNERS = 4_000_000
# What does not rest after so many steps of descent is told; the other attacks solve the same equations at once.
# Integer programs may take their whole limit, one record after another.
_OPTIONS: Mapping[str, Mapping[str, Any]] = {
    "gradient-inversion": {"steps": 2_000},
    "discrete-search": {"most_programs": 20, "time_limit_s": 0.1},
}
_VIEWS: tuple[Seen, ...] = ("scores", "activation")


def forecast(
    config: ExperimentConfig,
    name: str,
    *,
    model: Path | None = None,
    also: Sequence[Path] = (),
    classes: int | None = None,
    judged: int = JUDGED,
) -> Forecast:
    """Return what predictions will tell of a passive party's columns.

    Args:
        config: The experiment, or the party's own file.
        name: The party.
        model: Folder of its trained half, or of the run that holds it. Default: bounds before training alone.
        also: Likewise of further models of the same columns, whose equations add up with those of ``model``.
        classes: Number of classes, if it is known: bounds begin there.
        judged: Records on which attacks are run, at most.

    Raises:
        ConfigError: If the party is not a passive one, the model is not linear, there are fewer than two classes, or
            further models are not of the same columns as they are encoded here.
        DataError: If the data are not what the file says, or no column varies.
        CheckpointError: If there is no trained half, or it is damaged.
    """
    _check(config.parties, name, config.model, config.source)
    _check_counts(classes, judged)
    if also and model is None:
        raise ConfigError("also: further models stand beside a first one: name it (model)")
    half = None if model is None else load_half(half_folder(model, name))
    if half is not None:
        check_half(half, name)
    own = _columns_of(columns_of_training(config, name, half), half, config.model)
    columns_for = partial(columns_of_training, config, name)
    further = [_further(folder, own, columns_for, config.model, config.source) for folder in also]
    if classes is None and half is not None and half.schema.task != "regression":
        classes = max(2, half.schema.outputs)
    published = (
        [] if half is None or half.schema.task == "regression" else _score_defenses(config.defenses, config.folder)
    )
    return Forecast(
        party=name,
        records=own.moments.count,
        columns=own.names,
        constant=own.constant,
        half_mse=guess_error(own.moments, 0.5),
        mean_mse=guess_error(own.moments, own.moments.mean),
        before_training=tuple(_before_training(own.moments, classes)),
        exact_from={sees: classes_for_exactness(len(own.names) - len(own.sums), seen=sees) for sees in _VIEWS},
        sums=len(own.sums),
        again=_trained_again(own, [one.weight for one in (own, *further) if one.weight is not None], classes),
        model=None if half is None else _of_model(own, half, published, judged),
        notes=tuple(_notes(own, config.parties, half, defended=bool(published))),
    )


def _check(parties: Mapping[str, PartyConfig], name: str, model: ModelSection, source: str) -> None:
    if name not in parties or parties[name].role != "passive":
        raise ConfigError(
            f"--as: a forecast is of a passive party's columns, and {name} is none; there are "
            + ", ".join(other for other, party in parties.items() if party.role == "passive")
        )
    if not model.recipe.is_linear:
        raise ConfigError(
            f"{source}: model: {model.name} is not linear, and this forecast is of equations that a "
            "linear model's predictions give (model: logistic-regression); what activations of others tell, "
            "forecast_activations says"
        )
    loss = model.recipe.make_loss()
    if loss is not None and link_of(loss) is None:
        raise ConfigError(
            f"{source}: model: a forecast is of equations that follow from scores, and from those of the "
            f"{loss_name(loss)} loss none do here (means of poisson and gamma; logits that logit_clip cuts off); what "
            "activations tell, splitvfl train with feature attacks measures"
        )


def _check_counts(classes: int | None, judged: int) -> None:
    if classes is not None and classes < 2:
        raise ConfigError(f"--classes: expected at least 2 classes, got {classes}: one class tells nothing")
    if judged < 1:
        raise ConfigError(f"--judged: expected at least 1 record, got {judged}")


def half_folder(folder: Path, name: str) -> Path:
    """Return the folder of a party's half: this one, or where a run keeps it."""
    within = (folder, folder / MODEL_FOLDER, folder / name, folder / MODEL_FOLDER / name)
    return next((one for one in within if (one / HALF_FILE).is_file()), folder)


def check_half(half: SavedHalf, name: str) -> None:
    """Refuse a half that is another party's, or of another role.

    Raises:
        ConfigError: If it is.
    """
    schema = half.schema
    if (schema.party, schema.role) != (name, "passive"):
        raise ConfigError(
            f"--model: {half.folder} is the half of {schema.party} as the {schema.role} party, and the forecast is of "
            f"{name} as a passive one"
        )


# --- the party's own columns


def _columns_of(data: PartyData, half: SavedHalf | None, model: ModelSection) -> _Own:
    """Return the party's columns, and the model's weights of them: after a transform, of who knows it."""
    name = data.name
    if not data.width:
        raise DataError(
            f"{name} has no columns of numbers: there is nothing to forecast (data.categorical: onehot makes numbers "
            "of categories)"
        )
    if not data.train.count:
        raise DataError(f"{name} has no training record: nobody knows the range of its columns")
    groups = category_groups(data)
    if half is None:
        return _Own(data.with_row_norm(model.recipe.row_norm), None, groups)
    party = half.party(data, device=torch.device("cpu"), own=model)
    if not isinstance(party, PassiveParty) or not party.is_linear:
        raise ConfigError(
            f"--model: the half in {half.folder} is not one linear layer on columns of numbers "
            f"({half.schema.model.get('name', 'made in Python')}), and a forecast is of a linear model's equations"
        )
    weight = next(iter(party.bottom.parameters())).detach().cpu().double()
    if weight.shape[0] != half.schema.outputs:
        raise ConfigError(
            f"--model: the half in {half.folder} sends {weight.shape[0]} numbers of a record, and the scores are of "
            f"{half.schema.outputs}: they are no parts of logits, and scores no linear equations"
        )
    transform, shown = party.data.transform, _Shown(party.data, weight)
    if transform is None:
        return _Own(party.data, weight, groups)
    if party.data.train.row_norm is not None and bool(transform.shift.any()):
        return _Own(party.data, weight, [], shown)  # rows that were shifted and then scaled cannot be undone
    return _Own(party.data.with_transform(None), weight @ transform.matrix, groups, shown)


def columns_of_training(config: ExperimentConfig, name: str, half: SavedHalf | None) -> PartyData:
    """Return the party's data: the training records of its half, as far as can be told.

    A party alone divides its records otherwise than an experiment in one process divides the whole file; the encoding
    that was learned of them tells which it was.
    """
    whole: PartyData | None = None
    with suppress(SplitVFLError):  # where the file is of this party alone
        whole = load_data(config)[name]
    if whole is not None and half is None:  # this party's columns, and not all that stand in the file
        return whole
    own = own_data(config, name).data
    return own if whole is None or half is None or encoded_alike(own, half) else whole


def encoded_alike(data: PartyData, half: SavedHalf) -> bool:
    """Return whether records were encoded by what the encoding learned of the training records of a half."""
    found = None if data.provenance is None else data.provenance.encoding
    return same_numbers(found, half.schema.encoding)


class _Shown(NamedTuple):
    """What a model has that was trained on transformed columns.

    Attributes:
        data: The columns as it takes them, transformed.
        weight: Its weights of these, ``(k, d)``, float64.
    """

    data: PartyData
    weight: Tensor


class _Own:
    """A party's columns in the unit box: those that vary.

    Args:
        data: Its data, as they are without a transform that can be undone.
        weight: Its model's weights of them, ``(k, d)``, if there are any.
        groups: Categories among the columns.
        shown: Of a model of transformed columns, what it was trained on.
    """

    def __init__(
        self, data: PartyData, weight: Tensor | None, groups: Sequence[CategoryGroup], shown: _Shown | None = None
    ) -> None:
        self.data, self.shown = data, shown
        self.box = _box(data.train)
        varying = self.box.varying
        if not bool(varying.any()):
            raise DataError(f"none of {data.name}'s columns varies over the training records: there is nothing to find")
        self.constant = int((~varying).sum())
        self.names = tuple(name for name, kept in zip(_names(data), varying.tolist(), strict=True) if kept)
        self.weight = None if weight is None else (weight * self.box.width)[:, varying]
        self.moments = ColumnMoments.of(self._points(data.train, piece) for piece in _pieces(data.train.count))
        self.groups = varying_groups(groups, varying)

    @cached_property
    def sums(self) -> Tensor:
        """Equations that everybody knows, ``(s, d)``: columns of a category that add up to the same in every record."""
        around = self.moments.around(self.moments.mean)
        rows = torch.zeros(0, len(self.names), dtype=torch.float64)
        for one in self.groups:
            where = list(one.places)
            if around[where][:, where].sum().item() < _NO_VARIANCE:
                row = torch.zeros(1, len(self.names), dtype=torch.float64)
                row[0, where] = 1.0
                rows = torch.cat([rows, row])
        return rows

    @property
    def flags(self) -> list[CategoryGroup]:
        """Columns of two values that are in no group, by the moments of all records."""
        return flags_among(self.names, two_valued(self.moments), self.groups)

    @cached_property
    def alphabets(self) -> tuple[Alphabet, ...]:
        """Which columns have few values, and which; after a transform that is not undone each is by itself."""
        data = self.data if self.data.transform is None else replace(self.data, provenance=None)
        return known_alphabets(data, self.box)

    def sample(self, count: int) -> Tensor:
        """Return some training records, spread evenly: ``(count, d)``, or all if there are fewer."""
        return self._points(self.data.train, self._rows(count))

    def misled(self, count: int, sees: Seen) -> tuple[Equations, Tensor]:
        """Return the equations of who takes weights of transformed columns for true, and the columns, in their box."""
        assert self.shown is not None, "there is a transform"
        data, weight = self.shown
        A = torch.diff(weight, dim=0) if sees == "scores" and len(weight) > 1 else weight
        taken, plain = data.train, replace(data.train, transform=None)
        box, rows = _box(plain), self._rows(count)
        right = taken.rows(rows).columns.numeric.double() @ A.T
        known = box.equations(Equations(A, right, torch.zeros_like(right)))
        return known, box.unit(plain.rows(rows).columns.numeric)

    def _rows(self, count: int) -> Tensor:
        total = self.data.train.count
        return torch.linspace(0, total - 1, min(total, count), dtype=torch.float64).round().long()

    def _points(self, records: Records, rows: Tensor) -> Tensor:
        return self.box.unit(records.rows(rows).columns.numeric)[:, self.box.varying]


def _pieces(count: int) -> Iterator[Tensor]:
    for start in range(0, count, _PIECE):
        yield torch.arange(start, min(start + _PIECE, count))


def _box(records: Records) -> Box:
    """Return the range of each column, as the party's model takes it."""
    boxes = [Box.of(records.rows(rows).columns.numeric.double()) for rows in _pieces(records.count)]
    return Box(
        torch.stack([box.lower for box in boxes]).amin(dim=0), torch.stack([box.upper for box in boxes]).amax(dim=0)
    )


def _names(data: PartyData) -> list[str]:
    """Return what the columns that the model takes are called."""
    if data.transform is None:
        return list(data.numeric_names)
    assert isinstance(data.transform, Rearrangement), "a rotation is always undone"
    return [data.numeric_names[place] for place in data.transform.order.tolist()]


# --- before training


def _before_training(moments: ColumnMoments, first: int | None) -> Iterator[ClassesForecast]:
    """Yield bounds for numbers of classes from the first one to that from which all is exact."""
    least, last = first or 2, classes_for_exactness(moments.columns, seen="scores")
    errors = lru_cache(maxsize=None)(lambda rank: errors_before_training(moments, rank))
    for classes in sorted({least, *(k for k in (*_FIRST_CLASSES, last - 1, last) if least <= k <= last)}):
        for sees in _VIEWS:
            count = equation_count(classes, seen=sees)
            yield ClassesForecast(classes, sees, count, errors(min(count, moments.columns)))


# --- with several models


def _further(
    folder: Path, first: _Own, columns_for: Callable[[SavedHalf], PartyData], model: ModelSection, source: str
) -> _Own:
    """Return the columns and weights of a further model, if they are those of the first in one and the same box."""
    name = first.data.name
    half = load_half(half_folder(folder, name))
    check_half(half, name)
    own = _columns_of(columns_for(half), half, model)
    same_box = torch.equal(own.box.lower, first.box.lower) and torch.equal(own.box.upper, first.box.upper)
    if not encoded_alike(own.data, half) or own.names != first.names or not same_box:
        raise ConfigError(
            f"--model: the columns of {folder} are encoded otherwise than those of the first model, or than "
            f"{source} has them: equations of both cannot be put together from this file alone (public ranges, "
            "data.ranges, make encodings equal; splitvfl reconstruct RUN RUN, of experiments, measures)"
        )
    return own


def _trained_again(own: _Own, weights: Sequence[Tensor], classes: int | None) -> AgainForecast:
    """Return after how many models everything is found: by rank of those at hand, of others in general position."""
    d, at_start = len(own.names), len(own.sums)
    each: dict[Seen, int] = {}
    together: dict[Seen, int] = {}
    exact_after: dict[Seen, int | None] = {}
    for sees in _VIEWS:
        rows = [torch.diff(one, dim=0) if sees == "scores" and len(one) > 1 else one for one in weights]
        ranks = [_rank(torch.cat([own.sums, *rows[: count + 1]])) for count in range(len(rows))]
        each[sees] = _rank(torch.cat([own.sums, rows[-1]])) - at_start if rows else 0
        if not rows:
            each[sees] = equation_count(classes or 2, seen=sees)
        known = ranks[-1] if ranks else at_start
        together[sees] = known - at_start
        if known == d:
            exact_after[sees] = ranks.index(d) + 1 if ranks else 0
        else:
            more = models_for_exactness(d - known, each[sees])
            exact_after[sees] = None if more is None else len(rows) + more
    return AgainForecast(len(weights), each, together, exact_after)


def _rank(rows: Tensor) -> int:
    return int(torch.linalg.matrix_rank(rows, rtol=RANK_TOLERANCE))


# --- with a model


def _of_model(own: _Own, half: SavedHalf, published: Sequence[_Published], judged: int) -> ModelForecast:
    assert own.weight is not None, "there is a model"
    truth = own.sample(judged)
    groups = [*own.groups, *own.flags]
    views = [_view(sees, own, truth, groups, published) for sees in _VIEWS]
    return ModelForecast(
        outputs=half.schema.outputs,
        judged=len(truth),
        half_mse=guess_error(own.moments, 0.5),
        mean_mse=guess_error(own.moments, own.moments.mean),
        baselines=tuple(_baselines(own, truth)),
        commonest={one.column: commonest_share(truth[:, list(one.places)]) for one in groups},
        views=tuple(views),
    )


def _baselines(own: _Own, truth: Tensor) -> Iterator[OwnColumn]:
    mean = own.moments.mean
    return own_columns(own.names, truth, mean, own.moments.around(mean).diagonal().tolist())


def _view(
    sees: Seen, own: _Own, truth: Tensor, groups: Sequence[CategoryGroup], published: Sequence[_Published]
) -> ViewForecast:
    weight = own.weight
    assert weight is not None, "there is a model"
    known = Equations(weight, truth @ weight.T, torch.zeros(len(truth), len(weight), dtype=torch.float64))
    if sees == "scores":
        known = score_part(known)
    A = known.A
    rank = int(torch.linalg.matrix_rank(A, rtol=RANK_TOLERANCE))
    skipped: dict[str, str] = {}
    found = []
    for attack in (*equation_attacks(A, len(truth), skipped), KnownMeans(own.moments.mean)):
        try:
            found.append(_judged(attack, known, truth, own, groups))
        except AttackRefused as refusal:
            skipped[hook_name(attack)] = str(refusal)
    errors = least_squares_error(A, own.moments), half_star_error(A, own.moments)
    return ViewForecast(
        sees=sees,
        equations=rank,
        exact=rank == len(own.names),
        least_squares=errors[0],
        half_star=errors[1],
        means_known=least_error(A, own.moments),
        untold=dict(zip(own.names, _untold(A, own.moments), strict=True)),
        attacks=best_first(found),
        defenses=(
            *_defenses(sees, known, truth, own, *errors),
            *(_published(published, truth, weight) if sees == "scores" and A.any() else ()),
        ),
        skipped=skipped,
    )


def _untold(A: Tensor, moments: ColumnMoments) -> list[float]:
    """Return which share of each column's variance is left to who knows the means, at most 1."""
    variances = moments.around(moments.mean).diagonal()
    shares: list[float] = (column_errors(A, moments, fill=moments.mean) / variances).clamp(max=1.0).tolist()
    return shares


def equation_attacks(A: Tensor, records: int, skipped: dict[str, str]) -> Iterator[Attack]:
    """Yield every feature attack that needs equations alone; say which is left out, and why."""
    free = A.shape[1] - int(torch.linalg.matrix_rank(A, rtol=RANK_TOLERANCE))
    for name, factory in built_in("attacks").items():
        if getattr(factory, "target", None) != "features":
            continue
        options = _OPTIONS.get(name, {})
        if any(default is ... for _, default in arguments_of(factory).values()):
            skipped[name] = "it needs settings"
            continue
        attack = factory(**options)
        assert target_of(attack) == "features", "its class says so"
        needs = needs_of(attack) - {"alphabets", "equations"}
        if needs:
            skipped[name] = f"needs {', '.join(fields_in_words(needs))}"
        elif name == "chebyshev-centre" and _corners(A.shape[1], free) * records > _MOST_CORNERS:
            skipped[name] = f"{free} dimensions of {A.shape[1]} are free: too many corners to look at"
        else:
            yield attack


class KnownMeans:
    """Answer the solution nearest to the columns' means, clamped to the unit box: for who knows statistics of them.

    Of all estimates ``A⁺b + (I − P)m`` none has a smaller error, before it is clamped.

    Source: *Privacy Against Inference Attacks in Vertical Federated Learning*, proof of theorem 2.

    Args:
        mean: Of the columns, ``(d,)``, float64.
    """

    name: ClassVar[str] = "known-means"
    target: ClassVar[Target] = "features"
    needs: ClassVar[frozenset[str]] = frozenset({"equations"})

    def __init__(self, mean: Tensor) -> None:
        self._mean = mean

    def __call__(self, view: View, /) -> Tensor:
        """Return the estimate, ``(n, d)``, float64."""
        A, b, _ = view.equations
        return (self._mean + least_squares(A, b - A @ self._mean)).clamp(0.0, 1.0)


def _corners(columns: int, free: int) -> int:
    return math.comb(columns, free) << free


def _judged(
    attack: Attack, known: Equations, truth: Tensor, own: _Own, groups: Sequence[CategoryGroup]
) -> JudgedAttack:
    """Run an attack on the party's own equations, and compare it with the columns, which it does not see."""
    shown = (
        {"equations": known, "alphabets": own.alphabets} if "alphabets" in needs_of(attack) else {"equations": known}
    )
    view = View(party=own.data.name, step=0, ids=torch.arange(len(truth)), **shown)
    estimate, note = run_feature_attack(attack, view, truth.shape[1])
    leak = judge_estimate(hook_name(attack), estimate, truth, names=own.names, note=note, part="train")
    return judged_attack(leak, estimate, truth, groups)


# --- what defenses would change

_SHOWN = "who takes the weights shown for those of the columns themselves"
_PUBLISHED = "who sees scores alone; how much is left to who knows it, its column says"
_UNAWARE = "who sees scores alone, and does not know the noise: else it is taken off again"


def _defenses(
    sees: Seen, known: Equations, truth: Tensor, own: _Own, ls_mse: float, half_star: float
) -> Iterator[DefenseForecast]:
    A, d, moments = known.A, len(own.names), own.moments
    undefended = _mse(rcc2(A, known.b), truth)
    yield DefenseForecast("none", ls_mse, half_star, undefended, None, None, "")
    turns = {"flip": (-torch.eye(d, dtype=torch.float64), torch.ones(d, dtype=torch.float64))}
    if d <= MOST_ROTATED:
        best = best_rotation(row_space(A), moments.around(0.0))
        turns["best-rotation"] = (best.matrix, best.shift)
    for defense, (H, shift) in turns.items():
        ls, star = (transformed_error(A, moments, H, shift, fill=fill) for fill in (0.0, 0.5))
        # Who knows the transform has the equations of the columns themselves.
        yield DefenseForecast(defense, ls, star, undefended, None, None, _SHOWN)
    if own.shown is not None:
        shown, columns = own.misled(len(truth), sees)
        ls, star = (_mse(find(shown.A, shown.b), columns) for find in (least_squares, half_star_of))
        yield DefenseForecast("your transform", ls, star, undefended, None, None, _SHOWN)
    weight = own.weight
    if sees == "scores" and weight is not None and A.any():
        _, gain = noise_direction(weight if len(weight) > 1 else weight[0])
        missing = guess_error(own.moments, 0.5) - ls_mse
        power = missing / gain if missing > 0 else None
        yield DefenseForecast("noise", ls_mse + gain, half_star + gain, None, gain, power, _UNAWARE)


class _Published(NamedTuple):
    """A defense of scores that the file asks for.

    Attributes:
        label: It, with its settings.
        hooks: It, or one after another.
    """

    label: str
    hooks: tuple[Defense, ...]


def _score_defenses(defenses: Sequence[HookConfig], folder: Path) -> list[_Published]:
    """Return the defenses of scores of the file, each by itself, and all of them where there are several."""
    of_scores = [hook for hook in defenses if hook.found("defenses", folder).crossing == "scores"]
    found = [_Published(str(hook), (hook.made("defenses", folder),)) for hook in of_scores]
    if len(found) > 1:
        found.append(_Published("all of them", tuple(one.hooks[0] for one in found)))
    return found


def _published(defenses: Sequence[_Published], truth: Tensor, weight: Tensor | None) -> Iterator[DefenseForecast]:
    """Yield what the file's defenses of scores change, on scores as if the other parts left all classes level."""
    assert weight is not None, "there is a model"
    logits = truth @ weight.T
    rest = -logits.mean(dim=0).expand_as(logits)
    flat = len(weight) == 1
    scores = torch.sigmoid((logits + rest).squeeze(1)) if flat else torch.softmax(logits + rest, dim=1)
    others, shown = (rest.squeeze(1), weight.squeeze(0)) if flat else (rest, weight)
    for defense in defenses:
        sent = scores
        for hook in defense.hooks:
            secrets = Secrets(party="forecast", step=0, generator=torch.Generator().manual_seed(0))
            sent = call_defense(hook, sent, secrets)
        A, b, _ = score_equations(sent, others, shown)
        ls, star = (_mse(find(A, b), truth) for find in (least_squares, half_star_of))
        hook = defense.hooks[0]
        known = None
        if len(defense.hooks) == 1 and can_be_known(hook):
            known = _mse(estimate_behind(hook, sent, others, shown), truth)
        yield DefenseForecast(defense.label, ls, star, known, None, None, _PUBLISHED)


def _mse(estimate: Tensor, truth: Tensor) -> float:
    return (estimate - truth).square().mean().item()


def _notes(own: _Own, parties: Mapping[str, PartyConfig], half: SavedHalf | None, *, defended: bool) -> Iterator[str]:
    name = own.data.name
    others = [other for other, party in parties.items() if party.role == "passive" and other != name]
    if others:
        yield (
            f"the parts of {' and '.join(others)} are taken to be known to the attacker: the worst case, as scores are "
            "one system of equations in the columns of all"
        )
    if half is not None and not encoded_alike(own.data, half):
        yield ENCODED_OTHERWISE
    if own.data.train.row_norm is not None:
        yield f"rows are taken as the model takes them, scaled down to a norm of {own.data.train.row_norm:g}"
    if own.constant:
        yield f"columns that do not vary over the training records, and are known with their range: {own.constant}"
    if own.groups or own.flags:
        yield (
            "categories and flags have few values: discrete-search goes through these, and the other attacks do not "
            "even use that columns of one category sum to one, which is an equation more for each"
        )
    if defended:
        yield (
            "defenses of scores are tried on scores as if the parts of all others left the classes level: you know "
            "your own part alone"
        )
    if own.data.transform is not None:
        yield (
            "columns are those that your model takes, after your transform: who knows the transform undoes it, and who "
            "takes them for the true ones misses more"
        )
    elif own.shown is not None:
        yield (
            "the attacker is taken to know your transform, and undoes it: columns are those before it; what is left to "
            "who takes your weights for weights of these stands beside your transform, among the defenses"
        )
    elif half is None and parties[name].transform is not None:
        yield "your transform is left out: it changes nothing for who knows it"
    if own.data.field_sizes:
        yield f"categories that stay codes, of which a forecast says nothing: {len(own.data.field_sizes)}"

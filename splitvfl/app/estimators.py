"""scikit-learn estimators that train a model split between parties, and tell what it gives away."""

from __future__ import annotations

import copy
import math
import warnings
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from functools import partial
from importlib.util import find_spec
from typing import Any, Self

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import torch
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin
from sklearn.utils import Tags, assert_all_finite
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, check_random_state, column_or_1d
from torch import Tensor

from splitvfl.app.estimator_tables import (
    FittedColumns,
    check_order,
    check_rows,
    fit_parties,
    is_frame,
    table_of,
    transformed,
    value_errors,
)
from splitvfl.app.named_parts import attack_of, defense_of, listed, penalty_of, recipe_of
from splitvfl.app.score_drift import saturation, shifts_said, warn_of_drift
from splitvfl.app.trainer import Trainer
from splitvfl.data.columns import PartyData
from splitvfl.data.doubts import DoubtWarning, variants
from splitvfl.data.labels import Labels
from splitvfl.data.spec import TableSpec
from splitvfl.errors import ArgumentError, shown
from splitvfl.exchange.base import Exchange
from splitvfl.exchange.noise import NoiseSettings
from splitvfl.exchange.prediction import predict
from splitvfl.exchange.split import Split
from splitvfl.hooks import Attack, Weighed, hook_name, placed, target_of
from splitvfl.leakage.leak_table import LeakTable
from splitvfl.learning.defaults import suggested_batch_size, suggested_epochs, suggested_learning_rate
from splitvfl.learning.losses import Loss, link_of, loss_name
from splitvfl.learning.optimizers import PerParameter, fused_adam, rowwise_adagrad, sgd
from splitvfl.learning.randomness import PartyRandom, derive_seed
from splitvfl.learning.sampled import sampled_layers
from splitvfl.learning.sigmoid_coefficients import logistic_loss
from splitvfl.learning.tasks import Binary, Multiclass, Regression, Task
from splitvfl.party.attaching import attach_defense
from splitvfl.party.party import ActiveParty, PassiveParty
from splitvfl.party.recipe import Recipe

_MOST_SEEDS = 2**31 - 1


class _SplitEstimator(BaseEstimator):  # type: ignore[misc]  # scikit-learn has no types
    """What classifier and regressor have in common: see :class:`SplitClassifier`."""

    def __init__(
        self,
        parties: Mapping[str, Any] | None = None,
        *,
        model: Any = "mlp",
        epochs: int | None = None,
        batch_size: int | None = None,
        learning_rate: float | None = None,
        exchange: Exchange | None = None,
        defenses: Sequence[Any] = (),
        attacks: Sequence[Any] = (),
        penalties: Sequence[Any] | Mapping[str, Sequence[Any]] = (),
        audit: bool = True,
        scale: str = "standard",
        missing: str = "error",
        categorical_columns: Sequence[Any] = (),
        min_count: int = 1,
        text_columns: Sequence[Any] = (),
        missing_values: Sequence[Any] = (),
        decimal: str | None = None,
        thousands: str | None = None,
        units: Sequence[str] = (),
        transforms: Mapping[str, Any] | None = None,
        active_name: str = "active",
        device: str = "cpu",
        random_state: Any = None,
    ) -> None:
        self.parties = parties
        self.model = model
        self.epochs = epochs
        self.batch_size = batch_size
        self.learning_rate = learning_rate
        self.exchange = exchange
        self.defenses = defenses
        self.attacks = attacks
        self.penalties = penalties
        self.audit = audit
        self.scale = scale
        self.missing = missing
        self.categorical_columns = categorical_columns
        self.min_count = min_count
        self.text_columns = text_columns
        self.missing_values = missing_values
        self.decimal = decimal
        self.thousands = thousands
        self.units = units
        self.transforms = transforms
        self.active_name = active_name
        self.device = device
        self.random_state = random_state

    def __sklearn_tags__(self) -> Tags:
        """Return what scikit-learn may expect."""
        tags = super().__sklearn_tags__()
        tags.target_tags.required = True
        tags.input_tags.allow_nan = self.missing == "indicator"
        return tags

    def fit(self, X: Any, y: Any) -> Self:
        """Train on all records and return the estimator.

        Args:
            X: A frame (pandas, polars, Arrow, a mapping of arrays), of which text and truth values are welcome; or an
                array or tensor of numbers, ``(n, columns)``.
            y: Labels, ``(n,)``.

        Warns:
            DoubtWarning: If columns of text look like numbers; see :mod:`splitvfl.data.cell_format`.

        Raises:
            ValueError: If columns, labels or settings are not what is needed; most are an
                :class:`~splitvfl.errors.ArgumentError`.
            ConfigError: If a model, attack or defense has no such name or options, or does not go with the labels.
        """
        with value_errors():
            return self._fitted(X, y)

    def _fitted(self, X: Any, y: Any) -> Self:
        check_order(X, y)
        table = self._table(X, fitted=None)
        recipe = recipe_of(self.model)
        exchange = self._exchange()
        labels, task = self._labels(y, recipe.make_loss())
        if exchange.sums_only and task.name == "binary":  # as it computes residues
            task = Binary(logistic_loss(exchange.approximation))
        check_rows(table, labels)
        seed = int(check_random_state(self.random_state).randint(_MOST_SEEDS))
        defenses = [defense_of(one) for one in listed(self.defenses, "defenses")]
        held = fit_parties(
            table,
            {"passive": "rest"} if self.parties is None else self.parties,
            self._spec(recipe),
            active_name=self.active_name,
            categorical=self.categorical_columns,
            text=self.text_columns,
        )
        own_seed = None if self.random_state is None else seed
        held = transformed(held, table, {} if self.transforms is None else self.transforms, seed=own_seed)
        # Labels of another kind are refused by the trainer, whatever the rows are.
        if task.name == "binary" or recipe.make_loss() is not None:
            self._check_rows(recipe, exchange, parties=len(held))
        data = [
            party.data(table, train=True, labels=None if number else labels, norm=recipe.row_norm)
            for number, party in enumerate(held)
        ]
        active, passives = self._parties_of(data, recipe, task, seed, self._optimizer(recipe, exchange))
        epochs = suggested_epochs(table.num_rows) if self.epochs is None else self.epochs
        batch_size = suggested_batch_size(table.num_rows) if self.batch_size is None else self.batch_size
        trainer = Trainer(
            active,
            passives,
            defenses=copy.deepcopy(defenses),
            attacks=[_of_labels(attack_of(one)) for one in listed(self.attacks, "attacks")],
            batch_size=min(batch_size, table.num_rows),
            seed=seed,
            noise_seed_for_experiments=own_seed,
            audit=self.audit,
            evaluate_every=epochs,
            epochs=epochs,
            device=self.device,
            exchange=exchange,
        )
        trainer.fit(epochs)
        self.noise_notes_ = list(trainer.noise_notes)
        self.leakage_ = _as_frame(LeakTable.of(trainer.watch, trainer.after_training).columns())
        self.epochs_, self.batch_size_ = epochs, trainer.batches.batch_size
        # Of a frame, its own: a column of lists is one of them, and several of the table.
        names = getattr(self, "feature_names_in_", table.column_names)
        self._columns = FittedColumns(tuple(map(str, names)), named=is_frame(X) or isinstance(X, Mapping))
        self._held, self._task, self._row_norm, self._seed = held, task, recipe.row_norm, seed
        self._models = {party.name: list(party.models) for party in (active, *passives.values())}
        self._prediction_defenses = defenses
        self._score_shifts = active.learned_shifts
        return self

    def _exchange(self) -> Exchange:
        if self.exchange is None:
            return Split()
        if not isinstance(self.exchange, Exchange):
            raise ArgumentError(
                f"expected exchange as an object of splitvfl.exchange, Split(...) say, got {shown(self.exchange)}"
            )
        return self.exchange

    def _check_rows(self, recipe: Recipe, exchange: Exchange, *, parties: int) -> None:
        """Refuse a linear model that bounds no rows, where noise is calculated for such as are bounded."""
        if (exchange.noise is None and exchange.sum_noise is None) or not recipe.is_linear:
            return
        if recipe.row_norm is not None:
            return
        # Before encryption rows of all parties together are of norm 1, elsewhere those of each.
        norm = math.floor(100 / math.sqrt(parties)) / 100 if isinstance(exchange.noise, NoiseSettings) else 1.0
        if isinstance(self.model, Recipe):
            what = f"row_norm={norm} in {type(self.model).__name__}(...)"
        else:
            named = {"name": self.model} if isinstance(self.model, str) else self.model
            what = f"model={ {**named, 'row_norm': norm} }"
        raise ArgumentError(
            "model: noise is calculated for rows of bounded norm, and this model takes them as they are; write "
            f"{what}, with which longer rows are scaled down"
        )

    def _optimizer(self, recipe: Recipe, exchange: Exchange) -> PerParameter:
        """Return what makes every party's optimiser: plain steps where noise is calculated for them."""
        rate = self.learning_rate
        if exchange.noise is not None or exchange.sum_noise is not None:
            if rate is None:
                raise ArgumentError(
                    "learning_rate: noise is calculated for plain gradient descent, whose rate has no default; give one"
                )
            return PerParameter(dense=partial(sgd, lr=rate))
        usual = suggested_learning_rate(linear=recipe.is_linear) if rate is None else rate
        return PerParameter(dense=partial(fused_adam, lr=usual), embeddings=rowwise_adagrad)

    def _table(self, given: Any, *, fitted: FittedColumns | None) -> pa.Table:
        return table_of(self, given, fitted=fitted, allow_nan=self.missing == "indicator")

    def _spec(self, recipe: Recipe) -> TableSpec:
        how: dict[str, Any] = {"scale": self.scale, "missing": self.missing, "min_count": self.min_count}
        how |= {"missing_values": self.missing_values, "units": self.units}
        how |= {"decimal": self.decimal, "thousands": self.thousands}
        return TableSpec(categorical="index" if recipe.takes_fields else "onehot", **how)

    @abstractmethod
    def _labels(self, y: Any, loss: Loss | None) -> tuple[Labels, Task]:
        """Return labels as they are trained on, and the task, with the model's loss if it brings one."""

    def _parties_of(
        self, data: Sequence[PartyData], recipe: Recipe, task: Task, seed: int, optimizer: PerParameter
    ) -> tuple[ActiveParty, dict[str, PassiveParty]]:
        """Return the parties with new models."""
        own, *others = data
        passives = {}
        for party in others:
            with _first_weights(seed, party.name):
                bottom = recipe.fitted(recipe.make_bottom(party, task), party)
            penalties = self._penalties_of(party.name, [one.name for one in others])
            passives[party.name] = PassiveParty(party, bottom, optimizer=optimizer, penalties=penalties)
            passives[party.name].penalties.check_draws("model")
        widths = [party.output_width() for party in passives.values()]
        with _first_weights(seed, own.name):
            top = recipe.make_top(own, task, widths)
        with _first_weights(seed, own.name, "private top"):
            private = recipe.make_private_top(own, task, widths) if recipe.private_top else None
        return ActiveParty(own, top, private_top=private, task=task, optimizer=optimizer), passives

    def _penalties_of(self, name: str, passives: Sequence[str]) -> list[Weighed]:
        """Return new penalties of a passive party."""
        given = self.penalties
        if not isinstance(given, Mapping):
            return [copy.deepcopy(penalty_of(one)) for one in listed(given, "penalties")]
        if unknown := sorted(map(str, given.keys() - set(passives))):
            raise ArgumentError(f"penalties of {unknown[0]}: the passive parties are {', '.join(passives)}")
        return [copy.deepcopy(penalty_of(one)) for one in listed(given.get(name, ()), f"penalties of {name}")]

    def _outputs(self, X: Any) -> Tensor:
        """Return the top's outputs, ``(n, k)``, float64."""
        check_is_fitted(self)
        with value_errors():
            table = self._table(X, fitted=self._columns)
            found = [party.new_data(table, norm=self._row_norm) for party in self._held]
            active, passives = self._trained([data for data, _ in found])
            outputs = predict(active, passives).outputs.double().cpu()
        drift = {party.name: drift for party, (_, drift) in zip(self._held, found, strict=True)}
        ends = saturation(active, self._task.loss.scores(outputs), drift, in_training=None)
        warn_of_drift(drift, ends, new_values_only=True)
        return outputs

    def _trained(self, data: Sequence[PartyData]) -> tuple[ActiveParty, dict[str, PassiveParty]]:
        """Return the parties with the models that were trained, and other records."""
        own, *others = data
        passives = {party.name: PassiveParty(party, self._models[party.name][0]) for party in others}
        top, *private = self._models[own.name]
        active = ActiveParty(own, top, private_top=private[0] if private else None, task=self._task)
        for party in (active, *passives.values()):
            party.prepare(seed=derive_seed(self._seed, "prediction", party.name), device=torch.device(self.device))
        for name, passive in passives.items():
            active.connect(name)
            if self.random_state is None and sampled_layers(passive.bottom):
                passive.random = PartyRandom.entropic(passive.device)
        noise = None if self.random_state is None else self._seed
        for number, (defense, phases) in enumerate(map(placed, copy.deepcopy(self._prediction_defenses))):
            for passive in passives.values():
                attach_defense(passive, copy.deepcopy(defense), number=number, noise_seed=noise, phases=phases)
        return active, passives


class SplitClassifier(ClassifierMixin, _SplitEstimator):  # type: ignore[misc]
    """Classify records whose columns belong to several parties, in this process.

    The estimator holds the labels and the columns that nobody else claims; each passive party runs a bottom model on
    its own columns. After :meth:`fit`, ``leakage_`` says what each of them could read of the labels in what it was
    sent. Nothing is written to disk. Every record is trained on; columns are encoded from these alone.

    Args:
        parties: What each passive party holds, by its name: names and patterns (``["pay_*"]``), positions (``[0, 3]``),
            a slice, a share of the columns in (0, 1], or ``"rest"``. The label party has what nobody claims. Default:
            one party ``"passive"``, which holds all columns.
        model: The name of a model (``splitvfl list models``), a mapping with its options
            (``{"name": "mlp", "bottom": [16]}``), or a :class:`~splitvfl.models.Recipe`.
        epochs: Passes over the records. Default: :func:`~splitvfl.learning.defaults.suggested_epochs`.
        batch_size: Records in a step. Default: :func:`~splitvfl.learning.defaults.suggested_batch_size`.
        learning_rate: Of Adam. Default: :func:`~splitvfl.learning.defaults.suggested_learning_rate`. With noise that
            the exchange agrees on, of plain gradient descent, without a default.
        exchange: How a step is talked through, an object of :mod:`splitvfl.exchange`. Noise for a privacy loss that it
            agrees on (``Split(noise=HdpNoiseSettings(epsilon=1.0, delta=1e-5))``) is calculated and added, as from an
            experiment's file; ``noise_notes_`` says then what is protected. Default: activations and gradients in the
            clear.
        defenses: Objects, or names with options as on the command line: ``"asymmetric-response(detection_error=0.4)"``.
            Each training starts with copies.
            A mapping with a name and options, as in a file, is taken too.
        attacks: Label attacks, likewise; their figures are in ``leakage_``. What is read of columns is not judged here.
        penalties: What passive parties add to what their bottom models learn, so that what they send tells less of
            their columns (:mod:`splitvfl.penalties`): names, mappings with weight and options as in a file
            (``{"name": "distance-correlation", "weight": 0.3}``), or objects, of which each training starts with
            copies. A list is for every passive party; a mapping has one for each that it names.
        audit: Whether the auditor's attacks run too. They take more time than the training of a small model.
        scale: See :class:`~splitvfl.data.encoding.Encoding`.
        missing: ``"error"``, or ``"indicator"`` where numbers may be missing.
        categorical_columns: Numeric columns that hold categories, as names, patterns and positions; text always does.
        min_count: Categories with fewer records count as "others".
        text_columns: Columns of text that holds categories though it looks like numbers, named in the same way.
        missing_values: What says that nothing is known, such as ``["?"]``; see :class:`~splitvfl.data.spec.TableSpec`,
            here and below.
        decimal: The decimal separator of numbers that are kept as text.
        thousands: What stands between groups of three digits.
        units: What stands before or behind such numbers.
        transforms: What passive parties do to their numeric columns before training, and to every record later: by
            party a name, or a mapping with its options, as ``parties.NAME.transform`` has them in an experiment
            (``{"lab": "flip"}``; a flip needs ``scale="minmax"``). One that is drawn by chance is kept with the models.
        active_name: Name of the label party.
        device: Where models and batches live: ``"cpu"`` or ``"cuda"``.
        random_state: A seed makes everything repeatable, the noise of defenses included, which is then no protection.
            ``None``: noise from the operating system's entropy, and the rest from numpy's global generator.

    Attributes:
        classes_: The labels, sorted.
        leakage_: What could be read of the labels, a row per party and attack: a pandas frame where pandas is
            installed, and else an Arrow table. Columns as of :class:`~splitvfl.leakage.leak_table.LeakTable`.
        epochs_: Epochs that were trained.
        batch_size_: Records in a step.
        noise_notes_: What is protected by noise that was calculated, from whom, and what is not, in sentences.
        n_features_in_: Number of columns.
        feature_names_in_: Their names, where ``X`` had names.

    >>> from sklearn.datasets import load_breast_cancer
    >>> X, y = load_breast_cancer(return_X_y=True)
    >>> model = SplitClassifier(parties={"lab": slice(10, None)}, random_state=0).fit(X[:400], y[:400])
    >>> bool(model.score(X[400:], y[400:]) > 0.9)
    True
    """

    def __sklearn_tags__(self) -> Tags:
        """Return what scikit-learn may expect."""
        tags = super().__sklearn_tags__()
        tags.classifier_tags.multi_class = True
        return tags

    def _labels(self, y: Any, loss: Loss | None) -> tuple[Labels, Task]:
        values = column_or_1d(_on_cpu(y), warn=True)
        assert_all_finite(values, input_name="y")
        check_classification_targets(values)
        self.classes_, codes = np.unique(values, return_inverse=True)
        if len(self.classes_) < 2:
            raise ArgumentError(f"expected labels of two classes or more, got one class: {self.classes_.tolist()}")
        if alike := variants([value for value in self.classes_.tolist() if isinstance(value, str)]):
            told = f"{len(self.classes_)} classes, of which {alike} differ by case and blanks only; write them alike"
            warnings.warn(told, DoubtWarning, stacklevel=4)
        if len(self.classes_) == 2:
            return codes.astype(np.float32), Binary(loss)
        return codes.astype(np.int64), Multiclass(len(self.classes_), loss)

    def predict_proba(self, X: Any) -> npt.NDArray[np.float64]:
        """Return the probability of every class, ``(n, classes)``, float64; classes as in ``classes_``.

        Args:
            X: Records as in :meth:`fit`. An array after a fit on a frame, and a frame after a fit on an array, are
                taken by position, with scikit-learn's warning; text is then in an array of objects.

        Raises:
            ValueError: If columns are not those that were trained on, or the model has no probabilities.

        Warns:
            DoubtWarning: If more than 5 % of a column's values are outside the range of :meth:`fit`, missing or
                unknown, beyond what was so then; or a defense has shifted the scores, so that they are no probabilities
                of the classes.
        """
        outputs = self._outputs(X)
        if link_of(self._task.loss) == "identity":
            raise ArgumentError(
                f"the {loss_name(self._task.loss)} loss has margins and no probabilities; predict gives the classes"
            )
        if self._score_shifts:
            warnings.warn("\n".join(shifts_said(self._score_shifts)), DoubtWarning, stacklevel=2)
        scores: npt.NDArray[np.float64] = self._task.loss.scores(outputs).numpy()
        return np.stack([1 - scores, scores], axis=1) if scores.ndim == 1 else scores

    def predict(self, X: Any) -> npt.NDArray[Any]:
        """Return the likeliest class of every record, ``(n,)``.

        Args:
            X: Records as in :meth:`fit`.

        Raises:
            ValueError: If columns are not those that were trained on.
        """
        outputs = self._outputs(X)
        likeliest = outputs.argmax(dim=1) if outputs.shape[1] > 1 else (outputs[:, 0] > 0).long()
        found: npt.NDArray[Any] = self.classes_[likeliest.numpy()]
        return found


class SplitRegressor(RegressorMixin, _SplitEstimator):  # type: ignore[misc]
    """Predict a number from columns that belong to several parties, in this process.

    All of :class:`SplitClassifier` holds here, but for its labels: these are scaled to mean 0 and variance 1 for the
    training, and predictions back. Not so with a model that brings its own loss (``glm``): counts stay counts.

    Attributes:
        leakage_: As of :class:`SplitClassifier`; a concordance stands where that has an AUC.
    """

    def _labels(self, y: Any, loss: Loss | None) -> tuple[Labels, Task]:
        values = column_or_1d(_on_cpu(y), warn=True, dtype=np.float64)
        assert_all_finite(values, input_name="y")
        if len(values) > 1 and (values == values[0]).all():
            raise ArgumentError(f"expected labels that differ, got {values[0]:g} in all {len(values)} records")
        if loss is not None:  # of counts, amounts, or with settings in the unit of the label
            self._centre, self._spread = 0.0, 1.0
            return values.astype(np.float32), Regression(loss)
        self._centre = float(values.mean()) if len(values) else 0.0
        self._spread = float(values.std()) or 1.0
        return ((values - self._centre) / self._spread).astype(np.float32), Regression()

    def predict(self, X: Any) -> npt.NDArray[np.float64]:
        """Return a number for every record, ``(n,)``.

        Args:
            X: Records as in :meth:`fit`.

        Raises:
            ValueError: If columns are not those that were trained on.
        """
        outputs = self._outputs(X)
        found: npt.NDArray[np.float64] = self._task.loss.scores(outputs).numpy() * self._spread + self._centre
        return found


def _on_cpu(labels: Any) -> Any:
    if labels is None:
        raise ArgumentError("This estimator requires y to be passed, but the target y is None")
    return labels.detach().cpu().numpy() if isinstance(labels, Tensor) else labels


def _of_labels(attack: Attack) -> Attack:
    if target_of(attack) != "labels":
        what = "columns" if target_of(attack) == "features" else target_of(attack)
        raise ArgumentError(
            f"attacks: {hook_name(attack)} infers {what}, and an estimator judges attacks on labels only; give it to "
            "splitvfl.Trainer"
        )
    return copy.deepcopy(attack)


def _first_weights(seed: int, *name: str) -> PartyRandom:
    return PartyRandom(derive_seed(seed, "initialisation", *name))


def _as_frame(columns: Mapping[str, Sequence[Any]]) -> Any:
    """Return a table as pandas has it, where it is installed."""
    if find_spec("pandas") is None:
        return pa.table(dict(columns))
    import pandas as pd

    return pd.DataFrame(dict(columns))

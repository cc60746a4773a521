"""What has a name and no branch is an error wherever names are told apart, and never taken for something else.

A name that pydantic lets through today is told apart in several places. Whoever adds one and forgets a place should
hear of it there, and not train something else under the new name.
"""

from __future__ import annotations

import sys
import typing
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pytest
import torch
from pydantic import create_model

from splitvfl.app.models import Models
from splitvfl.app.noise_plans import plan_of
from splitvfl.config.named import Named
from splitvfl.config.registry import PluginKind, built_in, describe
from splitvfl.config.sections import (
    MODEL,
    ExchangeSection,
    ExperimentConfig,
    parse_config,
)
from splitvfl.crypto import worker
from splitvfl.data.columns import TaskName
from splitvfl.data.encoding import shift_and_scale
from splitvfl.data.fitting import NumericFit, WholeSums
from splitvfl.data.ingest import survey
from splitvfl.data.ingest.plan import read_type
from splitvfl.data.ingest.records import LabelCoder
from splitvfl.data.labels import read_labels
from splitvfl.data.schema import LabelSchema, SplitRule
from splitvfl.data.vocabulary import category_type
from splitvfl.errors import ArgumentError, ConfigError, DataError, HookError, ProtocolError
from splitvfl.exchange.base import Exchange
from splitvfl.exchange.noise import NoiseSettings
from splitvfl.learning.devices import choose_device
from splitvfl.learning.precision import narrow_dtype
from splitvfl.learning.sigmoid_coefficients import approximate_loss, gradient_scale, sigmoid_coefficients
from splitvfl.learning.tasks import task_for
from splitvfl.messaging.messages import dtype_named
from splitvfl.models import Linear
from splitvfl.party.attaching import attach_defense
from splitvfl.privacy import sign_attack_horizon
from splitvfl.run import alignment as aligning
from splitvfl.run.plan import TrainingPlan
from tests.builders import active_party, party_data

TEXT = """
data: {name: breast-cancer}
parties:
  clinic: {role: active, columns: ["mean *"]}
  lab: {role: passive, columns: rest}
model: MODEL
train: {batch_size: 32, epochs: 1, optimizer: {name: sgd, lr: 0.1}}
audit: false
network: {listen: "127.0.0.1:7000", plaintext_on_loopback: true}
"""


def config_of(**changed: Any) -> ExperimentConfig:
    linear = "exchange" in changed
    text = TEXT.replace("MODEL", "{name: logistic-regression, row_norm: 0.7}" if linear else "mlp")
    return parse_config(text, source="run.yaml").model_copy(update=changed)


def new_section(base: type[Any], name: str = "telepathy", **fields: Any) -> Any:
    """A section of a file that somebody has added, derived from one that there is."""
    return create_model("NewConfig", __base__=base, name=(Literal[name], name), **fields)()  # type: ignore[call-overload]


# --- exchanges


@pytest.mark.parametrize("name", built_in("exchanges"))
def test_every_exchange_trains_under_its_own_name(name: str) -> None:
    needed = {"hybrid": {"epsilon": 1.0, "share": 0.3}}.get(name, {})
    section = Named("exchanges", ExchangeSection).default(name, **needed)
    exchange = config_of(exchange=section).exchange.make(rows=32)
    assert isinstance(exchange, Exchange)
    assert exchange.name == name


@pytest.mark.parametrize(("field", "value"), [("calibration", "guessed"), ("protects", "everybody")])
def test_noise_of_an_unknown_kind_is_refused(field: str, value: str) -> None:
    settings = NoiseSettings(epsilon=0.5, delta=0.1, calibration="corrected", protects="active")
    taylor = Named("exchanges", ExchangeSection).default("taylor")
    section = taylor.model_copy(update={"noise": settings.model_copy(update={field: value})})
    with pytest.raises((ConfigError, KeyError), match=value):
        plan_of(config_of(exchange=section), party_data("lab", width=3))


# --- models, optimisers, devices, precisions


@pytest.mark.parametrize("name", sorted({*built_in("models")} - {"pca"}))  # of which there is no top
def test_every_model_is_built(name: str) -> None:
    config, task = config_of(model=MODEL.section(name, Path())(name=name)), task_for("binary")
    models = Models(config.model, config.exchange.make())
    sent = models.bottom(party_data("lab", width=3), task)(torch.zeros(2, 3))
    top = models.top(party_data("clinic", width=3), task, [sent.shape[1]])
    own = torch.zeros(2, 3)
    outputs = top(sent, own) if getattr(top, "separate_active", False) else top(torch.cat([sent, own], dim=1))
    assert outputs.shape == (2, 1)


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        *(("optimizers", name) for name in built_in("optimizers")),
        *(("embedding_optimizers", name) for name in built_in("embedding_optimizers")),
    ],
)
def test_every_optimiser_is_made_with_its_defaults(kind: PluginKind, name: str) -> None:
    made = Named(kind).section(name, Path())().make([torch.nn.Parameter(torch.zeros(2))])
    assert isinstance(made, torch.optim.Optimizer)


@pytest.mark.parametrize("name", built_in("losses"))
def test_every_loss_is_one_of_its_task(name: str) -> None:
    loss = Named("losses").section(name, Path())().make()
    assert task_for(loss.labels, 3, loss).loss is loss
    for other in {"binary", "multiclass", "regression"} - {loss.labels}:
        with pytest.raises(ArgumentError, match=f"this is a {other} task.*data.task: {loss.labels}"):
            task_for(other, 3, loss)


# --- all other names

WHOLE = pa.array([0.0, 1.0])
ONE = torch.ones(1)
UNKNOWN: dict[str, tuple[type[BaseException] | tuple[type[BaseException], ...], Callable[[], Any]]] = {
    "device": (ConfigError, lambda: choose_device("tpu")),
    "precision": (ArgumentError, lambda: narrow_dtype("fp8")),
    "agreed precision": (
        ArgumentError,
        lambda: TrainingPlan(wire=torch.float16).terms(),
    ),
    "dtype on the wire": (ProtocolError, lambda: dtype_named("float8")),
    "task": (ArgumentError, lambda: task_for("ranking")),
    "labels of a task": (ArgumentError, lambda: read_labels(WHOLE, task="ranking", positive=None, source="x")),  # type: ignore[arg-type]
    "type of labels": (
        KeyError,
        lambda: LabelCoder(LabelSchema(column="y", kind="number", values=(), positive=None), "ranking").dtype,  # type: ignore[arg-type]
    ),
    "initialisation": (ArgumentError, lambda: Linear(2, init="ones")),  # type: ignore[arg-type]
    "coefficients": (ArgumentError, lambda: sigmoid_coefficients(ONE, ONE, approximation="tanh")),  # type: ignore[arg-type]
    "loss": (ArgumentError, lambda: approximate_loss(ONE, ONE, approximation="tanh")),  # type: ignore[arg-type]
    "scale of a gradient": (ArgumentError, lambda: gradient_scale("tanh")),  # type: ignore[arg-type]
    "horizon of signs": (ArgumentError, lambda: sign_attack_horizon(0.1, 1.0, approximation="tanh")),
    "scale": (AssertionError, lambda: shift_and_scale(np.ones(2), 0.0, 1.0, "rank")),  # type: ignore[arg-type]
    "kind of a column": (AssertionError, lambda: read_type("date", numeric=False)),  # type: ignore[arg-type]
    "kind of a field": (KeyError, lambda: category_type("date")),  # type: ignore[arg-type]
    "rule of a split": (DataError, lambda: survey.tested_of(SplitRule(rule="newest"), np.arange(3))),  # type: ignore[arg-type]
    "half a rule of a split": (
        DataError,
        lambda: survey.tested_of(SplitRule(rule="hash"), np.arange(3)),
    ),
    "obfuscators of a worker": (KeyError, lambda: worker._source({"source": "guesses", "numbers": []})),
    "job of a worker": (KeyError, lambda: worker.done({"do": "guess"})),
    "mode of an alignment": (KeyError, lambda: aligning._KEPT["size-only"]),
    "what is listed": (ConfigError, lambda: describe("telepathy")),
}


@pytest.mark.parametrize(("error", "use"), UNKNOWN.values(), ids=UNKNOWN)
def test_an_unknown_name_is_an_error(error: Any, use: Callable[[], Any]) -> None:
    with pytest.raises(error):
        use()


@pytest.mark.parametrize("name", ["sigmoid_coefficients", "approximate_loss"])
def test_an_approximation_that_is_listed_and_not_computed_is_an_error(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = sys.modules["splitvfl.learning.sigmoid_coefficients"]  # a function of the package has its name
    monkeypatch.setattr(module, "APPROXIMATIONS", (*module.APPROXIMATIONS, "tanh"))
    with pytest.raises(AssertionError, match="unreachable"):
        getattr(module, name)(ONE, ONE, approximation="tanh")
    with pytest.raises(KeyError):
        gradient_scale("tanh")  # type: ignore[arg-type]


def test_a_defense_of_an_unknown_message_is_refused() -> None:
    class Strange:
        crossing = "weights"

        def __call__(self, message: Any, secrets: Any, /) -> Any: ...

    with pytest.raises(HookError, match="crossing must be one of"):
        attach_defense(active_party(), Strange(), number=0, noise_seed=None)


def test_columns_are_fitted_for_known_scales_only() -> None:
    sums = WholeSums(log=False)
    sums.add(np.arange(2.0))
    with pytest.raises(AssertionError, match="unreachable"):
        NumericFit("x", scale="rank", fill=False, sums=sums).fitted()  # type: ignore[arg-type]


def test_the_tables_of_names_are_complete() -> None:
    from splitvfl.app.noise import _EPOCHS_COUNTED, _WHAT_HOLDS
    from splitvfl.data.columns import LABEL_DTYPES
    from splitvfl.models.linear import _LARGEST_DEVIATION, Init

    calibrations = typing.get_args(NoiseSettings.model_fields["calibration"].annotation)
    assert set(_LARGEST_DEVIATION) == set(typing.get_args(Init))
    assert set(_WHAT_HOLDS) == set(_EPOCHS_COUNTED) == set(calibrations)
    assert set(LABEL_DTYPES) == set(typing.get_args(TaskName))

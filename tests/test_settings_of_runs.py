"""Every argument of exchanges, trainers, parties, models, penalties and estimators is used: two values, two results.

As in ``test_settings_are_used.py`` the arguments come from the constructors: a new one without a row fails here. What
changes no result stands in a table with its reason.
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import mse_loss

from splitvfl import SplitModel
from splitvfl.app.trainer import Trainer
from splitvfl.attacks import GradientClassifierAttack, NormAttack
from splitvfl.config.registry import SUPPLIED, arguments_of, built_in
from splitvfl.cut.layer import CutLayer
from splitvfl.defenses import Isotropic, LaplaceResidue
from splitvfl.errors import SplitVFLError
from splitvfl.exchange.base import Exchange
from splitvfl.exchange.noise import HdpNoiseSettings, NoiseSettings, SumNoiseSettings
from splitvfl.exchange.paillier import Encryption, InsecureEncryption
from splitvfl.exchange.receiver_clips import ReceiverClips
from splitvfl.exchange.split import Split
from splitvfl.hooks import Weighed
from splitvfl.leakage.leak_table import LeakTable
from splitvfl.learning.glm_losses import LOSS_NAMES
from splitvfl.learning.schedule import EarlyStopping
from splitvfl.learning.tasks import Binary
from splitvfl.models import MLP, Linear, LinearTop, PCARecipe, glm_loss, logistic_loss
from splitvfl.party.party import ActiveParty, PassiveParty
from splitvfl.penalties import DistanceCorrelation
from splitvfl.sklearn import SplitClassifier, SplitRegressor
from tests.builders import (
    ACTIVE,
    active_party,
    bottom_model,
    columns_of,
    labels_of,
    party_data,
    passive_party,
    seeded,
    sgd,
    top_model,
    weights,
)
from tests.exchange import logistic

# What own columns predict is never asked here, only whether it was judged.
pytestmark = pytest.mark.usefixtures("quick_own_models")

# Two sets of arguments that differ in one alone. What is not in the first has its default there.
Pair = tuple[dict[str, Any], dict[str, Any]]
Rows = Mapping[tuple[str, str], Pair]


def arguments(found: Mapping[str, Callable[..., Any]], *, but: Iterable[str] = ()) -> set[tuple[str, str]]:
    return {(name, one) for name, made in found.items() for one in arguments_of(made) if one not in but}


def same(left: list[Any], right: list[Any]) -> bool:
    return len(left) == len(right) and all(
        torch.equal(one, other) if isinstance(one, Tensor) else one == other
        for one, other in zip(left, right, strict=True)
    )


_ran_twice: dict[str, tuple[Any, list[Any]]] = {}


def twice(run: Callable[[dict[str, Any]], list[Any]], options: dict[str, Any]) -> list[Any]:
    """Return what a run ends with, which another of the same arguments does too: most rows have the same first ones."""
    of = run if isinstance(run, partial) else partial(run)
    # A function inside a test is another in each test.
    key = repr((of.func, of.args, of.keywords, options))
    if key not in _ran_twice:
        first, again = run(options), run(options)
        assert same(first, again), "what differs is to be due to the argument"
        _ran_twice[key] = run, first  # which keeps the function, and so its place in memory, for itself
    return _ran_twice[key][1]


def differ(run: Callable[[dict[str, Any]], list[Any]], pair: Pair) -> None:
    """Check that the first set of arguments gives one result twice, and the second another, or an error of our own."""
    first = twice(run, pair[0])
    try:
        second = run(pair[1])
    except SplitVFLError:
        return
    assert not same(first, second)


# --- exchanges

SHORT: dict[str, Any] = {"encryption": InsecureEncryption(key_bits=512)}
FEWER_BITS: dict[str, Any] = {"encryption": InsecureEncryption(key_bits=512, value_bits=10)}
SENT = {"own_part": "sent"}
# What every run of an exchange has, beside its rows below.
COMMON: dict[str, dict[str, Any]] = {
    **{name: {**SHORT, "rows": logistic.BATCH} for name in ("coordinator", "residue", "taylor")},
    "hybrid": {**SHORT, "rows": logistic.BATCH, "epsilon": 1.0, "share": 0.4, "selection_seed_for_experiments": 3},
}
EXCHANGES: Rows = {
    ("coordinator", "encryption"): ({}, FEWER_BITS),
    ("coordinator", "own_part"): ({}, SENT),
    ("hybrid", "encryption"): ({}, FEWER_BITS),
    ("hybrid", "own_part"): ({}, SENT),
    ("hybrid", "epsilon"): ({}, {"epsilon": 3.0}),
    ("hybrid", "share"): ({}, {"share": 0.3}),
    ("hybrid", "approximation"): ({}, {"approximation": "taylor"}),
    ("hybrid", "selection_seed_for_experiments"): ({}, {"selection_seed_for_experiments": 4}),
    ("one-way", "bottom"): ({}, {"bottom": "pca"}),
    ("one-way", "width"): ({}, {"width": 3}),
    ("oracle", "approximation"): ({}, {"approximation": "taylor"}),
    ("oracle", "own_part"): ({}, SENT),
    ("residue", "encryption"): ({}, FEWER_BITS),
    ("residue", "own_part"): ({}, SENT),
    ("residue", "approximation"): ({}, {"approximation": "taylor"}),
    ("residue", "sum_noise"): ({}, {"sum_noise": SumNoiseSettings(epsilon=1.0, delta=1e-5)}),
    ("split", "own_part"): ({}, SENT),
    ("split", "receiver_clips"): ({}, {"receiver_clips": ReceiverClips(coefficient=0.1)}),
    ("split", "in_flight"): ({}, {"in_flight": 1}),
    ("split", "noise"): ({}, {"noise": HdpNoiseSettings(epsilon=1.0, delta=1e-5)}),
    ("taylor", "encryption"): ({}, FEWER_BITS),
    ("taylor", "own_part"): ({}, SENT),
    ("taylor", "loss"): ({}, {"loss": False}),
    ("taylor", "noise"): ({}, {"noise": NoiseSettings(epsilon=0.5, delta=1e-5)}),
}
NO_RESULT_OF_EXCHANGES: dict[tuple[str, str], str] = {
    **dict.fromkeys(
        [(name, one) for name in ("coordinator", "hybrid", "residue", "taylor") for one in ("processes", "stock")],
        "how fast it is computed, and not what",
    ),
    ("coordinator", "address"): "where the coordinator is found in a network",
    ("coordinator", "identity"): "whose certificate it has in a network",
    (
        "one-way",
        "memory_mib",
    ): "how much is kept in memory; what does not fit is refused: tests/exchange/test_one_way.py",
    ("one-way", "disk_mib"): "how much is kept on disk, likewise",
}
ENCRYPTION: dict[str, Pair] = {
    "value_bits": ({}, {"value_bits": 10}),
    "feature_bits": ({}, {"feature_bits": 10}),
    "value_limit": ({}, {"value_limit": 0.01}),
    "feature_limit": ({}, {"feature_limit": 0.01}),
    "most_columns": ({}, {"most_columns": 1}),
}
NO_RESULT_OF_ENCRYPTION = {
    "key_bits": "how hard a key is to break",
    "packed": "how many sums share a ciphertext: how fast it is, and not what comes out",
}


def run_of_exchange(name: str, options: dict[str, Any]) -> list[Any]:
    """What a short run ends with: everybody's weights, and the losses that the active party learns."""
    exchange: Exchange = built_in("exchanges")[name](**{**COMMON.get(name, {}), **options})
    if name == "one-way":
        return trained(Trainer(*small_parties(), batch_size=16, exchange=exchange, audit=False))
    loss = logistic_loss("taylor" if exchange.hides_parts else "exact")
    data = logistic.data_of(ACTIVE, 2, labels=True, records=32)
    active = ActiveParty(data, seeded("top", lambda: LinearTop(1, active_inputs=2)), task=Binary(loss), optimizer=sgd)
    bottom = seeded("bottom", lambda: Linear(2))
    passive = PassiveParty(logistic.data_of("telecom", 2, records=32), bottom, optimizer=sgd)
    trainer = Trainer(
        active,
        {"telecom": passive},
        batch_size=logistic.BATCH,
        exchange=exchange,
        defenses=[LaplaceResidue(epsilon=20.0)],  # so that what is sent is not what it was
        noise_seed_for_experiments=1,
        audit=False,
    )
    return trained(trainer)


def small_parties(*, task: str = "binary") -> tuple[ActiveParty, dict[str, PassiveParty]]:
    return active_party(task=task, optimizer=sgd), {"telecom": passive_party("telecom", optimizer=sgd)}


def trained(trainer: Trainer, epochs: int = 1) -> list[Any]:
    """The weights that a trainer ends with, and what was said of losses and leaks on the way."""
    told: list[str] = []
    trainer.fit(epochs, progress=lambda status: told.append(str((status.loss, status.test))))
    return [*weights(trainer).values(), told]


@pytest.mark.parametrize(("name", "argument"), EXCHANGES)
def test_two_values_of_an_exchange_train_two_models(name: str, argument: str) -> None:
    differ(partial(run_of_exchange, name), EXCHANGES[name, argument])


@pytest.mark.parametrize("setting", ENCRYPTION)
def test_two_values_of_the_encryption_compute_two_sums(setting: str) -> None:
    def run(options: dict[str, Any]) -> list[Any]:
        return run_of_exchange("residue", {"encryption": InsecureEncryption(key_bits=512, **options)})

    differ(run, ENCRYPTION[setting])


# --- trainer and parties

NOISY = {"defenses": [Isotropic(ratio=1.0)]}
READER = {"attacks": [GradientClassifierAttack()]}
STOPPING = {"early_stopping": EarlyStopping(patience=1)}
TRAINER: dict[str, Pair] = {
    "active": ({}, {"active": "other weights"}),
    "passives": ({}, {"passives": "other weights"}),
    "defenses": ({}, NOISY),
    "attacks": ({}, {"attacks": [NormAttack()]}),
    "batch_size": ({}, {"batch_size": 12}),
    "drop_last": ({"batch_size": 20}, {"batch_size": 20, "drop_last": True}),
    "block_rows": ({}, {"block_rows": 4}),
    "shards": ({}, {"shards": 2}),
    "seed": ({}, {"seed": 1}),
    "noise_seed_for_experiments": (NOISY, {**NOISY, "noise_seed_for_experiments": 2}),
    "known_positives": (READER, {**READER, "known_positives": 3}),
    "known_negatives": (READER, {**READER, "known_negatives": 3}),
    "audit": ({}, {"audit": True}),
    "canaries": ({"audit": True}, {"audit": True, "canaries": 20}),
    "evaluate_every": (STOPPING, {**STOPPING, "evaluate_every": 3}),
    "early_stopping": ({}, STOPPING),
    "autocast": ({}, {"autocast": torch.bfloat16}),
    "wire": ({}, {"wire": torch.bfloat16}),
    "exchange": ({}, {"exchange": Split(in_flight=1)}),
    "record": ({}, {"record": "kept"}),
    "scores_by": ({}, {"scores_by": "nobody"}),
    "direction_by": ({}, {"direction_by": "telecom"}),
}
NO_RESULT_OF_TRAINERS = {
    "malicious": "who deviates, and what is read then: tests/run/test_packing_seat.py",
    "log_dir": "where a run is kept",
    "overwrite": "whether the run that a folder holds is replaced: tests/run/test_replacement.py",
    "log_every": "how often a line is written into the folder",
    "checkpoint_every": "how often a checkpoint is written into the folder",
    "device": "where it is computed",
    "record_evaluations": "what is told of evaluations: tests/messaging/test_transcript.py",
    "epochs": "for how long noise is calculated: tests/app/test_python_noise.py",
}


def run_of_trainer(options: dict[str, Any]) -> list[Any]:
    active, passives = small_parties()
    given = {"batch_size": 16, "noise_seed_for_experiments": 1, "audit": False, **copy.deepcopy(options)}
    messages: list[str] = []
    for name, party in (("active", active), ("passives", passives["telecom"])):
        if given.pop(name, None):
            nn.init.constant_(next(party.module.parameters()), 0.1)
    if given.pop("record", None):
        given["record"] = lambda message: messages.append(message.kind)
    trainer = Trainer(active, passives, **given)
    found = [*trained(trainer, 3), messages, trainer.predict()]
    leaks = LeakTable.of(trainer.watch, trainer.after_training).columns()
    return [*found, str(leaks)]


@pytest.mark.parametrize("argument", TRAINER)
def test_two_values_of_a_trainer_give_two_results(argument: str) -> None:
    differ(run_of_trainer, TRAINER[argument])


def other_top() -> nn.Module:
    return seeded("another top", lambda: MLP(6, [5, 1], final_activation=False))


PARTIES: Rows = {
    ("active", "data"): ({}, {"data": lambda: party_data(ACTIVE, width=2, task="binary", train=40)}),
    ("active", "top"): ({}, {"top": other_top}),
    ("active", "private_top"): ({}, {"private_top": other_top}),
    ("active", "private_optimizer"): ({"private_top": other_top}, {"private_top": other_top, "private_optimizer": sgd}),
    ("active", "task"): ({}, {"task": Binary(logistic_loss("taylor"))}),
    ("active", "optimizer"): ({}, {"optimizer": sgd}),
    ("passive", "data"): ({}, {"data": lambda: party_data("telecom", width=5, unit=True)}),
    ("passive", "bottom"): ({}, {"bottom": lambda: bottom_model("another")}),
    ("passive", "optimizer"): ({}, {"optimizer": sgd}),
    ("passive", "penalties"): ({}, {"penalties": [DistanceCorrelation()]}),
    ("penalty", "penalty"): ({}, {"penalty": DistanceCorrelation(records=4)}),
    ("penalty", "weight"): ({}, {"weight": 2.0}),
    ("penalty", "warm_up_steps"): ({}, {"warm_up_steps": 3}),
}
MAKERS: dict[str, Callable[..., Any]] = {"active": ActiveParty, "passive": PassiveParty, "penalty": Weighed}
LAZY = ("data", "top", "private_top", "bottom")  # what is made anew for every run


def run_of_parties(kind: str, options: dict[str, Any]) -> list[Any]:
    given = {name: value() if name in LAZY else copy.deepcopy(value) for name, value in options.items()}
    own: dict[str, Any] = {"data": party_data(ACTIVE, width=2, task="binary"), "top": top_model()}
    other: dict[str, Any] = {"data": party_data("telecom", width=5), "bottom": bottom_model("telecom")}
    if kind == "penalty":
        other["penalties"] = [Weighed(**{"penalty": DistanceCorrelation(), **given})]
    else:
        (own if kind == "active" else other).update(given)
    trainer = Trainer(ActiveParty(**own), {"telecom": PassiveParty(**other)}, batch_size=16, audit=False)
    return [*trained(trainer), trainer.predict()]


@pytest.mark.parametrize(("kind", "argument"), PARTIES)
def test_two_values_of_a_party_train_two_models(kind: str, argument: str) -> None:
    differ(partial(run_of_parties, kind), PARTIES[kind, argument])


PENALTIES: Rows = {
    ("adversarial-reconstruction", "records"): ({}, {"records": 4}),
    ("adversarial-reconstruction", "hidden"): ({}, {"hidden": 3}),
    ("adversarial-reconstruction", "lr"): ({}, {"lr": 0.1}),
    ("adversarial-reconstruction", "steps"): ({}, {"steps": 1}),
    ("distance-correlation", "records"): ({}, {"records": 4}),
}


@pytest.mark.parametrize(("name", "argument"), PENALTIES)
def test_two_values_of_a_penalty_train_two_models(name: str, argument: str) -> None:
    def run(options: dict[str, Any]) -> list[Any]:
        return run_of_parties("penalty", {"penalty": built_in("penalties")[name](**options)})

    differ(run, PENALTIES[name, argument])


# --- a model and a cut of your own loop


def squared(output: Tensor, labels: Tensor) -> Tensor:
    return mse_loss(output.squeeze(1), labels)


CUTS: Rows = {
    ("model", "bottom"): ({}, {"bottom": lambda: seeded("another", lambda: nn.Linear(5, 3))}),
    ("model", "top"): ({}, {"top": lambda: seeded("another", lambda: nn.Linear(3, 1))}),
    ("model", "loss"): ({}, {"loss": squared}),
    ("cut", "party"): ({}, {"party": "telecom"}),
    ("cut", "active"): ({}, {"active": "bank"}),
}


def run_of_loop(kind: str, options: dict[str, Any]) -> list[Any]:
    """One step, and who is said to draw at the cut."""
    given = {name: value() if name in ("bottom", "top") else value for name, value in options.items()}
    if kind == "cut":
        cut = CutLayer(**given)
        return [cut.party, cut.activation.party, cut.gradient.party]
    bottom, top = seeded("bottom", lambda: nn.Linear(5, 3)), seeded("top", lambda: nn.Linear(3, 1))
    model = SplitModel(**{"bottom": bottom, "top": top, **given})
    x, labels = columns_of("x", "train", 16, 5), labels_of("train", 16, "binary")
    loss = model.loss(model(x, labels=labels), labels)
    loss.backward()
    return [loss.detach(), *(weight.grad for weight in model.parameters())]


@pytest.mark.parametrize(("kind", "argument"), CUTS)
def test_two_values_of_a_loop_take_two_steps(kind: str, argument: str) -> None:
    differ(partial(run_of_loop, kind), CUTS[kind, argument])


# --- estimators, and models by them

FRAME = pd.DataFrame(
    {
        **{f"x{number}": columns_of("x", "train", 40, 4)[:, number].numpy() for number in range(4)},
        "gap": [None if row == 7 else float(row % 5) for row in range(40)],
        "code": [row % 4 for row in range(40)],
        "kind": ["abc"[row % 3] if row else "rare" for row in range(40)],
        "sort": ["de"[row % 2] for row in range(40)],
        "number": [f"{row % 7}.{row % 10}" for row in range(40)],
        "unknown": ["?" if row == 7 else f"{row % 7}.{row % 10}" for row in range(40)],
        "comma": [f"{row % 7},{row % 10}" for row in range(40)],
        "large": [f"{row % 7 + 1}.{row % 10}00" for row in range(40)],
        "weight": [f"{row % 7} kg" for row in range(40)],
    }
)
ANSWERS = (labels_of("train", 40, "binary") > 0).numpy()
PLAIN = ["x0", "x1", "x2", "x3"]
WITH: dict[str, list[str]] = {
    "missing": [*PLAIN, "gap"],
    "missing_values": [*PLAIN, "unknown"],
    "decimal": [*PLAIN, "comma"],
    "thousands": [*PLAIN, "large"],
    "units": [*PLAIN, "weight"],
    "categorical_columns": [*PLAIN, "code"],
    "min_count": [*PLAIN, "kind"],
    "text_columns": [*PLAIN, "number"],
}
ESTIMATOR: dict[str, Pair] = {
    "parties": ({}, {"parties": {"telecom": ["x0"]}}),
    "model": ({}, {"model": "logistic-regression"}),
    "epochs": ({}, {"epochs": 2}),
    "batch_size": ({}, {"batch_size": 8}),
    "learning_rate": ({}, {"learning_rate": 0.5}),
    "exchange": ({}, {"exchange": Split(in_flight=1)}),
    "defenses": ({}, {"defenses": ["isotropic(ratio=1.0)"]}),
    "attacks": ({}, {"attacks": ["norm"]}),
    "penalties": ({}, {"penalties": ["distance-correlation"]}),
    "audit": ({}, {"audit": True}),
    "scale": ({}, {"scale": "none"}),
    "missing": ({"missing": "indicator"}, {"missing": "error"}),
    "categorical_columns": ({}, {"categorical_columns": ["code"]}),
    "min_count": ({}, {"min_count": 5}),
    "text_columns": ({}, {"text_columns": ["number"]}),
    "missing_values": ({}, {"missing_values": ["?"]}),
    "decimal": ({}, {"decimal": ","}),
    "thousands": ({"decimal": ","}, {"decimal": ",", "thousands": "."}),
    "units": ({}, {"units": ["kg"]}),
    "transforms": ({}, {"transforms": {"passive": "flip"}}),
    "active_name": ({}, {"active_name": "bank"}),
    "random_state": ({}, {"random_state": 1}),
}
NO_RESULT_OF_ESTIMATORS = {"device": "where it is computed"}


def run_of_estimator(options: dict[str, Any], *, columns: list[str], number: bool = False) -> list[Any]:
    given = {"epochs": 1, "batch_size": 20, "audit": False, "random_state": 0, **options}
    model = (SplitRegressor if number else SplitClassifier)(**given)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")  # doubts about columns of text
        model.fit(FRAME[columns], FRAME["x0"] if number else ANSWERS)
        found = model.predict(FRAME[columns]) if number else model.predict_proba(FRAME[columns])
    said = [str(one.message) for one in told]
    return [torch.from_numpy(np.asarray(found, dtype=float)), str(dict(model.leakage_)), sorted(model._models), said]


@pytest.mark.parametrize("argument", ESTIMATOR)
def test_two_values_of_an_estimator_fit_two_models(argument: str) -> None:
    columns = WITH.get(argument, PLAIN)
    differ(partial(run_of_estimator, columns=columns), ESTIMATOR[argument])


CROSSES = {"crosses": (("kind", "sort"),)}
MODELS: Rows = {
    ("glm", "init"): ({}, {"init": "xavier"}),
    ("glm", "row_norm"): ({}, {"row_norm": 0.5}),
    ("glm", "intercept"): ({}, {"intercept": False}),
    ("glm", "loss"): ({}, {"loss": "l2-svm"}),
    ("glm", "dispersion"): ({"loss": "normal"}, {"loss": "normal", "dispersion": 3.0}),
    ("glm", "threshold"): ({"loss": "huber"}, {"loss": "huber", "threshold": 0.1}),
    ("glm", "target_clip"): ({"loss": "normal"}, {"loss": "normal", "target_clip": 0.1}),
    ("glm", "logit_clip"): ({}, {"logit_clip": 0.1}),
    ("glm", "logit_margin"): ({}, {"logit_margin": 0.1}),
    ("logistic-regression", "init"): ({}, {"init": "zero"}),
    ("logistic-regression", "row_norm"): ({}, {"row_norm": 0.5}),
    ("logistic-regression", "intercept"): ({}, {"intercept": False}),
    ("logistic-regression", "private_top"): ({}, {"private_top": True}),
    ("mlp", "bottom"): ({}, {"bottom": (8, 4)}),
    ("mlp", "top_hidden"): ({}, {"top_hidden": (4,)}),
    ("mlp", "top"): ({}, {"top": (2,)}),
    ("mlp", "dropout"): ({}, {"dropout": 0.5}),
    ("mlp", "private_top"): ({}, {"private_top": True}),
    ("mlp", "label_scale"): ({}, {"label_scale": True}),
    ("mlp", "sampled"): ({}, {"sampled": True}),
    ("pca", "width"): ({"width": 2}, {"width": 3}),
    ("wide-deep", "embedding_dim"): ({}, {"embedding_dim": 3}),
    ("wide-deep", "bottom"): ({}, {"bottom": (8, 4)}),
    ("wide-deep", "cut_after"): ({}, {"cut_after": 1}),
    ("wide-deep", "crosses"): ({}, CROSSES),
    ("wide-deep", "cross_buckets"): (CROSSES, {**CROSSES, "cross_buckets": 3}),
    ("wide-deep", "sparse"): ({}, {"sparse": True}),
    ("wide-deep", "private_top"): ({}, {"private_top": True}),
}
NO_RESULT_OF_MODELS: dict[tuple[str, str], str] = {
    ("mlp", "dense"): "what each of several workers holds: tests/run/test_sharded_tables.py",
    ("wide-deep", "dense"): "likewise",
    ("wide-deep", "tables"): "likewise",
}


def run_of_model(name: str, options: dict[str, Any]) -> list[Any]:
    if name == "pca":
        data = party_data("telecom", width=5)
        recipe = PCARecipe(**options)
        return [recipe.fitted(recipe.make_bottom(data, Binary()), data)(data.train.columns.numeric)]
    number = options.get("loss") in ("normal", "huber")
    more = {"categorical_columns": ["code"], "parties": {"telecom": ["x0", "code"]}} if name == "wide-deep" else {}
    columns = [*PLAIN, "code", "kind", "sort"] if name == "wide-deep" else PLAIN
    return run_of_estimator({"model": {"name": name, **options}, **more}, columns=columns, number=number)


@pytest.mark.parametrize(("name", "argument"), MODELS)
def test_two_values_of_a_model_train_two_models(name: str, argument: str) -> None:
    differ(partial(run_of_model, name), MODELS[name, argument])


# --- losses

OF_CLASSES = ("logistic", "l2-svm")
LOSSES: Rows = {
    **{(name, "logit_clip"): ({}, {"logit_clip": 0.1}) for name in LOSS_NAMES},
    **{(name, "target_clip"): ({}, {"target_clip": 0.1}) for name in LOSS_NAMES if name not in OF_CLASSES},
    ("gamma", "dispersion"): ({}, {"dispersion": 2.0}),
    ("gamma", "logit_margin"): ({}, {"logit_margin": 0.7}),
    ("normal", "dispersion"): ({}, {"dispersion": 2.0}),
    ("huber", "threshold"): ({}, {"threshold": 0.05}),
}


def loss_of(name: str, options: dict[str, Any]) -> list[Any]:
    labels = torch.tensor({"huber": [-0.4, -1.9]}.get(name, [1.0, -1.0] if name in OF_CLASSES else [1.0, 2.0]))
    loss = glm_loss(name, **options)  # type: ignore[arg-type]
    return [loss.record_loss(torch.tensor([-0.5, -2.0]), labels)]


@pytest.mark.parametrize(("name", "argument"), LOSSES)
def test_two_values_of_a_loss_measure_two_losses(name: str, argument: str) -> None:
    differ(partial(loss_of, name), LOSSES[name, argument])


# --- nothing is left out


def test_every_argument_has_a_row() -> None:
    exchanges = arguments(built_in("exchanges"), but=SUPPLIED["exchanges"])
    assert {*EXCHANGES, *NO_RESULT_OF_EXCHANGES} == exchanges
    assert {*MODELS, *NO_RESULT_OF_MODELS} == arguments(built_in("models"))
    assert set(PENALTIES) == arguments(built_in("penalties"))
    assert set(PARTIES) == arguments(MAKERS)
    assert set(CUTS) == arguments({"model": SplitModel, "cut": CutLayer})
    assert {*TRAINER, *NO_RESULT_OF_TRAINERS} == set(arguments_of(Trainer))
    for made in (SplitClassifier, SplitRegressor):
        assert {*ESTIMATOR, *NO_RESULT_OF_ESTIMATORS} == set(arguments_of(made))
    assert {*ENCRYPTION, *NO_RESULT_OF_ENCRYPTION} == set(Encryption.model_fields)
    assert set(LOSSES) == arguments({name: type(glm_loss(name)) for name in LOSS_NAMES})
    assert not any(arguments_of(made) for made in built_in("losses").values())


def test_rows_differ_in_their_argument() -> None:
    for table in (EXCHANGES, PARTIES, PENALTIES, CUTS, MODELS, LOSSES):
        for (name, argument), (first, second) in table.items():
            assert {**first, argument: second[argument]} == second, (name, argument)
            assert first.get(argument, ...) != second[argument], (name, argument)
    for one in (TRAINER, ESTIMATOR, ENCRYPTION):
        for argument, (first, second) in one.items():
            assert {**first, argument: second[argument]} == second, argument
            assert first.get(argument, ...) != second[argument], argument

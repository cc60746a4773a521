"""A trained half comes back to the bit, and one that is damaged does not come back."""

from __future__ import annotations

import copy
import dataclasses
import hashlib
import itertools
import json
import os
import random
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import safetensors.torch
import torch
from torch import Tensor

from splitvfl.app.experiment import build_trainer
from splitvfl.app.saved_model import HALF_FILE, WEIGHTS_FILE, HalfSchema, Origin, load_half, save_half
from splitvfl.config.sections import ExperimentConfig, parse_config
from splitvfl.data.columns import PartyData
from splitvfl.data.encoding import FittedEncoding, FittedNumbers
from splitvfl.errors import CheckpointError, ConfigError, DataError
from splitvfl.exchange.handshake import TaskSpec
from splitvfl.exchange.prediction import predict
from splitvfl.party.party import ActiveParty, PassiveParty
from splitvfl.run.trainer import Trainer
from tests.table_folders import click_data, write_tables

CPU = torch.device("cpu")
RUN = "0123456789abcdef" * 2

HEAD = """
data: {name: table, path: none.csv}
parties:
  shop: {role: active, columns: a}
  publisher: {role: passive, columns: b}
train: {epochs: 1, batch_size: 64, device: cpu}
"""
MODELS = {
    "mlp": "model: {name: mlp, bottom: [7, 5], top_hidden: [6], dropout: 0.3}",
    "mlp in bf16": "model: {name: mlp, bottom: [7, 5]}\nexchange: {name: split, wire: bf16}",
    "autocast": "model: {name: mlp, bottom: [7, 5]}\ntrain: {epochs: 1, batch_size: 64, device: cpu, autocast: bf16}",
    "logistic-regression": "model: logistic-regression",
    "short rows": "model: {name: logistic-regression, row_norm: 0.5}",
    "wide-deep": "model: {name: wide-deep, embedding_dim: 3, bottom: [8, 6, 4], cut_after: 2}",
    "sparse": "model: {name: wide-deep, embedding_dim: 3, bottom: [8, 4], sparse: true}",
    "private top": "model: {name: mlp, bottom: [7, 5], top_hidden: [6], private_top: true}",
    "private linear": "model: {name: logistic-regression, private_top: true}",
    "private wide-deep": "model: {name: wide-deep, embedding_dim: 3, bottom: [8, 6], cut_after: 1, private_top: true}",
}


def config_of(model: str) -> ExperimentConfig:
    head = (
        HEAD if "train:" not in MODELS[model] else HEAD.replace("train: {epochs: 1, batch_size: 64, device: cpu}", "")
    )
    return parse_config(head + MODELS[model], source="clicks.yaml")


def data_for(model: str, task: Any = "binary") -> Any:
    """A shop and a publisher; categories for models that take them only."""
    data = click_data(train=160, test=40, task=task, classes=3 if task == "multiclass" else 2)
    shop, publisher = data.active, data["publisher"]
    if config_of(model).model.name != "wide-deep":
        publisher = numbers_only(publisher)
    return dataclasses.replace(data, active=shop, passives={"publisher": publisher})


def numbers_only(party: PartyData) -> PartyData:
    train, test = (
        dataclasses.replace(part, columns=part.columns._replace(categorical=part.columns.categorical[:, :0]))
        for part in (party.train, party.test)
    )
    return dataclasses.replace(party, field_sizes=(), field_names=(), train=train, test=test)


def trained(model: str, task: Any = "binary") -> Trainer:
    trainer = build_trainer(config_of(model), data_for(model, task))
    trainer.fit(1)
    trainer.active.widths = {"publisher": trainer.passives["publisher"].output_width()}
    return trainer


def origin_of(trainer: Trainer, model: str, **more: Any) -> Origin:
    task = trainer.active.task
    learned = TaskSpec(task.name, task.outputs)
    return Origin(learned=learned, model=config_of(model).model, run=RUN, step=3, epoch=1, **more)


_trained_once = cache(trained)


def kept(folder: Path, model: str = "mlp", **more: Any) -> tuple[Trainer, Path, Path]:
    """A trainer after an epoch, which tests leave as it is, and the folders of both its halves."""
    trainer = _trained_once(model)
    for party in (trainer.active, trainer.passives["publisher"]):
        save_half(folder / party.name, party, origin_of(trainer, model, **more))
    return trainer, folder / "shop", folder / "publisher"


# Every model, and every task with one of them.
@pytest.mark.parametrize(
    ("model", "task"),
    [
        pytest.param(model, task, marks=() if task == "binary" or model == "mlp" else pytest.mark.slow(reason="a run"))
        for model in MODELS
        for task in ("binary", "multiclass", "regression")
    ],
)
def test_halves_that_come_back_predict_the_same_to_the_bit(tmp_path: Path, model: str, task: str) -> None:
    trainer = trained(model, task)
    expected = predict(trainer.active, trainer.passives)
    for party in (trainer.active, trainer.passives["publisher"]):
        save_half(tmp_path / "run" / party.name, party, origin_of(trainer, model))

    active = load_half(tmp_path / "run" / "shop").party(trainer.active.data, device=CPU)
    passive = load_half(tmp_path / "run" / "publisher").party(trainer.passives["publisher"].data, device=CPU)

    assert isinstance(active, ActiveParty)
    assert isinstance(passive, PassiveParty)
    found = predict(active, {"publisher": passive})
    assert torch.equal(found.outputs, expected.outputs)
    assert torch.equal(found.scores, expected.scores)
    assert (active.wire, active.autocast) == (trainer.active.wire, trainer.active.autocast)
    assert not any(weight.requires_grad for weight in (*active.top.parameters(), *passive.bottom.parameters()))


def test_a_saved_model_that_draws_does_so_anew_each_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The state of a party that only predicts is known to all: noise from it would be no noise."""
    monkeypatch.setitem(MODELS, "drawn", "model: {name: mlp, bottom: [7, 5], sampled: true}")
    penalised = HEAD.replace("columns: b", "columns: b, penalties: [mutual-information-bottleneck]")
    monkeypatch.setattr(sys.modules[__name__], "HEAD", penalised)
    trainer, _, publisher = kept(tmp_path, "drawn")
    data = trainer.passives["publisher"].data
    halves = [load_half(publisher).party(data, device=CPU) for _ in range(2)]
    sent = []
    for half in halves:
        assert isinstance(half, PassiveParty)
        with half.random, half.evaluating():
            sent.append([half.activate(half.test_batch(torch.arange(5))) for _ in range(2)])
            copied = copy.deepcopy(half)
        with copied.random, copied.evaluating():
            sent.append([copied.activate(copied.test_batch(torch.arange(5)))])
        with half.random, half.evaluating():
            sent.append([half.activate(half.test_batch(torch.arange(5)))])
    for one, other in itertools.combinations([one for each in sent for one in each], 2):
        assert not torch.equal(one, other)


def test_what_a_half_says_of_itself(tmp_path: Path) -> None:
    encoding = FittedEncoding(
        columns=(FittedNumbers(column="AGE", scale="standard", offset=1 / 3, spread=0.1, median=None, marked=False),)
    )

    trainer, shop, publisher = kept(tmp_path, encoding=encoding, id_column="customer")

    half = load_half(publisher)
    assert (half.schema.party, half.schema.role, half.schema.task) == ("publisher", "passive", "binary")
    assert (half.schema.run, half.schema.step, half.schema.epoch) == (RUN, 3, 1)
    assert half.schema.encoding == encoding
    assert half.schema.id_column == "customer"
    assert half.schema.widths == {}
    assert half.learned == TaskSpec("binary", 1)
    assert half.tables is None
    assert load_half(shop).schema.widths == {"publisher": 5}
    # Nothing of another party.
    assert "shop" not in (publisher / HALF_FILE).read_text()
    assert trainer.active.data.numeric_names[0] not in (publisher / HALF_FILE).read_text()


def test_a_half_is_for_its_owner_only(tmp_path: Path) -> None:
    _, shop, _ = kept(tmp_path)

    assert shop.stat().st_mode & 0o777 == 0o700
    assert {path.name: path.stat().st_mode & 0o777 for path in shop.iterdir()} == {
        HALF_FILE: 0o600,
        WEIGHTS_FILE: 0o600,
    }
    assert sorted(path.name for path in tmp_path.iterdir()) == ["publisher", "shop"]


def test_the_torch_state_outside_is_left_alone(tmp_path: Path) -> None:
    trainer, shop, _ = kept(tmp_path)
    before = torch.get_rng_state()

    load_half(shop).party(trainer.active.data, device=CPU)

    assert torch.equal(torch.get_rng_state(), before)


def test_a_later_half_takes_the_place_of_an_earlier_one(tmp_path: Path) -> None:
    _, shop, _ = kept(tmp_path)
    trainer = trained("mlp")
    with torch.no_grad():
        next(trainer.active.top.parameters()).add_(1.0)

    save_half(shop, trainer.active, dataclasses.replace(origin_of(trainer, "mlp"), step=4))

    half = load_half(shop)
    assert half.schema.step == 4
    assert_same(half.weights, trainer.active.top.state_dict())


def test_a_failed_write_leaves_the_earlier_half(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trainer, shop, _ = kept(tmp_path)

    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(CheckpointError, match="No space left on device; an older one stays"):
        save_half(shop, trainer.active, dataclasses.replace(origin_of(trainer, "mlp"), step=4))
    monkeypatch.undo()

    assert load_half(shop).schema.step == 3
    assert sorted(path.name for path in tmp_path.iterdir()) == ["publisher", "shop"]


def test_other_folders_are_left_alone(tmp_path: Path) -> None:
    trainer = trained("mlp")
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "diary.txt").write_text("private")

    with pytest.raises(DataError, match="exists and holds no trained half; it is left alone"):
        save_half(tmp_path / "mine", trainer.active, origin_of(trainer, "mlp"))

    assert (tmp_path / "mine" / "diary.txt").read_text() == "private"


def assert_same(found: Any, expected: Any) -> None:
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[name], expected[name]) for name in found)


# --- what is damaged


def rewritten(change: Callable[[dict[str, Any]], Any]) -> Callable[[Path], None]:
    """Change what ``half.json`` says, without signing it anew."""

    def damage(folder: Path) -> None:
        content = json.loads((folder / HALF_FILE).read_text())
        change(content)
        (folder / HALF_FILE).write_text(json.dumps(content))

    return damage


def cut_off(name: str) -> Callable[[Path], None]:
    return lambda folder: (folder / name).write_bytes((folder / name).read_bytes()[:-9]) and None  # type: ignore[func-returns-value]


DAMAGE: dict[str, tuple[Callable[[Path], Any], str]] = {
    "no folder": (lambda folder: folder.rename(folder.with_name("moved")), "expected a trained half"),
    "no weights": (lambda folder: (folder / WEIGHTS_FILE).unlink(), "weights.safetensors cannot be read"),
    "no description": (lambda folder: (folder / HALF_FILE).unlink(), "expected a trained half"),
    "weights cut off": (cut_off(WEIGHTS_FILE), "weights.safetensors is damaged"),
    "description cut off": (cut_off(HALF_FILE), "half.json is damaged"),
    "no JSON": (lambda folder: (folder / HALF_FILE).write_bytes(b"\xff\xfe"), "half.json is damaged"),
    "another format": (rewritten(lambda half: half.update(format="x")), "it belongs to something else"),
    "another version": (rewritten(lambda half: half.update(version=2)), "has version 2, expected 1"),
    "another step": (rewritten(lambda half: half.update(step=4)), "has changed since it was written"),
    "another width": (rewritten(lambda half: half["model"].update(bottom=[7, 6])), "has changed since"),
    "no digest": (rewritten(lambda half: half.pop("digest")), "half.json is damaged"),
    "no model": (rewritten(lambda half: half.pop("model")), "half.json is damaged"),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_every_damage_is_noticed(tmp_path: Path, damage: str) -> None:
    _, shop, _ = kept(tmp_path)
    harm, message = DAMAGE[damage]
    harm(shop)

    with pytest.raises(CheckpointError, match=message):
        load_half(shop)


def test_any_changed_byte_is_noticed(tmp_path: Path) -> None:
    _, shop, _ = kept(tmp_path)
    whole = load_half(shop)
    draw = random.Random(0)
    for name in (HALF_FILE, WEIGHTS_FILE):
        good = (shop / name).read_bytes()
        for _ in range(300):
            bad = bytearray(good)
            bad[draw.randrange(len(bad))] ^= 1 << draw.randrange(8)
            (shop / name).write_bytes(bad)
            try:
                found = load_half(shop)
            except CheckpointError:
                continue
            # White space between two words of JSON may change into other white space.
            assert found.schema == whole.schema
            assert_same(found.weights, whole.weights)
        (shop / name).write_bytes(good)


def sign(folder: Path, weights: dict[str, Tensor] | None = None, **changed: Any) -> None:
    """Write a half as its owner could, digests and all, whatever is in it."""
    schema = msgspec.json.decode((folder / HALF_FILE).read_bytes(), type=HalfSchema)
    if weights is not None:
        data = safetensors.torch.save(weights)
        (folder / WEIGHTS_FILE).write_bytes(data)
        changed["files"] = {WEIGHTS_FILE: hashlib.sha256(data).hexdigest()}
    schema = msgspec.structs.replace(schema, **changed, digest="")
    text = msgspec.json.format(msgspec.json.encode(schema), indent=2)
    schema = msgspec.structs.replace(schema, digest=hashlib.sha256(text).hexdigest())
    (folder / HALF_FILE).write_bytes(msgspec.json.encode(schema))


def test_weights_that_are_not_finite_are_refused(tmp_path: Path) -> None:
    _, shop, _ = kept(tmp_path)
    weights = dict(load_half(shop).weights)
    weights["layers.0.bias"] = weights["layers.0.bias"] * torch.nan

    sign(shop, weights)

    with pytest.raises(CheckpointError, match=r"layers\.0\.bias holds NaN or infinite values"):
        load_half(shop)


@pytest.mark.parametrize(
    ("weights", "changed", "message"),
    [
        ({"layers.0.weight": torch.zeros(2)}, {}, "the weights do not fit the model"),
        ({}, {}, "the weights do not fit the model"),
        (None, {"model": {"name": "mlp", "bottom": [7, 5], "top_hidden": [5]}}, "the weights do not fit the model"),
        (None, {"model": {"name": "mlp", "bottom": "wide"}}, "describes no model"),
        (None, {"widths": {"publisher": 6}}, "the weights do not fit the model"),
        (None, {"widths": {"publisher": -50}}, "the weights do not fit the model"),
    ],
)
def test_a_half_that_does_not_fit_together_is_refused(
    tmp_path: Path, weights: dict[str, Tensor] | None, changed: dict[str, Any], message: str
) -> None:
    trainer, shop, _ = kept(tmp_path)
    sign(shop, weights, **changed)

    with pytest.raises(CheckpointError, match=message):
        load_half(shop).party(trainer.active.data, device=CPU)


@pytest.mark.parametrize("model", MODELS)
def test_no_memory_is_taken_for_a_model_of_more_weights_than_there_are(tmp_path: Path, model: str) -> None:
    """The recipe is asked for shapes alone, whichever comes with splitvfl: a few words describe gigabytes."""
    trainer, *folders = kept(tmp_path, model)
    for folder, party in zip(folders, (trainer.active, trainer.passives["publisher"]), strict=True):
        held = sum(weight.numel() for weight in load_half(folder).weights.values())
        sign(folder, {"one": torch.zeros(1)})
        with pytest.raises(CheckpointError, match=rf"half.json describes one of {held:,}, and there are 1; train"):
            load_half(folder).party(party.data, device=CPU)


def test_of_a_large_model_that_is_only_described_nothing_is_built(tmp_path: Path) -> None:
    trainer, _, publisher = kept(tmp_path)
    sign(publisher, model={"name": "mlp", "bottom": [60_000, 30_000]})  # 7.2 GB in float32
    with pytest.raises(CheckpointError, match=r"describes one of 1,80\d,\d{3},\d{3}, and there are \d{2,3}; train"):
        load_half(publisher).party(trainer.passives["publisher"].data, device=CPU)


@pytest.mark.parametrize("name", [HALF_FILE, WEIGHTS_FILE])
def test_a_pipe_in_place_of_a_file_of_a_half_is_not_waited_at(tmp_path: Path, name: str) -> None:
    _, shop, _ = kept(tmp_path)
    (shop / name).unlink()
    os.mkfifo(shop / name)
    with pytest.raises(CheckpointError, match=f"{name} is no file"):
        load_half(shop)


@pytest.mark.parametrize("name", ["os.system", "os:system", "telepathy", 3, None])
def test_a_half_does_not_decide_what_is_imported(tmp_path: Path, name: Any) -> None:
    trainer, shop, _ = kept(tmp_path)
    sign(shop, None, model={"name": name})

    for own in (None, config_of("mlp").model):
        with pytest.raises(
            ConfigError, match=r"which does not come with splitvfl: it is imported where the experiment"
        ):
            load_half(shop).party(trainer.active.data, device=CPU, own=own)


def test_a_file_that_has_no_place_there_is_not_read(tmp_path: Path) -> None:
    _, shop, _ = kept(tmp_path)
    files = load_half(shop).schema.files

    sign(shop, files={**files, "../publisher/half.json": "0" * 64})

    with pytest.raises(CheckpointError, match="there is no place for a file"):
        load_half(shop)


def test_records_with_other_columns_are_refused(tmp_path: Path) -> None:
    trainer, shop, _ = kept(tmp_path)
    half, data = load_half(shop), trainer.active.data

    with pytest.raises(DataError, match="expected 'shop1' in place 1"):
        half.party(dataclasses.replace(data, numeric_names=("shop0", "x", "shop2")), device=CPU)
    with pytest.raises(DataError, match="expected 3 numeric names as in training, got 4"):
        half.party(dataclasses.replace(data, numeric_names=("shop0", "shop1", "shop2", "x")), device=CPU)


def test_of_tables_the_schema_and_the_vocabulary_are_kept(tmp_path: Path) -> None:
    write_tables(tmp_path / "tables", click_data())
    folder = tmp_path / "tables" / "publisher"
    (folder / "vocabulary.safetensors").write_bytes(safetensors.torch.save({"C1.text": torch.from_numpy(np.arange(3))}))

    _, _, publisher = kept(tmp_path / "run", "wide-deep", tables=folder)

    half = load_half(publisher)
    assert half.tables is not None
    assert half.tables.name == "publisher"
    for name in ("schema.json", "vocabulary.safetensors"):
        assert (publisher / name).read_bytes() == (folder / name).read_bytes()
        assert (publisher / name).stat().st_mode & 0o777 == 0o600
    (publisher / "vocabulary.safetensors").write_bytes(b"else")
    with pytest.raises(CheckpointError, match=r"vocabulary\.safetensors is damaged"):
        load_half(publisher)

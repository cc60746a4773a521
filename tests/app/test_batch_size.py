"""Batches of an experiment: all records at once, more than there are, and what does not fill one."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path

import pytest
import torch

from splitvfl.app.deployment import coordinator_run, party_run, run_party
from splitvfl.app.experiment import build_trainer
from splitvfl.app.records import load_data
from splitvfl.config.sections import ExperimentConfig, parse_config
from splitvfl.data.columns import VerticalData
from splitvfl.errors import ConfigError
from splitvfl.run.networked import ActiveRun, PassiveRun
from tests.run.parties import free_ports, same_weights, side_by_side, weights_of

FILE = """
data: {name: breast-cancer}
parties:
  clinic: {role: active, columns: ["mean *"], address: "127.0.0.1:PORT"}
  lab: {role: passive, columns: ["* error", "worst *"]}
model: {name: logistic-regression, init: zero}
train: {epochs: 2, batch_size: 128, optimizer: {name: sgd, lr: 0.1}}
audit: false
"""
NETWORK = 'network: {listen: "127.0.0.1:PORT", plaintext_on_loopback: true, meeting_s: 60, message_s: 60}\n'
RECORDS = 440  # of 569, some fifth of which is tested on


def config_of(*changes: str, text: str = FILE, port: int = 1, source: str = "batches.yaml") -> ExperimentConfig:
    return parse_config(text.replace("PORT", str(port)), source=source, overrides=changes)


@pytest.fixture(scope="module")
def data() -> VerticalData:
    return load_data(config_of())


def sizes(config: ExperimentConfig, data: VerticalData) -> list[int]:
    return [len(batch) for batch in build_trainer(config, data).batches.epoch(0)]


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ((), [128, 128, 128, 56]),
        (("train.drop_last=true",), [128, 128, 128]),
        (("train.batch_size=all",), [RECORDS]),
        (("train.batch_size=all", "train.drop_last=true"), [RECORDS]),
        # Every tenth record is held out: 44.
        (("train.batch_size=all", "train.early_stopping={validation_every: 10}"), [RECORDS - 44]),
        (("train.drop_last=true", "train.early_stopping={validation_every: 10}"), [128, 128, 128]),
    ],
)
def test_batches_are_as_the_file_says(changes: Sequence[str], expected: list[int], data: VerticalData) -> None:
    assert sizes(config_of(*changes), data) == expected


def test_all_records_at_once_are_one_step_of_gradient_descent(data: VerticalData) -> None:
    trainer = build_trainer(config_of("train.batch_size=all", "train.epochs=1"), data)
    trainer.fit(1)
    assert trainer.step == 1
    # From zero weights every residue is ½ − y, and the first step −η times their mean with each column.
    columns, labels = data.passives["lab"].train.columns.numeric.double(), data.active.train.labels
    assert labels is not None
    by_hand = -0.1 * ((0.5 - labels.double())[:, None] * columns).mean(dim=0)
    # Sums of as many products in float32.
    torch.testing.assert_close(trainer.passives["lab"].bottom.weight[0].double(), by_hand, rtol=1e-4, atol=1e-7)


def test_a_batch_larger_than_the_data_is_refused_with_words_for_what_was_meant(data: VerticalData) -> None:
    with pytest.raises(
        ConfigError, match=rf"batch_size: expected 1 to {RECORDS}, .* got 3200; .*or write batch_size: all"
    ):
        build_trainer(config_of("train.batch_size=3200"), data)
    with pytest.raises(ConfigError, match=rf"expected 1 to {RECORDS}"):
        build_trainer(config_of("train.batch_size=3200", "train.drop_last=true"), data)


@pytest.mark.parametrize("given", ["every", "1.5", "ALL"])
def test_another_word_is_told_what_there_is(given: str) -> None:
    with pytest.raises(ConfigError, match=r"train.batch_size: expected a whole number"):
        config_of(f"train.batch_size={given}")


@pytest.mark.parametrize("exchange", ["residue", "taylor", "hybrid"])
def test_exchanges_that_ask_for_the_largest_batch_are_told_how_many_all_are(exchange: str, data: VerticalData) -> None:
    text = f"{{name: {exchange}, encryption: {{key_bits: 2048}}}}"
    more = {"hybrid": ", epsilon: 1.0, share: 0.4"}.get(exchange, "")
    config = config_of(f"exchange={text[:-1]}{more}}}", "train.batch_size=all")
    assert build_trainer(config, data).exchange.rows == RECORDS  # type: ignore[attr-defined]


def test_a_party_without_data_cannot_know_how_many_all_are() -> None:
    config = config_of("exchange=coordinator", "train.batch_size=all", text=FILE + NETWORK)
    with pytest.raises(ConfigError, match="coordinator has no data, and cannot know how many all records are"):
        coordinator_run(config)


def test_both_are_agreed_on_before_the_first_step(tmp_path: Path) -> None:
    plain, dropping = (
        party_run(config_of(*changes, text=FILE + NETWORK), "lab", tmp_path / "run").settings.terms
        for changes in ((), ("train.drop_last=true",))
    )
    differing = {key: (plain[key], dropping[key]) for key in plain if plain[key] != dropping[key]}
    assert differing == {"last batch, if smaller": ("taken", "left out")}
    alone = party_run(config_of("train.batch_size=all", text=FILE + NETWORK), "lab", tmp_path / "run").settings.terms
    assert alone["batch size"] == RECORDS  # a number, which parties can compare


@pytest.mark.parametrize("changes", [("train.drop_last=true",), ("train.batch_size=all",)])
def test_over_a_network_it_is_the_same_to_the_bit(changes: Sequence[str], tmp_path: Path) -> None:
    config = config_of(*changes, text=FILE + NETWORK, port=free_ports(1)[0], source=str(tmp_path / "run.yaml"))
    runs: dict[str, ActiveRun | PassiveRun] = {}

    def take_part(name: str) -> None:
        runs[name], _ = run_party(config, name, tmp_path / name)

    assert side_by_side({name: partial(take_part, name) for name in ("clinic", "lab")}) == {}

    trainer = build_trainer(config, load_data(config))
    trainer.fit(2)
    assert runs["clinic"].step == runs["lab"].step == trainer.step
    for name, module in (("clinic", trainer.active.top), ("lab", trainer.passives["lab"].bottom)):
        assert same_weights(weights_of(tmp_path / name), module.state_dict())

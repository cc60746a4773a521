"""Records in shards: an order that several workers can share, in one process."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from splitvfl.config.sections import parse_config
from splitvfl.errors import CheckpointError, ConfigError
from splitvfl.exchange.receiver_clips import ReceiverClips
from splitvfl.exchange.residue import Residue
from splitvfl.exchange.split import Split
from splitvfl.messaging.messages import Message
from tests.builders import linear_trainer, same, small_trainer, weights


def test_one_shard_trains_as_ever_and_several_meet_every_record_once_an_epoch() -> None:
    trainers = [small_trainer(batch_size=7, **shards) for shards in ({}, {"shards": 1}, {"shards": 3})]
    for trainer in trainers:
        trainer.fit(2)
    assert same(weights(trainers[0]), weights(trainers[1]))
    assert not same(weights(trainers[0]), weights(trainers[2]))
    assert torch.cat(list(trainers[2].batches.epoch(1))).sort().values.tolist() == list(range(48))


def test_parties_see_the_records_of_every_shard_in_each_step() -> None:
    said: list[Message] = []
    trainer = small_trainer(batch_size=8, shards=4, record=said.append)
    trainer.fit(1)
    assert [len(message.payload) for message in said if message.kind == "activation"] == [8] * 6


def test_a_run_goes_on_with_as_many_shards_only(tmp_path: Path) -> None:
    small_trainer(batch_size=8, shards=2, log_dir=tmp_path).fit(1)
    with pytest.raises(CheckpointError, match="shards of the records"):
        small_trainer(batch_size=8, log_dir=tmp_path).resume()


@pytest.mark.parametrize(
    ("exchange", "complaint"),
    [
        (Residue(rows=16), "exchange residue: takes no shards: what it counts of a step is of one batch"),
        (Split(receiver_clips=ReceiverClips(activation=1.0)), r"exchange\.receiver_clips: is calculated for batches"),
    ],
)
def test_what_counts_records_of_a_batch_is_refused_beside_several(exchange: Any, complaint: str) -> None:
    linear_trainer(exchange=exchange, audit=False)
    with pytest.raises(ConfigError, match=complaint):
        linear_trainer(exchange=exchange, audit=False, shards=2)


def test_the_setting_reaches_the_order() -> None:
    text = (
        "data: {name: breast-cancer}\n"
        "parties: {us: {role: active, columns: ['mean *']}, them: {role: passive, columns: rest}}\n"
    )
    assert parse_config(f"{text}train: {{shards: 3}}\n", source="one.yaml").train.shards == 3
    for shards in ("0", "4097", "1.5"):
        with pytest.raises(ConfigError, match=r"one\.yaml:3: train\.shards: "):
            parse_config(f"{text}train: {{shards: {shards}}}\n", source="one.yaml")

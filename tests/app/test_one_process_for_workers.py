"""What is said where one process trains what is planned for several workers."""

from __future__ import annotations

from splitvfl.app.team_settings import said_in_one_process
from splitvfl.config.sections import ExperimentConfig, parse_config

TEXT = """
data: {name: breast-cancer}
parties:
  clinic: {role: active, columns: ["mean *"], address: "127.0.0.1:7000+"}
  lab: {role: passive, columns: rest, penalties: [{name: distance-correlation, weight: 1}]}
model: {name: mlp, bottom: [4]}
exchange: split
team: {workers: 2}
network: {listen: "127.0.0.1:7000+", certificates: certs}
"""


def config_of(text: str) -> ExperimentConfig:
    return parse_config(text, source="run.yaml")


def test_shards_are_named_and_what_party_would_refuse() -> None:
    shards, refused = said_in_one_process(config_of(TEXT))
    assert shards == "team.workers is 2: here one process takes the steps of 2 shards; splitvfl party has workers"
    assert refused.startswith("splitvfl party would refuse this file: run.yaml: parties: penalties: not with")


def test_what_party_would_take_is_not_refused() -> None:
    plain = TEXT.replace(", penalties: [{name: distance-correlation, weight: 1}]", "")
    assert len(said_in_one_process(config_of(plain))) == 1
    assert said_in_one_process(config_of(plain.replace("team: {workers: 2}\n", "").replace("7000+", "7000"))) == []

"""What workers say of the devices on which they compute; tests/run/test_gpu_workers.py has what GPUs do."""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch

from splitvfl.app.workers import team_of
from splitvfl.config.sections import parse_config
from splitvfl.errors import ConfigError, TeamError
from splitvfl.system.gpu_copies import empty_bytes, to_device, to_memory
from splitvfl.team.gpus import are_apart, check_one_kind, described, take_gpu
from splitvfl.team.team import Team
from tests.team.together import SIZE, together

FIRST, SECOND = (json.dumps(["NVIDIA H200", f"node-1 GPU-{number}"]) for number in (1, 2))
OTHER = json.dumps(["NVIDIA A100", "node-2 GPU-3"])
CPU = torch.device("cpu")


def _on_cpus(team: Team) -> Any:
    return team.compute_on(CPU)


def test_cpus_add_up_by_gloo() -> None:
    assert together(_on_cpus) == ["gloo"] * SIZE


def test_devices_of_another_kind_are_named() -> None:
    check_one_kind("shop", [FIRST, SECOND])
    check_one_kind("shop", [described(CPU)] * 2)
    with pytest.raises(TeamError, match=r"worker 0 on NVIDIA H200, worker 2 on NVIDIA A100; take machines of one kind"):
        check_one_kind("shop", [FIRST, SECOND, OTHER])
    with pytest.raises(TeamError, match=r"worker 0 on a CPU, worker 1 on NVIDIA H200.*train: \{device: cpu\}"):
        check_one_kind("shop", [described(CPU), FIRST])


def test_nccl_joins_gpus_of_which_no_two_workers_have_the_same() -> None:
    assert are_apart([FIRST, SECOND], {})
    assert not are_apart([FIRST, FIRST], {})
    assert not are_apart([FIRST, FIRST], {"NCCL_MULTI_RANK_GPU_ENABLE": "0"})
    assert are_apart([FIRST, FIRST], {"NCCL_MULTI_RANK_GPU_ENABLE": "1"})


@pytest.mark.parametrize("rank", ["", "-1", "one"])
def test_a_number_that_makes_no_sense_is_refused(rank: str) -> None:
    with pytest.raises(ConfigError, match=r"LOCAL_RANK is .*expected a whole number from 0"):
        take_gpu({"LOCAL_RANK": rank})


TEXT = """
data: {name: breast-cancer}
parties:
  clinic: {role: active, columns: ["mean *"], address: "127.0.0.1:7000+"}
  lab: {role: passive, columns: rest}
model: {name: mlp, bottom: [4]}
exchange: split
team: {workers: 3}
train: {device: cuda}
network: {listen: "127.0.0.1:7000+", certificates: certs}
"""


@pytest.mark.skipif(torch.cuda.is_available(), reason="of machines without a GPU")
def test_workers_without_a_gpu_say_so(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[tuple[str, bool]] = []

    class Workers:
        def __init__(self, *size: int, **settings: Any) -> None: ...

        def __enter__(self) -> Workers:
            return self

        def __exit__(self, *error: object) -> None: ...

        def refuse(self, reason: str, *, final: bool) -> None:
            told.append((reason, final))

    monkeypatch.setattr("splitvfl.team.workers.Workers", Workers)
    config = parse_config(TEXT, source="shop.yaml")
    with pytest.raises(ConfigError, match="torch finds no CUDA device"), team_of(config, "lab"):
        pass
    ((reason, final),) = told  # so that the others do not wait for it
    assert "torch finds no CUDA device" in reason
    assert final


def test_what_lies_in_main_memory_stays_there() -> None:
    weight = torch.randn(3, 2, requires_grad=True)
    found = to_memory(weight)
    assert found.data_ptr() == weight.data_ptr()
    assert not found.requires_grad
    assert to_device(found, CPU) is found
    assert (empty_bytes(5).dtype, empty_bytes(5).shape, len(empty_bytes(0))) == (torch.uint8, (5,), 0)

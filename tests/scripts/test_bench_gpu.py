"""What a GPU gains is measured where there is one."""

from __future__ import annotations

import pytest
import torch

from scripts.bench.gpu import main, said_of_steps
from scripts.bench.scale_pairs import Load


def test_the_times_of_runs_are_compared_in_pairs() -> None:
    rows = list(said_of_steps(Load("dense", 8, None, 1, 2), {"one core each": [0.4, 0.9], "GPU": [0.1, 0.3]}))

    assert [(row.name, row.value, row.unit) for row in rows] == [
        ("dense, batch 8: a step, one core each", pytest.approx(650.0), "ms"),
        ("dense, batch 8: one core each beside the GPU", pytest.approx(3.5), "ratio"),
        ("dense, batch 8: a step, GPU", pytest.approx(200.0), "ms"),
    ]


@pytest.mark.skipif(torch.cuda.is_available(), reason="of machines without a GPU")
def test_without_a_gpu_it_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 2
    assert "no NVIDIA GPU" in capsys.readouterr().err

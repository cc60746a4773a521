"""What a run shows while it goes on fits a terminal of 80 columns."""

from __future__ import annotations

import io
from dataclasses import replace

import pytest
from rich.console import Console

from splitvfl.app.console import RunProgress, figures
from splitvfl.leakage.label_leak import LabelLeak
from splitvfl.run.training import Status

LEAK = LabelLeak(total=0.91, beyond=0.55, known=0.77, canaries=60)
STATUS = Status(1000, 1000, 98765, 98765, 123.456, 0.761, (0.97, "gradient-classifier"), {"telecom": LEAK})


@pytest.mark.parametrize("name", ["t", "an-experiment-of-a-rather-long-name, asymmetric-response(detection_error=0.4)"])
@pytest.mark.parametrize("live", [False, True])
def test_a_line_fits_80_columns(name: str, *, live: bool) -> None:
    target = io.StringIO()
    console = Console(file=target, width=80, force_terminal=live, color_system=None)
    with RunProgress(console, 15) as progress:
        progress.run(name)(STATUS)
    lines = [
        line for line in target.getvalue().replace("\r", "\n").replace("\x1b[2K", "").splitlines() if "loss" in line
    ]
    assert lines
    assert max(map(len, lines)) <= 80
    assert all("0.761" in line for line in lines)


def test_what_matters_comes_first() -> None:
    assert figures(STATUS) == [
        "loss 123.456",
        "test 0.761",
        "leak 0.97 (gradient-classifier)",
        "excess 0.55",
        "baseline 0.77",
        "total 0.91",
    ]
    # Without canaries it is no excess.
    without = replace(STATUS, label_leaks={"telecom": replace(LEAK, canaries=0)})
    assert [one for one in figures(STATUS) if one not in figures(without)] == ["excess 0.55"]
    assert figures(Status(1, 2, 3, 4, float("nan"), float("nan"), (float("nan"), ""))) == []

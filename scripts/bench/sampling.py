"""Draws per second of discrete noise from a keystream, beside torch's floating-point noise, on one core.

Run ``python -m scripts.bench.sampling [--quick] [--json OUT]``. Times are CPU times.
"""

from __future__ import annotations

import sys
from functools import partial
from statistics import median

import numpy as np
import torch

from scripts.bench.measuring import Result, Work, interleaved, main
from splitvfl.learning.sampling import standard_laplace, standard_normal
from splitvfl.privacy import Keystream, discrete_gaussian, discrete_laplace

# The scale decides how many grid steps a standard deviation has, and so how long the tables are.
SCALES = (1.0, 1.5, 1.999)
TARGET = 5.0
# What both directions of a step of HDP-VFL take: a batch of 3200, one number a record each.
STEP_DRAWS, STEP_TARGET_MS = 2 * 3200, 1.5


def measure(quick: bool) -> list[Result]:
    """Return how many million numbers a second each way of drawing gives."""
    draws, runs = (200_000, 3) if quick else (2_000_000, 15)
    stream, generator = Keystream(), torch.Generator().manual_seed(0)
    noises = [make(scale) for make in (discrete_gaussian, discrete_laplace) for scale in SCALES]
    works: list[tuple[str, Work, float | None]] = [
        (f"discrete {noise.law}, scale {noise.scale:g}", partial(noise.draw, draws, stream), TARGET) for noise in noises
    ]
    works += [
        ("keystream alone, one word each", partial(stream.words, draws), None),
        ("normal in float64, torch", partial(standard_normal, (draws,), generator), None),
        ("Laplace in float64, torch", partial(standard_laplace, (draws,), generator), None),
    ]
    times = interleaved([work for _, work, _ in works], runs=runs)
    results = [
        Result(name, draws / median(taken) / 1e6, "million/s", target, "higher", f"{runs} runs of {draws}")
        for (name, _, target), taken in zip(works, times, strict=True)
    ]
    return [*results, _step(runs, stream)]


def _step(runs: int, stream: Keystream) -> Result:
    """Return what the noise of one step of HDP-VFL takes, both directions."""
    noise, values = discrete_gaussian(12.3), np.zeros(STEP_DRAWS // 2)

    def both() -> None:
        noise.add(values, stream)
        noise.add(values, stream)

    ((*taken,),) = interleaved([both], runs=runs, repeats=[20])
    return Result(
        "noise of a step, both directions, batch 3200",
        1e3 * median(taken),
        "ms",
        STEP_TARGET_MS,
        note=f"{runs} runs of 20",
    )


if __name__ == "__main__":
    sys.exit(main("Discrete noise from a keystream", measure))

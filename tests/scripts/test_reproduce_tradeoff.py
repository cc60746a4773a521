"""The trade-off: interpolation, pairing by seed, and what one run measures."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch

from scripts.reproduce.label_leakage import tradeoff
from scripts.reproduce.label_leakage.study import Problem, data_of, held_out, problems
from scripts.reproduce.shared.settings import Settings


def result(leak: float, test: float) -> dict[str, Any]:
    return {"beyond": leak, "norm": leak, "one_step": leak, "accumulated": leak, "test": test}


@pytest.mark.parametrize(
    ("level", "expected"),
    [(0.5, 0.70), (0.6, 0.75), (0.55, 0.725), (0.75, 0.78), (0.9, 0.81), (0.49, math.nan), (0.95, math.nan)],
)
def test_test_auc_is_read_off_straight_lines_and_not_outside_of_them(level: float, expected: float) -> None:
    # Strengths in any order: the weakest leaks most.
    members = [result(0.9, 0.81), result(0.5, 0.70), result(0.6, 0.75)]

    assert tradeoff.test_at(members, tradeoff.BEYOND, level) == pytest.approx(expected, nan_ok=True)


def test_a_leak_that_is_not_known_gives_nothing() -> None:
    assert math.isnan(tradeoff.test_at([result(math.nan, 0.7), result(0.9, 0.8)], tradeoff.BEYOND, 0.9))
    assert math.isnan(tradeoff.test_at([], tradeoff.BEYOND, 0.9))


def curves(*, better: float) -> tradeoff.Curves:
    """Two strengths of two families at the same leaks, three seeds; one family is better by so much in every seed."""
    found: tradeoff.Curves = {}
    for label, gain in (("isotropic", 0.0), ("sumKL", better)):
        for member, leak in zip(tradeoff._family_of(label).members, (0.95, 0.55), strict=False):
            found[member.label] = [result(leak, 0.7 + 0.1 * leak + 0.02 * seed + gain) for seed in range(3)]
    return found


@pytest.mark.parametrize(("better", "verdict"), [(0.01, "reproduces"), (-0.01, "does not")])
def test_gains_are_paired_by_seed(better: float, verdict: str) -> None:
    problem = Problem(key="x", title="x", arguments={}, seeds=(0, 1, 2))

    claims = tradeoff._sumkl_against_isotropic(problem, curves(better=better), tradeoff.BEYOND)

    assert len(claims) == len(tradeoff.LEVELS)
    for claim in claims:
        # Seeds differ by .02, and the interval of the paired gain does not notice.
        assert claim.ours == pytest.approx(better, abs=1e-12)
        assert claim.interval == pytest.approx((better, better), abs=1e-9)
        assert claim.verdict == verdict
        assert claim.seeds == 3


def test_equal_families_are_no_gain() -> None:
    problem = Problem(key="x", title="x", arguments={}, seeds=(0, 1, 2))

    claims = tradeoff._sumkl_against_isotropic(problem, curves(better=0.0), tradeoff.BEYOND)

    assert {claim.verdict for claim in claims} == {"does not"}


def test_one_run_measures_every_attacker() -> None:
    (problem,) = problems(Settings(out=None, quick=True))  # type: ignore[arg-type]  # nothing is written

    clean = tradeoff.measure(problem.as_settings(), 0, tradeoff.NONE.as_settings())
    marked = tradeoff.measure(problem.as_settings(), 0, tradeoff._family_of("sumKL").members[-1].as_settings())

    assert clean["one_step"] > 0.99
    assert clean["beyond"] > 0.95
    assert clean["norm"] > 0.8
    # sumKL hides from the norm attack, and its noise marks a class.
    assert marked["norm"] < 0.6
    assert marked["each"]["residual"][0] > 0.95
    assert set(tradeoff.READS_LABELS) | {"readout"} == set(clean["each"])
    for found in (clean, marked):
        assert 0.5 < found["prediction"] < 0.8
        assert all(math.isfinite(value) for key, value in found.items() if key != "each")


def test_validation_looks_at_training_records_only() -> None:
    (problem,) = problems(Settings(out=None, quick=True))  # type: ignore[arg-type]  # nothing is written
    whole = data_of(problem, 0)

    part = held_out(whole, 0)

    train, validated = set(part.active.train.ids.tolist()), set(part.active.test.ids.tolist())
    assert not train & validated
    assert train | validated == set(whole.active.train.ids.tolist())
    assert len(validated) == whole.active.train.count // 10
    assert torch.equal(part.active.test.ids, part["passive"].test.ids)


@pytest.mark.parametrize(("epochs", "stopped"), [([2, 3, 9], 3), ([6, 6, 1], None), ([5, 5, 5], 5)])
def test_overfitted_data_are_run_again_for_as_long_as_validation_says(
    epochs: list[int], stopped: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    problem = Problem(key="x", title="x", arguments={}, seeds=(0, 1, 2, 3), epochs=10)
    answers = [{"epoch": epoch} for epoch in epochs]
    monkeypatch.setattr(tradeoff, "run_jobs", lambda jobs, folder, **settings: answers)

    found = tradeoff._with_stopped([problem], Settings(out=Path()))

    assert found[0] == problem
    assert [other.epochs for other in found[1:]] == ([] if stopped is None else [stopped])
    assert all(other.key == "x-stopped" and other.seeds == problem.seeds for other in found[1:])

"""Series of steps against plain lists, and their memory."""

from __future__ import annotations

import math
import sys
from collections import deque
from types import FunctionType, MethodType, ModuleType
from typing import Any

import numpy as np
import pytest
import torch

from splitvfl.attacks import NormAttack
from splitvfl.hooks import View
from splitvfl.leakage import series
from splitvfl.leakage.auditing import Audit
from splitvfl.leakage.judging import Leak
from splitvfl.leakage.members import MemberKeeper
from splitvfl.leakage.series import MOST_KEPT, StepValues, Thinned
from splitvfl.leakage.signs import SignKeeper
from splitvfl.leakage.watching import Watch


@pytest.mark.parametrize("count", [0, 1, 7, 8, 9, 15, 16, 17, 31, 32, 33, 100, 1000])
def test_rows_are_kept_evenly_from_the_first_one_on(count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(series, "MOST_KEPT", 8)
    rows = Thinned(2)
    for number in range(count):
        rows.append(number, -number)
    assert len(rows) == count
    kept = list(range(0, count, rows.stride))
    assert rows.kept.tolist() == [[number, -number] for number in kept]
    assert len(kept) <= 8
    assert rows.stride == 1 or len(kept) > 4


def test_as_long_as_there_is_room_figures_are_those_of_a_list() -> None:
    draws = np.random.default_rng(0).uniform(size=MOST_KEPT)
    values = StepValues()
    for count, draw in enumerate(draws.tolist(), start=1):
        values.append(draw)
        if count in (1, 5, 10, 11, 500, MOST_KEPT):
            assert len(values) == count
            assert values.kept.tolist() == draws[:count].tolist()
            assert values.mean == pytest.approx(draws[:count].mean(), rel=1e-12)  # summed in another order
            assert values.recent_mean == pytest.approx(draws[:count][-10:].mean(), rel=1e-12)
            assert values.quantile(0.95) == np.quantile(draws[:count], 0.95)


def test_of_a_longer_run_means_are_exact_and_quantiles_close() -> None:
    draws = np.random.default_rng(0).normal(0.6, 0.05, size=5 * MOST_KEPT)
    values = StepValues()
    for draw in draws.tolist():
        values.append(draw)
    assert values.mean == pytest.approx(draws.mean(), rel=1e-12)
    assert values.recent_mean == pytest.approx(draws[-10:].mean(), rel=1e-12)
    for share in (0.05, 0.95):
        below = np.mean(draws < values.quantile(share))
        # Five standard errors of a share of .05 among the 5120 that are kept.
        assert below == pytest.approx(share, abs=5 * math.sqrt(0.05 * 0.95 / 5120))


def test_nothing_yet_is_nan() -> None:
    values = StepValues()
    assert math.isnan(values.mean)
    assert math.isnan(values.recent_mean)
    assert math.isnan(values.quantile(0.95))


@pytest.mark.parametrize("at", [0, 1, 7, 8, 9, 20, 47])
def test_a_run_that_goes_on_keeps_what_an_uninterrupted_one_keeps(at: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(series, "MOST_KEPT", 8)
    whole, before, after = StepValues(), StepValues(), StepValues()
    after.append(99.0)  # what was there is gone
    for number in range(50):
        whole.append(number / 7)
        if number < at:
            before.append(number / 7)
    after.load_state_dict(before.state_dict())
    for number in range(at, 50):
        after.append(number / 7)
    assert after.kept.tolist() == whole.kept.tolist()
    assert (after.total, after.recent_mean, len(after)) == (whole.total, whole.recent_mean, len(whole))


def test_signs_of_part_of_a_long_run_are_counted_to_the_last_step_that_is_kept(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(series, "MOST_KEPT", 8)
    keeper, right = SignKeeper(), []
    draw = np.random.default_rng(0)
    for _ in range(40):
        scores, labels = torch.from_numpy(draw.normal(size=6)), torch.from_numpy(draw.integers(0, 2, 6))
        right.append(int(((scores > 0) == (labels == 1)).sum()))
        keeper.add(None, scores, labels)
    for steps in range(1, 40):
        to = (steps - 1) // 8 * 8 + 1  # of 40 steps every eighth is kept
        assert keeper.share(steps) == sum(right[:to]) / (6 * to)
    assert keeper.share() == keeper.share(40) == sum(right) / 240
    assert math.isnan(keeper.share(0))


# --- memory


def size_of(thing: Any, met: set[int]) -> int:
    """Bytes of everything that hangs on an object."""
    if id(thing) in met or isinstance(thing, (type, FunctionType, MethodType, ModuleType)):
        return 0
    met.add(id(thing))
    held = sys.getsizeof(thing)
    if isinstance(thing, torch.Tensor):
        return held + thing.untyped_storage().nbytes()
    if isinstance(thing, dict):
        parts = [*thing.keys(), *thing.values()]
    elif isinstance(thing, (list, tuple, set, frozenset, deque)):
        parts = list(thing)
    else:
        parts = [getattr(thing, name) for name in vars(thing)] if hasattr(thing, "__dict__") else []
    return held + sum(size_of(part, met) for part in parts)


def test_memory_of_a_watch_does_not_grow_with_the_steps() -> None:
    """Three attacks, one of which tells signs, and the auditor, on records that come back."""
    watch = Watch(["lab"])
    for name in ("norm", "direction", "signs"):
        watch.add("lab", Leak(NormAttack()), name=name)
    watch.leaks["lab"]["signs"].signs = SignKeeper()
    watch.leaks["lab"]["signs"].members = MemberKeeper()
    watch.audits["lab"] = Audit()
    draw = np.random.default_rng(0)
    ids, labels = torch.arange(64), torch.from_numpy(draw.integers(0, 2, 64))

    def steps(first: int, last: int) -> int:
        for step in range(first, last):
            gradient = torch.from_numpy(draw.normal(size=(64, 2)))
            view = View(party="lab", step=step, ids=ids, gradient=gradient)
            for leak in watch.leaks["lab"].values():
                leak.see(view, labels)
            watch.audits["lab"].see(gradient, gradient, labels, ids)
            watch.scalars(epoch_ends=step % 10 == 9)  # settles what is pending
        return size_of(watch, set())

    before = steps(0, 50)
    assert size_of(watch, set()) == before
    # One number of one keeper and step would be 8 bytes; Python's lists of them were 32 for each of seven.
    assert steps(50, 150) - before < 8 * 100

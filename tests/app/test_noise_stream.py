from __future__ import annotations

import re

import pytest

from splitvfl.app.noise_stream import cut_tail, success, void_at


@pytest.mark.parametrize("missing", [0.0, 3.1e-30, 0.5, 0.99])
def test_what_a_cut_tail_adds_to_delta_is_said_while_it_is_a_probability(missing: float) -> None:
    (said,) = re.findall(r"up to (\S+) of δ", cut_tail(missing))
    assert float(said) == pytest.approx(missing, rel=0.05)
    assert "void" not in cut_tail(missing)


@pytest.mark.parametrize("missing", [1.0, 4.6e3, float("inf")])
def test_from_one_on_it_is_no_probability_and_the_statement_is_void(missing: float) -> None:
    assert "void" in cut_tail(missing)
    assert "of δ" not in cut_tail(missing)


@pytest.mark.parametrize(
    ("mu", "missing", "right"), [(0.0, 0.0, 0.5), (2.0, 0.1, 0.9413447), (2.0, 0.5, 1.0), (0.0, 4.6e3, 1.0)]
)
def test_nobody_is_right_more_often_than_always(mu: float, missing: float, right: float) -> None:
    assert success(mu, missing) == pytest.approx(right, abs=1e-7)


@pytest.mark.parametrize(("delta", "void"), [(0.001, False), (0.999, False), (0.9996, True), (1.0, True)])
def test_a_delta_that_reads_one_guarantees_nothing(delta: float, void: bool) -> None:
    assert bool(void_at(3.0, delta)) == void == (f"{delta:.3g}" == "1")

from __future__ import annotations

import re

import pytest

from splitvfl.app.noise_stream import cut_tail


@pytest.mark.parametrize("missing", [0.0, 3.1e-30, 0.5, 0.99])
def test_what_a_cut_tail_adds_to_delta_is_said_while_it_is_a_probability(missing: float) -> None:
    (said,) = re.findall(r"up to (\S+) of δ", cut_tail(missing))
    assert float(said) == pytest.approx(missing, rel=0.05)
    assert "void" not in cut_tail(missing)


@pytest.mark.parametrize("missing", [1.0, 4.6e3, float("inf")])
def test_from_one_on_it_is_no_probability_and_the_statement_is_void(missing: float) -> None:
    assert "void" in cut_tail(missing)
    assert "of δ" not in cut_tail(missing)

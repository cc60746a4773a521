"""The table of models that are trained again: it runs without data, and its figures are those of the whole columns."""

from __future__ import annotations

import re

import numpy as np
import pytest

from scripts.reproduce.prediction_phase import retrained


def test_it_runs_on_generated_data_and_four_models_of_four_classes_tell_twelve_columns(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retrained, "DECIMALS", (None, 3))
    monkeypatch.setattr(retrained, "MODELS", (1, 3, 4))
    assert retrained.main(["--quick"]) == 0
    rows = {line.split("|")[1].strip(): line for line in reversed(capsys.readouterr().out.splitlines()) if "|" in line}
    errors = {name: [float(one) for one in re.findall(r"\| (\.\d+|0)", line)] for name, line in rows.items()}
    for name in ("all digits", "all digits, not clamped", "all digits, weights unknown"):
        assert errors[name][0] > errors[name][1] > errors[name][2] == 0
    assert errors["3 decimals"][2] > 0.001


def test_without_data_it_says_so(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: object
) -> None:
    monkeypatch.setenv("SPLITVFL_DATA", str(tmp_path))
    assert retrained.main([]) == 2
    assert "name the folder of data" in capsys.readouterr().err


def test_models_are_fitted_to_other_halves() -> None:
    table = retrained._generated(0)
    one, other = (weight.numpy() for weight, _ in retrained.fitted(table, 2, 0))
    assert np.abs(one - other).max() > 0.01

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import scipy
import torch
from torch import Tensor

from splitvfl.attacks import binary_residues
from splitvfl.errors import ArgumentError


def batch(rows: int, columns: int, used: int, *, seed: int = 0) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Columns, predictions, what each record gives to the gradient, and the gradient; the last records give nothing."""
    generator = torch.Generator().manual_seed(seed)
    features = torch.randn(rows, columns, generator=generator, dtype=torch.float64)
    predictions = torch.sigmoid(torch.randn(rows, generator=generator, dtype=torch.float64))
    labels = (torch.rand(rows, generator=generator, dtype=torch.float64) < predictions).double()
    residues = (predictions - labels) / used
    residues[used:] = 0.0
    return features, predictions, residues, features.T @ residues


@pytest.mark.parametrize("seed", range(4))
def test_the_answer_is_the_one_of_all_combinations_that_gives_the_sum(seed: int) -> None:
    features, predictions, _, total = batch(7, 3, 4, seed=seed)
    x, f = features.numpy(), predictions.numpy()
    explaining = []
    for choice in itertools.product((0, 1, 2), repeat=7):  # left out, negative, positive
        kinds = np.array(choice)
        count = (kinds > 0).sum()
        residues = np.where(kinds == 0, 0.0, np.where(kinds == 1, f, f - 1)) / max(count, 1)
        if count and np.abs(x.T @ residues - total.numpy()).max() < 1e-6:
            explaining.append(residues)

    found = binary_residues(features, total, predictions)

    assert len(explaining) == 1
    assert found.residues is not None
    assert np.allclose(found.residues.numpy(), explaining[0], atol=1e-12)


def test_more_records_than_columns_are_read_exactly_from_float32() -> None:
    features, predictions, residues, total = batch(40, 30, 16)

    found = binary_residues(features.float(), total.float(), predictions.float())

    assert found.residues is not None
    assert found.in_time
    # Values, not kinds, are rounded: the predictions to 24 bits.
    assert torch.allclose(found.residues, residues, atol=1e-7)


def test_predictions_of_another_model_explain_nothing() -> None:
    features, predictions, _, total = batch(10, 8, 4)

    found = binary_residues(features, total, 1.0 - 0.9 * predictions)

    assert found == (None, True)


def test_what_is_not_found_in_time_is_said_not_to_be() -> None:
    features, predictions, _, total = batch(90, 40, 45)

    assert binary_residues(features, total, predictions, time_limit=1e-6) == (None, False)


def test_identical_rows_share_their_sum_and_zero_rows_get_nothing() -> None:
    features = torch.tensor([[1.0, 0.3], [0.2, 1.0], [1.0, 0.3], [0.0, 0.0], [0.7, -0.6]])
    predictions = torch.tensor([0.25, 0.5, 0.25, 0.5, 0.125])
    # Of the two equal rows one is positive and one is left out.
    total = (-0.75 * features[0] + 0.5 * features[1]) / 2

    found = binary_residues(features, total, predictions)

    assert found.residues is not None
    assert found.residues.tolist() == pytest.approx([-0.1875, 0.25, -0.1875, 0.0, 0.0], abs=1e-9)


@pytest.mark.parametrize(
    ("predictions", "settings", "said"),
    [
        (torch.full((3,), 0.5), {}, r"predictions \(2,\) in \[0, 1\], got shape \(3,\)"),
        (torch.tensor([0.5, 1.5]), {}, r"in \[0, 1\]"),
        (torch.tensor([0.5, math.nan]), {}, r"in \[0, 1\]"),
        (torch.full((2,), 0.5), {"time_limit": 0.0}, "time limit above 0"),
        (torch.full((2,), 0.5), {"time_limit": math.nan}, "time limit above 0"),
    ],
)
def test_what_are_no_predictions_or_is_no_limit_is_refused(
    predictions: Tensor, settings: dict[str, float], said: str
) -> None:
    with pytest.raises(ArgumentError, match=said):
        binary_residues(torch.eye(2), torch.ones(2), predictions, **settings)


def test_a_record_that_is_not_used_is_not_positive_either() -> None:
    # One record with f / 1, and one with −1 / 1, which is no residue of f = ½.
    found = binary_residues(torch.eye(3), torch.tensor([0.5, -1.0, 0.0]), torch.full((3,), 0.5))

    assert found == (None, True)


def test_an_answer_that_does_not_give_the_sum_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    features, predictions, _, total = batch(7, 3, 4)

    def wrong(objective: np.ndarray, **_: object) -> scipy.optimize.OptimizeResult:
        return scipy.optimize.OptimizeResult(x=np.ones(objective.size), status=0)

    monkeypatch.setattr(scipy.optimize, "milp", wrong)

    assert binary_residues(features, total, predictions) == (None, True)

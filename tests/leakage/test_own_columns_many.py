"""What own columns tell of classes and numbers, against scikit-learn by hand, and on columns that tell nothing."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from sklearn.datasets import load_wine
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score
from sklearn.model_selection import train_test_split
from sklearn.preprocessing import scale

from splitvfl.data.columns import Columns
from splitvfl.errors import DataError
from splitvfl.leakage.own_columns_many import first_component_leak, own_columns_leak


@pytest.fixture(scope="module", autouse=True)
def _few_rounds() -> None:
    """As many rounds of boosting as users have: here it is asked what columns predict."""


def test_classes_are_predicted_as_on_records_that_were_held_out() -> None:
    rows, labels = load_wine(return_X_y=True)
    rows = scale(rows)[:, :2]  # two columns, or nothing would be left to miss
    train, test, own, asked = train_test_split(rows, labels, test_size=0.2, random_state=0, stratify=labels)
    model = LogisticRegression().fit(train, own)
    expected = roc_auc_score(asked, model.predict_proba(test), multi_class="ovr")

    found = own_columns_leak(Columns.of(torch.from_numpy(rows)), torch.from_numpy(labels), 3)

    assert found.auc == pytest.approx(expected, abs=0.08)  # 36 records


@pytest.mark.parametrize("classes", [3, None])
def test_columns_that_tell_nothing(classes: int | None) -> None:
    generator = np.random.default_rng(0)
    columns = Columns.of(torch.from_numpy(generator.normal(size=(300, 3))))
    labels = torch.from_numpy(generator.integers(0, 3, 300) if classes else generator.normal(size=300))
    # The better of two models, each with a standard deviation of .02 or so.
    assert own_columns_leak(columns, labels, classes).auc == pytest.approx(0.5, abs=0.08)
    assert first_component_leak(columns, labels, classes) == pytest.approx(0.52, abs=0.06)


def test_numbers_and_categories_are_predicted() -> None:
    generator = torch.Generator().manual_seed(0)
    codes = torch.randint(4, (200, 1), generator=generator)
    labels = torch.tensor([3.0, -1.0, 7.0, 0.0], dtype=torch.float64)[codes[:, 0]]
    noisy = labels + 0.1 * torch.randn(200, generator=generator)
    assert own_columns_leak(Columns(torch.zeros(200, 0), codes), noisy, None).auc > 0.85
    assert first_component_leak(Columns(torch.zeros(200, 0), codes), noisy, None) is None
    numeric = torch.stack([noisy, noisy + 0.5], dim=1).float()
    assert first_component_leak(Columns.of(numeric), noisy, None) == pytest.approx(1.0)


def test_too_few_records_are_an_error() -> None:
    columns = Columns.of(torch.rand(12, 2))
    with pytest.raises(DataError, match="each class needs at least 5 records"):
        own_columns_leak(columns, torch.arange(12) % 3, 3)
    with pytest.raises(DataError, match="at least 10 records, got 6"):
        own_columns_leak(columns.rows(torch.arange(6)), torch.rand(6), None)

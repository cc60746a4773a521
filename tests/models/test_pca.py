"""Principal components, against scikit-learn's and against what defines them."""

from __future__ import annotations

import pytest
import torch
from sklearn.decomposition import PCA as Reference

from splitvfl.errors import ArgumentError, DataError
from splitvfl.models import PCA, pca
from tests.builders import generator


def columns(count: int = 300, width: int = 6) -> torch.Tensor:
    """Of different variances, far from zero, and correlated."""
    mixing = torch.randn(width, width, generator=generator("mixing"))
    drawn = torch.randn(count, width, generator=generator("drawn")) * torch.tensor([5.0, 3.0, 2.0, 1.0, 0.5, 0.1])
    return drawn @ mixing + 100.0


@pytest.mark.parametrize("width", [1, 3, 6])
def test_components_are_scikit_learns(width: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pca, "_ROWS", 70)  # added up in five pieces
    rows = columns()
    found = PCA(6, width).fit(rows)
    reference = Reference(width, svd_solver="full").fit(rows.double().numpy())
    expected = torch.from_numpy(reference.components_)
    signs = expected.gather(1, expected.abs().argmax(dim=1, keepdim=True)).sign()
    # float32 keeps seven digits of each.
    torch.testing.assert_close(found.components.double(), expected * signs, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(found.mean.double(), rows.double().mean(dim=0), rtol=1e-6, atol=0)
    torch.testing.assert_close(
        found(rows).double(),
        torch.from_numpy(reference.transform(rows.double().numpy())) * signs.T,
        rtol=1e-4,
        atol=1e-4,
    )


def test_with_all_components_the_columns_come_back() -> None:
    rows = columns()
    found = PCA(6, 6).fit(rows)
    torch.testing.assert_close(found(rows) @ found.components + found.mean, rows, rtol=1e-5, atol=1e-4)


def test_there_is_nothing_in_it_that_an_optimiser_could_change() -> None:
    found = PCA(6, 2).fit(columns())
    assert list(found.parameters()) == []
    again = PCA(6, 2)
    again.load_state_dict(found.state_dict())
    assert torch.equal(again(columns()), found(columns()))


@pytest.mark.parametrize(("inputs", "width"), [(3, 4), (3, 0), (0, 0)])
def test_no_more_components_than_columns(inputs: int, width: int) -> None:
    with pytest.raises(ArgumentError, match=f"expected 1 to {inputs} principal components"):
        PCA(inputs, width)


@pytest.mark.parametrize("rows", [torch.zeros(0, 3), torch.tensor([[0.0, torch.nan, 1.0]])])
def test_what_cannot_be_fitted_is_refused(rows: torch.Tensor) -> None:
    with pytest.raises(DataError, match=r"records with finite numbers, got \d records"):
        PCA(3, 2).fit(rows)


def test_other_columns_are_refused() -> None:
    with pytest.raises(ArgumentError, match=r"expected 6 numeric columns, got \(2, 5\)"):
        PCA(6, 2)(torch.zeros(2, 5))

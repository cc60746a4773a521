"""Columns from scores of predictions, by who knows the whole model: the likeliest that would be scored so."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, ClassVar, Final

import torch
from pydantic import Field
from torch import Tensor, nn

from splitvfl.attacks.known_share import KnownShare, checked_share
from splitvfl.attacks.likeliest_columns import Normal, likeliest
from splitvfl.attacks.score_outputs import known_places, outputs_of_scores, told_apart
from splitvfl.errors import ArgumentError
from splitvfl.hooks import Seat, Target, View
from splitvfl.leakage.ridge import fit_ridge

if TYPE_CHECKING:
    from splitvfl.data.columns import Columns

# An output is not believed closer than this, in units of its standard deviation: scores are rounded, models bend.
_CLOSEST: Final = 0.05


class ScoreInversionAttack:
    """Estimate partners' numeric columns by inverting the whole model from its scores, with a normal prior.

    Assumes the whole trained model, the label party's own columns, scores, and the columns of a few records; no
    activation. Ridge regression on own columns, fitted to the known records, gives each record a mean m, and what it is
    off by at known records, each left out in turn, a covariance S. The estimate is

        min over x  Σ_j (f_j(own, x) − f_j)² / σ_j²  +  (x − m)ᵀ S⁻¹ (x − m),

    where f are the outputs that scores were made of (log odds; of k classes logarithms less their mean), and σ is what
    the model is off by at known records: next to nothing, or what a defense of scores or activations adds. It is sought
    by damped Gauss-Newton steps from m and from ridge regression on own columns and f, and kept within the known values
    of each column. Of a linear model that is the conditional mean of normal columns; of any other a place where no step
    helps, which another start might better.

    Without scores it is that regression. What it does not promise: columns far from normal mislead it, and
    ``generative-regression`` may read more of them. The figure is no upper bound.

    Takes .1 to 4 s of a core for a thousand records, the most where there are many columns and classes.

    In a file: ``attacks: [{name: score-inversion, known_share: 0.05}]``

    Source: Luo et al., *Feature Inference Attack on Model Predictions in Vertical Federated Learning*, ICDE 2021
    (arXiv:2010.10152), for who knows the model and sees scores; the prior and the steps are ours here, as those of
    ``white-box-inversion``.

    Args:
        known_share: Share of the training records whose columns the attacker is assumed to know, above 0 and below 1;
            of no more than 512 records.
        steps: Gauss-Newton steps, at least 1.

    Raises:
        ArgumentError: If a setting is out of range.
    """

    name: ClassVar[str] = "score-inversion"
    seat: ClassVar[Seat] = "active"
    target: ClassVar[Target] = "features"
    needs: ClassVar[frozenset[str]] = frozenset({"scores", "columns", "classes", "whole_model", "known_columns"})

    def __init__(self, *, known_share: KnownShare = 0.05, steps: Annotated[int, Field(ge=1, le=1_000)] = 30) -> None:
        if not 1 <= steps <= 1_000:
            raise ArgumentError(f"steps must be 1 to 1,000, got {steps}")
        self.known_share, self._steps = checked_share(known_share), steps

    def __call__(self, view: View, /) -> Tensor:
        """Return the estimate.

        Args:
            view: All that it needs is read. The model is changed.

        Returns:
            ``(n, d)``, float64, in the columns' own units, of known records too.

        Raises:
            AttackRefused: If the model passes no gradient on to the columns.
            ArgumentError: If fewer than two records are known, or one that is not among those scored.
        """
        known, places = known_places(view)
        known, seen = known.double(), outputs_of_scores(view.scores, view.classes)
        own, numbers = _doubled(view.columns)
        first = fit_ridge(numbers[places], known)
        prior = Normal.of(first.left_out)._replace(middle=torch.zeros_like(known[0]))
        model = _Outputs(view.whole_model.double().eval().requires_grad_(False), view.classes)
        with torch.no_grad():
            off = (model(_rows(own, places), known) - seen[places]).square().mean(dim=0).sqrt()
        spread = seen.std(dim=0, correction=0)
        noise = off.maximum(_CLOSEST * torch.where(spread > 0, spread, 1.0))
        middle, inputs = first.estimate(numbers), torch.cat([numbers, seen], dim=1)
        linear = fit_ridge(inputs[places], known).estimate(inputs) - middle
        start = torch.linalg.solve_triangular(prior.root, linear.T, upper=False).T
        twice, middles, sought = _twice(own), torch.cat([middle, middle]), torch.cat([seen, seen])
        found = likeliest(
            lambda units: (model(twice, middles + prior.back(units)) - sought) / noise,
            torch.zeros_like(start),
            start,
            steps=self._steps,
        )
        return (middle + prior.back(found)).clamp(known.amin(dim=0), known.amax(dim=0))


class _Outputs:
    """A model's outputs as scores tell them.

    Args:
        model: The model.
        classes: Number of classes; ``None`` of a regression.
    """

    def __init__(self, model: nn.Module, classes: int | None) -> None:
        self._model, self._classes = model, classes

    def __call__(self, own: Tensor | Columns, columns: Tensor) -> Tensor:
        """Return outputs, ``(n, k)``."""
        return told_apart(self._model(own, columns), self._classes)


def _twice(own: Tensor | Columns) -> Tensor | Columns:
    if isinstance(own, Tensor):
        return torch.cat([own, own])
    return type(own)(*(torch.cat([part, part]) for part in own))


def _doubled(own: Tensor | Columns) -> tuple[Tensor | Columns, Tensor]:
    """Return own columns in float64, as the model takes them, and the numbers among them."""
    if isinstance(own, Tensor):
        return own.double(), own.double()
    wide = own._replace(numeric=own.numeric.double())
    return wide, wide.numeric


def _rows(own: Tensor | Columns, places: Tensor) -> Tensor | Columns:
    return own[places] if isinstance(own, Tensor) else own.rows(places)

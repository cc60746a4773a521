"""Columns from scores of predictions, by who knows the whole model: a network that generates what would score so."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Annotated, ClassVar, Final

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn.functional import relu

from splitvfl.attacks.known_share import KnownShare, checked_share
from splitvfl.attacks.score_outputs import known_places, outputs_of_scores, told_apart
from splitvfl.errors import ArgumentError, AttackRefused
from splitvfl.hooks import Seat, Target, View

if TYPE_CHECKING:
    from splitvfl.data.columns import Columns

_LR: Final = 1e-3
_DECAY: Final = 1e-2
_BATCH: Final = 64
_FARTHEST: Final = 5.0


class GenerativeRegressionAttack:
    """Estimate partners' numeric columns from scores, by a network that learns which columns the model scores so.

    Assumes the whole trained model, the label party's own columns, the scores of many records, and the columns of a
    few of them; no activation. A network G of one hidden layer puts out columns x̂ of own columns and scores. It is
    trained, over all records, to make small

        mean ‖f(own, x̂) − f‖² / var f  +  Σ_j max(0, var x̂_j / σ_j² − 1) / d  +  taught · mean ‖(x̂ − x) / σ‖² / d

    where f are the outputs that scores were made of (log odds; of k classes logarithms less their mean), the last mean
    is over the known records, and σ is their standard deviation. All records share one network: what is found of one is
    used for others.

    Where it differs from the source: there no record is known, and ranges of columns are; G takes random numbers and
    not the scores; it has three layers. Random numbers made no difference to the squared error. Without known records
    little is read: with ``taught: 0``, where they tell mean and variance alone, .00 to .24 of the variance on four data
    sets (docs/what-scores-tell.md).

    What it does not promise: that the model is worth much to it. The same network taught by known records alone, on
    scores and own columns, read .46 of digits where this one reads .49, and .01 more than this one on credit default
    and bank marketing. ``score-inversion`` makes more of the model, and reads more where columns are near to normal.
    The figure is no upper bound.

    Takes 1.5 to 2.5 s of a core in all, by a thousand steps, which is .6 to .9 s for a thousand records of 2 500.

    In a file: ``attacks: [{name: generative-regression, known_share: 0.05}]``

    Also called: GRN, GRNA, generative regression network.

    Source: Luo et al., *Feature Inference Attack on Model Predictions in Vertical Federated Learning*, ICDE 2021
    (arXiv:2010.10152), section V: the generative regression network.

    Args:
        known_share: Share of the training records whose columns the attacker is assumed to know, above 0 and below 1;
            of no more than 512 records.
        steps: Steps of training, at least 1.
        hidden: Width of the hidden layer, at least 1.
        taught: Weight of the known records' squared error, at least 0.
        seed: Of the network's first weights and of the order of records.

    Raises:
        ArgumentError: If a setting is out of range.
    """

    name: ClassVar[str] = "generative-regression"
    seat: ClassVar[Seat] = "active"
    target: ClassVar[Target] = "features"
    needs: ClassVar[frozenset[str]] = frozenset({"scores", "columns", "classes", "whole_model", "known_columns"})

    def __init__(
        self,
        *,
        known_share: KnownShare = 0.05,
        steps: Annotated[int, Field(ge=1, le=100_000)] = 1_000,
        hidden: Annotated[int, Field(ge=1, le=4_096)] = 64,
        taught: Annotated[float, Field(ge=0)] = 1.0,
        seed: int = 0,
    ) -> None:
        if not 1 <= steps <= 100_000:
            raise ArgumentError(f"steps must be 1 to 100,000, got {steps}")
        if not 1 <= hidden <= 4_096:
            raise ArgumentError(f"hidden must be 1 to 4,096, got {hidden}")
        if not 0.0 <= taught < math.inf:
            raise ArgumentError(f"taught must be finite and at least 0, got {taught}")
        self.known_share = checked_share(known_share)
        self._steps, self._hidden, self._taught, self._seed = steps, hidden, taught, seed

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
        seen = outputs_of_scores(view.scores, view.classes).float()
        own = view.columns
        numbers = own if isinstance(own, Tensor) else own.numeric
        columns, output_spread = _Units.of(known), _spread(seen)
        inputs = torch.cat([_Units.of(part).to(part) for part in (numbers, seen)], dim=1)
        model = view.whole_model.float().eval().requires_grad_(False)
        random = torch.Generator().manual_seed(self._seed)
        generator = _Generator(inputs.shape[1], self._hidden, known.shape[1], random).to(inputs.device)
        optimizer = torch.optim.Adam(generator.parameters(), lr=_LR, weight_decay=_DECAY)
        targets = columns.to(known)
        with torch.enable_grad():
            for _ in range(self._steps):
                some, told = (_some(count, random).to(inputs.device) for count in (len(inputs), len(places)))
                made = generator(inputs[some])
                outputs = told_apart(model(_rows(own, some), columns.back(made)), view.classes)
                if not outputs.requires_grad:
                    raise AttackRefused("the model passes no gradient on to the partner's columns")
                off = ((outputs - seen[some]) / output_spread).square().mean()
                wild = relu(made.var(dim=0, correction=0) - 1.0).mean()
                taught = (generator(inputs[places[told]]) - targets[told]).square().mean()
                optimizer.zero_grad()
                (off + wild + self._taught * taught).backward()
                optimizer.step()
        return columns.back(generator(inputs).detach()).double()


class _Generator(nn.Module):
    """A network of one hidden layer, whose first answer is the mean.

    Args:
        inputs: Width of the input.
        hidden: Of the hidden layer.
        outputs: Of the output.
        random: Draws the first weights.
    """

    def __init__(self, inputs: int, hidden: int, outputs: int, random: torch.Generator) -> None:
        super().__init__()
        self.first = nn.Parameter(torch.randn(inputs, hidden, generator=random) / math.sqrt(max(inputs, 1)))
        self.bend = nn.Parameter(0.5 * torch.randn(hidden, generator=random))
        self.last = nn.Parameter(torch.randn(hidden, outputs, generator=random) * 0.1 / math.sqrt(hidden))
        self.bias = nn.Parameter(torch.zeros(outputs))

    def forward(self, inputs: Tensor) -> Tensor:
        """Return columns in units of the known records, ``(n, outputs)``."""
        return relu(inputs @ self.first + self.bend) @ self.last + self.bias


class _Units:
    """Numbers in units of some records' means and standard deviations, float32; far ones count as less far.

    Args:
        middle: ``(d,)``.
        spread: ``(d,)``, above 0.
    """

    def __init__(self, middle: Tensor, spread: Tensor) -> None:
        self._middle, self._spread = middle, spread

    @classmethod
    def of(cls, values: Tensor) -> _Units:
        """Return those of records ``(m, d)``."""
        return cls(values.float().mean(dim=0), _spread(values.float()))

    def to(self, values: Tensor) -> Tensor:
        """Return numbers in these units."""
        return ((values.float() - self._middle) / self._spread).clamp(-_FARTHEST, _FARTHEST)

    def back(self, values: Tensor) -> Tensor:
        """Return numbers in their own units."""
        return values * self._spread + self._middle


def _spread(values: Tensor) -> Tensor:
    spread = values.std(dim=0, correction=0)
    return torch.where(spread > 0, spread, 1.0)


def _some(count: int, random: torch.Generator) -> Tensor:
    return torch.randint(count, (min(_BATCH, count),), generator=random)


def _rows(own: Tensor | Columns, places: Tensor) -> Tensor | Columns:
    return own[places].float() if isinstance(own, Tensor) else own.rows(places)

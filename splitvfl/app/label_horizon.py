"""Until which step of logistic regression solved residues provably tell labels, and how many they told.

Source: *Is Vertical Logistic Regression Privacy-Preserving?*, with the radius of the rows that there are.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, Self

import torch

from splitvfl.exchange.base import Exchange
from splitvfl.learning.losses import Approximation
from splitvfl.party.recipe import Recipe
from splitvfl.privacy.sign_horizon import initial_margin, sign_attack_horizon
from splitvfl.run.trainer import Trainer

# With which the bound on the first logits, drawn at random, may fail.
_FAILURE: Final = 0.01
_BLOCK = 1 << 16


@dataclass(frozen=True)
class LabelHorizon:
    """In steps 1 to ``steps`` the sign of a solved residue is its record's label.

    Attributes:
        steps: The number of steps; infinite if signs never expire.
        radius: Norm that no record's row exceeds, of all parties' columns and the intercept's one together.
        margin: Size that no first logit exceeds.
        approximation: The sigmoid's.
    """

    steps: int | float
    radius: float
    margin: float
    approximation: Approximation

    @classmethod
    def of(cls, rate: float, radius: float, margin: float, approximation: Approximation) -> Self:
        """Return the horizon of gradient descent at a rate."""
        steps = sign_attack_horizon(rate, margin, approximation=approximation, radius=radius)
        return cls(steps, radius, margin, approximation)

    @classmethod
    def agreed(cls, rate: float, recipe: Recipe, approximation: Approximation, parties: int, records: int) -> Self:
        """Return what any party can know: from the agreed norm of a party's rows and the initialisation alone."""
        assert recipe.row_norm is not None, "a norm is agreed"
        radius = math.sqrt(parties * recipe.row_norm**2 + 1)
        margin = initial_margin(recipe.largest_deviation, radius, max(1, records), _FAILURE)
        return cls.of(rate, radius, margin, approximation)

    def __str__(self) -> str:
        """Return it in words."""
        where = {0: "no step", 1: "step 1", math.inf: "every step"}.get(self.steps, f"steps 1 to {self.steps}")
        return f"{where} (rows of norm up to {self.radius:.3g}, first logits up to {self.margin:.3g})"


def observed_horizon(rate: float | None, exchange: Exchange, trainer: Trainer) -> LabelHorizon | None:
    """Return what the auditor knows before the first step, who sees all parties' rows and weights.

    Without a rate of plain gradient descent, the sign is not the label's, and nothing is returned.
    """
    if rate is None or trainer.active.task.name != "binary":
        return None
    radius = margin = 0.0
    for squares, logits in _blocks(trainer):
        radius = max(radius, math.sqrt(float(squares.max())))
        margin = max(margin, float(logits.abs().max()))
    return LabelHorizon.of(rate, radius, margin, exchange.approximation)


def _blocks(trainer: Trainer) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Yield squared norms of rows over all parties, the intercept's one included, and logits; of training records."""
    parties = (trainer.active, *trainer.passives.values())
    for start in range(0, trainer.active.data.train.count, _BLOCK):
        rows = torch.arange(start, min(start + _BLOCK, trainer.active.data.train.count))
        batches = {party.name: party.train_batch(rows) for party in parties}
        columns = torch.cat([batch.columns.numeric.double() for batch in batches.values()], dim=1)
        with torch.no_grad():
            own = trainer.active.top.active_logits(batches[trainer.active.name].columns.numeric)  # type: ignore[operator]
            logits = own + sum(party.activate(batches[name]) for name, party in trainer.passives.items())
        yield 1 + columns.square().sum(dim=1), logits


def before(observed: LabelHorizon | None, agreed: LabelHorizon | None) -> list[str]:
    """Return what is to be said before the first step, in sentences."""
    said = []
    if observed is not None:
        said.append(f"The sign of a residue that can be solved for is provably its record's label in {observed}.")
    if agreed is not None:
        said.append(
            "From the agreed norm, rate and initialisation alone any party knows that, if nobody adds noise, the sign "
            f"of a residue that it can solve for is the record's label in {agreed}."
        )
    return said


def outcome(trainer: Trainer, observed: LabelHorizon | None) -> list[str]:
    """Return how many labels each attack had right that says them by a sign, in sentences."""
    return [
        f"{name} at {party}: {_shares(trainer, party, name, observed)}"
        for party, leaks in trainer.leaks.items()
        for name, leak in leaks.items()
        if leak.signs is not None
    ]


def _shares(trainer: Trainer, party: str, name: str, observed: LabelHorizon | None) -> str:
    leak = trainer.leaks[party][name]
    signs = leak.signs
    assert signs is not None
    overall, (right, records) = signs.share(), signs.records
    if not records:
        return "no sign was told."
    which = "last" if signs.last else "majority"
    said = [
        f"{overall:.1%} of signs were the label; of {records} records {right} by the {which} of their signs "
        f"({signs.commoner:.1%} have the commoner label)."
    ]
    if "aggregated_gradient" not in leak.needs:
        return said[0]
    largest, width = trainer.batches.batch_size, trainer.passives[party].data.width
    if largest > width:
        said.append(f"Batches of {largest} records are more than its {width} columns can be solved for.")
    elif observed is not None and 0 < observed.steps < trainer.step:
        said.append(f"In the steps where that is proven it was {signs.share(observed.steps):.1%}.")
    return " ".join(said)

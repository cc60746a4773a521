"""Under encryption the label owner reconstructs a partner's only feature exactly where that is said before step 1."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from splitvfl.attacks.single_feature import ObservedBatch, recover_single_feature
from splitvfl.data.columns import Records
from splitvfl.errors import ArgumentError
from splitvfl.exchange.linear import ActiveCoefficients
from splitvfl.exchange.taylor import Taylor
from splitvfl.party.party import ActiveParty
from splitvfl.privacy import solvable_column
from splitvfl.privacy.solvable import SummedTraining
from tests.exchange.logistic import BATCH, RATE, SHORT, trainer_of

EPOCHS = 4


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> list[ObservedBatch]:
    """What the label owner holds of each step: its own columns, logits and labels, and the sums that were opened."""
    found: list[ObservedBatch] = []
    learn = ActiveCoefficients.learn

    def noting(
        self: ActiveCoefficients, party: ActiveParty, others: Tensor, batch: Records, step: int, **more: Any
    ) -> None:
        columns = torch.cat([batch.columns.numeric.double(), torch.ones(batch.count, 1, dtype=torch.float64)], dim=1)
        gradient = columns.T @ self.coefficients + others
        labels = self.labels.to(torch.int64)
        found.append(ObservedBatch(batch.ids.clone(), columns, gradient, self.logits.clone(), labels, RATE))
        learn(self, party, others, batch, step, **more)

    monkeypatch.setattr(ActiveCoefficients, "learn", noting)
    return found


@pytest.mark.parametrize("features", [1, 2])
@pytest.mark.parametrize("own", [BATCH - 1, BATCH - 2])
def test_the_feature_follows_from_opened_sums_where_it_is_said_and_only_there(
    own: int, features: int, seen: list[ObservedBatch]
) -> None:
    trainer = trainer_of(Taylor(rows=BATCH, encryption=SHORT, loss=False), {"lab": features}, own=own)
    said = solvable_column(
        "lab",
        features,
        SummedTraining(BATCH * len(trainer.batches), BATCH, EPOCHS),
        seen="sums",
        own_features=own,
    )
    trainer.fit(EPOCHS)
    truth = trainer.passives["lab"].data.train.columns.numeric[:, 0].double().numpy()
    try:
        found = recover_single_feature(seen, tolerance=1e-4).features.numpy()
    except ArgumentError:
        found = np.full_like(truth, np.nan)
    error = min(np.abs(found - sign * truth).max() for sign in (1, -1))
    # Fixed point has 26 bits, and solving for residues enlarges what is rounded.
    assert (error < 1e-3) == (said is not None), error

"""A party of workers among which a table is divided: no weight changes anywhere where a gradient is not finite."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from splitvfl.data.columns import Columns, PartyData, Records
from splitvfl.errors import ProtocolError
from splitvfl.learning.optimizers import PerParameter
from splitvfl.models import WideDeepBottom
from splitvfl.party.party import PassiveParty
from splitvfl.team.team import Team
from tests.team.together import together

LARGE = 3e38  # of which two add up to more than float32 holds


def party_of(team: Team) -> PassiveParty:
    torch.manual_seed(0)
    records = Records(torch.arange(2), Columns(torch.ones(2, 1), torch.tensor([[0, 1], [2, 1]])), None)
    data = PartyData("shop", ("x", "a", "b"), ("x",), (3, 2), records, records, ("a", "b"))
    bottom = WideDeepBottom(1, (3, 2), embedding_dim=2, widths=(2,), sparse=True, team=team)
    party = PassiveParty(data, bottom, optimizer=PerParameter())
    party.join(team)
    return party


def step(party: PassiveParty, gradient: Tensor) -> None:
    records = party.train_batch(torch.arange(2))
    vectors = party.bottom.embeddings(records.columns.categorical)  # type: ignore[operator, union-attr]
    party.weights.clear_gradients()
    vectors.backward(gradient)


def overflow(team: Team) -> Any:
    """Row 4 is at worker 0, and its gradient, finite at each worker, adds up to infinity there."""
    party = party_of(team)
    before = {name: value.clone() for name, value in party.bottom.state_dict().items()}
    gradient = torch.zeros(2, 2, 2)
    gradient[0, 1] = LARGE
    step(party, gradient)
    finite = party.weights.has_finite_gradients()
    try:
        party.weights.update()
        said = ""
    except ProtocolError as error:
        said = str(error)
    same = all(torch.equal(before[name], value) for name, value in party.bottom.state_dict().items())
    gradient[0, 1] = torch.inf
    step(party, gradient)
    return finite, said, same, party.weights.has_finite_gradients()


def test_a_sum_that_overflows_at_one_worker_is_refused_by_all() -> None:
    for finite, said, same, infinite in together(overflow, size=2):
        assert finite
        assert "the gradients of the weights of shop, added up over its workers, overflow" in said
        assert same
        assert not infinite


def forgotten(team: Team) -> Any:
    """A step that was broken off leaves nothing for the next one."""
    party = party_of(team)
    step(party, torch.ones(2, 2, 2))
    party.weights.clear_gradients()
    party.weights.update()
    return [float(table.rows.grad.to_dense().abs().sum()) for table in party.weights._tables]  # type: ignore[union-attr]


def test_gradients_of_a_step_that_was_broken_off_are_forgotten() -> None:
    assert together(forgotten, size=2) == [[0.0], [0.0]]

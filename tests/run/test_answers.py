"""What a record is answered with is always the same: asked again and again, it tells no more than once."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from splitvfl.claims import RowNorm
from splitvfl.data.columns import Columns
from splitvfl.data.record_index import RecordIndex
from splitvfl.defenses import GaussianIR
from splitvfl.errors import PrivacyError
from splitvfl.exchange.parts import part_to_score
from splitvfl.hooks import Secrets
from splitvfl.models import Sampled
from splitvfl.party.party import PassiveParty
from splitvfl.run.answers import RecordAnswers
from tests.builders import passive_party

RUN, KEY = "a" * 32, b"k" * 32
SIGMA = 0.5
COUNT = 100


def noisy_party(*defenses: Any, columns: Tensor | None = None) -> PassiveParty:
    party = passive_party("telecom", test=COUNT)
    if columns is not None:
        party.data = replace(party.data, test=replace(party.data.test, columns=Columns.of(columns)))
    for defense in defenses or (GaussianIR(clip=1.0, sigma=SIGMA),):
        party.activation.attach(defense, at=("prediction",))
    return party


def index_of(party: PassiveParty) -> RecordIndex:
    return RecordIndex.of_numbers(party.data.test.ids.numpy(), run=RUN)


def answers(party: PassiveParty, *, key: bytes = KEY, half: str = "half", settings: bytes = b"") -> RecordAnswers:
    return RecordAnswers(party, index_of(party), key=key, half=half, settings=settings)


def ask(answered: RecordAnswers, *rows: int) -> Tensor:
    index = index_of(answered._party)
    return answered(torch.from_numpy(index.own[list(rows)].copy())).activation


def test_answers_are_the_same_to_the_bit_however_they_are_asked_for() -> None:
    one, other = answers(noisy_party()), answers(noisy_party())

    first = ask(one, *range(COUNT))

    assert torch.equal(ask(one, *range(COUNT)), first)
    # Another process, with the same key: in another order, one at a time, twice in one message.
    for rows in ([7], [99, 7, 3], [7, 7], [3], list(range(COUNT - 1, -1, -1))):
        assert torch.equal(ask(other, *rows), first[rows])


def test_asking_again_takes_no_noise_away() -> None:
    party = noisy_party()
    clean = noisy_party(GaussianIR(clip=1.0, sigma=1e-9))

    means = torch.stack([ask(answers(party), *range(COUNT)) for _ in range(3)]).mean(0)
    off = (means - ask(answers(clean), *range(COUNT))).std().item()

    # Of 400 numbers: five standard errors. Drawn anew, three means would leave SIGMA / 1.73.
    assert abs(off / SIGMA - 1.0) < 5 / (2 * 400) ** 0.5


def test_with_another_key_half_or_setting_noise_is_another() -> None:
    first = ask(answers(noisy_party()), *range(50))

    for change in ({"key": b"l" * 32}, {"half": "another half"}, {"settings": b"other"}):
        other = answers(noisy_party(), **change)  # type: ignore[arg-type]
        assert (ask(other, *range(50)) != first).all(dim=1).all()


def test_a_record_whose_columns_change_gets_other_noise() -> None:
    """Two answers with one noise would show, in their difference, how the activation has changed."""
    party = noisy_party()
    columns = party.data.test.columns.numeric.clone()
    columns[3, 1] += 0.01
    changed = noisy_party(columns=columns)

    before, after = (ask(answers(one), *range(10)) for one in (party, changed))

    assert torch.equal(before[[0, 1, 2, 4, 5]], after[[0, 1, 2, 4, 5]])
    assert (before[3] - after[3]).norm() > SIGMA  # the clean rows are within .01 of each other


def test_records_with_equal_columns_do_not_share_noise() -> None:
    columns = noisy_party().data.test.columns.numeric.clone()
    columns[:] = columns[0]

    rows = ask(answers(noisy_party(columns=columns)), *range(COUNT))

    assert len(torch.unique(rows, dim=0)) == COUNT
    assert abs(rows.std(dim=0).mean().item() / SIGMA - 1.0) < 5 / (2 * 400) ** 0.5


def test_two_defenses_draw_noise_of_their_own() -> None:
    twice = noisy_party(GaussianIR(clip=1.0, sigma=SIGMA), GaussianIR(clip=1e9, sigma=SIGMA))
    clean = ask(answers(noisy_party(GaussianIR(clip=1.0, sigma=1e-9))), *range(COUNT))

    off = (ask(answers(twice), *range(COUNT)) - clean).std().item()

    # Equal draws would add up to 2 sigma.
    assert abs(off / (2**0.5 * SIGMA) - 1.0) < 5 / (2 * 400) ** 0.5


def test_without_a_defense_answers_are_those_of_a_prediction_to_the_bit() -> None:
    party, rows = passive_party("telecom", test=COUNT), torch.arange(COUNT)
    with party.evaluating():
        expected = part_to_score(party, party.test_batch(rows), 0, "prediction", kind="activation")
        answered = answers(party)
        for some in ([5], [99, 5, 0], list(range(COUNT))):
            assert torch.equal(ask(answered, *some), expected[some])


def test_what_is_asked_for_by_two_forms_of_an_id_is_one_record() -> None:
    """Ids of tables may stand for numbers or text: with a noise for each, a record could be seen twice."""
    party, index = noisy_party(), index_of(noisy_party())
    digests = torch.from_numpy(RecordIndex.of_numbers(party.data.test.ids.numpy(), run=RUN).own.copy())
    from splitvfl.data.record_index import _digests

    number = int(party.data.test.ids[3])
    as_text = torch.from_numpy(_digests([b"t%d" % number], RUN).copy())
    assert index.find(as_text.numpy()).tolist() == [3]

    assert torch.equal(answers(party)(as_text).activation, answers(noisy_party())(digests[3:4]).activation)


class Stateful:
    crossing = "activation"

    def claims(self) -> tuple[RowNorm]:
        return (RowNorm(1e9),)

    def __call__(self, activation: Tensor, secrets: Secrets, /) -> Tensor:
        return activation

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None: ...


class LikeTheLargest:
    """In a batch of one record it adds nothing at all."""

    crossing = "activation"

    def __call__(self, activation: Tensor, secrets: Secrets, /) -> Tensor:
        norms = activation.norm(dim=1, keepdim=True)
        return activation * norms.max() / norms


@pytest.mark.parametrize(("defense", "why"), [(Stateful(), "a state of its own"), (LikeTheLargest(), "claims nothing")])
def test_defenses_that_cannot_act_on_one_record_are_refused_by_name(defense: Any, why: str) -> None:
    with pytest.raises(PrivacyError, match=f"telecom cannot answer .* defense {type(defense).__name__}: it .*{why}"):
        answers(noisy_party(GaussianIR(clip=1.0, sigma=SIGMA), defense))


def test_a_model_that_draws_what_it_sends_is_refused() -> None:
    party = PassiveParty(passive_party("telecom", test=COUNT).data, Sampled(nn.Linear(5, 8)))
    with pytest.raises(PrivacyError, match=r"telecom cannot answer for single records: its model .* draws"):
        answers(party)

"""Which messages a defense is attached to, and whether what was agreed on is bounded."""

from __future__ import annotations

from typing import Any

import pytest

from splitvfl.attaching import attach_defense, check_clips
from splitvfl.defenses import ClipGradient, GaussianIR, Isotropic, MemoisedResponse, Rounding
from splitvfl.errors import PrivacyError
from splitvfl.party import ActiveParty
from tests.builders import active_party, passive_party


def active(*passives: str) -> ActiveParty:
    party = active_party(len(passives))
    for name in passives:
        party.connect(name)
    return party


@pytest.mark.parametrize(
    ("defense", "at_active", "at_passive"),
    [
        (Isotropic(ratio=1.0), {"gradient/telecom", "gradient/shop"}, set()),
        (MemoisedResponse(epsilon=1.0), {"labels"}, set()),
        (Rounding(decimals=2), {"scores"}, set()),
        (
            GaussianIR(clip=1.0, sigma=0.1),
            set(),
            {"activation/training", "activation/evaluation", "activation/prediction"},
        ),
    ],
    ids=["gradient", "labels", "scores", "activation"],
)
def test_a_defense_acts_on_the_messages_that_it_is_for_and_on_no_other(
    defense: Any, at_active: set[str], at_passive: set[str]
) -> None:
    for party, places in ((active("telecom", "shop"), at_active), (passive_party("telecom"), at_passive)):
        assert attach_defense(party, defense, number=0, noise_seed=None) == bool(places)
        assert {where for where, chain in party.chains().items() if len(chain)} == places


def test_every_cut_has_a_copy_of_its_own_unless_there_is_one() -> None:
    defense = Isotropic(ratio=1.0)
    alone, two = active("telecom"), active("telecom", "shop")
    attach_defense(alone, defense, number=0, noise_seed=None)
    attach_defense(two, defense, number=0, noise_seed=None)
    assert [*alone.cuts["telecom"].gradient] == [defense]
    copies = [next(iter(cut.gradient)) for cut in two.cuts.values()]
    assert len({id(one) for one in (*copies, defense)}) == 3


def test_agreed_bounds_are_kept_by_a_defense_of_every_message() -> None:
    bounded, passive = active("telecom", "shop"), passive_party("telecom")
    attach_defense(bounded, ClipGradient(bound=0.1), number=0, noise_seed=None)
    attach_defense(passive, GaussianIR(clip=2.0, sigma=0.1), number=0, noise_seed=None)
    for party in (bounded, passive):
        check_clips(party, activation=2.0, gradient=0.1)
        check_clips(party, activation=None, gradient=None)
    with pytest.raises(PrivacyError, match=r"gradient that bank sends to telecom to 0\.2, got 0\.1"):
        check_clips(bounded, activation=None, gradient=0.2)
    with pytest.raises(PrivacyError, match=r"activation that telecom sends to 1, got 2"):
        check_clips(passive, activation=1.0, gradient=None)
    bounded.connect("late")
    with pytest.raises(PrivacyError, match=r"gradient that bank sends to late to 0\.1, got none"):
        check_clips(bounded, activation=None, gradient=0.1)

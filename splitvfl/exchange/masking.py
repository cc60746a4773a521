"""Masks of evaluations and scores: passive parties agree on some that cancel in the sum.

They talk through the active party, which passes on their public keys; :mod:`splitvfl.exchange.roll_call` says against
what that holds. Keys and masks are new at every meeting. What is sent again after a broken link then differs, and the
sum does not.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from splitvfl.crypto.key_agreement import KEY_BYTES
from splitvfl.crypto.sum_masks import SumMasks
from splitvfl.errors import ConfigError, CryptoError, ProtocolError
from splitvfl.exchange.roll_call import Vouching, active_roll_call, member_roll_call
from splitvfl.messaging.conversation import Half
from splitvfl.party.party import ActiveParty, PassiveParty

_SUBJECT = "masks of a prediction"


def check_adds_up(
    party: ActiveParty, *, what: str = "parts are masked for logistic regression only", remedy: str = ""
) -> None:
    """Check that parts of passive parties may be masked, or be added up elsewhere.

    Args:
        party: The active party.
        what: What is for models that add up, for the error.
        remedy: What to do, for its end.

    Raises:
        ConfigError: If the active party's top does anything with the passive parties' activations but add them up.
    """
    if not hasattr(party.top, "active_logits"):
        raise ConfigError(
            f"{what}: expected a top at {party.name} that adds up logits, got {type(party.top).__name__}{remedy}"
        )


def active_masking(party: ActiveParty, vouching: Vouching) -> Half:
    """Return the active party's half: it passes on keys, and from then on awaits masked parts.

    Raises:
        ConfigError: As :func:`check_adds_up`.
    """
    check_adds_up(party)
    yield from active_roll_call(party.name, dict.fromkeys(party.cuts, KEY_BYTES), vouching)
    party.sums_parts = True


def passive_masking(party: PassiveParty, active: str, vouching: Vouching) -> Half:
    """Return a passive party's half: from then on it masks what it sends for scores.

    Raises:
        DataError: If the active party names other parties than this one's file.
        ProtocolError: If what came are not other parties' keys.
    """
    masks = SumMasks()
    roll = yield from member_roll_call(
        party.name, active, masks.public, subject=_SUBJECT, length_of=lambda other: KEY_BYTES, vouching=vouching
    )
    mask_parts(party, active, masks, roll.keys, roll.session)


def mask_parts(party: PassiveParty, active: str, masks: SumMasks, keys: Mapping[str, Tensor], session: bytes) -> None:
    """Let a passive party mask what it sends for evaluations and scores, if there is another one.

    The masks are new; ``keys`` are the other passive parties', and ``session`` tells this meeting from all others.

    Raises:
        ProtocolError: If these are not other parties' keys.
    """
    others = torch.stack([*keys.values()]) if keys else torch.zeros(0, KEY_BYTES, dtype=torch.uint8)
    try:
        masks.meet(others, session=session)
    except CryptoError as error:
        raise ProtocolError(f"keys passed on by {active}: {error}") from error
    party.masks = masks

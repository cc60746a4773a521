"""Passive parties agree on masks that cancel in a sum, so that evaluations and scores tell only what they add up to.

They talk through the active party, which passes on their public keys. Against one that hands out keys of its own it
does not hold.
"""

from __future__ import annotations

import torch

from splitvfl.conversation import Expected, Half, Outbox
from splitvfl.crypto.sum_masks import KEY_BYTES, SumMasks
from splitvfl.errors import ConfigError, CryptoError, ProtocolError
from splitvfl.messages import Message
from splitvfl.party import ActiveParty, PassiveParty

KIND = "masking"
_MOST_PEERS = 1 << 10


def active_masking(party: ActiveParty) -> Half:
    """Return the active party's half: it passes on keys, and from then on awaits masked parts.

    Raises:
        ConfigError: If its top does anything with the passive parties' activations but add them up.
    """
    if not hasattr(party.top, "active_logits"):
        raise ConfigError(
            f"parts are masked for logistic regression only: expected a top at {party.name} that adds up logits, got "
            f"{type(party.top).__name__}"
        )
    awaited = tuple(Expected(name, KIND, 0, (torch.uint8,), (KEY_BYTES,)) for name in party.cuts)
    inbox = yield Outbox(wait=awaited)
    keys = {name: inbox[name].payload for name in party.cuts}
    sent = []
    for name in party.cuts:
        others = [key for other, key in keys.items() if other != name]
        sent.append(
            Message(party.name, name, KIND, 0, torch.stack(others) if others else torch.zeros(0, KEY_BYTES).byte())
        )
    yield Outbox(send=tuple(sent))
    party.sums_parts = True


def passive_masking(party: PassiveParty, active: str, masks: SumMasks, *, others: int | None = None) -> Half:
    """Return a passive party's half: from then on it masks what it sends for evaluations and scores.

    Args:
        party: The passive party.
        active: Name of the active party.
        masks: Its masks, new ones unless what it sends is to be the same to the bit as before.
        others: How many other passive parties there are. Default: as many as the active party has keys of; with none,
            nothing is masked.

    Raises:
        ProtocolError: If what came are not other parties' keys.
    """
    count = range(_MOST_PEERS) if others is None else others
    awaited = Expected(active, KIND, 0, (torch.uint8,), (count, KEY_BYTES))
    inbox = yield Outbox(send=(Message(party.name, active, KIND, 0, masks.public),), wait=(awaited,))
    try:
        masks.meet(inbox[active].payload)
    except CryptoError as error:
        raise ProtocolError(f"{KIND} from {active}: {error}") from error
    party.masks = masks

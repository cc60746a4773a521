"""What parties put into scores: a passive party's activation as it is sent, and the label party's own outputs."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from splitvfl.data.columns import Records
from splitvfl.errors import CryptoError, ProtocolError
from splitvfl.hooks import Phase, all_finite
from splitvfl.party.party import ActiveParty, Party, PassiveParty


def part_to_score(
    party: PassiveParty, batch: Records, number: int, phase: Phase, *, kind: str, piece: int = 0
) -> Tensor:
    """Return what a passive party sends of records that are not trained on, after the phase's defenses, and masked.

    ``kind``, the number of the conversation and that of the piece in it name the message: masks are for one use.

    Raises:
        PrivacyError: If records are to be scored that the party counts, and has not counted.
    """
    if phase == "prediction" and party.tally is not None:
        party.tally.leaving(batch.count)
    with torch.no_grad():
        activation = party.defend_activation(computed(party, party.activate, batch), batch, number, phase)
    party.batch_ids = batch.ids
    if party.masks is None:
        return activation
    try:
        return party.masks.masked(activation, kind=kind, number=number, piece=piece)
    except CryptoError:  # others see it, and it follows from the weights, and so from what others opened
        party.refusals.note(f"{kind} of step {number}, too large for masks")
        raise


def computed(party: Party, run: Callable[[Records], Tensor], batch: Records) -> Tensor:
    """Return what a model puts out of records; record by record where its party computes them so.

    In a batch of another size, or at another place in it, the last bits of a row may differ: memoised noise, which
    follows from all bits, would be drawn anew.
    """
    if not party.one_by_one:
        return run(batch)
    return torch.cat([run(batch.part(torch.tensor([row]))) for row in range(batch.count)])


def checked_outputs(party: ActiveParty, outputs: Tensor) -> Tensor:
    """Return a top's outputs, ``(n, k)``, as they are.

    Raises:
        ProtocolError: If they hold NaN or infinite values.
    """
    if not all_finite(outputs):
        received = f" on what {' and '.join(party.cuts)} sent" if party.cuts else ""
        raise ProtocolError(
            f"the outputs of {party.name}{received} hold NaN or infinite values: "
            "a party sent too large values, or a model's weights are spoiled"
        )
    return outputs

"""Which trained halves parties have, where these are to predict together: halves of one run, of the same step."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from splitvfl.errors import DataError
from splitvfl.exchange.handshake import TaskSpec
from splitvfl.party.party import Party


@dataclass(frozen=True, kw_only=True)
class TrainedHalves:
    """What the parties' halves have in common.

    Attributes:
        learned: What was learned.
        run: Number of the run that the halves are of.
        step: Training steps that were done with them.
        epoch: Epoch whose weights they are.
    """

    learned: TaskSpec
    run: str
    step: int
    epoch: int

    def check_learned(self, learned: TaskSpec, active: str, own: str) -> None:
        """Raise :class:`DataError` unless the active party predicts what this one, ``own``, has learned."""
        if learned != self.learned:
            raise DataError(f"{active} predicts {learned}, and {own} learned {self.learned}")


def halves_terms(party: Party, halves: TrainedHalves) -> dict[str, object]:
    """Return what of halves must be equal at every party, by the names under which it is compared."""
    return {
        "run of the trained half": halves.run,
        "steps of the trained half": halves.step,
        "epoch of the trained half": halves.epoch,
        "autocast": _name(party.autocast),
        "wire": _name(party.wire),
    }


def _name(dtype: torch.dtype | None) -> str:
    return "none" if dtype is None else str(dtype).removeprefix("torch.")

"""Which records a model was trained on, by its loss beside the loss that their activation lets one expect."""

from __future__ import annotations

from typing import ClassVar, Final

import torch
from torch import Tensor

from splitvfl.attacks.known_share import KnownShare, checked_share
from splitvfl.hooks import Seat, Target, View
from splitvfl.leakage.ridge import fit_ridge

# Losses are told apart by their logarithms, and none below this share of the mean.
_LEAST: Final = 1e-4


class CalibratedLossAttack:
    """Score each record by how much smaller its loss is than that of records like it which were not trained on.

    ``E(log loss | activation) − log loss``: some records are hard, and fitted badly though they were trained on, others
    easy. What is expected is ridge regression on the activation, fitted to known records that were *not* trained on, so
    that nothing but their activations and losses enters.

    It promises no more than ``loss-threshold``: where activations say little of how hard a record is it adds noise, and
    a linear map may be the wrong one. On breast cancer, digits and credit default it read neither more nor less
    (docs/what-activations-tell.md). Calibration by models that were
    trained without the record, as in the source, is stronger and costs trainings of all parties.

    Takes about 1 ms for a thousand records at 8 activations.

    In a file: ``attacks: [{name: calibrated-loss, known_share: 0.2}]``

    Also called: membership inference.

    Source: Watson, Guo, Cormode and Sablayrolles, *On the Importance of Difficulty Calibration in Membership Inference
    Attacks*, ICLR 2022 (arXiv:2111.08440), for the calibration; regression in the place of reference models is ours.

    Args:
        known_share: Share of the records, of those trained on and of the others, of which the attacker is assumed to
            know what they are, above 0 and below 1. It is not judged by them.

    Raises:
        ArgumentError: If the share is out of range.
    """

    name: ClassVar[str] = "calibrated-loss"
    seat: ClassVar[Seat] = "active"
    target: ClassVar[Target] = "members"
    needs: ClassVar[frozenset[str]] = frozenset({"losses", "received_activation", "known_others"})

    def __init__(self, *, known_share: KnownShare = 0.2) -> None:
        self.known_share = checked_share(known_share)

    def __call__(self, view: View, /) -> Tensor:
        """Return the scores.

        Args:
            view: Its ``losses``, ``received_activation`` and ``known_others`` are read.

        Returns:
            ``(n,)``, float64, higher for "more likely trained on".

        Raises:
            ArgumentError: If fewer than two others are known.
        """
        losses, seen = view.losses.double(), view.received_activation.double()
        known = torch.isin(view.ids, view.known_others)
        logarithms = losses.clamp_min(_LEAST * float(losses.mean()) + torch.finfo(torch.float64).tiny).log()
        return (fit_ridge(seen[known], logarithms[known, None]).estimate(seen) - logarithms[:, None]).squeeze(1)

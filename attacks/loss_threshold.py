"""Which records a model was trained on, by its loss alone."""

from __future__ import annotations

from typing import ClassVar

from torch import Tensor

from splitvfl.hooks import Seat, Target, View


class LossThresholdAttack:
    """Score each record by how small the finished model's loss of it is: who was trained on is fitted better.

    ``−loss``. It needs neither a known member nor any other model, and is the baseline that stronger attacks are held
    against. It says nothing where a model fits records that it has never seen as well as its own. Attacks that train
    shadow models (LiRA) may read far more at few false alarms; they cost hundreds of trainings of all parties, and are
    not here.

    Takes no time worth counting: the losses are there.

    In a file: ``attacks: [loss-threshold]``

    Also called: membership inference.

    Source: Yeom, Giacomelli, Fredrikson and Jha, *Privacy Risk in Machine Learning*, CSF 2018 (arXiv:1709.01604),
    adversary 2.
    """

    name: ClassVar[str] = "loss-threshold"
    seat: ClassVar[Seat] = "active"
    target: ClassVar[Target] = "members"
    needs: ClassVar[frozenset[str]] = frozenset({"losses"})

    def __call__(self, view: View, /) -> Tensor:
        """Return the scores.

        Args:
            view: Its ``losses`` are read.

        Returns:
            ``(n,)``, float64, higher for "more likely trained on".
        """
        return -view.losses.double()

"""Label attack by the sign of a gradient of width one, which is the residue."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import Tensor

from splitvfl.attacks.direction import DirectionAttack
from splitvfl.hooks import View


class SignAttack:
    """Decide every record's label by a sign: +1 positive, −1 negative, 0 undecided.

    At width 1 the cut gradient is ``(prediction − label) / n``, negative for positives and positive for negatives, so
    the score is ``−sign(g_i)`` and needs no side knowledge. This holds where the top model adds the activation to the
    logit with a positive weight, as in vertical logistic regression.

    At larger widths the score is the sign of :class:`DirectionAttack`'s cosine to known positives, NaN where that is.

    Exact on undefended gradients with exact or piecewise residues. It promises nothing once noise is added.

    Source: Li et al., ICLR 2022, arXiv:2102.08504; *Is Vertical Logistic Regression Privacy-Preserving?*, section 5.
    """

    name: ClassVar[str] = "sign"
    place: ClassVar[int] = 4
    explanation: ClassVar[str] = (
        "Decides by a sign: of the gradient itself where it has width one, of the comparison with known positives "
        "elsewhere."
    )
    needs: ClassVar[frozenset[str]] = frozenset({"gradient", "known_positives"})

    def __init__(self) -> None:
        self._direction = DirectionAttack()

    def __call__(self, view: View, /) -> Tensor:
        """Return the signs.

        Args:
            view: Its ``gradient`` ``(n, width)`` is read; beyond width 1 also ``ids`` and ``known_positives``.

        Returns:
            ``(n,)`` in {−1, 0, 1}, NaN where a record has no reference.
        """
        if view.gradient.shape[1] == 1:
            return -torch.sign(view.gradient[:, 0])
        cosines = self._direction(view)
        return torch.where(cosines.isnan(), cosines, torch.sign(cosines))  # the sign of NaN would be 0

    def state_dict(self) -> dict[str, Any]:
        """Return the references of the direction attack."""
        return self._direction.state_dict()

    def load_state_dict(self, state: dict[str, Any], /) -> None:
        """Take back what :meth:`state_dict` returned."""
        self._direction.load_state_dict(state)

"""Label attack by the sign of a gradient of width one, which is the residue."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.nn import functional

from splitvfl.attacks.direction import DirectionAttack
from splitvfl.hooks import View, classes_of


class SignAttack:
    """Decide every record's label by a sign: +1 positive, −1 negative, 0 undecided.

    At width 1 the cut gradient is ``(prediction − label) / n``, negative for positives and positive for negatives, so
    the score is ``−sign(g_i)`` and needs no side knowledge. This holds where the top model adds the activation to the
    logit with a positive weight, as in vertical logistic regression.

    At larger widths the score is the sign of :class:`DirectionAttack`'s cosine to known positives, NaN where that is.

    Of k classes, at width k, the gradient is ``(p − e_y) / n``: the one negative entry is the label's, so the score of
    a class is ``−sign`` of its entry. At other widths it is +1 for the class that the direction attack scores highest,
    and 0 for the others.

    Exact on undefended gradients with exact or piecewise residues. It promises nothing once noise is added.

    Works with: exchanges that send the gradient of each record. Under encryption a party gets sums over a batch alone:
    take ``residue-solving`` there, which recovers labels from these.

    Also called: direct label inference.

    Source: Li et al., ICLR 2022, arXiv:2102.08504; *Is Vertical Logistic Regression Privacy-Preserving?*, section 5.
    """

    name: ClassVar[str] = "sign"
    place: ClassVar[int] = 4
    explanation: ClassVar[str] = (
        "Decides by a sign: of the gradient itself where it has width one, of the comparison with known positives "
        "elsewhere."
    )
    needs: ClassVar[frozenset[str]] = frozenset({"gradient", "known_positives"})
    tasks: ClassVar[frozenset[str]] = frozenset({"binary", "multiclass"})
    not_for: ClassVar[Mapping[str, str]] = {
        "regression": "a sign tells two classes apart; of numbers take direction or readout"
    }

    def __init__(self) -> None:
        self._direction = DirectionAttack()

    def __call__(self, view: View, /) -> Tensor:
        """Return the signs.

        Args:
            view: Its ``gradient`` ``(n, width)`` is read; beyond width 1 also ``ids`` and ``known_positives``.

        Returns:
            ``(n,)``, or ``(n, k)`` of k classes, in {−1, 0, 1}; NaN where a record has no reference.
        """
        classes = classes_of(view)
        if classes != 2:
            return self._of_classes(view, classes)
        if view.gradient.shape[1] == 1:
            return -torch.sign(view.gradient[:, 0])
        cosines = self._direction(view)
        return torch.where(cosines.isnan(), cosines, torch.sign(cosines))  # the sign of NaN would be 0

    def _of_classes(self, view: View, classes: int | None) -> Tensor:
        gradient = view.gradient
        if gradient.shape[1] == classes:
            return -torch.sign(gradient)
        scores = self._direction(view)
        highest = functional.one_hot(scores.argmax(dim=1), scores.shape[1]).to(scores)
        return torch.where(scores.isnan(), scores, highest)

    def state_dict(self) -> dict[str, Any]:
        """Return the references of the direction attack."""
        return self._direction.state_dict()

    def load_state_dict(self, state: dict[str, Any], /) -> None:
        """Take back what :meth:`state_dict` returned."""
        self._direction.load_state_dict(state)

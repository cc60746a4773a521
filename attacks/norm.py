"""Label attack by the norm of a record's gradient: that of the rarer class is larger."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor

from splitvfl.hooks import View


class NormAttack:
    """Score every record by the norm of its cut gradient, ``‖g_i‖₂``.

    Orientation: the rarer class, assumed to be the positive one, has the larger gradients, because a model that
    expects negatives is surprised by positives. With rare negatives the AUC lies below one half instead.

    Of k classes, below a linear top W, a row is ``Wᵀ(p − e_y) / n``: its length tells how surprised the model was, and
    names no class. It is turned round for each class on its own. Of numbers the row is ``(ŷ − y) w`` in some unit,
    and its length the size of the error: it tells the label itself as long as predictions lie below (or above) nearly
    all labels, as they do at the start where labels are not centred, and far from near later.

    Promises nothing about defended gradients; it is the attack that ``Isotropic`` and ``MaxNorm`` were made against.

    Also called: norm leak.

    Source: Li et al., ICLR 2022, arXiv:2102.08504, section 3.1.
    """

    name: ClassVar[str] = "norm"
    place: ClassVar[int] = 1
    tasks: ClassVar[frozenset[str]] = frozenset({"binary", "multiclass", "regression"})
    explanation: ClassVar[str] = (
        "Scores a record by the length of its gradient: a model is less sure of the rarer class, whose gradients are "
        "longer. It needs no knowledge at all."
    )

    def __call__(self, view: View, /) -> Tensor:
        """Return the row norms.

        Args:
            view: Its ``gradient``, ``(n, width)``, is read.

        Returns:
            ``(n,)``, at least 0, in the gradient's dtype.
        """
        norms: Tensor = torch.linalg.vector_norm(view.gradient, dim=1)
        return norms

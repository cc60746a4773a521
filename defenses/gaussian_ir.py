"""Gaussian noise on the intermediate result that the passive party sends."""

from __future__ import annotations

from typing import ClassVar

from torch import Tensor

from splitvfl.claims import Gaussian, NoPromise
from splitvfl.defenses.row_norms import row_norms, rows_within
from splitvfl.defenses.setting_checks import check_positive
from splitvfl.hooks import Crossing, Scope, Secrets


class GaussianIR:
    """Scale every row of the activation to norm at most ``clip``, then add ``N(0, sigma²)`` to every coordinate.

    Row ``h`` becomes ``h · min(1, clip / ‖h‖) + N(0, sigma² I)``. The L2 sensitivity of one release is ``2 · clip``
    when a record is replaced, and ``clip`` when its row is replaced by zeros (up to a few roundings). Which
    ε and δ a sigma buys is answered elsewhere, for that sensitivity; composition over steps is the caller's job. The
    guarantee is about the passive party's record towards whoever receives the activation. Its noise is exact, from a
    keystream (:mod:`splitvfl.learning.discrete_noise`), unless an experiment fixed a seed: then it is neither.

    The gradient passes straight through: the bottom model is trained as if its activation had been sent unchanged, and
    clipping is not differentiated. A layer that mixes the records of a batch voids the guarantee.

    Logs ``power``, the expected squared norm ``width · sigma²`` of a row's noise, and ``clipped_share``, the share of
    rows that were longer than ``clip``. The latter depends on the records: keep it with their owner.

    Cost: not measured here: it depends on clip and sigma. Time: a norm for each record, and noise for every entry.

    In a file: ``defenses: [{name: gaussian-ir, clip: 4.0, sigma: 0.1}]``

    Also called: DP-IR.

    Source: *Hybrid Differentially Private Federated Learning on Vertically Partitioned Data*, the noise on
    intermediate results.

    Args:
        clip: Largest L2 norm of a row, > 0, in the unit of the activation.
        sigma: Standard deviation of the noise per coordinate, > 0, in the unit of the activation.

    Raises:
        ArgumentError: If one of them is not positive and finite.
    """

    name: ClassVar[str] = "gaussian-ir"
    shifts_scores: ClassVar[str] = ""
    crossing: ClassVar[Crossing] = "activation"
    scope: ClassVar[Scope] = "row"

    def __init__(self, *, clip: float, sigma: float) -> None:
        check_positive(clip=clip, sigma=sigma)
        self.clip = clip
        self.sigma = sigma

    def claims(self) -> tuple[Gaussian, NoPromise]:
        """Return what is claimed: the noise, and the norm of the rows that it is added to."""
        nothing = NoPromise(
            "Sensitivity and noise are stated, and the accounting over messages is the caller's: a record is sent once "
            "for every epoch, evaluation and prediction, and rows of a bottom model follow from all records that "
            "trained it. Of labels nothing is hidden."
        )
        return (Gaussian(self.sigma, bound=self.clip), nothing)

    def __call__(self, activation: Tensor, secrets: Secrets, /) -> Tensor:
        """Return the activation to send.

        Args:
            activation: ``(n, width)``, float32 or wider.
            secrets: The sender's; its generator and log are used.

        Returns:
            A new tensor like ``activation``.
        """
        norms = row_norms(activation)
        secrets.log("power", activation.shape[1] * self.sigma**2)
        secrets.log("clipped_share", int((norms > self.clip).sum()) / max(1, len(norms)))
        return secrets.add_normal(secrets.before_noise(rows_within(activation, norms, self.clip)), self.sigma)

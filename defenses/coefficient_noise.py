"""Gaussian noise on the coefficients of a linear model's gradient, with which records' rows are multiplied."""

from __future__ import annotations

from typing import ClassVar

from torch import Tensor

from splitvfl.claims import NoPromise, PerRecord
from splitvfl.defenses.row_norms import log_noise, row_norms, rows_within
from splitvfl.defenses.setting_checks import check_positive
from splitvfl.hooks import Secrets


class CoefficientNoise:
    """Scale every record's coefficients to norm at most ``clip``, then add ``N(0, sigma²)`` to each.

    The gradient of a linear model's weights is ``Σ x_i f_iᵀ / (scale · n)`` over the n records of a batch, and row i of
    the cut gradient is ``f_i / (scale · n)``. Here ``f`` becomes ``f · min(1, clip / ‖f‖) + N(0, sigma² I)``, whatever
    the size of the batch. With Taylor's sigmoid, scale 4, and ``f = z − 2y`` it is the label party's noise in
    DP-Paillier-MGD.

    It guarantees nothing by itself: which ε and δ a sigma buys is answered by :mod:`splitvfl.privacy`. By averaging E
    epochs, labels of a logistic loss are still read right with probability ``Φ(scale · sqrt(E) / (2 sigma))``, as long
    as logits are small: ``Φ(2 sqrt(E) / sigma)`` at scale 4 (:func:`~splitvfl.privacy.label_attack_success`), and
    ``Φ(sqrt(E) / (2 sigma))`` at scale 1. Under a fixed seed its noise is that of torch's generators, which are not
    cryptographic.

    Logs ``power``, the expected squared noise of a cut gradient's row, ``noise_to_signal``, power over the mean square
    of a clean row, and ``clipped_share``.

    Cost: not measured here: it depends on sigma. Time: one number for each coefficient.

    In a file: ``defenses: [{name: coefficient-noise, sigma: 0.5, clip: 2.0}]``

    Source: *Is Vertical Logistic Regression Privacy-Preserving?*, algorithm 3.

    Args:
        sigma: Standard deviation of the noise on a coefficient, > 0.
        clip: Largest norm of a record's coefficients before noise, > 0.
        scale: The gradient's divisor besides the size of the batch: 4 for Taylor's sigmoid, else 1.
        one_draw: Whether all passive parties get one draw, where they are due the same rows, as those of a linear model
            are. With draws of their own, p of them that put theirs together have p releases.

    Raises:
        ArgumentError: If one of them is not positive and finite.
    """

    name: ClassVar[str] = "coefficient-noise"
    shifts_scores: ClassVar[str] = ""

    def __init__(self, *, sigma: float, clip: float, scale: float = 4.0, one_draw: bool = False) -> None:
        check_positive(sigma=sigma, clip=clip, scale=scale)
        self.sigma, self.largest, self.scale, self.one_draw = sigma, clip, scale, one_draw

    def claims(self) -> tuple[PerRecord, NoPromise]:
        """Return what is claimed; no norm of a row, whose unit here depends on the size of the batch."""
        nothing = NoPromise(
            "Which ε and δ a sigma buys is the caller's accounting (splitvfl.privacy), and an average over E epochs "
            # Two labels are as far apart as the scale, and nobody is nearer than half of it.
            f"reads labels with probability Φ({self.scale / 2:g}√E/σ)."
        )
        return (PerRecord(), nothing)

    def __call__(self, gradient: Tensor, secrets: Secrets, /) -> Tensor:
        """Return the noisy gradient.

        Args:
            gradient: ``(n, width)``, float32 or wider.
            secrets: The sender's; its generator and log are used.

        Returns:
            A new tensor like ``gradient``.
        """
        n, width = gradient.shape
        limit, sigma = self.largest / (self.scale * n), self.sigma / (self.scale * n)
        norms = row_norms(gradient)
        log_noise(secrets, width * sigma**2, norms)
        secrets.log("clipped_share", int((norms > limit).sum()) / max(1, n))
        return secrets.add_normal(rows_within(gradient, norms, limit), sigma)

"""Gaussian noise on the coefficients of a linear model's gradient, with which records' rows are multiplied."""

from __future__ import annotations

from typing import ClassVar

from torch import Tensor

from splitvfl.claims import PerRecord
from splitvfl.defenses.row_norms import log_noise, row_norms
from splitvfl.defenses.setting_checks import check_positive
from splitvfl.hooks import Secrets


class CoefficientNoise:
    """Scale every record's coefficients to norm at most ``clip``, then add ``N(0, sigma²)`` to each.

    The gradient of a linear model's weights is ``Σ x_i f_iᵀ / (scale · n)`` over the n records of a batch, and row i of
    the cut gradient is ``f_i / (scale · n)``. Here ``f`` becomes ``f · min(1, clip / ‖f‖) + N(0, sigma² I)``, whatever
    the size of the batch. With Taylor's sigmoid, scale 4, and ``f = z − 2y`` it is the label party's noise in
    DP-Paillier-MGD.

    It guarantees nothing by itself: which ε and δ a sigma buys is answered by :mod:`splitvfl.privacy`, and labels are
    still read right with probability ``Φ(2 sqrt(E) / sigma)`` by averaging E epochs
    (:func:`~splitvfl.privacy.label_attack_success`). Torch's generators are not cryptographic.

    Logs ``power``, the expected squared noise of a cut gradient's row, ``noise_to_signal``, power over the mean square
    of a clean row, and ``clipped_share``.

    Claim: none by itself; :mod:`splitvfl.privacy` says which ε and δ a sigma buys.

    Cost: not measured here: it depends on sigma. Time: one number for each coefficient.

    In a file: ``defenses: [{name: coefficient-noise, sigma: 0.5, clip: 2.0}]``

    Source: *Is Vertical Logistic Regression Privacy-Preserving?*, algorithm 3.

    Args:
        sigma: Standard deviation of the noise on a coefficient, > 0.
        clip: Largest norm of a record's coefficients before noise, > 0.
        scale: The gradient's divisor besides the size of the batch: 4 for Taylor's sigmoid, else 1.

    Raises:
        ArgumentError: If one of them is not positive and finite.
    """

    name: ClassVar[str] = "coefficient-noise"

    def __init__(self, *, sigma: float, clip: float, scale: float = 4.0) -> None:
        check_positive(sigma=sigma, clip=clip, scale=scale)
        self.sigma, self.largest, self.scale = sigma, clip, scale

    def claims(self) -> tuple[PerRecord]:
        """Return what is claimed; no norm of a row, whose unit here depends on the size of the batch."""
        return (PerRecord(),)

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
        secrets.log("clipped_share", (norms > limit).double().mean().item())
        return secrets.add_normal(gradient * (limit / norms.clamp(min=limit)).unsqueeze(1), sigma)

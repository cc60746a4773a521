"""Gaussian noise of one scale in every direction: the baseline."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import ClassVar

from torch import Tensor

from splitvfl.claims import Gaussian, NoPromise
from splitvfl.defenses.row_norms import log_noise, row_norms
from splitvfl.defenses.setting_checks import check_positive
from splitvfl.errors import ArgumentError
from splitvfl.hooks import Scope, Secrets

_DEFAULT_RATIO = 5.0


class Isotropic:
    """Add one Gaussian to every coordinate of every row of the cut gradient; it averages out over epochs.

    Its standard deviation σ is, with ``ratio``, ``ratio · max_i ‖g_i‖ / √width`` in every batch anew, so that a row's
    noise has about ``ratio`` times the largest row norm. With ``sigma`` it is fixed, in the unit of the message: the
    gradient of the batch's *mean* loss.

    A heuristic with no formal guarantee: with ``ratio`` the noise scale itself depends on the batch, and noise averages
    out over epochs. Where batches are small and a class is rare, the scale tells that a batch holds a record of it,
    however large the ratio: in batches of 8 with one positive in ten, the noise alone gives an AUC of 0.99. A batch of
    zeros stays zero under ``ratio``. The mean of the gradient is unchanged.

    Logs ``power``, the expected squared norm ``width · σ²`` of a row's noise, and ``noise_to_signal``, power over the
    mean squared norm of a clean row.

    Cost: on digits a test AUC of .987 for .997 undefended (private top: .986). Time: noise for every entry.

    In a file: ``defenses: [{name: isotropic, ratio: 5}]``

    Also called: iso.

    Source: Li et al., ICLR 2022, arXiv:2102.08504, section 4 (``iso``).

    Args:
        ratio: Root mean square noise norm over the largest row norm, > 0. Default: 5, unless ``sigma`` is given.
        sigma: Standard deviation per coordinate, > 0.

    Raises:
        ArgumentError: If both are given, or the given one is not positive and finite.
    """

    name: ClassVar[str] = "isotropic"
    shifts_scores: ClassVar[str] = ""
    weaknesses: ClassVar[Mapping[str, str]] = {
        "direction": "isotropic noise averages out over epochs, and direction recovers labels."
    }

    def __init__(self, *, ratio: float | None = None, sigma: float | None = None) -> None:
        if ratio is not None and sigma is not None:
            raise ArgumentError(f"expected ratio or sigma, got both: ratio {ratio} and sigma {sigma}")
        given = {"ratio": ratio, "sigma": sigma}
        check_positive(**{name: value for name, value in given.items() if value is not None})
        self.ratio = _DEFAULT_RATIO if ratio is None and sigma is None else ratio
        self.sigma = sigma

    @property
    def scope(self) -> Scope:
        """Rows where sigma is fixed; with ``ratio`` the largest row of a batch decides."""
        return "batch" if self.sigma is None else "row"

    def claims(self) -> tuple[Gaussian | NoPromise, ...]:
        """Return what is claimed: with ``sigma`` the noise, so that a bound on the rows before it stays known."""
        nothing = NoPromise(
            "It is a heuristic: its noise covers no difference of known size, and averages out over epochs."
        )
        return (nothing,) if self.sigma is None else (Gaussian(self.sigma), nothing)

    def __call__(self, gradient: Tensor, secrets: Secrets, /) -> Tensor:
        """Return the noisy gradient.

        Args:
            gradient: ``(n, width)``, float32 or wider.
            secrets: The sender's; its generator and log are used.

        Returns:
            A new tensor like ``gradient``.
        """
        width = gradient.shape[1]
        norms = row_norms(gradient)
        peak = norms.max().item()
        sigma = self.sigma if self.ratio is None else self.ratio * peak / math.sqrt(width)
        assert sigma is not None
        log_noise(secrets, width * sigma**2, norms)
        return secrets.add_normal(gradient, sigma)

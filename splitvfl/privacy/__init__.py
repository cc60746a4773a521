"""Differential privacy: how much noise buys how much, and what it leaves to an attacker."""

from splitvfl.privacy.dp_paillier import (
    corrected_dp_paillier_sigma,
    dp_paillier_sensitivity,
    dp_paillier_sigma,
    label_attack_success,
)
from splitvfl.privacy.gaussian import classic_gaussian_sigma, gaussian_delta, gaussian_sigma
from splitvfl.privacy.gaussian_dp import gaussian_mu, least_detection_error
from splitvfl.privacy.laplace import (
    MultiplicativeBounds,
    MultiplicativeMode,
    checked_bounds,
    checked_mode,
    choose_multiplicative_bounds,
    label_success_ceiling,
    laplace_label_success,
    laplace_scale,
    multiplicative_laplace_epsilon,
)

__all__ = [
    "MultiplicativeBounds",
    "MultiplicativeMode",
    "checked_bounds",
    "checked_mode",
    "choose_multiplicative_bounds",
    "classic_gaussian_sigma",
    "corrected_dp_paillier_sigma",
    "dp_paillier_sensitivity",
    "dp_paillier_sigma",
    "gaussian_delta",
    "gaussian_mu",
    "gaussian_sigma",
    "label_attack_success",
    "label_success_ceiling",
    "laplace_label_success",
    "laplace_scale",
    "least_detection_error",
    "multiplicative_laplace_epsilon",
]

"""Differential privacy: how much noise buys how much, and what it leaves to an attacker."""

from __future__ import annotations

from typing import TYPE_CHECKING

from splitvfl.lazy_names import lazy_names

if TYPE_CHECKING:
    from splitvfl.learning.discrete_noise import DiscreteNoise, Keystream, discrete_gaussian, discrete_laplace
    from splitvfl.learning.gaussian_noise import classic_gaussian_sigma, gaussian_delta, gaussian_sigma
    from splitvfl.learning.odds import sign_success, unknowns_for_success
    from splitvfl.privacy.accounting import (
        GaussianEvaluations,
        GaussianMessages,
        MessagesPerUse,
        PrivacyBudget,
        Spent,
        hdp_sigma,
    )
    from splitvfl.privacy.composition import Guarantee, PrivacyLoss, k_fold_delta, k_fold_epsilon
    from splitvfl.privacy.dp_paillier import (
        corrected_dp_paillier_sigma,
        dp_paillier_sensitivity,
        dp_paillier_sigma,
        label_attack_success,
    )
    from splitvfl.privacy.gaussian_dp import gaussian_mu, gaussian_mu_delta, gaussian_mu_epsilon, least_detection_error
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
    from splitvfl.privacy.published_bounds import hdp_excess_loss, noise_norm_bound, noisy_label_horizon
    from splitvfl.privacy.sensitivity import HdpTraining, hdp_sensitivity, tight_hdp_sensitivity
    from splitvfl.privacy.sign_horizon import initial_margin, sign_attack_horizon
    from splitvfl.privacy.single_column import (
        SolvableColumn,
        linking_epochs,
        linking_probability,
        solvable_column,
    )
    from splitvfl.privacy.solvable import (
        Prevention,
        Solvable,
        SummedTraining,
        epochs_to_stack,
        largest_first_batch,
        packed_labels,
        prevention,
        records_met,
        solvable_labels,
        sparse_labels,
        stacked_equations,
    )
    from splitvfl.privacy.statement import NotCovered, Statement, claim_warnings, not_covered

__all__ = [
    "DiscreteNoise",
    "GaussianEvaluations",
    "GaussianMessages",
    "Guarantee",
    "HdpTraining",
    "Keystream",
    "MessagesPerUse",
    "MultiplicativeBounds",
    "MultiplicativeMode",
    "NotCovered",
    "Prevention",
    "PrivacyBudget",
    "PrivacyLoss",
    "Solvable",
    "SolvableColumn",
    "Spent",
    "Statement",
    "SummedTraining",
    "checked_bounds",
    "checked_mode",
    "choose_multiplicative_bounds",
    "claim_warnings",
    "classic_gaussian_sigma",
    "corrected_dp_paillier_sigma",
    "discrete_gaussian",
    "discrete_laplace",
    "dp_paillier_sensitivity",
    "dp_paillier_sigma",
    "epochs_to_stack",
    "gaussian_delta",
    "gaussian_mu",
    "gaussian_mu_delta",
    "gaussian_mu_epsilon",
    "gaussian_sigma",
    "hdp_excess_loss",
    "hdp_sensitivity",
    "hdp_sigma",
    "initial_margin",
    "k_fold_delta",
    "k_fold_epsilon",
    "label_attack_success",
    "label_success_ceiling",
    "laplace_label_success",
    "laplace_scale",
    "largest_first_batch",
    "least_detection_error",
    "linking_epochs",
    "linking_probability",
    "multiplicative_laplace_epsilon",
    "noise_norm_bound",
    "noisy_label_horizon",
    "not_covered",
    "packed_labels",
    "prevention",
    "records_met",
    "sign_attack_horizon",
    "sign_success",
    "solvable_column",
    "solvable_labels",
    "sparse_labels",
    "stacked_equations",
    "tight_hdp_sensitivity",
    "unknowns_for_success",
]

if not TYPE_CHECKING:
    __getattr__, __dir__ = lazy_names(
        __name__,
        {
            "splitvfl.learning.discrete_noise": ("DiscreteNoise", "Keystream", "discrete_gaussian", "discrete_laplace"),
            "splitvfl.learning.gaussian_noise": ("classic_gaussian_sigma", "gaussian_delta", "gaussian_sigma"),
            "splitvfl.learning.odds": ("sign_success", "unknowns_for_success"),
            "splitvfl.privacy.accounting": (
                "GaussianEvaluations",
                "GaussianMessages",
                "MessagesPerUse",
                "PrivacyBudget",
                "Spent",
                "hdp_sigma",
            ),
            "splitvfl.privacy.composition": ("Guarantee", "PrivacyLoss", "k_fold_delta", "k_fold_epsilon"),
            "splitvfl.privacy.dp_paillier": (
                "corrected_dp_paillier_sigma",
                "dp_paillier_sensitivity",
                "dp_paillier_sigma",
                "label_attack_success",
            ),
            "splitvfl.privacy.gaussian_dp": (
                "gaussian_mu",
                "gaussian_mu_delta",
                "gaussian_mu_epsilon",
                "least_detection_error",
            ),
            "splitvfl.privacy.laplace": (
                "MultiplicativeBounds",
                "MultiplicativeMode",
                "checked_bounds",
                "checked_mode",
                "choose_multiplicative_bounds",
                "label_success_ceiling",
                "laplace_label_success",
                "laplace_scale",
                "multiplicative_laplace_epsilon",
            ),
            "splitvfl.privacy.published_bounds": ("hdp_excess_loss", "noise_norm_bound", "noisy_label_horizon"),
            "splitvfl.privacy.sensitivity": ("HdpTraining", "hdp_sensitivity", "tight_hdp_sensitivity"),
            "splitvfl.privacy.sign_horizon": ("initial_margin", "sign_attack_horizon"),
            "splitvfl.privacy.single_column": (
                "SolvableColumn",
                "linking_epochs",
                "linking_probability",
                "solvable_column",
            ),
            "splitvfl.privacy.solvable": (
                "Prevention",
                "Solvable",
                "SummedTraining",
                "epochs_to_stack",
                "largest_first_batch",
                "packed_labels",
                "prevention",
                "records_met",
                "solvable_labels",
                "sparse_labels",
                "stacked_equations",
            ),
            "splitvfl.privacy.statement": ("NotCovered", "Statement", "claim_warnings", "not_covered"),
        },
    )

"""Attacks: what a party can infer from what it holds and received. One idea per file."""

from splitvfl.attacks.active_packing import PackingEngine
from splitvfl.attacks.additive_llr import AdditiveLLRAttack, additive_noise_llr
from splitvfl.attacks.binary_residues import BinaryResidues, binary_residues
from splitvfl.attacks.black_box_feature import BlackBoxFeatureAttack, black_box_feature
from splitvfl.attacks.calibrated_loss import CalibratedLossAttack
from splitvfl.attacks.centre_program import BoundedCentre
from splitvfl.attacks.chebyshev_centre import Ball, ChebyshevCentreAttack, chebyshev_centre, chebyshev_within
from splitvfl.attacks.combined import CombinedAttack
from splitvfl.attacks.component import ComponentAttack
from splitvfl.attacks.constrained_least_squares import ConstrainedLeastSquaresAttack, constrained_least_squares
from splitvfl.attacks.direction import DirectionAttack
from splitvfl.attacks.discrete_search import DiscreteFit, DiscreteSearchAttack, discrete_search
from splitvfl.attacks.generative_regression import GenerativeRegressionAttack
from splitvfl.attacks.gradient_classifier import GradientClassifierAttack
from splitvfl.attacks.gradient_inversion import GradientInversionAttack, gradient_inversion, projected_gradient
from splitvfl.attacks.guesses import RandomGuessAttack, ZeroAttack
from splitvfl.attacks.half import HalfAttack, HalfStarAttack, half, half_star
from splitvfl.attacks.inverse_network import InverseNetworkAttack
from splitvfl.attacks.known_defense import estimate_behind
from splitvfl.attacks.labels_and_features import LabelsAndFeaturesAttack
from splitvfl.attacks.least_squares import (
    ClampedLeastSquaresAttack,
    LeastSquaresAttack,
    clamped_least_squares,
    least_squares,
)
from splitvfl.attacks.loss_threshold import LossThresholdAttack
from splitvfl.attacks.mixture import MixtureAttack
from splitvfl.attacks.model_completion import ModelCompletionAttack
from splitvfl.attacks.multiplicative_llr import MultiplicativeLLRAttack, multiplicative_noise_llr
from splitvfl.attacks.noise_subtraction import NoiseSubtractionAttack, feasible_powers, subtract_noise
from splitvfl.attacks.norm import NormAttack
from splitvfl.attacks.orthogonal_twin import orthogonal_twin
from splitvfl.attacks.own_prediction import OwnPredictionAttack
from splitvfl.attacks.packed_equations import (
    packed_selections,
    packed_weights,
    slot_bits_needed,
    slots_available,
    solve_equations,
    unpack_equations,
)
from splitvfl.attacks.packing import PackingAttack
from splitvfl.attacks.procrustes import ProcrustesAttack, recover_transform, undo_transform
from splitvfl.attacks.pseudo_client import PseudoClientAttack
from splitvfl.attacks.rcc1 import RCC1Attack, rcc1, rcc1_with_value, rcc1_within
from splitvfl.attacks.rcc2 import RCC2Attack, rcc2, rcc2_within
from splitvfl.attacks.readout import ReadoutAttack
from splitvfl.attacks.recover_labels import LabelSumAttack, label_sum, recover_labels
from splitvfl.attacks.residual import ResidualAttack
from splitvfl.attacks.residue_solving import ResidueSolvingAttack, solve_residues
from splitvfl.attacks.ridge import RidgeAttack
from splitvfl.attacks.score_inversion import ScoreInversionAttack
from splitvfl.attacks.secret_batch_likelihood import SecretBatchLikelihoodAttack, secret_batch_llr
from splitvfl.attacks.sign import SignAttack
from splitvfl.attacks.single_column import SingleColumnAttack
from splitvfl.attacks.single_feature import recover_single_feature, single_feature_of_parts
from splitvfl.attacks.sparse_residues import SparseResiduesAttack, sparse_residues
from splitvfl.attacks.stacked_epochs import StackedEpochsAttack, stack_epochs, two_mean_labels
from splitvfl.attacks.stacked_models import StackedModels, stack_models
from splitvfl.attacks.stacked_ridge import StackedRidgeAttack
from splitvfl.attacks.suspected_flip import SuspectedFlipAttack, suspect_flip
from splitvfl.attacks.unsplit import UnSplitAttack
from splitvfl.attacks.weight_estimation import WeightEstimate, WeightEstimationAttack, estimate_weights
from splitvfl.attacks.white_box_inversion import WhiteBoxInversionAttack
from splitvfl.leakage.ridge import Ridge, fit_ridge
from splitvfl.leakage.score_equations import activation_equations, equations, score_equations

__all__ = [
    "AdditiveLLRAttack",
    "Ball",
    "BinaryResidues",
    "BlackBoxFeatureAttack",
    "BoundedCentre",
    "CalibratedLossAttack",
    "ChebyshevCentreAttack",
    "ClampedLeastSquaresAttack",
    "CombinedAttack",
    "ComponentAttack",
    "ConstrainedLeastSquaresAttack",
    "DirectionAttack",
    "DiscreteFit",
    "DiscreteSearchAttack",
    "GenerativeRegressionAttack",
    "GradientClassifierAttack",
    "GradientInversionAttack",
    "HalfAttack",
    "HalfStarAttack",
    "InverseNetworkAttack",
    "LabelSumAttack",
    "LabelsAndFeaturesAttack",
    "LeastSquaresAttack",
    "LossThresholdAttack",
    "MixtureAttack",
    "ModelCompletionAttack",
    "MultiplicativeLLRAttack",
    "NoiseSubtractionAttack",
    "NormAttack",
    "OwnPredictionAttack",
    "PackingAttack",
    "PackingEngine",
    "ProcrustesAttack",
    "PseudoClientAttack",
    "RCC1Attack",
    "RCC2Attack",
    "RandomGuessAttack",
    "ReadoutAttack",
    "ResidualAttack",
    "ResidueSolvingAttack",
    "Ridge",
    "RidgeAttack",
    "ScoreInversionAttack",
    "SecretBatchLikelihoodAttack",
    "SignAttack",
    "SingleColumnAttack",
    "SparseResiduesAttack",
    "StackedEpochsAttack",
    "StackedModels",
    "StackedRidgeAttack",
    "SuspectedFlipAttack",
    "UnSplitAttack",
    "WeightEstimate",
    "WeightEstimationAttack",
    "WhiteBoxInversionAttack",
    "ZeroAttack",
    "activation_equations",
    "additive_noise_llr",
    "binary_residues",
    "black_box_feature",
    "chebyshev_centre",
    "chebyshev_within",
    "clamped_least_squares",
    "constrained_least_squares",
    "discrete_search",
    "equations",
    "estimate_behind",
    "estimate_weights",
    "feasible_powers",
    "fit_ridge",
    "gradient_inversion",
    "half",
    "half_star",
    "label_sum",
    "least_squares",
    "multiplicative_noise_llr",
    "orthogonal_twin",
    "packed_selections",
    "packed_weights",
    "projected_gradient",
    "rcc1",
    "rcc1_with_value",
    "rcc1_within",
    "rcc2",
    "rcc2_within",
    "recover_labels",
    "recover_single_feature",
    "recover_transform",
    "score_equations",
    "secret_batch_llr",
    "single_feature_of_parts",
    "slot_bits_needed",
    "slots_available",
    "solve_equations",
    "solve_residues",
    "sparse_residues",
    "stack_epochs",
    "stack_models",
    "subtract_noise",
    "suspect_flip",
    "two_mean_labels",
    "undo_transform",
    "unpack_equations",
]

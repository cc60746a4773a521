"""Defenses: what a party changes in a message before it leaves. One idea per file."""

from splitvfl.defenses.abstaining_response import AbstainingResponse
from splitvfl.defenses.asymmetric_response import AsymmetricResponse
from splitvfl.defenses.axis_gaussian import AxisGaussian
from splitvfl.defenses.axis_sumkl import AxisSumKL
from splitvfl.defenses.class_label import ClassLabel
from splitvfl.defenses.clip_gradient import ClipGradient
from splitvfl.defenses.coefficient_noise import CoefficientNoise
from splitvfl.defenses.discretise import Discretise
from splitvfl.defenses.gaussian_ir import GaussianIR
from splitvfl.defenses.gaussian_targets import GaussianTargets
from splitvfl.defenses.isotropic import Isotropic
from splitvfl.defenses.laplace_residue import LaplaceResidue
from splitvfl.defenses.max_norm import MaxNorm
from splitvfl.defenses.memoised_response import MemoisedResponse
from splitvfl.defenses.multiplicative_laplace_residue import MultiplicativeLaplaceResidue
from splitvfl.defenses.purification import Purification
from splitvfl.defenses.randomised_response import RandomisedResponse
from splitvfl.defenses.record_gaussian import RecordGaussian
from splitvfl.defenses.rounding import Rounding
from splitvfl.defenses.score_noise import ScoreNoise
from splitvfl.defenses.solve_sumkl import solve_sumkl
from splitvfl.defenses.sumkl import SumKL
from splitvfl.defenses.top_k import TopK
from splitvfl.defenses.top_one import TopOne
from splitvfl.learning.noise_direction import noise_direction
from splitvfl.learning.revealed_weights import rotated_weights, weight_shift

__all__ = [
    "AbstainingResponse",
    "AsymmetricResponse",
    "AxisGaussian",
    "AxisSumKL",
    "ClassLabel",
    "ClipGradient",
    "CoefficientNoise",
    "Discretise",
    "GaussianIR",
    "GaussianTargets",
    "Isotropic",
    "LaplaceResidue",
    "MaxNorm",
    "MemoisedResponse",
    "MultiplicativeLaplaceResidue",
    "Purification",
    "RandomisedResponse",
    "RecordGaussian",
    "Rounding",
    "ScoreNoise",
    "SumKL",
    "TopK",
    "TopOne",
    "noise_direction",
    "rotated_weights",
    "solve_sumkl",
    "weight_shift",
]

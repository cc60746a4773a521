"""Attacks: what a party can infer from what it holds and received. One idea per file."""

from splitvfl.attacks.direction import DirectionAttack
from splitvfl.attacks.equation_solving import LeastSquaresAttack, equations, least_squares
from splitvfl.attacks.gradient_classifier import GradientClassifierAttack
from splitvfl.attacks.gradient_inversion import GradientInversionAttack, gradient_inversion
from splitvfl.attacks.model_completion import ModelCompletionAttack
from splitvfl.attacks.norm import NormAttack
from splitvfl.attacks.readout import ReadoutAttack
from splitvfl.attacks.residual import ResidualAttack
from splitvfl.attacks.residue_solving import ResidueSolvingAttack, solve_residues
from splitvfl.attacks.sign import SignAttack

__all__ = [
    "DirectionAttack",
    "GradientClassifierAttack",
    "GradientInversionAttack",
    "LeastSquaresAttack",
    "ModelCompletionAttack",
    "NormAttack",
    "ReadoutAttack",
    "ResidualAttack",
    "ResidueSolvingAttack",
    "SignAttack",
    "equations",
    "gradient_inversion",
    "least_squares",
    "solve_residues",
]

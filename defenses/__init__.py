"""Defenses: what a party changes in a message before it leaves. One idea per file."""

from splitvfl.defenses.axis_sumkl import AxisSumKL
from splitvfl.defenses.gaussian_ir import GaussianIR
from splitvfl.defenses.isotropic import Isotropic
from splitvfl.defenses.max_norm import MaxNorm
from splitvfl.defenses.memoised_response import MemoisedResponse
from splitvfl.defenses.rounding import Rounding
from splitvfl.defenses.solve_sumkl import solve_sumkl
from splitvfl.defenses.sumkl import SumKL

__all__ = [
    "AxisSumKL",
    "GaussianIR",
    "Isotropic",
    "MaxNorm",
    "MemoisedResponse",
    "Rounding",
    "SumKL",
    "solve_sumkl",
]

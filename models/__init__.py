"""Models: bottom and top halves of split networks. One idea per file."""

from splitvfl.models.linear import Linear, LinearTop
from splitvfl.models.mlp import MLP
from splitvfl.models.pca import PCA
from splitvfl.models.sigmoid_coefficients import approximate_loss, gradient_scale, sigmoid_coefficients
from splitvfl.models.split import split_sequential
from splitvfl.models.wide_deep import WideDeepBottom, WideDeepTop

__all__ = [
    "Linear",
    "LinearTop",
    "MLP",
    "PCA",
    "WideDeepBottom",
    "WideDeepTop",
    "approximate_loss",
    "gradient_scale",
    "sigmoid_coefficients",
    "split_sequential",
]

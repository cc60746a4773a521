"""Models: bottom and top halves of split networks, and the recipes that make them. One idea per file."""

from splitvfl.models.linear import Linear, LinearTop, LogisticRegressionRecipe
from splitvfl.models.mlp import MLP, MLPRecipe
from splitvfl.models.pca import PCA, PCARecipe
from splitvfl.models.sigmoid_coefficients import approximate_loss, gradient_scale, logistic_loss, sigmoid_coefficients
from splitvfl.models.split import split_sequential
from splitvfl.models.wide_deep import WideDeepBottom, WideDeepRecipe, WideDeepTop
from splitvfl.party.recipe import Recipe

__all__ = [
    "Linear",
    "LinearTop",
    "LogisticRegressionRecipe",
    "MLP",
    "MLPRecipe",
    "PCA",
    "PCARecipe",
    "Recipe",
    "WideDeepBottom",
    "WideDeepRecipe",
    "WideDeepTop",
    "approximate_loss",
    "gradient_scale",
    "logistic_loss",
    "sigmoid_coefficients",
    "split_sequential",
]

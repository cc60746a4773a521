"""Models: bottom and top halves of split networks, and the recipes that make them. One idea per file."""

from splitvfl.learning.glm_losses import GLMLoss, LossConstants, glm_loss
from splitvfl.learning.sampled import Sampled
from splitvfl.learning.sigmoid_coefficients import (
    approximate_loss,
    gradient_scale,
    largest_logit,
    logistic_loss,
    sigmoid_coefficients,
)
from splitvfl.models.glm import GLMRecipe
from splitvfl.models.linear import Linear, LinearTop, LogisticRegressionRecipe
from splitvfl.models.mlp import MLP, MLPRecipe
from splitvfl.models.pca import PCA, PCARecipe
from splitvfl.models.split import split_sequential
from splitvfl.models.wide_deep import WideDeepBottom, WideDeepRecipe, WideDeepTop
from splitvfl.party.recipe import Recipe

__all__ = [
    "GLMLoss",
    "GLMRecipe",
    "Linear",
    "LinearTop",
    "LogisticRegressionRecipe",
    "LossConstants",
    "MLP",
    "MLPRecipe",
    "PCA",
    "PCARecipe",
    "Recipe",
    "Sampled",
    "WideDeepBottom",
    "WideDeepRecipe",
    "WideDeepTop",
    "approximate_loss",
    "glm_loss",
    "gradient_scale",
    "largest_logit",
    "logistic_loss",
    "sigmoid_coefficients",
    "split_sequential",
]

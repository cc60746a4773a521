"""Models: bottom and top halves of split networks. One idea per file."""

from splitvfl.models.linear import Linear, LinearTop
from splitvfl.models.mlp import MLP
from splitvfl.models.split import split_sequential
from splitvfl.models.wide_deep import WideDeepBottom, WideDeepTop

__all__ = ["Linear", "LinearTop", "MLP", "WideDeepBottom", "WideDeepTop", "split_sequential"]

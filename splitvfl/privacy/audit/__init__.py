"""How much privacy loss a measurement proves: lower bounds of ε, δ and μ, from samples of two worlds or from one run.

A claim of differential privacy bounds from above what two neighbouring inputs can be told apart by. Here it is bounded
from below: who tells them apart better than a claim allows has refuted it, whatever its proof says. What was not
refuted is not proven by that, and every bound comes with the largest value that so many draws could have refuted.

Nothing here knows hooks: a mechanism is a function that draws messages. Defenses are audited by :mod:`splitvfl.audit`.
"""

from splitvfl.learning.odds import share_bounds
from splitvfl.privacy.audit.bounds import (
    Direction,
    delta_bound,
    epsilon_bound,
    error_bound,
    largest_refutable_epsilon,
    largest_refutable_mu,
    mu_bound,
)
from splitvfl.privacy.audit.one_run import one_run_epsilon, one_run_refutes
from splitvfl.privacy.audit.two_worlds import Measured, Objective, measure

__all__ = [
    "Direction",
    "Measured",
    "Objective",
    "delta_bound",
    "epsilon_bound",
    "error_bound",
    "largest_refutable_epsilon",
    "largest_refutable_mu",
    "measure",
    "mu_bound",
    "one_run_epsilon",
    "one_run_refutes",
    "share_bounds",
]

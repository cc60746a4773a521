"""Training steps that parties take together, and what else they say to each other. An exchange is one file."""

from splitvfl.exchange.coordinator import Coordinator
from splitvfl.exchange.hybrid import Hybrid
from splitvfl.exchange.one_way import OneWay
from splitvfl.exchange.oracle import Oracle
from splitvfl.exchange.residue import Residue
from splitvfl.exchange.split import Split
from splitvfl.exchange.taylor import Taylor

__all__ = ["Coordinator", "Hybrid", "OneWay", "Oracle", "Residue", "Split", "Taylor"]

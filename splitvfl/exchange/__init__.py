"""Training steps that parties take together, and what else they say to each other. An exchange is one file."""

from __future__ import annotations

from typing import TYPE_CHECKING

from splitvfl.lazy_names import lazy_names

if TYPE_CHECKING:
    from splitvfl.exchange.coordinator import Coordinator
    from splitvfl.exchange.hybrid import Hybrid
    from splitvfl.exchange.one_way import OneWay
    from splitvfl.exchange.oracle import Oracle
    from splitvfl.exchange.residue import Residue
    from splitvfl.exchange.split import Split
    from splitvfl.exchange.taylor import Taylor

__all__ = ["Coordinator", "Hybrid", "OneWay", "Oracle", "Residue", "Split", "Taylor"]

if not TYPE_CHECKING:
    __getattr__, __dir__ = lazy_names(
        __name__,
        {
            "splitvfl.exchange.coordinator": ("Coordinator",),
            "splitvfl.exchange.hybrid": ("Hybrid",),
            "splitvfl.exchange.one_way": ("OneWay",),
            "splitvfl.exchange.oracle": ("Oracle",),
            "splitvfl.exchange.residue": ("Residue",),
            "splitvfl.exchange.split": ("Split",),
            "splitvfl.exchange.taylor": ("Taylor",),
        },
    )

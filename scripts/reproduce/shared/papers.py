"""Which reproductions there are, and which paper each is of."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Entry:
    """A package of ``scripts.reproduce`` that is run as ``python -m scripts.reproduce.NAME``.

    Attributes:
        name: Of the package.
        title: Of the paper, or what else is reproduced.
        page: Its page of the documentation, without suffix.
        paper: Whether it is a paper's, and has a table on the overview.
        checked: Whether ``--check`` fails where something that is proved does not reproduce.
    """

    name: str
    title: str
    page: str
    paper: bool = True
    checked: bool = False

    @property
    def module(self) -> str:
        """What is run."""
        return f"scripts.reproduce.{self.name}"


ENTRIES = (
    Entry(
        name="label_leakage",
        title="Label Leakage and Protection in Two-party Split Learning",
        page="label-leakage",
    ),
    Entry(
        name="vertical_lr_privacy",
        title="Is Vertical Logistic Regression Privacy-Preserving? A Comprehensive Privacy Analysis and Beyond",
        page="vertical-lr-privacy",
    ),
    Entry(
        name="residue_protection",
        title="Residue-based Label Protection Mechanisms in Vertical Logistic Regression",
        page="residue-protection",
    ),
    Entry(
        name="prediction_phase",
        title="Privacy Against Inference Attacks in Vertical Federated Learning",
        page="prediction-phase",
        checked=True,
    ),
    Entry(
        name="hdp_vfl",
        title="Hybrid Differentially Private Federated Learning on Vertically Partitioned Data",
        page="hdp-vfl",
    ),
    Entry(name="defense_table", title="Every defense against every attack", page="defenses", paper=False),
    Entry(name="better_defense", title="The search for a better defense", page="better-defense", paper=False),
    Entry(
        name="feature_leak",
        title="What activations tell of columns, and what hiding them costs",
        page="feature-leak",
        paper=False,
    ),
    Entry(name="readers", title="What each reader finds", page="readers", paper=False),
    Entry(name="fate_quality", title="FATE's quality rule", page="fate-quality", paper=False),
)
"""Papers first, in the order of the overview; in this order all are run."""

PAPERS = tuple(entry for entry in ENTRIES if entry.paper)

"""What is read first after a run, line by line."""

from __future__ import annotations

import io
from dataclasses import replace
from typing import Any

import pytest
from rich.console import Console

from splitvfl.leakage.in_general import KnowledgeGain
from splitvfl.report.first_screen import first_screen
from splitvfl.report.party_result import PartyResult
from splitvfl.report.summary import ExchangeTraits
from tests.report.test_tables import run

GAINED = KnowledgeGain(0.57, 0.73, 0.14, 0.18, model=0.74)


def line(label: str, *, one_way: bool = False, **figures: Any) -> str:
    """Return the lines of the first screen that begin with a label, in 80 columns."""
    traits = ExchangeTraits(one_way=one_way, shows_gradients=not one_way)
    found = replace(run(parties={"lab": PartyResult({}, **figures)}), exchange_traits=traits)
    file = io.StringIO()
    Console(file=file, width=80, color_system=None).print(first_screen(found))
    return next(
        (" ".join(row.split()[2:]) for row in file.getvalue().splitlines() if row.strip().startswith(label)), ""
    )


@pytest.mark.parametrize(
    ("gain", "said"),
    [
        (GAINED, "0.57 → 0.73 now predicts labels without knowing one (model 0.74)"),
        (replace(GAINED, low=-0.01), "0.57 → 0.73 nothing new"),
        (replace(GAINED, taught=False), "0.57 → 0.73 nothing new"),
        (replace(GAINED, model=None), "0.57 → 0.73 now predicts labels without knowing one"),
        (None, ""),
    ],
)
def test_labels_in_general_are_said_beside_the_model(gain: KnowledgeGain | None, said: str) -> None:
    assert line("in general", knowledge_gain=gain) == said


def test_one_way_nothing_is_new() -> None:
    assert line("in general", one_way=True, first_component_auc=0.57) == "nothing new"

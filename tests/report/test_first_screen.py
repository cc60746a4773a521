"""What is read first after a run, line by line."""

from __future__ import annotations

import io
import re
from dataclasses import replace
from typing import Any

import pytest
from rich.console import Console

from splitvfl.claims import Guarantee
from splitvfl.leakage.canaries import CanaryLeak
from splitvfl.leakage.in_general import KnowledgeGain
from splitvfl.report.first_screen import first_screen
from splitvfl.report.party_result import PartyResult
from splitvfl.report.summary import ExchangeTraits, OwnModelResult
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


def screen(width: int = 80, *, colour: bool = False, **changes: Any) -> str:
    """Return a whole first screen."""
    file = io.StringIO()
    console = Console(file=file, width=width, force_terminal=colour, color_system="standard" if colour else None)
    console.print(first_screen(run(**changes)))
    return "\n".join(row.rstrip() for row in file.getvalue().splitlines())


GUARANTEED = PartyResult(
    {},
    own_columns_auc=0.77,
    first_component_auc=0.57,
    total=0.81,
    includes_features=True,
    excess=CanaryLeak(0.66, 0.58, 0.73, 150, 150, figures=3),
    guarantee=Guarantee(0.6, "run", "asymmetric-response(detection_error=0.4)"),
    knowledge_gain=GAINED,
)
OWN = OwnModelResult("active", "auc", "gradient boosting", 0.626, 0.729, 0.103, 0.05, 0.15, 6000, 6000)


def test_a_guaranteed_run_has_its_figures_beside_the_guarantee() -> None:
    found = screen(parties={"lab": GUARANTEED}, label_owner="active", own_model=OWN, test_metric=0.729)
    assert found.splitlines()[:9] == [
        "lab → active’s labels",
        "  verdict      BELOW GOAL   guaranteed for the whole run: AUC ≤ 0.60, goal 0.60",
        "  guarantee    AUC ≤ 0.60   for one record, all else known; guessing gives 0.50",
        "  excess       0.66         95 % CI 0.58–0.73, 300 canaries: consistent with",
        "                            0.60",
        "  in general   0.57 → 0.73  now predicts labels without knowing one (model 0.74)",
        "  total        0.81         messages + lab's own features + predictions",
        "  baseline     0.57         lab alone, without labels  (0.77 with labels of",
        "                            others)",
    ]
    assert "  verdict      NOT MEASURED add `attacks: [ridge]`" in found
    assert "model          test AUC 0.729  (active alone 0.626)" in found
    wide = screen(120, parties={"lab": GUARANTEED}, label_owner="active")
    assert "300 canaries: consistent with 0.60\n" in wide


def test_one_way_has_neither_guarantee_nor_excess_and_says_when_joining_is_of_no_use() -> None:
    worse = replace(OWN, joint=0.602, difference=-0.024, low=-0.03, high=-0.01)
    found = screen(
        parties={"lab": replace(GUARANTEED, excess=None, guarantee=None, total=None, prediction_auc=0.61)},
        exchange="one-way",
        exchange_traits=ExchangeTraits(one_way=True),
        own_model=worse,
        test_metric=0.602,
    )
    assert "  verdict      NO LABEL-DEPENDENT MESSAGE    by protocol, training only" in found
    assert "  in general   nothing new  published scores would reveal: 0.61" in found
    assert "guarantee " not in found
    assert "excess " not in found
    assert "test AUC 0.602: lower than active alone (0.626). Not worth joining." in " ".join(found.split())


@pytest.mark.parametrize(
    ("excess", "state", "advice"),
    [
        ((0.98, 0.96, 0.99), "ABOVE GOAL", "Train one-way (exchange: one-way), or randomise labels"),
        ((0.56, 0.48, 0.63), "INCONCLUSIVE", "To decide without measuring, train one-way"),
        ((0.52, 0.48, 0.57), "BELOW GOAL", "Single labels need nothing more"),
    ],
)
def test_what_to_do_follows_from_the_verdict_and_never_is_a_broken_defense(
    excess: tuple[float, float, float], state: str, advice: str
) -> None:
    party = replace(GUARANTEED, guarantee=None, excess=CanaryLeak(*excess, 150, 150, figures=3))
    found = screen(parties={"lab": party}, defenses=["axis-sumkl(detection_error=0.4)"])
    said = " ".join(found[found.index("what to do") :].split())
    assert f"  verdict      {state} " in found
    assert advice in said or state == "BELOW GOAL"
    assert said.endswith("Known to be broken, for comparisons only: axis-sumkl.")


def test_states_alone_have_a_colour() -> None:
    found = screen(colour=True, parties={"lab": replace(GUARANTEED, guarantee=None)}, test_metric=0.5)
    assert len(re.findall(r"\x1b\[[0-9;]*3[0-7]m", found)) == 1
    assert "\x1b[1;33mINCONCLUSIVE" in found
    assert "\x1b" not in screen(parties={"lab": GUARANTEED})

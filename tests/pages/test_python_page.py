"""The examples of docs/python.md run as they stand, one after the other, and print what the page says."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

BLOCK = re.compile(r"```python\n(.*?)```", re.DOTALL)


@pytest.fixture(scope="module")
def ran(checkout: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Any], str]:
    """Run the page in an empty folder; return its names, and what it printed."""
    names: dict[str, Any] = {"__name__": "page"}
    printed: list[str] = []
    names["print"] = lambda *words: printed.append(" ".join(map(str, words)))
    folder = tmp_path_factory.mktemp("page")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        for number, block in enumerate(BLOCK.findall((checkout / "docs/python.md").read_text())):
            exec(compile(block, f"docs/python.md, example {number}", "exec"), names)
    assert list(folder.iterdir()) == []
    return names, "\n".join(printed)


def test_tables_are_joined_as_the_page_says(ran: tuple[dict[str, Any], str], checkout: Path) -> None:
    names, printed = ran
    page = (checkout / "docs/python.md").read_text()
    said = page[page.index("# VerticalData(") :].split("```")[0].replace("# ", "").replace("\n", " ").strip()

    assert said in printed
    assert repr(names["data"]) == said
    assert "test AUC 0.98, worst leak 1.00" in printed


def test_the_estimator_learns_behind_a_defense(ran: tuple[dict[str, Any], str]) -> None:
    names, printed = ran
    accuracy = float(re.findall(r"accuracy (0\.\d+)", printed)[0])

    assert accuracy > 0.85
    undefended, defended = names["search"].cv_results_["mean_test_score"]
    assert min(undefended, defended) > 0.8


def test_several_partners_train_and_leak_apart(ran: tuple[dict[str, Any], str]) -> None:
    names, printed = ran

    assert set(names["leaks"]) == {"lab", "ward"}
    assert re.search(r"^lab <Leak of norm: AUC 0\.\d+ a step", printed, re.MULTILINE)
    steps = 10 * -(-names["train"].count // 64)
    assert [leak.summary.steps + leak.summary.undefined for leak in names["leaks"].values()] == [steps, steps]


def test_all_findings_are_shown(ran: tuple[dict[str, Any], str]) -> None:
    _, printed = ran

    found = [line for line in printed.splitlines() if line.startswith("- ")]
    assert [line.split(":")[1].strip() for line in found] == ["mixes records", "cut shape", "in place"]
    assert all("(fix_model does)" in line for line in found)


def test_a_transcript_keeps_training_steps_and_evaluations_apart(ran: tuple[dict[str, Any], str]) -> None:
    names, printed = ran
    steps, evaluations, data = names["steps"], names["evaluations"], names["data"]

    assert {message.sender for message in steps} == {"active", "lab"}
    assert {(one.sender, one.kind) for one in evaluations} == {("lab", "evaluation"), ("active", "verdict")}
    assert evaluations.dropped == 0
    assert sum(len(one.payload) for one in evaluations if one.sender == "lab") == data["lab"].test.count
    assert "\nactivation gradient\nevaluation verdict\n" in printed

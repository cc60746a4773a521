"""The experiment and the attacks of docs/what-activations-tell.md and the tutorial, as they stand there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from splitvfl.cli import main
from splitvfl.report.summary import read_summary

# What own columns predict is never asked here, only whether it was judged.
pytestmark = pytest.mark.usefixtures("few_rounds")


def block(page: Path, language: str, word: str) -> str:
    (found,) = (
        text for text in re.findall(rf"```{language}\n(.*?)```", page.read_text("utf-8"), re.DOTALL) if word in text
    )
    return str(found)


@pytest.mark.slow(reason="a training with two attacks of the pages")
def test_the_experiment_runs_with_the_attack_of_the_page_and_that_of_the_tutorial(
    checkout: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    docs = checkout / "docs"
    experiment = block(docs / "what-activations-tell.md", "yaml", "ridge")
    for page, module in (("what-activations-tell.md", "own_attacks"), ("tutorial.md", "my_hooks")):
        Path(f"{module}.py").write_text(block(docs / page, "python", "class Nearest"))
    # Both are called Nearest, and are judged beside ridge; the tutorial's knows too few of so small a file.
    listed = 'attacks: [{name: ridge, known_share: 0.2}, "own_attacks:Nearest", "my_hooks:Nearest"]'
    Path("lab.yaml").write_text(experiment.replace("attacks: [{name: ridge, known_share: 0.2}]", listed))
    assert main(["train", "lab.yaml", "--out", "run"]) == 0
    summary = read_summary(Path("run"))
    found = {reading.attack: reading for reading in summary.parties["lab"].readings}
    assert set(found) == {"ridge", "Nearest", "Nearest-2"}
    assert found["ridge"].share > found["Nearest"].share > 0.05
    assert found["Nearest"].known_share == 0.2
    assert found["Nearest-2"].known_share == 0.05
    said = " ".join(capsys.readouterr().out.split())
    assert f"recovers {found['ridge'].most:.0%} of the variance" in said
    assert main(["forecast", "lab.yaml", "--as", "lab", "--model", "run"]) == 0

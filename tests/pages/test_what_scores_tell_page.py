"""The commands of docs/what-scores-tell.md print what the page shows."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from splitvfl.cli import main

NUMBER = re.compile(r"\d+(?:\.\d+)?")


def words(text: str) -> str:
    """Return a text with every number taken out; lines may break elsewhere."""
    return " ".join(NUMBER.sub("#", text).split())


def check(printed: str, shown: str) -> None:
    """Compare words exactly, and numbers to a unit of their last digit, or .002 where there are more digits.

    Training is 15 epochs of float32, which other processors round otherwise.
    """
    assert words(printed) == words(shown)
    for found, expected in zip(NUMBER.findall(printed), NUMBER.findall(shown), strict=True):
        digits = len(expected.partition(".")[2])
        assert float(found) == pytest.approx(float(expected), abs=max(1.1 * 10.0**-digits, 0.002))


@pytest.mark.slow(reason="trains for fifteen epochs, and forecasts twice")
def test_the_page_shows_what_is_printed(
    checkout: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    page = (checkout / "docs/what-scores-tell.md").read_text(encoding="utf-8")
    experiment, *_ = re.findall(r"```yaml\n(.*?)```", page, re.DOTALL)
    before, after, measured, handed_over = re.findall(r"```text\n(.*?)```", page, re.DOTALL)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")
    Path("hospital.yaml").write_text(experiment, encoding="utf-8")

    assert main(["forecast", "hospital.yaml", "--as", "lab"]) == 0
    first = capsys.readouterr().out
    assert main(["train", "hospital.yaml"]) == 0
    capsys.readouterr()
    assert main(["forecast", "hospital.yaml", "--as", "lab", "--model", "runs/hospital", "--json", "f.json"]) == 0
    second = capsys.readouterr().out

    check(first, before)
    table_of_before = slice(second.index("lab: 20"), second.index("scores or activation"))
    check(second[: second.index("f.json")].replace(second[table_of_before], ""), after)
    (command,) = re.findall(r"\$ splitvfl (reconstruct runs/hospital .*)", page)
    assert main(command.split()) == 0
    third = capsys.readouterr().out
    check(third[: third.index("runs/hospital/reconstruct.json")], measured)
    (command,) = re.findall(r"\$ splitvfl (reveal .*)", page)
    assert main(command.split()) == 0
    check(capsys.readouterr().out, handed_over)

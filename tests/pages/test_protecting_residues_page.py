"""The experiment of docs/logistic-regression.md on protecting residues runs, and says what the page says."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from splitvfl.app.experiment import run_experiment
from splitvfl.config.sections import parse_config
from splitvfl.report.summary import RunSummary


@pytest.fixture(scope="module")
def section(checkout: Path) -> str:
    page = (checkout / "docs" / "logistic-regression.md").read_text(encoding="utf-8")
    return page.partition("\n## Protecting residues\n")[2].partition("\n## ")[0]


def run(section: str, folder: Path, **instead: str) -> tuple[list[str], RunSummary]:
    found = re.search(r"```yaml\n(.*?)```", section, re.DOTALL)
    assert found is not None
    text = found[1]
    for key, value in instead.items():
        text = re.sub(rf"^{key}: .*$", f"{key}: {value}", text, flags=re.MULTILINE)
    said: list[str] = []
    return said, run_experiment(parse_config(text, source=folder / "page.yaml"), folder / "run", notify=said.append)


def test_it_promises_and_spends_what_the_page_shows(section: str, tmp_path: Path) -> None:
    shown = re.search(r"```text\n(.*?)```", section, re.DOTALL)
    assert shown is not None
    *promised, spent = shown[1].replace("\n  ", " ").splitlines()

    said, summary = run(section, tmp_path)

    assert [line for line in said if line.startswith("laplace-residue: ")] == promised
    assert [line for line in summary.notes if line.startswith("laplace-residue: ")] == [*promised, spent]
    attacks = summary.parties["lab"].attacks
    # Figures of one machine's sums: AUCs of few hundred records differ in the third digit on another.
    told = {
        r"Its test AUC is (\.\d+)\.": summary.test_metric,
        r"with an AUC of (\.\d+) here": attacks["additive-llr"].worst,
        r"single messages with (\.\d+)": attacks["sign"].worst,
    }
    for pattern, found in told.items():
        assert found == pytest.approx(float(quoted(section, pattern)), abs=0.01), pattern


@pytest.mark.parametrize(
    ("defense", "pattern"),
    [
        ("[{name: memoised-response, epsilon: 5.0}]", r"in its place it is (\.\d+), and"),
        ("[]", r"without a defense (\.\d+) \("),
    ],
)
def test_what_stands_beside_it_was_measured(section: str, tmp_path: Path, defense: str, pattern: str) -> None:
    _, summary = run(section, tmp_path, defenses=defense, attacks="[sign]")

    assert summary.test_metric == pytest.approx(float(quoted(section, pattern)), abs=2e-3)


def quoted(section: str, pattern: str) -> str:
    found = re.search(pattern, " ".join(section.split()))
    assert found is not None, pattern
    return found[1]

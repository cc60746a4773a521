"""The README's Python journeys run as they stand, one after the other, in an empty folder."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

BLOCK = re.compile(r"```python\n(.*?)```", re.DOTALL)


@pytest.fixture(scope="module")
def blocks(checkout: Path) -> list[str]:
    return BLOCK.findall((checkout / "README.md").read_text())


def test_hooks_of_the_readme_have_at_most_fifteen_lines(blocks: list[str]) -> None:
    hooks = next(block for block in blocks if block.startswith("# my_hooks.py"))
    for body in hooks.split("\nclass ")[1:]:
        assert len([line for line in body.splitlines() if line.strip()]) <= 15


def test_journeys_run_in_order(blocks: list[str], checkout: Path, tmp_path: Path) -> None:
    hooks = next(block for block in blocks if block.startswith("# my_hooks.py"))
    (tmp_path / "my_hooks.py").write_text(hooks)
    script = "import torch\n" + "\n".join(block for block in blocks if block is not hooks)
    (tmp_path / "journeys.py").write_text(script)

    done = subprocess.run(
        [sys.executable, "-W", "error", "journeys.py"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": f"{checkout}{os.pathsep}{tmp_path}", "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )

    assert done.returncode == 0, done.stderr
    assert "'direction'" in done.stdout
    assert list((tmp_path / "runs" / "defended").glob("events.out.tfevents.*"))


@pytest.mark.parametrize("page", ["README.md", "docs/tutorial.md", "splitvfl/cli.py"])
def test_comparisons_that_are_advised_can_be_run(page: str, checkout: Path) -> None:
    from splitvfl.cli import _TO_COMPARE
    from splitvfl.config.sections import parse_defenses

    text = (checkout / page).read_text().replace("{_TO_COMPARE}", _TO_COMPARE)
    advised = re.findall(r"splitvfl compare .*?--defenses ('[^']*'|[^\s`\"']+)", text)

    assert advised
    for defenses in advised:
        assert parse_defenses(defenses.strip("'"), folder=checkout)


def test_experiment_of_the_readme_is_valid(checkout: Path) -> None:
    from splitvfl.config.sections import parse_config

    text = re.search(r"```yaml\n(.*?)```", (checkout / "README.md").read_text(), re.DOTALL)

    assert text is not None
    config = parse_config(text[1], source="README.md")

    assert [hook.name for hook in config.defenses] == ["asymmetric-response"]


def test_files_of_two_companies_are_valid_and_agree(checkout: Path) -> None:
    from splitvfl.config.sections import parse_config

    shown = dict(re.findall(r"```yaml\n# (\w+)\.yaml\n(.*?)```", (checkout / "README.md").read_text(), re.DOTALL))
    bank, telecom = (parse_config(shown[name], source=f"{name}.yaml") for name in ("bank", "telecom"))

    assert bank.train == telecom.train
    assert bank.active == telecom.active == "bank"
    # One dials, and the other listens.
    assert bank.parties["telecom"].address is not None
    assert telecom.parties["bank"].address is None
    assert telecom.network is not None
    assert telecom.network.listen is not None

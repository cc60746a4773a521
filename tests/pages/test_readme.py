"""The README's Python journeys run as they stand, one after the other, in an empty folder."""

from __future__ import annotations

import os
import re
import runpy
import shlex
import sys
import warnings
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.commands import Command

BLOCK = re.compile(r"```python\n(.*?)```", re.DOTALL)


@pytest.fixture(scope="module")
def blocks(checkout: Path) -> list[str]:
    return BLOCK.findall((checkout / "README.md").read_text())


def run_script(arguments: Sequence[str]) -> int:
    """Run a script in its folder as ``python -W error`` does."""
    warnings.simplefilter("error")
    sys.path.insert(0, os.getcwd())
    runpy.run_path(arguments[0], run_name="__main__")
    return 0


def test_hooks_of_the_readme_have_at_most_fifteen_lines(blocks: list[str]) -> None:
    hooks = next(block for block in blocks if block.startswith("# my_hooks.py"))
    for body in hooks.split("\nclass ")[1:]:
        assert len([line for line in body.splitlines() if line.strip()]) <= 15


@pytest.mark.slow(reason="all that the README trains, in one process")
def test_journeys_run_in_order(blocks: list[str], checkout: Path, tmp_path: Path) -> None:
    hooks = next(block for block in blocks if block.startswith("# my_hooks.py"))
    (tmp_path / "my_hooks.py").write_text(hooks)
    script = "import torch\n" + "\n".join(block for block in blocks if block is not hooks)
    (tmp_path / "journeys.py").write_text(script)

    process = Command(["journeys.py"], tmp_path, program=run_script)
    said, errors = process.communicate(timeout=300)

    assert process.returncode == 0, errors
    test, leak = (re.search(pattern, said) for pattern in (r"test AUC (\S+)", r"worst leak AUC (\S+), by (\w+)"))
    assert test is not None
    assert float(test[1]) > 0.95
    assert leak is not None
    assert (float(leak[1]), leak[2]) == (1.0, "direction")
    # What the page says that it prints.
    assert f"# test AUC {test[1]}" in blocks[0]
    assert list((tmp_path / "runs" / "defended").glob("events.out.tfevents.*"))


@pytest.mark.parametrize("page", ["README.md", "docs/tutorial.md", "splitvfl/cli/training.py"])
def test_comparisons_that_are_advised_can_be_run(page: str, checkout: Path) -> None:
    from splitvfl.cli.training import TO_COMPARE
    from splitvfl.config.sections import parse_defenses

    text = (checkout / page).read_text().replace("{TO_COMPARE}", TO_COMPARE)
    advised = re.findall(r"splitvfl compare .*?--defenses ('[^']*'|[^\s`\"']+)", text)

    assert advised
    for defenses in advised:
        assert parse_defenses(defenses.strip("'"), folder=checkout)


def test_every_link_and_picture_is_there(checkout: Path) -> None:
    text = (checkout / "README.md").read_text()
    targets = dict(re.findall(r"^\[([\w-]+)\]: (\S+)$", text, re.MULTILINE))
    used = set(re.findall(r"\]\[([\w-]+)\]", text))

    # Links stand together, so that an address can be put before all of them; none stands elsewhere.
    assert used == set(targets)
    assert not re.findall(r"\]\((?!http)", text)
    assert [target for target in targets.values() if not (checkout / target).is_file()] == []
    pictures = [checkout / target for target in targets.values() if target.endswith(".png")]
    assert len(pictures) == 2
    assert all(path.stat().st_size < 200_000 for path in pictures)


def test_files_are_shown_before_the_commands_that_need_them(checkout: Path) -> None:
    text = (checkout / "README.md").read_text()

    for name in ("breast_cancer", "clicks", "bank", "telecom"):
        shown = text.index(f"# {name}.yaml")
        commands = [found.start() for found in re.finditer(rf"splitvfl \w+ {name}\.yaml", text)]
        assert commands
        assert shown < min(commands)


def test_commands_of_the_readme_are_taken_by_the_parser(checkout: Path) -> None:
    import typer

    from splitvfl.cli import app

    shell = "\n".join(re.findall(r"```console\n(.*?)```", (checkout / "README.md").read_text(), re.DOTALL))
    lines = re.findall(r"^\w*\$ +splitvfl (.+)$", shell.replace("\\\n", " "), re.MULTILINE)
    known = typer.main.get_command(app).commands

    assert len(lines) >= 12
    for line in lines:
        name, *words = shlex.split(line, comments=True)
        command = known.get(name)
        if name == "synth":
            command, words = command.commands[words[0]], words[1:]
        if not name.startswith("--"):
            assert command is not None, line
            command.make_context(name, words)


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

"""Every command says what it does, in which group, and shows examples that its own parser takes."""

from __future__ import annotations

import runpy
import shlex
import sys
from collections.abc import Iterator
from importlib import metadata
from typing import Any

import pytest
import typer

from splitvfl.cli import app, main
from splitvfl.cli.help_pages import PAGES


def commands(group: Any = None, before: str = "") -> Iterator[tuple[str, Any]]:
    """Yield every command that does something, by all its words."""
    found = typer.main.get_command(app) if group is None else group
    for name, command in found.commands.items():
        if hasattr(command, "commands"):
            yield from commands(command, f"{before}{name} ")
        else:
            yield f"{before}{name}", command


COMMANDS = dict(commands())


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_is_in_a_group_and_shows_examples(name: str) -> None:
    command = COMMANDS[name]

    assert command.help, f"{name}: say what it does, in its docstring"
    assert name in PAGES, f"{name}: add its group and an example to splitvfl/cli/help_pages.py"
    assert PAGES[name].examples
    assert command.epilog.startswith("Examples:")
    assert " " in name or command.rich_help_panel == PAGES[name].group


@pytest.mark.parametrize(
    ("name", "example"), [(name, example) for name in COMMANDS for example in PAGES[name].examples if name in PAGES]
)
def test_examples_are_taken_by_the_parser(name: str, example: str) -> None:
    words = shlex.split(example)

    assert words[: 1 + len(name.split())] == ["splitvfl", *name.split()]
    COMMANDS[name].make_context(name, words[1 + len(name.split()) :])


def test_an_example_with_a_flag_that_is_none_would_be_seen() -> None:
    with pytest.raises(Exception, match="No such option"):
        COMMANDS["train"].make_context("train", ["breast_cancer.yaml", "--no-such-flag"])


def test_examples_are_shown_and_can_be_copied(capsys: pytest.CaptureFixture[str], monkeypatch: Any) -> None:
    monkeypatch.setenv("COLUMNS", "130")

    assert main(["compare", "--help"]) == 0

    lines = [line.strip() for line in capsys.readouterr().out.splitlines()]
    assert all(example in lines for example in PAGES["compare"].examples)


def test_the_versions_are_told_without_a_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0

    told = capsys.readouterr().out
    assert told.startswith(f"splitvfl {metadata.version('splitvfl')}, Python {sys.version_info.major}.")
    assert f"torch {metadata.version('torch')}" in told


def test_python_m_splitvfl_is_the_command_line(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", ["splitvfl", "list", "losses"])
    monkeypatch.delitem(sys.modules, "splitvfl.__main__", raising=False)  # another test of this process may have come

    with pytest.raises(SystemExit) as ended:
        runpy.run_module("splitvfl", run_name="__main__")

    assert ended.value.code == 0
    assert "squared-error" in capsys.readouterr().out


@pytest.mark.parametrize(("typed", "expected"), [("splitvfl sch", "schema"), ("splitvfl list exch", "exchanges")])
def test_a_shell_completes_commands_and_kinds(
    typed: str, expected: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("_SPLITVFL_COMPLETE", "complete_bash")
    monkeypatch.setenv("COMP_WORDS", typed)
    monkeypatch.setenv("COMP_CWORD", str(len(typed.split()) - 1))

    main([])

    assert capsys.readouterr().out.split() == [expected]

"""What commands say, with names in it that are anybody's."""

from __future__ import annotations

import gc
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
from rich.color import ColorSystem
from rich.table import Table
from rich.text import Text

from splitvfl.cli import main
from splitvfl.cli.console import errors_console, importing, output_console, say, tell
from tests.report.test_report import run, stored


def test_a_line_steers_no_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    tell("\ncol\x1b[2J\u202eumn: [bold]3[/bold] records")
    said = capsys.readouterr()
    assert said.err == "\ncol\\x1b[2J\\u202eumn: [bold]3[/bold] records\n"
    assert said.out == ""


def test_what_a_table_holds_steers_no_terminal_and_keeps_its_colours(capsys: pytest.CaptureFixture[str]) -> None:
    for console in (output_console(), errors_console()):
        table = Table("a\u202eb")
        table.add_row("\x1b[2Jx\u2066", style="bold")
        console.print(table)
        console.print(Text("last\x9b\nline"))
    for said in capsys.readouterr():
        assert all(shown in said for shown in ("a\\u202eb", "\\x1b[2Jx\\u2066", "last\\x9b\nline"))
        assert not set(said) & set("\u202e\x1b\u2066\x9b")
    terminal = output_console()
    terminal._force_terminal, terminal._color_system = True, ColorSystem.STANDARD
    terminal.print(Text("red\x1b[2J", style="red"))
    assert capsys.readouterr().out == "\x1b[31mred\\x1b[2J\x1b[0m\n", "the console's own colour, and no more"


def test_names_that_look_like_markup_are_names(capsys: pytest.CaptureFixture[str]) -> None:
    """A column called [/foo] ended splitvfl reconstruct with a traceback."""
    names = ["[/foo]", "[link=http://evil]x[/link]", ":warning:", "[red]y"]
    table = Table(*names, title="[/title]")
    table.add_row(*names)
    output_console().print(table, soft_wrap=True)
    said = capsys.readouterr().out
    assert "[/title]" in said
    assert [said.count(name) for name in names] == [2, 2, 2, 2]


def test_a_line_of_a_result_steers_no_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    say("\x1b[31mtwo\nlines [bold]\u202e")
    assert capsys.readouterr().out == "\\x1b[31mtwo\nlines [bold]\\u202e\n"


def test_only_one_module_of_the_commands_makes_consoles() -> None:
    import splitvfl.cli as commands

    made = {path.name for path in Path(commands.__path__[0]).glob("*.py")
            if re.search(r"\bConsole\((?!quiet=True)", path.read_text(encoding="utf-8"))}  # fmt: skip
    assert made == set(), "output_console() and errors_console() are there for that"


def test_folders_of_a_page_that_were_handed_over_steer_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    stored(Path("in\x1b]0;box/done"), run())
    (Path("in\x1b]0;box") / "not\x1b[2J\ndone").mkdir()
    (Path("in\x1b]0;box") / "not\x1b[2J\ndone" / "experiment.yaml").write_text("data: {}")
    assert main(["report", "in\x1b]0;box"]) == 0
    said = capsys.readouterr()
    assert said.out == "in\\x1b]0;box/report.html\n"
    assert said.err == "left out, as it has not finished: in\\x1b]0;box/not\\x1b[2J\\ndone\n"


@pytest.fixture
def searched() -> Iterator[None]:
    """Let Python search for objects that nothing refers to, and afterwards search them all."""
    gc.enable()
    yield
    gc.enable()
    gc.unfreeze()


@pytest.mark.usefixtures("searched")
def test_what_is_imported_is_not_searched_then_or_later(monkeypatch: pytest.MonkeyPatch) -> None:
    before = gc.get_freeze_count()
    with importing():
        assert not gc.isenabled()
        monkeypatch.setitem(sys.modules, "new_here", ModuleType("new_here"))
    assert gc.isenabled()
    assert gc.get_freeze_count() > before


@pytest.mark.usefixtures("searched")
def test_where_nothing_was_imported_all_is_searched_later() -> None:
    before = gc.get_freeze_count()
    with pytest.raises(ImportError), importing():
        raise ImportError
    assert gc.isenabled()
    assert gc.get_freeze_count() == before


@pytest.mark.usefixtures("searched")
def test_who_has_no_search_gets_none() -> None:
    gc.disable()
    with importing():
        pass
    assert not gc.isenabled()

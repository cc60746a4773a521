"""The log: who asks for it gets it, an entry a line, and nobody else sees more than without it."""

from __future__ import annotations

import logging
import re
from pathlib import Path

import pytest

from splitvfl.app.log_file import STANDARD_ERROR, LogLevel, logging_to, refused_calls_told
from splitvfl.cli import main

NET = logging.getLogger("splitvfl.net")


def test_an_entry_is_one_line_whatever_is_in_it(tmp_path: Path) -> None:
    path = tmp_path / "party.log"
    with logging_to(path, LogLevel.INFO):
        NET.info("linked with %s", "lab\nERROR splitvfl.net: forged\x1b[2J")
    (line,) = path.read_text(encoding="utf-8").splitlines()
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ INFO splitvfl\.net: linked with .*", line)
    assert line.endswith(r"lab\nERROR splitvfl.net: forged\x1b[2J")
    assert line.isprintable()


def test_what_is_less_severe_is_left_out_and_later_entries_are_appended(tmp_path: Path) -> None:
    path = tmp_path / "party.log"
    for level in (LogLevel.WARNING, LogLevel.INFO):
        with logging_to(path, level):
            NET.info("at %s", level)
            NET.warning("trouble at %s", level)
    said = [line.partition("splitvfl.net: ")[2] for line in path.read_text().splitlines()]
    assert said == ["trouble at warning", "at info", "trouble at info"]


def test_a_renamed_log_is_begun_anew(tmp_path: Path) -> None:
    path = tmp_path / "party.log"
    with logging_to(path, LogLevel.INFO):
        NET.info("one")
        path.rename(tmp_path / "party.log.1")
        NET.info("two")
    assert (tmp_path / "party.log.1").read_text().endswith("one\n")
    assert path.read_text().endswith("two\n")
    assert path.read_text().count("\n") == 1


def test_nothing_is_printed_without_a_log(capfd: pytest.CaptureFixture[str]) -> None:
    NET.warning("links closed")
    assert capfd.readouterr() == ("", "")


def test_the_log_ends_with_its_block(tmp_path: Path) -> None:
    path, logger = tmp_path / "party.log", logging.getLogger("splitvfl")
    before = list(logger.handlers), logger.level
    with logging_to(path, LogLevel.DEBUG):
        pass
    NET.error("after it")
    assert path.read_text() == ""
    assert (logger.handlers, logger.level) == before


def test_commands_log_to_a_file_or_to_standard_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "party.log"
    assert main(["--log", str(path), "list", "attacks"]) == 0
    begins, ends = path.read_text().splitlines()
    assert begins.endswith("INFO splitvfl.cli: begins: list")
    assert ends.endswith("INFO splitvfl.cli: ends with exit code 0")
    assert "INFO" not in capsys.readouterr().err

    assert main(["--log", str(STANDARD_ERROR), "list", "attacks"]) == 0
    assert "INFO splitvfl.cli: begins: list" in capsys.readouterr().err


def test_the_environment_turns_it_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "party.log"
    monkeypatch.setenv("SPLITVFL_LOG", str(path))
    monkeypatch.setenv("SPLITVFL_LOG_LEVEL", "error")
    # Of a mistake its kind is logged; what it says may quote data.
    assert main(["list", "secrets"]) == 2
    (line,) = path.read_text().splitlines()
    assert line.endswith("ERROR splitvfl.cli: ConfigError; what is wrong is said on standard error")


def test_a_log_that_cannot_be_written_is_a_mistake_that_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["--log", str(tmp_path / "nowhere" / "party.log"), "list", "attacks"]) == 2
    assert "cannot write the log" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["splitvfl.net.links", "splitvfl.app.http_server"])
def test_calls_that_are_refused_are_told_on_standard_error(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    links = logging.getLogger(name)
    with refused_calls_told():
        links.warning("refused a call from %s", "ipv4:127.0.0.1:9")
        links.info("nothing to tell")
    links.warning("refused after it")
    assert capsys.readouterr().err == "refused a call from ipv4:127.0.0.1:9\n"

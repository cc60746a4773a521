"""Commands that show what there is."""

from __future__ import annotations

import re
from typing import get_args

import pytest

from splitvfl.cli import main
from splitvfl.config.describing import entry
from splitvfl.config.registry import PluginKind, describe
from splitvfl.config.yaml import Document


def plain(shown: str) -> str:
    return re.sub(r"\x1b\[[0-9;]*m", "", shown)


@pytest.mark.parametrize(("columns", "terminal"), [(80, True), (200, False)])
@pytest.mark.parametrize("kind", [*get_args(PluginKind), "data"])
def test_lists_keep_to_the_terminals_width_up_to_110_columns_and_leave_nothing_out(
    kind: str, columns: int, terminal: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    monkeypatch.setenv("TTY_COMPATIBLE", "1" if terminal else "0")
    assert main(["list", kind]) == 0
    shown = plain(capsys.readouterr().out)
    assert max(map(len, shown.splitlines())) <= min(columns, 110)
    words = " ".join(shown.split())
    for name, summary in describe(kind):
        assert re.search(rf"^ *{name}  ", shown, re.MULTILINE)
        assert summary in words


def test_all_about_a_name_keeps_to_80_columns_and_its_example_is_yaml(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    for kind, name in [
        ("defenses", "multiplicative-laplace-residue"),
        ("penalties", "mutual-information-bottleneck"),
        ("exchanges", "split"),
        ("data", "table"),
    ]:
        assert main(["list", kind, name]) == 0
        shown = plain(capsys.readouterr().out)
        assert max(map(len, shown.splitlines())) <= 80
        written = shown.partition("In an experiment\n")[2].partition("\nMore:")[0]
        assert Document(written, source="shown").tree == Document(entry(kind, name).example, source="whole").tree


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ("attacks GIA", "gradient-inversion: Estimate"),
        ("attacks equation solving", "residue-solving  Score"),
        ("attacks equation solving", "least-squares    Estimate"),
        ("attacks single-feature", "single-column      Reconstruct"),
        ("losses poisson", "model: {name: glm, loss: poisson}"),
        ("defenses nopeek", "splitvfl list penalties distance-correlation"),
        ("defenses SUM_KL", "sumkl: Add the noise"),
    ],
)
def test_list_finds_what_papers_name(words: str, told: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["list", *words.split()]) == 0
    assert told in " ".join(capsys.readouterr().out.split("\n"))


def test_list_of_something_else_is_an_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["list", "defences"]) == 2
    assert "defenses" in capsys.readouterr().err

"""All reproductions by one command: which there are, what is said of each, and what is returned."""

from __future__ import annotations

import importlib
import json
from pathlib import Path

import pytest

from scripts.reproduce import __main__ as everything
from scripts.reproduce.shared.command import Reproduction
from scripts.reproduce.shared.papers import ENTRIES, PAPERS, Entry

FINE = """
(out / "results.json").write_text(json.dumps({
    "claims": [{"verdict": "reproduces"}, {"verdict": "does not"}],
    "missing": {"census": "there is no census.parquet"},
}))
"""


@pytest.fixture
def written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder from which modules ``stub_NAME`` are run in place of the reproductions."""
    monkeypatch.setattr(Entry, "module", property(lambda entry: f"stub_{entry.name}"))
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    return tmp_path


def stub(folder: Path, name: str, body: str, *, checked: bool = False) -> Entry:
    head = "import json, sys\nfrom pathlib import Path\nout = Path(sys.argv[sys.argv.index('--out') + 1])\n"
    (folder / f"stub_{name}.py").write_text(head + body)
    return Entry(name=name, title=name, page=name, checked=checked)


def test_every_package_is_listed_once(checkout: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folders = {path.parent.name for path in (checkout / "scripts" / "reproduce").glob("*/__main__.py")}
    assert sorted(entry.name for entry in ENTRIES) == sorted(folders)

    assert everything.main(["list"]) == 0
    said = capsys.readouterr().out
    assert all(entry.name in said and entry.title in said for entry in ENTRIES)


@pytest.mark.parametrize("entry", PAPERS, ids=lambda entry: entry.name)
def test_entries_say_what_the_packages_do(entry: Entry) -> None:
    reproduction = importlib.import_module(f"{entry.module}.__main__").reproduction

    assert isinstance(reproduction, Reproduction)
    assert reproduction.name == entry.name
    assert reproduction.page == f"{entry.page}.md"
    assert bool(reproduction.proved) == entry.checked


def test_what_was_found_and_left_out_is_said(written: Path) -> None:
    said: list[str] = []

    assert everything.run(stub(written, "fine", FINE), written / "out", quick=True, say=said.append) == 0

    assert said[0].startswith("fine: ")
    assert said[0].endswith("claims measured, on too little data to be judged: 2")
    assert said[1:] == ["    left out: census; there is no census.parquet"]


def test_verdicts_of_a_whole_run_are_counted(written: Path) -> None:
    said: list[str] = []

    assert everything.run(stub(written, "fine", FINE), written / "out", quick=False, say=said.append) == 0

    assert said[0].endswith("2 claims: 1 reproduces, 1 does not")


def test_a_file_in_place_of_the_folder_is_named(written: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (written / "out").write_text("mine")

    assert everything.main(["all", "--only", "hdp_vfl", "--out", str(written / "out")]) == 2

    captured = capsys.readouterr()
    assert f"hdp_vfl: {written / 'out' / 'hdp_vfl'}: expected a folder, or room for one, got a file" in captured.out
    assert captured.err == "hdp_vfl: did not come to its end\n"


def test_options_are_handed_on(written: Path) -> None:
    entry = stub(written, "told", "print(*sys.argv[1:])\n" + FINE)
    everything.run(entry, written, quick=True, say=lambda line: None)
    assert (written / "told" / "log.txt").read_text().split() == ["--out", str(written / "told"), "--quick"]

    checked = Entry(name="told", title="", page="", checked=True)
    everything.run(checked, written, quick=False, say=lambda line: None)
    assert (written / "told" / "log.txt").read_text().split() == ["--out", str(written / "told"), "--check"]


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (FINE + "sys.exit(1)", 1),
        ("sys.exit(1)", 2),  # without results that is no failed check
        (FINE + "sys.exit(2)", 2),
        ("raise RuntimeError('broken')", 2),
        ("pass", 2),
    ],
)
def test_others_run_where_one_fails(
    written: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], body: str, expected: int
) -> None:
    entries = (stub(written, "fails", body, checked=True), stub(written, "fine", FINE))
    monkeypatch.setattr(everything, "ENTRIES", entries)

    assert everything.main(["all", "--quick", "--out", str(written / "out")]) == expected

    captured = capsys.readouterr()
    assert "fine: " in captured.out
    assert "1 of 2 reproductions ran (quick)" in captured.out
    assert captured.err.startswith("fails: ")
    if "broken" in body:
        assert "RuntimeError: broken" in captured.out


def test_only_who_checks_can_fail_a_check(written: Path) -> None:
    entry = stub(written, "raises", FINE + "raise RuntimeError('no page')")

    assert everything.run(entry, written / "out", quick=True, say=lambda line: None) == 2


def test_results_of_an_earlier_run_are_not_taken(written: Path) -> None:
    everything.run(stub(written, "once", FINE), written / "out", quick=True, say=lambda line: None)
    (written / "stub_once.py").write_text("")

    assert everything.run(Entry(name="once", title="", page=""), written / "out", quick=True, say=print) == 2


def test_unknown_reproductions_are_named(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        everything.main(["all", "--only", "hdp_vfl,figure_9"])

    assert "got figure_9" in capsys.readouterr().err


def test_some_can_be_chosen(written: Path, capsys: pytest.CaptureFixture[str]) -> None:
    stub(written, "hdp_vfl", FINE)

    assert everything.main(["all", "--only", "hdp_vfl", "--out", str(written / "out")]) == 0

    assert "1 of 1 reproductions ran" in capsys.readouterr().out
    assert json.loads((written / "out" / "hdp_vfl" / "results.json").read_text())["missing"]

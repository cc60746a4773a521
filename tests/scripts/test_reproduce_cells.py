"""Kept results: what makes one stale, broken or another's, and how one alone is run again."""

from __future__ import annotations

import errno
import gzip
import json
import math
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pytest
from pyarrow.parquet import write_table

from scripts.reproduce import __main__ as everything
from scripts.reproduce.residue_protection import published
from scripts.reproduce.shared import jobs as jobs_module
from scripts.reproduce.shared.claims import Claim
from scripts.reproduce.shared.command import Reproduction
from scripts.reproduce.shared.jobs import Cell, Cells, Job, OneCell, run_jobs
from scripts.reproduce.shared.making import Making
from scripts.reproduce.shared.one_cell import compared
from scripts.reproduce.shared.pages import Section
from scripts.reproduce.shared.published_cells import publish, take_over
from scripts.reproduce.shared.settings import Settings
from splitvfl.data.sets import DATA_FOLDER
from splitvfl.errors import DataError

CODE = dict.fromkeys(("awkward", "double", "burn", "burn_elsewhere", "drawn", "counted"), "1")
DONE: list[int] = []


def double(number: int, seed: int = 0) -> dict[str, Any]:
    DONE.append(number)
    return {"value": 2 * number, "nothing": math.nan}


def burn(seconds: float) -> dict[str, Any]:
    began = time.process_time()
    while time.process_time() - began < seconds:
        pass
    return {}


def burn_elsewhere(seconds: float) -> dict[str, Any]:
    loop = f"import time\nwhile time.process_time() < {seconds}: pass"
    subprocess.run([sys.executable, "-S", "-c", loop], check=True)
    return {}


def drawn(seed: int) -> dict[str, Any]:
    """A figure that is another one each time, as a measured time is."""
    DONE.append(seed)
    return {"values": [1.0, float(len(DONE)), math.nan]}


def awkward() -> dict[str, Any]:
    """What JSON writes otherwise than it stands: keys that are numbers, tuples, infinity."""
    return {"by width": {2: (0.1, math.inf), 10: ()}, "ä": 1e-300}


@pytest.fixture(autouse=True)
def _code(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Code that changes when a test says so."""
    DONE.clear()
    monkeypatch.setattr(jobs_module, "code_of", lambda work: CODE[work.__name__])
    yield
    CODE.update(dict.fromkeys(CODE, "1"))


JOBS = [Job(double, {"number": number, "seed": 0}) for number in (3, 4)]


def kept(folder: Path, job: Job) -> dict[str, Any]:
    content: dict[str, Any] = json.loads(job.place(folder).read_text(encoding="utf-8"))
    return content


# Stale cells


def test_a_cell_holds_settings_seed_code_and_time(tmp_path: Path) -> None:
    run_jobs(JOBS[:1], tmp_path, workers=1)

    content = kept(tmp_path, JOBS[0])
    assert content.pop("seconds") >= 0
    assert content.pop("version")
    assert len(content.pop("sum")) == 16
    assert content == {
        "work": f"{__name__}.double",
        "settings": {"number": 3, "seed": 0},
        "code": "1",
        "result": {"value": 6, "nothing": None},
    }


def test_time_is_cpu_time_of_the_cell(tmp_path: Path) -> None:
    jobs = [Job(burn, {"seconds": seconds}) for seconds in (0.05, 0.2)]
    run_jobs(jobs, tmp_path, workers=1)

    # The clock behind it ticks a hundred times a second, and writing the file is not part of it.
    assert [kept(tmp_path, job)["seconds"] for job in jobs] == pytest.approx([0.05, 0.2], abs=0.04)


def test_time_of_processes_that_a_cell_starts_counts(tmp_path: Path) -> None:
    job = Job(burn_elsewhere, {"seconds": 0.15})
    run_jobs([job], tmp_path, workers=1)

    assert kept(tmp_path, job)["seconds"] >= 0.1


def test_what_is_of_older_code_is_made_anew(tmp_path: Path) -> None:
    said: list[str] = []
    run_jobs(JOBS, tmp_path, workers=1)
    CODE["double"] = "2"

    cells = Cells(tmp_path)
    run_jobs([*JOBS, Job(double, {"number": 5, "seed": 0})], cells, workers=1, say=said.append)
    run_jobs(JOBS, tmp_path, workers=1)

    assert sorted(DONE) == [3, 3, 4, 4, 5]
    assert said[0] == "2 cells are of older code, and are made anew"
    assert not any(cell.stale for cell in cells.used.values())
    assert kept(tmp_path, JOBS[0])["code"] == "2"


def test_what_is_of_older_code_may_be_kept_and_is_known(tmp_path: Path) -> None:
    run_jobs(JOBS[:1], tmp_path, workers=1)
    CODE["double"] = "2"

    cells = Cells(tmp_path, keep_stale=True)
    found = run_jobs(JOBS, cells, workers=1)

    assert DONE == [3, 4]
    assert [result["value"] for result in found] == [6, 8]
    assert [cells.used[job.name].stale for job in JOBS] == [True, False]
    assert kept(tmp_path, JOBS[0])["code"] == "1"


def test_a_cell_of_unknown_code_is_stale(tmp_path: Path) -> None:
    run_jobs(JOBS[:1], tmp_path, workers=1)
    content = kept(tmp_path, JOBS[0])
    del content["code"], content["seconds"]  # as they were before
    JOBS[0].place(tmp_path).write_text(json.dumps(content))

    cells = Cells(tmp_path, keep_stale=True)
    run_jobs(JOBS[:1], cells, workers=1)

    (cell,) = cells.used.values()
    assert cell.stale
    assert math.isnan(cell.seconds)


# Broken cells, and others'


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "half a cell, or none"),
        ('{"work": "x", "ver', "half a cell, or none"),
        ("[1, 2]", "half a cell, or none"),
        ("null", "half a cell, or none"),
        ('{"result": {"value": 6}}', "half a cell, or none"),
        (b"\xff\xfe", "cannot be read"),
    ],
)
@pytest.mark.parametrize("keep_stale", [False, True])
def test_a_broken_cell_is_an_error_that_names_it(
    tmp_path: Path, text: str | bytes, said: str, keep_stale: bool
) -> None:
    place = JOBS[0].place(tmp_path)
    place.write_bytes(text if isinstance(text, bytes) else text.encode())

    with pytest.raises(DataError, match=said) as raised:
        run_jobs(JOBS, Cells(tmp_path, keep_stale=keep_stale), workers=1)

    assert str(place) in str(raised.value)
    assert DONE == []


@pytest.mark.parametrize(
    "changed", [{"version": "0.0.1"}, {"work": "elsewhere.double"}, {"settings": {"number": 4, "seed": 0}}]
)
def test_another_cell_under_this_name_is_an_error(tmp_path: Path, changed: dict[str, Any]) -> None:
    run_jobs(JOBS[:1], tmp_path, workers=1)
    JOBS[0].place(tmp_path).write_text(json.dumps({**kept(tmp_path, JOBS[0]), **changed}))

    with pytest.raises(DataError, match="not the cell that its name says; delete it"):
        run_jobs(JOBS[:1], tmp_path, workers=1)


@pytest.mark.parametrize("keep_stale", [False, True])
def test_a_result_that_was_changed_is_an_error(tmp_path: Path, keep_stale: bool) -> None:
    run_jobs(JOBS[:1], tmp_path, workers=1)
    place = JOBS[0].place(tmp_path)
    place.write_text(place.read_text().replace('"value": 6', '"value": 7'))

    with pytest.raises(DataError, match="its result was changed since it was made; delete it") as raised:
        run_jobs(JOBS[:1], Cells(tmp_path, keep_stale=keep_stale), workers=1)
    assert str(place) in str(raised.value)

    content = kept(tmp_path, JOBS[0])
    del content["sum"]  # as they were before
    place.write_text(json.dumps(content))
    assert run_jobs(JOBS[:1], tmp_path, workers=1)[0]["value"] == 7


def test_keys_and_figures_are_the_same_after_reading(tmp_path: Path) -> None:
    job = Job(awkward, {})

    assert run_jobs([job], tmp_path, workers=1) == run_jobs([job], tmp_path, workers=1)


def test_cells_of_another_version_are_neither_used_nor_lost(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(jobs_module, "__version__", "0.0.1")
        run_jobs(JOBS[:1], tmp_path, workers=1)

    cells = Cells(tmp_path, keep_stale=True)
    run_jobs(JOBS[:1], cells, workers=1)

    assert DONE == [3, 3]
    assert cells.unused == 1
    assert len(list(tmp_path.iterdir())) == 2


def test_what_an_interrupted_run_left_behind_does_not_count(tmp_path: Path) -> None:
    (tmp_path / f".{JOBS[0].name}.json.123.part").write_text('{"work": ')

    cells = Cells(tmp_path)
    assert run_jobs(JOBS[:1], cells, workers=1)[0]["value"] == 6
    assert cells.unused == 0


def test_a_label_tells_what_is_in_the_settings() -> None:
    problem = {"source": "bank", "variant": "text", "rows": 5}
    settings = {"problem": problem, "defense": {"label": "sumkl"}, "seed": 3, "flip": True, "widths": [1, 2]}

    assert Job(double, settings).label == "double, bank text, sumkl, flip True, seed 3"


# One cell alone


def sections(settings: Settings) -> list[Section]:
    first = run_jobs([Job(double, {"number": 1, "seed": seed}) for seed in range(2)], settings.jobs, workers=1)
    second = run_jobs([Job(drawn, {"seed": int(result["value"])}) for result in first[:1]], settings.jobs, workers=1)
    settings.leave_out("census", Path("/there/census.parquet"))
    claim = Claim.of([float(len(second))], claim="all is well", holds=True, why="it is")
    return [Section(title="One", body="Text.", claims=[claim])]


@pytest.fixture
def reproduction(tmp_path: Path) -> Reproduction:
    template = tmp_path / "template.md"
    template.write_text("# A page\n\n{settings}\n\n{sections}\n")
    return Reproduction(
        name="small",
        parts={"one": sections, "two": lambda settings: []},
        template=template,
        page="small.md",
        settings_table=lambda settings: f"| {run_jobs(JOBS[:1], settings.jobs, workers=1)[0]['value']} |",
        quick="at once",
    )


def run(reproduction: Reproduction, out: Path, *arguments: str) -> int:
    return reproduction.main(["--out", str(out), *arguments])


def cells_of(out: Path) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads((out / "results.json").read_text())["cells"]
    return found


def test_results_name_every_cell_by_part(reproduction: Reproduction, tmp_path: Path) -> None:
    assert run(reproduction, tmp_path / "out") == 0

    assert [(cell["part"], cell["label"], cell["stale"]) for cell in cells_of(tmp_path / "out")] == [
        ("one", "double, number 1, seed 0", False),
        ("one", "double, number 1, seed 1", False),
        ("one", "drawn, seed 2", False),
        (None, "double, number 3, seed 0", False),
    ]
    names = {path.stem for path in (tmp_path / "out" / "jobs").iterdir()}
    assert {cell["name"] for cell in cells_of(tmp_path / "out")} == names


def test_one_cell_is_run_again_and_compared(
    reproduction: Reproduction, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    run(reproduction, out)
    page = (out / "small.md").read_text()
    names = {cell["label"]: cell["name"] for cell in cells_of(out)}
    DONE.clear()

    assert run(reproduction, out, "--only", f"one:{names['double, number 1, seed 1']}") == 0
    assert DONE == [1]
    assert "the same as was kept, which was of the same code" in capsys.readouterr().out

    assert run(reproduction, out, "--only", "one:drawn, seed 2") == 1
    said = capsys.readouterr().out
    assert "differ from what was kept, which was of the same code: 1; kept → now" in said
    assert "values[1]: 3.0 → 2.0" in said
    assert (out / "small.md").read_text() == page


@pytest.mark.parametrize(("kept", "now", "differ"), [(math.nan, 1.0, 1), (1.0, math.nan, 1), (math.nan, math.nan, 0)])
def test_what_is_no_number_differs_from_every_number(kept: float, now: float, differ: int) -> None:
    before, after = (Cell("drawn-1", "drawn", {"mean": [value]}, 1.0, stale=False) for value in (kept, now))
    said: list[str] = []
    assert compared(OneCell(Job(drawn, {"seed": 1}), before, after), said.append) == differ
    assert said[3:] == [f"    mean[0]: {kept} → {now}"] * differ


def test_one_cell_of_older_code_is_compared_too(
    reproduction: Reproduction, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run(reproduction, tmp_path / "out")
    CODE["double"] = "2"

    assert run(reproduction, tmp_path / "out", "--only", "one:double, number 1, seed 0") == 0

    assert "the same as was kept, which was of older code" in capsys.readouterr().out
    assert [cell.stale for cell in _used(tmp_path / "out")] == [False, True]


def _used(out: Path) -> Sequence[Cell]:
    cells = Cells(out / "jobs", keep_stale=True)
    run_jobs([Job(double, {"number": 1, "seed": seed}) for seed in range(2)], cells, workers=1)
    return list(cells.used.values())


def test_one_of_the_first_cells_can_be_run_before_anything_is_kept(
    reproduction: Reproduction, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(reproduction, tmp_path / "out", "--only", "one:double, number 1, seed 1") == 0

    assert DONE == [1]
    assert "nothing was kept of it before" in capsys.readouterr().out


def test_a_cell_that_does_not_exist_is_named(
    reproduction: Reproduction, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    assert run(reproduction, out, "--only", "one:nothing") == 2
    assert "there is no cell 'nothing' among the 2 that come first" in capsys.readouterr().err
    run(reproduction, out)
    DONE.clear()

    assert run(reproduction, out, "--only", "one:nothing") == 2
    said = capsys.readouterr().err
    assert "one has no cell 'nothing'; there are: double-" in said
    assert "(drawn, seed 2)" in said
    assert run(reproduction, out, "--only", "two:nothing") == 2
    assert "two has no cell 'nothing'; there are: none" in capsys.readouterr().err
    assert DONE == []


def test_a_label_of_several_cells_is_refused(tmp_path: Path) -> None:
    # What is no plain figure is not in a label.
    jobs = [Job(double, {"number": 1, "seed": 0, "widths": widths}) for widths in ([1], [2])]

    with pytest.raises(DataError, match=r"2 cells are called 'double, number 1, seed 0'; give one of: double-"):
        run_jobs(jobs, Cells(tmp_path, alone=jobs[0].label), workers=1)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--only", "three:x"], "got three"),
        (["--only", "one,two:x"], "expected one part and the name of a cell"),
        (["--only", "one:"], "expected one part and the name of a cell"),
        (["--only", "one:x", "--page", "docs"], "a page is not made of one cell"),
    ],
)
def test_bad_choices_are_refused(
    reproduction: Reproduction,
    tmp_path: Path,
    arguments: list[str],
    message: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(SystemExit):
        run(reproduction, tmp_path, *arguments)

    assert message in capsys.readouterr().err


def test_a_broken_cell_ends_the_command_in_one_line(
    reproduction: Reproduction, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run(reproduction, tmp_path / "out")
    place = next((tmp_path / "out" / "jobs").glob("drawn-*"))
    place.write_text(place.read_text()[:40])

    assert run(reproduction, tmp_path / "out") == 2

    assert capsys.readouterr().err == f"small: {place}: half a cell, or none; delete it, and it is made anew\n"


# Cells beside their page


def counted(file: str) -> dict[str, Any]:
    DONE.append(1)
    return {"value": 1.0, "nothing": math.nan}


@pytest.fixture
def published_file(tmp_path: Path) -> tuple[Cells, Path]:
    cells = Cells(tmp_path / "first")
    run_jobs([Job(counted, {"file": f"/here/data/{name}.csv"}) for name in "ab"], cells, workers=1)
    path = tmp_path / "page" / "cells.jsonl.gz"
    publish(cells, path, data=Path("/here/data"))
    return cells, path


def test_published_cells_have_no_path_of_a_machine_and_a_run_goes_on_from_them(
    published_file: tuple[Cells, Path], tmp_path: Path
) -> None:
    lines = gzip.decompress(published_file[1].read_bytes()).decode().splitlines()
    assert [json.loads(line)["settings"]["file"] for line in lines] == ["{data}/a.csv", "{data}/b.csv"]
    there, said = Cells(tmp_path / "second"), list[str]()
    jobs = [Job(counted, {"file": f"/there/{name}.csv"}) for name in "ab"]
    run_jobs(jobs[:1], there, workers=1)
    DONE.clear()

    take_over(published_file[1], there, data=Path("/there"), say=said.append)

    assert said == ["1 cells of cells.jsonl.gz are taken over; 1 others were there already"]
    assert [result["value"] for result in run_jobs(jobs, there, workers=1)] == [1.0, 1.0]
    assert DONE == []


def test_published_cells_of_older_code_are_made_anew(published_file: tuple[Cells, Path], tmp_path: Path) -> None:
    there = Cells(tmp_path / "second")
    take_over(published_file[1], there, data=Path("/there"), say=print)
    CODE["counted"] = "2"
    DONE.clear()

    run_jobs([Job(counted, {"file": "/there/a.csv"})], there, workers=1)

    assert DONE == [1]


def test_the_same_cells_are_published_as_the_same_bytes(published_file: tuple[Cells, Path]) -> None:
    cells, path = published_file
    before = path.read_bytes()
    cells.used = dict(reversed(cells.used.items()))

    publish(cells, path, data=Path("/here/data"))

    assert path.read_bytes() == before


def test_cells_of_data_elsewhere_are_not_published(published_file: tuple[Cells, Path], tmp_path: Path) -> None:
    with pytest.raises(DataError, match="names a file outside /home/data"):
        publish(published_file[0], tmp_path / "other.gz", data=Path("/home/data"))

    assert not (tmp_path / "other.gz").exists()


def packed(text: bytes) -> bytes:
    # The time of day, which gzip writes in, would be another one in every process that collects tests.
    return gzip.compress(text, mtime=0)


@pytest.mark.parametrize(
    "content",
    [
        pytest.param(b"", id="nothing"),
        pytest.param(b"no gzip", id="no gzip"),
        pytest.param(packed(b"no json\n"), id="no json"),
        pytest.param(packed(b"[1]\n"), id="a list"),
        pytest.param(packed(b'{"work": 3, "version": "1", "settings": {}}\n'), id="a number for a function"),
        pytest.param(packed(b'{"work": "double", "version": "1"}\n'), id="no settings"),
        pytest.param(packed(b'{"work": "double", "version": "1", "settings": {}}\n')[:-9], id="cut off"),
        pytest.param(packed(b"\xff\n"), id="no text"),
        pytest.param(packed(b'{"work": "a/../../b", "version": "1", "settings": {}}\n'), id="a path"),
    ],
)
def test_what_is_no_file_of_cells_is_refused(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "cells.gz"
    path.write_bytes(content)

    with pytest.raises(DataError, match=r"cells\.gz: not a file of published cells"):
        take_over(path, Cells(tmp_path / "out"), data=tmp_path, say=print)

    assert not (tmp_path / "out").exists()


def test_a_page_is_made_of_its_published_cells(
    reproduction: Reproduction, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    publishing = replace(reproduction, publishes_cells=True)
    pages = tmp_path / "pages"
    run(publishing, tmp_path / "out", "--page", str(pages))
    page = (pages / "small.md").read_text()
    assert "The cells lie in [cells/small.jsonl.gz](cells/small.jsonl.gz)" in page
    DONE.clear()

    assert run(publishing, tmp_path / "again", "--begin-with", str(pages / "cells" / "small.jsonl.gz")) == 0

    assert DONE == []
    assert (tmp_path / "again" / "small.md").read_text() == page
    assert run(publishing, tmp_path / "third", "--begin-with", str(tmp_path / "nothing.gz")) == 2
    assert "nothing.gz: not a file of published cells" in capsys.readouterr().err


# Folders that cannot be written in


@pytest.mark.parametrize("option", ["--out", "--page"])
@pytest.mark.parametrize("below", ["", "folder"])
def test_a_file_in_place_of_a_folder_is_named_before_anything_is_run(
    reproduction: Reproduction, tmp_path: Path, option: str, below: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("mine")
    given = tmp_path / "file" / below

    # Of an option that is given twice the last counts.
    assert run(reproduction, tmp_path / "out", option, str(given)) == 2

    assert capsys.readouterr().err == (
        f"small: {given}: expected a folder, or room for one, got a file there or above it\n"
    )
    assert DONE == []
    assert (tmp_path / "file").read_text() == "mine"


def test_a_folder_without_permission_is_named(
    reproduction: Reproduction, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refused(**given: Any) -> None:
        raise PermissionError(errno.EACCES, "Permission denied")

    # Permissions of a folder would not keep root from writing.
    monkeypatch.setattr(tempfile, "TemporaryFile", refused)

    assert run(reproduction, tmp_path / "out") == 2

    assert capsys.readouterr().err == f"small: {tmp_path / 'out'}: cannot be written in (Permission denied)\n"
    assert DONE == []


def test_a_disk_that_is_full_ends_the_command_in_one_line_and_keeps_what_is_done(
    reproduction: Reproduction, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    write = Path.write_bytes

    def full(path: Path, content: bytes) -> int:
        if "drawn" in path.name:
            raise OSError(errno.ENOSPC, "No space left on device")
        return write(path, content)

    monkeypatch.setattr(Path, "write_bytes", full)

    assert run(reproduction, tmp_path / "out") == 2

    assert capsys.readouterr().err.endswith(".json: cannot be written (No space left on device)\n")
    assert sorted(path.name.partition("-")[0] for path in (tmp_path / "out" / "jobs").iterdir()) == ["double"] * 2


def test_an_interrupted_run_says_so_and_goes_on(
    reproduction: Reproduction, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(seed: int) -> dict[str, Any]:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setitem(globals(), "drawn", interrupted)
        CODE["interrupted"] = "1"
        assert run(reproduction, tmp_path / "out") == 130
    assert capsys.readouterr().err == ("small: interrupted; what is finished is kept, and the same command goes on\n")
    assert DONE == [1, 1]
    assert not (tmp_path / "out" / "results.json").exists()

    assert run(reproduction, tmp_path / "out") == 0
    assert DONE == [1, 1, 2, 3]


@pytest.mark.parametrize("what", ["jobs is a file", "a cell is a folder"])
def test_what_is_no_cell_is_named(
    reproduction: Reproduction, tmp_path: Path, what: str, capsys: pytest.CaptureFixture[str]
) -> None:
    jobs = tmp_path / "out" / "jobs"
    if what == "jobs is a file":
        jobs.parent.mkdir()
        jobs.write_text("mine")
    else:
        Job(double, {"number": 1, "seed": 0}).place(jobs).mkdir(parents=True)

    assert run(reproduction, tmp_path / "out") == 2

    said = capsys.readouterr().err
    assert said.startswith(f"small: {jobs}")
    assert "cannot be read" in said
    assert said.count("\n") == 1
    assert DONE == []


# One cell by its file


@pytest.fixture
def described(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file of a cell whose function lies where those of cells do."""
    monkeypatch.setattr(jobs_module, "code_of", lambda work: "1")
    problem = {"key": "small", "title": "small", "source": "breast", "scaling": "standardised"}
    job = Job(step_scale, {"problem": problem, "number": 3})
    monkeypatch.setattr(published, "step_scale", step_scale, raising=False)
    run_jobs([job], tmp_path, workers=1)
    return job.place(tmp_path)


def step_scale(problem: dict[str, Any], number: int) -> dict[str, Any]:
    return {"value": 2 * number, "of": problem["key"]}


# As if it had been written there.
step_scale.__module__ = published.__name__


def test_a_file_is_run_again(described: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert everything.main(["cell", str(described)]) == 0
    assert "the same as was kept" in capsys.readouterr().out

    content = json.loads(described.read_text())
    del content["sum"]
    described.write_text(json.dumps({**content, "result": {"value": 5, "of": "small"}}))
    assert everything.main(["cell", str(described)]) == 1
    assert "value: 5 → 6" in capsys.readouterr().out
    assert json.loads(described.read_text())["result"]["value"] == 6


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"work": "os.system"}, "there is no function os.system that cells are run by"),
        ({"work": f"{published.__name__}.gone"}, "there is no function"),
        ({"work": "scripts.reproduce.gone.study.work"}, "there is no function"),
        ({"work": 3}, "half a cell, or none"),
        ({"version": "0.0.1"}, "of version 0.0.1, not "),
        ({"settings": {"problem": {}, "number": 1}}, "not the cell that its name says"),
        ({"settings": None}, "half a cell, or none"),
    ],
)
def test_files_that_are_no_cells_are_not_run(
    described: Path, changed: dict[str, Any], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    described.write_text(json.dumps({**json.loads(described.read_text()), **changed}))
    before = described.read_text()

    assert everything.main(["cell", str(described)]) == 2

    assert said in capsys.readouterr().err
    assert described.read_text() == before


def test_a_file_that_is_not_there_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert everything.main(["cell", str(tmp_path / "train-1.json")]) == 2
    assert "No such file" in capsys.readouterr().err


# What the page says


def test_the_page_says_what_it_is_made_of(reproduction: Reproduction, tmp_path: Path) -> None:
    out = tmp_path / "out"
    run(reproduction, out, "--seeds", "2")

    page = (out / "small.md").read_text()
    made = page[page.index("## How this page was made") :]
    assert "- 4 cells, runs that are kept with settings, seed and code: 0 s of CPU time in all." in made
    assert "- No cell is of older code than the page." in made
    assert "- **Without rows of census**: there was no `census.parquet` among the data files." in made
    assert "/there" not in made
    assert "quick" not in made
    assert "Without these parts" not in made


def test_a_page_elsewhere_brings_the_overview_along(reproduction: Reproduction, tmp_path: Path) -> None:
    pages = tmp_path / "docs"
    run(reproduction, tmp_path / "out", "--page", str(pages))

    assert (pages / "small.md").read_text() == (tmp_path / "out" / "small.md").read_text()
    assert (pages / "index.md").read_text().startswith("# What reproduces, claim by claim")
    assert not (tmp_path / "out" / "index.md").exists()


def test_the_page_marks_what_is_of_older_code(reproduction: Reproduction, tmp_path: Path) -> None:
    out = tmp_path / "out"
    run(reproduction, out)
    CODE["drawn"] = "2"

    run(reproduction, out, "--keep-stale", "--quick", "--only", "one")

    page = (out / "small.md").read_text()
    (name,) = (cell["name"] for cell in cells_of(out) if cell["stale"])
    assert f"- **1 of 4 cells are of older code than the page**: `{name}` (drawn, seed 2)." in page
    assert "**A quick run on little data**" in page
    assert "**Without these parts**, which were not asked for: two." in page

    run(reproduction, out)
    assert "older code than the page**" not in (out / "small.md").read_text()


def test_many_stale_cells_are_counted_by_what_they_do() -> None:
    stale = [Cell(f"measure-{number}", "", {}, 1000.0, stale=True) for number in range(20)]
    cells = [*stale, Cell("train-1", "", {}, math.nan, stale=True), Cell("train-2", "", {}, 4.0, stale=False)]

    body = Making(cells={"one": cells}, missing={}).body()

    assert "**21 of 22 cells are of older code than the page**: 20 of `measure`, 1 of `train`; `results.json`" in body
    # 20 004 s; of one cell nobody knows.
    assert "22 cells, runs that are kept with settings, seed and code: 5.6 hours of CPU time in all (not " in body
    assert "measured for 1 of them)" in body


@pytest.mark.parametrize("name", ["census.parquet", "digits.npz"])
def test_half_a_file_of_data_is_an_error_and_not_missing(tmp_path: Path, name: str) -> None:
    whole, half = tmp_path / name, tmp_path / f"half-{name}"
    if name.endswith(".npz"):
        np.savez(whole, x=np.zeros(100))
    else:
        write_table(pyarrow.table({"x": range(100)}), whole)
    half.write_bytes(whole.read_bytes()[:200])
    said: list[str] = []
    settings = Settings(out=tmp_path, say=said.append)

    assert settings.has("whole", whole)
    with pytest.raises(DataError, match=re.escape(f"{half}: cannot be read: ")):
        settings.has("half", half)
    assert not settings.missing
    assert not settings.has("none", tmp_path / "no.parquet")
    assert settings.missing == {"none": "no.parquet"}
    assert len(said) == 1


def test_a_folder_of_data_is_not_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(DATA_FOLDER, str(tmp_path))
    said: list[str] = []
    settings = Settings(out=tmp_path, say=said.append)

    for _ in range(2):
        settings.leave_out("census", tmp_path / "census.parquet")

    assert settings.missing == {"census": "census.parquet"}
    assert len(said) == 1
    assert replace(settings).missing == {}
    assert os.fspath(tmp_path) in said[0]

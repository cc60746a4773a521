"""The demonstration of three companies runs, and docs/network.md says what it does, word for word."""

from __future__ import annotations

import csv
import re
import subprocess
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from splitvfl.app.network_demo import (
    _COMMAND,
    ACTIVE,
    CERTS,
    EXPERIMENT,
    EXPERIMENTS,
    FILES,
    ID_COLUMNS,
    NEW_RECORDS,
    PARTIES,
    RUN,
    SCORES,
    align_command,
    party_command,
    predict_command,
    prepare,
)
from splitvfl.cli import main
from tests.commands import Command


@pytest.fixture(scope="module")
def page(checkout: Path) -> str:
    return (checkout / "docs" / "network.md").read_text()


def rows_of(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


@pytest.mark.slow(reason="four commands of three companies, one of them killed")
def test_the_demonstration_goes_through(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def popen(words: list[str], *, cwd: Path, **options: Any) -> Command:
        assert words[: len(_COMMAND)] == _COMMAND
        return Command(words[len(_COMMAND) :], cwd)

    def run(words: list[str], *, cwd: Path, check: bool, stdout: int) -> None:
        assert check
        command = popen(words, cwd=cwd)
        _, complaints = command.communicate(timeout=60)
        assert command.returncode == 0, complaints

    names = {name: getattr(subprocess, name) for name in ("PIPE", "DEVNULL", "TimeoutExpired")}
    monkeypatch.setattr("splitvfl.app.network_demo.subprocess", SimpleNamespace(Popen=popen, run=run, **names))

    code = main(["demo", "--network", "--quick", "--out", str(tmp_path / "three")])

    done = capsys.readouterr()
    assert code == 0, done.out + done.err
    assert re.search(
        r"-- kill -9: the lab is gone.*lab\$ splitvfl party.*lab +\| going on from step \d+", done.out, re.S
    )
    assert re.search(r"verdict +(ABOVE|BELOW) GOAL|verdict +INCONCLUSIVE", done.out)
    # Who is scored is known from the files alone: the new records that all three have.
    held = [{row[ID_COLUMNS[party]] for row in rows_of(tmp_path / "three" / party / NEW_RECORDS)} for party in PARTIES]
    scores = rows_of(tmp_path / "three" / ACTIVE / SCORES)
    assert {row["patient"] for row in scores} == set.intersection(*held)
    assert all(0 <= float(row["score"]) <= 1 for row in scores)
    assert not any((tmp_path / "three" / party / SCORES).exists() for party in PARTIES if party != ACTIVE)


def test_each_party_holds_other_records_in_another_order(tmp_path: Path) -> None:
    prepare(tmp_path / "three")
    ids = {
        party: [row[ID_COLUMNS[party]] for row in rows_of(tmp_path / "three" / party / FILES[party])]
        for party in PARTIES
    }
    common = set.intersection(*map(set, ids.values()))

    assert all(common < set(held) for held in ids.values())
    orders = [[one for one in held if one in common] for held in ids.values()]
    assert orders[0] != orders[1] != orders[2] != orders[0]


def test_only_the_active_party_has_labels(tmp_path: Path) -> None:
    prepare(tmp_path / "three")
    having = {
        path.relative_to(tmp_path / "three").as_posix()
        for path in (tmp_path / "three").rglob("*.csv")
        if "malignant" in path.read_text()
    }

    assert having == {"clinic/patients.csv"}


def test_a_folder_of_somebody_elses_is_left_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "thesis.tex").touch()

    assert main(["demo", "--network", "--out", str(tmp_path)]) == 2
    assert "--out" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]


def test_the_page_shows_the_files_that_are_made(page: str) -> None:
    shown = dict(re.findall(r"```yaml\n# (\w+)/tumour\.yaml\n(.*?)```", page, re.DOTALL))

    assert shown == EXPERIMENTS


def test_the_pages_commands_are_those_of_the_demonstration(page: str) -> None:
    written = [line for block in re.findall(r"```bash\n(.*?)```", page, re.DOTALL) for line in block.splitlines()]
    commands = [line for line in written if line.startswith("splitvfl ")]
    trained = [party_command(party) for party in PARTIES]
    scored = [command for party in PARTIES for command in (align_command(party, new=True), predict_command(party))]

    assert commands == [
        "splitvfl examples companies --out runs",
        CERTS,
        *(align_command(party) for party in PARTIES),
        *trained,
        party_command("lab"),  # after it was killed
        f"splitvfl report {RUN.format(ACTIVE)}",
        *scored,
    ]
    assert f'pkill -9 -f "{party_command("lab")}"' in written
    assert f"tensorboard --logdir {RUN.format(ACTIVE)}" in written


def test_files_of_the_demonstration_lie_where_commands_look_for_them(tmp_path: Path) -> None:
    prepare(tmp_path / "three")

    for party in PARTIES:
        assert (tmp_path / "three" / party / EXPERIMENT).read_text() == EXPERIMENTS[party]
        assert f"splitvfl align {FILES[party]} " in align_command(party)
        assert (tmp_path / "three" / party / FILES[party]).exists()

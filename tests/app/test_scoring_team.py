"""Records that are scored by several workers of each party: the scores of one process, in one file, counted once."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import torch

from splitvfl.app.scoring_team import (
    TeamTally,
    check_defended_by_workers,
    check_scored_by_workers,
    own_file,
    records_of_team,
)
from splitvfl.cli import main
from splitvfl.data.columns import Columns, PartyData, Records
from splitvfl.data.new_records import NewRecords
from splitvfl.defenses import GaussianIR
from splitvfl.errors import ConfigError, DataError, LimitError, PrivacyError, TeamError
from splitvfl.party.attaching import attach_defense
from splitvfl.team.team import Alone
from tests.app.test_serving import COMMON, FILES, config, halves, in_one_process, write_files
from tests.builders import passive_party
from tests.commands import Command
from tests.run.parties import free_ports, neighbouring_ports

WORKERS = 2


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Both parties' files and halves, and new records in one file and in a file for each worker."""
    place = tmp_path_factory.mktemp("scoring")
    write_files(place)
    port = neighbouring_ports(WORKERS)
    for name, text in FILES.items():
        text = f"{text}{COMMON}team: {{workers: {WORKERS}}}\nprediction: {{per_record: 1}}\n"
        if name == "bank":
            text = text.replace("prediction: {per_record: 1}\n", "")
        (place / f"{name}.yaml").write_text(text.replace("ADDRESS", f'"127.0.0.1:{port}+"'))
        new = pd.read_csv(place / f"{name}-new.csv")
        for worker, rows in enumerate((slice(0, 23), slice(23, None))):
            new[rows].to_csv(place / f"{name}-new-{worker}.csv", index=False)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(place)
        halves("bank", "telecom")
    shutil.copytree(place / "runs", place / "others")
    return place


def worker_of(root: Path, folder: Path, words: list[str], rank: int, meets: int) -> Command:
    variables = {"RANK": rank, "WORLD_SIZE": WORKERS, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": meets}
    found = {key: str(value) for key, value in variables.items()}
    return Command(words, folder, COLUMNS="300", PYTHONPATH=str(root), **found)


def score(
    root: Path, folder: Path, records: str, *, runs: str = "runs", out: str = "scores.csv", in_vain: str = ""
) -> dict[str, str]:
    """Score as two parties of two workers each, and return what each said.

    A worker that waits ``in_vain`` for one that ended before it listened is killed when its partners have ended.
    """
    started = {}
    # Who listens is started first: who dials too early waits before it dials again.
    for name, meets in zip(reversed(FILES), free_ports(len(FILES)), strict=True):
        given = ["--records", records.replace("NAME", name), "--model", f"{runs}/{name}/model"]
        more = ["--out", out] if name == "bank" else []
        for rank in reversed(range(WORKERS)):
            words = ["predict", f"{name}.yaml", "--as", name, *given, *more]
            started[f"{name} {rank}"] = worker_of(root, folder, words, rank, meets)
    said = {}
    for who, one in started.items():
        if who == in_vain:
            one.kill()
        result, errors = one.communicate(timeout=120)
        said[who] = f"{one.returncode} {' '.join((result + errors).split())}"
    return said


def check_scores(file: Path) -> None:
    """Compare scores with those of one process."""
    found = pd.read_csv(file)
    assert found["customer"].tolist() == [f"c{number}" for number in range(300, 360)]
    # Batches of other sizes: rounding differs.
    np.testing.assert_allclose(found["score"].to_numpy(np.float32), in_one_process(file.parent / "runs"), atol=1e-6)


def test_workers_score_what_one_process_scores_in_one_file_and_count_it_once(
    folder: Path, checkout: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)
    said = score(checkout, folder, "NAME-new.csv")
    assert {words[0] for words in said.values()} == {"0"}, said
    assert "bank: 60 records scored; the scores are in scores.csv" in said["bank 0"]
    assert "records scored" not in said["bank 1"]
    check_scores(folder / "scores.csv")

    again = score(checkout, folder, "NAME-new.csv", out="again.csv", in_vain="bank 1")
    assert [again[who][0] for who in ("bank 0", "telecom 0", "telecom 1")] == ["2"] * 3, again
    assert "per_record" in again["telecom 0"]
    assert "worker 0 of telecom" in again["telecom 1"]
    assert not (folder / "again.csv").exists()


@pytest.mark.slow(reason="four processes")
def test_records_in_a_file_of_each_worker_get_the_same_scores(
    folder: Path, checkout: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)
    said = score(checkout, folder, "NAME-new-{worker}.csv", runs="others", out="apart.csv")
    assert {words[0] for words in said.values()} == {"0"}, said
    check_scores(folder / "apart.csv")


class Worker(Alone):
    """One of two workers, in a test of what it does alone."""

    size = WORKERS

    def __init__(self, rank: int) -> None:
        super().__init__()
        self.rank, self.collected = rank, 0

    def collect(self, content: bytes) -> list[bytes]:
        self.collected += 1
        return [content] * WORKERS


def scored(real: list[bool]) -> NewRecords:
    count = len(real)
    held = Records(torch.arange(count), Columns.of(torch.arange(count)[:, None].float()), real=torch.tensor(real))
    names = pa.array([f"r{place}" for place in range(count) if real[place]])
    return NewRecords(PartyData("bank", ("x",), ("x",), (), held, held), "name", names, unknown={})


def test_dummies_have_no_names_in_any_part() -> None:
    whole = scored([True, False, True, True, False, True, False])
    parts = [records_of_team(whole, Worker(rank), apart=False) for rank in range(WORKERS)]
    assert [part.own.data.test.ids.tolist() for part in parts] == [[0, 1, 2], [3, 4, 5, 6]]
    assert [part.own.names.to_pylist() for part in parts] == [["r0", "r2"], ["r3", "r5"]]
    assert [(part.names.to_pylist(), part.parts) for part in parts] == [(whole.names.to_pylist(), 7)] * 2


class Counted:
    def __init__(self, *, most: int) -> None:
        self.begun, self._most = 0, most

    def begin(self) -> None:
        self.begun += 1
        if self.begun > self._most:
            raise LimitError("no more")

    def leaving(self, records: int) -> None: ...


def test_records_are_counted_before_any_part_leaves_and_once_however_often_a_worker_begins() -> None:
    team, counted = Worker(0), Counted(most=1)
    tally = TeamTally(team, 5, counted)
    with pytest.raises(PrivacyError, match="0 of them are counted"):
        tally.leaving(1)
    for _ in range(2):
        tally.begin()
        tally.leaving(3)
        with pytest.raises(PrivacyError, match="parts of 3 records were to leave, and 2 of them are counted"):
            tally.leaving(3)
    assert (counted.begun, team.collected) == (1, 2)
    with pytest.raises(LimitError):
        TeamTally(team, 5, Counted(most=0)).begin()
    assert team.collected == 3, "the others hear that it failed, and not that it is counted"


def test_nothing_is_counted_before_all_workers_have_agreed_with_their_partners() -> None:
    class Refused(Worker):
        def collect(self, content: bytes) -> list[bytes]:
            raise TeamError("worker 1 of telecom: telecom and bank do not agree")

    counted = Counted(most=1)
    with pytest.raises(TeamError):
        TeamTally(Refused(0), 5, counted).begin()
    assert counted.begun == 0


def test_workers_with_other_settings_do_not_score_together(folder: Path, checkout: Path) -> None:
    """Half of the records would leave without their defense, say, and nobody would know."""
    (meets,) = free_ports(1)
    command = ["predict", "telecom.yaml", "--as", "telecom", "--records", "telecom-new.csv"]
    started = [
        worker_of(checkout, folder, [*command, "--model", "runs/telecom/model", *more], rank, meets)
        for rank, more in enumerate(([], ["defenses=[]"]))
    ]
    for one in started:
        errors = " ".join(one.communicate(timeout=120)[1].split())
        assert one.returncode == 2
        assert "workers 0 and 1 of telecom do not have the same: defenses: " in errors


def test_records_of_several_files_have_names_of_their_own() -> None:
    class Both(Worker):
        def gather(self, tensor: torch.Tensor) -> list[torch.Tensor]:
            return [tensor, tensor]

    team = Both(0)
    with pytest.raises(DataError, match="in the files of two workers"):
        records_of_team(scored([True, True]), team, apart=True)
    assert team.collected == 1, "the others still wait to hear it"

    class Other(Worker):
        def gather(self, tensor: torch.Tensor) -> None:
            return None

    team = Other(1)
    assert records_of_team(scored([True, True]), team, apart=True).names.to_pylist() == ["r0", "r1"]
    assert team.collected == 2
    with pytest.raises(DataError, match=r"called by their numbers.*--id"):
        records_of_team(replace(scored([True]), named_by="rows"), Both(0), apart=True)


@pytest.mark.parametrize(
    ("overrides", "promised", "complaint"),
    [
        ((), False, ""),
        ((), True, "exchange.noise: .* as one process"),
        (("model={name: logistic-regression}", "prediction.scores_by=telecom"), False, "prediction.scores_by: "),
        (("prediction.score_noise=memoised",), False, "prediction.score_noise: "),
    ],
)
def test_what_is_agreed_on_for_all_records_at_once_is_scored_by_one_process(
    overrides: tuple[str, ...], promised: bool, complaint: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)
    own = config("telecom", *overrides)
    if not complaint:
        check_scored_by_workers(own, promised=promised)
        return
    with pytest.raises(ConfigError, match=complaint):
        check_scored_by_workers(own, promised=promised)


class Centred:
    """What it does to a row depends on all rows."""

    crossing = "activation"

    def __call__(self, message: torch.Tensor, secrets: Any) -> torch.Tensor:
        return message - message.mean(dim=0)


@pytest.mark.parametrize("defense", [Centred(), GaussianIR(clip=1.0, sigma=0.1)])
def test_a_defense_that_looks_at_a_batch_is_for_one_process(
    defense: Any, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)
    party = passive_party("telecom")
    check_defended_by_workers(party, "x.yaml")
    attach_defense(party, defense, number=0, noise_seed=None, phases=("prediction",))
    if isinstance(defense, GaussianIR):
        check_defended_by_workers(party, "x.yaml")
        return
    with pytest.raises(ConfigError, match="one of Centred acts on the records of a whole message"):
        check_defended_by_workers(party, "x.yaml")


def test_a_number_in_the_name_of_a_file_is_that_of_a_worker() -> None:
    assert own_file(Path("new-{worker}.csv"), Worker(1)) == Path("new-1.csv")
    assert own_file(Path("new.csv"), Worker(1)) == Path("new.csv")
    assert own_file(None, Worker(1)) is None
    with pytest.raises(ConfigError, match=r"--records: new-\{worker\}.csv: .* this is one process"):
        own_file(Path("new-{worker}.csv"), Alone())


def test_a_run_in_one_process_is_scored_by_one(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[Any], tmp_path: Path
) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert main(["predict", str(tmp_path), "--out", "scores.csv"]) == 2
    assert "2 workers were started (WORLD_SIZE), and" in capsys.readouterr().err

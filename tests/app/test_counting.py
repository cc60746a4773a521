"""What a passive party counts and limits, from its file to its partner's screen, in every way of scoring."""

from __future__ import annotations

import json
import re
import shutil
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pytest
import torch

from splitvfl.app.counting import Counting
from splitvfl.app.experiment import build_trainer
from splitvfl.app.online import ServeSettings, prepare_service
from splitvfl.app.promised_predictions import folder_of
from splitvfl.app.records import load_data
from splitvfl.app.run_folder import replacing, write_config
from splitvfl.app.saved_model import load_half
from splitvfl.app.saved_run import SavedRun, load_run
from splitvfl.app.scoring import prepare_coordinator
from splitvfl.app.serving import PredictionFiles, prepare_prediction
from splitvfl.cli import main
from splitvfl.config.sections import ExperimentConfig, config_to_yaml, parse_config
from splitvfl.data.record_index import asked_digests
from splitvfl.errors import CheckpointError, ConfigError, LimitError, PrivacyError, RefusedError
from splitvfl.exchange.prediction import predict_records
from splitvfl.run.ledger import Ledger
from splitvfl.run.ledger_file import LEDGER_FOLDER, LINES_FILE
from tests.run.parties import free_ports, side_by_side

TEXT = """\
data: {name: table, path: all.csv, id_column: customer}
parties:
  bank: {role: active, columns: [age], label: default}
  telecom: {role: passive, columns: [calls]}
  shop: {role: passive, columns: [spent]}
model: logistic-regression
train: {epochs: 1, batch_size: 16, device: cpu}
audit: false
"""
PARTIES = ("bank", "telecom", "shop")
ROLES = ("active", "coordinator", "telecom", "shop")


def config(*overrides: str) -> ExperimentConfig:
    return parse_config(TEXT, source="run.yaml", overrides=overrides)


def table(rows: range) -> pd.DataFrame:
    numbers = pd.Series(rows)
    columns = {"age": numbers % 7 + 0.5, "calls": numbers % 5, "spent": numbers % 11 * 0.25, "default": numbers % 2}
    return pd.DataFrame({"customer": [f"c{number}" for number in rows], **columns})


@pytest.fixture(scope="module")
def origin(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The trained halves of all parties."""
    folder = tmp_path_factory.mktemp("origin")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        table(range(60)).to_csv("all.csv", index=False)
        trainer = build_trainer(config(), load_data(config()))
        trainer.fit(1)
        trainer.save(folder / "model")
    return folder


@pytest.fixture
def run(origin: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A run's folder of its own, in the folder where the test runs."""
    monkeypatch.chdir(tmp_path)
    table(range(60)).to_csv("all.csv", index=False)
    table(range(100, 130)).to_csv("new.csv", index=False)
    folder = tmp_path / "run"
    folder.mkdir()
    shutil.copytree(origin / "model", folder / "model")
    write_config(folder, config_to_yaml(config()))
    return folder


def limited(run: Path, *overrides: str) -> SavedRun:
    write_config(run, config_to_yaml(config(*overrides)))
    return load_run(run)


def lines(run: Path, name: str) -> list[dict[str, Any]]:
    path = run / LEDGER_FOLDER / name / LINES_FILE
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


# --- in one process


@pytest.mark.parametrize("scores_by", ROLES)
def test_in_one_process_each_passive_party_counts_in_every_role(run: Path, scores_by: str) -> None:
    found = limited(run, f"prediction={{scores_by: {scores_by}, per_record: 2}}")
    expected = [found.predict("new.csv") for _ in range(2)]
    assert torch.equal(*expected)
    for name in ("telecom", "shop"):
        begun, *counted = lines(run, name)
        assert begun["party"] == name
        assert [line["total"] for line in counted] == [30, 60]
        assert {line["scorer"] for line in counted} == {"bank" if scores_by == "active" else scores_by}
        assert {line["partner"] for line in counted} == {"bank"}
        assert {line["model"] for line in counted} == {found.halves[name].schema.digest}
    assert lines(run, "bank") == []
    with pytest.raises(LimitError, match=r"telecom scores none .* 30 of 30 would be.*\(prediction.per_record: 2\)"):
        load_run(run).predict("new.csv")
    assert lines(run, "telecom")[-1]["limit"] == "per_record: 2"
    assert [one.tally for one in found.passives.values()] == [None, None]


def test_the_same_records_are_counted_by_their_ids_whatever_else_is_in_the_file(run: Path) -> None:
    found = limited(run, "prediction.per_record=1")
    found.predict(table(range(100, 110)))
    found.predict(table(range(119, 109, -1)))
    with pytest.raises(LimitError, match="1 of 2 would be, at rows 1"):
        found.predict(
            table(range(120, 130))[["customer", "age", "calls", "spent"]].iloc[[0, 1]].replace("c121", "C105")
        )
    # A record under another id is another one: nobody can tell.
    found.predict(table(range(100, 110)).assign(customer=[f"new{number}" for number in range(10)]))


def test_threads_that_predict_at_once_lose_no_count(run: Path) -> None:
    found, wrong = limited(run, "prediction.per_record=20"), []
    records = table(range(100, 103))

    def act() -> None:
        for _ in range(5):
            try:
                found.predict(records)
            except LimitError as error:
                wrong.append(str(error))

    threads = [threading.Thread(target=act) for _ in range(5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert len(wrong) == 5, "of 25"
    assert sum(line["what"] == "counted" for line in lines(run, "telecom")) == 20


def test_a_part_that_was_not_counted_does_not_leave(run: Path) -> None:
    """Whoever drives halves in another way than the prediction does."""
    found = limited(run)
    own = found.own_tests().records

    class Forgetful:
        def begin(self) -> None: ...

        def leaving(self, records: int) -> None:
            raise PrivacyError(f"{records} were not counted")

    for scores_by in ROLES:
        found.passives["shop"].tally = Forgetful()
        with pytest.raises(PrivacyError, match="were not counted"):
            predict_records(found.active, found.passives, own, scores_by=scores_by)


def test_records_without_ids_cannot_be_limited_each(run: Path) -> None:
    """Row 0 of one file is not row 0 of another."""
    half = load_run(run).halves["telecom"]
    counting = Counting.of(config("prediction.per_record=3"), half, run)
    for named_by, words in (
        ("rows", r"have no ids, only numbers of rows.*name their column \(--id, or"),
        ("alignment", r"numbers that their alignment drew, and the next one draws others"),
        ("unknown", r"no schema.json lies beside their folder"),
    ):
        with pytest.raises(ConfigError, match=words):
            counting.call(pa.array([0, 1]), named_by, records=2)  # type: ignore[arg-type]
    Counting.of(config(), half, run).call(pa.array([0, 1]), "rows", records=2).begin()


@pytest.mark.parametrize("number", [lambda row: 1000 + row, lambda row: (row * 7 + 5) % 60, lambda row: f"c{row:02d}"])
def test_a_runs_own_test_records_have_their_own_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: Callable[[int], int | str]
) -> None:
    """Whole numbers beyond the rows, a permutation of them, and text: those by which the scores are the same again."""
    monkeypatch.chdir(tmp_path)
    own = table(range(60)).assign(age=range(60), customer=[number(row) for row in range(60)])
    own.to_csv("all.csv", index=False)
    Path("run.yaml").write_text(f"name: x\n{TEXT}prediction: {{per_record: 1}}\n")
    assert main(["train", "run.yaml", "--out", "run"]) == 0
    found = load_run("run")

    scored = found.score()

    named = [str(name) for name in scored.names.to_pylist()]
    true = own.assign(customer=own["customer"].astype(str)).set_index("customer").loc[named].reset_index()
    again = found.outputs(found._read(true, None).records).scores
    torch.testing.assert_close(again.float(), scored.scores)
    with pytest.raises(LimitError, match=f"{len(named)} of {len(named)} would be"):
        load_run("run").predict(true)
    load_run("run").predict(own[~own["customer"].astype(str).isin(named)])


def test_a_ledger_is_where_the_half_is_whatever_it_is_called_by(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    half = tmp_path / "half"
    shutil.copytree(run / "model" / "telecom", half / "model")
    write_config(half, config_to_yaml(config()))
    (tmp_path / "current").symlink_to(half / "model")
    (tmp_path / "whole").symlink_to(half)

    def count(model: Path) -> None:
        counting = Counting.of(config("prediction.per_record=1"), load_half(model), folder_of(model))
        counting.call(pa.array(["c1"]), "ids", records=1).begin()

    count(half / "model")
    monkeypatch.chdir(half / "model")
    for model in (half / "model", tmp_path / "current", tmp_path / "whole" / "model", Path(), Path("../model")):
        with pytest.raises(LimitError):
            count(model)


@pytest.mark.parametrize(
    ("scorer", "again"), [("bank", False), ("telecom", False), ("shop", True), ("coordinator", True)]
)
def test_a_prediction_that_begins_again_counts_again_where_somebody_else_answers(
    run: Path, scorer: str, again: bool
) -> None:
    half = load_run(run).halves["telecom"]
    call = Counting(half, run, "bank", scorer).call(pa.array(["c1", "c2"]), "ids", records=2)
    for _ in range(3):
        call.begin()
    assert lines(run, "telecom")[-1]["total"] == (6 if again else 2)


def test_limits_in_a_coordinators_file_are_refused(run: Path) -> None:
    own = config("prediction={scores_by: coordinator, per_record: 1}", "network.listen=localhost:0")
    with pytest.raises(ConfigError, match="at coordinator, which has no records, it would do nothing: take it out"):
        prepare_coordinator(own)


def test_a_run_that_is_replaced_takes_its_ledger_along(run: Path) -> None:
    limited(run).predict("new.csv")
    counted = lines(run, "telecom")

    def replaced(error: Exception | None) -> None:
        with replacing(run, anew=True, notify=lambda line: None):
            assert not (run / LEDGER_FOLDER).exists()
            if error is not None:
                raise error

    with pytest.raises(RuntimeError):
        replaced(RuntimeError("it ends early"))
    assert lines(run, "telecom") == counted, "the earlier run is back, and so is what protects its parties"
    replaced(None)
    assert not (run / LEDGER_FOLDER).exists()


def test_a_half_that_was_copied_elsewhere_has_a_ledger_of_its_own(run: Path, tmp_path: Path) -> None:
    def count(folder: Path) -> None:
        counting = Counting.of(config("prediction.per_record=1"), load_half(folder), folder_of(folder))
        counting.call(pa.array(["c1"]), "ids", records=1).begin()

    own = run / "model" / "telecom"
    copied = shutil.copytree(own, tmp_path / "copied")
    count(own)
    with pytest.raises(LimitError):
        count(own)
    count(copied)


# --- a file


@pytest.mark.parametrize(
    ("section", "words"),
    [
        ("{per_record: 0}", "prediction.per_record"),
        ("{per_day: -3}", "prediction.per_day"),
        ("{per_record: often}", "prediction.per_record"),
        ("{fewest: 51, per_day: 50}", "no prediction can have 51 records at least (fewest) and 50 at most (per_day)"),
    ],
)
def test_limits_that_no_prediction_can_meet_are_told(section: str, words: str) -> None:
    with pytest.raises(ConfigError) as caught:
        config(f"prediction={section}")
    assert words in str(caught.value)


# --- over a network


def network(*overrides: str) -> tuple[str, ...]:
    ports = free_ports(3)
    places = {name: f"127.0.0.1:{port}" for name, port in zip(("telecom", "shop", "coordinator"), ports, strict=True)}
    own = [f"parties.{name}.address={place}" for name, place in places.items() if name != "coordinator"]
    third = any(text == "prediction.scores_by=coordinator" for text in overrides)
    at = [f"prediction.address={places['coordinator']}"] if third else []
    return (*own, "network={plaintext_on_loopback: true, meeting_s: 60, message_s: 30}", *overrides, *at)


def service(name: str, run: Path, settings: tuple[str, ...], *own: str, records: str = "new.csv") -> Any:
    places = dict(text.split(".address=") for text in settings if ".address=" in text)
    place = places.get("prediction" if name == "coordinator" else f"parties.{name}")
    chosen = config(*settings, *([] if place is None else [f"network.listen={place}"]), *own)
    if name == "coordinator":
        return prepare_coordinator(chosen)
    out = Path("scores.csv") if name == "bank" else None
    files = PredictionFiles(model=run / "model" / name, records=Path(records), out=out, overwrite=True)
    return prepare_prediction(chosen, name, files)


def together(**services: Any) -> dict[str, BaseException]:
    """Run every party's service, the label party's last: it dials the others."""
    return side_by_side({name: one.run for name, one in reversed(services.items())})


@pytest.mark.parametrize(
    "scores_by",
    [
        "active",
        "shop",
        *(pytest.param(name, marks=pytest.mark.slow(reason="a network, twice")) for name in ("coordinator", "telecom")),
    ],
)
def test_a_limit_is_a_partys_own_and_its_refusal_reaches_who_asks(run: Path, scores_by: str) -> None:
    """The telecom alone has one; nobody has agreed to it."""
    settings = network(f"prediction.scores_by={scores_by}")
    names = [*PARTIES, *(["coordinator"] if scores_by == "coordinator" else [])]

    def predict() -> dict[str, BaseException]:
        own = {"telecom": ["prediction.per_record=1"]}
        return together(**{name: service(name, run, settings, *own.get(name, [])) for name in names})

    assert predict() == {}
    scores = Path("scores.csv").read_bytes()
    wrong = predict()
    words = "it scores none more than once, and 30 of 30 would be, at rows 0, 1, 2, 3, 4, ... (from 0)"
    assert isinstance(wrong["telecom"], LimitError)
    assert isinstance(wrong["bank"], RefusedError)
    for name in ("telecom", "bank"):
        assert f"telecom scores none of these records: {words} (prediction.per_record: 1)" in str(wrong[name])
    assert set(wrong) == set(names), "nobody waits for the others"
    assert Path("scores.csv").read_bytes() == scores
    told = [(line["what"], line.get("total", 0)) for line in lines(run / "model" / "telecom", "telecom")]
    assert told == [("begun", 0), ("counted", 30), ("refused", 30)]


@pytest.mark.parametrize(
    ("limit", "words"),
    [
        ("per_day=29", "there are 30, and of its 29 of"),
        ("fewest=31", "there are 30, and it takes 31 at least (prediction.fewest: 31)"),
    ],
)
def test_each_limit_is_named_to_who_asks(run: Path, limit: str, words: str) -> None:
    settings = network()
    services = {name: service(name, run, settings) for name in ("bank", "telecom")}
    wrong = together(**services, shop=service("shop", run, settings, f"prediction.{limit}"))
    assert words in str(wrong["bank"])
    assert "nothing was sent" in str(wrong["bank"])
    assert lines(run / "model" / "shop", "shop")[-1]["limit"] == limit.replace("=", ": ")


def test_a_file_of_the_label_party_alone_limits_nobody(run: Path) -> None:
    alone = TEXT.replace(", columns: [calls]", "").replace(", columns: [spent]", "")
    own = parse_config(alone, source="bank.yaml", overrides=[*network(), "prediction.per_day=3"])
    files = PredictionFiles(model=run / "model" / "bank", records=Path("new.csv"), out=Path("scores.csv"))
    with pytest.raises(ConfigError, match="prediction: per_day: a passive party limits what it lets be scored"):
        prepare_prediction(own, "bank", files)


def edited(ledger: Path) -> None:
    path = ledger / LINES_FILE
    path.write_text(path.read_text().replace('"partner":"bank"', '"partner":"none"'))


def truncated(ledger: Path) -> None:
    path = ledger / LINES_FILE
    path.write_text("".join(path.read_text().splitlines(keepends=True)[:1]))


def of_another_model(ledger: Path) -> None:
    shutil.rmtree(ledger)
    Ledger(ledger, party="telecom", run="c" * 32)


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (edited, "line 2: its code is not that of the folder's key: it was changed"),
        (truncated, "ends after line 1, and scored.bin has records of later ones: lines were cut off"),
        (of_another_model, f"is the ledger of telecom for run {'c' * 32}, and this is telecom with a model of run"),
    ],
)
def test_a_ledger_that_is_not_whole_or_anothers_is_told_before_anybody_is_met(
    run: Path, damage: Callable[[Path], None], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """In one process, over a network, and where requests are to be answered."""
    found = limited(run)
    for _ in range(2):
        found.predict("new.csv")
    damage(run / LEDGER_FOLDER / "telecom")
    shutil.copytree(run / LEDGER_FOLDER, run / "model" / "telecom" / LEDGER_FOLDER)

    with pytest.raises(CheckpointError, match=words):
        service("telecom", run, network())
    assert main(["predict", str(run), "--records", "new.csv", "--out", "s.csv"]) == 2
    told = " ".join(capsys.readouterr().err.split())
    assert words in told
    assert re.search(r"Nothing was sent[.:].* bring ", told)
    assert not Path("s.csv").exists()

    folder = run.parent / "telecom"
    folder.mkdir()
    (run / LEDGER_FOLDER).rename(folder / LEDGER_FOLDER)
    (run / "model" / "telecom").rename(folder / "model")
    write_config(folder, config_to_yaml(config(*network())))
    with pytest.raises(CheckpointError, match=words):
        prepared(folder)


# --- on request


@pytest.fixture
def served(run: Path) -> Path:
    """The telecom's run, as `splitvfl party` would leave it."""
    folder = run.parent / "telecom"
    folder.mkdir()
    (run / "model" / "telecom").rename(folder / "model")
    write_config(folder, config_to_yaml(config(*network())))
    return folder


def asked(served: Path, *names: str) -> torch.Tensor:
    number = json.loads((served / "model" / "half.json").read_text())["run"]
    return torch.from_numpy(asked_digests(names, run=number).copy())


def prepared(served: Path, *overrides: str) -> Any:
    listen = "network={plaintext_on_loopback: true, listen: '127.0.0.1:0'}"
    own = ServeSettings(records=Path("new.csv"))
    return prepare_service(served, "telecom", own, overrides=(listen, *overrides))


def test_on_request_a_record_is_answered_so_often_and_others_go_on(served: Path) -> None:
    limits = "prediction={per_record: 2, per_day: 6}"
    service = prepared(served, limits).service
    first = service.answer(asked(served, "c100", "c101", "c100", "nobody"))
    assert first.standing.tolist() == [1, 1, 1, 0]
    again = prepared(served, limits).service  # a restart
    second = again.answer(asked(served, "c100", "c101", "c102", "c103"))
    assert second.standing.tolist() == [3, 1, 1, 1]
    assert second.activation.shape[0] == 3
    third = again.answer(asked(served, "c100", "c104", "nobody"))
    assert third.standing.tolist() == [3, 2, 0]
    assert third.activation.shape[0] == 0
    told = [(line["what"], line.get("records", 0), line.get("limit", "")) for line in lines(served, "telecom")]
    assert told[1:] == [
        ("counted", 3, ""),
        ("refused", 1, "per_record: 2"),
        ("counted", 3, ""),
        ("refused", 1, "per_record: 2"),
        ("refused", 1, "per_day: 6"),
    ]
    assert again._counts.today.limited == 3
    assert lines(served, "telecom")[1]["asked"] == "serve"


def test_answers_on_request_and_predictions_are_counted_together(served: Path, run: Path) -> None:
    """By the same id in the same ledger, whatever way it came."""
    files = PredictionFiles(model=served / "model", records=Path("new.csv"))
    own = config(*network(), "network.listen=127.0.0.1:0")
    once = prepare_prediction(own, "telecom", files)
    once.party.tally.begin()
    service = prepared(served, "prediction.per_record=2").service
    assert service.answer(asked(served, "c100")).standing.tolist() == [1]
    assert service.answer(asked(served, "c100", "c101")).standing.tolist() == [3, 1]


def test_a_least_number_and_answers_to_single_requests_exclude_each_other(served: Path) -> None:
    with pytest.raises(ConfigError, match=r"prediction.fewest: 50: answers on request are for one record or a few"):
        prepared(served, "prediction.fewest=50")


def test_nothing_is_answered_that_cannot_be_counted(served: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    service = prepared(served).service
    (served / LEDGER_FOLDER).rename(served / "moved")
    with pytest.raises(CheckpointError, match=r"the ledger in .* nothing was sent"):
        service.answer(asked(served, "c100"))

"""From folders of networked runs to scores over HTTP: in processes of their own, and piece by piece."""

from __future__ import annotations

import http.client
import importlib.util
import json
import shutil
import signal
import socket
import stat
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

from splitvfl.app.addresses import SERVING, AddressBook
from splitvfl.app.http_access import HttpSettings
from splitvfl.app.online import HttpService, OnceEach, PartyService, ServeSettings, prepare_service
from splitvfl.app.run_folder import write_config
from splitvfl.app.saved_model import load_half
from splitvfl.app.serving_noise import noise_key
from splitvfl.cli import main
from splitvfl.config.sections import config_to_yaml, load_config
from splitvfl.data.id_column import normalised
from splitvfl.data.record_index import asked_digests
from splitvfl.errors import CheckpointError, ConfigError, DataError, PrivacyError
from splitvfl.net.certs import make_certificates
from splitvfl.net.frames import Hello
from tests.app.test_serving import halves, in_one_process, write_configs, write_files
from tests.commands import Command
from tests.run.parties import free_ports

LIMIT_S = 60.0
PLACES = {
    "bank": """
data: {name: table, path: bank.csv, id_column: customer, missing: indicator}
parties: {bank: {role: active, columns: [age], label: default}, telecom: {role: passive, address: ADDRESS}}
model: {name: mlp, top_hidden: [8]}
""",
    "telecom": """
data: {name: table, path: telecom.csv, id_column: customer}
parties: {bank: {role: active}, telecom: {role: passive, columns: [calls, plan]}}
model: {name: mlp, bottom: [8, 4]}
defenses: [{name: gaussian-ir, clip: 1.0, sigma: 0.1, at: training}]
""",
}
NOISE = "defenses=[{name: gaussian-ir, clip: 1.0, sigma: 0.5}]"


@pytest.fixture(scope="module")
def origin(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Both parties' runs, with first weights, as `splitvfl party` would leave them."""
    folder = tmp_path_factory.mktemp("runs")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        write_files(folder)
        write_configs(PLACES)
        halves("bank", "telecom")
        for name in PLACES:
            write_config(Path("runs") / name, config_to_yaml(load_config(f"{name}.yaml")))
    return folder


@pytest.fixture
def folder(origin: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(origin)
    return origin


def prepared(name: str, *overrides: str, notify: Callable[[str], None] = lambda line: None, **settings: Any) -> Any:
    known: dict[str, Any] = {"records": Path("telecom-new.csv")} if name == "telecom" else {}
    known |= {"http": HttpSettings("127.0.0.1:0")} if name == "bank" else {}
    asked_for = ServeSettings(**{**known, **settings})
    return prepare_service(Path("runs") / name, name, asked_for, overrides=overrides, notify=notify)


def test_only_those_who_serve_wait_for_each_other_whatever_ends_a_meeting(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found: dict[str, bool] = {}

    def noted(hello: Hello, *_: object, lasting: bool, **others: object) -> None:
        found[hello.run] = lasting

    monkeypatch.setattr("splitvfl.app.addresses.Meeting", noted)
    for purpose in ("training", "prediction", SERVING):
        AddressBook(load_config("telecom.yaml"), "telecom", purpose).meeting(print)
    assert [found[f"bank, {purpose}"] for purpose in ("training", "prediction", SERVING)] == [False, False, True]


# --- in processes of their own


def ask(port: int, method: str, path: str, content: Any = None) -> tuple[int, Any]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=LIMIT_S)
    try:
        body = None if content is None else json.dumps(content)
        connection.request(method, path, body, {"Content-Type": "application/json"})
        response = connection.getresponse()
        return response.status, json.loads(response.read())
    finally:
        connection.close()


def when_ready(port: int, status: int) -> Any:
    patience = threading.Event()
    for _ in range(int(LIMIT_S / 0.05)):
        try:
            found, answer = ask(port, "GET", "/health")
        except ConnectionError:
            found, answer = 0, None
        if found == status:
            return answer
        patience.wait(0.05)
    raise AssertionError(f"/health never had status {status}")


def new_records() -> list[dict[str, Any]]:
    table = pd.read_csv("bank-new.csv")
    return json.loads(table.to_json(orient="records", double_precision=15))  # type: ignore[no-any-return]


@pytest.mark.slow(reason="two parties serve in processes of their own, and are stopped one after the other")
def test_parties_serve_until_they_are_stopped(folder: Path, checkout: Path) -> None:
    make_certificates(folder / "certs", ["bank", "telecom"])
    meeting, port = free_ports(2)
    over_tls = ["network.plaintext_on_loopback=false", "network.certificates=certs"]

    def start(name: str, *arguments: str) -> Command:
        where = [f"network.listen=127.0.0.1:{meeting}", f'parties.telecom.address="127.0.0.1:{meeting}"']
        words = ["serve", f"runs/{name}", "--as", name, *arguments, *over_tls, *where]
        return Command(words, folder, PYTHONPATH=str(checkout))

    telecom = start("telecom", "--records", "telecom-new.csv")
    bank = start("bank", "--http", f"127.0.0.1:{port}")
    when_ready(port, 200)
    records = new_records()

    # All in one message: batches of one height add up alike, and so the scores are equal to the bit.
    status, answer = ask(port, "POST", "/score", {"records": [*records]})
    assert status == 200
    scores = [one["score"] for one in answer["scores"]]
    np.testing.assert_array_equal(np.array(scores, np.float32), in_one_process(folder / "runs"))
    assert ask(port, "POST", "/score", {"id": "nobody", "age": 1.0})[1]["not_held"] == ["telecom"]

    telecom.send_signal(signal.SIGTERM)
    assert telecom.wait(LIMIT_S) == 0
    assert when_ready(port, 503) == {"ready": False, "missing": ["telecom"]}
    assert ask(port, "POST", "/score", records[0])[1]["missing"] == ["telecom"]

    bank.send_signal(signal.SIGINT)
    assert bank.wait(LIMIT_S) == 0
    assert "stopped; every request that had come was answered" in "".join(bank.stderr)
    assert "today 61 records were asked for: 60 answered, 1 not held, 0 refused" in "".join(telecom.stderr)
    counts = json.loads((folder / "runs" / "telecom" / "serving" / "asked.json").read_text())
    assert sum(day["asked"] for day in counts.values()) == 61
    kept = "".join(str(path.read_bytes()) for path in (folder / "runs" / "telecom" / "serving").iterdir())
    assert "c300" not in kept


# --- without meeting anybody


def test_a_passive_party_answers_for_its_own_records_with_the_same_noise_each_time(folder: Path) -> None:
    run = load_half("runs/telecom/model").schema.run
    asked = torch.from_numpy(asked_digests(["c300", "c301", "c999"], run=run).copy())

    found = [prepared("telecom", NOISE).service.answer(asked) for _ in range(2)]
    (folder / "runs/telecom/serving/noise.key").unlink()
    told: list[str] = []
    other = prepared("telecom", NOISE, notify=told.append).service.answer(asked)
    assert sum("a new key of noise is made" in line for line in told) == 1

    assert found[0].standing.tolist() == [1, 1, 0]
    assert torch.equal(found[0].activation, found[1].activation)
    assert (found[0].activation != other.activation).all()
    for name, mode in (("", 0o700), ("noise.key", 0o600)):
        assert stat.S_IMODE((folder / "runs/telecom/serving" / name).stat().st_mode) == mode


def test_answers_of_two_settings_do_not_tell_the_activation_together(folder: Path) -> None:
    """With one noise n, a + .5 n and a + 1.0 n give a = 2 (a + .5 n) - (a + 1.0 n)."""
    run = load_half("runs/telecom/model").schema.run
    ids = pd.read_csv("telecom-new.csv")["customer"]
    asked = torch.from_numpy(asked_digests(ids, run=run).copy())

    def sent(clip: float, sigma: float) -> np.ndarray[Any, Any]:
        override = f"defenses=[{{name: gaussian-ir, clip: {clip}, sigma: {sigma}}}]"
        found: np.ndarray[Any, Any] = prepared("telecom", override).service.answer(asked).activation.numpy().ravel()
        return found

    clean, first, second = sent(1.0, 1e-9), sent(1.0, 0.5), sent(1.0, 1.0)

    # The best sum of both, with weights that add up to 1 so that the activation is kept whole.
    share = np.dot(second - clean, second - first) / np.dot(second - first, second - first)
    left = np.std(share * first + (1 - share) * second - clean)
    assert left > 0.35  # of independent noise sqrt(.2) = .447 is left, of one noise nothing
    # A clip that moves an answer moves its noise too.
    assert abs(np.corrcoef(sent(0.9, 0.5) - clean, first - clean)[0, 1]) < 0.5


def test_a_party_that_serves_is_told_its_limits_of_scores(folder: Path) -> None:
    told: list[str] = []
    prepared("telecom", "prediction.per_record=3", "prediction.per_day=83", notify=told.append)
    prepared("telecom", notify=told.append)
    said = [line for line in told if "limits what is scored" in line]
    assert said == [
        "telecom limits what is scored, files and requests together (prediction): per_record: 3, per_day: 83"
    ]


def test_who_changes_what_noise_is_drawn_under_is_told_so_once(folder: Path) -> None:
    shutil.rmtree("runs/telecom/serving", ignore_errors=True)
    told: list[str] = []

    def start(*overrides: str, **settings: Any) -> int:
        told.clear()
        prepared("telecom", *overrides, notify=told.append, **settings)
        return sum("every record gets other noise" in line for line in told if "a new key" not in line)

    more = (NOISE.replace("0.5", "1.0"),)
    assert [start(NOISE), start(NOISE), start(*more), start(NOISE)] == [0, 0, 1, 0]
    assert [start(NOISE, case="folded"), start(NOISE, case="folded"), start(NOISE)] == [1, 0, 0]
    assert stat.S_IMODE(Path("runs/telecom/serving/noise.json").stat().st_mode) == 0o600
    Path("runs/telecom/serving/noise.json").unlink()  # a key from before it was kept
    assert start(NOISE) == 1
    Path("runs/telecom/serving/noise.json").write_text("{")
    with pytest.raises(CheckpointError, match="does not hold the settings"):
        start(NOISE)
    shutil.rmtree("runs/telecom/serving")


def test_a_key_that_is_damaged_is_not_replaced(tmp_path: Path) -> None:
    key = noise_key(tmp_path / "key")
    assert len(key) == 32
    assert noise_key(tmp_path / "key") == key
    (tmp_path / "key").write_bytes(key[:-1])
    with pytest.raises(CheckpointError, match="expected 32 bytes, got 31; bring it back"):
        noise_key(tmp_path / "key")


def test_limits_are_those_that_were_asked_for(folder: Path) -> None:
    from splitvfl.run.ask_limits import AskLimits

    service = prepared("telecom", limits=AskLimits(per_minute=2, per_day=100_000)).service
    assert service.answer(torch.zeros(3, 32, dtype=torch.uint8)).standing.tolist() == [0, 0, 2]


def test_letter_case_is_a_term(folder: Path) -> None:
    from splitvfl.run.online import online_terms

    folded, kept = prepared("telecom", case="folded").service, prepared("bank").service
    terms = [online_terms(one.party, one.settings)["letter case of ids"] for one in (folded, kept)]
    assert terms == ["folded", "kept"]
    digests = asked_digests([normalised("C300", "folded")], run=load_half("runs/telecom/model").schema.run)
    assert folded.answer(torch.from_numpy(digests.copy())).standing.tolist() == [1]


def test_the_label_party_can_have_its_records_itself(folder: Path) -> None:
    application = prepared("bank", records=Path("bank-new.csv")).application

    asked = application._reader.read(b'{"records": [{"id": "c301"}, {"id": "c999"}]}')

    assert asked.own == (True, False)
    sent = application._reader.read(json.dumps(new_records()[1]).encode())
    assert torch.equal(asked.question.records.columns.numeric, sent.question.records.columns.numeric)
    assert torch.equal(asked.question.digests, sent.question.digests)


def test_what_a_file_holds_and_what_a_request_holds_become_the_same_numbers(folder: Path) -> None:
    half = load_half("runs/bank/model")
    own = prepared("bank", records=Path("bank-new.csv")).application._reader
    ids = [{"id": one["customer"]} for one in new_records()]

    by_id, sent = (own.read(json.dumps({"records": records}).encode()) for records in (ids, new_records()))

    assert half.schema.encoding is not None
    assert torch.equal(by_id.question.records.columns.numeric, sent.question.records.columns.numeric)


def test_masked_parts_are_refused_by_name(folder: Path) -> None:
    linear = ["model={name: logistic-regression}", "exchange={name: taylor}", "defenses=[]"]
    with pytest.raises(ConfigError, match=r"exchange taylor: telecom cannot be served: .*masks.*splitvfl predict"):
        prepared("telecom", *linear)


def test_defenses_that_cannot_be_served_are_refused_by_name(folder: Path) -> None:
    Path("mine.py").write_text(
        "class Loud:\n    crossing = 'activation'\n    def __call__(self, activation, secrets, /):\n"
        "        return activation * activation.norm(dim=1).max()\n"
        "class Shaken:\n    crossing = 'scores'\n    def __call__(self, scores, secrets, /):\n"
        "        return secrets.add_normal(scores, 0.1)\n"
    )
    for name in PLACES:
        Path("runs", name, "mine.py").write_text(Path("mine.py").read_text())
    with pytest.raises(PrivacyError, match=r"telecom cannot answer .* defense Loud: it claims nothing for a row"):
        prepared("telecom", 'defenses=[{name: "mine:Loud"}]')
    with pytest.raises(PrivacyError, match=r"bank cannot answer .* Shaken: it draws noise anew"):
        prepared("bank", 'defenses=[{name: "mine:Shaken"}]')


def test_a_set_that_everybody_has_is_served_by_its_numbers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    bundled = """
data: {name: breast-cancer}
parties:
  bank: {role: active, columns: ["mean *"]}
  telecom: {role: passive, columns: rest, address: ADDRESS}
model: {name: mlp, bottom: [8, 4]}
"""
    write_configs({"bank": bundled, "telecom": bundled})
    halves("bank", "telecom")
    for name in ("bank", "telecom"):
        write_config(Path("runs") / name, config_to_yaml(load_config(f"{name}.yaml")))

    bank, telecom = prepared("bank"), prepared("telecom", records=None)

    ids = bank.service.party.data.test.ids.tolist()
    asked = bank.application._reader.read(json.dumps({"records": [{"id": ids[3]}, {"id": 10**6}]}).encode())
    assert asked.own == (True, False)
    answers = telecom.service.answer(asked.question.digests)
    assert answers.standing.tolist() == [1]
    party = telecom.service.party
    with party.evaluating():
        expected = party.activate(party.test_batch(torch.arange(len(ids))))[3]
    assert torch.equal(answers.activation[0], expected)


@pytest.mark.parametrize(
    ("name", "settings", "kind", "told"),
    [
        ("bank", {"http": None}, ConfigError, "--http: bank is the label party: say where requests come"),
        ("bank", {"http": HttpSettings("0.0.0.0:80")}, ConfigError, "can be reached from other machines"),
        ("bank", {"records": Path("none.csv")}, DataError, "and there is none"),
        ("telecom", {"http": HttpSettings("127.0.0.1:0")}, ConfigError, "requests come to bank, the label party"),
        ("telecom", {"records": None}, ConfigError, "--records: telecom was trained on a file"),
        ("telecom", {"id_column": "custmer"}, DataError, "no column 'custmer'"),
    ],
)
def test_mistakes_are_told_before_anybody_is_waited_for(
    folder: Path, name: str, settings: Mapping[str, Any], kind: type[Exception], told: str
) -> None:
    with pytest.raises(kind, match=told):
        prepared(name, **settings)


def test_the_command_says_what_is_wrong_and_ends(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for words, told in (
        (["runs", "--as", "bank"], "expected the folder of a networked run"),
        (["runs/bank", "--as", "shop"], "parties: there is no 'shop'"),
        (["runs/bank", "--as", "telecom"], "is the half of bank as the active party"),
        (["runs/bank", "--tls-key", "x"], "give --http too"),
        (["runs/bank", "--http", "8080"], "--http: expected an address like"),
    ):
        assert main(["serve", *words]) == 2
        assert told in " ".join(capsys.readouterr().err.split())


def test_a_run_of_all_parties_in_one_process_is_told_apart(folder: Path, tmp_path: Path) -> None:
    for name in PLACES:
        (tmp_path / "model" / name).mkdir(parents=True)
        (tmp_path / "model" / name / "half.json").touch()
    (tmp_path / "experiment.yaml").write_text((folder / "runs/bank/experiment.yaml").read_text())
    with pytest.raises(ConfigError, match="trained in one process, and holds the halves of bank and telecom"):
        prepare_service(tmp_path, None, ServeSettings())


def test_what_is_not_installed_is_named(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    find = importlib.util.find_spec

    def found(name: str, package: str | None = None) -> Any:
        return None if name == "starlette" else find(name, package)

    monkeypatch.setattr(importlib.util, "find_spec", found)
    with pytest.raises(ConfigError, match=r'serving needs starlette: pip install "splitvfl\[serve\]"'):
        prepared("bank")
    assert isinstance(prepared("telecom"), PartyService)


def test_an_address_that_is_taken_ends_the_service(folder: Path) -> None:
    import socket

    with socket.create_server(("127.0.0.1", 0)) as taken:
        service = prepared("bank", http=HttpSettings(f"127.0.0.1:{taken.getsockname()[1]}"))
        assert isinstance(service, HttpService)
        with pytest.raises(ConfigError, match=r"--http: cannot listen at 127\.0\.0\.1"):
            service.run()


def test_a_line_is_said_once_until_the_parties_are_linked_again() -> None:
    said: list[str] = []
    say = OnceEach(said.append)
    for line in ("dialling", "cannot reach", "dialling", "cannot reach", "linked with telecom", "dialling"):
        say(line)
    assert said == ["dialling", "cannot reach", "linked with telecom", "dialling"]


@pytest.mark.parametrize("certificate", [None, Path("service.pem")], ids=["http", "https"])
def test_the_second_packet_of_an_answer_waits_for_nobody(certificate: Path | None) -> None:
    """What is accepted at the address has TCP_NODELAY; without, the body of an answer would come 40 ms later."""
    said: list[str] = []
    access = SimpleNamespace(host="127.0.0.1", port=0, certificate=certificate)
    service: Any = SimpleNamespace(access=access, notify=said.append)
    with HttpService._listening(service) as listening, socket.create_connection(listening.getsockname()):
        accepted, _ = listening.accept()
        with accepted:
            assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY) != 0
    assert said[0].startswith(f"requests: {'https' if certificate else 'http'}://")

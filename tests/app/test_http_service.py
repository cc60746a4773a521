"""Requests for scores: what is taken, what is refused with which words, and who may ask. No socket is opened."""

from __future__ import annotations

import asyncio
import json
import os
import random
import re
import threading
from collections.abc import Mapping
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pytest
import torch

from splitvfl.app.http_access import HttpSettings, access
from splitvfl.app.http_metrics import HttpMetrics
from splitvfl.app.http_records import OwnRecords, RequestMistake, RequestReader, _unique
from splitvfl.app.http_service import ScoringApplication
from splitvfl.data.cell_format import CellFormat
from splitvfl.data.columns import Columns, Records
from splitvfl.data.encoding import Encoding, FittedCategories, FittedEncoding, FittedNumbers
from splitvfl.data.fitting import fit_encoding
from splitvfl.data.record_index import RecordIndex, asked_digests
from splitvfl.errors import ConfigError, PrivacyError, ProtocolError
from splitvfl.exchange.online import Scored
from splitvfl.net.certs import make_certificates
from splitvfl.run.online import Question, Unavailable

RUN = "a" * 32
UUID = "123e4567-e89b-12d3-a456-4266141740ab"
ENCODING = FittedEncoding(
    columns=(
        FittedNumbers(column="age", scale="standard", offset=40.0, spread=10.0, median=35.0, marked=True),
        FittedNumbers(column="income", scale="log1p", offset=0.0, spread=1.0, median=None, marked=False),
        FittedCategories(column="plan", kind="text", values=("a", "b", None), onehot=True),
        FittedCategories(column="branch", kind="number", values=(1, 7, 2**60 + 1), onehot=False),
    )
)
RECORD = {"id": "c1", "age": 44, "income": 0.0, "plan": "b", "branch": 7}
HEADERS = {"host": "127.0.0.1:8080", "content-type": "application/json"}


class Service:
    """In the place of a label service: every record's score is its first number; some are not held."""

    partners = ("telecom", "shop")
    party = SimpleNamespace(name="bank")

    def __init__(self) -> None:
        self.missing: tuple[str, ...] = ()
        self.failed: Exception | None = None
        self.asked: list[Question] = []
        self.standing = {"telecom": {}, "shop": {}}  # by digest; held where nothing is said
        self.error: Exception | None = None
        self.answers = True

    def submit(self, question: Question) -> Future[Scored]:
        if self.missing:
            raise Unavailable("waiting for telecom", missing=self.missing, retry_s=2)
        self.asked.append(question)
        future: Future[Scored] = Future()
        if self.error is not None:
            future.set_exception(self.error)
        elif self.answers:
            future.set_result(self._scored(question))
        return future

    def _scored(self, question: Question) -> Scored:
        digests = [bytes(row) for row in question.digests.numpy()]
        standing = {
            name: torch.tensor([known.get(one, 1) for one in digests], dtype=torch.uint8)
            for name, known in self.standing.items()
        }
        held = Scored(torch.zeros(0), standing).held
        return Scored(question.records.columns.numeric[held, 0], standing)


class Client:
    def __init__(self, **settings: Any) -> None:
        self.service = Service()
        door = access(settings.pop("door", HttpSettings("127.0.0.1:8080")))
        reading = {"id_column": "customer", **settings.pop("reading", {})}
        encoding = reading.pop("encoding", ENCODING)
        self.metrics = HttpMetrics("bank", Service.partners, encoding)
        self.application = ScoringApplication(
            self.service,  # type: ignore[arg-type]
            RequestReader(encoding, run=RUN, **reading),
            door,
            self.metrics,
            model={"step": 8},
            **settings,
        )
        self.taken = 0

    def call(
        self, method: str, path: str, body: bytes = b"", headers: Mapping[str, str] | None = None, **scope: Any
    ) -> tuple[int, dict[str, str], bytes]:
        return asyncio.run(self.asked(method, path, body, headers, **scope))

    async def asked(
        self, method: str, path: str, body: bytes = b"", headers: Mapping[str, str] | None = None, **scope: Any
    ) -> tuple[int, dict[str, str], bytes]:
        given = HEADERS if headers is None else headers
        pieces = [body[start : start + 1000] for start in range(0, len(body), 1000)] or [b""]
        sent: list[dict[str, Any]] = []

        async def receive() -> dict[str, Any]:
            self.taken += 1
            if not pieces:
                return {"type": "http.disconnect"}
            return {"type": "http.request", "body": pieces.pop(0), "more_body": bool(pieces)}

        async def send(message: dict[str, Any]) -> None:
            sent.append(message)

        raw = [(name.encode(), value.encode("latin-1")) for name, value in given.items()]
        full = {"type": "http", "method": method, "path": path, "query_string": b"", "headers": raw, **scope}
        await self.application(full, receive, send)  # type: ignore[arg-type]
        told = {name.decode(): value.decode() for name, value in sent[0]["headers"]}
        return sent[0]["status"], told, b"".join(message.get("body", b"") for message in sent[1:])

    def score(self, content: Any, **settings: Any) -> tuple[int, dict[str, Any]]:
        body = content if isinstance(content, bytes) else json.dumps(content).encode()
        status, _, answer = self.call("POST", "/score", body, **settings)
        return status, json.loads(answer)


def refused(content: Any, **settings: Any) -> str:
    status, answer = Client(**settings).score(content)
    assert status in (400, 413, 422)
    assert set(answer) == {"error"}
    return str(answer["error"])


# --- what is asked and answered


def test_one_record_and_many_are_scored() -> None:
    client = Client()

    assert client.score(RECORD) == (200, {"id": "c1", "score": pytest.approx(0.4), "model": {"step": 8}})
    status, answer = client.score({"records": [RECORD, {**RECORD, "id": 7, "age": 20}]})

    assert status == 200
    assert [(one["id"], one["score"]) for one in answer["scores"]] == [("c1", pytest.approx(0.4)), (7, -2.0)]
    np.testing.assert_array_equal(client.service.asked[1].digests.numpy(), asked_digests(["c1", "7"], run=RUN))


@pytest.mark.parametrize(
    ("given", "name"),
    [(7, "7"), (" 7 ", "7"), ("007", "007"), ("7.0", "7.0"), ("Zoe\u0308", "Zo\u00eb"), (UUID.upper(), UUID)],
)
def test_ids_of_requests_are_read_as_those_of_files(given: object, name: str) -> None:
    client = Client()

    client.score({**RECORD, "id": given})

    np.testing.assert_array_equal(client.service.asked[0].digests.numpy(), asked_digests([name], run=RUN))


def test_columns_become_the_numbers_that_a_file_gives() -> None:
    rows = [
        RECORD,
        {"customer": "c2", "age": None, "income": 1e6, "plan": None, "branch": 2**60 + 1},
        {"customer": "c3", "age": 1, "income": -3, "plan": "new", "branch": 2**60},
    ]
    client = Client()

    _, answer = client.score({"records": rows})

    table = pa.table(
        {
            "age": pa.array([44.0, None, 1.0]),
            "income": pa.array([0.0, 1e6, -3.0]),
            "plan": pa.array(["b", None, "new"]),
            "branch": pa.array([7, 2**60 + 1, 2**60]),
        }
    )
    expected = ENCODING.apply(table, source="a file")
    columns = client.service.asked[0].records.columns
    np.testing.assert_array_equal(columns.numeric.numpy(), expected.numeric)
    np.testing.assert_array_equal(columns.categorical.numpy(), expected.codes)
    assert [one.get("unknown_categories") for one in answer["scores"]] == [None, None, ["plan", "branch"]]


def test_text_is_read_as_the_cells_of_the_training_were() -> None:
    written = CellFormat(decimal=",", thousands=".", missing_values=("?",))
    client = Client(reading={"encoding": msgspec.structs.replace(ENCODING, written=written)})
    rows = [
        {"id": "c1", "age": "44,5", "income": "1.234,5", "plan": "?", "branch": "7"},
        {"id": "c2", "age": "?", "income": 1234.5, "plan": "b", "branch": 7},
    ]

    status, _ = client.score({"records": rows})

    table = pa.table({"age": [44.5, None], "income": [1234.5, 1234.5], "plan": [None, "b"], "branch": [7, 7]})
    np.testing.assert_array_equal(
        client.service.asked[0].records.columns.numeric.numpy(), ENCODING.apply(table, source="a file").numeric
    )
    assert status == 200
    for cell, told in (("44.5", "expected a number or null, as in the file"), (True, "expected a number")):
        status, answer = client.score({"records": [{**rows[0], "age": cell}]})
        assert status == 422
        assert told in answer["error"]
    status, _ = Client().score({"records": [rows[0]]})
    assert status == 422


def test_what_a_partner_does_not_hold_is_an_answer() -> None:
    client = Client()
    one, two, three = (asked_digests([name], run=RUN).tobytes() for name in ("c1", "c2", "c3"))
    client.service.standing = {"telecom": {one: 0, three: 0}, "shop": {three: 0}}

    records = [{**RECORD, "id": name, "age": 40 + place} for place, name in enumerate(("c1", "c2", "c3"))]
    status, answer = client.score({"records": records})

    assert status == 200
    assert answer["scores"] == [
        {"id": "c1", "not_held": ["telecom"]},
        {"id": "c2", "score": pytest.approx(0.1)},
        {"id": "c3", "not_held": ["telecom", "shop"]},
    ]
    text = client.call("GET", "/metrics")[2].decode()
    assert 'splitvfl_not_held_records_total{party="telecom"} 2.0' in text
    assert "splitvfl_scored_records_total 1.0" in text
    assert two not in client.service.standing["telecom"]


def test_a_record_that_a_partner_scores_no_more_is_an_answer_beside_others() -> None:
    client = Client()
    one, three = (asked_digests([name], run=RUN).tobytes() for name in ("c1", "c3"))
    client.service.standing = {"telecom": {one: 3, three: 3}, "shop": {three: 0}}
    records = [{**RECORD, "id": name, "age": 40 + place} for place, name in enumerate(("c1", "c2", "c3"))]
    status, answer = client.score({"records": records})
    assert status == 200
    assert answer["scores"] == [
        {"id": "c1", "scored_enough": ["telecom"]},
        {"id": "c2", "score": pytest.approx(0.1)},
        {"id": "c3", "not_held": ["shop"], "scored_enough": ["telecom"]},
    ]
    assert "splitvfl_scored_records_total 1.0" in client.call("GET", "/metrics")[2].decode()


def test_a_limit_of_a_partner_is_told_as_such() -> None:
    client = Client()
    client.service.standing["shop"][asked_digests(["c1"], run=RUN).tobytes()] = 2
    status, headers, body = client.call("POST", "/score", json.dumps(RECORD).encode())
    assert (status, headers["retry-after"], json.loads(body)["limited"]) == (429, "60", ["shop"])


OWN_IDS = pa.array(["c1", "c2", "c3"])
OWN = OwnRecords(
    Records(
        torch.tensor([0, 1, 2]), Columns(torch.tensor([[0.5], [1.5], [2.5]]), torch.zeros(3, 0, dtype=torch.int64))
    ),
    RecordIndex.of(OWN_IDS, run=RUN, case="kept", source="bank.csv"),
)


def test_own_columns_are_looked_up_by_the_id() -> None:
    client = Client(reading={"own": OWN, "encoding": None})

    _, answer = client.score({"records": [{"id": "c3"}, {"id": "c9"}, {"id": " c1"}]})

    assert answer["scores"] == [
        {"id": "c3", "score": 2.5},
        {"id": "c9", "not_held": ["bank"]},
        {"id": " c1", "score": 0.5},
    ]
    # Of a record that the label party does not hold, the partners hear nothing.
    assert len(client.service.asked[0].digests) == 2
    assert client.score({"id": "c9"})[1]["not_held"] == ["bank"]
    assert len(client.service.asked) == 1
    assert "no such column; send the id alone" in client.score({"id": "c1", "age": 3})[1]["error"]


def test_columns_that_are_sent_and_columns_that_are_looked_up_go_together() -> None:
    own = OwnRecords(
        Records(OWN.records.ids, Columns(torch.ones(3, 6), torch.ones(3, 1, dtype=torch.int32))), OWN.index
    )
    client = Client(reading={"own": own})

    _, answer = client.score({"records": [{"id": "c3"}, {**RECORD, "id": "c1"}, {"id": "c9"}]})

    assert [one.get("score") for one in answer["scores"]] == [1.0, pytest.approx(0.4), None]
    assert client.service.asked[0].records.columns.categorical.tolist() == [[1], [2]]


def test_a_label_party_without_columns_is_sent_ids_only() -> None:
    client = Client(reading={"encoding": FittedEncoding(columns=())})
    client.service._scored = lambda question: Scored(  # type: ignore[method-assign]
        torch.full((question.records.count,), 0.25), {"telecom": torch.ones(question.records.count).byte()}
    )
    assert client.score({"records": [{"id": "a"}, {"id": "b"}]})[1]["scores"][1] == {"id": "b", "score": 0.25}


def test_numeric_rows_are_scaled_down_as_the_half_says() -> None:
    client = Client(reading={"row_norm": 0.1})
    client.score(RECORD)
    records = client.service.asked[0].records
    assert records.rows(torch.tensor([0])).columns.numeric.norm().item() == pytest.approx(0.1)


# --- what is refused

DEEP = b"[" * 100_000


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (b"", "expected JSON: Expecting value"),
        (b"{", "expected JSON"),
        (b"\xff", "expected UTF-8, got the byte 0xff"),
        (DEEP, "too deep to read"),
        (b'{"id": "a", "id": "b"}', 'expected every key once, got "id" twice'),
        (b'{"id": NaN}', "there is no NaN"),
        (b'{"id": -Infinity}', "there is no -Infinity"),
        (b'{"id": 1' + b"0" * 5000 + b"}", "expected JSON"),
        ([RECORD], "expected an object, got a list; send "),
        ({"records": []}, "records: expected a list of 1 to 1000 records, got 0"),
        ({"records": [RECORD] * 1001}, "records: expected a list of 1 to 1000 records, got 1001"),
        ({"records": RECORD}, "records: expected a list of 1 to 1000 records, got an object"),
        ({"records": [RECORD], "more": 1}, 'expected nothing beside records, got "more"'),
        ({"records": [RECORD, 3]}, "records[1]: expected an object with an id, got 3"),
        ({}, "expected id, the id of the record, got none"),
        ({"records": [{**RECORD, "customer": "c"}]}, "records[0].id, the id of the record, got both id and customer"),
        ({**RECORD, "id": True}, "id: expected an id, a text or a whole number, got true"),
        ({**RECORD, "id": 1.5}, "id: expected an id, a text or a whole number, got 1.5"),
        ({**RECORD, "id": None}, "id: expected an id, a text or a whole number, got null"),
        ({**RECORD, "id": "  "}, "id: expected an id of 1 to 200 characters, got 2"),
        ({**RECORD, "id": "x" * 201}, "id: expected an id of 1 to 200 characters, got 201"),
        (b'{"id": "\\ud800", "age": 1}', "id: expected an id of Unicode characters"),
        ({"id": "c1", "agee": 3, "income": 1.0}, "agee: no such column; did you mean 'age'?"),
        ({**RECORD, "agee": 3}, "agee: no such column"),
        ({**RECORD, "\n\x1b[2J": 3}, '"\\n\\u001b[2J": no such column'),
        ({"id": "c1", "age": 3}, "income: expected a number, got no such key; a record needs all of age, income, plan"),
        ({"records": [RECORD, {**RECORD, "income": None}]}, "records[1].income: expected a number, got null"),
        ({**RECORD, "age": "44"}, 'age: expected a number or null, got "44"'),
        ({**RECORD, "age": [1]}, "age: expected a number or null, got a list"),
        ({**RECORD, "age": True}, "age: expected a number or null, got true; of a column of truth values send 1 or 0"),
        ({"records": [RECORD, {**RECORD, "income": False}]}, "records[1].income: expected a number, got false; of a"),
        ({**RECORD, "branch": True}, "branch: expected a number or null, got true"),
        ({**RECORD, "plan": True}, "plan: expected a text or null, got true"),
        ({**RECORD, "plan": 3}, "plan: expected a text or null, got 3"),
        ({**RECORD, "plan": "x" * 10_001}, "plan: expected a text of at most 10000 Unicode characters, got 10001"),
        ({**RECORD, "branch": "7"}, 'branch: expected a number or null, got "7"'),
        ({**RECORD, "branch": 2**63}, "branch: expected a number within 64 bits, got 9223372036854775808"),
        ({**RECORD, "age": 10**400}, "age: expected a number within 64 bits, got 1000"),
        (json.dumps(RECORD).replace("44", "1e999").encode(), "age: expected a finite number, got one beyond"),
        (
            {"records": [RECORD, {**RECORD, "age": 1e300}]},
            "records[1]: column 'age' of the request holds values too large",
        ),
    ],
)
def test_mistakes_are_told_with_what_was_expected_what_came_and_where(content: Any, told: str) -> None:
    assert told in refused(content)


def test_mutated_bodies_are_answered_or_refused_and_nothing_else() -> None:
    """Whatever comes is a score or a mistake of the client's: nothing raises."""
    client, draw = Client(), random.Random(0)
    whole = json.dumps({"records": [RECORD, {**RECORD, "age": None, "plan": None}]}).encode()
    cuts = [b"", b"null", b"1e309", b"-0", b'"', b"{", b"}", b"[", b",", b":", b"true", b"9" * 30]
    cuts += [b"\\u0000", b"\\ud800", b"\x80"]
    seen = set()
    for _ in range(600):
        body = bytearray(whole)
        for _ in range(draw.randint(1, 3)):
            start = draw.randrange(len(body))
            body[start : start + draw.randint(0, 6)] = draw.choice(cuts)
        status, answer = client.score(bytes(body))
        assert (status == 200) != ("error" in answer)
        seen.add(status)
    assert seen == {200, 400, 422}


class Name(str):
    compared = 0

    def __eq__(self, other: object) -> bool:
        Name.compared += 1
        return str.__eq__(self, other)

    __hash__ = str.__hash__


def test_a_key_that_comes_twice_is_found_without_comparing_all_with_all() -> None:
    pairs = [(Name(place), place) for place in [*range(1000), 999]]
    with pytest.raises(RequestMistake, match='expected every key once, got "999" twice'):
        _unique(pairs)
    assert Name.compared < 10 * len(pairs)


def test_others_are_answered_while_a_body_is_read() -> None:
    client = Client()
    others, read = threading.Event(), client.application._reader.read
    waited: list[bool] = []

    def slow(body: bytes) -> Any:
        waited.append(others.wait(5.0))
        return read(body)

    client.application._reader.read = slow  # type: ignore[method-assign]

    async def health() -> None:
        await asyncio.sleep(0)
        await client.asked("GET", "/health")
        others.set()

    async def both() -> None:
        await asyncio.gather(client.asked("POST", "/score", json.dumps(RECORD).encode()), health())

    asyncio.run(both())
    assert waited == [True]


def test_what_came_is_shown_short() -> None:
    assert len(refused({**RECORD, "age": "x" * 9999})) < 200


def test_a_body_that_is_too_large_is_not_read() -> None:
    body = json.dumps({"records": [RECORD] * 900}).encode()
    client = Client(most_bytes=20_000)
    status, headers, answer = client.call("POST", "/score", body, {**HEADERS, "content-length": str(len(body))})
    assert (status, client.taken) == (413, 0)
    assert b"at most 20000 bytes" in answer
    assert headers["connection"] == "close"
    # And where nobody says how long it is, no further than that.
    assert client.call("POST", "/score", body)[0] == 413
    assert client.taken <= 21


@pytest.mark.parametrize("length", ["-1", "x", "1" * 30, "9999999"])
def test_lengths_that_are_none_are_refused(length: str) -> None:
    assert Client().call("POST", "/score", b"{}", {**HEADERS, "content-length": length})[0] == 413


def test_a_page_of_another_site_may_not_ask() -> None:
    """A browser sends such requests without asking; what it asks about first, nobody allows."""
    body = json.dumps(RECORD).encode()
    client = Client()
    for kind in ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data", ""):
        assert client.call("POST", "/score", body, {**HEADERS, "content-type": kind})[0] == 415
    status, headers, _ = client.call("OPTIONS", "/score", b"", {**HEADERS, "origin": "https://evil.example"})
    assert status == 405
    assert not [name for name in headers if name.startswith("access-control")]
    for host in ("evil.example", "evil.example:8080", "127.0.0.1.evil.example", ""):
        for path in ("/score", "/health", "/metrics", "/"):
            assert client.call("GET", path, b"", {**HEADERS, "host": host})[0] == 421
    for host in ("localhost:8080", "[::1]:8080", "127.0.0.1", "LOCALHOST"):
        assert client.call("GET", "/health", b"", {"host": host})[0] == 200
    assert client.service.asked == []


def test_json_in_another_spelling_of_its_type_is_taken() -> None:
    headers = {**HEADERS, "content-type": "Application/JSON; charset=utf-8"}
    assert Client().call("POST", "/score", json.dumps(RECORD).encode(), headers)[0] == 200
    assert Client().call("POST", "/score", b"x", {**HEADERS, "content-encoding": "gzip"})[0] == 415


def test_other_paths_and_methods_are_told_in_json() -> None:
    for method, path, status in (("GET", "/nothing", 404), ("GET", "/score", 405), ("POST", "/health", 405)):
        found, _, body = Client().call(method, path)
        assert found == status
        assert "POST /score" in json.loads(body)["error"]


# --- when there is no answer


def test_a_slash_too_many_leads_nowhere() -> None:
    status, headers, answer = Client().call("GET", "/health/")
    assert (status, headers.get("location")) == (404, None)
    assert "error" in json.loads(answer)


@pytest.mark.parametrize(
    ("host", "known"),
    [
        *(
            (name, True)
            for name in ("127.0.0.1", "LOCALHOST:80", "localhost.:8080", "[::1]", "[::1]:8080", "127.0.0.1:")
        ),
        *((name, False) for name in ("[::1]evil", "[::1", "::1]", "127.0.0.1:evil.com", "127.0.0.1:80:80", "")),
        *((name, False) for name in ("[::1]:evil", "evil@127.0.0.1", "127.0.0.1/", "127.0.0.1\n", "[127.0.0.1].evil")),
    ],
)
def test_a_host_is_read_to_its_end(host: str, known: bool) -> None:
    assert access(HttpSettings("127.0.0.1:8080")).knows_host(host) is known


@pytest.mark.parametrize("option", ["token", "key", "certificate"])
def test_a_pipe_is_not_waited_for(secrets: Path, tmp_path: Path, option: str) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe, 0o600)
    with pytest.raises(ConfigError, match="to be a regular file, got a pipe"):
        access(guarded(secrets, **{option: pipe}))


def test_missing_partners_are_named() -> None:
    client = Client()
    client.service.missing = ("telecom",)
    status, headers, body = client.call("POST", "/score", json.dumps(RECORD).encode())
    assert (status, headers["retry-after"]) == (503, "2")
    assert json.loads(body) == {"error": "waiting for telecom", "missing": ["telecom"]}
    assert client.call("GET", "/health")[0] == 503
    client.service.missing = ()
    assert client.call("GET", "/health")[0] == 200
    client.service.failed = PrivacyError("ended")
    assert client.call("GET", "/health")[0] == 503


def test_nobody_waits_for_ever() -> None:
    client = Client(timeout_s=0.01)
    client.service.answers = False
    status, answer = client.score(RECORD)
    assert status == 503
    assert "no answer within 0.01 s" in answer["error"]


def test_a_record_without_a_finite_output_is_refused_by_its_place() -> None:
    client = Client()
    content = {"records": [RECORD, {**RECORD, "age": 1e30}]}
    told = "expected values on which the model has a finite output"
    answered = client.service._scored

    def overflowed(question: Question) -> Scored:
        found = answered(question)
        return replace(found, scores=torch.where(found.scores > 1e20, torch.nan, found.scores))

    client.service._scored = overflowed  # type: ignore[method-assign]

    assert client.score(RECORD)[0] == 200
    for asked, where in ((content, "records[1]: "), (content["records"][1], "")):
        status, answer = client.score(asked)
        assert status == 422
        assert answer["error"].startswith(f"{where}{told}")


@pytest.mark.parametrize(
    ("error", "status", "told"),
    [
        (ProtocolError("the activation from telecom holds NaN"), 502, "a partner sent what does not belong there"),
        (PrivacyError("of c1"), 500, "the service has ended: PrivacyError"),
    ],
)
def test_errors_between_the_parties_are_told(error: Exception, status: int, told: str) -> None:
    client = Client()
    client.service.error = error
    assert client.score(RECORD)[0] == status
    assert told in client.score(RECORD)[1]["error"]
    assert "c1" not in client.score(RECORD)[1]["error"]


# --- what is told to everybody


def test_what_a_record_needs_is_told() -> None:
    about = json.loads(Client().call("GET", "/")[2])
    assert about["record"] == {
        "id": "a text or a whole number",
        "age": "a number or null",
        "income": "a number",
        "plan": "a text or null",
        "branch": "a number or null",
    }
    assert about["partners"] == ["telecom", "shop"]


def test_measurements_hold_no_id_and_no_value() -> None:
    client = Client()
    client.score({**RECORD, "id": "zebra-1789", "income": 123456.75})
    client.score({**RECORD, "id": "zebra-1789", "income": "123456.75"})
    client.metrics.batch(3, 0.02)
    client.metrics.met("telecom", True)
    text = client.call("GET", "/metrics")[2].decode()
    assert 'splitvfl_requests_total{status="200"} 1.0' in text
    assert 'splitvfl_requests_total{status="422"} 1.0' in text
    assert 'splitvfl_partner_connected{partner="telecom"} 1.0' in text
    assert 'splitvfl_batch_records_bucket{le="4.0"} 1.0' in text
    assert "splitvfl_round_trip_seconds_count 1.0" in text
    assert "zebra" not in text
    assert "123456" not in text


# --- who may ask

TOKEN = "0123456789abcdef0123456789abcdef"


@pytest.fixture(scope="module")
def secrets(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("secrets")
    make_certificates(folder, ["bank"], hosts={"bank": ["scores.bank.example"]})
    (folder / "token").write_text(TOKEN + "\n")
    (folder / "token").chmod(0o600)
    return folder


def guarded(secrets: Path, address: str = "0.0.0.0:8443", **change: Any) -> HttpSettings:
    files = {"token": secrets / "token", "certificate": secrets / "bank.pem", "key": secrets / "bank.key", **change}
    return HttpSettings(address, **files)


def test_a_token_is_asked_for_before_anything_is_read(secrets: Path) -> None:
    client = Client(door=guarded(secrets))
    body, named = json.dumps(RECORD).encode(), {**HEADERS, "host": "scores.bank.example"}
    for given in (None, "", TOKEN, f"Bearer {TOKEN}x", f"Bearer {TOKEN[:-1]}", f"Basic {TOKEN}", "Bearer \xe9"):
        headers = named if given is None else {**named, "authorization": given}
        status, told, _ = client.call("POST", "/score", body, headers)
        assert (status, told["www-authenticate"], client.taken) == (401, "Bearer", 0)
        assert client.call("GET", "/metrics", b"", headers)[0] == 401
        # A probe learns that the service is ready, and nothing else.
        assert json.loads(client.call("GET", "/health", b"", headers)[2]) == {"ready": True}
    assert client.call("POST", "/score", body, {**named, "authorization": f"bearer {TOKEN}"})[0] == 200
    assert client.call("GET", "/health", b"", {**named, "host": "127.0.0.1"})[0] == 421


def test_another_address_than_loopback_needs_a_token_and_tls(secrets: Path) -> None:
    for address in ("0.0.0.0:80", ":80", "192.0.2.1:80", "bank.example:80", "[::]:80"):
        for without in ({"token": None}, {"certificate": None, "key": None}):
            with pytest.raises(ConfigError, match="give --token-file, --tls-certificate and --tls-key"):
                access(guarded(secrets, address, **without))
        assert access(guarded(secrets, address)).has_token
    for address in ("127.0.0.1:80", "localhost:80", "[::1]:80", "127.8.9.1:80"):
        assert not access(HttpSettings(address)).has_token
    with pytest.raises(ConfigError, match="go together"):
        access(guarded(secrets, "127.0.0.1:80", key=None))
    with pytest.raises(ConfigError, match=r"--http: expected an address like"):
        access(HttpSettings("8080"))


def test_files_that_others_may_read_or_that_hold_no_secret_are_refused(secrets: Path, tmp_path: Path) -> None:
    def token(content: bytes, mode: int = 0o600) -> Path:
        path = tmp_path / "token"
        path.unlink(missing_ok=True)
        path.write_bytes(content)
        path.chmod(mode)
        return path

    for content, mode, told in (
        (TOKEN.encode(), 0o644, r"mode 0644.*chmod 600"),
        (TOKEN.encode(), 0o620, "mode 0620"),
        (b"short", 0o600, "one token of 20 letters and digits or more, got 5 characters"),
        (b"a b" * 20, 0o600, "one token of 20"),
        (b"\xff" * 40, 0o600, "cannot read"),
        (b"a" * 5000, 0o600, "more than 4096 bytes"),
    ):
        with pytest.raises(ConfigError, match=told):
            access(guarded(secrets, token=token(content, mode)))
    with pytest.raises(ConfigError, match=r"--token-file: cannot read .*none: No such file"):
        access(guarded(secrets, token=tmp_path / "none"))
    with pytest.raises(ConfigError, match=r"--tls-certificate: .* is no certificate with names in PEM"):
        access(guarded(secrets, certificate=token(b"x")))
    with pytest.raises(ConfigError, match=r"--tls-key: .*others than its owner may use this file"):
        access(guarded(secrets, key=token(b"x", 0o640)))


def test_drift_of_the_columns_that_requests_send_is_a_metric(monkeypatch: pytest.MonkeyPatch) -> None:
    table = pa.table({"age": np.arange(100.0), "plan": ["a", "b"] * 50})
    encoding = fit_encoding(
        table,
        ["age", "plan"],
        train=np.arange(100),
        encoding=Encoding(missing="indicator"),
        categories=(),
        source="t",
    )
    client = Client(reading={"encoding": encoding})

    def index_of(age: float | None, records: int) -> float:
        rows = [{"customer": f"c{row}", "age": age, "plan": "z" if row else "a"} for row in range(records)]
        assert client.score({"records": rows})[0] == 200
        text = client.call("GET", "/metrics")[2].decode()
        return float(re.search(r'splitvfl_stability_index{column="age"} (\S+)', text)[1])  # type: ignore[index]

    assert index_of(250.0, 40) > 3
    assert index_of(None, 20) > 3
    text = client.call("GET", "/metrics")[2].decode()
    for line in (
        'splitvfl_column_values_total{column="age"} 60.0',
        'splitvfl_outside_range_values_total{column="age"} 40.0',
        'splitvfl_missing_values_total{column="age"} 20.0',
        'splitvfl_unknown_category_values_total{column="plan"} 58.0',
    ):
        assert line in text
    # Counts of all records go on, and the index is that of the latest ones: memory stays bounded.
    monkeypatch.setattr("splitvfl.app.http_metrics._WINDOW", 60)
    first = index_of(50.0, 60)
    assert index_of(50.0, 60) != first
    assert sum(counts["age"].rows for counts in (client.metrics._window, client.metrics._window_before)) == 120

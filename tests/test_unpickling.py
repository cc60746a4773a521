"""No byte of a peer can name code: nothing that unpickles or evaluates is within reach of what reads messages."""

from __future__ import annotations

import ast
import pickle  # noqa: TID251 - the enemy
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch

from splitvfl.errors import ProtocolError
from splitvfl.messaging.conversation import Expected
from splitvfl.messaging.json_message import awaited_note, read_note
from splitvfl.messaging.messages import Message, decode
from splitvfl.net.frames import Assembly, pack, read_bye, read_hello
from tests.test_imports import FILES, own_imports

# What reads a peer's bytes. Everything that these import, and so on, is within reach.
READERS = ("net", "exchange", "messaging", "crypto", "run")

FORBIDDEN_MODULES = {"cloudpickle", "code", "dill", "joblib", "marshal", "pickle", "shelve"}
FORBIDDEN_CALLS = {
    "compile",
    "eval",
    "exec",
    "__import__",
    "importlib.import_module",
    "os.popen",
    "os.system",
    "torch.jit.load",
    "torch.package.PackageImporter",
    "yaml.full_load",
    "yaml.load",
    "yaml.load_all",
    "yaml.unsafe_load",
}
# Calls that are harmless with this argument, and only with it.
ONLY_WITH = {
    "torch.load": ("weights_only", "True", "False"),
    "np.load": ("allow_pickle", "False", "False"),
    "numpy.load": ("allow_pickle", "False", "False"),
}


def within_reach() -> set[str]:
    waiting = [module for module in FILES if module.split(".")[0] in READERS]
    found: set[str] = set()
    while waiting:
        module = waiting.pop()
        if module not in found:
            found.add(module)
            waiting.extend(own_imports(FILES[module]) - found)
    return found


def dangers(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = [f"{node.module}", *(f"{node.module}.{alias.name}" for alias in node.names)]
        else:
            names = []
        yield from (f"line {node.lineno}: {name}" for name in names if name.split(".")[0] in FORBIDDEN_MODULES)
        yield from (f"line {node.lineno}: {name}" for name in names if name in FORBIDDEN_CALLS | set(ONLY_WITH))
        if isinstance(node, ast.Call):
            yield from _dangers_of(node)


# Only what ends like one of these is put together again, which takes time; so does reading what has none of the words.
_LAST = {name.rpartition(".")[2] for name in FORBIDDEN_CALLS | set(ONLY_WITH)}
_WORDS = re.compile(rf"\b({'|'.join(FORBIDDEN_MODULES | _LAST)})\b")


def _dangers_of(call: ast.Call) -> Iterator[str]:
    if getattr(call.func, "attr", getattr(call.func, "id", None)) not in _LAST:
        return
    name = ast.unparse(call.func)
    if name in FORBIDDEN_CALLS:
        yield f"line {call.lineno}: {name}"
    if name in ONLY_WITH:
        word, wanted, default = ONLY_WITH[name]
        given = {one.arg: ast.unparse(one.value) for one in call.keywords}
        if given.get(word, default) != wanted:
            yield f"line {call.lineno}: {name} without {word}={wanted}"


def test_what_reads_messages_reaches_what_it_should() -> None:
    reached = within_reach()
    assert {"net.frames", "run.networked", "exchange.split", "exchange.psi", "run.checkpoint", "party.party"} <= reached


@cache
def dangers_in(module: str) -> list[str]:
    return dangers_in_text(FILES[module].read_text(encoding="utf-8"))


def dangers_in_text(source: str) -> list[str]:
    return list(dangers(ast.parse(source))) if _WORDS.search(source) else []


def test_nothing_within_reach_can_run_what_it_reads() -> None:
    # It imports what a table in the code names, when the code asks for a name of the table.
    by_table = {"lazy_names": ["line 7: importlib.import_module"]}
    assert {module: dangers_in(module) for module in sorted(within_reach()) if dangers_in(module)} == by_table


def test_nothing_is_unpickled_anywhere() -> None:
    """Out of reach of messages imports by name and the like are allowed; unpickling is allowed nowhere."""
    found = [(module, danger) for module in sorted(FILES) for danger in dangers_in(module)]
    named = [(module, danger, danger.split(": ", 1)[1].split(" ")[0]) for module, danger in found]

    assert not [
        f"{module}, {danger}"
        for module, danger, name in named
        if name.split(".")[0] in FORBIDDEN_MODULES or name in ONLY_WITH
    ]


@pytest.mark.parametrize(
    ("source", "dangerous"),
    [
        ("import pickle", True),
        ("from pickle import loads", True),
        ("from torch import load", True),
        ("def f():\n    import marshal", True),
        ("torch.load(path)", True),
        ("torch.load(path, weights_only=False)", True),
        ("torch.load(path, weights_only=True)", False),
        ("np.load(path)", False),
        ("np.load(path, allow_pickle=True)", True),
        ("np.load(path, allow_pickle=flag)", True),
        ("yaml.load(text, Loader=yaml.SafeLoader)", True),
        ("yaml.safe_load(text)", False),
        ("eval(text)", True),
        ("module.eval()", False),
        ("exec(text)", True),
    ],
)
def test_the_search_finds_what_it_looks_for(source: str, dangerous: bool) -> None:
    assert bool(dangers_in_text(source)) == dangerous


# --- a bomb


class Bomb:
    """Leaves a file behind where it is unpickled."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return open, (str(self._path), "w")


@pytest.fixture(params=range(pickle.HIGHEST_PROTOCOL + 1))
def bomb(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[bytes]:
    """The bomb's bytes, which must not go off within the test, and would."""
    path = tmp_path / "harm"
    data = pickle.dumps(Bomb(path), protocol=request.param)
    yield data
    assert not path.exists()
    pickle.loads(data).close()
    assert path.exists()


def test_a_bomb_for_a_frame_is_refused(bomb: bytes) -> None:
    expected = Expected("telecom", "points", 0, (torch.uint8,), (4, 32))
    genuine = next(pack(Message("telecom", "bank", "points", 0, torch.zeros(4, 32, dtype=torch.uint8)), 0).frames())
    for frame in (bomb, genuine[:1] + len(bomb).to_bytes(2, "little") + bomb, genuine[:-128] + bomb):
        with pytest.raises(ProtocolError):
            Assembly(frame, expected, receiver="bank", sequence=0)
    assembly = Assembly(genuine, expected, receiver="bank", sequence=0)
    with pytest.raises(ProtocolError):
        assembly.add(bomb)


def test_a_bomb_for_a_greeting_or_a_leave_is_refused(bomb: bytes) -> None:
    for prefix in (b"", b"\x01splitvfl\x01\x00", b"\x04"):
        for read in (read_hello, read_bye):
            with pytest.raises(ProtocolError):
                read(prefix + bomb, "telecom")


def test_a_bomb_for_an_envelope_is_refused(bomb: bytes) -> None:
    with pytest.raises(ProtocolError):
        decode(bomb)


def test_a_bomb_in_a_message_stays_bytes(bomb: bytes) -> None:
    payload = torch.tensor(list(bomb), dtype=torch.uint8)
    message = Message("telecom", "bank", "agreement", 0, payload)
    (frame,) = pack(message, 0).frames()
    arrived = Assembly(frame, awaited_note("telecom", "agreement", 0), receiver="bank", sequence=0).message
    assert arrived is not None
    assert torch.equal(arrived.payload, payload)
    with pytest.raises(ProtocolError, match="telecom sent no agreement"):
        read_note(arrived)

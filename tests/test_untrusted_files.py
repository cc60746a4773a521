"""Files are read in one place: nothing outside :mod:`splitvfl.system.untrusted_files` opens one, but for a reason."""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.test_imports import FILES

HERE = "system.untrusted_files"

# By the last part of what is called. ``open`` without an argument is a protocol's, and opens no file.
OPENERS = {
    *("open", "fdopen", "read_text", "read_bytes", "write_text", "write_bytes", "copy", "copyfile", "cmp", "save_file"),
    *("fromfile", "from_file", "memmap", "memory_map", "loadtxt", "genfromtxt", "safe_open", "load_file", "ZipFile"),
    *("ParquetFile", "read_metadata", "open_csv", "OSFile", "input_stream", "tofile"),
}
OWNERS_OF_COPY = {"shutil"}
PARSERS = {
    f"{module}.{name}"
    for module, names in {
        "json": ("load", "loads", "JSONDecoder"),
        "msgspec.json": ("decode", "Decoder"),
        "yaml": ("load", "safe_load", "full_load", "unsafe_load", "load_all", "safe_load_all"),
        "tomllib": ("load", "loads"),
        "np": ("load",),
        "numpy": ("load",),
        "torch": ("load",),
        "safetensors.torch": ("load",),
    }.items()
    for name in names
}

PACKAGE = "a file of the package itself"
USERS_DATA = "the user's own table, of any size: a link to it is followed, as documented"
USERS_OUTPUT = "a file that the user names to be written: it may be a pipe"
SCRATCH = "a file that this process has just made in a folder of its own"
FRESH = "a new file, made exclusively: a link there is refused"
OWN_TEXT = "text that this process has made itself"
FELLOW = "what a worker of the same party says"
MESSAGE = "a message, which has limits of its own, and no file"
CHECKED = "looked at by untrusted_files before"
LOCK = "a lock, whose content nobody reads; no link is followed"
SYNC = "a folder, to have it on the disk"

ALLOWED: dict[str, dict[str, str]] = {
    "app.examples": {"read_text": PACKAGE, "open": FRESH},
    "app.http_records": {"json.loads": "the body of a request, limited and taken apart with its own errors"},
    "app.network_demo": dict.fromkeys(("write_text", "open", "copy", "read_text", "json.loads"), SCRATCH),
    "app.serving_noise": {"json.loads": OWN_TEXT},
    "app.transforms": {"np.load": "the party's own matrix, which its settings name"},
    "app.workers": {"json.loads": FELLOW},
    "cli.auditing": {"write_text": USERS_OUTPUT},
    "cli.beginning": {"open": FRESH},
    "cli.forecasting": {"open": USERS_OUTPUT},
    "cli.reading": {"write_text": USERS_OUTPUT},
    "app.experiment": {"save_file": "a new file: what lay there is unlinked before"},
    "crypto.keys": {"json.loads": OWN_TEXT},
    "crypto.refusals": {"open": SYNC},
    "crypto.worker": {"fdopen": "its own standard output"},
    "data.arrow_source": {"ParquetFile": USERS_DATA, "memory_map": USERS_DATA},
    "data.csv_source": {"OSFile": USERS_DATA},
    "data.vocabulary": {"OSFile": SCRATCH},
    "data.ingest.aligned": {"np.load": SCRATCH},
    "data.ingest.encode": {"np.load": SCRATCH, "open": SCRATCH},
    "data.ingest.records": {"open": SCRATCH, "fromfile": SCRATCH},
    "data.ingest.shards": {"open": SCRATCH},
    "data.ingest.statistics": {"open": SCRATCH, "safe_open": CHECKED, "tofile": SCRATCH},
    "data.ingest.survey": {"open": SCRATCH, "safe_open": CHECKED, "tofile": SCRATCH},
    "data.images": dict.fromkeys(("ZipFile", "open"), "an archive whose directory was looked at, read by its limits"),
    "data.plain_columns": {"json.loads": "pandas' note in a data file: whatever is odd in it counts as none"},
    "data.score_file": {"fdopen": FRESH},
    "data.shard_files": {"read_metadata": USERS_DATA},
    "data.shard_writing": {"open": SCRATCH, "OSFile": SCRATCH},
    "data.store": {"memmap": CHECKED},
    "data.writing": {"open": SCRATCH},
    "exchange.kept": {"from_file": CHECKED},
    "messaging.json_message": {"json.loads": MESSAGE},
    "messaging.transcript": {"open": USERS_OUTPUT},
    "report.pages": {"read_text": PACKAGE},
    "report.provenance": {"json.loads": "a text in a summary, whose depth is looked at"},
    "report.rows": {"json.loads": "a text in a summary, which report.provenance has looked at"},
    "run.bucket_folder": {"json.loads": OWN_TEXT},
    "run.checkpoint": {"open": SYNC},
    "run.ledger_file": {"open": SYNC},
    "run.networked": {"json.loads": FELLOW},
    "run.shared_state": {"json.loads": FELLOW},
    "run.teamwork": {"json.loads": FELLOW},
    "run.weights_file": {"json.loads": OWN_TEXT},
    "system.folder_lock": {"open": LOCK},
    "system.private_folder": {"open": FRESH},
    "team.gpus": {"json.loads": FELLOW},
}


def calls_in(tree: ast.AST) -> Iterator[tuple[str, int]]:
    """Yield what opens a file or takes a text apart, as the table names it, and its line."""
    for node in ast.walk(tree):
        # Also what is handed on to be called: ``partial(os.open, ...)``.
        if isinstance(node, ast.Attribute | ast.Name) and ast.unparse(node) in PARSERS:
            yield ast.unparse(node), node.lineno
        if not isinstance(node, ast.Call):
            continue
        name = ast.unparse(node.func)
        last = name.rpartition(".")[2]
        if last not in OPENERS or (last == "open" and not (node.args or node.keywords)):
            continue
        # A function of the project by the name of a method: what it does is looked at where it stands.
        if isinstance(node.func, ast.Name) and last in ("read_text", "read_bytes", "write_text", "write_bytes"):
            continue
        if last == "copy" and name.partition(".")[0] not in OWNERS_OF_COPY:
            continue
        yield last, node.lineno


def found_in(path: Path) -> dict[str, list[int]]:
    found: dict[str, list[int]] = {}
    for what, line in calls_in(ast.parse(path.read_text(encoding="utf-8"))):
        found.setdefault(what, []).append(line)
    return found


PACKAGE_FILES = {name: path for name, path in FILES.items() if name != HERE and not name.startswith("scripts")}


def test_files_are_opened_in_one_place() -> None:
    strange = [
        f"{module}, line {', '.join(map(str, lines))}: {what}"
        for module, path in PACKAGE_FILES.items()
        for what, lines in found_in(path).items()
        if what not in ALLOWED.get(module, {})
    ]
    assert not strange, "read it with splitvfl.system.untrusted_files, or say here why not:\n" + "\n".join(strange)


def test_every_exception_is_needed() -> None:
    unneeded = [
        f"{module}: {what}"
        for module, reasons in ALLOWED.items()
        for what in reasons
        if module not in PACKAGE_FILES or what not in found_in(PACKAGE_FILES[module])
    ]
    assert not unneeded


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("path.read_text()", ["read_text"]),
        ("path.open('rb')", ["open"]),
        ("open(path)", ["open"]),
        ("os.open(path, os.O_RDONLY)", ["open"]),
        ("side.open()", []),
        ("partial(json.loads, x)", ["json.loads"]),
        ("msgspec.json.decode(content, type=X)", ["msgspec.json.decode"]),
        ("yaml.safe_load(text)", ["yaml.safe_load"]),
        ("torch.load(path)", ["torch.load"]),
        ("np.load(path)", ["np.load"]),
        ("safetensors.torch.load_file(path)", ["load_file"]),
        ("shutil.copy(a, b)", ["copy"]),
        ("values.copy()", []),
    ],
)
def test_what_opens_a_file_is_found(source: str, expected: list[str]) -> None:
    assert Counter(what for what, _ in calls_in(ast.parse(source))) == Counter(expected)

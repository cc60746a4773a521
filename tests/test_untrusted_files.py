"""Small files are read and written in one place, :mod:`splitvfl.system.untrusted_files`; others have a reason here."""

from __future__ import annotations

import ast
import re
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
    *("replace", "rename", "fsync", "mkstemp", "NamedTemporaryFile", "TemporaryFile"),
}
OWNERS_OF_COPY = {"shutil"}
PARSERS = {
    f"{module}.{name}"
    for module, names in {
        "json": ("load", "loads", "dump", "JSONDecoder"),
        "msgspec.json": ("decode", "Decoder"),
        "yaml": ("load", "safe_load", "full_load", "unsafe_load", "load_all", "safe_load_all"),
        "tomllib": ("load", "loads"),
        "np": ("load", "save", "savez"),
        "numpy": ("load", "save", "savez"),
        "torch": ("load", "save"),
        "safetensors.torch": ("load",),
    }.items()
    for name in names
}

LAST_OF_PARSERS = {name.rpartition(".")[2] for name in PARSERS}

# What a module has that calls one of them: the others need not be read.
WORDS = re.compile(rf"\b({'|'.join(OPENERS)})\s*\(|\.\s*({'|'.join(LAST_OF_PARSERS)})\b")

# What is no small file, by the reason.
ALLOWED: dict[str, dict[str, set[str]]] = {
    "a file of the package itself": {"app.examples": {"read_text"}, "report.pages": {"read_text"}},
    "the user's own table, of any size: a link to it is followed, as documented": {
        "data.arrow_source": {"ParquetFile", "memory_map"},
        "data.csv_source": {"OSFile"},
        "data.shard_files": {"read_metadata"},
    },
    "a table, written piece by piece into a folder that this process has just made": {
        "data.clicks": {"replace"},
        "data.ingest.aligned": {"np.load", "replace"},
        "data.ingest.encode": {"np.load", "open"},
        "data.ingest.records": {"open", "fromfile"},
        "data.ingest.shards": {"open"},
        "data.ingest.statistics": {"open", "tofile"},
        "data.ingest.survey": {"open", "tofile"},
        "data.shard_writing": {"open", "OSFile"},
        "data.vocabulary": {"OSFile"},
        "data.writing": {"open", "fsync"},
    },
    "large, and looked at by untrusted_files before": {
        "data.images": {"ZipFile", "open"},
        "data.ingest.statistics": {"safe_open"},
        "data.ingest.survey": {"safe_open"},
        "data.store": {"memmap"},
        "party.kept": {"from_file", "fsync"},
    },
    "written into a file, or a place in memory, that untrusted_files has opened": {
        "net.certs": {"fsync"},
        "run.bucket_folder": {"np.save"},
        "run.checkpoint": {"torch.save"},
    },
    "a folder, moved as a whole": {
        "data.writing": {"rename"},
        "run.checkpoint": {"rename"},
        "run.replacement": {"rename", "replace"},
    },
    "a lock, whose content nobody reads; no link is followed": {
        "data.writing": {"open"},
        "system.folder_lock": {"open"},
    },
    "messages that the user has recorded, of any size, in a file that may be a pipe": {
        "messaging.transcript": {"open"}
    },
    "no file: standard output, a message, a request or a fellow worker's word, with limits and errors of its own": {
        "app.http_records": {"json.loads"},
        "crypto.worker": {"fdopen"},
        "messaging.json_message": {"json.loads"},
        "team.gpus": {"json.loads"},
    },
    "no file: what the line itself has encoded, so that infinite numbers are null": {
        "audit.ceilings": {"msgspec.json.decode"}
    },
    "pandas' note in a data file: whatever is odd in it counts as none": {"data.plain_columns": {"json.loads"}},
    "a demonstration, in a folder of its own": {
        "app.network_demo": {"write_text", "open", "copy", "read_text", "json.loads"}
    },
}


def calls_in(source: str) -> Iterator[tuple[str, int]]:
    """Yield what opens a file or takes a text apart, as the table names it, and its line."""
    for node in ast.walk(ast.parse(source)) if WORDS.search(source) else ():
        # Also what is handed on to be called: ``partial(os.open, ...)``.
        if isinstance(node, ast.Attribute) and node.attr in LAST_OF_PARSERS and ast.unparse(node) in PARSERS:
            yield ast.unparse(node), node.lineno
        if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute | ast.Name):
            continue
        last = node.func.attr if isinstance(node.func, ast.Attribute) else node.func.id
        if last not in OPENERS or (last == "open" and not (node.args or node.keywords)):
            continue
        name = ast.unparse(node.func)
        # A function of the project by the name of a method: what it does is looked at where it stands.
        if isinstance(node.func, ast.Name) and last in ("read_text", "read_bytes", "write_text", "write_bytes"):
            continue
        if last == "copy" and name.partition(".")[0] not in OWNERS_OF_COPY:
            continue
        # A path's takes one argument; a text's two; a record's names.
        one_path = isinstance(node.func, ast.Attribute) and len(node.args) == 1 and not node.keywords
        if last == "replace" and name != "os.replace" and not one_path:
            continue
        yield last, node.lineno


def found_in(path: Path) -> dict[str, list[int]]:
    found: dict[str, list[int]] = {}
    for what, line in calls_in(path.read_text(encoding="utf-8")):
        found.setdefault(what, []).append(line)
    return found


PACKAGE_FILES = {name: path for name, path in FILES.items() if name != HERE and not name.startswith("scripts")}


def test_small_files_are_read_and_written_in_one_place() -> None:
    allowed: dict[str, set[str]] = {}
    for modules in ALLOWED.values():
        for module, openers in modules.items():
            allowed.setdefault(module, set()).update(openers)
    found = {module: uses for module, path in PACKAGE_FILES.items() if (uses := found_in(path))}
    strange = [
        f"{module}, line {', '.join(map(str, lines))}: {what}"
        for module, uses in found.items()
        for what, lines in uses.items()
        if what not in allowed.get(module, ())
    ]
    assert not strange, "use splitvfl.system.untrusted_files, or say here why not:\n" + "\n".join(strange)
    unneeded = {module: openers - found.get(module, {}).keys() for module, openers in allowed.items()}
    assert not {module: openers for module, openers in unneeded.items() if openers}


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
        ("draft.replace(path)", ["replace"]),
        ("os.replace(draft, path)", ["replace"]),
        ("text.replace('a', 'b')", []),
        ("replace(record, name=1)", []),
        ("torch.save(state, path)", ["torch.save"]),
        ("json.dump(value, file)", ["json.dump"]),
    ],
)
def test_what_opens_a_file_is_found(source: str, expected: list[str]) -> None:
    assert Counter(what for what, _ in calls_in(source)) == Counter(expected)

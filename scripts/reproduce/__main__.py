"""Run every reproduction, and say of each what came of it.

    python -m scripts.reproduce list
    python -m scripts.reproduce all [--quick] [--only NAME,...] [--out DIR]
    python -m scripts.reproduce cell FILE
    python -m scripts.reproduce overview [--pages docs/results]

Each runs in a process of its own and writes into ``DIR/NAME``: ``results.json``, its page, what it said (``log.txt``),
and finished pieces of work, so that what was broken off goes on. What is proved is checked. Returned is 0, 1 where
a check fails, and 2 where a reproduction does not come to its end; the others are run all the same. A cell,
one of the finished pieces of work, is run again and compared with what its file holds; 1 says that it differs. The
overview is made of the pages in a folder, without any run.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from scripts.reproduce.shared.folders import writable_folder
from scripts.reproduce.shared.overview import write_overview
from scripts.reproduce.shared.papers import ENTRIES, Entry
from splitvfl.errors import SplitVFLError

OUT = Path("build/reproduction")
PAGES = Path(__file__).resolve().parents[2] / "docs" / "results"
_LINES_OF_LOG = 20
"""So many last lines are shown of a reproduction that fails."""

Say = Callable[[str], None]


def main(argv: Sequence[str] | None = None) -> int:
    """List the reproductions or run them, and return the worst of their exit codes."""
    arguments = _parser().parse_args(argv)
    if arguments.command == "list":
        for entry in ENTRIES:
            print(f"{entry.name:20} {entry.title}\n{'':20} docs/results/{entry.page}.md")
        return 0
    if arguments.command == "overview":
        return _carried_out("overview", lambda: print(f"wrote {write_overview(arguments.pages)}"))
    if arguments.command == "cell":
        return _carried_out("cell", lambda: _again(arguments.file))
    codes = {entry.name: run(entry, arguments.out, quick=arguments.quick) for entry in arguments.only}
    failed = {name: code for name, code in codes.items() if code}
    for name, code in failed.items():
        what, log = "a check fails" if code == 1 else "did not come to its end", arguments.out / name / "log.txt"
        print(f"{name}: {what}" + (f"; see {log}" if log.is_file() else ""), file=sys.stderr)
    print(f"{len(codes) - len(failed)} of {len(codes)} reproductions ran" + (" (quick)" if arguments.quick else ""))
    return max(codes.values())


def _say(line: str) -> None:
    print(line, flush=True)


def _again(path: Path) -> int:
    # torch is imported here alone: the other commands start at once.
    from scripts.reproduce.shared.one_cell import run_again

    return run_again(path)


def _carried_out(name: str, work: Callable[[], int | None]) -> int:
    try:
        return work() or 0
    except SplitVFLError as error:
        print(f"{name}: {error}", file=sys.stderr)
        return 2


def run(entry: Entry, out: Path, *, quick: bool, say: Say = _say) -> int:
    """Run one reproduction, say what came of it, and return 0, 1 if a check fails, 2 if anything prevents it.

    Args:
        entry: Which.
        out: Folder in which there is one for each.
        quick: Whether on little data.
        say: Called with each line.
    """
    try:
        folder = writable_folder(out / entry.name)
    except SplitVFLError as error:
        say(f"{entry.name}: {error}")
        return 2
    results = folder / "results.json"
    # Of an earlier run: it must not be taken for what this one found.
    results.unlink(missing_ok=True)
    options = ["--out", str(folder), *(["--quick"] if quick else []), *(["--check"] if entry.checked else [])]
    log = folder / "log.txt"
    began, cpu = time.monotonic(), _children_seconds()
    with log.open("w", encoding="utf-8") as stream:
        code = subprocess.run(
            [sys.executable, "-m", entry.module, *options], stdout=stream, stderr=subprocess.STDOUT, check=False
        ).returncode
    took = f"{time.monotonic() - began:.0f} s ({_children_seconds() - cpu:.0f} s of CPU)"
    found = _results(results)
    # Python itself ends with 1 where something is raised.
    if found is None or code not in ((0, 1) if entry.checked else (0,)):
        say(f"{entry.name}: failed, exit code {code}, after {took}")
        for line in log.read_text(encoding="utf-8").splitlines()[-_LINES_OF_LOG:]:
            say(f"    {line}")
        return 2
    say(f"{entry.name}: {'a check fails, ' if code else ''}{took}; {counted(found['claims'], quick=quick)}")
    for title, why in found.get("missing", {}).items():
        say(f"    left out: {title}; {why}")
    return code


def counted(claims: Sequence[dict[str, Any]], *, quick: bool = False) -> str:
    """Return how many claims there are of each verdict; of a quick run, whose verdicts say nothing, how many in all.

    >>> counted([{"verdict": "reproduces"}, {"verdict": "does not"}, {"verdict": "reproduces"}])
    '3 claims: 2 reproduces, 1 does not'
    >>> counted([{"verdict": "does not"}], quick=True)
    'claims measured, on too little data to be judged: 1'
    """
    if quick:
        return f"claims measured, on too little data to be judged: {len(claims)}"
    verdicts = Counter(claim["verdict"] for claim in claims)
    return f"{len(claims)} claims: " + ", ".join(f"{number} {verdict}" for verdict, number in verdicts.items())


def _results(path: Path) -> dict[str, Any] | None:
    if not path.is_file():
        return None
    found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return found


def _children_seconds() -> float:
    times = os.times()
    return times.children_user + times.children_system


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m scripts.reproduce", description="Run every reproduction.")
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("list", help="say which reproductions there are")
    cell = commands.add_parser("cell", help="run one finished piece of work again, and compare")
    cell.add_argument("file", type=Path, metavar="FILE", help="as it lies in DIR/NAME/jobs")
    pages = commands.add_parser("overview", help="write the overview of all claims from the pages")
    pages.add_argument("--pages", type=Path, default=PAGES, metavar="FOLDER", help="default: docs/results")
    everything = commands.add_parser("all", help="run them, and say what came of each")
    everything.add_argument("--quick", action="store_true", help="on little data, each in under two minutes")
    everything.add_argument("--only", type=_chosen, default=ENTRIES, metavar="NAME,…", help="of those that list names")
    everything.add_argument("--out", type=Path, default=OUT, metavar="DIR", help="default: %(default)s")
    return parser


def _chosen(text: str) -> tuple[Entry, ...]:
    known = {entry.name: entry for entry in ENTRIES}
    names = [name.strip() for name in text.split(",")]
    unknown = [name for name in names if name not in known]
    if unknown:
        raise argparse.ArgumentTypeError(f"expected some of {', '.join(known)}, got {', '.join(unknown)}")
    return tuple(known[name] for name in dict.fromkeys(names))


if __name__ == "__main__":
    sys.exit(main())

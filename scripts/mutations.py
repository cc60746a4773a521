"""Break the package in one small way at a time, and see that the tests named for it fail.

The list is ``tests/mutations.toml``. Each mutation has a text that stands in one place of the package, what takes its
place, why that would matter, and tests of the first tier, all of which have to fail with it. Mutations are made in
copies of the tree. The tree itself is only read.

Run ``python -m scripts.mutations`` (``make mutations``), or name areas: ``python -m scripts.mutations crypto run``.
It ends with 1 where a mutation goes unnoticed, a text does not stand in one place, or a test does not exist or does not
pass without the mutation.
"""

from __future__ import annotations

import argparse
import ast
import gc
import importlib
import json
import os
import shutil
import signal
import sys
import tempfile
import time
import tomllib
import traceback
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import pytest

CHECKOUT = Path(__file__).resolve().parent.parent
LIST = Path("tests") / "mutations.toml"
PACKAGE = ("splitvfl", "attacks", "defenses", "models", "penalties")

# Hidden folders and what is built are no part of a copy.
LEFT_OUT = (".*", "build", "dist", "_build", "__pycache__", "*.egg-info")

# Imported once, before every test process is forked: the package itself is imported from the copy that is broken. None
# of these starts a thread; pyarrow does.
LIBRARIES = (
    "cryptography.hazmat.primitives.asymmetric.ed25519",
    "cryptography.x509",
    "flint",
    "gmpy2",
    "grpc",
    "hypothesis",
    "jinja2",
    "matplotlib",
    "msgspec",
    "nacl.bindings",
    "numpy",
    "phe",
    "pydantic",
    "rich.console",
    "safetensors.torch",
    "scipy.optimize",
    "scipy.signal",
    "scipy.stats",
    "sklearn.ensemble",
    "sklearn.linear_model",
    "torch",
    "torch.utils.tensorboard",
    "typer",
    "yaml",
)

# Of one mutation. A test that waits for ever has not failed: it would say nothing of the fault.
LIMIT_S = 300

FIRST_TIER = "not slow"


@dataclass(frozen=True)
class Mutation:
    """An entry of the list; the list says what each field is."""

    area: str
    text: str
    replacement: str
    why: str
    tests: tuple[str, ...]


@dataclass(frozen=True)
class Broken:
    """A file, and what a mutation makes of it."""

    file: str
    text: str


def read(root: Path) -> list[Mutation]:
    """Return the list of a tree."""
    entries = tomllib.loads((root / LIST).read_text(encoding="utf-8"))["mutation"]
    return [Mutation(**{**one, "tests": tuple(one["tests"])}) for one in entries]


def break_each(root: Path, mutations: Sequence[Mutation]) -> tuple[list[Broken | None], list[str]]:
    """Return what each mutation makes of the file where its text stands, and what is wrong with the list."""
    sources = {
        str(file.relative_to(root)): file.read_text(encoding="utf-8")
        for folder in PACKAGE
        for file in sorted((root / folder).rglob("*.py"))
    }
    found: list[Broken | None] = []
    problems = []
    for mutation in mutations:
        places = [file for file, source in sources.items() if mutation.text in source]
        count = sum(sources[file].count(mutation.text) for file in places)
        if count != 1:
            found.append(None)
            where = f" ({', '.join(places)})" if places else ""
            problems.append(f"{mutation.area}: in {count} places, not in one{where}: {mutation.text!r}")
            continue
        broken = Broken(places[0], sources[places[0]].replace(mutation.text, mutation.replacement))
        try:
            ast.parse(broken.text)
        except SyntaxError as error:
            problems.append(f"{mutation.area}: {broken.file} is no Python with {mutation.replacement!r}: {error}")
        found.append(broken)
    return found, problems


def missing_tests(root: Path, tests: Iterable[str]) -> dict[str, list[str]]:
    """Return the tests that a tree does not have, each with the files that have one of its name.

    Nothing is imported. What a test's id has in brackets is left unread.
    """
    missing = {}
    for test in sorted(set(tests)):
        file, *names = test.partition("[")[0].split("::")
        body = ast.parse((root / file).read_text(encoding="utf-8")).body if (root / file).is_file() else []
        for name in names:
            body = next((one.body for one in body if isinstance(one, _NAMED) and one.name == name), [])
        if not body or not names:
            own = f"def {names[-1] if names else ''}("
            files = sorted((root / "tests").rglob("test_*.py"))
            missing[test] = [str(one.relative_to(root)) for one in files if own in one.read_text(encoding="utf-8")]
    return missing


_NAMED = (ast.FunctionDef, ast.ClassDef)


class _Outcomes:
    """What became of tests, by their ids, as pytest tells its plugins."""

    def __init__(self) -> None:
        self.failed: set[str] = set()
        self.passed: set[str] = set()
        self.uncollected: list[str] = []

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self.uncollected.append(report.nodeid)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self.failed.add(report.nodeid)
        elif report.when == "call" and report.passed:
            self.passed.add(report.nodeid)


@dataclass(frozen=True)
class Outcome:
    """What became of the tests of one process."""

    failed: Sequence[str]
    passed: Sequence[str]
    uncollected: Sequence[str]

    def fails(self, test: str) -> bool:
        """Return whether a test failed, or one of its cases."""
        return any(_is_of(one, test) for one in self.failed)

    def passes(self, test: str) -> bool:
        """Return whether a test ran and none of its cases failed."""
        return not self.fails(test) and any(_is_of(one, test) for one in self.passed)


def _is_of(case: str, test: str) -> bool:
    return case == test or case.startswith(f"{test}[")


def _work(tree: Path, tests: Sequence[str], to: Path) -> None:
    """Run tests of a copy, in a process that has nothing of the package yet, and write what became of them."""
    os.setsid()
    signal.alarm(LIMIT_S * max(1, len(tests) // 2))
    with (to.with_suffix(".log")).open("w", encoding="utf-8") as log:
        os.dup2(log.fileno(), 1)
        os.dup2(log.fileno(), 2)
    os.chdir(tree)
    os.environ["PYTHONPATH"] = str(tree)
    for name in [one for one in sys.modules if one.split(".")[0] in ("scripts", "splitvfl", "tests")]:
        del sys.modules[name]
    sys.path[:] = [str(tree), *(one for one in sys.path if one and Path(one).resolve() != CHECKOUT)]
    outcomes = _Outcomes()
    # pytest would have liked to see its plugins' modules before they are imported.
    imported = ["-W", "ignore::pytest.PytestAssertRewriteWarning"]
    pytest.main(["-q", "-p", "no:cacheprovider", *imported, "-m", FIRST_TIER, *tests], plugins=[outcomes])
    foreign = [
        name
        for name, module in sys.modules.items()
        if name.split(".")[0] in ("scripts", "splitvfl", "tests")
        and not str(getattr(module, "__file__", None) or tree).startswith(str(tree))
    ]
    assert not foreign, f"not imported from the copy: {foreign}"
    found = {
        "failed": sorted(outcomes.failed),
        "passed": sorted(outcomes.passed),
        "uncollected": outcomes.uncollected,
    }
    to.write_text(json.dumps(found), encoding="utf-8")


class Bench:
    """Copies of a tree, in each of which one process at a time runs tests.

    Args:
        root: The tree.
        folder: Where the copies are.
        jobs: How many.
    """

    def __init__(self, root: Path, folder: Path, jobs: int) -> None:
        self._folder = folder
        self._trees = [folder / f"copy{number}" for number in range(jobs)]
        for tree in self._trees:
            shutil.copytree(root, tree, symlinks=True, ignore=shutil.ignore_patterns(*LEFT_OUT))
        self._changes = 0

    def run(
        self, tasks: Sequence[tuple[Broken | None, Sequence[str]]], then: Callable[[int, Outcome | None], None]
    ) -> None:
        """Run the tests of each task with its fault, as many tasks at once as there are copies.

        Args:
            tasks: What is broken, if anything, and the tests.
            then: Gets the number of each task that has ended, and what became of its tests; None if its process was
                ended because it took too long, or ended itself.
        """
        waiting = list(enumerate(tasks))[::-1]
        idle = list(self._trees)
        running: dict[int, tuple[int, Path, Callable[[], None]]] = {}
        while waiting or running:
            while waiting and idle:
                number, (broken, tests) = waiting.pop()
                tree = idle.pop()
                mend = self._break(tree, broken)
                to = self._folder / f"{tree.name}.json"
                to.unlink(missing_ok=True)
                sys.stdout.flush()
                if (child := os.fork()) == 0:
                    try:
                        _work(tree, tests, to)
                    except BaseException:
                        traceback.print_exc()
                    finally:
                        sys.stdout.flush()
                        os._exit(0)
                running[child] = (number, tree, mend)
            child, _ = os.wait()
            number, tree, mend = running.pop(child)
            with suppress(ProcessLookupError):
                os.killpg(child, signal.SIGKILL)  # what a test has started and not ended
            mend()
            idle.append(tree)
            to = self._folder / f"{tree.name}.json"
            then(number, Outcome(**json.loads(to.read_text(encoding="utf-8"))) if to.exists() else None)

    def _break(self, tree: Path, broken: Broken | None) -> Callable[[], None]:
        if broken is None:
            return lambda: None
        file = tree / broken.file
        whole, before = file.read_text(encoding="utf-8"), file.stat().st_mtime
        self._changes += 1
        file.write_text(broken.text, encoding="utf-8")
        # What Python has compiled is told from its source by second and size alone.
        os.utime(file, (before, before + 100 * self._changes))

        def mend() -> None:
            file.write_text(whole, encoding="utf-8")
            os.utime(file, (before, before))

        return mend

    def log(self) -> str:
        """Return the ends of what the last tests of each copy printed."""
        texts = [file.read_text(encoding="utf-8")[-2000:] for file in sorted(self._folder.glob("*.log"))]
        return "\n".join(texts)


def check(root: Path, mutations: Sequence[Mutation], jobs: int) -> tuple[int, list[str]]:
    """Make each mutation of a tree in a copy and run its tests there; print how it goes.

    Returns:
        How many were noticed by all of their tests, and what is wrong.
    """
    broken, problems = break_each(root, mutations)
    tests = sorted({test for mutation in mutations for test in mutation.tests})
    for test, files in missing_tests(root, tests).items():
        problems.append(f"no such test: {test}" + (f"; one of its name is in {', '.join(files)}" if files else ""))
    if problems:
        return 0, problems
    noticed = 0
    with tempfile.TemporaryDirectory(prefix="mutations") as folder:
        bench = Bench(root, Path(folder).resolve(), jobs)
        print(f"{len(tests)} tests without a mutation", flush=True)
        parts = [part for part in (tests[number::jobs] for number in range(jobs)) if part]

        def whole(number: int, outcome: Outcome | None) -> None:
            bad = [test for test in parts[number] if outcome is None or not outcome.passes(test)]
            problems.extend(f"does not pass without a mutation, or is not of the first tier: {test}" for test in bad)

        bench.run([(None, part) for part in parts], whole)
        if problems:
            print(bench.log())
            return 0, problems

        def judge(number: int, outcome: Outcome | None) -> None:
            nonlocal noticed
            mutation, where = mutations[number], broken[number]
            assert where is not None
            if outcome is None or outcome.uncollected:
                left = [*mutation.tests]
                problems.append(f"{where.file}: the tests could not be run to their end: {mutation.text!r}")
            else:
                left = [test for test in mutation.tests if not outcome.fails(test)]
                problems.extend(f"{where.file}: {test} passes with {mutation.replacement!r}" for test in left)
            noticed += not left
            print(f"{'MISSED' if left else 'killed'}  {where.file}: {mutation.why}", flush=True)

        bench.run([(what, one.tests) for what, one in zip(broken, mutations, strict=True)], judge)
    return noticed, problems


def main(arguments: Sequence[str] | None = None, *, root: Path = CHECKOUT, libraries: Sequence[str] = LIBRARIES) -> int:
    """Check the list, or the areas of it that are named, and return 1 if anything is wrong."""
    parser = argparse.ArgumentParser(prog="python -m scripts.mutations", description=__doc__.split("\n")[0])
    parser.add_argument("areas", nargs="*", help="areas of the list; all of them if none is named")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="mutations at a time")
    parser.add_argument("--match", default="", help="only mutations whose text or reason has this in it")
    chosen = parser.parse_args(arguments)
    began = time.monotonic()
    every = read(root)
    if unknown := set(chosen.areas) - {one.area for one in every}:
        parser.error(f"no such area: {', '.join(sorted(unknown))}")
    mutations = [
        one
        for one in every
        if (not chosen.areas or one.area in chosen.areas) and (chosen.match in one.text or chosen.match in one.why)
    ]
    # Libraries that compute have one thread: a process with more is not forked safely.
    os.environ.update(OMP_NUM_THREADS="1", MKL_NUM_THREADS="1", OPENBLAS_NUM_THREADS="1", MPLBACKEND="Agg")
    for name in libraries:
        importlib.import_module(name)
    gc.freeze()
    noticed, problems = check(root, mutations, chosen.jobs)
    for problem in problems:
        print(f"! {problem}")
    print(f"{noticed} of {len(mutations)} mutations are noticed, in {time.monotonic() - began:.0f} s")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())

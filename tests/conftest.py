"""What every test may use, and the settings under which all of them run."""

from __future__ import annotations

import gc
import logging
import os
import signal
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

import pytest

from tests.boosting import few_rounds_of_boosting, quick_models
from tests.tiers import has_none_of, slow_files

# Large libraries are imported where they are needed: the process that only hands out tests needs none.
if TYPE_CHECKING:
    import torch

    from splitvfl.hooks import Secrets

CHECKOUT = Path(__file__).resolve().parent.parent

# Of a test alone on an idle machine. More is said, never failed: under load every test takes longer.
LONGEST_S = 10.0

# Who uses something of these starts a process from which others are forked.
FORKING = ("tests.commands", "tests.run.forked", "tests.run.parties", "tests.team.together")

SecretsFactory = Callable[..., "Secrets"]


def pytest_sessionstart(session: pytest.Session) -> None:
    """Take the settings of all tests, in processes that run some."""
    # Spares the collection of tests a collection of garbage: there is none yet.
    gc.disable()
    # A shell that is no terminal's starts what it puts into the background with Ctrl-C ignored, and so would be started
    # whatever these tests start.
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    hands_out = session.config.getoption("dist", "no") != "no" and not hasattr(session.config, "workerinput")
    if not hands_out:
        _take_settings()


def _take_settings() -> None:
    import hypothesis
    import matplotlib
    import torch

    # One thread each: results depend on the number of threads, and the tests already run in parallel.
    torch.set_num_threads(1)
    matplotlib.use("Agg")
    _seed_no_absent_device(torch)
    # What is written outlives a process that is killed without it, and no test cuts the power.
    os.fsync = lambda descriptor: None
    # Examples are derived from the test itself: the same ones everywhere, and no deadline that a slow machine would
    # miss.
    # Fewer than usual where somebody waits.
    examples = 100 if os.environ.get("CI") else 30
    hypothesis.settings.register_profile("splitvfl", derandomize=True, deadline=None, max_examples=examples)
    hypothesis.settings.load_profile("splitvfl")


def _seed_no_absent_device(torch: ModuleType) -> None:
    """Let ``torch.manual_seed`` leave out devices that are not there.

    It keeps their seeds until they come, with a trace of the stack for each: half a millisecond below pytest.
    """
    for device in (torch.cuda, torch.mtia, torch.xpu):
        if not device.is_available():
            device.manual_seed_all = lambda seed: None


def pytest_collection_finish() -> None:
    """Leave modules and tests, which stay to the end, out of every later search for garbage."""
    _join_loggers()
    gc.freeze()
    # What libraries import late is never garbage, and was searched every few seconds for a third of one.
    gc.set_threshold(2000, 20, 50)
    gc.enable()


def _join_loggers() -> None:
    """Let PyTorch's loggers say what they say through the root, where pytest listens.

    There are forty that do not, and pytest would begin and end to listen at each of them three times per test.
    """
    for name in logging.root.manager.loggerDict:
        if name.split(".")[0] == "torch":
            logging.getLogger(name).propagate = True


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Import no file that has no test of the tier that is to run."""
    is_tests = collection_path.name.startswith("test_") and collection_path.suffix == ".py"
    # None leaves it to other plugins.
    return (is_tests and has_none_of(config.getoption("markexpr"), collection_path)) or None


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the tests of slow files, begin with those that fork processes, and skip ``cuda`` where there is no GPU."""
    import torch

    for item in items:
        if item.path in slow_files():
            item.add_marker(pytest.mark.slow(reason=slow_files()[item.path]))
    # Behind one another they run in one worker, or in few: whatever else forks has to import everything once more.
    items.sort(key=lambda item: not _forks(item))
    if torch.cuda.is_available():
        return
    for item in items:
        if item.get_closest_marker("cuda") is not None:
            item.add_marker(pytest.mark.skip(reason="no NVIDIA GPU here"))


def _forks(item: pytest.Item) -> bool:
    return isinstance(item, pytest.Function) and _module_forks(item.module)


@cache
def _module_forks(module: ModuleType) -> bool:
    held = vars(module)
    return "FORKS" in held or any(getattr(value, "__module__", None) in FORKING for value in held.values())


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Name the tests that took long and are not marked ``slow``."""
    reports = [report for kind in ("passed", "failed") for report in terminalreporter.stats.get(kind, [])]
    long = {one.nodeid: one.duration for one in reports if one.duration > LONGEST_S and "slow" not in one.keywords}
    if long:
        terminalreporter.section(f"over {LONGEST_S:g} s and not marked slow: shorten or mark them")
        for test, seconds in sorted(long.items(), key=lambda one: -one[1]):
            terminalreporter.write_line(f"{seconds:.1f}s {test}")


@pytest.fixture(scope="session")
def checkout() -> Path:
    """Root of the source tree."""
    return CHECKOUT


@pytest.fixture(scope="session")
def data_folder() -> Path:
    """Folder of the data files that the user holds: ``$SPLITVFL_DATA``, or ``../shared/data`` beside the checkout."""
    folder = Path(os.environ.get("SPLITVFL_DATA") or CHECKOUT.parent / "shared" / "data")
    if not folder.is_dir():
        pytest.skip(f"no data files: {folder} is not a folder; SPLITVFL_DATA may name another")
    return folder


@pytest.fixture(scope="module")
def few_rounds() -> Iterator[None]:
    """Judge what own columns predict by three rounds of boosting: for modules that ask only whether it was judged.

    The fifty that users have take most of the time of a short run of many classes or categories. It holds from the
    first test that uses it to the end of its module, so that runs which several tests share have it too.
    """
    with few_rounds_of_boosting():
        yield


@pytest.fixture(scope="module")
def quick_own_models() -> Iterator[None]:
    """Judge what own columns predict by linear equations: for modules that ask only whether it was judged.

    The models that users have take most of the time of a short run, few rounds of them too. It holds for the module,
    as ``few_rounds`` does.
    """
    with quick_models():
        yield


@pytest.fixture
def secrets_for_test() -> SecretsFactory:
    """``secrets_for_test(labels=None, seed=0, ids=None, log=None)``: the secrets of a sender named "bank"."""
    return _secrets


def _secrets(
    labels: torch.Tensor | Sequence[float] | None = None,
    seed: int = 0,
    ids: torch.Tensor | None = None,
    log: Callable[[str, float], None] | None = None,
) -> Secrets:
    import torch

    from splitvfl.hooks import Secrets

    return Secrets(
        party="bank",
        step=0,
        generator=torch.Generator().manual_seed(seed),
        ids=ids,
        labels=None if labels is None else torch.as_tensor(labels),
        log=log,
    )

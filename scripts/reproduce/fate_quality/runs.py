"""The comparisons with scikit-learn as cells: each is one model of ours beside the reference on the same records."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Literal

from scripts.reproduce.fate_quality.study import Problem, Quality, breast_cancer, credit_default, reference, train
from scripts.reproduce.shared.claims import grouped
from scripts.reproduce.shared.jobs import Job, Result, run_jobs
from scripts.reproduce.shared.settings import Settings, data_folder
from splitvfl.data.sets import DATA_SETS
from splitvfl.errors import ArgumentError
from splitvfl.exchange import Oracle, Residue, Split
from splitvfl.exchange.paillier import InsecureEncryption

Way = Literal["clear", "encrypted", "taylor"]

KEY_BITS = 512
"""Short, and insecure: the length of a key changes no figure, and long ones take five times as long."""


@dataclass(frozen=True, kw_only=True)
class Scale:
    """How much is done.

    Attributes:
        steps: On all records.
        sample: So many first records are trained on under encryption; 0: all.
    """

    steps: int
    sample: int


FULL = Scale(steps=150, sample=0)
QUICK = Scale(steps=12, sample=64)


@dataclass(frozen=True)
class Run:
    """One comparison.

    Attributes:
        label: Data and exchange.
        ours: What was trained here.
        theirs: scikit-learn's.
    """

    label: str
    ours: Quality
    theirs: Quality


def problem_of(source: str, path: str) -> Problem:
    """Return one of the two data sets.

    Raises:
        ArgumentError: If it is called otherwise.
        DataError: If its file cannot be read.
    """
    if source == "breast-cancer":
        return breast_cancer()
    if source == "credit-default":
        return credit_default(path)
    raise ArgumentError(f"expected breast-cancer or credit-default, got {source!r}")


def compare(problem: dict[str, str], way: Way, steps: int, sample: int) -> Result:
    """Train one model, and return its figures, scikit-learn's, and how many records both had.

    Args:
        problem: ``source`` and ``path``, as :func:`problem_of` takes them.
        way: How a step is talked through.
        steps: How many.
        sample: So many first records; 0: all.
    """
    chosen = problem_of(problem["source"], problem["path"])
    if sample:
        chosen = chosen.some(sample)
    if way == "taylor":
        # Encryption changes no figure (the row before), so that what the approximation does is seen without.
        ours = train(chosen, Oracle(approximation="taylor"), steps=steps, approximation="taylor")
    else:
        rows = len(chosen.labels)
        encrypted = Residue(rows=rows, encryption=InsecureEncryption(key_bits=KEY_BITS))
        ours = train(chosen, encrypted if way == "encrypted" else Split(), steps=steps)
    return {"ours": asdict(ours), "theirs": asdict(reference(chosen)), "records": len(chosen.labels)}


def sources(settings: Settings) -> list[dict[str, str]]:
    """Return the data sets that are at hand; what is missing is said, and left out."""
    path = data_folder() / DATA_SETS["credit-default"].files[0]
    found = [{"source": "breast-cancer", "path": ""}]
    if settings.has("credit default", path):
        found.append({"source": "credit-default", "path": str(path)})
    return found


_SAID = {
    "clear": "in the clear (split)",
    "encrypted": f"encrypted (residue, keys of {KEY_BITS} bits), {{}} records",
    "taylor": "Taylor's sigmoid (as taylor computes it)",
}


def runs_of(settings: Settings) -> list[Run]:
    """Return every comparison, in the order of the page."""
    scale = QUICK if settings.quick else FULL
    planned: list[tuple[str, Way, Job]] = []
    for problem in sources(settings):
        for way in ("clear", "encrypted", "taylor"):
            sample = scale.sample if way == "encrypted" else 0
            job = Job(compare, {"problem": problem, "way": way, "steps": scale.steps, "sample": sample})
            planned.append((problem["source"].replace("-", " "), way, job))  # type: ignore[arg-type]
    jobs = [job for _, _, job in planned]
    results = run_jobs(jobs, settings.jobs, workers=settings.workers, say=settings.say)
    return [_run(name, way, result) for (name, way, _), result in zip(planned, results, strict=True)]


def _run(name: str, way: Way, result: Result) -> Run:
    said = _SAID[way].format(grouped(result["records"]))
    return Run(f"{name}, {said}", Quality(**result["ours"]), Quality(**result["theirs"]))


def described(settings: Settings) -> Sequence[tuple[str, Problem]]:
    """Return the data sets that are at hand, by their names."""
    chosen = sources(settings)
    return [(each["source"].replace("-", " "), problem_of(each["source"], each["path"])) for each in chosen]

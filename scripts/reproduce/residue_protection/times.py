"""Table IV: what the four mechanisms take, with ``phe`` as most write it, and with this package's encryption."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any, Literal

from scripts.reproduce.residue_protection.study import Problem, problems
from scripts.reproduce.residue_protection.timed_steps import (
    MECHANISMS,
    TABLE_4,
    MechanismName,
    naive_steps,
    one_core_steps,
    pooled_steps,
    steps_of_epoch,
    whole_training,
)
from scripts.reproduce.shared.claims import Claim, grouped, markdown_table, mean, shown, with_interval
from scripts.reproduce.shared.jobs import Job, run_jobs
from scripts.reproduce.shared.pages import Section
from scripts.reproduce.shared.settings import Settings
from splitvfl.exchange.selection import SecretBatch

Way = Literal["naive phe", "this package, one core", "this package, pools"]

_NEAR = 0.15
_SAME = 0.1
_FACTOR = 2.0


@dataclass(frozen=True)
class Scale:
    """How much is measured.

    Attributes:
        bits: Bit length of the keys.
        runs: Steps of each mechanism that are timed in turn.
        naive_runs: The same with ``phe``.
        blocks: Blocks of steps with pools.
        block: Steps of a block.
        replies: How many are sent before.
        whole_s: Trainings of so many seconds, by their measured steps, are carried out; longer ones extrapolated.
    """

    bits: int
    runs: int
    naive_runs: int
    blocks: int
    block: int
    replies: int
    whole_s: float


FULL = Scale(bits=2048, runs=30, naive_runs=5, blocks=6, block=20, replies=128, whole_s=120.0)
QUICK = Scale(bits=512, runs=2, naive_runs=2, blocks=2, block=2, replies=0, whole_s=0.3)


@dataclass(frozen=True)
class Times:
    """What was measured of one problem.

    Attributes:
        problem: Which.
        seconds: CPU seconds of a step by way and mechanism, of each run; all processes together.
        wall: Wall seconds of a step with pools.
        whole: CPU seconds of whole trainings on one core, where they were carried out.
    """

    problem: Problem
    seconds: Mapping[Way, Mapping[MechanismName, Sequence[float]]]
    wall: Mapping[MechanismName, Sequence[float]]
    whole: Mapping[MechanismName, float]

    def ratios(self, way: Way, over: MechanismName = "residue", of: MechanismName = "hybrid") -> list[float]:
        """Return the paired ratios of two mechanisms that were timed in turn."""
        own = self.seconds[way]
        return [slow / fast for slow, fast in zip(own[of], own[over], strict=True)]

    @property
    def published_epochs(self) -> float:
        """As many epochs of the residue exchange with naive phe here take what the paper's training took."""
        epoch = median(self.seconds["naive phe"]["residue"]) * steps_of_epoch(self.problem)
        return TABLE_4[self.problem.key].seconds["residue"] / epoch

    def training(self, way: Way, mechanism: MechanismName) -> float:
        """Return the seconds of a whole training by the median step."""
        return median(self.seconds[way][mechanism]) * steps_of_epoch(self.problem) * self.problem.epochs


def sections(settings: Settings) -> list[Section]:
    """Return the section on table IV."""
    scale = QUICK if settings.quick else FULL
    # A quick run starts processes once.
    measured = [
        _times(settings, problem, scale, pools=not settings.quick or number == 0)
        for number, problem in enumerate(problems(settings))
    ]
    return [section_of(measured, scale)]


def _times(settings: Settings, problem: Problem, scale: Scale, *, pools: bool) -> Times:
    given = {"problem": problem.as_settings(), "bits": scale.bits}
    jobs = [
        Job(naive_steps, {**given, "runs": scale.naive_runs}),
        Job(one_core_steps, {**given, "runs": scale.runs, "replies": scale.replies}),
    ]
    if pools:
        jobs.append(Job(pooled_steps, {**given, "runs": scale.blocks, "block": scale.block, "replies": scale.replies}))
    # One at a time: what is timed side by side is timed in each other's way.
    slow, one, *shared = run_jobs(jobs, settings.jobs, workers=1, say=settings.say)
    seconds: dict[Way, Any] = {"naive phe": slow["seconds"], "this package, one core": one["seconds"]}
    if shared:
        seconds["this package, pools"] = shared[0]["cpu"]
    found = Times(problem, seconds, shared[0]["wall"] if shared else {}, {})
    short = [name for name in MECHANISMS if found.training("this package, one core", name) <= scale.whole_s]
    trainings = [Job(whole_training, {**given, "mechanism": name, "epochs": problem.epochs}) for name in short]
    results = run_jobs(trainings, settings.jobs, workers=1, say=settings.say)
    whole = {name: result["seconds"] for name, result in zip(short, results, strict=True)}
    return Times(problem, seconds, found.wall, whole)


def section_of(measured: Sequence[Times], scale: Scale) -> Section:
    """Return what was measured as a section."""
    rows = [_settings_row(times.problem) for times in measured]
    settings = markdown_table(("data", "columns", "k", "L", "size of S", "q", "p", "ε of m", "steps of an epoch"), rows)
    steps = markdown_table(
        ("data", "how", "Add", "Mult", "residue exchange", "hybrid", "hybrid / residue", "published"),
        [row for times in measured for row in _step_rows(times)],
        left=2,
    )
    trainings = markdown_table(
        ("data", "epochs", "how", "Add", "Mult", "residue exchange", "hybrid"),
        [row for times in measured for row in _training_rows(times)],
        left=1,
    )
    epochs = ", ".join(f"{times.published_epochs:.0f} ({times.problem.title})" for times in measured)
    body = f"""
The paper prints d_A, the batch (k here) and L, and neither |S|, q and p, nor epochs, learning rates and the length of
its keys. For given k and L any p > max(½, k/L) will do, with q|S| = k/p and (1 − q)|S| = (L − k)/(1 − p); ours are
those of which every number is whole. Of the hybrid's steps only those are timed that use exactly k records and send L.

{settings}

Milliseconds of a step with keys of {scale.bits} bits, median: CPU time of both parties together and of all processes
that help them, so that it matters little who else uses the machine. What is compared was timed in turn, step by step:
the ratio is the mean of {scale.runs} pairs ({scale.naive_runs} with phe, {scale.blocks} of {scale.block} steps each
with pools), and behind ± half the width of its 95 % interval. "naive phe" is the encryption alone: a number at a time,
sums of products, a float mask, both parties' work in one process. With pools either party has a process that shares its
work, and the label party one that prepares encryptions; in brackets wall time, in which others who use the machine are.

{steps}

Seconds of a whole training, CPU time as above. Where the measured steps make no more than {scale.whole_s:g} s on one
core it was carried out, keys and tables included, and the steps' prediction is in brackets (steps in the clear take
longer between encrypted ones than alone); what begins with ~ is extrapolated from them. Epochs are ours. The paper's
seconds are of two machines, with the network in between; what it took for the residue exchange, naive phe takes here
for {epochs} epochs.

{trainings}
"""
    return Section(
        title="Table IV: what the mechanisms take",
        body=body,
        claims=[claim for times in measured for claim in claims_of(times)],
    )


def _settings_row(problem: Problem) -> tuple[str, ...]:
    row = TABLE_4[problem.key]
    drawn, size = SecretBatch.for_sizes(row.used, row.sent)
    return (
        problem.title,
        str(row.columns),
        str(row.used),
        str(row.sent),
        str(size),
        shown(drawn.share),
        shown(drawn.kept),
        shown(drawn.epsilon, 2),
        grouped(steps_of_epoch(problem)),
    )


def _step_rows(times: Times) -> list[tuple[str, ...]]:
    published = f"{TABLE_4[times.problem.key].ratio:.2f}"
    rows = []
    for way, seconds in times.seconds.items():
        cells = [_milliseconds(seconds.get(name)) for name in MECHANISMS]
        if way == "this package, pools":
            walls = [_milliseconds(times.wall.get(name)) for name in MECHANISMS]
            cells = [f"{cell} ({wall})" if cell != "–" else cell for cell, wall in zip(cells, walls, strict=True)]
        rows.append((times.problem.title, way, *cells, with_interval(times.ratios(way), 2), published))
    return rows


def _milliseconds(seconds: Sequence[float] | None) -> str:
    if not seconds:
        return "–"
    found = median(seconds) * 1000
    return f"{found:.3g}" if found < 1000 else grouped(round(found))


def _training_rows(times: Times) -> list[tuple[str, ...]]:
    row, title, epochs = TABLE_4[times.problem.key], times.problem.title, str(times.problem.epochs)
    found = [(title, "?", "published", *(_seconds(row.seconds[name]) for name in MECHANISMS))]
    for way, seconds in times.seconds.items():
        cells = []
        for name in MECHANISMS:
            predicted = _seconds(times.training(way, name)) if name in seconds else "–"
            whole = times.whole.get(name) if way == "this package, one core" else None
            known = predicted if predicted == "–" else f"~{predicted}"
            cells.append(known if whole is None else f"{_seconds(whole)} ({predicted})")
        found.append((title, epochs, way, *cells))
    return found


def _seconds(seconds: float) -> str:
    return f"{seconds:.2f}" if seconds < 10 else grouped(round(seconds))


# --- claims


def claims_of(times: Times) -> list[Claim]:
    """Return the claims on one problem."""
    row, title = TABLE_4[times.problem.key], f"table IV, {times.problem.title}"
    ways: tuple[Way, Way] = ("naive phe", "this package, one core")
    found = [_ratio_claim(times, way) for way in ways]
    same, clear = times.ratios("this package, one core", "Add", "Mult"), row.seconds["Mult"] / row.seconds["Add"]
    found.append(
        Claim.of(
            same,
            claim=f"{title}: Mult / Add, seconds",
            published=clear,
            holds=abs(mean(same) / clear - 1) <= _SAME,
            why=f"means of {len(same)} paired runs in the clear; reproduces within {100 * _SAME:.0f} %",
        )
    )
    slow = times.seconds["naive phe"]["residue"]
    add = median(times.seconds["this package, one core"]["Add"])
    factors, published = [seconds / add for seconds in slow], row.seconds["residue"] / row.seconds["Add"]
    found.append(
        Claim.of(
            factors,
            claim=f"{title}: residue exchange with naive phe / Add, seconds",
            published=published,
            holds=published / _FACTOR <= mean(factors) <= published * _FACTOR,
            why=f"Add costs {add * 1000:.2g} ms a step here, and no network; reproduces within a factor of {_FACTOR:g}",
        )
    )
    return found


def _ratio_claim(times: Times, way: Way) -> Claim:
    row, ratios = TABLE_4[times.problem.key], times.ratios(way)
    return Claim.of(
        ratios,
        claim=f"table IV, {times.problem.title}: hybrid / residue exchange, seconds, {way}",
        published=row.ratio,
        holds=abs(mean(ratios) / row.ratio - 1) <= _NEAR,
        why=(
            f"the part of a step that grows with the records that are sent grows {row.sent / row.used:.2f} times, and "
            f"the decryption of {row.columns} sums does not; {len(ratios)} paired runs; reproduces within "
            f"{100 * _NEAR:.0f} %"
        ),
    )

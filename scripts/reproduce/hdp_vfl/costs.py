"""Figure 3: seconds and memory of training without privacy, with HDP-VFL and encrypted, over epochs and over rows."""

from __future__ import annotations

import json
import resource
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any, Literal, NamedTuple, get_args

import numpy as np
import torch

from scripts.bench.measuring import interleaved
from scripts.reproduce.hdp_vfl import published
from scripts.reproduce.hdp_vfl.tables import ACTIVE, PASSIVE, Target, data_of, file_of
from scripts.reproduce.shared.claims import Claim, grouped, interval, markdown_table, shown
from scripts.reproduce.shared.drawing import Line, Panel, Pen, draw_panels
from scripts.reproduce.shared.jobs import PROCESSES, Job, Result, run_jobs
from scripts.reproduce.shared.pages import Section
from scripts.reproduce.shared.settings import Settings
from splitvfl.app.experiment import build_trainer
from splitvfl.config.sections import parse_config
from splitvfl.exchange.paillier import Encryption, InsecureEncryption
from splitvfl.exchange.taylor import Taylor
from splitvfl.messaging.conversation import converse
from splitvfl.run.trainer import Trainer

Way = Literal["non-private", "HDP-VFL", "encrypted"]
WAYS: tuple[Way, ...] = get_args(Way)
CLEAR: tuple[Way, ...] = ("non-private", "HDP-VFL")

PUBLISHED_RATIO = (2.0, 3.0)
"""What the text says of encrypted training: two to three times the time of the two others."""

_PENS = {"non-private": Pen("#4c566a"), "HDP-VFL": Pen("#2a6fbb")}
# Of the variance over the abscissa, so much is a line's if seconds are called linear.
_LINEAR = 0.98
_AS_LONG = 1.25
_SHORTEST_SAFE_KEY = 2048


@dataclass(frozen=True, kw_only=True)
class Scale:
    """How much is measured.

    Attributes:
        target: Of which table.
        epochs: Lengths of trainings.
        rows_of_epochs: Their records.
        rows: Records of trainings of one epoch.
        batch: Records in a batch.
        bits: Length of keys.
        runs: Interleaved runs of each training in the clear.
        steps: Encrypted steps that are timed.
        step_rows: Records in each of these; the last are a batch.
        memory_rows: Records of trainings whose memory is looked at; none in a quick run, which starts no process.
    """

    target: Target
    epochs: tuple[int, ...]
    rows_of_epochs: int
    rows: tuple[int, ...]
    batch: int
    bits: int
    runs: int
    steps: int
    step_rows: tuple[int, ...]
    memory_rows: tuple[int, ...]


FULL = Scale(
    target="good",
    epochs=tuple(range(1, 11)),
    rows_of_epochs=10_000,
    rows=tuple(range(10_000, 100_001, 10_000)),
    batch=published.BATCH_SIZE,
    bits=2048,
    runs=7,
    steps=3,
    step_rows=(400, 800, 1600, 3200),
    memory_rows=(10_000, 50_000, 100_000),
)
QUICK = Scale(
    target="breast",
    epochs=(1, 2, 3),
    rows_of_epochs=200,
    rows=(100, 200, 300),
    batch=100,
    bits=512,
    runs=2,
    steps=1,
    step_rows=(50, 100),
    memory_rows=(),
)


class Fit(NamedTuple):
    """A straight line through seconds.

    Attributes:
        slope: Seconds of one more.
        intercept: Seconds of none.
        r2: Share of the variance that is the line's.
    """

    slope: float
    intercept: float
    r2: float


def fit_line(across: Sequence[float], seconds: Sequence[float]) -> Fit:
    """Return the line of least squares, with its intercept."""
    x, y = np.asarray(across, dtype=np.float64), np.asarray(seconds, dtype=np.float64)
    slope, intercept = np.polyfit(x, y, 1)
    left = y - slope * x - intercept
    spread = float(((y - y.mean()) ** 2).sum())
    return Fit(float(slope), float(intercept), 1.0 - float(left @ left) / spread if spread > 0 else 1.0)


# --- trainings


def trainer_of(way: Way, target: Target, *, rows: int, epochs: int, batch: int) -> Trainer:
    """Return a training from the start: logistic regression, ε = 1 where there is noise.

    Args:
        way: How; an encrypted one is one in the clear whose steps :class:`_Encrypted` takes.
        target: Of which table.
        rows: Training records; the last batch of an epoch may be smaller.
        epochs: Of the training.
        batch: Records in a batch.
    """
    exchange: dict[str, Any] = {"name": "split"}
    steps: dict[str, Any] = {"name": "sgd", "lr": 0.1, "weight_decay": published.WEIGHT_DECAY}
    if way == "HDP-VFL":
        exchange["noise"] = {"epsilon": 1.0, "delta": 1e-6, "radius": published.RADIUS}
    given = {
        "data": {"name": "breast-cancer"},  # others are given
        "parties": {ACTIVE: {"role": "active", "columns": 0.5}, PASSIVE: {"role": "passive", "columns": "rest"}},
        "model": {"name": "logistic-regression", "init": "zero", "row_norm": 1.0},
        "exchange": exchange,
        "train": {
            "epochs": epochs,
            "batch_size": batch,
            "evaluate_every_epochs": epochs,
            "seed": 0,
            "optimizer": steps,
        },
        "audit": False,
    }
    # A quarter as many are tested on, once.
    data = data_of(target, 0, validated=False, rows=rows * 5 // 4)
    return build_trainer(parse_config(json.dumps(given), source=way), data)


# --- jobs


def clear_seconds(target: Target, rows: int, epochs: int, batch: int, runs: int) -> Result:
    """Time trainings in the clear in turn, and return CPU seconds of both parties by way, of each run.

    Args:
        target: Of which table.
        rows: Training records.
        epochs: Of each training.
        batch: Records in a batch.
        runs: Of each.
    """
    warm_up = 1
    waiting = [
        iter([trainer_of(way, target, rows=rows, epochs=epochs, batch=batch) for _ in range(runs + warm_up)])
        for way in CLEAR
    ]
    taken = interleaved([_next_fit(trainers, epochs) for trainers in waiting], runs=runs, warm_up=warm_up)
    return dict(zip(CLEAR, taken, strict=True))


def _next_fit(trainers: Iterator[Trainer], epochs: int) -> Callable[[], object]:
    return lambda: next(trainers).fit(epochs)


def encrypted_seconds(target: Target, batch: int, bits: int, steps: int, step_rows: Sequence[int]) -> Result:
    """Time encrypted steps, and return ``keys``, CPU seconds of the first step with its keys, and ``steps`` by records.

    Args:
        target: Of which table.
        batch: Records in a batch.
        bits: Length of keys.
        steps: How many of each size, in turn.
        step_rows: Records in a step.
    """
    trainer = trainer_of("encrypted", target, rows=batch, epochs=1, batch=batch)
    with _Encrypted(trainer, batch, bits) as taken:
        started = time.process_time()
        taken.step(step_rows[0])
        keys = time.process_time() - started
        found: dict[str, list[float]] = {str(rows): [] for rows in step_rows}
        for _ in range(steps):
            for rows in step_rows:
                started = time.process_time()
                taken.step(rows)
                found[str(rows)].append(time.process_time() - started)
    return {"keys": keys, "steps": found}


class _Encrypted:
    """Encrypted steps of two parties in one process; a context manager.

    Args:
        trainer: Has the parties.
        rows: Largest batch.
        bits: Length of keys; below 2048 for quick runs only.
    """

    def __init__(self, trainer: Trainer, rows: int, bits: int) -> None:
        self._active, self._passive = trainer.active, trainer.passives[PASSIVE]
        limits = (InsecureEncryption if bits < _SHORTEST_SAFE_KEY else Encryption)(key_bits=bits)
        exchange = Taylor(rows=rows, encryption=limits)
        self._sides = {ACTIVE: exchange.active(self._active), PASSIVE: exchange.passive(self._passive, ACTIVE)}
        self._number = 0

    def __enter__(self) -> _Encrypted:
        converse({name: side.open() for name, side in self._sides.items()})
        return self

    def __exit__(self, *raised: object) -> None:
        for side in self._sides.values():
            side.close()

    def step(self, rows: int) -> None:
        """Take a step on the first so many records."""
        chosen = torch.arange(rows)
        converse(
            {
                ACTIVE: self._sides[ACTIVE].step(self._active.train_batch(chosen), self._number),
                PASSIVE: self._sides[PASSIVE].step(self._passive.train_batch(chosen), self._number),
            }
        )
        self._number += 1


def memory(way: Way, target: Target, rows: int, batch: int, bits: int) -> Result:
    """Return the ``peak`` of a process that trains for an epoch, and ``before``, its peak before, in MiB.

    An encrypted training takes one step: others need no more.

    Args:
        way: How.
        target: Of which table.
        rows: Training records.
        batch: Records in a batch.
        bits: Length of keys.
    """
    with ProcessPoolExecutor(1, mp_context=PROCESSES) as pool:
        return pool.submit(_memory_here, way, target, rows, batch, bits).result()


def _memory_here(way: Way, target: Target, rows: int, batch: int, bits: int) -> Result:
    torch.set_num_threads(1)
    trainer = trainer_of(way, target, rows=rows, epochs=1, batch=batch)
    before = _peak_mib()
    if way == "encrypted":
        with _Encrypted(trainer, batch, bits) as taken:
            taken.step(batch)
    else:
        trainer.fit(1)
    return {"before": before, "peak": _peak_mib()}


def _peak_mib() -> float:
    status = Path("/proc/self/status")
    if status.is_file():
        # On Linux what getrusage says of a new process is not below the size of the one that started it.
        (line,) = [each for each in status.read_text().splitlines() if each.startswith("VmHWM:")]
        return int(line.split()[1]) / 2**10
    # In KiB, but on macOS in bytes.
    unit = 2**20 if sys.platform == "darwin" else 2**10
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / unit


# --- the section


@dataclass(frozen=True)
class Measured:
    """What was measured.

    Attributes:
        scale: How much of it.
        over_epochs: Seconds of each run, by way in the clear, one list for each length.
        over_rows: The same for each number of rows.
        keys: Seconds of the first encrypted step with its keys.
        steps: Seconds of encrypted steps, by their records.
        memory: Peak before training and in all, in MiB, by way and rows.
    """

    scale: Scale
    over_epochs: Mapping[Way, Sequence[Sequence[float]]]
    over_rows: Mapping[Way, Sequence[Sequence[float]]]
    keys: float
    steps: Mapping[int, Sequence[float]]
    memory: Mapping[tuple[Way, int], tuple[float, float]]

    @property
    def data(self) -> str:
        """The data set, for people."""
        return "give me some credit" if self.scale.target == "good" else "breast cancer"

    def encrypted(self, rows: int, epochs: int) -> float:
        """Return the seconds of an encrypted training by its steps: full batches, and one that is not full."""
        full, rest = divmod(rows, self.scale.batch)
        last = 0.0
        if rest:
            line = fit_line(list(self.steps), [median(each) for each in self.steps.values()])
            last = max(0.0, line.intercept + line.slope * rest)
        return self.keys + epochs * (full * median(self.steps[self.scale.step_rows[-1]]) + last)


def sections(settings: Settings) -> list[Section]:
    """Return the section on figure 3; none without its data."""
    scale = QUICK if settings.quick else FULL
    path = file_of(scale.target)
    if path is not None and not settings.has("figure 3", path):
        return []
    return [section_of(measure(settings, scale))]


def measure(settings: Settings, scale: Scale) -> Measured:
    """Return what was measured, one piece at a time: what is timed side by side is timed in each other's way."""
    common = {"target": scale.target, "batch": scale.batch}
    points = [(scale.rows_of_epochs, epochs) for epochs in scale.epochs] + [(rows, 1) for rows in scale.rows]
    looked = [(way, rows) for rows in scale.memory_rows for way in WAYS]
    jobs = [
        Job(encrypted_seconds, {**common, "bits": scale.bits, "steps": scale.steps, "step_rows": scale.step_rows}),
        *(
            Job(clear_seconds, {**common, "rows": rows, "epochs": epochs, "runs": scale.runs})
            for rows, epochs in points
        ),
        *(Job(memory, {**common, "way": way, "rows": rows, "bits": scale.bits}) for way, rows in looked),
    ]
    slow, *found = run_jobs(jobs, settings.jobs, workers=1, say=settings.say)
    seconds: dict[Way, list[list[float]]] = {way: [each[way] for each in found[: len(points)]] for way in CLEAR}
    lengths = len(scale.epochs)
    return Measured(
        scale,
        {way: each[:lengths] for way, each in seconds.items()},
        {way: each[lengths:] for way, each in seconds.items()},
        slow["keys"],
        {int(rows): each for rows, each in slow["steps"].items()},
        {what: (each["before"], each["peak"]) for what, each in zip(looked, found[len(points) :], strict=True)},
    )


def section_of(found: Measured) -> Section:
    """Return what was measured as a section."""
    scale = found.scale
    lines = markdown_table(
        ("seconds over", "training", "of one more", "of none", "R²"),
        [_fit_row(over, way, each) for over, way, each in fits(found)],
        left=2,
    )
    body = f"""
Logistic regression on {found.data}, half of the columns at either party, batches of {grouped(scale.batch)}, both
parties in one process on one core: CPU seconds of a training with one evaluation at its end. Trainings in the clear
were run in turn, {scale.runs} of each; medians. HDP-VFL: noise from a keystream, clips, and the account. Encrypted:
exchange taylor, keys of {scale.bits} bits; {scale.steps} of the steps of each size
({", ".join(map(grouped, scale.step_rows))} records) were timed, and a training is its keys and as many steps as it has:
over epochs its seconds are a line because they are multiplied.

{_seconds_table(found)}

A line through the medians:

{lines}

{_memory_table(found)}
"""
    panels = [_panel("10 000 rows", "epochs", scale.epochs, found.over_epochs)] if scale is FULL else []
    panels += [_panel("one epoch", "thousand rows", [rows / 1000 for rows in scale.rows], found.over_rows)]
    return Section(
        title="Figure 3: what the trainings take",
        body=body,
        figures={"hdp-vfl-costs": draw_panels("hdp-vfl-costs", panels, _PENS)},
        captions={"hdp-vfl-costs": "CPU seconds of trainings in the clear; the encrypted ones are in the table."},
        claims=claims_of(found),
    )


def _panel(title: str, across: str, at: Sequence[float], seconds: Mapping[Way, Sequence[Sequence[float]]]) -> Panel:
    lines: dict[str, Line] = {way: (at, [median(each) for each in seconds[way]]) for way in CLEAR}
    return Panel(title=f"seconds, {title}", x_label=across, lines=lines, marked=True)


def fits(found: Measured) -> list[tuple[str, Way, Fit]]:
    """Return the lines through seconds: over epochs and rows in the clear, over the records of a step encrypted."""
    scale = found.scale
    lines: list[tuple[str, Way, Fit]] = []
    for way in CLEAR:
        lines.append(("epochs", way, fit_line(scale.epochs, [median(each) for each in found.over_epochs[way]])))
        thousands = [rows / 1000 for rows in scale.rows]
        lines.append(("thousand rows", way, fit_line(thousands, [median(each) for each in found.over_rows[way]])))
    records = [rows / 1000 for rows in found.steps]
    lines.append(
        ("thousand records of a step", "encrypted", fit_line(records, [median(each) for each in found.steps.values()]))
    )
    return lines


def _fit_row(over: str, way: Way, line: Fit) -> tuple[str, ...]:
    return over, way, f"{line.slope:.3g}", f"{line.intercept:.3g}", shown(line.r2)


def _seconds_table(found: Measured) -> str:
    scale = found.scale
    points = [
        *((scale.rows_of_epochs, epochs, number, found.over_epochs) for number, epochs in enumerate(scale.epochs)),
        *((rows, 1, number, found.over_rows) for number, rows in enumerate(scale.rows)),
    ]
    rows = []
    for records, epochs, number, seconds in points:
        bare, private = (seconds[way][number] for way in CLEAR)
        slow = found.encrypted(records, epochs)
        more = median(b / a for a, b in zip(bare, private, strict=True))
        rows.append(
            (
                grouped(records),
                str(epochs),
                f"{median(bare):.3g}",
                f"{median(private):.3g}",
                f"{slow:.3g}",
                f"{more:.2f}",
                grouped(round(slow / median(bare))),
            )
        )
    headings = ("rows", "epochs", *WAYS, "HDP-VFL / non-private", "encrypted / non-private")
    return markdown_table(headings, rows, left=0)


def _memory_table(found: Measured) -> str:
    if not found.memory:
        return ""
    rows = [(grouped(count), *(_mib(*found.memory[way, count]) for way in WAYS)) for count in found.scale.memory_rows]
    table = markdown_table(("rows", *WAYS), rows, left=0)
    return f"Peak memory in MiB of a process that has both parties; in brackets what training adds:\n\n{table}"


def _mib(before: float, peak: float) -> str:
    return f"{peak:.0f} ({peak - before:+.0f})"


# --- claims


def claims_of(found: Measured) -> list[Claim]:
    """Return the claims on figure 3."""
    scale, claims = found.scale, []
    for over, way, line in fits(found):
        claims.append(
            Claim(
                claim=f"figure 3: {way} is linear in {over} (R²)",
                published=None,
                ours=line.r2,
                interval=None,
                seeds=1,
                verdict="reproduces" if line.r2 >= _LINEAR and line.slope > 0 else "does not",
                why=f"{line.slope:.3g} s for one more, {line.intercept:.3g} s for none; a line from {_LINEAR}",
            )
        )
    bare, private = (found.over_epochs[way][-1] for way in CLEAR)
    slow = found.encrypted(scale.rows_of_epochs, scale.epochs[-1])
    for way, own in zip(CLEAR, (bare, private), strict=True):
        ratios = [slow / each for each in own]
        ours, (low, high) = median(ratios), PUBLISHED_RATIO
        claims.append(
            Claim(
                claim=f"figure 3: encrypted takes 2 to 3 times as long as {way}",
                published=(low + high) / 2,
                ours=ours,
                interval=interval(ratios),
                seeds=len(ratios),
                verdict="reproduces" if low <= ours <= high else "does not",
                why=(
                    f"{grouped(scale.rows_of_epochs)} rows, {scale.epochs[-1]} epochs, keys of {scale.bits} bits, no "
                    "network; median of runs"
                ),
            )
        )
    more = [b / a for a, b in zip(bare, private, strict=True)]
    claims.append(
        Claim(
            claim="figure 3: HDP-VFL takes no longer than without privacy (seconds, ratio)",
            published=1.0,
            ours=median(more),
            interval=interval(more),
            seeds=len(more),
            verdict="reproduces" if median(more) <= _AS_LONG else "does not",
            why=(
                f"median of paired runs; within {_AS_LONG - 1:.0%}; a step in the clear takes a few milliseconds here, "
                "and exact noise nearly as much"
            ),
        )
    )
    return claims

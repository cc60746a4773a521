"""How long and how large: an epoch of many records, by arithmetic, and what of it was measured."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from scripts.bench.measuring import Result
from scripts.bench.scale_pairs import Measured, Timed

GIB, TIB, TB = 2.0**30, 2.0**40, 1e12
BATCH, WIDTH = 65_536, 128
# 26 codes of 32 bits, and 13 numbers of float32.
COLUMN_BYTES: Final = 26 * 4 + 13 * 4
# Criteo's full data, and ten thousand million.
RECORDS: Final = (45_840_617, 10**10)


@dataclass(frozen=True)
class Epoch:
    """What one pass over the records takes.

    Attributes:
        records: How many there are.
        steps: Steps of the pass.
        step_bytes: What crosses in a full step, one way.
        crossing_bytes: What crosses in the pass, both ways together.
        passive_core_s: Core seconds of the passive party's half.
        column_bytes: What the columns take on a disk.
    """

    records: int
    steps: int
    step_bytes: int
    crossing_bytes: int
    passive_core_s: float
    column_bytes: int


def epoch_of(records: int, record_s: float, *, batch: int = BATCH, width: int = WIDTH, number_bytes: int = 4) -> Epoch:
    """Return what one pass over so many records takes.

    Args:
        records: How many.
        record_s: Core seconds of the passive party's half for each.
        batch: Records in a step.
        width: Of the cut.
        number_bytes: Of a number that crosses: 4 in float32, 2 in bfloat16.
    """
    return Epoch(
        records=records,
        steps=-(-records // batch),
        step_bytes=batch * width * number_bytes,
        crossing_bytes=2 * records * width * number_bytes,
        passive_core_s=records * record_s,
        column_bytes=records * COLUMN_BYTES,
    )


def passive_record_s(found: Measured) -> float:
    """Return the core seconds of the passive party's half for each record, tables included."""
    timed = Timed.middle(found.timed[1])
    return (timed.passive_s + timed.rows_s) / found.load.batch


def example(record_s: float) -> list[Result]:
    """Return the worked example, row by row."""
    rows = []
    for number_bytes, name in ((4, "float32"), (2, "bf16")):
        step = epoch_of(BATCH, record_s, number_bytes=number_bytes).step_bytes / 2.0**20
        rows.append(Result(f"example: a step of {BATCH} records, one way, {name}", step, "MiB", None))
    for records in RECORDS:
        one, name = epoch_of(records, record_s), f"example: {records:.3g} records"
        seconds = one.passive_core_s
        rows += [
            Result(f"{name}: steps of an epoch", one.steps, "steps", None),
            Result(
                f"{name}: crosses in an epoch, both ways",
                one.crossing_bytes / TIB,
                "TiB",
                None,
                note=(f"{one.crossing_bytes / GIB:.1f} GiB, half of it each way"),
            ),
            Result(
                f"{name}: the passive half of an epoch",
                seconds / 3600,
                "core-hours",
                None,
                note=(f"{seconds / 60:.0f} core-minutes; {1e6 * record_s:.1f} us a record, measured"),
            ),
            Result(f"{name}: columns", one.column_bytes / TB, "TB", None, note=f"{COLUMN_BYTES} bytes a record"),
        ]
    return rows

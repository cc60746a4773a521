"""A division into shards in words, as it is printed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pyarrow as pa

from splitvfl.data.shard_writing import ShardReport

# More shards than a screen has lines are told in a few.
_MOST_LISTED = 32


def described(report: ShardReport) -> Iterator[str]:
    """Yield the lines that say what was divided."""
    sharding = report.sharding
    rate = f"{report.rows / report.seconds:,.0f} rows/s, {report.read_bytes / 1e6 / report.seconds:,.1f} MB/s"
    yield f"{report.folder}: {report.rows:,} records in {sharding.shards} shards, {rate}"
    kind = "text" if pa.types.is_string(report.types[sharding.id_column]) else "whole numbers"
    case = "" if sharding.case == "kept" else ", letter case folded"
    yield f"divided by column {sharding.id_column!r}: {kind}{case}"
    yield from _table(sharding.records) if sharding.shards <= _MOST_LISTED else _ends(sharding.records)
    empty = [str(shard) for shard, count in enumerate(sharding.records) if not count]
    if empty:
        more = f" and {len(empty) - _MOST_LISTED} more" if len(empty) > _MOST_LISTED else ""
        yield f"empty: {', '.join(empty[:_MOST_LISTED])}{more}; an empty shard can be put to no use: divide into fewer"


def _table(records: Sequence[int]) -> Iterator[str]:
    width = max(len("records"), *(len(f"{count:,}") for count in records))
    yield f"shard  {'records':>{width}}"
    for shard, count in enumerate(records):
        yield f"{shard:>5}  {count:>{width},}"


def _ends(records: Sequence[int]) -> Iterator[str]:
    for word, count in (("smallest", min(records)), ("largest", max(records))):
        yield f"{word}: shard {records.index(count)} with {count:,} records"

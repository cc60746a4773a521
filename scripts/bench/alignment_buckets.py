"""What alignment in buckets costs: ten million ids a side, as :mod:`scripts.bench.alignment` aligns them.

Run ``python -m scripts.bench.alignment_buckets [--quick] [--json OUT]``; without ``--quick`` it takes more than an hour
of two cores. Digests of ids, and what is done, lie on the disk meanwhile: 72 bytes for each id.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

from scripts.bench.alignment import align_on_loopback
from scripts.bench.measuring import Result, main

RECORDS, BUCKETS = 10_000_000, 16
QUICK_RECORDS, QUICK_BUCKETS = 44_000, 4


def measure(quick: bool) -> list[Result]:
    """Return every row; ``quick`` aligns fewer ids."""
    records, buckets = (QUICK_RECORDS, QUICK_BUCKETS) if quick else (RECORDS, BUCKETS)
    with tempfile.TemporaryDirectory() as folder:
        found = align_on_loopback(Path(folder), records, "--buckets", str(buckets))
    what, note = f"aligning {records:,} ids a side in {buckets} buckets", "1 run, two processes, mutual TLS on loopback"
    return [
        Result(what, found.seconds, "s", None, note=note),
        Result(f"{what}, CPU time of both", found.cpu_seconds, "s", None, note=note),
        Result(f"{what}, peak memory of a party", found.peak_mib, "MiB", None, note=note),
    ]


if __name__ == "__main__":
    raise SystemExit(main("Alignment in buckets", measure))

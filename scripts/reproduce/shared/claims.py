"""What a paper claims beside what is measured here: the rows of ``results.json``, and tables for people."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
from scipy import stats

from splitvfl.errors import ArgumentError

Verdict = Literal["reproduces", "only with a variant", "does not"]

VERDICTS: Mapping[Verdict, str] = {
    "reproduces": "What is claimed was measured here with the setting that is claimed: within the tolerance that the "
    "reason names where there is a published figure, by the test that the reason names where there is none.",
    "only with a variant": "It was measured with a setting, a scaling or a reading that is not the one that is claimed "
    "or printed; the reason names it. As claimed it was not.",
    "does not": "It was measured, and is not so, or cannot be told from chance with so many seeds.",
}
"""What the verdicts mean, on every page alike."""

Interval = tuple[float, float]


@dataclass(frozen=True, kw_only=True)
class Claim:
    """One claim of a paper, or of this project, and what was measured.

    Attributes:
        claim: What is claimed, with the data and the setting.
        published: The published figure; ``None`` where the claim is no figure.
        ours: The mean over seeds.
        interval: 95 % interval of that mean; ``None`` with one seed, and of shares.
        seeds: Number of seeds.
        verdict: Whether it reproduces.
        why: The reason of the verdict, in one or two sentences.

    Raises:
        ArgumentError: If the verdict is not one of the three, or there is no seed.
    """

    claim: str
    published: float | None
    ours: float | None
    interval: Interval | None
    seeds: int
    verdict: Verdict
    why: str

    @classmethod
    def of(cls, values: Sequence[float], *, claim: str, holds: bool, why: str, published: float | None = None) -> Claim:
        """Return a claim about the mean of these values, one per seed: whether it holds says whether it reproduces."""
        return cls(
            claim=claim,
            published=published,
            ours=mean(values),
            interval=interval(values),
            seeds=len(values),
            verdict="reproduces" if holds else "does not",
            why=why,
        )

    @classmethod
    def of_shares(
        cls, values: Sequence[float], *, claim: str, holds: bool, why: str, published: float | None = None
    ) -> Claim:
        """Return a claim about shares, one per seed: least and largest stand in the reason, and there is no interval.

        Shares are bounded and take few values, so that an interval by Student's t would reach past 0 and 1.
        """
        found = cls.of(values, claim=claim, holds=holds, why=why, published=published)
        low, high = shown(min(values)), shown(max(values))
        ends = f"{low} with every seed" if low == high else f"{low} to {high} over seeds"
        return replace(found, interval=None, why=f"{ends}; {why}")

    def __post_init__(self) -> None:
        """Check verdict and seeds."""
        if self.verdict not in VERDICTS:
            raise ArgumentError(f"expected a verdict of {', '.join(VERDICTS)}, got {self.verdict!r}")
        if self.seeds < 1:
            raise ArgumentError(f"expected at least 1 seed, got {self.seeds}")


def grouped(number: int) -> str:
    """Return a whole number with a space before every three digits.

    >>> grouped(46000)
    '46 000'
    """
    return f"{number:,}".replace(",", " ")


def mean(values: Iterable[float]) -> float:
    """Return the mean of the values that are not NaN; NaN if none is."""
    known = [value for value in values if not math.isnan(value)]
    return math.fsum(known) / len(known) if known else math.nan


def interval(values: Iterable[float]) -> Interval | None:
    """Return the 95 % interval of the mean over seeds: mean ± t · s / √n, Student's t with n − 1 degrees of freedom.

    It holds for values that are roughly normal over seeds. It says nothing about other data, or about another split.

    Args:
        values: One per seed; NaN ones are left out.

    Returns:
        ``(low, high)``, or ``None`` with fewer than two values.
    """
    known = np.array([value for value in values if not math.isnan(value)])
    if known.size < 2:
        return None
    half = float(stats.t.ppf(0.975, known.size - 1) * known.std(ddof=1) / math.sqrt(known.size))
    middle = mean(known.tolist())
    return middle - half, middle + half


def write_results(folder: Path, claims: Sequence[Claim], beside: Mapping[str, Any] | None = None) -> Path:
    """Write ``results.json`` into a folder, which is made if need be, and return its path.

    The file is written under another name and renamed, so that there is never half of it. Figures that are not
    finite become ``null``: JSON has no NaN.

    Args:
        folder: Where.
        claims: The rows, in the order that they keep.
        beside: What else is written, by name: JSON values.
    """
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "results.json"
    rows = [{name: _finite(value) for name, value in asdict(claim).items()} for claim in claims]
    write_whole(
        path, json.dumps({"claims": rows, **(beside or {})}, indent=2, ensure_ascii=False, allow_nan=False) + "\n"
    )
    return path


def _finite(value: object) -> object:
    if isinstance(value, tuple):
        return None if any(not math.isfinite(end) for end in value) else list(value)
    return None if isinstance(value, float) and not math.isfinite(value) else value


def write_whole(path: Path, text: str) -> None:
    """Write a file beside its place and rename it, so that a reader finds the old one or the whole new one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    # The process's number: two workers may write files of one name at the same time.
    beside = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        beside.write_text(text, encoding="utf-8")
        beside.replace(path)
    finally:
        beside.unlink(missing_ok=True)


def shown(value: float | None, digits: int = 3) -> str:
    """Return a figure for a table, without the zero before the point: ``.983``; a dash where there is none."""
    if value is None or not math.isfinite(value):
        return "–"
    text = f"{value:.{digits}f}"
    return text.replace("0.", ".", 1) if text.removeprefix("-").startswith("0.") else text


def with_interval(values: Iterable[float], digits: int = 3) -> str:
    """Return the mean of values over seeds, and half the width of its 95 % interval: ``.836 ± .004``."""
    known = list(values)
    ends = interval(known)
    middle = shown(mean(known), digits)
    return middle if ends is None else f"{middle} ± {shown((ends[1] - ends[0]) / 2, digits)}"


def standard_error(values: Iterable[float]) -> float:
    """Return the standard error of the mean over seeds; NaN with fewer than two values."""
    known = [value for value in values if not math.isnan(value)]
    return float(stats.sem(known)) if len(known) > 1 else math.nan


def with_error(values: Iterable[float], digits: int = 3) -> str:
    """Return the mean over seeds and its standard error: ``.836 ± .004``."""
    known = list(values)
    middle, error = shown(mean(known), digits), standard_error(known)
    return middle if math.isnan(error) else f"{middle} ± {shown(error, digits)}"


def markdown_table(headings: Sequence[str], rows: Iterable[Sequence[str]], *, left: int = 1, last_left: int = 0) -> str:
    """Return a Markdown table.

    Args:
        headings: One per column.
        rows: Cells as text, one per heading.
        left: So many first columns are aligned left, the others right.
        last_left: So many last columns are aligned left, too.

    Raises:
        ArgumentError: If a row has another number of cells than there are headings.
    """
    right = range(left, len(headings) - last_left)
    lines = [list(headings), ["---:" if number in right else "---" for number in range(len(headings))]]
    for row in rows:
        if len(row) != len(headings):
            raise ArgumentError(f"expected {len(headings)} cells in a row, got {len(row)}: {list(row)}")
        lines.append([cell.replace("|", "\\|") for cell in row])
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


CLAIM_HEADINGS = ("claim", "published", "ours", "seeds", "verdict", "why")


def claims_table(claims: Sequence[Claim]) -> str:
    """Return the claims as a Markdown table with published figure, ours, verdict and reason."""
    rows = [
        (claim.claim, shown(claim.published), _ours(claim), str(claim.seeds), claim.verdict, claim.why)
        for claim in claims
    ]
    return markdown_table(CLAIM_HEADINGS, rows, last_left=2)


def _ours(claim: Claim) -> str:
    if claim.interval is None:
        return shown(claim.ours)
    return f"{shown(claim.ours)} ({shown(claim.interval[0])} to {shown(claim.interval[1])})"

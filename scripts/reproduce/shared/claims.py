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

from splitvfl.errors import ArgumentError, DataError

Verdict = Literal["reproduces", "only with a variant", "does not"]

VERDICTS: Mapping[Verdict, str] = {
    "reproduces": "What is claimed was measured here with the setting that is claimed: within the tolerance that the "
    "reason names where there is a published figure, by the test that the reason names where there is none. What is "
    "proved is so as it is stated, by a test of the project that the table names.",
    "only with a variant": "It was measured or tested with data, a setting, a scaling or a reading that is not the one "
    "that is claimed or printed; the reason names it. As claimed it was not.",
    "does not": "It was measured or tested, and is not so; or it cannot be told from chance with so many seeds, or "
    "what is given is not enough to show it.",
}
"""What the verdicts mean, on every page alike."""

VERDICT_RULE = """\
What a verdict is about, unless the reason names another test. A published figure: the *mean* over seeds is within the
tolerance that the reason names; the interval says how far the means of other seeds may lie. That something is above or
below a bound, or better or worse than something else: the *whole interval* is on that side; one that reaches across
shows nothing. With one seed there is none; with two it is 25 standard errors wide. What is proved, or counted: *every*
run, whatever the interval. Rows are judged one by one, and not corrected for their number: of many comparisons of
things that are equal, one in forty still has an interval that lies above zero."""
"""How a verdict follows from what was measured, on every page alike."""

Interval = tuple[float, float]
UNIT: Interval = (0.0, 1.0)
"""What an AUC, a share or an accuracy cannot lie beyond."""
DIFFERENCE: Interval = (-1.0, 1.0)
"""What a difference of two of them cannot lie beyond."""
COUNTED_FROM = 3
"""Seeds from which on it is counted in how many rows something is so: with two an interval is 25 standard errors wide,
so that a count of none would tell of the number of seeds alone."""


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
    def of(
        cls,
        values: Sequence[float],
        *,
        claim: str,
        holds: bool,
        why: str,
        published: float | None = None,
        limits: Interval | None = None,
    ) -> Claim:
        """Return a claim about the mean of these values, one per seed: whether it holds says whether it reproduces.

        Where some seeds have no figure the reason says how many have, and these alone are counted as seeds.

        Args:
            values: One per seed; NaN: none.
            claim: What is claimed.
            holds: Whether it was so.
            why: The reason.
            published: The published figure.
            limits: What no value can lie beyond: there the interval ends.
        """
        known = sum(not math.isnan(value) for value in values)
        missing = f"{known} of {len(values)} seeds have a figure; " if known < len(values) else ""
        return cls(
            claim=claim,
            published=published,
            ours=mean(values),
            interval=clipped(interval(values), limits),
            seeds=known or len(values),
            verdict="reproduces" if holds else "does not",
            why=f"{missing}{why}",
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
    """Return the mean of the values that are not NaN; NaN if all are.

    For people :func:`shown_mean` says of how many of the seeds it is; :func:`mean_of_all` is NaN if one of them is.
    """
    known = [value for value in values if not math.isnan(value)]
    return math.fsum(known) / len(known) if known else math.nan


def mean_of_all(values: Iterable[float]) -> float:
    """Return the mean of all values: NaN if one of them is, or if there is none.

    For figures that are compared by seed, which those of other seeds must not stand in for.
    """
    found = list(values)
    return math.fsum(found) / len(found) if found else math.nan


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


def clipped(ends: Interval | None, limits: Interval | None) -> Interval | None:
    """Return an interval without what lies beyond the limits, which no mean can reach.

    >>> clipped((0.415, 1.305), UNIT)
    (0.415, 1.0)
    """
    if ends is None or limits is None:
        return ends
    low, high = limits
    return min(max(ends[0], low), high), min(max(ends[1], low), high)


def surely_above(values: Sequence[float], level: float) -> bool:
    """Return whether the whole 95 % interval of the mean over seeds lies above a level.

    With one seed it is not known, nor where one has no figure: what the others have is no mean of all.

    >>> surely_above([0.9, 0.95, 0.92], 0.8), surely_above([0.9, 0.95, 0.7], 0.8), surely_above([0.9], 0.8)
    (True, False, False)
    >>> surely_above([0.9, 0.95, 0.92, math.nan], 0.8)
    False
    """
    ends = None if any(map(math.isnan, values)) else interval(values)
    return ends is not None and ends[0] > level


def surely_below(values: Sequence[float], level: float) -> bool:
    """Return whether the whole 95 % interval of the mean over seeds lies below a level, as :func:`surely_above`.

    >>> surely_below([0.1, 0.15, 0.12], 0.2), surely_below([0.1], 0.2)
    (True, False)
    """
    ends = None if any(map(math.isnan, values)) else interval(values)
    return ends is not None and ends[1] < level


def write_results(folder: Path, claims: Sequence[Claim], beside: Mapping[str, Any] | None = None) -> Path:
    """Write ``results.json`` into a folder, which is made if need be, and return its path.

    The file is written under another name and renamed, so that there is never half of it. Figures that are not
    finite become ``null``: JSON has no NaN.

    Args:
        folder: Where.
        claims: The rows, in the order that they keep.
        beside: What else is written, by name: JSON values.
    """
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
    """Write a text as :func:`write_whole_bytes` does, in UTF-8."""
    write_whole_bytes(path, text.encode())


def write_whole_bytes(path: Path, content: bytes) -> None:
    """Write a file beside its place and rename it, so that a reader finds the old one or the whole new one.

    Raises:
        DataError: If it cannot be written.
    """
    # The process's number: two workers may write files of one name at the same time.
    beside = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            beside.write_bytes(content)
            beside.replace(path)
        finally:
            beside.unlink(missing_ok=True)
    except OSError as error:
        raise DataError(f"{path}: cannot be written ({error.strerror})") from None


def shown(value: float | None, digits: int = 3) -> str:
    """Return a figure for a table, without the zero before the point; a dash where there is none.

    What is nothing to so many digits has no sign.

    >>> shown(0.9834), shown(-0.0123), shown(-0.0001), shown(None)
    ('.983', '-.012', '.000', '–')
    """
    if value is None or not math.isfinite(value):
        return "–"
    text = f"{value:.{digits}f}"
    if float(text) == 0.0:
        text = text.removeprefix("-")
    return text.replace("0.", ".", 1) if text.removeprefix("-").startswith("0.") else text


def signed(value: float, digits: int = 3) -> str:
    """Return a difference for a table, with its sign; what is nothing to so many digits has none.

    >>> signed(0.0123), signed(-0.004), signed(-0.0004), signed(math.nan)
    ('+.012', '−.004', '.000', '–')
    """
    text = shown(value, digits).removeprefix("-")
    if text == "–" or float(text) == 0.0:
        return text
    return f"{'+' if value > 0.0 else '−'}{text}"


def in_percent(share: float) -> str:
    """Return a share in per cent; what is nothing to a whole per cent has no sign.

    >>> in_percent(0.764), in_percent(-0.2), in_percent(-0.004), in_percent(math.nan)
    ('76 %', '−20 %', '0 %', '–')
    """
    if not math.isfinite(share):
        return "–"
    number = round(100.0 * share)
    return f"{'−' if number < 0 else ''}{grouped(abs(number))} %"


def shown_mean(values: Iterable[float], digits: int = 3) -> str:
    """Return the mean over seeds for a table, and how many seeds it is of where some have no figure.

    >>> shown_mean([0.25, 0.75]), shown_mean([0.25, math.nan]), shown_mean([math.nan])
    ('.500', '.250 (1 of 2 seeds)', '–')
    """
    found = list(values)
    return f"{shown(mean(found), digits)}{_of_seeds(found)}"


def _of_seeds(values: Sequence[float]) -> str:
    known = sum(not math.isnan(value) for value in values)
    return f" ({known} of {len(values)} seeds)" if 0 < known < len(values) else ""


def with_interval(values: Iterable[float], digits: int = 3, *, limits: Interval | None = None) -> str:
    """Return the mean over seeds with its 95 % interval: ``.836 ± .004``, half the width of it.

    Where that interval would reach beyond what the figure can be, its values are not roughly normal: some runs have
    collapsed, or all are at the end of what can be. Then the least and the most of the seeds stand in square brackets.
    Where some seeds have no figure it is said of how many it is.

    Args:
        values: One per seed; NaN: none.
        digits: After the point.
        limits: What no value can lie beyond; ``None``: there is no such thing.

    >>> with_interval([0.83, 0.84], limits=UNIT), with_interval([0.5, 0.9], limits=UNIT)
    ('.835 ± .064', '.700 [.500 to .900]')
    """
    found = list(values)
    ends, middle = interval(found), shown(mean(found), digits)
    if ends is None:
        told = ""
    elif (low_high := least_and_most(found, limits, digits)) is not None:
        told = f" [{shown(low_high[0], digits)} to {shown(low_high[1], digits)}]"
    else:
        told = f" ± {shown((ends[1] - ends[0]) / 2, digits)}"
    return f"{middle}{told}{_of_seeds(found)}"


def least_and_most(values: Sequence[float], limits: Interval | None, digits: int = 3) -> Interval | None:
    """Return the least and the most of the seeds where the 95 % interval would reach beyond what can be.

    As it is printed: to so many digits.

    Returns:
        ``(least, most)``; ``None`` where the interval lies within the limits, or there is none of either.
    """
    ends = interval(values)
    if ends is None or limits is None:
        return None
    if round(ends[0], digits) >= limits[0] and round(ends[1], digits) <= limits[1]:
        return None
    known = [value for value in values if not math.isnan(value)]
    return min(known), max(known)


def standard_error(values: Iterable[float]) -> float:
    """Return the standard error of the mean over seeds; NaN with fewer than two values."""
    known = [value for value in values if not math.isnan(value)]
    return float(stats.sem(known)) if len(known) > 1 else math.nan


def with_error(values: Iterable[float], digits: int = 3) -> str:
    """Return the mean over seeds and its standard error: ``.836 ± .004``."""
    found = list(values)
    middle, error = shown(mean(found), digits), standard_error(found)
    spread = "" if math.isnan(error) else f" ± {shown(error, digits)}"
    return f"{middle}{spread}{_of_seeds(found)}"


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

"""How sentences say what was read of columns of numbers, of categories, or of both."""

from __future__ import annotations

from collections.abc import Iterator

from splitvfl.leakage.asked_categories import MOST_CATEGORIES
from splitvfl.leakage.column_figures import EXACT, ColumnReading, ColumnShare


def of_variance(reading: ColumnReading) -> str:
    """Return what stands before the columns that were read: nothing where some of them have categories."""
    return "" if _fields(reading) else "the variance of "


def counting(reading: ColumnReading) -> str:
    """Return what stands behind them: how categories are counted, where there are any."""
    fields = _fields(reading)
    if not fields:
        return ""
    numbers = "of numbers the variance, " if fields < len(reading.columns) else ""
    named = "categorical field" if fields == 1 else "categorical fields"
    return f" ({numbers}of {fields} {named} what is right beyond the most frequent category)"


def once_each(share: float | None) -> str:
    """Return what the mean is where each category counts once, for behind it; empty where categories are no columns.

    >>> once_each(0.456), once_each(None)
    (' (46% where a category held as columns of zeros and ones counts once)', '')
    """
    if share is None:
        return ""
    return f" ({share:.0%} where a category held as columns of zeros and ones counts once)"


def with_share(column: ColumnShare) -> str:
    """Return a column's name, and how much of it is read.

    >>> with_share(ColumnShare("age", 0.5)), with_share(ColumnShare("region", 0.5, right=0.8, commonest=0.6))
    ('age (50%)', 'region (50%: 80% right, the most frequent category 60%)')
    """
    if column.right is None or column.commonest is None:
        return f"{column.column} ({column.share:.0%})"
    return (
        f"{column.column} ({column.share:.0%}: {column.right:.0%} right, the most frequent category "
        f"{column.commonest:.0%})"
    )


def later(reading: ColumnReading) -> str:
    """Return a sentence of records that are evaluated or scored, with a space before it; empty if none was read."""
    found = {"evaluated": None if reading.evaluation_only else reading.evaluation, "scored": reading.prediction}
    said = [f"{one.share:.0%} where they are {what}" for what, one in found.items() if one is not None]
    return f" On records outside of the training it recovers {' and '.join(said)}." if said else ""


def beside_own(reading: ColumnReading) -> str:
    """Return in brackets what the label party's own columns recover, alone and with all messages; or nothing.

    >>> beside_own(ColumnReading("ridge", 0.05, 0.5, 1, 100, without_messages=0.2, joint=0.6))
    ' (its own features alone 20%, all together 60%)'
    """
    figures = (("its own features alone", reading.without_messages), ("all together", reading.joint))
    said = [f"{what} {share:.0%}" for what, share in figures if share is not None]
    return f" ({', '.join(said)})" if said else ""


def exactly(reading: ColumnReading) -> str:
    """Return a sentence of records of which every column is recovered, with a space before it; empty where none is.

    >>> exactly(ColumnReading("ridge", 0.05, 0.9, 1, 100, exact=0.25, exact_joint=0.5))
    ' All features of a record are recovered for 50% of the records (numbers within 0.1 standard deviations).'
    """
    share = reading.exact_total
    if not share:
        return ""
    every = "All features of a record are recovered for"
    return f" {every} {_few(share)} of the records (numbers within {EXACT:g} standard deviations)."


def _few(share: float) -> str:
    return "less than 1%" if share < 0.01 else f"{share:.0%}"


def too_many(reading: ColumnReading) -> str:
    """Return a sentence of the fields that were not asked for, with a space before it; empty if there are none."""
    if not reading.too_many:
        return ""
    return f" Left out, as they have more than {MOST_CATEGORIES} categories: {', '.join(reading.too_many)}."


def categories_of(reading: ColumnReading) -> Iterator[ColumnShare]:
    """Yield what was read of each category, that of which most is read first; those in one-hot columns are last."""
    yield from (one for one in reading.columns if one.right is not None)
    yield from sorted(reading.one_hot, key=lambda one: -one.share)


def _fields(reading: ColumnReading) -> int:
    return sum(one.right is not None for one in reading.columns)

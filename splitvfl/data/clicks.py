"""Synthetic clicks of any number, in the form of Criteo's, with a known Bayes AUC.

For tests at scale, and for people without Criteo. Columns are ``id``, ``label``, counts ``I1`` … with heavy tails and
missing values, and categories ``C1`` … under Zipf's law, in vocabularies from 3 to 10⁶. A user and an ad stand behind
every row and tie its columns together. The logit of a click is an intercept plus five signals in fixed shares of its
variance: functions of the counts (35 %), their absence (7 %), effects of categories (33 %), interactions of user and
ad as in a factorisation machine (15 %), and crosses of two fields (10 %); kinds are weighted so one by one, and overlap
a little. Nothing else enters but the draw of the label, so the true probability is known for every row, and with it the
best AUC that a model of these columns can reach. Rare categories have small effects, so that most of it can be learnt.

Row i depends on the settings and i only. The same settings give the same bits everywhere, but for the last place of
``exp`` and ``log1p``, which differs between machines: about one value in 10¹⁰ may differ by one.
"""

from __future__ import annotations

import gzip
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet

from splitvfl.data.bayes_auc import BayesAUC
from splitvfl.data.click_world import SIGNALS, DrawnColumns, Floats, World
from splitvfl.data.hashing import Words
from splitvfl.errors import ArgumentError, DataError

CHUNK = 1 << 16

# Rows on which strength and intercept are chosen: numbered down from zero, so that they are none of the user's.
_PILOT = 1 << 17
# The pilot's sorted logits are averaged in groups of this size, which speeds up the search and changes no digit of it.
_GROUP = 32
# What is estimated on the pilot is rounded, so that the last place of exp on another machine does not change it.
_DIGITS = 6
_HALVINGS = 50
_STRONGEST = 30.0
# Beyond these a probability would be rounded to 0 or 1.
_REACH = 30.0
# Largest vocabulary that gets a dictionary in a Parquet file.
_DICTIONARY = 1 << 15


class ClickRows(NamedTuple):
    """Some rows.

    Attributes:
        rows: Columns ``id``, ``label``, ``I1`` …, ``C1`` ….
        probabilities: P(label = 1 | all columns), ``(n,)``, float64.
    """

    rows: pa.RecordBatch
    probabilities: Floats


class Clicks:
    """Synthetic clicks, made when they are asked for; see the module for their law.

    Args:
        rows: How many, at least 1.
        seed: Decides everything else.
        positive_share: Expected share of clicks, from 0.001 to 0.5.
        bayes_auc: AUC of the true probabilities in the population, from 0.55 to 0.99.
        fields: Number of categorical columns, 0 to 200.
        numbers: Number of counts, 0 to 200; at least one column there must be.

    Raises:
        ArgumentError: If an argument is out of range.

    >>> clicks = Clicks(1000, positive_share=0.25)
    >>> clicks.table().column_names[:4], clicks.table().num_rows
    (['id', 'label', 'I1', 'I2'], 1000)
    """

    def __init__(
        self,
        rows: int,
        *,
        seed: int = 0,
        positive_share: float = 0.25,
        bayes_auc: float = 0.8,
        fields: int = 26,
        numbers: int = 13,
    ) -> None:
        _check("rows", rows, 1, 1 << 62)
        _check("positive_share", positive_share, 0.001, 0.5)
        _check("bayes_auc", bayes_auc, 0.55, 0.99)
        _check("fields", fields, 0, 200)
        _check("numbers", numbers, 0, 200)
        _check("fields + numbers", fields + numbers, 1, 400)
        self.rows = rows
        self._world = World(seed, numbers=numbers, fields=fields)
        self._law = _fitted(seed, numbers, fields, positive_share, bayes_auc)

    @property
    def vocabularies(self) -> Mapping[str, int]:
        """Number of categories of each categorical column; one that is missing is none of them."""
        return {field.name: field.size for field in self._world.fields}

    def chunks(self, size: int = CHUNK) -> Iterator[ClickRows]:
        """Yield all rows in order, so many at a time. Memory is bounded by the size."""
        for start in range(0, self.rows, size):
            yield self._chunk(np.arange(start, min(start + size, self.rows), dtype=np.uint64))

    def table(self) -> pa.Table:
        """Return all rows as one table in memory."""
        return pa.Table.from_batches([chunk.rows for chunk in self.chunks()]).combine_chunks()

    def _chunk(self, rows: Words) -> ClickRows:
        drawn = self._world.draw(rows)
        probabilities = _sigmoid(self._law.logits(drawn))
        labels = self._world.clicked(rows, probabilities)
        columns: dict[str, pa.Array] = {
            "id": pa.array(rows.astype(np.int64)),
            "label": pa.array(labels.astype(np.int8)),
        }
        for column, (counts, missing) in zip(self._world.numbers, drawn.counts, strict=True):
            columns[column.name] = pa.array(counts.astype(np.int64), mask=missing)
        for field, ranks in zip(self._world.fields, drawn.ranks, strict=True):
            columns[field.name] = field.names(ranks)
        return ClickRows(pa.RecordBatch.from_pydict(columns), probabilities)


def _check(name: str, value: float, least: float, most: float) -> None:
    if not least <= value <= most:
        raise ArgumentError(f"expected {name} from {least} to {most}, got {value}")


def _sigmoid(logits: Floats) -> Floats:
    probabilities: Floats = 1 / (1 + np.exp(-logits.clip(-_REACH, _REACH)))
    return probabilities


@dataclass(frozen=True)
class _Law:
    """From signals to the logit: each is centred, and brought to its share of the variance."""

    centres: dict[str, float]
    weights: dict[str, float]
    intercept: float

    def logits(self, drawn: DrawnColumns) -> Floats:
        """Return the logit of a click for each row."""
        logits = np.zeros(1)
        for kind, signal in drawn.signals.items():
            logits = logits + self.weights[kind] * (signal - self.centres[kind])
        return logits + self.intercept

    @classmethod
    def fitted(cls, world: World, positive_share: float, bayes_auc: float) -> _Law:
        """Choose strength and intercept on pilot rows, by halving, so that share and Bayes AUC are met there."""
        drawn = world.draw(np.arange(1, _PILOT + 1, dtype=np.uint64) * np.uint64(0xFFFFFFFFFFFFFFFF))
        centres = {kind: round(float(signal.mean()), _DIGITS) for kind, signal in drawn.signals.items()}
        deviations = {kind: float(signal.std()) for kind, signal in drawn.signals.items()}
        # Where there is no such column, there is no such signal.
        present = [kind for kind, deviation in deviations.items() if deviation > 0]
        weights = {
            kind: (SIGNALS[kind] ** 0.5 / deviations[kind] if kind in present else 0.0) for kind in drawn.signals
        }
        unit = np.sort(cls(centres, weights, 0.0).logits(drawn)).reshape(-1, _GROUP).mean(axis=1)
        highest = _auc(_with_share(_STRONGEST * unit, positive_share))
        if highest < bayes_auc:
            raise ArgumentError(
                f"with so few columns the Bayes AUC can be at most {highest:.2f}, got {bayes_auc}; ask for more columns"
            )
        strength = _halved(lambda tried: _auc(_with_share(tried * unit, positive_share)) < bayes_auc, 0.0, _STRONGEST)
        shift = _intercept(strength * unit, positive_share)
        return cls(
            centres,
            {kind: round(strength * weight, _DIGITS) for kind, weight in weights.items()},
            round(shift, _DIGITS),
        )


@lru_cache(maxsize=64)
def _fitted(seed: int, numbers: int, fields: int, positive_share: float, bayes_auc: float) -> _Law:
    """Return the law of a world, which is the same for any number of its rows."""
    return _Law.fitted(World(seed, numbers=numbers, fields=fields), positive_share, bayes_auc)


def _intercept(logits: Floats, positive_share: float) -> float:
    return _halved(lambda tried: float(_sigmoid(logits + tried).mean()) < positive_share, -100.0, 100.0)


def _with_share(logits: Floats, positive_share: float) -> Floats:
    return _sigmoid(logits + _intercept(logits, positive_share))


def _auc(probabilities: Floats) -> float:
    """Return the expected AUC of these probabilities for labels drawn from them."""
    # A few categories have a few logits: ties count one half.
    chances, place = np.unique(probabilities, return_inverse=True)
    records = np.bincount(place)
    positive, negative = records * chances, records * (1 - chances)
    below = np.cumsum(negative) - negative / 2
    return float((positive * below).sum() / (positive.sum() * negative.sum()))


def _halved(too_low: Callable[[float], bool], low: float, high: float) -> float:
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        low, high = (middle, high) if too_low(middle) else (low, middle)
    return (low + high) / 2


def write_clicks(
    path: str | os.PathLike[str],
    clicks: Clicks,
    *,
    overwrite: bool = False,
    progress: Callable[[int], None] = lambda rows: None,
) -> BayesAUC:
    """Write clicks to a file, and return how well their true probabilities rank them.

    The file appears when it is complete. Memory does not grow with the number of rows.

    Args:
        path: Ends in ``.parquet``, ``.csv``, ``.csv.gz`` or ``.csv.zst``.
        clicks: What to write.
        overwrite: Replace a file that is there.
        progress: Called with the number of rows written so far, after each chunk.

    Raises:
        ArgumentError: If the name ends otherwise.
        DataError: If there is such a file already, or fewer than two rows.
    """
    target, opened = Path(path), _format(Path(path))
    if target.exists() and not overwrite:
        raise DataError(f"{target} is there already; choose another name, or overwrite it (--overwrite)")
    if clicks.rows < 2:
        raise DataError(f"expected two records or more, got {clicks.rows}")
    target.parent.mkdir(parents=True, exist_ok=True)
    draft = target.with_name(f".{target.name}.{os.getpid()}.draft")
    try:
        ranking = _write(draft, opened, clicks, progress)
        os.replace(draft, target)
    finally:
        draft.unlink(missing_ok=True)
    return ranking


_Opened = Callable[[ExitStack, Path, pa.Schema, "Clicks"], Any]


def _format(path: Path) -> _Opened:
    for ending, opened in _FORMATS.items():
        if path.name.lower().endswith(ending):
            return opened
    raise ArgumentError(f"expected a file that ends in one of {', '.join(_FORMATS)}, got {path.name!r}")


def _parquet(stack: ExitStack, path: Path, schema: pa.Schema, clicks: Clicks) -> Any:
    # A dictionary of a large vocabulary costs much time and saves no room.
    large = {name for name, size in clicks.vocabularies.items() if size > _DICTIONARY}
    dictionaries = [name for name in schema.names if name not in large]
    return stack.enter_context(
        pyarrow.parquet.ParquetWriter(path, schema, compression="zstd", use_dictionary=dictionaries)
    )


def _csv(stack: ExitStack, path: Path, schema: pa.Schema, clicks: Clicks, *, opened: Callable[[Path], Any]) -> Any:
    file = stack.enter_context(opened(path))
    # Hexadecimal digits need no quotes.
    options = pyarrow.csv.WriteOptions(quoting_style="none")
    return stack.enter_context(pyarrow.csv.CSVWriter(file, schema, write_options=options))


_FORMATS: dict[str, _Opened] = {
    ".parquet": _parquet,
    ".csv": partial(_csv, opened=partial(open, mode="wb")),
    # Nine times as fast as the usual level.
    ".csv.gz": partial(_csv, opened=partial(gzip.open, mode="wb", compresslevel=1)),
    ".csv.zst": partial(_csv, opened=partial(pa.output_stream, compression="zstd")),
}


def _write(path: Path, opened: _Opened, clicks: Clicks, progress: Callable[[int], None]) -> BayesAUC:
    ranking = BayesAUC()
    with ExitStack() as stack:
        writer = None
        for rows, probabilities in clicks.chunks():
            writer = writer or opened(stack, path, rows.schema, clicks)
            writer.write_batch(rows)
            ranking.add(probabilities, rows.column("label").to_numpy(zero_copy_only=False) == 1)
            progress(ranking.records)
    return ranking

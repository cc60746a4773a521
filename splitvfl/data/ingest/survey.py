"""The first look at all rows: ids, the split, and what is learned from the training rows."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from safetensors import safe_open

from splitvfl.data.chunks import Chunk, Source
from splitvfl.data.ingest.encoders import BucketCoder, FieldCoder, categories, category_type, check_numbers
from splitvfl.data.ingest.hashing import are_tested, key_name
from splitvfl.data.ingest.plan import Earlier, Plan
from splitvfl.data.ingest.records import Ids, LabelValues, Mask, first_repeated, first_true, ids_of
from splitvfl.data.ingest.statistics import NumericStatistics
from splitvfl.data.ingest.vocabulary import (
    COUNT_BUDGET,
    CategoryCounter,
    CodeBook,
    Vocabulary,
    as_tensors,
    from_tensors,
    keep_within,
)
from splitvfl.data.ingest.writing import StoredTensor
from splitvfl.data.schema import (
    VOCABULARY_FILE,
    Encoder,
    HashEncoder,
    LabelSchema,
    SplitRule,
    VocabularyEncoder,
)
from splitvfl.data.sources import cells_at, chunks
from splitvfl.data.tables import numbers
from splitvfl.errors import DataError

ChunkWatcher = Callable[[Chunk], None]


@dataclass(frozen=True, kw_only=True)
class Survey:
    """What the first look found.

    Attributes:
        rows: Records of all files.
        tested: Test records.
        ids: File with the id of each row, int64.
        mask: File that says which rows are test rows, one byte each.
    """

    rows: int
    tested: int
    ids: Path
    mask: Path


@dataclass(frozen=True, eq=False, kw_only=True)
class FittedColumns:
    """How cells become numbers.

    Attributes:
        encoders: By column.
        coders: Of the categorical columns.
        tensors: Vocabularies, by column, as they will be stored.
        label: What labels mean; ``None`` where there are none.
        classes: Number of classes, 0 where nobody holds labels.
    """

    encoders: Mapping[str, Encoder]
    coders: Mapping[str, FieldCoder]
    tensors: Mapping[str, Sequence[StoredTensor]]
    label: LabelSchema | None
    classes: int


class Statistics:
    """Everything that is learned from rows as they pass.

    Args:
        plan: What to learn.
        scratch: Folder for what does not fit into memory.
    """

    def __init__(self, plan: Plan, scratch: Path) -> None:
        self._plan = plan
        self._scratch = scratch
        self._numeric = {
            name: NumericStatistics(name, plan.kinds[name], scale=scale, fill=plan.missing == "indicator")
            for name, scale in plan.scales.items()
        }
        self._counters = {
            name: CategoryCounter(category_type(plan.kinds[name]), scratch, f"count-{position}")
            for position, name in enumerate(plan.vocabularies)
        }
        self._labels = _label_values(plan)

    def add(self, chunk: Chunk, tested: Mask) -> None:
        """Take in some rows.

        Raises:
            DataError: If a number is missing where it may not be, or infinite; or there are too many classes.
        """
        training = ~tested
        for name, statistics in self._numeric.items():
            values = numbers(chunk.columns[name])
            check_numbers(values, name, missing=self._plan.missing, place=chunk.place)
            statistics.add(values[training])
        rows = pa.array(training)
        for name, counter in self._counters.items():
            counter.add(categories(chunk.columns[name]).filter(rows))
        keep_within(self._counters.values(), COUNT_BUDGET)
        if self._labels is not None and self._plan.label is not None:
            mistake = self._labels.add(label_cells(chunk, self._plan.label), tested)
            if mistake is not None:
                raise DataError(f"label column {self._plan.label!r} {mistake}")

    def learned(self) -> FittedColumns:
        """Return how cells become numbers.

        Raises:
            DataError: If a numeric column has no value in the training rows, or labels are not what the task needs.
        """
        label, classes = (None, 0) if self._labels is None else self._labels.schema()
        encoders: dict[str, Encoder] = {name: found.encoder() for name, found in self._numeric.items()}
        coders: dict[str, FieldCoder] = {}
        tensors: dict[str, Sequence[StoredTensor]] = {}
        for name, counter in self._counters.items():
            vocabulary = counter.vocabulary(self._plan.min_count)
            encoders[name] = self._vocabulary_encoder(name, vocabulary)
            coders[name] = CodeBook(vocabulary.values, vocabulary.missing_code)
            tensors[name] = _store(name, vocabulary.values, self._scratch, len(tensors))
        for name in self._plan.hashed:
            encoder = HashEncoder(
                column=name, kind=self._plan.kinds[name], buckets=self._plan.buckets, key=key_name(self._plan.key)
            )
            encoders[name], coders[name] = encoder, BucketCoder(encoder, self._plan.key)
        return FittedColumns(encoders=encoders, coders=coders, tensors=tensors, label=label, classes=classes)

    def _vocabulary_encoder(self, name: str, vocabulary: Vocabulary) -> VocabularyEncoder:
        return VocabularyEncoder(
            column=name,
            kind=self._plan.kinds[name],
            categories=len(vocabulary.values),
            missing_code=vocabulary.missing_code,
            min_count=self._plan.min_count,
            rare=vocabulary.rare,
        )


def _label_values(plan: Plan) -> LabelValues | None:
    if plan.label is None:
        return None
    return LabelValues(plan.label, plan.kinds[plan.label], task=plan.task, positive=plan.positive)


def label_cells(chunk: Chunk, column: str) -> pa.Array:
    """Return the labels of some rows: text, or float64.

    Raises:
        DataError: If one is missing.
    """
    cells = chunk.columns[column]
    cells = cells if pa.types.is_string(cells.type) else pc.cast(cells, pa.float64())
    gaps = pc.is_null(cells, nan_is_null=True).to_numpy(zero_copy_only=False)
    row = first_true(gaps)
    if row is not None:
        raise DataError(f"{chunk.place(row)}, column {column!r}: there is no label")
    return cells


def _store(name: str, values: pa.Array, scratch: Path, number: int) -> list[StoredTensor]:
    stored = []
    for part, (dtype, array) in as_tensors(values).items():
        path = scratch / f"vocabulary-{number}.{part}"
        array.tofile(path)
        stored.append(StoredTensor(f"{name}.{part}", dtype, array.size, path))
    return stored


def learned_before(plan: Plan, earlier: Earlier, scratch: Path) -> FittedColumns:
    """Return what an earlier ingest learned.

    Raises:
        DataError: If its vocabularies cannot be read.
    """
    coders: dict[str, FieldCoder] = {}
    tensors: dict[str, Sequence[StoredTensor]] = {}
    for party in plan.parties:
        for name in party.columns:
            encoder = earlier.encoders[name]
            if isinstance(encoder, HashEncoder):
                coders[name] = BucketCoder(encoder, plan.key)
            elif isinstance(encoder, VocabularyEncoder):
                values = _read_vocabulary(earlier.folder / party.name / VOCABULARY_FILE, encoder)
                coders[name] = CodeBook(values, encoder.missing_code)
                tensors[name] = _store(name, values, scratch, len(tensors))
    return FittedColumns(
        encoders=earlier.encoders, coders=coders, tensors=tensors, label=earlier.label, classes=earlier.classes
    )


def _read_vocabulary(path: Path, encoder: VocabularyEncoder) -> pa.Array:
    parts = ("bytes", "offsets") if encoder.kind == "text" else ("values",)
    try:
        with safe_open(path, framework="np") as file:
            values = from_tensors({part: file.get_tensor(f"{encoder.column}.{part}") for part in parts})
    except (OSError, RuntimeError, ValueError, pa.ArrowInvalid) as error:
        raise DataError(f"{path} cannot be read: {error}") from error
    except Exception as error:  # safetensors' own error is no more particular than this
        raise DataError(f"{path} is damaged: {error}") from error
    if len(values) != encoder.categories:
        raise DataError(f"{path}: expected {encoder.categories} categories of {encoder.column!r}, got {len(values)}")
    return values


def look(
    sources: Sequence[Source], plan: Plan, scratch: Path, *, statistics: Statistics | None, watch: ChunkWatcher
) -> Survey:
    """Read all rows once: keep their ids and the split, and pass them on to the statistics.

    Raises:
        DataError: If there are no rows; an id is missing or occurs twice; no row, or every row, is a test row; or a
            cell cannot be taken.
    """
    survey = Survey(rows=0, tested=0, ids=scratch / "ids", mask=scratch / "tested")
    rows = tested_rows = 0
    with ExitStack() as stack:
        ids_file, mask_file = (stack.enter_context(path.open("xb")) for path in (survey.ids, survey.mask))
        for chunk in chunks(sources, plan.types, kept=plan.kept):
            ids = _chunk_ids(chunk, plan, rows)
            tested = _tested(chunk, plan, ids)
            ids_file.write(ids.tobytes())
            mask_file.write(tested.tobytes())
            if statistics is not None:
                statistics.add(chunk, tested)
            rows += chunk.rows
            tested_rows += int(tested.sum())
            watch(chunk)
    if rows == 0:
        raise DataError(f"{sources[0].name} has a header and no rows")
    _check_parts(plan, rows, tested_rows)
    if plan.ids.column is not None and plan.aligned is None:
        _check_repeats(sources, plan, survey.ids, plan.ids.column, scratch)
    return Survey(rows=rows, tested=tested_rows, ids=survey.ids, mask=survey.mask)


def _chunk_ids(chunk: Chunk, plan: Plan, first_row: int) -> Ids:
    if plan.aligned is not None:
        return plan.aligned.row_ids[first_row : first_row + chunk.rows]
    column = plan.ids.column
    if column is None:
        return np.arange(first_row, first_row + chunk.rows, dtype=np.int64)
    cells = chunk.columns[column]
    blank = pc.equal(cells, "") if pa.types.is_string(cells.type) else pc.is_null(cells)
    row = first_true(blank.fill_null(True).to_numpy(zero_copy_only=False))
    if row is not None:
        raise DataError(f"{chunk.place(row)}, column {column!r}: there is no id")
    return ids_of(cells)


def _tested(chunk: Chunk, plan: Plan, ids: Ids) -> Mask:
    split = plan.split
    if split.rule == "column":
        assert split.column is not None
        cells = categories(chunk.columns[split.column])
        hits = pc.equal(cells, pa.scalar(split.value).cast(cells.type)) if split.value is not None else None
        return np.zeros(chunk.rows, bool) if hits is None else hits.fill_null(False).to_numpy(zero_copy_only=False)
    return tested_of(split, ids)


def tested_of(split: SplitRule, ids: Ids) -> Mask:
    """Return which records are test records, where their ids decide: some of them by a hash, or all."""
    if split.rule == "hash" and split.seed is not None and split.fraction is not None:
        return are_tested(ids, seed=split.seed, fraction=split.fraction)
    if split.rule == "all-test":
        return np.ones(len(ids), bool)
    raise DataError(f"ids do not decide which records are test records under {split}")


def _check_parts(plan: Plan, rows: int, tested: int) -> None:
    if plan.split.rule == "all-test" or 0 < tested < rows:
        return
    part = "test" if tested else "training"
    if plan.split.rule == "column":
        raise DataError(
            f"split column {plan.split.column!r}: all {rows} rows are {part} rows; expected {plan.split.value!r} in "
            "some and not in others"
        )
    raise DataError(f"all {rows} rows are {part} rows with test_fraction={plan.split.fraction}; expected more rows")


def _check_repeats(sources: Sequence[Source], plan: Plan, ids: Path, column: str, scratch: Path) -> None:
    folder = scratch / "repeats"
    folder.mkdir()
    repeated = first_repeated(ids, folder)
    if repeated is None:
        return
    (place, value), (other_place, other) = cells_at(sources, column, plan.types[column], repeated)
    if value == other:
        raise DataError(f"{other_place}, column {column!r}: id {other!r} is there already in {place}; ids must differ")
    raise DataError(
        f"{other_place}, column {column!r}: {other!r} has the same 63-bit hash as {value!r} in {place}; rename one, or "
        "number the records"
    )

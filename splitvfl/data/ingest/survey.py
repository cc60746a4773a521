"""The first look at all rows: ids, the split, and what is learned from the training rows."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import assert_never

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from safetensors import safe_open

from splitvfl.data.arrow_source import TableSource
from splitvfl.data.cell_format import TextWatch, dates_refused, looked_at, refused
from splitvfl.data.chunks import Chunk, Mask, Source, Types
from splitvfl.data.doubts import Doubt, DoubtWarning, in_words
from splitvfl.data.encoding import FittedNumbers, Scale, TableEncoder
from splitvfl.data.fitting import NumericFit, RunningSums
from splitvfl.data.hashing import are_tested, key_name
from splitvfl.data.id_column import missing_id, numbers_in, repeated_id, same_id
from splitvfl.data.ingest.plan import Earlier, PartyPlan, Plan
from splitvfl.data.ingest.records import Ids, LabelValues, first_repeated, first_true
from splitvfl.data.labels import are_missing
from splitvfl.data.load import no_input
from splitvfl.data.old_ids import as_typed
from splitvfl.data.schema import (
    VOCABULARY_FILE,
    Encoder,
    HashEncoder,
    IdRule,
    LabelSchema,
    NumericEncoder,
    Part,
    SplitRule,
    VocabularyEncoder,
)
from splitvfl.data.sources import cells_at, chunks
from splitvfl.data.spelling import setting
from splitvfl.data.split import check_both_parts
from splitvfl.data.vocabulary import (
    COUNT_BUDGET,
    BucketCoder,
    CategoryCounter,
    CodeBook,
    FieldCoder,
    as_tensors,
    category_type,
    from_tensors,
    ingested_categories,
    keep_within,
)
from splitvfl.data.writing import StoredTensor
from splitvfl.errors import DataError
from splitvfl.system.untrusted_files import MOST_LARGE, UntrustedFile

# Scales that mean and deviation are needed for.
SUMMED_SCALES: tuple[Scale, ...] = ("standard", "log1p")

ChunkWatcher = Callable[[Chunk], None]


@dataclass(frozen=True, kw_only=True)
class Survey:
    """What the first look found.

    Attributes:
        rows: Records of all files.
        tested: Test records.
        ids: File with the id of each row, int64.
        mask: File that says which rows are test rows, one byte each.
        whole: Records whose ids are whole numbers, where they are read as they stand.
    """

    rows: int
    tested: int
    ids: Path
    mask: Path
    whole: int = 0

    def ids_by(self, rule: IdRule) -> IdRule:
        """Return how records are named, now that all ids have been seen: parties with the same ids say the same."""
        if not rule.as_written:
            return rule
        kinds = {self.rows: "integer", 0: "blake2b-63"}
        return msgspec.structs.replace(rule, rule=kinds.get(self.whole, "mixed"))

    @property
    def sizes(self) -> dict[Part, int]:
        """Records of each part."""
        return {"train": self.rows - self.tested, "test": self.tested}


@dataclass(frozen=True, eq=False, kw_only=True)
class FittedColumns:
    """How cells become numbers.

    Attributes:
        encoders: What is written of them, by column.
        coders: What applies it, by column.
        tensors: Vocabularies, by column, as they will be stored.
        label: What labels mean; ``None`` where there are none.
        classes: Number of classes, 0 where nobody holds labels.
    """

    encoders: Mapping[str, Encoder]
    coders: Mapping[str, FittedNumbers | FieldCoder]
    tensors: Mapping[str, Sequence[StoredTensor]]
    label: LabelSchema | None
    classes: int

    def of(self, party: PartyPlan) -> TableEncoder:
        """Return what encodes one party's columns."""
        return TableEncoder([self.coders[name] for name in party.columns])


class Statistics:
    """Everything that is learned from rows as they pass.

    Args:
        plan: What to learn.
        scratch: Folder for what does not fit into memory.

    Attributes:
        sums: Sums of every column of numbers.
        counters: Counts of every column whose categories are listed.
        labels: The labels; ``None`` where there are none.
    """

    def __init__(self, plan: Plan, scratch: Path) -> None:
        self._plan = plan
        self._scratch = scratch
        fill = plan.missing == "indicator"
        self.sums = {
            name: RunningSums(log=scale == "log1p", fill=fill, scaled=scale in SUMMED_SCALES)
            for name, scale in plan.scales.items()
        }
        self._numeric = {
            name: NumericFit(name, scale=scale, fill=fill, sums=self.sums[name], bounds=plan.bounds.get(name))
            for name, scale in plan.scales.items()
        }
        self.counters = {
            name: CategoryCounter(category_type(plan.kinds[name]), scratch / f"count-{position}")
            for position, name in enumerate(plan.vocabularies)
        }
        self.labels = None
        if plan.label is not None:
            kind = plan.kinds[plan.label]
            self.labels = LabelValues(
                plan.label, kind, task=plan.task, positive=plan.positive, split_column=plan.split.column
            )

    def add(self, chunk: Chunk, tested: Mask) -> None:
        """Take in some rows.

        Raises:
            DataError: If a number is missing where it may not be, or infinite; or there are too many classes.
        """
        for fit in self._numeric.values():
            fit.add(chunk, ~tested)
        rows = pa.array(~tested)
        for name, counter in self.counters.items():
            counter.add(chunk.columns[name].filter(rows))
        self.keep_within_budget()
        if self.labels is not None and self._plan.label is not None:
            self.labels.add(label_cells(chunk, self._plan.label), tested)

    def keep_within_budget(self) -> None:
        """Write the largest counts to disk where all of them together are too large for memory."""
        keep_within(self.counters.values(), COUNT_BUDGET)

    def learned(self) -> FittedColumns:
        """Return how cells become numbers.

        Raises:
            DataError: If a numeric column has no value in the training rows, or labels are not what the task needs.
        """
        label, classes = (None, 0) if self.labels is None else self.labels.schema()
        encoders: dict[str, Encoder] = {name: self._numeric_encoder(name) for name in self._numeric}
        vocabularies: dict[str, pa.Array] = {}
        for name in self.counters:
            encoders[name], vocabularies[name] = self._vocabulary_encoder(name)
        for name in self._plan.hashed:
            encoders[name] = HashEncoder(
                column=name, kind=self._plan.kinds[name], buckets=self._plan.buckets, key=key_name(self._plan.key)
            )
        for party in self._plan.parties:
            if party.role == "passive" and all(_is_constant(encoders[name]) for name in party.columns):
                raise no_input(party.name, "the files")
        return _fitted(self._plan, encoders, vocabularies, label, classes, self._scratch)

    def _numeric_encoder(self, name: str) -> NumericEncoder:
        sums = self.sums[name]
        if sums.known == 0:
            raise DataError(
                f"column {name!r} has no value in any of {sums.gaps} training rows; leave it out ({setting('drop')})"
            )
        fitted = self._numeric[name].fitted()
        if not np.isfinite([fitted.offset, fitted.spread]).all():
            raise DataError(
                f"column {name!r} holds values too large to be scaled ({sums.low:g} to {sums.high:g}); try scale log1p"
            )
        return NumericEncoder(
            kind=self._plan.kinds[name],
            missing=self._plan.missing,
            median_error=sums.median_error,
            rows=sums.known + sums.gaps,
            gaps=sums.gaps,
            low=sums.low,
            high=sums.high,
            **msgspec.structs.asdict(fitted),
        )

    def _vocabulary_encoder(self, name: str) -> tuple[VocabularyEncoder, pa.Array]:
        found = self.counters[name].vocabulary(self._plan.min_count)
        encoder = VocabularyEncoder(
            column=name,
            kind=self._plan.kinds[name],
            categories=len(found.values),
            missing_code=found.missing_code,
            min_count=self._plan.min_count,
            rare=found.rare,
        )
        return encoder, found.values


def _is_constant(encoder: Encoder) -> bool:
    """Return whether a column is the same in all training rows; of one that is hashed, nobody has counted values."""
    match encoder:
        case NumericEncoder():
            return encoder.low == encoder.high and not (encoder.marked and encoder.gaps)
        case VocabularyEncoder():
            codes = encoder.categories + (encoder.missing_code > 0)
            return codes == 0 or (codes == 1 and encoder.rare == 0)
        case HashEncoder():
            return False
        case _:
            assert_never(encoder)


def _fitted(
    plan: Plan,
    encoders: Mapping[str, Encoder],
    vocabularies: Mapping[str, pa.Array],
    label: LabelSchema | None,
    classes: int,
    scratch: Path,
) -> FittedColumns:
    coders: dict[str, FittedNumbers | FieldCoder] = {}
    tensors: dict[str, Sequence[StoredTensor]] = {}
    for name, encoder in encoders.items():
        match encoder:
            case NumericEncoder():
                coders[name] = encoder.fitted
            case HashEncoder():
                coders[name] = BucketCoder(name, encoder.buckets, plan.key)
            case VocabularyEncoder():
                coders[name] = CodeBook(name, vocabularies[name], encoder.missing_code)
                tensors[name] = _store(name, vocabularies[name], scratch, len(tensors))
            case _:
                assert_never(encoder)
    return FittedColumns(encoders=encoders, coders=coders, tensors=tensors, label=label, classes=classes)


def label_cells(chunk: Chunk, column: str) -> pa.Array:
    """Return the labels of some rows: text, or float64.

    Raises:
        DataError: If one is missing.
    """
    cells = chunk.columns[column]
    cells = cells if pa.types.is_string(cells.type) else pc.cast(cells, pa.float64())
    row = first_true(are_missing(cells))
    if row is not None:
        raise DataError(f"{chunk.place(row)}, column {column!r}: there is no label (see {setting('unlabelled')})")
    return cells


def labelled_only(sources: Sequence[Source], plan: Plan) -> Plan:
    """Return a plan for the records that have a label, found by a look at that column alone.

    Raises:
        DataError: If no record has one.
    """
    assert plan.label is not None, "there is an active party"
    types = {plan.label: plan.types[plan.label]}
    missing = np.concatenate([are_missing(chunk.columns[plan.label]) for chunk in chunks(sources, types)])
    if missing.all():
        raise DataError(f"label column {plan.label!r} of {sources[0].name} has no value in any row")
    return replace(plan, labelled=~missing) if missing.any() else plan


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
    vocabularies = {
        name: _read_vocabulary(earlier.folder / party.name / VOCABULARY_FILE, encoder)
        for party in plan.parties
        for name in party.columns
        if isinstance(encoder := earlier.encoders[name], VocabularyEncoder)
    }
    return _fitted(plan, earlier.encoders, vocabularies, earlier.label, earlier.classes, scratch)


def _read_vocabulary(path: Path, encoder: VocabularyEncoder) -> pa.Array:
    parts = ("bytes", "offsets") if encoder.kind == "text" else ("values",)
    UntrustedFile(path=path, most=MOST_LARGE, remedy="ingest the earlier files again", error=DataError).tensor_heads()
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

    Without statistics, only the columns are read that ids and the split depend on, where there are any.

    Raises:
        DataError: If there are no rows; an id is missing or occurs twice; or a cell cannot be taken.
    """
    types = plan.types if statistics is not None else _deciding(plan)
    survey = Survey(rows=0, tested=0, ids=scratch / "ids", mask=scratch / "tested")
    rows = tested_rows = whole = 0
    watches = {name: TextWatch(plan.written) for name in (plan.doubted if statistics is not None else ())}
    with ExitStack() as stack:
        ids_file, mask_file = (stack.enter_context(path.open("xb")) for path in (survey.ids, survey.mask))
        for chunk in chunks(sources, types, kept=plan.kept):
            ids, of_whole = _chunk_ids(chunk, plan, rows)
            tested = _tested(chunk, plan, ids)
            ids_file.write(ids.tobytes())
            mask_file.write(tested.tobytes())
            if statistics is not None:
                statistics.add(chunk, tested)
            for name, text in watches.items():
                text.add(chunk.columns[name])
            rows += chunk.rows
            tested_rows += int(tested.sum())
            whole += of_whole
            watch(chunk)
    if rows == 0:
        raise DataError(f"{sources[0].name} has a header and no rows")
    _check_text(sources, plan, watches)
    if plan.ids.column is not None and plan.aligned is None:
        _check_repeats(sources, plan, survey.ids, plan.ids.column, scratch)
    return Survey(rows=rows, tested=tested_rows, ids=survey.ids, mask=survey.mask, whole=whole)


def _check_text(sources: Sequence[Source], plan: Plan, watches: Mapping[str, TextWatch]) -> None:
    """Refuse columns of text that look like numbers; warn of those of a table in memory.

    Raises:
        DataError: If there is one.
    """
    for name, text in watches.items():
        in_memory = any(isinstance(source, TableSource) for source in sources)
        if text.style is None and text.date is not None and not in_memory:
            raise dates_refused({name: text.date}, sources[0].name)
        if text.style is None:
            continue
        kind = {name: plan.types[name]}
        found = looked_at(
            (chunk.columns[name] for chunk in chunks(sources, kind, kept=plan.kept)), text.style, plan.written
        )
        if name == plan.label and found.cells == 0:  # classes that are called by digits
            continue
        if in_memory:
            warnings.warn(
                next(in_words([Doubt("numbers", name, found.doubt(plan.written))])), DoubtWarning, stacklevel=2
            )
            continue
        raise refused(name, found, partial(_place, sources, kind, plan.kept), plan.written, sources[0].name)


def _place(sources: Sequence[Source], types: Types, kept: Mask | None, row: int) -> str:
    """Return where a row stands, by its number among all that are read."""
    for chunk in chunks(sources, types, kept=kept):
        if row < chunk.rows:
            return chunk.place(row)
        row -= chunk.rows
    return sources[0].name


def _deciding(plan: Plan) -> dict[str, pa.DataType]:
    types = plan.types
    wanted = [name for name in (plan.ids.column, plan.split.column) if name in types]
    return {name: types[name] for name in wanted if name is not None} or types


def _chunk_ids(chunk: Chunk, plan: Plan, first_row: int) -> tuple[Ids, int]:
    """Return the number by which each row is known, and of how many it is the id itself, if that is to be known."""
    if plan.aligned is not None:
        return plan.aligned.row_ids[first_row : first_row + chunk.rows], 0
    column = plan.ids.column
    if column is None:
        return np.arange(first_row, first_row + chunk.rows, dtype=np.int64), 0
    if plan.ids.as_written:
        return numbers_in(chunk, column)
    cells = chunk.columns[column]
    blank = pc.equal(cells, "") if pa.types.is_string(cells.type) else pc.is_null(cells)
    row = first_true(blank.fill_null(True).to_numpy(zero_copy_only=False))
    if row is not None:
        raise missing_id(chunk.place(row), column)
    return as_typed(cells), 0


def _tested(chunk: Chunk, plan: Plan, ids: Ids) -> Mask:
    split = plan.split
    if split.rule == "column":
        assert split.column is not None
        cells = ingested_categories(chunk.columns[split.column])
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


def check_parts(plan: Plan, rows: int, tested: int) -> None:
    """Check that there are training and test rows, unless all are to be test rows.

    Raises:
        DataError: If not.
    """
    if plan.split.rule == "all-test" or 0 < tested < rows:
        return
    if plan.split.rule == "column":
        part = "test" if tested else "training"
        raise DataError(
            f"split column {plan.split.column!r}: all {rows} rows are {part} rows; expected {plan.split.value!r} in "
            "some and not in others"
        )
    check_both_parts(rows, tested, test_fraction=plan.split.fraction, source="the table")


def _check_repeats(sources: Sequence[Source], plan: Plan, ids: Path, column: str, scratch: Path) -> None:
    folder = scratch / "repeats"
    folder.mkdir()
    repeated = first_repeated(ids, folder)
    if repeated is None:
        return
    (place, value), (other_place, other) = cells_at(sources, column, plan.types[column], repeated)
    if same_id(value, other) or value == other:
        raise repeated_id(sources, column, repeated)
    raise DataError(
        f"{other_place}, column {column!r}: {other!r} has the same 63-bit hash as {value!r} in {place}; rename one, or "
        "number the records"
    )

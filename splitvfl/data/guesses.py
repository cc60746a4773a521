"""What the columns of files that nobody has described may be: ids, label, kinds. Guesses, each with its reason."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, get_args

import pyarrow as pa
import pyarrow.compute as pc

from splitvfl.data.columns import TaskName
from splitvfl.data.doubts import ID_WORDS, doubts_of, has_word, present
from splitvfl.data.encoding import check_one_of
from splitvfl.data.fitting import ONEHOT_LIMIT
from splitvfl.data.guessed_cells import AS_WRITTEN, GuessedCells, guess_cells, read_guessed
from splitvfl.data.id_column import ids_in_table
from splitvfl.data.labels import Unlabelled, are_missing
from splitvfl.data.plain_columns import declared_categories
from splitvfl.data.sources import open_one, read_whole
from splitvfl.data.spelling import as_key, settings_written
from splitvfl.data.tables import check_usable, did_you_mean, is_number, is_place, is_text, listed, refusal
from splitvfl.data.typed_cells import is_plain, names_records
from splitvfl.errors import ConfigError, DataError

_LABEL_NAMES = re.compile(
    r"(is_?)?(label|target|y|class|outcome|default(ed)?|churn(ed)?|exited|fraud|click(ed)?|converted|response|survived|"
    r"diagnosis|malignant|subscribed|purchased)|default.payment.next.month|.*(_label|_target)",
    re.IGNORECASE,
)
# Names of what is predicted in some sets, and known in most.
_WEAK_NAMES = re.compile(r"income|price|quality|rating|score|progression", re.IGNORECASE)
_YES = (
    "1",
    "yes",
    "true",
    "y",
    "t",
    "positive",
    "pos",
    "malignant",
    "bad",
    "fraud",
    "default",
    "churned",
    "+",
    "ja",
    "oui",
    "sim",
    "si",
    "sí",
)
# More different whole numbers than these are amounts, not classes.
_MOST_CLASSES = 20
# Files beyond this are for `splitvfl ingest`.
LARGEST_BYTES = 4 << 30
# Above so many categories the rare ones of a column are put together.
_MANY_CATEGORIES, RARE = 100, 10


@dataclass(frozen=True, eq=False)
class OpenFile:
    """A file of a user's, read as it is.

    Attributes:
        path: Where it is.
        party: What its owner is called: its name, in letters that a party's name may have.
        table: All of it.
        text: Columns of ids beyond 64 bits, which are read as text.
        cells: How its cells are written, and why.
    """

    path: Path
    party: str
    table: pa.Table
    text: tuple[str, ...] = ()
    cells: GuessedCells = AS_WRITTEN

    @classmethod
    def read(cls, path: Path) -> OpenFile:
        """Return the file.

        Raises:
            DataError: If it cannot be read, or is too large to be read as a whole.
        """
        source = open_one(path)
        if source.size > LARGEST_BYTES:
            raise DataError(
                f"{path} has {source.size / 2**30:.0f} GiB, too much to look at as a whole; see `splitvfl ingest`"
            )
        if len(source.names) == 1 and not source.typed:
            raise DataError(
                f"{path} has one column only, {source.names[0]!r}: which delimiter? Expected comma, semicolon, tab or "
                "|, as often in every line"
            )
        table = read_whole(source)
        text = () if source.typed else tuple(name for name in table.column_names if _is_long_id(name, table[name]))
        party = re.sub(r"[^\w-]+", "-", path.name.split(".")[0]).strip("-") or "party"
        table = read_whole(source, text=text) if text else table
        cells = guess_cells(source, table)
        if cells.written.is_given:
            source = open_one(path, written=cells.written)
            table = read_guessed(source, read_whole(source, text=text), cells.written)
        return cls(path, party, table, text, cells)


def _is_long_id(name: str, column: pa.ChunkedArray) -> bool:
    """Return whether whole numbers of a column were rounded, as they have no place in 64 bits."""
    if not pa.types.is_floating(column.type) or not has_word(name, ID_WORDS):
        return False
    return bool(pc.all(pc.greater(pc.abs(column), 2.0**63)).as_py())


@dataclass(frozen=True)
class Label:
    """The label column.

    Attributes:
        party: Whose file has it.
        column: Its name.
        task: What is learned.
        positive: Which value is the positive class; ``None`` where that is clear, or there is none.
        why: Why it was taken for that.
        unlabelled: Records without a label, which are left out.
    """

    party: str
    column: str
    task: TaskName
    positive: Any
    why: str
    unlabelled: int = 0


@dataclass(frozen=True)
class Guesses:
    """Everything that was guessed of some files.

    Attributes:
        label: The label.
        id_column: Column that names the records in every file; ``None``: there is none, in a single file, or each file
            calls it otherwise.
        id_why: Why it was taken for that.
        dropped: Columns that nothing is learned from, and why.
        categories: Columns of whole numbers that hold categories, and why.
        text: Columns to read as text.
        gaps: Columns of numbers in which some are missing.
        features: Columns that are left for each party, by party.
        many: Columns of text with many categories.
        records: Records of the label's file.
        own_ids: The column that names the records by party, where files call it otherwise; empty where they do not.
    """

    label: Label
    id_column: str | None
    id_why: str
    dropped: Mapping[str, str]
    categories: Mapping[str, str]
    text: tuple[str, ...]
    gaps: tuple[str, ...]
    features: Mapping[str, tuple[str, ...]]
    many: tuple[str, ...]
    records: int
    own_ids: Mapping[str, str] = field(default_factory=dict)


@dataclass
class _Kinds:
    dropped: dict[str, str] = field(default_factory=dict)
    categories: dict[str, str] = field(default_factory=dict)
    gaps: list[str] = field(default_factory=list)
    many: list[str] = field(default_factory=list)


def guess(
    files: Sequence[OpenFile],
    *,
    label: str | None = None,
    id_column: str | Mapping[str, str] | None = None,
    unlabelled: Unlabelled = "error",
) -> Guesses:
    """Return what files may hold.

    Args:
        files: One of each party, or one of all columns.
        label: The label column, if the user says so.
        id_column: Column that names the records, likewise; or one for each party by name.
        unlabelled: What becomes of records without a label.

    Raises:
        ArgumentError: If that is none of what can become of them.
        ConfigError: If something has to be said that cannot be guessed; it says what there is to choose from.
        DataError: If a column that was named is not there, or cannot be what it is to be.
    """
    check_one_of("unlabelled", unlabelled, get_args(Unlabelled))
    ids, id_why = _guess_id(files, id_column, label)
    found = _guess_label(files, label, ids, unlabelled)
    one = next(iter(ids.values()), None) if len(set(ids.values())) == 1 else None
    kinds, features = _Kinds(), dict[str, tuple[str, ...]]()
    for file in files:
        own = [name for name in file.table.column_names if name not in (ids.get(file.party), found.column)]
        with settings_written(as_key):
            _sort(file, own, kinds)
        features[file.party] = tuple(name for name in own if name not in kinds.dropped)
        if not features[file.party]:
            raise DataError(_nothing_left(file, ids.get(file.party), found, kinds))
    return Guesses(
        label=found,
        id_column=one,
        own_ids={} if one is not None else ids,
        id_why=id_why,
        dropped=kinds.dropped,
        categories=kinds.categories,
        text=tuple(dict.fromkeys(name for file in files for name in file.text)),
        gaps=tuple(kinds.gaps),
        features=features,
        many=tuple(kinds.many),
        records=min(file.table.num_rows for file in files),
    )


def _nothing_left(file: OpenFile, id_column: str | None, label: Label, kinds: _Kinds) -> str:
    """Return why there is no column to learn from: what becomes of each, a line for each."""
    found = {name: f"left out: {name} ({kinds.dropped.get(name, '')})" for name in file.table.column_names}
    if id_column in found:
        found[id_column] = f"{id_column} names the records"
    if file.party == label.party:
        found[label.column] = f"{label.column} is the label"
    return "\n  ".join([f"{file.path} has no column to learn from:", *found.values()])


# --- ids


def _guess_id(
    files: Sequence[OpenFile], wanted: str | Mapping[str, str] | None, label: str | None
) -> tuple[dict[str, str], str]:
    """Return each party's id column, and why it was taken for that; none of a single file whose records have none."""
    if wanted is not None:
        return _wanted_ids(files, wanted, label), "you said so"
    names = [frozenset(file.table.column_names) for file in files]
    common = [name for name in files[0].table.column_names if all(name in own for own in names)]
    unique = [name for name in common if all(_is_unique(file.table[name]) for file in files)]
    named = [name for name in unique if has_word(name, ID_WORDS)]
    if len(files) == 1:
        doubts = doubts_of(files[0].table, unique, categories=())
        doubted = {doubt.column: doubt.why for doubt in doubts if doubt.kind == "id"}
        best = next((name for name in [*named, *unique] if name in doubted), None)
        return ({}, "") if best is None else ({files[0].party: best}, doubted[best])
    if unique:
        return dict.fromkeys(_parties_of(files), [*named, *unique][0]), (
            f"in all {len(files)} files, and different in every record of each"
        )
    own = {file.party: _likely_ids(file) for file in files}
    if all(len(names) == 1 for names in own.values()):
        return {party: name for party, (name,) in own.items()}, (
            "called otherwise in each file, and different in every record of each"
        )
    where = f"the files have in common {listed(common)}" if common else "no column has one name in all files"
    example = ",".join(f"{party}=COLUMN" for party in own)
    raise ConfigError(
        f"which column names the records? {where}, and in each file every record needs an id of its own; say --id "
        f"COLUMN, or --id {example}"
    )


def _wanted_ids(files: Sequence[OpenFile], wanted: str | Mapping[str, str], label: str | None) -> dict[str, str]:
    parties = _parties_of(files)
    found = dict.fromkeys(parties, wanted) if isinstance(wanted, str) else dict(wanted)
    if set(found) != set(parties):
        raise ConfigError(f"--id: expected a column for each of {listed(parties)}, got some for {listed(list(found))}")
    for file in files:
        _check_there(file, found[file.party], "--id", label)
        _check_unique(file, found[file.party])
    return found


def _parties_of(files: Sequence[OpenFile]) -> list[str]:
    return [file.party for file in files]


def _likely_ids(file: OpenFile) -> list[str]:
    """Return the columns that are called as ids are; if there is none, all that could be one."""
    unique = [name for name in file.table.column_names if _is_unique(file.table[name])]
    return [name for name in unique if has_word(name, ID_WORDS)] or unique


def _check_there(file: OpenFile, name: str, flag: str, label: str | None) -> None:
    if name not in file.table.column_names:
        hint = did_you_mean(name, file.table.column_names, used=[label] if label else [])
        raise ConfigError(f"{flag}: no column {name!r} in {file.path}{hint}")


def _check_unique(file: OpenFile, name: str) -> None:
    column = file.table[name]
    if not is_plain(column.type) and names_records(column.type):
        ids_in_table(column.combine_chunks(), name, str(file.path))  # which says what is wrong, if anything is
        return
    if not _is_unique(column):
        distinct = pc.count_distinct(column).as_py()
        raise ConfigError(
            f"--id: column {name!r} of {file.path} cannot name the records: expected a whole number or a text in each "
            f"of {len(column):,} rows, all different, got {column.type}, {distinct:,} different, {column.null_count:,} "
            "missing"
        )


def _is_unique(column: pa.ChunkedArray) -> bool:
    fits = is_text(column) or pa.types.is_integer(column.type) or _is_whole(column)
    if not fits or column.null_count or (is_text(column) and pc.any(pc.equal(column, "")).as_py()):
        return False
    return bool(pc.count_distinct(column).as_py() == len(column))


def _is_whole(column: pa.ChunkedArray) -> bool:
    """Return whether a column of fractions holds whole numbers alone, as an outer join leaves ids."""
    if not pa.types.is_floating(column.type) or column.null_count:
        return False
    return bool(pc.all(pc.equal(pc.floor(column), column)).as_py())


# --- label


def _guess_label(
    files: Sequence[OpenFile], wanted: str | None, ids: Mapping[str, str], unlabelled: Unlabelled
) -> Label:
    if wanted is not None:
        return _as_label(_holder(files, wanted, ids), wanted, "you said so", unlabelled)
    columns = [(file, name) for file in files for name in file.table.column_names if name != ids.get(file.party)]
    candidates = [one for one in columns if not _no_label(one[0].table[one[1]], unlabelled)]
    # A column that is called as labels are is named with what it lacks, before another is taken for the label.
    odd = [one for one in columns if _LABEL_NAMES.fullmatch(one[1]) and one not in candidates]
    if odd and not any(_LABEL_NAMES.fullmatch(name) for _, name in candidates):
        file, name = odd[0]
        raise ConfigError(
            f"{name} of {file.path} looks like the label by its name, and {_no_label(file.table[name], unlabelled)}. "
            "Say --label COLUMN if another column is the label"
        )
    if not candidates:
        raise ConfigError("no column can be a label: each has gaps, one value only, or too many different texts")
    two = [(file, name) for file, name in candidates if len(_different(file.table[name])) == 2]
    likely = {
        "by its name": [one for one in candidates if _LABEL_NAMES.fullmatch(one[1])],
        "the only column of two values": two,
        "by its name, for want of a better one": [one for one in candidates if _WEAK_NAMES.fullmatch(one[1])],
        "the only column that can be one": candidates,
    }
    why, found = next((why, found) for why, found in likely.items() if found)
    pairs = frozenset(two)
    of_two = [one for one in found if one in pairs]
    best = of_two if len(of_two) == 1 else found
    if len(best) > 1:
        raise ConfigError(f"which column is the label? Say --label; it may be {listed([name for _, name in best])}")
    return _as_label(*best[0], why, unlabelled)


def _holder(files: Sequence[OpenFile], label: str, ids: Mapping[str, str]) -> OpenFile:
    """Return the one file that has a label column."""
    holders = [file for file in files if label in file.table.column_names]
    if not holders:
        names = [name for file in files for name in file.table.column_names]
        raise ConfigError(f"--label: no column {label!r}{did_you_mean(label, names, used=ids.values())}")
    if len(holders) > 1:
        raise ConfigError(
            f"--label: {' and '.join(str(file.path) for file in holders)} have a column {label!r} each; one party "
            "holds the labels: take it out of the other file"
        )
    return holders[0]


def _different(column: pa.ChunkedArray) -> list[Any]:
    """Return the different labels of a column, sorted; it holds numbers or text."""
    return sorted(pc.unique(column.filter(pa.array(~are_missing(column)))).to_pylist())


def _no_label(column: pa.ChunkedArray, unlabelled: Unlabelled) -> str:
    """Return why a column cannot be a label, and what to do about it; nothing if it can."""
    if not is_number(column) and not is_text(column):
        return f"holds neither numbers nor text but {column.type}"
    missing, found = int(are_missing(column).sum()), _different(column)
    if len(found) < 2:
        values = f"is {found[0]!r} in every record that has a value" if found else "has no value at all"
        return f"{values}: there is nothing to learn"
    if is_text(column) and len(found) > _MOST_CLASSES:
        return f"holds {len(found):,} different texts, and {_MOST_CLASSES} classes at most are guessed"
    if missing and unlabelled == "error":
        return (
            f"has {missing:,} missing values in {len(column):,} records: correct them, or leave these records out with "
            "--unlabelled drop if their outcome is not known yet"
        )
    return ""


def _as_label(file: OpenFile, name: str, why: str, unlabelled: Unlabelled) -> Label:
    column = file.table[name]
    if told := _no_label(column, unlabelled):
        raise ConfigError(f"--label: column {name!r} of {file.path} cannot be a label: it {told}")
    distinct, missing = _different(column), int(are_missing(column).sum())
    if len(distinct) == 2:
        return Label(file.party, name, "binary", _positive(column, distinct), f"{why}; two values", missing)
    whole = is_text(column) or pc.all(pc.equal(pc.floor(column), column)).as_py()
    if whole and len(distinct) <= _MOST_CLASSES:
        return Label(file.party, name, "multiclass", None, f"{why}; {len(distinct)} classes", missing)
    return Label(file.party, name, "regression", None, f"{why}; {len(distinct):,} different numbers", missing)


def _positive(column: pa.ChunkedArray, values: Sequence[Any]) -> Any:
    """Return the value that means yes: by its name, or the rarer one; ``None`` for 0 and 1."""
    if set(values) == {0, 1}:
        return None
    named = [value for value in values if str(value).strip().lower() in _YES]
    if len(named) == 1:
        return named[0]
    return min(values, key=lambda value: pc.sum(pc.equal(column, value)).as_py())


# --- kinds


def _sort(file: OpenFile, names: Sequence[str], kinds: _Kinds) -> None:
    """Add the columns of a table to those that are dropped, hold categories, or have gaps."""
    table, declared = file.table, declared_categories(file.table.schema)
    for name in names:
        column, field = table[name], table.schema.field(name)
        if (why := refusal(field)) is not None:
            if is_place(field):  # a row may be wrong where all others are right
                check_usable(field, source=str(file.path))
            kinds.dropped[name] = why
        elif not is_text(column) and not is_number(column):
            kinds.dropped[name] = _kind_dropped(column.type)
        elif not len(present(column.combine_chunks())):
            kinds.dropped[name] = "no value"
    usual = [name for name in names if name not in kinds.dropped]
    for doubt in doubts_of(table, usual, categories=(), written=file.cells.written):
        if doubt.kind in ("id", "constant", "dates", "numbers"):
            kinds.dropped[doubt.column] = f"{_WHY_DROPPED[doubt.kind]}: {doubt.why}"
        elif doubt.kind == "codes":
            kinds.categories[doubt.column] = doubt.why
    for name in (name for name in usual if name not in kinds.dropped):
        if name in declared and not is_text(table[name]):
            kinds.categories[name] = "its type says so"
        _sort_usual(name, table[name], kinds, categories=name in declared)


def _kind_dropped(kind: pa.DataType) -> str:
    """Return why a column of a type that is neither numbers nor text is left out."""
    if pa.types.is_date(kind) or pa.types.is_timestamp(kind):
        return _WHY_DROPPED["dates"]
    if pa.types.is_temporal(kind):
        return "times or durations: make numbers of them, such as seconds, and it can be used"
    return f"neither numbers nor text, but {kind}"


_WHY_DROPPED = {
    "id": "looks like an id",
    "constant": "one value only",
    "dates": "dates: make numbers of them, such as days since a day, and it can be used",
    "numbers": "text that looks like numbers",
}


def _sort_usual(name: str, column: pa.ChunkedArray, kinds: _Kinds, *, categories: bool) -> None:
    if is_text(column) or categories:
        distinct = pc.count_distinct(column).as_py()
        if distinct > ONEHOT_LIMIT:
            kinds.categories.pop(name, None)
            kinds.dropped[name] = f"{'text' if is_text(column) else 'categories'} of {distinct:,} different values"
        elif distinct > _MANY_CATEGORIES:
            kinds.many.append(name)
    elif name not in kinds.categories and len(present(column.combine_chunks())) < len(column):
        kinds.gaps.append(name)

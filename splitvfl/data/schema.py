"""What is written beside the arrays of a table folder: who holds which columns, and how they became numbers.

::

    tables/schema.json                        DataSchema: what is learned, the split, the parties
    tables/PARTY/schema.json                  PartySchema: everything about one party's columns
    tables/PARTY/vocabulary.safetensors       categories of its fields, where there are vocabularies
    tables/PARTY/{train,test}.numeric.npy     float32, (n, d), row-major
    tables/PARTY/{train,test}.codes.npy       int32, (n, f), row-major; 0 = unknown
    tables/PARTY/{train,test}.ids.npy         int64, (n,)
    tables/PARTY/{train,test}.labels.npy      float32 (binary, regression) or int64 (multi-class), (n,); active party
    tables/PARTY/{train,test}.real.npy        bool, (n,): no dummy; active party, where an alignment is padded

A party's folder is complete by itself, and says nothing of the others.
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal, TypeVar

import msgspec
from msgspec import UNSET, UnsetType

from splitvfl.data.cell_format import AS_USUAL, CellFormat
from splitvfl.data.chunks import Kind
from splitvfl.data.columns import TaskName
from splitvfl.data.drift import ColumnDrift, Counts, Profile, compared
from splitvfl.data.encoding import FittedNumbers, Scale
from splitvfl.data.id_rules import RuleVersion
from splitvfl.data.ranges import Bounds
from splitvfl.errors import DataError
from splitvfl.system.untrusted_files import UntrustedFile, write_json

FORMAT = "splitvfl tables"
VERSION = 1
SCHEMA_FILE = "schema.json"
VOCABULARY_FILE = "vocabulary.safetensors"
PARTS: tuple[Part, ...] = ("train", "test")

Part = Literal["train", "test"]
Role = Literal["active", "passive"]


class NumericEncoder(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag="number", tag_field="encoder"):
    """A numeric column: filled, scaled by ``(x − offset) / spread``, and marked where it was missing.

    Attributes:
        column: The file's column.
        kind: What its cells hold.
        scale: See :class:`splitvfl.data.encoding.Encoding`.
        offset: Mean or minimum over the filled training rows, after the logarithm under ``"log1p"``.
        spread: Standard deviation, or maximum − minimum; 0 where the column does not vary: it becomes zero.
        missing: Whether gaps are filled and marked (``"indicator"``) or raise.
        median: What fills gaps: the training median; ``None`` where gaps raise.
        median_error: Bound of the median's relative error; 0 where it is exact.
        marked: Whether a second column is 1 where the value was missing.
        rows: Training rows.
        gaps: Training rows without a value.
        low: Smallest training value, as in the file.
        high: Largest training value, as in the file.
        bounds: Public bounds that values are clipped to, and from which offset, spread and median follow in place of
            training rows; ``None``: they are as said above.
    """

    column: str
    kind: Kind
    scale: Scale
    offset: float
    spread: float
    missing: Literal["error", "indicator"]
    median: float | None
    median_error: float
    marked: bool
    rows: int
    gaps: int
    low: float
    high: float
    bounds: Bounds | None = None

    @property
    def known_profile(self) -> Profile:
        """What is known of the training values: how many there are, their range, or the public one."""
        if self.bounds is not None:
            return self.fitted.known_profile
        return Profile(rows=self.rows, gaps=self.gaps, low=self.low, high=self.high)

    @property
    def fitted(self) -> FittedNumbers:
        """How the column becomes numbers, without what else was learned of it."""
        return FittedNumbers(**{name: getattr(self, name) for name in FittedNumbers.__struct_fields__})


class VocabularyEncoder(msgspec.Struct, frozen=True, kw_only=True, tag="vocabulary", tag_field="encoder"):
    """A categorical field whose categories are listed: codes from 1 in sorted order, 0 for all others.

    Attributes:
        column: The file's column.
        kind: What its cells hold.
        categories: Number of listed categories, without the missing one.
        missing_code: Code of a missing value, after all others; 0 where too few training rows miss it.
        min_count: Training rows that a category needed to be listed.
        rare: Categories of the training rows that are not listed.
    """

    column: str
    kind: Kind
    categories: int
    missing_code: int
    min_count: int
    rare: int


class HashEncoder(msgspec.Struct, frozen=True, kw_only=True, tag="buckets", tag_field="encoder"):
    """A categorical field hashed with a key: codes 1 … buckets, ``buckets + 1`` for a missing value.

    Attributes:
        column: The file's column; its name goes into the hash.
        kind: What its cells hold.
        buckets: Number of different hash codes.
        key: Fingerprint of the key, never the key.
    """

    column: str
    kind: Kind
    buckets: int
    key: str


Encoder = NumericEncoder | VocabularyEncoder | HashEncoder


class LabelSchema(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The label column, at the active party.

    Attributes:
        column: The file's column.
        kind: What its cells hold.
        values: The values in sorted order: two in a binary task, as many as classes in a multi-class one, none in
            regression.
        positive: Position in ``values`` of the positive class; ``None`` but in a binary task.
        left_out: Records that were left out as they have no label; 0 where an earlier version ingested, too.
    """

    column: str
    kind: Kind
    values: tuple[float | str, ...]
    positive: int | None
    left_out: int = 0


class IdRule(msgspec.Struct, frozen=True, kw_only=True):
    """How records are named: by their ids, or by row numbers where there is no column.

    Attributes:
        column: The file's column, or ``None``.
        rule: What their numbers are: ``"integer"``: all ids are whole numbers; ``"blake2b-63"``: hashes of text;
            ``"mixed"``: both; ``"row"``; or ``"aligned"`` where an alignment has given new ids.
        digest: Digest of the aligned order; ``None`` without one.
        id_rule: Version of the rule for ids (:mod:`splitvfl.data.id_column`). None is the first, by which tables go on
            that were ingested by it (:mod:`splitvfl.data.old_ids`).
    """

    column: str | None
    rule: Literal["integer", "blake2b-63", "mixed", "row", "aligned"]
    digest: str | None = None
    id_rule: RuleVersion | msgspec.UnsetType = msgspec.UNSET

    @property
    def as_written(self) -> bool:
        """Whether ids are read as they stand, by the newer rule."""
        return self.id_rule is not msgspec.UNSET


class SplitRule(msgspec.Struct, frozen=True, kw_only=True):
    """Which records are test records.

    Attributes:
        rule: ``"hash"`` of the id and the seed, ``"column"``, or ``"all-test"`` for files encoded like earlier ones.
        fraction: Share of test records under ``"hash"``.
        seed: Its seed.
        column: The file's column under ``"column"``.
        value: What it holds in test rows.
    """

    rule: Literal["hash", "column", "all-test"]
    fraction: float | None = None
    seed: int | None = None
    column: str | None = None
    value: float | str | None = None


class PartyRole(msgspec.Struct, frozen=True, kw_only=True):
    """A party's name and role; the name is its folder's too."""

    name: str
    role: Role


class TableSchema(msgspec.Struct, frozen=True, kw_only=True):
    """What both schemas begin with.

    Attributes:
        format: Always :data:`FORMAT`.
        version: Version of the format.
        name: Name of the data set, or of the party.
    """

    format: str = FORMAT
    version: int = VERSION
    name: str


class DataSchema(TableSchema, frozen=True, kw_only=True):
    """``tables/schema.json``: the data set as a whole, for whoever ingested it.

    Attributes:
        task: What is learned.
        classes: 2 for binary, k for multi-class, 1 for regression, 0 where there is no active party.
        description: One line for people.
        rows: Records by part.
        positive_share: Share of positive records, in training and test together; ``None`` but in a binary task.
        ids: How records are named.
        split: Which are test records.
        label_column: The files' label column, if there was one.
        dropped: Columns of the files that nobody holds.
        parties: The parties in order; the active one first, if it was ingested here.
        written: How the cells of the files were written, so that further files are read alike; not there if nothing was
            said of it.
    """

    task: TaskName
    classes: int
    description: str
    rows: dict[Part, int]
    positive_share: float | None
    ids: IdRule
    split: SplitRule
    label_column: str | None
    dropped: tuple[str, ...]
    parties: tuple[PartyRole, ...]
    written: CellFormat | UnsetType = UNSET

    @property
    def cells(self) -> CellFormat:
        """How the cells of the files were written."""
        return AS_USUAL if isinstance(self.written, UnsetType) else self.written


class PartySchema(TableSchema, frozen=True, kw_only=True):
    """``tables/PARTY/schema.json``: everything about one party's columns.

    Attributes:
        role: The party's role.
        task: As in :class:`DataSchema`.
        classes: As in :class:`DataSchema`.
        rows: Records by part.
        column_names: The files' columns that it holds.
        numeric_names: Names of the columns of ``numeric``.
        field_names: Names of the columns of ``codes``.
        field_sizes: Number of codes of each field, 0 included.
        encoders: One per column, in the files' order.
        label: The label column; ``None`` at a passive party, and where the files had none.
        agreed: Fingerprint of what all parties must have chosen alike: format, id rule and split rule.
        id_fingerprints: Fingerprint of the ids of each part in their order: alike at all parties.
        dummies: Records of each part that an active party with a padded alignment does not hold; else empty.
        profiles: What training values looked like, by column, to find drift; of files that were encoded like earlier
            ones, those of the earlier. Empty where an earlier version ingested, and where there are public ranges.
        counts: Of files that were encoded like earlier ones: what was counted against these.
    """

    role: Role
    task: TaskName
    classes: int
    rows: dict[Part, int]
    column_names: tuple[str, ...]
    numeric_names: tuple[str, ...]
    field_names: tuple[str, ...]
    field_sizes: tuple[int, ...]
    encoders: tuple[Encoder, ...]
    label: LabelSchema | None
    agreed: str
    id_fingerprints: dict[Part, str]
    dummies: dict[Part, int] = {}
    profiles: dict[str, Profile] = {}
    counts: dict[str, Counts] = {}

    @property
    def known_profiles(self) -> dict[str, Profile]:
        """The profiles; of numbers without one, what their encoders say."""
        known = {one.column: one.known_profile for one in self.encoders if isinstance(one, NumericEncoder)}
        return known | self.profiles

    @property
    def drift(self) -> tuple[ColumnDrift, ...]:
        """How files that were encoded like earlier ones differ from these, the columns that differ most first."""
        return compared(self.counts, self.known_profiles)


Schema = TypeVar("Schema", bound=msgspec.Struct)


def has_format(path: Path, wanted: str) -> bool:
    """Return whether a JSON file says that it is of this format, in any version."""
    return UntrustedFile(path=path).has_format(wanted)


def read_schema(path: Path, kind: type[Schema], *, what: str, wanted: str, version: int, again: str) -> Schema:
    """Return what a JSON file says, which begins with its format and its version.

    Args:
        path: The file.
        kind: What it must hold.
        what: What its folder is, for messages.
        wanted: The format.
        version: Its version.
        again: What to do if it is not as it must be, for messages.

    Raises:
        DataError: If it is not there, has another format or version, or is damaged.
    """
    found = UntrustedFile(path=path, remedy=again, error=DataError).json(kind, wanted=wanted, version=version)
    if found is None:
        raise DataError(f"expected {what}, at {path.parent}; it has no {path.name}")
    return found


def is_table_folder(folder: Path) -> bool:
    """Return whether a folder holds tables of any version."""
    return has_format(folder / SCHEMA_FILE, FORMAT)


def read_data_schema(folder: Path) -> DataSchema:
    """Return what a table folder says of the data set as a whole.

    Raises:
        DataError: If there is no table folder, it has another version, or its schema is damaged.
    """
    return _read(folder, DataSchema)


def read_party_schema(folder: Path) -> PartySchema:
    """Return what one party's folder says of its columns; raises as :func:`read_data_schema`."""
    return _read(folder, PartySchema)


def _read(folder: Path, kind: type[Schema]) -> Schema:
    what, again = "a table folder, as `splitvfl ingest` writes it", "ingest the files again"
    return read_schema(folder / SCHEMA_FILE, kind, what=what, wanted=FORMAT, version=VERSION, again=again)


def write_schema(path: Path, schema: msgspec.Struct) -> None:
    """Write a schema: JSON, indented, with a final newline; who may read it, the umask decides."""
    write_json(path, schema, mode=0o666)

"""The second look at all rows: they are encoded and written, party by party."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from msgspec import UNSET

from splitvfl.data.alignment import Alignment
from splitvfl.data.chunks import Chunk, Mask, Source
from splitvfl.data.drift import Counts, Profile, added, profile_of_codes, profile_of_numbers
from splitvfl.data.encoding import Encoded, TableEncoder
from splitvfl.data.ingest.aligned import sort_tables
from splitvfl.data.ingest.plan import PartyPlan, Plan
from splitvfl.data.ingest.records import Ids, LabelCoder
from splitvfl.data.ingest.survey import ChunkWatcher, FittedColumns, Survey, label_cells, tested_of
from splitvfl.data.labels import Labels
from splitvfl.data.schema import (
    FORMAT,
    PARTS,
    SCHEMA_FILE,
    VERSION,
    VOCABULARY_FILE,
    DataSchema,
    Encoder,
    NumericEncoder,
    Part,
    PartyRole,
    PartySchema,
    VocabularyEncoder,
    write_schema,
)
from splitvfl.data.sources import chunks
from splitvfl.data.writing import NpyWriter, write_safetensors
from splitvfl.errors import DataError

# Training rows of which profiles are made: then what chance makes of a stability index is below 0.001.
_SAMPLED = 100_000


@dataclass
class Written:
    """What was found while writing.

    Attributes:
        unknown: Test rows with code 0, by field.
        positives: Sum of the labels.
        id_fingerprints: Fingerprint of the ids of each part, in their order.
        sizes: Records of each part, dummies included.
        dummies: Dummies of each part, where there are any.
        counts: Of files that are encoded like earlier ones: what was counted of each column, to find drift.
    """

    unknown: dict[str, int] = field(default_factory=dict)
    positives: float = 0.0
    id_fingerprints: dict[Part, str] = field(default_factory=dict)
    sizes: dict[Part, int] = field(default_factory=dict)
    dummies: dict[Part, int] = field(default_factory=dict)
    counts: dict[str, Counts] = field(default_factory=dict)

    def count_unknown(self, encoded: Encoded, tested: Mask) -> None:
        """Count the test rows with code 0 among some rows."""
        for name, rows in zip(encoded.field_names, (encoded.codes[tested] == 0).sum(axis=0).tolist(), strict=True):
            self.unknown[name] = self.unknown.get(name, 0) + rows


def bytes_needed(plan: Plan, learned: FittedColumns, rows: int) -> int:
    """Return the size of the arrays that will be written."""
    row = 0
    for party in plan.parties:
        encoder = learned.of(party)
        row += 8 + 4 * len(encoder.names) + 4 * len(encoder.fields) + 8 * (party.role == "active")
    stored = sum(tensor.file.stat().st_size for tensors in learned.tensors.values() for tensor in tensors)
    if plan.aligned is not None:  # sorting writes each array anew, one at a time
        rows = 2 * len(plan.aligned.ids)
    return rows * row + stored


class _PartyFiles:
    """The arrays of one party, open for writing until the stack is closed."""

    def __init__(
        self, stack: ExitStack, folder: Path, encoder: TableEncoder, sizes: Mapping[Part, int], label_dtype: str | None
    ) -> None:
        kinds = {
            "ids": ((), "<i8"),
            "numeric": ((len(encoder.names),), "<f4"),
            "codes": ((len(encoder.fields),), "<i4"),
        }
        if label_dtype is not None:
            kinds["labels"] = ((), label_dtype)
        self._writers = {
            (name, part): stack.enter_context(NpyWriter(folder / f"{part}.{name}.npy", (rows, *width), dtype))
            for name, (width, dtype) in kinds.items()
            for part, rows in sizes.items()
        }

    def append(self, tested: Mask, **columns: Any) -> None:
        for (name, part), writer in self._writers.items():
            writer.append(columns[name][tested if part == "test" else ~tested])


def write_parties(
    folder: Path, sources: Sequence[Source], plan: Plan, survey: Survey, learned: FittedColumns, *, watch: ChunkWatcher
) -> Written:
    """Encode all rows and write everything but the data set's own schema.

    Raises:
        DataError: If a cell cannot be encoded, or the files have changed since the first look.
    """
    coder = None if learned.label is None else LabelCoder(learned.label, plan.task)
    written = Written()
    digests: dict[Part, Any] = {part: hashlib.blake2b(digest_size=16) for part in survey.sizes}
    with ExitStack() as stack:
        files = {}
        for party in plan.parties:
            (folder / party.name).mkdir()
            dtype = coder.dtype if coder is not None and party.role == "active" else None
            files[party.name] = _PartyFiles(stack, folder / party.name, learned.of(party), survey.sizes, dtype)
        for chunk, ids, tested in _with_ids(sources, plan, survey):
            labels = None if coder is None else _labels(chunk, plan, coder)
            if labels is not None:
                written.positives += float(labels.sum(dtype=np.float64))
            for party in plan.parties:
                encoded = learned.of(party).apply(
                    chunk, profiles=None if plan.earlier is None else plan.earlier.profiles
                )
                added(written.counts, encoded.counts)
                files[party.name].append(tested, ids=ids, numeric=encoded.numeric, codes=encoded.codes, labels=labels)
                written.count_unknown(encoded, tested)
            digests["train"].update(ids[~tested].tobytes())
            digests["test"].update(ids[tested].tobytes())
            watch(chunk)
    written.sizes = survey.sizes
    if plan.aligned is not None:
        _sort(folder, plan, plan.aligned, digests, written)
    written.id_fingerprints = {part: digest.hexdigest() for part, digest in digests.items()}
    for party in plan.parties:
        _write_vocabulary(folder / party.name, party, learned)
        schema = _party_schema(folder / party.name, plan, party, survey, learned, written)
        write_schema(folder / party.name / SCHEMA_FILE, schema)
    return written


def _sort(folder: Path, plan: Plan, aligned: Alignment, digests: dict[Part, Any], written: Written) -> None:
    """Bring the tables into the aligned order, and say anew what is in them."""
    tested = tested_of(plan.split, aligned.ids)
    for party in plan.parties:
        sort_tables(folder / party.name, aligned, tested)
    for part, mask in zip(PARTS, (~tested, tested), strict=True):
        digests[part] = hashlib.blake2b(aligned.ids[mask].tobytes(), digest_size=16)
        written.sizes[part] = int(mask.sum())
        if not aligned.real.all():
            written.dummies[part] = int((mask & ~aligned.real).sum())


def _with_ids(sources: Sequence[Source], plan: Plan, survey: Survey) -> Iterator[tuple[Chunk, Ids, Mask]]:
    """Yield all rows with their ids and the split, as the first look has left them."""
    rows = 0
    with survey.ids.open("rb") as ids_file, survey.mask.open("rb") as mask_file:
        for chunk in chunks(sources, plan.types, kept=plan.kept):
            rows += chunk.rows
            if rows > survey.rows:
                break
            yield (
                chunk,
                np.frombuffer(ids_file.read(8 * chunk.rows), np.int64),
                np.frombuffer(mask_file.read(chunk.rows), np.bool_),
            )
    if rows != survey.rows:
        raise DataError(f"the files had {survey.rows} rows, and another number at the second look; nothing was written")


def _labels(chunk: Chunk, plan: Plan, coder: LabelCoder) -> Labels | None:
    if plan.label is None:
        return None
    labels, row = coder.encode(label_cells(chunk, plan.label))
    if row is not None:
        raise DataError(
            f"{chunk.place(row)}, column {plan.label!r}: {chunk.columns[plan.label][row].as_py()!r} is none of the "
            "labels learned, or too large for float32"
        )
    return labels


def _write_vocabulary(folder: Path, party: PartyPlan, learned: FittedColumns) -> None:
    tensors = [tensor for name in party.columns for tensor in learned.tensors.get(name, ())]
    if tensors:
        write_safetensors(folder / VOCABULARY_FILE, tensors)


def _party_schema(
    folder: Path, plan: Plan, party: PartyPlan, survey: Survey, learned: FittedColumns, written: Written
) -> PartySchema:
    encoders = tuple(learned.encoders[name] for name in party.columns)
    coded = learned.of(party)
    label = None if learned.label is None else msgspec.structs.replace(learned.label, left_out=plan.unlabelled)
    return PartySchema(
        name=party.name,
        role=party.role,
        task=plan.task,
        classes=learned.classes,
        rows=written.sizes,
        column_names=party.columns,
        numeric_names=coded.names,
        field_names=tuple(coded.fields),
        field_sizes=tuple(coded.fields.values()),
        encoders=encoders,
        label=label if party.role == "active" else None,
        agreed=_agreed(plan, survey),
        id_fingerprints=written.id_fingerprints,
        dummies=written.dummies,
        profiles=_profiles(folder, plan, party, encoders, coded),
        counts={name: written.counts[name] for name in party.columns if name in written.counts},
    )


def _profiles(
    folder: Path, plan: Plan, party: PartyPlan, encoders: Sequence[Encoder], coded: TableEncoder
) -> dict[str, Profile]:
    """Return what training values looked like, of a sample of the rows that were written: in any order of reading."""
    if plan.earlier is not None:
        return {name: plan.earlier.profiles[name] for name in party.columns if name in plan.earlier.profiles}
    if plan.bounds:  # nothing of the training rows may be learned
        return {}
    numeric, codes = (np.load(folder / f"train.{part}.npy", mmap_mode="r") for part in ("numeric", "codes"))
    places = np.linspace(0, len(numeric) - 1, min(len(numeric), _SAMPLED)).astype(np.int64)
    # A party of a padded alignment holds no values of its dummies.
    real = folder / "train.real.npy"
    places = places[np.load(real)[places]] if real.exists() else places
    if not len(places):
        return {}
    sampled, coded_rows = numeric[places], codes[places]
    found: dict[str, Profile] = {}
    names, fields = list(coded.names), list(coded.fields)
    for encoder in encoders:
        if isinstance(encoder, NumericEncoder):
            place = names.index(encoder.column)
            values = encoder.fitted.decoded(sampled[:, place])
            if encoder.marked:
                values[sampled[:, place + 1] == 1] = np.nan
            found[encoder.column] = profile_of_numbers(values, low=encoder.low, high=encoder.high)
        else:
            own = coded_rows[:, fields.index(encoder.column)]
            if isinstance(encoder, VocabularyEncoder):
                missing, min_count = encoder.missing_code, encoder.min_count
            else:
                missing, min_count = encoder.buckets + 1, 1
            gaps = (own == missing) & (missing > 0)
            found[encoder.column] = profile_of_codes(own, gaps, min_count=min_count)
    return found


def _agreed(plan: Plan, survey: Survey) -> str:
    """Return a fingerprint of what parties that ingest apart must have chosen alike."""
    split = [plan.split.rule, plan.split.fraction, plan.split.seed]
    aligned = [] if plan.aligned is None else [plan.aligned.schema.digest]
    terms = [FORMAT, VERSION, survey.ids_by(plan.ids).rule, *split, *aligned]
    return hashlib.blake2b(msgspec.json.encode(terms), digest_size=16).hexdigest()


def data_schema(plan: Plan, survey: Survey, learned: FittedColumns, written: Written, *, described: str) -> DataSchema:
    """Return what the folder says of the data set as a whole."""
    binary = plan.task == "binary" and learned.label is not None
    return DataSchema(
        name=plan.name,
        task=plan.task,
        classes=learned.classes,
        description=described,
        rows=written.sizes,
        positive_share=written.positives / survey.rows if binary else None,
        ids=survey.ids_by(plan.ids),
        split=plan.split,
        label_column=plan.label_column,
        dropped=plan.dropped,
        parties=tuple(PartyRole(name=party.name, role=party.role) for party in plan.parties),
        written=plan.written if plan.written.is_given else UNSET,
    )

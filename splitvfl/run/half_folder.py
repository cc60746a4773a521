"""A party's trained half as a folder: what it takes to score new records, and nothing of the other parties.

::

    model/half.json                 HalfSchema: what the half is made of, how columns become numbers, which run it is of
    model/weights.safetensors       its weights
    model/schema.json               of a half that was trained on tables: the party's PartySchema, and
    model/vocabulary.safetensors    the categories of its fields, if they have vocabularies
    model/transform.safetensors     of a party that transforms its columns: how, which is its secret

Everything is readable by its owner only, and appears when it is complete. There is no code in it. A passive party's
half says nothing of the others; the active party's says how wide their activations are, by name. Of a run in one
process the halves of all parties lie side by side, each in a folder of its party's name (:func:`save_halves`).
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, cast

import msgspec
import safetensors.torch
import torch
from torch import Tensor

from splitvfl.data.columns import TaskName
from splitvfl.data.encoding import FittedEncoding
from splitvfl.data.id_rules import FIRST_RULE, ID_RULE, RuleVersion, SplitBy
from splitvfl.data.schema import SCHEMA_FILE, VOCABULARY_FILE, Role
from splitvfl.data.transform import Transform, transform_of
from splitvfl.data.writing import draft
from splitvfl.errors import ArgumentError, CheckpointError, SplitVFLError, printable
from splitvfl.exchange.handshake import TaskSpec
from splitvfl.learning.settings import Settings
from splitvfl.party.party import ActiveParty, PassiveParty
from splitvfl.party.recipe import Recipe
from splitvfl.run.weights_file import pieces_of_weights
from splitvfl.system.untrusted_files import MOST_BYTES, UntrustedFile, indented, memory_of_machine, new_file

FORMAT = "splitvfl half"
VERSION = 1
HALF_FILE = "half.json"
MODEL_FOLDER = "model"
"""In the folder of a run: the trained half, or a folder for each of the halves of all parties."""
WEIGHTS_FILE = "weights.safetensors"
TRANSFORM_FILE = "transform.safetensors"

_TABLE_FILES = (SCHEMA_FILE, VOCABULARY_FILE)
_PIECE = 1 << 20

Bf16 = Literal["bf16"]
_NAMES: Mapping[torch.dtype | None, Bf16 | None] = {None: None, torch.bfloat16: "bf16"}


class HalfSchema(msgspec.Struct, frozen=True, kw_only=True):
    """``half.json``: everything about a trained half but its weights.

    Attributes:
        format: Always :data:`FORMAT`.
        version: Version of the format.
        party: Whose half it is.
        role: Its role.
        task: What was learned.
        outputs: Outputs, and so scores, of a record.
        run: Number of the run, the same at all its parties.
        step: Training steps that the parties took together, the same at all of them; 0 after exchange one-way.
        epoch: Epoch whose weights these are, from 1; 0 after exchange one-way, where it is the label party's own.
        model: The section on the model, every default written out: the experiment's, or that of principal components.
            Empty where a module was given in Python, which is to be given again.
        column_names: The party's columns.
        numeric_names: Names of its numeric inputs.
        field_names: Names of its categorical inputs.
        field_sizes: Number of codes of each of these.
        widths: At the active party, width of each passive party's activation, in the order in which the top takes
            them; empty at a passive party.
        autocast: ``"bf16"`` if the model runs in bfloat16.
        wire: ``"bf16"`` if activations cross so.
        encoding: How the columns of the party's own file became numbers; ``None`` if they did not come from one.
        id_column: The column of that file that names the records.
        files: SHA-256 of every other file of the folder, by name.
        loss: At the active party, the section on the loss, if it named one: it says what outputs predict. Empty where
            one was given in Python that predicts otherwise than the usual one.
        test: Of a run in one process: digest of the party's test records
            (:func:`splitvfl.data.digests.encoded_digest`).
        id_rule: Version of the rule for ids when it was trained (:mod:`splitvfl.data.id_column`); none is the first.
        split_by: What divided its records if one process loaded them; none is what versions did that named nothing.
        saturated: At the active party: fraction of the test records with a score of exactly 0 or 1 after training.
        score_shifts: At the active party: why its scores are no probabilities of the labels, in sentences. An earlier
            version did not say.
        digest: SHA-256 of all of this, with an empty text in this place.
    """

    format: str
    version: int
    party: str
    role: Role
    task: TaskName
    outputs: int
    run: str
    step: int
    epoch: int
    model: dict[str, Any]
    column_names: tuple[str, ...]
    numeric_names: tuple[str, ...]
    field_names: tuple[str, ...]
    field_sizes: tuple[int, ...]
    widths: dict[str, int]
    autocast: Bf16 | None
    wire: Bf16 | None
    encoding: FittedEncoding | None
    id_column: str | None
    files: dict[str, str]
    loss: dict[str, Any] | msgspec.UnsetType = msgspec.UNSET
    test: str | msgspec.UnsetType = msgspec.UNSET
    id_rule: RuleVersion | msgspec.UnsetType = msgspec.UNSET
    split_by: SplitBy | msgspec.UnsetType = msgspec.UNSET
    saturated: float | msgspec.UnsetType = msgspec.UNSET
    score_shifts: tuple[str, ...] | msgspec.UnsetType = msgspec.UNSET
    digest: str = ""

    @property
    def rule_of_ids(self) -> RuleVersion:
        """Version of the rule for ids that this half keeps."""
        return FIRST_RULE if self.id_rule is msgspec.UNSET else self.id_rule

    @property
    def divided_by(self) -> SplitBy:
        """What divided its records, if one process loaded them."""
        return "labels" if self.split_by is msgspec.UNSET else self.split_by


@dataclass(frozen=True, kw_only=True)
class Origin:
    """Where a half comes from, as its run knows.

    Attributes:
        learned: What was learned.
        model: The section that describes the party's model; ``None``: there is none, it was made in Python.
        run: Number of the run.
        step: Training steps that the parties took together.
        epoch: Epoch whose weights are kept, from 1; 0 where the others are not to know.
        encoding: How the columns became numbers, if they came from the party's own file.
        id_column: The column of that file that names the records.
        id_rule: Version of the rule by which ids were written.
        loss: The section that names the label party's loss, if there is one.
        tables: The party's table folder, if the columns came from one.
        test: Digest of its test records, if they are to be known again.
        score_shifts: Why what it learned from are no probabilities of the labels, in sentences: a student's teacher.
    """

    learned: TaskSpec
    model: Settings | None
    run: str
    step: int
    epoch: int
    encoding: FittedEncoding | None = None
    id_column: str | None = None
    id_rule: RuleVersion = ID_RULE
    loss: Settings | None = None
    tables: Path | None = None
    test: str | None = None
    score_shifts: tuple[str, ...] = ()


# --- writing


def save_half(folder: Path, party: ActiveParty | PassiveParty, origin: Origin) -> None:
    """Write a party's half with the weights that its model holds; an earlier half in the folder is replaced.

    Of a label party with a private top it is that one, which predicts. Of several workers worker 0 writes it; where
    weights are divided, the others give their parts meanwhile (:func:`splitvfl.run.weights_file.give_parts`).

    Args:
        folder: The folder to be made.
        party: The party, trained.
        origin: Where it comes from.

    Raises:
        CheckpointError: If it cannot be written; an earlier half stays.
        DataError: If something else is in the folder.
        TeamError: If weights are divided, and a worker could not go on, or is gone.
    """
    # The last of its models predicts; the one that sends is of no use any more, and stays in the checkpoints.
    weights = pieces_of_weights(party.models[-1], party.team)
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with draft(folder, overwrite=True, holds="trained half", recognised=is_half, private=True) as inside:
            files = {WEIGHTS_FILE: _write(inside / WEIGHTS_FILE, weights)}
            if party.data.transform is not None:
                described = safetensors.torch.save(party.data.transform.tensors())
                files[TRANSFORM_FILE] = _write(inside / TRANSFORM_FILE, [described])
            for source in _table_files(origin.tables):
                files[source.name] = _write(inside / source.name, _pieces(source))
            _write(inside / HALF_FILE, [_encoded(_signed(_described(party, origin, files))), b"\n"])
    except OSError as error:
        reason = error.strerror or error
        raise CheckpointError(f"cannot write the trained half {folder}: {reason}; an older one stays") from error


def save_halves(folder: Path, parties: Mapping[str, tuple[ActiveParty | PassiveParty, Origin]]) -> None:
    """Write the halves of all parties of a run side by side; they appear together, in the place of earlier ones.

    Args:
        folder: The folder to be made, with a folder in it for each party.
        parties: Each party, and where it comes from, by name.

    Raises:
        CheckpointError: If they cannot be written; earlier ones stay.
        DataError: If something else is in the folder.
    """
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with draft(folder, overwrite=True, holds="trained halves", recognised=holds_halves, private=True) as inside:
            for name, (party, origin) in parties.items():
                save_half(inside / name, party, origin)
    except OSError as error:
        reason = error.strerror or error
        raise CheckpointError(f"cannot write the trained halves {folder}: {reason}; older ones stay") from error


def holds_halves(folder: Path) -> bool:
    """Return whether a folder holds trained halves in folders of their own, and nothing else."""
    inside = list(folder.iterdir()) if folder.is_dir() else []
    return bool(inside) and all(is_half(path) for path in inside)


def new_run_number() -> str:
    """Return a number for a run that no other has."""
    return secrets.token_hex(16)


def _table_files(tables: Path | None) -> list[Path]:
    return [] if tables is None else [tables / name for name in _TABLE_FILES if (tables / name).exists()]


def _described(party: ActiveParty | PassiveParty, origin: Origin, files: Mapping[str, str]) -> HalfSchema:
    data = party.data
    return HalfSchema(
        format=FORMAT,
        version=VERSION,
        party=party.name,
        role="active" if isinstance(party, ActiveParty) else "passive",
        task=cast(TaskName, origin.learned.task),  # no other is introduced
        outputs=origin.learned.outputs,
        run=origin.run,
        step=origin.step,
        epoch=origin.epoch,
        model={} if origin.model is None else origin.model.model_dump(mode="json"),
        column_names=data.column_names,
        numeric_names=data.numeric_names,
        field_names=data.field_names,
        field_sizes=data.field_sizes,
        widths=dict(party.widths) if isinstance(party, ActiveParty) else {},
        autocast=_NAMES[party.autocast],
        wire=_NAMES[party.wire],
        encoding=origin.encoding,
        id_column=origin.id_column,
        files=dict(files),
        loss=_loss_of(party, origin),
        test=msgspec.UNSET if origin.test is None else origin.test,
        id_rule=msgspec.UNSET if origin.id_rule == FIRST_RULE else origin.id_rule,
        split_by="ids",
        saturated=_saturated(party),
        score_shifts=_score_shifts(party, origin),
    )


def _score_shifts(party: ActiveParty | PassiveParty, origin: Origin) -> tuple[str, ...] | msgspec.UnsetType:
    return (*origin.score_shifts, *party.learned_shifts) if isinstance(party, ActiveParty) else msgspec.UNSET


def _saturated(party: ActiveParty | PassiveParty) -> float | msgspec.UnsetType:
    if isinstance(party, ActiveParty) and party.saturated is not None:
        return party.saturated
    return msgspec.UNSET


def _loss_of(party: ActiveParty | PassiveParty, origin: Origin) -> dict[str, Any] | msgspec.UnsetType:
    if origin.loss is not None:
        return origin.loss.model_dump(mode="json")
    recipe = getattr(origin.model, "recipe", None)
    if isinstance(recipe, Recipe) and recipe.make_loss() is not None:
        return msgspec.UNSET  # the model says which
    if isinstance(party, ActiveParty) and type(party.task.loss).scores is not party.task.usual_loss.scores:
        return {}
    return msgspec.UNSET


def _write(path: Path, pieces: Iterable[bytes]) -> str:
    digest = hashlib.sha256()
    with new_file(path) as file:
        for piece in pieces:
            digest.update(piece)
            file.write(piece)
    return digest.hexdigest()


def _pieces(path: Path) -> Iterator[bytes]:
    with UntrustedFile(path=path, remedy="ingest the data again").opened() as file:
        while piece := file.read(_PIECE):
            yield piece


def file_digest(path: Path) -> str:
    """Return the SHA-256 of a file, in hexadecimal."""
    return _file(path.parent, path.name).digest()


def _encoded(schema: HalfSchema) -> bytes:
    return indented(schema)


def _signed(schema: HalfSchema) -> HalfSchema:
    """Return a schema with its digest: it finds damage, and keeps nobody from writing another half."""
    empty = msgspec.structs.replace(schema, digest="")
    return msgspec.structs.replace(schema, digest=hashlib.sha256(_encoded(empty)).hexdigest())


# --- reading


def read_half_schema(folder: Path) -> HalfSchema:
    """Return what a trained half says of itself; its other files are not looked at.

    Raises:
        CheckpointError: If there is none, or it is damaged or has another version.
    """
    file = _file(folder, HALF_FILE)
    schema = file.json(HalfSchema, wanted=FORMAT, version=VERSION)
    if schema is None:
        raise CheckpointError(
            f"expected a trained half, as `splitvfl party` writes it, at {folder}; its {HALF_FILE} cannot be read: "
            "there is no such file; train it first, or name another folder (splitvfl predict --model FOLDER)"
        )
    if _signed(schema).digest != schema.digest or WEIGHTS_FILE not in schema.files:
        raise file.refused("what it says has changed since it was written")
    for name in (schema.party, *schema.widths):
        # Folders are called so.
        if name != printable(name, longest=100) or name != name.strip(". ") or not name or {"/", "\\"} & set(name):
            raise file.refused(f"expected a party's name that a folder can have, got {printable(name, longest=100)!r}")
    return schema


def check_file(folder: Path, name: str, digest: str) -> None:
    """Check one of the files that a trained half tells of.

    Raises:
        CheckpointError: If it is another, cannot be read, or has no place there.
    """
    if name not in (WEIGHTS_FILE, TRANSFORM_FILE, *_TABLE_FILES):
        raise damaged(folder / HALF_FILE, f"there is no place for a file {name!r}")
    file = _file(folder, name)
    if file.digest() != digest:
        raise file.refused(f"it is not the file that {HALF_FILE} tells of")


def read_weights(folder: Path) -> dict[str, Tensor]:
    """Return the weights of a trained half by name.

    Raises:
        CheckpointError: If they cannot be read, or hold NaN or infinite values.
    """
    weights = _file(folder, WEIGHTS_FILE).tensors()
    unfit = [name for name, value in weights.items() if not torch.isfinite(value).all()]
    if unfit:
        path = folder / WEIGHTS_FILE
        raise CheckpointError(f"{path}: {unfit[0]} holds NaN or infinite values: training has diverged")
    return weights


def read_transform(folder: Path) -> Transform:
    """Return the transform of a trained half that has one.

    Raises:
        CheckpointError: If it cannot be read, or is none.
    """
    file = _file(folder, TRANSFORM_FILE)
    try:
        return transform_of(file.tensors())
    except ArgumentError as error:
        raise file.refused(error) from error


def damaged(path: Path, why: object) -> SplitVFLError:
    """Return what is said of a file of a trained half that cannot be used."""
    return _file(path.parent, path.name).refused(why)


def _file(folder: Path, name: str) -> UntrustedFile:
    most = MOST_BYTES if name == HALF_FILE else memory_of_machine()
    return UntrustedFile(path=folder / name, most=most, remedy="train again, or bring back a copy of the folder")


def is_half(folder: Path) -> bool:
    """Return whether a folder says that it holds a trained half."""
    return _file(folder, HALF_FILE).has_format(FORMAT)

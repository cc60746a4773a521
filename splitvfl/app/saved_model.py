"""A party's trained half as a folder: what it takes to score new records, and nothing of the other parties.

::

    model/half.json                 HalfSchema: what the half is made of, how columns become numbers, which run it is of
    model/weights.safetensors       its weights
    model/schema.json               of a half that was trained on tables: the party's PartySchema, and
    model/vocabulary.safetensors    the categories of its fields, if they have vocabularies

Everything is readable by its owner only, and appears when it is complete. There is no code in it. A passive party's
half says nothing of the others; the active party's says how wide their activations are, by name.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, cast

import msgspec
import safetensors.torch
import torch
from pydantic import ValidationError
from safetensors import SafetensorError
from torch import Tensor, nn

from splitvfl.config.named import Named, NamedSection
from splitvfl.config.registry import built_in
from splitvfl.config.sections import LOSS, MODEL, ModelSection
from splitvfl.data.columns import PartyData, TaskName
from splitvfl.data.encoding import FittedEncoding
from splitvfl.data.schema import SCHEMA_FILE, VOCABULARY_FILE, PartySchema, Role, read_party_schema
from splitvfl.data.writing import draft
from splitvfl.errors import ArgumentError, CheckpointError, ConfigError, DataError
from splitvfl.exchange.handshake import TaskSpec
from splitvfl.learning.losses import Loss
from splitvfl.learning.precision import narrow_dtype
from splitvfl.learning.randomness import PartyRandom
from splitvfl.learning.tasks import Task, task_for
from splitvfl.party.party import ActiveParty, PassiveParty
from splitvfl.party.recipe import Recipe

FORMAT = "splitvfl half"
VERSION = 1
HALF_FILE = "half.json"
WEIGHTS_FILE = "weights.safetensors"

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
        loss: At the active party, the section on the loss, if it named one: it says what outputs predict.
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
    digest: str = ""


@dataclass(frozen=True, kw_only=True)
class Origin:
    """Where a half comes from, as its run knows.

    Attributes:
        learned: What was learned.
        model: The section that describes the party's model.
        run: Number of the run.
        step: Training steps that the parties took together.
        epoch: Epoch whose weights are kept, from 1; 0 where the others are not to know.
        encoding: How the columns became numbers, if they came from the party's own file.
        id_column: The column of that file that names the records.
        loss: The section that names the label party's loss, if there is one.
        tables: The party's table folder, if the columns came from one.
    """

    learned: TaskSpec
    model: ModelSection
    run: str
    step: int
    epoch: int
    encoding: FittedEncoding | None = None
    id_column: str | None = None
    loss: NamedSection | None = None
    tables: Path | None = None


# --- writing


def save_half(folder: Path, party: ActiveParty | PassiveParty, origin: Origin) -> None:
    """Write a party's half with the weights that its model holds; an earlier half in the folder is replaced.

    Of a label party with a private top it is that one, which predicts.

    Args:
        folder: The folder to be made.
        party: The party, trained.
        origin: Where it comes from.

    Raises:
        CheckpointError: If it cannot be written; an earlier half stays.
        DataError: If something else is in the folder.
    """
    # The last of its models predicts; the one that sends is of no use any more, and stays in the checkpoints.
    weights = {name: value.detach().cpu().contiguous() for name, value in party.models[-1].state_dict().items()}
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with draft(folder, overwrite=True, holds="trained half", recognised=_is_half, private=True) as inside:
            files = {WEIGHTS_FILE: _write(inside / WEIGHTS_FILE, [safetensors.torch.save(weights)])}
            for source in _table_files(origin.tables):
                files[source.name] = _write(inside / source.name, _pieces(source))
            _write(inside / HALF_FILE, [_encoded(_signed(_described(party, origin, files))), b"\n"])
    except OSError as error:
        reason = error.strerror or error
        raise CheckpointError(f"cannot write the trained half {folder}: {reason}; an older one stays") from error


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
        model=origin.model.model_dump(mode="json"),
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
        loss=msgspec.UNSET if origin.loss is None else origin.loss.model_dump(mode="json"),
    )


def _write(path: Path, pieces: Iterable[bytes]) -> str:
    descriptor, digest = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), hashlib.sha256()
    with os.fdopen(descriptor, "wb") as file:
        for piece in pieces:
            digest.update(piece)
            file.write(piece)
        file.flush()
        os.fsync(file.fileno())
    return digest.hexdigest()


def _pieces(path: Path) -> Iterator[bytes]:
    with path.open("rb") as file:
        while piece := file.read(_PIECE):
            yield piece


def file_digest(path: Path) -> str:
    """Return the SHA-256 of a file, in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _encoded(schema: HalfSchema) -> bytes:
    return msgspec.json.format(msgspec.json.encode(schema), indent=2)


def _signed(schema: HalfSchema) -> HalfSchema:
    """Return a schema with its digest: it finds damage, and keeps nobody from writing another half."""
    empty = msgspec.structs.replace(schema, digest="")
    return msgspec.structs.replace(schema, digest=hashlib.sha256(_encoded(empty)).hexdigest())


# --- reading


@dataclass(frozen=True, eq=False)
class SavedHalf:
    """A trained half, read and checked.

    Attributes:
        schema: What it is made of.
        weights: Its weights by name.
        folder: Where it lies.
    """

    schema: HalfSchema
    weights: Mapping[str, Tensor]
    folder: Path

    @property
    def learned(self) -> TaskSpec:
        """What was learned."""
        return TaskSpec(self.schema.task, self.schema.outputs)

    @property
    def task(self) -> Task:
        """The task, with its usual loss."""
        return task_for(self.schema.task, self.schema.outputs)

    @property
    def tables(self) -> PartySchema | None:
        """How the tables that it was trained on were made; ``None`` if it was not trained on tables."""
        return read_party_schema(self.folder) if SCHEMA_FILE in self.schema.files else None

    def party(
        self,
        data: PartyData,
        *,
        device: torch.device,
        own: ModelSection | None = None,
        own_loss: NamedSection | None = None,
    ) -> ActiveParty | PassiveParty:
        """Return the party, ready to predict: its model is frozen, and no defense is attached.

        Args:
            data: Its records, encoded as the training records were.
            device: Where its model runs.
            own: The model that the party's own file names. A class that does not come with splitvfl is imported if it
                is that one: no half decides what is imported.
            own_loss: The loss that it names, likewise.

        Raises:
            ConfigError: If it was made by another class that does not come with splitvfl.
            DataError: If the records have other columns than the model was trained on.
            CheckpointError: If the weights do not fit the model.
        """
        self._check_columns(data)
        recipe = self._recipe(own)
        module, data = self._module(recipe, data), data.with_row_norm(recipe.row_norm)
        party: ActiveParty | PassiveParty
        if self.schema.role == "active":
            party = ActiveParty(data, module, task=self._task(own_loss))
            for name in self.schema.widths:
                party.connect(name)
            party.widths = dict(self.schema.widths)
        else:
            party = PassiveParty(data, module)
        party.prepare(
            seed=0, device=device, autocast=narrow_dtype(self.schema.autocast), wire=narrow_dtype(self.schema.wire)
        )
        return party

    def _check_columns(self, data: PartyData) -> None:
        for what in ("numeric_names", "field_names", "field_sizes"):
            trained, given = getattr(self.schema, what), getattr(data, what)
            if trained != given:
                place = next((n for n, (a, b) in enumerate(zip(trained, given, strict=False)) if a != b), None)
                words = what.replace("_", " ")
                if place is None:
                    raise DataError(f"{data.name}: expected {len(trained)} {words} as in training, got {len(given)}")
                raise DataError(
                    f"{data.name}: expected {trained[place]!r} in place {place} (from 0) of the {words} as in "
                    f"training, got {given[place]!r}"
                )

    def _task(self, own_loss: NamedSection | None) -> Task:
        described = self.schema.loss
        if described is msgspec.UNSET:
            return self.task
        loss: Loss = self._made(LOSS, described, own_loss, "loss", key="train.loss")
        try:
            return task_for(self.schema.task, self.schema.outputs, loss)
        except ArgumentError as error:
            raise _damaged(self.folder / HALF_FILE, error) from error

    def _recipe(self, own: ModelSection | None) -> Recipe:
        recipe: Recipe = self._made(MODEL, self.schema.model, own, "model", key="model")
        return recipe

    def _made(self, named: Named, described: dict[str, Any], own: NamedSection | None, what: str, *, key: str) -> Any:
        name = str(described.get("name"))
        if own is not None and own.name == name:
            section: type[NamedSection] = type(own)
        elif name in built_in(named.kind):
            section = named.section(name, self.folder)
        else:
            raise ConfigError(
                f"{self.folder} was made by the {what} {name!r}, which does not come with splitvfl: it is imported "
                f"where the experiment names it too, as {key}.name"
            )
        try:
            return section.model_validate_json(json.dumps(described)).make()
        except (ConfigError, ValidationError) as error:
            raise _damaged(self.folder / HALF_FILE, f"{described} describes no {what}: {error}") from error

    def _module(self, recipe: Recipe, data: PartyData) -> nn.Module:
        try:
            module = self._built(recipe, data)
            module.load_state_dict(dict(self.weights))
        except (ArgumentError, ConfigError, RuntimeError) as error:
            raise _damaged(self.folder / WEIGHTS_FILE, f"the weights do not fit the model: {error}") from error
        return module.requires_grad_(False)

    def _built(self, recipe: Recipe, data: PartyData) -> nn.Module:
        with PartyRandom(0):  # first weights are drawn and replaced; nobody else's numbers are to be used up for them
            if self.schema.role == "passive":
                return recipe.make_bottom(data, self.task)
            make = recipe.make_private_top if recipe.private_top else recipe.make_top
            return make(data, self.task, list(self.schema.widths.values()))


def load_half(folder: str | os.PathLike[str]) -> SavedHalf:
    """Return a trained half after a check of every file.

    Raises:
        CheckpointError: If there is none, it has another version, or a file is missing or damaged.
    """
    path = Path(folder)
    schema = _read_schema(path)
    for name, digest in schema.files.items():
        _check_file(path, name, digest)
    weights = _read_weights(path / WEIGHTS_FILE)
    half = SavedHalf(schema, weights, path)
    if SCHEMA_FILE in schema.files:
        try:
            read_party_schema(path)
        except DataError as error:
            raise _damaged(path / SCHEMA_FILE, error) from error
    return half


def _read_schema(folder: Path) -> HalfSchema:
    path = folder / HALF_FILE
    try:
        data = path.read_bytes()
    except OSError as error:
        raise CheckpointError(
            f"expected a trained half, as `splitvfl party` writes it, at {folder}; its {HALF_FILE} cannot be read: "
            f"{error.strerror}"
        ) from error
    try:
        head: Any = msgspec.json.decode(data)
        if not isinstance(head, dict) or head.get("format") != FORMAT:
            raise CheckpointError(f'{path} does not begin with "format": "{FORMAT}"; it is no trained half')
        if head.get("version") != VERSION:
            raise CheckpointError(f"{path} has version {head.get('version')!r}, expected {VERSION}; train again")
        schema = msgspec.convert(head, HalfSchema)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise _damaged(path, error) from error
    if _signed(schema).digest != schema.digest or WEIGHTS_FILE not in schema.files:
        raise _damaged(path, "what it says has changed since it was written")
    return schema


def _check_file(folder: Path, name: str, digest: str) -> None:
    if name not in (WEIGHTS_FILE, *_TABLE_FILES):
        raise _damaged(folder / HALF_FILE, f"there is no place for a file {name!r}")
    try:
        same = file_digest(folder / name) == digest
    except OSError as error:
        raise CheckpointError(f"{folder / name} cannot be read: {error.strerror}; train again") from error
    if not same:
        raise _damaged(folder / name, f"it is not the file that {HALF_FILE} tells of")


def _read_weights(path: Path) -> dict[str, Tensor]:
    try:
        weights = safetensors.torch.load_file(path)
    except (OSError, SafetensorError) as error:
        raise _damaged(path, error) from error
    unfit = [name for name, value in weights.items() if not torch.isfinite(value).all()]
    if unfit:
        raise CheckpointError(f"{path}: {unfit[0]} holds NaN or infinite values: training has diverged")
    return weights


def _damaged(path: Path, why: object) -> CheckpointError:
    return CheckpointError(f"{path} is damaged: {why}; train again, or bring back a copy of the folder")


def _is_half(folder: Path) -> bool:
    try:
        head = msgspec.json.decode((folder / HALF_FILE).read_bytes())
    except (OSError, msgspec.DecodeError):
        return False
    return isinstance(head, dict) and head.get("format") == FORMAT

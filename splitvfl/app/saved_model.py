"""A party's trained half, ready to predict: read, checked, and put together again.

How it lies on the disk is said in :mod:`splitvfl.run.half_folder`. No half decides what is imported: a model or a loss
that does not come with splitvfl is named by the experiment too, or given.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import torch
from pydantic import ValidationError
from torch import Tensor, nn

from splitvfl.config.named import Named, NamedSection
from splitvfl.config.registry import built_in
from splitvfl.config.sections import LOSS, MODEL, ModelSection
from splitvfl.data.columns import Columns, PartyData, Provenance, Records
from splitvfl.data.schema import SCHEMA_FILE, PartySchema, read_party_schema
from splitvfl.data.transform import Transform
from splitvfl.errors import ArgumentError, ConfigError, DataError, SplitVFLError
from splitvfl.exchange.handshake import TaskSpec
from splitvfl.learning.losses import Loss
from splitvfl.learning.precision import narrow_dtype
from splitvfl.learning.randomness import EntropicGenerator, PartyRandom
from splitvfl.learning.sampled import sampled_layers
from splitvfl.learning.tasks import Task, task_for
from splitvfl.party.party import ActiveParty, PassiveParty
from splitvfl.party.recipe import Recipe
from splitvfl.run.half_folder import (
    HALF_FILE,
    TRANSFORM_FILE,
    WEIGHTS_FILE,
    HalfSchema,
    Origin,
    check_file,
    damaged,
    file_digest,
    read_half_schema,
    read_transform,
    read_weights,
    save_half,
)

__all__ = ["HALF_FILE", "WEIGHTS_FILE", "HalfSchema", "Origin", "SavedHalf", "file_digest", "load_half", "save_half"]


# How what was made in Python is given again.
_GIVEN = {"model": "models={{'{}': module}}", "loss": "loss=loss"}


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

    @property
    def transform(self) -> Transform | None:
        """What the party does to its numeric columns, which is nobody else's to know; ``None``: nothing."""
        return read_transform(self.folder) if TRANSFORM_FILE in self.schema.files else None

    def party(
        self,
        data: PartyData,
        *,
        device: torch.device,
        own: ModelSection | None = None,
        own_loss: NamedSection | None = None,
        module: nn.Module | None = None,
        loss: Loss | None = None,
    ) -> ActiveParty | PassiveParty:
        """Return the party, ready to predict: its model is frozen, and no defense is attached.

        Args:
            data: Its records, encoded as the training records were.
            device: Where its model runs.
            own: The model that the party's own file names. A class that does not come with splitvfl is imported if it
                is that one: no half decides what is imported.
            own_loss: The loss that it names, likewise.
            module: A model to take the weights, in the place of the one that the half describes: needed where it was
                made in Python. It is frozen.
            loss: A loss in the place of the one that the half describes, likewise; of it the scores count.

        Raises:
            ConfigError: If it was made by another class that does not come with splitvfl, or in Python, and none is
                given.
            DataError: If the records have other columns than the model was trained on.
            CheckpointError: If the weights do not fit the model.
        """
        self._check_columns(data)
        data = data.with_transform(self.transform)
        recipe: Recipe | None = None
        if module is None:
            recipe = self.recipe(own)
            module, data = self._built(recipe, data), data.with_row_norm(recipe.row_norm)
        self._take_weights(module)
        party: ActiveParty | PassiveParty
        if self.schema.role == "active":
            of_model = None if recipe is None else recipe.make_loss()
            given = of_model if loss is None else loss
            task = self._task(own_loss) if given is None else task_for(self.schema.task, self.schema.outputs, given)
            party = ActiveParty(data, module, task=task)
            for name in self.schema.widths:
                party.connect(name)
            party.widths = dict(self.schema.widths)
        else:
            party = PassiveParty(data, module)
        for layer in sampled_layers(module):
            # A state that all know would let a partner compute the noise, and take it off.
            layer.generator = EntropicGenerator(device)
        party.prepare(
            seed=0, device=device, autocast=narrow_dtype(self.schema.autocast), wire=narrow_dtype(self.schema.wire)
        )
        party.random = PartyRandom.entropic(device)  # likewise, of what draws from torch's own generator
        return party

    def recipe(self, own: ModelSection | None) -> Recipe:
        """Return the recipe of its model; ``own`` is the model that the party's own file names.

        Raises:
            ConfigError: As :meth:`party`.
        """
        recipe: Recipe = self._made(MODEL, self.schema.model, own, "model", key="model")
        return recipe

    def columns(self) -> PartyData:
        """Return what is known of the party's columns, without any record."""
        schema = self.schema
        nothing = Records(
            torch.zeros(0, dtype=torch.int64),
            Columns(
                torch.zeros(0, len(schema.numeric_names)), torch.zeros(0, len(schema.field_sizes), dtype=torch.int64)
            ),
        )
        return PartyData(
            schema.party,
            schema.column_names,
            schema.numeric_names,
            schema.field_sizes,
            nothing,
            nothing,
            schema.field_names,
            self._provenance,
        )

    @property
    def _provenance(self) -> Provenance | None:
        if SCHEMA_FILE in self.schema.files:  # what they were encoded by lies beside the weights
            return Provenance(tables=self.folder)
        if self.schema.encoding is None:
            return None
        schema = self.schema
        return Provenance(encoding=schema.encoding, id_column=schema.id_column, id_rule=schema.rule_of_ids)

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
            raise damaged(self.folder / HALF_FILE, error) from error

    def _made(self, named: Named, described: dict[str, Any], own: NamedSection | None, what: str, *, key: str) -> Any:
        if not described:
            raise ConfigError(
                f"{self.folder} was saved from a {what} that was made in Python; give it again: "
                f"splitvfl.load_run(FOLDER, {_GIVEN[what].format(self.schema.party)})"
            )
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
            raise damaged(self.folder / HALF_FILE, f"{described} describes no {what}: {error}") from error

    def _take_weights(self, module: nn.Module) -> None:
        try:
            module.load_state_dict(dict(self.weights))
        except RuntimeError as error:
            raise damaged(self.folder / WEIGHTS_FILE, f"the weights do not fit the model: {error}") from error
        module.requires_grad_(False)

    def _built(self, recipe: Recipe, data: PartyData) -> nn.Module:
        self._check_size(recipe, data)
        try:
            return self._made_by(recipe, data)
        except (ArgumentError, ConfigError, RuntimeError) as error:
            raise damaged(self.folder / WEIGHTS_FILE, f"the weights do not fit the model: {error}") from error

    def _check_size(self, recipe: Recipe, data: PartyData) -> None:
        """Refuse a model of more weights than there are before memory is taken for it: a few words describe any."""
        try:
            with torch.device("meta"):  # on which tensors have shapes, and no memory
                described = self._made_by(recipe, data)
            count = sum(weight.numel() for weight in described.state_dict().values())
        except (SplitVFLError, RuntimeError, TypeError, ValueError):
            return  # a model of one's own may compute with its first weights; what is wrong with others, is said next
        held = sum(weight.numel() for weight in self.weights.values())
        if count > held:
            raise damaged(
                self.folder / WEIGHTS_FILE,
                f"the weights do not fit the model: {HALF_FILE} describes one of {count:,}, and there are {held:,}",
            )

    def _made_by(self, recipe: Recipe, data: PartyData) -> nn.Module:
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
    schema = read_half_schema(path)
    for name, digest in schema.files.items():
        check_file(path, name, digest)
    weights = read_weights(path)
    half = SavedHalf(schema, weights, path)
    if SCHEMA_FILE in schema.files:
        try:
            read_party_schema(path)
        except DataError as error:
            raise damaged(path / SCHEMA_FILE, error) from error
    return half

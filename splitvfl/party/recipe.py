"""Recipes of models: what a name in ``model:`` stands for, and of which each party makes its own half."""

from __future__ import annotations

import itertools
import os
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, ClassVar, Literal

from pydantic import AfterValidator, Field
from torch import nn

from splitvfl.data.columns import PartyData
from splitvfl.errors import ConfigError
from splitvfl.learning.losses import Loss
from splitvfl.learning.tasks import Task
from splitvfl.party.party import MAX_WIDTH
from splitvfl.team.team import Team

MOST = 2**63 - 1  # counts of records and steps are kept in 64 bits
_MOST_LAYERS = 1000


def _at_least_one(widths: tuple[int, ...]) -> tuple[int, ...]:
    if not widths:
        raise ValueError("expected the width of at least one layer, got none")
    return widths


# What decides how much memory is taken, or how long something runs, has a largest number.
Count = Annotated[int, Field(ge=1, le=MOST)]
Width = Annotated[int, Field(ge=1, le=MAX_WIDTH)]
Widths = Annotated[tuple[Width, ...], Field(max_length=_MOST_LAYERS), AfterValidator(_at_least_one)]
# What each of several workers holds of a weight: all of it, or a part.
Held = Literal["replicated", "sharded"]
HiddenWidths = Annotated[tuple[Width, ...], Field(max_length=_MOST_LAYERS)]


class Recipe(ABC):
    """How the halves of a model are made: the bottom of each passive party, and the active party's top.

    A model of one's own derives from it and has :meth:`make_bottom` and :meth:`make_top`. Its settings are the fields
    of a frozen dataclass, or the arguments of a constructor: a file gives them beside ``name``, and they are checked
    against the annotations. Each party makes its own half, from its own data, and knows nothing of the others' but the
    widths of what they send.

    Attributes:
        takes_fields: Whether it takes categorical fields (``columns.field_sizes``). Its halves are then called as
            :class:`~splitvfl.models.WideDeepBottom` and :class:`~splitvfl.models.WideDeepTop` are.
        is_linear: Whether its halves are :class:`~splitvfl.models.Linear` and :class:`~splitvfl.models.LinearTop`.
        private_top: Whether the active party has a second top, which learns from true labels and sends nothing.
        row_norm: Largest Euclidean norm of a record's numbers at each party; ``None`` takes them as they are.
        sparse: Whether tables of categories have sparse gradients; ``None``: it depends on their size. ``False`` also
            where there are no tables.
        tables: Where a party has several workers, whether each of them holds a part of the rows of tables that have
            sparse gradients, ``"sharded"``, or all of them, ``"replicated"``; ``None``: a part, if their optimiser
            moves each row by that row's gradients alone. ``"replicated"`` also where no table can be divided.
        dense: Where a party has several workers, whether each of them holds a part of every other weight of a passive
            party's model, ``"sharded"``, or all of them, ``"replicated"``.
        largest_deviation: Of a linear model, the largest standard deviation of a first weight, whatever the number of
            columns.
    """

    takes_fields: ClassVar[bool] = False
    is_linear: ClassVar[bool] = False
    private_top: bool = False
    row_norm: float | None = None
    sparse: bool | None = False
    tables: Held | None = "replicated"
    dense: Held = "replicated"
    largest_deviation: float = 1.0

    @abstractmethod
    def make_bottom(self, columns: PartyData, task: Task) -> nn.Module:
        """Return a passive party's model, with first weights.

        Args:
            columns: The party's data; ``columns.width`` is the number of its numeric columns.
            task: What is learned; ``task.outputs`` is the number of outputs.
        """

    def make_top(self, columns: PartyData, task: Task, widths: Sequence[int]) -> nn.Module:
        """Return the active party's model, which puts out ``(n, task.outputs)``.

        It is called with the activations of all passive parties and the active party's own columns, joined.

        Args:
            columns: The active party's data; it may have no columns.
            task: What is learned.
            widths: Width of each passive party's activation, in the order of the parties.
        """
        raise ConfigError(f"{type(self).__name__} is the model of a passive party; there is no top model of it")

    def make_private_top(self, columns: PartyData, task: Task, widths: Sequence[int]) -> nn.Module:
        """Return the active party's private top, as :meth:`make_top`, which it is unless a recipe says otherwise."""
        return self.make_top(columns, task, widths)

    def among(self, team: Team) -> Recipe:
        """Return the recipe of one worker of several: as it is, unless a worker holds a part of the tables.

        Args:
            team: The workers among which tables are divided, unless :attr:`tables` says otherwise.
        """
        return self

    def fitted(self, bottom: nn.Module, columns: PartyData) -> nn.Module:
        """Return a bottom as it begins training: fitted to the party's own training columns, if the recipe does so."""
        return bottom

    def make_loss(self) -> Loss | None:
        """Return the loss that belongs to the model, which all parties know; ``None``: the label party's own business.

        Raises:
            ArgumentError: If it cannot be made of the settings.
        """
        return None

    def terms(self) -> Mapping[str, object]:
        """Return what must be alike at all parties of a network, by the names under which it is compared."""
        return {}

    def options_for_width(self, width: int) -> Mapping[str, Any]:
        """Return the arguments with which the bottoms put out this width, as ``exchange.width`` asks for it.

        Raises:
            ConfigError: If nobody knows.
        """
        raise ConfigError(
            f"exchange.width: {type(self).__name__} does not say how its bottoms get another width; leave it out, or "
            "add a method options_for_width(width), which returns the options to change"
        )

    def options_for_cut(self, layers: int) -> Mapping[str, Any]:
        """Return the arguments with which passive parties have the first so many layers, and the active one the rest.

        Args:
            layers: How many, at least 1.

        Raises:
            ConfigError: If there are not so many, or nobody knows.
        """
        raise ConfigError(
            f"--cuts: {type(self).__name__} does not say how it is cut elsewhere; leave it out, or add a method "
            "options_for_cut(layers), which returns the options to change"
        )


def check_size(key: str, whose: str, weights: int) -> None:
    """Refuse a part of a model before memory is taken for it that this machine has not.

    Raises:
        ConfigError: If its weights alone, in float32, are larger than the machine's memory.
    """
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    if 4 * weights > memory:
        raise ConfigError(
            f"{key}: with the columns of {whose} it makes {weights:,} weights, {4 * weights / 2**30:,.0f} GiB, and "
            f"this machine has {memory / 2**30:,.0f} GiB of memory; take fewer"
        )


def weights_of_layers(inputs: int, widths: Sequence[int]) -> int:
    """Return the number of weights of fully connected layers, without intercepts."""
    return sum(before * after for before, after in itertools.pairwise((inputs, *widths)))

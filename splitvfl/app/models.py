"""From the sections on the model and the exchange to each party's model, before its first step."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from torch import nn

from splitvfl.config.sections import MODEL, ModelSection
from splitvfl.data.columns import PartyData
from splitvfl.errors import ConfigError, SplitVFLError
from splitvfl.exchange.base import Exchange
from splitvfl.learning.randomness import PartyRandom
from splitvfl.learning.tasks import Task
from splitvfl.party.party import PassiveParty
from splitvfl.party.recipe import Recipe, check_size
from splitvfl.team.team import Alone, Team


@dataclass(frozen=True)
class Models:
    """What makes the parties' models, by the section on the model and what the exchange changes of it.

    Attributes:
        section: The experiment's section.
        exchange: The exchange.
        own_optimizer: Whether tables of categories have an optimiser of their own: they then have sparse gradients,
            unless the model says otherwise.
        team: The workers of the party, of which this process is one.
    """

    section: ModelSection
    exchange: Exchange
    own_optimizer: bool = False
    team: Team = field(default_factory=Alone)

    def bounded(self, data: PartyData) -> PartyData:
        """Return a party's data with rows of the norm that the model asks for."""
        return data.with_row_norm(self.section.recipe.row_norm)

    def bottom(self, party: PartyData, task: Task) -> nn.Module:
        """Return a passive party's model."""
        recipe = self._recipe(self.of_passive(party, task))
        bottom = _made(lambda: recipe.make_bottom(party, task), "make_bottom", self.section.name)
        return _made(lambda: recipe.fitted(bottom, party), "fitted", self.section.name)

    def top(self, active: PartyData, task: Task, widths: Sequence[int]) -> nn.Module:
        """Return the active party's model, which takes activations of these widths.

        Raises:
            ConfigError: If the model cannot take these widths.
        """
        recipe = self._recipe(self.of_active())
        return _made(lambda: recipe.make_top(active, task, widths), "make_top", self.section.name)

    def private_top(self, active: PartyData, task: Task, widths: Sequence[int]) -> nn.Module | None:
        """Return the active party's private top, as :meth:`top`; ``None`` if the experiment has none."""
        recipe = self._recipe(self.section)
        return recipe.make_private_top(active, task, widths) if recipe.private_top else None

    def of_active(self) -> ModelSection:
        """Return the section that describes the active party's model: the file's, with the width of the exchange."""
        if self.exchange.width is None:
            return self.section
        return self.section.model_copy(update=dict(self.section.recipe.options_for_width(self.exchange.width)))

    def of_passive(self, party: PartyData, task: Task) -> ModelSection:
        """Return the section that describes a passive party's model.

        Raises:
            ConfigError: If principal components are asked for of columns that are not numbers, or more than there are,
                or of a model whose bottoms draw what they send.
        """
        asked = self.exchange.width
        if self.exchange.bottom != "pca":
            return self.of_active()  # which is all there is, as of a saved half
        if getattr(self.section.recipe, "sampled", False):
            raise ConfigError(
                "model.sampled: passive parties send principal components (exchange.bottom: pca), which draw nothing; "
                "leave it out, or take bottom: random"
            )
        if party.field_sizes or not party.width:
            raise ConfigError(
                f"exchange.bottom: principal components are of numbers, and {party.name} has "
                f"{'categorical fields (' + ', '.join(party.field_names) + ')' if party.field_sizes else 'no columns'}"
                "; encode them as numbers (data.categorical: one-hot, with model mlp), or take bottom: random"
            )
        if asked is not None and asked > party.width:
            raise ConfigError(
                f"exchange.width: expected at most the {party.width} numeric columns of {party.name}, of which there "
                f"are no more principal components, got {asked}"
            )
        check_size("exchange.bottom", party.name, 2 * party.width**2)
        width = asked or min(self._bottom_width(party, task), party.width)
        found: ModelSection = MODEL.default("pca", width=width)
        return found

    def _bottom_width(self, party: PartyData, task: Task) -> int:
        """Return the width of what a party's bottom of the experiment's own model would put out."""
        with PartyRandom(0):  # the weights are thrown away; nobody else's numbers are to be used up for them
            return PassiveParty(party, self.section.recipe.make_bottom(party, task)).output_width()

    def _recipe(self, section: ModelSection) -> Recipe:
        if self.own_optimizer and section.recipe.sparse is None:
            section = section.model_copy(update={"sparse": True})
        return section.recipe.among(self.team)


def _made(make: Callable[[], object], method: str, name: str) -> nn.Module:
    """Return the model that a method of a recipe makes.

    Raises:
        ConfigError: If it makes none.
    """
    with own_code(f"model: {method} of {name}"):
        made = make()
    if not isinstance(made, nn.Module):
        raise ConfigError(f"model: {method} of {name} must return a torch.nn.Module, got {type(made).__name__}")
    return made


@contextmanager
def own_code(what: str) -> Iterator[None]:
    """Say what failed, and where, if other people's code does in a block.

    Raises:
        ConfigError: If it does, in whatever way.
    """
    try:
        yield
    except SplitVFLError:
        raise
    except Exception as error:  # other people's code may fail in any way
        last = traceback.extract_tb(error.__traceback__)[-1]
        where = f"{Path(last.filename).name}, line {last.lineno}"
        raise ConfigError(f"{what} failed: {type(error).__name__}: {error} ({where})") from error

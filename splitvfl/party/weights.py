"""What a party trains: its model's weights, their optimiser, and what its workers hold of them."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from splitvfl.errors import ProtocolError
from splitvfl.hooks import all_finite_together
from splitvfl.learning.best_weights import BestWeights
from splitvfl.learning.optimizers import (
    OptimizerFactory,
    ParameterFactory,
    PerParameter,
    check_factory,
    in_ball,
    optimizer_of,
    project_on_ball,
)
from splitvfl.team.divided import divided_weights, sharded_tables
from splitvfl.team.team import Alone, T, Team


class PartyWeights:
    """The weights of a party's model, which one process holds, or several workers alike or in parts.

    Args:
        party: Name of the party, for messages.
        module: Its model.
        optimizer: Makes its optimiser out of parameters.

    Attributes:
        optimizer: Its optimiser; ``None``: there is nothing to be trained.
        held: What of the model this process holds, by the names of the model's weights: the model itself, unless its
            weights are divided.
        best: The weights at the best evaluation, where training stops early.
        team: The workers that the party consists of, of which this process is one.
        divides: Whether its workers, if it has several, divide dense weights among them.

    Raises:
        ArgumentError: If what is to make its optimiser cannot be called.
    """

    def __init__(self, party: str, module: nn.Module, optimizer: OptimizerFactory) -> None:
        check_factory(f"optimizer of {party}", optimizer)
        self.team: Team = Alone()
        self.divides = False
        self._party, self._module, self._factory = party, module, optimizer
        self._hold(module)

    def _hold(self, held: nn.Module) -> None:
        self.held, self.best = held, BestWeights(held)
        self.start_optimizer()

    def start_optimizer(self) -> None:
        """Make the optimiser anew: it remembers nothing then."""
        self.optimizer = optimizer_of(self.held, self._factory)
        # To look for what is trained layer by layer in every step would take as long as a layer.
        self._tables = list(sharded_tables(self._module).values())
        parts = dict(self.held.named_parameters())
        self._divided = [(weight, parts[name]) for name, weight in divided_weights(self._module).items()]
        divided = {id(table.rows) for table in self._tables} | {id(weight) for weight, _ in self._divided}
        self._alike = [weight for weight in self._module.parameters() if id(weight) not in divided]

    @property
    def dense_optimizer(self) -> ParameterFactory:
        """What makes the optimiser of all but its sparse tables."""
        return self._factory.dense if isinstance(self._factory, PerParameter) else self._factory

    def keep_in_ball(self, radius: float) -> None:
        """Take the weights into a ball, in which every step leaves them from now on.

        Args:
            radius: Largest norm of all of them together.
        """
        project_on_ball([weight for weight in self._module.parameters() if weight.requires_grad], radius)
        self._factory = PerParameter(dense=in_ball(self.dense_optimizer, radius))
        self.optimizer = optimizer_of(self._module, self._factory)

    # --- of several workers

    @property
    def is_to_be_divided(self) -> bool:
        """Whether dense weights are to be divided among the workers, and are not yet."""
        return self.divides and self.team.size > 1 and self.held is self._module

    @property
    def divided(self) -> frozenset[str]:
        """Names, in the model's state, of what each worker holds a part of."""
        tables = {f"{name}.rows" if name else "rows" for name in sharded_tables(self._module)}
        return frozenset(tables | divided_weights(self._module).keys())

    def divide(self) -> None:
        """Keep a part of each dense weight from now on, if that was asked for; no worker waits for another.

        All workers hold the same weights before (:meth:`~splitvfl.party.party.Party.share_with_workers`), or load their
        parts of the same.

        Raises:
            ArgumentError: If one of the weights cannot be divided.
        """
        if self.is_to_be_divided:
            self._hold(self.team.divide(self._module))

    def jointly(self, work: Callable[[], T]) -> T:
        """Do something with the model in which workers wait for each other where weights are divided."""
        return self.team.jointly(work) if self._divided else work()

    # --- steps

    def clear_gradients(self) -> None:
        """Forget the gradients of the step before."""
        for table in self._tables:
            table.forget_gradients()
        for weight, _ in self._divided:
            weight.grad = None
        if self.optimizer is not None:
            self.optimizer.zero_grad(set_to_none=True)

    def has_finite_gradients(self, *sent: Tensor) -> bool:
        """Return whether the optimiser would take in finite numbers only, and gradients that are sent are finite."""
        own = [weight.grad for weight in self._alike if weight.grad is not None]
        own += [weight.grad.to_local() for weight, _ in self._divided if weight.grad is not None]
        of_rows = (gradient for table in self._tables for gradient in table.gradients)
        return all_finite_together([*own, *of_rows, *sent])

    def update(self, *also: Tensor) -> list[Tensor]:
        """Take the optimiser's step; of several workers with the sum of their gradients, so that all stay equal.

        Args:
            also: What is added up besides.

        Returns:
            The sums over all workers of what is added up besides.

        Raises:
            ProtocolError: If the sum of gradients, each of which is finite, is not: no weight changes then.
            TeamError: If a worker could not go on, or is gone.
        """
        for table in self._tables:
            if table.rows.requires_grad:
                table.bring_home()
        for weight, part in self._divided:
            part.grad = None if weight.grad is None else weight.grad.to_local()
        sums = list(also) if self.team.size == 1 else self._add_up(also)
        if self.optimizer is not None:
            self.optimizer.step()
        return sums

    def _add_up(self, also: Sequence[Tensor]) -> list[Tensor]:
        trained = [weight for weight in self._alike if weight.requires_grad]
        # Of what is divided one worker alone has the sum, and all have to know whether it is finite.
        spoiled = [_spoiled(table.rows) for table in self._tables] + [_spoiled(part) for _, part in self._divided]
        found = self.team.add_up([*(weight.grad for weight in trained), *also, *spoiled])
        gradients, sums = found[: len(trained)], found[len(trained) : len(trained) + len(also)]
        checked = [one for one in (*gradients, *found[len(trained) + len(also) :]) if one is not None]
        if not all_finite_together(checked):
            raise ProtocolError(
                f"the gradients of the weights of {self._party}, added up over its workers, overflow: a learning rate "
                "is too high, or a party sends what spoils weights"
            )
        for weight, gradient in zip(trained, gradients, strict=True):
            weight.grad = gradient
        return [one for one in sums if one is not None]

    def state_dict(self) -> dict[str, Any]:
        """Return weights as trained and the best ones, and the state of the optimiser."""
        optimizer = None if self.optimizer is None else self.optimizer.state_dict()
        return {**self.best.state_dict(), "optimizer": optimizer}

    def load_state_dict(self, state: dict[str, Any], /) -> None:
        """Take back what :meth:`state_dict` returned."""
        self.best.load_state_dict(state)
        if self.optimizer is not None:
            self.optimizer.load_state_dict(state["optimizer"])


def _spoiled(part: nn.Parameter) -> Tensor:
    """Return NaN if the gradient of what this worker holds of a weight is not finite, else zero, in its dtype."""
    whole = part.grad is None or all_finite_together([part.grad])
    return torch.tensor(0.0 if whole else math.nan, dtype=part.dtype, device=part.device)

"""The parties: each holds its own columns, its own model, its own optimiser and its own randomness."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from splitvfl.conversation import Expected
from splitvfl.crossing import DefenseChain
from splitvfl.cut import CutLayer, Seat, available_fields, call_top, responses_of
from splitvfl.data.columns import Columns, PartyData, Records
from splitvfl.errors import ArgumentError, DataError
from splitvfl.hooks import View
from splitvfl.messages import FLOATS
from splitvfl.optimizers import PerParameter
from splitvfl.precision import widened
from splitvfl.randomness import PartyRandom
from splitvfl.tasks import Binary, Task

MAX_WIDTH = 1 << 16

# Of an activation, before the parties have agreed on one.
_ANY_WIDTH = range(1, MAX_WIDTH + 1)

OptimizerFactory = Callable[[Iterable[nn.Parameter]], Optimizer] | PerParameter


def adam(parameters: Iterable[nn.Parameter]) -> Optimizer:
    """Return Adam at learning rate 1e-3: the default optimiser."""
    return torch.optim.Adam(parameters, lr=1e-3)


class Observer(Protocol):
    """Something at a passive party that looks at what it received: an attack, in an experiment."""

    needs: frozenset[str]

    def __call__(self, view: View, /) -> None:
        """Look."""
        ...


class Party(ABC):
    """What both kinds of party have.

    Attributes:
        autocast: The dtype in which its model runs under :class:`torch.autocast`, bfloat16; ``None``: as it is.
    """

    def __init__(self, data: PartyData, module: nn.Module, optimizer: OptimizerFactory) -> None:
        self.name = data.name
        self.data = data
        self.module = module
        self.device = torch.device("cpu")
        self.autocast: torch.dtype | None = None
        self.random = PartyRandom(0)
        self._factory = optimizer
        self.optimizer = self._new_optimizer()

    def _new_optimizer(self) -> Optimizer | None:
        parameters = [parameter for parameter in self.module.parameters() if parameter.requires_grad]
        if not parameters:
            return None
        if isinstance(self._factory, PerParameter):
            return self._factory(self.module)  # it tells tables from the rest by the layers that they lie in
        return self._factory(parameters)

    def prepare(self, *, seed: int, device: torch.device, autocast: torch.dtype | None = None) -> None:
        """Move to a device, and set the randomness and the precision, before the first step."""
        self.device, self.autocast = device, autocast
        self.module.to(device)
        self.optimizer = self._new_optimizer()
        self.random = PartyRandom(seed)
        if device.type == "cuda":
            self.random.use_cuda()

    def computing(self) -> AbstractContextManager[object]:
        """Return the block in which its model is called; no message is waited for inside it."""
        return nullcontext() if self.autocast is None else torch.autocast(self.device.type, dtype=self.autocast)

    def train_batch(self, rows: Tensor) -> Records:
        """Return its training records at these positions."""
        return self.data.train.rows(rows).to(self.device)

    def test_batch(self, rows: Tensor) -> Records:
        """Return its test records at these positions."""
        return self.data.test.rows(rows).to(self.device)

    def clear_gradients(self) -> None:
        """Forget the gradients of the step before."""
        if self.optimizer is not None:
            self.optimizer.zero_grad(set_to_none=True)

    def update(self) -> None:
        """Take the optimiser's step."""
        if self.optimizer is not None:
            self.optimizer.step()

    def hook_state(self) -> dict[str, Any]:
        """Return the state of its defenses: for its owner only."""
        return {"defenses": {name: chain.state_dict() for name, chain in self.chains().items()}}

    def load_hook_state(self, state: dict[str, Any]) -> None:
        """Take back what :meth:`hook_state` returned."""
        for name, chain in self.chains().items():
            chain.load_state_dict(state["defenses"][name])

    @abstractmethod
    def chains(self) -> dict[str, DefenseChain]:
        """Return the defenses of everything that it sends, by a name for each."""

    def state_dict(self) -> dict[str, Any]:
        """Return weights, optimiser and random state."""
        return {
            "module": self.module.state_dict(),
            "optimizer": None if self.optimizer is None else self.optimizer.state_dict(),
            "random": self.random.state_dict(),
        }

    def load_state_dict(self, state: dict[str, Any], /) -> None:
        """Take back what :meth:`state_dict` returned."""
        self.module.load_state_dict(state["module"])
        if self.optimizer is not None:
            self.optimizer.load_state_dict(state["optimizer"])
        self.random.load_state_dict(state["random"])


class PassiveParty(Party):
    """A party with columns and a bottom model, and no labels.

    Args:
        data: Its columns.
        bottom: Its model; input as wide as its columns.
        optimizer: Makes its optimiser out of parameters, or is a :class:`~splitvfl.optimizers.PerParameter`. Default:
            Adam, 1e-3.

    Attributes:
        activation: Defenses of what it sends.
        observers: Its own attacks on what it receives.
    """

    def __init__(self, data: PartyData, bottom: nn.Module, *, optimizer: OptimizerFactory = adam) -> None:
        super().__init__(data, bottom, optimizer)
        self.bottom = bottom
        self.activation = DefenseChain("activation", self.name)
        self.observers: list[Observer] = []
        self.batch_ids: Tensor | None = None

    @property
    def shows(self) -> frozenset[str]:
        """View fields that its attacks can have."""
        fields = available_fields(self.bottom, has_columns=True)
        return fields if self.data.train.columns.categorical.shape[1] == 0 else fields - {"aggregated_gradient"}

    def activate(self, batch: Records) -> Tensor:
        """Return the bottom's output, ``(n, width)``.

        Raises:
            ArgumentError: If it is no matrix of one row per record.
        """
        self.batch_ids = batch.ids
        with self.computing():
            output: Tensor = self.bottom(batch.columns.module_input())
        if output.dim() != 2 or output.shape[0] != batch.count:
            raise ArgumentError(
                f"the bottom model of {self.name} must put out one row per record: "
                f"expected ({batch.count}, width), got {tuple(output.shape)}"
            )
        return output

    def defend_activation(self, activation: Tensor, batch: Records, step: int) -> Tensor:
        """Return what is sent instead of the activation."""
        return self.activation.apply(activation, step=step, ids=batch.ids, labels=None)

    def learn(self, activation: Tensor, gradient: Tensor, batch: Records, step: int) -> None:
        """Run the bottom's backward on a received gradient, and let its observers look."""
        seat = Seat(self.bottom, batch.columns.module_input(), activation)
        for observer in self.observers:
            observer(seat.view(observer.needs, party=self.name, step=step, ids=batch.ids, gradient=gradient))
        if activation.requires_grad:  # a frozen bottom, or one without parameters, has nothing to learn
            activation.backward(gradient)

    def chains(self) -> dict[str, DefenseChain]:
        """Return the defenses of its activation."""
        return {"activation": self.activation}


class ActiveParty(Party):
    """The party that holds the labels and the top model, with or without columns of its own.

    Args:
        data: Its labels, and its columns if it has any.
        top: Its model, which receives the activations of the passive parties and its own columns.
        task: The loss. Default: binary.
        optimizer: Makes its optimiser out of parameters, or is a :class:`~splitvfl.optimizers.PerParameter`. Default:
            Adam, 1e-3.

    Attributes:
        cuts: One cut layer per passive party, by name.
        widths: Width of what each passive party sends, once they have agreed on it.
        labels: Defenses that act before the loss.
        scores: Defenses of the predictions that it publishes.

    Raises:
        DataError: If there are no labels, or they are not what the task needs.
    """

    def __init__(
        self, data: PartyData, top: nn.Module, *, task: Task | None = None, optimizer: OptimizerFactory = adam
    ) -> None:
        super().__init__(data, top, optimizer)
        self.top = top
        self.task = task or Binary()
        if data.train.labels is None or data.test.labels is None:
            raise DataError(f"the active party {self.name} holds no labels")
        self.task.check(data.train.labels)
        if data.test.count:
            self.task.check_values(data.test.labels)
        self.cuts: dict[str, CutLayer] = {}
        self.widths: dict[str, int] = {}
        self.labels = DefenseChain("labels", self.name)
        self.scores = DefenseChain("scores", self.name)

    def connect(self, passive: str) -> CutLayer:
        """Return a new cut layer towards a passive party."""
        self.cuts[passive] = CutLayer(passive, active=self.name)
        return self.cuts[passive]

    def await_activations(self, kind: str, step: int, count: int) -> tuple[Expected, ...]:
        """Return what is awaited of every passive party: a row for each of so many records."""
        return tuple(
            Expected(name, kind, step, FLOATS, (count, self.widths.get(name, _ANY_WIDTH))) for name in self.cuts
        )

    def own_input(self, batch: Records) -> Tensor | Columns | None:
        """Return its own columns as its top takes them; ``None`` if it has none."""
        columns = batch.columns
        return columns.module_input() if columns.numeric.shape[1] + columns.categorical.shape[1] else None

    def run_top(self, activations: list[Tensor], batch: Records) -> Tensor:
        """Return the top's outputs, ``(n, k)``; in float32 where the model computes in half precision.

        Raises:
            ArgumentError: If they have not the shape that the task needs.
        """
        with self.computing():
            outputs = call_top(self.top, activations, self.own_input(batch))
        self.task.check_outputs(outputs, batch.count)
        return widened(outputs)

    def answer(self, batch: Records, step: int) -> tuple[Tensor, Tensor | None]:
        """Return the loss's targets, and what later defenses get in place of the labels (``None``: the labels)."""
        assert batch.labels is not None
        if not len(self.labels):
            return batch.labels, None
        targets = self.labels.apply(batch.labels, step=step, ids=batch.ids, labels=batch.labels)
        return targets, responses_of(targets)

    def chains(self) -> dict[str, DefenseChain]:
        """Return the defenses of labels, of scores, and of each passive party's gradient."""
        gradients = {f"gradient/{name}": cut.gradient for name, cut in self.cuts.items()}
        return {"labels": self.labels, "scores": self.scores, **gradients}

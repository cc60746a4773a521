"""Optimisers for models with embedding tables: one for the tables, another for everything else.

A batch touches few rows of a large table. Its gradient is then kept sparse, and only the rows that it names are
updated; an optimiser with dense state, such as Adam, would read and write every row at every step.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Annotated, Any, NamedTuple, TypeVar, overload

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.optim import Optimizer

from splitvfl.errors import ArgumentError, shown
from splitvfl.learning.row_sums import NamedRows

ParameterFactory = Callable[[list[nn.Parameter]], Optimizer]

# Limits that are told with their line where an experiment names an optimiser.
Rate = Annotated[float, Field(gt=0)]
Decay = Annotated[float, Field(ge=0)]
Momentum = Annotated[float, Field(ge=0, lt=1)]
Radius = Annotated[float, Field(gt=0, allow_inf_nan=False)]

_FUSED_DEVICES = ("cpu", "cuda")

Factory = TypeVar("Factory", bound=Callable[..., Optimizer])


def _without_ball(factory: Factory) -> Factory:
    """Let a factory say why it takes no radius, where a file gives it one."""
    vars(factory)["gone"] = {
        "radius": "weights are kept in a ball by sgd and proximal-sgd, whose steps are those of a "
        "projected gradient; take one of them, or leave it out"
    }
    return factory


@_without_ball
def fused_adam(params: Iterable[nn.Parameter], *, lr: Rate = 1e-3, weight_decay: Decay = 0.0) -> torch.optim.Adam:
    """Return Adam, torch's, by one fused kernel where there is one: for floating-point weights on CPU and CUDA.

    The results differ from those of the usual kernels by rounding.

    Source: Kingma and Ba, ICLR 2015, arXiv:1412.6980.

    Args:
        params: What is trained.
        lr: Learning rate.
        weight_decay: As in torch: added to the gradient.
    """
    trained = list(params)
    fits = all(weight.device.type in _FUSED_DEVICES and weight.is_floating_point() for weight in trained)
    return torch.optim.Adam(trained, lr=lr, weight_decay=weight_decay, fused=True if fits else None)


def sgd(
    params: Iterable[nn.Parameter],
    *,
    lr: Rate = 1e-2,
    momentum: Momentum = 0.0,
    weight_decay: Decay = 0.0,
    radius: Radius | None = None,
) -> torch.optim.SGD:
    """Return gradient descent, torch's, with momentum if asked for.

    Args:
        params: What is trained.
        lr: Learning rate.
        momentum: Share of the step before that a step goes on with.
        weight_decay: As in torch: added to the gradient.
        radius: Largest Euclidean norm of all the party's weights together, its intercept included: each step ends with
            the nearest weights in this ball. ``null``: any.
    """
    if radius is None:
        return torch.optim.SGD(params, lr=lr, momentum=momentum, weight_decay=weight_decay)
    return BallSGD(params, radius=radius, lr=lr, momentum=momentum, weight_decay=weight_decay)


@_without_ball
def adagrad(params: Iterable[nn.Parameter], *, lr: Rate = 1e-2, weight_decay: Decay = 0.0) -> torch.optim.Adagrad:
    """Return Adagrad, torch's: each weight's rate falls with the squares of its gradients so far.

    Source: Duchi, Hazan and Singer, JMLR 12 (2011).

    Args:
        params: What is trained.
        lr: Learning rate.
        weight_decay: As in torch: added to the gradient.
    """
    return torch.optim.Adagrad(params, lr=lr, weight_decay=weight_decay)


def rowwise_adagrad(params: Iterable[nn.Parameter], *, lr: Rate = 0.02) -> RowWiseAdagrad:
    """Return Adagrad with one accumulator per row of a table; it updates the rows that a batch names.

    Args:
        params: What is trained.
        lr: Learning rate.
    """
    return RowWiseAdagrad(params, lr=lr)


def sparse_adam(params: Iterable[nn.Parameter], *, lr: Rate = 1e-3) -> torch.optim.SparseAdam:
    """Return Adam for sparse gradients, torch's: it updates the rows that a batch names.

    Args:
        params: What is trained.
        lr: Learning rate.
    """
    return torch.optim.SparseAdam(params, lr=lr)


def sparse_adagrad(params: Iterable[nn.Parameter], *, lr: Rate = 1e-2) -> torch.optim.Adagrad:
    """Return Adagrad for sparse gradients, torch's: it updates the rows that a batch names.

    Args:
        params: What is trained.
        lr: Learning rate.
    """
    return torch.optim.Adagrad(params, lr=lr)


def sparse_sgd(params: Iterable[nn.Parameter], *, lr: Rate = 1e-2) -> torch.optim.SGD:
    """Return gradient descent for sparse gradients, torch's: it updates the rows that a batch names.

    Args:
        params: What is trained.
        lr: Learning rate.
    """
    return torch.optim.SGD(params, lr=lr)


class BallSGD(torch.optim.SGD):
    """Gradient descent, torch's, each step of which ends with the nearest weights of bounded norm.

    Args:
        params: What is trained.
        radius: Largest norm, as :func:`project_on_ball` has it.
        settings: As of :class:`torch.optim.SGD`.

    Raises:
        ArgumentError: If the radius is out of range.

    Attributes:
        radius: As given.
    """

    def __init__(self, params: Iterable[nn.Parameter], *, radius: float, **settings: Any) -> None:
        self.radius = _checked_radius(radius)
        super().__init__(params, **settings)

    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        """Update every weight that has a gradient, project all, and return what ``closure``, if given, returned."""
        loss: float | None = super().step(closure)
        project_on_ball(_weights_of(self), self.radius)
        return loss


def _checked_radius(radius: float) -> float:
    if not (radius > 0 and math.isfinite(radius)):
        raise ArgumentError(f"expected radius above 0 and finite, got {radius}")
    return radius


def _weights_of(optimizer: Optimizer) -> list[nn.Parameter]:
    return [weight for group in optimizer.param_groups for weight in group["params"]]


@torch.no_grad()
def project_on_ball(weights: Sequence[Tensor], radius: float) -> None:
    """Replace weights by the nearest ones whose norm, of all tensors together, is at most the radius.

    That is ``w · min(1, radius / ‖w‖)``, computed in float64. What rounding to a tensor's own precision adds is taken
    off again, towards zero: the norm of what is left, in float64, never exceeds it. NaN and infinity stay.

    Args:
        weights: Floating-point tensors, changed in place.
        radius: Above 0.
    """
    norm = _norm(weights)
    if not (norm > radius and math.isfinite(norm)):
        return
    for weight in weights:
        weight.copy_(weight.double() * (radius / norm))
    while _norm(weights) > radius:  # by rounding: one step takes that off
        for weight in weights:
            weight.copy_(torch.nextafter(weight, torch.zeros_like(weight)))


def _norm(weights: Sequence[Tensor]) -> float:
    """Return the Euclidean norm of all tensors together, in float64, whatever the size of their numbers."""
    return math.hypot(*(torch.linalg.vector_norm(weight, dtype=torch.float64).item() for weight in weights))


def plain_rate(factory: ParameterFactory) -> float | None:
    """Return the learning rate of what a factory makes if it is plain gradient descent, ``w ← w − lr · g``."""
    return plain_rate_of(factory([nn.Parameter(torch.zeros(1))]))


def plain_rate_of(made: Optimizer | None) -> float | None:
    """Return the learning rate of an optimiser of plain gradient descent; ``None``: it is another, or there is none."""
    weight = nn.Parameter(torch.zeros(1))
    if type(made) is not torch.optim.SGD:  # what is derived from it may take other steps
        return None
    rate: float = made.defaults["lr"]
    return rate if made.defaults == torch.optim.SGD([weight], lr=rate).defaults else None


def steps_row_by_row(factory: ParameterFactory) -> bool:
    """Return whether what a factory makes moves each row of a table by that row's gradients alone.

    Those of torch that tables with sparse gradients can have do, and :class:`RowWiseAdagrad`; one of your own says so
    by an attribute ``row_by_row`` that is true.
    """
    made = factory([nn.Parameter(torch.zeros(1, 1))])
    known = (torch.optim.SGD, torch.optim.Adagrad, torch.optim.SparseAdam, RowWiseAdagrad)
    return type(made) in known or getattr(made, "row_by_row", False) is True


class ProjectedSteps(NamedTuple):
    """What steps of a projected gradient do to weights: ``soft(w − lr (g + decay w)) / (1 + lr l2)``, in a ball.

    Attributes:
        lr: Learning rate.
        weight_decay: What is added to the gradient, of all weights.
        l2: Proximal penalty, of matrices and not of intercepts.
        radius: Of the ball; ``None``: there is none.
    """

    lr: float
    weight_decay: float
    l2: float
    radius: float | None


def projected_steps(factory: ParameterFactory) -> ProjectedSteps | None:
    """Return the steps that what a factory makes takes, if they are those of a projected gradient; else ``None``.

    Momentum makes a step depend on gradients before it, and adaptive rates on all of them.
    """
    weight = nn.Parameter(torch.zeros(1))
    made = factory([weight])
    settings = made.defaults
    radius: float | None = getattr(made, "radius", None)
    if type(made) is ProximalSGD:
        return ProjectedSteps(settings["lr"], 0.0, settings["l2"], radius)
    if type(made) not in (torch.optim.SGD, BallSGD):  # what is derived from them may take other steps
        return None
    lr, decay = settings["lr"], settings["weight_decay"]
    plain = torch.optim.SGD([weight], lr=lr, weight_decay=decay).defaults
    return ProjectedSteps(lr, decay, 0.0, radius) if settings == plain else None


def in_ball(factory: ParameterFactory, radius: float) -> ParameterFactory:
    """Return what makes an optimiser of the same steps, each of which ends with the nearest weights in a ball.

    Args:
        factory: Makes one whose steps are those of a projected gradient (:func:`projected_steps`).
        radius: As :func:`project_on_ball` has it.
    """
    made = factory([nn.Parameter(torch.zeros(1))])
    if type(made) is ProximalSGD:
        return partial(ProximalSGD, radius=radius, **made.defaults)
    return partial(BallSGD, radius=radius, lr=made.defaults["lr"], weight_decay=made.defaults["weight_decay"])


class _WithClosure(Optimizer, ABC):
    """An optimiser whose step may compute the loss anew first, as torch has it."""

    @overload
    def step(self, closure: None = None) -> None: ...

    @overload
    def step(self, closure: Callable[[], float]) -> float: ...

    def step(self, closure: Callable[[], float] | None = None) -> float | None:
        """Update every weight that has a gradient, and return what ``closure``, if given, returned.

        Args:
            closure: Called first and once, with gradients on: computes the loss anew.
        """
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        self._take_step()
        return loss

    @abstractmethod
    def _take_step(self) -> None: ...


class _WeightByWeight(_WithClosure):
    @torch.no_grad()
    def _take_step(self) -> None:
        for group in self.param_groups:
            for weight in group["params"]:
                if weight.grad is not None:
                    self._update(weight, weight.grad, group)

    @abstractmethod
    def _update(self, weight: Tensor, gradient: Tensor, settings: Mapping[str, Any]) -> None: ...


class ProximalSGD(_WeightByWeight):
    """Gradient descent with an L1 and an L2 penalty of the weights: the elastic net, without subgradients.

    A step on a weight matrix, of gradient g, with ``soft(v, t) = sign(v) · max(|v| − t, 0)``::

        w ← soft(w − lr · g, lr · l1) / (1 + lr · l2)

    It descends on ``loss + l1 ‖w‖₁ + (l2 / 2) ‖w‖²``, and weights become exactly zero. A penalty needs nothing but the
    party's own weights: nothing more crosses, whatever the exchange. Vectors (intercepts, scales of normalisation) are
    not penalised.

    Source: Parikh and Boyd, *Proximal algorithms*, 2014, section 4.2; for vertical regression *Hybrid Differentially
    Private Federated Learning on Vertically Partitioned Data*.

    Args:
        params: What is trained.
        lr: Learning rate, above 0.
        l1: Weight of the sum of absolute values, from 0.
        l2: Weight of half the sum of squares, from 0.
        radius: Largest Euclidean norm of all the party's weights together, its intercept included: each step ends with
            the nearest weights in this ball. ``null``: any.

    Raises:
        ArgumentError: If a setting is out of range or, in a step, a gradient is sparse.
    """

    def __init__(
        self,
        params: Iterable[nn.Parameter],
        *,
        lr: Rate = 1e-2,
        l1: Decay = 0.0,
        l2: Decay = 0.0,
        radius: Radius | None = None,
    ) -> None:
        if not (lr > 0 and l1 >= 0 and l2 >= 0):
            raise ArgumentError(f"expected lr above 0, l1 and l2 from 0, got {lr}, {l1} and {l2}")
        self.radius = None if radius is None else _checked_radius(radius)
        super().__init__(params, {"lr": lr, "l1": l1, "l2": l2})

    def _take_step(self) -> None:
        super()._take_step()
        if self.radius is not None:
            project_on_ball(_weights_of(self), self.radius)

    def _update(self, weight: Tensor, gradient: Tensor, settings: Mapping[str, Any]) -> None:
        lr, l1, l2 = (settings[name] for name in ("lr", "l1", "l2"))
        if gradient.is_sparse:
            raise ArgumentError("ProximalSGD takes dense gradients: a penalty moves every row at every step")
        weight.sub_(gradient, alpha=lr)
        if weight.dim() > 1:
            weight.copy_(torch.nn.functional.softshrink(weight, lr * l1)).div_(1 + lr * l2)


class RowWiseAdagrad(_WeightByWeight):
    """Adagrad with one accumulator per row of a table, for sparse gradients.

    With G_r the gradient of row r, summed over all its occurrences in the batch, and d its length::

        a_r ← a_r + ‖G_r‖² / d
        w_r ← w_r − lr · G_r / (√a_r + eps)

    Rows that the gradient does not name are not touched, nor is their accumulator. The state is 1/d of Adagrad's, and
    1/(2d) of Adam's. With d = 1 this is Adagrad. All coordinates of a row share one rate: it does not adapt to a
    coordinate that has smaller gradients than the others. On a GPU a row's gradients are added in no fixed order, so
    that runs differ by rounding.

    Source: Duchi et al., JMLR 2011 (Adagrad); one accumulator per row as in Lerer et al., SysML 2019,
    arXiv:1903.12287, and Mudigere et al., ISCA 2022, arXiv:2104.05158.

    Args:
        params: Tables ``(rows, d)`` whose layers have ``sparse=True``.
        lr: Learning rate, above 0: about how far a row moves, per coordinate, when it is first met.
        eps: Added to the root, above 0.

    Raises:
        ArgumentError: If a setting is out of range or, in a step, a gradient is dense.
    """

    def __init__(self, params: Iterable[nn.Parameter], *, lr: float = 0.02, eps: float = 1e-10) -> None:
        if not (lr > 0 and eps > 0):
            raise ArgumentError(f"expected lr and eps above 0, got {lr} and {eps}")
        super().__init__(params, {"lr": lr, "eps": eps})

    def _update(self, weight: Tensor, gradient: Tensor, settings: Mapping[str, Any]) -> None:
        rows, sums = _summed_per_row(gradient)
        state = self.state[weight]
        if not state:
            state["sum"] = torch.zeros(weight.shape[0], dtype=weight.dtype, device=weight.device)
        state["sum"].index_add_(0, rows, sums.square().mean(dim=1))
        rates = -settings["lr"] / (state["sum"].index_select(0, rows).sqrt_() + settings["eps"])
        weight.index_add_(0, rows, sums.mul_(rates[:, None]))


def _summed_per_row(gradient: Tensor) -> tuple[Tensor, Tensor]:
    """Return the rows that a sparse gradient names, each once, and the sum of what it says of each."""
    if not gradient.is_sparse or gradient.dim() != 2 or gradient.sparse_dim() != 1:
        raise ArgumentError(
            f"RowWiseAdagrad takes sparse gradients of tables (rows, d), got a {gradient.layout} one of shape "
            f"{tuple(gradient.shape)}; give the layer sparse=True, or leave it to another optimiser"
        )
    if gradient.is_coalesced():
        return gradient.indices()[0], gradient.values().clone()
    # Not coalesce(): it takes many times as long.
    named = NamedRows.of(gradient._indices()[0])
    return named.rows, named.sums(gradient._values())


class PerParameter:
    """Makes one optimiser out of two: one for tables with sparse gradients, one for everything else.

    It is called with a model, and finds the tables by their layers: those with an attribute ``sparse`` that is true, as
    :class:`torch.nn.Embedding`, :class:`torch.nn.EmbeddingBag` and :class:`~splitvfl.models.wide_deep.FieldTable` have
    it. A party takes it in place of an ordinary factory: ``PassiveParty(data, bottom, optimizer=PerParameter())``.

    What it makes behaves like one :class:`torch.optim.Optimizer`: its ``param_groups`` are those of both, so that
    learning-rate schedulers reach both, and its ``state_dict`` holds both. A model without sparse tables gets the dense
    one alone.

    Args:
        dense: Makes the optimiser of everything else out of parameters.
        embeddings: Makes the optimiser of the tables; it must take sparse gradients.

    Attributes:
        dense: As given.

    Raises:
        ArgumentError: If one of them makes nothing.

    >>> layers = nn.Sequential(nn.Embedding(10, 4, sparse=True), nn.Flatten(), nn.Linear(4, 1))
    >>> [group["lr"] for group in PerParameter()(layers).param_groups]
    [0.001, 0.02]
    """

    def __init__(self, *, dense: ParameterFactory = fused_adam, embeddings: ParameterFactory = RowWiseAdagrad) -> None:
        check_factory("dense", dense)
        check_factory("embeddings", embeddings)
        self.dense, self._embeddings = dense, embeddings

    def __call__(self, module: nn.Module) -> Optimizer:
        """Return the optimiser of a model.

        Args:
            module: The model; at least one of its parameters requires a gradient.
        """
        tables = sparse_parameters(module)
        named = {id(table) for table in tables}
        others = [weight for weight in module.parameters() if weight.requires_grad and id(weight) not in named]
        made = {"dense": self.dense(others)} if others else {}
        if tables and getattr(made.get("dense"), "radius", None) is not None:
            raise ArgumentError(
                "radius bounds all weights of a party together, and tables with sparse gradients have an optimiser of "
                "their own; leave radius out, or take model.sparse: false"
            )
        made |= {"embeddings": self._embeddings(tables)} if tables else {}
        return _Together(made) if tables else made["dense"]


OptimizerFactory = Callable[[Iterable[nn.Parameter]], Optimizer] | PerParameter


def check_factory(argument: str, given: object) -> None:
    """Check that something may make an optimiser.

    Args:
        argument: What the argument is called.
        given: What it was given.

    Raises:
        ArgumentError: If it cannot be called, as a name or an optimiser that is made already cannot.
    """
    if not callable(given):
        raise ArgumentError(
            f"expected {argument} as what makes an optimiser out of parameters, such as "
            f"functools.partial(splitvfl.learning.optimizers.sgd, lr=0.1), got {shown(given)}"
        )


def optimizer_of(module: nn.Module, factory: OptimizerFactory) -> Optimizer | None:
    """Return the optimiser that a factory makes for a model; ``None`` if nothing in it is trained."""
    parameters = [parameter for parameter in module.parameters() if parameter.requires_grad]
    if not parameters:
        return None
    if isinstance(factory, PerParameter):
        return factory(module)  # it tells tables from the rest by the layers that they lie in
    return factory(parameters)


def sparse_parameters(module: nn.Module) -> list[nn.Parameter]:
    """Return the trainable parameters of all layers whose attribute ``sparse`` is true, each once."""
    layers = [layer for layer in module.modules() if getattr(layer, "sparse", False) is True]
    found = [weight for layer in layers for weight in layer.parameters(recurse=False) if weight.requires_grad]
    return list(dict.fromkeys(found))


class _Together(_WithClosure):
    """Several optimisers, stepped one after the other."""

    def __init__(self, parts: Mapping[str, Optimizer]) -> None:
        self._parts = dict(parts)
        super().__init__(self._groups(), {})

    def _groups(self) -> list[dict[str, Any]]:
        return [group for part in self._parts.values() for group in part.param_groups]

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Refuse a group that belongs to none of the optimisers, and would never be stepped."""
        if not any(param_group is group for group in self._groups()):
            raise ArgumentError("this optimiser is made of several; a group of parameters cannot be added to it")
        super().add_param_group(param_group)

    def _take_step(self) -> None:
        # torch warns where nobody says whether to check sparse tensors; those here it made itself, a moment ago.
        with torch.sparse.check_sparse_tensor_invariants(enable=False):
            for part in self._parts.values():
                part.step()

    def state_dict(self) -> dict[str, Any]:
        """Return the states by optimiser."""
        return {name: part.state_dict() for name, part in self._parts.items()}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take back what :meth:`state_dict` returned.

        Raises:
            ArgumentError: If it is the state of other optimisers.
        """
        if set(state_dict) != set(self._parts):
            raise ArgumentError(f"expected the state of {sorted(self._parts)}, got {sorted(state_dict)}")
        for name, part in self._parts.items():
            part.load_state_dict(state_dict[name])
        self.param_groups = self._groups()  # loading replaces them


OPTIMIZERS: Mapping[str, Callable[..., Optimizer]] = {
    "adagrad": adagrad,
    "adam": fused_adam,
    "proximal-sgd": ProximalSGD,
    "sgd": sgd,
}
"""Optimisers by the names that experiments give them."""

EMBEDDING_OPTIMIZERS: Mapping[str, Callable[..., Optimizer]] = {
    "adagrad": sparse_adagrad,
    "rowwise-adagrad": rowwise_adagrad,
    "sgd": sparse_sgd,
    "sparse-adam": sparse_adam,
}
"""Those of tables with sparse gradients. Neither momentum nor weight decay: both would move every row at every step."""

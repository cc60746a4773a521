"""What a party's attacks are shown of a step: what an exchange says that it received, and what it holds itself."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from torch import Tensor, nn

from splitvfl.errors import ArgumentError
from splitvfl.hooks import View, ViewField
from splitvfl.learning.precision import widened, without_autocast
from splitvfl.learning.sampled import sampled_layers


@dataclass(frozen=True, slots=True)
class ViewSource:
    """The source of the views of a party's own attacks: what it holds, besides what it receives.

    Attributes:
        bottom: Its bottom model, of which attacks get copies of the weights.
        columns: Its columns of the batch.
        activation: What its bottom model put out, before its defenses.
        kept_weights: The weights that put it out; ``None``: those that the bottom model still has.
    """

    bottom: nn.Module | None = None
    columns: Any = None
    activation: Tensor | None = None
    kept_weights: Mapping[str, Tensor] | None = None

    def kept(self, *, weights: bool) -> ViewSource:
        """Return it for views that are made after later steps.

        Args:
            weights: Whether an attack reads the weights: they are copied then, as they are now.
        """
        return replace(self, kept_weights=self.weights()) if weights else self

    def weights(self) -> dict[str, Tensor]:
        """Return copies of the bottom's weights: an attack that reads them later gets those of this step."""
        if self.kept_weights is not None:
            return {name: weight.clone() for name, weight in self.kept_weights.items()}
        assert self.bottom is not None
        return {name: weight.detach().clone() for name, weight in self.bottom.named_parameters()}


@dataclass(frozen=True, slots=True)
class Shown:
    """Which fields the views of a party have, and how such a view is made.

    A party's own columns, activations and weights are always among them. Labels never are.

    Attributes:
        received: The fields that hold what the party receives in a step.
        kind: The class of the views. What no :class:`~splitvfl.hooks.View` has yet, one derived from it does, with a
            :class:`~splitvfl.hooks.ViewField` of that name.

    Raises:
        ArgumentError: If views of this class have no such field, or it is to be labels.
    """

    received: frozenset[str] = frozenset()
    kind: type[View] = View

    def __post_init__(self) -> None:
        """Check that there are such fields."""
        unknown = [name for name in self.received if not isinstance(getattr(self.kind, name, None), ViewField)]
        if unknown or "labels" in self.received:
            raise ArgumentError(
                f"expected fields of {self.kind.__name__} other than labels, got {', '.join(sorted(self.received))}; "
                "a field of one's own is a ViewField of a class derived from View"
            )

    def fields(self, *, linear: bool) -> frozenset[str]:
        """Return the view fields of a party.

        Args:
            linear: Whether its bottom is one linear layer, on numeric columns.
        """
        # Who has every record's gradient has their sum.
        summed = {"aggregated_gradient"} if linear and "gradient" in self.received else set()
        return self.received | {"columns", "activation", "weights"} | summed

    def view(
        self,
        needs: frozenset[str],
        source: ViewSource,
        received: Mapping[str, Tensor],
        *,
        party: str,
        step: int,
        ids: Tensor,
    ) -> View:
        """Return the view of one message, with nothing that the attack does not need.

        Args:
            needs: The view fields that the attack reads.
            source: What the party holds.
            received: What it received, by view field; at least one.
            party: Name of the party.
            step: Number of the step.
            ids: Record ids of the batch.

        Raises:
            ArgumentError: If it received what is not among the fields.
        """
        if not self.received.issuperset(received):
            unnamed = ", ".join(sorted(received.keys() - self.received))
            raise ArgumentError(f"{party} received {unnamed}, and its side of the exchange does not say so (`shown`)")
        sources: dict[str, Callable[[], Any]] = {
            "columns": lambda: _detached(source.columns),
            "activation": lambda: widened(_detached(source.activation)),
            "logits": lambda: widened(_detached(source.activation)),
            "weights": source.weights,
            "aggregated_gradient": lambda: (
                _detached(source.columns).T @ received["gradient"].detach().to(source.columns.dtype)
            ),
            **{name: partial(widened, tensor.detach()) for name, tensor in received.items()},
        }
        with without_autocast(next(iter(received.values())).device):
            return self.kind(party=party, step=step, ids=ids, **{name: sources[name]() for name in needs})


GRADIENTS = Shown(frozenset({"gradient"}))
"""A gradient for each record."""

SUMS = Shown(frozenset({"aggregated_gradient"}))
"""The gradient of a linear bottom's weight alone."""


def is_linear(module: nn.Module) -> bool:
    """Return whether a module is one linear layer, so that it receives only columnsᵀ · gradient."""
    leaves = [layer for layer in module.modules() if not any(layer.children())]
    return len(leaves) == 1 and isinstance(leaves[0], nn.Linear) and not sampled_layers(module)


def _detached(columns: Any) -> Any:
    if isinstance(columns, Tensor):
        return columns.detach()
    return type(columns)(*(part.detach() for part in columns))

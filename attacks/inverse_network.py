"""A partner's columns from its activations, by small networks on a few records whose columns are known."""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Final

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.optim import AdamW

from splitvfl.attacks.known_share import KnownShare, checked_share
from splitvfl.errors import ArgumentError
from splitvfl.hooks import Auxiliary, Seat, Target, View
from splitvfl.leakage.ridge import Ridge, fit_ridge

_MOST_REMEMBERED: Final = 10_000
# Each network leaves out one part of the known records, by which it is judged.
_PARTS: Final = 6
_HIDDEN: Final = 64
_LR: Final = 3e-3
# Activations beyond so many standard deviations count as that many: no map was fitted there.
_FARTHEST: Final = 10.0
# Of what was found at one message, at the next.
_KEPT: Final = 0.9


class InverseNetworkAttack:
    """Estimate a partner's columns from what it sends, by networks that turn its bottom model round.

    Assumes what ``ridge`` assumes: the columns of a few records, and what was received of these. Ridge regression on
    the known records comes first, and six small networks of one hidden layer learn what it leaves. Each goes on from
    where it stood at the message before, by a few steps of gradient descent on all known records that are remembered
    but a sixth of its own. What a network says of that sixth, over this and earlier messages, is how much of it is
    believed: each column has a share, between 0 and 1, by which the networks' mean is added to the regression, and one
    by which both together depart from the mean of the known records.

    It finds more than ``ridge`` where the bottom model bends, and where columns have long tails, as no activation
    counts as farther than ten standard deviations. Where the bottom model is linear and as wide as its columns,
    ``ridge`` finds as much in a fifth of the time.

    Promises nothing of records that it was not judged by: those shares are chosen by known records, and where these
    are few, an estimate may be a little worse than a mean.

    Takes 0.05 to 0.15 s of a core for a thousand records of messages of 64 to 256, up to 64 wide.

    In a file: ``attacks: [{name: inverse-network, known_share: 0.05}]``

    Source: an inverse of the model's first half, trained on known inputs, He, Zhang and Lee, ACSAC 2019
    (doi:10.1145/3359789.3359824). Networks on what a regression leaves, and believing them by records that each has
    left out, are ours here.

    Args:
        known_share: Share of the training records whose columns the attacker is assumed to know, above 0 and below 1.
        memory: Of how many of these it remembers what it received last, at most; 0: of none.
        steps: Steps of gradient descent at each message, at least 1.
        seed: Of the networks' first weights.

    Raises:
        ArgumentError: If a setting is out of range.
    """

    name: ClassVar[str] = "inverse-network"
    seat: ClassVar[Seat] = "active"
    target: ClassVar[Target] = "features"
    joint: ClassVar[bool] = True
    needs: ClassVar[frozenset[str]] = frozenset({"received_activation", "auxiliary"})

    def __init__(
        self,
        *,
        known_share: KnownShare = 0.05,
        memory: Annotated[int, Field(ge=0, le=_MOST_REMEMBERED)] = 512,
        steps: Annotated[int, Field(ge=1, le=1_000)] = 10,
        seed: int = 0,
    ) -> None:
        if not 0 <= memory <= _MOST_REMEMBERED:
            raise ArgumentError(f"memory must be 0 to {_MOST_REMEMBERED:,} records, got {memory}")
        if not 1 <= steps <= 1_000:
            raise ArgumentError(f"steps must be 1 to 1,000, got {steps}")
        self.known_share = checked_share(known_share)
        self._memory, self._steps, self._seed = memory, steps, seed
        self._latest: Auxiliary | None = None
        self._networks: _Networks | None = None
        self._optimizer: AdamW | None = None
        self._of_networks, self._of_both = _Believed(), _Believed()

    def __call__(self, view: View, /) -> Tensor:
        """Return the estimate.

        Args:
            view: Its ``received_activation`` and ``auxiliary`` are read.

        Returns:
            ``(n, d)``, float64, in the columns' own units.

        Raises:
            ArgumentError: If fewer than two records are known.
        """
        known = self._with(view.auxiliary)
        activation, columns = _Units.of(known.activation, farthest=_FARTHEST), _Units.of(known.columns)
        inputs, targets = activation.to(known.activation), columns.to(known.columns)
        asked = activation.to(view.received_activation)
        first = fit_ridge(inputs, targets)
        left = _left_of(known.ids)
        networks = self._trained(inputs, first, left)
        said = networks(inputs)[left, torch.arange(len(left), device=left.device)].double()
        share = self._of_networks.share(said, first.left_out)
        whole = self._of_both.share(targets.double() - first.left_out + share * said, targets.double())
        found = first.estimate(asked) + share * networks(asked).mean(dim=0).double()
        self._latest = Auxiliary(*(part[: self._memory] for part in known))
        return columns.back(whole * found)

    def _with(self, known: Auxiliary) -> Auxiliary:
        """Return these records, and behind them others of which it remembers what it received last."""
        if self._latest is None:
            return known
        others = ~torch.isin(self._latest.ids.to(known.ids), known.ids)
        return Auxiliary(*(torch.cat([new, old.to(new)[others]]) for new, old in zip(known, self._latest, strict=True)))

    def _trained(self, inputs: Tensor, first: Ridge, left: Tensor) -> _Networks:
        """Return the networks after a few steps on what the regression leaves, each without its own part."""
        targets = first.left_out.float()
        networks, optimizer = self._made(inputs.shape[1], targets.shape[1], inputs.device)
        used = (left != torch.arange(_PARTS, device=left.device)[:, None]).float()
        used = used / used.sum(dim=1, keepdim=True).clamp_min(1.0)
        with torch.enable_grad():
            for _ in range(self._steps):
                optimizer.zero_grad()
                off = (networks(inputs) - targets).square().mean(dim=2)
                (off * used).sum().backward()
                optimizer.step()
        return networks

    def _made(self, inputs: int, outputs: int, device: torch.device) -> tuple[_Networks, AdamW]:
        if self._networks is None or self._optimizer is None:
            self._networks = _Networks(inputs, outputs, self._seed).to(device)
            self._optimizer = AdamW(self._networks.parameters(), lr=_LR, betas=(0.9, 0.99))
        return self._networks, self._optimizer

    def state_dict(self) -> dict[str, Any]:
        """Return what it remembers, and how far its networks are."""
        return {
            "latest": None if self._latest is None else list(self._latest),
            # These go on changing in place.
            "networks": None if self._networks is None else copy.deepcopy(self._networks.state_dict()),
            "optimizer": None if self._optimizer is None else copy.deepcopy(self._optimizer.state_dict()),
            "believed": [self._of_networks.sums, self._of_both.sums],
        }

    def load_state_dict(self, state: Mapping[str, Any], /) -> None:
        """Take back what :meth:`state_dict` returned."""
        self._latest = None if state["latest"] is None else Auxiliary(*state["latest"])
        self._networks = self._optimizer = None
        if state["networks"] is not None:
            first, last = state["networks"]["first"], state["networks"]["last"]
            networks, optimizer = self._made(first.shape[1], last.shape[2], first.device)
            networks.load_state_dict(state["networks"])
            optimizer.load_state_dict(copy.deepcopy(state["optimizer"]))
        self._of_networks.sums, self._of_both.sums = state["believed"]


class _Units:
    """Numbers in units of some records' means and standard deviations."""

    def __init__(self, middle: Tensor, spread: Tensor, farthest: float) -> None:
        self._middle, self._spread, self._farthest = middle, spread, farthest

    @classmethod
    def of(cls, values: Tensor, *, farthest: float = math.inf) -> _Units:
        """Return the units of records ``(m, d)``; numbers beyond the farthest count as that far."""
        values = values.double()
        spread = values.std(dim=0, correction=0)
        return cls(values.mean(dim=0), torch.where(spread > 0, spread, 1.0), farthest)

    def to(self, values: Tensor) -> Tensor:
        """Return numbers in these units, float32."""
        return ((values.double() - self._middle) / self._spread).clamp(-self._farthest, self._farthest).float()

    def back(self, values: Tensor) -> Tensor:
        """Return numbers in their own units, float64."""
        return values * self._spread + self._middle


class _Networks(nn.Module):
    """Several networks of one hidden layer side by side, which say nothing at first.

    Args:
        inputs: Width of the input.
        outputs: Width of the output.
        seed: Of the first weights.
    """

    def __init__(self, inputs: int, outputs: int, seed: int) -> None:
        super().__init__()
        random = torch.Generator().manual_seed(seed)
        self.first = nn.Parameter(torch.randn(_PARTS, inputs, _HIDDEN, generator=random) / math.sqrt(max(inputs, 1)))
        self.bend = nn.Parameter(0.5 * torch.randn(_PARTS, 1, _HIDDEN, generator=random))
        self.last = nn.Parameter(torch.zeros(_PARTS, _HIDDEN, outputs))
        self.bias = nn.Parameter(torch.zeros(_PARTS, 1, outputs))

    def forward(self, inputs: Tensor) -> Tensor:
        """Return what each says of each record, ``(networks, n, outputs)``."""
        return torch.relu(inputs @ self.first + self.bend) @ self.last + self.bias


class _Believed:
    """By which share of what is said of each column the truth is met best, from 0 to 1, earlier messages counting less.

    Attributes:
        sums: Of products with the truth, and of squares, ``(2, d)``; ``None`` before the first message.
    """

    def __init__(self) -> None:
        self.sums: Tensor | None = None

    def share(self, said: Tensor, truth: Tensor) -> Tensor:
        """Return the share, ``(d,)``, with records ``(m, d)`` counted in."""
        new = torch.stack([(said * truth).mean(dim=0), said.square().mean(dim=0)])
        self.sums = new if self.sums is None else _KEPT * self.sums.to(new) + new
        products, squares = self.sums
        return torch.where(squares > 0, products / squares.clamp_min(torch.finfo(squares.dtype).tiny), 0.0).clamp(0, 1)


def _left_of(ids: Tensor) -> Tensor:
    """Return which network leaves out each record, ``(m,)``: the same at every message, whatever order ids have."""
    # A multiplicative hash: 2^64 over the golden ratio, as a signed number; its upper bits are mixed best.
    return ((ids * -7046029254386353131) >> 33).remainder(_PARTS)

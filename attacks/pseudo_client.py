"""A partner's columns from its activations, by a pseudo-client that is trained to send what looks like them."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Mapping
from itertools import pairwise
from typing import Annotated, Any, ClassVar, Final, Literal

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional
from torch.optim import Adam

from splitvfl.attacks.known_share import KnownShare, checked_share
from splitvfl.errors import ArgumentError
from splitvfl.hooks import Seat, Target, View
from splitvfl.leakage.ridge import fit_ridge

_MOST_REMEMBERED: Final = 10_000
# Pseudo-clients side by side: which of several maps with much the same distribution one of them finds is chance.
_CLIENTS: Final = 8
_LR: Final = 1e-2
_BETAS: Final = (0.5, 0.99)
_OF_CRITIC: Final = 32
# Rows that an adversary compares in a step, of either kind.
_COMPARED: Final = 64
# Squared widths of the kernels, in units of the activations' variance in sum, and random frequencies for each.
_KERNELS: Final = (0.25, 0.5, 1.0, 2.0, 4.0)
_FREQUENCIES: Final = 16
# Numbers beyond so many standard deviations count as that many.
_FARTHEST: Final = 10.0
# Of what clients were off by at one message, at the next.
_KEPT: Final = 0.7


class PseudoClientAttack:
    """Estimate a partner's numeric columns from what it sends, by a model of its own that sends what looks alike.

    Assumes less than ``ridge``: public rows of the same columns, of which it need not know what was sent. They are the
    columns of the known records, and the activations of these are not read. Eight pseudo-clients, bottom models of the
    attacker's own, are trained a few steps at each message, so that what they make of public rows is distributed as
    what was received: by its mean, its covariance and multi-kernel MMD (``moments``), or so that an adversary cannot
    tell the two apart (``adversary``). Ridge regression from the pseudo-activations of public rows to their columns,
    for that client whose moments were off least so far, reads what was received.

    Distributions alone do not say which map it was: where columns are normal every rotation of them fits as well, and
    where two are distributed alike so does their exchange. Two columns that differ in distribution it finds behind one
    layer of two outputs, .97 or more of the variance with five seeds of six, and of real tables behind two layers 0 to
    .40 (fifteen runs): most behind eight outputs, next to nothing behind 32 and 64. It never found more than ``ridge``
    there. The adversary is the weaker one there, 0 to .18, and finds the two columns with four seeds of six.

    With ``top_weight`` clients learn by labels too: the label party owns the top model, and the labels of public rows.
    That tells apart what distributions do not, as far as labels depend on it: of digits, ten classes behind 64 outputs,
    it reads .22 in place of .01, of breast cancer .20 in place of .09, and elsewhere about as much as without.

    Promises nothing: it has no record to judge itself by, and a wrong estimate may lie farther off than the mean.

    Takes 0.2 to 0.6 s of a core for a thousand records of messages of 64 to 128, up to 64 wide, and 0.3 to
    0.9 s with ``top_weight``.

    In a file: ``attacks: [{name: pseudo-client, known_share: 0.05}]``

    Also called: SDAR, FORA, SDAR/FORA.

    Source: the pseudo-client and its adversary, Zhu et al., *Passive Inference Attacks on Split Learning via
    Adversarial Regularization*, NDSS 2025 (arXiv:2310.10483), where the top model and labels are always used; MMD in
    place of the adversary, Xu et al., *A Stealthy Wrecking Ball*, CVPR 2024. Several clients, the choice among them and
    the regression in place of a decoder network are ours here.

    Args:
        known_share: Share of the training records whose columns are the public rows, above 0 and below 1.
        loss: ``"moments"`` or ``"adversary"``.
        hidden: Width of a hidden layer of the pseudo-clients; 0: they have one layer. Behind it stands a ReLU where
            nothing negative was received.
        memory: How many public rows, and how many rows that were received, it remembers at most, at least 2.
        steps: Steps of gradient descent at each message, at least 1.
        top_weight: What the label party's loss counts beside that, when its own top model is given what clients make of
            the message's public rows, of which it has columns and labels of its own; 0: it is not asked. Where there
            are several partners, and at a passive party of a networked run, nobody can show an attack that loss.
        seed: Of the clients' first weights, and of what is drawn.

    Raises:
        ArgumentError: If a setting is out of range.
    """

    name: ClassVar[str] = "pseudo-client"
    seat: ClassVar[Seat] = "active"
    target: ClassVar[Target] = "features"
    needs: frozenset[str] = frozenset({"received_activation", "auxiliary"})

    def __init__(
        self,
        *,
        known_share: KnownShare = 0.05,
        loss: Literal["moments", "adversary"] = "moments",
        hidden: Annotated[int, Field(ge=0, le=1_024)] = 0,
        memory: Annotated[int, Field(ge=2, le=_MOST_REMEMBERED)] = 512,
        steps: Annotated[int, Field(ge=1, le=1_000)] = 10,
        top_weight: Annotated[float, Field(ge=0.0, le=1_000.0)] = 0.0,
        seed: int = 0,
    ) -> None:
        if loss not in ("moments", "adversary"):
            raise ArgumentError(f"loss must be 'moments' or 'adversary', got {loss!r}")
        if not 0 <= hidden <= 1_024:
            raise ArgumentError(f"hidden must be 0 to 1,024, got {hidden}")
        if not 2 <= memory <= _MOST_REMEMBERED:
            raise ArgumentError(f"memory must be 2 to {_MOST_REMEMBERED:,} rows, got {memory}")
        if not 1 <= steps <= 1_000:
            raise ArgumentError(f"steps must be 1 to 1,000, got {steps}")
        if not 0.0 <= top_weight <= 1_000.0:
            raise ArgumentError(f"top_weight must be 0 to 1,000, got {top_weight}")
        if top_weight:
            self.needs = frozenset({"received_activation", "auxiliary", "top"})
        self.known_share = checked_share(known_share)
        self._loss, self._hidden, self._memory, self._steps, self._seed = loss, hidden, memory, steps, seed
        self._top_weight = top_weight
        self._public: Tensor | None = None
        self._ids: Tensor | None = None
        self._received: Tensor | None = None
        self._game: _Game | None = None
        self._off: Tensor | None = None
        self._random = torch.Generator().manual_seed(seed)

    def __call__(self, view: View, /) -> Tensor:
        """Return the estimate.

        Args:
            view: Its ``received_activation`` is read, of ``auxiliary`` columns and ids, and ``top`` where that counts.

        Returns:
            ``(n, d)``, float64, in the columns' own units.

        Raises:
            ArgumentError: If fewer than two public rows are known.
        """
        rows, received = self._with(view)
        middle, spread = rows.mean(dim=0), _not_zero(rows.std(dim=0, correction=0))
        public = ((rows - middle) / spread).clamp(-_FARTHEST, _FARTHEST).float()
        # Of all outputs together: one that is sent in small numbers tells little.
        unit = _not_zero(received.var(dim=0, correction=0).sum().sqrt())
        sent = (received / unit).float()
        game = self._made(public.shape[1], sent.shape[1], sent.device)
        task = self._task(view, unit) if self._top_weight else None
        with torch.enable_grad():
            for _ in range(self._steps):
                game.step(public, sent, self._random, task)
        client = self._best(game, public, sent)
        read = fit_ridge(client, public).estimate(view.received_activation.double() / unit)
        return middle + spread * read.clamp(-_FARTHEST, _FARTHEST)

    def _with(self, view: View) -> tuple[Tensor, Tensor]:
        """Return all public rows and received ones that are remembered, with those of this message."""
        told = view.auxiliary
        rows, ids, received = told.columns.double(), told.ids, view.received_activation.double()
        if self._public is not None and self._ids is not None and self._received is not None:
            others = ~torch.isin(self._ids.to(ids), ids)
            rows = torch.cat([rows, self._public.to(rows)[others]])
            ids = torch.cat([ids, self._ids.to(ids)[others]])
            received = torch.cat([received, self._received.to(received)])
        self._public, self._ids, self._received = (part[: self._memory] for part in (rows, ids, received))
        if len(self._public) < 2:
            raise ArgumentError(f"expected at least 2 public rows, got {len(self._public)}")
        return self._public, self._received

    def _task(self, view: View, unit: Tensor) -> Callable[[Tensor], Tensor]:
        """Return what says which loss the top model has of each client, by what they make of all public rows."""
        top, told = view.top, len(view.auxiliary.ids)

        def losses(made: Tensor) -> Tensor:
            # Those of this message come first.
            return self._top_weight * torch.stack([top(client[:told] * unit.to(client)) for client in made])

        return losses

    def _made(self, columns: int, width: int, device: torch.device) -> _Game:
        if self._game is None:
            self._game = _Game(columns, width, self._hidden, adversary=self._loss == "adversary", seed=self._seed)
            self._game.to(device)
        return self._game

    def _best(self, game: _Game, public: Tensor, sent: Tensor) -> Tensor:
        """Return the pseudo-activations of the client whose moments were off least so far, ``(m, width)``."""
        made = game.send(public, sent)
        off = moments_apart(made, sent, torch.Generator().manual_seed(self._seed)).double()
        self._off = off if self._off is None else _KEPT * self._off.to(off) + off
        return made[self._off.argmin()]

    def state_dict(self) -> dict[str, Any]:
        """Return what it remembers, and how far its clients are."""
        return {
            "rows": [self._public, self._ids, self._received],
            "off": self._off,
            "random": self._random.get_state(),
            # These go on changing in place.
            "game": None if self._game is None else copy.deepcopy(self._game.whole_state()),
        }

    def load_state_dict(self, state: Mapping[str, Any], /) -> None:
        """Take back what :meth:`state_dict` returned."""
        self._public, self._ids, self._received = state["rows"]
        self._off, self._game = state["off"], None
        self._random.set_state(state["random"])
        if state["game"] is not None:
            assert self._public is not None, "what is trained was trained on rows"
            assert self._received is not None, "likewise"
            game = self._made(self._public.shape[1], self._received.shape[1], self._received.device)
            game.take_whole_state(copy.deepcopy(state["game"]))


def moments_apart(made: Tensor, given: Tensor, random: torch.Generator) -> Tensor:
    """Return how far apart distributions are: mean, covariance, and kernels of several widths by random frequencies.

    The squared MMD of a sum of Gaussian kernels ``exp(−|a − b|² / 2s)``, of which random frequencies with variance
    ``1 / s`` are an unbiased sample. Source: Gretton et al., NeurIPS 2012; Rahimi and Recht, NeurIPS 2007.

    Args:
        made: ``(clients, m, width)``.
        given: ``(n, width)``.
        random: Draws frequencies, on the CPU.

    Returns:
        One number for each client, ``(clients,)``, at least 0.
    """
    middles = (made.mean(dim=1) - given.mean(dim=0)).square().sum(dim=1)
    spreads = (_covariance(made) - _covariance(given)).square().sum(dim=(1, 2))
    scale = torch.tensor(_KERNELS).rsqrt().repeat_interleave(_FREQUENCIES)
    drawn = (torch.randn(given.shape[1], len(scale), generator=random) * scale).to(made)
    waves = (_mean_waves(made @ drawn) - _mean_waves(given @ drawn)).square().sum(dim=-1)
    return middles + spreads + waves / _FREQUENCIES


def _covariance(rows: Tensor) -> Tensor:
    off = rows - rows.mean(dim=-2, keepdim=True)
    return off.mT @ off / rows.shape[-2]


def _mean_waves(phases: Tensor) -> Tensor:
    return torch.cat([phases.cos().mean(dim=-2), phases.sin().mean(dim=-2)], dim=-1)


def _not_zero(spread: Tensor) -> Tensor:
    return torch.where(spread > 0, spread, 1.0)


class _Game(nn.Module):
    """Pseudo-clients side by side, each with an adversary of its own where there are any.

    Args:
        columns: Number of columns.
        width: Of activations.
        hidden: Width of the clients' hidden layer; 0: none.
        adversary: Whether adversaries compare, in place of moments.
        seed: Of the first weights.
    """

    def __init__(self, columns: int, width: int, hidden: int, *, adversary: bool, seed: int) -> None:
        super().__init__()
        random = torch.Generator().manual_seed(seed)
        self.clients = _layers((columns, hidden, width) if hidden else (columns, width), random)
        self.critics = _layers((width, _OF_CRITIC, 1), random) if adversary else None
        self._width = width
        self._optimizers = [_adam(part) for part in (self.clients, self.critics) if part is not None]

    def send(self, public: Tensor, given: Tensor) -> Tensor:
        """Return what each client makes of public rows, ``(clients, m, width)``: never negative where nothing was."""
        sent = _run(self.clients, public) / math.sqrt(self._width)
        return functional.relu(sent) if bool((given >= 0).all()) else sent

    def step(
        self, public: Tensor, given: Tensor, random: torch.Generator, task: Callable[[Tensor], Tensor] | None = None
    ) -> None:
        """Bring what clients send nearer to what was received, by one step, and nearer to labels where a task is."""
        tasked = 0.0 if task is None else task(self.send(public, given))
        if self.critics is None:
            _go_down(self._optimizers[0], moments_apart(self.send(public, given), given, random) + tasked)
            return
        public, some = _some(public, random), _some(given, random)
        sent = self.send(public, given)
        _go_down(self._optimizers[0], functional.softplus(-self._judge(sent)).mean(dim=1) + tasked)
        taken_in = functional.softplus(self._judge(sent.detach())).mean(dim=1)
        _go_down(self._optimizers[1], taken_in + functional.softplus(-self._judge(some)).mean(dim=1))

    def _judge(self, rows: Tensor) -> Tensor:
        """Return how much rows look like received ones to each client's adversary, ``(clients, m)``."""
        assert self.critics is not None, "asked where there are adversaries"
        return _run(self.critics, math.sqrt(self._width) * rows)[..., 0]

    def whole_state(self) -> dict[str, Any]:
        """Return weights, and what optimisers keep."""
        return {"weights": self.state_dict(), "optimizers": [one.state_dict() for one in self._optimizers]}

    def take_whole_state(self, state: Mapping[str, Any]) -> None:
        """Take back what :meth:`whole_state` returned."""
        self.load_state_dict(state["weights"])
        for one, kept in zip(self._optimizers, state["optimizers"], strict=True):
            one.load_state_dict(kept)


def _layers(widths: tuple[int, ...], random: torch.Generator) -> nn.ParameterList:
    """Return weights and intercepts of so many networks side by side as there are clients."""
    made: list[Tensor] = []
    for inputs, outputs in pairwise(widths):
        made.append(torch.randn(_CLIENTS, inputs, outputs, generator=random) / math.sqrt(inputs))
        made.append(torch.zeros(_CLIENTS, 1, outputs))
    return nn.ParameterList(nn.Parameter(one) for one in made)


def _run(layers: nn.ParameterList, rows: Tensor) -> Tensor:
    for place in range(0, len(layers), 2):
        rows = rows if place == 0 else functional.leaky_relu(rows, 0.2)
        rows = rows @ layers[place] + layers[place + 1]
    return rows


def _adam(part: nn.Module) -> Adam:
    return Adam(part.parameters(), lr=_LR, betas=_BETAS)


def _go_down(optimizer: Adam, off: Tensor) -> None:
    optimizer.zero_grad()
    off.sum().backward()
    optimizer.step()


def _some(rows: Tensor, random: torch.Generator) -> Tensor:
    """Return so many rows as are compared in a step, drawn without replacement."""
    return rows[torch.randperm(len(rows), generator=random)[:_COMPARED].to(rows.device)]

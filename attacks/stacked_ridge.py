"""A partner's columns from what it sent of the same records in several epochs, by ridge regression."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated, Any, ClassVar, Final, NamedTuple

import torch
from pydantic import Field
from torch import Tensor

from splitvfl.attacks.known_share import KnownShare, checked_share
from splitvfl.errors import ArgumentError
from splitvfl.hooks import Seat, Target, View
from splitvfl.leakage.ridge import Ridge, fit_ridge

_MOST_REMEMBERED: Final = 1_000_000
_MOST_KNOWN: Final = 512
_MOST_EPOCHS: Final = 10
_FEWEST: Final = 3  # known records that were met often enough: of two, each left out leaves a constant
# Of what was off at one message, at the next.
_KEPT: Final = 0.9


class StackedRidgeAttack:
    """Estimate a partner's columns from what it sent of a record in several epochs, by ridge regression.

    Assumes what ``ridge`` assumes, and that records come back under their ids. A bottom model that has moved in between
    sends another mixture of the same columns: where the cut is narrower than the columns are many, two mixtures tell
    more than one. The latest activations of a record stand side by side, of one, of two epochs and so on, and to each
    number of epochs the known records that were met so often are regressed on theirs: those of the message alone, and
    those that are remembered besides. For each column that map is taken which was off least at known records of this
    and earlier messages, each left out in turn, among those for which a record was met often enough. What is met for
    the first time is read as by ``ridge``.

    It finds more than ``ridge`` where the cut is narrow, the model moves much, and enough records are known to fit maps
    of so many inputs. It finds somewhat less where few are known, as it chooses among more maps.

    Promises nothing of other records than those that maps are chosen by. What records sent at different steps of an
    epoch were sent by different models: that is not made up for.

    Takes 0.05 to 0.2 s of a core for a thousand records of messages of 64, up to 16 wide, with four epochs.

    In a file: ``attacks: [{name: stacked-ridge, known_share: 0.05, epochs: 4}]``

    Source: a linear regression on activations of several epochs, arXiv:2210.06771. The regression is that of ``ridge``.

    Args:
        known_share: Share of the training records whose columns the attacker is assumed to know, above 0 and below 1.
        epochs: Of how many meetings with a record its activations stand side by side, at most.
        memory: Of how many records that it does not know it remembers what it received, at most, the first that it
            meets; the numbers are ``memory · epochs · width``. Of those that it knows it remembers 512.

    Raises:
        ArgumentError: If a setting is out of range.
    """

    name: ClassVar[str] = "stacked-ridge"
    seat: ClassVar[Seat] = "active"
    target: ClassVar[Target] = "features"
    joint: ClassVar[bool] = True
    needs: ClassVar[frozenset[str]] = frozenset({"received_activation", "auxiliary"})

    def __init__(
        self,
        *,
        known_share: KnownShare = 0.05,
        epochs: Annotated[int, Field(ge=1, le=_MOST_EPOCHS)] = 4,
        memory: Annotated[int, Field(ge=0, le=_MOST_REMEMBERED)] = 20_000,
    ) -> None:
        if not 1 <= epochs <= _MOST_EPOCHS:
            raise ArgumentError(f"epochs must be 1 to {_MOST_EPOCHS}, got {epochs}")
        if not 0 <= memory <= _MOST_REMEMBERED:
            raise ArgumentError(f"memory must be 0 to {_MOST_REMEMBERED:,} records, got {memory}")
        self.known_share = checked_share(known_share)
        self._epochs = epochs
        self._known, self._others = _Meetings(epochs, _MOST_KNOWN), _Meetings(epochs, memory)
        # What each map was off by, by column, and at how many records: of earlier messages less and less.
        self._off: Tensor | None = None
        self._counted = torch.zeros(2 * epochs, dtype=torch.float64)

    def __call__(self, view: View, /) -> Tensor:
        """Return the estimate.

        Args:
            view: Its ``ids``, ``received_activation`` and ``auxiliary`` are read.

        Returns:
            ``(n, d)``, float64, in the columns' own units.

        Raises:
            ArgumentError: If fewer than two records are known.
        """
        told = view.auxiliary
        known = self._known.meet(told.ids, told.activation, told.columns)
        others = self._others.meet(view.ids, view.received_activation, told.columns.new_zeros(len(view.ids), 0))
        off = self._off = self._faded(told.columns)
        estimate = off.new_zeros(len(view.ids), off.shape[1])
        least = torch.full_like(estimate, torch.inf)
        for place, depth, found, left_out in self._maps(known, self._known.besides(told.ids)):
            off[place] += left_out.square().sum(dim=0)
            self._counted[place] += len(left_out)
            if not self._counted[place]:
                continue
            error = off[place] / self._counted[place]
            better = (error < least) & (others.times >= depth)[:, None]
            estimate = torch.where(better, found.estimate(others.beside(depth)), estimate)
            least = torch.where(better, error, least)
        return estimate

    def _faded(self, like: Tensor) -> Tensor:
        self._counted = _KEPT * self._counted
        if self._off is None:
            return like.new_zeros(2 * self._epochs, like.shape[1], dtype=torch.float64)
        return _KEPT * self._off.to(like.device)

    def _maps(self, known: _Met, remembered: _Met) -> Iterator[tuple[int, int, Ridge, Tensor]]:
        """Yield the number, the depth and the map of each that can be fitted, and its errors at the message's own.

        Args:
            known: The message's known records.
            remembered: Other known records.
        """
        for depth in range(1, self._epochs + 1):
            own, more = known.met(depth), remembered.met(depth)
            both = _Met(*(torch.cat(parts) for parts in zip(own, more, strict=True)))
            for place, some in enumerate((own, both), start=2 * (depth - 1)):
                # What is met for the first time needs a map, whatever it is.
                if place == 0 or len(some.times) >= _FEWEST:
                    found = fit_ridge(some.beside(depth), some.columns)
                    yield place, depth, found, found.left_out[: len(own.times)]

    def state_dict(self) -> dict[str, Any]:
        """Return what it remembers."""
        return {
            "known": self._known.state_dict(),
            "others": self._others.state_dict(),
            "off": self._off,
            "counted": self._counted,
        }

    def load_state_dict(self, state: Mapping[str, Any], /) -> None:
        """Take back what :meth:`state_dict` returned."""
        self._known.load_state_dict(state["known"])
        self._others.load_state_dict(state["others"])
        self._off = None if state["off"] is None else state["off"].clone()
        self._counted = state["counted"].clone()


class _Met(NamedTuple):
    """Records with what was received of them.

    Attributes:
        stacks: ``(n, epochs, width)``, the latest first; zeros where there is no more.
        times: How often each was met, ``epochs`` at most, ``(n,)``.
        columns: Their columns, ``(n, d)``; of records that are not known ``(n, 0)``.
    """

    stacks: Tensor
    times: Tensor
    columns: Tensor

    def met(self, depth: int) -> _Met:
        """Return those that were met so often."""
        often = self.times >= depth
        return _Met(*(part[often] for part in self))

    def beside(self, depth: int) -> Tensor:
        """Return the latest activations of each side by side, ``(n, depth · width)``."""
        return self.stacks[:, :depth].flatten(1)


class _Meetings:
    """What was received of records at their latest meetings.

    Args:
        epochs: Meetings that are kept of each.
        most: Records that are kept, the first that come.
    """

    def __init__(self, epochs: int, most: int) -> None:
        self._epochs, self._most = epochs, most
        self._places: dict[int, int] = {}
        self._kept: _Met | None = None

    def meet(self, ids: Tensor, activation: Tensor, columns: Tensor) -> _Met:
        """Take in what was received of some records, ``(n, width)``, and return them with what was before."""
        numbers = ids.tolist()
        for number in numbers:
            if len(self._places) < self._most:
                self._places.setdefault(number, len(self._places))
        places = torch.tensor([self._places.get(number, -1) for number in numbers], device=activation.device)
        held = places >= 0
        stacks = activation.new_zeros(len(ids), self._epochs, activation.shape[1])
        times = torch.zeros(len(ids), dtype=torch.int64, device=activation.device)
        kept = self._with_room(stacks, times, columns)
        stacks[held, 1:] = kept.stacks[places[held], :-1]
        times[held] = kept.times[places[held]]
        stacks[:, 0] = activation
        times = (times + 1).clamp_max(self._epochs)
        met = _Met(stacks, times, columns)
        for whole, part in zip(kept, met, strict=True):
            whole[places[held]] = part[held]
        return met

    def besides(self, ids: Tensor) -> _Met:
        """Return all that are kept but those with these ids."""
        assert self._kept is not None, "somebody was met before"
        here = set(ids.tolist())
        others = [place for number, place in self._places.items() if number not in here]
        rows = torch.tensor(others, dtype=torch.int64, device=self._kept.times.device)
        return _Met(*(part[rows] for part in self._kept))

    def _with_room(self, *like: Tensor) -> _Met:
        """Return what is kept, with room for all that have places: twice as much as was there, once it is full."""
        count = len(self._places)
        held = 0 if self._kept is None else len(self._kept.times)
        if self._kept is None or held < count:
            room = min(self._most, max(count, 2 * held))
            grown = _Met(*(part.new_zeros(room, *part.shape[1:]) for part in like))
            for whole, part in zip(grown, self._kept or (), strict=False):
                whole[:held] = part.to(whole)
            self._kept = grown
        return self._kept

    def state_dict(self) -> dict[str, Any]:
        """Return what is kept, and of whom."""
        kept = None if self._kept is None else [part[: len(self._places)].clone() for part in self._kept]
        return {"ids": torch.tensor(list(self._places), dtype=torch.int64), "kept": kept}

    def load_state_dict(self, state: Mapping[str, Any], /) -> None:
        """Take back what :meth:`state_dict` returned."""
        self._places = {number: place for place, number in enumerate(state["ids"].tolist())}
        self._kept = None if state["kept"] is None else _Met(*(part.clone() for part in state["kept"]))

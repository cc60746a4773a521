"""A partner's columns from its activations, by ridge regression on a few records whose columns are known."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Final

import torch
from pydantic import Field
from torch import Tensor

from splitvfl.attacks.known_share import KnownShare, checked_share
from splitvfl.errors import ArgumentError
from splitvfl.hooks import Auxiliary, Seat, Target, View
from splitvfl.leakage.ridge import fit_ridge

_MOST_REMEMBERED: Final = 100_000
# Of what was off at one message, at the next.
_KEPT: Final = 0.9


class RidgeAttack:
    """Estimate a partner's columns from what it sends, by ridge regression on records whose columns are known.

    The label party needs no weights and no model of its partner: it knows the columns of a few records, from a source
    of its own say, and what it received of these. Whatever of the columns is linear in the activation is found, as far
    as the known records can tell it from chance; what the bottom model bends beyond that is not.

    Two maps are fitted at each message: one to its own known records, and one to the latest activation of every known
    record that it remembers, which are more, and were sent by a bottom model that was another one. For each column the
    map is taken that was off less at known records of this and earlier messages, each left out in turn; what was ten
    messages ago counts a third.

    Promises that neither map with another of the penalties that are tried is off less at the records it is fitted to,
    left out in turn; nothing of other records, nor that a stronger reader would find no more.

    In a file: ``attacks: [{name: ridge, known_share: 0.05}]``

    Source: ridge regression, Hoerl and Kennard, *Technometrics* 1970; leaving one out without another fit, Allen,
    *Technometrics* 1974. As a reader of split activations see arXiv:2210.06771.

    Args:
        known_share: Share of the training records whose columns the attacker is assumed to know, above 0 and below 1.
        memory: Of how many of these it remembers what it received last, at most; 0: of none.
        sampled: Whether it is called with some of the messages only, where these are large. ``False``: with all of
            them, which takes more than the step itself, and means of each record's estimates are of more of them.

    Raises:
        ArgumentError: If a setting is out of range.
    """

    name: ClassVar[str] = "ridge"
    seat: ClassVar[Seat] = "active"
    target: ClassVar[Target] = "features"
    joint: ClassVar[bool] = True
    needs: ClassVar[frozenset[str]] = frozenset({"received_activation", "auxiliary", "earlier_auxiliary"})

    def __init__(
        self,
        *,
        known_share: KnownShare = 0.05,
        memory: Annotated[int, Field(ge=0, le=_MOST_REMEMBERED)] = 512,
        sampled: bool = True,
    ) -> None:
        if not 0 <= memory <= _MOST_REMEMBERED:
            raise ArgumentError(f"memory must be 0 to {_MOST_REMEMBERED:,} records, got {memory}")
        self.known_share, self.sampled = checked_share(known_share), sampled
        self._memory = memory
        self._latest: Auxiliary | None = None
        # What either map was off by, by column, and of earlier messages less and less.
        self._off: Tensor | None = None

    def __call__(self, view: View, /) -> Tensor:
        """Return the estimate.

        Args:
            view: Its ``received_activation``, ``auxiliary`` and ``earlier_auxiliary`` are read.

        Returns:
            ``(n, d)``, float64, in the columns' own units.

        Raises:
            ArgumentError: If fewer than two records are known.
        """
        known = view.auxiliary
        own = fit_ridge(known.activation, known.columns)
        estimate = own.estimate(view.received_activation)
        # A view that was made by hand may have none.
        earlier = view.earlier_auxiliary if "earlier_auxiliary" in view.fields else None
        latest = self._with(known, earlier)
        if len(latest.ids) > len(known.ids):
            more = fit_ridge(latest.activation, latest.columns)
            off = torch.stack([one.left_out[: len(known.ids)].square().mean(dim=0) for one in (own, more)])
            self._off = off if self._off is None else _KEPT * self._off.to(off) + off
            estimate = torch.where(self._off[1] < self._off[0], more.estimate(view.received_activation), estimate)
        self._latest = Auxiliary(*(part[: self._memory].clone() for part in latest))
        return estimate

    def _with(self, known: Auxiliary, earlier: Auxiliary | None) -> Auxiliary:
        """Return these records, and behind them others of which it knows what it received last."""
        found = known
        for before in (earlier, self._latest):
            if before is not None and len(before.ids):
                others = _first_of_each(before.ids, found.ids)
                found = Auxiliary(
                    *(torch.cat([new, old.to(new)[others]]) for new, old in zip(found, before, strict=True))
                )
        return found

    def state_dict(self) -> dict[str, Any]:
        """Return what it remembers."""
        return {"latest": None if self._latest is None else list(self._latest), "off": self._off}

    def load_state_dict(self, state: Mapping[str, Any], /) -> None:
        """Take back what :meth:`state_dict` returned."""
        self._latest = None if state["latest"] is None else Auxiliary(*state["latest"])
        self._off = state["off"]


def _first_of_each(ids: Tensor, but: Tensor) -> Tensor:
    """Return the places of the first of each id, in their order, without those of some."""
    unique, inverse = ids.to(but).unique(return_inverse=True)
    places = torch.arange(len(ids), device=but.device)
    first = torch.full_like(unique, len(ids)).scatter_reduce_(0, inverse, places, "amin").sort().values
    return first[~torch.isin(ids.to(but)[first], but)]

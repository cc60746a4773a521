"""A partner's columns from its activations, by who knows its bottom model: the likeliest that would be sent so."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Final

import torch
from pydantic import Field
from torch import Tensor, nn

from splitvfl.attacks.known_share import KnownShare, checked_share
from splitvfl.attacks.likeliest_columns import Normal, likeliest
from splitvfl.errors import ArgumentError
from splitvfl.hooks import Auxiliary, Seat, Target, View
from splitvfl.leakage.ridge import fit_ridge

_MOST_RECORDS: Final = 10_000
_REMEMBERED: Final = 512
# Of what known records were off at one message, at the next.
_KEPT: Final = 0.9
# An activation is not believed closer than this, in units of its standard deviation: it is rounded.
_CLOSEST: Final = 0.01
# Columns that are drawn to find a start.
_DRAWN: Final = 512


class WhiteBoxInversionAttack:
    """Estimate a partner's numeric columns by inverting its bottom model, which the label party is assumed to know.

    Assumes more than any other reader: a copy of the bottom model as it is at this step, and the columns of a few
    records. These say how columns are distributed, and how far off the model's outputs are from what was received: by
    noise, by rounding, or because dropout was at work. The estimate of a record is the likeliest columns x for a normal
    distribution of columns, with mean and covariance of the known records, and normal noise,

        min over x  Σ_j (bottom_j(x) − a_j)² / σ_j²  +  (x − m)ᵀ S⁻¹ (x − m).

    It is sought by damped Gauss-Newton steps from two places. Of a linear bottom model that is the exact minimum, and
    of any other a place where no step helps, which another start might better. Where columns have long tails the normal
    distribution misleads, and ``inverse-network`` may find more. What several columns give away only together, it fills
    in by how they hang together among known records.

    Only ``records`` records of a message are asked for, drawn anew at each, as each takes long. The bottom model is
    called in evaluation mode. It has to pass gradients on to its columns; one that does not is refused.

    Takes 1 to 31 s of a core for a thousand records that are asked for, the most of 213 columns behind a cut of 64.

    In a file: ``attacks: [{name: white-box-inversion, known_share: 0.05}]``

    Source: Luo et al., *Feature Inference Attack on Model Predictions in Vertical Federated Learning*, ICDE 2021
    (arXiv:2010.10152), for who knows the model; He, Zhang and Lee, ACSAC 2019 (doi:10.1145/3359789.3359824), for
    inversion with a prior. Both go down a gradient; the normal prior and the steps are ours here.

    Args:
        known_share: Share of the training records whose columns the attacker is assumed to know, above 0 and below 1.
        records: Records of a message that are asked for, at most.
        steps: Gauss-Newton steps, at least 1.

    Raises:
        ArgumentError: If a setting is out of range.
    """

    name: ClassVar[str] = "white-box-inversion"
    seat: ClassVar[Seat] = "active"
    target: ClassVar[Target] = "features"
    needs: ClassVar[frozenset[str]] = frozenset({"received_activation", "auxiliary", "partner_bottom"})

    def __init__(
        self,
        *,
        known_share: KnownShare = 0.05,
        records: Annotated[int, Field(ge=1, le=_MOST_RECORDS)] = 32,
        steps: Annotated[int, Field(ge=1, le=1_000)] = 30,
    ) -> None:
        if not 1 <= records <= _MOST_RECORDS:
            raise ArgumentError(f"records must be 1 to {_MOST_RECORDS:,}, got {records}")
        if not 1 <= steps <= 1_000:
            raise ArgumentError(f"steps must be 1 to 1,000, got {steps}")
        self.known_share, self.most_records = checked_share(known_share), records
        self._steps = steps
        self._known: Auxiliary | None = None
        self._noise: Tensor | None = None

    def __call__(self, view: View, /) -> Tensor:
        """Return the estimate.

        Args:
            view: Its ``received_activation``, ``auxiliary`` and ``partner_bottom`` are read. The bottom model is
                changed.

        Returns:
            ``(n, d)``, float64, in the columns' own units.

        Raises:
            AttackRefused: If the bottom model passes no gradient on to its columns.
            ArgumentError: If fewer than two records are known.
        """
        told = view.auxiliary
        if len(told.ids) < 2:
            raise ArgumentError(f"expected at least 2 known records, got {len(told.ids)}")
        bottom = view.partner_bottom.double().eval().requires_grad_(False)
        self._known = self._with(told)
        columns = Normal.of(self._known.columns.double())
        noise = self._noise_of(bottom, told)
        return columns.back(self._likeliest(bottom, columns, noise, view.received_activation.double()))

    def _with(self, told: Auxiliary) -> Auxiliary:
        """Return these known records, and behind them others that it remembers."""
        if self._known is None:
            return Auxiliary(*(part[:_REMEMBERED] for part in told))
        others = ~torch.isin(self._known.ids.to(told.ids), told.ids)
        parts = zip(told, self._known, strict=True)
        return Auxiliary(*(torch.cat([new, old.to(new)[others]])[:_REMEMBERED] for new, old in parts))

    def _noise_of(self, bottom: nn.Module, told: Auxiliary) -> Tensor:
        """Return the standard deviation of what each output is off by at known records, ``(w,)``, never zero."""
        sent = told.activation.double()
        off = torch.stack([(bottom(told.columns.double()) - sent).square().mean(dim=0), torch.ones_like(sent[0])])
        self._noise = off if self._noise is None else _KEPT * self._noise.to(off) + off
        spread = self._known_activation().std(dim=0, correction=0)
        # Of an output that is the same for all known records only rounding is known.
        floor = _CLOSEST * torch.where(spread > 0, spread, spread.mean()).clamp_min(1e-6)
        return (self._noise[0] / self._noise[1]).sqrt().maximum(floor)

    def _known_activation(self) -> Tensor:
        assert self._known is not None, "it was set before"
        return self._known.activation.double()

    def _likeliest(self, bottom: nn.Module, columns: Normal, noise: Tensor, sent: Tensor) -> Tensor:
        """Return the likeliest columns of each record, in units of the prior, ``(n, d)``."""
        twice = torch.cat([sent, sent])
        starts = self._starts(bottom, columns, noise, sent)
        return likeliest(lambda units: (bottom(columns.back(units)) - twice) / noise, *starts, steps=self._steps)

    def _starts(self, bottom: nn.Module, columns: Normal, noise: Tensor, sent: Tensor) -> tuple[Tensor, Tensor]:
        """Return two places to start from, ``(n, d)``, found among columns that are drawn from the prior.

        One is linear in the outputs, the other those columns whose outputs are nearest. At the mean itself outputs may
        lie where they do not move at all, below zero before a ReLU.
        """
        random = torch.Generator().manual_seed(0)
        drawn = torch.randn(_DRAWN, len(columns.middle), generator=random, dtype=sent.dtype).to(sent.device)
        rounding = torch.randn(_DRAWN, sent.shape[1], generator=random, dtype=sent.dtype).to(sent.device)
        outputs = bottom(columns.back(drawn))
        spread = outputs.std(dim=0, correction=0) + noise
        nearest = torch.cdist(sent / spread, outputs / spread).argmin(dim=1)
        return fit_ridge(outputs + noise * rounding, drawn).estimate(sent), drawn[nearest]

    def state_dict(self) -> dict[str, Any]:
        """Return what it remembers."""
        return {"known": None if self._known is None else list(self._known), "noise": self._noise}

    def load_state_dict(self, state: Mapping[str, Any], /) -> None:
        """Take back what :meth:`state_dict` returned."""
        self._known = None if state["known"] is None else Auxiliary(*state["known"])
        self._noise = state["noise"]

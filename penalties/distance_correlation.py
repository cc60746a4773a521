"""Distance correlation of a party's columns and its activation, as a penalty."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

import torch
from pydantic import Field
from torch import Tensor
from torch.autograd.function import once_differentiable

from splitvfl.errors import ArgumentError

if TYPE_CHECKING:
    from splitvfl.hooks import Held

_MOST_RECORDS = 4096  # whose distances in pairs are 64 MiB in float32


class DistanceCorrelation:
    """Lower the distance correlation of the numeric columns and the activation of some records of each batch.

    The penalty is the sample distance correlation of 2007, in [0, 1], of what the party holds: columns as the bottom
    takes them, all together, so that standardised ones count alike. Categories are left out. Of fewer than two records,
    and where columns or activations are all the same, it is 0, without a gradient.

    Of m records of independent columns it is not 0: the more columns and the wider the cut, the nearer to 1. What
    counts is how far it falls, not where it stands.

    Claim: no claim. An activation of low distance correlation may still tell columns to a reader that is made for it,
    and the label party's gradients pull the other way in every step.

    Works with: exchange split without exchange.noise; parties with columns of numbers; any task and model.

    Cost: distances of all pairs of ``records`` records, and their gradient: m² (d + width) products, whatever the
    batch.

    In a file: ``parties: {bank: {role: active, columns: 0.5}, lab: {role: passive, columns: rest,
    penalties: [{name: distance-correlation, weight: 1.0, records: 256}]}}``

    Also called: NoPeek.

    Source: Székely, Rizzo and Bakirov, *Annals of Statistics* 2007, arXiv:0803.4101, definitions 4 and 5; as a penalty
    on activations, NoPeek, Vepakomma et al., arXiv:2008.09161.

    Args:
        records: How many records of a batch it looks at, drawn anew in each step; all of a smaller one.

    Raises:
        ArgumentError: If that is below 2 or above 4,096.
    """

    name: ClassVar[str] = "distance-correlation"
    shifts_scores: ClassVar[str] = ""
    needs: ClassVar[frozenset[str]] = frozenset({"columns"})

    def __init__(self, *, records: Annotated[int, Field(ge=2, le=_MOST_RECORDS)] = 256) -> None:
        if not 2 <= records <= _MOST_RECORDS:
            raise ArgumentError(f"records must be 2 to {_MOST_RECORDS:,}, got {records}")
        self.most_records = records

    def __call__(self, activation: Tensor, held: Held, /) -> Tensor:
        """Return the distance correlation of records.

        Args:
            activation: What the bottom put out, ``(m, width)``.
            held: Its columns are used.

        Returns:
            ``()``, in [0, 1] but for rounding, in the dtype of the activation.
        """
        return distance_correlation(held.columns.to(activation.dtype), activation)


def distance_correlation(given: Tensor, sent: Tensor) -> Tensor:
    """Return the sample distance correlation of some records' rows; the gradient is with respect to ``sent`` alone.

    ``sqrt(V(x, y) / sqrt(V(x, x) · V(y, y)))`` with ``V(x, y)`` the mean over all pairs of records of the products of
    their distances in x and in y, each centred by rows and by columns. Shifts, rotations and a common scale of either
    change nothing. 0 where one of them does not vary.

    Source: Székely, Rizzo and Bakirov, *Annals of Statistics* 2007, arXiv:0803.4101, definitions 4 and 5.

    Args:
        given: ``(m, d)``, floating point.
        sent: ``(m, width)``, of the same dtype.

    Returns:
        ``()``, in [0, 1] but for rounding. Where it is 0 it follows from ``sent`` too, with a gradient of 0.

    >>> x = torch.arange(5.0)[:, None]
    >>> round(distance_correlation(x, 3 - 2 * x).item(), 4)
    1.0
    """
    found: Tensor = _DistanceCorrelation.apply(given.detach(), sent)  # type: ignore[no-untyped-call]
    return found


class _DistanceCorrelation(torch.autograd.Function):
    """The same, with its gradient in closed form: autograd would go over all pairs some twenty times more.

    With R the correlation, a and b the centred distances in x and y, and V as above, the derivative by a distance in y
    is ``(a / sqrt(V(x, x) V(y, y)) - R² b / V(y, y)) / (2 R m²)``: centring is a projection, and its own adjoint.
    """

    @staticmethod
    def forward(ctx: Any, given: Tensor, sent: Tensor) -> Tensor:
        rows, unit = _in_units(sent)
        # Two rows whose distance is lost to rounding count as one. A threshold is one pass where a mask is two.
        squares, lost = _squares(_in_units(given)[0])
        x = _centred(torch.threshold_(squares, lost, 0.0).sqrt_())
        squares, lost = _squares(rows)
        inverse = torch.threshold(squares, lost, math.inf).rsqrt_()
        y = _centred(squares.mul_(inverse))
        shared, within_x, within_y = (torch.dot(one.view(-1), two.view(-1)) for one, two in ((x, y), (x, x), (y, y)))
        squared = shared / (within_x * within_y).sqrt()
        if not squared > 0:  # not a number where one does not vary
            ctx.save_for_backward(torch.zeros_like(sent))
            return sent.new_zeros(())
        value = squared.sqrt()
        by_distance = x.sub_(y, alpha=(shared / within_y).item())
        ctx.save_for_backward(_pulled_back(by_distance, inverse, rows) * (value / (2.0 * shared * unit)))
        return value

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[None, Tensor]:
        (own,) = ctx.saved_tensors
        return None, gradient * own


def _in_units(rows: Tensor) -> tuple[Tensor, Tensor]:
    """Return rows less their mean, in a unit in which their mean square length is 1, and that unit."""
    rows = rows - rows.mean(dim=0)
    unit = torch.linalg.vector_norm(rows) / len(rows) ** 0.5
    unit = torch.where(unit > 0, unit, 1.0)
    return rows / unit, unit


def _squares(rows: Tensor) -> tuple[Tensor, float]:
    """Return the squared distances of all pairs of rows, ``(m, m)``, and the largest that is lost to rounding."""
    lengths = rows.square().sum(dim=1, keepdim=True)
    one = torch.ones_like(lengths)
    # One product of matrices has the squares, lengths included: each pass over all pairs costs a tenth of it.
    squares = torch.cat([rows * -2.0, lengths, one], dim=1) @ torch.cat([rows, one, lengths], dim=1).T
    return squares, 64 * torch.finfo(rows.dtype).eps * lengths.max().item()


def _centred(distances: Tensor) -> Tensor:
    """Return distances less the means of their rows and columns, in their place."""
    # They are symmetric: means of rows are means of columns.
    means = distances.mean(dim=0)
    return distances.sub_(means).sub_((means - means.mean())[:, None])


def _pulled_back(by_distance: Tensor, inverse: Tensor, rows: Tensor) -> Tensor:
    """Return the gradient by rows, of one by their distances: 0 between rows that count as one."""
    pulls = by_distance.mul_(inverse)
    return 2.0 * torch.addmm(pulls.sum(dim=1, keepdim=True) * rows, pulls, rows, alpha=-1.0)

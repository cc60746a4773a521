"""How much an activation that is drawn can tell of columns at most, in nats, as a penalty."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from torch import Tensor

if TYPE_CHECKING:
    from splitvfl.hooks import Held, Scope


class MutualInformationBottleneck:
    """Lower a bound on the information that a drawn activation has of a record's columns.

    The bottom puts out a draw from ``N(mean, variance)`` for each record
    (:class:`~splitvfl.models.Sampled`, in a file ``model: {name: mlp, sampled: true}``). The penalty is the mean over
    records of its divergence from a standard normal, in nats: ``½ Σ (mean² + variance - ln(variance) - 1)`` over units.

    What that bounds: ``I(X; Z) <= E KL(p(z|x) || N(0, I))``, for columns X of records drawn from those over which the
    mean is taken, and one draw Z of one record, at weights that are fixed. It is no bound of what several messages tell
    of a record together: over m messages the bounds add up, and training sends one each epoch, while weights change
    with what the label party sends. It is an average: of a rare record more may be told. The number of a batch
    estimates it.

    Claim: no claim. The bound holds by what the weights happen to have learned, and nothing enforces it; draws are
    float32's.

    Works with: exchange split without exchange.noise; models whose bottom is sampled; any task and columns.

    Cost: a few passes over means and variances, (n, width) each; the bottom's last layer is twice as wide.

    In a file: ``parties: {bank: {role: active, columns: 0.5}, lab: {role: passive, columns: rest,
    penalties: [{name: mutual-information-bottleneck, weight: 0.01}]}}``

    Also called: MID.

    Source: Zou, Liu and Zhang, Mutual Information Regularization for Vertical Federated Learning, arXiv:2301.01142; the
    bound, Alemi et al., Deep Variational Information Bottleneck, arXiv:1612.00410, equation 14.
    """

    name: ClassVar[str] = "mutual-information-bottleneck"
    shifts_scores: ClassVar[str] = ""
    needs: ClassVar[frozenset[str]] = frozenset({"distribution"})
    scope: ClassVar[Scope] = "row"

    def __call__(self, activation: Tensor, held: Held, /) -> Tensor:
        """Return the mean divergence.

        Args:
            activation: Not used.
            held: What the activation was drawn from is used.

        Returns:
            ``()``, at least 0, in nats.
        """
        mean, log_variance = held.distribution
        return 0.5 * (mean.square() + log_variance.exp() - log_variance - 1.0).sum(dim=1).mean()

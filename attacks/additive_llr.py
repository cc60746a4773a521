"""Label attack on additive Laplace noise: log-likelihood ratios of noisy residues, added up over epochs."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import Tensor

from splitvfl.attacks.noisy_residues import NoisyResidues
from splitvfl.errors import ArgumentError
from splitvfl.hooks import View
from splitvfl.privacy.laplace import laplace_scale


def additive_noise_llr(noisy: Tensor, predictions: Tensor, epsilon: float) -> Tensor:
    """Return each record's log-likelihood ratio of label 1 against label 0, summed over epochs.

    ``Σ_e (ε/2) (|z_e + f_e| − |z_e − 1 + f_e|)``, where z is a residue with Laplace noise of scale 2/ε and f the
    prediction that it is of: the residue is 1 − f under one label and −f under the other. Its sign is the best guess of
    a label of even odds, and right with probability ``1 − e^(−ε/4) / 2`` after one epoch
    (:func:`~splitvfl.privacy.laplace_label_success`). It does not promise that much where f is known roughly only.

    Source: *Residue-based Label Protection Mechanisms in Vertical Logistic Regression*, the aggregation attack.

    Args:
        noisy: ``(E, n)``, noisy residues y − f of n records in E epochs, floating point.
        predictions: ``(E, n)``, f in [0, 1].
        epsilon: The mechanism's ε of one release, > 0.

    Returns:
        ``(n,)``, float64; 0 says nothing.

    Raises:
        ArgumentError: If shapes do not fit, an entry is not finite, a prediction lies outside [0, 1], or ε is not
            positive.

    >>> additive_noise_llr(torch.tensor([[0.75, -0.25]]), torch.tensor([[0.5, 0.5]]), 2.0).tolist()
    [1.0, -0.5]
    """
    check_releases(noisy, predictions)
    scale = laplace_scale(epsilon)
    z, f = noisy.double(), predictions.double()
    ratios: Tensor = ((z + f).abs() - (z - 1 + f).abs()).sum(dim=0) / scale
    return ratios


def check_releases(noisy: Tensor, predictions: Tensor) -> None:
    """Raise :class:`ArgumentError` unless noisy residues and the predictions that they are of, ``(E, n)``, fit."""
    if noisy.dim() != 2 or noisy.shape != predictions.shape or noisy.numel() == 0:
        raise ArgumentError(
            f"expected noisy residues and predictions of one shape (epochs, records), got {tuple(noisy.shape)} and "
            f"{tuple(predictions.shape)}"
        )
    for name, tensor in (("noisy", noisy), ("predictions", predictions)):
        if not tensor.is_floating_point():
            raise ArgumentError(f"expected {name} of a floating-point dtype, got {tensor.dtype}")
        if not torch.isfinite(tensor).all():
            raise ArgumentError(f"{name} holds NaN or infinite values")
    if predictions.min() < 0 or predictions.max() > 1:
        raise ArgumentError("expected predictions in [0, 1]: the sigmoid of the logits that the residues are of")


class AdditiveLLRAttack:
    """Score every record by the log-likelihood ratio of its label, from all noisy residues that came of it.

    It knows the mechanism, residues with Laplace noise of scale 2/ε (:class:`~splitvfl.defenses.LaplaceResidue`), and
    that the label party's model adds up logits. A row of the cut gradient is then −r / n, of a prediction ``f =
    sigmoid(own part + a)``. The label party's part a it does not know: it takes it for one shift of all logits, which
    is fitted anew in every step by the likelihood of the noisy residues where a label is 1 with probability f. What
    earlier records told counts too, by a factor of e less with every 20 000 later ones, and where nothing is told the
    shift is 0: it is the mean under a normal prior of deviation 2. Where the label party has neither columns nor an
    intercept, ``shift=0`` says so. Ratios are summed over the run (:func:`additive_noise_llr`): an attack of the whole
    run (``cumulative``).

    One release is right with probability ``1 − e^(−ε/4) / 2`` on either label where the shift is known; of 20 000
    records at ε = 1, where that is .611, it read .605 to .608 with a fitted one. After 1, 10 and 30 epochs at ε = 1 it
    reads .6, .76 and .9 of all labels.

    It is not what could be read where the label party's part differs much between records, and it cannot see the label
    party's model: below hidden layers its figures mean nothing. With few records and little ε hardly anything is known
    of the shift; a wrong one moves all ratios to one side.

    In a file: ``attacks: [{name: additive-llr, epsilon: 1.0}]``

    Also called: aggregation attack.

    Source: *Residue-based Label Protection Mechanisms in Vertical Logistic Regression*, the aggregation attack; that
    the shift is fitted is this project's.

    Args:
        epsilon: The mechanism's ε of one release, > 0.
        shift: The label party's part of the logits where it is known; ``None``: fitted.

    Raises:
        ArgumentError: If ε is not positive, or the shift is not finite.
    """

    name: ClassVar[str] = "additive-llr"
    explanation: ClassVar[str] = (
        "Knows the scale of the Laplace noise on residues and, but for one number that it fits, the model's "
        "prediction. It then adds up over all epochs how much likelier each noisy residue is under one label than "
        "under the other."
    )
    needs: ClassVar[frozenset[str]] = frozenset({"gradient", "activation"})
    cumulative: ClassVar[bool] = True
    signed: ClassVar[bool] = True

    def __init__(self, *, epsilon: float, shift: float | None = None) -> None:
        self._scale = laplace_scale(epsilon)
        self._run = NoisyResidues(self.name, self._likelihoods, shift)

    @property
    def shift(self) -> float:
        """The label party's part of the logits, as given or as last fitted."""
        return self._run.shift

    def __call__(self, view: View, /) -> Tensor:
        """Return each record's ratio of all that came of it, this release included.

        Args:
            view: Its ``gradient`` and ``activation``, each ``(n, 1)``, and ``ids`` are read.

        Returns:
            ``(n,)``, float64; 0 is undecided.

        Raises:
            HookError: If the cut is wider than 1.
        """
        return self._run.see(view)

    def _likelihoods(self, noisy: Tensor, predictions: Tensor) -> tuple[Tensor, Tensor]:
        return -(noisy - 1 + predictions).abs() / self._scale, -(noisy + predictions).abs() / self._scale

    def state_dict(self) -> dict[str, Any]:
        """Return what steps told of the shift, and the ratios."""
        return self._run.state_dict()

    def load_state_dict(self, state: dict[str, Any], /) -> None:
        """Take back what :meth:`state_dict` returned."""
        self._run.load_state_dict(state)

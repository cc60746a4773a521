"""Gaussian noise on the labels themselves, before the loss: everything that is sent follows from it."""

from __future__ import annotations

import math
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from splitvfl.claims import GaussianDP, RunPlan
from splitvfl.defenses.claim_words import ANSWERS_ALONE, GENERATOR, ONE_RECORD, PREDICTION, ROUNDED_NOISE
from splitvfl.defenses.promised_epochs import PromisedEpochs
from splitvfl.defenses.record_gaussian import checked_range, one_for_each_id
from splitvfl.errors import ArgumentError
from splitvfl.hooks import Crossing, Secrets
from splitvfl.learning.records import RecordTable
from splitvfl.privacy.gaussian_dp import gaussian_mu, least_detection_error


class GaussianTargets:
    """Compute the loss with ``y + N(0, sigma²)`` in place of the label y: drawn once per record, or in every step.

    The target is called t, and sigma σ.

    - Labels in {0, 1}: one number, ``s = 1``. The cross entropy's gradient ``p − t`` is that of y in the mean.
    - k classes: the indicator plus noise in every class, less its mean over the classes, ``s = √2``; the loss is
      ``−Σ_c t_c log p_c``, whose gradient is ``p − t``, since t sums to one.
    - A label range (regression): one number, ``s`` the range's length; labels outside are taken for the nearer end.

    **Everything that is computed from the targets is μ-Gaussian differentially private in the label of every record**,
    messages of all epochs to all partners together, for any model of any depth: nobody's ½(FPR + FNR) on two labels of
    a record is below ``Φ(−μ/2)``. Remembered, ``μ = s/σ`` however long the run is; drawn in every step,
    ``μ = √E · s/σ`` over E epochs.

    Proof. Top model, cuts and whatever is sent are functions of the targets, of columns and of randomness that knows no
    label, so it is enough that the targets are private. Remembered, a record's target is one draw from N(y, σ²); fresh,
    E of them, which together shift by ``√E s`` in units of σ. Of classes, ``e_y − e_y'`` sums to zero and has norm √2,
    and the noise is isotropic among the vectors that do: a component outside would hide nothing, and would change the
    loss by a multiple of ``Σ_c log p_c``.

    What voids it: early stopping, best weights or a verdict that partners see, on true labels; class weights, or
    batches, made from labels; a person under two ids. A later gradient defense gets answers
    (is the target above ½, which class is largest) and no label.

    Not hidden is what columns give away: the model's prediction of a record tells its label as far as it is good. It
    rests on the secrecy of what is kept here and of the keystream; a fixed seed is for experiments.

    It is the baseline that noise on gradients has to beat, and mostly worse than lies about binary labels: at one
    promise (AUC of the whole run at most .60; .59 to .62 was read by an observer who knows p and w), 15 epochs, linear
    top, test AUC as means of three seeds: breast cancer .971 fresh, .849 remembered, .985 with
    :class:`~splitvfl.defenses.asymmetric_response.AsymmetricResponse` (L = .4, ε = 3); digits ("is it an 8") .747,
    .895, .967. Without a defense .996 and .997. What is remembered costs less the more records there are: noise of 570
    records is learned by heart.

    Memory, remembered: four bytes for each number of a record.

    Logs ``mu`` and ``detection_error_bound``, both of the run where its length is known.

    Cost: on digits a test AUC of .842 for .997 undefended (private top: .957). Time: about 1 to 1.5 ms more
    in a step of about 2 ms, as for most defenses; remembered, four bytes for each number of a record.

    In a file: ``defenses: [{name: gaussian-targets, detection_error: 0.4}]``

    Source: the Gaussian mechanism on labels; μ: Dong, Roth and Su, *Gaussian Differential Privacy*, JRSS B 84 (2022),
    arXiv:1905.02383, theorem 2.7, corollary 3.3. As the baseline that gradient noise has to beat: this project's.

    Args:
        sigma: σ, > 0, in the unit of the labels. Exactly one of the four is given.
        mu: μ of the run, > 0.
        epsilon: ε in nats, > 0, with ``delta``: the largest μ of the run that is (ε, δ)-differentially private.
        delta: δ, in (0, 1).
        detection_error: L, in (0, ½): nobody's ½(FPR + FNR) on a label over the run is to be below it;
            ``μ = 2 Φ⁻¹(1 − L)``.
        remembered: Whether a record's target is drawn once, and given again from then on; otherwise in every step.
        classes: k, that of the task. Labels are whole numbers where it is above 2, and floating point otherwise.
        label_range: For regression: the least and the largest label, chosen without a look at the labels.
        epochs: E, where targets are drawn in every step. Default: what the trainer is told.

    Raises:
        ArgumentError: If a setting is out of range, or they contradict each other.
    """

    name: ClassVar[str] = "gaussian-targets"
    shifts_scores: ClassVar[str] = ""
    for_regression: ClassVar[str] = "label_range: [low, high]"
    crossing: ClassVar[Crossing] = "labels"

    def __init__(
        self,
        *,
        sigma: float | None = None,
        mu: float | None = None,
        epsilon: float | None = None,
        delta: float | None = None,
        detection_error: float | None = None,
        remembered: bool = True,
        classes: int = 2,
        label_range: tuple[float, float] | None = None,
        epochs: int | None = None,
    ) -> None:
        if isinstance(classes, bool) or classes < 2 or (label_range is not None and classes != 2):
            raise ArgumentError(f"classes must be at least 2, and go without a label_range; got {classes!r}")
        if epochs is not None and (remembered or isinstance(epochs, bool) or epochs < 1):
            raise ArgumentError(
                f"epochs, at least 1, go with remembered=False; got {epochs!r} with remembered={remembered}"
            )
        if sigma is not None:
            if not (sigma > 0 and math.isfinite(sigma)) or (mu, epsilon, delta, detection_error) != (None,) * 4:
                raise ArgumentError(f"sigma must be positive and finite, and go without mu or the like; got {sigma!r}")
            self.mu = None
        elif (mu, epsilon, delta, detection_error) == (None,) * 4:
            raise ArgumentError(
                "expected exactly one of sigma, mu, epsilon together with delta, and detection_error, got none"
            )
        else:
            self.mu = gaussian_mu(mu=mu, epsilon=epsilon, delta=delta, detection_error=detection_error)
        self.remembered = remembered
        self.label_range = None if label_range is None else checked_range(label_range)
        self.classes = None if self.label_range else classes
        self.soft_classes = classes if classes > 2 else None
        self._promised = PromisedEpochs(self.name, epochs)
        self._sigma = sigma
        if self.run_mu is not None and not 0.0 < self.run_mu < math.inf:
            raise ArgumentError(f"sigma {sigma!r} is out of proportion to labels that are {self.sensitivity:g} apart")
        self._table = RecordTable(known=np.int8, **dict.fromkeys(self._numbers, np.float32))

    @property
    def sensitivity(self) -> float:
        """The largest distance of two labels, s."""
        if self.label_range is not None:
            return self.label_range[1] - self.label_range[0]
        return 1.0 if self.soft_classes is None else math.sqrt(2.0)

    @property
    def run_mu(self) -> float | None:
        """μ of the whole run; ``None`` where it is not known yet how many epochs that has."""
        if self._sigma is None:
            return self.mu
        if self.remembered:
            return self.sensitivity / self._sigma
        epochs = self._promised.number
        return None if epochs is None else math.sqrt(epochs) * self.sensitivity / self._sigma

    @property
    def sigma(self) -> float:
        """Standard deviation of the noise.

        Raises:
            PrivacyError: If it is divided among epochs, and their number is not known.
        """
        if self._sigma is not None:
            return self._sigma
        assert self.mu is not None
        if self.remembered:
            return self.sensitivity / self.mu
        return math.sqrt(self._promised.known("fresh noise")) * self.sensitivity / self.mu

    def claims(self) -> tuple[GaussianDP, ...]:
        """Return that what is sent is μ-private: over the run, or per message where that is not known."""
        words: dict[str, Any] = {
            "mechanism": "Gaussian noise on each label, "
            + ("drawn once for a record and remembered" if self.remembered else "drawn anew in every step"),
            "conditions": (ANSWERS_ALONE, ONE_RECORD),
            "not_covered": (PREDICTION, ROUNDED_NOISE, GENERATOR),
        }
        if self.run_mu is not None:
            return (GaussianDP(self.run_mu, per="run", **words),)
        return (GaussianDP(self.sensitivity / self.sigma, per="message", **words),)

    def plan_run(self, plan: RunPlan) -> None:
        """Take the number of epochs, and refuse a run that has another than was promised."""
        if not self.remembered:
            self._promised.plan(plan.epochs, instead=", remembered noise as much")

    def __call__(self, labels: Tensor, secrets: Secrets, /) -> Tensor:
        """Return the targets.

        Args:
            labels: ``(n,)``: floating point, in {0, 1} or within the label range; of k > 2 classes whole numbers.
            secrets: The label party's; its record ids, generator and log are used.

        Returns:
            A new tensor like ``labels``; of k > 2 classes ``(n, k)`` float32.

        Raises:
            ArgumentError: If labels are none such.
            PrivacyError: If the ids of the records are not known, or a record was sent as often as was promised.
        """
        truth = self._truth(labels)
        drawn = self._remember(truth, secrets) if self.remembered else self._draw_anew(truth, labels, secrets)
        mu = self.run_mu
        if mu is not None:
            secrets.log("mu", mu, per="run")
            secrets.log("detection_error_bound", least_detection_error(mu), per="run")
        if self.soft_classes is not None:
            return drawn.float()
        return drawn[:, 0].to(labels.dtype)

    def _truth(self, labels: Tensor) -> Tensor:
        """Return the labels as the noise is added to them, ``(n, 1)`` or ``(n, k)`` float64."""
        if self.soft_classes is not None:
            return _indicators(labels, self.soft_classes)
        if not labels.is_floating_point():
            raise ArgumentError(f"expected labels of a floating-point dtype, got {labels.dtype}; pass labels.float()")
        if self.label_range is not None:
            if not bool(torch.isfinite(labels).all()):
                raise ArgumentError("labels must be finite")
            return labels.double().clamp(*self.label_range)[:, None]
        if not bool(((labels == 0) | (labels == 1)).all()):
            raise ArgumentError(
                f"labels must be 0 or 1, got {torch.unique(labels)[:5].tolist()}; for regression say label_range"
            )
        return labels.double()[:, None]

    def _draw_anew(self, truth: Tensor, labels: Tensor, secrets: Secrets) -> Tensor:
        sigma = self.sigma
        if self._promised.number is not None:
            self._promised.spend(secrets.ids)
        drawn = one_for_each_id(secrets.add_normal(truth, sigma), labels, secrets, who=self.name)
        return self._centred(drawn, sigma, secrets)

    def _centred(self, drawn: Tensor, sigma: float, secrets: Secrets) -> Tensor:
        """Return noisy targets; those of k classes add up to 1, as indicators do."""
        if self.soft_classes is None:
            return drawn
        centred = drawn - (drawn.mean(dim=1, keepdim=True) - 1.0 / self.soft_classes)
        return secrets.rounded(centred, scale=sigma, like=drawn)

    def _remember(self, truth: Tensor, secrets: Secrets) -> Tensor:
        slots = self._table.slots(secrets.ids.detach().cpu().numpy())
        new = np.flatnonzero(self._table["known"][slots] == 0)
        if new.size:
            unasked, first = np.unique(slots[new], return_index=True)
            asked = truth[torch.from_numpy(new[first]).to(truth.device)]
            drawn = self._centred(secrets.add_normal(asked, self.sigma), self.sigma, secrets)
            kept = drawn.float().cpu().numpy()
            for number, column in enumerate(self._numbers):
                self._table[column][unasked] = kept[:, number]
            self._table["known"][unasked] = 1
        found = np.stack([self._table[column][slots] for column in self._numbers], axis=1)
        return torch.from_numpy(found).double().to(truth.device)

    @property
    def _numbers(self) -> list[str]:
        return [f"target {number}" for number in range(self.soft_classes or 1)]

    def state_dict(self) -> dict[str, Any]:
        """Return the settings and the targets. They are secret: whoever knows them knows what is promised of them."""
        return {
            "mu": self.mu,
            "sigma": self._sigma,
            **self._promised.state_dict(),
            "targets": self._table.state_dict(),
        }

    def load_state_dict(self, state: dict[str, Any], /) -> None:
        """Take back what :meth:`state_dict` returned.

        Raises:
            ArgumentError: If the targets were drawn for another promise, or over another number of epochs.
        """
        if (state["mu"], state["sigma"]) != (self.mu, self._sigma):
            raise ArgumentError(
                f"expected targets drawn with mu {self.mu} and sigma {self._sigma}, "
                f"got mu {state['mu']} and sigma {state['sigma']}"
            )
        self._promised.load_state_dict(state)
        self._table.load_state_dict(state["targets"])


def _indicators(labels: Tensor, classes: int) -> Tensor:
    if labels.is_floating_point() or labels.dim() != 1 or not bool(((labels >= 0) & (labels < classes)).all()):
        raise ArgumentError(
            f"expected labels (n,), whole numbers from 0 to {classes - 1}, "
            f"got {torch.unique(labels)[:5].tolist()} of {labels.dtype}; `classes` is the number of classes"
        )
    return torch.nn.functional.one_hot(labels.long(), classes).double()

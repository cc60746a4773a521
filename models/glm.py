"""Generalised linear models: one linear layer per party, summed, and the loss that goes with the labels."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, ClassVar

from pydantic import Field
from torch import nn

from splitvfl.errors import ConfigError
from splitvfl.learning.glm_losses import GLMLoss, GLMLossName, glm_loss
from splitvfl.learning.tasks import Task
from splitvfl.models.linear import Init, LinearRecipe, LinearTop

if TYPE_CHECKING:
    from splitvfl.data.columns import PartyData

Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]

# Where nobody's weights say anything yet, a gamma mean is 1: its logit is −1 / mean.
_GAMMA_START = -1.0


@dataclass(frozen=True, kw_only=True)
class GLMRecipe(LinearRecipe):
    """A generalised linear model: one linear layer per party, summed, with a loss for counts, amounts or outliers.

    Scores are the inverse link of the summed logits. The figure is the AUC of labels 0 and 1, the explained deviance of
    ``poisson`` and ``gamma``, and R² of the others. Penalties are the optimiser's: ``sgd`` with ``weight_decay``,
    ``proximal-sgd`` with ``l1`` and ``l2``, either with a ``radius``.

    Works with: exchange split; labels 0 and 1 with logistic and l2-svm, numbers with the others.

    In a file: ``model: {name: glm, loss: poisson, target_clip: 20}``

    Attributes:
        init: How first weights are drawn; ``zero`` draws none. The losses are convex, so that nothing is gained by a
            draw; zero lies in every ball, and ``gamma`` begins with no other.
        row_norm: Largest Euclidean norm of a record's numbers at each party; longer rows are scaled down to it.
            ``null`` takes them as they are.
        intercept: Whether the label party learns an intercept, from zero; with ``gamma`` from −1, and it needs one.
        loss: ``logistic`` and ``l2-svm`` (squared hinge) of labels 0 and 1; ``poisson`` of counts, ``gamma`` of numbers
            above 0; ``least-squares``, ``normal`` and ``huber`` of all numbers.
        dispersion: Of ``normal`` the variance, of ``gamma`` one over the shape: it divides every gradient; ``null``: 1.
        threshold: Of ``huber``, the residual from which the loss goes on as a line, in the label's unit; ``null``: 1.
        target_clip: Labels count as no larger than this, and as no smaller than minus this; ``null``: as they are.
            Without one, no noise covers what a label moves in ``least-squares``, ``normal``, ``poisson`` and ``gamma``.
        logit_clip: Logits count as no larger than this, and as no smaller than minus this; ``null``: as they are.
        logit_margin: Of ``gamma``: logits count as no larger than minus this, so that no mean exceeds one over it;
            ``null``: a logit that is not below 0 ends the run with an error.
    """

    name: ClassVar[str] = "glm"

    # Repeated from the base class: what reads a file looks for the names of types in this module.
    init: Init = "zero"
    row_norm: Positive | None = None
    intercept: bool = True
    loss: GLMLossName = "logistic"
    dispersion: Positive | None = None
    threshold: Positive | None = None
    target_clip: Positive | None = None
    logit_clip: Positive | None = None
    logit_margin: Positive | None = None

    def __post_init__(self) -> None:
        """Check that the loss takes these settings.

        Raises:
            ArgumentError: If it has no such setting.
            ConfigError: If it needs an intercept.
        """
        self.make_loss()
        if self.loss == "gamma" and not self.intercept:
            raise ConfigError(
                "loss gamma needs an intercept, which keeps logits below 0 while weights are zero; leave intercept: "
                "false out"
            )

    def make_loss(self) -> GLMLoss:
        """Return the loss."""
        return glm_loss(self.loss, **self._loss_settings())

    def _loss_settings(self) -> dict[str, float | None]:
        names = ("dispersion", "threshold", "target_clip", "logit_clip", "logit_margin")
        return {name: getattr(self, name) for name in names}

    def make_top(self, columns: PartyData, task: Task, widths: Sequence[int]) -> LinearTop:
        """Return what adds up the parties' parts of the logit, its intercept where the loss has a mean."""
        top = super().make_top(columns, task, widths)
        if self.loss == "gamma":
            nn.init.constant_(top.intercept, _GAMMA_START)
        return top

    def terms(self) -> Mapping[str, object]:
        """Return the loss and its settings, and what :class:`LinearRecipe` compares."""
        settings = {f"{name} of the loss": value for name, value in self._loss_settings().items()}
        return {**super().terms(), "loss of the model": self.loss, **settings}

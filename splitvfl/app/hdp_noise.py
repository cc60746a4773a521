"""The noise of HDP-VFL in a training: who adds how much to what it sends, and on what that rests.

Source: *Hybrid Differentially Private Federated Learning on Vertically Partitioned Data*, algorithm 1 and theorem 2,
with receivers that clip what they use, as its proof needs it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from splitvfl.app.batching import Batching
from splitvfl.app.noise_stream import Stream
from splitvfl.exchange.noise import HdpNoiseSettings
from splitvfl.exchange.receiver_clips import ReceiverClips
from splitvfl.learning.glm_losses import GLMLoss, LossConstants
from splitvfl.learning.optimizers import ProjectedSteps
from splitvfl.learning.tasks import Task, task_for
from splitvfl.party.own_part import OwnPart
from splitvfl.privacy.sensitivity import HdpTraining
from splitvfl.report.releases import Reserve


@dataclass(frozen=True)
class HdpNoise:
    """Who adds how much noise to what it sends, and on what that rests.

    Attributes:
        settings: What was agreed.
        names: The parties, the label party first.
        training: How long, in batches of how many, and how often it is evaluated.
        steps: The optimiser's.
        loss: The loss.
        constants: Its bounds, for logits as large as parties' parts can be together.
        norm: Largest norm of a row of numbers.
        intercept: Whether the label party learns one, which is a column of ones.
        own_part: What the label party's own weights learn from.
        passive: What a passive party sends.
        active: What the label party sends.
        label: The same, where a label changes and no column.
        ends: Steps that are taken: all, unless the budget for given noise ends before.
        fixed: Whether noise is drawn from a fixed seed.
        recursions: How far one row of a ``"passive"`` and of the ``"active"`` party moves what it sends, and one
            ``"label"``.
    """

    settings: HdpNoiseSettings
    names: tuple[str, ...]
    training: Batching
    steps: ProjectedSteps
    loss: GLMLoss
    constants: LossConstants
    norm: float
    intercept: bool
    own_part: OwnPart
    passive: Stream
    active: Stream
    label: Stream
    ends: int
    fixed: bool
    recursions: Mapping[str, HdpTraining]

    @property
    def task(self) -> Task:
        """The task that it is calculated for."""
        return task_for(self.loss.labels or "binary", loss=self.loss)

    @property
    def kind(self) -> str:
        """How it was found: ``"tight"`` or ``"published"``, or ``"given noise"``."""
        return "given noise" if self.settings.is_budget else self.settings.calibration

    @property
    def radius(self) -> float:
        """Largest norm of a party's weights."""
        return self.settings.radius

    @property
    def clips(self) -> ReceiverClips:
        """What receivers clip before use: to what is longest without noise."""
        return ReceiverClips(activation=self.radius * self.norm, coefficient=self.constants.lipschitz)

    @property
    def reserve(self) -> Reserve | None:
        """What is put by for predictions after the training; ``None`` where nothing is."""
        put_by, records = self.passive.predictions, self.settings.predictions
        if put_by is None or records is None:
            return None
        return Reserve(records=records, sigma=put_by.sigma, clip=self.radius * self.norm)

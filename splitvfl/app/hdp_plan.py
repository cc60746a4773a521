"""The plan of HDP-VFL's noise: what parties agree on, what they attach, what they refuse, and what a run spends."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from splitvfl.app.batching import check_used_once
from splitvfl.app.hdp_noise import HdpNoise
from splitvfl.app.hdp_statement import statement
from splitvfl.app.noise_stream import GRID, Stream
from splitvfl.config.registry import built_in
from splitvfl.data.columns import PartyData
from splitvfl.errors import ConfigError
from splitvfl.exchange.base import Exchange
from splitvfl.hooks import At, Defense, Phase
from splitvfl.learning.tasks import Task
from splitvfl.privacy.accounting import GaussianEvaluations, GaussianMessages, Own, PrivacyBudget
from splitvfl.privacy.sensitivity import HdpTraining


class HdpPlan(HdpNoise):
    """The noise of HDP-VFL, with all that a run does with it (:class:`splitvfl.app.noise_plans.Plan`)."""

    fixed_seeds = False

    @property
    def name(self) -> str:
        """What it is called beside a run's figures."""
        agreed = self.settings
        return f"hdp-vfl(epsilon={agreed.epsilon:g}, delta={agreed.delta:g}, {self.kind})"

    def terms(self) -> dict[str, object]:
        """Return what must be equal at every party, by the names under which it is compared."""
        return {
            **{f"noise: {name}": value for name, value in self.settings.model_dump().items()},
            "noise: parties": sorted(self.names),
            "noise: loss": self.loss.name,
            "noise: intercept": self.intercept,
            "noise of the active party": self.active.sigma,
            "noise of a passive party": self.passive.sigma,
            "noise of an evaluation": None if self.passive.evaluations is None else self.passive.evaluations.sigma,
            "noise of a prediction": None if self.passive.predictions is None else self.passive.predictions.sigma,
        }

    def supplied(self, exchange: Exchange) -> Mapping[str, Any]:
        """Return what receivers clip."""
        return {"receiver_clips": self.clips}

    def defenses(self) -> list[Defense | At]:
        """Return the noise as defenses: at every passive party, and at the label party, of one draw for all."""
        part, derivative = self.radius * self.norm, self.constants.lipschitz
        ours = built_in("defenses")
        on_logits, on_coefficients = ours["gaussian-ir"], ours["coefficient-noise"]
        streams: dict[Phase, Stream | None] = {
            "training": self.passive,
            "evaluation": self.passive.evaluations,
            "prediction": self.passive.predictions,
        }
        return [
            *(At(on_logits(clip=part, sigma=one.sigma), phase) for phase, one in streams.items() if one is not None),
            on_coefficients(sigma=self.active.sigma, clip=derivative, scale=1.0, one_draw=True),
        ]

    def check(self, data: PartyData, task: Task) -> None:
        """Refuse data or a task for which the noise was not calculated.

        Raises:
            ConfigError: If labels are of another task; a record is there twice, or stands in for another.
        """
        if task.name != self.loss.labels:
            raise ConfigError(
                f"exchange.noise: it was calculated for the {self.loss.name} loss of {self.loss.labels} labels, and "
                f"this is a {task.name} task: take model: {{name: glm, loss: ...}} with a loss of its labels"
            )
        check_used_once(data, "exchange.noise")

    def notes(self, parties: Mapping[str, PartyData]) -> list[str]:
        """Return the statement: what is protected, from whom, by what, and what is not covered."""
        return statement(self, parties)

    def budget(self) -> PrivacyBudget:
        """Return the account of a run: what each step costs, whatever the noise was calculated from."""
        active, *passives = self.names
        own: dict[Own, HdpTraining] = {"row": self.recursions["active"], "label": self.recursions["label"]}
        streams: list[GaussianMessages | GaussianEvaluations] = [
            _messages(active, passives, own, self.active),
            *(_messages(name, [active], {"row": self.recursions["passive"]}, self.passive) for name in passives),
            *(shown for name in passives for shown in self._shown_by(name, active)),
        ]
        agreed = self.settings
        return PrivacyBudget(
            streams,
            self.training.steps,
            agreed.delta,
            # Calculated noise is enough for all steps, but for the textbook's, which says what it lacks.
            epsilon=agreed.epsilon if agreed.is_budget else None,
            records=self.training.records,
        )

    def _shown_by(self, name: str, active: str) -> Iterator[GaussianEvaluations]:
        """Yield what a passive party's evaluations cost, and its predictions: all that are planned, made or not."""
        shape, sent, planned = self.training, self.passive, self.settings.predictions
        for shown, records, after in (
            (sent.evaluations, shape.tested, shape.evaluated_after),
            (sent.predictions, planned or 0, (shape.steps,)),
        ):
            if shown is not None:
                yield GaussianEvaluations(
                    name,
                    (active,),
                    self.recursions["passive"],
                    shown.sigma,
                    records,
                    after,
                    grid=GRID,
                    unmatched=shown.unmatched,
                )


def _messages(
    sender: str, receivers: list[str], trainings: Mapping[Own, HdpTraining], stream: Stream
) -> GaussianMessages:
    return GaussianMessages(sender, tuple(receivers), trainings, stream.sigma, grid=GRID, unmatched=stream.unmatched)

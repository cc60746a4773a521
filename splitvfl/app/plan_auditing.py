"""What an audit finds of noise that was calculated for a training: each plan by a calculation of its own.

Whether the noise is enough for its sensitivity is calculated anew; whether receivers clip, as HDP-VFL's sensitivity
needs it, is tried (:mod:`splitvfl.app.realised_sensitivity`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import assert_never

from splitvfl.app.hdp_plan import HdpPlan
from splitvfl.app.hdp_statement import unprotected_evaluations
from splitvfl.app.noise import NoisePlan
from splitvfl.app.noise_basis import void_for_labels
from splitvfl.app.noise_plans import CalculatedNoise
from splitvfl.app.noise_stream import Stream
from splitvfl.app.realised_sensitivity import realised_sensitivity
from splitvfl.app.sum_noise import SumNoisePlan
from splitvfl.audit import ClaimAudit, DefenseAudit, Verdict, audit_gaussian
from splitvfl.audit.calculation import ROUNDING, Calculated
from splitvfl.claims import sentence
from splitvfl.config.sections import TrainConfig
from splitvfl.data.columns import PartyData
from splitvfl.data.learned_columns import learned_columns
from splitvfl.data.schema import Role
from splitvfl.exchange.base import Exchange
from splitvfl.exchange.receiver_clips import NO_CLIPS
from splitvfl.learning.tasks import Binary, Task
from splitvfl.privacy.statement import not_covered


@dataclass(frozen=True)
class NoisyTraining:
    """The training that noise was calculated for, as far as it is looked at.

    Attributes:
        active: The label party.
        settings: How it is trained.
        exchange: Its exchange, whose receivers are to clip.
        parties: Data of the parties whose messages are looked at.
        roles: Those of these parties.
        released: What has crossed since the training, in sentences: what the noise was not calculated for.
        seed: Of the training in which the receivers are tried.
    """

    active: str
    settings: TrainConfig
    exchange: Exchange
    parties: Sequence[PartyData]
    roles: Sequence[Role]
    released: Sequence[str] = ()
    seed: int = 0


def audit_plan(plan: CalculatedNoise, training: NoisyTraining) -> DefenseAudit:
    """Return what is found of noise that was calculated for a training.

    Args:
        plan: The plan.
        training: What it was calculated for, and whose messages are looked at.
    """
    match plan:
        case HdpPlan():
            return _of_hdp(plan, training)
        case SumNoisePlan():
            return _of_sums(plan, training)
        case NoisePlan():
            return _of_formula(plan)
        case _:
            assert_never(plan)


def _of_formula(plan: NoisePlan) -> DefenseAudit:
    """Say that noise before encryption, which is that of its paper's formula, is not audited."""
    why = "The noise of this exchange is calculated from its paper's formula, and no audit of it is known here."
    claim = ClaimAudit("noise of the exchange", "", None, "", "not covered", (why,))
    return DefenseAudit(plan.name, "exchange", (claim,), (f"{plan.name}: {why}",))


def _of_hdp(plan: HdpPlan, training: NoisyTraining) -> DefenseAudit:
    """Return what is found of HDP-VFL's noise: of all that a passive party sends, and the label party."""
    claims = []
    if "passive" in training.roles:
        unmet = _unmet(plan, training, "passive")
        moved = realised_sensitivity(plan, training.settings, training.exchange, seed=training.seed)
        claims.append(_of_stream(plan, "a passive party", plan.passive, unmet, moved=moved))
    if "active" in training.roles:
        unmet = [
            *_void(training, plan.task),
            *_unclipped(plan, training.exchange),
            *_unmet(plan, training, "active"),
        ]
        claims.append(_of_stream(plan, "the label party", plan.active, unmet))
    measured = {
        "passive": "A passive party's was tried on one pair of neighbouring rows.",
        "active": "The label party's is not measured.",
    }
    gap = (
        f"{plan.name}: its sensitivity is that of a theorem about the training, and its noise is calculated. "
        + " ".join(measured[role] for role in training.roles)
    )
    return DefenseAudit(plan.name, "exchange", tuple(claims), (gap,))


def _unmet(plan: HdpPlan, training: NoisyTraining, sender: Role) -> list[str]:
    """Return what the noise of parties of one role was not calculated for, in sentences."""
    own = [party for party in training.parties if (party.name == training.active) == (sender == "active")]
    # What has ended a promise comes before what never was in it.
    unmet = [line.removeprefix("Not covered: ") for line in training.released]
    unmet += [line for party in own if (line := unmet_by_columns(party))]
    # In an evaluation passive parties send, and the label party does not.
    if sender == "passive" and plan.passive.evaluations is None:
        unmet.append(sentence(unprotected_evaluations(plan.training)))
    return unmet + (_seeded() if plan.fixed else [])


def _of_sums(plan: SumNoisePlan, training: NoisyTraining) -> DefenseAudit:
    """Return what a calculation finds of noise on sums: of one label at the label party, and of nothing else."""
    agreed, run = plan.settings, plan.run
    found = audit_gaussian(
        agreed.epsilon, agreed.delta, sigma=run.sigma, sensitivity=run.mu * run.sigma, unmatched=run.missing
    )
    unmet = [*_void(training, Binary()), *(_seeded() if plan.fixed else [])]
    verdict: Verdict = "not covered" if unmet and found.verdict == "proven" else found.verdict
    claim = ClaimAudit(
        f"All that {plan.active} sends in the run is ({agreed.epsilon:g}, {agreed.delta:g})-differentially private in "
        "a record's label.",
        f"δ at ε {agreed.epsilon:g}",
        agreed.delta,
        f"label at {plan.active}",
        verdict,
        (found.why, plan.honest, *unmet) if verdict == found.verdict else (*unmet, found.why, plan.honest),
        Calculated(found.delta, "Gaussian noise of that σ on what one label moves in all epochs, exactly"),
        per="run",
    )
    gap = f"{plan.name}: that columns are what is multiplied is assumed; the noise is calculated, not measured."
    return DefenseAudit(plan.name, "exchange", (claim,) if "active" in training.roles else (), (gap,))


def _unclipped(plan: HdpPlan, exchange: Exchange) -> Iterator[str]:
    """Say whether the label party uses larger activations than its noise was calculated for."""
    own, agreed = getattr(exchange, "receiver_clips", NO_CLIPS).activation, plan.clips.activation
    if agreed is not None and (own is None or own > agreed * (1.0 + ROUNDING)):
        yield (
            f"Receivers: the label party is to clip activations to {agreed:g} before use, and exchange "
            f"{type(exchange).__name__} does not: how far its derivatives move is not known."
        )


def _of_stream(
    plan: HdpPlan, who: str, stream: Stream, unmet: Sequence[str], *, moved: float | None = None
) -> ClaimAudit:
    """Return what is found of all that a party sends; ``moved`` is how far one row was seen to move it, if at all."""
    agreed, tried = plan.settings, []
    if moved is not None:
        tried.append(
            f"Tried: one changed row moved all that {who} sends by {moved:.4g}, and its noise is calculated for "
            f"{stream.sensitivity:.4g}."
        )
    # Messages are in float32.
    voided = moved is not None and moved > stream.sensitivity * (1.0 + 1e-4)
    if voided:
        tried.append("It does not clip what it receives as agreed (exchange.receiver_clips), or leaves its ball.")
    seen = stream if moved is None else replace(stream, sensitivity=max(stream.sensitivity, moved))
    found = audit_gaussian(
        agreed.epsilon,
        agreed.delta,
        sigma=seen.sigma,
        # With evaluations and predictions that have noise of their own, and with rounding to the grid.
        sensitivity=seen.mu * seen.sigma,
        unmatched=seen.missing,
        classic=agreed.by_textbook,
    )
    verdict: Verdict = "not covered" if (unmet or voided) and found.verdict == "proven" else found.verdict
    stated = (
        f"All that {who} sends in the training is ({agreed.epsilon:g}, {agreed.delta:g})-differentially private in a "
        "record's row."
    )
    why = (found.why, *tried, *unmet) if verdict == found.verdict else (*unmet, *tried, found.why)
    return ClaimAudit(
        stated,
        f"δ at ε {agreed.epsilon:g}",
        agreed.delta,
        f"row at {who}",
        verdict,
        why,
        Calculated(
            found.delta,
            "Gaussian noise of that σ on what one row moves, noisy evaluations and predictions included, exactly",
        ),
        per="run",
    )


def _void(training: NoisyTraining, task: Task) -> list[str]:
    """Say what voids a guarantee of labels, if anything does."""
    void = void_for_labels(training.parties, task)
    return [sentence(void)] if void else []


def _seeded() -> list[str]:
    return [f"{gap.item.capitalize()}: {gap.reason}." for gap in not_covered("seeded noise")]


def unmet_by_columns(data: PartyData) -> str:
    """Say that columns of a party are encoded by statistics of its rows, on which claims about one row rest."""
    learned = learned_columns(data)
    if learned == ():
        return ""
    which = "" if learned is None else f" ({', '.join(learned[:3])}{', …' if len(learned) > 3 else ''})"
    known = "may be" if learned is None else "are"
    (gap,) = not_covered("statistics")
    return f"Statistics: columns of {data.name}{which} {known} encoded by them; {gap.reason} (data.ranges)."

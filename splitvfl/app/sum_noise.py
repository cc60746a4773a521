"""Noise on the sums of exchange residue: from what parties agree on (ε, δ) to its size, and to what is said of it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from splitvfl.app.batching import Batching, check_used_once
from splitvfl.app.noise_basis import NoiseBasis, void_for_labels
from splitvfl.app.noise_stream import Stream, cut_tail, least_sigma, rounded_up, success
from splitvfl.data.columns import PartyData
from splitvfl.errors import ConfigError, PrivacyError
from splitvfl.exchange.base import Exchange
from splitvfl.exchange.noise import SumNoiseSettings
from splitvfl.exchange.paillier import EncryptedExchange
from splitvfl.hooks import At, Defense
from splitvfl.learning.tasks import Binary, Task
from splitvfl.privacy.accounting import MessagesPerUse, PrivacyBudget
from splitvfl.privacy.composition import PrivacyLoss
from splitvfl.privacy.statement import claim_warnings, not_covered
from splitvfl.report.rows import counted

# Residues are computed in float32: one label moves one by 1, and by rounding; rows are bounded in it too.
_FLOAT = 2.0**-20


@dataclass(frozen=True)
class SumNoisePlan:
    """How much noise is on the sums that the label party opens, and on what that rests.

    Attributes:
        settings: What was agreed.
        active: The label party.
        passives: The others.
        training: How long, in batches of how many.
        once: What one use of a record is: how far its label moves all sums of a step, the noise, and how many numbers.
        own: Whether the label party learns from a noisy sum of its own.
        ends: Steps that are taken: all, unless the budget for given noise ends before.
        fixed: Whether noise is drawn from a fixed seed.
    """

    settings: SumNoiseSettings
    active: str
    passives: tuple[str, ...]
    training: Batching
    once: Stream
    own: bool
    ends: int
    fixed: bool

    radius = None
    fixed_seeds = False

    @property
    def name(self) -> str:
        """What it is called beside a run's figures."""
        given = ", given noise" if self.settings.sigma is not None else ""
        return f"noise on sums(epsilon={self.settings.epsilon:g}, delta={self.settings.delta:g}{given})"

    @property
    def uses(self) -> int:
        """In how many of the steps that are taken a record is used, at most."""
        return math.ceil(self.ends / self.training.each)

    @property
    def run(self) -> Stream:
        """What all steps that are taken come to, for one label."""
        return _over(self.once, self.uses)

    def terms(self) -> dict[str, object]:
        """Return what must be equal at every party, by the names under which it is compared."""
        return {
            **{f"noise on sums: {name}": value for name, value in self.settings.model_dump().items()},
            "noise on sums: parties": sorted((self.active, *self.passives)),
            "noise on sums: own part": self.own,
            "noise on sums: sensitivity": self.once.sensitivity,
            "noise on a sum": self.once.sigma,
        }

    def supplied(self, exchange: Exchange) -> Mapping[str, Any]:
        """Return the settings with the noise that was calculated."""
        return {"sum_noise": self.settings.model_copy(update={"sigma": self.once.sigma})}

    def budget(self) -> PrivacyBudget:
        """Return the account of a run: of one label, towards all passive parties together."""
        cost = PrivacyLoss(mu=self.once.mu, unmatched=self.once.missing)
        stream = MessagesPerUse(self.active, self.passives, {"label": cost}, self.training.each)
        agreed = self.settings
        return PrivacyBudget(
            [stream],
            self.training.steps,
            agreed.delta,
            epsilon=None if agreed.sigma is None else agreed.epsilon,
            relation="label",
            records=self.training.records,
        )

    @property
    def reserve(self) -> None:
        """Nothing: scores follow from the noisy sums, which are accounted for."""

    def defenses(self) -> list[Defense | At]:
        """Return none: the exchange itself adds the noise, to what no defense sees."""
        return []

    def check(self, data: PartyData, task: Task) -> None:
        """Refuse records that are used more often than once an epoch; labels are the exchange's affair.

        Raises:
            ConfigError: If there are such records.
        """
        check_used_once(data, "exchange.sum_noise")

    def notes(self, parties: Mapping[str, PartyData]) -> list[str]:
        """Return the statement: what is protected, from whom, by what, and what is not covered."""
        void = void_for_labels(parties.values(), Binary())
        said = [f"Not covered: one record's label. {void}."] if void else []
        return [self._what(), self._for_labels(), *said, *self.conditions(), *self._generator(), *self._warnings()]

    @property
    def honest(self) -> str:
        """What the promise rests on and nobody can check, in whole sentences."""
        return (
            f"It rests on {' and '.join(self.passives)} multiplying residues with the very columns that are bounded: "
            "what is multiplied is encrypted, and masked when it is opened, so that nobody can check it. A party that "
            "multiplies one record's residue with a large number reads its label through the noise; limits of "
            "encryption bound how large, not enough."
        )

    def conditions(self) -> list[str]:
        """Return what the promise rests on, and what it does not cover, in whole sentences."""
        found = [
            self.honest,
            "Not covered: settings that were chosen by results, and figures on training labels that are shown; several "
            "records of one person, which cost as many times as much; other runs over the same records, such as one "
            "that is started anew; columns of anybody; what columns and the model predict of a label; that the label "
            "party's own sums are rounded, in floating point.",
        ]
        if self.fixed:
            return [*found, *(f"Not covered: {gap.item}: {gap.reason}." for gap in not_covered("seeded noise"))]
        return [
            *found,
            "Not covered: anything, from whoever reads the folder of the label party's run: the key of its noise is "
            "there.",
        ]

    def _what(self) -> str:
        agreed, shape, once = self.settings, self.training, self.once
        length = (
            f"{counted(shape.epochs, 'epoch')}, {counted(shape.steps, 'step')}"
            if self.ends == shape.steps
            else f"{counted(self.ends, 'step')}, where all parties end, of {shape.steps:,} in {shape.epochs:,} epochs,"
        )
        own = (
            f" {self.active} learns from a noisy sum of its own, which is counted."
            if self.own
            else f" {self.active} learns nothing itself."
        )
        return (
            f"Noise on sums for ε {agreed.epsilon:g} and δ {agreed.delta:g} over {length} of {shape.described}: σ "
            f"{once.sigma:.3g} on each sum that {self.active} opens, {once.sigma / shape.size:.3g} on the gradient of "
            f"each weight. One label moves all sums of a step by {once.sensitivity:.4g} at most.{own}"
        )

    def _for_labels(self) -> str:
        agreed, together = self.settings, " and ".join(self.passives)
        delta = max(agreed.delta, self.run.delta_at(agreed.epsilon)) if agreed.sigma is None else agreed.delta
        told = success(self.run.mu, self.run.missing)
        return (
            f"One record's label at {self.active}: all that {self.active} sends in the run is ({agreed.epsilon:g}, "
            f"{delta:.3g})-differentially private in it, towards {together}"
            f"{' together' if len(self.passives) > 1 else ''}, whatever else they know. It is told right at most "
            f"{told:.1%} of the time, if neither label is commoner. All weights follow from what was "
            "released, or from a sum with the same noise: the trained model and its scores cost nothing more."
        )

    def _generator(self) -> list[str]:
        if self.fixed:
            return []
        return [
            "Noise is discrete Gaussian, from AES-256 in counter mode under a key of the operating system. In ε and δ "
            f"is counted that sums are rounded to its grid (up to {self.run.rounding:.2g} of μ), and that none beyond "
            f"13 σ is drawn {cut_tail(self.run.missing)}."
        ]

    def _warnings(self) -> list[str]:
        said = claim_warnings(self.settings.epsilon, self.settings.delta, records=self.training.records)
        return [f"Warning: {warning}." for warning in said]


def sum_noise_plan(basis: NoiseBasis, settings: SumNoiseSettings) -> SumNoisePlan:
    """Return the noise on sums of a training.

    Args:
        basis: The training.
        settings: What was agreed.

    Raises:
        ConfigError: If the training is not one that noise can be calculated for.
    """
    _check_training(basis)
    assert isinstance(basis.exchange, EncryptedExchange)
    encryption = basis.exchange.encryption
    active, *passives = basis.names
    batching = basis.batching
    norm = _row_norm(basis)
    # Columns are encoded in fixed point, each entry to within half of the last bit.
    encoded = norm + math.sqrt(encryption.most_columns) * 2.0 ** -(encryption.feature_bits + 1)
    own = basis.exchange.own_part == "sent"
    own_norm = math.hypot(norm, 1.0) if basis.intercept else norm
    # And by half of the last encoded bit up and down, where that rounding crosses it.
    residue = 1.0 + _FLOAT + 2.0**-encryption.value_bits
    moved = residue * math.sqrt(len(passives) * encoded**2 + (own_norm**2 if own else 0.0))
    numbers = float((len(passives) + own) * encryption.most_columns)
    once = Stream(moved, moved, settings.delta, numbers, encoded / 2.0)
    if settings.sigma is not None:
        once = once.with_sigma(settings.sigma)
    else:
        whole = _over(once, batching.epochs)
        try:
            once = once.with_sigma(rounded_up(least_sigma(whole, settings.epsilon, settings.delta)))
        except PrivacyError as error:
            raise ConfigError(f"{basis.source}: exchange.sum_noise: {error}") from error
    plan = SumNoisePlan(settings, active, tuple(passives), batching, once, own, batching.steps, basis.fixed)
    return plan if settings.sigma is None else _until_overspent(plan, basis.source)


def _over(once: Stream, uses: int) -> Stream:
    """Return what so many uses of a record come to: each a release, given what was released before."""
    return replace(once, sensitivity=math.sqrt(uses) * once.sensitivity, numbers=uses * once.numbers)


def _until_overspent(plan: SumNoisePlan, source: str) -> SumNoisePlan:
    last, agreed = plan.budget().last_step, plan.settings
    if not last:
        raise ConfigError(
            f"{source}: exchange.sum_noise.sigma: no step fits: one with so little noise spends more than ε "
            f"{agreed.epsilon:g} at δ {agreed.delta:g}; take a larger sigma, or leave it out, and it is calculated"
        )
    return replace(plan, ends=last)


def _check_training(basis: NoiseBasis) -> None:
    for key, given, why in (
        ("early_stopping", basis.early_stopping, "it looks at true labels, and when training ends is seen by all"),
        ("autocast", basis.autocast, "residues rounded to few bits move by more than the bounds that noise rests on"),
        ("loss", basis.own_loss, "the noise is calculated for the logistic loss, whose residues one label moves by 1"),
    ):
        if given:
            raise ConfigError(f"{basis.source}: train.{key}: with exchange.sum_noise, {why}; leave it out")


def _row_norm(basis: NoiseBasis) -> float:
    norm = basis.row_norm
    if norm is None:
        raise ConfigError(
            f"{basis.source}: model.row_norm: exchange.sum_noise is calculated for rows of bounded norm; with "
            "row_norm: 1.0 longer rows are scaled down to it"
        )
    return norm

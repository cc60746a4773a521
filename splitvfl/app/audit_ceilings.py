"""What the guarantees of an experiment allow after so many epochs, by who reads and what it is about."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from splitvfl.app.hdp_plan import HdpPlan
from splitvfl.audit import DefenseAudit
from splitvfl.audit.ceilings import Ceiling, error_ceiling, gaussian_ceiling, pure_ceiling
from splitvfl.claims import GaussianDP, PureDP, claims_of, sentence
from splitvfl.config.registry import built_in
from splitvfl.hooks import hook_name
from splitvfl.party.attaching import label_promises_of_run
from splitvfl.privacy.accounting import Own, PrivacyBudget, Spent
from splitvfl.privacy.gaussian_dp import gaussian_mu
from splitvfl.privacy.statement import not_covered
from splitvfl.report.rows import counted
from splitvfl.run.trainer import Trainer

_BY_VERDICT = ("violated", "not covered")
NO_LABELS = "No defense promises anything of labels over a run."
REFUTED = "What was read of whole runs refutes what is promised of them."
NO_COLUMNS = "No defense promises anything of columns over a run."


class Allowed(NamedTuple):
    """What a guarantee allows.

    Attributes:
        ceiling: Of the smallest one; ``None``: there is none.
        why: Why it does not count here, or why there is none, in whole sentences; empty: it counts.
    """

    ceiling: Ceiling | None
    why: tuple[str, ...] = ()


def accounted_claim(plan: HdpPlan) -> GaussianDP:
    """Return what calculated noise promises of labels over a run, all told."""
    account = plan.budget()
    for step in range(account.last_step):
        account.begin(step)
    return GaussianDP(account.spent(plan.names[0], relation="label").mu, per="run", mechanism=plan.name)


class Guarantees:
    """The guarantees of one experiment.

    Args:
        trainer: Its trainer, whose defenses know the run that is planned.
        audits: What was found of its claims.
        plan: Calculated noise, if that is HDP-VFL's.
        epochs: Epochs that are planned.
    """

    def __init__(
        self,
        trainer: Trainer,
        audits: Sequence[DefenseAudit],
        plan: HdpPlan | None,
        *,
        epochs: int,
    ) -> None:
        self._epochs = epochs
        self._trainer, self._audits, self._plan = trainer, audits, plan
        self._accounts: dict[int, PrivacyBudget] = {}
        self._active = trainer.active
        # A run that proved more than is promised of one refutes every promise about it.
        refuted = any(audit.crossing == "run" and audit.verdict == "violated" for audit in audits)
        self._refuted = (REFUTED,) if refuted else ()

    @property
    def epochs(self) -> int:
        """Epochs that are planned."""
        return self._epochs

    @property
    def accounts(self) -> bool:
        """Whether what a run spends is counted."""
        return self._plan is not None

    def of_labels(self, epochs: int) -> Allowed:
        """Return what is guaranteed of labels after so many epochs."""
        found = [*self._claimed(epochs), *self._accounted("label", (self._active.name,), epochs)]
        counts = [each for each in found if each.ceiling is not None and not each.why]
        void = [each for each in found if each.ceiling is not None and each.why]
        if counts or void:
            best = _least(counts or void)
            return Allowed(best.ceiling, (*self._refuted, *best.why))
        reasons = tuple(dict.fromkeys(line for each in found for line in each.why))
        return Allowed(None, reasons or (NO_LABELS,))

    def of_rows(self, owners: tuple[str, ...], epochs: int) -> Allowed:
        """Return what is guaranteed of rows after so many epochs: of one owner's, or of a record at all of them."""
        found = list(self._accounted("row", owners, epochs))
        if found:
            return _least(found)
        single = [
            f"{audit.defense} promises something of one message only; what all of a run tell is not accounted for."
            for audit in self._audits
            for claim in audit.claims
            if claim.relation == "row of a record" and claim.limits and owners != (self._active.name,)
        ]
        return Allowed(None, tuple(dict.fromkeys(single)) or (NO_COLUMNS,))

    def noise_alone(self, readers: int, epochs: int) -> Ceiling | None:
        """Return what the noise on a record's own messages allows, whatever else its label moves; ``None``: unknown."""
        releases = f"its own {counted(epochs, 'message')}"
        beside = "what a label moves in later messages of others is left out"
        found: list[Ceiling] = []
        on_coefficients = built_in("defenses")["coefficient-noise"]
        for defense in dict.fromkeys(defense for cut in self._active.cuts.values() for defense in cut.gradient):
            draws = 1 if getattr(defense, "one_draw", False) else readers
            if isinstance(defense, on_coefficients) and not self._trainer.exchange.sums_only:
                mu = math.sqrt(epochs * draws) * self._apart(defense) / defense.sigma
                by = f"Gaussian noise of σ = {defense.sigma:.3g} on {releases}: μ = {mu:.3g}; {beside}."
                found.append(gaussian_ceiling(mu, by))
            for claim in claims_of(defense):
                if isinstance(claim, GaussianDP) and claim.per == "message":
                    mu = math.sqrt(epochs) * claim.mu
                    by = f"{hook_name(defense)} on {releases}: μ = √{epochs} · {claim.mu:.3g}; {beside}."
                    found.append(gaussian_ceiling(mu, by))
                if isinstance(claim, PureDP) and claim.per == "message" and claim.unit == "label of a record":
                    by = f"{hook_name(defense)} on {releases}: ε = {epochs} · {claim.epsilon:.3g}; {beside}."
                    found.append(pure_ceiling(epochs * claim.epsilon, by))
        return min(found, key=lambda each: each.right, default=None)

    def _apart(self, defense: Any) -> float:
        """Return how far two labels move a coefficient."""
        if self._plan is None or self._plan.loss.name == "logistic":
            scale: float = defense.scale  # as its own documentation has it: 1, or Taylor's 4
            return scale
        return self._plan.constants.span

    # --- where they come from

    def _claimed(self, epochs: int) -> Iterator[Allowed]:
        own_part = self._trainer.exchange.own_part
        over_a_run = dict(label_promises_of_run(self._active, epochs, own_part=own_part))
        for audit in self._audits:
            if audit.crossing == "exchange":
                yield from _noise_on_sums(audit)
            if audit.crossing in ("run", "exchange"):
                continue
            for claim in audit.claims:
                if claim.relation != "label of a record" or claim.claimed is None:
                    continue
                void: tuple[str, ...] = (f"{audit.defense}: {claim.why[0]}",) if claim.verdict in _BY_VERDICT else ()
                if claim.per == "run":
                    yield Allowed(_ceiling(claim.quantity, claim.claimed, sentence(claim.claim), claim.verdict), void)
                    continue
                total = over_a_run.get(audit.defense)
                if isinstance(total, PureDP) and claim.quantity == "ε":
                    by = f"{audit.defense}: ε = {epochs} · {claim.claimed:.3g}, as releases add up."
                    yield Allowed(replace(pure_ceiling(total.epsilon, by), verdict=claim.verdict), void)
                elif isinstance(total, str):
                    yield Allowed(None, (f"{audit.defense}: of a run nothing is promised: {total}.",))
                else:
                    yield Allowed(None, (f"{audit.defense} promises something of one message, and nothing of a run.",))

    def _accounted(self, relation: Own, owners: tuple[str, ...], epochs: int) -> Iterator[Allowed]:
        plan = self._plan
        if plan is None:
            return
        account = self._account_after(plan, epochs)
        if len(owners) > 1:
            spent, missing = account.outsider(), plan.passive.missing * (len(owners) - 1) + plan.active.missing
        else:
            spent = account.spent(owners[0], relation=relation)
            missing = (plan.active if owners[0] == self._active.name else plan.passive).missing
        if missing >= 1.0:
            why = f"{plan.name}: over so many numbers δ reaches 1, so that the statement is void."
            yield Allowed(None, (why,))
            return
        void = self._void_plan(owners, relation)
        found = gaussian_ceiling(spent.mu, _spent_words(spent), unmatched=missing)
        yield Allowed(replace(found, verdict="proven" if not void else "not covered"), void)

    def _void_plan(self, owners: tuple[str, ...], relation: Own) -> tuple[str, ...]:
        """Return why the calculated noise of these parties does not count, of their labels or of their rows."""
        (audit,) = (audit for audit in self._audits if audit.crossing == "exchange")
        passive, active = audit.claims
        about = [active if owner == self._active.name else passive for owner in owners]
        void = _BY_VERDICT if relation == "row" else ("violated",)
        found = [line for claim in about if claim.verdict in void for line in claim.why[:1]]
        if relation == "label" and self._plan is not None and self._plan.fixed:
            # Statistics of columns and what passive parties show in evaluations depend on no label.
            found += [f"{gap.item.capitalize()}: {gap.reason}." for gap in not_covered("seeded noise")]
        return tuple(dict.fromkeys(found))

    def _account_after(self, plan: HdpPlan, epochs: int) -> PrivacyBudget:
        """Return the account at the end of so many epochs, or where the budget ends."""
        if epochs not in self._accounts:
            account = plan.budget()
            for step in range(min(epochs * len(self._trainer.batches), account.last_step)):
                account.begin(step)
            self._accounts[epochs] = account
        return self._accounts[epochs]


def _noise_on_sums(audit: DefenseAudit) -> Iterator[Allowed]:
    """Yield what noise on sums allows of labels: that of the whole run, which holds after fewer epochs too.

    HDP-VFL's claims are about rows; what it promises of labels, its account says.
    """
    for claim in audit.claims:
        if claim.relation.startswith("label at ") and claim.claimed is not None:
            void = (f"{audit.defense}: {claim.why[0]}",) if claim.verdict in _BY_VERDICT else ()
            yield Allowed(_ceiling(claim.quantity, claim.claimed, sentence(claim.claim), claim.verdict), void)


def _ceiling(quantity: str, claimed: float, by: str, verdict: str) -> Ceiling | None:
    name, _, given = quantity.partition(" at ε ")
    match name:
        case "δ":
            found = gaussian_ceiling(gaussian_mu(epsilon=float(given), delta=claimed), by)
        case "ε":
            found = pure_ceiling(claimed, by)
        case "μ":
            found = gaussian_ceiling(claimed, by)
        case "detection error":
            found = error_ceiling(claimed, by)
        case _:
            return None
    return replace(found, verdict=verdict)


def _least(found: Sequence[Allowed]) -> Allowed:
    return min(found, key=lambda each: math.inf if each.ceiling is None else each.ceiling.right)


def _spent_words(spent: Spent) -> str:
    return (
        f"All messages of {counted(spent.steps, 'step')} are one Gaussian release of μ = {spent.mu:.3g}: "
        f"{'no ε' if math.isinf(spent.epsilon) else f'ε = {spent.epsilon:.3g}'} at δ = {spent.delta:g}."
    )

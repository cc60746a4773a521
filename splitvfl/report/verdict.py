"""What is concluded from the figures of a run about labels, and about one party's features: a state with its ground.

Two questions are kept apart. *An individual label*: what do the messages reveal about a record's own label? A
guarantee and the excess leakage answer it, and the answer has a state. *Labels in general*: what has the partner
learned about labels of people of whom it never got a message? That is shown beside it, and has no state; nor have the
total and the baseline.

The rules are a table, and the first row that matches decides (:func:`label_verdict`). Every row names its ground.

>>> measured = Excess(0.60, low=0.52, high=0.68, canaries=300)
>>> label_verdict(LabelEvidence(excess=measured), goal=0.60).state
'inconclusive'
>>> guarantee = Guarantee(0.60, "run", "asymmetric-response(detection_error=0.4)")
>>> label_verdict(LabelEvidence(guarantee=guarantee, excess=measured), goal=0.60).state
'below-goal'
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from statistics import NormalDist
from typing import Final, Literal

from splitvfl.claims import Guarantee
from splitvfl.errors import ArgumentError
from splitvfl.leakage.in_general import KnowledgeGain, LabelFreeAttack

State = Literal["no-label-dependent-message", "below-goal", "above-goal", "inconclusive", "not-measured"]
"""What is concluded. ``"not-measured"`` is of features only; of labels that is inconclusive, with what would decide."""

Row = Literal[
    "one-way",
    "contradicted",
    "disagreement",
    "guarantee",
    "solvable",
    "excess-above",
    "excess-below",
    "excess-undecided",
    "attack",
    "undecided",
]
"""The row of the table that decided, in their order."""

ROUNDING: Final = 1e-9
"""By how much a guarantee may be above the goal and still count as equal: by the rounding of its formula."""

DISAGREE: Final = 3.4
CONTRADICT: Final = 4.4
"""Standard errors of the excess above the guarantee, on the logit scale, from which on they disagree or contradict."""

POWER: Final = 0.9
"""How often the number of canaries that is named would decide, if the excess is what was measured."""

NEEDS_CANARIES: Final = "an audit twin (--audit-twin); over a network canaries (audit.canaries)"
"""What would decide where nothing was measured."""

HIGHEST_GOAL: Final = 1.0 - 1e-9
"""A goal of 1 is met by everything but a sure recovery of every label."""

VARIANCE_ABOVE: Final = 0.5
EXACT_MATCHES: Final = 0.01
"""From which share of a feature's variance, or of records found exactly, features count as recovered."""


@dataclass(frozen=True, slots=True)
class Excess:
    """What messages add beyond the model's prediction: the largest AUC among canaries of all who looked.

    Attributes:
        value: The largest AUC, each attack in the orientation that other records choose.
        low: Lower end of the joint 95 % confidence interval.
        high: Upper end.
        canaries: How many.
        figures: Of how many figures it is the largest, for which the interval holds at once.
        twin: Whether it was measured on an audit twin.
    """

    value: float
    low: float
    high: float
    canaries: int
    figures: int = 3
    twin: bool = False

    def __post_init__(self) -> None:
        for name in ("value", "low", "high"):
            _check_auc(name, getattr(self, name), least=0.0)
        if not self.low <= self.value <= self.high:
            raise ArgumentError(f"expected low <= value <= high, got {self.low:g}, {self.value:g}, {self.high:g}")

    @property
    def quantile(self) -> float:
        """Half width of the interval in standard errors."""
        return joint_quantile(self.figures)

    def above(self, bound: float) -> float:
        """Return how many standard errors it is above a bound; below it that is negative.

        The error is that of the half of the interval towards the bound, as the other one may end at 1.
        """
        distance = self.value - bound
        error = (self.value - self.low if distance > 0.0 else self.high - self.value) / self.quantile
        return distance / error if error > 0.0 else math.copysign(math.inf, distance) if distance else 0.0

    def needed(self, goal: float) -> int | None:
        """Return how many canaries decide it nine times of ten if the excess is what was measured.

        The variance is Hanley and McNeil's for an exponential score, with as many canaries of either label.

        Returns:
            ``None`` where it is the goal itself: then no number decides it.

        >>> measured = Excess(0.5, low=0.42, high=0.58, canaries=300)
        >>> 440 <= measured.needed(0.6) <= 470
        True
        """
        if abs(self.value - goal) < 1e-6:
            return None
        auc = min(max(self.value, 1.0 - self.value), 1.0 - 1e-6)
        both = auc / (2.0 - auc) + 2.0 * auc * auc / (1.0 + auc) - 2.0 * auc * auc
        reach = (self.quantile + NormalDist().inv_cdf(POWER)) / abs(self.value - goal)
        return math.ceil(2.0 * both * reach * reach)


@dataclass(frozen=True, slots=True)
class LabelEvidence:
    """All that bears on whether one partner learns individual labels.

    Attributes:
        one_way: Whether no message of the training depends on labels.
        releases: What else the partner sees that is made from labels, by name.
        guarantee: The tightest theorem that is known; ``None``: none.
        solvable: Why shapes allow to solve for the true labels; empty where they do not.
        prevented_by: The smallest change that prevents it.
        excess: What was measured among canaries; ``None`` without any.
        label_free: The attack that decides where there are no canaries; ``None`` without one.
        measurable: Whether messages about single records come back, in which canaries could be looked for.
    """

    one_way: bool = False
    releases: tuple[str, ...] = ()
    guarantee: Guarantee | None = None
    solvable: str = ""
    prevented_by: str = ""
    excess: Excess | None = None
    label_free: LabelFreeAttack | None = None
    measurable: bool = True


@dataclass(frozen=True, slots=True)
class Total:
    """Total leakage: what everything that the partner has infers together.

    Attributes:
        value: The largest leak AUC of the joint reader, the baseline and every attack, on the same records.
        includes_features: Whether the partner's own features are in it; else it is of messages and predictions only.
    """

    value: float
    includes_features: bool


@dataclass(frozen=True, slots=True)
class Baseline:
    """What the partner infers alone, without any message; ``None`` where it is not known.

    Attributes:
        without_labels: AUC of the first principal component of its features.
        with_labels: AUC of models of its features, fitted with labels of other records.
    """

    without_labels: float | None
    with_labels: float | None


@dataclass(frozen=True, slots=True)
class Verdict:
    """What is concluded, with the figures that stand beside it.

    Attributes:
        state: The conclusion.
        row: The row of the table that decided.
        reason: Its ground, as a clause without a full stop.
        decided_by: What would decide it; empty where it is decided.
        prevented_by: The smallest change that prevents it, where it is known before the first step; else empty.
        guarantee: The tightest guarantee; ``None``: none.
        excess: What messages add beyond the model's prediction; ``None``: not measured.
        randomised: What they reveal of the randomised labels that stand for canaries'; ``None``: there are none.
        total: Total leakage; ``None``: not measured.
        baseline: What the partner infers alone; ``None``: not known.
        knowledge_gain: Labels in general; ``None``: not measured.
        measurable: Whether messages about single records come back, in which canaries could be looked for.
    """

    state: State
    row: str
    reason: str
    decided_by: str = ""
    prevented_by: str = ""
    guarantee: Guarantee | None = None
    excess: Excess | None = None
    randomised: Excess | None = None
    total: Total | None = None
    baseline: Baseline | None = None
    knowledge_gain: KnowledgeGain | None = None
    measurable: bool = True


@dataclass(frozen=True, slots=True)
class PartyVerdict:
    """What is concluded about one passive party.

    Attributes:
        labels: What it can infer of the label owner's labels; ``None`` where only its own features are known of.
        features: What others can infer of its features.
    """

    labels: Verdict | None
    features: Verdict


def worst_of_labels(verdicts: Mapping[str, PartyVerdict]) -> tuple[str, Verdict] | None:
    """Return the party whose verdict about labels counts, of several: above the goal, then inconclusive, then any.

    Returns:
        Its name and the verdict; ``None`` where nothing is known of labels.
    """
    order: tuple[State, ...] = ("above-goal", "inconclusive", "below-goal")
    found = [(name, one.labels) for name, one in verdicts.items() if one.labels is not None]
    rank = {state: number for number, state in enumerate(order)}
    return min(found, key=lambda one: rank.get(one[1].state, len(order)), default=None)


def label_verdict(
    evidence: LabelEvidence,
    *,
    goal: float,
    randomised: Excess | None = None,
    total: Total | None = None,
    baseline: Baseline | None = None,
    knowledge_gain: KnowledgeGain | None = None,
) -> Verdict:
    """Return what is concluded about individual labels: of the rows below, the first that matches.

    1. No message depends on labels, and nothing else that the partner sees does: no label-dependent message.
    2. The excess is more than 4.4 standard errors above a guarantee of the run: above the goal, and a bug; more than
       3.4: inconclusive.
    3. The guarantee of the run is at most the goal: below it.
    4. Shapes allow to solve for the true labels: above it.
    5. The excess: above where its whole interval is, below likewise, else inconclusive.
    6. Without an excess, an attack that needs no labels: above.
    7. Else inconclusive.

    It depends on nothing but the evidence and the goal: not on the baseline, the total, or labels in general.

    Args:
        evidence: What is known.
        goal: The AUC that an individual label's leak is to stay below or at, from 0.5 to below 1.
        randomised: Shown beside it, as are the next three: the excess of randomised labels.
        total: Total leakage.
        baseline: What the partner infers alone.
        knowledge_gain: Labels in general.

    Raises:
        ArgumentError: If the goal is out of its range.
    """
    if not 0.5 <= goal < 1.0:
        raise ArgumentError(f"goal must be from 0.5 to below 1, got {goal!r}")
    return replace(
        _by_table(evidence, goal),
        guarantee=evidence.guarantee,
        excess=evidence.excess,
        randomised=randomised,
        total=total,
        baseline=baseline,
        knowledge_gain=knowledge_gain,
        measurable=evidence.measurable,
    )


def _by_table(evidence: LabelEvidence, goal: float) -> Verdict:
    if evidence.one_way and not evidence.releases:
        return Verdict("no-label-dependent-message", "one-way", "by protocol, training only")
    bound = evidence.guarantee
    if bound is not None and bound.of_run and not evidence.releases:
        found = _against_bound(bound, evidence.excess, goal)
        if found is not None:
            return found
    if evidence.solvable:
        return Verdict("above-goal", "solvable", evidence.solvable, prevented_by=evidence.prevented_by)
    if evidence.excess is not None:
        return _by_excess(evidence.excess, goal)
    attack = evidence.label_free
    if attack is not None and attack.decides(goal):
        return Verdict("above-goal", "attack", f"{attack.name} reaches {attack.auc:.2f} and needs no labels")
    if evidence.releases and evidence.one_way:
        seen = " and ".join(evidence.releases)
        return Verdict(
            "inconclusive", "undecided", f"the partner sees what is made from labels: {seen}", f"a run without {seen}"
        )
    if not evidence.measurable:
        return Verdict("inconclusive", "undecided", "the excess cannot be measured in this protocol", "a guarantee")
    return Verdict("inconclusive", "undecided", "not measured", NEEDS_CANARIES)


def _against_bound(bound: Guarantee, excess: Excess | None, goal: float) -> Verdict | None:
    """Return what a guarantee of the run decides, alone or against what was measured."""
    distance = -math.inf if excess is None else excess.above(bound.auc)
    if distance > CONTRADICT:
        return Verdict("above-goal", "contradicted", "guarantee contradicted: report this as a bug")
    if distance > DISAGREE:
        return Verdict("inconclusive", "disagreement", "guarantee and measurement disagree", "another run")
    if bound.auc > goal + ROUNDING:
        return None
    return Verdict(
        "below-goal",
        "guarantee",
        f"guaranteed for the whole run: AUC at most {bound.auc:.2f}, goal {goal:.2f}; {_measured(distance, excess)}",
    )


def _measured(distance: float, excess: Excess | None) -> str:
    if excess is None:
        return "not measured"
    significant = distance > NormalDist().inv_cdf(0.5 + 0.5 * 0.95 ** (1.0 / excess.figures))
    return "measured higher (p < 0.05), repeat" if significant else "measured, consistent"


def _by_excess(excess: Excess, goal: float) -> Verdict:
    interval = f"95 % CI {excess.low:.2f}–{excess.high:.2f}"
    where = " of the audit twin" if excess.twin else ""
    found = f"excess {excess.value:.2f} ({interval}, {excess.canaries:,} canaries{where}), goal {goal:.2f}"
    if excess.low > goal:
        return Verdict("above-goal", "excess-above", found)
    if excess.high < 0.5:
        return Verdict(
            "inconclusive", "excess-undecided", f"{found}: read the other way round it is more", "another run"
        )
    if excess.high <= goal:
        return Verdict("below-goal", "excess-below", found)
    needed = excess.needed(goal)
    enough = (
        "only a guarantee: the excess is the goal itself, and no number of canaries decides that"
        if needed is None
        else f"about {max(needed, excess.canaries + 1):,} canaries, in nine runs of ten"
    )
    return Verdict("inconclusive", "excess-undecided", found, enough)


# --- features


@dataclass(frozen=True, slots=True)
class FeatureEvidence:
    """All that bears on whether others recover one party's features.

    Attributes:
        guaranteed: A theorem that bounds what anybody recovers, by name; empty: none.
        solvable: Why features follow by solving equations; empty where they do not.
        recovered: How many features a reader recovers of their variance more than one half beyond the baseline, with
            the lower end of the paired 95 % confidence interval; ``None`` where no reader ran.
        features: How many there are.
        exact_matches: Share of records of which all features are recovered within a tolerance; ``None``: not measured.
    """

    guaranteed: str = ""
    solvable: str = ""
    recovered: int | None = None
    features: int = 0
    exact_matches: float | None = None


def feature_verdict(evidence: FeatureEvidence) -> Verdict:
    """Return what is concluded about one party's features.

    Readers give lower bounds, so that no measurement shows that features are safe: only a guarantee does.
    """
    if evidence.solvable:
        return Verdict("above-goal", "solvable", evidence.solvable)
    if evidence.recovered:
        what = f"{evidence.recovered} of {evidence.features} features recovered above {VARIANCE_ABOVE:g}"
        return Verdict("above-goal", "recovered", f"{what} of their variance beyond the baseline")
    if evidence.exact_matches is not None and evidence.exact_matches > EXACT_MATCHES:
        return Verdict("above-goal", "exact-matches", f"{evidence.exact_matches:.0%} of records recovered exactly")
    if evidence.guaranteed:
        return Verdict("below-goal", "guarantee", f"guaranteed by {evidence.guaranteed}")
    if evidence.recovered is None and evidence.exact_matches is None:
        return Verdict("not-measured", "not-measured", "no attack on features ran", "`attacks: [ridge]`")
    return Verdict("inconclusive", "undecided", "no attack succeeded, which does not show that none can", "a guarantee")


def joint_quantile(figures: int) -> float:
    """Return the half width in standard errors of an interval of 95 % for so many figures at once, by Bonferroni."""
    return NormalDist().inv_cdf(1.0 - 0.025 / figures)


def half_width(canaries: int, *, figures: int = 3) -> float:
    """Return half of the 95 % CI of an excess of 0.5 for so many figures at once, half of the canaries positive.

    The variance under no association, ``(n₁ + n₀ + 1) / (12 n₁ n₀)`` (Mann and Whitney, 1947), on the logit scale.

    >>> [round(half_width(count), 3) for count in (144, 300, 3_000)]
    [0.114, 0.079, 0.025]
    """
    error = 4.0 * math.sqrt((canaries + 1) / 3.0) / canaries  # of the logit, whose slope is 4 at one half
    return 0.5 * math.tanh(0.5 * joint_quantile(figures) * error)


def _check_auc(name: str, value: float, *, least: float = 0.5) -> None:
    if not least <= value <= 1.0:
        raise ArgumentError(f"{name} must be from {least:g} to 1, got {value!r}")

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
from dataclasses import dataclass, replace
from statistics import NormalDist
from typing import Final, Literal

from splitvfl.errors import ArgumentError

State = Literal["no-label-dependent-message", "below-goal", "above-goal", "inconclusive", "not-measured"]
"""What is concluded. ``"not-measured"`` is of features only; of labels that is inconclusive, with what would decide."""

Scope = Literal["message", "run"]

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

MATCHED_MARGIN: Final = 0.10
SMALL_MATCHED_MARGIN: Final = 0.36
MANY_RECORDS: Final = 1_000
"""What an attack must still reach above the goal between records of equal prediction: more on few records."""

VARIANCE_ABOVE: Final = 0.5
EXACT_MATCHES: Final = 0.01
"""From which share of a feature's variance, or of records found exactly, features count as recovered."""


@dataclass(frozen=True, slots=True)
class Guarantee:
    """A theorem about a record's own label whose conditions hold in this run.

    Attributes:
        auc: Nobody's AUC is expected to exceed it, from 0.5 to 1.
        scope: Of one message, or of all of the run together.
        source: What guarantees it, by name.
        void: What else the partner sees that is made from labels, by name: it voids a guarantee of the whole run.
    """

    auc: float
    scope: Scope
    source: str
    void: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        _check_auc("auc", self.auc)

    @property
    def of_run(self) -> bool:
        """Whether it bounds what the whole run reveals."""
        return self.scope == "run" and not self.void


@dataclass(frozen=True, slots=True)
class Excess:
    """What messages add beyond the model's prediction: the largest AUC among canaries of all who looked.

    Attributes:
        auc: The largest, each in an orientation that other records chose.
        low: Lower end of the joint 95 % confidence interval.
        high: Upper end.
        canaries: How many.
        figures: Of how many figures it is the largest, for which the interval holds at once.
    """

    auc: float
    low: float
    high: float
    canaries: int
    figures: int = 3

    def __post_init__(self) -> None:
        for name in ("auc", "low", "high"):
            _check_auc(name, getattr(self, name), least=0.0)
        if not self.low <= self.auc <= self.high:
            raise ArgumentError(f"expected low <= auc <= high, got {self.low:g}, {self.auc:g}, {self.high:g}")

    @property
    def quantile(self) -> float:
        """Half width of the interval in standard errors."""
        return joint_quantile(self.figures)

    def above(self, bound: float) -> float:
        """Return how many standard errors it is above a bound, on the logit scale; below it that is negative."""
        error = (_logit(self.high) - _logit(self.low)) / (2.0 * self.quantile)
        distance = _logit(self.auc) - _logit(bound)
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
        if abs(self.auc - goal) < 1e-6:
            return None
        auc = min(max(self.auc, 1.0 - self.auc), 1.0 - 1e-6)
        both = auc / (2.0 - auc) + 2.0 * auc * auc / (1.0 + auc) - 2.0 * auc * auc
        reach = (self.quantile + NormalDist().inv_cdf(POWER)) / abs(self.auc - goal)
        return math.ceil(2.0 * both * reach * reach)


@dataclass(frozen=True, slots=True)
class LabelFreeAttack:
    """The attack without labels that says most where no canaries were trained on.

    Attributes:
        name: Its name.
        auc: Its leak AUC.
        low: Lower end of its 95 % confidence interval.
        beats_baseline: Whether it is significantly better than the partner alone without labels, on the same records.
        beats_general: Likewise than what the partner knows of labels in general.
        beats_prediction: Likewise than the model's prediction.
        matched: Its AUC between records of equal prediction and equal knowledge of labels in general.
        records: How many records that is of.
    """

    name: str
    auc: float
    low: float
    beats_baseline: bool
    beats_general: bool
    beats_prediction: bool
    matched: float
    records: int

    def decides(self, goal: float) -> bool:
        """Return whether it shows, without canaries, that single labels leak above a goal."""
        margin = MATCHED_MARGIN if self.records >= MANY_RECORDS else SMALL_MATCHED_MARGIN
        beats = self.beats_baseline and self.beats_general and self.beats_prediction
        return beats and self.low > goal and self.matched > goal + margin


@dataclass(frozen=True, slots=True)
class LabelEvidence:
    """All that bears on whether one partner learns individual labels.

    Attributes:
        one_way: Whether no message of the training depends on labels.
        releases: What else the partner sees that is made from labels, by name.
        guarantee: The tightest theorem that is known; ``None``: none.
        solvable: Why shapes allow to solve for the true labels; empty where they do not.
        excess: What was measured among canaries; ``None`` without any.
        label_free: The attack that decides where there are no canaries; ``None`` without one.
        measurable: Whether messages about single records come back, in which canaries could be looked for.
    """

    one_way: bool = False
    releases: tuple[str, ...] = ()
    guarantee: Guarantee | None = None
    solvable: str = ""
    excess: Excess | None = None
    label_free: LabelFreeAttack | None = None
    measurable: bool = True


@dataclass(frozen=True, slots=True)
class Verdict:
    """What is concluded.

    Attributes:
        state: The conclusion.
        row: The row of the table that decided.
        reason: Its ground, as a clause without a full stop.
        decided_by: What would decide it; empty where it is decided.
    """

    state: State
    row: str
    reason: str
    decided_by: str = ""


def label_verdict(evidence: LabelEvidence, *, goal: float) -> Verdict:
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

    Raises:
        ArgumentError: If the goal is out of its range.
    """
    if not 0.5 <= goal < 1.0:
        raise ArgumentError(f"goal must be from 0.5 to below 1, got {goal!r}")
    if evidence.one_way and not evidence.releases:
        return Verdict("no-label-dependent-message", "one-way", "by protocol, training only")
    bound = evidence.guarantee if evidence.guarantee is not None and evidence.guarantee.of_run else None
    if bound is not None:
        found = _against_bound(bound, evidence.excess, goal)
        if found is not None:
            return found
    if evidence.solvable:
        return Verdict("above-goal", "solvable", evidence.solvable)
    if evidence.excess is not None:
        return _by_excess(evidence.excess, goal)
    attack = evidence.label_free
    if attack is not None and attack.decides(goal):
        return Verdict("above-goal", "attack", f"{attack.name} reaches {attack.auc:.2f} and needs no labels")
    if not evidence.measurable:
        return Verdict("inconclusive", "undecided", "the excess cannot be measured in this protocol", "a guarantee")
    return Verdict("inconclusive", "undecided", "not measured", "canaries (`audit.canaries`, `--audit-twin`)")


def _against_bound(bound: Guarantee, excess: Excess | None, goal: float) -> Verdict | None:
    """Return what a guarantee of the run decides, alone or against what was measured."""
    distance = -math.inf if excess is None else excess.above(bound.auc)
    if distance > CONTRADICT:
        return Verdict("above-goal", "contradicted", "guarantee contradicted: report this as a bug")
    if distance > DISAGREE:
        return Verdict("inconclusive", "disagreement", "guarantee and measurement disagree", "another run: repeat it")
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
    found = f"excess {excess.auc:.2f} ({interval}, {excess.canaries:,} canaries), goal {goal:.2f}"
    if excess.low > goal:
        return Verdict("above-goal", "excess-above", found)
    if excess.high <= goal:
        return Verdict("below-goal", "excess-below", found)
    needed = excess.needed(goal)
    enough = (
        "no number of canaries: the excess is the goal itself; only a guarantee decides it"
        if needed is None
        else f"about {max(needed, excess.canaries + 1):,} canaries decide it in nine runs of ten"
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


# --- bounds


def auc_of_detection_error(error: float) -> float:
    """Return the largest AUC that a least detection error ½(FPR + FNR) allows: 1 − 2L².

    The curve of true against false positives stays below min(1, 1 − 2L + FPR), which encloses this area.

    >>> auc_of_detection_error(0.5), auc_of_detection_error(0.0)
    (0.5, 1.0)
    """
    if not 0.0 <= error <= 0.5:
        raise ArgumentError(f"error must be from 0 to 0.5, got {error!r}")
    return 1.0 - 2.0 * error * error


def auc_of_epsilon(epsilon: float) -> float:
    """Return the largest AUC that pure ε-differential privacy of a label allows: e^ε / (1 + e^ε).

    >>> auc_of_epsilon(0.0)
    0.5
    """
    return 1.0 / (1.0 + math.exp(-epsilon))


def auc_of_mu(mu: float) -> float:
    """Return the largest AUC that μ-Gaussian differential privacy of a label allows: Φ(μ / √2).

    >>> auc_of_mu(0.0)
    0.5
    """
    return NormalDist().cdf(mu / math.sqrt(2.0))


def joint_quantile(figures: int) -> float:
    """Return the half width in standard errors of an interval of 95 % for so many figures at once, by Bonferroni."""
    return NormalDist().inv_cdf(1.0 - 0.025 / figures)


def tightest(*guarantees: Guarantee) -> Guarantee | None:
    """Return the guarantee that says most: one of the whole run before one of a message, then the least AUC."""
    return min(guarantees, key=lambda one: (not one.of_run, one.auc), default=None)


def voided(guarantee: Guarantee | None, releases: tuple[str, ...]) -> Guarantee | None:
    """Return a guarantee with what voids it in a run."""
    return guarantee if guarantee is None else replace(guarantee, void=releases)


def _logit(value: float) -> float:
    inside = min(max(value, 1e-12), 1.0 - 1e-12)
    return math.log(inside / (1.0 - inside))


def _check_auc(name: str, value: float, *, least: float = 0.5) -> None:
    if not least <= value <= 1.0:
        raise ArgumentError(f"{name} must be from {least:g} to 1, got {value!r}")

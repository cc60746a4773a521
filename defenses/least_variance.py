"""Bounds on the variance of answers about a binary label, given how much they may tell, with proofs.

A label y in {0, 1} is positive with probability p. An answer i is drawn with probability ``P_y(i)``, and the learner
trains on a target ``t_i`` in place of the label, unbiased: ``E[t | y] = y``. Where the loss is cross entropy, which is
linear in its target, the expected gradient is then that of the labels, and what the answers add to its variance is, on
average over records, in units of what one whole label moves it,

    V = (1 − p) Var[t | 0] + p Var[t | 1].

Each function below is the least V there is under one kind of promise, with the proof. With ``δ = 1 − 2L`` and
positives as the rarer class:

===============================  =============================================  ==================================
promise                          least V                                        met by
===============================  =============================================  ==================================
AUC of the answers ≤ 1 − L       ``p (1 − δ) / δ``                              AsymmetricResponse, epsilon=None
detection error ≥ L              ``p (1 − p) (1 − δ) / δ``                      AbstainingResponse, epsilon=None
detection error ≥ L and ε        ``v / ρ + p (1 − p) (1 − ρ) / ρ``, v as below  AbstainingResponse
ε                                ``v = e^ε / (e^ε − 1)²``                       MemoisedResponse
===============================  =============================================  ==================================

In numbers, for 6.7 % positives and L = .4, against answers that keep the same promise:

==========================================  =======================  =====  ======
answers                                     promise                  V      AUC
==========================================  =======================  =====  ======
asymmetric response, no ε                   AUC ≤ .6                 .27    .600
asymmetric response, ε = 3                  AUC ≤ .6, and ε          .52    .600
Gaussian targets, remembered                AUC ≤ .6                 7.79   .600
abstaining response, no ε                   detection error ≥ .4     .25    .680
abstaining response, ε = 3                  the same, and ε          .47    .678
Gaussian targets, remembered                detection error ≥ .4     3.90   .640
memoised response, flipped with π = .4      detection error ≥ .4     6.00   .600
==========================================  =======================  =====  ======

In one sentence: the asymmetric response is optimal among unbiased answers under an AUC promise; no more. That is
``epsilon=None``; with an ε it has the least V of the answers with two values, and no more is shown. Nothing is said of
biased targets, of losses that are not linear in their target (such as the likelihood of the answers), of noise on
gradients in place of answers, or of a model's test figure.

Silence is a target too. Zero gradient is the target that equals the model's own prediction q of the record; with a
constant c it costs ``(1 − ρ) / ρ · E[(c − y)²]``, least at c = p. Where the model is calibrated, q is the record's own
probability and the cost is ``q (1 − q)``, on average over records never above ``p (1 − p)``.

Source: this project's. Randomised response: Warner, JASA 60 (1965). The order of experiments: Blackwell, *Equivalent
Comparisons of Experiments*, Annals of Mathematical Statistics 24 (1953). Unbiased targets of least variance under ε,
for any loss's labels: Badanidiyuru et al., *Optimal Unbiased Randomizers for Regression with Label Differential
Privacy*, NeurIPS 2023. The best binary answers under ε, as extremal channels: Kairouz, Oh and Viswanath, *Extremal
Mechanisms for Local Differential Privacy*, JMLR 17 (2016).
"""

from __future__ import annotations

import math

from splitvfl.defenses.setting_checks import check_detection_error
from splitvfl.errors import ArgumentError


def least_variance_under_auc(*, auc: float, positive_share: float) -> float:
    """Return the least V of unbiased answers whose reader has at most this AUC: ``p (1 − δ) / δ``, ``δ = 2 AUC − 1``.

    *Proof.* Let ``D_ij = P₁(i) P₀(j) − P₁(j) P₀(i)``. Whoever ranks answers best, by ``P₁/P₀``, has the AUC ``½ + ½
    Σ_{i<j} |D_ij|``, so that ``Σ_{i<j} |D_ij| ≤ δ``. An unbiased target has ``1 = E[t | 1] − E[t | 0] = Σ_{i,j} P₁(i)
    P₀(j) (t_i − t_j) = Σ_{i<j} D_ij (t_i − t_j)``. By Cauchy and Schwarz, and as ``|D_ij| ≤ P₁(i) P₀(j) + P₁(j)
    P₀(i)``, the square of that is at most ``δ Σ_{i<j} |D_ij| (t_i − t_j)² ≤ δ E[(T₁ − T₀)²]`` with T₁ and T₀
    independent targets of a positive and a negative record, and that is ``δ (Var₀ + Var₁ + 1)``. So ``Var₀ + Var₁ ≥ (1
    − δ) / δ``, and ``V ≥ min(p, 1 − p) (Var₀ + Var₁)``. Equality: where the common class never lies its targets have no
    variance, and the rarer class, which tells the truth with probability δ, has all of it, ``δ (1 − δ) / δ²``. ∎

    Args:
        auc: Largest AUC of a reader of the answers, in (½, 1].
        positive_share: p, in (0, 1).

    Raises:
        ArgumentError: If a number is out of range.

    >>> round(least_variance_under_auc(auc=0.6, positive_share=0.067), 3)
    0.268
    """
    _check_share(positive_share)
    if not 0.5 < auc <= 1.0:
        raise ArgumentError(f"auc must be above 0.5 and at most 1, got {auc}")
    delta = 2.0 * auc - 1.0
    return min(positive_share, 1.0 - positive_share) * (1.0 - delta) / delta


def least_variance(
    *, positive_share: float, detection_error: float | None = None, epsilon: float | None = None
) -> float:
    """Return the least V of unbiased answers with this detection error, this ε, or both.

    *Theorem.* Of all answers with total variation at most δ and privacy loss at most ε, each is a garbling of the
    abstaining response: drawn from what that one says, without looking at the label again. So with any targets, biased
    or not, and for any loss and any learner, nothing can be done with them that cannot be done with these.

    *Proof.* Let ``m_i = (P₀(i) + P₁(i)) / 2`` be how often an answer is given under even odds, and ``x_i = (P₁(i) −
    P₀(i)) / (P₁(i) + P₀(i))`` what it says, in [−1, 1]. Then ``Σ m x = 0``; total variation is ``Σ m |x| ≤ δ``; and ε
    means ``|x_i| ≤ T = tanh(ε / 2)``. Replace an answer x > 0 by two: T with probability x/T and 0 with probability 1 −
    x/T, and x < 0 likewise by −T and 0. Whoever is told these can draw the old answer back: given T, the answers i with
    x_i > 0 with probabilities proportional to ``m_i x_i``, and so on; their likelihoods agree, as x is their mean. What
    is left has three answers, −T, 0 and T; its total variation is that of before, and by ``Σ m x = 0`` half of it on
    each side: it is the abstaining response with ``ρ T ≤ δ``. One with a smaller ρ is one with the larger, silenced at
    random. ∎

    *Without ε*, T = 1 and ρ = δ: erasure, which tells the truth or nothing. *Without L*, ρ = 1: randomised response.

    *Its V.* Unbiased targets of three answers have one parameter c, the target of silence, and are ``c + (t − c) / ρ``
    with t that of randomised response, of variance ``v = π (1 − π) / (1 − 2π)² = e^ε / (e^ε − 1)²``. So ``V = v / ρ +
    (1 / ρ − 1) · ((1 − p) c² + p (1 − c)²)``, least at c = p: ``v / ρ + (1 / ρ − 1) p (1 − p)``.

    Args:
        positive_share: p, in (0, 1).
        detection_error: L, in (0, ½); ``None``: no bound.
        epsilon: ε in nats, > 0; ``None``: no bound.

    Raises:
        ArgumentError: If a number is out of range, or nothing is promised.

    >>> round(least_variance(positive_share=0.067, detection_error=0.4), 3)
    0.25
    >>> round(least_variance(positive_share=0.067, detection_error=0.4, epsilon=3.0), 3)
    0.47
    """
    _check_share(positive_share)
    if detection_error is None and epsilon is None:
        raise ArgumentError(
            "expected a detection_error, an epsilon, or both; without either labels can be told as they are"
        )
    if detection_error is not None:
        check_detection_error(detection_error)
    if epsilon is not None and not (epsilon > 0 and math.isfinite(epsilon)):
        raise ArgumentError(f"epsilon must be positive and finite, or None for no bound, got {epsilon}")
    tells = 1.0 if epsilon is None else math.tanh(epsilon / 2.0)
    delta = 1.0 if detection_error is None else 1.0 - 2.0 * detection_error
    speaking = min(1.0, delta / tells)
    of_answers = (1.0 / tells**2 - 1.0) / 4.0
    return of_answers / speaking + (1.0 / speaking - 1.0) * positive_share * (1.0 - positive_share)


def _check_share(positive_share: float) -> None:
    if not 0.0 < positive_share < 1.0:
        raise ArgumentError(f"positive_share must lie strictly between 0 and 1, got {positive_share}")

"""What is said of the channels of the search: the idea of each, what is promised, and why."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple


class Said(NamedTuple):
    """What is said of a channel.

    Attributes:
        idea: What is told instead of labels.
        promise: What is promised of the run, with the reason.
    """

    idea: str
    promise: str


TRIED: Mapping[str, Said] = {
    "answers, likelihood loss": Said(
        "asymmetric answers, and the loss is their likelihood",
        "that of the answers: AUC ≤ 1 − L. The loss is computed from them",
    ),
    "warm start, then answers": Said(
        "the partner first trains its bottom alone, to tell 64 components of its columns from columns of which a "
        "quarter is spoiled; asymmetric answers after that",
        "that of the answers; no label has a part in the warm start",
    ),
    "answers on the likelier side": Said(
        "a noisy teacher says which class is less likely for each record, and lies are told about that one: the "
        "variance is min(q, 1 − q)(1 − δ)/δ, not p(1 − δ)/δ",
        "AUC ≤ the figure between records of one side, answers and teacher together: δ + (1 − δ)Φ(μ/√2). Which side is "
        "seen, so that coins on both sides are read a little better",
    ),
    "the same, posterior as target": Said(
        "the same answers; the target is P(label | answer, q)",
        "the same, being computed from the same answers; biased towards the teacher",
    ),
    "noisy teacher, 16 components": Said(
        "a linear regression of the label on 16 components that the partner sends once, 16 of the label party's own, "
        "and a constant; its sums Σ u (y − ½) get Gaussian noise once, and its opinions are the targets in all epochs",
        "μ-Gaussian-DP in every single label, for who knows all columns and all other labels: AUC ≤ Φ(μ/√2), the "
        "figure. A label moves the sums by at most the bound of ‖u‖; all else is computed from them",
    ),
    "noisy teacher, three rounds": Said(
        "the same anew after each third of the run, with what the partner's bottom has learned among the columns",
        "the same: three releases of μ/√3 each",
    ),
    "noisy teacher, 512 features": Said(
        "the same with 512 label-free features in place of 16 components, once",
        "the same",
    ),
    "cross-fitted opinions": Said(
        "each record's target is what a regression on the other folds says of it: no target depends on its own label",
        "**none.** Targets of other folds depend on it: fold sums follow from the targets, d equations for the labels "
        "of a fold, and who knows all other labels is certain",
    ),
    "neighbours' labels": Said(
        "each record's target is the mean label of its nearest others, its own left out",
        "**none.** As many equations as labels: solved by least squares",
    ),
}

WHAT = """
What is tried here has other ideas than memoised Gaussian targets, randomised response that knows the classes' shares,
smoothed labels and thinning by class, on data where the partner has to learn a representation: categories of up to
hundreds of values, and images. Avazu is not at hand; generated clicks with 26 categories stand in for it. The label
party has the counts, or the upper rows of pixels, and the partner all else. The bottom ends in a cut of 32 (embeddings
of 8 and layers of 64 and 32, or two convolutions and a layer), the top is linear over it and the label party's own
columns, and a private top like it learns from true labels.

Every channel has the rate (of two) and the number of epochs (of three) that were best by the private top on a tenth of
the training records with one extra seed, at its middle strength; heads without messages likewise. In every run with
messages some training labels are coins (*canaries*); the private top and heads without messages learn true labels.
**Leak** is what is read of them beyond prediction: the better of
the auditor's attacks on the messages, and of who knows the algorithm, all columns, and every target to the last digit
(he solves the equations, or reads the sums; of answers the theorem says what he reads, and he was not asked). An AUC of
.5 is nothing. **Share kept** is (row − random layers) / (undefended − random layers), by the private top, in brackets
its 95 % interval (Fieller's, by seed); with a star the plain difference, where undefended is not clearly ahead of
random layers.
"""

GAINS = """
**Is anything ahead?** For every channel that was tried the mean over its strengths of two differences in test AUC, by
the private top: to what is known to be kept *at the same leak* (straight lines from random layers without messages, at
.5, over the asymmetric answers to the undefended model), and to the best row *to which nothing is sent back*, chosen by
its test figure, in its own favour. Only what is ahead of both is a find: what is behind the second is not worth its
messages. Intervals are for all comparisons of both columns at once (Bonferroni); three seeds are few, so that the
deviation is pooled over the channels of a data set, as if their runs deviated alike and each on its own. Runs of a seed
share split, order, coins and the row that they are compared with, so that the intervals are too short: by simulation
one that should be wrong in 5 % is so in 7 % where runs of a seed correlate by .5, and in 11 % where by .8. Errors of
the leaks are not in them.
"""

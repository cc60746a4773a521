"""What a defense claims, as types: what can be checked of it, before a run and while it runs.

A defense that bounds or noises what it is given says so with a method ``claims()``, which returns a tuple of the types
below. It is asked once, where it is attached, and held to its answer from then on:

- :func:`row_bound` walks the defenses of a message in their order and says what is known of its rows in the end. A
  defense that states nothing of rows voids what those before it stated, also behind noise: it may look at its party's
  data again.
- What it claims of labels over a whole run decides a verdict only if its class is splitvfl's (:func:`unchecked`). What
  another claims is shown, and only measuring decides.
- :func:`broken` compares what a defense returned with what it claims. A row above its bound is not sent.

Claims are there to notice mistakes: a bound in another unit, a defense in the wrong place, a formula that is wrong.
They are no protection from a party that means harm. Its own machine does the checking, and it can send what it likes.

>>> class Clip:
...     crossing = "activation"
...
...     def claims(self):
...         return (RowNorm(1.0),)
...
...     def __call__(self, message, secrets, /):
...         return message / message.norm(dim=1, keepdim=True).clamp(min=1.0)
>>> row_bound([("clip", claims_of(Clip()))]).norm
1.0
"""

from splitvfl.claims.asking import claims_of, is_built_in, is_per_record, promises_of_labels, unchecked
from splitvfl.claims.guarantees import (
    Guarantee,
    auc_of_detection_error,
    auc_of_epsilon,
    auc_of_mu,
    auc_of_randomised_classes,
    guarantee_of,
    tightest,
)
from splitvfl.claims.kinds import (
    LABEL_CLAIMS,
    ROW_CLAIMS,
    Claim,
    Condition,
    DetectionError,
    Gaussian,
    GaussianDP,
    NoPromise,
    PerRecord,
    PureDP,
    RowNorm,
    RunPlan,
)
from splitvfl.claims.label_releases import (
    CLASS_WEIGHTS,
    EARLY_STOPPING,
    LABEL_RELEASES,
    SELECTION,
    STRATIFIED,
    LabelRelease,
    named,
    not_applying,
    releases_of,
)
from splitvfl.claims.rows import RowBound, broken, row_bound
from splitvfl.claims.words import Told, in_a_clause, in_short, sentence, told

__all__ = [
    "CLASS_WEIGHTS",
    "EARLY_STOPPING",
    "LABEL_CLAIMS",
    "LABEL_RELEASES",
    "ROW_CLAIMS",
    "SELECTION",
    "STRATIFIED",
    "Claim",
    "Condition",
    "DetectionError",
    "Gaussian",
    "GaussianDP",
    "Guarantee",
    "LabelRelease",
    "NoPromise",
    "PerRecord",
    "PureDP",
    "RowBound",
    "RowNorm",
    "RunPlan",
    "Told",
    "broken",
    "auc_of_detection_error",
    "auc_of_epsilon",
    "auc_of_mu",
    "auc_of_randomised_classes",
    "claims_of",
    "guarantee_of",
    "in_a_clause",
    "in_short",
    "is_built_in",
    "is_per_record",
    "named",
    "not_applying",
    "promises_of_labels",
    "releases_of",
    "row_bound",
    "sentence",
    "tightest",
    "told",
    "unchecked",
]

"""When the label owner can compute a partner's only feature in logistic regression: known before the first step.

With one feature x and one weight w, a partner's part of a record's logit is ``w x``. All parts of a batch are the
features times one number. A record that comes again carries that number from batch to batch, so that all features
follow up to one factor. How far w moves in a step follows from the residues, which the label owner knows, and gives the
factor up to its sign.

Source: *Is Vertical Logistic Regression Privacy-Preserving?*, lemmas 3.3 and 3.4 and theorem 3.5.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, TypeAlias

from splitvfl.errors import ArgumentError, count
from splitvfl.privacy.solvable import SummedTraining

PartsSeen: TypeAlias = Literal["each", "sums", "sums of all"]
"""What the label owner gets of a partner's parts of the logits.

- ``each``: the part of each record, in the clear;
- ``sums``: their sums over a batch, weighted by each of its own features, and by 1 for the intercept;
- ``sums of all``: the same, of the parts of all partners together.
"""


def linking_epochs(steps: int) -> int:
    """Return within how many epochs all batches are linked, almost surely: ``max(⌈log2 m⌉ + 1, 2)``.

    Args:
        steps: m, batches of an epoch.

    Raises:
        ArgumentError: If it is below 1.

    >>> [linking_epochs(steps) for steps in (1, 2, 3, 8)]
    [2, 2, 3, 4]
    """
    return max((count("steps", steps) - 1).bit_length() + 1, 2)


def linking_probability(steps: int, batch_size: int) -> float:
    """Return with what probability they are at least: ``1 − 2 / m^(s − 1)``, equation 79, and 1 of a single batch.

    Of orders that are drawn anew for each epoch, and features that are not 0.

    Args:
        steps: m, batches of an epoch.
        batch_size: s, records in a batch.

    Raises:
        ArgumentError: If a number is below 1.

    >>> linking_probability(4, 3)
    0.875
    """
    m, s = count("steps", steps), count("batch_size", batch_size)
    if m == 1:
        return 1.0
    # Far beyond, the power overflows; the probability is 1 long before.
    return max(0.0, 1.0 - 2.0 * float(m) ** -min(s - 1, 1000))


@dataclass(frozen=True, slots=True)
class SolvableColumn:
    """What the label owner can compute of a partner's only feature.

    Attributes:
        partner: The partner's name.
        batch_size: Records in a batch.
        steps: Batches of an epoch.
        epochs: Epochs that are planned.
        seen: What the label owner gets of the partner's parts.
        equations: Sums that it gets in each step; ``None``: their number is not known here.
        scaled: Whether the factor follows too: of plain gradient descent at a known rate.
        last_only: Whether only the shorter batch at the end of an epoch is small enough.
    """

    partner: str
    batch_size: int
    steps: int
    epochs: int
    seen: PartsSeen
    equations: int | None
    scaled: bool
    last_only: bool = False

    @property
    def linked(self) -> bool:
        """Whether the run is as long as the theorem asks for: else only records that batches link are compared."""
        return self.epochs >= linking_epochs(self.steps)

    @property
    def probability(self) -> float:
        """With what probability all records are linked then, at least."""
        return linking_probability(self.steps, self.batch_size)

    def sentences(self) -> list[str]:
        """Return it in words, the conclusion first, and what prevents it."""
        if self.last_only:
            return self._of_last_batches()
        up_to = "up to its sign" if self.scaled else "up to one factor"
        needed = self.batch_size - 1
        if self.equations is None and self.seen != "each":
            condition = f" if the label owner has {needed:,} features or more"
        else:
            condition = ""
        said = [
            f"The label owner can reconstruct the only feature of {self.partner}, {up_to}{condition} (attack "
            "single-column, theorem 3.5)."
        ]
        if self.seen == "each":
            said.append("It receives each record's part of the logit, which is this feature times one weight.")
        else:
            exactly = "" if self.equations is None else f"{self.equations:,} "
            said.append(
                f"A batch has {self.batch_size:,} records, and {exactly or 'that many '}sums in each step determine "
                "each record's part of the logit, whatever is encrypted."
            )
        if self.linked:
            least = min(999, math.floor(1000 * self.probability)) / 1000  # never rounded up to certainty
            at_least = f", with probability {least:g} at least" if least and self.steps > 1 else ""
            said.append(f"All records are linked within {_epochs(linking_epochs(self.steps))}{at_least}.")
        else:
            said.append(
                f"In {_epochs(self.epochs)} it compares records that batches link; all records are linked within "
                f"{linking_epochs(self.steps):,}."
            )
        larger = (
            ""
            if self.seen == "each"
            else f" Batches of more records than the label owner has sums ({self._sums()}) protect training records."
        )
        return [
            *said,
            f"To prevent it, give {self.partner} a second feature, or add noise to what it sends (gaussian-ir, "
            f"exchange.noise).{larger}",
        ]

    def _of_last_batches(self) -> list[str]:
        return [
            f"The label owner can reconstruct the only feature of {self.partner} in the last batch of an epoch, up to "
            "one factor (attack single-column, lemma 3.3).",
            f"It has {self.batch_size:,} records, and {self.equations:,} sums in each step determine each record's "
            "part of the logit, whatever is encrypted. Several epochs link what shares a record.",
            f"To prevent it, set train.drop_last: true, give {self.partner} a second feature, or add noise to what it "
            "sends (gaussian-ir, exchange.noise).",
        ]

    def _sums(self) -> str:
        return "one more than features" if self.equations is None else f"{self.equations:,}"


def solvable_column(
    partner: str,
    features: int,
    training: SummedTraining,
    *,
    seen: PartsSeen,
    own_features: int | None,
    partners: int = 1,
    scaled: bool = True,
) -> SolvableColumn | None:
    """Return what the label owner can compute of a partner's only feature; ``None``: nothing by this computation.

    Nobody may add noise to what the partner sends. Features of the label owner are assumed to be generic: with fewer
    that are independent in a batch, their rank counts.

    Args:
        partner: The partner's name.
        features: How many features it has.
        training: The batches of the run.
        seen: What the label owner gets of the partner's parts.
        own_features: Features of the label owner; ``None``: not known here.
        partners: How many partners there are.
        scaled: Whether weights descend the gradient as it is, at a rate that the label owner knows.

    Raises:
        ArgumentError: If a number is below 1, or ``own_features`` below 0.
    """
    d, others = count("features", features), count("partners", partners)
    s, m, used, last = training.batch_size, training.steps, training.epochs, training.last
    if own_features is not None and own_features < 0:
        raise ArgumentError(f"expected own_features from 0, got {own_features}")
    equations = None if own_features is None else own_features + 1
    if d != 1 or (seen == "sums of all" and others > 1):
        return None
    if seen != "each" and equations is not None and equations < s:
        if not 2 <= last <= equations:
            return None
        return SolvableColumn(partner, last, m, used, seen, equations, scaled=False, last_only=True)
    if s < 2:
        return None
    return SolvableColumn(partner, s, m, used, seen, None if seen == "each" else equations, scaled)


def _epochs(number: int) -> str:
    return f"{number:,} epoch{'s' * (number != 1)}"

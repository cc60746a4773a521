"""The data sets: who holds what, which records are used, and between which settings is chosen."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from scripts.reproduce.defense_table.runs import Sample

PARTNER = "partner"
"""Whose columns are read."""


@dataclass(frozen=True, kw_only=True)
class Arrangement:
    """A data set, divided between two parties, with what is tried on it.

    Attributes:
        key: Short name.
        title: Name for people.
        words: What is predicted, and who holds which columns.
        data: The experiment's section on data.
        own: The label party's columns.
        sample: Which records are used.
        batch_size: Records in a step.
        epochs: Numbers of epochs between which is chosen, rising.
        rates: Learning rates of Adam, likewise.
        from_digit: Of digits: labels of at least so much are positive; 0: labels are as they are.
    """

    key: str
    title: str
    words: str
    data: Mapping[str, Any]
    own: Sequence[str] | float
    sample: Sample
    batch_size: int
    epochs: tuple[int, ...]
    rates: tuple[float, ...] = (0.003, 0.01)
    from_digit: int = 0

    def as_settings(self) -> dict[str, Any]:
        """Return what a job is told of the data."""
        own = self.own if isinstance(self.own, float) else list(self.own)
        return {
            "key": self.key,
            "data": dict(self.data),
            "own": own,
            "batch_size": self.batch_size,
            "from_digit": self.from_digit,
            "sample": asdict(self.sample),
        }


_TABLE = {"validation": 2000, "train": 4000, "test": 6000}

DIGITS = Arrangement(
    key="digits",
    title="digits",
    words="Is a handwritten digit at least 5? The label party holds the first 32 of 64 pixels, the partner the others.",
    data={"name": "digits", "digit": None, "scale": "standard"},
    own=0.5,
    sample=Sample(validation=287, train=1150),
    batch_size=128,
    epochs=(10, 20),
    from_digit=5,
)

ARRANGEMENTS = (
    DIGITS,
    Arrangement(
        key="bank",
        title="bank marketing",
        words="Does a client subscribe? The label party holds age, job, family, education and credit; the partner how "
        "and when clients were called before, and five figures of the economy. `duration` is left out.",
        data={"name": "bank-marketing", "drop": ["duration"]},
        own=("age", "job", "marital", "education", "default", "housing", "loan"),
        sample=Sample(file="bank_marketing_additional_full.parquet", **_TABLE),
        batch_size=256,
        epochs=(5, 10),
    ),
    Arrangement(
        key="credit",
        title="credit default",
        words="Does somebody not pay next month? The partner holds few and strong columns: whether each of the last "
        "six bills was paid in time. The label party holds limit, age, sex, education, family, bills and payments.",
        data={"name": "credit-default"},
        own=("LIMIT_BAL", "SEX", "EDUCATION", "MARRIAGE", "AGE", "BILL_AMT*", "PAY_AMT*"),
        sample=Sample(file="credit_default_taiwan.parquet", **_TABLE),
        batch_size=256,
        epochs=(5, 10),
    ),
    Arrangement(
        key="criteo",
        title="Criteo sample",
        words="Is an advertisement clicked? The label party holds seven categories, the partner 13 counts.",
        data={"name": "criteo", "categorical": "onehot"},
        own=("C*",),
        sample=Sample(file="criteo_random_46k_20cols.parquet", **_TABLE),
        batch_size=256,
        epochs=(5, 10),
    ),
)

TRIAL = replace(
    DIGITS,
    key="digits-all",
    title="digits, all pixels at the partner",
    words="The label party holds no column.",
    own=(),
)
"""As in the trial whose figures are compared."""


def shortened(arrangement: Arrangement) -> Arrangement:
    """Return the same for a quick run: digits in place of a file, few epochs, one rate."""
    sample = Sample(validation=200, train=600, test=200)
    own = () if arrangement.own == () else 0.5
    return replace(
        DIGITS,
        key=arrangement.key,
        title=arrangement.title if arrangement.data == DIGITS.data else f"{arrangement.title} (digits in its place)",
        words=arrangement.words if arrangement.data == DIGITS.data else "For a quick run digits stand in its place.",
        own=own,
        sample=sample,
        epochs=(2,),
        rates=(0.01,),
    )

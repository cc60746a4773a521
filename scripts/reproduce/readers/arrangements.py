"""The data sets, who holds what, which records are used, and the experiments that are run on them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from scripts.reproduce.defense_table.runs import Sample
from scripts.reproduce.shared.claims import grouped
from scripts.reproduce.shared.settings import Settings, data_folder

PARTNER = "partner"
"""Whose columns are read."""


@dataclass(frozen=True, kw_only=True)
class Arrangement:
    """A data set, divided between two parties, with the model that is trained on it.

    Attributes:
        title: Name for people: the data, and the layers of the partner's half.
        words: Who holds which columns.
        data: The experiment's section on data.
        own: The label party's columns: their names, or the share that they are of all.
        model: Its section on the model.
        sample: Which records are used.
        batch_size: Records in a step.
        epochs: How many.
        rate: Of Adam.
    """

    title: str
    words: str
    data: Mapping[str, Any]
    own: Sequence[str] | float
    model: Mapping[str, Any]
    sample: Sample
    batch_size: int
    epochs: int
    rate: float = 0.003

    def settings(self, attacks: Sequence[Mapping[str, Any]], seed: int) -> dict[str, Any]:
        """Return what a job is told: the experiment with these attacks, and of which records."""
        written: dict[str, Any] = {
            "name": "readers",
            "data": self.data,
            "parties": {
                "active": {"role": "active", "columns": self.own if isinstance(self.own, float) else list(self.own)},
                PARTNER: {"role": "passive", "columns": "rest"},
            },
            "model": self.model,
            "train": {
                "epochs": self.epochs,
                "evaluate_every_epochs": self.epochs,
                "batch_size": self.batch_size,
                "optimizer": {"name": "adam", "lr": self.rate},
                "seed": seed,
                "noise_seed_for_experiments": seed,
                "device": "cpu",
            },
            "attacks": list(attacks),
            "audit": False,
        }
        # JSON is YAML.
        experiment = {"yaml": json.dumps(written)}
        return {"about": {"label": self.title}, "experiment": experiment, "seed": seed, "sample": asdict(self.sample)}

    def row(self, seeds: int) -> tuple[str, ...]:
        """Return its row of the table of settings."""
        trained = "all" if self.sample.train is None else grouped(self.sample.train)
        return self.title, self.words, trained, str(self.batch_size), f"{self.epochs}; {self.rate:g}", str(seeds)


HEADINGS = ("data, layers of the partner", "who holds what", "training records", "batch", "epochs; rate", "seeds")
"""Of the table of settings."""


def at_hand(arrangements: Sequence[Arrangement], settings: Settings) -> list[Arrangement]:
    """Return those whose file is there; what is missing is said. For a quick run, two of little data."""
    if settings.quick:
        return [shortened(one) for one in arrangements[:2]]
    return [
        one for one in arrangements if not one.sample.file or settings.has(one.title, data_folder() / one.sample.file)
    ]


def shortened(arrangement: Arrangement) -> Arrangement:
    """Return the same on few digits, for two epochs."""
    return replace(
        arrangement,
        words="For a quick run digits stand in its place.",
        data={"name": "digits", "digit": None},
        own=0.5,
        model={"name": "mlp", "bottom": [8], "top_hidden": [8]},
        sample=Sample(validation=0, train=300, test=100),
        batch_size=100,
        epochs=2,
    )


def layers(*bottom: int, top: int = 16) -> dict[str, Any]:
    """Return the section on a model of fully connected layers, with one of the label party above the cut."""
    return {"name": "mlp", "bottom": list(bottom), "top_hidden": [top]}


BANK_FILE, CREDIT_FILE = "bank_marketing_additional_full.parquet", "credit_default_taiwan.parquet"
_DIGITS: Mapping[str, Any] = {"name": "digits", "digit": None, "scale": "standard"}
_BANK_CATEGORIES = (
    *("job", "marital", "education", "default", "housing", "loan"),
    *("contact", "month", "day_of_week", "poutcome"),
)
_PERSON = ("LIMIT_BAL", "SEX", "EDUCATION", "MARRIAGE", "AGE")
_ALL = Sample(validation=0)


def _digits(width: int) -> Arrangement:
    return Arrangement(
        title=f"digits, 64-64-{width}",
        words="all pixels at the partner; ten classes",
        data=_DIGITS,
        own=(),
        model=layers(64, width),
        sample=_ALL,
        batch_size=128,
        epochs=10,
    )


def _credit(*bottom: int) -> Arrangement:
    return Arrangement(
        title=f"credit default, 18-{'-'.join(map(str, bottom))}",
        words="six delays, bills and payments at the partner; the label party has limit and person",
        data={"name": "credit-default"},
        own=_PERSON,
        model=layers(*bottom),
        sample=Sample(file=CREDIT_FILE, validation=0, train=4000, test=1000),
        batch_size=128,
        epochs=5,
    )


BREAST = Arrangement(
    title="breast cancer, 20-32-8",
    words="the means at the label party, errors and worst at the partner",
    data={"name": "breast-cancer"},
    own=("mean *",),
    model=layers(32, 8, top=8),
    sample=_ALL,
    batch_size=64,
    epochs=15,
)

OF_MESSAGES = (
    _digits(64),
    BREAST,
    _digits(16),
    _digits(4),
    Arrangement(
        title="bank marketing, 10-32-8",
        words="all numbers at the partner, all categories at the label party",
        data={"name": "bank-marketing"},
        own=_BANK_CATEGORIES,
        model=layers(32, 8),
        sample=Sample(file=BANK_FILE, validation=0, train=4000, test=1000),
        batch_size=128,
        epochs=5,
    ),
    _credit(32, 8),
    _credit(64, 32),
)
"""Where readers of messages stand side by side."""

CLICKS = Arrangement(
    title="Criteo sample",
    words="six of the counts at the label party; at the partner seven, whether each is missing, and seven categories",
    data={"name": "criteo"},
    own=("I[1-6]",),
    model={"name": "wide-deep", "embedding_dim": 12, "bottom": [128] * 4, "cut_after": 4},
    sample=Sample(file="criteo_random_46k_20cols.parquet", validation=0),
    batch_size=512,
    epochs=2,
    rate=0.001,
)

LARGE_BATCHES = replace(
    _credit(32, 8),
    sample=Sample(file=CREDIT_FILE, validation=0, train=20_000, test=1000),
    batch_size=1024,
    epochs=10,
)

_MANY = {"validation": 0, "train": 4000, "test": 2000}

OF_SCORES = (
    Arrangement(
        title="digits, 32-64-16, ten classes",
        words="half of the pixels each",
        data=_DIGITS,
        own=0.5,
        model=layers(64, 16),
        sample=_ALL,
        batch_size=64,
        epochs=20,
    ),
    replace(BREAST, title="breast cancer, 20-32-8, two", epochs=30),
    replace(
        _credit(32, 8),
        title="credit default, 6-32-8, two",
        words="six delays at the partner",
        own=(*_PERSON, "BILL_AMT*", "PAY_AMT*"),
        sample=Sample(file=CREDIT_FILE, **_MANY),
    ),
    Arrangement(
        title="bank marketing, 28-32-8, two",
        words="calls and five figures of the economy at the partner, without `duration`; person and credit at the "
        "label party",
        data={"name": "bank-marketing", "drop": ["duration"]},
        own=("age", "job", "marital", "education", "default", "housing", "loan"),
        model=layers(32, 8),
        sample=Sample(file=BANK_FILE, **_MANY),
        batch_size=128,
        epochs=5,
    ),
)
"""Where columns are read from scores."""


def _members(arrangement: Arrangement, name: str, epochs: int, **changed: Any) -> Arrangement:
    return replace(arrangement, title=f"{name}, {epochs}", model=layers(64, 32), epochs=epochs, **changed)


_HALF = {"data": {**_DIGITS, "test_fraction": 0.5}, "own": 0.5, "words": "half of the pixels each; half of the records"}
_ALL_CREDIT = {"sample": Sample(file=CREDIT_FILE, validation=0), "batch_size": 256}

OF_MEMBERS = (
    *(_members(BREAST, "breast cancer", epochs) for epochs in (30, 200)),
    *(_members(_digits(64), "digits", epochs, **_HALF) for epochs in (20, 200)),
    _members(_credit(32, 8), "credit default", 5, **_ALL_CREDIT),
)
"""Where it is told who was trained on."""

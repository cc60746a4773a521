"""The two data sets of the table of defenses: who holds what, which model, and between which settings is chosen."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from scripts.reproduce.defense_table.runs import Sample


@dataclass(frozen=True, kw_only=True)
class Arrangement:
    """A data set, divided between two parties, with the model that they train.

    Attributes:
        key: Name of the part of the page.
        title: Heading of its section.
        words: What the page says of it.
        data: The experiment's sections on data, parties, and what is known of labels.
        top_hidden: Widths of the top's hidden layers.
        batch_size: Records in a step.
        epochs: Numbers of epochs between which every defense's is chosen, rising.
        rates: Learning rates, likewise.
        silent_epochs: The same where nothing is sent back.
        silent_rates: Likewise.
        sample: Which records are used.
        canaries: Training records with coin-toss labels, in runs of their own.
        attacked: Runs of a defense that are attacked, at most.
        canary_runs: Runs with canaries, at most.
        left_out: Attacks that are not run here, with the reason.
    """

    key: str
    title: str
    words: str
    data: str
    top_hidden: tuple[int, ...] = ()
    batch_size: int
    epochs: tuple[int, ...]
    rates: tuple[float, ...]
    silent_epochs: tuple[int, ...]
    silent_rates: tuple[float, ...] = (0.003, 0.01)
    sample: Sample
    canaries: int
    attacked: int
    canary_runs: int
    left_out: Mapping[str, str] = field(default_factory=dict)

    def experiment(
        self,
        *,
        epochs: int,
        rate: float,
        bottom: tuple[int, ...] = (64, 32),
        private_top: bool = True,
        evaluated: bool = False,
        more: str = "",
    ) -> str:
        """Return an experiment's text.

        Args:
            epochs: Of the run.
            rate: Of Adam.
            bottom: Widths of the partner's layers.
            private_top: Whether there is one.
            evaluated: Whether after each epoch, or after the last alone.
            more: Further lines: exchange, attacks, audit.
        """
        every = 1 if evaluated else epochs
        return f"""
name: {self.key}
{self.data.strip()}
model: {{name: mlp, bottom: {list(bottom)}, top_hidden: {list(self.top_hidden)}, private_top: {private_top}}}
train:
  epochs: {epochs}
  evaluate_every_epochs: {every}
  batch_size: {self.batch_size}
  optimizer: {{name: adam, lr: {rate}}}
  device: cpu
{more}
"""

    @property
    def records(self) -> dict[str, Any]:
        """The sample as a job's setting."""
        return asdict(self.sample)

    @property
    def linear(self) -> bool:
        """Whether the top is one linear layer, so that gradients of a batch are collinear."""
        return not self.top_hidden


_LATER = {"labels-and-features": "it was added after these runs"}

DIGITS = Arrangement(
    key="digits-8",
    title="Digits, one linear layer on top",
    words="""
Is it an 8? Records and columns are the digits that come with scikit-learn; one record in ten is positive. The label
party holds the upper half of the pixels and one linear layer over them and the partner's activations, so that all cut
gradients of a batch are collinear; the partner holds the lower half and an MLP of widths 64 and 32. There are 360 test
records, of which 35 are positive. This is small, and easy to learn: the figures compare defenses, and are no forecast
for other data.
""",
    data="""
data: {name: digits, digit: 8, scale: standard}
parties:
  bank: {role: active, columns: 0.5}
  telecom: {role: passive, columns: rest}
known_positives: 10
known_negatives: 10
""",
    batch_size=128,
    epochs=(5, 10, 20),
    rates=(0.001, 0.004),
    silent_epochs=(15, 30, 60),
    sample=Sample(validation=287),
    canaries=200,
    attacked=5,
    canary_runs=5,
    left_out=_LATER,
)

CREDIT = Arrangement(
    key="give-me-some-credit",
    title="Give Me Some Credit, two layers on top and rare positives",
    words="""
Will a borrower be seriously late within two years? One in fifteen is. The label party holds age, debt, income,
dependents and the number of open credit lines; the partner holds the use of credit lines, loans on real estate, and how
often somebody was late before, and an MLP of widths 64 and 32. On top are a layer of 16 with ReLU and an output, over
the label party's columns and the partner's activations: cut gradients of a batch are on no line. It is a sample, of
8 000 records to train on and 10 000 to test on.

What defenses promise below two layers: answers (the responses and `gaussian-targets`) what they promise anywhere, as
nothing but the answers depends on a label. `record-gaussian` the same detection error of one message, at any depth, as
its noise follows how far each record's gradient moves with its own label; for a whole run it has a promise below a
linear top alone. `sumkl`, `axis-sumkl` and `axis-gaussian` assume the same of the gap of the class means as below one
layer, and off that gap, where gradients now tell too, the first two send noise without a bound and the last one sends
them as they are. The others promise nothing anywhere.
""",
    data="""
data: {name: give-me-some-credit}
parties:
  bank:
    role: active
    columns: [age, DebtRatio, MonthlyIncome, NumberOfDependents, NumberOfOpenCreditLinesAndLoans]
  telecom: {role: passive, columns: rest}
known_positives: 10
known_negatives: 10
""",
    top_hidden=(16,),
    batch_size=512,
    epochs=(4, 8, 16),
    rates=(0.002, 0.008),
    silent_epochs=(8, 16, 32),
    sample=Sample(validation=8000, train=8000, test=10_000, file="give_me_some_credit.parquet"),
    canaries=400,
    attacked=5,
    canary_runs=5,
    left_out=_LATER
    | {
        "mixture": "its model is of messages on the line of a linear top's weights, and two layers have none; its fit "
        "takes a third of the time of all attacks"
    },
)

ARRANGEMENTS = (DIGITS, CREDIT)


def shortened(arrangement: Arrangement) -> Arrangement:
    """Return the same for a quick run: one epoch, one rate, and digits in place of a file."""
    if arrangement.sample.file:
        arrangement = replace(
            arrangement,
            title=f"{arrangement.title}: digits in its place",
            words=f"For a quick run the records, columns and labels of {DIGITS.title} stand in its place.",
            data=DIGITS.data,
            sample=DIGITS.sample,
            batch_size=DIGITS.batch_size,
            canaries=DIGITS.canaries,
        )
    return replace(
        arrangement,
        epochs=(1,),
        rates=arrangement.rates[:1],
        silent_epochs=(1,),
        silent_rates=arrangement.silent_rates[:1],
        attacked=1,
        canary_runs=1,
    )

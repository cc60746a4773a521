"""What each attack makes of a run: a score for every record over the run, and for the records of single steps.

Whoever attacks knows everything but the labels: all columns, weights, the mechanism and its parameters. A score above 0
is a guess of label 1, below of label 0; 0 is none.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from scripts.reproduce.residue_protection.descent import Step
from scripts.reproduce.residue_protection.protections import Memoised, Protection, Residues
from splitvfl.attacks import SparseResiduesAttack, additive_noise_llr, multiplicative_noise_llr, solve_residues
from splitvfl.attacks.stacked_epochs import EpochBatch, stack_epochs, two_mean_labels
from splitvfl.hooks import View


class Sum(NamedTuple):
    """What a passive party has of one step under encryption, and what the harness knows beside it.

    Attributes:
        rows: Records whose logits it sent, positions ``(L,)``.
        logits: These, ``(L,)``.
        gradient: The gradient of its weights, ``(d,)``.
        used: Which of the records are in it: nobody's view.
    """

    rows: Tensor
    logits: Tensor
    gradient: Tensor
    used: Tensor


class Transcript:
    """Keeps what a passive party sees of one training: residues of all records where they cross, and sums.

    Args:
        columns: ``(n, d)``, float64.
        releases: The most releases that a record has; 0: only sums cross.
        sums: Of how many steps to keep sums, evenly over the run.
        steps: Number of steps.
    """

    def __init__(self, columns: Tensor, *, releases: int, sums: int, steps: int) -> None:
        self.columns = columns
        self.sent = torch.zeros(releases, len(columns), dtype=torch.float64)
        self.logits = torch.zeros(releases, len(columns), dtype=torch.float64)
        self._releases = torch.zeros(len(columns), dtype=torch.int64)
        self._kept = set(np.linspace(0, steps - 1, min(sums, steps)).round().astype(int).tolist())
        self._step = 0
        self.sums: list[Sum] = []
        self.own = torch.zeros(len(columns), dtype=torch.float64)

    def __call__(self, step: Step, logits: Tensor, sent: Tensor) -> None:
        """Keep a step, of one training."""
        assert sent.shape[1] == 1, "a transcript is of one training"
        if len(self.sent):
            place = self._releases[step.rows]
            self.sent[place, step.rows], self.logits[place, step.rows] = sent[:, 0], logits[:, 0]
            self._releases[step.rows] += 1
        if self._step in self._kept:
            gradient = -self.columns[step.rows[step.used]].T @ sent[:, 0] / len(sent)
            self.sums.append(Sum(step.rows, logits[:, 0].clone(), gradient, step.used))
        self._step += 1

    def spread(self, count: int) -> list[Sum]:
        """Return so many of the sums, evenly over the run."""
        places = np.linspace(0, len(self.sums) - 1, min(count, len(self.sums))).round().astype(int)
        return [self.sums[place] for place in places]


@dataclass(frozen=True, kw_only=True)
class Reading:
    """What an attack has found.

    Attributes:
        run: A score for each record, ``(n,)``, from the whole run.
        records: Records of single steps, positions ``(m,)``; only such as were in it.
        single: Their scores from that step alone, ``(m,)``.
        note: What is to be known beside it.
    """

    run: Tensor
    records: Tensor = field(default_factory=lambda: torch.zeros(0, dtype=torch.int64))
    single: Tensor = field(default_factory=lambda: torch.zeros(0, dtype=torch.float64))
    note: str = ""


class Effort(NamedTuple):
    """On how many steps an attack on sums is run.

    Attributes:
        solved: By least squares.
        sparse: By reweighted L1.
        program: By the integer program.
        stacked: Numbers in the equations that are stacked, of the first steps.
        time_limit: Seconds for one of these.
    """

    solved: int
    sparse: int
    program: int
    stacked: int
    time_limit: float = 1.0


def balanced(scores: Tensor, labels: Tensor) -> float:
    """Return the mean over both classes of the share of right signs, undecided ones counted half; NaN of one class.

    Args:
        scores: ``(n,)``.
        labels: ``(n,)``, 0 and 1.

    >>> balanced(torch.tensor([2.0, -1.0, 0.0, 3.0]), torch.tensor([1.0, 0.0, 0.0, 0.0]))
    0.75
    """
    right = (torch.sign(scores) * (2 * labels - 1) + 1) / 2
    return float((right[labels == 1].mean() + right[labels == 0].mean()) / 2)


def likelihood_ratios(transcript: Transcript, protection: Protection, effort: Effort) -> Reading | None:
    """Read residues that cross in the clear: ``additive-llr`` or ``multiplicative-llr``, whichever knows the mechanism.

    Residues without noise are additive noise of no size: a sign tells all.
    """
    if not len(transcript.sent):
        return None
    noisy, predictions = protection.read(transcript.sent, transcript.logits)
    mechanism = protection.mechanism if isinstance(protection, Residues) else None

    def ratios(sent: Tensor, f: Tensor) -> Tensor:
        if mechanism is None or mechanism.kind == "none":
            return additive_noise_llr(sent, f, 1.0)
        if mechanism.kind == "add":
            return additive_noise_llr(sent, f, mechanism.epsilon)
        return multiplicative_noise_llr(
            sent, f, mechanism.epsilon, b1=mechanism.b1, b2=mechanism.b2, mode=mechanism.mode
        )

    epochs, records = noisy.shape
    single = ratios(noisy.reshape(1, -1), predictions.reshape(1, -1))
    return Reading(run=ratios(noisy, predictions), records=torch.arange(records).repeat(epochs), single=single)


def residue_solving(transcript: Transcript, protection: Protection, effort: Effort) -> Reading:
    """Read sums by least squares of least norm: ``residue-solving``, signs added up over the run."""
    return _of_sums(
        transcript,
        transcript.spread(effort.solved),
        lambda one: -solve_residues(transcript.columns[one.rows], one.gradient, underdetermined=True),
    )


def sparse_residues(transcript: Transcript, protection: Protection, effort: Effort) -> Reading:
    """Read sums of few residues among zeros: ``sparse-residues``."""
    attack = SparseResiduesAttack()
    return _sparse(attack, transcript, transcript.spread(effort.sparse), protection)


def binary_program(transcript: Transcript, protection: Protection, effort: Effort) -> Reading:
    """Read sums of few residues of known sizes: ``sparse-residues`` with known predictions."""
    attack = SparseResiduesAttack(predictions_known=True, time_limit=effort.time_limit)
    found = _sparse(attack, transcript, transcript.spread(effort.program), protection)
    return Reading(run=found.run, records=found.records, single=found.single, note=attack.note)


def _sparse(
    attack: SparseResiduesAttack, transcript: Transcript, sums: Sequence[Sum], protection: Protection
) -> Reading:
    # Of memoised answers, residues in the unit of answers: what the attack knows of labels then holds of these.
    unit = protection.told if isinstance(protection, Memoised) else 1.0

    def read(one: Sum) -> Tensor:
        _, predictions = protection.read(torch.zeros_like(one.logits), one.logits)
        view = View(
            party="passive",
            step=0,
            ids=one.rows,
            columns=transcript.columns[one.rows],
            aggregated_gradient=(unit * one.gradient).unsqueeze(1),
            activation=torch.logit(predictions).unsqueeze(1),
        )
        return attack(view)

    return _of_sums(transcript, sums, read)


def _of_sums(transcript: Transcript, sums: Sequence[Sum], read: Callable[[Sum], Tensor]) -> Reading:
    run = torch.zeros(len(transcript.columns), dtype=torch.float64)
    records, single = [], []
    for one in sums:
        scores = read(one)
        run.index_add_(0, one.rows, scores)
        records.append(one.rows[one.used])
        single.append(scores[one.used])
    return Reading(run=run, records=torch.cat(records), single=torch.cat(single))


def stacked_epochs(transcript: Transcript, protection: Protection, effort: Effort) -> Reading:
    """Read the equations of many steps together: ``stacked-epochs``."""
    size = max(len(one.rows) for one in transcript.sums) * transcript.columns.shape[1]
    sums = transcript.sums[: max(1, effort.stacked // size)]
    batches = [EpochBatch(one.rows, transcript.columns[one.rows], one.gradient, one.logits) for one in sums]
    ids, estimates = stack_epochs(batches, approximation="exact", underdetermined=True)
    run = torch.zeros(len(transcript.columns), dtype=torch.float64)
    run[ids] = two_mean_labels(estimates)
    return Reading(run=run)


def own_prediction(transcript: Transcript, protection: Protection, effort: Effort) -> Reading:
    """Guess what the trained model says: ``own-prediction``, which needs no message."""
    return Reading(run=transcript.own)


ATTACKS: Mapping[str, Callable[[Transcript, Protection, Effort], Reading | None]] = {
    "likelihood ratios": likelihood_ratios,
    "residue-solving": residue_solving,
    "sparse-residues": sparse_residues,
    "binary program": binary_program,
    "stacked-epochs": stacked_epochs,
    "own-prediction": own_prediction,
}

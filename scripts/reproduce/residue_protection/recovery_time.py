"""Equation 12: the work that the paper says an attacker has with the hybrid, beside the time that it takes."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any, Literal, get_args

import torch
from torch import Tensor

from scripts.bench.sparse_recovery import claimed_work
from scripts.reproduce.residue_protection.study import Problem, problems, table_of
from scripts.reproduce.residue_protection.timed_steps import TABLE_4
from scripts.reproduce.shared.claims import Claim, markdown_table, shown
from scripts.reproduce.shared.jobs import Job, Result, run_jobs
from scripts.reproduce.shared.pages import Section
from scripts.reproduce.shared.settings import Settings
from splitvfl.attacks import SparseResiduesAttack
from splitvfl.hooks import View

Stage = Literal["zero weights", "trained weights"]
STAGES: tuple[Stage, ...] = get_args(Stage)

_BATCHES, _QUICK_BATCHES = 100, 2
_DESCENTS, _DESCENT_RATE = 300, 0.1
# A guess is right half the time; above it the work has not kept labels from being read.
_READ = 0.6


def weights_at(problem: Problem, stage: Stage) -> Tensor:
    """Return weights ``(d,)``: zero, or after 300 steps of gradient descent on all training records."""
    table = table_of(problem, 0)
    weights = torch.zeros(table.train.shape[1])
    for _ in range(_DESCENTS if stage == "trained weights" else 0):
        residues = table.labels - torch.sigmoid(table.train @ weights)
        weights += _DESCENT_RATE * table.train.T @ residues / len(residues)
    return weights


def read_steps(problem: Mapping[str, Any], stage: Stage, batches: int) -> Result:
    """Attack single steps of the hybrid at table IV's setting, one after the other.

    Args:
        problem: What :meth:`Problem.as_settings` returned.
        stage: With which weights.
        batches: How many steps.

    Returns:
        ``seconds``: CPU time of each attack; ``balanced``: accuracy on the records that were used, an undecided sign
        counted as one half, the mean of both classes.
    """
    given = Problem.of(problem)
    row, table, weights = TABLE_4[given.key], table_of(given, 0), weights_at(given, stage)
    generator = torch.Generator().manual_seed(0)
    attack, seconds = SparseResiduesAttack(), []
    hits: dict[bool, list[float]] = {False: [], True: []}
    for step in range(batches):
        chosen = torch.randperm(len(table.train), generator=generator)[: row.sent]
        columns, labels = table.train[chosen], table.labels[chosen]
        residues = torch.sigmoid(columns @ weights) - labels
        used = columns[: row.used].double().T @ residues[: row.used].double() / row.used
        order = torch.randperm(row.sent, generator=generator)
        view = View(
            party="passive",
            step=step,
            ids=chosen[order],
            columns=columns[order],
            aggregated_gradient=used.float().unsqueeze(1),
        )
        started = time.process_time()
        scores = attack(view)
        seconds.append(time.process_time() - started)
        found = torch.empty_like(scores)
        found[order] = scores
        for score, label in zip(found[: row.used].tolist(), labels[: row.used].bool().tolist(), strict=True):
            hits[label].append(0.5 if score == 0 else float((score > 0) == label))
    shares = [sum(each) / len(each) for each in hits.values() if each]
    return {"seconds": seconds, "balanced": sum(shares) / len(shares)}


def sections(settings: Settings) -> list[Section]:
    """Return the section on equation 12."""
    batches = _QUICK_BATCHES if settings.quick else _BATCHES
    rows, claims = [], []
    for problem in problems(settings):
        given = {"problem": problem.as_settings(), "batches": batches}
        jobs = [Job(read_steps, {**given, "stage": stage}) for stage in STAGES]
        results = dict(zip(STAGES, run_jobs(jobs, settings.jobs, workers=1, say=settings.say), strict=True))
        rows.append(_table_row(problem, results))
        claims.append(claim_of(problem, results))
    headings = ("data", "columns", "k", "L", "claimed operations", "ms, zero weights", "right", "ms, trained", "right")
    body = f"""
Equation 12 says that an attacker who does not know which records were used has L (L + 1) 2^(L − 2) operations of work,
one for every set of records that it tries. Sparse recovery tries none. Below stands the CPU time in which
`sparse-residues` reads the labels of one step on one core, on the data's own columns, {batches} steps each (median, and
from which decile to which), and what it reads: balanced accuracy on the records that were used, an undecided sign
counted as one half.

{markdown_table(headings, rows)}
"""
    return [Section(title="Equation 12: the work, and the time", body=body, claims=claims)]


def _table_row(problem: Problem, results: Mapping[Stage, Result]) -> tuple[str, ...]:
    row = TABLE_4[problem.key]
    cells = [cell for stage in STAGES for cell in (_milliseconds(results[stage]), shown(results[stage]["balanced"]))]
    return (problem.title, str(row.columns), str(row.used), str(row.sent), scientific(claimed_work(row.sent)), *cells)


def _milliseconds(result: Result) -> str:
    low, middle, high = torch.tensor(result["seconds"]).quantile(torch.tensor([0.1, 0.5, 0.9])).mul(1000).tolist()
    return f"{middle:.3g} ({low:.3g}–{high:.3g})"


def scientific(number: int) -> str:
    """Return a whole number to two digits.

    >>> scientific(1966080)
    '2.0·10^6'
    """
    digits, _, exponent = f"{number:.1e}".partition("e")
    return f"{digits}·10^{int(exponent)}"


def claim_of(problem: Problem, results: Mapping[Stage, Result]) -> Claim:
    """Return the claim on one problem, which stands if labels are not read."""
    row = TABLE_4[problem.key]
    read = [results[stage]["balanced"] for stage in STAGES]
    return Claim.of(
        results["trained weights"]["seconds"],
        claim=(
            f"equation 12, {problem.title}: an attacker has {scientific(claimed_work(row.sent))} operations of work "
            "(ours: seconds of one core)"
        ),
        holds=max(read) < _READ,
        why=(
            "sparse recovery reads the labels of the records that were used, balanced accuracy "
            f"{shown(read[0])} with weights of zero and {shown(read[1])} with trained ones"
        ),
    )

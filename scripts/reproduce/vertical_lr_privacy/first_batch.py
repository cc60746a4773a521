"""The label attack on a label party without columns, by records in a batch and columns of the attacker.

Source: *Is Vertical Logistic Regression Privacy-Preserving?*, theorem 4.1 (d_A = 0).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from scripts.reproduce.shared.claims import Claim, Verdict, markdown_table, mean, shown
from scripts.reproduce.shared.jobs import Job, Result, run_jobs
from scripts.reproduce.shared.pages import Section
from scripts.reproduce.shared.settings import Settings
from scripts.reproduce.vertical_lr_privacy.drawing import Chart, Curve, draw_charts
from splitvfl.attacks.recover_labels import label_sum, recover_labels
from splitvfl.errors import ArgumentError
from splitvfl.report.drawing import PALETTE

RECORDS, COLUMNS = (8, 16, 24, 32, 48, 64, 96, 128), (1, 2, 4, 8, 16, 32)
QUICK_RECORDS, QUICK_COLUMNS = (4, 16), (1, 4)
DIGITS = {"float64": torch.float64, "float32": torch.float32}
"""In which the gradient and the columns are known."""


def guess(records: int, columns: int, digits: str, seed: int) -> Result:
    """Return which share of a batch's labels the attack reads, and whether it answers at all.

    The label party has no columns, the attacker normal ones and weights of its own, which it knows; residues are
    Taylor's.

    Args:
        records: s.
        columns: d.
        digits: Of :data:`DIGITS`.
        seed: Of everything.
    """
    random = np.random.default_rng([seed, records, columns])
    exact = torch.from_numpy(random.normal(size=(records, columns)))
    labels = torch.from_numpy(np.where(random.random(records) < 0.4, 1.0, -1.0))
    features = exact.to(DIGITS[digits])
    weights = 0.1 * torch.from_numpy(random.normal(size=columns)).to(DIGITS[digits])
    logits = features @ weights
    residues = logits - 2 * labels.to(features.dtype)
    gradient = features.T @ residues / (4 * records)
    # What adding up may be off, in the unit of the sum of labels: the gradient has lost the digits that it lost.
    eps = torch.finfo(DIGITS[digits]).eps
    tolerance = 4 * records * eps * (features.double().abs().sum(dim=0) * (1 + logits.double().abs().max()))
    total = label_sum(features, gradient, approximation="taylor", logits=logits)
    try:
        found = recover_labels(features, total, tolerance=tolerance)
    except ArgumentError:
        return {"answered": False, "right": float("nan")}
    return {"answered": True, "right": float((found == labels).double().mean())}


def sections(settings: Settings) -> list[Section]:
    """Return the section on theorem 4.1."""
    records, columns = (QUICK_RECORDS, QUICK_COLUMNS) if settings.quick else (RECORDS, COLUMNS)
    wanted = [(digits, d, s) for digits in DIGITS for d in columns for s in records]
    settings.say(f"first batch: {len(wanted)} settings")
    jobs = [
        Job(guess, {"records": s, "columns": d, "digits": digits, "seed": seed})
        for digits, d, s in wanted
        for seed in range(settings.seeds)
    ]
    results = run_jobs(jobs, settings.jobs, workers=settings.workers)
    found = {
        setting: results[number * settings.seeds : (number + 1) * settings.seeds]
        for number, setting in enumerate(wanted)
    }
    return [_section(records, columns, found)]


Found = dict[tuple[str, int, int], list[Result]]


def success(results: Sequence[Result]) -> float:
    """Return the share of batches of which every label was read."""
    return mean(float(result["answered"] and result["right"] == 1.0) for result in results)


_TEXT = """\
Theorem 4.1 is of a label party without columns: whoever knows its own logits then has the sum of label times row, and
with it the labels, however many more records than columns a batch has. They are unique as soon as the sum has more
digits than there are labels; finding them is another matter. The figures are the share of batches of which the attack
(`recover_labels`) reads every label; of the others it says that it does not. Normal columns, which are told apart
easily: columns of few distinct values give less. After zero first weights the first batch is the same case, whatever
columns the label party has."""


def _section(records: Sequence[int], columns: Sequence[int], found: Found) -> Section:
    rows = [
        (digits, str(d), *(shown(success(found[digits, d, s]), 2) for s in records))
        for digits in DIGITS
        for d in columns
    ]
    headings = ("gradient in", "columns d", *(f"s = {s}" for s in records))
    wrong = [
        result["right"]
        for results in found.values()
        for result in results
        if result["answered"] and result["right"] < 1
    ]
    seeds = len(next(iter(found.values())))
    few = [(d, s) for d in columns for s in records if s <= d]
    more = [(d, s) for d in columns for s in records if s > d]
    best = {d: max((s for s in records if success(found["float64", d, s]) == 1.0), default=0) for d in columns}
    claims = [
        Claim(
            claim="theorem 4.1: every label of batches of s ≤ d records (least share of batches)",
            published=1.0,
            ours=min(success(found["float64", d, s]) for d, s in few) if few else 1.0,
            interval=None,
            seeds=seeds,
            verdict=_verdict([success(found["float64", d, s]) for d, s in few]),
            why="least squares; gradients in float64",
        ),
        Claim(
            claim="theorem 4.1: every label of batches of more records than columns (share of all settings)",
            published=1.0,
            ours=mean(success(found["float64", d, s]) for d, s in more),
            interval=None,
            seeds=seeds,
            verdict=_verdict([success(found["float64", d, s]) for d, s in more]),
            why="in float64 all of batches up to "
            + ", ".join(f"{best[d]} records with {d}" for d in columns)
            + " columns; more are unique, and not found, or the sum has too few digits",
        ),
        Claim(
            claim="an answer of the attack is right (share of its answers)",
            published=None,
            ours=mean(float(r["right"] == 1.0) for results in found.values() for r in results if r["answered"]),
            interval=None,
            seeds=seeds,
            verdict="does not" if wrong else "reproduces",
            why="every answer is checked against the sum",
        ),
    ]
    return Section(
        title="Labels of a label party without columns (theorem 4.1)",
        body=f"{_TEXT}\n\n{markdown_table(headings, rows, left=2)}",
        figures={"vertical-lr-first-batch": _figure(records, columns, found)},
        captions={
            "vertical-lr-first-batch": "Share of batches of which every label is read, by records in the batch and the "
            "attacker's columns."
        },
        claims=claims,
    )


def _verdict(shares: Sequence[float]) -> Verdict:
    if min(shares, default=1.0) == 1.0:
        return "reproduces"
    return "only with a variant" if max(shares) > 0 else "does not"


def _figure(records: Sequence[int], columns: Sequence[int], found: Found) -> str:
    charts = [
        Chart(
            title=f"gradient in {digits}",
            x_label="records in the batch, s",
            curves=[
                Curve(
                    across=records,
                    up=[success(found[digits, d, s]) for s in records],
                    colour=PALETTE[number % len(PALETTE)],
                    dashed=number >= len(PALETTE),
                    label=f"d = {d}",
                )
                for number, d in enumerate(columns)
            ],
            log_x=True,
            limits=(-0.03, 1.03),
        )
        for digits in DIGITS
    ]
    return draw_charts("vertical-lr-first-batch", charts, columns=len(charts))

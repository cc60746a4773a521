"""Until when signs are labels, by the law of the first weights and their size: normal, uniform, and heavier tails.

Source: *Is Vertical Logistic Regression Privacy-Preserving?*, lemma 4.7 and theorem 4.8 (sub-exponential first
weights).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Literal, get_args

import torch
from torch import Tensor

from scripts.reproduce.shared.claims import Claim, markdown_table, mean
from scripts.reproduce.shared.jobs import Job, Result, run_jobs
from scripts.reproduce.shared.pages import Section
from scripts.reproduce.shared.settings import Settings
from scripts.reproduce.vertical_lr_privacy.drawing import Chart, Curve, draw_charts
from scripts.reproduce.vertical_lr_privacy.labels import FAILURE, span
from scripts.reproduce.vertical_lr_privacy.noise import Descent, LabelCount, Noise, Table
from scripts.reproduce.vertical_lr_privacy.study import RATE, Problem, data_of, problems, short
from splitvfl.learning.batches import Batches
from splitvfl.learning.randomness import derive_seed
from splitvfl.privacy import initial_margin, sign_attack_horizon
from splitvfl.report.drawing import MUTED, PALETTE

Law = Literal["normal", "uniform", "Laplace"]
LAWS: tuple[Law, ...] = get_args(Law)
DEVIATIONS = (0.01, 0.03, 0.1, 0.3, 1.0)


def drawn(law: Law, width: int, generator: torch.Generator) -> Tensor:
    """Return weights ``(width,)`` of mean 0 and variance 1: those of Laplace's law have exponential tails."""
    if law == "normal":
        return torch.randn(width, generator=generator)
    half = torch.rand(width, generator=generator) - 0.5
    if law == "uniform":
        return half * math.sqrt(12)
    return -half.sign() * torch.log1p(-2 * half.abs()).clamp(min=-80) / math.sqrt(2)


def horizon_run(problem: Mapping[str, Any], seed: int) -> Result:
    """Train without noise from every law and size of first weights at once, and return when signs are wrong first.

    Args:
        problem: What :meth:`Problem.as_settings` returned.
        seed: Of everything.

    Returns:
        Lists over laws, and within a law over sizes: the auditor's horizon, by the first logits that there are; the
        bound for normal first weights, by what is agreed; and the first step with a wrong sign, NaN if none has.
    """
    given = Problem(**problem)
    table = Table.of(data_of(given, seed), intercept=given.intercept)
    generator = torch.Generator().manual_seed(derive_seed(seed, "first weights", given.key))
    units = torch.stack([drawn(law, table.train.shape[1], generator) for law in LAWS], dim=1)
    if given.intercept:
        units[table.active - 1] = 0
    weights = torch.cat([units[:, [number]] * torch.tensor([DEVIATIONS]) for number in range(len(LAWS))], dim=1)
    count = weights.shape[1]
    radius = float(table.train.double().norm(dim=1).max())
    margins = (table.train.double() @ weights.double()).abs().amax(dim=0).tolist()
    descent = Descent(
        table,
        Batches(len(table.train), given.batch_size, seed=seed),
        weights,
        rates=torch.full((count,), RATE),
        noises=[Noise()] * count,
        generator=generator,
    )
    watch = LabelCount(table, count, solved=0)
    for epoch in range(given.epochs):
        descent.epoch(epoch, watch)
    agreed = [initial_margin(size, radius, len(table.train), FAILURE) for size in DEVIATIONS]
    return {
        "auditor": [float(sign_attack_horizon(RATE, margin, radius=radius)) for margin in margins],
        "agreed": [float(sign_attack_horizon(RATE, margin, radius=radius)) for margin in agreed],
        "within": [float(margin <= bound) for margin, bound in zip(margins, agreed * len(LAWS), strict=True)],
        "first wrong": watch.first_wrong,
        "steps": descent.steps,
    }


def sections(settings: Settings) -> list[Section]:
    """Return the section on first weights."""
    chosen = [problem for problem in problems(settings) if problem.scaling == "rows / largest norm"]
    if not chosen:
        return []
    settings.say(f"first weights: {len(chosen)} data sets")
    problem = chosen[0]
    jobs = [Job(horizon_run, {"problem": problem.as_settings(), "seed": seed}) for seed in range(settings.seeds)]
    return [_section(problem, run_jobs(jobs, settings.jobs, workers=settings.workers, say=settings.say))]


_TEXT = f"""\
Lemma 4.7 and theorem 4.8 extend the horizon to first weights with sub-exponential tails: what counts is how large the
largest first logit is. Here weights are drawn from three laws of one deviation τ, the last of which has exponential
tails. "T, auditor's" has the first logits themselves; "T, agreed" has τ, the norm of the rows and their number, and the
quantile of a normal law (wrong with probability {short(FAILURE)}). That first logits are within that bound is counted,
and not proven for the other two laws. "Wrong first" is the first step of all {{steps}} in which a residue of the batch
has the wrong sign."""


def _section(problem: Problem, results: Sequence[Result]) -> Section:
    rows = []
    for law_number, law in enumerate(LAWS):
        for number, size in enumerate(DEVIATIONS):
            place = law_number * len(DEVIATIONS) + number
            rows.append(
                (
                    law,
                    short(size),
                    span(result["auditor"][place] for result in results),
                    f"{results[0]['agreed'][number]:.0f}",
                    f"{sum(result['within'][place] for result in results):.0f} of {len(results)}",
                    _wrong_first(results, place),
                )
            )
    headings = ("law of first weights", "τ", "T, auditor's", "T, agreed", "logits within the bound", "wrong first")
    text = _TEXT.replace("{steps}", str(results[0]["steps"]))
    return Section(
        title="The horizon by first weights (theorem 4.8)",
        body=f"{problem.title}.\n\n{text}\n\n{markdown_table(headings, rows, left=2)}",
        figures={"vertical-lr-first-weights": _figure(problem, results)},
        captions={
            "vertical-lr-first-weights": "Steps in which every sign is provably the label, by the deviation of the "
            "first weights, mean over seeds; dashed: the bound by what is agreed."
        },
        claims=_claims(problem, results),
    )


def _wrong_first(results: Sequence[Result], place: int) -> str:
    values = [result["first wrong"][place] for result in results]
    known = [value for value in values if not math.isnan(value)]
    if not known:
        return "never"
    ends = f"{min(known):.0f}" if min(known) == max(known) else f"{min(known):.0f}–{max(known):.0f}"
    return ends if len(known) == len(values) else f"{ends}, {len(values) - len(known)} never"


def _figure(problem: Problem, results: Sequence[Result]) -> str:
    curves = [
        Curve(
            across=DEVIATIONS,
            up=[
                mean(result["auditor"][law_number * len(DEVIATIONS) + number] for result in results)
                for number in range(len(DEVIATIONS))
            ],
            colour=PALETTE[law_number],
            label=law,
        )
        for law_number, law in enumerate(LAWS)
    ]
    curves.append(Curve(across=DEVIATIONS, up=results[0]["agreed"], colour=MUTED, dashed=True, label="agreed"))
    chart = Chart(title=f"{problem.title}: T", x_label="deviation of the first weights", curves=curves, log_x=True)
    return draw_charts("vertical-lr-first-weights", [chart], columns=1)


def _claims(problem: Problem, results: Sequence[Result]) -> list[Claim]:
    claims = []
    for law_number, law in enumerate(LAWS):
        places = range(law_number * len(DEVIATIONS), (law_number + 1) * len(DEVIATIONS))
        early = [
            result["first wrong"][place] <= result["auditor"][place]
            for result in results
            for place in places
            if result["auditor"][place] >= 1
        ]
        claims.append(
            Claim(
                claim=f"{problem.title}, {law} first weights: no wrong sign within the horizon (share of runs)",
                published=1.0,
                ours=1 - mean(map(float, early)),
                interval=None,
                seeds=len(results),
                verdict="does not" if any(early) else "reproduces",
                why=f"the auditor's horizon; {len(early)} runs with one of at least a step",
            )
        )
    return claims

"""How long signs are labels under noise: theorem 6.6, with and without the noise on the released residue itself.

Source: *Is Vertical Logistic Regression Privacy-Preserving?*, lemma 6.3 and theorem 6.6.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from scripts.reproduce.shared.claims import UNIT, Claim, markdown_table, mean, shown, with_interval
from scripts.reproduce.shared.jobs import Job, Result, run_jobs
from scripts.reproduce.shared.pages import Section
from scripts.reproduce.shared.settings import Settings
from scripts.reproduce.vertical_lr_privacy.drawing import Chart, Curve, draw_charts
from scripts.reproduce.vertical_lr_privacy.labels import horizons, span
from scripts.reproduce.vertical_lr_privacy.noise import CLAIMED, NOISES, SHOWN_INITS, noisy_run
from scripts.reproduce.vertical_lr_privacy.study import RATE, Problem, problems, short
from splitvfl.privacy import label_attack_success
from splitvfl.report.drawing import MUTED, PALETTE

FAILURE = 0.1
"""δ of the theorem."""
CROSSING = 2.0
"""The logit at which a Taylor residue changes its sign."""


def published_deviation(
    sigma: float, batch_size: int, steps: int, *, failure: float = FAILURE, c: float = 1.0
) -> float:
    """Return the paper's u, ``√(ln(2T/δ) / (c s)) σ``; its constant c is not given.

    Args:
        sigma: The larger of the parties' noise scales.
        batch_size: s.
        steps: T.
        failure: δ.
        c: Of lemma 6.3; 1 is nobody's claim.
    """
    return math.sqrt(math.log(2 * steps / failure) / (c * batch_size)) * sigma


def proven_deviation(sigma: float, batch_size: int, steps: int, *, failure: float = FAILURE) -> float:
    """Return what the noise in none of T steps' gradients exceeds in norm, but with probability δ.

    ``u = σ / (4 √s) · √(1 + 2 √x + 2 x)``, ``x = ln(T / δ)``. The noise is ``Xᵀ n / (4 s)``, with X of the columns that
    meet each party's noise and rows of norm up to 1; ``nᵀ X Xᵀ n`` has a matrix of trace, Frobenius norm and norm of
    at most s, and is a quadratic form of normal numbers.

    Source: Laurent and Massart, Annals of Statistics 28 (2000), lemma 1, by a union bound over the steps.

    Args:
        sigma: The larger of the parties' noise scales.
        batch_size: s.
        steps: T.
        failure: δ.
    """
    x = math.log(steps / failure)
    return sigma / (4 * math.sqrt(batch_size)) * math.sqrt(1 + 2 * math.sqrt(x) + 2 * x)


def noisy_horizon(deviation: float, margin: float, *, rate: float = RATE) -> int:
    """Return the steps of theorem 6.6, ``⌈log_{1+η/4}((4u + 4) / (4u + 2 + ε))⌉``; 0 where ε is 2 or more.

    Args:
        deviation: u, the largest norm of the noise in a gradient.
        margin: ε, the largest first logit.
        rate: η.

    >>> noisy_horizon(0.0, 0.0, rate=0.01)
    278
    """
    if margin >= CROSSING:
        return 0
    ratio = (4 * deviation + 2 + CROSSING) / (4 * deviation + 2 + margin)
    return math.ceil(math.log(ratio) / math.log1p(rate / 4))


def first_margins(problem: Mapping[str, Any], seed: int) -> Result:
    """Return the largest first logit from zero and from Xavier's weights.

    Args:
        problem: What :meth:`Problem.as_settings` returned.
        seed: Of split and first weights.
    """
    given = Problem(**problem)
    return {"margins": [horizons(given, seed, init, "taylor")["margin"] for init in SHOWN_INITS]}


def sections(settings: Settings) -> list[Section]:
    """Return the section on theorem 6.6, of the data set whose rows have norms up to 1."""
    chosen = [problem for problem in problems(settings) if problem.scaling == "rows / largest norm"]
    if not chosen:
        return []
    problem = chosen[0]
    jobs = [
        Job(work, {"problem": problem.as_settings(), "seed": seed})
        for work in (noisy_run, first_margins)
        for seed in range(settings.seeds)
    ]
    results = run_jobs(jobs, settings.jobs, workers=settings.workers, say=settings.say)
    return [_section(problem, results[: settings.seeds], results[settings.seeds :])]


_TEXT = f"""\
Theorem 6.6 says in how many first steps every logit stays below 2 in magnitude under noise of scale σ, so that the sign
of a residue is its label: `⌈log((4u + 4) / (4u + 2 + ε)) / log(1 + η/4)⌉` with probability 1 − δ, ε the largest first
logit and u = √(ln(2T/δ) / (c s)) σ, from lemma 6.3, whose constant c is not given. With c = 1, σ = 36, s = 256,
T = 1 500 and δ = {short(FAILURE)} that is 26 steps, where 278 are proven without noise. In its place,
u = σ / (4 √s) · √(1 + 2√x + 2x), x = ln(T / δ), is proven (Laurent and Massart), and smaller.

Either speaks of weights that have wandered under noise, and of *residues without noise*. What crosses is the residue
*with* noise, and its sign is right with probability Φ(2/σ) from the first step on. "Residue" and "release" below are
the two: the first step with a wrong sign, and the share of right signs within the proven horizon. An attacker has the
release."""


def _section(problem: Problem, noisy: Sequence[Result], margins: Sequence[Result]) -> Section:
    rows, claims_of = [], []
    for init_number, init in enumerate(SHOWN_INITS):
        margin = max(result["margins"][init_number] for result in margins)
        for number, noise in enumerate(NOISES):
            place, sigma = init_number * len(NOISES) + number, max(noise.sigmas)
            steps = noisy[0]["total_steps"]
            published = noisy_horizon(published_deviation(sigma, problem.batch_size, steps), margin)
            proven = noisy_horizon(proven_deviation(sigma, problem.batch_size, steps), margin)
            shares = {
                kind: [within(result, kind, place, max(proven, 1)) for result in noisy]
                for kind in ("residue", "release")
            }
            wrong = [result["first_wrong"][place] for result in noisy]
            claims_of.append((wrong, proven, shares, sigma))
            rows.append(
                (
                    init,
                    noise.label,
                    shown(sigma, 1),
                    str(published),
                    str(proven),
                    _first(wrong),
                    with_interval(shares["residue"], limits=UNIT),
                    with_interval(shares["release"], limits=UNIT),
                    shown(label_attack_success(sigma)) if sigma else "1.000",
                )
            )
    headings = (
        "first weights",
        "noise",
        "σ",
        "T, c = 1",
        "T, proven",
        "first wrong residue",
        "residues right",
        "releases right",
        "Φ(2/σ)",
    )
    return Section(
        title="How long signs are labels under noise (theorem 6.6)",
        body="\n\n".join(
            [f"{problem.title}; σ is the larger of both parties'.", _TEXT, markdown_table(headings, rows, left=2)]
        ),
        figures={"vertical-lr-noisy-signs": _figure(problem, noisy, margins)},
        captions={
            "vertical-lr-noisy-signs": "Share of right signs by training step, mean over seeds, e = 1. Solid: residues "
            "without noise of weights under noise; dashed: what is released. Dotted: the proven horizon of theorem 6.6."
        },
        claims=_claims(problem, noisy, claims_of),
    )


def within(result: Result, kind: str, place: int, last: int) -> float:
    """Return the mean share of right signs in the kept steps up to ``last``."""
    return mean(
        shares[place] for step, shares in zip(result["steps"], result["shares"][kind], strict=True) if step <= last
    )


def _first(values: Sequence[float]) -> str:
    known = [value for value in values if not math.isnan(value)]
    if not known:
        return "never"
    return span(known) if len(known) == len(values) else f"{span(known)}, {len(values) - len(known)} never"


def _figure(problem: Problem, noisy: Sequence[Result], margins: Sequence[Result]) -> str:
    charts = []
    for init_number, init in enumerate(SHOWN_INITS):
        margin = max(result["margins"][init_number] for result in margins)
        curves, marks = [], []
        shown_here = [(n, noise) for n, noise in enumerate(NOISES) if noise.epsilon is None or noise.counted == CLAIMED]
        for colour, (number, noise) in zip((MUTED, PALETTE[1], PALETTE[4], PALETTE[0]), shown_here, strict=True):
            place = init_number * len(NOISES) + number
            for kind in ("residue", "release"):
                if noise.epsilon is None and kind == "release":
                    continue
                up = [
                    mean(result["shares"][kind][step][place] for result in noisy)
                    for step in range(len(noisy[0]["steps"]))
                ]
                label = noise.label if kind == "residue" else ""
                curves.append(
                    Curve(across=noisy[0]["steps"], up=up, colour=colour, dashed=kind == "release", label=label)
                )
            deviation = proven_deviation(max(noise.sigmas), problem.batch_size, noisy[0]["total_steps"])
            marks.append((float(noisy_horizon(deviation, margin)), colour))
        charts.append(
            Chart(
                title=f"{problem.title}, {init}",
                x_label="training step",
                curves=curves,
                marks=[mark for mark in marks if mark[0] >= 1],
                levels={"blind": 0.5},
                log_x=True,
                limits=(0.4, 1.03),
            )
        )
    return draw_charts("vertical-lr-noisy-signs", charts, columns=len(charts))


def _claims(
    problem: Problem,
    noisy: Sequence[Result],
    found: Sequence[tuple[list[float], int, dict[str, list[float]], float]],
) -> list[Claim]:
    runs = [(value, proven) for wrong, proven, _, sigma in found if sigma for value in wrong]
    early = [value <= proven for value, proven in runs]
    releases = [mean(shares["release"]) for _, _, shares, sigma in found if sigma]
    residues = [mean(shares["residue"]) for _, _, shares, sigma in found if sigma]
    expected = max(label_attack_success(sigma) for _, _, _, sigma in found if sigma)
    return [
        Claim(
            claim=f"theorem 6.6, {problem.title}: no wrong residue within the horizon (share of runs under noise)",
            published=1 - FAILURE,
            ours=1 - mean(map(float, early)),
            interval=None,
            seeds=len(noisy),
            verdict="only with a variant" if mean(map(float, early)) <= FAILURE else "does not",
            why=f"with a u that is proven, and of residues without their own noise; {len(early)} runs",
        ),
        Claim(
            claim=f"theorem 6.6, {problem.title}: the signs that cross are labels within the horizon (largest share)",
            published=1.0,
            ours=max(releases),
            interval=None,
            seeds=len(noisy),
            verdict="reproduces" if min(releases) == 1.0 else "does not",
            why=f"of residues without their noise at least {shown(min(residues))}; Φ(2/σ) is at most {shown(expected)}",
        ),
    ]

"""Figure 1 of the label-leakage paper: what the norm of the cut gradient tells of the label, and why.

With ``h`` the logit of the top model and ``p`` its sigmoid, the gradient of a record's loss at the cut is
``g = (p − y) ∇h``: the norm is ``|p − y|``, which is larger for the rarer class, times ``‖∇h‖``, which knows the label
only through the columns. The model is cut after two of four layers, so that ``∇h`` differs between records.

Source: Li et al., ICLR 2022, arXiv:2102.08504, figure 1.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from scripts.reproduce.label_leakage.study import PASSIVE, Problem, build_trainer, problems, train
from scripts.reproduce.shared.claims import UNIT, Claim, markdown_table, mean, shown, surely_above, with_interval
from scripts.reproduce.shared.drawing import finish
from scripts.reproduce.shared.jobs import Job, Result, run_jobs
from scripts.reproduce.shared.pages import Section
from scripts.reproduce.shared.settings import Settings
from splitvfl.cut.split_model import call_top
from splitvfl.metrics import leak_auc
from splitvfl.party.top_model import own_input
from splitvfl.report.drawing import PALETTE, drawing_style, new_figure, panel_title, svg_file
from splitvfl.run.trainer import Trainer
from splitvfl.run.training import Status

if TYPE_CHECKING:
    from matplotlib.axes import Axes

STEPS = (100, 200, 300, 400)
QUICK_STEPS = (10, 20, 30, 40)
PUBLISHED = (0.9832, 0.8862, 0.9098, 0.9229)
"""Leak AUC of ``‖g‖`` after 100, 200, 300 and 400 steps on the full Criteo data."""

QUANTITIES = {"residual": "|p − y|", "slope": "‖∇h‖", "gradient": "‖g‖"}
TOLERANCE = 0.05
_CUT_AFTER = 2
_PROBE = 8192
_BINS = 24


def measure(problem: Mapping[str, Any], seed: int, moments: Sequence[int]) -> Result:
    """Return leak AUC and histograms of the three quantities after some numbers of steps.

    They are taken on training records, up to 8192, the same at every moment.

    Args:
        problem: What :meth:`Problem.as_settings` returned.
        seed: Of everything.
        moments: Numbers of steps, ascending.
    """
    trainer = build_trainer(Problem(**problem), seed, cut_after=_CUT_AFTER, audit=False)
    found: dict[str, list[Result]] = {name: [] for name in QUANTITIES}

    def look(status: Status) -> None:
        if status.step in moments:
            values, labels = quantities(trainer)
            for name, value in values.items():
                found[name].append({"auc": leak_auc(value, labels), **_histogram(value, labels)})

    train(trainer, steps=max(moments), progress=look)
    return {"quantities": found, "loss": trainer.test}


def quantities(trainer: Trainer) -> tuple[dict[str, Tensor], Tensor]:
    """Return ``|p − y|``, ``‖∇h‖`` and ``‖g‖`` of training records under the present weights, and their labels.

    Returns:
        By name, each ``(n,)``, of one record's loss (no 1/batch); and labels ``(n,)``.
    """
    active, passive = trainer.active, trainer.passives[PASSIVE]
    count = active.data.train.count
    rows = torch.randperm(count, generator=torch.Generator().manual_seed(0))[:_PROBE].sort().values
    batch, own = passive.train_batch(rows), active.train_batch(rows)
    assert own.labels is not None
    with torch.no_grad():
        activation = passive.bottom(batch.columns.module_input())
    activation.requires_grad_()
    logits = call_top(active.top, [activation], own_input(own)).squeeze(1)
    (slope,) = torch.autograd.grad(logits.sum(), activation)
    residual = torch.sigmoid(logits.detach()) - own.labels
    norms = torch.linalg.vector_norm(slope, dim=1)
    return {"residual": residual.abs(), "slope": norms, "gradient": residual.abs() * norms}, own.labels


def _histogram(values: Tensor, labels: Tensor) -> Result:
    """Return each class's share per bin; the first and the last bin hold the half per cent beyond them, too."""
    low, high = np.quantile(values.double().numpy(), [0.005, 0.995]).tolist()
    high = max(high, low + 1e-9)
    clipped = values.double().clamp(low, high).numpy()
    counts = [np.histogram(clipped[labels.numpy() == label], bins=_BINS, range=(low, high))[0] for label in (0, 1)]
    shares = [(count / max(1, count.sum())).round(4).tolist() for count in counts]
    return {"range": [low, high], "negative": shares[0], "positive": shares[1]}


def sections(settings: Settings) -> list[Section]:
    """Return the section on figure 1."""
    moments = QUICK_STEPS if settings.quick else STEPS
    chosen = problems(settings)
    settings.say(f"figure 1: {len(chosen)} data sets")
    pairs = [(problem, seed) for problem in chosen for seed in problem.seeds]
    jobs = [
        Job(measure, {"problem": problem.as_settings(), "seed": seed, "moments": list(moments)})
        for problem, seed in pairs
    ]
    results = run_jobs(jobs, settings.jobs, workers=settings.workers, say=settings.say)
    by_problem = {
        problem.key: [result for (owner, _), result in zip(pairs, results, strict=True) if owner is problem]
        for problem in chosen
    }
    return [_section(chosen, by_problem, moments, quick=settings.quick)]


def _section(
    chosen: Sequence[Problem], results: Mapping[str, list[Result]], moments: Sequence[int], *, quick: bool
) -> Section:
    claims = [claim for problem in chosen for claim in _claims(problem, results[problem.key], moments, quick=quick)]
    names = {problem.key: f"figure-1-{problem.key}" for problem in chosen}
    return Section(
        title="Figure 1: the norm of the gradient tells the label",
        body=f"{_TEXT}\n\n{_table(chosen, results, moments)}",
        figures={names[problem.key]: draw(names[problem.key], results[problem.key][0], moments) for problem in chosen},
        captions={
            names[problem.key]: f"{problem.title}: shares of each class by |p − y|, ‖∇h‖ and ‖g‖, with leak AUC; seed 0"
            for problem in chosen
        },
        claims=claims,
    )


_TEXT = """\
The model is cut after two of its four layers, and nothing is defended. The gradient of one record's loss at the cut is
g = (p − y) ∇h, with h the logit and p its sigmoid. Positives are the rarer class, and a model that has learned little
gives nearly all records a p below one half: |p − y| is then above one half for every positive, below it for every
negative. ‖∇h‖ knows the label only through the columns. All are taken on up to 8192 training records under the weights
after so many steps, so that the AUC does not depend on one batch's few positives."""


def _aucs(results: Sequence[Result], name: str, position: int) -> list[float]:
    return [result["quantities"][name][position]["auc"] for result in results]


def _table(chosen: Sequence[Problem], results: Mapping[str, list[Result]], moments: Sequence[int]) -> str:
    rows = [
        (
            problem.title,
            sign,
            *(with_interval(_aucs(results[problem.key], name, at), limits=UNIT) for at in range(len(moments))),
        )
        for problem in chosen
        for name, sign in QUANTITIES.items()
    ]
    headings = ("data", "leak AUC of", *(f"after {moment} steps" for moment in moments))
    return markdown_table(headings, rows, left=2)


def _claims(problem: Problem, results: Sequence[Result], moments: Sequence[int], *, quick: bool) -> list[Claim]:
    claims = [_norm_claim(problem, results, len(moments))]
    if problem.key.startswith("criteo") and not quick:
        claims += [
            _published_claim(problem, _aucs(results, "gradient", at), moment, PUBLISHED[at])
            for at, moment in enumerate(moments)
        ]
    return claims


def _published_claim(problem: Problem, values: Sequence[float], moment: int, published: float) -> Claim:
    near = abs(mean(values) - published) <= TOLERANCE
    found = Claim.of(
        values,
        claim=f"leak AUC of ‖g‖ after {moment} steps, {problem.title}",
        published=published,
        holds=near,
        limits=UNIT,
        why=f"the mean is {'within' if near else 'not within'} {TOLERANCE} of the figure for the full Criteo data "
        f"(45.8 million rows, batch 65 536), which is more than its last three figures differ by; here a sample, batch "
        f"{problem.batch_size}",
    )
    # The published figure is of more data and another batch, however near this one comes.
    return replace(found, verdict="only with a variant") if near else found


def _norm_claim(problem: Problem, results: Sequence[Result], moments: int) -> Claim:
    """The claim behind the figure: at every moment the norm separates the classes, and better than the slope alone."""
    least = [min(_aucs([result], "gradient", at)[0] for at in range(moments)) for result in results]
    slopes = [max(abs(_aucs([result], "slope", at)[0] - 0.5) for at in range(moments)) for result in results]
    return Claim.of(
        least,
        claim=f"‖g‖ separates the classes at every moment (leak AUC above .8), {problem.title}",
        holds=surely_above(least, 0.8),
        limits=UNIT,
        why=f"the least of the {moments} moments; ‖∇h‖ alone is at most {mean(slopes):.2f} from one half",
    )


def draw(name: str, result: Result, moments: Sequence[int]) -> str:
    """Return the distributions of one run, as the text of an SVG file: a row per quantity, a column per moment."""
    with drawing_style():
        drawn = new_figure(4.6)
        grid = drawn.subplots(len(QUANTITIES), len(moments), squeeze=False)
        for row, (quantity, sign) in enumerate(QUANTITIES.items()):
            for column, moment in enumerate(moments):
                found = result["quantities"][quantity][column]
                _draw_panel(grid[row][column], found)
                panel_title(grid[row][column], f"{sign}, step {moment}: AUC {shown(found['auc'])}")
        finish(drawn)
        return svg_file(drawn, name)


def _draw_panel(axes: Axes, found: Result) -> None:
    low, high = found["range"]
    edges = np.linspace(low, high, len(found["negative"]) + 1)
    for label, colour in (("negative", PALETTE[0]), ("positive", PALETTE[1])):
        axes.stairs(found[label], edges, color=colour, fill=True, alpha=0.25, linewidth=0)
        axes.stairs(found[label], edges, color=colour, linewidth=1.2, label=f"{label}s")
    axes.grid(visible=False)
    axes.set_yticks([])
    axes.locator_params(axis="x", nbins=4)

"""Figure 2 of the label-leakage paper: sumKL noise over training, and against the other defenses.

Source: Li et al., ICLR 2022, arXiv:2102.08504, figure 2.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from scripts.reproduce.label_leakage.study import PASSIVE, Course, Defense, Problem, build_trainer, problems, train
from scripts.reproduce.shared import drawing
from scripts.reproduce.shared.claims import (
    UNIT,
    Claim,
    Verdict,
    interval,
    markdown_table,
    mean,
    shown,
    surely_above,
    surely_below,
    with_interval,
)
from scripts.reproduce.shared.jobs import Job, Result, run_jobs
from scripts.reproduce.shared.pages import Section
from scripts.reproduce.shared.settings import Settings
from splitvfl.attacks import NormAttack
from splitvfl.leakage.message_audit import AUDITORS
from splitvfl.report.drawing import MUTED, PALETTE
from splitvfl.run.trainer import Trainer

LEVELS = (0.1, 0.2, 0.3, 0.4)
NONE = Defense("no noise")
SUMKL = {
    level: Defense(f"sumKL, L = {level:g}".replace("0.", "."), "sumkl", {"detection_error": level}) for level in LEVELS
}
ISOTROPIC = Defense("isotropic, 5", "isotropic", {"ratio": 5.0})
MAX_NORM = Defense("max-norm", "max-norm")
EQUAL = "isotropic, equal leak"

_PENS = {
    NONE.label: drawing.Pen(MUTED),
    **{SUMKL[level].label: drawing.Pen(colour) for level, colour in zip(LEVELS, PALETTE, strict=False)},
    ISOTROPIC.label: drawing.Pen(PALETTE[4]),
    EQUAL: drawing.Pen(PALETTE[4], dashed=True),
    MAX_NORM.label: drawing.Pen(PALETTE[5]),
}

CUT, FIRST = "layer 4, the cut", "layer 1"
LAYERS = {FIRST: "deep.layers.1", "layer 2": "deep.layers.3", "layer 3": "deep.layers.5"}
"""The outputs of the ReLU units, by name in the bottom model; the fourth is the cut itself."""

MOST_SEEDS = 3
"""Curves of a whole run are averaged over so many seeds."""

_SEARCHED_SHARE = 5
_HALVINGS = 7
_RATIOS = (0.25, 64.0)


def bound(level: float) -> float:
    """Return the bound on every attacker's AUC under the paper's Gaussian model: 1 − 2 L²."""
    return 1.0 - 2.0 * level**2


def follow(problem: Mapping[str, Any], seed: int, defense: Mapping[str, Any]) -> Result:
    """Train once, and return the course of the run and its figures.

    Args:
        problem: What :meth:`Problem.as_settings` returned.
        seed: Of everything.
        defense: What :meth:`Defense.as_settings` returned.
    """
    trainer = build_trainer(Problem(**problem), seed, defense=defense)
    steps = problem["epochs"] * len(trainer.batches)
    keepers = {name: trainer.observe(PASSIVE, layer, NormAttack()).keeper for name, layer in LAYERS.items()}
    keepers[CUT] = trainer.leaks[PASSIVE]["norm"].keeper
    audit = trainer.audits[PASSIVE]
    course = Course(trainer, keepers | audit.keepers, steps=steps)
    train(trainer, steps=steps, progress=course)
    summaries = {name: keeper.summary() for name, keeper in (keepers | audit.keepers).items()}
    return {
        "steps": course.steps,
        "windows": course.leaks,
        "loss": course.loss,
        "test": course.test,
        "auc": {name: summary.auc for name, summary in summaries.items()},
        "worst_auc": {name: summary.worst_auc for name, summary in summaries.items()},
        "worst_accumulated_auc": {name: summary.worst_accumulated_auc for name, summary in summaries.items()},
        "detection_error": audit.detection_error,
        "noise_to_signal": _noise_to_signal(trainer),
        "step_ms": trainer.step_ms,
    }


def _noise_to_signal(trainer: Trainer) -> float:
    found = [value for name, value in trainer.measurements.items() if name.endswith("/noise_to_signal")]
    return found[0] if found else math.nan


def find_ratio(problem: Mapping[str, Any], seed: int, target: float) -> Result:
    """Return the scale at which isotropic noise leaks as much to the norm attack as another defense does.

    The logarithm of the scale is halved in short runs; only the training records' leak is looked at, never the test.

    Args:
        problem: What :meth:`Problem.as_settings` returned; its epochs are those of the short runs.
        seed: Of everything.
        target: Mean leak AUC of a step over as many epochs.
    """
    low, high = (math.log(ratio) for ratio in _RATIOS)
    tried = []
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        leak = _leak_of_isotropic(problem, seed, math.exp(middle))
        tried.append({"ratio": math.exp(middle), "leak": leak})
        low, high = (middle, high) if leak > target else (low, middle)
    best = min(tried, key=lambda found: abs(found["leak"] - target))
    return {**best, "target": target, "tried": tried}


def _leak_of_isotropic(problem: Mapping[str, Any], seed: int, ratio: float) -> float:
    defense = Defense(EQUAL, "isotropic", {"ratio": ratio})
    trainer = build_trainer(Problem(**problem), seed, defense=defense.as_settings(), audit=False)
    train(trainer, steps=problem["epochs"] * len(trainer.batches), progress=lambda status: None)
    return trainer.leaks[PASSIVE]["norm"].auc


Runs = dict[str, list[Result]]
"""Results of all seeds by the defense's label."""


def sections(settings: Settings) -> list[Section]:
    """Return the sections on figures 2a and 2b, and on figure 2c."""
    chosen = [replace(problem, seeds=problem.seeds[:MOST_SEEDS]) for problem in problems(settings)]
    defenses = [NONE, *SUMKL.values(), ISOTROPIC, MAX_NORM]
    settings.say(f"figure 2: {len(chosen)} data sets, {len(defenses) + 1} defenses")
    runs = _run(chosen, {problem.key: defenses for problem in chosen}, settings)
    ratios = _ratios(chosen, runs, settings)
    equal = {key: [Defense(EQUAL, "isotropic", {"ratio": found["ratio"]})] for key, found in ratios.items()}
    for key, more in _run(chosen, equal, settings).items():
        runs[key] |= more
    return [_section_over_training(chosen, runs), _section_compared(chosen, runs, ratios)]


def _run(chosen: Sequence[Problem], defenses: Mapping[str, Sequence[Defense]], settings: Settings) -> dict[str, Runs]:
    wanted = [
        (problem, defense, seed) for problem in chosen for defense in defenses[problem.key] for seed in problem.seeds
    ]
    jobs = [
        Job(follow, {"problem": problem.as_settings(), "seed": seed, "defense": defense.as_settings()})
        for problem, defense, seed in wanted
    ]
    found: dict[str, Runs] = {problem.key: {} for problem in chosen}
    for (problem, defense, _), result in zip(
        wanted, run_jobs(jobs, settings.jobs, workers=settings.workers, say=settings.say), strict=True
    ):
        found[problem.key].setdefault(defense.label, []).append(result)
    return found


def _ratios(chosen: Sequence[Problem], runs: Mapping[str, Runs], settings: Settings) -> dict[str, Result]:
    """Return, by data set, the scale of isotropic noise that leaks as much as sumKL at L = .4."""
    jobs = []
    for problem in chosen:
        epochs = max(1, problem.epochs // _SEARCHED_SHARE)
        target = mean(_early_leak(result, epochs / problem.epochs) for result in runs[problem.key][SUMKL[0.4].label])
        short = {**problem.as_settings(), "epochs": epochs}
        jobs.append(Job(find_ratio, {"problem": short, "seed": problem.seeds[0], "target": target}))
    results = run_jobs(jobs, settings.jobs, workers=settings.workers, say=settings.say)
    return {problem.key: result for problem, result in zip(chosen, results, strict=True)}


def _early_leak(result: Result, share: float) -> float:
    """Return the mean leak AUC at the cut over the first part of a run."""
    last = share * result["steps"][-1]
    return mean(leak for step, leak in zip(result["steps"], result["windows"][CUT], strict=True) if step <= last)


def worst_window(result: Result, attack: str) -> float:
    """Return the mean leak AUC of a run's worst window, a fortieth of the run, in the attack's better orientation.

    A single batch has few positives, and its AUC is mostly chance; over a window this averages out.
    """
    values = [value for value in result["windows"][attack] if not math.isnan(value)]
    flipped = result["auc"][attack] < 0.5
    return max((1.0 - value if flipped else value for value in values), default=math.nan)


_, _LIKELIHOOD, _ = AUDITORS

_OVER_TRAINING = """\
Three seeds at most. The model is cut after all four layers, before a linear top, as in the paper, and the norm attack
watches what arrives at the cut, and the gradient that goes on to the first layer. sumKL takes the least power at
which, *if the gradients of each class are isotropic Gaussians*, every attacker has a detection error of at least L and
an AUC of at most 1 − 2 L².

They are not: below a linear top they are all collinear. The bound therefore holds for the norm attack and not for a
better one: the auditor's likelihood ratio, fitted on earlier steps only, sees that one class is marked by noise across
the gap. The last columns print what it finds, beside the bound. *Raw*: not turned round; below one half the other class
has the larger scores."""


def _section_over_training(chosen: Sequence[Problem], runs: Mapping[str, Runs]) -> Section:
    names = {problem.key: f"figure-2ab-{problem.key}" for problem in chosen}
    claims = [claim for problem in chosen for claim in _claims_over_training(problem, runs[problem.key])]
    return Section(
        title="Figures 2a and 2b: leak over training",
        body=f"{_OVER_TRAINING}\n\n{_table_over_training(chosen, runs)}\n\n{_COUNTED}\n\n{_table_of_verdicts(claims)}",
        figures={name: _draw_over_training(name, runs[key]) for key, name in names.items()},
        captions={
            names[problem.key]: f"{problem.title}: leak AUC of the norm attack; dotted: the bound 1 − 2 L²"
            for problem in chosen
        },
        claims=claims,
        claims_shown=False,
    )


_COUNTED = "How often each claim holds, over data sets and levels (each by itself is in `results.json`):"


def _table_of_verdicts(claims: Sequence[Claim]) -> str:
    kinds = {
        "the norm attack at the cut stays below the bound": f"norm attack at {CUT}",
        "the norm attack at the first layer stays below the bound": f"norm attack at {FIRST}",
        "the auditor's likelihood at the cut stays below the bound": "auditor's likelihood",
        "the auditor's detection error is at least L": "every attacker's detection error",
    }
    rows = []
    for kind, words in kinds.items():
        verdicts = [claim.verdict == "reproduces" for claim in claims if words in claim.claim]
        rows.append((kind, f"{sum(verdicts)} of {len(verdicts)}"))
    return markdown_table(("claim", "holds"), rows)


def _draw_over_training(name: str, runs: Runs) -> str:
    labels = [NONE.label, *(SUMKL[level].label for level in LEVELS)]
    panels = [
        drawing.Panel(
            title=title,
            x_label="step",
            lines={
                label: (runs[label][0]["steps"], _mean_curve([run["windows"][layer] for run in runs[label]]))
                for label in labels
            },
            levels={SUMKL[level].label: bound(level) for level in LEVELS},
            baseline=0.5,
        )
        for title, layer in (("a: leak AUC at the cut", CUT), ("b: leak AUC at the first layer", FIRST))
    ]
    return drawing.draw_panels(name, panels, _PENS, same_scale=True)


def _mean_curve(curves: Sequence[Sequence[float]]) -> list[float]:
    return [mean(values) for values in zip(*curves, strict=True)]


def _table_over_training(chosen: Sequence[Problem], runs: Mapping[str, Runs]) -> str:
    rows = []
    for problem in chosen:
        for level, label in ((math.nan, NONE.label), *((level, SUMKL[level].label) for level in LEVELS)):
            found = runs[problem.key][label]
            rows.append(
                (
                    problem.title,
                    label,
                    shown(bound(level), 2),
                    with_interval([run["auc"][CUT] for run in found], limits=UNIT),
                    with_interval([worst_window(run, CUT) for run in found], limits=UNIT),
                    with_interval([run["auc"][FIRST] for run in found], limits=UNIT),
                    with_interval([run["worst_auc"][_LIKELIHOOD] for run in found], limits=UNIT),
                    with_interval([run["detection_error"] for run in found], limits=UNIT),
                )
            )
    headings = (
        "data",
        "defense",
        "bound",
        "norm attack, cut (raw)",
        "its worst window",
        "norm attack, layer 1 (raw)",
        "auditor, cut",
        "auditor's detection error",
    )
    return markdown_table(headings, rows, left=2)


def _claims_over_training(problem: Problem, runs: Runs) -> list[Claim]:
    claims = []
    for level in LEVELS:
        found = runs[SUMKL[level].label]
        for layer in (CUT, FIRST):
            what = f"norm attack at {layer}, worst window, sumKL with L = {level:g}"
            claims.append(_below_bound(problem, what, level, [worst_window(run, layer) for run in found]))
        what = f"auditor's likelihood at the cut, sumKL with L = {level:g}"
        claims.append(_below_bound(problem, what, level, [run["worst_auc"][_LIKELIHOOD] for run in found]))
        claims.append(_detection_claim(problem, level, [run["detection_error"] for run in found]))
    return claims


def _below_bound(problem: Problem, what: str, level: float, values: Sequence[float]) -> Claim:
    ends, most = interval(values), bound(level)
    if surely_below(values, most):
        reason = "the interval lies below the bound"
    elif ends is not None and ends[0] > most:
        reason = "the interval lies above the bound: the gradients are not the Gaussians that it assumes"
    else:
        reason = "the interval reaches across the bound"
    return Claim.of(
        values,
        claim=f"leak AUC at most 1 − 2 L² = {bound(level):.2f}: {what}, {problem.title}",
        published=most,
        holds=surely_below(values, most),
        why=reason,
        limits=UNIT,
    )


def _detection_claim(problem: Problem, level: float, values: Sequence[float]) -> Claim:
    return Claim.of(
        values,
        claim=f"every attacker's detection error at least L = {level:g}, {problem.title}",
        published=level,
        holds=surely_above(values, level),
        limits=UNIT,
        why="measured with the auditor's better attack, whose threshold was fixed before the batch",
    )


_COMPARED = """\
The paper has one isotropic baseline, of ratio 5. Here isotropic noise is also scaled until the *norm attack* reads as
much of it as of sumKL: the scale is found by halving on short runs, from the leak on training records alone. Best test
AUC is the highest of all epochs, as in the paper; it is chosen on the test records, for every defense alike, and the
last epoch's stands beside it. Read the last two columns before concluding anything from an equal leak to the norm
attack: they show what a better attacker reads. It is the best of the auditor's attacks in each run, which reads a
little too much where none of them reads much. *Raw*: not turned round."""


def _section_compared(chosen: Sequence[Problem], runs: Mapping[str, Runs], ratios: Mapping[str, Result]) -> Section:
    names = {problem.key: f"figure-2c-{problem.key}" for problem in chosen}
    return Section(
        title="Figure 2c: sumKL against the other defenses",
        body=f"{_COMPARED}\n\n{_table_compared(chosen, runs, ratios)}",
        figures={name: _draw_compared(name, runs[key]) for key, name in names.items()},
        captions={
            names[problem.key]: f"{problem.title}: training loss, test AUC, and leak AUC of the norm attack by layer"
            for problem in chosen
        },
        claims=[claim for problem in chosen for claim in _claims_compared(problem, runs[problem.key])],
    )


_COMPARED_LABELS = (NONE.label, SUMKL[0.4].label, ISOTROPIC.label, MAX_NORM.label, EQUAL)


def _draw_compared(name: str, runs: Runs) -> str:
    layers = [*LAYERS, CUT]
    epochs = list(range(1, len(runs[NONE.label][0]["loss"]) + 1))
    loss, test = (
        {label: (epochs, _mean_curve([run[kind] for run in runs[label]])) for label in _COMPARED_LABELS}
        for kind in ("loss", "test")
    )
    leak = {
        label: (list(range(1, len(layers) + 1)), [mean(run["auc"][layer] for run in runs[label]) for layer in layers])
        for label in _COMPARED_LABELS
    }
    panels = [
        drawing.Panel(title="training loss", x_label="epoch", lines=loss),
        drawing.Panel(title="test AUC", x_label="epoch", lines=test),
        drawing.Panel(title="leak AUC by layer", x_label="layer (4: the cut)", lines=leak, marked=True, baseline=0.5),
    ]
    return drawing.draw_panels(name, panels, _PENS)


def _table_compared(chosen: Sequence[Problem], runs: Mapping[str, Runs], ratios: Mapping[str, Result]) -> str:
    rows = []
    for problem in chosen:
        for label in _COMPARED_LABELS:
            found = runs[problem.key][label]
            scale = f" ({ratios[problem.key]['ratio']:.3g})" if label == EQUAL else ""
            rows.append(
                (
                    problem.title,
                    f"{label}{scale}",
                    with_interval(run["loss"][-1] for run in found),
                    with_interval([max(run["test"]) for run in found], limits=UNIT),
                    with_interval([run["test"][-1] for run in found], limits=UNIT),
                    *(with_interval([run["auc"][layer] for run in found], limits=UNIT) for layer in (*LAYERS, CUT)),
                    with_interval([max(run["worst_auc"][name] for name in AUDITORS) for run in found], limits=UNIT),
                    with_interval(
                        [max(run["worst_accumulated_auc"][name] for name in AUDITORS) for run in found], limits=UNIT
                    ),
                )
            )
    headings = (
        "data",
        "defense",
        "training loss",
        "best test AUC",
        "last test AUC",
        *(f"norm, {layer} (raw)" for layer in (*LAYERS, CUT)),
        "auditor, one step",
        "auditor, all epochs",
    )
    return markdown_table(headings, rows, left=2)


def _claims_compared(problem: Problem, runs: Runs) -> list[Claim]:
    ours = [max(run["test"]) for run in runs[SUMKL[0.4].label]]
    rivals = {label: [max(run["test"]) for run in runs[label]] for label in (EQUAL, ISOTROPIC.label)}
    return [_better_than(problem, label, ours, rival) for label, rival in rivals.items()]


def _better_than(problem: Problem, label: str, ours: Sequence[float], rival: Sequence[float]) -> Claim:
    gains = [own - other for own, other in zip(ours, rival, strict=True)]
    ends = interval(gains)
    verdict, why = _verdict_of_gain(ends)
    return Claim(
        claim=f"best test AUC of sumKL (L = .4) less that of {label}, {problem.title}",
        published=None,
        ours=mean(gains),
        interval=ends,
        seeds=len(gains),
        verdict=verdict,
        why=why,
    )


def _verdict_of_gain(ends: tuple[float, float] | None) -> tuple[Verdict, str]:
    if ends is None:
        return "does not", "one seed tells no difference"
    if ends[0] > 0:
        return "reproduces", "the interval of the paired difference lies above 0"
    return "does not", "sumKL is worse" if ends[1] < 0 else "no difference can be told at this number of seeds"

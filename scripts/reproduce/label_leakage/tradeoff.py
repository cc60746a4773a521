"""What each defense keeps of the test AUC at the same leak, by four attackers, and whether there is a better one.

Source: the question is that of Li et al., ICLR 2022, arXiv:2102.08504, section 4; the attackers beyond the norm attack
and the measure "beyond the prediction" are this project's.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from scripts.reproduce.label_leakage.study import PASSIVE, Defense, Problem, build_trainer, problems
from scripts.reproduce.shared import drawing
from scripts.reproduce.shared.claims import Claim, Verdict, interval, markdown_table, mean, shown, with_interval
from scripts.reproduce.shared.jobs import Job, Result, run_jobs
from scripts.reproduce.shared.pages import Section
from scripts.reproduce.shared.settings import Settings
from splitvfl.attacks import GradientClassifierAttack, NormAttack, ReadoutAttack, ResidualAttack
from splitvfl.exchange.prediction import predict
from splitvfl.hooks import Attack
from splitvfl.leakage.leak_summary import LeakSummary, nanmax
from splitvfl.leakage.message_audit import AUDITORS
from splitvfl.report.drawing import PALETTE
from splitvfl.run.training import Status

KNOWN = 10
"""Records of each class that the gradient classifier is assumed to know."""

READS_LABELS = ("norm", "residual", "gradient-classifier", *AUDITORS)


@dataclass(frozen=True)
class Measure:
    """A way to measure the leak.

    Attributes:
        key: Of the run's result.
        title: For figures and tables.
    """

    key: str
    title: str


NORM = Measure("norm", "norm attack")
ONE_STEP = Measure("one_step", "best attacker, one step")
ACCUMULATED = Measure("accumulated", "best attacker, whole run")
BEYOND = Measure("beyond", "beyond the prediction")
MEASURES = (NORM, ONE_STEP, ACCUMULATED, BEYOND)


@dataclass(frozen=True)
class Family:
    """A defense over its strength.

    Attributes:
        label: For figures and tables.
        members: From the weakest to the strongest.
        pen: How it is drawn.
    """

    label: str
    members: tuple[Defense, ...]
    pen: drawing.Pen


def _family(label: str, name: str, option: str, values: Sequence[float], pen: drawing.Pen, **more: Any) -> Family:
    members = tuple(Defense(f"{label} {value:g}", name, {option: value, **more}) for value in values)
    return Family(label, members, pen)


NONE = Defense("no noise")
MAX_NORM = Defense("max-norm", "max-norm")
FAMILIES = (
    _family("isotropic", "isotropic", "ratio", (5.0, 10.0, 20.0, 40.0, 80.0), drawing.Pen(PALETTE[4])),
    _family("sumKL", "sumkl", "detection_error", (0.2, 0.3, 0.4, 0.45), drawing.Pen(PALETTE[0])),
    _family(
        "axis-sumKL", "axis-sumkl", "detection_error", (0.3, 0.4, 0.45, 0.48), drawing.Pen(PALETTE[0], dashed=True)
    ),
    _family("axis-Gaussian", "axis-gaussian", "detection_error", (0.3, 0.4, 0.45), drawing.Pen(PALETTE[3])),
    _family("memoised response", "memoised-response", "flip", (0.2, 0.3, 0.4), drawing.Pen(PALETTE[2])),
    _family(
        "asymmetric response",
        "asymmetric-response",
        "detection_error",
        (0.2, 0.3, 0.4, 0.45),
        drawing.Pen(PALETTE[1]),
    ),
)
PUBLISHED, OURS = "sumKL", "asymmetric response"
_OLDER = ("isotropic", "sumKL", "axis-sumKL")

_STOPPING_SEEDS = 3

LEVELS = (0.6, 0.7, 0.8)
"""Leaks at which defenses are compared."""


def measure(problem: Mapping[str, Any], seed: int, defense: Mapping[str, Any]) -> Result:
    """Train once, and return the test AUC beside what every attacker got.

    Args:
        problem: What :meth:`Problem.as_settings` returned.
        seed: Of everything.
        defense: What :meth:`Defense.as_settings` returned.
    """
    attacks: list[Attack] = [NormAttack(), ResidualAttack(), ReadoutAttack(), GradientClassifierAttack()]
    trainer = build_trainer(Problem(**problem), seed, defense=defense, attacks=attacks, known=KNOWN)
    test = trainer.fit(problem["epochs"])
    train = trainer.active.data.train
    assert train.labels is not None
    predicted = predict(trainer.active, trainer.passives, part="train").outputs
    leak = trainer.audits[PASSIVE].judge(train.ids, train.labels, predicted, seed=seed)
    summaries = trainer.summaries(PASSIVE)
    return {
        "test": test["auc"],
        "norm": summaries["norm"].worst_auc,
        "one_step": _best(summaries, accumulated=False),
        "accumulated": _best(summaries, accumulated=True),
        "beyond": leak.matched_auc,
        "with_prediction": leak.auc,
        "prediction": leak.prediction_auc,
        "detection_error": trainer.audits[PASSIVE].detection_error,
        "each": {name: [found.worst_auc, found.worst_accumulated_auc] for name, found in summaries.items()},
    }


def _best(summaries: Mapping[str, LeakSummary], *, accumulated: bool) -> float:
    found = [summaries[name] for name in READS_LABELS]
    return nanmax(*(one.worst_accumulated_auc if accumulated else one.worst_auc for one in found))


Curves = dict[str, list[Result]]
"""Results of all seeds by the defense's label."""


def sections(settings: Settings) -> list[Section]:
    """Return the sections on the trade-off, on equal leak, and on the better defense."""
    chosen = _with_stopped([_shorter(problem) for problem in problems(settings)], settings)
    settings.say(f"trade-off: {len(chosen)} data sets")
    curves = _run(chosen, settings)
    return [_section_curves(chosen, curves), _section_equal_leak(chosen, curves), _section_better(chosen, curves)]


def _shorter(problem: Problem) -> Problem:
    """Return the problem with two thirds of its epochs: there are many runs, and every one is attacked six times.

    Generated clicks, which take the longest by far, get one seed.
    """
    seeds = problem.seeds[:1] if problem.generated else problem.seeds
    return replace(problem, seeds=seeds, epochs=max(2, math.ceil(problem.epochs * 2 / 3)) if problem.epochs > 1 else 1)


def best_epoch(problem: Mapping[str, Any], seed: int) -> Result:
    """Return after how many epochs the undefended model is best on validation records, a tenth of the training ones.

    Args:
        problem: What :meth:`Problem.as_settings` returned; its epochs are the most.
        seed: Of everything.
    """
    trainer = build_trainer(Problem(**problem), seed, attacks=[], audit=False, validation=True)
    tests: list[float] = []

    def follow(status: Status) -> None:
        if status.step % len(trainer.batches) == 0:
            tests.append(status.test)

    trainer.fit(problem["epochs"], progress=follow)
    return {"epoch": int(np.argmax(tests)) + 1, "auc": tests}


def _with_stopped(chosen: Sequence[Problem], settings: Settings) -> list[Problem]:
    """Return the data sets, and again, stopped early, those that the undefended model overfits by the half of the run.

    Noise drawn anew in every step also keeps a model from overfitting. Beside an undefended model that was trained for
    too long it would look better than it is.
    """
    asked = [problem for problem in chosen if not problem.generated and problem.epochs > 1]
    jobs = [
        Job(best_epoch, {"problem": problem.as_settings(), "seed": seed})
        for problem in asked
        for seed in problem.seeds[:_STOPPING_SEEDS]
    ]
    results = iter(run_jobs(jobs, settings.jobs, workers=settings.workers, say=settings.say))
    found = list(chosen)
    for problem in asked:
        epochs = round(np.median([next(results)["epoch"] for _ in problem.seeds[:_STOPPING_SEEDS]]))
        if epochs <= problem.epochs // 2:
            title = f"{problem.title}, stopped after {epochs} epochs"
            stopped = replace(problem, key=f"{problem.key}-stopped", title=title, epochs=epochs)
            found.insert(found.index(problem) + 1, stopped)
    return found


def _defenses(problem: Problem, settings: Settings) -> list[Defense]:
    """Return what is run on a data set: every strength of every family, or fewer where time is short."""
    if settings.quick:
        return [NONE, *(family.members[-1] for family in FAMILIES)]
    if problem.generated:
        return [NONE, *(family.members[-2] for family in FAMILIES)]
    return [NONE, MAX_NORM, *(member for family in FAMILIES for member in family.members)]


def _run(chosen: Sequence[Problem], settings: Settings) -> dict[str, Curves]:
    wanted = [
        (problem, defense, seed)
        for problem in chosen
        for seed in problem.seeds
        for defense in _defenses(problem, settings)
    ]
    # One seed of everything first: a run that is broken off has seen all data sets.
    wanted.sort(key=lambda job: job[2])
    jobs = [
        Job(measure, {"problem": problem.as_settings(), "seed": seed, "defense": defense.as_settings()})
        for problem, defense, seed in wanted
    ]
    found: dict[str, Curves] = {problem.key: {} for problem in chosen}
    results = run_jobs(jobs, settings.jobs, workers=settings.workers, say=settings.say)
    for (problem, defense, _), result in zip(wanted, results, strict=True):
        found[problem.key].setdefault(defense.label, []).append(result)
    return found


def _members(family: Family, curves: Curves) -> list[list[Result]]:
    """Return the results of a family's members that were run, from the weakest to the strongest."""
    return [curves[member.label] for member in family.members if member.label in curves]


# --- the curves -------------------------------------------------------------------------------------------------------


def _section_curves(chosen: Sequence[Problem], curves: Mapping[str, Curves]) -> Section:
    figures = {f"trade-off-{problem.key}": _figure(problem, curves[problem.key]) for problem in chosen}
    captions = {
        f"trade-off-{problem.key}": f"{problem.title}: test AUC (up is better) against leak AUC (left is better), mean "
        f"over {_counted(problem)}; every point is one strength of a defense, bars are 95 % intervals."
        for problem in chosen
    }
    tables = "\n\n".join(f"**{problem.title}**\n\n{_table(curves[problem.key])}" for problem in chosen)
    body = f"""
Every defense over its strength, in two thirds of the epochs above; on generated clicks with one seed, and one
strength each. Where the undefended model is best before half of that, by validation on a tenth of the training records,
everything is run again for only as long. The leak is measured in four ways: by the norm attack; by the best of the
attacks in one step ({", ".join(READS_LABELS)}; the classifier knows {KNOWN} records of each class); by the best
of them accumulated over the run; and, beyond the paper, by an auditor who puts a record's messages of the whole run
together with the model's own prediction of it and is judged between records of *equal prediction* (`run_audit`,
`matched_auc`). None of them takes from a message what the prediction explains of it, as a partner can, and the last one
leaves earlier predictions in: see the top of the page.

The last measure is there because a prediction is no secret at a linear top. Gradients are multiples of the top's
weights, so the partner can read those and predict every record itself; "readout" in the tables is that attack, which
knows no label. Only isotropic noise of 20 and more drowns it, and the partner's activations still tell of the
prediction then. A leak AUC below the model's own training AUC ("prediction") therefore says little by itself, and one
that equals it may hide no label at all. What a model has memorised of the answers that it was trained on is part of
its prediction, so that this measure leaves it out.

{tables}
"""
    return Section(title="Test AUC against leak", body=body, figures=figures, captions=captions)


def _counted(problem: Problem) -> str:
    count = len(problem.seeds)
    return f"{count} seed{'' if count == 1 else 's'}"


def _table(curves: Curves) -> str:
    headings = ("defense", "test AUC", *(one.title for one in MEASURES), "readout", "prediction", "detection error")
    rows = []
    for label, results in curves.items():
        leaks = [shown(mean(result[one.key] for result in results)) for one in MEASURES]
        readout = shown(mean(result["each"]["readout"][0] for result in results))
        rest = [shown(mean(result[key] for result in results)) for key in ("prediction", "detection_error")]
        rows.append((label, with_interval(result["test"] for result in results), *leaks, readout, *rest))
    return markdown_table(headings, rows)


def _figure(problem: Problem, curves: Curves) -> str:
    panels = []
    for one in MEASURES:
        lines = {family.label: _line(_members(family, curves), one) for family in FAMILIES}
        panels.append(
            drawing.Panel(
                title=one.title,
                x_label="leak AUC",
                lines={label: line[:2] for label, line in lines.items()},
                bars={label: line[2] for label, line in lines.items()},
                marked=True,
                baseline=mean(result["test"] for result in curves[NONE.label]),
            )
        )
    pens = {family.label: family.pen for family in FAMILIES}
    return drawing.draw_panels(f"trade-off-{problem.key}", panels, pens, same_scale=True)


def _line(members: Sequence[Sequence[Result]], one: Measure) -> tuple[list[float], list[float], list[float]]:
    """Return mean leaks, mean test AUCs and the half widths of their intervals."""
    leaks = [mean(result[one.key] for result in results) for results in members]
    tests = [mean(result["test"] for result in results) for results in members]
    ends = [interval(result["test"] for result in results) for results in members]
    return leaks, tests, [0.0 if pair is None else (pair[1] - pair[0]) / 2 for pair in ends]


# --- at equal leak ----------------------------------------------------------------------------------------------------


def test_at(members: Sequence[Result], one: Measure, level: float) -> float:
    """Return one seed's test AUC at a leak, by straight lines between a family's strengths; NaN outside of them.

    Args:
        members: One seed's results, one per strength.
        one: How the leak is measured.
        level: The leak AUC.
    """
    leaks = np.array([result[one.key] for result in members])
    tests = np.array([result["test"] for result in members])
    order = np.argsort(leaks, kind="stable")
    if not leaks.size or np.isnan(leaks).any() or not leaks[order[0]] <= level <= leaks[order[-1]]:
        return math.nan
    return float(np.interp(level, leaks[order], tests[order]))


def _at(family: Family, curves: Curves, one: Measure, level: float) -> list[float]:
    """Return the test AUC at a leak of every seed."""
    members = _members(family, curves)
    return [test_at(seed, one, level) for seed in zip(*members, strict=True)]


def _section_equal_leak(chosen: Sequence[Problem], curves: Mapping[str, Curves]) -> Section:
    tables = "\n\n".join(f"**{problem.title}**\n\n{_equal_table(curves[problem.key])}" for problem in chosen)
    claims = [
        claim
        for problem in chosen
        for one in MEASURES
        for claim in _sumkl_against_isotropic(problem, curves[problem.key], one)
    ]
    body = f"""
By the norm attack, figure 2c compares them. By any better attacker there is nothing to compare: a linear top makes the
gradients collinear, and the noise that sumKL then gives to one class off their line marks it, so that the best
attacker reads sumKL at every strength (leak AUC 1.00 in the tables above). What is left of the idea, noise along Δg,
is axis-sumKL; it keeps as much test AUC as isotropic noise at the same leak, or more, by attackers who do not use the
model's prediction.

The test AUC of each family at the same leak, by straight lines between its strengths, seed by seed; seeds in which
the family does not reach that leak are left out, so that two families may be means over different seeds (the claims
below are paired). A dash: none reaches it.

{tables}
"""
    return Section(title="Does sumKL beat isotropic noise at equal leak?", body=body, claims=claims)


def _equal_table(curves: Curves) -> str:
    headings = ("leak AUC", *(family.label for family in FAMILIES))
    rows = []
    for one in MEASURES:
        for level in LEVELS:
            found = [_at(family, curves, one, level) for family in FAMILIES]
            if all(math.isnan(value) for values in found for value in values):
                continue
            rows.append((f"{one.title}: {shown(level, 1)}", *(with_interval(values) for values in found)))
    return markdown_table(headings, rows)


def _gain(first: Sequence[float], second: Sequence[float]) -> list[float]:
    """Return differences, seed by seed, where both are known."""
    return [one - other for one, other in zip(first, second, strict=True) if not math.isnan(one - other)]


def _family_of(label: str) -> Family:
    return next(family for family in FAMILIES if family.label == label)


def _verdict(gains: Sequence[float]) -> Verdict:
    ends = interval(gains)
    return "reproduces" if ends is not None and ends[0] > 0 else "does not"


def _sumkl_against_isotropic(problem: Problem, curves: Curves, one: Measure) -> list[Claim]:
    claims = []
    for level in LEVELS:
        gains = _gain(_at(_family_of(PUBLISHED), curves, one, level), _at(_family_of("isotropic"), curves, one, level))
        claims += _claims_of(
            f"{problem.title}: sumKL keeps more test AUC than isotropic noise at leak {shown(level, 1)} ({one.title})",
            gains,
        )
    return claims


def _claims_of(claim: str, gains: Sequence[float]) -> list[Claim]:
    """Return the claim that a gain is positive; none where it is known of fewer than two seeds."""
    if len(gains) < 2:
        return []
    return [
        Claim(
            claim=f"{claim}; the gain",
            published=None,
            ours=mean(gains),
            interval=interval(gains),
            seeds=len(gains),
            verdict=_verdict(gains),
            why=_why(gains),
        )
    ]


def _why(gains: Sequence[float]) -> str:
    ends = interval(gains)
    assert ends is not None
    if ends[0] > 0:
        return "the 95 % interval of the gain, paired by seed, lies above 0"
    return "it keeps less: the interval lies below 0" if ends[1] < 0 else "the interval of the gain holds 0"


# --- the better defense -----------------------------------------------------------------------------------------------


def _section_better(chosen: Sequence[Problem], curves: Mapping[str, Curves]) -> Section:
    claims = [claim for problem in chosen for claim in _ours_against_older(problem, curves[problem.key])]
    body = f"""
The asymmetric response (`AsymmetricResponse`) draws one answer per record, once, that mostly hides the rarer class. It
promises a detection error of at least L and label differential privacy (ε = 3 here) for the whole run, so nothing
accumulates. Compared with the best of {", ".join(_OLDER)} at the same leak, of the whole run, beyond the prediction;
where enough seeds have that leak to compare them in pairs, it keeps more test AUC, with an interval above 0, in
{_held(claims)}.

{_better_table(chosen, curves)}

Two remarks. Noise that is drawn anew in every step also keeps a model from overfitting, which an answer that is drawn
once does not: the model learns it by heart, lies included. The Criteo sample of ten thousand, trained past its best
epoch, is better *with* fresh noise than without any, and there the older defenses win; on the other Criteo sample,
whose positives are a quarter of the records, it is a draw. Here the response pays where positives are rare and training
stops in time; how much of that is left where every defense has the epochs that suit it stands at the top of the page.

By the attackers that may read the prediction too, the response's leak AUC is near the model's own, because nothing in
it hides predictions; the columns "norm attack" and "best attacker" above show that. Noise on the gradient looks better
there only because those columns leave out what "readout" reads under it: a partner has both.
"""
    return Section(title="A better defense", body=body, claims=claims)


def _held(claims: Sequence[Claim]) -> str:
    """Return how many comparisons were won, and in how many settings: those of one setting share its runs."""
    won = [claim for claim in claims if claim.verdict == "reproduces"]
    settings, of_won = ({claim.claim.partition(": the ")[0] for claim in found} for found in (claims, won))
    return f"{len(won)} of {len(claims)} comparisons, in {len(of_won)} of {len(settings)} settings"


def _best_older(curves: Curves, level: float) -> tuple[str, list[float]]:
    """Return the older family with the highest mean test AUC at a leak beyond the prediction."""
    found = {label: _at(_family_of(label), curves, BEYOND, level) for label in _OLDER}
    known = {label: values for label, values in found.items() if not math.isnan(mean(values))}
    if not known:
        return "", []
    label = max(known, key=lambda name: mean(known[name]))
    return label, known[label]


def _better_table(chosen: Sequence[Problem], curves: Mapping[str, Curves]) -> str:
    headings = ("data", "leak AUC", "no noise", OURS, "memoised response", "axis-Gaussian", "best older")
    rows = []
    for problem in chosen:
        own = curves[problem.key]
        for level in LEVELS:
            label, older = _best_older(own, level)
            ours, memoised, axis = (
                with_interval(_at(_family_of(name), own, BEYOND, level))
                for name in (OURS, "memoised response", "axis-Gaussian")
            )
            none = with_interval(result["test"] for result in own[NONE.label])
            best = f"{with_interval(older)} ({label})" if label else "–"
            rows.append((problem.title, shown(level, 1), none, ours, memoised, axis, best))
    return markdown_table(headings, rows)


def _ours_against_older(problem: Problem, curves: Curves) -> list[Claim]:
    claims = []
    for level in LEVELS:
        label, older = _best_older(curves, level)
        gains = _gain(_at(_family_of(OURS), curves, BEYOND, level), older) if label else []
        claims += _claims_of(
            f"{problem.title}: the {OURS} keeps more test AUC than {label}, the best of the older defenses, at leak "
            f"{shown(level, 1)} ({BEYOND.title})",
            gains,
        )
    return claims

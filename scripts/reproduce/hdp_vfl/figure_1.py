"""Figures 1 and 4: accuracy over ε on three data sets, with the published noise and with noise that is calculated."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from scripts.reproduce.hdp_vfl.noise import true_delta
from scripts.reproduce.hdp_vfl.published import DELTA, EPSILONS
from scripts.reproduce.hdp_vfl.study import Problem, problems
from scripts.reproduce.hdp_vfl.training import (
    Contender,
    Method,
    Outcome,
    Outcomes,
    noisy_parts_of,
    outcomes_of,
    private,
)
from scripts.reproduce.residue_protection.drawing import Chart, Curve, draw_grid, short
from scripts.reproduce.shared.claims import (
    Claim,
    Verdict,
    interval,
    markdown_table,
    mean,
    shown,
    standard_error,
    surely_above,
    with_interval,
)
from scripts.reproduce.shared.pages import Section
from scripts.reproduce.shared.settings import Settings
from splitvfl.report.drawing import INK, PALETTE

SINGLE, POOLED, JOINT, ENCRYPTED = (
    Contender(method=method) for method in ("single party", "centralised", "non-private", "encrypted")
)
NOISY: Mapping[Method, tuple[str, str]] = {
    "as printed": ("published σ", PALETTE[1]),
    "published, clips": ("published σ, clips", PALETTE[4]),
    "tight": ("tight σ, clips", PALETTE[0]),
}
"""How what has noise is called, and coloured."""

NOISELESS: Mapping[Contender, tuple[str, str]] = {
    SINGLE: ("one party", PALETTE[2]),
    POOLED: ("centralised", PALETTE[3]),
    JOINT: ("non-private", PALETTE[5]),
    ENCRYPTED: ("encrypted", INK),
}
CONTENDERS = (*NOISELESS, *(contender for method in NOISY for contender in private(method)))

HEADINGS = tuple(f"ε = {short(epsilon)}" for epsilon in EPSILONS)

ALLOWED = 0.02
"""By so much accuracy the tight noise may be below no noise at ε = 1."""

NoisyParts = Mapping[Problem, Mapping[Contender, Sequence[float]]]
"""Accuracies with noise on the parts of logits of test records, by contender, a value for each seed."""

_NOISELESS_BODY = """Accuracy / AUC on test records, means over seeds, ± half of the 95 % interval.

- *One party*: the label party's columns alone.
- *Centralised*: all columns in one place, rows and weights of any norm. How far it is above *non-private* is what rows
  of norm 1 and a ball of radius 1 cost.
- *Non-private*: HDP-VFL without noise.
- *Encrypted*: the weights that the encrypted exchange ends with, which has Taylor's sigmoid; computed in the clear, as
  exchange `oracle` does."""

_NOISY_BODY = """Accuracy on test records after the last epoch, means over seeds ± half of the 95 % interval.
*Published σ*: the textbook's formula with the paper's sensitivities, at every ε; receivers use what comes, as printed,
and so the label party's and the passive party's own claims are void at any ε (large noise moves weights farther than
the lemmas say). *Published σ, clips*: the same noise, and receivers that clip. *Tight σ, clips*: the least noise for
what the optimiser does; both of these are (ε, δ)-private towards the other party as far as the noise goes, where
columns are scaled by public ranges. Where they are scaled by statistics of the training records **nothing here is
covered**, as every row then depends on every record. Nowhere covered: the choice of the learning rate, which looks at
labels and whose cost is not accounted for, and the evaluation, for which parts of logits cross without noise.

δ = .01 is above one over the number of training records on every set, and above ε at the first of the seven values:
these are the paper's settings, and no recommendation."""

_PARTS_BODY = """So far test records are judged by parts of logits without noise. With the published σ on these parts,
too, as on those of training records:"""

_DELTA_BODY = (
    """The published formula holds for ε below 1. What δ its noise has at each ε, if its sensitivity is right:"""
)


def sections(settings: Settings) -> list[Section]:
    """Return accuracies without and with noise, and the verdicts on what the paper says of them."""
    given = problems(settings)
    variants = [variant for problem in given for variant in problem.variants()]
    outcomes = outcomes_of(settings, variants, CONTENDERS)
    noisy_parts = noisy_parts_of(settings, outcomes, private("as printed"))
    return [
        Section(
            title="Without noise",
            body=f"{_NOISELESS_BODY}\n\n{_noiseless_table(outcomes)}",
            claims=[encrypted_claim(problem, outcomes[problem]) for problem in given],
        ),
        Section(
            title="Figures 1 and 4: accuracy over ε",
            body="\n\n".join(
                (
                    _NOISY_BODY,
                    _noisy_table(outcomes, "accuracy", tuple(NOISY)),
                    "AUC, which a shift of all logits does not change:",
                    _noisy_table(outcomes, "auc", ("as printed", "tight")),
                    _PARTS_BODY,
                    _parts_table(noisy_parts),
                    _DELTA_BODY,
                    _delta_table(),
                )
            ),
            figures={_name(own): _drawn(given, outcomes, intercept=own) for own in (True, False)},
            captions={_name(own): _caption(intercept=own) for own in (True, False)},
            claims=[claim for problem in given for claim in _claims(problem, outcomes, noisy_parts)],
        ),
    ]


# --- tables and figures


def _noiseless_table(outcomes: Outcomes) -> str:
    rows = [
        (
            problem.title,
            problem.variant,
            shown(mean(outcomes[problem][JOINT].majority)),
            *(f"{with_interval(of[each].accuracy)} / {shown(mean(of[each].auc))}" for each in NOISELESS),
        )
        for problem, of in outcomes.items()
    ]
    return markdown_table(("data", "columns", "larger class", *(name for name, _ in NOISELESS.values())), rows, left=2)


def _noisy_table(outcomes: Outcomes, measure: str, methods: Sequence[Method]) -> str:
    rows = [
        (
            problem.title,
            problem.variant,
            NOISY[method][0],
            *(with_interval(getattr(of[each], measure)) for each in private(method)),
            with_interval(getattr(of[JOINT], measure)),
        )
        for problem, of in outcomes.items()
        for method in methods
    ]
    return markdown_table(("data", "columns", "noise", *HEADINGS, "none"), rows, left=3)


def _parts_table(noisy_parts: NoisyParts) -> str:
    rows = [
        (problem.title, problem.variant, *(with_interval(of[each]) for each in private("as printed")))
        for problem, of in noisy_parts.items()
    ]
    return markdown_table(("data", "columns", *HEADINGS), rows, left=2)


def _delta_table() -> str:
    return markdown_table(("", *HEADINGS), [("true δ", *(short(true_delta(epsilon)) for epsilon in EPSILONS))])


def _name(intercept: bool) -> str:
    return "hdp-vfl-1" if intercept else "hdp-vfl-1-no-intercept"


def _caption(*, intercept: bool) -> str:
    return (
        f"Accuracy over ε {'with' if intercept else 'without'} an intercept; columns scaled by statistics of the "
        "training records (above, not covered) and by public ranges (below); means and standard errors. Thin grey "
        "line: the larger class. Of lines that coincide the last is seen. Top: the true δ of the published noise."
    )


def _drawn(given: Sequence[Problem], outcomes: Outcomes, *, intercept: bool) -> str:
    by_scaling: dict[str, list[Problem]] = {}
    for problem in outcomes:
        if problem.intercept == intercept:
            by_scaling.setdefault(problem.scaling, []).append(problem)
    return draw_grid(
        _name(intercept),
        [
            Chart(
                title=f"{problem.title}, {scaling}",
                y_label="accuracy" if number == 0 else "",
                curves=_curves(outcomes[problem]),
                level=mean(outcomes[problem][JOINT].majority),
            )
            for scaling, row in by_scaling.items()
            for number, problem in enumerate(row)
        ],
        columns=len(given),
        across=EPSILONS,
        x_label="ε",
        top=[short(true_delta(epsilon)) for epsilon in EPSILONS],
        top_label=f"true δ of the published noise (nominal: {short(DELTA)})",
    )


def _curves(outcomes: Mapping[Contender, Outcome]) -> list[Curve]:
    flat = [
        _curve(name, [outcomes[each]] * len(EPSILONS), colour, dashed=True)
        for each, (name, colour) in NOISELESS.items()
    ]
    return flat + [
        _curve(name, [outcomes[each] for each in private(method)], colour) for method, (name, colour) in NOISY.items()
    ]


def _curve(name: str, given: Sequence[Outcome], colour: str, *, dashed: bool = False) -> Curve:
    values = [each.accuracy for each in given]
    errors = [0.0 if dashed or len(each) < 2 else standard_error(each) for each in values]
    return Curve(label=name, up=[mean(each) for each in values], errors=errors, colour=colour, dashed=dashed)


# --- verdicts

Test = Callable[[Mapping[Contender, Outcome]], tuple[list[float], bool]]
"""Returns a figure of what was trained, one for each seed, and whether the claim holds of it."""


def _claims(problem: Problem, outcomes: Outcomes, noisy_parts: NoisyParts) -> list[Claim]:
    own = [variant for variant in problem.variants() if variant in outcomes]
    found = [text_claim(own, outcomes, said, published, test) for said, published, test in TEXT]
    found.append(parts_claim(own[0], outcomes[own[0]], noisy_parts[own[0]]))
    found += [tight_claim(variant, outcomes[variant]) for variant in own]
    return [*found, *(alone_claim(variant, outcomes[variant]) for variant in own)]


def half_below(outcomes: Mapping[Contender, Outcome]) -> tuple[list[float], bool]:
    """Return the share of the lossless accuracy at ε = .01 with the published noise; it holds from .4 to .6."""
    shares = [
        noisy / plain
        for noisy, plain in zip(outcomes[private("as printed")[1]].accuracy, outcomes[JOINT].accuracy, strict=True)
    ]
    return shares, 0.4 <= mean(shares) <= 0.6


def acceptable_at_one(outcomes: Mapping[Contender, Outcome]) -> tuple[list[float], bool]:
    """Return by how much accuracy falls at ε = 1 with the published noise; it holds up to .04."""
    lost = _lost(outcomes, "as printed", 1.0)
    return lost, mean(lost) <= 0.04


def lossless_above_ten(outcomes: Mapping[Contender, Outcome]) -> tuple[list[float], bool]:
    """Return by how much accuracy falls at ε = 100 with the published noise; it holds up to .01."""
    lost = _lost(outcomes, "as printed", 100.0)
    return lost, mean(lost) <= 0.01


def parts_claim(
    problem: Problem, outcomes: Mapping[Contender, Outcome], noisy: Mapping[Contender, Sequence[float]]
) -> Claim:
    """Return whether accuracy is halved below ε = .1 if parts of logits of test records have noise, too."""
    contender, later = private("as printed")[1], private("as printed")[3]
    shares = [accuracy / plain for accuracy, plain in zip(noisy[contender], outcomes[JOINT].accuracy, strict=True)]
    return Claim.of(
        shares,
        claim=f"{problem.title}, published σ on parts of test records, too: half of the lossless accuracy below "
        "ε = .1 (share at .01, within .1)",
        holds=abs(mean(shares) - 0.5) <= 0.1,
        why=f"{problem.variant}; accuracy {shown(mean(noisy[contender]))}, and {shown(mean(noisy[later]))} at ε = 1",
        published=0.5,
    )


TEXT: Sequence[tuple[str, float, Test]] = (
    ("published σ: half of the lossless accuracy below ε = .1 (share at .01, within .1)", 0.5, half_below),
    ("published σ: acceptable at ε = 1 (accuracy lost, up to .04)", 0.0, acceptable_at_one),
    ("published σ: lossless above ε = 10 (accuracy lost at 100, up to .01)", 0.0, lossless_above_ten),
)
"""What the paper's text says of these figures, with our reading of it in brackets."""


def _lost(outcomes: Mapping[Contender, Outcome], method: Method, epsilon: float) -> list[float]:
    noisy = outcomes[Contender(method=method, epsilon=epsilon)]
    return [plain - accuracy for plain, accuracy in zip(outcomes[JOINT].accuracy, noisy.accuracy, strict=True)]


def text_claim(variants: Sequence[Problem], outcomes: Outcomes, said: str, published: float, test: Test) -> Claim:
    """Return the verdict on a claim of the text: of the first variant, or of others if it holds of these only.

    Args:
        variants: Of one data set, the one that is nearest to the paper first.
        outcomes: Of these.
        said: The claim.
        published: Its figure.
        test: What decides.
    """
    first = variants[0]
    values, holds = test(outcomes[first])
    others = [variant.variant for variant in variants[1:] if test(outcomes[variant])[1]]
    verdict: Verdict = "reproduces" if holds else "only with a variant" if others else "does not"
    also = f"; it holds with {' and '.join(others)}" if others and not holds else ""
    fails = len(variants) - 1 - len(others)
    but = f"; it fails with {fails} of {len(variants) - 1} other ways to make columns" if holds and fails else ""
    return Claim(
        claim=f"{first.title}, {said}",
        published=published,
        ours=mean(values),
        interval=interval(values),
        seeds=len(values),
        verdict=verdict,
        why=f"{first.variant}; larger class {shown(mean(outcomes[first][JOINT].majority))}, "
        f"non-private {shown(mean(outcomes[first][JOINT].accuracy))}{also}{but}",
    )


def tight_claim(problem: Problem, outcomes: Mapping[Contender, Outcome]) -> Claim:
    """Return whether the tight noise is within .02 of no noise at ε = 1, on average over seeds."""
    lost = _lost(outcomes, "tight", 1.0)
    plain, majority = mean(outcomes[JOINT].accuracy), mean(outcomes[JOINT].majority)
    constant = "; no better than a constant answer, noise or not" if plain < majority + 0.005 else ""
    ends = interval(lost)
    open_ = "; by the mean: the interval holds both" if ends is not None and ends[0] <= ALLOWED < ends[1] else ""
    return Claim.of(
        lost,
        claim=f"{problem.title}, {problem.variant}: tight σ at ε = 1 loses at most {short(ALLOWED)}",
        holds=mean(lost) <= ALLOWED,
        why=f"accuracy {shown(mean(outcomes[Contender(method='tight', epsilon=1.0)].accuracy))} of {shown(plain)}, "
        f"larger class {shown(majority)}{constant}{open_}",
    )


def alone_claim(problem: Problem, outcomes: Mapping[Contender, Outcome]) -> Claim:
    """Return whether HDP-VFL with tight noise at ε = 1 is surely more accurate than the label party alone."""
    noisy = outcomes[Contender(method="tight", epsilon=1.0)].accuracy
    gained = [joint - alone for joint, alone in zip(noisy, outcomes[SINGLE].accuracy, strict=True)]
    return Claim.of(
        gained,
        claim=f"{problem.title}, {problem.variant}: tight σ at ε = 1 is more accurate than the label party alone",
        holds=surely_above(gained, 0.0),
        why=f"{shown(mean(noisy))} against {shown(mean(outcomes[SINGLE].accuracy))}, which needs no partner",
    )


def encrypted_claim(problem: Problem, outcomes: Mapping[Contender, Outcome]) -> Claim:
    """Return whether Taylor's sigmoid is as accurate as the exact one, within .01."""
    lost = [plain - other for plain, other in zip(outcomes[JOINT].accuracy, outcomes[ENCRYPTED].accuracy, strict=True)]
    return Claim.of(
        lost,
        claim=f"{problem.title}: encryption loses no accuracy (up to .01)",
        holds=abs(mean(lost)) <= 0.01,
        why=f"{problem.variant}; {shown(mean(outcomes[ENCRYPTED].accuracy))} against "
        f"{shown(mean(outcomes[JOINT].accuracy))} with the exact sigmoid",
        published=0.0,
    )

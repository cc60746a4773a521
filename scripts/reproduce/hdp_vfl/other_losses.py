"""Each of the other losses and penalties once, on data where it belongs, through the package as its users have it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from typing import Any

from scripts.reproduce.hdp_vfl import published
from scripts.reproduce.hdp_vfl.tables import ACTIVE, PASSIVE, Target, data_of, file_of
from scripts.reproduce.shared.claims import Claim, grouped, interval, markdown_table, mean, shown, with_interval
from scripts.reproduce.shared.jobs import Job, Result, run_jobs
from scripts.reproduce.shared.pages import Section
from scripts.reproduce.shared.settings import Settings
from splitvfl.app.experiment import build_trainer
from splitvfl.config.sections import ExperimentConfig, parse_config
from splitvfl.learning.glm_losses import glm_loss

EPSILONS: tuple[float | None, ...] = (None, 10.0, 1.0)
DELTA = 1e-5
SHARES = (1.0, 0.3, 0.1, 0.03, 0.01)
"""Of the largest learning rate at which the sensitivity holds; each setting has the one that is best on a fifth of the
training records of another seed."""

_ROOT_TWO = 2**0.5
_ROWS = 30_000
_BINARY = ("logistic", "l2-svm")


@dataclass(frozen=True, kw_only=True)
class Case:
    """A loss or a penalty, and the data that it is tried on.

    Attributes:
        title: For people.
        loss: Name of the loss.
        target: What is predicted.
        about: What that is, in words.
        settings: Of the loss.
        l1: Proximal penalty.
        l2: Proximal penalty of the elastic net.
        weight_decay: Penalty of the gradient step.
        epochs: How often every record is used.
        batch: Records in a batch.
    """

    title: str
    loss: str
    target: Target
    about: str
    settings: Mapping[str, float] = field(default_factory=dict)
    l1: float = 0.0
    l2: float = 0.0
    weight_decay: float = 0.0
    epochs: int = published.EPOCHS
    batch: int = published.BATCH_SIZE

    def as_settings(self) -> dict[str, Any]:
        """Return JSON values, from which :meth:`of` makes it again."""
        return asdict(self)

    @classmethod
    def of(cls, settings: Mapping[str, Any]) -> Case:
        """Return the case of :meth:`as_settings`."""
        return cls(**{each.name: settings[each.name] for each in fields(cls)})

    @property
    def largest_rate(self) -> float:
        """The largest learning rate at which the sensitivity holds: rows of norm 1, and a column of ones besides."""
        made: Any = dict(self.settings)
        slope = glm_loss(self.loss, **made).constants(published.RADIUS * (_ROOT_TWO + 1.0)).beta_theta  # type: ignore[arg-type]
        # Less a little, for a root of two that is rounded.
        return (1.0 - 1e-6) / (slope + self.weight_decay)

    @property
    def baseline(self) -> float:
        """What a constant answer is worth: an AUC of 1/2, or no deviance explained."""
        return 0.5 if self.loss in _BINARY else 0.0

    @property
    def figure(self) -> str:
        """The figure of merit."""
        if self.loss in _BINARY:
            return "AUC"
        return "explained deviance" if self.loss in ("poisson", "gamma") else "R²"


_AGE = "age of a borrower, in units of 50 years from 50"
_ADULT = "income above 50 000 a year"
CASES: tuple[Case, ...] = (
    Case(title="least squares", loss="least-squares", target="age", about=_AGE, settings={"target_clip": 1.0}),
    Case(title="l2-SVM", loss="l2-svm", target="adult", about=_ADULT),
    Case(title="Poisson", loss="poisson", target="dependents", about="dependents", settings={"target_clip": 6.0}),
    Case(
        title="Gamma",
        loss="gamma",
        target="income",
        about="monthly income, in units of 5 000",
        settings={"target_clip": 5.0, "logit_margin": 0.3},
    ),
    Case(
        title="Normal, dispersion 1/4",
        loss="normal",
        target="limit",
        about="log of the limit of a credit card",
        settings={"target_clip": 1.0, "dispersion": 0.25},
    ),
    Case(
        title="Huber, threshold 1/2",
        loss="huber",
        target="capped income",
        about="monthly income, in units of 5 000",
        settings={"threshold": 0.5},
    ),
    Case(title="logistic, l2", loss="logistic", target="adult", about=_ADULT, weight_decay=published.WEIGHT_DECAY),
    Case(title="logistic, l1", loss="logistic", target="adult", about=_ADULT, l1=published.WEIGHT_DECAY),
    Case(
        title="logistic, elastic net",
        loss="logistic",
        target="adult",
        about=_ADULT,
        l1=published.WEIGHT_DECAY,
        l2=published.WEIGHT_DECAY,
    ),
)
QUICK_CASES: tuple[Case, ...] = (
    Case(
        title="least squares",
        loss="least-squares",
        target="progression",
        about="progression of diabetes, in units of 150",
        settings={"target_clip": 2.0},
        epochs=2,
        batch=100,
    ),
    Case(title="logistic, l1", loss="logistic", target="breast", about="cancer", l1=1e-3, epochs=2, batch=100),
)


def cases_of(settings: Settings) -> list[Case]:
    """Return the cases whose data are at hand; what is missing is said, and left out."""
    if settings.quick:
        return list(QUICK_CASES)
    found = []
    for case in CASES:
        path = file_of(case.target)
        if path is None or settings.has(case.title, path):
            found.append(case)
    return found


def config_of(case: Case, epsilon: float | None, share: float, seed: int) -> ExperimentConfig:
    """Return the experiment that trains a case.

    Args:
        case: Which.
        epsilon: ε of the whole training; ``None``: no noise, and the same ball.
        share: Of the largest learning rate.
        seed: Of order and noise.
    """
    rate = case.largest_rate * share
    if case.l1 or case.l2:
        steps: dict[str, Any] = {"name": "proximal-sgd", "l1": case.l1, "l2": case.l2}
    else:
        steps = {"name": "sgd", "weight_decay": case.weight_decay}
    exchange: dict[str, Any] = {"name": "split"}
    if epsilon is None:
        steps["radius"] = published.RADIUS
    else:
        exchange["noise"] = {"epsilon": epsilon, "delta": DELTA, "radius": published.RADIUS}
    given = {
        "data": {"name": "breast-cancer"},  # others are given
        "parties": {ACTIVE: {"role": "active", "columns": 0.5}, PASSIVE: {"role": "passive", "columns": "rest"}},
        "model": {"name": "glm", "loss": case.loss, "row_norm": 1.0, **case.settings},
        "exchange": exchange,
        "train": {
            "epochs": case.epochs,
            "batch_size": case.batch,
            "drop_last": True,
            "evaluate_every_epochs": case.epochs,
            "seed": seed,
            "noise_seed_for_experiments": seed,
            "optimizer": {**steps, "lr": rate},
        },
        "audit": False,
    }
    return parse_config(json.dumps(given), source="hdp-vfl.yaml")


# --- jobs


def trained(case: Mapping[str, Any], epsilon: float, share: float, seed: int, validated: bool) -> Result:
    """Train a case, and return its ``figure``, and ``sigmas`` of the label party and of the passive one.

    Args:
        case: What :meth:`Case.as_settings` returned.
        epsilon: ε; 0: no noise.
        share: Of the largest learning rate.
        seed: Of division, order and noise.
        validated: Whether the figure is of a fifth of the training records, on which nothing is trained.
    """
    given = Case.of(case)
    data = data_of(given.target, seed, validated=validated, rows=_ROWS)
    trainer = build_trainer(config_of(given, epsilon or None, share, seed), data)
    figures = trainer.fit(given.epochs)
    chains = (trainer.active.cuts[PASSIVE].gradient, trainer.passives[PASSIVE].activation["training"])
    sigmas = [getattr(defense, "sigma", 0.0) for chain in chains for defense in chain]
    return {"figure": next(iter(figures.values())), "sigmas": sigmas}


# --- the section


@dataclass(frozen=True)
class Trained:
    """What came of one case at one ε.

    Attributes:
        case: Which.
        epsilon: ε; ``None``: no noise.
        share: The learning rate that was chosen, of the largest.
        figures: One per seed.
        sigmas: Noise of the label party and of the passive one; none without noise.
    """

    case: Case
    epsilon: float | None
    share: float
    figures: Sequence[float]
    sigmas: Sequence[float]

    @property
    def learns(self) -> bool:
        """Whether the whole interval is better than a constant answer; one seed alone has none."""
        ends = interval(self.figures)
        return (min(self.figures) if ends is None else ends[0]) > self.case.baseline


def sections(settings: Settings) -> list[Section]:
    """Return the section on the other losses and penalties."""
    wanted = [(case, epsilon) for case in cases_of(settings) for epsilon in EPSILONS]
    shares = _chosen(settings, wanted)
    jobs = [
        Job(trained, _job(case, epsilon, share, seed, validated=False))
        for (case, epsilon), share in zip(wanted, shares, strict=True)
        for seed in range(settings.seeds)
    ]
    results = run_jobs(jobs, settings.jobs, workers=settings.workers, say=settings.say)
    found = []
    for number, ((case, epsilon), share) in enumerate(zip(wanted, shares, strict=True)):
        own = results[number * settings.seeds : (number + 1) * settings.seeds]
        found.append(Trained(case, epsilon, share, [each["figure"] for each in own], own[0]["sigmas"]))
    return [section_of(found)]


def _chosen(settings: Settings, wanted: Sequence[tuple[Case, float | None]]) -> list[float]:
    """Return the share of the largest rate that does best on held-out records of a seed that is not judged."""
    # Seeds that are judged begin with 0.
    seed = 1000
    jobs = [
        Job(trained, _job(case, epsilon, share, seed, validated=True)) for case, epsilon in wanted for share in SHARES
    ]
    results = iter(run_jobs(jobs, settings.jobs, workers=settings.workers, say=settings.say))
    return [max(SHARES, key={share: next(results)["figure"] for share in SHARES}.__getitem__) for _ in wanted]


def _job(case: Case, epsilon: float | None, share: float, seed: int, *, validated: bool) -> dict[str, Any]:
    return {
        "case": case.as_settings(),
        "epsilon": epsilon or 0.0,
        "share": share,
        "seed": seed,
        "validated": validated,
    }


def section_of(found: Sequence[Trained]) -> Section:
    """Return what was trained as a section."""
    table = markdown_table(
        (
            "loss",
            "what is predicted",
            "ε",
            "figure",
            "ours",
            "constant answer",
            "rate",
            "σ of derivatives",
            "σ of logits",
        ),
        [_row(each) for each in found],
        left=2,
    )
    shares = ", ".join(f"{share:g}" for share in SHARES)
    body = f"""
At most {grouped(_ROWS)} records, columns and targets in public bounds, half of the columns at either party, rows of
norm 1, an intercept, weights in balls of radius {published.RADIUS:g}, tight calibration at δ = {DELTA:g},
{published.EPOCHS} epochs. *Rate* is a share of the largest at which the sensitivity holds, of {shares}, chosen on
held-out records of another seed, at a cost that is not in ε. Figures are means over seeds with 95 % intervals, on test
records, without noise on what is evaluated. The paper has no figures of these losses.
{_at_the_smallest(found)}

{table}
"""
    claims = [_claim(each) for each in found if each.epsilon is not None]
    return Section(title="The other losses and penalties", body=body, claims=claims)


def _at_the_smallest(found: Sequence[Trained]) -> str:
    """Say who would perhaps be better off with a rate that was not offered."""
    cut = [f"{each.case.title} at ε = {each.epsilon:g}" for each in found if each.epsilon and each.share == SHARES[-1]]
    return f"The smallest rate was chosen by: {', '.join(cut) or 'none'}."


def _row(each: Trained) -> tuple[str, ...]:
    noise = [f"{sigma:.3g}" for sigma in each.sigmas] or ["–", "–"]
    epsilon = "none" if each.epsilon is None else f"{each.epsilon:g}"
    own = with_interval(each.figures)
    constant, share = shown(each.case.baseline, 1), f"{each.share:g}"
    return each.case.title, each.case.about, epsilon, each.case.figure, own, constant, share, *noise


def _claim(each: Trained) -> Claim:
    case, own = each.case, mean(each.figures)
    return Claim.of(
        each.figures,
        claim=f"{case.title}: learns at ε = {each.epsilon:g} ({case.figure})",
        holds=each.learns,
        why=(
            f"a constant answer has {shown(case.baseline, 1)}; noise of σ {each.sigmas[0]:.3g} on derivatives and "
            f"{each.sigmas[1]:.3g} on parts of logits"
            if own == own
            else "it diverged"
        ),
    )

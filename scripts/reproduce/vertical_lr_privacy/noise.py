"""DP-Paillier-MGD: what its noise leaves of the label attack, of the model, and of the weights' bound.

Its steps are computed in the clear, for several settings at once: encrypting a million of them would take months.
:func:`noisy_step` is one step of the exchange ``taylor`` with noise on what it encrypts, and is tested to be.

Source: *Is Vertical Logistic Regression Privacy-Preserving?*, algorithm 3 (corrected), figures 3 and 4.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import torch
from torch import Tensor

from scripts.reproduce.shared.claims import (
    Claim,
    Verdict,
    interval,
    markdown_table,
    mean,
    shown,
    standard_error,
    with_error,
)
from scripts.reproduce.shared.jobs import Job, Result, run_jobs
from scripts.reproduce.shared.pages import Section
from scripts.reproduce.shared.settings import Settings
from scripts.reproduce.vertical_lr_privacy.drawing import Chart, Curve, draw_charts
from scripts.reproduce.vertical_lr_privacy.labels import right_share
from scripts.reproduce.vertical_lr_privacy.study import (
    INITS,
    RATE,
    RATES,
    Init,
    Problem,
    data_of,
    first_weights,
    joined,
    problems,
    short,
    validation_split,
)
from splitvfl.attacks import solve_residues
from splitvfl.data.columns import VerticalData
from splitvfl.learning.batches import Batches
from splitvfl.learning.randomness import derive_seed
from splitvfl.models import approximate_loss
from splitvfl.privacy import dp_paillier_sigma, label_attack_success
from splitvfl.report.drawing import PALETTE

EPSILONS = (0.1, 0.2, 0.5)
CLAIMED, TRUE = 1, 30
"""Epochs that the paper puts into its noise scale, and epochs that it trains for."""

LARGEST_NORM = 2.0
"""4 G − 2 with G = 1: the norm of the weights that the noise scale is right for."""

# By so many a mean over seeds may exceed what bounds the expectation, of some 200 that are looked at.
_STANDARD_ERRORS = 3

_SETTING: Mapping[str, Any] = {"delta": 0.1, "G": 1.0, "steps": 30, "eta": RATE, "batch_size": 256}


@dataclass(frozen=True)
class Noise:
    """One column of the study: a privacy loss, and the epochs that its noise scale counts.

    Attributes:
        epsilon: ``None`` for no noise.
        counted: e in the noise scale.
    """

    epsilon: float | None = None
    counted: int = CLAIMED

    @property
    def label(self) -> str:
        """For figures and tables."""
        return "no noise" if self.epsilon is None else f"ε = {short(self.epsilon)}, e = {self.counted}"

    @property
    def sigmas(self) -> tuple[float, float]:
        """Noise scales of the label party and of the passive party, as published."""
        if self.epsilon is None:
            return 0.0, 0.0
        # T counts the steps of all epochs, so that there are at least as many as epochs.
        given = {**_SETTING, "epsilon": self.epsilon, "epochs": self.counted}
        return dp_paillier_sigma("A", **given), dp_paillier_sigma("B", **given)


NOISES = (Noise(), *(Noise(epsilon, counted) for counted in (CLAIMED, TRUE) for epsilon in EPSILONS))


# --- descent


def noisy_step(
    weights: Tensor, rows: Tensor, labels: Tensor, *, active: int, rates: Tensor, noise: tuple[Tensor, Tensor]
) -> Tensor:
    """Return the weights after one step of DP-Paillier-MGD, for C settings at once.

    Both parties add noise to what they send, ``SV^A = g^A − 2y`` and ``SV^B = g^B``, and use their own part without it:
    ``G^A = X_Aᵀ (SV^A + Sec(SV^B))``, ``G^B = X_Bᵀ (SV^B + Sec(SV^A))``, ``θ ← θ − rate / (4 s) · G``.

    Source: *Is Vertical Logistic Regression Privacy-Preserving?*, algorithm 3 with lines 5 and 8 corrected.

    Args:
        weights: ``(d, C)``, the label party's first.
        rows: ``(s, d)``.
        labels: ``(s,)``, −1 and +1.
        active: How many columns are the label party's.
        rates: ``(C,)``.
        noise: What the label party and the passive party add, ``(s, C)`` each.

    Returns:
        ``(d, C)``.
    """
    own, other = rows[:, :active], rows[:, active:]
    sent_by_active = own @ weights[:active] - 2 * labels[:, None]
    sent_by_passive = other @ weights[active:]
    of_active, of_passive = noise
    sums = torch.cat(
        [
            own.T @ (sent_by_active + (sent_by_passive + of_passive)),
            other.T @ (sent_by_passive + (sent_by_active + of_active)),
        ]
    )
    return weights - rates / (4 * len(rows)) * sums


@dataclass(frozen=True)
class Table:
    """Training and test records: rows ``(n, d)``, the label party's columns first, and labels −1 and +1, ``(n,)``."""

    train: Tensor
    labels: Tensor
    test: Tensor
    test_labels: Tensor
    active: int

    @classmethod
    def of(cls, data: VerticalData, *, intercept: bool) -> Table:
        """Return the records of a data set."""
        train, labels, active = joined(data, "train", intercept=intercept)
        test, test_labels, _ = joined(data, "test", intercept=intercept)
        return cls(train, labels, test, test_labels, active)


class Watcher(Protocol):
    """Looks at every step."""

    def __call__(self, weights: Tensor, index: Tensor, rows: Tensor, labels: Tensor, noise: Tensor) -> None:
        """Look at the weights before a step, which records it takes, and what the label party adds."""
        ...


class Descent:
    """Gradient descent of several settings at once, in one order of the records.

    Args:
        table: The records.
        order: In which they are visited.
        weights: The first, ``(d, C)``.
        rates: ``(C,)``.
        noises: One per setting.
        generator: Of the noise.
    """

    def __init__(
        self,
        table: Table,
        order: Batches,
        weights: Tensor,
        *,
        rates: Tensor,
        noises: Sequence[Noise],
        generator: torch.Generator,
    ) -> None:
        self._table, self._order, self._rates, self._generator = table, order, rates, generator
        self._sigmas = torch.tensor([noise.sigmas for noise in noises]).T
        self.weights = weights
        self._total = torch.zeros_like(weights, dtype=torch.float64)
        self.steps = 0

    @property
    def average(self) -> Tensor:
        """The mean of the weights before every step so far, ``(d, C)``."""
        return (self._total / max(self.steps, 1)).to(self.weights.dtype)

    def epoch(self, number: int, watch: Watcher | None = None) -> None:
        """Go through all records once."""
        for index in self._order.epoch(number):
            rows, labels = self._table.train.index_select(0, index), self._table.labels[index]
            shape = (len(index), len(self._rates))
            noise = [torch.randn(shape, generator=self._generator) * sigma for sigma in self._sigmas]
            if watch is not None:
                watch(self.weights, index, rows, labels, noise[0])
            self._total += self.weights
            self.weights = noisy_step(
                self.weights,
                rows,
                labels,
                active=self._table.active,
                rates=self._rates,
                noise=(noise[0], noise[1]),
            )
            self.steps += 1


def begin(
    problem: Problem,
    data: VerticalData,
    seed: int,
    *,
    inits: Sequence[Init],
    rates: Sequence[float],
    noises: Sequence[Noise],
) -> tuple[Descent, Table]:
    """Return the descent of one setting for each initialisation, rate and noise that stand at the same place."""
    table = Table.of(data, intercept=problem.intercept)
    columns = []
    for init in inits:
        own, other = first_weights(data, init, seed)
        columns.append(torch.cat([own[0], *([torch.zeros(1)] if problem.intercept else []), other[0]]))
    descent = Descent(
        table,
        Batches(len(table.train), problem.batch_size, seed=seed),
        torch.stack(columns, dim=1),
        rates=torch.tensor(rates),
        noises=noises,
        generator=torch.Generator().manual_seed(derive_seed(seed, "noise", problem.key)),
    )
    return descent, table


# --- what is measured


class LabelCount:
    """Counts right labels from the label party's noisy releases: of each one, and of each record's mean over epochs.

    The passive party is taken to know ``SV^A + noise`` of every record, as it does by packing. Beside it, least squares
    on the sums of its columns, of the settings from the first to ``solved`` in the first epoch.
    """

    def __init__(self, table: Table, settings: int, *, solved: int) -> None:
        self._active, self._labels, self._solved = table.active, table.labels, solved
        self._sums = torch.zeros(len(table.labels), settings, dtype=torch.float64)
        self._right = torch.zeros(settings, dtype=torch.float64)
        self._by_solving: list[list[float]] = []
        self._count = 0

    def __call__(self, weights: Tensor, index: Tensor, rows: Tensor, labels: Tensor, noise: Tensor) -> None:
        """Look at one step."""
        released = rows[:, : self._active] @ weights[: self._active] - 2 * labels[:, None] + noise
        self._right += (released * labels[:, None] < 0).double().sum(dim=0)
        self._sums[index] += released.double()
        if self._count < len(self._labels):
            self._by_solving.append(self._solve(rows[:, self._active :], released[:, : self._solved], labels))
        self._count += len(labels)

    def _solve(self, columns: Tensor, released: Tensor, labels: Tensor) -> list[float]:
        totals = columns.double().T @ released.double()
        return [
            len(labels) * right_share(-solve_residues(columns, total, underdetermined=True), (labels + 1) / 2)
            for total in totals.unbind(dim=1)
        ]

    @property
    def per_release(self) -> list[float]:
        """Share of right labels among all releases so far, by setting."""
        found: list[float] = (self._right / self._count).tolist()
        return found

    @property
    def averaged(self) -> list[float]:
        """Share of right labels from each record's mean release, by setting."""
        found: list[float] = (self._sums * self._labels[:, None] < 0).double().mean(dim=0).tolist()
        return found

    @property
    def solved(self) -> list[float]:
        """Share of right labels by least squares in the first epoch, by setting up to ``solved``."""
        return [math.fsum(right) / len(self._labels) for right in zip(*self._by_solving, strict=True)]


def accuracy(rows: Tensor, labels: Tensor, weights: Tensor) -> list[float]:
    """Return the share of records whose label is the sign of the logit, by setting."""
    found: list[float] = (rows @ weights * labels[:, None] > 0).double().mean(dim=0).tolist()
    return found


def taylor_loss(rows: Tensor, labels: Tensor, weights: Tensor) -> list[float]:
    """Return the mean Taylor loss, by setting."""
    logits = rows @ weights
    return [float(approximate_loss(column, labels, approximation="taylor").mean()) for column in logits.unbind(dim=1)]


def gradient_spread(rows: Tensor, labels: Tensor, weights: Tensor) -> Tensor:
    """Return the expected squared distance of one record's gradient from the mean one, ``(C,)``.

    Args:
        rows: ``(n, d)``.
        labels: ``(n,)``, −1 and +1.
        weights: ``(d, C)``.
    """
    residues = rows @ weights - 2 * labels[:, None]
    squares = residues.square() * rows.square().sum(dim=1, keepdim=True)
    gradient = rows.T @ residues / (4 * len(rows))
    return squares.double().mean(dim=0) / 16 - gradient.double().square().sum(dim=0)


def noise_spread(rows: Tensor, active: int, sigmas: tuple[float, float], sizes: Sequence[int]) -> float:
    """Return what the noise adds to the spread of a batch's gradient, the mean over batches of these sizes.

    ``(σ_B² · mean‖x_A‖² + σ_A² · mean‖x_B‖²) / (16 s)``.
    """
    squares = rows.double().square()
    own, other = float(squares[:, :active].sum(dim=1).mean()), float(squares[:, active:].sum(dim=1).mean())
    return (sigmas[1] ** 2 * own + sigmas[0] ** 2 * other) * mean(1 / size for size in sizes) / 16


@dataclass(frozen=True)
class Curvature:
    """The Taylor loss of a data set, ``F(θ) = ln 2 − b·θ + θᵀHθ / 2``, in the axes of H.

    Attributes:
        sizes: Eigenvalues h of H, ``(d,)``.
        slopes: Coordinates of b, ``(d,)``.
    """

    sizes: Tensor
    slopes: Tensor

    @classmethod
    def of(cls, rows: Tensor, labels: Tensor) -> Curvature:
        """Return that of rows ``(n, d)`` and labels −1 and +1."""
        wide = rows.double()
        sizes, axes = torch.linalg.eigh(wide.T @ wide / (4 * len(rows)))
        return cls(sizes.clamp(min=0), axes.T @ (wide.T @ labels.double() / (2 * len(rows))))

    def loss_bound(self, *, steps: int, rate: float, spread: float) -> float:
        """Return a bound on the expected loss of the averaged iterate of stochastic gradient descent from zero.

        For a convex loss of curvature at most β and gradients that are right on average, with mean spread V:
        ``E F(θ̄) ≤ F* + (‖θ'‖² / (2 η k) + F(θ') − F* + η V / 2) / (1 − η β)`` for every θ', here for the best one. It
        is the textbook's, derived on the page of results, and not the paper's theorem.

        Args:
            steps: k, at least 1.
            rate: η, below 1 / β.
            spread: V, the mean over steps of the expected squared distance of a gradient from its mean.
        """
        ridge = 1 / (rate * steps)
        solution = self.slopes / (self.sizes + ridge)
        # Where there is no curvature there is no slope either, up to rounding.
        curved = self.sizes > 1e-12 * self.sizes.max()
        sizes, best = self.sizes[curved], self.slopes[curved] / self.sizes[curved]
        least = math.log(2) - float((sizes * best.square()).sum()) / 2
        excess = float((sizes * (solution[curved] - best).square()).sum()) / 2
        distance = float(solution.square().sum()) * ridge / 2
        return least + (distance + excess + rate * spread / 2) / (1 - rate * float(self.sizes.max()))


# --- jobs


def tune(problem: Mapping[str, Any], seed: int) -> Result:
    """Return accuracy and Taylor loss on a tenth of the training records, by learning rate, without noise.

    Args:
        problem: What :meth:`Problem.as_settings` returned.
        seed: Of split and order.
    """
    given, count = Problem(**problem), len(RATES)
    data = validation_split(data_of(given, seed), seed)
    descent, table = begin(given, data, seed, inits=["zero"] * count, rates=RATES, noises=[Noise()] * count)
    for epoch in range(given.epochs):
        descent.epoch(epoch)
    return {
        "accuracy": accuracy(table.test, table.test_labels, descent.weights),
        "loss": taylor_loss(table.test, table.test_labels, descent.weights),
    }


def noisy_run(problem: Mapping[str, Any], seed: int) -> Result:
    """Train with every noise from every initialisation at once, and return what was measured after every epoch.

    Figures are lists by setting, initialisation by initialisation and noise by noise; histories have one per epoch.
    What concerns losses, bounds and least squares is of zero first weights only.

    Args:
        problem: What :meth:`Problem.as_settings` returned.
        seed: Of everything.
    """
    given, settings = Problem(**problem), len(INITS) * len(NOISES)
    data = data_of(given, seed)
    inits, noises = [init for init in INITS for _ in NOISES], NOISES * len(INITS)
    descent, table = begin(given, data, seed, inits=inits, rates=[RATE] * settings, noises=noises)
    labels = LabelCount(table, settings, solved=len(NOISES))
    yardstick = _Yardstick(given, table)
    history: dict[str, list[list[float]]] = {
        name: [] for name in ("accuracy", "accuracy_of_average", "norm", "released", "averaged", "loss", "bound")
    }
    for epoch in range(given.epochs):
        yardstick.measure(descent.weights)
        descent.epoch(epoch, labels)
        average = descent.average
        for name, value in (
            ("accuracy", accuracy(table.test, table.test_labels, descent.weights)),
            ("accuracy_of_average", accuracy(table.test, table.test_labels, average)),
            ("norm", descent.weights.norm(dim=0).tolist()),
            ("released", labels.per_release),
            ("averaged", labels.averaged),
            ("loss", taylor_loss(table.train, table.labels, average[:, : len(NOISES)])),
            ("bound", yardstick.bounds(descent.steps)),
        ):
            history[name].append(value)
    return {**history, "solved": labels.solved, "records": len(table.labels)}


class _Yardstick:
    """The bound on the loss, with the spread of gradients as measured once an epoch."""

    def __init__(self, problem: Problem, table: Table) -> None:
        self._table, count = table, len(table.train)
        self._curvature = Curvature.of(table.train, table.labels)
        sizes = [min(problem.batch_size, count - start) for start in range(0, count, problem.batch_size)]
        self._share = mean(1 / size for size in sizes)
        self._of_noise = [noise_spread(table.train, table.active, noise.sigmas, sizes) for noise in NOISES]
        self._spreads: list[Tensor] = []

    def measure(self, weights: Tensor) -> None:
        self._spreads.append(gradient_spread(self._table.train, self._table.labels, weights[:, : len(NOISES)]))

    def bounds(self, steps: int) -> list[float]:
        of_records = torch.stack(self._spreads).mean(dim=0) * self._share
        return [
            self._curvature.loss_bound(steps=steps, rate=RATE, spread=float(own) + added)
            for own, added in zip(of_records, self._of_noise, strict=True)
        ]


# --- sections


def rate_sections(settings: Settings) -> list[Section]:
    """Return the section on the learning rate."""
    chosen = problems(settings)
    return [_section_rates(chosen, _run(tune, chosen, settings))] if chosen else []


def sections(settings: Settings) -> list[Section]:
    """Return the sections on the label attack under noise, and on what the model is worth."""
    chosen = problems(settings)
    if not chosen:
        return []
    settings.say(f"noise: {len(chosen)} data sets")
    noisy = _run(noisy_run, chosen, settings)
    return [_section_labels(chosen, noisy), _section_models(chosen, noisy)]


Runs = dict[str, list[Result]]
"""Results by the data set's key, one per seed."""


def _run(work: Any, chosen: Sequence[Problem], settings: Settings) -> Runs:
    wanted = [(problem, seed) for problem in chosen for seed in range(settings.seeds)]
    jobs = [Job(work, {"problem": problem.as_settings(), "seed": seed}) for problem, seed in wanted]
    found: Runs = {}
    results = run_jobs(jobs, settings.jobs, workers=settings.workers, say=settings.say)
    for (problem, _), result in zip(wanted, results, strict=True):
        found.setdefault(problem.key, []).append(result)
    return found


def _section_rates(chosen: Sequence[Problem], tuned: Runs) -> Section:
    rows = [
        (
            problem.title,
            short(rate),
            *(with_error(result[name][number] for result in tuned[problem.key]) for name in ("accuracy", "loss")),
        )
        for problem in chosen
        for number, rate in enumerate(RATES)
    ]
    best = " and ".join(sorted({_best_rate(tuned[problem.key]) for problem in chosen}))
    body = f"""
The paper chose from .001, .003 and .01. On a tenth of the training records, which are not trained on, without noise and
from zero weights, after all epochs; test records were not looked at. The rate with the least loss, over all sets, is
{best}; {short(RATE)} is used throughout. By accuracy there is little between them, and on credit default the smallest
would do as well.

{markdown_table(("data", "learning rate", "accuracy", "Taylor loss"), rows)}
"""
    return Section(title="Learning rate", body=body)


def _best_rate(results: Sequence[Result]) -> str:
    losses = [mean(result["loss"][number] for result in results) for number in range(len(RATES))]
    return short(RATES[losses.index(min(losses))])


def _at(problem: Problem, runs: Runs, name: str, noise: int, *, init: int = 0, epoch: int = -1) -> list[float]:
    """Return one figure of a history, one value per seed."""
    return [result[name][epoch][init * len(NOISES) + noise] for result in runs[problem.key]]


def _section_labels(chosen: Sequence[Problem], runs: Runs) -> Section:
    shown_here = charted(chosen)
    claims = [claim for problem in shown_here for claim in _label_claims(problem, runs)]
    agreeing = sum(claim.verdict == "reproduces" for claim in claims)
    headings = (
        "data",
        "noise",
        "σ of A",
        "one release",
        "by least squares",
        "Φ(2/σ)",
        "averaged over all epochs",
        "Φ(2√E/σ)",
    )
    rows = []
    for problem in chosen:
        for number, noise in enumerate(NOISES[1:], start=1):
            sigma = noise.sigmas[0]
            rows.append(
                (
                    problem.title,
                    noise.label,
                    f"{sigma:.1f}",
                    with_error(_at(problem, runs, "released", number, epoch=0)),
                    with_error(result["solved"][number] for result in runs[problem.key]),
                    shown(label_attack_success(sigma)),
                    with_error(_at(problem, runs, "averaged", number)),
                    shown(label_attack_success(sigma, problem.epochs)),
                )
            )
    body = f"""
The label party adds noise to `g^A − 2y` before it is encrypted. With e the epochs that the noise scale counts, G = 1,
δ = .1 and "T = 30": the paper's figures have e = 1, and the {TRUE} epochs that it trains for ask for e = {TRUE}.
Whoever reads what was released, by packing, has the label with probability Φ(2/σ); who averages a record's releases
over E epochs has it with Φ(2√E/σ), which the paper leaves out. "one release" is the share of right labels in the first
epoch from zero weights; "by least squares" that of an honest party, which on the tables has too few columns for it.

In {agreeing} of {len(claims)} cases (one release and the average, of the data sets in the figure) the measured share is
within three standard deviations of the formula. The others are averages: as the weights wander under noise, `g^A` grows
beside the 2 of the label, and does not average out.

{markdown_table(headings, rows, left=2)}
"""
    return Section(
        title="What noise leaves of the label attack (figure 3)",
        body=body,
        figures={"vertical-lr-noise": _label_figure(shown_here, runs)},
        captions={
            "vertical-lr-noise": "Share of labels from each record's mean release, by epochs averaged, mean over seeds "
            "with standard errors, zero first weights. Above: noise that counts 1 epoch; below: 30. Dashed: Φ(2√E/σ)."
        },
        claims=claims,
        claims_shown=False,
    )


def charted(chosen: Sequence[Problem]) -> list[Problem]:
    """Return the data sets that figures show: two of images, one of a table."""
    images = [problem for problem in chosen if problem.images][:2]
    return images + [problem for problem in chosen if not problem.images][:1]


_COLOURS: Mapping[float | None, str] = {None: PALETTE[5], 0.1: PALETTE[1], 0.2: PALETTE[4], 0.5: PALETTE[0]}


def _epochs(problem: Problem) -> list[int]:
    return list(range(1, problem.epochs + 1))


def _means(problem: Problem, runs: Runs, name: str, noise: int) -> list[float]:
    return [mean(_at(problem, runs, name, noise, epoch=epoch)) for epoch in range(problem.epochs)]


def _curve(problem: Problem, up: Sequence[float], noise: Noise, *, dashed: bool = False, label: str = "") -> Curve:
    return Curve(across=_epochs(problem), up=up, colour=_COLOURS[noise.epsilon], dashed=dashed, label=label)


def _label_figure(chosen: Sequence[Problem], runs: Runs) -> str:
    charts = []
    for counted in (CLAIMED, TRUE):
        for problem in chosen:
            curves = []
            for number, noise in enumerate(NOISES):
                if noise.epsilon is None or noise.counted != counted:
                    continue
                theory = [label_attack_success(noise.sigmas[0], epoch) for epoch in _epochs(problem)]
                measured = _means(problem, runs, "averaged", number)
                curve = _curve(problem, measured, noise, label=f"ε = {short(noise.epsilon)}")
                curves.append(replace(curve, errors=_errors(problem, runs, "averaged", number)))
                curves.append(_curve(problem, theory, noise, dashed=True))
            charts.append(Chart(title=f"{problem.title}, e = {counted}", x_label="epochs averaged", curves=curves))
    return draw_charts("vertical-lr-noise", charts, columns=len(chosen), same_scale=True)


def _label_claims(problem: Problem, runs: Runs) -> list[Claim]:
    records = sum(result["records"] for result in runs[problem.key])
    # Right or not of so many independent releases, near one half: three standard deviations of the share.
    tolerance = 3 * math.sqrt(0.25 / records)
    found = []
    for number, noise in enumerate(NOISES[1:], start=1):
        for name, epochs in (("released", 1), ("averaged", problem.epochs)):
            values = _at(problem, runs, name, number, epoch=epochs - 1)
            expected = label_attack_success(noise.sigmas[0], epochs)
            found.append(
                Claim.of(
                    values,
                    claim=f"{problem.title}, {noise.label}: labels "
                    + ("from one release" if epochs == 1 else f"averaged over {epochs} epochs"),
                    published=expected,
                    holds=abs(mean(values) - expected) <= tolerance,
                    why=f"against Φ(2√E/σ), to {shown(tolerance, 4)}; weights that wander add g^A to every release",
                )
            )
    return found


def _section_models(chosen: Sequence[Problem], runs: Runs) -> Section:
    shown_here = charted(chosen)
    headings = (
        "data",
        "noise",
        "test accuracy, epoch 10",
        "last epoch",
        "averaged weights",
        "‖θ‖ at the end",
        "loss of averaged weights",
        "bound",
    )
    rows = [
        (
            problem.title,
            noise.label,
            with_error(_at(problem, runs, "accuracy", number, epoch=min(10, problem.epochs) - 1)),
            with_error(_at(problem, runs, "accuracy", number)),
            with_error(_at(problem, runs, "accuracy_of_average", number)),
            with_error(_at(problem, runs, "norm", number), 2),
            with_error(_at(problem, runs, "loss", number)),
            shown(mean(_at(problem, runs, "bound", number))),
        )
        for problem in chosen
        for number, noise in enumerate(NOISES)
    ]
    by_init = [
        (
            problem.title,
            noise.label,
            *(with_error(_at(problem, runs, "accuracy", number, init=init)) for init in range(len(INITS))),
        )
        for problem in chosen
        for number, noise in enumerate(NOISES)
    ]
    body = f"""
From zero weights, by noise. The noise scale presupposes weights of norm up to 4G − 2 = {LARGEST_NORM:g} and rows of
norm up to 1; where either is larger, its claim of privacy is void. An accuracy at or below the share of the larger
class (first table of the page) means that there is no use in the model.

{markdown_table(headings, rows, left=2)}

**The bound.** Theorem 6.4 of the paper bounds the loss of the averaged iterate. We had no copy of its statement, so
what stands here is *not* that theorem but the textbook's bound for a convex loss of curvature at most β and gradients
that are right on average. With V the mean spread of a batch's gradient,
`‖θ_(t+1) − θ'‖² = ‖θ_t − θ'‖² − 2η g·(θ_t − θ') + η²‖g‖²`, convexity and `‖∇F‖² ≤ 2β(F − F*)` give, summed over k steps
from zero,

    E F(θ̄) ≤ F* + (‖θ'‖² / (2ηk) + F(θ') − F* + ηV/2) / (1 − ηβ)      for every θ'

and the best θ' is a ridge solution. V has two parts: that of drawing records, measured at the start of every epoch, and
that of the noise, `(σ_B² mean‖x_A‖² + σ_A² mean‖x_B‖²) / (16 s)`, which is known. It is a bound for batches that are
drawn independently; here records are shuffled in every epoch, as the paper has it. Losses are the Taylor loss on
training records, whose value at zero weights is ln 2 = .693: a bound above that promises nothing.

Accuracy on test records after the last epoch, by first weights:

{markdown_table(("data", "noise", *INITS), by_init, left=2)}
"""
    return Section(
        title="What the noise leaves of the model (figure 4)",
        body=body,
        figures={
            "vertical-lr-models": _model_figure(shown_here, runs),
            "vertical-lr-bound": _bound_figure(shown_here, runs),
        },
        captions={
            "vertical-lr-models": "Above: test accuracy by epoch, with standard errors; below: norm of the weights, "
            "beside the 2 that the noise scale presupposes. Solid: no noise, or noise that counts 1 epoch; dashed: 30.",
            "vertical-lr-bound": "Taylor loss of the averaged weights on training records (solid) and its bound "
            "(dashed), by epoch. Above: noise that counts 1 epoch; below: 30.",
        },
        claims=[claim for problem in shown_here for claim in _model_claims(problem, runs)],
    )


def _model_figure(chosen: Sequence[Problem], runs: Runs) -> str:
    charts = []
    for name, title in (("accuracy", "accuracy"), ("norm", "‖θ‖")):
        for problem in chosen:
            curves = []
            for number, noise in enumerate(NOISES):
                dashed = noise.counted == TRUE
                curve = _curve(problem, _means(problem, runs, name, number), noise, dashed=dashed, label=noise.label)
                curves.append(replace(curve, errors=_errors(problem, runs, name, number)))
            charts.append(
                Chart(
                    title=f"{problem.title}: {title}",
                    x_label="epochs",
                    curves=curves,
                    levels={} if name == "accuracy" else {"4G − 2": LARGEST_NORM},
                    log_y=name == "norm",
                )
            )
    return draw_charts("vertical-lr-models", charts, columns=len(chosen))


def _errors(problem: Problem, runs: Runs, name: str, noise: int) -> list[float]:
    found = [standard_error(_at(problem, runs, name, noise, epoch=epoch)) for epoch in range(problem.epochs)]
    return [] if any(math.isnan(error) for error in found) else found


def _bound_figure(chosen: Sequence[Problem], runs: Runs) -> str:
    charts = []
    for counted in (CLAIMED, TRUE):
        for problem in chosen:
            curves = []
            for number, noise in enumerate(NOISES):
                if noise.epsilon is not None and noise.counted != counted:
                    continue
                label = "no noise" if noise.epsilon is None else f"ε = {short(noise.epsilon)}"
                curves.append(_curve(problem, _means(problem, runs, "loss", number), noise, label=label))
                curves.append(_curve(problem, _means(problem, runs, "bound", number), noise, dashed=True))
            charts.append(Chart(title=f"{problem.title}, e = {counted}", x_label="epochs", curves=curves, log_y=True))
    return draw_charts("vertical-lr-bound", charts, columns=len(chosen))


def _model_claims(problem: Problem, runs: Runs) -> list[Claim]:
    # Of the tables, nearly as many records are of the larger class.
    published = ((CLAIMED, 0.9), (TRUE, 0.8)) if problem.images else ()
    return [
        *(_accuracy_claim(problem, runs, counted, figure) for counted, figure in published),
        _norm_claim(problem, runs),
        _bound_claim(problem, runs),
    ]


def _accuracy_claim(problem: Problem, runs: Runs, counted: int, published: float) -> Claim:
    number = NOISES.index(Noise(0.2, counted))
    values = _at(problem, runs, "accuracy", number)
    early = min(10, problem.epochs)
    after_early = mean(_at(problem, runs, "accuracy", number, epoch=early - 1))
    averaged = mean(_at(problem, runs, "accuracy_of_average", number))

    def met(value: float) -> bool:
        return value >= published if counted == CLAIMED else abs(value - published) < 0.05

    verdict: Verdict = "reproduces" if met(mean(values)) else "does not"
    if verdict == "does not" and (met(after_early) or met(averaged)):
        verdict = "only with a variant"
    return Claim(
        claim=f"{problem.title}: test accuracy {'above' if counted == CLAIMED else 'about'} {shown(published, 1)} at "
        f"{NOISES[number].label}",
        published=published,
        ours=mean(values),
        interval=interval(values),
        seeds=len(values),
        verdict=verdict,
        why=f"{shown(mean(_at(problem, runs, 'accuracy', 0)))} without noise; "
        f"{shown(after_early)} after {early} epochs; averaged weights have {shown(averaged)}",
    )


def _norm_claim(problem: Problem, runs: Runs) -> Claim:
    largest = {
        noise.label: max(
            value for epoch in range(problem.epochs) for value in _at(problem, runs, "norm", number, epoch=epoch)
        )
        for number, noise in enumerate(NOISES)
        if noise.epsilon is not None
    }
    beyond = [label for label, value in largest.items() if value > LARGEST_NORM]
    return Claim(
        claim=f"{problem.title}: weights have a norm of at most 4G − 2 under every noise (the largest)",
        published=LARGEST_NORM,
        ours=max(largest.values()),
        interval=None,
        seeds=len(runs[problem.key]),
        verdict="does not" if beyond else "reproduces",
        why=f"larger with {'; '.join(beyond)}" if beyond else "at the end of every epoch of every seed",
    )


def _bound_claim(problem: Problem, runs: Runs) -> Claim:
    ratios, excesses = [], []
    for number in range(len(NOISES)):
        for epoch in range(problem.epochs):
            losses = _at(problem, runs, "loss", number, epoch=epoch)
            bound = mean(_at(problem, runs, "bound", number, epoch=epoch))
            ratios.append(mean(losses) / bound)
            error = standard_error(losses)
            excesses.append(mean(losses) - bound - (0.0 if math.isnan(error) else _STANDARD_ERRORS * error))
    return Claim(
        claim=f"{problem.title}: the loss of averaged weights is below its bound in every epoch (largest ratio)",
        published=1.0,
        ours=max(ratios),
        interval=None,
        seeds=len(runs[problem.key]),
        verdict="reproduces" if max(excesses) <= 0 else "does not",
        why=f"the textbook's bound on an expectation; to {_STANDARD_ERRORS} standard errors of the mean over seeds",
    )

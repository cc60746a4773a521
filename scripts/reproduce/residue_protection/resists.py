"""What resists: success of attacks on the hybrid mechanism over k, L, rank and rounds, and beside a label defense."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
from scipy.stats import norm
from torch import Tensor

from scripts.reproduce.residue_protection.resists_drawing import draw_resists
from scripts.reproduce.residue_protection.secret_batches import Drawing, balanced, rounds_of
from scripts.reproduce.residue_protection.study import Problem, problems, table_of
from scripts.reproduce.shared.claims import Claim, markdown_table, mean, shown
from scripts.reproduce.shared.jobs import Job, Result, run_jobs
from scripts.reproduce.shared.pages import Section
from scripts.reproduce.shared.settings import Settings
from splitvfl.attacks import SecretBatchLikelihoodAttack, SparseResiduesAttack
from splitvfl.exchange.selection import run_success
from splitvfl.leakage.judging import Leak
from splitvfl.learning.randomness import derive_seed
from splitvfl.privacy import sign_success

LOOKS = (1, 10, 100)
"""After so many rounds attacks are looked at."""

MEMOISED = 1.0
"""ε of the memoised response on labels that the hybrid mechanism is combined with."""

# Sparse recovery takes seconds for a run of batches that it cannot solve.
_SPARSE_ROUNDS = 10
_RATE = 0.1


@dataclass(frozen=True, kw_only=True)
class Cell:
    """One setting of the sweep.

    Attributes:
        columns: ``"Gaussian"``, or the key of a problem.
        rank: Number of independent columns; of a problem's, as many as it has.
        ratio: k over the rank.
        spread: L over k.
        epsilon: ε of a memoised response on the labels; ``None``: there is none.
    """

    columns: str
    rank: int
    ratio: float
    spread: float
    epsilon: float | None = None

    @property
    def drawing(self) -> Drawing:
        """Who is drawn."""
        used = max(2, round(self.ratio * self.rank))
        return Drawing(used, round(self.spread * used))


# --- one cell


def cell_run(cell: Mapping[str, Any], problem: Mapping[str, Any] | None, rounds: int, seed: int) -> Result:
    """Return what attacks read after some of the rounds.

    Args:
        cell: The setting.
        problem: The data, if columns are real.
        rounds: How many.
        seed: Of records, labels and draws.
    """
    given = Cell(**cell)
    drawing = given.drawing
    columns, labels = _records(given, None if problem is None else Problem.of(problem), seed)
    answers, flip = _answers(labels, given.epsilon, seed)
    attack = SecretBatchLikelihoodAttack(epsilon=drawing.epsilon, share=drawing.share, flip=flip)
    leaks = {"likelihood": Leak(attack), "sparse": Leak(SparseResiduesAttack())}
    looks = [look for look in LOOKS if look <= rounds]
    found: dict[str, list[float]] = {"likelihood": [], "likelihood_auc": [], "sparse": [], "seconds": [], "own": []}
    records = 0
    for number, (view, zeros) in enumerate(
        rounds_of(columns, (answers - flip) / (1 - 2 * flip), drawing, rate=_RATE, seed=seed), start=1
    ):
        records += len(view.ids)
        for name, leak in leaks.items():
            if name != "sparse" or (number <= _SPARSE_ROUNDS and flip == 0.0):
                leak.see(view, labels[view.ids], zeros=zeros)
        if number in looks:
            found["likelihood"].append(leaks["likelihood"].summary.accumulated_balanced)
            found["likelihood_auc"].append(leaks["likelihood"].accumulated_auc)
            sparse = leaks["sparse"].summary.accumulated_balanced
            found["sparse"].append(sparse if number <= _SPARSE_ROUNDS else math.nan)
            found["seconds"].append(1000 * leaks["likelihood"].seconds / records)
            found["own"].append(balanced(view.logits[:, 0], labels[view.ids]))
        if number == rounds:
            break
    return {
        "looks": looks,
        **found,
        "rank": int(torch.linalg.matrix_rank(columns.double())),
        "used": drawing.used,
        "sent": drawing.sent,
        "size": drawing.size,
        "share": drawing.share,
        "kept": drawing.kept,
        "base_rate": float(max(labels.double().mean(), 1 - labels.double().mean())),
    }


def _records(cell: Cell, problem: Problem | None, seed: int) -> tuple[Tensor, Tensor]:
    """Return the columns and labels of one batch of records."""
    size = cell.drawing.size
    generator = torch.Generator().manual_seed(derive_seed(seed, "records") % 2**32)
    if problem is None:
        columns = torch.randn(size, cell.rank, generator=generator)
        return columns, (torch.rand(size, generator=generator) < 0.5).float()
    table = table_of(problem, seed)
    chosen = torch.randperm(len(table.train), generator=generator)[:size]
    return table.train[chosen], table.labels[chosen]


def _answers(labels: Tensor, epsilon: float | None, seed: int) -> tuple[Tensor, float]:
    """Return what a memoised response answers for the labels, and how likely it flips one."""
    if epsilon is None:
        return labels, 0.0
    flip = 1 / (1 + math.exp(epsilon))
    generator = torch.Generator().manual_seed(derive_seed(seed, "answers") % 2**32)
    flipped = torch.rand(len(labels), generator=generator) < flip
    return torch.where(flipped, 1 - labels, labels), flip


# --- the sweep

_RATIOS = (0.25, 0.5, 1, 2, 4, 8, 16, 32, 64)
_SPREADS = (1.5, 2.5, 5.0)
_SPREAD = 2.5


def cells_of(settings: Settings, given: Sequence[Problem]) -> Iterator[tuple[Cell, Problem | None]]:
    """Yield what is measured, the cheap ones first."""
    if settings.quick:
        for ratio in (0.5, 4):
            for epsilon in (None, MEMOISED):
                yield Cell(columns="Gaussian", rank=4, ratio=ratio, spread=_SPREAD, epsilon=epsilon), None
        return
    for ratio in _RATIOS:
        for spread in _SPREADS:
            yield Cell(columns="Gaussian", rank=10, ratio=ratio, spread=spread), None
    for ratio in _RATIOS[:5]:
        yield Cell(columns="Gaussian", rank=40, ratio=ratio, spread=_SPREAD), None
    for ratio in (0.5, 2, 8, 32):
        yield Cell(columns="Gaussian", rank=10, ratio=ratio, spread=_SPREAD, epsilon=MEMOISED), None
    for problem in given:
        rank, records = _size(problem)
        for ratio in _RATIOS[1:] if rank <= _FEW_COLUMNS else _RATIOS_OF_MANY_COLUMNS:
            cell = Cell(columns=problem.key, rank=rank, ratio=ratio, spread=_SPREAD)
            if cell.drawing.size <= records:
                yield cell, problem
        yield Cell(columns=problem.key, rank=rank, ratio=0.5, spread=_SPREAD, epsilon=MEMOISED), problem


# A hundred rounds of batches with many columns take minutes.
_FEW_COLUMNS, _RATIOS_OF_MANY_COLUMNS = 10, (0.5, 2)


def _size(problem: Problem) -> tuple[int, int]:
    """Return the rank of a problem's columns, and how many records there are to train on."""
    train = table_of(problem, 0).train
    return int(np.linalg.matrix_rank(train.double().numpy())), len(train)


def jobs_of(settings: Settings, chosen: Sequence[tuple[Cell, Problem | None]]) -> list[Job]:
    """Return a job for every setting and seed."""
    rounds = 10 if settings.quick else LOOKS[-1]
    return [
        Job(
            cell_run,
            {
                "cell": asdict(cell),
                "problem": None if problem is None else problem.as_settings(),
                "rounds": rounds,
                "seed": seed,
            },
        )
        for cell, problem in chosen
        for seed in range(_seeds(settings, cell))
    ]


def _seeds(settings: Settings, cell: Cell) -> int:
    """Return how many seeds a setting has: of small batches as many as make five hundred records, up to twelve."""
    return settings.seeds if settings.quick else max(2, min(12, 500 // cell.drawing.size))


# --- what theory says


def weak_threshold(spread: float) -> float:
    """Return k / rank up to which least L1 norm finds k of L residues, given L / k; for Gaussian columns, as L grows.

    With ``δ = rank / L`` it is ``ρ(δ) = max_z (1 − (2/δ) h(z)) / (1 + z² − 2 h(z))``, and
    ``h(z) = (1 + z²) Φ(−z) − z φ(z)``.

    Source: Donoho, Maleki and Montanari, PNAS 106 (2009), equation 5, of Donoho and Tanner's threshold.

    >>> round(weak_threshold(2.5), 2)
    0.55
    """
    low, high = 0.0, 1.0
    for _ in range(50):  # δ ρ(δ), which is k / L, grows with δ
        middle = (low + high) / 2
        low, high = (middle, high) if middle * _density(middle) * spread < 1 else (low, middle)
    return _density(high)


def _density(delta: float) -> float:
    z = np.linspace(1e-3, 6.0, 6000)
    tail = (1 + z**2) * norm.sf(z) - z * norm.pdf(z)
    return float(((1 - 2 / delta * tail) / (1 + z**2 - 2 * tail)).max())


# --- the section


@dataclass(frozen=True)
class Found:
    """What was measured in one setting, means over seeds.

    Attributes:
        cell: The setting.
        results: One per seed.
        answers: Balanced accuracy of the answers that are trained on, one per seed: 1 without a label defense.
    """

    cell: Cell
    results: Sequence[Result]
    answers: Sequence[float]

    def mean_at(self, name: str, rounds: int) -> float:
        """Return a figure after so many rounds, of the seeds that have it; NaN if none has."""
        looks = self.results[0]["looks"]
        return mean(result[name][looks.index(rounds)] for result in self.results) if rounds in looks else math.nan

    @property
    def ceiling(self) -> float:
        """What who knows which records are used reads in one round by least squares."""
        return sign_success(self.cell.rank, self.cell.drawing.used)

    @property
    def is_judged_well(self) -> bool:
        """Whether a hundred records were used in one round, over all seeds: of fewer a mean of one round is chance."""
        return self.cell.drawing.used * len(self.results) >= 100

    def rule(self, rounds: int) -> float:
        """Return what so many rounds tell where each tells little."""
        drawing = self.cell.drawing
        return run_success(rounds, size=drawing.size, used=drawing.used, sent=drawing.sent, columns=self.cell.rank)


def sections(settings: Settings) -> list[Section]:
    """Return what attacks read over settings and rounds, and what is recommended."""
    given = problems(settings)
    chosen = list(cells_of(settings, given))
    results = run_jobs(jobs_of(settings, chosen), settings.jobs, workers=settings.workers, say=settings.say)
    found, start = [], 0
    for cell, problem in chosen:
        seeds = _seeds(settings, cell)
        answers = [1.0 if cell.epsilon is None else _right_answers(cell, problem, seed) for seed in range(seeds)]
        found.append(Found(cell, results[start : start + seeds], answers))
        start += seeds
    titles = {"Gaussian": "Gaussian"} | {problem.key: problem.title for problem in given}
    return [_section(found, titles)]


def _right_answers(cell: Cell, problem: Problem | None, seed: int) -> float:
    """Return how many of the answers are the label, of both labels alike."""
    _, labels = _records(cell, problem, seed)
    return balanced(2 * _answers(labels, cell.epsilon, seed)[0] - 1, labels)


def _section(found: Sequence[Found], titles: Mapping[str, str]) -> Section:
    plain = [one for one in found if one.cell.epsilon is None]
    guarded = [one for one in found if one.cell.epsilon is not None]
    last = plain[0].results[0]["looks"][-1]
    body = f"""
In each round the same |S| records are the batch, and who is used is drawn anew, so that a round is an epoch: in a
larger table an epoch has more batches, of other records. Gradient descent from zero weights at rate {shown(_RATE, 1)};
Gaussian columns have labels that they say nothing about. Shown is the balanced accuracy on records that were used at
least once, by the likelihood of the whole run (`secret-batch-likelihood`), which knows the predictions. "L1, 10" is
`sparse-residues`, which does not, by the majority of its signs in ten rounds. "own" is the sign of the party's own part
of the logits at the end, which includes what the model remembers of labels. "known support" is what who knows the
records that are used reads in one round by least squares, Φ(√(d / (k − d))). "rule" is Φ(√(E d k / (L |S|))) for all E
rounds: what likelihoods add up to where each tells little. The rule was derived, and from which k on and within what it
is held against the figures was set after a first sweep had been seen.

{_table(plain, titles)}

On real columns part of this is what columns tell of labels anyway: where the model predicts well, the others' labels
in a sum tell a record's own, and in large batches little is read beyond "own".

With `memoised-response` of ε = {MEMOISED:g} on the labels, of whose flips the attack knows. What it reads are the
answers. In the mean {shown(response_ceiling(MEMOISED))} of them are right, and of these here as many as "answers" says:

{_table(guarded, titles)}

{_recommended(plain, guarded, last)}
"""
    name = "residue-protection-resists"
    return Section(
        title="What resists",
        body=body,
        figures={name: draw_resists(name, plain, titles, weak_threshold)},
        captions={
            name: "Balanced accuracy of the likelihood of a run over k / rank at L = 2.5 k (above) and over L / rank "
            "(below, Gaussian columns of rank 10), after 1, 10 and 100 rounds. Dashed: who knows the records that are "
            "used, by least squares in one round. Dotted: up to there sparse recovery finds the residues."
        },
        claims=_claims(plain, guarded, last),
    )


def response_ceiling(epsilon: float) -> float:
    """Return the share of labels that can be read from answers of randomised response."""
    return 1 / (1 + math.exp(-epsilon))


def _table(found: Sequence[Found], titles: Mapping[str, str]) -> str:
    looks = found[0].results[0]["looks"]
    plain = found[0].cell.epsilon is None
    headings = (
        "columns",
        "rank",
        "k / rank",
        "k",
        "L",
        "batch",
        "q",
        "p",
        *(f"{look} rounds" if look > 1 else "1 round" for look in looks),
        "AUC",
        "own",
        *(("L1, 10", "known support", "rule") if plain else ("answers",)),
        "s per 1000",
    )
    return markdown_table(headings, [_row(one, titles, looks) for one in found], left=1)


def _row(one: Found, titles: Mapping[str, str], looks: Sequence[int]) -> tuple[str, ...]:
    drawing, last = one.cell.drawing, looks[-1]
    return (
        titles[one.cell.columns],
        str(one.cell.rank),
        f"{one.cell.ratio:g}",
        str(drawing.used),
        str(drawing.sent),
        str(drawing.size),
        shown(drawing.share, 2),
        shown(drawing.kept, 2),
        *(shown(one.mean_at("likelihood", look)) for look in looks),
        shown(one.mean_at("likelihood_auc", last)),
        shown(one.mean_at("own", last)),
        *(
            (shown(one.mean_at("sparse", min(10, last))), shown(one.ceiling), shown(one.rule(last)))
            if one.cell.epsilon is None
            else (shown(mean(one.answers)),)
        ),
        shown(one.mean_at("seconds", last), 2),
    )


LIMIT = 0.6
"""Success below which a setting counts as resisting."""


def _recommended(plain: Sequence[Found], guarded: Sequence[Found], last: int) -> str:
    """Return what follows for who sets up a run, read off the sweep."""
    said = [_resisting(plain, rounds) for rounds in LOOKS if rounds <= last]
    answers = mean(one.mean_at("likelihood", last) for one in guarded)
    return "\n".join(
        [
            *said,
            "",
            f"**Recommended:** a label defense. With `memoised-response` of ε = {MEMOISED:g} the attack reads "
            f"{shown(answers)} of labels after {last} rounds, and its ε holds for a run of any length and any attack. "
            "Batches that are large beside the columns, of which few records are used, hide labels from these attacks "
            "for a number of epochs and no longer: the rule tells how many, and the exchange says it before its first "
            "step.",
        ]
    )


def _resisting(plain: Sequence[Found], rounds: int) -> str:
    """Return in which settings so many rounds tell less than the limit, as a line of a list."""
    known = [one for one in plain if one.is_judged_well]
    below = [one for one in known if one.mean_at("likelihood", rounds) < LIMIT]
    real = [one for one in below if one.cell.columns != "Gaussian"]
    line = (
        f"- After {rounds} round{'s' if rounds > 1 else ''} {len(below)} of {len(known)} settings with a hundred used "
        f"records or more are below {shown(LIMIT, 1)}, {len(real)} of them on real columns"
    )
    if not below:
        return f"{line}."
    return f"{line}; the smallest batch among them has {round(min(map(_batch, below)))} d records."


def _batch(one: Found) -> float:
    return one.cell.drawing.size / one.cell.rank


def _claims(plain: Sequence[Found], guarded: Sequence[Found], last: int) -> list[Claim]:
    found = []
    known = [one for one in plain if one.is_judged_well]
    if known and last > LOOKS[1]:
        least = [one.mean_at("likelihood", last) for one in known]
        resisting = [one for one in known if one.mean_at("likelihood", last) < LIMIT]
        said = f"no setting leaves less than {shown(LIMIT, 1)} of labels to {last} rounds: least of them"
        found.append(_claim(known, least, said, holds=not resisting, ours=min(least)))
        # Elsewhere later rounds read less, too: at first what columns tell of labels is most of it.
        gaussian = [one for one in known if one.cell.columns == "Gaussian"]
        left = [one for one in gaussian if one.mean_at("likelihood", LOOKS[1]) < _NEARLY_ALL]
        gained = [one.mean_at("likelihood", last) - one.mean_at("likelihood", LOOKS[1]) for one in left]
        said = (
            f"Gaussian columns: where {LOOKS[1]} rounds read less than {shown(_NEARLY_ALL, 2)}, {last} read more: gain"
        )
        found.append(_claim(left, gained, said, holds=min(gained) > 0))
    little = [one for one in plain if one.cell.columns == "Gaussian" and one.cell.ratio >= _FEW_TOLD]
    if little:
        off = [one.mean_at("likelihood", last) - one.rule(last) for one in little]
        said = (
            f"Gaussian columns, k from {_FEW_TOLD} rank on: {last} rounds read what the rule says within .06: beside it"
        )
        found.append(_claim(little, off, said, holds=max(map(abs, off)) <= 0.06))
    answered = [one for one in guarded if one.cell.columns == "Gaussian"]
    over = [one.mean_at("likelihood", last) - mean(one.answers) for one in answered]
    said = f"memoised-response of ε = {MEMOISED:g}: no more is read of labels than the answers have right: beside them"
    return [*found, _claim(answered, over, said, holds=max(over) <= _TIE)]


def _claim(
    settings: Sequence[Found], values: Sequence[float], said: str, *, holds: bool, ours: float | None = None
) -> Claim:
    """Return a claim on figures of several settings, each a mean over seeds."""
    return Claim(
        claim=said,
        published=None,
        ours=mean(values) if ours is None else ours,
        interval=None,
        seeds=min(len(one.results) for one in settings),
        verdict="reproduces" if holds else "does not",
        why=f"{shown(min(values))} to {shown(max(values))} over {len(values)} settings",
    )


# From so much k / rank on each round tells little; from so much success on there is little left to gain.
_FEW_TOLD, _NEARLY_ALL = 8, 0.95
_TIE = 0.01

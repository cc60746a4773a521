"""What readers find behind each penalty, in one small setting: six columns of which two decide the label."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from sklearn.linear_model import RidgeCV
from sklearn.metrics import r2_score
from torch import Tensor, nn

from scripts.reproduce.shared.claims import UNIT, markdown_table, mean, shown, with_interval
from scripts.reproduce.shared.jobs import Job, Result, run_jobs
from scripts.reproduce.shared.pages import Section
from scripts.reproduce.shared.settings import Settings
from splitvfl.app.trainer import Trainer
from splitvfl.attacks import InverseNetworkAttack, RidgeAttack, StackedRidgeAttack
from splitvfl.data.columns import Columns, PartyData, Records
from splitvfl.hooks import Attack, Weighed
from splitvfl.models import MLP, Sampled
from splitvfl.party.party import ActiveParty, PassiveParty
from splitvfl.penalties import AdversarialReconstruction, DistanceCorrelation, MutualInformationBottleneck

TRAIN, RECORDS, COLUMNS, WIDTH, EPOCHS, KNOWN = 800, 1200, 6, 8, 8, 0.2
SEEDS = 10
PREDICTIONS = 20
"""So many of each record are averaged."""

READERS: Mapping[str, Callable[[], Attack]] = {
    "ridge": partial(RidgeAttack, known_share=KNOWN),
    "inverse-network": partial(InverseNetworkAttack, known_share=KNOWN),
    "stacked-ridge": partial(StackedRidgeAttack, known_share=KNOWN),
}
"""By name, what makes them."""

MAKERS: Mapping[str, Callable[..., Any]] = {
    "distance-correlation": DistanceCorrelation,
    "adversarial-reconstruction": AdversarialReconstruction,
    "mutual-information-bottleneck": MutualInformationBottleneck,
}
TRIED: Sequence[Mapping[str, Any]] = (
    {"name": "", "weight": 0.0},
    {"name": "distance-correlation", "weight": 0.3},
    {"name": "distance-correlation", "weight": 3.0},
    {"name": "adversarial-reconstruction", "weight": 1.0},
    {"name": "adversarial-reconstruction", "weight": 1.0, "steps": 1},
    {"name": "mutual-information-bottleneck", "weight": 0.003},
    {"name": "mutual-information-bottleneck", "weight": 0.01},
    {"name": "mutual-information-bottleneck", "weight": 0.03},
)
"""Rows, in order; what is beside name and weight is the penalty's."""

HEADINGS = ("penalty", *(f"`{name}`" for name in READERS), "the run, `stacked-ridge`", "test AUC", "least AUC")
DRAWN_HEADINGS = ("penalty", *HEADINGS[1:4], f"{PREDICTIONS} predictions", "test AUC", "nats", "bound")


def parties_data(seed: int) -> tuple[PartyData, PartyData]:
    """Return six independent columns, of which two decide the label together with one of the label party's, and its."""
    random = torch.Generator().manual_seed(seed)
    columns = torch.randn(RECORDS, COLUMNS, generator=random)
    own = torch.randn(RECORDS, 2, generator=random)
    logit = 1.5 * columns[:, 0] - 1.5 * columns[:, 1] + own[:, 0]
    labels = (logit + torch.randn(RECORDS, generator=random) > 0).float()

    def party(name: str, values: Tensor, labels: Tensor | None) -> PartyData:
        parts = [
            Records(torch.arange(RECORDS)[part], Columns.of(values[part]), None if labels is None else labels[part])
            for part in (slice(TRAIN), slice(TRAIN, None))
        ]
        names = tuple(f"{name}{place}" for place in range(values.shape[1]))
        return PartyData(name, names, names, (), parts[0], parts[1])

    return party("lab", columns, None), party("bank", own, labels)


def bottom_model(*, sampled: bool) -> nn.Module:
    """Return the passive party's model, with first weights by torch's generator."""
    if sampled:
        return Sampled(MLP(COLUMNS, [16, 2 * WIDTH], final_activation=False))
    return MLP(COLUMNS, [16, WIDTH], final_activation=False)


def trained(
    seed: int, penalties: Sequence[Any], *, sampled: bool = False, readers: Sequence[str] = ("ridge",)
) -> Trainer:
    """Return the parties after eight epochs with these penalties, of which readers have seen every message."""
    lab, bank = parties_data(seed)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        bottom, top = bottom_model(sampled=sampled), MLP(WIDTH + 2, [8, 1], final_activation=False)
    adam = partial(torch.optim.Adam, lr=0.01)
    trainer = Trainer(
        ActiveParty(bank, top, optimizer=adam),
        {"lab": PassiveParty(lab, bottom, optimizer=adam, penalties=list(penalties))},
        attacks=[READERS[name]() for name in readers],
        batch_size=100,
        audit=False,
        seed=seed,
    )
    trainer.fit(EPOCHS)
    return trainer


def share_of_ridge(sent: Tensor, columns: Tensor, known: int = round(KNOWN * TRAIN)) -> float:
    """Return what scikit-learn's ridge regression on the first records recovers of the others' columns."""
    reader = RidgeCV([0.001, 0.1, 1.0, 10.0, 100.0]).fit(sent[:known].numpy(), columns[:known].numpy())
    return float(r2_score(columns[known:].numpy(), reader.predict(sent[known:].numpy())))


def measure(*, about: Mapping[str, str], penalty: Mapping[str, Any], seed: int) -> Result:
    """Train with a penalty, and return what was read, and what it cost.

    Args:
        about: For those who watch.
        penalty: ``name``, empty for none, ``weight``, and what else it takes.
        seed: Of data, first weights, order, draws, and of which records are known.

    Returns:
        ``share`` and ``accumulated`` by reader, ``auc``; where what is sent is drawn, ``averaged``: what ridge
        regression reads of the means of 20 draws of each training record, and ``nats``: the mean over these records
        of the divergence from a standard normal distribution, by the finished model.
    """
    settings = {name: value for name, value in penalty.items() if name not in ("name", "weight")}
    made = [Weighed(MAKERS[penalty["name"]](**settings), penalty["weight"])] if penalty["name"] else []
    sampled = penalty["name"] == MutualInformationBottleneck.name
    trainer = trained(seed, made, sampled=sampled, readers=tuple(READERS))
    readings = trainer.column_readings("lab")
    return {
        "share": {one.attack: one.share for one in readings},
        "accumulated": {one.attack: one.accumulated for one in readings},
        "auc": trainer.test["auc"],
        **(_of_draws(trainer.passives["lab"], seed) if sampled else {}),
    }


def _of_draws(party: PassiveParty, seed: int) -> dict[str, float]:
    columns, bottom = party.data.train.columns.numeric, party.bottom
    assert isinstance(bottom, Sampled)
    with torch.no_grad(), torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        averaged = torch.stack([bottom(columns) for _ in range(PREDICTIONS)]).mean(dim=0)
        middle, log_variance = bottom.module(columns).chunk(2, dim=1)
    nats = 0.5 * (middle.square() + log_variance.exp() - log_variance - 1.0).sum(dim=1).mean().item()
    return {"averaged": share_of_ridge(averaged, columns), "nats": nats}


def sections(settings: Settings) -> list[Section]:
    """Return the section."""
    tried = (TRIED[0], TRIED[3], TRIED[5]) if settings.quick else TRIED
    seeds = range(settings.seeds if settings.quick else SEEDS)
    jobs = [Job(measure, _told(one, seed)) for one in tried for seed in seeds]
    results = iter(run_jobs(jobs, settings.jobs, workers=settings.workers, say=settings.say))
    found = [(one, [next(results) for _ in seeds]) for one in tried]
    plain = [row(one, runs) for one, runs in found if "nats" not in runs[0]]
    drawn = [drawn_row(one, runs) for one, runs in found if not one["name"] or "nats" in runs[0]]
    body = f"""
Six independent normal columns, of which two decide the label with one of the label party's own; bottom 16, {WIDTH};
{EPOCHS} epochs of {TRAIN} records in batches of 100; readers know a fifth of the records. Means of {len(seeds)} seeds,
each with data of its own, and half of their 95 % interval.

{markdown_table(HEADINGS, plain)}

Behind `mutual-information-bottleneck` what is sent is drawn: the column of {PREDICTIONS} predictions is ridge
regression on the means of so many draws of each record. Nats are the divergence that bounds the information of one
draw, the mean over training records; the bound is 1 − exp(−2 · nats / {COLUMNS}), of the nats as they are printed.

{markdown_table(DRAWN_HEADINGS, drawn)}
"""
    return [Section(title="Behind penalties", body=body)]


def _told(penalty: Mapping[str, Any], seed: int) -> dict[str, Any]:
    return {"about": {"label": _named(penalty)}, "penalty": dict(penalty), "seed": seed}


def row(penalty: Mapping[str, Any], runs: Sequence[Result]) -> tuple[str, ...]:
    """Return the row of a penalty of which each seed had one run."""
    over_the_run = [run["accumulated"]["stacked-ridge"] for run in runs]
    aucs = [run["auc"] for run in runs]
    return (
        _named(penalty),
        *(_shown([run["share"][name] for run in runs]) for name in READERS),
        _shown(over_the_run),
        _shown(aucs, 3),
        shown(min(aucs)),
    )


def drawn_row(penalty: Mapping[str, Any], runs: Sequence[Result]) -> tuple[str, ...]:
    """Return the row of a penalty behind which what is sent is drawn; of none, for comparison."""
    shares = [_shown([run["share"][name] for run in runs]) for name in READERS]
    auc = _shown([run["auc"] for run in runs], 3)
    if "nats" not in runs[0]:
        return _named(penalty), *shares, "–", auc, "–", "–"
    nats = f"{mean(run['nats'] for run in runs):.2f}"
    bound = shown(1.0 - math.exp(-2.0 * float(nats) / COLUMNS), 2)
    return _named(penalty), *shares, _shown([run["averaged"] for run in runs]), auc, nats, bound


def _named(penalty: Mapping[str, Any]) -> str:
    if not penalty["name"]:
        return "none"
    beside = ", one step of its network" if penalty.get("steps") == 1 else ""
    return f"`{penalty['name']}`, weight {penalty['weight']:g}{beside}"


def _shown(values: Sequence[float], digits: int = 2) -> str:
    return with_interval(values, digits, limits=UNIT)

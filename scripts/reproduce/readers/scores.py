"""What is read of columns from scores, by who knows the whole model, beside who knows none of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor

from scripts.reproduce.defense_table.runs import Sample
from scripts.reproduce.readers.arrangements import HEADINGS, OF_SCORES, PARTNER, at_hand
from scripts.reproduce.shared.claims import UNIT, markdown_table, with_interval
from scripts.reproduce.shared.jobs import Job, Result, run_jobs
from scripts.reproduce.shared.pages import Section
from scripts.reproduce.shared.settings import Settings, data_folder
from splitvfl.app.experiment import Experiment, Workbench
from splitvfl.app.records import load_data
from splitvfl.attacks import GenerativeRegressionAttack, ScoreInversionAttack
from splitvfl.config.sections import parse_config
from splitvfl.hooks import Attack, View
from splitvfl.leakage.monitor import Monitor
from splitvfl.leakage.ridge import fit_ridge
from splitvfl.run.score_seats import ScoreSeats

KNOWN = 0.05
SEEDS = 3


class RidgeOnScores:
    """Ridge regression on own columns and scores, of the known records: it needs no model."""

    name: ClassVar[str] = "ridge-on-scores"
    seat: ClassVar[str] = "active"
    target: ClassVar[str] = "features"
    needs: ClassVar[frozenset[str]] = frozenset({"scores", "columns", "known_columns", "whole_model"})
    known_share: ClassVar[float] = KNOWN

    def __call__(self, view: View, /) -> Tensor:
        """Return the estimate of every record, ``(n, d)``."""
        scores = view.scores if view.scores.ndim == 2 else view.scores[:, None]
        seen = torch.cat([torch.as_tensor(view.columns).float(), scores.float()], dim=1)
        known = view.known_columns
        places = (view.ids[None, :] == known.ids[:, None]).int().argmax(dim=1)
        return fit_ridge(seen[places], known.columns).estimate(seen)


READERS: Mapping[str, Attack] = {
    "ridge on own columns and scores": RidgeOnScores(),
    "`score-inversion`": ScoreInversionAttack(known_share=KNOWN),
    "`generative-regression`": GenerativeRegressionAttack(known_share=KNOWN),
    "the same, `taught: 0`": GenerativeRegressionAttack(known_share=KNOWN, taught=0),
}
"""By heading."""

READ = ("columns, bottom model, scores", "own columns", *READERS)


def measure(*, about: Mapping[str, str], experiment: Mapping[str, str], seed: int, sample: Mapping[str, Any]) -> Result:
    """Train one experiment, and return what is read from its scores.

    Args:
        about: For those who watch.
        experiment: Its text, under ``yaml``; the seed is in it.
        seed: Draws the known records.
        sample: Fields of :class:`~scripts.reproduce.defense_table.runs.Sample`.

    Returns:
        ``shares``: by heading; ``own``: what ridge regression on the label party's own columns tells; ``metric``.
    """
    config = parse_config(experiment["yaml"], source=about["label"])
    if sample["file"]:
        # Where the file lies is this machine's, and in no setting.
        path = str(data_folder() / sample["file"])
        config = config.model_copy(update={"data": config.data.model_copy(update={"path": path})})
    data = Sample(**sample).of(load_data(config), validating=False)
    trainer = Experiment(config, Workbench(data, {})).trainer()
    test = trainer.fit(config.train.epochs)
    seats = ScoreSeats(
        trainer.active, trainer.passives, [*READERS.values()], watch=trainer.watch, batches=trainer.batches, seed=seed
    )
    seats.read(0, Monitor(None))
    readings = seats.readings(PARTNER)
    return {
        "shares": {name: one.share for name, one in zip(READERS, readings, strict=True)},
        "own": readings[0].without_messages,
        "test": dict(test),
    }


def sections(settings: Settings) -> list[Section]:
    """Return the section."""
    chosen, seeds = at_hand(OF_SCORES, settings), min(settings.seeds, SEEDS)
    jobs = [Job(measure, one.settings([], seed)) for one in chosen for seed in range(seeds)]
    results = iter(run_jobs(jobs, settings.jobs, workers=settings.workers, say=settings.say))
    rows = [(one.title, *cells([next(results) for _ in range(seeds)])) for one in chosen]
    body = f"""
The share of variance of the partner's columns in test records, by who knows {100 * KNOWN:g} % of the training records,
512 at most, when training has ended; means over seeds and half of their 95 % interval, or least and most of the seeds.
`score-inversion` and `generative-regression` have the whole model; ridge regression needs none.

{markdown_table(HEADINGS, [one.row(seeds) for one in chosen], left=2)}

{markdown_table(READ, rows)}
"""
    return [Section(title="From scores", body=body)]


def cells(runs: Sequence[Result]) -> list[str]:
    """Return what was read in the runs of one arrangement."""
    by_column = [[run["own"] for run in runs], *([run["shares"][name] for run in runs] for name in READERS)]
    return [with_interval(values, 2, limits=UNIT) for values in by_column]

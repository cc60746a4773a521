"""Does the label owner need its partners? The joint model beside its own one, on the same test records."""

from __future__ import annotations

import math
from dataclasses import replace

from splitvfl.errors import DataError, SplitVFLError
from splitvfl.exchange.evaluation import EvaluatedOutputs
from splitvfl.hooks import all_finite
from splitvfl.learning.bootstrap import difference, measure_of, paired_bootstrap, units_of
from splitvfl.party.party import ActiveParty
from splitvfl.report.summary import OwnModelResult, RunSummary
from splitvfl.run.training import Training


def with_own_model(summary: RunSummary, run: Training, active: ActiveParty) -> RunSummary:
    """Return a finished run's summary with its test figure beside that of the label owner's own model.

    Where that cannot be computed, the summary says why: the run is finished, and its other figures count. A label owner
    without columns has no model of its own.

    Args:
        summary: The summary.
        run: The run.
        active: Its label owner.
    """
    if not sum(part.shape[1] for part in active.data.train.columns):
        return summary
    try:
        found = _compared(active, run.kept_tested if active.weights.best.in_use else run.tested)
    except Exception as error:  # a user's loss may fail in any way on drawn records, and a finished run is not lost
        why = str(error) if isinstance(error, SplitVFLError) else f"{type(error).__name__}: {error}"
        return replace(summary, no_own_model=f"What {active.name} alone reaches was not measured: {why}.")
    return replace(summary, own_model=found)


def _compared(active: ActiveParty, tested: EvaluatedOutputs | None) -> OwnModelResult:
    # Imported late: scikit-learn takes as long as a short run.
    from splitvfl.leakage.own_model import own_model

    data, task = active.data, active.task
    if data.shards is not None and data.shards.here is not None:
        raise DataError("its records lie apart, a part of them at each worker")
    if tested is None:
        raise DataError(
            "nobody has kept the joint model's outputs of single test records: there are no test records, or the run "
            "ended under an older version"
        )
    if not all_finite(tested.outputs):
        raise DataError("outputs of the joint model are NaN or infinite")
    # Columns as they are held: the norm to which rows are scaled down for training together is not its own model's.
    asked = data.test.part(tested.positions)
    assert asked.labels is not None, "the label owner's"
    labels = asked.labels.cpu()
    if labels.min() == labels.max():
        raise DataError("all test records have the same label")
    own = own_model(data.train, asked, task)
    units = units_of(task, labels)
    measures = {
        "alone": measure_of(task, own.scores, labels, scores=True),
        "joint": measure_of(task, tested.outputs, labels),
    }
    found = paired_bootstrap(measures, len(labels), units=units)
    gain = difference(found["alone"], found["joint"], units=units)
    alone, joint = found["alone"][0].value, found["joint"][0].value
    if not all(map(math.isfinite, (gain.value, gain.low, gain.high))):
        raise DataError(f"the {task.metric} of these test records is {joint} of the joint model and {alone} of its own")
    return OwnModelResult(
        party=data.name,
        metric=task.metric,
        model=own.name,
        alone=alone,
        joint=joint,
        difference=gain.value,
        low=gain.low,
        high=gain.high,
        records=len(labels),
        of=data.test.count if data.test.real is None else int(data.test.real.sum()),
    )

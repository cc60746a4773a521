from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from splitvfl.errors import DataError
from splitvfl.leakage.run_audit import RunAudit

RECORDS = 2000
WIDTH = 4


def world() -> tuple[Tensor, Tensor]:
    """Labels, and a prediction that knows something of them."""
    generator = torch.Generator().manual_seed(0)
    prediction = torch.randn(RECORDS, generator=generator, dtype=torch.float64)
    labels = (torch.rand(RECORDS, generator=generator) < torch.sigmoid(prediction)).double()
    return labels, prediction


def run(noise: float, *, epochs: int = 4, marked: bool = False, batch: int = 250) -> RunAudit:
    """Messages on one line with class means apart, and noise; or only marked off the line, by class."""
    labels, prediction = world()
    generator = torch.Generator().manual_seed(1)
    weight = torch.zeros(WIDTH, dtype=torch.float64)
    weight[0] = 1.0
    audit = RunAudit()
    for _ in range(epochs):
        for rows in torch.randperm(RECORDS, generator=generator).split(batch):
            clean = (torch.sigmoid(prediction[rows]) - labels[rows])[:, None] * weight
            sent = clean + noise * torch.randn(rows.numel(), 1, generator=generator, dtype=torch.float64) * weight
            if marked:
                sent = torch.randn(rows.numel(), WIDTH, generator=generator, dtype=torch.float64)
                sent[:, 1:] *= 1.0 + labels[rows][:, None]
            audit.see(clean, sent, labels[rows], rows)
    return audit


def test_clean_gradients_tell_everything() -> None:
    labels, prediction = world()

    leak = run(0.0).judge(torch.arange(RECORDS), labels, prediction)

    assert leak.auc > 0.99
    assert leak.matched_auc > 0.99
    assert leak.records == RECORDS


def test_pure_noise_tells_the_prediction_and_nothing_beyond() -> None:
    labels, prediction = world()

    leak = run(1e6).judge(torch.arange(RECORDS), labels, prediction)

    from sklearn.metrics import roc_auc_score

    assert leak.prediction_auc == pytest.approx(roc_auc_score(labels.numpy(), prediction.numpy()), abs=1e-12)
    # An out-of-fold model loses a little to the prediction it is given; .015 is one standard error of an AUC here.
    assert abs(leak.auc - leak.prediction_auc) < 0.05
    assert abs(leak.matched_auc - 0.5) < 0.05


def test_it_accumulates_over_epochs() -> None:
    labels, prediction = world()
    ids = torch.arange(RECORDS)

    once, often = (run(3.0, epochs=epochs).judge(ids, labels, prediction).matched_auc for epochs in (1, 16))

    # A shift of 1 under noise of 3 and of 3/4: normal theory gives .59 and .83; gradient boosting gets most of it.
    assert once < 0.62
    assert 0.75 < often < 0.86


def test_it_sees_noise_that_marks_a_class() -> None:
    labels, prediction = world()

    assert run(0.0, marked=True).judge(torch.arange(RECORDS), labels, prediction).matched_auc > 0.9


def test_records_that_never_crossed_are_left_out() -> None:
    labels, prediction = world()
    ids = torch.cat([torch.arange(RECORDS), torch.tensor([10**9])])
    more = torch.tensor([1.0], dtype=torch.float64)

    leak = run(0.0).judge(ids, torch.cat([labels, more]), torch.cat([prediction, more]))

    assert leak.records == RECORDS


def test_its_state_goes_on() -> None:
    labels, prediction = world()
    audit, restarted = run(2.0), RunAudit()

    restarted.load_state_dict(audit.state_dict())

    ids = torch.arange(RECORDS)
    assert restarted.judge(ids, labels, prediction) == audit.judge(ids, labels, prediction)


def test_too_few_records_are_refused() -> None:
    with pytest.raises(DataError, match="needs 5 records of each class"):
        RunAudit().judge(torch.arange(10), torch.ones(10), torch.zeros(10))


def test_its_mean_and_spread_are_those_of_a_slow_loop() -> None:
    generator = np.random.default_rng(0)
    audit = RunAudit()
    labels = torch.tensor([0.0, 0.0, 1.0, 1.0])
    clean = torch.tensor([[1.0], [1.0], [-1.0], [-1.0]], dtype=torch.float64)
    seen = []
    for _ in range(5):
        sent = generator.normal(size=(4, 1))
        audit.see(clean, torch.from_numpy(sent), labels, torch.arange(4))
        seen.append(-sent[:, 0] / np.sqrt((sent**2).mean()))  # the axis points from negatives to positives

    history = audit._history(np.arange(4))

    expected = np.stack([np.mean(seen, 0), np.std(seen, 0), seen[0], seen[-1]], axis=1)
    np.testing.assert_allclose(history[:, :4], expected, atol=1e-5)  # sums are kept in float32


def test_answers_that_tell_nothing_are_not_read() -> None:
    generator = torch.Generator().manual_seed(3)
    labels = (torch.rand(RECORDS, generator=generator) < 0.5).double()
    answers = (torch.rand(RECORDS, generator=generator) < 0.5).double()
    gradient = torch.randn(RECORDS, 32, generator=generator, dtype=torch.float64)
    gradient[:, 0] += 0.5 - answers
    audit = RunAudit()
    for rows in torch.arange(RECORDS).split(32):
        audit.see(gradient[rows], gradient[rows], labels[rows], rows, responses=answers[rows])

    leak = audit.judge(torch.arange(RECORDS), labels, torch.zeros(RECORDS))

    # .013 is the standard error of a blind attacker's AUC here; an axis between the true classes lets it read far more.
    assert abs(leak.auc - 0.5) < 0.06

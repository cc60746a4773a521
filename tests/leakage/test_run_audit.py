from __future__ import annotations

import pytest
import torch
from sklearn.metrics import roc_auc_score
from torch import Tensor

from splitvfl.errors import DataError
from splitvfl.leakage.auditing import Audit
from splitvfl.learning.label_gradients import LabelGradients, mean_cross_entropy

RECORDS = 2000
WIDTH = 4


def world() -> tuple[Tensor, Tensor]:
    """Labels, and a prediction that knows something of them."""
    generator = torch.Generator().manual_seed(0)
    prediction = torch.randn(RECORDS, generator=generator, dtype=torch.float64)
    labels = (torch.rand(RECORDS, generator=generator) < torch.sigmoid(prediction)).double()
    return labels, prediction


def below_a_line(prediction: Tensor, targets: Tensor) -> LabelGradients:
    """What the label party knows at a linear top whose weights are the first unit vector."""
    line = torch.zeros(WIDTH, dtype=torch.float64)
    line[0] = 1.0
    return LabelGradients(
        outputs=prediction[:, None],
        targets=targets,
        values=(0.0, 1.0),
        classes=2,
        loss=mean_cross_entropy,
        jacobian=line.expand(1, prediction.numel(), WIDTH),
    )


def run(noise: float, *, epochs: int = 4, marked: bool = False, batch: int = 250) -> Audit:
    """Messages on one line with class means apart, and noise; or only marked off the line, by class."""
    labels, prediction = world()
    generator = torch.Generator().manual_seed(1)
    audit = Audit()
    for _ in range(epochs):
        for rows in torch.randperm(RECORDS, generator=generator).split(batch):
            known = below_a_line(prediction[rows], labels[rows])
            clean = known.rows
            sent = clean.clone()
            sent[:, 0] += noise / rows.numel() * torch.randn(rows.numel(), generator=generator, dtype=torch.float64)
            if marked:
                sent = torch.randn(rows.numel(), WIDTH, generator=generator, dtype=torch.float64)
                sent[:, 1:] *= 1.0 + labels[rows][:, None]
            audit.see(clean, sent, labels[rows], rows, label_gradients=known)
    return audit


def test_clean_gradients_tell_everything() -> None:
    labels, prediction = world()

    audit = run(0.0)
    leak = audit.judge(torch.arange(RECORDS), labels, prediction)

    assert leak.auc > 0.99
    assert leak.matched_auc > 0.99
    assert leak.records == RECORDS
    assert audit.total > 0.99


def test_pure_noise_tells_the_prediction_and_nothing_beyond() -> None:
    labels, prediction = world()

    audit = run(1e6)
    leak = audit.judge(torch.arange(RECORDS), labels, prediction)

    assert leak.prediction_auc == pytest.approx(roc_auc_score(labels.numpy(), prediction.numpy()), abs=1e-12)
    assert audit.prediction_auc == pytest.approx(leak.prediction_auc, abs=1e-12)
    # An out-of-fold model loses a little to the prediction it is given; .015 is one standard error of an AUC here.
    assert abs(leak.auc - leak.prediction_auc) < 0.03
    assert abs(leak.matched_auc - 0.5) < 0.05


def test_it_accumulates_over_epochs() -> None:
    labels, prediction = world()
    ids = torch.arange(RECORDS)

    once, often = (run(3.0, epochs=epochs).judge(ids, labels, prediction).matched_auc for epochs in (1, 16))

    # A shift of 1 under noise of 3 and of 3/4: normal theory gives .59 and .83, each with a standard error of .013, and
    # groups of equal predictions leave .01 in.
    assert once < 0.64
    assert 0.8 < often < 0.86


def test_it_sees_noise_that_marks_a_class() -> None:
    labels, prediction = world()

    assert run(0.0, marked=True).judge(torch.arange(RECORDS), labels, prediction).matched_auc > 0.9


def test_records_that_never_crossed_are_left_out() -> None:
    labels, prediction = world()
    ids = torch.cat([torch.arange(RECORDS), torch.tensor([10**9])])
    more = torch.tensor([1.0], dtype=torch.float64)

    leak = run(0.0).judge(ids, torch.cat([labels, more]), torch.cat([prediction, more]))

    assert leak.records == RECORDS


def test_too_few_records_are_refused() -> None:
    with pytest.raises(DataError, match="needs 5 records of each class"):
        Audit().judge(torch.arange(10), torch.ones(10), torch.zeros(10))

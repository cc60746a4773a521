"""A late detection error is what tells two labels of a record apart given its prediction, whatever the defense."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from sklearn.datasets import load_breast_cancer

from splitvfl.defenses import AsymmetricResponse, RecordGaussian
from splitvfl.leakage.auditing import Audit
from splitvfl.sklearn import SplitClassifier


@pytest.mark.parametrize(
    "make", [RecordGaussian, pytest.param(AsymmetricResponse, marks=pytest.mark.slow(reason="another training"))]
)
def test_what_the_model_predicts_is_no_part_of_it(make: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The model predicts nearly every label; one message is held to .4, as the theorem has it."""
    made: list[Audit] = []
    first = Audit.__init__

    def kept(self: Audit, **settings: Any) -> None:
        first(self, **settings)
        made.append(self)

    monkeypatch.setattr(Audit, "__init__", kept)
    table, labels = load_breast_cancer(return_X_y=True)
    model = SplitClassifier({"lab": slice(10, None)}, random_state=0, epochs=8, defenses=[make(detection_error=0.4)])
    model.fit(table, labels)

    (audit,) = made
    # A standard error of 570 answers, drawn once: sqrt(.24 / 212 + .24 / 357) / 2 = .021.
    assert audit.late_detection_error == pytest.approx(0.4, abs=0.06)
    if make is AsymmetricResponse:
        assert np.nanmean(audit._errors.kept[-20:, 1]) < 0.3, "what is read with the prediction is far lower"

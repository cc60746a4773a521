"""What partners see that is made from labels voids what is promised of the whole run, by name and everywhere."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from splitvfl.claims import EARLY_STOPPING, SELECTION, LabelRelease, not_applying
from splitvfl.data.load import load
from splitvfl.defenses import (
    AbstainingResponse,
    AsymmetricResponse,
    MemoisedResponse,
    RandomisedResponse,
    RecordGaussian,
)
from splitvfl.learning.schedule import EarlyStopping
from splitvfl.party.attaching import claims_in_words, promised_in_short, promises_of
from tests.builders import small_trainer

VOID = "The run-wide guarantee does not apply: early stopping is made from labels"
STOPPING: dict[str, Any] = {"early_stopping": EarlyStopping(patience=1, validation_every=3)}


@pytest.mark.parametrize(
    "defense",
    [
        AsymmetricResponse(detection_error=0.3),
        AbstainingResponse(detection_error=0.3),
        RandomisedResponse(epsilon=1.0),
        MemoisedResponse(flip=0.2),
    ],
    ids=lambda defense: defense.name,
)
def test_early_stopping_voids_what_is_promised_of_a_run(defense: Any) -> None:
    covered, stopped = (small_trainer(("lab",), defenses=[defense], **more).active for more in ({}, STOPPING))

    for said in (promises_of, lambda party, epochs: promised_in_short([party], epochs=epochs)):
        assert all("all messages of the run together" in line for line in said(covered, 3))
        assert [line.removesuffix(".") for line in said(stopped, 3)] == [f"{defense.name}: {VOID}"]
    (words,) = claims_in_words([stopped])
    assert words.startswith(f"{defense.name}: {VOID}.")
    assert VOID not in claims_in_words([covered])[0]


def test_what_is_promised_of_one_message_stays() -> None:
    defense = RecordGaussian(detection_error=0.4)
    covered, stopped = (small_trainer(("lab",), defenses=[defense], **more).active for more in ({}, STOPPING))

    assert promises_of(stopped, 3) == promises_of(covered, 3) != []
    assert VOID not in " ".join(claims_in_words([stopped]))


@pytest.mark.parametrize(("missing", "found"), [("", (SELECTION,)), ("1", ())])
def test_records_left_out_by_their_label_void_it(tmp_path: Path, missing: str, found: tuple[LabelRelease, ...]) -> None:
    path = tmp_path / "shop.csv"
    rows = [f"{number % 7},{number % 5},{number % 2}" for number in range(60)]
    path.write_text("\n".join(["age,usage,bought", *rows, f"3,4,{missing}"]))
    data = load("table", path=path, label="bought", unlabelled="drop", active="age", passive={"lab": "usage"})

    trainer = small_trainer(("lab",), defenses=[RandomisedResponse(epsilon=1.0)])
    trainer.active.data = data.active

    assert trainer.active.label_releases == found
    assert not data["lab"].selected_by_label
    (said,) = promised_in_short([trainer.active], epochs=3)
    assert ("does not apply: selection of records by label" in said) == bool(found)


def test_each_release_is_named_once() -> None:
    said = not_applying((EARLY_STOPPING, SELECTION))
    assert said.endswith("does not apply: early stopping and selection of records by label are made from labels")

"""Attacks on scores by who knows the whole model: what they are shown, how they are judged, and what is refused."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from splitvfl import Trainer
from splitvfl.app.deployment import _unavailable
from splitvfl.app.reconstruction import _listed
from splitvfl.attacks import GenerativeRegressionAttack, ScoreInversionAttack
from splitvfl.cli import main
from splitvfl.errors import ConfigError
from splitvfl.exchange.split import Split
from splitvfl.hooks import View
from splitvfl.learning.losses import Logistic
from splitvfl.learning.tasks import Binary
from splitvfl.report.report import write_report
from splitvfl.report.summary import read_summary
from tests.builders import linear_trainer, same, small_trainer, weights

INVERSION = ScoreInversionAttack(known_share=0.25)
SIZES = {"train": 200, "test": 100}


class Look:
    """Keeps its view, and answers zeros."""

    name, target, known_share = "look", "features", 0.25
    needs = frozenset({"scores", "columns", "classes", "whole_model", "known_columns"})

    def __init__(self, kept: list[View], width: int = 5) -> None:
        self.kept, self.width = kept, width

    def __deepcopy__(self, memo: Any) -> Look:
        return self

    def __call__(self, view: View, /) -> Tensor:
        view.tensors()
        self.kept.append(view)
        return torch.zeros(len(view.ids), self.width)


def trained(*names: str, **settings: Any) -> Trainer:
    made = small_trainer(names or ("telecom",), sizes=SIZES, audit=False, **{"attacks": [INVERSION], **settings})
    made.fit(2)
    return made


@pytest.mark.parametrize("task", ["binary", "multiclass", "regression"])
def test_the_whole_model_puts_out_what_scores_are_made_of(task: str) -> None:
    """Beside the run's own predictions; known records are training records, judged ones are test records."""
    kept: list[View] = []
    made = trained("lab", "telecom", task=task, attacks=[Look(kept, 10)])
    (view,) = kept
    parties = [made.passives[name].data for name in ("lab", "telecom")]
    test = torch.cat([one.test.columns.numeric for one in parties], dim=1)
    with torch.no_grad():
        outputs = view.whole_model(view.columns[50:], test)
    expected = made.predict()
    torch.testing.assert_close(made.active.task.loss.scores(outputs), expected)
    torch.testing.assert_close(view.scores[50:], expected)
    torch.testing.assert_close(view.scores[:50], made.predict(part="train")[place(made, view.ids[:50])])
    assert view.ids[50:].tolist() == made.active.data.test.ids.tolist()
    known = view.known_columns
    train = torch.cat([one.train.columns.numeric for one in parties], dim=1)
    assert torch.equal(known.columns, train[place(made, known.ids)])
    assert view.fields == tuple(sorted(Look.needs))
    assert view.classes == made.active.task.classes


def place(made: Trainer, ids: Tensor) -> Tensor:
    return (made.active.data.train.ids == ids[:, None]).int().argmax(dim=1)


def test_who_looks_changes_nothing_and_is_judged_by_test_records() -> None:
    watched, alone = trained(dropout=0.5), trained(dropout=0.5, attacks=[])
    assert same(weights(watched), weights(alone))
    assert alone.column_readings("telecom") == []
    (found,) = watched.column_readings("telecom")
    assert (found.records, found.known_share, found.of_scores, found.knows_model) == (100, 0.25, True, True)
    assert 0.0 <= found.without_messages < 0.6  # type: ignore[operator]
    assert found.share > found.without_messages + 0.05  # type: ignore[operator]
    assert found == trained(dropout=0.5).column_readings("telecom")[0]


def test_zeros_read_nothing_and_where_there_are_no_test_records_others_are_judged_by() -> None:
    kept: list[View] = []
    (found,) = trained(attacks=[Look(kept)]).column_readings("telecom")
    assert found.share < 0.03
    made = small_trainer(sizes={"train": 200, "test": 0}, attacks=[Look(kept)], audit=False)
    made._score_seats.read(0, made.training.log.monitor)
    (found,) = made.column_readings("telecom")
    assert found.records == 150
    assert len(set(kept[-1].ids.tolist())) == 200


def test_several_parties_are_estimated_side_by_side() -> None:
    made = trained("lab", "telecom")
    one, other = (made.column_readings(name)[0] for name in ("lab", "telecom"))
    assert {column.column for column in one.columns} == {f"lab{number}" for number in range(5)}
    assert {column.column for column in other.columns} == {f"telecom{number}" for number in range(5)}


def test_linear_models_are_read_too() -> None:
    made = linear_trainer(outputs=3, attacks=[INVERSION], audit=False)
    made.fit(1)
    (found,) = made.column_readings("telecom")
    assert found.share > 0.5, "two of three numbers are known"


def unavailable(made: Trainer) -> str:
    made.fit(1)
    assert made.column_readings("telecom") == []
    return made.unavailable["telecom"]["score-inversion"]


def test_reasons_stand_in_the_place_of_figures() -> None:
    few = small_trainer(attacks=[ScoreInversionAttack(known_share=0.04)], audit=False)
    assert unavailable(few) == "needs 3 known records, and of 48 it knows 2"

    class Odd(Logistic):
        def scores(self, outputs: Tensor) -> Tensor:
            return super().scores(outputs) ** 2

    made = small_trainer(attacks=[INVERSION], audit=False)
    made.active.task = Binary(Odd())
    assert unavailable(made).startswith("needs scores that show outputs, and those of the logistic loss are others")
    made = small_trainer(attacks=[INVERSION], audit=False)
    data = made.passives["telecom"].data
    codes = torch.zeros(48, 1, dtype=torch.int64)
    made.passives["telecom"].data = replace(
        data, train=replace(data.train, columns=data.train.columns._replace(categorical=codes))
    )
    made._score_seats.read(0, made.training.log.monitor)
    assert "telecom has categories, and a model that looks them up" in made.unavailable["telecom"]["score-inversion"]


def test_over_a_network_nobody_has_the_whole_model() -> None:
    party = small_trainer(attacks=[]).active
    why = _unavailable(GenerativeRegressionAttack(), party, frozenset(), Split(), partner="telecom")
    assert why.startswith("needs the whole trained model, of which a party of a networked run has its own half alone")


TEXT = """
data: {name: breast-cancer}
parties:
  clinic: {role: active, columns: ["mean *"]}
  lab: {role: passive, columns: rest}
model: {name: mlp, bottom: [8], top_hidden: []}
train: {epochs: 1, batch_size: 64}
attacks: [{name: score-inversion, known_share: 0.1}]
audit: false
"""


def test_a_run_says_what_scores_tell_and_so_do_summary_and_report(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("run.yaml").write_text(TEXT)
    assert main(["train", "run.yaml", "--out", "run", "--explain"]) == 0
    said = " ".join(capsys.readouterr().out.split())
    (found,) = read_summary(Path("run")).parties["lab"].readings
    assert f"From scores and its own features, {found.attack} recovers {found.share:.0%} of the variance" in said
    assert "It knows the whole model and the features of 10% of the records" in said
    assert "(scores) from scores of predictions in place of messages" in said
    page = write_report([Path("run")], Path("page.html"), title="scores").read_text()
    assert "score-inversion" in page
    assert "feature_leak_of_scores/lab/score-inversion" in Path("run/metrics.jsonl").read_text()
    with pytest.raises(ConfigError, match="score-inversion is run by the training itself, when it has ended"):
        _listed([INVERSION])

"""Who was trained on, told from the finished model: an overfitted one, one that is not, and what is shown."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from splitvfl import Trainer
from splitvfl.attacks import CalibratedLossAttack, LossThresholdAttack
from splitvfl.cli import main
from splitvfl.hooks import View
from splitvfl.leakage.membership import FEWEST_OTHERS
from splitvfl.learning.tasks import task_for
from splitvfl.models.mlp import MLP
from splitvfl.party.party import ActiveParty, PassiveParty
from splitvfl.report.findings import membership_read
from splitvfl.report.report import write_report
from splitvfl.report.summary import read_summary
from tests.builders import generator, linear_trainer, party_data, same, seeded, small_trainer, weights

BOTH = [LossThresholdAttack(), CalibratedLossAttack(known_share=0.2)]


def by_heart(classes: int) -> Trainer:
    """Two hundred training records with labels that were drawn, and layers wide enough to learn them by heart."""
    data, task = party_data("bank", width=2, train=200, test=200), task_for("multiclass", classes)
    train, test = (
        replace(part, labels=torch.randint(classes, (200,), generator=generator("drawn", name)))
        for name, part in (("train", data.train), ("test", data.test))
    )
    bottom = seeded("bottom", lambda: MLP(8, [128, 32]))
    top = seeded("top", lambda: MLP(34, [64, classes], final_activation=False))

    def adam(parameters: Any) -> torch.optim.Optimizer:
        return torch.optim.Adam(parameters, lr=0.01)

    passive = PassiveParty(party_data("lab", width=8, train=200, test=200), bottom, optimizer=adam)
    active = ActiveParty(replace(data, train=train, test=test), top, task=task, optimizer=adam)
    made = Trainer(active, {"lab": passive}, batch_size=50, attacks=BOTH, audit=False, evaluate_every=60)
    made.fit(60)
    return made


def test_labels_that_were_learned_by_heart_tell_who_was_trained_on() -> None:
    """Of other records' labels one in ten is hit."""
    plain, calibrated = by_heart(10).membership
    assert (plain.attack, plain.members, plain.others, plain.known) == ("loss-threshold", 200, 200, 0)
    assert (calibrated.members, calibrated.others, calibrated.known) == (160, 160, 80)
    assert plain.auc > 0.95
    assert calibrated.auc > 0.95
    assert plain.hits is None, "two hundred others are too few"


def test_of_coins_half_are_hit_for_others_too_and_less_is_read() -> None:
    plain, _ = by_heart(2).membership
    assert 0.75 < plain.auc < 0.95


def test_of_a_model_that_has_learned_nothing_nothing_is_read() -> None:
    made = small_trainer(sizes={"train": 300, "test": 300}, attacks=BOTH, audit=False)
    assert made.membership == []
    made._membership_seat.read(0, made.training.log.monitor)
    assert [one.blind for one in made.membership] == [True, True]


class Look:
    """Keeps its view, and answers zeros."""

    name, target, known_share = "look", "members", 0.25
    needs = frozenset({"losses", "received_activation", "known_members", "known_others"})

    def __init__(self, kept: list[View]) -> None:
        self.kept = kept

    def __deepcopy__(self, memo: Any) -> Look:
        return self

    def __call__(self, view: View, /) -> Tensor:
        view.tensors()
        self.kept.append(view)
        return torch.zeros(len(view.ids))


@pytest.mark.parametrize("task", ["binary", "multiclass", "regression"])
def test_losses_and_activations_are_those_of_the_finished_model(task: str) -> None:
    """Their sums over all records are what the run itself evaluates; where a record stands says nothing of it."""
    kept: list[View] = []
    made = small_trainer(
        ("lab", "telecom"), task=task, sizes={"train": 80, "test": 60}, attacks=[Look(kept)], audit=False
    )
    made.fit(2)
    (view,) = kept
    assert view.fields == tuple(sorted(Look.needs))
    assert view.ids.tolist() == list(range(140))
    assert (len(view.known_members), len(view.known_others)) == (20, 15)
    both, expected = [], []
    for part in ("train", "test"):
        sent = [party.bottom(getattr(party.data, part).columns.numeric) for party in made.passives.values()]
        records = getattr(made.active.data, part)
        outputs = made.active.top(torch.cat([*sent, records.columns.numeric], dim=1))
        expected.append(made.active.task.loss(outputs, records.labels).item() * records.count)
        both.append(torch.cat(sent, dim=1).detach())
    assert view.losses.sum().item() == pytest.approx(sum(expected), rel=1e-4)
    together = torch.cat(both)
    torch.testing.assert_close(view.received_activation.sum(dim=0), together.sum(dim=0), rtol=1e-4, atol=1e-4)
    distances = torch.cdist(view.received_activation[view.known_members], both[0])
    assert distances.amin(dim=1).max() < 1e-3
    assert made.membership[0].auc == 0.5


def test_who_looks_changes_nothing() -> None:
    watched, alone = (
        small_trainer(attacks=attacks, dropout=0.5, sizes={"train": 60, "test": 60}) for attacks in (BOTH, [])
    )
    for made in (watched, alone):
        made.fit(2)
    assert same(weights(watched), weights(alone))
    assert alone.membership == []
    assert len(watched.membership) == 2


def test_too_few_records_are_no_figure() -> None:
    made = linear_trainer(attacks=[CalibratedLossAttack(known_share=0.5)], audit=False)
    made.fit(1)
    assert made.membership == []
    assert (
        "needs 20 training and 20 test records that it is judged by, and has 24 and 12"
        in (made.unavailable["telecom"]["calibrated-loss"])
    )


TEXT = """
data: {name: breast-cancer}
parties:
  clinic: {role: active, columns: ["mean *"]}
  lab: {role: passive, columns: rest}
model: {name: mlp, bottom: [8], top_hidden: []}
train: {epochs: 1, batch_size: 64}
attacks: [loss-threshold]
audit: false
"""


def test_terminal_summary_and_report_say_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("run.yaml").write_text(TEXT)
    assert main(["train", "run.yaml", "--out", "run"]) == 0
    (found,) = read_summary(Path("run")).membership
    said = " ".join(capsys.readouterr().out.split())
    assert f"separates training from test records by the finished model with an AUC of {found.auc:.2f} (95 % CI" in said
    assert (found.members, found.others) == (440, 129)
    assert f"the hits at 1 % false alarms need at least {FEWEST_OTHERS} test records." in said
    page = write_report([Path("run")], Path("page.html"), title="members").read_text()
    assert "Membership: records used in training" in page
    assert "</td><td>–</td><td>440</td><td>129</td>" in page
    metrics = Path("run/metrics.jsonl").read_text()
    assert "membership/auc/loss-threshold" in metrics
    assert "membership/hits" not in metrics


def test_of_test_records_enough_it_is_said_how_many_are_found() -> None:
    made = small_trainer(sizes={"train": 60, "test": 450}, attacks=BOTH[:1], audit=False)
    made.fit(1)
    (found,) = made.membership
    assert found.hits is not None
    (said,) = membership_read(SimpleNamespace(membership=[found]))  # type: ignore[arg-type]
    assert f": it finds {found.hits:.1%} of 60 at 1 % false alarms (95 % CI {found.hits_low:.1%} to " in said

"""Attacks in the label party's seat at every step of a run: what they read, and what they change, which is nothing."""

from __future__ import annotations

import copy
import json
import stat
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from splitvfl import Trainer
from splitvfl.attacks import (
    InverseNetworkAttack,
    PseudoClientAttack,
    RidgeAttack,
    StackedRidgeAttack,
    UnSplitAttack,
    WhiteBoxInversionAttack,
)
from splitvfl.cli import main
from splitvfl.data.columns import Columns, Records
from splitvfl.defenses import GaussianIR
from splitvfl.errors import HookError
from splitvfl.exchange.evaluation import EvaluationPlan, passive_evaluation
from splitvfl.exchange.oracle import Oracle
from splitvfl.exchange.prediction import passive_prediction
from splitvfl.exchange.split import Split
from splitvfl.hooks import At
from splitvfl.leakage.shown_records import SHOWN_FILE, read_shown
from splitvfl.leakage.watching import Watch
from splitvfl.learning.batches import Batches
from splitvfl.learning.schedule import EarlyStopping
from splitvfl.party.party import ActiveParty, PassiveParty
from splitvfl.report.findings import columns_read
from splitvfl.report.party_result import PartyResult
from splitvfl.report.summary import read_summary
from splitvfl.run.column_seats import read_own_columns
from tests.builders import linear_trainer, party_data, same, seeded, small_trainer, top_model, weights
from tests.report.test_report import run as report_run

RIDGE = RidgeAttack(known_share=0.3)


def trainer(width: int = 5, **settings: Any) -> Trainer:
    """A linear bottom model, from five columns to so many outputs."""
    bottom = seeded("bottom", lambda: nn.Linear(5, width))
    passive = PassiveParty(party_data("telecom", width=5, train=400), bottom)
    top = seeded("top", lambda: nn.Linear(width + 2, 1))
    active = ActiveParty(party_data("bank", width=2, task="binary", train=400), top)
    options = {"batch_size": 50, "attacks": [RIDGE], "audit": False, **settings}
    return Trainer(active, {"telecom": passive}, **options)


def reading(made: Trainer) -> Any:
    (found,) = made.column_readings("telecom")
    return found


def test_of_a_linear_bottom_as_wide_as_its_columns_everything_is_read() -> None:
    made = trainer()
    made.fit(2)
    found = reading(made)
    assert found.share > 0.99
    assert found.told == 5
    assert found.without_messages < 0.6, "the label party's own two columns share a factor with them"


def test_a_narrower_cut_tells_less_and_noise_less_again() -> None:
    shares = []
    for width, defenses in ((5, []), (2, []), (2, [GaussianIR(clip=1.0, sigma=2.0)])):
        made = trainer(width, defenses=defenses)
        made.fit(2)
        shares.append(reading(made).share)
    assert shares[0] > shares[1] + 0.2 > shares[2] + 0.4


@pytest.mark.parametrize("in_flight", [0, 1])
def test_who_looks_changes_nothing(in_flight: int) -> None:
    watched, alone = (trainer(exchange=Split(in_flight=in_flight), **more) for more in ({}, {"attacks": []}))
    for made in (watched, alone):
        made.fit(2)
    assert same(weights(watched), weights(alone))
    assert alone.column_readings("telecom") == []
    assert not alone.passives["telecom"].sent_to
    # Of all steps but those still under way each message was seen: 400 records in 8 batches.
    assert reading(watched).records == 400 - round(0.3 * 400)


class Spoiling:
    """A label party that sends a large gradient, the same for all records, from a step on: no unit of the bottom lives.

    Only what it sends is changed, and its own half learns as it would.
    """

    protects = "gradient"

    def __init__(self, *, first: int) -> None:
        self.first, self.steps = first, 0

    def __call__(self, gradient: Any, secrets: Any, /) -> Any:
        self.steps += 1
        return gradient if self.steps <= self.first else torch.full_like(gradient, 10.0)

    def state_dict(self) -> dict[str, Any]:
        return {"steps": self.steps}

    def load_state_dict(self, state: dict[str, Any], /) -> None:
        self.steps = state["steps"]


def steered(*, first: int, **settings: Any) -> Trainer:
    def sgd(weights: Any) -> Any:
        return torch.optim.SGD(weights, lr=0.05)

    bottom = seeded("bottom", lambda: nn.Sequential(nn.Linear(5, 16), nn.ReLU(), nn.Linear(16, 4), nn.ReLU()))
    passive = PassiveParty(party_data("telecom", width=5, train=400), bottom, optimizer=sgd)
    data = party_data("bank", width=2, task="binary", train=400)
    active = ActiveParty(data, seeded("top", lambda: nn.Linear(6, 1)), optimizer=sgd)
    options = {"batch_size": 50, "attacks": [RIDGE], "audit": False, "defenses": [Spoiling(first=first)], **settings}
    return Trainer(active, {"telecom": passive}, **options)


def test_a_label_party_that_spoils_the_model_at_the_end_does_not_take_back_what_was_read() -> None:
    honest, evil = steered(first=99), steered(first=24)
    for made in (honest, evil):
        made.fit(4)
    found = reading(evil)
    assert found.share < 0.05, "the attack: of the last epoch nothing is read any more"
    assert found.evaluation.share < 0.05
    assert found.most == found.worst > 0.2
    assert found.worst_epoch == 3
    assert found.told == 0
    assert found.most_told >= 1
    assert found.columns[0].most > 0.5 > 10 * found.columns[0].share
    assert found.most > 0.75 * reading(honest).most, "of which it saw one epoch less"
    (said,) = columns_read(evil_summary(found))
    assert f"From what telecom sent in epoch 3, ridge recovers {found.worst:.0%} of the variance" in said
    assert f"In the last epoch it recovers {found.share:.0%} only" in said


def evil_summary(found: Any) -> Any:
    return report_run(parties={"telecom": PartyResult({}, readings=[found])})


def test_the_worst_epoch_is_that_of_runs_which_ended_earlier() -> None:
    alone = []
    for epochs in (1, 2, 3, 4):
        made = steered(first=24)
        made.fit(epochs)
        alone.append(reading(made))
    shares = [one.share for one in alone]
    assert alone[-1].worst == max(shares)
    assert alone[-1].worst_epoch == 1 + shares.index(max(shares))
    by_column = [{column.column: column.share for column in one.columns} for one in alone]
    for column in alone[-1].columns:
        assert column.worst == max(one[column.column] for one in by_column)
        assert column.most == max(column.worst, column.accumulated)


def test_a_resumed_run_remembers_its_worst_epoch(tmp_path: Path) -> None:
    straight = steered(first=16)
    straight.fit(5)
    first = steered(first=16, log_dir=tmp_path / "resumed")
    first.fit(3)
    second = steered(first=16, log_dir=tmp_path / "resumed")
    second.resume()
    second.fit(5)
    assert reading(second) == reading(straight)
    assert reading(second).worst_epoch == 2
    older = second.watch.state_dict()
    older["readers"]["telecom"]["ridge"].pop("worst")  # as an older version wrote it
    third = steered(first=16)
    third.watch.load_state_dict(older)
    assert reading(third).worst == reading(third).share
    assert reading(third).worst_epoch is None


def test_an_epoch_under_way_counts_from_its_half_on() -> None:
    """Who leaves before it ends shows nothing better than who stays; of few records much is read by chance."""
    party = trainer().passives["telecom"]
    watch, batches = Watch(["telecom"]), Batches(400, 50, seed=0)
    read_own_columns(party, [RIDGE], watch, active="bank", exchange=Split(), batches=batches, seed=0)
    (reader,) = watch.readers["telecom"].values()

    def sent(step: int, rows: Any, *, clear: bool) -> None:
        batch = party.train_batch(rows)
        message = party.activate(batch).detach()
        party.send_to_watchers(message if clear else torch.zeros_like(message), batch, step)

    for step, rows in enumerate(batches.epoch(0)):
        sent(step, rows, clear=False)
    reader.scalars("telecom", epoch_ends=True)
    assert reader.reading().most < 0.02
    judged = 0
    for step, rows in enumerate(batches.epoch(1)):
        sent(8 + step, rows, clear=True)
        found, judged = reader.reading(), judged + int((~torch.isin(rows, reader.known)).sum())
        assert (found.worst > 0.5) == (found.worst_epoch == 2) == (2 * judged >= 280)
        assert found.share < 0.02, "the last that has ended"


def test_a_resumed_run_reads_what_an_undisturbed_one_reads(tmp_path: Path) -> None:
    straight = trainer(log_dir=tmp_path / "straight")
    straight.fit(3)
    first = trainer(log_dir=tmp_path / "resumed")
    first.fit(2)
    second = trainer(log_dir=tmp_path / "resumed")
    second.resume()
    second.fit(3)
    assert reading(second) == reading(straight)
    lines = [json.loads(line) for line in (tmp_path / "straight" / "metrics.jsonl").read_text().splitlines()]
    assert lines[-1]["feature_leak/telecom/ridge"] > 0.9
    assert lines[-1]["feature_leak_accumulated/telecom/ridge"] > 0.9
    assert lines[-1]["feature_leak_evaluation/telecom/ridge"] > 0.9
    resumed = (tmp_path / "resumed" / "metrics.jsonl").read_text()
    assert resumed == (tmp_path / "straight" / "metrics.jsonl").read_text()


@pytest.mark.slow(reason="six readers in four epochs")
def test_what_other_readers_remember_goes_on_in_a_resumed_run(tmp_path: Path) -> None:
    attacks = [
        InverseNetworkAttack(known_share=0.3),
        StackedRidgeAttack(known_share=0.3),
        WhiteBoxInversionAttack(known_share=0.3, records=3, steps=3),
        PseudoClientAttack(known_share=0.3, steps=2),
        PseudoClientAttack(known_share=0.3, steps=2, loss="adversary"),
        UnSplitAttack(records=3, rounds=2, steps=2),
    ]
    straight = trainer(3, attacks=attacks, log_dir=tmp_path / "straight")
    straight.fit(2)
    first = trainer(3, attacks=attacks, log_dir=tmp_path / "resumed")
    first.fit(1)
    second = trainer(3, attacks=attacks, log_dir=tmp_path / "resumed")
    second.resume()
    second.fit(2)
    assert second.column_readings("telecom") == straight.column_readings("telecom")
    assert len(straight.column_readings("telecom")) == 6


def test_reasons_stand_in_the_place_of_figures() -> None:
    made = linear_trainer(exchange=Oracle(), attacks=[RIDGE], audit=False)
    assert made.column_readings("telecom") == []
    assert (
        "exchange oracle the label party does not receive each record's activation"
        in made.unavailable["telecom"]["ridge"]
    )
    without = trainer()
    assert "ridge" not in without.unavailable["telecom"]


def test_an_attack_that_was_never_judged_says_why() -> None:
    made = trainer(attacks=[RidgeAttack(known_share=0.004)])
    made.fit(1)
    assert made.column_readings("telecom") == []
    assert (
        "never judged by what was sent in training: 8 of 8 messages had fewer than 3"
        in made.unavailable["telecom"]["ridge"]
    )


def test_where_no_message_of_training_can_be_judged_evaluations_stand_alone() -> None:
    """Two records are too few to know three of them; what is remembered of all messages reads evaluations."""
    made = trainer(batch_size=2)
    made.fit(1)
    found = reading(made)
    assert found.evaluation_only
    assert (found.share, [replace(one, without=None) for one in found.columns]) == (
        found.evaluation.share,
        found.evaluation.columns,
    )
    assert found.most == found.share > 0.8
    assert (found.worst, found.accumulated, found.followed) == (None, None, 0)
    assert made.unavailable["telecom"]["ridge"].startswith("never judged by what was sent in training: 200 of 200")


def test_what_is_held_out_is_not_known() -> None:
    """No message brings it."""
    made = trainer(early_stopping=EarlyStopping(patience=9, validation_every=4))
    made.fit(1)
    (reader,) = made.watch.readers["telecom"].values()
    assert len(reader.known) == 90
    assert not set(reader.known.tolist()) & set(range(3, 400, 4))
    assert reading(made).followed == 210


def test_a_party_without_numbers_is_not_read() -> None:
    data = party_data("telecom", width=5, train=48)
    train, test = (
        Records(part.ids, Columns(part.columns.numeric[:, :0], torch.zeros(part.count, 1, dtype=torch.int64)))
        for part in (data.train, data.test)
    )
    bare = replace(data, numeric_names=(), field_sizes=(2,), field_names=("telecom0",), train=train, test=test)
    passive = PassiveParty(bare, Embedded())
    active = ActiveParty(party_data("bank", width=2, task="binary"), top_model())
    made = Trainer(active, {"telecom": passive}, batch_size=16, attacks=[RIDGE], audit=False)
    assert "telecom has no columns of numbers" in made.unavailable["telecom"]["ridge"]


def test_of_categories_no_bottom_is_turned_round() -> None:
    data = party_data("telecom", width=5, train=48)
    train, test = (
        replace(part, columns=Columns(part.columns.numeric, torch.zeros(part.count, 1, dtype=torch.int64)))
        for part in (data.train, data.test)
    )
    mixed = replace(data, field_sizes=(2,), field_names=("region",), train=train, test=test)
    active = ActiveParty(party_data("bank", width=2, task="binary"), top_model())
    attacks = [RIDGE, WhiteBoxInversionAttack(), UnSplitAttack()]
    parties = {"telecom": PassiveParty(mixed, Embedded())}
    made = Trainer(active, parties, batch_size=16, attacks=attacks, audit=False)
    why = "telecom has categories, and a bottom model that looks them up has no gradient to go back by"
    assert made.unavailable["telecom"] == {"white-box-inversion": why, "unsplit": why}


def test_a_bottom_without_a_gradient_is_named_as_the_reason() -> None:
    class Rounding(nn.Linear):
        def forward(self, columns: Any) -> Any:
            return super().forward(columns.detach().round())

    passive = PassiveParty(party_data("telecom", width=5, train=400), seeded("bottom", lambda: Rounding(5, 5)))
    active = ActiveParty(party_data("bank", width=2, task="binary", train=400), seeded("top", lambda: nn.Linear(7, 1)))
    attacks = [WhiteBoxInversionAttack(known_share=0.3)]
    made = Trainer(active, {"telecom": passive}, batch_size=50, attacks=attacks, audit=False)
    made.fit(1)
    assert made.column_readings("telecom") == []
    assert "passes no gradient on to the partner's columns" in made.unavailable["telecom"]["white-box-inversion"]


class Copying:
    """Says that a record's columns are zero, and keeps the models that it is shown."""

    target = "features"
    needs = frozenset({"received_activation", "auxiliary", "partner_bottom"})
    known_share = 0.3

    def __init__(self, kept: list[Any]) -> None:
        self.kept = kept

    def __deepcopy__(self, memo: Any) -> Copying:
        return Copying(self.kept)

    def __call__(self, view: Any, /) -> Any:
        self.kept.append((view.partner_bottom, view.auxiliary))
        return torch.zeros(len(view.ids), 5)


def test_who_knows_the_bottom_gets_a_copy_of_it_as_it_was_at_the_step() -> None:
    kept: list[Any] = []
    made = trainer(attacks=[Copying(kept)])
    made.fit(2)
    assert len(kept) == 18
    del kept[8::9]  # of evaluations, for which known records are remembered
    for bottom, known in kept:
        torch.testing.assert_close(bottom(known.columns), known.activation)
    bottom = made.passives["telecom"].bottom
    assert all(copied is not bottom for copied, _ in kept)
    with torch.no_grad():
        kept[-1][0].weight.zero_()
    assert bool(bottom.weight.any())
    assert not torch.equal(kept[0][0].weight, kept[1][0].weight), "it is trained"


class Cloning(Copying):
    """Keeps the architecture that it is shown."""

    needs = frozenset({"received_activation", "auxiliary", "partner_architecture"})

    def __deepcopy__(self, memo: Any) -> Cloning:
        return Cloning(self.kept)

    def __call__(self, view: Any, /) -> Any:
        self.kept.append(view.partner_architecture)
        return torch.zeros(len(view.ids), 5)


def test_who_knows_the_architecture_gets_the_same_weights_at_every_step_and_none_of_the_partners() -> None:
    kept: list[Any] = []
    made = trainer(attacks=[Cloning(kept)])
    own = made.passives["telecom"].bottom
    first = own.weight.detach().clone()
    made.fit(2)
    assert len(kept) == 18, "16 messages of training, and 2 that are evaluated"
    assert all(torch.equal(one.weight, kept[0].weight) for one in kept)
    for weight in (first, own.weight):
        assert not bool(torch.isin(kept[0].weight, weight).any())
    assert not made.column_readings("telecom")[0].knows_model


class Losing(Copying):
    """Keeps what the label party would lose by what was sent of known records, and by nothing being sent of them."""

    needs = frozenset({"received_activation", "auxiliary", "top"})

    def __deepcopy__(self, memo: Any) -> Losing:
        return Losing(self.kept)

    def __call__(self, view: Any, /) -> Any:
        told = view.auxiliary
        self.kept.append((told.ids, told.activation, view.top(told.activation), view.step))
        return torch.zeros(len(view.ids), 5)


def test_the_label_partys_own_top_is_shown_as_it_is_with_its_columns_and_labels_of_known_records() -> None:
    kept: list[Any] = []
    made = trainer(attacks=[Losing(kept)])
    active, before = made.active, copy.deepcopy(made.active.top)
    made.fit(1)
    ids, activation, loss, step = kept[0]
    assert step == 0
    own = [active.data.train.ids.tolist().index(one) for one in ids.tolist()]
    rows = active.data.train.rows(torch.tensor(own))
    outputs = before(torch.cat([activation, rows.columns.numeric], dim=1))[:, 0]
    assert rows.labels is not None
    expected = nn.functional.binary_cross_entropy_with_logits(outputs, rows.labels.to(outputs.dtype))
    torch.testing.assert_close(loss, expected)
    assert len({round(float(one[2]), 6) for one in kept}) == len(kept), "it is trained"


def test_where_nobody_can_show_the_top_that_is_the_reason() -> None:
    attack = PseudoClientAttack(known_share=0.3, top_weight=0.1)
    party = small_trainer(attacks=[]).passives["telecom"]
    watch, batches = Watch(["telecom"]), Batches(48, 16, seed=0)
    read_own_columns(party, [attack], watch, active="bank", exchange=Split(), batches=batches, seed=0)
    why = "telecom holds neither the label party's half of the model nor labels"
    assert watch.unavailable["telecom"] == {"pseudo-client": why}
    parties = {
        name: PassiveParty(party_data(name, width=3, train=48), seeded("bottom", lambda: nn.Linear(3, 2)))
        for name in ("telecom", "lab")
    }
    active = ActiveParty(party_data("bank", width=2, task="binary", train=48), nn.Linear(6, 1))
    made = Trainer(active, parties, batch_size=16, attacks=[attack], audit=False)
    assert "the top model takes what other parties send too" in made.unavailable["lab"]["pseudo-client"]


def test_who_asks_the_top_changes_nothing() -> None:
    asked = trainer(3, attacks=[PseudoClientAttack(known_share=0.3, steps=2, top_weight=0.1)])
    alone = trainer(3, attacks=[])
    for made in (asked, alone):
        made.fit(1)
    assert same(weights(asked), weights(alone))
    assert asked.column_readings("telecom")


def test_who_knows_the_bottom_reads_more_and_changes_nothing() -> None:
    known = trainer(3, attacks=[RIDGE, WhiteBoxInversionAttack(known_share=0.3, records=5)])
    alone = trainer(3, attacks=[])
    for made in (known, alone):
        made.fit(2)
    assert same(weights(known), weights(alone))
    linear, inverted = known.column_readings("telecom")
    assert inverted.records == 8 * 5
    # Behind a linear bottom both are linear maps, and know the noise, of which there is none.
    assert inverted.share == pytest.approx(linear.share, abs=0.15)
    assert inverted.share > 0.5


def test_records_of_evaluations_and_predictions_are_read_by_what_was_learned_in_training() -> None:
    made = trainer(3)
    made.fit(2)
    found = reading(made)
    assert found.evaluation.records == made.active.data.test.count
    assert found.evaluation.share == pytest.approx(found.share, abs=0.15)
    assert found.prediction is None
    made.predict()
    # The same records behind the same weights: what it was asked in the evaluation.
    assert reading(made) == replace(found, prediction=found.evaluation)
    made.predict(part="train")
    (reader,) = made.watch.readers["telecom"].values()
    again = reading(made)
    assert again.prediction.records == 400 - len(reader.known)
    assert replace(again, prediction=None) == found
    # A wide cut tells everything of them too, and noise in evaluations alone tells less of those.
    made = trainer(5, defenses=[At(GaussianIR(clip=1.0, sigma=3.0), "evaluation")])
    made.fit(2)
    assert reading(made).share > 0.99
    assert reading(made).evaluation.share < 0.3
    made.predict()
    assert reading(made).prediction.share > 0.97  # known records were sent by models of up to eight steps before


class Drawing(RidgeAttack):
    def __call__(self, view: Any, /) -> Any:
        return super().__call__(view) + 0.1 * torch.randn(len(view.ids), 1)


@pytest.mark.parametrize("attack", [InverseNetworkAttack, StackedRidgeAttack, Drawing])
def test_other_readers_read_evaluations_too_and_remember_nothing_of_them(attack: Any) -> None:
    often, seldom = (trainer(5, attacks=[attack(known_share=0.3)], evaluate_every=every) for every in (1, 2))
    for made in (often, seldom):
        made.fit(2)
    assert replace(reading(often), evaluation=None) == replace(reading(seldom), evaluation=None)
    assert reading(often).evaluation == reading(seldom).evaluation
    assert reading(often).evaluation.share > 0.8


class Hiding:
    """Masks that hide a part."""

    def masked(self, part: Any, **purpose: Any) -> Any:
        return part + 1_000


@pytest.mark.parametrize("masks", [None, Hiding()])
def test_what_is_sent_in_clear_is_shown_and_what_is_under_masks_is_not(masks: Any) -> None:
    party = trainer().passives["telecom"]
    seen: list[Any] = []
    party.sent_to, party.masks = [seen.append], masks
    plan = EvaluationPlan(validation=range(0, 20, 2), test=party.data.test.count, rows=7)
    half = passive_evaluation(party, plan, step=9, epoch=1, active="bank")
    sent = [next(half).send[0].payload for _ in plan.batches(party)]
    half.close()
    next(passive_prediction(party, party.test_batch(torch.arange(3)), 0, active="bank", outputs=1))
    if masks is not None:
        assert not seen
        return
    *evaluated, predicted = seen
    assert all(torch.equal(one.message, message) for one, message in zip(evaluated, sent, strict=True))
    assert [(one.phase, one.step, one.piece) for one in evaluated] == [("evaluation", 9, n) for n in range(len(sent))]
    assert (predicted.phase, predicted.step, predicted.piece) == ("prediction", 0, 0)


def test_dummies_are_in_no_figure_of_an_evaluation() -> None:
    made = trainer()
    test = made.active.data.test
    real = torch.arange(test.count) % 3 > 0
    made.active.data = replace(made.active.data, test=replace(test, real=real))
    again = Trainer(made.active, made.passives, batch_size=50, attacks=[RIDGE], audit=False)
    again.fit(1)
    assert reading(again).evaluation.records == int(real.sum())


class Embedded(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(2, 4)

    def forward(self, columns: Any) -> Any:
        return self.table(columns.categorical[:, 0])


TEXT = """
data: {name: breast-cancer}
parties:
  clinic: {role: active, columns: ["mean *"]}
  lab: {role: passive, columns: rest}
model: {name: mlp, bottom: [8], top_hidden: []}
train: {epochs: 2, batch_size: 64}
attacks: [{name: ridge, known_share: 0.3}]
audit: false
"""


def test_a_run_says_what_the_label_party_reads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("run.yaml").write_text(TEXT)
    assert main(["train", "run.yaml", "--out", "run"]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "From what lab sent in the last epoch, " in said or "lab sent over the run" in said
    assert "It knows the features of 30% of the records" in said
    summary = read_summary(Path("run"))
    (found,) = summary.parties["lab"].readings
    assert found.attack == "ridge"
    assert len(found.columns) == 20
    assert 0.0 < found.share < 1.0
    assert columns_read(summary)[0] in " ".join(said.split())


def test_an_attack_that_fails_ends_no_run_of_a_party_that_reads_itself_and_says_why() -> None:
    class Failing:
        name = "failing"
        target = "features"
        needs = frozenset({"received_activation"})

        def __call__(self, view: Any, /) -> Any:
            if view.step == 2:
                raise ValueError("singular")
            return torch.zeros(len(view.ids), 5)

    party = small_trainer(attacks=[]).passives["telecom"]
    watch, batches = Watch(["telecom"]), Batches(48, 16, seed=0)
    read_own_columns(party, [Failing()], watch, active="bank", exchange=Split(), batches=batches, seed=0)
    for step, rows in enumerate(batches.epoch(0)):
        batch = party.train_batch(rows)
        party.send_to_watchers(torch.zeros(16, 4), batch, step)
    assert "failed at step 2" in watch.unavailable["telecom"]["failing"]
    assert "singular" in watch.unavailable["telecom"]["failing"]
    reader = watch.readers["telecom"]["failing"]
    assert reader.reading() is not None  # of the steps before
    resumed = Watch(["telecom"])
    read_own_columns(party, [Failing()], resumed, active="bank", exchange=Split(), batches=batches, seed=0)
    resumed.load_state_dict(watch.state_dict())
    assert resumed.unavailable == watch.unavailable
    with pytest.raises(HookError, match="singular"):
        small_trainer(attacks=[Failing()]).fit(1)


def test_what_an_attack_draws_changes_nothing_that_it_watches() -> None:
    class Drawing(RidgeAttack):
        def __call__(self, view: Any, /) -> Any:
            return super().__call__(view) + 0.0 * torch.randn(1)

    alone, watched = (small_trainer(attacks=attacks, dropout=0.5) for attacks in ([], [Drawing(known_share=0.3)]))
    for one in (alone, watched):
        one.fit(2)
    assert watched.column_readings("telecom")
    assert same(weights(alone), weights(watched))


def test_a_run_goes_on_whatever_readers_its_checkpoint_is_of() -> None:
    """Who is in it goes on; who is not, or keeps something else by now, begins anew, and who is gone is gone."""
    party, batches = small_trainer(attacks=[]).passives["telecom"], Batches(48, 16, seed=0)

    def watched(*attacks: Any) -> Watch:
        found = Watch(["telecom"])
        read_own_columns(party, attacks, found, active="bank", exchange=Split(), batches=batches, seed=0)
        return found

    before = watched(RidgeAttack(known_share=0.3), InverseNetworkAttack(known_share=0.3))
    for step, rows in enumerate(batches.epoch(0)):
        batch = party.train_batch(rows)
        party.send_to_watchers(party.activate(batch).detach(), batch, step)
    party.sent_to.clear()
    state = before.state_dict()
    state["readers"]["telecom"]["inverse-network"].pop("sums")
    after = watched(RidgeAttack(known_share=0.3), InverseNetworkAttack(known_share=0.3), StackedRidgeAttack())
    assert after.take_up_readers(state) == ["inverse-network", "stacked-ridge"]
    readers = after.readers["telecom"]
    assert readers["ridge"].reading() == before.readers["telecom"]["ridge"].reading()
    assert readers["inverse-network"].reading() is None
    assert watched().take_up_readers(state) == []


def with_categories(width: int = 2, **settings: Any) -> Trainer:
    """A partner with numbers, a field of three categories that is sent in clear, and one that is not sent."""
    data = party_data("telecom", width=width, train=400)
    random = torch.Generator().manual_seed(9)

    def mixed(part: Records) -> Records:
        codes = torch.stack([torch.multinomial(torch.tensor(share), part.count, replacement=True, generator=random)
                             for share in ([0.5, 0.3, 0.2], [0.6, 0.4])], dim=1)  # fmt: skip
        return replace(part, columns=Columns(part.columns.numeric, codes))

    fields = {"field_sizes": (3, 2), "field_names": ("region", "hidden")}
    whole = replace(data, train=mixed(data.train), test=mixed(data.test), **fields)
    active = ActiveParty(
        party_data("bank", width=2, task="binary", train=400), seeded("top", lambda: nn.Linear(5 + width, 1))
    )
    options = {"batch_size": 50, "attacks": [RIDGE], "audit": False, **settings}
    return Trainer(active, {"telecom": PassiveParty(whole, OneField(width))}, **options)


class OneField(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.table = seeded("table", lambda: nn.Embedding(3, 3))
        self.linear = seeded("linear", lambda: nn.Linear(width, width)) if width else nn.Identity()

    def forward(self, columns: Columns) -> Any:
        numeric, codes = columns
        return torch.cat([self.table(codes[:, 0]), self.linear(numeric)], dim=1)


def test_categories_are_read_beside_numbers_and_who_looks_changes_nothing() -> None:
    watched, alone = (with_categories(**more) for more in ({}, {"attacks": []}))
    for made in (watched, alone):
        made.fit(2)
    assert same(weights(watched), weights(alone))
    found = {one.column: one for one in reading(watched).columns}
    assert set(found) == {"telecom0", "telecom1", "region", "hidden"}
    assert found["region"].right == 1.0
    assert found["region"].commonest == pytest.approx(0.5, abs=0.1)
    # Two standard deviations of 280 records; who knows nothing may well answer less often right than the commonest.
    assert found["hidden"].right < found["hidden"].commonest + 0.06
    assert reading(watched).share == pytest.approx(sum(one.share for one in found.values()) / 4)
    # Of fields alone too: of the label party's own columns, which share nothing with them, ridge tells nothing.
    bare = with_categories(width=0)
    bare.fit(1)
    assert {one.column for one in reading(bare).columns} == {"region", "hidden"}
    assert reading(bare).without_messages < 0.1


def test_records_are_kept_and_shown_only_where_it_is_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("run.yaml").write_text(TEXT)
    assert main(["train", "run.yaml", "--out", "silent"]) == 0
    assert not Path("silent", SHOWN_FILE).exists()
    assert main(["report", "silent", "--show-records"]) == 2
    assert "a run keeps them whose file says keep_records: true" in " ".join(capsys.readouterr().err.split())
    assert main(["train", "run.yaml", "--out", "kept", "keep_records=true"]) == 0
    (shown,) = read_shown(Path("kept"))
    assert (shown.party, shown.attack) == ("lab", "ridge")
    summary = read_summary(Path("kept"))
    assert replace(summary, provenance=None, step_ms=0.0) == replace(
        read_summary(Path("silent")), provenance=None, step_ms=0.0
    )
    (found,) = summary.parties["lab"].readings
    most = sorted(found.columns, key=lambda one: -(one.accumulated or 0.0))[:3]
    assert [one.column for one in shown.columns] == [one.column for one in most]
    assert {len(one.true) for one in shown.columns} == {50}
    for extra, there in (([], False), (["--show-records"], True)):
        assert main(["report", "kept", "--out", "page.html", *extra]) == 0
        page = Path("page.html")
        assert ("This figure shows values of 50 records for each feature" in page.read_text("utf-8")) == there
    assert stat.S_IMODE(page.stat().st_mode) == 0o600
    # A new run in the same folder that does not ask for it takes them away.
    assert main(["train", "run.yaml", "--out", "kept", "--overwrite"]) == 0
    assert not Path("kept", SHOWN_FILE).exists()

"""What a partner has learned of labels in general, and which attack shows, without canaries, that single ones leak."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.metrics import roc_auc_score
from torch import Tensor, nn

from splitvfl.app.trainer import Trainer
from splitvfl.attacks import ComponentAttack, DirectionAttack, LabelsAndFeaturesAttack, NormAttack
from splitvfl.data.columns import Columns, PartyData, Records
from splitvfl.defenses import AsymmetricResponse, Isotropic
from splitvfl.errors import ArgumentError
from splitvfl.leakage import in_general, message_models
from splitvfl.leakage.in_general import InGeneral, KnowledgeGain, LabelFreeAttack, labels_in_general
from splitvfl.leakage.label_ratios import Messages
from splitvfl.leakage.message_models import taught_by_messages
from splitvfl.leakage.paired_aucs import judged
from splitvfl.leakage.partner_features import PartnerFeatures
from splitvfl.leakage.run_audit import BinaryHistory
from splitvfl.leakage.watching import Watch
from splitvfl.learning.tasks import task_for
from splitvfl.metrics import macro_auc
from splitvfl.models.linear import LinearTop
from splitvfl.party.party import ActiveParty, PassiveParty
from tests.builders import seeded

WIDTH = 5


def party(name: str, columns: Tensor, labels: Tensor | None = None) -> PartyData:
    names = tuple(f"{name}{number}" for number in range(columns.shape[1]))
    halves = [
        Records(
            torch.arange(first, first + len(part)),
            Columns.of(part),
            None if labels is None else labels[first : first + len(part)],
        )
        for first, part in ((0, columns[:-40]), (len(columns) - 40, columns[-40:]))
    ]
    return PartyData(name, names, names, (), *halves)


def world(task: str, records: int, *, seed: int = 0) -> tuple[Tensor, Tensor]:
    """The partner's columns, whose largest component says nothing of the labels, and the labels."""
    source = torch.Generator().manual_seed(seed)
    columns = torch.randn(records + 40, WIDTH, generator=source)
    signal = columns[:, 1:4]
    if task == "multiclass":
        labels = (signal + 0.5 * torch.randn(signal.shape, generator=source)).argmax(dim=1)
    else:
        labels = signal.sum(dim=1) + 2.0 * torch.randn(records + 40, generator=source)
        labels = (labels > 2.0).float() if task == "binary" else labels
    columns[:, 0] *= 3.0
    # Units of the component are those of deviations: only what columns share makes one.
    columns[:, 4] += columns[:, 0]
    return columns, labels


def descent(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.05)


def trained(
    *, task: str = "binary", records: int = 2000, epochs: int = 2, attacks: Sequence[Any] = (), **settings: Any
) -> Trainer:
    columns, labels = world(task, records)
    outputs = 3 if task == "multiclass" else 1
    bottom = seeded("in general", lambda: nn.Linear(WIDTH, outputs))
    top = seeded("in general, top", lambda: LinearTop(1, outputs, active_inputs=1))
    own = party("bank", torch.zeros(len(labels), 1), labels)
    passive = PassiveParty(party("lab", columns), bottom, optimizer=descent)
    active = ActiveParty(own, top, task=task_for(task, 3), optimizer=descent)
    trainer = Trainer(active, {"lab": passive}, batch_size=100, attacks=attacks, **settings)
    history = trainer.watch.audits["lab"].history
    features, history.features = history.features, None  # ends of epochs would fit models of them: most of the time
    trainer.fit(epochs)
    history.features = features
    return trainer


def test_randomised_labels_teach_labels_in_general_and_not_those_of_canaries() -> None:
    trainer = trained(
        records=1500,
        canaries=300,
        epochs=1,
        defenses=[AsymmetricResponse(detection_error=0.4)],
        noise_seed_for_experiments=1,
    )
    found = trainer.watch.knowledge_gain("lab")
    assert found is not None
    assert found.before == pytest.approx(0.5, abs=0.06)
    assert found.after > 0.7
    assert found.significant

    # The same model of records of which it never had a message: of coins it knows nothing.
    sample = trainer.watch.audits["lab"].history.sample()
    canaries = trainer.active.training_labels.canaries
    assert sample is not None
    assert canaries is not None
    assert not canaries.among(sample.ids).any()
    columns, _ = world("binary", 1500)
    numeric = np.concatenate([sample.features.numeric.numpy(), columns[canaries.ids].numpy()])
    came = np.arange(len(numeric)) < len(sample.ids)
    told = np.concatenate([sample.told, np.zeros((len(canaries.ids), 1))])
    forest, ridge = taught_by_messages(numeric, np.zeros((len(numeric), 0), np.int64), told, came)
    predicted = (forest / forest.std() + ridge / ridge.std())[:, 0]
    assert roc_auc_score(canaries._coins, predicted[~came]) == pytest.approx(0.5, abs=0.1)
    assert roc_auc_score(sample.labels, predicted[came]) == pytest.approx(found.after, abs=0.03)


def test_it_is_what_a_linear_model_of_the_true_labels_knows_where_messages_are_clean() -> None:
    trainer = trained()
    drawn = torch.get_rng_state()
    columns, labels = world("binary", 2000)
    best = roc_auc_score(labels[:2000], columns[:2000, 1:4].sum(dim=1))
    found = trainer.watch.knowledge_gain("lab")
    assert found is not None
    assert found.after == pytest.approx(best, abs=0.02)
    assert found.low < found.after - found.before < found.high
    assert found.model == pytest.approx(trainer.watch.audits["lab"].prediction_auc)
    assert torch.equal(torch.get_rng_state(), drawn)  # nothing else that a run draws is another for it


@pytest.mark.parametrize("classes", [2, 3, None])
def test_a_baseline_that_knows_nothing_reads_one_half_as_other_records_turn_it_round(classes: int | None) -> None:
    source, figures = np.random.default_rng(5), []
    for _ in range(60):
        labels = source.integers(0, classes or 50, 60).astype(float)
        scores = np.repeat(source.normal(size=(60, 1)), 3 if classes == 3 else 1, axis=1)
        turned = in_general._turned(scores, labels, classes, source.permutation(60) % 5)
        figures.append(judged(turned, labels, classes).value)
    assert np.mean(figures) < 0.51  # turned round by themselves they would read 0.55 and more


@pytest.mark.parametrize("task", ["multiclass", "regression"])
def test_classes_and_numbers_have_their_own_figures(task: str) -> None:
    trainer = trained(task=task, records=800)
    found = trainer.watch.in_general("lab")
    assert found is not None
    gain = found.gain
    assert gain is not None
    assert gain.significant
    assert gain.before == pytest.approx(0.5, abs=0.08)
    assert gain.after > 0.7
    if task == "multiclass":
        expected = macro_auc(torch.from_numpy(found.after), torch.from_numpy(found.labels))
        assert gain.after == pytest.approx(expected)
    assert found.label_free({"norm": np.zeros(800)}) is None


def test_of_wide_features_fewer_records_are_used(monkeypatch: pytest.MonkeyPatch) -> None:
    trainer = trained(records=400, attacks=[NormAttack()])
    monkeypatch.setattr(in_general, "_MOST_NUMBERS", 150 * WIDTH)
    monkeypatch.setattr(in_general, "_FEWEST_WIDE", 10)
    found = trainer.watch.in_general("lab")
    assert found is not None
    assert len(found.ids) == len(found.labels) == len(found.before) == len(found.after) == len(found.predicted) == 150
    _, labels = world("binary", 400)
    np.testing.assert_array_equal(labels[found.ids], found.labels)
    attack = trainer.watch.label_free("lab")
    assert attack is not None
    assert attack.records == 150


def test_noise_teaches_nothing_new() -> None:
    found = trained(defenses=[Isotropic(ratio=1e3)]).watch.knowledge_gain("lab")
    assert found is not None
    assert not found.taught
    assert not found.significant


def test_a_model_that_noise_taught_is_not_significant_however_well_it_happens_to_do(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(message_models, "_TREES", 1)
    columns, labels = world("binary", 400)
    truth = labels[:400].numpy()
    source, nothing = np.random.default_rng(3), np.zeros(400)

    def gain(answers: np.ndarray) -> KnowledgeGain:
        history = BinaryHistory()
        history.features = PartnerFeatures(columns)
        came = Messages(answers, nothing, nothing, nothing, nothing > 0.0, nothing)
        history.add(np.arange(400), truth == 1.0, came, nothing)
        found = labels_in_general(history)
        assert found is not None
        assert found.gain is not None
        return found.gain

    assert gain(truth).significant
    of_noise = [gain(source.normal(size=400)) for _ in range(10)]
    assert sum(one.taught for one in of_noise) <= 1
    lucky = known()._replace(taught=False).gain
    assert lucky is not None
    assert lucky.low > 0.0
    assert not lucky.significant


def test_where_no_message_comes_back_there_is_nothing_to_learn_from() -> None:
    watch = Watch(["lab"])
    assert watch.knowledge_gain("lab") is None
    assert watch.label_free("lab") is None


def test_nothing_is_known_where_features_are_not() -> None:
    trainer = trained(attacks=[NormAttack()])
    trainer.watch.audits["lab"].history.features = None
    assert trainer.watch.knowledge_gain("lab") is None
    assert trainer.watch.label_free("lab") is None


# --- attacks that need no labels


def test_undefended_an_attack_that_needs_no_labels_decides() -> None:
    attacks = [NormAttack(), DirectionAttack(), ComponentAttack(of="activation"), LabelsAndFeaturesAttack()]
    trainer = trained(attacks=attacks)
    found = trainer.watch.label_free("lab")
    assert found is not None
    assert found.name == "norm"  # direction knows labels, component reads no message, and the last one features too
    alone = trained(attacks=[NormAttack()]).watch.label_free("lab")
    assert alone == found  # nor does it count in the interval of all at once
    assert found.records == 2000
    assert found.decides(0.6)
    (verdict,) = trainer.verdict.values()
    assert verdict.labels is not None
    assert (verdict.labels.state, verdict.labels.row) == ("above-goal", "attack")


def known(records: int = 2000, *, seed: int = 0) -> InGeneral:
    """A baseline, a model and a prediction, each of which knows more of the labels than the one before."""
    source = np.random.default_rng(seed)
    labels = (source.random(records) < 0.3).astype(float)
    noise = source.normal(size=(3, records, 1))
    before, after, predicted = (
        labels[:, None] * strength + part for strength, part in zip((0.2, 0.5, 1.0), noise, strict=True)
    )
    return InGeneral(2, np.arange(records), labels, predicted, before, after, taught=True)


def test_an_attack_has_to_beat_all_three_and_the_goal_between_records_that_are_alike() -> None:
    world = known()
    source = np.random.default_rng(1)
    strong = world.labels * 3.0 + source.normal(size=2000)
    found = world.label_free({"strong": strong})
    assert found is not None
    assert (found.beats_baseline, found.beats_general, found.beats_prediction) == (True, True, True)
    assert found.shown == min(found.low, found.matched - 0.10)
    assert found.decides(0.6)
    parts: list[Any]
    for name, index in (("beats_prediction", 3), ("beats_baseline", 4), ("beats_general", 5)):
        # What it has to beat is as good as it is.
        parts = list(world)
        parts[index] = strong[:, None] + source.normal(size=(2000, 1)) * 0.1
        weaker = InGeneral(*parts).label_free({"strong": strong})
        assert weaker is not None
        assert not getattr(weaker, name)
        assert not weaker.decides(0.6)


def test_what_follows_from_the_prediction_decides_nothing() -> None:
    world = known()
    found = world.label_free({"readout": world.predicted[:, 0]})
    assert found is not None
    assert found.low > 0.6
    assert not found.decides(0.6)


def test_an_attack_is_turned_round_and_its_interval_is_that_of_all_at_once() -> None:
    world, source = known(), np.random.default_rng(1)
    strong = -3.0 * world.labels + source.normal(size=2000)
    alone = world.label_free({"strong": strong})
    among = world.label_free({"strong": strong} | {str(i): source.normal(size=2000) for i in range(9)})
    assert alone is not None
    assert among is not None
    assert alone.auc == among.auc == pytest.approx(roc_auc_score(world.labels, -strong))
    assert among.low < alone.low < alone.auc


def test_few_records_need_a_wider_margin() -> None:
    attack = LabelFreeAttack("norm", 0.97, 0.95, True, True, True, matched=0.8, records=1000)
    assert attack.shown == pytest.approx(0.70)
    few = LabelFreeAttack("norm", 0.97, 0.95, True, True, True, matched=0.8, records=999)
    assert few.shown == pytest.approx(0.44)


@pytest.mark.parametrize(
    "wrong",
    [
        lambda: LabelFreeAttack("norm", 0.97, 0.95, True, True, True, matched=1.5, records=1000),
        lambda: LabelFreeAttack("norm", 0.97, math.nan, True, True, True, matched=0.9, records=1000),
        lambda: KnowledgeGain(0.5, 1.7, 0.1, 0.2),
        lambda: KnowledgeGain(0.5, 0.7, 0.3, 0.2),
        lambda: KnowledgeGain(0.5, 0.7, 0.1, 0.2, model=-1.0),
    ],
)
def test_figures_that_no_run_has_are_refused(wrong: Callable[[], object]) -> None:
    with pytest.raises(ArgumentError, match=r"must be from 0 to 1|low <= high"):
        wrong()


def test_one_class_or_no_attack_decides_nothing() -> None:
    world = known()
    assert world.label_free({}) is None
    one = world._replace(labels=np.zeros(2000))
    assert one.gain is None
    assert one.label_free({"norm": np.arange(2000.0)}) is None

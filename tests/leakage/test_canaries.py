"""Canaries: coin-toss labels in training, and what attacks read of them."""

from __future__ import annotations

import math
import random
import statistics
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats
from torch import Tensor, nn

from splitvfl.app.experiment import Experiment, build_trainer, prepare, run_experiment
from splitvfl.app.records import load_data
from splitvfl.app.trainer import Trainer
from splitvfl.attacks import DirectionAttack, ModelCompletionAttack, NormAttack
from splitvfl.config.registry import built_in
from splitvfl.config.sections import parse_config
from splitvfl.cut.split_model import SplitModel
from splitvfl.data.coin_labels import Canaries, CoinLabels, toss
from splitvfl.data.columns import Columns, Records
from splitvfl.defenses import AsymmetricResponse, Isotropic, SumKL
from splitvfl.errors import ArgumentError, CheckpointError, ConfigError, DataError
from splitvfl.exchange.one_way import OneWay
from splitvfl.exchange.oracle import Oracle
from splitvfl.hooks import Secrets, View, tasks_of
from splitvfl.leakage.auditing import Audit
from splitvfl.leakage.canaries import CanaryLeak, pooled, with_canaries
from splitvfl.leakage.class_judging import ClassKeeper
from splitvfl.leakage.judging import Leak, ScoreKeeper, worst_of
from splitvfl.leakage.message_audit import AUDITORS
from splitvfl.leakage.monitor import read_metrics
from splitvfl.leakage.number_judging import NumberKeeper
from splitvfl.learning.label_gradients import LabelGradients, mean_cross_entropy
from splitvfl.learning.schedule import EarlyStopping
from splitvfl.messaging.messages import Message
from splitvfl.metrics import auc_interval, leak_auc, matched_auc
from splitvfl.report.summary import read_summary
from splitvfl.run import checkpoint
from tests.builders import ACTIVE, linear_trainer, small_trainer, weights

# What own columns predict is never asked here, only whether it was judged.
pytestmark = pytest.mark.usefixtures("quick_own_models")

SIZES = {"train": 400, "test": 40}


def trainer(**settings: Any) -> Trainer:
    return small_trainer(sizes=SIZES, **{"audit": True, "canaries": 60, "batch_size": 50, **settings})


def coins_of(run: Trainer) -> tuple[list[int], list[int]]:
    """Positions and coins."""
    assert run.active.training_labels.canaries is not None
    state = run.active.training_labels.canaries.state_dict()
    return state["positions"].tolist(), state["coins"].tolist()


def trained_labels(run: Trainer) -> Tensor:
    labels = run.active.train_batch(torch.arange(run.active.data.train.count)).labels
    assert labels is not None
    return labels


def test_only_the_chosen_records_have_a_coin_for_a_label_and_always_the_same() -> None:
    run = trainer()
    positions, coins = coins_of(run)
    true = run.active.data.train.labels
    assert true is not None
    expected = true.clone()
    expected[positions] = torch.tensor(coins, dtype=expected.dtype)
    assert torch.equal(trained_labels(run), expected)
    assert torch.equal(trained_labels(run), expected)
    assert not torch.equal(expected, true)
    assert len(set(positions)) == 60
    assert 0 < sum(coins) < 60


def test_they_come_from_entropy_unless_an_experiment_fixes_them() -> None:
    assert coins_of(trainer(seed=3)) != coins_of(trainer(seed=3))
    fixed = coins_of(trainer(seed=3, noise_seed_for_experiments=5))
    assert fixed == coins_of(trainer(seed=4, noise_seed_for_experiments=5))
    assert fixed != coins_of(trainer(seed=3, noise_seed_for_experiments=6))


def test_a_run_goes_on_with_its_own_to_the_bit(tmp_path: Any) -> None:
    def make(folder: Any) -> Trainer:
        return trainer(attacks=[NormAttack()], log_dir=folder)

    straight = make(tmp_path / "straight")
    straight.fit(1)
    parts = checkpoint.load(checkpoint.latest(tmp_path / "straight" / "checkpoints"))  # type: ignore[arg-type]
    resumed = make(tmp_path / "straight")
    assert coins_of(resumed) != coins_of(straight)
    resumed.resume()
    assert coins_of(resumed) == coins_of(straight)
    assert torch.equal(trained_labels(resumed), trained_labels(straight))
    straight.fit(3)
    resumed.fit(3)
    assert {name: value.tolist() for name, value in weights(resumed).items()} == {
        name: value.tolist() for name, value in weights(straight).items()
    }
    assert resumed.watch.canaries("telecom") == straight.watch.canaries("telecom")
    # Nowhere else than in the label party's own part.
    holders = [part for part, state in parts.items() if "coins" in repr(state)]
    assert holders == [f"hooks-{ACTIVE}"]


def test_they_are_treated_like_labels_that_are_what_the_coins_say() -> None:
    """To the bit: every message, weight and test figure is that of a run whose data have these labels."""
    sent: dict[str, list[Message]] = {"canaries": [], "labels": []}

    def make(which: str, canaries: int | None) -> Trainer:
        return trainer(
            canaries=canaries,
            defenses=[AsymmetricResponse(detection_error=0.3), SumKL(detection_error=0.3)],
            noise_seed_for_experiments=5,
            dropout=0.1,
            record=sent[which].append,
        )

    run, plain = make("canaries", 60), make("labels", None)
    labels = trained_labels(run)
    active = plain.active
    active.data = replace(active.data, train=replace(active.data.train, labels=labels))
    run.fit(2)
    plain.fit(2)
    assert len(sent["canaries"]) == len(sent["labels"]) > 0
    for left, right in zip(sent["canaries"], sent["labels"], strict=True):
        assert (left.kind, left.sender, left.step) == (right.kind, right.sender, right.step)
        assert torch.equal(left.payload, right.payload)
    assert run.test == plain.test


def test_none_is_held_out_a_dummy_or_a_test_record() -> None:
    run = trainer(early_stopping=EarlyStopping(patience=2, validation_every=3), canaries=100)
    positions, _ = coins_of(run)
    assert not set(positions) & set(run.batches.held_out)
    held_out = torch.arange(run.batches.held_out.start, 400, run.batches.held_out.step)
    true = run.active.data.train.labels
    assert true is not None
    assert torch.equal(trained_labels(run)[held_out], true[held_out])
    test = run.active.test_batch(torch.arange(40)).labels
    assert torch.equal(test, run.active.data.test.labels)  # type: ignore[arg-type]

    real = torch.arange(400) % 2 == 0
    records = replace(run.active.data.train, real=real)
    for seed in range(5):
        placed = CoinLabels.place(
            records,
            60,
            trained=run.batches.count,
            position=run.batches.positions,
            noise_seed_for_experiments=seed,
        )
        chosen = placed.state_dict()["positions"]
        assert real[chosen].all()
        assert not set(chosen.tolist()) & set(run.batches.held_out)
        assert torch.equal(placed.state_dict()["ids"], records.ids[chosen])


def test_every_record_is_chosen_as_often_and_every_coin_is_fair() -> None:
    records = Records(torch.arange(60), Columns.of(torch.zeros(60, 0)), torch.zeros(60))
    draws = 2000
    chosen, ones = np.zeros(60), np.zeros(60)
    for seed in range(draws):
        state = CoinLabels.place(
            records, 20, trained=60, position=lambda places: places, noise_seed_for_experiments=seed
        ).state_dict()
        chosen[state["positions"].numpy()] += 1
        ones[state["positions"].numpy()] += state["coins"].numpy()
    # Binomial, 2000 draws: 5 standard errors of each share, over 60 records.
    assert np.abs(chosen / draws - 1 / 3).max() < 5 * math.sqrt(2 / 9 / draws)
    assert np.abs(ones / chosen - 1 / 2).max() < 5 * 0.5 / math.sqrt(draws / 3)
    assert abs(ones.sum() / chosen.sum() - 1 / 2) < 5 * 0.5 / math.sqrt(20 * draws)


def test_coins_that_all_agree_are_tossed_again() -> None:
    class Rigged(random.Random):
        tosses = iter([b"\xff\xff\xff", b"\x00\x00\x0f", b"\x00\x10\x00"])

        def randbytes(self, n: int) -> bytes:
            return next(self.tosses)

    assert toss(20, Rigged()).tolist() == [0] * 11 + [1] + [0] * 8


def test_classes_that_all_agree_are_drawn_again(monkeypatch: pytest.MonkeyPatch) -> None:
    class Rigged(random.Random):
        draws = iter([[2] * 20, [0] * 20, [2] * 19 + [1]])

        def choices(self, *_: Any, **__: Any) -> list[int]:
            return next(self.draws)

    monkeypatch.setattr("splitvfl.data.coin_labels._source", lambda seed: Rigged(0))
    labels, _ = with_canaries(torch.zeros(40), 20, classes=3)
    assert sorted(labels.tolist()) == [0.0] * 20 + [1.0] + [2.0] * 19


def step_of(generator: np.random.Generator, count: int) -> tuple[Tensor, Tensor, Tensor]:
    ids = torch.from_numpy(generator.permutation(200)[:count]) * 3 - 100
    return ids, torch.from_numpy(generator.normal(size=count)), (ids % 2 == 0).double()


@pytest.mark.parametrize("left_out", [0.0, 0.3])
def test_canaries_are_added_up_apart_and_count_in_no_other_figure(left_out: float) -> None:
    """Against sums by hand: standardised over the batch, canaries and others together."""
    generator = np.random.default_rng(1)
    canaries = Canaries(torch.arange(0, 200, 5) * 3 - 100)
    keeper = ScoreKeeper(canaries=canaries)
    sums: dict[int, float] = {}
    aucs = []
    for _ in range(30):
        ids, scores, labels = step_of(generator, 25)
        scores[torch.from_numpy(generator.random(25) < left_out)] = math.nan
        ordinary = torch.tensor([number not in canaries.ids.tolist() for number in ids.tolist()])
        known = ~scores.isnan()
        standard = (scores - scores[known].mean()) / scores[known].std(correction=0)
        aucs.append(leak_auc(scores[ordinary & known], labels[ordinary & known]))
        assert keeper.add(ids, scores, labels) == pytest.approx(aucs[-1], abs=1e-12)
        for number, value in zip(ids.tolist(), standard.nan_to_num().tolist(), strict=True):
            sums[number] = sums.get(number, 0.0) + value
    found = keeper.canary_leak()
    assert found is not None
    turned_back = found.auc if keeper.accumulated_auc >= 0.5 else 1.0 - found.auc
    for chosen, auc in (
        ([number for number in sums if number in canaries.ids], turned_back),
        ([number for number in sums if number not in canaries.ids], keeper.tied_accumulated_auc),
    ):
        totals = torch.tensor([sums[number] for number in chosen], dtype=torch.float64)
        assert auc == pytest.approx(leak_auc(totals, torch.tensor([number % 2 == 0 for number in chosen])), abs=1e-12)
    assert found.positives + found.negatives == sum(number in canaries.ids for number in sums)
    assert keeper.classes[0] + keeper.classes[1] == sum(number not in canaries.ids for number in sums)
    assert keeper.summary().auc == pytest.approx(np.nanmean(aucs), abs=1e-12)


@pytest.mark.parametrize(("others", "own", "reads_all"), [(1, 1, True), (-1, -1, True), (1, -1, False), (-1, 1, False)])
@pytest.mark.parametrize("make", [ScoreKeeper, NumberKeeper])
def test_other_records_say_which_way_scores_point(
    make: type[ScoreKeeper] | type[NumberKeeper], others: int, own: int, reads_all: bool
) -> None:
    """An attack need not know which class it scores higher, and canaries themselves do not tell it."""
    canaries = Canaries(torch.arange(0, 200, 5))
    keeper, ids = make(canaries=canaries), torch.arange(200)
    labels = (ids // 5 % 2).double()
    noise = torch.from_numpy(np.random.default_rng(3).normal(scale=0.1, size=200))
    keeper.add(ids, torch.where(ids % 5 == 0, own, others) * (labels - 0.5) + noise, labels)
    found = keeper.canary_leak()
    assert found is not None
    assert found.auc == (1.0 if reads_all else 0.0)


def test_a_judge_from_a_checkpoint_goes_on_alike() -> None:
    canaries = Canaries(torch.arange(0, 200, 5) * 3 - 100)
    straight, resumed = ScoreKeeper(canaries=canaries), ScoreKeeper(canaries=canaries)
    generator = np.random.default_rng(2)
    steps = [step_of(generator, 25) for _ in range(10)]
    for step in steps[:5]:
        straight.add(*step)
    resumed.load_state_dict(straight.state_dict())
    for step in steps[5:]:
        straight.add(*step)
        resumed.add(*step)
    assert resumed.canary_leak() == straight.canary_leak()
    with pytest.raises(ValueError, match="one of the two runs has canaries"):
        ScoreKeeper().load_state_dict(straight.state_dict())


def test_what_waits_to_be_added_up_is_bounded() -> None:
    keeper = ScoreKeeper(canaries=Canaries(torch.arange(1000, 1020)))
    for step in range(3000):
        ids = torch.tensor([1, 2, 1000 + step % 20 if step % 3 else 3])
        keeper.add(ids, torch.tensor([0.0, 1.0, 2.0]), torch.tensor([0, 1, ids[2] % 2]))
    assert keeper._canaries is not None
    assert max(len(sums._pending) for sums in (keeper._records, keeper._canaries)) < 1024
    found = keeper.canary_leak()
    assert found is not None
    assert (found.positives, found.negatives) == (10, 10)


KEEPERS: dict[str, tuple[Any, Any, Any]] = {
    # A judge, labels of records, and the score of who recovers all of them.
    "binary": (ScoreKeeper, lambda count: torch.arange(count) % 2, lambda labels: labels.double()),
    "classes": (
        partial(ClassKeeper, 3),
        lambda count: torch.arange(count) % 3,
        lambda labels: torch.nn.functional.one_hot(labels, 3).double(),
    ),
    "numbers": (
        NumberKeeper,
        lambda count: torch.where(torch.arange(count) < 60, 100.0 + torch.arange(count) % 2, 0.5 * torch.arange(count)),
        lambda labels: labels,
    ),
}


@pytest.mark.parametrize("task", KEEPERS)
@pytest.mark.parametrize("sign", [1.0, -1.0])
@pytest.mark.parametrize("steps", [1, 3])
def test_who_recovers_every_label_upside_down_recovers_every_canary(task: str, sign: float, steps: int) -> None:
    make, labels_of, score = KEEPERS[task]
    labels, keeper = labels_of(300), make(canaries=Canaries(torch.arange(60)))
    for _ in range(steps):
        keeper.add(torch.arange(300), sign * score(labels), labels)
    assert keeper.summary().worst_accumulated_auc == 1.0
    found = keeper.canary_leak()
    assert found is not None
    assert (found.auc, found.count) == (1.0, 60)
    # And so in the largest of several, beside one that recovers nothing.
    blind = make(canaries=Canaries(torch.arange(60)))
    blind.add(torch.arange(300), torch.zeros_like(score(labels)), labels)
    worst = worst_of([blind, keeper])
    assert worst is not None
    assert (worst.auc, worst.figures) == (1.0, 2)


@pytest.mark.parametrize("task", KEEPERS)
def test_canaries_have_no_part_in_their_own_orientation(task: str) -> None:
    make, labels_of, score = KEEPERS[task]
    labels, keeper = labels_of(300), make(canaries=Canaries(torch.arange(60)))
    scores = score(labels).clone()
    scores[:60] *= -1.0  # of these alone the other way round
    keeper.add(torch.arange(300), scores, labels)
    found = keeper.canary_leak()
    assert found is not None
    assert found.auc == 0.0


@pytest.mark.parametrize("task", KEEPERS)
def test_who_knows_labels_is_not_turned_round(task: str) -> None:
    make, labels_of, score = KEEPERS[task]
    labels, keeper = labels_of(300), make(canaries=Canaries(torch.arange(60)))
    scores = score(labels).clone()
    scores[60:] *= -1.0  # as what is predicted of other records may turn them
    keeper.add(torch.arange(300), scores, labels)
    assert keeper.canary_leak().auc == 0.0
    keeper.knows_labels = True
    assert keeper.canary_leak().auc == 1.0


@pytest.mark.parametrize("task", ["binary", "multiclass", "regression"])
def test_no_attack_is_right_about_other_records_and_wrong_about_canaries(task: str) -> None:
    found = built_in("attacks")
    names = ("direction", "gradient-classifier", "mixture", "norm", "residual", "sign")
    attacks = [found[name]() for name in names if task in tasks_of(found[name])]
    trainer = small_trainer(
        task=task,
        sizes={"train": 160, "test": 20},
        batch_size=80,
        canaries=60,
        audit=True,
        noise_seed_for_experiments=5,
        attacks=attacks,
    )
    trainer.fit(1)
    read = trainer.watch.canaries("telecom")
    sure = [name for name, one in trainer.summaries("telecom").items() if one.worst_accumulated_auc > 0.9]
    assert len([name for name in sure if name in read]) >= 2
    assert all(read[name].auc > 0.75 for name in sure if name in read)
    assert all(keeper.knows_labels is (name in AUDITORS) for name, keeper in trainer.watch.keepers("telecom").items())


def test_without_ids_nobody_knows_which_they_are() -> None:
    ids, scores, labels = step_of(np.random.default_rng(0), 25)
    canaries = Canaries(ids)
    with pytest.raises(ArgumentError, match=r"canaries are told by their ids.*pass model\(x, labels=y, ids=ids\)"):
        ScoreKeeper(canaries=canaries).add(None, scores, labels)
    with pytest.raises(ArgumentError, match="canaries are told by their ids"):
        Audit(canaries=canaries).see(scores[:, None], scores[:, None], labels, None)


class Signed:
    """Says every label by the sign of its score."""

    target = "labels"
    signed = True

    def __call__(self, view: View, /) -> Tensor:
        assert view.gradient is not None
        return view.gradient[:, 0]


def test_an_attacker_is_told_of_no_canary_and_no_sign_of_one_counts() -> None:
    canaries = Canaries(torch.arange(40))
    leak = Leak(DirectionAttack(), known_positives=3, known_negatives=3, canaries=canaries)
    ids = torch.arange(80)
    labels = (ids % 2).double()
    leak.see(View(party="p", step=0, ids=ids, gradient=torch.randn(80, 3)), labels)
    assert leak.known == {"known_positives": 3}
    assert all((told >= 40).all() for told in leak._knowledge.told)
    signs = Leak(Signed(), canaries=canaries)
    assert signs.signs is not None
    signs.see(View(party="p", step=0, ids=ids, gradient=torch.randn(80, 3)), labels)
    assert signs.signs.records[1] == 40


def test_after_training_nobody_is_asked_about_them() -> None:
    run = trainer(attacks=[ModelCompletionAttack(steps=2)], canaries=180)
    run.fit(1)
    (found,) = run.after_training["telecom"].values()
    asked = found.train.positives + found.train.negatives
    assert asked == 400 - 180 - found.known_positives - found.known_negatives


class ByColumns:
    """Scores that depend on the party's columns only."""

    target = "labels"
    needs = frozenset({"columns"})

    def __call__(self, view: View, /) -> Tensor:
        assert view.columns is not None
        return view.columns.sum(dim=1)


class Constant:
    """Sends the same row to everybody."""

    crossing = "gradient"

    def __call__(self, gradient: Tensor, secrets: Secrets, /) -> Tensor:
        return torch.ones_like(gradient)


def canary_figures(defenses: list[Any], **settings: Any) -> dict[str, Any]:
    run = small_trainer(
        sizes={"train": 1200, "test": 40},
        audit=True,
        canaries=400,
        batch_size=64,
        defenses=defenses,
        noise_seed_for_experiments=1,
        **settings,
    )
    run.fit(2)
    return run.watch.canaries("telecom") | {"worst": run.watch.worst_canaries}


@pytest.fixture(scope="module")
def undefended() -> dict[str, Any]:
    return canary_figures([], attacks=[NormAttack(), ByColumns()])


def test_without_a_defense_nearly_all_is_read(undefended: dict[str, Any]) -> None:
    names = ["auditor-linear", "auditor-likelihood", "auditor-ratio", "norm", "ByColumns", "worst"]
    assert list(undefended) == names
    assert undefended["worst"].auc > 0.99


def test_what_columns_say_is_one_half_among_them(undefended: dict[str, Any]) -> None:
    found = undefended["ByColumns"]
    assert found.low <= 0.5 <= found.high
    assert found.high - found.low < 0.13


def test_asymmetric_response_keeps_its_promise_among_them() -> None:
    """AUC at most 1 − L, whatever reads it: here of answers that were drawn once for the whole run."""
    found = canary_figures([AsymmetricResponse(detection_error=0.4)])
    for leak in found.values():
        assert leak.low <= 0.6
    assert found["worst"].high > 0.6 - 0.02  # it is reached: what is measured is not blind


def test_a_constant_message_tells_nothing() -> None:
    found = canary_figures([Constant()], attacks=[NormAttack()])
    for name, leak in found.items():
        # The auditor also has each record's prediction, which tells nothing of a coin.
        assert leak.auc == 0.5 or name in ("auditor-ratio", "worst")
        assert leak.low < 0.5 < leak.high


@pytest.mark.parametrize("seed", range(3))
def test_the_auditor_brings_no_label_of_a_canary_along(seed: int) -> None:
    """Each record's message is a direction of its own: its label enters nothing but the auditor's own axis."""
    generator = torch.Generator().manual_seed(seed)
    rows = torch.nn.functional.normalize(torch.randn(1500, 32, generator=generator), dim=1)
    labels, chosen = with_canaries((torch.rand(1500, generator=generator) < 0.2).float(), 400)
    audit = Audit(canaries=Canaries(chosen))
    for _ in range(2):
        for batch in torch.randperm(1500, generator=generator).split(64):
            known = LabelGradients(
                outputs=torch.full((len(batch), 1), 0.25).logit(),
                targets=labels[batch],
                values=(0.0, 1.0),
                classes=2,
                loss=mean_cross_entropy,
                jacobian=rows[None, batch],
            )
            clean = (0.25 - labels)[batch, None] * rows[batch] / len(batch)
            audit.see(clean, rows[batch], labels[batch], batch, label_gradients=known)
    for keeper in audit.keepers.values():
        leak = keeper.canary_leak(level=1 - 1e-6)  # for six figures at every run of the tests
        assert leak is not None
        assert leak.low <= 0.5 <= leak.high


def test_in_a_loop_of_ones_own() -> None:
    generator = torch.Generator().manual_seed(0)
    columns = torch.randn(600, 4, generator=generator)
    true = (columns[:, 0] > 0).float()
    labels, chosen = with_canaries(true, 200, noise_seed_for_experiments=3)
    others = torch.ones(600, dtype=torch.bool)
    others[chosen] = False
    assert torch.equal(labels[others], true[others])
    ids = torch.arange(600) * 7
    torch.manual_seed(0)
    model = SplitModel(nn.Linear(4, 3), nn.Linear(3, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with (
        model.cut.audit(canaries=ids[chosen]) as audit,
        model.cut.watch(NormAttack(), canaries=ids[chosen]) as leak,
        model.observe(model.bottoms["passive"], NormAttack(), canaries=ids[chosen]) as earlier,
        model.cut.audit() as blind,
    ):
        for batch in torch.randperm(600, generator=generator).split(60):
            optimizer.zero_grad()
            logits = model(columns[batch], labels=labels[batch], ids=ids[batch])[:, 0]
            nn.functional.binary_cross_entropy_with_logits(logits, labels[batch]).backward()
            optimizer.step()
    assert audit.canaries is not None
    assert audit.canaries.auc > 0.99
    assert audit.canaries.positives + audit.canaries.negatives == 200
    assert leak.canaries is not None
    assert leak.keeper.records == earlier.keeper.records == 400
    assert blind.canaries is None
    with pytest.raises(ArgumentError, match="canaries are told by their ids"), model.cut.audit(canaries=ids[chosen]):
        nn.functional.binary_cross_entropy_with_logits(model(columns, labels=labels)[:, 0], labels).backward()


def test_figures_are_logged_and_kept(tmp_path: Path) -> None:
    run = trainer(attacks=[NormAttack()], log_dir=tmp_path, log_every=1)
    run.fit(2)
    rows = read_metrics(tmp_path)
    last, found = rows[-1], run.watch.canaries("telecom")
    for name, leak in found.items():
        for tag, value in (("", leak.auc), ("_low", leak.low), ("_high", leak.high)):
            assert last[f"canary_auc{tag}/telecom/{name}"] == value
    assert [row["step"] for row in rows if "canary_auc/telecom/norm" in row] == [8, 16]
    # No position, id or coin of a canary is in what is logged.
    assert "canar" not in (tmp_path / "metrics.jsonl").read_text().replace("canary_auc", "")


def test_the_interval_of_the_better_attack_is_one_for_both() -> None:
    run = trainer(defenses=[Isotropic(ratio=3.0)])
    run.fit(2)
    keepers = list(run.audits["telecom"].keepers.values())
    worst = run.watch.worst_canaries
    assert worst is not None
    alone = max((keeper.canary_leak() for keeper in keepers), key=lambda leak: leak.auc)  # type: ignore[union-attr]
    assert alone is not None
    assert worst.auc == alone.auc
    assert worst.low < alone.low < alone.high < worst.high
    assert run.audits["telecom"].canaries == worst


def test_a_trainer_without_leaves_none_of_an_earlier_one() -> None:
    run = trainer()
    again = Trainer(run.active, run.passives, batch_size=50)
    assert run.active.training_labels.canaries is None
    again.fit(1)
    assert again.watch.worst_canaries is None
    assert again.watch.canaries("telecom") == {}


@pytest.mark.parametrize(
    ("settings", "kind", "says"),
    [
        ({"canaries": 0}, ArgumentError, "at least 20 canaries, got 0"),
        ({"canaries": 19}, ArgumentError, "at least 20 canaries, got 19"),
        ({"canaries": 201}, DataError, "at most 200 canaries, half of the 400 training records"),
        (
            {"canaries": 140, "early_stopping": EarlyStopping(validation_every=3)},
            DataError,
            "at most 133 canaries, half of the 267",
        ),
        ({"audit": False}, ConfigError, "for the auditor, who is switched off"),
    ],
)
def test_what_makes_no_sense_is_refused(settings: dict[str, Any], kind: type[Exception], says: str) -> None:
    with pytest.raises(kind, match=says):
        trainer(**settings)


def test_where_only_sums_cross_they_are_refused_by_the_exchanges_name() -> None:
    with pytest.raises(ConfigError, match="the excess leakage cannot be measured in this protocol: in exchange oracle"):
        linear_trainer(exchange=Oracle(), canaries=20)


def test_where_nothing_comes_back_they_are_refused() -> None:
    with pytest.raises(
        ConfigError, match="the excess leakage cannot be measured in this protocol: in exchange one-way"
    ):
        trainer(exchange=OneWay())


def test_ids_that_come_twice_and_labels_that_are_none_are_refused() -> None:
    with pytest.raises(ArgumentError, match="every canary's id once"):
        Canaries(torch.arange(20).repeat(2))
    with pytest.raises(ArgumentError, match="at least 20 canaries, got 3"):
        Canaries(torch.arange(3))
    with pytest.raises(ArgumentError, match="labels 0 and 1"):
        with_canaries(torch.arange(100), 30)


@pytest.mark.parametrize(("before", "after"), [(60, None), (None, 60), (60, 70)])
def test_a_run_goes_on_with_as_many_as_it_began_with(before: int | None, after: int | None, tmp_path: Path) -> None:
    trainer(canaries=before, log_dir=tmp_path).fit(1)
    with pytest.raises(
        CheckpointError, match=r"belongs to another experiment: it has \w+ canaries, this run is to have \w+"
    ):
        trainer(canaries=after, log_dir=tmp_path).resume()


def test_matching_leaves_prediction_in_and_canaries_leave_none() -> None:
    """A score of columns only: of records whose last prediction is equal it tells what that one left out."""
    generator = torch.Generator().manual_seed(0)
    columns = torch.randn(6000, 2, generator=generator)
    true = (columns.sum(dim=1) + 0.5 * torch.randn(6000, generator=generator) > 0).float()
    labels, chosen = with_canaries(true, 1000, noise_seed_for_experiments=0)
    score, last = columns.sum(dim=1), columns[:, 0]
    others = torch.ones(6000, dtype=torch.bool)
    others[chosen] = False
    assert matched_auc(score[others], labels[others], last[others]) > 0.8
    leak = CanaryLeak.of(score[chosen], labels[chosen])
    assert leak.low <= 0.5 <= leak.high


EXPERIMENT = """
data: {name: wine}
parties: {clinic: {role: active, columns: [alcohol]}, lab: {role: passive, columns: rest}}
train: {batch_size: 16}
audit: {canaries: 30}
"""


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (
            EXPERIMENT.replace("wine", "breast-cancer").replace("alcohol", "mean *")
            + "model: logistic-regression\nexchange: {name: oracle}\n",
            r"run\.yaml: audit.canaries: the excess leakage cannot be measured in this protocol: in exchange oracle",
        ),
        (
            EXPERIMENT.replace("wine", "breast-cancer").replace("alcohol", "mean *") + "exchange: one-way\n",
            r"run\.yaml: audit.canaries: the excess leakage cannot be measured in this protocol: in exchange one-way",
        ),
    ],
)
def test_in_an_experiment_the_file_is_named(text: str, says: str) -> None:
    config = parse_config(text, source="run.yaml")
    with pytest.raises(ConfigError, match=says):
        build_trainer(config, load_data(config))


def test_an_experiment_keeps_its_figures(tmp_path: Path) -> None:
    text = EXPERIMENT.replace("wine", "breast-cancer").replace("alcohol", "mean *") + "attacks: [norm]\n"
    config = parse_config(text, source="run.yaml", overrides=["train.epochs=1"])
    summary = run_experiment(config, tmp_path / "run")
    kept = read_summary(tmp_path / "run")
    assert kept.canaries == summary.canaries
    assert kept.canaries is not None
    # All of them were trained on; the auditor judges none in a batch that has one class without them.
    judged = kept.parties["lab"].canaries["norm"]
    assert judged.positives + judged.negatives == 30
    assert kept.canaries.positives + kept.canaries.negatives <= 30
    assert list(kept.parties["lab"].canaries) == ["auditor-linear", "auditor-likelihood", "auditor-ratio", "norm"]


# --- classes and numbers


def test_labels_of_canaries_are_uniform_over_all_classes() -> None:
    """4000 draws of 5 classes: chi squared below its 99.9 % quantile."""
    labels = torch.zeros(8000, dtype=torch.int64)
    labels[0] = 4
    tossed, positions = with_canaries(labels, 4000, classes=5, noise_seed_for_experiments=1)
    counts = np.bincount(tossed[positions].numpy(), minlength=5)
    assert stats.chisquare(counts).pvalue > 0.001


def test_canaries_of_numbers_have_one_of_the_quartiles() -> None:
    labels = torch.arange(101, dtype=torch.float64)
    tossed, positions = with_canaries(labels, 50, classes=None, noise_seed_for_experiments=1)
    assert set(tossed[positions].tolist()) == {25.0, 75.0}
    with pytest.raises(DataError, match="quartiles of the labels, and both are 3"):
        with_canaries(torch.full((60,), 3.0), 20, classes=None)


def test_labels_that_are_no_classes_get_no_canaries() -> None:
    with pytest.raises(ArgumentError, match="at least 0 and below 3"):
        with_canaries(torch.arange(60), 20, classes=3)


@pytest.mark.parametrize("name", ["wine", pytest.param("diabetes", marks=pytest.mark.slow(reason="another training"))])
def test_an_experiment_on_other_labels_has_an_auditor_and_canaries(name: str) -> None:
    text = EXPERIMENT.replace("alcohol", "al*" if name == "wine" else "a*").replace("wine", name)
    config = parse_config(text + "attacks: [direction]\nmodel: {name: mlp, bottom: [4]}\n", source="run.yaml")
    trainer = Experiment(config, prepare(config)).trainer()

    trainer.fit(2)

    coins = trainer.active.training_labels.canaries
    assert coins is not None
    found = trainer.watch.canaries("lab")
    assert set(found) == {"auditor-linear", "auditor-ratio", "direction"}
    assert found["auditor-ratio"].count == 30
    # Nothing is added to the messages, so that whoever knows what would have been sent reads every label.
    assert found["auditor-ratio"].auc == 1.0
    assert trainer.watch.audits["lab"].worst == 1.0
    assert not set(coins.ids.tolist()) & {
        record for told in trainer.leaks["lab"]["direction"]._knowledge.told for record in told.tolist()
    }


# --- several runs


def seeds(
    aucs: Sequence[float], canaries: int, *, attacks: int = 1, seed: int = 0
) -> tuple[list[list[CanaryLeak]], list[list[tuple[Tensor, Tensor]]]]:
    """Figures of attacks on runs with these true AUCs, by attack, and the scores and coins that they are of."""
    source, figures, raw = np.random.default_rng(seed), [], []
    for _ in range(attacks):
        runs = []
        for auc in aucs:
            coins = torch.from_numpy(source.integers(0, 2, canaries))
            shift = math.sqrt(2.0) * statistics.NormalDist().inv_cdf(auc)
            runs.append((torch.from_numpy(source.standard_normal(canaries)) + shift * coins, coins))
        figures.append([CanaryLeak.of(*run) for run in runs])
        raw.append(runs)
    return figures, raw


def test_a_pooled_excess_is_that_of_all_pairs_of_canaries_from_one_run() -> None:
    figures, raw = seeds([0.55, 0.7, 0.6], 60, attacks=2)

    def all_pairs(runs: Sequence[tuple[Tensor, Tensor]]) -> float:
        right = [
            float(scores[one] > scores[other]) + 0.5 * float(scores[one] == scores[other])
            for scores, coins in runs
            for one in range(60)
            for other in range(60)
            if coins[one] == 1 and coins[other] == 0
        ]
        return sum(right) / len(right)

    found = pooled(figures)
    assert found is not None
    assert found.auc == pytest.approx(max(map(all_pairs, raw)), abs=1e-12)
    assert (found.count, found.figures) == (180, 2)
    alone = max((pooled([figure]) for figure in figures), key=lambda leak: 0.0 if leak is None else leak.auc)
    assert alone is not None
    # Of two figures at once each has half of what may be wrong.
    assert (found.auc - found.low) / (alone.auc - alone.low) == pytest.approx(stats.norm.isf(0.0125) / 1.96, rel=1e-3)
    assert pooled([]) is None


def test_the_interval_of_like_runs_is_that_of_all_their_canaries() -> None:
    for auc in (0.5, 0.7, 0.95):
        widths = []
        for seed in range(20):
            figures, raw = seeds([auc] * 3, 200, seed=seed)
            found = pooled(figures)
            assert found is not None
            low, high = auc_interval(*map(torch.cat, zip(*raw[0], strict=True)))
            widths.append((found.high - found.low) / (high - low))
        # Runs that differ by chance more than they should widen it.
        assert 0.97 < statistics.median(widths) < 1.15


def test_the_upper_end_is_that_of_the_least_certain_attack() -> None:
    sure, unsure = CanaryLeak(0.56, 0.52, 0.60, 500, 500), CanaryLeak(0.55, 0.40, 0.70, 500, 500)
    found = pooled([[sure, sure], [unsure, unsure]])
    assert found is not None
    assert (found.auc, found.high) == (pytest.approx(0.56), pytest.approx(pooled_alone(unsure).high))


def test_in_one_run_too_the_upper_end_is_that_of_the_least_certain_attack() -> None:
    sure, unsure = CanaryLeak(0.56, 0.52, 0.60, 500, 500), CanaryLeak(0.55, 0.40, 0.70, 500, 500)
    judges: list[Any] = [SimpleNamespace(canary_leak=lambda *, level, leak=leak: leak) for leak in (sure, unsure)]
    assert worst_of(judges) == replace(sure, high=0.70, figures=2)


def pooled_alone(leak: CanaryLeak) -> CanaryLeak:
    """Two like runs of one attack, with the confidence that it has among two."""
    found = pooled([[leak, leak], [leak, leak]])
    assert found is not None
    return found


def test_an_interval_of_several_runs_holds_their_mean() -> None:
    for aucs, least in (([0.6, 0.6, 0.6], 0.93), ([0.5, 0.6, 0.7], 0.93)):
        held = 0
        for seed in range(200):
            found = pooled(seeds(aucs, 100, seed=seed)[0])
            assert found is not None
            held += found.low <= 0.6 <= found.high
        assert held / 200 >= least  # 0.95, with a standard error of 0.015


def test_runs_that_differ_widen_the_interval() -> None:
    alike, apart = (pooled(seeds(aucs, 1_000)[0]) for aucs in ([0.6, 0.6, 0.6], [0.5, 0.6, 0.7]))
    assert alike is not None
    assert apart is not None
    assert apart.high - apart.low > 2.0 * (alike.high - alike.low)


def test_the_largest_of_pooled_attacks_is_less_biased_than_the_mean_of_largest() -> None:
    most, largest = [], []
    for seed in range(50):
        figures, _ = seeds([0.5] * 5, 100, attacks=3, seed=seed)
        found = pooled(figures)
        assert found is not None
        most.append(found.auc - 0.5)
        largest.append(np.mean([max(leak.auc for leak in run) for run in zip(*figures, strict=True)]) - 0.5)
    # Of three independent figures the largest is 0.85 standard errors too high: of one run 0.058, of five 0.026.
    assert np.mean(most) == pytest.approx(0.846 * 0.058 / math.sqrt(5), abs=0.01)
    assert np.mean(largest) == pytest.approx(0.846 * 0.058, abs=0.01)


# --- behind a label defense: randomised labels


def placed(count: int, *, flip: float = 0.2) -> tuple[CoinLabels, Tensor, Tensor]:
    """Return canaries among twice as many records, the labels of all, and what a defense would answer for them."""
    ids = torch.arange(2 * count) * 7 - 50
    generator = np.random.default_rng(0)
    labels = torch.from_numpy(generator.permutation(np.arange(2 * count) % 2)).float()
    flipped = torch.from_numpy(generator.random(2 * count) < flip)
    canaries = CoinLabels(torch.arange(count), ids[:count], labels[:count].long())
    return canaries, labels, torch.where(flipped, 1.0 - labels, labels)


def test_a_canarys_randomised_label_is_known_once_all_were_answered_alike() -> None:
    canaries, _, answers = placed(40)
    ids = torch.arange(80) * 7 - 50
    assert canaries.answers is None
    canaries.note_answers(ids[20:], answers[20:])
    assert canaries.answers is None  # of twenty nobody knows it yet
    canaries.note_answers(ids[:60], answers[:60])
    assert canaries.answers is not None
    assert canaries.answers[0].tolist() == ids[:40].tolist()
    assert canaries.answers[1].tolist() == answers[:40].tolist()

    again = placed(40)[0]
    again.load_state_dict(canaries.state_dict())
    assert again.answers is not None
    assert again.answers[1].tolist() == answers[:40].tolist()

    canaries.note_answers(ids[:1], 1.0 - answers[:1])  # drawn anew
    assert canaries.answers is None
    canaries.note_answers(ids[:1], answers[:1])
    assert canaries.answers is None


def test_who_is_silent_has_no_randomised_label() -> None:
    canaries, _, answers = placed(40)
    answers[5] = 0.5
    canaries.note_answers(torch.arange(80) * 7 - 50, answers)
    assert canaries.answers is not None
    assert canaries.answers[0].size == 39


def test_what_messages_reveal_of_randomised_labels_has_a_narrower_interval() -> None:
    canaries, labels, answers = placed(300, flip=0.4)
    ids = torch.arange(600) * 7 - 50
    keeper = ScoreKeeper(canaries=canaries)
    scores = answers + 0.5 * torch.from_numpy(np.random.default_rng(1).standard_normal(600)).float()
    keeper.add(ids, -scores, labels)  # the other records turn it round
    assert keeper.randomised_leak() is None
    canaries.note_answers(ids, answers)

    truth, randomised = keeper.canary_leak(), keeper.randomised_leak()
    assert truth is not None
    assert randomised is not None
    assert randomised.auc > 0.85
    assert 0.45 < truth.auc < 0.72
    assert randomised.count == truth.count == 300
    assert randomised.high - randomised.low < 0.6 * (truth.high - truth.low)
    both, wider = worst_of([keeper, keeper], randomised=True), keeper.randomised_leak(level=0.975)
    assert both is not None
    assert wider is not None
    assert both == replace(wider, figures=2)

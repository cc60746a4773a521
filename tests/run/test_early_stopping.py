"""Early stopping: a run ends where a hand-written loop ends, with its weights, through any break."""

from __future__ import annotations

import copy
import math
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from sklearn.metrics import roc_auc_score
from torch import Tensor, nn

from splitvfl.data.columns import Shards
from splitvfl.defenses import GaussianIR, Isotropic, MemoisedResponse
from splitvfl.errors import CheckpointError, DataError
from splitvfl.exchange.prediction import predict
from splitvfl.hooks import At
from splitvfl.leakage.monitor import read_metrics
from splitvfl.learning.schedule import EarlyStopping
from splitvfl.party.training_labels import TrainingLabels
from splitvfl.run import checkpoint
from splitvfl.run.trainer import Trainer
from splitvfl.team.team import Alone
from tests.builders import ACTIVE, bottom_model, same, small_trainer, top_model, weights

EPOCHS = 40


def fast_adam(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.Adam(parameters, lr=0.03)


def stopping_trainer(
    names: tuple[str, ...] = ("telecom",), *, stopping: EarlyStopping | None = None, **settings: Any
) -> Trainer:
    stopping = stopping or EarlyStopping(patience=2, validation_every=3)
    usual = {"optimizer": fast_adam, "seed": 3, "early_stopping": stopping, "audit": False}
    return small_trainer(names, **{**usual, **settings})


def by_hand(trainer: Trainer, stopping: EarlyStopping, epochs: int, every: int) -> tuple[int, int, dict[str, Tensor]]:
    """What anybody would write: epochs done, the epoch kept, and its weights. Scored by scikit-learn."""
    models: dict[str, nn.Module] = {name: bottom_model(name) for name in trainer.passives}
    models[ACTIVE] = top_model(len(trainer.passives))
    optimizers = [fast_adam(model.parameters()) for model in models.values()]
    parties = [trainer.passives[name].data for name in trainer.passives] + [trainer.active.data]
    labels = parties[-1].train.labels
    assert labels is not None

    def logits(rows: list[int]) -> Tensor:
        columns = [party.train.columns.numeric[rows] for party in parties]
        inputs = [models[party.name](own) for party, own in zip(parties[:-1], columns, strict=False)]
        output: Tensor = models[ACTIVE](torch.cat([*inputs, columns[-1]], dim=1))
        return output[:, 0]

    held_out = [row for row in range(48) if row % stopping.validation_every == stopping.validation_every - 1]
    best, kept, waited, found = -math.inf, 0, 0, {}
    for epoch in range(1, epochs + 1):
        for batch in trainer.batches.epoch(epoch - 1):
            rows = batch.tolist()
            assert not set(rows) & set(held_out)
            for optimizer in optimizers:
                optimizer.zero_grad()
            nn.functional.binary_cross_entropy_with_logits(logits(rows), labels[rows]).backward()
            for optimizer in optimizers:
                optimizer.step()
        if epoch % every and epoch != epochs:
            continue
        with torch.no_grad():
            auc = roc_auc_score(labels[held_out], logits(held_out))
        if auc > best + stopping.min_delta:
            best, kept, waited, found = (
                auc,
                epoch,
                0,
                {name: copy.deepcopy(m.state_dict()) for name, m in models.items()},
            )
        else:
            waited += 1
            if waited == stopping.patience:
                break
    return epoch, kept, {f"{party}/{name}": weight for party, state in found.items() for name, weight in state.items()}


@pytest.mark.parametrize(
    ("stopping", "every", "names"),
    [
        (EarlyStopping(patience=1, validation_every=3), 1, ("telecom",)),
        (EarlyStopping(patience=4, validation_every=3), 1, ("telecom", "shop")),
        (EarlyStopping(patience=2, min_delta=0.02, validation_every=4), 1, ("telecom",)),
        (EarlyStopping(patience=2, validation_every=3), 2, ("telecom",)),
        (EarlyStopping(patience=EPOCHS, validation_every=3), 3, ("telecom",)),
    ],
)
def test_it_ends_as_a_hand_written_loop(stopping: EarlyStopping, every: int, names: tuple[str, ...]) -> None:
    trainer = stopping_trainer(names, stopping=stopping, evaluate_every=every)
    done, kept, best = by_hand(trainer, stopping, EPOCHS, every)
    assert 0 < kept < done  # taking weights back is put to the test
    assert (done < EPOCHS) == (stopping.patience < EPOCHS)

    trainer.fit(EPOCHS)

    assert (trainer.step, trainer.kept_epoch) == (done * len(trainer.batches), kept)
    assert trainer.stopped == (done < EPOCHS)
    assert same(weights(trainer), best)


def test_the_figures_are_those_of_the_weights_kept() -> None:
    trainer = stopping_trainer()
    figures = trainer.fit(EPOCHS)
    labels = trainer.active.data.test.labels
    assert labels is not None
    outputs = predict(trainer.active, trainer.passives).outputs
    assert figures == trainer.test
    assert figures["auc"] == pytest.approx(roc_auc_score(labels, outputs[:, 0]))
    rows = trainer.batches.held_out
    known = trainer.active.data.train.labels
    assert known is not None
    outputs = predict(trainer.active, trainer.passives, part="train").outputs[list(rows)]
    assert trainer.validation["auc"] == pytest.approx(roc_auc_score(known[list(rows)], outputs[:, 0]))


def test_records_held_out_are_never_trained_on() -> None:
    trainer = stopping_trainer(block_rows=4)
    trained: set[int] = set()
    for party in (trainer.active, *trainer.passives.values()):

        def noted(rows: Tensor, party: Any = party) -> Any:
            if party.module.training:
                trained.update(rows.tolist())
            return party.data.train.rows(rows)

        party.train_batch = noted  # type: ignore[method-assign]
    trainer.fit(2)
    assert trained == {row for row in range(48) if row % 3 != 2}


def everything(folder: Path | None, **more: Any) -> Trainer:
    """Dropout, noise on every kind of message, blocks, an auditor, two passive parties, checkpoints between epochs."""
    return stopping_trainer(
        ("telecom", "shop"),
        stopping=EarlyStopping(patience=3, validation_every=3),
        dropout=0.2,
        noise_seed_for_experiments=6,
        defenses=[
            Isotropic(ratio=0.5),
            GaussianIR(clip=2.0, sigma=0.1),
            At(GaussianIR(clip=2.0, sigma=0.2), "evaluation"),
            MemoisedResponse(flip=0.1),
        ],
        batch_size=8,
        block_rows=4,
        log_dir=folder,
        log_every=3,
        checkpoint_every=3,
        audit=True,
        **more,
    )


def outcome(trainer: Trainer) -> list[Any]:
    metrics = (trainer.folder / "metrics.jsonl").read_bytes() if trainer.folder else b""
    return [trainer.step, trainer.kept_epoch, trainer.stopped, trainer.test, trainer.validation, metrics]


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder for what is on disk after each step of the straight run: what a process leaves that ends there."""
    return tmp_path_factory.mktemp("killed")


@pytest.fixture(scope="module")
def straight(killed: Path, tmp_path_factory: pytest.TempPathFactory) -> Trainer:
    trainer = everything(tmp_path_factory.mktemp("straight"))
    assert trainer.folder is not None
    folder = trainer.folder
    trainer.fit(EPOCHS, progress=lambda status: shutil.copytree(folder, killed / str(status.step)))
    return trainer


def test_the_straight_run_stops_early_after_an_improvement(straight: Trainer) -> None:
    assert straight.stopped
    assert straight.kept_epoch is not None
    assert 1 < straight.kept_epoch < straight.step / 4 < EPOCHS


# Four steps make an epoch, and there are checkpoints at every third step: one step after the best evaluation the newest
# is that of the evaluation, three steps after it one in the middle of the next epoch.
@pytest.mark.parametrize(
    "after_best", [0, 3, *(pytest.param(step, marks=pytest.mark.slow(reason="one more run")) for step in (-1, 1, 6))]
)
def test_killed_and_resumed_it_keeps_the_same_weights(after_best: int, straight: Trainer, killed: Path) -> None:
    assert straight.kept_epoch is not None
    fatal = 4 * straight.kept_epoch + after_best
    resumed = everything(killed / str(fatal))
    assert fatal - 4 < resumed.resume() < fatal
    resumed.fit(EPOCHS)

    assert same(weights(resumed), weights(straight))
    assert outcome(resumed) == outcome(straight)


def test_a_run_that_was_stopped_stays_stopped(straight: Trainer) -> None:
    before = weights(straight)
    again = everything(straight.folder)
    again.resume()
    assert not same(weights(again), before)  # a checkpoint goes on from the weights as trained
    assert again.fit(2 * EPOCHS) == straight.test
    assert same(weights(again), before)
    assert outcome(again) == outcome(straight)


@pytest.mark.parametrize("kept", [False, True], ids=["in memory", "from a checkpoint"])
def test_more_epochs_are_the_same_run_continued(kept: bool, tmp_path: Path) -> None:
    """Also after the best weights were taken back, from which training does not go on."""

    def made(folder: Path) -> Trainer:
        return stopping_trainer(stopping=EarlyStopping(patience=20, validation_every=3), log_dir=folder)

    whole, pieces = made(tmp_path / "whole"), made(tmp_path / "pieces")
    whole.fit(12)
    for epochs in (7, 8, 12):
        pieces.fit(epochs)
        if kept:
            pieces = made(tmp_path / "pieces")
            pieces.resume()
    pieces.fit(12)
    assert whole.kept_epoch is not None
    assert same(weights(pieces), weights(whole))
    assert outcome(pieces) == outcome(whole)


def test_checkpoints_hold_each_partys_own_best_weights(straight: Trainer) -> None:
    assert straight.folder is not None
    newest = checkpoint.latest(straight.folder / "checkpoints")
    assert newest is not None
    parts = checkpoint.load(newest)
    for name, weight in weights(straight).items():
        party, _, key = name.partition("/")
        assert torch.equal(parts[f"party-{party}"]["kept"][key], weight)
    assert "patience" not in parts["party-telecom"]  # the figures stay with the label party


def test_the_log_has_validation_figures_beside_those_of_the_test(straight: Trainer) -> None:
    assert straight.folder is not None
    rows = read_metrics(straight.folder)
    assert {"validation/auc", "validation/loss", "test/auc", "test/loss"} <= set(rows[-1])
    at_best = next(row for row in rows if row["step"] == 4 * straight.kept_epoch)  # type: ignore[operator]
    assert at_best["validation/auc"] == straight.validation["auc"] == max(row.get("validation/auc", 0) for row in rows)
    assert at_best["test/auc"] == straight.test["auc"]


def test_validation_labels_of_one_class_are_refused() -> None:
    trainer = stopping_trainer()
    labels = trainer.active.data.train.labels
    assert labels is not None
    labels[list(trainer.batches.held_out)] = 0.0
    with pytest.raises(
        DataError, match=r"holds out 16 of the 48 training records of bank, one of 3.*all 16 labels are 0"
    ):
        trainer.active.stop_early_by(EarlyStopping(validation_every=3), trainer.batches.held_out)


def test_the_parties_agree_on_when_to_stop(tmp_path: Path) -> None:
    stopping_trainer(log_dir=tmp_path).fit(1)
    for other in (EarlyStopping(patience=3, validation_every=3), EarlyStopping(patience=2, validation_every=4)):
        with pytest.raises(CheckpointError, match="belongs to another experiment"):
            stopping_trainer(stopping=other, log_dir=tmp_path).resume()


def test_how_often_a_run_evaluates_changes_nothing_of_the_training() -> None:
    """Noise and dropout of evaluations come from generators of their own."""

    def fitted(every: int) -> dict[str, Tensor]:
        trainer = small_trainer(
            dropout=0.2,
            evaluate_every=every,
            audit=False,
            defenses=[GaussianIR(clip=2.0, sigma=0.1)],
            noise_seed_for_experiments=1,
        )
        trainer.fit(3)
        return weights(trainer)

    assert same(fitted(1), fitted(3))


class Fellow(Alone):
    """Worker 0 of two, whose fellow has these labels."""

    size = 2

    def __init__(self, labels: list[float]) -> None:
        super().__init__()
        self._labels = torch.tensor(labels)

    def gather(self, tensor: torch.Tensor) -> list[torch.Tensor]:
        return [tensor, self._labels]


def test_workers_find_out_together_whether_there_are_both_classes() -> None:
    """A shard of one class is none that nothing can be learned from, unless all shards have that class only."""
    active = stopping_trainer().active
    labels = active.data.train.labels
    assert labels is not None
    labels[:] = 0.0
    held_out = (EarlyStopping(validation_every=3), range(2, 48, 3))
    with pytest.raises(DataError, match="all 48 labels are 0"):
        TrainingLabels(active)
    active.data = active.data.in_shards(Shards((48, 48), (5, 5), here=0))
    own = TrainingLabels(active)
    own.check_together(Fellow([0.0, 1.0]))
    own.check_held_out(*held_out, Fellow([0.0, 1.0]))
    with pytest.raises(DataError, match="labels are 0"):
        own.check_together(Fellow([0.0, 0.0]))
    with pytest.raises(DataError, match=r"holds out 32 of the 96 training records of bank, one of 3.*labels are 0"):
        own.check_held_out(*held_out, Fellow([0.0, 0.0]))
    labels[7] = 2.0
    with pytest.raises(DataError, match=r"needs labels 0 and 1"):
        TrainingLabels(active)

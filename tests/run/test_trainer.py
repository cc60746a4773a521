"""The trainer: the same weights as a plain loop, the same run after a break, and what it refuses."""

from __future__ import annotations

import json
import math
import os
import signal
import stat
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from splitvfl.app.trainer import Trainer
from splitvfl.attacks import (
    DirectionAttack,
    GradientClassifierAttack,
    ModelCompletionAttack,
    NormAttack,
    ResidueSolvingAttack,
    SignAttack,
)
from splitvfl.cut.split_model import SplitModel
from splitvfl.data.columns import Columns, PartyData, Records
from splitvfl.defenses import GaussianIR, Isotropic, MemoisedResponse, Rounding, SumKL
from splitvfl.errors import ArgumentError, CheckpointError, ConfigError, DataError, HookError, PrivacyError
from splitvfl.exchange.evaluation import Evaluation
from splitvfl.exchange.prediction import predict
from splitvfl.hooks import At, Secrets, View
from splitvfl.leakage.monitor import read_metrics
from splitvfl.learning.randomness import derive_seed
from splitvfl.learning.tasks import Multiclass, Regression
from splitvfl.party.party import ActiveParty, PassiveParty
from splitvfl.run import checkpoint
from splitvfl.run.seats import LabelBook
from splitvfl.run.training import Status
from splitvfl.system.signals import Interrupted
from tests.builders import (
    ACTIVE,
    active_party,
    bottom_model,
    linear_trainer,
    party_data,
    passive_party,
    record_ids,
    same,
    sgd,
    small_trainer,
    top_model,
    weights,
)


def split_model_of(trainer: Trainer) -> SplitModel:
    """A ``SplitModel`` over fresh models with the trainer's initial weights."""
    bottoms = {name: bottom_model(name) for name in trainer.passives}
    return SplitModel(bottoms, top_model(len(bottoms), outputs=trainer.active.task.outputs))


def plain_loop(model: SplitModel, trainer: Trainer, optimizer: Any, epochs: int) -> None:
    """What anybody would write, on the trainer's data and in its order."""
    optimizers = [optimizer(module.parameters()) for module in (*model.bottoms.values(), model.top)]
    train = trainer.active.data.train
    for epoch in range(epochs):
        for rows in trainer.batches.epoch(epoch):
            model.zero_grad()
            columns = [party.data.train.columns.numeric[rows] for party in trainer.passives.values()]
            own, labels, ids = train.columns.numeric[rows], train.labels[rows], train.ids[rows]  # type: ignore[index]
            outputs = model(*columns, active=own, labels=labels, ids=ids)
            trainer.active.task.loss(outputs, model.targets(labels, ids=ids)).backward()
            for step in optimizers:
                step.step()


def model_weights(model: SplitModel) -> dict[str, Tensor]:
    found = {f"{ACTIVE}/{name}": weight for name, weight in model.top.state_dict().items()}
    for party, bottom in model.bottoms.items():
        found |= {f"{party}/{name}": weight for name, weight in bottom.state_dict().items()}
    return found


def adam(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.Adam(parameters, lr=0.01)


@pytest.mark.parametrize("names", [("telecom",), ("telecom", "shop")])
@pytest.mark.parametrize("optimizer", [sgd, adam])
@pytest.mark.parametrize("task", ["binary", "multiclass", "regression"])
def test_trainer_and_plain_loop_give_the_same_weights_to_the_bit(
    names: tuple[str, ...], optimizer: Any, task: str
) -> None:
    trainer = small_trainer(names, task=task, optimizer=optimizer, seed=3, audit=False)
    before = weights(trainer)
    model = split_model_of(trainer)
    assert same(before, model_weights(model))
    trainer.fit(2)
    plain_loop(model, trainer, optimizer, 2)
    assert same(weights(trainer), model_weights(model))
    assert not same(weights(trainer), before)


def test_it_holds_with_defenses_of_one_noise_seed_too() -> None:
    trainer = small_trainer(("telecom", "shop"), defenses=[Isotropic()], noise_seed_for_experiments=9)
    model = split_model_of(trainer)
    for name, cut in model.cuts.items():
        cut.defend(Isotropic(), noise_seed_for_experiments=derive_seed(9, "gradient", name, 0))
    trainer.fit(1)
    plain_loop(model, trainer, lambda parameters: torch.optim.Adam(parameters, lr=1e-3), 1)
    assert same(weights(trainer), model_weights(model))


def test_noise_differs_between_runs_unless_an_experiment_asks_for_a_seed() -> None:
    def fitted(seed: int | None) -> dict[str, Tensor]:
        trainer = small_trainer(defenses=[Isotropic()], noise_seed_for_experiments=seed, audit=False)
        trainer.fit(1)
        return weights(trainer)

    assert same(fitted(4), fitted(4))
    assert not same(fitted(4), fitted(5))
    assert not same(fitted(None), fitted(None))


def test_attacks_change_nothing() -> None:
    plain = small_trainer(dropout=0.2, audit=False)
    watched = small_trainer(dropout=0.2, attacks=[NormAttack(), DirectionAttack()], audit=True)
    plain.fit(1)
    watched.fit(1)
    assert same(weights(plain), weights(watched))


def everything(folder: Path | None, **more: Any) -> Trainer:
    """Noise on two crossings, label responses, dropout, Adam, stateful attacks, two passive parties."""
    trainer = small_trainer(
        ("telecom", "shop"),
        dropout=0.2,
        optimizer=adam,
        seed=5,
        noise_seed_for_experiments=6,
        defenses=[Isotropic(ratio=0.5), GaussianIR(clip=2.0, sigma=0.1), MemoisedResponse(flip=0.1), SumKL(ratio=1.0)],
        attacks=[DirectionAttack(), NormAttack(), SignAttack()],
        known_positives=2,
        audit=True,
        log_dir=folder,
        log_every=2,
        **more,
    )
    trainer.observe("telecom", "layers.1", NormAttack())
    return trainer


def outcome(trainer: Trainer) -> dict[str, Any]:
    """Everything that a run ends with, in comparable form (NaN equal to itself)."""
    return {
        "summaries": {party: repr(trainer.summaries(party)) for party in trainer.passives},
        "errors": {party: repr(audit.detection_error) for party, audit in trainer.audits.items()},
        "measurements": trainer.measurements,
        "test": trainer.test,
        "worst": trainer.worst_leak,
        "metrics": (trainer.folder / "metrics.jsonl").read_bytes() if trainer.folder else b"",
    }


class Kill(BaseException):
    """Stands for whatever ends a process between two steps."""


def kill_after(step: int) -> Any:
    def progress(status: Status) -> None:
        if status.step == step:
            raise Kill

    return progress


@pytest.fixture(scope="module")
def straight(tmp_path_factory: pytest.TempPathFactory) -> Trainer:
    """Return a run that nothing stopped."""
    trainer = everything(tmp_path_factory.mktemp("straight"), checkpoint_every=2)
    trainer.fit(3)
    return trainer


# Three batches of 16 make an epoch. Checkpoints come every second step and at epochs' ends; each kill loses some steps.
@pytest.mark.parametrize(
    "step", [3, *(pytest.param(step, marks=pytest.mark.slow(reason="two more runs")) for step in (4, 5, 8))]
)
def test_killed_and_resumed_it_ends_as_if_nothing_had_happened(step: int, straight: Trainer, tmp_path: Path) -> None:
    with pytest.raises(Kill):
        everything(tmp_path, checkpoint_every=2).fit(3, progress=kill_after(step))
    resumed = everything(tmp_path, checkpoint_every=2)
    done = resumed.resume()
    assert 0 < done < step
    resumed.fit(3)

    assert same(weights(straight), weights(resumed))
    assert outcome(straight) == outcome(resumed)
    assert len(outcome(straight)["metrics"]) > 500


def test_more_epochs_are_the_same_run_continued(tmp_path: Path) -> None:
    straight, pieces = everything(tmp_path / "a"), everything(tmp_path / "b")
    straight.fit(3)
    pieces.fit(1)
    pieces.fit(3)
    assert same(weights(straight), weights(pieces))
    assert outcome(straight) == outcome(pieces)
    assert pieces.fit(3) == straight.test  # nothing is left to do


def test_a_checkpoint_is_readable_by_its_owner_only_and_hook_state_is_apart(tmp_path: Path) -> None:
    trainer = everything(tmp_path)
    trainer.fit(1)
    newest = checkpoint.latest(tmp_path / "checkpoints")
    assert newest is not None
    files = sorted(newest.iterdir())
    assert [file.name for file in files] == [
        "hooks-bank.pt", "hooks-shop.pt", "hooks-telecom.pt",
        "party-bank.pt", "party-shop.pt", "party-telecom.pt", "run.pt",
    ]  # fmt: skip
    assert {stat.S_IMODE(file.stat().st_mode) for file in files} == {0o600}
    assert stat.S_IMODE(newest.stat().st_mode) == 0o700
    parts = checkpoint.load(newest)
    assert set(parts["party-bank"]["module"]) == set(trainer.active.top.state_dict())
    assert "generator" in str(parts["hooks-bank"])
    assert "generator" not in str(parts["party-bank"].keys())


def test_resuming_needs_a_checkpoint_of_the_same_experiment(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="no checkpoint"):
        small_trainer(log_dir=tmp_path).resume()
    with pytest.raises(CheckpointError, match="no checkpoint"):
        small_trainer().resume()
    small_trainer(log_dir=tmp_path, defenses=[Isotropic()], attacks=[NormAttack()]).fit(1)
    for other in (
        {"defenses": [], "attacks": [NormAttack()]},
        {"defenses": [Isotropic()], "attacks": []},
        {"defenses": [Isotropic()], "attacks": [NormAttack()], "batch_size": 12},
        {"defenses": [Isotropic()], "attacks": [NormAttack()], "seed": 1},
        {"defenses": [Isotropic()], "attacks": [NormAttack()], "names": ("shop",)},
    ):
        with pytest.raises(CheckpointError, match="belongs to another experiment"):
            small_trainer(log_dir=tmp_path, **other).resume()  # type: ignore[arg-type]
    assert small_trainer(log_dir=tmp_path, defenses=[Isotropic()], attacks=[NormAttack()]).resume() == 3


def test_a_checkpoint_of_another_version_is_refused_with_what_to_do(tmp_path: Path) -> None:
    small_trainer(log_dir=tmp_path, attacks=[NormAttack()]).fit(1)
    newest = checkpoint.latest(tmp_path / "checkpoints")
    assert newest is not None
    run = checkpoint.load(newest)["run"]
    for leak in run["watch"]["leaks"]["telecom"].values():
        leak["keeper"]["aucs"] = torch.zeros(3)  # as versions kept it that had no running sums
    torch.save(run, newest / "run.pt")
    with pytest.raises(
        CheckpointError, match=r"by another version of splitvfl, or is damaged .*finish the run with the"
    ):
        small_trainer(log_dir=tmp_path, attacks=[NormAttack()]).resume()


def test_ctrl_c_stops_between_two_steps_after_a_checkpoint(tmp_path: Path) -> None:
    def interrupt(status: Status) -> None:
        if status.step == 4:
            os.kill(os.getpid(), signal.SIGINT)

    before = signal.getsignal(signal.SIGINT)
    straight, stopped = everything(tmp_path / "a"), everything(tmp_path / "b")
    straight.fit(2)
    with pytest.raises(Interrupted):
        stopped.fit(2, progress=interrupt)
    assert signal.getsignal(signal.SIGINT) is before
    assert stopped.step == 4
    resumed = everything(tmp_path / "b")
    assert resumed.resume() == 4
    resumed.fit(2)
    assert same(weights(straight), weights(resumed))
    assert outcome(straight) == outcome(resumed)


def test_a_second_ctrl_c_acts_at_once(tmp_path: Path) -> None:
    def interrupt_twice(status: Status) -> None:
        if status.step == 4:
            os.kill(os.getpid(), signal.SIGINT)
            os.kill(os.getpid(), signal.SIGINT)

    trainer = small_trainer(log_dir=tmp_path)
    with pytest.raises(KeyboardInterrupt):
        trainer.fit(2, progress=interrupt_twice)
    assert trainer.resume() == 3  # the epoch's end before


def test_ctrl_c_in_the_last_step_is_a_finished_run() -> None:
    def interrupt(status: Status) -> None:
        if status.step == status.steps:
            os.kill(os.getpid(), signal.SIGINT)

    assert small_trainer().fit(1, progress=interrupt)["auc"] >= 0.0


def test_a_full_disk_ends_the_run_and_the_last_checkpoint_still_resumes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    straight = small_trainer(dropout=0.2, audit=False, log_dir=tmp_path / "a")
    straight.fit(2)
    trainer = small_trainer(dropout=0.2, audit=False, log_dir=tmp_path / "b")
    trainer.fit(1)

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", full)
        with pytest.raises(CheckpointError, match=r"No space left.*step-000000003, is untouched.*--resume"):
            trainer.fit(2)
    resumed = small_trainer(dropout=0.2, audit=False, log_dir=tmp_path / "b")
    assert resumed.resume() == 3
    resumed.fit(2)
    assert same(weights(straight), weights(resumed))


def test_metrics_are_lines_of_json_in_order(tmp_path: Path) -> None:
    trainer = everything(tmp_path)
    trainer.fit(2)
    rows = read_metrics(tmp_path)
    assert [row["step"] for row in rows] == [2, 3, 4, 6]
    assert {"train/loss", "test/auc", "leak_auc/worst", "leak_auc/telecom/norm", "leak_auc/shop/auditor-linear"} <= set(
        rows[-1]
    )
    # Defenses of the gradient and of the activation stand side by side.
    assert {"defense/telecom/isotropic/power", "defense/telecom/gaussian-ir/power"} <= set(rows[-1])
    assert rows[-1]["leak_auc_accumulated/telecom/norm"] == trainer.summaries("telecom")["norm"].accumulated_auc
    json.dumps(rows, allow_nan=False)


def test_progress_is_told_after_every_step() -> None:
    seen: list[Status] = []
    trainer = small_trainer(audit=False)
    figures = trainer.fit(2, progress=seen.append)
    assert [(status.epoch, status.step) for status in seen] == [(1, 1), (1, 2), (1, 3), (2, 4), (2, 5), (2, 6)]
    assert all((status.epochs, status.steps) == (2, 6) for status in seen)
    assert math.isnan(seen[0].test)
    assert seen[-1].test == figures["auc"]


@pytest.mark.parametrize("epochs", [0, -1])
def test_epochs_below_one_are_refused(epochs: int) -> None:
    with pytest.raises(ArgumentError, match="at least 1"):
        small_trainer().fit(epochs)


@pytest.mark.parametrize("task", ["binary", "multiclass", "regression"])
def test_each_task_learns_end_to_end(task: str) -> None:
    sizes = {"train": 400, "test": 200}
    trainer = small_trainer(task=task, optimizer=adam, sizes=sizes, batch_size=50, audit=False)
    figures = trainer.fit(12)
    # Everybody's columns share the factor behind the labels; with its own noise (0.7) the ceiling is near AUC 0.9,
    # accuracy 0.7 and R² 0.65. Blind: 0.5, 0.4 and 0.
    least = {"binary": 0.75, "multiclass": 0.5, "regression": 0.3}[task]
    assert figures[trainer.active.task.metric] > least


def bad_labels(labels: Tensor, task: Any = None) -> ActiveParty:
    data = party_data(ACTIVE, width=2, train=len(labels), task="binary")
    train = Records(data.train.ids, data.train.columns, labels)
    return ActiveParty(PartyData(ACTIVE, (), data.numeric_names, (), train, data.test), nn.Linear(6, 1), task=task)


@pytest.mark.parametrize(
    ("labels", "task", "message"),
    [
        (torch.tensor([1.0, -1.0, 1.0]), None, r"needs labels 0 and 1, got \[-1.0, 1.0\]; -1/\+1 labels: map -1 to 0"),
        (torch.tensor([1.0, 1.0]), None, "all 2 labels are 1.0; a binary task needs both classes"),
        (torch.tensor([0.2, 0.7]), None, "needs labels 0 and 1"),
        (torch.tensor([0, 1, 2]), None, "needs labels 0 and 1"),
        (torch.tensor([1, 2, 3]), Multiclass(3), "needs labels 0 to 2, got 1 to 3"),
        (torch.tensor([-1, 2, 1]), Multiclass(3), "needs labels 0 to 2, got -1 to 2"),
        (torch.tensor([0.0, 1.0]), Multiclass(3), "whole-number labels, got dtype torch.float32"),
        (torch.tensor([2, 2]), Multiclass(3), "all 2 labels are 2"),
        (torch.tensor([0.5, math.nan]), Regression(), "finite"),
        (torch.tensor([0.5, math.inf]), Regression(), "finite"),
        (torch.tensor([0.5, 0.5]), Regression(), "all 2 labels are 0.5"),
    ],
)
def test_labels_that_do_not_fit_the_task_are_refused(labels: Tensor, task: Any, message: str) -> None:
    with pytest.raises(DataError, match=message):
        bad_labels(labels, task)


def test_a_party_without_labels_cannot_be_the_active_one() -> None:
    with pytest.raises(DataError, match="bank holds no labels"):
        ActiveParty(party_data(ACTIVE, width=2), nn.Linear(6, 1))


@pytest.mark.parametrize("task", ["multiclass", "regression"])
@pytest.mark.parametrize(
    "hooks",
    [{"defenses": [SumKL(ratio=1.0)]}, {"defenses": [MemoisedResponse(flip=0.1)]}],
    ids=["sumKL", "memoised response"],
)
def test_what_is_made_for_binary_labels_is_refused_elsewhere(task: str, hooks: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=f"binary labels, the task is {task}"):
        small_trainer(task=task, **hooks)


@pytest.mark.parametrize("task", ["multiclass", "regression"])
def test_attacks_on_other_labels_are_listed_and_the_others_run(task: str) -> None:
    class OfTwoClasses(NormAttack):
        name, tasks = "of-two", frozenset({"binary"})

    trainer = small_trainer(task=task, attacks=[NormAttack(), OfTwoClasses()], audit=False)
    trainer.fit(1)
    assert trainer.unavailable["telecom"] == {"of-two": f"reads binary labels, the task is {task}"}
    assert trainer.leaks["telecom"]["norm"].summary.task == task
    assert 0.5 <= trainer.leaks["telecom"]["norm"].summary.worst <= 1.0


def test_observing_a_layer_needs_labels_of_the_attack_a_party_and_a_layer() -> None:
    with pytest.raises(ConfigError, match="attack sign: a sign tells two classes apart"):
        small_trainer(task="regression").observe("telecom", "layers.1", SignAttack())
    with pytest.raises(ArgumentError, match=r"no party 'shop'; expected one of \['telecom'\]"):
        small_trainer().observe("shop", "layers.1", NormAttack())
    with pytest.raises(ArgumentError, match=r"no layer 'nowhere'; expected one of \['layers', 'layers.0'"):
        small_trainer().observe("telecom", "nowhere", NormAttack())


def test_attacks_that_need_what_a_party_cannot_show_are_listed() -> None:
    trainer = small_trainer(attacks=[NormAttack(), ResidueSolvingAttack()])
    assert trainer.unavailable == {"telecom": {"residue-solving": "needs the gradient of its own weights"}}
    assert set(trainer.leaks["telecom"]) == {"norm"}
    assert set(linear_trainer(attacks=[ResidueSolvingAttack()]).leaks["telecom"]) == {"residue-solving"}


def test_the_same_attack_twice_gets_two_names_and_two_states() -> None:
    attack = DirectionAttack()
    trainer = small_trainer(("telecom", "shop"), attacks=[attack, attack])
    trainer.fit(1)
    leaks = [leak for named in trainer.leaks.values() for leak in named.values()]
    assert [list(named) for named in trainer.leaks.values()] == [["direction", "direction-2"]] * 2
    assert len({id(leak.attack) for leak in leaks}) == 4
    assert attack.state_dict()["units"] is None  # the caller's own stays as it was


def test_each_cut_gets_its_own_copy_of_a_defense() -> None:
    defense = SumKL(ratio=1.0)
    trainer = small_trainer(("telecom", "shop"), defenses=[defense])
    copies = [next(iter(cut.gradient)) for cut in trainer.active.cuts.values()]
    assert len({id(copy) for copy in (*copies, defense)}) == 3
    alone = small_trainer(defenses=[defense])
    assert next(iter(alone.active.cuts["telecom"].gradient)) is defense


def test_parties_need_one_name_each() -> None:
    with pytest.raises(ArgumentError, match="at least one passive"):
        Trainer(active_party(), {})
    with pytest.raises(ArgumentError, match="under 'shop' calls itself 'telecom'"):
        Trainer(active_party(), {"shop": passive_party("telecom")})
    with pytest.raises(ArgumentError, match="two parties are called 'bank'"):
        Trainer(active_party(), {ACTIVE: passive_party(ACTIVE)})


def other_terms(**sizes: Any) -> Trainer:
    return Trainer(active_party(), {"telecom": passive_party("telecom", **sizes)}, batch_size=16)


def test_parties_with_other_records_do_not_start() -> None:
    with pytest.raises(DataError, match=r"training records: \w+ has 4[87], \w+ has 4[78]"):
        other_terms(train=47).fit(1)
    with pytest.raises(DataError, match=r"test records: .*2[43]"):
        other_terms(test=23).fit(1)


def test_parties_with_their_records_in_another_order_do_not_start() -> None:
    trainer = small_trainer()
    passive = trainer.passives["telecom"]
    data = passive.data
    passive.data = PartyData(
        data.name, data.column_names, data.numeric_names, (), data.train.rows(torch.arange(47, -1, -1)), data.test
    )
    before = weights(trainer)
    with pytest.raises(DataError, match=r"order of the training ids: \w+ has [0-9a-f]{32}, \w+ has [0-9a-f]{32}"):
        trainer.fit(1)
    assert same(before, weights(trainer))


@pytest.mark.parametrize("size", [0, 49])
def test_batches_of_no_or_too_many_records_are_refused(size: int) -> None:
    with pytest.raises(DataError, match=f"from 1 to the 48 records there are, got {size}"):
        small_trainer(batch_size=size)


class Recording:
    """A gradient defense that keeps the labels which it was given."""

    def __init__(self) -> None:
        self.given: dict[int, float] = {}

    def __call__(self, message: Tensor, secrets: Secrets, /) -> Tensor:
        self.given |= dict(zip(secrets.ids.tolist(), secrets.labels.tolist(), strict=True))
        return message.clone()


def test_with_memoised_response_gradient_defenses_see_responses_and_judges_see_labels() -> None:
    class Judged:
        """Its score is the record's id, so its leak AUC is the AUC of the ids against what it is judged by."""

        def __call__(self, view: View, /) -> Tensor:
            return view.ids.double()

    recording = Recording()
    trainer = small_trainer(
        defenses=[MemoisedResponse(flip=0.3), recording],
        attacks=[Judged()],
        noise_seed_for_experiments=2,
        batch_size=48,
    )
    trainer.fit(2)
    train = trainer.active.data.train
    assert train.labels is not None
    labels = dict(zip(train.ids.tolist(), train.labels.tolist(), strict=True))
    seen = recording.given
    answers = trainer.active.labels.state_dict()["memoised-response"]["defense"]["answers"]
    assert set(seen) == set(labels)
    assert set(seen.values()) == {0.0, 1.0}
    flipped = [number for number in labels if seen[number] != labels[number]]
    assert 4 <= len(flipped) <= 26  # 14.4 of 48 expected, three standard deviations of 3.2
    answer_of = dict(zip(answers["ids"].tolist(), answers["columns"]["answer"][answers["slots"]].tolist(), strict=True))
    assert all(seen[number] == answer_of[number] - 1 for number in labels)
    positives = [number for number in labels if labels[number] == 1]
    negatives = [number for number in labels if labels[number] == 0]
    true_auc = sum(p > n for p in positives for n in negatives) / (len(positives) * len(negatives))
    assert trainer.summaries("telecom")["Judged"].auc == pytest.approx(true_auc, abs=1e-12)


def test_the_loss_is_that_of_the_responses() -> None:
    """A plain loop whose loss takes the answers of the same seed ends with the same weights."""
    trainer = small_trainer(optimizer=sgd, defenses=[MemoisedResponse(flip=0.3)], noise_seed_for_experiments=1)
    model, honest = split_model_of(trainer), small_trainer(optimizer=sgd)
    seed = derive_seed(1, "labels", ACTIVE, 0)
    model.defend(MemoisedResponse(flip=0.3), noise_seed_for_experiments=seed)
    trainer.fit(2)
    plain_loop(model, trainer, sgd, 2)
    honest.fit(2)
    assert same(weights(trainer), model_weights(model))
    assert not same(weights(trainer), weights(honest))


@pytest.mark.parametrize("kind", ["frozen", "without parameters"])
def test_a_bottom_with_nothing_to_learn_takes_part(kind: str) -> None:
    bottom = bottom_model("telecom").requires_grad_(False) if kind == "frozen" else nn.Identity()
    passive = PassiveParty(party_data("telecom", width=5 if kind == "frozen" else 4), bottom)
    trainer = Trainer(active_party(), {"telecom": passive}, attacks=[NormAttack()], batch_size=16)
    before = weights(trainer)
    trainer.fit(1)
    after = weights(trainer)
    assert passive.weights.optimizer is None
    assert all(torch.equal(before[name], after[name]) == name.startswith("telecom") for name in before)
    assert trainer.summaries("telecom")["norm"].steps == 3


def test_label_book_knows_labels_by_record_and_not_by_row() -> None:
    ids = record_ids(20)
    labels = (torch.arange(20) % 2).float()
    book = LabelBook(Records(ids, Columns.of(torch.zeros(ids.numel(), 0)), labels))
    order = torch.tensor([7, 0, 19, 7])
    assert torch.equal(book(ids[order]), labels[order].double())


def test_label_book_need_not_look_up_the_records_of_the_step_under_way(monkeypatch: pytest.MonkeyPatch) -> None:
    ids, labels = record_ids(20), (torch.arange(20) % 2).float()
    train = Records(ids, Columns.of(torch.zeros(20, 0)), labels)
    book, order = LabelBook(train), torch.tensor([7, 0, 19])
    book.turn_to(train.rows(order))
    with monkeypatch.context() as patch:
        patch.setattr(LabelBook, "_looked_up", None)  # would fail
        assert torch.equal(book(ids[order]), labels[order].double())
    assert torch.equal(book(ids[order.flip(0)]), labels[order.flip(0)].double())
    assert torch.equal(book(ids[:2]), labels[:2].double())


def test_no_step_looks_its_labels_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LabelBook, "_looked_up", None)  # would fail
    trainer = small_trainer(attacks=[NormAttack()], audit=True)
    trainer.observe("telecom", "layers.1", NormAttack())
    trainer.fit(2)
    assert [summary.steps for summary in trainer.summaries("telecom").values()] == [6] * 5


def test_label_book_refuses_a_record_that_it_has_not() -> None:
    book = LabelBook(Records(record_ids(20), Columns.of(torch.zeros(20, 0)), torch.ones(20)))
    with pytest.raises(ArgumentError, match="no training record has the id 77"):
        book(torch.tensor([-5, 77]))


def test_per_record_guarantees_refuse_batch_norm() -> None:
    bottom = nn.Sequential(nn.Linear(5, 4), nn.BatchNorm1d(4))
    passive = PassiveParty(party_data("telecom", width=5), bottom)
    claim = [GaussianIR(clip=1.0, sigma=1.0)]
    with pytest.raises(PrivacyError, match="mixes the records"):
        Trainer(active_party(), {"telecom": passive}, defenses=claim, batch_size=16)


def test_a_failing_hook_names_itself_and_leaves_the_weights() -> None:
    class Broken:
        name = "broken"

        def __call__(self, message: Tensor, secrets: Secrets, /) -> Tensor:
            return message * math.nan

    trainer = small_trainer(defenses=[Broken()])
    before = weights(trainer)
    with pytest.raises(HookError, match="defense broken at step 0 wants to send NaN"):
        trainer.fit(1)
    assert same(before, weights(trainer))


def test_measurements_are_means_over_the_run() -> None:
    class Count:
        name = "count"

        def __call__(self, message: Tensor, secrets: Secrets, /) -> Tensor:
            secrets.log("step", secrets.step)
            return message.clone()

    trainer = small_trainer(defenses=[Count(), Count()])
    trainer.fit(2)
    assert trainer.measurements == {"telecom/count/step": 2.5, "telecom/count-2/step": 2.5}  # mean of 0 ... 5


def test_published_scores_are_rounded_and_test_figures_are_not() -> None:
    plain, rounded = small_trainer(), small_trainer(defenses=[Rounding(decimals=1)])
    assert plain.fit(1) == rounded.fit(1)
    scores = 10 * predict(rounded.active, rounded.passives).scores
    # One decimal, up to the rounding of a float32 about 10.
    torch.testing.assert_close(scores, scores.round(), rtol=0, atol=1e-6)
    assert not torch.equal(scores, 10 * predict(plain.active, plain.passives).scores)


def test_residue_solving_reads_the_labels_of_logistic_regression() -> None:
    """As many columns as records in a batch: the aggregated gradient tells every residue, hence every label."""
    trainer = linear_trainer(features=8, attacks=[ResidueSolvingAttack()], batch_size=8, audit=False)
    trainer.fit(1)
    assert trainer.summaries("telecom")["residue-solving"].auc == 1.0


def test_no_score_leaves_the_label_party_in_training() -> None:
    published: list[Tensor] = []

    class Notes:
        crossing = "scores"

        def __call__(self, scores: Tensor, secrets: Secrets, /) -> Tensor:
            published.append(scores)
            return scores

    trainer = small_trainer(defenses=[Notes()])
    trainer.fit(2)
    assert len(trainer.active.scores) == 1, "it stands where scores would leave"
    assert published == []


def test_a_defense_of_the_activation_acts_where_it_is_asked_to() -> None:
    class Notes:
        crossing = "activation"
        calls: list[str] = []  # noqa: RUF012  # shared by the copies

        def __init__(self, name: str) -> None:
            self.name = name

        def __call__(self, message: Tensor, secrets: Secrets, /) -> Tensor:
            self.calls.append(self.name)
            return message.clone()

    trainer = small_trainer(
        ("telecom", "shop"),
        defenses=[
            At(Notes("training"), "training"),
            At(Notes("scoring"), "evaluation", "prediction"),
            Notes("always"),
        ],
    )
    trainer.fit(1)  # three steps and an evaluation, at two parties
    assert {name: Notes.calls.count(name) for name in set(Notes.calls)} == {"training": 6, "scoring": 2, "always": 8}
    predict(trainer.active, trainer.passives)
    assert {name: Notes.calls.count(name) for name in set(Notes.calls)} == {"training": 6, "scoring": 4, "always": 10}


def test_evaluation_every_second_epoch_and_always_at_the_end() -> None:
    def evaluations(epochs: int) -> list[int]:
        trainer = small_trainer(evaluate_every=2)
        evaluated, at = trainer.training.evaluated, []

        def count(evaluation: Evaluation) -> None:
            assert trainer.training.plan is not None
            at.append(trainer.training.plan.step + 1)
            evaluated(evaluation)

        trainer.training.evaluated = count  # type: ignore[method-assign]
        trainer.fit(epochs)
        return at

    assert evaluations(3) == [6, 9]
    assert evaluations(4) == [6, 12]


def test_categorical_columns_hide_the_aggregated_gradient() -> None:
    data = party_data("telecom", width=2)
    codes = torch.zeros(48, 1, dtype=torch.int64)
    train = Records(data.train.ids, Columns(data.train.columns.numeric, codes))
    test = Records(data.test.ids, Columns(data.test.columns.numeric, codes[:24]))
    party = PassiveParty(PartyData("telecom", (), data.numeric_names, (1,), train, test), nn.Linear(2, 1))
    assert "aggregated_gradient" not in party.shows
    assert "columns" in party.shows


def test_a_folder_with_another_run_is_refused_unless_it_may_be_overwritten(tmp_path: Path) -> None:
    small_trainer(log_dir=tmp_path).fit(1)
    before = (tmp_path / "metrics.jsonl").read_text()

    with pytest.raises(ConfigError, match="already holds a run"):
        small_trainer(log_dir=tmp_path).fit(2)

    assert (tmp_path / "metrics.jsonl").read_text() == before
    again = small_trainer(log_dir=tmp_path, overwrite=True)
    again.fit(2)
    assert len((tmp_path / "metrics.jsonl").read_text()) > len(before)
    assert len(list(tmp_path.glob("events.out.tfevents.*"))) == 1


def test_an_attack_that_draws_numbers_does_not_change_the_model_it_watches() -> None:
    class Guess:
        def __call__(self, view: View, /) -> Tensor:
            return torch.rand(view.ids.shape[0])

    plain, watched = small_trainer(dropout=0.5), small_trainer(dropout=0.5, attacks=[Guess()])
    plain.fit(2)
    watched.fit(2)

    assert same(weights(plain), weights(watched))


def test_only_bfloat16_is_a_precision_to_train_in() -> None:
    with pytest.raises(ArgumentError, match=r"autocast must be torch\.bfloat16 or None, got torch.float16"):
        small_trainer(autocast=torch.float16)
    half, full = small_trainer(autocast=torch.bfloat16), small_trainer()
    assert [party.autocast for party in (half.active, *half.passives.values())] == [torch.bfloat16] * 2
    assert full.active.autocast is None
    assert half.fit(2)["auc"] == pytest.approx(full.fit(2)["auc"], abs=0.1)
    assert not same(weights(half), weights(full))


# --- attacks after training ------------------------------------------------------------------------------------------

COMPLETION: dict[str, Any] = {"known_positives": 4, "known_negatives": 5, "audit": False}


def completed(names: tuple[str, ...] = ("telecom",), **settings: Any) -> Trainer:
    return small_trainer(names, **{"optimizer": sgd, "attacks": [ModelCompletionAttack()], **COMPLETION, **settings})


def test_completion_is_judged_at_every_passive_party_when_training_has_ended() -> None:
    trainer = completed(("telecom", "shop"))
    assert trainer.after_training == {"telecom": {}, "shop": {}}
    trainer.fit(2)
    for found in trainer.after_training.values():
        result = found["model-completion"]
        assert (result.known_positives, result.known_negatives) == (4, 5)
        for part in (result.train, result.test, result.before_train, result.before_test):
            assert 0.0 <= part.auc <= 1.0
    assert trainer.leaks == {"telecom": {}, "shop": {}}  # no message was watched


def test_attacks_after_training_leave_weights_and_randomness_alone() -> None:
    with_attack, without = completed(dropout=0.3), completed(dropout=0.3, attacks=[])
    for trainer in (with_attack, without):
        torch.manual_seed(3)
        trainer.fit(2)
        trainer.fit(3)  # trained on after it was attacked
    assert same(weights(with_attack), weights(without))
    assert with_attack.after_training["telecom"]
    random = [trainer.passives["telecom"].random.state_dict()["cpu"] for trainer in (with_attack, without)]
    assert torch.equal(*random)


def test_a_resumed_run_completes_the_same_models(tmp_path: Path) -> None:
    straight = completed(log_dir=tmp_path / "straight")
    straight.fit(4)
    completed(log_dir=tmp_path / "broken").fit(2)
    resumed = completed(log_dir=tmp_path / "broken")
    resumed.resume()
    resumed.fit(4)
    assert resumed.after_training == straight.after_training
    assert read_metrics(tmp_path / "broken") == read_metrics(tmp_path / "straight")
    finished = completed(log_dir=tmp_path / "straight")
    finished.resume()
    finished.fit(4)  # nothing is left to train
    assert finished.after_training == straight.after_training


def test_what_was_learned_after_training_is_logged_at_the_last_step(tmp_path: Path) -> None:
    trainer = completed(log_dir=tmp_path)
    trainer.fit(1)
    last = read_metrics(tmp_path)[-1]
    result = trainer.after_training["telecom"]["model-completion"]
    assert last["step"] == trainer.step
    assert last["leak_auc_after_training/telecom/model-completion"] == result.train.auc
    assert last["leak_auc_after_training_baseline_test/telecom/model-completion"] == result.before_test.auc


def test_training_teaches_a_bottom_what_completion_reads_unless_the_labels_mean_nothing() -> None:
    sizes = {"train": 600, "test": 400}
    found = []
    for meaningful in (True, False):
        trainer = completed(sizes=sizes, known_positives=2, known_negatives=2, batch_size=60)
        if not meaningful:
            labels = trainer.active.data.train.labels
            assert labels is not None
            labels.copy_(labels[torch.randperm(600, generator=torch.Generator().manual_seed(1))])
        trainer.fit(15)
        result = trainer.after_training["telecom"]["model-completion"]
        found.append((result.test.auc, result.before_test.auc))
    # Columns and labels share one factor; the standard error of an AUC of 400 records is .03.
    assert found[0][0] > found[0][1] + 0.1
    assert found[1][0] < found[0][0] - 0.1


def test_known_records_of_both_classes_reach_attacks_at_a_cut_and_at_a_layer() -> None:
    told: list[tuple[int, int]] = []

    class Told(GradientClassifierAttack):
        def __call__(self, view: View, /) -> Tensor:
            told.append((view.known_positives.numel(), view.known_negatives.numel()))
            return super().__call__(view)

    trainer = small_trainer(attacks=[Told()], **COMPLETION)
    trainer.observe("telecom", "layers.1", Told())
    trainer.fit(2)
    assert set(told[-2:]) == {(4, 5)}
    assert set(trainer.leaks["telecom"]) == {"gradient-classifier", "gradient-classifier@layers.1"}


def test_attacks_after_training_that_want_messages_or_a_layer_are_refused() -> None:
    class Greedy(ModelCompletionAttack):
        needs = frozenset({"bottom", "gradient", "scores"})

    trainer = small_trainer(attacks=[Greedy()], audit=False)
    trainer.fit(1)
    assert trainer.unavailable["telecom"] == {"model-completion": "needs the gradient of each record, published scores"}
    with pytest.raises(ArgumentError, match="acts after training"):
        trainer.observe("telecom", "layers.1", ModelCompletionAttack())
    with pytest.raises(ArgumentError, match="known_negatives must be at least 0"):
        small_trainer(known_negatives=-1)


# --- what is judged


class Shy:
    """Scores the records whose gradients are longest or shortest, and leaves out the others."""

    name, needs = "shy", ("gradient",)

    def __call__(self, view: View, /) -> Tensor:
        norms = view.gradient.norm(dim=1)
        return norms.masked_fill((norms - norms.mean()).abs() < norms.std(), math.nan)


def test_the_share_that_an_attack_scores_and_its_second_auc_are_logged_beside_its_own(tmp_path: Path) -> None:
    trainer = small_trainer(attacks=[Shy(), NormAttack()], log_dir=tmp_path, log_every=1)
    trainer.fit(2)
    last = read_metrics(tmp_path)[-1]
    found = trainer.summaries("telecom")["shy"]
    assert 0.0 < found.scored < 1.0
    assert last["leak_scored/telecom/shy"] == found.scored
    assert last["leak_auc_accumulated_tied/telecom/shy"] == found.tied_accumulated_auc
    assert last["leak_auc_accumulated/telecom/shy"] == found.accumulated_auc != found.tied_accumulated_auc
    assert last["leak_auc_tied/telecom/shy"] == trainer.leaks["telecom"]["shy"].keeper.recent_tied_auc
    assert not [tag for tag in last if "norm" in tag and ("tied" in tag or "scored" in tag)]
    # What is called the worst leak is not the figure that abstaining raises.
    assert last["leak_auc/worst"] == max(one.worst for one in trainer.summaries("telecom").values())


def test_attacks_are_told_of_ten_records_of_each_class_or_of_half() -> None:
    many, few = (small_trainer(sizes={"train": count}) for count in (200, 20))
    assert (many.known_positives, many.known_negatives) == (10, 10)
    labels = few.active.data.train.labels
    assert labels is not None
    positives = int(labels.sum())
    assert (few.known_positives, few.known_negatives) == (min(10, positives // 2), min(10, (20 - positives) // 2))
    assert few.known_positives < 10

"""Activations cross once and nothing comes back: what is learned is what one would learn from them in one place."""

from __future__ import annotations

import hashlib
import shutil
import stat
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.linear_model import RidgeCV
from sklearn.metrics import r2_score
from torch import Tensor, nn

from splitvfl.app.experiment import build_trainer
from splitvfl.app.records import load_data
from splitvfl.app.trainer import Trainer
from splitvfl.attacks import ModelCompletionAttack, NormAttack
from splitvfl.config.sections import parse_config
from splitvfl.defenses import GaussianIR, Isotropic, RandomisedResponse, Rounding
from splitvfl.errors import ArgumentError, CheckpointError, ConfigError, DataError, LinkError, ProtocolError
from splitvfl.exchange.one_way import OneWay
from splitvfl.exchange.parts import part_to_score
from splitvfl.exchange.prediction import predict
from splitvfl.learning.batches import Batches
from splitvfl.learning.schedule import EarlyStopping
from splitvfl.messaging.conversation import Expected, Half, Outbox, converse
from splitvfl.messaging.json_message import awaited_note, note, read_note
from splitvfl.messaging.messages import Message, decode, encode
from splitvfl.models import PCA, LinearTop
from splitvfl.party import kept
from splitvfl.party.party import ActiveParty, PassiveParty
from splitvfl.run import trainer as training
from tests.builders import ACTIVE, WIDTH, active_party, bottom_model, party_data, passive_party, sgd, small_trainer


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """48 training and 24 test records cross in pieces of 10: 5 and 3."""
    monkeypatch.setattr(kept, "PIECE_ROWS", 10)


def one_way(names: tuple[str, ...] = ("telecom",), **settings: Any) -> Trainer:
    return small_trainer(names, **{"exchange": OneWay(), "optimizer": sgd, **settings})


def weights(trainer: Trainer) -> list[Tensor]:
    return [weight.detach().clone() for weight in trainer.active.top.parameters()]


@pytest.mark.parametrize("names", [("telecom",), ("shop", "telecom")])
def test_the_top_is_the_one_trained_on_the_same_activations_in_one_place(names: tuple[str, ...]) -> None:
    trainer = one_way(names, seed=4)
    before = [weight.clone() for party in trainer.passives.values() for weight in party.bottom.parameters()]
    trainer.fit(3)

    alone, bottoms = active_party(len(names)), [bottom_model(name) for name in names]
    train = [party_data(name, width=5).train.columns.numeric for name in names]
    with torch.no_grad():
        inputs = torch.cat(
            [*(bottom(rows) for bottom, rows in zip(bottoms, train, strict=True)), alone.data.train.columns.numeric], 1
        )
    optimizer, labels = sgd(alone.top.parameters()), alone.data.train.labels
    assert labels is not None
    for epoch in range(3):
        for rows in Batches(48, 16, seed=4).epoch(epoch):
            optimizer.zero_grad()
            nn.functional.binary_cross_entropy_with_logits(alone.top(inputs[rows])[:, 0], labels[rows]).backward()
            optimizer.step()
    # Rows of 10 and of 48 go through the bottom's matrices in another order of sums.
    torch.testing.assert_close(weights(trainer), [weight.detach() for weight in alone.top.parameters()])
    after = [weight for party in trainer.passives.values() for weight in party.bottom.parameters()]
    assert all(map(torch.equal, before, after))
    assert set(trainer.test) == {"auc", "loss"}


def test_each_activation_crosses_once_and_nothing_but_a_number_comes_back() -> None:
    crossed: list[Message] = []
    trainer = one_way(record=crossed.append)
    trainer.fit(4)
    trainer.fit(5)
    rows = [one for one in crossed if one.kind == "activation"]
    assert [tuple(one.payload.shape) for one in rows] == [(10, WIDTH)] * 4 + [(8, WIDTH)] + [(10, WIDTH)] * 2 + [(4, 4)]
    assert [bytes(one.payload.numpy()) for one in crossed if one.receiver != ACTIVE] == [
        b'{"pieces": 0}',
        b'{"pieces": 8}',
        b'{"pieces": 8}',
        b'{"pieces": 8}',
    ]


class Everything:
    """Every message of every conversation of a run, by receiver."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.sent: dict[str, list[bytes]] = {}

        def recorded(halves: Any, *, turns: Any = None, record: Any = None) -> dict[str, Any]:
            return converse(halves, turns=turns, record=self.see)

        monkeypatch.setattr(training, "converse", recorded)

    def see(self, message: Message) -> None:
        self.sent.setdefault(message.receiver, []).append(encode(message))


def with_labels(trainer: Trainer, labels: Tensor) -> None:
    train = trainer.active.data.train.labels
    assert train is not None
    train.copy_(labels)


@pytest.mark.parametrize("stopping", [None, EarlyStopping(patience=1, validation_every=4)])
def test_no_byte_that_a_passive_party_receives_depends_on_labels(
    stopping: EarlyStopping | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen, ends = [], []
    for labels in (torch.arange(48) % 2, torch.arange(48) % 3 == 0, torch.arange(48) < 24, None):
        everything = Everything(monkeypatch)
        trainer = one_way(("telecom", "shop"), early_stopping=stopping)
        if labels is not None:
            with_labels(trainer, labels.float())
        trainer.fit(8)
        seen.append({name: everything.sent[name] for name in ("telecom", "shop")})
        ends.append((trainer.step, weights(trainer)))
        states = {name: party.state_dict() for name, party in trainer.passives.items()}
        assert not any(state["stopped"] or state["epoch"] for state in states.values())
    assert all(one == seen[0] for one in seen)
    assert [len(sent) for sent in seen[0].values()] == [3, 3]  # terms, and twice how many pieces have arrived
    assert not all(map(torch.equal, ends[0][1], ends[1][1]))  # and the labels made a difference
    assert (len({steps for steps, _ in ends}) > 1) == (stopping is not None)


def test_no_part_of_an_evaluation_or_a_verdict_crosses(monkeypatch: pytest.MonkeyPatch) -> None:
    everything = Everything(monkeypatch)
    one_way(early_stopping=EarlyStopping(patience=2)).fit(4)
    kinds = {decode(sent).kind for messages in everything.sent.values() for sent in messages}
    assert kinds == {"agreement", "kept", "crossing", "activation"}


@pytest.mark.parametrize("task", ["multiclass", "regression"])
def test_other_tasks_are_learned_too(task: str) -> None:
    trainer = one_way(task=task, audit=False)
    trainer.fit(2)
    assert trainer.step == 6
    assert all(torch.isfinite(weight).all() for weight in weights(trainer))


def test_label_attacks_are_listed_as_unavailable_and_nobody_is_audited() -> None:
    trainer = one_way(attacks=[NormAttack(), ModelCompletionAttack()])
    trainer.fit(1)
    assert trainer.audits == {}
    assert list(trainer.unavailable["telecom"]) == ["norm"]
    assert "there is nothing to see" in trainer.unavailable["telecom"]["norm"]
    with pytest.raises(ArgumentError, match="cannot be watched: nothing comes back"):
        trainer.observe("telecom", "layers.0", NormAttack())


def test_dropout_of_a_bottom_is_in_evaluation_mode_and_left_as_it_was() -> None:
    crossed: list[Message] = []
    trainer = one_way(record=crossed.append, dropout=0.5)
    trainer.fit(1)
    bottom = trainer.passives["telecom"].bottom
    assert bottom.training
    bottom.eval()
    rows = torch.cat([one.payload for one in crossed if one.kind == "activation"])
    data = trainer.passives["telecom"].data
    with torch.no_grad():
        expected = torch.cat([bottom(part.columns.numeric) for part in (data.train, data.test)])
    torch.testing.assert_close(rows, expected)


def test_half_precision_on_the_wire_is_kept_as_it_crossed() -> None:
    crossed: list[Message] = []
    trainer = one_way(record=crossed.append, wire=torch.bfloat16)
    trainer.fit(2)
    assert {one.payload.dtype for one in crossed if one.kind == "activation"} == {torch.bfloat16}
    assert trainer._sides[ACTIVE]._kept.size == 72 * WIDTH * 2  # type: ignore[attr-defined]


def test_a_prediction_is_made_together_as_with_split() -> None:
    trainer = one_way()
    trainer.fit(2)
    party, active = trainer.passives["telecom"], trainer.active
    found = predict(active, trainer.passives)
    with torch.no_grad():
        joined = torch.cat([party.bottom(party.data.test.columns.numeric), active.data.test.columns.numeric], 1)
        torch.testing.assert_close(found.outputs, active.top(joined))
    labels = active.data.test.labels
    assert labels is not None
    assert trainer.test["auc"] == active.task.measure(found.outputs, labels)


# --- kept, and taken up again


@pytest.mark.parametrize("limits", [{}, {"memory_mib": 0}], ids=["read", "mapped"])
def test_what_is_kept_in_a_folder_is_what_is_kept_in_memory(limits: dict[str, int], tmp_path: Path) -> None:
    alone, kept_there = one_way(), one_way(log_dir=tmp_path, exchange=OneWay(**limits))
    alone.fit(2)
    kept_there.fit(2)
    assert all(map(torch.equal, weights(alone), weights(kept_there)))
    files = [*(tmp_path / "kept").iterdir()]
    assert {path.name for path in files} == {"0.rows", "index.json"}
    assert {stat.S_IMODE(path.stat().st_mode) for path in files} == {0o600}
    assert stat.S_IMODE((tmp_path / "kept").stat().st_mode) == 0o700


def resumed(folder: Path, **settings: Any) -> Trainer:
    trainer = one_way(log_dir=folder, **settings)
    trainer.resume()
    return trainer


NOISE: dict[str, Any] = {"defenses": [GaussianIR(clip=1.0, sigma=0.5)]}


@pytest.mark.parametrize("settings", [{}, NOISE], ids=["plain", "noise"])
@pytest.mark.parametrize("lost", [False, True], ids=["kept", "lost"])
def test_a_resumed_run_ends_like_an_undisturbed_one(settings: dict[str, Any], lost: bool, tmp_path: Path) -> None:
    """With noise from entropy too; where the kept activations were lost, the same ones are sent again, to the bit."""
    first = one_way(log_dir=tmp_path, **settings)
    first.fit(2)
    shutil.copytree(tmp_path, tmp_path / "copy")
    first.fit(4)
    if lost:
        shutil.rmtree(tmp_path / "copy" / "kept")
    crossed: list[Message] = []
    second = resumed(tmp_path / "copy", record=crossed.append, **settings)
    second.fit(4)
    assert all(map(torch.equal, weights(first), weights(second)))
    assert [one.kind for one in crossed].count("activation") == (8 if lost else 0)


def test_a_crossing_that_broke_off_goes_on_where_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = one_way(**NOISE, noise_seed_for_experiments=3)
    whole.fit(1)
    trainer = one_way(log_dir=tmp_path, **NOISE, noise_seed_for_experiments=3)
    put = kept.Kept.add

    def breaking(self: kept.Kept, payloads: Any) -> None:
        if self.done == 6:
            raise LinkError("gone")
        put(self, payloads)

    monkeypatch.setattr(kept.Kept, "add", breaking)
    with pytest.raises(LinkError):
        trainer.fit(1)
    monkeypatch.setattr(kept.Kept, "add", put)
    crossed: list[Message] = []
    trainer.record = crossed.append
    trainer.fit(1)
    assert [one.step for one in crossed if one.kind == "activation"] == [6, 7]
    assert all(map(torch.equal, weights(whole), weights(trainer)))


def changed_columns(trainer: Trainer) -> None:
    trainer.passives["telecom"].data.train.columns.numeric[7, 0] += 1.0


def changed_bottom(trainer: Trainer) -> None:
    with torch.no_grad():
        next(trainer.passives["telecom"].bottom.parameters())[0, 0] += 1.0


def test_a_run_whose_partners_columns_changed_is_not_resumed(tmp_path: Path) -> None:
    one_way(log_dir=tmp_path).fit(1)
    trainer = resumed(tmp_path)
    changed_columns(trainer)
    with pytest.raises(DataError, match=r"the columns, the bottom or the defenses of telecom are others .*--overwrite"):
        trainer.fit(2)


@pytest.mark.parametrize("change", [changed_columns, changed_bottom])
def test_a_partner_that_changes_between_two_calls_is_refused(change: Any) -> None:
    trainer = one_way()
    trainer.fit(1)
    change(trainer)
    with pytest.raises(DataError, match="of telecom are others than those"):
        trainer.fit(2)


def test_a_label_party_whose_kept_activations_were_replaced_is_refused(tmp_path: Path) -> None:
    """By whole files of another run, which are undamaged, and by a damaged one."""
    one_way(log_dir=tmp_path / "one").fit(1)
    one_way(log_dir=tmp_path / "two", **NOISE).fit(1)
    shutil.rmtree(tmp_path / "one" / "kept")
    shutil.copytree(tmp_path / "two" / "kept", tmp_path / "one" / "kept")
    with pytest.raises(DataError, match="activations of telecom are not those that this run was trained on"):
        resumed(tmp_path / "one").fit(2)
    rows = tmp_path / "two" / "kept" / "0.rows"
    rows.write_bytes(b"\x01" + rows.read_bytes()[1:])
    with pytest.raises(CheckpointError, match=r"0\.rows is damaged: it does not hold what telecom sent"):
        resumed(tmp_path / "two", **NOISE).fit(2)
    (tmp_path / "two" / "kept" / "index.json").write_text('{"format": "splitvfl kept 1"}')
    with pytest.raises(CheckpointError, match=r"index\.json is damaged"):
        resumed(tmp_path / "two", **NOISE).fit(2)


def test_an_overwritten_run_keeps_nothing_of_the_one_before(tmp_path: Path) -> None:
    one_way(log_dir=tmp_path, seed=1).fit(1)
    with pytest.raises(ConfigError, match="already holds a run"):
        one_way(log_dir=tmp_path).fit(1)
    crossed: list[Message] = []
    one_way(log_dir=tmp_path, overwrite=True, record=crossed.append).fit(1)
    assert [one.kind for one in crossed].count("activation") == 8


# --- what is refused


def test_more_than_may_be_kept_is_refused_before_it_is_sent(tmp_path: Path) -> None:
    crossed: list[Message] = []
    trainer = one_way(exchange=OneWay(memory_mib=0), record=crossed.append)
    with pytest.raises(ConfigError, match=r"72 records \(telecom 4 wide\) are 0.0 MiB, and 0 MiB .* the run a folder"):
        trainer.fit(1)
    in_folder = one_way(exchange=OneWay(disk_mib=0), log_dir=tmp_path, record=crossed.append)
    with pytest.raises(ConfigError, match=r"0 MiB may be kept in the run's folder \(exchange\.disk_mib\)"):
        in_folder.fit(1)
    assert "activation" not in [one.kind for one in crossed if one.step]
    assert not (tmp_path / "kept").exists()


@pytest.mark.parametrize(
    ("defense", "what"), [(Isotropic(ratio=1.0), "gradient"), (RandomisedResponse(epsilon=1.0), "labels")]
)
def test_defenses_of_what_does_not_cross_are_refused(defense: Any, what: str) -> None:
    with pytest.raises(ConfigError, match=rf"a defense of the {what} has nothing to defend in exchange one-way"):
        one_way(defenses=[defense])


def test_a_defense_that_is_attached_later_is_refused_too() -> None:
    trainer = one_way()
    trainer.active.cuts["telecom"].defend(Isotropic(ratio=1.0))
    with pytest.raises(ConfigError, match="take it out, or take exchange split"):
        trainer.fit(1)


def test_defenses_of_scores_stay() -> None:
    trainer = one_way(defenses=[Rounding(decimals=1)])
    trainer.fit(1)
    scores = predict(trainer.active, trainer.passives).scores
    torch.testing.assert_close(scores * 10, (scores * 10).round())


@pytest.mark.parametrize("layer", [nn.BatchNorm1d(4), nn.InstanceNorm1d(4, track_running_stats=True)])
def test_a_bottom_whose_statistics_are_filled_in_training_is_refused(layer: nn.Module) -> None:
    party = PassiveParty(party_data("telecom", width=5), nn.Sequential(nn.Linear(5, 4), layer))
    with pytest.raises(ConfigError, match=rf"the bottom of telecom has .* \(1, {type(layer).__name__}\).* LayerNorm"):
        Trainer(active_party(), {"telecom": party}, batch_size=16, exchange=OneWay())


def test_a_bottom_other_than_agreed_is_refused() -> None:
    """The exchange makes no bottom: it announced principal components, and another one was trained over."""
    fitted = PCA(5, 3).fit(party_data("telecom", width=5).train.columns.numeric)
    for exchange in (OneWay(bottom="pca"), OneWay(bottom="pca", width=3)):
        active = ActiveParty(party_data(ACTIVE, width=2, task="binary"), nn.Linear(5, 1))
        Trainer(
            active, {"telecom": PassiveParty(party_data("telecom", width=5), fitted)}, batch_size=16, exchange=exchange
        ).fit(1)
    with pytest.raises(ConfigError, match="bottom: pca needs a bottom of principal components at telecom, got MLP"):
        one_way(exchange=OneWay(bottom="pca"))
    with pytest.raises(ConfigError, match="the agreed width is 3, and the bottom of telecom puts out 4"):
        one_way(exchange=OneWay(width=3))


def test_a_top_that_adds_up_logits_is_refused() -> None:
    active = ActiveParty(party_data(ACTIVE, width=2, task="binary"), LinearTop(1, 1, active_inputs=2))
    with pytest.raises(ConfigError, match=r"LinearTop of bank adds up logits.* take model mlp"):
        Trainer(active, {"telecom": passive_party("telecom")}, batch_size=16, exchange=OneWay())


def test_activations_that_are_not_finite_are_not_sent() -> None:
    trainer = one_way()
    trainer.passives["telecom"].data.train.columns.numeric[3, 1] = torch.inf
    with pytest.raises(ProtocolError, match="the activation of step 0 of telecom holds NaN or infinite values"):
        trainer.fit(1)


def hostile(answer: dict[str, Any], payload: Tensor | None = None) -> Half:
    yield Outbox(wait=(awaited_note(ACTIVE, "kept", 0),))
    yield Outbox(send=(note("telecom", ACTIVE, "crossing", 0, answer),))
    if payload is not None:
        yield Outbox(send=(Message("telecom", ACTIVE, "activation", 0, payload),))


GOOD = {"width": 4, "dtype": "float32"}


def with_nan() -> Tensor:
    payload = torch.zeros(10, 4)
    payload[9, 3] = torch.nan
    return payload


@pytest.mark.parametrize(
    ("answer", "payload", "complaint"),
    [
        ({}, None, "a width of 1 to 65536, got nothing"),
        (GOOD | {"width": 0}, None, "got 0"),
        (GOOD | {"width": True}, None, "got true"),
        (GOOD | {"width": 1 << 40}, None, "a width of 1 to 65536, got 1099511627776"),
        (GOOD | {"dtype": "float64"}, None, "to send activations in float32, got 'float64'"),
        (GOOD | {"dtype": ["float32"]}, None, "to send activations in float32, got "),
        (GOOD, torch.zeros(10, 5), "activation of step 0 from telecom to be 10 x 4 in float32, got 10 x 5"),
        (GOOD, torch.zeros(9, 4), "got 9 x 4"),
        (GOOD, torch.zeros(10, 4, dtype=torch.float64), "got 10 x 4 in float64"),
        (GOOD, with_nan(), "piece 0 of the activations of telecom holds NaN"),
    ],
)
def test_what_a_hostile_partner_sends_is_refused(answer: Any, payload: Tensor | None, complaint: str) -> None:
    trainer = one_way()
    side = OneWay().active(trainer.active)
    with pytest.raises(ProtocolError, match=complaint):
        converse({ACTIVE: side.open(), "telecom": hostile(answer, payload)})


def test_a_wide_announcement_takes_no_memory() -> None:
    side = OneWay(memory_mib=1).active(one_way().active)
    with pytest.raises(ConfigError, match="telecom 65536 wide"):
        converse({ACTIVE: side.open(), "telecom": hostile(GOOD | {"width": 65536})})


def test_a_width_that_was_introduced_is_kept_to() -> None:
    trainer = one_way()
    trainer.active.widths = {"telecom": 3}
    with pytest.raises(ProtocolError, match="a width of 3, as it was introduced, got 4"):
        converse({ACTIVE: OneWay().active(trainer.active).open(), "telecom": hostile(GOOD)})


@pytest.mark.parametrize("pieces", [-1, 9, True, "8", None])
def test_a_label_party_that_asks_for_what_there_is_not_is_refused(pieces: Any) -> None:
    def asking() -> Half:
        yield Outbox(send=(note(ACTIVE, "telecom", "kept", 0, {"pieces": pieces}),))

    side = OneWay().passive(passive_party("telecom"), ACTIVE)
    with pytest.raises(ProtocolError, match="expected bank to have 0 to 8 pieces of activations, got"):
        converse({ACTIVE: asking(), "telecom": side.open()})


def test_a_label_party_that_has_not_got_everything_is_refused() -> None:
    def forgetting() -> Half:
        yield Outbox(send=(note(ACTIVE, "telecom", "kept", 0, {"pieces": 8}),), wait=(ANSWERED,))
        yield Outbox(send=(note(ACTIVE, "telecom", "kept", 8, {"pieces": 7}),))

    side = OneWay().passive(passive_party("telecom"), ACTIVE)
    with pytest.raises(ProtocolError, match="expected bank to have 8 pieces of activations in the end, got 7"):
        converse({ACTIVE: forgetting(), "telecom": side.open()})


def test_a_label_party_that_asks_twice_gets_the_same_noise_again() -> None:
    """Two draws of the noise on one row would be two looks at it; predictions later draw their own."""
    party = passive_party("telecom")
    party.activation.attach(GaussianIR(clip=1.0, sigma=0.5))
    side = OneWay().passive(party, ACTIVE)
    seen = []
    for done in (0, 3, 0):
        crossed: list[Message] = []

        def asking(done: int = done) -> Half:
            inbox = yield Outbox(send=(note(ACTIVE, "telecom", "kept", 0, {"pieces": done}),), wait=(ANSWERED,))
            assert ("digest" in read_note(inbox["telecom"])) == bool(done)
            for piece in list(kept.Pieces(48, 24))[done:]:
                size = (len(piece.rows), WIDTH)
                yield Outbox(wait=(Expected("telecom", "activation", piece.number, (torch.float32,), size),))
            yield Outbox(send=(note(ACTIVE, "telecom", "kept", 8, {"pieces": 8}),))

        converse({ACTIVE: asking(), "telecom": side.open()}, record=crossed.append)
        seen.append({one.step: one.payload for one in crossed if one.kind == "activation"})
    assert [sorted(pieces) for pieces in seen] == [[*range(8)], [*range(3, 8)], [*range(8)]]
    assert all(torch.equal(pieces[step], seen[0][step]) for pieces in seen for step in pieces)
    assert not torch.equal(seen[0][0][:4], seen[0][5][:4])
    later = part_to_score(party, party.train_batch(torch.arange(10)), 0, "prediction", kind="activation")
    assert not torch.equal(later, seen[0][0])


ANSWERED = awaited_note("telecom", "crossing", 0)


def test_the_digest_is_the_one_that_the_specification_describes() -> None:
    """By hand from docs/reference/protocol.md."""
    payload = torch.tensor([[1.0, 2.0]])
    chain = kept.Chain(kept.Form(2, torch.float32))
    chain.add(payload)
    start = hashlib.sha256(b"2 float32").digest()
    assert chain.value == hashlib.sha256(start + bytes.fromhex("0000803f00000040")).hexdigest()


def test_wide_random_features_tell_columns_to_who_knows_some_records() -> None:
    """What is said of columns where the promise about labels is made: figures of one seed, with some room."""
    text = """
data: {name: breast-cancer}
parties:
  clinic: {role: active, columns: ["mean *"]}
  lab: {role: passive, columns: ["worst *", "* error"]}
model: {name: mlp, bottom: [256, 128]}
exchange: {name: one-way, bottom: BOTTOM}
train: {epochs: 1, batch_size: 64}
"""
    for bottom, least in (("random", 0.9), ("pca", 0.99)):
        config = parse_config(text.replace("BOTTOM", bottom), source="columns.yaml")
        trainer = build_trainer(config, load_data(config))
        crossed: list[Message] = []
        trainer.record = crossed.append
        trainer.fit(1)
        columns = trainer.passives["lab"].data.train.columns.numeric.numpy()
        rows = torch.cat([one.payload for one in crossed if one.kind == "activation"])[: len(columns)].numpy()
        guess = RidgeCV(np.logspace(-4, 2, 13)).fit(rows[:100], columns[:100]).predict(rows[100:])
        assert r2_score(columns[100:], guess, multioutput="variance_weighted") > least

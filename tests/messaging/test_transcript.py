"""Recording, keeping and replaying conversations."""

from __future__ import annotations

import struct
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor

from splitvfl.defenses.isotropic import Isotropic
from splitvfl.errors import ProtocolError
from splitvfl.exchange.split_step import active_step, passive_step
from splitvfl.learning.batches import Batches
from splitvfl.messaging.conversation import Half, Outbox
from splitvfl.messaging.messages import Message
from splitvfl.messaging.transcript import Transcript, replay
from splitvfl.party.party import ActiveParty, PassiveParty
from splitvfl.run.trainer import Trainer
from tests.builders import ACTIVE, awaited, same, sgd, small_trainer

EPOCHS = 2


def trainer(names: tuple[str, ...], record: Callable[[Message], None] | None = None) -> Trainer:
    settings = {"defenses": [Isotropic()], "noise_seed_for_experiments": 5, "optimizer": sgd}
    return small_trainer(names, record=record, **settings)


def rows_of_the_run() -> list[Tensor]:
    batches = Batches(48, 16, seed=0)
    return [rows for epoch in range(EPOCHS) for rows in batches.epoch(epoch)]


def passive_run(party: PassiveParty) -> Half:
    """All steps of one passive party, one after the other."""
    for step, rows in enumerate(rows_of_the_run()):
        yield from passive_step(party, party.train_batch(rows), step, active=ACTIVE)
    return party.name


def active_run(party: ActiveParty) -> Half:
    losses = []
    for step, rows in enumerate(rows_of_the_run()):
        losses.append((yield from active_step(party, party.train_batch(rows), step)))
    return losses


@pytest.fixture(scope="module")
def recorded() -> tuple[Transcript, Trainer]:
    transcript = Transcript()
    run = trainer(("telecom", "shop"), transcript.record)
    run.fit(EPOCHS)
    return transcript, run


def test_every_message_is_kept_in_order(recorded: tuple[Transcript, Trainer]) -> None:
    transcript, _ = recorded
    steps = EPOCHS * 3  # 48 records in batches of 16
    assert len(transcript) == steps * 4  # an activation and a gradient per passive party
    assert [message.step for message in transcript] == sorted(message.step for message in transcript)
    kinds = {(message.sender, message.receiver, message.kind) for message in transcript}
    assert kinds == {
        *((name, ACTIVE, "activation") for name in ("telecom", "shop")),
        *((ACTIVE, name, "gradient") for name in ("telecom", "shop")),
    }


@pytest.mark.parametrize("name", ["telecom", "shop"])
def test_a_passive_half_replayed_from_a_file_ends_with_the_same_weights(
    recorded: tuple[Transcript, Trainer], tmp_path: Path, name: str
) -> None:
    transcript, run = recorded
    transcript.save(tmp_path / "transcript")
    party = trainer(("telecom", "shop")).passives[name]
    before = {key: value.clone() for key, value in party.module.state_dict().items()}
    assert replay(passive_run(party), name, Transcript.load(tmp_path / "transcript")) == name
    assert same(party.module.state_dict(), run.passives[name].module.state_dict())
    assert not same(party.module.state_dict(), before)


def test_the_active_half_replays_its_noise_too(recorded: tuple[Transcript, Trainer]) -> None:
    transcript, run = recorded
    active = trainer(("telecom", "shop")).active
    losses = replay(active_run(active), ACTIVE, transcript)
    assert len(losses) == EPOCHS * 3
    assert same(active.module.state_dict(), run.active.module.state_dict())


def changed(transcript: Transcript, position: int, change: Callable[[Message], Message | None]) -> Transcript:
    copy = Transcript()
    for number, message in enumerate(transcript):
        new = change(message) if number == position else message
        if new is not None:
            copy.record(new)
    return copy


def readdressed(message: Message, **new: object) -> Message:
    parts = {name: getattr(message, name) for name in ("sender", "receiver", "kind", "step", "payload")}
    return Message(**{**parts, **new})


def one_bit(payload: Tensor) -> Tensor:
    altered = payload.clone()
    altered.view(torch.int32)[-1, -1] ^= 1
    return altered


SENT = {
    "payload": lambda message: readdressed(message, payload=one_bit(message.payload)),
    "dtype": lambda message: readdressed(message, payload=message.payload.double()),
    "shape": lambda message: readdressed(message, payload=message.payload[:-1]),
    "step": lambda message: readdressed(message, step=9),
    "kind": lambda message: readdressed(message, kind="scores"),
    "receiver": lambda message: readdressed(message, receiver="shop"),
    "missing": lambda message: None,
}


@pytest.mark.parametrize("change", SENT.values(), ids=SENT.keys())
def test_sending_anything_else_than_was_recorded_is_an_error(
    recorded: tuple[Transcript, Trainer], change: Callable[[Message], Message | None]
) -> None:
    transcript, _ = recorded
    position = next(number for number, m in enumerate(transcript) if m.sender == "telecom" and m.step == 2)
    party = trainer(("telecom", "shop")).passives["telecom"]
    with pytest.raises(ProtocolError, match="telecom sent another activation at step 2 than was recorded"):
        replay(passive_run(party), "telecom", changed(transcript, position, change))


def test_an_altered_gradient_is_found_at_the_next_step(recorded: tuple[Transcript, Trainer]) -> None:
    transcript, _ = recorded
    position = next(number for number, m in enumerate(transcript) if m.receiver == "telecom" and m.step == 1)
    altered = changed(transcript, position, lambda m: readdressed(m, payload=m.payload + 1.0))
    party = trainer(("telecom", "shop")).passives["telecom"]
    with pytest.raises(ProtocolError, match="activation at step 2"):
        replay(passive_run(party), "telecom", altered)


def test_a_half_that_waits_for_more_than_was_recorded_is_an_error(recorded: tuple[Transcript, Trainer]) -> None:
    transcript, _ = recorded
    last = max(number for number, message in enumerate(transcript) if message.receiver == "telecom")
    party = trainer(("telecom", "shop")).passives["telecom"]
    with pytest.raises(ProtocolError, match=f"telecom waits for more from {ACTIVE} than was recorded"):
        replay(passive_run(party), "telecom", changed(transcript, last, lambda _: None))


def test_letters_of_one_outbox_come_from_the_senders_asked_for() -> None:
    def half() -> Half:
        inbox = yield Outbox(wait=(awaited("b", "scores", 3), awaited("c", "scores", 1)))
        again = yield Outbox(wait=(awaited("c", "scores", 2),))
        return inbox["b"].step, inbox["c"].step, again["c"].step

    transcript = Transcript()
    for sender, step in (("c", 1), ("c", 2), ("b", 3)):
        transcript.record(Message(sender, "a", "scores", step, torch.zeros(1)))
    assert replay(half(), "a", transcript) == (3, 1, 2)


def some_messages() -> Transcript:
    transcript = Transcript()
    for step, dtype in enumerate((torch.float32, torch.bfloat16, torch.int64)):
        transcript.record(Message("bank", "telecom", "gradient", step, torch.arange(6).reshape(2, 3).to(dtype)))
    return transcript


def test_a_recorded_message_does_not_follow_the_tensor_that_was_sent() -> None:
    payload = torch.ones(3, requires_grad=True)
    transcript = Transcript()
    transcript.record(Message("a", "b", "scores", 0, payload))
    with torch.no_grad():
        payload.zero_()
    kept = transcript.messages[0].payload
    assert kept.tolist() == [1.0, 1.0, 1.0]
    assert not kept.requires_grad


def test_saved_and_loaded_messages_are_equal(tmp_path: Path) -> None:
    transcript = some_messages()
    transcript.save(tmp_path / "t")
    loaded = Transcript.load(tmp_path / "t")
    assert len(loaded) == 3
    for left, right in zip(transcript, loaded, strict=True):
        assert (left.sender, left.receiver, left.kind, left.step) == (
            right.sender,
            right.receiver,
            right.kind,
            right.step,
        )
        assert left.payload.dtype == right.payload.dtype
        assert torch.equal(left.payload, right.payload)
    Transcript().save(tmp_path / "empty")
    assert len(Transcript.load(tmp_path / "empty")) == 0


def test_a_file_cut_anywhere_but_between_two_messages_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "t"
    some_messages().save(path)
    whole = path.read_bytes()
    borders, at = [0], 0
    while at < len(whole):
        at += 8 + struct.unpack_from("<Q", whole, at)[0]
        borders.append(at)
    assert borders[-1] == len(whole)
    for length in range(len(whole)):
        path.write_bytes(whole[:length])
        if length in borders:
            assert len(Transcript.load(path)) == borders.index(length)
        else:
            with pytest.raises(ProtocolError, match="truncated or damaged"):
                Transcript.load(path)


@pytest.mark.parametrize("data", [b"\xff" * 8, struct.pack("<Q", 2**62) + b"abc", struct.pack("<Q", 3) + b"abc"])
def test_garbage_is_refused_and_never_allocated(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "t").write_bytes(data)
    with pytest.raises(ProtocolError):
        Transcript.load(tmp_path / "t")


def test_messages_of_evaluations_are_kept_apart_and_in_bounded_memory() -> None:
    training, evaluations, bounded = Transcript(), Transcript(), Transcript(most_bytes=300)

    def both(message: Message) -> None:
        evaluations.record(message)
        bounded.record(message)

    run = small_trainer(("telecom",), record=training.record, record_evaluations=both, optimizer=sgd)
    run.fit(EPOCHS)
    plain, settings = Transcript(), {"optimizer": sgd}
    small_trainer(("telecom",), record=plain.record, **settings).fit(EPOCHS)

    assert [one.kind for one in training] == [one.kind for one in plain]  # nothing of training is missing or new
    sent = [one for one in evaluations if one.sender == "telecom"]
    # What the partner shows last is what its trained bottom makes of its test records, in their order.
    party = run.passives["telecom"]
    with torch.no_grad():
        shown = party.module.eval()(party.data.test.columns.numeric)
    assert len(sent) == EPOCHS
    torch.testing.assert_close(sent[-1].payload, shown, rtol=0, atol=1e-6)
    assert any(one.receiver == "telecom" for one in evaluations)  # the verdict, which is made from labels
    assert bounded.dropped == len(evaluations) - len(bounded) > 0
    assert sum(one.payload.nbytes for one in bounded) <= 300
    assert [one.kind for one in bounded] == [one.kind for one in evaluations][bounded.dropped :]

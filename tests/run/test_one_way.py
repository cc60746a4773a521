"""One way over a network: the partner is gone before the first step, and no byte that it gets depends on labels."""

from __future__ import annotations

import contextlib
import json
import shutil
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from splitvfl.app.deployment import party_run, run_party
from splitvfl.app.records import OwnData, own_data
from splitvfl.app.serving import PredictionFiles, prepare_prediction
from splitvfl.cli import main
from splitvfl.config.sections import ExperimentConfig, parse_config
from splitvfl.errors import CheckpointError, DataError, LinkError
from splitvfl.exchange.prediction import predict
from splitvfl.messaging.messages import Message, encode
from splitvfl.net.certs import make_certificates
from splitvfl.net.link import Link
from splitvfl.party import kept
from splitvfl.report.summary import read_summary
from splitvfl.run import checkpoint
from splitvfl.run.networked import ActiveRun, PassiveRun
from splitvfl.run.training import Training
from tests.run.parties import finished, free_ports, same_weights, start_party, weights_of
from tests.summaries import opened

THREE = """
data: {name: breast-cancer, test_fraction: 0.7}
parties:
  clinic: {role: active, columns: ["mean *"], address: "127.0.0.1:PORT"}
  lab: {role: passive, columns: ["* error"]}
  shop: {role: passive, columns: ["worst *"]}
model: {name: mlp, bottom: [16, 8], top_hidden: [8], dropout: 0.2}
exchange: {name: one-way, wire: bf16}
train:
  epochs: 4
  batch_size: 32
  seed: 0
  private_seed_for_experiments: 0
  noise_seed_for_experiments: 5
  early_stopping: {patience: 1}
network: {listen: ":PORT", certificates: certs}
defenses:
  - {name: gaussian-ir, clip: 1.0, sigma: 0.05}
attacks: [norm]
"""


def test_a_networked_run_ends_like_the_run_in_one_process(
    tmp_path: Path, checkout: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    names = ("clinic", "lab", "shop")
    make_certificates(tmp_path / "certs", list(names))
    text = THREE.replace("PORT", str(free_ports(1)[0]))
    (tmp_path / "run.yaml").write_text(text)
    # How the label party trains is no business of the others.
    (tmp_path / "other.yaml").write_text(text.replace("epochs: 4", "epochs: 2").replace("size: 32", "size: 64"))
    files = {name: "run.yaml" if name == "clinic" else "other.yaml" for name in names}
    finished({name: start_party(checkout, tmp_path, files[name], name) for name in names})
    assert main(["train", "run.yaml", "--out", "runs/whole"]) == 0
    newest = checkpoint.latest(tmp_path / "runs" / "whole" / "checkpoints")
    assert newest is not None
    whole = checkpoint.load(newest)
    for name in names:
        assert same_weights(weights_of(tmp_path / "runs" / name), whole[f"party-{name}"]["module"]), name
    apart, together = (opened(tmp_path / "runs" / run / "summary.json") for run in ("clinic", "whole"))
    for figure in ("test_metric", "test_loss", "steps", "epochs", "kept_epoch"):
        assert apart[figure] == together[figure]
    assert apart["parties"]["lab"]["attacks"] == {}
    assert "nothing comes back" in apart["parties"]["lab"]["unavailable"]["norm"]
    for name in ("lab", "shop"):
        # Each of them sees for itself what its one message tells, as the seat of one process has it.
        own, seen = (read_summary(tmp_path / "runs" / run).parties[name].readings for run in (name, "whole"))
        (together,) = seen
        alone = replace(together.with_own(None), joint=None, exact_joint=None)
        assert own[0] == alone
        assert alone.sent_once
        assert alone.share > 0.05, "the cut is narrow and noisy, and something is read"
        assert [one.attack for one in own[1:] if one.standing_still] == [
            "ridge",
            "inverse-network",
            "white-box-inversion",
        ]
    halves = [json.loads((tmp_path / "runs" / name / "model" / "half.json").read_text()) for name in names]
    assert {(half["step"], half["epoch"]) for half in halves} == {(0, 0)}
    assert len({half["run"] for half in halves}) == 1


TWO = """
data: {name: breast-cancer}
parties:
  clinic: {role: active, columns: ["mean *"], address: "127.0.0.1:PORT"}
  lab: {role: passive, columns: ["* error", "worst *"]}
model: {name: mlp, bottom: [8], top_hidden: [4]}
exchange: {name: one-way, bottom: pca, width: 5}
train: {epochs: 2, batch_size: 64, early_stopping: {patience: 1}, optimizer: {name: adam, lr: 0.01}}
network: {listen: "127.0.0.1:PORT", plaintext_on_loopback: true, meeting_s: 30, message_s: 10, retries: 2}
audit: false
defenses:
  - {name: gaussian-ir, clip: 1.0, sigma: 0.1}
"""


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ExperimentConfig:
    """Two parties in threads; their 569 records cross in pieces of 100: 5 and 2."""
    monkeypatch.setattr(kept, "PIECE_ROWS", 100)
    monkeypatch.setattr("splitvfl.exchange.handshake.secrets.token_hex", lambda size: "ab" * size)
    return parse_config(TWO.replace("PORT", str(free_ports(1)[0])), source=tmp_path / "run.yaml")


class Lab:
    """The passive party in a thread, and every message that it received."""

    def __init__(self, config: ExperimentConfig, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.received: list[bytes] = []
        self.last_words: list[object] = []
        self.errors: list[BaseException] = []
        self.run: PassiveRun | None = None
        self._thread = threading.Thread(target=self._act, args=(config, folder))
        receive, close = Link.receive, Link.close

        def received(link: Link, *args: Any, **options: Any) -> Message:
            message = receive(link, *args, **options)
            if message.receiver == "lab":
                self.received.append(encode(message))
            return message

        def closed(link: Link, *args: Any, **options: Any) -> None:
            close(link, *args, **options)
            if link.peer == "clinic":
                self.last_words.append(link.ended)

        monkeypatch.setattr(Link, "receive", received)
        monkeypatch.setattr(Link, "close", closed)
        self._thread.start()

    def _act(self, config: ExperimentConfig, folder: Path) -> None:
        try:
            self.run = run_party(config, "lab", folder)[0]  # type: ignore[assignment]
        except BaseException as error:
            self.errors.append(error)

    def ended(self) -> bool:
        self._thread.join(timeout=60)
        return not self._thread.is_alive()


def labelled(config: ExperimentConfig, change: Callable[[Tensor], Tensor]) -> OwnData:
    own = own_data(config, "clinic")
    train, test = own.data.train, own.data.test
    assert train.labels is not None
    assert test.labels is not None
    train, test = replace(train, labels=change(train.labels)), replace(test, labels=change(test.labels))
    return replace(own, data=replace(own.data, train=train, test=test))


def trained(config: ExperimentConfig, folder: Path, own: OwnData | None = None) -> ActiveRun:
    folder.mkdir(exist_ok=True)
    run = party_run(config, "clinic", folder, own=own)
    assert isinstance(run, ActiveRun)
    run.run()
    return run


def test_no_byte_that_the_partner_receives_depends_on_labels_and_it_is_gone_before_the_first_step(
    config: ExperimentConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    train = ActiveRun._train
    seen, ends = [], []
    changes = (torch.clone, lambda y: 1 - y, lambda y: torch.arange(len(y)).remainder(3.0).clamp(max=1))
    for number, change in enumerate(changes):
        with monkeypatch.context() as patch:
            lab = Lab(config, tmp_path / f"lab{number}", patch)

            def train_after(run: ActiveRun, lab: Lab = lab) -> None:
                assert lab.ended(), "the label party learns its first number after the partner's process has ended"
                train(run)

            patch.setattr(ActiveRun, "_train", train_after)
            run = trained(config, tmp_path / f"clinic{number}", labelled(config, change))
            assert lab.errors == []
        seen.append((lab.received, lab.last_words))
        ends.append((run.step, dict(run.training.figures)))
        assert {path.name for path in (tmp_path / f"lab{number}").iterdir()} >= {"model", "farewell.json"}
    assert [len(received) for received, _ in seen] == [
        6
    ] * 3  # introduction, terms, checkpoint, pieces, twice, farewell
    assert all(received == seen[0][0] for received, _ in seen)
    # Whichever hangs up first, there is one thing that it can have heard.
    heard = {str(cause) for _, words in seen for cause in words}
    assert heard <= {"this side had closed the link", "Bye(reason='it has done everything', final=False)"}
    assert len({str(figures) for _, figures in ends}) == 3


def test_saved_halves_predict_together(
    config: ExperimentConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Over links, with principal components that are read from the half; without the noise of training."""
    plain = config.model_copy(update={"defenses": ()})
    with monkeypatch.context() as patch:
        lab = Lab(plain, tmp_path / "lab", patch)
        run, _ = run_party(plain, "clinic", tmp_path / "clinic")
        assert lab.ended()
        assert lab.run is not None
    out = tmp_path / "scores.csv"
    theirs = prepare_prediction(plain, "lab", PredictionFiles(model=tmp_path / "lab" / "model"))
    thread = threading.Thread(target=theirs.run)
    thread.start()
    prepare_prediction(plain, "clinic", PredictionFiles(model=tmp_path / "clinic" / "model", out=out)).run()
    thread.join(timeout=60)
    scores = torch.tensor([float(line.split(",")[1]) for line in out.read_text().splitlines()[1:]])
    assert isinstance(run, ActiveRun)
    torch.testing.assert_close(scores, predict(run.party, {"lab": lab.run.party}).scores)
    labels = run.party.data.test.labels
    assert labels is not None
    # Many records have one score, up to the last bit, which may differ: a pair of 3 024 is then a tie on one side.
    assert run.party.task.measure(scores.unsqueeze(1), labels) == pytest.approx(run.training.kept["test/auc"], abs=5e-3)


def test_a_label_party_whose_labels_are_unfit_does_not_come(config: ExperimentConfig, tmp_path: Path) -> None:
    own = labelled(config, lambda y: torch.arange(len(y)).remainder(2.0))
    with pytest.raises(DataError, match=r"early stopping holds out .* both classes"):
        party_run(config, "clinic", tmp_path, own=own)


def test_a_label_party_that_is_killed_goes_on_alone(
    config: ExperimentConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Twice: before the first step, when it has all activations, and in the middle."""
    train = ActiveRun._train

    def copying(run: ActiveRun) -> None:
        shutil.copytree(tmp_path / "clinic", tmp_path / "copy")
        train(run)

    with monkeypatch.context() as patch:
        lab = Lab(config, tmp_path / "lab", patch)
        patch.setattr(ActiveRun, "_train", copying)
        whole = trained(config, tmp_path / "clinic")
        assert lab.ended()
    step_done = Training.step_done

    def killed(training: Training) -> None:
        if training.step == 10:
            raise KeyboardInterrupt
        step_done(training)

    monkeypatch.setattr(Training, "step_done", killed)
    with pytest.raises(KeyboardInterrupt):
        trained(config, tmp_path / "copy")
    monkeypatch.setattr(Training, "step_done", step_done)
    again = trained(config, tmp_path / "copy")
    assert again.step == whole.step
    assert same_weights(again.party.module.state_dict(), whole.party.module.state_dict())
    assert again.training.figures == whole.training.figures
    # Finished, it waits for nobody, kept activations or not; to go on, it needs them.
    shutil.rmtree(tmp_path / "copy" / "kept")
    assert same_weights(trained(config, tmp_path / "copy").party.module.state_dict(), whole.party.module.state_dict())
    shutil.rmtree(tmp_path / "copy" / "checkpoints" / f"step-{again.step:09d}")
    with pytest.raises(CheckpointError, match="the activations that clinic trained on are not in"):
        trained(config, tmp_path / "copy")


@contextlib.contextmanager
def breaking(patch: pytest.MonkeyPatch, at: int, error: BaseException, *, at_lab: bool) -> Iterator[None]:
    """Let a process end, or a link break, once, when a piece of that number is sent or was received."""
    send, add, left = Link.send, kept.Kept.add, [error]

    def sending(link: Link, message: Message, *, timeout: float) -> None:
        if at_lab and left and message.kind == "activation" and message.step == at:
            raise left.pop()
        send(link, message, timeout=timeout)

    def adding(self: kept.Kept, payloads: Any) -> None:
        if not at_lab and left and self.done == at:
            raise left.pop()
        add(self, payloads)

    with patch.context() as inner:
        inner.setattr(Link, "send", sending)
        inner.setattr(kept.Kept, "add", adding)
        yield
        assert not left, "nothing happened"


def rows(folder: Path) -> bytes:
    return (folder / "kept" / "0.rows").read_bytes()


@pytest.mark.parametrize("at_lab", [True, False], ids=["lab", "clinic"])
def test_a_link_that_breaks_while_activations_cross_costs_what_had_not_arrived(
    at_lab: bool, config: ExperimentConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    added: list[int] = []
    add = kept.Kept.add

    def counting(self: kept.Kept, payloads: Any) -> None:
        add(self, payloads)
        added.append(self.done)

    monkeypatch.setattr(kept.Kept, "add", counting)
    lab = Lab(config, tmp_path / "lab", monkeypatch)
    with breaking(monkeypatch, 4, LinkError("cut"), at_lab=at_lab):
        run = trained(config, tmp_path / "clinic")
        assert lab.ended()
    assert lab.errors == []
    assert added == [1, 2, 3, 4, 5, 6, 7]
    assert run.party.weights.best.epoch is not None


@pytest.mark.parametrize("victim", ["lab", "clinic"])
def test_a_party_that_is_killed_while_activations_cross_gets_and_sends_the_same_ones(
    victim: str, config: ExperimentConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Compared with a crossing from the same first checkpoint that nothing disturbed: its noise is from entropy."""
    lab = Lab(config, tmp_path / "lab", monkeypatch)
    with breaking(monkeypatch, 4, KeyboardInterrupt(), at_lab=victim == "lab"):
        if victim == "lab":
            clinic = threading.Thread(target=trained, args=(config, tmp_path / "clinic"))
            clinic.start()
            assert lab.ended()
            assert isinstance(lab.errors[0], KeyboardInterrupt)
            lab = Lab(config, tmp_path / "lab", monkeypatch)
            clinic.join(timeout=60)
        else:
            with pytest.raises(KeyboardInterrupt):
                trained(config, tmp_path / "clinic")
            trained(config, tmp_path / "clinic")
    assert lab.ended()
    assert lab.errors == []
    # Once more from the beginning, with the noise of before the first piece.
    shutil.copytree(tmp_path / "lab", tmp_path / "again")
    (tmp_path / "again" / "farewell.json").unlink()
    other = Lab(config, tmp_path / "again", monkeypatch)
    trained(config, tmp_path / "fresh")
    assert other.ended()
    assert other.errors == []
    assert rows(tmp_path / "fresh") == rows(tmp_path / "clinic")


def test_a_partner_whose_columns_changed_meanwhile_is_refused(
    config: ExperimentConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lab = Lab(config, tmp_path / "lab", monkeypatch)
    with breaking(monkeypatch, 4, KeyboardInterrupt(), at_lab=False), pytest.raises(KeyboardInterrupt):
        trained(config, tmp_path / "clinic")
    clinic = threading.Thread(target=_suppressed, args=(config, tmp_path / "clinic"))
    monkeypatch.setattr("splitvfl.exchange.one_way.source_digest", lambda party, phases: "of other columns")
    clinic.start()
    assert lab.ended()
    clinic.join(timeout=60)
    assert isinstance(lab.errors[0], DataError)
    assert "the columns, the bottom or the defenses of lab are others" in str(lab.errors[0])


def test_a_partner_that_lost_its_folder_is_refused_by_the_label_party(
    config: ExperimentConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would send the same columns under other noise."""
    lab = Lab(config, tmp_path / "lab", monkeypatch)
    with breaking(monkeypatch, 4, KeyboardInterrupt(), at_lab=True):
        clinic = threading.Thread(target=_suppressed, args=(config, tmp_path / "clinic"))
        clinic.start()
        assert lab.ended()
        lab = Lab(config, tmp_path / "anew", monkeypatch)
        clinic.join(timeout=60)
    with pytest.raises(DataError, match=r"lab would send other activations than those of it that are kept here"):
        raise ERRORS.pop()
    assert lab.ended()
    assert lab.errors


ERRORS: list[BaseException] = []


def _suppressed(config: ExperimentConfig, folder: Path) -> None:
    try:
        trained(config, folder)
    except Exception as error:  # handed to the test
        ERRORS.append(error)

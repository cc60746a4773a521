"""A networked run's end at a passive party: what its partner can read of its columns, in all that it shows a person."""

from __future__ import annotations

import threading
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from splitvfl.app import deployment
from splitvfl.app.forecasting import forecast
from splitvfl.app.own_columns import _label_party
from splitvfl.app.saved_model import load_half
from splitvfl.cli import main
from splitvfl.config.sections import load_config, parse_config
from splitvfl.messaging.messages import Message
from splitvfl.net.link import Link
from splitvfl.report.report import write_report
from splitvfl.report.summary import read_summary
from splitvfl.run.feature_systems import LabelParty
from splitvfl.run.revealed_file import read_revealed
from splitvfl.system.gpu_copies import bytes_of
from tests.run.parties import free_ports
from tests.weights_in_bytes import holds_weights

FILE = """
data: {{name: breast-cancer, scale: minmax}}
parties:
  clinic: {{role: active, columns: ["mean *"], address: "127.0.0.1:{port}"}}
  lab: {{role: passive, columns: ["* error", "worst *"]}}
model: logistic-regression
train: {{epochs: 2, batch_size: 128, private_seed_for_experiments: 1, optimizer: {{name: adam, lr: 0.05}}}}
network: {{listen: "127.0.0.1:{port}", plaintext_on_loopback: true, meeting_s: 60, message_s: 60}}
attacks: [norm, least-squares, clamped-least-squares, half-star, rcc2, chebyshev-centre]
audit: false
"""


class Finished(NamedTuple):
    """A run of two parties.

    Attributes:
        folder: Where its file and the folder of each party are.
        said: What the passive party printed.
        sent: All messages that crossed.
        before: Those that had crossed when the passive party began to look at its columns.
    """

    folder: Path
    said: str
    sent: list[Message]
    before: list[Message]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Finished:
    folder = tmp_path_factory.mktemp("own-columns")
    file = folder / "run.yaml"
    file.write_text(FILE.format(port=free_ports(1)[0]))
    sent, before = list[Message](), list[Message]()
    send, look = Link.send, deployment.own_summary

    def noted(link: Link, message: Message, *, timeout: float) -> None:
        sent.append(message)
        send(link, message, timeout=timeout)

    def looked(*arguments: Any, **settings: Any) -> object:
        before.extend(sent)
        return look(*arguments, **settings)

    def take_part(name: str) -> int:
        return main(["party", str(file), "--as", name, "--out", str(folder / name)])

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Link, "send", noted)
        patch.setattr(deployment, "own_summary", looked)
        clinic = threading.Thread(target=deployment.run_party, args=(load_config(file), "clinic", folder / "clinic"))
        clinic.start()
        with redirect_stdout(StringIO()) as said:
            assert take_part("lab") == 0
        clinic.join(60)
    return Finished(folder, said.getvalue(), sent, before)


def test_nothing_is_sent_for_it(run: Finished) -> None:
    assert run.before == run.sent
    assert {message.kind for message in run.sent[-2:]} == {"farewell"}
    assert {message.kind for message in run.sent} == {
        *("introduction", "agreement", "resuming", "farewell", "activation", "gradient", "evaluation", "verdict")
    }


def test_no_message_and_no_file_of_the_label_party_holds_the_other_partys_weights(run: Finished) -> None:
    weight = load_half(run.folder / "lab/model").weights["weight"]
    files = {path: path.read_bytes() for path in run.folder.rglob("*") if path.is_file()}

    assert any(holds_weights(content, weight) for path, content in files.items() if "lab" in path.parts)
    assert not [path for path, content in files.items() if "clinic" in path.parts and holds_weights(content, weight)]
    assert not [one.kind for one in run.sent if holds_weights(bytes(bytes_of(one.payload)), weight)]
    assert {"activation", "agreement"} <= {one.kind for one in run.sent}


def test_the_party_alone_can_reveal_them_and_the_label_party_has_none(run: Finished, tmp_path: Path) -> None:
    out = tmp_path / "lab.safetensors"
    with redirect_stdout(StringIO()) as said:
        assert main(["reveal", str(run.folder / "lab"), "--out", str(out)]) == 0
        assert main(["reveal", str(run.folder / "clinic"), "--out", str(tmp_path / "clinic.safetensors")]) == 2
    assert "knows 1 equation in your 20 columns" in said.getvalue()
    assert torch.equal(read_revealed(out).weight, load_half(run.folder / "lab/model").weights["weight"].double())


def test_figures_are_the_forecasts_of_the_same_half(run: Finished) -> None:
    model = forecast(load_config(run.folder / "run.yaml"), "lab", model=run.folder / "lab").model
    assert model is not None
    leaks = read_summary(run.folder / "lab").parties["lab"].features
    for view in model.views:
        forecasts = {attack.attack: attack for attack in view.attacks}
        found = [leak for leak in leaks if (leak.sees, leak.part) == (view.sees, "train")]
        assert {leak.attack for leak in found} == {"least-squares", "clamped-least-squares", "half-star", "rcc2"}
        for leak in found:
            # The forecast computes in float64 what crosses in float32.
            assert leak.mse == pytest.approx(forecasts[leak.attack].mse, rel=1e-5)
            assert leak.near == pytest.approx(forecasts[leak.attack].near, abs=1e-3)
            assert leak.blind_mse == pytest.approx(model.mean_mse, rel=1e-9)
            for one, column in zip(leak.columns, forecasts[leak.attack].columns, strict=True):
                assert (one.column, one.mse) == (column.column, pytest.approx(column.mse, rel=1e-4, abs=1e-9))
            assert leak.equations == view.equations
        closed = {"least-squares": view.least_squares, "half-star": view.half_star}
        assert {leak.attack: leak.mse for leak in found if leak.attack in closed} == pytest.approx(closed, rel=1e-5)


def test_terminal_and_page_say_what_the_partner_can_read(run: Finished) -> None:
    said = " ".join(run.said.split())
    best = min(read_summary(run.folder / "lab").parties["lab"].features, key=lambda leak: (leak.part, leak.mse))
    assert f"Features of lab: {best.attack} estimates them from scores alone" in said
    assert f"mean squared error of {best.mse:.3g}; guessing their means has {best.blind_mse:.3g}" in said
    views = ", ".join(f"chebyshev-centre ({sees})" for sees in ("scores", "activation"))
    assert f"{views} could not be run at lab: the equations leave 19 dimensions free" in said
    assert "all feature attacks (scores of train records, scores of test records): the parts of other passive" in said
    assert "AUC" not in said  # of which it knows nothing

    assert main(["report", str(run.folder / "lab")]) == 0
    page = (run.folder / "lab" / "report.html").read_text()
    assert "What scores reveal of your features" in page
    assert "<h3>Cost</h3>" not in page
    assert f"{best.mse:.3g}" in page
    assert "as lab has seen it" in page


def test_a_page_of_both_parties_keeps_them_apart(run: Finished) -> None:
    """What each has seen of one run: no table puts the two side by side as if they were two runs."""
    page = write_report([run.folder / "clinic", run.folder / "lab"], run.folder / "both.html", title="t").read_text()
    first, second = (
        page.index(f">breast-cancer, logistic-regression{seat} <") for seat in ("", ", as lab has seen it")
    )
    assert first < second
    for heading in ("Cost", "What scores reveal of your features"):
        assert page.count(f"<h3>{heading}</h3>") == 1


def test_tensorboard_has_the_figures(run: Finished) -> None:
    board = EventAccumulator(str(run.folder / "lab"))
    board.Reload()
    for leak in read_summary(run.folder / "lab").parties["lab"].features:
        tag = f"columns/lab/{leak.attack}/{leak.sees}/{leak.part}"
        for name, value in (("mse", leak.mse), ("mse_of_means", leak.blind_mse)):
            assert board.Scalars(f"{tag}/{name}")[-1].value == pytest.approx(value, rel=1e-6)
    assert "custom_scalars__config__" in board.Tags()["tensors"]


def test_the_label_party_says_what_it_lacks(run: Finished) -> None:
    found = read_summary(run.folder / "clinic")
    assert found.seat == ""
    reasons = found.parties["lab"].unavailable
    assert reasons.keys() == {"least-squares", "clamped-least-squares", "half-star", "rcc2", "chebyshev-centre"}
    assert all("needs the weights of lab" in reason and "clinic does not" in reason for reason in reasons.values())
    assert found.parties["lab"].features == []


@pytest.mark.parametrize(
    ("model", "exchange", "expected"),
    [
        ("logistic-regression", "split", {"logits": 1, "sums": False, "all_named": False}),
        ("{name: logistic-regression, private_top: true}", "split", {"logits": 0, "sums": False, "all_named": False}),
        ("{name: mlp, bottom: [4]}", "split", {"logits": 0, "sums": False, "all_named": False}),
        ("logistic-regression", "residue", {"logits": 1, "sums": False, "all_named": False}),
        ("logistic-regression", "taylor", {"logits": 1, "sums": True, "all_named": True}),
        ("logistic-regression", "coordinator", {"logits": 1, "sums": True, "all_named": True}),
    ],
)
def test_what_a_party_knows_of_who_sees_its_part(
    model: str, exchange: str, expected: dict[str, object], tmp_path: Path
) -> None:
    """Of a private top scores are no sums of parts, and nobody knows it of another model."""
    text = FILE.format(port=1).replace("model: logistic-regression", f"model: {model}\nexchange: {exchange}")
    config = parse_config(text, source=tmp_path / "run.yaml")
    made = deployment.Deployment(config, "lab")
    found = _label_party(config.active, [], made.assembly, 1)
    assert found == LabelParty(name="clinic", others=[], **expected)  # type: ignore[arg-type]


def test_a_run_that_had_ended_says_it_again(run: Finished) -> None:
    before = read_summary(run.folder / "lab")
    _, again = deployment.run_party(load_config(run.folder / "run.yaml"), "lab", run.folder / "lab")
    assert again is not None
    assert again.parties == before.parties
    assert again.steps == before.steps == 8

"""Scores that another party computes, in an experiment of all parties: what its file says, and what comes of it."""

from __future__ import annotations

import hashlib
import shutil
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.datasets import load_breast_cancer
from torch import Tensor

from splitvfl.app.addresses import PREDICTION, AddressBook
from splitvfl.app.checking import check_party
from splitvfl.app.deployment import Deployment
from splitvfl.app.experiment import build_trainer, variants
from splitvfl.app.online import ServeSettings, prepare_service
from splitvfl.app.records import load_data
from splitvfl.app.saved_run import SavedRun, load_run
from splitvfl.app.scoring import memoised_noise, prepare_coordinator
from splitvfl.app.serving import PredictionFiles, prepare_prediction
from splitvfl.cli import main
from splitvfl.config.sections import ExperimentConfig, config_to_yaml, parse_config
from splitvfl.errors import CheckpointError, ConfigError
from splitvfl.net.certs import make_certificates
from splitvfl.party.direction import own_direction
from splitvfl.party.memoised import MemoisedNoise
from tests.run.parties import free_ports, side_by_side

TEXT = """\
data: breast-cancer
parties:
  clinic: {role: active, columns: ["mean *"]}
  lab: {role: passive, columns: "worst *"}
  shop: {role: passive, columns: rest}
model: logistic-regression
train: {epochs: 1, batch_size: 64, device: cpu}
audit: false
defenses: [{name: rounding, decimals: 2}]
"""
ELSEWHERE = ("coordinator", "lab", "shop")


def config(*overrides: str, text: str = TEXT) -> ExperimentConfig:
    return parse_config(text, source="scores.yaml", overrides=overrides)


def refused(*overrides: str, text: str = TEXT) -> str:
    with pytest.raises(ConfigError) as caught:
        config(*overrides, text=text)
    return str(caught.value)


# --- the file


def test_the_label_party_computes_scores_unless_another_one_is_named() -> None:
    assert config().scorer == "clinic"
    for name in ELSEWHERE:
        named = config(f"prediction.scores_by={name}")
        assert named.scorer == named.own_name(name) == name
        assert parse_config(config_to_yaml(named), source="scores.yaml") == named


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        (["prediction.scores_by=clinic"], "prediction.scores_by: clinic is the label party: write active"),
        (["prediction.scores_by=labs"], "expected active, coordinator or a passive party (lab, shop), got 'labs'"),
        (["model=mlp"], "lab cannot compute the scores: model mlp is not linear"),
        (["model=wide-deep"], "lab cannot compute the scores: model wide-deep is not linear"),
        (["model.private_top=true"], "model.private_top predicts, and is the label party's alone"),
        (["train.autocast=bf16"], "leave exchange.wire and train.autocast out"),
        (["exchange.wire=bf16"], "leave exchange.wire and train.autocast out"),
        (["network={publish_scores: true}"], "leave network.publish_scores out"),
        (["prediction.address=127.0.0.1:7000"], "address and identity are the coordinator's"),
        (
            ["prediction.direction_by=clinic"],
            "prediction.direction_by: expected a passive party (lab, shop), got 'clinic'",
        ),
        (["exchange=one-way"], "its top adds up the parties' logits"),
    ],
)
def test_what_keeps_another_party_from_computing_scores_is_told(overrides: list[str], words: str) -> None:
    assert words in refused("prediction.scores_by=lab", *overrides)


def test_noise_that_was_calculated_covers_no_other_scorer() -> None:
    noise = "exchange={name: taylor, noise: {epsilon: 0.5, delta: 1e-5}}"

    assert "exchange.noise calculates noise for what the passive parties send" in refused(
        "prediction.scores_by=lab", noise, "model.row_norm=1.0", "defenses=[]"
    )


def test_no_party_is_called_like_a_third_one_that_scores() -> None:
    text = TEXT.replace("lab:", "coordinator:")
    assert config(text=text).scorer == "clinic"
    assert "so is called who computes the scores and has no data" in refused(
        "prediction.scores_by=coordinator", text=text
    )


# --- a run in one process


def trained(folder: Path, scores_by: str, *overrides: str) -> tuple[Tensor, SavedRun]:
    """The trainer's scores of the test records, and the run as it is read again."""
    chosen = config(f"prediction.scores_by={scores_by}", *overrides)
    trainer = build_trainer(chosen, load_data(chosen))
    trainer.fit(1)
    trainer.save(folder)
    (folder / "experiment.yaml").write_text(config_to_yaml(chosen))
    return trainer.predict(), load_run(folder)


@pytest.mark.parametrize(
    "overrides",
    [
        pytest.param((), id="logistic"),
        pytest.param(
            ("model={name: glm, loss: logistic}",), id="glm", marks=pytest.mark.slow(reason="a run for each scorer")
        ),
        pytest.param(("exchange=oracle",), id="oracle", marks=pytest.mark.slow(reason="a run for each scorer")),
    ],
)
def test_a_run_predicts_the_same_whoever_computes_the_scores(tmp_path: Path, overrides: tuple[str, ...]) -> None:
    expected, run = trained(tmp_path / "active", "active", *overrides)
    assert set(expected.tolist()) <= {torch.tensor(n / 100).item() for n in range(101)}, "rounded"
    assert torch.equal(run.predict(), expected)
    for name in ELSEWHERE:
        found, run = trained(tmp_path / name, name, *overrides)
        assert torch.equal(found, expected)
        assert run.scores_by == name
        assert torch.equal(run.predict(), expected)


def test_training_is_the_same_whoever_computes_scores_later() -> None:
    """What crosses in its steps, and what evaluations find."""

    def crossed(scores_by: str) -> tuple[list[tuple[str, str, str]], dict[str, float]]:
        chosen = config(f"prediction.scores_by={scores_by}", "train.noise_seed_for_experiments=0")
        trainer, found = build_trainer(chosen, load_data(chosen)), []
        trainer.record = lambda one: found.append(
            (one.sender, one.kind, hashlib.sha256(one.payload.detach().numpy().tobytes()).hexdigest())
        )
        return found, dict(trainer.fit(1))

    expected = crossed("active")
    assert {kind for _, kind, _ in expected[0]} >= {"activation", "gradient"}
    assert crossed("lab") == crossed("coordinator") == expected


# --- over a network: halves of a run in one process, each handed to its party


PARTIES = ("clinic", "lab", "shop")


@pytest.fixture(scope="module")
def trained_once(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the halves of a run and new records, which no test changes."""
    folder = tmp_path_factory.mktemp("halves")
    load_breast_cancer(as_frame=True).data[100:130].to_csv(folder / "new.csv", index=False)
    trained(folder / "model", "active")
    return folder


@pytest.fixture
def halves(trained_once: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the halves of a run lie, with an experiment of all parties, in the folder where the test runs."""
    monkeypatch.chdir(tmp_path)
    return shutil.copytree(trained_once, tmp_path, dirs_exist_ok=True) / "model"


def network(*overrides: str) -> tuple[str, ...]:
    """Settings by which the label party dials all others, each at an address of its own."""
    ports = free_ports(3)
    places = {name: f"127.0.0.1:{port}" for name, port in zip(("lab", "shop", "coordinator"), ports, strict=True)}
    own = [f"parties.{name}.address={place}" for name, place in places.items() if name != "coordinator"]
    third = any(text == "prediction.scores_by=coordinator" for text in overrides)
    at = [f"prediction.address={places['coordinator']}"] if third else []
    return (*own, "network={plaintext_on_loopback: true, meeting_s: 60, message_s: 30}", *overrides, *at)


def service(name: str, halves: Path, settings: tuple[str, ...], out: Path | None = None) -> Any:
    """One party's prediction, ready to be run."""
    places = dict(text.split(".address=") for text in settings if ".address=" in text)
    place = places.get("prediction" if name == "coordinator" else f"parties.{name}")
    own = config(*settings, *([] if place is None else [f"network.listen={place}"]))
    if name == "coordinator":
        return prepare_coordinator(own)
    return prepare_prediction(own, name, PredictionFiles(model=halves / name, records=Path("new.csv"), out=out))


def run_all(*services: Any) -> list[BaseException]:
    """Run every party's service, the label party's last: it dials the others."""
    return [*side_by_side({str(number): one.run for number, one in reversed([*enumerate(services)])}).values()]


@pytest.mark.parametrize("scores_by", ["active", *ELSEWHERE])
def test_parties_score_over_a_network_whoever_computes_the_scores(halves: Path, scores_by: str) -> None:
    expected = load_run(halves).predict("new.csv").numpy()
    settings = network(f"prediction.scores_by={scores_by}")
    names = ["clinic", "lab", "shop", *(["coordinator"] if scores_by == "coordinator" else [])]
    outs = {"clinic": Path("scores.csv"), **({scores_by: Path("theirs.csv")} if scores_by in ("lab", "shop") else {})}

    assert run_all(*(service(name, halves, settings, outs.get(name)) for name in names)) == []

    for out in outs.values():
        np.testing.assert_array_equal(pd.read_csv(out)["score"].to_numpy(np.float32), expected)


NOISY = "defenses=[{name: score-noise, scheme: optimum, power: 2.0, direction: [1, -1]}]"


@pytest.mark.parametrize(
    "scores_by",
    [
        "active",
        "coordinator",
        *(
            pytest.param(name, marks=pytest.mark.slow(reason="six predictions of three parties"))
            for name in ELSEWHERE[1:]
        ),
    ],
)
def test_memoised_noise_is_the_same_in_another_prediction_of_the_same_records(halves: Path, scores_by: str) -> None:
    """In another order of the records, at every scorer; fresh noise is not."""
    records = pd.read_csv("new.csv")
    names = [*PARTIES, *(["coordinator"] if scores_by == "coordinator" else [])]

    def scores(order: list[int], *overrides: str) -> list[float]:
        records.iloc[order].to_csv("new.csv", index=False)
        settings = network(f"prediction.scores_by={scores_by}", NOISY, *overrides)
        outs = {"clinic": Path("scores.csv")}
        Path("scores.csv").unlink(missing_ok=True)
        assert run_all(*(service(name, halves, settings, outs.get(name)) for name in names)) == []
        found = pd.read_csv("scores.csv")["score"].tolist()
        return [found[order.index(row)] for row in range(len(order))]

    forth, memoised = [*range(30)], "prediction.score_noise=memoised"
    first = scores(forth, memoised)
    assert scores(forth[::-1], memoised) == first
    assert scores(forth) != scores(forth), "one chance in 2^30"

    whose = Path("runs/scores-coordinator") if scores_by == "coordinator" else halves  # the folder of the run
    key = whose / "score-noise" / "noise.key"
    assert {path.resolve() for path in Path().rglob("noise.key")} == {key.resolve()}, "no other party has one"
    assert key.stat().st_mode & 0o777 == 0o600
    key.unlink()
    assert scores(forth, memoised) != first


SENT = "defenses=[{name: score-noise, scheme: 2, power: 2.0, direction: sent}]"


@pytest.mark.parametrize(
    "scores_by",
    ["active", *(pytest.param(name, marks=pytest.mark.slow(reason="a network")) for name in ("coordinator", "shop"))],
)
def test_a_passive_party_sends_the_direction_of_noise(halves: Path, scores_by: str) -> None:
    """The same scores over a network, in one process, and with that direction in the settings."""
    common = (f"prediction.scores_by={scores_by}", "prediction.direction_by=lab")
    sent = network(*common, SENT, *(["network.publish_scores=true"] if scores_by == "active" else []))
    names = [*PARTIES, *(["coordinator"] if scores_by == "coordinator" else [])]
    assert run_all(*(service(name, halves, sent, {"clinic": Path("s.csv")}.get(name)) for name in names)) == []
    found = pd.read_csv("s.csv")["score"].to_numpy(np.float32)

    (halves.parent / "experiment.yaml").write_text(config_to_yaml(config(*common, SENT)))
    (halves / "experiment.yaml").write_text(config_to_yaml(config(*common, SENT)))
    run = load_run(halves)
    np.testing.assert_array_equal(run.predict("new.csv").numpy(), found)
    v = own_direction(run.passives["lab"])
    (halves / "experiment.yaml").write_text(config_to_yaml(config(SENT.replace("sent", str(v.tolist())))))
    np.testing.assert_array_equal(load_run(halves).predict("new.csv").numpy(), found)


def test_a_direction_that_nobody_sends_or_nobody_awaits_is_told_before_anybody_is_waited_for(halves: Path) -> None:
    with pytest.raises(ConfigError, match="score-noise of lab awaits a direction"):
        service("lab", halves, network("prediction.scores_by=lab", SENT))
    options = ("prediction.direction_by=lab", "network.publish_scores=true")
    with pytest.raises(ConfigError, match="no defense of scores of clinic awaits one"):
        service("clinic", halves, network(*options), Path("s.csv"))
    assert "clinic computes the scores and publishes none" in refused(*network("prediction.direction_by=lab", SENT))
    chosen = config(SENT)
    with pytest.raises(ConfigError, match="score-noise of clinic awaits a direction"):
        build_trainer(chosen, load_data(chosen))


def test_a_direction_that_no_defense_awaits_is_refused_before_training() -> None:
    chosen = config("prediction.direction_by=lab", "defenses=[{name: rounding, decimals: 2}]")
    with pytest.raises(ConfigError, match="no defense of scores of clinic awaits one"):
        build_trainer(chosen, load_data(chosen))
    # In a network the defense stands in the scorer's file.
    elsewhere = config(*network("prediction.scores_by=lab", "prediction.direction_by=lab"))
    build_trainer(elsewhere, load_data(elsewhere))


def test_of_settings_that_are_compared_one_without_the_defense_sends_no_direction() -> None:
    chosen = config("prediction.direction_by=lab", SENT)
    with_it, without = variants(chosen, [chosen.defenses, []], 1, Path("runs"))
    assert with_it.config.prediction.direction_by == "lab"
    assert without.config.prediction.direction_by is None
    for one in (with_it, without):
        build_trainer(one.config, load_data(one.config))


def test_a_trainer_has_directions_and_memoised_noise_too() -> None:
    options = (
        "prediction.direction_by=lab",
        "prediction.score_noise=memoised",
        SENT.replace("scheme: 2", "scheme: optimum"),
    )
    for seed in ("0", "null"):
        chosen = config("prediction.scores_by=shop", f"train.noise_seed_for_experiments={seed}", *options)
        trainer = build_trainer(chosen, load_data(chosen))
        trainer.fit(1)
        assert torch.equal(trainer.predict(), trainer.predict())


def test_other_defenses_of_scores_are_other_noise_and_who_sets_them_is_told(halves: Path) -> None:
    settings = network("prediction.scores_by=lab", NOISY, "prediction.score_noise=memoised")
    told, loss = list[str](), "the usual one"

    def noise(*overrides: str) -> MemoisedNoise:
        defenses = config(*settings, *overrides).found_defenses
        return memoised_noise(defenses, halves / "lab", told.append, loss=loss, source="x.yaml")

    first = noise()
    assert [line.partition(":")[0] for line in told] == ["a new key of noise is made"]
    told.clear()
    assert noise() == first
    assert told == []
    other = noise(NOISY.replace("2.0", "3.0"))
    assert other.key == first.key
    assert other.settings != first.settings
    assert "the defenses of scores" in told[0]
    told.clear()
    loss = '{"name": "logistic"}'  # the same logits are another score, and two with one noise would tell them
    another = noise()
    assert another.settings != first.settings
    assert len(told) == 1
    loss = "the usual one"
    assert noise() == first


def test_where_the_key_did_not_come_along_there_is_a_new_one_and_that_is_said(halves: Path) -> None:
    own = config(*network("prediction.scores_by=lab", NOISY, "prediction.score_noise=memoised")).found_defenses
    told: list[str] = []
    noise_in = partial(memoised_noise, own, notify=told.append, loss="", source="x.yaml")
    first = noise_in(halves / "lab")
    copied = shutil.copytree(halves / "lab", halves / "with the key")
    shutil.copytree(halves / "lab", halves / "without", ignore=shutil.ignore_patterns("noise.key"))
    assert len(told) == 1

    assert noise_in(copied) == first
    assert len(told) == 1
    assert noise_in(halves / "without") != first
    assert told[1].startswith(
        f"a new key of noise is made: {halves / 'without' / 'score-noise' / 'noise.key'}. Keep it"
    )


def test_a_run_in_one_process_keeps_a_key_of_its_own(tmp_path: Path) -> None:
    overrides = (NOISY, "prediction.score_noise=memoised")
    folder = tmp_path / "run"
    _, run = trained(folder, "lab", *overrides)
    first = run.predict()
    assert torch.equal(run.predict(), first)
    assert torch.equal(load_run(folder).predict(), first)
    (folder / "score-noise" / "noise.key").write_bytes(b"k" * 31)
    with pytest.raises(CheckpointError, match="expected 32 bytes, got 31"):
        load_run(folder).predict()


def test_over_tls_keys_for_sealed_parts_are_signed(halves: Path) -> None:
    """By everybody whom the files name, the third party too."""
    names = (*PARTIES, "coordinator")
    make_certificates(Path("certs"), list(names))
    settings = tuple(
        text.replace("plaintext_on_loopback: true", "certificates: certs")
        for text in network("prediction.scores_by=coordinator")
    )
    outs = {"clinic": Path("scores.csv")}

    assert run_all(*(service(name, halves, settings, outs.get(name)) for name in names)) == []

    expected = load_run(halves).predict("new.csv").numpy()
    np.testing.assert_array_equal(pd.read_csv("scores.csv")["score"].to_numpy(np.float32), expected)
    book = AddressBook(config(*settings), "clinic", PREDICTION)
    assert book.vouching(book.meeting(lambda line: None)).signer is not None


def test_defenses_of_scores_are_attached_where_scores_are_computed(halves: Path) -> None:
    def defended(scores_by: str) -> dict[str, int]:
        settings = network(f"prediction.scores_by={scores_by}")
        found = {name: service(name, halves, settings, Path("s.csv") if name == "clinic" else None) for name in PARTIES}
        here = {name: len(one.scorer.scores) for name, one in found.items() if one.scorer is not None}
        return {"clinic": len(found["clinic"].party.scores), **here}

    assert defended("active") == {"clinic": 1}
    assert defended("lab") == {"clinic": 0, "lab": 1}
    assert defended("coordinator") == {"clinic": 0}


def test_a_defense_of_scores_that_would_do_nothing_is_refused() -> None:
    alone = """\
data: breast-cancer
parties:
  clinic: {role: active, columns: ["mean *"], address: "127.0.0.1:1"}
  lab: {role: passive}
  shop: {role: passive}
model: logistic-regression
network: {plaintext_on_loopback: true, listen: "127.0.0.1:0"}
defenses: [{name: rounding, decimals: 2}]
"""
    own = config("prediction.scores_by=lab", text=alone)
    with pytest.raises(ConfigError, match=r"rounding acts on the scores, which lab computes .* at clinic; take it out"):
        Deployment(own, "clinic")
    with pytest.raises(ConfigError, match="rounding acts on the scores, which lab computes"):
        prepare_prediction(own, "clinic", PredictionFiles(model=Path("none"), out=Path("s.csv")))
    theirs = alone.replace('columns: ["mean *"], ', "")
    for name, columns in (("lab", "worst *"), ("shop", "rest")):
        theirs = theirs.replace(f"{name}: {{role: passive}}", f'{name}: {{role: passive, columns: "{columns}"}}')
    assert Deployment(config("prediction.scores_by=lab", text=theirs), "lab").name == "lab", "it stands there"


def test_who_vouches_for_keys_is_every_passive_party_and_a_third_one() -> None:
    def members(scores_by: str) -> frozenset[str] | None:
        own = config(*network(f"prediction.scores_by={scores_by}"))
        book = AddressBook(own, "clinic", PREDICTION)
        return book.vouching(book.meeting(lambda line: None)).members

    assert members("active") is None
    assert members("lab") == {"lab", "shop"}
    assert members("coordinator") == {"lab", "shop", "coordinator"}


def test_mistakes_are_told_before_anybody_is_waited_for(halves: Path, capsys: pytest.CaptureFixture[str]) -> None:
    settings = network("prediction.scores_by=lab")
    with pytest.raises(ConfigError, match="lab computes the scores, and coordinator takes no part"):
        service("coordinator", halves, settings)
    with pytest.raises(CheckpointError, match="expected a trained half"):
        service("lab", halves / "nowhere", settings)
    with pytest.raises(ConfigError, match="the scores stay at clinic"):
        service("shop", halves, settings, Path("scores.csv"))
    file = Path("scores.yaml")
    file.write_text(TEXT)
    third = ["predict", "scores.yaml", "--as", "coordinator", "prediction.scores_by=coordinator"]
    assert main([*third, "--out", "scores.csv"]) == 2
    assert "--out: means nothing at coordinator, which has no data" in capsys.readouterr().err
    assert main(["predict", "scores.yaml", "--as", "coordinator"]) == 2
    assert "there is no 'coordinator'" in capsys.readouterr().err


def test_where_the_third_party_is_found_is_said() -> None:
    own = config(*network("prediction.scores_by=lab"), "prediction={scores_by: coordinator}")
    with pytest.raises(ConfigError, match=r"how do clinic and coordinator meet\? Give prediction.address"):
        AddressBook(own, "clinic", PREDICTION).meeting(lambda line: None)
    AddressBook(own, "clinic").meeting(lambda line: None)  # it takes no part in training


@pytest.mark.parametrize("scores_by", ["coordinator", "lab"])
def test_a_check_meets_who_computes_the_scores_and_says_who_was_reached(
    scores_by: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    names = [*PARTIES, *(["coordinator"] if scores_by == "coordinator" else [])]
    make_certificates(Path("certs"), [*PARTIES, "coordinator"])
    settings = network(f"prediction.scores_by={scores_by}")
    settings = tuple(text.replace("plaintext_on_loopback: true", "certificates: certs") for text in settings)
    places = dict(text.split(".address=") for text in settings if ".address=" in text)
    told: dict[str, list[str]] = {name: [] for name in names}
    found: dict[str, list[str]] = {}

    def check(name: str) -> None:
        place = places.get("prediction" if name == "coordinator" else f"parties.{name}")
        own = config(*settings, *([] if place is None else [f"network.listen={place}"]))
        found[name] = check_party(own, name, Path("run") / name, connect_s=60, tell=told[name].append)

    assert side_by_side({name: partial(check, name) for name in names}, timeout=120) == {}

    assert found == {name: [] for name in names}
    scorer = f"{scores_by} (computes the scores)"
    reached = [scorer if name == scores_by else name for name in names[1:]]
    assert f"connected: {', '.join(reached)}" in told["clinic"]
    assert all("connected: clinic" in told[name] for name in names[1:])


def test_requests_are_answered_by_the_label_party_alone(tmp_path: Path) -> None:
    _, run = trained(tmp_path / "run", "lab")
    assert run.scores_by == "lab"
    folder = tmp_path / "runs"
    folder.mkdir()
    (tmp_path / "run" / "clinic").rename(folder / "model")  # as `splitvfl party` leaves it
    (folder / "experiment.yaml").write_text((tmp_path / "run" / "experiment.yaml").read_text())
    with pytest.raises(ConfigError, match="lab computes the scores, and requests are answered by the label party"):
        prepare_service(folder, None, ServeSettings())

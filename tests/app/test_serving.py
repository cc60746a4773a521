"""From a party's own file to scores of new records: in processes of their own, and piece by piece."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

from splitvfl.app.models import Models
from splitvfl.app.records import own_data
from splitvfl.app.saved_model import Origin, load_half, save_half
from splitvfl.app.serving import PredictionFiles, defend_predictions, prepare_prediction
from splitvfl.cli import main
from splitvfl.config.sections import ExperimentConfig, load_config
from splitvfl.data.alignment import Alignment, read_alignment
from splitvfl.data.ingest.run import ingest_like
from splitvfl.data.new_records import read_new_records
from splitvfl.errors import CheckpointError, ConfigError, DataError, LimitError, PrivacyError
from splitvfl.exchange.handshake import TaskSpec
from splitvfl.exchange.prediction import predict
from splitvfl.exchange.psi import random_ids
from splitvfl.learning.randomness import PartyRandom
from splitvfl.learning.tasks import task_for
from splitvfl.party.party import ActiveParty, PassiveParty
from tests.run.parties import finished, free_ports, side_by_side, start, start_party
from tests.tables import align_rows, ingest

CPU = torch.device("cpu")

FILES = {
    "bank": """
data: {name: table, path: bank.csv, id_column: customer, missing: indicator}
parties:
  bank: {role: active, columns: [age], label: default}
  telecom: {role: passive, address: ADDRESS}
model: {name: mlp, top_hidden: [8]}
""",
    "telecom": """
data: {name: table, path: telecom.csv, id_column: customer}
parties:
  bank: {role: active}
  telecom: {role: passive, columns: [calls, plan]}
model: {name: mlp, bottom: [8, 4]}
defenses: [{name: gaussian-ir, clip: 1.0, sigma: 0.1, at: training}]
""",
}
TABLES = {
    name: f"""
data: {{name: tables, path: {name}-tables}}
parties: {{bank: {{role: active}}, telecom: {{role: passive, address: ADDRESS}}}}
model: {{name: wide-deep, bottom: [8, 4]}}
"""
    for name in ("bank", "telecom")
}
BUNDLED = """
data: {name: breast-cancer}
parties:
  bank: {role: active, columns: ["mean *"]}
  telecom: {role: passive, columns: rest, address: ADDRESS}
model: {name: mlp, bottom: [8, 4]}
"""
# The bank dials; a party's own address is not looked at.
COMMON = """
train: {epochs: 2, batch_size: 64, device: cpu}
network: {listen: ADDRESS, plaintext_on_loopback: true, meeting_s: 60, message_s: 30}
"""


def write_configs(texts: Mapping[str, str]) -> None:
    address = f'"127.0.0.1:{free_ports(1)[0]}"'
    for name, text in texts.items():
        Path(f"{name}.yaml").write_text((text + COMMON).replace("ADDRESS", address))


def write_files(folder: Path) -> None:
    draw = np.random.default_rng(0)
    age, calls, plan = draw.normal(size=360), draw.normal(size=360), draw.choice(["a", "b"], 360)
    age[7] = np.nan
    label = (np.nan_to_num(age) + calls > 0).astype(int)
    customer = [f"c{number:03d}" for number in range(360)]
    bank = pd.DataFrame({"customer": customer, "age": age, "default": label})
    telecom = pd.DataFrame({"customer": customer, "calls": calls, "plan": plan})
    bank[:300].to_csv(folder / "bank.csv", index=False)
    telecom[:300].to_csv(folder / "telecom.csv", index=False)
    telecom.loc[303, "plan"] = "new"
    bank[300:].drop(columns="default").to_csv(folder / "bank-new.csv", index=False)
    telecom[300:].to_csv(folder / "telecom-new.csv", index=False)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Both parties' files, in the folder where the test runs."""
    monkeypatch.chdir(tmp_path)
    write_files(tmp_path)
    write_configs(FILES)
    return tmp_path


def config(name: str, *overrides: str) -> ExperimentConfig:
    return load_config(f"{name}.yaml", overrides)


def test_parties_train_and_then_score_new_records_in_processes_of_their_own(folder: Path, checkout: Path) -> None:
    finished({name: start_party(checkout, folder, f"{name}.yaml", name) for name in ("bank", "telecom")})

    where = {"bank": ["--out", "scores.csv"], "telecom": []}
    scoring = {
        name: start(checkout, [*_predict(name), "--model", f"runs/{name}/model", *out], folder)
        for name, out in where.items()
    }
    said = finished(scoring)

    found = pd.read_csv(folder / "scores.csv")
    assert found["customer"].tolist() == [f"c{number}" for number in range(300, 360)]
    np.testing.assert_array_equal(found["score"].to_numpy(np.float32), in_one_process(folder / "runs"))
    assert "plan: 1 records have a value that training did not know" in said["telecom"]
    assert not list(folder.glob("*telecom*score*"))
    halves = [load_half(folder / "runs" / name / "model").schema for name in ("bank", "telecom")]
    assert halves[0].run == halves[1].run
    assert halves[0].step == halves[1].step == 2 * 4
    assert halves[1].encoding is not None


def _predict(name: str) -> list[str]:
    return ["predict", f"{name}.yaml", "--as", name, "--records", f"{name}-new.csv"]


def in_one_process(runs: Path) -> np.ndarray[Any, Any]:
    """The same halves on the same records, scored together by the function that needs no network."""
    found = {}
    for name, role in (("bank", "active"), ("telecom", "passive")):
        half = load_half(runs / name / "model")
        assert half.schema.encoding is not None
        records = read_new_records(
            f"{name}-new.csv",
            name=name,
            role=role,  # type: ignore[arg-type]
            encoding=half.schema.encoding,
            id_column="customer",
        )
        found[name] = half.party(records.data, device=CPU)
    active, passive = found["bank"], found["telecom"]
    assert isinstance(active, ActiveParty)
    assert isinstance(passive, PassiveParty)
    return predict(active, {"telecom": passive}).scores.numpy()


# --- without training first


def halves(*names: str, run: str = "a" * 32) -> None:
    """Halves as they would be after training, with first weights."""
    task = task_for("binary")
    for name in names:
        own_config = config(name)
        own = own_data(own_config, name)
        models = Models(own_config.model, own_config.exchange.make())
        with PartyRandom(1):
            party: ActiveParty | PassiveParty
            if name == "bank":
                party = ActiveParty(own.data, models.top(own.data, task, [4]))
                party.widths = {"telecom": 4}
            else:
                party = PassiveParty(own.data, models.bottom(own.data, task))
        origin = Origin(
            learned=TaskSpec("binary", 1),
            model=own_config.model,
            run=run,
            step=8,
            epoch=2,
            encoding=own.encoding,
            tables=own.tables,
        )
        save_half(Path("runs") / name / "model", party, origin)


def prepared(name: str, *overrides: str, **settings: Any) -> Any:
    known: dict[str, Any] = {"model": Path("runs") / name / "model", "records": Path(f"{name}-new.csv")}
    if name == "bank":
        known["out"] = Path("scores.csv")
    return prepare_prediction(config(name, *overrides), name, PredictionFiles(**{**known, **settings}))


def run_all(*services: Any) -> list[BaseException]:
    """Run every party's service, the label party's last: it dials the others."""
    return [*side_by_side({str(number): one.run for number, one in reversed([*enumerate(services)])}).values()]


def test_published_scores_reach_every_party(folder: Path) -> None:
    halves("bank", "telecom")
    publish = "network.publish_scores=true"

    wrong = run_all(prepared("bank", publish), prepared("telecom", publish, out=Path("theirs.parquet")))

    assert wrong == []
    ours, theirs = pd.read_csv("scores.csv"), pd.read_parquet("theirs.parquet")
    assert ours["customer"].tolist() == theirs["customer"].tolist()
    np.testing.assert_array_equal(ours["score"].to_numpy(np.float32), theirs["score"])


def test_ids_that_spreadsheets_calculate_are_told_or_refused_before_anybody_is_met(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    halves("bank", "telecom")
    for name in ("bank", "telecom"):
        new = pd.read_csv(f"{name}-new.csv")
        new.loc[[1, 4], "customer"] = ["-1+2", "=x"]
        new.to_csv(f"{name}-new.csv", index=False)
    said = list[str]()
    own = PredictionFiles(model=Path("runs/bank/model"), records=Path("bank-new.csv"), out=Path("scores.csv"))
    bank = prepare_prediction(config("bank"), "bank", own, notify=said.append)
    assert [line for line in said if "begin as a formula does, the first at row 1 (from 0): '-1+2'" in line]
    assert run_all(bank, prepared("telecom", strict_ids=False)) == []
    assert pd.read_csv("scores.csv")["customer"][:5].tolist() == ["c300", "-1+2", "c302", "c303", "=x"]
    Path("scores.csv").unlink()
    before = sorted(folder.rglob("*"))

    def met(*_: object) -> None:
        raise AssertionError("a partner was asked")

    monkeypatch.setattr("splitvfl.app.serving.AddressBook", met)
    command = [*_predict("bank"), "--model", "runs/bank/model", "--out", "scores.csv", "--strict-ids"]
    assert main(command) == 2
    assert "begin as a formula does, the first at row 1 (from 0): '-1+2'" in capsys.readouterr().err
    assert sorted(folder.rglob("*")) == before
    with pytest.raises(ConfigError, match="--strict-ids: no scores are written at telecom"):
        prepared("telecom", strict_ids=True)


def test_halves_of_different_runs_do_not_predict_together(folder: Path) -> None:
    halves("bank")
    halves("telecom", run="b" * 32)

    wrong = run_all(prepared("bank"), prepared("telecom"))

    assert any(f"run of the trained half: bank has {'a' * 32}, telecom has {'b' * 32}" in str(one) for one in wrong)
    assert not Path("scores.csv").exists()


def test_records_in_another_order_are_refused_and_nothing_is_written(folder: Path) -> None:
    halves("bank", "telecom")
    pd.read_csv("telecom-new.csv")[::-1].to_csv("telecom-new.csv", index=False)

    wrong = run_all(prepared("bank"), prepared("telecom"))

    assert any(isinstance(one, DataError) and "order of the record ids" in str(one) for one in wrong)
    assert sorted(path.name for path in folder.glob("*scores*")) == []


def test_new_tables_are_scored_like_files(folder: Path) -> None:
    parties: dict[str, dict[str, Any]] = {
        "bank": {"label": "default", "active": "age", "active_name": "bank", "missing": "indicator"},
        "telecom": {"passive": {"telecom": "calls, plan"}},
    }
    for name, settings in parties.items():
        ingest(f"{name}.csv", out=f"{name}-tables", id_column="customer", **settings)
        ingest_like(f"{name}-new.csv", out=f"{name}-more", like=f"{name}-tables")
    write_configs(TABLES)
    halves("bank", "telecom")
    assert load_half("runs/telecom/model").tables is not None

    wrong = run_all(*(prepared(name, records=Path(f"{name}-more")) for name in parties))

    assert wrong == []
    assert len(pd.read_csv("scores.csv")) == 60
    # Tables that were encoded by themselves look alike, and are not.
    ingest("telecom-new.csv", out="others", id_column="customer", passive={"telecom": "calls, plan"})
    with pytest.raises(DataError, match="has other encoders than the tables that telecom was trained on"):
        prepared("telecom", records=Path("others"))
    other_plans = pd.read_csv("telecom.csv").replace({"plan": {"a": "x"}})
    other_plans.to_csv("other-plans.csv", index=False)
    ingest("other-plans.csv", out="other-plans", id_column="customer", passive={"telecom": "calls, plan"})
    with pytest.raises(DataError, match="lists other categories than the tables that telecom was trained on"):
        prepared("telecom", records=Path("other-plans"))
    for records in (Path("telecom-new.csv"), None):
        with pytest.raises(ConfigError, match="telecom was trained on tables"):
            prepared("telecom", records=records)


@pytest.mark.parametrize(
    ("ids", "words"),
    [
        ("of an alignment", "numbers that their alignment drew"),
        ("none", "no ids, only numbers of rows"),
        ("moved away", "no schema.json lies beside their folder"),
        ("text", None),
    ],
)
def test_records_of_tables_are_counted_by_their_ids_alone(folder: Path, ids: str, words: str | None) -> None:
    """An alignment draws new numbers for the same customers each time: as ids they would be other records."""
    own: dict[str, Any] = {"passive": {"telecom": "calls, plan"}}
    if ids == "none":
        ingest("telecom.csv", out="telecom-tables", drop="customer", **own)
    elif ids == "of an alignment":
        ingest("telecom.csv", out="telecom-tables", id_column="customer", aligned=_aligned("telecom.csv", 300), **own)
    else:
        ingest("telecom.csv", out="telecom-tables", id_column="customer", **own)
    write_configs(TABLES)
    halves("telecom")
    aligned = _aligned("telecom-new.csv", 60) if ids == "of an alignment" else None
    ingest_like("telecom-new.csv", out="new", like="telecom-tables", aligned=aligned)
    records = Path("new")
    if ids == "moved away":
        records = Path("new/telecom").rename("alone")

    if words is None:
        prepared("telecom", "prediction.per_record=1", records=records).party.tally.begin()
        with pytest.raises(LimitError, match="60 of 60 would be"):
            prepared("telecom", "prediction.per_record=1", records=records).party.tally.begin()
    else:
        with pytest.raises(ConfigError, match=words):
            prepared("telecom", "prediction.per_record=1", records=records)
        prepared("telecom", records=records).party.tally.begin()


def _aligned(file: str, count: int) -> Alignment:
    align_rows(
        Path(f"{file}-aligned"),
        Path(file),
        rows=list(range(count)),
        ids=random_ids(count).tolist(),
        party="telecom",
        role="passive",
        sizes={"bank": 9, "telecom": count},
        shared={"bank": count},
    )
    return read_alignment(f"{file}-aligned")


def test_defenses_of_predictions_only_are_attached(folder: Path) -> None:
    halves("bank", "telecom")
    party = prepared("telecom").party
    assert [len(party.activation[phase]) for phase in ("training", "evaluation", "prediction")] == [0, 0, 0]

    hooks = "defenses=[{name: gaussian-ir, clip: 1.0, sigma: 0.1}, {name: rounding, decimals: 1}]"
    telecom, bank = prepared("telecom", hooks).party, prepared("bank", hooks).party

    assert [len(telecom.activation[phase]) for phase in ("training", "evaluation", "prediction")] == [0, 0, 1]
    assert (len(bank.scores), len(bank.labels)) == (1, 0)


def test_noise_of_predictions_is_fresh_whatever_the_file_says(folder: Path) -> None:
    halves("telecom")
    noisy = replace_config(config("telecom"), "gaussian-ir")
    drawn = []
    for _ in range(2):
        party = prepared("telecom", "defenses=[]").party
        defend_predictions(party, noisy.defenses, noisy.folder, activation_clip=None)
        drawn.append(party.activation["prediction"].apply(torch.ones(3, 4), step=0, ids=None, labels=None))

    assert not torch.equal(*drawn)


def replace_config(own: ExperimentConfig, name: str) -> ExperimentConfig:
    hooks = tuple(hook.model_copy(update={"at": None}) for hook in own.defenses if hook.name == name)
    train = own.train.model_copy(update={"noise_seed_for_experiments": 3})
    return own.model_copy(update={"defenses": hooks, "train": train})


def test_predictions_are_bounded_as_the_activations_of_training(folder: Path) -> None:
    halves("bank", "telecom")
    hooks = "defenses=[{name: gaussian-ir, clip: 1.0, sigma: 0.1, at: AT}]"
    for name in ("bank", "telecom"):
        prepared(name, "exchange.activation_clip=1.0", hooks.replace("AT", "[training, prediction]"))
    with pytest.raises(PrivacyError, match=r"of what telecom sends in prediction: .* no defense bounds them"):
        prepared("telecom", "exchange.activation_clip=1.0", hooks.replace("AT", "[training, evaluation]"))


# --- mistakes


def test_mistakes_are_told_before_anybody_is_waited_for(folder: Path) -> None:
    halves("bank", "telecom")
    Path("there.csv").write_text("mine")
    wrong: list[tuple[str, dict[str, Any], type[Exception], str]] = [
        ("bank", {"out": None}, ConfigError, "bank is the active party and gets the scores"),
        ("bank", {"out": Path("scores.txt")}, DataError, "expected a file that ends in"),
        ("bank", {"out": Path("there.csv")}, DataError, "is there already"),
        ("telecom", {"out": Path("scores.csv")}, ConfigError, "the scores stay at bank"),
        ("bank", {"out": Path("bank-new.csv"), "overwrite": True}, ConfigError, "which the scores would replace"),
        ("bank", {"model": Path("runs/none")}, CheckpointError, "expected a trained half"),
        ("bank", {"model": Path("runs/telecom/model")}, ConfigError, "is the half of telecom as the passive party"),
        ("bank", {"records": None}, ConfigError, "expected a CSV or Parquet file of new records, got nothing"),
        ("bank", {"records": Path("runs")}, ConfigError, "expected a CSV or Parquet file of new records, got runs"),
        ("bank", {"records": Path("no.csv")}, DataError, "and there is none"),
        ("bank", {"records": Path("telecom-new.csv")}, DataError, "no column 'age' in telecom-new.csv"),
        ("bank", {"id_column": "custmer"}, DataError, "no column 'custmer'"),
        ("bank", {"aligned": Path("runs")}, DataError, "expected an alignment"),
    ]
    for name, settings, kind, message in wrong:
        with pytest.raises(kind, match=message):
            prepared(name, **settings)
    assert Path("there.csv").read_text() == "mine"


def test_another_set_of_partners_is_refused(folder: Path) -> None:
    halves("bank")
    text = Path("bank.yaml").read_text().replace("telecom: {", "shop: {")
    Path("bank.yaml").write_text(text)

    with pytest.raises(ConfigError, match=r"was trained with telecom, and bank\.yaml has shop beside bank"):
        prepared("bank")


def test_the_command_says_what_is_wrong_and_ends(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["predict", "bank.yaml", "--as", "active", "--records", "bank-new.csv", "--out", "scores.csv"]) == 2
    said = capsys.readouterr().err
    assert "expected a trained half, as `splitvfl party` writes it, at runs/bank-bank/model" in said
    assert "train it first, or name another folder (splitvfl predict --model FOLDER)" in said


def test_a_set_that_everybody_has_is_scored_on_its_test_records(folder: Path) -> None:
    write_configs({"bank": BUNDLED, "telecom": BUNDLED})
    halves("bank", "telecom")

    wrong = run_all(prepared("bank", records=None), prepared("telecom", records=None))

    assert wrong == []
    assert pd.read_csv("scores.csv")["id"].tolist() == own_data(config("bank"), "bank").data.test.ids.tolist()
    with pytest.raises(ConfigError, match="no records but its own"):
        prepared("bank", records=Path("bank-new.csv"), overwrite=True)


def test_dummies_of_a_padded_alignment_have_no_score(folder: Path) -> None:
    halves("bank", "telecom")
    service = prepared("bank")
    real = torch.arange(60) % 3 > 0
    held = service.scored
    test = replace(held.data.test, real=real)
    scored = replace(held, data=replace(held.data, test=test), names=held.names.filter(real.numpy()))

    assert run_all(replace(service, scored=scored, names=scored.names), prepared("telecom")) == []

    found = pd.read_csv("scores.csv")
    assert found["customer"].tolist() == [f"c{number + 300}" for number in range(60) if number % 3]

"""An experiment in one process whose parties have a file each, joined by the records' ids."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

from splitvfl.app.records import load_data, own_data
from splitvfl.cli import main
from splitvfl.config.sections import load_config, parse_config
from splitvfl.errors import ConfigError, DataError

EXPERIMENT = """
data: {name: table, id_column: customer, test_fraction: 0.25}
parties:
  bank: {role: active, path: bank.csv, label: default}
  telecom: {role: passive, path: telecom.csv}
model: {name: mlp, bottom: [4]}
train: {epochs: 1, batch_size: 16}
audit: false
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    random = np.random.default_rng(0)
    ids = [f"1234567890123456789{number:03}" for number in range(120)]  # beyond 64 bits
    people = pd.DataFrame(
        {
            "customer": ids,
            "income": random.normal(size=120),
            "default": np.arange(120) % 3 == 0,
            "usage": np.arange(120),
        }
    )
    people.astype({"default": int}).drop(columns="usage").iloc[:100].to_csv(tmp_path / "bank.csv", index=False)
    people[["customer", "usage"]].iloc[20:].sample(frac=1, random_state=1).to_csv(tmp_path / "telecom.csv", index=False)
    (tmp_path / "both.yaml").write_text(EXPERIMENT)
    return tmp_path


def test_records_are_joined_by_id(folder: Path) -> None:
    data = load_data(load_config(folder / "both.yaml", ["data.text=customer", "data.scale=none"]))

    assert (data.name, data.active.train.count, data.active.test.count) == ("both", 60, 20)
    assert data.active.column_names == ("income",)
    frame = pd.read_csv(folder / "bank.csv", dtype={"customer": str}).iloc[20:]
    labels = torch.cat([data.active.train.labels, data.active.test.labels])  # type: ignore[list-item]
    usage = torch.cat([data["telecom"].train.columns.numeric, data["telecom"].test.columns.numeric])[:, 0]
    expected = dict(zip(range(20, 100), frame["default"], strict=True))  # usage is the number of the person
    assert {int(used): int(label) for used, label in zip(usage, labels, strict=True)} == expected


def test_each_file_may_say_how_its_cells_are_written(folder: Path) -> None:
    bank = folder / "bank.csv"
    bank.write_text(bank.read_text().replace(",", ";").replace(".", ","))
    with pytest.raises(DataError, match=r"bank.csv, line 2, column 'income': .*data.decimal: \",\""):
        load_data(load_config(folder / "both.yaml", ["data.text=customer"]))

    own = ["data.text=customer", 'parties.bank.decimal=","', "data.missing_values=[-999]"]
    config = load_config(folder / "both.yaml", own)
    assert config.parties["bank"].cells(config.data) == {
        "missing_values": ("-999",),
        "decimal": ",",
        "thousands": None,
        "units": None,
    }
    assert load_data(config).active.numeric_names == ("income",)
    assert own_data(config, "bank").data.numeric_names == ("income",)
    one = EXPERIMENT.replace("path: bank.csv, label: default", 'label: default, decimal: ","')
    one = one.replace("path: telecom.csv", "columns: rest").replace("id_column: customer", "path: bank.csv")
    (folder / "one.yaml").write_text(one)
    with pytest.raises(ConfigError, match=r"parties.bank.decimal is of a party's own file"):
        load_data(load_config(folder / "one.yaml"))


@pytest.mark.parametrize("settings", [[], ["data.text=customer"]])
def test_ids_beyond_64_bits_are_read(folder: Path, settings: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", str(folder / "both.yaml"), *settings, "--out", str(folder / "run")]) == 0
    assert "80 records joined by customer" in capsys.readouterr().out


def test_it_trains(folder: Path) -> None:
    run = folder / "run"
    assert main(["train", str(folder / "both.yaml"), "data.text=customer", "--out", str(run)]) == 0
    # The paths that are kept with the run are still those of the files.
    again = load_config(run / "experiment.yaml")
    assert again.parties["telecom"].path == str(folder / "telecom.csv")


def test_a_party_alone_takes_its_own_file(folder: Path) -> None:
    config = load_config(folder / "both.yaml", ["network={plaintext_on_loopback: true}", "data.text=customer"])

    own = own_data(config, "telecom")

    assert own.data.column_names == ("usage",)
    assert own.data.train.count + own.data.test.count == 100


def test_each_file_may_call_its_ids_in_its_own_way(folder: Path) -> None:
    pd.read_csv(folder / "telecom.csv", dtype=str).rename(columns={"customer": "client"}).to_csv(
        folder / "clients.csv", index=False
    )
    own = ["parties.telecom.path=clients.csv", "parties.telecom.id_column=client", "data.text=[customer, client]"]
    data, same = (load_data(load_config(folder / "both.yaml", changes)) for changes in (own, ["data.text=customer"]))

    for part in ("train", "test"):
        ours, theirs = getattr(data["telecom"], part), getattr(same["telecom"], part)
        assert torch.equal(ours.ids, theirs.ids)
        assert torch.equal(ours.columns.numeric, theirs.columns.numeric)
    assert data["telecom"].column_names == ("usage",)
    assert "80 records joined by customer of bank and client of telecom; not in every table" in data.description
    # Scored later, each file is read by its own column.
    run = folder / "run"
    assert main(["train", str(folder / "both.yaml"), *own, "--out", str(run)]) == 0
    records = [f"bank={folder / 'bank.csv'}", f"telecom={folder / 'clients.csv'}"]
    pd.read_csv(folder / "bank.csv", dtype=str)[20:].to_csv(folder / "bank.csv", index=False)
    assert (
        main(["predict", str(run), "--records", records[0], "--records", records[1], "--out", str(run / "s.csv")]) == 0
    )
    assert len(pd.read_csv(run / "s.csv")) == 80
    # Alone, and over a network, a party's half remembers its own.
    alone = load_config(folder / "both.yaml", [*own[:2], "network={plaintext_on_loopback: true}", "data.text=client"])
    assert own_data(alone, "telecom").data.provenance.id_column == "client"  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        (["data.id_column=null", "parties.bank.id_column=customer"], r"got none of telecom; set data\.id_column"),
        (
            [
                *("parties.bank.path=null", "parties.telecom.path=null", "parties.telecom.columns=rest"),
                *("data.path=bank.csv", "parties.telecom.id_column=client"),
            ],
            r"parties\.telecom\.id_column is of a party's own file",
        ),
    ],
)
def test_ids_of_files_go_together(folder: Path, changes: list[str], told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        load_data(load_config(folder / "both.yaml", [*changes, "data.text=customer"]))


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ("parties.telecom.path=null", "telecom needs one too"),
        ("parties.bank.columns=[income]", "data.drop"),
        ("data.path=bank.csv", "keep one of the two"),
        ("data.name=digits", "only for data: {name: table}"),
    ],
)
def test_what_does_not_go_with_files_of_their_own_is_told(change: str, told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        parse_config(EXPERIMENT, source="both.yaml", overrides=[change])

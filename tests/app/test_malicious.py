"""A party that deviates, named in a file: the run judges what it reads, and files that cannot mean it are refused."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from splitvfl.app.checking import check_experiment
from splitvfl.app.experiment import Experiment, prepare, run_experiment
from splitvfl.config.sections import parse_config
from splitvfl.errors import ConfigError
from splitvfl.exchange.paillier import InsecureEncryption
from splitvfl.leakage.packed_values import PackedReading
from splitvfl.report.findings import packing_read
from splitvfl.report.report import write_report
from splitvfl.report.summary import RunSummary, read_summary
from tests.summaries import opened

TEXT = """
data: breast-cancer
parties: {clinic: {role: active, columns: 0.8}, lab: {role: passive, columns: rest}}
model: {name: logistic-regression, init: zero}
exchange: {name: residue, encryption: {key_bits: 2048}}
train: {epochs: 1, batch_size: 128, optimizer: {name: sgd, lr: 0.1}}
audit: false
malicious: {lab: packing}
"""


def summary_of(text: str, monkeypatch: pytest.MonkeyPatch) -> RunSummary:
    config = parse_config(text, source="deviating.yaml")
    experiment = Experiment(config, prepare(config))
    exchange = experiment._assembly.exchange
    monkeypatch.setattr(exchange, "encryption", InsecureEncryption(key_bits=512))
    trainer = experiment.trainer()
    trainer.fit(1)
    return experiment.summary(trainer, None, {})


def test_a_file_names_who_deviates_and_the_summary_keeps_what_was_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = summary_of(TEXT, monkeypatch)
    ours, whole = found.packing
    assert (ours.party, ours.reads, ours.strength) == ("lab", "labels", "agreed bits")
    assert 0.5 < ours.auc <= whole.auc  # type: ignore[operator]
    assert found.parties["lab"].attacks["packing"].auc is not None
    assert found.worst[0] is not None
    assert found.worst[0] > 0.5, "what came back counts in the verdict"
    found.save(tmp_path)
    assert read_summary(tmp_path).packing == found.packing
    assert any("lab deviates (packing) and reads labels" in one for one in packing_read(found))


def test_a_summary_that_is_older_has_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    summary_of(TEXT.replace("malicious: {lab: packing}", ""), monkeypatch).save(tmp_path)
    path = tmp_path / "summary.json"
    old = opened(path)
    assert "packing" not in old
    path.write_text(json.dumps(old))
    assert read_summary(tmp_path).packing == []


def test_what_an_older_summary_read_does_not_say_how_many_records_were_sent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = summary_of(TEXT, monkeypatch)
    found.save(tmp_path)
    path = tmp_path / "summary.json"
    old = opened(path)
    assert [one.pop("sent") for one in old["packing"]] == [found.packing[0].of] * 2
    path.write_text(json.dumps(old))
    assert read_summary(tmp_path).packing == [replace(one, sent=None) for one in found.packing]


@pytest.mark.parametrize(
    ("change", "place", "why"),
    [
        (("lab: packing", "clinic: packing"), "malicious.clinic", "multiplies nothing that others have encrypted"),
        (("lab: packing", "shop: packing"), "malicious.shop", "expected a party of this experiment, clinic, lab"),
        (("{name: residue, encryption: {key_bits: 2048}}", "oracle"), "malicious.lab", "encrypts nothing"),
        (("lab: packing", "lab: lying"), "malicious.lab", "packing"),
        (
            ("audit: false", 'audit: false\nnetwork: {listen: "127.0.0.1:7000", plaintext_on_loopback: true}'),
            "malicious",
            "no setting of its file",
        ),
    ],
)
def test_a_file_that_cannot_mean_it_is_refused_with_its_line(change: tuple[str, str], place: str, why: str) -> None:
    assert change[0] in TEXT
    with pytest.raises(ConfigError, match=rf"deviating.yaml:\d+: {place}: .*{why}"):
        parse_config(TEXT.replace(*change), source="deviating.yaml")


def test_check_says_before_step_1_who_deviates(tmp_path: Path) -> None:
    said: list[str] = []
    config = parse_config(TEXT, source="deviating.yaml")
    assert check_experiment(config, tmp_path / "run", tell=said.append) == []
    assert any("lab deviates from exchange residue (packing)" in line for line in said)


def test_the_page_has_both_strengths(tmp_path: Path) -> None:
    text = TEXT.replace("malicious: {lab: packing}", "").replace(
        "{name: residue, encryption: {key_bits: 2048}}", "oracle"
    )
    config = parse_config(text, source="page.yaml")
    figures: dict[str, Any] = {
        "party": "lab",
        "owner": "clinic",
        "reads": "labels",
        "batch_size": 128,
        "slots": 52,
        "ciphertexts": 1,
    }
    more: dict[str, Any] = {"records": 92, "of": 455, "right": 1.0, "auc": 0.68, "most_columns": 9}
    read = [
        PackedReading(**figures, **more, strength="agreed bits", per_step=23),
        PackedReading(**figures, **more, strength="whole plaintexts", per_step=52),
    ]
    run_experiment(config, tmp_path / "run")
    summary = read_summary(tmp_path / "run")
    replace(summary, packing=read).save(tmp_path / "run")
    page = write_report([tmp_path / "run"], tmp_path / "report.html", title="packing").read_text()
    for strength, values in (("agreed bits", 23), ("whole plaintexts", 52)):
        assert f"<td>lab</td><td>labels of clinic</td><td>{strength}</td><td>{values} of 128</td>" in page

"""Every example experiment runs from the command line, shortened, and leaves a complete run behind."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import yaml

from splitvfl.cli import main
from splitvfl.leakage.monitor import read_metrics
from splitvfl.report.summary import read_summary

EXAMPLES = Path(__file__).resolve().parents[2] / "splitvfl" / "examples"
# Of each of them something smaller runs in the first tier: another example, or the command on fewer records.
LARGE = {
    "credit_default": "trains on 24,000 records",
    "encrypted": "keys of 2,048 bits",
    "one_hot_columns": "trains on 16,000 records",
    "digits": "learns from 1,797 images",
    "hidden_columns": "learns to read columns",
    "three_parties": "two passive parties, each with its own audit",
    "which_digit": "ten classes, each with its own audit",
    "wide_deep_clicks": "trains a deep model on 16,000 records",
    "wide_deep_criteo": "trains a deep model on 8,000 records",
}
FILES_NEEDED = {"credit_default": "credit_default_taiwan.parquet", "wide_deep_criteo": "criteo_head_10k.parquet"}


def cases() -> list[Any]:
    """Every example by its name; what is large is of the second tier."""
    marks = {stem: [pytest.mark.slow(reason=reason)] for stem, reason in LARGE.items()}
    return [
        pytest.param(path, id=path.stem, marks=marks.get(path.stem, [])) for path in sorted(EXAMPLES.glob("*.yaml"))
    ]


@pytest.mark.usefixtures("few_rounds")
@pytest.mark.parametrize("path", cases())
def test_example_runs(
    path: Path, tmp_path: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    if path.stem in FILES_NEEDED:
        folder: Path = request.getfixturevalue("data_folder")
        if not (folder / FILES_NEEDED[path.stem]).exists():
            pytest.skip(f"no {FILES_NEEDED[path.stem]} in {folder}")
        monkeypatch.setenv("SPLITVFL_DATA", os.fspath(folder))
    out = tmp_path / "run"

    code = main(["train", str(path), "train.epochs=1", "--out", str(out)])

    assert code == 0
    experiment = yaml.safe_load(path.read_text())
    summary = read_summary(out)
    passive = {name for name, party in experiment["parties"].items() if party["role"] == "passive"}
    assert set(summary.parties) == passive
    assert summary.test_metric is not None
    assert {file.stem for file in (out / "weights").glob("*.safetensors")} == set(experiment["parties"])
    assert read_metrics(out)[-1]["step"] == summary.steps
    for party in summary.parties.values():
        wanted = {hook if isinstance(hook, str) else hook["name"] for hook in experiment.get("attacks", [])}
        found = set(party.attacks) | set(party.unavailable) | {leak.attack for leak in party.features}
        assert wanted <= found

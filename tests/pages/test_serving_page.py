"""The bank, the telecom and the notary of docs/serving.md: their files and commands as they stand there."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from splitvfl.cli import main
from tests.commands import Command
from tests.run.parties import free_ports

PARTIES = ("bank", "telecom", "notary")


@pytest.fixture(scope="module")
def example(checkout: Path) -> str:
    page = (checkout / "docs" / "serving.md").read_text(encoding="utf-8")
    return page.partition("### A bank, a telecom and a notary\n")[2].partition("\n### ")[0]


def write_data(folder: Path) -> None:
    draw = np.random.default_rng(0)
    customers = [f"c{number:04d}" for number in range(600)]
    age, income, calls = draw.normal(size=(3, 600))
    plan, noise = draw.choice(["a", "b"], 600), draw.normal(size=600)
    bank = pd.DataFrame({"customer": customers, "age": age, "income": income})
    bank["default"] = (age - income + 2 * calls + (plan == "a") + noise > 0).astype(int)
    telecom = pd.DataFrame({"customer": customers, "calls": calls, "plan": plan})
    for name, table in (("bank", bank), ("telecom", telecom)):
        table[:300].to_csv(folder / name / f"{name}.csv", index=False)
        table[300:].drop(columns="default", errors="ignore").to_csv(folder / name / f"june-{name}.csv", index=False)


def together(block: str, folder: Path) -> dict[str, tuple[int | None, str, str]]:
    """Run the commands of a block at once, each in its party's folder: exit codes, and what they say."""
    lines = re.findall(r"^(\w+)\$ splitvfl (.*)$", block, re.MULTILINE)
    running = {name: Command(words.split(), folder / name, COLUMNS="1000") for name, words in lines}
    return {name: (one.returncode, *said) for name, one in running.items() for said in [one.communicate(timeout=60)]}


@pytest.mark.slow(reason="eleven commands of three parties, each in a process")
def test_the_example_runs_as_it_stands_and_ends_as_the_page_says(
    example: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = dict(re.findall(r"```yaml\n# (\w+)\.yaml\n(.*?)```", example, re.DOTALL))
    certs, train, score, report = re.findall(r"```console\n(.*?)```", example, re.DOTALL)
    (refusal,) = re.findall(r"```text\n(.*?)```", example, re.DOTALL)
    assert tuple(files) == PARTIES
    ports = dict(zip(("telecom.example:7000", "notary.example:7001"), free_ports(2), strict=True))
    monkeypatch.chdir(tmp_path)
    (command,) = re.findall(r"^\$ splitvfl (.*)$", certs, re.MULTILINE)
    assert main(command.split()) == 0
    for name, text in files.items():
        for place, port in ports.items():
            text = text.replace(place, f"127.0.0.1:{port}")
        (tmp_path / name).mkdir()
        (tmp_path / name / f"{name}.yaml").write_text(text)
        shutil.copytree(tmp_path / "certs", tmp_path / name / "certs")
    write_data(tmp_path)

    assert {name: code for name, (code, *_) in together(train, tmp_path).items()} == {"bank": 0, "telecom": 0}

    scores, before = [], sorted((tmp_path / "notary").rglob("*"))
    for _ in range(2):
        said = together(score, tmp_path)
        assert {name: code for name, (code, *_) in said.items()} == dict.fromkeys(PARTIES, 0), said
        assert said["notary"][1].strip() == "coordinator: 300 records scored"
        assert "`coordinator: 300 records scored`" in example
        scores.append((tmp_path / "bank" / "scores.csv").read_bytes())
    assert scores[0] == scores[1]
    found = pd.read_csv(tmp_path / "bank" / "scores.csv")
    assert len(found) == 300
    np.testing.assert_allclose(found["score"], found["score"].round(2), atol=1e-6)
    # How many there are depends on weights that the parties drew in secret.
    assert found["score"].nunique() > 5

    third = together(score, tmp_path)
    assert third["bank"][0] != 0
    assert " ".join(refusal.split()) in " ".join(third["bank"][2].split())
    assert (tmp_path / "bank" / "scores.csv").read_bytes() == scores[1]

    (told,) = together(report, tmp_path).values()
    expected = " ".join(report.splitlines()[1:]).partition("61f0")[0]
    assert " ".join(expected.split()) in " ".join(told[2].split())
    assert told[0] == 0
    assert not list((tmp_path / "telecom").rglob("*score*.csv"))
    assert sorted((tmp_path / "notary").rglob("*")) == before, "it has written nothing"

"""Which messages readers of columns will leave out, said before training, beside what happens in one."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from splitvfl.app.checking import check_experiment
from splitvfl.app.column_auditing import said_of_few_known
from splitvfl.app.experiment import run_experiment
from splitvfl.attacks import LossThresholdAttack, NormAttack, RidgeAttack
from splitvfl.config.sections import parse_config

TEXT = """
data: {name: breast-cancer}
parties:
  clinic: {role: active, columns: ["mean *"]}
  lab: {role: passive, columns: rest}
model: {name: mlp, bottom: [4]}
train: {epochs: 3, batch_size: 20, seed: 1}
attacks: [{name: ridge, known_share: 0.1}]
audit: false
"""


def test_the_share_that_is_foretold_is_that_of_a_training(tmp_path: Path) -> None:
    config, lines = parse_config(TEXT, source="run.yaml"), list[str]()
    assert check_experiment(config, tmp_path / "run", tell=lines.append) == []
    ((foretold,),) = (
        re.findall(r"about (\d+)% will have fewer than 3", line) for line in lines if "ridge knows" in line
    )

    summary = run_experiment(config, tmp_path / "run")
    (reading,) = summary.parties["lab"].readings
    left_out, messages = map(int, re.findall(r"(\d+) of (\d+) messages", reading.note)[0])

    # Some 70 messages, of three epochs of the same known records: three standard errors are .17.
    assert left_out / messages == pytest.approx(int(foretold) / 100, abs=0.17)


def test_who_knows_none_is_judged_by_nothing_and_who_knows_enough_is_not_named() -> None:
    attacks = [RidgeAttack(known_share=0.0001), RidgeAttack(known_share=0.3), NormAttack(), LossThresholdAttack()]

    (line,) = said_of_few_known(attacks, records=2_240, batch_size=64)
    assert line.startswith("ridge knows 0 records of 2,240; of messages of 64 about 100% will have fewer than 3")
    assert len(list(said_of_few_known(attacks, records=2_240, batch_size=1))) == 2

"""Processes of tests are forked ready to work: what they would import one by one, all of them would pay for."""

from __future__ import annotations

import signal
import sys
from collections.abc import Sequence
from pathlib import Path

from splitvfl.cli import main
from tests.commands import Command
from tests.run.forked import begin_as_a_program

EXPERIMENT = """
data: {name: breast-cancer}
parties: {clinic: {role: active, columns: ["mean *"]}, lab: {role: passive, columns: rest}}
model: {name: mlp, bottom: [4, 4]}
train: {epochs: 1, batch_size: 256}
"""
# An encoding, a table of Unicode: what is imported where it is used.
FEW = 25


def count_imports(arguments: Sequence[str]) -> int:
    before = set(sys.modules)
    code = main(arguments)
    print("imported:", *sorted(set(sys.modules) - before))
    return code


def begin_where_ctrl_c_is_ignored(arguments: Sequence[str]) -> int:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    begin_as_a_program()
    signal.raise_signal(signal.SIGINT)
    return 0


def test_a_forked_command_finds_imported_what_it_needs(tmp_path: Path) -> None:
    (tmp_path / "run.yaml").write_text(EXPERIMENT)
    process = Command(["train", "run.yaml"], tmp_path, program=count_imports)
    said, errors = process.communicate(timeout=120)
    assert process.returncode == 0, errors
    imported = said.rpartition("imported:")[2].split()
    assert len(imported) < FEW, f"add what brings these to the list in tests/run/imported.py: {imported}"


def test_ctrl_c_reaches_a_command_also_under_a_job_in_the_background(tmp_path: Path) -> None:
    process = Command([], tmp_path, program=begin_where_ctrl_c_is_ignored)
    assert process.communicate(timeout=60)[1].rstrip().endswith("KeyboardInterrupt")
    assert process.returncode != 0

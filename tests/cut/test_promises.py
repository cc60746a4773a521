"""What an experiment says of promises about labels, and what it refuses, before the first step."""

from __future__ import annotations

from pathlib import Path

import pytest

from splitvfl.app.experiment import run_experiment
from splitvfl.config.sections import parse_config
from splitvfl.errors import SplitVFLError

EXPERIMENT = """
name: promises
data: {{name: breast-cancer}}
parties:
  bank: {{role: active, columns: ["mean *"]}}
  clinic: {{role: passive, columns: rest}}
model: {{name: mlp, bottom: [4], top: {top}}}
defenses: [{defense}]
train: {{epochs: 2, batch_size: 128{more}}}
audit: false
"""


def run(folder: Path, defense: str, *, top: str = "[1]", more: str = "") -> tuple[list[str], list[str]]:
    text = EXPERIMENT.format(defense=defense, top=top, more=more)
    said: list[str] = []
    config = parse_config(text, source=folder / "experiment.yaml", folder=folder)
    summary = run_experiment(config, folder / "run", notify=said.append)
    return said, list(summary.notes)


@pytest.mark.parametrize(
    ("defense", "start", "end"),
    [
        ("{name: record-gaussian, detection_error: 0.4}", "record-gaussian: each message is 0.507-Gaussian", "0.360."),
        (
            "{name: record-gaussian, mu: 1.0, per: run}",
            "record-gaussian: all messages of the run together are 1-Gaussian",
            "below 0.309.",
        ),
        (
            "{name: gaussian-targets, sigma: 2.0, remembered: false}",
            "gaussian-targets: all messages of the run together are 0.707-Gaussian",
            "below 0.362.",
        ),
        ("{name: gaussian-targets, epsilon: 1.0, delta: 1.0e-5}", "gaussian-targets: all messages of the run", ""),
    ],
)
def test_a_run_says_what_is_promised_before_it_begins_and_in_its_notes(
    tmp_path: Path, defense: str, start: str, end: str
) -> None:
    said, notes = run(tmp_path, defense)
    assert set(notes) <= set(said)  # beside what the data are, and the goal
    assert notes[0].startswith(start)
    assert notes[0].endswith(end)


@pytest.mark.parametrize(
    ("defense", "settings", "text"),
    [
        ("{name: record-gaussian, mu: 1.0, per: run}", {"top": "[3, 1]"}, "gaussian-targets with remembered: false"),
        ("{name: record-gaussian, mu: 1.0, per: run, epochs: 7}", {}, "promised over 7 epochs, and the run has 2"),
        ("{name: record-gaussian, mu: 1.0, label_range: [0.0, 1.0]}", {}, "label_range is for regression"),
        ("{name: record-gaussian, mu: 1.0, classes: 3}", {}, "made for 3 classes, and a binary task"),
        ("{name: record-gaussian}", {}, "exactly one of mu"),
    ],
)
def test_what_voids_a_promise_is_refused_before_an_earlier_run_is_given_up(
    tmp_path: Path, defense: str, settings: dict[str, str], text: str
) -> None:
    with pytest.raises(SplitVFLError, match=text):
        run(tmp_path, defense, **settings)
    assert not (tmp_path / "run" / "metrics.jsonl").exists()

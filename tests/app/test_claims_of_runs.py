"""What a run says of its defenses: claims before it begins and in its report, and what was spent, counted once."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path

import pytest

from splitvfl.app.experiment import run_experiment
from splitvfl.config.sections import parse_config
from splitvfl.defenses import LaplaceResidue, MultiplicativeLaplaceResidue
from splitvfl.exchange.split import Split
from splitvfl.report.report import write_report
from splitvfl.report.summary import RunSummary
from splitvfl.run.trainer import Trainer
from tests.exchange.logistic import trainer_of

EXPERIMENT = """
name: spent
data: {{name: breast-cancer}}
parties:
  bank: {{role: active, columns: ["mean *"]}}
  clinic: {{role: passive, columns: rest}}
model: logistic-regression
exchange: {{name: split{exchange}}}
defenses: [{defense}]
train: {{epochs: 3, batch_size: 128, optimizer: {{name: sgd, lr: 0.1}}{more}}}
audit: false
"""


def run(folder: Path, defense: str, *, exchange: str = "", more: str = "") -> tuple[list[str], RunSummary]:
    text = EXPERIMENT.format(defense=defense, exchange=exchange, more=more)
    said: list[str] = []
    config = parse_config(text, source=folder / "experiment.yaml", folder=folder)
    return said, run_experiment(config, folder / "run", notify=said.append)


def test_a_run_says_what_was_spent_beside_what_it_promised(tmp_path: Path) -> None:
    said, summary = run(tmp_path, "{name: laplace-residue, epsilon: 0.4}", exchange=", own_part: sent")

    # Three epochs of .2 each.
    ceiling = f"{math.exp(0.6) / (1 + math.exp(0.6)):.3f}"
    promised = [line for line in said if "all messages of the run together are 0.6-differentially private" in line]
    spent = [line for line in summary.notes if "was sent 3 times" in line]
    assert len(promised) == len(spent) == 1
    assert promised[0] in summary.notes
    assert f"more often than {ceiling}" in promised[0]
    assert "costs ε = 0.6 in its label" in spent[0]
    assert f"more often than {ceiling}" in spent[0]
    assert not any("was sent" in line for line in said)
    # Totals, and no means over steps.
    measured = summary.parties["clinic"].measurements
    assert measured["laplace-residue/epsilon_spent"] == pytest.approx(0.6)
    assert measured["laplace-residue/label_success_bound"] == pytest.approx(float(ceiling), abs=1e-3)
    logged = map(json.loads, (tmp_path / "run" / "metrics.jsonl").read_text().splitlines())
    spending = [
        value for line in logged for tag, value in line.items() if tag.endswith("laplace-residue/epsilon_spent")
    ]
    assert spending == sorted(spending)
    assert spending[-1] == pytest.approx(0.6)


@pytest.mark.parametrize(
    ("exchange", "more", "why"),
    [
        ("", "", "bank learns its own columns or intercept from exact residues"),
        (", own_part: sent", ", early_stopping: {}", "early stopping is made from labels"),
    ],
)
def test_what_is_not_covered_is_said_with_the_reason(tmp_path: Path, exchange: str, more: str, why: str) -> None:
    said, summary = run(tmp_path, "{name: laplace-residue, epsilon: 0.4}", exchange=exchange, more=more)

    (reason,) = [line for line in said if "of the whole run nothing is promised" in line]
    assert why in reason
    assert reason in summary.notes
    assert not any("all messages of the run together" in line for line in summary.notes)


def test_the_report_has_claims_in_full_and_a_heuristic_says_that_it_promises_nothing(tmp_path: Path) -> None:
    _, summary = run(tmp_path, "{name: memoised-response, epsilon: 1.0}, {name: isotropic, ratio: 2}")

    response, isotropic = sorted(summary.claims, reverse=True)
    assert response.startswith("memoised-response: All messages of the run together are 1-differentially private")
    for part in ("The mechanism: ", "What it rests on: ", "What it does not cover: "):
        assert part in response
    assert isotropic.startswith("isotropic: It promises nothing of what anybody learns from what is sent.")
    page = write_report([tmp_path / "run"], tmp_path / "report.html", title="Leaks").read_text(encoding="utf-8")
    text = re.sub(r"\s+", " ", page)
    for claim in summary.claims:
        assert f"What is claimed of {claim.replace(chr(39), '&#39;')}" in text


# --- counted once


def trainer(folder: Path | None, defense: LaplaceResidue | MultiplicativeLaplaceResidue) -> Trainer:
    return trainer_of(
        Split(own_part="sent"),
        {"lab": 4, "shop": 2},
        defenses=(defense,),
        audit=False,
        **({} if folder is None else {"log_dir": folder, "checkpoint_every": 2, "log_every": 1}),
    )


class Killed(Exception):
    """As if the process had died."""


@pytest.mark.parametrize(
    "defense", [LaplaceResidue(epsilon=1.0), MultiplicativeLaplaceResidue(epsilon=5.0, b1=0.5, b2=1.0)]
)
@pytest.mark.parametrize("last", [3, 6])
def test_a_step_that_is_taken_again_after_a_fault_costs_once(
    tmp_path: Path, last: int, defense: LaplaceResidue | MultiplicativeLaplaceResidue
) -> None:
    def kill(status: object) -> None:
        if getattr(status, "step", 0) == last:
            raise Killed

    with pytest.raises(Killed):
        trainer(tmp_path, defense).fit(2, progress=kill)
    again = trainer(tmp_path, type(defense)(**settings_of(defense)))
    again.resume()
    again.fit(2)
    straight = trainer(None, type(defense)(**settings_of(defense)))
    straight.fit(2)

    for tag in ("epsilon_spent", "label_success_bound"):
        found = {name: value for name, value in again.active.measurements.items() if name.endswith(tag)}
        assert found == {name: value for name, value in straight.active.measurements.items() if name.endswith(tag)}
        assert len(found) == 2
    assert again.active.notes == straight.active.notes
    assert "was sent twice" in again.active.notes[-1] or "was sent 2 times" in again.active.notes[-1]


def settings_of(defense: LaplaceResidue | MultiplicativeLaplaceResidue) -> dict[str, float]:
    names = ("epsilon",) if isinstance(defense, LaplaceResidue) else ("epsilon", "b1", "b2")
    return {name: getattr(defense, name) for name in names}

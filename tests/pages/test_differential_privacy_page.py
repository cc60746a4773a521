"""The page on differential privacy: its file trains, and its numbers are those that a run would say."""

from __future__ import annotations

import math
import re
from pathlib import Path

import pytest

from splitvfl.app.experiment import Experiment, Workbench
from splitvfl.app.hdp_plan import HdpPlan
from splitvfl.app.noise_plans import plan_of
from splitvfl.app.records import load_data
from splitvfl.config.sections import ExperimentConfig, parse_config
from splitvfl.data.ranges import read_ranges
from splitvfl.privacy import tight_hdp_sensitivity

# What own columns predict is never asked here, only whether it was judged.
pytestmark = pytest.mark.usefixtures("few_rounds")

PAGE = Path(__file__).parents[2] / "docs" / "differential-privacy.md"
# The page's own file is of somebody's patients; this set has columns of the same names.
OURS = ("data: {name: table, path: patients.csv, label: malignant, ranges: ranges.csv}", "data: {name: breast-cancer}")


def blocks(language: str) -> list[str]:
    return re.findall(rf"^( *)```{language}\n(.*?)^\1```", PAGE.read_text(), re.DOTALL | re.MULTILINE)[0][1].split("\0")


def config_of(*changes: str) -> ExperimentConfig:
    (text,) = blocks("yaml")
    assert OURS[0] in text
    return parse_config(text.replace(*OURS), source="page.yaml", overrides=changes)


def test_what_the_page_says_of_learning_rates_is_what_the_recursion_finds() -> None:
    shape = {"steps": 10, "epochs": 10, "batch_size": 455, "k": 1.0, "lipschitz": 1.0}
    rates = (0.1, 1.0, 3.9)
    passive = [f"{tight_hdp_sensitivity('passive', **shape, eta=rate):.2f}" for rate in rates]
    logistic = {"beta_theta": 0.25, "beta_y": 0.5, "k_y": 1.0, "step": 1.0 + math.tanh(0.5)}
    active = [f"{tight_hdp_sensitivity('active', **shape, **logistic, eta=rate):.2f}" for rate in rates]
    text = " ".join(PAGE.read_text().split())
    assert f"by {passive[0]} at a rate of .1, {passive[1]} at 1 and {passive[2]} at 3.9" in text
    assert f"and the label party's by {active[0]}, {active[1]} and {active[2]}." in text


def test_the_file_of_the_page_trains_and_says_what_is_not_covered() -> None:
    config = config_of()
    experiment = Experiment(config, Workbench(load_data(config), {}))
    # Ten steps from zero, with noise that is averaged over 455 records: far from chance on the label party's columns.
    assert experiment.trainer().fit(10)["auc"] > 0.8
    said = " ".join(experiment.noise_notes())
    for what in (
        "statistics",
        "the evaluation after the last epoch",
        "the trained weights",
        "anything, from whoever reads the folder",
    ):
        assert f"Not covered: {what}" in said


@pytest.mark.parametrize("epsilon", ["0.1", "1", "10"])
def test_the_noise_of_the_page_is_what_is_calculated(epsilon: str) -> None:
    (row,) = re.findall(rf"^\| {re.escape(epsilon)} \|(.*)\|$", PAGE.read_text(), re.MULTILINE)
    *columns, delta = (cell.strip() for cell in row.split("|"))
    config = config_of()
    data = load_data(config).active
    for calibration, cell in zip(("tight", "analytic", "published"), columns, strict=True):
        changed = (f"exchange.noise.epsilon={float(epsilon)}", f"exchange.noise.calibration={calibration}")
        plan = plan_of(config_of(*changed), data)
        assert isinstance(plan, HdpPlan)
        assert cell == f"{plan.passive.sigma:.3g} / {plan.active.sigma:.3g}"
    assert f"{plan.passive.delta:.2g}" == delta


def test_the_ranges_of_the_page_can_be_read(tmp_path: Path) -> None:
    (text,) = blocks("text")
    (tmp_path / "ranges.csv").write_text("".join(f"{line.strip()}\n" for line in text.splitlines()))
    assert read_ranges(tmp_path / "ranges.csv").bounds == {"age": (18, 100), "balance": (-10_000, 1_000_000)}


def test_the_python_of_the_page_trains_and_says_what_is_protected(capsys: pytest.CaptureFixture[str]) -> None:
    (code,) = blocks("python")
    exec(compile(code, str(PAGE), "exec"), {})
    said = capsys.readouterr().out
    assert "(1, 0.001)-joint differentially private (theorem 2 of HDP-VFL)" in said
    assert "over 10 epochs, 10 steps of " in said

"""Noise on sums in docs/logistic-regression.md: its file is one, and has the σ that the page says."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from splitvfl.app.noise_plans import plan_of
from splitvfl.app.records import load_data
from splitvfl.app.sum_noise import SumNoisePlan
from splitvfl.config.sections import parse_config


def test_the_file_of_the_page_has_the_noise_that_it_says(checkout: Path) -> None:
    page = (checkout / "docs" / "logistic-regression.md").read_text(encoding="utf-8")
    section = page.partition("\n## Noise on sums\n")[2].partition("\n## ")[0]
    found = re.search(r"```yaml\n(.*?)```", section, re.DOTALL)
    said = re.search(r"the σ = ([\d.]+) of this file", section)
    assert found is not None
    assert said is not None
    config = parse_config(found[1], source="page.yaml")
    plan = plan_of(config, load_data(config).active)
    assert isinstance(plan, SumNoisePlan)
    assert plan.once.sigma == pytest.approx(float(said[1]), abs=0.005)

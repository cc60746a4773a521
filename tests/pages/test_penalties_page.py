"""The pages on penalties: their experiment is read, and the penalty of one's own that they show is one."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import torch

from splitvfl.config.sections import parse_config
from splitvfl.hooks import Held, call_penalty


def test_the_experiment_is_one(checkout: Path) -> None:
    page = (checkout / "docs" / "reference" / "penalties.md").read_text(encoding="utf-8")
    (text,) = re.findall(r"```yaml\n(.*?)```", page, re.DOTALL)
    config = parse_config(text, source="page.yaml")
    assert config.parties["lab"].penalties[0].warm_up_steps == 100


def test_the_penalty_of_ones_own_is_one(checkout: Path) -> None:
    page = (checkout / "docs" / "reference" / "hooks.md").read_text(encoding="utf-8")
    (code,) = re.findall(r"```python\n(class Correlation.*?)```", page, re.DOTALL)
    names: dict[str, Any] = {}
    exec(compile(code, "hooks.md", "exec"), names)
    columns = torch.randn(200, 1, generator=torch.Generator().manual_seed(0))
    held = Held(
        party="lab",
        step=0,
        ids=torch.arange(200),
        columns=columns,
        categories=torch.zeros(200, 0, dtype=torch.int64),
        generator=torch.Generator(),
    )
    value, gradient = call_penalty(names["Correlation"](), 3 * columns, held)
    # The product has 1/n, the variances 1/(n - 1).
    assert abs(value - 1.0) < 0.02
    assert gradient.shape == (200, 1)

"""The page on generalised linear models: its experiment ends as it says, and its figures are the code's."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from splitvfl import load_run
from splitvfl.cli import main
from splitvfl.errors import PrivacyError
from splitvfl.models import glm_loss
from splitvfl.report.summary import read_summary

PENALTY = ", l1: 3"


@pytest.fixture
def page(checkout: Path) -> str:
    return (checkout / "docs" / "generalised-linear-models.md").read_text()


@pytest.mark.slow(reason="trains for two hundred epochs, twice")
def test_the_experiment_ends_as_the_page_says(page: str, tmp_path: Path) -> None:
    (text,) = re.findall(r"```yaml\n(.*?)```", page, flags=re.DOTALL)
    assert PENALTY in text
    figures, zeros = [], []
    for number, file in enumerate((text, text.replace(PENALTY, ""))):
        path, out = tmp_path / f"{number}.yaml", tmp_path / f"run{number}"
        # One evaluation, at the end, has the same figure.
        path.write_text(file.replace("epochs: 200,", "epochs: 200, evaluate_every_epochs: 200,"))
        assert main(["train", str(path), "--out", str(out)]) == 0
        figures.append(read_summary(out).test_metric)
        halves = load_run(out).halves.values()
        weights = [value for half in halves for name, value in half.weights.items() if "intercept" not in name]
        assert sum(value.numel() for value in weights) == 10
        zeros.append(sum(int((value == 0).sum()) for value in weights))

    assert zeros == [4, 0]
    assert [f"{figure:.3f}"[1:] for figure in figures if figure is not None] == [".525", ".540"]
    assert "explained deviance of .525 on the 91 test records. Of its ten weights four\nare exactly zero. " in page
    assert "Without the penalty it is .540, and none is." in page


def test_the_constants_in_the_example_are_those_of_the_code(page: str) -> None:
    found = glm_loss("poisson", target_clip=20.0).bounded_constants(logit_bound=2.0)
    for number in (found.lipschitz, found.beta_theta, found.span):
        assert f"={number:.4f}"[:-2] + "…" in page
    with pytest.raises(PrivacyError) as refused:
        glm_loss("poisson").bounded_constants(logit_bound=2.0)
    start, end = re.findall(r"# PrivacyError: (.*?) …(; .*)", page)[0]
    assert str(refused.value).startswith(start)
    assert str(refused.value).endswith(end)

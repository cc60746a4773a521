"""The reproduction of HDP-VFL: its data, its fast training, its verdicts, and that it runs."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
import torch

from scripts.reproduce.hdp_vfl import __main__ as reproduction
from scripts.reproduce.hdp_vfl import preprocessing
from scripts.reproduce.hdp_vfl.study import ADULT, BREAST, CREDIT, FILES, SCALINGS, Problem, sizes_of, table_of
from scripts.reproduce.shared.settings import data_folder


@pytest.fixture(scope="module")
def quick(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("hdp-vfl")
    assert reproduction.main(["--quick", "--out", str(out), "--page", str(out / "docs")]) == 0
    return out


# Data


@pytest.mark.parametrize("problem", [BREAST, CREDIT, ADULT], ids=lambda problem: problem.key)
def test_sizes_are_those_of_table_1_with_the_label(problem: Problem) -> None:
    if problem is not BREAST:
        path = data_folder() / FILES[problem.source]
        if not path.is_file():
            pytest.skip(f"there is no {path.name}")
        problem = replace(problem, path=str(path))
    assert preprocessing.size_claim(problem, sizes_of(problem)).verdict == "reproduces"


def test_another_size_does_not_reproduce() -> None:
    assert preprocessing.size_claim(BREAST, (569, 11, 20)).verdict == "does not"
    assert preprocessing.size_claim(BREAST, (568, 10, 20)).verdict == "does not"


@pytest.mark.parametrize("scaling", SCALINGS)
def test_rows_are_of_norm_1_at_most_and_none_of_another_party_is_in_them(scaling: str) -> None:
    table = table_of(replace(BREAST, scaling=scaling), 0)  # type: ignore[arg-type]
    assert table.active.train.shape == (455, 10)
    assert table.passive.test.shape == (114, 20)
    for party, columns in ((table.active, slice(10)), (table.passive, slice(10, None))):
        rows, pooled = party.train.double().numpy(), table.pooled.train[:, columns].double().numpy()
        norms = np.linalg.norm(pooled, axis=1)
        np.testing.assert_allclose(rows * np.maximum(norms, 1.0)[:, None], pooled, atol=2e-6)  # float32
        assert np.linalg.norm(rows, axis=1).max() < 1 + 1e-6


def test_statistics_are_of_training_records_and_ranges_of_none() -> None:
    pooled = table_of(BREAST, 0).pooled
    torch.testing.assert_close(pooled.train.double().mean(dim=0), torch.zeros(30).double(), atol=1e-6, rtol=0)
    assert pooled.test.double().mean(dim=0).abs().max() > 0.01
    ranged = replace(BREAST, scaling="public ranges")
    first, other = (table_of(ranged, seed).pooled for seed in (0, 1))
    assert first.train.abs().max() <= 1
    # The same records are the same rows, whatever the division.
    assert {tuple(row) for part in first for row in part.tolist()} == {
        tuple(row) for part in other for row in part.tolist()
    }


# The quick run


def test_the_quick_run_writes_results_and_page(quick: Path) -> None:
    claims = json.loads((quick / "results.json").read_text())["claims"]
    assert claims
    for claim in claims:
        assert set(claim) == {"claim", "published", "ours", "interval", "seeds", "verdict", "why"}
    page = (quick / "hdp-vfl.md").read_text()
    assert "{settings}" not in page
    assert "{sections}" not in page
    assert str(quick) not in page
    assert "| breast cancer | 455 | 114 | 10 + 20 | 10 + 20 | .368 | .632 | 455 | 10 |" in page
    assert (quick / "docs" / "hdp-vfl.md").read_text() == page


def test_every_figure_of_the_page_is_there_and_is_svg(quick: Path) -> None:
    for name in re.findall(r"\]\(figures/([\w-]+\.svg)\)", (quick / "hdp-vfl.md").read_text()):
        path = quick / "docs" / "figures" / name
        assert ElementTree.parse(path).getroot().tag.endswith("svg")
        assert path.stat().st_size < 400_000

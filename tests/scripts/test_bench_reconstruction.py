"""The benchmark of reconstruction runs, and its JSON has the agreed form. What it measures is no test's business."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from scripts.bench import reconstruction
from scripts.bench.measuring import main


def small_models() -> list[reconstruction.Model]:
    generator = torch.Generator().manual_seed(0)
    return [
        reconstruction.Model(
            f"made up (d = {d})",
            torch.randn(m, d, generator=generator, dtype=torch.float64),
            torch.rand(30, d, generator=generator, dtype=torch.float64),
        )
        for m, d in ((1, 4), (2, 5), (3, 6))
    ]


def test_quick_run_writes_every_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reconstruction, "models", small_models)
    monkeypatch.setattr(reconstruction, "QUICK_MILLION", 500)
    monkeypatch.setattr(reconstruction, "_gpu_results", lambda model, many: [])
    out = tmp_path / "reconstruction.json"

    assert main("reconstruction", reconstruction.measure, ["--quick", "--json", str(out)]) == 0

    rows = json.loads(out.read_text())["results"]
    assert [row["unit"] for row in rows] == ["s", "MiB"] * 2 + ["ratio", "us", "ratio", "us", "of predictions"] * 3
    assert all(set(row) == {"name", "value", "unit", "target", "better", "holds", "note"} for row in rows)


def test_both_sides_solve_the_same_problem() -> None:
    model = small_models()[1]
    right = model.right(1)

    for general, ours in (
        (reconstruction.projection, reconstruction.rcc2),
        (reconstruction.relaxation, reconstruction.rcc1),
    ):
        theirs = general(model.left, "CLARABEL", right)
        theirs()

        x = max(theirs._problem.variables(), key=lambda variable: variable.ndim == 1).value
        # Clarabel's default tolerance is 1e-8 in the value, and its root in the points.
        np.testing.assert_allclose(ours(model.left, right)[0].numpy(), x, rtol=0, atol=1e-3)


def test_a_model_has_differences_of_classes_as_equations() -> None:
    columns = np.random.default_rng(0).random((60, 5))
    model = reconstruction._model("made up", columns, np.arange(60) % 3, 4)

    assert tuple(model.left.shape) == (2, 4)
    assert model.records.min() == 0
    assert model.records.max() == 1
    torch.testing.assert_close(model.right(7).shape, torch.Size([7, 2]))

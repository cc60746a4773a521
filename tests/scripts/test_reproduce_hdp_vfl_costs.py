"""Figure 3 in the reproduction of HDP-VFL: lines, sums of steps, verdicts, and that it runs. Times are no test's."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
import torch
from scipy.stats import linregress

from scripts.reproduce.hdp_vfl import costs
from scripts.reproduce.hdp_vfl.costs import QUICK, Measured
from scripts.reproduce.hdp_vfl.tables import PASSIVE
from scripts.reproduce.shared.settings import Settings


def test_a_line_is_that_of_scipy() -> None:
    draw = np.random.default_rng(0)
    across = np.arange(1.0, 8.0)
    seconds = 3.0 * across + 2.0 + draw.normal(size=7)

    found, expected = costs.fit_line(across.tolist(), seconds.tolist()), linregress(across, seconds)

    assert found == pytest.approx((expected.slope, expected.intercept, expected.rvalue**2))


def measured(epochs: Sequence[float], *, slow: float) -> Measured:
    """Trainings that take what they are given, and an encrypted step of a batch that takes so long."""
    scale = replace(QUICK, epochs=(1, 2, 3), rows_of_epochs=250, rows=(100, 200, 300))
    seconds: Sequence[Sequence[float]] = [[each, each] for each in epochs]
    steps = {50: [slow / 2, slow / 2], 100: [slow, slow]}
    return Measured(
        scale,
        {"non-private": seconds, "HDP-VFL": [[2 * each, 2 * each] for each in epochs]},
        {"non-private": seconds, "HDP-VFL": seconds},
        keys=5.0,
        steps=steps,
        memory={},
    )


def test_an_encrypted_training_is_its_keys_and_its_steps_a_smaller_last_one_among_them() -> None:
    found = measured([1.0, 2.0, 3.0], slow=4.0)
    # 250 records: two batches of 100, and half a one.
    assert found.encrypted(250, 3) == pytest.approx(5.0 + 3 * (2 * 4.0 + 2.0))
    assert found.encrypted(200, 1) == pytest.approx(5.0 + 2 * 4.0)


def test_verdicts_follow_from_lines_and_ratios() -> None:
    # 5 + 3 · 2.5 · .4 = 8 s encrypted: 2.7 times the longest in the clear, and 1.3 times that with noise.
    claims = costs.claims_of(measured([1.0, 2.0, 3.0], slow=0.4))
    assert [claim.verdict for claim in claims[:5]] == ["reproduces"] * 5
    assert [claim.verdict for claim in claims[5:]] == ["reproduces", "does not", "does not"]
    assert claims[5].ours == pytest.approx(8.0 / 3.0)
    bent = costs.claims_of(measured([1.0, 1.0, 3.0], slow=0.4))
    assert [claim.verdict for claim in bent[:4]] == ["does not"] * 4


def test_encrypted_steps_are_taylors_and_only_one_way_has_noise() -> None:
    made = {way: costs.trainer_of(way, "breast", rows=60, epochs=1, batch=20) for way in costs.WAYS}

    sends = {way: len(trainer.passives[PASSIVE].activation["training"]) for way, trainer in made.items()}
    assert sends == {"non-private": 0, "HDP-VFL": 1, "encrypted": 0}
    assert [trainer.training.account is None for trainer in made.values()] == [True, False, True]

    trainer = made["encrypted"]
    columns = {
        "active": trainer.active.data.train.columns.numeric[:20].double().numpy(),
        "passive": trainer.passives[PASSIVE].data.train.columns.numeric[:20].double().numpy(),
    }
    labels = trainer.active.data.train.labels
    assert labels is not None
    with costs._Encrypted(trainer, 20, 512) as steps:
        steps.step(20)
    # From zero Taylor's residue is −2 y over 4, and a rate of .1; rows are scaled down to norm 1.
    signs = 2 * labels[:20].double().numpy() - 1
    rows = columns["passive"] / np.maximum(1.0, np.linalg.norm(columns["passive"], axis=1, keepdims=True))
    expected = 0.1 * rows.T @ signs / 2 / 20
    learned = torch.cat([weight.detach().flatten() for weight in trainer.passives[PASSIVE].module.parameters()])
    np.testing.assert_allclose(learned.numpy(), expected, atol=1e-6)


def test_quick_section_has_its_tables_and_its_figure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    small = replace(QUICK, epochs=(1, 2), rows=(100, 200), runs=1, step_rows=(10, 20), batch=20, rows_of_epochs=40)
    monkeypatch.setattr(costs, "QUICK", small)

    (section,) = costs.sections(Settings(out=tmp_path, quick=True, seeds=2, workers=1, say=lambda line: None))

    assert len(section.claims) == 8
    assert section.body.count("\n| 40 |") == 2
    ElementTree.fromstring(section.figures["hdp-vfl-costs"])

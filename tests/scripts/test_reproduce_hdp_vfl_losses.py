"""The other losses in the reproduction of HDP-VFL: their data, their rates, and that they run."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
from sklearn.linear_model import LinearRegression
from sklearn.metrics import r2_score

from scripts.reproduce.hdp_vfl import other_losses
from scripts.reproduce.hdp_vfl.other_losses import CASES, QUICK_CASES, Case, Trained
from scripts.reproduce.hdp_vfl.tables import ACTIVE, PASSIVE, Target, data_of, file_of
from scripts.reproduce.shared.settings import Settings
from splitvfl.app.experiment import build_trainer
from splitvfl.errors import ConfigError


@pytest.mark.parametrize("target", ["breast", "progression", "limit", "dependents", "income", "good"])
def test_columns_are_in_public_bounds_and_targets_near_one(target: Target) -> None:
    path = file_of(target)
    if path is not None and not path.is_file():
        pytest.skip(f"there is no {path.name}")

    data = data_of(target, 0, validated=False, rows=400)

    active, passive = data[ACTIVE], data[PASSIVE]
    for party in (active, passive):
        assert party.train.columns.numeric.abs().max() <= 1.0
        assert (party.train.count, party.test.count) == (320, 80)
    assert torch.equal(active.train.ids, passive.train.ids)
    assert not set(active.train.ids.tolist()) & set(active.test.ids.tolist())
    assert active.train.labels is not None
    assert active.train.labels.abs().max() <= 12
    assert passive.train.labels is None
    validated = data_of(target, 0, validated=True, rows=400)[ACTIVE]
    assert set(validated.test.ids.tolist()) <= set(active.train.ids.tolist())


def test_two_parties_columns_are_worth_what_scikit_learn_says() -> None:
    data = data_of("progression", 0, validated=False)
    train, test = (
        torch.cat([getattr(data[name], part).columns.numeric for name in (ACTIVE, PASSIVE)], dim=1).numpy()
        for part in ("train", "test")
    )
    labels = [part.labels.numpy() for part in (data.active.train, data.active.test) if part.labels is not None]
    plain = LinearRegression().fit(train, labels[0])
    # The published R² of this data set is about a half.
    assert 0.3 < r2_score(labels[1], plain.predict(test)) < 0.65


@pytest.mark.parametrize("case", [*CASES, *QUICK_CASES], ids=lambda case: case.title)
def test_the_largest_rate_is_taken_and_a_larger_one_is_not(case: Case) -> None:
    path = file_of(case.target)
    if path is not None and not path.is_file():
        pytest.skip(f"there is no {path.name}")
    data = data_of(case.target, 0, validated=False, rows=4000)

    trainer = build_trainer(other_losses.config_of(case, 1.0, 1.0, 0), data)

    assert trainer.training.account is not None
    assert trainer.training.account.planned(PASSIVE).epsilon == pytest.approx(1.0, rel=1e-6)
    with pytest.raises(ConfigError, match="expected a learning rate of at most"):
        build_trainer(other_losses.config_of(case, 1.0, 1.01, 0), data)


def test_the_loss_learns_if_its_whole_interval_is_better_than_a_constant_answer() -> None:
    case = CASES[0]
    assert Trained(case, 1.0, 1.0, [0.1, 0.12, 0.11], [1.0, 1.0]).learns
    assert not Trained(case, 1.0, 1.0, [0.1, -0.12, 0.11], [1.0, 1.0]).learns
    assert not Trained(CASES[1], 1.0, 1.0, [0.45, 0.46], [1.0, 1.0]).learns


def test_who_would_perhaps_do_better_with_a_rate_that_was_not_offered_is_named() -> None:
    least = other_losses.SHARES[-1]
    found = [Trained(CASES[0], 1.0, least, [0.1], [1.0, 1.0]), Trained(CASES[1], 1.0, 1.0, [0.1], [1.0, 1.0])]
    said = other_losses.section_of(found).body
    assert least == min(other_losses.SHARES)
    assert "The smallest rate was chosen by: least squares at ε = 1." in said
    assert "The smallest rate was chosen by: none." in other_losses.section_of(found[1:]).body


def test_quick_section_has_every_row(tmp_path: Path) -> None:
    (section,) = other_losses.sections(Settings(out=tmp_path, quick=True, seeds=2, workers=1, say=lambda line: None))

    assert len(section.claims) == 2 * len(QUICK_CASES)
    assert section.body.count("| none |") == len(QUICK_CASES)
    assert all(claim.ours is not None and math.isfinite(claim.ours) for claim in section.claims)

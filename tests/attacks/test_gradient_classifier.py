"""The gradient classifier, against scikit-learn's discriminant and on gradients of known shape."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis
from torch import Tensor

from splitvfl.attacks import GradientClassifierAttack, ResidualAttack
from splitvfl.errors import ArgumentError
from splitvfl.hooks import View, call_attack
from splitvfl.metrics import leak_auc

ROWS = 400


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def labels_of(seed: int = 0) -> Tensor:
    return (torch.rand(ROWS, generator=generator(seed)) < 0.25).double()


def view_of(gradient: Tensor, labels: Tensor, *, known: int = 10, step: int = 0) -> View:
    ids = torch.arange(gradient.shape[0])
    return View(
        party="telecom",
        step=step,
        ids=ids,
        gradient=gradient,
        known_positives=ids[labels == 1][:known],
        known_negatives=ids[labels == 0][:known],
    )


def auc_of(scores: Tensor, labels: Tensor) -> float:
    scored = ~scores.isnan()
    return leak_auc(scores[scored], labels[scored])


def features_of(view: View) -> Tensor:
    """Direction, length and residual as the attack's documentation has them."""
    gradient = view.gradient.double()
    norms = gradient.norm(dim=1)
    numbers = [(values - values.mean()) / values.std(correction=0) for values in (norms, ResidualAttack()(view))]
    return torch.cat([gradient / norms.square().mean().sqrt(), torch.stack(numbers, dim=1)], dim=1)


def test_without_much_of_a_ridge_it_is_fishers_discriminant() -> None:
    labels = labels_of()
    mixing = torch.randn(4, 4, generator=generator(2), dtype=torch.float64)
    shift = torch.tensor([0.5, -0.3, 0.2, 0.1], dtype=torch.float64)
    gradient = (torch.randn(ROWS, 4, generator=generator(1), dtype=torch.float64) + labels[:, None] * shift) @ mixing
    view = view_of(gradient, labels, known=60)

    scores = call_attack(GradientClassifierAttack(ridge=1e-9), view)

    features = features_of(view).numpy()
    known = torch.isin(view.ids, torch.cat([view.known_positives, view.known_negatives])).numpy()
    oracle = LinearDiscriminantAnalysis(solver="eigen").fit(features[known], labels.numpy()[known])
    expected = oracle.decision_function(features[~known])
    # Both are the same direction: equal up to scale and intercept, less the ridge of 1e-9 and rounding.
    assert np.corrcoef(expected, scores.numpy()[~known])[0, 1] == pytest.approx(1.0, abs=1e-9)


@pytest.mark.parametrize("width", [1, 2, 32])
def test_collinear_gradients_are_read_from_five_known_records_of_each_class(width: int) -> None:
    labels = labels_of()
    residues = torch.where(labels == 1, -1.0, 1.0) * torch.rand(ROWS, generator=generator(1)).double()
    direction = torch.randn(width, generator=generator(2), dtype=torch.float64)
    scores = call_attack(GradientClassifierAttack(), view_of(residues[:, None] * direction, labels, known=5))
    assert auc_of(scores, labels) > 0.99


def test_noise_that_one_class_gets_off_the_line_marks_it() -> None:
    labels = labels_of()
    line = torch.randn(ROWS, generator=generator(1), dtype=torch.float64)  # says nothing of the label
    gradient = line[:, None] * torch.ones(8, dtype=torch.float64)
    gradient += 0.05 * labels[:, None] * torch.randn(ROWS, 8, generator=generator(2), dtype=torch.float64)
    # Rows of noise of the other class have no residual at all.
    assert auc_of(call_attack(GradientClassifierAttack(), view_of(gradient, labels)), labels) > 0.99


def test_a_direction_full_of_noise_is_left_aside() -> None:
    labels = labels_of()
    gradient = 0.3 * torch.randn(ROWS, 3, generator=generator(1), dtype=torch.float64)
    gradient[:, 0] *= 100.0
    gradient[:, 1] += labels - 0.5
    found = auc_of(call_attack(GradientClassifierAttack(ridge=1e-4), view_of(gradient, labels, known=30)), labels)
    difference = gradient[labels == 1][:30].mean(dim=0) - gradient[labels == 0][:30].mean(dim=0)
    naive = leak_auc(gradient @ difference, labels)
    # The best is Phi(1 / (0.3 · sqrt 2)) = .991.
    assert found > 0.97
    assert naive < 0.8


def test_it_learns_from_step_to_step() -> None:
    labels = labels_of()
    shift = 0.4 * torch.ones(16, dtype=torch.float64)
    attack = GradientClassifierAttack()
    aucs = []
    for step in range(40):
        noise = torch.randn(ROWS, 16, generator=generator(step + 1), dtype=torch.float64)
        view = view_of(noise + (labels - 0.5)[:, None] * shift, labels, known=5, step=step)
        aucs.append(auc_of(call_attack(attack, view), labels))
    # The best is Phi(0.4 · 4 / sqrt 2) = .871; 10 rows in 18 dimensions are far from it, 400 are close.
    assert np.mean(aucs[:3]) < 0.8
    assert np.mean(aucs[-10:]) > 0.83


def test_labels_that_mean_nothing_are_not_read() -> None:
    labels = labels_of()
    aucs = []
    for seed in range(20):
        view = view_of(torch.randn(ROWS, 6, generator=generator(100 + seed)), labels)
        aucs.append(auc_of(call_attack(GradientClassifierAttack(), view), labels))
    # The standard error of one AUC of 95 and 285 records is .034, of the mean of twenty .008.
    assert np.mean(aucs) == pytest.approx(0.5, abs=0.03)


def test_known_records_are_not_scored_and_nothing_is_before_both_classes_were_met() -> None:
    labels = labels_of()
    gradient = torch.randn(ROWS, 3, generator=generator(1))
    attack = GradientClassifierAttack()
    view = view_of(gradient, labels)
    for missing in ("known_positives", "known_negatives"):
        assert call_attack(attack, view.granting(**{missing: torch.zeros(0, dtype=torch.int64)})).isnan().all()
        attack = GradientClassifierAttack()
    unscored = view.ids[call_attack(attack, view).isnan()]
    assert set(unscored.tolist()) == {*view.known_positives.tolist(), *view.known_negatives.tolist()}


def test_it_is_fitted_again_only_when_it_knows_a_tenth_more(monkeypatch: pytest.MonkeyPatch) -> None:
    fits: list[int] = []
    fit = GradientClassifierAttack._fit

    def counted(attack: GradientClassifierAttack) -> None:
        fits.append(1)
        fit(attack)

    monkeypatch.setattr(GradientClassifierAttack, "_fit", counted)
    labels = labels_of()
    attack = GradientClassifierAttack()
    for step in range(200):
        call_attack(attack, view_of(torch.randn(ROWS, 3, generator=generator(step)), labels, step=step))
    # 20 rows a step: each of the first ten steps, then ln(200 / 10) / ln(1.1) = 31 times, rounded up to whole steps.
    assert 20 < len(fits) < 45


def test_from_its_saved_state_it_is_fitted_at_the_same_steps() -> None:
    labels = labels_of()
    straight, resumed = GradientClassifierAttack(), GradientClassifierAttack()
    for step in range(40):
        view = view_of(torch.randn(ROWS, 3, generator=generator(step)), labels, step=step)
        expected = call_attack(straight, view)
        if step == 24:
            resumed.load_state_dict(straight.state_dict())
        if step > 24:
            torch.testing.assert_close(call_attack(resumed, view), expected, rtol=0, atol=0, equal_nan=True)


def test_another_width_is_refused() -> None:
    attack = GradientClassifierAttack()
    labels = labels_of()
    call_attack(attack, view_of(torch.randn(ROWS, 3), labels))
    with pytest.raises(ArgumentError, match="expected gradients of width 3, got 4"):
        call_attack(attack, view_of(torch.randn(ROWS, 4), labels))


@pytest.mark.parametrize(("settings", "message"), [({"ridge": 0.0}, "ridge"), ({"memory": 1}, "memory")])
def test_settings_out_of_range_are_refused(settings: dict[str, float], message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        GradientClassifierAttack(**settings)  # type: ignore[arg-type]


@pytest.mark.parametrize("scale", [1e-30, 1e30])
def test_the_unit_of_the_gradients_does_not_matter(scale: float) -> None:
    generator = torch.Generator().manual_seed(0)
    labels = torch.arange(200) % 2
    # Two points on a line: nothing varies within a class, and the discriminant is huge.
    gradient = (labels - 0.2)[:, None] * torch.randn(5, generator=generator)
    ids = torch.arange(200)

    def scores(unit: float) -> torch.Tensor:
        view = View(
            party="telecom",
            step=0,
            ids=ids,
            gradient=gradient * unit,
            known_positives=ids[labels == 1][:10],
            known_negatives=ids[labels == 0][:10],
        )
        return call_attack(GradientClassifierAttack(), view)

    found = scores(scale)
    known = ~found.isnan()
    assert leak_auc(found[known], labels[known]) == 1.0
    # Rounding of the unit, magnified by the ridge of 1e-9 that the discriminant stands on.
    torch.testing.assert_close(found, scores(1.0), rtol=0.1, atol=0.0, equal_nan=True)

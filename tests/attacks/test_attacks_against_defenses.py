"""Every feature attack against every defense of scores and columns, the attacker knowing the defense."""

from __future__ import annotations

import inspect
import math
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor

from splitvfl import attacks
from splitvfl.attacks.known_defense import can_be_known, estimate_behind
from splitvfl.data.transform import Transform, flip, permute, random_rotation
from splitvfl.defenses import ClassLabel, Purification, Rounding, ScoreNoise, TopOne, noise_direction
from splitvfl.defenses.score_noise import as_classes, scheme_noise
from splitvfl.errors import ArgumentError, AttackRefused
from splitvfl.hooks import (
    Alphabet,
    Equations,
    KnownRows,
    LogitParts,
    Secrets,
    View,
    call_attack,
    call_defense,
    needs_of,
    reads_activations,
    resolution_of,
)
from splitvfl.leakage.score_equations import count_scores
from splitvfl.leakage.unit_box import Box, unsolvable
from splitvfl.learning.revealed_weights import rotated_weights, weight_shift

PREDICTIONS, COLUMNS, CLASSES = 20, 5, 3
KNOWN_ROWS = COLUMNS + 1
POWER = 2.0


class Scored(NamedTuple):
    """Columns, and the model that scores them."""

    truth: Tensor
    known: Tensor
    weight: Tensor

    @property
    def scores(self) -> Tensor:
        return torch.softmax(self.known + self.truth @ self.weight.T, dim=1)


def scored(seed: int = 0, rows: int = PREDICTIONS + KNOWN_ROWS) -> Scored:
    generator = torch.Generator().manual_seed(seed)
    truth = torch.rand(rows, COLUMNS, generator=generator, dtype=torch.float64)
    weight = torch.randn(CLASSES, COLUMNS, generator=generator, dtype=torch.float64)
    known = torch.randn(rows, CLASSES, generator=generator, dtype=torch.float64)
    return Scored(truth, known, weight)


SCORED = scored()
# Of the same model four predictions beside the known records, from the least certain on.
FEW_ROWS = torch.cat(
    [torch.arange(KNOWN_ROWS), KNOWN_ROWS + SCORED.scores[KNOWN_ROWS:].amax(dim=1).argsort()[:: PREDICTIONS // 4]]
)
FEW = SCORED._replace(truth=SCORED.truth[FEW_ROWS], known=SCORED.known[FEW_ROWS])
DIRECTION = noise_direction(SCORED.weight)[0]

SCORE_DEFENSES: dict[str, Any] = {
    "none": None,
    "rounding": Rounding(decimals=2),
    "rounding-to-zero": Rounding(decimals=0),
    "scheme-1": ScoreNoise(scheme=1, power=POWER, direction=DIRECTION.tolist()),
    "scheme-2": ScoreNoise(scheme=2, power=POWER, direction=DIRECTION.tolist()),
    "scheme-3": ScoreNoise(scheme=3, power=POWER),
    "optimum": ScoreNoise(scheme="optimum", power=POWER, direction=DIRECTION.tolist()),
    "class-label": ClassLabel(epsilon=0.01),
    "class-label-and-nothing": ClassLabel(epsilon=0.0),
    "top-one": TopOne(),
    "purification": Purification(temperature=3.0),
}
TRANSFORMS: dict[str, Transform] = {
    "orthonormal": random_rotation(COLUMNS, seed=0),
    "flip": flip(COLUMNS),
    "flip-of-two": flip(COLUMNS, [1, 3]),
    "permutation": permute([range(COLUMNS)], COLUMNS, seed=0),
}


def shown_weights() -> dict[str, Tensor]:
    moments = SCORED.truth.T @ SCORED.truth / len(SCORED.truth)
    shift = weight_shift(SCORED.weight, moments, SCORED.truth.mean(dim=0), norm=0.2)
    return {
        "rotated": rotated_weights(SCORED.weight, random_rotation(COLUMNS, seed=1).matrix),
        "shifted": SCORED.weight + shift,
    }


FEATURE_ATTACKS = {
    "gradient-inversion": lambda: attacks.GradientInversionAttack(steps=500),
    "procrustes": lambda: attacks.ProcrustesAttack(known_rows=KNOWN_ROWS),
    "suspected-flip": lambda: attacks.SuspectedFlipAttack(belief=0.5),
    "weight-estimation": lambda: attacks.WeightEstimationAttack(known_rows=KNOWN_ROWS),
    "noise-subtraction": lambda: attacks.NoiseSubtractionAttack(scheme=3, power=POWER),
}


def every_feature_attack() -> dict[str, Any]:
    exported = (getattr(attacks, name) for name in attacks.__all__)
    classes = [one for one in exported if inspect.isclass(one) and getattr(one, "target", "") == "features"]
    # Those that look at activations or steps do so of a training, those that know the whole model call it: in no box.
    others = {"whole_model", "partner_steps"}
    classes = [one for one in classes if not reads_activations(one) and not others & needs_of(one)]
    return {one.name: FEATURE_ATTACKS.get(one.name, one) for one in classes}


def published(defense: Any, scores: Tensor) -> Tensor:
    secrets = Secrets(party="bank", step=0, generator=torch.Generator().manual_seed(0))
    return scores if defense is None else call_defense(defense, scores, secrets)


def view_of(model: Scored, scores: Tensor, weight: Tensor, *, defense: Any = None) -> View:
    """What a run's seat shows: equations in the unit box, and some records whose columns are known."""
    resolution = 0.0 if defense is None else resolution_of(defense) or 0.0
    raw = attacks.score_equations(scores, model.known, weight, resolution=resolution)
    box = Box(torch.zeros(COLUMNS), torch.ones(COLUMNS))
    left, right, error = box.equations(raw)
    told, asked = slice(0, KNOWN_ROWS), slice(KNOWN_ROWS, None)
    return View(
        party="bank",
        step=0,
        ids=torch.arange(len(scores[asked])),
        scores=scores[asked],
        active_logits=model.known[asked],
        passive_weight=weight,
        equations=Equations(left, right[asked], error[asked]),
        known_rows=KnownRows(model.truth[told], right[told], error[told]),
        alphabets=(Alphabet((0,), torch.linspace(0, 1, 5, dtype=torch.float64).unsqueeze(1)),),
        logit_parts=LogitParts(right[asked], tuple(f"column {place}" for place in range(COLUMNS))),
    )


def mse(view: View, attack: Any, model: Scored = SCORED) -> float:
    return (call_attack(attack, view) - model.truth[KNOWN_ROWS:]).square().mean().item()


CLAMPED = frozenset(
    {
        "half",
        "zero",
        "random-guess",
        "discrete-search",
        "clamped-least-squares",
        "constrained-least-squares",
        "rcc1",
        "rcc2",
    }
    | {"chebyshev-centre", "gradient-inversion", "suspected-flip", "weight-estimation"}
)


@pytest.mark.filterwarnings("ignore:.*hold scores of exactly 0:RuntimeWarning")
@pytest.mark.filterwarnings("ignore:.*had not come to rest:RuntimeWarning")
@pytest.mark.parametrize("name", every_feature_attack())
def test_an_attack_estimates_finite_columns_whatever_the_defense(name: str) -> None:
    attack = every_feature_attack()[name]()
    views = {}
    for defended, defense in SCORE_DEFENSES.items():
        scores = published(defense, FEW.scores)
        views[defended] = view_of(FEW, scores, FEW.weight, defense=defense)
        counts = count_scores(scores)
        # Nothing is left out silently: what has no logit is counted.
        assert counts.saturated == int((scores == 0).any(dim=1).sum())
    for defended, H in TRANSFORMS.items():
        views[defended] = view_of(FEW, FEW.scores, rotated_weights(SCORED.weight, H.matrix))
    for defended, weight in shown_weights().items():
        views[defended] = view_of(FEW, FEW.scores, weight)
    if name == "noise-subtraction":
        # All scores of a record were rounded to 0: no class is in front, and so there is no noise to take off.
        with pytest.raises(AttackRefused, match=r"\d+ of 4 predictions have no score above 0"):
            call_attack(attack, views.pop("rounding-to-zero"))
    if name == "black-box-feature":
        # Of one column there is something to be said without weights, whatever the defense; of five it refuses.
        for view in views.values():
            with pytest.raises(AttackRefused, match="a single column can be told, and these logits are of 5"):
                call_attack(attack, view)
        return
    for defended, view in views.items():
        estimate = call_attack(attack, view)
        assert estimate.shape == (4, COLUMNS), defended
        assert torch.isfinite(estimate).all(), defended
        assert name not in CLAMPED or bool(((estimate >= 0) & (estimate <= 1)).all()), defended


def test_the_matrix_leaves_out_no_feature_attack_that_is_in_the_box() -> None:
    unclamped = {"black-box-feature", "least-squares", "half-star", "noise-subtraction", "procrustes"}
    assert set(every_feature_attack()) == CLAMPED | unclamped
    assert all(needs_of(make()) for make in every_feature_attack().values())


# --- what who knows the defense gets back


@pytest.mark.parametrize("scheme", [1, 2, 3])
def test_noise_of_known_power_is_taken_off_and_of_an_unknown_one_bounded(scheme: Any) -> None:
    undefended = mse(view_of(SCORED, SCORED.scores, SCORED.weight), attacks.LeastSquaresAttack())
    scores = published(SCORE_DEFENSES[f"scheme-{scheme}"], SCORED.scores)
    view = view_of(SCORED, scores, SCORED.weight)

    direction = None if scheme == 3 else DIRECTION.tolist()
    told = attacks.NoiseSubtractionAttack(scheme=scheme, power=POWER, direction=direction)

    assert mse(view, told) == pytest.approx(undefended, abs=1e-6)
    assert mse(view, attacks.LeastSquaresAttack()) > undefended + 0.01
    plain = scores.log() - scheme_noise(as_classes(scores), scheme, power=POWER, direction=DIRECTION)
    torch.testing.assert_close(plain.softmax(dim=1), SCORED.scores, rtol=0, atol=1e-12)
    # Unknown: the powers that leave every prediction with a point of the box hold the right one, and a grid agrees.
    step = torch.diff(scheme_noise(as_classes(scores), scheme, power=1.0, direction=DIRECTION), dim=1)[KNOWN_ROWS:]
    left, right, _ = view.equations
    low, high = attacks.feasible_powers(left, right, step)
    assert low <= POWER <= high
    for power in (0.0, 0.5, 1.0, POWER, 4.0, 16.0, 100.0):
        system = Equations(left, right - math.sqrt(power) * step, torch.zeros_like(right))
        feasible = not unsolvable(system).any()
        assert feasible == (low - 1e-6 <= power <= high + 1e-6)


@pytest.mark.parametrize("decimals", [0, 1, 2, 4])
def test_rounded_scores_as_intervals_always_hold_the_truth(decimals: int) -> None:
    defense = Rounding(decimals=decimals)
    view = view_of(SCORED, published(defense, SCORED.scores), SCORED.weight, defense=defense)
    left, right, error = view.equations
    truth = SCORED.truth[KNOWN_ROWS:]

    assert ((truth @ left.T - right).abs() <= error + 1e-12).all()
    assert not unsolvable(view.equations).any()
    found = call_attack(attacks.RCC2Attack(), view)
    assert ((found @ left.T - right).abs() <= error + 1e-7).all()
    # The point of a convex set nearest to ½ is no further from any of its points than ½ is.
    assert ((found - truth).square().sum(dim=1) <= (truth - 0.5).square().sum(dim=1) + 1e-9).all()
    # The certificates.
    centre = attacks.rcc1_within(left, right, error)
    assert ((centre.points - truth).square().sum(dim=1) <= centre.bound + 1e-9).all()
    ball = attacks.chebyshev_within(left, right, error)
    assert (torch.linalg.vector_norm(ball.centres - truth, dim=1) <= ball.radii + 1e-9).all()
    exact = attacks.rcc1_with_value(left, truth @ left.T)
    assert (centre.bound >= exact.bound - 1e-5).all()  # who has fewer digits has no smaller bound


@pytest.mark.parametrize("name", [name for name in SCORE_DEFENSES if name != "none"])
def test_who_knows_the_defense_is_never_worse_than_half(name: str) -> None:
    defense = SCORE_DEFENSES[name]
    scores = published(defense, SCORED.scores)
    found = estimate_behind(defense, scores, SCORED.known, SCORED.weight)
    truth = SCORED.truth
    assert ((found >= 0) & (found <= 1)).all()
    assert ((found - truth).square().sum(dim=1) <= (truth - 0.5).square().sum(dim=1) + 1e-9).all()
    if name in ("scheme-1", "scheme-2", "scheme-3", "purification"):
        left, right = attacks.equations(SCORED.scores, SCORED.known, SCORED.weight)
        torch.testing.assert_close(found, attacks.rcc2(left, right), rtol=0, atol=1e-6)


@pytest.mark.parametrize("name", ["rounding", "scheme-1", "class-label", "top-one", "purification", "optimum"])
def test_two_classes_are_one_score_or_two(name: str) -> None:
    model = Scored(SCORED.truth, SCORED.known[:, :2] * torch.tensor([0.0, 1.0]), SCORED.weight[:2])
    model = model._replace(weight=model.weight * torch.tensor([[0.0], [1.0]]))
    made = SCORE_DEFENSES[name]
    noise = isinstance(made, ScoreNoise)
    direction = None if noise and made.scheme == 3 else [-1.0, 1.0]
    defense = ScoreNoise(scheme=made.scheme, power=POWER, direction=direction) if noise else made
    one = published(defense, model.scores[:, 1])
    two = published(defense, model.scores)

    flat = estimate_behind(defense, one, model.known[:, 1], model.weight[1])

    torch.testing.assert_close(flat, estimate_behind(defense, two, model.known, model.weight), rtol=0, atol=1e-6)
    if name in ("scheme-1", "top-one", "purification"):
        left, right = attacks.equations(model.scores, model.known, model.weight)
        torch.testing.assert_close(flat, attacks.rcc2(left, right), rtol=0, atol=1e-5)


def test_a_map_that_nobody_knows_is_not_undone() -> None:
    class Own(Purification):
        def purified(self, shares: Tensor) -> Tensor:
            return shares

    assert not can_be_known(Own(temperature=1.0))
    assert all(can_be_known(defense) for name, defense in SCORE_DEFENSES.items() if name != "none")
    with pytest.raises(ArgumentError, match="nothing is known of what purification does"):
        estimate_behind(Own(temperature=1.0), SCORED.scores, SCORED.known, SCORED.weight)


@pytest.mark.parametrize("name", TRANSFORMS)
def test_known_records_undo_a_transform_and_others_are_misled(name: str) -> None:
    H = TRANSFORMS[name]
    undefended = mse(view_of(SCORED, SCORED.scores, SCORED.weight), attacks.LeastSquaresAttack())
    # The model of z = H x + s: weights W Hᵀ, and the intercept takes W Hᵀ s.
    weight = SCORED.weight @ H.matrix.T
    model = SCORED._replace(known=SCORED.known - H.shift @ weight.T)
    view = view_of(model, SCORED.scores, weight)

    for attack in (
        attacks.ProcrustesAttack(known_rows=KNOWN_ROWS),
        attacks.WeightEstimationAttack(known_rows=KNOWN_ROWS, then="least-squares"),
    ):
        assert mse(view, attack) == pytest.approx(undefended, abs=1e-6)
    assert mse(view, attacks.LeastSquaresAttack()) > undefended + 0.01
    half = mse(view, attacks.HalfAttack())
    assert mse(view, attacks.SuspectedFlipAttack(belief=0.5)) == pytest.approx(half, abs=1e-12)


@pytest.mark.parametrize("then", ["rcc2", "rcc1", "half-star", "clamped-least-squares", "constrained-least-squares"])
def test_who_has_found_the_equations_goes_on_with_any_white_box(then: Any) -> None:
    view = view_of(SCORED, SCORED.scores, SCORED.weight)
    own = call_attack(every_feature_attack()[then](), view)
    for attack in (
        attacks.ProcrustesAttack(known_rows=KNOWN_ROWS, then=then),
        attacks.WeightEstimationAttack(known_rows=KNOWN_ROWS, then=then),
    ):
        # Equations to 1e-12, which the radius of a thin set magnifies by its root.
        torch.testing.assert_close(call_attack(attack, view), own, rtol=0, atol=1e-5)


def test_a_transform_without_a_shift_falls_to_as_many_records_as_columns() -> None:
    H = TRANSFORMS["orthonormal"]
    view = view_of(SCORED, SCORED.scores, SCORED.weight @ H.matrix.T)
    fewer = view.known_rows._replace(**{name: getattr(view.known_rows, name)[:COLUMNS] for name in KnownRows._fields})
    fewer_view = view.granting(known_rows=fewer)
    undefended = mse(view_of(SCORED, SCORED.scores, SCORED.weight), attacks.LeastSquaresAttack())
    unshifted = attacks.ProcrustesAttack(known_rows=COLUMNS, shifted=False)
    assert mse(fewer_view, unshifted) == pytest.approx(undefended, abs=1e-6)
    for attack in (attacks.ProcrustesAttack(known_rows=COLUMNS), attacks.WeightEstimationAttack(known_rows=COLUMNS)):
        with pytest.raises(AttackRefused, match=r"one is spent on the shift|determine 5 of 6"):
            call_attack(attack, fewer_view)
    flat = view.granting(
        known_rows=view.known_rows._replace(columns=view.known_rows.columns[:1].expand(KNOWN_ROWS, -1))
    )
    for attack in (attacks.ProcrustesAttack(known_rows=9), attacks.WeightEstimationAttack(known_rows=9)):
        with pytest.raises(AttackRefused, match=r"span 1|determine 1 of 6"):
            call_attack(attack, flat)


@pytest.mark.parametrize("known_rows", [0, -1, 2.5, True])
def test_a_number_of_known_records_that_is_none_is_refused(known_rows: Any) -> None:
    for make in (attacks.ProcrustesAttack, attacks.WeightEstimationAttack):
        with pytest.raises(ArgumentError, match="known_rows must be a whole number"):
            make(known_rows=known_rows)
        with pytest.raises(ArgumentError, match="then must be one of"):
            make(known_rows=3, then="chebyshev")  # type: ignore[arg-type]
    with pytest.raises(ArgumentError, match="belief"):
        attacks.SuspectedFlipAttack(belief=1.5)


def test_rounding_blurs_estimated_weights_by_no_more_than_they_say() -> None:
    defense = Rounding(decimals=3)
    model = scored(1, rows=40 + PREDICTIONS)
    scores = published(defense, model.scores)
    known = attacks.score_equations(scores, model.known, model.weight, resolution=defense.resolution)
    found = attacks.estimate_weights(model.truth[:40], known.b[:40], error=known.error[:40], intercept=True)
    off = found.error.sum(dim=1) + found.intercept_error
    told = Equations(found.A, known.b[40:] - found.intercept, known.error[40:] + off)
    assert not unsolvable(told).any()
    assert ((model.truth[40:] @ told.A.T - told.b).abs() <= told.error).all()

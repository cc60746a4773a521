"""Readers of scores who know the whole model: beside closed forms, regressions, and where there is nothing to read."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from splitvfl.attacks import GenerativeRegressionAttack, ScoreInversionAttack
from splitvfl.attacks.score_outputs import known_places, outputs_of_scores
from splitvfl.errors import ArgumentError, AttackRefused
from splitvfl.hooks import KnownColumns, View, call_attack
from splitvfl.leakage.column_errors import shares_recovered
from splitvfl.leakage.ridge import fit_ridge

# What own columns predict is never asked here, only whether it was judged.
pytestmark = pytest.mark.usefixtures("few_rounds")

RECORDS, KNOWN, OWN, COLUMNS = 300, 40, 2, 3
BOTH: list[Any] = [GenerativeRegressionAttack, ScoreInversionAttack]


class Bent(nn.Module):
    """Two layers over own columns and the partner's, from which six classes are scored."""

    def __init__(self, seed: int, *, outputs: int = 6, listens: float = 1.0) -> None:
        super().__init__()
        random = torch.Generator().manual_seed(seed)
        self.first = nn.Parameter(torch.randn(COLUMNS, 8, generator=random) * listens)
        self.own = nn.Parameter(torch.randn(OWN, 8, generator=random))
        self.last = nn.Parameter(torch.randn(8, outputs, generator=random))

    def forward(self, own: Tensor, columns: Tensor) -> Tensor:
        return torch.tanh(0.6 * (columns @ self.first + own @ self.own)) @ self.last


def scored(model: nn.Module, seed: int, *, classes: int | None = 6, decimals: int | None = None) -> tuple[View, Tensor]:
    """What an attacker sees of records whose columns are independent of the label party's own, and the columns."""
    random = torch.Generator().manual_seed(1_000 + seed)
    own, columns = (torch.randn(RECORDS, width, generator=random) for width in (OWN, COLUMNS))
    with torch.no_grad():
        outputs = model(own, columns)
    scores = outputs[:, 0] if classes is None else torch.sigmoid(outputs[:, 0]) if classes == 2 else outputs.softmax(1)
    numbers = torch.randperm(RECORDS, generator=random)
    told = torch.randperm(RECORDS, generator=random)[:KNOWN]
    view = View(
        party="bank",
        step=0,
        ids=numbers,
        scores=scores if decimals is None else scores.round(decimals=decimals),
        columns=own,
        classes=classes,
        whole_model=copy.deepcopy(model),
        known_columns=KnownColumns(numbers[told], columns[told]),
    )
    return view, columns


def share(attack: Any, view: View, truth: Tensor) -> float:
    """Share of variance recovered of records that are not known."""
    asked = ~torch.isin(view.ids, view.known_columns.ids)
    return shares_recovered(call_attack(attack, view)[asked], truth[asked]).mean().item()


def by_regression(view: View, truth: Tensor) -> float:
    """What ridge regression from own columns and log scores reads, which knows the same records and no model."""
    known, places = known_places(view)
    inputs = torch.cat([view.columns, outputs_of_scores(view.scores, view.classes)], dim=1)
    asked = ~torch.isin(view.ids, view.known_columns.ids)
    return shares_recovered(fit_ridge(inputs[places], known).estimate(inputs)[asked], truth[asked]).mean().item()


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_of_six_classes_and_three_columns_inversion_finds_nearly_all(seed: int) -> None:
    """Five numbers of three columns. Of seeds 0 to 5: .86 to .98, and regression without the model .62 to .91."""
    view, truth = scored(Bent(seed), seed)
    found = share(ScoreInversionAttack(), view, truth)
    assert found > 0.8
    assert found > by_regression(view, truth) + 0.1


def test_a_generator_reads_by_the_model_alone_and_more_by_known_records() -> None:
    """Of seeds 0 to 5: .43 to .81, and .59 to .86. Own columns tell nothing, nor does the mean."""
    (alone, truth), (taught, _) = (scored(Bent(0), 0) for _ in range(2))
    untaught = share(GenerativeRegressionAttack(steps=400, taught=0.0), alone, truth)
    assert untaught > 0.5
    assert share(GenerativeRegressionAttack(steps=400), taught, truth) > untaught + 0.05


@pytest.mark.parametrize("make", BOTH)
def test_of_a_model_that_does_not_look_at_the_columns_nothing_is_read(make: Any) -> None:
    """Nor do the label party's own columns tell anything of them."""
    view, truth = scored(Bent(0, listens=0.0), 0)
    assert share(make(**({} if make is ScoreInversionAttack else {"steps": 200})), view, truth) < 0.05


@pytest.mark.parametrize("classes", [2, None])
def test_of_a_linear_model_it_is_the_conditional_mean_of_normal_columns(classes: int | None) -> None:
    """Written out by numpy: a record's own mean by regression, and one equation in its columns."""

    class Linear(nn.Module):
        def forward(self, own: Tensor, columns: Tensor) -> Tensor:
            return (columns @ columns.new_tensor([1.0, -0.5, 0.25]) + 0.3 * own[:, 0])[:, None] - 0.2

    view, truth = scored(Linear(), 3, classes=classes)
    found = call_attack(ScoreInversionAttack(steps=60), view).numpy()
    known, places = known_places(view)
    regression = fit_ridge(view.columns[places], known)
    middle, off = regression.estimate(view.columns).numpy(), regression.left_out.numpy()
    spread, alike = off.std(axis=0), np.corrcoef(off.T)
    squares = (alike**2).sum()
    apart = min(1.0, ((1 - 2 / 3) * squares + 9) / ((KNOWN + 1 - 2 / 3) * (squares - 3)))
    alike = (1 - apart) * alike + apart * np.eye(3)
    covariance = spread[:, None] * alike * spread
    weight = np.array([1.0, -0.5, 0.25])
    outputs = (truth.double().numpy() @ weight + 0.3 * view.columns[:, 0].double().numpy()) - 0.2
    # An output is believed to a twentieth of its standard deviation.
    noise = (0.05 * outputs.std()) ** 2
    gain = covariance @ weight / (weight @ covariance @ weight + noise)
    expected = middle + (truth.double().numpy() @ weight - middle @ weight)[:, None] * gain
    low, high = known.numpy().min(axis=0), known.numpy().max(axis=0)
    # Scores are float32: of log odds up to 5 that is some 1e-5.
    assert found == pytest.approx(expected.clip(low, high), abs=2e-3)


def test_scores_of_two_decimals_tell_less_and_mislead_nobody() -> None:
    exact, truth = scored(Bent(1), 1)
    rough, _ = scored(Bent(1), 1, decimals=2)
    fine, coarse = (share(ScoreInversionAttack(), view, truth) for view in (exact, rough))
    assert 0.4 < coarse < fine - 0.1


class Rounded(nn.Module):
    def forward(self, own: Tensor, columns: Tensor) -> Tensor:
        return columns.detach().round()


@pytest.mark.parametrize("make", BOTH)
def test_a_model_without_a_gradient_is_refused(make: Any) -> None:
    with pytest.raises(AttackRefused, match="passes no gradient on to the partner's columns"):
        call_attack(make(), scored(Rounded(), 0, classes=3)[0])


@pytest.mark.parametrize("make", BOTH)
def test_known_records_are_two_at_least_and_among_those_scored(make: Any) -> None:
    view, _ = scored(Bent(0), 0)
    known = view.known_columns
    few = view.granting(known_columns=KnownColumns(known.ids[:1], known.columns[:1]))
    with pytest.raises(ArgumentError, match="expected at least 2 known records, got 1"):
        call_attack(make(), few)
    others = view.granting(known_columns=KnownColumns(known.ids + RECORDS, known.columns))
    with pytest.raises(ArgumentError, match="a known record is not among those that were scored"):
        call_attack(make(), others)


def test_the_same_seed_generates_the_same_whatever_torch_drew_before() -> None:
    first, again, other = (scored(Bent(0), 0)[0] for _ in range(3))
    found = call_attack(GenerativeRegressionAttack(steps=5), first)
    torch.randn(3)
    assert torch.equal(call_attack(GenerativeRegressionAttack(steps=5), again), found)
    assert not torch.equal(call_attack(GenerativeRegressionAttack(steps=5, seed=1), other), found)


def test_outputs_are_read_off_scores() -> None:
    outputs = torch.randn(50, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    centred = outputs - outputs.mean(dim=1, keepdim=True)
    torch.testing.assert_close(outputs_of_scores(outputs.softmax(dim=1), 4), centred)
    torch.testing.assert_close(outputs_of_scores(torch.sigmoid(outputs[:, 0]), 2), outputs[:, :1])
    torch.testing.assert_close(outputs_of_scores(outputs[:, 0], None), outputs[:, :1])


def test_scores_of_nothing_and_all_have_finite_outputs() -> None:
    saturated = outputs_of_scores(torch.tensor([0.0, 1.0, 0.25]), 2)[:, 0]
    # Half of the least distance is an eighth.
    assert saturated.tolist() == pytest.approx([-np.log(7), np.log(7), -np.log(3)])
    one_hot = outputs_of_scores(torch.eye(3), 3)
    assert bool(torch.isfinite(one_hot).all())
    assert one_hot.argmax(dim=1).tolist() == [0, 1, 2]


@pytest.mark.parametrize(
    ("scores", "complaint"), [([0.5, 1.5], r"expected scores in \[0, 1\]"), ([0.5, float("nan")], "NaN or infinite")]
)
def test_what_is_no_score_is_refused(scores: list[float], complaint: str) -> None:
    with pytest.raises(ArgumentError, match=complaint):
        outputs_of_scores(torch.tensor(scores), 2)


@pytest.mark.parametrize(
    ("make", "settings", "complaint"),
    [
        (GenerativeRegressionAttack, {"known_share": 1.0}, "known_share must be above 0 and below 1, got 1.0"),
        (GenerativeRegressionAttack, {"steps": 0}, "steps must be 1 to 100,000, got 0"),
        (GenerativeRegressionAttack, {"hidden": 0}, "hidden must be 1 to 4,096, got 0"),
        (GenerativeRegressionAttack, {"taught": -1.0}, "taught must be finite and at least 0, got -1.0"),
        (ScoreInversionAttack, {"known_share": 0.0}, "known_share must be above 0 and below 1, got 0.0"),
        (ScoreInversionAttack, {"steps": 0}, "steps must be 1 to 1,000, got 0"),
    ],
)
def test_settings_have_limits(make: Any, settings: dict[str, Any], complaint: str) -> None:
    with pytest.raises(ArgumentError, match=complaint):
        make(**settings)

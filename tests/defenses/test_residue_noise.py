"""Laplace noise on residues, additive and multiplicative: what is sent, for whom it is drawn, and what is claimed."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from scipy.stats import kstest, laplace
from torch import Tensor, nn

from splitvfl.claims import PureDP, claims_of
from splitvfl.cut.split_model import SplitModel
from splitvfl.defenses import (
    AbstainingResponse,
    AsymmetricResponse,
    AxisGaussian,
    GaussianTargets,
    LaplaceResidue,
    MaxNorm,
    MemoisedResponse,
    MultiplicativeLaplaceResidue,
    RandomisedResponse,
    RecordGaussian,
)
from splitvfl.errors import ArgumentError, PrivacyError
from splitvfl.exchange.split import Split
from splitvfl.hooks import Secrets, call_defense
from splitvfl.metrics import leak_auc
from splitvfl.models import LinearTop
from splitvfl.party.attaching import promises_of
from splitvfl.privacy import MultiplicativeMode, multiplicative_laplace_epsilon
from tests.exchange.logistic import trainer_of

SecretsFactory = Callable[..., Secrets]
MODES: tuple[MultiplicativeMode, ...] = ("as_printed", "sign_preserving", "centred_at_one")


def as_rows(residues: Tensor) -> Tensor:
    return (-residues / len(residues)).unsqueeze(1)


def as_residues(rows: Tensor) -> Tensor:
    return -rows[:, 0].double() * len(rows)


def multiplicative(**settings: Any) -> MultiplicativeLaplaceResidue:
    return MultiplicativeLaplaceResidue(**({"epsilon": 5.0, "b1": 0.5, "b2": 1.0} | settings))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_every_residue_gets_laplace_noise_of_scale_two_over_epsilon(
    dtype: torch.dtype, secrets_for_test: SecretsFactory
) -> None:
    residues = torch.linspace(-1, 1, 20_000, dtype=torch.float64)

    sent = call_defense(LaplaceResidue(epsilon=0.8), as_rows(residues).to(dtype), secrets_for_test())

    noise = (as_residues(sent) - residues).numpy()
    # One test in a thousand fails where all is well; the seed is fixed.
    assert kstest(noise, "laplace", args=(0, 2 / 0.8)).pvalue > 1e-3


def test_residues_beyond_one_are_clipped_first(secrets_for_test: SecretsFactory) -> None:
    residues = torch.tensor([-3.0, -1.0, 0.25, 7.0], dtype=torch.float64)

    sent = call_defense(LaplaceResidue(epsilon=1e6), as_rows(residues), secrets_for_test())

    # Noise of scale 2e-6, four draws.
    torch.testing.assert_close(as_residues(sent), residues.clamp(-1, 1), rtol=0, atol=1e-4)


@pytest.mark.parametrize("mode", MODES)
def test_every_residue_is_multiplied_as_the_specification_writes_it(
    mode: MultiplicativeMode, secrets_for_test: SecretsFactory
) -> None:
    b1, b2, epsilon = 0.3, 0.9, 4.0
    residues = torch.tensor([-0.8, -0.1, 0.1, 0.8], dtype=torch.float64).repeat(20_000)
    defense = multiplicative(epsilon=epsilon, b1=b1, b2=b2, mode=mode)

    sent = as_residues(call_defense(defense, as_rows(residues), secrets_for_test())).numpy().reshape(-1, 4)

    rng = np.random.default_rng(0)
    for column, residue in enumerate((-0.8, -0.1, 0.1, 0.8)):
        kept = (b1 if mode == "as_printed" else math.copysign(b1, residue)) if abs(residue) <= b1 else residue
        expected = kept * ((mode == "centred_at_one") + rng.laplace(scale=2 * b2 / (b1 * epsilon), size=100_000))
        upper = np.abs(expected) >= b2 if mode == "as_printed" else expected >= b2
        lower = np.zeros_like(upper) if mode == "as_printed" else expected <= -b2
        mine = sent[:, column]
        # Shares at the bounds: standard errors of 20 000 coins, five of them. What crossed was rounded to 2^-30 of the
        # noise's scale.
        assert (mine >= b2 * (1 - 1e-6)).mean() == pytest.approx(upper.mean(), abs=0.018)
        assert (mine <= -b2 * (1 - 1e-6)).mean() == pytest.approx(lower.mean(), abs=0.018)
        inside = mine[np.abs(mine) < b2 * (1 - 1e-6)]
        assert kstest(inside, expected[np.abs(expected) < b2]).pvalue > 1e-3


def trained_auc(defense: Any) -> float:
    """Test AUC of logistic regression, of which the label party has labels only, trained through a defense."""
    rng = torch.Generator().manual_seed(0)
    x = torch.randn(1500, 4, generator=rng)
    y = (torch.rand(1500, generator=rng) < torch.sigmoid(x @ torch.tensor([2.0, -2.0, 1.0, 0.0]))).float()
    bottom, top = nn.Linear(4, 1, bias=False), LinearTop(1)
    nn.init.zeros_(bottom.weight)
    model = SplitModel(bottom, top)
    optimizer = torch.optim.SGD(bottom.parameters(), lr=1.0)
    with model.cut.defend(defense, noise_seed_for_experiments=0):
        for step in range(60):
            rows = torch.arange(1000).reshape(20, 50)[step % 20]
            optimizer.zero_grad()
            outputs = model(x[rows], labels=y[rows], ids=rows)
            nn.functional.binary_cross_entropy_with_logits(outputs[:, 0], y[rows]).backward()
            optimizer.step()
    with torch.no_grad():
        return leak_auc(model(x[1000:])[:, 0], y[1000:])


def test_the_mode_that_is_centred_at_one_learns_and_the_printed_one_learns_the_wrong_way_round() -> None:
    # .90 without any noise. b1 small enough that the printed one's flip of small negative residues to +b1 is rare.
    settings = {"epsilon": 20.0, "b1": 0.1, "b2": 1.0}

    assert trained_auc(multiplicative(**settings)) > 0.85
    assert trained_auc(multiplicative(**settings, mode="as_printed")) < 0.5
    assert trained_auc(LaplaceResidue(epsilon=5.0)) > 0.85


def several(defense: Callable[[], Any], *, scales: tuple[float, float] = (1.0, 1.0)) -> tuple[SplitModel, list[Tensor]]:
    """A model of two passive parties, and what each of them is sent."""

    class Top(LinearTop):
        def forward(self, joined: Tensor) -> Tensor:
            return super().forward(joined * torch.tensor(scales))

    model = SplitModel({name: nn.Linear(3, 1, bias=False) for name in ("lab", "shop")}, Top(2))
    for cut in model.cuts.values():
        cut.defend(defense(), noise_seed_for_experiments=None)
    sent: list[Tensor] = []
    activations = [torch.randn(8, 3) for _ in model.cuts]
    for bottom in model.bottoms.values():
        bottom.register_full_backward_hook(lambda *given: sent.append(given[2][0]))
    for each in activations:
        each.requires_grad_()
    labels = torch.tensor([0.0, 1.0] * 4)
    outputs = model(*activations, labels=labels, ids=torch.arange(8))
    nn.functional.binary_cross_entropy_with_logits(outputs[:, 0], labels).backward()
    return model, sent


@pytest.mark.parametrize("defense", [lambda: LaplaceResidue(epsilon=1.0), multiplicative])
def test_two_passive_parties_get_one_draw(defense: Callable[[], Any]) -> None:
    _, sent = several(defense)

    assert len(sent) == 2
    assert torch.equal(sent[0], sent[1])
    assert sent[0].abs().min() > 0


def test_parties_that_are_due_other_rows_get_nothing() -> None:
    with pytest.raises(PrivacyError, match="not due the same rows"):
        several(lambda: LaplaceResidue(epsilon=1.0), scales=(1.0, 2.0))


def test_parties_whose_defenses_claim_different_things_get_nothing() -> None:
    made = iter([LaplaceResidue(epsilon=1.0), LaplaceResidue(epsilon=2.0)])

    with pytest.raises(PrivacyError, match="claims different things"):
        several(lambda: next(made))


def test_additive_noise_claims_half_its_epsilon_for_a_label_and_all_of_it_for_a_residue() -> None:
    label, residue = claims_of(LaplaceResidue(epsilon=3.0))

    assert isinstance(label, PureDP)
    assert isinstance(residue, PureDP)
    assert (label.epsilon, label.unit) == (1.5, "label of a record")
    assert (residue.epsilon, residue.unit) == (3.0, "residue of a record")
    assert "1.5-differentially private in the label of a record" in label.said(4)
    assert f"{1 / (1 + math.exp(-6)):.3f}" in label.said(4)
    assert all(checked for _, checked in label.conditions)
    assert label.not_covered


def log_ratio_of_labels(defense: LaplaceResidue, targets: Sequence[float]) -> float:
    """Largest log ratio of densities of what is sent of a record under two targets, over predictions, on a grid."""
    scale, worst = 2 / defense.epsilon, 0.0
    sent = np.linspace(-4, 4, 801)
    for prediction in np.linspace(0, 1, 101):
        residues = np.clip(np.array(targets) - prediction, -1, 1)
        densities = laplace.logpdf(sent[:, None], loc=residues, scale=scale)
        worst = max(worst, float(np.ptp(densities, axis=1).max()))
    return worst


@pytest.mark.parametrize(
    "answers",
    [
        None,
        RandomisedResponse(epsilon=1.0),
        MemoisedResponse(flip=0.2),  # 1 / (1 − 2 · .2) = 1.67 apart
        AsymmetricResponse(detection_error=0.4),  # 5 apart
    ],
)
def test_behind_a_label_defense_as_much_is_charged_as_a_label_can_move(answers: Any) -> None:
    model = SplitModel(nn.Linear(3, 1), LinearTop(1))
    defense = LaplaceResidue(epsilon=1.2)
    model.cut.defend(defense)
    if answers is not None:
        model.defend(answers)
    model(torch.ones(4, 3), labels=torch.tensor([0.0, 1.0] * 2), ids=torch.arange(4))

    targets = (0.0, 1.0) if answers is None else answers.target_values
    expected = log_ratio_of_labels(defense, targets)

    assert claims_of(defense)[0].epsilon == pytest.approx(expected, rel=1e-9)  # type: ignore[union-attr]
    assert claims_of(defense)[1].epsilon == 1.2  # type: ignore[union-attr]


@pytest.mark.parametrize(
    "answers",
    [
        MemoisedResponse(flip=0.2, corrected="likelihood"),
        AbstainingResponse(detection_error=0.3),  # which computes the loss itself
        GaussianTargets(sigma=1.0, remembered=True),
    ],
)
def test_behind_answers_that_may_move_a_residue_by_anything_the_whole_epsilon_is_charged(answers: Any) -> None:
    said = promised_behind(answers, approximation="exact")

    assert "laplace-residue: each message is 0.5-differentially private in the label" in said
    assert "laplace-residue: all messages of the run together are 1.5-differentially private in the label" in said


def promised_behind(answers: Any, *, approximation: str) -> str:
    noise = (LaplaceResidue(epsilon=0.5),)
    trainer = trainer_of(Split(own_part="sent"), {"lab": 2}, approximation=approximation, defenses=noise, audit=False)
    trainer.active.labels.attach(answers)
    trainer.active.plan_run(epochs=3)
    return " ".join(promises_of(trainer.active, 3, own_part="sent"))


def test_corrected_targets_are_charged_by_their_distance_below_the_exact_loss_alone() -> None:
    """Of an approximation nobody has said that it moves a residue as it moves a target that is no label."""
    # Targets are 1 / (1 − 2 · .1) = 1.25 apart, of the 2 that cost ½.
    for approximation, epsilon in (("exact", "0.312"), ("piecewise", "0.5")):
        said = promised_behind(MemoisedResponse(flip=0.1), approximation=approximation)
        assert f"laplace-residue: each message is {epsilon}-differentially private in the label" in said
    for approximation in ("exact", "piecewise"):
        said = promised_behind(RandomisedResponse(epsilon=1.0), approximation=approximation)
        assert "laplace-residue: each message is 0.25-differentially private in the label" in said


def test_multiplicative_noise_claims_its_true_epsilon_and_says_that_it_is_more_than_the_nominal_one() -> None:
    defense = multiplicative(epsilon=0.5, b1=0.1, b2=1.0)

    assert {claim.epsilon for claim in claims_of(defense) if isinstance(claim, PureDP)} == {
        multiplicative_laplace_epsilon(0.5, 0.1, 1.0, mode="centred_at_one")
    }
    assert "more than the nominal 0.5" in defense.notes[0]
    assert not multiplicative(epsilon=9.0, b1=1.0, b2=20.0).notes


def test_what_is_spent_is_that_of_the_record_that_was_sent_most_often(secrets_for_test: SecretsFactory) -> None:
    defense, logged = LaplaceResidue(epsilon=1.0), dict[str, float]()
    for ids in ([1, 2], [2, 3], [2, 9]):
        own = secrets_for_test(ids=torch.tensor(ids), log=logged.__setitem__)
        call_defense(defense, torch.full((2, 1), 0.1), own)
    assert logged["epsilon_spent"] == pytest.approx(3 * 0.5)
    assert logged["label_success_bound"] == pytest.approx(1 / (1 + math.exp(-1.5)))

    again = LaplaceResidue(epsilon=1.0)
    again.load_state_dict(defense.state_dict())
    call_defense(again, torch.full((2, 1), 0.1), secrets_for_test(ids=torch.tensor([2, 3]), log=logged.__setitem__))
    assert logged["epsilon_spent"] == pytest.approx(4 * 0.5)


def test_a_batch_without_ids_counts_as_the_same_records_each_time(secrets_for_test: SecretsFactory) -> None:
    defense, logged = multiplicative(), dict[str, float]()
    for _ in range(3):
        call_defense(defense, torch.full((2, 1), 0.1), secrets_for_test(log=logged.__setitem__))

    assert logged["epsilon_spent"] == pytest.approx(3 * defense.true_epsilon)


@pytest.mark.parametrize("defense", [LaplaceResidue(epsilon=1.0), multiplicative()])
def test_what_is_no_residue_is_refused(defense: Any, secrets_for_test: SecretsFactory) -> None:
    with pytest.raises(PrivacyError, match="this cut has 2 columns"):
        call_defense(defense, torch.zeros(4, 2), secrets_for_test())
    with pytest.raises(PrivacyError, match="below Sequential a row is something else"):
        SplitModel(nn.Linear(3, 1), nn.Sequential(nn.Linear(1, 1))).cut.defend(defense)


@pytest.mark.parametrize("defense", [LaplaceResidue(epsilon=1.0), multiplicative()])
def test_nothing_comes_before_noise_that_is_for_residues(defense: Any) -> None:
    """Noise of max-norm depends on the longest row: one label would move what is sent of every record."""
    cut = SplitModel(nn.Linear(3, 1), LinearTop(1)).cut
    cut.defend(MaxNorm())

    with pytest.raises(ArgumentError, match="what max-norm did to it before"):
        cut.defend(defense)


class AddsTheLabel:
    """Sends the label beside whatever it is given."""

    def __call__(self, gradient: Tensor, secrets: Secrets, /) -> Tensor:
        return gradient + 1e6 * secrets.labels[:, None]


@pytest.mark.parametrize(
    "defense", [LaplaceResidue(epsilon=1.0), multiplicative(), RecordGaussian(detection_error=0.4)]
)
@pytest.mark.parametrize("after", [AddsTheLabel, lambda: AxisGaussian(detection_error=0.4)])
def test_what_comes_after_a_promise_of_labels_gets_no_labels(defense: Any, after: Callable[[], Any]) -> None:
    model = SplitModel(nn.Linear(3, 1), LinearTop(1))
    model.cut.defend(defense)
    model.cut.defend(after())
    labels, ids = torch.tensor([0.0, 1.0] * 4), torch.arange(8)
    outputs = model(torch.ones(8, 3), labels=labels, ids=ids)

    with pytest.raises(PrivacyError, match=f"asks for labels behind {defense.name}"):
        nn.functional.binary_cross_entropy_with_logits(outputs[:, 0], labels).backward()


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"epsilon": 0.0}, "epsilon"),
        ({"epsilon": math.inf}, "epsilon"),
        ({"b1": 0.0}, "b1"),
        ({"b1": 1.1}, "b1"),
        ({"b2": 0.0}, "b2"),
        ({"mode": "printed"}, "mode must be one of"),
        ({"b1": 1.0, "mode": "sign_preserving"}, "sends noise alone"),
    ],
)
def test_settings_out_of_range_are_refused(settings: dict[str, Any], said: str) -> None:
    with pytest.raises(ArgumentError, match=said):
        multiplicative(**settings)
    if "epsilon" in settings:
        with pytest.raises(ArgumentError, match=said):
            LaplaceResidue(**settings)

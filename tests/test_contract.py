"""What every built-in attack and defense must do. A new one is one more row in the table of its kind."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from splitvfl import attacks, defenses
from splitvfl.cut.split_model import SplitModel
from splitvfl.errors import ArgumentError
from splitvfl.hooks import (
    CROSSINGS,
    Auxiliary,
    KnownColumns,
    KnownRows,
    LogitParts,
    PartnerStep,
    Secrets,
    View,
    call_attack,
    crossing_of,
    explanations_of,
    hook_name,
    moment_of,
    needs_label_gradients,
    needs_of,
    scope_of,
    target_of,
)
from splitvfl.hooks import call_defense as call
from splitvfl.leakage.after_training import view_after_training
from splitvfl.leakage.alphabets import finite
from splitvfl.learning.label_gradients import LabelGradients, mean_cross_entropy
from splitvfl.metrics import leak_auc
from splitvfl.models import Linear, LinearTop
from tests.builders import random
from tests.rows import every
from tests.saving import through_disk


@dataclass(frozen=True)
class AttackRow:
    """One attack; ``widths`` are those of the cut gradient that it takes.

    ``beyond_a_cut``: what it reads that a cut by itself does not show: logits, say, and so the size of a residue.
    """

    make: Callable[[], Any]
    widths: tuple[int, ...] = (1, 4)
    beyond_a_cut: str = ""


@dataclass(frozen=True)
class DefenseRow:
    """One defense; ``noisy``: it draws from its generator; ``residues``: it takes cuts of width 1 of linear models.

    ``scope``: on what of a message it has to act where a party is several workers.
    """

    make: Callable[[], Any]
    noisy: bool = True
    residues: bool = False
    scope: str = "batch"

    def halves(self) -> tuple[nn.Module, nn.Module]:
        """A bottom of six columns, and a top."""
        if self.residues:
            return nn.Linear(6, 1, bias=False), LinearTop(1)
        return nn.Sequential(nn.Linear(6, 5), nn.ReLU()), nn.Linear(5, 1)


ATTACKS = {
    "norm": AttackRow(attacks.NormAttack),
    "direction": AttackRow(attacks.DirectionAttack),
    "sign": AttackRow(attacks.SignAttack),
    "readout": AttackRow(attacks.ReadoutAttack),
    "combined": AttackRow(attacks.CombinedAttack),
    "component": AttackRow(attacks.ComponentAttack),
    "labels-and-features": AttackRow(attacks.LabelsAndFeaturesAttack),
    "component-of-activation": AttackRow(lambda: attacks.ComponentAttack(of="activation")),
    "mixture": AttackRow(attacks.MixtureAttack),
    "residual": AttackRow(attacks.ResidualAttack),
    "residue-solving": AttackRow(attacks.ResidueSolvingAttack, widths=(1,)),
    "least-squares": AttackRow(attacks.LeastSquaresAttack),
    "clamped-least-squares": AttackRow(attacks.ClampedLeastSquaresAttack),
    "half": AttackRow(attacks.HalfAttack),
    "half-star": AttackRow(attacks.HalfStarAttack),
    "zero": AttackRow(attacks.ZeroAttack),
    "random-guess": AttackRow(attacks.RandomGuessAttack),
    "gradient-inversion": AttackRow(attacks.GradientInversionAttack),
    "constrained-least-squares": AttackRow(attacks.ConstrainedLeastSquaresAttack),
    "discrete-search": AttackRow(attacks.DiscreteSearchAttack),
    "black-box-feature": AttackRow(attacks.BlackBoxFeatureAttack, widths=(1,)),
    "chebyshev-centre": AttackRow(attacks.ChebyshevCentreAttack),
    "rcc1": AttackRow(attacks.RCC1Attack),
    "rcc2": AttackRow(attacks.RCC2Attack),
    "ridge": AttackRow(attacks.RidgeAttack),
    "inverse-network": AttackRow(attacks.InverseNetworkAttack),
    "stacked-ridge": AttackRow(attacks.StackedRidgeAttack),
    "pseudo-client": AttackRow(attacks.PseudoClientAttack),
    "unsplit": AttackRow(attacks.UnSplitAttack),
    "white-box-inversion": AttackRow(attacks.WhiteBoxInversionAttack),
    "loss-threshold": AttackRow(attacks.LossThresholdAttack),
    "calibrated-loss": AttackRow(attacks.CalibratedLossAttack),
    "generative-regression": AttackRow(lambda: attacks.GenerativeRegressionAttack(steps=20)),
    "score-inversion": AttackRow(attacks.ScoreInversionAttack),
    "packing": AttackRow(attacks.PackingAttack, widths=(1,), beyond_a_cut="packed_values"),
    "single-column": AttackRow(attacks.SingleColumnAttack, widths=(1,)),
    "noise-subtraction": AttackRow(lambda: attacks.NoiseSubtractionAttack(scheme=1, power=0.5)),
    "procrustes": AttackRow(lambda: attacks.ProcrustesAttack(known_rows=24)),
    "suspected-flip": AttackRow(lambda: attacks.SuspectedFlipAttack(belief=0.5)),
    "weight-estimation": AttackRow(lambda: attacks.WeightEstimationAttack(known_rows=24)),
    "gradient-classifier": AttackRow(attacks.GradientClassifierAttack),
    "model-completion": AttackRow(attacks.ModelCompletionAttack),
    "label-sum": AttackRow(lambda: attacks.LabelSumAttack(fallback=True), widths=(1,)),
    "sparse-residues": AttackRow(attacks.SparseResiduesAttack, widths=(1,)),
    "secret-batch-likelihood": AttackRow(
        lambda: attacks.SecretBatchLikelihoodAttack(epsilon=1.0, share=0.3), widths=(1,), beyond_a_cut="logits"
    ),
    "stacked-epochs": AttackRow(attacks.StackedEpochsAttack, widths=(1,)),
    "additive-llr": AttackRow(lambda: attacks.AdditiveLLRAttack(epsilon=1.0), widths=(1,)),
    "multiplicative-llr": AttackRow(lambda: attacks.MultiplicativeLLRAttack(epsilon=5.0, b1=0.5, b2=1.0), widths=(1,)),
    "own-prediction": AttackRow(attacks.OwnPredictionAttack, widths=(1,)),
}

DEFENSES = {
    "isotropic": DefenseRow(defenses.Isotropic),
    "isotropic-sigma": DefenseRow(lambda: defenses.Isotropic(sigma=0.1), scope="row"),
    "max-norm": DefenseRow(defenses.MaxNorm),
    "sumkl-ratio": DefenseRow(lambda: defenses.SumKL(ratio=1.0)),
    "sumkl-power": DefenseRow(lambda: defenses.SumKL(power=0.1)),
    "sumkl-detection": DefenseRow(lambda: defenses.SumKL(detection_error=0.4)),
    "abstaining-response": DefenseRow(lambda: defenses.AbstainingResponse(detection_error=0.3)),
    "asymmetric-response": DefenseRow(lambda: defenses.AsymmetricResponse(detection_error=0.3)),
    "axis-gaussian-ratio": DefenseRow(lambda: defenses.AxisGaussian(ratio=1.0)),
    "axis-gaussian-detection": DefenseRow(lambda: defenses.AxisGaussian(detection_error=0.4)),
    "axis-sumkl-ratio": DefenseRow(lambda: defenses.AxisSumKL(ratio=1.0)),
    "axis-sumkl-power": DefenseRow(lambda: defenses.AxisSumKL(power=0.1)),
    "axis-sumkl-detection": DefenseRow(lambda: defenses.AxisSumKL(detection_error=0.4)),
    "gaussian-ir": DefenseRow(lambda: defenses.GaussianIR(clip=1.0, sigma=0.1), scope="row"),
    "coefficient-noise-sigma": DefenseRow(lambda: defenses.CoefficientNoise(sigma=0.5, clip=2.0)),
    "laplace-residue-sigma": DefenseRow(lambda: defenses.LaplaceResidue(epsilon=1.0), residues=True),
    "multiplicative-laplace-residue-bound": DefenseRow(
        lambda: defenses.MultiplicativeLaplaceResidue(epsilon=5.0, b1=0.5, b2=1.0), residues=True
    ),
    "gaussian-targets": DefenseRow(lambda: defenses.GaussianTargets(detection_error=0.4)),
    "gaussian-targets-fresh": DefenseRow(lambda: defenses.GaussianTargets(mu=1.0, remembered=False, epochs=4)),
    "gaussian-targets-range": DefenseRow(lambda: defenses.GaussianTargets(sigma=0.5, label_range=(0.0, 2.0))),
    "memoised-response": DefenseRow(lambda: defenses.MemoisedResponse(flip=0.2)),
    "randomised-response": DefenseRow(lambda: defenses.RandomisedResponse(epsilon=1.0)),
    "record-gaussian": DefenseRow(lambda: defenses.RecordGaussian(detection_error=0.4)),
    "record-gaussian-epsilon": DefenseRow(lambda: defenses.RecordGaussian(epsilon=1.0, delta=1e-5)),
    "class-label": DefenseRow(lambda: defenses.ClassLabel(epsilon=0.01), noisy=False, scope="row"),
    "purification": DefenseRow(lambda: defenses.Purification(temperature=3.0), noisy=False, scope="row"),
    "score-noise-1": DefenseRow(lambda: defenses.ScoreNoise(scheme=1, power=1.0), noisy=False, scope="row"),
    "score-noise-3": DefenseRow(lambda: defenses.ScoreNoise(scheme=3, power=1.0), noisy=False, scope="row"),
    "top-one": DefenseRow(defenses.TopOne, noisy=False, scope="row"),
    "rounding": DefenseRow(lambda: defenses.Rounding(decimals=2), noisy=False, scope="row"),
    "clip-gradient-bound": DefenseRow(lambda: defenses.ClipGradient(bound=0.05), noisy=False, scope="row"),
    "clip-gradient-quantile": DefenseRow(lambda: defenses.ClipGradient(quantile=0.5), noisy=False),
    "discretise": DefenseRow(defenses.Discretise, noisy=False),
    "top-k": DefenseRow(defenses.TopK, noisy=False),
}

LATE_ATTACKS = [name for name, row in ATTACKS.items() if moment_of(row.make()) == "after-training"]
LABEL_ATTACKS = [
    name for name, row in ATTACKS.items() if target_of(row.make()) == "labels" and name not in LATE_ATTACKS
]
FEATURE_ATTACKS = [name for name, row in ATTACKS.items() if target_of(row.make()) == "features"]
AT_THE_CUT = [name for name, row in DEFENSES.items() if crossing_of(row.make()) in ("gradient", "activation")]
OF_RESIDUES = {hook_name(row.make()) for row in DEFENSES.values() if row.residues}
OF_GRADIENTS = [name for name, row in DEFENSES.items() if crossing_of(row.make()) == "gradient"]

ROWS = 24


def labels_of(seed: int = 0) -> Tensor:
    return (torch.arange(ROWS) % 3 == seed % 3).float()


def ids_of(seed: int = 0) -> Tensor:
    return torch.randperm(3 * ROWS, generator=random(seed))[:ROWS] * 11 - 100


def gradient(width: int, dtype: torch.dtype = torch.float32, *, seed: int = 0, scale: float = 1.0) -> Tensor:
    """Class means apart, every record its own noise."""
    signs = 1.0 - 2.0 * labels_of(seed)
    rows = 0.3 * torch.randn(ROWS, width, generator=random(seed), dtype=torch.float64) + signs[:, None]
    return (rows * scale).to(dtype)


def training_view(width: int, dtype: torch.dtype = torch.float32, *, seed: int = 0, scale: float = 1.0) -> View:
    """A view with every field that a label attack can need during training; four known records of each class."""
    cut = gradient(width, dtype, seed=seed, scale=scale)
    columns = torch.randn(ROWS, 30, generator=random(seed + 1), dtype=torch.float64).to(dtype)
    return View(
        party="telecom",
        step=seed,
        ids=ids_of(seed),
        gradient=cut,
        activation=torch.zeros_like(cut),
        logits=torch.zeros_like(cut),
        columns=columns,
        weights={"weight": torch.zeros(width, 30, dtype=dtype)},
        aggregated_gradient=columns.T @ cut,
        known_positives=ids_of(seed)[labels_of(seed) == 1][:4],
        known_negatives=ids_of(seed)[labels_of(seed) == 0][:4],
        packed_values=-cut[:, 0],
    )


def final_view(width: int, dtype: torch.dtype = torch.float32) -> View:
    """What a party holds after training: columns that its bottom model turns into what tells the classes apart."""
    columns = -training_view(width, dtype).gradient  # high for positives, as a party's own part of the logit is
    bottom = Linear(width, width, init="zero").to(dtype)
    nn.init.eye_(bottom.weight)
    return view_after_training(
        bottom,
        columns,
        ids=ids_of(),
        known_positives=ids_of()[labels_of() == 1][:4],
        known_negatives=ids_of()[labels_of() == 0][:4],
    )


def linear_bottom(weight: Tensor) -> nn.Module:
    bottom = nn.Linear(weight.shape[1], weight.shape[0], bias=False).double()
    with torch.no_grad():
        bottom.weight.copy_(weight)
    return bottom


class Added(nn.Module):
    """A whole model that is linear: the own part of the logits, and the other party's."""

    def __init__(self, weight: Tensor) -> None:
        super().__init__()
        self.weight = nn.Parameter(weight)

    def forward(self, own: Tensor, columns: Tensor) -> Tensor:
        return own + columns @ self.weight.T


def partner_steps(column: Tensor, *, epochs: int = 3, rate: float = 0.5) -> tuple[PartnerStep, ...]:
    """Steps of a descent with one weight, whose parts are received in the clear."""
    weight, steps, none = 0.7, [], torch.zeros(0, dtype=torch.float64)
    for epoch in range(epochs):
        for rows in torch.randperm(ROWS, generator=random(epoch)).split(6):
            sent = torch.randn(6, generator=random(epoch + 7), dtype=torch.float64) / 6
            own = torch.zeros(6, 0, dtype=torch.float64)
            steps.append(PartnerStep(ids_of()[rows], own, weight * column[rows], none, sent, 0.0, rate))
            weight -= rate * float(sent @ column[rows])
    return tuple(steps)


def prediction_view(width: int, dtype: torch.dtype = torch.float64) -> View:
    """Published scores of a linear model over ``width`` unknown features: one sigmoid, or three classes."""
    features = torch.rand(ROWS, width, generator=random(3), dtype=torch.float64)
    classes = 1 if width == 1 else 3
    weight = torch.randn(classes, width, generator=random(4), dtype=torch.float64)
    known = torch.randn(ROWS, classes, generator=random(5), dtype=torch.float64)
    logits = known + features @ weight.T
    scores = torch.sigmoid(logits[:, 0]) if classes == 1 else torch.softmax(logits, dim=1)
    flat = classes == 1
    shown = (scores, known[:, 0] if flat else known, weight[0] if flat else weight)
    told = attacks.score_equations(*(one.to(dtype) for one in shown))
    return View(
        party="bank",
        step=0,
        ids=ids_of(),
        **dict(zip(("scores", "active_logits", "passive_weight"), (one.to(dtype) for one in shown), strict=True)),
        equations=told,
        alphabets=(finite(0, [0.0, 0.25, 1.0]),),
        logit_parts=LogitParts((features @ weight.T).to(dtype), tuple(f"column {at}" for at in range(width))),
        known_rows=KnownRows(features, told.b, told.error),
        partner_steps=partner_steps(features[:, 0]),
        columns=known.to(dtype),
        classes=2 if flat else 3,
        whole_model=Added(weight),
        losses=torch.rand(ROWS, generator=random(6), dtype=torch.float64).to(dtype),
        known_members=ids_of()[:6],
        known_others=ids_of()[6:12],
        known_columns=KnownColumns(ids_of()[:9], features[:9].to(dtype)),
        received_activation=(features @ weight.T).to(dtype),
        partner_bottom=linear_bottom(weight),
        partner_architecture=linear_bottom(weight),
        auxiliary=Auxiliary((features[:9] @ weight.T).to(dtype), features[:9].to(dtype), torch.arange(9)),
        earlier_auxiliary=Auxiliary(
            (features[9:12] @ weight.T).to(dtype), features[9:12].to(dtype), torch.arange(9, 12)
        ),
    )


def views(name: str, dtype: torch.dtype) -> list[View]:
    makers = dict.fromkeys(LABEL_ATTACKS, training_view) | dict.fromkeys(LATE_ATTACKS, final_view)
    make = makers.get(name, prediction_view)
    return [make(width, dtype) for width in ATTACKS[name].widths]


def tensors_in(value: Any) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, Mapping | tuple | list):
        for part in value.values() if isinstance(value, Mapping) else value:
            yield from tensors_in(part)


def equal(left: Tensor, right: Tensor) -> bool:
    """Equal to the bit, NaN equal to NaN."""
    return left.dtype == right.dtype and torch.equal(left.nan_to_num(nan=1e30), right.nan_to_num(nan=1e30))


def test_the_tables_have_a_row_for_every_attack_and_every_defense() -> None:
    def classes(package: Any) -> set[type]:
        exported = (getattr(package, name) for name in package.__all__)
        return {value for value in exported if inspect.isclass(value) and hasattr(value, "name")}

    assert {type(row.make()) for row in ATTACKS.values()} == classes(attacks)
    assert {type(row.make()) for row in DEFENSES.values()} == classes(defenses)


# --- attacks ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ATTACKS)
def test_an_attack_declares_what_it_is(name: str) -> None:
    attack = ATTACKS[name].make()
    assert hook_name(attack) == name
    fields = set(prediction_view(1).fields) | set(training_view(1).fields) | set(final_view(1).fields)
    assert needs_of(attack) <= fields
    assert target_of(attack) in ("labels", "features", "members")


@pytest.mark.parametrize("name", [*LABEL_ATTACKS, *LATE_ATTACKS])
def test_a_label_attack_says_in_reports_what_it_does(name: str) -> None:
    # A report knows an attack by its name only.
    assert explanations_of(type(ATTACKS[name].make()))[name].endswith(".")


@every(hook=[row.make() for row in (ATTACKS | DEFENSES).values()])
def test_a_hook_names_its_source_and_documents_its_call(hook: Any) -> None:
    documentation = inspect.getdoc(type(hook)) or ""
    assert "Source:" in documentation
    call = inspect.getdoc(type(hook).__call__) or ""
    assert "Args:" in call
    assert "Returns:" in call


@every(hook=[row.make() for row in (ATTACKS | DEFENSES).values()])
def test_settings_are_keyword_only_and_data_is_positional_only(hook: Any) -> None:
    settings = list(inspect.signature(type(hook)).parameters.values())
    assert all(setting.kind is inspect.Parameter.KEYWORD_ONLY for setting in settings)
    data = list(inspect.signature(type(hook).__call__).parameters.values())[1:]
    assert data
    assert all(argument.kind is inspect.Parameter.POSITIONAL_ONLY for argument in data)


@pytest.mark.parametrize("name", ATTACKS)
@every(dtype=[torch.float32, torch.float64])
def test_an_attack_returns_one_finite_row_per_record_and_changes_nothing(name: str, dtype: torch.dtype) -> None:
    for view in views(name, dtype):
        given = list(tensors_in(view._seen))
        before = [tensor.clone() for tensor in given]
        scores = call_attack(ATTACKS[name].make(), view)
        assert scores.is_floating_point()
        assert scores.shape[0] == ROWS
        assert torch.isfinite(scores[~scores.isnan()]).all()
        assert scores.isnan().double().mean() < 0.5
        assert all(torch.equal(left, right) for left, right in zip(before, given, strict=True))


@pytest.mark.parametrize("name", ATTACKS)
def test_an_attack_is_deterministic_and_reads_only_what_it_declares(name: str) -> None:
    # Two rounds of views: an attack may change the bottom model that it is given.
    for view, again in zip(views(name, torch.float64), views(name, torch.float64), strict=True):
        needed = {field: getattr(again, field) for field in needs_of(ATTACKS[name].make())}
        less = View(party=view.party, step=view.step, ids=view.ids, **needed)
        assert equal(call_attack(ATTACKS[name].make(), view), call_attack(ATTACKS[name].make(), less))


@pytest.mark.parametrize("name", LABEL_ATTACKS)
def test_an_attack_goes_on_from_its_saved_state(name: str) -> None:
    for width in ATTACKS[name].widths:
        straight, first, resumed = (ATTACKS[name].make() for _ in range(3))
        for seed in (0, 1):
            call_attack(straight, training_view(width, seed=seed))
            call_attack(first, training_view(width, seed=seed))
        if hasattr(first, "state_dict"):
            resumed.load_state_dict(through_disk(first.state_dict()))
        for seed in (2, 3):
            view = training_view(width, seed=seed)
            assert equal(call_attack(straight, view), call_attack(resumed, view))


@pytest.mark.parametrize("name", [name for name in LABEL_ATTACKS if not ATTACKS[name].beyond_a_cut])
@every(scale=[1e-12, 1e-6, 1e6])
def test_an_attack_ranks_alike_at_any_magnitude(name: str, scale: float) -> None:
    for width in ATTACKS[name].widths:
        aucs = []
        for factor in (1.0, scale):
            view = training_view(width, scale=factor)
            scores = call_attack(ATTACKS[name].make(), view)
            scored = ~scores.isnan()
            aucs.append(leak_auc(scores[scored], labels_of()[scored]))
        # Rounding may swap two records whose scores agree to seven digits: at most one pair of 8 · 16.
        assert aucs[0] == pytest.approx(aucs[1], abs=1 / 128)


@pytest.mark.parametrize("name", LABEL_ATTACKS)
def test_an_attack_survives_gradients_of_zeros_and_a_single_record(name: str) -> None:
    for width in ATTACKS[name].widths:
        assert call_attack(ATTACKS[name].make(), training_view(width, scale=0.0)).shape == (ROWS,)
        view = training_view(width)
        columns, cut = view.columns[:1], view.gradient[:1]
        one = View(
            party="telecom",
            step=0,
            ids=view.ids[:1],
            gradient=cut,
            activation=view.activation[:1],
            logits=view.logits[:1],
            columns=columns,
            aggregated_gradient=columns.T @ cut,
            packed_values=view.packed_values[:1],
            known_positives=view.known_positives,
            known_negatives=view.known_negatives,
        )
        assert call_attack(ATTACKS[name].make(), one).shape == (1,)


@pytest.mark.parametrize("name", LABEL_ATTACKS)
@every(half=[False, True])
def test_an_attack_works_at_a_cut(name: str, half: bool) -> None:
    for width in ATTACKS[name].widths:
        torch.manual_seed(0)
        model = SplitModel(Linear(30, width), nn.Linear(width, 1))
        if ATTACKS[name].beyond_a_cut:
            with pytest.raises(ArgumentError, match=rf"needs {ATTACKS[name].beyond_a_cut}; this cut shows"):
                model.cut.watch(ATTACKS[name].make())
            continue
        leak = model.cut.watch(ATTACKS[name].make(), known_positives=2, known_negatives=2)
        for seed in (0, 1):
            columns = torch.randn(ROWS, 30, generator=random(seed))
            with torch.autocast("cpu", dtype=torch.bfloat16, enabled=half):  # backward inside it is the harder case
                outputs = model(columns, labels=labels_of(seed), ids=ids_of(seed) + 10_000 * seed).float()
                functional.binary_cross_entropy_with_logits(outputs[:, 0], labels_of(seed)).backward()
        assert leak.summary.steps >= 1
        assert 0.0 <= leak.auc <= 1.0


@pytest.mark.parametrize("name", LATE_ATTACKS)
def test_an_attack_after_training_reads_a_model_that_knows_and_cannot_watch_a_step(name: str) -> None:
    for width in ATTACKS[name].widths:
        scores = call_attack(ATTACKS[name].make(), final_view(width))
        scored = ~scores.isnan()
        assert leak_auc(scores[scored], labels_of()[scored]) > 0.9
        with pytest.raises(ArgumentError, match=f"{name} acts after training.*attack\\(view_after_training"):
            SplitModel(Linear(30, width), nn.Linear(width, 1)).cut.watch(ATTACKS[name].make())


@pytest.mark.parametrize("name", FEATURE_ATTACKS)
def test_a_feature_attack_returns_one_column_per_feature(name: str) -> None:
    for width in ATTACKS[name].widths:
        assert call_attack(ATTACKS[name].make(), prediction_view(width)).shape == (ROWS, width)


def on_gpu(value: Any) -> Any:
    """Return a field of a view on the GPU: a tensor, equations, or what else is made of tensors."""
    if isinstance(value, Tensor | nn.Module):
        return value.cuda()
    if not isinstance(value, tuple) or not value or isinstance(value[0], int | str):
        return value
    parts = [on_gpu(one) for one in value]
    return type(value)(*parts) if hasattr(value, "_fields") else tuple(parts)


@pytest.mark.cuda
@pytest.mark.parametrize("name", ATTACKS)
def test_an_attack_stays_on_its_views_device(name: str) -> None:
    for view in views(name, torch.float64):
        fields = {field: getattr(view, field) for field in view.fields if field != "weights"}
        moved = View(
            party=view.party, step=0, ids=view.ids.cuda(), **{field: on_gpu(value) for field, value in fields.items()}
        )
        assert call_attack(ATTACKS[name].make(), moved).device.type == "cuda"


# --- defenses --------------------------------------------------------------------------------------------------------


def message_for(defense: Any, width: int, dtype: torch.dtype, *, seed: int = 0, scale: float = 1.0) -> Tensor:
    crossing = crossing_of(defense)
    if crossing == "labels":
        return labels_of(seed).to(dtype)
    width = 1 if hook_name(defense) in OF_RESIDUES else width
    cut = gradient(width, dtype, seed=seed, scale=scale)
    if crossing == "scores":
        return torch.sigmoid(cut[:, 0]) if width == 1 else torch.softmax(cut, dim=1)
    return cut


def secrets(
    generator: torch.Generator, *, seed: int = 0, log: Any = None, dtype: torch.dtype = torch.float32
) -> Secrets:
    return Secrets(
        party="bank", step=seed, generator=generator, ids=ids_of(seed), labels=labels_of(seed).to(dtype), log=log
    )


def known_for(message: Tensor, labels: Tensor) -> LabelGradients:
    """Return what the label party knows where it would send this: every row turns round with its label."""
    rows = message.detach().reshape(len(message), -1).double()
    signs = 1.0 - 2.0 * labels.double()[:, None]  # logits of 0: (½ − y) / n
    return LabelGradients(
        outputs=message.new_zeros(len(message), 1),
        targets=labels,
        values=(0.0, 1.0),
        classes=2,
        loss=mean_cross_entropy,
        jacobian=(2.0 * len(message) * signs * rows)[None],
    )


def call_defense(defense: Any, message: Tensor, own: Secrets) -> Tensor:
    """Call a defense with all that it needs to know."""
    if needs_label_gradients(defense):
        own._label_gradients = known_for(message, own.labels)
    return call(defense, message, own)


@pytest.mark.parametrize("name", DEFENSES)
def test_a_defense_declares_what_it_is(name: str) -> None:
    defense = DEFENSES[name].make()
    assert name.startswith(hook_name(defense))
    assert crossing_of(defense) in CROSSINGS
    assert scope_of(defense) == DEFENSES[name].scope


class Silent(Secrets):
    """Secrets with a known number in the place of each that is drawn: noise without chance, its scale as it is."""

    def add_normal(self, message: Tensor, scale: float | Tensor) -> Tensor:
        return (message.double() + scale).to(message.dtype)

    add_laplace = add_normal  # type: ignore[assignment]

    def normal(self, *shape: int) -> Tensor:
        return torch.ones(shape, dtype=torch.float64)

    laplace = normal

    def uniform(self, *shape: int) -> Tensor:
        return torch.full(shape, 0.3, dtype=torch.float64)


def sent_silently(name: str, message: Tensor, rows: slice, dtype: torch.dtype) -> Tensor:
    own = Silent(party="bank", step=0, generator=random(0), ids=ids_of()[rows], labels=labels_of()[rows].to(dtype))
    return call_defense(DEFENSES[name].make(), message[rows], own)


def sent_as_one_and_row_by_row(name: str, width: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """What a defense sends of a batch of rows of many lengths, and of every row of it alone."""
    message = message_for(DEFENSES[name].make(), width, dtype)
    if crossing_of(DEFENSES[name].make()) in ("gradient", "activation"):
        message = message * torch.logspace(-3, 1, ROWS, dtype=dtype)[:, None]
        message[5] = 0.0
    parts = [sent_silently(name, message, slice(row, row + 1), dtype) for row in range(ROWS)]
    return sent_silently(name, message, slice(0, ROWS), dtype), torch.cat(parts)


@pytest.mark.parametrize("name", [name for name, row in DEFENSES.items() if row.scope == "row"])
@every(width=[1, 2, 5], dtype=[torch.float32, torch.float64])
def test_what_acts_on_rows_gives_each_what_it_gives_it_alone(name: str, width: int, dtype: torch.dtype) -> None:
    """Noise apart, but not its scale: workers that have some of the rows each send what one process would."""
    together, alone = sent_as_one_and_row_by_row(name, width, dtype)
    # Norms of rows may be summed up in another order: some roundings.
    torch.testing.assert_close(together, alone, rtol=16 * torch.finfo(dtype).eps, atol=1e-30)


# They look at more than a row: at statistics of the batch, or at how many rows it has.
OF_BATCHES = (
    *("isotropic", "max-norm", "sumkl-ratio", "sumkl-power", "sumkl-detection"),
    *("axis-gaussian-ratio", "axis-gaussian-detection", "axis-sumkl-ratio", "axis-sumkl-power", "axis-sumkl-detection"),
    *("coefficient-noise-sigma", "laplace-residue-sigma", "multiplicative-laplace-residue-bound"),
    *("clip-gradient-quantile", "discretise", "top-k"),
)


@pytest.mark.parametrize("name", OF_BATCHES)
def test_what_acts_on_batches_does_not(name: str) -> None:
    """Else it would cost workers a gathering for nothing, and the test above could not fail."""
    together, alone = sent_as_one_and_row_by_row(name, 5, torch.float64)
    assert not torch.allclose(together, alone, rtol=1e-3, atol=1e-9)


@pytest.mark.parametrize("name", DEFENSES)
@every(width=[1, 2, 5], dtype=[torch.float32, torch.float64])
def test_a_defense_sends_a_new_finite_message_of_the_same_kind(name: str, width: int, dtype: torch.dtype) -> None:
    defense = DEFENSES[name].make()
    message = message_for(defense, width, dtype)
    before = message.clone()
    sent = call_defense(defense, message, secrets(random(0), dtype=dtype))  # checks shape, dtype, device, finiteness
    assert torch.equal(message, before)
    assert sent.data_ptr() != message.data_ptr()
    if DEFENSES[name].noisy and name != "max-norm":
        assert not torch.equal(sent, before)


@pytest.mark.parametrize("name", DEFENSES)
def test_a_defense_is_a_function_of_its_generators_state(name: str) -> None:
    def sent(seed: int, *, disturb: bool = False) -> Tensor:
        defense = DEFENSES[name].make()
        if disturb:
            torch.rand(7)
        return call_defense(defense, message_for(defense, 5, torch.float32), secrets(random(seed)))

    assert torch.equal(sent(1), sent(1, disturb=True))
    if DEFENSES[name].noisy:
        assert not torch.equal(sent(1), sent(2))


DRAWING = [
    *((torch, name) for name in ("rand", "randn", "rand_like", "randn_like", "randint", "randperm", "normal")),
    *((torch, name) for name in ("bernoulli", "multinomial", "poisson")),
    *((Tensor, f"{name}_") for name in ("normal", "uniform", "bernoulli", "exponential", "log_normal", "geometric")),
]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", DEFENSES)
def test_a_defense_draws_through_its_secrets_only(
    name: str, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    defense = DEFENSES[name].make()
    message, own = message_for(defense, 3, dtype), secrets(random(0), dtype=dtype)
    drawn: list[str] = []
    for owner, function in DRAWING:
        monkeypatch.setattr(owner, function, lambda *_, function=function, **__: drawn.append(function))
    bits = Tensor.random_

    def random_(tensor: Tensor, *args: Any, **settings: Any) -> Tensor:
        drawn.append(str(tensor.dtype))
        return bits(tensor, *args, **settings)

    monkeypatch.setattr(Tensor, "random_", random_)

    call_defense(defense, message, own)

    assert set(drawn) == ({"torch.int64"} if DEFENSES[name].noisy else set())


@pytest.mark.parametrize("name", DEFENSES)
def test_a_defense_goes_on_from_its_saved_state(name: str) -> None:
    straight, first, resumed = (DEFENSES[name].make() for _ in range(3))
    generators = [random(6), random(6)]
    for defense, generator in zip((straight, first), generators, strict=True):
        for seed in (0, 1):
            call_defense(defense, message_for(defense, 4, torch.float32, seed=seed), secrets(generator, seed=seed))
    if hasattr(first, "state_dict"):
        resumed.load_state_dict(through_disk(first.state_dict()))
    # One class only: defenses with running statistics fall back on them.
    message = message_for(straight, 4, torch.float32, seed=2)
    one_class = [
        Secrets(party="bank", step=2, generator=generator, ids=ids_of(2), labels=torch.zeros(ROWS))
        for generator in generators
    ]
    sent = [call_defense(defense, message, own) for defense, own in zip((straight, resumed), one_class, strict=True)]
    assert torch.equal(*sent)


@pytest.mark.parametrize("name", [name for name in DEFENSES if hasattr(DEFENSES[name].make(), "state_dict")])
def test_a_saved_state_shares_no_memory_with_its_defense(name: str) -> None:
    defense = DEFENSES[name].make()
    call_defense(defense, message_for(defense, 4, torch.float32), secrets(random(0)))
    state = defense.state_dict()
    kept = repr(copy.deepcopy(state))
    for seed in (1, 2):
        call_defense(defense, message_for(defense, 4, torch.float32, seed=seed), secrets(random(seed), seed=seed))
    assert repr(state) == kept


@pytest.mark.parametrize("name", OF_GRADIENTS)
@every(scale=[10.0**power for power in range(-12, 7, 2)], width=[1, 8])
def test_a_gradient_defense_takes_any_magnitude(name: str, scale: float, width: int) -> None:
    defense = DEFENSES[name].make()
    for seed in range(2):
        message = message_for(defense, width, torch.float32, seed=seed, scale=scale)
        sent = call_defense(defense, message, secrets(random(seed), seed=seed))
        assert sent.abs().max() < 1e4 * max(scale, 1.0)


@pytest.mark.parametrize("name", [name for name in OF_GRADIENTS if not name.endswith(("power", "sigma", "bound"))])
def test_relative_defenses_scale_with_the_gradient(name: str) -> None:
    def sent(scale: float) -> Tensor:
        defense = DEFENSES[name].make()
        return call_defense(defense, message_for(defense, 5, torch.float32, scale=scale), secrets(random(0))) / scale

    # Powers of two scale float32 exactly; what remains are roundings in the solver's search, a few 1e-7 of rows near 3.
    torch.testing.assert_close(sent(2.0**-36), sent(1.0), rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(sent(2.0**18), sent(1.0), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", OF_GRADIENTS)
def test_a_gradient_defense_takes_batches_of_zeros_of_one_class_and_of_one_record(name: str) -> None:
    width = 1 if DEFENSES[name].residues else 3
    zeros = torch.zeros(ROWS, width)
    sent = [call_defense(DEFENSES[name].make(), zeros, secrets(random(0)))]
    for label in (0.0, 1.0):
        own = Secrets(party="bank", step=0, generator=random(0), ids=ids_of(), labels=torch.full((ROWS,), label))
        sent.append(call_defense(DEFENSES[name].make(), gradient(width), own))
        one = Secrets(party="bank", step=0, generator=random(0), ids=ids_of()[:1], labels=torch.tensor([label]))
        sent.append(call_defense(DEFENSES[name].make(), gradient(width)[:1], one))
    assert [len(message) for message in sent] == [ROWS, ROWS, 1, ROWS, 1]
    assert all(message.shape[1] == width and bool(message.isfinite().all()) for message in sent)


@pytest.mark.parametrize("name", DEFENSES)
def test_what_a_defense_logs_are_finite_numbers(name: str) -> None:
    logged: dict[str, float] = {}
    defense = DEFENSES[name].make()
    call_defense(defense, message_for(defense, 4, torch.float32), secrets(random(0), log=logged.__setitem__))
    assert all(isinstance(value, (int, float)) for value in logged.values())
    assert all(value == value and abs(value) < 1e300 for value in logged.values())
    if crossing_of(defense) in ("gradient", "activation"):
        assert logged["power"] > 0


@pytest.mark.parametrize("name", AT_THE_CUT)
@every(half=[False, True])
def test_a_defense_works_at_a_cut(name: str, half: bool) -> None:
    torch.manual_seed(0)
    model = SplitModel(*DEFENSES[name].halves())
    with model.cut.defend(DEFENSES[name].make(), noise_seed_for_experiments=0):
        for seed in (0, 1):
            columns = torch.randn(ROWS, 6, generator=random(seed))
            with torch.autocast("cpu", dtype=torch.bfloat16, enabled=half):
                outputs = model(columns, labels=labels_of(seed), ids=ids_of(seed) + 10_000 * seed).float()
                functional.binary_cross_entropy_with_logits(outputs[:, 0], labels_of(seed)).backward()
    assert all(torch.isfinite(parameter.grad).all() for parameter in model.parameters() if parameter.grad is not None)
    assert model.cut.gradient.measurements or model.cut.activation.measurements


@pytest.mark.cuda
@pytest.mark.parametrize("name", DEFENSES)
def test_a_defense_stays_on_its_messages_device(name: str) -> None:
    defense = DEFENSES[name].make()
    message = message_for(defense, 5, torch.float32).cuda()
    generator = torch.Generator("cuda").manual_seed(0)
    own = Secrets(party="bank", step=0, generator=generator, ids=ids_of().cuda(), labels=labels_of().cuda())
    assert call_defense(defense, message, own).device.type == "cuda"

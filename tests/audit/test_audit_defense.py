"""Audits of defenses whose claims are known to be true, and of those that break theirs in ways that happen."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from scipy.stats import binom
from torch import Tensor

from splitvfl.audit import DefenseAudit, Surroundings, audit_defense, audit_gaussian
from splitvfl.audit.class_worlds import class_probabilities, class_rows, label_pairs, paired_predictions
from splitvfl.claims import Gaussian, GaussianDP, PerRecord, PureDP
from splitvfl.defenses import (
    ClipGradient,
    GaussianIR,
    GaussianTargets,
    LaplaceResidue,
    MemoisedResponse,
    MultiplicativeLaplaceResidue,
    RandomisedResponse,
    RecordGaussian,
    SumKL,
    TopK,
)
from splitvfl.errors import HookError
from splitvfl.hooks import Defense, Secrets
from splitvfl.privacy import gaussian_delta, gaussian_sigma

DRAWS = 8_000
longer = pytest.mark.slow(reason="an audit that takes longer than another of its kind")


def audited(defense: Defense, seed: int = 0, **settings: Any) -> DefenseAudit:
    settings.setdefault("draws", DRAWS)
    known = ("receivers", "epochs", "seeded", "classes", "width", "unmet")
    around = Surroundings(**{key: settings.pop(key) for key in known if key in settings})
    return audit_defense(defense, around=around, seed=seed, **settings)


class Clipped:
    """Clip, then noise; what derives from it breaks what this keeps."""

    name = "own"
    crossing = "activation"
    sigma = 1.0

    def claims(self) -> tuple[Gaussian | PerRecord, ...]:
        return (Gaussian(self.sigma, bound=1.0), PerRecord())

    def __call__(self, rows: Tensor, secrets: Secrets, /) -> Tensor:
        return self.noisy(secrets.before_noise(self.clipped(rows)), secrets)

    def clipped(self, rows: Tensor) -> Tensor:
        return rows / torch.linalg.vector_norm(rows, dim=1, keepdim=True).clamp(min=1.0)

    def noisy(self, rows: Tensor, secrets: Secrets) -> Tensor:
        return secrets.add_normal(rows, self.sigma)


class Forgets(Clipped):
    def noisy(self, rows: Tensor, secrets: Secrets) -> Tensor:
        return rows


class Halves(Clipped):
    def noisy(self, rows: Tensor, secrets: Secrets) -> Tensor:
        return secrets.add_normal(rows, self.sigma / 2)


class ClipsLast(Clipped):
    def __call__(self, rows: Tensor, secrets: Secrets, /) -> Tensor:
        return self.clipped(self.noisy(rows, secrets))

    def claims(self) -> tuple[Gaussian | PerRecord, ...]:
        return super().claims()


class OneSeed(Clipped):
    def noisy(self, rows: Tensor, secrets: Secrets) -> Tensor:
        return rows + self.sigma * torch.randn(rows.shape, generator=torch.Generator().manual_seed(7))


class DrawsOnce(Clipped):
    """Draws in its first step, and adds the same noise in all later ones."""

    noise: Tensor | None = None

    def noisy(self, rows: Tensor, secrets: Secrets) -> Tensor:
        if self.noise is None:
            self.noise = secrets.add_normal(torch.zeros_like(rows), self.sigma)
        return rows + self.noise


class OneDrawForAllRows(Clipped):
    def noisy(self, rows: Tensor, secrets: Secrets) -> Tensor:
        return rows + (self.sigma * secrets.normal(1, rows.shape[1])).float()


class Mixes(Clipped):
    def clipped(self, rows: Tensor) -> Tensor:
        return super().clipped(rows - rows.mean(dim=0))


class OneClass(LaplaceResidue):
    """Adds its noise to records of label 1 alone."""

    def __call__(self, gradient: Tensor, secrets: Secrets, /) -> Tensor:
        return torch.where(secrets.labels[:, None] == 1, super().__call__(gradient, secrets), gradient)

    def claims(self) -> tuple[PureDP, ...]:
        return super().claims()


class DrawsForEach(LaplaceResidue):
    """Draws for each passive party what is claimed of all together."""

    one_draw = False


class ClaimsNominal(MultiplicativeLaplaceResidue):
    def claims(self) -> tuple[PureDP, ...]:
        return (PureDP(self.epsilon, "residue of a record"),)


class ClaimsTheRun(LaplaceResidue):
    def claims(self) -> tuple[PureDP, ...]:
        return (PureDP(self.epsilon, "residue of a record", per="run"),)


class DrawsAtEachCut(RecordGaussian):
    """Says that one draw stands for the labels at all cuts, and adds fresh noise of one message at each."""

    draws_at_output = True

    def __call__(self, gradient: Tensor, secrets: Secrets, /) -> Tensor:
        known = secrets.label_gradients
        _, parts = known.mixed_blocks(*self._drawn(known, secrets, self.step_mu))
        return torch.cat([rows.view(-1, gradient.shape[1]) for _, rows in parts]).to(gradient.dtype)

    def claims(self) -> tuple[GaussianDP, ...]:
        return super().claims()


BROKEN: dict[str, tuple[Callable[[], Defense], dict[str, Any]]] = {
    "forgets its noise": (Forgets, {}),
    "halves it": (Halves, {}),
    "adds it before the clip": (ClipsLast, {}),
    "one seed for every step": (OneSeed, {}),
    "the same noise again": (DrawsOnce, {}),
    "one draw for all rows": (OneDrawForAllRows, {}),
    "one class only": (partial(OneClass, epsilon=1.0), {}),
    "a draw for each party": (partial(DrawsForEach, epsilon=2.0), {"receivers": 2}),
    "a draw at each cut": (
        partial(DrawsAtEachCut, mu=1.0, per="run"),
        {"receivers": 4, "epochs": 1},
    ),
    "nominal ε of 1": (partial(ClaimsNominal, epsilon=1.0, b1=0.1, b2=1.0, mode="as_printed"), {}),
    "E releases as one": (partial(ClaimsTheRun, epsilon=1.0), {"epochs": 4}),
}


class ClearInTheEnd(LaplaceResidue):
    """Sends residues as they are from the tenth step on: more than an audit looks at."""

    late = False

    @property
    def scale(self) -> float:
        return 1e-9 if self.late else self.own

    @scale.setter
    def scale(self, value: float) -> None:
        self.own = value

    def check_labels(self, secrets: Secrets) -> None:
        self.late = secrets.step >= 10


class SaidToBeOurs:
    """Mixes the rows of large batches."""

    __module__ = "splitvfl.defenses.mine"
    crossing = "activation"
    per_record_guarantee = True

    def __call__(self, activation: Tensor, secrets: Secrets, /) -> Tensor:
        return activation + (activation.mean(dim=0) if len(activation) > 100 else 0.0)


def test_nothing_is_proven_of_what_others_have_written() -> None:
    """A class made from a built-in one may replace what that calls, or what it reads."""
    found = audited(ClearInTheEnd(epsilon=1.0), draws=400, epochs=20)
    assert {claim.verdict for claim in found.claims} == {"not refuted"}
    (apart, _) = audited(SaidToBeOurs(), draws=400).claims
    assert apart.verdict == "not refuted"
    changed = LaplaceResidue(epsilon=1.0)
    vars(changed)["log_spent"] = lambda secrets: None
    assert audited(changed, draws=400).verdict == "not refuted"


TRUE: dict[str, tuple[Callable[[], Defense], dict[str, Any], str]] = {
    "Mult at 10": (
        partial(MultiplicativeLaplaceResidue, epsilon=10.0, b1=0.1, b2=1.0, mode="as_printed"), {}, "proven",
    ),
    "Add to two parties": (partial(LaplaceResidue, epsilon=1.0), {"receivers": 2}, "proven"),
    "analytic Gaussian": (
        partial(GaussianIR, clip=1.0, sigma=gaussian_sigma(1.0, 1e-5, sensitivity=2.0)), {}, "proven",
    ),
    "a user's": (Clipped, {}, "not refuted"),
    "memoised response": (partial(MemoisedResponse, epsilon=1.5), {"epochs": 20}, "proven"),
    "discrete sampler": (partial(GaussianIR, clip=1.0, sigma=0.7), {"seeded": False}, "proven"),
    "discrete Laplace": (partial(LaplaceResidue, epsilon=2.0), {"seeded": False}, "proven"),
    "targets, remembered": (partial(GaussianTargets, mu=1.0), {"epochs": 5}, "proven"),
    "targets, fresh": (partial(GaussianTargets, mu=1.0, remembered=False), {"epochs": 3}, "proven"),
    "a record's row": (partial(RecordGaussian, mu=0.8), {}, "proven"),
    "a record's rows of a run": (
        partial(RecordGaussian, mu=0.8, per="run"), {"epochs": 2, "receivers": 2}, "proven",
    ),
}  # fmt: skip


# Of the same kind as one before.
OTHERS = ("Add to two parties", "discrete Laplace", "targets, fresh", "a record's rows of a run")


@pytest.mark.parametrize("true", [pytest.param(true, marks=longer if true in OTHERS else []) for true in TRUE])
def test_true_claims_are_not(true: str) -> None:
    make, settings, verdict = TRUE[true]
    found = audited(make(), **settings, draws=400, confidence=0.999)
    assert found.verdict == verdict, found
    assert not found.gaps


@longer
@pytest.mark.parametrize("make", [Clipped, partial(LaplaceResidue, epsilon=1.0)])
def test_measured_bounds_come_close_to_the_truth(make: Callable[[], Defense]) -> None:
    claim = audited(make()).claims[0]
    assert claim.bound is not None
    assert claim.claimed is not None
    assert 0.8 * claim.claimed < claim.bound <= claim.claimed


@pytest.mark.slow(reason="an audit in every seed")
def test_false_alarms_are_rare() -> None:
    # A claim that is exact, at 80 % confidence, so that false alarms would be seen if it were not kept.
    wrong = sum(
        audited(MemoisedResponse(epsilon=0.5), seed, draws=400, confidence=0.8).verdict == "violated"
        for seed in range(25)
    )
    assert wrong <= binom.isf(1e-3, 25, 0.2)


def test_noise_that_is_a_hundredth_too_small_is_found_by_calculation() -> None:
    class Rounds(MultiplicativeLaplaceResidue):
        def claims(self) -> tuple[PureDP, ...]:
            return (PureDP(0.99 * self.true_epsilon),)

    found = audited(Rounds(epsilon=10.0, b1=0.1, b2=1.0), draws=400).claims[0]
    assert found.verdict == "violated"
    assert found.why[0].startswith("Calculated: ε =")
    assert found.calculated is not None
    assert found.calculated.value > 0.99 * found.calculated.value


@pytest.mark.parametrize(("delta", "end"), [(0.1, 5.74), (0.01, 6.77), (1e-5, 8.42)])
def test_the_textbooks_gaussian_is_violated_beyond_its_range(delta: float, end: float) -> None:
    for epsilon, verdict in ((0.9, "proven"), (end - 0.01, "not covered"), (end + 0.01, "violated")):
        sigma = math.sqrt(2 * math.log(1.25 / delta)) / epsilon
        found = audit_gaussian(epsilon, delta, sigma=sigma, sensitivity=1.0, classic=True)
        assert found.verdict == verdict
        assert found.delta == gaussian_delta(sigma, epsilon, sensitivity=1.0)
    exact = gaussian_sigma(10.0, delta, sensitivity=3.0)
    assert audit_gaussian(10.0, delta, sigma=exact, sensitivity=3.0).verdict == "proven"


def test_a_row_that_changes_others_breaks_the_claim_about_records() -> None:
    assert "violated" in {claim.verdict for claim in audited(Mixes(), draws=400).claims}


def test_what_promises_nothing_is_no_claim() -> None:
    for defense in (TopK(keep=0.5), ClipGradient(bound=1.0)):
        found = audited(defense, draws=400)
        assert found.verdict == "no claim"
    assert audited(SumKL(detection_error=0.4), draws=400).verdict == "not covered"


def test_noise_that_hides_nothing_of_a_row_is_no_claim() -> None:
    # Opposite rows at the clip are 80 standard deviations apart.
    found = audited(GaussianIR(clip=4.0, sigma=0.1), draws=400, unmet=("Evaluation: it is in the clear.",))
    assert {claim.verdict for claim in found.claims} == {"no claim"}
    assert "too little noise" in found.claims[0].why[0]
    assert not Gaussian(0.1, bound=4.0).hides_rows
    assert Gaussian(2.0, bound=4.0).hides_rows  # δ = .93
    assert not Gaussian(1.0).hides_rows  # whatever the noise, rows have no end


def test_an_unmet_condition_is_named() -> None:
    found = audited(LaplaceResidue(epsilon=1.0), draws=400, unmet=("Statistics of the data are not covered.",))
    assert found.verdict == "not covered"
    assert found.claims[0].why == ("Statistics of the data are not covered.",)


def test_what_cannot_be_called_is_a_gap_and_no_pass() -> None:
    class Fails(Clipped):
        def __call__(self, rows: Tensor, secrets: Secrets, /) -> Tensor:
            raise ValueError("out of tune")

        def claims(self) -> tuple[Gaussian | PerRecord, ...]:
            return (Gaussian(1.0, bound=1.0),)

    class NotANumber(Fails):
        def __call__(self, rows: Tensor, secrets: Secrets, /) -> Tensor:
            return rows * math.nan

        def claims(self) -> tuple[Gaussian | PerRecord, ...]:
            return super().claims()

    for defense, said in ((Fails(), "out of tune"), (NotANumber(), "NaN")):
        found = audited(defense, draws=400)
        assert found.verdict == "not covered"
        assert said in found.gaps[0]


def test_noise_from_elsewhere_is_told_and_no_pass() -> None:
    class Elsewhere(Clipped):
        def noisy(self, rows: Tensor, secrets: Secrets) -> Tensor:
            return rows + self.sigma * torch.randn(rows.shape)

    found = audited(Elsewhere(), draws=800)
    assert found.verdict == "not covered"
    assert any("not repeatable" in line for claim in found.claims for line in claim.why)

    class OfLabels(LaplaceResidue):
        """Private enough, and from entropy: a repeated step is a second release."""

        def __call__(self, gradient: Tensor, secrets: Secrets, /) -> Tensor:
            return gradient + torch.distributions.Laplace(0.0, 10.0 / len(gradient)).sample(gradient.shape)

        def claims(self) -> tuple[PureDP, ...]:
            return (PureDP(1.0),)

    found = audited(OfLabels(epsilon=1.0), draws=800)
    assert [claim.verdict for claim in found.claims] == ["not covered"]
    assert "not repeatable" in found.claims[0].why[0]
    assert "not repeatable" in found.gaps[0]


def test_what_cannot_be_copied_is_a_gap_and_no_pass() -> None:
    class Holds(Clipped):
        def __init__(self) -> None:
            self.lock = threading.Lock()

    found = audited(Holds(), draws=400)
    assert found.verdict == "not covered"
    assert "cannot be copied" in found.gaps[0]


def test_what_the_audit_cannot_make_is_named() -> None:
    class OfIndex(Clipped):
        """Wants what no party has."""

        def noisy(self, rows: Tensor, secrets: Secrets) -> Tensor:
            rate: float = secrets.exchange_rate  # type: ignore[attr-defined]
            return super().noisy(rows, secrets) * rate

    found = audited(OfIndex(), draws=400)
    assert found.verdict == "not covered"
    assert "exchange_rate" in found.gaps[0]
    # Rows of a record whose label is a number are not made.
    numbers = audited(RecordGaussian(mu=1.0, label_range=(0.0, 5.0)), draws=400, classes=None)
    assert numbers.verdict == "not covered"
    assert "labels are numbers" in numbers.gaps[0]


# --- more than two classes

of_rows = pytest.mark.slow(reason="rows of three pairs of classes")


@pytest.mark.parametrize(
    ("make", "settings"),
    [
        pytest.param(partial(RecordGaussian, mu=0.8), {"width": 2}, marks=of_rows),
        pytest.param(partial(RecordGaussian, mu=0.8, per="run"), {"width": 4, "epochs": 2}, marks=of_rows),
        (partial(GaussianTargets, mu=1.0, classes=3), {"epochs": 2}),
        (partial(RandomisedResponse, epsilon=1.0, classes=3), {"epochs": 2}),
    ],
)
def test_true_claims_of_three_classes_are_proven(make: Callable[[], Defense], settings: dict[str, Any]) -> None:
    found = audited(make(), classes=3, draws=1600, **settings)
    assert found.verdict == "proven", found
    assert not found.gaps
    (claim,) = found.claims
    assert claim.bound is not None
    assert claim.claimed is not None
    assert 0.4 * claim.claimed < claim.bound <= claim.claimed  # of 1600 draws half are judged


class SparesOneClass(RecordGaussian):
    """Sends rows of its last class as they are."""

    def __call__(self, gradient: Tensor, secrets: Secrets, /) -> Tensor:
        spared = (secrets.labels == self.spared)[:, None]
        return torch.where(spared, gradient, super().__call__(gradient, secrets))

    spared = 3

    def claims(self) -> tuple[GaussianDP, ...]:
        return super().claims()


@pytest.mark.parametrize("spared", [pytest.param(0, marks=longer), 3])
def test_the_worst_pair_of_classes_is_looked_for(spared: int) -> None:
    defense = SparesOneClass(mu=0.8)
    defense.spared = spared
    found = audited(defense, classes=4, width=3, draws=400)
    assert found.verdict == "violated"
    assert f"class {spared}" in found.claims[0].inputs


@pytest.mark.slow(reason="audits of rows of classes")
def test_a_users_noise_on_the_rows_of_classes_is_audited() -> None:
    class OnLogits:
        """Noise for a change of one label, which moves a row of softmax less a label by √2, over the batch's size."""

        name = "on-logits"
        crossing = "gradient"
        mu, times = 1.0, 1.0

        def claims(self) -> tuple[GaussianDP, ...]:
            return (GaussianDP(self.mu),)

        def __call__(self, gradient: Tensor, secrets: Secrets, /) -> Tensor:
            return secrets.add_normal(gradient, self.times * math.sqrt(2.0) / self.mu / len(gradient))

    true, halved = OnLogits(), OnLogits()
    halved.times = 0.5
    found = audited(true, classes=3, draws=1600)
    assert found.verdict == "not refuted"
    assert found.claims[0].bound is not None
    assert found.claims[0].bound > 0.5
    assert audited(halved, classes=3, draws=1600).verdict == "violated"


def test_pairs_of_classes_are_all_tried_or_meet_in_a_chain() -> None:
    assert list(label_pairs(4)) == [(0, 1), (0, 2), (0, 3), (1, 2), (1, 3), (2, 3)]
    many = list(label_pairs(30))
    assert {label for pair in many for label in pair} == set(range(30))
    assert len(many) == len(set(many)) == 29 + 28


def test_the_first_and_the_last_pair_are_told_apart_at_every_prediction() -> None:
    tried = list(paired_predictions(4, (0.1, 0.5, 0.9)))
    assert tried[:6] == [(*pair, 0.5) for pair in label_pairs(4)]
    assert tried[6:] == [(0, 1, 0.1), (0, 1, 0.9), (2, 3, 0.1), (2, 3, 0.9)]
    assert list(paired_predictions(2, (0.1,))) == [(0, 1, 0.5), (0, 1, 0.1)]


def test_rows_of_classes_are_those_of_their_cross_entropy() -> None:
    prediction = torch.tensor([0.2, 0.7], dtype=torch.float64)
    probabilities = class_probabilities(4, (1, 3), prediction)
    assert torch.allclose(probabilities.sum(dim=1), torch.ones(2, dtype=torch.float64))
    rows, under = class_rows(probabilities, torch.tensor([1, 3]), 4)
    # Softmax less the label, over two records; columns are those of the classes, as the top is the identity.
    by_hand = (probabilities - torch.eye(4, dtype=torch.float64)[[1, 3]]) / 2
    assert torch.allclose(rows.double(), by_hand, atol=1e-6)
    assert under is not None
    other = (probabilities - torch.eye(4, dtype=torch.float64)[[2, 2]]) / 2
    assert torch.allclose(under.under(2.0), other, atol=1e-6)


def test_a_claim_given_beside_is_put_to_the_test() -> None:
    found = audited(GaussianIR(clip=1.0, sigma=2.0), claims=(Gaussian(2.0, bound=0.3),), draws=4000)
    assert found.verdict == "violated"


def test_what_is_no_claim_is_refused() -> None:
    class Wrong(Clipped):
        def claims(self) -> Any:
            return "private"

    with pytest.raises(HookError, match="claims"):
        audited(Wrong())


def test_as_json_is_what_was_found() -> None:
    found = audited(GaussianTargets(mu=1.0), draws=800).as_json()
    assert found["verdict"] == "proven"
    (claim,) = found["claims"]
    assert claim["claimed"] == 1.0
    assert claim["calculated"] == pytest.approx(1.0)
    assert claim["measured"] <= claim["refutable"]
    assert set(claim["event"]) >= {"hits", "draws"}


def test_a_norm_is_checked_in_every_message() -> None:
    (norm, nothing) = audited(ClipGradient(bound=2.0), draws=400).claims
    assert (norm.quantity, norm.claimed, nothing.verdict) == ("norm", 2.0, "no claim")

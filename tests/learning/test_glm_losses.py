"""Losses of generalised linear models: values against scipy, constants against a search over a grid."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pytest
import torch
from scipy import special, stats
from torch import Tensor

from splitvfl.errors import ArgumentError, ConfigError, DataError, PrivacyError
from splitvfl.learning.glm_losses import LOSS_NAMES, GLMLoss, glm_loss

Numbers = npt.NDArray[np.float64]

BOTH = np.array([-1.0, 1.0])


class Case(NamedTuple):
    """A loss, written once more with scipy, and where it is tried.

    Attributes:
        name: Its name.
        settings: What its constructor is given.
        loss: The loss of logits and labels.
        mean: What is predicted.
        logits: Smallest and largest logit.
        labels: Labels that are tried; the first and the last are the extremes.
        q: Q.
        k: k_y.
        tight: Which of L, β_θ and β_y are attained: where the rest are suprema of larger ranges.
    """

    name: str
    settings: dict[str, float]
    loss: Callable[[Numbers, Numbers], Numbers]
    mean: Callable[[Numbers], Numbers]
    logits: tuple[float, float]
    labels: Numbers
    q: float
    k: float
    tight: tuple[bool, bool, bool] = (True, True, True)


def huber(c: float) -> Callable[[Numbers, Numbers], Numbers]:
    return lambda t, y: special.huber(c, t - y)


def gamma(a: float) -> Callable[[Numbers, Numbers], Numbers]:
    # Mean −1/t and variance a · mean².
    return lambda t, y: -stats.gamma.logpdf(y, a=1 / a, scale=-a / t)


def itself(t: Numbers) -> Numbers:
    return t


CASES = [
    Case(
        "logistic",
        {},
        lambda t, y: np.logaddexp(0, -y * t),
        special.expit,
        (-3, 3),
        BOTH,
        3,
        1,
        # L is that of unbounded logits.
        tight=(False, True, True),
    ),
    *(Case("l2-svm", {}, lambda t, y: np.maximum(0, 1 - y * t) ** 2, itself, (-q, q), BOTH, q, 1) for q in (0.4, 1, 3)),
    Case("least-squares", {}, lambda t, y: (y - t) ** 2, itself, (-2, 2), np.linspace(-5, 5, 21), 2, 5),
    *(
        Case(
            "poisson",
            {},
            lambda t, y: -stats.poisson.logpmf(y, np.exp(t)),
            np.exp,
            (-q, q),
            np.arange(k + 1.0),
            q,
            k,
        )
        for q, k in ((1, 6), (2, 3))  # k_y − e^−Q is the larger of the two, then e^Q
    ),
    *(
        Case(
            "gamma",
            {"dispersion": a, "logit_margin": 0.2},
            gamma(a),
            lambda t: -1 / t,
            (-4, -0.2),
            np.linspace(1e-9, k, 31),
            4,
            k,
        )
        for a, k in ((1.0, 3), (0.5, 3), (2.0, 9))  # 1 / t_min is the larger of the two, then k_y − 1/Q
    ),
    *(
        Case(
            "normal",
            {"dispersion": a},
            lambda t, y, a=a: -stats.norm.logpdf(y, t, math.sqrt(a)),  # type: ignore[misc]
            itself,
            (-2, 2),
            np.linspace(-3, 3, 13),
            2,
            3,
        )
        for a in (1.0, 0.25, 4.0)
    ),
    Case("huber", {}, huber(1.0), itself, (-2, 2), np.linspace(-3, 3, 601), 2, 3),
    Case("huber", {"threshold": 2.5}, huber(2.5), itself, (-2, 2), np.linspace(-3, 3, 601), 2, 3),
    # So large a threshold that it is never reached.
    Case("huber", {"threshold": 9}, huber(9), itself, (-2, 2), np.linspace(-3, 3, 601), 2, 3, (False, True, True)),
]
each_case = pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.name} {case.settings} {case.q} {case.k}")


def made(case: Case, **more: Any) -> GLMLoss:
    return glm_loss(case.name, **case.settings, **more)  # type: ignore[arg-type]


def grid(case: Case) -> tuple[Numbers, Numbers]:
    t, y = np.meshgrid(np.linspace(*case.logits, 301), case.labels, indexing="ij")
    return t, y


def slope(case: Case, t: Numbers, y: Numbers, step: float = 1e-6) -> Numbers:
    """Return a central difference of scipy's loss: an error of about 1e-16 / 1e-6 · |loss| plus 1e-12 · |loss'''|."""
    return np.asarray((case.loss(t + step, y) - case.loss(t - step, y)) / (2 * step))


def tensor(numbers: Numbers) -> Tensor:
    return torch.from_numpy(np.ascontiguousarray(numbers)).flatten()


def test_every_loss_is_tried() -> None:
    assert {case.name for case in CASES} == set(LOSS_NAMES)


@each_case
def test_losses_and_means_are_those_of_scipy(case: Case) -> None:
    t, y = grid(case)
    loss = made(case)

    np.testing.assert_allclose(loss.record_loss(tensor(t), tensor(y)), case.loss(t, y).ravel(), rtol=1e-10, atol=1e-10)
    np.testing.assert_allclose(loss.inverse_link(tensor(t)), case.mean(t).ravel(), rtol=1e-12)


@each_case
def test_the_derivative_is_that_of_the_loss(case: Case) -> None:
    t, y = grid(case)
    inner = t[1:-1], y[1:-1]  # where the loss is known on both sides
    logits = tensor(inner[0]).requires_grad_()
    loss = made(case)

    loss.record_loss(logits, tensor(inner[1])).sum().backward()

    found = loss.derivative(logits.detach(), tensor(inner[1]))
    np.testing.assert_allclose(found, slope(case, *inner).ravel(), rtol=1e-5, atol=1e-6)
    assert logits.grad is not None
    # One is a formula, the other autograd's of another: rounding apart.
    np.testing.assert_allclose(logits.grad, found, rtol=1e-10, atol=1e-12)


@each_case
def test_constants_are_what_a_search_finds(case: Case) -> None:
    t, y = grid(case)
    h = slope(case, t, y)
    # Largest changes between neighbours: along a line, no longer distance has a larger quotient.
    along_t = np.abs(np.diff(h, axis=0) / np.diff(t, axis=0)).max()
    along_y = np.abs(np.diff(h, axis=1) / np.diff(y, axis=1)).max()
    searched = np.array([np.abs(h).max(), along_t, along_y])

    found = made(case).constants(case.q, case.k)

    stated = np.array(found[:3])
    # A central difference is off by 1e-6, which quotients of grid steps of .01 make 1e-4.
    assert (searched <= stated * (1 + 1e-3)).all(), (searched, stated)
    # And nothing smaller would do, up to the distance between two points of the grid.
    attained = np.array(case.tight)
    np.testing.assert_array_less(0.93 * stated[attained], searched[attained])
    assert h.max() - h.min() == pytest.approx(found.span, rel=1e-5)


def test_constants_of_the_specification() -> None:
    """Of all logits and labels within a bound, computed by hand."""
    assert glm_loss("logistic").constants(1.0)[:3] == (1.0, 0.25, 0.5)
    assert glm_loss("logistic").constants(1.0).span == pytest.approx(1.462, abs=5e-4)
    assert glm_loss("least-squares").constants(2.0, 3.0)[:3] == (10.0, 2.0, 2.0)
    assert glm_loss("l2-svm").constants(2.0)[:3] == (6.0, 2.0, 3.0)
    assert glm_loss("gamma", logit_margin=0.5, dispersion=2.0).constants(4.0, 8.0)[:3] == (3.875, 2.0, 0.5)
    assert glm_loss("poisson").constants(math.log(2), 5.0)[:3] == pytest.approx((4.5, 2.0, 1.0))


@each_case
def test_beyond_the_clip_a_loss_goes_on_along_its_tangent(case: Case) -> None:
    clip, labels = 0.75 * case.q, tensor(np.repeat(case.labels, 4))
    out = tensor(np.tile([-2.0, -1.0, 1.0, 2.0], len(case.labels))) * case.q
    loss, plain = made(case, logit_clip=clip), made(case)
    edge = loss.clipped(out)
    assert edge.abs().max().item() <= clip
    logits = out.clone().requires_grad_()

    beyond = loss.record_loss(logits, labels)
    beyond.sum().backward()

    expected = plain.record_loss(edge, labels) + plain.derivative(edge, labels) * (out - edge)
    torch.testing.assert_close(beyond.detach(), expected)
    torch.testing.assert_close(logits.grad, plain.derivative(edge, labels))
    torch.testing.assert_close(loss.derivative(out, labels), plain.derivative(edge, labels))
    torch.testing.assert_close(loss.inverse_link(out), plain.inverse_link(edge))
    assert loss.constants(math.inf, case.k) == plain.constants(clip, case.k)
    assert loss.constants(clip / 2 + 0.1, case.k) == plain.constants(min(clip, clip / 2 + 0.1), case.k)


@pytest.mark.parametrize("name", ["least-squares", "poisson", "gamma", "normal", "huber"])
def test_labels_are_clipped_before_the_loss(name: Any) -> None:
    t = torch.tensor([-0.5, -1.0, -0.5], dtype=torch.float64)
    y, clipped = torch.tensor([1.0, 3.0, 7.0]), torch.tensor([1.0, 2.0, 2.0])
    loss, plain = glm_loss(name, target_clip=2.0), glm_loss(name)

    assert torch.equal(loss.record_loss(t, y), plain.record_loss(t, clipped))
    assert torch.equal(loss.derivative(t, y), plain.derivative(t, clipped))
    assert loss.constants(1.0) == plain.constants(1.0, 2.0)


@pytest.mark.parametrize("name", ["logistic", "l2-svm"])
def test_a_binary_task_has_0_and_1_where_the_loss_has_signs(name: Any) -> None:
    loss = glm_loss(name)
    outputs, labels = torch.tensor([[0.3], [-0.8]], dtype=torch.float64), torch.tensor([0.0, 1.0])

    expected = loss.record_loss(outputs.squeeze(1), torch.tensor([-1.0, 1.0])).mean()

    assert torch.equal(loss(outputs, labels), expected)
    loss.check(labels)
    with pytest.raises(
        DataError, match=r"takes labels −1 and \+1, got 0 in record 0 .* 0 more such; labels 0 and 1: take"
    ):
        loss.check_labels(labels)
    with pytest.raises(DataError, match=r"takes labels −1 and \+1, got -3 in record 0"):
        loss.check(torch.tensor([-1.0, 1.0]))


@pytest.mark.parametrize(
    ("name", "labels", "complaint"),
    [
        ("poisson", [0.0, -1.0, -2.0], r"takes counts: 0, 1, 2 …, got -1 in record 1 \(from 0\) and 1 more"),
        ("poisson", [1.5], "got 1.5 in record 0"),
        ("poisson", [math.inf], "got inf"),
        ("gamma", [1.0, 0.0], "takes labels above 0, got 0 in record 1"),
        ("gamma", [math.nan], "got nan"),
        ("normal", [math.nan], "takes finite labels, got nan"),
        ("huber", [math.inf], "takes finite labels, got inf"),
        ("least-squares", [-math.inf], "takes finite labels, got -inf"),
        ("logistic", [math.nan], "got nan"),
    ],
)
def test_labels_outside_the_domain_are_refused(name: Any, labels: list[float], complaint: str) -> None:
    with pytest.raises(DataError, match=complaint):
        glm_loss(name).check_labels(torch.tensor(labels))


@pytest.mark.parametrize(("name", "labels"), [("poisson", [0.0, 7.0]), ("gamma", [1e-6, 3.5]), ("normal", [-3.0, 0.0])])
def test_labels_in_the_domain_are_taken(name: Any, labels: list[float]) -> None:
    loss, own = glm_loss(name), torch.tensor(labels)
    loss.check(own)
    assert math.isfinite(loss(torch.full((2, 1), -0.5), own).mean().item())


def test_gamma_has_no_mean_at_logits_from_0() -> None:
    outputs, labels = torch.tensor([[-1.0], [0.0], [2.0]]), torch.ones(3)
    with pytest.raises(
        ConfigError, match=r"logits below 0.*; 2 of 3 are not, up to 2: begin with init: zero.*divide labels by their"
    ):
        glm_loss("gamma")(outputs, labels)
    with pytest.raises(ConfigError, match="logits below 0"):
        glm_loss("gamma").scores(outputs)
    assert glm_loss("gamma", logit_margin=0.25).scores(outputs).tolist() == [1.0, 4.0, 4.0]


@pytest.mark.parametrize(
    ("name", "missing"),
    [
        ("least-squares", "set logit_clip and target_clip"),
        ("normal", "set logit_clip and target_clip"),
        ("poisson", "set logit_clip and target_clip"),
        ("gamma", "set logit_margin and target_clip"),
        ("l2-svm", "set logit_clip$"),
    ],
)
def test_a_claim_needs_bounds_and_the_loss_says_which(name: Any, missing: str) -> None:
    with pytest.raises(PrivacyError, match=f"the {name} loss has no bounds here.*{missing}"):
        glm_loss(name).bounded_constants()


def test_a_bound_that_is_there_is_not_asked_for() -> None:
    with pytest.raises(PrivacyError, match=r"set target_clip$"):
        glm_loss("poisson").bounded_constants(2.0)
    with pytest.raises(PrivacyError, match=r"set logit_margin$"):
        glm_loss("gamma", target_clip=3.0).bounded_constants(2.0)
    with pytest.raises(PrivacyError, match=r"set logit_clip$"):
        glm_loss("normal").bounded_constants(target_bound=3.0)
    assert glm_loss("poisson", target_clip=4.0).bounded_constants(2.0) == glm_loss("poisson").constants(2.0, 4.0)
    for name in ("logistic", "huber"):
        assert all(map(math.isfinite, glm_loss(name).bounded_constants()))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("name", "settings", "complaint"),
    [
        ("cauchy", {}, "loss must be one of logistic, least-squares, .*, got 'cauchy'"),
        ("poisson", {"dispersion": 2.0}, "the poisson loss takes no dispersion, but target_clip and logit_clip"),
        ("logistic", {"target_clip": 2.0}, "the logistic loss takes no target_clip"),
        ("normal", {"dispersion": 0.0}, "expected dispersion above 0 and finite, got 0.0"),
        ("huber", {"threshold": math.inf}, "expected threshold above 0 and finite, got inf"),
        ("huber", {"target_clip": -1.0}, "expected target_clip above 0"),
        ("l2-svm", {"logit_clip": math.nan}, "expected logit_clip above 0"),
        ("gamma", {"logit_margin": 2.0, "logit_clip": 1.0}, "expected logit_margin below logit_clip, got 2 and 1"),
    ],
)
def test_bad_settings_are_refused(name: Any, settings: dict[str, float], complaint: str) -> None:
    with pytest.raises(ArgumentError, match=complaint):
        glm_loss(name, **settings)


def test_bad_bounds_are_refused() -> None:
    with pytest.raises(ArgumentError, match=r"expected bounds above 0, got 0\.0 for logits"):
        glm_loss("logistic").constants(0.0)
    with pytest.raises(ArgumentError, match=r"logits above logit_margin, 0\.5, got 0\.25"):
        glm_loss("gamma", logit_margin=0.5).constants(0.25, 1.0)

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from splitvfl.errors import ArgumentError
from splitvfl.privacy import HdpTraining, hdp_sensitivity, tight_hdp_sensitivity

Floats = npt.NDArray[np.float64]

ONE_BATCH: dict[str, Any] = {"steps": 10, "epochs": 10, "batch_size": 455, "eta": 0.1, "k": 1.0, "lipschitz": 1.0}
LOGISTIC: dict[str, Any] = {"beta_theta": 0.25, "beta_y": 0.5, "k_y": 1.0}


def test_values_of_the_specification() -> None:
    assert round(hdp_sensitivity("passive", **ONE_BATCH), 3) == 6.345
    assert round(tight_hdp_sensitivity("passive", **ONE_BATCH), 3) == 6.333
    assert round(hdp_sensitivity("active", **ONE_BATCH, **(LOGISTIC | {"beta_y": 1.1})), 3) == 8.542
    assert round(hdp_sensitivity("active", **ONE_BATCH, **LOGISTIC), 3) == 4.747
    assert round(tight_hdp_sensitivity("active", **ONE_BATCH, **LOGISTIC, step=1 + math.tanh(0.5)), 3) == 4.625


def test_published_formulas_term_by_term() -> None:
    setting: dict[str, Any] = {"steps": 12, "epochs": 3, "batch_size": 4, "eta": 0.5, "k": 2.0, "lipschitz": 3.0}

    # 4 · 9 · 9 · 12 · 1/4 / 4 = 243; 8 · 2 · 3 · 9 · 1/2 / 4 = 54; 4 · 4 · 3 = 48.
    assert hdp_sensitivity("passive", **setting) == pytest.approx(math.sqrt(243 + 54 + 48), rel=1e-15)
    # q = 1/4 · 2 + 1/2 · 5 = 3: 243 / 16; 8 · 3 · 1/4 · 3 · 9 · 1/2 / 4 = 20.25; 4 · 9 · 3 = 108.
    active = hdp_sensitivity("active", **setting, beta_theta=0.25, beta_y=0.5, k_y=5.0)
    assert active == pytest.approx(math.sqrt(243 / 16 + 20.25 + 108), rel=1e-15)


# The recursion, at every place that a record can have.


def slow_tight(
    sizes: list[int], epochs: int, *, shrinking: float, push: float, slope: float, step: float, after: int
) -> float:
    """The recursion by hand, at each of the places that the changed record can have in all epochs."""
    largest, each = 0.0, len(sizes)
    for places in itertools.product(range(each), repeat=epochs):
        used = {epoch * each + place for epoch, place in enumerate(places)}
        apart = total = 0.0
        for number in range(after):
            size = sizes[number % each]
            total += (size - 1) * (slope * apart) ** 2 + ((number in used) * step + slope * apart) ** 2
            apart = shrinking * apart + (number in used) * push / size
        largest = max(largest, total)
    return math.sqrt(largest)


@settings(max_examples=150, deadline=None)
@given(
    each=st.integers(1, 4),
    epochs=st.integers(1, 4),
    batch=st.tuples(st.integers(1, 7), st.integers(1, 7)).map(sorted),
    eta=st.floats(0.01, 0.5),
    decay=st.floats(0.0, 2.0),
    proximal=st.sampled_from([0.0, 0.3, 2.0]),
    norm=st.floats(0.5, 2.0),
    lipschitz=st.floats(0.1, 2.0),
    data=st.data(),
)
def test_it_is_the_largest_over_all_places_in_all_epochs(
    each: int,
    epochs: int,
    batch: list[int],
    eta: float,
    decay: float,
    proximal: float,
    norm: float,
    lipschitz: float,
    data: st.DataObject,
) -> None:
    last, size = batch
    after = data.draw(st.integers(0, each * epochs))
    training: dict[str, Any] = {"steps": each * epochs, "epochs": epochs, "batch_size": size, "eta": eta}
    training |= {"lipschitz": lipschitz, "k": 1e6, "weight_decay": decay, "proximal_l2": proximal}  # no ball in reach

    found = tight_hdp_sensitivity("passive", **training, row_norm=norm, last_batch=last, step=0.7, after=after)

    shrinking = (1 - eta * decay) / (1 + eta * proximal)
    slow = slow_tight(
        [size] * (each - 1) + [last],
        epochs,
        shrinking=shrinking,
        push=2 * eta * lipschitz * norm,
        slope=norm,
        step=0.7,
        after=after,
    )
    assert found == pytest.approx(slow, rel=1e-12)


def test_where_weights_decay_the_worst_place_is_not_the_same_in_every_epoch() -> None:
    training: dict[str, Any] = {"steps": 8, "epochs": 2, "batch_size": 1, "eta": 0.5, "k": 1e6, "lipschitz": 1.0}

    found = tight_hdp_sensitivity("passive", **training, weight_decay=1.8, step=5.0)

    # Late in the first epoch and first in the second: .1 of a push would be left of it after another step.
    same = max(_sum_at([place, 4 + place], steps=8, shrinking=0.1, push=1.0, step=5.0) for place in range(4))
    assert found == pytest.approx(math.sqrt(_sum_at([3, 4], steps=8, shrinking=0.1, push=1.0, step=5.0)), rel=1e-12)
    assert found > 1.02 * math.sqrt(same)


def test_noise_that_changes_weighs_every_step_by_its_own() -> None:
    training = HdpTraining(
        party="passive", steps_per_epoch=3, batch_size=2, eta=0.5, k=9.0, lipschitz=1.0, weight_decay=0.8, step=1.5
    )
    factors = np.random.default_rng(0).uniform(0.0, 3.0, 8)

    found = training.weighted_sensitivity(factors)

    slow = 0.0
    for places in itertools.product(range(3), range(3), range(2)):
        apart = total = 0.0
        for number, factor in enumerate(factors):
            used = number % 3 == places[number // 3]
            total += factor * (apart**2 + (used * 1.5 + apart) ** 2)
            apart = 0.6 * apart + used * 0.5
        slow = max(slow, total)
    assert found == pytest.approx(math.sqrt(slow), rel=1e-12)
    assert training.weighted_sensitivity([4.0] * 8) == pytest.approx(2.0 * training.sensitivity(8), rel=1e-12)


@pytest.mark.parametrize("k", [9.0, 0.1])
def test_whole_epochs_in_any_order_of_asking_are_what_they_are_step_by_step(k: float) -> None:
    training = HdpTraining(
        party="passive", steps_per_epoch=3, batch_size=4, last_batch=2, eta=0.5, k=k, lipschitz=1.0, weight_decay=0.3
    )
    for epochs in (4, 1, 0, 7, 2):
        # Factors that are not quite alike are counted one by one.
        apart = np.where(np.arange(3 * epochs) == 0, np.nextafter(1.0, 2.0), 1.0)
        assert training.sensitivity(3 * epochs) == pytest.approx(training.weighted_sensitivity(apart), rel=1e-12)


def test_one_label_moves_a_logistic_derivative_by_one() -> None:
    training: dict[str, Any] = {"party": "active", "steps_per_epoch": 1, "batch_size": 1, "eta": 1e-9, "k": 1.0}

    label = HdpTraining(**training, **LOGISTIC, lipschitz=1.0, changed="label")

    # The specification: one release differs by exactly 1, and so μ = √E / σ where steps are small.
    assert label.sensitivity(16) == pytest.approx(4.0, rel=1e-6)


def _sum_at(used: list[int], *, steps: int, shrinking: float, push: float, step: float) -> float:
    apart = total = 0.0
    for number in range(steps):
        total += ((number in used) * step + apart) ** 2
        apart = shrinking * apart + (number in used) * push
    return total


def training_arguments() -> st.SearchStrategy[dict[str, Any]]:
    return st.fixed_dictionaries(
        {
            "epochs": st.integers(1, 30),
            "each": st.integers(1, 40),
            "batch_size": st.integers(1, 1000),
            "eta": st.floats(1e-4, 3.0),  # the largest for a decay of .2 is 3.07
            "k": st.floats(0.01, 10.0),
            "lipschitz": st.floats(0.01, 10.0),
        }
    )


@settings(max_examples=100, deadline=None)
@given(training=training_arguments(), decay=st.floats(0.0, 0.2), step=st.none() | st.floats(0.01, 30.0))
def test_it_is_never_above_the_published_one(training: dict[str, Any], decay: float, step: float | None) -> None:
    training["steps"] = training["epochs"] * training.pop("each")
    for party, loss in (("passive", {}), ("active", LOGISTIC)):
        tight = tight_hdp_sensitivity(party, **training, **loss, weight_decay=decay, step=step)  # type: ignore[arg-type]

        assert tight <= hdp_sensitivity(party, **training, **loss) * (1 + 1e-12)  # type: ignore[arg-type]


@settings(max_examples=50, deadline=None)
@given(training=training_arguments(), decay=st.floats(0.0, 0.2))
def test_what_is_spent_never_falls_and_ends_with_the_whole(training: dict[str, Any], decay: float) -> None:
    steps = training["epochs"] * training.pop("each")
    training |= {"steps": steps, "weight_decay": decay}
    moments = sorted({0, 1, steps // 3, steps // 2, steps - 1, steps})

    spent = [tight_hdp_sensitivity("passive", **training, after=moment) for moment in moments]

    assert spent[0] == 0.0
    assert all(later >= earlier * (1 - 1e-12) for earlier, later in itertools.pairwise(spent))
    assert spent[-1] == tight_hdp_sensitivity("passive", **training)


def test_the_ball_bounds_how_far_weights_can_be_apart() -> None:
    # Each use pushes the weights 16 apart where the ball has a diameter of 2: without it, Δ is six times as large.
    training: dict[str, Any] = {"steps": 3, "epochs": 3, "batch_size": 1, "eta": 8.0, "k": 1.0, "lipschitz": 1.0}

    assert tight_hdp_sensitivity("passive", **training) == pytest.approx(math.sqrt(2**2 + 4**2 + 4**2), rel=1e-12)


# The algorithm itself, on neighbouring data.


def project(weights: Floats, radius: float) -> Floats:
    return weights * min(1.0, radius / max(float(np.linalg.norm(weights)), 1e-300))


def shrink(weights: Floats, by: float) -> Floats:
    return np.sign(weights) * np.maximum(np.abs(weights) - by, 0.0)


def passive_messages(rows: Floats, received: list[Floats], order: list[Floats], start: Floats, **how: float) -> Floats:
    """All that a passive party sends before noise, given the derivatives that it receives."""
    weights, sent = start, []
    for batch, derivatives in zip(order, received, strict=True):
        records = rows[batch.astype(int)]
        sent.append(records @ weights)
        weights = optimised(weights, derivatives @ records / len(batch), **how)
    return np.concatenate(sent)


def optimised(weights: Floats, gradient: Floats, *, eta: float, decay: float, l1: float, l2: float, k: float) -> Floats:
    moved = weights - eta * (gradient + decay * weights)
    return project(shrink(moved, eta * l1) / (1 + eta * l2), k)


def active_messages(
    rows: Floats,
    labels: Floats,
    received: list[Floats],
    order: list[Floats],
    start: Floats,
    derivative: Callable[[Floats, Floats], Floats],
    **how: float,
) -> Floats:
    """All derivatives that the active party sends before noise, given the parts of logits that it receives."""
    weights, sent = start, []
    for batch, parts in zip(order, received, strict=True):
        picked = batch.astype(int)
        records = rows[picked]
        sent.append(derivative(records @ weights + parts, labels[picked]))
        weights = optimised(weights, sent[-1] @ records / len(batch), **how)
    return np.concatenate(sent)


def orders(draw: np.random.Generator, records: int, batch: int, epochs: int) -> list[Floats]:
    """Batches of all epochs, each in an order of its own, with the changed record in all."""
    each = []
    for _ in range(epochs):
        order = draw.permutation(records).astype(float)
        each += [order[start : start + batch] for start in range(0, records, batch)]
    return each


def within(draw: np.random.Generator, shape: tuple[int, int], radius: float) -> Floats:
    rows = draw.normal(size=shape)
    return radius * rows / np.linalg.norm(rows, axis=1, keepdims=True)


SETTINGS = [
    {"eta": 0.1, "decay": 0.0, "l1": 0.0, "l2": 0.0, "k": 1.0},
    {"eta": 0.9, "decay": 0.5, "l1": 0.0, "l2": 0.0, "k": 1.0},
    {"eta": 0.9, "decay": 0.0, "l1": 0.1, "l2": 0.4, "k": 0.5},
    {"eta": 0.5, "decay": 0.0, "l1": 0.0, "l2": 0.0, "k": 5.0},
]


def hill_climbed(realised: Callable[[Floats], float], start: Floats, draw: np.random.Generator, tries: int) -> float:
    """Return the largest value found by small changes that are kept where they help."""
    place, best, width = start, realised(start), 0.5
    for _ in range(tries):
        other = place + width * draw.normal(size=start.shape) * (draw.random(start.shape) < 0.3)
        value = realised(other)
        place, best, width = (other, value, width * 1.1) if value > best else (place, best, max(width * 0.97, 0.02))
    return best


@pytest.mark.parametrize("how", SETTINGS)
@pytest.mark.parametrize(("records", "batch"), [(4, 4), (6, 2), (5, 2)])
@pytest.mark.parametrize("norm", [1.0, 1.5])
def test_no_search_finds_more_at_the_passive_party(
    how: dict[str, float], records: int, batch: int, norm: float
) -> None:
    epochs, dims, bound, draw = 3, 2, 0.8, np.random.default_rng(records + batch)
    order = orders(draw, records, batch, epochs)
    used = records * epochs

    def realised(place: Floats) -> float:
        rows = np.stack([project(row, norm) for row in place[: records * dims].reshape(records, dims)])
        rest = place[records * dims :]
        neighbour = rows.copy()
        neighbour[0] = project(rest[:dims], norm)
        start, flat = project(rest[dims : 2 * dims], how["k"]), np.clip(rest[2 * dims :], -bound, bound)
        received = np.split(flat, np.cumsum([len(each) for each in order])[:-1])
        messages = (passive_messages(data, received, order, start, **how) for data in (rows, neighbour))
        return float(np.linalg.norm(np.subtract(*messages)))

    first = within(draw, (records, dims), norm)
    start = np.concatenate([first.ravel(), -first[0], how["k"] * first[0], draw.choice([-1.0, 1.0], used)])
    found = hill_climbed(realised, start, draw, tries=50)

    each = math.ceil(records / batch)
    training: dict[str, Any] = {"steps": each * epochs, "epochs": epochs, "eta": how["eta"], "k": how["k"]}
    tight = tight_hdp_sensitivity(
        "passive",
        **training,
        batch_size=batch,
        last_batch=records % batch or batch,
        lipschitz=bound,
        weight_decay=how["decay"],
        proximal_l2=how["l2"],
        row_norm=norm,
    )
    assert 0.25 * tight < found <= tight * (1 + 1e-12)
    if norm == 1.0 and records % batch == 0:
        assert found <= hdp_sensitivity("passive", **training, batch_size=batch, lipschitz=bound)


def logistic(logits: Floats, labels: Floats) -> Floats:
    return -labels / (1 + np.exp(labels * logits))


def squared_hinge(logits: Floats, labels: Floats) -> Floats:
    return -2 * labels * np.maximum(0.0, 1 - labels * logits)


def huber(logits: Floats, labels: Floats) -> Floats:
    return np.clip(logits - labels, -0.7, 0.7)


def constants(loss: Callable[[Floats, Floats], Floats], reach: float) -> dict[str, float]:
    """L, β_θ and β_y of a loss where logits are at most ``reach``, from a table of their own."""
    if loss is logistic:
        return {"lipschitz": 1.0, "beta_theta": 0.25, "beta_y": 0.5}
    if loss is squared_hinge:
        return {"lipschitz": 2 * (1 + reach), "beta_theta": 2.0, "beta_y": max(2.0, 1 + reach)}
    return {"lipschitz": 0.7, "beta_theta": 1.0, "beta_y": 1.0}


@pytest.mark.parametrize("how", SETTINGS)
@pytest.mark.parametrize("loss", [logistic, squared_hinge, huber])
@pytest.mark.parametrize(("records", "batch"), [(4, 4), (6, 2)])
@pytest.mark.parametrize("changed", ["row", "label"])
def test_no_search_finds_more_at_the_active_party(
    how: dict[str, float], loss: Callable[[Floats, Floats], Floats], records: int, batch: int, changed: Any
) -> None:
    epochs, dims, draw = 3, 2, np.random.default_rng(records)
    order = orders(draw, records, batch, epochs)
    table = constants(loss, reach=2 * how["k"])
    how = how | {"eta": min(how["eta"], 2 / (table["beta_theta"] + 2 * how["decay"]))}
    labels = draw.choice([-1.0, 1.0], records)

    def realised(place: Floats) -> float:
        rows = np.stack([project(row, 1.0) for row in place[: records * dims].reshape(records, dims)])
        rest = place[records * dims :]
        others, other_labels = rows.copy(), labels.copy()
        other_labels[0] = -labels[0]
        if changed == "row":
            others[0] = project(rest[:dims], 1.0)
        start, flat = project(rest[dims : 2 * dims], how["k"]), np.clip(rest[2 * dims :], -how["k"], how["k"])
        received = np.split(flat, np.cumsum([len(each) for each in order])[:-1])
        worlds = ((rows, labels), (others, other_labels))
        messages = (active_messages(*world, received, order, start, loss, **how) for world in worlds)
        return float(np.linalg.norm(np.subtract(*messages)))

    first = within(draw, (records, dims), 1.0)
    start = np.concatenate([first.ravel(), -first[0], 0.1 * first[0], 0.1 * draw.normal(size=records * epochs)])
    found = hill_climbed(realised, start, draw, tries=100)

    training: dict[str, Any] = {"batch_size": batch, "eta": how["eta"], "k": how["k"], "k_y": 1.0} | table
    exact = {"step": 1 + math.tanh(how["k"] / 2)} if loss is logistic else {}
    decay = {"weight_decay": how["decay"], "proximal_l2": how["l2"]}
    each = records // batch
    tight = HdpTraining(
        party="active", steps_per_epoch=each, changed=changed, **training, **exact, **decay
    ).sensitivity(each * epochs)
    assert 0.25 * tight < found <= tight * (1 + 1e-12)
    assert tight <= hdp_sensitivity("active", steps=each * epochs, epochs=epochs, **training)


def test_without_the_receivers_clip_the_lemma_does_not_hold() -> None:
    """The specification's example: one column, rows of 1, the changed one −1; 17.2 realised against 6.61 proven."""
    training: dict[str, Any] = {"steps": 40, "epochs": 10, "batch_size": 64, "eta": 0.1, "k": 1.0, "lipschitz": 1.0}
    lemma = hdp_sensitivity("passive", **training)
    active = hdp_sensitivity("active", **training, **(LOGISTIC | {"beta_y": 1.1}))
    sigma = math.sqrt(2 * math.log(1.25 / 0.01)) * active / 0.01

    unclipped, clipped = _realised_without_and_with_clip(sigma)

    # The specification's 17.2 and .84 are one training's each, of other draws.
    assert round(lemma, 2) == 6.61
    assert max(unclipped) > 17.2
    assert np.mean(np.array(unclipped) > lemma) > 0.3
    assert min(clipped) < 0.84
    assert max(clipped) < 0.2 * lemma


def _realised_without_and_with_clip(sigma: float) -> list[list[float]]:
    draw = np.random.default_rng(0)
    rows = np.ones((256, 1))
    neighbour = rows.copy()
    neighbour[0] = -1.0
    found: list[list[float]] = [[], []]
    for _ in range(30):
        order = orders(draw, 256, 64, 10)
        sent = [draw.uniform(-1, 1, 64) + sigma * draw.normal(size=64) for _ in order]
        for place, received in enumerate((sent, [np.clip(each, -1.0, 1.0) for each in sent])):
            how = {"eta": 0.1, "decay": 0.0, "l1": 0.0, "l2": 0.0, "k": 1.0}
            messages = (passive_messages(data, received, order, np.zeros(1), **how) for data in (rows, neighbour))
            found[place].append(float(np.linalg.norm(np.subtract(*messages))))
    return found


# Arguments.


@pytest.mark.parametrize(
    ("party", "change", "message"),
    [
        ("owner", {}, "party must be 'passive' or 'active'"),
        ("active", {"beta_y": None}, "needs beta_theta, beta_y and k_y: got 0.25, None and 1.0"),
        ("active", {"eta": 8.1}, "a learning rate of at most 8, got 8.1"),
        ("passive", {"epochs": 11}, "expected .* 11"),
        ("passive", {"epochs": 0}, "epochs must be a whole number"),
        ("passive", {"batch_size": 0}, "batch_size must be a whole number"),
        ("passive", {"k": 0.0}, "k must be finite and above 0"),
        ("passive", {"lipschitz": math.inf}, "lipschitz must be finite"),
        ("active", {"beta_theta": -1.0}, "beta_theta must be finite and above 0"),
    ],
)
def test_arguments_outside_their_range_are_refused(party: Any, change: dict[str, Any], message: str) -> None:
    for sensitivity in (hdp_sensitivity, tight_hdp_sensitivity):
        with pytest.raises(ArgumentError, match=message):
            sensitivity(party, **(ONE_BATCH | LOGISTIC | change))


@pytest.mark.parametrize(
    ("party", "change", "message"),
    [
        ("active", {"weight_decay": 0.5, "eta": 1.7}, r"at most 1\.6, got 1.7"),
        ("active", {"row_norm": 2.0, "eta": 2.01}, "at most 2, got 2.01"),
        ("passive", {"weight_decay": 0.5, "eta": 2.01}, r"at most 2, got 2.01: .*\(1 / weight_decay\)"),
        ("passive", {"weight_decay": -0.5}, "weight_decay must be finite and at least 0"),
        ("passive", {"proximal_l2": math.nan}, "proximal_l2 must be finite and at least 0"),
        ("passive", {"row_norm": 0.0}, "row_norm must be finite and above 0"),
        ("passive", {"step": 0.0}, "step must be finite and above 0"),
        ("passive", {"steps": 15}, "expected a multiple of the 10 epochs, got 15"),
        ("passive", {"last_batch": 500}, "last_batch must be at most the batch size, 455, got 500"),
        ("passive", {"after": 11}, "after must be a whole number of steps from 0 to 10, got 11"),
        ("passive", {"after": -1}, "after must be"),
    ],
)
def test_the_tight_one_refuses_its_own_wrong_arguments(party: Any, change: dict[str, Any], message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        tight_hdp_sensitivity(party, **(ONE_BATCH | LOGISTIC | change))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"changed": "label"}, "'label' at the active party, got 'label' at the passive party"),
        ({"changed": "column"}, "changed must be 'row'"),
        ({"steps_per_epoch": 0}, "steps_per_epoch must be a whole number"),
    ],
)
def test_a_training_refuses_its_own_wrong_settings(change: dict[str, Any], message: str) -> None:
    setting: dict[str, Any] = {"party": "passive", "steps_per_epoch": 2, "batch_size": 3, "eta": 0.1}

    with pytest.raises(ArgumentError, match=message):
        HdpTraining(**(setting | {"k": 1.0, "lipschitz": 1.0} | change))


@pytest.mark.parametrize("factors", [[-1.0], [math.nan], [[1.0]]])
def test_factors_that_are_none_are_refused(factors: Any) -> None:
    training = HdpTraining(party="passive", steps_per_epoch=2, batch_size=3, eta=0.1, k=1.0, lipschitz=1.0)

    with pytest.raises(ArgumentError, match="expected one finite factor"):
        training.weighted_sensitivity(factors)


def test_the_largest_rate_itself_is_taken() -> None:
    for party, own, largest in (("active", ONE_BATCH | LOGISTIC, 1.6), ("passive", ONE_BATCH, 2.0)):
        assert tight_hdp_sensitivity(party, **(own | {"eta": largest}), weight_decay=0.5) > 0  # type: ignore[arg-type]
        with pytest.raises(ArgumentError, match=f"{largest:g}"):
            tight_hdp_sensitivity(party, **(own | {"eta": 1.001 * largest}), weight_decay=0.5)  # type: ignore[arg-type]


@pytest.mark.parametrize("steps", [0, 1, 2, 3, 4, 5, 7, 9])
@pytest.mark.parametrize("k", [1.0, 0.05])
def test_weights_are_as_far_apart_as_the_worst_place_of_the_record_takes_them(steps: int, k: float) -> None:
    settings = {"eta": 0.3, "k": k, "lipschitz": 0.8, "weight_decay": 0.4, "proximal_l2": 0.2, "row_norm": 1.5}
    training = HdpTraining(party="passive", steps_per_epoch=3, batch_size=8, last_batch=5, **settings)  # type: ignore[arg-type]
    farthest = 0.0
    for places in itertools.product(range(3), repeat=3):
        apart = 0.0
        for step in range(steps):
            size = 5 if step % 3 == 2 else 8
            pushed = 2 * 0.3 * 0.8 * 1.5 / size if places[step // 3] == step % 3 else 0.0
            apart = min(2 * k, apart * (1 - 0.3 * 0.4) / (1 + 0.3 * 0.2) + pushed)
        farthest = max(farthest, apart)
    assert training.moved(steps) == pytest.approx(1.5 * farthest)

"""What is said to be solvable is what attacks solve, in plain arithmetic without keys."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from itertools import chain, product

import numpy as np
import pytest
import torch
from sklearn.metrics import roc_auc_score

from splitvfl.attacks import recover_labels, solve_residues
from splitvfl.errors import ArgumentError
from splitvfl.learning.batches import Batches
from splitvfl.learning.losses import Approximation
from splitvfl.models import gradient_scale, sigmoid_coefficients
from splitvfl.privacy import (
    Solvable,
    SummedTraining,
    epochs_to_stack,
    largest_first_batch,
    packed_labels,
    prevention,
    records_met,
    sign_attack_horizon,
    sign_success,
    solvable_labels,
    sparse_labels,
    stacked_equations,
    unknowns_for_success,
)

RATE = 0.3


@dataclass
class Run:
    """A partner's view of every step of plain gradient descent, with the labels for comparison."""

    features: np.ndarray
    labels: np.ndarray
    batches: list[list[np.ndarray]]
    gradients: list[list[np.ndarray]]
    logits: list[list[np.ndarray]]
    horizon: float


def simulated(
    training: SummedTraining, features: int, *, approximation: Approximation = "taylor", own: int = 2, seed: int = 0
) -> Run:
    """Train from zero weights; the label owner has ``own`` features, and with any an intercept."""
    generator = np.random.default_rng(seed)
    n = training.records
    x = generator.normal(size=(n, features + own)) / 4
    if own:
        x = np.column_stack([x, np.ones(n)])
    y = np.where(generator.random(n) < 0.5, 1.0, -1.0)
    theta, scale = np.zeros(x.shape[1]), gradient_scale(approximation)
    order = Batches(n, training.batch_size, seed=seed, drop_last=training.drop_last)
    run = Run(x[:, :features], y, [], [], [], 0.0)
    radius = float(np.linalg.norm(x, axis=1).max())
    run.horizon = sign_attack_horizon(RATE, 0.0, approximation=approximation, radius=radius)
    for epoch in range(training.epochs):
        rows = [batch.numpy() for batch in order.epoch(epoch)]
        run.batches.append(rows)
        run.gradients.append([])
        run.logits.append([])
        for batch in rows:
            z = x[batch] @ theta
            f = sigmoid_coefficients(torch.from_numpy(z), torch.from_numpy(y[batch]), approximation=approximation)
            residues = f.numpy() / scale
            run.gradients[-1].append(x[batch, :features].T @ residues)
            run.logits[-1].append(z)
            theta = theta - RATE * x[batch].T @ residues / len(batch)
    return run


def right_by_signs(run: Run, steps: float) -> set[int]:
    """Return the records whose label follows from an exactly solved residue of the first steps."""
    found: set[int] = set()
    for step, (rows, gradient) in enumerate(zip(chain(*run.batches), chain(*run.gradients), strict=True)):
        if step >= steps:
            break
        try:
            f = solve_residues(torch.from_numpy(run.features[rows]), torch.from_numpy(gradient))
        except ArgumentError:
            continue
        assert np.array_equal(-np.sign(f.numpy()), run.labels[rows])
        found.update(rows.tolist())
    return found


def stacked(run: Run, epochs: int, approximation: Approximation = "taylor") -> tuple[int, np.ndarray]:
    """Return rank and smallest solution of all equations about labels, for a partner that knows all logits."""
    left, right = [], []
    ones, scale = torch.ones(1, dtype=torch.float64), gradient_scale(approximation)
    for rows, gradients, logits in zip(run.batches[:epochs], run.gradients, run.logits, strict=False):
        for batch, gradient, z in zip(rows, gradients, logits, strict=True):
            # f / c = S(z) - (1 + y) / 2, of which S(z) is known.
            known = [
                float(sigmoid_coefficients(one * value, -one, approximation=approximation) / scale)
                for one, value in zip([ones] * len(z), z, strict=True)
            ]
            block = np.zeros((run.features.shape[1], len(run.labels)))
            block[:, batch] = run.features[batch].T
            left.append(block)
            right.append(2 * (run.features[batch].T @ np.array(known) - gradient) - block[:, batch].sum(axis=1))
    matrix = np.concatenate(left)
    solution, _, rank, _ = np.linalg.lstsq(matrix, np.concatenate(right), rcond=1e-9)
    return int(rank), solution


def found_by(run: list[Solvable], computation: str) -> Solvable | None:
    return next((one for one in run if one.computation == computation), None)


GRID = [
    (records, size, features, drop_last)
    for records, size, features in product((37, 60), (4, 7, 12, 30, 37), (1, 5, 8))
    for drop_last in (False, True)
]


@pytest.mark.parametrize(("records", "size", "features", "drop_last"), GRID)
def test_the_equations_of_a_run_have_the_rank_that_is_said(
    records: int, size: int, features: int, drop_last: bool
) -> None:
    for epochs in (1, 2, 5):
        training = SummedTraining(records, size, epochs, drop_last)
        x = np.random.default_rng(0).normal(size=(records, features))
        blocks = []
        for epoch in range(epochs):
            for rows in Batches(records, size, seed=1, drop_last=drop_last).epoch(epoch):
                block = np.zeros((features, records))
                block[:, rows.numpy()] = x[rows.numpy()].T
                blocks.append(block)
        rank, last = np.linalg.matrix_rank(np.concatenate(blocks)), records % size
        drawn = last > 0 and (drop_last or last <= features)  # the same records may be drawn again
        assert stacked_equations(training, features) == (pytest.approx(rank, abs=3) if drawn and epochs > 1 else rank)


@pytest.mark.parametrize("approximation", ["taylor", "minimax", "piecewise", "exact"])
@pytest.mark.parametrize(("records", "size", "features"), [(41, 6, 6), (41, 7, 6), (40, 10, 9), (40, 5, 12)])
def test_batch_equations_give_the_labels_that_are_said_and_no_others(
    approximation: Approximation, records: int, size: int, features: int
) -> None:
    training = SummedTraining(records, size, 3)
    run = simulated(training, features, approximation=approximation)
    told = solvable_labels("lab", features, training, horizon=run.horizon, zero_start=True)
    found = found_by(told, "batch equations")
    right = right_by_signs(run, run.horizon)
    if size <= features:
        assert found is not None
        assert found.exact
        assert len(right) == found.records == min(records, int(min(run.horizon, 100)) * size)
        assert len(right_by_signs(run, 1)) == size
    elif records % size:
        # The last batch of an epoch alone has as few records as there are features.
        assert found is not None
        assert (found.batch_size, found.residues) == (records % size, round(found.of * (1 - (1 - 6 / 41) ** 3)))
        assert len(right) <= 3 * (records % size)
        assert bool(right) == (found.records > 0)
    else:
        assert found is None
        assert not right


def test_of_last_batches_the_expected_number_of_records_is_said() -> None:
    training = SummedTraining(46, 10, 8)
    (found,) = [
        one
        for one in solvable_labels("lab", 6, training, horizon=math.inf, zero_start=False)
        if one.computation == "batch equations"
    ]
    counts = [
        len({row for epoch in range(8) for row in Batches(46, 10, seed=seed).epoch(epoch)[-1].tolist()})
        for seed in range(300)
    ]
    assert found.records == pytest.approx(np.mean(counts), abs=1)


@pytest.mark.parametrize(("records", "size", "features"), [(60, 12, 5), (48, 12, 3), (50, 20, 4), (30, 30, 5)])
def test_epochs_stack_exactly_when_it_is_said(records: int, size: int, features: int) -> None:
    needed = epochs_to_stack(SummedTraining(records, size, 1), features)
    if needed is None:
        run = simulated(SummedTraining(records, size, 20), features, own=0)
        rank, solution = stacked(run, 20)
        assert rank == features
        assert np.mean(np.sign(solution) == run.labels) < 0.9
        return
    run = simulated(SummedTraining(records, size, needed), features, own=0)
    for epochs in (needed, needed - 1):
        rank, solution = stacked(run, epochs)
        told = solvable_labels(
            "lab", features, SummedTraining(records, size, epochs), horizon=0, zero_start=False, known_logits=True
        )
        found = found_by(told, "stacked epochs")
        assert (found is not None) == (rank == records) == bool(np.abs(solution - run.labels).max() < 1e-6)
        assert found is None or (found.exact and found.records == records and found.epochs == needed)


@pytest.mark.parametrize("features", [1, 2, 4, 10])
def test_the_first_batch_is_solved_at_the_size_that_is_said(features: int) -> None:
    size = largest_first_batch(features)
    run = simulated(SummedTraining(size + 10, size, 1), features)
    training = SummedTraining(size + 10, size, 1)
    told = found_by(solvable_labels("lab", features, training, horizon=1, zero_start=True), "first batch")
    assert told is not None
    assert told.records == size
    rows, gradient = run.batches[0][0], run.gradients[0][0]
    # Residues after zero weights are -y / 2.
    x = torch.from_numpy(run.features[rows])
    assert np.array_equal(recover_labels(x, torch.from_numpy(-2 * gradient)).numpy(), run.labels[rows])
    assert found_by(solvable_labels("lab", features, training, horizon=1, zero_start=False), "first batch") is None
    larger = SummedTraining(size + 10, size + 1, 1)
    assert found_by(solvable_labels("lab", features, larger, horizon=1, zero_start=True), "first batch") is None


@pytest.mark.parametrize("drop_last", [False, True])
@pytest.mark.parametrize(
    ("records", "size", "features", "epochs"), [(455, 8, 10, 1), (455, 8, 10, 5), (90, 4, 2, 1), (90, 30, 1, 2)]
)
def test_the_change_is_the_smallest_that_prevents_it(
    records: int, size: int, features: int, epochs: int, drop_last: bool
) -> None:
    def prevents(batch: int, used: int) -> bool:
        training = SummedTraining(records, batch, used, drop_last)
        exact = [one for one in solvable_labels("lab", features, training, horizon=0, zero_start=True) if one.exact]
        return not exact and sign_success(stacked_equations(training, features), records) <= 0.6

    found = prevention(SummedTraining(records, size, epochs, drop_last), features, zero_start=True)
    larger = (batch for batch in range(size + 1, records + 1) if prevents(batch, epochs))
    fewer = (used for used in range(epochs, 0, -1) if prevents(size, used))
    assert (found.batch_size, found.epochs) == (next(larger, None), next(fewer, None))


@pytest.mark.parametrize(
    ("records", "size", "features", "epochs"),
    [(600, 8, 10, 1), pytest.param(600, 30, 2, 20, marks=pytest.mark.slow(reason="twenty epochs"))],
)
def test_with_the_change_the_attacks_fail(records: int, size: int, features: int, epochs: int) -> None:
    training = SummedTraining(records, size, epochs)
    before = simulated(training, features, own=0)
    assert np.mean(np.sign(stacked(before, epochs)[1]) == before.labels) > 0.99
    needed = prevention(training, features).batch_size
    assert needed is not None
    changed = SummedTraining(records, needed, epochs)
    after = [simulated(changed, features, own=0, seed=seed) for seed in range(3)]
    assert not any(right_by_signs(run, math.inf) for run in after)
    assert np.mean([np.sign(stacked(run, epochs)[1]) == run.labels for run in after]) < 0.63
    assert solvable_labels("lab", features, changed, horizon=math.inf, zero_start=False) == []


@pytest.mark.slow(reason="sixty epochs")
def test_with_fewer_epochs_stacking_fails() -> None:
    training = SummedTraining(600, 150, 60)
    allowed = prevention(training, 3).epochs
    assert allowed is not None
    assert 1 <= allowed < 60
    run = simulated(SummedTraining(600, 150, 60), 3, own=0)
    shares = [np.mean(np.sign(stacked(run, epochs)[1]) == run.labels) for epochs in (allowed, 60)]
    assert shares[0] < 0.65
    assert shares[1] > 0.85


@pytest.mark.parametrize(("equations", "unknowns"), [(10, 40), (30, 100), (5, 300)])
def test_a_sign_of_the_smallest_solution_is_right_as_often_as_said(equations: int, unknowns: int) -> None:
    generator = np.random.default_rng(0)
    right = []
    for _ in range(200):
        x, y = generator.normal(size=(equations, unknowns)), np.where(generator.random(unknowns) < 0.5, 1.0, -1.0)
        right.append(np.mean(np.sign(np.linalg.pinv(x) @ (x @ y)) == y))
    said = sign_success(equations, unknowns)
    assert np.mean(right) == pytest.approx(said, abs=0.02)
    assert unknowns_for_success(said, equations) == pytest.approx(unknowns)


def test_the_leak_auc_is_that_of_known_records_among_guessed_ones() -> None:
    training = SummedTraining(400, 10, 1)
    (found,) = solvable_labels("lab", 10, training, horizon=10, zero_start=False)
    labels = np.tile([0, 1], 200)
    known = np.arange(400) < found.records
    assert found.records == 100
    assert found.leak_auc == pytest.approx(roc_auc_score(labels, np.where(known, 2 * labels - 1, 0)))


@pytest.mark.parametrize("labels", ["randomised", "noisy"])
def test_other_than_true_labels_reveal_none(labels: str) -> None:
    training = SummedTraining(40, 4, 1)
    (true,) = solvable_labels("lab", 4, training, horizon=math.inf, zero_start=False)
    (other,) = solvable_labels("lab", 4, training, horizon=math.inf, zero_start=False, labels=labels)  # type: ignore[arg-type]
    assert true.reveals_labels
    assert true.leak_auc == 1.0
    assert not other.reveals_labels
    assert other.leak_auc == 0.5


def test_without_a_horizon_residues_are_solved_and_labels_are_not_said_to_be() -> None:
    (found,) = solvable_labels("lab", 4, SummedTraining(40, 4, 1), horizon=0, zero_start=False)
    assert (found.solves, found.records, found.residues) == ("residues", 0, 40)
    assert not found.reveals_labels


@pytest.mark.parametrize(
    ("records", "size", "epochs", "features", "horizon"),
    [
        (0, 1, 1, 3, 1),
        (40, 41, 1, 3, 1),
        (40, 4, 0, 3, 1),
        (40, 4, 1, 0, 1),
        (40, 4, 1, 3, -1),
        (40, 4, 1, 3, math.nan),
    ],
)
def test_arguments_out_of_range_are_refused(
    records: int, size: int, epochs: int, features: int, horizon: float
) -> None:
    def asked() -> list[Solvable]:
        training = SummedTraining(records, size, epochs)
        return solvable_labels("lab", features, training, horizon=horizon, zero_start=False)

    with pytest.raises(ArgumentError):
        asked()


@pytest.mark.parametrize(("used", "features"), [(1, 2), (2, 3), (3, 4), (2, 2), (3, 3)])
def test_sparse_residues_are_determined_by_more_equations_than_are_not_zero(used: int, features: int) -> None:
    """By trying every set of records: one alone solves the equations, exactly where that is said."""
    random, sent = np.random.default_rng(4), 7
    columns = random.normal(size=(sent, features))
    residues = np.zeros(sent)
    residues[:used] = random.normal(size=used)
    sums = columns.T @ residues
    solving = 0
    for chosen in itertools.combinations(range(sent), used):
        solution, *_ = np.linalg.lstsq(columns[list(chosen)].T, sums, rcond=None)
        solving += np.allclose(columns[list(chosen)].T @ solution, sums)
    found = sparse_labels("lab", features, SummedTraining(70, 10, 3), used=used)
    assert (solving == 1) == (found is not None)
    assert found is None or (found.leak_auc, found.reveals_labels) == (0.5, False), "a search need not end"


@pytest.mark.parametrize(("shown", "epochs"), [(2, 1), (2, 5), (10, 1), (0, 3)])
def test_as_many_records_are_met_as_orders_show(shown: int, epochs: int) -> None:
    random, records, size = np.random.default_rng(5), 200, 10
    met = []
    for _ in range(200):
        seen: set[int] = set()
        for _ in range(epochs):
            batches = random.permutation(records).reshape(-1, size)
            seen |= set(batches[:, :shown].ravel().tolist())
        met.append(len(seen))
    assert records_met(SummedTraining(records, size, epochs), shown) == pytest.approx(np.mean(met), abs=2)


def test_who_deviates_reads_what_its_claim_returns_and_no_run_is_stopped_for_it() -> None:
    training = SummedTraining(100, 20, 2)
    found = packed_labels("lab", 3, training, claimed=50, read=lambda sums: 2 * sums)
    assert found is not None
    assert (found.equations, found.left, found.records, found.claimed) == (20, 6, 100, 50)
    assert (found.deviates, found.leak_auc) == (True, 0.5)
    text = " ".join(found.sentences())
    assert "lab can read the labels of 100 of 100 records in 2 epochs if it deviates" in text
    assert "set exchange.encryption.most_columns: 3, which is what it has: then it still reads 6 of 20." in text
    assert packed_labels("lab", 3, training, claimed=50, read=lambda sums: 0) is None
    fewest = packed_labels("lab", 3, training, claimed=3, read=lambda sums: 2 * sums)
    assert fewest is not None
    assert (fewest.records, fewest.equations) == (51, 6)
    assert "most_columns: 3," not in " ".join(fewest.sentences())


def test_of_zeros_among_residues_a_party_that_deviates_reads_no_label() -> None:
    """By drawing: which of the sent are used is not known, so that it reads any of them."""
    random, size, sent, used, read = np.random.default_rng(5), 20, 12, 6, 8
    training = SummedTraining(1000, size, 1)
    drawn = random.hypergeometric(used, sent - used, read, size=(400, training.steps)).sum(axis=1)
    found = packed_labels("lab", 8, training, claimed=8, read=lambda sums: read, used=used, sent=sent)
    assert found is not None
    assert found.records == pytest.approx(drawn.mean(), abs=3)
    every = packed_labels("lab", 8, training, claimed=8, read=lambda sums: 2 * read, used=used, sent=sent)
    assert every is not None
    assert every.records == training.steps * used
    assert "about 6 of a batch are not zero" in " ".join(found.sentences())

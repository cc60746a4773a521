"""The likelihood of labels over a run of sums whose records nobody names."""

from __future__ import annotations

import math
from statistics import NormalDist
from typing import Any

import numpy as np
import pytest
import torch

from splitvfl.attacks import SecretBatchLikelihoodAttack, secret_batch_llr
from splitvfl.defenses import MemoisedResponse
from splitvfl.errors import ArgumentError, HookError
from splitvfl.exchange.selection import SecretBatch, run_success
from splitvfl.hooks import View, call_attack
from splitvfl.learning.sigmoid_coefficients import APPROXIMATIONS
from splitvfl.models import sigmoid_coefficients
from tests.exchange.logistic import trainer_of
from tests.exchange.test_hybrid import BATCH, hybrid

EPSILON, SHARE = 1.0, 0.3


class Run:
    """Gradients as the hybrid mechanism makes them, of Gaussian columns; the weights stay as they are."""

    def __init__(
        self, records: int, columns: int, *, size: float = 1.0, approximation: Any = "exact", seed: int = 0
    ) -> None:
        self.rng = np.random.default_rng(seed)
        self.columns = self.rng.normal(size=(records, columns))
        self.logits = self.columns @ self.rng.normal(size=columns) * size / math.sqrt(columns)
        self.labels = (self.rng.random(records) < 1 / (1 + np.exp(-self.logits))).astype(float)
        self.key = self.rng.bytes(32)
        self.drawn, self.approximation = SecretBatch(EPSILON, SHARE), approximation

    def views(self, rounds: int, batch: int, targets: np.ndarray | None = None) -> list[tuple[View, np.ndarray]]:
        """What a partner sees of each round, and the records that were used in it."""
        order: list[int] = []
        found = []
        for step in range(rounds):
            if len(order) < batch:
                order = self.rng.permutation(len(self.columns)).tolist()
            rows, order = np.array(order[:batch]), order[batch:]
            draw = self.drawn.draw(self.key, step, batch, [1])
            sent, used = rows[draw.sent.numpy()], rows[draw.used.numpy()]
            found.append((self.view(sent, used, self.labels if targets is None else targets), used))
        return found

    def view(self, sent: np.ndarray, used: np.ndarray, targets: np.ndarray) -> View:
        total = self.columns[used].T @ self.residues(used, targets) / len(used)
        return View(
            party="lab",
            step=0,
            ids=torch.from_numpy(sent),
            columns=torch.from_numpy(self.columns[sent]).float(),
            aggregated_gradient=torch.from_numpy(total).float()[:, None],
            logits=torch.from_numpy(self.logits[sent]).float()[:, None],
        )

    def residues(self, rows: np.ndarray, targets: np.ndarray) -> np.ndarray:
        z = torch.from_numpy(self.logits[rows])
        if self.approximation == "exact":
            return torch.sigmoid(z).numpy() - targets[rows]
        signs = torch.from_numpy(2 * targets[rows] - 1)
        scale = 4.0 if self.approximation == "taylor" else 1.0
        return (sigmoid_coefficients(z, signs, approximation=self.approximation) / scale).numpy()


def right(scores: np.ndarray, labels: np.ndarray) -> float:
    return float(np.mean((scores > 0) == (labels == 1)))


def read(attack: SecretBatchLikelihoodAttack, views: list[tuple[View, np.ndarray]], records: int) -> np.ndarray:
    """The last score of each record, 0 of those that never came."""
    scores = np.zeros(records)
    for view, _ in views:
        scores[view.ids.numpy()] = call_attack(attack, view).numpy()
    return scores


def used_of(views: list[tuple[View, np.ndarray]]) -> np.ndarray:
    return np.unique(np.concatenate([used for _, used in views]))


@pytest.mark.parametrize("approximation", APPROXIMATIONS)
def test_where_equations_are_nearly_as_many_as_records_every_label_is_read_from_one_batch(approximation: Any) -> None:
    run = Run(60, 30, size=0.1, approximation=approximation)  # piecewise, larger logits have residues of 0
    attack = SecretBatchLikelihoodAttack(epsilon=EPSILON, share=SHARE, approximation=approximation)
    ((view, used),) = run.views(1, 60)

    scores = call_attack(attack, view).numpy()

    ids = view.ids.numpy()
    member = np.isin(ids, used)
    assert 5 < member.sum() < len(ids) < 30  # least squares finds the same; here it is found who was used, too
    assert right(scores[member], run.labels[ids[member]]) == 1.0
    # Of who was not used nothing is said: the two labels make the same sum.
    assert np.abs(scores[~member]).max() < 1e-6 < 5 < np.abs(scores[member]).min()


def test_more_records_than_equations_are_solved_for_too() -> None:
    run, hits = Run(100, 25), []
    for view, used in run.views(10, 100):
        scores = call_attack(SecretBatchLikelihoodAttack(epsilon=EPSILON, share=SHARE), view).numpy()
        member = np.isin(view.ids.numpy(), used)
        assert len(scores) > 25
        hits.append(right(scores[member], run.labels[view.ids.numpy()[member]]))
    # .992 in the mean of 100, with a deviation of .028.
    assert np.mean(hits) > 0.95


def test_one_large_batch_tells_as_much_as_the_closed_form_says() -> None:
    """Where the others' sum is Gaussian, who is used need not be known: Φ(√(d / k)) is the success on its members."""
    run, hits = Run(4000, 20, size=0.0), []
    for view, used in run.views(12, 1400):
        known = 1 / (1 + math.exp(-EPSILON)) * SHARE
        scores = secret_batch_llr(
            view.columns,
            view.aggregated_gradient[:, 0],
            torch.sigmoid(view.logits[:, 0]),
            used=known / (known + (1 - SHARE) * (1 - 1 / (1 + math.exp(-EPSILON)))),
        ).numpy()
        member = np.isin(view.ids.numpy(), used)
        hits += ((scores > 0) == (run.labels[view.ids.numpy()] == 1))[member].tolist()
    expected = NormalDist().cdf(math.sqrt(20 / (1400 * SHARE / (1 + math.exp(-EPSILON)))))
    # Three standard errors of as many signs, which are nearly independent.
    assert abs(np.mean(hits) - expected) < 3 * math.sqrt(expected * (1 - expected) / len(hits))


@pytest.mark.slow(reason="a hundred steps on a hundred records each")
def test_over_a_run_labels_are_read_that_no_batch_tells() -> None:
    run = Run(300, 10)
    views = run.views(100, 100)
    first = call_attack(SecretBatchLikelihoodAttack(epsilon=EPSILON, share=SHARE), views[0][0]).numpy()
    member = np.isin(views[0][0].ids.numpy(), views[0][1])
    alone = right(first[member], run.labels[views[0][0].ids.numpy()[member]])

    scores = read(SecretBatchLikelihoodAttack(epsilon=EPSILON, share=SHARE), views, 300)

    used = used_of(views)
    # .77 and .95 in the mean of 8 runs, with deviations of .10 and .02.
    assert alone < 0.9
    assert right(scores[used], run.labels[used]) > 0.9


def test_over_a_run_of_large_batches_it_tells_as_much_as_the_closed_form_says() -> None:
    run = Run(900, 6, size=0.0)
    views = run.views(30, 900)
    scores = read(SecretBatchLikelihoodAttack(epsilon=EPSILON, share=SHARE), views, 900)
    used, sent = run.drawn.expected_used(900), run.drawn.expected_sent(900)
    expected = run_success(30, size=900, used=used, sent=sent, columns=6)
    assert 0.6 < expected < 0.7
    # Three standard errors of the signs of 900 records.
    assert abs(right(scores, run.labels) - expected) < 3 * math.sqrt(expected * (1 - expected) / 900)


def test_what_is_known_of_labels_helps_with_the_others() -> None:
    run = Run(100, 10)
    gained = []
    for view, used in run.views(10, 100):
        ids = view.ids.numpy()
        member = np.isin(ids, used)
        given = (view.columns, view.aggregated_gradient[:, 0], torch.sigmoid(view.logits[:, 0]))
        known = torch.from_numpy(np.where(np.arange(len(ids)) % 2, 6.0 * (2 * run.labels[ids] - 1), 0.0))
        blind, told = (secret_batch_llr(*given, used=0.54, log_odds=odds).numpy() for odds in (None, known))
        others = member & (np.arange(len(ids)) % 2 == 0)
        gained += [((one > 0) == (run.labels[ids] == 1))[others].mean() for one in (told,)]
        gained[-1] -= ((blind > 0) == (run.labels[ids] == 1))[others].mean()
    assert np.mean(gained) > 0.02


def test_with_memoised_labels_it_reads_the_answers_and_no_more_of_the_labels() -> None:
    run = Run(300, 20)
    defense = MemoisedResponse(epsilon=1.0)
    flip, chance = defense.flip, np.random.default_rng(5).random(300)
    answers = np.where(chance < flip, 1 - run.labels, run.labels)
    views = run.views(40, 100, targets=(answers - flip) / (1 - 2 * flip))  # as the defense corrects them

    scores = read(SecretBatchLikelihoodAttack(epsilon=EPSILON, share=SHARE, flip=flip), views, 300)

    used = used_of(views)
    assert right(scores[used], answers[used]) > 0.94  # .969 in the mean of 6, with a deviation of .009
    ceiling = 1 / (1 + math.exp(-1.0))
    # Three standard errors of so many answers above what any attack on them can get in the mean.
    assert right(scores[used], run.labels[used]) < ceiling + 3 * math.sqrt(ceiling * (1 - ceiling) / len(used))


def test_batches_of_an_epoch_are_gone_through_again_with_what_later_ones_told() -> None:
    run = Run(60, 6)
    views = run.views(8, 30)
    attack = SecretBatchLikelihoodAttack(epsilon=EPSILON, share=SHARE)
    forward = SecretBatchLikelihoodAttack(epsilon=EPSILON, share=SHARE)
    forward._end_epoch = lambda slots: None  # type: ignore[method-assign]
    equal = [torch.equal(call_attack(attack, view), call_attack(forward, view)) for view, _ in views]
    # Batches of one epoch, two here, have no record in common: of one alone nothing can be told again.
    assert equal == [True] * 4 + [False] * 4


def test_of_one_batch_it_is_the_likelihood_with_the_share_that_is_used_of_what_is_sent() -> None:
    run = Run(100, 8)
    ((view, _),) = run.views(1, 100)
    share = run.drawn.expected_used(10_000) / run.drawn.expected_sent(10_000)
    expected = secret_batch_llr(
        view.columns,
        view.aggregated_gradient[:, 0],
        torch.sigmoid(view.logits[:, 0].double()),
        used=share,
        log_odds=view.logits[:, 0],
    )
    scores = call_attack(SecretBatchLikelihoodAttack(epsilon=EPSILON, share=SHARE), view)
    assert torch.allclose(scores, expected, rtol=1e-6, atol=1e-9)


def test_rows_of_zeros_and_sums_of_nothing_decide_nothing() -> None:
    run = Run(40, 8)
    ((view, _),) = run.views(1, 40)
    columns, total, f = view.columns, view.aggregated_gradient[:, 0], torch.sigmoid(view.logits[:, 0])
    more = torch.cat([columns, torch.zeros(2, 8)])
    scores = secret_batch_llr(more, total, torch.cat([f, f[:2]]), used=0.5)
    assert scores[-2:].tolist() == [0.0, 0.0]
    nothing = view.granting(aggregated_gradient=torch.zeros(8, 1))
    assert not call_attack(SecretBatchLikelihoodAttack(epsilon=1.0, share=0.3), nothing).any()


def test_the_order_of_records_does_not_matter() -> None:
    run = Run(40, 8)
    ((view, _),) = run.views(1, 40)
    order = torch.randperm(len(view.ids), generator=torch.Generator().manual_seed(0))
    columns, total, f = view.columns, view.aggregated_gradient[:, 0], torch.sigmoid(view.logits[:, 0])
    plain = secret_batch_llr(columns, total, f, used=0.5)
    turned = secret_batch_llr(columns[order], total, f[order], used=0.5)
    assert torch.allclose(plain[order], turned, rtol=1e-6, atol=1e-9)  # sums in another order


# --- in an experiment


def test_in_an_experiment_it_reads_the_labels_of_an_encrypted_run() -> None:
    attack = SecretBatchLikelihoodAttack(epsilon=1.0, share=0.3)
    trainer = trainer_of(
        hybrid(), {"lab": 12}, approximation="exact", batch=BATCH, own=0, intercept=False, attacks=[attack]
    )
    trainer.fit(4)
    summary = trainer.leaks["lab"]["secret-batch-likelihood"].summary
    assert summary.accumulated_balanced > 0.95
    assert math.isnan(summary.zeros_found)  # a score is of the whole run


@pytest.mark.parametrize(
    ("widths", "options"),
    [({"lab": 4}, {"own": 3}), ({"lab": 4}, {"own": 0}), ({"lab": 4, "shop": 6}, {"own": 0, "intercept": False})],
    ids=["columns of the label party", "an intercept", "another passive party"],
)
def test_it_is_not_run_where_predictions_cannot_be_known(widths: dict[str, int], options: dict[str, Any]) -> None:
    attack = SecretBatchLikelihoodAttack(epsilon=1.0, share=0.3)
    trainer = trainer_of(hybrid(), widths, approximation="exact", batch=BATCH, attacks=[attack], **options)
    for party in widths:
        assert trainer.unavailable[party]["secret-batch-likelihood"] == (
            "needs the model's logits, which a party has where nobody adds to its own part of them"
        )
        assert not trainer.leaks[party]


# --- what is refused


def test_settings_out_of_range_are_refused() -> None:
    for settings in (
        {"epsilon": 0.0, "share": 0.3},
        {"epsilon": 1.0, "share": 0.5},
        {"epsilon": math.nan, "share": 0.3},
    ):
        with pytest.raises(ArgumentError, match=r"expected (epsilon|share)"):
            SecretBatchLikelihoodAttack(**settings)
    with pytest.raises(ArgumentError, match="expected flip"):
        SecretBatchLikelihoodAttack(epsilon=1.0, share=0.3, flip=0.5)
    x, f = torch.randn(4, 2), torch.full((4,), 0.5)
    with pytest.raises(ArgumentError, match=r"strictly between 0 and 1, got 1\.0"):
        secret_batch_llr(x, x[0], f, used=1.0)
    with pytest.raises(ArgumentError, match=r"expected finite predictions \(4,\), got shape \(3,\)"):
        secret_batch_llr(x, x[0], f[:3], used=0.5)
    with pytest.raises(ArgumentError, match=r"expected finite log_odds \(4,\)"):
        secret_batch_llr(x, x[0], f, used=0.5, log_odds=torch.full((4,), math.inf))


def test_wider_cuts_are_refused() -> None:
    run = Run(40, 8)
    ((view, _),) = run.views(1, 40)
    wide = view.granting(aggregated_gradient=torch.ones(8, 2))
    with pytest.raises(HookError, match="solves cuts of width 1"):
        call_attack(SecretBatchLikelihoodAttack(epsilon=1.0, share=0.3), wide)

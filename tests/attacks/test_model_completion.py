"""Model completion, on models that have learned the labels, nothing, or something else."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from sklearn.linear_model import LogisticRegression
from torch import Tensor, nn

from splitvfl.attacks import ModelCompletionAttack
from splitvfl.data.columns import Columns
from splitvfl.errors import ArgumentError
from splitvfl.hooks import View, call_attack
from splitvfl.leakage.after_training import view_after_training
from splitvfl.metrics import leak_auc
from splitvfl.models import MLP, WideDeepBottom

ROWS = 600


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def columns_of(width: int = 12) -> Tensor:
    return torch.randn(ROWS, width, generator=generator())


def labels_of(columns: Tensor) -> Tensor:
    """A rule that few records do not give away: the parity of two signs."""
    return (columns[:, 0] * columns[:, 1] > 0).float()


def view_of(bottom: nn.Module, columns: Tensor | Columns, labels: Tensor, *, known: int = 10) -> View:
    ids = 7 * torch.arange(ROWS)
    return view_after_training(
        bottom,
        columns,
        ids=ids,
        known_positives=ids[labels == 1][:known],
        known_negatives=ids[labels == 0][:known],
    )


def auc_of(scores: Tensor, labels: Tensor) -> float:
    scored = ~scores.isnan()
    return leak_auc(scores[scored], labels[scored])


def trained(build: Callable[[], nn.Module], columns: Tensor | Columns, labels: Tensor, width: int) -> nn.Module:
    """A bottom model that was trained on labels, below a linear top that is thrown away."""
    torch.manual_seed(0)
    bottom, top = build(), nn.Linear(width, 1)
    parameters = [*bottom.parameters(), *top.parameters()]
    for _ in range(300):
        for parameter in parameters:
            parameter.grad = None
        nn.functional.binary_cross_entropy_with_logits(top(bottom(columns))[:, 0], labels).backward()
        with torch.no_grad():
            for parameter in parameters:
                assert parameter.grad is not None
                parameter -= 0.5 * parameter.grad.to_dense()
    return bottom


def mlp(inputs: int = 12) -> nn.Module:
    return MLP(inputs, [32, 16], dropout=0.2)


def test_it_reads_a_model_that_has_learned_the_labels_and_not_one_that_has_not() -> None:
    columns = columns_of()
    labels = labels_of(columns)
    torch.manual_seed(0)
    knows, fresh = trained(mlp, columns, labels, 16), mlp()
    random = (torch.rand(ROWS, generator=generator(5)) < 0.5).float()
    misled = trained(mlp, columns, random, 16)

    found = [
        auc_of(call_attack(ModelCompletionAttack(), view_of(model, columns, labels)), labels)
        for model in (knows, fresh, misled)
    ]

    # The standard error of an AUC of chance over 290 records of each class is .024.
    assert found[0] > 0.9
    assert found[1] < 0.62
    assert found[2] < 0.62


def test_the_head_alone_is_logistic_regression_with_equal_classes() -> None:
    columns = columns_of(5).double()
    labels = (columns[:, 0] + 0.5 * columns[:, 1] > 0.8).float()
    view = view_of(nn.Identity(), columns, labels, known=25)
    view = view.granting(known_negatives=view.known_negatives[:8])
    known = torch.isin(view.ids, torch.cat([view.known_positives, view.known_negatives])).numpy()

    scores = call_attack(ModelCompletionAttack(steps=0, l2=0.1), view).numpy()

    scaled = ((columns - columns.mean(dim=0)) / columns.var(dim=0, correction=0).mean().sqrt()).numpy()
    # scikit-learn adds w²/2 to C times the *sum* of losses, in which balanced weights sum to the 33 records.
    oracle = LogisticRegression(C=1 / (33 * 2 * 0.1), class_weight="balanced", tol=1e-10, max_iter=1000)
    oracle.fit(scaled[known], labels.numpy()[known])
    # Both stop when the gradient is small; logits are of the order of one.
    torch.testing.assert_close(
        torch.from_numpy(scores[~known]),
        torch.from_numpy(oracle.decision_function(scaled[~known])),
        atol=1e-3,
        rtol=0,
    )


@pytest.mark.parametrize("sparse", [False, pytest.param(True, marks=pytest.mark.slow(reason="the same table, sparse"))])
def test_embeddings_are_completed_and_tuned(sparse: bool) -> None:
    codes = torch.randint(0, 30, (ROWS, 2), generator=generator(1))
    columns = Columns(columns_of(3), codes)
    labels = (codes[:, 0] % 2).float()
    build: Callable[[], nn.Module] = lambda: WideDeepBottom(  # noqa: E731
        3, [30, 30], embedding_dim=8, widths=(16, 8), sparse=sparse
    )
    bottom = trained(build, columns, labels, 8)
    view = view_of(bottom, columns, labels)
    scores = call_attack(ModelCompletionAttack(), view)
    assert auc_of(scores, labels) > 0.9
    table = view.bottom.get_parameter("embeddings.table")
    known = torch.isin(view.ids, torch.cat([view.known_positives, view.known_negatives]))
    touched = torch.zeros(60, dtype=torch.bool)
    touched[torch.cat([codes[known, 0], 30 + codes[known, 1]])] = True
    moved = (table != bottom.get_parameter("embeddings.table")).any(dim=1)
    assert moved[touched].any()
    assert not moved[~touched].any()


def test_tuning_changes_the_copy_and_never_the_partys_own_model() -> None:
    columns = columns_of()
    bottom = mlp()
    before = [parameter.clone() for parameter in bottom.parameters()]
    view = view_of(bottom, columns, labels_of(columns))
    call_attack(ModelCompletionAttack(), view)
    assert all(torch.equal(*pair) for pair in zip(before, bottom.parameters(), strict=True))
    assert not all(torch.equal(*pair) for pair in zip(before, view.bottom.parameters(), strict=True))
    assert bottom.training


def test_dropout_and_running_statistics_stay_out_of_it() -> None:
    columns = columns_of()
    bottom = nn.Sequential(mlp(), nn.BatchNorm1d(16))
    found = []
    for seed in (1, 2):
        torch.manual_seed(seed)
        view = view_of(bottom, columns, labels_of(columns))
        found.append(call_attack(ModelCompletionAttack(), view))
        assert view.bottom.get_buffer("1.num_batches_tracked") == 0
    assert torch.equal(found[0].nan_to_num(), found[1].nan_to_num())


def test_known_records_are_not_scored_and_a_single_class_scores_nobody() -> None:
    columns = columns_of()
    labels = labels_of(columns)
    view = view_of(mlp(), columns, labels, known=3)
    unscored = view.ids[call_attack(ModelCompletionAttack(), view).isnan()]
    assert set(unscored.tolist()) == {*view.known_positives.tolist(), *view.known_negatives.tolist()}
    nobody = torch.zeros(0, dtype=torch.int64)
    for missing in ("known_positives", "known_negatives"):
        assert call_attack(ModelCompletionAttack(), view.granting(**{missing: nobody})).isnan().all()


@pytest.mark.parametrize("bottom", [nn.Identity(), nn.Linear(12, 4).requires_grad_(False), nn.Threshold(1e9, 0.5)])
def test_bottoms_with_nothing_to_tune_or_nothing_to_say_are_completed(bottom: nn.Module) -> None:
    columns = columns_of()
    scores = call_attack(ModelCompletionAttack(), view_of(bottom, columns, labels_of(columns)))
    assert torch.isfinite(scores[~scores.isnan()]).all()


@pytest.mark.parametrize("settings", [{"steps": -1}, {"lr": 0.0}, {"l2": -0.1}])
def test_settings_out_of_range_are_refused(settings: dict[str, float]) -> None:
    with pytest.raises(ArgumentError, match="steps and l2 of at least 0 and lr above 0"):
        ModelCompletionAttack(**settings)  # type: ignore[arg-type]

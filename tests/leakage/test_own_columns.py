"""What a party's own columns predict."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score
from sklearn.model_selection import StratifiedKFold
from sklearn.preprocessing import StandardScaler
from torch import Tensor

from splitvfl.data.columns import Columns, Records
from splitvfl.errors import DataError
from splitvfl.leakage import own_columns
from splitvfl.leakage.own_columns import alone_aucs, first_component_auc, own_columns_auc
from splitvfl.learning import drawing


@pytest.fixture(scope="module", autouse=True)
def _few_rounds() -> None:
    """As many rounds of boosting as users have: here it is asked what columns predict."""


def columns(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def linear_labels(numeric: Tensor, noise: float = 1.0) -> Tensor:
    return (numeric[:, 0] + noise * columns(numeric.shape[0], seed=9) > 0.3).float()


def test_logistic_regression_wins_on_a_linear_rule_with_the_auc_of_a_hand_written_cross_validation() -> None:
    numeric = columns(200, 3) * torch.tensor([1.0, 100.0, 0.01])
    labels = linear_labels(numeric)
    found = own_columns_auc(Columns.of(numeric), labels, seed=4)
    x, y = numeric.numpy(), labels.numpy()
    scores = np.zeros(200)
    for fitted, held_out in StratifiedKFold(5, shuffle=True, random_state=4).split(x, y):
        scaler = StandardScaler().fit(x[fitted])
        model = LogisticRegression(max_iter=300).fit(scaler.transform(x[fitted]), y[fitted])
        scores[held_out] = model.predict_proba(scaler.transform(x[held_out]))[:, 1]
    assert found.model == "logistic regression"
    assert found.auc == pytest.approx(roc_auc_score(y, scores), abs=1e-9)  # one pair of 10⁴ would be 1e-4


def test_gradient_boosting_wins_on_a_checkerboard() -> None:
    numeric = columns(600, 2)
    found = own_columns_auc(Columns.of(numeric), (numeric[:, 0] * numeric[:, 1] > 0).float())
    assert found.model == "gradient boosting"
    assert found.auc > 0.9


def test_columns_of_noise_predict_nothing() -> None:
    """Out of fold: on the records that it was fitted on, gradient boosting would reach 1."""
    labels = (columns(600, seed=5) > 0).float()
    # Standard error of an AUC of 300 against 300: sqrt(601 / (12 · 300²)) = 0.024; the larger of two is looked at.
    assert own_columns_auc(Columns.of(columns(600, 4)), labels).auc == pytest.approx(0.5, abs=0.1)


def test_categorical_fields_count() -> None:
    codes = torch.arange(120).remainder(3)[:, None]
    labels = (codes[:, 0] == 2).float()
    assert own_columns_auc(Columns(torch.zeros(120, 0), codes), labels).auc == 1.0


def test_the_same_is_measured_once_and_whatever_differs_again(monkeypatch: pytest.MonkeyPatch) -> None:
    fits: list[int] = []
    better = own_columns._better_model

    def counted(*arguments: Any, **options: Any) -> Any:
        fits.append(1)
        return better(*arguments, **options)

    monkeypatch.setattr(own_columns, "_measured", {})
    monkeypatch.setattr(own_columns, "_better_model", counted)
    numeric, codes = columns(60, 2), torch.arange(60).remainder(3)[:, None]
    labels = linear_labels(numeric)
    first = own_columns_auc(Columns.of(numeric), labels)
    assert own_columns_auc(Columns.of(numeric.clone()), labels.clone()) is first
    flipped = torch.cat([1 - labels[:1], labels[1:]])
    for others, truth, seed in (
        (Columns.of(numeric + 1e-6), labels, 0),
        (Columns.of(numeric), flipped, 0),
        (Columns.of(numeric), labels, 1),
        (Columns(numeric, codes), labels, 0),
        (Columns.of(torch.cat([numeric, codes.float()], dim=1)), labels, 0),
    ):
        own_columns_auc(others, truth, seed=seed)
    assert len(fits) == 6


def test_the_same_seed_gives_the_same_figure_also_on_a_sample(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(drawing, "MOST_RECORDS", 100)
    numeric = columns(300, 2)
    labels = linear_labels(numeric)
    found = []
    for seed in (1, 1, 2):
        own_columns._measured.clear()
        found.append(own_columns_auc(Columns.of(numeric), labels, seed=seed))
    first, second, other = found
    assert first == second
    assert first.auc != other.auc


@pytest.mark.parametrize("positives", [0, 4])
def test_a_class_with_fewer_records_than_folds_is_refused_with_the_counts(positives: int) -> None:
    labels = torch.zeros(30)
    labels[:positives] = 1
    with pytest.raises(DataError, match=rf"\[{30 - positives}, {positives}\]"):
        own_columns_auc(Columns.of(columns(30, 2)), labels)


def test_rare_positives_are_all_kept_when_records_are_sampled() -> None:
    generator = torch.Generator().manual_seed(0)
    labels = torch.zeros(60_000)
    labels[::10_000] = 1.0  # six: a plain sample of a third would keep two, fewer than there are folds
    columns = Columns.of(torch.randn(60_000, 1, generator=generator) + 8.0 * labels.unsqueeze(1))

    assert own_columns_auc(columns, labels).auc > 0.95


def test_categories_are_no_ordered_numbers() -> None:
    """Every second of forty categories is mostly positive: no line through the codes tells."""
    codes = torch.randint(40, (4000, 1), generator=torch.Generator().manual_seed(1))
    flipped = torch.rand(4000, generator=torch.Generator().manual_seed(2)) < 0.1
    labels = (codes[:, 0] % 2 == 1).logical_xor(flipped).float()

    found = own_columns_auc(Columns(torch.zeros(4000, 0), codes.int()), labels)

    # The Bayes rule's AUC is 0.81 + 2 * 0.09 / 2 = 0.9: 10 % of each class are on the wrong side. The standard error of
    # a share of 0.9 among 2000 is 0.007; the encoding loses a little order among equals.
    assert found.auc == pytest.approx(0.9, abs=0.03)


def test_a_category_of_its_own_for_every_record_tells_nothing() -> None:
    """Encoded with the record's own label, it would tell everything."""
    labels = (columns(600, seed=5) > 0).float()
    codes = torch.arange(600)[:, None].int()

    # Standard error of an AUC of 300 against 300: 0.024; the larger of two is looked at.
    assert own_columns_auc(Columns(torch.zeros(600, 0), codes), labels).auc == pytest.approx(0.5, abs=0.1)


@pytest.mark.slow(reason="1,200 records with a field of 400 categories")
def test_a_field_of_rare_categories_does_not_drown_the_other_columns() -> None:
    """Encoded with labels of the records to fit on, it would look like the best column, and be noise on the others."""
    numeric = columns(1200, 1)
    labels = linear_labels(numeric)
    rare = torch.arange(1200)[torch.randperm(1200, generator=torch.Generator().manual_seed(3))].div(3).int()[:, None]

    alone = own_columns_auc(Columns.of(numeric), labels).auc
    together = own_columns_auc(Columns(numeric, rare), labels).auc

    # Both are of the same records; the standard error of an AUC near .75 from 1200 records is about .014.
    assert together > alone - 0.03


def test_five_records_of_a_class_are_enough_with_categories() -> None:
    labels = torch.zeros(60)
    labels[::12] = 1
    assert own_columns_auc(Columns(columns(60, 1), torch.arange(60).remainder(12)[:, None]), labels).auc > 0.9


def test_the_sample_is_drawn_alike_from_any_pieces_and_every_record_is_as_likely(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    labels = (torch.arange(3000) % 10 == 0).float()
    monkeypatch.setattr(drawing, "MOST_RECORDS", 400)
    whole = drawing.drawn_of_classes(labels, 3)
    monkeypatch.setattr(drawing, "_PIECE", 128)
    assert drawing.drawn_of_classes(labels, 3).tolist() == whole.tolist()
    assert np.bincount(labels[torch.from_numpy(whole)].long()).tolist() == [200, 200]
    drawn = np.concatenate([drawing.drawn_of_classes(labels, seed) for seed in range(300)])
    negatives = drawn[labels[torch.from_numpy(drawn)].numpy() == 0]
    # 60 000 draws over ten tenths of the table: the standard deviation of each count is below sqrt(6000); five of them.
    assert np.abs(np.histogram(negatives, 10, (0, 3000))[0] - 6000).max() < 5 * 6000**0.5


def test_only_the_sample_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(drawing, "MOST_RECORDS", 100)
    numeric = columns(3000, 2)
    labels = linear_labels(numeric)
    chosen = drawing.drawn_of_classes(labels, 0)
    poisoned = torch.full_like(numeric, torch.nan)
    poisoned[chosen] = numeric[chosen]
    assert own_columns_auc(Columns.of(poisoned), labels) == own_columns_auc(Columns.of(numeric), labels)


# --- the first principal component


def test_the_first_component_has_the_auc_of_a_hand_written_one() -> None:
    hidden = columns(300, 1)
    numeric = (hidden + 0.5 * columns(300, 4, seed=1)) * torch.tensor([1.0, 1000.0, 1e-3, -5.0]) + 7.0
    labels = (hidden[:, 0] + 0.7 * columns(300, seed=2) < 0).float()  # the sign has to be turned, or not
    x = numeric.double().numpy()
    _, _, directions = np.linalg.svd((x - x.mean(axis=0)) / x.std(axis=0), full_matrices=False)
    auc = roc_auc_score(labels.numpy(), ((x - x.mean(axis=0)) / x.std(axis=0)) @ directions[0])
    found = first_component_auc(Columns.of(numeric), labels)
    assert found == pytest.approx(max(auc, 1.0 - auc), abs=1e-9)  # one pair of 2 · 10⁴ would be 5e-5
    assert found > 0.8


def test_labels_have_no_part_in_the_first_component(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a sample with as many records of each class, the axis would lean towards a rare class that is far away."""
    monkeypatch.setattr(drawing, "MOST_RECORDS", 400)
    labels = (torch.arange(20_000) % 100 == 0).float()
    numeric = columns(20_000, 3)
    numeric[:, 1] = 0.4 * numeric[:, 0] + (1 - 0.4**2) ** 0.5 * numeric[:, 1]  # the component: the first two columns
    numeric[:, 2] += 3.0 * labels
    found = first_component_auc(Columns.of(numeric), labels, seed=1)
    # Of 200 against 200 the standard error is 0.029. The third column alone tells .98, and on a sample of equal
    # classes it has a third of all variance.
    assert found == pytest.approx(0.5, abs=0.12)


def test_categories_and_constants_are_left_out_of_the_component() -> None:
    labels = (torch.arange(120) % 2).float()
    codes = (torch.arange(120) % 2)[:, None]
    assert first_component_auc(Columns(torch.zeros(120, 0), codes), labels) is None
    assert first_component_auc(Columns.of(torch.full((120, 2), 0.1)), labels) is None
    numeric = torch.cat([labels[:, None], torch.full((120, 1), 3.0)], dim=1)
    assert first_component_auc(Columns(numeric, codes), labels) == 1.0


def test_a_component_is_not_judged_by_one_class() -> None:
    assert first_component_auc(Columns.of(columns(30, 2)), torch.ones(30)) is None


def test_the_label_partys_own_columns_alone_are_judged_on_test_records() -> None:
    generator = np.random.default_rng(3)
    labels = generator.integers(0, 2, 300)
    told, noise = labels + generator.normal(0, 1, 300), generator.normal(0, 1, 300)
    whole = torch.tensor(np.stack([told, noise], axis=1), dtype=torch.float32)
    truth = torch.tensor(labels, dtype=torch.float32)
    records = Records(torch.arange(300), Columns.of(whole), truth)
    parts = [records.rows(torch.arange(*ends)) for ends in ((0, 200), (200, 300))]

    both = alone_aucs(*parts)

    # By the definition, of a model fitted elsewhere: of every pair of test records, how many are in the right order.
    model = LogisticRegression().fit(whole[:200].numpy(), labels[:200])
    scores = model.decision_function(whole[200:].numpy())
    pairs = scores[labels[200:] == 1][:, None] > scores[labels[200:] == 0]
    assert both.keys() == {"logistic regression", "gradient boosting"}
    assert both["logistic regression"] == pytest.approx(pairs.mean(), abs=0.01), "standardised, which moves it little"
    assert both["gradient boosting"] <= 0.9, "a difference of one standard deviation is told in 76 of 100 pairs"


def test_without_columns_or_with_too_few_records_of_a_class_nothing_is_said_of_own_columns_alone() -> None:
    labels = torch.tensor([0.0, 1.0] * 10)
    own = Records(torch.arange(20), Columns.of(torch.rand(20, 2)), labels)
    empty = Records(torch.arange(20), Columns.of(torch.zeros(20, 0)), labels)
    rare = Records(torch.arange(20), Columns.of(torch.rand(20, 2)), (torch.arange(20) < 3).float())
    assert alone_aucs(own, own)
    assert not alone_aucs(empty, empty)
    assert not alone_aucs(rare, own)
    assert not alone_aucs(own, own.rows(torch.arange(0, 20, 2))), "one class among the test records"

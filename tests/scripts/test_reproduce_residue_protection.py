"""The reproduction of residue protection: many cells at once are the package's own training, and it runs."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
import torch
from scipy import stats
from sklearn.datasets import load_breast_cancer, load_digits
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score
from torch import Tensor

from scripts.reproduce.residue_protection import __main__ as reproduction
from scripts.reproduce.residue_protection import as_printed, beyond, figures, study, table_2, times, training
from scripts.reproduce.residue_protection.drawing import short
from scripts.reproduce.residue_protection.mechanisms import (
    NONE,
    Mechanism,
    additive,
    chosen,
    multiplicative,
)
from scripts.reproduce.residue_protection.published import EPSILONS, TABLE_2
from scripts.reproduce.residue_protection.study import (
    BREAST,
    CENSUS,
    CREDIT,
    DIGITS,
    FILES,
    SCALINGS,
    Problem,
    build_trainer,
    held_out,
    table_of,
)
from scripts.reproduce.residue_protection.table_2 import Table
from scripts.reproduce.residue_protection.training import Course, aucs, descend, laplace_numbers, train_cells
from scripts.reproduce.shared.claims import Claim
from scripts.reproduce.shared.settings import data_folder
from splitvfl.data.sets import DATA_FOLDER
from splitvfl.hooks import Secrets

SMALL = replace(BREAST, rows=90, batch_size=16, epochs=2)
MECHANISMS = (
    NONE,
    additive(2.0),
    multiplicative(10.0, 0.25, 0.5, "as_printed"),
    multiplicative(10.0, 0.25, 0.5, "sign_preserving"),
    multiplicative(10.0, 0.25, 0.5),
)


# Training


def given_noise(problem: Problem) -> list[Tensor]:
    """Laplace numbers for every step, of any source: float32, as the fast training has them."""
    generator = np.random.default_rng(5)
    count = len(table_of(problem, 0).train)
    sizes = [min(problem.batch_size, count - start) for start in range(0, count, problem.batch_size)] * problem.epochs
    return [torch.from_numpy(generator.laplace(size=size).astype(np.float32)) for size in sizes]


@pytest.mark.parametrize("mechanism", MECHANISMS, ids=lambda each: f"{each.kind}-{each.mode}")
def test_cells_end_with_the_weights_of_the_packages_trainer_and_defense(
    mechanism: Mechanism, monkeypatch: pytest.MonkeyPatch
) -> None:
    noise, rate = given_noise(SMALL), 0.4
    defense = mechanism.defense()
    trainer = build_trainer(SMALL, 0, rate=rate, defenses=[] if defense is None else [defense])
    left = iter(noise)
    monkeypatch.setattr(Secrets, "laplace", lambda self, *shape: next(left).double().reshape(shape))
    monkeypatch.setattr(
        Secrets,
        "add_laplace",
        lambda self, message, scale: (message + scale * next(left).double().reshape(message.shape)).to(message.dtype),
    )
    trainer.fit(SMALL.epochs)
    (expected,) = trainer.passives["passive"].bottom.parameters()

    again: Iterator[Tensor] = iter(noise)
    table = table_of(SMALL, 0)
    found = descend(
        table,
        # Not alone: columns must not mix.
        [additive(1.0), mechanism, NONE],
        torch.tensor([[1.0, rate, 1.0], [0.1, 2.0, 0.1]], dtype=torch.float64),
        batch_size=SMALL.batch_size,
        epochs=SMALL.epochs,
        seed=0,
        draw=lambda records, cells: next(again).unsqueeze(1).expand(records, cells),
    )
    # Twelve steps in float32, of sums of sixteen numbers of some units each.
    torch.testing.assert_close(found[:, 0, 1], expected[0].detach(), rtol=0, atol=2e-6)
    assert expected.abs().max() > 0.05


def test_noise_is_laplace_noise() -> None:
    drawn = laplace_numbers(torch.Generator().manual_seed(0))(20_000, 2).double().numpy()
    for column in drawn.T:
        assert stats.kstest(column, stats.laplace.cdf).pvalue > 0.01
    assert abs(np.corrcoef(drawn.T)[0, 1]) < 4 / math.sqrt(20_000)


def test_auc_is_scikit_learns_ties_included() -> None:
    generator = np.random.default_rng(0)
    logits, labels = generator.integers(0, 6, size=(200, 3)) / 4.0, generator.integers(0, 2, size=200)
    expected = [roc_auc_score(labels, column) for column in logits.T]
    found = aucs(torch.from_numpy(logits), torch.from_numpy(labels))
    assert found.tolist() == pytest.approx(expected, abs=1e-12)


def test_rate_is_the_best_on_the_held_out_tenth_and_then_all_records_are_trained_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(training, "RATES", (1e-6, 0.5))
    seen: list[int] = []

    def counted(table: study.Table, *arguments: object, **options: object) -> Tensor:
        seen.append(len(table.train))
        return descend(table, *arguments, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(training, "descend", counted)
    problem = replace(DIGITS, epochs=3)
    (cell,) = train_cells(problem.as_settings(), 0, [NONE.as_settings()])["cells"]
    table = table_of(problem, 0)
    assert seen == [len(table.train) - len(table.train) // 10, len(table.train)]
    assert cell["relative_rate"] == cell["rate"] == 0.5
    assert len(cell["auc"]) == len(cell["accuracy"]) == 3
    reference = LogisticRegression(fit_intercept=False, max_iter=2000).fit(table.train.numpy(), table.labels.numpy())
    # Both are near what these columns can tell, and neither is tuned to the other.
    assert cell["accuracy"][-1] == pytest.approx(
        reference.score(table.test.numpy(), table.test_labels.numpy()), abs=0.03
    )
    expected = roc_auc_score(table.test_labels.numpy(), reference.decision_function(table.test.numpy()))
    assert cell["auc"][-1] == pytest.approx(expected, abs=0.02)


# Mechanisms


def test_size_of_what_is_sent_by_its_formulas() -> None:
    # The middle of 20 000 intervals leaves out a little of the tail, where squares are large.
    assert additive(0.1).size == pytest.approx(math.sqrt(0.25 + 2 * 20.0**2), rel=2e-3)
    assert NONE.size == pytest.approx(0.5, abs=1e-12)
    assert multiplicative(1e-4, 1.0, 0.05).size == pytest.approx(0.05, rel=1e-3)  # nearly nothing but the bounds


def test_mean_of_what_is_sent_as_printed_has_no_sign_of_the_residue() -> None:
    for epsilon, b1, b2 in ((10.0, 0.1, 10.0), (1.0, 0.5, 1.0)):
        scale = 2 * b2 / (b1 * epsilon)
        expected = [b2 * math.exp(-b2 / (max(abs(residue), b1) * scale)) for residue in as_printed.RESIDUES]
        found = as_printed.mean_sent(multiplicative(epsilon, b1, b2, "as_printed"), as_printed.RESIDUES)
        # Probabilities of the bound are multiples of one in 20 000.
        assert found == pytest.approx(expected, abs=b2 / 20_000)


def test_bounds_without_data_keep_the_true_epsilon_and_the_grid_does_not() -> None:
    for epsilon in EPSILONS:
        assert chosen(epsilon).true_epsilon <= epsilon
    for epsilon in EPSILONS[:3]:
        assert multiplicative(epsilon, 2.0**-6, 1.0).true_epsilon > epsilon
    assert math.isinf(NONE.true_epsilon)


# Data


def test_bundled_problems_are_divided_and_scaled_by_their_training_records() -> None:
    for problem, columns, positives in ((BREAST, 30, 212), (DIGITS, 64, 906)):
        table = table_of(problem, 3)
        count = 569 if problem is BREAST else 1797
        assert len(table.train) + len(table.test) == count
        assert len(table.test) == math.ceil(count / 5)
        assert len(table.names) == table.train.shape[1] == columns
        assert float(table.labels.sum() + table.test_labels.sum()) == positives
        spread = table.train.double().std(dim=0, correction=0)
        assert table.train.double().mean(dim=0).abs().max() < 1e-6
        assert bool(torch.all(((spread - 1).abs() < 1e-6) | (spread == 0)))
        assert table.test.double().mean(dim=0).abs().max() > 0.01
        assert not torch.equal(table.test, table_of(problem, 4).test)


def test_labels_belong_to_their_columns() -> None:
    for problem, bunch in ((BREAST, load_breast_cancer()), (DIGITS, load_digits())):
        table = table_of(replace(problem, scaling="as they are"), 0)
        expected = bunch.target % 2 if problem is DIGITS else bunch.target == 0
        answers = {
            tuple(row): bool(label) for row, label in zip(bunch.data.astype(np.float32).tolist(), expected, strict=True)
        }
        for row, label in zip(table.test.tolist(), table.test_labels.tolist(), strict=True):
            assert answers[tuple(row)] == bool(label)


@pytest.mark.parametrize("scaling", SCALINGS)
def test_scalings(scaling: study.Scaling) -> None:
    table = table_of(replace(BREAST, scaling=scaling), 0)
    raw = table_of(replace(BREAST, scaling="as they are"), 0).train.double()
    expected = torch.log1p(raw) if scaling.startswith("log1p") else raw
    if scaling.endswith("standardised"):
        expected = (expected - expected.mean(dim=0)) / expected.std(dim=0, correction=0)
    elif scaling.endswith("to [0, 1]"):
        low, high = expected.min(dim=0).values, expected.max(dim=0).values
        expected = (expected - low) / (high - low)
    torch.testing.assert_close(table.train.double(), expected, rtol=1e-4, atol=1e-4)


def test_a_tenth_is_held_out_of_the_training_records() -> None:
    table, divided = table_of(BREAST, 1), held_out(table_of(BREAST, 1), 1)
    assert len(divided.test) == len(table.train) // 10
    both = torch.cat([divided.train, divided.test])
    assert sorted(both.sum(dim=1).tolist()) == sorted(table.train.sum(dim=1).tolist())


def test_a_constant_is_a_column_of_ones() -> None:
    table = table_of(replace(BREAST, constant=True), 0)
    assert table.names[-1] == "constant"
    assert bool((table.train[:, -1] == 1).all())
    assert bool((table.test[:, -1] == 1).all())


@pytest.mark.parametrize(("problem", "count", "columns"), [(CENSUS, 48_842, 81), (CREDIT, 150_000, 10)])
def test_files_of_the_user_have_the_published_sizes(problem: Problem, count: int, columns: int) -> None:
    path = data_folder() / FILES[problem.source]
    if not path.is_file():
        pytest.skip(f"there is no {path.name}")
    table = table_of(replace(problem, path=str(path)), 0)
    assert len(table.train) + len(table.test) == count
    assert len(table.names) == len(set(table.names)) == columns
    assert bool(table.train.isfinite().all())


# Table II


def test_published_figures() -> None:
    assert TABLE_2["digits"].add[2] == (0.8917, 0.9584)
    assert TABLE_2["credit"].baseline.auc - TABLE_2["credit"].add[-1].auc == pytest.approx(0.0007)
    # All figures that the table prints: 4 sets, 1 + 4 + 4 settings, 2 measures.
    printed = [figure for row in TABLE_2.values() for pair in (row.baseline, *row.add, *row.mult) for figure in pair]
    assert len(printed) == 72
    assert sum(printed) == pytest.approx(59.9803, abs=1e-9)


def course(values: tuple[float, ...], best: float = 0.0) -> Course:
    """Figures of seeds, accuracy and AUC alike, with another epoch before the last one."""
    cells = [{"auc": [best, value], "accuracy": [best, value], "relative_rate": 1.0} for value in values]
    return Course(cells)


def table_with(**figures: Course) -> Table:
    """A table of breast cancer in which everything is .2 but what is named: kind and ε, or the grid's first pair."""
    courses = dict.fromkeys([NONE], course((0.2,) * 3))
    for epsilon in EPSILONS:
        others = [additive(epsilon), table_2.printed(epsilon), chosen(epsilon), chosen(epsilon / 2)]
        others += table_2.searched(epsilon, quick=True)
        courses |= dict.fromkeys(others, course((0.2,) * 3))
    named = {
        "none": NONE,
        "add": additive(10.0),
        "printed": table_2.printed(10.0),
        "grid": table_2.searched(10.0, quick=True)[1],
        "chosen": chosen(10.0),
    }
    return Table(BREAST, {**courses, **{named[name]: found for name, found in figures.items()}}, quick=True)


def claim_of(table: Table, name: str) -> Claim:
    (found,) = [claim for claim in table_2.cell_claims(table, None) if claim.claim.endswith(f"{name}: accuracy")]
    return found


def test_a_cell_reproduces_only_when_it_is_near_and_steady() -> None:
    near, unsteady = (0.95, 0.96, 0.97), (0.6, 1.0, 1.0, 1.0, 1.0)
    assert claim_of(table_with(none=course(near)), "no noise").verdict == "reproduces"
    assert claim_of(table_with(none=course((0.9, 0.91, 0.92))), "no noise").verdict == "does not"
    by_chance = claim_of(table_with(add=course(unsteady)), "Add, ε = 10")  # published .9474
    assert by_chance.verdict == "does not"
    assert "by chance" in by_chance.why
    assert by_chance.ours == pytest.approx(0.92)


def test_variants_of_a_cell_are_named() -> None:
    best = claim_of(table_with(add=course((0.2,) * 3, best=0.95)), "Add, ε = 10")
    assert best.verdict == "only with a variant"
    assert "best epoch by test score" in best.why
    other = claim_of(table_with(grid=course((0.95,) * 3)), "Mult, ε = 10")
    assert other.verdict == "only with a variant"
    assert "Lap(1, λ)" in other.why
    assert claim_of(table_with(printed=course((0.95,) * 3)), "Mult, ε = 10").verdict == "reproduces"
    assert claim_of(table_with(), "Mult, ε = 10").verdict == "does not"


def test_variant_without_logarithms_is_that_of_the_other_table() -> None:
    plain = table_with(none=course((0.9737,) * 3))
    (found,) = [
        claim for claim in table_2.cell_claims(table_with(), plain) if claim.claim.endswith("no noise: accuracy")
    ]
    assert found.verdict == "only with a variant"
    assert "no logarithms" in found.why


def test_pairs_are_searched_by_test_score() -> None:
    first, second = table_2.searched(10.0, quick=True)
    table = table_with(grid=course((0.5, 0.7, 0.1), best=0.6))
    assert table.best_pair(10.0) == second
    assert table.each_seeds_best(10.0, "auc") == pytest.approx([0.6, 0.7, 0.6])
    assert Table(BREAST, {first: course((0.9,)), second: course((0.5,))}, quick=True).best_pair(10.0) == first
    assert len(table_2.searched(1.0)) == len(set(table_2.searched(1.0))) == 49


def test_choices_at_the_ends_of_the_rates_are_counted() -> None:
    table = table_with(
        add=Course([{"auc": [0.2], "accuracy": [0.2], "relative_rate": rate} for rate in (0.003, 1, 10)])
    )
    lines = table_2.rates_at_ends([table]).splitlines()
    assert "| breast cancer | Add | 12 | 8% | 8% |" in lines  # four ε of three seeds
    assert "| breast cancer | Mult, without data | 24 | 0% | 0% |" in lines


def test_words_are_judged_by_paired_differences() -> None:
    table = table_with(none=course((0.8, 0.9, 0.7)), add=course((0.79, 0.89, 0.69)), chosen=course((0.5, 0.6, 0.41)))
    words = {claim.claim: claim for claim in table_2.word_claims([table])}
    loss = words["Add loses little at ε = 10: accuracy on breast cancer"]
    assert (loss.published, loss.verdict) == (0.0263, "reproduces")
    assert loss.ours == pytest.approx(0.01)
    order = words["Add is better at ε = 10: accuracy on breast cancer, difference"]
    assert order.published == pytest.approx(0.9474 - 0.9561)
    assert "its own table says otherwise" in order.why
    assert order.ours == pytest.approx((0.29 + 0.29 + 0.28) / 3)
    assert order.verdict == "reproduces"
    equal = words["Mult is better at ε = 0.01: AUC on breast cancer, difference"]
    assert (equal.ours, equal.verdict) == (0.0, "does not")
    assert equal.published == pytest.approx(0.9590 - 0.8752)


# Figures


def test_a_curve_rises_and_falls_if_both_ends_are_surely_lower() -> None:
    low, high = [0.5, 0.52, 0.51], [0.8, 0.83, 0.82]
    assert figures.rises_and_falls([low, high, low]).holds
    assert not figures.rises_and_falls([low, low, high]).holds
    assert not figures.rises_and_falls([high, low, low]).holds
    assert not figures.rises_and_falls([low, [0.3, 0.9, 0.9], low]).holds
    assert not figures.rises_and_falls([low, high, [0.79, 0.84, 0.8]]).holds
    assert figures.rises([low, high]).holds
    assert not figures.rises([high, low]).holds
    assert figures.rises([low, high]).gap == pytest.approx([0.3, 0.31, 0.31])


def test_a_mechanism_learns_if_its_auc_is_surely_above_one_half() -> None:
    assert figures.learns([[0.6, 0.7, 0.65], [0.8, 0.7, 0.75]])
    assert not figures.learns([[0.9, 0.2, 0.6], [0.3, 0.8, 0.5]])
    assert not figures.learns([[0.1, 0.12, 0.11], [0.2, 0.21, 0.22]])


def test_settings_are_short() -> None:
    assert [short(value) for value in (2.0**-6, 0.1, 4.5, 506.49, 1000.0, -0.0)] == [
        ".0156",
        ".1",
        "4.5",
        "506",
        "1000",
        "0",
    ]


def test_figures_have_the_published_settings() -> None:
    first, second, third = figures.SWEEPS
    assert first.settings == tuple((10.0, 2.0**power, 10.0) for power in range(-6, 1))
    assert second.settings == tuple((10.0, 0.1, value) for value in (0.001, 0.01, 0.1, 1, 10, 100, 1000))
    assert third.settings == tuple((2.0**power, 0.1, 10.0) for power in range(-4, 4))
    assert third.across == tuple(epsilon for epsilon, *_ in third.settings)
    assert first.across == tuple(b1 for _, b1, _ in first.settings)
    assert second.across == tuple(b2 for *_, b2 in second.settings)


# The command


@pytest.fixture(scope="module")
def quick_run(one_code: None, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("residue-protection")
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv(DATA_FOLDER, raising=False)
        # What is timed is no test's business, and steps of longer keys take most of the time.
        patch.setattr(times, "QUICK", replace(times.QUICK, bits=256, blocks=1, block=1))
        # One problem where each has a table of its own, and both where they are in one.
        patch.setattr(times, "problems", lambda settings: study.problems(settings)[:1])
        patch.setattr(beyond, "problems", lambda settings: study.problems(settings)[:1])
        assert reproduction.main(["--quick", "--out", str(folder)]) == 0
    return folder


def test_quick_run_needs_no_data_of_the_user_and_writes_page_figures_and_results(quick_run: Path) -> None:
    text = (quick_run / "residue-protection.md").read_text(encoding="utf-8")
    assert "{" not in text
    for heading in ("Preprocessing", "Table II", "Mult as printed does not learn", "Figure 1", "Figure 2", "Figure 3"):
        assert f"\n## {heading}" in text
    claims = json.loads((quick_run / "results.json").read_text(encoding="utf-8"))["claims"]
    assert sum(claim["claim"].startswith("table II, ") for claim in claims) == 2 * 18
    assert all(claim["seeds"] == 2 for claim in claims)
    for number in (1, 2, 3):
        ElementTree.parse(quick_run / "figures" / f"residue-protection-{number}.svg")


def test_quick_run_goes_on_where_it_stood(quick_run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("scripts.reproduce.residue_protection.training.descend", None)
    assert reproduction.main(["--quick", "--out", str(quick_run), "--only", "figures"]) == 0

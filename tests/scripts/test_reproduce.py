"""The reproduction runs without any data of the user's, and its figures are what they say. Verdicts are not tested."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
import torch
from scipy import stats
from sklearn.metrics import roc_auc_score

from scripts.reproduce.label_leakage import __main__ as label_leakage
from scripts.reproduce.label_leakage import course, figure_1, figure_2, study
from scripts.reproduce.label_leakage.study import PASSIVE, Course, Problem, build_trainer, data_of, train
from scripts.reproduce.shared import drawing
from scripts.reproduce.shared import jobs as jobs_in_processes
from scripts.reproduce.shared.claims import (
    UNIT,
    Claim,
    claims_table,
    in_percent,
    interval,
    markdown_table,
    mean_of_all,
    shown,
    shown_mean,
    signed,
    surely_above,
    surely_below,
    with_error,
    with_interval,
    write_results,
    write_whole,
)
from scripts.reproduce.shared.jobs import Job, run_jobs
from scripts.reproduce.shared.pages import Section, write_page
from scripts.reproduce.shared.settings import Settings
from splitvfl.data.sets import DATA_FOLDER
from splitvfl.errors import ArgumentError
from splitvfl.leakage.judging import ScoreKeeper
from splitvfl.leakage.message_audit import AUDITORS
from tests.run.forked import FORKS

# Whether own columns were judged is asked here, not how well they predict.
pytestmark = pytest.mark.usefixtures("few_rounds")

SMALL = Problem(key="small", arguments={"name": "breast-cancer"}, batch_size=128, epochs=2)

CLAIM = Claim(
    claim="a | b", published=0.9832, ours=0.97, interval=(0.96, 0.98), seeds=5, verdict="reproduces", why="within .05"
)


# Claims


def test_interval_is_the_t_interval_of_the_mean() -> None:
    values = np.random.default_rng(0).normal(0.8, 0.02, size=5)

    expected = stats.t.interval(0.95, 4, loc=values.mean(), scale=stats.sem(values))

    assert interval([*values.tolist(), math.nan]) == pytest.approx(expected, abs=1e-12)


def test_one_seed_has_no_interval() -> None:
    assert interval([0.7]) is None
    assert with_interval([0.7]) == ".700"


def test_a_verdict_is_one_of_three_and_has_a_seed() -> None:
    with pytest.raises(ArgumentError, match="verdict of reproduces, only with a variant, does not, got 'maybe'"):
        replace(CLAIM, verdict="maybe")  # type: ignore[arg-type]
    with pytest.raises(ArgumentError, match="at least 1 seed, got 0"):
        replace(CLAIM, seeds=0)


@pytest.mark.parametrize("seed", range(3))
def test_sides_are_those_of_a_one_sided_test(seed: int) -> None:
    """An interval of 95 % lies above a level where a one-sided t-test rejects it at 2.5 %."""
    values = np.random.default_rng(seed).normal(0.8, 0.05, size=4).tolist()

    for level in np.linspace(0.6, 1.0, 81):
        above = stats.ttest_1samp(values, level, alternative="greater").pvalue
        below = stats.ttest_1samp(values, level, alternative="less").pvalue
        assert surely_above(values, level) == (above < 0.025)
        assert surely_below(values, level) == (below < 0.025)
    assert not surely_above(values[:1], 0.0)
    assert not surely_below(values[:1], 1.0)


def test_an_interval_ends_where_no_value_can_lie() -> None:
    # Two seeds: twelve standard errors.
    claim = Claim.of([0.825, 0.895], claim="a leak AUC", holds=False, why="two seeds", limits=UNIT)

    assert claim.interval is not None
    assert claim.interval[0] == pytest.approx(0.86 - 12.7062 * 0.035, abs=1e-4)
    assert claim.interval[1] == 1.0
    assert Claim.of([0.825, 0.895], claim="", holds=False, why="").interval[1] > 1.0  # type: ignore[index]
    assert Claim.of([0.9], claim="", holds=False, why="", limits=UNIT).interval is None


def test_results_have_the_agreed_form(tmp_path: Path) -> None:
    path = write_results(tmp_path / "new", [CLAIM, replace(CLAIM, published=None, ours=math.nan, interval=None)])

    first, second = json.loads(path.read_text())["claims"]
    assert first == {
        "claim": "a | b",
        "published": 0.9832,
        "ours": 0.97,
        "interval": [0.96, 0.98],
        "seeds": 5,
        "verdict": "reproduces",
        "why": "within .05",
    }
    assert (second["published"], second["ours"], second["interval"]) == (None, None, None)


@pytest.mark.parametrize(
    ("value", "expected"), [(0.98349, ".983"), (-0.05, "-.050"), (1.0, "1.000"), (10.25, "10.250"), (None, "–")]
)
def test_figures_are_shown_without_the_zero(value: float | None, expected: str) -> None:
    assert shown(value) == expected


@pytest.mark.parametrize("value", [-0.0, 0.0, -0.0004, 0.0004, -1e-12])
def test_what_is_printed_as_nothing_has_no_sign(value: float) -> None:
    assert shown(value) == ".000"
    assert signed(value) == ".000"
    assert in_percent(value) == "0 %"


def test_differences_and_shares_have_their_sign() -> None:
    assert [signed(value) for value in (0.0123, -0.0123, -0.0006, 1.5)] == ["+.012", "−.012", "−.001", "+1.500"]
    assert [in_percent(value) for value in (0.755, -0.2, -12.3456, 0.006)] == ["76 %", "−20 %", "−1 235 %", "1 %"]
    assert signed(math.nan) == in_percent(math.nan) == "–"


def test_what_cannot_lie_beyond_its_limits_is_given_by_least_and_most() -> None:
    # Of three runs one has collapsed: Student's t would have .674 ± .637, and 1.311 is no AUC.
    collapsed = [0.82, 0.824, 0.378]

    assert with_interval(collapsed) == ".674 ± .637"
    assert with_interval(collapsed, limits=UNIT) == ".674 [.378 to .824]"
    assert with_interval([0.998, 1.0, 1.0], limits=UNIT) == ".999 [.998 to 1.000]"
    # As it is printed nothing lies beyond.
    assert with_interval([0.99995, 0.99999, 0.99998], limits=UNIT) == "1.000 ± .000"
    assert with_interval([0.7, 0.72, 0.71], limits=UNIT) == with_interval([0.7, 0.72, 0.71])
    assert with_interval([0.7], limits=UNIT) == ".700"


def test_a_figure_says_of_how_many_seeds_it_is() -> None:
    values = [0.8, math.nan, 0.9]

    assert shown_mean(values) == ".850 (2 of 3 seeds)"
    assert with_interval(values) == ".850 ± .635 (2 of 3 seeds)"
    assert with_error(values) == ".850 ± .050 (2 of 3 seeds)"
    assert with_interval([math.nan, math.nan]) == "–"
    claim = Claim.of(values, claim="", holds=True, why="within .1")
    assert (claim.seeds, claim.why) == (2, "2 of 3 seeds have a figure; within .1")
    assert math.isnan(mean_of_all(values))
    assert mean_of_all([0.8, 0.9]) == pytest.approx(0.85)
    assert math.isnan(mean_of_all([]))


def test_a_table_has_its_cells_and_no_more() -> None:
    assert markdown_table(("a", "b"), [("x|y", "1")]) == "| a | b |\n| --- | ---: |\n| x\\|y | 1 |"
    assert claims_table([CLAIM]).splitlines()[1:] == [
        "| --- | ---: | ---: | ---: | --- | --- |",
        "| a \\| b | .983 | .970 (.960 to .980) | 5 | reproduces | within .05 |",
    ]
    with pytest.raises(ArgumentError, match="expected 2 cells"):
        markdown_table(("a", "b"), [("x",)])


def test_what_cannot_be_written_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "page.md"
    path.write_text("old")

    with pytest.raises(UnicodeEncodeError):
        write_whole(path, "\ud800")

    assert [found.name for found in tmp_path.iterdir()] == ["page.md"]
    assert path.read_text() == "old"


# Jobs

DONE: list[int] = []


def double(number: int) -> dict[str, Any]:
    DONE.append(number)
    if number < 0:
        raise ValueError(f"no {number}")
    return {"value": 2 * number, "nothing": math.nan}


@pytest.fixture(autouse=True)
def _nothing_done() -> None:
    DONE.clear()


def test_a_job_is_done_once(tmp_path: Path) -> None:
    jobs = [Job(double, {"number": number}) for number in (3, 4, 3)]

    first = run_jobs(jobs, tmp_path, workers=1)
    second = run_jobs(jobs, tmp_path, workers=1)

    assert DONE == [3, 4]
    assert [result["value"] for result in first] == [6, 8, 6] == [result["value"] for result in second]
    assert math.isnan(first[0]["nothing"])


def test_a_broken_run_goes_on_where_it_stood(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no -1"):
        run_jobs([Job(double, {"number": number}) for number in (1, -1, 2)], tmp_path, workers=1)
    run_jobs([Job(double, {"number": number}) for number in (1, 2)], tmp_path, workers=1)

    assert DONE == [1, -1, 2]


def test_processes_find_the_same_as_this_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jobs_in_processes, "PROCESSES", FORKS)
    # The job returns its settings; a function of this file would not be found by another process.
    jobs = [Job(dict, {"number": number}) for number in (2, 3, 5)]

    assert run_jobs(jobs, tmp_path, workers=2) == [{"number": 2}, {"number": 3}, {"number": 5}]
    assert len(list(tmp_path.iterdir())) == 3


# Runs


def test_parties_share_the_columns_and_only_one_has_labels() -> None:
    data = data_of(SMALL, seed=0)

    torch.testing.assert_close(data.active.train.columns.numeric, data[PASSIVE].train.columns.numeric)
    assert data.active.train.labels is not None
    assert data[PASSIVE].train.labels is None
    # Each of 569 records is tested with a probability of a tenth.
    assert (data.active.train.count, data.active.test.count) == (493, 76)
    assert not torch.equal(data.active.test.ids, data_of(SMALL, seed=1).active.test.ids)


@pytest.mark.parametrize("cut_after", [2, 4])
def test_the_gradient_is_residual_times_slope(cut_after: int) -> None:
    trainer = build_trainer(SMALL, 0, cut_after=cut_after, audit=False)
    train(trainer, steps=3, progress=lambda status: None)

    values, labels = figure_1.quantities(trainer)

    # The slow way: each record's own loss, its gradient at the cut by autograd.
    batch = trainer.passives[PASSIVE].train_batch(torch.arange(trainer.active.data.train.count))
    activation = trainer.passives[PASSIVE].bottom(batch.columns.module_input()).detach().requires_grad_()
    logits = trainer.active.top(activation, batch.columns.module_input()).squeeze(1)
    torch.nn.functional.binary_cross_entropy_with_logits(logits, labels, reduction="sum").backward()
    assert activation.grad is not None
    # Two ways of computing p − y in float32, whose rounding is 6e-8 of values up to one.
    torch.testing.assert_close(values["gradient"], activation.grad.norm(dim=1), rtol=1e-4, atol=1e-6)
    if cut_after == 4:  # a linear top: one slope for all
        assert float(values["slope"].max() - values["slope"].min()) < 1e-6


def test_training_stops_at_the_step_asked_for() -> None:
    trainer = build_trainer(SMALL, 0)
    steps: list[int] = []

    train(trainer, steps=6, progress=lambda status: steps.append(status.step))

    assert len(trainer.batches) == 4
    assert steps == [1, 2, 3, 4, 5, 6]


def test_histograms_hold_every_record_once() -> None:
    labels = torch.tensor([0.0] * 900 + [1.0] * 100)
    values = torch.linspace(0, 1, 1000)

    found = figure_1._histogram(values, labels)

    assert sum(found["negative"]) == pytest.approx(1.0, abs=1e-2)  # shares are rounded to four digits
    assert np.argmax(found["positive"]) > 20


def test_the_course_of_a_run_is_that_of_its_judges() -> None:
    result = figure_2.follow(SMALL.as_settings(), 0, figure_2.ISOTROPIC.as_settings())

    assert result["steps"] == list(range(1, 9))
    assert len(result["loss"]) == len(result["test"]) == SMALL.epochs
    for name, curve in result["windows"].items():
        assert np.nanmean(curve) == pytest.approx(result["auc"][name], abs=1e-12), name
    assert set(result["windows"]) == {*figure_2.LAYERS, figure_2.CUT, *AUDITORS}
    # 5² max‖g‖² over a mean of ‖g‖² that is smaller.
    assert result["noise_to_signal"] > 25


def test_windows_average_the_steps_in_them() -> None:
    trainer = build_trainer(SMALL, 0, audit=False)
    keeper = trainer.leaks[PASSIVE]["norm"].keeper
    course = Course(trainer, {"norm": keeper}, steps=8, windows=3)

    train(trainer, steps=8, progress=course)

    aucs = keeper.aucs
    assert course.steps == [2, 4, 6, 8]
    assert course.leaks["norm"] == pytest.approx([(aucs[at] + aucs[at + 1]) / 2 for at in range(0, 8, 2)])


def test_the_judges_aucs_are_those_of_the_steps() -> None:
    keeper = ScoreKeeper()
    random = np.random.default_rng(1)
    expected = []
    for labels in ([0, 1, 1, 0], [1, 1, 1, 1], [0, 0, 0, 1]):
        scores = random.normal(size=4)
        keeper.add(None, torch.from_numpy(scores), torch.tensor(labels))
        if len(set(labels)) == 2:
            expected.append(roc_auc_score(labels, scores))

    assert keeper.aucs == pytest.approx(expected)


def test_the_search_for_equal_leak_narrows_down(monkeypatch: pytest.MonkeyPatch) -> None:
    # A leak that falls with the scale, as one expects: 0.5 + 1 / (2 + 2 ratio).
    monkeypatch.setattr(figure_2, "_leak_of_isotropic", lambda problem, seed, ratio: 0.5 + 0.5 / (1 + ratio))

    found = figure_2.find_ratio({}, 0, 0.55)

    # At 9, to within the last of seven halvings of log 256.
    assert found["ratio"] == pytest.approx(9.0, rel=256 ** (1 / 2**7) - 1)


def test_the_worst_window_is_oriented_as_the_run() -> None:
    result = {"windows": {"norm": [0.2, 0.6, math.nan]}, "auc": {"norm": 0.4}}

    assert figure_2.worst_window(result, "norm") == pytest.approx(0.8)


@pytest.mark.parametrize(("level", "expected"), [(0.1, 0.98), (0.4, 0.68)])
def test_the_bound_is_the_papers(level: float, expected: float) -> None:
    assert figure_2.bound(level) == pytest.approx(expected)


# What the text claims


@pytest.mark.parametrize("seed", range(4))
def test_the_least_error_is_that_of_the_best_of_all_thresholds(seed: int) -> None:
    generator = np.random.default_rng(seed)
    scores = generator.integers(0, 6, size=30).astype(float)  # with ties
    positive = generator.random(30) < 0.3
    tried = [
        0.5 * ((scores > threshold)[~positive].mean() + (scores <= threshold)[positive].mean())
        for threshold in np.arange(-1, 7)
    ]
    error, threshold = course.best_threshold(scores, positive)
    assert error == pytest.approx(min(tried), abs=1e-12)
    called = scores > threshold
    assert error == pytest.approx(0.5 * (called[~positive].mean() + (~called[positive]).mean()), abs=1e-12)


def test_a_threshold_for_the_run_misses_what_one_for_each_step_does_not() -> None:
    errors = course.ResidualErrors()
    # Each step is told apart completely, but between other numbers, in the unit of its mean square too.
    errors.add(torch.tensor([1.0, 2.0, 3.0, 4.0]), torch.tensor([0, 0, 0, 1]))
    errors.add(torch.tensor([-4.0, -3.0, -2.0, -1.0]), torch.tensor([0, 1, 1, 1]))
    errors.add(torch.zeros(4), torch.tensor([0, 0, 0, 1]))  # says nothing, and is left out
    errors.add(torch.ones(4), torch.zeros(4))  # one class only
    assert errors.by_step == 0
    assert errors.auc == 1.0
    # The best one for both: of four negatives three are called positive, or of four positives three are missed.
    assert errors.by_run == pytest.approx(0.375)


def test_the_units_of_batches_do_not_matter_to_the_residual_attacks_error() -> None:
    errors = course.ResidualErrors()
    for unit in [1.0, *[1e-3] * 9]:
        errors.add(unit * torch.tensor([1.0, 1.1, 5.0]), torch.tensor([0, 0, 1]))
    assert errors.by_step == errors.by_run == 0
    # But they do to a threshold that was fixed in the first tenth: nobody is called positive later.
    assert errors.from_start == 0.5


def test_shares_of_windows_and_ratios_of_classes() -> None:
    assert course.high_share({"windows": [0.9, 0.86, 0.5, math.nan]}) == pytest.approx(2 / 3)
    assert math.isnan(course.high_share({"windows": [math.nan]}))
    assert course.ratio({"slope": [[1.0, 2.0], [9.0, 3.0]]}, "slope") == 3.0


def test_slopes_are_the_means_of_each_class() -> None:
    found = course.slope_run(SMALL.as_settings(), 0, [2])
    trainer = build_trainer(SMALL, 0, cut_after=2, audit=False)
    train(trainer, steps=2, progress=lambda status: None)
    values, labels = figure_1.quantities(trainer)
    for name, (negative, positive) in ((name, found[name][0]) for name in ("slope", "residual")):
        by_hand = [
            np.mean([v for v, y in zip(values[name].tolist(), labels.tolist(), strict=True) if y == c]) for c in (0, 1)
        ]
        assert [negative, positive] == pytest.approx(by_hand, rel=1e-6)


# The whole


@pytest.fixture(scope="module")
def quick(one_code: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    out = tmp_path_factory.mktemp("reproduce")
    with pytest.MonkeyPatch.context() as patch:
        # Less than one epoch of the generated clicks: what CI's run of the command does takes longer.
        small = replace(SMALL, key="clicks-quick", title="a small set", seeds=(0, 1))
        patch.setattr(study, "_quick_problem", lambda: small)
        patch.setattr(figure_1, "QUICK_STEPS", (2, 4, 6, 8))
        patch.setattr(course, "QUICK_STEPS", (2, 4, 6, 8))
        patch.setattr(figure_2, "_HALVINGS", 2)
        assert label_leakage.main(["--quick", "--out", str(out), "--page", str(out / "docs")]) == 0
        yield out


def test_the_quick_run_writes_results_page_and_figures(quick: Path) -> None:
    claims = json.loads((quick / "results.json").read_text())["claims"]
    # One of figure 1; four per level of 2a and 2b; two of 2c; three of the text.
    assert len(claims) >= 1 + 4 * len(figure_2.LEVELS) + 2 + 3
    for claim in claims:
        assert set(claim) == {"claim", "published", "ours", "interval", "seeds", "verdict", "why"}
        assert claim["seeds"] == 2

    page = (quick / "label-leakage.md").read_text()
    assert "{settings}" not in page
    assert "{sections}" not in page
    assert str(quick) not in page
    labels = data_of(SMALL, seed=0).active.train.labels
    assert labels is not None
    assert f"| a small set | 493 | {100 * labels.mean().item():.1f} % | 128 | 2 | 8 | 2 |" in page
    assert (quick / "docs" / "label-leakage.md").read_text() == page


def test_every_figure_of_the_page_is_there_and_is_svg(quick: Path) -> None:
    names = re.findall(r"\]\(figures/([\w-]+\.svg)\)", (quick / "label-leakage.md").read_text())

    assert {"figure-1-clicks-quick.svg", "figure-2ab-clicks-quick.svg", "figure-2c-clicks-quick.svg"} <= set(names)
    for name in names:
        path = quick / "docs" / "figures" / name
        assert ElementTree.parse(path).getroot().tag.endswith("svg")
        assert path.stat().st_size < 150_000


def test_a_second_run_repeats_no_work(quick: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(drawing, "svg_file", lambda figure, name: "")  # figures are drawn anew, and take longest
    jobs = {path: path.stat().st_mtime_ns for path in (quick / "jobs").iterdir()}
    # No noise, four levels, two others and isotropic noise at equal leak, for two seeds.
    assert sum(path.name.startswith("follow-") for path in jobs) == 8 * 2

    assert label_leakage.main(["--quick", "--out", str(quick)]) == 0

    assert {path: path.stat().st_mtime_ns for path in (quick / "jobs").iterdir()} == jobs


def test_missing_data_are_left_out_and_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(DATA_FOLDER, str(tmp_path))
    said: list[str] = []

    found = study.problems(Settings(out=tmp_path, rows_of_clicks=0, say=said.append))

    assert found == []
    assert len(said) == 4
    assert all(DATA_FOLDER in line for line in said)


def test_generated_clicks_are_written_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(DATA_FOLDER, str(tmp_path))
    settings = Settings(out=tmp_path, rows_of_clicks=2000, say=lambda line: None)

    (problem,) = study.problems(settings)
    written = Path(problem.arguments["path"]).stat().st_mtime_ns
    study.problems(settings)

    assert Path(problem.arguments["path"]).stat().st_mtime_ns == written
    data = data_of(problem, seed=0)
    assert data.active.train.count + data.active.test.count == 2000


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--only", "figure-1,figure-9", "--out", "x"], "got figure-9"),
        (["--seeds", "0", "--out", "x"], "expected a whole number from 1, got '0'"),
        (["--rows-of-clicks", "-1", "--out", "x"], "expected a whole number from 0, got '-1'"),
        ([], "--out"),
    ],
)
def test_bad_arguments_are_named(arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        label_leakage.main(arguments)

    assert message in capsys.readouterr().err


@pytest.mark.parametrize("name", ["better_defense", "label_leakage", "vertical_lr_privacy"])
def test_the_committed_page_begins_as_its_template_does(name: str, checkout: Path) -> None:
    template = (checkout / "scripts" / "reproduce" / name / "page.md").read_text(encoding="utf-8")
    page = (checkout / "docs" / "results" / f"{name.replace('_', '-')}.md").read_text(encoding="utf-8")

    # What of a page no longer stands is said there, and must not be lost when the page is written again.
    assert page.startswith(template.partition("{settings}")[0])


def test_a_page_takes_sections_of_several_parts(tmp_path: Path) -> None:
    template = tmp_path / "template.md"
    template.write_text("# {not a field}\n{settings}\n{sections}\n")
    first = Section(title="One", body="Text.", figures={"a": "<svg/>"}, captions={"a": "A"}, claims=[CLAIM])
    second = Section(title="Two", body="More.", claims=[CLAIM], claims_shown=False)

    write_page(tmp_path / "page.md", template=template, sections=[first, second], settings_table="| t |")

    page = (tmp_path / "page.md").read_text()
    assert page.startswith("# {not a field}\n| t |\n## One\n\nText.\n\n![A](figures/a.svg)")
    assert page.count("within .05") == 1
    assert page.endswith("## Two\n\nMore.\n")
    assert (tmp_path / "figures" / "a.svg").read_text() == "<svg/>"


def test_settings_are_json(tmp_path: Path) -> None:
    settings: Mapping[str, Any] = SMALL.as_settings()

    assert Problem(**json.loads(json.dumps(settings))) == SMALL

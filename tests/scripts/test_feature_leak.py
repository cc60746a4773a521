"""What activations tell of columns, and what hiding them costs: the runs, what is chosen, and the committed page."""

from __future__ import annotations

import gzip
import json
import math
import re
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from sklearn.datasets import load_digits

from scripts.reproduce.feature_leak import __main__ as command
from scripts.reproduce.feature_leak import (
    advice,
    arrangements,
    defended,
    directions,
    pictures,
    pooled,
    runs,
    shapes,
    study,
    trial,
    verdicts,
    ways,
)
from scripts.reproduce.feature_leak.stronger import Stronger
from scripts.reproduce.feature_leak.study import Choice, Measured, Row, corrected
from scripts.reproduce.feature_leak.ways import OF_ACTIVATIONS, UNDEFENDED, Way
from scripts.reproduce.shared.claims import interval
from scripts.reproduce.shared.pages import MADE
from scripts.reproduce.shared.settings import Settings
from splitvfl.data.sets import DATA_FOLDER
from splitvfl.defenses import GaussianIR

# Whether own columns were judged is asked here, not how well they predict.
pytestmark = pytest.mark.usefixtures("few_rounds")

TINY = arrangements.shortened(arrangements.DIGITS)
NOISE = OF_ACTIVATIONS[8]
KEYS = {"claim", "published", "ours", "interval", "seeds", "verdict", "why"}


def run(auc: float, share: float, accumulated: float | None = None, labels: float = 0.9) -> dict[str, Any]:
    reading = {"share": share, "accumulated": accumulated, "without_messages": 0.1}
    return {"auc": auc, "labels": labels, "readings": {study.USUAL: reading}}


ABOUT = {"alone": 0.7, "alone_validated": 0.75, "known": 0.6}
WEAK, MIDDLE, STRONG = (way for way in OF_ACTIVATIONS if way.family == "gaussian-ir")


def row(way: Way, validated: list[dict[str, Any]], *found: dict[str, Any]) -> Row:
    return Row(way, Choice(1, 0.01, 0.9), validated, found, ABOUT)


def table(*rows: Row) -> Measured:
    return Measured(TINY, ABOUT, {one.way.label: one for one in rows})


# Runs


def test_a_run_reads_columns_and_labels_and_noise_hides_columns() -> None:
    told: dict[str, Any] = {"arrangement": TINY.as_settings(), "rate": 0.01, "epochs": 2, "seed": 0}

    plain, noisy = (runs.measure(way=way.as_settings(), **told) for way in (UNDEFENDED, NOISE))

    assert NOISE.defenses[0]["name"] == GaussianIR.name
    assert set(plain["readings"]) == {f"{share:g}" for share in runs.KNOWN}
    assert study.read_of(plain) > study.read_of(noisy)
    assert plain["auc"] > noisy["auc"] > 0.5
    assert 0.5 < plain["labels"] <= plain["total"] <= 1.0
    assert plain["steps"] == 2 * 5, "600 records in batches of 128"
    assert len(plain["readings"][study.USUAL]["columns"]) <= 32


def test_choosing_sees_validation_records_alone() -> None:
    whole, tried = (runs._data(json.dumps(TINY.as_settings()), validating=flag) for flag in (False, True))

    assert torch.equal(whole.active.train.ids, tried.active.train.ids)
    assert not set(tried.active.test.ids.tolist()) & set(whole.active.test.ids.tolist())
    assert not set(tried.active.test.ids.tolist()) & set(whole.active.train.ids.tolist())
    found = runs.choose(
        arrangement=TINY.as_settings(),
        way=UNDEFENDED.as_settings(),
        rate=0.01,
        epochs=[1, 2],
        seed=study.VALIDATION_SEED,
    )
    watched = runs.measure(
        arrangement=TINY.as_settings(),
        way=UNDEFENDED.as_settings(),
        rate=0.01,
        epochs=2,
        seed=study.VALIDATION_SEED,
        validating=True,
    )
    assert found["aucs"]["2"] == watched["auc"], "who looks on changes nothing"


def test_digits_from_five_are_positive() -> None:
    whole = runs._whole(json.dumps(TINY.as_settings()))
    classes = runs._whole(json.dumps(TINY.as_settings() | {"from_digit": 0}))

    assert (whole.task, classes.task) == ("binary", "multiclass")
    assert whole.active.train.labels is not None
    assert classes.active.train.labels is not None
    assert whole.active.train.labels.tolist() == [float(digit >= 5) for digit in classes.active.train.labels.tolist()]


def test_of_a_linear_map_one_fit_recovers_all() -> None:
    truth = torch.randn(50, 3, generator=torch.Generator().manual_seed(0))
    truth[:, 2] = 1.0

    assert runs.recovered(truth, truth) == 1.0
    assert runs.recovered(truth.mean(dim=0).expand_as(truth), truth) == pytest.approx(0.0, abs=1e-6)
    assert runs.recovered(-truth, truth) == 0.0


def test_after_training_a_wider_cut_is_read_better() -> None:
    told: dict[str, Any] = {
        "arrangement": arrangements.shortened(arrangements.TRIAL).as_settings(),
        "rate": 0.01,
        "epochs": 1,
        "seed": 0,
        "known_share": 0.5,
    }

    wide, narrow = (runs.settle(way=ways.shaped(1, width).as_settings(), **told)["share"] for width in (64, 4))

    assert wide > narrow + 0.2


def test_variance_that_is_added_up_counts_wide_columns_most() -> None:
    truth = torch.tensor([[10.0, 1.0], [-10.0, -1.0]])

    assert pooled.pooled(torch.stack([truth[:, 0], torch.zeros(2)], dim=1), truth) == pytest.approx(100 / 101)
    assert pooled.pooled(torch.zeros_like(truth), truth) == pytest.approx(0.0)
    assert pooled.pooled(truth, truth) == 1.0


def test_the_stronger_readers_see_the_run_that_ridge_sees() -> None:
    told: dict[str, Any] = {
        "arrangement": TINY.as_settings(),
        "way": UNDEFENDED.as_settings(),
        "rate": 0.01,
        "epochs": 2,
        "seed": 0,
    }

    plain = runs.measure(**told)
    bent, stacked = (work(**told, known_share=0.05) for work in (runs.measure_stronger, runs.measure_stacked))

    assert bent["auc"] == stacked["auc"] == plain["auc"]
    assert bent["readings"].keys() == stacked["readings"].keys() == {"0.05"}
    # Ridge reads some of the messages only, where they are large.
    assert bent["readings"]["0.05"]["records"] >= plain["readings"]["0.05"]["records"]
    assert study.read_of(bent) > 0
    assert study.read_of(stacked) not in (0, study.read_of(bent), study.read_of(plain)), "another reader"


def test_the_model_of_own_columns_is_chosen_on_validation_records(monkeypatch: pytest.MonkeyPatch) -> None:
    held = {flag: runs._data(json.dumps(TINY.as_settings()), validating=flag).active.test for flag in (False, True)}
    told = {True: {"a": 0.9, "b": 0.8}, False: {"a": 0.6, "b": 0.7}}
    monkeypatch.setattr(runs, "alone_aucs", lambda train, test: told[torch.equal(test.ids, held[True].ids)])

    about = runs.describe(arrangement=TINY.as_settings())

    assert (about["alone_validated"], about["alone"]) == (0.9, 0.6), "not the better one on test records"


# Ways


def test_every_family_has_three_strengths() -> None:
    families = [way.family for way in OF_ACTIVATIONS]

    assert {families.count(family) for family in families} == {3}
    assert tuple(dict.fromkeys(families)) == verdicts.FAMILIES


def test_ways_that_are_alike_share_their_runs() -> None:
    narrower = next(way for way in OF_ACTIVATIONS if way.label == "cut of width 16")

    assert narrower.as_settings() == ways.shaped(2, 16).as_settings()
    assert UNDEFENDED.as_settings() == ways.shaped(2, 64).as_settings()
    assert len({way.key for way in defended.WAYS}) == len(defended.WAYS)


# Choosing and comparing


def test_the_best_validation_auc_is_chosen_and_of_equals_the_cheapest() -> None:
    assert Choice.of({0.1: {"1": 0.7, "2": 0.8}, 0.2: {"1": 0.8, "2": math.nan}}) == Choice(1, 0.2, 0.8)


def test_read_is_the_larger_figure_and_nan_where_there_is_none() -> None:
    assert study.read_of(run(0.9, 0.3, 0.4)) == 0.4
    assert study.read_of(run(0.9, 0.3)) == 0.3
    assert math.isnan(study.read_of(run(0.9, 0.3), "0.01"))


def test_what_is_read_least_at_little_cost_is_chosen_by_the_mean_of_validation_seeds() -> None:
    found = table(
        row(UNDEFENDED, [run(0.90, 0.8)] * 2, run(0.9, 0.0)),
        row(WEAK, [run(0.90, 0.7)] * 2, run(0.9, 0.1)),
        row(MIDDLE, [run(0.88, 0.4), run(0.91, 0.2)], run(0.8, 0.9)),
        row(STRONG, [run(0.89, 0.0), run(0.88, 0.0)], run(0.9, 0.0)),
    )

    picked = verdicts.chosen(found, "gaussian-ir")

    assert picked is not None
    assert (picked.way, picked.validated_auc, picked.validated_read) == (MIDDLE, pytest.approx(0.895), 0.4 / 2 + 0.1)
    assert verdicts.best(found) == picked
    assert verdicts.chosen(found, "later cut") is None
    assert [one.way for one in verdicts.usual(found)] == [UNDEFENDED, MIDDLE]


def test_a_seed_that_is_no_better_than_own_columns_alone_has_no_figure_of_what_is_read() -> None:
    lost = row(MIDDLE, [], run(0.9, 0.4), run(0.7, 0.0), run(0.71, 0.2))

    assert lost.collapsed == [1], "as good as alone is not better"
    assert [value for value in lost.read() if not math.isnan(value)] == [0.4, 0.2]
    assert math.isnan(lost.shares()[1])
    assert lost.aucs == [0.9, 0.7, 0.71]
    assert row(MIDDLE, [run(0.75, 0.0), run(0.76, 0.0)], run(0.9, 0.4)).collapsed_in_validation == 1
    assert not replace(lost, about={"alone": None}).collapsed, "a label party without columns"


def test_a_comparison_is_of_the_seeds_in_which_neither_collapsed() -> None:
    bare = row(UNDEFENDED, [], run(0.9, 0.8), run(0.7, 0.9), run(0.9, 0.8), run(0.9, 0.8))
    found = table(bare, row(MIDDLE, [], run(0.7, 0.0), run(0.9, 0.2), run(0.9, 0.3), run(0.9, 0.5)))

    compared = verdicts.columns(found, found.rows[MIDDLE.label])

    assert (compared.middle, compared.seeds, compared.of) == (pytest.approx(-0.4), 2, 4)
    assert compared.why.endswith("; 2 of 4 seeds, the others collapsed")
    assert verdicts.utility(found, found.rows[MIDDLE.label]).seeds == 4, "a collapse costs"


def test_what_collapses_is_not_advised_and_is_named() -> None:
    fine, gone = run(0.9, 0.3), run(0.7, 0.0)
    found = table(
        row(UNDEFENDED, [run(0.9, 0.8)] * 2, run(0.9, 0.8), run(0.9, 0.8)),
        row(WEAK, [run(0.9, 0.4)] * 2, fine, fine),
        row(MIDDLE, [run(0.9, 0.2)] * 2, fine, gone),
        row(STRONG, [run(1.1, 0.1), run(0.75, 0.1)], fine, fine),
    )

    chosen, best, least = verdicts.chosen(found, "gaussian-ir"), verdicts.best(found), verdicts.least(found)

    assert chosen is not None
    assert best is not None
    assert chosen.way == MIDDLE, "no validation seed collapsed: those that are reported choose nothing here"
    assert best.way == WEAK
    assert best == least
    assert [one.way for one in verdicts.usual(found)] == [UNDEFENDED, MIDDLE, WEAK]
    told = advice._not_advised(found)
    assert f"{MIDDLE.label} (1 of 2 that are reported, 0 of 2 by which is chosen)" in told
    assert f"{STRONG.label} (0 of 2 that are reported, 1 of 2 by which is chosen)" in told
    assert WEAK.label not in told


def test_it_is_said_what_choices_cost_on_validation_and_on_test_records() -> None:
    found = table(
        row(UNDEFENDED, [run(0.90, 0.8)] * 2, run(0.90, 0.8), run(0.90, 0.8)),
        row(MIDDLE, [run(0.89, 0.2), run(0.90, 0.2)], run(0.88, 0.3), run(0.86, 0.3)),
    )

    told = defended._cost_words([found])

    assert told.startswith("Over the 1 choices the mean cost in AUC is .0050 on validation records and .0300 on test")
    assert told.endswith("where 1 cost more than .01.")


def test_the_most_of_three_readers_is_taken_run_by_run() -> None:
    bare = row(UNDEFENDED, [], run(0.9, 0.5), run(0.9, 0.5), run(0.7, 0.5))
    one = Stronger(table(bare), {UNDEFENDED.label: {"a": [0.6, 0.1, math.nan], "b": [0.2, 0.9, math.nan]}})

    assert one.most(bare)[:2] == [0.6, 0.9]
    assert math.isnan(one.most(bare)[2])


def test_where_all_labels_are_read_it_is_said_that_no_more_could_be() -> None:
    some, every = (table(row(UNDEFENDED, [], run(0.9, 0.8, labels=labels))) for labels in (0.9, 1.0))

    assert "could not have come out otherwise" in directions._room([every])
    assert not directions._room([some, every])


def test_intervals_are_wider_for_more_comparisons() -> None:
    values = [0.1, 0.2, 0.4]
    plain, wide = corrected(values, 1), corrected(values, 50)

    assert plain == interval(values)
    assert plain is not None
    assert wide is not None
    # Bonferroni: 1 − .025 / 50 of Student's t with two degrees of freedom is 31.599, .975 of it 4.303.
    assert (wide[1] - wide[0]) / (plain[1] - plain[0]) == pytest.approx(31.599 / 4.303, rel=1e-3)
    assert corrected([0.1], 1) is None
    assert corrected([0.1, math.nan], 1) is None


def test_a_difference_counts_where_its_whole_interval_is_on_one_side() -> None:
    clear = verdicts.Compared.of_pairs([0.1, 0.1001, 0.1], [0.9, 0.9, 0.9])
    unclear = verdicts.Compared.of_pairs([0.1, 0.5, 0.9], [0.9, 0.9, 0.9])

    assert (clear.side, clear.shown) == ("less", "**−.800**")
    assert (unclear.side, unclear.shown) == ("", "−.400")


# The command


def test_the_command_writes_claims_cells_and_a_page(
    one_code: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(DATA_FOLDER, str(tmp_path))  # which has no data
    monkeypatch.setattr(study, "ARRANGEMENTS", (replace(arrangements.DIGITS, key="one"),))
    few = (UNDEFENDED, NOISE, ways.OF_GRADIENTS[0])
    monkeypatch.setattr(defended, "WAYS", few)
    monkeypatch.setattr(shapes, "SHAPES", tuple(ways.shaped(depth, width) for depth in (1, 2) for width in (64, 4)))
    monkeypatch.setattr(trial, "DEPTHS", (2,))
    monkeypatch.setattr(trial, "FOUND", {16: 0.57})
    monkeypatch.setattr("scripts.reproduce.feature_leak.pooled._EPOCHS", 1)

    assert command.main(["--quick", "--out", str(tmp_path)]) == 0

    results = json.loads((tmp_path / "results.json").read_text(encoding="utf-8"))
    assert all(set(claim) == KEYS for claim in results["claims"])
    assert {claim["seeds"] for claim in results["claims"]} <= {1, 2}
    assert sum("our trial" in claim["claim"] for claim in results["claims"]) == 2 * len(trial.FOUND)
    assert sum("lets more of the columns be read" in claim["claim"] for claim in results["claims"]) == 2
    page = (tmp_path / "feature-leak.md").read_text(encoding="utf-8")
    assert f"| {NOISE.label} | 2, 0.01 |" in page
    assert re.search(r"\| digits \| \d{3} \| \d{3} \| \d{3} \| \d\d\.\d % \| 32 / 32 \| 128 \| 2; 0\.01 \| 2 \|", page)
    assert "Neither of the two data sets is at hand." in page
    assert "quick run on little data" in page
    assert (tmp_path / "figures" / "feature-leak-cost.svg").read_text(encoding="utf-8").startswith("<?xml")
    assert (tmp_path / "cells" / "feature-leak.jsonl.gz").is_file()


def test_data_that_are_not_there_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(DATA_FOLDER, str(tmp_path))
    settings = Settings(out=tmp_path, say=lambda line: None)

    assert [one.key for one in study.at_hand(settings)] == ["digits"]
    assert list(settings.missing) == ["bank marketing", "credit default", "Criteo sample"]


# The committed page


@pytest.fixture(scope="module")
def remade(one_code: None, checkout: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the command makes of the published cells, without any run."""
    out = tmp_path_factory.mktemp("remade")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Settings, "has", lambda self, title, path: True)
        cells = checkout / "docs" / "results" / "cells" / "feature-leak.jsonl.gz"
        assert command.main(["--out", str(out), "--keep-stale", "--begin-with", str(cells)]) == 0
    return out


def test_the_page_and_its_figures_are_those_of_the_published_cells(checkout: Path, remade: Path) -> None:
    results = checkout / "docs" / "results"
    committed, made = ((folder / "feature-leak.md").read_text("utf-8") for folder in (results, remade))

    assert made.partition(f"\n## {MADE}\n")[0] == committed.partition(f"\n## {MADE}\n")[0]
    for figure in (remade / "figures").iterdir():
        assert figure.name in {path.name for path in (results / "figures").iterdir()}


def test_the_claims_of_the_page_are_those_of_the_results(checkout: Path, remade: Path) -> None:
    page = (checkout / "docs" / "results" / "feature-leak.md").read_text("utf-8")
    claims = json.loads((remade / "results.json").read_text("utf-8"))["claims"]

    assert len(claims) > 40
    for claim in claims:
        assert f"| {claim['claim']} |" in page
        bound = re.search(r"the whole interval (below 0|above 0|above −\.01)", claim["why"])
        if bound and claim["interval"]:
            low, high = claim["interval"]
            holds = {"below 0": high < 0, "above 0": low > 0, "above −.01": low > -0.01}[bound[1]]
            assert (claim["verdict"] == "reproduces") == holds, claim


def test_all_sections_are_corrected_for_the_comparisons_of_the_page_together(remade: Path) -> None:
    claims = json.loads((remade / "results.json").read_text("utf-8"))["claims"]
    found = [corrected[1] for claim in claims if (corrected := re.search(r"corrected for (\d+) comp", claim["why"]))]
    # Labels of the chosen and of the defenses of labels are compared in bold alone.
    page = (remade / "feature-leak.md").read_text("utf-8")
    both = re.findall(r"^Of (\d+) (?:chosen defenses of activations|defenses of labels)", page, re.MULTILINE)

    assert set(found) == {str(verdicts.COMPARISONS)}
    assert len(found) + sum(map(int, both)) <= verdicts.COMPARISONS
    assert set(re.findall(r"corrected for (?:the )?(\d+) comparisons", page)) == {str(verdicts.COMPARISONS)}


def test_no_seed_that_is_reported_chooses_strengths_and_none_that_does_chooses_epochs(checkout: Path) -> None:
    with gzip.open(checkout / "docs" / "results" / "cells" / "feature-leak.jsonl.gz", "rt") as stream:
        cells = [json.loads(line) for line in stream]
    seeds = Counter(
        (cell["work"].rpartition(".")[2], cell["settings"].get("validating"), cell["settings"]["seed"])
        for cell in cells
        if "seed" in cell["settings"]
    )

    assert {seed for work, _, seed in seeds if work == "choose"} == {1000}
    assert {seed for _, validating, seed in seeds if validating} == set(range(1001, 1006))
    assert {seed for work, validating, seed in seeds if work != "choose" and not validating} == set(range(5))
    assert {count for (_, validating, _), count in seeds.items() if validating} == {4 * len(defended.BETWEEN)}


def test_the_page_is_of_a_whole_run_with_five_seeds(checkout: Path) -> None:
    page = (checkout / "docs" / "results" / "feature-leak.md").read_text("utf-8")

    assert "quick run" not in page
    assert "Without these parts" not in page
    assert "**Without rows of" not in page
    for one in arrangements.ARRANGEMENTS:
        (line,) = (line for line in page.splitlines() if line.startswith(f"| {one.title} | ") and " / " in line)
        assert line.endswith("| 5 |")


def test_pictures_are_digits_and_what_is_read_of_them_is_what_the_table_has() -> None:
    told: dict[str, Any] = {
        "arrangement": arrangements.shortened(arrangements.TRIAL).as_settings(),
        "way": UNDEFENDED.as_settings(),
        "rate": 0.01,
        "epochs": 2,
        "seed": 0,
        "known_share": 0.05,
    }
    found = runs.depict(**told, pictures=3)

    known = {tuple(pixels) for pixels in load_digits().data.tolist()}
    assert all(tuple(pixels) in known for pixels in found["truth"])
    assert found["share"] == pytest.approx(runs.settle(**told)["share"])
    # Of pictures of which something is read; the mean picture has a mean square error as large as the variance.
    off = (torch.tensor(found["truth"]) - torch.tensor(found["estimate"])).square().mean().item()
    assert 0.0 < off < torch.from_numpy(load_digits().data).var(dim=0).mean().item()
    figure = pictures.draw("digits", {"no defense": found})
    assert figure.count("<image") == 2 * 3

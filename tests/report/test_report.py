from __future__ import annotations

import itertools
import json
import math
import os
import re
import secrets
from collections.abc import Mapping
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from xml.etree import ElementTree

import matplotlib
import pytest

from splitvfl.attacks import ComponentAttack, NormAttack
from splitvfl.claims import Guarantee
from splitvfl.claims.kinds import Per
from splitvfl.errors import ArgumentError, CheckpointError
from splitvfl.leakage.canaries import CanaryLeak
from splitvfl.leakage.column_figures import ColumnReading, ColumnShare, LaterReading
from splitvfl.leakage.features import ColumnLeak, FeatureLeak
from splitvfl.leakage.leak_summary import LeakSummary
from splitvfl.report import figures
from splitvfl.report.audit_page import write_audit_page
from splitvfl.report.findings import columns_read
from splitvfl.report.first_screen import verdict_boxes
from splitvfl.report.own_seat import seat_lines, seat_verdict
from splitvfl.report.party_result import PartyResult
from splitvfl.report.provenance import PartyRecord, Provenance
from splitvfl.report.report import finished_runs, unfinished_runs, write_report
from splitvfl.report.rows import group_runs, rows_by_defense
from splitvfl.report.summary import OwnModelResult, RunSummary, read_summary
from tests.report.test_audit_page import PROMISED, audit
from tests.summaries import late

EVIL = "<script>alert('x')</script> & \"$\\frac{1}$\" {{ 7*7 }}"
VOID = {"meta", "link", "img", "br", "hr", "input"}


def result(step: float | None, accumulated: float = math.nan, *, auc: float | None = None) -> LeakSummary:
    step = math.nan if step is None else step
    return LeakSummary(
        auc=step if auc is None else auc,
        worst_auc=step,
        quantile_95=step,
        accumulated_auc=accumulated,
        worst_accumulated_auc=accumulated,
        steps=3,
        undefined=17,
    )


def run(*defenses: str, leak: float | None = 0.93, attack: str = "norm", **changes: object) -> RunSummary:
    attacks = {attack: result(leak), "auditor-linear": result(0.64), "auditor-likelihood": result(0.66)}
    plain = RunSummary(
        name="demo",
        data="digits",
        task="binary",
        model="mlp",
        defenses=list(defenses),
        seed=0,
        epochs=15,
        steps=100,
        batch_size=128,
        metric="auc",
        test_metric=0.9876,
        test_loss=0.1234,
        step_ms=1.987,
        known_positives=1,
        parties={
            "telecom": PartyResult(
                attacks=attacks,
                own_columns_auc=0.81,
                detection_error=0.33,
                excess=None if leak is None else CanaryLeak(leak, leak - 0.03, leak + 0.03, 150, 150, figures=3),
                canaries={} if leak is None else {"norm": CanaryLeak(leak, leak - 0.03, leak + 0.03, 150, 150)},
            )
        },
    )
    return replace(plain, **changes)  # type: ignore[arg-type]


def test_a_data_set_called_as_its_model_is_told_from_it() -> None:
    titles = [group_runs([run(data=data, model="glm")])[0].title for data in ("glm", "digits")]
    assert titles == ["data glm, model glm", "digits, glm"]


def stored(folder: Path, summary: RunSummary, *, settings: str = "data: digits\n", steps: int = 3) -> Path:
    folder.mkdir(parents=True)
    summary.save(folder)
    (folder / "experiment.yaml").write_text(settings, encoding="utf-8")
    lines = []
    for step in range(10, 10 * steps + 1, 10):
        values = {"step": step, "train/loss": 0.5}
        for party, figures_of in summary.parties.items():
            for attack in figures_of.attacks:
                values[f"leak_auc/{party}/{attack}"] = 0.6 + step / 1000
                values[f"leak_auc_accumulated/{party}/{attack}"] = 0.7 + step / 1000
        lines.append(json.dumps(values))
    (folder / "metrics.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return folder


def page_of(tmp_path: Path, *runs: RunSummary, title: str = "A title") -> str:
    folders = [stored(tmp_path / f"run-{number}", summary) for number, summary in enumerate(runs)]
    return write_report(folders, tmp_path / "report.html", title=title).read_text(encoding="utf-8")


class Outline(HTMLParser):
    """Collects tags, ids and text, and fails on tags that do not match."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text.append(data)


def outline(page: str) -> Outline:
    parsed = Outline()
    parsed.feed(page)
    parsed.close()
    assert parsed.open == []
    return parsed


def text_of(page: str) -> str:
    return " ".join(" ".join(outline(page).text).split())


def test_page_names_the_epoch_that_was_kept(tmp_path: Path) -> None:
    early = run(epochs=7, planned_epochs=30, kept_epoch=4, validation_metric=0.9123)
    assert "kept the weights of epoch 4, with a validation AUC of 0.912." in page_of(tmp_path / "early", early)
    assert "kept the weights" not in page_of(tmp_path / "plain", run())


@pytest.fixture(scope="module")
def drawn_page(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """A folder, and the page of the runs in it with all figures."""
    folder = tmp_path_factory.mktemp("drawn")
    return folder, page_of(folder, run(), run("max-norm"), run("isotropic", data="bank"))


def test_page_stands_alone(drawn_page: tuple[Path, str]) -> None:
    folder, page = drawn_page
    parsed = outline(page)

    assert {"script", "link", "img", "iframe", "image"}.isdisjoint(tag for tag, _ in parsed.tags)
    for _, attributes in parsed.tags:
        for name in ("src", "href", "xlink:href"):
            assert (attributes.get(name) or "#").startswith("#")
    assert re.search(r"@import|url\((?!#)", page) is None
    assert str(folder) not in page


def test_ids_are_unique_and_references_meet_them(drawn_page: tuple[Path, str]) -> None:
    _, page = drawn_page
    ids = re.findall(r'\bid="([^"]+)"', page)
    assert len(ids) == len(set(ids))
    assert set(re.findall(r'(?:url\(#|href="#)([^")]+)', page)) <= set(ids)


@pytest.mark.usefixtures("drawn")
def test_figures_and_definitions_are_there(tmp_path: Path) -> None:
    page = page_of(tmp_path, run(), run("isotropic", leak=0.55))
    text = text_of(page)
    assert page.count("<svg") == 2
    assert text.index("below goal") < text.index("Contents") < text.index("Guarantees")
    for expected in (
        "0.988",
        "0.123",
        "1.99",
        "0.93",
        "0.66 0.66, –",
        "0.81",
        "0.33",
        "guessing",
        "Limits",
        "Attack: norm",
        "Attack: auditor",
        "data: digits",
        "isotropic known to be broken below goal 0.988 0.55 0.52–0.58 none",
        "no defense above goal 0.988 0.93 0.90–0.96 none",
    ):
        assert expected in text, expected


def judged(*defenses: str, low: float = 0.5, auc: float = 0.55, high: float = 0.59, **changes: object) -> RunSummary:
    """Return a run with all three figures, among 300 canaries."""
    found = CanaryLeak(auc, low, high, 150, 150)
    plain = run(*defenses, leak=0.72, canaries=found)
    party = replace(
        plain.parties["telecom"],
        total=0.91,
        prediction_auc=0.9,
        excess=None,
        worst_canaries=found,
        first_component_auc=0.62,
    )
    return replace(plain, parties={"telecom": party}, **changes)  # type: ignore[arg-type]


def test_the_first_page_has_the_figures_of_each_defense(tmp_path: Path) -> None:
    silent = PartyResult(attacks={}, own_columns_auc=0.81, first_component_auc=0.62)
    nothing = run(exchange="one-way", parties={"telecom": silent}, test_metric=0.9312)
    page = page_of(tmp_path, run(), judged("asymmetric-response"), judged("max-norm", private_top=True), nothing)
    first = text_of(page).partition("Contents")[0]
    for expected in (
        "asymmetric-response below goal 0.988 0.55 0.50–0.59 none – 0.91 0.62 0.81 not measured",
        "max-norm, private top known to be broken below goal 0.988 0.55",
        "one-way no label-dependent message 0.931 – none nothing new – 0.62 0.81 not measured",
        "What to do. Train with asymmetric-response.",
    ):
        assert expected in first, expected


def test_the_first_page_of_one_run_is_what_the_terminal_shows(tmp_path: Path) -> None:
    (first, _, rest) = text_of(page_of(tmp_path, judged("x", low=0.65, auc=0.7, high=0.75))).partition("Contents")
    for heading, lines in verdict_boxes(judged("x", low=0.65, auc=0.7, high=0.75)):
        assert heading.plain in first
        for name, value, text in lines:
            assert " ".join(f"{name} {value} {text}".split()) in first
    assert "Model. test AUC 0.988" in first
    assert "What to do. Train one-way" in first
    assert first.count("ABOVE GOAL") == 1
    assert "ABOVE GOAL" not in rest


@pytest.mark.usefixtures("drawn")
def test_the_excess_is_drawn_and_nothing_where_nobody_measured_it() -> None:
    found = figures.cost_and_leak(group_runs([judged("x"), judged("y", auc=0.58)])[0], name="a")
    assert "excess leakage, AUC" in found
    assert "goal: at most 0.60" in found
    assert figures.cost_and_leak(group_runs([run(leak=None)])[0], name="a") == ""


@pytest.mark.usefixtures("drawn")
def test_points_have_the_colour_of_their_state_and_the_trivial_models_are_lines() -> None:
    own = OwnModelResult("bank", "mlp", "auc", 0.9, 0.8123, 0.1, 0.05, 0.15, 100, 100)
    silent = run(exchange="one-way", parties={"telecom": PartyResult(attacks={})})
    bad, good = judged("a", low=0.7, auc=0.75, high=0.8, own_model=own), judged("b")
    for runs, colours in (([bad, silent], {"high"}), ([good, silent], {"low"}), ([bad, good], {"low", "high"})):
        found = figures.cost_and_leak(group_runs(runs)[0], name="a")
        assert set(re.findall(r"var\(--(low|high|middle|silent)\)", found)) == colours
        assert ("bank alone" in found) is (bad in runs)
        assert ("one-way: no message depends on labels" in found) is (silent in runs)


@pytest.mark.usefixtures("drawn")
def test_the_total_is_drawn_beside_the_baseline_where_nobody_measured_the_excess() -> None:
    plain = run(leak=None)
    party = replace(plain.parties["telecom"], total=0.91, canaries={}, excess=None)
    found = figures.cost_and_leak(group_runs([replace(plain, parties={"telecom": party})])[0], name="a")
    assert "total leakage, AUC" in found
    assert "baseline: 0.81" in found
    assert "goal" not in found


@pytest.mark.usefixtures("drawn")
def test_names_are_never_markup(tmp_path: Path) -> None:
    evil = run(
        EVIL,
        attack=EVIL,
        name=EVIL,
        data=EVIL,
        model=EVIL,
        measurements={EVIL: 1.0},
        parties={
            EVIL: PartyResult(
                attacks={EVIL: result(0.93)},
                unavailable={EVIL: EVIL},
                measurements={f"{EVIL}/power": 1.0},
                own_columns_auc=0.8,
                features=[
                    FeatureLeak(
                        attack=EVIL,
                        mse=0.1,
                        blind_mse=0.2,
                        features=1,
                        note=EVIL,
                        columns=[ColumnLeak(EVIL, 0.1, 0.2, 0.3, 0.4)],
                    )
                ],
                after_training={EVIL: late(0.9, 0.9, 0.5, 0.5)},
            ),
            "other": PartyResult(attacks={EVIL: result(0.6)}),
        },
    )
    folder = stored(tmp_path / "run", evil, settings=f"name: {EVIL}\n")
    page = write_report([folder, folder], tmp_path / "report.html", title=EVIL).read_text(encoding="utf-8")

    assert "<script" not in page
    text = text_of(page)
    assert text.count("<script>alert('x')</script>") > 20
    assert "{{ 7*7 }}" in text
    assert "\\frac{1}" in text, "the figures draw names as they are, not as formulas"


def test_both_views_of_predictions_and_single_columns_are_shown(tmp_path: Path) -> None:
    leaks = [
        FeatureLeak("half-star", 0.0312, 0.08, 2, sees="scores", half_mse=0.0912, near=0.31, equations=1, joint=5),
        FeatureLeak(
            "half-star",
            0.0017,
            0.08,
            2,
            note="3 of 24 records lie beyond the known range",
            sees="activation",
            half_mse=0.0912,
            near=0.97,
            equations=2,
            joint=2,
            columns=[ColumnLeak("age", 0.0021, 0.0801, 0.0901, 0.96), ColumnLeak("calls", 0.0013, 0.07, 0.09, 0.98)],
        ),
    ]
    shown = run(parties={"telecom": PartyResult(attacks={}, features=leaks)})
    folder = stored(tmp_path / "run", shown)
    assert read_summary(folder).parties["telecom"].features == leaks

    text = text_of(write_report([folder], tmp_path / "report.html", title="views").read_text(encoding="utf-8"))

    assert re.search(r"half-star\s*telecom\s*scores\s*2\s*1\s*in 5 features\s*0.0312\s*–\s*31%\s*–\s*–", text)
    assert re.search(r"half-star\s*telecom\s*activation\s*2\s*2\s*0.0017\s*–\s*97%\s*–\s*–", text)
    assert re.search(r"\(means alone\)\s*telecom\s*activation\s*2\s*2\s*0.08\s*–", text)
    assert re.search(r"\(½ alone\)\s*telecom\s*activation\s*2\s*2\s*0.0912\s*–", text)
    assert re.search(r"age\s*telecom\s*activation\s*half-star\s*0.0021\s*0.0801\s*0.0901\s*96%\s*–", text)
    assert "half-star (activation of test records): 3 of 24 records lie beyond the known range." in text


def test_what_was_recovered_of_features_has_a_shade_each_and_hostile_names_stay_text(tmp_path: Path) -> None:
    names = ["<b>age</b>", *(f"c{place}" for place in range(44))]
    columns = [
        ColumnShare(name, share, accumulated=0.25) for name, share in zip(names, (0.9, *[0.1] * 44), strict=True)
    ]
    told = {"left_out": ["flat"], "without_messages": 0.07, "note": "3 messages were left out"}
    later = {"evaluation": LaterReading(0.27, 0, 1_234, columns), "prediction": LaterReading(0.26, 0, 5, columns)}
    reading = ColumnReading("ridge", 0.05, 0.31, 1, 200, columns, accumulated=0.33, **told, **later)
    one = run()
    name, own = next(iter(one.parties.items()))
    page = page_of(tmp_path, replace(one, parties={name: replace(own, readings=[reading])}))
    assert 'style="background:#3d3d3d;color:#ffffff">90%<' in page
    assert 'style="background:#c9c9c9;color:#000000">25%<' in page, "over the run"
    assert "<b>age</b>" not in page
    text = text_of(page)
    for said in (
        "knows 5% of the records",
        "<b>age</b>",
        "and 5 others",
        "flat",
        "7%",
        "33%",
        "3 messages were left out",
        "mean, of records that were evaluated 27%",
        "mean, of records that were scored 26%",
    ):
        assert said in text, said
    (sentence,) = columns_read(replace(one, parties={name: replace(own, readings=[reading])}))
    assert sentence.endswith(
        "On records outside of the training it recovers 27% where they are evaluated and 26% where they are scored."
    )
    assert "Features of telecom" not in text_of(page_of(tmp_path / "none", run()))


def test_categories_stand_beside_the_most_frequent_one(tmp_path: Path) -> None:
    columns = [ColumnShare("region", 0.5, 0.55, right=0.83, commonest=0.66), ColumnShare("age", 0.1, 0.1)]
    told = {"one_hot": [ColumnShare("<i>sex</i>", 0.2, right=0.61, commonest=0.51)], "too_many": ["device"]}
    reading = ColumnReading("ridge", 0.05, 0.3, 0, 200, columns, accumulated=0.33, **told)
    one = run()
    name, own = next(iter(one.parties.items()))
    summary = replace(one, parties={name: replace(own, readings=[reading])})
    text = text_of(page := page_of(tmp_path, summary))
    assert "<i>sex</i>" not in page
    assert "region 55% 83% right, 66% by guessing" in text
    assert "<i>sex</i> 20% 61% right, 51% by guessing" in text
    assert "Left out, more than 32 categories: device." in text
    (said,) = columns_read(summary)
    assert (
        "recovers 33% of its features, the mean of 2 (of numbers the variance, of 1 categorical field what is" in said
    )
    assert "most of region (55%)" in said, "over the run, of which nobody counted what was right"
    assert said.endswith("Left out, as they have more than 32 categories: device.")
    seated = replace(summary, seat=name)
    assert "recovers 33% of them (of numbers the variance, of 1 categorical field" in seat_lines(seated)[0]
    assert "recovers 33% of your features, the mean of 2 (of numbers" in seat_verdict(seated)
    last = replace(reading, accumulated=None, columns=[replace(one, accumulated=None) for one in columns])
    (said,) = columns_read(replace(one, parties={name: replace(own, readings=[last])}))
    assert "most of region (50%: 83% right, the most frequent category 66%)" in said


def test_attacks_after_training_and_what_they_knew_are_shown(tmp_path: Path) -> None:
    after = late(0.97, 0.93, 0.72)
    knowing = run(
        known_positives=10,
        known_negatives=12,
        parties={"telecom": PartyResult(attacks={"norm": result(0.6)}, after_training={"model-completion": after})},
    )
    text = text_of(page_of(tmp_path, run(), knowing))
    assert "telecom model-completion 10 positive and 12 negative records 0.97 0.72 0.93 –" in text
    assert "Attack: model-completion" in text
    assert "know 1 positive and 0 negative records or 10 positive and 12 negative records. A partner" in text
    assert "Before: the same attack" not in text_of(page_of(tmp_path / "other", run()))


@pytest.mark.parametrize(("task", "metric"), [("multiclass", "accuracy"), ("regression", "r2")])
def test_runs_without_leaks(tmp_path: Path, task: str, metric: str) -> None:
    summary = run(task=task, metric=metric, parties={"telecom": PartyResult(attacks={})})
    page = page_of(tmp_path, summary)
    assert "<svg" not in page
    assert "NOT MEASURED" in text_of(page)
    assert "Leak AUC of every attack" not in page


def test_missing_figures_are_dashes(tmp_path: Path) -> None:
    empty = run(leak=None, test_metric=None, test_loss=None, step_ms=None)
    unseen = replace(empty, parties={"telecom": PartyResult(attacks={"norm": result(None)})})
    page = page_of(tmp_path, unseen, run("max-norm", test_metric=None))
    text = text_of(page)
    assert "–" in text
    assert "None" not in text
    assert "nan" not in text.lower().replace("provenance", "")


def test_run_without_metrics_or_settings(tmp_path: Path) -> None:
    folder = stored(tmp_path / "run", run())
    (folder / "metrics.jsonl").unlink()
    (folder / "experiment.yaml").unlink()
    page = write_report([folder], tmp_path / "report.html", title="t").read_text(encoding="utf-8")
    assert page.count("<svg") == 1
    assert "Leak AUC while training" not in page


def test_seeds_become_means_with_intervals(tmp_path: Path) -> None:
    runs = [run("max-norm", seed=seed, leak=0.90 + seed / 100) for seed in range(3)]
    text = text_of(page_of(tmp_path, *runs))
    # t(0.975, 2) · 0.01 / √3 = 0.0248
    assert "0.91 ± 0.02" in text
    assert "max-norm known to be broken 3 runs, pooled above goal 0.988 ± 0.000 0.91" in text


@pytest.mark.usefixtures("drawn")
def test_same_runs_give_the_same_page(tmp_path: Path) -> None:
    folder = stored(tmp_path / "run", run())
    first = write_report([folder], tmp_path / "a.html", title="t").read_bytes()
    assert write_report([folder], tmp_path / "b.html", title="t").read_bytes() == first


def test_written_all_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = stored(tmp_path / "run", run())
    target = tmp_path / "new" / "folder" / "report.html"
    write_report([folder], target, title="t")
    before = target.read_bytes()
    assert [path.name for path in target.parent.iterdir()] == ["report.html"]

    def full_disk(*_: object) -> None:
        raise OSError("no space left")

    monkeypatch.setattr("splitvfl.report.pages.os.replace", full_disk)
    with pytest.raises(CheckpointError, match="no space left"):
        write_report([folder], target, title="another title")
    assert target.read_bytes() == before
    assert [path.name for path in target.parent.iterdir()] == ["report.html"]


def test_a_draft_is_a_new_file_under_a_name_that_nobody_foresees(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a folder where others may write, a link under the draft's name would have us overwrite what it leads to."""
    folder, drafts = stored(tmp_path / "run", run()), list[str]()
    replaced = os.replace

    def noting(draft: Path, target: Path) -> None:
        drafts.append(draft.name)
        replaced(draft, target)

    monkeypatch.setattr(os, "replace", noting)
    for _ in range(2):
        write_report([folder], tmp_path / "report.html", title="t")
    # Two of 64 random bits are the same once in 2^64 runs.
    assert len(drafts) == len(set(drafts)) == 2
    monkeypatch.setattr(secrets, "token_hex", lambda count: "known")
    (tmp_path / "precious").write_text("mine")
    (tmp_path / ".report.html.known").symlink_to(tmp_path / "precious")
    with pytest.raises(CheckpointError, match=r"cannot write .*report\.html: .*exists"):
        write_report([folder], tmp_path / "report.html", title="t")
    assert (tmp_path / "precious").read_text() == "mine"


def test_what_a_worker_keeps_for_itself_is_no_run_that_was_left_out(tmp_path: Path) -> None:
    for folder in ("run", "run/worker-1", "run/worker-x", "worker-2"):
        (tmp_path / folder).mkdir(parents=True)
        (tmp_path / folder / "experiment.yaml").write_text("data: {}")
    assert unfinished_runs([tmp_path]) == [tmp_path / "run", tmp_path / "run" / "worker-x", tmp_path / "worker-2"]


def test_unfinished_runs_and_none_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ArgumentError, match="at least one"):
        write_report([], tmp_path / "report.html", title="t")
    with pytest.raises(CheckpointError, match="no finished run"):
        write_report([tmp_path], tmp_path / "report.html", title="t")
    assert not (tmp_path / "report.html").exists()


def curves(group_of: list[RunSummary], lines: list[list[Mapping[str, float]]]) -> str:
    return figures.leak_curves(group_runs(group_of)[0], lines, name="curves")


@pytest.mark.usefixtures("drawn")
def test_a_page_does_not_depend_on_matplotlibs_settings(tmp_path: Path) -> None:
    """They may come from a file in the current folder; of these, LaTeX would run, and others change what is seen."""
    folder = stored(tmp_path / "run", run("isotropic"))
    usual = write_report([folder], tmp_path / "a.html", title="t").read_bytes()
    theirs = {"text.usetex": True, "text.latex.preamble": r"\input{/etc/passwd}", "lines.linewidth": 50.0}
    with matplotlib.rc_context(theirs):
        assert write_report([folder], tmp_path / "b.html", title="t").read_bytes() == usual
        assert matplotlib.rcParams["lines.linewidth"] == 50.0


@pytest.mark.usefixtures("drawn")
def test_svg_is_well_formed_and_takes_the_pages_colours() -> None:
    group = group_runs([run(), run("max-norm", leak=0.55)])[0]
    lines = [[{"step": 1, "leak_auc/telecom/norm": 0.9}, {"step": 2, "leak_auc/telecom/norm": 0.8}]] * 2
    drawings = [
        figures.leak_curves(group, lines, name="a"),
        figures.cost_and_leak(group, name="b"),
    ]
    for drawing in drawings:
        ElementTree.fromstring(drawing)
        assert "var(--ink)" in drawing
        assert "#01020" not in drawing


def test_curves_are_turned_as_the_summary_turns_them() -> None:
    reversed_norm = PartyResult(attacks={"norm": result(0.9, 0.8, auc=0.1)})
    panel = next(
        figures._panels(
            group_runs([run(parties={"telecom": reversed_norm})])[0],
            [[{"step": 5, "leak_auc/telecom/norm": 0.1, "leak_auc_accumulated/telecom/norm": 0.8}]],
        )
    )
    assert panel.per_step == {"norm": {5: pytest.approx(0.9)}}
    assert panel.accumulated == {"norm": {5: 0.8}}


def test_curves_average_seeds_at_common_steps_and_take_the_auditors_better_attack() -> None:
    first = [{"step": step, "leak_auc/telecom/auditor-linear": 0.6, "leak_auc/telecom/norm": 0.7} for step in (1, 2, 3)]
    second = [
        {"step": step, "leak_auc/telecom/auditor-linear": 0.8, "leak_auc/telecom/auditor-likelihood": 0.6}
        for step in (2, 3, 4)
    ]
    (panel,) = figures._panels(group_runs([run(), run(seed=1)])[0], [first, second])
    assert panel.per_step["auditor"] == pytest.approx({2: 0.7, 3: 0.7})
    assert panel.per_step["norm"] == pytest.approx({1: 0.7, 2: 0.7, 3: 0.7})


def test_labels_keep_their_distance_and_order() -> None:
    heights = {"a": 0.5, "b": 0.5, "c": 0.51, "d": 1.0, "e": 1.0}
    spread = figures._spread(heights, gap=0.1, low=0.4, high=1.0)
    placed = sorted(spread.values())
    assert sorted(spread, key=lambda name: spread[name]) == ["a", "b", "c", "d", "e"]
    # Sums of tenths are exact to a few 1e-16.
    assert min(after - before for before, after in itertools.pairwise(placed)) >= 0.1 - 1e-12
    assert placed[-1] <= 0.95 + 1e-12
    assert placed[0] >= 0.45 - 1e-12


def test_attacks_explain_themselves(tmp_path: Path) -> None:
    names = ("norm@layers.0", "component", "component-of-activation", "mine", "mine@layers.0")
    page = text_of(
        page_of(tmp_path, run(parties={"telecom": PartyResult(attacks={name: result(0.6) for name in names})}))
    )

    assert NormAttack.explanation not in page
    assert "norm@layers.0 The norm attack on the gradient of an earlier layer of the partner's model, layers.0." in page
    assert f"component {ComponentAttack.explanation}" in page
    assert f"component-of-activation {ComponentAttack.other_names['component-of-activation']}" in page
    assert "mine An attack that came with the experiment." in page
    assert "mine@layers.0 An attack that came with the experiment." in page


def test_an_installed_attack_explains_itself_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Mine:
        name = "mine"
        explanation = "It guesses <b>well</b>."

    monkeypatch.setattr("splitvfl.config.registry.installed", lambda kind: {"mine": Mine} if kind == "attacks" else {})

    assert "<dd>It guesses &lt;b&gt;well&lt;/b&gt;.</dd>" in page_of(tmp_path, run(attack="mine"))


def test_an_attack_that_reads_the_wrong_way_round_after_training_has_chance_beside_it(
    tmp_path: Path,
) -> None:
    after = replace(late(0.04, math.nan, 0.52, positives=56, negatives=57), scored=0.5)
    knowing = run(parties={"telecom": PartyResult(attacks={}, after_training={"model-completion": after})})
    page = page_of(tmp_path, knowing)
    assert "<td>0.96<small>turned from 0.04</small></td>" in page
    assert "<small>guessing 0.54</small>" in page
    assert "<small>scores 50%</small>" in page


def test_records_left_out_and_chance_are_shown(tmp_path: Path) -> None:
    few = replace(result(0.98), worst_auc=0.59, tied_auc=0.59, scored=0.1, positives=56, negatives=57)
    text = text_of(page_of(tmp_path, run(parties={"telecom": PartyResult(attacks={"norm": few})})))
    assert "of 10%: 0.98" in text
    assert "Guessing is expected to reach 0.54 on 113, of them 56 positive" in text


# --- what makes it one that can be signed


def noted(**changes: object) -> Provenance:
    parties = {
        "bank": PartyRecord("active", 3, 1, {"labels": "ab" * 16}),
        "telecom": PartyRecord("passive", 9, 0, {"columns": "cd" * 16}),
    }
    known = Provenance(
        "2026-05-04T16:05:06Z",
        "2026-05-04T17:05:06Z",
        "splitvfl train credit.yaml",
        {"torch": "2.0"},
        {},
        12345,
        678,
        90,
        parties,
    )
    return replace(known, **changes)  # type: ignore[arg-type]


HANDED_ON = (
    "summary.json",
    "metrics.jsonl",
    "experiment.yaml",
    "audit.json",
    "reconstruct.json",
    "columns-read.json",
    "releases.json",
)


@pytest.mark.parametrize("name", HANDED_ON)
def test_a_link_or_a_pipe_in_a_run_that_was_handed_on_is_told_and_not_opened(tmp_path: Path, name: str) -> None:
    """A link may lead to any file of the reader's, whose content would stand in the page; a pipe waits for ever."""
    folder = stored(tmp_path / "run", run())
    (tmp_path / "secret").write_text("token: swordfish")
    (folder / name).unlink(missing_ok=True)
    (folder / name).symlink_to(tmp_path / "secret")
    for what in ("is a link", "is no file"):
        with pytest.raises(CheckpointError, match=rf"run/{name} {what}"):
            write_report([folder], tmp_path / "report.html", title="Runs", show_records=name == "columns-read.json")
        (folder / name).unlink()
        os.mkfifo(folder / name)
    assert not (tmp_path / "report.html").exists()


def test_what_a_run_noted_of_its_beginning_is_read_from_no_link(tmp_path: Path) -> None:
    folder = stored(tmp_path / "run", run(provenance=noted()))
    (tmp_path / "other.json").write_text('{"data": "swordfish"}')
    (folder / "begun.json").symlink_to(tmp_path / "other.json")
    with pytest.raises(CheckpointError, match=r"begun\.json is a link") as refusal:
        read_summary(folder)
    assert "swordfish" not in str(refusal.value)


def test_settings_that_are_no_utf_8_are_damaged(tmp_path: Path) -> None:
    folder = stored(tmp_path / "run", run())
    (folder / "experiment.yaml").write_bytes("name: Größe\n".encode("latin-1"))
    with pytest.raises(CheckpointError, match=r"experiment\.yaml is damaged: 'utf-8' codec can't decode"):
        write_report([folder], tmp_path / "report.html", title="Runs")


@pytest.mark.parametrize(
    "change",
    [{"defenses": None}, {"learned": [{}]}, {"learned": 3}, {"defenses": [{"claims": [{}]}]}],
    ids=str,
)
def test_an_audit_of_another_shape_is_damaged(tmp_path: Path, change: dict[str, object]) -> None:
    folder = stored(tmp_path / "run", run())
    found = json.loads(json.dumps(audit(PROMISED).as_json())) | change
    (folder / "audit.json").write_text(json.dumps(found), encoding="utf-8")
    with pytest.raises(CheckpointError, match=r"run/audit\.json is damaged: .*; audit the run again, or delete it"):
        write_report([folder], tmp_path / "report.html", title="Runs")


def test_settings_of_a_foreign_summary_are_no_traceback(tmp_path: Path) -> None:
    one = stored(tmp_path / "one", run(provenance=noted(settings={"train.epochs": "3"})))
    other = stored(tmp_path / "other", run(provenance=noted(settings={"train.epochs": r'"\u001b[2J three"'})))
    page = write_report([one, other], tmp_path / "report.html", title="Runs").read_text(encoding="utf-8")
    assert r"epochs=\x1b[2J three" in page, "escapes of JSON are those of a terminal, too, once they are read"

    summary = other / "summary.json"
    summary.write_text(
        re.sub(r'("train.epochs": )"(?:[^"\\]|\\.)*"', r'\1"three"', summary.read_text(encoding="utf-8"))
    )
    with pytest.raises(
        CheckpointError, match=r"other/summary\.json is damaged: .*train\.epochs.*'three'.* leave this run out"
    ):
        write_report([one, other], tmp_path / "report.html", title="Runs")


def test_page_says_what_it_is_about_and_has_room_for_a_signature(tmp_path: Path) -> None:
    text = text_of(page_of(tmp_path, run(provenance=noted())))
    for expected in (
        "bank (labels) with telecom",
        "12,345 training records, of them 90 held out, and 678 test records",
        "2026-05-04 16:05:06 UTC",
        "2026-05-04 17:05:06 UTC",
        "splitvfl train credit.yaml",
        "torch 2.0",
        "3 features of numbers after encoding, 1 categorical field",
        f"labels {'ab' * 16}",
        f"columns {'cd' * 16}",
        "Name Date Signature",
    ):
        assert expected in text, expected
    assert "older version" in text_of(page_of(tmp_path / "old", run()))


@pytest.mark.usefixtures("drawn")
def test_the_plot_is_on_the_first_page(tmp_path: Path) -> None:
    page = page_of(tmp_path, run(), run("max-norm"))
    first = page[page.index("<svg") : page.index("</svg>")]
    assert "What each defense costs and leaks" in first
    assert page.index(first) < page.index("Contents")


def test_attacks_are_cells_on_one_scale_and_the_auditor_is_the_first(tmp_path: Path) -> None:
    page = page_of(tmp_path, run(), run("max-norm", leak=0.5, attack="direction"))
    table = page.partition("<h3>Attacks on labels</h3>")[2].partition("</table>")[0]
    assert re.findall("<th>([^<]+)</th>", table) == ["Defense", "auditor", "norm", "direction"]
    assert 'style="background:#ffffff;color:#000000">0.50<' in table
    assert 'style="background:#464646;color:#ffffff">0.93<' in table
    assert table.count("<td>–</td>") == 2


def test_settings_that_runs_share_stand_once(tmp_path: Path) -> None:
    for number, defense in enumerate(("a", "b", "b")):
        stored(tmp_path / str(number), run(defense), settings=f"data: digits\ndefenses: [{defense}]\n")
    text = text_of(write_report([tmp_path], tmp_path / "report.html", title="t").read_text())
    shown = text.partition("Provenance")[2]
    assert shown.count("data: digits") == 1
    assert "but for: -defenses: [a] +defenses: [b]" in shown
    assert shown.count("Settings as of the run above.") == 1


def test_every_figure_has_a_text_and_every_table_can_be_reached(tmp_path: Path) -> None:
    parsed = outline(page_of(tmp_path, run(), judged("max-norm"), run("isotropic", data="bank")))
    pictures = [attributes for tag, attributes in parsed.tags if tag == "svg"]
    assert pictures
    assert all(picture.get("role") == "img" and len(picture.get("aria-label") or "") > 40 for picture in pictures)
    around = [attributes for tag, attributes in parsed.tags if tag == "div" and attributes.get("class") == "wide"]
    assert around
    assert all(one.get("tabindex") == "0" and one.get("aria-label") for one in around)


def test_contents_lead_to_every_part(tmp_path: Path) -> None:
    tags = outline(page_of(tmp_path, run(), run("max-norm", data="bank"))).tags
    ids = [one["id"] for tag, one in tags if tag == "h2" and one.get("id")]
    assert ids == ["details-1", "details-2", "definitions", "limits", "provenance"]
    assert [one["href"] for tag, one in tags if tag == "a"] == [f"#{name}" for name in ids]


def test_a_guarantee_stands_with_its_scope_and_what_voids_it(tmp_path: Path) -> None:
    def bound(scope: Per, *void: str) -> RunSummary:
        return replace(run("x"), parties={"telecom": PartyResult({}, guarantee=Guarantee(0.6, scope, "x", void))})

    for number, (found, said) in enumerate(
        [
            (bound("run"), "x 0.60 the whole run"),
            (bound("message"), "x 0.60 one message, not the run"),
            (bound("run", "class weights"), "x 0.60 void: the partner sees class weights"),
            (run("x"), "x – no guarantee"),
        ]
    ):
        assert said in text_of(page_of(tmp_path / str(number), found)).partition("Guarantees")[2]


def test_folders_of_comparisons_are_descended_into_in_counting_order(tmp_path: Path) -> None:
    for seed in (10, 9):
        stored(tmp_path / "compare" / "none" / f"seed-{seed}", run(seed=seed))
    alone = stored(tmp_path / "alone", run())
    found = finished_runs([tmp_path / "compare", alone, alone])
    assert [path.name for path in found] == ["seed-9", "seed-10", "alone"]
    (tmp_path / "compare" / "none" / "seed-9" / "summary.json").unlink()
    assert unfinished_runs([tmp_path / "compare"]) == [tmp_path / "compare" / "none" / "seed-9"]


def test_folders_without_a_run_are_told_what_is_wrong(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(CheckpointError, match="nope: there is no such folder"):
        write_report([tmp_path / "nope"], tmp_path / "nope" / "report.html", title="")
    with pytest.raises(CheckpointError, match="empty holds no finished run"):
        write_report([tmp_path / "empty"], tmp_path / "report.html", title="")
    assert not (tmp_path / "nope").exists()


def test_paths_of_this_machine_are_not_printed(tmp_path: Path) -> None:
    folder = stored(tmp_path / "run", run(), settings="data:\n  path: /home/anna/secret-project/x.csv\n")
    page = write_report([folder], tmp_path / "report.html", title="").read_text()
    assert "anna" not in page
    assert "…/x.csv" in page


def test_names_are_not_struck_through_by_error_bars() -> None:
    # Three seeds far apart give bars across the picture, through where names are put first.
    runs = [
        run(defense, seed=seed, leak=leak, test_metric=test)
        for defense in ("a-defense", "another-defense")
        for seed, (leak, test) in enumerate([(0.65, 0.7), (0.8, 0.8), (0.95, 0.9)])
    ]
    with figures.drawing_style():
        drawn = figures.new_figure(3.7)
        axes = drawn.subplots()
        found = [figures._Point.of(row, excess=True) for row in rows_by_defense(group_runs(runs)[0])]
        points = [point for point in found if point is not None]
        assert len(points) == 2
        for point in points:
            figures._draw_point(axes, point)
        figures._set_ranges(axes, [point.test for point in points], [])
        figures._label_points(drawn, axes, points)
        drawn.draw_without_rendering()
        for label in axes.texts:
            box = label.get_window_extent()
            behind = label.get_bbox_patch()
            struck = any(
                figures._overlap(box, bar) > 0
                for point in points
                for bar in figures._bars_of(axes, point, drawn.dpi / 72)
            )
            assert behind is not None
            assert behind.get_alpha() in (None, 1)
            assert not struck or label.get_zorder() > 3  # then its paper covers the bar


def test_what_a_defense_states_stands_beside_what_was_measured(tmp_path: Path) -> None:
    promised = run("asymmetric-response(detection_error=0.4)", measurements={"labels/detection_error_bound": 0.41})
    page = page_of(tmp_path, promised, run())
    assert "<td>0.33<small>stated 0.41</small></td>" in page
    assert page.count("<td>0.33<small></small></td>") == 1


def test_a_badge_is_the_verdict(tmp_path: Path) -> None:
    for state, coins in {
        "inconclusive": CanaryLeak(0.55, 0.45, 0.65, 30, 30),
        "below-goal": CanaryLeak(0.55, 0.5, 0.6, 300, 300),
        "above-goal": CanaryLeak(0.7, 0.61, 0.8, 30, 30),
    }.items():
        page = page_of(tmp_path / state, judged("x", low=coins.low, auc=coins.auc, high=coins.high))
        assert f'class="badge {state}">{state.replace("-", " ").upper()}<' in page


def test_what_an_audit_of_the_run_found_is_in_the_page(tmp_path: Path) -> None:
    folder = stored(tmp_path / "run-0", run("my-noise"))
    plain = write_report([folder], tmp_path / "report.html", title="A title").read_text(encoding="utf-8")
    assert "Audits" not in plain
    found = audit(PROMISED).as_json()
    (folder / "audit.json").write_text(json.dumps(found), encoding="utf-8")
    page = write_report([folder], tmp_path / "report.html", title="A title").read_text(encoding="utf-8")
    said = text_of(page)
    assert said.index("Columns were not looked at.") < said.index("Of 100 labels it would get 61 right")
    assert "audit.html" not in page, "the audit has no page"
    write_audit_page(found, folder / "audit.html")
    for beside, link in (
        (tmp_path, "./run-0/audit.html"),
        (folder, "./audit.html"),
        (tmp_path / "away", "./../run-0/audit.html"),
    ):
        page = write_report([folder], beside / "report.html", title="A title").read_text(encoding="utf-8")
        found_links = [attributes["href"] or "" for tag, attributes in outline(page).tags if tag == "a"]
        assert [found for found in found_links if not found.startswith("#")] == [link]

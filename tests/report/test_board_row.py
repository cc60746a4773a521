"""What TensorBoard's own reader finds of the layout, and of a run's row among the others."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from tensorboard.backend.event_processing.plugin_event_accumulator import EventAccumulator
from tensorboard.plugins.custom_scalar import layout_pb2
from tensorboard.plugins.hparams import metadata

from splitvfl.leakage.board import LAYOUT, layout_of
from splitvfl.leakage.canaries import CanaryLeak
from splitvfl.leakage.leak_summary import LeakSummary
from splitvfl.leakage.monitor import Monitor, read_metrics
from splitvfl.report.board_row import show_on_board
from splitvfl.report.party_result import PartyResult
from splitvfl.report.summary import RunSummary


def summary(**changed: object) -> RunSummary:
    leak = LeakSummary(
        auc=0.7, worst_auc=0.7, quantile_95=0.8, accumulated_auc=0.9, worst_accumulated_auc=0.9, steps=20, undefined=0
    )
    told = {
        "name": "one",
        "data": "digits",
        "task": "binary",
        "model": "mlp",
        "defenses": ["sumkl(detection_error=0.4)", "max-norm"],
        "seed": 3,
        "epochs": 2,
        "steps": 20,
        "batch_size": 8,
        "metric": "auc",
        "test_metric": 0.95,
        "test_loss": 0.1,
        "step_ms": 1.0,
        "known_positives": 1,
        "parties": {"lab": PartyResult({"norm": leak})},
        **changed,
    }
    return RunSummary(**told)  # type: ignore[arg-type]


def board(folder: Path) -> EventAccumulator:
    found = EventAccumulator(str(folder))
    found.Reload()
    return found


def row(folder: Path) -> tuple[dict[str, object], dict[str, float]]:
    """Return a run's settings and figures, as the table of runs reads them."""
    found = board(folder)
    contents = found.AllSummaryMetadata()
    start = metadata.parse_session_start_info_plugin_data(contents[metadata.SESSION_START_INFO_TAG].plugin_data.content)
    kinds = {name: value.WhichOneof("kind") for name, value in start.hparams.items()}
    settings = {name: getattr(value, kinds[name]) for name, value in start.hparams.items()}
    experiment = metadata.parse_experiment_plugin_data(contents[metadata.EXPERIMENT_TAG].plugin_data.content)
    tags = [info.name.tag for info in experiment.metric_infos]
    scalars = {tag: found.Tensors(tag)[-1].tensor_proto.float_val[0] for tag in tags if tag in found.Tags()["tensors"]}
    return settings, scalars


def test_a_finished_run_is_a_row_of_settings_and_figures(tmp_path: Path) -> None:
    monitor = Monitor(tmp_path)
    monitor.write(20, {"test/auc": 0.95})
    monitor.close()

    show_on_board(summary(), tmp_path)

    settings, figures = row(tmp_path)
    assert (settings["defense"], settings["strength"], settings["seed"]) == (
        "sumkl + max-norm",
        "detection_error=0.4",
        3,
    )
    assert figures == pytest.approx({"run/test AUC": 0.95, "run/worst leak AUC": 0.9})
    assert len(list(tmp_path.glob("events.out.tfevents.*"))) == 1
    # The row is TensorBoard's alone; what was measured in steps stays as it was.
    assert read_metrics(tmp_path) == [{"step": 20, "test/auc": 0.95}]


@pytest.mark.parametrize(
    ("includes", "what"), [(True, "messages, predictions and features"), (False, "messages and predictions only")]
)
def test_a_row_says_what_its_total_includes(tmp_path: Path, includes: bool, what: str) -> None:
    party = PartyResult({}, total=0.8, includes_features=includes)
    show_on_board(summary(parties={"lab": party}), tmp_path)

    settings, figures = row(tmp_path)
    assert settings["total of"] == what
    assert figures["run/total"] == pytest.approx(0.8)


def test_a_row_has_the_state_of_labels_of_each_partner(tmp_path: Path) -> None:
    leaking = PartyResult({}, excess=CanaryLeak(0.9, 0.85, 0.95, 150, 150))
    for parties, state in (
        ({"lab": leaking}, "above goal"),
        ({"lab": leaking, "shop": PartyResult({})}, "lab: above goal; shop: inconclusive"),
    ):
        folder = tmp_path / str(len(parties))
        folder.mkdir()
        show_on_board(summary(parties=parties), folder)
        settings, figures = row(folder)
        assert settings["verdict"] == state
        assert figures["run/excess"] == pytest.approx(0.9)


def test_a_run_without_defenses_and_without_a_leak_has_a_row(tmp_path: Path) -> None:
    show_on_board(summary(defenses=[], metric="r2", parties={}), tmp_path)

    settings, figures = row(tmp_path)
    assert (settings["defense"], settings["strength"]) == ("none", "")
    assert figures == pytest.approx({"run/test R²": 0.95})


def test_leaks_and_test_come_first_in_the_layout_of_every_log(tmp_path: Path) -> None:
    monitor = Monitor(tmp_path)
    monitor.write(1, {"leak_auc/lab/norm": 0.7, "labels/lab/total": 0.9, "test/auc": 0.9, "train/loss": 0.5})
    monitor.close()

    tensor = board(tmp_path).Tensors("custom_scalars__config__")[0].tensor_proto
    layout = layout_pb2.Layout.FromString(tensor.string_val[0])

    assert [category.title for category in layout.category] == ["Leaks and test", "Each attack", "Columns", "Training"]
    assert layout.category[0].title == "Leaks and test"
    first = layout.category[0].chart
    assert [chart.title for chart in first] == list(LAYOUT["Leaks and test"])
    assert "equal prediction" in first[0].title


def test_a_run_without_an_audit_or_a_defense_has_no_empty_charts() -> None:
    assert layout_of(["train/loss"]) == {
        "Leaks and test": {"test AUC, accuracy or R²": [r"test/(auc|accuracy|r2)$"]},
        "Training": {"loss, training and test": [r"train/loss$", r"test/loss$"]},
    }
    assert layout_of(["train/loss", "leak_auc/lab/norm", "defense/0/power"]) == LAYOUT


def test_the_verdict_on_each_partner_is_a_text_with_its_figures(tmp_path: Path) -> None:
    leaking = PartyResult({}, excess=CanaryLeak(0.9, 0.85, 0.95, 150, 150), total=0.97, first_component_auc=0.6)
    show_on_board(summary(parties={"lab": leaking, "shop": PartyResult({})}), tmp_path)
    found = board(tmp_path)
    (said, other) = (
        found.Tensors(f"verdict/{name}/text_summary")[-1].tensor_proto.string_val[0].decode()
        for name in ("lab", "shop")
    )
    assert said.startswith("**lab → labels**")
    assert "- verdict ABOVE GOAL" in said
    assert "0.85–0.95, 300 canaries" in said
    assert "ABOVE GOAL" not in other
    tags = [tag for tag in found.Tags()["tensors"] if tag.startswith("verdict/lab/")]
    assert {
        tag: found.Tensors(tag)[-1].tensor_proto.float_val[0] for tag in tags if "text" not in tag
    } == pytest.approx({"verdict/lab/excess": 0.9, "verdict/lab/total": 0.97, "verdict/lab/baseline": 0.6})


def test_tags_of_a_run_are_in_the_chart_that_is_named_after_them() -> None:
    def charts(tag: str) -> list[str]:
        found = {title: tags for section in LAYOUT.values() for title, tags in section.items()}
        return [title for title, tags in found.items() if any(re.match(pattern, tag) for pattern in tags)]

    assert charts("labels/lab/beyond_prediction_matched") == ["between records of equal prediction, AUC"]
    assert charts("labels/lab/total") == ["total leakage, AUC"]
    assert charts("test/auc") == ["test AUC, accuracy or R²"]
    assert charts("test/loss") == ["loss, training and test"]
    assert charts("leak_auc/worst") == ["worst attack on messages, leak AUC"]
    assert charts("leak_auc/lab/norm") == charts("leak_auc_tied/lab/norm") == ["leak AUC of a step"]
    assert charts("leak_auc_accumulated/lab/norm") == ["leak AUC over the run"]
    assert charts("defense/clinic/sumkl/power") == ["what defenses did"]
    assert charts("columns/lab/least-squares/scores/test/mse") == ["mean squared error of estimates"]
    assert charts("columns/lab/least-squares/scores/test/mse_of_means") == ["mean squared error of guessing means"]
    assert charts("seconds") == []

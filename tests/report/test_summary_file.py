"""A summary's file: settings, one list of figures, and notes."""

from __future__ import annotations

import itertools
import json
import math
import shutil
from collections.abc import Callable, Iterator
from dataclasses import asdict, fields, is_dataclass, replace
from pathlib import Path
from types import UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

import pandas as pd
import pytest
from jsonschema import Draft202012Validator, ValidationError

from splitvfl.errors import CheckpointError
from splitvfl.report.summary import RunSummary, read_summary, summary_schema
from tests.report.test_board_row import summary
from tests.summaries import validator

FIRST_FORMAT = Path(__file__).parent / "summary_of_the_first_format.json"


def filled(kind: Any, name: str, numbers: Iterator[int]) -> Any:
    """Return a value of a type in which everything that may be missing is there, and no two figures are equal."""
    origin, inside = get_origin(kind), get_args(kind)
    if origin in (Union, UnionType):
        return filled(next(one for one in inside if one is not type(None)), name, numbers)
    if origin is Literal:
        return inside[-1]
    if is_dataclass(kind):
        hints = get_type_hints(kind)
        return kind(**{one.name: filled(hints[one.name], one.name, numbers) for one in fields(kind)})
    if origin in (list, tuple):
        return origin(filled(inside[0], name, numbers) for _ in range(2))
    if origin is dict:
        return {f"key-{next(numbers)}": filled(inside[1], name, numbers) for _ in range(2)}
    number = next(numbers)
    return {
        bool: True,
        int: number,
        float: {"low": 0.5, "high": 0.9}.get(name, 0.6 + number / 10_000),
        str: str(number) if name == "settings" else f"{name}-{number}",
    }[kind]


def everything() -> RunSummary:
    """Return a summary in which every figure and every note is there; what a folder says is not in its file."""
    found: RunSummary = filled(RunSummary, "run", itertools.count(1))
    assert found.provenance is not None
    return replace(found, seat="", released=[], provenance=replace(found.provenance, same_data=""))


def held(folder: Path, run: RunSummary) -> dict[str, Any]:
    run.save(folder)
    found: dict[str, Any] = json.loads((folder / "summary.json").read_text())
    return found


def leaves(value: Any, path: tuple[object, ...] = ()) -> dict[tuple[object, ...], Any]:
    """Return the single values inside, by their path; none where there is no figure."""
    inside = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, (list, tuple)) else ()
    found = {name: one for key, inner in inside for name, one in leaves(inner, (*path, key)).items()}
    missing = value is None or (isinstance(value, float) and math.isnan(value))
    return found if isinstance(value, (dict, list, tuple)) or missing else {path: value}


def test_every_figure_and_note_comes_back(tmp_path: Path) -> None:
    run = everything()
    assert leaves(asdict(run)) == leaves(asdict(read_again(tmp_path, run)))
    assert len(leaves(asdict(run))) > 400


def read_again(folder: Path, run: RunSummary) -> RunSummary:
    run.save(folder)
    return read_summary(folder)


def test_what_was_not_measured_is_not_listed(tmp_path: Path) -> None:
    run = summary()
    found = held(tmp_path, run)
    assert read_summary(tmp_path) == run
    assert {one["what"] for one in found["figures"]} >= {"test_metric", "auc", "worst_auc"}
    assert all(value is not None for one in found["figures"] for value in one.values())


def test_the_schema_describes_the_file_and_nothing_else(tmp_path: Path) -> None:
    Draft202012Validator.check_schema(summary_schema())
    for number, run in enumerate((everything(), summary())):
        (tmp_path / str(number)).mkdir()
        found = held(tmp_path / str(number), run)
        validator().validate(found)
        for changed in (
            found | {"more": 1},
            found | {"settings": found["settings"] | {"seed": "one"}},
            found | {"figures": [*found["figures"], {"what": "auc", "value": "high"}]},
            found | {"figures": [{"value": 0.5}]},
        ):
            with pytest.raises(ValidationError):
                validator().validate(changed)


def test_figures_are_one_table() -> None:
    table = pd.DataFrame([asdict(one) for one in everything().figures])
    canaries = table[(table.part == "canaries") & (table["at"] != "") & (table.what == "auc")]
    assert len(canaries) == 4  # of two attacks at two parties
    assert (canaries.low < canaries.value).all()
    assert (canaries.value < canaries.high).all()
    assert (canaries.records > 0).all()
    features = table[table.part.str.fullmatch(r"readings/\d+/columns/\d+") & (table.what == "share")]
    assert len(features) == 8
    assert features.of.str.startswith("column-").all()
    assert features.by.str.startswith("attack-").all()
    assert set(table[(table.part == "attacks") & (table.what == "auc")].when) == {"step", "run"}


def test_a_summary_of_the_first_format_is_read_and_keeps_its_figures(tmp_path: Path) -> None:
    shutil.copy(FIRST_FORMAT, tmp_path / "summary.json")
    before = json.loads(FIRST_FORMAT.read_text())
    del before["verdict"], before["alone"]  # own_model has the latter
    found = read_summary(tmp_path)
    (after,) = before["parties"]["lab"].pop("after_training").values()
    held = asdict(found)
    (late,) = held["parties"]["lab"].pop("after_training").values()
    assert leaves(before).items() <= leaves(held).items()
    for part, earlier in (("train", "train"), ("before_test", "baseline_test")):
        assert late[part]["auc"] == late[part]["worst_auc"] == after[f"{earlier}_auc"] > 0.9
    assert (late["train"]["positives"], late["known_positives"]) == (after["train_positives"], 10)
    assert read_again(tmp_path, found) == found
    assert found.verdict["lab"].labels is not None


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda held: held["figures"].append(held["figures"][0]), "is there twice"),
        (lambda held: held["figures"].append({"what": "mse", "part": "membership/7"}), "no entry before membership/7"),
        (lambda held: held["figures"].append({"what": "a", "part": "membership/b"}), "no entry before membership/b"),
        (lambda held: held["figures"].append({"what": "a", "part": "test_metric/b"}), "is one figure, and several"),
        (lambda held: held["notes"].append({"what": "name", "said": "other"}), "name is there twice"),
        (lambda held: held.update(version=3), "it has version 3, expected 2; update splitvfl"),
        (lambda held: held.update(figures=[{"value": 1}]), "missing required field `what`"),
    ],
)
def test_a_file_that_no_run_has_written_is_damaged(
    change: Callable[[dict[str, Any]], object], why: str, tmp_path: Path
) -> None:
    found = held(tmp_path, summary())
    change(found)
    (tmp_path / "summary.json").write_text(json.dumps(found))
    with pytest.raises(CheckpointError, match=f"summary.json is damaged: .*{why}"):
        read_summary(tmp_path)

"""Summaries of runs, as tests change them by hand, and held against their JSON Schema wherever one is written."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from splitvfl.leakage.after_training import AfterTraining
from splitvfl.leakage.leak_summary import LeakSummary
from splitvfl.metrics import oriented
from splitvfl.report import summary
from splitvfl.report.summary_file import nested


def opened(path: Path) -> dict[str, Any]:
    """Return what a summary's file holds by the attributes of a summary: a file that holds just that is read, too."""
    found = nested(json.loads(path.read_text()))
    assert isinstance(found, dict)
    return found


def late(*aucs: float, **counts: Any) -> AfterTraining:
    """Return what an attack with ten positive and twelve negative known records found after training.

    Args:
        aucs: On training and test records; on both with the model as it was before.
        counts: Further figures of training records.
    """
    train, *others = (LeakSummary(auc=one, worst_auc=oriented(one)) for one in (*aucs, *[math.nan] * (4 - len(aucs))))
    return AfterTraining(replace(train, **counts), *others, known_positives=10, known_negatives=12)


@cache
def validator() -> Draft202012Validator:
    """Return what reads the schema of ``summary.json``."""
    return Draft202012Validator(summary.summary_schema())


@pytest.fixture(scope="package", autouse=True)
def summaries_keep_to_their_schema() -> Iterator[None]:
    """Hold every summary that a test of a folder writes in its own process against the schema."""
    save = summary.RunSummary.save

    def checked(self: summary.RunSummary, folder: Path) -> None:
        save(self, folder)
        validator().validate(json.loads((folder / summary.FILE_NAME).read_text()))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(summary.RunSummary, "save", checked)
        yield

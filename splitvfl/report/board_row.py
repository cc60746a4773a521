"""A finished run as a row of TensorBoard's table of runs."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from splitvfl.errors import CheckpointError
from splitvfl.leakage.board import add_row
from splitvfl.leakage.message_audit import WITH_FEATURES, WITHOUT_FEATURES
from splitvfl.report.first_screen import state_words, verdict_boxes
from splitvfl.report.summary import RunSummary


def show_on_board(summary: RunSummary, folder: Path) -> None:
    """Write a run's row into its folder: what was done against leaks, the test figure, and what leaked.

    Raises:
        CheckpointError: If it cannot be written.
    """
    names, strengths = zip(*map(_divided, summary.defenses), strict=True) if summary.defenses else (("none",), ("",))
    # TensorBoard sorts columns by name, and shows five before anybody asks for more.
    verdicts = {name: one.labels for name, one in summary.verdict.items() if one.labels is not None}
    settings: dict[str, str | float | bool] = {
        "defense": " + ".join(names) + (", private top" if summary.private_top else ""),
        "exchange": summary.exchange,
        "seed": summary.seed,
        "strength": " + ".join(filter(None, strengths)),
        "verdict": "; ".join(
            state_words(one) if len(verdicts) == 1 else f"{name}: {state_words(one)}" for name, one in verdicts.items()
        ),
    }
    if summary.total is not None:
        settings["total of"] = WITH_FEATURES if summary.includes_features else WITHOUT_FEATURES
    figures = {
        f"test {summary.metric_name}": summary.test_metric,
        "worst leak AUC": summary.worst[0],
        "excess": max((one.excess.value for one in verdicts.values() if one.excess is not None), default=None),
        "total": summary.total,
        "baseline": summary.known,
    }
    columns = {
        tag: value
        for name, party in summary.parties.items()
        for leak in party.features
        for tag, value in leak.scalars(name).items()
    }
    for name, verdict in verdicts.items():
        excess, total, baseline = verdict.excess, verdict.total, verdict.baseline
        columns |= {
            f"verdict/{name}/{what}": value
            for what, value in {
                "excess": None if excess is None else excess.value,
                "total": None if total is None else total.value,
                "baseline": None if baseline is None else baseline.without_labels,
            }.items()
            if value is not None
        }
    texts = {f"verdict/{name}": _in_words(name, summary) for name in summary.verdict}
    try:
        add_row(folder, summary.steps, settings, figures, beside=columns, texts=texts)
    except OSError as error:
        raise CheckpointError(f"cannot write the run's row for TensorBoard in {folder}: {error}") from error


def _in_words(name: str, summary: RunSummary) -> str:
    """Return the verdicts about a partner as the first screen has them, in Markdown."""
    boxes = verdict_boxes(replace(summary, parties={name: summary.parties[name]}))
    return "\n\n".join(
        "\n".join([f"**{heading}**", "", *(f"- {line} {value} {said}".rstrip() for line, value, said in lines)])
        for heading, lines in boxes
    )


def _divided(defense: str) -> tuple[str, str]:
    """Return a defense's name and its settings: ``"sumkl"``, ``"detection_error=0.4"``."""
    name, _, settings = defense.partition("(")
    return name, settings.removesuffix(")")

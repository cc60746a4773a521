"""What TensorBoard shows of a run besides its curves: which of them come first, and its row in the table of runs.

The tab *Custom Scalars* has leaks and the test figure on top; the tab *HParams* has a row for each finished run, with
what was done against leaks beside what they came to.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

from splitvfl.leakage.event_file import EventFile

# By section and chart, regular expressions of the tags in it.
LAYOUT: Mapping[str, Mapping[str, Sequence[str]]] = {
    "Leaks and test": {
        "between records of equal prediction, AUC": [r"labels/.*/beyond_prediction(_matched)?$"],
        "total leakage, AUC": [r"labels/.*/total$"],
        "test AUC, accuracy or R²": [r"test/(auc|accuracy|r2)$"],
        "baseline (partner alone), AUC": [r"labels/.*/known_without_messages$"],
        "worst attack on messages, leak AUC": [r"leak_auc/worst$"],
    },
    "Each attack": {
        "leak AUC over the run": [r"leak_auc_accumulated(_tied)?/.*"],
        "leak AUC of a step": [r"leak_auc(_tied)?/.+/.+"],
        "balanced accuracy on records that were used": [r"balanced_accuracy(_accumulated)?/.*"],
    },
    "Columns": {
        "mean squared error of estimates": [r"columns/.*/mse$"],
        "mean squared error of guessing means": [r"columns/.*/mse_of_means$"],
    },
    "Training": {
        "loss, training and test": [r"train/loss$", r"test/loss$"],
        "what defenses did": [r"defense/.*"],
    },
}


_OF_AUDITS = ("leak_auc", "labels/", "balanced_accuracy", "columns/")


def layout_of(tags: Iterable[str]) -> Mapping[str, Mapping[str, Sequence[str]]]:
    """Return the part of the layout that a run fills: charts of leaks where they are measured, of defenses with any.

    Args:
        tags: Of the first values that are logged. Those of an evaluation come later.
    """
    audited = any(tag.startswith(_OF_AUDITS) for tag in tags)
    defended = any(tag.startswith("defense/") for tag in tags)
    left_out = (() if audited else _OF_AUDITS) + (() if defended else ("defense/",))
    sections = {
        section: {title: wanted for title, wanted in charts.items() if not wanted[0].startswith(left_out)}
        for section, charts in LAYOUT.items()
    }
    return {section: charts for section, charts in sections.items() if charts}


def add_layout(events: EventFile, tags: Iterable[str]) -> None:
    """Write which curves TensorBoard shows first, of a run whose first values have these tags."""
    from torch.utils.tensorboard.summary import custom_scalars

    charts = {
        section: {title: ["Multiline", list(tags)] for title, tags in found.items()}
        for section, found in layout_of(tags).items()
    }
    events.add(0, custom_scalars(charts))


def add_row(
    folder: Path,
    step: int,
    settings: Mapping[str, str | float | bool],
    figures: Mapping[str, float | None],
    *,
    beside: Mapping[str, float] = MappingProxyType({}),
    texts: Mapping[str, str] = MappingProxyType({}),
) -> None:
    """Write a finished run's row in TensorBoard's table of runs (HParams) into the run's folder.

    Args:
        folder: The run's folder.
        step: Number of steps done.
        settings: Columns of settings, by name.
        figures: Columns of figures, by name; ``None``: not measured, and its cell is empty.
        beside: Figures that are in no column of that table, by tag.
        texts: Texts beside it, by tag.

    Raises:
        OSError: If it cannot be written.
    """
    from torch.utils.tensorboard.summary import hparams, text

    tags = {f"run/{name}": value for name, value in figures.items()}
    logged = any(folder.glob("events.out.tfevents.*"))
    events = EventFile.last_of(folder)
    try:
        if not logged:
            add_layout(events, ("leak_auc", "defense/"))
        for summary in hparams(dict(settings), dict.fromkeys(tags, 0.0)):
            events.add(0, summary)
        for tag, said in texts.items():
            events.add(step, text(tag, said))
        events.add_scalars(step, {tag: value for tag, value in tags.items() if value is not None} | dict(beside))
    finally:
        events.close()

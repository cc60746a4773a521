"""What TensorBoard shows of a run besides its curves: which of them come first, and its row in the table of runs.

The tab *Custom Scalars* has leaks and the test figure on top; the tab *HParams* has a row for each finished run, with
what was done against leaks beside what they came to.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

from splitvfl.leakage.event_file import EventFile

# By section and chart, regular expressions of the tags in it.
LAYOUT: Mapping[str, Mapping[str, Sequence[str]]] = {
    "Leaks and test": {
        "labels, beyond the prediction": [r"labels/.*/beyond_prediction(_matched)?$"],
        "labels, in all": [r"labels/.*/total$"],
        "test": [r"test/(auc|accuracy|r2)$"],
        "labels, known without messages": [r"labels/.*/known_without_messages$"],
        "worst attack on messages": [r"leak_auc/worst$"],
    },
    "Each attack": {
        "leak AUC over the run": [r"leak_auc_accumulated(_tied)?/.*"],
        "leak AUC of a step": [r"leak_auc(_tied)?/.+/.+"],
        "balanced accuracy on records that were used": [r"balanced_accuracy(_accumulated)?/.*"],
    },
    "Columns": {
        "error of estimates": [r"columns/.*/mse$"],
        "error of guessing means": [r"columns/.*/mse_of_means$"],
    },
    "Training": {
        "loss": [r"train/loss$", r"test/loss$"],
        "what defenses did": [r"defense/.*"],
    },
}


def add_layout(events: EventFile) -> None:
    """Write which curves TensorBoard shows first."""
    from torch.utils.tensorboard.summary import custom_scalars

    charts = {
        section: {title: ["Multiline", list(tags)] for title, tags in found.items()}
        for section, found in LAYOUT.items()
    }
    events.add(0, custom_scalars(charts))


def add_row(
    folder: Path,
    step: int,
    settings: Mapping[str, str | float | bool],
    figures: Mapping[str, float | None],
    *,
    beside: Mapping[str, float] = MappingProxyType({}),
) -> None:
    """Write a finished run's row in TensorBoard's table of runs (HParams) into the run's folder.

    Args:
        folder: The run's folder.
        step: Number of steps done.
        settings: Columns of settings, by name.
        figures: Columns of figures, by name; ``None``: not measured, and its cell is empty.
        beside: Figures that are in no column of that table, by tag.

    Raises:
        OSError: If it cannot be written.
    """
    from torch.utils.tensorboard.summary import hparams

    tags = {f"run/{name}": value for name, value in figures.items()}
    logged = any(folder.glob("events.out.tfevents.*"))
    events = EventFile.last_of(folder)
    try:
        if not logged:
            add_layout(events)
        for summary in hparams(dict(settings), dict.fromkeys(tags, 0.0)):
            events.add(0, summary)
        events.add_scalars(step, {tag: value for tag, value in tags.items() if value is not None} | dict(beside))
    finally:
        events.close()

"""What predicting does to what was promised of a training: said when it happens, and kept with the run.

Noise that was calculated for a training covers what crosses in it. Whatever is predicted with the weights afterwards
shows them: a label party that holds parts of logits solves them for a partner's weights, as good as exactly, and these
depend on the rows that were trained on. Nobody is kept from predicting; it is said, and counted in the run's folder.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import yaml

from splitvfl.app.run_folder import CONFIG_FILE
from splitvfl.config.sections import ExperimentConfig
from splitvfl.errors import ConfigError
from splitvfl.report.releases import Release, note_release


@dataclass
class AfterTraining:
    """What crosses after a training with calculated noise, not yet or already counted.

    Attributes:
        folder: The run's folder, where it is counted.
        released: What crosses; nothing where nothing was promised.
        notify: Told in one line what that does to what was promised.
    """

    folder: Path
    released: Sequence[Release]
    notify: Callable[[str], None] = lambda line: None
    _begun: bool = field(default=False, init=False)

    def begin(self) -> None:
        """Count what is about to cross, once, however often links break and it crosses again.

        Raises:
            CheckpointError: If it cannot be counted; nothing may cross then.
        """
        if self._begun:
            return
        for release in self.released:
            note_release(self.folder, release)
            self.notify(f"{release.in_words} It is counted in {self.folder}.")
        self._begun = True


def folder_of(model: Path) -> Path:
    """Return the folder of the run that a trained half belongs to; its own, where somebody took it elsewhere."""
    return model.parent if (model.parent / CONFIG_FILE).is_file() else model


def was_promised(folder: Path, config: ExperimentConfig | None) -> bool:
    """Return whether noise was calculated for a training: as its folder says, or the settings at hand.

    Raises:
        ConfigError: If the folder's settings are damaged.
    """
    if config is not None and getattr(config.exchange, "noise", None) is not None:
        return True
    path = folder / CONFIG_FILE
    if not path.is_file():
        return False
    try:
        exchange = (yaml.safe_load(path.read_text(encoding="utf-8")) or {}).get("exchange")
    except (OSError, yaml.YAMLError, UnicodeDecodeError, AttributeError) as error:
        raise ConfigError(f"{path} does not hold the settings of a run: {error}; bring it back") from error
    return isinstance(exchange, dict) and exchange.get("noise") is not None


def parts_of_logits(passives: Sequence[str], active: str, records: int) -> Release:
    """Return what passive parties send of records that are scored."""
    return Release("parts of logits", tuple(passives), (active,), records)


def published(active: str, passives: Sequence[str], records: int) -> Release:
    """Return what the label party tells the others of records that are scored."""
    return Release("published scores", (active,), tuple(passives), records)


def on_request(passives: Sequence[str], active: str) -> Release:
    """Return what passive parties answer, as long as they are asked."""
    return Release("answers on request", tuple(passives), (active,), None)

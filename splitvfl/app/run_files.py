"""What files in the folder of a run are called, and the settings that it holds."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from splitvfl.config.sections import kept_text
from splitvfl.config.yaml import Document
from splitvfl.run.half_folder import MODEL_FOLDER as MODEL_FOLDER

CONFIG_FILE = "experiment.yaml"
STUDENT_FOLDER, ALONE_FOLDER, DISTILLATION_FILE = "student", "own-columns", "distillation.json"


def kept_settings(folder: Path) -> dict[str, Any]:
    """Return the settings that a run's folder holds, as they stand there; nothing where there are none.

    Raises:
        ConfigError: If the file is damaged, a link or no file.
    """
    path = folder / CONFIG_FILE
    text = kept_text(path)
    return {} if text is None else Document(text, source=str(path)).tree

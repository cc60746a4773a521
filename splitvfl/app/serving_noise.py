"""What the noise of answers on request is drawn from: a secret key, and the settings that it was drawn under.

Two answers that differ in their settings and share their noise give the activation away: of ``a + s·n`` and ``a + t·n``
both unknowns can be computed. So the settings go into the noise, and every change of them is one more look at every
record. Beside the key stands which settings there have been.
"""

from __future__ import annotations

import inspect
import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

from splitvfl.config.sections import ExperimentConfig, FoundHook
from splitvfl.errors import CheckpointError
from splitvfl.system.private_folder import write_new
from splitvfl.system.untrusted_files import UntrustedFile, write_whole

KEY_FILE: Final = "noise.key"
SETTINGS_FILE: Final = "noise.json"

OF_ACTIVATIONS: Final = "the defenses of the activation, activation_clip, the id column or the letter case of ids"
OF_SCORES: Final = "the defenses of scores"

_KEY_BYTES: Final = 32


def noise_key(path: Path, notify: Callable[[str], None] = lambda line: None) -> bytes:
    """Return the secret that noise is drawn from; it is made at the first time, and its owner alone may read it.

    Args:
        path: Of its file.
        notify: Told in one line that it was made: if there was another one elsewhere, records are seen once more.

    Raises:
        CheckpointError: If the file is damaged, or cannot be read or written.
    """
    file = UntrustedFile(path=path, most=1 << 10)
    key = file.read()
    if key is None:
        try:
            _make_key(path, notify)
        except OSError as error:
            raise CheckpointError(f"cannot read or write {path}: {error.strerror or error}") from error
        key = file.read() or b""
    if len(key) != _KEY_BYTES:
        raise CheckpointError(
            f"{path}: expected {_KEY_BYTES} bytes, got {len(key)}; bring it back. Without it records get other noise "
            "than before, and who has both answers sees more of them"
        )
    return key


def _make_key(path: Path, notify: Callable[[str], None]) -> None:
    try:
        write_new(path, os.urandom(_KEY_BYTES))
    except FileExistsError:  # another process made it in the meantime
        return
    notify(
        f"a new key of noise is made: {path}. Keep it, secret. If answers were given under another one, bring that "
        "back: every record gets other noise now, and whoever has both answers sees it once more"
    )


def noise_settings(config: ExperimentConfig, *, id_column: str | None, case: str) -> dict[str, object]:
    """Return what decides on an answer beside the half, the id and the columns, so that it can be written in JSON.

    Args:
        config: The party's settings.
        id_column: Column of the ids; ``None`` where they are numbers that everybody has.
        case: Whether letter case counts in them.
    """
    return {
        "defenses": [
            _described(hook.name, found)
            for hook in config.defenses
            if (found := hook.found("defenses", config.folder)).crossing == "activation" and "prediction" in hook.phases
        ],
        "activation_clip": config.exchange.activation_clip,
        "id_column": id_column,
        "letter_case": "kept" if id_column is None else case,
    }


def score_noise_settings(config: ExperimentConfig) -> dict[str, object]:
    """Return what memoised noise on scores depends on beside a record's logits, so that it can be written in JSON."""
    return {
        "defenses": [
            _described(hook.name, found)
            for hook in config.defenses
            if (found := hook.found("defenses", config.folder)).crossing == "scores"
        ]
    }


def _described(name: str, found: FoundHook) -> dict[str, object]:
    """Return a defense with all its options, those included that are as they are by default."""
    options = inspect.signature(found.factory).bind(**found.options)
    options.apply_defaults()
    return {"name": name, "options": dict(options.arguments)}


def as_bytes(settings: Mapping[str, object]) -> bytes:
    """Return settings as what noise is derived from: equal settings give equal bytes."""
    return json.dumps(settings, sort_keys=True, default=lambda value: type(value).__qualname__).encode()


def note_settings(
    folder: Path, settings: Mapping[str, object], notify: Callable[[str], None], *, what: str = OF_ACTIVATIONS
) -> None:
    """Keep settings beside the key, and say so if the key has been used under others only.

    Args:
        folder: Where the key is, or will be.
        settings: The settings.
        notify: Told in one line that records are seen once more.
        what: What they are, for that line.

    Raises:
        CheckpointError: If the file is damaged, or cannot be read or written.
    """
    path, current = folder / SETTINGS_FILE, json.loads(as_bytes(settings))
    known = _known(path)
    if current in known:
        return
    if known or (folder / KEY_FILE).exists():
        before = f"{len(known)} before" if known else "answers were given before it was kept"
        notify(
            f"{what} are other than before: every record gets other noise, and whoever has earlier answers sees it "
            f"once more ({path}: {before})"
        )
    _write(path, [*known, current])


def _known(path: Path) -> list[Any]:
    file = UntrustedFile(
        path=path,
        says="does not hold the settings that noise was drawn under",
        remedy="bring it back, or move it away, and the next start says that records are seen once more",
    )
    return file.json(list[Any]) or []


def _write(path: Path, settings: list[Any]) -> None:
    try:
        write_whole(path, (json.dumps(settings, indent=1) + "\n").encode())
    except OSError as error:
        raise CheckpointError(f"cannot write {path}: {error.strerror or error}; make room") from error

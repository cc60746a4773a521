"""What the noise of answers on request is drawn from: a secret key, and the settings that it was drawn under.

Two answers that differ in their settings and share their noise give the activation away: of ``a + s·n`` and ``a + t·n``
both unknowns can be computed. So the settings go into the noise, and every change of them is one more look at every
record. Beside the key stands which settings there have been.
"""

from __future__ import annotations

import inspect
import json
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from pathlib import Path
from typing import Any, Final

from splitvfl.config.sections import FoundDefense, FoundHook, HookConfig
from splitvfl.errors import CheckpointError, ConfigError
from splitvfl.hooks import Crossing
from splitvfl.run.half_folder import file_digest
from splitvfl.system.untrusted_files import UntrustedFile, decoded, write_new, write_whole

KEY_FILE: Final = "noise.key"
SETTINGS_FILE: Final = "noise.json"
CODE_FILE: Final = "noise-code.json"
BESIDE_FILE: Final = "noise-beside.json"

OF_ACTIVATIONS: Final = (
    "the defenses of the activation, files that their options name, activation_clip, the id column or the letter case "
    "of ids"
)
OF_SCORES: Final = "the defenses of scores, files that their options name, or the loss"

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


def noise_settings(
    defenses: Sequence[FoundDefense], *, source: str, activation_clip: float | None, id_column: str | None, case: str
) -> dict[str, object]:
    """Return what decides on an answer beside the half, the id and the columns, so that it can be written in JSON.

    Args:
        defenses: Those of the party's file.
        source: What the file is called in messages.
        activation_clip: The clip that is agreed on.
        id_column: Column of the ids; ``None`` where they are numbers that everybody has.
        case: Whether letter case counts in them.
    """
    return {
        "defenses": [_described(hook, found, source) for hook, found in _acting(defenses, "activation")],
        "activation_clip": activation_clip,
        "id_column": id_column,
        "letter_case": "kept" if id_column is None else case,
    }


def score_noise_settings(defenses: Sequence[FoundDefense], *, source: str) -> dict[str, object]:
    """Return what memoised noise on scores depends on beside a record's logits, so that it can be written in JSON."""
    return {"defenses": [_described(hook, found, source) for hook, found in _acting(defenses, "scores")]}


def _acting(defenses: Sequence[FoundDefense], crossing: Crossing) -> list[FoundDefense]:
    """Return the defenses of one kind of message that act in predictions."""
    return [(hook, one) for hook, one in defenses if one.crossing == crossing and "prediction" in hook.phases]


def _described(hook: HookConfig, found: FoundHook, source: str) -> dict[str, object]:
    """Return a defense with all its options, those included that are as they are by default.

    An option that its constructor wants as something that JSON cannot write, a ``Decimal`` say, is described as the
    file writes it, and apart: no plain option is described alike.

    Raises:
        ConfigError: If a default is none that JSON can write.
    """
    bound = inspect.signature(found.factory).bind(**found.options)
    bound.apply_defaults()
    plain = {name: value for name, value in bound.arguments.items() if _is_plain(value)}
    others = [name for name in bound.arguments if name not in plain]
    for name in others:
        if name not in hook.options:
            raise ConfigError(
                f"{source}: defenses: {hook.name}: memoised noise depends on every option, but JSON cannot hold the "
                f"default of `{name}`, a {type(bound.arguments[name]).__qualname__}; set it in the file, or make the "
                "constructor's default a number, a text or None"
            )
    described: dict[str, object] = {"name": hook.name, "options": plain}
    return described | ({"as written": {name: hook.options[name] for name in others}} if others else {})


def _is_plain(value: object) -> bool:
    """Return whether JSON writes all of a value, so that two values of one option that differ have other bytes."""
    if isinstance(value, Enum):  # one whose members are numbers or texts is written as these
        return isinstance(value, (int, float, str)) and value == value.value
    if getattr(value, "__dict__", None):  # a number or a list of a class of its own, that holds more
        return False
    if isinstance(value, dict):
        # Keys of several types have no order.
        keys = all(not isinstance(key, tuple) and _is_plain(key) for key in value)
        return keys and len(set(map(type, value))) <= 1 and all(map(_is_plain, value.values()))
    if isinstance(value, (list, tuple)):
        return all(map(_is_plain, value))
    return value is None or isinstance(value, (bool, int, float, str))


def files_named(defenses: Sequence[FoundDefense], crossing: Crossing) -> dict[str, str]:
    """Return the digests of files that options of custom defenses name, by the defense, the option and the file."""
    found = {}
    for number, (hook, one) in enumerate(_acting(defenses, crossing)):
        if one.factory.__module__.partition(".")[0] == "splitvfl":
            continue
        for option, value in hook.options.items():
            for named in value if isinstance(value, list) else [value]:
                if isinstance(named, str) and (path := Path(named).resolve()).is_file():
                    found[f"{number}/{option}/{named}"] = file_digest(path)
    return found


def drawn_under(folder: Path, settings: dict[str, object], beside: Mapping[str, object]) -> dict[str, object]:
    """Return the settings that noise follows from, with what lies beside them: the loss, and files that options name.

    Noise of older versions followed from the settings alone. So what is first seen beside some settings has the noise
    of these alone, as before; anything else that is seen beside the same settings has other noise.

    Args:
        folder: Where the key is, or will be.
        settings: The settings.
        beside: What lies beside them.

    Raises:
        CheckpointError: If the file is damaged, or cannot be read or written.
    """
    known = _known(folder / BESIDE_FILE)
    first = next((one for one in known if as_bytes(one.get("settings")) == as_bytes(settings)), None)
    if first is None:
        _write(folder / BESIDE_FILE, [*known, {"settings": settings, "beside": dict(beside)}])
    if first is None or as_bytes(first.get("beside")) == as_bytes(dict(beside)):
        return settings
    return {**settings, "beside": dict(beside)}


def as_bytes(settings: object) -> bytes:
    """Return settings as what noise is derived from: equal settings give equal bytes, and others give others."""
    return json.dumps(settings, sort_keys=True).encode()


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
    path, current = folder / SETTINGS_FILE, as_bytes(settings)
    known = _known(path)
    # As bytes: Python calls 1, 1.0 and True equal, and noise is other under each.
    if current in map(as_bytes, known):
        return
    if known or (folder / KEY_FILE).exists():
        before = f"{len(known)} before" if known else "answers were given before it was kept"
        notify(
            f"{what} are other than before: every record gets other noise, and whoever has earlier answers sees it "
            f"once more ({path}: {before})"
        )
    _write(path, [*known, decoded(current, nan=True)])


def note_code(
    folder: Path, defenses: Sequence[FoundDefense], crossing: Crossing, notify: Callable[[str], None]
) -> None:
    """Keep digests of the files of custom defenses beside the key, and say so if one has changed.

    Noise does not follow from them: every other comment would be one more look at every record.

    Args:
        folder: Where the key is, or will be.
        defenses: Those of the party's file.
        crossing: Of which of them.
        notify: Told in one line for each that has changed.

    Raises:
        CheckpointError: If the file is damaged, or cannot be read or written.
    """
    known = _known(folder / CODE_FILE)
    new: list[dict[str, str]] = []
    for hook, found in _acting(defenses, crossing):
        file = getattr(sys.modules.get(found.factory.__module__), "__file__", None)
        if file is None or found.factory.__module__.partition(".")[0] == "splitvfl":
            continue
        current = {"name": hook.name, "sha256": file_digest(Path(file))}
        if current in (*known, *new):
            continue
        if any(one.get("name") == hook.name for one in known if isinstance(one, dict)):
            notify(
                f"the code of {hook.name} ({Path(file).name}) is other than before, but its noise is unchanged: if it "
                "now treats a record differently, rename the class, so that every record gets other noise; otherwise "
                "whoever has earlier answers can compute activations"
            )
        new.append(current)
    if new:
        _write(folder / CODE_FILE, [*known, *new])


def _known(path: Path) -> list[Any]:
    file = UntrustedFile(
        path=path,
        says="does not hold the settings that noise was drawn under",
        remedy="bring it back; without it nobody knows how often records were seen under other noise",
    )
    content = file.read()
    if content is None:
        return []
    try:
        known = decoded(content, nan=True)
        if not isinstance(known, list):
            raise ValueError(f"expected a list, got {type(known).__name__}")
        if path.name == BESIDE_FILE and not all(isinstance(one, dict) and "settings" in one for one in known):
            raise ValueError("expected what lies beside settings")
    except (ValueError, RecursionError) as error:
        raise file.refused(error) from error
    return known


def _write(path: Path, settings: list[Any]) -> None:
    try:
        write_whole(path, (json.dumps(settings, indent=1) + "\n").encode())
    except OSError as error:
        raise CheckpointError(f"cannot write {path}: {error.strerror or error}; make room") from error

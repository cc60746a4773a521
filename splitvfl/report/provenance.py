"""Where a run's figures come from: when, by which command and versions, under which settings, on which data.

A summary may be shown to a partner. Digests in it are therefore keyed with a random key of the run: without the key
nobody can try out which labels or columns a digest is of, and with it their holder can show that they are these. The
key stays in the run's folder, in ``begun.json``, which its owner alone may read.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from splitvfl.config.yaml import Document, parse_override, to_yaml, to_yaml_line
from splitvfl.errors import ConfigError
from splitvfl.system.untrusted_files import decoded

BEGUN_FILE = "begun.json"
"""When a run began, and what its digests are keyed with: for its owner only."""

_SHOWN_DIGITS = 32

# What changes no figure, or is no setting but the seed that runs of one experiment differ in; and where things lie.
_BESIDE = re.compile(
    r"(name|goal|network(\..*)?|data\.path|data\.aligned|parties\.[^.]+\.(address|identity|path)|train\.threads"
    r"|train\.checkpoint_every_steps|train\.(.*_)?seed(_for_experiments)?)"
)
_SECRET = re.compile("token|password|secret|passphrase|seed_for_experiments|transform")
# In a text that is no YAML: the name of a secret, and what is behind it.
_SECRET_TOLD = re.compile(rf"([\w.-]*(?:{_SECRET.pattern})[\w.-]*['\"]?\s*[=:]).*", re.DOTALL)
_NOT_SHOWN = "(not shown)"
_TRANSFORM = re.compile(r"(parties\.[^.]+\.transform)(\..*)?")

# Keys as they are set on a command line; an option's name may stand in their place.
_KEYS = re.compile(r"(?:-{1,2})?\w[\w-]*(?:\.[\w-]+)*")
# A folder from a root, somebody's home or a drive, anywhere in a text; or an address with a scheme.
_ROOTED = re.compile(r"""(?:^|[\s=:,;'"(\[{])(?:[/~\\]|[A-Za-z]:[/\\])|://""")
_SEPARATORS = re.compile(r"[/\\]")


@dataclass(frozen=True)
class PartyRecord:
    """What one party trained on.

    Attributes:
        role: ``"active"`` or ``"passive"``.
        numeric: Columns of numbers, after encoding.
        fields: Categorical fields.
        digests: Keyed digests of its schema, records, columns and, at the label party, labels, in hexadecimal.
    """

    role: str
    numeric: int
    fields: int
    digests: dict[str, str]


@dataclass(frozen=True)
class Provenance:
    """Where a run's figures come from.

    Attributes:
        started: When it began, in UTC, as in ``2026-05-04T16:05:06Z``; empty if an older version began it.
        finished: When it ended, likewise.
        command: The command as given, without secrets and without folders outside of the one it was given in; empty if
            Python called.
        versions: Of splitvfl and what it computes with, by name.
        settings: All settings that figures depend on, but seeds, by dotted key, as JSON.
        train: Training records, those held out among them.
        test: Test records.
        held_out: Training records in no batch, which early stopping is judged by.
        parties: What each party trained on; over a network, the label party alone.
        same_data: Equal for runs on equal data. Never written: labels could be tried out from it. It is known where
            the run's ``begun.json`` is.
    """

    started: str
    finished: str
    command: str
    versions: dict[str, str]
    settings: dict[str, str]
    train: int
    test: int
    held_out: int
    parties: dict[str, PartyRecord] = field(default_factory=dict)
    same_data: str = ""

    def __post_init__(self) -> None:
        """Refuse settings that are no JSON: a summary may come from anybody.

        Raises:
            ValueError: If one is not.
        """
        for key, value in self.settings.items():
            try:
                decoded(value.encode(), nan=True)
            except (ValueError, RecursionError) as error:
                raise ValueError(f"expected JSON as the value of setting {key}, got {value[:60]!r}") from error

    @property
    def data_identity(self) -> str:
        """Equal for runs on equal data; without their ``begun.json``, for those only that share a key too."""
        keyed = {name: party.digests for name, party in self.parties.items()}
        return self.same_data or json.dumps(keyed, sort_keys=True)


def keyed(digest: str, *, key: bytes, what: str) -> str:
    """Return HMAC-SHA256 of a digest and of what it is of, in 32 hexadecimal digits.

    Args:
        digest: A SHA-256 digest, in hexadecimal.
        key: The run's, 32 bytes.
        what: Party and part: ``"bank/labels"``.
    """
    return hmac.digest(key, f"{what}:{digest}".encode(), "sha256").hex()[:_SHOWN_DIGITS]


def data_identity(digests: Mapping[str, Mapping[str, str]]) -> str:
    """Return one digest of all parties' digests (:func:`splitvfl.data.digests.data_digests`); to be kept private."""
    return hashlib.sha256(json.dumps(digests, sort_keys=True).encode()).hexdigest()


def deciding_settings(settings: Mapping[str, Any]) -> dict[str, str]:
    """Return all settings that figures depend on, but seeds, by dotted key, as JSON.

    >>> deciding_settings({"name": "x", "train": {"seed": 1, "epochs": 3}})
    {'train.epochs': '3'}
    """
    flat = ((key, json.dumps(value, sort_keys=True)) for key, value in _flat(settings))
    deciding = {key: text for key, text in flat if not _BESIDE.fullmatch(key)}
    # That there is one decides figures; which, only its party knows.
    hidden = {key: found[1] for key in deciding if (found := _TRANSFORM.match(key)) and deciding[key] != "null"}
    shown = {key: text for key, text in deciding.items() if not _TRANSFORM.match(key)}
    return shown | {key: json.dumps(_NOT_SHOWN) for key in hidden.values()}


def _flat(value: Any, key: str = "") -> Iterator[tuple[str, Any]]:
    if isinstance(value, Mapping) and value:
        for name, inner in value.items():
            yield from _flat(inner, f"{key}.{name}" if key else name)
    else:
        yield key, value


def shown_word(word: str) -> str:
    """Return a word of a command as it may be shown: without a secret, and without folders of this machine.

    Of a setting the value is read as YAML, and each value in it is looked at by itself.

    >>> shown_word("train={epochs: 1, noise_seed_for_experiments: 7}"), shown_word("--out=/somewhere/else/run")
    ('train={epochs: 1, noise_seed_for_experiments: (not shown)}', '--out=…/run')
    """
    place, equals, written = word.partition("=")
    if not equals or not _KEYS.fullmatch(place):
        return _shown_text(word)
    if _SECRET.search(place):
        return f"{place}={_NOT_SHOWN}"
    if place.startswith("-"):
        return f"{place}={shown_word(written)}"
    return f"{place}={_shown_value(word, written)}"


def _shown_value(word: str, written: str) -> str:
    try:
        _, value = parse_override(word)
    except ConfigError:  # what cannot be read may hold anything
        return _NOT_SHOWN
    shown = _shown(value)
    if shown == value and "#" not in written:  # a comment may hold anything too
        return written
    return shown if isinstance(shown, str) else to_yaml_line(shown)


def shown_settings(text: str) -> str:
    """Return settings in YAML as they may be shown: without secrets, folders of this machine and comments."""
    try:
        return to_yaml(_shown(Document(text, source="settings").tree))
    except ConfigError:  # what cannot be read may hold anything
        return f"{_NOT_SHOWN}\n"


def _shown(value: Any) -> Any:
    """Return a value of settings without what is not to be shown."""
    if isinstance(value, Mapping):
        return {
            _shown_text(key): _NOT_SHOWN if _SECRET.search(key) and inner is not None else _shown(inner)
            for key, inner in value.items()
        }
    if isinstance(value, list):
        return [_shown(inner) for inner in value]
    return _shown_text(value) if isinstance(value, str) else value


def _shown_text(text: str) -> str:
    hidden = _SECRET_TOLD.sub(rf"\1{_NOT_SHOWN}", text)
    return _near(hidden) if _SEPARATORS.search(hidden) or hidden.startswith("~") else hidden


def _near(path: str) -> str:
    """Return a path from the current folder, if it lies there, else its last part."""
    here, plain = Path.cwd(), path.strip()
    inside = os.path.relpath(plain, here)
    if os.path.isabs(plain) and here != here.parent and not _leads_out(inside):
        return inside
    if _ROOTED.search(plain) or "\\" in plain or _leads_out(inside):
        return f"…/{_SEPARATORS.split(plain.rstrip('/' + chr(92)))[-1]}"
    return path


def _leads_out(relative: str) -> bool:
    return relative.split(os.sep)[0] == os.pardir

"""Split learning over columns that belong to different organisations: what each message gives away, and how to stop it.

The names below are the public interface of the core; attacks, defenses, penalties and models are in
:mod:`splitvfl.attacks`, :mod:`splitvfl.defenses`, :mod:`splitvfl.penalties` and :mod:`splitvfl.models`. Each is
imported when it is first used, so that ``import splitvfl`` does not wait for torch.
"""

from __future__ import annotations

import logging
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from splitvfl.errors import (
    ArgumentError,
    CheckpointError,
    ConfigError,
    DataError,
    HookError,
    PrivacyError,
    ProtocolError,
    SplitVFLError,
)

if TYPE_CHECKING:
    from splitvfl.app.saved_run import load_run
    from splitvfl.app.trainer import Trainer
    from splitvfl.cut.layer import CutLayer
    from splitvfl.cut.model_check import check_model
    from splitvfl.cut.model_fix import fix_model
    from splitvfl.cut.split_model import SplitModel
    from splitvfl.data.columns import Columns
    from splitvfl.data.joined_tables import from_tables
    from splitvfl.data.load import load
    from splitvfl.hooks import Attack, Defense, Penalty, Secrets, View
    from splitvfl.metrics import leak_auc, reconstruction_mse
    from splitvfl.party.party import ActiveParty, PassiveParty

    __version__: str

# What is logged is shown to those who ask for it only.
logging.getLogger(__name__).addHandler(logging.NullHandler())

__all__ = [
    "ActiveParty",
    "ArgumentError",
    "Attack",
    "CheckpointError",
    "Columns",
    "ConfigError",
    "CutLayer",
    "DataError",
    "Defense",
    "HookError",
    "PassiveParty",
    "Penalty",
    "PrivacyError",
    "ProtocolError",
    "Secrets",
    "SplitModel",
    "SplitVFLError",
    "Trainer",
    "View",
    "check_model",
    "fix_model",
    "from_tables",
    "leak_auc",
    "load",
    "load_run",
    "reconstruction_mse",
]

_HOMES = {
    "ActiveParty": "splitvfl.party.party",
    "Attack": "splitvfl.hooks",
    "Columns": "splitvfl.data.columns",
    "CutLayer": "splitvfl.cut.layer",
    "Defense": "splitvfl.hooks",
    "PassiveParty": "splitvfl.party.party",
    "Penalty": "splitvfl.hooks",
    "Secrets": "splitvfl.hooks",
    "SplitModel": "splitvfl.cut.split_model",
    "Trainer": "splitvfl.app.trainer",
    "View": "splitvfl.hooks",
    "check_model": "splitvfl.cut.model_check",
    "fix_model": "splitvfl.cut.model_fix",
    "from_tables": "splitvfl.data.joined_tables",
    "leak_auc": "splitvfl.metrics",
    "load": "splitvfl.data.load",
    "load_run": "splitvfl.app.saved_run",
    "reconstruction_mse": "splitvfl.metrics",
}

# Public too; each is imported when it is first used.
_PUBLIC_MODULES = (
    "attacks",
    "defenses",
    "errors",
    "exchange",
    "hooks",
    "metrics",
    "models",
    "penalties",
    "privacy",
    "sklearn",
)

_PARTS = ("attacks", "defenses", "models", "penalties")

# In a checkout these parts lie beside this package and are linked into it. Where links did not survive (an unpacked
# zip, Windows), the folder that holds them joins the search path instead.
_HERE = Path(__file__).parent
if not all((_HERE / part).is_dir() for part in _PARTS):
    __path__.append(str(_HERE.parent))


def __getattr__(name: str) -> Any:
    if name == "__version__":
        value: Any = _installed_version()
    elif name in _HOMES:
        value = getattr(import_module(_HOMES[name]), name)
    elif name in _PUBLIC_MODULES:
        value = import_module(f"{__name__}.{name}")
    else:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    special = {name for name in globals() if name.startswith("__")}
    return sorted({*__all__, *_PUBLIC_MODULES, *special, "__version__"})


def _installed_version() -> str:
    """Return the version of the installed distribution, or ``"0+unknown"`` in a tree that was never installed."""
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("splitvfl")
    except PackageNotFoundError:
        return "0+unknown"

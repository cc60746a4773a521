"""Split learning over columns that belong to different organisations: what each message gives away, and how to stop it.

The names below are the public interface of the core; attacks, defenses, penalties and models are in
:mod:`splitvfl.attacks`, :mod:`splitvfl.defenses`, :mod:`splitvfl.penalties` and :mod:`splitvfl.models`. Each is
imported when it is first used, so that ``import splitvfl`` does not wait for torch.
"""

from __future__ import annotations

import logging
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
from splitvfl.lazy_names import lazy_names

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

_PARTS = ("attacks", "defenses", "models", "penalties")

# In a checkout these parts lie beside this package and are linked into it. Where links did not survive (an unpacked
# zip, Windows), the folder that holds them joins the search path instead.
_HERE = Path(__file__).parent
if not all((_HERE / part).is_dir() for part in _PARTS):
    __path__.append(str(_HERE.parent))


_lazily, _listed = lazy_names(
    __name__,
    {
        "splitvfl": (
            *("attacks", "defenses", "errors", "exchange", "hooks", "metrics", "models", "penalties", "privacy"),
            *("sklearn",),
        ),
        "splitvfl.app.saved_run": ("load_run",),
        "splitvfl.app.trainer": ("Trainer",),
        "splitvfl.cut.layer": ("CutLayer",),
        "splitvfl.cut.model_check": ("check_model",),
        "splitvfl.cut.model_fix": ("fix_model",),
        "splitvfl.cut.split_model": ("SplitModel",),
        "splitvfl.data.columns": ("Columns",),
        "splitvfl.data.joined_tables": ("from_tables",),
        "splitvfl.data.load": ("load",),
        "splitvfl.hooks": ("Attack", "Defense", "Penalty", "Secrets", "View"),
        "splitvfl.metrics": ("leak_auc", "reconstruction_mse"),
        "splitvfl.party.party": ("ActiveParty", "PassiveParty"),
    },
)


def __getattr__(name: str) -> Any:
    return _installed_version() if name == "__version__" else _lazily(name)


def __dir__() -> list[str]:
    return [*_listed(), "__version__"]


def _installed_version() -> str:
    """Return the version of the installed distribution, or ``"0+unknown"`` in a tree that was never installed."""
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("splitvfl")
    except PackageNotFoundError:
        return "0+unknown"

"""How many seeds an audit is repeated in: two, or as many as are asked for."""

from __future__ import annotations

import os
from typing import Final

SEEDS: Final = int(os.environ.get("SPLITVFL_AUDIT_SEEDS", "2"))
"""``SPLITVFL_AUDIT_SEEDS=20 python -m pytest tests/audit`` takes minutes (docs/audit.md)."""

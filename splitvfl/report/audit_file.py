"""The file that an audit leaves in the folder of a run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from splitvfl.system.untrusted_files import UntrustedFile

AUDIT_FILE, AUDIT_PAGE = "audit.json", "audit.html"

FORMAT, VERSION = "splitvfl audit", 1


def read_audit(folder: Path) -> dict[str, Any] | None:
    """Return what an audit of a run found, ``None`` if none lies in its folder; no text in it steers a terminal.

    Raises:
        CheckpointError: If it is damaged.
    """
    file = UntrustedFile(path=folder / AUDIT_FILE, remedy="run splitvfl audit again, or delete it")
    found = file.json(dict[str, Any], sanitise=True)
    if found is None or found.get("format") != FORMAT:
        return None
    file.check_format(found, FORMAT, VERSION)
    # Of a version without seats it says nothing here.
    return found if "learned" in found else None

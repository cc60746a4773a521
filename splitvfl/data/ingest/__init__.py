"""Files of any size into tables on disk, one folder per party, in bounded memory."""

from __future__ import annotations

from splitvfl.data.ingest.plan import Hashing
from splitvfl.data.ingest.run import IngestReport, IngestStatus, PartyReport, Progress, ingest, ingest_like

__all__ = ["Hashing", "IngestReport", "IngestStatus", "PartyReport", "Progress", "ingest", "ingest_like"]

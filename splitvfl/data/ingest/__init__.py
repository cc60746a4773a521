"""Files of any size into tables on disk, one folder per party, in bounded memory."""

from __future__ import annotations

from splitvfl.data.ingest.plan import Hashing
from splitvfl.data.ingest.progress import IngestStatus, Progress
from splitvfl.data.ingest.run import IngestReport, PartyReport, ingest, ingest_like, ingest_shard
from splitvfl.data.ingest.shards import Shard, StatisticsReport, shard_statistics

__all__ = [
    "Hashing",
    "IngestReport",
    "IngestStatus",
    "PartyReport",
    "Progress",
    "Shard",
    "StatisticsReport",
    "ingest",
    "ingest_like",
    "ingest_shard",
    "shard_statistics",
]

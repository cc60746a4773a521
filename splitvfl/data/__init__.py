"""Columns: named data sets and tables, divided between parties, encoded and cut into batches."""

from __future__ import annotations

from splitvfl.data.columns import Columns, PartyData, Records, VerticalData
from splitvfl.data.joined_tables import from_tables
from splitvfl.data.load import load, load_table
from splitvfl.data.sets import DATA_SETS, DataSet
from splitvfl.data.spec import PartyClaim, TableSpec
from splitvfl.learning.batches import Batches

__all__ = [
    "DATA_SETS",
    "Batches",
    "Columns",
    "DataSet",
    "PartyClaim",
    "PartyData",
    "Records",
    "TableSpec",
    "VerticalData",
    "from_tables",
    "load",
    "load_table",
]

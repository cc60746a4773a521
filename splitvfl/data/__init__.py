"""Columns: named data sets and tables, divided between parties, encoded and cut into batches."""

from __future__ import annotations

from splitvfl.data.columns import Columns, PartyData, Records, VerticalData
from splitvfl.data.load import load
from splitvfl.data.sets import DATA_SETS, DataSet
from splitvfl.learning.batches import Batches

__all__ = ["DATA_SETS", "Batches", "Columns", "DataSet", "PartyData", "Records", "VerticalData", "load"]

"""Columns: named data sets and tables, divided between parties, encoded and cut into batches."""

"""Runs in numbers, tables and pictures."""

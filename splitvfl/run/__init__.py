"""Runs: training, prediction and alignment, in one process or between processes, and what is kept of them."""

"""One benchmark per claim of speed: ratios of interleaved runs in one process."""

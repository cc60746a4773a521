"""Scripts that call the package: reproductions, benchmarks and example experiments."""

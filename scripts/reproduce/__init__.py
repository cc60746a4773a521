"""Scripts that regenerate what papers claim, with this package, and say what reproduces."""

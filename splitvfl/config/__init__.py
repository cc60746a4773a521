"""From a file to checked settings, and from names to classes."""

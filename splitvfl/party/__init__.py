"""One organisation: its columns, model, optimiser, randomness and defenses."""

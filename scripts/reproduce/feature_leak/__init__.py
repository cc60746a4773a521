"""What the label party reads of a partner's columns in its activations, and what it costs to prevent it."""

"""The cut: where a gradient crosses, the defenses in front of it, and the model that is split there."""

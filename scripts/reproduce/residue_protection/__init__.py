"""The tables and figures of *Residue-based Label Protection Mechanisms in Vertical Logistic Regression*."""

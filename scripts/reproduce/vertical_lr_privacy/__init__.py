"""The figures of *Is Vertical Logistic Regression Privacy-Preserving? A Comprehensive Privacy Analysis and Beyond*."""

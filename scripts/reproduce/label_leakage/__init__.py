"""The figures of *Label Leakage and Protection in Two-party Split Learning* (Li et al., ICLR 2022)."""

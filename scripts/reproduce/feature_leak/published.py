"""Figures of the sources beside ours: none can be compared."""

from __future__ import annotations

from scripts.reproduce.shared.pages import Section
from scripts.reproduce.shared.settings import Settings

_BODY = """
None of the figures of the sources is of these data sets and of this question, so that nothing is compared:

- NoPeek (arXiv:2008.09161), distance correlation as a penalty: its experiments are on images.
- MID (arXiv:2301.01142), mutual information: label inference, backdoors and feature reconstruction, on other data.
- Feature reconstruction in vertical federated learning (arXiv:2210.06771): it is about binary columns below one layer,
  found by search. Here columns are numbers, and a few records are known.

What is compared is our own earlier trial, above.
"""


def sections(settings: Settings) -> list[Section]:
    """Return the section."""
    return [Section(title="Published figures", body=_BODY)]

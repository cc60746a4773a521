"""The figures of a run: a mapping, which a notebook shows with what leaked."""

from __future__ import annotations

import math
from collections.abc import Mapping

from splitvfl.leakage.label_leak import LabelLeak
from splitvfl.leakage.leaks import html_table


class Results(dict[str, float]):
    """Headline figure and loss on the test records, and beside them, in a notebook, what leaked.

    Args:
        figures: Figures by name.
        worst: The worst leak AUC of all attacks, and that attack's name; NaN and "" if there was none.
        label_leaks: The three figures of a leak of labels by party.
    """

    def __init__(
        self,
        figures: Mapping[str, float],
        *,
        worst: tuple[float, str] = (math.nan, ""),
        label_leaks: Mapping[str, LabelLeak] | None = None,
    ) -> None:
        super().__init__(figures)
        self._worst, self._label_leaks = worst, dict(label_leaks or {})

    def _repr_html_(self) -> str:
        shown: list[tuple[str, float]] = [(f"test {name}", value) for name, value in self.items()]
        if not math.isnan(self._worst[0]):
            shown.append((f"worst leak AUC ({self._worst[1]})", self._worst[0]))
        tables = [html_table(("", "figure"), shown)]
        if self._label_leaks:
            leaks = [
                (party, *(math.nan if value is None else value for value in (one.total, one.beyond, one.known)))
                for party, one in self._label_leaks.items()
            ]
            tables.append(html_table(("labels read by", "in all", "beyond the prediction", "own columns"), leaks))
        return "".join(tables)

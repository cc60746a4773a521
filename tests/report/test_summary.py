"""What a run's summary keeps of its exchange."""

from __future__ import annotations

from splitvfl.exchange.split import Split
from splitvfl.report.summary import ExchangeTraits


def test_an_exchange_derived_from_split_is_named_in_headings_and_split_is_not() -> None:
    class Own(Split):
        name = "own"

    assert ExchangeTraits.of(Own).in_headings
    assert not ExchangeTraits.of(Split).in_headings

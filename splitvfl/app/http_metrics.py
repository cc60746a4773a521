"""What a service tells Prometheus: how often, how long and how many, and never an id or a value of a record.

Of the label party's own columns it tells how new records differ from those of the training
(:mod:`splitvfl.data.drift`). The bins stay inside; only the index goes out, to who has the service's token.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from splitvfl.data.drift import Counts, added
from splitvfl.data.encoding import FittedEncoding

_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
# The stability index is that of so many records at least, once there were as many, and of twice as many at most.
_WINDOW = 5_000
_ROWS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 4096)


class HttpMetrics:
    """Counts of one service; :class:`splitvfl.run.online.OnlineObserver` of what goes on between the parties.

    Args:
        name: The label party.
        partners: The others.
        encoding: How the label party's columns became numbers; ``None``: nothing is told of them.
    """

    media_type = CONTENT_TYPE_LATEST

    def __init__(self, name: str, partners: Sequence[str], encoding: FittedEncoding | None = None) -> None:
        self._registry = CollectorRegistry()
        self._encoding = encoding
        self._window: dict[str, Counts] = {}
        self._window_before: dict[str, Counts] = {}
        counted = {
            "rows": ("column_values", "Values that requests sent, by column."),
            "outside": ("outside_range_values", "Values outside the training range, by column."),
            "missing": ("missing_values", "Missing values, by column."),
            "unknown": ("unknown_category_values", "Values of a category that training did not know, by column."),
        }
        self._counted = {
            name: Counter(f"splitvfl_{metric}", text, ["column"], registry=self._registry)
            for name, (metric, text) in counted.items()
        }
        self._index = Gauge(
            "splitvfl_stability_index",
            "Stability index of a column over the latest records: drift beyond 0.25 and chance.",
            ["column"],
            registry=self._registry,
        )
        self._by_chance = Gauge(
            "splitvfl_stability_index_by_chance",
            "What chance explains of the index: in 999 of 1,000 comparisons no column is beyond it.",
            ["column"],
            registry=self._registry,
        )
        self._saturated = Counter(
            "splitvfl_saturated_scores", "Scores that are exactly 0 or 1.", registry=self._registry
        )
        self._requests = Counter(
            "splitvfl_requests", "Requests for scores, by HTTP status.", ["status"], registry=self._registry
        )
        self._seconds = Histogram(
            "splitvfl_request_seconds",
            "Seconds from a request to its answer.",
            buckets=_SECONDS,
            registry=self._registry,
        )
        self._scored = Counter("splitvfl_scored_records", "Records that got a score.", registry=self._registry)
        self._not_held = Counter(
            "splitvfl_not_held_records",
            "Records without a score, by the party that does not hold them.",
            ["party"],
            registry=self._registry,
        )
        self._rows = Histogram(
            "splitvfl_batch_records", "Records in one message.", buckets=_ROWS, registry=self._registry
        )
        self._trips = Histogram(
            "splitvfl_round_trip_seconds",
            "Seconds until all partners had answered.",
            buckets=_SECONDS,
            registry=self._registry,
        )
        self._there = Gauge(
            "splitvfl_partner_connected", "1 while a partner is linked.", ["partner"], registry=self._registry
        )
        for party in (name, *partners):
            self._not_held.labels(party)
        for partner in partners:
            self._there.labels(partner).set(0)

    def request(self, status: int, seconds: float) -> None:
        """Count a request and the time it took."""
        self._requests.labels(str(status)).inc()
        self._seconds.observe(seconds)

    def scored(self, records: int) -> None:
        """Count records that got a score."""
        self._scored.inc(records)

    def saturated(self, records: int) -> None:
        """Count records whose score is exactly 0 or 1."""
        self._saturated.inc(records)

    def columns(self, counts: Mapping[str, Counts]) -> None:
        """Count what was sent of the label party's columns."""
        for column, own in counts.items():
            for name, counter in self._counted.items():
                counter.labels(column).inc(getattr(own, name))
        if max((own.rows for own in self._window.values()), default=0) >= _WINDOW:
            self._window_before, self._window = self._window, {}
        added(self._window, counts)

    def _measure_drift(self) -> None:
        if self._encoding is None:
            return
        latest: dict[str, Counts] = {}
        added(latest, self._window_before)
        added(latest, self._window)
        for one in self._encoding.drift(latest):
            if one.index is not None:
                self._index.labels(one.column).set(one.index)
                self._by_chance.labels(one.column).set(one.by_chance)

    def not_held(self, party: str) -> None:
        """Count a record that a party does not hold."""
        self._not_held.labels(party).inc()

    def met(self, partner: str, there: bool) -> None:
        """Note that a partner came, or went."""
        self._there.labels(partner).set(int(there))

    def batch(self, records: int, seconds: float) -> None:
        """Count a message and the time until it was answered."""
        self._rows.observe(records)
        self._trips.observe(seconds)

    def text(self) -> bytes:
        """Return all counts as Prometheus reads them."""
        self._measure_drift()
        return generate_latest(self._registry)

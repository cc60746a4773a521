"""What a service tells Prometheus: how often, how long and how many, and never an id or a value of a record."""

from __future__ import annotations

from collections.abc import Sequence

from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, Counter, Gauge, Histogram, generate_latest

_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
_ROWS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 4096)


class HttpMetrics:
    """Counts of one service; :class:`splitvfl.run.online.OnlineObserver` of what goes on between the parties.

    Args:
        name: The label party.
        partners: The others.
    """

    media_type = CONTENT_TYPE_LATEST

    def __init__(self, name: str, partners: Sequence[str]) -> None:
        self._registry = CollectorRegistry()
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
        return generate_latest(self._registry)

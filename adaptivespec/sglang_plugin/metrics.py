"""Prometheus counters next to SGLang's own, under --enable-metrics; curl -s localhost:30000/metrics | grep adaptive."""

from typing import Any

from adaptivespec.sglang_plugin.requests import StepRecord


class Metrics:
    """Counters of one scheduler process; does nothing where metrics are off."""

    def __init__(self, instruments: dict[str, Any] | None = None) -> None:
        self._instruments = instruments

    @classmethod
    def create(cls) -> "Metrics":
        """The counters if the server runs with --enable-metrics."""
        from sglang.srt.runtime_context import get_observability

        if not get_observability().enable_metrics:
            return cls()
        # SGLang sets up prometheus_client's multi-process mode first; importing earlier would miss it.
        from prometheus_client import Counter, Gauge

        return cls(
            {
                "steps": Counter("adaptivespec:steps", "Verify steps by tree shape", ["shape"]),
                "promotions": Counter("adaptivespec:promotions", "Drafts promoted by a lossy rule"),
                "breaker_trips": Counter("adaptivespec:breaker_trips", "Times that a circuit breaker tripped"),
                "histories": Gauge(
                    "adaptivespec:histories", "Requests with an accept history", multiprocess_mode="mostrecent"
                ),
            }
        )

    def count(self, record: StepRecord, breaker_tripped: bool) -> None:
        """Count one request's step."""
        if self._instruments is None:
            return
        self._instruments["steps"].labels(shape=str(record.shape)).inc()
        self._instruments["promotions"].inc(len(record.promoted))
        self._instruments["breaker_trips"].inc(breaker_tripped)

    def set_histories(self, count: int) -> None:
        """Set the number of requests with an accept history."""
        if self._instruments is not None:
            self._instruments["histories"].set(count)

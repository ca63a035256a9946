"""Every metric of the API, in one place, in a registry of its own.

Labels come from closed sets: route templates, methods, status classes, lanes, and models that have
answered. What the store knows is asked for at scrape, so every API process tells the same story:
take the `max` over instances, not the sum.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from decimal import Decimal
from typing import Final

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from worker.contract.stats import Stats

UNMATCHED: Final = "unmatched"
"""The route of a request that no route answers."""

_METHODS: Final = frozenset({"GET", "POST", "PUT", "PATCH", "DELETE", "HEAD", "OPTIONS"})
_BUCKETS: Final = (0.002, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300)
_TOKEN_KINDS: Final = ("input", "output", "cached", "reasoning")
_CALLS: Final = "calls:"


class Metrics:
    """What this process counts itself."""

    def __init__(self, version: str, open_streams: Callable[[], int]) -> None:
        self._registry = CollectorRegistry()
        self._requests = Counter(
            "aiforge_http_requests_total",
            "Requests answered, by route template, method and class of status.",
            ["route", "method", "status"],
            registry=self._registry,
        )
        self._seconds = Histogram(
            "aiforge_http_request_duration_seconds",
            "Time from a request's arrival to the start of its answer, by route template.",
            ["route", "method"],
            buckets=_BUCKETS,
            registry=self._registry,
        )
        streams = Gauge(
            "aiforge_open_streams", "Event streams that are being read now.", registry=self._registry
        )
        streams.set_function(open_streams)
        build = Gauge(
            "aiforge_build_info",
            "Always 1; carries the running version.",
            ["version"],
            registry=self._registry,
        )
        build.labels(version).set(1)

    def answered(self, route: str, method: str, status: int, seconds: float) -> None:
        method = method if method in _METHODS else "other"
        self._requests.labels(route, method, f"{status // 100}xx").inc()
        self._seconds.labels(route, method).observe(seconds)

    def exposition(self, stats: Stats | None) -> bytes:
        """Prometheus text; without `stats` the store's figures are absent, not zero."""
        own = generate_latest(self._registry)
        if stats is None:
            return own
        store = CollectorRegistry(auto_describe=False)
        store.register(_Store(stats))
        return own + generate_latest(store)


class _Store(Collector):
    """The figures of one scrape."""

    def __init__(self, stats: Stats) -> None:
        self._stats = stats

    def collect(self) -> Iterator[Metric]:
        stats = self._stats
        depth = GaugeMetricFamily(
            "aiforge_lane_depth", "Wake-ups that wait in a lane's queue for a worker.", labels=["lane"]
        )
        for lane, waiting in stats.depth.items():
            depth.add_metric([lane], waiting)
        yield depth
        stored = GaugeMetricFamily(
            "aiforge_turns_stored",
            "Turns and batch slices that are ready for a worker, or being run by one.",
            labels=["state"],
        )
        stored.add_metric(["queued"], stats.ready)
        stored.add_metric(["running"], stats.running)
        yield stored
        yield GaugeMetricFamily("aiforge_workers", "Workers that were heard of lately.", value=stats.workers)
        yield from _ledger(stats.totals)


def _ledger(totals: Mapping[tuple[str, str], Mapping[str, Decimal]]) -> Iterator[Metric]:
    pair = ["provider", "model"]
    cost = CounterMetricFamily(
        "aiforge_ledger_cost_usd", "What provider calls cost, in USD, as the ledger has it.", labels=pair
    )
    unpriced = CounterMetricFamily(
        "aiforge_ledger_unpriced_calls", "Answered provider calls whose price is not known.", labels=pair
    )
    tokens = CounterMetricFamily(
        "aiforge_ledger_tokens",
        "Tokens of provider calls by kind; cached ones are part of input, reasoning ones of output.",
        labels=[*pair, "kind"],
    )
    lost = GaugeMetricFamily(
        "aiforge_ledger_lost_cost_usd",
        "What provider calls that died with their worker are estimated to have cost, in USD.",
        labels=pair,
    )
    calls = CounterMetricFamily(
        "aiforge_ledger_calls",
        "Provider calls by how they ended; without a model where none has answered.",
        labels=[*pair, "outcome"],
    )
    for names, sums in totals.items():
        cost.add_metric(names, float(sums.get("usd", 0)))
        unpriced.add_metric(names, float(sums.get("unpriced", 0)))
        lost.add_metric(names, float(sums.get("lost:usd", 0)))
        for kind in _TOKEN_KINDS:
            tokens.add_metric([*names, kind], float(sums.get(kind, 0)))
        for measure, number in sums.items():
            if measure.startswith(_CALLS):
                calls.add_metric([*names, measure.removeprefix(_CALLS)], float(number))
    yield from (cost, unpriced, lost, tokens, calls)

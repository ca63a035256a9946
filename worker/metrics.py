"""Every metric of the worker, each with one sentence; labels are closed sets, never an id."""

from __future__ import annotations

import os
from typing import Final

import msgspec
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from aiforge.core.types import ProviderCall
from worker.contract.records import unpriced

REGISTRY: Final = CollectorRegistry()
FOLDER: Final = "PROMETHEUS_MULTIPROC_DIR"
"""Makes processes count together, in files of this folder; to be set before Prometheus is imported."""
_WAITS: Final = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 1800)

TURNS: Final = Counter(
    "aiforge_turns_total",
    "Attempts at turns and slices that ended, by how.",
    ("lane", "outcome"),
    registry=REGISTRY,
)
TURN_SECONDS: Final = Histogram(
    "aiforge_turn_duration_seconds",
    "Time from the claim of a turn or item to its commit.",
    ("lane",),
    buckets=_WAITS,
    registry=REGISTRY,
)
QUEUE_SECONDS: Final = Histogram(
    "aiforge_queue_wait_seconds",
    "Time from the submission of a turn to its claim.",
    ("lane",),
    buckets=_WAITS,
    registry=REGISTRY,
)
FIRST_TOKEN_SECONDS: Final = Histogram(
    "aiforge_time_to_first_token_seconds",
    "Time from the submission of a turn to its first token.",
    ("lane",),
    buckets=_WAITS,
    registry=REGISTRY,
)
IN_FLIGHT: Final = Gauge(
    "aiforge_turns_in_flight",
    "Turns and slices that run now.",
    ("lane",),
    multiprocess_mode="livesum",
    registry=REGISTRY,
)
FAILURES: Final = Counter(
    "aiforge_failures_total",
    "Turns and items that ended without an answer.",
    ("lane", "code"),
    registry=REGISTRY,
)
ITEMS: Final = Counter(
    "aiforge_items_total", "Batch items that ended, by how.", ("outcome",), registry=REGISTRY
)
LOOKUPS: Final = Counter(
    "aiforge_answer_lookups_total",
    "Batch items that may take a kept answer, by what became of them: it was kept, another item's was waited"
    " for, or the model was asked.",
    ("found",),
    registry=REGISTRY,
)
TOKENS: Final = Counter(
    "aiforge_tokens_total",
    "Tokens of this worker's provider calls; cached are part of input, reasoning part of output.",
    ("kind",),
    registry=REGISTRY,
)
CALLS: Final = Counter(
    "aiforge_provider_calls_total",
    "Requests to a model, by what for and how they ended.",
    ("purpose", "outcome"),
    registry=REGISTRY,
)
UNPRICED: Final = Counter(
    "aiforge_unpriced_calls_total", "Provider calls of models whose price is not known.", registry=REGISTRY
)
REAPED: Final = Counter(
    "aiforge_reaped_total",
    "Leases that ran out, wake-ups that were sent again, turns whose time has come.",
    ("kind",),
    registry=REGISTRY,
)
FIRES: Final = Counter(
    "aiforge_schedule_fires_total",
    "Ticks of schedules that this worker fired: posted, refused, or done by another worker as well.",
    ("outcome",),
    registry=REGISTRY,
)
DROPPED: Final = Counter(
    "aiforge_messages_dropped_total",
    "Wake-ups without effect: garbage, forged, repeated or out of date.",
    ("reason",),
    registry=REGISTRY,
)
PROVIDER_WAIT_SECONDS: Final = Histogram(
    "aiforge_provider_wait_seconds",
    "Time that provider calls waited for a place, where they had to ask for one.",
    ("lane",),
    buckets=_WAITS,
    registry=REGISTRY,
)
PROVIDER_HOLDS: Final = Counter(
    "aiforge_provider_holds_total",
    "Times that waiting provider calls were told to go on waiting, by why.",
    ("reason",),
    registry=REGISTRY,
)
PROVIDERS_UNWELL: Final = Gauge(
    "aiforge_providers_unwell",
    "Models that cool down, ramp up or whose circuit is open.",
    multiprocess_mode="livemax",
    registry=REGISTRY,
)
LOOP_LAG: Final = Gauge(
    "aiforge_event_loop_lag_seconds",
    "How late the turns' event loop last was.",
    multiprocess_mode="livemax",
    registry=REGISTRY,
)
HEARTBEAT_AGE: Final = Gauge(
    "aiforge_heartbeat_age_seconds",
    "Time since this worker's leases were last renewed.",
    multiprocess_mode="livemax",
    registry=REGISTRY,
)
BUILD: Final = Gauge(
    "aiforge_build_info",
    "The version that runs; always 1.",
    ("version",),
    multiprocess_mode="livemax",
    registry=REGISTRY,
)

_CARRIED: Final = (
    TURNS, TURN_SECONDS, FIRST_TOKEN_SECONDS, FAILURES, ITEMS, TOKENS, CALLS, UNPRICED, LOOKUPS,
)  # fmt: skip
"""What is counted where the work runs, so also in a process that runs one suspect and then is gone."""

_FAILURE_CODES: Final = frozenset(
    {
        "internal_error", "invalid_config", "provider_error", "rate_limited", "provider_timeout",
        "provider_authentication", "provider_refused", "provider_context_length", "provider_unavailable",
        "provider_stream_cut", "provider_empty_answer", "dead_lettered",
    }
)  # fmt: skip


def count_failure(lane: str, code: str) -> None:
    """Codes outside the closed set are counted as `other`."""
    FAILURES.labels(lane, code if code in _FAILURE_CODES else "other").inc()


def count_call(call: ProviderCall) -> None:
    """Count a provider call that ended."""
    CALLS.labels(call.purpose, call.outcome).inc()
    if call.usage is not None:
        TOKENS.labels("input").inc(call.usage.input_tokens)
        TOKENS.labels("output").inc(call.usage.output_tokens)
        TOKENS.labels("cached").inc(call.usage.cached_tokens)
        TOKENS.labels("reasoning").inc(call.usage.reasoning_tokens)
    if unpriced(call):
        UNPRICED.inc()


class Count(msgspec.Struct, frozen=True):
    """What one process counted: a counter's amount, or `times` observations that make up `amount`."""

    metric: int
    labels: dict[str, str]
    times: int
    amount: float


def counted() -> list[Count]:
    """What this process has counted, for another one to count again; nothing where they count together."""
    if FOLDER in os.environ:
        return []
    found: list[Count] = []
    for number, metric in enumerate(_CARRIED):
        samples = [sample for family in metric.collect() for sample in family.samples]
        times = {
            frozenset(sample.labels.items()): int(sample.value)
            for sample in samples
            if sample.name.endswith("_count")
        }
        found += [
            Count(number, sample.labels, times.get(frozenset(sample.labels.items()), 1), sample.value)
            for sample in samples
            if sample.name.endswith(("_total", "_sum")) and sample.value
        ]
    return found


def count_again(counts: list[Count]) -> None:
    """Add what another process has counted; of several observations together, their mean."""
    for count in counts:
        metric = _CARRIED[count.metric]
        one = metric.labels(**count.labels) if count.labels else metric
        if isinstance(one, Counter):
            one.inc(count.amount)
        else:
            for _ in range(count.times):
                one.observe(count.amount / count.times)

"""Metrics for Prometheus: counters of programs and calls, and gauges of the present state.

The counters are fed from the registry's events. Those of calls follow the sums in a program's row,
so that they agree with its report.
"""

from __future__ import annotations

import collections
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, fields
from functools import lru_cache
from operator import attrgetter, sub

from prometheus_client import CollectorRegistry, Counter, Histogram
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from agentrt.graph import Node, NodeKind
from agentrt.request import Usage
from agentrt.runtime.run import Run
from agentrt.serving.observability.engines import EngineView, Replica, queue_levels
from agentrt.serving.observability.status import Activity, status_of

_SECONDS = (0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 25, 50, 100, 250, 500, 1000, 2500)
_LABELS = ("tenant", "type")
OTHER = "other"
"""The label shared by those beyond the bounds."""
_SUMS = {
    "finished_calls": ("calls", "Calls that ended."),
    "preemptions": ("preemptions", "Times that a call lost its place in the batch."),
    "prompt_tokens": ("prompt_tokens", "Prompt tokens of ended calls."),
    "output_tokens": ("output_tokens", "Output tokens of ended calls."),
    "cached_tokens": ("cached_tokens", "Prompt tokens found in the prefix cache."),
    "recomputed_tokens": ("recomputed_tokens", "Tokens computed again."),
    "service_s": ("service_seconds", "Seconds of service in engines, over calls."),
    "waiting_s": ("waiting_seconds", "Seconds in engines' queues, over calls."),
    "interrupt_s": ("interrupt_seconds", "Seconds in tools and with humans."),
}
"""Sums over a program, each with its counter and what it counts."""
_USED = {field.name for field in fields(Usage)}
_sums_of = attrgetter(*(f"usage.{name}" if name in _USED else name for name in _SUMS))
"""Those of a program's row."""


class Labels:
    """Bounded sets of labels: what clients name must not grow the metrics without end.

    The first ``tenants`` tenants, and of each the first ``types`` program types, have labels of
    their own; all others share `OTHER`.
    """

    def __init__(self, tenants: int = 50, types: int = 20) -> None:
        self._tenants = tenants
        self._types = types
        self._known: dict[str, set[str]] = {}

    def of(self, tenant: str, type: str) -> tuple[str, str]:
        """The labels for a program: tenant and type."""
        types = self._known.get(tenant)
        if types is None:
            if len(self._known) == self._tenants or tenant == OTHER:
                return OTHER, OTHER
            types = self._known[tenant] = set()
        if type not in types:
            if len(types) == self._types or type == OTHER:
                return tenant, OTHER
            types.add(type)
        return tenant, type


class Metrics:
    """The counters and histograms, in a registry of their own."""

    def __init__(self, labels: Labels | None = None) -> None:
        self.labels = labels or Labels()
        self.registry = CollectorRegistry(auto_describe=True)
        # Bound as their labels are: to find one anew costs as much as ten that are counted.
        self._of = lru_cache(maxsize=None)(lambda metric, labels: metric.labels(*labels))
        self._counted: dict[str, tuple[tuple[str, str], tuple[float, ...]]] = {}
        self._sums = [self._counter(name, text) for name, text in _SUMS.values()]
        self._hits = self._counter("prefix_hits", "Calls that found some of their prompt cached.")
        self._ended = self._counter("programs_ended", "Programs that ended, by how.", "state")
        self._latency = self._histogram("program_latency", "from a program's begin to its end")
        self._service = self._histogram("program_service", "of a program's service")
        self._waiting = self._histogram("program_waiting", "of a program's waiting")
        self._call_service = self._histogram("call_service", "of a call's service")
        self._call_waiting = self._histogram("call_waiting", "of a call's waiting")

    def _counter(self, name: str, text: str, *more: str) -> Counter:
        return Counter(f"agentrt_{name}", text, (*_LABELS, *more), registry=self.registry)

    def _histogram(self, name: str, text: str) -> Histogram:
        return Histogram(
            f"agentrt_{name}_seconds",
            f"Seconds {text}.",
            _LABELS,
            registry=self.registry,
            buckets=_SECONDS,
        )

    def node_ended(self, run: Run, node: Node) -> None:
        """A call or an interrupt is over."""
        labels = self._count(run)
        if node.kind is NodeKind.CALL and node.report is not None:
            self._of(self._call_service, labels).observe(node.report.service_s)
            self._of(self._call_waiting, labels).observe(node.report.waiting_s)
            if node.report.cached_tokens:
                self._of(self._hits, labels).inc()

    def program_ended(self, run: Run) -> None:
        """A program ended; calls of foreign frameworks may still end after it. One that is parked
        goes on under its id.
        """
        labels = self._count(run)
        if run.parked:
            self.forget(run)  # it begins again at 0
            return
        assert run.ended_at is not None
        self._of(self._ended, (*labels, run.state.value)).inc()
        self._of(self._latency, labels).observe(run.ended_at - run.started_at)
        self._of(self._service, labels).observe(run.row.service_s)
        self._of(self._waiting, labels).observe(run.row.waiting_s)

    def forget(self, run: Run) -> None:
        """Nothing more is counted of the program."""
        self._counted.pop(run.id, None)

    def _count(self, run: Run) -> tuple[str, str]:
        """Add what the program's row has more than was counted, but for what was only recalled.
        Returns its labels. They are chosen late: a program's type may change until its first node.
        """
        labels, before = self._counted.get(run.id, (None, (0.0,) * len(_SUMS)))
        labels = labels or self.labels.of(run.row.tenant, run.type)
        # Sums of parts may be off by the last bit, and a counter takes nothing below 0.
        own = map(sub, _sums_of(run.row), _sums_of(run.recalled))
        sums = tuple(map(max, own, before))
        for counter, now, then in zip(self._sums, sums, before, strict=True):
            if now != then:
                self._of(counter, labels).inc(now - then)
        self._counted[run.id] = labels, sums
        return labels


def of_tenant(metrics: Iterable[Metric], tenant: str) -> Iterator[Metric]:
    """The samples that belong to one tenant."""
    for metric in metrics:
        own = Metric(metric.name, metric.documentation, metric.type, metric.unit)
        own.samples = [s for s in metric.samples if s.labels.get("tenant") == tenant]
        yield own


@dataclass(frozen=True, slots=True)
class Collected(Collector):
    """Metrics that were collected before."""

    metrics: Iterable[Metric]

    def collect(self) -> Iterable[Metric]:
        return self.metrics


# -- the present state ---------------------------------------------------------------------


_REPLICA_STATES = ("starting", "ready", "down", "out")
_Family = type[GaugeMetricFamily] | type[CounterMetricFamily]
_OF_REPLICA: Sequence[tuple[_Family, str, str, Callable[[Replica], float]]] = (
    (GaugeMetricFamily, "kv_blocks", "KV-cache blocks.", lambda r: r.blocks),
    (
        GaugeMetricFamily,
        "kv_used_blocks",
        "KV-cache blocks that are not free.",
        lambda r: r.blocks - r.free_blocks,
    ),
    (CounterMetricFamily, "engine_steps", "Engine steps.", lambda r: r.steps),
    (
        CounterMetricFamily,
        "computed_tokens",
        "Tokens computed, of prompts and outputs.",
        lambda r: r.computed_tokens or 0,
    ),
    (CounterMetricFamily, "replica_deaths", "Times that the engine died.", lambda r: r.deaths),
)


def gauges(
    runs: Iterable[Run], view: EngineView, now: float, sees: Callable[[str], bool], labels: Labels
) -> Iterator[Metric]:
    """The programs ``runs`` and the engines at the time ``now``.

    Everybody gets the replicas, but only the calls of programs that the reader ``sees``.
    """
    programs, waiting = collections.Counter[Sequence[str]](), collections.Counter[Sequence[str]]()
    for run in runs:
        whose, status = labels.of(run.row.tenant, run.type), status_of(run, view, now, _nobody)
        programs[*whose, str(status.state)] += 1
        if status.state is Activity.WAITING:
            # Of a queued call the gauges of queue levels say where.
            reason = "queued" if status.wait.startswith("queued") else status.wait
            waiting[*whose, reason] += 1
    yield _gauge("programs", "Live programs.", ("tenant", "type", "state"), programs.items())
    names = ("tenant", "type", "reason")
    yield _gauge("waiting_programs", "Programs that wait, by why.", names, waiting.items())
    levels = {
        (replica, "none" if level is None else f"Q{level + 1}"): counts
        for (replica, level), counts in queue_levels(view, sees).items()
    }
    for index, name, text in (
        (0, "running_calls", "Calls in a batch."),
        (1, "queued_calls", "Calls in a queue."),
    ):
        counts = {place: both[index] for place, both in levels.items()}
        yield _gauge(name, text, ("replica", "level"), counts.items())
    states = {(r.name, state): r.state == state for r in view.replicas for state in _REPLICA_STATES}
    yield _gauge("replica_state", "1 at its state.", ("replica", "state"), states.items())
    for kind, name, text, value in _OF_REPLICA:
        metric = kind(f"agentrt_{name}", text, labels=("replica",))
        for replica in view.replicas:
            metric.add_metric((replica.name,), value(replica))
        yield metric


def _nobody(program: str) -> str:
    """What a label calls any program: their names would grow the metrics without end."""
    return "another program"


def _gauge(
    name: str, text: str, labels: Sequence[str], values: Iterable[tuple[Sequence[str], float]]
) -> Metric:
    metric = GaugeMetricFamily(f"agentrt_{name}", text, labels=labels)
    for place, value in values:
        metric.add_metric(place, value)
    return metric

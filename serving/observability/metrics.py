"""What Prometheus counts of programs and calls, fed from the registry's events.

Counters of calls follow the sums in a program's row, so that they agree with its report.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from prometheus_client import CollectorRegistry, Counter, Histogram
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from agentrt.graph import Node, NodeKind
from agentrt.runtime.run import Run
from agentrt.serving.observability.labels import Labels

_SECONDS = (0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 25, 50, 100, 250, 500, 1000, 2500)
_LABELS = ("tenant", "type")
_SUMS = {
    "finished_calls": ("agentrt_calls", "Calls that ended."),
    "preemptions": ("agentrt_preemptions", "Times that a call lost its place in the batch."),
    "prompt_tokens": ("agentrt_prompt_tokens", "Prompt tokens of ended calls."),
    "output_tokens": ("agentrt_output_tokens", "Output tokens of ended calls."),
    "cached_tokens": ("agentrt_cached_tokens", "Prompt tokens found in the prefix cache."),
    "recomputed_tokens": ("agentrt_recomputed_tokens", "Tokens computed again."),
    "service_s": ("agentrt_service_seconds", "Seconds of service in engines, over calls."),
    "waiting_s": ("agentrt_waiting_seconds", "Seconds in engines' queues, over calls."),
    "interrupt_s": ("agentrt_interrupt_seconds", "Seconds in tools and with humans."),
}
"""Sums of a program's row, each with its counter and what it counts."""


@dataclass(frozen=True, slots=True)
class Bound:
    """The metrics of one pair of labels: to look them up for each call costs more than to count."""

    labels: tuple[str, str]
    sums: dict[str, Counter]
    hits: Counter
    service: Histogram
    waiting: Histogram


@dataclass(slots=True)
class Account:
    """A program as the metrics know it: what is ``bound`` to its labels, how much is counted.

    The labels are chosen late: a program's type may change until its first node.
    """

    bound: Bound | None = None
    counted: dict[str, float] = field(default_factory=lambda: dict.fromkeys(_SUMS, 0.0))


class Metrics:
    """The counters and histograms, in a registry of their own."""

    def __init__(self, labels: Labels | None = None) -> None:
        self.labels = labels or Labels()
        self.registry = CollectorRegistry(auto_describe=True)
        self._sums = {
            field: Counter(name, text, _LABELS, registry=self.registry)
            for field, (name, text) in _SUMS.items()
        }
        self._hits = self._counter("prefix_hits", "Calls that found some of their prompt cached.")
        self._bound: dict[tuple[str, str], Bound] = {}
        self._ended = Counter(
            "agentrt_programs_ended",
            "Programs that ended, by how.",
            (*_LABELS, "state"),
            registry=self.registry,
        )
        self._latency = self._histogram("program_latency", "from a program's begin to its end")
        self._service = self._histogram("program_service", "of a program's service")
        self._waiting = self._histogram("program_waiting", "of a program's waiting")
        self._call_service = self._histogram("call_service", "of a call's service")
        self._call_waiting = self._histogram("call_waiting", "of a call's waiting")

    def _counter(self, name: str, text: str) -> Counter:
        return Counter(f"agentrt_{name}", text, _LABELS, registry=self.registry)

    def _histogram(self, name: str, text: str) -> Histogram:
        return Histogram(
            f"agentrt_{name}_seconds",
            f"Seconds {text}.",
            _LABELS,
            registry=self.registry,
            buckets=_SECONDS,
        )

    def node_ended(self, run: Run, account: Account, node: Node) -> None:
        """A call or an interrupt is over."""
        bound = self._bind(run, account)
        _count(run, account, bound)
        if node.kind is NodeKind.CALL and node.report is not None:
            bound.service.observe(node.report.service_s)
            bound.waiting.observe(node.report.waiting_s)
            if node.report.cached_tokens:
                bound.hits.inc()

    def program_ended(self, run: Run, account: Account) -> None:
        """A program ended; calls of foreign code may still end after it."""
        bound = self._bind(run, account)
        _count(run, account, bound)
        assert run.ended_at is not None
        self._ended.labels(*bound.labels, str(run.state)).inc()
        self._latency.labels(*bound.labels).observe(run.ended_at - run.started_at)
        self._service.labels(*bound.labels).observe(run.row.service_s)
        self._waiting.labels(*bound.labels).observe(run.row.waiting_s)

    def _bind(self, run: Run, account: Account) -> Bound:
        if account.bound is None:
            labels = self.labels.of(run.row.tenant, run.type)
            if labels not in self._bound:
                self._bound[labels] = self._new(labels)
            account.bound = self._bound[labels]
        return account.bound

    def _new(self, labels: tuple[str, str]) -> Bound:
        return Bound(
            labels,
            {name: counter.labels(*labels) for name, counter in self._sums.items()},
            self._hits.labels(*labels),
            self._call_service.labels(*labels),
            self._call_waiting.labels(*labels),
        )


def _count(run: Run, account: Account, bound: Bound) -> None:
    """Add what the program's row has more than was counted."""
    counted, row = account.counted, run.row
    for name, counter in bound.sums.items():
        value = getattr(row, name)
        if more := value - counted[name]:
            counter.inc(more)
            counted[name] = value


class OfTenant(Collector):
    """What a registry holds of one tenant, for its eyes alone."""

    def __init__(self, registry: CollectorRegistry, tenant: str) -> None:
        self._registry = registry
        self._tenant = tenant

    def collect(self) -> Iterator[Metric]:
        for metric in self._registry.collect():
            own = Metric(metric.name, metric.documentation, metric.type, metric.unit)
            own.samples = [s for s in metric.samples if s.labels.get("tenant") == self._tenant]
            yield own

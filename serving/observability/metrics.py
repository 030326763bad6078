"""Metrics for Prometheus: counters of programs and calls. `gauges` has those of the present state.

They are fed from the registry's events. Those of calls follow the sums in a program's row,
so that they agree with its report.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, fields
from operator import attrgetter

from prometheus_client import CollectorRegistry, Counter, Histogram
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from agentrt.graph import Node, NodeKind
from agentrt.request import Usage
from agentrt.runtime.run import Run

_SECONDS = (0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 25, 50, 100, 250, 500, 1000, 2500)
_LABELS = ("tenant", "type")
OTHER = "other"
"""The label shared by those beyond the bounds."""
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


@dataclass(frozen=True, slots=True)
class LabelledMetrics:
    """The metrics of one pair of labels. Looking them up for each call would be slow.

    ``service`` and ``waiting`` are of a call; ``programs`` are those of programs, by their last
    state: their number, latency, service and waiting.
    """

    labels: tuple[str, str]
    sums: tuple[Counter, ...]
    hits: Counter
    service: Histogram
    waiting: Histogram
    programs: dict[str, tuple[Counter, Histogram, Histogram, Histogram]] = field(
        default_factory=dict
    )


@dataclass(slots=True)
class Counted:
    """A program's ``metrics``, and how much of its ``sums`` they count so far.

    The labels are chosen late: a program's type may change until its first node.
    """

    metrics: LabelledMetrics | None = None
    sums: tuple[float, ...] = (0.0,) * len(_SUMS)


class Metrics:
    """The counters and histograms, in a registry of their own."""

    def __init__(self, labels: Labels | None = None) -> None:
        self.labels = labels or Labels()
        self.registry = CollectorRegistry(auto_describe=True)
        self._sums = [self._counter(name, text) for name, text in _SUMS.values()]
        self._hits = self._counter(
            "agentrt_prefix_hits", "Calls that found some of their prompt cached."
        )
        self._labelled: dict[tuple[str, str], LabelledMetrics] = {}
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
        return Counter(name, text, _LABELS, registry=self.registry)

    def _histogram(self, name: str, text: str) -> Histogram:
        return Histogram(
            f"agentrt_{name}_seconds",
            f"Seconds {text}.",
            _LABELS,
            registry=self.registry,
            buckets=_SECONDS,
        )

    def node_ended(self, run: Run, counted: Counted, node: Node) -> None:
        """A call or an interrupt is over."""
        metrics = self._count(run, counted)
        if node.kind is NodeKind.CALL and node.report is not None:
            metrics.service.observe(node.report.service_s)
            metrics.waiting.observe(node.report.waiting_s)
            if node.report.cached_tokens:
                metrics.hits.inc()

    def program_ended(self, run: Run, counted: Counted) -> None:
        """A program ended; calls of foreign frameworks may still end after it."""
        metrics = self._count(run, counted)
        assert run.ended_at is not None
        state = run.state.value
        if state not in metrics.programs:
            metrics.programs[state] = (
                self._ended.labels(*metrics.labels, state),
                self._latency.labels(*metrics.labels),
                self._service.labels(*metrics.labels),
                self._waiting.labels(*metrics.labels),
            )
        ended, latency, service, waiting = metrics.programs[state]
        ended.inc()
        latency.observe(run.ended_at - run.started_at)
        service.observe(run.row.service_s)
        waiting.observe(run.row.waiting_s)

    def _count(self, run: Run, counted: Counted) -> LabelledMetrics:
        """Add what the program's row has more than was counted."""
        metrics = counted.metrics = counted.metrics or self._metrics_of(run)
        sums = _sums_of(run.row)
        if sums != counted.sums:
            for counter, now, before in zip(metrics.sums, sums, counted.sums, strict=True):
                if now != before:
                    counter.inc(now - before)
            counted.sums = sums
        return metrics

    def _metrics_of(self, run: Run) -> LabelledMetrics:
        labels = self.labels.of(run.row.tenant, run.type)
        if labels not in self._labelled:
            self._labelled[labels] = LabelledMetrics(
                labels,
                tuple(counter.labels(*labels) for counter in self._sums),
                self._hits.labels(*labels),
                self._call_service.labels(*labels),
                self._call_waiting.labels(*labels),
            )
        return self._labelled[labels]


class TenantMetrics(Collector):
    """The part of a registry that belongs to one tenant."""

    def __init__(self, registry: CollectorRegistry, tenant: str) -> None:
        self._registry = registry
        self._tenant = tenant

    def collect(self) -> Iterator[Metric]:
        for metric in self._registry.collect():
            own = Metric(metric.name, metric.documentation, metric.type, metric.unit)
            own.samples = [s for s in metric.samples if s.labels.get("tenant") == self._tenant]
            yield own


class Fixed(CollectorRegistry):
    """Metrics that somebody else collected."""

    def __init__(self, metrics: Iterable[Metric]) -> None:
        super().__init__()
        self._fixed = metrics

    def collect(self) -> Iterable[Metric]:
        return self._fixed

"""Metrics for Prometheus: counters and histograms of programs and calls, and gauges of the current
state.

The counters and histograms cover the nodes and programs that have ended. The sums over a program's
calls, such as the number of tokens, come from the program's row of the process table, so that they
agree with the program's report.
"""

from __future__ import annotations

import collections
import time
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, fields
from functools import partial
from itertools import accumulate
from operator import attrgetter, sub

from prometheus_client import CollectorRegistry
from prometheus_client.metrics_core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString

from agentrt.executors.replicas import ReplicaState
from agentrt.graph import Node, NodeKind
from agentrt.request import Usage
from agentrt.runtime.run import Run
from agentrt.serving.observability.engines import EngineStatus, EnginesView, queue_levels
from agentrt.serving.observability.status import Activity, status_of

_SECONDS = (0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 25, 50, 100, 250, 500, 1000, 2500)
_BOUNDS = (*map(floatToGoString, _SECONDS), "+Inf")
_LABELS = ("tenant", "type")
OTHER = "other"
"""The label of all tenants and program types beyond the maximum."""
_SUMS = {
    "finished_calls": ("calls", "Calls that ended."),
    "preemptions": ("preemptions", "Preemptions of calls."),
    "prompt_tokens": ("prompt_tokens", "Prompt tokens of ended calls."),
    "output_tokens": ("output_tokens", "Output tokens of ended calls."),
    "cached_tokens": ("cached_tokens", "Prompt tokens found in the prefix cache."),
    "recomputed_tokens": (
        "recomputed_tokens",
        "Tokens that were computed again after a preemption.",
    ),
    "loaded_tokens": (
        "loaded_tokens",
        "Tokens loaded from host memory in place of being computed.",
    ),
    "unused_loaded_tokens": ("unused_loaded_tokens", "Loaded tokens that were never used."),
    "service_s": ("service_seconds", "Seconds of service in engines, summed over calls."),
    "waiting_s": ("waiting_seconds", "Seconds in engines' queues, summed over calls."),
    "interrupt_s": ("interrupt_seconds", "Seconds that tools, humans and events took."),
}
"""Sums over a program's calls and interrupts, each with the counter's name and description."""
_NOTHING = (0.0,) * len(_SUMS)
_USED = {field.name for field in fields(Usage)}
_sums_of = attrgetter(*(f"usage.{name}" if name in _USED else name for name in _SUMS))
"""Returns the values of the sums in `_SUMS` from a program's row of the process table."""


class Labels:
    """The labels of tenants and program types, limited in number.

    Clients choose these names, which must not grow the metrics without limit. The first ``tenants``
    tenants, and the first ``types`` program types of each tenant, have labels of their own. All
    other tenants and types share the label `OTHER`.
    """

    def __init__(self, tenants: int = 50, types: int = 20) -> None:
        self._tenants = tenants
        self._types = types
        self._known: dict[str, set[str]] = {}

    def of(self, tenant: str, type: str) -> tuple[str, str]:
        """Return the labels of a program: tenant and type."""
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


class _Sums:
    """A counter: a sum for each combination of values of its ``labels``."""

    def __init__(self, name: str, text: str, labels: Sequence[str]) -> None:
        self._family = partial(CounterMetricFamily, f"agentrt_{name}", text, labels=labels)
        self._values: dict[tuple[str, ...], float] = {}
        self._since: dict[tuple[str, ...], float] = {}

    def add(self, labels: tuple[str, ...], amount: float = 1.0) -> None:
        """Add ``amount`` to the sum of these label values."""
        if labels in self._values:
            self._values[labels] += amount
        else:
            self._values[labels], self._since[labels] = amount, time.time()

    def collect(self) -> Metric:
        family = self._family()
        for labels, value in self._values.items():
            family.add_metric(labels, value, created=self._since[labels])
        return family


class _Distribution:
    """A histogram of seconds for each combination of values of the labels `_LABELS`."""

    def __init__(self, name: str, text: str) -> None:
        self._name = f"agentrt_{name}_seconds"
        self._text = f"Seconds {text}."
        self._counts: dict[tuple[str, ...], list[int]] = {}
        self._sums: dict[tuple[str, ...], float] = {}
        self._since: dict[tuple[str, ...], float] = {}

    def observe(self, labels: tuple[str, ...], seconds: float) -> None:
        """Add one value."""
        if labels not in self._sums:
            self._counts[labels] = [0] * (len(_SECONDS) + 1)
            self._sums[labels], self._since[labels] = 0.0, time.time()
        self._counts[labels][bisect_left(_SECONDS, seconds)] += 1
        self._sums[labels] += seconds

    def collect(self) -> Metric:
        family = HistogramMetricFamily(self._name, self._text, labels=_LABELS)
        for labels, counts in self._counts.items():
            buckets = zip(_BOUNDS, accumulate(counts), strict=True)
            family.add_metric(labels, list(buckets), self._sums[labels])
            own = dict(zip(_LABELS, labels, strict=True))
            family.add_sample(f"{self._name}_created", own, self._since[labels])
        return family


class Metrics(Collector):
    """The counters and histograms, in a Prometheus registry of their own.

    The values are kept as plain numbers, and become Prometheus' metrics when they are read:
    counting with the classes of prometheus_client would take several times as long, for each call.
    """

    def __init__(self, labels: Labels | None = None) -> None:
        self.labels = labels or Labels()
        self._counted: dict[str, tuple[tuple[str, str], tuple[float, ...]]] = {}
        self._changed: dict[str, Run] = {}
        """Live programs whose sums have grown since they were counted."""
        self._sums = [_Sums(name, text, _LABELS) for name, text in _SUMS.values()]
        self._hits = _Sums("prefix_hits", "Calls with cached prompt tokens.", _LABELS)
        ended_labels = (*_LABELS, "state")
        self._ended = _Sums("programs_ended", "Programs that ended, by state.", ended_labels)
        self._latency = _Distribution("program_latency", "from a program's start to its end")
        self._service = _Distribution("program_service", "of a program's service")
        self._waiting = _Distribution("program_waiting", "of a program's waiting")
        self._call_service = _Distribution("call_service", "of a call's service")
        self._call_waiting = _Distribution("call_waiting", "of a call's waiting")
        self.registry = CollectorRegistry(auto_describe=True)
        self.registry.register(self)

    def collect(self) -> Iterator[Metric]:
        """Yield all counters and histograms."""
        for run in self._changed.values():
            self._count(run)
        self._changed.clear()
        for counter in (*self._sums, self._hits, self._ended):
            yield counter.collect()
        of_programs = self._latency, self._service, self._waiting
        for histogram in (*of_programs, self._call_service, self._call_waiting):
            yield histogram.collect()

    def node_ended(self, run: Run, node: Node) -> None:
        """Count a call or an interrupt that has ended."""
        if run.ended_at is None:
            labels, self._changed[run.id] = self._labels_of(run), run
        else:
            labels = self._count(run)
        if node.kind is NodeKind.CALL and node.report is not None:
            self._call_service.observe(labels, node.report.service_s)
            self._call_waiting.observe(labels, node.report.waiting_s)
            if node.report.cached_tokens:
                self._hits.add(labels)

    def program_ended(self, run: Run) -> None:
        """Add to the counters what is left of a program that has ended or was parked.

        A parked program does not count as ended, because it is resumed with the same id. Calls that
        another framework makes for a program may end after the program, and are counted then.
        """
        labels = self._count(run)
        self._changed.pop(run.id, None)
        if run.parked:
            self.forget(run)  # a resumed run counts from 0 again
            return
        assert run.ended_at is not None
        self._ended.add((*labels, run.state.value))
        self._latency.observe(labels, run.ended_at - run.started_at)
        self._service.observe(labels, run.row.service_s)
        self._waiting.observe(labels, run.row.waiting_s)

    def forget(self, run: Run) -> None:
        """Forget which sums of a program were counted. Call this when the program's calls are not
        counted any more.
        """
        self._counted.pop(run.id, None)

    def _labels_of(self, run: Run) -> tuple[str, str]:
        """Return a program's labels.

        The labels are chosen when the first node ends, because a program's type may change before.
        """
        if run.id not in self._counted:
            self._counted[run.id] = self.labels.of(run.row.tenant, run.type), _NOTHING
        return self._counted[run.id][0]

    def _count(self, run: Run) -> tuple[str, str]:
        """Add the increase of a program's sums to the counters, and return the program's labels.

        Results that were only recalled from the journal are not counted.
        """
        labels, before = self._labels_of(run), self._counted[run.id][1]
        sums = _sums_of(run.row)
        if run.recalled is not None:
            # Rounding could make a difference slightly negative, which a counter does not accept.
            sums = tuple(map(max, map(sub, sums, _sums_of(run.recalled)), before))
        for counter, now, then in zip(self._sums, sums, before, strict=True):
            if now != then:
                counter.add(labels, now - then)
        self._counted[run.id] = labels, sums
        return labels


def of_tenant(metrics: Iterable[Metric], tenant: str) -> Iterator[Metric]:
    """Yield the metrics with the samples of one tenant only.

    A tenant whose name is `OTHER` gets no samples, because those with this label are sums over
    several tenants.
    """
    for metric in metrics:
        own = Metric(metric.name, metric.documentation, metric.type, metric.unit)
        if tenant != OTHER:
            own.samples = [s for s in metric.samples if s.labels.get("tenant") == tenant]
        yield own


@dataclass(frozen=True, slots=True)
class Collected(Collector):
    """A collector of metrics that were collected before."""

    metrics: Iterable[Metric]

    def collect(self) -> Iterable[Metric]:
        return self.metrics


# -- the present state ---------------------------------------------------------------------


_Family = type[GaugeMetricFamily] | type[CounterMetricFamily]
_OF_REPLICA: Sequence[tuple[_Family, str, str, Callable[[EngineStatus], float]]] = (
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
        "Computed tokens of prompts and outputs.",
        lambda r: r.computed_tokens or 0,
    ),
    (
        GaugeMetricFamily,
        "weights_version",
        "Version of the model's weights; 0 before the first update.",
        lambda r: r.weights_version,
    ),
    (
        GaugeMetricFamily,
        "generation_paused",
        "1 while generation is paused, else 0.",
        lambda r: r.paused,
    ),
    (
        CounterMetricFamily,
        "replica_deaths",
        "Number of times that the engine died.",
        lambda r: r.deaths,
    ),
)


def gauges(
    runs: Iterable[Run], view: EnginesView, now: float, sees: Callable[[str], bool], labels: Labels
) -> Iterator[Metric]:
    """Yield gauges of the programs ``runs`` and of the engines at the time ``now``.

    All readers get the state of the replicas, but only the calls of programs that they may see
    (``sees``).
    """
    programs, waiting = collections.Counter[Sequence[str]](), collections.Counter[Sequence[str]]()
    for run in runs:
        whose, status = labels.of(run.row.tenant, run.type), status_of(run, view, now, _nobody)
        programs[*whose, str(status.state)] += 1
        if status.state is Activity.WAITING:
            # The gauges of queue levels have the queued calls by level.
            reason = "queued" if status.wait.startswith("queued") else status.wait
            waiting[*whose, reason] += 1
    yield _gauge("programs", "Live programs.", ("tenant", "type", "state"), programs.items())
    names = ("tenant", "type", "reason")
    yield _gauge("waiting_programs", "Programs that wait, by reason.", names, waiting.items())
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
    states = {(r.name, state): r.state == state for r in view.replicas for state in ReplicaState}
    yield _gauge(
        "replica_state",
        "1 for the replica's current state, else 0.",
        ("replica", "state"),
        states.items(),
    )
    for kind, name, text, value in _OF_REPLICA:
        metric = kind(f"agentrt_{name}", text, labels=("replica",))
        for replica in view.replicas:
            metric.add_metric((replica.name,), value(replica))
        yield metric


def _nobody(program: str) -> str:
    """Return the same label for all programs, because a label for each program would grow the
    metrics without limit.
    """
    return "another program"


def _gauge(
    name: str, text: str, labels: Sequence[str], values: Iterable[tuple[Sequence[str], float]]
) -> Metric:
    metric = GaugeMetricFamily(f"agentrt_{name}", text, labels=labels)
    for place, value in values:
        metric.add_metric(place, value)
    return metric

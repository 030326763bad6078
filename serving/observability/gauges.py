"""Metrics for Prometheus of the present state: live programs, queues, and engines."""

from __future__ import annotations

import collections
from collections.abc import Callable, Iterable, Iterator

from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from agentrt.runtime.run import Run
from agentrt.serving.observability.engines import EngineView, Replica, queue_levels
from agentrt.serving.observability.metrics import Labels
from agentrt.serving.observability.status import status_of

_REPLICA_STATES = ("starting", "ready", "down", "out")
_Read = dict[str, tuple[str, Callable[[Replica], float]]]
"""Metrics by name: what each counts, and how to read it from a replica."""
_GAUGES: _Read = {
    "agentrt_kv_blocks": ("KV-cache blocks.", lambda r: r.blocks),
    "agentrt_kv_used_blocks": (
        "KV-cache blocks that are not free.",
        lambda r: r.blocks - r.free_blocks,
    ),
}
_COUNTERS: _Read = {
    "agentrt_engine_steps": ("Engine steps.", lambda r: r.steps),
    "agentrt_computed_tokens": (
        "Tokens computed, of prompts and outputs.",
        lambda r: r.computed_tokens or 0,
    ),
    "agentrt_replica_deaths": ("Times that the engine died.", lambda r: r.deaths),
}


class Gauges(Collector):
    """The programs ``runs`` and the engines at the time ``now``.

    Everybody gets the replicas, but only the calls of programs that the reader ``sees``.
    """

    def __init__(
        self,
        runs: Iterable[Run],
        view: EngineView,
        now: float,
        sees: Callable[[str], bool],
        labels: Labels,
    ) -> None:
        self._view = view
        self._levels = queue_levels(view, sees)
        self._programs = collections.Counter[tuple[str, str, str]]()
        for run in runs:
            status = status_of(run, view, now, str)
            self._programs[*labels.of(run.row.tenant, run.type), str(status.state)] += 1

    def collect(self) -> Iterator[Metric]:
        yield self._live()
        yield from self._queues()
        yield from _replicas(self._view)

    def _live(self) -> Metric:
        live = GaugeMetricFamily(
            "agentrt_programs", "Live programs.", labels=("tenant", "type", "state")
        )
        for labels, count in self._programs.items():
            live.add_metric(labels, count)
        return live

    def _queues(self) -> Iterator[Metric]:
        labels = ("replica", "level")
        running = GaugeMetricFamily("agentrt_running_calls", "Calls in a batch.", labels=labels)
        waiting = GaugeMetricFamily("agentrt_queued_calls", "Calls in a queue.", labels=labels)
        for (replica, level), (run, wait) in self._levels.items():
            place = (replica, "none" if level is None else f"Q{level + 1}")
            running.add_metric(place, run)
            waiting.add_metric(place, wait)
        yield running
        yield waiting


def _replicas(view: EngineView) -> Iterator[Metric]:
    up = GaugeMetricFamily("agentrt_replica_state", "1 at its state.", labels=("replica", "state"))
    for replica in view.replicas:
        for state in _REPLICA_STATES:
            up.add_metric((replica.name, state), replica.state == state)
    yield up
    for family, metrics in ((GaugeMetricFamily, _GAUGES), (CounterMetricFamily, _COUNTERS)):
        for name, (text, value) in metrics.items():
            metric = family(name, text, labels=("replica",))
            for replica in view.replicas:
                metric.add_metric((replica.name,), value(replica))
            yield metric

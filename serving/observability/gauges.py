"""What Prometheus reads of the moment: live programs, queues, KV caches, replicas."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator

from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from agentrt.runtime.run import Run
from agentrt.serving.observability.engines import EngineView, Replica
from agentrt.serving.observability.labels import Labels
from agentrt.serving.observability.render import Renderer, queue_levels
from agentrt.serving.observability.status import status_of

_Read = dict[str, tuple[str, Callable[[Replica], float]]]
"""Metrics by name: what each counts, and how to read it of a replica."""

_STATES = ("starting", "ready", "down", "out")


class Gauges(Collector):
    """One look at the programs ``runs`` and the engines, as ``renderer`` may see them.

    Replicas are everybody's; programs and calls are a tenant's own.
    """

    def __init__(self, runs: Iterable[Run], renderer: Renderer, labels: Labels) -> None:
        self._view = renderer.view
        self._levels = queue_levels(renderer.view, renderer.sees)
        self._programs: Counter[tuple[str, str, str]] = Counter()
        for run in runs:
            status = status_of(run, renderer.view, renderer.now, str)
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
        for state in _STATES:
            up.add_metric((replica.name, state), replica.state == state)
    yield up
    gauges: _Read = {
        "agentrt_kv_blocks": ("KV-cache blocks.", lambda r: r.blocks),
        "agentrt_kv_used_blocks": ("KV-cache blocks that are not free.", _used),
    }
    for name, (text, value) in gauges.items():
        gauge = GaugeMetricFamily(name, text, labels=("replica",))
        for replica in view.replicas:
            gauge.add_metric((replica.name,), value(replica))
        yield gauge
    counters: _Read = {
        "agentrt_engine_steps": ("Engine steps.", lambda r: r.steps),
        "agentrt_computed_tokens": (
            "Tokens computed, of prompts and outputs.",
            lambda r: r.computed_tokens or 0,
        ),
        "agentrt_replica_deaths": ("Times that the engine died.", lambda r: r.deaths),
    }
    for name, (text, value) in counters.items():
        counter = CounterMetricFamily(name, text, labels=("replica",))
        for replica in view.replicas:
            counter.add_metric((replica.name,), value(replica))
        yield counter


def _used(replica: Replica) -> int:
    return replica.blocks - replica.free_blocks

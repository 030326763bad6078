"""Metrics for Prometheus of the present state: live programs, queues, and engines."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence

from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric

from agentrt.runtime.run import Run
from agentrt.serving.observability.engines import EngineView, Replica, queue_levels
from agentrt.serving.observability.metrics import Labels
from agentrt.serving.observability.status import status_of

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
    programs = Counter(
        (*labels.of(run.row.tenant, run.type), str(status_of(run, view, now, str).state))
        for run in runs
    )
    yield _gauge("programs", "Live programs.", ("tenant", "type", "state"), programs.items())
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


def _gauge(
    name: str, text: str, labels: Sequence[str], values: Iterable[tuple[Sequence[str], float]]
) -> Metric:
    metric = GaugeMetricFamily(f"agentrt_{name}", text, labels=labels)
    for place, value in values:
        metric.add_metric(place, value)
    return metric

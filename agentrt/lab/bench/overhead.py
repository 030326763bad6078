"""What our scheduler adds to vLLM's own, in CPU time of the engine core's thread per step.

The real schedulers run over real KV-cache blocks without a model, in blocks of steps that
alternate, and the calling thread's CPU time is read around ``schedule`` and
``update_from_output``.
"""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from agentrt.lab.engine.headless import HeadlessEngine, make_scheduler, stock_scheduler
from agentrt.lab.reports.tables import markdown, percentile

_PROMPT_TOKENS = 32
_STEPS_PER_TURN = 25

CASES: Mapping[str, Mapping[str, Any] | None] = {
    "stock": None,
    "fcfs": {"policy": "fcfs"},
    "atlas, steady": {"policy": "atlas", "quanta": [1e6]},
    # A step is a second here: calls sink a level every few steps, and others take over.
    "atlas, preempting": {"policy": "atlas", "quanta": [8, 16, 32, 64], "beta": None},
    # Whoever waits has starved already.
    "atlas, promotion storm": {"policy": "atlas", "quanta": [8, 16, 32, 64], "beta": 0.01},
}


@dataclass(slots=True)
class Timing:
    """CPU microseconds of each step's two halves, and how much was preempted."""

    schedule_us: list[float] = field(default_factory=list)
    update_us: list[float] = field(default_factory=list)
    preemptions_a_step: float = 0.0


def measure(running: int, waiting: int, steps: int, seed: int = 0) -> dict[str, Timing]:
    """Time every case at so many running and waiting calls, ``steps`` steps each."""
    engines = {name: _loaded(settings, running, waiting, seed) for name, settings in CASES.items()}
    timings = {name: Timing() for name in CASES}
    for name, engine in engines.items():
        _watch(engine, timings[name])
    for _ in range(-(-steps // _STEPS_PER_TURN)):
        for engine in engines.values():
            for _ in range(_STEPS_PER_TURN):
                engine.step()
    for name, engine in engines.items():
        preempted = sum(request.num_preemptions for request in engine.requests.values())
        timings[name].preemptions_a_step = preempted / len(timings[name].schedule_us)
    # The first turn warms caches, and admits the batch.
    for timing in timings.values():
        del timing.schedule_us[:_STEPS_PER_TURN]
        del timing.update_us[:_STEPS_PER_TURN]
    return timings


def _loaded(
    settings: Mapping[str, Any] | None, running: int, waiting: int, seed: int
) -> HeadlessEngine:
    from agentrt.executors.vllm.scheduler import ProgramScheduler

    cls = stock_scheduler() if settings is None else ProgramScheduler
    blocks = 4096 + (running + waiting) * 2
    engine = HeadlessEngine(
        make_scheduler(cls, max_num_seqs=running, blocks=blocks, settings=settings)
    )
    rng = random.Random(seed)
    for index in range(running + waiting):
        tokens = rng.choices(range(10, 500), k=_PROMPT_TOKENS)
        program = {"agentrt": {"program_id": f"p{index % 997}", "report": True}}
        engine.add(f"r{index}", tokens, 100_000, program)
    return engine


def _watch(engine: HeadlessEngine, timing: Timing) -> None:
    scheduler: Any = engine.scheduler
    scheduler.schedule = _timed(scheduler.schedule, timing.schedule_us)
    scheduler.update_from_output = _timed(scheduler.update_from_output, timing.update_us)


def _timed(function: Callable[..., Any], into: list[float]) -> Callable[..., Any]:
    def timed(*args: Any) -> Any:
        start = time.thread_time_ns()
        value = function(*args)
        into.append((time.thread_time_ns() - start) / 1000)
        return value

    return timed


def table(
    running: tuple[int, ...], waiting: tuple[int, ...], steps: int, tell: Callable[[str], None]
) -> str:
    """The whole table, as Markdown."""
    head = (
        *("running", "waiting", "case", "schedule us", "added", "mean added", "p99"),
        *("update us", "added", "preemptions a step"),
    )
    rows: list[tuple[object, ...]] = []
    for many in running:
        for queue in waiting:
            tell(f"{many} running, {queue} waiting")
            rows.extend(_rows(many, queue, measure(many, queue, steps)))
    return markdown(head, rows)


def _rows(
    running: int, waiting: int, timings: Mapping[str, Timing]
) -> Iterator[tuple[object, ...]]:
    stock = timings["stock"]
    schedule_0 = statistics.median(stock.schedule_us)
    update_0 = statistics.median(stock.update_us)
    for name, timing in timings.items():
        schedule = statistics.median(timing.schedule_us)
        update = statistics.median(timing.update_us)
        yield (
            running,
            waiting,
            name,
            f"{schedule:.0f}",
            f"{schedule - schedule_0:+.0f}",
            f"{statistics.fmean(timing.schedule_us) - statistics.fmean(stock.schedule_us):+.0f}",
            f"{percentile(timing.schedule_us, 0.99):.0f}",
            f"{update:.0f}",
            f"{update - update_0:+.0f}",
            f"{timing.preemptions_a_step:.1f}",
        )

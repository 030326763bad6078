"""``agentrt bench scheduler``: what our scheduler adds to vLLM's own, in CPU time per step.

The real schedulers run over real KV-cache blocks without a model, in blocks of steps that
alternate, and the calling thread's CPU time is read around ``schedule`` and
``update_from_output``.
"""

from __future__ import annotations

import os
import random
import time
from collections import defaultdict
from collections.abc import Callable, Mapping
from statistics import fmean, median
from typing import Any

import click

from agentrt.lab.bench.results import WHOLE, Column, Figures, Results
from agentrt.lab.commands.options import count_option, note, numbers
from agentrt.lab.reports.tables import percentile

_PROMPT_TOKENS = 32
_STEPS_PER_TURN = 25
_HALVES = ("schedule", "update_from_output")

CASES: Mapping[str, Mapping[str, Any] | None] = {
    "stock": None,
    "fcfs": {"policy": "fcfs"},
    "atlas, steady": {"policy": "atlas", "quanta": [1e6]},
    # A step is a second here: calls sink a level every few steps, and others take over.
    "atlas, preempting": {"policy": "atlas", "quanta": [8, 16, 32, 64], "beta": None},
    # Whoever waits has starved already.
    "atlas, promotion storm": {"policy": "atlas", "quanta": [8, 16, 32, 64], "beta": 0.01},
}
COLUMNS = (
    Column("schedule us", "schedule", WHOLE),
    Column("added", "schedule_added", "{:+.0f}"),
    Column("mean added", "mean_added", "{:+.0f}"),
    Column("p99", "p99", WHOLE),
    Column("update us", "update", WHOLE),
    Column("added", "update_added", "{:+.0f}"),
    Column("preemptions a step", "preemptions", "{:.1f}"),
)


@click.command()
@click.option("--running", default="4,64", metavar="N,N,…", show_default=True)
@click.option("--waiting", default="10,100,1000", metavar="N,N,…", show_default=True)
@count_option("--steps", default=1000, least=50)
def scheduler(running: str, waiting: str, steps: int) -> None:
    """The scheduler's own CPU time per engine step, against stock vLLM's.

    Needs no model: the real schedulers run over real KV-cache blocks.
    """
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
    measured = Results({"running": "running", "waiting": "waiting", "case": "case"})
    sizes = [(many, queue) for many in numbers(running) for queue in numbers(waiting)]
    for many, queue in sizes:
        note(f"{many} running, {queue} waiting")
        for case, figures in measure(many, queue, steps).items():
            measured.add(many, queue, case, figures=figures)
    click.echo(measured.table(COLUMNS))


def measure(running: int, waiting: int, steps: int, seed: int = 0) -> dict[str, Figures]:
    """Time every case at so many running and waiting calls, ``steps`` steps each."""
    engines = {name: _loaded(settings, running, waiting, seed) for name, settings in CASES.items()}
    spent: dict[str, dict[str, list[float]]] = {name: defaultdict(list) for name in CASES}
    for name, engine in engines.items():
        for half in _HALVES:
            timed = _timed(getattr(engine.scheduler, half), spent[name][half])
            setattr(engine.scheduler, half, timed)
    for _ in range(-(-steps // _STEPS_PER_TURN)):
        for engine in engines.values():
            for _ in range(_STEPS_PER_TURN):
                engine.step()
    return {name: _figures(spent[name], spent["stock"], engine) for name, engine in engines.items()}


def _figures(
    mine: Mapping[str, list[float]], stock: Mapping[str, list[float]], engine: Any
) -> Figures:
    """Microseconds of a step's two halves, and what they have beyond stock's."""
    # The first turn warms caches, and admits the batch.
    (schedule, update), (base, base_update) = (
        [times[half][_STEPS_PER_TURN:] for half in _HALVES] for times in (mine, stock)
    )
    preempted = sum(request.num_preemptions for request in engine.requests.values())
    return {
        "schedule": median(schedule),
        "schedule_added": median(schedule) - median(base),
        "mean_added": fmean(schedule) - fmean(base),
        "p99": percentile(schedule, 0.99),
        "update": median(update),
        "update_added": median(update) - median(base_update),
        "preemptions": preempted / len(mine["schedule"]),
    }


def _loaded(settings: Mapping[str, Any] | None, running: int, waiting: int, seed: int) -> Any:
    from agentrt.executors.vllm.scheduler import ProgramScheduler
    from agentrt.lab.engine.headless import HeadlessEngine, make_scheduler, stock_scheduler

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


def _timed(function: Callable[..., Any], into: list[float]) -> Callable[..., Any]:
    def timed(*args: Any) -> Any:
        start = time.thread_time_ns()
        value = function(*args)
        into.append((time.thread_time_ns() - start) / 1000)
        return value

    return timed

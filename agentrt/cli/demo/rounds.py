"""Running the demo's programs in rounds, each round under one order of calls."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from agentrt.cli.demo.programs import lookup, report
from agentrt.program import Program
from agentrt.runtime import Runtime
from agentrt.runtime.durable import Durable
from agentrt.runtime.run import Run
from agentrt.scheduler.config import SchedulerConfig

SLOTS = 4
"""Number of calls that the engine computes at the same time."""
LONG_PROGRAMS, SHORT_PROGRAMS = 3, 5
PROGRAMS: Sequence[Program] = [*[report] * LONG_PROGRAMS, *[lookup] * SHORT_PROGRAMS]
"""The programs that start together in each round, in this order."""
STOCK = SchedulerConfig("fcfs", retention="lru", admission="off")
"""Stock vLLM's order: first come, first served."""
OURS = SchedulerConfig.of_policy(history=None)
"""agentrt's defaults, without the history of earlier commands on this machine."""


class ConfigurableEngine(Protocol):
    """An engine whose order of calls can be changed between rounds."""

    async def configure(self, config: SchedulerConfig, /) -> None:
        """Change the order, and forget the statistics of programs."""

    async def forget_prefixes(self) -> None:
        """Empty the prefix cache."""


@dataclass(frozen=True, slots=True)
class Rounds:
    """The runs of each round, by the order of calls: ``stock`` is stock vLLM's order, ``first`` is
    agentrt's order without statistics of the programs, and ``known`` is agentrt's order once it has
    such statistics.
    """

    stock: Sequence[Sequence[Run]]
    first: Sequence[Sequence[Run]]
    known: Sequence[Sequence[Run]]


Show = Callable[[str, Sequence[Run]], None]
"""A function that shows a round. It is called when the round has started, with the name and the
runs of the round.
"""


async def watched(runtime: Runtime, show: Show) -> list[Run]:
    """Run the programs once, and return their runs. Raises the error of a program that fails."""
    return await _play(runtime, PROGRAMS, "agentrt's order, first run", show)


async def both_orders(
    runtime: Runtime,
    engine: ConfigurableEngine,
    *,
    noisy: bool = False,
    show: Show = lambda name, runs: None,
) -> Rounds:
    """Run the programs once under stock's order, then twice under agentrt's order: a first run, and
    a run in which agentrt knows both types of programs.

    A ``noisy`` engine takes real time. On such an engine two programs warm the engine up first.
    Then the three rounds run twice. A last round has stock's order, so that stock's order runs both
    before and after agentrt's. Raises the error of a program that fails.
    """
    cycle: list[tuple[str, SchedulerConfig | None]] = [
        ("stock vLLM's order", STOCK),
        ("agentrt's order, first run", OURS),
        ("agentrt's order, types known", None),
    ]
    orders = [*cycle, *cycle, cycle[0]] if noisy else cycle
    if noisy:
        await _play(runtime, [report, lookup], "warming up", show)
    each = list[list[Run]]()
    for number, (name, order) in enumerate(orders, 1):
        if order is not None:
            await engine.configure(order)
        await engine.forget_prefixes()
        title = f"round {number} of {len(orders)}: {name}"
        each.append(await _play(runtime, PROGRAMS, title, show))
    return Rounds(each[0::3], each[1::3], each[2::3])


async def _play(runtime: Runtime, programs: Sequence[Program], name: str, show: Show) -> list[Run]:
    # Each round uses the same ids, because the simulated engine derives its answers from them.
    runs = [runtime.start(each, durable=Durable(number)) for number, each in enumerate(programs, 1)]
    show(name, runs)
    await asyncio.wait([run.task for run in runs if run.task is not None])
    for run in runs:
        await run.wait()
    return runs

"""Runs the demo's programs, one round after the other: each round under one order of calls."""

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
"""Calls that the engine computes at a time."""
LONG_ONES, SHORT_ONES = 3, 5
PROGRAMS: Sequence[Program] = [*[report] * LONG_ONES, *[lookup] * SHORT_ONES]
"""What starts together in each round, in this order."""
STOCK = SchedulerConfig("fcfs", retention="lru", admission="off")
"""Stock vLLM's order: first come, first served."""
OURS = SchedulerConfig.of_policy(history=None)
"""agentrt's defaults, without what earlier commands have learned on this machine."""


class Engine(Protocol):
    """An engine whose order of calls can be changed between two rounds."""

    async def configure(self, config: SchedulerConfig, /) -> None:
        """Change the order, and forget what was learned of programs."""

    async def forget_prefixes(self) -> None:
        """Empty the cache of prompts."""


@dataclass(frozen=True, slots=True)
class Rounds:
    """The runs of each round: of stock's order, of agentrt's while it knew nothing of the programs
    (``first``), and of agentrt's after it had seen them once (``known``).
    """

    stock: Sequence[Sequence[Run]]
    first: Sequence[Sequence[Run]]
    known: Sequence[Sequence[Run]]


Show = Callable[[str, Sequence[Run]], None]
"""Called when a round has begun: its name, and its runs."""


async def watched(runtime: Runtime, show: Show) -> list[Run]:
    """Run the programs once, and return their runs. Raises what a program raises."""
    return await _play(runtime, PROGRAMS, "agentrt's order, first run", show)


async def both_orders(
    runtime: Runtime,
    engine: Engine,
    *,
    noisy: bool = False,
    show: Show = lambda name, runs: None,
) -> Rounds:
    """Run the programs under stock's order, then twice under agentrt's: a first run, and one that
    knows their kinds.

    On a ``noisy`` engine, whose seconds are real, two programs run before to warm it up; then all
    that is done twice, and stock's order has a last round, so that it runs before and after
    agentrt's. Raises what a program raises.
    """
    cycle: list[tuple[str, SchedulerConfig | None]] = [
        ("stock vLLM's order", STOCK),
        ("agentrt's order, first run", OURS),
        ("agentrt's order, kinds known", None),
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
    # The ids of each round are the same, and with them the answers that an engine makes up.
    runs = [runtime.start(each, durable=Durable(number)) for number, each in enumerate(programs, 1)]
    show(name, runs)
    await asyncio.wait([run.task for run in runs if run.task is not None])
    for run in runs:
        await run.wait()
    return runs

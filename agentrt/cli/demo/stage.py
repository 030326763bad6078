"""Running the demo's rounds on a real engine, and on the simulated engine, in virtual time."""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Callable, Sequence

from agentrt import engines
from agentrt.cli.demo.rounds import (
    LONG_PROGRAMS,
    OURS,
    SHORT_PROGRAMS,
    SLOTS,
    STOCK,
    Rounds,
    Show,
    both_orders,
    watched,
)
from agentrt.cli.engine_log import EngineLog, start_engine
from agentrt.cli.engines import MADE_UP
from agentrt.cli.execute import shown
from agentrt.cli.screen import Screen
from agentrt.cli.signals import Interrupts
from agentrt.errors import EngineDiedError
from agentrt.executors.base import Executor
from agentrt.executors.simulated import SimulatedEngine
from agentrt.executors.vllm.options import EngineOptions
from agentrt.runtime import Runtime
from agentrt.runtime.run import Run

_SUMMARY = (
    f"{LONG_PROGRAMS} long programs (report) start, then {SHORT_PROGRAMS} short programs (lookup); "
    f"the engine computes {SLOTS} calls at the same time"
)


class Stage:
    """A runner of the demo's rounds, which shows them on ``screen`` and on a dashboard at ``port``.

    Port 0 is any free port, and None means no dashboard. ``log`` gets the engine's output.
    ``last_words`` prints a line when a signal ends the process at once.
    """

    def __init__(
        self,
        screen: Screen,
        log: EngineLog,
        port: int | None,
        last_words: Callable[[str], None],
    ) -> None:
        self._screen, self._log, self._port = screen, log, port
        self._last_words = last_words

    def on_vllm(self, model: str | None) -> Rounds:
        """Run and show all rounds on a real engine. Raises the errors of `start_engine`, and the
        error of a program that fails.
        """
        self._screen.announce(_SUMMARY)
        real = engines.VLLMEngine(EngineOptions(model, SLOTS, STOCK))

        async def rounds() -> Rounds:
            async with self._screen.showing():
                runtime = await self._opened(real)
                try:
                    async with shown(runtime, self._port, self._screen.announce):
                        return await both_orders(
                            runtime, real, noisy=True, show=self._show(runtime)
                        )
                except EngineDiedError as error:
                    raise EngineDiedError(f"{error} ({self._log.name_it()})") from error
                finally:
                    self._screen.progress("stopping the engine")
                    await runtime.close()

        return Interrupts(self._last_words).run(rounds())

    def on_simulated(self) -> Rounds:
        """Show one round on the simulated engine, then run all rounds in virtual time."""
        self._screen.announce(f"{MADE_UP}\n{_SUMMARY}")
        Interrupts(self._last_words).run(self._watched())
        self._screen.announce("now running both orders in virtual time, which takes a second:")
        loop = Interrupts(self._last_words, new_loop=VirtualTimeLoop)
        return loop.run(rounds_in_virtual_time())

    async def _watched(self) -> None:
        async with self._screen.showing():
            runtime = await self._opened(SimulatedEngine(OURS, slots=SLOTS))
            try:
                async with shown(runtime, self._port, self._screen.announce):
                    await watched(runtime, self._show(runtime))
            finally:
                await runtime.close()

    async def _opened(self, executor: Executor) -> Runtime:
        runtime = Runtime(executor)
        runtime.listen(self._screen.saw)
        await start_engine(runtime, self._screen.progress, self._log)
        return runtime

    def _show(self, runtime: Runtime) -> Show:
        def show(name: str, runs: Sequence[Run]) -> None:
            self._screen.announce(name)
            self._screen.watch(runs, runtime.executor.snapshot, runtime.now)

        return show


async def rounds_in_virtual_time() -> Rounds:
    """Run all rounds on the simulated engine. Must be called on a `VirtualTimeLoop`."""
    clock = asyncio.get_running_loop().time
    simulated = SimulatedEngine(STOCK, slots=SLOTS, clock=clock)
    async with Runtime(simulated, clock=clock) as runtime:
        return await both_orders(runtime, simulated)


# -- virtual time ------------------------------------------------------------------------


_LOOK_S = 1e-6


class VirtualTimeLoop(asyncio.SelectorEventLoop):
    """An event loop in virtual time: instead of sleeping for a timer, it advances its clock.
    ``time()`` is the sum of all waits in seconds, plus a microsecond for each reading of the clock.

    Code on this loop takes only its own computing time, however many seconds it waits, and its
    results are repeatable. The code must run on one thread and read the loop's clock. Each reading
    of the clock advances it by a microsecond, so that no two events have the same time, as with a
    real clock. A scheduler that serves programs in the order of their arrival needs distinct times.
    """

    def __init__(self) -> None:
        self._waits = _Waits()
        super().__init__(self._waits)

    def time(self) -> float:
        self._waits.now += _LOOK_S
        return self._waits.now


class _Waits(selectors.DefaultSelector):
    """A selector that advances its clock instead of waiting for a timer."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        # Without a timer, wait in real time for an event from outside.
        ready = super().select(None if timeout is None else 0)
        if not ready and timeout is not None:
            self.now += max(0.0, timeout)
        return ready

"""Programs of a runtime on a virtual engine, in virtual time: what is recorded there is exact.

vLLM's scheduler decides as on any engine. Time passes only where every program waits, for a call or
for `World.pause`: what a machine does meanwhile has no say in who comes first.
"""

from __future__ import annotations

import asyncio
import heapq
import random
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Mapping, Sequence
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

from agentrt import Context, Runtime
from agentrt.cli.journals import describe_engine
from agentrt.executors.base import Chunk, Notification
from agentrt.executors.vllm._compat.scheduling import sizes
from agentrt.journal import Journal, JournalOptions
from agentrt.journal.journal import Content
from agentrt.journal.store import SQLiteStore
from agentrt.lab.engine.step_time import StepTimeModel
from agentrt.lab.engine.virtual import VirtualEngine, VirtualOptions
from agentrt.lab.runs.machine import Machine
from agentrt.program import Program
from agentrt.request import Call, CallReport
from agentrt.runtime.durable import Durable
from agentrt.scheduler import SchedulerConfig
from agentrt.scheduler.table import ProgramTotals
from agentrt.steady import MachineClocks
from tests.doubles.scripted import ScriptedExecutor

TIMES = StepTimeModel(6e-3, 25e-6, 1e-4, 4e-8)
MACHINE = Machine(3, kv_blocks=220, max_num_batched_tokens=256, step_model=TIMES, in_flight=1)
QUANTA = (0.05, 0.1, 0.2, 0.4, 0.8)
FCFS = SchedulerConfig("fcfs", quanta=QUANTA)
ATLAS = SchedulerConfig("atlas", quanta=QUANTA)
ADAPTIVE = SchedulerConfig("adaptive", quanta=QUANTA, retention="cost", admission="memory")
SYSTEM = {"role": "system", "content": "You answer in a few words. " * 20}

Arrivals = Sequence[tuple[float, Program, Any]]
"""When each program comes, and with which input."""


def text_of(messages: Sequence[Mapping[str, Any]]) -> str:
    """A chat as the model of this engine reads it: a token is a character."""
    told = "".join(f"{one['role']}\n{one['content']}\n" for one in messages)
    return f"{told}assistant\n"


class World(ScriptedExecutor):
    """An executor whose calls a `VirtualEngine` serves, and the clock of all programs on it.

    A call gives ``max_tokens`` characters that no other call gives.
    """

    def __init__(
        self, scheduling: SchedulerConfig, options: VirtualOptions, times: StepTimeModel
    ) -> None:
        super().__init__(self._said, slots=options.max_num_seqs)
        self.engine = VirtualEngine(scheduling, options, times)
        self.awake = 0
        self.now = 0.0
        self._looks_at = 0.0
        self._calls: dict[str, asyncio.Future[CallReport]] = {}
        self._ended: deque[tuple[asyncio.Future[CallReport], CallReport]] = deque()
        self._timers: list[tuple[float, int, asyncio.Future[CallReport]]] = []
        self._count = count()

    # -- programs ----------------------------------------------------------------------

    async def pause(self, seconds: float) -> None:
        """Let so much virtual time pass."""
        await self.until(self.now + seconds)

    async def until(self, moment: float) -> None:
        """Let time pass up to a moment."""
        timer: asyncio.Future[CallReport] = asyncio.get_running_loop().create_future()
        heapq.heappush(self._timers, (moment, next(self._count), timer))
        self.rests()
        await timer

    async def together(self, *branches: Awaitable[Any]) -> list[Any]:
        """As `asyncio.gather`, for a program's branches that all wait for something."""

        left = len(branches)

        async def one(branch: Awaitable[Any]) -> Any:
            nonlocal left
            found = await branch
            left -= 1
            if left:  # with the last one the program continues
                self.rests()
            return found

        self.awake += left - 1
        return await asyncio.gather(*map(one, branches))

    def rests(self) -> None:
        """One that was awake waits now, or is over."""
        self.awake -= 1
        if not self.awake:
            asyncio.get_running_loop().call_soon(self._go_on)

    def _go_on(self) -> None:
        """All wait: wake the next one, in the order in which the laboratory has them come."""
        while not self.awake:
            if self._timers and self._timers[0][0] <= self.engine.now:
                self.now, _, who = heapq.heappop(self._timers)
                self._wake(who, CallReport())
            elif self._ended:
                self.now = self.engine.now
                self._wake(*self._ended.popleft())
            elif self.engine.busy and not self._stands():
                for name, report in self.engine.step().items():
                    self._ended.append((self._calls.pop(name), report))
            elif self.engine.busy:
                continue
            elif self._timers:
                self.engine.wait_until(self._timers[0][0])
            else:
                return

    def _stands(self) -> bool:
        """Whether no call may begin before some moment, to which the engine has waited now."""
        until = self.engine.stands_until
        if until is None or self._looks_at == self.engine.now:
            return False
        self._looks_at = min(until, self._timers[0][0] if self._timers else until)
        self.engine.wait_until(self._looks_at)
        return True

    def _wake(self, who: asyncio.Future[CallReport], report: CallReport) -> None:
        self.awake += 1
        who.set_result(report)

    # -- an executor -------------------------------------------------------------------

    async def generate(self, call: Call, *, stream: bool) -> AsyncGenerator[Chunk, None]:
        assert call.spec.request is not None
        prompt = [ord(one) for one in text_of(call.spec.request["messages"])]
        request = self.engine.prepare(call, prompt)
        self.engine.submit(request, [ord(one) for one in f"{self._said(call)}\n"])
        ended = self._calls[call.call_id] = asyncio.get_running_loop().create_future()
        self.rests()
        report = await ended
        async for chunk in super().generate(call, stream=stream):
            reply = None if chunk.reply is None else replace(chunk.reply, report=report)
            yield replace(chunk, reply=reply)

    def notify(self, note: Notification) -> None:
        self.engine.boundary(note.program_id, note.kind, note.name)

    async def end_program(self, program_id: str, totals: ProgramTotals | None = None) -> None:
        if totals is not None:
            self.engine.end_program(totals)

    async def snapshot(self) -> Mapping[str, Any]:
        return {"sizes": sizes(self.engine.scheduler)}

    def _said(self, call: Call) -> str:
        length = call.spec.max_tokens - 1
        return f"{call.call_id.replace('/', '-')}.".ljust(length, "x")[:length]


async def record(
    world: World,
    path: Path,
    arrivals: Arrivals,
    content: Content = "full",
) -> list[str]:
    """Run the programs on the world's engine, recorded at ``path``. Their ids, as they end."""
    ends: list[str] = []
    options, machine = JournalOptions(content), MachineClocks(lambda: world.now, lambda: world.now)
    async with (
        await Journal.open(lambda: SQLiteStore(path), options, machine) as journal,
        Runtime(world, journal=journal) as runtime,
        asyncio.TaskGroup() as tasks,
    ):
        await describe_engine(runtime, world.engine.scheduler.config)
        world.awake = 1

        async def ended(program: Program, given: Any) -> None:
            run = runtime.start(program, given, durable=Durable())
            await run.wait()
            ends.append(run.id)
            world.rests()

        for moment, program, given in arrivals:
            await world.until(moment)
            world.awake += 1
            tasks.create_task(ended(program, given))
        world.rests()
    return ends


_RECORDED: dict[tuple[SchedulerConfig, Content, int], tuple[bytes, list[str]]] = {}


async def record_burst(
    scheduling: SchedulerConfig,
    path: Path,
    content: Content = "full",
    seed: int = 0,
) -> list[str]:
    """Record a `burst` on `MACHINE`: the programs' ids, as they end.

    It is the same each time: whoever asks for it again gets the file that was written first.
    """
    key = scheduling, content, seed
    if key in _RECORDED:
        written, ends = _RECORDED[key]
        await asyncio.to_thread(path.write_bytes, written)
        return ends
    world = World(scheduling, MACHINE.virtual_options(), TIMES)
    ends = await record(world, path, burst(world, seed), content)
    _RECORDED[key] = await asyncio.to_thread(path.read_bytes), ends
    return ends


def burst(world: World, seed: int = 0) -> Arrivals:
    """Programs of one to ten turns that share a system prompt, with tools, and some with branches:
    more than the batch and the KV cache have room for. Others with each ``seed``.
    """

    async def look(seconds: float) -> None:
        await world.pause(seconds)

    async def main(ctx: Context, number: int) -> None:
        rng = random.Random(number + 100 * seed)
        messages = [SYSTEM, user(f"Question {number}: {'why ' * rng.randint(2, 90)}")]
        for turn in range(rng.choice((1, 2, 5, 9))):
            reply = await ctx.llm(messages, max_tokens=rng.randint(4, 60))
            if rng.random() < 0.5:
                await ctx.tool(look, seconds=rng.random())
            messages += [reply.message, user(f"And {turn}? {'so ' * rng.randint(1, 40)}")]
        if number % 3 == 0:
            branches = ([*messages, user(f"{branch}" * (branch + 3))] for branch in range(3))
            await world.together(*(ctx.llm(one, max_tokens=9) for one in branches))
            await ctx.llm(messages, max_tokens=6)

    rng, moments = random.Random(3 + seed), [0.0]
    for number in range(1, 16):
        lull = 9.0 if number == 12 else 0.0  # the engine is idle while tools run
        moments.append(moments[-1] + lull + rng.expovariate(6.0))
    return [(moment, Program(main), number) for number, moment in enumerate(moments)]


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}

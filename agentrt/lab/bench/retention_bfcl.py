"""BFCL's multi-turn tasks as agent programs: real tools on real state, calls on a real engine.

A small model cannot choose tools, so by default its decisions are replayed: each call of the
engine generates as many tokens as the right tool call has, and then that tool call is run. With
``decide`` ``model`` the model chooses, held to the tools' schema. The tools answer at once, so
a gap is added, drawn from those of recorded coding agents.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator
from dataclasses import dataclass, replace
from itertools import accumulate
from random import Random
from typing import Any

from agentrt.errors import ConfigError
from agentrt.lab.bench.retention import Ended
from agentrt.lab.workloads.arrivals import poisson
from agentrt.lab.workloads.bfcl import (
    ANSWER,
    RESULT,
    TYPE,
    Task,
    Tools,
    code_tokens,
    gaps,
    prose_tokens,
    read_tasks,
    said,
    shape,
    solved,
)
from agentrt.lab.workloads.shape import ProgramShape
from agentrt.program import Context, Program, node
from agentrt.request import ToolCall
from agentrt.runtime import Runtime

DECIDES = ("replay", "model")
MOST_STEPS = 20
"""Calls in a turn before a model is stopped, as in BFCL's own runs."""
Chat = list[dict[str, Any]]


@dataclass(frozen=True, slots=True)
class BfclProgram:
    """One task, when it arrives, and how long its tools take (``gap_scale`` times as traced)."""

    task: Task
    arrives_s: float
    seed: int = 0
    gap_scale: float = 1.0
    decide: str = "replay"

    async def run(self, runtime: Runtime) -> Ended:
        """Run it as a program of the runtime."""
        started = runtime.start(self.program())
        await started.wait()
        report = started.report(runtime.now())
        return Ended(
            latency_s=report.wall_s,
            steps=report.last_step - report.first_step,
            prefill_tokens=report.prompt_tokens - report.cached_tokens + report.recomputed_tokens,
            returned_tokens=report.returned_tokens,
            lost_tokens=report.lost_tokens,
            preemptions=report.preemptions,
        )

    def program(self) -> Program:
        """The agent: it returns how many tools it called, and whether the end state is right."""
        agent = _replayed if self.decide == "replay" else _decided

        async def bfcl(ctx: Context) -> dict[str, Any]:
            tools = Tools(self.task)
            seconds = gaps(f"{self.seed}/{self.task.task_id}", self.gap_scale)
            called = await agent(ctx, self.task, _ToolRunner(tools, seconds))
            right = tools.state() == solved(self.task).state()
            return {"task": self.task.task_id, "called": called, "right": right}

        return Program(bfcl, TYPE)


def drawn(
    count: int, calls: int, rate: float, seed: int, gap_scale: float, decide: str = "replay"
) -> list[BfclProgram]:
    """``count`` tasks, drawn without return, that arrive at ``rate`` a second.

    Of each come the first turns that have at most so many ``calls`` of the engine together.
    """
    tasks = {task.task_id: task for task in _sample(count, calls, seed)}
    arriving = poisson([_shape(task, seed, gap_scale) for task in tasks.values()], rate, seed)
    return [
        BfclProgram(tasks[one.program_id], one.arrives_s, seed, gap_scale, decide)
        for one in arriving
    ]


def shapes(count: int, calls: int, rate: float, seed: int, gap_scale: float) -> list[ProgramShape]:
    """The same programs as shapes, for virtual time: their tools are run once, here."""
    tasks = _sample(count, calls, seed)
    return poisson([_shape(task, seed, gap_scale) for task in tasks], rate, seed)


def _sample(count: int, calls: int, seed: int) -> list[Task]:
    tasks = read_tasks()
    if count > len(tasks):
        raise ConfigError(f"BFCL has {len(tasks)} tasks of this kind, not {count} programs")
    return [_cut(task, calls) for task in Random(f"bfcl/{seed}").sample(tasks, count)]


def _cut(task: Task, calls: int) -> Task:
    """The first turns, one at least, with at most so many calls: one a tool, and an answer."""
    sums = list(accumulate(len(turn.calls) + 1 for turn in task.turns))
    turns = max(1, sum(1 for total in sums if total <= calls))
    return replace(task, turns=task.turns[:turns])


def _shape(task: Task, seed: int, gap_scale: float) -> ProgramShape:
    return shape(task, Tools(task).call, gaps(f"{seed}/{task.task_id}", gap_scale))


@dataclass(slots=True)
class _ToolRunner:
    """Runs a program's tools, each after a gap."""

    tools: Tools
    seconds: Iterator[float]
    called: int = 0

    async def run(self, ctx: Context, call: ToolCall) -> str:
        """The tool's result, after the gap that a tool of an agent's takes."""
        gap_s = next(self.seconds)
        self.called += 1
        result: str = await ctx.tool(_slowly(self.tools.call, gap_s, call.name), call)
        return result


def _slowly(
    work: Callable[[ToolCall], str], gap_s: float, name: str
) -> Callable[[ToolCall], Coroutine[Any, Any, str]]:
    async def tool(call: ToolCall) -> str:
        await asyncio.sleep(gap_s)
        return work(call)

    tool.__name__ = name
    return tool


async def _replayed(ctx: Context, task: Task, runner: _ToolRunner) -> int:
    chat: Chat = [_message("system", task.system)]
    for turn in task.turns:
        chat.append(_message("user", turn.request))
        for call in turn.calls:
            await _say(ctx, chat, said(call), code_tokens(said(call)))
            chat.append(_message("user", RESULT + await runner.run(ctx, call)))
        await _say(ctx, chat, ANSWER, prose_tokens(ANSWER))
    return runner.called


@node
async def _say(ctx: Context, chat: Chat, text: str, tokens: int) -> None:
    """A call that generates so many ``tokens``. ``text`` takes the place of what the model said."""
    await ctx.llm(chat, max_tokens=tokens, ignore_eos=True)
    chat.append(_message("assistant", text))


async def _decided(ctx: Context, task: Task, runner: _ToolRunner) -> int:
    chat: Chat = []
    for turn in task.turns:
        chat.append(_message("user", turn.request))
        await _solve(ctx, chat, task, runner)
    return runner.called


@node
async def _solve(ctx: Context, chat: Chat, task: Task, runner: _ToolRunner) -> None:
    """A turn, by the model's own decisions."""
    for _ in range(MOST_STEPS):
        reply = await ctx.llm(chat, tools=task.tools, max_tokens=128)
        chat.append(reply.message)
        if not reply.tool_calls:
            return
        call = reply.tool_calls[0]
        chat.append(_message("user", f"Result of {call.name}: {await runner.run(ctx, call)}"))


def _message(role: str, content: str) -> dict[str, Any]:
    return {"role": role, "content": content}

"""The runtime around a scripted engine: DAGs, table, states, cancellation, interrupts."""

from __future__ import annotations

import asyncio
import dataclasses
import functools
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from agentrt import Context, Reply, Runtime, node, program
from agentrt.errors import AgentrtError, ConfigError, EngineStartError, UsageError
from agentrt.executors.chat_api import WORKS_FOR
from agentrt.graph import NodeKind, NodeState
from agentrt.interrupts import Tool
from agentrt.interrupts.questions import Question, Questions
from agentrt.request import Call, CallReport
from agentrt.runtime.events import NodeEnded, ProgramStarted, RunEnded
from agentrt.runtime.run import RunState
from agentrt.scheduler import ProgramTotals
from tests.doubles.scripted import ScriptedExecutor
from tests.graph.integrity import check_integrity
from tests.interrupts.scripted import Scripted


@pytest.fixture
async def runtime() -> AsyncIterator[Runtime]:
    async with Runtime(ScriptedExecutor(lambda call: "one two three")) as runtime:
        yield runtime
        assert len(runtime.table) == 0
        assert not runtime.runs


async def test_a_front_end_works_for_the_programs_tenant() -> None:
    """Its long prompts take turns by tenant, for whole and streamed answers."""
    told: list[str] = []

    @program
    async def twice(ctx: Context) -> None:
        await ctx.llm("whole")
        async for _ in ctx.llm("in pieces", stream=True):
            pass

    def say(call: Call) -> str:
        told.append(WORKS_FOR.get())
        return "one two"

    async with Runtime(ScriptedExecutor(say)) as runtime:
        runs = [runtime.start(twice, tenant=tenant) for tenant in ("ann", "bob")]
        await asyncio.gather(*(run.wait() for run in runs))
    assert sorted(told) == ["ann", "ann", "bob", "bob"]


def edges(run_dag: object) -> dict[int, tuple[int, ...]]:
    return {n.id: n.parents for n in run_dag.nodes()}  # type: ignore[attr-defined]


async def test_a_dag_emerges_from_plain_asyncio(runtime: Runtime) -> None:
    """0 leads to 1 and 2; a tool (3) follows 1 in its branch; 4 joins 2 and 3."""

    @node
    async def branch(ctx: Context, deep: bool) -> None:
        await ctx.llm("branch")
        if deep:
            await ctx.tool(lambda: "sync tools run in a thread")

    @program
    async def shape(ctx: Context) -> None:
        await ctx.llm("root")
        task = ctx.spawn(branch, True)
        await asyncio.gather(task, branch(ctx, False))
        await ctx.llm("join")

    run = runtime.start(shape)
    await run.wait()
    check_integrity(run.dag)
    kinds = {n.id: n.kind for n in run.dag.nodes()}
    tool = next(i for i, kind in kinds.items() if kind is NodeKind.TOOL)
    found = edges(run.dag)
    assert found[0] == ()
    assert found[1] == found[2] == (0,)
    before_tool = found[tool][0]
    assert {before_tool} < {1, 2}
    other = ({1, 2} - {before_tool}).pop()
    assert set(found[4]) == {tool, other}
    assert run.dag.node(1).scope == "shape/branch"
    assert run.dag.node(4).scope == "shape"


async def test_a_spawned_function_keeps_its_decorators(runtime: Runtime) -> None:
    """Each function runs as it would run without ``spawn``, and each node is entered once."""

    def twice(function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        async def again(*args: Any, **kwargs: Any) -> list[Any]:
            return [await function(*args, **kwargs), await function(*args, **kwargs)]

        return again

    @twice
    async def plain(ctx: Context) -> str:
        return str(await ctx.llm("plain"))

    @twice
    @node
    async def outside(ctx: Context) -> str:
        return str(await ctx.llm("outside"))

    @node
    @twice
    async def inside(ctx: Context) -> str:
        return str(await ctx.llm("inside"))

    @program
    async def other(ctx: Context, subject: str = "", *, suffix: str = "") -> str:
        return f"{await ctx.llm(subject)} {suffix}"

    @program
    async def main(ctx: Context) -> list[Any]:
        results = [await ctx.spawn(function) for function in (plain, outside, inside)]
        further: Any = {"subject": "other", "suffix": "ends"}
        return [*results, await ctx.spawn(other, **further)]

    run = runtime.start(main)
    said = "one two three"
    assert await run.wait() == [[said, said], [said, said], [said, said], f"{said} ends"]
    scopes = [each.scope for each in run.dag.nodes()]
    names = ["plain", "plain", "outside", "outside", "inside", "inside", "other"]
    assert scopes == [f"main/{name}" for name in names]


async def test_a_call_on_another_event_loop_is_refused(runtime: Runtime) -> None:
    """The engine would never wake the other loop."""

    @program
    async def main(ctx: Context) -> None:
        def in_a_thread() -> None:
            asyncio.run(ctx.llm("x"))

        async def first_piece() -> str:
            return await anext(aiter(ctx.llm("x", stream=True)))

        def in_pieces() -> None:
            asyncio.run(first_piece())

        for function in (in_a_thread, in_pieces):
            with pytest.raises(AgentrtError, match="on another event loop"):
                await ctx.tool(function)
            with pytest.raises(AgentrtError, match="on another event loop"):
                await asyncio.to_thread(function)

    run = runtime.start(main)
    await run.wait()
    assert {each.kind for each in run.dag.nodes()} == {NodeKind.TOOL}


async def test_what_another_event_loop_would_wait_for_for_ever_is_refused() -> None:
    """Answers, events and results of remote tools arrive on the program's loop."""
    remote = Scripted()
    remote_tool = Tool("look", transport=remote)

    @program
    async def main(ctx: Context) -> None:

        async def next_event() -> Any:
            return await ctx.event("news")

        def asks() -> Any:
            return asyncio.run(ctx.human("go on?"))

        def listens() -> Any:
            return asyncio.run(next_event())

        def runs_a_tool() -> Any:
            return asyncio.run(ctx.tool(remote_tool))

        for function in (asks, listens, runs_a_tool):
            with pytest.raises(AgentrtError, match="on another event loop"):
                await asyncio.to_thread(function)

    async with Runtime(ScriptedExecutor(), ask_human=None, tools=[remote]) as runtime:
        run = runtime.start(main)
        await asyncio.wait_for(run.wait(), 60)
        assert not list(run.dag.nodes())


async def test_a_thread_makes_a_call_on_the_loop_of_its_program(runtime: Runtime) -> None:
    """The errors of other ways name this one."""

    @program
    async def main(ctx: Context) -> str:
        loop = asyncio.get_running_loop()

        def refused() -> None:
            asyncio.run(ctx.llm("x"))

        def made() -> str:
            return str(asyncio.run_coroutine_threadsafe(ctx.llm("x"), loop).result())

        way_out = r"asyncio\.to_thread\(\) .* asyncio\.run_coroutine_threadsafe\(\)"
        for thread in (asyncio.to_thread(refused), loop.run_in_executor(None, refused)):
            with pytest.raises(AgentrtError, match=way_out):
                await thread
        return await asyncio.to_thread(made)

    assert await runtime.start(main).wait() == "one two three"


async def test_the_path_of_the_dag_reaches_the_scheduler(runtime: Runtime) -> None:
    @program
    async def chain(ctx: Context) -> None:
        await ctx.llm("a")
        await asyncio.gather(ctx.llm("b"), ctx.llm("c"))
        await ctx.llm("d")

    run = runtime.start(chain)
    await run.wait()
    executor = runtime.executor
    assert isinstance(executor, ScriptedExecutor)
    step = run.dag.node(0).service_s
    assert [call.identity.path_s for call in executor.calls] == [0.0, step, step, 2 * step]
    assert run.report(runtime.now()).critical_path_s == 3 * step
    assert run.row.service_s == 4 * step
    assert executor.ended == [run.id]
    totals = executor.totals[run.id]
    assert totals == ProgramTotals.of(run.row)
    assert (totals.type, totals.service_s) == ("chain", 4 * step)


async def test_a_program_that_raises_keeps_its_own_error(runtime: Runtime) -> None:
    @program
    async def broken(ctx: Context) -> None:
        await ctx.llm("x")
        raise KeyError("mine")

    run = runtime.start(broken)
    with pytest.raises(KeyError, match="mine"):
        await run.wait()
    assert run.state is RunState.FAILED
    assert run.dag.state is NodeState.FAILED


async def test_a_failing_node_is_in_the_dag_and_the_program_can_continue(runtime: Runtime) -> None:
    def fails() -> None:
        raise OSError("disk")

    @program
    async def careful(ctx: Context) -> str:
        try:
            await ctx.tool(fails)
        except OSError:
            return str(await ctx.llm("what now"))
        return "no error"

    run = runtime.start(careful)
    assert await run.wait() == "one two three"
    failed, after = run.dag.nodes()
    assert (failed.state, failed.error) == (NodeState.FAILED, "OSError: disk")
    assert after.parents == (failed.id,)


async def test_a_tool_that_takes_too_long_fails(runtime: Runtime) -> None:
    @program
    async def slow(ctx: Context) -> None:
        await ctx.tool(asyncio.Event().wait, timeout=0.01)

    run = runtime.start(slow)
    with pytest.raises(TimeoutError):
        await run.wait()
    assert run.dag.node(0).state is NodeState.EXPIRED
    assert run.row.tools == 0


async def test_cancelling_leaves_no_task_and_closes_the_dag(runtime: Runtime) -> None:
    never = asyncio.Event()

    @program
    async def stuck(ctx: Context) -> None:
        ctx.spawn(background)
        await ctx.tool(never.wait)

    async def background(ctx: Context) -> None:
        await ctx.human("still there?")

    runtime.questions = Questions(runtime.steady, _ask_forever)
    runtime._services = dataclasses.replace(runtime._services, questions=runtime.questions)
    tasks = asyncio.all_tasks()
    run = runtime.start(stuck)
    while len(run.dag.nodes()) < 2:
        await asyncio.sleep(0)
    run.cancel()
    with pytest.raises(asyncio.CancelledError):
        await run.wait()
    assert {n.state for n in run.dag.nodes()} == {NodeState.CANCELLED}
    assert asyncio.all_tasks() == tasks


async def test_a_run_that_is_cancelled_before_it_begins_has_ended(runtime: Runtime) -> None:
    """On uvloop a deadline that is due comes before the first step of a task."""

    @program
    async def never(ctx: Context) -> None:
        raise AssertionError("it has begun")

    run = runtime.start(never)
    run.cancel()
    with pytest.raises(asyncio.CancelledError):
        await run.wait()
    assert (run.state, run.ended_at is None) == (RunState.CANCELLED, False)
    assert (len(runtime.table), dict(runtime.runs)) == (0, {})


_UNANSWERED: list[asyncio.Event] = []
"""Held here: a task that only itself refers to may be collected."""


async def _ask_forever(question: Question) -> str:
    _UNANSWERED.append(asyncio.Event())
    await _UNANSWERED[-1].wait()
    return ""


async def test_a_task_that_is_not_awaited_ends_with_its_program(runtime: Runtime) -> None:
    @program
    async def careless(ctx: Context) -> str:
        asyncio.create_task(ctx.tool(asyncio.Event().wait))  # noqa: RUF006
        return str(await ctx.llm("x"))

    run = runtime.start(careless)
    assert await run.wait() == "one two three"
    assert NodeState.CANCELLED in {n.state for n in run.dag.nodes()}


async def test_a_human_is_asked_and_answers(runtime: Runtime) -> None:
    async def ask(question: Question) -> str:
        return f"{question.text} yes"

    @program
    async def polite(ctx: Context) -> str:
        return str(await ctx.human("may I?"))

    async with Runtime(ScriptedExecutor(), ask_human=ask) as other:
        assert await other.start(polite).wait() == "may I? yes"
    with pytest.raises(UsageError, match="nobody can answer"):
        await runtime.start(polite).wait()


async def test_streaming_gives_the_text_in_pieces(runtime: Runtime) -> None:
    @program
    async def streamed(ctx: Context) -> list[str]:
        return [piece async for piece in ctx.llm("x", stream=True)]

    run = runtime.start(streamed)
    pieces = await run.wait()
    assert len(pieces) > 1
    assert "".join(pieces) == "one two three"
    assert run.dag.node(0).state is NodeState.DONE


async def test_a_stream_that_is_left_early_aborts_its_call(runtime: Runtime) -> None:
    @program
    async def streamed(ctx: Context) -> list[NodeState]:
        async with ctx.llm("x", stream=True) as pieces:
            async for _ in pieces:
                break
        return [run.dag.node(0).state]

    run = runtime.start(streamed)
    assert await run.wait() == [NodeState.CANCELLED]


class AbortsLater(ScriptedExecutor):
    """An abort takes until the test allows its end."""

    def __init__(self) -> None:
        super().__init__(lambda call: "one two three")
        self.aborting, self.may_end = asyncio.Event(), asyncio.Event()

    async def aborted(self, call_id: str) -> CallReport:
        self.aborting.set()
        await self.may_end.wait()
        return await super().aborted(call_id)


async def test_a_stream_that_no_variable_holds_is_closed_by_a_break() -> None:
    """Its call is aborted at once. Closing it is no task of the program that a checkpoint would
    refuse, and the end of the program waits for it.
    """
    executor = AbortsLater()

    @program
    async def streamed(ctx: Context) -> int:
        checkpoint = ctx.checkpoint()
        async for _ in ctx.llm("x", stream=True):
            break
        await executor.aborting.wait()
        executor.aborting.clear()
        async for _ in ctx.llm("y", stream=True).deltas():
            break
        await executor.aborting.wait()
        asyncio.get_running_loop().call_soon(executor.may_end.set)
        return checkpoint(1)

    async with Runtime(executor) as runtime:
        run = runtime.start(streamed)
        assert await asyncio.wait_for(run.wait(), 60) == 1
        assert [node.state for node in run.dag.nodes()] == [NodeState.CANCELLED] * 2


async def test_after_names_a_parent_that_asyncio_cannot_show(runtime: Runtime) -> None:
    @program
    async def queued(ctx: Context) -> None:
        queue: asyncio.Queue[Reply] = asyncio.Queue()

        async def producer() -> None:
            await queue.put(await ctx.llm("make"))

        task = asyncio.create_task(producer())
        reply = await queue.get()
        await ctx.llm("use", after=[reply])
        await task

    run = runtime.start(queued)
    await run.wait()
    assert edges(run.dag) == {0: (), 1: (0,)}


async def test_seeds_are_drawn_repeatably() -> None:
    @program
    async def sampled(ctx: Context) -> None:
        await ctx.llm("x", temperature=1.0)
        await ctx.llm("y", temperature=1.0)

    async def seeds(seed: int) -> list[int | None]:
        executor = ScriptedExecutor()
        async with Runtime(executor, seed=seed) as runtime:
            await runtime.start(sampled).wait()
        return [call.spec.seed for call in executor.calls]

    assert await seeds(1) == await seeds(1) != await seeds(2)
    assert len(set(await seeds(1))) == 2


async def test_listeners_get_every_event(runtime: Runtime) -> None:
    heard: list[object] = []
    runtime.listen(heard.append)

    @program
    async def one(ctx: Context) -> None:
        await ctx.llm("x")

    await runtime.start(one).wait()
    assert [type(event) for event in heard][:1] == [ProgramStarted]
    assert isinstance(heard[-1], RunEnded)
    assert sum(isinstance(event, NodeEnded) for event in heard) == 1


async def test_finished_programs_are_released(runtime: Runtime) -> None:
    import gc
    import weakref

    @program
    async def one(ctx: Context) -> None:
        await ctx.llm("x")

    run = runtime.start(one)
    await run.wait()
    ref = weakref.ref(run)
    del run
    await asyncio.sleep(0)
    gc.collect()
    assert ref() is None


async def test_an_engine_that_does_not_start_is_closed_once() -> None:
    class Dud(ScriptedExecutor):
        async def start(self, progress: object) -> None:
            raise EngineStartError("no memory")

    runtime = Runtime(Dud())
    with pytest.raises(EngineStartError, match="no memory"):
        await runtime.open()
    await runtime.close()


class Closing(ScriptedExecutor):
    """An engine that knows whether it was closed."""

    is_closed = False

    async def close(self) -> None:
        await super().close()
        self.is_closed = True


async def test_an_engine_is_closed_although_a_transport_is_not() -> None:
    class Stuck(Scripted):
        async def close(self) -> None:
            raise OSError("the socket is gone")

    engine = Closing()
    with pytest.raises(OSError, match="the socket is gone"):
        async with Runtime(engine, tools=[Stuck(None)]) as runtime:
            pass
    assert (engine.is_closed, runtime.has_engine) == (True, False)
    assert asyncio.get_running_loop().get_task_factory() is None


@pytest.mark.parametrize("closes", [True, False])
async def test_a_cancelled_close_leaves_no_engine_behind(closes: bool) -> None:
    """It is cancelled while a program does not end, or while a transport closes."""
    waiting, may_end = asyncio.Event(), asyncio.Event()

    class Slow(Scripted):
        async def close(self) -> None:
            if closes:
                waiting.set()
                await asyncio.Event().wait()

    @program
    async def stubborn(ctx: Context) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            waiting.set()
            await may_end.wait()

    engine = Closing()
    runtime = Runtime(engine, tools=[Slow(None)])
    await runtime.open()
    run = None if closes else runtime.start(stubborn)
    await asyncio.sleep(0)
    closing = asyncio.create_task(runtime.close())
    await waiting.wait()
    closing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await closing
    assert engine.is_closed
    may_end.set()
    if run is not None:
        with pytest.raises(asyncio.CancelledError):
            await run.wait()


async def test_only_programs_are_started(runtime: Runtime) -> None:
    async def undecorated(ctx: Context) -> None: ...

    for each in (undecorated, None):
        with pytest.raises(ConfigError, match="is not a program; decorate an async function with"):
            runtime.start(each)  # type: ignore[arg-type]


def test_no_program_is_started_without_a_running_event_loop() -> None:
    """Although asyncio would make a task on the current event loop."""

    @program
    async def main(ctx: Context) -> None: ...

    loop = asyncio.new_event_loop()
    asyncio.set_event_loop(loop)
    runtime = Runtime(ScriptedExecutor())
    try:
        with pytest.raises(RuntimeError, match="no running event loop"):
            runtime.start(main)
        assert not runtime.runs
    finally:
        asyncio.set_event_loop(None)
        loop.close()


async def test_a_reply_of_another_program_is_not_a_parent(runtime: Runtime) -> None:
    @program
    async def says(ctx: Context) -> Reply:
        await ctx.llm("first")
        return await ctx.llm("second")

    other = await runtime.start(says).wait()

    @program
    async def main(ctx: Context) -> None:
        await ctx.llm("x", after=[other])

    with pytest.raises(ConfigError, match="after= has a reply without a node of this program"):
        await runtime.start(main).wait()

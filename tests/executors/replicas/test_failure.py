"""Engines that hang, or die at unusual moments, and replies that were delivered already."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator
from dataclasses import replace

import pytest

from agentrt import Context, Runtime, program
from agentrt.errors import EngineDiedError
from agentrt.executors.base import Chunk, FrontSetup, Notification
from agentrt.executors.replicas import Backoff, Health, ReplicaState
from agentrt.executors.replicas.replica import CancelScope
from agentrt.request import Call, CallReport
from agentrt.request.spans import Cause, read_spans
from tests.executors.replicas.cast import TEXT, Cast, Mortal, call_of
from tests.executors.replicas.conftest import Open

QUICK = Health(stall_s=0.01, hang_s=0.1)


async def text_of(replicas: object, call: Call) -> str:
    chunks = replicas.generate(call, stream=True)  # type: ignore[attr-defined]
    return "".join([chunk.text async for chunk in chunks])


@pytest.mark.parametrize(
    ("beats", "words"),
    [
        (False, "has not answered for 0.02 s and uses no CPU time"),
        (True, "has not answered for 0.1 s"),
        (None, "has not answered for 0.1 s"),
    ],
)
async def test_the_calls_of_an_engine_that_hangs_run_again(
    opened: Open, beats: bool | None, words: str
) -> None:
    """The call is in the middle of a stream. An engine that uses no processor time counts as hung
    sooner.
    """
    cast = Cast([Mortal(hangs=True, beats=beats)], [])
    replicas = await opened(cast, health=QUICK)
    reading = asyncio.create_task(text_of(replicas, call_of()))
    async with asyncio.timeout(60):
        while not cast.made[0][1]._stuck.is_set():
            await asyncio.sleep(0)
        await replicas._supervisor.check(replicas.replicas[0])
        assert await reading == TEXT
    first = replicas.replicas[0]
    assert words in first.last_error
    assert (first.deaths, first.reruns) == (1, 1)


class Spanned(Mortal):
    """An engine whose reports say how a call's time was spent."""

    async def generate(self, call: Call, *, stream: bool) -> AsyncGenerator[Chunk, None]:
        async with contextlib.aclosing(super().generate(call, stream=stream)) as chunks:
            async for chunk in chunks:
                if chunk.reply is not None:
                    report = replace(chunk.reply.report, spans=[["decode", 1.0, 0, 0.0, 5, []]])
                    chunk.reply = replace(chunk.reply, report=report)
                yield chunk


async def test_the_report_says_which_engines_died_with_the_call(opened: Open) -> None:
    """Before the spans of the last engine, which did not see that time."""
    cast = Cast([Spanned(2), Spanned()], [Spanned(0)], [Spanned()])
    replicas = await opened(cast)
    spans = []
    for number in range(2):
        last = [chunk async for chunk in replicas.generate(call_of(number), stream=True)][-1]
        assert last.reply is not None
        spans.append(read_spans(last.reply.report.spans))
        await replicas.settled()
    [lost, own], [alone] = spans
    assert (lost.reason, lost.by) == ("starting", (Cause("(replica-0, replica-1 died)"),))
    assert lost.seconds > 0
    assert own == alone
    assert own.reason == "decode"


async def test_a_cancelled_call_of_an_engine_that_hangs_is_let_go(opened: Open) -> None:
    """The engine cannot tell what the call used. The caller that cancels must not hang, too."""

    class Mute(Mortal):
        async def aborted(self, call_id: str) -> CallReport:
            await asyncio.Event().wait()
            return CallReport()

    replicas = await opened(Cast([Mute()], []))
    chunks = replicas.generate(call_of(), stream=True)
    await anext(chunks)
    await chunks.aclose()
    asking = asyncio.create_task(replicas.aborted("p/0"))
    await asyncio.sleep(0)
    first = replicas.replicas[0]
    replicas._supervisor.lost(first, first.executor, EngineDiedError("hangs"))
    async with asyncio.timeout(60):
        assert await asking == CallReport()


async def test_a_delivered_reply_is_not_computed_again(opened: Open) -> None:
    """The engine dies after its last chunk, before it has said that this chunk was the last."""

    class DiesAfterwards(Mortal):
        async def generate(self, call: Call, *, stream: bool) -> AsyncGenerator[Chunk, None]:
            async for chunk in super().generate(call, stream=stream):
                yield chunk
            raise EngineDiedError("killed at the end")

    cast = Cast([DiesAfterwards()], [])
    replicas = await opened(cast)
    chunks = [chunk async for chunk in replicas.generate(call_of(), stream=True)]
    assert "".join(chunk.text for chunk in chunks) == TEXT
    assert [chunk.reply is not None for chunk in chunks].count(True) == 1
    assert sum(len(mortal.calls) for _, mortal in cast.made) == 1
    assert (replicas.replicas[0].deaths, replicas.replicas[0].reruns) == (1, 0)


async def test_programs_notice_nothing_but_time(opened: Open) -> None:
    """Every engine dies twice in the middle of a call. Each reply arrives once, and the table and
    the replicas are empty at the end.
    """

    @program
    async def asks(ctx: Context) -> list[str]:
        replies = await asyncio.gather(*(ctx.llm("hello", max_tokens=64) for _ in range(4)))
        return [reply.text for reply in replies]

    deaths = [[Mortal(0), Mortal(0)] for _ in range(3)]
    replicas = await opened(Cast(*deaths), backoff=Backoff(first_s=0.0, tries=9))
    async with Runtime(replicas) as runtime:
        runs = [runtime.start(asks) for _ in range(10)]
        assert [await run.wait() for run in runs] == [[TEXT] * 4] * 10
        assert len(runtime.table) == 0
        assert [(r.calls, r.view.in_flight) for r in replicas.replicas] == [(0, 0)] * 3
        assert all(not r.programs for r in replicas.replicas)


async def test_notifications_reach_the_replicas_that_know_the_program(opened: Open) -> None:
    cast = Cast([], [], [])
    replicas = await opened(cast, router="round-robin")
    await text_of(replicas, call_of(0, "p"))
    await text_of(replicas, call_of(0, "q"))
    note = Notification("q", "tool", "search")
    replicas.notify(note)
    assert [mortal.notes for _, mortal in cast.made] == [[], [note], []]


async def test_a_set_that_closes_fails_the_calls_that_wait_for_a_replica(opened: Open) -> None:
    replicas = await opened(Cast([Mortal(0)]), backoff=Backoff(first_s=3600))
    waiting = asyncio.create_task(text_of(replicas, call_of()))
    async with asyncio.timeout(60):
        while replicas.replicas[0].state is not ReplicaState.DOWN:
            await asyncio.sleep(0)
        await replicas.close()
        with pytest.raises(EngineDiedError, match="no replica is left: replica-0: killed"):
            await waiting


class Closing(Mortal):
    """An engine whose calls fail when it is closed, as those of vLLM's engine do."""

    async def generate(self, call: Call, *, stream: bool) -> AsyncGenerator[Chunk, None]:
        while not self.closed:
            await asyncio.sleep(0)
            yield Chunk("word ")
        raise EngineDiedError("the engine is not running")


async def test_a_set_that_closes_fails_the_calls_that_run(opened: Open) -> None:
    replicas = await opened(Cast([Closing()]))
    running = asyncio.create_task(text_of(replicas, call_of()))
    async with asyncio.timeout(60):
        while not replicas.replicas[0].calls:
            await asyncio.sleep(0)
        await replicas.close()
        with pytest.raises(EngineDiedError, match="the engines are closed"):
            await running
        with pytest.raises(EngineDiedError, match="the engines are closed"):
            await text_of(replicas, call_of(1))


class Forgetful(Mortal):
    """An engine that dies when it is asked for its front end."""

    async def front_setups(self) -> tuple[FrontSetup, ...]:
        self.dead = True
        raise EngineDiedError("killed")


async def test_the_front_end_of_an_engine_that_dies_is_asked_of_the_next(opened: Open) -> None:
    replicas = await opened(Cast([Forgetful()]))
    assert await replicas.front_setups() == ()
    assert replicas.replicas[0].deaths == 1


class Slow(Mortal):
    """An engine whose `close` takes until ``gone`` is set. ``closing`` is set when `close`
    begins.
    """

    def __init__(self) -> None:
        super().__init__(0)
        self.closing, self.gone = asyncio.Event(), asyncio.Event()

    async def close(self) -> None:
        self.closing.set()
        await self.gone.wait()
        await super().close()


async def test_a_set_that_closes_waits_for_dead_engines_to_be_put_away(opened: Open) -> None:
    slow = Slow()
    replicas = await opened(Cast([slow]))
    waiting = asyncio.create_task(text_of(replicas, call_of()))
    await slow.closing.wait()
    closing = asyncio.create_task(replicas.close())
    for _ in range(100):
        await asyncio.sleep(0)
    assert not closing.done()
    slow.gone.set()
    await closing
    assert slow.closed
    with pytest.raises(EngineDiedError):
        await waiting


async def test_who_reads_a_call_is_told_at_the_next_chunk_if_not_now() -> None:
    scope, done = CancelScope(), list[str]()

    async def two() -> AsyncGenerator[Chunk, None]:
        yield Chunk("one")
        await asyncio.Event().wait()

    async def read(between: asyncio.Event | None) -> None:
        async with contextlib.aclosing(two()) as chunks:
            with scope.reading(chunks.__anext__) as reading:
                async for chunk in reading:
                    reading.task = None
                    done.append(chunk.text)
                    if between is not None:
                        await between.wait()

    between = asyncio.Event()
    readers = [asyncio.create_task(read(one)) for one in (None, between)]
    while len(done) < 2:
        await asyncio.sleep(0)
    scope.cancel("gone")
    between.set()
    for reader in readers:
        with pytest.raises(EngineDiedError, match="gone"):
            await reader
        assert not reader.cancelling()


async def test_a_cancel_scope_leaves_timeouts_of_others_alone() -> None:
    scope = CancelScope()

    async def late() -> None:
        raise TimeoutError("theirs")

    with pytest.raises(TimeoutError, match="theirs"):
        await scope.run(late)
    scope.cancel("gone")
    with pytest.raises(EngineDiedError, match="gone"):
        await scope.run(late)

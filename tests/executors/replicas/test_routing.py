"""A set of replicas whose engines report their cached blocks: questions, notes, and losses."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from dataclasses import replace

import pytest

from agentrt.engines import ReplicaSet
from agentrt.errors import EngineDiedError
from agentrt.executors.base import Chunk, KVEventListener, last_reply
from agentrt.executors.info import ExecutorInfo
from agentrt.executors.replicas import Backoff
from agentrt.request import Call, CallReport, CallSpec, Identity
from agentrt.router import make_router
from agentrt.router.kv_events import KVEventBatch
from tests.doubles.scripted import ScriptedExecutor

SIZE = 4


class Shows(ScriptedExecutor):
    """An engine that stores the blocks of every prompt, and reports them with the reply."""

    def __init__(self, *, mute: Sequence[int] = ()) -> None:
        super().__init__(lambda call: "fine", model="m", slots=4)
        self.blocks: set[int] = set()
        self.number = 0
        self.asked = 0
        self.hashed: list[CallSpec] = []
        self.mute = mute
        self.dead = False
        self._hear: KVEventListener = lambda note: None

    @property
    def info(self) -> ExecutorInfo:
        return replace(super().info, cached_blocks=True)

    def block_hashes(self, spec: CallSpec) -> Sequence[int]:
        self.hashed.append(spec)
        ids = spec.prompt_token_ids or ()
        ends = range(SIZE, len(ids) + 1, SIZE)
        return [hash((spec.cache_salt, *ids[:end])) & (2**64 - 1) for end in ends]

    def on_kv_events(self, listener: KVEventListener) -> None:
        self._hear = listener

    async def cached_blocks(self) -> tuple[KVEventBatch, int] | None:
        self.asked += 1
        return KVEventBatch.of(self.number, self.blocks, whole=True), SIZE

    def alive(self) -> bool:
        return not self.dead

    async def generate(self, call: Call, *, stream: bool) -> AsyncGenerator[Chunk, None]:
        if self.dead:
            raise EngineDiedError("killed")
        ids = call.spec.prompt_token_ids
        assert ids is not None
        new = [block for block in self.block_hashes(call.spec) if block not in self.blocks]
        self.blocks.update(new)
        async for chunk in super().generate(call, stream=stream):
            if chunk.reply is None:
                yield chunk
                continue
            self.number += 1
            if self.number not in self.mute:
                self._hear(KVEventBatch.of(self.number, new))
            cached = len(ids) - SIZE * len(new)
            report = CallReport(
                service_s=1.0, steps=9, prompt_tokens=len(ids), cached_tokens=cached
            )
            yield replace(chunk, reply=replace(chunk.reply, report=report))


Open = Callable[..., AsyncIterator[ReplicaSet]]


@pytest.fixture
async def engines() -> list[Shows]:
    return [Shows(), Shows()]


@pytest.fixture
async def replicas(engines: list[Shows]) -> AsyncIterator[ReplicaSet]:
    made = iter([*engines, Shows(), Shows()])
    one = ReplicaSet(lambda index: next(made), 2, make_router("cost"), backoff=Backoff(first_s=0.0))
    await one.start(lambda message: None)
    await settled(one)
    yield one
    await one.close()


async def settled(replicas: ReplicaSet) -> None:
    """Wait until every engine that must be asked has answered."""
    async with asyncio.timeout(60):
        while any(stream.gap for stream in replicas.routing._streams.values()):
            await asyncio.sleep(0)


async def successor(replicas: ReplicaSet) -> Shows:
    """Wait for the engine that replaces the dead engine of the first replica, and return it."""
    first = replicas.replicas[0]
    async with asyncio.timeout(60):
        while first.state != "ready":
            await asyncio.sleep(0)
    await settled(replicas)
    assert isinstance(first.executor, Shows)
    return first.executor


async def run(
    replicas: ReplicaSet, program: str, prompt: str, salt: str | None = None
) -> CallReport:
    spec = CallSpec(prompt_token_ids=tuple(map(ord, prompt)), max_tokens=9, cache_salt=salt)
    call = Call(Identity(f"{program}/0", program, "t"), spec)
    reply = await last_reply(replicas.generate(call, stream=True))
    await replicas.end_program(program)
    return reply.report


def known(replicas: ReplicaSet, number: int) -> set[int]:
    view = replicas.replicas[number].view
    return replicas.routing.dispatcher.cached_blocks.blocks(view.index)


@pytest.mark.parametrize("salt", [None, "alice"])
async def test_a_call_goes_where_its_prompt_is_held(
    replicas: ReplicaSet, engines: list[Shows], salt: str | None
) -> None:
    """Further programs with the same prompt go to the same replica."""
    for number in range(4):
        report = await run(replicas, f"a{number}", "the quick brown fox jumps over " * 40, salt)
        assert (report.cached_tokens > 0) == bool(number)
    assert sorted(len(engine.calls) for engine in engines) == [0, 4]
    assert [known(replicas, number) for number in (0, 1)] == [one.blocks for one in engines]


async def test_a_note_that_is_lost_costs_a_question(
    replicas: ReplicaSet, engines: list[Shows]
) -> None:
    engines[0].mute = (2,)
    for number in range(4):
        await run(
            replicas, f"p{number}", "a long prompt that is the same for all " * 20 + "x" * number
        )
    await settled(replicas)
    assert engines[0].asked == 2
    assert known(replicas, 0) == engines[0].blocks


async def test_what_a_dead_engine_held_is_forgotten(
    replicas: ReplicaSet, engines: list[Shows]
) -> None:
    """1. Its calls run elsewhere. 2. Its successor begins with an empty cache."""
    prompt = "the quick brown fox jumps over " * 40
    await run(replicas, "p", prompt)
    assert known(replicas, 0)
    engines[0].dead = True
    await run(replicas, "q", prompt)
    assert len(engines[1].calls) == 1
    assert known(replicas, 0) == set()
    assert (await successor(replicas)).asked == 1


async def test_a_question_that_nobody_answers_is_not_waited_for(
    replicas: ReplicaSet, engines: list[Shows], monkeypatch: pytest.MonkeyPatch
) -> None:
    """1. A note is lost, and the engine dies before it says what it holds. 2. A note of the dead
    engine arrives. 3. The next engine is asked, and its answer counts.
    """

    async def silent() -> None:
        await asyncio.Event().wait()

    prompt = "the quick brown fox jumps over " * 40
    await run(replicas, "p", prompt)
    monkeypatch.setattr(engines[0], "cached_blocks", silent)
    engines[0]._hear(KVEventBatch.of(engines[0].number + 2, [1]))
    replicas._supervisor.lost(replicas.replicas[0], engines[0], EngineDiedError("killed"))
    engines[0]._hear(KVEventBatch.of(1, [2], whole=True))
    assert (await successor(replicas)).asked == 1
    assert known(replicas, 0) == set()


async def test_routers_that_do_not_read_blocks_cost_nothing() -> None:
    class Plain(Shows):
        generate = ScriptedExecutor.generate

    one = Plain()
    replicas = ReplicaSet(lambda index: one, 1, make_router("least-used"))
    await replicas.start(lambda message: None)
    await run(replicas, "p", "hello")
    await replicas.close()
    assert (one.hashed, one.asked) == ([], 0)


async def test_calls_that_are_not_in_token_ids_are_not_hashed(
    replicas: ReplicaSet, engines: list[Shows]
) -> None:
    """The sizes of their prompts are estimated from their characters."""
    for engine in engines:
        engine.__class__ = type("Plain", (Shows,), {"generate": ScriptedExecutor.generate})
    spec = CallSpec(request={"messages": [{"role": "user", "content": "hello" * 8}]})
    call = Call(Identity("p/0", "p", "t"), spec)
    chunks = replicas.generate(call, stream=True)
    await anext(chunks)
    assert sum(replica.view.in_flight for replica in replicas.replicas) >= 10
    await last_reply(chunks)
    assert [engine.hashed for engine in engines] == [[], []]

"""The engine without a model: its made-up outputs, and its real scheduling."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest

from agentrt import Runtime, program
from agentrt.engines import SimulatedEngine
from agentrt.errors import CallRejectedError, EngineDiedError
from agentrt.executors.base import Chunk, last_reply
from agentrt.program import Context
from agentrt.request import Call, CallSpec, Identity, Reply
from agentrt.scheduler.config import SchedulerConfig

FCFS = SchedulerConfig(policy="fcfs")


@asynccontextmanager
async def started(config: SchedulerConfig = FCFS, slots: int = 1) -> AsyncIterator[SimulatedEngine]:
    engine = SimulatedEngine(config, slots=slots, step_s=0.0)
    await engine.start(lambda message: None)
    try:
        yield engine
    finally:
        await engine.close()


def call(name: str, words: int = 20, **request: Any) -> Call:
    chat = {"messages": [{"role": "user", "content": "Say something."}], **request}
    spec = CallSpec(max_tokens=words, ignore_eos=True, request=chat)
    return Call(Identity(f"{name}/0", name), spec)


async def reply_to(engine: SimulatedEngine, asked: Call) -> Reply:
    return await last_reply(engine.generate(asked, stream=False))


async def test_a_call_gets_the_same_words_again_and_another_call_others() -> None:
    async with started(slots=2) as engine:
        first, again, other = [await reply_to(engine, call(name)) for name in ("a", "a", "b")]
        free = replace(call("a"), spec=replace(call("a").spec, max_tokens=512, ignore_eos=False))
        open_ended = await reply_to(engine, free)
    assert len(first.text.split()) == 20
    assert first.text == again.text != other.text
    assert 12 <= len(open_ended.text.split()) <= 48
    report = first.report
    assert (report.prompt_tokens, report.output_tokens, report.steps) == (2, 20, 20)


async def test_pieces_are_the_whole_answer() -> None:
    async with started() as engine:
        pieces: list[Chunk] = [one async for one in engine.generate(call("a"), stream=True)]
        whole = await reply_to(engine, call("a"))
    assert len(pieces) == 21
    assert pieces[-1].reply is not None
    assert "".join(piece.text for piece in pieces) == pieces[-1].reply.text == whole.text


async def test_a_better_call_takes_a_worse_ones_slot() -> None:
    """After a step, a call is in the last level, so a new call has a better level than the running
    call.
    """
    plas = SchedulerConfig(policy="plas", quanta=(1e-9,), beta=float("inf"))
    async with started(plas) as engine:
        pieces = engine.generate(call("early", 200), stream=True)
        for _ in range(10):
            await anext(pieces)
        early = asyncio.create_task(last_reply(pieces))
        late = await reply_to(engine, call("late", 3))
        assert not early.done()
        report = (await early).report
    assert (report.preemptions, report.level, report.output_tokens) == (1, 1, 200)
    assert (late.report.preemptions, late.report.output_tokens) == (0, 3)


async def test_who_waits_is_told_in_order() -> None:
    async with started() as engine:
        tasks = [asyncio.create_task(reply_to(engine, call(name))) for name in "abc"]
        while not (snapshot := await engine.snapshot())["running"]:
            await asyncio.sleep(0)
        assert [one["call_id"] for one in snapshot["running"]] == ["a/0"]
        waiting = [(one["call_id"], one["ahead"]) for one in snapshot["waiting"]]
        assert waiting == [("b/0", 0), ("c/0", 1)]
        assert (snapshot["programs"], snapshot["requests"]) == (["a", "b", "c"], 3)
        assert snapshot["sizes"] == {"max_num_seqs": 1}
        await asyncio.gather(*tasks)
        for name in "abc":
            await engine.end_program(name)
        snapshot = await engine.snapshot()
    assert (snapshot["programs"], snapshot["requests"]) == ([], 0)


async def test_an_aborted_call_leaves_its_slot_and_tells_what_it_had() -> None:
    async with started() as engine:
        pieces = engine.generate(call("a"), stream=True)
        await anext(pieces)
        await anext(pieces)
        await pieces.aclose()
        assert (await engine.snapshot())["requests"] == 0
        assert (await engine.aborted("a/0")).output_tokens == 2
        assert (await engine.aborted("a/0")).output_tokens == 0
        assert (await reply_to(engine, call("b"))).report.output_tokens == 20


async def test_a_call_whose_stream_is_closed_after_the_last_word_has_a_report() -> None:
    """The reply follows the last word. A reader may close the stream before it reads the reply."""
    async with started() as engine:
        pieces = engine.generate(call("a"), stream=True)
        for _ in range(20):
            await anext(pieces)
        await pieces.aclose()
        report = await engine.aborted("a/0")
    assert (report.prompt_tokens, report.output_tokens, report.steps) == (2, 20, 20)


async def test_an_engine_that_stops_ends_its_calls() -> None:
    async with started() as engine:
        pieces = engine.generate(call("a"), stream=True)
        await anext(pieces)
        await engine.close()
        assert not engine.alive()
        with pytest.raises(EngineDiedError, match="stopped during a/0"):
            await last_reply(pieces)
        with pytest.raises(EngineDiedError, match="is not running"):
            await reply_to(engine, call("b"))


@pytest.mark.parametrize(
    "needs", [{"response_format": {"type": "json_object"}}, {"tool_choice": "required"}]
)
async def test_what_plain_text_cannot_answer_is_refused(needs: dict[str, Any]) -> None:
    async with started() as engine:
        with pytest.raises(CallRejectedError, match="run it with --engine vllm"):
            await reply_to(engine, call("a", **needs))
        assert (await engine.snapshot())["requests"] == 0


async def test_a_program_runs_on_it() -> None:
    @program
    async def pair(ctx: Context) -> list[str]:
        replies = await asyncio.gather(*(ctx.llm("Hi.", max_tokens=4) for _ in range(2)))
        return [reply.text for reply in replies]

    async with Runtime(SimulatedEngine(FCFS, step_s=0.0)) as runtime:
        result = await runtime.start(pair).wait()
    assert [len(text.split()) for text in result] == [4, 4]

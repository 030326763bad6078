"""The caller of each call of a front end, and the front end of executors that take requests."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from typing import Any

import pytest

from agentrt.errors import AgentrtError, NotServedError
from agentrt.executors.base import Chunk, Executor
from agentrt.executors.chat_api import (
    Caller,
    NoProgram,
    RequestFrontend,
    caller,
    spec_of,
    stepped,
)
from agentrt.executors.info import ExecutorInfo
from agentrt.request import NO_LIMIT, Call, CallReport, CallSpec, Identity, Reply
from tests.doubles.scripted import ScriptedExecutor

CHAT = {"messages": [{"role": "user", "content": "hello"}], "model": "m"}


class Program(Caller):
    """A caller that records the specs of its calls."""

    def __init__(self, executor: Executor) -> None:
        self.executor = executor
        self.specs: list[CallSpec] = []

    async def chunks(self, spec: CallSpec, *, stream: bool) -> AsyncGenerator[Chunk, None]:
        self.specs.append(spec)
        call = Call(Identity("p/0", "p"), spec)
        async for chunk in self.executor.generate(call, stream=stream):
            yield chunk

    def siblings(self, count: int) -> Any:
        raise AssertionError("a request has its choices itself")


class TextOnly(Executor):
    """An executor that does not know OpenAI's form."""

    async def generate(self, call: Call, *, stream: bool) -> AsyncGenerator[Chunk, None]:
        report = CallReport(prompt_tokens=2, output_tokens=3)
        reply = Reply("one two", "length", report=report)
        if stream:
            yield Chunk("one ")
        yield Chunk("two" if stream else "one two", reply)


async def test_a_request_is_handed_on_whole() -> None:
    executor = ScriptedExecutor(lambda call: "hi")
    await executor.start(lambda message: None)
    program, front = Program(executor), RequestFrontend(executor.info)
    request = {**CHAT, "max_completion_tokens": 7, "temperature": 0.5, "x_unknown": [1]}
    answer = await front.chat(request, program)
    assert answer["choices"][0]["message"]["content"] == "hi"
    (spec,) = program.specs
    assert spec.request == request
    assert (spec.max_tokens, spec.temperature, spec.model) == (7, 0.5, "m")


async def test_text_alone_is_put_into_openais_form() -> None:
    front = RequestFrontend(ExecutorInfo())
    whole = await front.chat(CHAT, Program(TextOnly()))
    pieces = [piece async for piece in front.chat_stream(CHAT, Program(TextOnly()))]
    usage = {"prompt_tokens": 2, "completion_tokens": 3, "total_tokens": 5}
    assert whole["choices"][0]["message"] == {"role": "assistant", "content": "one two"}
    assert (whole["choices"][0]["finish_reason"], whole["usage"]) == ("length", usage)
    assert [piece["choices"][0]["delta"]["content"] for piece in pieces] == ["one ", "two"]
    assert "usage" not in pieces[0]
    assert (pieces[1]["choices"][0]["finish_reason"], pieces[1]["usage"]) == ("length", usage)


def test_a_request_without_a_limit_has_none() -> None:
    spec = spec_of({**CHAT, "temperature": None, "seed": 3})
    assert (spec.max_tokens, spec.temperature, spec.seed) == (NO_LIMIT, 1.0, 3)


def test_a_model_that_is_not_served_has_no_profile() -> None:
    front = RequestFrontend(ExecutorInfo(("a/b",)))
    assert front.profile("b").model == "b"
    with pytest.raises(NotServedError, match="'other'"):
        front.profile("other")


async def test_each_step_of_a_stream_is_its_callers() -> None:
    """Two streams, each made for one program, are read in turns."""
    seen: list[object] = []

    async def numbers() -> AsyncGenerator[int, None]:
        for number in range(2):
            seen.append(caller())
            await asyncio.sleep(0)
            yield number

    first, second = Program(TextOnly()), Program(TextOnly())
    streams = [stepped(first, numbers()), stepped(second, numbers())]
    for _ in range(2):
        for stream in streams:
            await anext(stream)
            with pytest.raises(AgentrtError, match="no caller is set"):
                caller()
    assert seen == [first, second, first, second]


async def test_leaving_a_stream_closes_what_it_reads() -> None:
    closed: list[bool] = []

    async def numbers() -> AsyncGenerator[int, None]:
        try:
            yield 1
            yield 2
        finally:
            closed.append(True)

    stream = stepped(Program(TextOnly()), numbers())
    assert await anext(stream) == 1
    await stream.aclose()
    assert closed == [True]


async def test_calls_of_no_program_leave_nothing() -> None:
    """Each call is a program of its own, which ends with the call. If a call is closed early, the
    executor is asked what it used.
    """

    class Asked(ScriptedExecutor):
        asked: list[str] = []  # noqa: RUF012  # of one test

        async def aborted(self, call_id: str) -> CallReport:
            self.asked.append(call_id)
            return await super().aborted(call_id)

    executor = Asked(lambda call: "one two three")
    await executor.start(lambda message: None)
    nobody = NoProgram(executor)
    spec = CallSpec(max_tokens=9)
    texts = [[c.text async for c in nobody.chunks(spec, stream=False)] for _ in range(2)]
    assert texts == [["one two three"]] * 2
    assert executor.asked == []
    left = nobody.chunks(spec, stream=True)
    await anext(left)
    await left.aclose()
    assert executor.asked == [executor.calls[-1].call_id]
    programs = [call.program_id for call in executor.calls]
    assert len(set(programs)) == 3
    assert executor.ended == programs
    with nobody.siblings(2) as each:
        assert len(each) == 2

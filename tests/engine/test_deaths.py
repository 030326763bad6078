"""A single engine that dies, or is closed, while others wait for its answers."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
import pytest_asyncio
from vllm.v1.engine.output_processor import OutputProcessor, RequestState

from agentrt.engines import EngineOptions, VLLMEngine
from agentrt.errors import EngineDiedError, EngineError
from agentrt.executors.base import last_reply
from agentrt.request import Call, CallReport, CallSpec, Identity, Reply
from agentrt.request.sampling import Sampling
from tests.doubles.tinymodel import tiny_model

pytestmark = [pytest.mark.engine, pytest.mark.asyncio(loop_scope="module")]
FLAGS = ("--dtype", "float32", "--max-model-len", "512", "--num-gpu-blocks-override", "64")


@pytest_asyncio.fixture(loop_scope="module")
async def engine(tmp_path: Any) -> Any:
    engine = VLLMEngine(EngineOptions(str(tiny_model(tmp_path / "model")), 4, flags=FLAGS))
    await engine.start(lambda message: None)
    yield engine
    await engine.close()


def called(
    engine: VLLMEngine, number: int, *, stream: bool, sampling: Sampling | None = None
) -> Coroutine[Any, Any, Reply]:
    ids = (7,) * 20
    spec = CallSpec(prompt_token_ids=ids, max_tokens=400, ignore_eos=True, sampling=sampling)
    call = Call(Identity(f"p{number}/0", f"p{number}", "t"), spec)
    return last_reply(engine.generate(call, stream=stream))


async def begun(works: list[Coroutine[Any, Any, Any]]) -> list[asyncio.Task[Any]]:
    tasks = [asyncio.create_task(work) for work in works]
    for _ in range(50):  # each has sent its message
        await asyncio.sleep(0)
    assert not any(task.done() for task in tasks)
    return tasks


async def results_of(tasks: list[asyncio.Task[Any]]) -> list[Any]:
    async with asyncio.timeout(60):
        return await asyncio.gather(*tasks, return_exceptions=True)


async def test_an_engine_that_is_killed_keeps_nobody_waiting(engine: VLLMEngine) -> None:
    (core,) = engine.pids()
    os.kill(core, signal.SIGSTOP)
    tasks = await begun(
        [
            engine.snapshot(),
            engine.end_program("p"),
            engine.aborted("p/0"),
            engine.pause_generation("wait"),
            engine.front_setups(),
            called(engine, 1, stream=True),
        ]
    )
    os.kill(core, signal.SIGKILL)
    snapshot, end, report, *errors = await results_of(tasks)
    assert (snapshot, end, report) == ({}, None, CallReport())
    assert [type(error) for error in errors] == [EngineDiedError] * 3
    assert not engine.alive()


@pytest.mark.parametrize("ends", ["close", "fail"])
async def test_calls_end_with_the_client_of_their_engine(
    engine: VLLMEngine, monkeypatch: pytest.MonkeyPatch, ends: str
) -> None:
    """``fail``: vLLM's client cannot read an output, and stops reading."""
    tasks = await begun([called(engine, number, stream=bool(number)) for number in range(2)])
    if ends == "close":
        await engine.close()
    else:
        monkeypatch.setattr(OutputProcessor, "process_outputs", _fail())
    errors = await results_of(tasks)
    assert [type(error) for error in errors] == [EngineDiedError] * 2
    assert not engine.alive()


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
async def test_an_output_that_cannot_be_read_ends_only_its_own_call(
    engine: VLLMEngine, monkeypatch: pytest.MonkeyPatch, stream: bool
) -> None:
    """In the step in which call 1 cannot be read, call 0, before it, ends at a stop string, and
    call 2, after it, goes on.
    """
    whole = await called(engine, 9, stream=False)
    stopping = Sampling(stop=(whole.text[:1],))
    make = RequestState.make_request_output

    def made(self: RequestState, *args: Any, **options: Any) -> Any:
        if self.external_req_id == "p1/0":
            raise RuntimeError("an output that cannot be read")
        return make(self, *args, **options)

    monkeypatch.setattr(RequestState, "make_request_output", made)
    tasks = await begun(
        [
            called(engine, 0, stream=stream, sampling=stopping),
            called(engine, 1, stream=stream),
            called(engine, 2, stream=stream),
        ]
    )
    async with asyncio.timeout(60):
        await asyncio.wait(tasks[:2])
        running = {call["call_id"] for call in (await engine.snapshot())["running"]}
    stopped, error, other = await results_of(tasks)
    assert (stopped.text, stopped.finish_reason) == ("", "stop")
    assert type(error) is EngineError
    assert str(error) == (
        "call p1/0: vLLM's client cannot read the call's output (an output that cannot be read)"
    )
    assert running <= {"p2/0"}  # the engine core has aborted the other two
    assert (other.text, other.token_ids) == (whole.text, whole.token_ids)
    assert engine.alive()


def _fail() -> Callable[..., Any]:
    def fail(*args: Any, **options: Any) -> Any:
        raise RuntimeError("an output that cannot be read")

    return fail

"""The interface `Executor`: its defaults, and an executor that forwards all calls."""

from __future__ import annotations

import inspect
from collections.abc import AsyncGenerator
from typing import Any

import pytest

from agentrt.errors import NotServedError
from agentrt.executors.base import Chunk, Executor, ForwardingExecutor, Notification, last_reply
from agentrt.executors.info import ExecutorInfo
from agentrt.request import Call, CallSpec, Identity, Reply

CALL = Call(Identity("p/0", "p"), CallSpec(prompt_token_ids=(1, 2)))


class Least(Executor):
    """An executor with only the required methods."""

    async def generate(self, call: Call, *, stream: bool) -> AsyncGenerator[Chunk, None]:
        yield Chunk("one ")
        yield Chunk("two", Reply("one two"))


async def test_an_executor_needs_no_more_than_to_generate() -> None:
    executor = Least()
    await executor.start(lambda message: None)
    assert (await last_reply(executor.generate(CALL, stream=True))).text == "one two"
    executor.notify(Notification("p", "tool", "search"))
    await executor.end_program("p")
    assert executor.info == ExecutorInfo()
    assert executor.alive()
    assert (await executor.snapshot(), executor.pids()) == ({}, [])
    assert (await executor.cpu_seconds(), await executor.cached_blocks()) == (None, None)
    await executor.close()


class Recorder:
    """An object that has every method of `Executor`, and returns and records each call."""

    def __init__(self) -> None:
        self.asked: list[object] = []

    def __getattr__(self, name: str) -> Any:
        method = getattr(Executor, name)

        def answer(*args: object, **options: object) -> object:
            self.asked.append((name, args, options))
            return self.asked[-1]

        async def later(*args: object, **options: object) -> object:
            return answer(*args, **options)

        if isinstance(method, property):
            return answer()
        return later if inspect.iscoroutinefunction(method) else answer


SEAM = sorted(name for name in vars(Executor) if not name.startswith("_"))
SILENT = {
    "start",
    "close",
    "notify",
    "end_program",
    "add_adapter",
    "on_kv_events",
    "pause_generation",
    "resume_generation",
    "load_weights",
    "update_weights",
}


@pytest.mark.parametrize("name", SEAM)
async def test_a_forwarding_executor_hands_on_all_there_is(name: str) -> None:
    """A method that is added to `Executor` must be forwarded, too, with all its arguments."""
    recorder: Any = Recorder()
    forwarding = ForwardingExecutor(recorder)
    method = getattr(Executor, name)
    if isinstance(method, property):
        assert getattr(forwarding, name) == (name, (), {})
        return
    own = [*inspect.signature(method).parameters.values()][1:]
    args = tuple(object() for one in own if one.kind is not one.KEYWORD_ONLY)
    options = {one.name: object() for one in own if one.kind is one.KEYWORD_ONLY}
    answer = getattr(forwarding, name)(*args, **options)
    answer = await answer if inspect.iscoroutine(answer) else answer
    assert recorder.asked == [(name, args, options)]
    assert answer == (None if name in SILENT else recorder.asked[0])


def test_a_model_goes_by_its_name_or_its_last_part() -> None:
    info = ExecutorInfo(("lab/big", "/models/small/"))
    assert info.model == "lab/big"
    assert [info.served_as(name) for name in ("big", "small", "tiny")] == [*info.models, None]
    info.check_served(None)
    info.check_served("small")
    with pytest.raises(NotServedError, match="serves 'lab/big' or 'small', not model 'tiny'"):
        info.check_served("tiny")


def test_an_executor_that_names_no_model_is_believed_to_serve_any() -> None:
    ExecutorInfo().check_served("tiny")
    assert ExecutorInfo().model == ""

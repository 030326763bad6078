"""The seam: what an executor says of itself, and what a forwarding one hands on."""

from __future__ import annotations

from collections.abc import AsyncGenerator

import pytest

from agentrt.errors import NotServedError
from agentrt.executors.base import Chunk, Executor, ForwardingExecutor, Notification, last_reply
from agentrt.executors.info import ExecutorInfo
from agentrt.request import Call, CallSpec, Identity, Reply

CALL = Call(Identity("p/0", "p"), CallSpec(prompt_token_ids=(1, 2)))


class Least(Executor):
    """Only what an executor must have."""

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


def test_a_forwarding_executor_hands_on_all_there_is() -> None:
    """A method that is added to the seam must be forwarded, too."""
    seam = {name for name in vars(Executor) if not name.startswith("_")}
    assert seam == {name for name in vars(ForwardingExecutor) if not name.startswith("_")}


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

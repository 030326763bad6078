"""Replicas of different models: a call that names a model runs only on replicas of this model."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from agentrt import Context, Runtime, program
from agentrt.errors import CallRejectedError, EngineDiedError, NotServedError
from agentrt.executors.info import ExecutorInfo, is_model
from agentrt.executors.replicas import Backoff, ReplicaState
from agentrt.integrations.langchain import ChatAgentRT
from agentrt.router import ROUTERS
from tests.executors.replicas.cast import TEXT, Cast, Mortal, call_of
from tests.executors.replicas.conftest import Open

BIG, SMALL = "lab/big", "/models/small/"


def mixed() -> Cast:
    return Cast([Mortal(model=BIG)], [Mortal(model=SMALL)], [Mortal(model=SMALL)])


def asked(cast: Cast) -> list[int]:
    return [len(mortal.calls) for _, mortal in cast.made]


@program
async def asks(ctx: Context, model: str | None) -> str:
    pieces = [piece async for piece in ctx.llm("hello", stream=True, model=model)]
    reply = await ctx.llm("hello", model=model)
    assert "".join(pieces) == reply.text
    return reply.text


@pytest.mark.parametrize("router", sorted(ROUTERS))
@pytest.mark.parametrize(
    ("model", "where"), [(None, {0}), ("big", {0}), (BIG, {0}), ("small", {1, 2}), (SMALL, {1, 2})]
)
async def test_a_call_goes_where_its_model_is(
    opened: Open, router: str, model: str | None, where: set[int]
) -> None:
    cast = mixed()
    replicas = await opened(cast, router=router)
    assert replicas.info.models == (BIG, SMALL)
    async with Runtime(replicas) as runtime:
        runs = [runtime.start(asks, model) for _ in range(6)]
        assert [await run.wait() for run in runs] == [TEXT] * 6
        assert {index for index, count in enumerate(asked(cast)[-3:]) if count} <= where
        assert sum(asked(cast)) == 12


async def test_a_chat_model_names_one_of_several(opened: Open) -> None:
    cast = mixed()
    async with Runtime(await opened(cast)) as runtime:
        small = await ChatAgentRT(runtime=runtime, model="small").ainvoke("hello")
        big = await ChatAgentRT(runtime=runtime).ainvoke("hello")
        names = [message.response_metadata["model_name"] for message in (small, big)]
        assert names == ["small", "lab/big"]
        calls = [mortal.calls for _, mortal in cast.made if mortal.calls]
        assert [[call.spec.model for call in one] for one in calls] == [[None], ["small"]]
        with pytest.raises(NotServedError, match="serves 'lab/big' or 'small', not model 'x'"):
            await ChatAgentRT(runtime=runtime, model="x").ainvoke("hello")


async def test_a_model_that_none_serves(opened: Open) -> None:
    """A program and the set itself get the same error, which lists the served models."""
    cast = mixed()
    replicas = await opened(cast)
    words = "serves 'lab/big' or 'small', not model 'huge': leave model out, or name"
    async with Runtime(replicas) as runtime:
        with pytest.raises(NotServedError, match=words):
            await runtime.start(asks, "huge").wait()
        assert len(runtime.table) == 0
        with pytest.raises(NotServedError, match=words):
            await anext(replicas.generate(call_of(model="huge"), stream=False))
    assert sum(asked(cast)) == 0


async def test_one_model_s_replicas_do_not_stand_in_for_another_s(opened: Open) -> None:
    """The only engine of the big model dies, and its restart is delayed: calls of the big model
    wait, while the small model serves calls.
    """
    cast = Cast([Mortal(0, model=BIG)], [Mortal(model=SMALL)])
    replicas = await opened(cast, backoff=Backoff(first_s=3600), ready_timeout_s=0.05)
    with pytest.raises(EngineDiedError, match=r"within 0\.05 s: replica-0: killed$"):
        await anext(replicas.generate(call_of(model="big"), stream=False))
    assert replicas.replicas[0].state is ReplicaState.DOWN
    async with asyncio.timeout(60):
        chunk = await anext(replicas.generate(call_of(model="small"), stream=False))
    assert chunk.text == TEXT


class Adapting(Mortal):
    """An engine that takes adapters. A ``frail`` engine dies when it gets an adapter."""

    def __init__(self, *, frail: bool = False, **options: Any) -> None:
        super().__init__(**options)
        self.adapters: list[tuple[str, Any]] = []
        self.frail = frail

    async def add_adapter(self, model: str, adapter: Any) -> None:
        if self.frail:
            self.dead = True
            raise EngineDiedError("killed")
        if adapter == "bad":
            raise CallRejectedError("rank 64 is above 16")
        self.adapters.append((model, adapter))


async def test_an_adapter_is_loaded_by_all_engines_of_its_model(opened: Open) -> None:
    """1. Engines of other models do not load the adapter. 2. An engine that cannot load an adapter
    says so. 3. An engine that dies of it is replaced, and the others have the adapter.
    """
    cast = Cast(
        [Adapting(model=BIG)],
        [Adapting(model=SMALL, frail=True), Adapting(model=SMALL)],
        [Adapting(model=SMALL)],
    )
    replicas = await opened(cast)
    with pytest.raises(CallRejectedError, match="rank 64"):
        await replicas.add_adapter(BIG, "bad")
    await replicas.add_adapter("small", "poet")
    await replicas.settled()
    loaded = [one.adapters for _, one in cast.made if isinstance(one, Adapting)]
    assert loaded == [[], [], [("small", "poet")], []]
    assert [replica.deaths for replica in replicas.replicas] == [0, 1, 0]


@pytest.mark.parametrize(
    ("name", "served", "same"),
    [
        ("a/b", "a/b", True),
        ("b", "a/b", True),
        ("b", "/x/a/b/", True),
        ("/x/a/b", "/x/a/b/", True),
        ("a", "a/b", False),
        ("c/b", "a/b", False),
        ("", "a/b", False),
    ],
)
def test_what_names_a_model(name: str, served: str, same: bool) -> None:
    assert is_model(name, served) is same


class Favours(Mortal):
    """An engine with a logits processor, which the engine only knows after its start."""

    @property
    def info(self) -> ExecutorInfo:
        return replace(super().info, logits=(("green", ""),) if self._open else ())


async def test_the_logits_processors_of_replicas_are_known_while_one_starts_again(
    opened: Open,
) -> None:
    replicas = await opened(Cast([Favours(), Favours()], [Favours()]))
    replicas.info.check_logits(["green"])
    await replicas.replicas[0].executor.close()
    replicas.info.check_logits(["green"])

"""An engine on a cluster: its description before it has started, and its requests to its actor,
without Ray.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

import pytest

from agentrt.engines import EngineOptions, VLLMEngine
from agentrt.executors.info import ExecutorInfo
from agentrt.executors.ray import Cluster, RayEngine
from agentrt.executors.ray.engine import EngineActor
from tests.executors.ray.test_actor import Engine
from tests.executors.replicas.cast import TEXT, call_of

pytest.importorskip("ray")


class LocalCluster(Cluster):
    """A cluster that places actors into this process, and notes the names of the methods that are
    called.
    """

    def __init__(self) -> None:
        super().__init__("auto", 1)
        self.called: list[str] = []

    async def join(self) -> None: ...
    async def leave(self) -> None: ...

    def has_room(self) -> bool:
        return True

    def room(self) -> str:
        return ""

    def placed(self, actor: Any) -> bool:
        return True

    def place(self, actor: type, *args: Any) -> Any:
        return Handle(actor(*args), self.called)


class Handle:
    """A handle of an actor in this process."""

    def __init__(self, actor: EngineActor, called: list[str]) -> None:
        self._actor, self._called = actor, called

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._actor, name, _ready)
        return SimpleNamespace(remote=lambda *args: self._send(name, method, args))

    def _send(
        self, name: str, method: Callable[..., Coroutine[Any, Any, Any]], args: tuple[Any, ...]
    ) -> Reference:
        self._called.append(name)
        loop = asyncio.get_running_loop()
        return Reference(asyncio.run_coroutine_threadsafe(_received(method, args), loop))


class Reference:
    """A reference to the result of a method."""

    def __init__(self, result: Future[Any]) -> None:
        self._result = result

    def future(self) -> Future[Any]:
        return self._result


async def _ready() -> None: ...


async def _received(method: Callable[..., Coroutine[Any, Any, Any]], args: tuple[Any, ...]) -> Any:
    """Call a method with the results of earlier calls, as Ray does."""
    values = [
        await asyncio.wrap_future(arg.future()) if isinstance(arg, Reference) else arg
        for arg in args
    ]
    return await method(*values)


@pytest.mark.parametrize("read", ["a part", "the reply"])
async def test_a_call_that_is_closed_is_stopped_unless_it_has_its_reply(
    read: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A call that is stopped is remembered until its report is requested by `aborted`, which
    nobody does for a call with a reply.
    """
    monkeypatch.setattr("agentrt.executors.ray.engine.VLLMEngine", Engine)
    cluster = LocalCluster()
    engine = RayEngine(EngineOptions(), cluster)
    await engine.start(lambda message: None)
    chunks = engine.generate(call_of(0), stream=True)
    texts = []
    async for chunk in chunks:
        texts.append(chunk.text)
        if chunk.reply is not None or read == "a part":
            break
    await chunks.aclose()
    if read == "a part":
        assert (await engine.aborted("p/0")).steps < len(TEXT.split())
    else:
        assert "".join(texts) == TEXT
    assert ("stop" in cluster.called) == (read == "a part")
    await engine.close()


@pytest.mark.parametrize(
    ("options", "info"),
    [
        (EngineOptions("a/b", 4), ExecutorInfo(("a/b",), 4, cached_blocks=True, logprobs=True)),
        (EngineOptions(), ExecutorInfo(cached_blocks=True, logprobs=True)),
    ],
)
def test_it_says_what_it_was_asked_for(options: EngineOptions, info: ExecutorInfo) -> None:
    assert RayEngine(options, Cluster("auto", 1)).info == info
    assert VLLMEngine(options).info == info

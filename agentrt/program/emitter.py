"""The interface through which a `Context` uses the runtime."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Mapping, Sequence
from typing import Any, Protocol, TypeVar

from agentrt.contexts import TokenEmitter
from agentrt.interrupts import Tool
from agentrt.interrupts.answers import AnswerForm
from agentrt.interrupts.events import Event, Feed
from agentrt.program.results import Takes
from agentrt.request import Reply

T = TypeVar("T")


class Emitter(Protocol):
    """The interface that does the work of a `Context`: it emits nodes, finds tools, and returns
    values that a journal can record.

    `agentrt.runtime.emitter.LiveEmitter` implements the interface. The context of a program with a
    journal calls `agentrt.runtime.recorded.Recorded`, which calls the `LiveEmitter`.
    """

    @property
    def contexts(self) -> TokenEmitter: ...

    async def call(self, request: Mapping[str, Any], after: Iterable[Reply]) -> Reply: ...

    def stream(
        self, request: Mapping[str, Any], after: Iterable[Reply], put: Callable[[Reply], None]
    ) -> AsyncIterator[dict[str, Any]]: ...

    async def takes(self, model: str | None) -> Takes: ...

    async def tool(
        self,
        tool: Tool,
        positional: tuple[Any, ...],
        arguments: Mapping[str, Any],
        after: Iterable[Reply],
    ) -> Any: ...

    async def find_tool(self, name: str, timeout: float | None = None) -> Tool: ...

    async def tools(self, *transports: str) -> list[Tool]: ...

    async def human(
        self,
        text: str | Reply,
        form: AnswerForm,
        timeout: float | None,
        after: Iterable[Reply],
    ) -> Any: ...

    async def event(self, feed: Feed, timeout: float | None, after: Iterable[Reply]) -> Event: ...

    async def sleep(self, seconds: float, after: Iterable[Reply]) -> None: ...

    def value(self, name: str, make: Callable[[], T]) -> T: ...

    def reward(self, value: float) -> None: ...

    def patched(self, name: str) -> bool: ...

    def checkpoint(self) -> Callable[[T], T]: ...

    def spawned(self, name: str, inputs: Sequence[Any], work: Coroutine[Any, Any, T]) -> Any: ...


class ForwardingEmitter:
    """An emitter that passes every call on to the emitter ``inner``. Subclasses override the
    methods that they change.
    """

    def __init__(self, inner: Emitter) -> None:
        self.inner = inner

    @property
    def contexts(self) -> TokenEmitter:
        return self.inner.contexts

    async def call(self, request: Mapping[str, Any], after: Iterable[Reply]) -> Reply:
        return await self.inner.call(request, after)

    def stream(
        self, request: Mapping[str, Any], after: Iterable[Reply], put: Callable[[Reply], None]
    ) -> AsyncIterator[dict[str, Any]]:
        return self.inner.stream(request, after, put)

    async def takes(self, model: str | None) -> Takes:
        return await self.inner.takes(model)

    async def tool(
        self,
        tool: Tool,
        positional: tuple[Any, ...],
        arguments: Mapping[str, Any],
        after: Iterable[Reply],
    ) -> Any:
        return await self.inner.tool(tool, positional, arguments, after)

    async def find_tool(self, name: str, timeout: float | None = None) -> Tool:
        return await self.inner.find_tool(name, timeout)

    async def tools(self, *transports: str) -> list[Tool]:
        return await self.inner.tools(*transports)

    async def human(
        self, text: str | Reply, form: AnswerForm, timeout: float | None, after: Iterable[Reply]
    ) -> Any:
        return await self.inner.human(text, form, timeout, after)

    async def event(self, feed: Feed, timeout: float | None, after: Iterable[Reply]) -> Event:
        return await self.inner.event(feed, timeout, after)

    async def sleep(self, seconds: float, after: Iterable[Reply]) -> None:
        await self.inner.sleep(seconds, after)

    def value(self, name: str, make: Callable[[], T]) -> T:
        return self.inner.value(name, make)

    def reward(self, value: float) -> None:
        self.inner.reward(value)

    def patched(self, name: str) -> bool:
        return self.inner.patched(name)

    def checkpoint(self) -> Callable[[T], T]:
        return self.inner.checkpoint()

    def spawned(self, name: str, inputs: Sequence[Any], work: Coroutine[Any, Any, T]) -> Any:
        return self.inner.spawned(name, inputs, work)

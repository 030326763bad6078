"""What an agent program acts through: its context, and what that needs of the runtime."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterable, Mapping
from functools import partial
from typing import Any, Concatenate, Literal, ParamSpec, Protocol, TypeVar, Unpack, overload

from agentrt.program.options import LLMOptions, make_request
from agentrt.program.stream import ReplyStream
from agentrt.program.tools import name_of
from agentrt.request import Message, Reply
from agentrt.tracking import enter_node

P = ParamSpec("P")
T = TypeVar("T")


class Emitter(Protocol):
    """What a context needs of the runtime: a way in for each kind of node."""

    async def call(self, request: Mapping[str, Any], after: Iterable[Reply]) -> Reply: ...

    def stream(
        self, request: Mapping[str, Any], after: Iterable[Reply], put: Callable[[Reply], None]
    ) -> AsyncIterator[Mapping[str, Any]]: ...

    async def tool(
        self, name: str, work: Callable[[], Awaitable[T]], after: Iterable[Reply]
    ) -> T: ...

    async def human(self, question: str, after: Iterable[Reply]) -> str: ...


class Context:
    """A program's access to the engine, its tools and its humans.

    Each method emits a node of the execution DAG. Its parents are found from asyncio
    itself; ``after`` names replies by hand that had to come first where asyncio cannot
    show it (passed through a queue, or a thread).
    """

    def __init__(self, program_id: str, program_type: str, emitter: Emitter) -> None:
        self.program_id = program_id
        self.program_type = program_type
        self._emitter = emitter

    @overload
    def llm(
        self,
        ask: str | Iterable[Message],
        *,
        stream: Literal[True],
        after: Iterable[Reply] = (),
        **options: Unpack[LLMOptions],
    ) -> ReplyStream: ...

    @overload
    def llm(
        self,
        ask: str | Iterable[Message],
        *,
        stream: Literal[False] = False,
        after: Iterable[Reply] = (),
        **options: Unpack[LLMOptions],
    ) -> Coroutine[Any, Any, Reply]: ...

    def llm(
        self,
        ask: str | Iterable[Message],
        *,
        stream: bool = False,
        after: Iterable[Reply] = (),
        **options: Unpack[LLMOptions],
    ) -> ReplyStream | Coroutine[Any, Any, Reply]:
        """Call the model with a chat, or with text as the user's message.

        Await it for a `Reply`; with ``stream`` it is a `ReplyStream`: iterate over its text as
        it grows. Messages are as in OpenAI's API, with images and audio where the model takes
        them. The
        options are those of `LLMOptions`. Raises `CallRejectedError` if the engine
        cannot take the call, and `ConfigError` for options that cannot be.
        """
        request = make_request(ask, **options)
        if stream:
            return ReplyStream(partial(self._emitter.stream, request, after))
        return self._emitter.call(request, after)

    async def tool(
        self,
        function: Callable[..., Any],
        /,
        *args: Any,
        after: Iterable[Reply] = (),
        timeout: float | None = None,
        **kwargs: Any,
    ) -> Any:
        """Run a tool as an interrupt: the program is outside the engine meanwhile.

        An async function is awaited, any other runs in a thread. ``timeout`` is in
        seconds; past it the tool fails with `TimeoutError`.
        """

        async def work() -> Any:
            async with asyncio.timeout(timeout):
                if inspect.iscoroutinefunction(function):
                    return await function(*args, **kwargs)
                return await asyncio.to_thread(function, *args, **kwargs)

        return await self._emitter.tool(name_of(function), work, after)

    async def human(self, question: str, *, after: Iterable[Reply] = ()) -> str:
        """Ask a human, and wait for the answer as long as it takes."""
        return await self._emitter.human(question, after)

    def spawn(
        self,
        function: Callable[Concatenate[Context, P], Coroutine[Any, Any, T]],
        /,
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> asyncio.Task[T]:
        """Start a node now, without waiting for it: ``function(ctx, …)`` as a task."""

        async def run() -> T:
            with enter_node(name_of(function)):
                result: T = await inspect.unwrap(function)(self, *args, **kwargs)
                return result

        return asyncio.create_task(run(), name=f"{self.program_id}/{name_of(function)}")

"""Agent programs: plain async functions, and the context through which they act.

A program declares no graph. It awaits calls and tools, starts nodes, joins them with
ordinary asyncio, and its execution DAG emerges.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterable
from typing import Any, Concatenate, Literal, ParamSpec, Protocol, TypeVar, Unpack, overload

from agentrt.errors import ConfigError
from agentrt.program.options import LLMOptions, make_spec
from agentrt.request import CallSpec, Message, Reply
from agentrt.tracking import enter_node

P = ParamSpec("P")
T = TypeVar("T")
ProgramFunction = Callable[..., Awaitable[Any]]


class Emitter(Protocol):
    """What a context needs of the runtime: a door for each kind of node."""

    async def call(self, spec: CallSpec, after: Iterable[Reply]) -> Reply: ...

    def stream(self, spec: CallSpec, after: Iterable[Reply]) -> AsyncIterator[str]: ...

    async def tool(
        self, name: str, work: Callable[[], Awaitable[T]], after: Iterable[Reply]
    ) -> T: ...

    async def human(self, question: str, after: Iterable[Reply]) -> str: ...


class Program:
    """An agent program: an async function of a `Context` and an input.

    ``name`` is the program's type. A program ``owns_tasks`` that its code starts: they are
    cancelled at its end. Calling a `Program` calls the function itself.
    """

    def __init__(
        self, function: ProgramFunction, name: str | None = None, *, owns_tasks: bool = True
    ) -> None:
        if not inspect.iscoroutinefunction(function):
            raise ConfigError(f"program {_name_of(function)} must be an 'async def' function")
        parameters = list(inspect.signature(function).parameters.values())
        if not parameters or len([p for p in parameters if p.default is p.empty]) > 2:
            raise ConfigError(
                f"program {_name_of(function)} must take a context and at most one input: "
                f"async def {_name_of(function)}(ctx, input)"
            )
        self.function = function
        self.owns_tasks = owns_tasks
        self.name = name or _name_of(function)
        self.takes_input = len(parameters) > 1
        self.needs_input = self.takes_input and parameters[1].default is parameters[1].empty
        functools.update_wrapper(self, function)

    async def __call__(self, ctx: Context, input: Any = None) -> Any:
        """Run the function. An input of None leaves the function's own default in force."""
        if self.takes_input and (input is not None or self.needs_input):
            return await self.function(ctx, input)
        return await self.function(ctx)

    def __repr__(self) -> str:
        return f"<program {self.name}>"


@overload
def program(function: ProgramFunction, /) -> Program: ...


@overload
def program(*, name: str | None = None) -> Callable[[ProgramFunction], Program]: ...


def program(
    function: ProgramFunction | None = None, /, *, name: str | None = None
) -> Program | Callable[[ProgramFunction], Program]:
    """Turn an async function into an agent program, named after it or by ``name``."""
    if function is not None:
        return Program(function)
    return lambda given: Program(given, name)


def node(
    function: Callable[P, Coroutine[Any, Any, T]],
) -> Callable[P, Coroutine[Any, Any, T]]:
    """Mark an async function as a node: what it emits bears its name in the DAG."""

    @functools.wraps(function)
    async def named(*args: P.args, **kwargs: P.kwargs) -> T:
        with enter_node(_name_of(function)):
            return await function(*args, **kwargs)

    return named


class Context:
    """A program's door to the engine, its tools and its humans.

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
    ) -> AsyncIterator[str]: ...

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
    ) -> AsyncIterator[str] | Coroutine[Any, Any, Reply]:
        """Call the model with a chat, or with text as the user's message.

        Await it for a `Reply`; with ``stream`` iterate over its text as it grows. The
        options are those of `LLMOptions`. Raises `CallRejectedError` if the engine
        cannot take the call, and `ConfigError` for options that cannot be.
        """
        spec = make_spec(ask, **options)
        if stream:
            return self._emitter.stream(spec, after)
        return self._emitter.call(spec, after)

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

        return await self._emitter.tool(_name_of(function), work, after)

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
            with enter_node(_name_of(function)):
                result: T = await inspect.unwrap(function)(self, *args, **kwargs)
                return result

        return asyncio.create_task(run(), name=f"{self.program_id}/{_name_of(function)}")


def _name_of(function: Callable[..., Any]) -> str:
    return getattr(function, "__name__", type(function).__name__)

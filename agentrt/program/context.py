"""What an agent program acts through: its context, and what that needs of the runtime."""

from __future__ import annotations

import asyncio
import inspect
import logging
import math
import random
import time
import uuid
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from functools import cache, partial
from typing import Any, Concatenate, Literal, ParamSpec, TypeVar, Unpack, overload

from agentrt.contexts import Content, TokenContext
from agentrt.errors import AmbiguousOptionError, ConfigError, InterruptExpiredError
from agentrt.interrupts import Tool
from agentrt.interrupts.answers import answer_form
from agentrt.interrupts.schema import name_of
from agentrt.interrupts.tool import as_tool
from agentrt.program.emitter import Emitter
from agentrt.program.options import (
    DEFAULT_MAX_TOKENS,
    LLMOptions,
    StepOptions,
    make_request,
)
from agentrt.program.step import Step, Stepper, tools_by_name
from agentrt.program.stream import Events, ReplyStream
from agentrt.request import Message, Reply
from agentrt.tracking import enter_node

P = ParamSpec("P")
T = TypeVar("T")
_NOT_GIVEN: Any = object()
_LOG = logging.getLogger(__name__)


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
        ask: str | Reply | Iterable[Message],
        *,
        stream: Literal[True],
        after: Iterable[Reply] = (),
        **options: Unpack[LLMOptions],
    ) -> ReplyStream: ...

    @overload
    def llm(
        self,
        ask: str | Reply | Iterable[Message],
        *,
        stream: Literal[False] = False,
        after: Iterable[Reply] = (),
        **options: Unpack[LLMOptions],
    ) -> Coroutine[Any, Any, Reply]: ...

    def llm(
        self,
        ask: str | Reply | Iterable[Message],
        *,
        stream: bool = False,
        after: Iterable[Reply] = (),
        **options: Unpack[LLMOptions],
    ) -> ReplyStream | Coroutine[Any, Any, Reply]:
        """Call the model with a chat, or with text as the user's message: a string, or an earlier
        reply.

        Await it for a `Reply`; with ``stream`` it is a `ReplyStream`: iterate over its text as
        it grows. Messages are as in OpenAI's API, with images and audio where the model takes
        them. The
        options are those of `LLMOptions`. Raises `CallRejectedError` if the engine
        cannot take the call, and `ConfigError` for options that cannot be.
        """
        request = make_request(ask, **options)
        if stream:
            return ReplyStream(partial(self._emitter.stream, request, after))
        if "max_tokens" in options:
            return self._emitter.call(request, after)
        return _by_default(self._emitter, request, after)

    async def context(self, content: Content = (), *, model: str | None = None) -> TokenContext:
        """A context of tokens that the program owns: text, token ids, or the messages of a chat,
        with the model's turn opened. ``model`` names one that is served, or an adapter.

        Raises `ConfigError` where the executor takes no token ids.
        """
        made = TokenContext(self._emitter.contexts, model)
        await made.fill(content)
        return made

    async def open(self, name: str) -> TokenContext:
        """A context as `TokenContext.save` has kept it. Raises `UnknownContextError`."""
        emitter = self._emitter.contexts
        saved = emitter.open(name)
        context = TokenContext(emitter, saved.model, saved.token_ids)
        context.keep()
        return context

    async def forget(self, name: str) -> None:
        """Keep a saved context no longer. Raises `UnknownContextError`."""
        self._emitter.contexts.forget(name)

    async def step(
        self,
        ask: str | Reply | Iterable[Message],
        *,
        tools: Iterable[Callable[..., Any] | Tool],
        eager: bool = True,
        after: Iterable[Reply] = (),
        **options: Unpack[StepOptions],
    ) -> Step:
        """One step of an agent: call the model with ``tools``, and run those that it calls.

        They run beside each other once the reply is whole; with ``eager``, an idempotent one
        starts when its own arguments are complete, while the model still writes. What a tool
        raises is in its result, and the model reads it. Images that a tool gives are for a model
        that sees. The other options are those of `llm`,
        which says what is raised.
        """
        known = tools_by_name(tools)
        request = make_request(ask, tools=known.values(), **options)
        stream = ReplyStream(partial(self._emitter.stream, request, after))
        takes = partial(self._emitter.takes, options.get("model"))
        return await Stepper(known, self.call_tool, takes, eager).step(stream)

    async def tool(
        self,
        tool: Callable[..., Any] | Tool | str,
        /,
        *args: Any,
        after: Iterable[Reply] = _NOT_GIVEN,
        timeout: float | None = _NOT_GIVEN,
        **kwargs: Any,
    ) -> Any:
        """Run a tool as an interrupt: the program is outside the engine meanwhile.

        A function is awaited, or runs in a thread; a `Tool` runs where it belongs, with its
        arguments checked; a name is that of a tool elsewhere, as `tools` lists them. ``timeout``
        is in seconds for each attempt, in place of the tool's own, and the first one's includes
        the time to find a tool by its name; past it the tool fails with
        `InterruptExpiredError`, which is a `TimeoutError`. Raises what the function raises, and
        another `ToolError` where it runs elsewhere. A tool with a parameter named ``after`` or
        ``timeout`` gets it by `call_tool`; here that is an `AmbiguousOptionError`.
        """
        chosen = await self._found(tool, None if timeout is _NOT_GIVEN else timeout)
        for name, value in (("after", after), ("timeout", timeout)):
            if value is not _NOT_GIVEN and chosen.takes(name):
                raise AmbiguousOptionError(
                    f"{name}= is an option of ctx.tool(), and tool {chosen.name} has a parameter "
                    f"{name!r}: give its arguments as ctx.call_tool(tool, {{{name!r}: …}})"
                )
        if chosen.spec is not None:
            args, kwargs = (), chosen.bind(args, kwargs)
        if timeout is not _NOT_GIVEN and timeout is not None:
            chosen = chosen.but(timeout=timeout)
        before = () if after is _NOT_GIVEN else after
        return await self._emitter.tool(chosen, args, kwargs, before)

    async def call_tool(
        self,
        tool: Callable[..., Any] | Tool | str,
        arguments: Mapping[str, Any],
        /,
        *,
        after: Iterable[Reply] = (),
        timeout: float | None = None,
    ) -> Any:
        """Run a tool with ``arguments`` by name, whatever their names are: those that a model
        gives, as in ``call_tool(tools[call.name], call.arguments)``. All else is as in `tool`.
        """
        if not isinstance(arguments, Mapping):
            raise ConfigError(f"call_tool() takes arguments by name, as {{…}}, not {arguments!r}")
        chosen = await self._found(tool, timeout)
        if timeout is not None:
            chosen = chosen.but(timeout=timeout)
        return await self._emitter.tool(chosen, (), arguments, after)

    async def _found(self, tool: Callable[..., Any] | Tool | str, timeout: float | None) -> Tool:
        """The tool; one that is given by its name is looked for. A ``timeout`` that is no time is
        refused by what takes it, later.
        """
        if not isinstance(tool, str):
            return as_tool(tool)
        is_time = isinstance(timeout, int | float) and timeout > 0
        began = time.monotonic()
        offered = await self._emitter.find_tool(tool, timeout if is_time else None)
        chosen = offered.but()
        chosen.spent = time.monotonic() - began
        return chosen

    async def tools(self, *transports: str) -> list[Tool]:
        """The tools that others offer now, for `llm` and `tool`: all, or those of ``transports``,
        such as ``mqtt`` or ``mcp:github``. Where several have one name, that of its transport
        comes before it: ``github__search``.

        Raises `UnknownToolError` for a transport that there is not, and `ToolUnavailableError`
        for one that cannot be reached.
        """
        return await self._emitter.tools(*transports)

    async def mcp(self, server: str, /, *others: str) -> list[Tool]:
        """The tools of these servers of the ``--mcp`` file, as `tools` gives them."""
        return await self.tools(*(f"mcp:{name}" for name in (server, *others)))

    async def human(
        self,
        question: str,
        *,
        schema: Mapping[str, Any] | type | None = None,
        choices: Sequence[Any] | None = None,
        timeout: float | None = None,
        default: Any = _NOT_GIVEN,
        after: Iterable[Reply] = (),
    ) -> Any:
        """Ask a human, and wait for the answer: a text, one of ``choices``, or what fits
        ``schema``: a JSON schema, or a type that pydantic knows, such as a model, which the
        answer then is.

        Past ``timeout`` (seconds; None is as long as it takes) the answer is ``default``; without
        one that raises `InterruptExpiredError`. Raises `ConfigError` for what cannot be asked.
        """
        form = answer_form(schema, choices)
        if timeout is not None and not 0 < timeout < math.inf:
            raise ConfigError(f"a question's timeout must be above 0 seconds, got {timeout}")
        try:
            return await self._emitter.human(question, form, timeout, after)
        except InterruptExpiredError:
            if default is _NOT_GIVEN:
                raise
            return default

    def event(
        self, topic: str, *, timeout: float | None = None, after: Iterable[Reply] = ()
    ) -> Events:
        """Wait for an event: ``await ctx.event("plant/+/alarm")`` for the next one, or
        ``async for event in ctx.event("plant/#")`` for all, without losing one in between.

        ``topic`` is a filter of the runtime's event source, such as MQTT's. Past ``timeout``
        (seconds, for each wait) it fails with `InterruptExpiredError`.
        """
        return Events(topic, lambda feed: self._emitter.event(feed, timeout, after))

    async def sleep(self, seconds: float, *, after: Iterable[Reply] = ()) -> None:
        """Do nothing for so long. A program that goes on after a restart sleeps for the rest."""
        if not 0 <= seconds < math.inf:
            raise ConfigError(f"sleep() takes 0 seconds or more, got {seconds}")
        await self._emitter.sleep(seconds, after)

    def now(self) -> float:
        """The time of day, in seconds since 1970; of a program that goes on, what it was then."""
        return self._emitter.value("now", time.time)

    def random(self) -> float:
        """A random number from 0 up to 1; of a program that goes on, what it was then."""
        return self._emitter.value("random", random.random)

    def uuid(self) -> uuid.UUID:
        """A random UUID; of a program that goes on, what it was then."""
        return self._emitter.value("uuid", uuid.uuid4)

    def patched(self, name: str) -> bool:
        """Whether this is the code after the change ``name``: False for a program that had come
        further, before the change was made. Its old code must stay, in the other branch.
        """
        return self._emitter.patched(name)

    def checkpoint(self) -> Callable[[T], T]:
        """What keeps a long loop's state: made before it, and called as ``state = kept(state)`` at
        its top. A program that goes on after a restart leaves out what it had done from there to
        the last call, which returns the state that it had then.

        So all that the loop changes must be in the state. The call raises `UsageError` while
        another task of the program is open, and for a state that a journal cannot keep.
        """
        return self._emitter.checkpoint()

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

        name = name_of(function)
        work = self._emitter.spawned(name, [args, kwargs], run())
        return asyncio.create_task(work, name=f"{self.program_id}/{name}")


async def _by_default(
    emitter: Emitter, request: Mapping[str, Any], after: Iterable[Reply]
) -> Reply:
    """A call whose program named no limit of the answer. Says once if the default cut one."""
    reply = await emitter.call(request, after)
    if reply.finish_reason == "length":
        _warn_of_default_limit()
    return reply


@cache
def _warn_of_default_limit() -> None:
    _LOG.warning(
        "an answer was cut at the default limit of %d tokens (finish_reason 'length'); give "
        "max_tokens=N to ctx.llm, or max_tokens=None for all that the context has room for",
        DEFAULT_MAX_TOKENS,
    )

"""The context of an agent program: its access to models, tools, humans and events."""

from __future__ import annotations

import asyncio
import logging
import math
import random
import time
import uuid
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from contextlib import nullcontext
from decimal import Decimal
from functools import cache, partial
from numbers import Real
from typing import Any, Concatenate, Literal, ParamSpec, TypeVar, Unpack, overload

from agentrt.contexts import Content, TokenContext
from agentrt.contexts.context import open_saved
from agentrt.errors import AmbiguousOptionError, ConfigError, InterruptExpiredError
from agentrt.former import former_names
from agentrt.interrupts import Tool
from agentrt.interrupts.answers import answer_form
from agentrt.interrupts.schema import name_of
from agentrt.interrupts.tool import as_tool
from agentrt.program.emitter import Emitter
from agentrt.program.options import (
    DEFAULT_MAX_TOKENS,
    LLMOptions,
    StepOptions,
    has_limit,
    make_request,
)
from agentrt.program.step import Step, Stepper, tools_by_name
from agentrt.program.stream import Events, ReplyStream
from agentrt.request import Message, Reply
from agentrt.request.text import ReadsAsText
from agentrt.tracking import enter_node

P = ParamSpec("P")
T = TypeVar("T")
IS_NODE = "__agentrt_node__"
"""The attribute that marks node functions. Decorators that use `functools.wraps` keep it."""
SPAWNED = "__agentrt_spawned__"
"""The attribute in which a program has its function. Unlike the program, the function takes further
arguments.
"""
_UNSET: Any = object()
_LOG = logging.getLogger(__name__)


@former_names(program_id="run_id")
class Context:
    """A program's access to the engine, to tools and to humans.

    Calls of a model, tools, questions, waits for events and sleeps become nodes of the execution
    DAG. agentrt derives the parents of a node from what the program's tasks await. It cannot see a
    dependency on a reply that was passed through a queue or a thread: name such replies in
    ``after``.
    """

    def __init__(self, run_id: str, program_type: str, emitter: Emitter) -> None:
        self.run_id = run_id
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
        """Call the model with the messages of a chat, or with text (a string or an earlier reply)
        as the user's message.

        Await the result to get a `Reply`. With ``stream``, the result is a `ReplyStream`, which
        yields the text while the model writes it. Messages have OpenAI's form, with images and
        audio if the model supports them. ``after`` has replies on which the call depends although
        agentrt cannot see the dependency (see `Context`). The other options are described in
        `LLMOptions`. Raises `CallRejectedError` if the engine rejects the call, and `ConfigError`
        for invalid options.
        """
        request = make_request(ask, **options)
        if stream:
            return self._stream(request, after, options)
        if has_limit(options):
            return self._emitter.call(request, after)
        return _by_default(self._emitter, request, after)

    def _stream(
        self, request: Mapping[str, Any], after: Iterable[Reply], options: StepOptions
    ) -> ReplyStream:
        complete = None if has_limit(options) else _check_default_limit
        return ReplyStream(partial(self._emitter.stream, request, after), complete)

    async def context(self, content: Content = (), *, model: str | None = None) -> TokenContext:
        """Make a token context that the program owns. ``content`` is text, token ids, or the
        messages of a chat. Messages are followed by the tokens that start the model's turn.

        ``model`` names a served model or an adapter. Raises `ConfigError` for arguments of wrong
        types, and if the executor cannot convert text or messages to token ids.
        """
        if not isinstance(model, str | None):
            raise ConfigError(f"model must be the name of a model, got {model!r:.80}")
        made = TokenContext(self._emitter.contexts, model)
        await made.fill(content)
        return made

    async def open(self, name: str) -> TokenContext:
        """Open a context that `TokenContext.save` has saved. Raises `UnknownContextError` if the
        tenant has saved no context with this name.
        """
        return open_saved(self._emitter.contexts, name)

    async def forget(self, name: str) -> None:
        """Delete a saved context. Raises `UnknownContextError` if the tenant has saved no context
        with this name.
        """
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
        """Run one step of an agent: call the model with ``tools``, and run the tools that it calls.

        The tools run in parallel once the reply is complete. With ``eager``, an idempotent tool
        starts as soon as its own arguments are complete, while the model still writes. If a tool
        raises an error, the tool's result holds the error, so that the model can read it. If a tool
        returns images and the model does not support images, the model gets a description of them.
        The other options and the errors are the same as for `llm`.
        """
        known = tools_by_name(tools)
        request = make_request(ask, tools=known.values(), **options)
        stream = self._stream(request, after, options)
        takes = partial(self._emitter.takes, options.get("model"))
        return await Stepper(known, self.call_tool, takes, eager).step(stream)

    async def tool(
        self,
        tool: Callable[..., Any] | Tool | str,
        /,
        *args: Any,
        after: Iterable[Reply] = _UNSET,
        timeout: float | None = _UNSET,
        **kwargs: Any,
    ) -> Any:
        """Run a tool as an interrupt: while it runs, the program is outside the engine.

        An async function is awaited, and any other function runs in a thread. A `Tool` runs on its
        transport, after its arguments are checked. If ``tool`` is a text, it is the name of a tool
        that `tools` lists.

        ``timeout`` limits each attempt, in seconds, and replaces the tool's own timeout. The first
        attempt includes the time to look up a tool by its name. An attempt that takes longer fails
        with `InterruptExpiredError`, which is a `TimeoutError`.

        Raises the error of the tool's function, or `ToolFailedError` if this error cannot be sent
        from another process. Raises other errors of the class `ToolError` if the tool could not
        run, or if its result is lost or invalid. If a tool has a parameter named ``after`` or
        ``timeout``, passing it here raises `AmbiguousOptionError`; use `call_tool` instead.
        """
        chosen = await self._resolve(tool, None if timeout is _UNSET else timeout)
        for name, value in (("after", after), ("timeout", timeout)):
            if value is not _UNSET and chosen.takes(name):
                raise AmbiguousOptionError(
                    f"{name}= is an option of ctx.tool(), and tool {chosen.name} also has a "
                    f"parameter {name!r}; pass the tool's arguments with "
                    f"ctx.call_tool(tool, {{{name!r}: …}})"
                )
        if chosen.spec is not None:
            args, kwargs = (), chosen.bind(args, kwargs)
        if timeout is not _UNSET and timeout is not None:
            chosen = chosen.but(timeout=timeout)
        before = () if after is _UNSET else after
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
        """Run a tool with named ``arguments``, such as the arguments of a model's tool call:
        ``call_tool(tools[call.name], call.arguments)``.

        The options, the result and the errors are the same as for `tool`. Raises `ConfigError` if
        ``arguments`` is not a mapping.
        """
        if not isinstance(arguments, Mapping):
            raise ConfigError(
                f"call_tool() takes a mapping of arguments by name, not {arguments!r}; write "
                "call_tool(tool, {'name': value})"
            )
        chosen = await self._resolve(tool, timeout)
        if timeout is not None:
            chosen = chosen.but(timeout=timeout)
        return await self._emitter.tool(chosen, (), arguments, after)

    async def _resolve(self, tool: Callable[..., Any] | Tool | str, timeout: float | None) -> Tool:
        """Return the tool; look it up if ``tool`` is a name. An invalid ``timeout`` is not rejected
        here but by the methods that use it.
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
        """List the tools that workers and tool servers offer now. Pass them to `llm` or `tool`.

        ``transports``, such as ``mqtt`` or ``mcp:github``, limit the list to these transports. If
        several tools have the same name, the name of the transport is put in front:
        ``github__search``. Raises `UnknownToolError` for an unknown transport, and
        `ToolUnavailableError` if one of ``transports`` cannot be reached. Without ``transports``,
        transports that cannot be reached are skipped.
        """
        return await self._emitter.tools(*transports)

    async def mcp(self, server: str, /, *others: str) -> list[Tool]:
        """List the tools of one or several MCP servers, as `tools` does. Pass the names that the
        servers have in the ``--mcp`` file.
        """
        return await self.tools(*(f"mcp:{name}" for name in (server, *others)))

    async def human(
        self,
        question: str | Reply,
        *,
        schema: Mapping[str, Any] | type | None = None,
        choices: Sequence[Any] | None = None,
        timeout: float | None = None,
        default: Any = _UNSET,
        after: Iterable[Reply] = (),
    ) -> Any:
        """Ask a human, and wait for the answer: text, one of ``choices``, or a value that fits
        ``schema``. If the question is a reply, its text is the question.

        ``schema`` is a JSON schema, or a type that pydantic supports, such as a model class. For a
        type, the answer is an instance of the type. If no answer has come after ``timeout``
        seconds, return ``default``, or raise `InterruptExpiredError` if there is no default.
        Without a timeout, wait without limit. Raises `ConfigError` for an invalid question,
        schema or timeout, or invalid choices, and `UsageError` if no human can be asked.
        """
        if not isinstance(question, str | ReadsAsText):
            raise ConfigError(f"the question of human() must be a text, got {question!r:.80}")
        form = answer_form(schema, choices)
        if timeout is not None and not (isinstance(timeout, Real) and 0 < timeout < math.inf):
            raise ConfigError(
                "timeout of human() must be a number greater than 0 seconds and finite, got "
                f"{timeout!r}; leave it out to wait without limit"
            )
        try:
            return await self._emitter.human(question, form, timeout, after)
        except InterruptExpiredError:
            if default is _UNSET:
                raise
            return default

    def event(
        self, topic: str, *, timeout: float | None = None, after: Iterable[Reply] = ()
    ) -> Events:
        """Wait for events on a topic.

        ``await ctx.event("plant/+/alarm")`` waits for the next event.
        ``async for event in ctx.event("plant/#")`` yields one event after the other. Events that
        arrive between two iterations wait for the next iteration; if too many events wait, the
        oldest are dropped (`Event.dropped`). ``topic`` is a topic filter in the syntax of the
        runtime's event source, such as MQTT. ``timeout`` is the maximum duration of each wait in
        seconds; a longer wait raises `InterruptExpiredError`. The first wait raises `ConfigError`
        for an invalid topic or a runtime without a source of events, and `ToolUnavailableError` if
        the source cannot be reached.
        """
        if not isinstance(topic, str):
            raise ConfigError(f"the topic of event() must be a text, got {topic!r:.80}")
        if timeout is not None and not isinstance(timeout, Real):
            raise ConfigError(f"timeout of event() must be a number of seconds, got {timeout!r}")
        return Events(topic, lambda feed: self._emitter.event(feed, timeout, after))

    async def sleep(self, seconds: float, *, after: Iterable[Reply] = ()) -> None:
        """Sleep for a number of seconds. A resumed program sleeps only for the remaining time.
        Raises `ConfigError` for a number that is negative or not finite.
        """
        if not (isinstance(seconds, Real) and 0 <= seconds < math.inf):
            raise ConfigError(
                f"sleep() takes a finite number of at least 0 seconds, got {seconds!r}"
            )
        await self._emitter.sleep(seconds, after)

    def now(self) -> float:
        """Return the time of day in seconds since 1970. A resumed program gets the recorded
        time.
        """
        return self._emitter.value("now", time.time)

    def random(self) -> float:
        """Return a random number from 0 up to 1. A resumed program gets the recorded number."""
        return self._emitter.value("random", random.random)

    def uuid(self) -> uuid.UUID:
        """Return a random UUID. A resumed program gets the recorded UUID."""
        return self._emitter.value("uuid", uuid.uuid4)

    def reward(self, value: float) -> None:
        """Add a reward: a number that rates what the program has done so far, for training. A batch
        with the option ``tokens`` writes the rewards next to the program's tokens, and a trainer
        gets them. In a run that does not record tokens, a
        reward only appears in the journal, if there is one.

        Raises `ConfigError` for any other value than a finite number.
        """
        number = finite_number(value)
        if number is None:
            raise ConfigError(f"reward() takes a finite number, got {value!r:.80}")
        self._emitter.reward(number)

    def patched(self, name: str) -> bool:
        """Return whether to run the new code of a change to the program. ``name`` is your name for
        the change.

        The result is False for a resumed program that had passed this line before the change was
        made. For such programs, keep the old code in the branch for False.
        """
        return self._emitter.patched(name)

    def checkpoint(self) -> Callable[[T], T]:
        """Return a function that saves the state of a long loop.

        Call `checkpoint` once before the loop, as in ``save = ctx.checkpoint()``, and call the
        function at the top of the loop, as in ``state = save(state)``. A resumed program skips the
        iterations before the last recorded state: its first call of the function returns this
        state. So the state must contain everything that the loop changes.

        The function raises `UsageError` if it is called at two places of the code, while another
        task of the program is open, or with a state that the journal cannot record.
        """
        return self._emitter.checkpoint()

    def spawn(
        self,
        function: Callable[Concatenate[Context, P], Coroutine[Any, Any, T]],
        /,
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> asyncio.Task[T]:
        """Start ``function(ctx, …)`` in a new task, and return the task without waiting for it. The
        DAG shows the calls and tools in the function's code under the function's name.
        """
        name = name_of(function)
        code = getattr(function, SPAWNED, function)

        async def run() -> T:
            with nullcontext() if hasattr(code, IS_NODE) else enter_node(name):
                result: T = await code(self, *args, **kwargs)
                return result

        work = self._emitter.spawned(name, [args, kwargs], run())
        return asyncio.create_task(work, name=f"{self.run_id}/{name}")


async def _by_default(
    emitter: Emitter, request: Mapping[str, Any], after: Iterable[Reply]
) -> Reply:
    """Make a call with the default length limit, and warn if this limit cut the answer."""
    reply = await emitter.call(request, after)
    _check_default_limit(reply)
    return reply


def finite_number(value: Any) -> float | None:
    """Return a number as a float; None for a value that is not a finite number. An array or a
    tensor with a single element is a number.
    """
    try:
        if callable(getattr(value, "item", None)):
            value = value.item()
        is_finite = isinstance(value, Real | Decimal) and math.isfinite(value)
        return float(value) if is_finite else None
    except (OverflowError, ValueError, RuntimeError):  # PyTorch: RuntimeError for several elements
        return None


def _check_default_limit(reply: Reply) -> None:
    """Warn, once in a process, if the default limit cut an answer."""
    if "length" in (reply.finish_reason, *(choice.finish_reason for choice in reply.choices)):
        _warn_of_default_limit()


@cache
def _warn_of_default_limit() -> None:
    _LOG.warning(
        "an answer was cut at the default limit of %d tokens (finish_reason 'length'); pass "
        "max_tokens=N to ctx.llm or ctx.step, or max_tokens=None to use the rest of the context",
        DEFAULT_MAX_TOKENS,
    )

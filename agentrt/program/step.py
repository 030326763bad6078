"""One step of an agent: a call to the model, and the tools that its reply calls.

By default, an idempotent tool starts as soon as its own arguments are complete. So the tool runs
while the rest of the reply is decoded (as in Fig. 7 of Pie, SOSP 2025).
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from agentrt.errors import ConfigError, UnknownToolError
from agentrt.interrupts import Tool, tool
from agentrt.program.results import Takes, ToolResult, messages_of
from agentrt.program.stream import ReplyStream
from agentrt.request import Message, Reply, ToolCall

RunTool = Callable[[Tool, Mapping[str, Any]], Coroutine[Any, Any, Any]]
Task = asyncio.Task[Any]


@dataclass(frozen=True, slots=True)
class Step:
    """A reply, and the results of its tool calls, in the order of the calls."""

    reply: Reply
    results: tuple[ToolResult, ...] = ()

    @property
    def messages(self) -> list[Message]:
        """The messages of the reply and of the results. Append them to the chat to continue it."""
        return [self.reply.message, *messages_of(self.results)]


def tools_by_name(tools: Iterable[Any]) -> dict[str, Tool]:
    """Return tools by the names that the model sees.

    Raises `ConfigError` for a `ToolSpec`, which cannot be run, and for two tools of the same name.
    """
    named: dict[str, Tool] = {}
    for candidate in tools:
        if not callable(candidate):
            raise ConfigError(
                f"step() runs its tools, but {candidate!r} is only a tool's description; pass the "
                "function or a Tool"
            )
        is_ready = isinstance(candidate, Tool) and candidate.spec is not None
        each = candidate if is_ready else tool(candidate)
        if each.name in named:
            raise ConfigError(f"two tools have the name {each.name!r}; rename one of them")
        named[each.name] = each
    return named


@dataclass(slots=True)
class Stepper:
    """A runner of steps: it reads a reply's stream and runs the tools that the reply calls. When a
    step ends, all tasks that it has started have ended.

    ``run`` runs a tool. ``takes`` returns the types of parts that the model supports.
    """

    tools: Mapping[str, Tool]
    run: RunTool
    takes: Callable[[], Awaitable[Takes]]
    eager: bool = True
    _texts: dict[int, str] = field(default_factory=dict)
    _names: dict[int, str] = field(default_factory=dict)
    _early: dict[int, tuple[ToolCall, Task]] = field(default_factory=dict)

    async def step(self, stream: ReplyStream) -> Step:
        """Run the step, and return the reply with the results of its tools. Raises the errors of
        the LLM call.
        """
        late: list[Task] = []
        try:
            async for delta in stream.deltas():
                for piece in delta.tool_calls if delta.choice == 0 else ():
                    self._saw(piece)
            calls = stream.reply.tool_calls
            late = [self._task_of(index, call) for index, call in enumerate(calls)]
            ended = await asyncio.gather(*late, return_exceptions=True)
            return Step(stream.reply, await self._shown(map(_result, calls, ended)))
        finally:
            left = [task for _, task in self._early.values()] + late
            for task in left:
                task.cancel()
            if left:
                await asyncio.wait(left)
            await stream.aclose()

    async def _shown(self, results: Iterable[ToolResult]) -> tuple[ToolResult, ...]:
        """Return ``results``. If any result has parts other than text, each returned result says
        which types of parts the model supports.
        """
        ordered = tuple(results)
        if not any(result.has_media for result in ordered):
            return ordered
        takes = await self.takes()
        return tuple(replace(result, takes=takes) for result in ordered)

    def _saw(self, piece: Mapping[str, Any]) -> None:
        """Add a piece of a tool call. With ``eager``, start the tool if it is idempotent and its
        arguments are complete.
        """
        index, function = piece.get("index", 0), piece.get("function") or {}
        self._names[index] = self._names.get(index, "") + (function.get("name") or "")
        self._texts[index] = self._texts.get(index, "") + (function.get("arguments") or "")
        known = self.tools.get(self._names[index])
        if not self.eager or index in self._early:
            return
        if known is None or not known.options.idempotent:
            return
        if (arguments := _complete(self._texts[index])) is not None:
            call = ToolCall(self._names[index], arguments)
            self._early[index] = call, asyncio.create_task(self.run(known, arguments))

    def _task_of(self, index: int, call: ToolCall) -> Task:
        """Return the task that runs a tool call of the complete reply: a task that was started
        early for the same name and arguments, and otherwise a new task.
        """
        # The reply leaves out invalid calls, so the index in the stream may be higher. Prefer the
        # same index, because several calls may have the same name and arguments.
        for place in sorted(self._early, key=lambda place: place != index):
            early, task = self._early[place]
            if (early.name, early.arguments) == (call.name, call.arguments):
                del self._early[place]
                return task
        return asyncio.create_task(self._run_late(call))

    async def _run_late(self, call: ToolCall) -> Any:
        if (known := self.tools.get(call.name)) is None:
            names = ", ".join(self.tools) or "none"
            raise UnknownToolError(
                f"unknown tool {call.name!r}; available: {names}", name=call.name
            )
        return await self.run(known, call.arguments)


def _complete(text: str) -> dict[str, Any] | None:
    """Return the arguments if ``text`` is a complete JSON object; else None. A complete object is
    the end of the arguments, because no text can follow it.
    """
    if not text.rstrip().endswith("}"):
        return None
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def _result(call: ToolCall, ended: Any) -> ToolResult:
    if isinstance(ended, Exception):
        return ToolResult(call, error=ended)
    if isinstance(ended, BaseException):
        raise ended
    return ToolResult(call, ended)

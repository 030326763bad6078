"""One step of an agent: a call to the model, and the tools that its reply asks for.

A tool that is idempotent starts when its own arguments are complete, while the model still
decodes (Pie, Fig. 7): its time then passes beside that of the rest of the reply.
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
    """A reply, and what its tool calls came to, in their order."""

    reply: Reply
    results: tuple[ToolResult, ...] = ()

    @property
    def messages(self) -> list[Message]:
        """The reply and the results, as the chat goes on."""
        return [self.reply.message, *messages_of(self.results)]


def tools_by_name(given: Iterable[Any]) -> dict[str, Tool]:
    """Tools by the names that the model knows.

    Raises `ConfigError` for a bare spec, and for two tools of one name.
    """
    found: dict[str, Tool] = {}
    for one in given:
        if not callable(one):
            raise ConfigError(f"step() runs its tools, and {one!r} is only the description of one")
        each = one if isinstance(one, Tool) and one.spec is not None else tool(one)
        if each.name in found:
            raise ConfigError(f"two tools are named {each.name!r}")
        found[each.name] = each
    return found


@dataclass(slots=True)
class Stepper:
    """Reads a reply's stream and runs its tools. Leaves no task behind.

    ``takes`` tells what the model takes beside text.
    """

    tools: Mapping[str, Tool]
    run: RunTool
    takes: Callable[[], Awaitable[Takes]]
    eager: bool = True
    _texts: dict[int, str] = field(default_factory=dict)
    _names: dict[int, str] = field(default_factory=dict)
    _early: dict[int, tuple[ToolCall, Task]] = field(default_factory=dict)

    async def step(self, stream: ReplyStream) -> Step:
        """The reply with its results. Raises what the call raises."""
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
        """The results with what the model takes of them, where that is not plain."""
        given = tuple(results)
        if not any(result.has_media for result in given):
            return given
        takes = await self.takes()
        return tuple(replace(result, takes=takes) for result in given)

    def _saw(self, piece: Mapping[str, Any]) -> None:
        """A piece of a tool call: start it, if it is complete and may run twice."""
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
        """What runs a call of the whole reply: what runs already, if it is the same call."""
        early = self._early.get(index)
        if early is not None and (early[0].name, early[0].arguments) == (call.name, call.arguments):
            return early[1]
        return asyncio.create_task(self._run_late(call))

    async def _run_late(self, call: ToolCall) -> Any:
        if (known := self.tools.get(call.name)) is None:
            names = ", ".join(self.tools)
            raise UnknownToolError(f"there is no tool {call.name!r} ({names})", name=call.name)
        return await self.run(known, call.arguments)


def _complete(text: str) -> dict[str, Any] | None:
    """The arguments, if ``text`` has all of them: after a whole object, nothing can follow."""
    if not text.rstrip().endswith("}"):
        return None
    try:
        value = json.loads(text)
    except ValueError:
        return None
    return value if isinstance(value, dict) else None


def _result(call: ToolCall, ended: Any) -> ToolResult:
    if isinstance(ended, Exception):
        return ToolResult(call, error=ended)
    if isinstance(ended, BaseException):
        raise ended
    return ToolResult(call, ended)

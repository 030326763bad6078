"""A reply while it grows."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Generator, Mapping
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any, Self

from agentrt.errors import UsageError
from agentrt.interrupts.events import Event, Feed
from agentrt.request import Reply

Pieces = Callable[[Callable[[Reply], None]], Any]
"""Makes the chunks of an answer, in OpenAI's form; it tells the whole reply at the end."""


@dataclass(frozen=True, slots=True)
class Delta:
    """A piece of a reply: of its text, its reasoning, or its tool calls.

    ``tool_calls`` are as in OpenAI's chunks: the first piece of each has its ``id`` and name, and
    ``arguments`` are JSON text, which all pieces together complete. ``choice`` counts from 0.
    """

    text: str = ""
    reasoning: str = ""
    tool_calls: tuple[Mapping[str, Any], ...] = ()
    choice: int = 0


class ReplyStream(AsyncIterator[str]):
    """Iterate over it for the answer's text as it grows, or over `deltas` for all that comes.

    `reply` is the whole reply, once it has ended. Closing it aborts the call.
    """

    def __init__(self, pieces: Pieces) -> None:
        self._reply: Reply | None = None
        self._deltas = self._read(pieces)

    @property
    def reply(self) -> Reply:
        """The whole reply. Raises `UsageError` before its end."""
        if self._reply is None:
            raise UsageError("a reply is whole at the end of its stream: read it to the end first")
        return self._reply

    def deltas(self) -> AsyncIterator[Delta]:
        """All pieces: text, reasoning and tool calls."""
        return self._deltas

    async def __anext__(self) -> str:
        while True:
            delta = await anext(self._deltas)
            if delta.text and delta.choice == 0:
                return delta.text

    async def aclose(self) -> None:
        """Stop here: the call is aborted."""
        await self._deltas.aclose()

    async def _read(self, pieces: Pieces) -> AsyncGenerator[Delta, None]:
        async with aclosing(pieces(self._ended)) as chunks:
            async for chunk in chunks:
                for choice in chunk.get("choices") or ():
                    if delta := _delta(choice):
                        yield delta

    def _ended(self, reply: Reply) -> None:
        self._reply = reply


def _delta(choice: Mapping[str, Any]) -> Delta | None:
    delta = choice.get("delta") or {}
    text = delta.get("content") or ""
    reasoning = delta.get("reasoning") or delta.get("reasoning_content") or ""
    calls = tuple(delta.get("tool_calls") or ())
    if not (text or reasoning or calls):
        return None
    return Delta(text, reasoning, calls, choice.get("index", 0))


class Events:
    """The events of a topic. Awaited, it gives the next one and is over.

    ``async for`` gives each in turn, and none is lost between two. It is subscribed until the
    program ends, or the block that ``async with`` begins.
    """

    def __init__(self, topic: str, wait: Callable[[Feed], Awaitable[Event]]) -> None:
        self._feed = Feed(topic)
        self._wait = wait

    def __await__(self) -> Generator[Any, None, Event]:
        return self._one().__await__()

    async def _one(self) -> Event:
        async with self:
            return await self._wait(self._feed)

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Event:
        return await self._wait(self._feed)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *error: object) -> None:
        await self._feed.close()

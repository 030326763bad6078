"""Streams of a program: a reply while it grows, and the events of a topic."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Generator, Mapping
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any, Self

from agentrt import tracking
from agentrt.errors import UsageError
from agentrt.interrupts.events import Event, Feed
from agentrt.request import Reply

Pieces = Callable[[Callable[[Reply], None]], Any]
"""A function that yields the chunks of an answer in OpenAI's form. Its argument is a function to
which it passes the complete reply at the end.
"""


@dataclass(frozen=True, slots=True)
class Delta:
    """A piece of a reply: of its text, its reasoning, or its tool calls.

    ``tool_calls`` have the form of OpenAI's chunks: the first piece of a tool call has the ``id``
    and the name, and the ``arguments`` of all pieces together are JSON text. ``choice`` is the
    index of the answer, from 0, if the call requested several answers.
    """

    text: str = ""
    reasoning: str = ""
    tool_calls: tuple[Mapping[str, Any], ...] = ()
    choice: int = 0


class ReplyStream(AsyncIterator[str]):
    """A reply while the model writes it. Iterate over the stream to get the text of the answer (of
    several answers, the first), or over `deltas` to get all pieces.

    After the end of the stream, `reply` is the complete reply. Closing the stream aborts the call;
    an ``async with`` block closes it at its end. Without such a block, a ``break`` closes the
    stream if no variable refers to it. A stream in a variable can be read on after a ``break``, and
    its call runs on until the stream is closed, the variable is gone or the program ends.
    """

    def __init__(self, pieces: Pieces, complete: Callable[[Reply], None] | None = None) -> None:
        """``pieces`` yields the chunks of the reply. ``complete`` is called with the complete
        reply.
        """
        self._outcome = _Outcome(complete)
        self._deltas = _read(pieces, self._outcome)

    @property
    def reply(self) -> Reply:
        """The complete reply. Raises `UsageError` before the end of the stream."""
        if self._outcome.reply is None:
            raise UsageError("the reply is not complete yet; read its stream to the end first")
        return self._outcome.reply

    def deltas(self) -> AsyncIterator[Delta]:
        """Return an iterator over all pieces: text, reasoning and tool calls."""
        return self._deltas

    async def __anext__(self) -> str:
        while True:
            delta = await anext(self._deltas)
            if delta.text and delta.choice == 0:
                return delta.text

    async def aclose(self) -> None:
        """Close the stream, which aborts the call."""
        await self._deltas.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.aclose()


class _Outcome:
    """The complete reply of a stream, or None before the end of the stream."""

    def __init__(self, complete: Callable[[Reply], None] | None) -> None:
        self.reply: Reply | None = None
        self._complete = complete

    def put(self, reply: Reply) -> None:
        self.reply = reply
        if self._complete is not None:
            self._complete(reply)


async def _read(pieces: Pieces, outcome: _Outcome) -> AsyncGenerator[Delta, None]:
    # The generator does not refer to its `ReplyStream`, and so not to itself. Python frees the two
    # as soon as the code has dropped them, and asyncio then closes the generator.
    async with aclosing(pieces(outcome.put)) as chunks:
        async for chunk in chunks:
            for choice in chunk.get("choices") or ():
                if delta := _delta(choice):
                    yield delta


tracking.add_stream(_read)


def _delta(choice: Mapping[str, Any]) -> Delta | None:
    delta = choice.get("delta") or {}
    text = delta.get("content") or ""
    reasoning = delta.get("reasoning") or delta.get("reasoning_content") or ""
    calls = tuple(delta.get("tool_calls") or ())
    if not (text or reasoning or calls):
        return None
    return Delta(text, reasoning, calls, choice.get("index", 0))


class Events:
    """The events of a topic. Awaiting this object returns the next event and ends the subscription.

    ``async for`` yields one event after the other. Events that arrive between two iterations wait
    for the next iteration; if too many events wait, the oldest are dropped (`Event.dropped`). The
    subscription ends with the program, or with the block of an ``async with``.
    """

    def __init__(self, topic: str, wait: Callable[[Feed], Awaitable[Event]]) -> None:
        self._feed = Feed(topic)
        self._wait = wait

    def __await__(self) -> Generator[Any, None, Event]:
        return self._next().__await__()

    async def _next(self) -> Event:
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

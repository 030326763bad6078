"""The output that a context generates: awaited as a whole, or read while it is generated."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Callable, Generator
from contextlib import aclosing
from typing import Any

from agentrt.contexts.emitter import Piece
from agentrt.contexts.results import Completion
from agentrt.errors import UsageError

Run = Callable[[bool], AsyncGenerator[Piece, None]]
"""A function that starts the call and returns the pieces of its output. It is called once, and its
argument is True if the pieces are to be streamed.
"""


class Generation(AsyncIterator[str]):
    """The output of a call. Await this object to get the `Completion`, or iterate over it to get
    the text in pieces.

    The call begins when this object is awaited or iterated over. Closing it, or cancelling the task
    that reads it, aborts the call. Then the context has only the tokens of the pieces that were
    read.
    """

    def __init__(self, run: Run) -> None:
        self._run = run
        self._pieces: AsyncGenerator[Piece, None] | None = None
        self._completion: Completion | None = None

    @property
    def completion(self) -> Completion:
        """The whole output. Raises `UsageError` before the output has ended."""
        if self._completion is None:
            raise UsageError("the generation has not ended; await it, or read it to its end first")
        return self._completion

    def __await__(self) -> Generator[Any, None, Completion]:
        return self._whole().__await__()

    async def __anext__(self) -> str:
        if self._pieces is None:
            self._pieces = self._run(True)
        async for piece in self._pieces:
            self._read(piece)
            if piece.text:
                return piece.text
        raise StopAsyncIteration

    async def aclose(self) -> None:
        """Abort the call."""
        if self._pieces is not None:
            await self._pieces.aclose()

    async def _whole(self) -> Completion:
        if self._pieces is None:
            self._pieces = self._run(False)
        async with aclosing(self._pieces) as pieces:
            async for piece in pieces:
                self._read(piece)
        return self.completion

    def _read(self, piece: Piece) -> None:
        if (reply := piece.reply) is not None:
            self._completion = Completion(
                reply.text,
                reply.token_ids,
                reply.finish_reason,
                reply.token_logprobs,
                reply.report,
                reply.node,
            )

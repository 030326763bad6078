"""What a context generates: awaited for the whole, or iterated over while it grows."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Callable, Generator
from contextlib import aclosing
from typing import Any

from agentrt.contexts.emitter import Piece
from agentrt.contexts.results import Completion
from agentrt.errors import UsageError

Run = Callable[[bool], AsyncGenerator[Piece, None]]
"""Makes the pieces of the output, as it grows or all at once. It is asked once."""


class Generation(AsyncIterator[str]):
    """Await it for the `Completion`, or iterate over its text as it grows.

    Nothing runs before. Closing it, or cancelling the task that reads it, aborts the call; the
    context then has the tokens of the pieces that were read, and no others.
    """

    def __init__(self, run: Run) -> None:
        self._run = run
        self._pieces: AsyncGenerator[Piece, None] | None = None
        self._completion: Completion | None = None

    @property
    def completion(self) -> Completion:
        """The whole. Raises `UsageError` before its end."""
        if self._completion is None:
            raise UsageError("a generation is whole at its end: await it, or read it to the end")
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
        """Stop here: the call is aborted."""
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

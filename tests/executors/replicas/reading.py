"""A caller of front ends in tests, and functions that read the answers."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from agentrt.executors.base import Chunk, Executor
from agentrt.executors.chat_api import Caller, Frontend, Request
from agentrt.executors.replies import StreamedAnswer
from agentrt.request import Call, CallSpec, Identity


@dataclass
class Calls(Caller):
    """A caller whose calls have different ids."""

    executor: Executor
    number: int = 0

    def chunks(self, spec: CallSpec, *, stream: bool) -> AsyncGenerator[Chunk, None]:
        self.number += 1
        call = Call(Identity(f"p/{self.number}", "p", "t"), spec)
        return self.executor.generate(call, stream=stream)

    @contextlib.contextmanager
    def siblings(self, count: int) -> Iterator[Sequence[Calls]]:
        yield [self] * count


async def reading(
    frontend: Frontend, executor: Executor, request: Request
) -> AsyncGenerator[dict[str, Any], None]:
    """Yield the pieces of a stream, without the fields that are drawn anew for each request."""
    async with contextlib.aclosing(frontend.chat_stream(request, Calls(executor))) as pieces:
        async for piece in pieces:
            yield without_names(piece)


async def streamed(
    frontend: Frontend, executor: Executor, request: Request
) -> list[dict[str, Any]]:
    """Return all pieces of a stream, as `reading` yields them."""
    return [piece async for piece in reading(frontend, executor, request)]


def without_names(piece: dict[str, Any]) -> dict[str, Any]:
    """Return a piece without the fields that are drawn anew for each request."""
    piece = {name: value for name, value in piece.items() if name not in ("id", "created")}
    for choice in piece["choices"]:
        message = choice.get("delta") or choice.get("message") or {}
        for call in message.get("tool_calls") or ():
            assert call.pop("id", "chatcmpl-tool-").startswith("chatcmpl-tool-")
    return piece


def whole(pieces: Iterable[dict[str, Any]]) -> dict[str, Any]:
    """Return the answer of a stream, with all its log probabilities and token ids."""
    answer = StreamedAnswer()
    entries: list[Any] = []
    tokens: list[int] = []
    for piece in pieces:
        answer.add(piece)
        for choice in piece["choices"]:
            entries += (choice.get("logprobs") or {}).get("content") or ()
            tokens += choice.get("token_ids") or ()
    return {**answer.answer(), "entries": entries, "token_ids": tokens}

"""Tools, schemas and ways to ask that the tests of the chat model share."""

from __future__ import annotations

from typing import Any, TypedDict

from langchain_core.messages import AIMessageChunk
from langchain_core.tools import tool
from pydantic import BaseModel

from tests.doubles.scripted import ScriptedExecutor

JOKE = {"type": "object", "properties": {"setup": {"type": "string"}}, "required": ["setup"]}


@tool
def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


@tool
def ping() -> str:
    """Say pong."""
    return "pong"


class Joke(BaseModel):
    """A joke."""

    setup: str


class JokeDict(TypedDict):
    """A joke."""

    setup: str


def asked(executor: ScriptedExecutor) -> dict[str, Any]:
    """The request that the engine was given last."""
    return dict(executor.calls[-1].spec.request or {})


async def streamed(chat: Any, ask: str = "hello", /, **options: Any) -> list[AIMessageChunk]:
    return [chunk async for chunk in chat.astream(ask, **options)]


def whole(chunks: list[AIMessageChunk]) -> AIMessageChunk:
    return sum(chunks[1:], chunks[0])

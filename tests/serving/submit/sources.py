"""Programs to send, and how to send them."""

from __future__ import annotations

from typing import Any

import psutil

from tests.serving.local import LocalServer

CALLS = "async def main(ctx):\n    return (await ctx.llm('go', max_tokens=8)).text\n"
SPINS = "async def main(ctx):\n    while True:\n        pass\n"


async def send(local: LocalServer, source: str, **more: Any) -> Any:
    """A program's run, as its end is told."""
    return await local.post("/v1/programs", {"source": source, **more})


def processes() -> list[int]:
    return [one.pid for one in psutil.Process().children() if one.name() == "monty"]

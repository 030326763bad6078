"""What the workers of the tests offer. Each run of a tool is a line in a file."""

import asyncio
import os
from pathlib import Path

from agentrt import Progress, ToolContext, tool

FOLDER = Path(os.environ["FOLDER"])


def note(what: str) -> None:
    with (FOLDER / "runs").open("a") as file:  # one write: lines of two processes do not mix
        file.write(f"{what}\n")


async def gate(name: str) -> None:
    while not (FOLDER / name).exists():
        await asyncio.sleep(0.01)


@tool
async def once(number: int, until: str) -> int:
    note(f"once {number}")
    await gate(until)
    return number


@tool(idempotent=True)
async def again(number: int, until: str) -> int:
    note(f"again {number} {os.getpid()}")
    await gate(until)
    return number


@tool
async def cancelled(context: ToolContext) -> None:
    note("waits")
    context.progress(Progress(1, 2, "half way"))
    try:
        await asyncio.Event().wait()
    finally:
        note("cancelled")


@tool
async def asks(context: ToolContext) -> object:
    return await context.ask("Go?")


@tool(isolation="process", timeout=0.5)
def spins() -> None:
    while True:
        pass

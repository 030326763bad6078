"""Tools that run in worker processes, and mostly should not be run anywhere else."""

from __future__ import annotations

import asyncio
import ctypes
import os
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from threading import Lock
from typing import Any

from agentrt import Progress, ToolContext, tool

CRASH: Any = ctypes.string_at
SLEEP: Any = ctypes.PyDLL(None).usleep


@dataclass
class Hole:
    mm: int


class OddError(Exception):
    """Cannot be made again from what it was made of."""

    def __init__(self, one: int, two: int) -> None:
        super().__init__(f"{one} and {two}")


@tool(isolation="process")
def pid() -> int:
    return os.getpid()


@tool(isolation="process")
async def double(hole: Hole) -> Hole:
    await asyncio.sleep(0)
    return Hole(2 * hole.mm)


@tool(isolation="process")
def misbehave(how: str, context: ToolContext) -> Any:
    context.progress(Progress(1, message=how))
    ways: dict[str, Callable[[], Any]] = {
        "loop": endless,
        "sleep": lambda: SLEEP(2_000_000_000),  # with the GIL
        "exit": lambda: os._exit(3),
        "segfault": lambda: CRASH(0),
        "leave": lambda: sys.exit("enough"),
        "lock": Lock,
        "much": lambda: bytes(9 * 2**20),
    }
    return ways[how]()


def endless() -> None:
    while True:
        pass


@tool(isolation="process")
def fail(how: str) -> None:
    if how == "own":
        raise KeyError("no such hole")
    raise OddError(1, 2)


@tool(isolation="process")
def telling(n: int, context: ToolContext) -> Any:
    for i in range(n):
        context.progress(Progress(i + 1, n, "drilling"))
    return asyncio.run(context.ask("How deep?", {"type": "integer"}))


@tool(isolation="process")
async def asking_twice(context: ToolContext) -> list[Any]:
    async def impatient() -> str:
        try:
            return str(await asyncio.wait_for(context.ask("first?"), 0.01))
        except TimeoutError:
            return "nobody"

    first = await impatient()
    return [first, *await asyncio.gather(context.ask("a?"), context.ask("b?"))]


@tool(isolation="process")
def with_child(context: ToolContext) -> None:
    child = subprocess.Popen(["sleep", "1000"])
    context.progress(Progress(child.pid))
    time.sleep(1000)


@tool(isolation="process")
def taking(data: Any) -> int:
    return len(data)


@tool(isolation="process")
def imported() -> list[str]:
    return [name for name in ("torch", "vllm", "ray", "langchain_core") if name in sys.modules]

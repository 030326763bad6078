"""A server for tests that kill its process: a native program, and a journal in its database."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

from agentrt import Context, Runtime, program, tool
from agentrt.executors.base import Chunk
from agentrt.journal import Journal
from agentrt.journal.postgres import PostgresStore
from agentrt.journal.store import SQLiteStore, Store
from agentrt.request import Call
from agentrt.serving.langgraph.database.connections import TIMEOUTS, Address
from agentrt.serving.programs.api import api as programs
from agentrt.serving.questions.api import api as questions
from agentrt.serving.server import ServedProgram, Server
from tests.journal import killing as journaled
from tests.serving.alone import serve_alone

_folder = Path()


def happened(what: str) -> None:
    """Something happens, which a file has then; where ``dies`` says so, the process ends."""
    path, dies = _folder / "happened", _folder / "dies"
    with path.open("a") as out:
        out.write(f"{what}\n")
    # A tool's thread may have written another one meanwhile.
    if dies.exists() and len(path.read_text().splitlines()) >= int(dies.read_text()):
        os.kill(os.getpid(), signal.SIGKILL)


class Engine(journaled.Engine):
    """Writes down what it is asked."""

    def __init__(self) -> None:
        super().__init__(journaled.World())

    async def generate(self, call: Call, *, stream: bool) -> AsyncGenerator[Chunk, None]:
        happened(f"call {journaled.asked_of(call)}")
        async for chunk in super().generate(call, stream=stream):
            yield chunk


@tool(idempotent=True)
def look(item: str) -> str:
    happened(f"tool {item}")
    return item.upper()


async def branch(ctx: Context, name: str) -> str:
    reply = await ctx.llm(f"branch {name}")
    return f"{reply.text} {await ctx.tool(look, item=name)}"


async def helper(ctx: Context, text: str) -> str:
    return str(await ctx.llm(f"help {text}"))


async def story(ctx: Context, text: str) -> str:
    context = await ctx.context(text)
    await context.generate(3)
    await context.save("story")
    fork = (await ctx.open("story")).fork()
    await fork.generate(3)
    return await fork.text()


@program
async def work(ctx: Context, text: str) -> list[Any]:
    helping = ctx.spawn(helper, text)
    branches = (branch(ctx, name) for name in "abc")
    found = await asyncio.gather(*branches, story(ctx, text))
    answer = await ctx.human("go on?")
    return [*found, answer, await helping, str(await ctx.llm("last"))]


def store_of(database: str) -> Store:
    address = Address.parse(database)
    if address.file is not None:
        return SQLiteStore(address.file)
    return PostgresStore(address.url, str(address), TIMEOUTS)


async def main(database: str, port: int) -> None:
    async with (
        await Journal.open(lambda: store_of(database)) as journal,
        Runtime(Engine(), ask_human=None, journal=journal) as runtime,
    ):
        server = Server(runtime, ("scripted",), {"work": ServedProgram(work, "durable.py")})
        await serve_alone(server, [programs, questions], port)


def serve(database: str, port: int, folder: Path) -> None:
    """Serve until a signal comes."""
    global _folder
    _folder = folder
    asyncio.run(main(database, port))

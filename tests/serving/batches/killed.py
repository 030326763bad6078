"""A server with batches for tests that kill it: a program, and a front end without vLLM."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from functools import partial
from pathlib import Path
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.types import Receive, Scope, Send

from agentrt import Context, Runtime, program
from agentrt.journal import Journal
from agentrt.journal.store import SQLiteStore
from agentrt.request import Call
from agentrt.serving.batches.api import api as batches
from agentrt.serving.programs.api import api as programs
from agentrt.serving.server import ServedProgram, Server
from agentrt.serving.tenants import Limits, Tenants
from tests.doubles.scripted import ScriptedExecutor
from tests.serving.alone import serve_alone

CHATS = "/v1/chat/completions"
LIVE = 8
"""Programs of batches that are live at once: half of those that a tenant may have."""
CALLS = 16
"""Requests of the model that are under way at once."""
_folder = Path()


def happened(event: str) -> None:
    """Write an event into a file. At the line that the file ``dies`` names, the process ends."""
    path, dies = _folder / "happened", _folder / "dies"
    with path.open("a") as out:
        out.write(f"{event}\n")
    if dies.exists() and len(path.read_text().splitlines()) >= int(dies.read_text()):
        os.kill(os.getpid(), signal.SIGKILL)


@program
async def ask(ctx: Context, question: str) -> str:
    first = await ctx.llm(f"first {question}")
    second = await ctx.llm(f"second {question}")
    return f"{first.text}; {second.text}"


def say(call: Call) -> str:
    assert call.spec.messages
    text = str(call.spec.messages[-1]["content"])
    happened(text)
    return f"said {text}"


class Front:
    """Answers chats with what they ask."""

    paths = frozenset({CHATS})

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        body = json.loads(await Request(scope, receive).body())
        text = body["messages"][-1]["content"]
        await asyncio.sleep(0)
        happened(text)
        await asyncio.sleep(0)
        message = {"role": "assistant", "content": f"said {text}"}
        await JSONResponse({"choices": [{"message": message}]})(scope, receive, send)


async def main(database: str, port: int) -> None:
    async with (
        await Journal.open(partial(SQLiteStore, _folder / "journal.db")) as journal,
        Runtime(ScriptedExecutor(say), ask_human=None, journal=journal) as runtime,
    ):
        served = {"ask": ServedProgram(ask, "killed.py")}
        tenants = Tenants(asyncio.get_running_loop().time, Limits(programs=2 * LIVE))
        server = Server(runtime, ("scripted",), served, database, tenants=tenants)
        front: Any = Front()
        await serve_alone(server, [programs, batches], port, front)


def serve(database: str, port: int, folder: Path) -> None:
    """Serve until a signal comes."""
    global _folder
    _folder = folder
    asyncio.run(main(database, port))

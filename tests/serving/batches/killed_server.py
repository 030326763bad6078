"""A server with batches that kills itself: it serves a program, and chats without vLLM."""

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
"""Maximum number of live programs of batches: half of the limit of the tenant."""
CALLS = 16
"""Maximum number of chats of batches in flight: the server's default for its engine."""
_folder = Path()
_events: int | None = None


def record_event(event: str) -> None:
    """Append an event to the file ``events``, and kill this process if the file then has at least
    as many lines as the number in the file ``kill_at``.
    """
    global _events
    path, kill_at = _folder / "events", _folder / "kill_at"
    if _events is None:
        _events = len(path.read_text().splitlines())
    with path.open("a") as out:
        out.write(f"{event}\n")
    _events += 1
    if kill_at.exists() and _events >= int(kill_at.read_text()):
        os.kill(os.getpid(), signal.SIGKILL)


@program
async def ask(ctx: Context, question: str) -> str:
    first = await ctx.llm(f"first {question}")
    second = await ctx.llm(f"second {question}")
    return f"{first.text}; {second.text}"


def answer(call: Call) -> str:
    assert call.spec.messages
    text = str(call.spec.messages[-1]["content"])
    record_event(text)
    return f"said {text}"


class Front:
    """A front end that answers each chat with the text of its last message."""

    paths = frozenset({CHATS})

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        body = json.loads(await Request(scope, receive).body())
        text = body["messages"][-1]["content"]
        await asyncio.sleep(0)
        record_event(text)
        await asyncio.sleep(0)
        message = {"role": "assistant", "content": f"said {text}"}
        await JSONResponse({"choices": [{"message": message}]})(scope, receive, send)


async def main(database: str, port: int) -> None:
    async with (
        await Journal.open(partial(SQLiteStore, _folder / "journal.db")) as journal,
        Runtime(ScriptedExecutor(answer), ask_human=None, journal=journal) as runtime,
    ):
        served = {"ask": ServedProgram(ask, "killed_server.py")}
        tenants = Tenants(asyncio.get_running_loop().time, Limits(programs=2 * LIVE))
        server = Server(runtime, ("scripted",), served, database, tenants=tenants)
        front: Any = Front()
        await serve_alone(server, [programs, batches], port, front)


def serve(database: str, port: int, folder: Path) -> None:
    """Serve until the process is stopped or killed."""
    global _folder
    _folder = folder
    asyncio.run(main(database, port))

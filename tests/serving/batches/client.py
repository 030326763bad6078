"""A server with files and batches for tests, and OpenAI's official client for it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from openai import AsyncOpenAI
from openai.types import Batch

from agentrt.serving.batches.api import api as batches
from agentrt.serving.programs.api import api as programs
from tests.serving.local import MODEL, WAIT_S, LocalServer, open_server

CHATS = "/v1/chat/completions"
ENDED = ("completed", "failed", "expired", "cancelled")


@dataclass
class BatchServer:
    """A server with batches. ``clients`` returns the client for an API key."""

    local: LocalServer
    clients: Callable[[str], AsyncOpenAI]

    @property
    def client(self) -> AsyncOpenAI:
        """The client for a server without keys."""
        return self.clients("none")

    async def batch(
        self, *lines: Any, endpoint: str = CHATS, key: str = "none", **options: Any
    ) -> Batch:
        """Upload the lines as an input file, and create a batch from it."""
        client = self.clients(key)
        content = b"".join(_as_line(line) for line in lines)
        file = await client.files.create(file=("in.jsonl", content), purpose="batch")
        fields = {"completion_window": "24h", **options}
        create: Any = client.batches.create
        batch: Batch = await create(input_file_id=file.id, endpoint=endpoint, **fields)
        return batch

    async def until(self, batch: Batch, *statuses: str, key: str = "none") -> Batch:
        """Wait until a batch has one of these statuses, or has ended if none is named."""
        async with asyncio.timeout(WAIT_S):
            while batch.status not in (statuses or ENDED):
                await asyncio.sleep(0.02)
                batch = await self.clients(key).batches.retrieve(batch.id)
        return batch

    async def lines(self, file_id: str | None, key: str = "none") -> list[Any]:
        """Return the lines of an output or error file, in the order of the requests."""
        if file_id is None:
            return []
        content = (await self.clients(key).files.content(file_id)).text
        lines = [json.loads(line) for line in content.splitlines()]
        return sorted(lines, key=lambda line: int(line["id"].rpartition("_")[2]))


def _as_line(line: Any) -> bytes:
    return line if isinstance(line, bytes) else json.dumps(line).encode() + b"\n"


def request(name: str, text: str = "hello", url: str = CHATS, **body: Any) -> Mapping[str, Any]:
    """Return an input line: a chat request, or a request with the fields ``body``."""
    chat = {"model": MODEL, "messages": [{"role": "user", "content": text}]}
    return {"custom_id": name, "method": "POST", "url": url, "body": body or chat}


def database_of(folder: Path) -> str:
    """Return the URL of the database of servers in ``folder``. Tests replace this function."""
    return f"sqlite:{folder / 'a.db'}"


@asynccontextmanager
async def serve_batches(folder: Path, *args: Any, **options: Any) -> AsyncIterator[BatchServer]:
    """Run a server with batches in the database of ``folder``."""
    settings = {"database": database_of(folder), "apis": (programs, batches), **options}
    async with open_server(*args, **settings) as local:
        clients: dict[str, AsyncOpenAI] = {}

        def client_of(key: str) -> AsyncOpenAI:
            if key not in clients:
                url = f"{local.url}/v1"
                clients[key] = AsyncOpenAI(base_url=url, api_key=key, max_retries=0)
            return clients[key]

        try:
            yield BatchServer(local, client_of)
        finally:
            for client in clients.values():
                await client.close()

"""Calls a URL at a run's end: `webhook` of a run.

What is to be sent is written to the database in the transaction of the run's end: after a kill the
next server sends it. A URL may thus be called twice; its ``run_id`` is the same.
"""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from http.cookiejar import CookieJar, DefaultCookiePolicy
from typing import Any

import httpx
import sqlalchemy as sa
from tenacity import (
    AsyncRetrying,
    retry_if_exception_type,
    stop_after_attempt,
    wait_exponential_jitter,
)

from agentrt import tracking
from agentrt.serving.langgraph.database.connections import Database
from agentrt.serving.langgraph.database.runs import RunRecord, run_json
from agentrt.serving.langgraph.database.tables import runs, webhooks
from agentrt.serving.langgraph.responses import encode, timestamp
from agentrt.serving.server import Server
from agentrt.serving.webhook_rules import WebhookRules, host_of, port_of

TRIES = 5
TIMEOUT_S = 10.0
LONGEST_REST_S = 30.0
MOST = 1000
"""How many are called at once; the others wait in the database."""
LOOK_S = 30.0
"""How often those that wait are looked for."""
_AGAIN = (408, 425, 429)

_log = logging.getLogger(__name__)


class NotTakenError(Exception):
    """The other side did not take it, and may later."""


class Webhooks:
    """Calls the webhooks of runs that have ended."""

    def __init__(self, server: Server, database: Database, client: httpx.AsyncClient) -> None:
        self._server = server
        self._rules: WebhookRules = server.webhooks
        self._database = database
        self._client = client
        self._sleep: Callable[[float], Awaitable[None]] = asyncio.sleep
        self._tasks: dict[str, asyncio.Task[None]] = {}

    def check(self, url: str | None) -> None:
        """Raise `ValueError` for a URL that may not be called."""
        if url is not None:
            self._rules.read(url)

    def note(
        self, record: RunRecord, began: float, values: Any, fault: Mapping[str, str] | None
    ) -> list[sa.Insert]:
        """What is stored with the run's end, if it has a webhook."""
        if not record.kwargs.get("webhook"):
            return []
        body = {"values": values, "run_started_at": timestamp(began)}
        body |= {} if fault is None else {"error": fault}
        row = {"run_id": record.run_id, "tenant": record.tenant, "url": record.kwargs["webhook"]}
        return [sa.insert(webhooks).values(**row, body=encode(body).decode())]

    async def look(self) -> None:
        """Begin to send what waits in the database, as far as there is room."""
        # Twice as many, since some are being sent now.
        for row in await self._database.rows(sa.select(webhooks.c.run_id).limit(2 * MOST)):
            self.begin(row.run_id)

    def begin(self, run_id: str) -> None:
        """Send a run's end, unless that is under way or there is no room."""
        if run_id in self._tasks or len(self._tasks) >= MOST:
            return
        with tracking.outside():
            task = asyncio.create_task(self._send(run_id), name=f"agentrt/webhook of {run_id}")
        self._tasks[run_id] = task
        self._server.under_way.add(task)
        task.add_done_callback(lambda done: self._ended(run_id, done))

    def _ended(self, run_id: str, task: asyncio.Task[None]) -> None:
        del self._tasks[run_id]
        self._server.under_way.discard(task)
        if not task.cancelled() and isinstance(error := task.exception(), Exception):
            self._server.background.failed("webhooks", error)  # `look` finds it again

    async def _send(self, run_id: str) -> None:
        found = sa.select(webhooks).where(webhooks.c.run_id == run_id)
        row = await self._database.first(found)
        run = await self._database.first(sa.select(runs).where(runs.c.run_id == run_id))
        if row is not None and run is not None:
            one, own = run_json(run), json.loads(row.body)
            times = {"run_ended_at": one["updated_at"], "webhook_sent_at": timestamp(time.time())}
            await self._try(row.url, run_id, encode({**one, **own, **times}))
        await self._database.write(sa.delete(webhooks).where(webhooks.c.run_id == run_id))

    async def _try(self, url: str, run_id: str, body: bytes) -> None:
        tries = AsyncRetrying(
            stop=stop_after_attempt(TRIES),
            wait=wait_exponential_jitter(initial=1, max=LONGEST_REST_S),
            retry=retry_if_exception_type((NotTakenError, httpx.TransportError, OSError)),
            sleep=self._sleep,
            reraise=True,
        )
        try:
            await tries(self.post, url, body)
        except (NotTakenError, httpx.HTTPError, OSError, ValueError) as error:
            _log.warning(
                "run %s: its webhook was not called: %s", run_id, str(error) or repr(error)
            )

    async def post(self, url: str, body: bytes) -> None:
        """Post once. The address that was checked is the one that is called, whatever the host's
        name means a moment later; nobody is followed elsewhere, and no answer is read.
        """
        target = self._rules.read(url)
        host = host_of(target)
        addresses = await resolve(host, port_of(target))
        for one in addresses:
            self._rules.check_address(host, one)
        request = self._client.build_request(
            "POST",
            target.copy_with(host=addresses[0]),
            content=body,
            headers={
                **self._rules.headers,
                "Host": target.netloc.decode(),
                "Content-Type": "application/json",
            },
            extensions={"sni_hostname": host},
        )
        async with asyncio.timeout(2 * TIMEOUT_S):
            answer = await self._client.send(request, stream=True)
            await answer.aclose()
        if answer.status_code >= 500 or answer.status_code in _AGAIN:
            raise NotTakenError(f"{host} answered {answer.status_code}")
        if not answer.is_success:
            raise ValueError(f"{host} answered {answer.status_code}")

    async def close(self) -> None:
        """Leave what is not sent to the next server."""
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)


async def resolve(host: str, port: int) -> list[str]:
    """The addresses of a host. Raises `OSError`."""
    found = await asyncio.get_running_loop().getaddrinfo(host, port, type=1)
    return [str(address[0]) for *_, address in found]


def new_client(transport: httpx.AsyncBaseTransport | None = None) -> httpx.AsyncClient:
    """A client that keeps nothing between requests. A connection, too, is for one: the pool would
    lend it to another host of that address.
    """
    unshared = httpx.Limits(max_connections=None, max_keepalive_connections=0)
    nothing = CookieJar(DefaultCookiePolicy(allowed_domains=()))
    return httpx.AsyncClient(
        timeout=TIMEOUT_S, limits=unshared, trust_env=False, cookies=nothing, transport=transport
    )


@asynccontextmanager
async def open_webhooks(server: Server, database: Database) -> AsyncIterator[Webhooks]:
    """Call webhooks until the block ends."""
    async with new_client() as client:
        hooks = Webhooks(server, database, client)
        async with server.background.doing("webhooks", hooks.look, LOOK_S):
            try:
                yield hooks
            finally:
                await hooks.close()

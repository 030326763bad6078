"""Calls the ``webhook`` URL of a run when the run has ended, unless a client cancelled the run.

The body to send is stored in the same transaction as the run's end, so that the next server sends
the body if this server is killed. A URL may therefore be called twice, with the same ``run_id``.
"""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager, suppress
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
from agentrt.errors import ConfigError
from agentrt.proxies import certificates
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
"""Maximum number of webhooks that are called at the same time; the others wait in the database."""
LOOK_S = 30.0
"""Seconds between searches for webhooks that wait in the database."""
_AGAIN = (408, 425, 429)

_log = logging.getLogger(__name__)


class NotTakenError(Exception):
    """The receiver did not accept the call, but may accept a later call."""


class Webhooks:
    """Calls the webhooks of runs that have ended."""

    def __init__(self, server: Server, database: Database) -> None:
        self._server = server
        self._rules: WebhookRules = server.webhooks
        self._database = database
        self._clients: dict[str, httpx.AsyncClient] = {}
        self._sleep: Callable[[float], Awaitable[None]] = asyncio.sleep
        self._tasks: dict[str, asyncio.Task[None]] = {}

    def check(self, url: str | None) -> None:
        """Raise `ValueError` for a URL that the rules for webhooks do not allow."""
        if url is not None:
            self._rules.read(url)

    def note(
        self, record: RunRecord, began: float, values: Any, fault: Mapping[str, str] | None
    ) -> list[sa.Insert]:
        """Return a list with the statement that stores the webhook's body with the run's end; an
        empty list without a webhook. ``began`` is when the run began, in seconds since 1970.
        """
        if not record.kwargs.get("webhook"):
            return []
        body = {"values": values, "run_started_at": timestamp(began)}
        body |= {} if fault is None else {"error": fault}
        row = {"run_id": record.run_id, "tenant": record.tenant, "url": record.kwargs["webhook"]}
        return [sa.insert(webhooks).values(**row, body=encode(body).decode())]

    async def look(self) -> None:
        """Start to call the webhooks that wait in the database, up to `MOST` at the same time."""
        # Read twice as many rows, because up to half of them are being sent now.
        for row in await self._database.rows(sa.select(webhooks.c.run_id).limit(2 * MOST)):
            self.begin(row.run_id)

    def begin(self, run_id: str) -> None:
        """Start to call a run's webhook, unless this call, or `MOST` other calls, are under way."""
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
            self._server.background.failed("webhooks", error)  # `look` tries the call again

    async def _send(self, run_id: str) -> None:
        row = await self._database.first(sa.select(webhooks).where(webhooks.c.run_id == run_id))
        run = await self._database.first(sa.select(runs).where(runs.c.run_id == run_id))
        if row is not None and run is not None:
            fields, stored = run_json(run), json.loads(row.body)
            ended_at, sent_at = fields["updated_at"], timestamp(time.time())
            times = {"run_ended_at": ended_at, "webhook_sent_at": sent_at}
            await self._try(row.url, run_id, encode({**fields, **stored, **times}))
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
        except (NotTakenError, httpx.HTTPError, OSError, ValueError, ConfigError) as error:
            _log.warning(
                "run %s: the call of its webhook failed: %s", run_id, str(error) or repr(error)
            )

    async def post(self, url: str, body: bytes) -> None:
        """Post ``body`` to ``url`` once.

        The request goes to an address that was checked, even if the host's name is resolved
        differently a moment later: to the first of the host's addresses that accepts a connection.
        For example, the first address of ``localhost`` is often ::1, and the second 127.0.0.1.
        Redirects are not followed, and the response's body is not read.

        Raises `NotTakenError`, `OSError` or httpx's `TransportError` if another try may succeed,
        `ValueError` if no other try can, and `ConfigError` if the certificates with which servers
        are verified cannot be read.
        """
        target = self._rules.read(url)
        host = host_of(target)
        addresses = await resolve(host, port_of(target))
        for address in addresses:
            self._rules.check_address(host, address)
        async with asyncio.timeout(2 * TIMEOUT_S):
            for address in addresses[:-1]:
                with suppress(httpx.ConnectError, httpx.ConnectTimeout):
                    answer = await self._sent(target, address, body)
                    break
            else:
                answer = await self._sent(target, addresses[-1], body)
        if answer.status_code >= 500 or answer.status_code in _AGAIN:
            raise NotTakenError(f"{host} answered {answer.status_code}")
        if not answer.is_success:
            raise ValueError(f"{host} answered {answer.status_code}")

    async def _sent(self, target: httpx.URL, address: str, body: bytes) -> httpx.Response:
        """Post ``body`` to ``target`` at this address of the host, and return the response without
        its body.
        """
        client = self._client_for(target)
        headers = httpx.Headers(self._rules.headers)
        headers.update({"Host": target.netloc.decode(), "Content-Type": "application/json"})
        request = client.build_request(
            "POST",
            target.copy_with(host=address),
            content=body,
            headers=headers,
            extensions={"sni_hostname": host_of(target)},
        )
        answer = await client.send(request, stream=True)
        await answer.aclose()
        return answer

    def _client_for(self, url: httpx.URL) -> httpx.AsyncClient:
        """Return the client for all URLs with this scheme.

        It is made at its first use, so that certificates that cannot be read do no harm to a server
        that calls no webhook over HTTPS.
        """
        if url.scheme not in self._clients:
            self._clients[url.scheme] = new_client(verify=certificates(str(url)))
        return self._clients[url.scheme]

    async def close(self) -> None:
        """Stop all calls; the next server makes them again."""
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
        while self._clients:
            await self._clients.popitem()[1].aclose()


async def resolve(host: str, port: int) -> list[str]:
    """Return the IP addresses of a host. Raises `OSError` if the host has no address."""
    infos = await asyncio.get_running_loop().getaddrinfo(host, port, type=1)
    return [str(address[0]) for *_, address in infos]


def new_client(**options: Any) -> httpx.AsyncClient:
    """Return an HTTP client that keeps neither cookies nor connections between requests. A pool
    would reuse a connection for another host with the same address. ``options`` are further
    options of the client.
    """
    unshared = httpx.Limits(max_connections=None, max_keepalive_connections=0)
    nothing = CookieJar(DefaultCookiePolicy(allowed_domains=()))
    return httpx.AsyncClient(
        timeout=TIMEOUT_S, limits=unshared, trust_env=False, cookies=nothing, **options
    )


@asynccontextmanager
async def open_webhooks(server: Server, database: Database) -> AsyncIterator[Webhooks]:
    """Open the webhooks of ``server``, and call the waiting webhooks until the ``with``
    block ends.
    """
    hooks = Webhooks(server, database)
    async with server.background.doing("webhooks", hooks.look, LOOK_S):
        try:
            yield hooks
        finally:
            await hooks.close()

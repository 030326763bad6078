"""Program identity for chat models that know nothing of agentrt, sent in HTTP headers.

    from agentrt.integrations.langgraph import instrument

    instrument()  # once, before the first graph runs

From then on, each request of a LangGraph node to a chat endpoint, by `ChatOpenAI` or any other
client based on httpx or httpx2, names its program, its node and its parents in its headers
(`agentrt.executors.identity`). While a program runs, it is also in this process's
``follow().registry``; ``follow().registry.listen`` reports the ends of programs.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

from agentrt.executors.identity import to_headers
from agentrt.graph import Node
from agentrt.integrations._compat import httpx
from agentrt.integrations.langgraph.follower import follow, scope_of_call
from agentrt.request import CallReport
from agentrt.runtime.run import Run, identity_of
from agentrt.tracking.scope import Scope

_ENDPOINTS = ("/chat/completions", "/completions", "/responses")
_undo: list[Callable[[], None]] = []


def instrument(*, only: str = "") -> None:
    """Send program identity with every LLM call over httpx or httpx2 from now on. Idempotent.

    ``only`` is the start of the URLs that get the headers, such as ``http://127.0.0.1:8000/``. In
    any case a URL must end like OpenAI's chat, completion or response endpoints.
    """
    follow()
    uninstrument()
    for client, async_client in httpx.clients():
        _undo.append(httpx.replace_send(client, _sync_send(client.send, only)))
        _undo.append(httpx.replace_send(async_client, _async_send(async_client.send, only)))


def uninstrument() -> None:
    """Undo `instrument`."""
    while _undo:
        _undo.pop()()


@dataclass(slots=True)
class _Sent:
    """A request in flight: a call of a program, until its response is read or closed."""

    run: Run
    scope: Scope
    node: Node
    over: bool = False

    def end(self, report: CallReport | None = None, error: BaseException | None = None) -> None:
        if self.over:
            return
        self.over = True
        self.run.registry.end_call(
            self.run,
            self.scope,
            self.node,
            report or CallReport(),
            cancelled=isinstance(error, asyncio.CancelledError | KeyboardInterrupt),
            error=error,
        )


def _sync_send(send: Callable[..., Any], only: str) -> Callable[..., Any]:
    def instrumented(self: Any, request: Any, **options: Any) -> Any:
        with _sending(request, only) as follow_response:
            return follow_response(send(self, request, **options))

    return instrumented


def _async_send(send: Callable[..., Awaitable[Any]], only: str) -> Callable[..., Awaitable[Any]]:
    async def instrumented(self: Any, request: Any, **options: Any) -> Any:
        with _sending(request, only) as follow_response:
            return follow_response(await send(self, request, **options))

    return instrumented


@contextmanager
def _sending(request: Any, only: str) -> Iterator[Callable[[Any], Any]]:
    """Yield a function. The ``with`` block must send the request, and pass the response through
    this function.
    """
    sent = _begin(request, only)
    if sent is None:
        yield lambda response: response
        return
    try:
        yield partial(_follow_response, sent)
    except BaseException as error:
        sent.end(error=error)
        raise


def _begin(request: Any, only: str) -> _Sent | None:
    """Add a request to its program as a call, and write the identity into its headers."""
    url = str(request.url)
    if not url.startswith(only) or not request.url.path.endswith(_ENDPOINTS):
        return None
    scope = scope_of_call(None)
    if scope is None or not isinstance(scope.owner, Run):
        return None
    run = scope.owner
    node = run.registry.begin_call(run, scope, "llm")
    request.headers.update(to_headers(identity_of(run, scope, node)))
    return _Sent(run, scope, node)


def _follow_response(sent: _Sent, response: Any) -> Any:
    """End the call when its response ends: now, or when a stream is read or closed."""
    if response.status_code >= 400:
        sent.end(error=ConnectionError(f"status {response.status_code}"))
    elif response.is_closed:
        sent.end(_usage(response))
    else:
        httpx.when_closed(response, sent.end)
    return response


def _usage(response: Any) -> CallReport:
    """Return a report with the server's token counts, if the response has them. The Responses API
    has other names for them than the APIs of chats and completions.
    """
    try:
        usage = json.loads(response.content).get("usage") or {}
        return CallReport(
            prompt_tokens=int(usage.get("prompt_tokens", usage.get("input_tokens", 0))),
            output_tokens=int(usage.get("completion_tokens", usage.get("output_tokens", 0))),
        )
    except (ValueError, AttributeError, TypeError, RecursionError):
        return CallReport()

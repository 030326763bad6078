"""Identity for chat models that know nothing of agentrt: it travels in HTTP headers.

    from agentrt.integrations.langgraph import instrument

    instrument()  # once, before the first graph runs

From then on each request to a chat endpoint that a LangGraph node makes, with `ChatOpenAI` or
any client on httpx or httpx2, names its program, its node and its parents
(`agentrt.executors.identity`). The programs are in ``follow().registry`` here, too, while they run;
``follow().registry.listen`` tells of their ends.
"""

from __future__ import annotations

import asyncio
import functools
import json
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from agentrt.executors.identity import to_headers
from agentrt.graph import Node
from agentrt.integrations.langgraph.process import follow, place_of_call
from agentrt.request import CallReport
from agentrt.runtime.registry import RunRegistry, identity_of
from agentrt.runtime.run import Run
from agentrt.tracking.scope import Scope

_CLIENTS = ("httpx", "httpx2")  # OpenAI's SDK moved to the second with its version 3
_ENDPOINTS = ("/chat/completions", "/completions", "/responses")
_undo: list[Callable[[], None]] = []


def instrument(*, only: str = "") -> None:
    """Send identity with every LLM call over httpx or httpx2 from now on; idempotent.

    ``only`` names the start of the URLs that get it, such as ``http://127.0.0.1:8000/``; by
    default all that end as OpenAI's chat, completion and response endpoints do.
    """
    follow()
    uninstrument()
    for name in _CLIENTS:
        try:
            module = import_module(name)
        except ImportError:
            continue
        _replace(module.Client, _sync_send(module.Client.send, only))
        _replace(module.AsyncClient, _async_send(module.AsyncClient.send, only))


def uninstrument() -> None:
    """Undo `instrument`."""
    while _undo:
        _undo.pop()()


def _replace(client: Any, send: Any) -> None:
    original = client.send
    client.send = send
    _undo.append(lambda: setattr(client, "send", original))


@dataclass(slots=True)
class _Sent:
    """A request under way: a call of a program, until its response is read or closed."""

    run: Run
    scope: Scope
    node: Node
    over: bool = False

    @property
    def registry(self) -> RunRegistry:
        return follow().ledger_of(self.run)

    def end(self, report: CallReport = CallReport()) -> None:  # noqa: B008  # it is frozen
        if not self.over:
            self.over = True
            self.registry.end_call(self.run, self.scope, self.node, report)

    def fail(self, error: BaseException) -> None:
        if self.over:
            return
        self.over = True
        self.registry.end_call(
            self.run,
            self.scope,
            self.node,
            CallReport(),
            cancelled=isinstance(error, asyncio.CancelledError | KeyboardInterrupt),
            error=error,
        )


def _sync_send(send: Callable[..., Any], only: str) -> Callable[..., Any]:
    @functools.wraps(send)
    def instrumented(self: Any, request: Any, **options: Any) -> Any:
        sent = _begin(request, only)
        if sent is None:
            return send(self, request, **options)
        try:
            response = send(self, request, **options)
        except BaseException as error:
            sent.fail(error)
            raise
        _follow_response(sent, response)
        return response

    return instrumented


def _async_send(send: Callable[..., Awaitable[Any]], only: str) -> Callable[..., Awaitable[Any]]:
    @functools.wraps(send)
    async def instrumented(self: Any, request: Any, **options: Any) -> Any:
        sent = _begin(request, only)
        if sent is None:
            return await send(self, request, **options)
        try:
            response = await send(self, request, **options)
        except BaseException as error:
            sent.fail(error)
            raise
        _follow_response(sent, response)
        return response

    return instrumented


def _begin(request: Any, only: str) -> _Sent | None:
    """Enter a request into its program's books, and say in its headers whose it is."""
    url = str(request.url)
    if not url.startswith(only) or not request.url.path.endswith(_ENDPOINTS):
        return None
    scope = place_of_call(None)
    if scope is None or not isinstance(scope.owner, Run):
        return None
    run = scope.owner
    node = follow().ledger_of(run).begin_call(run, scope, "llm")
    request.headers.update(to_headers(identity_of(run, scope, node)))
    return _Sent(run, scope, node)


def _follow_response(sent: _Sent, response: Any) -> None:
    """The call is over when its response is: now, or when a stream is read or closed."""
    if response.status_code >= 400:
        sent.fail(ConnectionError(f"status {response.status_code}"))
    elif response.is_closed:
        sent.end(_usage(response))
    else:
        # On the stream, not the response: whatever closes the response ends there.
        name = "aclose" if hasattr(response.stream, "aclose") else "close"
        setattr(response.stream, name, _ending(getattr(response.stream, name), sent))


def _ending(close: Callable[[], Any], sent: _Sent) -> Callable[[], Any]:
    @functools.wraps(close)
    def ending() -> Any:
        sent.end()
        return close()

    return ending


def _usage(response: Any) -> CallReport:
    """The tokens that the server counted, if it says so."""
    try:
        usage = json.loads(response.content).get("usage") or {}
        return CallReport(
            prompt_tokens=int(usage.get("prompt_tokens", 0)),
            output_tokens=int(usage.get("completion_tokens", 0)),
        )
    except (ValueError, AttributeError, TypeError):
        return CallReport()

"""The private parts of uvicorn that we use exist."""

from __future__ import annotations

import inspect
from importlib.metadata import version
from types import SimpleNamespace
from typing import Any

import pytest
import uvicorn
from packaging.specifiers import SpecifierSet
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol

from agentrt.serving._compat import (
    DROPPED_PER_S,
    ReaderTimeout,
    SocketProtocol,
    TimeoutProtocol,
)

TESTED = SpecifierSet(">=0.54,<1")
OF_READERS = ("connection_lost", "pause_writing", "resume_writing")
HOOKS = (
    "_start_asgi_task",
    "connection_made",
    "data_received",
    "on_headers_complete",
    "on_message_complete",
    "timeout_keep_alive_handler",
    "handle_websocket_upgrade",
    *OF_READERS,
)


def test_the_version_of_uvicorn_is_one_that_was_tested() -> None:
    found = version("uvicorn")
    assert found in TESTED, f"uvicorn {found}: read serving/_compat.py beside it, widen {TESTED}"


@pytest.mark.parametrize("hook", HOOKS)
def test_uvicorns_protocol_has_the_hooks_that_we_override(hook: str) -> None:
    theirs, ours = getattr(HttpToolsProtocol, hook, None), getattr(TimeoutProtocol, hook)
    assert theirs is not None, f"uvicorn's HttpToolsProtocol has no {hook} any more"
    assert list(inspect.signature(ours).parameters) == list(inspect.signature(theirs).parameters)


@pytest.mark.parametrize("hook", OF_READERS)
def test_uvicorns_websockets_have_the_hooks_that_we_override(hook: str) -> None:
    assert hook in vars(WebSocketsSansIOProtocol), f"its WebSockets have no {hook} any more"
    assert getattr(SocketProtocol, hook) is getattr(ReaderTimeout, hook)


@pytest.mark.parametrize("kind", [HttpToolsProtocol, WebSocketsSansIOProtocol])
def test_uvicorns_protocols_keep_their_loop_and_their_transport(kind: type) -> None:
    source = inspect.getsource(kind)
    for name in ("self.loop", "self.transport"):
        assert name in source, f"uvicorn's {kind.__name__} has no {name} any more"


def test_uvicorns_protocol_has_the_sent_status_and_can_pause_reading() -> None:
    source = inspect.getsource(HttpToolsProtocol)
    for name in ("self.flow.pause_reading", "self.cycle.response_complete"):
        assert name in source, f"uvicorn's HttpToolsProtocol has no {name} any more"


def test_uvicorns_server_has_the_methods_that_we_override() -> None:
    server = uvicorn.Server(uvicorn.Config(lambda: None))
    assert hasattr(server.server_state, "tasks"), "uvicorn.Server.server_state.tasks is gone"
    assert callable(server.capture_signals), "uvicorn.Server.capture_signals is gone"
    assert "self.capture_signals()" in inspect.getsource(uvicorn.Server.serve), (
        "uvicorn.Server.serve does not ask capture_signals any more: it would take our signals"
    )


@pytest.mark.parametrize("is_refused", [True, False])
def test_the_rest_of_a_refused_body_is_discarded_slowly(
    monkeypatch: pytest.MonkeyPatch, is_refused: bool
) -> None:
    """A connection is read on after as long as its last piece may take, if it is still there."""
    monkeypatch.setattr(HttpToolsProtocol, "data_received", lambda self, data: None)
    told: list[Any] = []
    flow = SimpleNamespace(
        pause_reading=lambda: told.append("pause"), resume_reading=lambda: told.append("resume")
    )
    one: Any = object.__new__(TimeoutProtocol)
    one._in_body, one._request_timer, one.flow = True, object(), flow
    one.cycle = SimpleNamespace(response_complete=is_refused)
    one.loop = SimpleNamespace(call_later=lambda seconds, then: told.append((seconds, then)))
    one.data_received(bytes(DROPPED_PER_S // 4))
    if not is_refused:
        assert not told
        return
    [paused, (seconds, then)] = told
    assert (paused, seconds) == ("pause", 0.25)
    for is_closing, after in ((True, []), (False, ["resume"])):
        told.clear()
        one.transport = SimpleNamespace(is_closing=lambda is_closing=is_closing: is_closing)
        then()
        assert told == after

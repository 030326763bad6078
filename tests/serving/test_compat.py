"""What we reach into uvicorn for is still there."""

from __future__ import annotations

import inspect
from importlib.metadata import version

import pytest
import uvicorn
from packaging.specifiers import SpecifierSet
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol

from agentrt.serving._compat import ReaderTimeout, SocketProtocol, TimeoutProtocol

TESTED = SpecifierSet(">=0.54,<1")
OF_READERS = ("connection_lost", "pause_writing", "resume_writing")
HOOKS = (
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


def test_uvicorns_server_has_what_an_embedded_one_overrides() -> None:
    server = uvicorn.Server(uvicorn.Config(lambda: None))
    assert hasattr(server.server_state, "tasks"), "uvicorn.Server.server_state.tasks is gone"
    assert callable(server.capture_signals), "uvicorn.Server.capture_signals is gone"
    assert "self.capture_signals()" in inspect.getsource(uvicorn.Server.serve), (
        "uvicorn.Server.serve does not ask capture_signals any more: it would take our signals"
    )

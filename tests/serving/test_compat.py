"""What we reach into uvicorn for is still there."""

from __future__ import annotations

import inspect
from importlib.metadata import version

import pytest
import uvicorn
from packaging.specifiers import SpecifierSet
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from agentrt.serving._compat import TimeoutProtocol

TESTED = SpecifierSet(">=0.34,<1")
HOOKS = (
    "connection_made",
    "connection_lost",
    "data_received",
    "on_headers_complete",
    "on_message_complete",
    "timeout_keep_alive_handler",
    "pause_writing",
    "resume_writing",
)


def test_the_version_of_uvicorn_is_one_that_was_tested() -> None:
    found = version("uvicorn")
    assert found in TESTED, f"uvicorn {found}: read serving/_compat.py beside it, widen {TESTED}"


@pytest.mark.parametrize("hook", HOOKS)
def test_uvicorns_protocol_has_the_hooks_that_we_override(hook: str) -> None:
    theirs, ours = getattr(HttpToolsProtocol, hook, None), getattr(TimeoutProtocol, hook)
    assert theirs is not None, f"uvicorn's HttpToolsProtocol has no {hook} any more"
    assert list(inspect.signature(ours).parameters) == list(inspect.signature(theirs).parameters)


def test_uvicorns_protocol_keeps_its_loop_and_its_transport() -> None:
    source = inspect.getsource(HttpToolsProtocol)
    for name in ("self.loop", "self.transport"):
        assert name in source, f"uvicorn's HttpToolsProtocol has no {name} any more"


def test_uvicorns_server_has_what_an_embedded_one_overrides() -> None:
    server = uvicorn.Server(uvicorn.Config(lambda: None))
    assert hasattr(server.server_state, "tasks"), "uvicorn.Server.server_state.tasks is gone"
    assert callable(server.capture_signals), "uvicorn.Server.capture_signals is gone"
    assert "self.capture_signals()" in inspect.getsource(uvicorn.Server.serve), (
        "uvicorn.Server.serve does not ask capture_signals any more: it would take our signals"
    )

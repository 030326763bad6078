"""Serve the application on a port or a Unix socket, in the runtime's own event loop, and shut down
gracefully.

While the engine starts, which may take minutes, `StartingApp` answers. A health check gets status
503 at once, which says that the server is alive and not ready yet. A request for metrics gets
status 503, too. The chat page and the dashboard show that the engine starts, and reload themselves.
All other requests wait until the engine has started. While too many connections are open, new
requests are refused.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import resource
import socket
import ssl
from collections.abc import AsyncIterator, Callable, Collection, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import uvicorn
from starlette.datastructures import URL
from starlette.responses import (
    HTMLResponse,
    JSONResponse,
    PlainTextResponse,
    RedirectResponse,
    Response,
)
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from agentrt.errors import ConfigError
from agentrt.serving._compat import EmbeddedServer, SocketProtocol, TimeoutProtocol, bounded
from agentrt.serving.error_responses import error_response
from agentrt.serving.server import Bounds, Server

_KEEP_ALIVE_S = 30
SOCKET_PING_S = 10.0
"""Seconds between the pings of a WebSocket, because proxies cut silent connections."""
_PROBES = {"TCP_KEEPIDLE": 10, "TCP_KEEPINTVL": 10, "TCP_KEEPCNT": 6}
"""TCP keep-alive: seconds until a silent connection is probed, seconds between probes, and the
number of lost probes after which the connection is dead. A client that waits for an answer without
streaming sends nothing, so only probes show that it has disappeared.
"""
_OTHER_KEY = ("KEY_VALUES_MISMATCH", "KEY_TYPE_MISMATCH", "NO_CERTIFICATE_ASSIGNED")
"""OpenSSL's reasons for a key that belongs to another certificate. The last means that the two are
of different types, such as a key of RSA for a certificate of an elliptic curve.
"""
_SPARE_FILES = 256
"""File descriptors that are reserved for the engine, the database and the programs."""


@dataclass(frozen=True, slots=True)
class Certificate:
    """The PEM files of a server's TLS certificate. Without ``key``, the file ``chain`` has
    the key.

    ``authorities`` is the PEM file of the authorities that sign the certificates of clients, and
    ``requests`` says whether clients may or must have such a certificate.
    """

    chain: Path
    key: Path | None = None
    authorities: Path | None = None
    requests: ssl.VerifyMode = ssl.CERT_NONE

    def check(self) -> None:
        """Raise `ConfigError` for files that cannot be used."""

        def no_password() -> str:
            raise ConfigError(
                f"{self.key or self.chain}: the key has a password; use a key without a password"
            )

        try:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(self.chain, self.key, no_password)
        except OSError as error:  # SSLError is a subclass
            why = "not a certificate with its key in PEM format"
            if not isinstance(error, ssl.SSLError):
                why = (error.strerror or str(error)).lower()
            elif error.reason in _OTHER_KEY:
                why = "the key belongs to another certificate; name the certificate's own key"
            options = f"--ssl-certfile {self.chain}"
            if self.key is not None:
                options += f", --ssl-keyfile {self.key}"
            raise ConfigError(f"{options}: {why}") from error
        if self.authorities is None:
            return
        try:
            context.load_verify_locations(self.authorities)
        except OSError as error:
            why = "not certificates in PEM format"
            if not isinstance(error, ssl.SSLError):
                why = (error.strerror or str(error)).lower()
            raise ConfigError(f"--ssl-ca-certs {self.authorities}: {why}") from error


class Listener:
    """A bound port, with TLS if there is a ``certificate``. `serve` answers its connections.

    With ``uds``, which is a path, the listener has a Unix socket in place of a port. ``root_path``
    is a path below which clients and proxies may reach the server, such as /models; requests whose
    path does not begin with it are answered, too.

    Raises `ConfigError` for an unknown host, a port or a Unix socket that is in use, or an invalid
    certificate.
    """

    def __init__(
        self,
        host: str,
        port: int,
        certificate: Certificate | None = None,
        *,
        uds: Path | None = None,
        root_path: str = "",
    ) -> None:
        if certificate is not None:
            certificate.check()
        self.host = host
        self.uds = uds
        self.root_path = root_path
        self._certificate = certificate
        if uds is None:
            self._socket = _bind(host, port)
            self.port = int(self._socket.getsockname()[1])
        else:
            self._socket, self.port = _bind_unix(uds), 0
            self._inode = uds.stat().st_ino
        self._server: EmbeddedServer | None = None
        self._is_stopped = False
        self.ready = asyncio.Event()
        """Set once the server answers connections."""

    @property
    def url(self) -> str:
        """The server's address for clients: its URL, or unix: and the path of its Unix socket."""
        if self.uds is not None:
            return f"unix:{self.uds}"
        host = f"[{self.host}]" if ":" in self.host else self.host
        scheme = "http" if self._certificate is None else "https"
        return f"{scheme}://{host}:{self.port}{self.root_path}"

    @property
    def browser_url(self) -> str:
        """The server's address for a browser on this machine."""
        if self.host not in ("0.0.0.0", "::"):
            return self.url
        return self.url.replace("0.0.0.0", "127.0.0.1").replace("[::]", "[::1]")

    async def serve(self, app: Any, bounds: Bounds) -> None:
        """Serve ``app`` until `stop` is called. If cancelled, drop the requests in flight."""
        own = self._certificate
        config = uvicorn.Config(
            BelowPath(app, self.root_path) if self.root_path else app,
            ssl_certfile=None if own is None else own.chain,
            ssl_keyfile=None if own is None else own.key,
            ssl_ca_certs=None if own is None or own.authorities is None else str(own.authorities),
            ssl_cert_reqs=int(ssl.CERT_NONE if own is None else own.requests),
            http=bounded(TimeoutProtocol, bounds),
            ws=bounded(SocketProtocol, bounds),
            ws_max_size=min(bounds.message_bytes, bounds.body_bytes),
            ws_ping_interval=SOCKET_PING_S,
            ws_per_message_deflate=False,  # compression costs memory and allows decompression bombs
            lifespan="off",
            log_config=None,
            log_level="error",  # else each malformed request would be logged
            access_log=False,
            server_header=False,
            timeout_keep_alive=_KEEP_ALIVE_S,
            timeout_graceful_shutdown=1,
            limit_concurrency=min(bounds.connections, _file_limit() - _SPARE_FILES),
        )
        logging.getLogger("uvicorn.error").addFilter(_is_a_fault)
        server = self._server = EmbeddedServer(config, self.ready)
        server.should_exit = self._is_stopped
        try:
            await server.serve(sockets=[self._socket])
        except OSError as error:
            if self.uds is not None:
                raise _unix_error(self.uds, error) from error
            raise _port_error(self.host, self.port, error) from error

    @contextlib.asynccontextmanager
    async def serving(self, app: Any, bounds: Bounds) -> AsyncIterator[asyncio.Task[None]]:
        """Serve ``app`` during the ``with`` block, and free the port afterwards. The block's value
        is the task of `serve`, whose error, if any, is raised at the end of the block.
        """
        with contextlib.closing(self):
            task = asyncio.create_task(self.serve(app, bounds))
            try:
                yield task
            finally:
                self.stop()
                await task

    async def drain(self, server: Server, timeout_s: float) -> bool:
        """Stop accepting work, wait at most ``timeout_s`` seconds for work in flight, and stop.
        Return whether all of this work ended in time.
        """
        server.draining = True
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await asyncio.gather(*(end() for end in server.at_drain))
                while tasks := self._requests() | server.under_way:
                    await asyncio.wait(tasks)
        left = self._requests() | server.under_way
        self.stop()
        return not left

    def _requests(self) -> set[asyncio.Task[Any]]:
        return set() if self._server is None else self._server.requests()

    def stop(self) -> None:
        """End `serve`. If `serve` has not begun yet, it will end at once."""
        self._is_stopped = True
        if self._server is not None:
            self._server.should_exit = True

    def close(self) -> None:
        """Free the port, or remove the Unix socket. Idempotent."""
        self._socket.close()
        if self.uds is not None:
            # Another server may have a socket of the same name by now.
            with contextlib.suppress(FileNotFoundError):
                if self.uds.stat().st_ino == self._inode:
                    self.uds.unlink()


class BelowPath:
    """An ASGI application that also answers requests whose path begins with ``root``: ``app`` gets
    the rest of the path.
    """

    def __init__(self, app: ASGIApp, root: str) -> None:
        self._app, self._root = app, root

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        root = self._root
        if scope["type"] == "http" and scope["path"] == root:
            # The pages use paths that are relative to their own path.
            query = scope["query_string"].decode("latin-1")
            url = f"{root}/?{query}" if query else f"{root}/"
            await RedirectResponse(url)(scope, receive, send)
            return
        if scope["type"] in ("http", "websocket"):
            # Starlette puts this path into the server's own URLs, such as those of agents (A2A).
            scope = {**scope, "app_root_path": root}
            if scope["path"].startswith(f"{root}/"):
                scope["path"] = scope["path"].removeprefix(root)
                scope["raw_path"] = scope["raw_path"].removeprefix(root.encode())
        await self._app(scope, receive, self._redirecting(scope, send))

    def _redirecting(self, scope: Scope, send: Send) -> Send:
        """Return ``send``, wrapped so that a redirect from a path with a slash at its end to the
        path without it, or the reverse, stays below ``root``.

        Starlette's routers make these redirects, and build the URL from the rest of the path. The
        client may be at a proxy that offers only the paths below ``root``.
        """

        async def send_below(message: Message) -> None:
            if message["type"] == "http.response.start" and message["status"] == 307:
                path = scope["path"]
                for other in (path.rstrip("/"), f"{path}/"):
                    inside, below = _location(scope, other), _location(scope, self._root + other)
                    message = {
                        **message,
                        "headers": [
                            below if tuple(header) == inside else header
                            for header in message["headers"]
                        ],
                    }
            await send(message)

        return send_below if scope["type"] == "http" else send


def _location(scope: Scope, path: str) -> tuple[bytes, bytes]:
    """Return the header with which Starlette redirects a request to another path."""
    url = str(URL(scope={**scope, "path": path}))
    return b"location", RedirectResponse(url).headers["location"].encode("latin-1")


@contextlib.contextmanager
def logged_requests(write: Callable[[str], None], hidden: Collection[str] = ()) -> Iterator[None]:
    """During the ``with`` block, call ``write`` with a line for each answered request on a new
    connection, except for requests at the ``hidden`` paths.
    """
    logger = logging.getLogger("uvicorn.access")
    handler = _AccessHandler(write, hidden)
    level = logger.level
    logger.setLevel(logging.INFO)
    logger.addHandler(handler)
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level)


class _AccessHandler(logging.Handler):
    def __init__(self, write: Callable[[str], None], hidden: Collection[str]) -> None:
        super().__init__()
        self._write, self._hidden = write, hidden

    def emit(self, record: logging.LogRecord) -> None:
        client, method, path, version, status = cast("tuple[Any, ...]", record.args)
        if path.partition("?")[0] not in self._hidden:
            self._write(f'{client} - "{method} {path} HTTP/{version}" {status}')


def _is_a_fault(record: logging.LogRecord) -> bool:
    """Return whether to log a record. Tracebacks of requests that a shutdown cancelled are not
    logged.
    """
    return record.exc_info is None or record.exc_info[0] is not asyncio.CancelledError


def _bind(host: str, port: int) -> socket.socket:
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
    except (OSError, UnicodeError) as error:
        raise ConfigError(
            f"--host {host!r}: unknown address ({error}); use an address of this machine, such as "
            "127.0.0.1"
        ) from error
    bound = socket.socket(family, kind, protocol)
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.setsockopt(
            socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1
        )  # accepted connections inherit this option
        for name, value in _PROBES.items():
            if hasattr(socket, name):
                bound.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
        bound.bind(address)
        bound.listen(0)  # so that a second server fails now, and not after loading its engine
    except OSError as error:
        bound.close()
        raise _port_error(host, port, error) from error
    return bound


def _bind_unix(path: Path) -> socket.socket:
    bound = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        if _is_abandoned(path):
            path.unlink()
        bound.bind(str(path))
        bound.listen(0)
    except OSError as error:
        bound.close()
        raise _unix_error(path, error) from error
    return bound


def _is_abandoned(path: Path) -> bool:
    """Return whether a path is a Unix socket on which no process listens any more."""
    if not path.is_socket():
        return False
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as client:
        client.setblocking(False)  # a server that starts may accept no connections yet
        try:
            client.connect(str(path))
        except ConnectionRefusedError:
            return True
        except OSError:
            return False
        return False


def _unix_error(path: Path, error: OSError) -> ConfigError:
    reason = (error.strerror or str(error)).lower()
    way_out = "name a new file in a folder that exists and that you may write"
    return ConfigError(f"--uds {path}: {reason}; {way_out}")


def _port_error(host: str, port: int, error: OSError) -> ConfigError:
    reason = (error.strerror or str(error)).lower()
    advice = "choose another port with --port"
    if error.errno == errno.EADDRNOTAVAIL:
        advice = "choose an address of this machine with --host"
    return ConfigError(f"port {port} at {host}: {reason}; {advice}")


def _file_limit() -> int:
    """Raise the limit of open files as far as allowed, at most to 65536, and return the limit. If
    there is no limit, return 65536.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = 65536 if hard == resource.RLIM_INFINITY else min(hard, 65536)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        with contextlib.suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
            soft = wanted
    return wanted if soft == resource.RLIM_INFINITY else soft


# -- while the engine starts ---------------------------------------------------------------


STARTING = "the engine is starting"
_STOPS = "the server stops before its engine has started"
_CROWDED = f"{STARTING}, and too many requests wait for it; try again later"
_RELOAD_S = 2
_RESTARTS = 1012
"""The code with which a server that restarts closes WebSockets."""
_PAGE = f"""<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width">
<meta name="color-scheme" content="light dark">
<title>agentrt: {STARTING}</title>
<main><h1>agentrt</h1><p role="status">Please wait: {STARTING}. This page reloads itself.</p></main>
"""


class StartingApp:
    """The server's application: it answers or holds requests until `open` is called, and then
    passes all requests on to the application that `open` was called with.
    """

    def __init__(self) -> None:
        self._app: ASGIApp | None = None
        self._is_over = asyncio.Event()

    def open(self, app: ASGIApp) -> None:
        """Pass the requests that wait, and all later requests, on to ``app``."""
        self._app = app
        self._is_over.set()

    def close(self) -> None:
        """Refuse the requests that wait, unless `open` was called: the engine does not start."""
        self._is_over.set()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if self._app is None:
            if "is_over_limit" in scope.get("state", ()):
                await _unavailable(_CROWDED, "starting")(scope, receive, send)
                return
            if (answer := _answer(scope)) is not None:
                await answer(scope, receive, send)
                return
            await self._is_over.wait()
        await (self._app or _unavailable(_STOPS, "stopping"))(scope, receive, send)


def _unavailable(message: str, code: str) -> ASGIApp:
    """Return an application that refuses requests with status 503."""

    async def refuse(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": _RESTARTS})
            return
        headers = {"Retry-After": str(_RELOAD_S), "Connection": "close"}
        answer = error_response(scope["path"], 503, message, code=code, headers=headers)
        await answer(scope, receive, send)

    return refuse


def _answer(scope: Scope) -> Response | None:
    """Return the answer to a request that does not wait; None for a request that waits."""
    if scope["type"] != "http" or scope["method"] not in ("GET", "HEAD"):
        return None
    headers = {"Retry-After": str(_RELOAD_S), "Cache-Control": "no-store"}
    match scope["path"]:
        case "/health":
            return JSONResponse({"status": STARTING}, 503, headers)
        case "/ready":
            return JSONResponse({"ready": False, "why": STARTING}, 503, headers)
        case "/ok":
            return JSONResponse({"ok": False}, 503, headers)
        case "/metrics":
            return PlainTextResponse(f"{STARTING}\n", 503, headers)
        case "/" | "/dashboard":
            return HTMLResponse(_PAGE, 503, {**headers, "Refresh": str(_RELOAD_S)})
    return None

"""What ``agentrt serve`` answers while its engine starts."""

from __future__ import annotations

import contextlib
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest

from agentrt.serving.listen import STARTING
from tests.cli.conftest import Write
from tests.cli.test_serve import ROOT, TWO, WAIT_S
from tests.doubles.forked_python import forked_python

GO = "engine"
"""The file without which the engine does not start."""


@contextlib.contextmanager
def starting(folder: Path, program: Path) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A server whose engine waits for the file ``GO`` in ``folder``, and the server's address."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    command = [forked_python(), "-m", "tests.cli.waiting", "serve", str(program)]
    command += ["--port", str(port), "--database", f"sqlite:{folder / 'agentrt.db'}"]
    process = subprocess.Popen(
        [*command, str(folder / GO)], cwd=ROOT, stderr=subprocess.PIPE, text=True
    )
    watchdog = threading.Timer(WAIT_S, process.kill)
    watchdog.start()
    url = f"http://127.0.0.1:{port}"
    try:
        while True:
            with contextlib.suppress(httpx.ConnectError):
                httpx.get(f"{url}/health", timeout=WAIT_S)
                break
            assert process.poll() is None
            time.sleep(0.02)
        yield process, url
    finally:
        watchdog.cancel()
        process.kill()
        process.wait()
        assert process.stderr is not None
        process.stderr.close()


def ask(url: str, others: ThreadPoolExecutor) -> Future[httpx.Response]:
    body = {"input": "hello"}
    return others.submit(httpx.post, f"{url}/v1/programs/one/runs", json=body, timeout=WAIT_S)


def test_health_is_answered_and_other_requests_wait(write: Write, tmp_path: Path) -> None:
    with starting(tmp_path, write(TWO)) as (_, url), ThreadPoolExecutor() as others:
        early = ask(url, others)
        for path, body in {
            "/health": {"status": STARTING},
            "/ready": {"ready": False, "why": STARTING},
            "/ok": {"ok": False},
        }.items():
            answer = httpx.get(url + path, timeout=WAIT_S)
            assert (answer.status_code, answer.json()) == (503, body)
        page = httpx.get(f"{url}/dashboard", timeout=WAIT_S)
        assert (page.status_code, page.headers["refresh"]) == (503, "2")
        assert STARTING in page.text
        assert not early.done()
        (tmp_path / GO).touch()
        assert early.result(WAIT_S).json()["result"] == "hello"
        assert httpx.get(f"{url}/health", timeout=WAIT_S).json() == {"status": "ok"}
        assert httpx.get(f"{url}/dashboard", timeout=WAIT_S).status_code == 200


@pytest.mark.parametrize("why", ["no memory", ""], ids=["a fault", "a signal"])
def test_requests_that_wait_are_refused_if_the_engine_does_not_start(
    write: Write, tmp_path: Path, why: str
) -> None:
    with starting(tmp_path, write(TWO)) as (process, url):
        port = int(url.rpartition(":")[2])
        with socket.create_connection(("127.0.0.1", port), WAIT_S) as early:
            early.sendall(b"GET /v1/models HTTP/1.1\r\nHost: localhost\r\n\r\n")
            httpx.get(f"{url}/health", timeout=WAIT_S)  # the server reads requests in order
            if why:
                (tmp_path / GO).write_text(why)
            else:
                process.send_signal(signal.SIGTERM)
            answer = b"".join(iter(lambda: early.recv(4096), b""))
        assert answer.startswith(b"HTTP/1.1 503 ")
        assert b"the server stops before its engine has started" in answer
        assert process.stderr is not None
        said = process.stderr.read()
        assert process.wait(WAIT_S) == (1 if why else 128 + signal.SIGTERM)
        assert why in said.splitlines()[-1]
        assert "Traceback" not in said

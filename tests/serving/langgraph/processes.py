"""Starts and kills server processes, and asks them whether they are up."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path

import httpx

from agentrt.testing.ports import reserved_port

ROOT = Path(__file__).parents[3]
START_S = 90.0


class Process:
    """A server in a process of its own, on one port all its lives."""

    def __init__(self, database: str, folder: Path) -> None:
        self.port = reserved_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self._database = database
        self._folder = folder
        self._process: subprocess.Popen[bytes] | None = None

    async def start(self) -> None:
        """Start, and wait until it answers."""
        self._spawn()
        assert self._process is not None
        async with (
            httpx.AsyncClient(base_url=self.url, timeout=60) as http,
            asyncio.timeout(START_S),
        ):
            while True:
                assert self._process.poll() is None, "the server ended"
                try:
                    assert (await http.get("/ok")).json() == {"ok": True}
                    return
                except httpx.TransportError:
                    await asyncio.sleep(0.02)

    def _spawn(self) -> None:
        entry = ROOT / "tests" / "serving" / "langgraph" / "entry.py"
        command = [sys.executable, str(entry), self._database, str(self.port), str(self._folder)]
        self._process = subprocess.Popen(command, cwd=ROOT, env=environment())

    def kill(self) -> None:
        """As the kernel does when memory is short."""
        self._end(signal.SIGKILL)

    def stop(self) -> None:
        """As an operator does."""
        self._end(signal.SIGTERM)

    def _end(self, how: signal.Signals) -> None:
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(how)
            self._process.wait(START_S)
        self._process = None


def environment() -> dict[str, str]:
    """For a child that imports this tree."""
    return {**os.environ, "PYTHONPATH": str(ROOT)}

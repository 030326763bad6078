"""Starts and kills server processes, and asks them whether they are up."""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import signal
from collections.abc import Callable
from multiprocessing.process import BaseProcess
from pathlib import Path

import httpx

from tests.doubles.ports import reserved_port
from tests.serving.langgraph.entry import serve

START_S = 90.0
_FORKS = multiprocessing.get_context("forkserver")
# Importing takes seconds: once for all. Each imports this process's own program, too: pytest.
_FORKS.set_forkserver_preload([serve.__module__, "pytest"])


class Process:
    """A server in a process of its own, on one port all its lives."""

    def __init__(
        self,
        database: str,
        folder: Path,
        target: Callable[[str, int, Path], None] = serve,
        health: str = "/ok",
    ) -> None:
        self.port = reserved_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self._database = database
        self._folder = folder
        self._target, self._health = target, health
        self._process: BaseProcess | None = None

    def launch(self) -> None:
        """Start."""
        given = (self._database, self.port, self._folder)
        self._process = _FORKS.Process(target=self._target, args=given, daemon=True)
        self._process.start()

    async def start(self) -> None:
        """Start, and wait until it answers."""
        self.launch()
        assert self._process is not None
        async with (
            httpx.AsyncClient(base_url=self.url, timeout=60) as http,
            asyncio.timeout(START_S),
        ):
            while True:
                assert self._process.is_alive(), "the server ended"
                try:
                    assert (await http.get(self._health)).status_code == 200
                    return
                except httpx.TransportError:
                    await asyncio.sleep(0.1)

    async def died(self) -> None:
        """Wait until it has killed itself."""
        process, self._process = self._process, None
        assert process is not None
        await asyncio.to_thread(process.join, START_S)
        assert process.exitcode == -signal.SIGKILL

    def peak_kib(self) -> int:
        """Return the peak memory of the running process, in KiB."""
        assert self._process is not None
        status = Path(f"/proc/{self._process.pid}/status").read_text()
        return int(status.partition("VmHWM:")[2].split()[0])

    def kill(self) -> None:
        """Kill a process as the kernel does when memory is short."""
        self._end(signal.SIGKILL)

    def stop(self) -> None:
        """Stop a process as an operator does."""
        self._end(signal.SIGTERM)

    def _end(self, how: signal.Signals) -> None:
        process, self._process = self._process, None
        if process is not None and process.is_alive():
            assert process.pid is not None
            os.kill(process.pid, how)
            process.join(START_S)
            assert not process.is_alive()

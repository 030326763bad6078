"""A Ray cluster of several nodes on loopback, for tests and measurements. It is a real one.

    with LocalCluster(nodes=2, cpus=1) as cluster:
        run_on(cluster.address)
        cluster.kill_node(1)

Each node is a raylet of its own, started by Ray's own command line.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from types import TracebackType
from typing import Self

import psutil

from agentrt.executors.vllm.processes import descendants

_START_S = 300.0
_HOST = "127.0.0.{}"
"""A node's own address on loopback, from 2 on: Ray puts the machine's outer one for 127.0.0.1."""

_STORE_BYTES = 80 << 20
_STARTED = b"Ray runtime started"
# Beside other tests, a worker may take minutes to start. If the first worker of a cluster takes
# longer than this limit (60 s by default), Ray starts no other one, and `ray.init` waits for ever.
_ENVIRONMENT = {
    "RAY_AUTH_MODE": "disabled",  # else a head uses the token that the user's home may have
    "RAY_enable_metrics_collection": "false",
    "RAY_worker_register_timeout_seconds": "900",
}
# Nodes start their processes with the Python of the command that starts the node.
_RAY = """
import sys
sys.executable = sys.argv.pop(1)
from ray.scripts.scripts import main
main()
"""


class LocalCluster:
    """``nodes`` raylets with ``cpus`` cores each, the first of them the head.

    A context manager; at its end no process of it is left. ``address`` is what ``--cluster``
    takes. Workers run in ``python``.
    """

    def __init__(self, nodes: int = 2, cpus: int = 1, python: str | None = None) -> None:
        self._nodes = nodes
        self._cpus = cpus
        self._python = python or sys.executable
        self._port = _free_port()
        self._processes: list[subprocess.Popen[bytes]] = []
        self._folder = tempfile.TemporaryDirectory(prefix="agentrt-ray-")

    @property
    def address(self) -> str:
        """``HOST:PORT`` of the head."""
        return f"{_HOST.format(2)}:{self._port}"

    def __enter__(self) -> Self:
        try:
            for index in range(self._nodes):
                self._processes.append(self._start(index))
                self._wait_until_started(index)
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """End all nodes, workers first. Idempotent."""
        processes, self._processes = self._processes, []
        for process in reversed(processes):
            _end(process)
        self._folder.cleanup()

    def _wait_until_started(self, index: int) -> None:
        log, process = self._log(index), self._processes[index]
        deadline = time.monotonic() + _START_S
        while _STARTED not in log.read_bytes():
            _check(process.poll() is None, f"node {index} ended at once")
            _check(time.monotonic() < deadline, f"node {index} did not come up")
            time.sleep(0.05)

    def _log(self, index: int) -> Path:
        return Path(self._folder.name) / f"node-{index}.log"

    def kill_node(self, index: int) -> None:
        """Kill the raylet of node ``index`` (SIGKILL), as if its machine had gone."""
        raylet = _raylet(self._processes[index].pid)
        _check(raylet is not None, f"node {index} has no raylet")
        os.kill(int(raylet or 0), signal.SIGKILL)

    def replace_node(self, index: int) -> None:
        """Start a new node in the place of one that was killed, and wait until it has joined."""
        _end(self._processes[index])
        self._processes[index] = self._start(index)
        self._wait_until_started(index)

    def _start(self, index: int) -> subprocess.Popen[bytes]:
        lowest = 20000 + 1000 * index
        head = (
            *("--head", f"--port={self._port}", f"--ray-client-server-port={_free_port()}"),
            *("--include-dashboard=false", "--no-monitor", f"--temp-dir={self._folder.name}"),
        )
        role = [f"--address={self.address}"] if index else head
        arguments = (
            *(f"--num-cpus={self._cpus}", f"--node-ip-address={_HOST.format(index + 2)}"),
            *(f"--object-store-memory={_STORE_BYTES}", "--disable-usage-stats", "--block"),
            "--include-log-monitor=false",  # nobody here hears of what workers print
            *(f"--min-worker-port={lowest}", f"--max-worker-port={lowest + 999}"),
        )
        with self._log(index).open("wb") as log:
            return subprocess.Popen(
                [sys.executable, "-c", _RAY, self._python, "start", *role, *arguments],
                stdout=log,
                stderr=log,
                stdin=subprocess.DEVNULL,
                start_new_session=True,
                env={**os.environ, **_ENVIRONMENT},
            )


def _raylet(root: int) -> int | None:
    """The raylet below a ``ray start --block``."""
    return next((pid for pid in descendants(root) if psutil.Process(pid).name() == "raylet"), None)


def _end(process: subprocess.Popen[bytes]) -> None:
    pids = [process.pid, *descendants(process.pid)]
    process.terminate()
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(10)
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    process.wait()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind((_HOST.format(2), 0))
        return int(probe.getsockname()[1])


def _check(fine: bool, fault: str) -> None:
    if not fine:
        raise RuntimeError(f"the Ray cluster for tests: {fault}")

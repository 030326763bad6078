"""Clients as processes of their own, as their users run them. They reach this machine alone."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
CLIENTS = ROOT / ".clients"
NODE_CLIENTS = CLIENTS / "node_modules"
WAIT_S = 240.0
"""A client that hangs fails its test."""
_LONGEST_LINE = 2**24
_WORDS = count(1)


def installed(path: Path) -> str:
    """The program of a client. Fails the test where the set-up has not installed it."""
    if not path.exists():
        pytest.fail(f"{path.relative_to(ROOT)} is missing: run .ci/setup-clients")
    return str(path)


def environment(home: Path, **more: str) -> dict[str, str]:
    """No setting of whoever runs the tests, and no way to other machines."""
    nowhere = "http://127.0.0.1:9"
    return {
        "PATH": os.environ["PATH"],
        "HOME": str(home),
        "HTTP_PROXY": nowhere,
        "HTTPS_PROXY": nowhere,
        "NO_PROXY": "127.0.0.1",
        **more,
    }


@dataclass(frozen=True, slots=True)
class Ended:
    """A process that ended by itself: its exit code and what it printed."""

    code: int
    out: str
    err: str


@asynccontextmanager
async def started(
    *command: str, folder: Path, environ: Mapping[str, str], stdin: int = subprocess.DEVNULL
) -> AsyncIterator[asyncio.subprocess.Process]:
    """Run a client until the block ends, with its output in pipes."""
    process = await asyncio.create_subprocess_exec(
        *command,
        cwd=folder,
        env=dict(environ),
        stdin=stdin,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,  # some are launchers of another process
        limit=_LONGEST_LINE,
    )
    try:
        yield process
    finally:
        if process.returncode is None:
            os.killpg(process.pid, signal.SIGKILL)
            await process.wait()


async def ended(process: asyncio.subprocess.Process) -> Ended:
    """Wait for the end of a client that was started."""
    out, err = await asyncio.wait_for(process.communicate(), WAIT_S)
    assert process.returncode is not None
    return Ended(process.returncode, out.decode(), err.decode())


async def run(*command: str, folder: Path, environ: Mapping[str, str]) -> Ended:
    """Run a client to its end."""
    async with started(*command, folder=folder, environ=environ) as process:
        return await ended(process)


@dataclass(slots=True)
class Script:
    """A script of `tests/clients/scripts` that runs: an SDK, loaded once for its scenarios."""

    process: asyncio.subprocess.Process
    name: str

    async def play(self, scenario: str) -> Any:
        """What a scenario gives. Its prompts hold a word that no other has."""
        answer = await self.ask(scenario)
        assert "error" not in answer, answer["error"]
        return answer["result"]

    async def ask(self, scenario: str) -> dict[str, Any]:
        """The same as ``result``, or the client's own ``error``."""
        pipe, out = self.process.stdin, self.process.stdout
        assert pipe is not None
        assert out is not None
        asked = {"script": self.name, "scenario": scenario, "word": f"w{next(_WORDS)}"}
        pipe.write(json.dumps(asked).encode() + b"\n")
        line = await asyncio.wait_for(out.readline(), WAIT_S)
        answer: dict[str, Any] = json.loads(line or '{"error": "the script died"}')
        return answer


@asynccontextmanager
async def script(name: str, environ: Mapping[str, str]) -> AsyncIterator[Script]:
    """``node/NAME.cjs`` of the scripts, or those of ``python`` or ``litellm``, running."""
    process = await asyncio.create_subprocess_exec(
        *_command(name),
        cwd=ROOT,
        env={**environ, "NODE_PATH": str(NODE_CLIENTS)},
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    try:
        yield Script(process, name.rpartition("/")[2])
    finally:
        process.kill()
        await process.wait()


class Scripts(AsyncExitStack):
    """Scripts that run from when they are asked for until the block's end. Those of one Python
    share a process, which imports once what they share.
    """

    def __init__(self, environ: Mapping[str, str]) -> None:
        super().__init__()
        self._environ = environ
        self._open: dict[str, Script] = {}

    async def named(self, name: str) -> Script:
        """``python/NAME.py``, ``litellm/NAME.py`` or ``node/NAME.cjs``."""
        folder, _, file = name.partition("/")
        shared = name if folder == "node" else folder
        if shared not in self._open:
            self._open[shared] = await self.enter_async_context(script(shared, self._environ))
        return replace(self._open[shared], name=file)


def _command(name: str) -> list[str]:
    if name.startswith("node/"):
        installed(NODE_CLIENTS)
        return ["node", f"tests/clients/scripts/{name}.cjs"]
    python = installed(CLIENTS / name / "bin" / "python")
    return [python, "-m", "tests.clients.scripts.scenarios", name]

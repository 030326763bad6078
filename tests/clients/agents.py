"""Coding agents as `agentrt client` starts them."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import Mapping
from contextlib import AbstractAsyncContextManager
from pathlib import Path

from tests.clients.processes import (
    NODE_CLIENTS,
    ROOT,
    Ended,
    ended,
    environment,
    installed,
    started,
)

CODEX = ("-c", 'approval_policy="never"', "-c", 'sandbox_mode="danger-full-access"')
"""A person would say these things to Codex as it asks."""


async def claude_code(url: str, model: str, folder: Path, ask: str, *arguments: str) -> Ended:
    """Claude Code in ``folder``; what it prints is JSON."""
    printed = ("-p", ask, "--output-format", "json", *arguments)
    return await client("claude", url, model, folder, *printed)


async def codex(url: str, model: str, folder: Path, *arguments: str) -> Ended:
    """Codex in ``folder``; what it prints is its last answer."""
    settings, variables = codex_setup(folder)
    return await client("codex", url, model, folder, *settings, *arguments, **variables)


def codex_setup(folder: Path) -> tuple[tuple[str, ...], dict[str, str]]:
    """Arguments and variables of Codex in ``folder``."""
    home = folder / "codex"
    home.mkdir(exist_ok=True)
    return (*CODEX, "exec", "--skip-git-repo-check"), {"CODEX_HOME": str(home)}


async def opencode(url: str, model: str, folder: Path, *arguments: str) -> Ended:
    """OpenCode in ``folder``; what it prints is what it does."""
    allow_all(folder)
    return await client("opencode", url, model, folder, "run", *arguments)


def allow_all(folder: Path) -> None:
    """Let OpenCode use its tools in ``folder`` unasked."""
    (work_of(folder) / "opencode.json").write_text(json.dumps({"permission": "allow"}))


async def client(
    name: str, url: str, model: str, folder: Path, *arguments: str, **variables: str
) -> Ended:
    """A client in ``folder``, as ``agentrt client`` starts it."""
    where = (name, url, model, folder)
    async with running(*where, *arguments, variables=variables) as process:
        return await ended(process)


def running(
    name: str,
    url: str,
    model: str,
    folder: Path,
    *arguments: str,
    stdin: int = subprocess.DEVNULL,
    variables: Mapping[str, str] = {},
) -> AbstractAsyncContextManager[asyncio.subprocess.Process]:
    """A client in ``folder``, as ``agentrt client`` starts it, until the block ends."""
    program = Path(installed(NODE_CLIENTS / ".bin" / name))
    environ = environment(folder, PYTHONPATH=str(ROOT), **variables)
    return started(
        *(sys.executable, "-m", "agentrt.cli", "client", name, url, "--model", model),
        *arguments,
        folder=work_of(folder),
        environ={**environ, "PATH": f"{program.parent}:{environ['PATH']}"},
        stdin=stdin,
    )


def work_of(folder: Path) -> Path:
    """The agent's own folder, beside its home."""
    work = folder / "work"
    work.mkdir(exist_ok=True)
    return work


def made(folder: Path) -> str:
    """What the agent's shell wrote into the file that it was asked for."""
    return (work_of(folder) / "made.txt").read_text()

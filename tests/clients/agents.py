"""Coding agents as `agentrt client` starts them."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from tests.clients.processes import NODE_CLIENTS, ROOT, Ended, environment, installed, run

CODEX = ("-c", 'approval_policy="never"', "-c", 'sandbox_mode="danger-full-access"')
"""A person would say these things to Codex as it asks."""


async def claude_code(url: str, model: str, folder: Path, ask: str, *arguments: str) -> Ended:
    """Claude Code in ``folder``; what it prints is JSON."""
    asked = ("-p", ask, "--output-format", "json", *arguments)
    return await client("claude", url, model, folder, *asked)


async def codex(url: str, model: str, folder: Path, *arguments: str) -> Ended:
    """Codex in ``folder``; what it prints is its last answer."""
    home = folder / "codex"
    home.mkdir(exist_ok=True)
    asked = (*CODEX, "exec", "--skip-git-repo-check", *arguments)
    return await client("codex", url, model, folder, *asked, CODEX_HOME=str(home))


async def opencode(url: str, model: str, folder: Path, *arguments: str) -> Ended:
    """OpenCode in ``folder``; what it prints is what it does."""
    (_work(folder) / "opencode.json").write_text(json.dumps({"permission": "allow"}))
    return await client("opencode", url, model, folder, "run", *arguments)


async def client(
    name: str, url: str, model: str, folder: Path, *arguments: str, **variables: str
) -> Ended:
    """A client in ``folder``, as ``agentrt client`` starts it."""
    program = Path(installed(NODE_CLIENTS / ".bin" / name))
    environ = environment(folder, PYTHONPATH=str(ROOT), **variables)
    return await run(
        *(sys.executable, "-m", "agentrt.cli", "client", name, url, "--model", model),
        *arguments,
        folder=_work(folder),
        environ={**environ, "PATH": f"{program.parent}:{environ['PATH']}"},
    )


def _work(folder: Path) -> Path:
    """The agent's own folder, beside its home."""
    work = folder / "work"
    work.mkdir(exist_ok=True)
    return work


def made(folder: Path) -> str:
    """What the agent's shell wrote into the file that it was asked for."""
    return (_work(folder) / "made.txt").read_text()

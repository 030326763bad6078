"""Coding agents with the settings that docs/clients.md has for their users."""

from __future__ import annotations

import json
from pathlib import Path

from tests.clients.processes import NODE_CLIENTS, Ended, environment, installed, run

CODEX = """
model = "{model}"
model_provider = "agentrt"
approval_policy = "never"
sandbox_mode = "danger-full-access"
check_for_update_on_startup = false

[analytics]
enabled = false

[model_providers.agentrt]
name = "agentrt"
base_url = "{url}/v1"
wire_api = "responses"
env_key = "AGENTRT_API_KEY"
"""


async def claude_code(url: str, model: str, folder: Path, ask: str, *arguments: str) -> Ended:
    """Claude Code in ``folder``; what it prints is JSON."""
    return await run(
        installed(NODE_CLIENTS / ".bin" / "claude"),
        *("-p", ask, "--output-format", "json", *arguments),
        folder=_work(folder),
        environ=environment(
            folder,
            ANTHROPIC_BASE_URL=url,
            ANTHROPIC_API_KEY="none",
            ANTHROPIC_MODEL=model,
            CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC="1",
        ),
    )


async def codex(url: str, model: str, folder: Path, *arguments: str) -> Ended:
    """Codex in ``folder``; what it prints is its last answer."""
    home = folder / "codex"
    home.mkdir(exist_ok=True)
    (home / "config.toml").write_text(CODEX.format(model=model, url=url))
    return await run(
        installed(NODE_CLIENTS / ".bin" / "codex"),
        *("exec", "--skip-git-repo-check", *arguments),
        folder=_work(folder),
        environ=environment(folder, CODEX_HOME=str(home), AGENTRT_API_KEY="none"),
    )


async def opencode(url: str, model: str, folder: Path, *arguments: str) -> Ended:
    """OpenCode in ``folder``; what it prints is what it does."""
    models = {model: {"limit": {"context": 200_000, "output": 2000}}}
    provider = {
        "npm": "@ai-sdk/openai-compatible",
        "options": {"baseURL": f"{url}/v1", "apiKey": "none"},
        "models": models,
    }
    config = {
        "autoupdate": False,
        "share": "disabled",
        "model": f"agentrt/{model}",
        "permission": "allow",
        "provider": {"agentrt": provider},
    }
    (_work(folder) / "opencode.json").write_text(json.dumps(config))
    return await run(
        installed(NODE_CLIENTS / ".bin" / "opencode"),
        *("run", *arguments),
        folder=_work(folder),
        environ=environment(folder, OPENCODE_DISABLE_MODELS_FETCH="1"),
    )


def _work(folder: Path) -> Path:
    """The agent's own folder, beside its home."""
    work = folder / "work"
    work.mkdir(exist_ok=True)
    return work


def made(folder: Path) -> str:
    """What the agent's shell wrote into the file that it was asked for."""
    return (_work(folder) / "made.txt").read_text()

"""``benchmarks agent-session``: the cached tokens of a coding agent's session, turn by turn.

Claude Code, Codex or OpenCode runs as `agentrt client` starts it. The agent's server has vLLM's
front end, a scripted model that runs a command in each turn, and vLLM's own KV-cache manager.
"""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, astuple, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from agentrt.errors import ConfigError, EngineStartError
from agentrt.lab.commands.options import count_option, json_flag
from agentrt.lab.reports.tables import markdown
from benchmarks.harness import show
from benchmarks.results import ROOT

if TYPE_CHECKING:
    from tests.clients.sessions import CachedCall

CLIENTS = ("claude", "codex", "opencode")


@click.command("agent-session")
@click.option(
    "--client", type=click.Choice(CLIENTS), default="claude", show_default=True, help="The agent."
)
@count_option(
    "--turns",
    "Number of user messages. The agent runs a command in each turn.",
    default=20,
    least=2,
)
@json_flag("Print the turns as one JSON line, too.")
def agent_session(client: str, turns: int, as_json: bool) -> None:
    """Measure the cached tokens of a coding agent's session by turn.

    The column *share* is the number of cached tokens divided by the number of tokens that could be
    cached: the prompt and the answer of the previous call of the session. Claude Code runs all
    turns in one process; the other agents are resumed for each turn. Needs no GPU.
    .ci/setup-clients installs the agents.
    """
    if not (ROOT / ".clients" / "node_modules" / ".bin" / client).exists():
        raise ConfigError(f"{client} is missing in .clients; run .ci/setup-clients")
    measured = asyncio.run(measure(client, turns))
    show(table(measured), as_dict(client, measured), as_json=as_json)


@dataclass(frozen=True, slots=True)
class Turn:
    """The number of a turn's calls, and the sums of the calls' tokens."""

    calls: int
    prompt: int
    cacheable: int
    cached: int

    @property
    def share(self) -> float | None:
        """The cached share of the tokens that could be cached; None if there were none."""
        return self.cached / self.cacheable if self.cacheable else None


async def measure(client: str, turns: int) -> list[Turn]:
    """Run a session with ``turns`` turns. Raises `EngineStartError` if a turn fails."""
    from tests.clients.server import watch
    from tests.clients.sessions import cached_calls, open_sessions, session_turns

    async with open_sessions() as local:
        seen, ends = watch(local), list[int]()
        with tempfile.TemporaryDirectory(prefix="agentrt-bench-") as folder:
            async for answer in session_turns(client, local, Path(folder), turns):
                if "Done with shell." not in answer:
                    raise EngineStartError(f"turn {len(ends) + 1} of {client} failed: {answer}")
                await seen.shapes()
                ends.append(len(local.engine.calls))
        [run] = seen.programs
        calls = cached_calls(run)
    starts = [0, *ends]
    return [turn_of(calls[start:end]) for start, end in zip(starts, ends, strict=False)]


def turn_of(calls: Sequence[CachedCall]) -> Turn:
    """Return the number of a turn's calls, and the sums of the calls' prompt tokens, of the tokens
    that could be cached, and of the cached tokens.
    """
    return Turn(
        len(calls),
        sum(call.prompt for call in calls),
        sum(call.cacheable for call in calls),
        sum(call.cached for call in calls),
    )


def whole(turns: Sequence[Turn]) -> Turn:
    """Return the sums of the turns' fields."""
    return Turn(*map(sum, zip(*map(astuple, turns), strict=True)))


def table(turns: Sequence[Turn]) -> str:
    """Return a table with a row for each turn, and a row for all turns."""
    each = [*enumerate(turns, 1), ("all", whole(turns))]
    rows = [
        [name, turn.calls, turn.prompt, turn.cacheable, turn.cached, _percent(turn.share)]
        for name, turn in each
    ]
    return markdown(["turn", "calls", "prompt tokens", "could be cached", "cached", "share"], rows)


def _percent(share: float | None) -> str:
    return "" if share is None else f"{share:.1%}"


def as_dict(client: str, turns: Sequence[Turn]) -> dict[str, Any]:
    """Return all turns as JSON values."""
    return {"client": client, "share": whole(turns).share, "turns": [*map(asdict, turns)]}

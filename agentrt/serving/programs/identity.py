"""Whose a call is, as its headers say. What they do not say, the conversation may."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from urllib.parse import unquote

from agentrt.executors.identity import PREFIX
from agentrt.serving.error_responses import ApiError
from agentrt.serving.programs.hints import Hints

SESSION_HEADERS = (
    "x-session-id",  # vLLM, LangChain gateways
    "x-claude-code-session-id",  # Claude Code
    "x-session-affinity",  # OpenCode
    "session-id",  # Codex
    "session_id",  # Codex, before
    "x-dynamo-session-id",  # Dynamo
    "x-smg-routing-key",  # SGLang's gateway
)
"""Headers by which agent clients name a session of theirs, which is a program here."""
PARENT_SESSIONS = ("x-dynamo-parent-session-id", "x-parent-session-id")  # Dynamo, llm-d
"""Headers that name the parent of a sub-agent's session: it belongs to its parent's program."""
AGENT_HEADER = "x-claude-code-agent-id"
"""The header by which Claude Code names a sub-agent: a branch of its session's program."""
PARENT_AGENT_HEADER = "x-claude-code-parent-agent-id"
"""And the header that names the sub-agent which began it, if another one did."""
AGENT_NODE = "agent"
"""The node of a sub-agent's calls, unless the client names one: all sub-agents are one kind."""
FINAL_HEADERS = ("x-dynamo-session-final", "x-session-final")  # Dynamo, llm-d
"""Headers by which a request says that its session ends with it."""

_OWN = ("program", "type", "session", "node", "call", "parents", "deadline")
_THEIRS = (
    *(*SESSION_HEADERS, *PARENT_SESSIONS, *FINAL_HEADERS),
    *(AGENT_HEADER, PARENT_AGENT_HEADER),
)
_CLAIMS = frozenset({*(f"{PREFIX}{name}" for name in _OWN), *_THEIRS})
CLAIMED = frozenset(name.encode("ascii") for name in _CLAIMS)
"""The headers that `read_claim` looks at, as they come."""
_LONGEST = 256
_MOST_PARENTS = 1024
_VISIBLE = re.compile(r"[^\x00-\x1f\x7f]+")
_LONGEST_TYPE = 128


@dataclass(frozen=True, slots=True)
class Claim:
    """What a client says of a call; None is not said.

    ``call`` is its own name for the call, and ``parents`` those of the calls that had to end
    last before it. ``deadline_s`` is in seconds from the program's first call. ``is_last`` says
    that the program is over when the request is. ``agent`` is the sub-agent that makes the call,
    and ``parent_agent`` the one that began it.
    """

    program: str | None = None
    type: str | None = None
    session: str | None = None
    node: str = ""
    call: str | None = None
    parents: tuple[str, ...] | None = None
    deadline_s: float | None = None
    is_last: bool = False
    agent: str | None = None
    parent_agent: str | None = None


def read_claim(headers: Mapping[str, str], hints: Hints) -> Claim:
    """The claim of a request; ``hints`` are those of its body.

    Raises `ApiError` for a header that cannot be, and names it.
    """

    def read(name: str, longest: int = _LONGEST) -> str | None:
        return _read(headers, f"{PREFIX}{name}", longest)

    if _CLAIMS.isdisjoint(headers):
        return Claim(program=hints.program, type=hints.type, is_last=hints.is_last)

    def first(names: Iterable[str]) -> str | None:
        return next(filter(None, (_read(headers, name) for name in names)), None)

    parent, agent = first(PARENT_SESSIONS), _read(headers, AGENT_HEADER)
    final = any(headers.get(name, "").lower() == "true" for name in FINAL_HEADERS)
    program = read("program") or parent or hints.program or first(SESSION_HEADERS)
    final |= hints.is_last and program == hints.program
    return Claim(
        program=program,
        type=read("type", _LONGEST_TYPE) or hints.type,
        session=read("session") or None,
        node=read("node") or (AGENT_NODE if agent else ""),
        call=read("call"),
        parents=_parents(headers.get(f"{PREFIX}parents")),
        deadline_s=_seconds(f"{PREFIX}deadline", headers.get(f"{PREFIX}deadline")),
        is_last=final and parent is None and agent is None,  # its parent goes on
        agent=agent,
        parent_agent=_read(headers, PARENT_AGENT_HEADER) if agent else None,
    )


def _read(headers: Mapping[str, str], name: str, longest: int = _LONGEST) -> str | None:
    given = headers.get(name)
    if not given:
        return None
    value = unquote(given)
    if len(value) > longest or not _VISIBLE.fullmatch(value):
        raise ApiError(400, f"header {name}: at most {longest} visible characters", param=name)
    return value


def _parents(given: str | None) -> tuple[str, ...] | None:
    if given is None:
        return None
    names = tuple(filter(None, (part.strip() for part in given.split(","))))
    if len(names) > _MOST_PARENTS:
        name = f"{PREFIX}parents"
        raise ApiError(400, f"header {name}: at most {_MOST_PARENTS} names", param=name)
    return names


def _seconds(name: str, given: str | None) -> float | None:
    if given is None:
        return None
    try:
        seconds = float(given)
    except ValueError:
        seconds = math.nan
    if not 0 < seconds <= 7 * 24 * 3600:
        raise ApiError(400, f"header {name}: seconds, above 0 and within a week", param=name)
    return seconds

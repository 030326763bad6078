"""Read from the headers of a request which program the request belongs to, and where in the
program's graph.

If neither the headers nor the body name a program, the program is recognised by the request's
conversation (`agentrt.serving.programs.conversation`).

To add a header that says something about a program: add it to `_OWN`, to `Claim` and to
`read_claim`. It then also decides whether a request is a retry (`CLAIMED`). A header about the
tenant or the key is read in `agentrt.serving.middleware`. A header of an answer that pages of
other origins may read is named in `agentrt.serving.origins`.
"""

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
    "session_id",  # older versions of Codex
    "x-dynamo-session-id",  # Dynamo
    "x-smg-routing-key",  # SGLang's gateway
)
"""Headers in which agent clients name their session. A client's session is a program here."""
PARENT_SESSIONS = ("x-dynamo-parent-session-id", "x-parent-session-id")  # Dynamo, llm-d
"""Headers that name the parent of a sub-agent's session. The sub-agent's calls belong to the
parent's program.
"""
AGENT_HEADER = "x-claude-code-agent-id"
"""The header in which Claude Code names a sub-agent, a branch of its session's program."""
PARENT_AGENT_HEADER = "x-claude-code-parent-agent-id"
"""The header in which Claude Code names the sub-agent that started this sub-agent, if any."""
AGENT_NODE = "agent"
"""The node name of a sub-agent's calls, unless the client names the node."""
FINAL_HEADERS = ("x-dynamo-session-final", "x-session-final")  # Dynamo, llm-d
"""Headers that mark the last request of a session."""

_OWN = ("run", "program", "type", "session", "node", "call", "parents", "deadline")
_THEIRS = (
    *(*SESSION_HEADERS, *PARENT_SESSIONS, *FINAL_HEADERS),
    *(AGENT_HEADER, PARENT_AGENT_HEADER),
)
_CLAIMS = frozenset({*(f"{PREFIX}{name}" for name in _OWN), *_THEIRS})
CLAIMED = frozenset(name.encode("ascii") for name in _CLAIMS)
"""The headers that `read_claim` reads, as lower-case bytes."""
_LONGEST = 256
_MOST_PARENTS = 1024
_VISIBLE = re.compile(r"[^\x00-\x1f\x7f]+")
_LONGEST_TYPE = 128


@dataclass(frozen=True, slots=True)
class Claim:
    """The claims of a client about a request. A field that the client does not set has its default.

    ``call`` is the client's name for the call, and ``parents`` are the names of the calls that this
    call depends on. ``deadline_s`` is in seconds from the program's beginning. ``is_last`` says
    that the program ends with this request. ``agent`` is the sub-agent that makes the call, and
    ``parent_agent`` the sub-agent that started ``agent``.
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
    """Return the claim of a request from its headers and the ``hints`` of its body.

    Raises `ApiError`, with the header's name, for an invalid header.
    """

    def read(name: str, longest: int = _LONGEST) -> str | None:
        return _read(headers, f"{PREFIX}{name}", longest)

    if _CLAIMS.isdisjoint(headers):
        return Claim(program=hints.program, type=hints.type, is_last=hints.is_last)

    def first(names: Iterable[str]) -> str | None:
        return next(filter(None, (_read(headers, name) for name in names)), None)

    parent, agent = first(PARENT_SESSIONS), _read(headers, AGENT_HEADER)
    final = any(headers.get(name, "").lower() == "true" for name in FINAL_HEADERS)
    program = read("run") or read("program") or parent or hints.program or first(SESSION_HEADERS)
    final |= hints.is_last and program == hints.program
    return Claim(
        program=program,
        type=read("type", _LONGEST_TYPE) or hints.type,
        session=read("session") or None,
        node=read("node") or (AGENT_NODE if agent else ""),
        call=read("call"),
        parents=_parents(headers.get(f"{PREFIX}parents")),
        deadline_s=_seconds(f"{PREFIX}deadline", headers.get(f"{PREFIX}deadline")),
        is_last=final and parent is None and agent is None,  # a sub-agent's end is not its parent's
        agent=agent,
        parent_agent=_read(headers, PARENT_AGENT_HEADER) if agent else None,
    )


def _read(headers: Mapping[str, str], name: str, longest: int = _LONGEST) -> str | None:
    raw_value = headers.get(name)
    if not raw_value:
        return None
    value = unquote(raw_value)
    if len(value) > longest or not _VISIBLE.fullmatch(value):
        text = f"header {name}: invalid value {value[:40]!r}; use at most {longest} visible "
        text += "characters"
        raise ApiError(400, text, param=name)
    return value


def _parents(raw_value: str | None) -> tuple[str, ...] | None:
    if raw_value is None:
        return None
    # The names are decoded after the split, because a name may contain an encoded comma.
    names = tuple(unquote(name) for part in raw_value.split(",") if (name := part.strip()))
    if len(names) > _MOST_PARENTS:
        name = f"{PREFIX}parents"
        text = f"header {name}: {len(names)} names; use at most {_MOST_PARENTS}"
        raise ApiError(400, text, param=name)
    return names


def _seconds(name: str, raw_value: str | None) -> float | None:
    if raw_value is None:
        return None
    try:
        seconds = float(raw_value)
    except ValueError:
        seconds = math.nan
    if not 0 < seconds <= 7 * 24 * 3600:
        text = f"header {name}: {raw_value[:40]!r} is invalid; use seconds above 0, up to a week"
        raise ApiError(400, text, param=name)
    return seconds

"""Sessions of coding agents that go as their users' words say, on a server with a prefix cache.

A user's text holds the name of a step and a number: "step-shell-1". The scripted model makes the
calls of the step one after the other, and then says that it is done.
"""

from __future__ import annotations

import asyncio
import json
import math
import re
import subprocess
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from agentrt.executors.vllm.default_model import embedded_model
from agentrt.graph import NodeKind
from agentrt.request import Call
from agentrt.runtime.run import Run
from agentrt.scheduler.table import ProgramState, state_of
from tests.clients.agents import allow_all, codex_setup, running
from tests.clients.model import LONG
from tests.clients.processes import WAIT_S, ended
from tests.clients.server import FLAGS, PatientEngine
from tests.doubles.prefix_cache import PrefixCache
from tests.serving.local import MODEL, LocalServer, open_server

TEMPLATE = Path(__file__).with_name("chat.jinja")
SESSION_FLAGS = (*FLAGS, f"--chat-template={TEMPLATE}")
WAITING = "until [ -e go ]; do sleep 0.1; done; echo gone"
"""A command that runs until there is a file ``go`` in its folder."""
LOOK = "Look around."
"""What a sub-agent is to do. Codex's sub-agents have their parent's history before it."""
NOTHING = "Nothing is there."
"""What a sub-agent answers."""
_WITHOUT_END = ("hold", "linger")
"""The steps that end in an answer which the engine never completes."""
_STEP = re.compile(r"(?<!Calling )step-(\w+)-\d+")
Steps = Mapping[str, Sequence[tuple[str, Mapping[str, Any]]]]


def steps_of(client: str) -> Steps:
    """The steps of a client, with its own tools: ``shell``, ``wait`` (for a file) and ``agent``;
    ``hold`` has an answer without an end, and ``linger`` waits before it.
    """
    match client:
        case "claude":
            name, key, about = "Bash", "command", {"description": "Count"}
            task = {"description": "look", "prompt": LOOK, "subagent_type": "general-purpose"}
            agent = [("Agent", task)]
        case "codex":
            name, key, about = "exec_command", "cmd", {}
            task = {"task_name": "look", "message": LOOK}
            agent = [("collaboration__spawn_agent", task), ("collaboration__wait_agent", {})]
        case _:
            name, key, about = "bash", "command", {"description": "Count"}
            agent = [("task", {"description": "look", "prompt": LOOK, "subagent_type": "general"})]
    return {
        "shell": [(name, {key: "seq 1 40", **about})],
        "wait": [(name, {key: WAITING, **about})],
        "agent": agent,
        "hold": [],
        "linger": [(name, {key: WAITING, **about})],
    }


def answer(prompt: str, steps: Steps) -> str:
    """The output for a prompt: the next call of its last step, or an answer."""
    steps_said = list(_STEP.finditer(prompt))
    if not steps_said or f"Payload:\n{LOOK}" in prompt:
        return NOTHING
    step = steps_said[-1]
    calls = steps[step[1]]
    made = prompt.count(f"Calling {step[0]}.")
    if made >= len(calls):
        return LONG if step[1] in _WITHOUT_END else f"Done with {step[1]}."
    name, arguments = calls[made]
    called = json.dumps({"name": name, "arguments": arguments})
    return f"Calling {step[0]}.\n<tool_call>\n{called}\n</tool_call>"


class CachingEngine(PatientEngine):
    """A `PatientEngine` with a prefix cache."""

    def __init__(self, **fields: Any) -> None:
        super().__init__(**{**fields, "cache": PrefixCache()})


@asynccontextmanager
async def open_sessions() -> AsyncIterator[LocalServer]:
    """A server for sessions, until the block ends."""
    tokenizer = Tokenizer.from_file(f"{embedded_model(lambda message: None)}/tokenizer.json")

    def script(call: Call) -> str:
        prompt = tokenizer.decode(list(call.spec.prompt_token_ids or ()))
        return answer(prompt, steps_of(client_of(prompt)))

    async with open_server(script, kind=CachingEngine, flags=SESSION_FLAGS) as local:
        yield local


def client_of(prompt: str) -> str:
    """The client that a prompt is from, by its first tool."""
    return next(
        (
            name
            for name, tool in (("codex", '"exec_command"'), ("claude", '"Bash"'))
            if f'{{"name": {tool}' in prompt
        ),
        "opencode",
    )


def begun(
    client: str, local: LocalServer, folder: Path, text: str, *arguments: str, again: bool = False
) -> Any:
    """A client in ``folder`` that is to do ``text``, until the block ends. With ``again`` it goes
    on with its last session there.
    """
    where = (client, local.url, MODEL, folder)
    if client == "claude":
        resumed = ["--continue"] if again else []
        printed = ["-p", text, *resumed, "--output-format", "json", "--allowedTools=Bash,Agent"]
        return running(*where, *arguments, *printed)
    if client == "codex":
        settings, variables = codex_setup(folder)
        resumed = ["resume", "--last"] if again else []
        return running(*where, *arguments, *settings, *resumed, text, variables=variables)
    allow_all(folder)
    resumed = ["--continue"] if again else ["--title", "A session"]
    return running(*where, "run", *arguments, *resumed, text)


class ClaudeCode:
    """A session of Claude Code that takes one message after the other."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process

    async def say(self, text: str) -> str:
        """Send a message. Return the text of the answer, when the turn has ended."""
        self.tell(text)
        return str((await self.result()).get("result"))

    def tell(self, text: str) -> None:
        """Send a message, without waiting for the answer."""
        self._send({"type": "user", "message": {"role": "user", "content": text}})

    def interrupt(self) -> None:
        """Cancel the turn, as the user's Esc does."""
        request = {"subtype": "interrupt"}
        self._send({"type": "control_request", "request_id": "1", "request": request})

    def _send(self, message: Any) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(message).encode() + b"\n")

    async def result(self) -> dict[str, Any]:
        """What Claude Code says as a turn ends."""
        assert self._process.stdout is not None
        while True:
            line = await asyncio.wait_for(self._process.stdout.readline(), WAIT_S)
            assert line, "Claude Code ended"
            message: dict[str, Any] = json.loads(line)
            if message["type"] == "result":
                return message


@asynccontextmanager
async def claude_session(
    local: LocalServer, folder: Path, *arguments: str
) -> AsyncIterator[ClaudeCode]:
    """A session of Claude Code in ``folder``, until the block ends."""
    streams = ("--input-format", "stream-json", "--output-format", "stream-json", "--verbose")
    where = ("claude", local.url, MODEL, folder)
    tools = "--allowedTools=Bash,Agent"
    printed = ("-p", *streams, tools, *arguments)
    async with running(*where, *printed, stdin=subprocess.PIPE) as process:
        yield ClaudeCode(process)


async def session_turns(
    client: str, local: LocalServer, folder: Path, turns: int
) -> AsyncIterator[str]:
    """What a session's turns print, each of which runs a command. Claude Code stays one process;
    the others are resumed for each turn.
    """
    if client == "claude":
        async with claude_session(local, folder) as session:
            for turn in range(turns):
                yield await session.say(f"step-shell-{turn}")
        return
    for turn in range(turns):
        text, again = f"step-shell-{turn}", turn > 0
        async with begun(client, local, folder, text, again=again) as process:
            end = await ended(process)
            yield end.out if end.code == 0 else end.err


@dataclass(frozen=True, slots=True)
class CachedCall:
    """Tokens of one call of a session: its prompt's, those of it that were cached, and those that
    the call before it in the session left behind (its prompt and output).
    """

    prompt: int
    cached: int
    cacheable: int


def cached_calls(run: Run, scope: str = "chat") -> list[CachedCall]:
    """The calls of a session in order, without those of sub-agents."""
    reports = [
        node.report
        for node in run.dag.nodes()
        if node.kind is NodeKind.CALL and node.scope == scope and node.report is not None
    ]
    calls = [CachedCall(reports[0].prompt_tokens, reports[0].cached_tokens, 0)]
    for before, report in pairwise(reports):
        left = before.prompt_tokens + before.output_tokens
        cacheable = min(left, report.prompt_tokens)
        calls.append(CachedCall(report.prompt_tokens, report.cached_tokens, cacheable))
    return calls


def share_cached(calls: Sequence[CachedCall]) -> float:
    """The share of the tokens that could be cached which were."""
    later = calls[1:]
    return sum(call.cached for call in later) / sum(call.cacheable for call in later)


def is_in_tool(local: LocalServer, run: Run) -> bool:
    """Whether a program is in a tool, as the table of programs says."""
    return state_of(run.row, local.runtime.now(), math.inf) is ProgramState.IN_TOOL

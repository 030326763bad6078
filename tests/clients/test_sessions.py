"""Coding agents' sessions beyond the first message, as docs/clients.md tells of them.

In `test_agents` are a tool call, Codex's resume and compaction, and Claude Code's compaction.
"""

from __future__ import annotations

import json
import signal
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
from tokenizers import Tokenizer

from agentrt.executors.vllm.default_model import embedded_model
from agentrt.request import Call
from tests.clients.agents import work_of
from tests.clients.features import CACHED as CACHED_TOKENS
from tests.clients.features import (
    CANCELLED,
    COMPACTED,
    LONG_TOOL,
    RESUMED,
    SUB_AGENT,
    TURNS,
    TWO,
    shows,
)
from tests.clients.processes import ended
from tests.clients.server import Shape, watch
from tests.clients.sessions import (
    NOTHING,
    SESSION_FLAGS,
    CachingEngine,
    begun,
    cached_calls,
    claude_session,
    is_in_tool,
    open_sessions,
    steps_of,
)
from tests.serving.local import MODEL, LocalServer, open_server

pytestmark = [pytest.mark.engine, pytest.mark.asyncio(loop_scope="session")]

CLIENTS = ("claude", "codex", "opencode")
CODEX_AGENTS = ("--enable", "multi_agent_v2")
CACHED = 0.95
"""The share of what could be cached that is."""


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def sessions() -> AsyncIterator[LocalServer]:
    async with open_sessions() as opened:
        yield opened


async def text_of(local: LocalServer, call: Call) -> str:
    """The prompt of a call."""
    body = {"model": MODEL, "tokens": list(call.spec.prompt_token_ids or ())}
    return str((await local.post("/detokenize", body))["prompt"])


def names(shape: Shape) -> list[str]:
    return [name for name, _ in shape]


@shows(TURNS, claude="works, in one process")
@shows(CACHED_TOKENS, claude="works")
async def test_claude_code_takes_several_turns(sessions: LocalServer, tmp_path: Path) -> None:
    seen = watch(sessions)
    async with claude_session(sessions, tmp_path) as session:
        for turn in range(3):
            assert await session.say(f"step-shell-{turn}") == "Done with shell."
    [shape] = await seen.shapes()
    assert names(shape) == ["call", "Bash", "call"] * 3
    calls = cached_calls(seen.programs[0])
    assert all(call.cached >= CACHED * call.cacheable for call in calls[1:]), calls


@shows(TURNS, codex="works, by `exec resume` (1)", opencode="works, by `run --continue` (1)")
@shows(
    SUB_AGENT,
    claude="works",
    codex="works with `--enable multi_agent_v2` (2)",
    opencode="works",
)
@shows(RESUMED, claude="works", codex="works", opencode="works")
@shows(CACHED_TOKENS, codex="works", opencode="works")
@shows(LONG_TOOL, claude="works", codex="works", opencode="works")
@shows(TWO, claude="works", codex="works", opencode="works")
@shows(CANCELLED, codex="works, by Ctrl-C", opencode="works, by Ctrl-C")
@pytest.mark.parametrize("client", CLIENTS)
async def test_two_sessions_are_two_programs(
    sessions: LocalServer, tmp_path: Path, client: str
) -> None:
    """1. A session has a sub-agent, and ends. 2. It is resumed, and runs a long tool beside another
    session. 3. The user ends the other session while its call runs, which the engine aborts.

    The sub-agent and both turns are one program, and each finds the prefix cached. A client takes
    seconds of a core to start, so one test has it all.
    """
    seen, engine = watch(sessions), sessions.engine
    arguments = CODEX_AGENTS if client == "codex" else ()
    steps, tool = steps_of(client), steps_of(client)["wait"][0][0]
    left, right = folders = [tmp_path / name for name in ("left", "right")]
    for folder in folders:
        folder.mkdir()
    async with begun(client, sessions, left, "step-agent-1", *arguments) as process:
        end = await ended(process)
        assert (end.code, "Done with agent." in end.out) == (0, True), end
    [shape] = await seen.shapes()
    # Claude Code is told of the sub-agent's end when it has answered, and answers once more.
    calls = {"claude": 4, "codex": 4, "opencode": 3}[client]
    tools = [name.removeprefix("collaboration__") for name, _ in steps["agent"]]
    assert Counter(names(shape)) == Counter(["call"] * calls + tools)
    assert any(parents == (1,) for name, parents in shape if name == "call"), shape
    assert NOTHING in await text_of(sessions, engine.calls[-1])
    whole = len(engine.calls[-1].spec.prompt_token_ids or ())

    async with (
        begun(client, sessions, left, "step-wait-2", *arguments, again=True) as resumed,
        begun(client, sessions, right, "step-linger-3") as other,
    ):
        await sessions.until(
            lambda: sum(is_in_tool(sessions, run) for run in seen.programs) == len(folders)
        )
        for folder in folders:
            (work_of(folder) / "go").touch()
        end = await ended(resumed)
        assert (end.code, "Done with wait." in end.out) == (0, True), end
        await sessions.until(lambda: engine.held)
        [call_id] = engine.held
        other.send_signal(signal.SIGINT)
        await sessions.until(lambda: not engine.held)
        await ended(other)
    assert engine.left[-1] == call_id
    assert engine.aborted_calls[-1] == call_id
    first, second = [names(shape) for shape in await seen.shapes()]
    assert first[-3:] == second == ["call", tool, "call"]
    again, last = cached_calls(seen.programs[0])[-2:]
    assert again.cached >= CACHED * whole
    assert last.cached >= CACHED * last.cacheable


@shows(CANCELLED, claude="works, and the session continues after the cancelled turn")
async def test_claude_code_goes_on_after_its_user_cancels_a_turn(
    sessions: LocalServer, tmp_path: Path
) -> None:
    seen = watch(sessions)
    engine = sessions.engine
    async with claude_session(sessions, tmp_path) as session:
        assert await session.say("step-shell-1") == "Done with shell."
        session.tell("step-hold-2")
        await sessions.until(lambda: engine.held)
        [call_id] = engine.held
        session.interrupt()
        await session.result()
        await sessions.until(lambda: not engine.held)
        assert engine.aborted_calls[-1] == call_id
        assert await session.say("step-shell-3") == "Done with shell."
    assert len(seen.programs) == 1


WINDOW = 32_768
SUMMARY = "They counted on."


@shows(COMPACTED, opencode="partly (3)")
async def test_opencode_compacts_before_the_window_of_the_model_is_full(tmp_path: Path) -> None:
    """A session with more results of tools than fit. A compaction has no tools."""
    tokenizer = Tokenizer.from_file(f"{embedded_model(lambda message: None)}/tokenizer.json")
    prompts: list[str] = []

    def script(call: Call) -> str:
        prompts.append(tokenizer.decode(list(call.spec.prompt_token_ids or ())))
        if '{"name": "bash"' not in prompts[-1]:
            return SUMMARY
        if any(SUMMARY in prompt for prompt in prompts):
            return "Done."
        counting = {"command": f"seq {len(prompts)}000 {len(prompts)}999", "description": "Count"}
        return f"<tool_call>\n{json.dumps({'name': 'bash', 'arguments': counting})}\n</tool_call>"

    flags = (*SESSION_FLAGS, f"--max-model-len={WINDOW}")
    async with (
        open_server(script, kind=CachingEngine, flags=flags) as local,
        begun("opencode", local, tmp_path, "Count.") as process,
    ):
        end = await ended(process)
        assert (end.code, "Done." in end.out) == (0, True), end
        sizes = [len(call.spec.prompt_token_ids or ()) for call in local.engine.calls]
        assert max(sizes) < WINDOW - 4096, sizes
        assert SUMMARY in prompts[-1]
        assert len(local.programs()) == 1

"""Coding agents' sessions beyond the first message, as docs/clients.md tells of them.

In `test_agents` are a tool call, Codex's resume and compaction, and Claude Code's compaction.
"""

from __future__ import annotations

import asyncio
import json
import signal
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
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
@pytest.mark.parametrize("client", CLIENTS)
async def test_a_session_with_a_sub_agent_is_resumed(
    sessions: LocalServer, tmp_path: Path, client: str
) -> None:
    """The sub-agent and both turns are one program, and each finds the prefix cached."""
    seen = watch(sessions)
    arguments = CODEX_AGENTS if client == "codex" else ()
    steps = steps_of(client)
    async with begun(client, sessions, tmp_path, "step-agent-1", *arguments) as process:
        end = await ended(process)
        assert (end.code, "Done with agent." in end.out) == (0, True), end
    [shape] = await seen.shapes()
    # Claude Code is told of the sub-agent's end when it has answered, and answers once more.
    calls = {"claude": 4, "codex": 4, "opencode": 3}[client]
    tools = [name.removeprefix("collaboration__") for name, _ in steps["agent"]]
    assert Counter(names(shape)) == Counter(["call"] * calls + tools)
    assert any(parents == (1,) for name, parents in shape if name == "call"), shape
    assert NOTHING in await text_of(sessions, sessions.engine.calls[-1])
    whole = len(sessions.engine.calls[-1].spec.prompt_token_ids or ())

    async with begun(client, sessions, tmp_path, "step-shell-2", *arguments, again=True) as process:
        end = await ended(process)
        assert (end.code, "Done with shell." in end.out) == (0, True), end
    [shape] = await seen.shapes()
    assert names(shape)[-3:] == ["call", steps["shell"][0][0], "call"]
    resumed, last = cached_calls(seen.programs[0])[-2:]
    assert resumed.cached >= CACHED * whole
    assert last.cached >= CACHED * last.cacheable


@shows(LONG_TOOL, claude="works", codex="works", opencode="works")
@shows(TWO, claude="works", codex="works", opencode="works")
@pytest.mark.parametrize("client", CLIENTS)
async def test_two_sessions_in_long_tools_are_two_programs(
    sessions: LocalServer, tmp_path: Path, client: str
) -> None:
    seen = watch(sessions)
    folders = [tmp_path / name for name in ("left", "right")]
    async with AsyncExitStack() as stack:
        processes = []
        for number, folder in enumerate(folders):
            folder.mkdir()
            started = begun(client, sessions, folder, f"step-wait-{number}")
            processes.append(await stack.enter_async_context(started))
        await sessions.until(
            lambda: sum(is_in_tool(sessions, run) for run in seen.programs) == len(folders)
        )
        for folder in folders:
            (work_of(folder) / "go").touch()
        for end in await asyncio.gather(*map(ended, processes)):
            assert (end.code, "Done with wait." in end.out) == (0, True), end
    tool = steps_of(client)["wait"][0][0]
    assert [names(shape) for shape in await seen.shapes()] == [["call", tool, "call"]] * 2


@shows(CANCELLED, codex="works, by Ctrl-C", opencode="works, by Ctrl-C")
@pytest.mark.parametrize("client", CLIENTS)
async def test_a_session_that_its_user_ends_is_aborted_in_the_engine(
    sessions: LocalServer, tmp_path: Path, client: str
) -> None:
    engine = sessions.engine
    async with begun(client, sessions, tmp_path, "step-hold-1") as process:
        await sessions.until(lambda: engine.held)
        [call_id] = engine.held
        process.send_signal(signal.SIGINT)
        await sessions.until(lambda: not engine.held)
        await ended(process)
    assert engine.left[-1] == call_id
    assert engine.aborted_calls[-1] == call_id


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

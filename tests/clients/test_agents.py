"""Coding agents as their users run them: a tool loop, its file, and one program on the server."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer

from agentrt.executors.vllm.default_model import embedded_model
from agentrt.request import Call
from agentrt.serving.frontend.response_items import SUMMARIZE
from agentrt.serving.frontend.response_socket import ResponseSocket
from tests.clients.agents import claude_code, codex, made, opencode
from tests.clients.features import COMPACTED, SEARCH, TOOL_CALL, shows
from tests.clients.model import DONE
from tests.clients.server import FLAGS, loop_of, watch
from tests.serving.local import MODEL, LocalServer, open_server

pytestmark = [pytest.mark.engine, pytest.mark.asyncio(loop_scope="session")]

ASK = "Make the file made.txt."


def prompt_of(local: LocalServer, call: Call | None = None) -> str:
    """The prompt of a call, by default of the newest."""
    tokenizer = Tokenizer.from_file(f"{embedded_model(lambda message: None)}/tokenizer.json")
    spec = (call or local.engine.calls[-1]).spec
    return str(tokenizer.decode(list(spec.prompt_token_ids or ())))


WEBSOCKETS = ("-c", "model_providers.agentrt.supports_websockets=true")
COMPACTS = (
    *("-c", "model_context_window=20000"),
    *("-c", "model_auto_compact_token_limit=1000"),
)
BY_SERVER = ("-c", 'model_providers.agentrt.name="OpenAI"')
"""Codex lets a provider of this name compact a history."""
BY_EITHER = "works, by Codex itself or by the server"


@shows(TOOL_CALL, claude="works")
async def test_claude_code(local: LocalServer, tmp_path: Path) -> None:
    seen = watch(local)
    ended = await claude_code(local.url, MODEL, tmp_path, ASK, "--allowedTools", "Bash")
    assert ended.code == 0, ended
    answer = json.loads(ended.out)
    assert (answer["result"], answer["is_error"], answer["num_turns"]) == (DONE, False, 2)
    assert made(tmp_path) == "ok-42\n"
    assert await seen.shapes() == [loop_of("Bash")]


@shows(TOOL_CALL, codex="works")
async def test_codex_and_its_session_resumed(local: LocalServer, tmp_path: Path) -> None:
    seen = watch(local)
    ended = await codex(local.url, MODEL, tmp_path, ASK)
    assert (ended.code, ended.out.strip()) == (0, DONE), ended
    assert made(tmp_path) == "ok-42\n"
    assert await seen.shapes() == [loop_of("exec_command")]
    ended = await codex(local.url, MODEL, tmp_path, "resume", "--last", "Is it done?")
    assert (ended.code, ended.out.strip()) == (0, DONE), ended
    assert await seen.shapes() == [[*loop_of("exec_command"), ("call", (2,))]]


@pytest.fixture
def messages(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What comes over WebSockets of the Responses API. Codex calls by HTTP where one fails."""
    taken: list[Any] = []
    answer = ResponseSocket._answer

    async def noting(self: ResponseSocket, data: bytes) -> None:
        taken.append(json.loads(data))
        await answer(self, data)

    monkeypatch.setattr(ResponseSocket, "_answer", noting)
    return taken


@shows(SEARCH, codex="no: the server ignores `web_search`")
async def test_codex_over_a_websocket(
    local: LocalServer, tmp_path: Path, messages: list[Any]
) -> None:
    """It sends only what is new: the server has the rest of the history."""
    seen = watch(local)
    ended = await codex(local.url, MODEL, tmp_path, *WEBSOCKETS, ASK)
    assert (ended.code, ended.out.strip()) == (0, DONE), ended
    assert made(tmp_path) == "ok-42\n"
    assert await seen.shapes() == [loop_of("exec_command")]
    kinds = [[item["type"] for item in message["input"]] for message in messages]
    assert kinds[-1] == ["function_call_output"]
    assert "web_search" in [tool["type"] for tool in messages[-1]["tools"]]
    assert '"web_search"' not in prompt_of(local)


@shows(COMPACTED, codex=BY_EITHER)
@pytest.mark.parametrize("websockets", [False, True])
async def test_codex_lets_its_history_be_compacted(
    local: LocalServer, tmp_path: Path, messages: list[Any], websockets: bool
) -> None:
    """After its tool has run, since the prompt is longer than its limit by then."""
    seen = watch(local)
    settings = (*BY_SERVER, *COMPACTS, *(WEBSOCKETS if websockets else ()))
    ended = await codex(local.url, MODEL, tmp_path, *settings, ASK)
    assert (ended.code, ended.out.strip()) == (0, DONE), ended
    assert "context compacted" in ended.err
    assert made(tmp_path) == "ok-42\n"
    [shape] = await seen.shapes()
    assert [name for name, _ in shape] == ["call", "exec_command", "call", "call"]
    assert bool(messages) == websockets


@shows(COMPACTED, codex=BY_EITHER)
async def test_codex_compacts_its_history(local: LocalServer, tmp_path: Path) -> None:
    """It asks the model for a summary with a prompt of its own."""
    seen = watch(local)
    ended = await codex(local.url, MODEL, tmp_path, *COMPACTS, ASK)
    assert (ended.code, ended.out.strip()) == (0, DONE), ended
    assert "context compacted" in ended.err
    assert made(tmp_path) == "ok-42\n"
    [shape] = await seen.shapes()
    assert [name for name, _ in shape] == ["call", "exec_command", "call", "call"]
    compacting = local.engine.calls[-2]
    assert SUMMARIZE not in prompt_of(local, compacting)


@shows(TOOL_CALL, opencode="works")
async def test_opencode(local: LocalServer, tmp_path: Path) -> None:
    """With a title, since it would ask for one: a call beside the conversation."""
    seen = watch(local)
    ended = await opencode(local.url, MODEL, tmp_path, "--title", "A file", ASK)
    assert ended.code == 0, ended
    assert DONE in ended.out
    assert made(tmp_path) == "ok-42\n"
    assert await seen.shapes() == [loop_of("bash")]


WINDOW = 32_768
TURNS = 8
SUMMARY = "They counted on."


@shows(COMPACTED, claude="works")
async def test_claude_code_compacts_before_the_window_of_the_model_is_full(
    tmp_path: Path,
) -> None:
    """A session with more results of tools than fit. It takes 200,000 tokens for granted itself."""
    tokenizer = Tokenizer.from_file(f"{embedded_model(lambda message: None)}/tokenizer.json")
    prompts: list[str] = []

    def script(call: Call) -> str:
        prompts.append(tokenizer.decode(list(call.spec.prompt_token_ids or ())))
        if "<summary> block" in prompts[-1][-1000:]:
            return f"<analysis>.</analysis><summary>{SUMMARY}</summary>"
        if len(prompts) > TURNS:
            return DONE
        counting = {"command": f"seq {len(prompts)}000 {len(prompts)}999", "description": "Count"}
        return f"<tool_call>\n{json.dumps({'name': 'Bash', 'arguments': counting})}\n</tool_call>"

    flags = (*FLAGS[:-1], f"--max-model-len={WINDOW}")
    async with open_server(script, flags=flags) as local:
        ended = await claude_code(local.url, MODEL, tmp_path, "Count.", "--allowedTools", "Bash")
        assert ended.code == 0, ended
        assert json.loads(ended.out)["result"] == DONE
        sizes = [len(call.spec.prompt_token_ids or ()) for call in local.engine.calls]
        assert max(sizes) < WINDOW - 4096, sizes
        assert SUMMARY in prompts[-1]
        assert len(local.programs()) == 1

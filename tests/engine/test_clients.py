"""Coding agents and SDKs on `agentrt serve` with the real engine: their requests are taken, and
make one program each. What the small model says to them is its own affair.
"""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from agentrt.executors.vllm.default_model import embedded_model
from agentrt.executors.vllm.options import EngineOptions, prepare_environment
from tests.clients.agents import claude_code, codex, opencode
from tests.clients.processes import environment, script
from tests.clients.wire import Chat, Messages, Responses, Wire, events_of, is_clean
from tests.engine.forked import forked_python
from tests.engine.served import url_of

pytestmark = [pytest.mark.engine, pytest.mark.asyncio(loop_scope="session")]

STOP_S = 60.0
MODEL = "tiny"
MOST = 24
"""Tokens of an answer, whoever asks: Codex says nothing of that."""
FLAGS = (
    *("--dtype", "float32", "--max-model-len", "8192", "--block-size", "32"),
    *("--override-generation-config", f'{{"max_new_tokens": {MOST}}}'),
)
ASK = "Say hello."


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("serve")
    prepare_environment(EngineOptions())
    embedded_model(lambda message: None)
    log = folder / "log"
    with log.open("wb") as output, forked_python(folder):
        command = (sys.executable, "-m", "agentrt.cli", "serve", "--port", "0")
        process = subprocess.Popen(
            [*command, "--served-model-name", MODEL, "--", *FLAGS],
            cwd=folder,
            stdout=output,
            stderr=output,
        )
    try:
        yield url_of(process, log, MODEL)
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
            process.wait(STOP_S)


def programs(url: str) -> dict[str, Any]:
    page = httpx.get(f"{url}/programs", timeout=60).json()
    return {one["id"]: one for one in page["programs"]}


def calls_of_the_new_program(url: str, before: dict[str, Any]) -> list[Any]:
    [program] = programs(url).keys() - before.keys()
    nodes = httpx.get(f"{url}/programs/{program}", timeout=60).json()["nodes"]
    return [node for node in nodes if node["kind"] == "call"]


def assert_one_after_the_other(calls: list[Any]) -> None:
    assert calls
    for place, call in enumerate(calls):
        assert call["error"] is None
        assert 0 < call["output_tokens"] <= MOST
        assert bool(call["parents"]) == (place > 0)


async def test_claude_code(url: str, tmp_path: Path) -> None:
    before = programs(url)
    short = ("--tools", "Bash", "--system-prompt", "Be brief.", "--max-turns", "2")
    ended = await claude_code(url, MODEL, tmp_path, ASK, *short, CLAUDE_CODE_MAX_OUTPUT_TOKENS="99")
    answer = json.loads(ended.out)
    assert answer.get("api_error_status") is None, ended
    assert answer["subtype"] in ("success", "error_max_turns"), ended
    assert_one_after_the_other(calls_of_the_new_program(url, before))


async def test_codex(url: str, tmp_path: Path) -> None:
    """With instructions and tools that leave room for a conversation in the model's context. This
    model calls one tool after the other and never answers, so it is left in the middle.
    """
    before = programs(url)
    brief = tmp_path / "brief.md"
    brief.write_text("Be brief.")
    short = {
        "model_instructions_file": f'"{brief}"',
        "features.multi_agent": "false",
        "sandbox_mode": '"read-only"',
    }
    settings = [word for name, value in short.items() for word in ("-c", f"{name}={value}")]
    running = asyncio.create_task(codex(url, MODEL, tmp_path, *settings, ASK))
    ended: list[Any] = []
    while len(ended) < 3 and not running.done():
        await asyncio.sleep(0.2)  # another process: it is asked, not told
        if programs(url).keys() - before.keys():
            calls = calls_of_the_new_program(url, before)
            ended = [call for call in calls if call["state"] == "done"]
    running.cancel()
    await asyncio.wait([running])
    assert_one_after_the_other(ended)
    if not running.cancelled():
        end = running.result()
        assert end.code == 0 or "max_output_tokens" in end.err, "an answer may be cut off by MOST"


async def test_opencode(url: str, tmp_path: Path) -> None:
    """With a prompt and a harmless tool that leave room in the model's context, and two turns."""
    before = programs(url)
    short = {"prompt": "Be brief.", "tools": {"*": False, "glob": True}, "steps": 2}
    named = ("--title", "A greeting", ASK)
    ended = await opencode(url, MODEL, tmp_path, *named, context=8192, agent={"build": short})
    assert ended.code == 0, ended
    assert_one_after_the_other(calls_of_the_new_program(url, before))


SDKS = {
    "python/openai_sdk": ("chat", "chat_stream", "completion", "responses"),
    "python/anthropic_sdk": ("messages", "messages_stream"),
    "python/agents_sdk": ("chat_tools", "responses_tools_stream"),
    "python/pydantic_ai_sdk": ("chat_tools", "responses_tools"),
    "litellm/litellm_sdk": ("chat_tools", "messages_tools"),
    "litellm/instructor_sdk": ("by_tool",),
    "node/openai_sdk": ("chat_stream", "responses"),
    "node/anthropic_sdk": ("messages",),
}


@pytest.mark.parametrize("name", SDKS)
async def test_an_sdk(url: str, tmp_path: Path, name: str) -> None:
    """What it makes of an answer that is cut off, or of a tool called for ever, is its affair."""
    told = {"AGENTRT_URL": url, "AGENTRT_MODEL": MODEL, "LITELLM_LOCAL_MODEL_COST_MAP": "True"}
    async with script(name, environment(tmp_path, **told)) as played:
        for scenario in SDKS[name]:
            before = programs(url)
            answer = await played.ask(scenario)
            assert "status" not in answer.get("error", ""), answer
            assert_one_after_the_other(calls_of_the_new_program(url, before))


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize("wire", [Chat(), Responses(), Messages()], ids=lambda wire: wire.path)
async def test_no_key_of_ours_is_in_an_answer(url: str, wire: Wire, stream: bool) -> None:
    """Inside, the scheduler's report rides on an output's parameters."""
    body = {**wire.ask([{"role": "user", "content": ASK}], tools=False), "model": MODEL}
    body |= {"max_output_tokens" if wire.path == Responses.path else "max_tokens": 8}
    async with httpx.AsyncClient(base_url=url, timeout=60.0) as client:
        answer = await client.post(wire.path, json={**body, "stream": stream})
    assert answer.status_code == 200, answer.text
    assert is_clean(events_of(answer.text) if stream else answer.json())

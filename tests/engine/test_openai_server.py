"""vLLM's own OpenAI server with our scheduler plugged in: chat models there, and programs.

The server's environment has the wheel of agentrt-scheduler, and nothing else of agentrt.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from typing import Any, Literal

import httpx
import pytest
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from langgraph.graph import START, MessagesState, StateGraph
from pydantic import SecretStr
from tokenizers import Tokenizer

from agentrt.engines import EngineOptions
from agentrt.errors import CallRejectedError, ConfigError
from agentrt.executors.vllm.default_model import embedded_model
from agentrt.executors.vllm.options import prepare_environment
from agentrt.integrations.langchain import ChatAgentRT, shared
from agentrt.integrations.langgraph import instrument, uninstrument
from tests.doubles.ports import reserved_port
from tests.doubles.tinymodel import tiny_model
from tests.packaging.wheels import SCHEDULER, build, environment

pytestmark = pytest.mark.engine

START_S = 300
FLAGS = (
    *("--served-model-name", "tiny", "--dtype", "float32", "--max-model-len", "1024"),
    *("--max-num-seqs", "4", "--block-size", "32", "--enforce-eager"),
    *("--enable-auto-tool-choice", "--tool-call-parser", "hermes"),
    *("--kv-cache-memory-bytes", str(1 << 28)),
    *("--scheduler-cls", "agentrt.executors.vllm.ProgramScheduler"),
    *("--additional-config", json.dumps({"agentrt": {"policy": "plas", "quanta": [0.002, 0.004]}})),
)
LAST = 2
"""The lowest queue level with these quanta."""


def is_healthy(url: str) -> bool:
    try:
        with urllib.request.urlopen(f"{url}/health", timeout=5) as answer:
            return bool(answer.status == 200)
    except (urllib.error.URLError, OSError):
        return False


@pytest.fixture(scope="module")
def base_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder, port = tmp_path_factory.mktemp("server"), reserved_port()
    module = "vllm.entrypoints.openai.api_server"
    model = str(tiny_model(folder / "tiny"))
    at = ("--host", "127.0.0.1", "--port", str(port), "--model", model)
    prepare_environment(EngineOptions())
    python = environment(folder / "venv", build(SCHEDULER, folder), beside=True)
    log = folder / "log"
    with log.open("w") as output:
        server = subprocess.Popen(
            [python, "-m", module, *at, *FLAGS],
            cwd=folder,
            env={name: value for name, value in os.environ.items() if name != "PYTHONPATH"},
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
    try:
        deadline = time.monotonic() + START_S
        while not is_healthy(f"http://127.0.0.1:{port}"):
            assert server.poll() is None, log.read_text(encoding="utf-8")[-4000:]
            assert time.monotonic() < deadline, "the server did not come up"
            time.sleep(0.5)  # it tells nobody when it is there
        yield f"http://127.0.0.1:{port}/v1"
    finally:
        os.killpg(server.pid, signal.SIGTERM)
        server.wait(60)
        shared.close_all()


@pytest.fixture
def model(base_url: str) -> ChatAgentRT:
    return ChatAgentRT(base_url=base_url, max_tokens=40, seed=1)


@tool
def magic(number: Literal[1, 2, 3]) -> int:
    """Do magic with a number."""
    return number


def test_text_whole_and_in_pieces(model: ChatAgentRT) -> None:
    # So many tokens that vLLM does not join them all while its server has no time.
    model = model.model_copy(update={"max_tokens": 400})
    message = model.invoke("Say hello.")
    assert message.text
    assert message.response_metadata["model_name"] == "tiny"
    assert message.usage_metadata is not None
    assert message.usage_metadata["output_tokens"] > 0
    chunks = list(model.stream("Say hello."))
    assert "".join(chunk.text for chunk in chunks) == message.text
    assert len(chunks) > 2
    usages = [chunk.usage_metadata for chunk in chunks if chunk.usage_metadata is not None]
    assert [usage["output_tokens"] for usage in usages] == [message.usage_metadata["output_tokens"]]


def test_a_tool_that_must_be_called_is(model: ChatAgentRT) -> None:
    # vLLM's own default lets arguments be no object at all, unless a tool is strict. Made-up
    # weights would write white space for ever.
    words = Tokenizer.from_file(f"{embedded_model(lambda message: None)}/tokenizer.json")
    blank = {n: -100.0 for n in range(words.get_vocab_size()) if not words.decode([n]).strip()}
    bound = model.bind_tools([magic], tool_choice="magic", strict=True)
    bound = bound.bind(max_tokens=200, logit_bias=blank)
    message = bound.invoke("Do magic with 3.")
    [call] = message.tool_calls
    assert call["name"] == "magic"
    assert isinstance(call["args"]["number"], int)
    first, *more = list(bound.stream("Do magic with 3."))
    assert [streamed["args"] for streamed in sum(more, first).tool_calls] == [call["args"]]


def test_what_the_server_refuses_is_told(model: ChatAgentRT) -> None:
    with pytest.raises(CallRejectedError, match="1024"):
        model.invoke("word " * 3000)
    with pytest.raises(ConfigError, match="does not serve model 'gpt'; it serves tiny"):
        model.invoke("hello", model="gpt")


# -- programs at the server ------------------------------------------------------------------


def report_of(base_url: str, headers: dict[str, str], **xargs: Any) -> dict[str, Any]:
    """One call of 24 tokens, and the scheduler's own account of it."""
    body = {
        "model": "tiny",
        "messages": [{"role": "user", "content": "Count."}],
        "max_tokens": 24,
        "ignore_eos": True,
        "vllm_xargs": {"agentrt_report": True, **xargs},
    }
    answer = httpx.post(f"{base_url}/chat/completions", json=body, headers=headers, timeout=60)
    assert answer.status_code == 200, answer.text
    report: dict[str, Any] = answer.json()["kv_transfer_params"]["agentrt"]
    return report


def test_a_session_header_makes_calls_a_program(base_url: str) -> None:
    """Under PLAS a program's second call begins in the level to which its first has sunk."""
    first = report_of(base_url, {"X-Session-ID": "agent-1"})
    again = report_of(base_url, {"X-Session-ID": "agent-1"})
    other = report_of(base_url, {"X-Session-ID": "agent-2"})
    assert (first["level"], first["demotions"]) == (LAST, LAST)
    assert (again["level"], again["demotions"]) == (LAST, 0)
    assert (other["level"], other["demotions"]) == (LAST, LAST)


def test_flat_arguments_do_too(base_url: str) -> None:
    reports = [report_of(base_url, {}, agentrt_program="agent-3") for _ in range(2)]
    assert [report["demotions"] for report in reports] == [LAST, 0]


def test_an_instrumented_graph_is_a_program_there(base_url: str) -> None:
    """`ChatOpenAI`, unchanged: all calls of a run of the graph are one program."""
    extra = {"vllm_xargs": {"agentrt_report": True}, "ignore_eos": True}
    model = ChatOpenAI(
        base_url=base_url,
        api_key=SecretStr("none"),
        model="tiny",
        max_completion_tokens=24,
        extra_body=extra,
        include_response_headers=False,
    )
    reports: list[Any] = []

    def call(state: MessagesState) -> dict[str, Any]:
        chat = [{"role": "user", "content": "Count."}]
        payload = model._get_request_payload(chat)
        answer = model.root_client.chat.completions.create(**payload)
        reports.append((answer.model_extra or {})["kv_transfer_params"]["agentrt"])
        return {"messages": []}

    builder = StateGraph(MessagesState)
    builder.add_node("one", call)
    builder.add_node("two", call)
    builder.add_edge(START, "one")
    builder.add_edge("one", "two")
    graph = builder.compile(name="counter")
    instrument()
    try:
        graph.invoke({"messages": []})
        graph.invoke({"messages": []})
    finally:
        uninstrument()
    assert [report["demotions"] for report in reports] == [LAST, 0, LAST, 0]

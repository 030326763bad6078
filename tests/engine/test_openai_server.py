"""A chat model at vLLM's own OpenAI server, unchanged, with the embedded model."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from langchain_core.tools import tool
from pydantic import BaseModel

from agentrt.errors import CallRejectedError, CallTimeoutError, ConfigError
from agentrt.executors.vllm.default_model import embedded_model
from agentrt.executors.vllm.options import EngineOptions, prepare_environment
from agentrt.integrations.langchain import ChatAgentRT, shared

pytestmark = pytest.mark.engine

START_S = 300
FLAGS = (
    *("--served-model-name", "tiny", "--dtype", "float32", "--max-model-len", "1024"),
    *("--max-num-seqs", "4", "--block-size", "32", "--enforce-eager"),
    *("--enable-auto-tool-choice", "--tool-call-parser", "hermes"),
    *("--kv-cache-memory-bytes", str(1 << 28)),
)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def is_healthy(url: str) -> bool:
    try:
        with urllib.request.urlopen(f"{url}/health", timeout=5) as answer:
            return bool(answer.status == 200)
    except (urllib.error.URLError, OSError):
        return False


@pytest.fixture(scope="module")
def base_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    prepare_environment(EngineOptions())
    model, port = embedded_model(lambda message: None), free_port()
    module = "vllm.entrypoints.openai.api_server"
    at = ("--host", "127.0.0.1", "--port", str(port), "--model", str(model))
    log = Path(tmp_path_factory.mktemp("server"), "log")
    with log.open("w") as output:
        server = subprocess.Popen(
            [sys.executable, "-m", module, *at, *FLAGS],
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
def magic(number: int) -> int:
    """Do magic with a number."""
    return number


class Answer(BaseModel):
    """An answer."""

    is_even: bool


def test_text_whole_and_in_pieces(model: ChatAgentRT) -> None:
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


def test_limits_and_stops_hold(model: ChatAgentRT) -> None:
    cut = model.invoke("Count to one hundred.", max_tokens=3)
    assert cut.response_metadata["finish_reason"] == "length"
    whole = model.invoke("Say hello.").text
    first = whole.split()[0]
    assert first not in model.invoke("Say hello.", stop=[first]).text


def test_a_tool_that_must_be_called_is(model: ChatAgentRT) -> None:
    bound = model.bind_tools([magic], tool_choice="magic").bind(max_tokens=200)
    message = bound.invoke("Do magic with 3.")
    [call] = message.tool_calls
    assert call["name"] == "magic"
    assert isinstance(call["args"]["number"], int)
    first, *more = list(bound.stream("Do magic with 3."))
    assert [streamed["args"] for streamed in sum(more, first).tool_calls] == [call["args"]]


def test_a_schema_is_held_to(model: ChatAgentRT) -> None:
    answer = model.with_structured_output(Answer, method="json_schema").invoke("Is 2 even?")
    assert isinstance(answer, Answer)


async def test_async_and_a_timeout(model: ChatAgentRT) -> None:
    with pytest.raises(CallTimeoutError):
        await model.ainvoke("Count to one thousand.", max_tokens=900, timeout=0.05)
    assert (await model.ainvoke("Say hello.")).text


def test_what_the_server_refuses_is_told(model: ChatAgentRT) -> None:
    with pytest.raises(CallRejectedError, match="1024"):
        model.invoke("word " * 3000)
    with pytest.raises(ConfigError, match="does not serve model 'gpt'; it serves tiny"):
        model.invoke("hello", model="gpt")

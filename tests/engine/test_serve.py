"""`agentrt serve` on a real engine, with made-up weights, and clients that do not know it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from http.client import HTTPConnection
from pathlib import Path
from typing import Any, Literal

import openai
import pytest
from langchain_core.messages import HumanMessage, ToolMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from openai.types.chat import ChatCompletion, ChatCompletionChunk
from prometheus_client.parser import text_string_to_metric_families
from pydantic import BaseModel, SecretStr

from agentrt.serving.tenants import new_key
from tests.doubles.tinymodel import tiny_model
from tests.engine.collector import Collector, collecting
from tests.engine.forked import forked_python
from tests.engine.generating import MADE, SHARED, drive
from tests.engine.served import WAIT_S, Serving, operators_key, url_of

pytestmark = pytest.mark.engine

PROGRAM = """
from agentrt import Context, program

@program
async def greet(ctx: Context, name: str) -> str:
    return (await ctx.llm(f"Greet {name}.", max_tokens=8)).text
"""
SOON = {"OTEL_BSP_SCHEDULE_DELAY": "50"}
"""Milliseconds from a span's end to the collector."""
FLAGS = ("--dtype", "float32", "--max-model-len", "2048", "--block-size", "32")


@pytest.fixture(scope="module")
def traces() -> Iterator[Collector]:
    with collecting() as traces:
        yield traces


@pytest.fixture(scope="module")
def serving(tmp_path_factory: pytest.TempPathFactory, traces: Collector) -> Iterator[Serving]:
    folder = tmp_path_factory.mktemp("serve")
    (folder / "greet.py").write_text(PROGRAM, encoding="utf-8")
    model = str(tiny_model(folder / "tiny"))
    keys = new_key(folder / "keys.json", "acme"), operators_key(folder / "keys.json")
    at = ("--port", "0", "--api-key-file", "keys.json", "--isolate-cache", "--max-num-seqs", "4")
    more = ("--served-model-name", "tiny", "--otlp-traces-endpoint", traces.url)
    serve = ("-m", "agentrt.cli", "serve", "greet.py", "--model", model, *at, *more, "--", *FLAGS)
    log, over_http = folder / "log", {"OTEL_EXPORTER_OTLP_TRACES_PROTOCOL": "http/protobuf"}
    with log.open("wb") as output, forked_python(folder):
        command = [sys.executable, *serve]
        process = subprocess.Popen(
            command, cwd=folder, stdout=output, stderr=output, env=os.environ | over_http | SOON
        )
    try:
        url = url_of(process, log)
        it = Serving(process, url, keys, log)
        with it.http:
            yield it
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
            process.wait(WAIT_S)


@pytest.fixture
def client(serving: Serving) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{serving.url}/v1", api_key=serving.key, max_retries=0) as client:
        yield client


HELLO: list[Any] = [{"role": "user", "content": "Say hello."}]
MAGIC: Any = {
    "type": "function",
    "function": {
        "name": "magic",
        "description": "Do magic with a number.",
        "parameters": {
            "type": "object",
            "properties": {"number": {"enum": [1, 2, 3]}},
            "required": ["number"],
        },
    },
}


# -- the OpenAI SDK --------------------------------------------------------------------------


def test_a_chat_whole_and_in_pieces(client: openai.OpenAI) -> None:
    ask: Any = {"model": "tiny", "messages": HELLO, "max_tokens": 24, "temperature": 0}
    whole = client.chat.completions.create(**ask)
    ChatCompletion.model_validate(whole.model_dump(), strict=True)
    text = whole.choices[0].message.content
    assert text
    assert whole.usage is not None
    assert whole.usage.completion_tokens > 0
    events = list(
        client.chat.completions.create(**ask, stream=True, stream_options={"include_usage": True})
    )
    for event in events:
        ChatCompletionChunk.model_validate(event.model_dump(), strict=True)
    pieces = [event.choices[0].delta.content or "" for event in events if event.choices]
    assert "".join(pieces) == text
    assert len([piece for piece in pieces if piece]) > 2
    last = events[-1].usage
    assert last is not None
    assert last.completion_tokens == whole.usage.completion_tokens
    assert last.prompt_tokens_details is not None
    assert (last.prompt_tokens_details.cached_tokens or 0) >= 32


def test_choices_seeds_stops_and_limits(client: openai.OpenAI) -> None:
    ask: Any = {"model": "tiny", "messages": HELLO, "max_tokens": 12, "temperature": 1, "n": 3}
    first, again = (client.chat.completions.create(**ask, seed=5) for _ in range(2))
    texts = [choice.message.content for choice in first.choices]
    assert texts == [choice.message.content for choice in again.choices]
    assert len(set(texts)) > 1
    ask |= {"n": 1, "temperature": 0}
    cut = client.chat.completions.create(**{**ask, "max_tokens": 2})
    assert cut.choices[0].finish_reason == "length"
    whole = client.chat.completions.create(**ask).choices[0].message.content or ""
    word = whole.split()[0]
    stopped = client.chat.completions.create(**ask, stop=[word]).choices[0]
    assert stopped.finish_reason == "stop"
    assert word not in (stopped.message.content or "")


def test_log_probabilities(client: openai.OpenAI) -> None:
    ask: Any = {"model": "tiny", "messages": HELLO, "max_tokens": 6, "temperature": 0}
    answer = client.chat.completions.create(**ask, logprobs=True, top_logprobs=3)
    choice = answer.choices[0]
    assert choice.logprobs is not None
    tokens = choice.logprobs.content or []
    assert answer.usage is not None
    assert len(tokens) == answer.usage.completion_tokens
    for token in tokens:
        assert [top.logprob for top in token.top_logprobs] == sorted(
            (top.logprob for top in token.top_logprobs), reverse=True
        )
        assert token.logprob == token.top_logprobs[0].logprob  # it is greedy
    events = client.chat.completions.create(**ask, logprobs=True, stream=True)
    parts = [event.choices[0].logprobs for event in events]
    streamed = [token.token for part in parts if part for token in part.content or ()]
    assert streamed == [token.token for token in tokens]


@pytest.mark.parametrize(
    "choice", ["required", {"type": "function", "function": {"name": "magic"}}]
)
def test_tools_that_must_be_called(client: openai.OpenAI, choice: Any) -> None:
    ask: Any = {
        "model": "tiny",
        "messages": [{"role": "user", "content": "Do magic with 3."}],
        "tools": [MAGIC],
        "tool_choice": choice,
        "temperature": 0,
        "max_tokens": 60,
    }
    answer = client.chat.completions.create(**ask).choices[0]
    # As OpenAI's API has it, who names the tool knows that it is called.
    assert answer.finish_reason == ("tool_calls" if choice == "required" else "stop")
    [call] = answer.message.tool_calls or []
    assert call.type == "function"
    assert isinstance(json.loads(call.function.arguments)["number"], int)
    deltas = [
        event.choices[0].delta for event in client.chat.completions.create(**ask, stream=True)
    ]
    parts = [part.function for delta in deltas for part in delta.tool_calls or ()]
    assert "".join(part.arguments or "" for part in parts if part) == call.function.arguments
    assert [part.name for part in parts if part and part.name] == ["magic"]


def test_a_schema_is_held_to(client: openai.OpenAI) -> None:
    class Answer(BaseModel):
        is_even: bool

    parsed = client.chat.completions.parse(
        model="tiny",
        messages=[{"role": "user", "content": "Is 2 even?"}],
        response_format=Answer,
        max_tokens=60,
        temperature=0,
    )
    assert isinstance(parsed.choices[0].message.parsed, Answer)
    loose = client.chat.completions.create(
        model="tiny",
        messages=[{"role": "user", "content": "JSON with one name."}],
        response_format={"type": "json_object"},
        max_tokens=9,
        temperature=0,
    )
    assert (loose.choices[0].message.content or "").startswith("{")


def test_completions(client: openai.OpenAI) -> None:
    ask: Any = {"model": "tiny", "prompt": ["The sky is", "Once"], "max_tokens": 6, "logprobs": 2}
    answer = client.completions.create(**ask, temperature=0)
    assert [choice.index for choice in answer.choices] == [0, 1]
    assert all(choice.text and choice.logprobs for choice in answer.choices)
    events = client.completions.create(**ask, temperature=0, stream=True)
    texts = {0: "", 1: ""}
    for event in events:
        texts[event.choices[0].index] += event.choices[0].text
    assert list(texts.values()) == [choice.text for choice in answer.choices]


@pytest.mark.parametrize(
    ("change", "status", "says"),
    [
        ({"messages": [{"role": "user", "content": "word " * 3000}]}, 400, "tokens"),
        ({"model": "gpt-4"}, 404, "aliases: tiny"),
        ({"temperature": 9}, 400, "temperature"),
        ({"response_format": {"type": "json_schema", "json_schema": {
            "name": "x", "schema": {"$ref": "#/nowhere"}}}}, 400, "400"),
        ({"extra_body": {"top_k": 2**70}}, 400, "numbers of 64 bits"),
        ({"extra_body": {"structured_outputs": {"regex": "(((.*)?(.*)?)*(.?)*)*"}}}, 400, "token"),
    ],
)  # fmt: skip
def test_mistakes_are_the_clients(
    client: openai.OpenAI, change: dict[str, Any], status: int, says: str
) -> None:
    ask: Any = {"model": "tiny", "messages": HELLO, "max_tokens": 4, **change}
    # On a busy machine an answer may begin before its grammar has been tried: then the connection
    # is cut, and the client is told when it comes again.
    comes_again = client.with_options(max_retries=3)
    with pytest.raises(openai.APIStatusError, match=says) as refused:
        comes_again.chat.completions.create(**ask)
    assert refused.value.status_code == status


def test_a_wrong_key_is_refused(serving: Serving) -> None:
    with (
        openai.OpenAI(base_url=f"{serving.url}/v1", api_key="wrong") as client,
        pytest.raises(openai.AuthenticationError),
    ):
        client.models.list()


# -- LangChain -------------------------------------------------------------------------------


@tool
def magic(number: Literal[1, 2, 3]) -> int:
    """Do magic with a number."""
    return number


@pytest.fixture(scope="module")
def chat(serving: Serving) -> Iterator[ChatOpenAI]:
    """For all tests: LangChain keeps one HTTP client for a server, and closes none."""
    chat = ChatOpenAI(
        base_url=f"{serving.url}/v1",
        api_key=SecretStr(serving.key),
        model="tiny",
        max_completion_tokens=80,
        temperature=0,
        seed=1,
    )
    yield chat
    chat.root_client.close()


def test_langchain_chats_streams_and_calls_tools(chat: ChatOpenAI) -> None:
    whole = chat.invoke("Say hello.")
    assert whole.text
    pieces = list(chat.stream("Say hello."))
    assert "".join(piece.text for piece in pieces) == whole.text
    asked = HumanMessage("Do magic with 3.")
    called = chat.bind_tools([magic], tool_choice="magic").invoke([asked])
    [call] = called.tool_calls
    assert isinstance(call["args"]["number"], int)
    result = ToolMessage("33", tool_call_id=call["id"])
    assert chat.invoke([asked, called, result]).text


def test_langchain_structured_output(chat: ChatOpenAI) -> None:
    class Answer(BaseModel):
        """An answer."""

        is_even: bool

    for method in ("json_schema", "function_calling"):
        answer = chat.with_structured_output(Answer, method=method).invoke("Is 2 even?")
        assert isinstance(answer, Answer)


# -- programs --------------------------------------------------------------------------------


def test_a_program_that_is_served(serving: Serving) -> None:
    run = serving.http.post("/v1/programs/greet/runs", json={"input": "Ann"}).json()
    assert (run["state"], run["calls"]) == ("done", 1)
    assert run["result"]


# -- other people's load generators ----------------------------------------------------------


@pytest.mark.parametrize("name", MADE)
async def test_load_generators(name: str, serving: Serving, tmp_path: Path) -> None:
    made = await drive(name, serving, tmp_path)
    assert [one["calls"] for one in made] == MADE[name]
    assert sum(one["cached_tokens"] for one in made) >= SHARED


# -- traces and metrics ----------------------------------------------------------------------


def test_vllms_spans_are_below_the_calls_and_these_below_programs_or_clients(
    serving: Serving, traces: Collector
) -> None:
    serving.http.post("/v1/programs/greet/runs", json={"input": "Bob"}).raise_for_status()
    serving.wait_until(lambda: traces.named("invoke_agent greet"))
    program = traces.named("invoke_agent greet")[-1]
    [call] = [span for span in traces.spans if span.parent_span_id == program.span_id]
    assert call.name.startswith("chat ")
    serving.wait_until(lambda: below(traces, call.span_id))
    [request] = below(traces, call.span_id)
    assert request.name == "llm_request"  # vLLM's own
    assert request.trace_id == call.trace_id == program.trace_id
    theirs = {"traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"}
    ask = {"model": "tiny", "messages": HELLO, "max_tokens": 4}
    serving.http.post("/v1/chat/completions", json=ask, headers=theirs).raise_for_status()
    parent = bytes.fromhex("b7ad6b7169203331")
    serving.wait_until(lambda: below(traces, parent))
    [call] = [span for span in below(traces, parent) if span.name == call.name]
    serving.wait_until(lambda: below(traces, call.span_id))


def below(traces: Collector, parent: bytes) -> list[Any]:
    return [span for span in traces.spans if span.parent_span_id == parent]


def test_vllms_own_metrics_count_what_was_asked_and_are_no_tenants(serving: Serving) -> None:
    operator = {"authorization": f"Bearer {serving.operators_key}"}

    def generated() -> float:
        text = serving.http.get("/metrics", headers=operator).text
        families = {one.name: one for one in text_string_to_metric_families(text)}
        assert "vllm:kv_cache_usage_perc" in families
        samples = [sample for one in families.values() for sample in one.samples]
        assert not any("/" in one.labels.get("model_name", "") for one in samples), "a folder"
        return sum(
            sample.value
            for sample in families["vllm:generation_tokens"].samples
            if sample.name.endswith("_total")
        )

    before = generated()
    ask = {"model": "tiny", "messages": HELLO, "max_tokens": 5, "ignore_eos": True}
    serving.http.post("/v1/chat/completions", json=ask).raise_for_status()
    assert generated() - before == 5
    assert "vllm:" not in serving.http.get("/metrics").text


@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_goes_frees_its_call(
    serving: Serving, client: openai.OpenAI, stream: bool
) -> None:
    """The engine works for one call of 1,900 tokens; when its client goes, for none."""
    name = serving.http.post("/v1/client-runs", json={}).json()["id"]
    body = {"model": "tiny", "messages": HELLO, "max_tokens": 1900, "ignore_eos": True}
    said = json.dumps({**body, "stream": stream})
    leaving = HTTPConnection(serving.url.removeprefix("http://"), timeout=WAIT_S)
    headers = {"x-agentrt-run": name, "authorization": f"Bearer {serving.key}"}
    headers["content-type"] = "application/json"
    leaving.request("POST", "/v1/chat/completions", said, headers)
    at = f"/v1/runs/{serving.session(name)['program']}"
    serving.wait_until(lambda: serving.http.get(at).json()["nodes"])  # its call has begun
    if stream:
        leaving.getresponse().readline()
    leaving.close()
    serving.wait_until(lambda: serving.session(name)["open_calls"] == 0)
    ended = serving.http.delete(f"/v1/client-runs/{name}").json()
    assert ended["calls"] == 1
    assert ended["output_tokens"] < 1900


def test_sigterm_finishes_what_runs_and_leaves_nothing(serving: Serving) -> None:
    """The last test: the server is gone after it."""
    body = {"model": "tiny", "messages": HELLO, "max_tokens": 200, "stream": True}
    body["ignore_eos"] = True
    with serving.http.stream("POST", "/v1/chat/completions", json=body) as answer:
        lines = answer.iter_lines()
        next(lines)
        serving.process.send_signal(signal.SIGTERM)
        text = "\n".join(lines)
    assert "[DONE]" in text
    assert serving.process.wait(WAIT_S) == 128 + signal.SIGTERM
    log = serving.log.read_text(encoding="utf-8", errors="replace")
    assert "Traceback" not in log
    assert "stopped: " in log

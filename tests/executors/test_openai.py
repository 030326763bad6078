"""An OpenAI-compatible endpoint as an executor, against a small server that a test scripts."""

from __future__ import annotations

import asyncio
import contextlib
import json
import select
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from pydantic import SecretStr

from agentrt import Runtime
from agentrt.engines import OpenAIEndpoint
from agentrt.errors import (
    CallRejectedError,
    ConfigError,
    EngineDiedError,
    EngineError,
    EngineStartError,
    PromptTooLongError,
)
from agentrt.executors.base import Chunk
from agentrt.executors.chat_api import NoProgram, spec_of
from agentrt.executors.replies import StreamedAnswer, reply_of
from agentrt.integrations.langchain import ChatAgentRT, shared
from agentrt.request import Call, CallSpec, Identity, ToolCall

pytest.importorskip("openai", reason="the extra agentrt[remote] is not installed")

ADD = {
    "type": "object",
    "properties": {"a": {"type": "integer"}},
    "required": ["a"],
}
USAGE = {"prompt_tokens": 9, "completion_tokens": 3, "total_tokens": 12}
CACHED = {**USAGE, "prompt_tokens_details": {"cached_tokens": 4}}


class Server(ThreadingHTTPServer):
    """A server that gives the answers that a test sets, and records its requests."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.models = ["lab/tiny", "lab/huge"]
        self.asked: list[dict[str, Any]] = []
        self.headers: list[dict[str, str]] = []
        self.paths: list[str] = []
        self.status = 200
        self.refusal = "no such luck"
        self.code: str | None = None
        self.message: dict[str, Any] = {"role": "assistant", "content": "one two"}
        self.finish_reason = "stop"
        self.hold = False
        self.raw: tuple[str, bytes] | None = None
        self.gone = threading.Event()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/v1"


class Handler(BaseHTTPRequestHandler):
    server: Server

    def log_message(self, *args: Any, **kwargs: Any) -> None: ...

    def do_GET(self) -> None:
        if self.server.raw is not None:
            self._raw(*self.server.raw)
            return
        models = [{"id": name, "object": "model"} for name in self.server.models]
        self._json({"object": "list", "data": models})

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        self.server.asked.append(body)
        self.server.paths.append(self.path)
        self.server.headers.append({k.lower(): v for k, v in self.headers.items()})
        if self.server.raw is not None:
            self._raw(*self.server.raw)
        elif self.server.status != 200:
            self._json({"error": {"message": self.server.refusal, "code": self.server.code}})
        elif self.server.hold:
            with contextlib.suppress(ConnectionError):  # the client may be gone already
                if body.get("stream"):
                    self._events()
                select.select([self.connection], [], [])  # readable when the client is gone
            self.server.gone.set()
        elif body.get("stream"):
            self._events()
        else:
            choice = {"message": self.server.message, "finish_reason": self.server.finish_reason}
            self._json({"choices": [{"index": 0, **choice}], "usage": CACHED})

    def _raw(self, content_type: str, body: bytes) -> None:
        self.send_response(200)
        self.send_header("content-type", content_type)
        self.end_headers()
        self.wfile.write(body)

    def _json(self, value: Any) -> None:
        self.send_response(self.server.status)
        self.send_header("content-type", "application/json")
        self.end_headers()
        self.wfile.write(json.dumps(value).encode())

    def _events(self) -> None:
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        self.end_headers()
        for delta in self._deltas():
            self._event({"choices": [{"index": 0, "delta": delta}]})
        if self.server.hold:
            return
        last = {"index": 0, "delta": {}, "finish_reason": self.server.finish_reason}
        self._event({"choices": [last]})
        self._event({"choices": [], "usage": USAGE})
        self.wfile.write(b"data: [DONE]\n\n")

    def _deltas(self) -> Iterator[dict[str, Any]]:
        if "reasoning" in self.server.message:
            yield {"reasoning": self.server.message["reasoning"]}
        for piece in (self.server.message.get("content") or "").split(" "):
            yield {"content": piece}
        for index, call in enumerate(self.server.message.get("tool_calls", ())):
            half = len(call["function"]["arguments"]) // 2
            name, arguments = call["function"]["name"], call["function"]["arguments"]
            first = {"index": index, "id": call["id"], "function": {"name": name}}
            yield {"tool_calls": [first]}
            for part in (arguments[:half], arguments[half:]):
                yield {"tool_calls": [{"index": index, "function": {"arguments": part}}]}

    def _event(self, value: Any) -> None:
        self.wfile.write(f"data: {json.dumps(value)}\n\n".encode())
        self.wfile.flush()


@pytest.fixture
def server() -> Iterator[Server]:
    with Server() as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield server
        server.shutdown()
        thread.join()


@pytest.fixture
async def endpoint(server: Server) -> AsyncIterator[OpenAIEndpoint]:
    endpoint = OpenAIEndpoint(server.url, max_retries=0)
    await endpoint.start(lambda message: None)
    yield endpoint
    await endpoint.close()


def call_of(**fields: Any) -> Call:
    request = {"messages": [{"role": "user", "content": "hello"}], **fields}
    return Call(Identity("chat-1/0", "chat-1", "chat"), spec_of(request))


async def run(endpoint: OpenAIEndpoint, call: Call, *, stream: bool = False) -> list[Chunk]:
    return [chunk async for chunk in endpoint.generate(call, stream=stream)]


A_CALL = {"id": "c", "type": "function", "function": {"name": "add", "arguments": '{"a": 1}'}}
STREAM = pytest.mark.parametrize("stream", [False, True])


# -- calls -----------------------------------------------------------------------------------


async def test_a_request_goes_out_as_it_came_with_its_identity(
    endpoint: OpenAIEndpoint, server: Server
) -> None:
    request = {
        "messages": [{"role": "user", "content": "hi"}],
        "model": "tiny",
        "temperature": 0.5,
        "seed": 7,
        "tools": [{"type": "web_search"}],
        "top_k": 20,
        "what_only_the_endpoint_knows": {"a": None},
    }
    identity = Identity("chat-1/0", "chat-1", "weather bot", tenant="Zoë", session="thread\n1")
    await run(endpoint, Call(identity, spec_of(request)))
    assert server.asked == [{**request, "model": "lab/tiny", "stream": False}]
    await run(endpoint, Call(identity, spec_of(request)), stream=True)
    usage = {"include_usage": True}
    assert server.asked[1] == {**server.asked[0], "stream": True, "stream_options": usage}
    told = {k[10:]: v for k, v in server.headers[0].items() if k.startswith("x-agentrt-")}
    # Ids count from 1 in each process, and a server has many clients.
    assert told.pop("program").startswith("chat-1@")
    assert told == {
        "type": "weather bot",
        "tenant": "Zo%C3%AB",
        "session": "thread%0A1",
        "call": "0",
        "parents": "",
    }
    await run(endpoint, call_of())
    assert set(server.asked[2]) == {"model", "messages", "stream"}
    assert "x-agentrt-session" not in server.headers[2]


async def test_headers_and_a_query_of_yours_go_along(server: Server) -> None:
    mine: dict[str, Any] = {"headers": {"x-team": "blue"}, "query": {"version": "2"}}
    async with Runtime(OpenAIEndpoint(server.url, **mine)) as runtime:
        await ChatAgentRT(runtime=runtime).ainvoke("hello")
    assert server.headers[0]["x-team"] == "blue"
    assert server.paths == ["/v1/chat/completions?version=2"]


@STREAM
async def test_an_answer_comes_back_as_it_is(
    endpoint: OpenAIEndpoint, server: Server, stream: bool
) -> None:
    server.message["reasoning"] = "hm"
    *pieces, last = await run(endpoint, call_of(), stream=stream)
    assert [chunk.text for chunk in pieces] == (["", "one", "two", "", ""] if stream else [])
    assert last.reply is not None
    report = last.reply.report
    assert (report.prompt_tokens, report.output_tokens) == (9, 3)
    assert report.cached_tokens == (0 if stream else 4)
    assert report.service_s > 0
    if stream:
        deltas = [one["delta"] for chunk in pieces for one in chunk.output["choices"]]
        assert deltas == [{"reasoning": "hm"}, {"content": "one"}, {"content": "two"}, {}]
        assert pieces[-1].output["usage"] == USAGE
    else:
        assert last.output["choices"][0]["message"] == server.message
        assert last.output["usage"] == CACHED


@STREAM
async def test_leaving_a_call_ends_its_request(
    endpoint: OpenAIEndpoint, server: Server, stream: bool
) -> None:
    server.hold = True
    task = asyncio.create_task(run(endpoint, call_of(), stream=stream))
    while not server.asked:
        await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert await asyncio.to_thread(server.gone.wait, 60)


# -- errors ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("status", "error"), [(400, CallRejectedError), (404, CallRejectedError), (500, EngineError)]
)
@STREAM
async def test_what_the_server_refuses(
    endpoint: OpenAIEndpoint, server: Server, status: int, error: type[Exception], stream: bool
) -> None:
    server.status = status
    with pytest.raises(error, match=rf"call chat-1/0: no such luck \(status {status}\)"):
        await run(endpoint, call_of(), stream=stream)


async def test_a_server_that_is_gone(server: Server, endpoint: OpenAIEndpoint) -> None:
    endpoint.base_url = "the server"
    await endpoint.close()
    with pytest.raises(
        EngineDiedError, match="the endpoint the server was not started, or was closed"
    ):
        await run(endpoint, call_of())
    server.server_close()
    lost = OpenAIEndpoint(server.url.replace("://", "://me:secret@"), max_retries=0)
    with pytest.raises(EngineStartError, match=r"nothing answers at http://…@127.*start the serv"):
        await lost.start(lambda message: None)
    with pytest.raises(EngineDiedError, match="was lost during call chat-1/0"):
        await run(lost, call_of())
    await lost.close()


async def test_an_address_without_a_scheme_is_refused() -> None:
    endpoint = OpenAIEndpoint("host:8000/v1")
    with pytest.raises(ConfigError, match="'host:8000/v1' is not a valid URL"):
        await endpoint.start(lambda message: None)


async def test_a_raw_prompt_is_refused(endpoint: OpenAIEndpoint) -> None:
    with pytest.raises(CallRejectedError, match="takes chat requests, not prompts"):
        await run(
            endpoint, Call(Identity("chat-1/0", "chat-1", "chat"), CallSpec(prompt_token_ids=(1,)))
        )


async def test_half_of_a_surrogate_pair_is_refused(endpoint: OpenAIEndpoint) -> None:
    messages = [{"role": "user", "content": "Hello\ud83d"}]
    with pytest.raises(CallRejectedError, match="chat-1/0: the text has half of a surrogate pair"):
        await run(endpoint, call_of(messages=messages))


@pytest.mark.parametrize(
    ("code", "refusal"),
    [
        ("context_length_exceeded", "too much"),
        (None, "This model's maximum context length is 4096 tokens."),
    ],
)
async def test_a_prompt_beyond_the_context_is_known_as_such(
    endpoint: OpenAIEndpoint, server: Server, code: str | None, refusal: str
) -> None:
    server.status, server.code, server.refusal = 400, code, refusal
    with pytest.raises(PromptTooLongError, match="call chat-1/0: "):
        await run(endpoint, call_of())


@pytest.mark.parametrize(
    ("model", "models", "error", "message"),
    [
        ("gpt", ["lab/tiny"], ConfigError, "does not serve model 'gpt'; it serves lab/tiny"),
        (None, [], EngineStartError, "serves no model at all"),
    ],
)
async def test_a_model_that_is_not_served(
    server: Server, model: str | None, models: list[str], error: Any, message: str
) -> None:
    server.models = models
    endpoint = OpenAIEndpoint(server.url, model=model)
    with pytest.raises(error, match=message):
        await endpoint.start(lambda message: None)
    await endpoint.close()


JSON, EVENTS = "application/json", "text/event-stream"
NOT_ANSWERS = [("text/html", b"<html>"), (JSON, b"[1]"), (JSON, b"{br"), (JSON, b"null")]


@pytest.mark.parametrize(
    "raw",
    [*NOT_ANSWERS, (JSON, b'{"data": 5}'), (JSON, b'{"data": [5]}'), (JSON, b'{"data": [{}]}')],
)
async def test_a_start_fails_if_the_server_lists_no_models(
    server: Server, raw: tuple[str, bytes]
) -> None:
    server.raw = raw
    endpoint = OpenAIEndpoint(server.url, max_retries=0)
    with pytest.raises(EngineStartError, match=r"answers, but not with a list.*check base_url"):
        await endpoint.start(lambda message: None)
    await endpoint.close()


@pytest.mark.parametrize("url", ["http://[::1", "http://127.0.0.1:99999/v1"])
async def test_an_invalid_url_is_refused(url: str) -> None:
    with pytest.raises(ConfigError, match="is not a valid URL"):
        await OpenAIEndpoint(url).start(lambda message: None)


@pytest.mark.parametrize(
    ("stream", "raw"),
    [
        *((stream, raw) for stream in (False, True) for raw in NOT_ANSWERS),
        (False, (JSON, b'{"choices": []}')),
        (False, (JSON, b'{"choices": [5]}')),
        (False, (JSON, b'{"choices": [{"index": 0}]}')),
        (True, (EVENTS, b"data: {br\n\n")),
        (True, (EVENTS, b"data: [1]\n\n")),
        (True, (EVENTS, b'data: {"choices": [{"index": 0, "delta": 5}]}\n\n')),
        (True, (EVENTS, b'data: {"choices": [{"delta": {"tool_calls": [5]}}]}\n\n')),
        (True, (EVENTS, b'data: {"choices": [{"delta": {"tool_calls": 5}}]}\n\n')),
        (True, (EVENTS, b'data: {"choices": [{"delta": {"content": 5}}]}\n\n')),
        (True, (EVENTS, b'data: {"choices": [], "usage": 5}\n\n')),
    ],
)
async def test_a_call_fails_if_the_server_does_not_answer_in_openais_form(
    endpoint: OpenAIEndpoint, server: Server, stream: bool, raw: tuple[str, bytes]
) -> None:
    server.raw = raw
    with pytest.raises(EngineError, match=r"call chat-1/0: .*does not answer like an OpenAI"):
        await run(endpoint, call_of(), stream=stream)


@pytest.mark.parametrize(
    ("fault", "error"),
    [
        ({"message": "no luck"}, EngineError),
        ({"message": "no luck", "code": 500}, EngineError),
        ({"message": "no luck", "code": 400}, CallRejectedError),
        ({"message": "no luck", "type": "invalid_request_error"}, CallRejectedError),
        ({"message": "no luck", "code": "context_length_exceeded"}, PromptTooLongError),
        ("no luck", EngineError),
    ],
)
@STREAM
async def test_an_error_in_an_answer_that_began_well_fails_the_call(
    endpoint: OpenAIEndpoint, server: Server, fault: Any, error: type[Exception], stream: bool
) -> None:
    body = json.dumps({"error": fault}).encode()
    begin = b'data: {"choices": [{"index": 0, "delta": {"content": "one"}}]}\n\n'
    server.raw = (EVENTS, begin + b"data: " + body + b"\n\n") if stream else (JSON, body)
    with pytest.raises(EngineError, match="call chat-1/0: no luck") as raised:
        await run(endpoint, call_of(), stream=stream)
    assert type(raised.value) is error


async def test_a_server_that_wants_a_key(server: Server) -> None:
    server.status = 401
    endpoint = OpenAIEndpoint(server.url, max_retries=0)
    with pytest.raises(EngineStartError, match=r"does not list its models: .*status 401"):
        await endpoint.start(lambda message: None)
    await endpoint.close()


# -- as a chat model -------------------------------------------------------------------------


@pytest.fixture
def close_clients() -> Iterator[None]:
    yield
    shared.close_all()


@pytest.mark.usefixtures("close_clients")
def test_a_chat_model_by_its_url(server: Server) -> None:
    model = ChatAgentRT(base_url=server.url, api_key=SecretStr("key"))
    message = model.invoke("hello")
    assert (message.text, message.response_metadata["model_name"]) == ("one two", "lab/tiny")
    assert server.headers[0]["authorization"] == "Bearer key"
    huge = model.invoke("hello", model="lab/huge")
    assert huge.response_metadata["model_name"] == "lab/huge"
    with pytest.raises(ConfigError, match="it serves lab/tiny, lab/huge"):
        model.invoke("hello", model="gpt")


@pytest.mark.usefixtures("close_clients")
@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("ALL_PROXY", "socks://127.0.0.1:9/"),
        ("HTTP_PROXY", "http://127.0.0.1:9"),
        ("NO_PROXY", "[::1]"),
        ("SSL_CERT_FILE", "/nonexistent"),
    ],
)
def test_a_server_of_this_machine_is_reached_past_proxies(
    server: Server, monkeypatch: pytest.MonkeyPatch, name: str, value: str
) -> None:
    monkeypatch.setenv(name, value)
    assert ChatAgentRT(base_url=server.url).invoke("hello").text == "one two"


@pytest.mark.usefixtures("close_clients")
def test_a_proxy_that_cannot_be_used_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ALL_PROXY", "socks://127.0.0.1:9/")
    with pytest.raises(ConfigError, match=r"^ALL_PROXY='socks://127\.0\.0\.1:9/': a proxy's URL"):
        ChatAgentRT(base_url="http://203.0.113.7/v1").invoke("hello")


@pytest.mark.usefixtures("close_clients")
@pytest.mark.parametrize("said", ['{"answer": "not ours"}', "plain words"])
def test_native_text_beside_tools_is_text(server: Server, said: str) -> None:
    tool: Callable[[int], int] = abs
    server.message = {"role": "assistant", "content": said}
    model = ChatAgentRT(base_url=server.url).bind_tools(
        [{"type": "function", "function": {"name": tool.__name__, "parameters": {}}}]
    )
    assert model.invoke("hello").content == said
    assert "".join(chunk.text for chunk in model.stream("hello")) == said.replace(" ", "")


@pytest.mark.usefixtures("close_clients")
def test_several_calls_stream(server: Server) -> None:
    calls = [A_CALL, {**A_CALL, "id": "d"}]
    server.message = {"role": "assistant", "content": "so", "tool_calls": calls}
    schema = {"name": "add", "parameters": ADD}
    model = ChatAgentRT(base_url=server.url).bind_tools([{"type": "function", "function": schema}])
    first, *more = list(model.stream("hello"))
    whole = sum(more, first)
    for message in (whole, model.invoke("hello")):
        assert [call["args"] for call in message.tool_calls] == [{"a": 1}] * 2
        assert [call["id"] for call in message.tool_calls] == ["c", "d"]
        assert message.content == "so"


def unnumbered(*pieces: dict[str, Any]) -> bytes:
    """Return a stream with each of these pieces of tool calls in a chunk of its own."""
    chunks = [{"choices": [{"index": 0, "delta": {"tool_calls": [piece]}}]} for piece in pieces]
    chunks += [{"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}]
    return b"".join(b"data: " + json.dumps(chunk).encode() + b"\n\n" for chunk in chunks)


@pytest.mark.parametrize(
    "pieces",
    [
        pytest.param([A_CALL, {**A_CALL, "id": "d"}], id="whole calls, as of Gemini"),
        pytest.param(
            [
                {**A_CALL, "function": {"name": "add", "arguments": '{"a"'}},
                {"function": {"arguments": ": 1}"}},
                {**A_CALL, "id": "d", "function": {"name": "add", "arguments": '{"a"'}},
                {"id": "d", "function": {"arguments": ": 1}"}},
            ],
            id="calls in pieces",
        ),
    ],
)
async def test_streamed_calls_without_an_index_are_told_apart(
    server: Server, pieces: list[dict[str, Any]]
) -> None:
    server.raw = (JSON, json.dumps({"data": [{"id": "lab/tiny"}]}).encode())
    async with Runtime(OpenAIEndpoint(server.url)) as runtime:
        server.raw = (EVENTS, unnumbered(*pieces))
        frontend = await runtime.frontend()
        stream = frontend.chat_stream(call_of().spec.request or {}, NoProgram(runtime.executor))
        whole = StreamedAnswer()
        async for piece in stream:
            whole.add(piece)
    calls = reply_of(whole.answer()).tool_calls
    assert calls == (ToolCall("add", {"a": 1}, "c"), ToolCall("add", {"a": 1}, "d"))


THOUGHT = {"type": "thinking", "thinking": [{"type": "text", "text": "Hm."}]}


@STREAM
async def test_a_content_in_parts_is_text_and_reasoning(
    server: Server, endpoint: OpenAIEndpoint, stream: bool
) -> None:
    """Mistral's reasoning models answer in this form."""
    parts = [[THOUGHT], [{"type": "text", "text": "one "}], "two"]
    deltas = [{"choices": [{"index": 0, "delta": {"content": each}}]} for each in parts]
    whole = [THOUGHT, {"type": "text", "text": "one two"}]
    message = {"role": "assistant", "content": whole}
    body = {"choices": [{"index": 0, "message": message, "finish_reason": "stop"}]}
    events = b"".join(b"data: " + json.dumps(delta).encode() + b"\n\n" for delta in deltas)
    server.raw = (EVENTS, events) if stream else (JSON, json.dumps(body).encode())
    chunks = await run(endpoint, call_of(), stream=stream)
    assert chunks[-1].reply is not None
    assert chunks[-1].reply.text == "one two"
    if stream:
        answer = StreamedAnswer()
        for chunk in chunks:
            answer.add(chunk.output)
        reply = reply_of(answer.answer())
    else:
        reply = reply_of(chunks[-1].output)
    assert (reply.text, reply.reasoning) == ("one two", "Hm.")


async def test_programs_run_at_an_endpoint(server: Server) -> None:
    async with Runtime(OpenAIEndpoint(server.url)) as runtime:
        message = await ChatAgentRT(runtime=runtime).ainvoke("hello")
    assert message.response_metadata["agentrt"]["program_id"] == "chat-1"
    assert server.headers[0]["x-agentrt-program"].startswith("chat-1@")

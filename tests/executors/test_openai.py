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
from agentrt.errors import (
    CallRejectedError,
    ConfigError,
    EngineDiedError,
    EngineError,
    EngineStartError,
)
from agentrt.executors.base import Chunk
from agentrt.executors.openai import OpenAIEndpoint
from agentrt.integrations.langchain import ChatAgentRT, shared
from agentrt.request import NO_LIMIT, Call, CallSpec, Identity, ToolCall, ToolSpec

pytest.importorskip("openai", reason="the extra agentrt[remote] is not installed")

ADD = ToolSpec(
    "add",
    "Add.",
    {
        "type": "object",
        "properties": {"a": {"type": "integer"}},
        "required": ["a"],
        "additionalProperties": False,
    },
)
USAGE = {"prompt_tokens": 9, "completion_tokens": 3, "total_tokens": 12}
CACHED = {**USAGE, "prompt_tokens_details": {"cached_tokens": 4}}


class Server(ThreadingHTTPServer):
    """Answers as it is told, and keeps what it was asked."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.models = ["lab/tiny", "lab/huge"]
        self.asked: list[dict[str, Any]] = []
        self.headers: list[dict[str, str]] = []
        self.status = 200
        self.message: dict[str, Any] = {"role": "assistant", "content": "one two"}
        self.finish_reason = "stop"
        self.hold = False
        self.gone = threading.Event()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/v1"


class Handler(BaseHTTPRequestHandler):
    server: Server

    def log_message(self, *args: Any, **kwargs: Any) -> None: ...

    def do_GET(self) -> None:
        models = [{"id": name, "object": "model"} for name in self.server.models]
        self._json({"object": "list", "data": models})

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        self.server.asked.append(body)
        self.server.headers.append({k.lower(): v for k, v in self.headers.items()})
        if self.server.status != 200:
            self._json({"error": {"message": "no such luck", "code": self.server.status}})
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
        for piece in (self.server.message.get("content") or "").split(" "):
            yield {"content": piece}
        for index, call in enumerate(self.server.message.get("tool_calls", ())):
            half = len(call["function"]["arguments"]) // 2
            name, arguments = call["function"]["name"], call["function"]["arguments"]
            yield {"tool_calls": [{"index": index, "id": "c", "function": {"name": name}}]}
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


def call_of(**spec: Any) -> Call:
    messages = ({"role": "user", "content": "hello"},)
    return Call(Identity("chat-1/0", "chat-1", "chat"), CallSpec(**{"messages": messages, **spec}))


async def run(endpoint: OpenAIEndpoint, call: Call, *, stream: bool = False) -> list[Chunk]:
    return [chunk async for chunk in endpoint.generate(call, stream=stream)]


A_CALL = {"id": "c", "type": "function", "function": {"name": "add", "arguments": '{"a": 1}'}}
STREAM = pytest.mark.parametrize("stream", [False, True])


# -- calls -----------------------------------------------------------------------------------


async def test_a_call_and_its_identity_go_out(endpoint: OpenAIEndpoint, server: Server) -> None:
    call = Call(
        Identity("chat-1/0", "chat-1", "weather bot", tenant="Zoë", session="thread\n1"),
        CallSpec(({"role": "user", "content": "hi"},), max_tokens=5, seed=7, stop=("x",)),
    )
    await run(endpoint, call)
    assert server.asked == [
        {
            "model": "lab/tiny",
            "messages": [{"role": "user", "content": "hi"}],
            "temperature": 0.0,
            "top_p": 1.0,
            "max_tokens": 5,
            "seed": 7,
            "stop": ["x"],
        }
    ]
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


async def test_what_is_not_set_is_left_to_the_server(
    endpoint: OpenAIEndpoint, server: Server
) -> None:
    await run(endpoint, call_of(max_tokens=NO_LIMIT))
    set_always = {"model", "messages", "temperature", "top_p"}
    assert set(server.asked[0]) == set_always
    rare = {"ignore_eos": True, "frequency_penalty": 0.5, "presence_penalty": -1.0}
    await run(endpoint, call_of(max_tokens=NO_LIMIT, **rare))
    assert {k: v for k, v in server.asked[1].items() if k not in set_always} == rare
    assert "x-agentrt-session" not in server.headers[0]


async def test_tools_and_schemas_go_out_in_the_fields_of_the_api(
    endpoint: OpenAIEndpoint, server: Server
) -> None:
    loose = ToolSpec("say", "", {"type": "object", "properties": {"x": {}}})
    await run(endpoint, call_of(tools=(ADD, loose), tool_choice="add", schema={"type": "object"}))
    [body] = server.asked
    add, say = (tool["function"] for tool in body["tools"])
    assert add == {
        "name": "add",
        "description": "Add.",
        "parameters": ADD.parameters,
        "strict": True,
    }
    assert "strict" not in say, "OpenAI refuses it where a name may be left out"
    assert body["tool_choice"] == {"type": "function", "function": {"name": "add"}}
    assert body["response_format"]["json_schema"]["schema"] == {"type": "object"}
    await run(endpoint, call_of(tools=(ADD,), tool_choice="required"))
    assert server.asked[-1]["tool_choice"] == "required"


@STREAM
async def test_text_comes_back_with_its_usage(endpoint: OpenAIEndpoint, stream: bool) -> None:
    *pieces, last = await run(endpoint, call_of(), stream=stream)
    assert [chunk.text for chunk in pieces] == (["one", "two"] if stream else [])
    reply = last.reply
    assert reply is not None
    assert (reply.text, reply.finish_reason) == ("onetwo" if stream else "one two", "stop")
    report = reply.report
    assert (report.prompt_tokens, report.output_tokens) == (9, 3)
    assert report.cached_tokens == (0 if stream else 4)
    assert report.service_s > 0


@STREAM
async def test_tool_calls_come_back(endpoint: OpenAIEndpoint, server: Server, stream: bool) -> None:
    one = {"name": "add", "arguments": '{"a": 1}'}
    cut = {"name": "add", "arguments": '{"a": '}
    calls = [{"id": "c", "type": "function", "function": function} for function in (one, cut)]
    server.message = {"role": "assistant", "content": None, "tool_calls": calls}
    server.finish_reason = "length"
    [*_, last] = await run(endpoint, call_of(tools=(ADD,)), stream=stream)
    assert last.reply is not None
    assert last.reply.tool_calls == (ToolCall("add", {"a": 1}, "c"),)
    assert (last.reply.text, last.reply.finish_reason) == ("", "length")


@STREAM
async def test_a_chat_goes_on_after_calls(endpoint: Any, server: Server, stream: bool) -> None:
    """A reply's message has its calls, by whose ids results are told apart."""
    server.message = {"role": "assistant", "content": "so", "tool_calls": [A_CALL]}
    [*_, last] = await run(endpoint, call_of(tools=(ADD,)), stream=stream)
    assert last.reply
    assert last.reply.message == server.message
    result = {"role": "tool", "tool_call_id": last.reply.tool_calls[0].id, "content": "2"}
    chat = ({"role": "user", "content": "hello"}, last.reply.message, result)
    await run(endpoint, call_of(messages=chat, tools=(ADD,)))
    assert server.asked[-1]["messages"] == list(chat)


async def test_json_is_parsed_where_a_schema_asks_for_it(
    endpoint: OpenAIEndpoint, server: Server
) -> None:
    server.message = {"role": "assistant", "content": '{"a": 1}'}
    for schema, parsed in (({"type": "object"}, {"a": 1}), (None, None)):
        [last] = await run(endpoint, call_of(schema=schema))
        assert last.reply is not None
        assert last.reply.parsed == parsed


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
    assert await asyncio.to_thread(server.gone.wait, 30)


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
    with pytest.raises(EngineDiedError, match="the connection to the server is not open"):
        await run(endpoint, call_of())
    server.server_close()
    lost = OpenAIEndpoint(server.url, max_retries=0)
    with pytest.raises(EngineStartError, match=r"nothing answers at http.*start the server"):
        await lost.start(lambda message: None)
    with pytest.raises(EngineDiedError, match="was lost during call chat-1/0"):
        await run(lost, call_of())
    await lost.close()


async def test_a_raw_prompt_is_refused(endpoint: OpenAIEndpoint) -> None:
    with pytest.raises(CallRejectedError, match="takes chats, not raw prompts"):
        await run(endpoint, call_of(messages=None, prompt="x"))


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


async def test_a_server_that_wants_a_key(server: Server) -> None:
    server.status = 401
    endpoint = OpenAIEndpoint(server.url, max_retries=0)
    with pytest.raises(EngineStartError, match=r"does not list its models: .*status 401"):
        await endpoint.start(lambda message: None)
    await endpoint.close()


# -- as a chat model -------------------------------------------------------------------------


@pytest.fixture
def close_portals() -> Iterator[None]:
    yield
    shared.close_all()


@pytest.mark.usefixtures("close_portals")
def test_a_chat_model_by_its_url(server: Server) -> None:
    model = ChatAgentRT(base_url=server.url, api_key=SecretStr("key"))
    message = model.invoke("hello")
    assert (message.text, message.response_metadata["model_name"]) == ("one two", "lab/tiny")
    assert server.headers[0]["authorization"] == "Bearer key"
    huge = model.invoke("hello", model="lab/huge")
    assert huge.response_metadata["model_name"] == "lab/huge"
    with pytest.raises(ConfigError, match="it serves lab/tiny, lab/huge"):
        model.invoke("hello", model="gpt")


@pytest.mark.usefixtures("close_portals")
@pytest.mark.parametrize("said", ['{"answer": "not ours"}', "plain words"])
def test_native_text_beside_tools_is_text(server: Server, said: str) -> None:
    tool: Callable[[int], int] = abs
    server.message = {"role": "assistant", "content": said}
    model = ChatAgentRT(base_url=server.url).bind_tools(
        [{"type": "function", "function": {"name": tool.__name__, "parameters": {}}}]
    )
    assert model.invoke("hello").content == said
    assert "".join(chunk.text for chunk in model.stream("hello")) == said.replace(" ", "")


@pytest.mark.usefixtures("close_portals")
def test_native_calls_stream_at_the_end(server: Server) -> None:
    server.message = {"role": "assistant", "content": "so", "tool_calls": [A_CALL] * 2}
    schema = {"name": "add", "parameters": dict(ADD.parameters)}
    model = ChatAgentRT(base_url=server.url).bind_tools([{"type": "function", "function": schema}])
    first, *more = list(model.stream("hello"))
    whole = sum(more, first)
    for message in (whole, model.invoke("hello")):
        assert [call["args"] for call in message.tool_calls] == [{"a": 1}] * 2
        assert len({call["id"] for call in message.tool_calls}) == 2
        assert message.content == "so"


async def test_programs_run_at_an_endpoint(server: Server) -> None:
    async with Runtime(OpenAIEndpoint(server.url)) as runtime:
        message = await ChatAgentRT(runtime=runtime).ainvoke("hello")
    assert message.response_metadata["agentrt"]["program_id"] == "chat-1"
    assert server.headers[0]["x-agentrt-program"].startswith("chat-1@")

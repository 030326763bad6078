"""`instrument`: an unmodified `ChatOpenAI`, and both generations of its HTTP client."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, ClassVar

import httpx
import pytest
from langchain_core.runnables import RunnableLambda
from langchain_openai import ChatOpenAI
from langgraph.graph import START, MessagesState, StateGraph
from pydantic import SecretStr

from agentrt.graph import NodeState
from agentrt.integrations.langgraph import instrument, uninstrument
from agentrt.runtime.run import Run

MESSAGE = {"role": "assistant", "content": "yes"}
USAGE = {"prompt_tokens": 5, "completion_tokens": 2, "total_tokens": 7}
RESPONSES_USAGE = {"input_tokens": 5, "output_tokens": 2, "total_tokens": 7}


class Handler(BaseHTTPRequestHandler):
    """Says yes, streamed or not, and keeps what it was asked; a model named down fails."""

    seen: ClassVar[list[tuple[str, dict[str, str]]]] = []

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        identity = {k: v for k, v in self.headers.items() if k.startswith("x-agentrt-")}
        content = (body.get("messages") or [{"content": ""}])[-1]["content"]
        self.seen.append((content, identity))
        if body.get("model") == "down":
            self.reply(503, "application/json", b"{}")
        elif body.get("stream"):
            delta = {"index": 0, "delta": MESSAGE, "finish_reason": "stop"}
            event = {"id": "1", "object": "chat.completion.chunk", "choices": [delta]}
            text = f"data: {json.dumps(event)}\n\ndata: [DONE]\n\n"
            self.reply(200, "text/event-stream", text.encode())
        else:
            choice = {"index": 0, "message": MESSAGE, "finish_reason": "stop"}
            usage = RESPONSES_USAGE if self.path.endswith("/responses") else USAGE
            whole = {"id": "1", "object": "chat.completion", "choices": [choice], "usage": usage}
            self.reply(200, "application/json", json.dumps(whole).encode())

    def reply(self, status: int, kind: str, body: bytes) -> None:
        self.send_response(status)
        self.send_header("content-type", kind)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *args: Any) -> None:
        """Tests are quiet."""


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_address[1]}/v1"
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture(autouse=True)
def instrumented() -> Iterator[None]:
    Handler.seen.clear()
    instrument()
    yield
    uninstrument()


def client(url: str, **options: Any) -> ChatOpenAI:
    return ChatOpenAI(base_url=url, api_key=SecretStr("none"), max_retries=0, **options)


def graph_of(model: ChatOpenAI) -> Any:
    """plan leads to a and b, and both to end; synchronous, streaming and async calls."""

    async def plan(state: MessagesState) -> dict[str, Any]:
        return {"messages": [await model.ainvoke("plan")]}

    def a(state: MessagesState) -> dict[str, Any]:
        return {"messages": [model.invoke("a")]}

    async def b(state: MessagesState) -> dict[str, Any]:
        return {"messages": [chunk async for chunk in model.astream("b")][:1]}

    def end(state: MessagesState) -> dict[str, Any]:
        chunks = list(model.stream("end"))
        return {"messages": chunks[:1]}

    builder = StateGraph(MessagesState)
    for name, node in {"plan": plan, "a": a, "b": b, "end": end}.items():
        builder.add_node(name, node)
    builder.add_edge(START, "plan")
    builder.add_edge("plan", "a")
    builder.add_edge("plan", "b")
    builder.add_edge(["a", "b"], "end")
    return builder.compile(name="größer")


async def test_identity_travels_in_headers(url: str, runs: list[Run]) -> None:
    model = client(url, model="tiny")
    config = {"configurable": {"thread_id": "t 1"}, "metadata": {"agentrt_tenant": "ann"}}
    await graph_of(model).ainvoke({"messages": []}, config)
    [run] = runs
    seen = dict(Handler.seen)
    plan, end = seen["plan"], seen["end"]
    assert plan["x-agentrt-program"].startswith("gr%C3%B6%C3%9Fer~")
    assert plan["x-agentrt-type"] == "gr%C3%B6%C3%9Fer"
    assert (plan["x-agentrt-tenant"], plan["x-agentrt-session"]) == ("ann", "t 1")
    assert (plan["x-agentrt-node"], plan["x-agentrt-parents"]) == ("plan", "")
    assert (seen["a"]["x-agentrt-parents"], seen["b"]["x-agentrt-parents"]) == ("0", "0")
    assert end["x-agentrt-parents"] == "1,2"
    assert {one["x-agentrt-program"] for one in seen.values()} == {plan["x-agentrt-program"]}
    assert [node.state for node in run.dag.nodes()] == [NodeState.DONE] * 4
    assert run.report(0.0).output_tokens == 2 * 2  # streams do not say


def test_a_call_outside_any_program_says_nothing(url: str, runs: list[Run]) -> None:
    with httpx.Client() as http:
        http.post(f"{url}/chat/completions", json={"messages": [{"content": "bare"}]})
    assert Handler.seen == [("bare", {})]
    assert runs == []


def test_the_older_client_too(url: str, runs: list[Run]) -> None:
    def node(_: Any) -> int:
        with httpx.Client() as http:
            http.post(f"{url}/chat/completions", json={"messages": [{"content": "old"}]})
            return http.post(f"{url}/other", json={"messages": [{"content": "else"}]}).status_code

    (RunnableLambda(node) | RunnableLambda(str)).invoke(None)
    seen = dict(Handler.seen)
    assert seen["old"]["x-agentrt-call"] == "0"
    assert seen["else"] == {}
    assert len(runs[0].dag) == 1


def test_the_tokens_of_the_responses_api_count(url: str, runs: list[Run]) -> None:
    def node(_: Any) -> int:
        with httpx.Client() as http:
            return http.post(f"{url}/responses", json={"input": "hello"}).status_code

    (RunnableLambda(node) | RunnableLambda(str)).invoke(None)
    report = runs[0].report(0.0)
    assert (report.prompt_tokens, report.output_tokens) == (5, 2)


async def test_only_some_urls(url: str, runs: list[Run]) -> None:
    instrument(only="http://127.0.0.1:1/")
    await graph_of(client(url, model="tiny")).ainvoke({"messages": []})
    assert [identity for _, identity in Handler.seen] == [{}] * 4
    assert len(runs[0].dag) == 0


async def test_a_call_that_fails_has_failed(url: str, runs: list[Run]) -> None:
    with pytest.raises(Exception, match="503"):
        await graph_of(client(url, model="down")).ainvoke({"messages": []})
    assert [node.state for node in runs[0].dag.nodes()] == [NodeState.FAILED]


async def test_no_server(runs: list[Run]) -> None:
    model = client("http://127.0.0.1:1/v1", model="tiny")
    with pytest.raises(Exception, match="onnection"):
        await graph_of(model).ainvoke({"messages": []})
    [node] = runs[0].dag.nodes()
    assert node.state is NodeState.FAILED
    assert "Error" in str(node.error)


async def test_after_uninstrument_all_is_as_before(url: str, runs: list[Run]) -> None:
    uninstrument()
    await asyncio.gather(*(graph_of(client(url, model="t")).ainvoke({"messages": []}),))
    assert [identity for _, identity in Handler.seen] == [{}] * 4

"""Tools of Anthropic's servers that this server runs by tools of its own, `--server-tool`."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from agentrt.errors import ConfigError, ToolFailedError
from agentrt.graph import NodeKind
from agentrt.interrupts import Tool, ToolContext, ToolRequest, ToolTransport
from agentrt.request import Call, ToolSpec
from agentrt.serving.frontend.conversations import MESSAGES
from tests.clients.server import shape_of
from tests.serving.frontend.test_anthropic_blocks import HI, LEFT_OUT, WEATHER, body, prompt_of
from tests.serving.local import WAIT_S, Held, LocalServer, called, open_server

pytestmark = pytest.mark.engine

SEARCH = {"type": "web_search_20250305", "name": "web_search"}
HITS = [
    {"title": "Tides", "url": "https://tides.example", "snippet": "High at noon."},
    {"title": "Moon", "link": "https://moon.example", "content": "It is full."},
]
SAID = "It is high at noon."
SCHEMA = {
    "type": "object",
    "properties": {"query": {"type": "string"}},
    "required": ["query"],
}


class Search(ToolTransport):
    """Offers a tool that answers as ``answer`` does."""

    name = "search"

    def __init__(self, answer: Callable[[ToolRequest], Any]) -> None:
        self._answer = answer
        self.requests: list[ToolRequest] = []
        self.is_there = True
        self.cancelled = 0

    async def tools(self) -> Sequence[Tool]:
        spec = ToolSpec("find", "Search the web.", SCHEMA)
        return [Tool("find", spec=spec, transport=self, remote="find")] if self.is_there else []

    async def call(self, request: ToolRequest, context: ToolContext) -> Any:
        self.requests.append(request)
        try:
            answer = self._answer(request)
            return await answer if asyncio.iscoroutine(answer) else answer
        except asyncio.CancelledError:
            self.cancelled += 1
            raise


class Model:
    """A model that returns these outputs in turn, and then repeats the last."""

    def __init__(self, *outputs: str) -> None:
        self.outputs = list(outputs)

    def __call__(self, call: Call) -> str:
        return self.outputs.pop(0) if len(self.outputs) > 1 else self.outputs[0]


QUERY = called(("web_search", {"query": "tides"}))
ONCE = (QUERY, SAID)


def use(local: LocalServer, transport: ToolTransport, kind: str = "web_search") -> None:
    """Have the server run a tool of ``transport``."""
    local.server.server_tools = {kind: "find"}
    local.runtime.toolbox._remote[transport.name] = transport


async def ask(local: LocalServer, *, stream: bool, **fields: Any) -> dict[str, Any]:
    """An answer as Anthropic's own SDK reads it."""
    from anthropic import AsyncAnthropic

    asked = {"tools": [SEARCH], "max_tokens": 200, **fields}
    async with AsyncAnthropic(base_url=local.url, api_key="none", max_retries=0) as client:
        own = {name: value for name, value in body(**asked).items() if name != "stream"}
        if not stream:
            answer = await client.messages.create(**own)
        else:
            async with client.messages.stream(**own) as events:
                answer = await events.get_final_message()
        read: dict[str, Any] = answer.to_dict()
        return read


@pytest.mark.parametrize("stream", [False, True])
async def test_a_search_runs_on_the_server_and_the_answer_continues(stream: bool) -> None:
    search = Search(lambda request: {"results": HITS})
    async with open_server(Model(*ONCE)) as local:
        use(local, search)
        answer = await ask(local, stream=stream)
        call, result, text = answer["content"]
        assert (call["type"], call["name"]) == ("server_tool_use", "web_search")
        assert call["input"] == {"query": "tides"}
        assert (result["type"], result["tool_use_id"]) == ("web_search_tool_result", call["id"])
        hits = [(hit["title"], hit["url"]) for hit in result["content"]]
        assert hits == [("Tides", "https://tides.example"), ("Moon", "https://moon.example")]
        assert (text["type"], text["text"]) == ("text", SAID)
        assert answer["stop_reason"] == "end_turn"
        assert answer["usage"]["server_tool_use"]["web_search_requests"] == 1
        [request] = search.requests
        assert request.arguments == {"query": "tides"}
        prompt = prompt_of(local)
        assert "High at noon." in prompt
        assert "It is full." in prompt
        [run] = local.runtime.runs.values()
        assert shape_of(run) == [("call", ()), ("find", (0,)), ("call", (1,))]
        assert [node.kind for node in run.dag.nodes()].count(NodeKind.TOOL) == 1


@pytest.mark.parametrize("stream", [False, True])
async def test_the_next_turn_begins_with_the_prompt_of_this_one(stream: bool) -> None:
    search = Search(lambda request: {"results": HITS})
    async with open_server(Model(*ONCE)) as local:
        use(local, search)
        answer = await ask(local, stream=stream)
        before = prompt_of(local)
        chat = [HI, {"role": "assistant", "content": answer["content"]}, HI]
        await ask(local, stream=stream, messages=chat)
        assert prompt_of(local).startswith(before)
        [run] = local.runtime.runs.values()
        assert shape_of(run) == [("call", ()), ("find", (0,)), ("call", (1,)), ("call", (2,))]


@pytest.mark.parametrize("stream", [False, True])
async def test_calls_of_the_client_s_own_tools_go_to_the_client(stream: bool) -> None:
    weather = called(("get_weather", {"city": "Rome"}))
    search = Search(lambda request: "nothing")
    async with open_server(Model(QUERY, weather)) as local:
        use(local, search)
        answer = await ask(local, stream=stream, tools=[SEARCH, WEATHER])
        kinds = [block["type"] for block in answer["content"]]
        assert kinds == ["server_tool_use", "web_search_tool_result", "tool_use"]
        assert answer["stop_reason"] == "tool_use"
        [run] = local.runtime.runs.values()
        nodes = [("call", ()), ("find", (0,)), ("call", (1,)), ("get_weather", (2,))]
        assert shape_of(run) == nodes


@pytest.mark.parametrize("stream", [False, True])
async def test_a_client_that_leaves_during_a_call_is_no_fault(
    stream: bool, caplog: pytest.LogCaptureFixture
) -> None:
    async with open_server(Model(*ONCE), kind=Held) as local:
        use(local, Search(lambda request: "nothing"))
        asking = asyncio.create_task(ask(local, stream=stream))
        await local.engine.began.wait()
        asking.cancel()
        await local.until(lambda: not local.server.tenants.calls("default"))
        await local.until(lambda: not local.listener._requests())
        assert [record for record in caplog.records if record.levelno >= logging.ERROR] == []


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("choice", [{"type": "any"}, {"type": "tool", "name": "web_search"}])
async def test_a_tool_choice_applies_only_to_the_first_call(choice: Any, stream: bool) -> None:
    search = Search(lambda request: "nothing")
    async with open_server(Model(*ONCE)) as local:
        use(local, search)
        answer = await ask(local, stream=stream, tool_choice=choice)
        assert answer["content"][-1]["text"] == SAID


@pytest.mark.parametrize("stream", [False, True])
async def test_the_model_reads_the_error_of_a_tool(stream: bool) -> None:
    def fail(request: ToolRequest) -> Any:
        raise ToolFailedError("the line is down")

    async with open_server(Model(*ONCE)) as local:
        use(local, Search(fail))
        answer = await ask(local, stream=stream)
        error = answer["content"][1]["content"]
        assert error["type"] == "web_search_tool_result_error"
        assert error["error_code"] == "unavailable"
        assert "the line is down" in prompt_of(local)
        assert answer["content"][-1]["text"] == SAID


@pytest.mark.parametrize("stream", [False, True])
async def test_a_tool_is_used_no_more_often_than_the_client_says(stream: bool) -> None:
    search = Search(lambda request: "nothing")
    async with open_server(Model(QUERY, QUERY, SAID)) as local:
        use(local, search)
        answer = await ask(local, stream=stream, tools=[{**SEARCH, "max_uses": 1}])
        assert answer["content"][3]["content"]["error_code"] == "max_uses_exceeded"
        assert len(search.requests) == 1


@pytest.mark.parametrize("stream", [False, True])
async def test_a_model_that_only_searches_is_paused(stream: bool) -> None:
    async with open_server(Model(QUERY)) as local:
        use(local, Search(lambda request: "nothing"))
        answer = await ask(local, stream=stream, max_tokens=4000)
        assert answer["stop_reason"] == "pause_turn"


@pytest.mark.parametrize("stream", [False, True])
async def test_the_limit_of_an_answer_holds_for_all_its_calls(stream: bool) -> None:
    async with open_server(Model(QUERY)) as local:
        use(local, Search(lambda request: "nothing"))
        answer = await ask(local, stream=stream, max_tokens=60)
        kinds = [block["type"] for block in answer["content"]]
        assert kinds[:2] == ["server_tool_use", "web_search_tool_result"]
        assert answer["stop_reason"] == "max_tokens"
        assert answer["usage"]["output_tokens"] <= 60


@pytest.mark.parametrize(
    ("kind", "value", "text"),
    [
        ("web_search_20250305", "See https://a.example for tides.", "for tides"),
        ("web_search_20250305", json.dumps(HITS), "High at noon."),
        ("web_search_20250305", [{"type": "text", "text": json.dumps(HITS)}], "High at noon."),
        ("web_search_20250305", {"organic": HITS}, "High at noon."),
        ("web_search_20250305", {"answer": 42}, "42"),
        ("web_search_20250305", "", None),
        ("web_fetch_20250910", "The page.", "The page."),
        ("code_execution_20250825", {"stdout": "4"}, "4"),
        ("web_fetch_20250910", {("high", 1): "at noon"}, "at noon"),
        ("web_search_20250305", [{"url": "https://a.example", "tides": {"at noon"}}], "at noon"),
    ],
)
async def test_results_of_any_form_are_read(kind: str, value: Any, text: str | None) -> None:
    name = kind.rpartition("_")[0]
    query = called((name, {"query": "x"}))
    async with open_server(Model(query, SAID)) as local:
        use(local, Search(lambda request: value), name)
        answer = await ask(local, stream=False, tools=[{"type": kind, "name": name}])
        result = answer["content"][1]
        assert result["type"] == f"{name}_tool_result"
        assert text is None or text in prompt_of(local)


async def test_no_field_of_a_tool_fails_the_server() -> None:
    async with open_server(lambda call: SAID) as local:
        use(local, Search(lambda request: {"results": HITS}))
        for field in ("name", "type", "max_uses", "input_schema", "strict", "defer_loading"):
            values: tuple[Any, ...] = (None, True, -1, "x", [], ["x"], {}, {"type": []})
            for value in values:
                for tools in ([{**SEARCH, field: value}], [SEARCH, {**WEATHER, field: value}]):
                    request = {**body(tools=tools, max_tokens=200), "stream": False}
                    answer = await local.client.post(MESSAGES, json=request)
                    assert answer.status_code < 500, (field, value, answer.text)


async def test_numbers_that_vllm_reads_from_texts_are_read_between_the_calls_of_tools() -> None:
    async with open_server(Model(*ONCE)) as local:
        use(local, Search(lambda request: {"results": HITS}))
        thinking = {"type": "enabled", "budget_tokens": "1500.0"}
        request = {**body(tools=[SEARCH], max_tokens="2000.0", thinking=thinking), "stream": False}
        answer = await local.client.post(MESSAGES, json=request)
        assert (answer.status_code, answer.json()["content"][-1]["text"]) == (200, SAID)


async def test_an_unavailable_tool_is_left_out() -> None:
    search = Search(lambda request: "nothing")
    search.is_there = False
    async with open_server() as local:
        use(local, search)
        answer = await local.client.post(MESSAGES, json=body(tools=[SEARCH]))
        assert (answer.status_code, answer.headers[LEFT_OUT]) == (200, SEARCH["type"])


async def test_a_client_that_disconnects_ends_the_tool() -> None:
    began = asyncio.Event()

    async def hang(request: ToolRequest) -> Any:
        began.set()
        await asyncio.Event().wait()

    search = Search(hang)
    async with open_server(Model(QUERY)) as local:
        use(local, search)
        for stream in (False, True):
            began.clear()
            asked = body(tools=[SEARCH], stream=stream, max_tokens=200)
            posting = asyncio.create_task(local.client.post(MESSAGES, json=asked))
            await began.wait()
            posting.cancel()
            await asyncio.gather(posting, return_exceptions=True)
            await local.until(lambda: not local.server.tenants.calls("default"))
        assert search.cancelled == 2


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("end", ["deadline", "program"])
async def test_a_tool_ends_with_its_request(end: str, stream: bool) -> None:
    """The deadline passes, or the program is ended, while the tool runs."""
    began = asyncio.Event()

    async def hang(request: ToolRequest) -> Any:
        began.set()
        await asyncio.Event().wait()

    search = Search(hang)
    async with open_server(Model(QUERY)) as local:
        use(local, search)
        run = (await local.client.post("/v1/client-runs", json={})).json()["id"]
        headers = {"x-agentrt-run": run}
        if end == "deadline":
            headers = {"x-agentrt-run": "own", "x-agentrt-deadline": "1"}
        asked = body(tools=[SEARCH], stream=stream, max_tokens=200)
        asking = asyncio.create_task(local.client.post(MESSAGES, json=asked, headers=headers))
        await began.wait()
        if end == "program":
            await local.client.delete(f"/v1/client-runs/{run}")
        answer = await asyncio.wait_for(asking, WAIT_S)
        words = "passed its deadline" if end == "deadline" else "was ended"
        assert words in answer.text
        if stream:
            assert answer.text.rstrip().rpartition("\n\n")[2].startswith("event: error")
        else:
            assert answer.status_code == (408 if end == "deadline" else 409)
        assert search.cancelled == 1
        await local.until(lambda: not local.server.tenants.calls("default"))


@pytest.mark.parametrize("stream", [False, True])
async def test_a_tool_that_is_cancelled_by_its_own_code_fails(stream: bool) -> None:
    async def cancels(request: ToolRequest) -> Any:
        raise asyncio.CancelledError

    async with open_server(Model(*ONCE)) as local:
        use(local, Search(cancels))
        answer = await ask(local, stream=stream)
        assert "cancelled by its own code" in str(answer["content"][1])
        assert answer["content"][-1]["text"] == SAID


async def test_models_say_which_tools_run_here() -> None:
    async with open_server() as local:
        use(local, Search(lambda request: "nothing"))
        [card] = (await local.client.get("/v1/models")).json()["data"]
        assert card["server_tools"] == ["web_search"]


@pytest.mark.parametrize(
    ("texts", "words"),
    [
        (["web_search"], "form KIND=NAME"),
        (["web_search="], "form KIND=NAME"),
        (["telepathy=x"], "web_search, web_fetch, code_execution"),
        (["web_search=a", "web_search=b"], "twice"),
        (["web_search=a"], "--mcp"),
    ],
)
def test_mistakes_of_the_option(texts: list[str], words: str) -> None:
    from agentrt.cli.tools import read_server_tools

    files = [] if words == "--mcp" else ["mcp.json"]
    options = {"server_tools": texts, "mcp_files": files, "tool_urls": [], "broker": None}
    with pytest.raises(ConfigError, match=words):
        read_server_tools(options)

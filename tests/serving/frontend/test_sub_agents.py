"""Claude Code's sub-agents are branches of their session's program; a WebSocket that no API serves
is refused so that clients continue by HTTP.
"""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from websockets.asyncio.client import connect
from websockets.exceptions import InvalidStatus

from agentrt.graph import NodeKind
from agentrt.serving.frontend.conversations import MESSAGES
from tests.serving.frontend.test_identity import ask
from tests.serving.local import Held, LocalServer, open_server

pytestmark = pytest.mark.engine

SESSION = {"x-claude-code-session-id": "s1"}
TASK = '<tool_call>\n{"name": "Task", "arguments": {}}\n</tool_call>'
FLAGS = ("--tool-call-parser", "hermes")


def tasks() -> list[Any]:
    return [{"name": "Task", "input_schema": {"type": "object", "properties": {}}}]


async def say(local: LocalServer, *turns: Any, agent: str = "", parent: str = "") -> Any:
    """A call of the main agent, or of a sub-agent."""
    headers = {**SESSION, "x-claude-code-agent-id": agent, "x-claude-code-parent-agent-id": parent}
    body = ask(MESSAGES, *turns, tools=tasks())
    answer = await local.post(MESSAGES, body, {n: v for n, v in headers.items() if v})
    return [{"role": "assistant", "content": answer["content"]}]


def calls(local: LocalServer) -> list[tuple[str, tuple[int, ...]]]:
    """The calls of the one program: the place of each, and the calls that it comes after."""
    [run] = local.runtime.runs.values()
    nodes = list(run.dag.nodes())
    llm = [node for node in nodes if node.kind is NodeKind.CALL]
    number = {node.id: n for n, node in enumerate(llm)}
    return [(one.scope, tuple(number[p] for p in one.parents if p in number)) for one in llm]


async def test_sub_agents_are_branches_of_their_parents_program() -> None:
    async with open_server(lambda call: "fine", flags=FLAGS) as local:
        main = await say(local, "do it")
        first = await say(local, "look left", agent="a1")
        await say(local, "look right", agent="a2")
        await say(local, "look left", first, "and?", agent="a1")
        await say(local, "a new context", agent="a1")
        await say(local, "look deeper", agent="a3", parent="a1")
        await say(local, "do it", main, "go on")
        assert calls(local) == [
            ("chat", ()),
            ("chat/agent", (0,)),
            ("chat/agent", (0,)),  # beside the other, and not after it
            ("chat/agent", (1,)),
            ("chat/agent", (3,)),
            ("chat/agent", (4,)),  # after its own parent's
            ("chat", (0,)),
        ]


async def test_the_main_agent_stays_in_its_tool_while_a_sub_agent_begins() -> None:
    said = iter([TASK, "fine", "done"])
    async with open_server(lambda call: next(said), flags=FLAGS) as local:
        await say(local, "do it")
        [run] = local.runtime.runs.values()

        def running() -> list[str]:
            return [n.name for n in run.dag.nodes() if n.kind is NodeKind.TOOL and not n.ended_at]

        assert running() == ["Task"]
        await say(local, "look left", agent="a1")
        assert running() == ["Task"]
        await say(local, "a new context")
        assert running() == []


async def test_two_sub_agents_at_once_are_one_program() -> None:
    async with open_server(kind=Held) as local:
        both = [asyncio.create_task(say(local, f"look {n}", agent=n)) for n in ("a1", "a2")]
        await local.until(lambda: len(local.engine.open) == 2)
        assert len(local.programs()) == 1
        local.engine.go.set()
        await asyncio.gather(*both)
        assert calls(local) == [("chat/agent", ()), ("chat/agent", ())]


async def test_a_malformed_name_of_a_sub_agent_is_refused() -> None:
    async with open_server() as local:
        headers = {**SESSION, "x-claude-code-agent-id": "x" * 300}
        answer = await local.client.post(MESSAGES, json=ask(MESSAGES, "hi"), headers=headers)
        assert answer.status_code == 400
        assert "x-claude-code-agent-id" in answer.text


@pytest.mark.parametrize("path", ["/v1/messages", "/v1/realtime", "/v1/nothing", "/nothing"])
async def test_a_websocket_that_is_not_served_is_426(path: str) -> None:
    async with open_server() as local:
        with pytest.raises(InvalidStatus) as refused:
            await connect(local.url.replace("http", "ws", 1) + path, proxy=None)
        response = refused.value.response
        assert response.status_code == 426
        assert "use HTTP" in (response.body or b"").decode()
        assert response.headers["upgrade"] == "HTTP/1.1"

"""Calls of tools of real MCP servers, over stdio and HTTP, in both generations of the protocol."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from agentrt.errors import (
    InterruptExpiredError,
    QuestionClosedError,
    ToolFailedError,
    ToolResultError,
    UnknownToolError,
)
from agentrt.graph import Progress
from agentrt.interrupts.schema import mistake_in
from tests.integrations.mcp.servers import LARGEST, Client, Watching, until

pytestmark = pytest.mark.asyncio(loop_scope="module")


async def test_a_tool_is_told_as_its_server_tells_it(client: Client) -> None:
    add = client.tools["add"]
    assert add.spec is not None
    assert add.spec.description == "Add two numbers."
    assert set(add.spec.parameters["properties"]) == {"a", "b"}
    assert add.result_schema is not None
    assert not add.options.idempotent
    assert client.tools["die_once"].options.idempotent
    assert client.tools["draw_dot"].remote == "draw.dot"


async def test_a_result_is_its_data_or_its_text_or_parts_of_a_message(client: Client) -> None:
    assert await client.call("add", a=1, b=2) == {"total": 3}
    assert await client.call("say", words=["a", "b"]) == "a\nb"
    dot = base64.b64encode(b"dot").decode()
    assert await client.call("draw_dot") == [
        {"type": "text", "text": "a dot"},
        {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{dot}"}},
    ]


async def test_progress_is_handed_on(client: Client) -> None:
    watching = Watching()
    await client.call("climb", watching, steps=3)
    assert watching.heard == [Progress(step, 3, f"step {step}") for step in (1, 2, 3)]


async def test_errors_say_what_went_wrong(client: Client) -> None:
    with pytest.raises(ToolFailedError, match=r"tool fail failed.*the drawer is stuck"):
        await client.call("fail")
    with pytest.raises(ToolFailedError, match=r"(?s)tool add failed.*valid integer"):
        await client.call("add", a="one", b=2)
    with pytest.raises(ToolResultError, match=r"(?s)tool lie.*many"):
        await client.call("lie")


@pytest.mark.parametrize("size", [LARGEST + 1, 5 * LARGEST])
async def test_a_result_may_be_too_large(client: Client, size: int) -> None:
    """The larger one is more than a whole message over HTTP may be."""
    assert len((await client.call("large", size=LARGEST))["result"]) == LARGEST
    with pytest.raises(ToolResultError, match=r"tool large: .*(too large|at most)"):
        await client.call("large", size=size)
    assert await client.call("add", a=1, b=2) == {"total": 3}


@pytest.mark.parametrize("tool", ["tabulate", "link"])
async def test_structured_content_and_descriptions_of_links_count_as_well(
    client: Client, tool: str
) -> None:
    await client.call(tool, size=LARGEST // 2)
    with pytest.raises(ToolResultError, match=rf"tool {tool}: the result has 1000\d\d characters"):
        await client.call(tool, size=LARGEST)


async def test_a_tool_can_be_gone(client: Client) -> None:
    gone = client.tools["add"].renamed("subtract")
    gone.remote = "subtract"
    client.tools["subtract"] = gone
    with pytest.raises(UnknownToolError, match=r"'subtract'.*add"):
        await client.call("subtract", a=1, b=2)


async def test_what_a_server_asks_is_asked_of_a_human(client: Client) -> None:
    asked = []

    def answer(question: str, schema: object) -> dict[str, int]:
        asked.append((question, schema))
        return {"centimetres": 5}

    assert await client.call("cut", Watching(answer), thing="cake") == {"result": "cake: 5 cm"}
    [(question, schema)] = asked
    assert question == "How large is the cake?"
    assert isinstance(schema, dict)
    assert schema["properties"]["centimetres"]["type"] == "integer"


@pytest.mark.parametrize(
    ("answer", "action"),
    [
        ({"action": "decline"}, "decline"),
        ({"action": "cancel", "centimetres": 5}, "cancel"),
        ({"action": "accept", "centimetres": 5}, "5 cm"),
        (QuestionClosedError("withdrawn"), "decline"),
        (InterruptExpiredError("late"), "cancel"),
    ],
)
async def test_a_human_can_say_no_or_nothing(client: Client, answer: Any, action: str) -> None:
    def ask(question: str, schema: Mapping[str, Any] | None) -> Any:
        if isinstance(answer, Exception):
            raise answer
        assert schema is not None
        assert mistake_in(answer, schema) is None
        assert mistake_in({}, schema) is not None
        return answer

    result = await client.call("cut", Watching(ask), thing="cake")
    assert result == {"result": f"cake: {action}"}


async def test_a_cancelled_call_ends_on_the_server_too(client: Client, tmp_path: Path) -> None:
    call = asyncio.create_task(client.call("wait", marks=str(tmp_path)))
    await until((tmp_path / "began").exists)
    call.cancel()
    await asyncio.wait([call])
    assert call.cancelled()
    await until((tmp_path / "cancelled").exists)
    assert await client.call("add", a=1, b=2) == {"total": 3}


async def test_many_calls_run_at_once(client: Client) -> None:
    calls = [client.call("add", a=number, b=1) for number in range(100)]
    assert await asyncio.gather(*calls) == [{"total": number + 1} for number in range(100)]

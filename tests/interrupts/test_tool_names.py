"""Several transports offer tools: their names, for programs and models."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest
from pydantic import BaseModel

from agentrt.errors import ToolArgumentsError, ToolUnavailableError, UnknownToolError
from agentrt.interrupts import Tool, ToolContext, ToolRequest, ToolTransport
from agentrt.interrupts.toolbox import Toolbox
from agentrt.request import ToolSpec


class Offering(ToolTransport):
    """Offers tools of these names; None cannot be reached."""

    def __init__(self, name: str, names: Sequence[str] | None) -> None:
        self.name = name
        self._names = names

    async def tools(self) -> Sequence[Tool]:
        if self._names is None:
            raise ToolUnavailableError(f"{self.name} is away")
        return [Tool(one, spec=ToolSpec(one, "", {}), transport=self) for one in self._names]

    async def call(self, request: ToolRequest, context: ToolContext) -> Any:
        raise NotImplementedError


TOOLBOX = Toolbox(
    [Offering("mcp:a b", ["search", "add"]), Offering("mqtt", ["search"]), Offering("gone", None)]
)


async def test_a_name_that_two_transports_have_gets_the_transports_before_it() -> None:
    tools = await TOOLBOX.tools()
    assert [tool.name for tool in tools] == ["a_b__search", "add", "mqtt__search"]
    assert [tool.spec.name for tool in tools if tool.spec] == [tool.name for tool in tools]
    assert [tool.name for tool in await TOOLBOX.tools("mcp:a b")] == ["search", "add"]


async def test_a_tool_is_found_by_any_name_that_is_its_alone() -> None:
    for name in ("add", "a_b__search", "mcp:a b/search", "mqtt/search"):
        assert (await TOOLBOX.find(name)).remote == name.rpartition("_")[2].rpartition("/")[2]
    with pytest.raises(UnknownToolError, match="use mcp:a b/search or mqtt/search"):
        await TOOLBOX.find("search")


async def test_what_is_asked_for_by_name_must_be_there() -> None:
    with pytest.raises(ToolUnavailableError, match="gone is away"):
        await TOOLBOX.tools("mqtt", "gone")
    with pytest.raises(UnknownToolError, match="unknown transport of tools 'mcp:c'"):
        await TOOLBOX.tools("mcp:c")
    with pytest.raises(ToolUnavailableError, match=r"unknown tool 'drill'; .*; gone is away"):
        await TOOLBOX.find("drill")


async def test_where_no_tools_come_from_the_error_says_what_to_give() -> None:
    with pytest.raises(
        UnknownToolError, match=r"'search'; available: none; name tools with --mcp FILE"
    ):
        await Toolbox().find("search")


def test_a_tool_elsewhere_takes_what_json_can_carry() -> None:
    class Hole(BaseModel):
        depth: int

    holes = {"type": "array", "items": {"type": "object", "required": ["depth"]}}
    parameters = {"type": "object", "properties": {"holes": holes}, "required": ["holes"]}
    tool = Tool("drill", spec=ToolSpec("drill", "", parameters))
    assert tool.checked({"holes": (Hole(depth=3), {"depth": 4})}) == {
        "holes": [{"depth": 3}, {"depth": 4}]
    }
    for wrong in (object(), b"\xff"):
        with pytest.raises(
            ToolArgumentsError, match="drill: wrong arguments: they cannot be written as JSON"
        ):
            tool.checked({"holes": wrong})


class Announcing(Offering):
    """Its tool is announced just after the so-manieth look at what it offers."""

    def __init__(self, look: int) -> None:
        super().__init__("late", [])
        self._looks = look
        self._announced = asyncio.Event()

    async def tools(self) -> Sequence[Tool]:
        found = await super().tools()
        self._looks -= 1
        if not self._looks:
            self._names = ["drill"]
            announced, self._announced = self._announced, asyncio.Event()
            announced.set()
        return found

    async def more(self, tenant: str) -> bool:
        return await self._announced.wait()


@pytest.mark.parametrize("look", [1, 2])
async def test_a_tool_that_is_announced_during_a_look_is_found(look: int) -> None:
    async with asyncio.timeout(60):
        assert (await Toolbox([Announcing(look)]).find("drill")).remote == "drill"

"""Tools of a real MCP server in programs, as a model calls them."""

from __future__ import annotations

from typing import Any

import pytest

from agentrt import Context, Runtime, ToolCall, program
from agentrt.errors import AmbiguousOptionError
from agentrt.integrations.mcp.tools import McpTools
from tests.doubles.choices import Output
from tests.doubles.scripted import ScriptedExecutor
from tests.integrations.mcp.servers import stdio

CALLS = (
    ToolCall("hold", {"timeout": 3, "after": "noon"}, "a"),
    ToolCall("draw_dot", {}, "b"),
)


@program
async def agent(ctx: Context) -> Any:
    tools = {tool.name: tool for tool in await ctx.mcp("stdio")}
    with pytest.raises(AmbiguousOptionError, match="tool hold also has a parameter 'timeout'"):
        await ctx.tool(tools["hold"], timeout=3)
    held = await ctx.call_tool("hold", CALLS[0].arguments, timeout=60)
    step = await ctx.step("Draw.", tools=tools.values())
    return held, [message["content"] for message in step.messages[1:]]


@pytest.mark.parametrize("sees", [True, False])
async def test_a_model_names_any_arguments_and_sees_images_if_it_can(sees: bool) -> None:
    transport = McpTools(stdio(), lambda line: None)
    executor = ScriptedExecutor(lambda call: Output(tool_calls=CALLS), images=sees)
    async with Runtime(executor, tools=[transport]) as runtime:
        held, contents = await runtime.start(agent).wait()
    assert held == {"result": "3 s after noon"}
    assert contents[0] == '{"result": "3 s after noon"}'
    if sees:
        assert contents[1] == "a dot\n[image (image/png, 3 bytes) in the next message]"
        assert contents[2][1]["image_url"]["url"].startswith("data:image/png;base64,")
    else:
        assert contents[1:] == ["a dot\n[image (image/png, 3 bytes), which this model cannot see]"]

"""An agent with tools for the tests of pages, and an engine that says what it is asked to."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

from langchain_core.messages import AIMessage
from langchain_core.tools import tool
from langgraph.graph import END, START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode
from langgraph.types import interrupt

from agentrt import Context, program
from agentrt.errors import UsageError
from agentrt.executors.base import Chunk
from agentrt.integrations.langchain import ChatAgentRT
from agentrt.request import Call, ToolCall
from tests.doubles.scripted import ScriptedExecutor
from tests.serving.langgraph.graphs import GATES

EVIL = "<img src=x onerror=\"document.title='broken into'\"><b>bold</b>"
MARKDOWN = """\
## Plan

1. **Pack** a `bag`
2. Go to [the station](https://example.org/a_b)

- <b>no</b>
"""
_PAUSES = "slowly"
_HEAD = 4
"""How many tokens come before an answer pauses."""


@tool
def weather(city: str) -> str:
    """Tell the weather in a city."""
    return f"sunny in {city}"


@tool
def send_mail(to: str) -> str:
    """Send a mail, if the user agrees."""
    answer = interrupt(f"Send a mail to {to}?")
    return f"sent to {to}" if answer == "yes" else f"not sent: {answer}"


TOOLS = [weather, send_mail]


def agent_graph() -> StateGraph[Any]:
    """A model that may call tools, until it calls none."""
    model = ChatAgentRT(max_tokens=64).bind_tools(TOOLS)

    async def think(state: MessagesState) -> dict[str, Any]:
        return {"messages": [await model.ainvoke(state["messages"])]}

    def route(state: MessagesState) -> str:
        last = state["messages"][-1]
        return "tools" if isinstance(last, AIMessage) and last.tool_calls else END

    builder = StateGraph(MessagesState)
    builder.add_node("think", think).add_node("tools", ToolNode(TOOLS))
    builder.add_edge(START, "think").add_edge("tools", "think")
    return builder.add_conditional_edges("think", route, ["tools", END])


@program
async def held(ctx: Context, gate: str) -> str:
    """A native program that asks the model, and waits at a gate."""
    reply = await ctx.llm("hi")
    await GATES.passing(gate)
    return reply.text


@program
async def held_twice(ctx: Context, gate: str) -> str:
    """A native program whose answer pauses at a gate, and that waits at another gate after it."""
    reply = await ctx.llm(f"slowly {gate} please")
    await GATES.passing(f"{gate} answered")
    return reply.text


@program
async def order(ctx: Context, who: str) -> str:
    """A native program that asks twice, by choices, and fails for bob."""
    drink = await ctx.human(f"what does {who} drink?", choices=["tea", "coffee"])
    if await ctx.human(f"{drink} with milk?", schema=bool):
        drink = f"{drink} with milk"
    if who == "bob":
        raise UsageError("bob drinks nothing")
    return f"{who}: {drink}"


@program
async def mute(ctx: Context, text: str) -> str | None:
    """A native program whose result is empty: a text that has no letters, or nothing."""
    return "" if text == "text" else None


class ObligingExecutor(ScriptedExecutor):
    """Calls the tool that a message names; an answer to "slowly NAME" pauses at the gate NAME."""

    def __init__(self) -> None:
        super().__init__(_say)

    async def generate(self, call: Call, *, stream: bool) -> AsyncGenerator[Chunk, None]:
        last = _last(call)["content"]
        seen = 0
        async with aclosing(super().generate(call, stream=stream)) as chunks:
            async for chunk in chunks:
                seen += 1
                if seen == _HEAD and last.startswith(_PAUSES):
                    await GATES.passing(last.split()[1])
                yield chunk


def _last(call: Call) -> Any:
    return (call.spec.messages or [{}])[-1]


def _say(call: Call) -> str | ToolCall:
    last = _last(call)
    text = last["content"]
    if last["role"] == "tool":
        return f"Done: {text}."
    if text == "markdown":
        return MARKDOWN
    if text == "fail":
        raise ValueError("the engine has no such luck")
    if text.startswith("mail "):
        return ToolCall("send_mail", {"to": text.split()[1]})
    if text.startswith("weather in "):
        return ToolCall("weather", {"city": text.split()[2]})
    if text == "nothing, please":
        return ""
    return EVIL if text == "evil" else f"You said {text}, and I have heard you."

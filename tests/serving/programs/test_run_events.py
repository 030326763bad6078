"""The stream of a run's events: what becomes of its tools."""

from __future__ import annotations

import asyncio
import json

from agentrt import Context, Progress, ToolContext, program, tool
from agentrt.serving.server import ServedProgram
from tests.serving.local import open_server


async def test_a_runs_events_tell_what_becomes_of_its_tools() -> None:
    """It fails once, and says how far it is. Each event has the node as it was then: at the end
    the tool does nothing that would let a reader see it in between.
    """
    done = asyncio.Event()

    @tool(concurrency=1, retries=1)
    async def drill(context: ToolContext) -> None:
        if done.is_set():
            context.progress(Progress(1, 3, "drilling"))
            return
        done.set()
        raise ValueError("blunt")

    @program
    async def drills(ctx: Context) -> None:
        await ctx.tool(drill)

    served = {"drills": ServedProgram(drills, "here")}
    async with open_server(served=served) as local:
        url = "/v1/programs/drills/runs"
        answer = await local.client.post(url, json={"stream": True})
    bodies = [line[6:] for line in answer.text.splitlines() if line.startswith("data: ")]
    nodes = [body for body in map(json.loads, bodies) if body.get("kind") == "tool"]
    seen = [(node["state"], node["attempt"], node["wait"]) for node in nodes]
    assert seen == [
        ("running", 1, ""),
        ("waiting", 1, "after attempt 1 failed: blunt"),
        ("running", 2, ""),
        ("running", 2, ""),
        ("done", 2, ""),
    ]
    said = {"done": 1, "total": 3, "message": "drilling"}
    assert [node["progress"] for node in nodes] == [None, None, None, said, said]


async def test_a_client_that_splits_at_unicode_line_separators_gets_whole_events() -> None:
    """httpx ends a line at these characters, as Python's ``splitlines`` does."""

    @program
    async def says(ctx: Context) -> str:
        return "a\u2028b\u2029c\x85d"

    served, lines = {"says": ServedProgram(says, "here")}, list[str]()
    async with open_server(served=served) as local:
        url = "/v1/programs/says/runs"
        async with local.client.stream("POST", url, json={"stream": True}) as answer:
            lines += [line async for line in answer.aiter_lines()]
    assert {line.partition(": ")[0] for line in lines} == {"event", "data", ""}
    last = [line.removeprefix("data: ") for line in lines if line.startswith("data: ")][-1]
    assert json.loads(last)["result"] == "a\u2028b\u2029c\x85d"

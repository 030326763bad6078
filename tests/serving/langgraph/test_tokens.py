"""The tokens of native programs, for clients that ask for messages."""

from __future__ import annotations

from typing import Any

from langgraph_sdk.client import LangGraphClient


async def test_a_program_streams_its_tokens(client: LangGraphClient) -> None:
    """As the chunks of one message, whose text is the reply's; its result is as ever."""
    runs: Any = client.runs
    stream = runs.stream(None, "poem", input="sea", stream_mode=["messages-tuple", "values"])
    told = [(part.event, part.data) async for part in stream]
    chunks = [data[0] for name, data in told if name == "messages"]
    assert len(chunks) > 1
    assert {one["type"] for one in chunks} == {"AIMessageChunk"}
    assert len({one["id"] for one in chunks}) == 1
    assert {data[1]["langgraph_node"] for name, data in told if name == "messages"} == {"poem"}
    name, result = told[-1]
    assert (name, result["topic"]) == ("values", "sea")
    assert result["poem"] == "".join(one["content"] for one in chunks)

"""A tool call that ends at the client's limit, at each of its tokens, in all three APIs."""

from __future__ import annotations

import pytest

from tests.serving.frontend.reading import APIS
from tests.serving.local import called, open_server

pytestmark = [pytest.mark.engine, pytest.mark.asyncio]

SAYS = called(("weather", {"city": "Rome", "days": 3}))


@pytest.mark.parametrize(
    ("api", "cut", "ended"),
    [
        ("chat", "length", "tool_calls"),
        ("responses", "incomplete", "completed"),
        ("messages", "max_tokens", "tool_use"),
    ],
)
async def test_a_call_is_cut_off_alike_whole_and_streamed(api: str, cut: str, ended: str) -> None:
    found = set()
    whole, streamed = APIS[api]
    async with open_server(lambda call: SAYS) as server:
        for limit in range(1, 40):
            read = await whole(server, limit)
            assert await streamed(server, limit) == read
            assert (read.reasoning, read.text) == ("", "")
            found.add(str(read.calls))
            if read.end == ended:
                break
            assert read.end == cut
    assert [name for name, _ in read.calls] == ["weather"]
    assert len(found) > 3, "none, one without arguments, with some and with all"


@pytest.mark.parametrize(
    ("written", "city"),
    [
        pytest.param(r"San \ud83dJose", "San ?Jose", id="half of a surrogate pair"),
        pytest.param("San\nJose", "San\nJose", id="a line break that is not escaped"),
    ],
)
async def test_messages_have_the_arguments_of_odd_json(written: str, city: str) -> None:
    says = f'{{"name": "weather", "arguments": {{"city": "{written}", "days": 3}}}}'
    async with open_server(lambda call: says) as server:
        read = await APIS["messages"][0](server, 64)
    assert read.calls == [("weather", {"city": city, "days": 3})]

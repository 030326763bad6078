"""gpt-oss's harmony format through vLLM's front end and all three APIs: streamed, and cut off at
every token, an answer is what it is whole.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from tests.doubles.joining_engine import Joining
from tests.serving.frontend.harmony import encode, gpt_oss_in
from tests.serving.frontend.reading import APIS, Read
from tests.serving.local import open_server

pytestmark = [pytest.mark.engine, pytest.mark.asyncio]

THOUGHT = "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant"
FINAL = "<|channel|>final<|message|>It is 3 < 4.<|return|>"
PREAMBLE = "<|channel|>commentary<|message|>Look:<|end|><|start|>assistant"
GIVEN = '{"city": "Malmö", "days": 3}'
WEATHER = "<|channel|>commentary to=functions.weather <|constrain|>json<|message|>"
TIME = "<|end|><|start|>assistant to=functions.time<|channel|>commentary json<|message|>{}"
SAID = {
    "answer": THOUGHT + FINAL,
    "one": THOUGHT + PREAMBLE + WEATHER + GIVEN + "<|call|>",
    "several": THOUGHT + WEATHER + GIVEN + TIME + "<|call|>",
    "broken": THOUGHT + WEATHER + GIVEN.replace('"Malmö"', "Malmö") + "<|call|>",
}
MEANT: dict[str, tuple[str, list[tuple[str, Any]]]] = {
    "answer": ("It is 3 < 4.", []),
    "one": ("Look:", [("weather", json.loads(GIVEN))]),
    "several": ("", [("weather", json.loads(GIVEN)), ("time", {})]),
}
ENDS = {
    "chat": ("length", "tool_calls", "stop"),
    "responses": ("incomplete", "completed", "completed"),
    "messages": ("max_tokens", "tool_use", "end_turn"),
}
"""How an answer ends that was cut off, that calls a tool, and that is complete."""


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with gpt_oss_in(tmp_path_factory.getbasetemp() / "gpt-oss") as model:
        yield model


def plain(read: Read, api: str, *, streamed: bool) -> Read:
    """``read`` with the arguments as values, and without what is known to differ.

    A whole Responses answer has a call as soon as its header is over; its stream has it with
    the first of its arguments.
    """
    calls = [(name, _value(given)) for name, given in read.calls]
    if api == "responses" and not streamed:
        calls = [(name, given) for name, given in calls if given != ""]
    return read._replace(calls=calls)


def _value(given: Any) -> Any:
    try:
        return json.loads(given)
    except (TypeError, ValueError):
        return given


def lengths(kind: str) -> list[int]:
    """At which this output has not begun as an earlier one, and so reads as that does. Arguments
    that are cut off are broken in each."""
    ids = encode(SAID[kind])
    if kind == "broken":
        return [len(ids)]
    earlier = [encode(SAID[other]) for other in list(SAID)[: list(SAID).index(kind)]]
    every = range(1, len(ids) + 1)
    return [n for n in every if not any(other[:n] == ids[:n] for other in earlier)]


@pytest.mark.parametrize("kind", SAID)
async def test_an_output_is_parsed_alike_wherever_it_is_cut_off(model: str, kind: str) -> None:
    ids, cuts = encode(SAID[kind]), lengths(kind)
    async with open_server(lambda call: ids, model=model) as server:
        for api, (whole, streamed) in APIS.items():
            cut, *ended = ENDS[api]
            for limit in cuts:
                read = plain(await whole(server, limit), api, streamed=False)
                assert plain(await streamed(server, limit), api, streamed=True) == read, api
                assert "<|" not in read.text + read.reasoning, "no markup in the answer"
                assert read.end == (cut if limit < len(ids) else ended[kind == "answer"]), api
            assert read.reasoning == "Hm.", api
            if kind in MEANT:
                assert (read.text, read.calls) == MEANT[kind], api
            else:
                assert [name for name, _ in read.calls] == ["weather"], api


@pytest.mark.parametrize("size", [3, 1000])
async def test_an_output_is_parsed_alike_if_tokens_arrive_together(
    model: str, size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Joining, "size", size)
    ids: list[int] = []
    async with open_server(lambda call: ids, kind=Joining, model=model) as server:
        for kind, said in SAID.items():
            ids = encode(said)
            for api, (whole, streamed) in APIS.items():
                for limit in (len(ids) // 2, len(ids) - 2, len(ids)):
                    read = plain(await whole(server, limit), api, streamed=False)
                    again = plain(await streamed(server, limit), api, streamed=True)
                    assert again == read, (api, kind, limit)


async def test_text_outside_the_format_is_kept(model: str) -> None:
    ids = encode("It is 3.<|return|>")
    async with open_server(lambda call: ids, model=model) as server:
        for whole, streamed in APIS.values():
            read = await whole(server, 50)
            assert read.text.startswith("It is 3.")
            assert await streamed(server, 50) == read

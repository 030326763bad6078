"""Every API, whole and streamed, with one choice or three, with tools and without: the nodes that
two conversations make, each in its own program; and what is left of a client that went away.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence
from itertools import product
from typing import Any

import pytest

from tests.clients.model import HELLO, LONG, WEATHER
from tests.clients.server import PatientEngine, Shape, watch
from tests.clients.wire import Body, Chat, Messages, Responses, Turn, Wire, events_of, is_clean
from tests.serving.local import MODEL, LocalServer

pytestmark = [pytest.mark.engine, pytest.mark.asyncio(loop_scope="session")]

CASES = [
    *product([Chat()], [False, True], [1, 3], [0, 1, 2]),
    *product([Responses(), Messages()], [False, True], [1], [0, 1, 2]),
]
CITIES = ["nowhere", "Paris", "Paris and Rome"]


def ident(value: Any) -> str | None:
    return None if isinstance(value, int) else type(value).__name__.lower()


async def turn(local: LocalServer, wire: Wire, body: Body) -> Turn:
    answer = await local.client.post(wire.path, json=body)
    assert answer.status_code == 200, answer.text
    if not body.get("stream"):
        assert is_clean(answer.json())
        return wire.read(answer.json())
    events = events_of(answer.text)
    assert is_clean(events)
    return wire.read(wire.joined(events))


@pytest.mark.parametrize(("wire", "stream", "n", "tools"), CASES, ids=ident)
async def test_a_conversation_is_one_program_with_its_nodes(
    local: LocalServer, wire: Wire, stream: bool, n: int, tools: int
) -> None:
    seen = watch(local)
    words = [f"{type(wire).__name__}-{stream}-{n}-{tools}-{place}" for place in "ab"]
    about = f"The weather in {CITIES[tools]}" if tools else "Say hello"
    talks: list[list[Any]] = [[{"role": "user", "content": f"{about}, {word}."}] for word in words]
    choices = {"n": n} if n > 1 else {}
    for talk in talks:
        first = await turn(
            local, wire, {**wire.ask(talk, tools=tools > 0), **choices, "stream": stream}
        )
        assert len(first.tool_ids) == tools
        assert tools or list(first.texts) == [HELLO] * n
        more = wire.results(first.tool_ids) if tools else [{"role": "user", "content": "More."}]
        talk.extend([*first.back, *more])
    for talk in talks:
        second = await turn(local, wire, {**wire.ask(talk, tools=tools > 0), "stream": stream})
        assert list(second.texts) == [WEATHER if tools else HELLO]
    assert await seen.shapes() == [expected(n, tools)] * 2


def expected(n: int, tools: int) -> Shape:
    """``n`` calls beside each other, the tools of the first, and what continues from it."""
    gaps = tuple(range(n, n + tools))
    shape: Shape = [("call", ())] * n + [("get_weather", (0,))] * tools
    return [*shape, ("call", gaps or (0,))]


@pytest.mark.parametrize(("stream", "n", "prompts"), list(product([False, True], [1, 3], [1, 2])))
async def test_each_completion_is_a_call_of_a_program_of_its_own(
    local: LocalServer, stream: bool, n: int, prompts: int
) -> None:
    seen = watch(local)
    body = {"model": MODEL, "prompt": ["Say hello."] * prompts, "n": n, "stream": stream}
    answer = await local.client.post("/v1/completions", json={**body, "max_tokens": 20})
    events = events_of(answer.text) if stream else [answer.json()]
    assert is_clean(events)
    texts = dict.fromkeys(range(n * prompts), "")
    for choice in (choice for event in events for choice in event["choices"]):
        texts[choice["index"]] += choice["text"]
    assert list(texts.values()) == [HELLO] * n * prompts
    assert await seen.shapes() == [[("call", ())] * n * prompts]


async def test_a_response_goes_on_from_the_one_that_it_names(local: LocalServer) -> None:
    """Two answers to one, by its id alone: a fork."""
    seen, first = watch(local), {"model": MODEL, "input": "Say hello, fork."}
    answer = (await local.client.post("/v1/responses", json=first)).json()
    for words in ("More.", "Less."):
        body = {"model": MODEL, "input": words, "previous_response_id": answer["id"]}
        assert (await local.client.post("/v1/responses", json=body)).status_code == 200
    assert await seen.shapes() == [[("call", ()), ("call", (0,)), ("call", (0,))]]


async def test_the_changing_line_of_claude_code_breaks_neither_program_nor_prefix(
    local: LocalServer,
) -> None:
    """It names no session here, so that the conversation itself is recognised."""
    seen, wire, prompts = watch(local), Messages(), []
    talk: list[Any] = [{"role": "user", "content": "Say hello, changing line."}]
    for version in ("2.1.330.980", "2.1.330.a31"):
        line = f"x-anthropic-billing-header: cc_version={version}; cc_entrypoint=cli;"
        system = [{"type": "text", "text": text} for text in (line, "Be brief.")]
        answer = await turn(local, wire, {**wire.ask(talk, tools=False), "system": system})
        prompts.append(local.engine.calls[-1].spec.prompt_token_ids)
        talk += [*answer.back, {"role": "user", "content": "More."}]
    first, second = prompts
    assert second[: len(first)] == first
    assert await seen.shapes() == [[("call", ()), ("call", (0,))]]


CALLS: Sequence[tuple[str, Body]] = [
    ("/v1/completions", {"prompt": "Say something long.", "max_tokens": 100}),
    *(
        (wire.path, wire.ask([{"role": "user", "content": "Say something long."}], tools=False))
        for wire in (Chat(), Responses(), Messages())
    ),
]


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize(("path", "body"), CALLS, ids=[path for path, _ in CALLS])
async def test_a_client_that_leaves_has_its_call_cancelled(
    local: LocalServer, path: str, body: Body, stream: bool
) -> None:
    """Its engine would wait for ever."""
    engine: PatientEngine = local.engine
    seen, before = watch(local), len(engine.left)
    asked = {"model": MODEL, **body, "stream": stream}

    async def ask() -> None:
        async with local.client.stream("POST", path, json=asked) as answer:
            async for line in answer.aiter_lines():
                if LONG[:4] in line:
                    break

    asking = asyncio.create_task(ask())
    await local.until(lambda: engine.held or asking.done())
    if not stream:
        asking.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await asking
    await local.until(lambda: len(engine.left) == before + 1)
    assert not engine.held
    assert await seen.shapes() == [[("call", ())]]

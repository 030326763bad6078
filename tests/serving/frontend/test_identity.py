"""Every API, whole and streamed, makes the nodes that it should in the program that it should."""

from __future__ import annotations

import gc
import json
import weakref
from typing import Any

import pytest

from agentrt.runtime.run import Run
from agentrt.serving.frontend import exchange
from agentrt.serving.frontend.callers import RequestCaller
from agentrt.serving.frontend.conversations import CHAT, COMPLETIONS, MESSAGES, RESPONSES
from tests.serving.local import MODEL, SAYS, Held, LocalServer, open_server

pytestmark = pytest.mark.engine

APIS = [CHAT, MESSAGES, RESPONSES]
OURS = (b"agentrt", b"service_s", b'kv_transfer_params": {', b'kv_transfer_params":{')


def ask(path: str, *turns: Any, **more: Any) -> dict[str, Any]:
    """A request of texts, and of what an answer before it said."""
    if path == COMPLETIONS:
        return {"model": MODEL, "prompt": turns[0], **more}
    messages: list[Any] = []
    for turn in turns:
        messages += [{"role": "user", "content": turn}] if isinstance(turn, str) else turn
    if path == RESPONSES:
        return {"model": MODEL, "input": messages, **more}
    limit = {"max_tokens": 64} if path == MESSAGES else {}
    return {"model": MODEL, "messages": messages, **limit, **more}


async def answer(local: LocalServer, path: str, body: Any, *, stream: bool, **headers: str) -> Any:
    """The part of the answer that a client sends back: messages, or items."""
    sent = await local.client.post(path, json={**body, "stream": stream}, headers=headers)
    assert sent.status_code == 200, sent.text
    assert not any(word in sent.content for word in OURS)
    assert "x-agentrt-program" in sent.headers
    return sent_back(path, sent, stream)


def sent_back(path: str, sent: Any, stream: bool) -> list[Any]:
    if not stream:
        whole = sent.json()
        if path == RESPONSES:
            return list(whole["output"])
        if path == MESSAGES:
            return [{"role": "assistant", "content": whole["content"]}]
        return [whole["choices"][0]["message"]]
    events = [json.loads(line[6:]) for line in sent.text.splitlines() if line.startswith("data: {")]
    if path == RESPONSES:
        return list(events[-1]["response"]["output"])
    if path == MESSAGES:
        deltas = [one["delta"] for one in events if one["type"] == "content_block_delta"]
        return [{"role": "assistant", "content": "".join(d.get("text", "") for d in deltas)}]
    choices = [one["choices"][0] for one in events if one["choices"]]
    text = "".join(c["delta"].get("content") or "" for c in choices)
    return [{"role": "assistant", "content": text}]


def dags(local: LocalServer) -> list[list[tuple[int, ...]]]:
    return [[n.parents for n in run.dag.nodes()] for run in local.runtime.runs.values()]


async def test_a_long_chat_is_followed_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """Others continue between them; where they are cut changes nothing."""
    pauses = 0

    async def pause() -> None:
        nonlocal pauses
        pauses += 1

    async with open_server() as local:
        reply = await answer(local, CHAT, ask(CHAT, "a", "b", "c"), stream=False)
        monkeypatch.setattr(exchange, "pause", pause)
        monkeypatch.setattr(exchange, "_PIECE", 2)
        await answer(local, CHAT, ask(CHAT, "a", "b", "c", reply, "d"), stream=False)
        assert dags(local) == [[(), (0,)]]
        assert pauses == 2


@pytest.mark.parametrize("path", APIS)
async def test_a_header_overrides_the_conversation(path: str) -> None:
    async with open_server() as local:
        for text in ("one", "two"):
            said = {"x-claude-code-session-id": "s"}
            await answer(local, path, ask(path, text), stream=True, **said)
        assert dags(local) == [[(), (0,)]]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("path", "more", "calls"),
    [(CHAT, {"n": 32}, 32), (COMPLETIONS, {"n": 2}, 2), (COMPLETIONS, {"prompt": ["a", "b"]}, 2)],
)
async def test_choices_and_prompts_are_siblings(
    path: str, more: Any, calls: int, stream: bool
) -> None:
    async with open_server() as local:
        body = {**ask(path, "hello"), **more, "stream": stream, "seed": 5}
        sent = await local.client.post(path, json=body)
        assert sent.status_code == 200
        assert dags(local) == [[()] * calls]
        seeds = sorted({call.spec.seed for call in local.engine.calls})
        assert seeds in ([5], list(range(5, 5 + calls)))
        assert local.server.tenants.calls("default") == 0


async def test_a_background_response_belongs_to_its_program_until_it_ends() -> None:
    async with open_server(kind=Held) as local:
        queued = await local.post(RESPONSES, ask(RESPONSES, "hello", background=True))
        await local.engine.began.wait()
        [run] = local.runtime.runs.values()
        assert (len(local.server.under_way), local.server.tenants.calls("default")) == (1, 1)
        local.engine.go.set()
        await local.until(lambda: not local.server.under_way)
        done = (await local.client.get(f"{RESPONSES}/{queued['id']}")).json()
        assert (done["status"], done["output"][0]["content"][0]["text"]) == ("completed", SAYS)
        assert local.server.tenants.calls("default") == 0
        await local.post(RESPONSES, ask(RESPONSES, "and?", previous_response_id=done["id"]))
        assert [node.parents for node in run.dag.nodes()] == [(), (0,)]


def caller_of(run: Run) -> weakref.ref[RequestCaller]:
    """The caller of the only open request of a run."""
    callers = [each for each in gc.get_objects() if type(each) is RequestCaller]
    [caller] = [weakref.ref(each) for each in callers if each._entry.program.run is run]
    return caller


async def test_a_deadline_is_forgotten_when_a_background_response_has_ended() -> None:
    async with open_server(kind=Held) as local:
        body, hour = ask(RESPONSES, "hello", background=True), {"x-agentrt-deadline": "3600"}
        # The timer of a connection that is kept open holds the caller for half a minute.
        close = {"connection": "close"}
        await local.client.post(RESPONSES, json=body, headers=hour | close)
        await local.engine.began.wait()
        [run] = local.runtime.runs.values()
        caller = caller_of(run)
        local.engine.go.set()
        await local.until(lambda: not local.server.under_way)
        await local.until(lambda: gc.collect() >= 0 and caller() is None)


async def test_requests_without_calls_make_no_programs() -> None:
    async with open_server() as local:
        hello = {"model": MODEL, "messages": [{"role": "user", "content": "hi"}]}
        counted = await local.post(f"{MESSAGES}/count_tokens", hello)
        assert counted["input_tokens"] > 2
        assert (await local.post("/tokenize", {"model": MODEL, "prompt": "hi"}))["count"] >= 1
        refused = await local.client.post(CHAT, json={**hello, "temperature": "hot"})
        assert refused.status_code == 400
        assert dags(local) == []

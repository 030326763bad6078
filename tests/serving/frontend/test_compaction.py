"""A history is compacted: on the way, as Codex asks for it, and at ``/v1/responses/compact``."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.serving.frontend.test_response_items import (  # noqa: F401
    LEFT_OUT,
    PATH,
    Said,
    either,
    gpt_oss,
    harmony,
    harmony_said,
    local,
    prompt_of,
    said,
)
from tests.serving.frontend.test_response_socket import events as messages
from tests.serving.frontend.test_response_socket import socket_of
from tests.serving.frontend.test_response_tools import TOOLS, says, streamed  # noqa: F401
from tests.serving.local import MODEL, LocalServer

pytestmark = [pytest.mark.engine, pytest.mark.asyncio(loop_scope="module")]

ASK = {"type": "message", "role": "user", "content": "Make the file made.txt."}
CALL = {"type": "function_call", "call_id": "c", "name": "plain", "arguments": "{}"}
OUTPUT = {"type": "function_call_output", "call_id": "c", "output": "It is there."}
TRIGGER = {"type": "compaction_trigger"}
HISTORY = [ASK, CALL, OUTPUT]
MADE = "The file made.txt was made."
TEXT_FORMAT = {"format": {"type": "json_schema", "name": "n", "schema": {"type": "object"}}}


@pytest.fixture
def summary(either: LocalServer, says: Said) -> str:  # noqa: F811
    """The model's summary of the history."""
    form = type(says).text
    says.text = form.replace("Yes.", MADE)
    return MADE


def body_of(*items: Any, **more: Any) -> dict[str, Any]:
    return {"model": MODEL, "input": list(items), "max_output_tokens": 200, **more}


async def goes_on(server: LocalServer, item: Any) -> None:
    """The item stands for the history in the next request."""
    answer = await server.client.post(PATH, json=body_of(ASK, item, ASK))
    assert answer.status_code == 200, answer.text
    assert LEFT_OUT not in answer.headers
    assert MADE in prompt_of(server)


async def test_a_compaction_trigger_requests_a_summary(
    either: LocalServer,  # noqa: F811
    summary: str,
) -> None:
    body = body_of(*HISTORY, TRIGGER, tools=TOOLS, text=TEXT_FORMAT, store=False)
    whole = await either.post(PATH, body)
    [item] = whole["output"]
    assert item["type"] == "compaction"
    assert summary not in json.dumps(whole)
    assert "It is there." in prompt_of(either)
    await goes_on(either, item)

    events = await streamed(either, body)
    kinds = [event["type"] for event in events]
    assert kinds == [
        *("response.created", "response.in_progress"),
        *("response.output_item.added", "response.output_item.done", "response.completed"),
    ]
    numbers = [event["sequence_number"] for event in events]
    assert numbers == sorted(set(numbers))
    assert events[-1]["response"]["output"] == [events[-2]["item"]]
    await goes_on(either, events[-2]["item"])


async def test_a_compaction_keeps_what_is_cached(local: LocalServer, said: Said) -> None:  # noqa: F811
    """The prompt continues from the chat's: the tools stay, and the request comes last."""
    said.text = MADE
    await local.post(PATH, body_of(*HISTORY, tools=TOOLS))
    chat = prompt_of(local)
    await local.post(PATH, body_of(*HISTORY, TRIGGER, tools=TOOLS))
    assert prompt_of(local).startswith(chat.removesuffix("<|im_start|>assistant\n"))


async def test_the_endpoint_answers_as_openais(
    either: LocalServer,  # noqa: F811
    summary: str,
) -> None:
    for history in (HISTORY, "Make the file made.txt."):
        body = {"model": MODEL, "input": history, "instructions": "Be brief."}
        answer = await either.client.post(f"{PATH}/compact", json=body)
        assert answer.status_code == 200, answer.text
        compacted = answer.json()
        assert compacted["object"] == "response.compaction"
        assert compacted["usage"]["output_tokens"] > 0
        assert compacted["id"].startswith("resp_")
        [item] = compacted["output"]
        assert item["type"] == "compaction"
        await goes_on(either, item)
    assert (await either.client.get(f"{PATH}/{compacted['id']}")).status_code == 404


async def test_a_stored_chat_is_compacted(either: LocalServer, summary: str) -> None:  # noqa: F811
    first = await either.post(PATH, body_of(*HISTORY))
    body = {"model": MODEL, "previous_response_id": first["id"]}
    [item] = (await either.post(f"{PATH}/compact", body))["output"]
    assert "It is there." in prompt_of(either)
    await goes_on(either, item)


async def test_a_compaction_over_a_websocket(either: LocalServer, summary: str) -> None:  # noqa: F811
    async with socket_of(either) as socket:
        await socket.send(json.dumps({"type": "response.create", **body_of(*HISTORY, TRIGGER)}))
        events = await messages(socket)
        [done] = [event["item"] for event in events if event["type"].endswith("item.done")]
        assert done["type"] == "compaction"
        await goes_on(either, done)


async def test_refusals_of_the_endpoint(either: LocalServer) -> None:  # noqa: F811
    for body, status in (
        ({"model": "none", "input": "x"}, 404),
        ({"model": MODEL, "input": 7}, 400),
        ({"model": MODEL, "input": "x", "previous_response_id": "resp_none"}, 404),
    ):
        answer = await either.client.post(f"{PATH}/compact", json=body)
        assert answer.status_code == status, answer.text
        assert answer.json()["error"]["message"]


async def test_a_summary_of_another_server_is_left_out(either: LocalServer) -> None:  # noqa: F811
    for content in ("gAAAA", "agentrt.summary:ü", "agentrt.summary:AAA", "", None, 7):
        item = {"type": "compaction", "id": "c", "encrypted_content": content}
        answer = await either.client.post(PATH, json=body_of(item, ASK))
        assert answer.status_code == 200, answer.text
        if content:
            assert answer.headers[LEFT_OUT] == "compaction"

"""Responses survive a restart where there is a database."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from agentrt.serving import langgraph
from agentrt.serving.frontend import responses
from agentrt.serving.langgraph.database import kept_responses
from agentrt.serving.programs.api import api as programs
from agentrt.steady import MachineClocks
from tests.serving.frontend.test_response_items import LEFT_OUT, PATH, prompt_of
from tests.serving.local import MODEL, SAYS, Held, LocalServer, open_server

pytestmark = pytest.mark.engine

CALL = {"type": "function_call", "call_id": "c", "name": "look", "arguments": "{}"}
OUTPUT = {"type": "function_call_output", "call_id": "c", "output": "Rain\0 \N{UMBRELLA}."}


@pytest.fixture(params=["sqlite", "postgresql"])
def database(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite:{tmp_path / 'agentrt.db'}"
    return str(request.getfixturevalue("url"))


@contextlib.asynccontextmanager
async def server_on(database: str, **options: Any) -> AsyncIterator[LocalServer]:
    """A server, whose saves have ended when it ends."""
    apis = (programs, langgraph.api_with(None))
    async with open_server(apis=apis, database=database, **options) as opened:
        yield opened
        await opened.until(lambda: not opened.server.under_way)


async def ask(local: LocalServer, *items: Any, tenant: str = "a", **more: Any) -> Any:
    """The JSON of an answer."""
    chat = [{"role": "user", "content": i} if isinstance(i, str) else i for i in items]
    return await local.post(
        PATH, {"model": MODEL, "input": chat, **more}, {"x-agentrt-tenant": tenant}
    )


async def test_a_response_that_has_ended_is_cancelled_after_a_restart_as_before(
    database: str,
) -> None:
    async with server_on(database) as local:
        synchronous = await ask(local, "hello")
        in_background = await ask(local, "hello", background=True)
        await local.until(lambda: not local.server.under_way)
        before = [await cancel(local, each) for each in (synchronous, in_background)]
    async with server_on(database) as local:
        after = [await cancel(local, each) for each in (synchronous, in_background)]
    assert after == before
    assert [status for status, _ in after] == [400, 200]
    assert after[1][1]["status"] == "completed"


async def test_a_chat_goes_on_after_a_restart_although_its_beginning_was_deleted_meanwhile(
    database: str,
) -> None:
    async with server_on(database, kind=Held) as local:
        local.engine.go.set()
        first = await ask(local, "I am Ada.")
        await local.until(lambda: not local.server.under_way)
        local.engine.go.clear()
        local.engine.began.clear()
        second = await ask(local, "And?", previous_response_id=first["id"], background=True)
        await local.engine.began.wait()
        at, headers = f"{PATH}/{first['id']}", {"x-agentrt-tenant": "a"}
        assert (await local.client.delete(at, headers=headers)).status_code == 200
        local.engine.go.set()
    async with server_on(database) as local:
        assert (await local.client.get(at, headers=headers)).status_code == 404
        await ask(local, "Who am I?", previous_response_id=second["id"])
        assert [prompt_of(local).count(text) for text in ("I am Ada.", "And?", SAYS)] == [1, 1, 2]


async def test_responses_that_save_the_same_previous_response_at_once_are_both_saved(
    database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole, answers = kept_responses._is_stored, [False]

    async def is_stored(connection: Any, tenant: str, response_id: str) -> bool:
        is_there = await whole(connection, tenant, response_id)
        return answers.pop() if answers else is_there  # then, the other response is faster

    async with server_on(database) as local:
        first = await ask(local, "I am Ada.")
        await local.until(lambda: not local.server.under_way)
        monkeypatch.setattr(kept_responses, "_is_stored", is_stored)
        second = await ask(local, "And?", previous_response_id=first["id"])
    async with server_on(database) as local:
        await ask(local, "Who am I?", previous_response_id=second["id"])
        assert "I am Ada." in prompt_of(local)


async def cancel(local: LocalServer, response: Any) -> tuple[int, Any]:
    headers = {"x-agentrt-tenant": "a"}
    answer = await local.client.post(f"{PATH}/{response['id']}/cancel", headers=headers)
    return answer.status_code, answer.json()


async def test_a_chat_goes_on_after_a_restart(database: str) -> None:
    async with server_on(database) as local:
        first = await ask(local, "I am Ada.", CALL, OUTPUT)
        second = await ask(local, "And?", previous_response_id=first["id"])
        unkept = await ask(local, "Forget me.", store=False)
        await ask(local, "Other?", tenant="b")
    async with server_on(database) as local:
        headers = {"x-agentrt-tenant": "a"}
        for response in (first, second):
            answer = await local.client.get(f"{PATH}/{response['id']}", headers=headers)
            assert answer.json() == response
        third = await ask(local, "Who am I?", previous_response_id=second["id"])
        assert third["previous_response_id"] == second["id"]
        prompt = prompt_of(local)
        assert [prompt.count(text) for text in ("I am Ada.", "And?", SAYS, "Rain")] == [1, 1, 2, 1]
        reference = {"type": "item_reference", "id": first["output"][0]["id"]}
        body = {"model": MODEL, "input": [reference, {"role": "user", "content": "Go on."}]}
        answer = await local.client.post(PATH, json=body, headers=headers)
        assert LEFT_OUT not in answer.headers
        for name, tenant in ((unkept["id"], "a"), (second["id"], "b"), ("resp%00", "a")):
            headers = {"x-agentrt-tenant": tenant}
            answer = await local.client.get(f"{PATH}/{name}", headers=headers)
            assert answer.status_code == 404
            named = name.replace("%00", "\0")
            body = {"model": MODEL, "input": "x", "previous_response_id": named}
            answer = await local.client.post(PATH, json=body, headers=headers)
            assert answer.status_code == 404
    async with server_on(database) as local:
        await ask(local, "Still?", previous_response_id=third["id"])
        assert "I am Ada." in prompt_of(local)


async def test_a_stream_and_a_background_response_are_kept(database: str) -> None:
    headers = {"x-agentrt-tenant": "a"}
    async with server_on(database) as local:
        body = {"model": MODEL, "input": "I am Ada.", "stream": True}
        streamed = await local.client.post(PATH, json=body, headers=headers)
        name = streamed.text.partition('"id":"')[2].partition('"')[0]
        queued = await ask(local, "I am Bob.", background=True)
    async with server_on(database) as local:
        for response_id, words in ((name, "I am Ada."), (queued["id"], "I am Bob.")):
            whole = (await local.client.get(f"{PATH}/{response_id}", headers=headers)).json()
            assert whole["status"] == "completed"
            await ask(local, "Who?", previous_response_id=response_id)
            assert words in prompt_of(local)


async def test_a_deleted_response_is_gone_and_its_branches_go_on(database: str) -> None:
    """Also after a restart, and if it is deleted before it was saved."""
    headers = {"x-agentrt-tenant": "a"}

    async def is_gone(local: LocalServer, name: str) -> None:
        body = {"model": MODEL, "input": "x", "previous_response_id": name}
        for answer in (
            await local.client.get(f"{PATH}/{name}", headers=headers),
            await local.client.delete(f"{PATH}/{name}", headers=headers),
            await local.client.post(PATH, json=body, headers=headers),
        ):
            assert answer.status_code == 404, answer.text
            assert name in answer.json()["error"]["message"]

    async with server_on(database) as local:
        first = await ask(local, "I am Ada.")
        left, right = [
            await ask(local, word, previous_response_id=first["id"]) for word in ("Left?", "Right?")
        ]
        at = f"{PATH}/{first['id']}"
        other = await local.client.delete(at, headers={"x-agentrt-tenant": "b"})
        assert other.status_code == 404
        for response in (first, right):
            answer = await local.client.delete(f"{PATH}/{response['id']}", headers=headers)
            assert answer.json() == {"id": response["id"], "object": "response", "deleted": True}
            await is_gone(local, response["id"])
        left = await ask(local, "More?", previous_response_id=left["id"])
        assert "I am Ada." in prompt_of(local)
    async with server_on(database) as local:
        await is_gone(local, first["id"])
        await is_gone(local, right["id"])
        reference = {"type": "item_reference", "id": first["output"][0]["id"]}
        body = {"model": MODEL, "input": [reference, {"role": "user", "content": "Go on."}]}
        answer = await local.client.post(PATH, json=body, headers=headers)
        assert answer.headers[LEFT_OUT] == "item_reference"
        await ask(local, "And?", previous_response_id=left["id"])
        prompt = prompt_of(local)
        assert all(words in prompt for words in ("I am Ada.", "Left?", "More?"))
        assert "Right?" not in prompt


async def test_old_responses_are_deleted_but_not_what_a_chat_needs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [0.0]
    machine = MachineClocks(since_boot=lambda: now[0], time_of_day=lambda: now[0], boot="b")
    database = f"sqlite:{tmp_path / 'agentrt.db'}"

    async def kept(local: LocalServer, *named: Any) -> list[int]:
        statuses = []
        for response in named:
            at = f"{PATH}/{response['id']}"
            answer = await local.client.get(at, headers={"x-agentrt-tenant": "a"})
            statuses.append(answer.status_code)
        return statuses

    monkeypatch.setattr(kept_responses, "MOST", 3)
    async with server_on(database, machine=machine) as local:
        first = await ask(local, "I am Ada.")
        lone = await ask(local, "Alone.")
        now[0] = 10.0
        second = await ask(local, "And?", previous_response_id=first["id"])
        await local.until(lambda: not local.server.under_way)
        third = await ask(local, "So?", previous_response_id=second["id"])
    async with server_on(database, machine=machine) as local:  # the fourth was too many
        assert await kept(local, first, lone, second, third) == [200, 404, 200, 200]
        rows = local.server.response_rows
        loaded = None if rows is None else await rows.load("a", first["id"])
        assert loaded is not None
        assert loaded[0].age_s == pytest.approx(10.0)
    now[0] = responses.KEPT_S + 5.0
    async with server_on(database, machine=machine) as local:
        assert await kept(local, first, second, third) == [404, 200, 200]
        await ask(local, "More?", previous_response_id=third["id"])
        assert "I am Ada." in prompt_of(local)

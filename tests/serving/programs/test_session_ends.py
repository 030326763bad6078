"""A program ends when its client says that its session is over."""

from __future__ import annotations

import asyncio

import pytest

from agentrt.runtime.run import RunState
from tests.serving.local import Held, LocalServer, open_server


def programs(local: LocalServer) -> list[str]:
    return [row.program_id for row in local.runtime.table]


@pytest.mark.parametrize("parent", ["x-dynamo-parent-session-id", "x-parent-session-id"])
@pytest.mark.parametrize("final", ["x-dynamo-session-final", "x-session-final"])
async def test_a_program_ends_with_the_last_request_of_its_session(final: str, parent: str) -> None:
    """Not with that of a sub-agent, nor before what runs beside the last request."""
    async with open_server(kind=Held) as local:
        local.engine.go.set()
        await local.chat("plan", headers={"x-session-id": "a"})
        await local.chat("look", headers={"x-session-id": "b", parent: "a", final: "true"})
        await local.chat("go on", headers={"x-session-id": "a", final: "false"})
        [name] = programs(local)
        run = local.runtime.runs[name]
        local.engine.go.clear()
        beside = asyncio.create_task(local.chat("long", headers={"x-session-id": "a"}))
        await local.until(lambda: len(local.engine.open) == 1)
        local.engine.go.set()
        await local.chat("that is all", headers={"x-session-id": "a", final: "True"})
        await beside
        assert (run.state, run.row.finished_calls, programs(local)) == (RunState.DONE, 5, [])
        await local.chat("again", headers={"x-session-id": "a"})
        assert programs(local) != [name]


async def test_a_body_names_a_program_as_clients_of_thunderagent_do_and_release_ends_it() -> None:
    async with open_server() as local:
        for _ in range(2):
            await local.chat("hello", program_id="task-a")
        await local.chat("hello", program_id="task-b")
        assert [row.finished_calls for row in local.runtime.table] == [2, 1]
        for released in (True, False):
            answer = await local.post("/programs/release", {"program_id": "task-a"})
            assert answer == {"program_id": "task-a", "released": released}
        assert [row.finished_calls for row in local.runtime.table] == [1]
        refused = await local.client.post("/programs/release", json={})
        assert refused.status_code == 400
        assert "program_id" in refused.json()["error"]["message"]


async def test_a_call_that_was_given_up_does_not_keep_its_program() -> None:
    async with open_server(kind=Held) as local:
        call = asyncio.create_task(local.chat("hello", headers={"x-session-id": "a"}))
        await local.until(lambda: len(local.engine.open) == 1)
        call.cancel()
        await asyncio.gather(call, return_exceptions=True)
        await local.until(lambda: not local.engine.open)
        local.engine.go.set()
        await local.chat("hello", headers={"x-session-id": "a", "x-session-final": "true"})
        assert programs(local) == []
        assert len(local.server.programs) == 0

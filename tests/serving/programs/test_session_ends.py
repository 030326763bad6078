"""A program ends when its client says that its session is over."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from agentrt.runtime.run import RunState
from tests.serving.local import MODEL, Held, open_server


@pytest.mark.parametrize(
    ("final", "parent"),
    [
        ("x-dynamo-session-final", "x-dynamo-parent-session-id"),
        ("x-session-final", "x-parent-session-id"),
    ],
)
async def test_a_program_ends_with_the_last_request_of_its_session(final: str, parent: str) -> None:
    """Not with that of a sub-agent, nor before what runs beside the last request."""
    async with open_server(kind=Held) as local:
        local.engine.go.set()
        await local.chat("plan", headers={"x-session-id": "a"})
        await local.chat("look", headers={"x-session-id": "b", parent: "a", final: "true"})
        await local.chat("go on", headers={"x-session-id": "a", final: "false"})
        [name] = local.programs()
        run = local.runtime.runs[name]
        local.engine.go.clear()
        beside = asyncio.create_task(local.chat("long", headers={"x-session-id": "a"}))
        await local.until(lambda: len(local.engine.open) == 1)
        local.engine.go.set()
        await local.chat("that is all", headers={"x-session-id": "a", final: "True"})
        await beside
        assert (run.state, run.row.finished_calls, local.programs()) == (RunState.DONE, 5, [])
        await local.chat("again", headers={"x-session-id": "a"})
        assert local.programs() != [name]


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


def context(**fields: Any) -> dict[str, Any]:
    return {"nvext": {"agent_context": fields, "agent_hints": {"osl": 64, "priority": "any"}}}


def control(name: str, action: str | None = None) -> dict[str, Any]:
    return {"nvext": {"session_control": {"session_id": name, "action": action}}}


OF_A_SESSION: dict[str, tuple[dict[str, Any], ...]] = {
    "dynamo": (
        context(session_id="a", session_type_id="coder"),
        context(session_id="b", parent_session_id="a", session_final=True),
        context(session_id="a", session_final=True),
    ),
    "dynamo's trajectories": (
        context(session_id="a", trajectory_id="a1", session_type_id="coder"),
        context(
            session_id="a", trajectory_id="a2", parent_trajectory_id="a1", trajectory_final=True
        ),
        context(session_id="a", trajectory_id="a1", trajectory_final=True),
    ),
    "dynamo's control": (control("a", "open"), control("a"), control("a", "close")),
    "sglang": ({"session_params": {"id": "a"}}, {"session_params": {"id": "a", "rid": "r"}}),
    "vllm": ({"session_id": "a", "nvext": None}, {"session_id": "a", **control("b", "close")}),
}
"""Bodies of one program, by whose words they have. The last of Dynamo's own end it."""


async def test_bodies_name_programs_and_their_ends_in_other_servers_words() -> None:
    """Fields that agentrt does not use may have any value."""
    async with open_server() as local:
        for number, (whose, (*before, last)) in enumerate(OF_A_SESSION.items()):
            said = {"x-agentrt-tenant": f"tenant-{number}"}
            known = set(local.programs())
            for body in before:
                await local.chat("hello", headers=said, **body)
            [name] = set(local.programs()) - known
            run = local.runtime.runs[name]
            await local.chat("that is all", headers=said, **last)
            assert run.row.finished_calls == len(before) + 1
            assert (name in local.programs()) is ("dynamo" not in whose)
            assert run.type == ("coder" if "session_type_id" in str(before) else "chat")


async def test_what_a_header_names_is_not_ended_by_a_body_of_another_session() -> None:
    async with open_server() as local:
        said = {"x-agentrt-run": "mine", "x-agentrt-type": "planner"}
        ends = context(session_id="a", session_type_id="coder", session_final=True)
        for _ in range(2):
            await local.chat("hello", headers=said, **ends)
        assert [(row.type, row.finished_calls) for row in local.runtime.table] == [("planner", 2)]


MALFORMED: list[tuple[dict[str, Any], str]] = [
    ({"session_id": 5}, "session_id"),
    ({"program_id": "x" * 257}, "program_id"),
    ({"program_id": "a\nb"}, "program_id"),
    ({"session_params": "a"}, "session_params"),
    ({"session_params": {"id": ["a"]}}, "session_params.id"),
    ({"nvext": []}, "nvext"),
    ({"nvext": {"agent_context": 1}}, "nvext.agent_context"),
    (context(session_id={}), "nvext.agent_context.session_id"),
    (context(session_id="a", trajectory_final=[]), "nvext.agent_context.trajectory_final"),
    (context(session_type_id="x" * 129), "nvext.agent_context.session_type_id"),
    (control("a", "shut"), "nvext.session_control.action"),
]


async def test_a_malformed_hint_is_refused_by_its_name() -> None:
    asked = {"model": MODEL, "max_tokens": 8, "messages": [{"role": "user", "content": "hi"}]}
    async with open_server() as local:
        for body, field in MALFORMED:
            for path in ("/v1/chat/completions", "/v1/messages"):
                refused = await local.client.post(path, json={**asked, **body})
                assert refused.status_code == 400, (body, refused.text)
                assert refused.json()["error"]["message"].startswith(f"{field}: ")
        assert local.programs() == []
        assert local.server.tenants.calls("default") == 0


async def test_a_cancelled_call_does_not_keep_its_program_live() -> None:
    async with open_server(kind=Held) as local:
        call = asyncio.create_task(local.chat("hello", headers={"x-session-id": "a"}))
        await local.until(lambda: len(local.engine.open) == 1)
        call.cancel()
        await asyncio.gather(call, return_exceptions=True)
        await local.until(lambda: not local.engine.open)
        local.engine.go.set()
        await local.chat("hello", headers={"x-session-id": "a", "x-session-final": "true"})
        assert local.programs() == []
        assert len(local.server.programs) == 0
